"""What to say of a log whose checkpointed start lies above its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkalog.checkpoints.broker import LOG_START_OFFSET

if TYPE_CHECKING:
    from kafkalog.streaming.log.log_dir import PartitionDirectory

__all__ = ["log_start_text"]


def log_start_text(where: PartitionDirectory, start: int, end: int) -> str:
    """Say what is wrong, and what to do."""
    return (
        f"{where.log_dir / LOG_START_OFFSET}: {where.topic_partition} starts at offset {start} "
        f"there, but its log ends at offset {end}: its records would be hidden, and a broker that "
        "starts would delete them. If the line is about an earlier topic of that name, run "
        "`kafkalog recover --reset-log-start`; if the log has lost its end, restore it"
    )
