"""One member of a group: it joins, takes part in every decision, learns what it has, and leaves.

Time passes in rounds (:meth:`Membership.round`). Who holds it decides when one is due; a thread of
heartbeats does so every tenth of a second. In a round a member

1. says that it lives, if a heartbeat is due;
2. looks at the group's record, and at who lives;
3. decides the next generation, if one follows: any member may, and one does;
4. takes note of the present generation, and says so with what it holds.

What it has to give up, it holds until :meth:`Membership.give_up`: its owner ends first what it is
doing with that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkalog.errors import FencedMemberError
from kafkalog.files.system import system
from kafkalog.streaming.groups.member_files import MemberFile, read_members, remove_member
from kafkalog.streaming.groups.rebalance import Presence, next_record
from kafkalog.streaming.groups.subscriptions import NO_GENERATION
from kafkalog.streaming.groups.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.groups.group_commits import GroupCommits, Move
    from kafkalog.streaming.groups.group_log import GroupState
    from kafkalog.streaming.groups.group_record import GroupRecord, MemberSettings

__all__ = ["Membership"]


class Membership:
    """A member of a group, in one process. Not thread safe."""

    def __init__(
        self,
        commits: GroupCommits,
        settings: MemberSettings,
        strategy: str,
        *,
        start_of: Callable[[TopicPartition], int],
        heartbeat_interval_ms: int,
    ) -> None:
        """Take where the group is kept, and what the member says of itself.

        Args:
            commits: of the group.
            settings: of the member.
            strategy: how it wants partitions to be assigned.
            start_of: where the group begins in a partition in which it has no position.
            heartbeat_interval_ms: how often the member says that it lives.
        """
        self._commits = commits
        self._start_of = start_of
        self._interval_s = heartbeat_interval_ms / 1000
        self.member_id = f"{settings.instance or settings.client_id}-{system.random_id()}"
        self._folder = commits.folder()
        self._file = MemberFile(self._folder, commits.group, self.member_id)
        self._watch = Watch(commits.group, longest_step_s=self._interval_s)
        self._presence = Presence(settings, strategy)
        self._beat_s = system.monotonic()
        self._since: Mapping[TopicPartition, int] = {}
        self._revoked: frozenset[TopicPartition] = frozenset()

    @property
    def generation(self) -> int:
        """The last generation that it has taken note of; -1 before the first one."""
        return self._presence.generation

    @property
    def assigned(self) -> frozenset[TopicPartition]:
        """What it reads as of that generation."""
        return self._presence.owned - self._revoked

    @property
    def revoked(self) -> frozenset[TopicPartition]:
        """What it has to give up, and holds until :meth:`give_up`."""
        return self._presence.owned & self._revoked

    def join(self) -> None:
        """Say that it wants to be a member.

        Raises:
            OSError: that cannot be written.
        """
        self._file.create(self._presence)

    def round(self) -> GroupState:
        """Do what is due, and return the group as it is then.

        Raises:
            FencedMemberError: the group went on without the member.
            KafkaLogError, OSError: the group cannot be looked at, or a decision not be written.
        """
        now_s = system.monotonic()
        if now_s - self._beat_s >= self._interval_s:
            self._beat_s = now_s
            self._file.beat()
        state = self._commits.look()
        found = self._following(now_s, state)
        if found is not None:
            new = self._beginnings(found, state)
            gone = state.record.members.keys() - found.members.keys()
            if self._commits.decide(state.record, found, new):
                for member in gone:
                    remove_member(self._folder, self._commits.group, member)
            state = self._commits.look()
        self._take_note(state.record)
        return state

    def give_up(self, partitions: Iterable[TopicPartition]) -> None:
        """Say that it has ended what it was doing with partitions that are revoked.

        Raises:
            FencedMemberError, OSError: as :meth:`round`.
        """
        left = self._presence.owned - (frozenset(partitions) & self._revoked)
        if left != self._presence.owned:
            self._say(self._presence.generation, left)

    def since(self, partition: TopicPartition) -> int:
        """Return since which generation it has a partition that it holds."""
        return self._since[partition]

    def commit(self, moves: Mapping[TopicPartition, Move]) -> None:
        """Commit how far it has come.

        Raises:
            FencedMemberError, KafkaLogError: as :meth:`.GroupCommits.commit`.
        """
        self._commits.commit(self.member_id, moves)

    def leave(self) -> None:
        """Leave, and let the others go on at once; the last one leaves an empty group.

        Raises:
            KafkaLogError, OSError: it could not decide that. Others will.
        """
        self._file.remove()
        state = self._commits.look()
        if self.member_id not in state.record.members:
            return
        found = self._following(system.monotonic(), state)
        if found is not None:
            self._commits.decide(state.record, found, self._beginnings(found, state))

    def _following(self, now_s: float, state: GroupState) -> GroupRecord | None:
        """Return what follows, unless there is news already: the next round looks at that."""
        signs = read_members(self._folder, self._commits.group)
        present = self._watch.look(now_s, signs, state.record)
        wanted = frozenset[str]().union(*(each.settings.topics for each in present.values()))
        topics = self._commits.partitions_of(wanted)
        found = next_record(state.record, present, topics, decider=self.member_id)
        is_new = found is not None and read_members(self._folder, self._commits.group) == signs
        return found if is_new else None

    def _beginnings(self, record: GroupRecord, state: GroupState) -> dict[TopicPartition, int]:
        """Return where the group begins in partitions that nobody had before."""
        return {
            each: self._start_of(each)
            for member in record.members.values()
            for each in member.assigned
            if each not in state.positions
        }

    def _take_note(self, record: GroupRecord) -> None:
        member = record.members.get(self.member_id)
        if member is None:
            if self.generation != NO_GENERATION:
                raise FencedMemberError(
                    f"group {self._commits.group!r} has gone on without member "
                    f"{self.member_id!r}, in generation {record.generation}: join again"
                )
            return
        if record.generation != self.generation:
            self._since = member.held
            self._revoked = frozenset(member.revoked)
            self._say(record.generation, frozenset(member.held))

    def _say(self, generation: int, owned: frozenset[TopicPartition]) -> None:
        said = self._presence
        self._presence = Presence(said.settings, said.strategy, generation, owned)
        self._file.say(self._presence)
