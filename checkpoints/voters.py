"""Which nodes of a replicated set are there, and whether they are enough to know its newest state.

Example: three nodes, and one is not mounted. The other two are a majority: each commit that was
acknowledged is known to one of them at least.

Voters are those that the newest state names, in whatever order or number a path lists them. A node
that lacks one of its directories is missing as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafkalog.checkpoints.commit_stamp import PREPARED_FILE
from kafkalog.checkpoints.intent import counts_no_more, load_intent
from kafkalog.checkpoints.replica_state import majority_of
from kafkalog.checkpoints.state_file import load_state
from kafkalog.errors import CheckpointError, LogDirectoryError
from kafkalog.files.stalling import at, stalled

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from kafkalog.checkpoints.commit_state import CommitState

__all__ = [
    "FoundStates",
    "Voters",
    "check_one_set",
    "find_states",
    "find_voters",
    "members_of",
    "voters_of",
]


@dataclass(frozen=True)
class Voters:
    """The nodes of a set: those that can be looked at, and why the others cannot.

    ``states`` are those in place, by directory. ``live`` has the directories of whole nodes, by
    node and member id.
    """

    newest: CommitState
    states: Mapping[Path, CommitState]
    live: Mapping[int, Mapping[str, Path]]
    missing: Mapping[int, str]

    @property
    def majority(self) -> int:
        """How many nodes decide."""
        return majority_of(len(self.newest.nodes))

    def check_majority(self) -> None:
        """Refuse to go by fewer nodes than a majority: others may have decided more.

        Raises:
            LogDirectoryError: there are fewer; or fewer than a majority can have had the state that
                the newest one follows, so that nodes were restored from old copies.
        """
        if self.too_few_text:
            raise LogDirectoryError(self.too_few_text)
        self.check_one_history()

    @property
    def too_few_text(self) -> str:
        """Say that fewer nodes than a majority are there; nothing if that is not so."""
        if len(self.live) >= self.majority:
            return ""
        return (
            f"{len(self.live)} of the {len(self.newest.nodes)} nodes of set {self.newest.set_id} "
            f"can be looked at, and {self.majority} are needed to know what is committed: "
            f"{self.missing_text}. Mount them, and name all nodes, with ';' between them"
        )

    def check_one_history(self) -> None:
        """Refuse nodes that were restored from old copies.

        Raises:
            LogDirectoryError: fewer than a majority can have had the state that the newest one
                follows.
        """
        count = len(self.newest.nodes)
        old = [node for node in self.live if self.sequence_of(node) < self.newest.sequence - 1]
        if len(old) > count - self.majority:
            raise LogDirectoryError(
                f"nodes {old} of set {self.newest.set_id} are older than commit "
                f"{self.newest.sequence - 1}, which a majority of its {count} nodes had: they were "
                "restored from old copies. Nothing was changed. Put back what was there, or "
                "restore all nodes from one backup"
            )

    def check_known(self) -> None:
        """Refuse to go by what is in place where a missing node may have more in place.

        A state that lies prepared here may be in place there: then it is decided, and somebody may
        have seen it. What an older controller has prepared than one that has declared a commit
        since was not found by that one, and counts no more.

        Raises:
            LogDirectoryError: so it is.
            OSError, CheckpointError: a node cannot be read.
        """
        folders = [folder for members in self.live.values() for folder in members.values()]
        if not self.missing:
            return
        intents = [intent for folder in folders if (intent := load_intent(folder)) is not None]
        newest = self.newest
        for folder in folders:
            state = load_state(folder, PREPARED_FILE)
            if (
                state is not None
                and state.set_id == newest.set_id
                and state.sequence > newest.sequence
                and not counts_no_more(state, newest, intents)
            ):
                raise LogDirectoryError(
                    f"whether commit {state.sequence} of set {newest.set_id} was made is not "
                    f"known: {folder} holds it prepared, and where it may be in place is missing. "
                    f"The next write tells, or whoever is missing ({self.missing_text})"
                )

    @property
    def missing_text(self) -> str:
        """Say which nodes are missing, and why."""
        return "; ".join(f"node {node}: {why}" for node, why in sorted(self.missing.items()))

    @property
    def strangers_text(self) -> str:
        """Say which directories are of no node of the set, or not any more; nothing without any."""
        strange = [f for f, s in self.states.items() if s.member_id not in self.newest.member_ids]
        if not strange:
            return ""
        return (
            f"{', '.join(map(str, strange))} is no node of set {self.newest.set_id}: another one "
            "has its place, or it was not taken in yet. It does not vote, and its partitions are "
            "not read or written. Leave it out of the path"
        )

    def sequence_of(self, node: int) -> int:
        """Return the sequence number of the newest state that a live node has in place."""
        return max(self.states[folder].sequence for folder in self.live[node].values())


@dataclass(frozen=True)
class FoundStates:
    """The states in place of some log directories, by directory.

    ``failed`` is why others could not be read; ``without`` are those that have none.
    """

    states: Mapping[Path, CommitState]
    failed: Mapping[Path, OSError | CheckpointError]
    without: Sequence[Path]

    @property
    def away(self) -> dict[Path, str]:
        """Say of each directory that has no state, or a damaged one, why its node is missing."""
        return {
            **{folder: str(error) for folder, error in self.failed.items()},
            **{folder: _absent_text(folder) for folder in self.without},
        }


def _absent_text(folder: Path) -> str:
    try:
        return "holds no commit state" if folder.is_dir() else "is not there"
    except OSError as error:
        return str(error)


def find_states(folders: Iterable[Path]) -> FoundStates:
    """Read the commit states of log directories, whether or not all of them can be read."""
    states: dict[Path, CommitState] = {}
    failed: dict[Path, OSError | CheckpointError] = {}
    without: list[Path] = []
    for folder in folders:
        why = stalled(folder)
        if why is not None:
            failed[folder] = why
            continue
        try:
            with at(folder):
                found = load_state(folder)
        except (OSError, CheckpointError) as error:
            failed[folder] = error
            continue
        if found is None:
            without.append(folder)
        else:
            states[folder] = found
    return FoundStates(states, failed, without)


def find_voters(folders: Iterable[Path]) -> Voters | None:
    """Look for the nodes of a replicated set among log directories; None if they are none of one.

    A directory that is away, cannot be read, or holds no state or a damaged one, is missing.

    Raises:
        LogDirectoryError: the directories belong to different sets, or two are one member.
    """
    return voters_of(find_states(folders))


def voters_of(found: FoundStates) -> Voters | None:
    """Return the nodes of the replicated set whose states were found; as :func:`find_voters`.

    Raises:
        LogDirectoryError: the directories belong to different sets, or two are one member.
    """
    states = found.states
    if not any(state.is_replicated for state in states.values()):
        return None
    newest = max(states.values(), key=lambda state: state.rank)
    check_one_set(states)
    members, away = members_of(states), found.away
    live, missing = {}, {}
    for node in newest.nodes:
        lacking = [member for member in node.member_ids if member not in members]
        if lacking:
            missing[node.node_id] = _why(len(lacking), len(node.member_ids), away)
        else:
            live[node.node_id] = {member: members[member] for member in node.member_ids}
    return Voters(newest, states, live, missing)


def _why(lacking: int, count: int, away: Mapping[Path, str]) -> str:
    found = ", ".join(f"{folder} {why}" for folder, why in away.items())
    what = "its log directory" if count == 1 else f"{lacking} of its {count} log directories"
    return f"{what} not found " + (f"({found})" if found else "and not named in the path")


def check_one_set(states: Mapping[Path, CommitState]) -> None:
    """Refuse directories that do not belong together.

    Raises:
        LogDirectoryError: they are of different sets.
    """
    ids = {state.set_id for state in states.values()}
    if len(ids) > 1:
        raise LogDirectoryError(
            "these log directories belong to different sets, read them one set at a time: "
            + ", ".join(f"{folder} to set {state.set_id}" for folder, state in states.items())
        )


def members_of(states: Mapping[Path, CommitState]) -> dict[str, Path]:
    """Return the log directories of one set by member id.

    Raises:
        LogDirectoryError: two are one member.
    """
    members: dict[str, Path] = {}
    for folder, state in states.items():
        other = members.setdefault(state.member_id, folder)
        if other != folder:
            raise LogDirectoryError(
                f"log directories {other} and {folder} are the same member of their set: one is a "
                "copy of the other; leave it out"
            )
    return members
