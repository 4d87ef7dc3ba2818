"""What a process knows from its last commit is used while it is true, and only then."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.support.logs import Row, append_batch, batch_bytes
from tests.support.sinking import Writer, adopt_small_files, rows, values_of

from kafkalog.checkpoints.broker import (
    HIGH_WATERMARK,
    LOG_START_OFFSET,
    META_PROPERTIES,
    PARTITION_METADATA,
    LeaderEpoch,
    new_topic_id,
    read_leader_epochs,
    read_offset_checkpoint,
    read_topic_id,
    write_leader_epochs,
    write_offset_checkpoint,
    write_topic_id,
)
from kafkalog.checkpoints.state_file import load_state
from kafkalog.checkpoints.topic_ids import note_changed_ids
from kafkalog.errors import CommitError, LogDirectoryError
from kafkalog.model import TopicPartition
from kafkalog.streaming.commit import append as kept_appenders
from kafkalog.streaming.commit.append import AppenderCache
from kafkalog.streaming.commit.tail_recovery import TailRecovery
from kafkalog.streaming.store.log_set import LogSet

STAMPS = [1_700_000_000_000]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note the folders whose logs are read at their ends."""
    seen: list[str] = []
    original = TailRecovery.open

    def note(log: TailRecovery, **named: Any) -> object:
        seen.append(log.folder.name)
        return original(log, **named)

    monkeypatch.setattr(TailRecovery, "open", note)
    return seen


def one_row(value: str) -> object:
    return rows([value], timestamps=STAMPS)


def test_the_end_of_a_log_is_read_once_by_a_process_that_goes_on(
    tmp_path: Path, opened: list[str]
) -> None:
    writer = Writer(tmp_path, topic="t", numPartitions="2")
    for batch_id in range(4):
        writer.write(batch_id, rows(["a", "b"], partitions=[0, 1]))
    assert opened == ["t-0", "t-1"]
    assert values_of([tmp_path], "t") == {0: ["a"] * 4, 1: ["b"] * 4}


@pytest.mark.long
@pytest.mark.parametrize("adopts", [False, True])
def test_files_are_byte_for_byte_those_of_a_process_that_knows_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, adopts: bool
) -> None:
    if adopts:
        adopt_small_files(monkeypatch)
    for folder, forgets in (("knows", False), ("forgets", True)):
        writer = Writer(
            tmp_path / folder, topic="t", segment__bytes="1000", index__interval__bytes="100"
        )
        for batch_id in range(25):
            if forgets:
                writer.appenders = AppenderCache()
            size = 1 + 37 * batch_id % 200
            writer.write(batch_id, rows(["x" * size] * 2, timestamps=STAMPS * 2))
    known = tmp_path / "knows" / "t-0"
    names = {path.name for path in known.iterdir()}
    assert len(names) > 20
    for name in names - {"partition.metadata"}:
        assert (known / name).read_bytes() == (tmp_path / "forgets" / "t-0" / name).read_bytes(), (
            name
        )
    assert names == {path.name for path in (tmp_path / "forgets" / "t-0").iterdir()}


def test_what_another_writer_committed_is_gone_on_behind(tmp_path: Path, opened: list[str]) -> None:
    writer, other = Writer(tmp_path, topic="t"), Writer(tmp_path, name="other", topic="t")
    for batch_id in range(3):
        writer.write(batch_id, rows(["a"]))
        other.write(batch_id, rows(["b"]))
    assert values_of([tmp_path], "t") == {0: ["a", "b"] * 3}
    assert len(opened) == 6


def test_a_segment_that_another_writer_began_within_a_tick_of_the_clock_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The times of a folder are those that it had, and nobody has touched the files we know."""

    def stamp(path: Path | str) -> tuple[int, ...]:
        found = Path(path).lstat()
        return (found.st_ino, 0 if Path(path).is_dir() else found.st_size)

    monkeypatch.setattr(kept_appenders, "_stamp", stamp)
    writer, other = (Writer(tmp_path, name=n, topic="t", segment__bytes="100") for n in "ab")
    for batch_id in range(2):
        writer.write(batch_id, rows(["a" * 20]))
        other.write(batch_id, rows(["b" * 20]))
    assert values_of([tmp_path], "t") == {0: ["a" * 20, "b" * 20] * 2}


def test_what_a_broker_appended_is_gone_on_behind(tmp_path: Path) -> None:
    writer = Writer(tmp_path, topic="t", allowBrokerDirectory="true")
    (tmp_path / META_PROPERTIES).write_text("version=1\n")
    writer.write(0, rows(["a"]))
    append_batch(tmp_path / "t-0" / f"{0:020d}.log", batch_bytes(1, [Row(b"b")]))
    writer.write(1, rows(["c"]))
    assert values_of([tmp_path], "t") == {0: ["a", "b", "c"]}


def test_an_epoch_that_a_broker_began_is_noticed(tmp_path: Path, opened: list[str]) -> None:
    writer = Writer(tmp_path, topic="t")
    writer.write(0, rows(["a"]))
    folder = tmp_path / "t-0"
    write_leader_epochs(folder, [*read_leader_epochs(folder), LeaderEpoch(5, 1)])
    writer.write(1, rows(["b"]))
    assert len(opened) == 2
    log = (folder / f"{0:020d}.log").read_bytes()
    assert log[len(log) // 2 :][12:16] == (5).to_bytes(4, "big")


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_an_index_that_was_deleted_is_rebuilt(tmp_path: Path, suffix: str) -> None:
    writer = Writer(tmp_path, topic="t", index__interval__bytes="0")
    for batch_id in range(3):
        writer.write(batch_id, one_row("a"))
    path = tmp_path / "t-0" / f"{0:020d}{suffix}"
    before = path.read_bytes()
    path.unlink()
    writer.write(3, one_row("a"))
    assert len(path.read_bytes()) >= len(before)
    if suffix == ".index":
        assert path.read_bytes()[: len(before)] == before


def test_a_batch_that_failed_leaves_nothing_that_is_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(tmp_path, topic="t")
    writer.write(0, rows(["a"]))

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(LogSet, "publish", fail)
        with pytest.raises(Exception, match="No space"):
            writer.write(1, rows(["b"]))
    writer.write(1, rows(["c"]))
    assert values_of([tmp_path], "t") == {0: ["a", "c"]}


def test_directories_that_were_replaced_by_a_backup_are_looked_at(
    tmp_path: Path, opened: list[str]
) -> None:
    writer = Writer(tmp_path, topic="t")
    writer.write(0, rows(["a"]))
    for path in (tmp_path / "t-0").iterdir():
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data)
    writer.write(1, rows(["b"]))
    assert len(opened) == 2
    assert values_of([tmp_path], "t") == {0: ["a", "b"]}


def test_few_sets_are_kept(tmp_path: Path, opened: list[str]) -> None:
    appenders = AppenderCache()
    for number in range(10):
        writer = Writer(tmp_path / str(number), topic="t")
        writer.appenders = appenders
        writer.write(0, rows(["a"]))
    assert len(appenders._sets) == 8
    assert len(opened) == 10


def test_an_id_that_others_have_changed_is_read_again(tmp_path: Path) -> None:
    writer = Writer(tmp_path, topic="t")
    writer.write(0, rows(["a"]))
    state = load_state(tmp_path)
    assert state is not None
    known = writer.appenders.begin(state)
    folder, other = tmp_path / "t-0", new_topic_id()
    assert known.topic_id(folder) == read_topic_id(folder)
    write_topic_id(folder, other)
    assert known.topic_id(folder) == other


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Note the calls that name a file of the test, of which other tests' threads know nothing."""
    seen: list[str] = []

    def note(name: str) -> None:
        original = getattr(os, name)

        def call(path: Any, *arguments: Any, **named: Any) -> Any:
            if not isinstance(path, int) and str(path).startswith(str(tmp_path)):
                seen.append(name)
            return original(path, *arguments, **named)

        monkeypatch.setattr(os, name, call)

    for name in ("open", "stat", "lstat", "listdir", "scandir", "replace", "unlink", "mkdir"):
        note(name)
    return seen


def test_calls_of_an_append_do_not_follow_the_partitions_of_its_topic(
    tmp_path: Path, calls: list[str]
) -> None:
    counts = {}
    for partitions in (10, 600):
        writer = Writer(tmp_path / str(partitions), topic="t", numPartitions=str(partitions))
        for batch_id in range(4):
            calls.clear()
            writer.write(batch_id, rows(["a"], partitions=[7]))
        counts[partitions] = len(calls)
    assert counts[600] < 2 * counts[10]


def _of_two_partitions(tmp_path: Path) -> Writer:
    writer = Writer(tmp_path, topic="t", numPartitions="2")
    for batch_id in range(2):
        writer.write(batch_id, rows(["a", "b"], partitions=[0, 1]))
    return writer


def test_a_partition_that_is_written_to_is_not_taken_for_one_of_the_topic(tmp_path: Path) -> None:
    writer = _of_two_partitions(tmp_path)
    write_topic_id(tmp_path / "t-1", new_topic_id())
    writer.write(2, rows(["c"], partitions=[0]))
    with pytest.raises(LogDirectoryError, match="carry different topic ids"):
        writer.write(3, rows(["c"], partitions=[1]))


def test_a_folder_that_others_put_in_place_of_one_is_looked_at(tmp_path: Path) -> None:
    writer = _of_two_partitions(tmp_path)
    (tmp_path / "t-1").rename(tmp_path / "away")
    shutil.copytree(tmp_path / "away", tmp_path / "t-1")
    write_topic_id(tmp_path / "t-1", new_topic_id())
    with pytest.raises(LogDirectoryError, match="carry different topic ids"):
        writer.write(2, rows(["c"], partitions=[0]))


def test_ids_that_a_handover_has_begun_to_change_are_looked_at(tmp_path: Path) -> None:
    writer = _of_two_partitions(tmp_path)
    before, other = read_topic_id(tmp_path / "t-1"), new_topic_id()
    assert before is not None
    note_changed_ids(tmp_path, [("t", before, other)])
    write_topic_id(tmp_path / "t-1", other)
    with pytest.raises(LogDirectoryError, match="handover"):
        writer.write(2, rows(["c"], partitions=[0]))


def test_a_log_start_that_somebody_wrote_meanwhile_is_seen(tmp_path: Path) -> None:
    """What is appended below it would be hidden from all readers."""
    writer = Writer(tmp_path, topic="t")
    for batch_id in range(2):
        writer.write(batch_id, one_row("a"))
    runs = writer.stage(2, one_row("b"))
    write_offset_checkpoint(tmp_path, LOG_START_OFFSET, {TopicPartition("t", 0): 99})
    with pytest.raises(LogDirectoryError, match="99"):
        writer.commit(2, runs)
    (tmp_path / LOG_START_OFFSET).unlink()
    writer.commit(2, runs)
    assert values_of([tmp_path], "t") == {0: ["a", "a", "b"]}


def test_an_acknowledgement_that_somebody_wrote_meanwhile_is_seen(tmp_path: Path) -> None:
    """A log that ends below the high watermark lacks records: whoever appends would hide that."""
    writer = Writer(tmp_path, topic="t")
    for batch_id in range(2):
        writer.write(batch_id, one_row("a"))
    key = TopicPartition("t", 0)
    write_offset_checkpoint(tmp_path, HIGH_WATERMARK, {key: 10})
    runs = writer.stage(2, one_row("b"))
    with pytest.raises(CommitError, match=r"the high watermark in .* is 10"):
        writer.commit(2, runs)
    assert read_offset_checkpoint(tmp_path, HIGH_WATERMARK) == {key: 10}
    write_offset_checkpoint(tmp_path, HIGH_WATERMARK, {key: 2})
    writer.commit(2, runs)
    assert values_of([tmp_path], "t") == {0: ["a", "a", "b"]}


def test_a_topic_id_that_is_overwritten_in_place_is_seen(tmp_path: Path) -> None:
    """The folder does not change by that: the log is as foreign as to a process that begins."""
    writer = Writer(tmp_path, topic="t")
    for batch_id in range(2):
        writer.write(batch_id, one_row("a"))
    (tmp_path / "t-0" / PARTITION_METADATA).write_text(f"version: 0\ntopic_id: {new_topic_id()}\n")
    for _ in range(2):
        with pytest.raises(CommitError, match="holds offsets 0 to 1, which are not committed"):
            writer.write(2, one_row("b"))


def test_partitions_that_are_written_in_turn_are_kept(tmp_path: Path, opened: list[str]) -> None:
    """Each commit writes the checkpoints that tell of all of them."""
    writer = _of_two_partitions(tmp_path)
    opened.clear()
    for batch_id in range(2, 6):
        writer.write(batch_id, rows(["c"], partitions=[batch_id % 2]))
    assert opened == []
