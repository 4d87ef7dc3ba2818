"""A topic that has lost the folder of a partition: nobody goes on as if there were fewer."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from tests.support.sinking import Writer, rows, values_of
from tests.support.states import ends_of

import kafkalog
from kafkalog.checkpoints.broker import PARTITION_METADATA
from kafkalog.checkpoints.intent import INTENT_FILE
from kafkalog.checkpoints.state_file import load_state
from kafkalog.errors import DataLossError, LogDirectoryError
from kafkalog.jobs.inspection.batches import verify_logs
from kafkalog.streaming.admin.broker.handover import hand_over, take_over
from kafkalog.streaming.admin.recovery import recover
from kafkalog.streaming.store.nodes import Node

if TYPE_CHECKING:
    from pathlib import Path

NUMBERS = [0, 1, 2]


def write(writer: Writer, batch_id: int) -> None:
    writer.write(batch_id, rows([f"{batch_id}/{p}" for p in NUMBERS], partitions=NUMBERS))


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    """Give a query that has written a batch to three partitions in two directories."""
    made = Writer(tmp_path / "a", tmp_path / "b", topic="t", numPartitions="3")
    write(made, 0)
    return made


def folder_of(writer: Writer, number: int) -> Path:
    (found,) = (path for each in writer.directories for path in each.glob(f"t-{number}"))
    return found


def paths_of(writer: Writer) -> list[str]:
    return [str(folder) for folder in writer.directories]


@pytest.mark.parametrize("number", NUMBERS)
def test_nothing_is_written_to_a_topic_that_lacks_a_partition(
    writer: Writer, tmp_path: Path, number: int
) -> None:
    lost = folder_of(writer, number)
    lost.rename(tmp_path / "elsewhere")
    for other in NUMBERS:
        runs = writer.stage(1, rows(["x"], partitions=[other]))
        with pytest.raises(LogDirectoryError, match=rf"t-{number} up to offset 1"):
            writer.commit(1, runs)
    (tmp_path / "elsewhere").rename(lost)
    write(writer, 1)
    assert values_of(writer.directories, "t") == {p: [f"0/{p}", f"1/{p}"] for p in NUMBERS}


def test_a_topic_that_is_gone_as_a_whole_was_deleted(writer: Writer) -> None:
    for number in NUMBERS:
        shutil.rmtree(folder_of(writer, number))
    write(writer, 1)
    assert values_of(writer.directories, "t") == {p: [f"1/{p}"] for p in NUMBERS}


def test_a_topic_that_is_gone_as_a_whole_ends_a_commit_that_was_killed_after_its_rename(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as killed:
        killed.setattr(Node, "withdraw", lambda *_, **__: None)
        write(writer, 1)
    assert all((folder / INTENT_FILE).exists() for folder in writer.directories)
    for number in NUMBERS:
        shutil.rmtree(folder_of(writer, number))
    write(writer, 2)
    assert values_of(writer.directories, "t") == {p: [f"2/{p}"] for p in NUMBERS}


def test_recovery_handover_and_verification_tell_what_is_lost(writer: Writer) -> None:
    shutil.rmtree(folder_of(writer, 2))
    for act in (recover, hand_over):
        (problem,) = act(paths_of(writer)).problems
        assert "t-2 up to offset 1" in problem
    problems = [row for row in verify_logs(paths_of(writer)) if row["problem"]]
    assert [(row["topic"], row["partition"]) for row in problems] == [("t", 2)]
    # Of some directories of a set nobody can tell what is lost, and that is a problem as well.
    problems = [row for row in verify_logs(paths_of(writer)[1:]) if row["problem"]]
    assert ["1 of the 2 log directories" in row["problem"] for row in problems] == [True]


def test_a_takeover_believes_that_the_broker_has_removed_it(
    writer: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.rmtree(folder_of(writer, 2))
    assert take_over(paths_of(writer)).problems == []
    assert "t-2, committed up to offset 1" in caplog.text
    writer.write(1, rows(["x"], partitions=[1]))
    assert values_of(writer.directories, "t") == {0: ["0/0"], 1: ["0/1", "x"]}
    state = load_state(writer.directories[0])
    assert state is not None
    assert [ends_of(topic) for topic in state.topics.values()] == [{0: 1, 1: 2}]


def test_a_folder_without_its_topic_id_is_reported_and_cut_nowhere(writer: Writer) -> None:
    lost = folder_of(writer, 1)
    log = lost / f"{0:020d}.log"
    (lost / PARTITION_METADATA).unlink()
    whole = log.read_bytes()
    log.write_bytes(bytes(len(whole)))
    for act in (recover, hand_over, take_over):
        problems = act(paths_of(writer)).problems
        assert any("t-1" in problem and "committed" in problem for problem in problems)
        assert log.read_bytes() == bytes(len(whole))
    log.write_bytes(whole)
    assert take_over(paths_of(writer)).problems == []


def test_a_loss_is_told_beside_a_damaged_log_of_the_same_topic(writer: Writer) -> None:
    shutil.rmtree(folder_of(writer, 2))
    for number in (0, 1):
        (folder_of(writer, number) / f"{0:020d}.log").write_bytes(b"")
    problems = recover(paths_of(writer)).problems
    assert any("t-2 up to offset 1" in problem for problem in problems)


def test_a_directory_that_leads_to_another_one_of_the_set_is_missing(writer: Writer) -> None:
    """A wrong link or mount is a missing disk, and not one that the user left out on purpose."""
    first, second = writer.directories
    away = second.rename(second.with_name("away"))
    second.symlink_to(first)
    with pytest.raises(DataLossError, match=f"{second} leads to one that is given already"):
        kafkalog.read(paths_of(writer), "t")
    with pytest.raises(LogDirectoryError, match="given twice"):
        write(writer, 1)
    second.unlink()
    away.rename(second)
    linked = [folder.with_name(f"to-{folder.name}") for folder in writer.directories]
    for link, folder in zip(linked, writer.directories, strict=True):
        link.symlink_to(folder)
    assert kafkalog.read(linked, "t").read_all().num_rows == len(NUMBERS)
