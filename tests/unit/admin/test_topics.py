"""Topics that are created, altered and deleted: who sees what, and what is refused."""

from __future__ import annotations

import errno
import os
import shutil
from typing import TYPE_CHECKING

import pytest
from tests.support.killing import count_calls, run_and_kill
from tests.support.log_files import flip
from tests.support.sinking import Writer, rows, values_of

import kafkalog
from kafkalog.checkpoints.broker import (
    CLEAN_SHUTDOWN,
    HIGH_WATERMARK,
    META_PROPERTIES,
    read_offset_checkpoint,
    read_topic_id,
)
from kafkalog.checkpoints.commit_state import UNFINISHED_FOLDER
from kafkalog.checkpoints.state_file import load_state
from kafkalog.errors import (
    CommitError,
    DataLossError,
    InvalidTopicError,
    KafkaLogError,
    LogDirectoryError,
    OptionError,
    RowError,
    UnknownTopicOrPartitionError,
)
from kafkalog.jobs.inspection.topics import describe_partitions, list_offsets, list_topics
from kafkalog.jobs.rebuild import rebuild
from kafkalog.model import TopicPartition, TopicSelection
from kafkalog.streaming.admin.broker.handover import hand_over, take_over
from kafkalog.streaming.admin.recovery import recover
from kafkalog.streaming.admin.retention import retain
from kafkalog.streaming.admin.salvage import salvage
from kafkalog.streaming.admin.topics import alter, create, delete
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.source.stream_control import StreamControl
from kafkalog.streaming.store.ends.tracker import LogEndTracker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


def snapshot(*folders: Path) -> dict[str, bytes | None]:
    """Give all files and folders but the lock files, which name who had them."""
    found = {
        str(path): path.read_bytes() if path.is_file() else None
        for folder in folders
        for path in folder.rglob("*")
        if path.name not in {"kafkalog.lock", ".lock"}
    }
    return dict(sorted(found.items()))


def settings_of(log: Path, name: str) -> Mapping[str, str]:
    state = load_state(log)
    assert state is not None
    (topic,) = [each for each in state.topics.values() if each.name == name]
    return topic.settings


def seen(*logs: Path) -> dict[str, int]:
    """Give where a reader sees each partition end."""
    return {str(key): end for key, end in LogEndTracker(map(str, logs)).look().offsets.items()}


def stop_after_publish(log: Path, topic: str = "t") -> None:
    """Kill a deletion once the topic is marked, before its first folder is renamed."""
    for call in range(count_calls_on_copy(log, lambda copy: delete([str(copy)], topic))):
        spare = log.with_name("spare")
        shutil.copytree(log, spare, copy_function=shutil.copy2)
        run_and_kill(lambda: delete([str(log)], topic), call)
        state = load_state(log)
        assert state is not None
        if state.deleted and (log / f"{topic}-0").is_dir():
            shutil.rmtree(spare)
            return
        shutil.rmtree(log)
        spare.rename(log)
    raise AssertionError("the deletion has no such moment")


def count_calls_on_copy(log: Path, action: Callable[[Path], object]) -> int:
    copy = log.with_name("counted")
    shutil.copytree(log, copy)
    try:
        return count_calls(lambda: action(copy))
    finally:
        shutil.rmtree(copy)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Give a log with the topics t, of two partitions, and other."""
    folder = tmp_path / "log"
    Writer(folder, topic="t", name="t", numPartitions="2", retention__ms="-1").write(
        0, rows(["a", "b"], partitions=[0, 1])
    )
    Writer(folder, topic="other", name="other").write(0, rows(["x"]))
    return folder


# Create


def test_a_topic_that_is_created_is_empty_and_has_its_partitions_and_settings(
    tmp_path: Path,
) -> None:
    log = tmp_path / "new"
    done = create([str(log)], "t", partitions=3, config={"segment.bytes": "1000"})
    assert (done.partitions_before, done.partitions) == (0, 3)
    assert seen(log) == {"t-0": 0, "t-1": 0, "t-2": 0}
    assert settings_of(log, "t") == {"segment.bytes": "1000"}
    Writer(log, topic="t").write(0, rows(["a"], partitions=[2]))
    assert values_of([log], "t") == {0: [], 1: [], 2: ["a"]}
    assert settings_of(log, "t") == {"segment.bytes": "1000"}
    assert recover([str(log)]).problems == []


def test_a_topic_is_spread_over_the_directories_of_its_set(tmp_path: Path) -> None:
    logs = [tmp_path / "one", tmp_path / "two"]
    create([str(log) for log in logs], "t", partitions=4)
    assert [len(list(log.glob("t-*"))) for log in logs] == [2, 2]
    assert delete([str(log) for log in logs], "t").folders != ()
    assert [list(log.glob("t-*")) for log in logs] == [[], []]


@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        ("t", {}, OptionError),
        ("a b", {}, InvalidTopicError),
        ("__consumer_offsets", {}, RowError),
        ("__cluster_metadata", {}, RowError),
        ("new", {"partitions": 0}, OptionError),
        ("new", {"config": {"retention.m": "1"}}, OptionError),
        ("new", {"config": {"retention.ms": "soon"}}, OptionError),
        ("new", {"config": {"compression.type": "zstd", "message.format": "v1"}}, OptionError),
    ],
)
def test_what_kafka_refuses_of_a_new_topic_is_refused_and_nothing_changes(
    log: Path, name: str, arguments: dict[str, object], error: type[Exception]
) -> None:
    before = snapshot(log)
    with pytest.raises(error):
        create([str(log)], name, **arguments)  # type: ignore[arg-type]
    assert snapshot(log) == before


def test_a_name_that_differs_in_a_dot_alone_is_refused(tmp_path: Path) -> None:
    create([str(tmp_path)], "a.b")
    with pytest.raises(InvalidTopicError, match=r"a_b.*a\.b"):
        create([str(tmp_path)], "a_b")


# Alter


def test_settings_are_given_replaced_and_taken_away(log: Path) -> None:
    alter([str(log)], "t", config={"retention.bytes": "5", "retention.ms": "7"})
    assert settings_of(log, "t") == {"retention.bytes": "5", "retention.ms": "7"}
    done = alter([str(log)], "t", unset=["retention.ms", "segment.ms"])
    assert done.settings == settings_of(log, "t") == {"retention.bytes": "5"}
    assert done.settings_before == {"retention.bytes": "5", "retention.ms": "7"}
    assert values_of([log], "t") == {0: ["a"], 1: ["b"]}


def test_more_partitions_and_settings_come_at_once_and_are_written_to(log: Path) -> None:
    done = alter([str(log)], "t", partitions=4, config={"segment.bytes": "1000"})
    assert (done.partitions_before, done.partitions) == (2, 4)
    assert seen(log) == {"other-0": 1, "t-0": 1, "t-1": 1, "t-2": 0, "t-3": 0}
    assert settings_of(log, "t") == {"retention.ms": "-1", "segment.bytes": "1000"}
    assert len({read_topic_id(log / f"t-{number}") for number in range(4)}) == 1
    Writer(log, topic="t", name="t").write(1, rows(["c"], partitions=[3]))
    assert values_of([log], "t") == {0: ["a"], 1: ["b"], 2: [], 3: ["c"]}
    assert recover([str(log)]).problems == []


@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        ("t", {"partitions": 1}, OptionError),
        ("t", {"config": {"retention.m": "1"}}, OptionError),
        (
            "t",
            {"config": {"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "1"}},
            OptionError,
        ),
        ("nobody", {"config": {"retention.ms": "1"}}, UnknownTopicOrPartitionError),
        ("__consumer_offsets", {"partitions": 9}, RowError),
    ],
)
def test_what_kafka_refuses_of_a_change_is_refused_and_nothing_changes(
    log: Path, name: str, arguments: dict[str, object], error: type[Exception]
) -> None:
    before = snapshot(log)
    with pytest.raises(error):
        alter([str(log)], name, **arguments)  # type: ignore[arg-type]
    assert snapshot(log) == before


def test_a_change_that_changes_nothing_writes_nothing(log: Path) -> None:
    before = snapshot(log)
    alter([str(log)], "t", partitions=2, config={"retention.ms": "-1"}, unset=["segment.ms"])
    assert snapshot(log) == before


def test_a_running_query_places_its_next_batch_among_the_new_partitions(log: Path) -> None:
    writer = Writer(log, topic="t", name="t", partitioner="round_robin")
    staged = writer.stage(1, rows(["c"] * 8))
    alter([str(log)], "t", partitions=4)
    with pytest.raises(RowError, match="placed among 2 partitions, and it has 4"):
        writer.commit(1, staged)
    writer.write(1, rows(["c"] * 8))
    assert {p: len(found) for p, found in values_of([log], "t").items()} == {0: 3, 1: 3, 2: 2, 3: 2}


def test_what_tasks_have_placed_before_and_after_partitions_were_added_is_refused(
    log: Path,
) -> None:
    writer = Writer(log, topic="t", name="t")
    before = writer.stage(1, rows(["c"], partitions=[0]))
    alter([str(log)], "t", partitions=4)
    after = writer.stage(1, rows(["d"], partitions=[3]))
    with pytest.raises(RowError, match="placed among 2 partitions, and it has 4"):
        writer.commit(1, [*before, *after])


# Delete


def test_a_deleted_topic_leaves_nothing_and_one_of_its_name_begins_at_offset_0(log: Path) -> None:
    before = read_topic_id(log / "t-0")
    done = delete([str(log)], "t")
    assert done.folders == (log / "t-0", log / "t-1")
    assert not list(log.glob("t-*"))
    assert {key.topic for key in read_offset_checkpoint(log, HIGH_WATERMARK)} == {"other"}
    state = load_state(log)
    assert state is not None
    assert state.deleted == {}
    assert [topic.name for topic in state.topics.values()] == ["other"]
    assert seen(log) == {"other-0": 1}
    Writer(log, topic="t", name="again").write(0, rows(["new"]))
    assert values_of([log], "t") == {0: ["new"]}
    assert read_topic_id(log / "t-0") != before
    assert recover([str(log)]).problems == []


def test_from_the_mark_on_a_topic_is_gone_for_everybody(log: Path) -> None:
    options = {"path": str(log), "subscribePattern": ".*", "startingOffsets": "earliest"}
    control = StreamControl(ReadOptions.parse(options | {"fetchOffset.numRetries": "1"}))
    begun = control.next_end(control.initial(), take_all=True)
    watch = LogEndTracker([str(log)])
    assert len(watch.look().offsets) == 3
    stop_after_publish(log)
    assert {str(key) for key in watch.look().offsets} == {"other-0"}
    assert {str(key) for key in watch.existing()} == {"other-0"}
    assert not watch.missing_parts().is_loss
    assert seen(log) == {"other-0": 1}
    with pytest.raises(DataLossError, match="t-0"):
        control.next_end(begun, take_all=True)
    with pytest.raises(UnknownTopicOrPartitionError):
        kafkalog.read(str(log), "t").read_all()
    assert [row["topic"] for row in list_topics([str(log)])] == ["other"]
    assert [row["topic"] for row in list_offsets([str(log)])] == ["other"]
    with pytest.raises(UnknownTopicOrPartitionError):
        describe_partitions([str(log)], TopicSelection.of("t"))
    for done in (recover([str(log)], dry_run=True), hand_over([str(log)], dry_run=True)):
        assert {each.topic_partition.topic for each in done.partitions} == {"other"}
    assert "t" not in retain([str(log)], dry_run=True).left_alone
    assert (log / "t-0").is_dir()
    assert (log / UNFINISHED_FOLDER).is_dir(), "a broker would serve it"


def test_whoever_opens_the_directories_next_ends_a_deletion(log: Path) -> None:
    stop_after_publish(log)
    Writer(log, topic="other", name="other").write(1, rows(["y"]))
    assert not list(log.glob("t-*"))
    assert not (log / UNFINISHED_FOLDER).exists()
    state = load_state(log)
    assert state is not None
    assert state.deleted == {}
    assert values_of([log], "other") == {0: ["x", "y"]}


def test_rows_that_were_staged_before_a_deletion_are_refused_and_those_after_make_the_topic(
    log: Path,
) -> None:
    writer = Writer(log, topic="t", name="t", numPartitions="2")
    staged = writer.stage(1, rows(["late"], partitions=[0]))
    topic_id = read_topic_id(log / "t-0")
    delete([str(log)], "t")
    with pytest.raises(CommitError, match=rf"'t' \(topic id {topic_id}\) was deleted after"):
        writer.commit(1, staged)
    assert seen(log) == {"other-0": 1}
    create([str(log)], "t", partitions=2)
    with pytest.raises(CommitError, match="was deleted after this batch was planned, and made"):
        writer.commit(1, staged)
    assert seen(log) == {"other-0": 1, "t-0": 0, "t-1": 0}
    writer.write(1, rows(["late"], partitions=[0]))
    assert values_of([log], "t") == {0: ["late"], 1: []}


def test_rows_that_are_staged_while_a_deletion_is_cut_off_make_the_topic_again(log: Path) -> None:
    writer = Writer(log, topic="t", name="t", numPartitions="3")
    stop_after_publish(log)
    writer.write(1, rows(["new"], partitions=[2]))
    assert values_of([log], "t") == {0: [], 1: [], 2: ["new"]}


def test_salvage_sees_nothing_of_a_topic_whose_deletion_was_cut_off(log: Path) -> None:
    stop_after_publish(log)
    for segment in (log / "t-0" / f"{0:020d}.log", log / "other-0" / f"{0:020d}.log"):
        flip(segment, 64)
    assert [str(place.topic_partition) for place in salvage([str(log)]).places] == ["other-0"]
    with pytest.raises(UnknownTopicOrPartitionError, match="partition t-0 was deleted in "):
        salvage([str(log)], [TopicPartition("t", 0)])
    with pytest.raises(UnknownTopicOrPartitionError, match="partition t-0 has no folder in "):
        salvage([str(log)], drop=["t-0@0"])  # which has ended the deletion
    assert {path.name for path in log.glob("t-*")} == set()


def test_rebuild_changes_nothing_of_a_topic_whose_deletion_was_cut_off(log: Path) -> None:
    stop_after_publish(log)
    indexes = sorted(log.glob("*-0/*.index"))
    for path in indexes:
        path.write_bytes(b"\0\0\0\1\0\0\0\1")
    assert [each.log.parent.name for each in rebuild(str(log))] == ["other-0"]
    assert [path.stat().st_size > 0 for path in indexes] == [False, True]
    with pytest.raises(UnknownTopicOrPartitionError, match="t-0 is not in "):
        rebuild(str(log), TopicPartition("t", 0))


def test_a_folder_that_cannot_be_removed_is_in_nobodys_way_and_goes_later(
    log: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As on a file server, which keeps a file that somebody has open under another name."""

    def rmdir(path: str | Path) -> None:
        if str(path).endswith("-delete"):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(path))
        original(path)

    original = os.rmdir
    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", rmdir)
        delete([str(log)], "t")
        assert "cannot be removed, the next writer tries again" in caplog.text
        assert len(list(log.glob("t-*-delete"))) == 2
        Writer(log, topic="t", name="again").write(0, rows(["new"]))
        assert values_of([log], "t") == {0: ["new"]}
        assert seen(log) == {"other-0": 1, "t-0": 1}
    Writer(log, topic="other", name="other").write(1, rows(["y"]))
    assert list(log.glob("t-*-delete")) == []
    assert values_of([log], "t") == {0: ["new"]}
    state = load_state(log)
    assert state is not None
    assert state.deleted == {}


def test_a_topic_that_a_broker_has_made_again_under_its_id_is_kept(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cluster knows the topic by the same id, and makes the folder again."""
    shutil.copytree(log / "t-0", tmp_path / "t-0")

    def refuse(folder: Path) -> None:
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(folder))

    with monkeypatch.context() as patch:
        patch.setattr("kafkalog.streaming.store.folder_changes.remove_folder", refuse)
        delete([str(log)], "t")
        shutil.copytree(tmp_path / "t-0", log / "t-0")
        assert "t-0" in seen(log)
        Writer(log, topic="other", name="other").write(1, rows(["y"]))
    assert take_over([str(log)]).problems == []
    assert list(log.glob("t-*-delete")) == []
    assert values_of([log], "t") == {0: ["a"]}


def test_what_a_broker_has_deleted_itself_is_left_to_it(log: Path) -> None:
    names = [f"{topic}-1.{'0' * 32}-delete" for topic in ("other", "t")]
    for name in names:
        shutil.copytree(log / "other-0", log / name)
    delete([str(log)], "t")
    assert all((log / name).is_dir() for name in names)


def test_the_folder_of_a_topic_with_a_long_name_gets_one_that_file_systems_take(
    tmp_path: Path,
) -> None:
    name = "n" * 249
    create([str(tmp_path)], name)
    delete([str(tmp_path)], name)
    assert not list(tmp_path.glob("nnn*"))


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("nobody", UnknownTopicOrPartitionError),
        ("__consumer_offsets", RowError),
        ("../log", InvalidTopicError),
    ],
)
def test_a_topic_that_is_not_ours_to_delete_is_refused(
    log: Path, name: str, error: type[Exception]
) -> None:
    before = snapshot(log)
    with pytest.raises(error):
        delete([str(log)], name)
    assert snapshot(log) == before


def test_folders_that_are_not_the_topics_own_are_refused(log: Path, tmp_path: Path) -> None:
    shutil.copytree(log / "other-0", log / "t-2")
    with pytest.raises(LogDirectoryError, match="t-2 has the topic id"):
        delete([str(log)], "t")
    shutil.rmtree(log / "t-2")
    (log / "t-1").rename(tmp_path / "moved")
    (log / "t-1").symlink_to(tmp_path / "moved")
    with pytest.raises(LogDirectoryError, match="is a link"):
        delete([str(log)], "t")
    assert (tmp_path / "moved").is_dir()


def test_a_topic_with_records_in_a_remote_storage_is_refused(log: Path) -> None:
    from tests.unit.admin.test_broker_settings import give

    give(log, "t", {"remote.storage.enable": "true"})
    with pytest.raises(OptionError, match="remote"):
        delete([str(log)], "t")


def test_a_directory_that_a_broker_had_last_is_refused(log: Path) -> None:
    (log / META_PROPERTIES).write_text("version=1\ncluster.id=c\nnode.id=1\n")
    (log / CLEAN_SHUTDOWN).write_text("")
    before = snapshot(log)
    paths = [str(log)]
    actions: list[Callable[[], object]] = [
        lambda: create(paths, "new"),
        lambda: alter(paths, "t", partitions=3),
        lambda: delete(paths, "t"),
    ]
    for act in actions:
        with pytest.raises(KafkaLogError, match="broker"):
            act()
    assert snapshot(log) == before
    assert create(paths, "new", allows_broker=True).partitions == 1


def test_a_dry_run_says_the_same_and_changes_nothing(log: Path) -> None:
    paths, before = [str(log)], snapshot(log)
    planned = [
        create(paths, "new", dry_run=True),
        alter(paths, "t", partitions=3, config={"flush.ms": "1"}, dry_run=True),
        delete(paths, "t", dry_run=True),
    ]
    with pytest.raises(OptionError):
        create(paths, "t", dry_run=True)
    assert snapshot(log) == before
    done = [create(paths, "new"), alter(paths, "t", partitions=3, config={"flush.ms": "1"})]
    assert done == planned[:2]
    assert planned[2].topic == "t"
    assert len(delete(paths, "t").folders) == 3


def test_a_dry_run_may_name_a_folder_that_create_would_make(tmp_path: Path) -> None:
    paths = [str(tmp_path / "new")]
    planned = create(paths, "t", partitions=2, dry_run=True)
    with pytest.raises(OptionError, match=r"replication\.factor"):
        create(paths, "t", replication_factor=2, dry_run=True)
    assert list(tmp_path.iterdir()) == []
    done = create(paths, "t", partitions=2)
    assert done._replace(set_id="") == planned


def test_no_command_is_called_where_nobody_of_ours_has_written(tmp_path: Path) -> None:
    for act in (lambda: alter([str(tmp_path)], "t"), lambda: delete([str(tmp_path)], "t")):
        with pytest.raises(LogDirectoryError, match=r"kafkalog\.commit"):
            act()
    assert list(tmp_path.iterdir()) == []
