from __future__ import annotations

import pickle
import shutil
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from tests.support.counted_work import traced_peak
from tests.support.sinking import STAMP_MS, Writer, rows, values_of

import kafkalog
from kafkalog.errors import (
    InvalidTopicError,
    LogDirectoryError,
    RecordTooLargeError,
    RowError,
)
from kafkalog.streaming.records.batch import scan_batches
from kafkalog.streaming.sink import task_writer
from kafkalog.streaming.sink.task_writer import TaskWriter
from kafkalog.streaming.sink.write_options import WritePlan
from kafkalog.streaming.store.identity import BatchIdentity

if TYPE_CHECKING:
    from pathlib import Path


def staged_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob(".kafkalog.staged.*"))


def test_small_runs_of_one_attempt_share_one_file(tmp_path: Path) -> None:
    runs = Writer(tmp_path, numPartitions="4").stage(
        0, rows(["a"] * 8, topics=["x", "y"] * 4, partitions=[0, 1, 2, 3] * 2)
    )
    assert len(runs) == 4
    assert len({run.file for run in runs}) == 1
    assert [run.position for run in runs] == np.cumsum([0] + [r.size for r in runs[:-1]]).tolist()
    assert staged_bytes(tmp_path) == sum(run.size for run in runs)


def test_the_name_of_a_staged_file_holds_hashes_and_numbers_only(tmp_path: Path) -> None:
    writer = Writer(tmp_path, name="../../" + "x" * 300, topic="t")
    (run,) = writer.stage(7, rows(["a"]))
    assert run.file.startswith(writer.identity(7).staged_prefix)
    assert (tmp_path / run.file).is_file()


def test_what_a_task_reports_is_small_and_can_be_sent(tmp_path: Path) -> None:
    plan = Writer(tmp_path, topic="t").plan()
    values = ["x" * 1000] * 10_000
    output = TaskWriter(plan, BatchIdentity("query:q", 0)).write([rows(values)])
    sent = pickle.dumps(output)
    assert pickle.loads(sent) == output
    assert len(sent) < 20_000
    assert sum(run.records for run in output.runs) == 10_000


def test_a_file_that_grows_large_is_continued_in_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "kafkalog.streaming.commit.staging.staged_files.LARGEST_FILE_BYTES", 3_000_000
    )
    monkeypatch.setattr("kafkalog.streaming.commit.staging.staged_files.FIRST_OWN_BYTES", 1 << 30)
    writer = Writer(tmp_path, topic="t")
    batches = [rows(["x" * 1000] * 1000)] * 8
    runs = TaskWriter(writer.plan(), writer.identity(0)).write(batches).runs
    assert len({run.file for run in runs}) > 2
    assert max(path.stat().st_size for path in tmp_path.glob(".kafkalog.staged.*")) <= 3_000_000
    writer.commit(0, runs)
    assert len(values_of([tmp_path], "t")[0]) == 8000


@pytest.mark.parametrize("values", [1100, 900])
def test_a_new_partition_with_much_to_write_begins_with_a_file_of_its_own(
    tmp_path: Path, values: int
) -> None:
    writer = Writer(tmp_path, topic="t", numPartitions="2")
    batch = rows(["x" * 1000] * values + ["y"], partitions=[0] * values + [1])
    runs = TaskWriter(writer.plan(), writer.identity(0)).write([batch]).runs
    assert [run.whole_file for run in runs] == ([True, True] if values > 1050 else [False, False])
    writer.commit(0, runs)
    runs = TaskWriter(writer.plan(), writer.identity(1)).write([batch]).runs
    assert not any(run.whole_file for run in runs)  # the partitions are there by now
    writer.commit(1, runs)
    assert values_of([tmp_path], "t") == {0: ["x" * 1000] * 2 * values, 1: ["y"] * 2}


@pytest.fixture
def grows_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let partitions go on in files of their own after 100 kB."""
    monkeypatch.setattr("kafkalog.streaming.commit.staging.staged_files.OWN_FILE_BYTES", 100_000)
    monkeypatch.setattr("kafkalog.streaming.commit.staging.staged_files.SMALLEST_OWN_FILE_BYTES", 0)
    monkeypatch.setattr("kafkalog.streaming.commit.staging.staged_files.FIRST_OWN_BYTES", 1 << 30)


@pytest.mark.usefixtures("grows_early")
def test_a_partition_that_grows_large_goes_on_in_files_of_its_own_as_large_as_a_segment(
    tmp_path: Path,
) -> None:
    writer = Writer(tmp_path, topic="t", numPartitions="3", segment__bytes="1000000")
    batch = rows(["x" * 1000] * 1000 + ["y"], partitions=[2] * 1000 + [0])
    runs = TaskWriter(writer.plan(), writer.identity(0)).write([batch] * 4).runs
    own = [run for run in runs if run.whole_file]
    assert {run.topic_partition.partition for run in own} == {2}
    assert len({run.file for run in own}) == len(own) >= 3
    assert all(run.position == 0 and run.size <= 1_000_000 for run in own)
    assert all((tmp_path / run.file).stat().st_size == run.size for run in own)
    writer.commit(0, runs)
    assert values_of([tmp_path], "t") == {0: ["y"] * 4, 1: [], 2: ["x" * 1000] * 4000}


@pytest.mark.usefixtures("grows_early")
def test_a_file_of_its_own_lies_in_its_partitions_log_directory(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    writer = Writer(*folders, topic="t", numPartitions="2")
    writer.write(0, rows(["here"]))
    living = {int(path.name[-1]): path.parent for path in tmp_path.glob("*/t-*")}
    assert set(living.values()) == set(folders)
    batch = rows(["x" * 1000] * 2000, partitions=[0, 1] * 1000)
    runs = TaskWriter(writer.plan(), writer.identity(1)).write([batch] * 2).runs
    for run in runs:
        if run.whole_file:
            assert (living[run.topic_partition.partition] / run.file).is_file()
    assert {run.directory for run in runs if run.whole_file} == {0, 1}


def test_memory_keeps_to_its_budget_over_many_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_writer, "BUDGET_BYTES", 200_000)
    writer = Writer(tmp_path, topic="t", numPartitions="100")
    plan = writer.plan()
    task = TaskWriter(plan, writer.identity(0))
    batch = rows(["x" * 100] * 2000, partitions=list(range(100)) * 20)
    held = []

    def batches() -> object:
        for _ in range(5):
            held.append(sum(each.open_bytes for each in task._open_partitions()))
            yield batch

    output = task.write(batches())
    assert max(held) <= 200_000
    assert sum(run.records for run in output.runs) == 10_000
    # Records of one partition are in their order all the same, and batches not too small.
    assert len(output.runs) < 1000


def test_rows_keep_their_order_within_a_partition(tmp_path: Path) -> None:
    writer = Writer(tmp_path, numPartitions="3")
    count = 5000
    generator = np.random.default_rng(7)
    topics = generator.integers(0, 4, count)
    partitions = generator.integers(0, 3, count)
    values = [f"{number}" for number in range(count)]
    columns = {"topics": [f"t{n}" for n in topics], "partitions": partitions.tolist()}
    writer.write(0, rows(values, **columns))
    for topic in range(4):
        expected = {
            partition: [
                values[n] for n in np.flatnonzero((topics == topic) & (partitions == partition))
            ]
            for partition in range(3)
        }
        assert values_of([tmp_path], f"t{topic}") == expected


def test_rows_without_a_key_stay_on_a_partition_for_a_stretch(tmp_path: Path) -> None:
    writer = Writer(tmp_path, topic="t", numPartitions="4")
    writer.write(0, rows(["x" * 1000] * 100))
    counts = [len(values) for values in values_of([tmp_path], "t").values()]
    # 16384 bytes are 17 records of 1007: 17 each in turn, from partition 0 on.
    assert counts == [17 + 17, 17 + 15, 17, 17]


def test_large_rows_without_a_key_are_spread_over_all_partitions(tmp_path: Path) -> None:
    writer = Writer(tmp_path, topic="t", numPartitions="2")
    writer.write(0, rows(["x" * 40_000] * 10))
    assert [len(values) for values in values_of([tmp_path], "t").values()] == [5, 5]


def test_tasks_start_on_different_partitions(tmp_path: Path) -> None:
    writer = Writer(tmp_path, topic="t", numPartitions="3")
    writer.write(0, rows(["a"]), rows(["b"]), rows(["c"]))
    assert values_of([tmp_path], "t") == {0: ["a"], 1: ["b"], 2: ["c"]}


def test_small_batches_do_not_all_go_to_one_partition(tmp_path: Path) -> None:
    writer = Writer(tmp_path, topic="t", numPartitions="3")
    for batch_id in range(3):
        writer.write(batch_id, rows([f"{batch_id}"]))
    assert values_of([tmp_path], "t") == {0: ["0"], 1: ["1"], 2: ["2"]}


def test_round_robin_takes_turns_whatever_the_key(tmp_path: Path) -> None:
    writer = Writer(tmp_path, topic="t", numPartitions="3", partitioner="round_robin")
    writer.write(0, rows(list("abcdefg"), keys=["same"] * 7))
    assert values_of([tmp_path], "t") == {0: list("adg"), 1: list("be"), 2: list("cf")}


def test_a_named_partition_comes_before_the_key_and_null_names_none(tmp_path: Path) -> None:
    writer = Writer(tmp_path, topic="t", numPartitions="3")
    # The hash of "21" puts it on partition 0.
    assert (-973932308 & 0x7FFFFFFF) % 3 == 0
    writer.write(0, rows(["a", "b"], keys=["21", "21"], partitions=[1, None]))
    assert values_of([tmp_path], "t") == {0: ["b"], 1: ["a"], 2: []}


def test_the_option_topic_comes_before_the_column_which_is_not_even_looked_at(
    tmp_path: Path,
) -> None:
    batch = rows(["a"]).append_column("topic", pa.array([7]))
    Writer(tmp_path, topic="t").write(0, batch)
    assert values_of([tmp_path], "t") == {0: ["a"]}


def test_large_arrow_types_and_other_columns_are_taken(tmp_path: Path) -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "Value": pa.array([1]),
            "value": pa.array([b"a"], pa.large_binary()),
            "key": pa.array(["k"], pa.large_string()),
            "topic": pa.array(["t"], pa.large_string()),
        }
    )
    Writer(tmp_path).write(0, batch)
    assert values_of([tmp_path], "t") == {0: ["a"]}


def max_timestamps(folder: Path) -> list[int]:
    data = np.concatenate(
        [np.frombuffer(path.read_bytes(), np.uint8) for path in sorted(folder.glob("*.log"))]
    )
    table = scan_batches(data).table
    assert not table.is_log_append_time.any() or table.is_log_append_time.all()
    return table.max_timestamp.tolist()


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([1_700_000_000_001], pa.int64()), 1_700_000_000_001),
        (pa.array([1_700_000_000_001_999], pa.timestamp("us", "UTC")), 1_700_000_000_001),
        (pa.array([-1], pa.timestamp("us", "UTC")), -1),
        (pa.array([1_700_000_000], pa.timestamp("s", "UTC")), 1_700_000_000_000),
        (pa.array([1_700_000_000_001_999_999], pa.timestamp("ns", "UTC")), 1_700_000_000_001),
        (pa.array([-1], pa.int64()), -1),
    ],
)
def test_timestamps_become_milliseconds_rounded_down(
    tmp_path: Path, column: pa.Array, expected: int
) -> None:
    Writer(tmp_path, topic="t").write(0, rows(["a"]).append_column("timestamp", column))
    assert max_timestamps(tmp_path / "t-0") == [expected]


def test_rows_without_a_timestamp_get_the_clock(tmp_path: Path) -> None:
    Writer(tmp_path, topic="t").write(0, rows(["a"], timestamps=[None]))
    Writer(tmp_path, topic="t").write(1, rows(["a"]))
    assert min(max_timestamps(tmp_path / "t-0")) > STAMP_MS


def test_log_append_time_is_the_one_stamp_of_the_batch(tmp_path: Path) -> None:
    writer = Writer(tmp_path, topic="t", message__timestamp__type="LogAppendTime")
    writer.write(0, rows(["a"], timestamps=[5]), rows(["b"]))
    assert max_timestamps(tmp_path / "t-0") == [STAMP_MS, STAMP_MS]


FAR_SECOND = rows(["a"] * 2, topics=["t"] * 2).append_column(
    "timestamp", pa.array([1, 1 << 60], pa.timestamp("s"))
)


@pytest.mark.parametrize(
    ("batch", "error", "reason"),
    [
        (rows(["a"], topics=[None]), RowError, "KAFKA_NULL_TOPIC_IN_DATA"),
        (rows(["a"], topics=["../../x"]), InvalidTopicError, "other than ASCII"),
        (rows(["a"], topics=["x" * 250]), InvalidTopicError, "250 characters"),
        (rows(["a"], topics=["__internal"]), RowError, "allowInternalTopics"),
        (
            rows(["a"], topics=["t"], partitions=[2]),
            RowError,
            "with 2 partitions: .*select",
        ),
        (rows(["a"], topics=["t"], partitions=[-1]), RowError, "partition -1"),
        (FAR_SECOND, RowError, "row 1 has a timestamp that ms in 64 bits cannot hold"),
        (rows(["a"] * 3, topics=["t1", "t2", "t3"]), RowError, "more than 2 topics"),
        (rows(["a"] * 2, topics=["c.d", "c_d"]), InvalidTopicError, "cannot be made beside"),
        (rows(["a"], topics=["a.b"]), InvalidTopicError, r"'a\.b' cannot be made beside 'a_b'"),
        (rows(["x" * 2000], topics=["t"], keys=["key 7"]), RecordTooLargeError, "t-[01].*'key 7'"),
        (rows(["a"]), RowError, "no topic to write to"),
    ],
)
def test_a_row_that_cannot_be_written_fails_the_task_which_leaves_nothing(
    tmp_path: Path, batch: pa.RecordBatch, error: type[Exception], reason: str
) -> None:
    Writer(tmp_path).write(0, rows(["a"], topics=["a_b"]))
    options = {"numPartitions": "2", "maxNewTopics": "2", "max__message__bytes": "1000"}
    with pytest.raises(error, match=reason):
        Writer(tmp_path, **options).stage(1, batch)
    assert staged_bytes(tmp_path) == 0


@pytest.mark.parametrize("keys", [None, ["k", None]])
def test_rows_without_a_key_are_refused_where_logs_are_compacted(
    tmp_path: Path, keys: list[str | None] | None
) -> None:
    Writer(tmp_path, topic="t", cleanup__policy="delete,compact").write(0, rows(["a"], keys=["k"]))
    with pytest.raises(RowError, match=r"t-0: row [01] has no key, and the topic is compacted"):
        Writer(tmp_path, topic="t").stage(1, rows(["b", "c"], keys=keys))
    assert staged_bytes(tmp_path) == 0


def test_a_row_far_down_is_counted_from_a_row_that_is_told(tmp_path: Path) -> None:
    Writer(tmp_path, topic="t", cleanup__policy="compact").write(0, rows(["a"], keys=["k"]))
    many = 2 * task_writer.PIECE_ROWS
    batch = rows(["v"] * many, keys=[*["k"] * (many - 1), None])
    told = f"row {task_writer.PIECE_ROWS - 1} has no key.*from row {task_writer.PIECE_ROWS} of"
    with pytest.raises(RowError, match=told):
        Writer(tmp_path, topic="t").stage(1, batch)
    assert staged_bytes(tmp_path) == 0


def test_rows_of_a_long_batch_keep_their_order_and_time(tmp_path: Path) -> None:
    values = [str(number) for number in range(3 * task_writer.PIECE_ROWS + 1)]
    Writer(tmp_path, topic="t").write(0, rows(values))
    found = kafkalog.read(tmp_path, "t", columns=["value", "timestamp"]).read_all()
    assert found.column("value").to_pylist() == [value.encode() for value in values]
    assert len(found.column("timestamp").unique()) == 1


def test_memory_does_not_grow_with_the_rows_of_a_batch(tmp_path: Path) -> None:
    def peak(pieces: int, number: int) -> int:
        batch = rows(["v" * 100] * (pieces * task_writer.PIECE_ROWS))
        return traced_peak(lambda: Writer(tmp_path, topic="t").stage(number, batch))

    peak(1, 0)
    assert peak(12, 1) < peak(2, 2) + (2 << 20)


def test_clusters_own_log_is_no_topic_whatever_is_allowed(tmp_path: Path) -> None:
    with pytest.raises(RowError, match="'__cluster_metadata' is the log in which"):
        Writer(tmp_path, topic="__cluster_metadata", allowInternalTopics="true").stage(
            0, rows(["a"])
        )


def test_a_machine_that_sees_other_directories_says_so(tmp_path: Path) -> None:
    plan = Writer(tmp_path, topic="t").plan()
    with pytest.raises(LogDirectoryError, match="mounted on every machine"):
        TaskWriter(WritePlan(plan.options, "another", 0), BatchIdentity("query:q", 0))


def test_staged_files_follow_the_mode_of_their_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o770)
    (run,) = Writer(tmp_path, topic="t").stage(0, rows(["a"]))
    assert (tmp_path / run.file).stat().st_mode & 0o777 == 0o660


def test_a_record_that_is_too_large_is_named_whatever_makes_it_so(tmp_path: Path) -> None:
    key, header = pa.array(["small", "innocent", "k1"]), "x" * 2_000_000
    value = pa.array([b"v", b"v" * 900_000, b"v"])
    headers = pa.array([[], [], [{"key": "h", "value": header.encode()}]])
    by_header = pa.table({"key": key, "value": value, "headers": headers})
    many = [f"{n}" for n in range(3000)]
    by_value = pa.table(
        {"key": [*many, "k1", *many], "value": ["v" * 90] * 3000 + [header] + ["v" * 90] * 3000}
    )
    for table in (by_header, by_value):
        with pytest.raises(RecordTooLargeError, match="the record with key 'k1' is too large"):
            kafkalog.append(tmp_path / "log", "t", table, options={"numPartitions": 1})
    keyless = by_value.select(["value"])
    with pytest.raises(RecordTooLargeError, match="a record without a key is too large"):
        kafkalog.append(tmp_path / "log", "t", keyless, options={"numPartitions": 1})


class _OfAUser(pa.ExtensionType):
    def __init__(self) -> None:
        super().__init__(pa.int32(), "of.a.user")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""


def test_columns_of_types_that_cannot_be_hashed_are_left_alone(tmp_path: Path) -> None:
    """And so is what a schema says of them, as that of a frame of pandas does."""
    other = pa.ExtensionArray.from_storage(_OfAUser(), pa.array([1], pa.int32()))
    table = pa.table({"value": pa.array([b"v"]), "other": other})
    kafkalog.append(tmp_path / "log", "t", table.replace_schema_metadata({"pandas": "{}"}))
    assert kafkalog.read(tmp_path / "log", "t").read_all().num_rows == 1


@pytest.mark.parametrize(
    ("partitioner", "stay"), [("murmur2", [4, 4, 4]), ("round_robin", [1] * 12)]
)
def test_appends_without_an_id_go_on_where_the_last_one_has_ended(
    partitioner: str, stay: list[int], tmp_path: Path
) -> None:
    """A Java producer stays for 16 KiB on a partition, however small its batches are."""
    row = pa.table({"value": ["x" * 5000]})
    options = {"numPartitions": 3, "partitioner": partitioner, "flush": "os"}
    first = row.append_column("partition", pa.array([0], pa.int32()))
    kafkalog.append(tmp_path / "log", "t", first, options=options)
    seen = []
    for _ in range(12):
        (end,) = kafkalog.append(tmp_path / "log", "t", row, options=options).end_offsets
        seen.append(end.partition)
    assert [len([*group]) for _, group in groupby(seen)] == stay
    assert {*seen} == {0, 1, 2}


def test_a_topic_that_is_made_again_with_fewer_partitions_is_begun_anew(tmp_path: Path) -> None:
    row = pa.table({"value": ["x" * 20_000]})
    for partitions in (8, 2):
        for _ in range(8):
            kafkalog.append(tmp_path, "t", row, options={"numPartitions": partitions})
        assert len(kafkalog.read(tmp_path, "t").read_all()) == 8
        for folder in tmp_path.glob("t-*"):
            shutil.rmtree(folder)


def test_a_batch_with_an_id_begins_where_its_number_says(tmp_path: Path) -> None:
    row = pa.table({"value": ["x"]})
    options = {"numPartitions": 3, "flush": "os"}
    for version in (4, 5, 6):
        kafkalog.append(
            tmp_path, "t", row, transactional_id="job", version=version, options=options
        )
    found = kafkalog.read(tmp_path, "t", columns=["partition", "offset"]).read_all().to_pylist()
    assert found == [{"partition": each, "offset": 0} for each in range(3)]
