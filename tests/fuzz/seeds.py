"""What fuzzing starts from: bytes of real brokers, cut small, and bytes of our own."""

from __future__ import annotations

import base64
import json
import random
import struct
import tarfile
from typing import TYPE_CHECKING, Final

import pyarrow.parquet as pq
import zstandard
from tests.fuzz import odd_files
from tests.fuzz.targets import PARSERS, sets_folder
from tests.support.avro_values import random_value, written
from tests.support.cluster_records import registered
from tests.support.corpus import CASES, CORPUS
from tests.support.message_sets import GOLDEN
from tests.support.record_fuzz import seeds as record_seeds
from tests.support.registry_records import (
    AVRO_SCHEMAS,
    JSON_SCHEMA,
    PLAIN_AVRO_SCHEMAS,
    schema_record,
)
from tests.support.remote_records import segment_added, segment_updated
from tests.support.states import up_to
from tests.support.tiers import chunk_sizes

from kafkalog.checkpoints.bucket_state import (
    BucketCommit,
    BucketState,
    Extent,
    SealedIndexes,
    checkpoint_bytes,
    commit_bytes,
    parse_commit,
)
from kafkalog.checkpoints.commit_state import (
    CommitState,
    PartitionState,
    TopicState,
    WriterState,
)
from kafkalog.checkpoints.intent import IntendedPartition, Intent
from kafkalog.checkpoints.state_file import state_bytes
from kafkalog.model import TopicPartition
from kafkalog.streaming.coordinator.group_metadata import encode_group_metadata
from kafkalog.streaming.groups.rebalance import GroupRecord, Member, MemberSettings
from kafkalog.streaming.records.compression import Codec, compress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["seeds_of"]

_BYTES: Final = 700
"""Of a file at most: small inputs are changed in more places that count."""

_SUFFIXES: Final = {
    "offset_indexes": ".index",
    "time_indexes": ".timeindex",
    "txn_indexes": ".txnindex",
    "snapshots": ".snapshot",
    "checkpoints": ("-checkpoint", ".metadata", ".properties"),
}
_TEXTS: Final = (
    b'startingOffsets={"t":{"0":23,"1":-1}}',
    b'{"t":{"0":23,"1":-1},"u":{"0":9223372036854775807}}',
    b'assign={"t":[0,1]}',
    b'{"t":[0,1]}',
    b"subscribePattern=t.*",
    b"splitBytes=64m",
    b"fetchOffset.retryIntervalMs=10ms",
    b"kafka.isolation.level=read_committed",
    b"startingTimestamp=1700000000000",
    b"endingOffsetsByTimestamp={}",
)


def seeds_of(name: str) -> Iterator[bytes]:
    """Give the seeds of a target."""
    if name in _SUFFIXES:
        yield from _files(_SUFFIXES[name])
    elif name in _SEEDS:
        yield from _SEEDS[name]()
    yield b"\x03\x11\x04\x05\x80keyvalue" * 3


def _logs() -> Iterator[bytes]:
    yield from (b"\0" + data for data in _batches())


def _records() -> Iterator[bytes]:
    yield from (bytes([codec, 3]) + record_seeds()[0][61:] for codec in range(5))


def _streams() -> Iterator[bytes]:
    yield from (bytes([row]) + data[61:] for row, data in enumerate(record_seeds()[1:5]))


def _lz4_frames() -> Iterator[bytes]:
    """Give blocks of batches that repeat themselves, from a little to a lot."""
    body = record_seeds()[0][61:]
    for times in (1, 3, 40):
        yield compress(Codec.LZ4, (body + bytes(times)) * times)[7:]


def _streams_of_codecs() -> Iterator[bytes]:
    """Give what each codec makes of records, and of what repeats itself."""
    body = record_seeds()[0][61:]
    for codec in Codec:
        if codec != Codec.NONE:
            yield bytes([codec - 1]) + compress(codec, body)
            yield bytes([codec - 1]) + compress(codec, (body + bytes(40)) * 20)


def _memtables() -> Iterator[bytes]:
    """Give keys in the order of their numbers, with some twice, and some that begin alike."""
    yield b"\x03" + b"\xff".join(b"key %d" % (n * 7 % 19) for n in range(40))
    yield b"\x00" + b"\xff".join(b"a" * (n % 5) for n in range(60))


def _spilled_entries() -> Iterator[bytes]:
    """Give entries without and with values."""
    tag = (1 << 8 | 1).to_bytes(8, "little")
    yield (b"\x0bkey" + tag + b"\0") * 3
    yield b"\x08" + tag + b"\x03abc" + b"\x88\x01" + b"k" * 128 + tag + b"\0"


def _message_sets() -> Iterator[bytes]:
    yield from (bytes([magic, 5]) + GOLDEN[f"v{magic} none"] for magic in (0, 1))


def _markers() -> Iterator[bytes]:
    """Give the record of a marker: its key tells the type, its value the coordinator's epoch."""
    body = b"\0\0\0" + b"\x08" + struct.pack(">hh", 0, 1) + b"\x0c" + struct.pack(">hi", 0, 9)
    yield bytes([2 * len(body) + 2]) + body + b"\0"


def _states() -> Iterator[bytes]:
    topic = TopicState("t", up_to({0: 7}), durable_ends={0: 3})
    writer = WriterState("run", 3, "0af1", 1_700_000_000_000)
    state = CommitState(5, "set", "m", ("m",), {"A" * 21 + "Q": topic}, {"query:q": writer})
    intended = IntendedPartition(
        topic="t",
        key="A" * 21 + "Q",
        partition=0,
        member_id="m",
        created=True,
        leader_epoch=0,
        starts_epoch=True,
        start_offset=0,
        end_offset=5,
        snapshots=(),
        pieces=(),
        segments=(),
    )
    written = state_bytes(state), Intent(6, "set", "query:q", 3, (intended,)).to_bytes()
    for data in written:
        yield data
        yield data.partition(b"\n")[2]


def _batches() -> Iterator[bytes]:
    yield from record_seeds()
    yield from (data[:_BYTES] for data in _files(".log"))


def _files(suffix: str | tuple[str, ...]) -> Iterator[bytes]:
    """Give files of one kind, of each case the first few that differ."""
    for case in CASES:
        found: set[bytes] = set()
        with tarfile.open(CORPUS / case / "logdir.tar.gz") as archive:
            for member in archive:
                if member.isfile() and member.name.endswith(suffix) and len(found) < 4:
                    file = archive.extractfile(member)
                    found.add(b"" if file is None else file.read(_BYTES))
        yield from sorted(found)


def _coordinator_records() -> Iterator[bytes]:
    for case in ("p09-groups", "p06-transactions"):
        table = pq.read_table(CORPUS / case / "expected.parquet", columns=["topic", "key", "value"])
        seen = set()
        for row in table.to_pylist():
            kind = (row["topic"], (row["key"] or b"")[:2], (row["value"] or b"")[:2])
            if row["topic"].startswith("__") and kind not in seen and len(row["key"]) < 256:
                seen.add(kind)
                yield bytes([len(row["key"])]) + row["key"] + (row["value"] or b"")


def _groups() -> Iterator[bytes]:
    """Give a record of ours, what members say in their files, and records of a broker's."""
    settings = MemberSettings(frozenset({"t", "u"}), "i", "c", "h")
    one, two = TopicPartition("t", 0), TopicPartition("u", 3)
    member = Member(settings, {one: 3}, {two: 2})
    record = GroupRecord(4, "range", "A", {"A": member, "B": Member(settings)})
    yield encode_group_metadata(record.metadata(1_700_000_000_000))
    yield (
        b'{"group":"g","member":"A","topics":["t"],"instance":null,"client":"c","host":"h",'
        b'"sessionTimeoutMs":45000,"rebalanceTimeoutMs":300000,"strategy":"range",'
        b'"generation":3,"owned":[["t",0],["u",3]],"leaving":false}'
    )
    for seed in _coordinator_records():
        if seed[1:3] == b"\x00\x02":
            yield seed[1 + seed[0] :]


def _cluster_metadata() -> Iterator[bytes]:
    """Give a topic and a setting of it; a setting that goes, and the topic that goes."""
    created = b"\x01\x02\x00\x02t" + bytes(range(16)) + b"\x00"
    given = b"\x01\x04\x00\x02\x02t\x0dretention.ms\x025\x00"
    taken = b"\x01\x04\x00\x02\x02t\x0dretention.ms\x00\x00"
    removed = b"\x01\x09\x00" + bytes(range(16)) + b"\x00"
    yield bytes([len(created)]) + created + given
    yield bytes([len(taken)]) + taken + removed
    yield b"\x03\x01\x17\x00\x00" + given
    where = ("t", "AAECAwQFBgcICQoLDA0ODw", 0, "AAECAwQFBgcICQoLDA0ODw")
    copied = segment_added(*where, (0, 9))
    yield bytes([len(copied)]) + copied + segment_updated(*where)
    changed = registered(1, 2)
    yield bytes([len(changed)]) + changed + b"\x01\x03\x02" + bytes(40)


def _buckets() -> Iterator[bytes]:
    key, run = "A" * 21 + "Q", "data/" + "1" * 20 + "-" + "a" * 32
    segment = f"logs/{key}/t-0/{0:020}-{1:020}-" + "b" * 32
    indexes = SealedIndexes(8, 12, 0, bytes(8), bytes(12))
    commit = BucketCommit(
        number=1,
        commit_id="c",
        log_id="l",
        topics={key: TopicState("t", partitions={0: PartitionState(0, 7, 7, 0)})},
        writers={"w": WriterState("run", 3, "0af1", 1_700_000_000_000)},
        extents={(key, 0): [Extent("", 0, 61, 0, 1, 5, 0), Extent(run, 0, 99, 1, 6, 5, 0, True)]},
        inline=bytes(61),
        swept=1,
        delay_ms=5,
    )
    merge = BucketCommit(
        number=1,
        commit_id="c",
        log_id="l",
        replaced={(key, 0): [Extent(segment, 0, 160, 0, 7, 5, 0, False, indexes)]},
        clean={(key, 0): 7},
        deleted=(key,),
        forgotten=(("", "w"),),
        listed=run,
    )
    state = BucketState("l")
    state.apply(parse_commit(commit_bytes(commit), "commit"))
    for data, inline in (
        (commit_bytes(commit), 61),
        (commit_bytes(merge), 0),
        (checkpoint_bytes(state), 0),
    ):
        yield inline.to_bytes(2, "big") + data.split(b"\n", 1)[1]


def _decoded_values() -> Iterator[bytes]:
    yield b"\x00\x06\x06\x04x"
    yield b"\x00\x06\x00"
    yield b"\x01\x02\x02\x02k\x02\x02v\x00\x00"
    yield b"\x02\x04\x00\x02\x05\x00\x02"
    yield b'\x03{"i":1,"n":2.5,"s":"x","l":[{"i":2}],"m":{"k":true}}'
    yield b"\x04\x00\x08\x05\x12\x02\x08\x01\x1a\x07\x0a\x01k\x12\x02\x08\x01"


def _bulk_values() -> Iterator[bytes]:
    rng = random.Random(7)
    schemas = [json.loads(each) for each in PLAIN_AVRO_SCHEMAS]
    for pair, schema in enumerate([schemas[0], *schemas]):
        values = [written(schema, random_value(rng, schema)) for _ in range(4)]
        yield bytes([pair]) + b"".join(bytes([len(each)]) + each for each in values)
    yield b"\0\1\2"


def _tiers() -> Iterator[bytes]:
    """Give manifests of both kinds of chunks with their logs, and segments of several leaders."""
    manifest = {
        "version": "1",
        "chunkIndex": {
            "type": "fixed",
            "originalChunkSize": 5,
            "originalFileSize": 9,
            "transformedChunkSize": 5,
            "finalTransformedChunkSize": 4,
        },
        "segmentIndexes": {"offset": {"position": 0, "size": 8}},
        "compression": False,
        "remoteLogSegmentMetadata": {
            "remoteLogSegmentId": {
                "topicIdPartition": {
                    "topicId": "AAECAwQFBgcICQoLDA0ODw",
                    "topicPartition": {"topic": "t", "partition": 0},
                },
                "id": "AAECAwQFBgcICQoLDA0ODw",
            },
            "startOffset": 0,
            "endOffset": 9,
            "maxTimestampMs": 5,
            "segmentLeaderEpochs": {"0": 0},
        },
    }

    def seed(body: bytes) -> bytes:
        text = json.dumps(manifest).encode()
        segments = bytes([0, 9, 1, 0, 0, 5, 99, 1, 0, 1, 10, 80, 1, 1, 1])
        return struct.pack(">HB", len(text), len(body)) + text + body + segments

    yield seed(b"012345678")
    packed = [zstandard.compress(part) for part in (b"01234", b"5678")]
    sizes = base64.b64encode(zstandard.compress(chunk_sizes(list(map(len, packed))))).decode()
    index = {"type": "variable", "originalChunkSize": 5, "originalFileSize": 9}
    manifest |= {"compression": True, "chunkIndex": index | {"transformedChunks": sizes}}
    yield seed(b"".join(packed))
    manifest["encryption"] = {"dataKey": "one:AAAA", "aad": "AAAA"}
    yield seed(b"\x02\x01\x03\x03a/\x02\x02\x01b")


def _registries() -> Iterator[bytes]:
    record = schema_record("t-value", 1, 1, AVRO_SCHEMAS[0])
    yield (record.key or b"") + b"\n" + (record.value or b"")
    record = schema_record("t-value", 1, 1, JSON_SCHEMA, kind="JSON", references=[("a", "b", 1)])
    yield (record.key or b"") + b"\n" + (record.value or b"")
    yield b'{"keytype":"NOOP","magic":0}\n'


def _any_of_them() -> Iterator[bytes]:
    for number, name in enumerate(PARSERS):
        yield from (bytes([number]) + seed for seed in seeds_of(name))


_SEEDS: Final[dict[str, Callable[[], Iterable[bytes]]]] = {
    "batches": _batches,
    "headers": _batches,
    "logs": _logs,
    "records": _records,
    "streams": _streams,
    "lz4_frames": _lz4_frames,
    "streams_by_kernel": _streams_of_codecs,
    "compressed_batches": _streams,
    "message_sets": _message_sets,
    "coordinator_records": _coordinator_records,
    "groups": _groups,
    "cluster_metadata": _cluster_metadata,
    "buckets": _buckets,
    "tiers": _tiers,
    "decoded_values": _decoded_values,
    "bulk_values": _bulk_values,
    "registries": _registries,
    "markers": _markers,
    "newest_keys": lambda: [
        b"",
        b"\x03a\xffb\xffa\xff\xffa\0\xff",
        b"\x10" + b"key 1\xffkey 2\xff" * 40,
    ],
    "memtables": _memtables,
    "spilled_entries": _spilled_entries,
    "options": lambda: _TEXTS,
    "states": _states,
    "odd_state_files": lambda: odd_files.seeds(sets_folder()),
    "any_of_them": _any_of_them,
}
