"""Who reads topics, and how far each has come: groups, and checkpoints of queries."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.query_offsets import last_batch, query_offsets
from kafkalog.errors import CheckpointError, KafkaLogError, OptionError
from kafkalog.files.paths import split_paths
from kafkalog.files.regular import read_regular
from kafkalog.jobs.replay_checkpoint import FILE, ReplayCheckpoint
from kafkalog.model import OFFSETS_TOPIC, listed
from kafkalog.streaming.coordinator.group_positions import PositionsReplay
from kafkalog.streaming.coordinator.group_replay import replay_records
from kafkalog.streaming.groups.position_topics import is_of_earlier_topic, last_batch_of
from kafkalog.streaming.log.partition_log import identity_of
from kafkalog.streaming.source.offsets import from_json_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.coordinator.group_positions import CommittedOffset
    from kafkalog.streaming.log.history import LastBatch
    from kafkalog.streaming.source.offsets import PartitionOffsets
    from kafkalog.streaming.store.ends.tracker import LogEndTracker


__all__ = ["GroupReaders", "Reader", "ReadersNamed", "read_checkpoint"]


# ----------------------------------------------------------------------------------------------
# One that reads topics.


@dataclass(frozen=True, slots=True)
class Reader:
    """One that reads: its name, and the next offset that it reads of each partition.

    Of ``topics`` it reads all partitions. One that it has no offset of counts from its log start.
    ``batches`` are the last ones below its offsets, where it has kept them.
    """

    name: str
    positions: PartitionOffsets
    topics: frozenset[str] = frozenset()
    batches: Mapping[TopicPartition, LastBatch] = field(default_factory=dict)


# ----------------------------------------------------------------------------------------------
# Where a checkpoint says that its query has come: Spark's, or that of ``kafkalog run replay``.
#
# A checkpoint of Spark has a file for each micro-batch in ``offsets`` (written when it is
# planned) and one in ``commits`` (written when it has ended). So what is read for good ends where
# the last batch in ``commits`` does. The file in ``offsets``:
# :mod:`kafkalog.checkpoints.query_offsets`.
#
# The ends of kafkalog's source and of Spark's Kafka source have the same form,
# ``{"flights":{"0":23}}``. Those of other sources count no offsets of Kafka, and are passed over.
#
# Source: Spark 4.2 ``CommitLog``.


_LOGGER: Final = logging.getLogger("kafkalog.jobs")

_LIMIT: Final = 64 << 20


def read_checkpoint(location: str) -> tuple[PartitionOffsets, frozenset[str]]:
    """Return the next offset of each partition that a query has read, and the topics it reads.

    A query that has planned its first batch and not ended it has topics and no offsets.

    Raises:
        OptionError: there is no such folder here, or it is no checkpoint.
        CheckpointError: it cannot be read, or no source in it counts offsets of Kafka.
    """
    folder = _folder(location)
    if (folder / FILE).exists():
        replay = ReplayCheckpoint.open(str(folder), {})
        # What was begun may not be played, as a batch that has not ended.
        reached = replay.reached if replay.begun is None else replay.begun.start
        return reached, frozenset(key.topic for key in reached)
    planned, ended = (last_batch(folder / name) for name in ("offsets", "commits"))
    if planned is None:
        raise OptionError(
            f"--checkpoint {location} is no checkpoint of a streaming query: there is no batch in "
            f"{folder / 'offsets'}. Name the folder that the query has as checkpointLocation"
        )
    if ended is None:
        return {}, frozenset(key.topic for key in _read_ends(folder, planned))
    reached = _read_ends(folder, ended)
    return reached, frozenset(key.topic for key in reached)


def _folder(location: str) -> Path:
    try:
        (path,) = split_paths(location)
    except (KafkaLogError, ValueError):
        raise OptionError(
            f"--checkpoint {location} is not one folder of this machine. Copy its offsets and "
            "commits to one, or give --offsets"
        ) from None
    folder = Path(path)
    if not folder.is_dir():
        raise OptionError(f"--checkpoint {location}: there is no such folder")
    return folder


def _read_ends(folder: Path, batch: int) -> dict[TopicPartition, int]:
    path = folder / "offsets" / str(batch)
    try:
        sources = query_offsets(read_regular(path, limit=_LIMIT).decode())
    except (KafkaLogError, OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    found: dict[TopicPartition, int] = {}
    others, is_known = [], False
    for name, text in sources.items():
        try:
            ends = from_json_text(text)
        except CheckpointError:
            others.append(name)
            continue
        is_known = True
        # of two sources over the same topic, the one that is behind counts
        found |= {key: min(end, found.get(key, end)) for key, end in ends.items()}
    if not is_known:
        raise CheckpointError(
            f"{path} has no source that counts Kafka's offsets, such as "
            f'{{"flights":{{"0":23}}}}: nothing tells how far this query is behind'
        )
    for name in others:
        _LOGGER.warning("%s: source %s counts no offsets of Kafka and is left out", path, name)
    return found


# ----------------------------------------------------------------------------------------------
# Consumer groups as readers, looked at again and again: only what is new is read.


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

    def look(self, watch: LogEndTracker, ends: PartitionOffsets) -> list[Reader]:
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

    def _up_to(self, watch: LogEndTracker, key: TopicPartition, end: int) -> _Replayed:
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
    watch: LogEndTracker, name: str, committed: Mapping[TopicPartition, CommittedOffset]
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


# ----------------------------------------------------------------------------------------------
# Who reads topics, and how far each has come.


@dataclass(frozen=True, slots=True)
class ReadersNamed:
    """What a command was asked to look at, again and again; all groups if nothing is named."""

    groups: Sequence[str] = ()
    checkpoints: Sequence[str] = ()
    offsets: str | None = None
    _group_readers: GroupReaders = field(default_factory=GroupReaders, init=False, repr=False)

    def look(self, watch: LogEndTracker, ends: PartitionOffsets) -> list[Reader]:
        """Return the readers as they stand now; ``ends`` is what ``watch`` has just found.

        Raises:
            OptionError: words that name no offsets, no checkpoint, or a group that has none.
            CheckpointError: a checkpoint that cannot be read.
            CorruptRecordError: the positions of groups cannot be read.
        """
        found = [Reader(name, *read_checkpoint(name)) for name in self.checkpoints]
        if self.offsets is not None:
            try:
                positions = from_json_text(self.offsets)
            except CheckpointError as error:
                raise OptionError(str(error)) from error
            if not positions or min(positions.values()) < 0:
                raise OptionError(
                    f"--offsets is {self.offsets}, expected offsets of 0 or more, such as "
                    '{"flights":{"0":23}}'
                )
            topics = frozenset(key.topic for key in positions)
            found.append(Reader("offsets", positions, topics))
        if self.groups:
            return self._of_groups(watch, ends) + found
        if found:
            return found
        groups = self._group_readers.look(watch, ends)
        if not groups:
            raise OptionError(
                "no consumer group has committed a position here. Name what reads: --checkpoint "
                "of a streaming query, or --offsets"
            )
        return groups

    def _of_groups(self, watch: LogEndTracker, ends: PartitionOffsets) -> list[Reader]:
        known = {reader.name: reader for reader in self._group_readers.look(watch, ends)}
        for name in self.groups:
            if name not in known:
                raise OptionError(
                    f"group {name!r} has committed no position here. Groups that have: "
                    f"{listed(sorted(known)) or 'none'}"
                )
        return [known[name] for name in self.groups]
