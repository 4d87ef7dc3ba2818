"""What a query should find in the log directories and does not: members of the set, partitions.

The sink refuses such directories. A query fails, or with ``failOnDataLoss=false`` says once what it
continues without. Fewer directories than the set has may have been given on purpose: that is said
once, and is no loss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from kafkalog.model import TopicPartition, listed
from kafkalog.streaming.store.recovery.lost_partitions import (
    OFFLINE_REMEDY,
    lost_of_living,
    missing_members,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from kafkalog.checkpoints.committed import Committed
    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.store.recovery.lost_partitions import MissingMembers

__all__ = ["NOTHING", "MissingParts", "find_missing_parts"]


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
                "if a broker had these directories and moved or removed them, run `kafkalog "
                "takeover`."
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
