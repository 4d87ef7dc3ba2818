from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from tests.support.logs import Row, append_batch, batch_bytes, write_checkpoint, write_segment
from tests.support.sinking import Writer, rows

from kafkalog.checkpoints.broker import new_topic_id, write_topic_id
from kafkalog.errors import DataLossError
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.broker.handover import hand_over
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.source.reading import read_split
from kafkalog.streaming.source.schema import RowSchema, source_schema
from kafkalog.streaming.source.stream_control import StreamControl

if TYPE_CHECKING:
    from pathlib import Path

    from kafkalog.streaming.source.planner import LogSplit

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Give t-0 [0, 10) and t-1 [0, 4) of one topic with an id."""
    make(tmp_path / "log", 10, 4)
    return tmp_path / "log"


def make(log: Path, *counts: int) -> str:
    """Make topic t (anew): so many records in each partition."""
    topic_id = new_topic_id()
    for partition, count in enumerate(counts):
        folder = log / f"t-{partition}"
        shutil.rmtree(folder, ignore_errors=True)
        write_segment(folder, 0, batch_bytes(0, [Row(topic_id.encode())] * count))
        write_topic_id(folder, topic_id)
    return topic_id


def control(log: Path, *, fails: bool = False, **given: str) -> StreamControl:
    defaults = {"path": str(log), "subscribe": "t", "startingOffsets": "earliest"}
    more = {"failOnDataLoss": str(fails), "fetchOffset.retryIntervalMs": "0"}
    return StreamControl(ReadOptions.parse(defaults | more | given))


def kept(log: Path) -> dict[str, str]:
    return {"stateLocation": str(log.parent / "state")}


def spans(splits: list[LogSplit]) -> dict[str, tuple[int, int]]:
    return {
        str(split.topic_partition): (split.slices[0].start_offset, split.slices[-1].end_offset)
        for split in splits
    }


def drain(
    stream: StreamControl, offsets: dict[TopicPartition, int]
) -> tuple[list[dict[str, tuple[int, int]]], dict[TopicPartition, int]]:
    """Run micro-batches until there is nothing new: what they read, and where they end."""
    read = []
    while (end := stream.next_end(offsets, take_all=False)) != offsets:
        found = spans(stream.plan(offsets, end))
        read += [found] if found else []
        offsets = end
    return read, offsets


@pytest.mark.parametrize("counts", [(3, 1), (10, 4), (50, 60)])
def test_a_topic_recreated_while_the_query_runs_is_read_from_its_start(
    log: Path, counts: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    stream = control(log)
    _, offsets = drain(stream, stream.initial())
    make(log, *counts)
    read, offsets = drain(stream, offsets)
    assert read == [{"t-0": (0, counts[0]), "t-1": (0, counts[1])}]
    assert caplog.text.count("were deleted and recreated: t-0 from 10 to") == 1
    append_batch(log / "t-0" / f"{0:020d}.log", batch_bytes(counts[0], [Row()]))
    read, _ = drain(stream, offsets)
    assert read == [{"t-0": (counts[0], counts[0] + 1)}]


def test_with_fail_on_data_loss_the_query_says_what_is_gone_and_how_to_go_on(log: Path) -> None:
    stream = control(log, fails=True)
    _, offsets = drain(stream, stream.initial())
    make(log, 50, 60)
    with pytest.raises(DataLossError, match=r"recreated: t-0 from 10 to 50 \(topic id") as caught:
        stream.next_end(offsets, take_all=False)
    assert "new checkpoint" in str(caught.value)
    stream = control(log, fails=True, **kept(log))
    drain(stream, stream.initial())
    make(log, 70, 60)
    with pytest.raises(DataLossError, match="set failOnDataLoss to false") as caught:
        stream.next_end({T0: 50, T1: 60}, take_all=False)
    assert "new checkpoint" not in str(caught.value)


@pytest.mark.parametrize("counts", [(3, 1), (50, 60), (50, 60, 2)])
def test_a_topic_recreated_while_the_query_was_stopped_is_told_by_what_is_kept(
    log: Path, counts: tuple[int, ...]
) -> None:
    stream = control(log, **kept(log))
    _, offsets = drain(stream, stream.initial())
    make(log, *counts)
    with pytest.raises(DataLossError, match="deleted and recreated"):
        control(log, fails=True, **kept(log)).next_end(offsets, take_all=False)
    new = {TopicPartition("t", number): count for number, count in enumerate(counts[2:], 2)}
    again = control(log, **kept(log))
    first = again.next_end(offsets, take_all=False)
    assert first == {T0: 0, T1: 0, **new}
    for _ in range(2):  # killed before Spark has written the end down, or after
        assert control(log, **kept(log)).next_end(offsets, take_all=False) == first
    # ... or with the end logged and the batch not run: it is planned again first
    replayed = control(log, **kept(log))
    assert spans(replayed.plan(offsets, first)) == {str(key): (0, new[key]) for key in new}
    read, _ = drain(replayed, first)
    assert read == [{"t-0": (0, counts[0]), "t-1": (0, counts[1])}]
    ends = {TopicPartition("t", number): count for number, count in enumerate(counts)}
    assert drain(control(log, **kept(log)), ends)[0] == []


def test_a_recreated_topic_that_starts_where_the_earlier_one_was_left_is_told(
    log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Retention may have brought it there: nothing is to be moved, and rows are lost."""
    stream = control(log, **kept(log))
    _, offsets = drain(stream, stream.initial())
    topic_id = make(log, 1, 2)
    shutil.rmtree(log / "t-0")
    write_segment(log / "t-0", 10, batch_bytes(10, [Row()] * 3))
    write_topic_id(log / "t-0", topic_id)
    for _ in range(2):
        with pytest.raises(DataLossError, match="recreated: t-0 from 10 to 13"):
            control(log, fails=True, **kept(log)).next_end(offsets, take_all=False)
    read, _ = drain(control(log, **kept(log)), offsets)
    assert read == [{"t-0": (10, 13)}, {"t-1": (0, 2)}]
    assert caplog.text.count("were deleted and recreated: t-0 from 10 to") == 1


def test_without_what_is_kept_the_offsets_show_what_they_can(log: Path) -> None:
    offsets = {T0: 10, T1: 4}
    make(log, 3, 60)
    read, _ = drain(control(log), offsets)
    assert read == [{"t-1": (4, 60)}, {"t-0": (0, 3)}]


def test_a_log_that_was_cut_goes_on_where_it_was_cut(log: Path) -> None:
    stream = control(log)
    _, offsets = drain(stream, stream.initial())
    topic_log = log / "t-0" / f"{0:020d}.log"
    topic_log.write_bytes(batch_bytes(0, [Row()] * 7))
    read, offsets = drain(stream, offsets)
    assert (read, offsets) == ([], {T0: 7, T1: 4})


def test_a_batch_that_was_logged_of_the_old_topic_is_not_read_from_the_new_one(log: Path) -> None:
    stream = control(log, maxOffsetsPerTrigger="6", **kept(log))
    start = stream.initial()
    end = stream.next_end(start, take_all=False)
    make(log, 50, 60)
    with pytest.raises(DataLossError, match=r"t-0: the 4 offsets \[0, 4\) .* recreated"):
        control(log, fails=True, **kept(log)).plan(start, end)
    again = control(log, **kept(log))
    assert again.plan(start, end) == []
    read, _ = drain(again, end)
    assert read == [{"t-0": (0, 50), "t-1": (0, 60)}]


def test_a_task_does_not_take_another_topics_records_for_those_that_were_planned(
    log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    schema = RowSchema.of(source_schema(include_headers=False))
    given = {"path": str(log), "subscribe": "t", "startingOffsets": "earliest"}
    stream = StreamControl(ReadOptions.parse(given))
    start = stream.initial()
    splits = stream.plan(start, stream.next_end(start, take_all=False))
    assert (
        sum(batch.num_rows for batch in read_split(splits[0], ReadOptions.parse(given), schema))
        == 10
    )
    make(log, 50, 60)
    with pytest.raises(DataLossError, match=r"\[0, 10\) cannot be read: .* another topic"):
        list(read_split(splits[0], ReadOptions.parse(given), schema))
    options = ReadOptions.parse(given | {"failOnDataLoss": "false"})
    assert list(read_split(splits[0], options, schema)) == []
    assert "[0, 10)" in caplog.text


def test_available_now_fails_when_a_topic_is_recreated_between_its_batches(log: Path) -> None:
    stream = control(log, maxOffsetsPerTrigger="6")
    stream.freeze_targets()
    start = stream.initial()
    middle = stream.next_end(start, take_all=False)
    stream.plan(start, middle)
    make(log, 50, 60)
    end = stream.next_end(middle, take_all=False)
    with pytest.raises(DataLossError, match=r"WITH_TRIGGER_AVAILABLENOW.*t-0"):
        stream.plan(middle, end)


def test_available_now_reads_a_topic_that_was_recreated_before(log: Path) -> None:
    stream = control(log, **kept(log))
    _, offsets = drain(stream, stream.initial())
    make(log, 20, 4)
    stream = control(log, **kept(log))
    stream.freeze_targets()
    read, offsets = drain(stream, offsets)
    assert (read, offsets) == ([{"t-0": (0, 20), "t-1": (0, 4)}], {T0: 20, T1: 4})


def test_a_query_without_a_checkpoint_believes_nothing_that_was_kept(log: Path) -> None:
    stream = control(log, **kept(log))
    drain(stream, stream.initial())
    make(log, 50, 60)
    fresh = control(log, fails=True, startingOffsets="latest", **kept(log))
    start = fresh.initial()
    assert fresh.next_end(start, take_all=False) == start == {T0: 50, T1: 60}
    assert fresh.next_end(start, take_all=False) == start


def test_a_topic_recreated_right_behind_a_replayed_first_batch_is_read_from_its_start(
    log: Path,
) -> None:
    stream = control(log, startingOffsets="latest", **kept(log))
    pinned = stream.next_end(stream.initial(), take_all=False)
    again = control(log, startingOffsets="latest", **kept(log))
    assert again.plan(again.initial(), pinned) == []
    make(log, 50, 60)
    read, _ = drain(again, pinned)
    assert read == [{"t-0": (0, 50), "t-1": (0, 60)}]


def test_a_loss_says_from_when_on_records_are_left(log: Path) -> None:
    stream = control(log, fails=True)
    start = stream.initial()
    end = stream.next_end(start, take_all=False)
    write_checkpoint(log, "log-start-offset-checkpoint", {"t-0": 6})
    with pytest.raises(DataLossError, match=r"\[0, 6\) .* records of 2023-11-14T22:13:20\.000Z"):
        stream.plan(start, end)


def test_a_start_beyond_the_end_of_a_log_is_no_topic_recreated(log: Path) -> None:
    given = {"startingOffsets": '{"t":{"0":100,"1":0}}'}
    stream = control(log, fails=True, **given)
    with pytest.raises(DataLossError, match="or the start lies beyond its end"):
        stream.next_end(stream.initial(), take_all=False)
    stream = control(log, **given)
    assert stream.next_end(stream.initial(), take_all=False) == {T0: 10, T1: 4}


def test_a_topic_that_gets_another_id_and_keeps_its_records_is_the_same(
    log: Path, tmp_path: Path
) -> None:
    directory = tmp_path / "ours"
    directory.mkdir()
    Writer(directory, topic="t").write(0, rows(["a", "b"]))
    stream = control(directory, fails=True, **kept(log))
    start = stream.initial()
    offsets = stream.next_end(start, take_all=False)
    splits = stream.plan(start, offsets)
    for topic_id in (new_topic_id(), new_topic_id()):  # the directories change hands, and again
        hand_over([str(directory)], topic_ids={"t": topic_id})
    options = ReadOptions.parse({"path": str(directory), "subscribe": "t"})
    schema = RowSchema.of(source_schema(include_headers=False))
    assert sum(batch.num_rows for batch in read_split(splits[0], options, schema)) == 2
    for after in (stream, control(directory, fails=True, **kept(log))):
        assert after.next_end(offsets, take_all=False) == offsets == {T0: 2}
    make(directory, 5)
    with pytest.raises(DataLossError, match="were deleted and recreated"):
        stream.next_end(offsets, take_all=False)


def test_a_log_that_was_cut_below_what_is_committed_is_not_taken_for_a_recreated_topic(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = Writer(tmp_path, topic="t")
    writer.write(0, rows(["a"]))
    segment = next((tmp_path / "t-0").glob("*.log"))
    size = segment.stat().st_size
    writer.write(1, rows(["b", "c"]))
    with segment.open("r+b") as file:
        file.truncate(size)
    restarted = control(tmp_path)
    assert restarted.next_end({T0: 3}, take_all=True) == {T0: 1}
    assert "t-0 [1, 3)" in caplog.text
    assert "recreated: t-0" not in caplog.text


def test_a_partition_that_a_batch_adds_is_not_read_from_a_topic_recreated_meanwhile(
    log: Path,
) -> None:
    running = control(log)
    end = running.next_end({T0: 4}, take_all=True)
    assert end == {T0: 10, T1: 4}
    make(log, 10, 4)
    assert spans(running.plan({T0: 10}, end)) == {}
