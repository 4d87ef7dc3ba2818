"""Members in processes of their own, killed at any moment: each row of the input is there once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from tests.support.consuming import consumer, keep_groups_small, output, positions, table, written

from kafkalog.errors import KafkaLogError
from kafkalog.streaming.api import append
from kafkalog.streaming.groups.group_commits import GroupCommits
from kafkalog.streaming.groups.rebalance import GroupRecord
from kafkalog.streaming.store.locks import DirectoryLocks
from kafkalog.streaming.store.policy import SetPolicy

if TYPE_CHECKING:
    from pathlib import Path

    from kafkalog import Consumer

MEMBER = """
import sys
from contextlib import suppress
import kafkalog
from kafkalog.errors import FencedMemberError
folder = sys.argv[1]
options = {
    "startingOffsets": "earliest",
    "kafka.session.timeout.ms": 1500,
    "kafka.heartbeat.interval.ms": 100,
    "splitBytes": 1,
}
while True:
    with kafkalog.Consumer(folder, "g", "in", options=options) as reader, suppress(
        FencedMemberError
    ):
        print("joins", flush=True)
        while True:
            rows = reader.poll(0.5)
            if rows is not None:
                kafkalog.append(folder, "out", rows.select(["value"]), consumer=reader)
                print(rows.num_rows, flush=True)
"""


def start(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", MEMBER, str(folder)], stdout=subprocess.PIPE, text=True
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    keep_groups_small(monkeypatch)
    where = tmp_path / "logs"
    for step in range(20):
        append(where, "in", table(range(40 * step, 40 * step + 40)), options={"numPartitions": 4})
    GroupCommits([where], "another", SetPolicy()).decide(GroupRecord(), GroupRecord(1))
    return where


def copy_rest(folder: Path, reader: Consumer) -> None:
    """Copy all that is left, until the group has read everything."""
    while sum(positions(folder).values()) < 800:
        rows = reader.poll(0.2)
        if rows is not None:
            append(folder, "out", output(rows), consumer=reader)


def hurt(member: subprocess.Popen[str], how: signal.Signals, folder: Path) -> None:
    """Kill a member, or stop it while it does not commit: it would keep the locks."""
    os.kill(member.pid, how)
    while how == signal.SIGSTOP:
        with suppress(KafkaLogError), DirectoryLocks([folder], holder="a test", timeout_ms=0):
            return
        os.kill(member.pid, signal.SIGCONT)
        time.sleep(0.01)
        os.kill(member.pid, how)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_partitions_of_a_member_that_is_gone_move_and_each_row_is_there_once(
    folder: Path, how: signal.Signals
) -> None:
    members = [start(folder) for _ in range(2)]
    try:
        for each in members:
            assert each.stdout is not None
            while each.stdout.readline().strip() == "joins":
                pass
        hurt(members[0], how, folder)
        with consumer(folder, options={"kafka.heartbeat.interval.ms": 100}) as reader:
            copy_rest(folder, reader)
        if how == signal.SIGSTOP:
            append(folder, "in", table(range(800, 840)))
            os.kill(members[0].pid, signal.SIGCONT)
            with consumer(folder) as reader:
                while sum(positions(folder).values()) < 840:
                    rows = reader.poll(0.2)
                    if rows is not None:
                        append(folder, "out", output(rows), consumer=reader)
    finally:
        for each in members:
            each.kill()
            each.wait()
            assert each.stdout is not None
            each.stdout.close()
    assert written(folder) == list(range(sum(positions(folder).values())))
