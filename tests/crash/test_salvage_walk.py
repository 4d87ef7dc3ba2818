"""Cut off anywhere how damage is dropped or cut off: run again, it does that and loses nothing."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest
from tests.support.killing import count_calls, run_and_kill
from tests.support.log_files import flip
from tests.support.sinking import Writer, rows

from kafkalog.checkpoints.commit_state import UNFINISHED_FOLDER
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.recovery import recover
from kafkalog.streaming.admin.salvage import KEPT_PREFIX, salvage
from kafkalog.streaming.api import read
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.log.read.verification import check_segment
from kafkalog.streaming.log.segment import LogSegment
from kafkalog.streaming.log.segments import list_base_offsets

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.crash

T0 = TopicPartition("t", 0)
BATCHES = 6
SEVERAL = {"segment__bytes": "250"}
"""Three batches to a segment."""
STEP = int(os.environ.get("KAFKALOG_KILL_STRIDE", "11"))
"""Of so many calls one is killed at; which ones, differs from case to case."""


def values(folder: Path, **options: str) -> list[str]:
    at_once = {"fetchOffset.retryIntervalMs": "0"}
    found = read(str(folder), "t", options=options | at_once).read_all()
    return [value.decode() for value in found["value"].to_pylist()]


def check(folder: Path, expected: list[str]) -> None:
    assert values(folder) == expected
    with PartitionLog(folder / "t-0", T0) as log:
        bases = [segment.base_offset for segment in log.segments]
        for segment, follower in zip(log.segments, [*bases[1:], None], strict=True):
            assert check_segment(segment, follower).problems == []
    assert recover([str(folder)]).problems == []


@pytest.mark.parametrize("settings", [{}, SEVERAL], ids=["one segment", "several"])
@pytest.mark.parametrize("choice", ["drop", "cut"])
@pytest.mark.parametrize("number", [1, BATCHES - 1])
def test_a_salvage_that_is_cut_off_is_run_again(
    tmp_path: Path, settings: dict[str, str], choice: str, number: int
) -> None:
    before = tmp_path / "before"
    writer = Writer(before, topic="t", **settings)
    for each in range(BATCHES):
        writer.write(each, rows([str(each)]))
    base = max(base for base in list_base_offsets(before / "t-0") if base <= number)
    with LogSegment(before / "t-0", base) as segment:
        position = [header.position for header in segment.headers(0)][number - base]
        path = segment.path
    flip(path, position + 65)
    damaged = path.read_bytes()
    left = list(range(number)) + ([] if choice == "cut" else list(range(number + 1, BATCHES)))

    def act(folder: Path) -> None:
        salvage([str(folder)], **{choice: [f"t-0@{number}"]})

    shutil.copytree(before, tmp_path / "counted")
    calls = count_calls(lambda: act(tmp_path / "counted"))
    assert calls > 20
    for call in range(number % STEP, calls, STEP):
        folder = tmp_path / "log"
        shutil.copytree(before, folder)
        assert run_and_kill(lambda folder=folder: act(folder), call)
        left_log = folder / "t-0" / path.name  # not there between two renames of the swap
        if choice == "drop" and left_log.exists() and left_log.read_bytes() == damaged:
            began = list(folder.glob(KEPT_PREFIX + "*"))
            assert not began or (folder / UNFINISHED_FOLDER).is_dir()
        # What is sound below the damage can be read at any moment.
        assert values(folder, onCorruptRecord="skip", failOnDataLoss="false")[:number] == [
            str(each) for each in range(number)
        ]
        began = (folder / UNFINISHED_FOLDER / "salvage").exists()
        problems = recover([str(folder)]).problems
        if began:  # nobody but the salvage lets a broker in again
            assert (folder / UNFINISHED_FOLDER).is_dir()
            assert f"--{choice} t-0@{number}" in problems[0]
        act(folder)
        kept = [found.read_bytes() for found in folder.glob(KEPT_PREFIX + "*")]
        assert damaged in kept
        assert not (folder / UNFINISHED_FOLDER).exists()
        check(folder, [str(each) for each in left])
        Writer(folder, topic="t", **settings).write(BATCHES, rows(["new"]))
        check(folder, [*(str(each) for each in left), "new"])
        shutil.rmtree(folder)
