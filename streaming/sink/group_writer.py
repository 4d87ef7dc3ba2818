"""Write the positions of a consumer group into ``__consumer_offsets`` of log directories of ours.

A broker that is given the directories, and every tool that reads the topic, then shows how far a
query has come. The records are committed like any others, by the steps of
:mod:`~kafkalog.streaming.commit.committer`. They take no part in exactly-once delivery: a position
that is written twice says the same.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.committed import load_committed
from kafkalog.errors import KafkaLogError, LogDirectoryError
from kafkalog.files.paths import split_paths
from kafkalog.files.system import system
from kafkalog.streaming.commit.append import CommitPlan
from kafkalog.streaming.commit.bucket_commit import CommittedBucket, commit_batch
from kafkalog.streaming.commit.committer import Committer
from kafkalog.streaming.groups.group_commits import attached_offsets, last_batches
from kafkalog.streaming.groups.position_topics import present_ids
from kafkalog.streaming.objects.bucket_store import bucket_of
from kafkalog.streaming.store.identity import BatchIdentity
from kafkalog.streaming.store.log_dirs import LogDirs
from kafkalog.streaming.store.policy import SetPolicy
from kafkalog.streaming.store.session import ensure_set

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.history import LastBatch
    from kafkalog.streaming.objects.bucket_store import BucketRoot

__all__ = ["GroupWriter"]

_LOGGER: Final = logging.getLogger("kafkalog.groups")

_AGAIN_S: Final = 3600
"""So long after all positions were written, all are once more: positions expire by their age, and a
partition to which nobody writes is read all the same."""


class GroupWriter:
    """Commits positions of one group; keeps the last ones and writes only those that changed.

    Once an hour it writes all.
    """

    _directories: tuple[Path, ...]

    def __init__(self, paths: Iterable[str], group: str) -> None:
        """Take the log directories, or the URI of a log in a bucket.

        Raises:
            LogDirectoryError: no writer of ours has written them, a broker lived or runs there.
            CheckpointError: their commit state cannot be trusted.
        """
        self._group = group
        self._written: dict[TopicPartition, int] = {}
        self._all_s = system.monotonic()
        given = list(paths)
        self._bucket = bucket_of(given)
        if self._bucket is not None:
            CommittedBucket.newest(self._bucket)
            self._has_nodes, self._directories = False, (self._bucket.open_log(),)
            return
        places = split_paths(",".join(given))
        self._directories = tuple(Path(place) for place in places)
        self._log_dirs = LogDirs(self._directories)
        state = load_committed(self._directories).state
        if state is None:
            raise LogDirectoryError(
                f"positions of group {group!r} cannot be committed to "
                f"{', '.join(places)}: the directories are not the sink's"
            )
        self._has_nodes = state.is_replicated
        ensure_set(self._directories, SetPolicy(broker_advice="Leave out commitGroupOffsets"))

    def commit(self, positions: Mapping[TopicPartition, int]) -> bool:
        """Write the next offsets to read; return whether there was anything to write.

        Raises:
            KafkaLogError: nothing is written.
        """
        if self._is_due():
            self._written, self._all_s = {}, system.monotonic()
        changed = {
            key: offset for key, offset in positions.items() if self._written.get(key) != offset
        }
        if not changed:
            return False
        now_ms = system.time_ns() // 1_000_000
        plan = CommitPlan(
            directories=self._directories, planned_ms=now_ms, has_nodes=self._has_nodes
        )
        if self._bucket is not None:
            self._commit_in_bucket(self._bucket, changed, plan)
            return True
        ids, batches = self._known_of(changed)
        attached = attached_offsets(self._group, changed, now_ms, topic_ids=ids, batches=batches)
        identity = BatchIdentity(f"job:{system.random_id()}", 0)
        committer = Committer(plan, identity, attached_records=[attached])
        committer.commit_or_abort([])
        self._written.update(changed)
        _LOGGER.debug("group %s stands at %s", self._group, changed)
        return True

    def _commit_in_bucket(
        self, root: BucketRoot, changed: Mapping[TopicPartition, int], plan: CommitPlan
    ) -> None:
        """Commit positions with the ids of topics: a log there is not cut."""
        ids = present_ids(CommittedBucket.newest(root).partitions(), {key.topic for key in changed})
        known = {key: ids[key.topic] for key in changed if key.topic in ids}
        attached = attached_offsets(self._group, changed, plan.planned_ms, topic_ids=known)
        identity = BatchIdentity(f"job:{system.random_id()}", 0)
        commit_batch(root, plan, identity, [], attached_records=[attached])
        self._written.update(changed)

    def _known_of(
        self, positions: Mapping[TopicPartition, int]
    ) -> tuple[dict[TopicPartition, str], dict[TopicPartition, LastBatch]]:
        """Return the present ids of topics, and the last batches below positions.

        In a topic that is recreated, or a log that is cut, positions count no more.
        """
        with suppress(KafkaLogError, OSError):  # then they count for whatever has the name
            there = self._log_dirs.partitions()
            ids = present_ids(there, {key.topic for key in positions})
            known = {key: ids[key.topic] for key in positions if key.topic in ids}
            return known, last_batches(there, positions)
        return {}, {}

    def _is_due(self) -> bool:
        return system.monotonic() - self._all_s >= _AGAIN_S

    def try_to_keep(self, positions: Mapping[TopicPartition, int]) -> None:
        """Write positions that stay as they are, if all are due: nothing comes anywhere."""
        if self._is_due():
            self.try_to_commit(positions)

    def try_to_commit(self, positions: Mapping[TopicPartition, int]) -> None:
        """Write positions, or say why not: the next ones will be as good."""
        try:
            self.commit(positions)
        except (KafkaLogError, OSError) as error:
            _LOGGER.warning("positions of group %r were not committed: %s", self._group, error)
