"""A broker serves what was mirrored from another broker's logs, by the command that does it."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tests.support.corpus import UnpackedCase
from tests.support.kafka import Topic, serve
from tests.support.reading import read_batch

from kafkalog.streaming.store.ends.tracker import LogEndTracker

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.interop, pytest.mark.spark]


def test_a_broker_serves_what_was_mirrored_transactions_and_all(tmp_path: Path) -> None:
    case = UnpackedCase("p06-transactions", tmp_path / "case")
    committed = {"kafka.isolation.level": "read_committed"}
    expected = sorted(
        (row["partition"], row["offset"], row["timestamp"], row["key"], row["value"])
        for row in read_batch(path=case.path, subscribe="txn", **committed)
    )
    watch = LogEndTracker([case.path], lambda key: key.topic == "txn", committed_only=True)
    bounds = {
        key.partition: (watch.log_start(key), end) for key, end in watch.look().offsets.items()
    }
    module = "from kafkalog.jobs.cli.app import main; main()"
    words = ["run", "mirror", case.path, tmp_path / "copy", "--topic=txn"]
    ran = subprocess.run(
        [sys.executable, "-c", module, *map(str, words), f"--checkpoint={tmp_path / 'checkpoint'}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (0, ""), ran.stderr
    assert ran.stderr.splitlines()[-1].startswith(f"mirror txn: {len(expected):,} rows in ")

    with serve(tmp_path / "broker", [tmp_path / "copy"], [Topic("txn", len(bounds))]) as broker:
        assert broker.offsets("txn") == bounds
        served = broker.consume_all("txn")
        assert broker.complaints() == []
    found = [(r.partition, r.offset, r.timestamp, r.key, r.value) for r in served]
    assert found == expected
