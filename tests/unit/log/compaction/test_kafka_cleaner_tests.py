"""Kafka's ``LogCleanerTest``, ``LogCleanerManagerTest`` and ``OffsetMapTest``, by behaviour.

Each test names the one that it follows: the same appends, the same rounds, the same offsets left.
What those tests say of simple logs, groups, ratios and the map stands in the modules beside this
one; what they say of a crash amid a swap, of checkpoints and of states of partitions, with whoever
swaps. Of metrics, throttling and settings that change there is nothing here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from tests.support.cleaning import ABORT, COMMIT, NOW, CleanableLog, batch, marker
from tests.support.transactions import index_bytes, snapshot_bytes

from kafkalog.errors import CorruptRecordError
from kafkalog.streaming.log.compaction.cleaner import clean_log
from kafkalog.streaming.log.compaction.offset_map import OffsetMap
from kafkalog.streaming.log.compaction.transactions import LastRecords
from kafkalog.streaming.log.indexes import TxnIndex
from kafkalog.streaming.log.segments import LogSegments
from kafkalog.streaming.options.topic_settings import LogConfig

if TYPE_CHECKING:
    from pathlib import Path

    from kafkalog.streaming.log.compaction.cleanable import Cleanable
    from kafkalog.streaming.log.compaction.cleaner import CleanedLog

DAY = 86_400_000
FOREVER = 1 << 60
TRANSACTIONAL = 0x10


@dataclass
class Log(CleanableLog):
    """A log that grows as in Kafka's tests: values are keys, sequences count on by producer."""

    next_offset: int = 0
    sequences: dict[int, int] = field(default_factory=dict)
    opened: dict[int, int] = field(default_factory=dict)
    base: int = 0
    pending: list[bytes] = field(default_factory=list)
    aborted: list[tuple[int, int, int, int]] = field(default_factory=list)

    def send(self, producer: int, *keys: int, transactional: bool = True) -> None:
        """Append a batch of a producer."""
        sequence = self.sequences.get(producer, 0)
        self.sequences[producer] = sequence + len(keys)
        if transactional:
            self.opened.setdefault(producer, self.next_offset)
        self._append(
            batch(
                self.next_offset,
                [(b"%d" % key, b"%d" % key) for key in keys],
                attributes=TRANSACTIONAL if transactional else 0,
                producer_id=producer,
                producer_epoch=0,
                base_sequence=sequence,
            ),
            len(keys),
        )

    def plain(self, *keys: int) -> None:
        """Append batches of one record, of no producer."""
        for key in keys:
            self._append(batch(self.next_offset, [(b"%d" % key, b"%d" % self.next_offset)]), 1)

    def mark(self, producer: int, kind: int) -> None:
        """Append a marker."""
        at = self.next_offset
        first = self.opened.pop(producer, None)
        self._append(marker(at, producer, kind), 1)
        if kind == ABORT and first is not None:
            stable = min(self.opened.values(), default=at + 1)
            self.aborted.append((producer, first, at, stable))

    def roll(self, base: int | None = None) -> None:
        """Begin a new segment."""
        self.next_offset = self.base = self.next_offset if base is None else base
        self.pending, self.aborted = [], []
        self._write()

    def round(self, *, again: bool = False, later: int = 0) -> CleanedLog:
        """Clean what is dirty, or all ``again``; so much later, ms."""
        self.now += later
        if again:
            self.clean_to = None
        return self.clean(expiration_ms=FOREVER)

    def two_rounds(self) -> None:
        """Clean all twice, the second time after the retention of deletes."""
        self.round(again=True)
        self.round(again=True, later=DAY + 1)

    def offsets(self) -> list[int]:
        """Give the offsets of all records, those of markers too."""
        return [offset for one in self.batches() for offset, *_ in one.records]

    def last_offsets(self) -> list[int]:
        """Give the last offset of each batch."""
        return [one.last_offset for one in self.batches()]

    def last_sequences(self) -> dict[int, int]:
        """Give the last sequence of each producer, as a broker that loads the log finds it."""
        return {
            one.producer: one.sequence + one.last_offset - one.base_offset
            for one in self.batches()
            if one.producer >= 0 and not one.attributes & 0x20
        }

    def key_numbers(self) -> list[int]:
        """Give the keys of the records that are no markers."""
        return [int(key or b"-1") for key in self.keys()]

    def indexed(self) -> list[tuple[int, int, int, int]]:
        """Give the entries of all indexes of aborted transactions."""
        found: list[tuple[int, int, int, int]] = []
        for path in sorted(self.folder.glob("*.txnindex")):
            with TxnIndex(path, int(path.stem)) as index:
                found.extend(tuple(entry) for entry in index)
        return found

    def _append(self, data: bytes, count: int) -> None:
        self.pending.append(data)
        self.next_offset += count
        self._write()

    def _write(self) -> None:
        self.folder.mkdir(exist_ok=True)
        path = self.folder / f"{self.base:020d}.log"
        path.write_bytes(b"".join(self.pending))
        if self.aborted:
            path.with_suffix(".txnindex").write_bytes(index_bytes(*self.aborted))


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "t-0", {"delete.retention.ms": str(DAY)})


def test_last_sequences_stay_over_rounds(log: Log) -> None:  # testDuplicateCheckAfterCleaning
    log.send(1, 1, 2, 3, transactional=False)
    log.send(2, 3, 1, 4, transactional=False)
    log.send(3, 1, 4, transactional=False)
    log.roll()
    log.round()
    assert log.last_offsets() == [2, 5, 7]
    assert log.last_sequences() == {1: 2, 2: 2, 3: 1}
    assert (log.key_numbers(), log.offsets()) == ([2, 3, 1, 4], [1, 3, 6, 7])

    log.send(4, 2, transactional=False)
    log.roll()
    log.round(again=True)
    assert log.last_sequences() == {1: 2, 2: 2, 3: 1, 4: 0}
    assert log.last_offsets() == [2, 5, 7, 8]
    assert (log.key_numbers(), log.offsets()) == ([3, 1, 4, 2], [3, 6, 7, 8])


def test_aborted_transactions_over_several_rounds(log: Log) -> None:
    # testMultiPassSegmentCleaningWithAbortedTransactions
    log.memory = 24 * 4  # takes three keys
    log.send(1, 1, 2)
    log.send(2, 2, 3)
    log.send(1, 3, 4)
    log.mark(1, COMMIT)
    log.mark(2, COMMIT)
    log.send(1, 2, 3)
    log.mark(1, ABORT)
    log.send(2, 4, 5)
    log.send(1, 5, 6)
    log.mark(1, COMMIT)
    log.mark(2, ABORT)
    log.send(2, 6, 7)
    log.mark(2, COMMIT)
    log.roll()
    expected = [(1, 8, 10, 11), (2, 11, 16, 17)]
    assert log.indexed() == expected

    log.round()
    assert log.clean_to == 4
    bases = [0, 2, 4, 6, 7, 10, 13, 15, 16, 17, 19]
    assert [one.base_offset for one in log.batches()] == bases
    assert log.offsets() == [0, 2, 3, 4, 5, 6, 7, 10, 13, 14, 15, 16, 17, 18, 19]
    assert log.indexed() == expected

    log.round()
    assert log.clean_to == 14
    assert [one.base_offset for one in log.batches()] == bases
    assert log.offsets() == [0, 2, 4, 5, 6, 7, 10, 13, 14, 15, 16, 17, 18, 19]
    assert log.indexed() == []

    log.round(later=DAY)
    assert log.clean_to == 20
    assert [one.base_offset for one in log.batches()] == [0, 2, 4, 6, 7, 13, 15, 17, 19]
    assert log.offsets() == [0, 2, 4, 5, 6, 7, 13, 15, 17, 18, 19]
    assert log.indexed() == []


def test_aborted_records_count_for_no_key(log: Log) -> None:  # testBasicTransactionAwareCleaning
    log.send(1, 1, 2)
    log.send(2, 2, 3)
    log.send(1, 3, 4)
    log.mark(1, ABORT)
    log.mark(2, COMMIT)
    log.send(1, 2)
    log.mark(1, COMMIT)
    before = log.indexed()
    log.roll()
    log.round()
    assert (log.key_numbers(), log.offsets()) == ([3, 2], [3, 6, 7, 8, 9])
    assert log.indexed() == before == [(1, 0, 6, 2)]


def test_transactions_that_span_segments(log: Log) -> None:
    # testCleanWithTransactionsSpanningSegments
    log.send(1, 1, 2)
    log.send(3, 2, 3)
    log.send(2, 3, 4)
    log.roll()
    log.send(2, 5, 6)
    log.send(3, 6, 7)
    log.send(1, 7, 8)
    log.mark(2, ABORT)
    log.send(3, 8, 9)
    log.mark(3, COMMIT)
    log.send(1, 9, 10)
    log.mark(1, ABORT)
    log.round()
    assert log.key_numbers() == [2, 3, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10]

    log.roll()
    log.send(2, 11)
    log.send(1, 12)
    log.round()
    assert log.key_numbers() == [2, 3, 6, 7, 8, 9, 11, 12]


def test_a_commit_marker_goes_after_its_records(log: Log) -> None:  # testCommitMarkerRemoval
    log.send(1, 1)
    log.send(1, 2, 3)
    log.mark(1, COMMIT)
    log.send(1, 2)
    log.mark(1, COMMIT)
    log.roll()
    log.round()
    assert (log.key_numbers(), log.offsets()) == ([1, 3, 2], [0, 2, 3, 4, 5])

    log.send(1, 1, 3)
    log.mark(1, COMMIT)
    log.roll()
    for _ in range(2):  # the second time it gets its horizon
        log.round(again=True)
        assert (log.key_numbers(), log.offsets()) == ([2, 1, 3], [3, 4, 5, 6, 7, 8])
    log.round(again=True, later=DAY - 1)
    assert log.offsets() == [3, 4, 5, 6, 7, 8]
    log.round(again=True, later=1)
    assert (log.key_numbers(), log.offsets()) == ([2, 1, 3], [4, 5, 6, 7, 8])


def test_a_first_piece_of_which_nothing_is_left(log: Log) -> None:
    # testDeletedBatchesWithNoMessagesRead
    log.send(1, *[1] * 60_000)  # more than what is read at a time
    log.mark(1, ABORT)
    log.send(1, 2)
    log.send(1, 2)
    log.mark(1, COMMIT)
    log.roll()
    log.round()
    assert log.key_numbers() == [2]
    assert log.offsets() == [60_000, 60_002, 60_003]
    log.two_rounds()
    assert log.offsets() == [60_002, 60_003]


def test_commit_markers_of_emptied_batches(log: Log) -> None:
    # testCommitMarkerRetentionWithEmptyBatch
    log.send(1, 2, 3)
    log.roll()
    log.send(2, 2, 3)
    log.mark(2, COMMIT)
    log.roll()
    log.plain(2, 3)
    log.mark(1, COMMIT)
    log.roll()
    for _ in range(2):  # the emptied batches tell last sequences, the second time as the first
        log.round(again=True)
        assert log.key_numbers() == [2, 3]
        assert log.offsets() == [4, 5, 6, 7]
        assert log.last_offsets() == [1, 3, 4, 5, 6, 7]

    log.send(2, 1)
    log.mark(2, COMMIT)
    log.roll()
    log.round()  # the emptied batch was met: its marker gets no horizon
    assert log.key_numbers() == [2, 3, 1]
    assert log.offsets() == [4, 5, 6, 7, 8, 9]
    assert log.last_offsets() == [1, 4, 5, 6, 7, 8, 9]

    log.two_rounds()
    assert log.key_numbers() == [2, 3, 1]
    assert log.offsets() == [5, 6, 7, 8, 9]
    assert log.last_offsets() == [1, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("known", [True, False])
def test_an_emptied_marker_stays_while_its_producer_is_known(log: Log, known: bool) -> None:
    # testCleanEmptyControlBatch; nothing but a snapshot tells of it then, as to a broker that loads
    log.mark(1, COMMIT)
    log.plain(2, 3)
    log.roll()
    if known:
        (log.folder / f"{3:020d}.snapshot").write_bytes(snapshot_bytes({}, [1]))
    log.two_rounds()
    assert (log.offsets(), log.last_offsets()) == ([1, 2], [0, 1, 2])
    log.round(again=True, later=DAY)
    assert (log.offsets(), log.last_offsets()) == ([1, 2], [0, 1, 2] if known else [1, 2])


def test_a_committed_transaction_that_spans_segments_stays(log: Log) -> None:
    # testCommittedTransactionSpanningSegments
    log.send(1, 1)
    log.roll()
    log.mark(1, COMMIT)
    log.roll()
    log.two_rounds()
    assert (log.offsets(), log.last_offsets()) == ([0, 1], [0, 1])


def test_an_aborted_transaction_that_spans_segments_keeps_its_last_batch(log: Log) -> None:
    # testAbortedTransactionSpanningSegments
    log.send(1, 1)
    log.roll()
    log.mark(1, ABORT)
    log.roll()
    for _ in range(2):
        log.round(again=True, later=3 * DAY)
        assert (log.offsets(), log.last_offsets()) == ([1], [0, 1])


def test_an_abort_marker_goes_after_its_records(log: Log) -> None:  # testAbortMarkerRemoval
    log.send(1, 1)
    log.send(1, 2, 3)
    log.mark(1, ABORT)
    log.send(1, 3)
    log.mark(1, COMMIT)
    log.roll()
    log.round()
    assert (log.key_numbers(), log.offsets()) == ([3], [3, 4, 5])
    log.two_rounds()
    assert (log.key_numbers(), log.offsets()) == ([3], [4, 5])


def test_emptied_batches_go_where_sequences_begin_again(log: Log) -> None:
    # testEmptyBatchRemovalWithSequenceReuse
    for key in (1, 2):
        log.sequences.clear()
        log.send(1, key)
        log.mark(1, COMMIT)
    log.plain(1, 2)
    log.roll()
    log.round()
    assert (log.offsets(), log.last_offsets()) == ([1, 3, 4, 5], [1, 2, 3, 4, 5])
    log.two_rounds()
    assert (log.offsets(), log.last_offsets()) == ([3, 4, 5], [2, 3, 4, 5])


def test_abort_markers_of_emptied_batches(log: Log) -> None:
    # testAbortMarkerRetentionWithEmptyBatch
    log.send(1, 2, 3)
    log.mark(1, ABORT)
    log.roll()
    entry = [(1, 0, 2, 3)]
    log.round()
    for _ in range(2):  # the emptied batch still tells the last sequence
        assert (log.key_numbers(), log.indexed()) == ([], entry)
        assert (log.offsets(), log.last_offsets()) == ([2], [1, 2])
        log.two_rounds()

    log.send(1, 1)
    log.mark(1, COMMIT)  # Kafka's test cleans into the open transaction
    log.roll()
    log.round()
    assert (log.key_numbers(), log.indexed()) == ([1], entry)
    assert (log.offsets(), log.last_offsets()) == ([2, 3, 4], [2, 3, 4])
    log.two_rounds()
    assert (log.key_numbers(), log.indexed()) == ([1], [])
    assert (log.offsets(), log.last_offsets()) == ([3, 4], [3, 4])


def test_messages_above_all_limits_are_cleaned(log: Log) -> None:
    # testLargeMessage, testMessageLargerThanMaxMessageSize
    log.config["max.message.bytes"] = "1024"
    for key in (1, 2, 1):
        data = batch(log.next_offset, [(b"%d" % key, bytes(3 << 20))])
        log._append(data, 1)
    log.roll()
    log.round()
    assert log.offsets() == [1, 2]


@pytest.mark.parametrize("damage", ["magic", "length"])
def test_a_damaged_header_is_not_cleaned_over(log: Log, damage: str) -> None:
    # testMessageLargerThanMaxMessageSizeWithCorruptHeader, testCorruptMessageSizeLargerThan...
    log.plain(1, 2, 1)
    log.roll()
    path = log.folder / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    if damage == "magic":
        data[16] = 0xFF
        path.write_bytes(data)
    else:
        path.write_bytes(data[:-9])
    with pytest.raises(CorruptRecordError):
        log.round()


def test_a_round_tells_what_it_read_and_wrote(log: Log) -> None:  # testLogCleanerStats
    log.memory = 24 * 4
    log.plain(0, 1, 0, 1, 0)
    log.roll()
    before = (log.folder / f"{0:020d}.log").stat().st_size
    log.clean_to = 2
    result = log.round()
    after = (log.folder / f"{0:020d}.log").stat().st_size
    assert (result.clean_to, result.is_complete, result.keyless) == (5, True, 0)
    assert (result.bytes_before, result.bytes_after) == (before, after)
    assert log.offsets() == [3, 4]


def test_an_aborted_last_sequence_stays_until_the_next(log: Log) -> None:
    # testLogCleanerRetainsLastSequenceEvenIfTransactionAborted
    log.send(1, 1)
    log.send(1, 2, 3)
    log.mark(1, ABORT)
    log.roll()
    log.round()
    assert (log.last_offsets(), log.last_sequences()) == ([2, 3], {1: 2})
    assert (log.key_numbers(), log.offsets()) == ([], [3])

    log.send(1, 1, 5)
    log.mark(1, COMMIT)  # Kafka's test cleans into the open transaction
    log.roll()
    log.round(again=True)
    assert (log.last_offsets(), log.last_sequences()) == ([3, 5, 6], {1: 4})
    assert (log.key_numbers(), log.offsets()) == ([1, 5], [3, 4, 5, 6])


def test_a_key_as_a_markers_does_not_replace_the_marker(log: Log) -> None:
    # testCleaningWithKeysConflictingWithTxnMarkerKeys
    log.send(1, 1)
    log.mark(1, COMMIT)
    key = b"\0\0\0\1"
    fields = {"producer_id": 2, "producer_epoch": 0, "base_sequence": 0}
    log._append(batch(2, [(key, b"foo")], attributes=TRANSACTIONAL, **fields), 1)
    log.mark(2, COMMIT)
    log.roll()
    log.round()
    assert (log.last_offsets(), log.offsets()) == ([0, 1, 2, 3], [0, 1, 2, 3])


def test_one_key_at_a_time_comes_to_an_end(log: Log) -> None:  # testPartialSegmentClean
    log.memory = 24 * 2  # takes one key
    log.plain(0, 1, 0, 1, 0)
    log.roll()
    log.clean_to = 2
    left = []
    while not log.round().is_complete:
        left.append(log.offsets())
    assert left == [[1, 2, 3, 4], [2, 3, 4]]
    assert log.offsets() == [3, 4]


def test_offsets_that_are_far_apart_are_mapped(log: Log) -> None:  # testBuildOffsetMapFakeLarge
    log.plain(0)
    log.next_offset = 7_206_178
    log.plain(1)
    log.roll()
    assert log.round().clean_to == 7_206_179
    assert log.offsets() == [0, 7_206_178]


def test_empty_segments_far_apart_become_one(log: Log) -> None:
    # testSegmentGroupingWithSparseOffsetsAndEmptySegments
    wide = 2**31
    for number in range(3):
        log.plain(0)
        log.next_offset = (number + 1) * wide - 1
        log.plain(0)
        log.roll()
    log.round()
    assert log.bases() == [0, wide, 2 * wide, 3 * wide]
    assert [(log.folder / f"{base:020d}.log").stat().st_size > 0 for base in log.bases()] == [
        *(False, False, True, False)
    ]
    log.round(again=True)
    assert log.bases() == [0, 2 * wide, 3 * wide]
    assert log.offsets() == [3 * wide - 1]


def test_the_time_of_a_record_says_nothing_of_a_tombstone(log: Log) -> None:  # testCleanTombstone
    log._append(batch(0, [(b"0", b"0")], times=[NOW + 2 * DAY]), 1)
    log.roll()
    log.round()
    log._append(batch(1, [(b"0", None)], times=[NOW - 2 * DAY]), 1)
    log.roll()
    log.round()
    assert log.offsets() == [1]
    log.plain(1)
    log.roll()
    log.round()
    assert log.offsets() == [1, 2]
    log.round(again=True, later=DAY)
    assert log.offsets() == [2]


def test_undecided_transactions_wait_whatever_the_lag(log: Log) -> None:
    # testUndecidedTransactionalDataNotCleanable
    log.config["min.compaction.lag.ms"] = "3600000"
    log.send(15, 1, 2)
    log.send(15, 3)
    log.roll()
    log.now += 3_600_001
    assert log.cleanable().end_offset == 0
    log._append(marker(3, 15, ABORT, time=log.now), 1)
    log.roll()
    assert log.cleanable().end_offset == 3
    log.now += 3_600_001
    assert log.cleanable().end_offset == 4


@pytest.mark.parametrize(("log_start", "clean_to"), [(2, 0), (None, 3)])
def test_a_log_of_an_active_segment_is_never_dirty(
    log: Log, log_start: int | None, clean_to: int
) -> None:
    # testLogStartOffsetLargerThanActiveSegment..., testDirtyOffsetLargerThanActiveSegment...
    log.plain(0, 1, 2, 3, 4, 5)
    log.log_start, log.clean_to = log_start, clean_to
    found = log.cleanable()
    assert (found.dirty_bytes, found.dirty_ratio) == (0, 0)
    assert not found.is_due(0)
    assert log.round().groups == ()


def cleaned(log: Log, found: Cleanable, offsets: OffsetMap) -> CleanedLog:
    output = log.folder.parent / "output"
    output.mkdir()
    return clean_log(
        log.folder,
        output,
        found,
        LogConfig.from_mapping(log.config),
        offsets=offsets,
        last_records=LastRecords(),
        now_ms=log.now,
    )


class Deleting(OffsetMap):
    """A map that deletes a segment once all keys are in it."""

    def __init__(self, path: Path) -> None:
        super().__init__(24 * 100)
        self._path = path

    def pass_to(self, offset: int) -> None:
        super().pass_to(offset)
        self._path.unlink(missing_ok=True)


@pytest.mark.parametrize("number", [0, 1])
def test_segments_that_are_deleted_meanwhile_end_the_round_and_nothing_changes(
    log: Log, number: int
) -> None:
    # testCleanSegmentsWithConcurrentSegmentDeletion
    for key in (1, 2, 1):
        log.plain(key)
        log.roll()
    gone = LogSegments.of(log.folder)[number].path
    rest = {path: path.read_bytes() for path in log.folder.iterdir() if path != gone}
    with pytest.raises(FileNotFoundError):
        cleaned(log, log.cleanable(), Deleting(gone))
    assert {path: path.read_bytes() for path in log.folder.iterdir()} == rest


def test_what_was_deleted_before_a_round_is_not_missed(log: Log) -> None:
    for key in (1, 2, 1):
        log.plain(key)
        log.roll()
    found = log.cleanable()
    (log.folder / f"{0:020d}.log").unlink()
    result = cleaned(log, found, OffsetMap(24 * 100))
    assert result.clean_to == 3
    assert [one.base_offset for group in result.groups for one in group.sources] == [1, 2]
