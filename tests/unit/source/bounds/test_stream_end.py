from __future__ import annotations

import logging
import shutil
from typing import TYPE_CHECKING

import pytest
from tests.support.logs import Row, append_batch, batch_bytes, write_checkpoint, write_segment

from kafkalog.checkpoints.broker import HIGH_WATERMARK, new_topic_id, write_topic_id
from kafkalog.errors import OptionError
from kafkalog.model import TopicPartition
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.source.batch_plan import plan_batch
from kafkalog.streaming.source.stream_control import StreamControl

if TYPE_CHECKING:
    from pathlib import Path

T0, T1, T2 = (TopicPartition("t", partition) for partition in range(3))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Give t-0 [0, 10) and t-1 [0, 4), timestamps 1000 + offset."""
    put(tmp_path, 0, range(1000, 1010))
    put(tmp_path, 1, range(1000, 1004))
    return tmp_path


def put(log: Path, partition: int, timestamps: range, offset: int = 0) -> None:
    batch = batch_bytes(offset, [Row(timestamp=timestamp) for timestamp in timestamps])
    path = log / f"t-{partition}" / f"{0:020d}.log"
    if offset:
        append_batch(path, batch)
    else:
        write_segment(path.parent, 0, batch)


def stream(log: Path, **given: str) -> StreamControl:
    defaults = {"path": str(log), "subscribe": "t", "startingOffsets": "earliest"}
    return StreamControl(ReadOptions.parse(defaults | given))


def test_a_stream_reads_up_to_its_ending_timestamp_and_then_rests(
    log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    control = stream(log, endingTimestamp="1007")
    end = control.next_end(control.initial(), take_all=False)
    assert end == {T0: 7, T1: 4}  # t-1 has no such record yet
    put(log, 1, range(1004, 1020), offset=4)
    put(log, 0, range(500, 510), offset=10)  # early ones that come late are behind the end
    after = control.next_end(end, take_all=False)
    assert after == {T0: 7, T1: 7}
    with caplog.at_level(logging.INFO, "kafkalog"):
        for _ in range(3):
            assert control.next_end(after, take_all=False) == after
    assert caplog.text.count("read up to where the query is to end") == 1
    assert control.latest == {T0: 20, T1: 20}


def test_a_stream_ends_where_a_batch_does(log: Path) -> None:
    given = {"path": str(log), "subscribe": "t", "endingTimestamp": "1002"}
    splits = plan_batch(ReadOptions.parse(given))
    batch = {split.topic_partition: split.slices[-1].end_offset for split in splits}
    control = stream(log, endingTimestamp="1002")
    assert control.next_end(control.initial(), take_all=True) == batch == {T0: 2, T1: 2}


def test_limits_cut_what_lies_before_the_end(log: Path) -> None:
    control = stream(log, endingTimestamp="1002", maxOffsetsPerTrigger="2")
    control.freeze_targets()
    offsets, ends = control.initial(), []
    while (end := control.next_end(offsets, take_all=False)) != offsets:
        ends.append(end)
        offsets = end
    assert ends == [{T0: 1, T1: 1}, {T0: 2, T1: 2}]


def test_offsets_to_stop_at_bind_only_the_partitions_that_are_named(log: Path) -> None:
    control = stream(log, stopAtOffsets='{"t":{"0":3,"2":5}}')
    end = control.next_end(control.initial(), take_all=False)
    assert end == {T0: 3, T1: 4}
    put(log, 2, range(1000, 1009))
    assert control.next_end(end, take_all=False) == {T0: 3, T1: 4, T2: 5}


def test_what_is_read_already_is_never_rolled_back(log: Path) -> None:
    control = stream(log, stopAtOffsets='{"t":{"0":3}}', endingTimestamp="1001")
    assert control.next_end({T0: 8, T1: 1}, take_all=False) == {T0: 8, T1: 1}


@pytest.mark.long
def test_a_topic_that_was_recreated_is_searched_anew(log: Path) -> None:
    control = stream(log, endingTimestamp="1007", failOnDataLoss="false")
    end = control.next_end(control.initial(), take_all=False)
    shutil.rmtree(log / "t-0")
    put(log, 0, range(900, 905))
    end = control.next_end(end, take_all=False)
    assert end == {T0: 0, T1: 4}
    assert control.next_end(end, take_all=False) == {T0: 5, T1: 4}


def test_a_larger_topic_under_the_same_name_has_its_own_end(log: Path) -> None:
    write_topic_id(log / "t-0", new_topic_id())
    control = stream(log, endingTimestamp="1007", failOnDataLoss="false")
    end = control.next_end(control.initial(), take_all=False)
    assert end == {T0: 7, T1: 4}
    shutil.rmtree(log / "t-0")
    put(log, 0, range(900, 950))
    write_topic_id(log / "t-0", new_topic_id())
    end = control.next_end(end, take_all=False)
    assert end == {T0: 0, T1: 4}
    assert control.next_end(end, take_all=False) == {T0: 50, T1: 4}


def test_where_a_stream_ends_is_checked(log: Path) -> None:
    with pytest.raises(OptionError, match="'stopAtOffsets' gives -1"):
        stream(log, stopAtOffsets='{"t":{"0":-1}}')
    given = {"path": str(log), "subscribe": "t", "stopAtOffsets": '{"t":{"0":1}}'}
    with pytest.raises(OptionError, match="use endingOffsets in a batch"):
        plan_batch(ReadOptions.parse(given))


@pytest.mark.parametrize(
    ("which", "named"),
    [
        ({"subscribe": "t"}, "u-0"),
        ({"subscribe": "", "subscribePattern": "^t$"}, "u-0"),
        ({"subscribe": "", "assign": '{"t":[0]}'}, "t-1, u-0"),
    ],
)
def test_an_end_for_what_is_not_read_is_refused_when_the_query_starts(
    log: Path, which: dict[str, str], named: str
) -> None:
    given = {"path": str(log), "stopAtOffsets": '{"u":{"0":5},"t":{"1":5}}'} | which
    options = ReadOptions.parse({name: value for name, value in given.items() if value})
    with pytest.raises(OptionError, match=f"stopAtOffsets.* does not read: {named}$"):
        StreamControl(options)


def cut(log: Path, timestamps: range) -> None:
    """Let t-0 lose all but its first five records, and get others."""
    path = log / "t-0" / f"{0:020d}.log"
    write_segment(path.parent, 0, batch_bytes(0, [Row(timestamp=1000 + n) for n in range(5)]))
    if timestamps:
        put(log, 0, timestamps, offset=5)


def test_a_log_that_was_cut_and_has_other_records_is_searched_anew(log: Path) -> None:
    control = stream(log, endingTimestamp="1007", failOnDataLoss="false")
    assert control.next_end({T0: 3}, take_all=False)[T0] == 7
    cut(log, range(0))
    assert control.next_end({T0: 3}, take_all=False)[T0] == 5
    cut(log, range(900, 910))
    assert control.next_end({T0: 3}, take_all=False)[T0] == 15


def test_a_record_that_is_not_committed_ends_no_stream(log: Path) -> None:
    write_checkpoint(log, HIGH_WATERMARK, {"t-0": 5, "t-1": 4})
    control = stream(log, endingTimestamp="1007")
    start = control.initial()
    assert control.next_end(start, take_all=False)[T0] == 5
    cut(log, range(900, 910))
    write_checkpoint(log, HIGH_WATERMARK, {"t-0": 15, "t-1": 4})
    assert control.next_end(start, take_all=False)[T0] == 15
