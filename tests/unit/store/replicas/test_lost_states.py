"""One node of three has lost a small file: the others know what it held, and it is rebuilt."""

from __future__ import annotations

import json
import logging
import os
import shutil
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support.consuming import keep_groups_small
from tests.support.replicated import (
    append,
    away,
    check_clean,
    check_equal,
    check_in_sync,
    newest_state,
    path_of,
    values,
    without_mount,
)
from typer.testing import CliRunner

import kafkalog
from kafkalog.checkpoints.broker import (
    CLEANER_OFFSET,
    HIGH_WATERMARK,
    LOCK,
    LOG_START_OFFSET,
    OFFSET_CHECKPOINTS,
    RECOVERY_POINT,
    write_checkpoint,
)
from kafkalog.checkpoints.commit_state import (
    LOCK_FILE,
    PREPARED_FILE,
    STAGED_PREFIX,
    STATE_FILE,
    UNFINISHED_FOLDER,
)
from kafkalog.checkpoints.intent import INTENT_FILE, Intent
from kafkalog.checkpoints.sealed_file import seal
from kafkalog.checkpoints.state_file import load_state, state_bytes
from kafkalog.errors import CheckpointError, LogDirectoryError, NotEnoughReplicasError
from kafkalog.files.paths import split_paths
from kafkalog.jobs.cli.app import app
from kafkalog.streaming.admin.nodes.voters import replace_node
from kafkalog.streaming.admin.recovery import recover
from kafkalog.streaming.store.replicas import open_nodes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ROWS = [f"row {n}" for n in range(24)]


@pytest.fixture
def nodes(tmp_path: Path) -> list[Path]:
    found = [tmp_path / name for name in "abc"]
    for version in range(3):
        append(found, version, ROWS[8 * version : 8 * version + 8])
    return found


def run_cli(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, words)
    return done.exit_code, done.output


def flip(path: Path, place: float) -> None:
    data = bytearray(path.read_bytes())
    data[int(len(data) * place)] ^= 4
    path.write_bytes(data)


def check_whole(nodes: list[Path], rows: list[str]) -> None:
    assert values(nodes) == sorted(rows)
    check_in_sync(nodes)
    check_equal(nodes)
    check_clean(nodes)


def foreign_state(node: Path) -> None:
    others = [node.parent / f"other-{name}" for name in "abc"]
    append(others, 0, ["of another set"], topic="q")
    shutil.copy(others[1] / STATE_FILE, node / STATE_FILE)


def foreign_intent(node: Path) -> None:
    intent = Intent(99, "f" * 32, "w", 0, (), commit_id="c", controller_epoch=9)
    (node / INTENT_FILE).write_bytes(intent.to_bytes())


def only_partitions(node: Path) -> None:
    for path in node.glob("kafkalog.*"):
        path.unlink()


LOST: dict[str, Callable[[Path], object]] = {
    "damaged": lambda node: flip(node / STATE_FILE, 0.6),
    "damaged head": lambda node: flip(node / STATE_FILE, 0.02),
    "empty": lambda node: (node / STATE_FILE).write_bytes(b""),
    "removed": lambda node: (node / STATE_FILE).unlink(),
    "all removed": only_partitions,
    "foreign": foreign_state,
    "intent damaged": lambda node: (node / INTENT_FILE).write_bytes(b"{"),
    "intent foreign": foreign_intent,
    "prepared damaged": lambda node: (node / PREPARED_FILE).write_bytes(b"{"),
    **{
        name: lambda node, name=name: (node / name).write_bytes(b"?\n")  # type: ignore[misc]
        for name in OFFSET_CHECKPOINTS
    },
}


@pytest.mark.parametrize("what", LOST)
def test_what_one_node_has_lost_comes_back_with_the_next_writes(
    what: str, nodes: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    LOST[what](nodes[len(what) % 3])
    assert values(nodes) == sorted(ROWS)
    for version in range(3, 6):
        append(nodes, version, [f"more {version}"])
    check_whole(nodes, [*ROWS, "more 3", "more 4", "more 5"])
    assert caplog.text.count("is rebuilt from the others") <= 1


@pytest.mark.parametrize("name", [RECOVERY_POINT, HIGH_WATERMARK, CLEANER_OFFSET])
def test_no_write_fails_of_a_checkpoint_that_one_node_has_lost(
    name: str, nodes: list[Path]
) -> None:
    for version, node in enumerate([0, 1, 2, 1], start=3):
        (nodes[node] / name).write_bytes(b"?\n")
        append(nodes, version, [f"more {version}"], topic="tu"[version % 2])
    for version in (7, 8):
        append(nodes, version, [f"more {version}"])
    check_in_sync(nodes)


def a_line_too_short(path: Path) -> None:
    """What a glance at the head of a file does not show."""
    path.write_bytes(b"0\n2\nt 0 8\nt1 8\n")


def above_the_log(path: Path) -> None:
    write_checkpoint(path, [("t", 0, 9912), ("t", 1, 9912)])


def a_pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def a_link(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/nonexistent/checkpoint")


BROKEN = [a_line_too_short, above_the_log, a_pipe, a_link]


@pytest.mark.parametrize("name", [HIGH_WATERMARK, LOG_START_OFFSET])
@pytest.mark.parametrize("broken", BROKEN)
def test_the_only_replica_is_read_and_written_by_what_the_nodes_have_decided(
    name: str, broken: Callable[[Path], None], tmp_path: Path
) -> None:
    """No other replica tells; the states of a majority do."""
    nodes = [tmp_path / each for each in "abc"]
    alone = {"replication.factor": "1", "min.insync.replicas": "1"}
    append(nodes, 0, ROWS, **alone)
    for number, node in enumerate(nodes, start=1):
        broken(node / name)
        assert len(values(nodes)) == len(ROWS) + number - 1
        append(nodes, number, ["more"], **alone)
    assert values(nodes) == sorted([*ROWS, *["more"] * len(nodes)])
    check_in_sync(nodes)


@pytest.mark.parametrize("name", [HIGH_WATERMARK, RECOVERY_POINT])
@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_checkpoint_beside_a_node_that_is_away_stops_nobody(
    name: str, broken: Callable[[Path], None], nodes: list[Path]
) -> None:
    away(nodes[2])
    broken(nodes[0] / name)
    for version in (3, 4, 5):
        append(nodes, version, [f"more {version}"])
    assert values(nodes) == sorted([*ROWS, "more 3", "more 4", "more 5"])
    if broken is not above_the_log:
        assert os.path.lexists(nodes[0] / f"{name}.lost")


@pytest.mark.parametrize("broken", [a_line_too_short, above_the_log])
def test_a_member_and_its_lag_go_by_what_the_nodes_have_decided(
    broken: Callable[[Path], None], nodes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_groups_small(monkeypatch)
    for node in nodes:
        broken(node / HIGH_WATERMARK)
    options = {"startingOffsets": "earliest"}
    with kafkalog.Consumer(path_of(nodes), "g", "t", options=options) as member:
        rows = 0
        while rows < len(ROWS):
            found = member.poll(60)
            assert found is not None
            rows += found.num_rows
        assert rows == len(ROWS)
        member.commit()
    code, out = run_cli("lag", path_of(nodes), "--group", "g", "--json")
    assert (code, {each["lag"] for each in map(json.loads, out.splitlines())}) == (0, {0})


def test_a_node_that_a_broker_has_is_passed_over_where_it_cannot_say_what_is_committed(
    nodes: list[Path],
) -> None:
    """A cluster knows better than the commit state how far it is; so another replica is asked."""
    for node in nodes:
        state = load_state(node)
        assert state is not None
        (node / STATE_FILE).write_bytes(state_bytes(replace(state, handed_to="cluster")))
    for node in nodes[:2]:
        a_line_too_short(node / HIGH_WATERMARK)
        assert values(nodes) == sorted(ROWS)
    a_line_too_short(nodes[2] / HIGH_WATERMARK)
    with pytest.raises(CheckpointError, match=f"{HIGH_WATERMARK}: line 4 is"):
        values(nodes)


def test_verify_names_the_checkpoint_that_one_node_has_lost(nodes: list[Path]) -> None:
    a_line_too_short(nodes[2] / HIGH_WATERMARK)
    code, out = run_cli("verify", path_of(nodes))
    assert code == 1
    assert f"{nodes[2] / HIGH_WATERMARK}: line 4 is" in out
    assert not recover(split_paths(path_of(nodes))).problems
    assert run_cli("verify", path_of(nodes))[0] == 0


@pytest.mark.parametrize("what", LOST)
def test_recover_brings_a_node_back_that_has_lost_something(what: str, nodes: list[Path]) -> None:
    LOST[what](nodes[-len(what) % 3])
    done = recover(split_paths(path_of(nodes)))
    assert not done.problems
    check_whole(nodes, ROWS)


@pytest.mark.parametrize("what", ["leader-epoch-checkpoint", "first .index", "last .log"])
def test_recover_says_that_a_replica_with_a_folder_in_the_place_of_a_file_stays_behind(
    what: str, nodes: list[Path]
) -> None:
    folder = nodes[1] / "t-0"
    path = folder / what
    if " " in what:
        which, suffix = what.split()
        path = {"first": min, "last": max}[which](folder.glob(f"*{suffix}"))
    path.unlink()
    path.mkdir()
    append(nodes, 3, ["more"])
    for _ in range(2):
        done = recover(split_paths(path_of(nodes)))
        (problem,) = done.problems
        assert problem.startswith(f"t-0 stays out of sync on node 1: {path}: ")
        assert "folder where a regular file is expected; remove it" in problem
        assert not any("t-0 on node 1" in line for line in done.written)
    path.rmdir()
    assert recover(split_paths(path_of(nodes))).problems == []
    check_whole(nodes, [*ROWS, "more"])


def test_a_rebuilt_node_is_not_trusted(nodes: list[Path], tmp_path: Path) -> None:
    """Its logs are those of an older copy, and nothing says so any more."""
    for partition in (0, 1):
        shutil.copytree(nodes[1] / f"t-{partition}", tmp_path / f"t-{partition}")
    append(nodes, 3, ["newer", "and newer"])
    for partition in (0, 1):
        shutil.rmtree(nodes[1] / f"t-{partition}")
        (tmp_path / f"t-{partition}").rename(nodes[1] / f"t-{partition}")
    (nodes[1] / STATE_FILE).unlink()
    for version in (4, 5, 6):
        append(nodes, version, [f"more {version}"])
        assert "newer" in values(nodes)
    check_whole(nodes, [*ROWS, "newer", "and newer", "more 4", "more 5", "more 6"])


def test_topics_that_were_deleted_do_not_come_back_with_a_rebuilt_node(nodes: list[Path]) -> None:
    stray = nodes[0] / "gone-0"
    shutil.copytree(nodes[0] / "t-0", stray)
    (stray / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")
    (nodes[0] / STATE_FILE).unlink()
    recover(split_paths(path_of(nodes)))
    assert not stray.exists()
    assert len([*nodes[0].glob("gone-0.*-stray")]) == 1
    check_whole(nodes, ROWS)


def test_what_was_damaged_is_kept_beside(nodes: list[Path]) -> None:
    flip(nodes[1] / STATE_FILE, 0.5)
    damaged = (nodes[1] / STATE_FILE).read_bytes()
    append(nodes, 3, ["more"])
    append(nodes, 4, ["more"])
    assert (nodes[1] / f"{STATE_FILE}.lost").read_bytes() == damaged


def test_a_witness_that_has_lost_its_state_is_rebuilt(tmp_path: Path) -> None:
    path = f"{tmp_path}/a;{tmp_path}/b;witness:{tmp_path}/w"

    def write(version: int) -> None:
        rows = pa.table({"value": [f"v{version}"]})
        kafkalog.append(path, "t", rows, transactional_id="w", version=version)

    write(0)
    LOST["damaged"](tmp_path / "w")
    write(1)
    assert not recover(split_paths(path)).problems
    (tmp_path / "a").rename(tmp_path / "away")
    write(2)  # the witness votes
    assert kafkalog.read(path, "t").read_all().num_rows == 3


def test_a_witness_without_a_state_may_be_unmounted_and_is_taken_in_by_hand(tmp_path: Path) -> None:
    nodes = [tmp_path / "a", tmp_path / "b"]
    path = f"{path_of(nodes)};witness:{tmp_path}/w"
    table = pa.table({"value": ["1"]})
    kafkalog.append(path, "t", table)
    (tmp_path / "w" / STATE_FILE).unlink()
    kafkalog.append(path, "t", table)
    (problem,) = recover(split_paths(path)).problems
    assert problem.startswith("node 2 is not there")
    shutil.rmtree(tmp_path / "w")
    replace_node([path], "2", f"witness:{tmp_path}/w")
    assert not recover(split_paths(path)).problems
    (tmp_path / "a").rename(tmp_path / "away")
    kafkalog.append(path, "t", table)  # the witness votes
    assert kafkalog.read(path, "t").read_all().num_rows == 3


def test_one_of_two_directories_of_a_node_may_lose_its_state(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("a1", "a2", "b1", "b2", "c1", "c2")]
    path = ";".join(f"{folders[n]},{folders[n + 1]}" for n in (0, 2, 4))
    table = pa.table({"value": [f"v{n}" for n in range(20)]})
    kafkalog.append(path, "t", table, options={"numPartitions": "4"})
    (folders[1] / STATE_FILE).unlink()
    assert not recover(split_paths(path)).problems
    for folder in folders[:2]:
        flip(folder / STATE_FILE, 0.5)
    assert not recover(split_paths(path)).problems
    check_in_sync(folders)
    assert kafkalog.read(path, "t").read_all().num_rows == 20


# What is left alone


def files_of(node: Path) -> dict[Path, bytes]:
    found = (path for path in node.rglob("*") if path.is_file())
    return {
        path: path.read_bytes()
        for path in found
        if not path.name.startswith(STAGED_PREFIX) and path.name not in {LOCK, LOCK_FILE}
    }


def later_release(node: Path) -> None:
    (node / STATE_FILE).write_bytes(seal(STATE_FILE, 99, [{"sequence": 1}]))


def another_sets(node: Path) -> None:
    other = node.parent / "other"
    kafkalog.append(str(other), "q", pa.table({"value": ["of another set"]}))
    shutil.rmtree(node)
    shutil.copytree(other, node)


def unmounted(node: Path) -> None:
    shutil.rmtree(node)
    node.mkdir()


def unmounted_amid_a_commit(node: Path) -> None:
    """Who had begun at the disk has left below the mount what it was about to do."""
    prepared = (node / STATE_FILE).read_bytes()
    unmounted(node)
    (node / PREPARED_FILE).write_bytes(prepared)
    (node / LOCK_FILE).touch()
    (node / "kafkalog.unfinished").mkdir()


def unmounted_while_a_topic_is_made(node: Path) -> None:
    shutil.copytree(node / "t-0", node.parent / "made")
    unmounted_amid_a_commit(node)
    (node.parent / "made").rename(node / "t-0")


@pytest.mark.parametrize(
    "what",
    [
        later_release,
        another_sets,
        unmounted,
        unmounted_amid_a_commit,
        unmounted_while_a_topic_is_made,
    ],
)
def test_a_directory_that_may_be_another_is_not_touched(
    what: Callable[[Path], None], nodes: list[Path]
) -> None:
    what(nodes[1])
    before = files_of(nodes[1])
    append(nodes, 3, ["more"])
    append(nodes, 4, ["more"])
    (problem,) = recover(split_paths(path_of(nodes))).problems
    assert problem.startswith("node 1 is not there")
    assert files_of(nodes[1]) == before
    assert all(1 not in each.isr for each in _replicas(nodes))


@pytest.mark.parametrize("what", ["damaged", "removed", "intent damaged"])
def test_a_node_whose_mount_goes_before_it_is_rebuilt_is_not_there(
    what: str, nodes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below the mount it would vote, with nothing of what it has acknowledged."""
    LOST[what](nodes[1])
    original = open_nodes.rebuild
    with ExitStack() as mounts, monkeypatch.context() as patched:

        def unmounted(*given: Any) -> None:
            mounts.enter_context(without_mount(nodes[1]))
            original(*given)

        patched.setattr(open_nodes, "rebuild", unmounted)
        append(nodes, 3, ["more"])
        assert not (nodes[1] / STATE_FILE).exists()
        patched.undo()
        append(nodes, 4, ["more 4"])
        assert not (nodes[1] / STATE_FILE).exists()
    append(nodes, 5, ["more 5"])
    append(nodes, 6, ["more 6"])
    check_whole(nodes, [*ROWS, "more", "more 4", "more 5", "more 6"])


def _replicas(nodes: list[Path]) -> list[kafkalog.checkpoints.commit_state.ReplicaState]:  # type: ignore[name-defined]
    topics = newest_state([nodes[0], nodes[2]]).topics.values()
    return [each for topic in topics for each in topic.replicas.values()]


@pytest.mark.parametrize("what", ["damaged", "removed", "intent damaged"])
def test_a_majority_that_has_lost_its_states_is_refused(what: str, nodes: list[Path]) -> None:
    for node in nodes[:2]:
        LOST[what](node)
    before = [(node / STATE_FILE).exists() for node in nodes]
    with pytest.raises((LogDirectoryError, NotEnoughReplicasError), match="are needed"):
        append(nodes, 3, ["more"])
    assert [(node / STATE_FILE).exists() for node in nodes] == before


def test_damaged_prepared_states_are_nobodys_while_all_nodes_are_there(nodes: list[Path]) -> None:
    for node in nodes:
        (node / PREPARED_FILE).write_bytes(b"{")
    append(nodes, 3, ["more"])
    check_whole(nodes, [*ROWS, "more"])


@pytest.mark.parametrize("is_file", [True, False])
def test_what_is_in_the_guards_place_is_named_and_costs_one_node(
    is_file: bool, nodes: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    guard = nodes[2] / UNFINISHED_FOLDER
    if is_file:
        guard.write_bytes(b"")
    else:
        guard.mkdir()
        (guard / "somebodys").write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        append(nodes, 3, ["more"])
        append(nodes, 4, ["more"])
    assert "remove it" in caplog.text
    shutil.rmtree(guard, ignore_errors=True)
    guard.unlink(missing_ok=True)
    for version in (5, 6):
        append(nodes, version, ["more"])
    check_whole(nodes, [*ROWS, *["more"] * 4])
