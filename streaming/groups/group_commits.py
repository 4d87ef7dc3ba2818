"""Publish a group's decisions and positions: by commits, and by nothing else.

What a commit says of a group is looked at under the locks of the set, before its intent and right
before its rename (:class:`GroupPrecondition`, :class:`Fence`). So of two that decide the same
generation one does. And a member that the group went on without publishes nothing, however late it
wakes up.
"""

from __future__ import annotations

import functools
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from kafkalog.checkpoints.commit_state import STATE_FILE
from kafkalog.errors import FencedMemberError, KafkaLogError
from kafkalog.files.system import system
from kafkalog.files.watch import Watched
from kafkalog.model import OFFSETS_TOPIC, partition_counts
from kafkalog.streaming.commit.append import CommitSettings
from kafkalog.streaming.commit.bucket_commit import CommittedBucket, commit_batch
from kafkalog.streaming.commit.committer import Committer
from kafkalog.streaming.commit.staging.staged_files import AttachedRecords
from kafkalog.streaming.coordinator.group_metadata import (
    encode_group_key,
    encode_group_metadata,
    encode_position,
    encode_position_key,
)
from kafkalog.streaming.coordinator.group_replay import (
    DEFAULT_OFFSETS_PARTITIONS,
    partition_for_group,
)
from kafkalog.streaming.groups.group_log import GroupLog, GroupState
from kafkalog.streaming.groups.position_topics import metadata_of, present_ids
from kafkalog.streaming.log.history import LastBatch, find_last_batch
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.objects.bucket_log import replaced_log_error
from kafkalog.streaming.objects.bucket_store import bucket_of_path
from kafkalog.streaming.store.identity import BatchIdentity
from kafkalog.streaming.store.policy import SetPolicy, TopicPolicy
from kafkalog.streaming.store.session import inspect_state

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.groups.rebalance import GroupRecord
    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.objects.bucket_store import BucketRoot
    from kafkalog.streaming.store.log_set import CommittedSet, LogSet

__all__ = [
    "OFFSETS_POLICY",
    "Fence",
    "GroupCommits",
    "GroupPrecondition",
    "ReadRange",
    "attached_offsets",
    "encode_record",
    "last_batches",
]

KeyAndValue: TypeAlias = tuple[bytes, bytes | None]

OFFSETS_POLICY: Final = TopicPolicy(
    allows_internal=True,
    partitions=DEFAULT_OFFSETS_PARTITIONS,
    settings={"cleanup.policy": "compact", "segment.bytes": str(100 << 20)},
)
"""``__consumer_offsets`` as a broker makes it; one that exists keeps its partitions."""


class ReadRange(NamedTuple):
    """What a member has read of a partition: ``[begin, end)``, having it ``since`` a generation.

    ``batch`` is the last one below the end, as the member has noted it before it read.
    """

    begin: int
    end: int
    since: int
    batch: LastBatch | None = None


class _OvertakenError(FencedMemberError):
    """Somebody else has decided meanwhile."""


@dataclass(frozen=True)
class GroupPrecondition:
    """A condition of a commit: a group is as it was when the decision was made.

    ``stands``: partitions that must still have a committed position. ``begins``: partitions that
    must not have one yet; if another commit sets one first, that one wins.
    """

    log: GroupLog
    record: GroupRecord
    stands: frozenset[TopicPartition] = frozenset()
    begins: frozenset[TopicPartition] = frozenset()

    def __call__(self, log_set: CommittedSet) -> None:
        """Look.

        Raises:
            FencedMemberError: it is not.
        """
        state = self.log.look(log_set)
        if state.record != self.record:
            raise _OvertakenError(
                f"the group has gone on from generation {self.record.generation} meanwhile"
            )
        gone = self.stands - state.positions.keys()
        if gone:
            raise _OvertakenError(
                f"the group's positions of {', '.join(map(str, sorted(gone)))} were taken away "
                "meanwhile"
            )
        if not self.begins.isdisjoint(state.positions):
            raise _OvertakenError("the group was given positions meanwhile")


@dataclass(frozen=True)
class Fence:
    """A condition of a commit: a member has what it commits, and had it all the time.

    That the generation has risen since does not matter.
    """

    log: GroupLog
    group: str
    member: str
    moves: Mapping[TopicPartition, ReadRange]

    def __call__(self, log_set: CommittedSet) -> None:
        """Look.

        Raises:
            FencedMemberError: the member has been replaced or lost, a partition was taken away, or
                the group stands elsewhere than what the member read begins.
        """
        state = self.log.look(log_set)
        member = state.record.members.get(self.member)
        if member is None:
            raise FencedMemberError(
                f"group {self.group!r} has gone on without member {self.member!r}, and is in "
                f"generation {state.record.generation}: nothing was written. Its partitions are "
                "read by others, from where it has committed them; join again"
            )
        for partition, move in self.moves.items():
            self._check(partition, move, member.held.get(partition), state)

    def _check(
        self, partition: TopicPartition, move: ReadRange, since: int | None, state: GroupState
    ) -> None:
        if since != move.since:
            raise FencedMemberError(
                f"member {self.member!r} of group {self.group!r} had {partition} since generation "
                f"{move.since}, and has it "
                f"{'no more' if since is None else f'since {since} now'}: nothing was written. It "
                "is read again from where the group stands"
            )
        stands = state.positions.get(partition)
        if stands != move.begin:
            raise FencedMemberError(
                f"group {self.group!r} stands at {'no offset' if stands is None else stands} of "
                f"{partition}, and what member {self.member!r} has read begins at {move.begin}: "
                "nothing was written"
            )


class GroupCommits:
    """Looks at a group in a set of log directories, and commits what follows. Not thread safe."""

    def __init__(
        self,
        directories: Sequence[Path],
        group: str,
        policy: SetPolicy,
        log: GroupLog | None = None,
    ) -> None:
        """Take the log directories of a set, a group's id, and what was read of it before, if any.

        Raises:
            OptionError: no record can hold the id.
        """
        self._directories = tuple(directories)
        self.group = group
        self._policy = policy
        self._log = log or GroupLog(group)
        self._bucket = bucket_of_path(self._directories[0])
        self._set: Watched[LogSet] | _FollowedBucket = (
            _FollowedBucket(self._bucket)
            if self._bucket is not None
            else Watched(
                [path for each in directories for path in (each, each / STATE_FILE)],
                lambda: inspect_state(self._directories, self._policy),
            )
        )
        self._state: GroupState | None = None
        self._counts: dict[str, int] | None = None

    @property
    def bucket(self) -> BucketRoot | None:
        """The log in an object store in which the group is kept; None in directories."""
        return self._bucket

    def another(self) -> GroupCommits:
        """Return one more, for another thread."""
        return GroupCommits(self._directories, self.group, self._policy)

    def folder(self) -> Path:
        """Return the directory of the set's first member id, where the files of members lie.

        Of several nodes those count that are there. So members are fenced where that one goes away,
        and join again in another one.

        Raises:
            KafkaLogError: the directories are no set that can be looked at.
        """
        return min(inspect_state(self._directories, self._policy).members.items())[1]

    def is_elsewhere(self, folder: Path) -> bool:
        """Whether the files of members lie in another folder now: a node has gone, or is back.

        Raises:
            KafkaLogError: the directories are no set that can be looked at.
        """
        if self._bucket is not None:
            return False
        log_set = self._inspect_set()
        return log_set.state.is_replicated and self.folder() != folder

    def partitions_of(self, topics: Collection[str]) -> dict[str, int]:
        """Return the number of partitions of those of the topics that exist."""
        counts = self._all_counts()
        return {topic: counts[topic] for topic in topics if topic in counts}

    def topics(self) -> frozenset[str]:
        """Return the names of all topics that exist."""
        return frozenset(self._all_counts())

    def _all_counts(self) -> dict[str, int]:
        log_set = self._inspect_set()
        if self._counts is None:
            self._counts = partition_counts(log_set.partitions())
        return self._counts

    def look(self, *, at_once: bool = False) -> GroupState:
        """Return the group as it is committed now; nothing is locked.

        What is committed shows in the directories themselves: a file is renamed there. As long as
        they do not change, a look is two ``stat`` a directory. A log in an object store is asked
        once a poll interval, and ``at_once``.

        Raises:
            KafkaLogError: that cannot be read.
        """
        if at_once and self._bucket is not None:
            self._bucket.open_store().forget_listing()
        log_set = self._inspect_set()
        if self._state is None:
            self._state = self._log.look(log_set)
        return self._state

    def _inspect_set(self) -> CommittedSet:
        try:
            is_new = self._set.refresh()
        except BaseException:
            self._state = self._counts = None
            raise
        if is_new:
            self._state = self._counts = None
        return self._set.value

    def topic_ids(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, str]:
        """Return what positions are committed with: the ids that they have, or the present ones.

        Raises:
            KafkaLogError: that cannot be read.
        """
        known = self.look().topic_ids
        topics = {key.topic for key in partitions if key not in known}
        present = present_ids(self._set.value.partitions(), topics) if topics else {}
        found = {key: known.get(key, present.get(key.topic)) for key in partitions}
        return {key: topic_id for key, topic_id in found.items() if topic_id is not None}

    def last_batches(
        self, positions: Mapping[TopicPartition, int] | Mapping[TopicPartition, int | None]
    ) -> dict[TopicPartition, LastBatch]:
        """Look up the last batches below positions, as of now; none of a log that cannot be read.

        Raises:
            KafkaLogError: the set cannot be looked at.
        """
        if self._bucket is not None:  # a log there is not cut, and the topic's id tells the rest
            return {}
        return last_batches(self._inspect_set().partitions(), positions) if positions else {}

    def attach(self, moves: Mapping[TopicPartition, ReadRange], now_ms: int) -> AttachedRecords:
        """Return what is committed of how far partitions were read.

        Raises:
            KafkaLogError: the group cannot be read.
        """
        ends = {key: move.end for key, move in moves.items()}
        noted = {key: move.batch for key, move in moves.items() if move.batch is not None}
        unnoted = {key: end for key, end in ends.items() if key not in noted}
        batches = {**self.last_batches(unnoted), **noted}
        return attached_offsets(
            self.group, ends, now_ms, topic_ids=self.topic_ids(ends), batches=batches
        )

    def decide(
        self,
        before: GroupRecord,
        record: GroupRecord,
        positions: Mapping[TopicPartition, int] | None = None,
        stands: Collection[TopicPartition] = (),
        topic_ids: Mapping[TopicPartition, str] | None = None,
        forgotten: Collection[TopicPartition] = (),
    ) -> bool:
        """Publish a generation, and the positions that it begins with.

        Args:
            before: what was decided last.
            record: what follows.
            positions: where the group begins in partitions that are new to it.
            stands: partitions in which it has a position, and has to have it still.
            topic_ids: of the topics that the new positions were found in.
            forgotten: partitions whose position is of an earlier topic, and is taken away.

        Returns:
            whether it was; not if somebody else has decided, or moved the group to where it is to
            begin or away from where it is to stand, since ``before`` was read.

        Raises:
            KafkaLogError: it is not published, for other reasons.
        """
        begins = frozenset(positions or {}) | frozenset(forgotten)
        condition = GroupPrecondition(self._log, before, frozenset(stands), begins)
        try:
            records = encode_record(self.group, record)
            changed = {**dict.fromkeys(forgotten), **(positions or {})}
            self._change(changed, records, condition, topic_ids or {})
        except _OvertakenError:
            return False
        return True

    def change(
        self,
        before: GroupRecord,
        positions: Mapping[TopicPartition, int | None],
        records: Sequence[KeyAndValue] = (),
    ) -> None:
        """Publish positions, None where one is taken away, and other records of the group.

        Raises:
            FencedMemberError: somebody else has decided since ``before`` was read.
            KafkaLogError: nothing is published, for other reasons.
        """
        ids = self.topic_ids(positions)
        self._change(positions, records, GroupPrecondition(self._log, before), ids)

    def _change(
        self,
        positions: Mapping[TopicPartition, int] | Mapping[TopicPartition, int | None],
        records: Sequence[KeyAndValue],
        condition: GroupPrecondition,
        topic_ids: Mapping[TopicPartition, str],
    ) -> None:
        now_ms = system.time_ns() // 1_000_000
        batches = self.last_batches(positions)
        attached = attached_offsets(
            self.group, positions, now_ms, records, topic_ids=topic_ids, batches=batches
        )
        self._commit(attached, condition, now_ms)

    def commit(self, member: str, moves: Mapping[TopicPartition, ReadRange]) -> None:
        """Publish how far a member has come in its partitions.

        Raises:
            FencedMemberError: see :class:`Fence`; nothing is published.
            KafkaLogError: likewise, for other reasons.
        """
        now_ms = system.time_ns() // 1_000_000
        self._commit(self.attach(moves, now_ms), self.fence(member, moves), now_ms)

    def fence(self, member: str, moves: Mapping[TopicPartition, ReadRange]) -> Fence:
        """Return the condition under which a member may commit what it has read."""
        return Fence(self._log, self.group, member, moves)

    def _commit(
        self, attached: AttachedRecords, condition: GroupPrecondition | Fence, now_ms: int
    ) -> None:
        plan = CommitSettings(
            directories=self._directories,
            planned_ms=now_ms,
            policy=self._policy,
            has_nodes=self._inspect_set().state.is_replicated,
        )
        identity = BatchIdentity(f"job:{system.random_id()}", 0)
        if self._bucket is not None:
            commit_batch(
                self._bucket,
                plan,
                identity,
                [],
                conditions=[condition],
                attached_records=[attached],
            )
            return
        committer = Committer(plan, identity, attached_records=[attached], conditions=[condition])
        committer.commit_or_abort([])


class _FollowedBucket:
    """What is committed in an object store, as of a look; as :class:`Watched` is of directories."""

    value: CommittedBucket

    def __init__(self, root: BucketRoot) -> None:
        self._root = root

    def refresh(self) -> bool:
        """Look again if that is due; return whether there is another value.

        Raises:
            LogDirectoryError: the log cannot be read; or another one lies there, whose group of
                that name is not the one that is known.
        """
        found = CommittedBucket.newest(self._root)
        known = getattr(self, "value", None)
        if known is not None and known.state is found.state:
            return False
        if known is not None and known.state.set_id != found.state.set_id:
            raise replaced_log_error(str(self._root), known.state.set_id, found.state.set_id)
        self.value = found
        return True


def encode_record(group: str, record: GroupRecord | None) -> list[KeyAndValue]:
    """Encode what is decided about a group as of now; None for a group that is to be forgotten."""
    now_ms = system.time_ns() // 1_000_000
    value = None if record is None else encode_group_metadata(record.metadata(now_ms))
    return [(encode_group_key(group), value)]


def last_batches(
    there: Mapping[TopicPartition, PartitionDirectory],
    positions: Mapping[TopicPartition, int] | Mapping[TopicPartition, int | None],
) -> dict[TopicPartition, LastBatch]:
    """Look up the last batches below positions in partitions; none of a log that cannot be read."""
    found: dict[TopicPartition, LastBatch] = {}
    for key, position in positions.items():
        with suppress(KafkaLogError, OSError):
            if position and key in there:
                with PartitionLog(there[key].path, key) as log:
                    batch = find_last_batch(log, position)
                found |= {} if batch is None else {key: batch}
    return found


def attached_offsets(
    group: str,
    positions: Mapping[TopicPartition, int] | Mapping[TopicPartition, int | None],
    now_ms: int,
    records: Sequence[KeyAndValue] = (),
    *,
    topic_ids: Mapping[TopicPartition, str] | None = None,
    batches: Mapping[TopicPartition, LastBatch] | None = None,
) -> AttachedRecords:
    """Attach a group's positions, and other records of it, to a commit.

    A position that is None is taken away. ``topic_ids`` and ``batches``, the last ones below
    positions, tell later whether they still mean the same records.
    """
    ids, last = topic_ids or {}, batches or {}
    return AttachedRecords(
        topic=OFFSETS_TOPIC,
        partition_of=functools.partial(partition_for_group, group),
        records=[
            *records,
            *(
                (
                    encode_position_key(group, key),
                    None
                    if offset is None
                    else encode_position(
                        offset,
                        timestamp_ms=now_ms,
                        metadata=metadata_of(ids.get(key), last.get(key)),
                    ),
                )
                for key, offset in positions.items()
            ),
        ],
        timestamp_ms=now_ms,
        policy=OFFSETS_POLICY,
    )
