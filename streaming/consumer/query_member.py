"""A streaming query as a member of a group: its options, and its membership to the end."""

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
from kafkalog.streaming.groups.group_commits import GroupCommits, Move
from kafkalog.streaming.groups.liveness import LOOK_S
from kafkalog.streaming.groups.member_files import MemberFolder, sign_name
from kafkalog.streaming.groups.membership import InstanceLock
from kafkalog.streaming.groups.planned_commit import Plan, load_plan, save_plan
from kafkalog.streaming.options.declaring import options_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kafkalog.streaming.consumer.consumer_options import Beginnings
    from kafkalog.streaming.groups.group_log import GroupState
    from kafkalog.streaming.groups.membership import GroupMember
    from kafkalog.streaming.log.history import LastBatch
    from kafkalog.streaming.options.read_options import ReadOptions
    from kafkalog.streaming.source.offsets import OffsetJson
    from kafkalog.streaming.source.subscription import Subscription

__all__ = [
    "MEMBER_NAME_FILE",
    "QueryMember",
    "instance_of",
    "kept_name",
    "member_options",
    "without_member_options",
]


# ----------------------------------------------------------------------------------------------
# How a query takes part in its group: a Consumer's options, with a query's defaults.


# ----------------------------------------------------------------------------------------------
# The name of a query in its consumer group, where it was given none.
#
# A sealed file (:mod:`kafkalog.checkpoints.sealed_file`) in a folder that belongs to one query.
# Its one line is JSON with one name, ``instance``: ``query-`` and a random UUID.


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
                key: Move(*ranges[key], member.since(key), batches.get(key))
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
                key: Move(stands[key], end, member.since(key))
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
        own = set() if member is None else {sign_name(self._group, member.member_id)}
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

    def _left_by_sink(self, plan: Plan, member: GroupMember) -> dict[TopicPartition, Move]:
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
