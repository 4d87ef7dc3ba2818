"""What is played again into Kafka: a broker gets each partition's records in their order."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Final

import pytest
from tests.support.kafka import Broker, Topic
from tests.support.sinking import Writer, rows

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.interop, pytest.mark.spark]

COMMAND: Final = "from kafkalog.jobs.cli.app import main; main()"


def test_a_broker_gets_keys_values_and_partitions_in_order(tmp_path: Path) -> None:
    log, count = tmp_path / "log", 300
    values = [f"{number}" for number in range(count)]
    keys = [b"k\xff" if number % 3 else None for number in range(count)]
    placed = rows(values, keys=keys, partitions=[number % 2 for number in range(count)])
    Writer(log, topic="t", numPartitions="2", segment__bytes="1000").write(0, placed)
    with Broker(tmp_path / "broker") as broker:
        broker.create_topics(Topic("copy", 2))
        words = ["replay", str(log), f"kafka:{broker.bootstrap}", "--topic=t", "--as=copy"]
        ran = subprocess.run(
            [sys.executable, "-c", COMMAND, "run", *words, "--set=minPartitions=8"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (ran.returncode, ran.stdout) == (0, ""), ran.stderr
        got = broker.consume_all("copy")
    assert ran.stderr.splitlines()[-1].startswith(f"replay t: {count} rows in 1 piece, ")
    expected = list(zip(keys, values, strict=True))
    for partition in range(2):
        taken = [(each.key, each.value) for each in got if each.partition == partition]
        assert taken == [(key, value.encode()) for key, value in expected[partition::2]]
