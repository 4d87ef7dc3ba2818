"""What our cleaner makes of a log, a broker's cleaner makes of a copy of it, batch by batch.

Two rounds are a ``takeover`` and a ``kafkalog compact`` of a copied directory. In the third one,
where the broker has forgotten its producers, our side is the core of the cleaner alone.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from tests.support.cleaner_peers import BROKER, SEGMENT_BYTES, CommandPeers, Rounds
from tests.support.compacted_logs import signs
from tests.support.compaction_load import DAY_MS, Load, Row, alter_broker, random_rows
from tests.support.kafka import Broker, Topic

from kafkalog.checkpoints.broker import LOG_START_OFFSET, read_offset_checkpoint
from kafkalog.model import TopicPartition
from kafkalog.streaming.log.segments import list_base_offsets

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.interop

SECONDS: Final = 60
EAGER: Final = BROKER | {
    "log.flush.start.offset.checkpoint.interval.ms": "200",
    "log.initial.task.delay.ms": "200",
    "producer.id.expiration.check.interval.ms": "200",
}
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
SOON_MS: Final = 2000

SETTINGS: Final[dict[str, dict[str, str]]] = {
    "none": {"delete.retention.ms": "0"},
    "gzip": {"delete.retention.ms": str(DAY_MS)},
    "snappy": {"delete.retention.ms": "0"},
    "lz4": {"delete.retention.ms": str(DAY_MS)},
    "zstd": {"delete.retention.ms": str(SOON_MS)},
    "stamped": {"delete.retention.ms": "0", "message.timestamp.type": "LogAppendTime"},
    "transactions": {"delete.retention.ms": "0"},
    "transactions-kept": {"delete.retention.ms": str(DAY_MS)},
    "producers": {"delete.retention.ms": "0"},
    "open": {"delete.retention.ms": "0"},
    "young": {"min.compaction.lag.ms": "3600000"},
    "deleted": {"cleanup.policy": "compact,delete", "retention.ms": str(2 * DAY_MS)},
    "many-keys": {"delete.retention.ms": "0"},
    "keyless": {"delete.retention.ms": str(DAY_MS)},
}
"""By topic; all else is the same for all."""

ALL: Final = {
    "cleanup.policy": "delete",
    "internal.segment.bytes": SEGMENT_BYTES,
    "segment.index.bytes": "65536",
}
ROUNDS: Final = 3


class Written(NamedTuple):
    """The rounds, and what was left at their end."""

    rounds: Rounds
    peers: CommandPeers


def write(load: Load, number: int) -> None:
    """Write what round ``number`` is to clean."""
    for topic in (*CODECS, "stamped"):
        codec = topic if topic in CODECS else "zstd"
        producer = load.producer(topic, compression_type=codec, enable_idempotence=True)
        rows = random_rows((topic, number), 400)
        load.send_batches(producer, topic, rows, (topic, number))
    plain = load.producer("plain", enable_idempotence=False)
    for topic in ("transactions", "transactions-kept"):
        load.interleave(topic, 30, number)
        load.send(plain, topic, random_rows((topic, number), 100))
    write_last_batches(load, number)
    gzip = load.producer("gzip")
    for topic in ("open", "young"):
        for part in range(2):
            if topic == "open" and part:
                opened = load.producer("opened", transactional_id="opened")
                if number:
                    opened.commit_transaction(SECONDS)
                opened.begin_transaction()
                load.send(opened, topic, random_rows("opened", 2))
            age = DAY_MS // 2 if topic == "young" and not part else 0
            rows = random_rows((topic, part, number), 300, age_ms=age)
            load.send_batches(plain, topic, rows, (topic, number))
    for topic, keys in (("many-keys", 1500), ("deleted", 50)):
        age = 9 * DAY_MS if topic == "deleted" and not number else 0
        rows = random_rows((topic, number), 400, keys=keys, age_ms=age, headers=False)
        load.send_batches(gzip, topic, rows, (topic, number))
        rows = random_rows((topic, -number), 1200, keys=keys, headers=False)
        load.send_batches(gzip, topic, rows, (topic, -number))
    rows = random_rows(("keyless", number), 500, keys=30)
    if not number:  # a broker takes no more of them once the topic is compacted
        rows = [row._replace(key=None) if n % 3 == 0 else row for n, row in enumerate(rows)]
        rows[200:260] = [row._replace(key=None) for row in rows[200:260]]
    load.send_batches(plain, "keyless", rows, number)


def write_last_batches(load: Load, number: int) -> None:
    """Let producers write for the last time, and others write the same keys after them."""
    for name in ("first", "second"):
        producer = load.producer(name, enable_idempotence=True)
        if number == 0 or name == "second":
            load.send(producer, "producers", all_keys(4))
    for name in ("aborts", "commits", "is fenced"):
        if number == 0:
            producer = load.producer(name, transactional_id=name)
            producer.begin_transaction()
            load.send(producer, "producers", all_keys(3))
            if name == "aborts":
                producer.abort_transaction(SECONDS)
            elif name == "commits":
                producer.commit_transaction(SECONDS)
            else:
                load.send(producer, "many-keys", all_keys(3))
                load.forget(name)
                load.producer(name, transactional_id=name)
    plain = load.producer("plain")
    for _ in range(12):
        load.send(plain, "producers", all_keys(12))


def all_keys(count: int) -> list[Row]:
    """Give each of some keys a long value."""
    now = int(time.time() * 1000)
    return [Row(b"key %d" % n, b"v" * 90, [], now) for n in range(count)]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    home = tmp_path_factory.mktemp("cleaner")
    peers = CommandPeers(home / "data", home / "ours", SETTINGS, opened="open")
    rounds = Rounds()
    with Broker(home / "broker", log_dirs=[peers.data], settings=EAGER) as broker:
        broker.create_topics(*(Topic(topic, 1, given | ALL) for topic, given in SETTINGS.items()))
        load = Load(broker)
        for number in range(ROUNDS):
            write(load, number)
            if number == 0:
                move_log_starts(broker, peers)
            elif number == 1:
                time.sleep(max(0, (rounds.times[0][1] + SOON_MS) / 1000 - time.time()))
            else:
                alter_broker(broker, {"producer.id.expiration.ms": "1"})
                time.sleep(1)  # all of them are forgotten
            peers.take()
            peers.go(broker, rounds, expiration_ms=1 if number == 2 else DAY_MS)
        complaints = [line for line in broker.complaints() if ".storage." in line]
        said = [line.rsplit("\t", 1)[-1] for line in complaints]
        counts = [f"Found {count} invalid messages during compaction." for count in peers.keyless]
        assert said == counts != []
    return Written(rounds, peers)


def move_log_starts(broker: Broker, peers: CommandPeers) -> None:
    """Let retention delete the first segments of a topic, and an operator those of another."""
    wait_for(lambda: first_base(peers, "deleted") > 0)
    start = list_base_offsets(peers.data / "keyless-0")[1] + 5
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    asked = [confluent_kafka.TopicPartition("keyless", 0, start)]
    for future in admin.delete_records(asked).values():
        future.result()
    wait_for(lambda: first_base(peers, "keyless") > 0)
    keyless = TopicPartition("keyless", 0)
    wait_for(lambda: read_offset_checkpoint(peers.data, LOG_START_OFFSET).get(keyless) == start)
    peers.logs["keyless"].log_start = start


def first_base(peers: CommandPeers, topic: str) -> int:
    return list_base_offsets(peers.data / f"{topic}-0")[0]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize("number", range(ROUNDS))
@pytest.mark.parametrize("topic", SETTINGS)
def test_both_cleaners_leave_the_same(written: Written, topic: str, number: int) -> None:
    written.rounds.compare(topic, number, SETTINGS[topic])


def test_there_was_something_to_decide(written: Written) -> None:
    rounds = written.rounds
    found = signs(one for number in rounds.ours for one in number.values())
    assert min(found.values()) > 0, found
    assert all(passes["many-keys"] > 1 for passes in rounds.passes)
    assert all(passes["none"] == 1 for passes in rounds.passes)


def test_the_dump_tool_finds_the_same_batches_and_no_fault(written: Written) -> None:
    ours, theirs = written.peers.dumped()
    assert ours == theirs
    assert len(ours) == len(SETTINGS)
