"""Write the positions of a consumer group into ``__consumer_offsets`` of log directories of ours.

A broker that is given the directories, and every tool that reads the topic, then shows how far a
query has come. The records are committed like any others, by the steps of
:mod:`~kafkalog.streaming.commit.committer`. They take no part in exactly-once delivery: a position
that is written twice says the same.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from kafkalog.checkpoints.commit_state import load_committed
from kafkalog.errors import KafkaLogError, LogDirectoryError
from kafkalog.files.system import system
from kafkalog.streaming.commit.committer import Committer
from kafkalog.streaming.coordinator.group_positions import (
    DEFAULT_OFFSETS_PARTITIONS,
    partition_for_group,
)
from kafkalog.streaming.coordinator.offset_commits import encode_position, encode_position_key
from kafkalog.streaming.sink.task_writer import TaskWriter
from kafkalog.streaming.sink.write_options import WriteOptions
from kafkalog.streaming.sink.write_plan import WritePlan
from kafkalog.streaming.store.identity import BatchIdentity
from kafkalog.streaming.store.session import ensure_set
from kafkalog.streaming.store.topics import TopicCatalog

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kafkalog.model import TopicPartition

__all__ = ["GroupWriter"]

_LOGGER: Final = logging.getLogger("kafkalog.groups")

_OFFSETS_TOPIC: Final = "__consumer_offsets"

_SETTINGS: Final = {
    "topic": _OFFSETS_TOPIC,
    "numPartitions": str(DEFAULT_OFFSETS_PARTITIONS),
    "allowInternalTopics": "true",
    "cleanup.policy": "compact",
    "segment.bytes": str(100 << 20),
}
"""As a broker makes the topic; one that exists keeps its partitions."""


class GroupWriter:
    """Commits positions of one group; keeps the last ones and writes only those that changed."""

    def __init__(self, paths: Iterable[str], group: str) -> None:
        """Take the log directories.

        Raises:
            LogDirectoryError: no writer of ours has written them, a broker lived or runs there.
            CheckpointError: their commit state cannot be trusted.
        """
        self._group = group
        self._options = WriteOptions.parse({"path": ",".join(paths), **_SETTINGS})
        self._written: dict[TopicPartition, int] = {}
        directories = [Path(path) for path in self._options.paths]
        if load_committed(directories).state is None:
            raise LogDirectoryError(
                f"positions of group {group!r} cannot be committed to "
                f"{', '.join(self._options.paths)}: the directories are not the sink's"
            )
        self._ensured()

    def commit(self, positions: Mapping[TopicPartition, int]) -> bool:
        """Write the next offsets to read; return whether any of them has changed.

        Raises:
            KafkaLogError: nothing is written.
        """
        changed = {
            key: offset for key, offset in positions.items() if self._written.get(key) != offset
        }
        if not changed:
            return False
        plan = WritePlan(self._options, self._ensured(), system.time_ns() // 1_000_000)
        identity = BatchIdentity(f"job:{system.random_id()}", 0)
        count = (
            TopicCatalog.load(plan.directories, plan.options.topic_policy)
            .topic(_OFFSETS_TOPIC)
            .partitions
        )
        records = self._records(changed, partition_for_group(self._group, count), plan)
        output = TaskWriter(plan, identity).write([records])
        Committer(plan.commit_plan, identity).commit_or_abort(output.runs)
        self._written.update(changed)
        _LOGGER.debug("group %s stands at %s", self._group, changed)
        return True

    def try_to_commit(self, positions: Mapping[TopicPartition, int]) -> None:
        """Write positions, or say why not: the next ones will be as good."""
        try:
            self.commit(positions)
        except (KafkaLogError, OSError) as error:
            _LOGGER.warning("positions of group %r were not committed: %s", self._group, error)

    def _ensured(self) -> str:
        return ensure_set(self._options.paths, self._options.policy)

    def _records(
        self, positions: Mapping[TopicPartition, int], partition: int, plan: WritePlan
    ) -> pa.RecordBatch:
        now = plan.append_time_ms
        keys = [encode_position_key(self._group, key) for key in positions]
        values = [encode_position(offset, timestamp_ms=now) for offset in positions.values()]
        return pa.RecordBatch.from_pydict(
            {
                "key": pa.array(keys, pa.binary()),
                "value": pa.array(values, pa.binary()),
                "partition": pa.array([partition] * len(keys), pa.int32()),
                "timestamp": pa.array([now] * len(keys), pa.int64()),
            }
        )
