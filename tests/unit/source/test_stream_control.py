from __future__ import annotations

import functools
import logging
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.support.logs import Row, append_batch, batch_bytes, write_checkpoint, write_segment

import kafkalog
from kafkalog.errors import DataLossError, OptionError, UnknownTopicOrPartitionError
from kafkalog.model import TopicPartition
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.source.admission import IdlePacer
from kafkalog.streaming.source.stream_control import Phase, StreamControl

if TYPE_CHECKING:
    from pathlib import Path

    from kafkalog.streaming.source.planner import LogSplit

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Give t-0 [0, 10) and t-1 [0, 4)."""
    put(tmp_path, 0, 0, 10)
    put(tmp_path, 1, 0, 4)
    return tmp_path


def put(log: Path, partition: int, start: int, count: int) -> None:
    batch = batch_bytes(start, [Row(timestamp=1000 + start + n) for n in range(count)])
    path = log / f"t-{partition}" / f"{0:020d}.log"
    if start:
        append_batch(path, batch)
    else:
        write_segment(path.parent, 0, batch)


def control(log: Path, **given: str) -> StreamControl:
    defaults = {"path": str(log), "subscribe": "t", "fetchOffset.retryIntervalMs": "0"}
    named = {name: value for name, value in (defaults | given).items() if value}
    return StreamControl(ReadOptions.parse(named))


def spans(splits: list[LogSplit]) -> dict[str, tuple[int, int]]:
    return {
        str(split.topic_partition): (split.slices[0].start_offset, split.slices[-1].end_offset)
        for split in splits
    }


def test_a_stream_from_earliest_reads_all_at_once(log: Path) -> None:
    stream = control(log, startingOffsets="earliest")
    start = stream.initial()
    assert start == {T0: 0, T1: 0}
    end = stream.next_end(start, take_all=False)
    assert end == stream.latest == {T0: 10, T1: 4}
    assert spans(stream.plan(start, end)) == {"t-0": (0, 10), "t-1": (0, 4)}
    assert stream.next_end(end, take_all=False) == end


def test_a_start_at_latest_is_pinned_by_an_empty_first_batch(log: Path) -> None:
    stream = control(log)
    start = stream.initial()
    put(log, 0, 10, 3)
    assert start == stream.initial() == {T0: 10, T1: 4}
    assert stream.next_end(start, take_all=False) == start
    assert stream.plan(start, start) == []
    assert stream.next_end(start, take_all=False) == {T0: 13, T1: 4}


def test_a_pinned_first_batch_that_failed_loses_nothing(log: Path) -> None:
    first = control(log)
    kept = first.next_end(first.initial(), take_all=False)
    put(log, 0, 10, 5)
    again = control(log)  # the query is started again: Spark asks for another initial offset
    start = again.initial()
    assert start == {T0: 15, T1: 4}
    assert again.plan(start, kept) == []
    assert again.next_end(kept, take_all=False) == {T0: 15, T1: 4}


def test_a_partition_that_is_new_since_the_pinned_batch_is_read_from_its_start(log: Path) -> None:
    first = control(log)
    kept = first.next_end(first.initial(), take_all=False)
    put(log, 2, 0, 6)
    again = control(log)
    assert again.plan(again.initial(), kept) == []
    end = again.next_end(kept, take_all=False)
    assert spans(again.plan(kept, end)) == {"t-2": (0, 6)}


def test_trigger_once_takes_all_but_never_moves_a_start_at_latest(log: Path) -> None:
    limits = {"maxOffsetsPerTrigger": "1", "minOffsetsPerTrigger": "1"}
    stream = control(log, startingOffsets="earliest", **limits)
    assert stream.next_end(stream.initial(), take_all=True) == {T0: 10, T1: 4}
    stream = control(log)
    start = stream.initial()
    put(log, 0, 10, 3)
    assert stream.next_end(start, take_all=True) == start
    stream = control(log, startingOffsets='{"t":{"0":-1,"1":1}}')
    start = stream.initial()
    put(log, 0, 13, 2)
    assert stream.next_end(start, take_all=True) == {T0: 13, T1: 4}


def test_trigger_once_leaves_a_partition_that_came_after_its_start_to_the_next_run(
    log: Path,
) -> None:
    stream = control(log)
    start = stream.initial()
    put(log, 2, 0, 6)
    kept = stream.next_end(start, take_all=True)
    again = control(log)  # the batch failed
    assert again.plan(again.initial(), kept) == []
    assert spans(again.plan(kept, again.next_end(kept, take_all=True))) == {"t-2": (0, 6)}


@pytest.mark.parametrize(
    "held",
    [
        {"minOffsetsPerTrigger": "100"},
        {"endingTimestamp": "1004"},
        {"stopAtOffsets": '{"t":{"0":4,"1":4}}'},
    ],
)
def test_a_query_that_may_not_read_what_is_there_waits_between_its_looks(
    log: Path, held: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    pacer = functools.partial(IdlePacer, sleep=waits.append)
    monkeypatch.setattr("kafkalog.streaming.source.stream_control.IdlePacer", pacer)
    stream = control(log, startingOffsets="earliest", **held)
    end = stream.next_end(stream.initial(), take_all=False)
    put(log, 0, 10, 3)
    for _ in range(3):
        assert stream.next_end(end, take_all=False) == end
    assert len(waits) == 2


def test_a_query_that_reads_a_backlog_in_pieces_does_not_wait(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    pacer = functools.partial(IdlePacer, sleep=waits.append)
    monkeypatch.setattr("kafkalog.streaming.source.stream_control.IdlePacer", pacer)
    stream = control(log, startingOffsets="earliest", maxOffsetsPerTrigger="2")
    offsets = stream.initial()
    for _ in range(5):
        offsets = stream.next_end(offsets, take_all=False)
    assert waits == []


def test_it_is_said_once_where_a_query_starts_or_goes_on(
    log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kafkalog.source")
    stream = control(log, startingOffsets="earliest")
    end = stream.next_end(stream.initial(), take_all=False)
    stream.plan(stream.initial(), end)
    stream.next_end(end, take_all=False)
    assert caplog.messages == ['startingOffsets starts at {"t": {"0": 0, "1": 0}}']
    caplog.clear()
    goes_on = 'continues as its checkpoint says at {"t": {"0": 10, "1": 4}}'
    control(log, startingOffsets="earliest").next_end(end, take_all=False)
    again = control(log)  # a batch was not done
    again.plan(end, end)
    again.next_end(end, take_all=False)
    assert caplog.messages == [goes_on, goes_on]


def test_of_many_partitions_the_line_has_the_first_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = pa.table({"value": ["x"] * 400, "partition": pa.array(range(400), pa.int32())})
    kafkalog.append(tmp_path, "t", table, options={"numPartitions": "400", "flush": "os"})
    caplog.set_level(logging.INFO, "kafkalog.source")
    control(tmp_path, startingOffsets="earliest").initial()
    (line,) = caplog.messages
    assert line.startswith('startingOffsets starts at {"t": {"0": 0, "1": 0, ')
    assert line.endswith("… (400 partitions)")
    assert len(line) < 2_100


def test_log_lines_come_to_the_stderr_of_the_process_that_answers_for_offsets(log: Path) -> None:
    program = (
        "from kafkalog.streaming.spark.datasource import KafkaLogDataSource\n"
        "from kafkalog.streaming.source.schema import source_schema\n"
        f"source = KafkaLogDataSource({{'path': {str(log)!r}, 'subscribe': 't'}})\n"
        "source.streamReader(source_schema(include_headers=False)).initialOffset()\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stderr.endswith(
        ' INFO kafkalog.source: startingOffsets starts at {"t": {"0": 10, "1": 4}}\n'
    )


def test_a_limit_cuts_batches_in_proportion(tmp_path: Path) -> None:
    for partition, count in enumerate((101, 11, 1)):
        put(tmp_path, partition, 0, count)
    stream = control(tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger="10")
    offsets, taken = stream.initial(), []
    for _ in range(3):
        end = stream.next_end(offsets, take_all=False)
        taken.append([end[key] - offsets[key] for key in end])
        offsets = end
    assert taken == [[8, 1, 1], [9, 1, 0], [9, 1, 0]]


def test_a_minimum_holds_batches_back_and_available_now_does_not_wait(log: Path) -> None:
    given = {"startingOffsets": "earliest", "minOffsetsPerTrigger": "10"}
    stream = control(log, **given)
    end = stream.next_end(stream.initial(), take_all=False)
    put(log, 0, 10, 3)
    assert stream.next_end(end, take_all=False) == end
    put(log, 0, 13, 7)
    assert stream.next_end(end, take_all=False) == {T0: 20, T1: 4}
    stream = control(log, **given)
    stream.freeze_targets()
    assert stream.next_end({T0: 19, T1: 4}, take_all=False) == {T0: 20, T1: 4}


def test_available_now_reads_up_to_what_the_first_look_found(log: Path) -> None:
    stream = control(log, startingOffsets="earliest", maxOffsetsPerTrigger="7")
    stream.freeze_targets()
    offsets = stream.initial()
    ends = [stream.next_end(offsets, take_all=False)]
    put(log, 0, 10, 90)
    while ends[-1] != offsets:
        offsets = ends[-1]
        ends.append(stream.next_end(offsets, take_all=False))
    assert offsets == {T0: 10, T1: 4}


def test_available_now_fails_when_its_targets_go(log: Path) -> None:
    given = {"failOnDataLoss": "false", "startingOffsets": "earliest"}
    stream = control(log, **given)
    stream.freeze_targets()
    start = stream.initial()
    end = stream.next_end(start, take_all=False)
    shutil.rmtree(log / "t-0")
    with pytest.raises(DataLossError, match=r"LOST_TOPIC_PARTITIONS_IN_END_OFFSET.*t-0"):
        stream.plan(start, end)
    put(log, 0, 0, 3)
    with pytest.raises(DataLossError, match=r"THAN_LATEST_WITH_TRIGGER.*t-0 from 10 to 3"):
        stream.plan(start, end)


def test_a_replayed_batch_is_not_held_against_the_targets_of_today(log: Path) -> None:
    put(log, 2, 0, 1)
    stream = control(log)
    stream.freeze_targets()
    assert spans(stream.plan({T0: 2, T1: 0}, {T0: 5, T1: 4})) == {"t-0": (2, 5), "t-1": (0, 4)}


def test_a_run_without_a_checkpoint_runs_from_its_first_question_on(log: Path) -> None:
    stream = control(log, startingOffsets="earliest")
    start = stream.initial()
    assert stream.phase is Phase.INITIAL
    end = stream.next_end(start, take_all=False)
    assert stream.phase is Phase.RUNNING
    stream.plan(start, end)
    assert stream.next_end(end, take_all=False) == end
    assert stream.phase is Phase.RUNNING


def test_a_run_replays_what_was_decided_before_it_asks(log: Path) -> None:
    stream = control(log)
    stream.freeze_targets()
    for _ in range(2):
        stream.plan({T0: 2, T1: 0}, {T0: 5, T1: 4})
        assert stream.phase is Phase.REPLAYING
    assert stream.next_end({T0: 5, T1: 4}, take_all=False) == {T0: 10, T1: 4}
    assert stream.phase is Phase.AVAILABLE_NOW


def test_a_run_of_available_now_ends_at_its_targets_and_looks_no_more(log: Path) -> None:
    stream = control(log, startingOffsets="latest")
    stream.freeze_targets()
    start = stream.initial()
    put(log, 0, 10, 5)
    assert stream.next_end(start, take_all=False) == start  # keeps a start that may mean others
    assert stream.phase is Phase.AVAILABLE_NOW
    end = stream.next_end(start, take_all=False)
    assert end == {**start, T0: 15}
    assert stream.next_end(end, take_all=False) == end
    assert stream.phase is Phase.ENDED
    shutil.rmtree(log)
    assert stream.next_end(end, take_all=False) == end


def test_no_partitions_is_no_progress(log: Path) -> None:
    stream = control(log, subscribe="", subscribePattern="nothing")
    assert stream.initial() == {}
    assert stream.next_end({}, take_all=False) == {}
    assert stream.plan({}, {}) == []


def test_when_all_topics_are_deleted_the_offsets_stay(log: Path) -> None:
    stream = control(log, startingOffsets="earliest", failOnDataLoss="false")
    end = stream.next_end(stream.initial(), take_all=False)
    shutil.rmtree(log / "t-0")
    shutil.rmtree(log / "t-1")
    assert stream.next_end(end, take_all=False) == end


def test_a_loss_of_partitions_has_sparks_other_name_where_a_group_is_named(log: Path) -> None:
    stream = control(log, **{"startingOffsets": "earliest", "kafka.group.id": "g"})
    end = stream.next_end(stream.initial(), take_all=False)
    shutil.rmtree(log / "t-0")
    name = r"KAFKA_DATA_LOSS\.PARTITIONS_DELETED_AND_GROUP_ID_CONFIG_PRESENT\].*t-0 from "
    with pytest.raises(DataLossError, match=name):
        stream.next_end(end, take_all=False)
    with pytest.raises(DataLossError, match=name):
        stream.plan({T0: 0}, {T1: 4})


def test_a_loss_fails_before_spark_writes_an_end_down(log: Path) -> None:
    stream = control(log, startingOffsets="earliest")
    end = stream.next_end(stream.initial(), take_all=False)
    shutil.rmtree(log / "t-0")
    with pytest.raises(DataLossError, match=r"PARTITIONS_DELETED.*t-0 from 10"):
        stream.next_end(end, take_all=False)
    put(log, 0, 0, 2)
    with pytest.raises(DataLossError, match=r"PARTITION_OFFSET_CHANGED.*t-0 from 10 to 2"):
        stream.next_end(end, take_all=False)


def test_without_fail_on_data_loss_a_log_that_ends_earlier_is_read_from_its_start(
    log: Path,
) -> None:
    stream = control(log, startingOffsets="earliest", failOnDataLoss="false")
    start = stream.next_end(stream.initial(), take_all=False)
    shutil.rmtree(log / "t-0")
    put(log, 0, 0, 2)
    put(log, 1, 4, 1)
    end = stream.next_end(start, take_all=False)
    assert end == {T0: 0, T1: 5}
    assert spans(stream.plan(start, end)) == {"t-1": (4, 5)}
    put(log, 0, 2, 2)
    after = stream.next_end(end, take_all=False)
    assert spans(stream.plan(end, after)) == {"t-0": (0, 4)}


def test_retention_below_the_next_offset_is_a_loss(log: Path) -> None:
    stream = control(log, startingOffsets='{"t":{"0":2,"1":0}}')
    start = stream.initial()
    end = stream.next_end(start, take_all=False)
    write_checkpoint(log, "log-start-offset-checkpoint", {"t-0": 6})
    with pytest.raises(DataLossError, match=r"COULD_NOT_READ_OFFSET_RANGE.*t-0.*\[2, 6\)"):
        stream.plan(start, end)


def test_a_topic_that_does_not_exist_is_named_at_the_start(log: Path) -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match="no partition of topic u is in"):
        control(log, subscribe="t,u").initial()


def test_options_that_a_stream_cannot_have_are_refused(log: Path) -> None:
    with pytest.raises(OptionError, match="'endingOffsets' cannot be used in a streaming query"):
        control(log, endingOffsets="latest")
