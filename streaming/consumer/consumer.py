"""A member of a consumer group: it reads its share of topics, and commits how far it has come.

Rebalances happen within :meth:`Consumer.poll`, as in Kafka's consumer. Between calls a thread says
that the member lives.

An exception out of a signal handler (Ctrl-C, an alarm) may leave any call, and each can be called
again. What a call does to the group, the files and the cursors is done in a shielded thread, which
ends first. Rows that were read wait in ``_fetched`` until they are handed out; positions move with
the call after that. Callbacks are the caller's code, and run in its thread: one that was cut off,
or raised, is called again.
"""

from __future__ import annotations

import functools
import logging
import os
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from kafkalog.errors import (
    CommitError,
    FencedMemberError,
    KafkaLogError,
    OffsetOutOfRangeError,
    OptionError,
    UnknownTopicOrPartitionError,
)
from kafkalog.files.closing import Closing
from kafkalog.files.deferred_signals import Interrupted, shielded, shielded_step
from kafkalog.files.remote_path import RemotePath
from kafkalog.files.storage import RemoteRoot
from kafkalog.files.system import system
from kafkalog.model import TopicPartition, listed, validate_topic_name
from kafkalog.streaming.consumer.consumer_options import check_callbacks, parse_options
from kafkalog.streaming.consumer.fetching import Fetched, Fetcher, beginnings
from kafkalog.streaming.groups.group_commits import GroupCommits, ReadRange
from kafkalog.streaming.groups.member_files import LOOK_S
from kafkalog.streaming.objects.bucket_store import BucketRoot
from kafkalog.streaming.options.bridge import crosses_border
from kafkalog.streaming.source.arguments import (
    group_name,
    partition_pair,
    seconds,
    several,
    topic_names,
)
from kafkalog.streaming.store.session import ensure_set, existing_log_dirs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import TypeAlias

    import pyarrow as pa

    from kafkalog.streaming.commit.staging.staged_files import AttachedRecords
    from kafkalog.streaming.groups.group_log import GroupState
    from kafkalog.streaming.groups.membership import GroupMember
    from kafkalog.streaming.source.arguments import OptionValues, Paths
    from kafkalog.streaming.store.log_set import CommittedSet, StateCondition

    Callback: TypeAlias = Callable[[list[TopicPartition]], object]

__all__ = ["Consumer", "Cursors"]

_LOGGER: Final = logging.getLogger("kafkalog.groups")


class _Due(NamedTuple):
    """A callback that has to come to its end before anything is read."""

    callback: Callback
    partitions: list[TopicPartition]
    is_revoked: bool


class Consumer(Closing):
    """A member of a group, from the first :meth:`poll` to :meth:`close`; a context manager.

    Not thread safe. A forked child cannot use its parent's.
    """

    @crosses_border
    def __init__(
        self,
        path: Paths,
        group_id: str,
        topics: str | Sequence[str],
        *,
        options: OptionValues | None = None,
        on_assign: Callback | None = None,
        on_revoke: Callback | None = None,
    ) -> None:
        """Check what is given; nothing is joined yet.

        Args:
            path: all log directories of the set, in which the group is kept.
            group_id: the group.
            topics: one topic, or several; some may not exist yet.
            options: see ``docs/options.md``: Kafka's of the group, some of the source's.
            on_assign: called with partitions that the member has got, before it reads them.
            on_revoke: called with partitions that it is about to give up, and may commit.

        Raises:
            OptionError: options that cannot be used.
            LogDirectoryError, CheckpointError: directories that are no set.
        """
        self._on_assign, self._on_revoke = on_assign, on_revoke
        self._begin(path, group_id, topics, options)

    def _begin(
        self,
        path: Paths,
        group_id: str,
        topics: str | Sequence[str],
        options: OptionValues | None,
    ) -> None:
        check_callbacks(on_assign=self._on_assign, on_revoke=self._on_revoke)
        self._options, self._read = parse_options(path, topics, options or {})
        self._directories = self._directories_of_set()
        self._commits = GroupCommits(self._directories, group_name(group_id), self._options.policy)
        self._topics = frozenset(topic_names(topics))
        for topic in self._topics:  # no such topic ever comes
            validate_topic_name(topic)
        self._fetcher = Fetcher(self._read)
        self._process = system.process_id()
        self._cursors = Cursors()
        self._member: GroupMember | None = None
        self._round_s: float | None = None
        self._state: GroupState | None = None
        """The group as of the last round that came to its end."""
        self._is_closed = False
        self._is_calling_back = False
        self._fetched: Fetched | None = None
        """Rows that were read, and not handed out as far as is known."""
        self._handed: Fetched | None = None
        """The rows that :meth:`poll` has returned last: set by its last step."""
        self._called: _Due | None = None
        """The callback that has come to its end, until that is acted upon."""
        self._lost: set[TopicPartition] = set()
        """What was taken away, until ``on_revoke`` has come to its end."""
        self._got: set[TopicPartition] = set()
        """What was given, until ``on_assign`` has come to its end."""
        self._has_failed = False
        """Whether an append failed: what it was about is returned again."""
        self._is_unsure = False
        """Whether a commit failed, which may have been published after all."""

    def _directories_of_set(self) -> list[Path]:
        """Return the log directories, or the root of a log in an object store, which is made."""
        place = self._read.paths[0]
        if not isinstance(place, RemoteRoot):
            ensure_set(self._options.paths, self._options.policy)
            return [Path(os.path.realpath(p)) for p in existing_log_dirs(self._options.paths)]
        if self._options.flush != "commit":
            raise OptionError(
                f"option 'flush' is {self._options.flush}, and a log in an object store takes "
                "commit only"
            )
        root = BucketRoot.of(place)
        with root.writing(creates=True):
            return [root.open_store().root]

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that it reads as of the last :meth:`poll`, in order."""
        self._check_usable()
        return sorted(self._cursors.since)

    def poll(self, timeout: float = 0.0) -> pa.RecordBatch | None:
        """Return the next rows of one partition, or None if none came for ``timeout`` seconds.

        Columns are those of :func:`kafkalog.read`, in order of their offsets. Here the member
        joins, gives partitions up and gets others; so call it often. Rows that an exception out of
        a signal handler has kept from being returned come with the next call.

        Raises:
            FencedMemberError: the group went on without the member: close it, and make another.
            DataLossError: offsets are gone that were to be read.
            KafkaLogError: the group or the logs cannot be read, or a decision not be written.
        """
        found = self._poll(timeout)
        if found is None:
            return None
        rows = found.rows
        self._handed = found  # Python looks for no signal between this and the caller
        return rows

    @crosses_border
    def _poll(self, timeout: float) -> Fetched | None:
        self._check_usable()
        self._check_no_callback("poll")
        deadline = system.monotonic() + seconds("timeout", timeout)
        while True:
            due = self._advance()
            if due is not None:
                self._call_back(due.callback, due.partitions)
                self._called = due
                continue
            if self._fetched is not None:
                return self._fetched
            left = deadline - system.monotonic()
            if left <= 0:
                return None
            system.sleep(min(left, LOOK_S))

    @crosses_border
    def commit(self) -> None:
        """Publish how far it has come: what :meth:`poll` has returned so far.

        Partitions that were taken away meanwhile are left to their new owners.

        Raises:
            FencedMemberError: the group went on without the member; nothing is published.
            CommitError: an append failed since; or nothing is published, for other reasons.
            KafkaLogError: nothing is published, for other reasons.
            OffsetOutOfRangeError: :meth:`seek` went above the end of a log; nothing is published.
            DataLossError: the log was cut or replaced while it was read; nothing is published.
            DurabilityError: it is, and a loss of power may take it away.
        """
        self._check_usable()
        self._commit()

    @shielded
    def _commit(self) -> None:
        self._settle()
        if self._has_failed:
            raise CommitError(
                "an append with this Consumer failed, so what it has read is not done: try the "
                "same append again, or poll, which returns these rows again"
            )
        if self._is_unsure and self._member is not None:
            stands = self._commits.look(at_once=True).positions
            moves = self._cursors.moves()
            done = {key: move for key, move in moves.items() if stands.get(key) == move.end}
            self._cursors.committed(done)
        moves = self._moves()
        if self._member is not None and moves:
            self._is_unsure = True
            self._member.commit(moves)
        self._is_unsure = False
        self._cursors.committed(moves)

    def position(self, partition: tuple[str, int]) -> int:
        """Return the offset that comes next in a partition of the assignment.

        Raises:
            OptionError: it is none.
        """
        key = self._own(partition)
        handed = self._handed
        if handed is not None and handed.partition == key:
            return handed.position
        return self._cursors.position(key)

    @crosses_border
    def seek(self, partition: tuple[str, int], offset: int) -> None:
        """Go to an offset of a partition of the assignment.

        Going back reads rows again; the group itself goes only forward.

        Raises:
            OptionError: the member does not have the partition.
            OffsetOutOfRangeError: the offset is negative.
        """
        key = self._own(partition)
        if type(offset) is not int or not 0 <= offset < 1 << 63:
            raise OffsetOutOfRangeError(f"{key}: offset {offset!r} is no number from 0 to 2^63-1")
        self._seek(key, offset)

    @shielded_step
    def _seek(self, key: TopicPartition, offset: int) -> None:
        self._settle()
        self._cursors.go_to(key, offset)

    def pause(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Return no rows of partitions until :meth:`resume`; the member keeps them.

        Raises:
            OptionError: the member does not have one.
        """
        self._check_usable()
        self._pause([*map(self._own, several("partitions", partitions))], is_paused=True)

    def resume(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Return rows of partitions again.

        Raises:
            OptionError: the member does not have one.
        """
        self._check_usable()
        self._pause([*map(self._own, several("partitions", partitions))], is_paused=False)

    @shielded_step
    def _pause(self, keys: list[TopicPartition], *, is_paused: bool) -> None:
        self._cursors.pause(keys, is_paused=is_paused)

    @crosses_border
    def close(self) -> None:
        """Leave the group; what was not committed is read by others, or later.

        A member with a ``kafka.group.instance.id`` falls silent instead: started again within its
        session time-out it goes on. ``on_revoke`` is called first, but not where an error ends
        ``with``: what was read may not be done. In a forked child it does nothing.

        Raises:
            KafkaLogError: it is called from ``on_assign`` or ``on_revoke``.
        """
        self._leave(calls_back=True)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._leave(calls_back=kind is None)

    def _leave(self, *, calls_back: bool) -> None:
        if self._is_closed or self._process != system.process_id():
            return
        self._check_no_callback("close")
        try:
            if calls_back and not self._has_failed and self._member is not None:
                had = self.assignment
                if had and not self._member.is_overdue and self._on_revoke is not None:
                    self._call_back(self._on_revoke, had)
        finally:
            self._end()

    @shielded_step
    def _end(self) -> None:
        member = self._member
        try:
            if member is not None:
                try:
                    member.leave()
                except Interrupted:
                    member.leave()  # the last member leaves an empty group, if that is possible
                    raise
        finally:
            self._is_closed = True

    @contextmanager
    def publishing(
        self, directories: Sequence[Path]
    ) -> Iterator[Callable[[], tuple[StateCondition, Sequence[AttachedRecords]]]]:
        """Let an append publish the group's positions with its rows; for :func:`kafkalog.append`.

        Gives a function that returns the condition and the attached records of the commit.
        """
        self._check_usable()
        self._settle()
        if {*map(_real_path, directories)} != {*map(_real_path, self._directories)}:
            raise OptionError(
                f"rows for {', '.join(map(str, directories))} cannot be committed with positions "
                f"of a group in {', '.join(map(str, self._directories))}: it is not the same set "
                "of log directories. Append first, and then call commit() (at least once)"
            )
        moves: Mapping[TopicPartition, ReadRange] = {}

        def attach() -> tuple[StateCondition, Sequence[AttachedRecords]]:
            nonlocal moves
            self._settle()  # the rows may come from a generator that polls
            moves = self._moves()
            return self._attach(moves)

        yield attach
        self._published(moves)

    @shielded_step
    def _published(self, moves: Mapping[TopicPartition, ReadRange]) -> None:
        self._cursors.committed(moves)
        self._has_failed = False

    def _moves(self) -> dict[TopicPartition, ReadRange]:
        """Return what a commit publishes, with the last batches below."""
        moves = self._cursors.moves()
        ends = {key: move.end for key, move in moves.items()}
        batches = self._fetcher.last_batches(ends)
        self._fetcher.check_reached(ends)
        return {key: move._replace(batch=batches.get(key)) for key, move in moves.items()}

    def note_failure(self) -> None:
        """Let the next :meth:`poll` go back to where the group stands: an append has failed.

        Trying the same append again first is safe.
        """
        self._has_failed = True

    def _attach(
        self, moves: Mapping[TopicPartition, ReadRange]
    ) -> tuple[StateCondition, Sequence[AttachedRecords]]:
        group = self._commits.group
        if self._member is None:
            return _refusing(f"the Consumer of group {group!r} has not polled yet"), ()
        if self._cursors.taken:
            taken = ", ".join(map(str, sorted(self._cursors.taken)))
            text = (
                f"group {group!r} gave {taken} to another member before what was read of it was "
                "committed: nothing was written. Drop these rows; poll returns again those that "
                "are still this member's"
            )
            return _refusing(text), ()
        fence = self._commits.fence(self._member.member_id, moves)
        now_ms = system.time_ns() // 1_000_000
        return fence, [self._commits.attach(moves, now_ms)] if moves else ()

    @shielded_step
    def _settle(self) -> None:
        """Move to where the rows end that were handed out last."""
        handed, self._handed = self._handed, None
        if handed is None:
            return
        if handed is self._fetched:
            self._fetched = None
        if handed.partition in self._cursors:
            self._cursors.go_to(handed.partition, handed.position)

    @shielded_step
    def _advance(self) -> _Due | None:
        """Do what the group asks for, and read; returns a callback that has to come first."""
        self._settle()
        member = self._join()
        self._check_in_time(member)
        member.polled()
        self._act_upon_callback()
        due = self._take_part(member)
        if due is not None:
            return due
        if self._fetched is not None and not self._comes_next(self._fetched):
            self._fetched = None
        return None if self._fetched is not None else self._read_on(member)

    def _join(self) -> GroupMember:
        """Join, and say from now on that it lives.

        A topic that is not there yet is waited for, which a misspelt name should not do in silence.
        """
        if self._member is None:
            missing = sorted(self._topics - self._commits.topics())
            if missing:
                text = "group %s waits for topics that are not there yet: %s"
                _LOGGER.warning(text, self._commits.group, listed(missing))
            member = self._options.new_member(
                self._commits,
                self._topics,
                instance=self._options.instance,
                beginnings_of=functools.partial(beginnings, self._read),
            )
            member.join()
            member.start_heartbeats()
            self._member = member
        return self._member

    def _check_in_time(self, member: GroupMember) -> None:
        if member.is_overdue:
            raise FencedMemberError(
                f"member {member.member_id!r} was not polled for kafka.max.poll.interval.ms "
                f"({self._options.max_poll_interval_ms} ms), and has left its group: join again, "
                "take less at once, or give it more time"
            )

    def _act_upon_callback(self) -> None:
        called, self._called = self._called, None
        if called is None:
            return
        if called.is_revoked:
            for key in called.partitions:
                self._drop(key)
            self._lost.difference_update(called.partitions)
        else:
            self._got.difference_update(called.partitions)

    def _take_part(self, member: GroupMember) -> _Due | None:
        """Take part in decisions, ten times a second at most unless something is amiss."""
        now_s = system.monotonic()
        is_due = self._round_s is None or now_s - self._round_s >= LOOK_S
        is_amid = self._state is None or self._lost or self._got or self._fetcher.recreated
        if not (is_due or is_amid or self._has_failed or not self._cursors.since):
            return None
        due = self._round(member)
        self._round_s = now_s  # one that failed is due at once: the member may have been fenced
        return due

    def _round(self, member: GroupMember) -> _Due | None:
        state = member.round()
        if state is self._state and not (self._has_failed or self._fetcher.recreated):
            return None  # nothing was committed since
        self._state = None  # until all of it was followed
        if self._has_failed:
            self._cursors.go_back(state.positions)
            self._fetcher.begin(self._cursors.positions, state.batches)
            self._has_failed = False
        now = {key: member.since(key) for key in member.assigned}
        self._note_lost(now, state)
        if self._lost and self._on_revoke is not None:
            return _Due(self._on_revoke, sorted(self._lost), is_revoked=True)
        for key in self._lost:
            self._drop(key)
        self._lost.clear()
        member.give_up(member.revoked)
        new = sorted(key for key in now.keys() & state.positions.keys() if key not in self._cursors)
        for key in new:
            self._cursors.add(key, now[key], state.positions[key])
            self._got.add(key)
        self._fetcher.begin({key: state.positions[key] for key in new}, state.batches)
        if self._got and self._on_assign is not None:
            return _Due(self._on_assign, sorted(self._got), is_revoked=False)
        self._got.clear()
        self._state = state
        return None

    def _note_lost(self, now: Mapping[TopicPartition, int], state: GroupState) -> None:
        """Find what was taken away, or is had once more, as of a topic that was recreated."""
        since = self._cursors.since
        # Where the group stands by now counts in the topic that is there: the fetcher knew another.
        recreated = {key for key in self._fetcher.recreated if key in state.positions}
        self._fetcher.recreated &= since.keys()
        lost = {key for key in since if now.get(key) != since[key] or key in recreated}
        for key in lost & now.keys():
            self._drop(key)  # nothing of it can be committed
        self._lost |= lost

    def _drop(self, key: TopicPartition) -> None:
        self._cursors.drop(key)
        self._fetcher.forget(key)
        self._got.discard(key)

    def _comes_next(self, found: Fetched) -> bool:
        """Whether rows that were read still are what comes next of a partition."""
        return self._cursors.wanted.get(found.partition) == found.begin

    def _read_on(self, member: GroupMember) -> _Due | None:
        """Read until there are rows, which wait in ``_fetched``, or nothing is new."""
        while True:
            try:
                found = self._fetcher.next(self._cursors.wanted)
            except UnknownTopicOrPartitionError:
                before, is_recreated = self._cursors.since, bool(self._fetcher.recreated)
                due = self._round(member)
                if due is not None or self._fetcher.recreated:
                    return due  # a topic that was recreated waits for its group to notice
                if self._cursors.since == before and not is_recreated:
                    raise
                continue
            if found is None:
                return None
            if found.rows is not None:
                self._fetched = found
                return None
            if found.position < self._cursors.position(found.partition):
                self._go_back(found.partition, found.position)
            self._cursors.go_to(found.partition, found.position)

    def _go_back(self, key: TopicPartition, end: int) -> None:
        """Let the group stand where a log ends: else it would pass over what comes there."""
        move = self._cursors.back(key, end)
        if move is not None and self._member is not None:
            if self._commits.look(at_once=True).positions.get(key) != end:
                self._member.commit({key: move})
            self._cursors.add(key, move.since, end)

    def _call_back(self, callback: Callback, partitions: list[TopicPartition]) -> None:
        self._is_calling_back = True
        try:
            callback(partitions)
        finally:
            self._is_calling_back = False

    def _check_no_callback(self, call: str) -> None:
        if self._is_calling_back:
            raise KafkaLogError(f"{call} cannot be called from on_assign or on_revoke")

    def _own(self, partition: tuple[str, int]) -> TopicPartition:
        self._check_usable()
        key = TopicPartition(*partition_pair(partition))
        if key not in self._cursors:
            raise OptionError(f"this member of group {self._commits.group!r} does not have {key}")
        return key

    def _check_usable(self) -> None:
        group = self._commits.group
        if self._process != system.process_id():
            raise KafkaLogError(
                f"the Consumer of group {group!r} belongs to process {self._process}, which was "
                "forked: make another one here"
            )
        if self._is_closed:
            raise KafkaLogError(f"the Consumer of group {group!r} is closed")


def _real_path(directory: Path) -> str:
    """Return what tells a directory, or a log in an object store, from others."""
    is_remote = isinstance(directory, RemotePath)
    return str(directory) if is_remote else os.path.realpath(directory)


def _refusing(text: str) -> StateCondition:
    """Return a condition of a commit that never holds."""

    def refuse(_: CommittedSet) -> None:
        raise FencedMemberError(text)

    return refuse


# ----------------------------------------------------------------------------------------------
# Positions of a member in its partitions, and which of them are not committed.


@dataclass(slots=True)
class _Cursor:
    """One partition: held since a generation; where the group stands, and what comes next."""

    since: int
    begin: int
    position: int
    is_paused: bool = False

    @property
    def move(self) -> ReadRange:
        """What a commit publishes: a group does not go back, whatever is read again."""
        return ReadRange(self.begin, max(self.begin, self.position), self.since)


class Cursors:
    """The partitions that a member reads. Knows no files.

    What was returned of a partition that was taken away before it was committed stays known, until
    somebody has dealt with that: rows of it may be among those that are about to be published.
    """

    def __init__(self) -> None:
        self._cursors: dict[TopicPartition, _Cursor] = {}
        self._moved: set[TopicPartition] = set()
        """Those whose position changed since the last commit."""
        self.taken: dict[TopicPartition, ReadRange] = {}
        """What was returned of partitions that were taken away, and was not committed."""

    @property
    def since(self) -> dict[TopicPartition, int]:
        """The partitions, and since which generation it has each."""
        return {key: cursor.since for key, cursor in self._cursors.items()}

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """The offset that comes next in each."""
        return {key: cursor.position for key, cursor in self._cursors.items()}

    @property
    def wanted(self) -> dict[TopicPartition, int]:
        """Where to read on, in those that are not paused."""
        return {key: each.position for key, each in self._cursors.items() if not each.is_paused}

    def __contains__(self, key: object) -> bool:
        return key in self._cursors

    def add(self, key: TopicPartition, since: int, position: int) -> None:
        """Begin with a partition where the group stands."""
        self._cursors[key] = _Cursor(since, position, position)

    def drop(self, key: TopicPartition) -> None:
        """Read a partition no more; nothing if it is not read."""
        cursor = self._cursors.pop(key, None)
        if cursor is not None and key in self._moved:
            self._moved.discard(key)
            self.taken[key] = cursor.move

    def position(self, key: TopicPartition) -> int:
        """Return the offset that comes next."""
        return self._cursors[key].position

    def go_to(self, key: TopicPartition, position: int) -> None:
        """Read on at another offset."""
        self._moved.add(key)
        self._cursors[key].position = position

    def back(self, key: TopicPartition, end: int) -> ReadRange | None:
        """Return how the group goes back to where a log ends; None if it stands no further."""
        cursor = self._cursors[key]
        return ReadRange(cursor.begin, end, cursor.since) if end < cursor.begin else None

    def pause(self, keys: Iterable[TopicPartition], *, is_paused: bool) -> None:
        """Leave partitions out for a while, or not any more."""
        for key in keys:
            self._cursors[key].is_paused = is_paused

    def moves(self) -> dict[TopicPartition, ReadRange]:
        """Return what a commit publishes now."""
        return {key: self._cursors[key].move for key in sorted(self._moved)}

    def committed(self, moves: Mapping[TopicPartition, ReadRange]) -> None:
        """Take note of what was published."""
        for key, move in moves.items():
            cursor = self._cursors[key]
            cursor.begin = move.end
            if cursor.move.end == move.end:
                self._moved.discard(key)
        self.taken.clear()

    def go_back(self, stands: Mapping[TopicPartition, int]) -> None:
        """Read everything again that the group does not know, from where it stands."""
        self._moved.clear()
        self.taken.clear()
        for key, cursor in self._cursors.items():
            cursor.begin = cursor.position = stands.get(key, cursor.begin)
