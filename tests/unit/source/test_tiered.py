"""A broker has moved a log's first records to a remote tier: the rest is not taken for all.

What such a directory looks like was seen on a broker of Kafka 4.1.0: the log start in
``log-start-offset-checkpoint`` lies below the first segment, or the file does not name it yet.
"""

from __future__ import annotations

import errno
import json
import logging
import os
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.logs import Row, batch_bytes, write_checkpoint, write_segment
from tests.support.replicated import append, path_of, values
from typer.testing import CliRunner

import kafkalog
from kafkalog.checkpoints.broker import LEADER_EPOCHS, LOG_START_OFFSET, read_offset_checkpoint
from kafkalog.checkpoints.commit_state import PartitionState
from kafkalog.checkpoints.state_file import load_state
from kafkalog.errors import DataLossError
from kafkalog.jobs.cli.app import app
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.backup import back_up
from kafkalog.streaming.admin.retention import delete_records
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.source.stream_control import StreamControl
from kafkalog.streaming.spark.listeners import lag

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
AT_ONCE = {"fetchOffset.retryIntervalMs": "0"}
GO_ON = {**AT_ONCE, "failOnDataLoss": "false"}
IN_A_TIER = r"t-0.*\[0, 5\) are not in the log directory: a broker has moved them to a remote tier"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Give t-0 [0, 10), of which [0, 5) is in a remote tier, and t-1 [0, 4); times are 1000 + n."""
    folder = tmp_path / "log"
    for number, first, count in ((0, 5, 5), (1, 0, 4)):
        rows = [Row(timestamp=1000 + first + n) for n in range(count)]
        write_segment(folder / f"t-{number}", first, batch_bytes(first, rows))
    write_checkpoint(folder, LOG_START_OFFSET, {"t-0": 0, "t-1": 0})
    write_checkpoint(folder, "replication-offset-checkpoint", {"t-0": 10, "t-1": 4})
    return folder


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def offsets(log: Path, **options: str) -> list[int]:
    rows = kafkalog.read(log, "t", options=AT_ONCE | options).read_all()
    return sorted(rows.filter(rows["partition"].to_numpy() == 0)["offset"].to_pylist())


def test_a_read_from_the_start_says_what_is_not_here(log: Path) -> None:
    with pytest.raises(DataLossError, match=IN_A_TIER):
        offsets(log)


@pytest.mark.parametrize("view", ["batches", "records"])
def test_each_view_says_it(log: Path, view: str) -> None:
    with pytest.raises(DataLossError, match=IN_A_TIER):
        kafkalog.read(log, "t", options={**AT_ONCE, "view": view}).read_all()


def test_a_reader_that_goes_on_is_told(log: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert offsets(log, **GO_ON) == [5, 6, 7, 8, 9]
    assert "a remote tier" in caplog.text


def test_what_is_here_is_read_without_a_word(log: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert offsets(log, startingOffsets='{"t":{"0":5,"1":0}}') == [5, 6, 7, 8, 9]
    assert offsets(log, startingTimestamp="1006", startingOffsetsByTimestampStrategy="latest") == [
        *range(6, 10)
    ]
    assert "tier" not in caplog.text


def test_a_time_that_may_lie_in_the_tier_starts_there(log: Path) -> None:
    with pytest.raises(DataLossError, match=IN_A_TIER):
        offsets(log, startingTimestamp="1002")


def test_a_stream_from_the_start_says_it(log: Path) -> None:
    given = {"path": str(log), "subscribe": "t", "startingOffsets": "earliest", **AT_ONCE}
    stream = StreamControl(ReadOptions.parse(given))
    start = stream.initial()
    end = stream.next_end(start, take_all=False)
    with pytest.raises(DataLossError, match=IN_A_TIER):
        stream.plan(start, end)


def test_a_tail_from_the_start_says_it(log: Path) -> None:
    given = {**AT_ONCE, "startingOffsets": "earliest"}
    with pytest.raises(DataLossError, match=IN_A_TIER):
        next(kafkalog.tail(log, "t", idle_timeout=0, options=given))


def test_a_line_above_0_counts_where_the_broker_tiers(log: Path) -> None:
    write_checkpoint(log, LOG_START_OFFSET, {"t-0": 2})
    (log / "remote-log-index-cache").mkdir()
    with pytest.raises(DataLossError, match=r"\[2, 5\) are not in the log directory"):
        offsets(log)


def test_a_line_above_0_may_be_old_without_a_tier(
    log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker that is killed after a deletion leaves it."""
    write_checkpoint(log, LOG_START_OFFSET, {"t-0": 2})
    assert offsets(log) == [5, 6, 7, 8, 9]
    assert "starts at offset 2, and its first segment here starts at 5" in caplog.text


@pytest.mark.parametrize("epoch_start", [2, 5])
def test_epochs_tell_of_a_topic_that_a_broker_does_not_tier(
    log: Path, epoch_start: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Records were deleted up to 2, then a segment, and then the broker was killed."""
    write_checkpoint(log, LOG_START_OFFSET, {"t-0": 2})
    (log / "remote-log-index-cache").mkdir()
    (log / "t-0" / LEADER_EPOCHS).write_text(f"0\n1\n0 {epoch_start}\n")
    if epoch_start == 2:
        with pytest.raises(DataLossError, match=r"\[2, 5\) are not in the log directory"):
            offsets(log)
        return
    assert offsets(log) == [5, 6, 7, 8, 9]
    assert "starts at offset 2, and its first segment here starts at 5" in caplog.text


def test_a_line_that_a_takeover_has_seen_through_is_no_matter(
    log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Else each reader would warn of it until the log starts later."""
    write_checkpoint(log, LOG_START_OFFSET, {"t-0": 2})
    assert run("takeover", log).exit_code == 0
    caplog.clear()
    for view in ("records", "batches"):
        kafkalog.read(log, "t", options={**AT_ONCE, "view": view}).read_all()
    assert not caplog.messages


@pytest.mark.parametrize("tiers", [True, False])
def test_the_first_epoch_tells_before_the_checkpoint_does(log: Path, *, tiers: bool) -> None:
    """Without a tier, an epoch that begins below the log is of a broker that was killed."""
    (log / LOG_START_OFFSET).unlink()
    (log / "t-0" / LEADER_EPOCHS).write_text("0\n1\n3 0\n")
    if not tiers:
        assert offsets(log) == [5, 6, 7, 8, 9]
        return
    (log / "remote-log-index-cache").mkdir()
    with pytest.raises(DataLossError, match=IN_A_TIER):
        offsets(log)


def test_lag_counts_what_is_not_here(log: Path) -> None:
    assert lag(str(log), '{"t":{"1":1}}') == {T0: 10, T1: 3}


@pytest.mark.parametrize("command", ["offsets", "describe"])
def test_commands_that_look_warn(log: Path, command: str, caplog: pytest.LogCaptureFixture) -> None:
    found = run(command, str(log), "--json")
    rows = [json.loads(line) for line in found.stdout.splitlines()]
    assert [row["start"] for row in rows] == [0 if command == "offsets" else 5, 0]
    assert "t-0: offsets [0, 5) are not in the log directory" in caplog.text


def test_dump_warns(log: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = run("dump", str(log), "--topic", "t", "--json")
    assert found.exit_code == 0
    assert "t-0: offsets [0, 5) are not in the log directory" in caplog.text


@pytest.mark.parametrize(
    "words",
    [("verify",), ("find", "--text", "x"), ("stats",), ("dump", "--topic", "t", "--records")],
)
def test_commands_that_answer_for_all_end_with_a_problem(log: Path, words: tuple[str, ...]) -> None:
    found = run(words[0], str(log), *words[1:])
    assert found.exit_code
    assert "[0, 5) are not in the log" in " ".join((found.stdout + found.stderr).split())


def test_a_backup_says_what_it_lacks_and_its_copy_too(
    log: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        back_up([str(log)], str(tmp_path / "copy"))
    assert "t-0: offsets [0, 5) are not in the log directory" in caplog.text
    with pytest.raises(DataLossError, match=IN_A_TIER):
        offsets(tmp_path / "copy")


def test_a_takeover_keeps_the_start_and_a_consumer_is_told(log: Path) -> None:
    """A broker would delete what the tier has below a later start."""
    assert run("takeover", log).exit_code == 0
    state = load_state(log)
    assert state is not None
    assert state.partition("t", None, 0) == PartitionState(0, 10, 10, 0)
    assert read_offset_checkpoint(log, LOG_START_OFFSET) == {T0: 0, T1: 0}
    options = {**AT_ONCE, "startingOffsets": "earliest"}
    with (
        kafkalog.Consumer(log, "g", "t", options=options) as consumer,
        pytest.raises(DataLossError, match=IN_A_TIER),
    ):
        consumer.poll(5)


def test_a_plan_does_not_ask_each_directory_of_a_tier_for_each_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / name for name in "abc"]
    for number in range(6):
        write_segment(folders[number % 3] / f"t-{number}", 5, batch_bytes(5, [Row()]))
    for at, folder in enumerate(folders):
        ends = {f"t-{number}": 6 for number in range(at, 6, 3)}
        write_checkpoint(folder, "replication-offset-checkpoint", ends)
    given = {"path": ",".join(map(str, folders)), "subscribe": "t", "startingOffsets": "earliest"}
    stream = StreamControl(ReadOptions.parse(given))
    start = stream.initial()
    end = stream.next_end(start, take_all=False)
    asked: list[str] = []
    stat = os.stat

    def noting(path: Any, **kwargs: Any) -> os.stat_result:
        asked.append(str(path))
        return stat(path, **kwargs)

    monkeypatch.setattr(os, "stat", noting)
    assert len(stream.plan(start, end)) == 6
    assert not [path for path in asked if "remote-log" in path]


def test_a_node_that_cannot_be_asked_for_a_tier_is_no_hindrance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [tmp_path / name for name in "abc"]
    append(nodes, 1, ["x"] * 9, numPartitions="1")
    delete_records([path_of(nodes)], {T0: 4})
    stat = os.stat

    def failing(path: Any, **kwargs: Any) -> os.stat_result:
        if str(path).startswith(f"{nodes[2]}/remote-log"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return stat(path, **kwargs)

    monkeypatch.setattr(os, "stat", failing)
    assert values(nodes) == ["x"] * 5
