"""Change the voters of a set, one at a time: take a node in, or put one in another's place.

Example: nodes 0, 1 and 2, and the disk of node 1 is lost. Node 3 gets its place. A majority of the
old voters and one of the new ones need not have a node in common: 0 and 1 are such, and 2 and 3.
So the state that changes the voters names both, and is decided by a majority of each::

    invite     kafkalog.commit on the new node: the state in place, which does not name it
    change     commit 8, "nodes":[0,3,2], "former":[0,1,2]   decided by a majority of each
    go on      commit 9, "nodes":[0,3,2]                     decided by the new voters alone

The new node is invited first, so that it has a state in place whenever it is named. Nobody else
continues after commit 8 before a majority of the old voters has it in place: whoever reaches such a
majority sees it, and knows who decides now.

Source: Raft's joint consensus (Ongaro and Ousterhout 2014, "In Search of an Understandable
Consensus Algorithm", section 6).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from kafkalog.checkpoints.commit_state import PREPARED_FILE, STATE_FILE
from kafkalog.checkpoints.state_file import load_state, state_bytes
from kafkalog.checkpoints.voters import members_of
from kafkalog.errors import CheckpointError, LogDirectoryError, NotEnoughReplicasError
from kafkalog.files.atomic import write_atomically
from kafkalog.streaming.store.nodes import Node
from kafkalog.streaming.store.replicas.controller import decide
from kafkalog.streaming.store.replicas.election import changed_topics, led
from kafkalog.streaming.store.replicas.quorum import Quorum
from kafkalog.streaming.store.stale_entries import drop_entries_of_missing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from kafkalog.checkpoints.commit_state import CommitState, PartitionState
    from kafkalog.checkpoints.replica_state import NodeState, ReplicaState
    from kafkalog.checkpoints.voters import Voters
    from kafkalog.streaming.store.log_set import LogSet
    from kafkalog.streaming.store.replicas.election import Changed

__all__ = ["change_voters", "finish_change", "others_of", "with_voter"]


def others_of(voters: Voters) -> dict[int, dict[str, Path]]:
    """Return the directories of nodes that an unfinished change takes in or out, and that are here.

    They are not among the voters of the newest state, or not any more.
    """
    newest = voters.newest
    named = [*newest.former]
    for folder in (folder for members in voters.live.values() for folder in members.values()):
        with suppress(OSError, CheckpointError):
            prepared = load_state(folder, PREPARED_FILE)
            if prepared is not None and prepared.set_id == newest.set_id:
                named += prepared.nodes if prepared.sequence > newest.sequence else ()
    known = members_of(voters.states)
    present = {node.node_id for node in newest.nodes}
    return {
        node.node_id: {member: known[member] for member in node.member_ids}
        for node in named
        if node.node_id not in present and known.keys() >= {*node.member_ids}
    }


def finish_change(
    log_set: LogSet,
    change: CommitState,
    others: Mapping[int, Mapping[str, Path]],
    own: Mapping[int, CommitState],
    verify: Callable[[Quorum], None],
) -> Quorum:
    """Let a change of voters that was cut off be decided by old and new ones; returns the new ones.

    ``others`` are nodes beside those of the set that take part in it, ``own`` the states in place.

    REQUIRES: the locks of all of them are held.

    Raises:
        CommitError: whether it is published is not known.
        NotEnoughReplicasError: fewer than a majority of the old or of the new voters are there.
    """
    joint = _joint(log_set, others, change)
    try:
        joint.check_majority()
    except NotEnoughReplicasError as error:
        before, after = ([node.node_id for node in each] for each in (change.former, change.nodes))
        raise NotEnoughReplicasError(
            f"{error}. The voters were to change from nodes {before} to {after}, and that was cut "
            "off: a majority of the former ones and one of the new ones have to be named and there "
            "until it has come to its end"
        ) from error
    _go_on_with(log_set, joint, verify)
    decide(log_set, joint, own)
    return _of_voters(log_set, verify)


def change_voters(
    log_set: LogSet,
    changed: CommitState,
    new: Mapping[str, Path],
    verify: Callable[[Quorum], None],
) -> None:
    """Publish a state that changes the voters, and one after it that the new ones decide alone.

    ``new`` are the directories of the new node by the member ids that ``changed`` gives them.

    REQUIRES: the locks of the set and of the new node are held, nothing is unfinished, and the new
    directories hold nothing.

    Raises:
        NotEnoughReplicasError: fewer than a majority of the old or of the new voters are there:
            nothing was published.
        CommitError: whether the change is published is not known.
        OSError, KafkaLogError: the new node cannot be written.
    """
    number = next(n.node_id for n in changed.nodes if n.member_ids[0] in new)
    _invite(_in_place(log_set), new)
    joint = _joint(log_set, {number: new}, changed)
    joint.check_majority()

    def check_new(_: LogSet) -> None:
        if number not in joint.live:
            raise LogDirectoryError(f"node {number} fails: {joint.failed[number]}")

    _go_on_with(log_set, joint, verify)
    log_set.publish(changed, check_new)
    _of_voters(log_set, verify)
    log_set.publish(log_set.state.following())


def with_voter(state: CommitState, new: NodeState, instead_of: int | None = None) -> CommitState:
    """Return the state that takes a node in, in the place of another one if that is named.

    The replicas of that one are those of the new node, which has nothing of them yet.

    Raises:
        LogDirectoryError: a partition is in sync on the old node only.
    """
    if instead_of is None:
        nodes = (*state.nodes, new)
    else:
        nodes = tuple(new if node.node_id == instead_of else node for node in state.nodes)
    others = {node.node_id for node in nodes} - {new.node_id}

    def change(topic: str, number: int, each: ReplicaState, where: PartitionState) -> Changed:
        if instead_of is None or instead_of not in {*each.replicas, *each.removing}:
            return each, where
        isr = tuple(node for node in each.isr if node != instead_of)
        if not isr:
            raise LogDirectoryError(
                f"{topic}-{number} is in sync on node {instead_of} only: to replace that would "
                "lose records. Bring it back and run `kafkalog recover`; or, if it is lost, let "
                f"another replica lead by `kafkalog elect PATH --unclean --topic {topic}`, which "
                "says what that loses"
            )
        # From a node that it is to be removed from anyway it does not move to the new one.
        new_one = () if instead_of in each.removing else (new.node_id,)
        swapped = (
            tuple(n for node in some for n in (new_one if node == instead_of else (node,)))
            for some in (each.replicas, each.adding, each.removing)
        )
        replicas, adding, removing = swapped
        after = each._replace(replicas=replicas, isr=isr, adding=adding, removing=removing)
        return led(after, where, others)

    members = tuple(member for node in nodes for member in node.member_ids)
    following = changed_topics(state, change).following()
    return replace(following, nodes=nodes, former=state.nodes, member_ids=members)


def _joint(
    log_set: LogSet, others: Mapping[int, Mapping[str, Path]], change: CommitState
) -> Quorum:
    """Return the nodes of a set with those that a change takes in or out."""
    named = {node for group in change.voters for node in group}
    return _nodes_of(
        {**log_set.node.nodes(), **{n: each for n, each in others.items() if n in named}},
        change.voters,
    )


def _of_voters(log_set: LogSet, verify: Callable[[Quorum], None]) -> Quorum:
    """Let a set go on with the nodes that its state names: the change has ended."""
    voters = log_set.state.voters[0]
    by_node = {node: each for node, each in log_set.node.nodes().items() if node in voters}
    nodes = _nodes_of(by_node, (voters,))
    _go_on_with(log_set, nodes, verify)
    log_set.state = replace(log_set.state, former=())
    return nodes


def _go_on_with(log_set: LogSet, nodes: Quorum, verify: Callable[[Quorum], None]) -> None:
    log_set.node, log_set.verify_locks = nodes, lambda: verify(nodes)


def _nodes_of(
    by_node: Mapping[int, Mapping[str, Path]], voters: tuple[frozenset[int], ...]
) -> Quorum:
    members = {member: folder for each in by_node.values() for member, folder in each.items()}
    return Quorum(members, by_node, voters)


def _in_place(log_set: LogSet) -> CommitState:
    states = (load_state(folder) for folder in log_set.directories)
    return max((each for each in states if each is not None), key=lambda state: state.rank)


def _invite(state: CommitState, new: Mapping[str, Path]) -> None:
    """Put a state that is in place elsewhere in place on a new node; clear what is left there.

    What is left is of an invitation before, or of a node that was replaced.
    """
    for member, folder in new.items():
        (folder / PREPARED_FILE).unlink(missing_ok=True)
        Node({member: folder}).withdraw(durable=True)
        drop_entries_of_missing(folder)
        write_atomically(folder / STATE_FILE, state_bytes(state.of_member(member)))
