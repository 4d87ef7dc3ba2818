"""Members of one group in one process: what they read, commit, and are refused."""

from __future__ import annotations

import errno
import os
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.consuming import (
    consumer,
    numbers,
    output,
    positions,
    settle,
    table,
    written,
)
from tests.support.interrupting import AlarmError, raising

import kafkalog
from kafkalog.errors import (
    CommitError,
    DataLossError,
    FencedMemberError,
    InvalidTopicError,
    KafkaLogError,
    LockTimeoutError,
    LogDirectoryError,
    OffsetOutOfRangeError,
    OptionError,
    RowError,
)
from kafkalog.files.system import system
from kafkalog.model import TopicPartition
from kafkalog.streaming.api import append
from kafkalog.streaming.commit.committer import Committer
from kafkalog.streaming.consumer.fetching import Fetcher
from kafkalog.streaming.groups.group_commits import GroupCommits
from kafkalog.streaming.groups.member_files import MEMBER_PREFIX, MemberFile, MemberFolder
from kafkalog.streaming.groups.membership import GroupMember
from kafkalog.streaming.groups.rebalance import MemberSettings, Presence
from kafkalog.streaming.store.ends.tracker import LogEndTracker
from kafkalog.streaming.store.policy import SetPolicy
from kafkalog.streaming.store.session import inspect_state

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa


IN = [TopicPartition("in", number) for number in range(4)]


def rest(reader: kafkalog.Consumer) -> list[int]:
    """Poll until nothing comes."""
    found = []
    while (rows := reader.poll(0.3 if found else 1.0)) is not None:
        found += numbers(rows)
    return found


def test_a_topic_that_is_not_there_is_waited_for_and_said(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with kafkalog.Consumer(folder, "g", ["in", "inn"]) as reader:
        for _ in range(2):
            reader.poll()
    said = [record.getMessage() for record in caplog.records]
    assert said.count("group g waits for topics that are not there yet: inn") == 1


def test_one_member_reads_all_and_the_next_one_goes_on_where_it_has_committed(
    folder: Path,
) -> None:
    with consumer(folder) as reader:
        first = reader.poll(5)
        assert first is not None
        assert reader.assignment == IN
        assert first.schema.names[:2] == ["key", "value"]
        reader.commit()
        assert positions(folder) == {each: 10 if each == IN[0] else 0 for each in IN}
        assert reader.position(IN[0]) == 10
        others = rest(reader)
        assert sorted([*numbers(first), *others]) == list(range(40))
    with consumer(folder) as again:
        assert sorted(rest(again)) == sorted(others), "it had not committed these"
        again.commit()
    with consumer(folder) as again:
        assert rest(again) == []
        append(folder, "in", table([44]))
        assert rest(again) == [44]
    assert not list(folder.glob(f"{MEMBER_PREFIX}*"))


def test_a_group_begins_at_latest_and_in_partitions_that_come_later_at_their_start(
    folder: Path,
) -> None:
    with consumer(folder, options={"startingOffsets": "latest"}) as reader:
        assert reader.poll(0.3) is None
        append(folder, "in", table([40, 41]))
        assert sorted(rest(reader)) == [40, 41]
    with kafkalog.Consumer(folder, "g", ["in", "new"]) as reader:
        assert sorted(rest(reader)) == [40, 41], "they were not committed"
        append(folder, "new", table(range(3)), options={"numPartitions": 4})
        assert sorted(rest(reader)) == [0, 1, 2]
    with kafkalog.Consumer(folder, "h", ["in", "new"]) as reader:
        assert rest(reader) == []


def test_what_was_sought_and_paused(folder: Path) -> None:
    with consumer(folder) as reader:
        assert len(rest(reader)) == 40
        reader.commit()
        reader.seek(IN[1], 8)
        reader.pause([IN[1]])
        append(folder, "in", table([40, 41]))
        assert rest(reader) == [40]
        reader.resume([IN[1]])
        assert rest(reader) == [33, 37, 41]
        reader.seek(IN[1], 2)
        reader.commit()
        assert positions(folder)[IN[1]] == 10, "a group does not go back"
        reader.seek(IN[2], 10)
        with pytest.raises(OffsetOutOfRangeError, match="in-2: offset -1"):
            reader.seek(IN[2], -1)
        with pytest.raises(OptionError, match="does not have in-9"):
            reader.position(("in", 9))


def test_two_members_share_the_partitions_and_say_so(folder: Path) -> None:
    said: list[tuple[str, list[TopicPartition]]] = []
    a = consumer(
        folder,
        options={"kafka.client.id": "a"},
        on_assign=lambda found: said.append(("+", found)),
        on_revoke=lambda lost: (said.append(("-", lost)), a.commit()),
    )
    with a, consumer(folder) as b:
        assert sorted(rest(a)) == list(range(40))
        settle(a, b)
        assert (a.assignment, b.assignment) == (IN[:2], IN[2:])
        assert said == [("+", IN), ("-", IN[2:])]
        assert rest(b) == [], "a has committed all of it when it gave them up"
        with pytest.raises(KafkaLogError, match="cannot be called from on_assign"):
            a._call_back(lambda _: a.poll(), [])
    assert said[-1] == ("-", IN[:2])


def test_rows_and_positions_are_there_together(folder: Path) -> None:
    with consumer(folder) as reader:
        while (rows := reader.poll(1.0)) is not None:
            append(folder, "out", output(rows), consumer=reader)
            assert sum(positions(folder).values()) == len(written(folder))
    assert written(folder) == list(range(40))
    assert positions(folder) == dict.fromkeys(IN, 10)


def test_rows_of_a_partition_that_was_given_up_are_refused_and_read_by_its_new_owner(
    folder: Path,
) -> None:
    with (
        consumer(folder, options={"kafka.client.id": "a"}) as a,
        consumer(folder) as b,
    ):
        kept = []
        while (rows := a.poll(1.0)) is not None:
            kept.append(rows.select(["value"]))
        came = settle(a, b)
        with pytest.raises(FencedMemberError, match="gave in-2, in-3 to another"):
            append(folder, "out", iter(kept), consumer=a)
        assert not (folder / "out-0").exists()
        for reader, rows in came:
            append(folder, "out", output(rows), consumer=reader)
        for reader in (a, b):
            while (rows := reader.poll(1.0)) is not None:
                append(folder, "out", output(rows), consumer=reader)
    assert written(folder) == list(range(40))


def test_an_append_that_failed_is_tried_again_or_its_rows_come_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with consumer(folder) as reader:
        rows = reader.poll(5)
        assert rows is not None
        with pytest.raises(RowError):
            append(folder, "out", "no rows", consumer=reader)
        with pytest.raises(CommitError, match="try the same append again"):
            reader.commit()
        append(folder, "out", output(rows), consumer=reader)
        second = reader.poll(5)
        assert second is not None
        original = Committer._finish

        def dies(*_: Any) -> None:
            raise CommitError("as if it were not known whether it is published")

        monkeypatch.setattr(Committer, "_finish", dies)
        with pytest.raises(CommitError, match="not known"):
            append(folder, "out", output(second), consumer=reader)
        monkeypatch.setattr(Committer, "_finish", original)
        with pytest.raises(FencedMemberError, match="stands at 10"):
            append(folder, "out", output(second), consumer=reader)
        while (rows := reader.poll(1.0)) is not None:
            append(folder, "out", output(rows), consumer=reader)
    assert written(folder) == list(range(40))


def test_rows_of_a_generator_that_polls_are_there_together_with_their_positions(
    folder: Path,
) -> None:
    def polled(reader: kafkalog.Consumer, times: int) -> Iterator[pa.RecordBatch]:
        for _ in range(times):
            rows = reader.poll(5)
            assert rows is not None
            yield from output(rows).to_batches()

    for times in (1, 2):
        with consumer(folder) as reader:
            append(folder, "out", polled(reader, times), consumer=reader)
            assert sum(positions(folder).values()) == len(written(folder))
    with consumer(folder) as reader:
        while (rows := reader.poll(1.0)) is not None:
            append(folder, "out", output(rows), consumer=reader)
    assert written(folder) == list(range(40))


def test_an_iterator_that_a_failed_append_has_read_is_not_appended_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would give no rows, and the positions of the rows that are gone would be published."""
    with consumer(folder) as reader:
        rows = reader.poll(5)
        assert rows is not None
        read = iter(output(rows).to_batches())

        def waits_in_vain(*_: Any, **__: Any) -> None:
            raise LockTimeoutError("held by another writer")

        with monkeypatch.context() as patched:
            patched.setattr(Committer, "commit", waits_in_vain)
            with pytest.raises(LockTimeoutError):
                append(folder, "out", read, consumer=reader)
        with pytest.raises(RowError, match="pass a new iterator"):
            append(folder, "out", read, consumer=reader)
        append(folder, "out", iter(output(rows).to_batches()), consumer=reader)
        assert positions(folder)[IN[0]] == 10
        assert written(folder) == numbers(rows)


@pytest.mark.parametrize(
    ("name", "options"),
    [("realpath", {}), ("", {"flush": "sometimes"})],
    ids=["interrupt", "options"],
)
def test_rows_come_again_though_an_append_failed_before_it_began(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, options: dict[str, str]
) -> None:
    def interrupted(_: object) -> str:
        raise KeyboardInterrupt

    with consumer(folder) as reader:
        first = reader.poll(5)
        assert first is not None
        with monkeypatch.context() as within:
            if name:
                within.setattr(os.path, name, interrupted)
            with pytest.raises((KeyboardInterrupt, OptionError)):
                append(folder, "out", output(first), consumer=reader, options=options)
        while (rows := reader.poll(1.0)) is not None:
            append(folder, "out", output(rows), consumer=reader)
    assert written(folder) == list(range(40))


def test_a_commit_whose_end_is_not_known_is_looked_up(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with consumer(folder) as reader:
        assert reader.poll(5) is not None

        def dies(*_: Any) -> None:
            raise CommitError("not known")

        with monkeypatch.context() as patch:
            patch.setattr(Committer, "_finish", dies)
            with pytest.raises(CommitError, match="not known"):
                reader.commit()
        rest(reader)
        reader.commit()
    assert positions(folder) == dict.fromkeys(IN, 10)


def test_a_member_that_was_lost_publishes_nothing_and_its_rows_are_read_by_others(
    folder: Path,
) -> None:
    """It reads, sleeps beyond its session, and wakes up late."""
    late = consumer(folder, options={"kafka.session.timeout.ms": 400})
    rows = late.poll(5)
    assert rows is not None
    assert late._member is not None
    late._member.fall_silent()  # asleep: its thread, too
    with consumer(folder) as other:
        while (found := other.poll(3)) is not None:
            append(folder, "out", output(found), consumer=other)
        assert other.assignment == IN
        before = positions(folder)
        with pytest.raises(FencedMemberError):
            late.commit()
        with pytest.raises(FencedMemberError, match="without member 'consumer-"):
            append(folder, "out", output(rows), consumer=late)
        with pytest.raises(FencedMemberError):
            late.poll()
        late.close()
        assert positions(folder) == before
        assert len(list(folder.glob(f"{MEMBER_PREFIX}*"))) == 1
    assert written(folder) == list(range(40))


def test_a_member_that_is_out_of_its_group_is_refused_at_each_poll(folder: Path) -> None:
    late = consumer(folder)
    assert late.poll(5) is not None
    late.commit()
    with consumer(folder) as other:
        assert late._member is not None
        late._member.vanish()
        while other.assignment != IN:
            other.poll(0.1)
        for _ in range(3):
            with pytest.raises(FencedMemberError):
                late.poll()


def test_a_member_that_polls_too_late_has_left(folder: Path) -> None:
    slow = consumer(folder, options={"kafka.max.poll.interval.ms": 300})
    with consumer(folder) as other:
        assert slow.poll(5) is not None
        while other.assignment != IN:
            other.poll(0.1)
        with pytest.raises(FencedMemberError, match=r"max\.poll\.interval\.ms \(300 ms\)"):
            slow.poll()
        slow.close()


def test_a_static_member_that_starts_again_has_its_partitions_at_once(folder: Path) -> None:
    static = {"kafka.group.instance.id": "i"}
    with consumer(folder) as other:
        reader = consumer(folder, options=static)
        settle(reader, other)
        had, others = reader.assignment, other.assignment
        reader.close()
        with consumer(folder, options=static) as again:
            for _ in range(100):  # the other's thread may hold the group's lock for a moment
                again.poll(0.02)
                if again.assignment:
                    break
            other.poll()
            assert (again.assignment, other.assignment) == (had, others)


def test_a_forked_child_is_refused(folder: Path) -> None:
    with consumer(folder) as reader:
        assert reader.poll(5) is not None
        child = os.fork()
        if child == 0:
            code = 1
            try:
                calls = (
                    reader.poll,
                    reader.commit,
                    lambda: reader.assignment,
                    lambda: reader.pause([]),
                    lambda: reader.resume([]),
                )
                refused = 0
                for call in calls:
                    try:
                        call()
                    except KafkaLogError as error:
                        refused += "forked" in str(error)
                try:
                    append(folder, "in", table([1]), consumer=reader)
                except KafkaLogError as error:
                    refused += "forked" in str(error)
                reader.close()
                code = 0 if refused == 6 else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        reader.commit()
        assert len(MemberFolder(folder, "g").read()) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kafka.session.timeout.ms": 10}, "must be less than kafka.session.timeout.ms"),
        ({"startingOffsets": "group:x"}, "a group begins at earliest or latest"),
        ({"view": "batches"}, "'view' is for queries of Spark"),
        ({"kafka.group.id": "x"}, "use its arguments"),
        ({"kafka.partition.assignment.strategy": "best"}, "range"),
        ({"failOnDataLos": "true"}, "failOnDataLoss"),
        ({"kafka.client.id": "x" * 250}, "of 1 to 249 bytes"),
        ({"kafka.group.instance.id": "x" * 250}, "of 1 to 249 bytes"),
        ({"kafka.group.instance.id": "\ud800"}, "of 1 to 249 bytes"),
    ],
    ids=lambda given: ascii(given)[:60],
)
def test_options_are_checked_when_it_is_made(
    folder: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(OptionError, match=said):
        consumer(folder, options=options)


def test_a_position_above_the_end_of_a_log_is_not_published(folder: Path) -> None:
    with consumer(folder) as member:
        while member.poll(1) is not None:
            pass
        member.commit()
        at = member.position(("in", 0))
        member.seek(("in", 0), at + 1000)
        with pytest.raises(OffsetOutOfRangeError, match=f"is committed up to {at}: seek"):
            member.commit()
        member.seek(("in", 0), at)
        member.commit()


def test_names_that_no_topic_and_no_group_can_have_are_refused(folder: Path) -> None:
    with pytest.raises(InvalidTopicError, match="'in,out' has characters other than"):
        kafkalog.Consumer(folder, "g", "in,out")
    with pytest.raises(OptionError, match="UTF-8 can hold"):
        kafkalog.Consumer(folder, "caf\udce9", "in")


def test_a_list_without_topics_is_refused_by_what_it_is(folder: Path) -> None:
    with pytest.raises(OptionError, match="an empty list of topics"):
        kafkalog.Consumer(folder, "g", [])
    with pytest.raises(OptionError, match="an empty list of topics"):
        kafkalog.read(folder, [])
    with pytest.raises(OptionError, match="the name of a topic is empty"):
        kafkalog.Consumer(folder, "g", "")


def test_what_cannot_be_called_is_refused_before_anything_is_joined(folder: Path) -> None:
    given: Any = 5
    with pytest.raises(OptionError, match="on_assign is 5, expected a function"):
        kafkalog.Consumer(folder, "g", "in", on_assign=given)
    with pytest.raises(OptionError, match="on_revoke is 5, expected a function"):
        kafkalog.Consumer(folder, "g", "in", on_revoke=given)


def test_a_file_in_place_of_a_log_directory_is_called_so(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.touch()
    with pytest.raises(LogDirectoryError, match=r"notes\.txt is a file: a log directory is"):
        kafkalog.Consumer(file, "g", "in")


def test_what_cannot_be_is_refused(folder: Path, tmp_path: Path) -> None:
    reader = consumer(folder)
    with pytest.raises(OptionError, match="not the same set"):
        append(tmp_path / "other", "in", table([1]), consumer=reader)
    with pytest.raises(OptionError, match="not both"):
        append(folder, "in", table([1]), transactional_id="x", version=1, consumer=reader)
    with pytest.raises(FencedMemberError, match="has not polled"):
        append(folder, "in", table([1]), consumer=reader)
    reader.poll()
    other = consumer(folder, options={"kafka.partition.assignment.strategy": "sticky"})
    with pytest.raises(OptionError, match="the members of the group use range"):
        other.poll(60)
    other.close()
    reader.close()
    reader.close()
    with pytest.raises(KafkaLogError, match="is closed"):
        reader.poll()


def test_members_that_were_killed_keep_nobody_out_who_assigns_otherwise(folder: Path) -> None:
    short = {"kafka.session.timeout.ms": 1000}
    first = consumer(folder, options=short)
    first.poll(5)
    assert first._member is not None
    first._member.fall_silent()  # as if it was killed
    other = {**short, "kafka.partition.assignment.strategy": "sticky"}
    with consumer(folder, options=other) as reader:
        assert reader.poll(60) is not None
        assert len(reader.assignment) == 4


def test_what_could_not_be_said_for_want_of_space_is_said_later(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = consumer(folder), consumer(folder)
    first.poll(5)
    second.poll()
    says = MemberFile.say
    fails = True

    def say(file: MemberFile, presence: Presence) -> None:
        if fails:
            raise OSError(errno.ENOSPC, "No space left on device")
        says(file, presence)

    monkeypatch.setattr(MemberFile, "say", say)
    refused = 0
    for each in (first, second, first, second):
        try:
            each.poll(0.15)
        except KafkaLogError:
            refused += 1
    assert refused
    fails = False
    settle(first, second)
    first.close()
    second.close()


def test_an_error_ends_it_without_asking_for_a_commit(folder: Path) -> None:
    said: list[Any] = []
    reader = consumer(folder, on_revoke=said.append)
    with suppress(ZeroDivisionError), reader:
        assert reader.poll(5) is not None
        raise ZeroDivisionError
    assert not said
    assert not list(folder.glob(f"{MEMBER_PREFIX}*"))


def test_an_idle_member_looks_at_files_that_have_not_changed_and_reads_none(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[object] = []

    def counted(*given: Any) -> Any:
        looks.append(given)
        return inspect_state(*given)

    monkeypatch.setattr("kafkalog.streaming.groups.group_commits.inspect_state", counted)
    slow_beat = {"kafka.heartbeat.interval.ms": 50_000}
    with consumer(folder, options=slow_beat) as reader:
        rest(reader)
        reader.poll(0.3)
        member = reader._member
        assert member is not None
        member.fall_silent()
        time.sleep(0.2)
        for _ in range(2):
            member.round()
            member.beat()
        assert looks
        looks.clear()
        for _ in range(20):
            member.round()
            member.beat()
        assert not looks


def test_the_thread_of_a_member_does_not_look_again_at_what_its_rounds_look_at(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[object] = []
    read = MemberFolder.read

    def counted(members: MemberFolder) -> Any:
        reads.append(members)
        return read(members)

    with consumer(folder, options={"kafka.heartbeat.interval.ms": 50_000}) as reader:
        rest(reader)
        member = reader._member
        assert member is not None
        member.fall_silent()
        time.sleep(0.2)
        monkeypatch.setattr(MemberFolder, "read", counted)
        now_s = system.monotonic()
        monkeypatch.setattr(system, "monotonic", lambda: now_s)
        member.round()
        reads.clear()
        member.beat()
        assert not reads
        monkeypatch.setattr(system, "monotonic", lambda: now_s + 0.1)
        member.beat()
        assert reads


def test_a_group_that_stands_beyond_the_end_of_a_log_goes_on_there_if_it_may_lose_data(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with consumer(folder) as reader:
        assert len(rest(reader)) == 40
        reader.commit()
    commits = GroupCommits([folder], "g", SetPolicy())
    commits.change(commits.look().record, {IN[0]: 500})
    with consumer(folder) as reader, pytest.raises(DataLossError, match="in-0 from 500 to 10"):
        reader.poll()
    options = {"failOnDataLoss": "false"}
    with consumer(folder, options=options) as reader:
        assert rest(reader) == []
        assert positions(folder)[IN[0]] == 10
        append(folder, "in", table([40, 41]))
        assert sorted(rest(reader)) == [40, 41]
    append(folder, "in", table([44]))
    with consumer(folder, options=options) as reader:
        assert sorted(rest(reader)) == [40, 41, 44], "they were not committed"
        reader.commit()
    assert positions(folder)[IN[0]] == 12
    said = [record for record in caplog.records if "in-0 from 500 to 10" in record.getMessage()]
    assert len(said) == 1


def test_a_seek_beyond_the_end_of_a_log_moves_no_group(folder: Path) -> None:
    with consumer(folder, options={"failOnDataLoss": "false"}) as reader:
        assert len(rest(reader)) == 40
        reader.commit()
        reader.seek(IN[0], 500)
        assert rest(reader) == []
        assert reader.position(IN[0]) == 10
        reader.seek(IN[0], 4)
        assert len(rest(reader)) == 6
        reader.commit()
    assert positions(folder) == dict.fromkeys(IN, 10)


@pytest.mark.parametrize("member", ["i-0", "i-zzz"])
def test_a_static_member_is_not_replaced_by_one_that_was_killed_before_it_was_let_in(
    folder: Path, member: str
) -> None:
    settings = MemberSettings(frozenset({"in"}), "i", "c", "h", 60_000, 60_000)
    MemberFile(folder, "g", member).create(Presence(settings, "range"))
    with consumer(folder, options={"kafka.group.instance.id": "i"}) as reader:
        assert sorted([*rest(reader), *rest(reader)]) == list(range(40))


def test_a_group_whose_id_utf8_cannot_hold_is_refused(folder: Path) -> None:
    with pytest.raises(OptionError, match=r"caf\\udce9', which is no text that UTF-8 can hold"):
        kafkalog.Consumer(folder, os.fsdecode("café".encode("latin-1")), "in")


@pytest.fixture
def interrupt() -> Iterator[Any]:
    with raising() as call:
        yield call


def interrupting(interrupt: Any, original: Any, *, before: bool = False) -> tuple[Any, Any]:
    """Return a method that interrupts the main thread once, and what tells whether it has."""
    done: list[bool] = []

    def method(*given: Any) -> Any:
        found = None if before else original(*given)
        if not done:
            done.append(True)
            interrupt()
        return original(*given) if before else found

    return method, done


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (Fetcher, "next"),
        (Fetcher, "_plan"),
        (GroupMember, "join"),
        (GroupMember, "start_heartbeats"),
        (GroupMember, "polled"),
        (MemberFile, "say"),
    ],
    ids=lambda given: getattr(given, "__name__", given),
)
def test_an_interrupted_poll_takes_no_rows_away_and_leaves_one_member(
    folder: Path, monkeypatch: pytest.MonkeyPatch, interrupt: Any, kind: type, name: str
) -> None:
    method, done = interrupting(interrupt, getattr(kind, name))
    with consumer(folder) as reader:
        monkeypatch.setattr(kind, name, method)
        found = []
        for _ in range(200):
            with suppress(AlarmError):
                rows = reader.poll(0.05)
                found += [] if rows is None else numbers(rows)
            if len(found) == 40:
                break
        assert done
        assert sorted(found) == list(range(40))
        assert len(MemberFolder(folder, "g").read()) == 1
        reader.commit()
    assert positions(folder) == dict.fromkeys(IN, 10)
    assert not list(folder.glob(f"{MEMBER_PREFIX}*"))


def test_an_interrupted_close_has_left_the_group(
    folder: Path, monkeypatch: pytest.MonkeyPatch, interrupt: Any
) -> None:
    reader = consumer(folder)
    assert reader.poll(5) is not None
    method, _ = interrupting(interrupt, GroupMember.leave, before=True)
    monkeypatch.setattr(GroupMember, "leave", method)
    with pytest.raises(AlarmError):
        reader.close()
    assert not list(folder.glob(f"{MEMBER_PREFIX}*"))
    reader.close()
    with pytest.raises(KafkaLogError, match="is closed"):
        reader.poll()


def test_callbacks_that_failed_are_called_again_before_any_row(folder: Path) -> None:
    calls: list[str] = []

    def assigned(partitions: list[TopicPartition]) -> None:
        calls.append("+")
        if len(calls) == 1:
            raise ConnectionError("the store of offsets is away")
        for key in partitions:
            a.seek(key, 8)

    def revoked(_: list[TopicPartition]) -> None:
        calls.append("-")
        if calls.count("-") == 1:
            raise ConnectionError("the store of offsets is away")

    named = {"kafka.client.id": "a"}
    a = consumer(folder, options=named, on_assign=assigned, on_revoke=revoked)
    with a, consumer(folder) as b:
        with pytest.raises(ConnectionError):
            a.poll(5)
        assert sorted(rest(a)) == list(range(32, 40))
        assert calls == ["+", "+"]
        for _ in range(100):
            b.poll(0.02)
            with suppress(ConnectionError):
                a.poll(0.02)
            if b.assignment:
                break
        assert calls == ["+", "+", "-", "-"]
        assert (a.assignment, b.assignment) == (IN[:2], IN[2:])


def test_a_callback_cannot_close_and_the_consumer_is_closed_all_the_same(folder: Path) -> None:
    reader = consumer(folder, on_revoke=lambda _: reader.close())
    assert reader.poll(5) is not None
    with pytest.raises(KafkaLogError, match="close cannot be called from on_assign or on_revoke"):
        reader.close()
    reader.close()
    assert not list(folder.glob(f"{MEMBER_PREFIX}*"))


def test_rows_that_a_seek_or_a_pause_has_passed_are_not_returned(
    folder: Path, monkeypatch: pytest.MonkeyPatch, interrupt: Any
) -> None:
    """They were read when poll was interrupted, and not handed out."""
    with consumer(folder) as reader:
        assert rest(reader)
        append(folder, "in", table([44]))
        method, _ = interrupting(interrupt, Fetcher.next)
        with monkeypatch.context() as patch:
            patch.setattr(Fetcher, "next", method)
            with pytest.raises(AlarmError):
                reader.poll(5)
        reader.seek(IN[0], 9)
        assert sorted(rest(reader)) == [36, 44]


def test_a_time_out_of_the_caller_is_not_taken_for_a_failing_disk(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TimeoutError is an OSError, which readers of several replicas and rounds of a group bear."""

    def alarm(*_: object) -> None:
        raise TimeoutError("the caller's")

    def look(*given: Any) -> Any:
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.05)  # the main thread has it by then
        return looks(*given)

    looks = LogEndTracker.look
    before = signal.signal(signal.SIGUSR1, alarm)
    try:
        with consumer(folder) as reader:
            with monkeypatch.context() as patch:
                patch.setattr(LogEndTracker, "look", look)
                with pytest.raises(TimeoutError, match="the caller's"):
                    reader.poll(5)
            assert sorted(rest(reader)) == list(range(40))
    finally:
        signal.signal(signal.SIGUSR1, before)
