"""A copy of a replicated set is a set of one node, which becomes several again."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from tests.support.replicated import append, check_equal, check_in_sync, path_of, values

from kafkalog.checkpoints.broker import HIGH_WATERMARK, read_offset_checkpoint
from kafkalog.checkpoints.commit_state import STATE_FILE
from kafkalog.checkpoints.state_file import load_state
from kafkalog.checkpoints.topic_ids import is_changed_id, note_changed_ids
from kafkalog.errors import LogDirectoryError, NotEnoughReplicasError
from kafkalog.jobs.inspection.batches import verify_logs
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin import backup as backup_module
from kafkalog.streaming.admin.backup import FolderCopy, back_up

if TYPE_CHECKING:
    from pathlib import Path

ROWS = [f"a{n}" for n in range(12)]


@pytest.fixture
def nodes(tmp_path: Path) -> list[Path]:
    found = [tmp_path / name for name in "abc"]
    append(found, 0, ROWS)
    append(found, 1, ["b"])
    append(found, 0, ["u"], topic="u")
    return found


@pytest.fixture
def copy(nodes: list[Path], tmp_path: Path) -> Path:
    done = back_up([path_of(nodes)], str(tmp_path / "copy"))
    assert done.at_one_moment
    assert sum(each.partitions for each in done.directories) == 4
    return tmp_path / "copy"


def test_it_is_read_and_written_as_a_set_of_one_node(copy: Path) -> None:
    state = load_state(copy)
    assert state is not None
    assert not state.is_replicated
    assert values([copy]) == sorted([*ROWS, "b"])
    assert values([copy], "u") == ["u"]
    assert sorted(read_offset_checkpoint(copy, HIGH_WATERMARK)) == [
        TopicPartition(*key) for key in [("t", 0), ("t", 1), ("u", 0), ("u", 1)]
    ]
    assert not any(row["problem"] for row in verify_logs([str(copy)]))
    append([copy], 1, ["b"], **{"min.insync.replicas": "1"})  # again is once
    append([copy], 2, ["c"], **{"min.insync.replicas": "1"})
    assert values([copy]) == sorted([*ROWS, "b", "c"])


def test_it_becomes_the_first_of_several_nodes(copy: Path, tmp_path: Path) -> None:
    nodes = [copy, tmp_path / "d", tmp_path / "e"]
    append(nodes, 2, ["c"], **{"min.insync.replicas": "1"})
    append(nodes, 3, ["d"])
    check_in_sync(nodes)
    check_equal(nodes)
    assert values(nodes) == sorted([*ROWS, "b", "c", "d"])


def test_one_node_may_be_away(nodes: list[Path], tmp_path: Path) -> None:
    nodes[0].rename(tmp_path / "away")
    back_up([path_of(nodes)], str(tmp_path / "copy"))
    assert values([tmp_path / "copy"]) == sorted([*ROWS, "b"])


def test_a_partition_without_a_leader_is_no_part_of_a_copy(
    nodes: list[Path], tmp_path: Path
) -> None:
    alone = {"replication.factor": "1", "min.insync.replicas": "1", "numPartitions": "3"}
    append(nodes, 0, ["v"], topic="v", **alone)
    nodes[0].rename(tmp_path / "away")
    with pytest.raises(LogDirectoryError, match=r"v-\d has no replica in sync that is there"):
        back_up([path_of(nodes)], str(tmp_path / "copy"))
    assert not (tmp_path / "copy" / STATE_FILE).exists()


def test_writers_and_leaders_that_change_meanwhile_do_no_harm(
    nodes: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, version = FolderCopy.bring_up_to_date, iter(range(2, 9))
    monkeypatch.setattr(backup_module, "_SMALL_BYTES", 1)

    def write_meanwhile(self: FolderCopy, sizes: object = None) -> int:
        if sizes is not None:
            number = next(version, 9)  # again is once
            write = threading.Thread(target=append, args=(nodes, number, [f"c{number}"]))
            write.start()
            write.join()
        return real(self, sizes)  # type: ignore[arg-type]

    monkeypatch.setattr(FolderCopy, "bring_up_to_date", write_meanwhile)
    back_up([path_of(nodes)], str(tmp_path / "copy"))
    monkeypatch.undo()
    assert next(version, None) is None
    found = values([tmp_path / "copy"])
    assert found == sorted([*ROWS, "b", *(f"c{n}" for n in range(2, 10))])
    assert found == values(nodes)


def test_what_is_chosen_and_gone_fails_the_copy(
    nodes: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = FolderCopy.bring_up_to_date

    def lose(self: FolderCopy, sizes: object = None) -> int:
        done = real(self, sizes)  # type: ignore[arg-type]
        if nodes[1].exists():
            nodes[1].rename(tmp_path / "away")
        return done

    monkeypatch.setattr(FolderCopy, "bring_up_to_date", lose)
    with pytest.raises((LogDirectoryError, OSError)):
        back_up([path_of(nodes)], str(tmp_path / "copy"))
    monkeypatch.undo()
    assert not (tmp_path / "copy" / STATE_FILE).exists()


def test_a_copy_whose_last_pass_was_without_the_locks_is_none(
    nodes: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = FolderCopy.bring_up_to_date

    def lose_locks(self: FolderCopy, sizes: object = None) -> int:
        for node in nodes if sizes is None else ():
            (node / ".lock").unlink()
            (node / ".lock").touch()
        return real(self, sizes)  # type: ignore[arg-type]

    monkeypatch.setattr(FolderCopy, "bring_up_to_date", lose_locks)
    with pytest.raises(NotEnoughReplicasError, match="deleted or replaced"):
        back_up([path_of(nodes)], str(tmp_path / "copy"))
    assert not (tmp_path / "copy" / STATE_FILE).exists()


def test_a_query_continues_on_the_copy_of_topics_that_got_other_ids(
    nodes: list[Path], tmp_path: Path
) -> None:
    """What each node has noted counts, in its order: a node may have been away for a change."""
    note_changed_ids(nodes[1], [("t", "b", "c")])
    note_changed_ids(nodes[0], [("t", "a", "b"), ("t", "b", "c")])
    note_changed_ids(nodes[2], [("t", "a", "b"), ("u", "x", "y")])
    back_up([path_of(nodes)], str(tmp_path / "copy"))
    assert is_changed_id(tmp_path / "copy", "t", "a", "c")
    assert is_changed_id(tmp_path / "copy", "u", "x", "y")
    assert not is_changed_id(tmp_path / "copy", "t", "c", "a")
