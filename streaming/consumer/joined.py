"""A member that has joined: its membership, and the thread that says that it lives."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Final

from kafkalog.errors import FencedMemberError, KafkaLogError, OptionError
from kafkalog.files.system import system
from kafkalog.model import listed
from kafkalog.streaming.consumer.beginnings import beginnings
from kafkalog.streaming.groups.group_record import MemberSettings
from kafkalog.streaming.groups.heartbeat import Heartbeat
from kafkalog.streaming.groups.membership import Membership

if TYPE_CHECKING:
    from kafkalog.streaming.consumer.consumer_options import ConsumerOptions
    from kafkalog.streaming.groups.group_commits import GroupCommits
    from kafkalog.streaming.groups.group_record import GroupRecord
    from kafkalog.streaming.source.read_options import ReadOptions
    from kafkalog.streaming.store.log_set import LogSet
    from kafkalog.streaming.store.session import Condition

__all__ = ["Joined", "check_strategy", "refusing"]

_LOGGER: Final = logging.getLogger("kafkalog.groups")


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
