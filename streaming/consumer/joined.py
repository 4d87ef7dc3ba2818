"""A joined member: its starting positions, and its heartbeat thread."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Final

from kafkalog.errors import (
    FencedMemberError,
    KafkaLogError,
    OptionError,
    UnknownTopicOrPartitionError,
)
from kafkalog.files.deferred_signals import start_thread_if_possible
from kafkalog.files.system import system
from kafkalog.model import listed
from kafkalog.streaming.groups.liveness import LOOK_S
from kafkalog.streaming.groups.membership import Membership
from kafkalog.streaming.groups.rebalance import MemberSettings
from kafkalog.streaming.source.end_offsets import EndOffsets
from kafkalog.streaming.source.offsets import LATEST
from kafkalog.streaming.source.start import resolve_start, starting_bound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.consumer.consumer_options import ConsumerOptions
    from kafkalog.streaming.groups.group_commits import GroupCommits
    from kafkalog.streaming.groups.rebalance import GroupRecord
    from kafkalog.streaming.options.read_options import ReadOptions
    from kafkalog.streaming.store.log_set import LogSet
    from kafkalog.streaming.store.session import Condition


__all__ = ["Heartbeat", "Joined", "beginnings", "check_strategy", "refusing"]


# ----------------------------------------------------------------------------------------------
# The thread that says that a member lives, while its owner works on what it has read.
#
# Ten times a second it looks; it writes when a heartbeat is due. It watches the others, too, so
# that somebody knows who was lost when the owner asks. It takes no lock of the group or the set,
# and decides nothing.
#
# An owner that has not asked for more for ``max.poll.interval.ms`` is taken for stuck. Then a
# member leaves; one with a ``group.instance.id`` only falls silent, as Kafka's.


_LOGGER: Final = logging.getLogger("kafkalog.groups")


class Heartbeat:
    """One thread for one member, from :meth:`start` to :meth:`stop`."""

    def __init__(self, member: Membership, *, max_poll_interval_ms: int, is_static: bool) -> None:
        self._member = member
        self._longest_s = max_poll_interval_ms / 1000
        self._is_static = is_static
        self._polled_s = system.monotonic()
        self._is_stopped = False
        self.is_overdue = False
        """Whether the owner was taken for stuck: the member is lost."""

    def start(self) -> None:
        """Begin. Where no thread can be started, the owner's own rounds have to do."""
        self.polled()
        start_thread_if_possible(self._run)

    def polled(self) -> None:
        """Take note that the owner asks for more."""
        self._polled_s = system.monotonic()

    def stop(self) -> None:
        """Let the thread end at its next look."""
        self._is_stopped = True

    def look(self) -> bool:
        """Do what is due; return whether there is anything left to do."""
        if self._is_stopped:
            return False
        try:
            if system.monotonic() - self._polled_s > self._longest_s:
                self.is_overdue = True
                if not self._is_static:
                    self._member.vanish()
                return False
            self._member.beat()
        except FencedMemberError:
            return False  # its owner finds out
        except (KafkaLogError, OSError) as error:
            _LOGGER.debug("a member cannot look at its group: %s", error, exc_info=error)
        return True

    def _run(self) -> None:
        while self.look():
            system.sleep(LOOK_S)


# ----------------------------------------------------------------------------------------------
# Where a group begins in partitions in which it has no position yet.


def beginnings(
    options: ReadOptions, first: Sequence[TopicPartition], late: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return the offsets that a group begins at.

    Args:
        options: of the member that decides; they say where ``first`` begin.
        first: partitions of topics that are new to the group.
        late: partitions that a topic of the group has got since. They begin at their log start.

    Raises:
        UnknownTopicOrPartitionError: one is not there any more.
        OptionError: one has no record with the timestamp to start at.
    """
    wanted = {*first, *late}
    logs = EndOffsets.of(options, wanted.__contains__)
    ends = logs.look()
    missing = sorted(wanted - ends.keys())
    if missing:
        raise UnknownTopicOrPartitionError(
            f"{', '.join(map(str, missing))} cannot be assigned: it is gone from "
            f"{', '.join(map(str, options.paths))} since the group looked"
        )
    bound = starting_bound(options, default=LATEST)
    strategy = options.starting_timestamp_strategy
    found = resolve_start(bound, {key: ends[key] for key in first}, logs, when_none=strategy)
    return {**found, **{key: logs.log_start(key) for key in late}}


# ----------------------------------------------------------------------------------------------
# A member that has joined: its membership, and the thread that says that it lives.


def check_strategy(member: Membership, wanted: str, record: GroupRecord) -> None:
    """Refuse to wait for ever to be let in; members of which none was seen to live may be lost.

    Raises:
        OptionError: the group's members want partitions to be assigned in another way.
    """
    is_out = member.member_id not in record.members
    if is_out and record.strategy not in {None, wanted} and member.has_seen_beat(record):
        raise OptionError(
            f"option 'kafka.partition.assignment.strategy' is {wanted}, and the members of the "
            f"group use {record.strategy}: all of a group use the same"
        )


def refusing(text: str) -> Condition:
    """Return a condition of a commit that never holds."""

    def refuse(_: LogSet) -> None:
        raise FencedMemberError(text)

    return refuse


class Joined:
    """From :meth:`begin` to :meth:`leave`."""

    def __init__(
        self,
        commits: GroupCommits,
        options: ConsumerOptions,
        topics: frozenset[str],
        read: ReadOptions,
    ) -> None:
        """Take where the group is kept, and how the member takes part and reads."""
        self._options = options
        self._commits = commits
        self._topics = topics
        settings = MemberSettings(
            topics,
            options.instance,
            options.client_id,
            system.host_name(),
            options.session_timeout_ms,
            options.rebalance_timeout_ms or options.max_poll_interval_ms,
        )
        self.member = Membership(
            commits,
            settings,
            options.strategy,
            beginnings_of=functools.partial(beginnings, read),
            heartbeat_interval_ms=options.heartbeat_interval_ms,
        )
        self._heartbeat = Heartbeat(
            self.member,
            max_poll_interval_ms=options.max_poll_interval_ms,
            is_static=options.instance is not None,
        )

    @property
    def member_id(self) -> str:
        """Who it is in the group."""
        return self.member.member_id

    @property
    def is_overdue(self) -> bool:
        """Whether it was taken for stuck."""
        return self._heartbeat.is_overdue

    def begin(self) -> None:
        """Say that it wants to be a member, and that it lives from now on.

        A topic that is not there yet is waited for, which a misspelt name should not do in silence.

        Raises:
            OSError: that cannot be written.
            KafkaLogError: the log directories cannot be looked at.
        """
        missing = sorted(self._topics - self._commits.topics())
        if missing:
            _LOGGER.warning(
                "group %s waits for topics that are not there yet: %s",
                self._commits.group,
                listed(missing),
            )
        self.member.join()
        try:
            self._heartbeat.start()
        except BaseException:
            self.member.vanish()  # nobody would say that it lives, nor that it has left
            raise

    def polled(self) -> None:
        """Take note that its owner asks for more.

        Raises:
            FencedMemberError: that comes too late.
        """
        if self.is_overdue:
            raise FencedMemberError(
                f"member {self.member_id!r} was not polled for kafka.max.poll.interval.ms "
                f"({self._options.max_poll_interval_ms} ms), and has left its group: join again, "
                "take less at once, or give it more time"
            )
        self._heartbeat.polled()

    def leave(self) -> None:
        """Leave; a static member falls silent, to be replaced by itself."""
        self._heartbeat.stop()
        if self._options.instance is not None:
            return
        try:
            self.member.leave()
        except (KafkaLogError, OSError) as error:
            _LOGGER.warning(
                "%s has left, and others have to decide that: %s", self.member_id, error
            )
