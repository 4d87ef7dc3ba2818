"""The controller of a replicated set: what was committed last, and changes of voters."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.broker import read_topic_id
from kafkalog.checkpoints.commit_state import (
    PREPARED_FILE,
    STATE_FILE,
    CommitStamp,
    is_majority,
    load_stamp,
)
from kafkalog.checkpoints.intent import counts_no_more, load_intent
from kafkalog.checkpoints.state_file import load_state, state_bytes
from kafkalog.checkpoints.voters import members_of
from kafkalog.errors import CheckpointError, CommitError, LogDirectoryError, NotEnoughReplicasError
from kafkalog.files.atomic import write_atomically
from kafkalog.files.system import remembered, system
from kafkalog.model import TopicPartition
from kafkalog.streaming.log.files import stray_directory_name
from kafkalog.streaming.store.broker_files import drop_entries_of_missing
from kafkalog.streaming.store.log_dirs import LogDirs
from kafkalog.streaming.store.nodes import Node
from kafkalog.streaming.store.replicas.copying import distrust_old
from kafkalog.streaming.store.replicas.election import (
    changed_topics,
    led,
    shrunk,
    with_raised_epochs,
)
from kafkalog.streaming.store.replicas.quorum import Controller, Quorum

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from kafkalog.checkpoints.commit_state import (
        CommitState,
        NodeState,
        PartitionState,
        ReplicaState,
        TopicState,
    )
    from kafkalog.checkpoints.intent import Intent
    from kafkalog.checkpoints.voters import Voters
    from kafkalog.streaming.store.log_set import LogSet
    from kafkalog.streaming.store.replicas.election import Changed


__all__ = [
    "change_voters",
    "decide",
    "decide_again",
    "finish_change",
    "others_of",
    "own_states",
    "prepared_state",
    "put_orphaned_partitions_aside",
    "with_voter",
]


# ----------------------------------------------------------------------------------------------
# What was decided last, and who has it: what a controller finds out before it does anything.
#
# A majority is read. What is in place anywhere is decided. Beyond that
#
# - a state that lies *prepared* may have been decided on a node that is away: the one with the
#   highest controller epoch is finished, prepared again under the present epoch on a majority
#   first. One that is older than an intent is not: whoever wrote the intent had read a majority
#   before, and had not found it. But the intent of whoever was about to finish it is no such one;
# - where there is none, nothing was decided. The present state is published again under the new
#   epoch, so that what an absent node may hold prepared is older than that, and counts no more.
#   Then the unfinished commit is rolled back.
#
# A node that has neither published the newest commit nor prepared it was away, or was put back as
# an older copy: its replicas are not in sync, whatever the state says of them.
#
# Source: Kafka's controller epoch (``ControllerContext``); the two steps are those of Paxos for
# one value after the other (Lamport 2001, "Paxos Made Simple").


# ----------------------------------------------------------------------------------------------
# Put aside what a node brings back of topics that are gone: deleted, or made by half a commit.
#
# Example: topic ``t`` was deleted while a node was away, and comes back with it. Nobody has the
# topic any more, so its folders would look like those of a topic that a broker has made.
#
# They are renamed to ``<topic>-<p>.<32 hex>-stray``, as a broker does with replicas that its
# cluster does not know. Nobody removes them.
#
# Source: Kafka ``LogManager.addStrayLog``, ``LocalLog.logStrayDirName``.


_LOGGER: Final = logging.getLogger("kafkalog.sink")


def put_orphaned_partitions_aside(
    folders: Iterable[Path], state: CommitState, own: CommitState
) -> None:
    """Rename the folders of topics that a node knew and ``state`` does not.

    ``own`` is the older state that the node has, in the log directories ``folders``.

    REQUIRES: the locks are held.

    Raises:
        OSError, KafkaLogError: a folder cannot be looked at or renamed.
    """
    places = list(folders)
    known = {*own.topics, *own.deleted}
    for folder in places:
        intent = load_intent(folder)
        known |= {each.key for each in (intent.partitions if intent else ()) if each.created}
    gone = known - state.topics.keys() - state.deleted.keys()
    if not gone:
        return
    for found in LogDirs(places).partitions().values():
        name = found.topic_partition.topic
        if own.key_of(name, read_topic_id(found.path)) in gone:
            _LOGGER.warning("%s is of a topic that is gone, and is put aside", found.path)
            stray = stray_directory_name(*found.topic_partition, system.random_id().hex)
            # It stays renamed: to prepare a newer state here syncs the directory first.
            found.path.rename(found.log_dir / stray)
            drop_entries_of_missing(found.log_dir)


# ----------------------------------------------------------------------------------------------


def decide(log_set: LogSet, nodes: Quorum, own: Mapping[int, CommitState]) -> CommitState | None:
    """Finish what may have been decided elsewhere, or make sure that it counts no more.

    ``own`` are the states that the nodes had in place when the set was opened. A take-back cuts
    logs within an epoch: so the leader epochs of the partitions that it is about to cut are raised
    with the state that goes before it. REQUIRES: the locks are held.

    Returns the state that changes the voters, if others than those of ``nodes`` have to decide it,
    too: nothing was done then.

    Raises:
        CommitError: whether a prepared state is published is not known.
        NotEnoughReplicasError: fewer than a majority of the nodes are left, or can be read.
    """
    state, name = log_set.state, remembered(Controller).name
    unfinished = log_set.unfinished()
    prepared = prepared_state(nodes, state, unfinished)
    newest = state if prepared is None else prepared
    if newest.former and newest.voters != nodes.voters:
        return newest
    behind = _behind(nodes, newest)
    _put_aside(nodes, [node for node in behind if node in own], newest, own)
    epochs = [state.controller_epoch, *(each.controller_epoch for each in unfinished)]
    if prepared is not None:
        _LOGGER.warning("commit %d was prepared on a node, and is finished now", prepared.sequence)
        finished = replace(prepared, controller_epoch=max(*epochs, prepared.controller_epoch) + 1)
        finished = _without_lagging(finished, nodes, behind, own)
        log_set.publish(replace(finished, controller=name))
        return None
    if state.controller != name or unfinished:
        state = replace(state, controller_epoch=max(epochs) + 1, controller=name)
    log_set.state = _without_lagging(state, nodes, behind, own)
    if unfinished:
        _claim(log_set, with_raised_epochs(log_set.state, _written_epochs(unfinished)))
    elif not _most_have(nodes, state):
        _repeat(log_set, max(epochs) + 1)
    return None


def _written_epochs(unfinished: Sequence[Intent]) -> dict[TopicPartition, int]:
    """Return the leader epochs that unfinished commits have written under.

    An election whose state was not published may have had a higher one than the state.
    """
    found: dict[TopicPartition, int] = {}
    for each in (each for intent in unfinished for each in intent.partitions):
        key = each.topic_partition
        found[key] = max(found.get(key, 0), each.leader_epoch)
    return found


def _put_aside(
    nodes: Quorum,
    behind: Sequence[int],
    newest: CommitState,
    own: Mapping[int, CommitState],
) -> None:
    """Let nothing count that nodes bring back of topics that are gone, or of former segments."""
    for node in behind:
        with nodes.writing(node):
            folders = nodes.by_node[node].values()
            put_orphaned_partitions_aside(folders, newest, own[node])
            distrust_old(node, folders, newest, own[node])


def _repeat(log_set: LogSet, epoch: int) -> None:
    """Publish the present state again: the next commit needs a majority that has it.

    Who is away may have it in place with other replicas in sync. That has to count less.
    """
    log_set.publish(replace(log_set.state, controller_epoch=epoch))


def _claim(log_set: LogSet, state: CommitState) -> None:
    """Let what an absent node may hold prepared be older than what a majority has in place."""
    log_set.publish(state)


def decide_again(log_set: LogSet) -> None:
    """Do what goes before a take-back in the session that has failed; nothing with one node.

    Raises:
        CommitError, NotEnoughReplicasError: as :func:`decide`.
    """
    if isinstance(log_set.node, Quorum):
        log_set.node.check_majority()
        if decide(log_set, log_set.node, {}) is not None:
            raise CommitError("a change of the voters was cut off: try again")


def own_states(
    states: Mapping[Path, CommitState], live: Mapping[int, Mapping[str, Path]]
) -> dict[int, CommitState]:
    """Return the oldest state that each live node has in place in one of its directories."""
    return {
        node: min((states[folder] for folder in members.values()), key=lambda each: each.rank)
        for node, members in live.items()
    }


def prepared_state(
    nodes: Quorum, state: CommitState, unfinished: Sequence[Intent]
) -> CommitState | None:
    """Return the prepared state that may have been decided."""
    found = [
        each
        for each in _all_prepared(nodes)
        if each.set_id == state.set_id
        and each.sequence > state.sequence
        and not counts_no_more(each, state, unfinished)
    ]
    return max(found, key=lambda each: (each.controller_epoch, each.sequence), default=None)


def _all_prepared(nodes: Quorum) -> list[CommitState]:
    """Read what lies prepared; a majority of nodes has to be told by what can be read.

    Unless all voters are there: a state that was decided is in place on one of them.
    """
    found: list[CommitState] = []
    damaged: dict[int, CheckpointError] = {}
    for node in nodes.live:
        for folder in nodes.by_node[node].values():
            try:
                each = load_state(folder, PREPARED_FILE)
            except CheckpointError as error:
                damaged[node] = error
            except OSError as error:
                nodes.fail(node, error)
                break
            else:
                found += [] if each is None else [each]
    if {*nodes.live} >= frozenset().union(*nodes.voters):
        return found  # what was decided is in place somewhere, and all can be read
    for node, why in damaged.items():
        if not is_majority([n for n in nodes.live if n not in damaged], nodes.voters):
            nodes.fail(node, why)
    return found


def _behind(nodes: Quorum, state: CommitState) -> list[int]:
    """Return the live nodes that have no part in the commit that a state is of.

    Who repeats a commit under a higher epoch prepares it on all nodes that are there, on those
    without a part in it, too. So what lies prepared under a higher epoch than ``state`` tells of
    no part.
    """
    return [
        node
        for node in nodes.live
        if not all(
            state.stamp in _stamps(each, state.controller_epoch)
            for each in nodes.by_node[node].values()
        )
    ]


def _stamps(folder: Path, epoch: int) -> Iterator[CommitStamp | None]:
    """Read of which commits a directory holds the state, or one prepared up to an epoch."""
    yield load_stamp(folder)
    with suppress(CheckpointError, OSError):
        prepared = load_state(folder, PREPARED_FILE)
        if prepared is not None and prepared.controller_epoch <= epoch:
            yield prepared.stamp


def _declared(nodes: Quorum, state: CommitState) -> list[int]:
    """Return the live nodes that hold the intent of the commit that a state is of."""
    return [
        node
        for node in nodes.live
        for intent in [load_intent(next(iter(nodes.by_node[node].values())))]
        if intent is not None and intent.stamp == state.stamp
    ]


def _most_have(nodes: Quorum, state: CommitState) -> bool:
    """Whether a majority has a commit in place."""
    have = [
        node
        for node in nodes.live
        if all(load_stamp(folder) == state.stamp for folder in nodes.by_node[node].values())
    ]
    return is_majority(have, nodes.voters)


def _without_lagging(
    state: CommitState,
    nodes: Quorum,
    behind: Sequence[int],
    own: Mapping[int, CommitState],
) -> CommitState:
    """Take the replicas of nodes that are behind out of the in-sync sets.

    One that was the last in sync when its node went away is the only one that can have all records.
    It stays if its own state says that it has; or if it had a part in the commit, whose records
    were durable on all nodes before the first one prepared it.
    """
    if not behind:
        return state
    sound, declared = {*nodes.live} - {*behind}, _declared(nodes, state)
    lagging = [
        (node, TopicPartition(topic.name, number))
        for key, topic in state.topics.items()
        for number, replicas in topic.replicas.items()
        for node in behind
        if sound & {*replicas.isr}
        or (node not in declared and _own_end(own.get(node), key, number) != _end(topic, number))
    ]
    return shrunk(state, nodes.live, lagging)


def _own_end(state: CommitState | None, key: str, number: int) -> int | None:
    topic = None if state is None else state.topics.get(key)
    return None if topic is None else _end(topic, number)


def _end(topic: TopicState, number: int) -> int | None:
    known = topic.partitions.get(number)
    return None if known is None else known.log_end


# ----------------------------------------------------------------------------------------------
# Change the voters of a set, one at a time: take a node in, or put one in another's place.
#
# Example: nodes 0, 1 and 2, and the disk of node 1 is lost. Node 3 gets its place. A majority of
# the old voters and one of the new ones need not have a node in common: 0 and 1 are such, and 2
# and 3. So the state that changes the voters names both, and is decided by a majority of each::
#
#     invite     kafkalog.commit on the new node: the state in place, which does not name it
#     change     commit 8, "nodes":[0,3,2], "former":[0,1,2]   decided by a majority of each
#     go on      commit 9, "nodes":[0,3,2]                     decided by the new voters alone
#
# The new node is invited first, so that it has a state in place whenever it is named. Nobody else
# continues after commit 8 before a majority of the old voters has it in place: whoever reaches
# such a majority sees it, and knows who decides now.
#
# Source: Raft's joint consensus (Ongaro and Ousterhout 2014, "In Search of an Understandable
# Consensus Algorithm", section 6).


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
                f"another replica lead by `kafkalog node elect PATH --unclean --topic {topic}`, "
                "which "
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
