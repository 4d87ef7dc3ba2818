"""What lies between the ends that are read up to and those of the logs, said in numbers."""

from __future__ import annotations

import logging
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kafkalog.model import TopicPartition

__all__ = ["OffsetGap", "say_gaps"]

_LOGGER = logging.getLogger("kafkalog.source")


class OffsetGap(NamedTuple):
    """The offsets ``[start, end)`` that are, or should be, above what is read."""

    start: int
    end: int


def say_gaps(
    unread: Mapping[TopicPartition, OffsetGap],
    missing: Mapping[TopicPartition, OffsetGap],
    damaged: Sequence[str],
) -> None:
    """Warn of what is above what is committed, what is missing, and logs that end at damage."""
    if unread:
        _LOGGER.warning(
            "%s lie above what is committed and are not read (readUpTo=logEnd reads them): %s",
            *_counted(unread),
        )
    if missing:
        _LOGGER.warning(
            "%s are said to be committed and are not in the log, which is damaged or was cut: %s",
            *_counted(missing),
        )
    if damaged:
        _LOGGER.warning(
            "the logs of %d partitions end at a damaged batch, as for a broker that recovers them: "
            "nothing tells that the batches behind it are committed, and they are not read "
            "(kafkalog verify names the places): %s",
            len(damaged),
            ", ".join(damaged[:10]),
        )


def _counted(gaps: Mapping[TopicPartition, OffsetGap]) -> tuple[str, str]:
    count = sum(end - start for start, end in gaps.values())
    shown = [f"{key} [{gap.start}, {gap.end})" for key, gap in islice(gaps.items(), 10)]
    more = ["…"] if len(gaps) > len(shown) else []
    return f"{count} offsets of {len(gaps)} partitions", ", ".join(shown + more)
