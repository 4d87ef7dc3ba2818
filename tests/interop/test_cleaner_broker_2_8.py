"""Logs of magic 0 and 1: what our cleaner leaves of them, the cleaner of a 2.8 broker leaves."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest
from tests.support.cleaner_peers import BROKER, SEGMENT_BYTES, CleanerPeers, Rounds
from tests.support.compaction_load import DAY_MS, Load, random_rows
from tests.support.kafka import Topic, ZooKeeperBroker

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.support.compacted_logs import Contents

pytestmark = pytest.mark.interop

RELEASES: Final = {"v0": "0.9.0", "v1": "0.10.0"}
CODECS: Final = ("none", "gzip", "snappy", "lz4")
ROUNDS: Final = 3

SETTINGS: Final = {
    **{
        f"{version}-{codec}": {"delete.retention.ms": "0" if codec != "gzip" else str(DAY_MS)}
        for version, codec in itertools.product(RELEASES, CODECS)
    },
    "v1-lz4-stamped": {"delete.retention.ms": "0", "message.timestamp.type": "LogAppendTime"},
    "v1-gzip-many-keys": {"delete.retention.ms": "0"},
    "v0-none-many-keys": {"delete.retention.ms": "0"},
    "v1-snappy-keyless": {"delete.retention.ms": "1000"},
}
"""By topic, whose name begins with its format and its producer's codec."""

ALL: Final = {
    "cleanup.policy": "delete",
    "segment.bytes": SEGMENT_BYTES,
    "segment.index.bytes": "65536",
}


class Written(NamedTuple):
    """The rounds, and what was left at their end."""

    rounds: Rounds
    peers: CleanerPeers


def write(load: Load, number: int) -> None:
    for topic in SETTINGS:
        codec = topic.split("-")[1]
        producer = load.producer(codec, compression_type=codec, enable_idempotence=False)
        keys = 1500 if "many-keys" in topic else 60
        rows = random_rows((topic, number), 500, keys=keys, headers=False)
        if "keyless" in topic and not number:
            rows = [row._replace(key=None) if n % 3 == 1 else row for n, row in enumerate(rows)]
        load.send_batches(producer, topic, rows, (topic, number))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    home = tmp_path_factory.mktemp("cleaner")
    peers = CleanerPeers(home / "data", home / "ours", SETTINGS)
    rounds = Rounds()
    with ZooKeeperBroker(home / "broker", log_dirs=[peers.data], settings=BROKER) as broker:
        broker.create_topics(
            *(
                Topic(topic, 1, given | ALL | {"message.format.version": RELEASES[topic[:2]]})
                for topic, given in SETTINGS.items()
            )
        )
        load = Load(broker)
        for number in range(ROUNDS):
            write(load, number)
            peers.take()
            peers.go(broker, rounds)
        assert "Unexpected exception thrown when cleaning log" not in broker.log_text
    return Written(rounds, peers)


@pytest.mark.parametrize("number", range(ROUNDS))
@pytest.mark.parametrize("topic", SETTINGS)
def test_both_cleaners_leave_the_same(written: Written, topic: str, number: int) -> None:
    written.rounds.compare(topic, number, SETTINGS[topic])


def test_there_was_something_to_decide(written: Written) -> None:
    rounds = written.rounds
    found = [batch for logs in rounds.ours for log in logs.values() for batch in log.batches]
    assert {(batch.magic, batch.attributes & 7) for batch in found} >= set(
        itertools.product((0, 1), range(4))
    )
    assert any(passes["v1-gzip-many-keys"] > 1 for passes in rounds.passes)
    assert written.peers.keyless
    first, second = (tombstones(logs.values()) for logs in rounds.ours[:2])
    assert first > 0
    assert second > 0


def tombstones(logs: Iterable[Contents]) -> int:
    return sum(record["value"] is None for log in logs for record in log.records)


def test_the_dump_tool_finds_the_same_batches_and_no_fault(written: Written) -> None:
    ours, theirs = written.peers.dumped()
    assert ours == theirs
    assert len(ours) == len(SETTINGS)
