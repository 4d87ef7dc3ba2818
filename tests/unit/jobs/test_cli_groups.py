"""``kafkalog group describe``, ``reset``, ``delete``: with members that live, or do not."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support.consuming import consumer, keep_groups_small, table
from tests.support.messages import i16, string
from tests.support.sleeping import patch_sleep
from typer.testing import CliRunner

import kafkalog
from kafkalog.files.system import system
from kafkalog.jobs.cli.app import app
from kafkalog.model import TopicPartition
from kafkalog.streaming.groups.administration import GroupWriter
from kafkalog.streaming.groups.group_commits import GroupCommits
from kafkalog.streaming.groups.member_files import MEMBER_PREFIX
from kafkalog.streaming.groups.rebalance import GroupRecord
from kafkalog.streaming.store.policy import SetPolicy

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a topic of four partitions with ten records each, a second apart."""
    keep_groups_small(monkeypatch)
    folder = tmp_path / "log"
    rows = table(range(40))
    stamps = pa.array([1_700_000_000_000 + number * 1000 for number in range(40)])
    rows = rows.append_column("timestamp", stamps.cast(pa.timestamp("ms")))
    kafkalog.append(folder, "in", rows, options={"numPartitions": 4})
    return folder


def call(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.exit_code, done.output


def call_json(*words: object) -> list[dict[str, Any]]:
    code, text = call(*words, "--json")
    assert code == 0, text
    return [json.loads(line) for line in text.splitlines()]


def stands(log: Path, group: str = "g") -> dict[int, int]:
    found = GroupCommits([log], group, SetPolicy()).look().positions
    return {key.partition: offset for key, offset in found.items()}


def test_members_their_partitions_and_how_far_they_are_behind(log: Path) -> None:
    GroupWriter([str(log)], "alone").commit({TopicPartition("in", 1): 4})
    GroupCommits([log], "left", SetPolicy()).decide(GroupRecord(), GroupRecord(7))
    with consumer(log, options={"kafka.client.id": "loader"}) as reader:
        reader.poll(5)
        reader.commit()
        found = call_json("groups", log)
        table_text = call("groups", log)[1]
    alone, *ours, left = found
    first = {name: alone[name] for name in ("group", "state", "generation", "offset", "lag")}
    assert first == {"group": "alone", "state": "Empty", "generation": None, "offset": 4, "lag": 6}
    assert (left["group"], left["state"], left["generation"]) == ("left", "Empty", 7)
    assert left["topic"] is None
    assert [(each["partition"], each["offset"], each["lag"]) for each in ours] == [
        (0, 10, 0),
        *((number, 0, 10) for number in (1, 2, 3)),
    ]
    for each in ours:
        assert (each["group"], each["state"], each["generation"]) == ("g", "Stable", 1)
        assert (each["client"], each["instance"]) == ("loader", None)
        assert (each["host"], each["process"]) == (system.host_name(), os.getpid())
        assert each["member"].startswith("loader-")
    assert [each["bytes"] > 0 for each in ours] == [False, True, True, True]
    assert ours[1]["nextTimestamp"] == 1_700_000_001_000
    assert "behind" in table_text.splitlines()[0]
    assert "instance" not in table_text.splitlines()[0], "nobody has one"
    assert [each["group"] for each in call_json("groups", log, "--group", "alone")] == ["alone"]
    code, text = call("groups", log, "--group", "nobody")
    assert (code, "Groups there: alone, g, left" in text) == (2, True)


def test_a_position_above_the_end_is_told(log: Path, caplog: pytest.LogCaptureFixture) -> None:
    GroupWriter([str(log)], "g").commit({TopicPartition("in", 0): 11})
    code, text = call("groups", log, "--json")
    (row,) = map(json.loads, text.splitlines())
    assert (code, row["lag"], row["bytes"]) == (1, None, None)
    assert row["problem"].startswith("committed offset 11 is beyond the log end (10)")
    code, text = call("lag", log, "--json")
    assert (code, json.loads(text)["lag"]) == (1, None)
    assert "g in in-0: committed offset 11 is beyond the log end" in caplog.text


def test_a_group_goes_where_it_is_told(log: Path) -> None:
    GroupWriter([str(log)], "g").commit({TopicPartition("in", 0): 3})
    every = {"group": "g", "topic": "in", "dryRun": True}
    would = call_json("groups", "reset", log, "--group", "g", "--to", "latest", "--dry-run")
    assert would == [
        {**every, "partition": number, "offsetBefore": 3 if number == 0 else None, "offset": 10}
        for number in range(4)
    ]
    assert stands(log) == {0: 3}
    done = call_json("groups", "reset", log, "--group", "g", "--to", "latest")
    assert done == [{**each, "dryRun": False} for each in would]
    assert stands(log) == dict.fromkeys(range(4), 10)
    words = ("groups", "reset", log, "--group", "g")
    call_json(*words, "--to", "1700000022000")
    assert stands(log) == {0: 6, 1: 6, 2: 5, 3: 5}
    call_json(*words, "--offsets", '{"in":{"2":0}}')
    assert stands(log) == {0: 6, 1: 6, 2: 0, 3: 5}
    call_json(*words, "--to", "earliest")
    assert stands(log) == dict.fromkeys(range(4), 0)
    with consumer(log) as reader:
        assert reader.poll(5) is not None
    call_json("groups", "reset", log, "--group", "new", "--topic", "in", "--to", "latest")
    assert stands(log, "new") == dict.fromkeys(range(4), 10)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--to", "latest"), "has no position here: say which topics"),
        ((), "either --to or --offsets"),
        (("--to", "latest", "--offsets", '{"in":{"0":1}}'), "either --to or --offsets"),
        (("--to", "soon"), "expected a time such as"),
        (("--to", "latest", "--topic", "no"), "no is not in"),
        (("--offsets", '{"in":{"0":11}}'), "expected one from 0, the log start, to 10"),
        (("--offsets", '{"in":{"4":1}}'), "in-4 is not in"),
        (("--offsets", '{"in":{}}'), "no partition is named"),
    ],
)
def test_what_cannot_be_is_refused(log: Path, words: tuple[str, ...], said: str) -> None:
    code, text = call("groups", "reset", log, "--group", "g", *words)
    assert (code, said in text) == (2, True), text
    assert stands(log) == {}


def test_a_group_with_members_stays_as_it_is(log: Path) -> None:
    with consumer(log) as reader:
        reader.poll(5)
        before = stands(log)
        for words in (("reset", log, "--to", "latest"), ("delete", log)):
            code, text = call("groups", *words, "--group", "g")
            assert (code, "has members that live: consumer-" in text) == (2, True), text
        assert stands(log) == before
        assert GroupCommits([log], "g", SetPolicy()).look().record.members


def let_time_pass_only_while_somebody_waits(patch: pytest.MonkeyPatch) -> list[float]:
    now = [system.monotonic()]
    patch.setattr(system, "monotonic", lambda: now[0])
    patch_sleep(patch, lambda seconds: now.__setitem__(0, now[0] + seconds))
    return now


def test_members_that_were_killed_are_waited_for_and_go_with_the_change(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = consumer(log)
    reader.poll(5)
    member = reader._member
    assert member is not None
    member.fall_silent()  # as if it was killed
    assert list(log.glob(f"{MEMBER_PREFIX}*"))
    clock = let_time_pass_only_while_somebody_waits(monkeypatch)
    began = clock[0]
    call_json("groups", "reset", log, "--group", "g", "--to", "latest", "--dry-run")
    assert 60 <= clock[0] - began < 65
    assert GroupCommits([log], "g", SetPolicy()).look().record.members
    call_json("groups", "reset", log, "--group", "g", "--to", "latest")
    assert GroupCommits([log], "g", SetPolicy()).look().record == GroupRecord(2)
    assert stands(log) == dict.fromkeys(range(4), 10)
    assert not list(log.glob(f"{MEMBER_PREFIX}*"))
    with pytest.raises(kafkalog.errors.FencedMemberError):
        reader.poll(0.2)


def test_a_group_that_is_deleted_is_gone(log: Path) -> None:
    with consumer(log) as reader:
        reader.poll(5)
        reader.commit()
    would = call_json("groups", "delete", log, "--group", "g", "--dry-run")
    assert [(each["offsetBefore"], each["offset"]) for each in would] == [
        (10 if number == 0 else 0, None) for number in range(4)
    ]
    assert call_json("groups", log)
    assert call_json("groups", "delete", log, "--group", "g") == [
        {**each, "dryRun": False} for each in would
    ]
    assert call_json("groups", log) == []
    code, text = call("groups", "delete", log, "--group", "g")
    assert (code, "there is no group 'g'" in text) == (2, True)


def test_a_group_of_a_newer_protocol_is_forgotten_whole(log: Path) -> None:
    """A broker kept it: its records have other keys (KIP-848), and tombstones of their own."""
    GroupWriter([str(log)], "newer").commit({TopicPartition("in", 1): 4})
    keys = [i16(kind) + string("newer") for kind in (3, 6)]
    keys += [i16(kind) + string("newer") + string("member") for kind in (5, 7, 8)]
    keys.append(i16(16) + string("newer") + string("in.*"))
    others = [i16(3) + string("newer2"), i16(3) + string("new")]
    commits = GroupCommits([log], "newer", SetPolicy())
    commits.change(commits.look().record, {}, [(key, b"\0\0\0") for key in (*keys, *others)])
    found = {row["group"]: row["offset"] for row in call_json("groups", log)}
    assert found == {"newer": 4, "newer2": None, "new": None}
    assert call("groups", "delete", log, "--group", "newer")[0] == 0
    assert [row["group"] for row in call_json("groups", log)] == ["new", "newer2"]
    code, text = call("groups", "delete", log, "--group", "newer")
    assert (code, "there is no group 'newer'" in text) == (2, True)


@pytest.mark.parametrize("verb", [("reset", "--topic", "in", "--to", "earliest"), ("delete",)])
def test_a_group_id_that_is_not_utf8_is_refused_by_name(log: Path, verb: tuple[str, ...]) -> None:
    """It was written as "caf?", which is the id of another group."""
    GroupWriter([str(log)], "caf?").commit({TopicPartition("in", 1): 4})
    code, text = call("groups", verb[0], log, "--group", "caf\udce9", *verb[1:])
    assert (code, r"'caf\udce9', which is no text that UTF-8 can hold" in text) == (2, True), text
    assert stands(log, "caf?") == {1: 4}
