"""``kafkalog topic create``, ``alter`` and ``delete``: what they print, how they end."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.support.counted_work import folders_read
from typer.testing import CliRunner

import kafkalog
from kafkalog.errors import UnknownTopicOrPartitionError
from kafkalog.jobs.cli.app import app
from kafkalog.jobs.inspection.batches import dump_batches, offsets_there
from kafkalog.jobs.inspection.lag import LagMeter, LagTargets
from kafkalog.jobs.inspection.topics import describe_partitions, list_offsets, list_topics
from kafkalog.jobs.report.facts import gather
from kafkalog.model import OFFSETS_TOPIC, TopicSelection

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PARTITIONS = 12


def call(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.exit_code, done.output


def test_a_topic_is_created_altered_and_deleted_from_the_command_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code, text = call("create", log, "--topic", "t", "--config", "retention.ms=5", "--json")
    row = json.loads(text)
    assert code == 0
    assert row["partitions"] == 1
    assert row["settings"] == {"retention.ms": "5"}
    words = ("alter", log, "--topic", "t", "--partitions", 2, "--delete-config", "retention.ms")
    code, text = call(*words, "--config", "flush.ms=9", "--dry-run")
    assert code == 0
    assert "dry run: nothing was changed" in text
    assert not (log / "t-1").exists()
    code, text = call(*words, "--config", "flush.ms=9", "--json")
    row = json.loads(text)
    assert (code, row["partitionsBefore"], row["partitions"]) == (0, 1, 2)
    assert (row["settingsBefore"], row["settings"]) == ({"retention.ms": "5"}, {"flush.ms": "9"})
    code, text = call("alter", log, "--topic", "t", "--partitions", 2)
    assert (code, "nothing is changed: t has all of that already" in text) == (0, True)
    kafkalog.append(log, "t", pa.table({"value": ["a"]}))
    listed = json.loads(call("topics", log, "--json")[1])
    code, text = call("delete", log, "--topic", "t", "--dry-run")
    assert code == 0
    assert "dry run: nothing was changed" in text
    assert (log / "t-1").is_dir()
    code, text = call("delete", log, "--topic", "t", "--json")
    row = json.loads(text)
    assert (code, row["partitions"], row["bytes"]) == (0, 2, listed["bytes"])
    assert row["bytes"] > 0
    assert row["paths"] == [str(log / "t-0"), str(log / "t-1")]
    assert not (log / "t-1").exists()


@pytest.mark.parametrize(("place", "made"), [("a", ["a"]), ("a;b;c", ["a", "b", "c"])])
def test_a_dry_run_names_the_folders_that_would_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, made: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, text = call("topic", "create", place, "--topic", "t", "--dry-run")
    assert code == 0
    assert [line.split()[0] for line in text.splitlines() if "would be made" in line] == made
    assert list(tmp_path.iterdir()) == []
    assert call("topic", "create", place, "--topic", "t")[0] == 0
    assert "would be made" not in call("topic", "create", place, "--topic", "u", "--dry-run")[1]


def test_bad_use_is_one_sentence_and_ends_with_2(tmp_path: Path) -> None:
    assert call("create", tmp_path, "--topic", "t")[0] == 0
    for words, told in (
        (("create", tmp_path, "--topic", "t"), "exists"),
        (("alter", tmp_path, "--topic", "t", "--config", "retention"), "NAME=VALUE"),
        (("alter", tmp_path, "--topic", "u", "--partitions", 3), "no topic 'u'"),
        (("delete", tmp_path, "--topic", "u"), "no topic 'u'"),
    ):
        code, text = call(*words)
        assert code == 2
        assert told in text


@pytest.fixture(scope="module")
def two_topics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give two topics with two records in each of a dozen partitions."""
    folder = tmp_path_factory.mktemp("two") / "log"
    numbers = pa.array([*range(PARTITIONS)] * 2, pa.int32())
    rows = pa.table({"value": ["x"] * 2 * PARTITIONS, "partition": numbers})
    for topic in ("t", "u"):
        kafkalog.append(folder, topic, rows, options={"numPartitions": str(PARTITIONS)})
    for path in folder.rglob("*"):  # a folder that has just changed is listed once more
        os.utime(path, (1_700_000_000, 1_700_000_000))
    return folder


@pytest.mark.parametrize(
    ("ask", "wanted"),
    [
        (lambda log: list(dump_batches([log], TopicSelection.of("t"), 3, 0, None)), {"t-3"}),
        (lambda log: offsets_there([log], TopicSelection.of("t"), 3), {"t-3"}),
        (
            lambda log: list_offsets([log], TopicSelection.of("t")),
            {f"t-{n}" for n in range(PARTITIONS)},
        ),
        (
            lambda log: describe_partitions([log], TopicSelection.of("t")),
            {f"t-{n}" for n in range(PARTITIONS)},
        ),
        (
            lambda log: LagMeter(
                [log], LagTargets(offsets='{"t":{"3":1}}'), TopicSelection.of("t")
            ).look(),
            {f"t-{n}" for n in range(PARTITIONS)},
        ),
    ],
    ids=["dump -p", "dump -p without rows", "offsets -t", "describe -t", "lag -t"],
)
def test_who_asks_for_one_reads_nothing_of_the_others(
    two_topics: Path, ask: Callable[[str], object], wanted: set[str]
) -> None:
    read = folders_read(two_topics, lambda: ask(str(two_topics)))
    assert set(read) == wanted


def test_a_partition_that_is_not_there_is_told_with_those_that_are(two_topics: Path) -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match=r"t-77 is not in .*there: 0, 1, 2"):
        list(dump_batches([str(two_topics)], TopicSelection.of("t"), 77, 0, None))
    with pytest.raises(UnknownTopicOrPartitionError, match=r"no partition .*--topic t"):
        list_offsets([str(two_topics)], TopicSelection.of("t-7"))


def test_what_a_list_reads_of_each_partition_is_bounded(two_topics: Path) -> None:
    paths = [str(two_topics)]
    lag = LagMeter(paths, LagTargets(offsets='{"t":{"0":1},"u":{"0":1}}'))
    for ask, most in (
        (lambda: list_topics(paths), 2),
        (lambda: list_offsets(paths), 4),
        (lag.look, 7),
    ):
        read = folders_read(two_topics, ask)
        assert len(read) == 2 * PARTITIONS
        assert max(read[f"u-{n}"] for n in range(1, PARTITIONS)) <= most


def test_a_report_looks_once_where_each_log_ends_and_once_at_its_batches(two_topics: Path) -> None:
    paths = [str(two_topics)]

    def report() -> None:
        assert not gather(paths, (), lambda *_: None, checks=False).unknown

    read = folders_read(two_topics, report)
    assert max(read.values()) <= 16
    assert OFFSETS_TOPIC not in {name.rpartition("-")[0] for name in read}
