"""From one commit state to the next."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kafkalog.checkpoints.commit_state import CommitState, TopicState
from kafkalog.streaming.sink.identity import remember
from kafkalog.streaming.sink.versions import note_versions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kafkalog.streaming.sink.append import PartitionAppend
    from kafkalog.streaming.sink.identity import BatchIdentity
    from kafkalog.streaming.sink.write_options import WriteOptions

__all__ = ["next_state"]


def next_state(
    state: CommitState,
    identity: BatchIdentity,
    options: WriteOptions,
    appends: Sequence[PartitionAppend],
    *,
    now_ms: int,
) -> CommitState:
    """Give the state that publishes ``appends`` and remembers their batch.

    Writers whose last batch is older than their own ``transactional.id.expiration.ms`` was are
    forgotten, whatever this one says. No writer is noted as older than those before it: were the
    clock put back and right again, it would be forgotten at once, and its last batch taken for new.
    """
    writers = {key: last for key, last in state.writers.items() if not last.is_expired(now_ms)}
    topics = _topics(state.topics, appends)
    if identity.is_remembered:
        last = state.writers.get(identity.writer)
        expiration_ms = options.transactional_id_expiration_ms
        noted_ms = max(now_ms, *(known.time_ms for known in state.writers.values()), 0)
        if identity.is_versioned:
            noted = remember(identity, None, noted_ms, expiration_ms)
            topics = note_versions(topics, identity, noted)
        else:
            writers[identity.writer] = remember(identity, last, noted_ms, expiration_ms)
    return replace(state, sequence=state.sequence + 1, topics=topics, writers=writers)


def _topics(
    known: Mapping[str, TopicState], appends: Sequence[PartitionAppend]
) -> dict[str, TopicState]:
    """Move the ends of what was appended; settings given now replace those given before."""
    topics = dict(known)
    marks: dict[str, dict[int, int]] = {}
    for each in appends:
        topic = each.topic
        if topic.key not in marks:
            before = topics.get(topic.key, TopicState(topic.name, {}))
            marks[topic.key] = dict(before.high_watermarks)
            topics[topic.key] = replace(
                before, name=topic.name, high_watermarks=marks[topic.key], settings=topic.settings
            )
        marks[topic.key][each.plan.topic_partition.partition] = each.plan.end_offset
    written = {each.topic.name: each.topic.key for each in appends}
    # A topic that was deleted and made anew has another key; the old one's offsets mean nothing.
    return {key: topic for key, topic in topics.items() if written.get(topic.name, key) == key}
