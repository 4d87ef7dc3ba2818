"""Read what log directories have committed, and which commit is in progress."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from kafkalog.checkpoints.commit_state import PREPARED_FILE
from kafkalog.checkpoints.intent import load_intent
from kafkalog.checkpoints.state_file import load_state
from kafkalog.checkpoints.voters import check_one_set, find_states, find_voters, voters_of
from kafkalog.errors import CheckpointError, LogDirectoryError
from kafkalog.files.system import once_per_process, remembered, system
from kafkalog.files.timeouts import stalled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from kafkalog.checkpoints.commit_state import CommitStamp, CommitState, PartitionState
    from kafkalog.checkpoints.intent import Intent
    from kafkalog.checkpoints.voters import Voters


__all__ = ["Committed", "check_one_history", "load_committed"]


# ----------------------------------------------------------------------------------------------
# Whether the directories of a set tell of one history of commits.
#
# Example: a commit is killed, and one directory is replaced by an older copy. The batch is
# committed again, perhaps with other rows. Then the first directory comes back, with records of
# the killed commit where the others have those of the new one. Its log ends where it should, so
# only its commit state and its intent tell.


def check_one_history(stamps: Mapping[Path, CommitStamp], intents: Mapping[Path, Intent]) -> None:
    """Refuse a directory that was away while the others committed in place of its last commit.

    All directories get each state, and lose their intents, before the next commit is declared. So
    a directory whose state is older than its intent is at the last commit of all: that one is
    unfinished, or published elsewhere already. ``stamps`` are those of all states.

    Raises:
        LogDirectoryError: there is one.
    """
    if not stamps:
        return
    newest = max(stamps.values(), key=lambda stamp: stamp.sequence)
    for folder, stamp in stamps.items():
        is_other = stamp.sequence == newest.sequence and stamp.commit_id != newest.commit_id
        intent = intents.get(folder)
        if intent is not None and stamp.sequence < intent.sequence <= newest.sequence:
            is_other |= intent.stamp != newest
        if is_other:
            raise LogDirectoryError(
                f"log directory {folder} has begun or made another commit than the others after "
                f"commit {stamp.sequence}: it was replaced by a copy meanwhile, and its records "
                "may be of another attempt of a batch. Nothing was changed. Put back the copy that "
                "was written to since, or restore all log directories of the set from one backup"
            )


# ----------------------------------------------------------------------------------------------

_LOGGER: Final = logging.getLogger("kafkalog.source")

_RESTS_SECONDS: Final = (0.01, 0.05, 0.2, 0.5)
"""How long a reader waits between its looks at what is prepared."""

_EMPTY: Final[Mapping[Any, Any]] = MappingProxyType({})


@dataclass(frozen=True)
class Committed:
    """What the log directories of one set have committed, and what is in progress there.

    A commit that runs meanwhile has to be seen whole or not at all. That depends on when a reader
    loads this, between listing folders, reading Kafka's checkpoint files and walking logs:
    :mod:`kafkalog.streaming.store.ends.tracker` has the order, and why it holds.

    A partition that is :meth:`in_progress` and that the state does not know has no committed
    records.
    """

    state: CommitState | None
    unfinished: Intent | None
    members: Mapping[Path, str] = field(default_factory=lambda: _EMPTY)
    """The member ids of the directories that have a state."""
    lacks_majority: bool = False
    """Whether fewer nodes of a replicated set are there than decide."""

    def high_watermark(self, topic: str, topic_id: str | None, partition: int) -> int | None:
        """Return the committed end of a partition, None if the state does not know it."""
        known = self.partition(topic, topic_id, partition)
        return None if known is None else known.high_watermark

    def log_start(self, topic: str, topic_id: str | None, partition: int) -> int:
        """Return the offset below which nothing of a partition is read, 0 where none is known."""
        known = self.partition(topic, topic_id, partition)
        return 0 if known is None else known.log_start

    def partition(self, topic: str, topic_id: str | None, partition: int) -> PartitionState | None:
        """Return where a partition stands, None if the state does not know it."""
        if self.state is None:
            return None
        if topic_id is None and (topic, partition) in self.being_made:
            return None  # it has no id yet; an earlier topic of its name was another one
        return self.state.partition(topic, topic_id, partition)

    @cached_property
    def being_made(self) -> frozenset[tuple[str, int]]:
        """The partitions whose folders an unfinished commit makes: it may be undone."""
        intended = self.unfinished.partitions if self.unfinished else ()
        return frozenset(each.topic_partition for each in intended if each.created)

    def in_progress(self, topic: str, partition: int) -> bool:
        """Whether an unfinished commit may be writing this partition."""
        return (topic, partition) in self._partitions_in_progress

    @cached_property
    def _partitions_in_progress(self) -> frozenset[tuple[str, int]]:
        intended = self.unfinished.partitions if self.unfinished else ()
        return frozenset(partition.topic_partition for partition in intended)


def load_committed(
    directories: Iterable[Path],
    *,
    for_reader: bool = False,
    needs_majority: bool = True,
    read: Callable[[Path], CommitState | None] = load_state,
) -> Committed:
    """Read what is committed in log directories that belong together.

    Directories without a state (a broker's, a bare copy) do not matter here. ``for_reader``: what
    was seen once has to be seen again, whichever node of a replicated set is missing since. One of
    which fewer nodes than a majority are there is read only if it ``needs_majority`` not, and that
    is said once: others may have committed more. ``read`` gives the state of a directory.

    Raises:
        CheckpointError: a state or intent is damaged or from a newer release.
        LogDirectoryError: the directories belong to different sets, or one was away while the
            others committed; or it is not known, for a reader, what is committed.
    """
    folders = list(directories)
    if for_reader and needs_majority and len(folders) > 1:
        _wait_until_known(folders)
    with suppress(LogDirectoryError):
        return _load_committed(folders, needs_majority, read)
    # A commit came between the files that were read.
    return _load_committed(folders, needs_majority, read)


def _wait_until_known(folders: Sequence[Path]) -> None:
    """Wait for a writer that is about to put in place what it has prepared.

    Raises:
        LogDirectoryError: it was cut off there, and a node is missing that may have it in place.
    """
    for rest in (*_RESTS_SECONDS, None):
        if not any(map(_has_prepared, folders)):
            return
        try:
            voters = find_voters(folders)
            if voters is not None:
                voters.check_known()
        except LogDirectoryError:
            if rest is None:
                raise
            system.sleep(rest)
        except (OSError, CheckpointError):
            return  # it went away meanwhile: who reads next sees that
        else:
            return


def _has_prepared(folder: Path) -> bool:
    """Return whether a state lies prepared in a directory that can be looked at."""
    try:
        return stalled(folder) is None and (folder / PREPARED_FILE).exists()
    except OSError:
        return False


def _load_committed(
    folders: Sequence[Path],
    needs_majority: bool,
    read: Callable[[Path], CommitState | None],
) -> Committed:
    intents, failed = _intents_of(folders)
    found = find_states(folders, read)
    voters = voters_of(found)
    if voters is not None:
        return _of_nodes(voters, intents, needs_majority)
    for error in (*failed, *found.failed.values()):
        raise error
    states = found.states
    check_one_set(states)
    check_one_history({folder: state.stamp for folder, state in states.items()}, intents)
    state = max(states.values(), key=lambda state: state.rank, default=None)
    members = {folder: state.member_id for folder, state in states.items()}
    return Committed(state, _unfinished(state, intents.values()), members)


def _of_nodes(voters: Voters, intents: Mapping[Path, Intent], needs_majority: bool) -> Committed:
    """Return what a replicated set has committed, by a majority of its nodes if that is needed.

    A node whose intent cannot be read is out by now: the others have it, too.
    """
    if needs_majority:
        voters.check_majority()
    too_few = voters.too_few_text
    if too_few:
        _tell_too_few(too_few)
    elif voters.missing:
        _tell_missing(voters)
    if voters.strangers_text:
        _tell_strangers(voters.strangers_text)
    members = {folder: member for each in voters.live.values() for member, folder in each.items()}
    live = [intents[folder] for folder in members if folder in intents]
    return Committed(voters.newest, _unfinished(voters.newest, live), members, bool(too_few))


def _intents_of(
    folders: Sequence[Path],
) -> tuple[dict[Path, Intent], list[OSError | CheckpointError]]:
    """Read the intents of log directories; also return why others could not be read."""
    intents: dict[Path, Intent] = {}
    failed: list[OSError | CheckpointError] = []
    for folder in folders:
        why = stalled(folder)
        if why is not None:
            failed.append(why)
            continue
        try:
            intent = load_intent(folder)
        except (OSError, CheckpointError) as error:
            failed.append(error)
            continue
        if intent is not None:
            intents[folder] = intent
    return intents, failed


def _unfinished(state: CommitState | None, intents: Iterable[Intent]) -> Intent | None:
    """Return the newest intent, if the commit that it is of is not published."""
    newest = max(intents, key=lambda intent: intent.sequence, default=None)
    published = -1 if state is None else state.sequence
    return newest if newest is not None and newest.sequence > published else None


class _ToldMissing(set[tuple[str, tuple[int, ...]]]):
    """Of which sets, and which of their nodes, this process has said that they are missing."""


def _tell_missing(voters: Voters) -> None:
    """Say once that a set is read without some of its nodes, whatever keeps them away by then."""
    what = voters.newest.set_id, tuple(sorted(voters.missing))
    if what not in remembered(_ToldMissing):
        remembered(_ToldMissing).add(what)
        text = "set %s is read without some of its nodes: %s"
        _LOGGER.warning(text, voters.newest.set_id, voters.missing_text)


@once_per_process
def _tell_strangers(text: str) -> None:
    """Say once that a directory that is named is of no node of the set."""
    _LOGGER.warning("%s", text)


@once_per_process
def _tell_too_few(text: str) -> None:
    """Say once that what is read may not be all that is committed."""
    _LOGGER.warning("the newest records may not be read: %s", text)
