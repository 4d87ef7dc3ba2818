"""What operators do to consumer groups: move and delete them, and let positions expire."""

from __future__ import annotations

import functools
import json
import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.broker import read_topic_id
from kafkalog.errors import KafkaLogError
from kafkalog.files.atomic import write_atomically
from kafkalog.files.deferred_signals import shielded
from kafkalog.files.regular import read_regular
from kafkalog.files.system import system
from kafkalog.model import OFFSETS_TOPIC, many
from kafkalog.streaming.admin.old_segments import opened_logs
from kafkalog.streaming.commit.append import CommitSettings
from kafkalog.streaming.commit.committer import Committer
from kafkalog.streaming.commit.staging.staged_files import AttachedRecords
from kafkalog.streaming.coordinator.group_metadata import (
    encode_group_key,
    encode_group_metadata,
    encode_position_key,
)
from kafkalog.streaming.coordinator.group_replay import partition_for_group, read_groups
from kafkalog.streaming.groups.member_files import EXPIRY_NOTE, MEMBER_PREFIX, PLAN_PREFIX
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.store.identity import BatchIdentity
from kafkalog.streaming.store.policy import WAIT_MS, TopicPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.coordinator.group_replay import KnownGroup
    from kafkalog.streaming.store.log_set import LogSet

    Records = list[tuple[bytes, bytes | None]]

    _Found = tuple[int, int]

__all__ = [
    "commit_of_groups",
    "empty_groups",
    "expire_positions",
    "forget_positions",
    "records_of_groups",
]


# ----------------------------------------------------------------------------------------------
# What operators do to consumer groups: a set changes hands, a topic is deleted.
#
# Members of one owner are none of the next one's. So each group that has members is written as
# empty, with its generation raised: whoever wakes up late finds that the group has gone on. A
# broker does the same to positions of a topic that is deleted as is done here.
#
# Only where ``__consumer_offsets`` is ours, or was: a broker's own one is left as it is.
#
# Source: Kafka ``GroupMetadataManager``, ``OffsetMetadataManager.onPartitionsDeleted``.


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

    attached_records = records_of_groups(log_set, emptied, now_ms)
    if dry_run:
        return said
    commit_of_groups(log_set, attached_records, now_ms)
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
            "topic %s is deleted, but positions of groups in it stay: %s. `kafkalog group "
            "describe` shows them, `kafkalog group delete` forgets a group",
            topic,
            error,
        )


def records_of_groups(
    log_set: LogSet, records_of: Callable[[str, KnownGroup], Records], now_ms: int
) -> list[AttachedRecords]:
    """Ask for each group that we keep in the set what is to be written of it.

    Raises:
        KafkaLogError, OSError: groups cannot be read.
    """
    attached_records = []
    for key, where in log_set.partitions().items():
        if key.topic != OFFSETS_TOPIC:
            continue
        end = log_set.state.log_end(key.topic, read_topic_id(where.path), key.partition)
        if not end:
            continue
        with PartitionLog(where.path, key) as log:
            groups = read_groups(log, end)
        for name, group in groups.items():
            attached_records.append(
                AttachedRecords(
                    topic=OFFSETS_TOPIC,
                    partition_of=functools.partial(partition_for_group, name),
                    records=records_of(name, group),
                    timestamp_ms=now_ms,
                    policy=TopicPolicy(allows_internal=True),
                )
            )
    return [each for each in attached_records if each.records]


def commit_of_groups(log_set: LogSet, attached_records: list[AttachedRecords], now_ms: int) -> None:
    """Write records of groups by one commit, if there are any. REQUIRES: the locks are held.

    Raises:
        KafkaLogError, OSError: nothing is published.
    """
    if attached_records:
        plan = CommitSettings(directories=tuple(log_set.directories), planned_ms=now_ms)
        identity = BatchIdentity(f"job:{system.random_id()}", 0)
        Committer(plan, identity, attached_records=attached_records).append(log_set, [])


# ----------------------------------------------------------------------------------------------
# Positions of consumer groups expire: of groups without members alone, never by one look.
#
# =============================  ====================================================
# a group                        its positions expire the retention after
# =============================  ====================================================
# with members                   never
# without                        it became empty, or the last commit of the position
# that never had members         the last commit of the position
# =============================  ====================================================
#
# A commit may say itself when it expires (records of brokers before 2.1). A group without members
# and positions is forgotten likewise, with its metadata.
#
# A clock that jumps must not take positions away. So the first look only writes down what has
# expired, in a file in the directory of the set's first member id. It is done by a look ten
# minutes later or more, if all is as it was.
#
# A broker counts from when the group became empty alone, and takes positions away that were reset
# after that.
#
# Source: Kafka ``ClassicGroup.offsetExpirationCondition``,
# ``OffsetMetadataManager.cleanupExpiredOffsets``.


_BETWEEN_LOOKS_MS: Final = 600_000
"""Kafka's ``offsets.retention.check.interval.ms``."""

_LONGEST_NOTE: Final = 64 << 20


@shielded
def expire_positions(
    paths: Sequence[str],
    retention_ms: int,
    *,
    allows_broker: bool = False,
    wait_ms: int = WAIT_MS,
) -> list[str]:
    """Take expired positions away, by one commit; return what was done, a line for each group.

    Args:
        paths: all log directories of the set.
        retention_ms: Kafka's ``offsets.retention.minutes``, in ms.
        allows_broker: whether to do so though a broker had the directories last.
        wait_ms: how long to wait for a writer of ours.

    Raises:
        KafkaLogError, OSError: groups cannot be read, or nothing was published.
    """
    with opened_logs(
        paths,
        "kafkalog maintain",
        allows_broker=allows_broker,
        dry_run=False,
        wait_ms=wait_ms,
    ) as log_set:
        now_ms = system.time_ns() // 1_000_000
        note = min(log_set.members.items())[1] / EXPIRY_NOTE
        look = _Look(now_ms, retention_ms, _read(note))
        commit_of_groups(log_set, records_of_groups(log_set, look.expired, now_ms), now_ms)
        if look.waiting != look.seen:
            with log_set.node.isolated_at(note.parent):
                write_atomically(note, json.dumps(look.waiting).encode())
    return look.said


@dataclass(slots=True)
class _Look:
    """One look at all groups, by the clock.

    ``seen`` is what earlier looks have found, and ``waiting`` what the next one is told: of each
    position when it was used last, and when it was first found to have expired since; ms. Of the
    group itself likewise. A position is called ``t-0 GROUP``, the group itself ``group GROUP``.
    """

    now_ms: int
    retention_ms: int
    seen: Mapping[str, _Found]
    waiting: dict[str, _Found] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)

    def expired(self, name: str, group: KnownGroup) -> Records:
        """Return what is to be written of a group."""
        found = _expired(group, self.now_ms, self.retention_ms)
        is_forgotten = _is_forgotten(group, found, self.now_ms, self.retention_ms)
        if is_forgotten:
            is_forgotten = self._is_due(f"group {name}", _last_used(group))
        keys = [key for key in found if self._is_due(f"{key} {name}", _position_used(group, key))]
        is_forgotten = is_forgotten and keys == found
        if not keys and not is_forgotten:
            return []
        self.said.append(f"group {name}: {many(len(keys), 'position')} expired")
        forgotten: Records = [(encode_group_key(name), None)] if is_forgotten else []
        return [*((encode_position_key(name, key), None) for key in keys), *forgotten]

    def _is_due(self, what: str, used_ms: int) -> bool:
        """Tell whether an earlier look has found the same, and let the next one know."""
        before = self.seen.get(what)
        is_known = before is not None and before[0] == used_ms and before[1] <= self.now_ms
        first_ms = before[1] if before is not None and is_known else self.now_ms
        if self.now_ms - first_ms >= _BETWEEN_LOOKS_MS:
            return True
        self.waiting[what] = used_ms, first_ms
        return False


def _expired(group: KnownGroup, now_ms: int, retention_ms: int) -> list[TopicPartition]:
    """Return which positions have, by this look."""
    known = group.metadata
    if group.is_newer or (known is not None and known.members):
        return []
    return sorted(
        key
        for key, each in group.positions.items()
        if (
            now_ms >= each.expire_timestamp_ms
            if each.expire_timestamp_ms >= 0
            else now_ms - _position_used(group, key) >= retention_ms
        )
    )


def _position_used(group: KnownGroup, key: TopicPartition) -> int:
    """Return when a position was committed, or its group became empty after that, ms."""
    empty_ms = -1 if group.metadata is None else group.metadata.timestamp_ms
    return max(empty_ms, group.positions[key].commit_timestamp_ms)


def _is_forgotten(
    group: KnownGroup, expired: Sequence[TopicPartition], now_ms: int, retention_ms: int
) -> bool:
    """Tell whether nothing is left of a group but its metadata, which has expired too."""
    known = group.metadata
    if known is None or known.members or group.is_newer or len(expired) < len(group.positions):
        return False
    return bool(expired) or now_ms - known.timestamp_ms >= retention_ms


def _last_used(group: KnownGroup) -> int:
    """Return when something last happened to a group, ms."""
    times = [each.commit_timestamp_ms for each in group.positions.values()]
    return max([*times, -1 if group.metadata is None else group.metadata.timestamp_ms])


def _read(note: Path) -> dict[str, _Found]:
    """Return what looks have written down; nothing where that cannot be read."""
    try:
        found = json.loads(read_regular(note, limit=_LONGEST_NOTE))
        return {str(name): (int(since), int(first)) for name, (since, first) in found.items()}
    except (OSError, ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return {}
