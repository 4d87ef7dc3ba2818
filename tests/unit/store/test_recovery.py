"""What recovery may take away, and what it must not."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.logs import Row, batch_bytes
from tests.support.sinking import Writer, adopt_small_files, rows, values_of

from kafkalog.checkpoints.broker import HIGH_WATERMARK, read_offset_checkpoint
from kafkalog.checkpoints.commit_state import STATE_FILE, UNFINISHED_FOLDER
from kafkalog.checkpoints.intent import INTENT_FILE, load_intent
from kafkalog.errors import CheckpointError, LogDirectoryError
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.broker.handover import take_over
from kafkalog.streaming.admin.topics import delete
from kafkalog.streaming.commit.append import PartitionAppend
from kafkalog.streaming.commit.committer import Committer
from kafkalog.streaming.sink.task_writer import TaskWriter
from kafkalog.streaming.store.broker_files import write_ends
from kafkalog.streaming.store.identity import BatchIdentity
from kafkalog.streaming.store.log_set import LogSet

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa


class PowerCutError(BaseException):
    """Ends a commit without letting it clear up, as a kill would."""


@pytest.fixture
def cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a directory in which a commit appended, and was cut off before it was published."""
    writer = Writer(tmp_path, topic="t", segment__bytes="600")
    writer.write(0, rows(["a" * 100]))
    cut_off_in_publish(writer, monkeypatch)
    assert (tmp_path / INTENT_FILE).exists()
    assert (tmp_path / UNFINISHED_FOLDER).is_dir()
    return tmp_path


def cut_off_in_publish(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise PowerCutError

    runs = writer.stage(1, rows(["b" * 100] * 4, keys=["k"] * 4), rows(["c" * 100] * 4))
    with monkeypatch.context() as patch:
        patch.setattr(LogSet, "publish", fail)
        with pytest.raises(PowerCutError):
            writer.commit(1, runs)


def segments(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "t-0").iterdir())}


def go_on(folder: Path) -> None:
    Writer(folder, name="another", topic="u").write(0, rows(["x"]))


def test_an_unfinished_commit_is_not_seen_and_is_rolled_back(cut_off: Path) -> None:
    assert values_of([cut_off], "t") == {0: ["a" * 100]}
    go_on(cut_off)
    names = [name for name in segments(cut_off) if name.endswith(".log")]
    assert names == [f"{0:020d}.log"]
    assert load_intent(cut_off) is None
    assert not (cut_off / UNFINISHED_FOLDER).exists()


def test_files_are_byte_for_byte_what_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(tmp_path, topic="t", segment__bytes="600", index__interval__bytes="0")
    writer.write(0, rows(["a" * 100]), rows(["b" * 100]))
    before = segments(tmp_path)
    cut_off_in_publish(writer, monkeypatch)
    assert segments(tmp_path) != before
    go_on(tmp_path)
    assert segments(tmp_path) == before


def log_file(folder: Path) -> Path:
    """Give the first segment that the commit made."""
    intent = load_intent(folder)
    assert intent is not None
    made = next(segment for segment in intent.partitions[0].segments if segment.created)
    return folder / "t-0" / f"{made.base_offset:020d}.log"


def test_a_torn_write_is_rolled_back(cut_off: Path) -> None:
    path = log_file(cut_off)
    data = bytearray(path.read_bytes())
    data[40:80] = bytes(40)
    path.write_bytes(data)
    go_on(cut_off)
    assert not path.exists()


def test_a_batch_that_another_writer_appended_behind_is_never_taken_away(cut_off: Path) -> None:
    path = log_file(cut_off)
    foreign = batch_bytes(100, [Row(b"foreign")])
    with path.open("ab") as file:
        file.write(foreign)
    before = segments(cut_off)
    with pytest.raises(LogDirectoryError, match="did not write"):
        go_on(cut_off)
    assert segments(cut_off) == before


def test_a_batch_that_another_writer_put_in_the_place_of_ours_is_kept_too(cut_off: Path) -> None:
    log_file(cut_off).write_bytes(batch_bytes(1, [Row(b"foreign")]))
    before = segments(cut_off)
    with pytest.raises(LogDirectoryError, match="did not write"):
        go_on(cut_off)
    assert segments(cut_off) == before


def test_what_was_acknowledged_is_not_rolled_back_with_an_older_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(tmp_path, topic="t")
    writer.write(0, rows(["a"]))
    older = (tmp_path / STATE_FILE).read_bytes()

    def write_and_cut_off(*arguments: Any, **named: Any) -> None:
        write_ends(*arguments, **named)
        raise PowerCutError

    with monkeypatch.context() as patch:
        patch.setattr("kafkalog.streaming.commit.committer.write_ends", write_and_cut_off)
        with pytest.raises(PowerCutError):
            writer.write(1, rows(["b"]))
    (tmp_path / STATE_FILE).write_bytes(older)
    before = segments(tmp_path)
    with pytest.raises(LogDirectoryError, match=r"offsets up to 1 were committed.*takeover"):
        go_on(tmp_path)
    assert segments(tmp_path) == before
    (tmp_path / INTENT_FILE).unlink()
    (tmp_path / UNFINISHED_FOLDER).rmdir()
    assert take_over([str(tmp_path)]).problems == []
    assert values_of([tmp_path], "t") == {0: ["a", "b"]}


def test_a_segment_that_another_writer_made_is_kept_too(cut_off: Path) -> None:
    (cut_off / "t-0" / f"{5000:020d}.log").write_bytes(batch_bytes(5000, [Row(b"foreign")]))
    before = segments(cut_off)
    with pytest.raises(LogDirectoryError, match="another writer or a broker has appended"):
        go_on(cut_off)
    assert segments(cut_off) == before


def test_what_must_be_left_alone_in_one_partition_leaves_all_of_them_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise PowerCutError

    writer = Writer(tmp_path, topic="t", numPartitions="12")
    every = [*range(12)]
    writer.write(0, rows(["a"] * 12, partitions=every))
    runs = writer.stage(1, rows(["b"] * 12, partitions=every))
    with monkeypatch.context() as patch:
        patch.setattr(LogSet, "publish", fail)
        with pytest.raises(PowerCutError):
            writer.commit(1, runs)
    with (tmp_path / "t-11" / f"{0:020d}.log").open("ab") as file:
        file.write(batch_bytes(2, [Row(b"foreign")]))
    before = {path: path.read_bytes() for path in tmp_path.glob("t-*/*")}
    with pytest.raises(LogDirectoryError, match="did not write"):
        go_on(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.glob("t-*/*")} == before


def test_without_the_staged_file_nothing_is_proved_and_nothing_taken_away(cut_off: Path) -> None:
    for path in cut_off.glob(".kafkalog.staged.*"):
        path.unlink()
    before = segments(cut_off)
    with pytest.raises(LogDirectoryError, match="whose staged file is gone"):
        go_on(cut_off)
    assert segments(cut_off) == before


def test_a_lost_staged_file_whose_run_fills_several_segments_is_told_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"segment__bytes": "600", "max__message__bytes": "300"}
    writer = Writer(tmp_path, topic="t", **options)
    writer.write(0, rows(["a" * 100]))
    with monkeypatch.context() as patch:
        patch.setattr(LogSet, "publish", _cut_off)
        with pytest.raises(PowerCutError):
            writer.write(1, rows(["b" * 200] * 8))
    for path in tmp_path.glob(".kafkalog.staged.*"):
        path.unlink()
    before = segments(tmp_path)
    assert len([name for name in before if name.endswith(".log")]) > 2
    with pytest.raises(LogDirectoryError, match="whose staged file is gone"):
        go_on(tmp_path)
    assert segments(tmp_path) == before
    for path in sorted((tmp_path / "t-0").glob("*.log"))[1:]:
        os.truncate(path, 0)
    with pytest.raises(LogDirectoryError, match="whose staged file is gone"):
        go_on(tmp_path)
    os.truncate(tmp_path / "t-0" / f"{0:020d}.log", segment_size_before(tmp_path))
    go_on(tmp_path)
    assert values_of([tmp_path], "t") == {0: ["a" * 100]}


def _cut_off(*_: object, **__: object) -> None:
    raise PowerCutError


def segment_size_before(folder: Path) -> int:
    intent = load_intent(folder)
    assert intent is not None
    return intent.partitions[0].segments[0].size_before


def test_a_log_that_lost_committed_bytes_is_told(cut_off: Path) -> None:
    os.truncate(cut_off / "t-0" / f"{0:020d}.log", 10)
    with pytest.raises(LogDirectoryError, match="committed records are gone"):
        go_on(cut_off)


def test_a_partition_that_is_gone_is_told(cut_off: Path) -> None:
    (cut_off / "t-0").rename(cut_off.parent / "moved")
    with pytest.raises(LogDirectoryError, match="is gone"):
        go_on(cut_off)


def test_a_topic_deleted_by_hand_amid_a_commit_is_given_up_and_other_topics_get_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def batch(name: str) -> pa.RecordBatch:
        return rows([name, name], topics=["t", "u"])

    writer = Writer(tmp_path)
    writer.write(0, batch("a"))
    runs = writer.stage(1, batch("b"))
    with monkeypatch.context() as patch:
        patch.setattr(LogSet, "publish", lambda *_, **__: 1 / 0)
        patch.setattr(Committer, "_try_to_roll_back", lambda *_: None)
        with pytest.raises(ZeroDivisionError):
            writer.commit(1, runs)
    shutil.rmtree(tmp_path / "t-0")
    for act in (
        lambda: Writer(tmp_path).write(1, batch("b")),
        lambda: delete([str(tmp_path)], "u"),
    ):
        with pytest.raises(
            LogDirectoryError, match=r"t-0 is gone.*kafkalog topic delete --topic t"
        ):
            act()
    delete([str(tmp_path)], "t")
    assert values_of([tmp_path], "u") == {0: ["a"]}
    Writer(tmp_path).write(1, batch("b"))
    assert (values_of([tmp_path], "t"), values_of([tmp_path], "u")) == ({0: ["b"]}, {0: ["a", "b"]})


def test_an_intent_that_a_state_has_published_is_only_cleared_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(tmp_path, topic="t")
    with monkeypatch.context() as patch:
        patch.setattr("kafkalog.streaming.commit.committer.write_ends", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            writer.write(0, rows(["a"]))
    assert (tmp_path / INTENT_FILE).exists()
    assert values_of([tmp_path], "t") == {0: ["a"]}
    assert not writer.write(0, rows(["a"])).appended
    assert not (tmp_path / INTENT_FILE).exists()
    assert read_offset_checkpoint(tmp_path, HIGH_WATERMARK) == {TopicPartition("t", 0): 1}


@pytest.mark.parametrize("adopts", [False, True], ids=["copied", "adopted"])
def test_what_a_job_without_an_id_had_staged_goes_though_it_was_cut_off_behind_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, adopts: bool
) -> None:
    if adopts:
        adopt_small_files(monkeypatch)
    writer = Writer(tmp_path, topic="t")
    identity = BatchIdentity("job:1", 0)
    output = TaskWriter(writer.plan(), identity).write([rows(["a"])])
    with monkeypatch.context() as patch:
        patch.setattr("kafkalog.streaming.commit.committer.write_ends", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            Committer(writer.plan().commit_plan, identity).commit(output.runs)
    assert list(tmp_path.glob(".kafkalog.staged.*"))
    go_on(tmp_path)
    assert not list(tmp_path.glob(".kafkalog.staged.*"))
    assert values_of([tmp_path], "t") == {0: ["a"]}


def test_an_intent_of_another_set_is_not_acted_on(cut_off: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    Writer(other, topic="t").write(0, rows(["x"]))
    (other / INTENT_FILE).write_bytes((cut_off / INTENT_FILE).read_bytes())
    state = (cut_off / STATE_FILE).read_bytes()
    with pytest.raises(CheckpointError, match="belongs to another set"):
        Writer(other, name="another", topic="t").write(0, rows(["y"]))
    assert (cut_off / STATE_FILE).read_bytes() == state


def test_a_folder_of_ours_into_which_others_put_something_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(tmp_path, topic="t")

    def fail(_: object) -> None:
        raise PowerCutError

    with monkeypatch.context() as patch:
        patch.setattr(PartitionAppend, "sync", fail)
        with pytest.raises(PowerCutError):
            writer.write(0, rows(["a"]))
    (tmp_path / "t-0" / "notes.txt").write_text("precious")
    with pytest.raises(LogDirectoryError, match=r"notes\.txt"):
        go_on(tmp_path)
    assert (tmp_path / "t-0" / "notes.txt").read_text() == "precious"


@pytest.mark.parametrize("before", [1, 0], ids=["a later commit", "the first commit"])
def test_a_set_that_grows_over_an_unfinished_commit_takes_it_back_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    writer = Writer(first, topic="t")
    if before:
        writer.write(0, rows(["a"]))
    runs = writer.stage(before, rows(["b", "c"]))
    with monkeypatch.context() as patch:
        patch.setattr(LogSet, "publish", _cut_off)
        with pytest.raises(PowerCutError):
            writer.commit(before, runs)
    Writer(first, second, topic="t").write(before, rows(["b", "c"]))
    assert values_of([first, second], "t") == {0: ["a", "b", "c"][1 - before :]}
    assert load_intent(first) is None


def test_a_batch_of_another_writer_in_a_file_that_was_adopted_is_no_proof_of_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The staged file is the segment: both names show what was written over it."""
    adopt_small_files(monkeypatch)
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    writer = Writer(ours, topic="t", compression__type="none", segment__bytes="600")
    writer.write(0, rows(["a"]))
    cut_off_in_publish(writer, monkeypatch)
    path = log_file(ours)
    assert path.stat().st_nlink == 2
    values = ["x" * 100] * 4
    other = Writer(theirs, topic="t", compression__type="none")
    other.write(0, rows(values, keys=["k"] * 4))
    foreign = (theirs / "t-0" / f"{0:020d}.log").read_bytes()
    with path.open("r+b") as file:
        assert len(foreign) == path.stat().st_size
        file.write(foreign)
    with pytest.raises(LogDirectoryError, match="did not write"):
        go_on(ours)
    assert path.read_bytes() == foreign
