"""Who reads topics, and how far each is behind: groups, and checkpoints of queries."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kafkalog.checkpoints.query_checkpoint import last_batch, query_offsets
from kafkalog.errors import (
    CheckpointError,
    KafkaLogError,
    OptionError,
    UnknownTopicOrPartitionError,
)
from kafkalog.files.paths import split_paths
from kafkalog.files.regular import read_regular
from kafkalog.files.system import system
from kafkalog.files.watch import is_settled
from kafkalog.jobs.inspection.log_dirs import (
    check_some_partition,
    ends_of_chosen,
    log_dirs_of,
    say_missing,
)
from kafkalog.jobs.pipelines.replay_checkpoint import FILE, ReplayCheckpoint
from kafkalog.model import ALL_TOPICS, OFFSETS_TOPIC, TopicSelection, listed
from kafkalog.streaming.coordinator.group_replay import (
    PositionsReplay,
    partition_for_group,
    replay_records,
)
from kafkalog.streaming.groups.position_topics import is_of_earlier_topic, last_batch_of
from kafkalog.streaming.log.history import find_divergence
from kafkalog.streaming.log.partition_log import identity_of, measure_unread
from kafkalog.streaming.source.offsets import from_json_text

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.coordinator.group_replay import CommittedOffset
    from kafkalog.streaming.log.history import Divergence, LastBatch
    from kafkalog.streaming.source.offsets import PartitionOffsets
    from kafkalog.streaming.store.ends.tracker import LogEndTracker


__all__ = ["GroupReaders", "LagMeter", "LagTargets", "Reader", "lag_of", "read_checkpoint"]


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
# :mod:`kafkalog.checkpoints.query_checkpoint`.
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
        reached = replay.reached if replay.unfinished is None else replay.unfinished.start
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


def _place(location: str) -> Path:
    try:
        (path,) = split_paths(location)
    except (KafkaLogError, ValueError):
        raise OptionError(
            f"--checkpoint {location} is not one folder of this machine. Copy its offsets and "
            "commits to one, or give --offsets"
        ) from None
    return Path(path)


def _folder(location: str) -> Path:
    folder = _place(location)
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
    """Follows the positions of all groups, or of the named ones. Not thread safe."""

    def __init__(self, names: Collection[str] = ()) -> None:
        self._names = names
        self._replayed: dict[TopicPartition, _Replayed] = {}

    def look(self, watch: LogEndTracker, ends: PartitionOffsets) -> list[Reader]:
        """Return the groups that have positions; ``ends`` is what ``watch`` has just found.

        For named groups only their own partitions of ``__consumer_offsets`` are read.

        Raises:
            CorruptRecordError: the positions cannot be read.
        """
        found: dict[TopicPartition, _Replayed] = {}
        keys = [key for key in ends if key.topic == OFFSETS_TOPIC]
        if self._names:
            count = max((key.partition for key in keys), default=0) + 1
            kept_in = {partition_for_group(name, count) for name in self._names}
            keys = [key for key in keys if key.partition in kept_in]
        for key in keys:
            found[key] = self._up_to(watch, key, ends[key])
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
                replay = PositionsReplay(only=self._names, log_name=str(log.directory))
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
class LagTargets:
    """What a command was asked to look at, again and again; all groups if nothing is named."""

    groups: Sequence[str] = ()
    checkpoints: Sequence[str] = ()
    offsets: str | None = None
    _group_readers: GroupReaders = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse a checkpoint that can be none, at any time: one that is not there yet may come.

        Raises:
            OptionError: it names more than a folder, or a store.
        """
        for location in self.checkpoints:
            _place(location)
        object.__setattr__(self, "_group_readers", GroupReaders(frozenset(self.groups)))

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
        if not known.keys() >= {*self.groups}:  # it may lie in another partition, as in a copy
            known = {reader.name: reader for reader in GroupReaders().look(watch, ends)}
        for name in self.groups:
            if name not in known:
                raise OptionError(
                    f"group {name!r} has committed no position here. Groups that have: "
                    f"{listed(sorted(known)) or 'none'}"
                )
        return [known[name] for name in self.groups]


# ----------------------------------------------------------------------------------------------
# How far readers are behind what is committed.


Row = dict[str, Any]


class _Place(NamedTuple):
    reader: str
    key: TopicPartition
    offset: int | None


@dataclass(frozen=True, slots=True)
class _Waiting:
    """What lies between a position and the end: bytes, and the first record's time."""

    bytes: int
    next_timestamp: int | None

    def row(self) -> Row:
        """Return the fields of a row, as of now."""
        behind = None
        if self.next_timestamp is not None:
            behind = max(0, system.time_ns() // 1_000_000 - self.next_timestamp)
        elif not self.bytes:
            behind = 0
        return {"bytes": self.bytes, "nextTimestamp": self.next_timestamp, "behindMs": behind}


@dataclass(frozen=True, slots=True)
class _Found:
    """How far behind a position is; without that, why there is no lag."""

    lag: int | None
    waiting: _Waiting | None
    problem: str | None = None

    def row(self) -> Row:
        """Return the fields of a row, as of now."""
        return {"lag": self.lag, **(_UNKNOWN if self.waiting is None else self.waiting.row())}


_UNKNOWN: Final[Row] = {"bytes": None, "nextTimestamp": None, "behindMs": None}


class LagMeter:
    """Looks at log directories again and again; logs that are as before are not opened again.

    Not thread safe.
    """

    def __init__(
        self, paths: Sequence[str], named: LagTargets, topics: TopicSelection = ALL_TOPICS
    ) -> None:
        """Take the log directories, who reads them, and the topics to show.

        Raises:
            UnknownTopicOrPartitionError: there is no such topic.
            LogDirectoryError: there is nothing to look at.
        """
        self._named = named
        self._topics = topics
        self._log_dirs = log_dirs_of(paths)
        """Held, so that what is listed again need not be parsed again."""
        self._lost = say_missing(self._log_dirs, topics)
        check_some_partition(paths, topics, self._lost)
        self._watch = ends_of_chosen(
            paths, lambda key: key.topic in topics or key.topic == OFFSETS_TOPIC
        )
        self._found: dict[_Place, tuple[object, _Found]] = {}

    def look(self) -> list[Row]:
        """Return a row for each reader and partition as of now, sorted by their names.

        ``lag`` counts offsets, and is None for a partition that is not there, and for a position
        above the end of a log, or in another history of it. ``bytes`` are of whole batches; where
        the end is below the log's, an index interval more at most. ``nextTimestamp`` is the next
        unread record's, in ms, and ``behindMs`` how old that is.

        Raises:
            KafkaLogError: directories, logs or checkpoints that cannot be read.
        """
        ends = self._watch.look().offsets
        rows = []
        before, self._found = self._found, {}
        readers = self._named.look(self._watch, ends)
        for reader in sorted(readers, key=lambda each: each.name):
            keys = set(reader.positions)
            keys |= {key for key in (*ends, *self._lost) if key.topic in reader.topics}
            rows += [
                self._row(reader, key, ends.get(key), before)
                for key in sorted(keys)
                if key.topic in self._topics
            ]
        return rows

    def _row(
        self,
        reader: Reader,
        key: TopicPartition,
        end: int | None,
        before: Mapping[_Place, tuple[object, _Found]],
    ) -> Row:
        offset = reader.positions.get(key)
        place = _Place(reader.name, key, offset)
        end_there = None if key in self._lost else end
        standing = None if end_there is None else self._standing(key, end_there)
        said, found = before.get(place, (None, None))
        if found is None or standing is None or said != standing:
            found = _found(self._watch, key, offset, end_there, reader.batches.get(key))
            if found.problem is not None and key not in self._lost:
                _LOGGER.warning("%s in %s: %s", reader.name, key, found.problem)
        self._found[place] = standing, found
        return {"reader": reader.name, **key._asdict(), "offset": offset, "end": end, **found.row()}

    def _standing(self, key: TopicPartition, end: int) -> object | None:
        """Return what is the same where a log is; None for one that may be changing just now."""
        *identity, stamp = self._watch.standing(key)
        return (end, *identity, stamp) if stamp is not None and is_settled(stamp) else None


def lag_of(
    watch: LogEndTracker,
    key: TopicPartition,
    offset: int | None,
    end: int | None,
    batch: LastBatch | None = None,
) -> tuple[Row, str | None]:
    """Return ``lag``, ``bytes``, ``nextTimestamp`` and ``behindMs``, and why there is no lag.

    Args:
        watch: of the logs, which has looked.
        key: a partition.
        offset: where a reader is in it; None for its log start.
        end: how far it is committed; None for one that is not there.
        batch: the last one below the offset, where the reader has kept it.

    Raises:
        KafkaLogError: the log cannot be read.
    """
    found = _found(watch, key, offset, end, batch)
    return found.row(), found.problem


def _found(
    watch: LogEndTracker,
    key: TopicPartition,
    offset: int | None,
    end: int | None,
    batch: LastBatch | None,
) -> _Found:
    if end is None:
        return _Found(None, None, "the partition is not there")
    diverged = _divergence(watch, key, offset, batch)
    if diverged is not None:
        return _Found(
            None,
            None,
            f"the log has another history than the one that was read up to offset {diverged}. It "
            "was cut and written again, or an older copy was put back",
        )
    if offset == end or (offset is None and watch.seen_empty(key, end) is not None):
        return _Found(0, _Waiting(0, None))
    if offset is not None and offset > end and not watch.reaches(key, offset):
        return _Found(
            None,
            None,
            f"committed offset {offset} is beyond the log end ({end}): the log was truncated or "
            "recreated",
        )
    try:
        with watch.open(key) as log:
            start = log.log_start_offset if offset is None else offset
            return _Found(max(0, end - start), _Waiting(*measure_unread(log, start, end)))
    except UnknownTopicOrPartitionError:  # deleted since
        return _Found(None, None, "the partition is not there")


def _divergence(
    watch: LogEndTracker, key: TopicPartition, offset: int | None, batch: LastBatch | None
) -> Divergence | None:
    if offset is None or batch is None or not watch.reaches(key, offset):
        return None
    with suppress(KafkaLogError, OSError), watch.open(key) as log:
        return find_divergence(log, offset, batch)
    return None
