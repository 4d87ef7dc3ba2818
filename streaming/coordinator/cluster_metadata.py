"""The log in which a cluster keeps its metadata (KRaft): its records, and the settings of topics.

``__cluster_metadata-0`` lies in a broker's first log directory. It has snapshots and a log; the
newest snapshot and the log after it are the cluster. Every record is one message in a frame
(:func:`~kafkalog.streaming.coordinator.message_schema.read_frame`).

A fold over them (:class:`Replay`) takes the kinds that it knows; every other record is passed over.
Records of a metadata transaction count from its end on, and those of an aborted one never.

A quorum of several controllers may not have agreed on the last records yet: nothing on the disk
tells. They count here.

Source: Kafka ``MetadataRecordSerde``, ``TopicRecord.json`` and its like,
``ConfigurationControlManager``, ``Snapshots``.
"""

from __future__ import annotations

import logging
import re
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from kafkalog.errors import CorruptRecordError, KafkaLogError, UnsupportedFormatError
from kafkalog.files.open_file import open_file
from kafkalog.files.remote_path import RemotePath
from kafkalog.files.system import remembered
from kafkalog.model import CLUSTER_METADATA_TOPIC, TopicPartition
from kafkalog.streaming.coordinator.message_schema import (
    Field,
    Schema,
    array_of,
    int8,
    int16,
    int32,
    int64,
    nullable_array_of,
    nullable_string,
    read_frame,
    string,
    struct_of,
    uuid,
)
from kafkalog.streaming.log.log_dir import entries_of
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.log.segment import CHUNK_BYTES
from kafkalog.streaming.records.batch import scan_batches

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from kafkalog.streaming.coordinator.message_schema import Fields
    from kafkalog.streaming.records.columns import RecordDecoder

__all__ = [
    "CONFIG",
    "NO_BROKER",
    "PARTITION",
    "PARTITION_CHANGE",
    "RECORD_SCHEMAS",
    "REGISTER_BROKER",
    "REMOVE_TOPIC",
    "TOPIC",
    "UNREGISTER_BROKER",
    "ClusterPartition",
    "ClusterTopics",
    "ClusterView",
    "MetadataRecord",
    "MetadataReplay",
    "Replay",
    "TopicNames",
    "ViewReplay",
    "find_cluster_view",
    "find_metadata",
    "read_cluster_topics",
    "read_cluster_view",
    "read_partition_counts",
    "read_snapshot",
    "replay_metadata",
]

_LOG: Final = logging.getLogger("kafkalog.source")
_PARTITION: Final = TopicPartition(CLUSTER_METADATA_TOPIC, 0)
_FOLDER: Final = f"{CLUSTER_METADATA_TOPIC}-0"
_SNAPSHOT: Final = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
_OF_TOPIC: Final = 2
"""The type of resource whose settings are a topic's (Kafka ``ConfigResource.Type``)."""

REGISTER_BROKER, UNREGISTER_BROKER, TOPIC, PARTITION, CONFIG, PARTITION_CHANGE = range(6)
_FENCE, _UNFENCE, REMOVE_TOPIC, _FEATURE, _PRODUCER_IDS, _BROKER_CHANGE = 7, 8, 9, 12, 15, 17
_NO_OP, _BEGIN, _END, _ABORT = 20, 23, 24, 25

_NODE_AT_EPOCH: Final = struct_of(Field("id", int32), Field("epoch", int64))
_DIRECTORIES: Final = Field("directories", array_of(uuid), since=1)


def _record(name: str, *fields: Field, last_version: int = 0) -> Schema:
    return Schema(f"{name}Record", struct_of(*fields), last_version, first_flexible=0)


RECORD_SCHEMAS: Final = {
    REGISTER_BROKER: _record(
        "RegisterBroker",
        Field("brokerId", int32),
        Field("isMigratingZkBroker", int8, since=2),
        Field("incarnationId", uuid),
        Field("brokerEpoch", int64),
        Field(
            "endPoints",
            array_of(
                struct_of(
                    Field("name", string),
                    Field("host", string),
                    Field("port", lambda reader: int16(reader) & 0xFFFF),
                    Field("securityProtocol", int16),
                )
            ),
        ),
        Field(
            "features",
            array_of(
                struct_of(
                    Field("name", string),
                    Field("minSupportedVersion", int16),
                    Field("maxSupportedVersion", int16),
                )
            ),
        ),
        Field("rack", nullable_string),
        Field("fenced", int8),
        Field("inControlledShutdown", int8, since=1),
        Field("logDirs", array_of(uuid), tag=0),
        Field("cordonedLogDirs", nullable_array_of(uuid), tag=1),
        last_version=4,
    ),
    UNREGISTER_BROKER: Schema("UnregisterBrokerRecord", _NODE_AT_EPOCH, first_flexible=0),
    TOPIC: _record("Topic", Field("name", string), Field("topicId", uuid)),
    PARTITION: _record(
        "Partition",
        Field("partitionId", int32),
        Field("topicId", uuid),
        Field("replicas", array_of(int32)),
        Field("isr", array_of(int32)),
        Field("removingReplicas", array_of(int32)),
        Field("addingReplicas", array_of(int32)),
        Field("leader", int32),
        Field("leaderEpoch", int32),
        Field("partitionEpoch", int32),
        _DIRECTORIES,
        last_version=2,
    ),
    CONFIG: _record(
        "Config",
        Field("resourceType", int8),
        Field("resourceName", string),
        Field("name", string),
        Field("value", nullable_string),
    ),
    PARTITION_CHANGE: _record(
        "PartitionChange",
        Field("partitionId", int32),
        Field("topicId", uuid),
        Field("isr", array_of(int32), tag=0),
        Field("leader", int32, tag=1),
        Field("replicas", array_of(int32), tag=2),
        Field("directories", array_of(uuid), tag=8),
        last_version=2,
    ),
    _FENCE: Schema("FenceBrokerRecord", _NODE_AT_EPOCH, first_flexible=0),
    _UNFENCE: Schema("UnfenceBrokerRecord", _NODE_AT_EPOCH, first_flexible=0),
    REMOVE_TOPIC: _record("RemoveTopic", Field("topicId", uuid)),
    _FEATURE: _record("FeatureLevel", Field("name", string), Field("featureLevel", int16)),
    _PRODUCER_IDS: _record(
        "ProducerIds",
        Field("brokerId", int32),
        Field("brokerEpoch", int64),
        Field("nextProducerId", int64),
    ),
    _BROKER_CHANGE: _record(
        "BrokerRegistrationChange",
        Field("brokerId", int32),
        Field("brokerEpoch", int64),
        Field("fenced", int8, tag=0),
        Field("inControlledShutdown", int8, tag=1),
        Field("logDirs", array_of(uuid), tag=2),
        Field("cordonedLogDirs", nullable_array_of(uuid), tag=3),
        last_version=3,
    ),
    _NO_OP: _record("NoOp"),
    _BEGIN: _record("BeginTransaction"),
    _END: _record("EndTransaction"),
    _ABORT: _record("AbortTransaction"),
}
"""The records that are read, by api key; secrets (SCRAM, delegation tokens) are none of them."""


class MetadataRecord(NamedTuple):
    """A record: its api key, its version, and its message, which is not decoded yet."""

    api_key: int
    version: int
    message: bytes

    @classmethod
    def of(cls, value: bytes | None) -> MetadataRecord:
        """Take a record's value out of its frame.

        Raises:
            UnsupportedFormatError: a frame that is not known.
            CorruptRecordError: it is no such record.
        """
        if value is None:
            raise CorruptRecordError("a record of the metadata has no value")
        return cls(*read_frame(value))

    def fields(self) -> Fields:
        """Decode the message, of a kind that is among ``RECORD_SCHEMAS``.

        Raises:
            UnsupportedFormatError: a version that is not known.
            CorruptRecordError: it is no such message.
        """
        return RECORD_SCHEMAS[self.api_key].decode(self.message, self.version)


class ClusterTopics(NamedTuple):
    """What a cluster was told of its topics.

    ``settings`` are those given to each topic, by topic id; ``end`` is the offset up to which the
    metadata was read.
    """

    settings: Mapping[str, Mapping[str, str]]
    end: int


@dataclass(slots=True)
class Replay:
    """A fold over the records of the log: those of its ``kinds``, which are api keys."""

    kinds: ClassVar[frozenset[int]]
    _pending: list[tuple[int, Fields]] | None = None
    """What a metadata transaction that has not ended has changed."""

    def feed(self, value: bytes | None) -> None:
        """Take the next record's value.

        Raises:
            UnsupportedFormatError: a record that counts, in a version that is not known. What is
                told of a broker counts for its epoch alone: that is then not known, with a warning.
            CorruptRecordError: it is no such record.
        """
        record = MetadataRecord.of(value)
        kind = record.api_key
        if kind == _BEGIN:
            self._pending = []
        elif kind in {_END, _ABORT}:
            for each in self._pending or () if kind == _END else ():
                self._apply(*each)
            self._pending = None
        elif kind in self.kinds:
            try:
                fields = record.fields()
            except UnsupportedFormatError as error:
                if kind != REGISTER_BROKER:
                    raise
                _LOG.warning("the epoch of a broker is not known: %s", error)
                return
            if self._pending is None:
                self._apply(kind, fields)
            else:
                self._pending.append((kind, fields))

    def _apply(self, kind: int, fields: Fields) -> None:
        """Take a record that counts."""
        raise NotImplementedError


@dataclass(slots=True)
class MetadataReplay(Replay):
    """The names and settings of topics."""

    kinds = frozenset({TOPIC, CONFIG, REMOVE_TOPIC})
    names: dict[str, str] = field(default_factory=dict)
    _settings: dict[str, dict[str, str]] = field(default_factory=dict)

    def _apply(self, kind: int, fields: Fields) -> None:
        if kind == TOPIC:
            self.names[fields["topicId"]] = fields["name"]
        elif kind == REMOVE_TOPIC:
            name = self.names.pop(fields["topicId"], None)
            self._settings.pop(name or "", None)
        elif fields["resourceType"] == _OF_TOPIC:
            given = self._settings.setdefault(fields["resourceName"], {})
            if fields["value"] is None:
                given.pop(fields["name"], None)
            else:
                given[fields["name"]] = fields["value"]

    @property
    def settings(self) -> dict[str, dict[str, str]]:
        """The settings given to each topic, by topic id."""
        return {key: dict(self._settings.get(name, {})) for key, name in self.names.items()}


def read_cluster_topics(log_dir: Path) -> ClusterTopics | None:
    """Read what the metadata in a log directory says of topics; None if there is none.

    Raises:
        CorruptRecordError: it is damaged, or its beginning is missing.
        UnsupportedFormatError: a version that is not known.
        LogDirectoryError: the folder cannot be read.
    """
    replay = MetadataReplay()
    end = replay_metadata(log_dir, replay)
    return None if end is None else ClusterTopics(replay.settings, end)


def replay_metadata(log_dir: Path, replay: Replay) -> int | None:
    """Feed ``replay`` the metadata in a log directory; return its end, None if there is none.

    Raises:
        CorruptRecordError, UnsupportedFormatError, LogDirectoryError: see
            :func:`read_cluster_topics`.
    """
    folder = log_dir / f"{CLUSTER_METADATA_TOPIC}-0"
    if all(entry.name != folder.name for entry in entries_of(log_dir)):
        return None
    begin = 0
    newest = max(_snapshots(folder), default=None)
    if newest is not None:
        begin = newest[0]
        path = folder / newest[1]
        for value in _values_of_file(path):
            _feed(replay, value, str(path))
    with PartitionLog(folder, _PARTITION) as log:
        end = log.log_end_offset()
        if log.segments and log.log_start_offset > begin:
            raise CorruptRecordError(
                f"{folder}: the log starts at offset {log.log_start_offset}, and no snapshot "
                "reaches so far"
            )
        decoder = _value_decoder()
        for planned in log.slices(begin, end):
            for batch in log.read_slice(planned, decoder, committed_end=end):
                for value in batch.column(0).to_pylist():
                    _feed(replay, value, str(folder))
    return max(begin, end)


def find_metadata(log_dirs: Iterable[Path]) -> Path | None:
    """Return the folder of the metadata log that reaches furthest; None if there is none.

    Every broker has a copy of the log, in one of its log directories. A path may be the folder
    itself.

    Raises:
        KafkaLogError: a copy cannot be opened, and is not the only one.
    """
    found = []
    for log_dir in log_dirs:
        folder = log_dir if log_dir.name == _FOLDER else log_dir / _FOLDER
        if folder.is_dir():
            found.append(folder)
    return max(found, key=_end_of) if len(found) > 1 else next(iter(found), None)


def _end_of(folder: Path) -> int:
    with PartitionLog(folder, _PARTITION) as log:
        return log.log_end_offset()


def read_snapshot(folder: Path, log_start: int) -> tuple[str, list[bytes | None]] | None:
    """Return the name of the snapshot that a log goes on from, and its records' values.

    It is the oldest one that reaches the first offset of the log; None where the log has all from
    the beginning, or no snapshot reaches it.

    Raises:
        CorruptRecordError, LogDirectoryError: see :func:`read_cluster_topics`.
    """
    reaching = [each for each in _snapshots(folder) if each[0] >= log_start] if log_start else []
    if not reaching:
        return None
    _, name = min(reaching)
    return name, [*_values_of_file(folder / name)]


def _value_decoder() -> RecordDecoder:
    # not at import: every writer asks for a cluster's metadata, and few directories have any
    from kafkalog.streaming.records.columns import Columns, RecordDecoder  # noqa: PLC0415

    return RecordDecoder(Columns.VALUE)


def _feed(replay: Replay, value: bytes | None, path: str) -> None:
    try:
        replay.feed(value)
    except CorruptRecordError as error:
        raise type(error)(f"{path}: {error}") from error


def _snapshots(folder: Path) -> Iterator[tuple[int, str]]:
    """Return the offset up to which each whole snapshot reaches, and the name of its file."""
    for entry in entries_of(folder):
        if (found := _SNAPSHOT.fullmatch(entry.name)) is not None:
            yield int(found[1]), entry.name


def _values_of_file(path: Path) -> Iterator[bytes | None]:
    decoder, position = _value_decoder(), 0
    with closing(open_file(path)) as opened:
        while position < (size := opened.size):
            data = opened.read(position, CHUNK_BYTES)
            scan = scan_batches(data, file_position=position, path=str(path))
            if not scan.consumed and len(data) < scan.needed <= size - position:
                data = opened.read(position, scan.needed)
                scan = scan_batches(data, file_position=position, path=str(path))
            if not scan.consumed:
                raise scan.invalid or CorruptRecordError(
                    f"{path}: the batch at position {position} is incomplete"
                )
            for batch in decoder.decode(data, scan.table, file_position=position, path=str(path)):
                yield from batch.column(0).to_pylist()
            position += scan.consumed


# ----------------------------------------------------------------------------------------------
# What a cluster knows of partitions: who holds them, who led them last, and which brokers it has.
#
# A KRaft cluster knows this from its metadata log alone, not from log directories. Every broker
# keeps a copy of that log, which may lack the last records: leader epochs only rise, so what a copy
# says of them is never too high, but for records at its end that the quorum has not agreed on.
#
# A partition is a record of its own, and what changes is a record with the fields that change. The
# leader epoch is none of these: it rises by one with each record that names a leader.
#
# Source: Kafka ``PartitionRecord.json``, ``PartitionChangeRecord.json``,
# ``RegisterBrokerRecord.json``, ``PartitionRegistration.merge``.


NO_BROKER: Final = -1
_SINK_LOG: Final = logging.getLogger("kafkalog.sink")


class ClusterPartition(NamedTuple):
    """A partition: the ids of the brokers that hold it, and its leader epoch.

    ``directories`` are the ids of the log directories that it is said to lie in, a broker after the
    other; none where the cluster does not know. ``leader`` is the broker that led it last,
    ``NO_BROKER`` where there was none, and ``isr`` are those in sync.
    """

    replicas: tuple[int, ...]
    leader_epoch: int
    directories: tuple[str, ...] = ()
    leader: int = NO_BROKER
    isr: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterView:
    """What a copy of the metadata log says, up to the offset ``end``.

    ``partitions`` are by topic id and number, ``names`` and ``settings`` by topic id: settings
    that were given to it. ``broker_epochs`` are those under which brokers were registered last.
    """

    names: Mapping[str, str]
    partitions: Mapping[str, Mapping[int, ClusterPartition]]
    broker_epochs: Mapping[int, int]
    end: int
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(slots=True)
class ViewReplay(MetadataReplay):
    """Topics with their settings, partitions and brokers."""

    kinds = MetadataReplay.kinds | {PARTITION, PARTITION_CHANGE, REGISTER_BROKER}
    partitions: dict[str, dict[int, ClusterPartition]] = field(default_factory=dict)
    broker_epochs: dict[int, int] = field(default_factory=dict)

    def _apply(self, kind: int, fields: Fields) -> None:
        if kind in MetadataReplay.kinds:
            super(ViewReplay, self)._apply(kind, fields)
            if kind == REMOVE_TOPIC:
                self.partitions.pop(fields["topicId"], None)
        elif kind == REGISTER_BROKER:
            self.broker_epochs[fields["brokerId"]] = fields["brokerEpoch"]
        else:
            known = self.partitions.setdefault(fields["topicId"], {})
            number = fields["partitionId"]
            if kind == PARTITION:
                known[number] = _made(fields)
            elif number in known:
                known[number] = _changed(known[number], fields)


def _made(fields: Fields) -> ClusterPartition:
    directories = fields["directories"] or ()
    return ClusterPartition(
        *(tuple(fields["replicas"]), fields["leaderEpoch"], tuple(directories)),
        leader=fields["leader"],
        isr=tuple(fields["isr"]),
    )


def _changed(before: ClusterPartition, fields: Fields) -> ClusterPartition:
    replicas, directories = fields["replicas"], fields["directories"]
    leader, isr = fields["leader"], fields["isr"]
    return ClusterPartition(
        before.replicas if replicas is None else tuple(replicas),
        before.leader_epoch + (leader is not None),
        before.directories if directories is None else tuple(directories),
        before.leader if leader is None else leader,
        before.isr if isr is None else tuple(isr),
    )


def read_cluster_view(log_dir: Path) -> ClusterView | None:
    """Read what the metadata in a log directory says of partitions; None if there is none.

    Raises:
        CorruptRecordError, UnsupportedFormatError, LogDirectoryError: see
            :func:`~kafkalog.streaming.coordinator.cluster_metadata.read_cluster_topics`.
    """
    replay = ViewReplay()
    end = replay_metadata(log_dir, replay)
    if end is None:
        return None
    return ClusterView(replay.names, replay.partitions, replay.broker_epochs, end, replay.settings)


class _ReadView(NamedTuple):
    """What a metadata log says, and the files that told it."""

    files: tuple[tuple[str, int, int], ...]
    view: ClusterView | None


class _ReadViews(dict[str, _ReadView]):
    """What was read last of each metadata log."""


def find_cluster_view(log_dirs: Iterable[Path]) -> ClusterView | None:
    """Return what the metadata in log directories says, by the copy that reaches furthest.

    None where there is none, and with a warning where it cannot be read. It is read again once its
    files change.
    """
    try:
        folder = find_metadata(log_dirs)
        if folder is None or isinstance(folder, RemotePath):
            return None if folder is None else read_cluster_view(folder.parent)
        files, known = _files_of(folder), remembered(_ReadViews).get(str(folder))
        if known is None or known.files != files:
            known = _ReadView(files, read_cluster_view(folder.parent))
            remembered(_ReadViews)[str(folder)] = known
    except (KafkaLogError, OSError) as error:
        _SINK_LOG.warning("what the cluster says of its topics is not known: %s", error)
        return None
    return known.view


def _files_of(folder: Path) -> tuple[tuple[str, int, int], ...]:
    return tuple(
        (each.name, each.stat().st_size, each.stat().st_mtime_ns)
        for each in sorted(folder.iterdir())
    )


@dataclass(slots=True)
class TopicNames(Replay):
    """The names that topics have had, by their ids; those of removed ones too."""

    kinds = frozenset({TOPIC})
    names: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, log_dir: Path) -> dict[str, str]:
        """Read the names in a log directory, as far as its metadata can be read."""
        replay = cls()
        with suppress(KafkaLogError, OSError):
            replay_metadata(log_dir, replay)
        return replay.names

    def _apply(self, kind: int, fields: Fields) -> None:
        del kind
        self.names[fields["topicId"]] = fields["name"]


class _Counts(NamedTuple):
    """The numbers of partitions by topic id, and the files that told them."""

    files: tuple[tuple[str, int, int], ...]
    counts: Mapping[str, int]


class _ReadCounts(dict[str, _Counts]):
    """What was read last in each log directory."""


def read_partition_counts(log_dirs: Iterable[Path]) -> dict[str, int]:
    """Return how many partitions topics have by the metadata in log directories, by topic id.

    A broker of several holds some of them only. Metadata is read again once its files change;
    where it cannot be read, with a warning, it tells nothing.
    """
    found: dict[str, int] = {}
    for log_dir in log_dirs:
        folder = log_dir / f"{CLUSTER_METADATA_TOPIC}-0"
        if isinstance(folder, RemotePath) or not folder.is_dir():
            continue
        files = _files_of(folder)
        known = remembered(_ReadCounts).get(str(folder))
        if known is None or known.files != files:
            known = _Counts(files, _read_counts(log_dir))
            remembered(_ReadCounts)[str(folder)] = known
        for key, count in known.counts.items():
            found[key] = max(count, found.get(key, 0))
    return found


def _read_counts(log_dir: Path) -> dict[str, int]:
    try:
        view = read_cluster_view(log_dir)
    except (KafkaLogError, OSError) as error:
        _SINK_LOG.warning("the numbers of partitions are not known from the cluster: %s", error)
        return {}
    if view is None:
        return {}
    return {key: max(each, default=-1) + 1 for key, each in view.partitions.items()}
