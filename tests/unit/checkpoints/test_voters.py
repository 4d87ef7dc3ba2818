"""Which nodes count, and whether they are enough to know what was decided."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kafkalog.checkpoints.commit_state import PREPARED_FILE, STATE_FILE, CommitState, NodeState
from kafkalog.checkpoints.intent import INTENT_FILE, Intent
from kafkalog.checkpoints.state_file import state_bytes
from kafkalog.checkpoints.voters import Voters, find_voters, require_voters
from kafkalog.errors import LogDirectoryError

if TYPE_CHECKING:
    from pathlib import Path

NODES = (NodeState(0, ("m0",)), NodeState(1, ("m1",)), NodeState(2, ("m2a", "m2b")))
MEMBERS = tuple(member for node in NODES for member in node.member_ids)
STATE = CommitState(5, "set", "", MEMBERS, commit_id="five", nodes=NODES, controller_epoch=3)


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    found = [tmp_path / member for member in MEMBERS]
    for folder in found:
        folder.mkdir()
        put(folder, STATE)
    return found


def put(folder: Path, state: CommitState, name: str = STATE_FILE) -> None:
    member = folder.name
    (folder / name).write_bytes(state_bytes(state.of_member(member)))


def voters_of(folders: list[Path]) -> Voters:
    found = find_voters(folders)
    assert found is not None
    return found


def test_all_nodes_are_found_in_whatever_order_they_are_named(folders: list[Path]) -> None:
    found = voters_of(folders[::-1])
    assert {node: [*members] for node, members in found.live.items()} == {
        0: ["m0"],
        1: ["m1"],
        2: ["m2a", "m2b"],
    }
    assert not found.missing
    found.check_majority()


def test_a_node_that_lacks_one_of_its_directories_is_missing(folders: list[Path]) -> None:
    found = voters_of(folders[:3])
    assert [*found.live] == [0, 1]
    assert "1 of its 2" in found.missing_text
    found.check_majority()


def test_a_damaged_state_makes_its_node_missing(folders: list[Path]) -> None:
    (folders[0] / STATE_FILE).write_bytes(b"no state")
    assert [*voters_of(folders).missing] == [0]


def test_fewer_than_a_majority_are_refused(folders: list[Path]) -> None:
    with pytest.raises(LogDirectoryError, match="1 of the 3 nodes"):
        voters_of(folders[:1]).check_majority()


def test_one_node_may_be_two_commits_behind_and_two_may_not(folders: list[Path]) -> None:
    put(folders[0], replace(STATE, sequence=7, commit_id="seven"))
    put(folders[1], replace(STATE, sequence=6, commit_id="six"))
    voters_of(folders).check_majority()
    put(folders[1], STATE)
    with pytest.raises(LogDirectoryError, match="restored from old copies"):
        voters_of(folders).check_majority()


def test_a_state_of_another_set_is_one_nodes_alone(folders: list[Path]) -> None:
    put(folders[0], replace(STATE, set_id="other"))
    found = voters_of(folders)
    assert [*found.live] == [1, 2]
    assert "belongs to set other" in found.missing[0]
    assert found.lost == {0: {"m0": folders[0]}}


def test_directories_of_two_sets_are_refused(folders: list[Path], tmp_path: Path) -> None:
    (tmp_path / "m9").mkdir()
    put(tmp_path / "m9", replace(STATE, set_id="other", member_ids=("m9",)))
    with pytest.raises(LogDirectoryError, match="different sets"):
        find_voters([*folders, tmp_path / "m9"])
    for folder in folders[:2]:
        put(folder, replace(STATE, set_id=folder.name))
    with pytest.raises(LogDirectoryError, match="different sets"):
        find_voters(folders)


def test_a_copy_beside_its_original_is_refused(folders: list[Path], tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / STATE_FILE).write_bytes((folders[0] / STATE_FILE).read_bytes())
    with pytest.raises(LogDirectoryError, match="the same member"):
        find_voters([*folders, copy])


def test_a_set_of_one_node_has_no_voters(tmp_path: Path) -> None:
    (tmp_path / STATE_FILE).write_bytes(
        state_bytes(replace(STATE, nodes=(), controller_epoch=0, member_id="m0"))
    )
    assert find_voters([tmp_path]) is None
    with pytest.raises(LogDirectoryError, match=f"^{re.escape(str(tmp_path))}: this is one node$"):
        require_voters([tmp_path], "this is one node")
    with pytest.raises(LogDirectoryError, match="went away while they were read: try again"):
        require_voters([tmp_path])


def prepare(folder: Path, epoch: int) -> None:
    put(folder, replace(STATE, sequence=6, commit_id="six", controller_epoch=epoch), PREPARED_FILE)


def test_what_is_prepared_may_be_in_place_on_a_node_that_is_missing(folders: list[Path]) -> None:
    prepare(folders[1], 3)
    voters_of(folders).check_known()
    with pytest.raises(LogDirectoryError, match="commit 6 of set set"):
        voters_of(folders[1:]).check_known()


def test_what_an_older_controller_has_prepared_is_passed_over(folders: list[Path]) -> None:
    prepare(folders[1], 2)
    voters_of(folders[1:]).check_known()
    prepare(folders[1], 3)
    intent = Intent(6, "set", "state", 0, (), "other", controller_epoch=4)
    (folders[2] / INTENT_FILE).write_bytes(intent.to_bytes())
    voters_of(folders[1:]).check_known()
