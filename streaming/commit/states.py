"""Compute the new content of ``kafkalog.commit`` after a batch."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import filterfalse
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.broker import read_topic_id
from kafkalog.checkpoints.commit_state import CommitState, TopicState, topic_key
from kafkalog.checkpoints.state_file import changed_entries
from kafkalog.model import INTERNAL_TOPICS, TopicPartition, listed
from kafkalog.streaming.commit.versions import note_versions
from kafkalog.streaming.options.topic_settings import LogConfig
from kafkalog.streaming.store.identity import APP_PREFIX, remember
from kafkalog.streaming.store.recovery.partition_states import LogReach, PartitionEnd, sync_up_to

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from kafkalog.checkpoints.commit_state import PartitionState, WriterState
    from kafkalog.streaming.commit.append import PartitionAppend
    from kafkalog.streaming.commit.preserved_offsets import CopiedBatch
    from kafkalog.streaming.store.identity import BatchIdentity
    from kafkalog.streaming.store.log_set import LogSet


__all__ = [
    "all_durable",
    "make_left_durable",
    "make_shortened_durable",
    "next_state",
    "still_known",
    "warn_forgotten_writers",
]


# ----------------------------------------------------------------------------------------------
# Writers that have been silent for long are forgotten; one wrong clock makes nobody forgotten.
#
# Example: a commit whose clock is far ahead finds that all other writers have expired. So a
# commit only notes such a writer. A later commit forgets it, if it has been silent for as long
# again as it asked to be remembered. The note is removed when the writer commits, or when a
# commit finds that it has not expired: the clock is right again.
#
# A clock that is put back does no harm either. What was committed by it seems to have expired
# when the clock is right again, and is noted first, too.
#
# So a clock may be wrong by any amount, for as long as ``transactional.id.expiration.ms``.


_LOGGER: Final = logging.getLogger("kafkalog.sink")

_SHOWN: Final = 20
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def still_known(writers: Mapping[str, WriterState], now_ms: int) -> dict[str, WriterState]:
    """Return the writers that are not to be forgotten, with a note on those that have expired."""
    known = dict(writers)
    silent = [
        (key, last)
        for key, last in writers.items()  # there may be 20,000 at each commit
        if last.expired_ms is not None or now_ms - last.time_ms > last.expiration_ms
    ]
    for key, last in silent:
        if not last.is_expired(now_ms):
            known[key] = replace(last, expired_ms=None)
        elif last.expired_ms is None or now_ms < last.expired_ms:
            known[key] = replace(last, expired_ms=now_ms)
        elif now_ms - last.expired_ms > last.expiration_ms:
            del known[key]
    return known


def warn_forgotten_writers(before: CommitState, after: CommitState) -> None:
    """Warn of writers that a commit has forgotten, and of those that it has found expired."""
    # Versions in a topic that was deleted went with it, and are not forgotten.
    gone: list[str] = []
    expired: dict[str, int] = {}
    for then, now, called in _both(before, after):
        gone += map(called, filterfalse(now.__contains__, then))
        for key, last in changed_entries(now, then):
            is_new = last.expired_ms is not None and key in then and then[key].expired_ms is None
            if is_new:
                expired[called(key)] = last.expired_ms or 0
    if gone:
        _LOGGER.warning(
            "forgotten, since they were silent for twice their transactional.id.expiration.ms: %s. "
            "A query that comes back is refused, a txnAppId begins again",
            listed(gone, most=_SHOWN),
        )
    if expired:
        _LOGGER.warning(
            "silent for longer than their transactional.id.expiration.ms: %s. They will be "
            "forgotten once as much time again has gone by. It is %s by the clock of this machine: "
            "if that is wrong, set it right before",
            listed(expired, most=_SHOWN),
            _shown(max(expired.values())),
        )


def _both(
    before: CommitState, after: CommitState
) -> Iterator[tuple[Mapping[str, WriterState], Mapping[str, WriterState], Callable[[str], str]]]:
    """Yield writers, and versions of each topic, before and after; and what a person calls them."""
    yield before.writers, after.writers, str
    for key, topic in before.topics.items():
        if topic.versions and key in after.topics:
            yield topic.versions, after.topics[key].versions, partial(_name_of_version, topic.name)


def _name_of_version(topic: str, app_id: str) -> str:
    return f"{APP_PREFIX}{app_id} in topic {topic!r}"


def _shown(time_ms: int) -> str:
    try:
        return (_EPOCH + timedelta(milliseconds=time_ms)).isoformat(timespec="seconds")
    except OverflowError:
        return f"{time_ms} ms after 1970"


# ----------------------------------------------------------------------------------------------


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
    ``transactional.id.expiration.ms``.
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

    What is left unsynced moves no durable end: all up to the high watermark was durable if
    there is none yet, and of what others appended since nothing is ours to give up.
    """
    topics = dict(known)
    partitions: dict[str, dict[int, PartitionState]] = {}
    durable: dict[str, dict[int, int]] = {}
    for each in appends:
        topic, partition = each.topic, each.plan.topic_partition.partition
        if topic.key not in partitions:
            before = topics.get(topic.key, TopicState(topic.name))
            # Attached records go to one topic from all queries: none is unknown there.
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


# ----------------------------------------------------------------------------------------------
# Make durable what ``flush=os`` has left unsynced, where something relies on it.
#
# A batch with ``flush=commit`` that is there already: an earlier run may have used ``flush=os``.
# Whoever returns from such a batch has promised that it survives a loss of power. Nothing says
# which partitions the first run wrote to. So all that was left unsynced is made durable.
# That is rare and cheap: a batch comes again when its query starts again.
#
# A log start that moves: it is durable itself, and the oldest records go because there are newer
# ones. If a loss of power took those, less would be left than retention keeps. If it took records
# around the start, the log would end below it, and nobody could write or read.


def make_shortened_durable(log_set: LogSet, starts: Mapping[str, Mapping[int, int]]) -> None:
    """Make logs durable that are to start at other offsets, by topic key and partition.

    The state of the set says so then. REQUIRES: as :func:`make_left_durable`.

    Raises:
        OSError: they are not durable.
    """
    left = make_left_durable(log_set, lambda key, number: number in starts.get(key, {}))
    log_set.state = all_durable(log_set.state, left)


def make_left_durable(
    log_set: LogSet, concerns: Callable[[str, int], bool] = lambda *_: True
) -> list[PartitionEnd]:
    """Make durable what the system was left to write; return its partitions, for the next state.

    ``concerns`` chooses some by topic key and number.

    REQUIRES: the locks are held, and all that is committed is in the logs.

    Raises:
        OSError: it is not durable.
    """
    topics = log_set.state.topics
    if not log_set.state.has_unsynced:
        return []
    found = log_set.partitions()
    ends, reaches = [], []
    for key, topic in topics.items():
        interval = LogConfig.of_topic(topic.settings).index_interval_bytes
        for number, durable_end in topic.durable_ends.items():
            if not concerns(key, number):
                continue
            name = TopicPartition(topic.name, number)
            where = found.get(name)
            if where is None or topic_key(topic.name, read_topic_id(where.path)) != key:
                continue  # a partition that is gone is reported elsewhere
            end = topic.partitions[number].log_end
            ends.append(PartitionEnd(name, where, key, durable_end, end))
            reaches.append(LogReach(where.path, name, end, interval))
    sync_up_to(reaches)
    return ends
