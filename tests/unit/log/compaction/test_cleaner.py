"""What stays of a log that is cleaned: the behaviour that Kafka's ``LogCleanerTest`` asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.support.cleaning import ABORT, COMMIT, NOW, CleanableLog, batch, marker
from tests.support.odd_logs import OddRecord
from tests.support.odd_logs import batch as odd_batch

from kafkalog.errors import ChecksumMismatchError, CorruptRecordError
from kafkalog.streaming.log.compaction import batch_filter
from kafkalog.streaming.log.compaction.batch_filter import find_records
from kafkalog.streaming.log.indexes import TxnIndex
from kafkalog.streaming.records.compression import Codec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kafkalog.streaming.log.compaction.batch_filter import Records
    from kafkalog.streaming.records.arrow_buffers import Bytes
    from kafkalog.streaming.records.batch import BatchTable

DAY = 86_400_000
TRANSACTIONAL = 0x10


@pytest.fixture
def log(tmp_path: Path) -> CleanableLog:
    return CleanableLog(tmp_path / "t-0", {"delete.retention.ms": str(DAY)})


def sent(base: int, keys: str, producer: int, *, sequence: int = 0, epoch: int = 0) -> bytes:
    """Encode a batch of a transaction, a record for each letter."""
    return batch(
        base,
        [(key.encode(), str(base).encode()) for key in keys],
        attributes=TRANSACTIONAL,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


def idempotent(base: int, keys: str, producer: int, sequence: int = 0) -> bytes:
    return batch(
        base,
        [(key.encode(), b"v") for key in keys],
        producer_id=producer,
        producer_epoch=0,
        base_sequence=sequence,
    )


def plain(base: int, keys: str, codec: Codec = Codec.NONE) -> bytes:
    return batch(base, [(key.encode(), str(base).encode()) for key in keys], codec=codec)


def test_records_behind_a_count_of_zero_are_not_cleaned_away(log: CleanableLog) -> None:
    odd = odd_batch([OddRecord(b"v", b"a")], count=0)
    log.write([odd, plain(1, "b")], [plain(2, "c")])
    with pytest.raises(CorruptRecordError, match="cannot be cleaned"):
        log.clean()


@pytest.mark.parametrize("codec", Codec)
def test_the_last_record_of_each_key_stays_with_its_offset(log: CleanableLog, codec: Codec) -> None:
    log.write(
        [plain(0, "abc", codec), plain(3, "ab", codec)], [plain(5, "b", codec)], [plain(6, "a")]
    )
    result = log.clean()
    assert (result.clean_to, result.is_complete) == (6, True)
    assert log.records() == {
        2: (b"c", b"0"),
        3: (b"a", b"3"),
        5: (b"b", b"5"),
        6: (b"a", b"6"),
    }
    assert [(one.base_offset, one.last_offset) for one in log.batches()] == [
        (0, 2),
        (3, 4),
        (5, 5),
        (6, 6),
    ]
    assert {one.attributes for one in log.batches()[:3]} == {codec}
    assert log.bases() == [0, 6]


def test_unchanged_batches_are_copied_byte_for_byte(log: CleanableLog) -> None:
    stays = [plain(2, "xy", Codec.GZIP), plain(6, "z")]
    log.write(
        [plain(0, "ab"), stays[0], plain(4, "ab"), stays[1]], [plain(7, "ab")], [plain(9, "q")]
    )
    log.clean()
    assert (log.folder / f"{0:020d}.log").read_bytes() == b"".join(stays) + plain(7, "ab")


def test_records_without_a_key_go(log: CleanableLog) -> None:
    log.write([batch(0, [(None, b"1"), (b"a", b"2"), (None, b"3")])], [batch(3, [(None, b"4")])])
    assert log.clean().keyless == 2
    assert list(log.records()) == [1, 3]


def test_batches_of_which_nothing_stays_are_not_decompressed_again(
    log: CleanableLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def find(data: Bytes, table: BatchTable, *rest: Any, **named: Any) -> Iterator[Records]:
        asked.extend(table.base_offset.tolist())
        return find_records(data, table, *rest, **named)

    monkeypatch.setattr(batch_filter, "find_records", find)
    lz4 = Codec.LZ4
    log.write(
        [plain(0, "ab", lz4), plain(2, "ac", lz4), plain(4, "ab", lz4), idempotent(6, "b", 1)],
        [plain(7, "ab", lz4)],
        [plain(9, "x")],
    )
    log.clean()
    assert asked == [2, 7]
    assert {offset: key for offset, (key, _) in log.records().items()} == {
        3: b"c",
        7: b"a",
        8: b"b",
        9: b"x",
    }
    assert [one.base_offset for one in log.batches()] == [2, 6, 7, 9]


def test_records_without_a_key_are_counted_where_nothing_stays(log: CleanableLog) -> None:
    both = [(None, b"1"), (b"a", b"2")]
    log.write([plain(0, "a"), batch(1, both), plain(3, "a"), batch(4, both)], [plain(6, "a")])
    log.write([plain(7, "q")])
    assert log.clean().keyless == 2
    assert list(log.records()) == [6, 7]


def test_a_record_at_an_offset_outside_of_its_batch_stays(log: CleanableLog) -> None:
    rows = [(b"a", b"1"), (b"z", b"2")]
    strange = batch(10, rows, deltas=[0, 9], last_offset_delta=1)
    log.write([plain(0, "abcdefghij"), strange, plain(12, "abcdefg")], [plain(20, "b" * 9)])
    log.write([plain(29, "q")])
    log.clean()
    assert (b"z", b"2") in log.records().values()


def test_a_rebuilt_batch_has_the_times_of_what_stays(log: CleanableLog) -> None:
    rows = [(key.encode(), b"v") for key in "abca"]
    log.write([batch(0, rows, times=[900, 500, 700, 600])], [plain(4, "q")])
    log.clean()
    (found, _) = log.batches()
    assert (found.base_timestamp, found.max_timestamp) == (500, 700)
    assert [one[3] for one in found.records] == [500, 700, 600]


def test_a_rebuilt_batch_with_append_time_keeps_it(log: CleanableLog) -> None:
    rows = [(b"a", b"1"), (b"b", b"2"), (b"a", b"3")]
    log.write([batch(0, rows, attributes=0x08, max_timestamp=NOW + 9)], [plain(3, "q")])
    log.clean()
    (found, _) = log.batches()
    assert (found.attributes, found.max_timestamp) == (0x08, NOW + 9)
    assert {one[3] for one in found.records} == {NOW + 9}


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_tombstones_stay_until_their_horizon(log: CleanableLog, codec: Codec) -> None:
    log.write(
        [plain(0, "abc"), batch(3, [(b"a", None), (b"d", b"v")], codec=codec, times=[5, 7])],
        [plain(5, "x")],
        [plain(6, "y")],
    )
    log.clean()
    found = next(one for one in log.batches() if one.base_offset == 3)
    assert found.horizon == NOW + DAY
    assert found.records == ((3, b"a", None, 5), (4, b"d", b"v", 7))
    before = (log.folder / f"{0:020d}.log").read_bytes()

    log.now += DAY - 1
    log.clean_to = 0
    log.clean()
    assert (log.folder / f"{0:020d}.log").read_bytes() == before

    log.now += 1
    log.clean_to = 0
    log.clean()
    assert log.records()[4] == (b"d", b"v")
    assert 3 not in log.records()
    found = next(one for one in log.batches() if one.base_offset == 3)
    assert found.horizon == NOW + DAY
    assert found.records == ((4, b"d", b"v", 7),)


def test_a_tombstone_that_is_replaced_goes_at_once(log: CleanableLog) -> None:
    log.write([batch(0, [(b"a", None)]), plain(1, "a")], [plain(2, "q")])
    log.clean()
    assert list(log.records()) == [1, 2]


def test_records_beyond_a_full_map_stay(log: CleanableLog) -> None:
    log.memory = 24 * 4  # takes three keys
    log.write([plain(0, "ab"), plain(2, "cde")], [plain(5, "abcde")], [plain(10, "q")])
    result = log.clean()
    assert (result.clean_to, result.is_complete) == (3, False)
    assert list(log.records()) == list(range(11))
    rounds = 1
    while not log.clean().is_complete:
        rounds += 1
    assert rounds > 2
    assert list(log.records()) == [5, 6, 7, 8, 9, 10]


def test_a_full_map_knows_that_it_passed_batches_without_keys(log: CleanableLog) -> None:
    log.memory = 24 * 4
    log.write([plain(0, "abc"), batch(3, [(None, b"x")]), plain(4, "d")], [plain(5, "q")])
    assert log.clean().clean_to == 4
    assert list(log.records()) == [0, 1, 2, 4, 5]


def test_gaps_before_the_next_segment_are_passed(log: CleanableLog) -> None:
    log.write([plain(0, "ab")], [plain(100, "a")], [plain(500, "q")])
    assert log.clean().clean_to == 500
    assert list(log.records()) == [1, 100, 500]


def test_records_of_aborted_transactions_go_and_count_for_no_key(log: CleanableLog) -> None:
    log.write(
        [plain(0, "ab"), sent(2, "ac", 7), marker(4, 7, ABORT)],
        [sent(5, "b", 8), marker(6, 8, COMMIT)],
        [plain(7, "q")],
    )
    log.clean(expiration_ms=0)
    assert list(log.records()) == [0, 5, 7]


def test_a_marker_stays_until_its_records_and_then_its_horizon_are_gone(log: CleanableLog) -> None:
    log.write(
        [sent(0, "a", 7), marker(1, 7, COMMIT), plain(2, "a")], [plain(3, "x")], [plain(4, "y")]
    )
    log.clean(expiration_ms=0)
    assert [one.base_offset for one in log.batches()] == [1, 2, 3, 4]
    assert log.batches()[0].horizon is None  # its records were met in this round

    log.clean_to = 0
    log.clean(expiration_ms=0)
    assert log.batches()[0].horizon == NOW + DAY
    assert log.batches()[0].records[0][3] == NOW

    log.clean_to, log.now = 0, NOW + DAY
    log.clean(expiration_ms=0)
    assert [one.base_offset for one in log.batches()] == [2, 3, 4]


def test_an_abort_marker_stays_in_the_index_while_its_records_were_met(log: CleanableLog) -> None:
    log.write(
        [sent(0, "a", 7), plain(1, "b"), marker(2, 7, ABORT)], [plain(3, "x")], [plain(4, "y")]
    )
    log.clean(expiration_ms=0)
    assert [one.base_offset for one in log.batches()] == [1, 2, 3, 4]
    with TxnIndex(log.folder / f"{0:020d}.txnindex", 0) as index:
        assert list(index) == [(7, 0, 2, 3)]

    log.clean_to = 0
    log.clean(expiration_ms=0)
    assert not (log.folder / f"{0:020d}.txnindex").exists()
    assert log.batches()[1].horizon == NOW + DAY


def test_an_emptied_batch_of_a_transaction_keeps_its_marker(log: CleanableLog) -> None:
    log.write(
        [sent(0, "a", 7, sequence=5), marker(1, 7, COMMIT), plain(2, "a")],
        [plain(3, "x")],
        [plain(4, "y")],
    )
    log.clean()
    empty, end = log.batches()[:2]
    assert (empty.base_offset, empty.records, empty.sequence) == (0, (), 5)
    assert (end.base_offset, end.horizon) == (1, None)
    log.clean_to, log.now = 0, NOW + 3 * DAY
    log.clean()
    assert [one.base_offset for one in log.batches()] == [0, 1, 2, 3, 4]
    log.clean_to = 0
    log.clean(expiration_ms=0)  # the producer is forgotten: its batch goes, its marker waits
    assert [one.base_offset for one in log.batches()] == [1, 2, 3, 4]
    assert log.batches()[0].horizon is None


def test_the_last_batch_of_a_producer_stays_as_a_header(log: CleanableLog) -> None:
    log.write([idempotent(0, "a", 7), idempotent(1, "b", 7, 1), plain(2, "ab")], [plain(4, "x")])
    log.clean()
    found = log.batches()
    assert [(one.base_offset, one.last_offset, len(one.records)) for one in found] == [
        (1, 1, 0),
        (2, 3, 2),
        (4, 4, 1),
    ]
    assert (found[0].producer, found[0].sequence, found[0].attributes) == (7, 1, 0)
    assert (found[0].base_timestamp, found[0].max_timestamp) == (-1, NOW)
    log.clean_to = 0
    log.clean()
    assert log.batches() == found


def test_the_marker_of_a_producer_without_records_stays(log: CleanableLog) -> None:
    bumped = marker(1, 7, ABORT, epoch=1)
    log.write([sent(0, "a", 7), bumped, plain(2, "b")], [plain(3, "x")], [plain(4, "y")])
    for _ in range(3):
        log.clean()
        log.clean_to, log.now = 0, log.now + DAY
    found = log.batches()
    assert [(one.base_offset, len(one.records)) for one in found[:2]] == [(1, 0), (2, 1)]
    assert found[0].epoch == 1


def test_the_last_batch_of_the_round_stays_as_a_header(log: CleanableLog) -> None:
    log.write([plain(0, "ab"), batch(2, [(None, b"v"), (None, b"w")])], [plain(4, "x")])
    log.clean()
    assert [(one.base_offset, one.last_offset, len(one.records)) for one in log.batches()] == [
        (0, 1, 2),
        (2, 3, 0),
        (4, 4, 1),
    ]


def test_keys_that_look_like_those_of_markers_are_keys(log: CleanableLog) -> None:
    key = b"\0\0\0\1"
    log.write([batch(0, [(key, b"1")]), batch(1, [(key, b"2")])], [plain(2, "x")])
    log.clean()
    assert log.records() == {1: (key, b"2"), 2: (b"x", b"2")}


def test_segments_are_joined_up_to_the_limits(log: CleanableLog) -> None:
    size = len(plain(0, "a"))
    log.config |= {"segment.bytes": str(2 * size)}
    log.write(*([plain(n, "abcdefgh"[n])] for n in range(6)))
    result = log.clean()
    assert [len(group.sources) for group in result.groups] == [2, 2, 1]
    assert log.bases() == [0, 2, 4, 5]


def test_offsets_that_no_segment_spans_are_not_joined(log: CleanableLog) -> None:
    far = 2**31
    log.write(
        [plain(0, "a")],
        [plain(10, "b")],
        [plain(far, "c")],
        [plain(far + 9, "d")],
        [plain(far + 99, "e")],
    )
    log.clean()
    assert log.bases() == [0, far, far + 99]


def test_a_segment_that_is_too_wide_becomes_two(log: CleanableLog) -> None:
    far = 2**31 + 5
    log.write([plain(0, "a"), plain(1, "b"), plain(far, "a")], [plain(far + 9, "x")])
    log.clean()
    assert log.bases() == [0, far, far + 9]
    assert list(log.records()) == [1, far, far + 9]


def test_an_empty_result_is_a_segment_that_keeps_the_first_offset(log: CleanableLog) -> None:
    log.config |= {"segment.bytes": "14"}
    log.write([plain(0, "a")], [plain(1, "a")], [plain(2, "x")])
    log.clean()
    assert log.bases() == [0, 1, 2]
    assert (log.folder / f"{0:020d}.log").stat().st_size == 0


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_records_that_contradict_their_batch_are_not_cleaned_over(
    log: CleanableLog, codec: Codec
) -> None:
    damaged = batch(2, [(b"c", b"v"), (b"d", b"v")], codec=codec, count=3)
    log.write([plain(0, "ab"), damaged], [plain(4, "x")])
    with pytest.raises(CorruptRecordError, match=r"up to offset 3.*cannot be cleaned"):
        log.clean()


def test_damage_is_not_cleaned_over(log: CleanableLog) -> None:
    wrong = bytearray(plain(2, "c"))
    wrong[-1] ^= 1
    log.write([plain(0, "ab"), bytes(wrong)], [plain(3, "x")])
    before = {path.name: path.read_bytes() for path in log.folder.iterdir()}
    with pytest.raises(ChecksumMismatchError, match=r"up to offset 2.*not cleaned"):
        log.clean()
    assert before == {path.name: path.read_bytes() for path in log.folder.iterdir()}


def test_records_that_are_out_of_order_in_their_batch_are_judged_by_their_keys(
    log: CleanableLog,
) -> None:
    rows = [(b"a", b"1"), (b"b", b"2"), (b"a", b"3")]
    log.write([batch(0, rows, deltas=[2, 0, 1], last_offset_delta=2)], [plain(3, "q")])
    log.clean()
    assert log.records() == {
        0: (b"b", b"2"),
        1: (b"a", b"3"),
        2: (b"a", b"1"),
        3: (b"q", b"3"),
    }
