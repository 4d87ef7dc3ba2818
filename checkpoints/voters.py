"""The nodes of a replicated set that are there, and whether they are a quorum.

Example: three nodes, and one is not mounted. The other two are a majority: each commit that was
acknowledged is known to one of them at least.

Voters are those that the newest state names, in whatever order or number a path lists them. A node
that lacks one of its directories is missing as a whole.

A directory whose state is damaged, removed or of another set is that node's alone, as long as a
majority is there without it: :attr:`Voters.lost` says which ones are whose.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.commit_state import PREPARED_FILE, STATE_FILE, majority_of
from kafkalog.checkpoints.intent import counts_no_more, load_intent
from kafkalog.checkpoints.sealed_file import read_head
from kafkalog.checkpoints.state_file import load_state
from kafkalog.errors import CheckpointError, LogDirectoryError
from kafkalog.files.timeouts import at, stalled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from kafkalog.checkpoints.commit_state import CommitState, NodeState

__all__ = [
    "FROM_ONE_NODE",
    "FoundStates",
    "Voters",
    "check_one_set",
    "fault_of",
    "find_states",
    "find_voters",
    "members_of",
    "require_voters",
    "voters_of",
]


FROM_ONE_NODE: Final = (
    "If too many have lost what they hold, restore a backup in an empty place; or continue from "
    "what the logs of one node hold: move its kafkalog.* files away, and run `kafkalog broker "
    "takeover` with its log directories alone: it forgets who has written what. Name what you have "
    "then as the first node of a path, with empty directories as the others: the next writes copy "
    "it there"
)
"""What to do about a replicated set of which no majority is left."""

_WENT_AWAY: Final = "the commit states went away while they were read: try again"


@dataclass(frozen=True)
class Voters:
    """The nodes of a set: those that can be looked at, and why the others cannot.

    ``states`` are those in place, by directory. ``live`` has the directories of whole nodes, by
    node and member id; ``lost`` those of missing nodes which are there without a state of this set.
    """

    newest: CommitState
    states: Mapping[Path, CommitState]
    live: Mapping[int, Mapping[str, Path]]
    missing: Mapping[int, str]
    found: FoundStates
    lost: Mapping[int, Mapping[str, Path]]

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
        text = (
            f"{len(self.live)} of the {len(self.newest.nodes)} nodes of set {self.newest.set_id} "
            f"can be looked at, and {self.majority} are needed to know what is committed: "
            f"{self.missing_text}. Mount them, and name all nodes, with ';' between them"
        )
        has_lost = any(map(self.found.lacks_state, self.found.away))
        return f"{text}. {FROM_ONE_NODE}" if has_lost else text

    def check_one_history(self) -> None:
        """Refuse nodes that were restored from old copies.

        Raises:
            LogDirectoryError: fewer than a majority can have had the state that the newest one
                follows; or nodes have made different commits with one number.
        """
        self._refuse_fork()
        count = len(self.newest.nodes)
        old = [node for node in self.live if self.sequence_of(node) < self.newest.sequence - 1]
        if len(old) > count - self.majority:
            raise LogDirectoryError(
                f"nodes {old} of set {self.newest.set_id} are older than commit "
                f"{self.newest.sequence - 1}, which a majority of its {count} nodes had: they were "
                "restored from old copies. Nothing was changed. Put back what was there, or "
                "restore all nodes from one backup"
            )

    def _refuse_fork(self) -> None:
        """Refuse nodes of which some were put back and went on while the others were away."""
        newest = self.newest
        ids = {newest.sequence: newest.commit_id, newest.sequence - 1: newest.previous}
        stamps = {n: [self.states[f].stamp for f in live.values()] for n, live in self.live.items()}
        other = {
            node: min(s.sequence for s in own if ids.get(s.sequence) not in {None, "", s.commit_id})
            for node, own in stamps.items()
            if any(ids.get(s.sequence) not in {None, "", s.commit_id} for s in own)
        }
        if not other:
            return
        sequence = min(other.values())
        same = [n for n, own in stamps.items() if n not in other and max(own).sequence >= sequence]
        others, most = sorted((sorted(other), same), key=len)
        folders = [folder for node in others for folder in self.live[node].values()]
        ways = (
            f"To go on with nodes {most}, move {', '.join(map(str, folders))} away. Then put an "
            f"empty node in the place of each: `kafkalog node vote PATH --replace "
            f"{others[0]}=NEW`. "
            "What only the folders that were moved away hold is read from them alone, with "
            "failOnDataLoss=false. Or restore all nodes from one backup"
            if len(most) >= self.majority
            else "Restore all nodes from one backup"
        )
        raise LogDirectoryError(
            f"nodes {most} and {others} of set {self.newest.set_id} have each made another commit "
            f"{sequence}: some of them were put back as older copies, and were written to while "
            f"the others were away. Either has records that the other lacks. Nothing was changed. "
            f"{ways}"
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

    def without(self, lost: Mapping[int, object]) -> Voters:
        """Return the voters without some nodes, as if these were missing."""
        live = {node: members for node, members in self.live.items() if node not in lost}
        gone = dict.fromkeys(self.live.keys() & lost.keys(), "has lost its state")
        return replace(self, live=live, missing={**self.missing, **gone})

    def sequence_of(self, node: int) -> int:
        """Return the sequence number of the newest state that a live node has in place."""
        return max(self.states[folder].sequence for folder in self.live[node].values())


@dataclass(frozen=True)
class FoundStates:
    """The states in place of some log directories, by directory.

    ``failed`` is why others could not be read; ``without`` are those that have none. ``foreign``
    are states of another set than that which a majority of its nodes tells of.
    """

    states: Mapping[Path, CommitState]
    failed: Mapping[Path, OSError | CheckpointError]
    without: Sequence[Path]
    foreign: Mapping[Path, CommitState] = field(default_factory=dict)

    @property
    def away(self) -> dict[Path, str]:
        """Say of each directory that has no state of its set why its node is missing."""
        return {
            **{folder: _failure_text(folder, error) for folder, error in self.failed.items()},
            **{folder: _absent_text(folder) for folder in self.without},
            **{folder: f"{folder} belongs to set {s.set_id}" for folder, s in self.foreign.items()},
        }

    def lacks_state(self, folder: Path) -> bool:
        """Whether a directory is there, and what it has in place of a state of its set is none."""
        error = self.failed.get(folder)
        if error is not None:
            return isinstance(error, CheckpointError) and bool(error.fault)
        try:
            return folder.is_dir()
        except OSError:
            return False

    def is_empty(self, folder: Path) -> bool:
        """Whether a directory without a state holds nothing that a node has."""
        if folder not in self.without:
            return False
        try:
            names = [entry.name for entry in folder.iterdir() if entry.name != "lost+found"]
        except OSError:
            return False
        return not any(name[-1:].isdecimal() or name.startswith("kafkalog.") for name in names)


def _failure_text(folder: Path, error: Exception) -> str:
    text = fault_of(error)
    return text if str(folder) in text else f"{folder}: {text}"


def fault_of(error: Exception) -> str:
    """Return what is wrong on a node, without what to do about it in a set of one."""
    return (isinstance(error, CheckpointError) and error.fault) or str(error)


def _named_members(found: FoundStates, lacking: Mapping[str, int]) -> dict[str, Path]:
    """Return the directories whose damaged states still name a member that is lacking."""
    named: dict[str, Path] = {}
    for folder in found.failed:
        with suppress(OSError, CheckpointError):
            head = read_head(folder / STATE_FILE) if found.lacks_state(folder) else None
            member = None if head is None else head.get("member")
            if isinstance(member, str) and member in lacking:
                named.setdefault(member, folder)
    return named


def _absent_text(folder: Path) -> str:
    try:
        return f"{folder} " + ("holds no commit state" if folder.is_dir() else "is not there")
    except OSError as error:
        return f"{folder}: {error}"


def find_states(
    folders: Iterable[Path], read: Callable[[Path], CommitState | None] = load_state
) -> FoundStates:
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
                found = read(folder)
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


def require_voters(folders: Sequence[Path], refusal: str = "") -> Voters:
    """Return the nodes of the replicated set that log directories are those of.

    ``refusal`` says what is wrong if they are none of one; without it they were a moment ago.

    Raises:
        LogDirectoryError: they are none of one, or belong to different sets.
    """
    voters = find_voters(folders)
    if voters is None:
        why = f"{', '.join(map(str, folders))}: {refusal}" if refusal else _WENT_AWAY
        raise LogDirectoryError(why)
    return voters


def voters_of(found: FoundStates) -> Voters | None:
    """Return the nodes of the replicated set whose states were found; None without any.

    Raises:
        LogDirectoryError: the directories belong to different sets, or two are one member.
    """
    if not any(state.is_replicated for state in found.states.values()):
        return None
    found = _without_foreign(found)
    states = found.states
    newest = max(states.values(), key=lambda state: state.rank)
    check_one_set(states)
    members = members_of(states)
    lacking = {
        node.node_id: [member for member in node.member_ids if member not in members]
        for node in newest.nodes
        if not members.keys() >= {*node.member_ids}
    }
    live = {
        node.node_id: {member: members[member] for member in node.member_ids}
        for node in newest.nodes
        if node.node_id not in lacking
    }
    without = _without_state(found, lacking) if lacking else {}
    missing, lost = {}, {}
    for node in newest.nodes:
        own = without.get(node.node_id, {})
        if node.node_id in lacking:
            missing[node.node_id] = _why(node, lacking[node.node_id], own, found)
        if own and len(own) == len(lacking[node.node_id]):
            lost[node.node_id] = {m: members.get(m) or own[m] for m in node.member_ids}
    return Voters(newest, states, live, missing, found, lost)


def _without_state(
    found: FoundStates, lacking: Mapping[int, Sequence[str]]
) -> dict[int, dict[str, Path]]:
    """Return the directories that are there without a state of their set, by node and member id.

    A damaged state may still name its member. Else a directory is known where it is the only one,
    or one of the only node, that can be meant.
    """
    nodes = {member: node for node, members in lacking.items() for member in members}
    whose = _named_members(found, nodes)
    rest = [member for member in nodes if member not in whose]
    folders = [each for each in found.away if each not in whose.values()]
    if len(rest) == len(folders) and len({nodes[member] for member in rest}) == 1:
        whose |= zip(rest, folders, strict=True)
    by_node: dict[int, dict[str, Path]] = {}
    for member, folder in whose.items():
        if found.lacks_state(folder):
            by_node.setdefault(nodes[member], {})[member] = folder
    return by_node


def _why(
    node: NodeState, lacking: Sequence[str], lost: Mapping[str, Path], found: FoundStates
) -> str:
    """Say why a node is missing, by its own directories as far as they are known."""
    if len(lost) == len(lacking):
        new = next((folder for folder in lost.values() if found.is_empty(folder)), None)
        text = ", ".join(found.away[folder] for folder in lost.values())
        if new is None or len(node.member_ids) > 1:
            return text
        place = f"witness:{new}" if node.is_witness else new
        advice = f"`kafkalog node vote PATH --replace {node.node_id}={place}` takes it in"
        return f"{text}, nor anything else: mount its disk; or, if that is a new one, {advice}"
    count = len(node.member_ids)
    texts = ", ".join(found.away.values())
    what = "its log directory" if count == 1 else f"{len(lacking)} of its {count} log directories"
    return f"{what} not found " + (f"({texts})" if texts else "and not named in the path")


def _without_foreign(found: FoundStates) -> FoundStates:
    """Set apart the states of other sets, where one set has a majority and lacks as many members.

    Else it is a path that names several sets: nobody can tell which one is meant.
    """
    ids = {state.set_id for state in found.states.values()}
    for set_id in ids if len(ids) > 1 else ():
        own = {folder: s for folder, s in found.states.items() if s.set_id == set_id}
        newest = max(own.values(), key=lambda state: state.rank)
        members = {state.member_id for state in own.values()}
        whole = [node for node in newest.nodes if members >= {*node.member_ids}]
        foreign = {folder: s for folder, s in found.states.items() if folder not in own}
        is_one = len(foreign) <= len({*newest.member_ids} - members)
        if is_one and len(whole) >= majority_of(len(newest.nodes)):
            return replace(found, states=own, foreign=foreign)
    return found


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
