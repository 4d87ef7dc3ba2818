"""What a broker, or our sink, does to a directory while a query reads it, step by step."""

from __future__ import annotations

import logging
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.logs import Row, append_batch, batch_bytes, write_checkpoint, write_segment
from tests.support.sinking import Writer, rows
from tests.support.sleeping import patch_sleep
from tests.support.states import up_to
from tests.support.transactions import ABORT, COMMIT, marker, producer_batch

from kafkalog.checkpoints.broker import HIGH_WATERMARK, new_topic_id, write_topic_id
from kafkalog.checkpoints.commit_state import STATE_FILE, CommitState, TopicState
from kafkalog.checkpoints.state_file import state_bytes
from kafkalog.errors import DataLossError, LogDirectoryError
from kafkalog.model import TopicPartition
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.source.batch_plan import plan_batch
from kafkalog.streaming.source.end_offsets import EndOffsets, StalledLogEnds
from kafkalog.streaming.source.reading import read_split
from kafkalog.streaming.source.schema import RowSchema, source_schema
from kafkalog.streaming.source.stream_control import StreamControl
from kafkalog.streaming.store import log_dirs
from kafkalog.streaming.store.ends import tracked_log as seen_log
from kafkalog.streaming.store.ends import tracked_log as seen_logs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kafkalog.streaming.source.planner import LogSplit

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))
ROWS = RowSchema.of(source_schema(include_headers=False))


def put(folder: Path, start: int, count: int, value: bytes = b"v") -> None:
    """Append so many rows, in one batch, from an offset on."""
    batch = batch_bytes(start, [Row(value)] * count)
    if start:
        append_batch(folder / f"{0:020d}.log", batch)
    else:
        write_segment(folder, 0, batch)


def make_topic(log: Path, *counts: int, name: str = "t") -> str:
    """Make a topic, again if it is there: so many rows in each partition, its id as their value."""
    topic_id = new_topic_id()
    for partition, count in enumerate(counts):
        folder = log / f"{name}-{partition}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        write_topic_id(folder, topic_id)
        put(folder, 0, count, topic_id.encode())
    return topic_id


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Give a broker's directory with t-0 [0, 10) and t-1 [0, 4), all of it committed."""
    make_topic(tmp_path / "log", 10, 4)
    write_checkpoint(tmp_path / "log", HIGH_WATERMARK, {"t-0": 10, "t-1": 4})
    return tmp_path / "log"


def options(*logs: Path, **given: str) -> ReadOptions:
    paths = ",".join(map(str, logs))
    defaults = {"path": paths, "subscribePattern": "^[tu]$", "startingOffsets": "earliest"}
    return ReadOptions.parse(defaults | {"fetchOffset.retryIntervalMs": "0"} | given)


def control(*logs: Path, **given: str) -> StreamControl:
    return StreamControl(options(*logs, **given))


def kept(log: Path) -> dict[str, str]:
    return {"stateLocation": str(log.parent / "state")}


def spans(splits: list[LogSplit]) -> dict[str, tuple[int, int]]:
    return {
        str(split.topic_partition): (split.slices[0].start_offset, split.slices[-1].end_offset)
        for split in splits
    }


class Query:
    """Runs micro-batches as Spark does, and keeps what they read by topic, partition, offset."""

    def __init__(self, *logs: Path, **given: str) -> None:
        self.options = options(*logs, **given)
        self.stream = StreamControl(self.options)
        self.offsets = self.stream.initial()
        self.rows: list[tuple[str, int, int, bytes]] = []

    def run(self) -> None:
        """Run batches until there is nothing new."""
        while (end := self.stream.next_end(self.offsets, take_all=False)) != self.offsets:
            for split in self.stream.plan(self.offsets, end):
                for batch in read_split(split, self.options, ROWS):
                    found = batch.select(["topic", "partition", "offset", "value"]).to_pylist()
                    self.rows += [tuple(row.values()) for row in found]
            self.offsets = end

    def values(self, topic: str) -> list[tuple[int, int, bytes]]:
        return sorted(row[1:] for row in self.rows if row[0] == topic)


def rows_of(partition: int, count: int, topic_id: str) -> list[tuple[int, int, bytes]]:
    return [(partition, offset, topic_id.encode()) for offset in range(count)]


# Partitions that the checkpoint does not name yet


def ends(*logs: Path, to_log_end: bool = False) -> dict[str, int]:
    tail = EndOffsets(map(str, logs), lambda _: True, to_log_end=to_log_end)
    return {str(key): end for key, end in tail.look().offsets.items()}


def test_of_a_partition_that_its_directorys_checkpoint_does_not_name_nothing_is_committed(
    log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_checkpoint(log, HIGH_WATERMARK, {"t-1": 4})
    assert ends(log) == {"t-0": 0, "t-1": 4}
    assert ends(log, to_log_end=True) == {"t-0": 10, "t-1": 4}
    tail = EndOffsets([str(log)], lambda _: True)
    tail.look()
    tail.report()
    assert "t-0 [0, 10)" in caplog.text
    (log / HIGH_WATERMARK).unlink()
    assert ends(log) == {"t-0": 10, "t-1": 4}


def test_krafts_own_log_is_named_in_no_checkpoint_and_read_when_it_is_named(log: Path) -> None:
    make_topic(log, 3, name="__cluster_metadata")
    tail = EndOffsets([str(log / "__cluster_metadata-0")], lambda _: True)
    assert tail.look().offsets == {TopicPartition("__cluster_metadata", 0): 3}


def test_a_partition_that_our_commit_state_names_needs_no_line_in_the_checkpoint(log: Path) -> None:
    topic_id = make_topic(log, 10, 4)
    write_checkpoint(log, HIGH_WATERMARK, {"t-1": 4})
    state = CommitState(1, "set", "one", ("one",), {topic_id: TopicState("t", up_to({0: 7}))})
    (log / STATE_FILE).write_bytes(state_bytes(state))
    assert ends(log) == {"t-0": 7, "t-1": 4}


def test_each_directory_has_a_checkpoint_of_its_own(log: Path) -> None:
    other = log.parent / "other"
    put(other / "t-2", 0, 6)
    assert ends(log, other) == {"t-0": 10, "t-1": 4, "t-2": 6}  # a bare copy beside
    (other / HIGH_WATERMARK).write_bytes(b"")
    assert ends(log, other) == {"t-0": 10, "t-1": 4, "t-2": 0}


def test_rows_of_a_new_partition_come_once_when_they_are_known_to_be_committed(log: Path) -> None:
    query = Query(log)
    query.run()
    query.rows.clear()
    put(log / "t-2", 0, 6)
    query.run()
    assert query.offsets == {T0: 10, T1: 4, T2: 0}
    for committed, count in ((3, 9), (6, 12), (12, 12)):
        write_checkpoint(log, HIGH_WATERMARK, {"t-0": 10, "t-1": 4, "t-2": committed})
        put(log / "t-2", count - 3, 3)
        query.run()
    assert [row[:3] for row in query.rows] == [("t", 2, offset) for offset in range(12)]


# Ends that go back


@pytest.mark.parametrize("fail", ["true", "false"])
def test_what_was_read_above_what_a_broker_tells_on_disk_is_waited_at_and_no_loss(
    log: Path, fail: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As after a query over the broker itself, which tells on disk seconds later."""
    caplog.set_level(logging.INFO, "kafkalog.source")
    write_checkpoint(log, HIGH_WATERMARK, {"t-0": 6, "t-1": 4})
    read = {T0: 9, T1: 4}
    stream = control(log, failOnDataLoss=fail)
    stream.freeze_targets()
    assert stream.next_end(read, take_all=False) == read
    assert stream.plan(read, read) == []
    stream = control(log, failOnDataLoss=fail)
    caplog.clear()
    for _ in range(3):
        assert stream.next_end(read, take_all=False) == read
    assert caplog.text.count('until as much is committed again: {"t": {"0": 9}}') == 1
    write_checkpoint(log, HIGH_WATERMARK, {"t-0": 10, "t-1": 4})
    end = stream.next_end(read, take_all=False)
    assert spans(stream.plan(read, end)) == {"t-0": (9, 10)}


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_batch_that_was_planned_is_read_above_what_a_broker_tells_on_disk(
    log: Path, fail: str
) -> None:
    write_checkpoint(log, HIGH_WATERMARK, {"t-0": 6, "t-1": 4})
    stream = control(log, failOnDataLoss=fail)
    assert spans(stream.plan({T0: 5, T1: 4}, {T0: 9, T1: 4})) == {"t-0": (5, 9)}
    with pytest.raises(DataLossError, match=r"\[6, 12\) cannot be read"):
        control(log).plan({T0: 5, T1: 4}, {T0: 12, T1: 4})


@pytest.mark.parametrize("kind", [COMMIT, ABORT, None])
def test_a_batch_cut_within_a_transaction_that_has_ended_is_read_though_the_end_goes_back(
    log: Path, kind: int | None
) -> None:
    """What was planned of an open one was never the last stable offset."""
    ended = marker(20, 7, COMMIT if kind is None else kind)
    batches = producer_batch(0, 10, 7) + producer_batch(10, 10, 7) + ended
    write_segment(log / "t-0", 0, batches)
    write_checkpoint(log, HIGH_WATERMARK, {"t-0": 21, "t-1": 4})
    given = {"kafka.isolation.level": "read_committed", "maxOffsetsPerTrigger": "19"}
    stream = control(log, **given)
    end = stream.next_end(stream.initial(), take_all=False)
    assert end == {T0: 15, T1: 3}
    write_checkpoint(log, HIGH_WATERMARK, {"t-0": 5, "t-1": 4})
    if kind is None:
        (log / "t-0" / f"{0:020d}.log").write_bytes(batches.removesuffix(ended))
        with pytest.raises(DataLossError, match=r"\[3, 15\) cannot be read"):
            control(log, **given).plan({T0: 3, T1: 3}, end)
        return
    for planning in (stream, control(log, **given)):
        splits = planning.plan({T0: 3, T1: 3}, end)
        rows = [
            offset
            for split in splits
            for batch in read_split(split, options(log, **given), ROWS)
            for offset in batch["offset"].to_pylist()
        ]
        assert rows == ([] if kind == ABORT else [*range(3, 15)])


def test_a_target_that_was_planned_is_kept_though_the_end_goes_back(log: Path) -> None:
    stream = control(log, maxOffsetsPerTrigger="7")
    stream.freeze_targets()
    middle = stream.next_end(stream.initial(), take_all=False)
    write_checkpoint(log, HIGH_WATERMARK, {"t-0": 2, "t-1": 1})
    stream.plan(stream.initial(), middle)
    end = stream.next_end(middle, take_all=False)
    assert end == {T0: 10, T1: 4}
    assert spans(stream.plan(middle, end)) == {"t-0": (middle[T0], 10), "t-1": (middle[T1], 4)}


def test_an_offset_beyond_the_log_is_a_loss_wherever_what_is_committed_ends(log: Path) -> None:
    write_checkpoint(log, HIGH_WATERMARK, {"t-0": 6, "t-1": 4})
    with pytest.raises(DataLossError, match="t-0 from 11 to 6"):
        control(log).next_end({T0: 11, T1: 4}, take_all=False)


def test_an_offset_that_the_log_has_come_to_since_it_was_read_is_waited_at(log: Path) -> None:
    write_checkpoint(log, HIGH_WATERMARK, {"t-0": 6, "t-1": 4})
    stream = control(log)
    assert stream.initial() == {T0: 0, T1: 0}
    put(log / "t-0", 10, 5)
    assert stream.next_end({T0: 15, T1: 4}, take_all=False) == {T0: 15, T1: 4}


def test_a_log_that_was_read_before_it_came_to_an_offset_is_read_again(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that is committed of it was seen, so that it waits for its turn to be looked at."""
    monkeypatch.setattr(seen_logs, "_TAKEN_IN_TURN", 0)  # its turn does not come
    write_checkpoint(log, HIGH_WATERMARK, {"t-0": 6, "t-1": 4})
    stream = control(log)
    assert stream.next_end({T0: 6, T1: 4}, take_all=False) == {T0: 6, T1: 4}
    put(log / "t-0", 10, 5)
    assert stream.next_end({T0: 15, T1: 4}, take_all=False) == {T0: 15, T1: 4}


def test_what_stays_uncommitted_for_long_is_said_and_said_again_ever_later(
    log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_checkpoint(log, HIGH_WATERMARK, {"t-0": 6, "t-1": 4})
    put(log / "t-2", 0, 5)  # no broker tells of it
    stream, now, said = control(log), [0.0], []
    read = {T0: 9, T1: 4, T2: 0}
    stream.next_end(read, take_all=True)
    stream._stuck = StalledLogEnds(lambda: now[0])
    for minute in range(9):
        now[0] = minute * 60.0
        caplog.clear()
        assert stream.next_end(read, take_all=True) == read
        said += [minute for text in caplog.messages if "t-0 [6, 10), t-2 [0, 5)" in text]
    assert said == [1, 2, 4, 8]
    write_checkpoint(log, HIGH_WATERMARK, {"t-0": 7, "t-1": 4, "t-2": 5})
    caplog.clear()
    for seconds in (500.0, 559.0):
        now[0] = seconds
        stream.next_end(read, take_all=True)
    assert caplog.messages == []
    now[0] = 560.0
    stream.next_end(read, take_all=True)
    (text,) = caplog.messages
    assert "3 offsets of 1 partition are in the log and have not become committed for 60 s" in text


def test_an_end_that_goes_back_with_another_topic_is_that_of_a_topic_recreated(log: Path) -> None:
    stream = control(log)
    end = stream.next_end(stream.initial(), take_all=False)
    make_topic(log, 50, 60)
    write_checkpoint(log, HIGH_WATERMARK, {"t-0": 6, "t-1": 4})
    with pytest.raises(DataLossError, match="deleted and recreated: t-0 from 10"):
        stream.next_end(end, take_all=False)


# What seems lost when a batch is planned


def on_sleep(monkeypatch: pytest.MonkeyPatch, step: Callable[[], None]) -> None:
    """Take a step at the first rest between two looks."""
    steps = [step]

    def sleep(_: float) -> None:
        if steps:
            steps.pop()()

    patch_sleep(monkeypatch, sleep)


@pytest.mark.parametrize("fail", ["true", "false"])
def test_what_seems_lost_to_a_batch_is_looked_at_as_often_as_is_asked_for(
    log: Path, fail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"failOnDataLoss": fail, "fetchOffset.numRetries": "2"}
    stream = control(log, **given)
    end = stream.next_end(stream.initial(), take_all=False)
    away = log.parent / "away"
    (log / "t-0").rename(away)
    on_sleep(monkeypatch, lambda: away.rename(log / "t-0") and None)
    assert spans(stream.plan(stream.initial(), end)) == {"t-0": (0, 10), "t-1": (0, 4)}
    (log / "t-0").rename(away)
    with pytest.raises(DataLossError, match="t-0"):
        control(log, **{"fetchOffset.numRetries": "1"}).plan({T0: 5, T1: 4}, end)


@pytest.mark.parametrize("start", [0, 1])
def test_what_seems_lost_to_a_stream_is_looked_at_as_often_as_is_asked_for(
    tmp_path: Path, start: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Writer(tmp_path, topic="t").write(0, rows(["a", "b"]))
    segment = tmp_path / "t-0" / f"{0:020d}.log"
    whole = segment.read_bytes()
    segment.write_bytes(b"")
    on_sleep(monkeypatch, lambda: segment.write_bytes(whole) and None)
    stream = control(tmp_path, **{"fetchOffset.numRetries": "2"})
    assert stream.next_end({T0: start}, take_all=False) == {T0: 2}
    segment.write_bytes(b"")
    stream = control(tmp_path, **{"fetchOffset.numRetries": "1", "failOnDataLoss": "false"})
    for _ in range(3):
        stream.next_end({T0: start}, take_all=False)
    assert caplog.text.count("are no longer in the log") == 1


# Topics that are made again


def test_a_batch_that_adds_a_partition_reads_nothing_of_a_topic_made_again_since(
    log: Path,
) -> None:
    (log / HIGH_WATERMARK).unlink()
    given = {"failOnDataLoss": "false", **kept(log)}
    stream = control(log, **given)
    start = stream.next_end(stream.initial(), take_all=False)
    make_topic(log, 7, name="u")
    end = stream.next_end(start, take_all=False)
    u0 = TopicPartition("u", 0)
    assert end == {**start, u0: 7}
    make_topic(log, 50, name="u")
    with pytest.raises(DataLossError, match=r"u-0: the 7 offsets \[0, 7\) .* recreated"):
        control(log, **kept(log)).plan(start, end)
    for planning in (stream, control(log, **given)):  # at once, or when the query starts again
        assert planning.plan(start, end) == []
        after = planning.next_end(end, take_all=False)
        assert after == {**start, u0: 0}
        last = planning.next_end(after, take_all=False)
        assert spans(planning.plan(after, last)) == {"u-0": (0, 50)}


def test_a_topic_that_is_made_again_while_its_folder_is_read_comes_once(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sink makes the folder, then ``partition.metadata``, then the log."""
    (log / HIGH_WATERMARK).unlink()
    make_topic(log, 3, name="u")
    query = Query(log, failOnDataLoss="false", **kept(log))
    query.run()
    shutil.rmtree(log / "u-0")
    query.run()
    query.rows.clear()
    (log / "u-0").mkdir()
    read, made = seen_log.read_topic_id, []

    def between(folder: Path) -> str | None:
        found = read(folder)
        if folder.name == "u-0" and not made:
            assert found is None
            made.append(make_topic(log, 5, name="u"))
        return found

    monkeypatch.setattr(seen_log, "read_topic_id", between)
    query.run()
    put(log / "u-0", 5, 2, made[0].encode())
    query.run()
    assert query.values("u") == rows_of(0, 7, made[0])


def test_a_log_that_is_recreated_while_it_is_read_is_not_taken_for_the_one_before(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old id was read by then, and the new log reaches beyond what was read of the old one."""
    (log / HIGH_WATERMARK).unlink()
    stream = control(log)
    end = stream.next_end(stream.initial(), take_all=False)
    read, made = seen_log.read_topic_id, []

    def between(folder: Path) -> str | None:
        found = read(folder)
        if folder.name == "t-0" and not made:
            made.append(make_topic(log, 50))
        return found

    monkeypatch.setattr(seen_log, "read_topic_id", between)
    put(log / "t-0", 10, 1)
    with pytest.raises(DataLossError, match="deleted and recreated: t-0 from 10"):
        stream.next_end(end, take_all=False)


def test_a_topic_without_an_id_that_came_after_another_one_is_not_given_again_when_it_gets_one(
    log: Path,
) -> None:
    (log / HIGH_WATERMARK).unlink()
    make_topic(log, 3, name="u")
    query = Query(log, failOnDataLoss="false", **kept(log))
    query.run()
    shutil.rmtree(log / "u-0")
    query.run()
    query.rows.clear()
    put(log / "u-0", 0, 5, b"x")
    query.run()
    write_topic_id(log / "u-0", new_topic_id())
    put(log / "u-0", 5, 2, b"x")
    query.run()
    assert query.values("u") == rows_of(0, 7, "x")


def test_the_id_of_a_partition_that_has_left_is_kept_until_the_checkpoint_says_so(
    log: Path,
) -> None:
    """A run that is killed before Spark has written the end down knows the topic still."""
    make_topic(log, 3, name="u")
    (log / HIGH_WATERMARK).unlink()
    given = {"failOnDataLoss": "false", **kept(log)}
    stream = control(log, **given)
    start = stream.next_end(stream.initial(), take_all=False)
    shutil.rmtree(log / "u-0")
    assert stream.next_end(start, take_all=False) == {T0: 10, T1: 4}
    make_topic(log, 50, name="u")
    with pytest.raises(DataLossError, match="u-0 from 3 to 50"):
        control(log, **kept(log)).next_end(start, take_all=False)


# Replicas that move between log directories


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Give another directory of the same broker, which has nothing yet."""
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / HIGH_WATERMARK).write_bytes(b"")
    return folder


def copied(log: Path, other: Path, name: str = "t-0") -> None:
    """What a broker does first: copy a replica, and give the copy its name."""
    shutil.copytree(log / name, other / name)


def retired(log: Path, name: str = "t-0") -> None:
    """... then the other one loses it."""
    (log / name).rename(log / f"{name}.8f5c9b0de0f94a2e9d6a4f8a3c1e7b21-delete")


def test_a_partition_that_has_two_folders_while_it_moves_is_looked_at_again(
    log: Path, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied(log, other)
    on_sleep(monkeypatch, lambda: retired(log))
    found = log_dirs.LogDirs([log, other]).partitions()
    assert found[T0].path == other / "t-0"
    copied(log, other, "t-1")
    with pytest.raises(LogDirectoryError, match=r"t-1 lives in .*log/t-1 and in .*other/t-1"):
        log_dirs.LogDirs([log, other]).partitions()


@pytest.mark.parametrize("bound", [{}, {"startingTimestamp": "0"}])
@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_partition_that_moves_after_the_look_is_planned_where_it_is_now(
    log: Path,
    other: Path,
    monkeypatch: pytest.MonkeyPatch,
    fail: str,
    bound: dict[str, str],
) -> None:
    write_checkpoint(other, HIGH_WATERMARK, {"t-0": 10})
    look, places = EndOffsets.look, [log, other]

    def moving(self: EndOffsets, *given: Any) -> Any:
        """Let each look be followed by a move."""
        found = look(self, *given)
        before, after = places
        copied(before, after)
        shutil.rmtree(before / "t-0")
        places.reverse()
        return found

    monkeypatch.setattr(EndOffsets, "look", moving)
    given = {"failOnDataLoss": fail, **bound}
    assert spans(plan_batch(options(log, other, **given))) == {"t-0": (0, 10), "t-1": (0, 4)}
    stream = control(log, other, **given)
    assert stream.initial() == {T0: 0, T1: 0}
    assert spans(stream.plan({T0: 0, T1: 0}, {T0: 10, T1: 4})) == {"t-0": (0, 10), "t-1": (0, 4)}


@pytest.mark.parametrize("fail", ["true", "false"])
def test_what_seems_lost_to_a_batch_query_is_looked_at_again(
    log: Path, fail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    away, look = log.parent / "away", EndOffsets.look

    def losing(self: EndOffsets) -> Any:
        """Let the folder be away after the first look, and back at the next."""
        if away.exists():
            away.rename(log / "t-0")
            return look(self)
        found = look(self)
        (log / "t-0").rename(away)
        return found

    monkeypatch.setattr(EndOffsets, "look", losing)
    splits = plan_batch(options(log, failOnDataLoss=fail))
    assert spans(splits) == {"t-0": (0, 10), "t-1": (0, 4)}
    stream = control(log, failOnDataLoss=fail)
    monkeypatch.setattr(EndOffsets, "look", lambda self, _=None: losing(self))
    assert stream.initial() == {T0: 0, T1: 0}


def test_a_partition_that_moves_while_directories_are_listed_is_found(
    log: Path, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing, moves = log_dirs.list_folders, [other]

    def listed(path: Path, *known: Any) -> Any:
        found = listing(path, *known)
        if path in moves:
            moves.clear()
            copied(log, other)
            retired(log)
        return found

    monkeypatch.setattr(log_dirs, "list_folders", listed)
    assert log_dirs.LogDirs([other, log]).partitions()[T0].path == other / "t-0"
    assert moves == []


def test_a_query_waits_until_the_other_directory_says_what_is_committed(
    log: Path, other: Path
) -> None:
    query = Query(log, other)
    query.run()
    copied(log, other)
    retired(log)
    put(other / "t-0", 10, 5)
    query.run()
    assert query.offsets == {T0: 10, T1: 4}
    write_checkpoint(other, HIGH_WATERMARK, {"t-0": 15})
    query.run()
    assert [row[2] for row in query.rows if row[1] == 0] == [*range(15)]


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_batch_whose_partition_has_moved_reads_on_in_the_other_directory(
    log: Path, other: Path, fail: str
) -> None:
    put(log / "t-0", 10, 5)
    write_checkpoint(log, HIGH_WATERMARK, {"t-0": 15, "t-1": 4})
    query = Query(log, other, failOnDataLoss=fail)
    end = query.stream.next_end(query.offsets, take_all=False)
    splits = query.stream.plan(query.offsets, end)
    copied(log, other)
    retired(log)
    shutil.rmtree(next(log.glob("*-delete")))
    assert spans(query.stream.plan(query.offsets, end)) == spans(splits)
    found = [
        (str(split.topic_partition), offset)
        for split in splits
        for batch in read_split(split, query.options, ROWS)
        for offset in batch.column("offset").to_pylist()
    ]
    expected = {"t-0": [*range(15)], "t-1": [*range(4)]}
    assert found == [(name, offset) for name, some in expected.items() for offset in some]


def test_a_task_does_not_take_another_topic_in_the_other_directory_for_its_own(
    log: Path, other: Path
) -> None:
    query = Query(log, other)
    end = query.stream.next_end(query.offsets, take_all=False)
    (split, _) = query.stream.plan(query.offsets, end)
    make_topic(other, 50)
    retired(log)
    with pytest.raises(DataLossError, match=r"\[0, 10\) cannot be read"):
        list(read_split(split, query.options, ROWS))
