"""Start a replicated set, of empty nodes or around one that is a set already.

A set that is there becomes the first node: its partitions are in sync there, and lag on the others
until the next commits, or ``kafkalog recover``, have copied them.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kafkalog.checkpoints.commit_state import (
    PREPARED_FILE,
    STATE_FILE,
    CommitState,
    NodeState,
    ReplicaState,
)
from kafkalog.checkpoints.intent import load_intent
from kafkalog.checkpoints.state_file import load_state
from kafkalog.checkpoints.voters import find_voters
from kafkalog.errors import LogDirectoryError, OptionError
from kafkalog.files.atomic import make_with_parents
from kafkalog.files.deferred_signals import shielded_part
from kafkalog.files.paths import NodePlace
from kafkalog.files.system import system
from kafkalog.files.timeouts import at, stalled
from kafkalog.streaming.store.file_systems import (
    check_file_system,
    note_mounts,
    refuse_unmounted,
)
from kafkalog.streaming.store.locks import DirectoryLocks, check_no_broker
from kafkalog.streaming.store.log_dirs import LogDirs
from kafkalog.streaming.store.open_set import (
    check_given,
    check_no_broker_lived,
    known_set,
)
from kafkalog.streaming.store.replicas.election import MOST_BY_DEFAULT
from kafkalog.streaming.store.replicas.quorum import Quorum

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafkalog.checkpoints.voters import Voters
    from kafkalog.streaming.store.policy import SetPolicy

__all__ = ["ensure_nodes", "has_nodes"]


def has_nodes(paths: Sequence[str | Path]) -> bool:
    """Whether paths are those of several nodes, or of one that is a witness."""
    return any(isinstance(path, NodePlace) for path in paths)


@shielded_part
def ensure_nodes(paths: Sequence[NodePlace], policy: SetPolicy) -> str:
    """Return the id of the replicated set whose nodes are named; new nodes start one.

    Raises:
        OptionError: all of them are witnesses.
        LogDirectoryError, CheckpointError: they are none that may be written; or fewer than a
            majority of a set is there.
    """
    folders = [Path(path) for path in paths]
    _finish_start(folders, policy)
    voters = find_voters(folders)
    if voters is not None and _has_started(voters, folders):
        voters.check_majority()
        for folder in folders:
            with suppress(OSError), at(folder):  # who takes the locks finds out what fails
                _check_member(folder, voters, policy, given=len(paths))
                note_mounts([folder])
        return voters.newest.set_id
    nodes = _named_nodes(paths)
    check_given(folders)
    for folder in folders:
        refuse_unmounted(folder)
        make_with_parents(folder)
        check_file_system(folder)
        check_no_broker_lived(folder, policy)
        check_no_broker(folder, timeout_ms=policy.wait_ms)
    with DirectoryLocks(folders, holder="a new writer", timeout_ms=policy.wait_ms) as locks:
        found = find_voters(folders)  # another writer may have been faster
        if found is not None and _has_started(found, folders):
            return found.newest.set_id
        set_id = _start(nodes, locks).set_id
    note_mounts(folders)
    return set_id


def _check_member(folder: Path, voters: Voters, policy: SetPolicy, *, given: int) -> None:
    check_no_broker_lived(folder, policy)
    if folder not in voters.states and _is_extra(folder, given, voters.newest):
        raise LogDirectoryError(
            f"log directory {folder} belongs to no node of set {voters.newest.set_id}: leave it out"
        )


def _has_started(voters: Voters, folders: Sequence[Path]) -> bool:
    """Whether a set is there; one that was cut off in starting is started again."""
    is_whole = not voters.missing
    return voters.newest.sequence > 0 or is_whole or not all(each.is_dir() for each in folders)


@shielded_part
def _finish_start(folders: Sequence[Path], policy: SetPolicy) -> None:
    """Put in place on all nodes the first state of a set that a writer was cut off in starting.

    Only its first state can lie prepared where none is in place.
    """
    if all(_may_be_whole(folder) for folder in folders):
        return
    with DirectoryLocks(
        [folder for folder in folders if folder.is_dir()],
        holder="a new writer",
        timeout_ms=policy.wait_ms,
    ):
        voters = find_voters(folders)
        if voters is None or voters.newest.controller:
            return  # it is started again; or it has begun, and what is prepared is no first state
        for folder in folders:
            prepared = load_state(folder, PREPARED_FILE) if load_state(folder) is None else None
            if prepared is not None and prepared.stamp == voters.newest.stamp:
                (folder / PREPARED_FILE).replace(folder / STATE_FILE)


def _may_be_whole(folder: Path) -> bool:
    """Whether a directory has its first state; one that stalls has to wait."""
    if stalled(folder) is not None:
        return True
    try:
        with at(folder):
            return (folder / STATE_FILE).exists() or not (folder / PREPARED_FILE).exists()
    except OSError:
        return True  # of a node that cannot be read nothing is finished


def _is_extra(folder: Path, given: int, state: CommitState) -> bool:
    """Whether a directory without a state is one too many: else it is what is left of a member."""
    return folder.is_dir() and given > len(state.member_ids)


def _named_nodes(paths: Sequence[NodePlace]) -> list[tuple[list[Path], bool]]:
    nodes: dict[int, list[NodePlace]] = {}
    for path in paths:
        nodes.setdefault(path.node, []).append(path)
    found = [([Path(p) for p in each], each[0].is_witness) for each in nodes.values()]
    if all(is_witness for _, is_witness in found):
        raise OptionError("option 'path' names witnesses only, and they hold no partitions")
    return found


def _start(nodes: Sequence[tuple[Sequence[Path], bool]], locks: DirectoryLocks) -> CommitState:
    first = _set_that_is_there(nodes)
    known = {} if first is None else {load_state(f).member_id: f for f in nodes[first][0]}  # type: ignore[union-attr]
    before = None if first is None else known_set(nodes[first][0])
    by_node: dict[int, dict[str, Path]] = {}
    for number, (folders, _) in enumerate(nodes):
        is_known = number == first
        by_node[number] = known if is_known else {system.random_id().hex: f for f in folders}
    members = {member: folder for each in by_node.values() for member, folder in each.items()}
    states = tuple(
        NodeState(number, tuple(by_node[number]), is_witness)
        for number, (_, is_witness) in enumerate(nodes)
    )
    state = CommitState(0, system.random_id().hex, "", (), commit_id=system.random_id().hex)
    if before is not None and first is not None:
        state = _with_replicas(before.following(), states, first)
    state = replace(state, member_ids=tuple(members), nodes=states, controller_epoch=1)
    starting = Quorum(members, by_node, state.voters, declared=[state.stamp])
    failed = starting.publish(state, locks.verify)
    if failed is not None:
        raise failed
    return state


def _set_that_is_there(nodes: Sequence[tuple[Sequence[Path], bool]]) -> int | None:
    """Return which node is a set already; None if none is.

    Raises:
        LogDirectoryError: two nodes are, or a witness is; or a node has partitions and no commit
            state, or a commit that was cut off.
    """
    found = None
    for number, (folders, is_witness) in enumerate(nodes):
        states = [state for folder in folders if (state := load_state(folder)) is not None]
        if not states or (states[0].sequence == 0 and not LogDirs(folders).partitions()):
            if LogDirs(folders).partitions():
                raise LogDirectoryError(
                    f"{', '.join(map(str, folders))} holds partitions and no commit state: run "
                    "`kafkalog broker takeover` on it first"
                )
            continue
        if found is not None or is_witness:
            raise LogDirectoryError(
                f"{', '.join(map(str, folders))} is a set of its own already, and cannot become "
                "another node of one: only one node may hold anything, and no witness. Name an "
                "empty directory in its place"
            )
        if any(load_intent(folder) is not None for folder in folders):
            raise LogDirectoryError(
                f"{', '.join(map(str, folders))} has a commit that was cut off: run `kafkalog "
                "recover` on it first"
            )
        found = number
    return found


def _with_replicas(state: CommitState, nodes: Sequence[NodeState], first: int) -> CommitState:
    data = [node.node_id for node in nodes if not node.is_witness]
    others = [node for node in data if node != first]
    factor = min(len(data), MOST_BY_DEFAULT)
    topics = {}
    for key, topic in state.topics.items():
        replicas = {
            number: ReplicaState(first, (first, *_turned(others, number)[: factor - 1]), (first,))
            for number in topic.partitions
        }
        topics[key] = replace(topic, replicas=replicas)
    return replace(state, topics=topics)


def _turned(nodes: Sequence[int], steps: int) -> tuple[int, ...]:
    turn = steps % len(nodes) if nodes else 0
    return (*nodes[turn:], *nodes[:turn])
