"""Warnings about offsets between the ends that are read up to and the ends of the logs."""

from __future__ import annotations

import logging
from itertools import islice
from typing import TYPE_CHECKING, Final

from kafkalog.files.system import system
from kafkalog.model import many

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.store.ends.found import Unread
    from kafkalog.streaming.store.ends.rule import OffsetGap

__all__ = ["StuckEnds", "say_gaps"]

_LOGGER = logging.getLogger("kafkalog.source")


_LONG_S: Final = 60.0
"""A broker tells every few seconds what is committed."""


_OF_A_BROKER: Final = (
    "A broker that runs notes every 5 s what is committed: look again then. In a copy whose broker "
    "is gone, readUpTo=logEnd reads them"
)
_OF_NOBODY: Final = (
    "No broker lived there and no unfinished commit names them: the directory was copied while a "
    "query wrote to it, or others put them there. `kafkalog takeover` takes them over as they are; "
    "on several nodes `kafkalog recover` says what to do"
)


def say_gaps(
    unread: Unread,
    missing: Mapping[TopicPartition, OffsetGap],
    damaged: Sequence[str],
) -> None:
    """Warn of what is above what is committed, what is missing, and logs that end at damage."""
    if unread.uncommitted:
        _LOGGER.warning(
            "%s lie above what is committed and are not read: %s. %s",
            *_counted(unread.uncommitted),
            _OF_A_BROKER if unread.broker_lived else _OF_NOBODY,
        )
    if unread.unfinished:
        _LOGGER.warning(
            "%s are of a commit that has not ended, and are not read: %s. It is under way, or was "
            "cut off: then the next writer, or `kafkalog recover`, takes it back",
            *_counted(unread.unfinished),
        )
    if missing:
        _LOGGER.warning(
            "%s are said to be committed and are not in the log, which is damaged or was cut: %s",
            *_counted(missing),
        )
    if damaged:
        _LOGGER.warning(
            "the logs of %s end at a damaged batch, as for a broker that recovers them: "
            "nothing tells that the batches after it are committed, and they are not read "
            "(kafkalog verify names the places). If a broker writes at this moment, look again: "
            "%s",
            many(len(damaged), "partition"),
            ", ".join(damaged[:10]),
        )


class StuckEnds:
    """Warns of logs that have held more than what is committed for long.

    It warns after a minute without any progress, then after two, four, eight: perhaps nobody
    completes these logs any more, and the query would wait for ever without a word.
    """

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or system.monotonic
        self._since: dict[TopicPartition, tuple[int, float]] = {}
        self._next_s: float = _LONG_S

    def look(self, gaps: Mapping[TopicPartition, OffsetGap]) -> None:
        """Take note of the gaps between what is committed and where the logs end now."""
        now = self._clock()
        before = self._since
        self._since = {
            key: before[key] if key in before and before[key][0] == gap.start else (gap.start, now)
            for key, gap in gaps.items()
        }
        longest = max((now - since for _, since in self._since.values()), default=0.0)
        if longest < _LONG_S:
            self._next_s = _LONG_S
        elif longest >= self._next_s:
            self._next_s = 2 * longest
            stuck = {k: gaps[k] for k, (_, since) in self._since.items() if now - since >= _LONG_S}
            count, shown = _counted(stuck)
            _LOGGER.warning(
                "%s are in the log and have not become committed for %d s: %s. The query waits for "
                "that. If a broker or a writer has these directories, see whether it runs. What a "
                "commit of ours has left that was cut off, `kafkalog recover` takes back; what a "
                "broker has left that is gone is read with readUpTo=logEnd",
                count,
                int(longest),
                shown,
            )


def _counted(gaps: Mapping[TopicPartition, OffsetGap]) -> tuple[str, str]:
    count = sum(end - start for start, end in gaps.values())
    shown = [f"{key} [{gap.start}, {gap.end})" for key, gap in islice(gaps.items(), 10)]
    more = ["…"] if len(gaps) > len(shown) else []
    return f"{many(count, 'offset')} of {many(len(gaps), 'partition')}", ", ".join(shown + more)
