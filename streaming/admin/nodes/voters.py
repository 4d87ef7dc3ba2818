"""Change the voters of a replicated set: add a node, or replace one.

How the voters change is said in :mod:`~kafkalog.streaming.store.replicas.controller`. Here it is
checked that the new node holds nothing, and which of the old ones is meant.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from kafkalog.checkpoints.broker import META_PROPERTIES
from kafkalog.checkpoints.commit_state import NodeState
from kafkalog.checkpoints.voters import require_voters
from kafkalog.errors import LogDirectoryError, OptionError
from kafkalog.files.atomic import make_with_parents
from kafkalog.files.deferred_signals import shielded
from kafkalog.files.paths import NodePlace, split_paths
from kafkalog.files.system import system
from kafkalog.streaming.store.file_systems import check_file_system
from kafkalog.streaming.store.locks import check_no_broker
from kafkalog.streaming.store.log_dirs import LogDirs
from kafkalog.streaming.store.nodes import unfinished_salvage
from kafkalog.streaming.store.open_set import check_given
from kafkalog.streaming.store.policy import WAIT_MS, SetPolicy
from kafkalog.streaming.store.recovery.unsynced_tail import refuse_lost_tail
from kafkalog.streaming.store.replicas.controller import change_voters, with_voter
from kafkalog.streaming.store.replicas.open_nodes import QuorumSession
from kafkalog.streaming.store.session import existing_log_dirs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kafkalog.checkpoints.commit_state import CommitState
    from kafkalog.checkpoints.voters import Voters

__all__ = ["ChangedVoters", "add_node", "replace_node"]

_HOLDER: Final = "kafkalog node reassign"


class ChangedVoters(NamedTuple):
    """A node that was taken in; ``replaces`` is whose place it has, None if it is one more.

    ``replicas`` counts the replicas that it is to have, and has not yet. ``was_there``: it was a
    node of the set already.
    """

    node: int
    directories: tuple[Path, ...]
    is_witness: bool
    replaces: int | None
    replicas: int
    was_there: bool = False


class _NewNode(NamedTuple):
    """A node that is named: its directories, and whether it is a witness."""

    folders: tuple[Path, ...]
    is_witness: bool

    @property
    def text(self) -> str:
        return ", ".join(map(str, self.folders))


@shielded
def replace_node(
    paths: Sequence[str], old: str, new: str, *, dry_run: bool = False, wait_ms: int = WAIT_MS
) -> ChangedVoters:
    """Put the node ``new`` in the place of ``old``; its replicas are brought in sync later on.

    ``old`` is the id of a node, or one of its directories. ``new`` is named as in a path, and holds
    nothing.

    Raises:
        OptionError: there is no such node, or it cannot take that place.
        NotEnoughReplicasError: a majority of the old or of the new voters is missing.
        LogDirectoryError: the new node holds something; or a partition is in sync on the old only.
        KafkaLogError: this is no replicated set, or somebody else holds it.
    """
    return _change(paths, new, old, dry_run=dry_run, wait_ms=wait_ms)


@shielded
def add_node(
    paths: Sequence[str], new: str, *, dry_run: bool = False, wait_ms: int = WAIT_MS
) -> ChangedVoters:
    """Take the node ``new`` into a set, as one more voter; no partition moves by itself.

    ``new`` is named as in a path, and holds nothing.

    Raises:
        OptionError, KafkaLogError: as :func:`replace_node`.
    """
    return _change(paths, new, None, dry_run=dry_run, wait_ms=wait_ms)


def _change(
    paths: Sequence[str], new: str, old: str | None, *, dry_run: bool, wait_ms: int
) -> ChangedVoters:
    node = _named_node(new)
    directories = existing_log_dirs(paths)
    known = {os.path.realpath(folder) for folder in directories}
    directories += [each for each in node.folders if os.path.realpath(each) not in known]
    check_given(directories)
    require_voters(
        directories,
        "this is no replicated set. One comes to be by the first write to a path that names "
        "several nodes",
    )
    session = QuorumSession(directories, SetPolicy.of_upkeep(wait_ms), holder=_HOLDER)
    if dry_run:
        state = session.inspect(refuse_lost_tail).state
        return _planned(state, directories, node, old)[1]
    with session:
        log_set = session.open(refuse_lost_tail)
        changed, told = _planned(log_set.state, directories, node, old)
        if changed is not None:
            for folder in node.folders:
                make_with_parents(folder)
                check_file_system(folder)
                check_no_broker(folder, timeout_ms=wait_ms)
            session.lock(told.node, node.folders)
            members = next(each.member_ids for each in changed.nodes if each.node_id == told.node)
            new_members = dict(zip(members, node.folders, strict=True))
            change_voters(log_set, changed, new_members, session.verify)
        return told


def _named_node(text: str) -> _NewNode:
    """Read a node as a path names one.

    Raises:
        OptionError: it is none, or not one.
    """
    places = split_paths(text)
    if not places or len({each.node for each in places if isinstance(each, NodePlace)}) > 1:
        raise OptionError(
            f"{text!r} is not one node: name its log directories with commas between them, or "
            "witness:DIRECTORY"
        )
    is_witness = any(isinstance(each, NodePlace) and each.is_witness for each in places)
    return _NewNode(tuple(map(Path, places)), is_witness)


def _planned(
    state: CommitState, directories: Sequence[Path], new: _NewNode, old: str | None
) -> tuple[CommitState | None, ChangedVoters]:
    """Return the state that takes a node in, and what is told of it; no state if it is one."""
    voters = require_voters(directories)
    there = _node_at(voters, new)
    replaced = None if old is None else _node_named(voters, directories, old)
    last = max(node.node_id for node in state.nodes)
    if there is not None and not (old and old.isdecimal() and int(old) > last):
        if old is not None and replaced not in {None, there}:
            raise OptionError(f"{new.text} is of node {there} of the set already")
        is_witness = next(n.is_witness for n in state.nodes if n.node_id == there)
        return None, ChangedVoters(there, new.folders, is_witness, None, 0, was_there=True)
    if old is not None and replaced is None:
        raise OptionError(
            f"{old!r} is no node of the set: expected one of "
            f"{[node.node_id for node in state.nodes]}, or a log directory of one"
        )
    _check_empty(new)
    replicas = _replicas_on(state, replaced)
    if replicas and new.is_witness:
        raise OptionError(
            f"a witness holds no partitions, and node {replaced} has replicas of {replicas}"
        )
    number = last + 1
    members = tuple(system.random_id().hex for _ in new.folders)
    node = NodeState(number, members, new.is_witness)
    told = ChangedVoters(number, new.folders, new.is_witness, replaced, replicas)
    return with_voter(state, node, replaced), told


def _replicas_on(state: CommitState, node: int | None) -> int:
    return sum(
        node in each.replicas for topic in state.topics.values() for each in topic.replicas.values()
    )


def _node_at(voters: Voters, new: _NewNode) -> int | None:
    """Return the node whose directories are named.

    Raises:
        OptionError: some of them are of a node, and others are not.
    """
    of_folders = _nodes_by_folder(voters)
    found = {of_folders.get(os.path.realpath(folder)) for folder in new.folders}
    if len(found) > 1:
        raise OptionError(f"{new.text}: some of these are of a node of the set, and some are not")
    return found.pop()


def _nodes_by_folder(voters: Voters) -> Mapping[str, int]:
    nodes = voters.newest.node_of_member
    return {
        os.path.realpath(folder): nodes[state.member_id]
        for folder, state in voters.states.items()
        if state.member_id in nodes
    }


def _node_named(voters: Voters, directories: Sequence[Path], old: str) -> int | None:
    """Return the node that is named by its id, or by a directory; None if there is none.

    A directory in which nothing is found any more is that of the one node that is missing.
    """
    if old.isdecimal():
        return next((n.node_id for n in voters.newest.nodes if n.node_id == int(old)), None)
    folders = {os.path.realpath(place) for place in split_paths(old)}
    found = _nodes_by_folder(voters)
    nodes = {found[folder] for folder in folders if folder in found}
    if nodes:
        return nodes.pop() if len(nodes) == 1 else None
    lost = {os.path.realpath(folder) for folder in directories if folder not in voters.states}
    return next(iter(voters.missing)) if len(voters.missing) == 1 and folders <= lost else None


def _check_empty(new: _NewNode) -> None:
    """Refuse a new node that holds something, or that a broker has.

    Raises:
        LogDirectoryError: it does.
    """
    for folder in new.folders:
        if not folder.is_dir():
            continue
        salvage = unfinished_salvage(folder)
        if salvage is not None:
            raise LogDirectoryError(salvage)
        if (folder / META_PROPERTIES).exists():
            raise LogDirectoryError(
                f"{folder} has a {META_PROPERTIES}: a broker lived there. Name an empty directory"
            )
        if LogDirs([folder], are_of_one_node=True).partition_counts()[folder]:
            raise LogDirectoryError(
                f"{folder} holds partitions, and a node that joins a set holds nothing yet: move "
                "them away"
            )
