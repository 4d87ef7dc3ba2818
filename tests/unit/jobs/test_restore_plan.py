"""What a restored topic is to be, by what a table keeps and what was asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.corpus import UnpackedCase
from tests.support.sinking import Writer, rows
from tests.support.states import last_batch

from kafkalog.errors import LogDirectoryError, OptionError
from kafkalog.jobs.pipelines.continuation import HeldTopic
from kafkalog.jobs.pipelines.restore_plan import (
    NO_END,
    Progress,
    Seen,
    TopicPlan,
    Until,
    check_target,
)
from kafkalog.jobs.pipelines.topic_facts import FactsOfLogs, TopicFacts, read_facts, to_properties
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.topics import Bounds, create, delete

if TYPE_CHECKING:
    from pathlib import Path

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
FACTS = TopicFacts({0: Bounds(100, 200), 1: Bounds(0, 0)}, {"retention.ms": "9"})


def planned(facts: TopicFacts | None, seen: dict[int, Seen], **given: Any) -> TopicPlan:
    asked: dict[str, Any] = {"partitions": None, "config": {}, "with_deleted": False}
    until = given.pop("until", NO_END)
    return TopicPlan.of("t", facts, seen, until, **(asked | given))


@pytest.mark.parametrize(
    ("text", "until"),
    [
        (None, NO_END),
        ('{"t":{"0":7}}', Until({T0: 7})),
        ("1700000000123", Until({}, 1_700_000_000_123)),
        ("2023-11-14T22:13:20.123Z", Until({}, 1_700_000_000_123)),
        ("2023-11-15T00:13:20.123+02:00", Until({}, 1_700_000_000_123)),
        ("2023-11-14", Until({}, 1_699_920_000_000)),
    ],
)
def test_an_end_is_offsets_or_a_time_in_utc(text: str | None, until: Until) -> None:
    assert Until.parse(text) == until


@pytest.mark.parametrize("text", ["yesterday", "", "{", '{"t":5}', "1700000000"])
def test_another_end_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="--until"):
        Until.parse(text)


def test_facts_of_topics_survive_as_properties() -> None:
    last = {0: last_batch(0, 4_000_000_000)}
    facts = {"t": FACTS, "a.b-c": TopicFacts({0: Bounds(0, 1)}, None, "an id", last)}
    assert read_facts({**to_properties(facts), "delta.appendOnly": "false"}) == facts


def test_facts_are_of_the_rows_that_are_held_and_of_their_last_batches() -> None:
    now = TopicFacts({0: Bounds(0, 5), 1: Bounds(0, 9), 2: Bounds(0, 0)}, None, "recreated")
    below = {0: last_batch(3, 1), 1: last_batch(7, 2)}
    held = HeldTopic("an id", {0: 5, 1: 8}, below)
    noted = now.of_rows(held)
    assert noted == TopicFacts(now.partitions, None, "an id", {0: below[0]})
    assert now.of_rows(HeldTopic(None, {})) == now


def test_facts_of_what_is_gone_stay_as_they_were(tmp_path: Path) -> None:
    there = [str(tmp_path / "a"), str(tmp_path / "b")]
    create(there, "t", partitions=2, config={"retention.ms": "9"})
    Writer(*there, topic="t").write(0, rows(["v"] * 4, partitions=[0, 0, 1, 1]))
    facts, ends = FactsOfLogs(there, ["t"]), {T0: 2, T1: 2}
    known = facts.look(ends)
    bounds, topic_id = {0: Bounds(0, 2), 1: Bounds(0, 2)}, known["t"].topic_id
    assert topic_id is not None
    assert known == {"t": TopicFacts(bounds, {"retention.ms": "9"}, topic_id)}
    (tmp_path / "b").rename(tmp_path / "away")
    (tmp_path / "b").mkdir()
    assert facts.look(ends, known) == known
    assert facts.look(ends)["t"].partitions == {0: Bounds(0, 2)}
    (tmp_path / "b").rmdir()
    (tmp_path / "away").rename(tmp_path / "b")
    delete(there, "t")
    assert facts.look(ends, known) == known
    assert facts.look(ends) == {}


@pytest.mark.parametrize(
    ("seen", "given", "bounds"),
    [
        ({}, {}, [(100, 200), (0, 0)]),
        ({0: Seen(50, 30, 190, 150)}, {}, [(100, 150), (0, 0)]),
        ({0: Seen(50, 30, 190, None)}, {"with_deleted": True}, [(30, 200), (0, 0)]),
        ({0: Seen(50, 30, 190, 90)}, {}, [(90, 90), (0, 0)]),
        ({}, {"until": Until({T0: 120, T1: 7})}, [(100, 120), (0, 0)]),
        ({}, {"until": Until({T0: 20})}, [(20, 20), (0, 0)]),
        # archived, and killed before that was noted
        ({0: Seen(50, 130, 250, None)}, {}, [(100, 251), (0, 0)]),
        ({2: Seen(1, 5, 5, None)}, {}, [(100, 200), (0, 0), (5, 6)]),
    ],
)
def test_logs_start_and_end_as_the_table_says_and_no_later_than_was_asked(
    seen: dict[int, Seen], given: dict[str, Any], bounds: list[tuple[int, int]]
) -> None:
    plan = planned(FACTS, seen, **given)
    assert list(plan.bounds) == bounds
    assert (plan.settings, plan.unknown) == ({"retention.ms": "9"}, ())


def test_what_a_table_does_not_tell_is_given_or_said() -> None:
    seen = {1: Seen(3, 500, 510, None)}
    plan = planned(None, seen)
    assert list(plan.bounds) == [(0, 0), (500, 511)]
    assert [line.partition(" (--")[2] for line in plan.unknown] == ["partitions)", "", "config)"]
    plan = planned(None, seen, partitions=4, config={"cleanup.policy": "compact"})
    assert len(plan.bounds) == 4
    assert plan.settings == {"cleanup.policy": "compact"}


def test_what_was_given_counts_only_where_the_table_does_not_tell() -> None:
    assert planned(FACTS, {}, config={"retention.ms": "7"}).settings == {"retention.ms": "9"}
    with pytest.raises(OptionError, match="has 2 partitions, says the table, not 3"):
        planned(FACTS, {}, partitions=3)
    with pytest.raises(OptionError, match="partition 4 has records"):
        planned(None, {4: Seen(1, 0, 0, None)}, partitions=4)
    with pytest.raises(OptionError, match="the table holds nothing of topic 't'"):
        planned(None, {})


def test_settings_that_only_a_broker_knows_are_said_and_left_out() -> None:
    facts = TopicFacts({0: Bounds(0, 0)}, {"remote.storage.enable": "true", "segment.ms": "5"})
    plan = planned(facts, {})
    assert plan.settings == {"segment.ms": "5"}
    assert "remote.storage.enable=true" in plan.unknown[0]


def test_settings_that_delete_records_come_last() -> None:
    facts = TopicFacts({0: Bounds(0, 0)}, {"retention.bytes": "1", "segment.ms": "5"})
    plan = planned(facts, {})
    assert plan.first_settings == {"segment.ms": "5"}
    assert plan.last_settings == {"retention.bytes": "1"}


def test_a_topic_with_records_of_others_is_refused_and_an_empty_one_is_not(tmp_path: Path) -> None:
    log, plan = str(tmp_path / "log"), planned(FACTS, {})
    check_target(log, ["t"], {})
    assert plan.progress(log, "restore 1") is None
    create([log], "t", partitions=2)
    check_target(log, ["t"], {})
    assert plan.progress(log, "restore 1") is Progress.EMPTY
    with pytest.raises(LogDirectoryError, match="with 2 partitions, and is to have 1"):
        planned(None, {0: Seen(1, 0, 0, None)}).progress(log, "restore 1")
    Writer(tmp_path / "log", topic="t").write(0, rows(["a"]))
    for refused in (lambda: check_target(log, ["t"], {}), lambda: plan.progress(log, "restore 1")):
        with pytest.raises(
            LogDirectoryError, match=r"topic 't' has records in .*kafkalog topic delete"
        ):
            refused()


def test_what_others_append_after_a_restore_stays_and_amid_one_it_is_refused(
    tmp_path: Path,
) -> None:
    log = str(tmp_path / "log")
    plan = planned(TopicFacts({0: Bounds(0, 5)}, None), {0: Seen(3, 0, 2, None)})
    create([str(tmp_path / "empty")], "t", partitions=1, starts={0: 7})
    without_records = planned(TopicFacts({0: Bounds(7, 9)}, None), {})
    assert without_records.bounds_now(str(tmp_path / "empty")) == {0: Bounds(7, 9)}
    writer = Writer(tmp_path / "log", topic="t")
    writer.write(0, rows(["a", "b", "c"]))
    assert plan.bounds_now(log) == {0: Bounds(0, 5)}
    writer.write(1, rows(["other"]))
    with pytest.raises(LogDirectoryError, match=r"t-0 ends at offset 4 in .* up to 3, and it"):
        plan.bounds_now(log)
    writer.write(2, rows(["other", "other"]))
    assert plan.bounds_now(log) == {0: Bounds(0, 6)}


@pytest.mark.parametrize(
    ("topic", "config"),
    [("a/b", {}), ("__consumer_offsets", {}), ("t", {"retention": "1"})],
)
def test_what_no_topic_can_have_is_refused_before_the_table_is_read(
    topic: str, config: dict[str, str], tmp_path: Path
) -> None:
    with pytest.raises(OptionError):
        check_target(str(tmp_path), [topic], config)
    with pytest.raises(OptionError, match="--until names u-0, and topic 'u' is not restored"):
        check_target(str(tmp_path), ["t"], {}, Until({TopicPartition("u", 0): 1}))


def test_a_number_of_partitions_that_cannot_be_is_refused() -> None:
    for given in (1, 3):
        with pytest.raises(OptionError, match=f"has 2 partitions, says the table, not {given}"):
            planned(FACTS, {}, partitions=given)
    with pytest.raises(OptionError, match="--partitions is 1, and partition 1 has records"):
        planned(None, {1: Seen(3, 500, 510, None)}, partitions=1)


def test_other_rows_are_another_restore() -> None:
    plan = planned(FACTS, {})
    assert plan.version("a") == planned(FACTS, {}).version("a") != plan.version("b")
    assert plan.version("a") != planned(FACTS, {}, until=Until({T0: 150})).version("a")


def test_another_topic_or_log_with_the_same_ends_is_another_restore() -> None:
    known = replace(FACTS, topic_id="A", batches={0: last_batch(190, 1)})
    recreated = replace(known, topic_id="B")
    rewritten = replace(known, batches={0: last_batch(190, 2)})
    versions = {planned(facts, {}).version("a") for facts in (FACTS, known, recreated, rewritten)}
    assert len(versions) == 4


def test_a_restore_up_to_an_offset_stays_the_same_while_the_topic_grows() -> None:
    until = Until({T0: 150})
    early, late = (
        replace(FACTS, partitions={0: Bounds(100, end)}, batches={0: last_batch(end - 1, 1)})
        for end in (200, 300)
    )
    first = planned(early, {}, until=until).version("a")
    assert planned(late, {}, until=until).version("a") == first


def test_settings_that_a_cluster_gave_are_kept_too(tmp_path: Path) -> None:
    case = UnpackedCase("p07-compacted", tmp_path)
    facts = FactsOfLogs(case.path.split(","), ["compact-gone"])
    known = facts.look({TopicPartition("compact-gone", 0): 1800})["compact-gone"]
    assert known.partitions == {0: Bounds(0, 1800)}
    assert known.settings is not None
    assert known.settings["cleanup.policy"] == "compact"
