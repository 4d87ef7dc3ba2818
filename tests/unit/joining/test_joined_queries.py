"""Queries that share a topic: source and sink driven as Spark drives them."""

from __future__ import annotations

import logging
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.support.consuming import positions, recreate_topic, table, written
from tests.support.joining import ROWS

from kafkalog.errors import (
    DataLossError,
    FencedMemberError,
    OptionError,
    UnknownTopicOrPartitionError,
)
from kafkalog.model import TopicPartition
from kafkalog.streaming.api import append
from kafkalog.streaming.consumer.query_member import QueryMember
from kafkalog.streaming.coordinator.group_replay import replay_records
from kafkalog.streaming.groups.administration import GroupWriter
from kafkalog.streaming.groups.group_commits import GroupCommits
from kafkalog.streaming.groups.membership import GroupMember
from kafkalog.streaming.groups.planned_commit import load_plan
from kafkalog.streaming.source.end_offsets import LookRetries
from kafkalog.streaming.spark.versions import ReadMaxRows
from kafkalog.streaming.store.policy import SetPolicy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.joining import Queries, Query

    from kafkalog.streaming.coordinator.group_replay import ReplayRecord
    from kafkalog.streaming.log.partition_log import PartitionLog

ALL = list(range(40))
NO_LIMIT = ReadMaxRows(1 << 60)


def record(folder: Path) -> dict[str, set[int]]:
    """Return the partitions that each instance reads."""
    members = GroupCommits([folder], "g", SetPolicy()).look().record.members
    return {
        str(each.settings.instance): {key.partition for key in each.assigned}
        for each in members.values()
    }


def lose(query: Query) -> None:
    """Let the group go on without a query that does not know it yet."""
    member = query.member._member
    assert member is not None
    member.vanish()


def share(*queries: Query) -> None:
    """Let queries that run nothing find their shares."""
    for _ in range(4):
        for each in queries:
            each.member.take_part()


def test_a_query_reads_all_and_publishes_positions_with_rows(
    folder: Path, queries: Queries
) -> None:
    query = queries.new()
    assert query.batch() == []  # partitions enter where the group stands
    assert query.at == {"in": {"0": 0, "1": 0, "2": 0, "3": 0}}
    assert sorted(query.batch() or []) == ALL
    assert set(positions(folder).values()) == {10}
    assert query.batch() is None
    append(folder, "in", table(range(40, 48)))
    query.batches()
    assert written(folder) == list(range(48))


def test_a_reader_joins_when_it_is_asked_and_not_when_it_is_made(
    folder: Path, queries: Queries
) -> None:
    query = queries.new()
    query.start()
    assert record(folder) == {}
    query.plan()
    assert record(folder) == {"a": {0, 1, 2, 3}}


def test_two_queries_share_and_each_row_is_there_once(folder: Path, queries: Queries) -> None:
    first, second = queries.new("a"), queries.new("b")
    first.batches()
    append(folder, "in", table(range(40, 80)))
    assert second.plan() is False  # the other one has all
    assert record(folder) == {"a": {0, 1}, "b": set()}
    first.plan()
    second.plan()
    assert record(folder) == {"a": {0, 1}, "b": {2, 3}}
    first.batches()
    second.batches()
    assert (first.partitions, second.partitions) == ({0, 1}, {2, 3})
    assert written(folder) == list(range(80))


def test_a_running_batch_is_ended_before_its_partitions_are_given_up(
    folder: Path, queries: Queries
) -> None:
    first, second = queries.new("a"), queries.new("b")
    first.batch()
    first.plan()
    rows = first.read()
    writer, messages = first.stage(rows)
    second.plan()
    first.look()
    second.member.take_part()
    assert record(folder) == {"a": {0, 1}, "b": set()}
    writer.commit([*messages], 1)
    first.look()  # sees by the positions that the batch has ended; no trigger is waited for
    second.member.take_part()
    assert record(folder) == {"a": {0, 1}, "b": {2, 3}}
    assert written(folder) == ALL


def test_what_a_batch_reads_nothing_of_is_given_up_while_it_runs(
    folder: Path, queries: Queries
) -> None:
    first, second = queries.new("a"), queries.new("b")
    first.batches()
    append(folder, "in", table([40]))  # in partition 0, which stays
    first.plan()
    first.read()
    second.plan()
    first.look()
    second.member.take_part()
    assert record(folder) == {"a": {0, 1}, "b": {2, 3}}


def test_a_batch_of_a_member_that_was_lost_publishes_nothing(
    folder: Path, queries: Queries
) -> None:
    first, second = queries.new("a"), queries.new("b")
    first.batch()
    first.plan()
    writer, messages = first.stage(first.read())
    lose(first)
    second.batches()
    with pytest.raises(FencedMemberError, match="has gone on without member"):
        writer.commit([*messages], 1)
    assert first.look() is False
    with pytest.raises(FencedMemberError, match="has gone on without member"):
        first.member.take_part()
    first.kill()
    assert first.batches() == []  # its batch comes again: nothing of that is its own now
    share(first, second)
    append(folder, "in", table(range(40, 80)))
    first.batches()
    second.batches()
    assert written(folder) == list(range(80))


def test_a_query_that_was_lost_while_it_read_nothing_joins_again(
    folder: Path, queries: Queries
) -> None:
    first, second = queries.new("a"), queries.new("b")
    first.batches()
    lose(first)
    second.batches()
    assert record(folder) == {"b": {0, 1, 2, 3}}
    append(folder, "in", table(range(40, 80)))
    assert first.batches() == []
    share(first, second)
    assert record(folder) == {"a": {0, 1}, "b": {2, 3}}
    first.batches()
    second.batches()
    assert written(folder) == list(range(80))


def test_a_query_that_was_replaced_by_one_of_its_name_does_not_join_again(
    folder: Path, queries: Queries
) -> None:
    short = {"kafka.session.timeout.ms": "60", "kafka.heartbeat.interval.ms": "20"}
    first, second = queries.new("a", source=short), queries.new("a", source=short)
    first.batch()
    first.member.take_part()
    second.batches()
    with pytest.raises(FencedMemberError):
        first.member.take_part()
    assert record(folder) == {"a": {0, 1, 2, 3}}
    assert written(folder) == ALL


def test_a_query_that_is_lost_while_it_joins_tries_once_more(
    folder: Path, queries: Queries, monkeypatch: pytest.MonkeyPatch
) -> None:
    join = GroupMember.join
    lost: list[GroupMember] = []

    def join_and_be_lost(member: GroupMember) -> None:
        join(member)
        if not lost:
            lost.append(member)
            member.vanish()
            monkeypatch.setattr(member, "_interval_s", 0)

    monkeypatch.setattr(GroupMember, "join", join_and_be_lost)
    assert sorted(queries.new("a").batches()) == ALL
    assert lost


def test_a_batch_that_was_not_published_comes_again_with_what_is_still_its_own(
    folder: Path, queries: Queries
) -> None:
    first, second = queries.new("a"), queries.new("b")
    first.batch()
    first.plan()
    first.read()
    lose(first)
    second.plan()
    first.kill()
    first.start()
    share(second)
    first.plan()
    first.member.take_part()
    share(second, first)
    assert record(folder) == {"a": {0, 1}, "b": {2, 3}}
    assert sorted(first.batch() or []) == [each for each in ALL if each % 4 < 2]
    second.batches()
    first.batches()
    assert written(folder) == ALL


@pytest.mark.parametrize("shows_checkpoint", [True, False])
def test_a_batch_that_was_published_and_comes_again_is_skipped(
    folder: Path, queries: Queries, shows_checkpoint: bool
) -> None:
    query = queries.new(shows_checkpoint=shows_checkpoint)
    query.batch()
    query.plan()
    writer, messages = query.stage(query.read())
    writer.commit([*messages], 1)
    query.kill()  # before Spark writes down that the batch is done
    query.start()
    assert query.batch() == []
    assert query.done == 2
    append(folder, "in", table([40]))
    assert query.batch() == [40]
    assert written(folder) == [*ALL, 40]


@pytest.mark.parametrize("dies_again", [False, True])
def test_what_a_published_batch_was_set_back_to_is_read_after_it(
    folder: Path, queries: Queries, dies_again: bool
) -> None:
    query = queries.new()
    query.batch()
    query.plan()
    writer, messages = query.stage(query.read())
    writer.commit([*messages], 1)
    query.kill()
    back = TopicPartition("in", 2)
    GroupWriter([str(folder)], "g").commit({back: 6})
    assert query.batch() == [26, 30, 34, 38]  # the same batch again: the sink skips it
    if dies_again:
        query.kill()
    assert query.batches() == [26, 30, 34, 38]
    assert set(positions(folder).values()) == {10}
    assert written(folder) == sorted([*ALL, 26, 30, 34, 38])


def test_rows_of_a_plan_that_was_replaced_are_refused(folder: Path, queries: Queries) -> None:
    query = queries.new()
    query.batch()
    query.plan()
    writer, messages = query.stage(query.read())
    query.kill()
    query.start()
    query.read()
    with pytest.raises(FencedMemberError, match="a plan that was replaced since"):
        writer.commit([*messages], 1)
    output = replace(messages[0].output, nonce="another")
    again, _ = query.stage(query.read())
    with pytest.raises(FencedMemberError, match="a plan that was replaced since"):
        again.commit([replace(messages[0], output=output)], 1)


def test_a_plan_that_ends_elsewhere_than_the_checkpoint_says_is_refused(queries: Queries) -> None:
    query = queries.new()
    query.batch()
    query.plan()
    writer, messages = query.stage(query.read())
    offsets = query.checkpoint / "offsets" / "1"
    offsets.write_text(offsets.read_text().replace("10", "9"))
    with pytest.raises(FencedMemberError, match="the query's checkpoint has"):
        writer.commit([*messages], 1)


def test_a_batch_that_is_planned_twice_has_one_plan(folder: Path, queries: Queries) -> None:
    query = queries.new()
    query.batch()
    query.plan()
    rows = query.read()
    plan = load_plan(folder, "g", "a")
    assert query.read() == rows
    assert load_plan(folder, "g", "a") == plan


def test_the_sink_reads_what_is_new_of_its_group_and_not_all_of_it_again(
    folder: Path, queries: Queries, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = queries.new()
    query.batches()
    begins: list[int] = []

    def replay(log: PartitionLog, start: int, end: int) -> Iterator[ReplayRecord]:
        begins.append(start)
        return replay_records(log, start, end)

    monkeypatch.setattr("kafkalog.streaming.groups.group_log.replay_records", replay)
    append(folder, "in", table([40]))
    assert query.batches() == [40]
    assert min(begins) > 4, "it began with a generation and four positions"


@pytest.mark.parametrize("shows_checkpoint", [True, False])
def test_a_batch_of_another_source_alone_is_published_and_moves_nothing(
    folder: Path, queries: Queries, shows_checkpoint: bool
) -> None:
    query = queries.new(shows_checkpoint=shows_checkpoint)
    query.batches()
    query.plan_without()
    query.bring(["900"])
    query.plan_without()
    lose(query)
    other = queries.new("b")
    other.plan()
    query.kill()
    query.bring(["901"])  # nothing of it is the group's, which the query is in no more
    query.bring(["901"])  # again, before Spark writes down that it is done
    assert set(positions(folder).values()) == {10}
    assert written(folder) == [*ALL, 900, 901]
    append(folder, "in", table([40]))
    assert other.batches() == [40] or query.batches() == [40]


def test_a_query_without_partitions_publishes_what_another_source_brings(
    folder: Path, queries: Queries
) -> None:
    first, second = queries.new("a"), queries.new("b")
    first.batches()
    second.plan_without()
    second.bring(["900"])
    assert written(folder) == [*ALL, 900]


def test_a_query_with_state_is_refused(queries: Queries) -> None:
    query = queries.new()
    query.batch()
    query.plan()
    rows = query.read()
    writer, messages = query.stage(rows)
    (query.checkpoint / "state").mkdir()
    with pytest.raises(OptionError, match="keeps state"):
        writer.commit([*messages], 1)
    with pytest.raises(OptionError, match="keeps state"):
        query.stage(rows)


def test_a_sink_without_the_group_is_at_least_once_and_that_is_said_once(
    folder: Path, queries: Queries, caplog: pytest.LogCaptureFixture
) -> None:
    query = queries.new(joins_sink=False)
    query.batch()
    query.batch()
    assert set(positions(folder).values()) == {0}
    assert query.batch() is None  # what comes next tells that the batch has run
    assert set(positions(folder).values()) == {10}
    append(folder, "in", table(range(40, 44)))
    query.batches()
    assert set(positions(folder).values()) == {11}
    assert caplog.text.count("at least once") == 1
    assert written(folder) == list(range(44))


def test_a_batch_that_ran_before_the_query_was_started_again_is_not_read_again(
    folder: Path, queries: Queries
) -> None:
    query = queries.new(joins_sink=False)
    query.batch()
    query.batch()
    query.kill()
    assert query.batches() == []
    assert set(positions(folder).values()) == {10}


def test_a_batch_counts_as_run_only_if_the_group_did_not_go_on_without_the_query(
    folder: Path, queries: Queries
) -> None:
    query = queries.new(joins_sink=False)
    query.batch()
    query.batch()
    lose(query)
    other = queries.new("b")
    other.plan()
    query.kill()
    query.start()
    query.member.take_part()
    lose(other)
    share(query)
    query.batch()
    assert set(positions(folder).values()) == {0}


def test_a_partition_in_which_the_group_stands_elsewhere_leaves_and_enters(
    folder: Path, queries: Queries, caplog: pytest.LogCaptureFixture
) -> None:
    query = queries.new()
    query.batches()
    query.kill()
    lost = TopicPartition("in", 2)
    GroupWriter([str(folder)], "g").commit({lost: 6})
    caplog.set_level(logging.WARNING)
    assert query.batch() == []
    assert query.partitions == {0, 1, 3}
    assert query.batch() == []
    assert query.at["in"]["2"] == 6
    assert query.batch() == [26, 30, 34, 38]
    assert positions(folder)[lost] == 10


def test_a_batch_that_comes_again_does_not_read_what_the_group_was_set_back_to(
    folder: Path, queries: Queries
) -> None:
    query = queries.new()
    query.batches()
    append(folder, "in", table(range(40, 48)))
    query.plan()
    query.kill()
    back = TopicPartition("in", 2)
    GroupWriter([str(folder)], "g").commit({back: 6})
    assert sorted(query.batch() or []) == [40, 41, 43, 44, 45, 47]
    assert query.batches() == [26, 30, 34, 38, 42, 46]
    assert set(positions(folder).values()) == {12}


def test_a_batch_that_comes_again_begins_where_the_group_was_set_ahead_to(
    folder: Path, queries: Queries
) -> None:
    query = queries.new()
    query.batches()
    append(folder, "in", table(range(40, 48)))
    query.plan()
    query.kill()
    GroupWriter([str(folder)], "g").commit({TopicPartition("in", 2): 11})
    assert sorted(query.batch() or []) == [40, 41, 43, 44, 45, 46, 47]
    assert set(positions(folder).values()) == {12}


def test_what_start_does_not_name_is_not_read(queries: Queries) -> None:
    query = queries.new()
    query.batch()
    reader = query.reader
    assert reader is not None
    parts = reader.partitions({"in": {"0": 0}}, {"in": {"0": 4, "1": 9}})
    rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    assert [int(row["value"]) for row in rows] == [0, 4, 8, 12]
    assert ROWS is not None


def test_the_second_of_one_name_is_refused_as_long_as_the_first_lives(
    folder: Path, queries: Queries, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = queries.new("a")
    first.batches()
    second = queries.new("a")

    def rest(_: float) -> None:
        first.member._member.beat()  # type: ignore[union-attr]

    monkeypatch.setattr("kafkalog.files.system.system.sleep", rest)
    monkeypatch.setattr(first.member._member, "_beat_s", -1e9)
    monkeypatch.setattr(first.member._member, "_interval_s", 0)
    with pytest.raises(OptionError, match="needs a name of its own"):
        second.plan()
    monkeypatch.undo()
    assert record(folder) == {"a": {0, 1, 2, 3}}
    append(folder, "in", table([40]))
    assert first.batch() == [40]


def test_a_query_that_hangs_is_replaced_by_one_of_its_name(folder: Path, queries: Queries) -> None:
    short = {"kafka.session.timeout.ms": "60", "kafka.heartbeat.interval.ms": "20"}
    first = queries.new("a", source=short)
    first.batch()
    first.plan()
    writer, messages = first.stage(first.read())
    second = queries.new("a", source=short)
    second.checkpoint = folder.parent / "another"
    second.batches()
    with pytest.raises(FencedMemberError):
        writer.commit([*messages], 1)
    assert written(folder) == ALL


def test_a_query_that_is_not_asked_for_long_falls_silent(queries: Queries) -> None:
    query = queries.new(source={"kafka.max.poll.interval.ms": "1"})
    query.batch()
    while query.look():
        pass
    with pytest.raises(FencedMemberError, match=r"kafka\.max\.poll\.interval\.ms"):
        query.plan()


def test_without_a_name_a_query_keeps_one_in_its_state_location(
    folder: Path, queries: Queries, tmp_path: Path
) -> None:
    source = {"stateLocation": str(tmp_path / "state"), "kafka.group.instance.id": ""}
    query = queries.new(joins_sink=False, source=source)
    query.batches()
    (name,) = record(folder)
    query.kill()
    query.batches()
    assert set(record(folder)) == {name}
    assert name.startswith("query-")


def test_topics_that_match_a_pattern_are_joined_when_they_come(
    folder: Path, queries: Queries
) -> None:
    query = queries.new(source={"subscribe": "", "subscribePattern": "in"})
    query.batches()
    append(folder, "in-2", table(range(40, 44)), options={"numPartitions": 4})
    query.batches()
    assert written(folder) == list(range(44))


def test_topics_that_are_waited_for_are_joined_when_they_come(
    folder: Path, queries: Queries
) -> None:
    query = queries.new(source={"subscribe": "later"})
    with pytest.raises(UnknownTopicOrPartitionError, match="later"):
        query.plan()
    query.kill()
    query = queries.new("b", source={"subscribe": "later", "waitForTopics": "true"})
    assert query.batch() is None
    append(folder, "later", table(range(3)), options={"numPartitions": 4})
    assert query.batches() == [0, 1, 2]


def test_available_now_ends_where_logs_ended_at_its_first_look(
    folder: Path, queries: Queries
) -> None:
    query = queries.new()
    query.start().prepareForTriggerAvailableNow()
    query.batch()
    append(folder, "in", table(range(40, 44)))
    assert sorted(query.batches()) == ALL
    assert query.batch() is None
    query.kill()
    query.start().prepareForTriggerAvailableNow()
    query.batches()
    assert written(folder) == list(range(44))


def test_limits_are_shared_by_what_the_query_owns(queries: Queries) -> None:
    query = queries.new(source={"maxOffsetsPerTrigger": "8"})
    query.batch()
    assert len(query.batch() or []) == 8
    assert query.at == {"in": {"0": 2, "1": 2, "2": 2, "3": 2}}


def test_options_that_do_not_go_with_a_group_are_refused(queries: Queries) -> None:
    for source, words in [
        ({"kafka.group.id": ""}, r"needs kafka\.group\.id"),
        ({"kafka.group.instance.id": ""}, r"needs kafka\.group\.instance\.id"),
        ({"subscribe": "", "assign": '{"in":[0]}'}, "the group decides"),
        ({"commitGroupOffsets": "true"}, "a member commits its positions"),
        ({"stopAtOffsets": '{"in":{"0":4}}'}, "a group has no end"),
        ({"startingOffsets": '{"in":{"0":4}}'}, "a group begins at earliest or latest"),
        ({"view": "batches"}, "is for view=records"),
        ({"kafka.heartbeat.interval.ms": "90000"}, "must be less than"),
        ({"kafka.partition.assignment.strategy": "nearest"}, "accepts one of range"),
    ]:
        with pytest.raises(OptionError, match=words):
            queries.new(source=source).start().initialOffset()


def test_a_sink_of_a_group_that_no_query_has_joined_is_refused(queries: Queries) -> None:
    query = queries.new()
    query.batch()
    query.plan()
    rows = query.read()
    query.name = "another"
    with pytest.raises(OptionError, match="no query has joined the group there"):
        query.stage(rows)


@pytest.mark.parametrize("count", [4, 40, 80])
def test_a_topic_recreated_under_a_query_is_read_from_its_start(
    folder: Path, queries: Queries, count: int
) -> None:
    query = queries.new()
    query.batches()
    assert written(folder) == ALL
    recreate_topic(folder, count)
    query.batches()
    assert written(folder) == [*ALL, *range(200, 200 + count)]
    assert set(positions(folder).values()) == {count // 4}


@pytest.mark.parametrize("count", [4, 40, 80])
def test_a_topic_recreated_under_a_query_is_no_loss_that_is_waited_for(
    folder: Path, queries: Queries, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """The query meets the new logs before its member does."""
    query = queries.new()
    query.batches()
    recreate_topic(folder, count)
    rests: list[object] = []
    monkeypatch.setattr(LookRetries, "_rest", rests.append)
    with monkeypatch.context() as patch:
        patch.setattr(QueryMember, "take_part", lambda _: None)
        query.plan()
    assert rests == []
    query.batches()
    assert written(folder) == [*ALL, *range(200, 200 + count)]


def test_a_batch_of_a_topic_that_was_recreated_meanwhile_publishes_nothing(
    folder: Path, queries: Queries
) -> None:
    query = queries.new()
    query.batch()
    query.plan()
    writer, messages = query.stage(query.read())
    recreate_topic(folder, 40)
    with pytest.raises(FencedMemberError, match="stands at no offset of in-0"):
        writer.commit([*messages], 1)
    assert positions(folder) == {}


def set_beyond_end(folder: Path) -> None:
    """Let the group stand at 500 in in-0, which ends at 10."""
    commits = GroupCommits([folder], "g", SetPolicy())
    commits.change(commits.look().record, {TopicPartition("in", 0): 500})


@pytest.mark.parametrize("is_available_now", [False, True])
def test_a_log_that_ends_before_where_the_group_stands_is_a_loss(
    folder: Path, queries: Queries, *, is_available_now: bool
) -> None:
    query = queries.new()
    query.batches()
    query.kill()
    set_beyond_end(folder)
    if is_available_now:
        query.start().prepareForTriggerAvailableNow()
    with pytest.raises(DataLossError, match="in-0 from 500 to 10"):
        query.batches()


@pytest.mark.parametrize("is_available_now", [False, True])
def test_a_group_that_stands_beyond_the_end_of_a_log_goes_on_there_if_it_may_lose_data(
    folder: Path, queries: Queries, *, is_available_now: bool
) -> None:
    query = queries.new(source={"failOnDataLoss": "false"})
    query.batches()
    query.kill()
    set_beyond_end(folder)
    if is_available_now:
        query.start().prepareForTriggerAvailableNow()
    assert query.batches() == []
    assert set(positions(folder).values()) == {10}
    append(folder, "in", table([40, 44, 41]))
    if is_available_now:
        query.kill()
        query.start().prepareForTriggerAvailableNow()
    assert sorted(query.batches()) == [40, 41, 44]
    assert written(folder) == sorted([*ALL, 40, 41, 44])


def test_a_loss_of_partitions_has_the_name_that_spark_has_where_a_group_is_named(
    folder: Path, queries: Queries
) -> None:
    query = queries.new()
    query.batches()
    shutil.rmtree(folder / "in-0")
    name = r"KAFKA_DATA_LOSS\.PARTITIONS_DELETED_AND_GROUP_ID_CONFIG_PRESENT\]"
    with pytest.raises(DataLossError, match=name):
        query.batches()
