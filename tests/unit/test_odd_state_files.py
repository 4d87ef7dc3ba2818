"""State files that are damaged, older than the rest, or gone: each was once taken at its word.

``tests/fuzz/odd_files.py`` looks for more of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.logs import Row, batch_bytes, write_checkpoint, write_segment
from tests.support.sinking import Writer, rows

import kafkalog
from kafkalog.checkpoints.broker import (
    HIGH_WATERMARK,
    LEADER_EPOCHS,
    LOG_START_OFFSET,
)
from kafkalog.errors import CheckpointError
from kafkalog.model import TopicPartition
from kafkalog.streaming.operate.handover import hand_over, take_over
from kafkalog.streaming.operate.retain import delete_records

if TYPE_CHECKING:
    from pathlib import Path


def _values(log: Path) -> list[str]:
    found = kafkalog.read(log, "t", columns=("value",), strings=("value",)).read_all()
    return [str(value) for value in found.column("value").to_pylist()]


@pytest.mark.parametrize("becomes", ["lost", "damaged", "renamed"])
def test_deleted_records_stay_deleted_though_the_file_of_log_starts_is_lost(
    tmp_path: Path, becomes: str
) -> None:
    Writer(tmp_path, topic="t").write(0, rows(["a", "b", "c"]))
    delete_records([str(tmp_path)], {TopicPartition("t", 0): 2})
    (tmp_path / LOG_START_OFFSET).unlink()
    if becomes == "damaged":
        (tmp_path / LOG_START_OFFSET).write_text("0\n1\n")
        with pytest.raises(CheckpointError, match=LOG_START_OFFSET):
            take_over([str(tmp_path)])
        (tmp_path / LOG_START_OFFSET).unlink()
    elif becomes == "renamed":
        hand_over([str(tmp_path)], topic_ids={"t": "hpYgM1pPTfKkq0oFhDYc0w"})
    take_over([str(tmp_path)])
    assert _values(tmp_path) == ["c"]


def test_what_a_broker_has_not_committed_stays_hidden_though_its_checkpoint_is_damaged(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "t-0"
    folder.mkdir()
    write_segment(folder, 0, batch_bytes(0, [Row(b"a")]) + batch_bytes(1, [Row(b"b")]))
    write_checkpoint(tmp_path, HIGH_WATERMARK, {"t-0": 1})
    assert _values(tmp_path) == ["a"]
    (tmp_path / HIGH_WATERMARK).write_text("0\n")
    with pytest.raises(CheckpointError, match=f"{HIGH_WATERMARK}.*Restore it; or remove it"):
        _values(tmp_path)


@pytest.mark.parametrize("line", ["t -1 5", "../t 0 5", "t/u 0 5", f"{'t' * 250} 0 5"])
def test_a_name_that_no_partition_can_have_is_told_with_its_file(tmp_path: Path, line: str) -> None:
    Writer(tmp_path, topic="t").write(0, rows(["a"]))
    (tmp_path / HIGH_WATERMARK).write_text(f"0\n1\n{line}\n")
    (problem,) = hand_over([str(tmp_path)]).problems
    assert problem.startswith(f"{tmp_path / HIGH_WATERMARK}: ")
    assert "Restore it; or remove it" in problem


def test_a_partition_whose_file_is_damaged_is_not_said_to_lack_its_folder(tmp_path: Path) -> None:
    Writer(tmp_path, topic="t", numPartitions="2").write(0, rows(["a", "b"], partitions=[0, 1]))
    (tmp_path / "t-0" / LEADER_EPOCHS).write_text("1\n0\n")
    (problem,) = hand_over([str(tmp_path)]).problems
    assert problem.startswith(f"{tmp_path / 't-0' / LEADER_EPOCHS}: ")
