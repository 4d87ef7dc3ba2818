"""Records of ``flush=os`` that did not survive: who notices, and how to continue without them."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.support.sinking import Writer, rows, values_of
from typer.testing import CliRunner

import kafkalog
from kafkalog.checkpoints.broker import (
    CLEANER_OFFSET,
    HIGH_WATERMARK,
    new_topic_id,
    read_offset_checkpoint,
    write_offset_checkpoint,
    write_topic_id,
)
from kafkalog.checkpoints.state_file import load_state
from kafkalog.errors import CommitError, DataLossError
from kafkalog.files.system import system
from kafkalog.jobs.cli.app import app
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.broker.handover import hand_over, take_over
from kafkalog.streaming.admin.recovery import recover
from kafkalog.streaming.commit.states import make_left_durable
from kafkalog.streaming.source.end_offsets import EndOffsets
from kafkalog.streaming.store.policy import SetPolicy
from kafkalog.streaming.store.recovery.unsynced_tail import find_lost_tails
from kafkalog.streaming.store.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kafkalog.checkpoints.commit_state import CommitState

T0 = TopicPartition("t", 0)
COMMAND = "recover --accept-os-loss"


@pytest.fixture
def boots(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Give a list whose last word is the id of the machine's present run."""
    runs = ["first"]
    monkeypatch.setattr(system, "boot_id", lambda: runs[-1])
    return runs


def writer(folder: Path, flush: str, **options: str) -> Writer:
    return Writer(folder, name=flush, topic="t", flush=flush, **options)


def state_of(folder: Path) -> CommitState:
    state = load_state(folder)
    assert state is not None
    return state


def durable_ends(folder: Path) -> dict[int, int]:
    (topic,) = state_of(folder).topics.values()
    return dict(topic.durable_ends)


def wrote(folder: Path) -> Writer:
    """Write two rows durably, then three batches of two rows that are left unsynced."""
    writer(folder, "commit").write(0, rows(["a", "b"]))
    left = writer(folder, "os")
    for batch_id in range(3):
        left.write(batch_id, rows([f"{batch_id}c", f"{batch_id}d"]))
    return left


def log_of(folder: Path) -> Path:
    return max(folder.glob("t-0/*.log"))


def cut(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


def zero(path: Path, start: int, size: int) -> None:
    with path.open("r+b") as file:
        file.seek(start)
        file.write(bytes(size))


def look(folder: Path) -> dict[TopicPartition, int]:
    return EndOffsets([str(folder)], lambda _: True).look().offsets


def test_the_state_keeps_how_far_logs_are_durable(tmp_path: Path, boots: list[str]) -> None:
    del boots
    wrote(tmp_path)
    assert durable_ends(tmp_path) == {0: 2}
    assert state_of(tmp_path).boot == "first"
    writer(tmp_path, "commit").write(1, rows(["e"]))
    assert durable_ends(tmp_path) == {}
    assert state_of(tmp_path).boot is None


@pytest.mark.parametrize("act", [hand_over, take_over])
def test_who_gives_directories_away_or_takes_them_makes_them_durable(
    tmp_path: Path, act: Callable[[list[str]], object], boots: list[str]
) -> None:
    del boots
    wrote(tmp_path)
    act([str(tmp_path)])
    assert durable_ends(tmp_path) == {}


def torn(tmp_path: Path) -> None:
    """Lose the middle one of three batches; the last one is there."""
    log = log_of(tmp_path)
    size = log.stat().st_size
    zero(log, size // 2, size // 4)


def cut_off(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    cut(log, log.stat().st_size * 3 // 4 - 10)


@pytest.mark.parametrize("lose", [torn, cut_off])
def test_until_the_loss_is_accepted_everybody_names_the_command(
    tmp_path: Path, boots: list[str], lose: Callable[[Path], None]
) -> None:
    left = wrote(tmp_path)
    lose(tmp_path)
    boots.append("second")
    with pytest.raises(CommitError, match=COMMAND):
        left.write(3, rows(["e"]))
    for act in (recover, hand_over, take_over):
        with pytest.raises(CommitError, match=COMMAND):
            act([str(tmp_path)])
    with pytest.raises(DataLossError, match=rf"t-0 \[4, 8\).*{COMMAND}"):
        look(tmp_path)


@pytest.mark.parametrize("lose", [torn, cut_off])
def test_accepting_the_loss_says_what_is_gone_and_lets_everybody_continue(
    tmp_path: Path, boots: list[str], lose: Callable[[Path], None]
) -> None:
    left = wrote(tmp_path)
    lose(tmp_path)
    boots.append("second")
    words = ["recover", "--accept-os-loss", str(tmp_path)]
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0
    told = json.loads(done.stdout)
    assert told["lost"] == [{"topic": "t", "partition": 0, "start": 4, "end": 8}]
    assert told["writers"] == ["query:commit, batch 0", "query:os, batch 2"]
    assert look(tmp_path) == {T0: 4}
    assert read_offset_checkpoint(tmp_path, HIGH_WATERMARK) == {T0: 4}
    assert not left.write(2, rows(["2c", "2d"])).appended
    left.write(3, rows(["e"]))
    assert values_of([tmp_path], "t") == {0: ["a", "b", "0c", "0d", "e"]}
    assert CliRunner().invoke(app, words).exit_code == 0


def test_the_command_says_what_the_loss_means(tmp_path: Path, boots: list[str]) -> None:
    wrote(tmp_path)
    cut_off(tmp_path)
    boots.append("second")
    done = CliRunner().invoke(app, ["recover", "--accept-os-loss", str(tmp_path)])
    assert "gone: t-0 [4, 8)" in done.stdout
    assert "set readers back" in done.stdout
    assert "query:os, batch 2" in done.stdout


@pytest.mark.parametrize("left_of_it", [0.5, 0])
@pytest.mark.parametrize("cleaned_to", [None, 0, 12])
def test_a_segment_that_lost_whole_batches_before_the_next_one_is_noticed(
    tmp_path: Path, boots: list[str], cleaned_to: int | None, left_of_it: float
) -> None:
    """In a log that is compacted, too: nothing was cleaned that was not durable."""
    left = writer(tmp_path, "os", segment__bytes="200")
    for batch_id in range(6):
        left.write(batch_id, rows([f"{batch_id}a", f"{batch_id}b"]))
    first, *others = sorted(tmp_path.glob("t-0/*.log"))
    assert len(others) > 1
    cut(first, int(first.stat().st_size * left_of_it))
    if cleaned_to is not None:
        write_offset_checkpoint(tmp_path, CLEANER_OFFSET, {T0: cleaned_to})
    boots.append("second")
    start = 2 if left_of_it else 0
    with pytest.raises(DataLossError, match=rf"t-0 \[{start}, 12\)"):
        look(tmp_path)
    (lost,) = recover([str(tmp_path)], accept_lost_tail=True).lost
    assert (lost.start, lost.end) == (start, 12)
    left.write(6, rows(["e"]))
    assert values_of([tmp_path], "t") == {0: [*["0a", "0b"][:start], "e"]}


def test_what_was_cleaned_away_of_durable_segments_is_no_loss(
    tmp_path: Path, boots: list[str]
) -> None:
    durable = writer(tmp_path, "commit", segment__bytes="100")
    for batch_id in range(4):
        durable.write(batch_id, rows([f"{batch_id}a", f"{batch_id}b"]))
    writer(tmp_path, "os").write(0, rows(["left"]))
    for path in sorted(tmp_path.glob("t-0/*.log"))[1:3]:
        cut(path, 0)
    write_offset_checkpoint(tmp_path, CLEANER_OFFSET, {T0: 6})
    boots.append("second")
    assert look(tmp_path) == {T0: 9}


def test_what_another_topic_of_the_name_lacks_is_no_loss(tmp_path: Path, boots: list[str]) -> None:
    wrote(tmp_path)
    folder = tmp_path / "t-0"
    shutil.rmtree(folder)
    folder.mkdir()
    write_topic_id(folder, new_topic_id())
    boots.append("second")
    with Session([tmp_path], SetPolicy.of_upkeep(1000), holder="a test") as session:
        log_set = session.open()
        assert find_lost_tails(log_set) == []
        assert make_left_durable(log_set) == []


def test_what_was_durable_is_never_given_up(tmp_path: Path, boots: list[str]) -> None:
    wrote(tmp_path)
    cut(log_of(tmp_path), 10)
    boots.append("second")
    before = log_of(tmp_path).read_bytes()
    with pytest.raises(CommitError, match=r"t-0 at offset 0 \(durable up to 2\)"):
        recover([str(tmp_path)], accept_lost_tail=True)
    assert log_of(tmp_path).read_bytes() == before


def test_a_state_without_durable_ends_gives_nothing_up(tmp_path: Path, boots: list[str]) -> None:
    writer(tmp_path, "commit").write(0, rows(["a", "b"]))
    log = log_of(tmp_path)
    cut(log, log.stat().st_size - 10)
    boots.append("second")
    done = recover([str(tmp_path)], accept_lost_tail=True)
    assert done.lost == []
    (problem,) = done.problems
    assert "committed up to 2" in problem


def test_nothing_is_looked_at_while_the_machine_runs_or_where_all_is_there(
    tmp_path: Path, boots: list[str]
) -> None:
    left = wrote(tmp_path)
    assert look(tmp_path) == {T0: 8}
    boots.append("second")
    assert look(tmp_path) == {T0: 8}
    left.write(3, rows(["e"]))
    assert state_of(tmp_path).boot == "second"
    assert durable_ends(tmp_path) == {0: 2}
    assert look(tmp_path) == {T0: 9}


def test_kept_offsets_with_a_gap_between_segments_are_no_loss(
    tmp_path: Path, boots: list[str]
) -> None:
    import pyarrow as pa

    def at(*offsets: int) -> pa.RecordBatch:
        batch = rows([str(offset) for offset in offsets])
        return batch.append_column("offset", pa.array(offsets, pa.int64()))

    kept = writer(tmp_path, "os", preserveOffsets="true", segment__bytes="100")
    kept.write(0, at(0, 1))
    kept.write(1, at(10, 11))
    kept.write(2, at(20, 21))
    assert len(list(tmp_path.glob("t-0/*.log"))) == 3
    boots.append("second")
    assert look(tmp_path) == {T0: 22}


@pytest.mark.parametrize("run", ["run-1", "run-2"])
def test_a_batch_that_comes_again_is_durable_by_what_its_last_run_promises(
    tmp_path: Path, run: str
) -> None:
    wrote(tmp_path)
    again = rows(["2c", "2d"])
    for flush, left in (("os", {0: 2}), ("commit", {})):
        options = {"name": "os", "run": run, "topic": "t", "flush": flush}
        before = state_of(tmp_path).sequence
        assert not Writer(tmp_path, **options).write(2, again).appended
        assert durable_ends(tmp_path) == left
        assert state_of(tmp_path).sequence == before + (flush == "commit")
    assert state_of(tmp_path).boot is None


def test_a_version_that_some_topics_have_is_durable_in_them_too(tmp_path: Path) -> None:
    def write(flush: str, *topics: str) -> bool:
        table = pa.table({"value": list(topics), "topic": list(topics)})
        done = kafkalog.append(
            tmp_path, None, table, transactional_id="me", version=1, options={"flush": flush}
        )
        return done.appended

    def left() -> set[str]:
        return {each.name for each in state_of(tmp_path).topics.values() if each.durable_ends}

    assert write("os", "a", "b")
    assert left() == {"a", "b"}
    assert write("commit", "a", "b", "c")
    assert left() == set()
    assert write("os", "d")
    assert not write("commit", "d")
    assert left() == set()
