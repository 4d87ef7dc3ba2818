"""Retention and DeleteRecords: what goes, what stays, and who is told."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.killing import count_calls, run_and_kill
from tests.support.sinking import Writer, rows
from tests.support.transactions import BrokerLog

from kafkalog.checkpoints.broker import (
    CLEAN_SHUTDOWN,
    LEADER_EPOCHS,
    LOG_START_OFFSET,
    META_PROPERTIES,
    PARTITION_METADATA,
    LeaderEpoch,
    read_leader_epochs,
    read_offset_checkpoint,
    write_leader_epochs,
)
from kafkalog.checkpoints.commit_state import UNFINISHED_FOLDER
from kafkalog.checkpoints.intent import INTENT_FILE
from kafkalog.checkpoints.state_file import load_state
from kafkalog.errors import (
    DataLossError,
    LogDirectoryError,
    OffsetOutOfRangeError,
    OptionError,
    UnknownTopicOrPartitionError,
)
from kafkalog.files.system import system
from kafkalog.model import TopicPartition, TopicSelection
from kafkalog.streaming.admin.broker.handover import hand_over, take_over
from kafkalog.streaming.admin.old_segments import snapshot_at
from kafkalog.streaming.admin.recovery import recover
from kafkalog.streaming.admin.retention import delete_records, retain
from kafkalog.streaming.log.files import SNAPSHOT, file_name
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.log.producer_state import list_snapshots, read_snapshot
from kafkalog.streaming.log.segments import list_base_offsets
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.records.columns import Columns, RecordDecoder
from kafkalog.streaming.source.stream_control import StreamControl
from kafkalog.streaming.store.ends.tracker import LogEndTracker

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kafkalog.streaming.admin.retention import Deleted

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)
DAY_MS = 86_400_000
OLD_MS = 1_000_000_000_000


def now_ms() -> int:
    return system.time_ns() // 1_000_000


def fill(log: Path, *stamps: int, topic: str = "t", first: int = 0, **settings: str) -> Writer:
    """Write one segment of two records to each of two partitions for each timestamp in ms."""
    writer = Writer(
        log, topic=topic, name=topic, numPartitions="2", segment__bytes="100", **settings
    )
    for number, stamp in enumerate(stamps, start=first):
        texts = [f"{number}{each}" for each in "abcd"]
        batch = rows(texts, keys=texts, partitions=[0, 0, 1, 1], timestamps=[stamp] * 4)
        writer.write(number, batch)
    return writer


def bases(log: Path, key: TopicPartition = T0) -> list[int]:
    return list_base_offsets(log / str(key))


def starts(log: Path) -> dict[str, tuple[int, int]]:
    """Give where logs start: by the commit state and by Kafka's checkpoint."""
    state, said = load_state(log), read_offset_checkpoint(log, LOG_START_OFFSET)
    assert state is not None
    return {
        f"{topic.name}-{number}": (
            each.log_start,
            said.get(TopicPartition(topic.name, number), 0),
        )
        for topic in state.topics.values()
        for number, each in topic.partitions.items()
    }


def seen(log: Path, key: TopicPartition = T0) -> tuple[int, list[str]]:
    """Give what a reader sees: the first offset, and the values from there on."""
    watch = LogEndTracker([str(log)])
    end = watch.look().offsets[key]
    with watch.open(key) as opened:
        start = opened.log_start_offset
        return start, values(opened, start, end)


def both_seen(log: Path) -> list[tuple[int, list[str]]]:
    return [seen(log, key) for key in (T0, T1)]


def values(log: PartitionLog, start: int, end: int) -> list[str]:
    decoder = RecordDecoder(Columns.VALUE)
    return [
        value.decode()
        for part in log.slices(start, end)
        for batch in log.read_slice(part, decoder, committed_end=end)
        for value in batch.column("value").to_pylist()
    ]


def retired(log: Path) -> list[str]:
    return sorted(path.name for path in log.rglob("*.deleted"))


def files(log: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(log)): path.read_bytes() for path in log.rglob("*") if path.is_file()
    }


def test_what_is_older_than_retention_ms_goes(tmp_path: Path) -> None:
    fill(tmp_path, OLD_MS, OLD_MS + 1, now_ms(), retention__ms=str(DAY_MS))
    done = retain([str(tmp_path)])
    assert done.problems == []
    assert [(each.topic_partition, each.start, each.segments) for each in done.partitions] == [
        (T0, 4, (0, 2)),
        (T1, 4, (0, 2)),
    ]
    assert bases(tmp_path) == bases(tmp_path, T1) == [4]
    assert starts(tmp_path) == {"t-0": (4, 4), "t-1": (4, 4)}
    assert seen(tmp_path) == (4, ["2a", "2b"])
    assert not (tmp_path / INTENT_FILE).exists()
    assert not (tmp_path / UNFINISHED_FOLDER).exists()


def test_the_oldest_go_where_a_log_is_larger_than_retention_bytes(tmp_path: Path) -> None:
    fill(tmp_path, *[now_ms()] * 4, retention__bytes="1")
    size = (tmp_path / "t-0" / f"{0:020d}.log").stat().st_size
    retain([str(tmp_path)], config={"retention.bytes": "0"})
    assert bases(tmp_path) == [6]
    fill(tmp_path / "other", *[now_ms()] * 4, retention__bytes=str(2 * size))
    retain([str(tmp_path / "other")])
    assert bases(tmp_path / "other") == [4, 6]


def test_the_active_segment_is_rolled_where_all_of_a_log_has_expired(tmp_path: Path) -> None:
    writer = fill(tmp_path, OLD_MS, OLD_MS, retention__ms=str(DAY_MS))
    retain([str(tmp_path)])
    assert bases(tmp_path) == [4]
    assert seen(tmp_path) == (4, [])
    again = retain([str(tmp_path)])
    assert (bases(tmp_path), again.problems) == ([4], [])
    writer.write(2, rows(["new"], partitions=[0], timestamps=[now_ms()]))
    assert seen(tmp_path) == (4, ["new"])
    retain([str(tmp_path)])
    assert seen(tmp_path) == (4, ["new"])


def test_a_topic_without_a_limit_keeps_everything(tmp_path: Path) -> None:
    fill(tmp_path, OLD_MS, OLD_MS, segment__ms="1000")
    before = files(tmp_path)
    done = retain([str(tmp_path)])
    assert "no retention.ms or retention.bytes is set" in done.left_alone["t"]
    assert {name: data for name, data in files(tmp_path).items() if "lock" not in name} == {
        name: data for name, data in before.items() if "lock" not in name
    }


def test_config_counts_where_nothing_was_given_to_the_topic(tmp_path: Path) -> None:
    fill(tmp_path, OLD_MS, now_ms())
    fill(tmp_path, OLD_MS, now_ms(), topic="kept", retention__ms="-1")
    retain([str(tmp_path)], config={"retention.ms": str(DAY_MS)})
    assert bases(tmp_path) == [2]
    assert bases(tmp_path, TopicPartition("kept", 0)) == [0, 2]


def test_a_topic_that_is_only_compacted_keeps_its_segments(tmp_path: Path) -> None:
    fill(tmp_path, OLD_MS, now_ms(), retention__ms="1", cleanup__policy="compact")
    assert "cleanup.policy is compact" in retain([str(tmp_path)]).left_alone["t"]
    assert bases(tmp_path) == [0, 2]


def test_topics_of_kafkas_own_and_strange_ones_are_left_alone(tmp_path: Path) -> None:
    options = {"allowInternalTopics": "true", "retention__ms": "1"}
    fill(tmp_path, OLD_MS, now_ms(), topic="__consumer_offsets", **options)
    fill(tmp_path, OLD_MS, now_ms(), topic="other", retention__ms="1")
    shutil.copytree(tmp_path / "other-0", tmp_path / "brokers-0")
    (tmp_path / "brokers-0" / PARTITION_METADATA).write_text(
        "version: 0\ntopic_id: kafkalogTopicIdNumberA"
    )
    done = retain([str(tmp_path)], config={"retention.ms": "1"})
    assert bases(tmp_path, TopicPartition("__consumer_offsets", 0)) == [0, 2]
    assert bases(tmp_path, TopicPartition("brokers", 0)) == [0, 2]
    assert bases(tmp_path, TopicPartition("other", 0)) == [4]
    assert done.left_alone == {
        "__consumer_offsets": "a topic of Kafka's own",
        "brokers": "the commit state does not know it",
    }


def test_a_recreated_topic_has_nothing_to_do_with_the_start_of_the_former(tmp_path: Path) -> None:
    fill(tmp_path, OLD_MS, now_ms(), retention__ms=str(DAY_MS))
    retain([str(tmp_path)])
    for number in (0, 1):
        shutil.rmtree(tmp_path / f"t-{number}")
    Writer(tmp_path, topic="t", name="new").write(0, rows(["a", "b"]))
    assert starts(tmp_path) == {"t-0": (0, 0)}
    assert seen(tmp_path) == (0, ["a", "b"])


def test_one_topic_is_named(tmp_path: Path) -> None:
    for topic in ("t", "u"):
        fill(tmp_path, OLD_MS, now_ms(), topic=topic, retention__ms=str(DAY_MS))
    retain([str(tmp_path)], topics=TopicSelection.of("u"))
    assert (bases(tmp_path), bases(tmp_path, TopicPartition("u", 0))) == ([0, 2], [2])
    with pytest.raises(UnknownTopicOrPartitionError, match="no topic 'v'"):
        retain([str(tmp_path)], topics=TopicSelection.of("v"))


def test_a_dry_run_says_the_same_and_changes_nothing(tmp_path: Path) -> None:
    fill(tmp_path, OLD_MS, OLD_MS, retention__ms=str(DAY_MS))
    before = files(tmp_path)
    said = retain([str(tmp_path)], dry_run=True)
    assert files(tmp_path) == before
    assert retain([str(tmp_path)]) == said
    assert [each.segments for each in said.partitions] == [(0, 2), (0, 2)]


def test_retired_files_go_with_a_later_round_once_the_delay_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, OLD_MS, now_ms(), retention__ms=str(DAY_MS), file__delete__delay__ms="30000")
    retain([str(tmp_path)])
    kept = retired(tmp_path)
    assert f"{0:020d}.log.deleted" in kept
    assert retain([str(tmp_path)]).removed.files == 0
    assert retired(tmp_path) == kept
    later = system.time_ns() + 31_000_000_000
    monkeypatch.setattr(system, "time_ns", lambda: later)
    removed = retain([str(tmp_path)]).removed
    assert (removed.files, retired(tmp_path)) == (len(kept), [])
    assert removed.bytes > 0


def test_a_reader_that_runs_reads_on_in_what_has_gone(tmp_path: Path) -> None:
    fill(tmp_path, OLD_MS, OLD_MS, now_ms(), retention__ms=str(DAY_MS))
    with PartitionLog(tmp_path / "t-0", T0) as log:
        planned = log.slices(0, 6)
        first = log.read_slice(planned[0], RecordDecoder(Columns.VALUE), committed_end=6)
        batch = next(first)
        retain([str(tmp_path)])
        rest = [value for more in (batch, *first) for value in more.column("value").to_pylist()]
        assert rest == [b"0a", b"0b"]
        log.refresh()
        assert values(log, log.log_start_offset, 6) == ["2a", "2b"]


def test_a_damaged_log_is_left_alone_and_named(tmp_path: Path) -> None:
    fill(tmp_path, OLD_MS, OLD_MS, retention__ms=str(DAY_MS))
    segment = tmp_path / "t-0" / f"{2:020d}.log"
    segment.write_bytes(segment.read_bytes()[:-5])
    done = retain([str(tmp_path)])
    assert len(done.problems) == 1
    assert "t-0" in done.problems[0]
    assert (bases(tmp_path), bases(tmp_path, T1)) == ([0, 2], [4])


def test_a_directory_that_a_broker_had_last_is_refused_until_it_is_taken_over(
    tmp_path: Path,
) -> None:
    fill(tmp_path, OLD_MS, now_ms(), retention__ms=str(DAY_MS))
    hand_over([str(tmp_path)], cluster_id="c", node_id=1)
    assert (tmp_path / META_PROPERTIES).exists()
    assert (tmp_path / CLEAN_SHUTDOWN).exists()
    with pytest.raises(LogDirectoryError, match="kafkalog broker takeover"):
        retain([str(tmp_path)])
    assert bases(tmp_path) == [0, 2]
    take_over([str(tmp_path)])
    retain([str(tmp_path)])
    assert bases(tmp_path) == [2]


def test_what_was_left_unsynced_is_not_looked_for_once_it_has_expired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "boot_id", lambda: "first")
    fill(tmp_path, OLD_MS, OLD_MS, flush="os", retention__ms=str(DAY_MS))
    fill(tmp_path, OLD_MS, now_ms(), topic="u", flush="os", retention__ms=str(DAY_MS))
    retain([str(tmp_path)])
    state = load_state(tmp_path)
    assert state is not None
    durable = {topic.name: topic.durable_ends for topic in state.topics.values()}
    assert durable == {"t": {}, "u": {}}  # what is deleted is durable, so is what stays
    monkeypatch.setattr(system, "boot_id", lambda: "second")
    assert recover([str(tmp_path)]).problems == []
    assert seen(tmp_path) == (4, [])


def test_what_takes_the_place_of_deleted_records_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "boot_id", lambda: "first")
    keeps = {"retention__bytes": "100"}
    fill(tmp_path, now_ms(), now_ms(), **keeps)
    fill(tmp_path, now_ms(), first=2, flush="os", **keeps)
    fill(tmp_path, now_ms(), topic="u", flush="os", **keeps)
    retain([str(tmp_path)])
    state = load_state(tmp_path)
    assert state is not None
    found = {topic.name: topic.durable_ends for topic in state.topics.values()}
    assert (bases(tmp_path)[0], found) == (2, {"t": {}, "u": {0: 0, 1: 0}})


def test_a_stream_that_stood_below_the_new_start_is_told_what_it_lost(tmp_path: Path) -> None:
    fill(tmp_path, OLD_MS, OLD_MS, now_ms(), retention__ms=str(DAY_MS))
    options = {"path": str(tmp_path), "subscribe": "t", "startingOffsets": "earliest"}
    options["fetchOffset.retryIntervalMs"] = "0"
    stream = StreamControl(ReadOptions.parse(options))
    stood = {T0: 3, T1: 5}
    end = stream.next_end(stood, take_all=False)
    assert len(stream.plan(stood, end)) > 1
    retain([str(tmp_path)])
    again = StreamControl(ReadOptions.parse(options))
    with pytest.raises(DataLossError, match=r"t-0.*\b3\b"):
        again.plan(stood, again.next_end(stood, take_all=False))
    lenient = StreamControl(ReadOptions.parse({**options, "failOnDataLoss": "false"}))
    splits = lenient.plan(stood, lenient.next_end(stood, take_all=False))
    read = {split.topic_partition: split.slices[0].start_offset for split in splits}
    assert read == {T0: 4, T1: 5}


# DeleteRecords


def test_records_are_deleted_up_to_an_offset(tmp_path: Path) -> None:
    fill(tmp_path, *[now_ms()] * 3)
    done = delete_records([str(tmp_path)], {T0: 3, T1: -1})
    assert [(each.start_before, each.start, each.segments) for each in done.partitions] == [
        (0, 3, (0,)),
        (0, 6, (0, 2)),
    ]
    assert starts(tmp_path) == {"t-0": (3, 3), "t-1": (6, 6)}
    assert (bases(tmp_path), bases(tmp_path, T1)) == ([2, 4], [4])
    assert seen(tmp_path) == (3, ["1b", "2a", "2b"])
    assert seen(tmp_path, T1) == (6, [])


def test_an_offset_below_the_start_changes_nothing(tmp_path: Path) -> None:
    fill(tmp_path, *[now_ms()] * 3)
    delete_records([str(tmp_path)], {T0: 4})
    state = load_state(tmp_path)
    done = delete_records([str(tmp_path)], {T0: 1})
    assert [each.start for each in done.partitions] == [4]
    assert load_state(tmp_path) == state


@pytest.mark.parametrize(
    ("offsets", "error"),
    [
        ({T0: 1, T1: 7}, OffsetOutOfRangeError),
        ({T0: 1, T1: -2}, OffsetOutOfRangeError),
        ({T0: 1, TopicPartition("t", 2): 0}, UnknownTopicOrPartitionError),
        ({T0: 1, TopicPartition("u", 0): 0}, UnknownTopicOrPartitionError),
        ({T0: 1, TopicPartition("compacted", 0): 0}, OptionError),
        ({T0: 1, TopicPartition("__consumer_offsets", 0): 0}, OptionError),
    ],
    ids=["above", "negative", "no partition", "no topic", "compacted", "internal"],
)
def test_one_wrong_offset_and_nothing_is_deleted(
    tmp_path: Path, offsets: dict[TopicPartition, int], error: type[Exception]
) -> None:
    fill(tmp_path, *[now_ms()] * 3)
    fill(tmp_path, now_ms(), topic="compacted", cleanup__policy="compact")
    fill(tmp_path, now_ms(), topic="__consumer_offsets", allowInternalTopics="true")
    state = load_state(tmp_path)
    with pytest.raises(error):
        delete_records([str(tmp_path)], offsets)
    assert load_state(tmp_path) == state
    assert bases(tmp_path) == [0, 2, 4]


def test_a_writer_goes_on_after_records_were_deleted(tmp_path: Path) -> None:
    writer = fill(tmp_path, *[now_ms()] * 2)
    delete_records([str(tmp_path)], {T0: -1, T1: 1})
    writer.write(2, rows(["new"], partitions=[0]))
    assert seen(tmp_path) == (4, ["new"])
    assert starts(tmp_path) == {"t-0": (4, 4), "t-1": (1, 1)}


# Killed


def _retain(log: Path) -> Deleted:
    return retain([str(log)])


def _delete_records(log: Path) -> Deleted:
    return delete_records([str(log)], {T0: 4, T1: 4})


@pytest.mark.long
@pytest.mark.parametrize(
    ("act", "stamp"),
    [(_retain, 0), (_retain, OLD_MS), (_delete_records, 0)],
    ids=["some", "all", "records"],
)
def test_whichever_call_it_is_killed_at_the_next_round_ends_it(
    tmp_path: Path, act: Callable[[Path], Deleted], stamp: int
) -> None:
    template = tmp_path / "template"
    fill(template, OLD_MS, OLD_MS, stamp or now_ms(), retention__ms=str(DAY_MS))
    whole = both_seen(template)
    done, counted = tmp_path / "done", tmp_path / "counted"
    for copy in (done, counted):
        shutil.copytree(template, copy)
    act(done)
    calls = count_calls(lambda: act(counted))
    published = 0
    for call in range(stamp % 5, calls, 5):
        log = tmp_path / str(call)
        shutil.copytree(template, log)
        assert run_and_kill(lambda log=log: act(log), call)
        found = both_seen(log)
        assert found in (whole, both_seen(done)), "all partitions at once"
        published += found == both_seen(done)
        Writer(log, topic="other", name="other").write(0, rows(["x"]))
        assert both_seen(log) == found
        state, said = starts(log)["t-0"]
        assert state == said, "the next session repeats what the checkpoint lacks"
        act(log)
        assert both_seen(log) == both_seen(done)
        assert bases(log) == bases(done)
        assert {path.suffix for path in (log / "t-0").glob(f"{0:020d}*")} == {".deleted"}
        assert recover([str(log)]).problems == []
        shutil.rmtree(log)
    assert 0 < published < calls // 5


def test_on_a_full_disk_what_was_retired_before_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, OLD_MS, OLD_MS, now_ms(), retention__ms=str(DAY_MS), file__delete__delay__ms="0")
    delete_records([str(tmp_path)], {T0: 2, T1: 2})
    assert retired(tmp_path)
    write, state = os.pwrite, load_state(tmp_path)

    def full(descriptor: int, data: Any, position: int) -> int:
        if b"kafkalog.commit" in bytes(data)[:100] or b"kafkalog.intent" in bytes(data)[:100]:
            raise OSError(28, "No space left on device")
        return write(descriptor, data, position)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match="No space left"):
            retain([str(tmp_path)])
    assert retired(tmp_path) == []
    assert load_state(tmp_path) == state
    assert not (tmp_path / UNFINISHED_FOLDER).exists()
    retain([str(tmp_path)])
    assert bases(tmp_path) == [4]


# What a broker keeps beside a log


def test_leader_epochs_begin_at_the_new_log_start(tmp_path: Path) -> None:
    fill(tmp_path, *[now_ms()] * 4)
    epochs = [LeaderEpoch(0, 0), LeaderEpoch(2, 3), LeaderEpoch(5, 6)]
    write_leader_epochs(tmp_path / "t-0", epochs)
    (tmp_path / "t-1" / LEADER_EPOCHS).write_text("damaged")
    delete_records([str(tmp_path)], {T0: 5, T1: 5})
    assert read_leader_epochs(tmp_path / "t-0") == [LeaderEpoch(2, 5), LeaderEpoch(5, 6)]
    assert (tmp_path / "t-1" / LEADER_EPOCHS).read_text() == "damaged"
    delete_records([str(tmp_path)], {T0: 6})
    assert read_leader_epochs(tmp_path / "t-0") == [LeaderEpoch(5, 6)]
    delete_records([str(tmp_path)], {T0: -1})
    assert read_leader_epochs(tmp_path / "t-0") == [LeaderEpoch(5, 8)]


def of_a_broker(log: Path, *steps: tuple[str, int]) -> Path:
    """Let a broker write a log, with snapshots where it rolls, and take it over."""
    BrokerLog(log / "t-0").play(steps)
    take_over([str(log)])
    return log / "t-0"


def test_what_is_known_of_producers_stays_though_its_snapshots_go(tmp_path: Path) -> None:
    write = [("write", 7), ("send", 8), ("commit", 8)]
    folder = of_a_broker(tmp_path, *write, ("roll", 0), *write)
    assert list_snapshots(folder) == [5]
    Writer(tmp_path, topic="t", segment__bytes="100").write(0, rows(["a"]))
    known = snapshot_at(folder, 10)
    assert list_base_offsets(folder) == [0, 5, 10]
    retain([str(tmp_path)], config={"retention.bytes": "1"})
    assert list_base_offsets(folder) == [10]
    assert list_snapshots(folder) == [10]
    entries = read_snapshot(folder / file_name(10, SNAPSHOT))
    assert (folder / file_name(10, SNAPSHOT)).read_bytes() == known
    assert {(int(each["producer_id"]), int(each["last_offset"])) for each in entries} == {
        (7, 6),
        (8, 8),
    }


def test_a_log_that_rolls_keeps_what_is_known_of_its_producers(tmp_path: Path) -> None:
    folder = of_a_broker(tmp_path, ("write", 7), ("send", 8), ("abort", 8))
    retain([str(tmp_path)], config={"retention.ms": "1"})
    assert (list_base_offsets(folder), list_snapshots(folder)) == ([5], [5])
    entries = read_snapshot(folder / file_name(5, SNAPSHOT))
    assert entries["producer_id"].tolist() == [7, 8]
    assert entries["coordinator_epoch"].tolist() == [-1, 5]
