"""Consumer groups as readers, looked at again and again: only what is new is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafkalog.jobs.lag.reader import Reader
from kafkalog.model import OFFSETS_TOPIC
from kafkalog.streaming.coordinator.group_positions import PositionsReplay
from kafkalog.streaming.coordinator.group_replay import replay_records
from kafkalog.streaming.groups.position_topics import is_of_earlier_topic, last_batch_of
from kafkalog.streaming.log.identity import identity_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.coordinator.group_positions import CommittedOffset
    from kafkalog.streaming.source.offsets import PartitionOffsets
    from kafkalog.streaming.store.ends.watch import EndsWatch

__all__ = ["GroupReaders"]


@dataclass(slots=True)
class _Replayed:
    """How far a partition of ``__consumer_offsets`` was replayed, and which log that was."""

    replay: PositionsReplay
    identity: tuple[str | None, int]
    log: tuple[object, ...]
    """Another one once the log was compacted."""
    end: int
    readers: Sequence[Reader] = ()
    topic_ids: Mapping[TopicPartition, str | None] | None = None
    """Of the partitions that there were then."""


class GroupReaders:
    """Follows the positions of all groups. Not thread safe."""

    def __init__(self) -> None:
        self._replayed: dict[TopicPartition, _Replayed] = {}

    def look(self, watch: EndsWatch, ends: PartitionOffsets) -> list[Reader]:
        """Return the groups that have positions; ``ends`` is what ``watch`` has just found.

        Raises:
            CorruptRecordError: the positions cannot be read.
        """
        found: dict[TopicPartition, _Replayed] = {}
        for key, end in ends.items():
            if key.topic == OFFSETS_TOPIC:
                found[key] = self._up_to(watch, key, end)
        self._replayed = found
        return [reader for replayed in found.values() for reader in replayed.readers]

    def _up_to(self, watch: EndsWatch, key: TopicPartition, end: int) -> _Replayed:
        topic_id, start, _ = watch.standing(key)
        identity = topic_id, start
        known = self._replayed.pop(key, None)
        ids = watch.topic_ids()
        is_same = known is not None and (known.identity, known.end) == (identity, end)
        if known is not None and is_same and known.topic_ids is ids:
            return known
        with watch.open(key) as log:
            # Compaction may have taken away what took positions away, so a replay begins anew.
            which = identity_of(log)
            if known is None or (known.identity, known.log) != (identity, which) or known.end > end:
                replay = PositionsReplay(log_name=str(log.directory))
                known = _Replayed(replay, identity, which, log.log_start_offset)
            for record in replay_records(log, known.end, end):
                known.replay.feed(record)
        known.end = end
        known.topic_ids = ids
        known.readers = [
            _reader(watch, name, committed) for name, committed in known.replay.positions().items()
        ]
        return known


def _reader(
    watch: EndsWatch, name: str, committed: Mapping[TopicPartition, CommittedOffset]
) -> Reader:
    """Return a group; of a topic that was recreated since it reads all from the log start."""
    ids, is_changed = watch.topic_ids(), watch.is_changed_id
    earlier = {
        key
        for key, place in committed.items()
        if is_of_earlier_topic(key, place.metadata, ids, is_changed)
    }
    positions = {key: place.offset for key, place in committed.items() if key not in earlier}
    batches = {key: batch for key in positions if (batch := last_batch_of(committed[key]))}
    return Reader(name, positions, frozenset(key.topic for key in earlier), batches)
