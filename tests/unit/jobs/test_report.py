"""``kafkalog report`` puts on one page what the commands that look have found."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import pty
import re
import shlex
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pyarrow as pa
import pytest
from tests.support.corpus import CASES, UnpackedCase
from tests.support.killing import count_calls, run_and_kill
from tests.support.sinking import Writer, rows
from typer.testing import CliRunner

import kafkalog
from kafkalog.checkpoints.broker import HIGH_WATERMARK, META_PROPERTIES
from kafkalog.checkpoints.commit_state import STATE_FILE
from kafkalog.files.system import system
from kafkalog.jobs.cli.app import app
from kafkalog.jobs.report.charts import shown_moment
from kafkalog.jobs.report.facts import Facts, gather
from kafkalog.jobs.report.findings import Limits, find_problems
from kafkalog.jobs.report.page import MARK, SCRIPT
from kafkalog.model import TopicPartition
from kafkalog.streaming.groups.administration import GroupWriter
from kafkalog.streaming.log import segments
from kafkalog.streaming.store.ends.tracker import LogEndTracker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kafkalog.streaming.log.partition_log import PartitionLog

STAMP = 1_700_000_000_000
DAY = 86_400_000
SAME = {"stats": "stats", "group": "groups", "topic": "topics", "partition": "describe"}


def call(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.exit_code, done.output


def call_json(*words: object) -> list[dict[str, Any]]:
    done = CliRunner().invoke(app, [*map(str, words), "--json"])
    assert done.exit_code in {0, 1}, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


def page(file: Path, *words: object, code: int = 0) -> ET.Element:
    """Return the page that is made of log directories, parsed; it must name no other resource."""
    ended, output = call("report", *words, "--html", file)
    assert ended == code, output
    text = file.read_text()
    assert text.startswith(MARK)
    hashed = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    assert f"script-src &#x27;sha256-{hashed}&#x27;" in text
    other = text.replace(hashed, "").replace(f"<script>{SCRIPT}</script>", "")
    assert not re.search("https?:|//|@import|url\\(|<script|<link|<img", other)
    return ET.fromstring(text)


def texts(element: ET.Element) -> str:
    return " ".join("".join(element.itertext()).split())


def cells(found: ET.Element, heading: str, columns: int | None = None) -> Iterator[list[str]]:
    """Give the rows of the first table whose first heading that is."""
    for table in found.iter("table"):
        if texts(next(table.iter("th"))) == heading:
            for row in table.findall("tbody/tr"):
                yield [texts(cell) for cell in row]
            return


def commands(found: ET.Element) -> list[list[str]]:
    """Give the commands of the page, as words."""
    return [shlex.split(texts(line)) for line in found.iterfind(".//pre/code/span")]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Give a directory with two topics, one of two days, and a group."""
    path = tmp_path / "log"
    for day in range(2):
        stamps = pa.array([STAMP + day * DAY] * 4, pa.timestamp("ms"))
        table = pa.table({"value": ["v"] * 4, "timestamp": stamps})
        kafkalog.append(path, "flights", table, options={"compression.type": "zstd"})
    kafkalog.append(path, "t", pa.table({"value": ["w"] * 3}))
    GroupWriter([str(path)], "billing").commit(
        {TopicPartition("flights", 0): 2, TopicPartition("t", 0): 1}
    )
    return path


def test_the_page_says_what_is_there_and_who_reads_it(log: Path, tmp_path: Path) -> None:
    found = page(tmp_path / "r.html", log)
    text = texts(found)
    assert "Nothing is wrong." in text
    assert "Records from 2023-11-14 22:13:20" in text
    topics = [*cells(found, "Topic")]
    assert topics[0][:3] == ["flights", "1", "8"]
    assert topics[0][5:7] == ["2023-11-14 22:13", "2023-11-15 22:13"]
    assert [each[0] for each in topics[1:]] == ["t", "__consumer_offsets"]
    (group,) = cells(found, "Reader")
    assert group[:6] == ["billing", "Empty", "0", "flights, t", "2", "8"]
    # what adds up is drawn twice: for a broad page, and for a narrow one
    assert len([*found.iter("svg")]) == 4 + len(topics)


def test_the_times_of_a_topic_are_those_of_all_its_partitions(tmp_path: Path) -> None:
    stamps = pa.array([STAMP + DAY, STAMP, STAMP + 2 * DAY], pa.timestamp("ms"))
    partitions = pa.array([0, 1, 2], pa.int32())
    table = pa.table({"value": ["v"] * 3, "partition": partitions, "timestamp": stamps})
    kafkalog.append(tmp_path / "log", "t", table, options={"numPartitions": "3"})
    (topic,) = cells(page(tmp_path / "r.html", tmp_path / "log"), "Topic")
    assert topic[5:7] == ["2023-11-14 22:13", "2023-11-16 22:13"]


def test_json_has_what_the_other_commands_find(log: Path) -> None:
    rows = call_json("report", log)
    for kind, command in SAME.items():
        ours = [{**row} for row in rows if row["kind"] == kind]
        theirs = call_json(command, log)
        for row in (*ours, *theirs):
            row.pop("kind", None)
            row.pop("behindMs", None)
        assert ours == theirs
        assert ours
    (summary,) = (row for row in rows if row["kind"] == "summary")
    assert (summary["topics"], summary["records"], summary["problems"]) == (3, 13, 0)
    plotted = [row for row in rows if row["kind"] in {"time", "segment", "batchSize", "codec"}]
    assert {row["kind"] for row in plotted} == {"time", "segment", "batchSize", "codec"}


def test_one_topic_is_looked_at_alone(log: Path, tmp_path: Path) -> None:
    segment = next((log / "flights-0").glob("*.log"))
    segment.write_bytes(segment.read_bytes()[:-1] + b"?")  # none of its business
    found = page(tmp_path / "r.html", log, "--topic", "t")
    assert "Nothing is wrong." in texts(found)
    assert "topic t alone" in texts(found)
    assert [each[:3] for each in cells(found, "Topic")] == [["t", "1", "3"]] * 1
    (group,) = cells(found, "Reader")
    assert group[3:6] == ["t", "1", "2"]
    rows = call_json("report", log, "--topic", "t")
    assert {row["topic"] for row in rows if row["kind"] in SAME or "topic" in row} == {"t"}
    code, said = call("report", log, "--topic", "T")
    assert code == 2
    assert "no partition of topic T is in" in said
    assert call("report", log)[0] == 1


def test_a_report_says_what_has_changed_since_an_earlier_page(log: Path, tmp_path: Path) -> None:
    page(tmp_path / "old.html", log)
    kafkalog.append(log, "t", pa.table({"value": ["w"] * 4}))
    found = page(tmp_path / "new.html", log, "--compare", tmp_path / "old.html")
    assert ["topic t: records", "3", "7", "+4"] in [*cells(found, "What")]
    code, text = call("report", log, "--compare", tmp_path / "old.html", "--json")
    changes = [row for row in map(json.loads, text.splitlines()) if row["kind"] == "change"]
    assert (code, changes[0]) == (
        0,
        {"kind": "change", "what": "topic t: records", "before": 3, "now": 7},
    )
    for name in ("none.html", "other.html"):
        (tmp_path / "other.html").write_text("<html>")
        code, text = call("report", log, "--compare", tmp_path / name)
        assert (code, "--compare" in text) == (2, True)


def test_the_page_says_which_host_and_how_much_room_there_is(log: Path, tmp_path: Path) -> None:
    found = page(tmp_path / "r.html", log)
    assert any(system.host_name() in "".join(each.itertext()) for each in found.iter("header"))
    (disk,) = cells(found, "Disk of")
    assert disk[0] == str(log)
    assert all(disk[1:3])


def test_a_column_that_is_left_out_is_not_explained(log: Path, tmp_path: Path) -> None:
    def explained(code: int) -> list[bool]:
        text = texts(page(tmp_path / "r.html", log, code=code))
        assert ("Written a day" in text) is ("in the last seven days" in text)
        return ["Time behind" in text.replace("Time behind is", ""), "Time behind is" in text]

    assert explained(0) == [True, True]
    for topic in ("flights", "t"):  # what is next to read cannot be read
        os.truncate(log / f"{topic}-0" / f"{0:020d}.log", 40)
    assert explained(1) == [False, False]


def test_the_page_says_who_writes_what_was_given_and_how_even_partitions_are(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    partitions = pa.array([0, 0, 0, 1], pa.int32())
    table = pa.table({"value": ["v" * 1000] * 4, "partition": partitions})
    options = {"numPartitions": "2", "retention.ms": "60000", "message.format": "v1"}
    kafkalog.append(log, "t", table, transactional_id="loader", version=7, options=options)
    found = page(tmp_path / "r.html", log)
    assert [row[-1] for row in cells(found, "Topic")] == ["1.5"]
    (writer,) = cells(found, "Writer")
    assert writer[:3] == ["loader", "t", "7"]
    (given,) = cells(found, "Settings of")
    assert given[0] == "t"
    assert {"retention.ms=60000", "message.format=v1"} <= {*given[1].split()}
    assert not [*cells(found, "Topic with replicas")]


def test_the_page_says_which_topics_lack_replicas_and_who_leads(tmp_path: Path) -> None:
    nodes = ";".join(str(tmp_path / name) for name in "abc")
    kafkalog.append(nodes, "t", pa.table({"value": ["v"]}), options={"replication.factor": "2"})
    (topic,) = cells(page(tmp_path / "r.html", nodes), "Topic with replicas")
    assert topic[:4] == ["t", "1", "2", "0"]
    assert topic[4].endswith(": 1")


def test_who_is_further_behind_than_is_asked_for_is_a_problem(log: Path, tmp_path: Path) -> None:
    found = page(tmp_path / "r.html", log, "--warn-lag", "1h", code=1)
    assert "reader billing" in texts(found)
    assert ["kafkalog", "lag", str(log)] in commands(found)
    assert call("report", log, "--warn-lag", "100000d")[0] == 0
    assert call("report", log, "--warn-lag", "soon")[0] == 2


def test_a_disk_that_is_full_sooner_than_is_asked_for_is_a_problem() -> None:
    disk = {"paths": ["/logs"], "daysUntilFull": 3.0}
    facts = Facts(["/logs"], 0, disks=[disk])
    (problem,) = find_problems(facts, Limits(days=7))
    assert (problem.is_problem, problem.where) == (True, "disk of /logs")
    assert find_problems(facts, Limits(days=3)) == []
    assert find_problems(facts) == []
    assert (
        find_problems(Facts([], 0, disks=[{**disk, "daysUntilFull": None}]), Limits(days=7)) == []
    )


def test_text_says_the_same_in_short(log: Path, tmp_path: Path) -> None:
    code, text = call("report", log)
    assert code == 0
    lines = text.splitlines()
    assert lines[-1].startswith("3 topics, 52 partitions, 13 records, ")
    assert lines[-1].endswith(", 1 group, 0 problems")
    assert any(line.startswith("billing ") for line in lines)
    code, text = call("report", log, "--html", tmp_path / "r.html")
    assert text.splitlines() == [f"{tmp_path / 'r.html'}: {lines[-1]}"]


@pytest.mark.parametrize("name", CASES)
def test_what_brokers_wrote_is_on_the_page(name: str, tmp_path: Path) -> None:
    case = UnpackedCase(name, tmp_path)
    paths = case.path.split(",")
    rows = call_json("report", *paths)
    problems = [row for row in rows if row["kind"] == "finding" and row["problem"]]
    found = page(tmp_path / "r.html", *paths, code=1 if problems else 0)
    counted = call_json("stats", *paths)
    topics = {row[0]: row for row in cells(found, "Topic")}
    assert {*topics} == {row["topic"] for row in counted}
    for topic, row in topics.items():
        ours = [each for each in counted if each["topic"] == topic]
        assert row[1:3] == [f"{len(ours)}", f"{sum(each['records'] for each in ours):,}"]
        firsts = [each["firstTimestamp"] for each in ours if each["firstTimestamp"] is not None]
        if firsts:
            assert row[5] == shown_moment(min(firsts))
    assert len(commands(found)) >= len(problems)
    assert case.changed_files() == []


def test_each_problem_comes_with_a_command_that_mends_it(log: Path, tmp_path: Path) -> None:
    """The page's commands are run as they stand there, but that something is to be decided."""
    segment = log / "flights-0" / f"{0:020d}.log"
    data = bytearray(segment.read_bytes())
    data[-1] ^= 1
    segment.write_bytes(data)
    (log / "t-0" / f"{0:020d}.index").write_bytes(b"1" * 8)
    found = page(tmp_path / "r.html", log, code=1)
    articles = [texts(each) for each in found.iter("article")]
    assert len(articles) == 2
    assert "flights-0" in articles[0]
    assert "wrong checksum" in articles[0]
    assert "t-0" in articles[1]
    assert "1 index" not in articles[1]
    salvage, rebuild = commands(found)
    (place,) = call_json(*salvage[1:])
    assert call(*salvage[1:], "--drop", place["place"])[0] == 0
    subprocess.run([sys.executable, *rebuild[1:]], check=True, capture_output=True)
    mended = page(tmp_path / "r.html", log)
    assert [*mended.iter("article")] == []


def test_what_lies_around_damage_is_counted(log: Path, tmp_path: Path) -> None:
    """The header of the second of three batches is no header any more."""
    kafkalog.append(log, "flights", pa.table({"value": ["v"] * 2}))
    (second,) = (
        row["position"]
        for row in call_json("dump", log, "--topic", "flights")
        if row["baseOffset"] == 4
    )
    segment = log / "flights-0" / f"{0:020d}.log"
    data = bytearray(segment.read_bytes())
    data[second] = 0x7F
    segment.write_bytes(data)
    assert call("stats", log)[0] == 1
    found = page(tmp_path / "r.html", log, code=1)
    assert next(cells(found, "Topic"))[:3] == ["flights", "1", "6"]
    assert "What follows a damaged batch" in texts(found)


@pytest.mark.parametrize("is_header", [True, False])
def test_damage_that_was_met_counts_without_a_check_too(log: Path, is_header: bool) -> None:
    segment = log / "flights-0" / f"{0:020d}.log"
    data = bytearray(segment.read_bytes())
    data[8 if is_header else -1] ^= 0x7F
    segment.write_bytes(data)
    code, text = call("report", log, "--no-verify")
    assert code == 1
    assert "problem: flights-0: " in text
    assert text.splitlines()[-1].endswith(", 1 problem")


def test_a_group_above_the_end_is_set_back_by_the_command(log: Path, tmp_path: Path) -> None:
    writer = GroupWriter([str(log)], "lost group")
    writer.commit({TopicPartition("flights", 0): 99, TopicPartition("t", 0): 1})
    found = page(tmp_path / "r.html", log, code=1)
    ((_, *words),) = commands(found)
    assert words[:2] == ["group", "reset"]
    assert words[-3:] == ["--offsets", '{"flights": {"0": 8}}', "--dry-run"]
    assert call(*words[:-1])[0] == 0
    assert [*page(tmp_path / "r.html", log).iter("article")] == []


def test_records_deleted_before_a_group_read_them_are_a_note(log: Path, tmp_path: Path) -> None:
    assert call("delete-records", log, "--offsets", '{"flights":{"0":4}}')[0] == 0
    found = page(tmp_path / "r.html", log)
    (article,) = found.iter("article")
    assert "the group stands at 2, and the log begins at 4" in texts(article)
    ((_, *words),) = commands(found)
    assert words[words.index("--offsets") + 1] == '{"flights": {"0": 4}}'


def test_the_command_leaves_a_position_where_it_is_right(log: Path, tmp_path: Path) -> None:
    assert call("alter", log, "--topic", "flights", "--partitions", 2)[0] == 0
    numbers = pa.array([1] * 9, pa.int32())
    kafkalog.append(log, "flights", pa.table({"value": ["v"] * 9, "partition": numbers}))
    writer = GroupWriter([str(log)], "billing")
    writer.commit({TopicPartition("flights", 0): 99, TopicPartition("flights", 1): 3})
    ((_, *words),) = commands(page(tmp_path / "r.html", log, code=1))
    assert call(*words[:-1])[0] == 0
    rows = call_json("groups", log, "--group", "billing")
    assert [row["offset"] for row in rows if row["topic"] == "flights"] == [8, 3]


@pytest.mark.parametrize(
    ("others", "command"), [(True, ["group", "describe"]), (False, ["group", "delete"])]
)
def test_a_group_is_not_forgotten_for_one_topic_that_is_gone(
    log: Path, tmp_path: Path, *, others: bool, command: list[str]
) -> None:
    gone = TopicPartition("gone", 0)
    kafkalog.append(log, "gone", pa.table({"value": ["v"]}))
    GroupWriter([str(log)], "g").commit(
        {gone: 1, TopicPartition("flights", 0): 3} if others else {gone: 1}
    )
    moved = [*log.glob("gone-0")]
    for folder in moved:
        folder.rename(tmp_path / folder.name)
    ((_, *words),) = [
        words for words in commands(page(tmp_path / "r.html", log, code=1)) if words[1] == "group"
    ]
    assert words[: len(command)] == command
    assert words[len(command)] == str(log)


def test_an_unfinished_commit_is_rolled_back_by_the_command(log: Path, tmp_path: Path) -> None:
    """The next commit is killed deep in its middle."""
    copy = tmp_path / "copy"
    Writer(copy, topic="t").write(0, rows(["a"]))
    calls = count_calls(lambda: Writer(copy, topic="t").write(1, rows(["d"])))
    writer = Writer(log, topic="t")
    writer.write(0, rows(["a"]))
    assert run_and_kill(lambda: writer.write(1, rows(["d"])), calls // 2)
    found = page(tmp_path / "r.html", log, code=1)
    articles = [texts(each) for each in found.iter("article")]
    assert any("an unfinished commit" in text and "t-0" in text for text in articles)
    *_, (_, *recover) = commands(found)
    assert recover[0] == "recover"
    assert call(*recover)[0] == 0
    assert [*page(tmp_path / "r.html", log).iter("article")] == []


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("p06-transactions", "since offset"),
        ("p12-killed", "__consumer_offsets-0: 3 offsets from 0 on"),
    ],
)
def test_what_readers_wait_for_is_a_note(name: str, told: str, tmp_path: Path) -> None:
    case = UnpackedCase(name, tmp_path)
    found = page(tmp_path / "r.html", case.path)
    articles = [texts(each) for each in found.iter("article")]
    assert any(text.startswith("Note") and told in text for text in articles)
    opened = {
        (row["topic"], row["partition"]): row["firstOffset"]
        for row in call_json("report", case.path)
        if row["kind"] == "openTransaction"
    }
    assert opened == {
        (each["topic"], each["partition"]): each["lso"]
        for each in case.partitions
        if each["lso"] < each["high_watermark"]
    }


@pytest.mark.parametrize("is_uri", [False, True])
def test_records_that_a_broker_may_have_written_are_not_taken_over(log: Path, is_uri: bool) -> None:
    older = (log / STATE_FILE).read_bytes()
    kafkalog.append(log, "t", pa.table({"value": ["x"]}))
    (log / STATE_FILE).write_bytes(older)
    (log / HIGH_WATERMARK).unlink()
    (log / META_PROPERTIES).write_text("version=1\n")
    _, text = call("report", log.as_uri() if is_uri else log)
    assert "t-0: 1 offsets from 3 on" in text
    assert "--set readUpTo=logEnd" in text
    assert "takeover" not in text


def test_what_is_missing_and_what_cannot_be_trusted_is_told(log: Path, tmp_path: Path) -> None:
    table = pa.table({"value": ["a", "b"], "partition": pa.array([0, 1], pa.int32())})
    kafkalog.append(log, "u", table, options={"numPartitions": "2"})
    (log / "u-1").rename(tmp_path / "u-1")
    found = page(tmp_path / "r.html", log, code=1)
    (article,) = found.iter("article")
    assert "offsets up to 1 were committed, and the partition has no folder" in texts(article)
    (log / "kafkalog.commit").write_bytes(b"damaged")
    found = page(tmp_path / "r.html", log, code=1)
    told = [text for each in found.iter("article") if "is damaged" in (text := texts(each))]
    assert (len(told), "kafkalog.commit" in told[0]) == (1, True)
    assert "flights" in {row[0] for row in cells(found, "Topic")}


def test_names_of_strangers_are_text(tmp_path: Path) -> None:
    log = tmp_path / "<b>\"&amp' log"
    kafkalog.append(log, "t", pa.table({"value": ["v"]}))
    name = "<script>alert('1')</script>\x1b[31m\u202e\x00&"
    GroupWriter([str(log)], name).commit({TopicPartition("t", 0): 5})
    found = page(tmp_path / "r.html", log, code=1)
    shown = "<script>alert('1')</script>\\x1b[31m\\u202e\\x00&"
    assert shown in {row[0] for row in cells(found, "Reader")}
    assert str(log) in texts(found)
    assert [each.text for each in found.iter("script")] == [SCRIPT]


def test_a_report_opens_a_log_once_for_each_thing_it_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pa.table({"value": ["x"] * 12, "partition": pa.array(range(12), pa.int32())})
    kafkalog.append(tmp_path, "t", table, options={"numPartitions": "12"})
    for folder in tmp_path.glob("t-*"):
        os.utime(folder, (1, 1))  # so that what was listed counts
    opened: Counter[str] = Counter()
    listed: Counter[str] = Counter()
    open_log, list_folder = LogEndTracker.open, segments._list

    def open_counted(watch: LogEndTracker, key: TopicPartition) -> PartitionLog:
        opened[str(key)] += 1
        return open_log(watch, key)

    def list_counted(folder: Path) -> list[str]:
        listed[folder.name] += 1
        return list_folder(folder)

    monkeypatch.setattr(LogEndTracker, "open", open_counted)
    monkeypatch.setattr(segments, "_list", list_counted)
    facts = gather([str(tmp_path)], (), lambda *_: None, checks=False)
    assert [(row["partitions"], row["bytes"]) for row in facts.topics] == [
        (12, sum(row["bytes"] for row in facts.counts))
    ]
    # how many segments it has, where it starts, and where its bytes lie
    assert set(opened.values()) == {3}
    # the first one also to see if there is any partition at all
    assert sorted(listed.values())[:-1] == [1] * 11


def test_a_file_that_is_no_report_stays_as_it_is(log: Path, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    link = tmp_path / "link.html"
    link.symlink_to(log / "t-0" / f"{0:020d}.log")
    before = {path: path.read_bytes() for path in log.rglob("*") if path.is_file()}
    for target, said in {
        file: "is there already, and is no report",
        link: "is there already, and is no report",
        log / "t-0" / f"{0:020d}.log": "lies in the log directory",
        log / "new.html": "lies in the log directory",
        log / "t-0" / "new.html": "lies in the log directory",
        log: "which is a folder",
        tmp_path / "missing" / "r.html": "is no folder",
    }.items():
        code, text = call("report", log, "--html", target)
        assert (code, said in text, text.count("\n")) == (2, True, 1), text
    assert file.read_text() == "mine"
    assert {path: path.read_bytes() for path in log.rglob("*") if path.is_file()} == before


def test_an_earlier_report_is_replaced_whole_or_not_at_all(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "r.html"
    page(file, log)
    before = file.read_bytes()

    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("kafkalog.files.atomic.write_all", fails)
        code, text = call("report", log, "--html", file)
    assert (code, text) == (2, f"{file} cannot be written: No space left on device\n")
    assert file.read_bytes() == before
    assert {each.name for each in tmp_path.iterdir()} == {"log", "r.html"}
    kafkalog.append(log, "t", pa.table({"value": ["w"]}))
    page(file, log)
    assert file.read_bytes() != before


def test_directories_without_a_log_are_refused_and_empty_ones_are_a_page(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    code, text = call("report", tmp_path / "empty", "--html", tmp_path / "r.html")
    assert (code, "is empty: no sink and no broker" in text) == (2, True)
    assert not (tmp_path / "r.html").exists()
    assert call("create", tmp_path / "log", "--topic", "t")[0] == 0
    found = page(tmp_path / "r.html", tmp_path / "log")
    assert [row[:3] for row in cells(found, "Topic")] == [["t", "1", "0"]]
    assert call("delete", tmp_path / "log", "--topic", "t")[0] == 0
    assert "There is no partition here yet." in texts(page(tmp_path / "r.html", tmp_path / "log"))


def test_without_a_check_the_page_says_so(log: Path, tmp_path: Path) -> None:
    segment = log / "t-0" / f"{0:020d}.index"
    segment.write_bytes(b"1" * 8)
    text = texts(page(tmp_path / "r.html", log, "--no-verify"))
    assert "Batches and indexes were not verified" in text
    assert "Nothing wrong was seen." in text


def test_a_query_is_shown_by_its_checkpoint(log: Path, tmp_path: Path) -> None:
    for name, text in {
        "offsets/0": 'v1\n{}\n{"flights":{"0":3}}',
        "commits/0": 'v1\n{"nextBatchWatermarkMs":0}',
    }.items():
        (tmp_path / "query" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "query" / name).write_text(text)
    found = page(tmp_path / "r.html", log, "--checkpoint", tmp_path / "query")
    readers = {row[0]: row for row in cells(found, "Reader")}
    assert "5" in readers[str(tmp_path / "query")]


def test_on_a_terminal_a_bar_shows_that_it_works(log: Path, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    script = "from kafkalog.jobs.cli.app import main; main()"
    words = [sys.executable, "-c", script, "report", log, "--html", tmp_path / "r.html"]
    wide = {**os.environ, "TERM": "xterm", "COLUMNS": "400"}
    with subprocess.Popen(words, stdout=theirs, stderr=theirs, env=wide) as process:
        os.close(theirs)
        shown = "".join(read_all(ours))
    os.close(ours)
    assert process.returncode == 0, shown
    assert "\u2501" in shown
    assert shown.rstrip().endswith("0 problems")


def read_all(terminal: int) -> Iterator[str]:
    """Give what is printed to a terminal, until nobody has it open any more."""
    with suppress(OSError):
        while data := os.read(terminal, 1 << 16):
            yield data.decode(errors="replace")
