"""A ``kafkalog compact`` is killed, and a broker starts on what is left.

Each partition of a topic is killed at another call that changes a file, so that one broker shows
many of them. CI takes sixteen calls, ``make kills`` all.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from typing import TYPE_CHECKING, Final

import pytest
from tests.support.compacting import latest, read
from tests.support.kafka import Broker, Topic
from tests.support.killing import count_calls, run_and_kill
from tests.support.log_files import swap_is_unfinished
from typer.testing import CliRunner

from kafkalog.jobs.cli.app import app
from kafkalog.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.interop, pytest.mark.crash]

TRIES_ALL: Final = os.environ.get("KAFKALOG_KILL_STRIDE") == "1"
PARTITIONS: Final = 400 if TRIES_ALL else 16
KEYS: Final = [*"abababab", *"cdcd", *"aebfagbh", *"iiii", *"jklm", "a"]
"""Of the records of each partition; all of the first two groups go, for example."""
TOMBSTONE: Final = 14
SETTINGS: Final = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "160",
    "min.cleanable.dirty.ratio": "1",
}
"""Segments of two records; the broker's own cleaner has nothing to do."""

Records = dict[int, tuple[str, str | None]]

WRITTEN: Final[Records] = {
    offset: (key, None if offset == TOMBSTONE else str(offset)) for offset, key in enumerate(KEYS)
}


def kafkalog(*words: object) -> None:
    """Run a command, and see that it found no problem."""
    done = CliRunner().invoke(app, [*map(str, words), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout.splitlines()[0]).get("problems", []) == []


def compact(data: Path, partition: int) -> None:
    kafkalog(
        *("compact", data, "--topic", "t", "--partition", partition, "--force"),
        *("--config", "segment.bytes=320"),
    )


def produce(broker: Broker) -> None:
    """Write the records, each a batch of its own, so that all partitions have equal files."""
    records = [(key, value) for key, value in WRITTEN.values() for _ in range(PARTITIONS)]
    broker.produce(
        "t",
        [(key.encode(), None if value is None else value.encode()) for key, value in records],
        over=PARTITIONS,
        **{"batch.num.messages": 1, "enable.idempotence": True},
    )


def kill_each(data: Path) -> tuple[int, int]:
    """Kill the compaction of each partition; give how many died, and how many amid their swap.

    Each one but the first also removes what the one before has left in the root.
    """
    counted = data.with_name("counted")
    shutil.copytree(data, counted)
    calls = count_calls(lambda: compact(counted, 0))
    assert calls > 16
    killed = 0
    for partition in range(PARTITIONS):
        call = partition if TRIES_ALL else partition * calls // PARTITIONS
        died = run_and_kill(lambda p=partition: compact(data, p), call, half=bool(partition % 2))
        assert died or call >= calls
        killed += died
    return killed, sum(swap_is_unfinished(data / f"t-{number}") for number in range(PARTITIONS))


def seen(data: Path) -> dict[int, Records]:
    return {number: read(data, TopicPartition("t", number)) for number in range(PARTITIONS)}


def served(broker: Broker) -> dict[int, Records]:
    found: dict[int, Records] = {number: {} for number in range(PARTITIONS)}
    for record in broker.consume_all("t"):
        assert record.key is not None
        value = None if record.value is None else record.value.decode()
        assert record.offset not in found[record.partition]
        found[record.partition][record.offset] = (record.key.decode(), value)
    return found


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path / "broker", log_dirs=[tmp_path / "data"])
    with contextlib.closing(broker):
        try:
            yield broker
        finally:
            broker.kill()


def test_a_broker_serves_each_last_value_after_a_compaction_that_was_killed(
    broker: Broker, tmp_path: Path
) -> None:
    data, left = tmp_path / "data", tmp_path / "left"
    broker.start()
    broker.create_topics(Topic("t", PARTITIONS, SETTINGS))
    produce(broker)
    broker.stop()
    kafkalog("takeover", data)
    killed, amid_swap = kill_each(data)
    assert amid_swap > killed // 2
    expected = seen(data)
    for records in expected.values():
        assert WRITTEN.items() >= records.items()
        assert latest(records) == latest(WRITTEN)
    assert len({len(records) for records in expected.values()}) > 2

    shutil.copytree(data, left)
    kafkalog("handover", data)
    check_served(broker, expected)
    shutil.rmtree(data)
    left.rename(data)
    check_served(broker, expected)  # nobody has given it to the broker
    kafkalog("takeover", data)
    kafkalog("compact", data, "--force")
    for records in seen(data).values():
        assert latest(records) == latest(WRITTEN)


def check_served(broker: Broker, expected: dict[int, Records]) -> None:
    """Let the broker start: it serves what our readers saw, and ends the swaps."""
    broker.start()
    broker.wait_for_leaders(Topic("t", PARTITIONS))
    assert served(broker) == expected
    assert set(broker.offsets("t").values()) == {(0, len(WRITTEN))}
    broker.stop()
    (data,) = broker.log_dirs
    assert not any(swap_is_unfinished(data / f"t-{number}") for number in range(PARTITIONS))
