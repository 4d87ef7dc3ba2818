"""Recover the tail of a log that others have appended to: torn batches, open transactions.

A broker that was killed leaves its last batch half written. A recovering broker cuts the log there,
and so does a writer of ours before it appends. It cuts only above what is committed, acknowledged
or known to have been on the disk (:func:`~kafkalog.streaming.store.ends.rule.marks_above`), and
only where no valid batch follows: that would be damage in the middle, and no torn tail.

Whole batches above what is committed were appended by a broker, and are kept. If no broker ever
lived there, and no intent names them, the directory is a copy that was made while a query wrote.
The query's next batch is in the log already, so nothing is appended.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.broker import HIGH_WATERMARK, META_PROPERTIES
from kafkalog.checkpoints.commit_state import STATE_FILE
from kafkalog.checkpoints.voters import FROM_ONE_NODE
from kafkalog.errors import CommitError, CorruptRecordError, LogDirectoryError
from kafkalog.files.timeouts import at
from kafkalog.streaming.log.appender import PartitionAppender
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.log.recovery import recover_segment
from kafkalog.streaming.log.segment import LogSegment
from kafkalog.streaming.log.segments import list_base_offsets
from kafkalog.streaming.log.valid_batches import ends_in_zeros, find_valid_end
from kafkalog.streaming.records.batch_layout import HEADER_SIZE
from kafkalog.streaming.store.ends.rule import SeenEnd, end_of, marks_above
from kafkalog.streaming.store.file_systems import is_shared
from kafkalog.streaming.store.recovery.intent_verification import find_valid_batch, reach_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from kafkalog.checkpoints.commit_state import CommitState
    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.valid_batches import ValidEnd
    from kafkalog.streaming.options.topic_settings import LogConfig
    from kafkalog.streaming.store.ends.recorded import BrokerMarks
    from kafkalog.streaming.store.ends.rule import RecordedOffsets

__all__ = [
    "TailRecovery",
    "check_no_open_transaction",
    "open_transaction_error",
    "remedy_of",
    "with_recovery_advice",
]

_LOGGER: Final = logging.getLogger("kafkalog.sink")

_END_TRANSACTIONS: Final = (
    "Let the broker end it first (it aborts it when transaction.timeout.ms is over). If none will "
    "start again, run `kafkalog broker takeover --abort-open-transactions`: it ends each "
    "transaction as its coordinator decided, and aborts what nobody decided"
)
_ACCEPT_LOSS: Final = (
    "If what it holds is all that there is to be, let `kafkalog salvage` continue after the "
    "missing offsets, or at them"
)
_TAKE_OVER: Final = (
    "Restore a whole copy (`kafkalog backup` makes one while queries write). Or run "
    "`kafkalog broker takeover`: it takes these records over as they are; a batch that a query "
    "then repeats is "
    "there twice"
)
_WAY_OUT: Final = (
    "Restore the file. Or let `kafkalog salvage` drop what is damaged: it keeps the original, and "
    "says which offsets are lost"
)


_OF_NODES: Final = (
    "Bring back a node that has it whole, and run `kafkalog recover`. "
    f"{FROM_ONE_NODE}. What is damaged there, `kafkalog salvage` drops; the same takeover "
    "once more takes that in"
)
"""What can be done where all replicas that are there are damaged, or end too early."""


def remedy_of(state: CommitState, of_one_node: str, of_nodes: str = _OF_NODES) -> str:
    """Return what can be done where a log is not whole: another node may have it whole."""
    return of_nodes if state.is_replicated else of_one_node


@contextmanager
def with_recovery_advice(state: CommitState) -> Iterator[None]:
    """Add to an error about damage what can be done about it."""
    try:
        yield
    except CorruptRecordError as error:
        way_out = remedy_of(state, _WAY_OUT)
        raise CorruptRecordError(f"{error}. Nothing was changed there. {way_out}") from error


@dataclass(frozen=True, kw_only=True)
class TailRecovery:
    """A partition's log that may not be as we left it, and what is known about its end.

    Attributes:
        folder: of the partition.
        key: the partition.
        config: its topic's settings.
        state: the commit state.
        topic_id: of the partition's topic, which a log that is yet to be made gets.
        marks: what brokers left in the log directories.
        takes_over: whether the log counts as it is, even above what is committed, and even if it
            ends below a broker's high watermark.
        is_there: whether the folder was found where partitions were looked for. One that is gone
            since is no new one.
        advice: what else to say where a log ends below what is committed.
        open_advice: what to say where a transaction is open at the end.
        ends_open: whether an open transaction is no reason to refuse: somebody else sees to it.
        check_locks: raises if the locks were lost: their new holder may be writing the batch that
            looks like a torn tail. It is called only before something is cut off.
    """

    folder: Path
    key: TopicPartition
    config: LogConfig
    state: CommitState
    topic_id: str | None
    marks: BrokerMarks
    takes_over: bool = False
    is_there: bool = True
    advice: str = ""
    open_advice: str = ""
    ends_open: bool = False
    check_locks: Callable[[], None] = lambda: None

    @property
    def committed_end(self) -> int | None:
        """Where the log ends by the commit state; None if that does not know the partition."""
        return self.state.log_end(self.key.topic, self.topic_id, self.key.partition)

    def open(self, *, now_ms: int, first_offset: int = 0) -> PartitionAppender:
        """Open the end of the log at the time ``now_ms``, after cutting a torn tail off it.

        REQUIRES: the locks are held, and nothing is unfinished. A log that is yet to be made begins
        at ``first_offset``.

        Raises:
            CommitError: the log ends below what is committed or acknowledged, above what is
                committed though no broker lived there, or with an open transaction; or records are
                damaged that are not to be lost.
            LogDirectoryError: damage in the middle of the log; or the folder is gone.
            CheckpointError: a broker's checkpoint files cannot be read.
        """

        def opened() -> PartitionAppender:
            return PartitionAppender(
                self.folder,
                self.key,
                self.config,
                now_ms=now_ms,
                topic_id=self.topic_id,
                first_offset=first_offset,
                may_be_replaced=is_shared(self.folder.parent),
            )

        with at(self.folder):
            try:
                appender = opened()
            except CorruptRecordError:
                self.cut_torn_tail()
                appender = opened()
        if appender.makes_directory:
            self._check_is_new()
        else:
            self._check_end(appender.log_end_offset)
        return appender

    def _check_is_new(self) -> None:
        """Refuse to make a folder again that was away for a moment, as a mount may be."""
        if self.is_there:
            raise LogDirectoryError(
                f"{self.folder} was there a moment ago, and is gone: its disk may not be mounted, "
                "or the folder was moved or deleted. Nothing was written. Try again once it is "
                "there"
            )

    def look(self) -> tuple[int, str | None]:
        """Return the end that :meth:`open` would find, and what it would cut off for it.

        Changes nothing.

        Raises:
            CommitError, LogDirectoryError, CheckpointError: as :meth:`open`.
        """
        cut = None
        try:
            end = PartitionAppender(self.folder, self.key, self.config, now_ms=0).log_end_offset
        except CorruptRecordError:
            base = list_base_offsets(self.folder)[-1]
            with LogSegment(self.folder, base) as segment:
                valid = self.torn_end(segment)
                end = segment.base_offset if valid is None else valid.next_offset
                cut = valid and self.cut_text(segment, valid)
        self._check_end(end)
        return end, cut

    def _check_end(self, end: int) -> None:
        self.check_has_all(end)
        if not self.takes_over:
            self.check_has_no_more(end)
        if end != self.committed_end and not self.ends_open:
            check_no_open_transaction(self.folder, self.key, end, self.open_advice)

    @property
    def _said(self) -> RecordedOffsets:
        return self.marks.said(self.folder, self.key, self.committed_end)

    def check_has_all(self, end: int) -> None:
        """Refuse a log that ends below what was committed or acknowledged."""
        found = end_of(self._said, SeenEnd(0, end))
        if found.lost is not None:
            way_out = remedy_of(
                self.state,
                f"{_ACCEPT_LOSS}. Or move the kafkalog.* files of all log directories away, and "
                "run `kafkalog broker takeover`: it forgets what was committed, and by whom",
            )
            raise CommitError(
                f"{self.folder}: the log of {self.key} ends at offset {end}, yet everything "
                f"below {found.lost.end} is committed. Restore it: appended records would get "
                f"offsets that readers have seen already. {way_out}{self.advice}"
            )
        if found.missing is None:
            return
        acknowledged = found.missing.end
        if not self.takes_over:
            way_out = (
                f"{_ACCEPT_LOSS}. Or run `kafkalog broker takeover`, which accepts that offsets "
                f"{end} to {acknowledged - 1} are lost"
            )
            raise CommitError(
                f"{self.folder}: the log of {self.key} ends at offset {end}, yet the high "
                f"watermark in {HIGH_WATERMARK} is {acknowledged}: the log is older than what was "
                "acknowledged, and appended records would get offsets that readers may have seen. "
                f"Restore it. {remedy_of(self.state, way_out)}"
            )
        _LOGGER.warning(
            "%s: the log of %s ends at offset %d, below its high watermark %d: offsets %d to %d "
            "were acknowledged and are lost",
            self.folder,
            self.key,
            end,
            acknowledged,
            end,
            acknowledged - 1,
        )

    def check_has_no_more(self, end: int) -> None:
        """Refuse records above what is committed that nobody can have appended."""
        if end == self.committed_end or self.marks.broker_lived(self.folder):
            return
        bases = list_base_offsets(self.folder)
        start = bases[0] if bases else end
        committed = start if self.committed_end is None else self.committed_end
        if end > committed:
            way_out = remedy_of(self.state, _TAKE_OVER, self._keep_or_leave)
            raise CommitError(
                f"{self.folder}: the log of {self.key} holds offsets {committed} to {end - 1}, "
                "which are not committed. No unfinished commit names them, and no broker lived "
                f"here (there is no {META_PROPERTIES}): the directory was copied while a query "
                f"wrote to it, an older {STATE_FILE} was put back, or others put the log here. A "
                f"query that continues here would append them again. {way_out}"
            )

    @property
    def _keep_or_leave(self) -> str:
        return (
            f"To do without them, where another node ends at offset {self.committed_end}: move "
            f"{self.folder} away, and run `kafkalog recover`, which copies it from there. To keep "
            f"them, act as if the other nodes were lost. {FROM_ONE_NODE}"
        )

    def cut_torn_tail(self) -> None:
        """Cut what follows the last valid batch, if that may go."""
        base = list_base_offsets(self.folder)[-1]
        with LogSegment(self.folder, base) as segment:
            end = self.torn_end(segment)
            if end is None:
                return
            self.check_locks()
            _LOGGER.warning("%s", self.cut_text(segment, end))
        interval = self.config.index_interval_bytes
        recover_segment(self.folder, base, index_interval_bytes=interval)

    def torn_end(self, segment: LogSegment) -> ValidEnd | None:
        """Find where the last segment is to be cut off; None if it need not be."""
        end = find_valid_end(segment, 0)
        if end.problem is None:
            return None
        self._check_may_go(segment, end)
        if not self.takes_over:
            self.check_has_no_more(end.next_offset)
        return end

    @staticmethod
    def cut_text(segment: LogSegment, end: ValidEnd) -> str:
        """Say what is cut off."""
        where = f"{segment.path} is cut off at byte {end.position}, offset {end.next_offset}"
        count = segment.size - end.position
        if count >= HEADER_SIZE and ends_in_zeros(segment, end.position):
            return f"{where}; {count} zero bytes go that a broker has set aside (preallocate=true)"
        return f"{where}; {count} bytes of a torn batch go: {end.problem}"

    def _check_may_go(self, segment: LogSegment, end: ValidEnd) -> None:
        marks = marks_above(self._said, end.next_offset, lambda: reach_of(segment, end))
        mark = next(marks, None)
        if mark is not None:
            raise CommitError(
                f"{segment.path}: committed records are damaged: the log is whole up to offset "
                f"{end.next_offset} only, and {mark.text} {mark.offset}: {end.problem}. Nothing "
                f"was cut off. {remedy_of(self.state, _WAY_OUT)}{self.advice}"
            ) from end.problem
        later = find_valid_batch(segment.path, end.position, end.next_offset)
        if later is not None:
            raise LogDirectoryError(
                f"{segment.path}: {end.problem}, but at byte {later} there is a valid batch "
                "again: the log is damaged in its middle. Nothing was cut off. "
                f"{remedy_of(self.state, _WAY_OUT)}"
            )


def check_no_open_transaction(
    folder: Path, key: TopicPartition, end: int, advice: str = ""
) -> None:
    """See that no transaction is open at the end of a log; ``advice`` is what else to do about it.

    Raises:
        CommitError: one is.
    """
    with PartitionLog(folder, key) as log:
        stable = log.last_stable_offset(end)
    if stable < end:
        raise open_transaction_error(folder, key, stable, end, advice or _END_TRANSACTIONS)


def open_transaction_error(
    folder: Path, key: TopicPartition, stable: int, end: int, advice: str
) -> CommitError:
    """Return the error for a log at whose end a transaction is open, from ``stable`` on."""
    return CommitError(
        f"{folder}: a transaction that began at offset {stable} of {key} is still open at the "
        f"end of the log, offset {end}: what is appended after it, readers of committed "
        f"records would never come to. {advice}"
    )
