"""What a folder says of its partition beside its log, lost or damaged, is written again."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from tests.support.killing import count_calls, run_and_kill
from tests.support.sinking import Writer, rows, values_of
from typer.testing import CliRunner

from kafkalog.checkpoints.broker import (
    LEADER_EPOCHS,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINT,
    LeaderEpoch,
    read_leader_epochs,
    read_topic_id,
    write_leader_epochs,
)
from kafkalog.errors import CheckpointError
from kafkalog.files.system import system
from kafkalog.jobs.cli.app import app
from kafkalog.streaming.admin.broker.handover import take_over
from kafkalog.streaming.admin.recovery import recover

if TYPE_CHECKING:
    from pathlib import Path

DAMAGED = {"missing": None, "empty": b"", "zeros": bytes(40), "torn": b"version: 0\n"}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Give a topic of two partitions with two batches."""
    for number in range(2):
        write(tmp_path / "log", number)
    return tmp_path / "log"


def write(log: Path, number: int, **options: str) -> None:
    system.memory.clear()  # as another process does
    writer = Writer(log, topic="t", numPartitions="2", **options)
    writer.write(number, rows([f"{number}a", f"{number}b"], partitions=[0, 1]))


def damage(path: Path, data: bytes | None) -> None:
    path.unlink()
    if data is not None:
        path.write_bytes(data)


def verify(log: Path) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["verify", str(log)])
    return done.exit_code, done.output


@pytest.mark.parametrize("how", DAMAGED)
def test_a_topic_id_that_a_folder_has_lost_is_named_and_written_again(log: Path, how: str) -> None:
    topic_id = read_topic_id(log / "t-1")
    damage(log / "t-1" / PARTITION_METADATA, DAMAGED[how])
    code, said = verify(log)
    assert (code, str(topic_id) in said, PARTITION_METADATA in said) == (1, True, True)
    done = recover([str(log)])
    assert done.problems == []
    assert any(f"the topic id {topic_id}, again" in line for line in done.written)
    assert read_topic_id(log / "t-1") == topic_id
    assert verify(log)[0] == 0
    write(log, 2)
    assert values_of([log], "t") == {0: ["0a", "1a", "2a"], 1: ["0b", "1b", "2b"]}


def test_a_folder_in_the_place_of_a_topic_id_is_named_and_removed(log: Path) -> None:
    path = log / "t-1" / PARTITION_METADATA
    path.unlink()
    path.mkdir()
    said = CliRunner().invoke(app, ["recover", str(log)])
    assert said.exit_code == 2
    assert f"{path}: a folder is in the place of this file; remove it" in said.output
    path.rmdir()
    assert CliRunner().invoke(app, ["recover", str(log)]).exit_code == 0
    write(log, 2)
    assert values_of([log], "t") == {0: ["0a", "1a", "2a"], 1: ["0b", "1b", "2b"]}


def test_a_recovery_point_that_stops_the_next_writer_is_named_and_can_be_removed(
    log: Path,
) -> None:
    (log / RECOVERY_POINT).write_text("x\n")
    code, said = verify(log)
    assert (code, "Restore it; or remove it" in said) == (1, True)
    with pytest.raises(CheckpointError, match="Restore it; or remove it"):
        write(log, 2)
    (log / RECOVERY_POINT).unlink()
    write(log, 2)
    assert verify(log)[0] == 0
    assert values_of([log], "t") == {0: ["0a", "1a", "2a"], 1: ["0b", "1b", "2b"]}


def test_a_folder_whose_log_lacks_what_is_committed_is_not_given_the_id(log: Path) -> None:
    """It may be another topic's folder that somebody has put there."""
    shutil.copytree(log / "t-1", log.parent / "older")
    write(log, 2)
    shutil.rmtree(log / "t-1")
    shutil.copytree(log.parent / "older", log / "t-1")
    (log / "t-1" / PARTITION_METADATA).unlink()
    assert recover([str(log)]).problems != []
    assert read_topic_id(log / "t-1") is None


@pytest.mark.parametrize("how", DAMAGED)
def test_a_takeover_goes_by_the_other_folders_of_a_topic_that_it_does_not_know(
    log: Path, how: str
) -> None:
    topic_id = read_topic_id(log / "t-1")
    for path in log.glob("kafkalog.*"):
        path.unlink()
    (log / META_PROPERTIES).write_text("version=1\n")
    damage(log / "t-1" / PARTITION_METADATA, DAMAGED[how])
    assert take_over([str(log)]).problems == []
    assert read_topic_id(log / "t-1") == topic_id
    write(log, 0, allowBrokerDirectory="true")
    assert values_of([log], "t")[1] == ["0b", "1b", "0b"]


EPOCHS = {
    "zeros": bytes(40),
    "torn": b"0\n2\n0 0\n",
    "above the end": b"0\n2\n0 0\n7 999\n",
    "not ascending": b"0\n2\n5 0\n3 1\n",
}


@pytest.mark.parametrize("how", EPOCHS)
def test_leader_epochs_that_cannot_be_right_are_named_and_written_by_the_batches(
    log: Path, how: str
) -> None:
    write_leader_epochs(log / "t-0", [LeaderEpoch(0, 0), LeaderEpoch(3, 2)])
    write(log, 2)
    assert read_leader_epochs(log / "t-0") == [(0, 0), (3, 2)]
    (log / "t-0" / LEADER_EPOCHS).write_bytes(EPOCHS[how])
    code, said = verify(log)
    assert (code, LEADER_EPOCHS in said) == (1, True)
    done = recover([str(log)])
    assert done.problems == []
    assert any("leader epochs of t-0, by its batches" in line for line in done.written)
    assert read_leader_epochs(log / "t-0") == [(0, 0), (3, 2)]
    assert verify(log)[0] == 0
    write(log, 3)
    assert read_leader_epochs(log / "t-0") == [(0, 0), (3, 2)]


@pytest.mark.long
def test_a_recovery_of_these_files_that_is_cut_off_anywhere_is_run_again(
    log: Path, tmp_path: Path
) -> None:
    topic_id = read_topic_id(log / "t-1")
    (log / "t-1" / PARTITION_METADATA).unlink()
    (log / "t-0" / LEADER_EPOCHS).write_bytes(bytes(40))
    shutil.copytree(log, tmp_path / "counted")
    calls = count_calls(lambda: recover([str(tmp_path / "counted")]))
    for call in range(0, calls, 3):
        folder = tmp_path / "copy"
        shutil.copytree(log, folder)
        assert run_and_kill(lambda folder=folder: recover([str(folder)]), call, half=True)
        assert recover([str(folder)]).problems == []
        assert read_topic_id(folder / "t-1") == topic_id
        assert read_leader_epochs(folder / "t-0") == [(0, 0)]
        shutil.rmtree(folder)
