"""Groups whose positions, and members, are kept in a log in an object store."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support.bucket_model import without_rests
from typer.testing import CliRunner

import kafkalog
from kafkalog.errors import (
    FencedMemberError,
    LogDirectoryError,
    OffsetOutOfRangeError,
    OptionError,
    UnknownTopicOrPartitionError,
)
from kafkalog.files.objects import FolderObjects
from kafkalog.files.system import system
from kafkalog.jobs.cli.app import app
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin import topics
from kafkalog.streaming.groups.administration import GroupWriter, delete_group, reset_group
from kafkalog.streaming.groups.group_commits import GroupCommits
from kafkalog.streaming.groups.member_files import MemberObject, MemberObjects
from kafkalog.streaming.groups.membership import GroupMember
from kafkalog.streaming.groups.rebalance import GroupRecord, MemberSettings, Presence
from kafkalog.streaming.objects import bucket_store
from kafkalog.streaming.objects.bucket_store import bucket_of
from kafkalog.streaming.store.policy import SetPolicy

if TYPE_CHECKING:
    from pathlib import Path

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
NOW = {"storage.pollInterval": "10"}


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A log in a bucket with ten rows in each of two partitions."""
    without_rests(monkeypatch)
    objects = FolderObjects(tmp_path / "bucket")
    monkeypatch.setattr(bucket_store, "open_objects", lambda _: objects)
    place = f"s3a://bucket{tmp_path}"
    append(place, 20)
    return place


def append(place: str, count: int) -> None:
    rows = pa.table(
        {
            "value": [f"{number}" for number in range(count)],
            "partition": pa.array([number % 2 for number in range(count)], pa.int32()),
        }
    )
    kafkalog.append(place, "t", rows, options={"numPartitions": 2})


def positions(place: str, group: str = "g") -> dict[TopicPartition, int]:
    root = bucket_of([place])
    assert root is not None
    root.open_store().forget_listing()
    return dict(GroupCommits([root.open_log()], group, SetPolicy()).look().positions)


def call(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(words))
    return done.exit_code, done.output


def test_a_group_is_set_to_where_it_is_to_go_on(place: str) -> None:
    reset_group([place], "g", {T0: 4, T1: 7})
    assert positions(place) == {T0: 4, T1: 7}
    table = kafkalog.read(place, "t", options={"startingOffsets": "group:g"}).read_all()
    assert table.num_rows == 6 + 3
    changed = reset_group([place], "g", "latest")
    assert [(each.before, each.after) for each in changed] == [(4, 10), (7, 10)]
    reset_group([place], "g", "earliest", dry_run=True)
    assert positions(place) == {T0: 10, T1: 10}
    with pytest.raises(OffsetOutOfRangeError, match="expected one from 0"):
        reset_group([place], "g", {T0: 11})


def test_a_change_of_positions_is_one_commit_and_one_request(place: str, tmp_path: Path) -> None:
    def commits() -> int:
        return len(list((tmp_path / "bucket").rglob("commits/*")))

    before = commits()
    reset_group([place], "g", {T0: 1})
    reset_group([place], "g", {T0: 2})
    assert commits() == before + 2
    assert not list((tmp_path / "bucket").rglob("data/*"))


def test_a_group_is_forgotten(place: str) -> None:
    reset_group([place], "g", {T0: 4})
    reset_group([place], "other", {T0: 5})
    delete_group([place], "g")
    assert positions(place) == {}
    assert positions(place, "other") == {T0: 5}
    with pytest.raises(OptionError, match="there is no group 'g'"):
        delete_group([place], "g")


def test_commands_know_groups_in_a_bucket(place: str) -> None:
    code, output = call("group", "reset", place, "-g", "g", "--offsets", '{"t":{"0":4}}', "--yes")
    assert (code, "10" in output or "4" in output) == (0, True), output
    code, output = call("group", "list", place, "--json")
    assert (code, json.loads(output)["lag"]) == (0, 6), output
    code, output = call("group", "describe", place, "-g", "g", "--json")
    assert (code, json.loads(output)["offset"]) == (0, 4), output
    code, output = call("lag", place, "--group", "g")
    assert code == 0, output
    assert "6" in output
    code, output = call("group", "delete", place, "-g", "g", "--yes")
    assert code == 0, output
    assert positions(place) == {}


def test_positions_of_a_topic_that_was_made_again_count_no_more(place: str) -> None:
    reset_group([place], "g", {T0: 4})
    assert call("topic", "delete", place, "-t", "t", "--yes")[0] == 0
    append(place, 4)
    assert positions(place) == {}


def test_a_stream_writes_its_positions(place: str) -> None:
    writer = GroupWriter([place], "g")
    assert writer.commit({T0: 3, T1: 5})
    assert not writer.commit({T0: 3})
    assert positions(place) == {T0: 3, T1: 5}
    large = {TopicPartition("t" * 200, number): number for number in range(4000)}
    writer.commit(large)  # more than a commit has room for
    assert len(positions(place)) == 4002


def test_positions_are_written_to_no_log_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    objects = FolderObjects(tmp_path / "empty")
    monkeypatch.setattr(bucket_store, "open_objects", lambda _: objects)
    with pytest.raises(LogDirectoryError, match="holds no log"):
        GroupWriter(["s3a://bucket/empty"], "g")
    with pytest.raises(LogDirectoryError, match="holds no log"):
        reset_group(["s3a://bucket/empty"], "g", {T0: 1})
    assert not (tmp_path / "empty").exists()


# Members


def consumer(place: str, **options: Any) -> kafkalog.Consumer:
    given = {"startingOffsets": "earliest", "kafka.heartbeat.interval.ms": 100, **NOW, **options}
    return kafkalog.Consumer(place, "g", "t", options=given)


def say_often(member: kafkalog.Consumer) -> None:
    """Let a member say ten times a second that it lives, and not once in 15 s."""
    assert member._member is not None
    member._member._interval_s = 0.1


def values(batch: pa.RecordBatch | None) -> list[int]:
    return [] if batch is None else [int(value) for value in batch["value"].to_pylist()]


def poll_on(member: kafkalog.Consumer) -> None:
    while True:
        member.poll(0.2)


def share_out(*members: kafkalog.Consumer) -> None:
    """Let members poll until each has a partition."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for member in members:
            member.poll()
        shares = [[key.partition for key in member.assignment] for member in members]
        if sorted(shares) == [[0], [1]]:
            return
    raise AssertionError([member.assignment for member in members])


def test_a_member_goes_on_where_its_group_has_committed(place: str) -> None:
    with consumer(place) as first:
        seen = values(first.poll(60))
        assert len(seen) == 10
        first.commit()
        values(first.poll(60))  # and does not commit that
    with consumer(place) as second:
        rest = values(second.poll(60))
        assert sorted(seen + rest) == [*range(20)]
        assert sum(positions(place).values()) == 10
        second.commit()
    assert positions(place) == {T0: 10, T1: 10}
    code, output = call("group", "list", place, "--json")
    assert (code, json.loads(output)["lag"]) == (0, 0)


@pytest.mark.parametrize("count", [4, 20, 40])
def test_a_topic_that_is_made_again_under_a_member_is_read_from_its_start(
    place: str, count: int
) -> None:
    with consumer(place, **NOW) as member:
        assert len(rest(member)) == 20
        member.commit()
        topics.delete([place], "t")
        append(place, count)
        assert sorted(rest(member)) == [*range(count)]
        member.commit()
    assert positions(place) == {T0: count // 2, T1: count // 2}


def rest(member: kafkalog.Consumer) -> list[int]:
    """Poll until nothing comes."""
    found: list[int] = []
    while (rows := member.poll(0.5 if found else 60)) is not None:
        found += values(rows)
    return found


def test_rows_and_positions_are_one_commit(place: str, tmp_path: Path) -> None:
    def commits() -> int:
        return len(list((tmp_path / "bucket").rglob("commits/*")))

    with consumer(place) as member:
        rows = member.poll(60)
        before = commits()
        kafkalog.append(place, "out", rows, consumer=member, options=NOW)
        assert commits() == before + 1
        assert sum(positions(place).values()) == 10
        reset = positions(place)
        rows = member.poll(60)
        with pytest.raises(OptionError, match="not the same set"):
            kafkalog.append(tmp_path / "local", "out", rows, consumer=member)
    assert positions(place) == reset
    assert kafkalog.read(place, "out").read_all().num_rows == 10


def test_who_has_lost_what_it_read_commits_neither_rows_nor_positions(place: str) -> None:
    with consumer(place) as member:
        rows = member.poll(60)
        group = member._commits
        before = group.look()
        group.decide(before.record, GroupRecord(before.record.generation + 1))
        with pytest.raises(FencedMemberError, match="has gone on without member"):
            kafkalog.append(place, "out", rows, consumer=member, options=NOW)
        with pytest.raises(FencedMemberError, match="has gone on without member"):
            member.poll(60)
    with pytest.raises(UnknownTopicOrPartitionError):
        kafkalog.read(place, "out").read_all()
    assert sum(positions(place).values()) == 0


def test_members_share_partitions_and_take_over_from_one_that_leaves(place: str) -> None:
    with consumer(place) as first:
        assert len(values(first.poll(60))) == 10
        with consumer(place) as second:
            share_out(first, second)
            code, output = call("group", "list", place, "--json")
            assert (code, json.loads(output)["members"]) == (0, 2)
            say_often(second)
            with pytest.raises(OptionError, match="has members that live"):
                reset_group([place], "g", "latest")
        deadline = time.monotonic() + 60
        while len(first.assignment) < 2 and time.monotonic() < deadline:
            first.poll()
        assert [key.partition for key in first.assignment] == [0, 1]


def test_a_group_goes_on_without_a_member_that_is_silent(place: str, tmp_path: Path) -> None:
    lost = consumer(place, **{"kafka.session.timeout.ms": "3s"})
    assert len(values(lost.poll(60))) == 10
    assert lost._member is not None
    lost._member.fall_silent()
    with consumer(place) as other:
        deadline = time.monotonic() + 60
        while len(other.assignment) < 2 and time.monotonic() < deadline:
            other.poll()
        assert len(other.assignment) == 2
        assert len(list((tmp_path / "bucket").rglob("groups/*/*"))) == 1
        with pytest.raises(FencedMemberError):
            poll_on(lost)
        assert len(other.assignment) == 2
    assert positions(place) == {T0: 0, T1: 0}


def test_flush_has_no_meaning_in_a_bucket(place: str) -> None:
    with pytest.raises(OptionError, match="takes commit only"):
        consumer(place, flush="os")


def test_a_heartbeat_is_one_request_and_a_look_another(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = bucket_of([place])
    assert root is not None
    now, asked = 0.0, []
    monkeypatch.setattr(system, "monotonic", lambda: now)
    for name in ("put", "get", "delete", "list_after"):
        real = getattr(FolderObjects, name)

        def call(*given: Any, name: str = name, real: Any = real) -> Any:
            asked.append(name)
            return real(*given)

        monkeypatch.setattr(FolderObjects, name, call)
    settings = MemberSettings(frozenset({"t"}), None, "c", "h", 45_000, 45_000)
    own, other = (MemberObjects(root, "g", 45.0) for _ in range(2))
    member = MemberObject(own, "a")
    member.create(Presence(settings, "range"))
    (first,) = other.read().values()
    assert (first.member, asked) == ("a", ["put", "list_after", "get"])
    for _ in range(3):
        asked.clear()
        now += 45.0
        member.beat()
        (sign,) = other.read().values()
        assert other.read().values().__len__() == 1
        assert sign.counter != first.counter
        assert sign.presence == first.presence
        assert asked == ["put", "list_after"]
    asked.clear()
    member.say(Presence(settings, "range", generation=1))
    other.look_again()
    (sign,) = other.read().values()
    assert sign.presence == Presence(settings, "range", generation=1)
    assert asked == ["put", "delete", "list_after", "get"]
    own.read()
    other.remove("a")
    member.beat()  # what was not looked at since is not known
    other.remove("a")
    own.look_again()
    assert own.read() == {}
    with pytest.raises(FencedMemberError, match="has gone on without member"):
        member.beat()


def test_an_idle_member_asks_three_times_in_its_session_beside_its_polls(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GroupMember, "_run", lambda _: None)  # the test does what threads do
    with consumer(place) as first, consumer(place) as second:
        share_out(first, second)
        root = bucket_of([place])
        assert root is not None
        own, now, asked = root.open_store().objects, time.monotonic(), Counter[str]()
        monkeypatch.setattr(system, "monotonic", lambda: now)
        for name in ("put", "get", "delete", "list_after"):
            real = getattr(FolderObjects, name)

            def call(self: FolderObjects, first: Any, *rest: Any, real: Any = real) -> Any:
                if self is own:
                    asked[f"{real.__name__} {'groups' in str(first)}"] += 1
                return real(self, first, *rest)

            monkeypatch.setattr(FolderObjects, name, call)
        members = [first._member, second._member]
        for second_number in range(21 * 45):
            now += 1.0
            if second_number == 45:
                asked.clear()  # until then they get to know each other
            for member in members:
                member.beat()
        sessions = 20 * len(members)
        assert asked["put True"] <= 2 * sessions
        assert asked["list_after True"] <= sessions
        assert asked["get True"] == asked["delete True"] == 0
        assert sessions * 2.9 <= sum(n for key, n in asked.items() if key.endswith("True"))
        state = members[0]._commits.look()
        living = members[0]._read_members(members[0]._members, state.record)[1]
        assert living.keys() == {member.member_id for member in members}
        members[1]._beat_s = now + 1e9  # and now the second one is silent
        for _ in range(2 * 45 + 2):
            now += 1.0
            members[0].beat()
        living = members[0]._read_members(members[0]._members, state.record)[1]
        assert living.keys() == {members[0].member_id}
