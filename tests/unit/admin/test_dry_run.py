"""A dry run changes nothing, and says what a real run then does."""

from __future__ import annotations

import dataclasses
import logging
import shutil
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.killing import count_calls, run_and_kill
from tests.support.logs import Row, append_batch, batch_bytes, write_checkpoint
from tests.support.sinking import Writer, rows
from tests.support.transactions import producer_batch

from kafkalog.checkpoints.broker import HIGH_WATERMARK, LOCK, LOG_START_OFFSET, META_PROPERTIES
from kafkalog.checkpoints.commit_state import LOCK_FILE
from kafkalog.errors import LockTimeoutError, LogDirectoryError
from kafkalog.streaming.admin.broker.handover import hand_over, take_over
from kafkalog.streaming.admin.recovery import recover

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kafkalog.streaming.admin.recovery import RecoveryReport

TOPIC_ID = "kafkalogTopicIdNumberA"

give = partial(hand_over, topic_ids={"t": TOPIC_ID}, cluster_id="c", node_id=1)
abort = partial(take_over, aborts_open=True, abort_producers=[7])
reset = partial(recover, reset_log_start=True)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Give a log directory with two batches in two partitions."""
    writer = Writer(tmp_path / "log", topic="t", numPartitions="2")
    for number in range(2):
        writer.write(number, rows([f"{number}a", f"{number}b"], partitions=[0, 1]))
    return tmp_path / "log"


def tree(log: Path) -> dict[str, tuple[int, int, bytes]]:
    return {
        str(path.relative_to(log)): (
            path.stat().st_ino,
            path.stat().st_mtime_ns,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in [log, *log.rglob("*")]
    }


def check(
    log: Path, act: Callable[..., RecoveryReport], caplog: pytest.LogCaptureFixture
) -> RecoveryReport:
    """Run it dry, and then really; give what was said."""
    before = tree(log)
    with caplog.at_level(logging.WARNING, "kafkalog.sink"):
        caplog.clear()
        said, warned = plain(act([str(log)], dry_run=True)), warnings(caplog)
        assert tree(log) == before
        caplog.clear()
        done = act([str(log)])
    assert plain(done) == said
    assert warnings(caplog) == warned
    return done


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == "kafkalog.sink"]


def plain(done: RecoveryReport) -> dict[str, Any]:
    fields = dataclasses.asdict(done)
    del fields["set_id"]  # a takeover may begin a set
    return fields


@pytest.mark.parametrize("act", [recover, give, take_over, abort])
def test_a_set_in_order(
    log: Path, act: Callable[..., RecoveryReport], caplog: pytest.LogCaptureFixture
) -> None:
    assert check(log, act, caplog).problems == []


@pytest.mark.long
@pytest.mark.parametrize("act", [recover, give, take_over])
def test_an_unfinished_commit_wherever_it_was_cut_off(
    log: Path, act: Callable[..., RecoveryReport], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def write(folder: Path) -> None:
        writer = Writer(folder, topic="t", segment__bytes="200")
        writer.write(2, rows(["2a", "2b"], topics=["t", "new"], partitions=[0, 0]))

    shutil.copytree(log, tmp_path / "counted")
    calls = count_calls(lambda: write(tmp_path / "counted"))
    rolled_back = 0
    for call in range(0, calls, 4):
        folder = tmp_path / "copy"
        shutil.copytree(log, folder)
        assert run_and_kill(lambda folder=folder: write(folder), call, half=True)
        rolled_back += len(check(folder, act, caplog).rolled_back)
        shutil.rmtree(folder)
    assert rolled_back > 3


@pytest.mark.parametrize("act", [recover, reset, give, take_over, abort])
def test_what_a_broker_that_was_killed_has_left(
    log: Path, act: Callable[..., RecoveryReport], caplog: pytest.LogCaptureFixture
) -> None:
    (log / META_PROPERTIES).write_text("version=1\n")
    first, second = (log / f"t-{number}" / f"{0:020d}.log" for number in (0, 1))
    append_batch(first, batch_bytes(2, [Row(b"broker")]))
    append_batch(first, batch_bytes(3, [Row(b"torn")])[:40])
    append_batch(second, producer_batch(2, 1, 7))
    first.with_suffix(".index").write_bytes(b"torn....")
    write_checkpoint(log, HIGH_WATERMARK, {"t-0": 5, "t-1": 2})
    done = check(log, act, caplog)
    assert len(done.aborted) == (1 if act is abort else 0)


@pytest.mark.parametrize("act", [recover, reset, give, take_over])
def test_torn_indexes_a_stale_log_start_and_what_is_lost(
    log: Path, act: Callable[..., RecoveryReport], caplog: pytest.LogCaptureFixture
) -> None:
    (log / "t-0" / f"{0:020d}.timeindex").write_bytes(b"\1" * 12)
    write_checkpoint(log, LOG_START_OFFSET, {"t-0": 500})
    shutil.rmtree(log / "t-1")
    check(log, act, caplog)


def test_a_brokers_own_directory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "log" / "t-0").mkdir(parents=True)
    (tmp_path / "log" / META_PROPERTIES).write_text("version=1\n")
    (tmp_path / "log" / "t-0" / f"{0:020d}.log").write_bytes(batch_bytes(0, [Row(b"broker")]))
    done = check(tmp_path / "log", take_over, caplog)
    assert done.written == ["t-0 is committed up to offset 1, before up to 0"]


@pytest.mark.parametrize(
    ("name", "kind"), [(LOCK, LogDirectoryError), (LOCK_FILE, LockTimeoutError)]
)
def test_a_directory_in_use_is_refused(log: Path, name: str, kind: type[Exception]) -> None:
    holder = """
import fcntl, os, sys
fcntl.lockf(os.open(sys.argv[1], os.O_RDWR | os.O_CREAT), fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(log / name)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"held\n"
        for act in (recover, give, take_over):
            with pytest.raises(kind):
                act([str(log)], dry_run=True)
        process.stdin.close()
