"""Follow one group's assignments and positions in ``__consumer_offsets``."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kafkalog.checkpoints.broker import read_topic_id
from kafkalog.errors import CorruptRecordError
from kafkalog.model import OFFSETS_TOPIC, TopicPartition
from kafkalog.streaming.coordinator.group_metadata import decode_group_metadata, encode_group_key
from kafkalog.streaming.coordinator.group_replay import (
    PositionsReplay,
    is_newer_key,
    partition_for_group,
    replay_records,
)
from kafkalog.streaming.groups.position_topics import (
    id_in_metadata,
    last_batch_of,
    outdated_positions,
)
from kafkalog.streaming.groups.rebalance import GroupRecord
from kafkalog.streaming.log.partition_log import PartitionLog, identity_of
from kafkalog.streaming.store.ends.recorded import BrokerMarks
from kafkalog.streaming.store.ends.rule import committed_end

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kafkalog.streaming.log.history import LastBatch
    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.store.log_set import CommittedSet

__all__ = ["GroupLog", "GroupState"]


@dataclass(frozen=True, slots=True)
class GroupState:
    """A group as it is committed: its record, and its position in each partition.

    ``topic_ids`` are those that positions were committed with, and ``batches`` the last ones below
    positions, where they are known. ``outdated`` are partitions whose
    position is of an earlier topic of the same name: it counts no more.
    """

    record: GroupRecord = field(default_factory=GroupRecord)
    positions: Mapping[TopicPartition, int] = field(default_factory=dict)
    topic_ids: Mapping[TopicPartition, str] = field(default_factory=dict)
    batches: Mapping[TopicPartition, LastBatch] = field(default_factory=dict)
    outdated: frozenset[TopicPartition] = frozenset()
    newer_keys: frozenset[bytes] = frozenset()
    """Of the records that a broker keeps of a group of a newer protocol (KIP-848, KIP-932)."""

    @property
    def is_unknown(self) -> bool:
        """Whether nothing is known of it."""
        known = self.positions or self.outdated or self.newer_keys
        return self.record == GroupRecord() and not known

    @property
    def without_position(self) -> frozenset[TopicPartition]:
        """Partitions that members have, and in which the group has no position any more.

        A decision that assigns a partition commits a position in it. It was taken away since, with
        its topic: what has the topic's name now is another one.
        """
        members = self.record.members.values()
        return frozenset(key for each in members for key in each.held if key not in self.positions)

    def without(self, outdated: frozenset[TopicPartition]) -> GroupState:
        """Return the group without positions of earlier topics."""
        return replace(
            self,
            positions={k: each for k, each in self.positions.items() if k not in outdated},
            topic_ids={k: each for k, each in self.topic_ids.items() if k not in outdated},
            batches={k: each for k, each in self.batches.items() if k not in outdated},
            outdated=outdated,
        )


class GroupLog:
    """Reads a group's records; what it has read, it does not read again. Not thread safe."""

    def __init__(self, group: str) -> None:
        """Take a group.

        Raises:
            OptionError: no record can hold its id.
        """
        self._group = group
        self._key = encode_group_key(group)
        self._shown: GroupState
        self._begin_anew(None)

    def look(self, log_set: CommittedSet) -> GroupState:
        """Return the group as of the state of the set, whose locks need not be held.

        Raises:
            CorruptRecordError: its records cannot be read.
            CheckpointError: the id of a topic that it has a position in cannot be read.
            LogDirectoryError: there are no such folders any more.
        """
        partitions = log_set.partitions()
        found = self._find(log_set, partitions)
        if found is None:
            self._begin_anew(None)
            return GroupState()
        where, end = found
        with PartitionLog(where.path, where.topic_partition, replica=where.stamp) as log:
            place = (log_set.state.set_id, where.path, *identity_of(log))
            if place != self._place or not log.log_start_offset <= self._end <= end:
                self._begin_anew(place)
            self._read(log, end)
        return self._of_present_topics(log_set, partitions)

    def _of_present_topics(
        self, log_set: CommittedSet, found: Mapping[TopicPartition, PartitionDirectory]
    ) -> GroupState:
        """Return the group without positions of earlier topics: the same value for the same."""
        outdated = outdated_positions(self._state.topic_ids, found, log_set.directories)
        if outdated != self._shown.outdated:
            self._shown = self._state.without(outdated)
        return self._shown

    def _find(
        self, log_set: CommittedSet, found: Mapping[TopicPartition, PartitionDirectory]
    ) -> tuple[PartitionDirectory, int] | None:
        """Find the partition with the group's records, and how far it is committed.

        None if nothing is: a commit that was cut off may have made the folder, and the next writer
        takes it away.
        """
        partitions = {
            key.partition: where for key, where in found.items() if key.topic == OFFSETS_TOPIC
        }
        if not partitions:
            return None
        number = partition_for_group(self._group, max(partitions) + 1)
        where = partitions.get(number)
        if where is None:
            return None
        topic_id = read_topic_id(where.path)
        known = log_set.state.log_end(OFFSETS_TOPIC, topic_id, number)
        marks = BrokerMarks(log_set.state)
        end = committed_end(marks.said(where.path, TopicPartition(OFFSETS_TOPIC, number), known))
        return (where, end) if end else None

    def _begin_anew(self, place: tuple[object, ...] | None) -> None:
        self._place = place
        self._end = 0
        self._replay = PositionsReplay(group=self._group)
        self._state = GroupState()
        self._shown = self._state

    def _read(self, log: PartitionLog, end: int) -> None:
        start = max(self._end, log.log_start_offset)
        if start >= end:
            return
        record, newer = self._state.record, {*self._state.newer_keys}
        try:
            for each in replay_records(log, start, end):
                self._replay.feed(each)
                if each.marker_type is None and each.key == self._key:
                    record = (
                        GroupRecord.of(decode_group_metadata(each.value))
                        if each.value is not None
                        else GroupRecord()
                    )
                elif each.key is not None and is_newer_key(each.key, self._group):
                    (newer.discard if each.value is None else newer.add)(each.key)
        except CorruptRecordError as error:
            self._begin_anew(None)
            raise type(error)(f"group {self._group!r} in {log.directory}: {error}") from error
        except BaseException:  # an interrupt, too: some of it may have been fed already
            self._begin_anew(None)
            raise
        found = self._replay.positions().get(self._group, {})
        ids = {key: id_in_metadata(each.metadata) for key, each in found.items()}
        self._state = GroupState(
            record,
            {key: each.offset for key, each in found.items()},
            {key: topic_id for key, topic_id in ids.items() if topic_id is not None},
            {key: batch for key, each in found.items() if (batch := last_batch_of(each))},
            newer_keys=frozenset(newer),
        )
        self._shown = self._state
        self._end = end
