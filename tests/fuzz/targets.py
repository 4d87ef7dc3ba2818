"""What is fuzzed: each target reads bytes by one parser and says what came of it.

A target gives a text, the same for compiled kernels as for kernels run as Python, or raises: our
own errors are part of the text, anything else is a bug. Files are written into a folder in memory.
"""

from __future__ import annotations

import functools
import itertools
import json
import logging
import os
import shutil
import tempfile
import unittest.mock
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from crc32c import crc32c
from tests.fuzz import odd_files
from tests.support.avro_values import BothWays
from tests.support.message_sets import GZIP, gzip_stream, message
from tests.support.record_batches import (
    STORED_COLUMNS,
    Row,
    array,
    batch_of,
    columns,
    decode,
    joined,
    records_of,
)
from tests.support.record_fuzz import outcome
from tests.support.registry_records import (
    AVRO_SCHEMAS,
    JSON_SCHEMA,
    PLAIN_AVRO_SCHEMAS,
    PROTO_SCHEMA,
)

from kafkalog.checkpoints import broker, bucket_state, intent, state_file
from kafkalog.errors import KafkaLogError
from kafkalog.model import TopicPartition
from kafkalog.streaming.coordinator.cluster_metadata import MetadataReplay
from kafkalog.streaming.coordinator.group_metadata import (
    decode_group_metadata,
    encode_group_metadata,
)
from kafkalog.streaming.coordinator.views import (
    decode_metadata_values,
    decode_offsets_batch,
    decode_remote_batch,
    decode_transactions_batch,
)
from kafkalog.streaming.decoding.avro import AvroColumn
from kafkalog.streaming.decoding.json_schema import JsonColumn
from kafkalog.streaming.decoding.protobuf import ProtobufColumn
from kafkalog.streaming.decoding.registry import DecodeError, Registry, SchemaText
from kafkalog.streaming.groups.member_files import LivenessTracker, MemberFolder, member_file_name
from kafkalog.streaming.groups.rebalance import GroupRecord
from kafkalog.streaming.log.indexes import OffsetIndex, TimeIndex, TxnIndex
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.log.producer_state import open_transactions
from kafkalog.streaming.log.read.salvage import Salvage
from kafkalog.streaming.log.read.slice_reader import read_slice
from kafkalog.streaming.log.read.transactions import StableOffset
from kafkalog.streaming.lookup.memtable_kernels import SMALLEST_ENTRY, find_entries
from kafkalog.streaming.lookup.ordered_rows import Entries, MemTable
from kafkalog.streaming.lookup.seen_keys import KeyRange, KeySpan, SeenKeys
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.records.batch import scan_batches
from kafkalog.streaming.records.batch_rows import BatchDescriber
from kafkalog.streaming.records.builder import BatchBuilder
from kafkalog.streaming.records.columns import Bodies, KernelDecompressor, RecordDecoder
from kafkalog.streaming.records.compression import Codec, compress, decompress
from kafkalog.streaming.records.control import MarkerReader
from kafkalog.streaming.records.murmur2_kernels import murmur2
from kafkalog.streaming.source import offsets
from kafkalog.streaming.tiers.aiven import (
    ChunkedObject,
    KeyRing,
    decrypt,
    parse_custom_metadata,
    parse_manifest,
)
from kafkalog.streaming.tiers.layouts import TierSegment
from kafkalog.streaming.tiers.remote_segments import choose_segments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["COMPILED", "PARSERS", "TARGETS", "clean", "result", "sets_folder"]

_LIMIT: Final = 1 << 18
_CODECS: Final = len(Codec) - 1
"""How many there are beside none."""
_KEY: Final = TopicPartition("t", 0)
_LOOKUPS: Final = (-1, 0, 1, 7, 100, 2**31, 2**62)


def result(name: str, data: bytes) -> str:
    """Run a target; the text that it came to."""
    try:
        return TARGETS[name](data)
    except KafkaLogError as error:
        return f"{type(error).__name__}: {_anonymous(str(error))}"


@functools.cache
def _folder() -> Path:
    logging.getLogger("kafkalog").setLevel(logging.CRITICAL)
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    return Path(tempfile.mkdtemp(prefix=f"kafkalog-fuzz-{os.getpid()}-", dir=memory))


def clean() -> None:
    """Remove what the targets wrote."""
    shutil.rmtree(_folder(), ignore_errors=True)


def _anonymous(text: str) -> str:
    return text.replace(str(_folder()), "")


def _file(name: str, data: bytes) -> Path:
    path = _folder() / name
    path.write_bytes(data)
    return path


def _each(*actions: Callable[[], object]) -> str:
    """Do all of it, whatever becomes of the first."""
    told = []
    for action in actions:
        try:
            told.append(repr(action()))
        except KafkaLogError as error:
            told.append(f"{type(error).__name__}: {error}")
    return _anonymous("\n".join(told))


# Records


def batches(data: bytes) -> str:
    """Batches and messages of all magics, checked and unchecked."""
    return outcome(data)


def records(data: bytes) -> str:
    """Records of magic 2 under a header that is right, in each codec by turns."""
    codec = Codec(data[0] % len(Codec)) if data else Codec.NONE
    body, count = data[2:], data[1] if len(data) > 1 else 1
    return outcome(batch_of(compress(codec, body), count, attributes=int(codec)))


def streams(data: bytes) -> str:
    """Compressed bytes, as they are."""
    codec, magic = Codec(1 + data[0] % _CODECS if data else 1), data[0] >> 7 if data else 0
    return repr(decompress(codec, data[1:], magic=magic, limit=_LIMIT))


def lz4_frames(data: bytes) -> str:
    """Blocks of LZ4 in Kafka's frame, and in any: a kernel gives what calls of liblz4 give."""
    any_frame = _by_kernel(Codec.LZ4, bytes.fromhex("04224d18") + data)
    return any_frame + _by_kernel(Codec.LZ4, bytes.fromhex("04224d18604082") + data)


def streams_by_kernel(data: bytes) -> str:
    """Streams of any codec: what a kernel makes of one is what calls of its library make of it."""
    return _by_kernel(Codec(1 + data[0] % _CODECS if data else 1), data[1:])


def _by_kernel(codec: Codec, body: bytes) -> str:
    """Give what a library makes of a stream. So does the kernel, or leaves it: on some machines."""
    kernels, size = KernelDecompressor(_LIMIT, 1 << 62), np.array([len(body)], np.int64)
    bodies = Bodies(array(body), np.zeros(1, np.int64), size, np.ones(1, np.uint8))
    out, ends = np.zeros(_LIMIT, np.uint8), np.zeros(1, np.int64)
    done = kernels.can(codec) and kernels.decompress(codec, bodies, out, 0, ends)
    found = out[: ends[0]].tobytes() if done else None
    plain, refused = None, ""
    try:
        plain = decompress(codec, body, limit=_LIMIT)
    except KafkaLogError as error:
        refused = f"{type(error).__name__}: {error}"
    assert found in {None, plain}, f"a kernel took something else: {refused or 'not refused'}"
    return refused or repr(plain)


def compressed_batches(data: bytes) -> str:
    """Compressed bytes under a header that is right."""
    attributes = 1 + data[0] % _CODECS if data else 1
    batch = batch_of(data[1:], 1 + (data[0] >> 6 if data else 0), attributes=attributes)
    found = outcome(batch)
    with unittest.mock.patch.object(KernelDecompressor, "can", return_value=False):
        assert outcome(batch) == found
    return found


def message_sets(data: bytes) -> str:
    """What lies in a wrapper of magic 0 or 1, and the wrapper's own fields."""
    magic = data[0] & 1 if data else 0
    offset = data[1] if len(data) > 1 else 0
    wrapped = gzip_stream(data[2:])
    wrapper = message(offset, None, wrapped, magic=magic, timestamp=7, attributes=GZIP)
    return outcome(wrapper + message(offset + 1, None, data[2:], magic=magic))


def headers(data: bytes) -> str:
    """The view of batches."""
    source = array(data)
    table = scan_batches(source, path="fuzzed").table
    describer = BatchDescriber(max_decompressed_bytes=_LIMIT)
    end = 2**63 - 1
    found = [*describer.feed(source, table, path="fuzzed", start_offset=0, end_offset=end)]
    return repr([batch.to_pylist() for batch in [*found, *describer.flush()]])


def markers(data: bytes) -> str:
    """Control records."""
    source = array(batch_of(data, 1, attributes=0x30, base_offset=3))
    source = np.concatenate([source[:43], np.zeros(8, np.uint8), source[51:]])
    sealed = source.tobytes()
    sealed = sealed[:17] + crc32c(sealed[21:]).to_bytes(4, "big") + sealed[21:]
    source = array(sealed)
    table = scan_batches(source).table
    return repr(MarkerReader().types(source, table, file_position=0, path="fuzzed").tolist())


def round_trips(data: bytes) -> str:
    """Rows of any kind are what they were, from any codec."""
    rows = list(_rows(data))
    if not rows:
        return ""
    codec = Codec(data[0] % len(Codec))
    builder = BatchBuilder(codec, target_bytes=1 + 16 * data[0])
    encoded = builder.append(columns(rows), np.arange(len(rows)))
    last = builder.finish()
    encoded = encoded if last is None else [*encoded, last]
    found = [record for one in encoded for record in decode(joined([one]))]
    assert [(r.key, r.value, r.timestamp, r.headers or ()) for r in found] == rows
    return repr(murmur2(pa.array([row.key for row in rows], pa.binary())).tolist())


def _rows(data: bytes) -> Iterator[Row]:
    at = 1
    while at + 4 <= len(data):
        kinds, key, value, time = data[at : at + 4]
        at += 4
        fields = [data[at : at + key], data[at + key : at + key + value]]
        at += key + value
        named = (("h", None), (data[at : at + 3].hex(), fields[0]))[: kinds & 3]
        yield Row(
            None if kinds & 4 else fields[0],
            None if kinds & 8 else fields[1],
            (time - 128) << (kinds >> 4) * 3,
            named,
        )


# Files of a log


def offset_indexes(data: bytes) -> str:
    """An offset index and all that is asked of one."""
    with OffsetIndex(_file("x.index", data), 5) as index:
        index.limit(1 << 30)
        return _each(
            lambda: len(index),
            lambda: [index.lookup(offset) for offset in _LOOKUPS],
            lambda: [index.end_position(offset) for offset in _LOOKUPS],
            lambda: index.between(3, 2**31 - 1).tolist(),
            index.last_entry,
        )


def time_indexes(data: bytes) -> str:
    """A time index and all that is asked of one."""
    with TimeIndex(_file("x.timeindex", data), 5) as index:
        return _each(
            lambda: len(index),
            lambda: [index.lookup(time) for time in _LOOKUPS],
            lambda: [index.count_through(offset) for offset in _LOOKUPS],
            index.last_entry,
        )


def txn_indexes(data: bytes) -> str:
    """An index of aborted transactions."""
    with TxnIndex(_file("x.txnindex", data), 5) as index:
        return repr(list(index))


def snapshots(data: bytes) -> str:
    """A producer snapshot, as it is and with a checksum that is right."""
    sealed = data[:2] + crc32c(data[6:]).to_bytes(4, "big") + data[6:]
    return _each(
        lambda: open_transactions(_file("1.snapshot", data)),
        lambda: open_transactions(_file("2.snapshot", sealed)),
    )


def logs(data: bytes) -> str:
    """A partition's folder: one segment, whose first byte says how long its offset index is."""
    folder = _folder() / "t-0"
    folder.mkdir(exist_ok=True)
    split = 1 + 8 * (data[0] % 8) if data else 0
    (folder / f"{0:020d}.index").write_bytes(data[1:split])
    (folder / f"{0:020d}.log").write_bytes(data[split:])
    with PartitionLog(folder, _KEY) as log:
        end = log.log_end_offset()
        return _each(
            lambda: end,
            lambda: log.log_end(verify_from=0),
            lambda: log.offset_for_timestamp(1),
            log.max_timestamp,
            lambda: StableOffset(folder).find(end),
            lambda: StableOffset(folder, around_damage=True).find(end),
            *(functools.partial(_read, log, end, *way) for way in ((0, 0), (0, 1), (1, 0), (1, 1))),
        )


def _read(log: PartitionLog, end: int, salvages: int, committed_only: int) -> object:
    decoder = RecordDecoder(STORED_COLUMNS, max_decompressed_bytes=_LIMIT)
    salvage = Salvage(_KEY, max_decompressed_bytes=_LIMIT) if salvages else None
    return [
        records_of([batch])
        for planned in log.slices(0, min(end, 2**40))
        for piece in log.split_slice(planned, 3)
        for batch in read_slice(
            _KEY, piece, decoder, committed_only=bool(committed_only), salvage=salvage
        )
    ]


def newest_keys(data: bytes) -> str:
    """Keys that end with a byte 255, in blocks of as many as the first byte says."""
    block = 1 + data[0] if data else 1
    keys = data[1:].split(b"\xff")
    starts = np.cumsum([0, *(len(key) + 1 for key in keys)], dtype=np.int64)[:-1]
    lengths = np.array([len(key) for key in keys], np.int64)
    seen, found = SeenKeys(KeyRange(), 0x1234567, _LIMIT), {}
    for first in reversed(range(0, len(keys), block)):
        where = (array(data[1:]), starts[first : first + block], lengths[first : first + block])
        rows = np.arange(first, first + len(where[1]))
        newest = rows[seen.add(*where, rows, seen.hashes(*where))]
        found |= {keys[row]: int(row) for row in newest.tolist()}
    assert found == {key: row for row, key in enumerate(keys)}
    return repr(found)


def memtables(data: bytes) -> str:
    """Keys that end with a byte 255, of which the first byte is their values, in blocks.

    Then what is listed from the first key to the last one, and looked up as of each entry.
    """
    block = 1 + data[0] % 16 if data else 1
    keys = data[1:].split(b"\xff")
    starts = np.cumsum([0, *(len(key) + 1 for key in keys)], dtype=np.int64)[:-1]
    lengths = np.array([len(key) for key in keys], np.int64)
    values = np.array([key[0] % 3 - 1 if key else -1 for key in keys], np.int64)
    table = MemTable(_LIMIT)
    for first in range(0, len(keys), block):
        rows = slice(first, first + block)
        sequences = np.arange(len(keys), dtype=np.int64)[rows]
        where = (starts[rows], lengths[rows], sequences, starts[rows], values[rows])
        assert table.add(Entries(array(data[1:]), *where)) == len(sequences)
    expected = [
        (key, row, None if value < 0 else key[:value])
        for row, (key, value) in enumerate(zip(keys, values.tolist(), strict=True))
    ]
    assert all(table.get(key, row) == (row, value) for key, row, value in expected)
    assert len(table) == len(keys)
    expected.sort(key=lambda entry: (entry[0], -entry[1]))
    assert _listed(table, KeySpan()) == expected
    span = KeySpan(min(keys), max(keys))
    assert _listed(table, span) == [entry for entry in expected if entry[0] < max(keys)]
    return repr(expected)


def _listed(table: MemTable, span: KeySpan) -> list[tuple[bytes, int, bytes | None]]:
    found = []
    for entries in table.scan(span):
        view = entries.source.data
        for key, length, sequence, value, size in zip(
            *(column.tolist() for column in entries[1:]), strict=True
        ):
            kept = None if size < 0 else bytes(view[value : value + size])
            found.append((bytes(view[key : key + length]), sequence, kept))
    return found


def spilled_entries(data: bytes) -> str:
    """Bytes of a file of spilled keys, in which any number may be wrong."""
    room = len(data) // SMALLEST_ENTRY
    starts, lengths, offsets = np.zeros((3, room), np.int64)
    kinds = np.zeros(room, np.uint8)
    count = find_entries(array(data), starts, lengths, offsets, kinds)
    first = room - max(count, 0)
    keys = zip(starts[first:].tolist(), lengths[first:].tolist(), strict=True)
    found = [data[start : start + length] for start, length in keys]
    assert [len(key) for key in found] == lengths[first:].tolist()
    return repr((count, found, offsets[first:].tolist(), kinds[first:].tolist()))


# Small files, records and texts


def checkpoints(data: bytes) -> str:
    """A broker's text files."""
    for name in (
        broker.HIGH_WATERMARK,
        broker.LEADER_EPOCHS,
        broker.PARTITION_METADATA,
        broker.META_PROPERTIES,
    ):
        _file(name, data)
    return _each(
        lambda: broker.read_offset_checkpoint(_folder(), broker.HIGH_WATERMARK),
        lambda: broker.read_leader_epochs(_folder()),
        lambda: broker.read_topic_id(_folder()),
        lambda: broker.read_meta_properties(_folder()),
    )


def states(data: bytes) -> str:
    """Our own files, as they are and with a checksum that is right."""
    told = []
    for name, load in (
        (state_file.STATE_FILE, state_file.load_state),
        (intent.INTENT_FILE, intent.load_intent),
    ):
        headers = (
            f'{{"format":"{name}","version":{version},"crc32c":"{crc32c(data):08x}"}}\n'.encode()
            for version in (1, 2)
        )
        for content in (data, *(header + data for header in headers)):
            path = _file(name, content)
            told.append(_each(lambda load=load, path=path: load(path.parent)))  # type: ignore[misc]
            path.unlink()
    return "\n".join(told)


def buckets(data: bytes) -> str:
    """Commits, checkpoints and lists of extents of a log in an object store, and their names.

    They have a checksum that is right; the first two bytes say how much of them is inline.
    """
    inline = min(int.from_bytes(data[:2], "big"), len(data))
    text, kept = data[2 : len(data) - inline], data[len(data) - inline :]

    def sealed(kind: str) -> bytes:
        header = f'{{"format":"kafkalog.bucket.{kind}","version":1,"crc32c":"{crc32c(text):08x}"}}'
        return header.encode() + b"\n" + text

    def follow() -> object:
        data = sealed("commit") + kept
        commit = bucket_state.parse_commit(data, "commit", lambda _: sealed("extents"))
        for name, end in (
            (e.object, e.position + e.size) for s in commit.extents.values() for e in s
        ):
            assert not name.startswith("commits/") or end <= len(data)
            assert ".." not in name
        state = bucket_state.BucketState(commit.log_id)
        try:
            state.apply(commit)
        except ValueError as error:  # it does not follow
            return error
        again = bucket_state.checkpoint_bytes(state)
        assert bucket_state.parse_checkpoint(again, "checkpoint") == state
        return state

    name = text[:60].decode("latin-1")
    return _each(
        follow,
        lambda: bucket_state.parse_checkpoint(sealed("checkpoint"), "checkpoint"),
        lambda: bucket_state.parse_commit(data, "commit"),
        lambda: bucket_state.number_of_commit(name),
        lambda: bucket_state.number_of_checkpoint(name),
        lambda: bucket_state.number_of_data(name),
    )


def coordinator_records(data: bytes) -> str:
    """Records of the internal topics; the first byte says how long the key is."""
    split = 1 + data[0] if data else 0
    batch = pa.RecordBatch.from_pydict(
        {
            "key": pa.array([data[1:split]], pa.binary()),
            "value": pa.array([data[split:]], pa.binary()),
            "partition": pa.array([0], pa.int32()),
            "offset": pa.array([0], pa.int64()),
            "timestamp": pa.array([0], pa.timestamp("us", tz="UTC")),
        }
    )
    found = decode_offsets_batch(batch), decode_transactions_batch(batch)
    for one in found:
        one.validate(full=True)
    # as Arrow prints them: Python has no name for years beyond 9999
    return "\n".join(column.to_string() for one in found for column in one.columns)


def groups(data: bytes) -> str:
    """A group's record, and the file of a member: as it is, and with a head that is right."""
    told = [_each(lambda: _written_again(data))]
    head = b"\0" * 8 + len(data).to_bytes(4, "big") + crc32c(data).to_bytes(4, "big")
    for content in (data, head + data):
        path = _file(member_file_name("g", "A"), content)
        heartbeats = MemberFolder(path.parent, "g").read()
        path.unlink()
        for name, said in (
            LivenessTracker("g", longest_step_s=1).look(0, heartbeats, GroupRecord()).items()
        ):
            known = said.settings.instance, said.strategy, said.generation, said.leaving
            told.append(repr((name, sorted(said.settings.topics), sorted(said.owned), known)))
    return "\n".join(told)


def _written_again(data: bytes) -> bytes:
    group = GroupRecord.of(decode_group_metadata(data))
    again = encode_group_metadata(group.metadata(0))
    assert GroupRecord.of(decode_group_metadata(again)) == group
    return again


def cluster_metadata(data: bytes) -> str:
    """Records of a cluster's metadata; the first byte says how long the first one is."""
    split = 1 + data[0] if data else 0
    replay = MetadataReplay()
    told = _each(lambda: replay.feed(data[1:split]), lambda: replay.feed(data[split:]))
    values: list[bytes | None] = [data[1:split], data[split:]]
    rows = decode_metadata_values(values, "snapshot", {})
    where = {"partition": pa.array([0, 0], pa.int32()), "offset": pa.array([0, 1])}
    times = pa.array([0, 0], pa.timestamp("us", tz="UTC"))
    batch = pa.RecordBatch.from_pydict(
        {"value": pa.array(values, pa.binary()), "timestamp": times, **where}
    )
    remote = decode_remote_batch(batch)
    shown = "\n".join(each.to_string() for each in (*rows.columns, *remote.columns))
    return f"{told}\n{sorted(replay.settings.items())}\n{shown}"


def tiers(data: bytes) -> str:
    """A manifest and the log in chunks that it tells of, custom metadata, and which segments count.

    The first three bytes say how long manifest and log are; segments are five bytes each.
    """
    size, end = int.from_bytes(data[:2], "big"), data[2] if len(data) > 2 else 0
    manifest, body, told = data[3 : 3 + size], data[3 + size :][:end], data[3 + size + end :]
    return _each(
        lambda: _unpacked(manifest, body),
        lambda: parse_custom_metadata(body),
        lambda: decrypt(body, b"k" * 32, manifest),
        lambda: _chosen(told),
    )


def _unpacked(manifest: bytes, body: bytes) -> object:
    parsed = parse_manifest(manifest)
    log = ChunkedObject(parsed, KeyRing({}), lambda at, length: body[at : at + length], "object")
    count = parsed.chunks.count
    ends = count, parsed.chunks.transformed(count - 1) if count else None, parsed.indexes
    return ends, log.read_at(min(log.size, 1 << 16), 0), log.read_at(7, log.size // 2)


def _chosen(data: bytes) -> object:
    segments = [
        TierSegment("f", str(n), a, a + 1 + b, c, frozenset(), 0, ((d % 4, a), (4 + e % 4, a + b)))
        for n in range(0, len(data) - 4, 5)
        for a, b, c, d, e in [data[n : n + 5]]
    ]
    pieces = choose_segments(segments, ())
    for one, other in itertools.pairwise(pieces):
        assert one.end is not None
        assert one.start < one.end <= other.start
        assert one.base_offset < other.base_offset
    return [(piece.base_offset, piece.start, piece.end) for piece in pieces]


def decoded_values(data: bytes) -> str:
    """Values of a registry's clients, by a format and a schema that the first byte chooses."""
    columns = _schema_columns()
    column, decode = columns[data[0] % len(columns)] if data else columns[0]
    return _kind_of_error(lambda: pa.array([decode(data[1:])], column.type).to_pylist())


def bulk_values(data: bytes) -> str:
    """Values of Avro in bulk, held against one by one; the first byte chooses schemas.

    Each value has a byte before it: how long it is.
    """
    ways = _ways()
    values, at = [], 1
    while at < len(data):
        values.append(data[at + 1 : at + 1 + data[at]])
        at += 1 + data[at]
    return str(ways[data[0] % len(ways)].check(values)) if data else ""


@functools.cache
def _ways() -> list[BothWays]:
    old, new = (json.loads(each) for each in PLAIN_AVRO_SCHEMAS)
    return [BothWays(old, old), BothWays(old, new), BothWays(new, new)]


def registries(data: bytes) -> str:
    """A record of a schema registry's topic, and what is made of the schemas in it."""
    key, _, value = data.partition(b"\n")
    registry = Registry()
    registry.feed(key, value)
    told = [str(registry.skipped)]
    for subject in registry.subjects():
        for schema in registry.versions(subject):
            text = SchemaText(schema.text)
            told.append(_kind_of_error(functools.partial(_avro_value, text)))
            told.append(_kind_of_error(lambda text=text: JsonColumn(text).decode(b"{}")))  # type: ignore[misc]
    return "\n".join(told)


def _avro_value(text: SchemaText) -> object:
    return AvroColumn(text).reader(text)(b"\2" * 20)


def _kind_of_error(action: Callable[[], object]) -> str:
    """Do it; what libraries say of values differs from run to run, as sets do."""
    try:
        return repr(action())[:1000]
    except (KafkaLogError, DecodeError, pa.ArrowException, ValueError, OverflowError) as error:
        return type(error).__name__


@functools.cache
def _schema_columns() -> list[tuple[Any, Callable[[bytes], object]]]:
    avro_texts = [SchemaText(text) for text in AVRO_SCHEMAS]
    avro = [(each, each.reader(text)) for text in avro_texts for each in [AvroColumn(text)]]
    json_column, proto = JsonColumn(SchemaText(JSON_SCHEMA)), SchemaText(PROTO_SCHEMA)
    proto_column = ProtobufColumn(proto)
    return [
        *avro,
        (json_column, json_column.decode),
        (proto_column, proto_column.reader(proto)),
    ]


def options(data: bytes) -> str:
    """Options, and the JSON in them."""
    text = data.decode("utf-8", "surrogateescape")
    name, _, value = text.partition("=")
    return _each(
        lambda: ReadOptions.parse({"path": "/x", "subscribe": "t", name: value}),
        lambda: offsets.parse_partition_longs("startingOffsets", text, -2),
        lambda: offsets.parse_assignment(text),
    )


def odd_state_files(data: bytes) -> str:
    """State files that are changed or replaced, and what everybody makes of them."""
    return "\n".join(odd_files.run(data, sets_folder()).told)


def sets_folder() -> Path:
    """Give the folder in which sets of log directories are made."""
    folder = _folder() / "sets"
    folder.mkdir(exist_ok=True)
    return folder


def any_of_them(data: bytes) -> str:
    """Any of the parsers, as the first byte says: what a short run takes."""
    name = PARSERS[data[0] % len(PARSERS)] if data else PARSERS[0]
    return f"{name}: {result(name, data[1:])}"


TARGETS: Final[dict[str, Callable[[bytes], str]]] = {
    target.__name__: target
    for target in (
        batches,
        records,
        streams,
        lz4_frames,
        streams_by_kernel,
        compressed_batches,
        message_sets,
        headers,
        markers,
        round_trips,
        offset_indexes,
        time_indexes,
        txn_indexes,
        snapshots,
        logs,
        newest_keys,
        memtables,
        spilled_entries,
        checkpoints,
        states,
        buckets,
        coordinator_records,
        groups,
        cluster_metadata,
        tiers,
        decoded_values,
        bulk_values,
        registries,
        options,
        odd_state_files,
        any_of_them,
    )
}

COMPILED: Final = frozenset({odd_state_files.__name__})
"""Targets that are no test of kernels, and take long: they are fuzzed with compiled ones."""
PARSERS: Final = [name for name in TARGETS if name not in {*COMPILED, any_of_them.__name__}]
