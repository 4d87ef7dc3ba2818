"""Commit states for tests: partitions by their ends alone, and the lines of files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kafkalog.checkpoints.commit_state import PartitionState
from kafkalog.streaming.log.history import LastBatch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kafkalog.checkpoints.commit_state import TopicState

__all__ = ["ends_of", "last_batch", "lines_of", "up_to", "version_of"]


def up_to(ends: Mapping[int, int]) -> dict[int, PartitionState]:
    """Return partitions that are committed from 0 up to these offsets."""
    return {number: PartitionState(0, end, end, 0) for number, end in ends.items()}


def ends_of(topic: TopicState) -> dict[int, int]:
    """Return how far the partitions of a topic are committed, where that is the log end too."""
    assert all(each.high_watermark == each.log_end for each in topic.partitions.values())
    return {number: each.high_watermark for number, each in topic.partitions.items()}


def last_batch(offset: int, crc: int) -> LastBatch:
    """Return a batch of one record."""
    return LastBatch(offset, offset, crc, 0, 2, 0, 72, 1, 0)


def lines_of(content: bytes) -> list[dict[str, Any]]:
    """Return what a state or an intent holds below its header."""
    return [json.loads(line) for line in content.splitlines()[1:]]


def version_of(content: bytes) -> int:
    """Return the version of a state or an intent."""
    return int(json.loads(content.partition(b"\n")[0])["version"])
