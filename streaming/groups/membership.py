"""One member of a group: it joins, says that it lives, takes part in rebalances, and leaves.

Time passes in rounds (:meth:`GroupMember.round`). Who holds it, a Consumer or a query, decides when
one is due. In a round a member

1. says that it lives, if a heartbeat is due;
2. looks at the group's record, and at who lives;
3. decides the next generation, if one follows: any member may, and one does;
4. takes note of the present generation, and says so with what it holds.

What it has to give up, it holds until :meth:`GroupMember.give_up`: its owner ends first what it is
doing with that.

Between rounds, while its owner works on what it has read, the member's thread looks ten times a
second (:meth:`GroupMember.look`). It says that the member lives, and watches the others, so that
somebody knows who was lost when the owner asks (:meth:`GroupMember.beat`). That decides nothing,
and takes no lock of the group or the set. An owner may have it do more.

An owner that has not asked for more for ``max.poll.interval.ms`` is taken for stuck. Then a member
leaves; one with a ``group.instance.id`` only falls silent, as Kafka's.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Self

from kafkalog.errors import FencedMemberError, KafkaLogError, OptionError
from kafkalog.files.deferred_signals import pause, shielded_part
from kafkalog.files.system import start_thread_if_possible, system
from kafkalog.streaming.groups.assignors import NO_GENERATION
from kafkalog.streaming.groups.member_files import (
    GROUP_LOCK_PREFIX,
    INSTANCE_LOCK_PREFIX,
    LOOK_S,
    LivenessTracker,
    MemberFolder,
    MemberObjects,
    members_of,
)
from kafkalog.streaming.groups.rebalance import Presence, next_record
from kafkalog.streaming.store.identity import staging_hash
from kafkalog.streaming.store.locks import DirectoryLocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import TypeAlias

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.groups.group_commits import GroupCommits, ReadRange
    from kafkalog.streaming.groups.group_log import GroupState
    from kafkalog.streaming.groups.member_files import Heartbeat
    from kafkalog.streaming.groups.rebalance import GroupRecord, MemberSettings

    Partitions: TypeAlias = Sequence[TopicPartition]

__all__ = ["GroupLock", "GroupMember", "InstanceLock"]

_LOGGER: Final = logging.getLogger("kafkalog.groups")


# ----------------------------------------------------------------------------------------------
# The group's lock: who holds it decides the next generation, and nobody else does meanwhile.
#
# A file beside those of the members. It is locked as the set's are
# (:mod:`~kafkalog.streaming.store.locks`): for one open file where the system has such locks,
# else for the process, with a mutex beside it. It is taken before the locks of the set, and only
# if nobody has it: who finds it held leaves the decision to its holder.
#
# It saves work, no more: of two that decide the same generation one does, by the condition of the
# commit (:class:`~.group_commits.GroupPrecondition`).


class _FileLock(DirectoryLocks):
    """The lock of one file in the directory of the set's first member id."""

    def __init__(self, folder: Path, name: str, holder: str) -> None:
        super().__init__([folder], holder=holder, timeout_ms=0)
        self._name = name

    def try_to_take(self) -> bool:
        """Take the lock; return whether nobody else has it.

        Raises:
            LogDirectoryError: its file cannot be made, or the file system has no locks.
        """
        (folder,) = self.directories
        with ExitStack() as undo:
            if self._try_file(folder, self._name, undo):
                self._undo = undo.pop_all()
                return True
        return False


class GroupLock(_FileLock):
    """Held from ``with`` to its end if ``is_held`` says so. To be used in a shielded thread."""

    def __init__(self, folder: Path, group: str) -> None:
        """Take the directory of the set's first member id, and a group's id."""
        name = f"{GROUP_LOCK_PREFIX}{staging_hash(group)}"
        super().__init__(folder, name, f"group {group!r}")
        self.is_held = False

    def __enter__(self) -> Self:
        """Take the lock if nobody has it.

        Raises:
            LogDirectoryError: its file cannot be made, or the file system has no locks.
        """
        self.is_held = self.try_to_take()
        return self

    def close(self) -> None:
        """Give the lock back."""
        self.is_held = False
        super().close()


class InstanceLock(_FileLock):
    """Of two queries with one ``kafka.group.instance.id`` one joins.

    Held from a :meth:`try_to_take` that says so to :meth:`close`; the system gives it back when the
    process ends, however it does.
    """

    def __init__(self, folder: Path, group: str, instance: str) -> None:
        """Take the directory of the set's first member id, a group's id and a member's name."""
        name = f"{INSTANCE_LOCK_PREFIX}{staging_hash(group)}.{staging_hash(instance)}"
        super().__init__(folder, name, f"{instance!r} of group {group!r}")


class _NoLock(AbstractContextManager["_NoLock"]):
    """In a log in an object store there are no locks: of two that decide one does by its commit."""

    is_held = True

    def __exit__(self, *_: object) -> None:
        return None


# ----------------------------------------------------------------------------------------------

_MOST_WAITS: Final = 10
"""How often a member that leaves looks whether that was decided."""

_SPARED_S: Final = 0.9 * LOOK_S
"""How long the rounds of a member's owner spare its thread the same look: until its next but for
what a clock and a sleep differ by."""


class GroupMember:
    """A member of a group, in one process. Not thread safe, but for :meth:`look` and its parts."""

    is_overdue = False
    """Whether its owner was taken for stuck: the member is lost."""
    _is_silent = False
    _looked_s = -_SPARED_S
    _waits_since_s: float | None = None
    """Since when somebody else has had the group's lock, and nothing was decided."""
    _read_for: GroupRecord | None = None
    """The record for which the files of members were read last."""
    _forsaken: frozenset[str] = frozenset()
    """Who says that it was a member, and is none."""
    _nothing_follows: tuple[object, ...] = ()
    """Of what it was found last that no generation follows from it."""

    def __init__(
        self,
        commits: GroupCommits,
        settings: MemberSettings,
        strategy: str,
        *,
        beginnings_of: Callable[[Partitions, Partitions], Mapping[TopicPartition, int]],
        heartbeat_interval_ms: int,
        max_poll_interval_ms: int,
    ) -> None:
        """Take where the group is kept, and what the member says of itself.

        Args:
            commits: of the group.
            settings: of the member.
            strategy: how it wants partitions to be assigned.
            beginnings_of: where it begins in partitions without a position: first and later ones.
            heartbeat_interval_ms: how often the member says that it lives.
            max_poll_interval_ms: for how long its owner may ask for nothing.
        """
        self._commits = commits
        self._beginnings_of = beginnings_of
        self._members = members_of(commits, settings.session_timeout_ms / 1000)
        self._interval_s = self._members.beats_every_s(heartbeat_interval_ms / 1000)
        self._longest_s = max_poll_interval_ms / 1000
        self.member_id = f"{settings.instance or settings.client_id}-{system.random_id()}"
        self._file = self._members.file(self.member_id)
        self._watch = LivenessTracker(commits.group, longest_step_s=self._interval_s)
        self._watching = system.lock()
        self._of_thread = commits.another(), self._members.another()
        self._begun_anew: tuple[GroupState | None, frozenset[TopicPartition]] = None, frozenset()
        """What is to be given anew, as of a state."""
        self._presence = Presence(settings, strategy)
        self._beat_s = system.monotonic()
        self._since: Mapping[TopicPartition, int] = {}
        self._revoked: frozenset[TopicPartition] = frozenset()
        self._act: Callable[[], object] = self.beat
        self._polled_s = self._beat_s

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
            FencedMemberError: the node with the members' files has gone away: join anew.
            LogDirectoryError: a broker holds the directory.
            OSError: that cannot be written.
        """
        with self._fenced_elsewhere():
            self._members.check_no_broker()
            self._remove_predecessors()
            self._file.create(self._presence)

    def _remove_predecessors(self) -> None:
        """Remove files of processes of its instance that were killed before they were let in.

        They would count as living for a session time-out: if let in last, in the place of this one.
        """
        instance = self._presence.settings.instance
        if instance is None:
            return
        known = self._commits.look().record.members
        for heartbeat in self._members.read().values():
            member, said = heartbeat.member, heartbeat.presence
            if member is None or said is None or member in known:
                continue
            if said.settings.instance == instance:
                self._members.remove(member)

    def start_heartbeats(self, act: Callable[[], object] | None = None) -> None:
        """Start the thread that looks until :meth:`fall_silent`; it does :meth:`beat`, or ``act``.

        Where no thread can be started, the owner's own rounds have to do.
        """
        self._act = act or self.beat
        try:
            self.polled()
            start_thread_if_possible(self._run)
        except BaseException:
            self.vanish()  # nobody would say that it lives, nor that it has left
            raise

    def _run(self) -> None:
        while self.look():
            system.sleep(LOOK_S)

    def look(self) -> bool:
        """Do what is due between two calls; return whether there is anything left to do."""
        if self._is_silent:
            return False
        try:
            if system.monotonic() - self._polled_s > self._longest_s:
                self.is_overdue = True
                if not self._is_static:
                    self.vanish()
                return False
            self._act()
        except FencedMemberError:
            return False  # its owner finds out
        except (KafkaLogError, OSError) as error:
            _LOGGER.debug("a member cannot look at its group: %s", error, exc_info=error)
        return True

    def polled(self) -> None:
        """Take note that its owner asks for more."""
        self._polled_s = system.monotonic()

    def fall_silent(self) -> None:
        """Let the thread end at its next look."""
        self._is_silent = True

    @property
    def _is_static(self) -> bool:
        return self._presence.settings.instance is not None

    def round(self) -> GroupState:
        """Do what is due, and return the group as it is then.

        Raises:
            FencedMemberError: the group went on without the member.
            OptionError: it would wait for ever to be let in.
            KafkaLogError, OSError: the group cannot be looked at, or a decision not be written.
        """
        self._check_place()
        with self._fenced_elsewhere():
            self._beat_if_due()
            state = self._commits.look()
            if self._following(state) is not None:
                self._decide()
                state = self._commits.look()
            else:
                self._waits_since_s = None
            self._take_note(state.record)
        self._check_strategy(state.record)
        return state

    def _check_place(self) -> None:
        place = self._members
        if isinstance(place, MemberFolder) and self._commits.is_elsewhere(place.folder):
            raise FencedMemberError(
                f"the files of the members of group {self._commits.group!r} are not in "
                f"{place} any more: a node of the set has gone, or is back. Join again"
            )

    @contextmanager
    def _fenced_elsewhere(self) -> Iterator[None]:
        """Of what fails since the node with the members' files goes away, say just that."""
        try:
            yield
        except FencedMemberError:
            raise
        except (OSError, KafkaLogError):
            self._check_place()
            raise

    def _check_strategy(self, record: GroupRecord) -> None:
        """Refuse to wait for ever to be let in; members that none saw live may be lost."""
        wanted = self._presence.strategy
        if self.member_id in record.members or record.strategy in {None, wanted}:
            return
        with self._watching:
            has_beaten = self._watch.has_beaten(record.members)
        if has_beaten:
            raise OptionError(
                f"option 'kafka.partition.assignment.strategy' is {wanted}, and the members of the "
                f"group use {record.strategy}: all of a group use the same"
            )

    def beat(self) -> None:
        """Say that it lives, if that is due, and watch who else does: for another thread.

        Raises:
            FencedMemberError: others have removed its file.
            KafkaLogError, OSError: the group cannot be looked at; that it lives has been said.
        """
        self._beat_if_due()
        if system.monotonic() - self._looked_s < _SPARED_S:
            return  # its rounds do that
        commits, members = self._of_thread
        self._read_members(members, commits.look().record)

    def vanish(self) -> None:
        """Let the others go on without it, from whatever thread: it is no member any more."""
        self._file.remove()

    def give_up(self, partitions: Iterable[TopicPartition]) -> None:
        """Say that it has ended what it was doing with partitions that are revoked.

        Raises:
            FencedMemberError, OSError: as :meth:`round`.
        """
        left = self._presence.owned - (frozenset(partitions) & self._revoked)
        if left != self._presence.owned:
            self._say(self._presence.generation, left)

    def subscribe(self, topics: frozenset[str]) -> None:
        """Say which topics it wants from now on; nothing if these are the same.

        Raises:
            FencedMemberError, OSError: as :meth:`round`.
        """
        said = self._presence
        if topics != said.settings.topics:
            self._tell(replace(said, settings=replace(said.settings, topics=topics)))

    def since(self, partition: TopicPartition) -> int:
        """Return since which generation it has a partition that it holds."""
        return self._since[partition]

    def commit(self, moves: Mapping[TopicPartition, ReadRange]) -> None:
        """Commit how far it has come.

        Raises:
            FencedMemberError, KafkaLogError: as :meth:`.GroupCommits.commit`.
        """
        self._commits.commit(self.member_id, moves)

    def leave(self) -> None:
        """Leave, and let the others go on at once; the last one leaves an empty group.

        A static member falls silent, to be replaced by itself.
        """
        self.fall_silent()
        if self._is_static:
            return
        try:
            self._file.remove()
            for waits in (False, *[True] * _MOST_WAITS):
                if waits:
                    pause(LOOK_S)  # who has the group's lock may not have seen that
                if self.member_id in self._commits.look().record.members:
                    self._decide()
                if self.member_id not in self._commits.look().record.members:
                    return
        except (KafkaLogError, OSError) as error:
            _LOGGER.warning(
                "%s has left, and others have to decide that: %s", self.member_id, error
            )

    def _beat_if_due(self) -> None:
        now_s = system.monotonic()
        if now_s - self._beat_s >= self._interval_s:
            self._beat_s = now_s
            if not self._members.seems_held_by_broker():
                self._file.beat()

    @shielded_part
    def _decide(self) -> None:
        """Publish what follows now, unless somebody else is about to."""
        with self._lock() as lock:
            if not lock.is_held and not self._has_waited():
                return
            state = self._commits.look()
            found = self._following(state)
            if found is None:
                return
            gone = (state.record.members.keys() | self._forsaken) - found.members.keys()
            assigned = [key for member in found.members.values() for key in member.assigned]
            new = [key for key in assigned if key not in state.positions]
            topic_ids = self._commits.topic_ids(new)
            beginnings = self._beginnings(new, state)
            stands = [key for key in assigned if key not in beginnings]
            forgotten = state.outdated - beginnings.keys()
            if self._commits.decide(
                state.record, found, beginnings, stands, topic_ids, forgotten=forgotten
            ):
                for member in gone:
                    self._members.remove(member)

    def _lock(self) -> GroupLock | _NoLock:
        place = self._members
        if isinstance(place, MemberFolder):
            return GroupLock(place.folder, self._commits.group)
        return _NoLock()

    def _has_waited(self) -> bool:
        """Return whether who has the group's lock stands still: it was about to decide long ago."""
        now_s = system.monotonic()
        if self._waits_since_s is None:
            self._waits_since_s = now_s
        waited_ms = (now_s - self._waits_since_s) * 1000
        return waited_ms >= self._presence.settings.session_timeout_ms

    def _following(self, state: GroupState) -> GroupRecord | None:
        """Return what follows, unless there is news already: the next round looks at that."""
        heartbeats, present = self._read_members(self._members, state.record)
        wanted = frozenset[str]().union(*(each.settings.topics for each in present.values()))
        topics = self._commits.partitions_of(wanted)
        begun_anew = self._to_begin_anew(state)
        given = (state.record, present, topics, begun_anew)
        if given == self._nothing_follows:
            return None
        found = next_record(
            state.record, present, topics, recreated=begun_anew, decider=self.member_id
        )
        if found is None:
            self._nothing_follows = given
            return None
        return found if self._members.read() == heartbeats else None

    def _to_begin_anew(self, state: GroupState) -> frozenset[TopicPartition]:
        """Return the partitions in which the group has no position that counts."""
        if self._begun_anew[0] is not state:
            self._begun_anew = state, state.outdated | state.without_position
        return self._begun_anew[1]

    def _read_members(
        self, members: MemberFolder | MemberObjects, record: GroupRecord
    ) -> tuple[dict[str, Heartbeat], dict[str, Presence]]:
        """Return the files of all members, and of those that live what they say.

        Who was a member, and is none by the record, is not let in by what it says in its sleep.
        """
        self._looked_s = system.monotonic()
        with self._watching:
            if record != self._read_for:
                self._read_for = record
                members.look_again()
            heartbeats = members.read()
            present = self._watch.look(system.monotonic(), heartbeats, record)
        self._forsaken = frozenset(
            member
            for member, said in present.items()
            if said.generation != NO_GENERATION and member not in record.members
        )
        return heartbeats, {key: each for key, each in present.items() if key not in self._forsaken}

    def _beginnings(self, new: Partitions, state: GroupState) -> Mapping[TopicPartition, int]:
        """Return where the group begins in partitions that nobody had before.

        Those of a topic that it has read before have come later, and so has a recreated topic.
        """
        known = {key.topic for key in (*state.positions, *state.outdated)}
        known = known.union(*(each.settings.topics for each in state.record.members.values()))
        late = {each for each in new if each.topic in known}
        return self._beginnings_of(sorted({*new} - late), sorted(late)) if new else {}

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
        self._tell(replace(self._presence, generation=generation, owned=owned))

    def _tell(self, presence: Presence) -> None:
        """Say something else. What could not be written is not said, and is tried again."""
        with self._fenced_elsewhere():
            self._file.say(presence)
        self._presence = presence
