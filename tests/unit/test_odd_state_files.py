"""State files that are damaged, older than the rest, or gone: each was once taken at its word.

``tests/fuzz/odd_files.py`` looks for more of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.logs import Row, batch_bytes, write_checkpoint, write_segment
from tests.support.sinking import Writer, rows
from tests.support.transactions import BrokerLog

import kafkalog
from kafkalog.checkpoints.broker import (
    HIGH_WATERMARK,
    LEADER_EPOCHS,
    LOG_START_OFFSET,
    PARTITION_METADATA,
    write_topic_id,
)
from kafkalog.checkpoints.state_file import load_state
from kafkalog.errors import CheckpointError, LogDirectoryError
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


def test_a_takeover_leaves_a_topic_alone_of_which_a_partition_has_another_id(
    tmp_path: Path,
) -> None:
    writer = Writer(tmp_path, topic="t", numPartitions="2")
    writer.write(0, rows(["a", "b"], partitions=[0, 1]))
    before = load_state(tmp_path)
    write_topic_id(tmp_path / "t-1", "hpYgM1pPTfKkq0oFhDYc0w")
    (problem,) = take_over([str(tmp_path)]).problems
    assert "carry different topic ids" in problem
    assert f"{PARTITION_METADATA} was damaged: restore it" in problem
    assert load_state(tmp_path) == before
    with pytest.raises(LogDirectoryError, match="carry different topic ids"):
        writer.write(1, rows(["c"]))


def test_an_index_of_aborted_transactions_that_is_empty_does_not_say_that_nothing_was(
    tmp_path: Path,
) -> None:
    (tmp_path / "t-0").mkdir()
    log = BrokerLog(tmp_path / "t-0")
    log.play((("send", 1), ("abort", 1), ("roll", 0), ("plain", 2)))
    write_checkpoint(tmp_path, HIGH_WATERMARK, {"t-0": log.next_offset})
    for index in (tmp_path / "t-0").glob("*.txnindex"):
        index.write_bytes(b"")
    options = {"kafka.isolation.level": "read_committed"}
    found = kafkalog.read(tmp_path, "t", columns=("offset",), options=options).read_all()
    assert set(found.column("offset").to_pylist()) == log.visible


def test_errors_about_the_files_of_a_partition_say_what_to_do(tmp_path: Path) -> None:
    Writer(tmp_path, topic="t").write(0, rows(["a"]))
    for name in (PARTITION_METADATA, LEADER_EPOCHS):
        path = tmp_path / "t-0" / name
        before = path.read_bytes()
        path.write_bytes(b"7\n")
        with pytest.raises(CheckpointError, match=rf"{name}: .*\. Restore it"):
            Writer(tmp_path, topic="t").write(1, rows(["b"]))
        path.write_bytes(before)
