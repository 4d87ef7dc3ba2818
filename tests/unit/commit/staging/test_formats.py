"""Each message format with each of its codecs, from staged rows to segments and their indexes."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pytest
from tests.support.sinking import STAMP_MS, Writer, rows, values_of

from kafkalog.checkpoints.broker import LeaderEpoch, read_leader_epochs
from kafkalog.checkpoints.commit_state import STAGED_PREFIX
from kafkalog.checkpoints.state_file import load_state
from kafkalog.errors import CommitError, OptionError, RecordTooLargeError, RowError
from kafkalog.model import TimestampType, TopicPartition
from kafkalog.streaming.log.growth import index_segment
from kafkalog.streaming.log.indexes import OFFSET_ENTRY, TIME_ENTRY
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.records.batch import invalid_checksums, scan_batches
from kafkalog.streaming.records.columns import Columns, RecordDecoder
from kafkalog.streaming.records.compression import Codec
from kafkalog.streaming.sink.task_writer import TaskWriter

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from kafkalog.streaming.records.batch import BatchTable

OLD_CODECS: Final = ("none", "gzip", "snappy", "lz4")
MADE: Final = [*itertools.product(("v0", "v1"), OLD_CODECS), ("v2", "none"), ("v2", "lz4")]
START_MS: Final = 1_600_000_000_000
COUNT: Final = 300


def _batch(batch_id: int) -> pa.RecordBatch:
    numbers = range(batch_id * COUNT, (batch_id + 1) * COUNT)
    return rows(
        [f"value {number} " * (number % 17) for number in numbers],
        keys=[f"key {number % 50}" if number % 7 else None for number in numbers],
        # Not in order, so that the largest timestamp is not always the last one.
        timestamps=[START_MS + 1000 * (number ^ 21) for number in numbers],
    )


def _writer(folder: Path, message_format: str, codec: str, **options: str) -> Writer:
    small = {"segment__bytes": "15000", "index__interval__bytes": "500", "numPartitions": "1"}
    return Writer(
        folder,
        topic="t",
        message__format=message_format,
        compression__type=codec,
        **(small | options),
    )


def _segments(folder: Path) -> list[tuple[int, BatchTable, Path]]:
    """Give base offset, batches and path of each segment; all batches must be valid."""
    found = []
    for path in sorted((folder / "t-0").glob("*.log")):
        data = np.fromfile(path, np.uint8)
        scan = scan_batches(data)
        assert scan.consumed == len(data)
        assert not invalid_checksums(data, scan.table).any()
        found.append((int(path.stem), scan.table, path))
    return found


def _records(folder: Path, columns: Columns) -> dict[str, list[Any]]:
    with PartitionLog(folder / "t-0", TopicPartition("t", 0)) as log:
        end = log.log_end_offset(verify_from=0)
        found: dict[str, list[Any]] = {}
        for part in log.slices(log.log_start_offset, end):
            for batch in log.read_slice(part, RecordDecoder(columns), committed_end=end):
                for name in batch.schema.names:
                    found.setdefault(name, []).extend(batch.column(name).to_pylist())
    return found


@pytest.mark.parametrize(("message_format", "codec"), MADE)
def test_rows_are_written_in_the_format_and_codec_of_their_topic(
    message_format: str, codec: str, tmp_path: Path
) -> None:
    writer = _writer(tmp_path, message_format, codec)
    for batch_id in range(3):
        writer.write(batch_id, _batch(batch_id))
    tables = [table for _, table, _ in _segments(tmp_path)]
    assert len(tables) > 1
    assert {magic for table in tables for magic in table.magic} == {int(message_format[1])}
    assert {kind for table in tables for kind in table.codec} == {Codec.from_name(codec)}
    expected = [value for batch_id in range(3) for value in _batch(batch_id)["value"].to_pylist()]
    assert values_of([tmp_path], "t") == {0: expected}
    kept = _records(tmp_path, Columns.KEY | Columns.TIMESTAMP | Columns.TIMESTAMP_TYPE)
    times = [time for batch_id in range(3) for time in _batch(batch_id)["timestamp"].to_pylist()]
    shown = [-1 if message_format == "v0" else time for time in times]
    assert [round(time.timestamp() * 1000) for time in kept["timestamp"]] == shown
    assert set(kept["timestampType"]) == {-1 if message_format == "v0" else 0}
    assert kept["key"] == [
        key and key.encode() for batch_id in range(3) for key in _batch(batch_id)["key"].to_pylist()
    ]
    assert not list(tmp_path.glob(f"{STAGED_PREFIX}*"))


@pytest.mark.parametrize(("message_format", "codec"), MADE)
@pytest.mark.parametrize("interval", [0, 500])
def test_indexes_name_batches_and_are_as_dense_as_was_asked_for(
    message_format: str, codec: str, interval: int, tmp_path: Path
) -> None:
    writer = _writer(tmp_path, message_format, codec, index__interval__bytes=str(interval))
    for batch_id in range(3):
        writer.write(batch_id, _batch(batch_id))
    for base, table, path in _segments(tmp_path):
        ends = dict(zip(table.position.tolist(), table.last_offset.tolist(), strict=True))
        entries = np.fromfile(path.with_suffix(".index"), OFFSET_ENTRY)
        assert [ends[position] for position in entries["position"].tolist()] == [
            base + offset for offset in entries["offset"].tolist()
        ]
        rebuilt = index_segment(base, [table], interval)
        assert path.with_suffix(".index").read_bytes() == rebuilt.index_entries
        times = np.fromfile(path.with_suffix(".timeindex"), TIME_ENTRY)
        assert times.tobytes() == rebuilt.time_index_entries
        _check_times(base, table, times)


def _check_times(base: int, table: BatchTable, entries: np.ndarray[Any, Any]) -> None:
    """Each entry is the largest timestamp up to its offset, which is that of its batch."""
    running = np.maximum.accumulate(table.max_timestamp)
    for timestamp, offset in entries.tolist():
        slot = int(np.flatnonzero(table.last_offset == base + offset)[0])
        assert (timestamp, timestamp) == (table.max_timestamp[slot], running[slot])
    if running[-1] >= 0:
        assert entries["timestamp"][-1] == running[-1]
    else:
        assert not len(entries)


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_log_append_time_is_stamped_in_v1_and_means_nothing_in_v0(
    codec: str, tmp_path: Path
) -> None:
    stamped = {"message__timestamp__type": "LogAppendTime"}
    for message_format, expected in (("v1", (STAMP_MS, 1)), ("v0", (-1, -1))):
        folder = tmp_path / message_format
        _writer(folder, message_format, codec, **stamped).write(0, _batch(0))
        found = _records(folder, Columns.TIMESTAMP | Columns.TIMESTAMP_TYPE)
        times = {round(time.timestamp() * 1000) for time in found["timestamp"]}
        assert (times, set(found["timestampType"])) == ({expected[0]}, {expected[1]})
    assert TimestampType.LOG_APPEND_TIME == 1


@pytest.mark.parametrize("message_format", ["v0", "v1"])
def test_headers_are_refused_before_v2_naming_topic_and_option(
    message_format: str, tmp_path: Path
) -> None:
    writer = _writer(tmp_path, message_format, "none")
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    batch = pa.RecordBatch.from_pydict(
        {
            "value": pa.array(["a", "b"]),
            "headers": pa.array([None, [{"key": "h", "value": b"x"}]], kind),
        }
    )
    with pytest.raises(
        RowError, match=rf"t-0: row 1 has headers, which message\.format={message_format}"
    ):
        writer.stage(0, batch)
    assert not list(tmp_path.glob(f"{STAGED_PREFIX}*"))
    writer.write(0, batch.slice(0, 1))
    assert values_of([tmp_path], "t") == {0: ["a"]}


def test_the_format_persists_with_the_topic_until_another_is_given(tmp_path: Path) -> None:
    Writer(tmp_path, topic="t", message__format="v0", compression__type="lz4").write(0, rows(["a"]))
    Writer(tmp_path, topic="t").write(1, rows(["b"]))
    Writer(tmp_path, topic="t", message__format="v1").write(2, rows(["c"]))
    Writer(tmp_path, topic="t", message__format="v2").write(3, rows(["d"]))
    ((_, table, _),) = _segments(tmp_path)
    assert table.magic.tolist() == [0, 0, 1, 2]
    assert set(table.codec.tolist()) == {Codec.LZ4}
    assert values_of([tmp_path], "t") == {0: ["a", "b", "c", "d"]}
    state = load_state(tmp_path)
    assert state is not None
    (topic,) = state.topics.values()
    assert topic.settings["message.format"] == "v2"


def test_leader_epochs_begin_with_the_first_batch_that_has_one(tmp_path: Path) -> None:
    Writer(tmp_path, topic="t", message__format="v1").write(0, rows(["a", "b"]))
    assert read_leader_epochs(tmp_path / "t-0") == []
    Writer(tmp_path, topic="t", message__format="v2").write(1, rows(["c"]))
    assert read_leader_epochs(tmp_path / "t-0") == [LeaderEpoch(0, 2)]
    ((_, table, _),) = _segments(tmp_path)
    assert table.leader_epoch.tolist() == [-1, -1, 0]


def test_settings_that_do_not_go_with_those_given_before_are_refused(tmp_path: Path) -> None:
    Writer(tmp_path, topic="t", message__format="v1").write(0, rows(["a"]))
    with pytest.raises(OptionError, match=r"topic 't': compression\.type is zstd"):
        Writer(tmp_path, topic="t", compression__type="zstd").stage(1, rows(["b"]))


@pytest.mark.parametrize(("message_format", "codec"), MADE)
def test_a_record_too_large_is_refused_with_topic_key_and_size(
    message_format: str, codec: str, tmp_path: Path
) -> None:
    writer = _writer(tmp_path, message_format, codec, max__message__bytes="2000")
    noise = np.random.default_rng(1).bytes(3000)
    with pytest.raises(RecordTooLargeError) as raised:
        writer.stage(0, rows([b"small", noise], keys=[b"k", b"the large one"]))
    message = str(raised.value)
    assert message.startswith("t-0: the record with key b'the large one' is too large: a record")
    assert "more than 2000 bytes, which max.message.bytes allows" in message
    assert re.search(r"makes a (message|batch) of 3\d{3} bytes", message)
    assert not list(tmp_path.glob(f"{STAGED_PREFIX}*"))


@pytest.mark.parametrize(
    ("message_format", "codec"), [("v0", "gzip"), ("v0", "none"), ("v1", "none"), ("v1", "lz4")]
)
@pytest.mark.parametrize("position", [3, 9, 40, -1])
def test_staged_messages_that_have_changed_or_are_gone_are_not_appended(
    message_format: str, codec: str, position: int, tmp_path: Path
) -> None:
    writer = _writer(tmp_path, message_format, codec)
    runs = writer.stage(0, _batch(0))
    (path,) = tmp_path.glob(f"{STAGED_PREFIX}*")
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)
    with pytest.raises(CommitError, match=r"bytes 0 to \d+ are not what"):
        writer.commit(0, runs)
    path.unlink()
    with pytest.raises(CommitError, match="is gone"):
        writer.commit(0, runs)
    assert values_of([tmp_path], "t") == {}


def test_many_plain_messages_are_reported_in_few_rows_and_short_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "kafkalog.streaming.commit.staging.staged_files.LONGEST_MESSAGE_RUN", 1_000_000
    )
    writer = Writer(tmp_path, topic="t", message__format="v1")
    values = [f"{number:0100}" for number in range(30_000)]
    task = TaskWriter(writer.plan(), writer.identity(0))
    runs = task.write([rows(values[start : start + 5000]) for start in range(0, 30_000, 5000)]).runs
    assert sum(run.records for run in runs) == 30_000
    assert sum(len(run.batches) for run in runs) < 30_000 * 134 // 5000
    assert 2 <= len(runs) <= 4
    writer.commit(0, runs)
    assert values_of([tmp_path], "t") == {0: values}
