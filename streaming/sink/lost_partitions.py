"""Partitions that the commit state knows and that have no folder any more.

A topic whose folders are all gone was deleted, as Kafka's topics are. One that lacks some of them
has lost what was committed there: a folder was restored from an older copy, moved away, or deleted
by hand. To go on would place keys among fewer partitions, and hide the loss. Only a broker may have
moved or removed single partitions, and `kafkalog takeover` says that one had the directories.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkalog.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from kafkalog.checkpoints.commit_state import CommitState, TopicState

__all__ = ["lost_of_living", "lost_partitions", "lost_text"]


def lost_partitions(topic: TopicState, there: Collection[TopicPartition]) -> list[int]:
    """Give the partitions of a topic that are committed and not ``there``, ascending."""
    return sorted(p for p in topic.high_watermarks if TopicPartition(topic.name, p) not in there)


def lost_of_living(
    state: CommitState, living: Collection[str], there: Collection[TopicPartition]
) -> Iterator[tuple[TopicState, list[int]]]:
    """Give what topics have lost that are still there: ``living``, by their keys in the state."""
    for key, topic in state.topics.items():
        if key in living and (lost := lost_partitions(topic, there)):
            yield topic, lost


def lost_text(topic: TopicState, lost: Collection[int]) -> str:
    """Say what is lost of a topic, and what to do."""
    ends = ", ".join(f"{topic.name}-{p} up to offset {topic.high_watermarks[p]}" for p in lost)
    return (
        f"topic {topic.name!r} lacks folders of partitions that were committed: {ends}. Restore "
        "them. If a broker had these directories and moved or removed them, run `kafkalog takeover`"
    )
