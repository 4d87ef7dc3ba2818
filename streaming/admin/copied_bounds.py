"""Let the logs of a copy start and end where those of its original do, whatever records it holds.

The ends are published first, all by one rename, and then the starts. Cut off between the two, the
copy begins earlier than its original, and the same call ends it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from kafkalog.errors import OffsetOutOfRangeError
from kafkalog.files.deferred_signals import shielded
from kafkalog.files.system import system
from kafkalog.model import MAX_OFFSET
from kafkalog.streaming.admin.retention import delete_records
from kafkalog.streaming.commit.commit_plan import CommitPlan
from kafkalog.streaming.commit.committer import Committer
from kafkalog.streaming.commit.preserved_offsets import CopiedEnd
from kafkalog.streaming.store.identity import BatchIdentity
from kafkalog.streaming.store.policy import WAIT_MS, SetPolicy, TopicPolicy
from kafkalog.streaming.store.session import check_written, existing, refuse_nodes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kafkalog.model import TopicPartition

__all__ = ["Bounds", "set_bounds"]

_WRITER: Final = "job:copied-bounds"
"""One name for all: what a killed call has staged, the next one sweeps away."""


class Bounds(NamedTuple):
    """Where a log starts and ends: its offsets are ``[start, end)``."""

    start: int
    end: int


@shielded
def set_bounds(
    paths: Sequence[str],
    bounds: Mapping[TopicPartition, Bounds],
    *,
    allows_broker: bool = False,
    wait_ms: int = WAIT_MS,
) -> None:
    """Let the logs of partitions end and start at these offsets.

    A log that is there already so is left as it is, and one that starts later too. Where the end
    lies above the last record, a batch without records is appended. What lies below the start is
    deleted, of compacted topics too.

    Args:
        paths: all log directories of the set.
        bounds: where each log is to start and to end.
        allows_broker: whether to do so though a broker had the directories last.
        wait_ms: how long to wait for a writer of ours.

    Raises:
        OffsetOutOfRangeError: a start above its end, or offsets that no log can have.
        UnknownTopicOrPartitionError: a partition that is not there.
        CommitError: a log reaches beyond its end already. Nothing was changed.
        KafkaLogError: a log, or the set, is not as it should be.
    """
    _check(bounds)
    directories = existing(paths)
    check_written(directories)
    refuse_nodes(directories, "a copy with the bounds of its original")
    plan = CommitPlan(
        directories=tuple(directories),
        planned_ms=system.time_ns() // 1_000_000,
        policy=SetPolicy(allows_broker=allows_broker, wait_ms=wait_ms, may_grow=False),
        topics=TopicPolicy(allows_internal=True),
    )
    ends = {key: CopiedEnd(each.end) for key, each in bounds.items()}
    Committer(plan, BatchIdentity(_WRITER, 0), ends=ends).commit_or_abort([])
    starts = {key: each.start for key, each in bounds.items()}
    delete_records(paths, starts, heeds_policy=False, allows_broker=allows_broker, wait_ms=wait_ms)


def _check(bounds: Mapping[TopicPartition, Bounds]) -> None:
    for key, (start, end) in bounds.items():
        if not 0 <= start <= end < MAX_OFFSET:
            raise OffsetOutOfRangeError(
                f"{key}: no log starts at offset {start} and ends at {end}", offset=start
            )
