"""From one commit state to the next."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kafkalog.checkpoints.commit_state import CommitState, TopicState
from kafkalog.model import INTERNAL_TOPICS
from kafkalog.streaming.commit.forgetting import still_known
from kafkalog.streaming.commit.versions import note_versions
from kafkalog.streaming.store.identity import remember

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kafkalog.checkpoints.commit_state import PartitionState
    from kafkalog.streaming.commit.append import PartitionAppend
    from kafkalog.streaming.commit.copied_ends import CopiedBatch
    from kafkalog.streaming.store.identity import BatchIdentity
    from kafkalog.streaming.store.partition_end import PartitionEnd

__all__ = ["all_durable", "next_state"]


def next_state(
    state: CommitState,
    identity: BatchIdentity,
    appends: Sequence[PartitionAppend],
    copied: CopiedBatch | None = None,
    *,
    now_ms: int,
    expiration_ms: int,
    boot_id: str | None,
) -> CommitState:
    """Return the state that publishes ``appends`` and remembers their batch.

    Writers that have been silent for long are forgotten, each by its own
    ``transactional.id.expiration.ms``: see :mod:`~kafkalog.streaming.commit.forgetting`.
    """
    writers = still_known(state.writers, now_ms)
    topics = {
        key: replace(topic, versions=still_known(topic.versions, now_ms))
        if topic.versions
        else topic
        for key, topic in _topics(state.topics, appends, identity).items()
    }
    if identity.is_remembered:
        last = state.writers.get(identity.writer)
        noted = remember(identity, last, max(now_ms, 0), expiration_ms)
        if identity.is_versioned:
            topics = note_versions(topics, identity, noted)
        else:
            writers[identity.writer] = noted
    if copied is not None:
        topics = copied.note(topics, now_ms)
    return state.following(topics=topics, writers=writers).with_boot(boot_id)


def all_durable(state: CommitState, partitions: Iterable[PartitionEnd]) -> CommitState:
    """Return the state in which these partitions are durable up to their ends."""
    numbers: dict[str, set[int]] = {}
    for each in partitions:
        numbers.setdefault(each.key, set()).add(each.topic_partition.partition)
    topics = {
        key: replace(
            topic,
            durable_ends={
                p: end for p, end in topic.durable_ends.items() if p not in numbers.get(key, ())
            },
        )
        if topic.durable_ends
        else topic
        for key, topic in state.topics.items()
    }
    return replace(state, topics=topics).with_boot(state.boot)


def _topics(
    known: Mapping[str, TopicState], appends: Sequence[PartitionAppend], identity: BatchIdentity
) -> dict[str, TopicState]:
    """Move the ends of what was appended; settings given now replace those given before.

    What is left to the system moves no durable end: all up to the high watermark was durable if
    there is none yet, and of what others appended since nothing is ours to give up.
    """
    topics = dict(known)
    partitions: dict[str, dict[int, PartitionState]] = {}
    durable: dict[str, dict[int, int]] = {}
    for each in appends:
        topic, partition = each.topic, each.plan.topic_partition.partition
        if topic.key not in partitions:
            before = topics.get(topic.key, TopicState(topic.name))
            # What rides along goes to one topic from all queries: none is a newcomer there.
            is_own = identity.is_query and topic.name not in INTERNAL_TOPICS
            partitions[topic.key] = dict(before.partitions)
            durable[topic.key] = dict(before.durable_ends)
            topics[topic.key] = replace(
                before,
                name=topic.name,
                partitions=partitions[topic.key],
                durable_ends=durable[topic.key],
                settings=topic.settings,
                last_query=identity.writer if is_own else before.last_query,
            )
        known_of_it = partitions[topic.key]
        known_of_it[partition] = each.ending(known_of_it.get(partition))
        if each.is_durable:
            durable[topic.key].pop(partition, None)
        elif each.plan.end_offset > each.plan.start_offset:
            durable[topic.key].setdefault(partition, each.plan.start_offset)
    written = {each.topic.name: each.topic.key for each in appends}
    # A topic that was deleted and recreated has another key; the old one's offsets mean nothing.
    return {key: topic for key, topic in topics.items() if written.get(topic.name, key) == key}
