"""What log directories have committed, and what is in progress: how a reader finds that out."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from kafkalog.checkpoints.intent import load_intent
from kafkalog.checkpoints.one_history import check_one_history
from kafkalog.checkpoints.state_file import load_state
from kafkalog.errors import LogDirectoryError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from kafkalog.checkpoints.commit_state import CommitState, PartitionState
    from kafkalog.checkpoints.intent import Intent

__all__ = ["Committed", "load_committed"]

_EMPTY: Final[Mapping[Any, Any]] = MappingProxyType({})


@dataclass(frozen=True)
class Committed:
    """What the log directories of one set have committed, and what is in progress there.

    A commit that runs meanwhile has to be seen whole or not at all. That depends on when a reader
    loads this, between listing folders, reading Kafka's checkpoint files and walking logs:
    :mod:`kafkalog.streaming.store.ends.watch` has the order, and why it holds.

    A partition that is :meth:`in_progress` and that the state does not know has no committed
    records.
    """

    state: CommitState | None
    unfinished: Intent | None
    members: Mapping[Path, str] = field(default_factory=lambda: _EMPTY)
    """The member ids of the directories that have a state."""

    def high_watermark(self, topic: str, topic_id: str | None, partition: int) -> int | None:
        """Return the committed end of a partition, None if the state does not know it."""
        known = self._partition(topic, topic_id, partition)
        return None if known is None else known.high_watermark

    def log_start(self, topic: str, topic_id: str | None, partition: int) -> int:
        """Return the offset below which nothing of a partition is read, 0 where none is known."""
        known = self._partition(topic, topic_id, partition)
        return 0 if known is None else known.log_start

    def _partition(self, topic: str, topic_id: str | None, partition: int) -> PartitionState | None:
        if self.state is None:
            return None
        if topic_id is None and (topic, partition) in self._being_made:
            return None  # it has no id yet; an earlier topic of its name was another one
        return self.state.partition(topic, topic_id, partition)

    @cached_property
    def _being_made(self) -> frozenset[tuple[str, int]]:
        intended = self.unfinished.partitions if self.unfinished else ()
        return frozenset(each.topic_partition for each in intended if each.created)

    def in_progress(self, topic: str, partition: int) -> bool:
        """Whether an unfinished commit may be writing this partition."""
        return (topic, partition) in self._partitions_in_progress

    @cached_property
    def _partitions_in_progress(self) -> frozenset[tuple[str, int]]:
        intended = self.unfinished.partitions if self.unfinished else ()
        return frozenset(partition.topic_partition for partition in intended)


def load_committed(directories: Iterable[Path]) -> Committed:
    """Read what is committed in log directories that belong together.

    Directories without a state (a broker's, a bare copy) do not matter here.

    Raises:
        CheckpointError: a state or intent is damaged or from a newer release.
        LogDirectoryError: the directories belong to different sets, or one was away while the
            others committed.
    """
    folders = list(directories)
    with suppress(LogDirectoryError):
        return _load_committed(folders)
    return _load_committed(folders)  # a commit came between the files that were read


def _load_committed(folders: Sequence[Path]) -> Committed:
    intents = {folder: intent for folder in folders if (intent := load_intent(folder)) is not None}
    states: dict[Path, CommitState] = {
        folder: state for folder in folders if (state := load_state(folder)) is not None
    }
    if len({state.set_id for state in states.values()}) > 1:
        raise LogDirectoryError(
            "these log directories belong to different sets, read them one set at a time: "
            + ", ".join(f"{folder} to set {state.set_id}" for folder, state in states.items())
        )
    check_one_history({folder: state.stamp for folder, state in states.items()}, intents)
    state = max(states.values(), key=lambda state: state.rank, default=None)
    intent = max(intents.values(), key=lambda intent: intent.sequence, default=None)
    published = -1 if state is None else state.sequence
    unfinished = intent if intent is not None and intent.sequence > published else None
    return Committed(state, unfinished, {folder: s.member_id for folder, s in states.items()})
