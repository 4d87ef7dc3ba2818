"""Write, reset or delete positions of a group from outside, while no member is alive.

A member is alive while its heartbeat counter changes. One that was killed may still be in the
group's record. So a change first watches the counters for the longest ``session.timeout.ms``. If
none changes, all members count as dead, and the change leaves the group empty.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from kafkalog.checkpoints.committed import load_committed
from kafkalog.errors import (
    KafkaLogError,
    LogDirectoryError,
    OffsetOutOfRangeError,
    OptionError,
    UnknownTopicOrPartitionError,
)
from kafkalog.files.paths import split_paths
from kafkalog.files.system import system
from kafkalog.model import said_there
from kafkalog.streaming.commit.append import CommitSettings
from kafkalog.streaming.commit.bucket_commit import CommittedBucket, commit_batch
from kafkalog.streaming.commit.committer import Committer
from kafkalog.streaming.groups.group_commits import (
    GroupCommits,
    attached_offsets,
    encode_record,
    last_batches,
)
from kafkalog.streaming.groups.member_files import (
    LOOK_S,
    LivenessTracker,
    member_file_name,
    members_of,
)
from kafkalog.streaming.groups.planned_commit import remove_plans
from kafkalog.streaming.groups.position_topics import present_ids
from kafkalog.streaming.groups.rebalance import GroupRecord
from kafkalog.streaming.objects.bucket_store import bucket_of
from kafkalog.streaming.store.ends.tiered import offset_of_time
from kafkalog.streaming.store.ends.tracker import LogEndTracker
from kafkalog.streaming.store.identity import BatchIdentity
from kafkalog.streaming.store.log_dirs import LogDirs
from kafkalog.streaming.store.policy import BY_FLAG, SetPolicy
from kafkalog.streaming.store.session import (
    ensure_set,
    existing_log_dirs,
    parse_paths,
    require_commit_state,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.groups.group_log import GroupState
    from kafkalog.streaming.log.history import LastBatch
    from kafkalog.streaming.objects.bucket_store import BucketRoot

__all__ = ["EARLIEST", "LATEST", "Changed", "GroupWriter", "delete_group", "reset_group"]

_LOGGER: Final = logging.getLogger("kafkalog.groups")

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

_LONGEST_STEP_S: Final = 1.0

Target: TypeAlias = "str | int | Mapping[TopicPartition, int]"


@dataclass(frozen=True, slots=True)
class Changed:
    """Where a group stood in a partition, and where it stands now; None for no position."""

    partition: TopicPartition
    before: int | None
    after: int | None


def reset_group(
    paths: Sequence[str],
    group: str,
    to: Target,
    *,
    topics: Collection[str] = (),
    allows_broker: bool = False,
    dry_run: bool = False,
) -> list[Changed]:
    """Let a group go on elsewhere; all of its positions move by one commit.

    Args:
        paths: all log directories of the set.
        group: its id; a group that does not exist yet begins there.
        to: ``earliest`` or ``latest``; a time in ms, for the first record of that time or a later
            one, or the end where there is none; or an offset for each partition.
        topics: which topics; those in which the group has positions if none is named.
        allows_broker: whether to do so though a broker had the directories last.
        dry_run: whether to say only what would be done, and change nothing.

    Raises:
        OptionError: the group has members that live; or no topic is named, and it has no position.
        UnknownTopicOrPartitionError: a topic or partition that is not there.
        OffsetOutOfRangeError: an offset that the log of its partition does not have.
        KafkaLogError: nothing is changed, for other reasons.
    """
    commits = _commits(paths, group, allows_broker=allows_broker)
    state = _when_empty(commits, dry_run=dry_run)
    positions = _targets(paths, group, to, topics, state)
    if not dry_run:
        _publish(commits, state, positions)
    return [Changed(key, state.positions.get(key), after) for key, after in positions.items()]


def delete_group(
    paths: Sequence[str], group: str, *, allows_broker: bool = False, dry_run: bool = False
) -> list[Changed]:
    """Forget a group: what was decided about it, and all of its positions.

    Raises:
        OptionError: there is no such group, or it has members that live.
        KafkaLogError: nothing is changed, for other reasons.
    """
    commits = _commits(paths, group, allows_broker=allows_broker)
    if commits.look().is_unknown:
        raise OptionError(f"there is no group {group!r} in {', '.join(paths)}")
    state = _when_empty(commits, dry_run=dry_run)
    if not dry_run:
        positions = dict.fromkeys((*state.positions, *state.outdated))
        _publish(commits, state, positions, is_forgotten=True)
        if commits.bucket is None:
            remove_plans(commits.folder(), group)
    return [Changed(key, before, None) for key, before in sorted(state.positions.items())]


def _commits(paths: Sequence[str], group: str, *, allows_broker: bool) -> GroupCommits:
    directories = _directories(paths)
    policy = SetPolicy(allows_broker=allows_broker, may_grow=False, broker_advice=BY_FLAG)
    return GroupCommits(directories, group, policy)


def _directories(paths: Sequence[str]) -> list[Path]:
    """Return the log directories of a set, or the root of a log in an object store, as of now."""
    if (root := bucket_of(paths)) is not None:
        root.open_store().forget_listing()
        return [root.open_log()]
    directories = existing_log_dirs(paths)
    require_commit_state(directories)
    return directories


def _publish(
    commits: GroupCommits,
    state: GroupState,
    positions: Mapping[TopicPartition, int | None],
    *,
    is_forgotten: bool = False,
) -> None:
    """Change positions; members that are lost go with that."""
    empty = None if is_forgotten else GroupRecord(state.record.generation + 1)
    is_decided = is_forgotten or bool(state.record.members)
    records = encode_record(commits.group, empty) if is_decided else []
    if is_forgotten:
        records += [(key, None) for key in sorted(state.newer_keys)]
    commits.change(state.record, positions, records)
    for member in state.record.members:
        members_of(commits, 0).remove(member)


def _when_empty(commits: GroupCommits, *, dry_run: bool) -> GroupState:
    """Return the group once none of its members can live."""
    folder = members_of(commits, _LONGEST_STEP_S)
    watch = LivenessTracker(commits.group, longest_step_s=_LONGEST_STEP_S)
    seen: dict[str, int] = {}
    while True:
        state = commits.look()
        heartbeats = folder.read()
        present = (
            watch.look(system.monotonic(), heartbeats, state.record).keys() & state.record.members
        )
        counters = {
            each: heartbeats[member_file_name(commits.group, each)].counter for each in present
        }
        living = [each for each, count in counters.items() if seen.get(each, count) != count]
        if living:
            hosts = {state.record.members[each].settings.host for each in living}
            raise OptionError(
                f"group {commits.group!r} has members that live: {', '.join(sorted(living))} on "
                f"{', '.join(sorted(hosts))}. Stop them first; nothing was changed"
            )
        if not present:
            return state
        if not seen:
            _tell_wait(commits.group, state, present, dry_run=dry_run)
        seen |= counters
        system.sleep(LOOK_S)


def _tell_wait(group: str, state: GroupState, present: Collection[str], *, dry_run: bool) -> None:
    longest = max(state.record.members[each].settings.session_timeout_ms for each in present)
    _LOGGER.warning(
        "group %r has members: %s. If they say nothing for %d s, their session time-out, they are "
        "lost, and the group is %s",
        group,
        ", ".join(sorted(present)),
        longest // 1000,
        "taken for empty" if dry_run else "changed",
    )


def _targets(
    paths: Sequence[str], group: str, to: Target, topics: Collection[str], state: GroupState
) -> dict[TopicPartition, int]:
    """Return where the group is to stand."""
    offsets = {} if isinstance(to, str | int) else to
    if not (offsets or isinstance(to, str | int)):
        raise OptionError("no partition is named to which the group goes")
    named = {*topics} or {key.topic for key in (offsets or state.positions)}
    if not named:
        raise OptionError(f"group {group!r} has no position here: say which topics (--topic)")
    where = parse_paths(paths) if bucket_of(paths) is None else _directories(paths)
    watch = LogEndTracker(where, lambda key: key.topic in named)
    ends = watch.look().offsets
    missing = {str(key): key.topic for key in offsets.keys() - ends.keys()}
    missing |= {topic: topic for topic in named - {key.topic for key in ends}}
    if missing:
        known = said_there(missing[min(missing)], LogDirs(where).partitions())
        raise UnknownTopicOrPartitionError(
            f"{', '.join(sorted(missing))} is not in {', '.join(paths)}. {known}"
        )
    if isinstance(to, str | int):
        return {key: _resolved(watch, key, end, to) for key, end in sorted(ends.items())}
    for key, offset in offsets.items():
        _check_offset(key, offset, watch.log_start(key), ends[key])
    return dict(sorted(offsets.items()))


def _resolved(watch: LogEndTracker, key: TopicPartition, end: int, to: str | int) -> int:
    if to == LATEST:
        return end
    if to == EARLIEST:
        return watch.log_start(key)
    if isinstance(to, str):
        raise OptionError(f"a group cannot go to {to!r}, expected {EARLIEST}, {LATEST} or a time")
    start = watch.log_start(key)
    with watch.open(key) as log:
        found = offset_of_time(log, start, to, end)
    return end if found is None else found


def _check_offset(key: TopicPartition, offset: int, start: int, end: int) -> None:
    if not start <= offset <= end:
        raise OffsetOutOfRangeError(
            f"a group cannot stand at offset {offset} of {key}: expected one from {start}, the log "
            f"start, to {end}, where it is committed"
        )


# ----------------------------------------------------------------------------------------------
# Write the positions of a consumer group into ``__consumer_offsets`` of log directories of ours.
#
# A broker that is given the directories, and every tool that reads the topic, then shows how far a
# query has come. The records are committed like any others, by the steps of
# :mod:`~kafkalog.streaming.commit.committer`. They take no part in exactly-once delivery: a
# position that is written twice says the same.

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
        plan = CommitSettings(
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
        self, root: BucketRoot, changed: Mapping[TopicPartition, int], plan: CommitSettings
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
