"""What operators do to consumer groups: a set changes hands, a topic is deleted.

Members of one owner are none of the next one's. So each group that has members is written as empty,
with its generation raised: whoever wakes up late finds that the group has gone on. A broker does
the same to positions of a topic that is deleted as is done here.

Only where ``__consumer_offsets`` is ours, or was: a broker's own one is left as it is.

Source: Kafka ``GroupMetadataManager``, ``OffsetMetadataManager.onPartitionsDeleted``.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.broker import read_topic_id
from kafkalog.errors import KafkaLogError
from kafkalog.files.system import system
from kafkalog.model import OFFSETS_TOPIC, many
from kafkalog.streaming.commit.commit_plan import CommitPlan
from kafkalog.streaming.commit.committer import Committer
from kafkalog.streaming.commit.riders import Rider
from kafkalog.streaming.coordinator.all_groups import read_groups
from kafkalog.streaming.coordinator.group_metadata import encode_group_key, encode_group_metadata
from kafkalog.streaming.coordinator.group_positions import partition_for_group
from kafkalog.streaming.coordinator.offset_commits import encode_position_key
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.store.group_files import MEMBER_PREFIX, PLAN_PREFIX
from kafkalog.streaming.store.identity import BatchIdentity
from kafkalog.streaming.store.policy import TopicPolicy

if TYPE_CHECKING:
    from collections.abc import Callable

    from kafkalog.streaming.coordinator.all_groups import KnownGroup
    from kafkalog.streaming.store.log_set import LogSet

    Records = list[tuple[bytes, bytes | None]]

__all__ = ["commit_of_groups", "empty_groups", "forget_positions", "records_of_groups"]

_LOGGER: Final = logging.getLogger("kafkalog.sink")


def empty_groups(log_set: LogSet, *, dry_run: bool = False) -> list[str]:
    """Let no group have members, by one commit; return what was changed, a line each.

    REQUIRES: the locks are held, nothing is unfinished, and the logs are in order; or ``dry_run``,
    with which nothing is changed.

    Raises:
        KafkaLogError, OSError: the groups cannot be read, or the commit failed.
    """
    now_ms = system.time_ns() // 1_000_000
    said = []

    def emptied(name: str, group: KnownGroup) -> Records:
        known = group.metadata
        if known is None or not known.members:
            return []
        said.append(
            f"group {name}: empty in generation {known.generation + 1}, before with "
            f"{many(len(known.members), 'member')}"
        )
        empty = replace(
            known,
            generation=known.generation + 1,
            protocol=None,
            leader=None,
            members=(),
            timestamp_ms=now_ms,
        )
        return [(encode_group_key(name), encode_group_metadata(empty))]

    riders = records_of_groups(log_set, emptied, now_ms)
    if dry_run:
        return said
    commit_of_groups(log_set, riders, now_ms)
    for folder in log_set.directories:
        for prefix in (MEMBER_PREFIX, PLAN_PREFIX):
            for path in folder.glob(f"{prefix}*"):
                path.unlink(missing_ok=True)
    return said


def forget_positions(log_set: LogSet, topic: str) -> None:
    """Take away all positions in a topic that was deleted.

    REQUIRES: the locks are held, and nothing is unfinished. What fails is told: the topic is gone.
    """
    now_ms = system.time_ns() // 1_000_000

    def forgotten(name: str, group: KnownGroup) -> Records:
        keys = [key for key in sorted(group.positions) if key.topic == topic]
        return [(encode_position_key(name, key), None) for key in keys]

    try:
        commit_of_groups(log_set, records_of_groups(log_set, forgotten, now_ms), now_ms)
    except (KafkaLogError, OSError) as error:
        _LOGGER.warning(
            "topic %s is deleted, but positions of groups in it stay: %s. `kafkalog groups` shows "
            "them, `kafkalog groups delete` forgets a group",
            topic,
            error,
        )


def records_of_groups(
    log_set: LogSet, records_of: Callable[[str, KnownGroup], Records], now_ms: int
) -> list[Rider]:
    """Ask for each group that we keep in the set what is to be written of it.

    Raises:
        KafkaLogError, OSError: groups cannot be read.
    """
    riders = []
    for key, where in log_set.partitions().items():
        if key.topic != OFFSETS_TOPIC:
            continue
        end = log_set.state.log_end(key.topic, read_topic_id(where.path), key.partition)
        if not end:
            continue
        with PartitionLog(where.path, key) as log:
            groups = read_groups(log, end)
        for name, group in groups.items():
            riders.append(
                Rider(
                    topic=OFFSETS_TOPIC,
                    partition_of=functools.partial(partition_for_group, name),
                    records=records_of(name, group),
                    timestamp_ms=now_ms,
                    policy=TopicPolicy(allows_internal=True),
                )
            )
    return [each for each in riders if each.records]


def commit_of_groups(log_set: LogSet, riders: list[Rider], now_ms: int) -> None:
    """Write records of groups by one commit, if there are any. REQUIRES: the locks are held.

    Raises:
        KafkaLogError, OSError: nothing is published.
    """
    if riders:
        plan = CommitPlan(directories=tuple(log_set.directories), planned_ms=now_ms)
        identity = BatchIdentity(f"job:{system.random_id()}", 0)
        Committer(plan, identity, riders=riders).append(log_set, [])
