"""A member of a consumer group: it reads its share of topics, and commits how far it has come.

Rebalances happen within :meth:`Consumer.poll`, as in Kafka's consumer. Between calls a thread says
that the member lives.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kafkalog.errors import (
    CommitError,
    KafkaLogError,
    OffsetOutOfRangeError,
    OptionError,
    UnknownTopicOrPartitionError,
)
from kafkalog.files.closing import Closing
from kafkalog.files.system import system
from kafkalog.model import TopicPartition
from kafkalog.streaming.arguments import (
    group_name,
    partition_pair,
    seconds,
    several,
    topic_names,
)
from kafkalog.streaming.border import crosses_border
from kafkalog.streaming.consumer.consumer_options import check_callbacks, parse_options
from kafkalog.streaming.consumer.cursors import Cursors
from kafkalog.streaming.consumer.fetching import Fetched, Fetcher
from kafkalog.streaming.consumer.joined import Joined, check_strategy, refusing
from kafkalog.streaming.groups.group_commits import GroupCommits
from kafkalog.streaming.groups.watch import LOOK_S
from kafkalog.streaming.store.session import ensure_set, existing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import TypeAlias

    import pyarrow as pa

    from kafkalog.streaming.arguments import OptionValues, Paths
    from kafkalog.streaming.commit.riders import Rider
    from kafkalog.streaming.groups.group_commits import Move
    from kafkalog.streaming.groups.group_log import GroupState
    from kafkalog.streaming.store.session import Condition

    Callback: TypeAlias = Callable[[list[TopicPartition]], object]

__all__ = ["Consumer"]


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
        self._directories = [Path(os.path.realpath(p)) for p in existing(self._options.paths)]
        self._commits = GroupCommits(self._directories, group_name(group_id), self._options.policy)
        self._topics = frozenset(topic_names(topics))
        self._fetcher = Fetcher(self._read)
        ensure_set(self._options.paths, self._options.policy)
        self._process = system.process_id()
        self._cursors = Cursors()
        self._joined: Joined | None = None
        self._round_s: float | None = None
        self._state: GroupState | None = None
        """The group as of the last round that came to its end."""
        self._is_closed = False
        self._is_calling_back = False
        self._has_failed = False
        """Whether an append failed: what it was about is returned again."""
        self._is_unsure = False
        """Whether a commit failed, which may have been published after all."""

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that it reads as of the last :meth:`poll`, in order."""
        self._check_usable()
        return sorted(self._cursors.since)

    @crosses_border
    def poll(self, timeout: float = 0.0) -> pa.RecordBatch | None:
        """Return the next rows of one partition, or None if none came for ``timeout`` seconds.

        Columns are those of :func:`kafkalog.read`, in order of their offsets. Here the member
        joins, gives partitions up and gets others; so call it often.

        Raises:
            FencedMemberError: the group went on without the member: close it, and make another.
            DataLossError: offsets are gone that were to be read.
            KafkaLogError: the group or the logs cannot be read, or a decision not be written.
        """
        self._check_usable()
        if self._is_calling_back:
            raise KafkaLogError("poll cannot be called from on_assign or on_revoke")
        deadline = system.monotonic() + seconds("timeout", timeout)
        while True:
            self._take_part()
            rows = self._next_rows()
            if rows is not None:
                return rows  # at once: they count as returned already
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
            DataLossError: the log was cut or replaced while it was read; nothing is published.
            DurabilityError: it is, and a loss of power may take it away.
        """
        self._check_usable()
        if self._has_failed:
            raise CommitError(
                "an append with this Consumer failed, so what it has read is not done: try the "
                "same append again, or poll, which returns these rows again"
            )
        if self._is_unsure and self._joined is not None:
            stands = self._commits.look().positions
            moves = self._cursors.moves()
            done = {key: move for key, move in moves.items() if stands.get(key) == move.end}
            self._cursors.committed(done)
        moves = self._moves()
        if self._joined is not None and moves:
            self._is_unsure = True
            self._joined.member.commit(moves)
        self._is_unsure = False
        self._cursors.committed(moves)

    def position(self, partition: tuple[str, int]) -> int:
        """Return the offset that comes next in a partition of the assignment.

        Raises:
            OptionError: it is none.
        """
        return self._cursors.position(self._own(partition))

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
        self._cursors.go_to(key, offset)

    def pause(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Return no rows of partitions until :meth:`resume`; the member keeps them.

        Raises:
            OptionError: the member does not have one.
        """
        self._check_usable()
        self._cursors.pause([*map(self._own, several("partitions", partitions))], is_paused=True)

    def resume(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Return rows of partitions again.

        Raises:
            OptionError: the member does not have one.
        """
        self._check_usable()
        self._cursors.pause([*map(self._own, several("partitions", partitions))], is_paused=False)

    def close(self) -> None:
        """Leave the group; what was not committed is read by others, or later.

        A member with a ``kafka.group.instance.id`` falls silent instead: started again within its
        session time-out it goes on. ``on_revoke`` is called first, but not where an error ends
        ``with``: what was read may not be done. In a forked child it does nothing.
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
        joined = self._joined
        calls_back = calls_back and not self._has_failed and bool(self._cursors.since)
        try:
            if calls_back and joined is not None and not joined.is_overdue:
                self._call_back(self._on_revoke, self.assignment)
        finally:
            self._is_closed = True
            if joined is not None:
                joined.leave()

    @contextmanager
    def publishing(
        self, directories: Sequence[Path]
    ) -> Iterator[Callable[[], tuple[Condition, Sequence[Rider]]]]:
        """Let an append publish the group's positions with its rows; for :func:`kafkalog.append`.

        Gives a function that returns the condition and the riders of the commit.
        """
        self._check_usable()
        if {Path(os.path.realpath(each)) for each in directories} != {*self._directories}:
            raise OptionError(
                f"rows for {', '.join(map(str, directories))} cannot be committed with positions "
                f"of a group in {', '.join(map(str, self._directories))}: it is not the same set "
                "of log directories. Append first, and then call commit() (at least once)"
            )
        moves: Mapping[TopicPartition, Move] = {}

        def ride() -> tuple[Condition, Sequence[Rider]]:
            nonlocal moves
            moves = self._moves()
            return self._ride(moves)

        yield ride
        self._has_failed = False
        self._cursors.committed(moves)

    def _moves(self) -> dict[TopicPartition, Move]:
        """Return what a commit publishes, with the last batches below."""
        moves = self._cursors.moves()
        batches = self._fetcher.last_batches({key: move.end for key, move in moves.items()})
        return {key: move._replace(batch=batches.get(key)) for key, move in moves.items()}

    def note_failure(self) -> None:
        """Let the next :meth:`poll` go back to where the group stands: an append has failed.

        Trying the same append again first is safe.
        """
        self._has_failed = True

    def _ride(self, moves: Mapping[TopicPartition, Move]) -> tuple[Condition, Sequence[Rider]]:
        group = self._commits.group
        if self._joined is None:
            return refusing(f"the Consumer of group {group!r} has not polled yet"), ()
        if self._cursors.taken:
            taken = ", ".join(map(str, sorted(self._cursors.taken)))
            text = (
                f"group {group!r} gave {taken} to another member before what was read of it was "
                "committed: nothing was written. Drop these rows; poll returns again those that "
                "are still this member's"
            )
            return refusing(text), ()
        fence = self._commits.fence(self._joined.member_id, moves)
        now_ms = system.time_ns() // 1_000_000
        return fence, [self._commits.rider(moves, now_ms)] if moves else ()

    def _take_part(self) -> None:
        """Do what the group asks for, ten times a second at most."""
        if self._joined is None:
            joined = Joined(self._commits, self._options, self._topics, self._read)
            joined.begin()
            self._joined = joined
        now_s = system.monotonic()
        self._joined.polled()
        is_due = self._round_s is None or now_s - self._round_s >= LOOK_S
        if is_due or self._has_failed or not self._cursors.since:
            self._round_s = now_s
            self._round(self._joined)

    def _round(self, joined: Joined) -> None:
        state = joined.member.round()
        check_strategy(joined.member, self._options.strategy, state.record)
        if state is self._state and not self._has_failed:
            return  # nothing was committed since
        stands = state.positions
        if self._has_failed:
            self._cursors.go_back(stands)
            self._fetcher.begin(self._cursors.positions, state.batches)
            self._has_failed = False
        now = {key: joined.member.since(key) for key in joined.member.assigned}
        lost = sorted(key for key, since in self._cursors.since.items() if now.get(key) != since)
        if lost:
            for key in lost:
                if key in now:  # had once more, as of a recreated topic: nothing can be committed
                    self._drop(key)
            self._call_back(self._on_revoke, lost)
            for key in lost:
                self._drop(key)
        joined.member.give_up(joined.member.revoked)
        new = sorted(key for key in now if key not in self._cursors and key in stands)
        for key in new:
            self._cursors.add(key, now[key], stands[key])
        self._fetcher.begin({key: stands[key] for key in new}, state.batches)
        if new:
            self._call_back(self._on_assign, new)
        self._state = state

    def _drop(self, key: TopicPartition) -> None:
        self._cursors.drop(key)
        self._fetcher.forget(key)

    def _next_rows(self) -> pa.RecordBatch | None:
        while (found := self._fetch()) is not None:
            if found.position < self._cursors.position(found.partition):
                self._go_back(found.partition, found.position)
            self._cursors.go_to(found.partition, found.position)
            if found.rows is not None:
                return found.rows
        return None

    def _go_back(self, key: TopicPartition, end: int) -> None:
        """Let the group stand where a log ends: else it would pass over what comes there."""
        move = self._cursors.back(key, end)
        if move is not None and self._joined is not None:
            if self._commits.look().positions.get(key) != end:
                self._joined.member.commit({key: move})
            self._cursors.add(key, move.since, end)

    def _fetch(self) -> Fetched | None:
        """Return what comes next. A topic that was recreated waits for its group to notice."""
        try:
            return self._fetcher.next(self._cursors.wanted)
        except UnknownTopicOrPartitionError:
            before = self._cursors.since
            if self._joined is not None:
                self._round(self._joined)
            if self._cursors.since == before:
                raise
            return None

    def _call_back(self, callback: Callback | None, partitions: list[TopicPartition]) -> None:
        if callback is None:
            return
        self._is_calling_back = True
        try:
            callback(partitions)
        finally:
            self._is_calling_back = False

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
