"""Offsets that rows bring along (``preserveOffsets``): which fit into a log, and in which order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kafkalog.errors import CommitError, RowError
from kafkalog.model import MAX_OFFSET

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.commit.staging.staged_run import StagedRun

__all__ = ["check_room", "in_offset_order", "out_of_order"]

_WAY_OUT: Final = (
    "With preserveOffsets each partition's rows must ascend by offset, and come from one task or "
    "from tasks that share no range of offsets: "
    'df.repartition("topic", "partition").sortWithinPartitions("topic", "partition", "offset")'
)


def out_of_order(key: TopicPartition, before: int, offset: int) -> RowError:
    """Return the error for a row whose offset does not lie above the one before it in its task."""
    if offset < 0:
        return RowError(f"{key}: a row is to keep offset {offset}: offsets are not negative")
    return RowError(
        f"{key}: a row is to keep offset {offset} and comes after one with offset {before}. "
        f"{_WAY_OUT}"
    )


def in_offset_order(
    key: TopicPartition, runs: Iterable[StagedRun], log_end_offset: int
) -> list[StagedRun]:
    """Sort runs that keep their offsets by their first ones; holes between them are fine.

    Raises:
        RowError: offsets below the end of the log, or runs that overlap.
    """
    ordered = sorted(runs, key=lambda run: run.first_offset)
    end = log_end_offset
    for slot, run in enumerate(ordered):
        first = run.first_offset
        if first < end and slot == 0:
            raise RowError(
                f"{key}: rows are to keep offsets from {first} on, but the log ends at offset "
                f"{end}: what lies below is written already. Leave out the rows below offset {end}"
            )
        if first < end:
            before = ordered[slot - 1].first_offset
            raise RowError(
                f"{key}: rows of two tasks overlap, one has offsets {before} to {end - 1}, another "
                f"begins at {first}. {_WAY_OUT}"
            )
        end = run.last_offset + 1
    return ordered


def check_room(key: TopicPartition, runs: Sequence[StagedRun], log_end_offset: int) -> None:
    """Refuse records that would get offsets that an int64 cannot hold.

    Raises:
        CommitError: they would.
    """
    records = sum(run.records for run in runs)
    if log_end_offset + records > MAX_OFFSET:
        raise CommitError(
            f"{key}: {records} records do not fit after the end of the log, offset "
            f"{log_end_offset}: the last possible offset is {MAX_OFFSET - 1}"
        )
