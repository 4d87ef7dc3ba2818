"""The settings of a cluster's topics, from the log in which it keeps its metadata (KRaft).

``__cluster_metadata-0`` lies in a broker's first log directory. It has snapshots and a log; the
newest snapshot and the log after it are the cluster. Every record is one message in a frame::

    uvarint frame version (1), uvarint api key, uvarint version, message of that version

Topics, their settings and their removal are read; every other record is passed over. Records of a
metadata transaction count from its end on, and those of an aborted one never.

A quorum of several controllers may not have agreed on the last records yet: nothing on the disk
tells. They count here.

Source: Kafka ``MetadataRecordSerde``, ``TopicRecord.json``, ``ConfigRecord.json``,
``RemoveTopicRecord.json``, ``ConfigurationControlManager``, ``Snapshots``.
"""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from kafkalog.errors import CorruptRecordError, UnsupportedFormatError
from kafkalog.files.open_file import open_file
from kafkalog.model import CLUSTER_METADATA_TOPIC, TopicPartition
from kafkalog.streaming.coordinator.message_schema import (
    Field,
    MessageReader,
    Schema,
    int8,
    nullable_string,
    string,
    struct_of,
    uuid,
)
from kafkalog.streaming.log.log_dir import entries_of
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.log.segment import CHUNK_BYTES
from kafkalog.streaming.records.batch import scan_batches

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from kafkalog.streaming.coordinator.message_schema import Fields
    from kafkalog.streaming.records.columns import RecordDecoder

__all__ = [
    "ClusterTopics",
    "MetadataReplay",
    "Replay",
    "read_cluster_topics",
    "replay_metadata",
]

_PARTITION: Final = TopicPartition(CLUSTER_METADATA_TOPIC, 0)
_SNAPSHOT: Final = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
_FRAME: Final = 1
_OF_TOPIC: Final = 2
"""The type of resource whose settings are a topic's (Kafka ``ConfigResource.Type``)."""

_TOPIC, _CONFIG, _REMOVE_TOPIC = 2, 4, 9
_BEGIN, _END, _ABORT = 23, 24, 25

_SCHEMAS: Final = {
    _TOPIC: Schema(
        "TopicRecord",
        struct_of(Field("name", string), Field("topicId", uuid)),
        first_flexible=0,
    ),
    _CONFIG: Schema(
        "ConfigRecord",
        struct_of(
            Field("resourceType", int8),
            Field("resourceName", string),
            Field("name", string),
            Field("value", nullable_string),
        ),
        first_flexible=0,
    ),
    _REMOVE_TOPIC: Schema("RemoveTopicRecord", struct_of(Field("topicId", uuid)), first_flexible=0),
}


class ClusterTopics(NamedTuple):
    """What a cluster was told of its topics.

    ``settings`` are those given to each topic, by topic id; ``end`` is the offset up to which the
    metadata was read.
    """

    settings: Mapping[str, Mapping[str, str]]
    end: int


@dataclass(slots=True)
class Replay:
    """A fold over the records of the log: those whose ``schemas`` it has, by their api key."""

    schemas: ClassVar[Mapping[int, Schema]]
    _pending: list[tuple[int, Fields]] | None = None
    """What a metadata transaction that has not ended has changed."""

    def feed(self, value: bytes | None) -> None:
        """Take the next record's value.

        Raises:
            UnsupportedFormatError: a record that counts, in a version that is not known.
            CorruptRecordError: it is no such record.
        """
        if value is None:
            raise CorruptRecordError("a record of the metadata has no value")
        reader = MessageReader(value, 0, flexible=True, field="frame")
        frame = reader.uvarint()
        if frame != _FRAME:
            raise UnsupportedFormatError(f"frame version {frame} is not known ({_FRAME} is)")
        kind, version = reader.uvarint(), reader.uvarint()
        if kind == _BEGIN:
            self._pending = []
        elif kind in {_END, _ABORT}:
            for each in self._pending or () if kind == _END else ():
                self._apply(*each)
            self._pending = None
        elif kind in self.schemas:
            fields = self.schemas[kind].decode(reader.take(reader.remaining), version)
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

    schemas = _SCHEMAS
    _names: dict[str, str] = field(default_factory=dict)
    _settings: dict[str, dict[str, str]] = field(default_factory=dict)

    def _apply(self, kind: int, fields: Fields) -> None:
        if kind == _TOPIC:
            self._names[fields["topicId"]] = fields["name"]
        elif kind == _REMOVE_TOPIC:
            name = self._names.pop(fields["topicId"], None)
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
        return {key: dict(self._settings.get(name, {})) for key, name in self._names.items()}


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
