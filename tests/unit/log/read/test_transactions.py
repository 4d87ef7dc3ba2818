"""Reading committed records: real brokers' logs, constructions byte by byte, and a plain model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.corpus import CASES, UnpackedCase
from tests.support.logs import write_segment
from tests.support.transactions import (
    ABORT,
    COMMIT,
    BrokerLog,
    emptied,
    index_bytes,
    marker,
    producer_batch,
    snapshot_bytes,
)

from kafkalog.errors import CorruptRecordError, DataLossError, UnknownTopicOrPartitionError
from kafkalog.model import TopicPartition
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.log.read.transactions import AbortedTransactions, StableOffset
from kafkalog.streaming.log.segment import LogSegment
from kafkalog.streaming.records.columns import ALL_COLUMNS, Columns, RecordDecoder
from kafkalog.streaming.store.log_dirs import LogDirs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

T0 = TopicPartition("t", 0)


def log_of(folder: Path) -> PartitionLog:
    return PartitionLog(folder, T0)


def committed_offsets(folder: Path, start: int, end: int) -> list[int]:
    """Read the offsets of committed records in ``[start, end)``."""
    found: list[int] = []
    with log_of(folder) as log:
        for planned in log.slices(start, end):
            for batch in log.read_slice(
                planned, RecordDecoder(Columns.OFFSET), committed_only=True
            ):
                found += batch.column("offset").to_pylist()
    return found


def stable(folder: Path, high_watermark: int) -> int:
    with log_of(folder) as log:
        return log.last_stable_offset(high_watermark)


# What real brokers wrote


def untouched(_: Path) -> None:
    pass


def without(*suffixes: str) -> Callable[[Path], None]:
    def remove(folder: Path) -> None:
        for suffix in suffixes:
            for path in folder.glob(f"*{suffix}"):
                path.unlink()

    return remove


def torn(folder: Path) -> None:
    for path in folder.glob("*.txnindex"):
        path.write_bytes(path.read_bytes()[:-5])


def of_another_version(folder: Path) -> None:
    for path in folder.glob("*.txnindex"):
        path.write_bytes(b"\0\1" + path.read_bytes()[2:])


def in_part(folder: Path) -> None:
    """Leave the first index and the last snapshot."""
    for path in sorted(folder.glob("*.txnindex"))[1:] + sorted(folder.glob("*.snapshot"))[:-1]:
        path.unlink()


def with_bad_snapshots(folder: Path) -> None:
    for path in folder.glob("*.snapshot"):
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


DAMAGE = [
    untouched,
    without(".txnindex"),
    without(".snapshot"),
    without(".txnindex", ".snapshot"),
    without(".index", ".timeindex", ".txnindex", ".snapshot"),
    torn,
    of_another_version,
    in_part,
    with_bad_snapshots,
]


WITH_TRANSACTIONS = ["p06-transactions", "p09-groups", "p11-live-copy", "p12-killed"]


def case_logs(case: UnpackedCase) -> Iterator[tuple[PartitionLog, dict[str, Any]]]:
    found = LogDirs(case.path.split(",")).partitions()
    for facts in case.partitions:
        place = TopicPartition(facts["topic"], facts["partition"])
        with PartitionLog(found[place].path, place, facts["log_start"]) as log:
            yield log, facts


def committed_rows(log: PartitionLog, end: int) -> Iterator[dict[str, Any]]:
    decoder = RecordDecoder(ALL_COLUMNS | Columns.TIMESTAMP_MS)
    place = log.topic_partition._asdict()
    for whole in log.slices(log.log_start_offset, end):
        for planned in log.split_slice(whole, 3):
            for batch in log.read_slice(planned, decoder, committed_only=True):
                for row in batch.to_pylist():
                    yield row | place | {"timestamp": row["timestampMs"]}


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *((name, untouched) for name in CASES),
        *((name, harm) for name in WITH_TRANSACTIONS for harm in DAMAGE[1:]),
    ],
)
def test_committed_rows_are_those_that_clients_read(
    name: str, damage: Callable[[Path], None], tmp_path: Path
) -> None:
    case = UnpackedCase(name, tmp_path)
    rows: list[dict[str, Any]] = []
    for log, facts in case_logs(case):
        damage(log.directory)
        log.refresh()
        assert log.last_stable_offset(facts["high_watermark"]) == facts["lso"], log
        rows += committed_rows(log, facts["lso"])
    assert case.differences(rows, isolation="read_committed") == []


# Constructions


def test_an_open_transaction_is_invisible(tmp_path: Path) -> None:
    broker = BrokerLog(tmp_path)
    broker.play([("send", 7), ("send", 7)])
    assert stable(tmp_path, 4) == 0
    broker.play([("commit", 7), ("send", 7), ("plain", 8)])
    assert stable(tmp_path, 5) == 5
    assert stable(tmp_path, 9) == 5
    assert committed_offsets(tmp_path, 0, 5) == [0, 1, 2, 3]


def test_a_transaction_whose_marker_is_not_committed_is_open(tmp_path: Path) -> None:
    BrokerLog(tmp_path).play([("plain", 8), ("send", 7), ("commit", 7)])
    assert [stable(tmp_path, end) for end in (2, 4, 5)] == [2, 2, 5]


def test_an_aborted_transaction_between_committed_ones_is_left_out(tmp_path: Path) -> None:
    steps = [("send", 7), ("commit", 7), ("send", 7), ("send", 7), ("abort", 7)]
    BrokerLog(tmp_path).play([*steps, ("send", 7), ("commit", 7)])
    assert committed_offsets(tmp_path, 0, 11) == [0, 1, 8, 9]
    for start in range(11):
        expected = [offset for offset in (0, 1, 8, 9) if offset >= start]
        assert committed_offsets(tmp_path, start, 11) == expected
    assert committed_offsets(tmp_path, 3, 8) == []


def test_an_open_transaction_behind_a_gap_at_the_end_is_not_looked_into(tmp_path: Path) -> None:
    """Compaction may leave no batch with the last offset below the last stable one."""
    batches = producer_batch(0, 2, 8, transactional=False) + producer_batch(5, 2, 7)
    write_segment(tmp_path, 0, batches)
    assert stable(tmp_path, 7) == 5
    assert committed_offsets(tmp_path, 0, 5) == [0, 1]


def test_interleaved_producers_are_told_apart(tmp_path: Path) -> None:
    steps = [("send", 7), ("send", 8), ("send", 7), ("abort", 7), ("send", 8), ("send", 7)]
    BrokerLog(tmp_path).play([*steps, ("commit", 8), ("abort", 7)])
    assert committed_offsets(tmp_path, 0, 13) == [2, 3, 7, 8]


def test_batches_of_the_same_producer_outside_transactions_stay(tmp_path: Path) -> None:
    BrokerLog(tmp_path).play([("send", 7), ("plain", 7), ("send", 7), ("abort", 7), ("plain", 7)])
    assert committed_offsets(tmp_path, 0, 9) == [2, 3, 7, 8]


@pytest.mark.parametrize("keep", ["txnindex", "snapshot", "both", "none"])
def test_markers_may_lie_segments_behind_their_records(keep: str, tmp_path: Path) -> None:
    steps = [("send", 7), ("roll", 0), ("send", 8), ("roll", 0), ("commit", 8), ("roll", 0)]
    steps += [("abort", 7), ("roll", 0), ("send", 7), ("commit", 7)]
    BrokerLog(tmp_path).play(steps)
    for suffix in {"txnindex", "snapshot"} - {keep} if keep != "both" else ():
        without(suffix)(tmp_path)
    assert stable(tmp_path, 9) == 9
    assert committed_offsets(tmp_path, 0, 9) == [2, 3, 6, 7]


def test_only_one_index_of_several_is_missing(tmp_path: Path) -> None:
    steps = [("send", 7), ("send", 8), ("send", 9), ("abort", 9), ("roll", 0), ("abort", 8)]
    BrokerLog(tmp_path).play([*steps, ("roll", 0), ("abort", 7)])
    (tmp_path / f"{7:020d}.txnindex").unlink()
    assert committed_offsets(tmp_path, 0, 9) == []
    (tmp_path / f"{7:020d}.snapshot").unlink()
    assert committed_offsets(tmp_path, 0, 9) == []


def test_batches_that_the_cleaner_emptied_open_no_transaction(tmp_path: Path) -> None:
    """The records of an aborted transaction went first, its marker much later."""
    batches = [
        emptied(producer_batch(0, 2, 7)),
        producer_batch(3, 2, 8),
        marker(5, 8, COMMIT),
        emptied(producer_batch(6, 2, 8)),
        emptied(marker(8, 8, ABORT)),
    ]
    write_segment(tmp_path, 0, b"".join(batches))
    assert stable(tmp_path, 9) == 9
    assert committed_offsets(tmp_path, 0, 9) == [3, 4]


def test_an_emptied_marker_ends_nothing(tmp_path: Path) -> None:
    batches = producer_batch(0, 2, 7) + emptied(marker(2, 7, ABORT)) + producer_batch(3, 1, 8)
    write_segment(tmp_path, 0, batches)
    assert stable(tmp_path, 4) == 0


def test_a_marker_with_a_delete_horizon_is_one(tmp_path: Path) -> None:
    """The cleaner moves the base timestamp, so that the record's delta takes several bytes."""
    mark = bytes.fromhex(
        "00000000000000070000004200000003029581677a00300000000000000000075bcd1500000000075bcd15"
        "00000000000004d20005ffffffff000000012000000008000000000c00000000000900"
    )
    write_segment(tmp_path, 5, producer_batch(5, 2, 1234) + mark + producer_batch(8, 1, 1234))
    assert stable(tmp_path, 9) == 8
    assert committed_offsets(tmp_path, 5, 8) == []


def test_segments_that_the_cleaner_emptied_are_passed(tmp_path: Path) -> None:
    for base in (0, 4, 6):
        write_segment(tmp_path, base, b"")
    write_segment(tmp_path, 8, producer_batch(8, 1, 7) + marker(9, 7, ABORT))
    for base in (10, 11):
        write_segment(tmp_path, base, b"")
    assert stable(tmp_path, 10) == 10
    assert stable(tmp_path, 11) == 11
    assert stable(tmp_path, 9) == 8
    assert committed_offsets(tmp_path, 0, 11) == []


def test_control_records_of_other_types_end_nothing(tmp_path: Path) -> None:
    batches = (
        producer_batch(0, 1, 7) + marker(1, 7, 9) + producer_batch(2, 1, 7, transactional=False)
    )
    write_segment(tmp_path, 0, batches)
    assert stable(tmp_path, 3) == 0


def test_a_marker_without_its_type_is_an_error_with_its_place(tmp_path: Path) -> None:
    path = write_segment(tmp_path, 0, producer_batch(0, 1, 7) + marker(1, 7, ABORT, key=b"\0\0\0"))
    size = len(producer_batch(0, 1, 7))
    with pytest.raises(CorruptRecordError, match=f"{path}: .* position {size}, offset 1: .*type"):
        stable(tmp_path, 2)


def test_a_log_that_ends_inside_a_transaction_is_lost_data_and_not_shown(tmp_path: Path) -> None:
    BrokerLog(tmp_path).play([("plain", 7), ("send", 7)])
    with pytest.raises(DataLossError, match="producer 7 that begins at offset 2 is neither"):
        committed_offsets(tmp_path, 0, 4)


def test_an_index_that_belongs_to_another_file_is_not_believed(tmp_path: Path) -> None:
    """The cleaner dropped the aborted records and the entry, after the log was opened."""
    BrokerLog(tmp_path).play([("send", 7), ("abort", 7), ("plain", 8)])
    with LogSegment(tmp_path, 0) as segment:
        (chunk,) = segment.chunks(0)
        segment.path.rename(tmp_path / "old")
        write_segment(tmp_path, 0, producer_batch(3, 2, 8, transactional=False))
        segment.file(".txnindex").write_bytes(index_bytes((9, 5, 6, 7)))
        mask = AbortedTransactions(tmp_path).mask(segment, chunk.table)
    assert mask.tolist() == [True, False, False]


def test_logs_without_transactions_are_not_looked_into(tmp_path: Path) -> None:
    write_segment(tmp_path, 0, producer_batch(0, 3, 7, transactional=False))
    (tmp_path / f"{0:020d}.txnindex").write_bytes(b"damaged")
    with LogSegment(tmp_path, 0) as segment:
        (chunk,) = segment.chunks(0)
        assert not AbortedTransactions(tmp_path / "gone").mask(segment, chunk.table).any()


# The last stable offset of a log that lives


def test_each_look_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    broker, follower = BrokerLog(tmp_path), StableOffset(tmp_path)
    for step, expected in [
        (("send", 7), 0),
        (("send", 8), 0),
        (("commit", 7), 2),
        (("roll", 0), 2),
        (("abort", 8), 6),
        (("plain", 8), 8),
    ]:
        broker.play([step])
        # What has been read is not read again: it could not be, by now.
        assert follower.find(broker.next_offset) == expected
        assert stable(tmp_path, broker.next_offset) == expected


def test_a_log_that_is_recreated_is_read_from_its_start(tmp_path: Path) -> None:
    follower = StableOffset(tmp_path)
    BrokerLog(tmp_path).play([("send", 7), ("plain", 8)])
    assert follower.find(4) == 0
    BrokerLog(tmp_path).play([("plain", 9), ("plain", 9), ("send", 7)])
    assert follower.find(6) == 4
    assert follower.find(2) == 2


def test_the_newest_usable_snapshot_below_the_high_watermark_counts(tmp_path: Path) -> None:
    BrokerLog(tmp_path).play([("send", 7), ("roll", 0), ("commit", 7), ("roll", 0), ("plain", 8)])
    assert stable(tmp_path, 5) == 5
    # One that says otherwise shows which one is used; above the watermark none is.
    (tmp_path / f"{3:020d}.snapshot").write_bytes(snapshot_bytes({9: 1}))
    (tmp_path / f"{6:020d}.snapshot").write_bytes(snapshot_bytes({9: 0}))
    assert stable(tmp_path, 5) == 1
    (tmp_path / f"{3:020d}.snapshot").write_bytes(b"damaged")
    assert stable(tmp_path, 5) == 5


def test_a_snapshot_from_before_a_cleaning_opens_no_transaction(tmp_path: Path) -> None:
    """A copy that takes a while may have it beside segments that were joined since."""
    cleaned = producer_batch(3, 1, 8) + emptied(producer_batch(4, 2, 7)) + producer_batch(9, 1, 8)
    write_segment(tmp_path, 0, cleaned + marker(10, 8, COMMIT))
    snapshot = tmp_path / f"{6:020d}.snapshot"
    for first in (0, 4, 9):  # removed, emptied, another producer's
        snapshot.write_bytes(snapshot_bytes({7: first}))
        assert stable(tmp_path, 11) == 11
        assert committed_offsets(tmp_path, 0, 11) == [3, 9]
    snapshot.write_bytes(snapshot_bytes({8: 3}))
    assert stable(tmp_path, 10) == 3


def test_the_last_stable_offset_is_not_below_the_log_start(tmp_path: Path) -> None:
    BrokerLog(tmp_path).play([("send", 7), ("plain", 8), ("plain", 8)])
    with PartitionLog(tmp_path, T0, 4) as log:
        assert log.last_stable_offset(6) == 4


def test_a_folder_that_is_gone_is_an_unknown_partition(tmp_path: Path) -> None:
    with pytest.raises(UnknownTopicOrPartitionError):
        stable(tmp_path / "gone", 1)


def test_zeros_and_torn_batches_above_the_high_watermark_do_not_matter(tmp_path: Path) -> None:
    for tail in (bytes(500), producer_batch(3, 1, 7)[:-1]):
        whole = producer_batch(0, 2, 7) + marker(2, 7, COMMIT)
        write_segment(tmp_path, 0, whole + tail)
        assert stable(tmp_path, 3) == 3
        assert committed_offsets(tmp_path, 0, 3) == [0, 1]


# A plain model

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["send", "send", "plain", "commit", "abort", "roll"]), st.integers(0, 3)
    ),
    max_size=25,
)


def plain_model(broker: BrokerLog, high_watermark: int) -> int:
    """Find the last stable offset by replaying from the beginning."""
    opened: dict[int, int] = {}
    with log_of(broker.folder) as log:
        for segment in log.segments:
            for chunk in segment.chunks(0):
                for row in range(len(chunk.table)):
                    batch = chunk.table[row : row + 1]
                    producer, offset = int(batch.producer_id[0]), int(batch.base_offset[0])
                    if offset >= high_watermark:
                        continue
                    if batch.is_control[0]:
                        opened.pop(producer, None)
                    elif batch.is_transactional[0]:
                        opened.setdefault(producer, offset)
    return min([high_watermark, *opened.values()])


@settings(max_examples=120, deadline=None)
@given(STEPS, st.data())
def test_any_log_reads_as_the_model_says(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("log")
    broker = BrokerLog(folder)
    broker.play(steps)
    hints = sorted([*folder.glob("*.txnindex"), *folder.glob("*.snapshot")])
    for path in hints:
        if data.draw(st.booleans(), label=f"without {path.name}"):
            path.unlink()
    high_watermark = data.draw(st.sampled_from(broker.ends))
    end = stable(folder, high_watermark)
    assert end == plain_model(broker, high_watermark)
    start = data.draw(st.integers(0, end))
    expected = [offset for offset in sorted(broker.visible) if start <= offset < end]
    assert committed_offsets(folder, start, end) == expected


@settings(max_examples=80, deadline=None)
@given(STEPS, st.data())
def test_chunks_of_any_size_are_masked_as_the_whole(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("log")
    broker = BrokerLog(folder)
    broker.play(steps)
    if data.draw(st.booleans()):
        without("txnindex", "snapshot")(folder)
    end = plain_model(broker, broker.next_offset)
    with log_of(folder) as log:
        segments = log.segments
        segment = segments[data.draw(st.integers(0, len(segments) - 1))]
        aborted = AbortedTransactions(folder)
        for chunk in segment.chunks(0):
            table = chunk.table[chunk.table.last_offset < end]
            while len(table):
                size = data.draw(st.integers(1, len(table)))
                mask = aborted.mask(segment, table[:size])
                records = ~table[:size].is_control
                seen = [offset in broker.visible for offset in table[:size].base_offset.tolist()]
                assert np.array_equal(~mask[records], np.array(seen)[records])
                table = table[size:]


@pytest.mark.long
@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_bytes_in_hints_give_the_right_rows_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Snapshots are under a checksum; of an index only what contradicts itself can be told."""
    folder = tmp_path_factory.mktemp("log")
    steps = [("send", 7), ("abort", 7), ("send", 8), ("roll", 0), ("abort", 8), ("plain", 7)]
    BrokerLog(folder).play(steps)
    for path in [*folder.glob("*.txnindex"), *folder.glob("*.snapshot")]:
        cut = data.draw(st.integers(0, path.stat().st_size - 1))
        junk = data.draw(st.binary(max_size=40).filter(lambda junk: len(junk) % 34))
        path.write_bytes(path.read_bytes()[: cut - cut % 34] + junk)
    assert stable(folder, 8) == 8
    assert committed_offsets(folder, 0, 8) == [6, 7]
