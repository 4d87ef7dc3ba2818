"""``compact``: which topics it takes, what is left of them, and who may be at work meanwhile."""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.compacting import FORCED, compacted, latest, read, updates, writer
from tests.support.sinking import Writer, rows
from tests.unit.store.test_locks import held_elsewhere

from kafkalog.checkpoints.broker import (
    CLEAN_SHUTDOWN,
    CLEANER_OFFSET,
    LOCK,
    META_PROPERTIES,
    read_offset_checkpoint,
)
from kafkalog.checkpoints.state_file import load_state
from kafkalog.errors import LogDirectoryError, OptionError, UnknownTopicOrPartitionError
from kafkalog.files.system import system
from kafkalog.model import TopicPartition, TopicSelection
from kafkalog.streaming.admin import cleaning
from kafkalog.streaming.admin.broker.handover import take_over
from kafkalog.streaming.admin.cleaning import clean_partition
from kafkalog.streaming.admin.compaction import Wanted, compact, plan_compaction
from kafkalog.streaming.admin.recovery import recover
from kafkalog.streaming.log.segments import list_base_offsets
from kafkalog.streaming.store.locks import CleanerLock
from kafkalog.streaming.store.session import Session

if TYPE_CHECKING:
    from pathlib import Path

T0 = TopicPartition("t", 0)
BATCHES = [{"a": "1", "b": "1"}, {"a": "2"}, {"b": None, "c": "1"}, {"a": "3"}, {"e": "1"}]
WHOLE = {0: ("a", "1"), 1: ("b", "1"), 2: ("a", "2"), 3: ("b", None), 4: ("c", "1")} | {
    5: ("a", "3"),
    6: ("e", "1"),
}
CLEAN = {offset: WHOLE[offset] for offset in (3, 4, 5, 6)}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Give a log of a segment for each batch."""
    updates(writer(tmp_path), BATCHES)
    assert read(tmp_path, T0) == WHOLE
    return tmp_path


def clean_to(log: Path) -> int | None:
    return read_offset_checkpoint(log, CLEANER_OFFSET).get(T0)


def root_names(log: Path) -> list[str]:
    return sorted(path.name for path in log.iterdir() if path.name.startswith(".kafkalog"))


def test_the_last_value_of_each_key_stays(log: Path) -> None:
    done = compacted(log)
    assert read(log, T0) == CLEAN
    assert clean_to(log) == 6
    (one,) = done.partitions
    assert (one.topic_partition, one.rounds, one.clean_to) == (T0, 1, 6)
    assert (one.segments_before, one.segments) == (4, 4)
    assert one.bytes < one.bytes_before
    assert root_names(log) == []
    assert recover([str(log)]).problems == []
    assert read(log, T0) == CLEAN


def test_writers_continue_and_the_next_round_begins_where_the_last_one_ended(log: Path) -> None:
    compacted(log)
    updates(writer(log), [{"c": "2"}, {"f": "1"}], first=5)
    assert compacted(log).partitions[0].clean_to == 8
    assert latest(read(log, T0)) == {"a": "3", "b": None, "c": "2", "e": "1", "f": "1"}
    assert 4 not in read(log, T0)


def test_a_writer_that_remembers_its_log_continues_after_it(tmp_path: Path) -> None:
    into = writer(tmp_path)
    updates(into, BATCHES)
    compacted(tmp_path)
    updates(into, [{"a": "4"}], first=5)
    assert latest(read(tmp_path, T0)) == {"a": "4", "b": None, "c": "1", "e": "1"}


def test_a_system_that_does_not_tell_which_cores_it_gives_compacts_too(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")  # macOS has none
    compacted(log)
    assert read(log, T0) == CLEAN


def test_without_force_only_what_a_broker_would_clean_is_cleaned(log: Path) -> None:
    assert compacted(log, Wanted()).partitions[0].rounds == 1
    updates(writer(log), [{"c": "2"}], first=5)
    looked_at = compacted(log, Wanted()).partitions[0]
    assert (looked_at.rounds, looked_at.clean_to) == (0, 6)
    assert 0 < looked_at.ratio <= 0.5
    lower = Wanted(config={"min.cleanable.dirty.ratio": "0.01"})
    assert compacted(log, lower).partitions[0].rounds == 1


def test_what_is_too_young_is_not_cleaned(log: Path) -> None:
    young = Wanted(forces=True, config={"min.compaction.lag.ms": "100000"})
    assert compacted(log, young).partitions[0].rounds == 0
    assert read(log, T0) == WHOLE


def test_a_dry_run_says_what_would_be_cleaned_and_changes_nothing(log: Path) -> None:
    before = sorted(log.rglob("*"))
    assert compacted(log, dry_run=True).partitions[0].rounds == 1
    assert sorted(log.rglob("*")) == before


@pytest.mark.long
def test_more_keys_than_the_map_holds_take_several_rounds(tmp_path: Path) -> None:
    batches = [{f"k{(7 * n) % 40}": str(n)} for n in range(100)]
    updates(writer(tmp_path), batches)
    small = Wanted(forces=True, memory=24 * 20)
    assert compacted(tmp_path, small).partitions[0].rounds > 3
    found = read(tmp_path, T0)
    assert latest(found) == {key: value for each in batches for key, value in each.items()}
    assert len(found) == 41  # the last record lies in the active segment
    assert compacted(tmp_path, Wanted(memory=24 * 20)).partitions[0].rounds == 0


@pytest.mark.long
def test_a_batch_with_more_keys_than_the_map_holds_takes_several_rounds_too(
    tmp_path: Path,
) -> None:
    values = {f"k{n}": "1" for n in range(60)}
    updates(writer(tmp_path), [values, values, {"a": "1"}])
    small = Wanted(forces=True, memory=24 * 20)
    assert compacted(tmp_path, small).partitions[0].rounds > 3
    assert [*read(tmp_path, T0)] == [*range(60, 121)]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, "cleanup.policy was not given"),
        ({"cleanup__policy": "delete"}, "cleanup.policy is delete"),
    ],
)
def test_topics_that_were_not_given_it_are_left_alone(
    tmp_path: Path, settings: dict[str, str], reason: str
) -> None:
    into = Writer(tmp_path, topic="t", segment__bytes="80", **settings)
    for number in range(3):
        into.write(number, rows([str(number)], keys=["a"]))
    done = compacted(tmp_path)
    assert done.left_alone["t"].startswith(reason)
    assert done.partitions == []
    given = Wanted(forces=True, config={"cleanup.policy": "compact"})
    assert bool(compacted(tmp_path, given).partitions) == ("cleanup__policy" not in settings)


def test_one_topic_or_partition_may_be_named(tmp_path: Path) -> None:
    into = writer(tmp_path, numPartitions="2")
    updates(into, BATCHES)
    updates(into, BATCHES, first=5, partition=1)
    updates(writer(tmp_path, topic="u"), BATCHES)
    done = compacted(tmp_path, Wanted(topics=TopicSelection.of("t"), partition=1, forces=True))
    assert [str(each.topic_partition) for each in done.partitions] == ["t-1"]
    assert read(tmp_path, T0) == WHOLE
    assert read(tmp_path, TopicPartition("t", 1)) == CLEAN
    done = compacted(tmp_path)
    assert [str(each.topic_partition) for each in done.partitions] == ["t-0", "t-1", "u-0"]
    assert read(tmp_path, TopicPartition("u", 0)) == CLEAN
    for wanted in (
        Wanted(topics=TopicSelection.of("nowhere")),
        Wanted(topics=TopicSelection.of("t"), partition=2),
    ):
        with pytest.raises(UnknownTopicOrPartitionError):
            compact([str(tmp_path)], wanted)
    with pytest.raises(OptionError, match="dirty"):
        compact([str(tmp_path)], Wanted(config={"min.cleanable.dirty.ratio": "2"}))


def test_topics_with_both_policies_are_shortened_too(tmp_path: Path) -> None:
    options = {"cleanup__policy": "compact,delete", "retention__ms": "1000000"}
    into = writer(tmp_path, **options)
    for number, stamp in enumerate([1, 1, system.time_ns() // 1_000_000]):
        into.write(number, rows([str(number)], keys=[str(number)], timestamps=[stamp]))
    assert compacted(tmp_path, dry_run=True).retention is not None
    done = compacted(tmp_path)
    assert done.retention is not None
    assert [each.start for each in done.retention.partitions] == [2]
    assert [*read(tmp_path, T0)] == [2]


def test_a_directory_of_a_broker_is_refused_until_it_is_taken_over(log: Path) -> None:
    (log / META_PROPERTIES).write_text("version=1\n")
    (log / CLEAN_SHUTDOWN).write_text("")
    with pytest.raises(LogDirectoryError, match="takeover"):
        compact([str(log)], FORCED)
    assert compacted(log, Wanted(allows_broker=True)).partitions[0].rounds == 1
    updates(Writer(log, topic="t", allowBrokerDirectory="true"), [])
    (log / CLEAN_SHUTDOWN).write_text("")
    take_over([str(log)])
    compacted(log)


def test_records_that_the_commit_state_does_not_know_stop_it(log: Path) -> None:
    folder = log / "t-0"
    last = folder / f"{6:020d}.log"
    data = bytearray(last.read_bytes())
    data[:8] = (7).to_bytes(8, "big")
    last.write_bytes(last.read_bytes() + data)
    (problem,) = compact([str(log)], FORCED).problems
    assert "takeover" in problem
    assert list_base_offsets(folder) == [0, 2, 3, 5, 6]


def test_a_second_cleaner_is_told_who_works_there(log: Path) -> None:
    with CleanerLock.of(log, T0, holder="kafkalog compact"):
        done = compacted(log)
        assert done.left_alone["t-0"].startswith("it is cleaned at this moment by kafkalog compact")
        assert f"process {os.getpid()}" in done.left_alone["t-0"]
        assert read(log, T0) == WHOLE
    assert root_names(log) == []


def test_what_killed_cleaners_have_left_goes(log: Path) -> None:
    with CleanerLock.of(log, T0, holder="killed") as lock:
        orphan = log / f"{lock.new_prefix()}{0:020d}.log"
        orphan.write_bytes(b"half")
        compacted(log)
        assert orphan.exists()
        kept = log / (orphan.name + "x")
        kept.write_bytes(b"")
    assert not orphan.exists()
    orphan.write_bytes(b"half")
    compacted(log, Wanted(topics=TopicSelection.of("t"), partition=0))
    assert root_names(log) == []


def racing(monkeypatch: pytest.MonkeyPatch, action: Any) -> None:
    """Let something happen between the cleaning of a log and the session that swaps it in."""
    original = cleaning.clean_log

    def clean(*args: Any, **named: Any) -> Any:
        done = original(*args, **named)
        action()
        return done

    monkeypatch.setattr(cleaning, "clean_log", clean)


def test_a_segment_that_was_replaced_meanwhile_is_left_alone(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = log / "t-0" / f"{2:020d}.log"

    def replace() -> None:
        copy = path.with_name("copy")
        copy.write_bytes(path.read_bytes())
        copy.rename(path)

    racing(monkeypatch, replace)
    (problem,) = compact([str(log)], FORCED).problems
    assert str(path) in problem
    assert latest(read(log, T0)) == latest(WHOLE)
    assert clean_to(log) is None
    assert root_names(log) == []


def test_segments_that_retention_took_meanwhile_stay_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kafkalog.streaming.admin.retention import delete_records

    updates(writer(tmp_path, cleanup__policy="compact,delete"), BATCHES)
    racing(monkeypatch, lambda: delete_records([str(tmp_path)], {T0: 3}))
    compacted(tmp_path)
    assert list_base_offsets(tmp_path / "t-0")[0] == 3
    assert read(tmp_path, T0) == CLEAN


def test_a_segment_that_retention_took_before_it_was_read_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kafkalog.streaming.admin.retention import delete_records

    updates(writer(tmp_path, cleanup__policy="compact,delete"), BATCHES)
    original = cleaning.LastRecords.read
    deletes = [lambda: delete_records([str(tmp_path)], {T0: 3})]

    def remove(*args: Any, **named: Any) -> Any:
        if deletes:
            deletes.pop()()
            raise FileNotFoundError
        return original(*args, **named)

    monkeypatch.setattr(cleaning.LastRecords, "read", remove)
    compacted(tmp_path)
    assert read(tmp_path, T0) == CLEAN


def test_a_broker_that_has_started_meanwhile_has_the_log_to_itself(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as running:
        racing(monkeypatch, lambda: running.enter_context(held_elsewhere(log / LOCK)))
        (problem,) = compact([str(log)], FORCED).problems
    assert "a broker, or a tool of Kafka's, is running" in problem
    assert read(log, T0) == WHOLE
    assert root_names(log) == []


def test_a_batch_that_is_committed_meanwhile_stays(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    into = writer(log)
    racing(monkeypatch, lambda: updates(into, [{"a": "4"}], first=5))
    compacted(log)
    assert read(log, T0) == CLEAN | {7: ("a", "4")}


def test_a_topic_that_was_recreated_meanwhile_is_not_touched(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    def recreate() -> None:
        shutil.rmtree(log / "t-0")
        updates(Writer(log, topic="t", name="another", segment__bytes="100"), [{"x": "1"}])

    racing(monkeypatch, recreate)
    (problem,) = compact([str(log)], FORCED).problems
    assert "recreated" in problem
    assert read(log, T0) == {0: ("x", "1")}


def test_writers_wait_for_the_swap_alone(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The locks of the set are free while a log is cleaned: a session may be had at once."""
    taken = []

    def take() -> None:
        policy = Writer(log, topic="t").options.policy
        thread = threading.Thread(target=lambda: taken.append(_session(log, policy)))
        thread.start()
        thread.join()

    racing(monkeypatch, take)
    compacted(log)
    assert taken == [True]


def _session(log: Path, policy: Any) -> bool:
    with Session([log], policy, holder="a test"):
        return True


def test_what_was_left_unsynced_is_made_durable_before_it_is_compacted(
    tmp_path: Path,
) -> None:
    updates(writer(tmp_path, flush="os"), BATCHES)
    state = load_state(tmp_path)
    assert state is not None
    assert [topic.durable_ends for topic in state.topics.values()] == [{0: 0}]
    compacted(tmp_path)
    state = load_state(tmp_path)
    assert state is not None
    assert [topic.durable_ends for topic in state.topics.values()] == [{}]
    assert state.boot is None
    assert read(tmp_path, T0) == CLEAN


def test_a_task_may_be_sent_to_another_process(log: Path) -> None:
    import pickle

    (due,) = plan_compaction([str(log)], FORCED).due
    task = pickle.loads(pickle.dumps(due.task))
    bytes_read: list[int] = []
    done = pickle.loads(pickle.dumps(clean_partition(task, bytes_read.append)))
    assert done.rounds == 1
    assert sum(bytes_read) <= due.bytes
    # A speculative one of the same partition comes later, and finds nothing to do.
    assert clean_partition(task).rounds == 0
    assert read(log, T0) == CLEAN


def test_an_interrupt_ends_the_cleaning_and_changes_nothing(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from concurrent.futures import Future

    def interrupted(_: Any, timeout: float | None = None) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Future, "result", interrupted)
    gate = threading.Event()

    def progress(*_: Any) -> None:
        gate.wait(0.05)

    with pytest.raises(KeyboardInterrupt):
        compact([str(log)], FORCED, progress=progress)
    assert root_names(log) == []
    assert latest(read(log, T0)) == latest(WHOLE)
