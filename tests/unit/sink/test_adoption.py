"""Files that become segments: nothing is copied, and nothing of what may go wrong is lost."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.sinking import Writer, adopt_small_files, rows, values_of

from kafkalog.checkpoints.commit_state import STAGED_PREFIX
from kafkalog.checkpoints.intent import load_intent
from kafkalog.errors import CommitError, LogDirectoryError
from kafkalog.model import TopicPartition
from kafkalog.streaming.commit.staging.staged_source import StagedSource
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.store.log_set import LogSet

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kafkalog.streaming.commit.staging.staged_run import StagedRun

BEFORE = ["a" * 100]
ADDED = ["b" * 100] * 4 + ["c" * 100] * 4
STAMPS = [1_700_000_000_000] * 4


@pytest.fixture(autouse=True)
def _adopting(monkeypatch: pytest.MonkeyPatch) -> None:
    adopt_small_files(monkeypatch)


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    """Give a writer whose log has one batch, and whose segments take two more."""
    writer = Writer(tmp_path, topic="t", segment__bytes="1200", index__interval__bytes="0")
    writer.write(0, rows(BEFORE, timestamps=STAMPS[:1]))
    return writer


def stage(writer: Writer) -> list[StagedRun]:
    runs = writer.stage(1, *(rows(part, timestamps=STAMPS) for part in (ADDED[:4], ADDED[4:])))
    assert [run.whole_file for run in runs] == [True, True]
    return runs


def segments(folder: Path) -> list[Path]:
    return sorted((folder / "t-0").glob("*.log"))


def staged_names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(STAGED_PREFIX)]


def go_on(folder: Path) -> None:
    Writer(folder, name="another", topic="u").write(0, rows(["x"]))


def test_a_file_becomes_a_segment_without_being_copied(writer: Writer, tmp_path: Path) -> None:
    runs = stage(writer)
    inodes = [(tmp_path / run.file).stat().st_ino for run in runs]
    writer.commit(1, runs)
    assert [path.stat().st_ino for path in segments(tmp_path)[1:]] == inodes
    assert [path.stat().st_nlink for path in segments(tmp_path)] == [1, 1, 1]
    assert staged_names(tmp_path) == []
    assert values_of([tmp_path], "t") == {0: BEFORE + ADDED}


def test_an_adopted_segment_is_what_copying_it_would_have_made(
    writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, "another file system")

    other = tmp_path / "other"
    copying = Writer(other, topic="t", segment__bytes="1200", index__interval__bytes="0")
    copying.write(0, rows(BEFORE, timestamps=STAMPS[:1]))
    writer.commit(1, stage(writer))
    runs = stage(copying)
    monkeypatch.setattr(os, "link", refuse)
    copying.commit(1, runs)
    for path in (tmp_path / "t-0").iterdir():
        if path.name != "partition.metadata":
            assert path.read_bytes() == (other / "t-0" / path.name).read_bytes(), path.name
    assert staged_names(other) == []


def test_the_log_goes_on_behind_an_adopted_segment(writer: Writer, tmp_path: Path) -> None:
    writer.commit(1, stage(writer))
    writer.write(2, rows(["d"]))
    assert values_of([tmp_path], "t") == {0: [*BEFORE, *ADDED, "d"]}
    with PartitionLog(tmp_path / "t-0", TopicPartition("t", 0)) as log:
        assert log.log_end_offset(verify_from=0) == 10


def test_a_file_that_has_another_name_is_copied(writer: Writer, tmp_path: Path) -> None:
    runs = stage(writer)
    planted = tmp_path / "planted"
    os.link(tmp_path / runs[0].file, planted)
    before = planted.read_bytes()
    writer.commit(1, runs)
    assert planted.stat().st_ino not in {path.stat().st_ino for path in segments(tmp_path)}
    assert planted.read_bytes() == before
    assert values_of([tmp_path], "t") == {0: BEFORE + ADDED}


def test_a_file_that_holds_more_than_its_run_is_copied(writer: Writer, tmp_path: Path) -> None:
    runs = stage(writer)
    with (tmp_path / runs[0].file).open("ab") as file:
        file.write(b"more")
    writer.commit(1, runs)
    assert values_of([tmp_path], "t") == {0: BEFORE + ADDED}
    with PartitionLog(tmp_path / "t-0", TopicPartition("t", 0)) as log:
        assert log.log_end_offset(verify_from=0) == 9


def test_a_file_that_changed_is_not_adopted_and_the_next_run_goes_on(
    writer: Writer, tmp_path: Path
) -> None:
    runs = stage(writer)
    staged = tmp_path / runs[1].file
    data = bytearray(staged.read_bytes())
    data[-1] ^= 1
    staged.write_bytes(data)
    with pytest.raises(CommitError, match="checksum"):
        writer.commit(1, runs)
    assert load_intent(tmp_path) is None
    writer.write(1, rows(["d"]))
    assert values_of([tmp_path], "t") == {0: [*BEFORE, "d"]}


def test_a_segment_in_the_way_is_never_replaced(writer: Writer, tmp_path: Path) -> None:
    runs = stage(writer)

    def plant(source: Path, target: Path, **_: object) -> None:
        target.write_bytes(b"of somebody else")
        os.close(os.open(target, os.O_CREAT | os.O_EXCL))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "link", plant)
        with pytest.raises((CommitError, LogDirectoryError), match="already exists"):
            writer.commit(1, runs)


class PowerCutError(BaseException):
    """Ends a commit without letting it clear up, as a kill would."""


def _cut(patch: pytest.MonkeyPatch, owner: object, name: str, *, after: int) -> None:
    """Let the call of a function after ``after`` others end the commit."""
    original: Callable[..., Any] = getattr(owner, name)
    calls = iter(range(1_000_000))

    def cut(*arguments: Any, **named: Any) -> Any:
        if next(calls) >= after:
            raise PowerCutError
        return original(*arguments, **named)

    patch.setattr(owner, name, cut)


@pytest.mark.parametrize(
    ("owner", "name"), [(StagedSource, "_stamp"), (os, "link"), (LogSet, "publish")]
)
@pytest.mark.parametrize("after", [0, 1])
def test_an_adoption_that_was_cut_off_anywhere_is_rolled_back(
    writer: Writer, tmp_path: Path, owner: object, name: str, after: int
) -> None:
    before = {path.name: path.read_bytes() for path in (tmp_path / "t-0").iterdir()}
    runs = stage(writer)
    with pytest.MonkeyPatch.context() as patch:
        _cut(patch, owner, name, after=after if owner is not LogSet else 0)
        with pytest.raises(PowerCutError):
            writer.commit(1, runs)
    assert values_of([tmp_path], "t") == {0: BEFORE}
    go_on(tmp_path)
    assert {path.name: path.read_bytes() for path in (tmp_path / "t-0").iterdir()} == before
    # The staged files were numbered, some of them, for other offsets maybe: they still serve.
    writer.commit(1, runs)
    assert values_of([tmp_path], "t") == {0: BEFORE + ADDED}


def test_heads_that_a_loss_of_power_has_mixed_are_rolled_back(
    writer: Writer, tmp_path: Path
) -> None:
    """Whichever of the numbers written into a file got to the disk before its new name did."""
    runs = stage(writer)
    original = {run.file: (tmp_path / run.file).read_bytes() for run in runs}
    with pytest.MonkeyPatch.context() as patch:
        _cut(patch, LogSet, "publish", after=0)
        with pytest.raises(PowerCutError):
            writer.commit(1, runs)
    first, second = (segments(tmp_path)[slot] for slot in (1, 2))
    half = original[runs[0].file]
    first.write_bytes(half[:4] + first.read_bytes()[4:8] + half[8:])
    second.write_bytes(original[runs[1].file])
    go_on(tmp_path)
    assert segments(tmp_path) == [tmp_path / "t-0" / f"{0:020d}.log"]


def test_what_others_append_to_a_segment_that_was_just_adopted_is_never_taken_away(
    writer: Writer, tmp_path: Path
) -> None:
    runs = stage(writer)
    with pytest.MonkeyPatch.context() as patch:
        _cut(patch, LogSet, "publish", after=0)
        with pytest.raises(PowerCutError):
            writer.commit(1, runs)
    last = segments(tmp_path)[-1]
    with last.open("ab") as file:
        file.write(segments(tmp_path)[0].read_bytes())
    with pytest.raises(LogDirectoryError, match="valid batch"):
        go_on(tmp_path)
    assert last.exists()
