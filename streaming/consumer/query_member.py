"""A streaming query as a member of a group: its options, its membership, and its offsets."""

from __future__ import annotations

import functools
import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.sealed_file import read_sealed, seal
from kafkalog.errors import (
    CheckpointError,
    FencedMemberError,
    KafkaLogError,
    LockTimeoutError,
    OptionError,
)
from kafkalog.files.atomic import create_atomically, make_with_parents
from kafkalog.files.deferred_signals import pause, wait_until
from kafkalog.files.regular import fsync_directory
from kafkalog.files.system import system
from kafkalog.model import TopicPartition
from kafkalog.streaming.consumer.consumer_options import ConsumerOptions
from kafkalog.streaming.consumer.fetching import beginnings
from kafkalog.streaming.groups.group_commits import GroupCommits, ReadRange
from kafkalog.streaming.groups.member_files import LOOK_S, MemberFolder, member_file_name
from kafkalog.streaming.groups.membership import InstanceLock
from kafkalog.streaming.groups.planned_commit import Plan, load_plan, save_plan
from kafkalog.streaming.options.declaring import options_of
from kafkalog.streaming.source.admission import BatchLimits, IdlePacer
from kafkalog.streaming.source.end_offsets import CompletenessCheck, EndOffsets
from kafkalog.streaming.source.loss import LossPolicy
from kafkalog.streaming.source.offsets import to_json
from kafkalog.streaming.source.planner import LogSplit, plan_splits, readable_ranges
from kafkalog.streaming.source.start import PositionValidator
from kafkalog.streaming.source.subscription import Subscription
from kafkalog.streaming.store.session import ensure_set, existing_log_dirs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kafkalog.streaming.consumer.consumer_options import Beginnings
    from kafkalog.streaming.groups.group_log import GroupState
    from kafkalog.streaming.groups.membership import GroupMember
    from kafkalog.streaming.log.history import Divergence, LastBatch
    from kafkalog.streaming.options.read_options import ReadOptions
    from kafkalog.streaming.source.offsets import OffsetJson, PartitionOffsets

__all__ = [
    "MEMBER_NAME_FILE",
    "JoinedControl",
    "QueryMember",
    "instance_of",
    "kept_name",
    "member_options",
    "without_member_options",
]

MEMBER_NAME_FILE: Final = "kafkalog.member"
_FORMAT: Final = "kafkalog.member"
_VERSION: Final = 1
_GO_WITHOUT: Final = "Move it away while the query is stopped: it joins under a new name then"


def kept_name(folder: Path) -> str:
    """Return the name that is kept in a folder; a new one is kept there first.

    Raises:
        CheckpointError: the file is damaged, from a newer release, or cannot be written.
    """
    found = _read(folder)
    if found is not None:
        return found
    path = folder / MEMBER_NAME_FILE
    line = {"instance": f"query-{system.random_id()}"}
    try:
        make_with_parents(folder)
        create_atomically(path, seal(_FORMAT, _VERSION, [line]))
        fsync_directory(folder)
    except FileExistsError:
        return _read(folder) or line["instance"]
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error}") from error
    return line["instance"]


def _read(folder: Path) -> str | None:
    path = folder / MEMBER_NAME_FILE
    try:
        sealed = read_sealed(path, _FORMAT, _VERSION, remedy=_GO_WITHOUT)
        return None if sealed is None else str(sealed.lines[0]["instance"])
    except (KeyError, IndexError, TypeError) as error:
        raise CheckpointError(f"{path} holds no name: {error!r}. {_GO_WITHOUT}") from error


# ----------------------------------------------------------------------------------------------

_UNLIMITED_MS: Final = "2147483647"
_REBALANCE_MS: Final = "300000"

_TAKEN: Final = frozenset(
    {
        *("kafka.session.timeout.ms", "kafka.heartbeat.interval.ms", "kafka.max.poll.interval.ms"),
        *("kafka.rebalance.timeout.ms", "kafka.partition.assignment.strategy"),
        *("kafka.group.instance.id", "kafka.client.id", "kafka.max.block.ms"),
    }
)


def member_options(given: Mapping[str, str]) -> ConsumerOptions:
    """Parse what a query was given; ``given`` are all of its options.

    Raises:
        OptionError: options that cannot be used.
    """
    known = {name for each in options_of(ConsumerOptions) for name in each.spellings()}
    taken = {n.lower(): t for n, t in given.items() if n.lower() in known & {*_TAKEN, "path"}}
    taken.setdefault("kafka.client.id", "query")
    if "kafka.max.poll.interval.ms" not in taken:
        taken["kafka.max.poll.interval.ms"] = _UNLIMITED_MS
        taken.setdefault("kafka.rebalance.timeout.ms", _REBALANCE_MS)
    return ConsumerOptions.parse(taken)


def without_member_options(options: ReadOptions) -> ReadOptions:
    """Return a query's options, of which those that a member takes are not ignored."""
    left = tuple(name for name in options.ignored if name.lower() not in _TAKEN)
    return replace(options, ignored=left)


def instance_of(options: ReadOptions) -> str:
    """Return the query's name in its group; one without is given one, which is kept.

    Raises:
        CheckpointError: it cannot be kept or read.
    """
    if options.group_instance_id is not None:
        return options.group_instance_id
    return kept_name(Path(options.state_location or ""))


# ----------------------------------------------------------------------------------------------
# A query in its group: from the first question that Spark asks of its source to the process's
# end.
#
# Spark asks, and between two questions a micro-batch runs elsewhere, of which the source hears
# nothing. The member's thread says meanwhile that it lives. It also takes note of what is decided,
# and gives up partitions that are revoked: at once those of which the running batch reads
# nothing, and the others when the batch has ended. That is when Spark asks what follows it, or
# when the group's positions have reached the end of its plan. So nobody waits for the query's
# next trigger.
#
# Spark's calls and the thread's rounds exclude each other by a mutex; a heartbeat needs none.


_LOGGER: Final = logging.getLogger("kafkalog.groups")

_DYING_S: Final = 3.0
"""How long a query that was stopped may take to end its process."""


class QueryMember:
    """One query as a member of one group, under one name. Thread safe."""

    def __init__(
        self,
        directories: Sequence[Path],
        group: str,
        instance: str,
        options: ConsumerOptions,
        *,
        subscription: Subscription,
        beginnings: Beginnings,
    ) -> None:
        """Take where the group is kept, and how it takes part under its name; nothing is joined.

        ``beginnings`` says where the group begins, see :class:`~.membership.GroupMember`.
        """
        self._group = group
        self._instance = instance
        self._options = options
        self._subscription = subscription
        self._beginnings = beginnings
        self._commits = GroupCommits(directories, group, options.policy)
        # A decision waits for no writer longer than for a heartbeat: the same thread says both.
        wait_ms = min(options.max_block_ms, options.heartbeat_interval_ms)
        self._deciding = GroupCommits(directories, group, replace(options.policy, wait_ms=wait_ms))
        self._folder = self._commits.folder()
        self._rebalance_s = options.longest_rebalance_ms / 1000
        self._mutex = system.lock()
        self._member: GroupMember | None = None
        self._lock = InstanceLock(self._folder, group, instance)
        self._running: Plan | None = None
        """The plan of the batch that runs, as far as is known."""
        self._rests_at: OffsetJson | None = None
        self._state: GroupState | None = None
        self._is_stopped = False
        self._has_said_at_least_once = False

    def take_part(self) -> None:
        """Join at the first call; then do what the group asks for.

        If the group continued without the member while that read nothing, it joins again: nothing
        of it can be written twice. With a batch at work the query fails.

        Raises:
            FencedMemberError: the group continued without the member while a batch was at work, or
                another process has taken its name.
            OptionError: another process with this name lives, or members assign otherwise.
            KafkaLogError: the group cannot be looked at, or a decision not be written.
        """
        with self._mutex:
            self._check_in_time()
            try:
                if self._member is None:
                    self._join()
                else:
                    self._member.polled()
                    self._round(self._member)
            except FencedMemberError:
                if self._running is not None or self._is_replaced(self._member):
                    raise
                _LOGGER.info("%s of group %s joins again", self._instance, self._group)
                self._lock.close()
                if self._member is not None:
                    self._member.fall_silent()
                self._join()

    def settle(self) -> None:
        """Wait until everybody has given up what others are to have; not for ever.

        Raises:
            FencedMemberError, KafkaLogError: as :meth:`take_part`.
        """
        wait_until(self._is_settled, self._rebalance_s)

    @property
    def owned(self) -> dict[TopicPartition, int]:
        """The partitions that it reads, with the group's position in each; as of the last round."""
        with self._mutex:
            if self._member is None or self._state is None:
                return {}
            stands = self._state.positions
            return {key: stands[key] for key in sorted(self._member.assigned) if key in stands}

    @property
    def topic_ids(self) -> Mapping[TopicPartition, str]:
        """The ids of the topics that the group's positions were found in, where they have one."""
        with self._mutex:
            return {} if self._state is None else self._state.topic_ids

    @property
    def last_batches(self) -> Mapping[TopicPartition, LastBatch]:
        """The last batches below where the group stands, as it has committed them."""
        with self._mutex:
            return {} if self._state is None else self._state.batches

    def plan(
        self,
        start: OffsetJson,
        end: OffsetJson,
        ranges: Mapping[TopicPartition, tuple[int, int]],
        batches: Mapping[TopicPartition, LastBatch],
    ) -> bool:
        """Write down what the next batch reads; return whether all of that is still the member's.

        Args:
            start: the batch's offsets, as Spark has them.
            end: likewise.
            ranges: the offsets ``[begin, end)`` that it reads; none is empty.
            batches: the last ones below their ends, where they are known.

        Raises:
            OSError: it cannot be written.
        """
        with self._mutex:
            member = self._joined()
            if not ranges.keys() <= member.assigned:
                return False
            moves = {
                key: ReadRange(*ranges[key], member.since(key), batches.get(key))
                for key in sorted(ranges)
            }
            plan = Plan.new(member.member_id, start, end, moves)
            save_plan(self._folder, self._group, self._instance, plan)
            self._running, self._rests_at = plan, None
            return True

    def rest(self, at: OffsetJson) -> None:
        """Write down that the next batch may read nothing here: that only other sources have rows.

        Nobody asks for its tasks then, and the plan of the batch before is not its own.

        Raises:
            OSError: it cannot be written.
        """
        with self._mutex:
            if self._rests_at != at:
                plan = Plan.new(self._joined().member_id, at, at, {})
                save_plan(self._folder, self._group, self._instance, plan)
                self._rests_at = at

    def batch_ended(self, end: OffsetJson) -> None:
        """Take note that the batch up to ``end`` has run, and commit its positions if need be.

        The sink has done so, if it publishes them with the rows. A batch that an earlier process
        of this query has planned counts, too, if the group did not go on without it in between.

        Raises:
            FencedMemberError: the group went on without the member.
            KafkaLogError: the positions cannot be written.
        """
        with self._mutex:
            plan, member = self._running, self._joined()
            if plan is None or plan.end != end:
                return
            left = self._left_by_sink(plan, member)
            if left and not self._was_skipped(plan):
                self._commits.commit(member.member_id, left)
                self._say_at_least_once()
            self._running = None
            self._round(member)

    def go_back(self, ends: Mapping[TopicPartition, int]) -> None:
        """Let the group stand where logs end, or were cut, that is before where it stands.

        Not while a batch is running that was planned from there.

        Raises:
            FencedMemberError: the group went on without the member.
            KafkaLogError: the positions cannot be written.
        """
        with self._mutex:
            member = self._joined()
            stands = {} if self._state is None else self._state.positions
            moves = {
                key: ReadRange(stands[key], end, member.since(key))
                for key, end in ends.items()
                if key in member.assigned and stands.get(key, end) > end
            }
            if moves and self._running is None:
                self._commits.commit(member.member_id, moves)
                self._round(member)

    def stop(self) -> None:
        """Fall silent, as a static member does: started again soon it goes on."""
        self._is_stopped = True
        if self._member is not None:
            self._member.fall_silent()
        self._lock.close()

    def _look(self, member: GroupMember) -> None:
        """Take part between two calls; during one, only say that the member lives."""
        if not self._mutex.acquire(blocking=False):
            member.beat()
            return
        try:
            self._round(member)
        finally:
            self._mutex.release()

    def _is_replaced(self, member: GroupMember | None) -> bool:
        """Return whether another process is a member by this name now."""
        own = set() if member is None else {member_file_name(self._group, member.member_id)}
        return bool(self._counters().keys() - own)

    def _join(self) -> None:
        before = self._commits.look().record
        self._take_name()
        member = self._options.new_member(
            self._deciding,
            self._wanted_topics(),
            instance=self._instance,
            beginnings_of=self._beginnings,
        )
        member.join()
        try:
            self._wait_until_in(member)
        except BaseException:
            member.vanish()
            self._lock.close()
            raise
        plan = load_plan(self._folder, self._group, self._instance)
        self._running = plan if plan is not None and plan.member in before.members else None
        self._member = member
        if not self._is_stopped:
            member.start_heartbeats(functools.partial(self._look, member))
        self._round(member)

    def _take_name(self) -> None:
        """Take the lock of the name, unless another process has it that lives.

        One that was stopped and does not beat is replaced, as by any static member.
        """
        began_s = system.monotonic()
        last, changed_s, has_beaten = self._counters(), began_s, False
        while not self._lock.try_to_take():
            pause(LOOK_S)
            now_s, found = system.monotonic(), self._counters()
            if found != last:
                last, changed_s, has_beaten = found, now_s, now_s - began_s > _DYING_S
            if has_beaten:
                raise OptionError(
                    f"option 'kafka.group.instance.id' is {self._instance!r}, under which another "
                    f"query is a member of group {self._group!r} and lives: each query, and each "
                    "source of a query (a self-join has two), needs a name of its own"
                )
            if (now_s - changed_s) * 1000 > self._options.session_timeout_ms:
                return

    def _counters(self) -> dict[str, int]:
        """Return how often those with this name have said that they live."""
        signs = MemberFolder(self._folder, self._group).read()
        return {
            name: sign.counter
            for name, sign in signs.items()
            if sign.presence is not None and sign.presence.settings.instance == self._instance
        }

    def _wait_until_in(self, member: GroupMember) -> None:
        def is_in() -> bool:
            self._round(member)
            return member.member_id in self._commits.look().record.members

        if not wait_until(is_in, self._rebalance_s):
            raise KafkaLogError(
                f"group {self._group!r} has not let instance {self._instance!r} in for "
                f"{self._rebalance_s:g} s (kafka.rebalance.timeout.ms): the locks of the log "
                "directories are held all the time, or other members do not decide"
            )

    def _round(self, member: GroupMember) -> None:
        """Take part, and give up what is revoked and not being read."""
        member.subscribe(self._wanted_topics())
        try:
            state = member.round()
        except LockTimeoutError:
            return  # somebody commits; a later round decides
        self._state = state
        running = self._running
        busy = frozenset() if running is None else running.unfinished(state.positions)
        if not busy:
            self._running = None  # nobody else could have brought the group there
        if member.revoked:
            member.give_up(member.revoked - busy)

    def _wanted_topics(self) -> frozenset[str]:
        wanted = self._subscription
        if wanted.pattern is None:
            return wanted.topics
        names = self._deciding.topics()
        return frozenset(each for each in names if wanted.selects(TopicPartition(each, 0)))

    def _left_by_sink(self, plan: Plan, member: GroupMember) -> dict[TopicPartition, ReadRange]:
        """Return how far a batch has come where the group does not know it."""
        stands = self._commits.look(at_once=True).positions  # another process may have told it
        held = member.assigned | member.revoked
        found = {key: plan.moves[key] for key in plan.unfinished(stands) if key in held}
        if plan.member == member.member_id:
            return found
        return {
            key: move._replace(since=member.since(key))
            for key, move in found.items()
            if stands.get(key) == move.begin
        }

    def _was_skipped(self, plan: Plan) -> bool:
        """Return whether the sink has written down that it published the batch before."""
        said = load_plan(self._folder, self._group, self._instance)
        return said is None or said.nonce != plan.nonce or not said.moves

    def _is_settled(self) -> bool:
        self.take_part()
        with self._mutex:
            record = None if self._state is None else self._state.record
        return record is not None and not any(each.revoked for each in record.members.values())

    def _say_at_least_once(self) -> None:
        if not self._has_said_at_least_once:
            self._has_said_at_least_once = True
            _LOGGER.warning(
                "%s of group %s: its sink does not publish the group's positions with the rows, so "
                "each row of the input is there at least once. A kafkalog sink over the same log "
                "directories does, given the same kafka.group.id and kafka.group.instance.id",
                self._instance,
                self._group,
            )

    def _check_in_time(self) -> None:
        if self._member is not None and self._member.is_overdue:
            raise FencedMemberError(
                f"instance {self._instance!r} of group {self._group!r} was not asked for a batch "
                f"for kafka.max.poll.interval.ms ({self._options.max_poll_interval_ms} ms), and "
                "fell silent: start the query again, with more time or none of that option"
            )

    def _joined(self) -> GroupMember:
        if self._member is None:
            raise KafkaLogError(f"the query has not joined group {self._group!r} yet")
        return self._member


# ----------------------------------------------------------------------------------------------
# Offsets of a streaming query that has joined a group: those of the partitions it owns.
#
# It answers what :class:`~kafkalog.streaming.source.stream_control.StreamControl` answers for a
# query that reads by itself. What differs follows from one rule: where the group stands in a
# partition counts, and the query's checkpoint only says what a batch was to read.
#
# =======================================  =========================================================
# a partition that the query owns is       then
# =======================================  =========================================================
# in ``start``, where the group stands     it is read on, up to what is committed and within limits
# in ``start``, elsewhere                  it is left out of ``end``
# not in ``start``                         it enters ``end`` where the group stands; nothing is read
# =======================================  =========================================================
#
# A partition that the query does not own is left out. That is no loss: others read it from where
# the group stands. For the same reason a batch that is planned again reads what is still the
# query's own, from where the group stands by now.


_TRIES: Final = 10
"""How often a batch is planned that loses partitions while it is."""


class JoinedControl:
    """Answers what Spark asks of a source that is a member of a group."""

    def __init__(self, options: ReadOptions, given: Mapping[str, str]) -> None:
        """Check the options of a query; ``given`` are all that it was given. Nothing is joined yet.

        Raises:
            OptionError: options that cannot be used.
            LogDirectoryError, CheckpointError: directories that are no set, or not ours to write.
        """
        self._options = options
        taken = member_options(given)
        directories = existing_log_dirs(taken.paths)
        ensure_set(directories, taken.policy)
        subscription = Subscription.of(options)
        self.member = QueryMember(
            directories,
            str(options.group_id),
            instance_of(options),
            taken,
            subscription=subscription,
            beginnings=functools.partial(beginnings, options),
        )
        self._subscription = subscription
        self._logs = EndOffsets.of(options, subscription.selects)
        self._validator = PositionValidator(self._logs)
        self._policy = LossPolicy.of(options)
        self._whole = CompletenessCheck(self._logs, options, self._policy)
        self._pacer = IdlePacer()
        self._limits = BatchLimits.of(options)
        self._is_available_now = False
        self._targets: PartitionOffsets | None = None
        """Up to where is read with ``Trigger.AvailableNow``, from the first look on."""
        self._has_ended = False
        self._planned: tuple[PartitionOffsets, PartitionOffsets, list[LogSplit]] | None = None
        self.latest: PartitionOffsets = {}
        """The ends of what the query owns, as of the last look."""

    def initial(self) -> PartitionOffsets:
        """Join, and begin with no partition: each enters with where the group stands.

        Raises:
            UnknownTopicOrPartitionError: a topic of ``subscribe`` does not exist.
            KafkaLogError: as :meth:`.QueryMember.take_part`.
        """
        self._look()
        self._subscription.require_topics(
            self._logs.existing(), self._options.paths, wait=self._options.wait_for_topics
        )
        self.member.take_part()
        return {}

    def freeze_targets(self) -> None:
        """Read only what is there at the first look (``Trigger.AvailableNow``)."""
        self._is_available_now = True

    def next_end(self, start: PartitionOffsets, *, take_all: bool) -> PartitionOffsets:
        """Return the end of the next batch; ``start`` itself if there is none to be run now.

        Raises:
            FencedMemberError: the group went on without the query.
            DataLossError: partitions are gone or end before ``start``, and the query fails then.
            KafkaLogError: the group or the logs cannot be read or written.
        """
        if self._has_ended:
            return start
        self._pacer.asked()
        self.member.take_part()
        self.member.batch_ended(to_json(start))
        if (self._is_available_now and self._targets is None) or take_all:
            self.member.settle()
        while True:
            self._pacer.before_look()
            end = self._next_end(start, take_all=take_all)
            is_idle = end == start
            self._has_ended = is_idle and self._is_available_now
            if self._has_ended or not self._pacer.after_look(idle=is_idle):
                if is_idle:
                    self.member.rest(to_json(start))
                return end

    def batch_ran(self) -> None:
        """Take note that the query has run a batch, with something new from any of its sources."""
        self._pacer.batch_ran()

    def plan(self, start: PartitionOffsets, end: PartitionOffsets) -> list[LogSplit]:
        """Cut into splits what the query owns of a batch; the same for the same batch.

        Raises:
            FencedMemberError: the group went on without the query.
            DataLossError: offsets of the batch are gone, and the query fails then.
            KafkaLogError, OSError: the plan cannot be written.
        """
        if self._planned is not None and self._planned[:2] == (start, end):
            return self._planned[2]
        for _ in range(_TRIES):
            self.member.take_part()
            ranges = self._own_ranges(start, end)
            splits = self._splits(ranges)
            batches = {key: self._validator.batch(key, stop) for key, (_, stop) in ranges.items()}
            noted = {key: batch for key, batch in batches.items() if batch is not None}
            if self.member.plan(to_json(start), to_json(end), ranges, noted):
                self._planned = (start, end, splits)
                return splits
        raise FencedMemberError(
            f"partitions were taken away from the query {_TRIES} times while it planned a batch"
        )

    def stop(self) -> None:
        """Fall silent."""
        self.member.stop()

    def _next_end(self, start: PartitionOffsets, *, take_all: bool) -> PartitionOffsets:
        self.member.take_part()
        owned = self.member.owned
        ends = self._ends(owned)
        # A topic that was recreated is left alone until the member has noticed, and begins it anew.
        owned = {key: at for key, at in owned.items() if not self._is_other_topic(key)}
        reading = {key: at for key, at in owned.items() if start.get(key) == at}
        ends = {**reading, **{key: end for key, end in ends.items() if key in reading}}
        entering = {key: at for key, at in owned.items() if key not in start}
        available = self._not_before(reading, ends)
        if take_all:
            return {**available, **entering}
        may_wait = not self._is_available_now
        cut = self._limits.cut(reading, available, self._logs, may_hold_back=may_wait)
        return {**(reading if cut is None else cut), **entering}

    def _ends(self, owned: Mapping[TopicPartition, int]) -> PartitionOffsets:
        if self._targets is not None:
            return self._targets
        ends = self._whole.look(
            self._look,
            is_whole=lambda: not self._find_diverged(owned),
            concerns=owned.__contains__,
        )
        self._go_on(owned)
        self._policy.partitions_deleted({key: at for key, at in owned.items() if key not in ends})
        self.latest = {key: end for key, end in ends.items() if key in owned}
        if self._is_available_now:
            self._targets = ends
        return ends

    def _go_on(self, owned: PartitionOffsets) -> None:
        """Go on where logs have another history than the group has read, or fail."""
        diverged = self._find_diverged(owned)
        self._policy.history_changed(diverged)
        self._validator.forget(diverged)
        self._validator.note(owned)
        cut = {key: each.cut_at for key, each in diverged.items() if each.cut_at is not None}
        if cut:
            starts = {key: self._logs.log_start_if_there(key) or 0 for key in cut}
            self.member.go_back({key: max(at, starts[key]) for key, at in cut.items()})

    def _find_diverged(self, owned: PartitionOffsets) -> dict[TopicPartition, Divergence]:
        """Find positions in another history; one in an earlier topic is none, and no loss."""
        found = self._validator.find_diverged(owned)
        return {key: each for key, each in found.items() if not self._is_other_topic(key)}

    def _is_other_topic(self, key: TopicPartition) -> bool:
        known, found = self.member.topic_ids.get(key), self._logs.topic_id(key)
        if known is None or found is None or known == found:
            return False
        return not self._logs.is_changed_id(key.topic, known, found)

    def _not_before(self, reading: PartitionOffsets, ends: PartitionOffsets) -> PartitionOffsets:
        """Return the ends; where one lies below what was read already, that, or it is a loss.

        A group that may lose data goes on where such a log ends, in a later batch.
        """
        short = {key: at for key, at in reading.items() if ends[key] < at}
        if short and self._targets is not None:
            self._look()  # others may have read beyond the targets, which are of an earlier look
        there = self._logs.ends.offsets
        lost = {key: at for key, at in short.items() if there.get(key, at) < at}
        lost = {key: at for key, at in lost.items() if not self._logs.reaches(key, at)}
        if lost and not self._logs.lacks_majority():
            self._policy.ends_before_start(lost, there)
            self.member.go_back({key: there[key] for key in lost})
        return {key: max(at, ends[key]) for key, at in reading.items()}

    def _own_ranges(
        self, start: PartitionOffsets, end: PartitionOffsets
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return what there is to read: nothing of what others own, or the group knows as read.

        A group that stands before ``start`` was set back: the next batch goes there.
        """
        return {
            key: (stands, end[key])
            for key, stands in self.member.owned.items()
            if key in start and key in end and start[key] <= stands < end[key]
        }

    def _splits(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> list[LogSplit]:
        """Cut ranges into splits; what seems lost is looked at again before it counts."""
        return self._whole.retries.plan(functools.partial(self._splits_once, ranges), self._policy)

    def _splits_once(
        self, ranges: Mapping[TopicPartition, tuple[int, int]], policy: LossPolicy
    ) -> list[LogSplit]:
        start = {key: begin for key, (begin, _) in ranges.items()}
        end = {key: stop for key, (_, stop) in ranges.items()}
        found = self._logs.look(end).offsets
        held = {key: at for key, at in end.items() if found.get(key, at) < at}
        available = {**found, **{k: at for k, at in held.items() if self._logs.reaches(k, at)}}
        self._validator.note(end)
        diverged = self._validator.find_diverged(start)
        policy.history_changed(diverged)
        self._validator.forget(diverged)
        readable = readable_ranges(start, end, available, self._logs, policy)
        splits = plan_splits(readable, self._options, self._logs, policy)
        return self._validator.with_history(splits, start)

    def _look(self) -> PartitionOffsets:
        owned, batches = self.member.owned, self.member.last_batches
        self._validator.keep_only(owned, {} if self._planned is None else self._planned[1])
        for key, at in owned.items():
            self._validator.add(key, at, batches.get(key))
        return self._logs.look(owned).offsets
