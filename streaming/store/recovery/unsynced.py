"""Find the unsynced records of ``flush=os`` that a loss of power took.

The commit state says how far each log is durable, and to which run of the machine the rest was
left. If the machine has started again since, everything from there on is looked at, as by a broker
that recovers from its recovery point. Walking to the end of a log is not enough: any part of what
was not synced may have survived, and a whole batch may lie after a hole.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

from kafkalog.checkpoints.broker import CLEANER_OFFSET, read_topic_id
from kafkalog.checkpoints.commit_state import topic_key
from kafkalog.errors import DataLossError, UnknownTopicOrPartitionError
from kafkalog.files.system import system
from kafkalog.model import TopicPartition
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.log.valid_batches import find_valid_end
from kafkalog.streaming.store.log_dirs import LogDirs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from kafkalog.checkpoints.commit_state import CommitState, TopicState
    from kafkalog.streaming.log.log_dir import PartitionDirectory

__all__ = ["LostOffsets", "UnsyncedCheck", "advice", "find_lost", "lost_text"]

_ATTEMPTS: Final = 5
_SHOWN: Final = 10
_COMMAND: Final = "kafkalog recover --accept-os-loss"


class LostOffsets(NamedTuple):
    """Committed offsets ``[start, end)`` that are not in the log; ``key`` is its topic's.

    Below ``durable_end`` a loss of power takes nothing: damage there is another.
    """

    where: PartitionDirectory
    key: str
    durable_end: int
    start: int
    end: int


def find_lost(
    state: CommitState,
    partitions: Mapping[TopicPartition, PartitionDirectory],
    *,
    checked: dict[tuple[str, int], int] | None = None,
) -> Iterator[LostOffsets]:
    """Walk over all that was left unsynced, and yield what is not there.

    ``checked`` says up to where logs are known to be whole, by topic key and partition; it is moved
    on.
    """
    known = {} if checked is None else checked
    # Between segments that were cleaned offsets may be missing: of what was durable, since cleaners
    # make durable what they clean.
    compacted = LogDirs.checkpoint(CLEANER_OFFSET, partitions.values())
    for key, topic in state.topics.items():
        for number, durable_end in topic.durable_ends.items():
            where = partitions.get(TopicPartition(topic.name, number))
            if where is None or topic_key(topic.name, read_topic_id(where.path)) != key:
                continue  # a partition that is gone is reported elsewhere
            end = topic.partitions[number].log_end
            start = max(durable_end, known.get((key, number), 0))
            if start >= end:
                continue
            whole = _whole_end(where, start, end, has_gaps=where.topic_partition in compacted)
            if whole < end:
                yield LostOffsets(where, key, durable_end, whole, end)
            else:
                known[key, number] = end


class UnsyncedCheck:
    """Looks for readers, once for each commit, and not again at what was seen to be whole."""

    def __init__(self) -> None:
        self._whole: dict[tuple[str, int], int] = {}
        self._sequence = -1

    def check(
        self,
        state: CommitState,
        partitions: Callable[[], Mapping[TopicPartition, PartitionDirectory]],
    ) -> None:
        """Refuse to read what flush=os left to a machine that has started again, and lost it.

        Raises:
            DataLossError: it lacks committed records.
        """
        if state.boot in {None, system.boot_id()} or state.sequence == self._sequence:
            return
        found = find_lost(state, partitions(), checked=self._whole)
        if lost := list(found):
            raise DataLossError(lost_text(lost))
        self._sequence = state.sequence


def lost_text(lost: Iterable[LostOffsets]) -> str:
    """Say what is lost, and what to do."""
    found = list(lost)
    shown = [f"{each.where.topic_partition} [{each.start}, {each.end})" for each in found[:_SHOWN]]
    more = f" and {len(found) - _SHOWN} more partitions" if len(found) > _SHOWN else ""
    return (
        "the machine has started again since flush=os left records to it, and these committed "
        f"offsets are not on the disk: {', '.join(shown)}{more}. Restore the log directories, or "
        f"run `{_COMMAND}` to continue without them"
    )


def advice(topic: TopicState | None, partition: int) -> str:
    """Say what else may be done about a log that is too short, if flush=os wrote it last."""
    if topic is None or partition not in topic.durable_ends:
        return ""
    return (
        f". If the machine lost power: from offset {topic.durable_ends[partition]} on the records "
        f"had been left to it by flush=os, and `{_COMMAND}` lets the log continue without those "
        "that are lost"
    )


def _whole_end(where: PartitionDirectory, start: int, end: int, *, has_gaps: bool) -> int:
    """Return the first offset from ``start`` on that is missing or damaged; ``end`` if none is."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return _walk(where, start, end, has_gaps=has_gaps)
        except FileNotFoundError:  # rolled, cleaned or deleted meanwhile
            continue
        except UnknownTopicOrPartitionError:
            return end
    return _walk(where, start, end, has_gaps=has_gaps)


def _walk(where: PartitionDirectory, start: int, end: int, *, has_gaps: bool) -> int:
    with PartitionLog(where.path, where.topic_partition) as log:
        bases = [segment.base_offset for segment in log.segments]
        first = max(0, bisect_right(bases, start) - 1)
        for number, segment in enumerate(log.segments[first:], start=first + 1):
            with segment:
                found = find_valid_end(segment, 0)
            reached = found.next_offset
            if reached >= end or number == len(bases):
                return min(reached, end)
            is_cleaned = has_gaps and found.problem is None and bases[number] <= start
            if reached < bases[number] and not is_cleaned:
                return reached
    return 0
