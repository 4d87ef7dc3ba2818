"""Find partitions and members that the commit state names and no directory contains."""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Final, NamedTuple

from kafkalog.checkpoints.broker import PARTITION_METADATA, read_topic_id
from kafkalog.checkpoints.commit_state import LOCK_FILE, STATE_FILE
from kafkalog.checkpoints.committed import Committed
from kafkalog.checkpoints.state_file import load_state
from kafkalog.errors import LogDirectoryError
from kafkalog.model import TopicPartition, listed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from kafkalog.checkpoints.commit_state import CommitState, TopicState
    from kafkalog.streaming.log.log_dir import PartitionDirectory


__all__ = [
    "NOTHING",
    "OFFLINE_REMEDY",
    "MissingMembers",
    "MissingParts",
    "find_missing_parts",
    "lost_id_text",
    "lost_of_living",
    "lost_partitions",
    "lost_text",
    "missing_members",
    "refuse_mount_points",
]


# ----------------------------------------------------------------------------------------------
# What the commit state of a set of log directories knows, and nobody has any more.
#
# A topic whose folders are all gone was deleted, as Kafka's topics are. One that lacks some of
# them has lost what was committed there: a folder was restored from an older copy, moved away, or
# deleted by hand. For a writer, to continue would place keys among fewer partitions, and hide the
# loss; for a reader, rows would be missing. Only a broker may have moved or removed single
# partitions, and `kafkalog broker takeover` says that one had the directories.
#
# That holds where all directories of the set are there. Each names all members of its set, so
# that one which is missing is noticed. Whether it was lost, or left out on purpose, is told by
# what was given in its place: see :class:`MissingMembers`.


OFFLINE_REMEDY: Final = (
    "Bring back a node that has one (`kafkalog node list` names them). If all of them are lost, "
    "`kafkalog node elect PATH --unclean --topic TOPIC` continues with another replica, and says "
    "what that loses"
)


class MissingMembers(NamedTuple):
    """Log directories of a set that are not among those that were given.

    ``given`` are its members that are there. ``without_state`` were given and hold no commit state:
    one of these is what is left of a member, such as the mount point of a disk that is not mounted.
    ``given_twice`` are other paths to members that are given, such as a link that leads to another
    disk than it should. Without any of both, somebody gave fewer directories than the set has, and
    meant it.
    """

    set_id: str
    members: int
    given: tuple[Path, ...]
    without_state: tuple[Path, ...]
    given_twice: tuple[Path, ...] = ()

    @property
    def are_lost(self) -> bool:
        """Whether they are meant to be there, as far as one can tell."""
        return bool(self.without_state or self.given_twice)

    def __str__(self) -> str:
        """Say what is missing, to whoever reads."""
        if self.are_lost:
            return self._lost_text
        return (
            f"{self._count_text} were not given: what lies in them is not read, and whether "
            f"something is missing beside {_listed(self.given)} cannot be told"
        )

    @property
    def refusal(self) -> str:
        """What is missing, for whoever wants to change the set."""
        only = f"{self._count_text} are missing: only {_listed(self.given)} was given"
        missing = self._lost_text if self.are_lost else only
        return f"{missing}. Partitions that live in the missing ones would start again at offset 0"

    @property
    def _lost_text(self) -> str:
        if not self.without_state:
            return (
                f"{self._count_text} are missing, and {_listed(self.given_twice)} leads to one "
                "that is given already: look where its link, or its mount, should lead"
            )
        return (
            f"{self._count_text} are missing, and {_listed(self.without_state)} holds no "
            f"{STATE_FILE}: a disk may not be mounted there"
        )

    @property
    def _count_text(self) -> str:
        count = self.members - len(self.given)
        return f"{count} of the {self.members} log directories of set {self.set_id}"


def missing_members(committed: Committed, directories: Sequence[Path]) -> MissingMembers | None:
    """Find out whether ``directories`` are all of their set; None if they are, or are of none.

    A set in which nothing was committed yet has lost nothing. Nor has a replicated set of which a
    majority is there.
    """
    state = committed.state
    if state is None or state.sequence == 0 or state.is_replicated:
        return None
    known: dict[str, Path] = {}
    twice, without = [], []
    for folder in directories:
        member = committed.members.get(folder)
        if member is None:
            without.append(folder)
        elif known.setdefault(member, folder) != folder:
            twice.append(folder)
    if not known or set(state.member_ids) <= known.keys():
        return None
    given = tuple(known.values())
    return MissingMembers(state.set_id, len(state.member_ids), given, tuple(without), tuple(twice))


def refuse_mount_points(folders: Sequence[Path]) -> None:
    """Refuse what is left of a set whose disks are not all mounted, before locks are made there.

    Not looked at here: folders that all have our lock file, which opening the set looks at, and a
    single folder, beside which nothing tells of a set.

    Raises:
        LogDirectoryError: a folder has nothing of the set, and the set lacks a member.
        CheckpointError: a state is damaged or from a newer release.
    """
    if len(folders) == 1 or _are_ours(folders):
        return
    states = {folder: state for folder in folders if (state := load_state(folder)) is not None}
    if len({state.set_id for state in states.values()}) != 1:
        return
    newest = max(states.values(), key=lambda state: state.rank)
    members = {folder: state.member_id for folder, state in states.items()}
    missing = missing_members(Committed(newest, None, members), folders)
    # Whoever takes the folder into the set meanwhile has made a lock there.
    if missing is not None and missing.are_lost and not _are_ours(missing.without_state):
        raise LogDirectoryError(missing.refusal)


def _are_ours(folders: Sequence[Path]) -> bool:
    return all((folder / LOCK_FILE).exists() for folder in folders)


def lost_partitions(topic: TopicState, there: Collection[TopicPartition]) -> list[int]:
    """Return the partitions of a topic that are committed and not ``there``, ascending."""
    name = topic.name
    # Pairs that are equal to a TopicPartition: there may be 10,000 at each commit.
    if all(map(there.__contains__, zip(repeat(name), topic.partitions))):
        return []
    return sorted(p for p in topic.partitions if (name, p) not in there)


def lost_of_living(
    state: CommitState, there: Mapping[TopicPartition, PartitionDirectory]
) -> Iterator[tuple[TopicState, list[int]]]:
    """Return what topics have lost that are still there, in some partition: each with its numbers.

    A partition with replicas is lost if none of them is in sync here. Its topic is always still
    there: a replicated topic is not deleted by removing folders.

    Raises:
        CheckpointError: a topic's id in a folder that cannot be trusted.
    """
    for key, topic in state.topics.items():
        lost = lost_partitions(topic, there)
        if lost and (topic.replicas or key in _living_keys(state, topic.name, there)):
            yield topic, lost


def _living_keys(
    state: CommitState, name: str, there: Mapping[TopicPartition, PartitionDirectory]
) -> Iterator[str]:
    """Return the keys that the folders of a topic lead to; few look, so nothing is kept."""
    for key, found in there.items():
        if key.topic == name:
            yield state.key_of(name, read_topic_id(found.path))


def lost_text(topic: TopicState, lost: Collection[int]) -> str:
    """Say what is lost of a topic, and what to do."""
    ends = ", ".join(f"{topic.name}-{p} up to offset {topic.partitions[p].log_end}" for p in lost)
    if topic.replicas:
        return f"no replica in sync is there of {ends}. {OFFLINE_REMEDY}"
    return (
        f"topic {topic.name!r} lacks folders of partitions that were committed: {ends}. Restore "
        "them. If a broker had these directories and moved or removed them, run `kafkalog broker "
        "takeover`"
    )


def lost_id_text(folder: Path, topic: str, key: str) -> str:
    """Say that a folder has no topic id though the state knows its topic by one, ``key``."""
    return (
        f"{folder} has no {PARTITION_METADATA}, and what is committed of topic {topic!r} lies "
        f"under the topic id {key}: the folder was lost, or others have put it there. Restore it; "
        f"or, if it is the folder of that topic, write the file again: "
        f"printf 'version: 0\\ntopic_id: {key}' > {folder / PARTITION_METADATA}"
    )


def _listed(folders: Sequence[Path]) -> str:
    return ", ".join(map(str, folders))


# ----------------------------------------------------------------------------------------------
# What a query should find in the log directories and does not: members of the set, partitions.
#
# The sink refuses such directories. A query fails, or with ``failOnDataLoss=false`` says once
# what it continues without. Fewer directories than the set has may have been given on purpose:
# that is said once, and is no loss.


class MissingParts(NamedTuple):
    """What is missing: directories, if any, and partitions with the ends that are committed."""

    members: MissingMembers | None
    partitions: Mapping[TopicPartition, int]
    are_replicated: bool = False

    @property
    def is_loss(self) -> bool:
        """Whether it should be there; else fewer directories were given on purpose."""
        return bool(self.partitions) if self.members is None else self.members.are_lost

    def __str__(self) -> str:
        """Say what is missing, for a person."""
        ends = [f"{key} up to offset {end}" for key, end in sorted(self.partitions.items())]
        shown = listed(ends)
        if self.are_replicated:
            return f"These partitions have no replica in sync here: {shown}. {OFFLINE_REMEDY}"
        if self.members is None:
            return (
                f"These partitions were committed and have no folder: {shown}. Restore them; or, "
                "if a broker had these directories and moved or removed them, run "
                "`kafkalog broker takeover`."
            )
        return f"{self.members}." + (f" Committed, and not here, are {shown}." if ends else "")


NOTHING: Final = MissingParts(None, {})


def find_missing_parts(
    committed: Committed,
    paths: Sequence[Path],
    there: Mapping[TopicPartition, PartitionDirectory],
    selects: Callable[[TopicPartition], bool],
) -> MissingParts:
    """Hold what lies in log directories against what their commit state names.

    Args:
        committed: what the directories say; without a commit state nothing can be missed.
        paths: what was given: log directories, or folders of single partitions, of which nobody
            expects more.
        there: the partitions that were found in them.
        selects: which partitions are meant. One without committed records is none to miss.
    """
    state = committed.state
    folders = {where.path for where in there.values()}
    directories = [path for path in paths if path not in folders]
    if state is None or not any(folder in committed.members for folder in directories):
        return NOTHING
    members = missing_members(committed, directories)
    # While a directory is missing, a topic without any folder may lie there: count all of them.
    found = (
        lost_of_living(state, there)
        if members is None
        else (
            (topic, [p for p in topic.partitions if (topic.name, p) not in there])
            for topic in state.topics.values()
        )
    )
    lost = {
        key: end
        for topic, numbers in found
        for number in numbers
        if (end := topic.partitions[number].high_watermark)
        and selects(key := TopicPartition(topic.name, number))
    }
    if members is None and not lost:
        return NOTHING
    return MissingParts(members, lost, state.is_replicated)
