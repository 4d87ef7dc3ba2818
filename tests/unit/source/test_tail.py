from __future__ import annotations

import logging
import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.alarms import interrupt_at
from tests.support.interrupting import AlarmError
from tests.support.log_files import flip
from tests.support.logs import Row, append_batch, batch_bytes, write_checkpoint, write_segment
from tests.support.sinking import Writer
from tests.support.sinking import rows as sink_rows
from tests.support.sleeping import patch_sleep
from tests.support.states import up_to

import kafkalog
from kafkalog.checkpoints.broker import HIGH_WATERMARK, LOG_START_OFFSET, write_topic_id
from kafkalog.checkpoints.commit_state import STATE_FILE, CommitState, TopicState
from kafkalog.checkpoints.intent import INTENT_FILE, IntendedPartition, Intent
from kafkalog.checkpoints.state_file import state_bytes
from kafkalog.errors import (
    CheckpointError,
    CorruptRecordError,
    DataLossError,
    LogDirectoryError,
    UnknownTopicOrPartitionError,
)
from kafkalog.files import watch
from kafkalog.model import TopicPartition
from kafkalog.streaming.source.end_offsets import EndOffsets
from kafkalog.streaming.store.nodes import Node

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
T0 = TopicPartition("t", 0)


def rows(count: int) -> list[Row]:
    return [Row()] * count


def tail_of(*paths: Path, to_log_end: bool = False) -> EndOffsets:
    return EndOffsets(map(str, paths), lambda _: True, to_log_end=to_log_end)


def ends(tail: EndOffsets) -> dict[str, int]:
    return {str(key): end for key, end in tail.look().offsets.items()}


def put_state(directory: Path, sequence: int, high_watermark: int | None) -> None:
    topics = (
        {} if high_watermark is None else {TOPIC_ID: TopicState("t", up_to({0: high_watermark}))}
    )
    state = CommitState(sequence, "set", "member", ("member",), topics)
    (directory / "new").write_bytes(state_bytes(state))
    (directory / "new").rename(directory / STATE_FILE)


def put_intent(directory: Path, sequence: int, *, created: bool, start: int, end: int) -> None:
    intended = IntendedPartition(
        topic="t",
        key=TOPIC_ID,
        partition=0,
        member_id="member",
        created=created,
        leader_epoch=0,
        starts_epoch=created,
        start_offset=start,
        end_offset=end,
        snapshots=(),
        pieces=(),
        segments=(),
    )
    intent = Intent(sequence, "set", "query:q", 3, (intended,))
    (directory / INTENT_FILE).write_bytes(intent.to_bytes())


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Give a log directory with ``t-0``, offsets 0 to 9 in two batches."""
    batches = batch_bytes(0, rows(5)) + batch_bytes(5, rows(5))
    write_segment(tmp_path / "t-0", 0, batches)
    return tmp_path


def test_a_bare_copy_is_walked_to_its_log_end(log: Path) -> None:
    tail = tail_of(log)
    assert ends(tail) == {"t-0": 10}
    append_batch(log / "t-0" / f"{0:020d}.log", batch_bytes(10, rows(2)))
    assert ends(tail) == {"t-0": 12}


def test_a_torn_tail_of_a_bare_copy_is_not_there_yet(log: Path) -> None:
    append_batch(log / "t-0" / f"{0:020d}.log", batch_bytes(10, rows(2))[:-1])
    assert ends(tail_of(log)) == {"t-0": 10}


@pytest.fixture
def damaged(log: Path) -> Path:
    """Give a bare copy with a damaged batch of offsets 10 and 11, and a valid one behind it."""
    batch = bytearray(batch_bytes(10, rows(2)))
    batch[-1] ^= 1
    append_batch(log / "t-0" / f"{0:020d}.log", bytes(batch) + batch_bytes(12, rows(2)))
    return log


def test_damage_with_a_valid_batch_behind_it_is_no_end_of_a_bare_copy(damaged: Path) -> None:
    assert ends(tail_of(damaged)) == {"t-0": 14}
    with pytest.raises(CorruptRecordError, match=r"00000\.log.*offsets 10 to 11.*checksum"):
        kafkalog.read(damaged, "t").read_all()
    found = kafkalog.read(damaged, "t", options={"onCorruptRecord": "skip"}).read_all()
    assert found["offset"].to_pylist() == [*range(10), 12, 13]


def test_damage_is_the_log_end_as_for_a_recovering_broker_where_that_is_asked_for(
    damaged: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = kafkalog.read(damaged, "t", options={"readUpTo": "logEnd"}).read_all()
    assert found["offset"].to_pylist() == [*range(10)]
    (message,) = caplog.messages
    assert "end at a damaged batch" in message
    assert message.endswith(": t-0 at offset 10")


def test_a_torn_tail_is_the_log_end_without_a_word(
    log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    append_batch(log / "t-0" / f"{0:020d}.log", batch_bytes(10, rows(2))[:-1])
    found = kafkalog.read(log, "t", options={"readUpTo": "logEnd"}).read_all()
    assert found["offset"].to_pylist() == [*range(10)]
    assert caplog.messages == []


def test_the_folder_of_one_partition_is_a_log_directory_too(log: Path) -> None:
    write_checkpoint(log, HIGH_WATERMARK, {"t-0": 5})
    assert ends(tail_of(log / "t-0")) == {"t-0": 5}


def test_a_new_segment_is_found(log: Path) -> None:
    tail = tail_of(log)
    assert ends(tail) == {"t-0": 10}
    write_segment(log / "t-0", 10, batch_bytes(10, rows(3)))
    tail._logs._next_listing = 0
    assert ends(tail) == {"t-0": 13}


def test_new_partitions_and_deleted_ones_are_found(log: Path) -> None:
    tail = tail_of(log)
    assert ends(tail) == {"t-0": 10}
    write_segment(log / "u-3", 0, batch_bytes(0, rows(1)))
    assert ends(tail) == {"t-0": 10, "u-3": 1}
    shutil.rmtree(log / "t-0")
    assert ends(tail) == {"u-3": 1}


def test_a_recreated_partition_is_read_anew(log: Path) -> None:
    tail = tail_of(log)
    assert ends(tail) == {"t-0": 10}
    shutil.rmtree(log / "t-0")
    write_segment(log / "t-0", 0, batch_bytes(0, rows(3)))
    assert ends(tail) == {"t-0": 3}


def test_a_partition_without_segments_ends_where_it_starts(log: Path) -> None:
    (log / "u-0").mkdir()
    tail = tail_of(log)
    assert ends(tail) == {"t-0": 10, "u-0": 0}
    write_segment(log / "u-0", 0, batch_bytes(0, rows(4)))
    assert ends(tail) == {"t-0": 10, "u-0": 4}


def test_a_brokers_high_watermark_is_the_end(log: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_checkpoint(log, HIGH_WATERMARK, {"t-0": 5})
    tail = tail_of(log)
    assert ends(tail) == {"t-0": 5}
    with caplog.at_level(logging.WARNING, "kafkalog"):
        tail.report()
    assert "5 offsets of 1 partition lie above what is committed" in caplog.text
    assert "t-0 [5, 10)" in caplog.text
    write_checkpoint(log, HIGH_WATERMARK, {"t-0": 10})
    assert ends(tail) == {"t-0": 10}


def test_a_high_watermark_beyond_the_log_is_held_to_its_end(
    log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_checkpoint(log, HIGH_WATERMARK, {"t-0": 70})
    tail = tail_of(log)
    assert ends(tail) == {"t-0": 10}
    tail.report()
    assert "60 offsets of 1 partition are said to be committed and are not" in caplog.text


def test_a_high_watermark_below_the_log_start_is_held_to_it(log: Path) -> None:
    write_checkpoint(log, HIGH_WATERMARK, {"t-0": 3})
    write_checkpoint(log, LOG_START_OFFSET, {"t-0": 7})
    tail = tail_of(log)
    assert ends(tail) == {"t-0": 7}
    assert tail.log_start(T0) == 7


def test_a_log_that_its_log_start_would_hide_is_refused_at_each_look(log: Path) -> None:
    write_checkpoint(log, HIGH_WATERMARK, {"t-0": 5})
    tail = tail_of(log)
    assert ends(tail) == {"t-0": 5}
    write_checkpoint(log, LOG_START_OFFSET, {"t-0": 12})
    for _ in range(3):
        with pytest.raises(LogDirectoryError, match="starts at offset 12 there, but its log ends"):
            tail.look()
    write_checkpoint(log, LOG_START_OFFSET, {"t-0": 9})
    assert ends(tail) == {"t-0": 9}


def test_the_commit_state_is_the_end_by_topic_id(log: Path) -> None:
    put_state(log, 1, 5)
    write_topic_id(log / "t-0", "BBBBBBBBBBBBBBBBBBBBBQ")
    assert ends(tail_of(log)) == {"t-0": 0}  # of another id, of which nothing is committed
    write_topic_id(log / "t-0", TOPIC_ID)
    assert ends(tail_of(log)) == {"t-0": 5}


def test_a_partition_that_the_commit_state_beside_it_does_not_know_has_nothing_committed(
    log: Path, tmp_path: Path
) -> None:
    put_state(log, 1, 5)
    tail = tail_of(log)
    (log / "u-0").mkdir()
    name = f"{0:020d}.log"
    (log / "u-0" / name).write_bytes((log / "t-0" / name).read_bytes())
    assert ends(tail)["u-0"] == 0
    (tmp_path / "alone").mkdir()
    (log / "u-0").rename(tmp_path / "alone" / "u-0")
    assert ends(tail_of(tmp_path / "alone"))["u-0"] > 0


def test_a_folder_that_has_lost_its_id_is_of_the_topic_of_its_name(log: Path) -> None:
    put_state(log, 1, 5)
    assert ends(tail_of(log)) == {"t-0": 5}
    put_state(log, 2, 12)
    with pytest.raises(DataLossError, match=r"no longer in the log: t-0 \[10, 12\)"):
        kafkalog.read(log, "t", options={"fetchOffset.retryIntervalMs": 0})


def test_a_partition_that_gets_its_id_is_not_the_earlier_one_of_its_name(log: Path) -> None:
    put_state(log, 1, 12)
    put_intent(log, 2, created=True, start=0, end=10)
    assert ends(tail_of(log)) == {"t-0": 0}


@pytest.mark.parametrize("name", [STATE_FILE, HIGH_WATERMARK])
def test_a_segment_that_a_mirror_copies_after_the_checkpoint_is_found(log: Path, name: str) -> None:
    write_topic_id(log / "t-0", TOPIC_ID)
    put_state(log, 1, 10)
    tail = tail_of(log)
    assert ends(tail) == {"t-0": 10}
    if name == STATE_FILE:
        put_state(log, 2, 13)
    else:
        write_checkpoint(log, HIGH_WATERMARK, {"t-0": 13})
    assert ends(tail) == ends(tail) == {"t-0": 10}
    write_segment(log / "t-0", 10, batch_bytes(10, rows(3)))
    tail._logs._next_listing = 0
    assert ends(tail) == {"t-0": 13}


def test_the_larger_of_commit_state_and_high_watermark_is_the_end(log: Path) -> None:
    write_topic_id(log / "t-0", TOPIC_ID)
    put_state(log, 1, 5)
    write_checkpoint(log, HIGH_WATERMARK, {"t-0": 10})
    tail = tail_of(log)
    assert ends(tail) == {"t-0": 10}
    write_checkpoint(log, HIGH_WATERMARK, {"t-0": 0})
    assert ends(tail) == {"t-0": 5}


def test_a_commit_becomes_visible_when_its_state_is_renamed(log: Path) -> None:
    write_topic_id(log / "t-0", TOPIC_ID)
    put_state(log, 1, 5)
    tail = tail_of(log)
    assert ends(tail) == {"t-0": 5}
    write_segment(log / "t-0", 10, batch_bytes(10, rows(3)))
    assert ends(tail) == {"t-0": 5}
    put_state(log, 2, 13)
    assert ends(tail) == {"t-0": 13}


@pytest.mark.parametrize(("known", "expected"), [(5, 5), (None, 0)])
def test_of_a_partition_in_an_unfinished_intent_only_the_state_counts(
    log: Path, known: int | None, expected: int
) -> None:
    write_topic_id(log / "t-0", TOPIC_ID)
    put_state(log, 1, known)
    put_intent(log, 2, created=True, start=0, end=10)
    write_checkpoint(log, HIGH_WATERMARK, {"t-0": 10})
    assert ends(tail_of(log)) == {"t-0": expected}


def test_the_first_commit_to_a_partition_of_others_hides_nothing_of_theirs(log: Path) -> None:
    put_intent(log, 2, created=False, start=5, end=10)
    assert ends(tail_of(log)) == {"t-0": 5}


def test_what_a_broker_appended_stays_seen_while_our_next_commit_runs(log: Path) -> None:
    write_topic_id(log / "t-0", TOPIC_ID)
    put_state(log, 1, 2)
    write_checkpoint(log, HIGH_WATERMARK, {"t-0": 4})
    tail = tail_of(log)
    assert ends(tail) == {"t-0": 4}
    put_intent(log, 2, created=False, start=4, end=9)
    assert ends(tail) == {"t-0": 4}
    # Should its checkpoint say more than there was, what the commit adds is not seen all the same.
    write_checkpoint(log, HIGH_WATERMARK, {"t-0": 5})
    assert ends(tail) == {"t-0": 4}


def test_an_intent_that_is_left_over_hides_nothing(log: Path) -> None:
    write_topic_id(log / "t-0", TOPIC_ID)
    put_state(log, 2, 10)
    put_intent(log, 2, created=True, start=0, end=10)
    assert ends(tail_of(log)) == {"t-0": 10}


def test_read_up_to_the_log_end_ignores_what_is_committed(
    log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_checkpoint(log, HIGH_WATERMARK, {"t-0": 5})
    (log / STATE_FILE).write_text("damaged")
    with pytest.raises(CheckpointError):
        tail_of(log).look()
    assert ends(tail_of(log, to_log_end=True)) == {"t-0": 10}
    assert "without the commit state" in caplog.text


def test_above_the_committed_end_damage_is_the_log_end(log: Path) -> None:
    """A recovering broker would keep nothing behind it, whatever the index says."""
    damaged = bytearray(batch_bytes(10, rows(5)))
    damaged[-1] ^= 1
    write_segment(
        log / "t-0",
        0,
        batch_bytes(0, rows(10)) + bytes(damaged) + batch_bytes(15, rows(5)),
        index=True,
    )
    write_checkpoint(log, HIGH_WATERMARK, {"t-0": 10})
    assert ends(tail_of(log, to_log_end=True)) == {"t-0": 10}


@pytest.mark.parametrize("to_log_end", [False, True])
def test_damage_below_the_committed_end_is_no_end_where_batches_lie_behind_it(
    log: Path, *, to_log_end: bool
) -> None:
    write_checkpoint(log, HIGH_WATERMARK, {"t-0": 10})
    flip(log / "t-0" / f"{0:020d}.log", 70)
    tail = tail_of(log, to_log_end=to_log_end)
    assert ends(tail) == {"t-0": 10}
    assert tail.ends.missing == {}
    upto = {"readUpTo": "logEnd" if to_log_end else "highWatermark"}
    with pytest.raises(CorruptRecordError, match="t-0"):
        kafkalog.read(str(log), "t", options=upto).read_all()
    read = kafkalog.read(str(log), "t", options={"onCorruptRecord": "skip", **upto}).read_all()
    assert read.column("offset").to_pylist() == [5, 6, 7, 8, 9]


def test_a_last_batch_that_is_torn_below_the_committed_end_is_missing(log: Path) -> None:
    write_checkpoint(log, HIGH_WATERMARK, {"t-0": 10})
    segment = log / "t-0" / f"{0:020d}.log"
    flip(segment, segment.stat().st_size - 1)
    tail = tail_of(log)
    assert ends(tail) == {"t-0": 5}
    assert tail.ends.missing == {T0: (5, 10)}
    assert tail.ends.lost == {}  # a broker that recovers the log goes on at 5


@pytest.mark.parametrize("to_log_end", [False, True])
def test_of_what_our_own_commit_names_a_tail_that_is_cut_off_is_lost(
    log: Path, *, to_log_end: bool
) -> None:
    write_topic_id(log / "t-0", TOPIC_ID)
    put_state(log, 1, 10)
    segment = log / "t-0" / f"{0:020d}.log"
    os.truncate(segment, len(batch_bytes(0, rows(5))))
    tail = tail_of(log, to_log_end=to_log_end)
    assert ends(tail) == {"t-0": 5}
    assert tail.ends.lost == {T0: (5, 10)}
    upto = {"readUpTo": "logEnd" if to_log_end else "highWatermark"}
    upto["fetchOffset.retryIntervalMs"] = "0"
    with pytest.raises(DataLossError, match=r"no longer in the log: t-0 \[5, 10\)"):
        kafkalog.read(str(log), "t", options=upto)
    with pytest.raises(DataLossError, match=r"no longer in the log: t-0 \[5, 10\)"):
        next(kafkalog.tail(str(log), "t", options={"startingOffsets": "earliest", **upto}))
    go_on = {"failOnDataLoss": "false", **upto}
    assert kafkalog.read(str(log), "t", options=go_on).read_all().num_rows == 5
    exact = {"endingOffsets": '{"t": {"0": 5}}', **upto}
    assert kafkalog.read(str(log), "t", options=exact).read_all().num_rows == 5


@pytest.mark.parametrize("cut", ["torn", "flipped", "no size", "zeros"])
@pytest.mark.parametrize("to_log_end", [False, True])
def test_of_what_our_own_commit_names_a_last_batch_that_is_damaged_is_no_end(
    log: Path, cut: str, *, to_log_end: bool
) -> None:
    write_topic_id(log / "t-0", TOPIC_ID)
    put_state(log, 1, 10)
    segment = log / "t-0" / f"{0:020d}.log"
    size, last = segment.stat().st_size, len(batch_bytes(0, rows(5)))
    if cut == "torn":
        os.truncate(segment, size - 1)
    elif cut == "flipped":
        flip(segment, size - 1)
    elif cut == "no size":
        flip(segment, last + 8)
    else:
        os.truncate(segment, last)
        os.truncate(segment, size)
    tail = tail_of(log, to_log_end=to_log_end)
    assert ends(tail) == {"t-0": 10}
    assert tail.ends.missing == tail.ends.lost == {}
    upto = {"readUpTo": "logEnd" if to_log_end else "highWatermark"}
    with pytest.raises(CorruptRecordError, match=f"{segment.name}.*(byte|position) {last}"):
        kafkalog.read(str(log), "t", options=upto).read_all()
    read = kafkalog.read(str(log), "t", options={"onCorruptRecord": "skip", **upto}).read_all()
    assert read.column("offset").to_pylist() == [0, 1, 2, 3, 4]


def test_partitions_that_are_not_chosen_are_not_looked_at(log: Path) -> None:
    (log / "broken-0").mkdir()
    (log / "broken-0" / "partition.metadata").write_text("nonsense")
    tail = EndOffsets([str(log)], lambda key: key.topic == "t")
    assert ends(tail) == {"t-0": 10}
    assert [str(key) for key in tail.existing()] == ["broken-0", "t-0"]
    with pytest.raises(UnknownTopicOrPartitionError, match="broken-0 is in none of"):
        tail.open(TopicPartition("broken", 0))


@pytest.mark.parametrize("to_log_end", [False, True])
def test_what_a_checkpoint_claims_and_the_log_lacks_is_said(
    to_log_end: bool, log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_checkpoint(log, HIGH_WATERMARK, {"t-0": 17})
    tail = tail_of(log, to_log_end=to_log_end)
    assert ends(tail) == {"t-0": 10}
    tail.report()
    assert "7 offsets of 1 partition are said to be committed and are not in the log" in caplog.text
    assert "t-0 [10, 17)" in caplog.text


def test_a_directory_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(LogDirectoryError, match="nowhere"):
        tail_of(tmp_path / "nowhere").look()


def test_an_unchanged_partition_costs_one_stat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for partition in range(20):
        write_segment(tmp_path / f"t-{partition}", 0, batch_bytes(0, rows(1)))
    write_checkpoint(tmp_path, HIGH_WATERMARK, {f"t-{p}": 1 for p in range(20)})
    tail = tail_of(tmp_path)
    tail.look()
    monkeypatch.setattr(watch, "_TICK_NS", 0)
    tail.look()
    asked: list[str] = []
    stat = os.stat

    def counting(path: str) -> object:
        asked.append(path)
        return stat(path)

    monkeypatch.setattr(os, "stat", counting)
    tail.look()
    of_partitions = [path for path in asked if "/t-" in path]
    assert len(of_partitions) == 20
    assert len(asked) - len(of_partitions) <= 5


# Beside a commit of ours


def beside_a_commit(
    folder: Path, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]
) -> None:
    """Write a batch, and act where it is appended and not yet published."""
    Writer(folder, topic="t").write(0, sink_rows(["a"]))
    publish = Node.publish

    def acting(self: Node, *given: Any) -> Any:
        act()
        return publish(self, *given)

    monkeypatch.setattr(Node, "publish", acting)
    Writer(folder, topic="t").write(1, sink_rows(["b", "c"]))
    monkeypatch.undo()


def test_what_a_commit_publishes_right_after_a_look_is_not_said_to_be_uncommitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tail = tail_of(tmp_path)
    beside_a_commit(tmp_path, monkeypatch, lambda: ends(tail))
    assert tail.ends.unread == {TopicPartition("t", 0): (1, 3)}
    with caplog.at_level(logging.WARNING, "kafkalog"):
        tail.report()
    assert caplog.text == ""


def test_a_commit_that_does_not_end_is_said_and_reading_to_the_log_end_not_advised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tail, rests = tail_of(tmp_path), list[float]()

    def look() -> None:
        ends(tail)
        patch_sleep(monkeypatch, rests.append)
        with caplog.at_level(logging.WARNING, "kafkalog"):
            tail.report()

    beside_a_commit(tmp_path, monkeypatch, look)
    assert len(rests) == 4
    assert "2 offsets of 1 partition are of a commit that has not ended" in caplog.text
    assert "logEnd" not in caplog.text


def test_records_that_nobody_can_have_appended_are_not_advised_to_be_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Writer(tmp_path, topic="t").write(0, sink_rows(["a"]))
    with (tmp_path / "t-0" / f"{0:020d}.log").open("ab") as file:
        file.write(batch_bytes(1, rows(1)))
    tail = tail_of(tmp_path)
    ends(tail)
    with caplog.at_level(logging.WARNING, "kafkalog"):
        tail.report()
    assert "1 offset of 1 partition lie above what is committed" in caplog.text
    assert "`kafkalog broker takeover` takes them over" in caplog.text
    assert "logEnd" not in caplog.text


@pytest.mark.parametrize("is_first", [True, False], ids=["the first look", "one after others"])
def test_a_look_that_was_cut_off_anywhere_is_followed_by_one_that_finds_all(
    log: Path, tmp_path: Path, is_first: bool
) -> None:
    """A signal's exception comes at each place in turn where Python looks for signals."""
    place, is_cut_off = 0, True
    while is_cut_off:
        copy = tmp_path / str(place)
        shutil.copytree(log, copy)
        tail = tail_of(copy)
        if not is_first:
            tail.look()
        write_segment(copy / "t-7", 0, batch_bytes(0, rows(3)))
        put_state(copy, 1, 2)
        expected = ends(tail_of(copy))
        try:
            interrupt_at(place, tail.look)
            is_cut_off = False
        except AlarmError:
            pass
        assert ends(tail) == expected
        shutil.rmtree(copy)
        place += 61
    assert place > 600
