"""``preserveOffsets``: rows land at the offsets that they bring along, or nowhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support.reading import read_batch
from tests.support.sinking import Writer, adopt_small_files, rows

from kafkalog.checkpoints.commit_state import STAGED_PREFIX
from kafkalog.checkpoints.committed import load_committed
from kafkalog.errors import CommitError, RecordTooLargeError, RowError
from kafkalog.model import MAX_OFFSET, TopicPartition
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.records.batch import scan_batches
from kafkalog.streaming.records.columns import Columns, RecordDecoder
from kafkalog.streaming.store.log_set import LogSet

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FORMATS = [
    ("v0", "none"),
    ("v0", "gzip"),
    ("v1", "none"),
    ("v1", "lz4"),
    ("v2", "none"),
    ("v2", "lz4"),
]


def at(offsets: Sequence[int | None], **columns: Any) -> pa.RecordBatch:
    """Make rows that are to keep these offsets; a row's value is its offset."""
    made = rows([f"{offset}" for offset in offsets], **columns)
    return made.append_column("offset", pa.array(offsets, pa.int64()))


def keeping(folder: Path, **options: str) -> Writer:
    return Writer(folder, **({"topic": "t", "preserveOffsets": "true"} | options))


def offsets_of(folder: Path, partition: int = 0) -> list[int]:
    """Read a partition from its log start to its committed end; values must be the offsets."""
    found: list[int] = []
    key = TopicPartition("t", partition)
    (topic,) = load_committed([folder]).state.topics.values()  # type: ignore[union-attr]
    end = topic.partitions[partition].high_watermark
    decoder = RecordDecoder(Columns.OFFSET | Columns.VALUE)
    with PartitionLog(folder / f"t-{partition}", key) as log:
        assert log.log_end_offset(verify_from=0) == end
        for part in log.slices(log.log_start_offset, end):
            for batch in log.read_slice(part, decoder, committed_end=end):
                found += batch.column("offset").to_pylist()
                values = [int(value) for value in batch.column("value").to_pylist()]
                assert values == batch.column("offset").to_pylist()
    return found


@pytest.mark.parametrize(("message_format", "codec"), FORMATS)
def test_offsets_are_kept_with_their_holes_in_every_format(
    message_format: str, codec: str, tmp_path: Path
) -> None:
    writer = keeping(
        tmp_path,
        message__format=message_format,
        compression__type=codec,
        segment__bytes="6000",
        index__interval__bytes="300",
    )
    generator = np.random.default_rng(7)
    kept = np.unique(generator.integers(100, 5000, 900)).tolist()
    for batch_id, part in enumerate((kept[:300], kept[300:310], kept[310:])):
        writer.write(batch_id, at(part))
    assert offsets_of(tmp_path) == kept
    assert len(list((tmp_path / "t-0").glob("*.log"))) > 1
    with PartitionLog(tmp_path / "t-0", TopicPartition("t", 0)) as log:
        assert log.log_start_offset == kept[0]
    assert not list(tmp_path.glob(f"{STAGED_PREFIX}*"))


def test_runs_of_several_tasks_are_sorted_by_their_first_offsets(tmp_path: Path) -> None:
    writer = keeping(tmp_path, numPartitions="2")

    def of_first(*offsets: int) -> pa.RecordBatch:
        return at(offsets, partitions=[0] * len(offsets))

    of_second = at([7, 9, 70], partitions=[1, 1, 1])
    writer.write(0, of_first(*range(50, 60)), of_second, of_first(*range(10)), of_first(20, 49))
    assert offsets_of(tmp_path) == [*range(10), 20, 49, *range(50, 60)]
    assert offsets_of(tmp_path, 1) == [7, 9, 70]


@pytest.mark.parametrize("message_format", ["v1", "v2"])
@pytest.mark.parametrize("setting", ["CreateTime", "LogAppendTime"])
def test_records_keep_their_timestamp_types_whatever_the_setting_of_the_topic_is(
    message_format: str, setting: str, tmp_path: Path
) -> None:
    writer = keeping(tmp_path, message__format=message_format, message__timestamp__type=setting)
    stamps = [5, 9, 7, 7, 7, 8, 3, 4, 4, 4]
    types = [0, 0, 1, 1, 1, 1, 0, -1, None, 1]
    batch = at([*range(3, 13)], timestamps=stamps)
    batch = batch.append_column("timestampType", pa.array(types, pa.int32()))
    writer.write(0, batch.slice(0, 4), batch.slice(4))
    found = read_batch(path=str(tmp_path), subscribe="t")
    kept = [(row["offset"], row["timestamp"], row["timestampType"]) for row in found]
    assert kept == [
        (offset, stamp, max(kind or 0, 0))
        for offset, stamp, kind in zip(range(3, 13), stamps, types, strict=True)
    ]


def refused(writer: Writer, batch_id: int, *tasks: pa.RecordBatch) -> str:
    """Commit what must be refused, give the message, and see that nothing is left of it."""
    with pytest.raises(RowError) as raised:
        writer.write(batch_id, *tasks)
    return str(raised.value)


def test_runs_that_overlap_are_refused_with_the_way_out(tmp_path: Path) -> None:
    writer = keeping(tmp_path)
    message = refused(writer, 0, at([*range(100)]), at([*range(90, 110)]))
    assert message.startswith(
        "t-0: rows of two tasks overlap, one has offsets 0 to 99, another begins at 90."
    )
    assert 'df.repartition("topic", "partition").sortWithinPartitions(' in message
    assert not (tmp_path / "t-0").exists()
    writer.write(0, at([*range(90)]), at([*range(90, 110)]))
    assert offsets_of(tmp_path) == [*range(110)]


def test_rows_of_a_task_that_do_not_ascend_are_refused_with_the_way_out(tmp_path: Path) -> None:
    for offsets in ([5, 3], [5, 5]):
        message = refused(keeping(tmp_path), 0, at([1, *offsets]))
        assert message.startswith(
            f"t-0: a row is to keep offset {offsets[1]} and comes after one with offset 5."
        )
        assert "sortWithinPartitions" in message
    assert not list(tmp_path.glob(f"{STAGED_PREFIX}*"))


def test_order_is_held_from_batch_to_batch_of_a_task(tmp_path: Path) -> None:
    writer = keeping(tmp_path, max__message__bytes="200")
    message = refused(writer, 0, at([*range(500), 100]))
    assert "keep offset 100 and comes after one with offset 499" in message


def test_offsets_below_the_end_of_the_log_are_refused(tmp_path: Path) -> None:
    writer = keeping(tmp_path)
    writer.write(0, at([3, 8]))
    message = refused(writer, 1, at([8, 12]))
    assert "keep offsets from 8 on, but the log ends at offset 9" in message
    writer.write(1, at([9, 12]))
    assert offsets_of(tmp_path) == [3, 8, 9, 12]


@pytest.mark.parametrize(
    ("offsets", "reason"),
    [
        ([1, None], "row 1 has null in column 'offset'"),
        ([-4], "t-0: a row is to keep offset -4: offsets are not negative"),
    ],
)
def test_offsets_that_are_none_are_refused(
    offsets: list[int | None], reason: str, tmp_path: Path
) -> None:
    assert reason in refused(keeping(tmp_path), 0, at(offsets))


def test_the_column_is_needed_and_of_type_bigint(tmp_path: Path) -> None:
    assert "there is no column 'offset' of type bigint" in refused(
        keeping(tmp_path), 0, rows(["a"])
    )
    narrow = rows(["a"]).append_column("offset", pa.array([1], pa.int32()))
    assert "column 'offset' has the type int" in refused(keeping(tmp_path), 0, narrow)


def test_without_the_option_a_column_offset_means_nothing(tmp_path: Path) -> None:
    Writer(tmp_path, topic="t").write(0, rows(["0"]).append_column("offset", pa.array(["x"])))
    assert offsets_of(tmp_path) == [0]


@pytest.mark.parametrize(("message_format", "codec"), FORMATS)
def test_a_batch_spans_no_more_offsets_than_an_index_can_hold(
    message_format: str, codec: str, tmp_path: Path
) -> None:
    writer = keeping(tmp_path, message__format=message_format, compression__type=codec)
    kept = [0, 2**31 - 1, 2**31, 2**33, 2**33 + 2**31, 2**62]
    writer.write(0, at(kept))
    assert offsets_of(tmp_path) == kept
    bases = sorted(int(path.stem) for path in (tmp_path / "t-0").glob("*.log"))
    assert bases[:2] == [0, 2**31]
    for base in bases:
        data = np.fromfile(tmp_path / "t-0" / f"{base:020d}.log", np.uint8)
        assert (scan_batches(data).table.last_offset - base <= 2**31 - 1).all()


def test_offsets_are_kept_behind_rows_that_kept_none(tmp_path: Path) -> None:
    Writer(tmp_path, topic="t").write(0, rows(["0", "1"]))
    keeping(tmp_path).write(1, at([2, 40]))
    Writer(tmp_path, topic="t").write(2, rows(["41"]))
    assert offsets_of(tmp_path) == [0, 1, 2, 40, 41]


def test_large_files_with_offsets_of_their_own_become_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adopt_small_files(monkeypatch)
    writer = keeping(tmp_path, segment__bytes="3000")
    kept = [*range(0, 400, 2)]
    writer.write(0, at(kept[:100]), at(kept[100:]))
    assert offsets_of(tmp_path) == kept


def test_offsets_end_before_they_could_not_be_counted_any_more(tmp_path: Path) -> None:
    with pytest.raises(RowError, match="t-0: a row is to keep offset 9223372036854775807"):
        keeping(tmp_path).write(0, at([7, MAX_OFFSET]))
    keeping(tmp_path).write(0, at([MAX_OFFSET - 2]))
    with pytest.raises(CommitError, match="t-0: 2 records do not fit"):
        Writer(tmp_path, topic="t").write(1, rows(["a", "b"]))
    Writer(tmp_path, topic="t").write(1, rows([f"{MAX_OFFSET - 1}"]))
    with pytest.raises(CommitError, match="t-0: 1 records do not fit"):
        Writer(tmp_path, topic="t").write(2, rows(["a"]))
    assert offsets_of(tmp_path) == [MAX_OFFSET - 2, MAX_OFFSET - 1]


class PowerCutError(BaseException):
    """Ends a commit without letting it clear up, as a kill would."""


@pytest.mark.parametrize("adopts", [False, True])
@pytest.mark.parametrize(("message_format", "codec"), FORMATS)
def test_a_commit_that_was_cut_off_is_rolled_back(
    message_format: str,
    codec: str,
    adopts: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise PowerCutError

    if adopts:
        adopt_small_files(monkeypatch)
    options = {"message__format": message_format, "compression__type": codec}
    writer = keeping(tmp_path, segment__bytes="5000", **options)
    writer.write(0, at([4, 6]))
    tasks = [at([*range(200, 400, 3)]), at([*range(10, 200, 3)])]
    with monkeypatch.context() as patch:
        patch.setattr(LogSet, "publish", fail)
        with pytest.raises(PowerCutError):
            writer.write(1, *tasks)
    Writer(tmp_path, name="another", topic="u").write(0, rows(["x"]))
    with PartitionLog(tmp_path / "t-0", TopicPartition("t", 0)) as log:
        assert log.log_end_offset(verify_from=0) == 7
    writer.write(1, *tasks)
    with PartitionLog(tmp_path / "t-0", TopicPartition("t", 0)) as log:
        assert log.log_end_offset(verify_from=0) == 399


def test_a_record_too_large_names_its_key_and_leaves_nothing(tmp_path: Path) -> None:
    writer = keeping(tmp_path, max__message__bytes="1000")
    large = rows(["x" * 2000], keys=["k"]).append_column("offset", pa.array([5], pa.int64()))
    with pytest.raises(RecordTooLargeError, match="t-0: the record with key 'k' is too large"):
        writer.write(0, large)
    assert not (tmp_path / "t-0").exists()
