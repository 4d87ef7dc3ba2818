"""End offsets of a query's partitions now: what Spark asks by ``latestOffset``.

Ends are those of :mod:`kafkalog.streaming.store.ends.tracker`; what a query does with them is here.
"""

from __future__ import annotations

import logging
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

from kafkalog.errors import (
    DataLossError,
    KafkaLogError,
    LostSegmentError,
    UnknownTopicOrPartitionError,
)
from kafkalog.files.deferred_signals import pause
from kafkalog.files.paths import as_path
from kafkalog.files.storage import TieredRoot
from kafkalog.files.system import system
from kafkalog.model import CLUSTER_METADATA_TOPIC, many
from kafkalog.streaming.objects.bucket_store import bucket_of_path
from kafkalog.streaming.source.loss import LossPolicy
from kafkalog.streaming.store.ends.tiered import offset_of_time
from kafkalog.streaming.store.ends.tracker import LogEndTracker
from kafkalog.streaming.store.recovery.lost_partitions import NOTHING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.options.read_options import ReadOptions
    from kafkalog.streaming.source.offsets import PartitionOffsets
    from kafkalog.streaming.store.ends.rule import OffsetGap
    from kafkalog.streaming.store.ends.tiered import LogStart
    from kafkalog.streaming.store.ends.tracker import Unread
    from kafkalog.streaming.store.recovery.lost_partitions import MissingParts


__all__ = ["CompletenessCheck", "EndOffsets", "LookRetries", "StalledLogEnds", "say_gaps"]

_T = TypeVar("_T")


# ----------------------------------------------------------------------------------------------
# Warnings about offsets between the ends that are read up to and the ends of the logs.


_LOGGER = logging.getLogger("kafkalog.source")


_LONG_S: Final = 60.0
"""A broker tells every few seconds what is committed."""


_OF_A_BROKER: Final = (
    "A broker that runs notes every 5 s what is committed: look again then. In a copy whose broker "
    "is gone, readUpTo=logEnd reads them"
)
_OF_NOBODY: Final = (
    "No broker lived there and no unfinished commit names them: the directory was copied while a "
    "query wrote to it, or others put them there. `kafkalog broker takeover` takes them over as "
    "they are; on several nodes `kafkalog recover` says what to do"
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
            "cut off: then the next writer, or `kafkalog recover`, rolls it back",
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


class StalledLogEnds:
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
                "commit of ours has left that was cut off, `kafkalog recover` rolls back; what a "
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


# ----------------------------------------------------------------------------------------------


class EndOffsets(LogEndTracker):
    """Follows the ends of a query's partitions. Not thread safe, not picklable."""

    @classmethod
    def of(cls, options: ReadOptions, selects: Callable[[TopicPartition], bool]) -> EndOffsets:
        """Follow what a query reads."""
        return cls(
            _paths_of(options),
            selects,
            to_log_end=options.read_up_to == "logEnd",
            committed_only=options.committed_only,
            every_batch=options.shows_batches,
            around_damage=options.on_corrupt_record == "skip",
            needs_majority=options.fail_on_data_loss,
            prefers_local=options.preferred_read_replica == "local",
            max_decompressed_bytes=options.max_decompressed_bytes,
        )

    @property
    def is_in_bucket(self) -> bool:
        """Whether all of them are those of a log in an object store."""
        return all(bucket_of_path(path) is not None for path in self.paths)

    def report(self) -> None:
        """Say in numbers what the last look found beside the ends, where there is something."""
        damaged = [f"{key} at offset {end}" for key, end in self.ends.damaged.items()]
        say_gaps(self.unread(), self.ends.missing, damaged)

    def topic_id(self, topic_partition: TopicPartition) -> str | None:
        """Return the id of a partition's topic, as of the last look; None if it has none."""
        return self.topic_ids().get(topic_partition)

    def offset_of_time(self, topic_partition: TopicPartition, time_ms: int, end: int) -> int | None:
        """Return the offset of the first record of a time or later, to start at; None without one.

        Where such a record may lie in a remote tier alone, it is the log start.
        """
        start = self.log_start(topic_partition)
        with self.open(topic_partition) as log:
            return offset_of_time(log, start, time_ms, end)

    def log_start_if_there(self, topic_partition: TopicPartition) -> int | None:
        """Return the first offset of a partition; None if it was deleted since the last look."""
        start = self.start_if_there(topic_partition)
        return None if start is None else start.offset

    def start_if_there(self, topic_partition: TopicPartition) -> LogStart | None:
        """Do :meth:`start_of`; None of a partition that was deleted since the last look."""
        try:
            return self.start_of(topic_partition)
        except UnknownTopicOrPartitionError:
            return None


def _paths_of(options: ReadOptions) -> Sequence[str | Path]:
    """Return what a query reads: a cluster's metadata is no topic that lies in log directories."""
    if options.view != "metadata":
        return options.paths
    from kafkalog.streaming.coordinator.cluster_metadata import find_metadata  # noqa: PLC0415

    log_dirs = [as_path(each) for each in options.paths if not isinstance(each, TieredRoot)]
    log_dirs += [
        as_path(p.log_dir) for p in options.paths if isinstance(p, TieredRoot) and p.log_dir
    ]
    found = find_metadata(log_dirs)
    if found is None:
        raise UnknownTopicOrPartitionError(
            f"view=metadata reads the folder {CLUSTER_METADATA_TOPIC}-0, which is not in "
            f"{', '.join(map(str, log_dirs))}: a KRaft broker has it in the first of its log "
            "directories, or where metadata.log.dir says; with ZooKeeper there is none"
        )
    return [found]


# ----------------------------------------------------------------------------------------------
# Look at log directories until all that their commit state names seems to be there.


class LookRetries:
    """Look at logs again, as often as a query wants, before what seems lost counts as lost."""

    def __init__(self, logs: EndOffsets, options: ReadOptions) -> None:
        self._logs = logs
        self._tries = options.fetch_retries
        self._interval_s = options.fetch_retry_interval_ms / 1000

    def look(
        self,
        look: Callable[[], _T],
        is_whole: Callable[[_T], bool],
        *,
        again: Callable[[], _T] | None = None,
    ) -> _T:
        """Look until nothing seems lost, and return what was seen last; ``again`` looks again."""
        found = look()
        for _ in range(self._tries - 1):
            if is_whole(found):
                break
            self._rest()
            found = (again or look)()
        return found

    def plan(
        self,
        plan: Callable[[LossPolicy], _T],
        policy: LossPolicy,
        *,
        again: Callable[[], object] = lambda: None,
        lost: type[KafkaLogError] | tuple[type[KafkaLogError], ...] = DataLossError,
    ) -> _T:
        """Plan, and once more after another look while something is ``lost``.

        The last time ``policy`` decides what a loss is. Until then each is one. What a remote tier
        has lost is left out then: the next plan finds the gap.
        """
        for _ in range(self._tries - 1):
            try:
                return plan(LossPolicy(fail=True))
            except lost:
                self._rest()
                again()
        while True:
            try:
                return plan(policy)
            except LostSegmentError:
                if policy.fails:
                    raise

    def _rest(self) -> None:
        pause(self._interval_s)
        self._logs.ask_stores_again()


class CompletenessCheck:
    """Looks at log directories until all seems to be there, and says what is not."""

    def __init__(self, logs: EndOffsets, options: ReadOptions, policy: LossPolicy) -> None:
        self._logs = logs
        self._policy = policy
        self._said = NOTHING
        self.retries = LookRetries(logs, options)

    def look(
        self,
        look: Callable[[], PartitionOffsets],
        *,
        is_whole: Callable[[], bool] = lambda: True,
        concerns: Callable[[TopicPartition], bool] = lambda _: True,
    ) -> PartitionOffsets:
        """Look, as often as the query wants where something seems lost; return the ends.

        ``is_whole`` may name other reasons to look again, and ``concerns`` partitions that matter.

        Raises:
            DataLossError: something is missing, and the query fails then.
        """

        def has_all(_: PartitionOffsets) -> bool:
            parts = self._parts(concerns)
            return is_whole() and (parts == self._said or not parts.is_loss)

        ends = self.retries.look(look, has_all)
        self._say(self._parts(concerns))
        return ends

    def _parts(self, concerns: Callable[[TopicPartition], bool]) -> MissingParts:
        parts = self._logs.missing_parts()
        concerned = {key: end for key, end in parts.partitions.items() if concerns(key)}
        return parts._replace(partitions=concerned)

    def _say(self, parts: MissingParts) -> None:
        if parts.is_loss:
            if self._policy.fails or parts != self._said:
                self._policy.parts_missing(str(parts))
        elif parts.members is not None and parts != self._said:
            _LOGGER.warning("%s", parts)
        self._said = parts
