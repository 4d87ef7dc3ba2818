from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.sinking import Writer, rows, values_of

from kafkalog.checkpoints import sealed_file
from kafkalog.checkpoints.broker import META_PROPERTIES
from kafkalog.checkpoints.commit_state import STATE_FILE
from kafkalog.checkpoints.state_file import load_state
from kafkalog.errors import CheckpointError, CommitError, LogDirectoryError
from kafkalog.streaming.admin.broker.handover import take_over
from kafkalog.streaming.commit.committer import Committer
from kafkalog.streaming.log import log_dir
from kafkalog.streaming.store.log_set import LogSet
from kafkalog.streaming.store.open_set import check_given
from kafkalog.streaming.store.policy import SetPolicy
from kafkalog.streaming.store.session import Session

if TYPE_CHECKING:
    from pathlib import Path


def sequences(*folders: Path) -> list[int]:
    return [state.sequence for folder in folders if (state := load_state(folder))]


def test_folders_that_do_not_exist_are_made(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    set_id = Writer(folder).ensure()
    assert Writer(folder).ensure() == set_id


def test_a_commit_parses_the_names_of_partitions_once_however_many_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(tmp_path, topic="t", numPartitions="50")
    writer.write(0, rows([str(number) for number in range(500)]))
    writer.write(1, rows(["a"]))
    parsed: list[str] = []
    parse = log_dir.parse_partition_directory
    monkeypatch.setattr(
        log_dir, "parse_partition_directory", lambda name: parsed.append(name) or parse(name)
    )
    writer.write(2, rows(["b"]))
    assert [name for name in parsed if name.startswith("t-")] == []
    (tmp_path / "u-0").mkdir()
    writer.write(3, rows(["c"]))
    assert "u-0" in parsed


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o077])
def test_a_log_directory_has_the_mode_of_the_umask_though_all_may_write_around_it(
    tmp_path: Path, umask: int
) -> None:
    around = tmp_path / "around"
    around.mkdir()
    around.chmod(0o1777)
    before = os.umask(umask)
    try:
        Writer(around / "a" / "log", topic="t", numPartitions="2").write(0, rows(["a"]))
    finally:
        os.umask(before)
    made = [around / "a", *(around / "a").rglob("*")]
    assert len(made) > 10
    modes = {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in made}
    assert modes == {(True, 0o777 & ~umask), (False, 0o666 & ~umask)}


def test_what_is_made_in_a_log_directory_has_its_mode_whatever_the_umask(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    folder.chmod(0o2770)
    before = os.umask(0o022)
    try:
        Writer(folder, topic="t").write(0, rows(["a"]))
    finally:
        os.umask(before)
    modes = {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in folder.rglob("*")}
    assert modes == {(True, 0o2770), (False, 0o660)}


def test_a_state_that_would_be_too_large_to_read_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(tmp_path, topic="t")
    writer.write(0, rows(["a"]))
    publish = LogSet.publish

    def publish_little(*arguments: Any, **options: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(sealed_file, "MAX_BYTES", (tmp_path / STATE_FILE).stat().st_size)
            publish(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(LogSet, "publish", publish_little)
        with pytest.raises(CheckpointError, match=r"would have [0-9]+ bytes, and more than [0-9]+"):
            writer.write(1, rows(["b"]), digest="d" * 64)
    assert sequences(tmp_path) == [1]
    writer.write(1, rows(["b"]))
    assert values_of([tmp_path], "t") == {0: ["a", "b"]}


def test_an_intent_that_would_be_too_large_to_read_stops_a_commit_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(tmp_path, topic="t")
    writer.write(0, rows(["a"]))
    before = (tmp_path / "t-0" / f"{0:020d}.log").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(sealed_file, "MAX_BYTES", (tmp_path / STATE_FILE).stat().st_size)
        with pytest.raises(CheckpointError, match=r"kafkalog\.intent would have [0-9]+ bytes"):
            writer.write(1, rows(["b"]))
    assert (tmp_path / "t-0" / f"{0:020d}.log").read_bytes() == before
    writer.write(1, rows(["b"]))
    assert values_of([tmp_path], "t") == {0: ["a", "b"]}


def test_all_directories_of_a_set_hold_its_state(tmp_path: Path) -> None:
    folders = [tmp_path / "1", tmp_path / "2"]
    Writer(*folders, topic="t").write(0, rows(["a"]))
    states = [load_state(folder) for folder in folders]
    assert None not in states
    assert len({state.set_id for state in states if state}) == 1
    assert len({state.member_id for state in states if state}) == 2
    assert sequences(*folders) == [1, 1]


def test_a_set_that_has_begun_stays_the_same(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "1", tmp_path / "2", topic="t")
    assert writer.ensure() == writer.ensure()


def test_a_missing_member_is_refused(tmp_path: Path) -> None:
    folders = [tmp_path / "1", tmp_path / "2"]
    Writer(*folders, topic="t").write(0, rows(["a"]))
    with pytest.raises(LogDirectoryError, match="1 of the 2 log directories"):
        Writer(folders[0], topic="t").write(1, rows(["b"]))
    shutil.rmtree(folders[1])
    with pytest.raises((LogDirectoryError, CheckpointError)):
        Writer(*folders, topic="t").write(1, rows(["b"]))


def test_one_folder_under_two_names_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "log")
    with pytest.raises(
        LogDirectoryError, match="link is given twice, by way of a link or a mount: it is "
    ):
        Writer(tmp_path / "log", tmp_path / "link").ensure()
    assert [*(tmp_path / "log").iterdir()] == []


def test_one_folder_under_two_mounts_is_refused_too(tmp_path: Path) -> None:
    folder, mount = tmp_path / "log", tmp_path / "mount"
    folder.mkdir()
    mount.symlink_to(folder)  # not resolved, it is what a mount is: another path of one inode
    with pytest.raises(LogDirectoryError, match=f"mount is given twice.* {folder}"):
        check_given([folder, mount])
    assert [*folder.iterdir()] == []


def test_the_folder_of_a_partition_is_not_written_to(tmp_path: Path) -> None:
    Writer(tmp_path, topic="t").write(0, rows(["a"]))
    before = {*(tmp_path / "t-0").iterdir()}
    with pytest.raises(LogDirectoryError, match=f"name the log directory around it, {tmp_path}"):
        Writer(tmp_path / "t-0", topic="u", allowBrokerDirectory="true").write(0, rows(["b"]))
    assert {*(tmp_path / "t-0").iterdir()} == before


def test_a_folder_that_took_the_place_of_a_partition_is_not_gone_on_with(tmp_path: Path) -> None:
    Writer(tmp_path, topic="t").write(0, rows(["a", "b"]))
    (tmp_path / "t-0").rename(tmp_path / "elsewhere")
    (tmp_path / "t-0").mkdir()
    with pytest.raises(LogDirectoryError, match=r"t-0 has no partition\.metadata"):
        Writer(tmp_path, topic="t").write(1, rows(["c"]))
    (tmp_path / "t-0").rmdir()
    (tmp_path / "elsewhere").rename(tmp_path / "t-0")
    Writer(tmp_path, topic="t").write(1, rows(["c"]))
    assert values_of([tmp_path], "t") == {0: ["a", "b", "c"]}
    (tmp_path / "t-0" / "partition.metadata").unlink()
    take_over([str(tmp_path)])
    Writer(tmp_path, topic="t").write(2, rows(["d"]))
    assert values_of([tmp_path], "t") == {0: ["a", "b", "c", "d"]}


@pytest.mark.parametrize("gone", [0, 1])
def test_an_empty_folder_where_a_member_was_mounted_is_refused_and_stays_empty(
    tmp_path: Path, gone: int
) -> None:
    folders = [tmp_path / "1", tmp_path / "2"]
    Writer(*folders, topic="t", numPartitions="2").write(0, rows(["a"]))
    folders[gone].rename(tmp_path / "elsewhere")
    folders[gone].mkdir()
    with pytest.raises(LogDirectoryError, match="would start again at offset 0"):
        Writer(*folders, topic="t").write(1, rows(["b"]))
    assert [path.name for path in folders[gone].iterdir() if path.is_dir()] == []
    assert load_state(folders[gone]) is None


def test_a_set_that_began_without_one_of_its_directories_begins_again_with_all(
    tmp_path: Path,
) -> None:
    """As long as nothing is committed: one was not mounted when the query started again."""
    folders = [tmp_path / "1", tmp_path / "2"]
    writer = Writer(*folders, topic="t", numPartitions="2")
    writer.plan()
    (tmp_path / "1").rename(tmp_path / "elsewhere")
    writer.plan()
    shutil.rmtree(tmp_path / "1")
    (tmp_path / "elsewhere").rename(tmp_path / "1")
    writer.write(0, rows(["a", "b"], partitions=[0, 1]))
    assert values_of(folders, "t") == {0: ["a"], 1: ["b"]}


def test_a_member_is_known_by_what_it_says_and_not_by_its_path(tmp_path: Path) -> None:
    first, second, third = (tmp_path / name for name in "123")
    Writer(first, second, topic="t", numPartitions="2").write(0, rows(["a"], partitions=[1]))
    second.rename(third)
    first.rename(second)
    Writer(third, second, topic="t").write(1, rows(["b"], partitions=[1]))
    assert values_of([second, third], "t") == {0: [], 1: ["a", "b"]}


def test_a_member_of_another_set_is_refused(tmp_path: Path) -> None:
    folders = [tmp_path / "1", tmp_path / "2"]
    for folder in folders:
        Writer(folder, topic="t").write(0, rows(["a"]))
    with pytest.raises(LogDirectoryError, match="belongs to another set"):
        Writer(*folders, topic="t").write(1, rows(["b"]))


def test_an_empty_member_of_another_set_is_refused(tmp_path: Path) -> None:
    one, two = tmp_path / "1", tmp_path / "2"
    Writer(one, topic="t").write(0, rows(["a"]))
    Writer(two, topic="t").ensure()
    with pytest.raises(LogDirectoryError, match="belongs to another set"):
        Writer(one, two, topic="t").write(1, rows(["b"]))


def test_a_copy_of_a_member_is_refused(tmp_path: Path) -> None:
    Writer(tmp_path / "1", topic="t").write(0, rows(["a"]))
    shutil.copytree(tmp_path / "1", tmp_path / "2")
    shutil.rmtree(tmp_path / "2" / "t-0")
    with pytest.raises(LogDirectoryError, match="a copy of the other"):
        Writer(tmp_path / "1", tmp_path / "2", topic="t").write(1, rows(["b"]))


def test_an_empty_directory_may_join(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    Writer(first, topic="t").write(0, rows(["a"]))
    second.mkdir()
    Writer(first, second, topic="u").write(1, rows(["b"]))
    assert values_of([first, second], "t") == {0: ["a"]}
    assert (second / "u-0").is_dir()
    with pytest.raises(LogDirectoryError, match="are missing"):
        Writer(first, topic="t").write(2, rows(["c"]))


def test_the_newest_copy_of_the_state_counts(tmp_path: Path) -> None:
    folders = [tmp_path / "1", tmp_path / "2"]
    writer = Writer(*folders, topic="t")
    writer.write(0, rows(["a"]))
    old = (folders[1] / STATE_FILE).read_bytes()
    writer.write(1, rows(["b"]))
    (folders[1] / STATE_FILE).write_bytes(old)
    assert sequences(*folders) == [2, 1]
    assert values_of(folders, "t") == {0: ["a", "b"]}
    writer.write(2, rows(["c"]))
    assert sequences(*folders) == [3, 3]


def test_a_directory_that_began_a_commit_which_was_made_without_it_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has rows of one attempt of a batch, and the others have those of another."""
    folders = [tmp_path / "a", tmp_path / "b"]
    writer = Writer(*folders, topic="t", numPartitions="2")
    writer.write(0, rows(["a", "b"], partitions=[0, 1]))
    shutil.copytree(folders[1], tmp_path / "older")

    def cut(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LogSet, "publish", cut)
        with pytest.raises(KeyboardInterrupt):
            writer.write(1, rows(["c", "d"], partitions=[0, 1]))
    folders[1].rename(tmp_path / "begun")
    (tmp_path / "older").rename(folders[1])
    writer.write(1, rows(["e", "f"], partitions=[0, 1]))
    folders[1].rename(tmp_path / "older")
    (tmp_path / "begun").rename(folders[1])
    with (
        Session(folders, SetPolicy.of_upkeep(1000), holder="a test") as session,
        pytest.raises(LogDirectoryError, match="has begun or made another commit than the others"),
    ):
        session.open()


def test_directories_that_made_two_commits_of_one_number_are_not_written_to(
    tmp_path: Path,
) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    Writer(*folders, topic="t", numPartitions="2").write(0, rows(["a", "b"], partitions=[0, 1]))
    for folder in folders:
        shutil.copytree(folder, tmp_path / f"{folder.name}-older")
    Writer(*folders, topic="t").write(1, rows(["c", "d"], partitions=[0, 1]))
    shutil.rmtree(folders[0])
    folders[1].rename(tmp_path / "other")
    for folder in folders:
        (tmp_path / f"{folder.name}-older").rename(folder)
    Writer(*folders, topic="t").write(1, rows(["e", "f"], partitions=[0, 1]))
    shutil.rmtree(folders[1])
    (tmp_path / "other").rename(folders[1])
    with pytest.raises(LogDirectoryError, match="has begun or made another commit than the others"):
        Writer(*folders, topic="t").write(2, rows(["g"]))


def test_a_commit_that_was_killed_between_two_directories_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    writer = Writer(*folders, topic="t")
    writer.write(0, rows(["a"]))
    old = (folders[1] / STATE_FILE).read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(Committer, "_finish", lambda *_: None)
        writer.write(1, rows(["b"]))
    (folders[1] / STATE_FILE).write_bytes(old)
    Writer(*folders, topic="t").write(2, rows(["c"]))
    assert values_of(folders, "t") == {0: ["a", "b", "c"]}


def test_a_lost_state_is_refused_and_says_what_to_do(tmp_path: Path) -> None:
    Writer(tmp_path, topic="t").write(0, rows(["a"]))
    (tmp_path / STATE_FILE).unlink()
    with pytest.raises(CheckpointError, match="kafkalog broker takeover"):
        Writer(tmp_path, topic="t").write(1, rows(["b"]))


@pytest.mark.parametrize("by", ["a takeover", "an option, where a broker lived"])
def test_directories_of_others_are_continued_when_that_is_asked_for(
    tmp_path: Path, by: str
) -> None:
    Writer(tmp_path, topic="t").write(0, rows(["a", "b"]))
    (tmp_path / STATE_FILE).unlink()
    writer = Writer(tmp_path, name="new", topic="t", allowBrokerDirectory="true")
    if by == "a takeover":
        with pytest.raises(CommitError, match="kafkalog broker takeover"):
            writer.write(0, rows(["c"]))
        take_over([str(tmp_path)])
    else:
        (tmp_path / META_PROPERTIES).write_text("version=1\n")
    writer.write(0, rows(["c"]))
    assert values_of([tmp_path], "t") == {0: ["a", "b", "c"]}


def test_where_a_broker_lived_nothing_is_written_unless_that_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / META_PROPERTIES).write_text("version=1\nnode.id=1\ncluster.id=x\n")
    with pytest.raises(LogDirectoryError, match="a broker lived here"):
        Writer(tmp_path, topic="t").write(0, rows(["a"]))
    Writer(tmp_path, topic="t", allowBrokerDirectory="true").write(0, rows(["a"]))
    assert values_of([tmp_path], "t") == {0: ["a"]}


@pytest.mark.parametrize("name", ["kafkalog.intent", "kafkalog.unfinished"])
def test_traces_of_a_commit_without_a_state_mean_that_it_was_lost(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(CheckpointError, match="its commit state was lost"):
        Writer(tmp_path, topic="t", allowBrokerDirectory="true").write(0, rows(["a"]))


def test_a_damaged_state_is_never_taken_for_none(tmp_path: Path) -> None:
    Writer(tmp_path, topic="t").write(0, rows(["a"]))
    (tmp_path / STATE_FILE).write_text("")
    with pytest.raises(CheckpointError, match=r"damaged.*away, and run `kafkalog broker takeover`"):
        Writer(tmp_path, topic="t", allowBrokerDirectory="true").write(1, rows(["b"]))
    for path in tmp_path.glob("kafkalog.*"):
        path.unlink()
    take_over([str(tmp_path)])
    Writer(tmp_path, name="new", topic="t").write(0, rows(["b"]))
    assert values_of([tmp_path], "t") == {0: ["a", "b"]}


def test_a_link_planted_for_the_states_temporary_is_not_written_through(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = tmp_path / "log"
    Writer(folder, topic="t").write(0, rows(["a"]))
    for name in (f"{STATE_FILE}.tmp", "kafkalog.intent.tmp", "replication-offset-checkpoint.tmp"):
        (folder / name).symlink_to(victim)
    Writer(folder, topic="t").write(1, rows(["b"]))
    assert victim.read_text() == "precious"
    assert values_of([folder], "t") == {0: ["a", "b"]}


@pytest.mark.parametrize("plant", ["file", "link"])
def test_what_is_planted_for_the_guard_is_not_taken_for_one(tmp_path: Path, plant: str) -> None:
    writer = Writer(tmp_path / "log", topic="t")
    writer.write(0, rows(["a"]))
    guard = tmp_path / "log" / "kafkalog.unfinished"
    if plant == "file":
        guard.touch()
    else:
        (tmp_path / "elsewhere").mkdir()
        guard.symlink_to(tmp_path / "elsewhere")
    with pytest.raises((LogDirectoryError, CommitError), match=r"kafkalog\.unfinished"):
        writer.write(1, rows(["b"]))
    guard.unlink()
    writer.write(1, rows(["b"]))
    assert values_of([tmp_path / "log"], "t") == {0: ["a", "b"]}


def test_nothing_is_staged_where_a_broker_runs(tmp_path: Path) -> None:
    writer = Writer(tmp_path, topic="t")
    writer.write(0, rows(["a"]))
    holding = (
        "import fcntl, os, sys\n"
        "descriptor = os.open(sys.argv[1], os.O_RDWR)\n"
        "fcntl.lockf(descriptor, fcntl.LOCK_EX)\n"
        "print(flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holding, str(tmp_path / ".lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as broker:
        assert broker.stdin is not None
        assert broker.stdout is not None
        broker.stdout.readline()
        with pytest.raises(LogDirectoryError, match="is running on this log directory"):
            writer.stage(1, rows(["b"]))
        assert values_of([tmp_path], "t") == {0: ["a"]}
        broker.stdin.close()
    assert list(tmp_path.glob(".kafkalog.staged.*")) == []
