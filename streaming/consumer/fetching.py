"""Fetch rows of a member's partitions, one split of one partition after the other."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from kafkalog.errors import OffsetOutOfRangeError, UnknownTopicOrPartitionError
from kafkalog.streaming.source.end_offsets import EndOffsets, LookRetries
from kafkalog.streaming.source.loss import LossPolicy
from kafkalog.streaming.source.offsets import LATEST
from kafkalog.streaming.source.planner import plan_splits, readable_ranges
from kafkalog.streaming.source.reading import read_split
from kafkalog.streaming.source.schema import RowSchema
from kafkalog.streaming.source.start import PositionValidator, resolve_start, starting_bound
from kafkalog.streaming.source.subscription import Subscription

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.history import Divergence, LastBatch
    from kafkalog.streaming.options.read_options import ReadOptions
    from kafkalog.streaming.source.planner import LogSplit

__all__ = ["Fetched", "Fetcher", "beginnings"]


class Fetched(NamedTuple):
    """Rows of one partition, and the offset after them; without rows, what is passed over.

    ``begin`` is the offset that was asked for. One before it is where a log was cut.
    """

    partition: TopicPartition
    begin: int
    rows: pa.RecordBatch | None
    position: int


@dataclass(slots=True)
class _Ahead:
    """What is planned of one partition from ``position`` up to ``end``."""

    position: int
    end: int
    splits: deque[LogSplit]
    rows: Iterator[pa.RecordBatch] | None = field(default=None)


class Fetcher:
    """Reads what is committed. Not thread safe."""

    def __init__(self, options: ReadOptions) -> None:
        """Take the options of a query of the topics.

        Raises:
            OptionError: they name no topic.
            InvalidTopicError: a name that no topic can have.
        """
        self._options = options
        self._logs = EndOffsets.of(options, Subscription.of(options).selects)
        self._schema = RowSchema.named((), include_headers=options.include_headers)
        self._validator = PositionValidator(self._logs)
        self._policy = LossPolicy(fail=options.fail_on_data_loss)
        self._retries = LookRetries(self._logs, options)
        self._ahead: dict[TopicPartition, _Ahead] = {}
        self._ids: dict[TopicPartition, str | None] = {}
        self._turn: TopicPartition | None = None
        self.recreated: set[TopicPartition] = set()
        """Those that belong to another topic now than when they were read last."""

    def next(self, positions: Mapping[TopicPartition, int]) -> Fetched | None:
        """Return what comes next of partitions, from where one is in each; None if nothing is new.

        Raises:
            DataLossError: offsets are gone, and the reader wants to fail then.
            KafkaLogError: the logs cannot be read.
        """
        self._ahead = {  # what was not taken away, is not paused, and is where one is
            key: each for key, each in self._ahead.items() if positions.get(key) == each.position
        }
        key = self._choose(positions)
        if key is None:
            return None
        if isinstance(key, Fetched):
            return key
        ahead = self._ahead.pop(key)  # wherever this is cut off, it is planned again
        found = self._read(key, ahead)
        if ahead.splits or ahead.rows is not None:
            ahead.position = found.position
            self._ahead[key] = ahead
        return found

    def begin(
        self,
        positions: Mapping[TopicPartition, int],
        batches: Mapping[TopicPartition, LastBatch],
    ) -> None:
        """Take where a group stands, and the last batches below that, as it has committed them."""
        for key, position in positions.items():
            self._validator.add(key, position, batches.get(key))

    def last_batches(
        self, positions: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, LastBatch]:
        """Return the last batches below what was read.

        Raises:
            DataLossError: a log was replaced while it was read, and the reader wants to fail then.
            KafkaLogError: the logs cannot be looked at.
        """
        planned = {key: each.end for key, each in self._ahead.items() if key in positions}
        if any(self._validator.batch(key, positions[key]) is None for key in planned):
            self._logs.look(planned)
            self._loss(planned)
            self._validator.note(positions)
        found = {key: self._validator.batch(key, at) for key, at in positions.items()}
        return {key: batch for key, batch in found.items() if batch is not None}

    def check_reached(self, positions: Mapping[TopicPartition, int]) -> None:
        """Refuse positions above the ends of their logs, to which :meth:`Consumer.seek` leads.

        Raises:
            OffsetOutOfRangeError: naming the first.
            KafkaLogError: the logs cannot be looked at.
        """
        if not positions or all(
            at <= self._logs.ends.offsets.get(key, at) for key, at in positions.items()
        ):
            return
        ends = self._logs.look(dict(positions)).offsets
        for key, at in positions.items():
            if at > (end := ends.get(key, at)):
                raise OffsetOutOfRangeError(
                    f"a group cannot stand at offset {at} of {key}, whose log is committed up to "
                    f"{end}: seek() to an offset up to that. Nothing was published"
                )

    def forget(self, key: TopicPartition) -> None:
        """Take a partition for another one when it comes again."""
        self._validator.forget([key])
        self._ahead.pop(key, None)
        self._ids.pop(key, None)
        self.recreated.discard(key)

    def _read(self, key: TopicPartition, ahead: _Ahead) -> Fetched:
        begin = ahead.position
        if ahead.rows is None and ahead.splits:
            ahead.rows = iter(read_split(ahead.splits.popleft(), self._options, self._schema))
        for rows in ahead.rows or ():
            if rows.num_rows:
                return Fetched(key, begin, rows, rows.column("offset")[-1].as_py() + 1)
        ahead.rows = None
        self._turn = key  # the others come first now
        return Fetched(key, begin, None, ahead.position if ahead.splits else ahead.end)

    def _choose(self, positions: Mapping[TopicPartition, int]) -> TopicPartition | Fetched | None:
        """Return a partition with something to read: the one at hand, else the next in turn.

        Of one that has another history, where it is read on.
        """
        at_hand = next((key for key, ahead in self._ahead.items() if ahead.rows is not None), None)
        if at_hand is not None:
            return at_hand
        ends = self._logs.look(dict(positions)).offsets
        planned = {key: each.end for key, each in self._ahead.items()}
        for key, divergence in self._loss(positions, planned).items():
            self._ahead.pop(key, None)
            log_start = self._logs.log_start_if_there(key) or 0
            there = min(positions[key], max(log_start, divergence.cut_at or positions[key]))
            if there < positions[key]:
                return Fetched(key, positions[key], None, there)
        for key in positions.keys() - self._ids.keys():  # what is noted is of the topic there
            self._ids[key] = self._logs.topic_id(key)
        self._validator.note(positions)
        self._validator.keep_only(positions, planned)
        order = sorted(
            k for k, at in positions.items() if k in self._ahead or ends.get(k, at) != at
        )
        if self._turn is not None:
            last = self._turn
            order = [key for key in order if key > last] + [key for key in order if key <= last]
        for key in order:
            if key in self._ahead or self._plan(key, positions[key], ends):
                return key
        return None

    def _loss(self, *positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, Divergence]:
        """Fail, or say it once, where logs have another history than the one that was read.

        A topic that was recreated is no such log, and is not waited for: its group will notice.
        """

        def find() -> dict[TopicPartition, Divergence]:
            found = self._validator.find_diverged(*positions)
            return {key: each for key, each in found.items() if not self._is_other_topic(key)}

        def find_again() -> dict[TopicPartition, Divergence]:
            self._logs.look(positions[0])
            return find()

        found = self._retries.look(find, lambda found: not found, again=find_again)
        if not found:
            return found
        self._policy.history_changed(found)
        self._validator.forget(found)
        return found

    def _plan(self, key: TopicPartition, position: int, ends: Mapping[TopicPartition, int]) -> bool:
        """Plan what there is of a partition; return whether there is anything."""
        end = ends[key]

        def look_again() -> None:
            nonlocal end
            end = self._logs.look({key: position}).offsets.get(key, end)

        return self._retries.plan(
            lambda policy: self._plan_once(key, position, end, policy),
            self._policy,
            again=look_again,
        )

    def _plan_once(self, key: TopicPartition, position: int, end: int, policy: LossPolicy) -> bool:
        if end == position or (end < position and self._may_come(key, position)):
            return False  # what lies between is not known to be committed yet
        self._check_topic(key)
        ends = {key: end}
        ranges = readable_ranges({key: position}, ends, ends, self._logs, policy)
        splits = plan_splits(ranges, self._options, self._logs, policy)
        self._validator.note(ends)
        self._ahead[key] = _Ahead(position, end, deque(splits))
        return True

    def _may_come(self, key: TopicPartition, position: int) -> bool:
        """Whether a partition may be committed up to there, or be so by others."""
        return self._logs.reaches(key, position) or self._logs.lacks_majority()

    def _check_topic(self, key: TopicPartition) -> None:
        found = self._logs.topic_id(key)
        known = self._ids.setdefault(key, found)
        if self._is_other_topic(key):
            self.recreated.add(key)
            raise UnknownTopicOrPartitionError(
                f"{key} belongs to another topic of that name now (topic id {found}, and it was "
                f"{known}): where the group stands in it means nothing there"
            )
        self._ids[key] = found

    def _is_other_topic(self, key: TopicPartition) -> bool:
        known, found = self._ids.get(key), self._logs.topic_id(key)
        if known is None or found is None or known == found:
            return False
        return not self._logs.is_changed_id(key.topic, known, found)


# ----------------------------------------------------------------------------------------------
# Where a group begins in partitions in which it has no position yet.


def beginnings(
    options: ReadOptions, first: Sequence[TopicPartition], late: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return the offsets that a group begins at.

    Args:
        options: of the member that decides; they say where ``first`` begin.
        first: partitions of topics that are new to the group.
        late: partitions that a topic of the group has got since. They begin at their log start.

    Raises:
        UnknownTopicOrPartitionError: one is not there any more.
        OptionError: one has no record with the timestamp to start at.
    """
    wanted = {*first, *late}
    logs = EndOffsets.of(options, wanted.__contains__)
    ends = logs.look().offsets
    missing = sorted(wanted - ends.keys())
    if missing:
        raise UnknownTopicOrPartitionError(
            f"{', '.join(map(str, missing))} cannot be assigned: it is gone from "
            f"{', '.join(map(str, options.paths))} since the group looked"
        )
    bound = starting_bound(options, default=LATEST)
    strategy = options.starting_timestamp_strategy
    found = resolve_start(bound, {key: ends[key] for key in first}, logs, when_none=strategy)
    return {**found, **{key: logs.log_start(key) for key in late}}
