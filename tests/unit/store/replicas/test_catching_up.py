"""A replica becomes its leader's log, in bounded steps: what differs is cut, what lacks copied."""

from __future__ import annotations

import errno
import os
import shutil
import struct
from typing import TYPE_CHECKING

import pytest
from tests.support.replicated import append

from kafkalog.checkpoints.broker import (
    CLEANER_OFFSET,
    PARTITION_METADATA,
    RECOVERY_POINT,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from kafkalog.errors import LogDirectoryError
from kafkalog.files.regular import sync
from kafkalog.model import TopicPartition
from kafkalog.streaming.store.replicas import copying
from kafkalog.streaming.store.replicas import in_sync as catching_up
from kafkalog.streaming.store.replicas.copying import CopyBudget, LeaderUnreadableError
from kafkalog.streaming.store.replicas.in_sync import catch_up

if TYPE_CHECKING:
    from pathlib import Path

KEY = TopicPartition("t", 0)
END = 40


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for version in range(4):
        rows = [f"{version}.{n}" for n in range(10)]
        append([tmp_path / "one"], version, rows, numPartitions="1")
    return tmp_path / "one" / "t-0"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "two").mkdir()
    return tmp_path / "two" / "t-0"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def followed(source: Path, target: Path, size: int = 1 << 30) -> bool:
    return catch_up(source, target, KEY, END, CopyBudget(size)) is not None


def last_log(folder: Path) -> Path:
    return max(folder.glob("*.log"))


def test_a_replica_that_is_not_there_is_copied(source: Path, target: Path) -> None:
    assert followed(source, target)
    assert contents(target) == contents(source)
    assert len([*target.glob("*.log")]) > 2
    assert read_offset_checkpoint(target.parent, RECOVERY_POINT) == {KEY: END}


def test_a_replica_whose_files_are_anothers_is_copied(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system lets nobody but a file's owner set its time."""

    def utime(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "utime", utime)
    assert followed(source, target)
    assert contents(target) == contents(source)


def test_it_is_copied_in_steps(source: Path, target: Path) -> None:
    steps = 0
    while not followed(source, target, 200):
        steps += 1
        point = read_offset_checkpoint(target.parent, RECOVERY_POINT).get(KEY, 0)
        for log in target.glob("*.log"):
            is_whole = log.read_bytes() == (source / log.name).read_bytes()
            assert is_whole or int(log.stem) >= point
    assert steps > 2
    assert point > 0
    assert contents(target) == contents(source)


def test_what_is_equal_already_is_compared_in_steps(source: Path, target: Path) -> None:
    followed(source, target)
    write_offset_checkpoint(target.parent, RECOVERY_POINT, {KEY: 0})
    points = []
    while not followed(source, target, 1):
        points += [read_offset_checkpoint(target.parent, RECOVERY_POINT)[KEY]]
    assert len(points) > 1
    assert points == sorted({*points})


def test_what_somebody_left_who_replaced_segments_goes(source: Path, target: Path) -> None:
    followed(source, target)
    for name in ("00000000000000000000.log.swap", "00000000000000000000.index.cleaned"):
        (target / name).write_bytes(b"of another log")
    (target / f"{END + 7:020}.timeindex").write_bytes(b"of none")
    assert followed(source, target)
    assert contents(target) == contents(source)


def test_a_replica_is_clean_as_far_as_its_leader(source: Path, target: Path) -> None:
    write_offset_checkpoint(source.parent, CLEANER_OFFSET, {KEY: 20})
    followed(source, target)
    assert read_offset_checkpoint(target.parent, CLEANER_OFFSET) == {KEY: 20}


def test_a_sealed_segment_that_differs_is_made_anew(source: Path, target: Path) -> None:
    followed(source, target)
    first = min(target.glob("*.log"))
    with first.open("rb") as reading:
        first.write_bytes(b"other bytes" + bytes(first.stat().st_size))
        other = first.read_bytes()
        assert followed(source, target)
        assert reading.read() == other
    assert contents(target) == contents(source)


def test_what_differs_is_cut(source: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    followed(source, target)
    monkeypatch.setattr(copying, "_PIECE_BYTES", 64)
    changed = last_log(target)
    data = bytearray(changed.read_bytes())
    data[-1] ^= 1
    changed.write_bytes(data)
    room = CopyBudget(1 << 20)
    assert catch_up(source, target, KEY, END, room)
    assert contents(target) == contents(source)
    assert (1 << 20) - room.left <= 64


def test_what_is_too_much_goes(source: Path, target: Path) -> None:
    followed(source, target)
    with last_log(target).open("ab") as log:
        log.write(b"of a commit that was cut off")
    (target / f"{END + 7:020}.log").write_bytes(b"likewise")
    (target / f"{END + 7:020}.index").write_bytes(b"")
    assert followed(source, target)
    assert contents(target) == contents(source)


def test_a_segment_that_is_cut_short_below_the_recovery_point_is_filled(
    source: Path, target: Path
) -> None:
    followed(source, target)
    first = min(target.glob("*.log"))
    os.truncate(first, 10)
    assert followed(source, target)
    assert contents(target) == contents(source)


def test_a_log_of_another_topic_of_that_name_goes_whole(source: Path, target: Path) -> None:
    append([target.parent], 0, ["other"] * 50, numPartitions="1")
    write_offset_checkpoint(target.parent, RECOVERY_POINT, {KEY: 50})
    assert followed(source, target)
    assert contents(target) == contents(source)
    assert read_offset_checkpoint(target.parent, RECOVERY_POINT) == {KEY: END}


def test_a_topic_id_that_a_loss_of_power_has_torn_is_written_again(
    source: Path, target: Path
) -> None:
    followed(source, target)
    (target / PARTITION_METADATA).write_bytes(b"")
    assert followed(source, target)
    assert contents(target) == contents(source)


def test_no_replica_is_kept_behind_a_link(source: Path, target: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    target.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LogDirectoryError, match="is a link"):
        followed(source, target)


def test_a_leader_that_cannot_be_read_is_told_from_a_replica_that_cannot_be_written(
    source: Path, target: Path
) -> None:
    damaged = source / PARTITION_METADATA
    damaged.write_bytes(b"torn")
    with pytest.raises(LeaderUnreadableError):
        followed(source, target)


@pytest.mark.parametrize(
    "entries",
    [((9, 0), (9, 0), (29, 382)), ((9, 100), (19, 200))],
    ids=["torn by a loss of power", "into the middle of batches"],
)
def test_an_index_of_the_leader_that_cannot_be_used_is_in_nobodys_way(
    tmp_path: Path, target: Path, entries: tuple[tuple[int, int], ...]
) -> None:
    whole = {"numPartitions": "1", "segment.bytes": "10000"}
    for version in range(4):
        append([tmp_path / "one"], version, [f"{version}.{n}" for n in range(10)], **whole)
    source = tmp_path / "one" / "t-0"
    index = source / f"{0:020d}.index"
    index.write_bytes(b"".join(struct.pack(">ii", *entry) for entry in entries))
    steps = 0
    while not followed(source, target, 90):  # a step ends within a batch
        steps += 1
    assert steps > 2
    assert contents(target) == contents(source)


def away_until_the_first_log_is_synced(
    folder: Path, image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Put an image in a log directory's place; the directory is back amid what follows."""
    aside = folder.with_name("aside")
    folder.rename(aside)
    image.rename(folder)

    def sync_and_bring_back(descriptor: int) -> None:
        sync(descriptor)
        if aside.exists():
            folder.rename(image)
            aside.rename(folder)

    monkeypatch.setattr(copying, "sync", sync_and_bring_back)


@pytest.mark.parametrize("which", ["the replica's", "the leader's"])
def test_a_directory_that_was_away_amid_it_is_noticed(
    source: Path, target: Path, tmp_path: Path, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = tmp_path / "image"
    if which == "the leader's":
        shutil.copytree(source.parent, image)
        os.truncate(min((image / source.name).glob("*.log")), 0)
        away_until_the_first_log_is_synced(source.parent, image, monkeypatch)
    else:
        followed(source, target)
        os.truncate(min(target.glob("*.log")), 10)
        image.mkdir()
        away_until_the_first_log_is_synced(target.parent, image, monkeypatch)
    with pytest.raises(LogDirectoryError, match="another file than a moment ago"):
        followed(source, target)
    assert followed(source, target)
    assert contents(target) == contents(source)


def test_no_progress_is_noted_of_what_lies_elsewhere(
    source: Path, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = min(source.glob("*.log")).stat().st_size
    target.mkdir()
    (tmp_path / "image").mkdir()
    away_until_the_first_log_is_synced(target.parent, tmp_path / "image", monkeypatch)
    with pytest.raises(LogDirectoryError, match="another file than a moment ago"):
        followed(source, target, size + 1)
    assert read_offset_checkpoint(target.parent, RECOVERY_POINT) == {}


def test_files_of_another_topic_that_are_back_amid_it_are_noticed(
    source: Path, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append([target.parent], 0, ["other"] * 50, numPartitions="1")
    (tmp_path / "image").mkdir()
    away_until_the_first_log_is_synced(target.parent, tmp_path / "image", monkeypatch)
    with pytest.raises(LogDirectoryError, match="another file than a moment ago"):
        followed(source, target)
    assert followed(source, target)
    assert contents(target) == contents(source)


@pytest.mark.parametrize("step", ["_make", "_drop_others"])
def test_what_was_to_go_from_a_directory_that_was_away_then_is_noticed(
    source: Path, target: Path, tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if step == "_make":
        append([target.parent], 0, ["other"] * 50, numPartitions="1")
        for log in target.glob("0*"):
            log.unlink()
    else:
        followed(source, target)
        (target / f"{END + 7:020}.log").write_bytes(b"of a commit that was cut off")
    aside, original = tmp_path / "aside", getattr(catching_up, step)

    def while_away(*arguments: object) -> object:
        target.parent.rename(aside)
        target.mkdir(parents=True)
        done = original(*arguments)
        shutil.rmtree(target.parent)
        aside.rename(target.parent)
        return done

    with monkeypatch.context() as within:
        within.setattr(catching_up, step, while_away)
        with pytest.raises(LogDirectoryError, match="another file than a moment ago"):
            followed(source, target)
    assert followed(source, target)
    assert contents(target) == contents(source)
