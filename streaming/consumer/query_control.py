"""Offsets of a streaming query that has joined a group: those of the partitions it owns.

It answers what :class:`~kafkalog.streaming.source.stream_control.StreamControl` answers for a query
that reads by itself. What differs follows from one rule: where the group stands in a partition
counts, and the query's checkpoint only says what a batch was to read.

=======================================  =========================================================
a partition that the query owns is       then
=======================================  =========================================================
in ``start``, where the group stands     it is read on, up to what is committed and within limits
in ``start``, elsewhere                  it is left out of ``end``
not in ``start``                         it enters ``end`` where the group stands; nothing is read
=======================================  =========================================================

A partition that the query does not own is left out. That is no loss: others read it from where the
group stands. For the same reason a batch that is planned again reads what is still the query's own,
from where the group stands by now.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Final

from kafkalog.errors import FencedMemberError
from kafkalog.streaming.consumer.fetching import beginnings
from kafkalog.streaming.consumer.query_member import QueryMember, instance_of, member_options
from kafkalog.streaming.source.admission import BatchLimits, IdlePacer
from kafkalog.streaming.source.end_offsets import CompletenessCheck, EndOffsets
from kafkalog.streaming.source.loss import LossPolicy
from kafkalog.streaming.source.offsets import to_json
from kafkalog.streaming.source.planner import LogSplit, plan_splits, readable_ranges
from kafkalog.streaming.source.start import PositionValidator
from kafkalog.streaming.source.subscription import Subscription
from kafkalog.streaming.store.session import ensure_set, existing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.history import Divergence
    from kafkalog.streaming.options.read_options import ReadOptions
    from kafkalog.streaming.source.offsets import PartitionOffsets

__all__ = ["JoinedControl"]

_TRIES: Final = 10
"""How often a batch is planned that loses partitions while it is."""

_LOGGER: Final = logging.getLogger("kafkalog.groups")


class JoinedControl:
    """Answers what Spark asks of a source that is a member of a group."""

    def __init__(self, options: ReadOptions, given: Mapping[str, str]) -> None:
        """Check the options of a query; ``given`` are all that it was given. Nothing is joined yet.

        Raises:
            OptionError: options that cannot be used.
            LogDirectoryError, CheckpointError: directories that are no set, or not ours to write.
        """
        self._options = options
        taken = member_options(given)
        directories = existing(taken.paths)
        ensure_set(directories, taken.policy)
        subscription = Subscription.of(options)
        self.member = QueryMember(
            directories,
            str(options.group_id),
            instance_of(options),
            taken,
            subscription=subscription,
            beginnings=functools.partial(beginnings, options),
        )
        self._subscription = subscription
        self._logs = EndOffsets.of(options, subscription.selects)
        self._validator = PositionValidator(self._logs)
        self._policy = LossPolicy.of(options)
        self._whole = CompletenessCheck(self._logs, options, self._policy)
        self._pacer = IdlePacer()
        self._limits = BatchLimits.of(options)
        self._is_available_now = False
        self._targets: PartitionOffsets | None = None
        """Up to where is read with ``Trigger.AvailableNow``, from the first look on."""
        self._has_ended = False
        self._planned: tuple[PartitionOffsets, PartitionOffsets, list[LogSplit]] | None = None
        self.latest: PartitionOffsets = {}
        """The ends of what the query owns, as of the last look."""

    def initial(self) -> PartitionOffsets:
        """Join, and begin with no partition: each enters with where the group stands.

        Raises:
            UnknownTopicOrPartitionError: a topic of ``subscribe`` does not exist.
            KafkaLogError: as :meth:`.QueryMember.take_part`.
        """
        self._look()
        self._subscription.require_topics(
            self._logs.existing(), self._options.paths, wait=self._options.wait_for_topics
        )
        self.member.take_part()
        return {}

    def freeze_targets(self) -> None:
        """Read only what is there at the first look (``Trigger.AvailableNow``)."""
        self._is_available_now = True

    def next_end(self, start: PartitionOffsets, *, take_all: bool) -> PartitionOffsets:
        """Return the end of the next batch; ``start`` itself if there is none to be run now.

        Raises:
            FencedMemberError: the group went on without the query.
            DataLossError: partitions are gone or end before ``start``, and the query fails then.
            KafkaLogError: the group or the logs cannot be read or written.
        """
        if self._has_ended:
            return start
        self._pacer.asked()
        self.member.take_part()
        self.member.batch_ended(to_json(start))
        if (self._is_available_now and self._targets is None) or take_all:
            self.member.settle()
        while True:
            self._pacer.before_look()
            end = self._next_end(start, take_all=take_all)
            is_idle = end == start
            self._has_ended = is_idle and self._is_available_now
            if self._has_ended or not self._pacer.after_look(idle=is_idle):
                if is_idle:
                    self.member.rest(to_json(start))
                return end

    def batch_ran(self) -> None:
        """Take note that the query has run a batch, with something new from any of its sources."""
        self._pacer.batch_ran()

    def plan(self, start: PartitionOffsets, end: PartitionOffsets) -> list[LogSplit]:
        """Cut into splits what the query owns of a batch; the same for the same batch.

        Raises:
            FencedMemberError: the group went on without the query.
            DataLossError: offsets of the batch are gone, and the query fails then.
            KafkaLogError, OSError: the plan cannot be written.
        """
        if self._planned is not None and self._planned[:2] == (start, end):
            return self._planned[2]
        for _ in range(_TRIES):
            self.member.take_part()
            ranges = self._own_ranges(start, end)
            splits = self._splits(ranges)
            batches = {key: self._validator.batch(key, stop) for key, (_, stop) in ranges.items()}
            noted = {key: batch for key, batch in batches.items() if batch is not None}
            if self.member.plan(to_json(start), to_json(end), ranges, noted):
                self._planned = (start, end, splits)
                return splits
        raise FencedMemberError(
            f"partitions were taken away from the query {_TRIES} times while it planned a batch"
        )

    def stop(self) -> None:
        """Fall silent."""
        self.member.stop()

    def _next_end(self, start: PartitionOffsets, *, take_all: bool) -> PartitionOffsets:
        self.member.take_part()
        owned = self.member.owned
        ends = self._ends(owned)
        # A topic that was recreated is left alone until the member has noticed, and begins it anew.
        owned = {key: at for key, at in owned.items() if not self._is_other_topic(key)}
        reading = {key: at for key, at in owned.items() if start.get(key) == at}
        ends = {**reading, **{key: end for key, end in ends.items() if key in reading}}
        entering = {key: at for key, at in owned.items() if key not in start}
        available = self._not_before(reading, ends)
        if take_all:
            return {**available, **entering}
        may_wait = not self._is_available_now
        cut = self._limits.cut(reading, available, self._logs, may_hold_back=may_wait)
        return {**(reading if cut is None else cut), **entering}

    def _ends(self, owned: Mapping[TopicPartition, int]) -> PartitionOffsets:
        if self._targets is not None:
            return self._targets
        ends = self._whole.look(
            self._look,
            is_whole=lambda: not self._find_diverged(owned),
            concerns=owned.__contains__,
        )
        self._go_on(owned)
        self._policy.partitions_deleted({key: at for key, at in owned.items() if key not in ends})
        self.latest = {key: end for key, end in ends.items() if key in owned}
        if self._is_available_now:
            self._targets = ends
        return ends

    def _go_on(self, owned: PartitionOffsets) -> None:
        """Go on where logs have another history than the group has read, or fail.

        Raises:
            DataLossError: one has, and the query fails then.
        """
        diverged = self._find_diverged(owned)
        self._policy.history_changed(diverged)
        self._validator.forget(diverged)
        self._validator.note(owned)
        cut = {key: each.cut_at for key, each in diverged.items() if each.cut_at is not None}
        if cut:
            starts = {key: self._logs.log_start_if_there(key) or 0 for key in cut}
            self.member.go_back({key: max(at, starts[key]) for key, at in cut.items()})

    def _find_diverged(self, owned: PartitionOffsets) -> dict[TopicPartition, Divergence]:
        """Find positions in another history; one in an earlier topic is none, and no loss."""
        found = self._validator.find_diverged(owned)
        return {key: each for key, each in found.items() if not self._is_other_topic(key)}

    def _is_other_topic(self, key: TopicPartition) -> bool:
        known, found = self.member.topic_ids.get(key), self._logs.topic_id(key)
        if known is None or found is None or known == found:
            return False
        return not self._logs.is_changed_id(key.topic, known, found)

    def _not_before(self, reading: PartitionOffsets, ends: PartitionOffsets) -> PartitionOffsets:
        """Return the ends; where one lies below what was read already, that, or it is a loss.

        A group that may lose data goes on where such a log ends, in a later batch.
        """
        short = {key: at for key, at in reading.items() if ends[key] < at}
        if short and self._targets is not None:
            self._look()  # others may have read beyond the targets, which are of an earlier look
        there = self._logs.ends.offsets
        lost = {key: at for key, at in short.items() if there.get(key, at) < at}
        lost = {key: at for key, at in lost.items() if not self._logs.reaches(key, at)}
        if lost and not self._logs.lacks_majority():
            self._policy.ends_before_start(lost, there)
            self.member.go_back({key: there[key] for key in lost})
        return {key: max(at, ends[key]) for key, at in reading.items()}

    def _own_ranges(
        self, start: PartitionOffsets, end: PartitionOffsets
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return what there is to read: nothing of what others own, or the group knows as read.

        A group that stands before ``start`` was set back: the next batch goes there.
        """
        return {
            key: (stands, end[key])
            for key, stands in self.member.owned.items()
            if key in start and key in end and start[key] <= stands < end[key]
        }

    def _splits(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> list[LogSplit]:
        """Cut ranges into splits; what seems lost is looked at again before it counts."""
        return self._whole.retries.plan(functools.partial(self._splits_once, ranges), self._policy)

    def _splits_once(
        self, ranges: Mapping[TopicPartition, tuple[int, int]], policy: LossPolicy
    ) -> list[LogSplit]:
        start = {key: begin for key, (begin, _) in ranges.items()}
        end = {key: stop for key, (_, stop) in ranges.items()}
        found = self._logs.look(end).offsets
        held = {key: at for key, at in end.items() if found.get(key, at) < at}
        available = {**found, **{k: at for k, at in held.items() if self._logs.reaches(k, at)}}
        self._validator.note(end)
        diverged = self._validator.find_diverged(start)
        policy.history_changed(diverged)
        self._validator.forget(diverged)
        readable = readable_ranges(start, end, available, self._logs, policy)
        splits = plan_splits(readable, self._options, self._logs, policy)
        return self._validator.with_history(splits, start)

    def _look(self) -> PartitionOffsets:
        owned, batches = self.member.owned, self.member.last_batches
        self._validator.keep_only(owned, {} if self._planned is None else self._planned[1])
        for key, at in owned.items():
            self._validator.add(key, at, batches.get(key))
        return self._logs.look(owned).offsets
