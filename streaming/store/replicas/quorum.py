"""Store intent and commit state on a quorum of nodes.

::

    declare     kafkalog.unfinished, kafkalog.intent     on a majority before anything is prepared
    prepare     kafkalog.commit.prepared                 beside the old state, durable on a majority
    decide      kafkalog.commit                          the first rename of what was prepared
    withdraw    takes the two of ``declare`` away        after either end

A state in place anywhere is decided, and readers believe it: it is renamed only once a majority
holds it prepared, and the locks of that majority were verified after that. Whoever comes next reads
a majority, finds what was prepared, and finishes it
(:mod:`~kafkalog.streaming.store.replicas.controller`).

To declare is the first phase of Paxos: a majority knows the controller's epoch before anything is
prepared under it. So no two controllers prepare different states under one epoch.

A node on which a call fails is out: it gets nothing more in this session, and leaves the in-sync
sets in the state that is published.

REQUIRES, for all that changes something: the locks of the directories are held.
"""

from __future__ import annotations

import logging
import os
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.commit_state import (
    PREPARED_FILE,
    STATE_FILE,
    CommitStamp,
    is_majority,
    load_stamp,
    majority_of,
)
from kafkalog.checkpoints.intent import Intent, load_intent
from kafkalog.checkpoints.state_file import state_bytes
from kafkalog.checkpoints.voters import fault_of
from kafkalog.errors import (
    CheckpointError,
    CommitError,
    KafkaLogError,
    LogDirectoryError,
    NotEnoughReplicasError,
    UnknownTopicOrPartitionError,
)
from kafkalog.files.atomic import write_atomically
from kafkalog.files.regular import fsync_directory
from kafkalog.files.system import remembered, system
from kafkalog.files.timeouts import at
from kafkalog.streaming.log.log_dir import leader_folders
from kafkalog.streaming.store.log_dirs import log_dirs_of_set, partitions_by_node
from kafkalog.streaming.store.nodes import Node
from kafkalog.streaming.store.replicas.election import shrunk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from types import TracebackType

    from kafkalog.checkpoints.commit_state import CommitState
    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.log_dir import PartitionDirectory

__all__ = ["Controller", "Quorum"]

_NO_WRITER: Final = "state"
"""What an intent that names no partition has in place of a writer, where nobody needs to know."""
_LOGGER: Final = logging.getLogger("kafkalog.sink")


class Controller:
    """The name of this process as a controller; another one after it does not know what it did."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin as another controller, whose epoch is a new one."""
        self.name = system.random_id().hex


@dataclass(frozen=True, slots=True)
class Quorum(Node):
    """The nodes of a replicated set whose locks are held; ``members`` has all directories of them.

    ``by_node`` has them by node and member id. ``voters`` are the nodes that decide, see
    :attr:`~kafkalog.checkpoints.commit_state.CommitState.voters`. ``failed`` says why a node is
    out.
    """

    by_node: Mapping[int, Mapping[str, Path]]
    voters: tuple[frozenset[int], ...]
    failed: dict[int, str] = field(default_factory=dict)
    behind: dict[tuple[int, TopicPartition], str] = field(default_factory=dict)
    """Why a replica could not be brought in sync, by its node."""
    undecided: list[int] = field(default_factory=list)
    """The sequence numbers of states that were prepared, and may be decided by others."""
    declared: list[CommitStamp] = field(default_factory=list)
    """The commits that were declared since the locks were taken."""

    @property
    def live(self) -> list[int]:
        """The nodes that are not out, in order."""
        return [node for node in self.by_node if node not in self.failed]

    @property
    def directories(self) -> list[Path]:
        """The log directories of the nodes that are not out."""
        return [folder for node in self.live for folder in self.by_node[node].values()]

    def nodes(self) -> Mapping[int, Mapping[str, Path]]:
        """Return the log directories of the nodes that are not out, by node and member id."""
        return {node: self.by_node[node] for node in self.live}

    def partitions(
        self, state: CommitState, *, has_locks: bool
    ) -> Mapping[TopicPartition, PartitionDirectory]:
        """Find the folders of leaders, for who has no locks as readers find them, with stamps."""
        if has_locks:
            return leader_folders(state, partitions_by_node(self.nodes()))
        return log_dirs_of_set(*self.directories).partitions()

    def replicas(self) -> Iterable[Mapping[TopicPartition, PartitionDirectory]]:
        """List the partitions of each node that is not out."""
        return partitions_by_node(self.nodes()).values()

    def is_whole(self, state: CommitState) -> bool:
        """Whether all nodes are there, and none is out."""
        return len(self.live) == len(state.nodes)

    @property
    def decides_alone(self) -> bool:
        """Whether no state lies prepared that others may decide."""
        return not self.undecided

    def member_at(self, folder: Path) -> str | None:
        """Return the member id of a log directory, None of one that is not there."""
        known = {path: member for member, path in self.members.items()}
        return known.get(folder) or known.get(Path(os.path.realpath(folder)))

    def node_of(self, member: str) -> int | None:
        """Return the node of a member id; None of one that is not there."""
        found = (node for node, members in self.by_node.items() if member in members)
        return next(found, None)

    def node_at(self, folder: Path) -> int | None:
        """Return the node that a log directory is of; None of one that is not there."""
        member = self.member_at(folder)
        return None if member is None else self.node_of(member)

    def has(self, folder: Path) -> bool:
        """Whether a log directory is of a node that is not out."""
        return self.node_at(folder) in self.live

    def fail(self, node: int, error: Exception) -> None:
        """Take a node out, for what happened on it.

        Raises:
            NotEnoughReplicasError: fewer than a majority are left, now or before.
        """
        if node not in self.failed:
            self.failed[node] = fault_of(error)
            _LOGGER.warning("node %d is out of sync from now on: %s", node, self.failed[node])
        # Another thread may have been told so, and its error may not be the one that is raised.
        self.check_majority()

    def check_majority(self) -> None:
        """See that enough nodes are left to decide.

        Raises:
            NotEnoughReplicasError: fewer than a majority are.
        """
        if is_majority(self.live, self.voters):
            return
        voters = next(each for each in self.voters if not is_majority(self.live, [each]))
        raise NotEnoughReplicasError(
            f"{len(voters & {*self.live})} of {len(voters)} nodes are left, and "
            f"{majority_of(len(voters))} are needed to decide: "
            + "; ".join(f"node {node}: {why}" for node, why in self.failed.items())
        )

    def intents(self) -> Iterator[Intent]:
        """Read the intents that lie there: each once for each node that has it, about that node."""
        for node in self.live:
            members = self.by_node[node]
            with self._out_if_it_fails(node):
                found = [load_intent(folder) for folder in members.values()]
                own = [_about(each, members) for each in found if each is not None]
                yield from (each for slot, each in enumerate(own) if each not in own[:slot])

    def stamps(self) -> Iterator[CommitStamp]:
        """Read which commits the directories hold, one after the other."""
        for node in self.live:
            with self._out_if_it_fails(node):
                found = [load_stamp(folder) for folder in self.by_node[node].values()]
                yield from (stamp for stamp in found if stamp is not None)

    def declare(self, intent: Intent) -> None:
        """Say on every node what is about to happen, durably, and keep brokers out.

        Raises:
            NotEnoughReplicasError: fewer than a majority have it.
        """
        for node, alone in self.isolated_per_node():
            with alone:
                node.declare(intent)
        self.declared.append(intent.stamp)

    def check_declared(self, stamp: CommitStamp) -> None:
        """See that every node says what is about to happen; one that does not is out.

        Raises:
            NotEnoughReplicasError: fewer than a majority do.
        """
        for node in self.live:
            with self.writing(node):
                Node(self.by_node[node]).check_declared(stamp)

    def publish(self, state: CommitState, check: Callable[[], None]) -> OSError | None:
        """Prepare a state on every node, then make it the truth, unless ``check`` raises before.

        Return why a majority may not have it after a loss of power, or of a node; None where it
        has.

        Raises:
            KafkaLogError: what ``check`` raises; nothing was published.
            CommitError: it is not known whether this state was published, or will be.
        """
        check()
        declares = self._declare_alone(state)
        self.undecided.append(state.sequence)
        try:
            prepared = [node for node in self.live if self._prepare(node, state)]
            check()
            self.check_majority()
            failed = self._decide(state, [node for node in prepared if node in self.live])
        except BaseException as error:
            remembered(Controller).begin()
            if not isinstance(error, KafkaLogError | OSError):
                raise
            raise CommitError(
                f"whether commit {state.sequence} will be published is not known: {error}. Its "
                "state lies beside the present one on some nodes, and the next writer that reaches "
                "a majority publishes it or rolls it back. A query, and a write with an id of its "
                "own, finds that out itself when it runs again"
            ) from error
        self.undecided.clear()
        if declares:
            with suppress(NotEnoughReplicasError):  # it is published, and stays so
                self.withdraw(durable=False)
        return failed

    def _declare_alone(self, state: CommitState) -> bool:
        """Declare a commit that was not declared; return whether it is to be withdrawn afterwards.

        One that is in place already is published again, and needs no other intent. One that is
        finished for somebody else has an intent, and keeps it under the new epoch: if that is cut
        off too, it alone tells what is to be rolled back. Any other changes no log.
        """
        if state.stamp in self.declared or state.stamp in self.stamps():
            return False
        begun = self._intent_of(state.stamp)
        if begun is None:
            self.declare(Intent.of_state(state, _NO_WRITER))
            return True
        self.declare(replace(begun, controller_epoch=state.controller_epoch))
        return False  # once it is published, who rolls back drops what was staged, and withdraws

    def _intent_of(self, stamp: CommitStamp) -> Intent | None:
        """Return the intent of a commit, of all nodes' partitions, that lies on a node."""
        found: list[Intent] = []
        for node in self.live:
            with self._out_if_it_fails(node):
                found += filter(None, map(load_intent, self.by_node[node].values()))
        same = [each for each in found if each.stamp == stamp]
        return max(same, key=lambda each: len(each.partitions), default=None)

    def _prepare(self, node: int, state: CommitState) -> bool:
        with self._out_if_it_fails(node):
            for member, folder in self.by_node[node].items():
                write_atomically(folder / PREPARED_FILE, state_bytes(state.of_member(member)))
            return True
        return False

    def _decide(self, state: CommitState, prepared: list[int]) -> OSError | None:
        """Rename what is prepared. The first rename is the commit."""
        in_place: set[int] = set()
        failed: OSError | None = None
        for node in prepared:
            try:
                with self.at(node):
                    for folder in self.by_node[node].values():
                        (folder / PREPARED_FILE).replace(folder / STATE_FILE)
                        in_place.add(node)
                        fsync_directory(folder)
            except OSError as error:
                failed = error
                with suppress(NotEnoughReplicasError):
                    self.fail(node, error)
        if not in_place:
            raise failed or LogDirectoryError(f"commit {state.sequence} is prepared on no node")
        durable = [node for node in in_place if node not in self.failed]
        return None if is_majority(durable, self.voters) else failed

    def withdraw(self, *, durable: bool) -> None:
        """Remove the intent on every node, which is over, and let a broker in again."""
        for node, alone in self.isolated_per_node():
            with alone:
                for folder in node.directories:
                    (folder / PREPARED_FILE).unlink(missing_ok=True)
                node.withdraw(durable=durable)

    def isolated_per_node(self) -> Iterator[tuple[Node, AbstractContextManager[None]]]:
        """Return each node that is not out, and what takes it out if something fails on it."""
        for node in self.live:
            yield Node(self.by_node[node]), self.writing(node)

    def repeated(self, state: CommitState) -> CommitState:
        """Return a state under the next epoch: others may lead, or be in sync, than where it is."""
        return replace(state, controller_epoch=state.controller_epoch + 1)

    def settled(self, state: CommitState) -> CommitState:
        """Return a state in which the nodes that are out are not in sync."""
        return shrunk(state, self.live)

    def taking_back(self, intent: Intent) -> AbstractContextManager[None]:
        """Take a node out on which an intent cannot be rolled back: it is brought in sync again."""
        nodes = {self.node_of(each.member_id) for each in intent.partitions}
        (node,) = nodes or {None}
        return nullcontext() if node is None else _OutIfItFails(self, node, LogDirectoryError)

    def writing(self, node: int) -> AbstractContextManager[None]:
        """Take a node out on which something cannot be written, or was not staged as it should."""
        return _OutIfItFails(self, node, CommitError, LogDirectoryError)

    def isolated_at(self, folder: Path) -> AbstractContextManager[None]:
        """Take the node out whose log directory cannot be changed, or holds what is damaged."""
        node = self.node_at(folder)
        return nullcontext() if node is None else _OutIfItFails(self, node, KafkaLogError)

    def at(self, node: int) -> AbstractContextManager[object]:
        """Return what the work on a node is done in, which may stall alone."""
        return at(next(iter(self.by_node[node].values())))

    def _out_if_it_fails(self, node: int) -> _OutIfItFails:
        return _OutIfItFails(self, node)


class _OutIfItFails:
    """Takes a node out on which a call of the system fails, or whose files cannot be read."""

    def __init__(self, nodes: Quorum, node: int, *others: type[KafkaLogError]) -> None:
        self._nodes = nodes
        self._node = node
        gone = (OSError, UnknownTopicOrPartitionError)  # the latter of a folder that is listed
        self._kinds: tuple[type[Exception], ...] = (*gone, CheckpointError, *others)
        self._at = nodes.at(node)

    def __enter__(self) -> None:
        self._at.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        self._at.__exit__(kind, error, traceback)
        if not isinstance(error, self._kinds):
            return False
        self._nodes.fail(self._node, error)
        return True


def _about(intent: Intent, members: Mapping[str, Path]) -> Intent:
    """Return an intent with the partitions of one node only."""
    own = tuple(each for each in intent.partitions if each.member_id in members)
    return replace(intent, partitions=own)
