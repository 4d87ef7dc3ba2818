"""Versions of batch writes with an id: which topics of a write are still to be written.

``txnVersion`` counts for each ``txnAppId`` and topic, as Delta's counts for each table. So one
``foreachBatch`` may write to several topics under one id and version, and continues where it was
cut off when its batch comes again. Of a topic's last version the digest of the rows is kept:

==========================================  ======================================================
in each topic of the write                  the write
==========================================  ======================================================
the version is new                          is appended
it is the last one, with the same rows      is skipped
it is the last one, with other rows         is refused, whatever its other topics are
it is below the last one                    is skipped: what rows it had is not kept
new in some, the last with the same rows    is appended to those alone, all at once: what the
in the others                               others are to get is there
new in some, below the last in others       is refused: it is not the write that was committed
==========================================  ======================================================

A topic that is deleted and recreated is another topic: it has no versions yet.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.broker import read_topic_id
from kafkalog.errors import BatchIdentityError
from kafkalog.model import TopicPartition
from kafkalog.streaming.commit.staging.staged_run import RowDigest, rows_of
from kafkalog.streaming.store.identity import APP_PREFIX

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from kafkalog.checkpoints.commit_state import TopicState, WriterState
    from kafkalog.streaming.commit.staging.staged_run import TaskOutput
    from kafkalog.streaming.store.identity import BatchIdentity
    from kafkalog.streaming.store.log_set import LogSet

__all__ = [
    "known_topics",
    "last_version",
    "new_topics_of",
    "note_versions",
    "with_digests",
    "with_new_topics",
]

_WAY_OUT: Final = (
    "If the rows that are there are to stay, leave this write out; if both are wanted, write with "
    "another txnAppId (transactional_id). Several writes to one topic need a txnAppId each"
)


def with_digests(
    identity: BatchIdentity, outputs: Iterable[TaskOutput], topic: str | None
) -> BatchIdentity:
    """Add what tells the rows of each topic, as all tasks have found it.

    ``topic`` is the one that all rows go to, if there is one: it counts without rows too.
    """
    if not identity.is_versioned:
        return identity
    digests: dict[str, RowDigest] = {} if topic is None else {topic: RowDigest()}
    for output in outputs:
        for name, digest in output.digests:
            digests[name] = RowDigest.sum([digests.get(name, RowDigest()), digest])
    told = tuple((name, str(digest)) for name, digest in sorted(digests.items()))
    return replace(identity, digests=told)


def last_version(topic: TopicState | None, app_id: str) -> tuple[int, int | None] | None:
    """Return the last version of a name in a topic, and how many rows it had, if that is known.

    None where there is none, or no such topic.
    """
    last = None if topic is None else topic.versions.get(app_id)
    if last is None:
        return None
    return last.batch_id, None if last.digest is None else rows_of(last.digest)


def new_topics_of(identity: BatchIdentity, log_set: LogSet) -> BatchIdentity:
    """Return a write with only those topics that it is still to be appended to.

    Raises:
        BatchIdentityError: it is not the write that was committed under its version.
    """
    return with_new_topics(identity, known_topics(log_set, {name for name, _ in identity.digests}))


def with_new_topics(identity: BatchIdentity, topics: Mapping[str, TopicState]) -> BatchIdentity:
    """Return a write with only those of ``topics``, by their names, that it is still to go to.

    Raises:
        BatchIdentityError: it is not the write that was committed under its version.
    """
    app_id = identity.writer.removeprefix(APP_PREFIX)
    new, below = [], []
    for name, digest in identity.digests:
        last = topics[name].versions.get(app_id) if name in topics else None
        if last is None or identity.batch_id > last.batch_id:
            new.append((name, digest))
        elif identity.batch_id < last.batch_id:
            below.append((name, last.batch_id))
        elif last.digest not in (None, digest):
            raise _other_rows(identity, name, digest, last)
    if new and below:
        raise _half_known(identity, new[0][0], *below[0])
    return replace(identity, digests=tuple(new))


def note_versions(
    topics: Mapping[str, TopicState], identity: BatchIdentity, noted: WriterState
) -> dict[str, TopicState]:
    """Return topics by their keys, with ``noted`` as the last version of those that are written."""
    digests = dict(identity.digests)
    app_id = identity.writer.removeprefix(APP_PREFIX)
    noting = dict(topics)
    for key, topic in topics.items():
        if topic.name in digests:
            last = replace(noted, digest=digests[topic.name])
            noting[key] = replace(topic, versions={**topic.versions, app_id: last})
    return noting


def known_topics(log_set: LogSet, names: Collection[str]) -> Mapping[str, TopicState]:
    """Return what the state knows of topics that are still the same ones."""
    # Not asked folder by folder: a log directory that is away for a moment has none of them.
    there = log_set.partitions()

    def is_there(key: str, topic: TopicState) -> bool:
        keys = (TopicPartition(topic.name, number) for number in topic.partitions)
        found = next((there[each].path for each in keys if each in there), None)
        return found is not None and log_set.state.key_of(topic.name, read_topic_id(found)) == key

    return {
        topic.name: topic
        for key, topic in log_set.state.topics.items()
        if topic.name in names and is_there(key, topic)
    }


def _other_rows(
    identity: BatchIdentity, topic: str, digest: str, last: WriterState
) -> BatchIdentityError:
    return BatchIdentityError(
        f"{identity} is in topic {topic!r} already, with other rows: this write has the digest "
        f"{digest!r}, and that one had {last.digest!r} (their number first). Two writes go to the "
        "topic under one version, or the rows differ from run to run (rand(), uuid(), "
        f"current_timestamp()). Nothing was written. {_WAY_OUT}"
    )


def _half_known(
    identity: BatchIdentity, new: str, below: str, last_version: int
) -> BatchIdentityError:
    return BatchIdentityError(
        f"{identity} is new to topic {new!r}, yet topic {below!r} has version {last_version} "
        "already: one write goes to both, so this is not the one that was committed, or it comes "
        f"too late. Nothing was written. {_WAY_OUT}"
    )
