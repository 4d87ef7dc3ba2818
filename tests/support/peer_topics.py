"""What a real broker's topics look like: the input of the tests against Spark's Kafka source.

==============  ============================================================================
topic           what it has
==============  ============================================================================
``many``        3 partitions of unequal length over several segments, every codec; null and
                empty keys and values, headers, timestamps out of order; a fourth one is empty
``txn``         committed, aborted, mixed and, at the end of partition 1, open transactions
``cut``         partition 0 begins at offset 7, all records of partition 1 were deleted
``compacted``   gaps, where records of the same key were
``appended``    stamped by the broker (LogAppendTime)
``empty``       nothing
==============  ============================================================================
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import confluent_kafka
from confluent_kafka.admin import AdminClient
from tests.support.kafka import Topic

from kafkalog.checkpoints.broker import (
    CLEANER_OFFSET,
    HIGH_WATERMARK,
    LOG_START_OFFSET,
    read_offset_checkpoint,
    read_topic_id,
)
from kafkalog.checkpoints.bucket_state import BucketCommit, Extent
from kafkalog.checkpoints.commit_state import PartitionState, TopicState
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin import retention
from kafkalog.streaming.log.segments import list_base_offsets
from kafkalog.streaming.objects.bucket_log import Proposal
from kafkalog.streaming.objects.bucket_store import BucketRoot

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from tests.support.kafka import Broker

    from kafkalog.files.storage import RemoteRoot

__all__ = [
    "BROKER_SETTINGS",
    "COMPACTED",
    "EPOCH_MS",
    "SEGMENTS",
    "TOPICS",
    "copy_to_bucket",
    "delete_records",
    "fill_compacted",
    "filled_topics",
    "wait_until_on_disk",
]

EPOCH_MS: Final = 1_700_000_000_000
"""The timestamp of the first record of ``many``; most come a second apart."""

BROKER_SETTINGS: Final = {
    "log.cleaner.backoff.ms": "100",
    "log.flush.start.offset.checkpoint.interval.ms": "100",
    "log.initial.task.delay.ms": "100",
    "log.retention.check.interval.ms": "500",
    "replica.high.watermark.checkpoint.interval.ms": "100",
}
"""A broker that writes down at once what readers of its files go by."""

SEGMENTS: Final = {"internal.segment.bytes": "1200"}

COMPACTED: Final = {
    **SEGMENTS,
    "cleanup.policy": "compact",
    "file.delete.delay.ms": "0",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.ms": "3600000",
}

TOPICS: Final = (
    Topic("many", 4, SEGMENTS),
    Topic("txn", 2),
    Topic("cut", 2, SEGMENTS),
    Topic("compacted", 1, COMPACTED),
    Topic("appended", 1, {"message.timestamp.type": "LogAppendTime"}),
    Topic("empty", 1),
)

_CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
_LENGTHS: Final = (61, 17, 3)
"""Records of ``many`` by partition."""

_WAIT_SECONDS: Final = 60


@contextlib.contextmanager
def filled_topics(broker: Broker) -> Iterator[None]:
    """Create the topics and put the records there, and wait until all of it is on the disk.

    One transaction is open until the end.
    """
    broker.create_topics(*TOPICS)
    _fill_many(broker)
    unfinished = _fill_transactions(broker)
    for partition in range(2):
        _send(broker, "cut", [(partition, n, EPOCH_MS + 1000 * n) for n in range(20)])
    delete_records(broker, {TopicPartition("cut", 0): 7, TopicPartition("cut", 1): 20})
    # Of each round a key of its own stays: no segment is left without a record.
    fill_compacted(broker, "compacted", [(0, 100 + n, EPOCH_MS + n) for n in range(8)])
    _send(broker, "appended", [(0, n, EPOCH_MS) for n in range(9)])
    wait_until_on_disk(broker, *(topic.name for topic in TOPICS))
    try:
        yield
    finally:
        unfinished.abort_transaction(_WAIT_SECONDS)


def delete_records(broker: Broker, starts: Mapping[TopicPartition, int]) -> None:
    """Move log starts forward, as ``kafka-delete-records`` does."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    asked = [confluent_kafka.TopicPartition(*key, offset) for key, offset in starts.items()]
    for future in admin.delete_records(asked).values():
        future.result()


def wait_until_on_disk(broker: Broker, *topics: str) -> None:
    """Wait until the broker's checkpoint files say what the broker says of the topics."""
    deadline = time.monotonic() + _WAIT_SECONDS
    (folder,) = broker.log_dirs
    for topic in topics:
        said = {TopicPartition(topic, n): ends for n, ends in broker.offsets(topic).items()}
        while True:
            starts = read_offset_checkpoint(folder, LOG_START_OFFSET)
            ends = read_offset_checkpoint(folder, HIGH_WATERMARK)
            # a log that begins with its first segment has no line among the starts
            if all(
                ends.get(key) == end
                and starts.get(key, list_base_offsets(folder / str(key))[0]) == start
                for key, (start, end) in said.items()
            ):
                break
            if time.monotonic() > deadline:
                raise TimeoutError(f"{topic}: the broker says {said}, its files {starts} {ends}")
            time.sleep(0.05)


def copy_to_bucket(folder: Path, place: RemoteRoot, *topics: str) -> None:
    """Commit what topics have to a log in a bucket: their batches as they are, where they are.

    What was copied before stays; logs start where the broker's do.
    """
    starts = read_offset_checkpoint(folder, LOG_START_OFFSET)
    ends = read_offset_checkpoint(folder, HIGH_WATERMARK)
    keys = sorted(key for key in ends if key.topic in topics)
    root = BucketRoot.of(place)
    with root.writing(creates=True) as log:
        states: dict[str, TopicState] = {}
        extents: dict[tuple[str, int], list[Extent]] = {}
        inline = bytearray()
        known = log.follow().topics
        for key in keys:
            topic_id = read_topic_id(folder / str(key)) or ""
            name, number = key
            before = known[topic_id].partitions[number].log_end if topic_id in known else None
            own = [*_extents_of(folder / str(key), starts.get(key, 0), before, inline)]
            start = min(starts.get(key, 0), *(each.base_offset for each in own[:1]), ends[key])
            partition = PartitionState(start, start, start, 0)
            if topic_id in known:
                partition = known[topic_id].partitions[number]
            state = states.get(topic_id, TopicState(name))
            ended = {**state.partitions, number: partition.ended_at(ends[key], 0)}
            states[topic_id] = replace(state, partitions=ended)
            if own:
                extents[topic_id, number] = own
        change = BucketCommit(topics=states, extents=extents, inline=bytes(inline))
        log.commit(lambda _: Proposal(change, is_known_again=False))
    trimmed = {key: start for key, start in starts.items() if key in keys and start}
    if trimmed:
        retention.delete_records([place], trimmed)


def _extents_of(
    folder: Path, start: int, before: int | None, inline: bytearray
) -> Iterator[Extent]:
    """Yield an extent for each batch from a start on, or from where a copy ends."""
    for path in sorted(folder.glob("*.log")):
        data, position = path.read_bytes(), 0
        while position < len(data):
            batch = data[position : position + 12 + int.from_bytes(data[position + 8 :][:4], "big")]
            position += len(batch)
            base, delta = (int.from_bytes(batch[a:b], "big") for a, b in ((0, 8), (23, 27)))
            if base + delta < start if before is None else base < before:
                continue
            newest = int.from_bytes(batch[35:43], "big", signed=True)
            place = ("", len(inline), len(batch))
            first = base if before is not None else min(start, base)  # as a segment's name says
            yield Extent(*place, first, base + delta + 1 - first, newest, 0, has_offsets=True)
            inline += batch
            start = before = base + delta + 1


def _fill_many(broker: Broker) -> None:
    for number, codec in enumerate(_CODECS):
        records = [
            # every seventh is an hour late, so that the order of timestamps is not that of offsets
            (partition, n, EPOCH_MS + 1000 * n - (3_600_000 if n % 7 == 6 else 0))
            for partition, length in enumerate(_LENGTHS)
            for n in range(length)
            if n * len(_CODECS) // length == number
        ]
        _send(broker, "many", records, codec=codec)


def _fill_transactions(broker: Broker) -> confluent_kafka.Producer:
    """Fill ``txn``, and give the producer whose transaction is still open."""
    for name, count, commits in [
        ("first", 8, True),
        ("second", 5, False),
        ("third", 6, True),
        ("fourth", 4, False),
        ("fifth", 2, True),
    ]:
        producer = _transaction(broker, name, count)
        if commits:
            producer.commit_transaction(_WAIT_SECONDS)
        else:
            producer.abort_transaction(_WAIT_SECONDS)
    unfinished = _transaction(broker, "open", 3, partitions=(1,))
    _send(broker, "txn", [(partition, n, EPOCH_MS + n) for partition in range(2) for n in range(4)])
    return unfinished


def _transaction(
    broker: Broker, name: str, count: int, *, partitions: tuple[int, ...] = (0, 1)
) -> confluent_kafka.Producer:
    settings = {"transactional.id": name, "transaction.timeout.ms": 800_000, "log_level": 3}
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, **settings})
    producer.init_transactions(_WAIT_SECONDS)
    producer.begin_transaction()
    for partition in partitions:
        for n in range(count):
            producer.produce(
                "txn",
                value=None if n in {1, 2} else f"{name} {n}",
                key=None if n in {0, 1} else str(n),
                partition=partition,
                timestamp=EPOCH_MS + n,
            )
    assert producer.flush(_WAIT_SECONDS) == 0
    return producer


def fill_compacted(broker: Broker, topic: str, kept: Sequence[tuple[int, int, int]] = ()) -> None:
    """Write the same ten keys eight times, and wait until the cleaner has nothing left to do.

    While it has, what is copied to a bucket would not be what the broker serves later. Each round
    has one record of ``kept``, too.
    """
    for written in range(8):
        again = [(0, n, EPOCH_MS + n) for n in range(10)]
        _send(broker, topic, [*again, *kept[written : written + 1]], codec="none")
    key = TopicPartition(topic, 0)
    folder = broker.log_dirs[0] / str(key)
    deadline = time.monotonic() + _WAIT_SECONDS
    while any(folder.glob("*.deleted")) or (
        read_offset_checkpoint(folder.parent, CLEANER_OFFSET).get(key)
        != list_base_offsets(folder)[-1]
    ):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not all was compacted in {folder}")
        time.sleep(0.2)


def _send(
    broker: Broker, topic: str, records: list[tuple[int, int, int]], codec: str = "none"
) -> None:
    """Send records of partition, number and timestamp; what a record holds comes from its number.

    Few to a batch, so that a batch ends near every offset that a test names.
    """
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "compression.type": codec,
            "batch.num.messages": 4,
            "linger.ms": 20,
        }
    )
    for partition, n, timestamp in records:
        producer.produce(
            topic,
            value=None if n % 11 == 10 else b"" if n % 9 == 8 else b"value %d " % n * (1 + n % 3),
            key=str(n).encode() if topic in {"compacted", "emptied"} else _key(n),
            partition=partition,
            timestamp=timestamp,
            headers=[("h", str(n)), ("é", None), ("h", b"\x00")] if n % 3 == 0 else None,
        )
        producer.poll(0)
    assert producer.flush(_WAIT_SECONDS) == 0


def _key(n: int) -> bytes | None:
    return None if n % 5 == 4 else b"" if n % 13 == 12 else b"key %d" % (n % 6)
