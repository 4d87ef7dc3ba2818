"""Topics that are mirrored: the same records at the same offsets, settings, starts and ends."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import StructType
from tests.support.corpus import UnpackedCase
from tests.support.distributions import ROOT
from tests.support.object_store import object_store
from tests.support.odd_logs import ODD_LOGS, SCHEMA, rows_in_ms, topic_of
from tests.support.reading import read_batch
from tests.support.sinking import Writer, rows

from kafkalog.checkpoints.state_file import load_state
from kafkalog.errors import OptionError
from kafkalog.jobs.mirroring import Mirror
from kafkalog.jobs.process.running import sentence_in
from kafkalog.model import INTERNAL_TOPICS, TopicPartition
from kafkalog.streaming.admin.recovery import recover
from kafkalog.streaming.admin.retention import delete_records
from kafkalog.streaming.admin.topics import Bounds, alter, create, delete, set_bounds
from kafkalog.streaming.store.ends.tracker import LogEndTracker

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

COMMITTED = {"kafka.isolation.level": "read_committed"}
T0, T2 = TopicPartition("t", 0), TopicPartition("t", 2)


@pytest.fixture
def copy(spark: SparkSession, tmp_path: Path) -> Callable[..., Mirror]:
    """Mirror topics until the source's end as of now; give what was run."""

    def run(source: str | Path, *topics: str, checkpoint: str = "c", **more: Any) -> Mirror:
        mirror = Mirror(
            source=str(source),
            target=str(tmp_path / "copy"),
            topics=topics,
            checkpoint=str(tmp_path / checkpoint),
            **{"options": COMMITTED} | more,
        )
        mirror.check()
        mirror.begin_again()
        mirror.prepare()
        query = mirror.start(spark)
        query.awaitTermination()
        mirror.finish()
        return mirror

    return run


def bounds(path: str | Path, *topics: str) -> dict[str, tuple[int, int]]:
    """Give where readers of committed records see partitions start and end."""
    watch = LogEndTracker(
        str(path).split(","), lambda key: key.topic in topics, committed_only=True
    )
    ends = watch.look().offsets
    return {str(key): (watch.log_start(key), end) for key, end in ends.items()}


def contents(path: str | Path, *topics: str, **options: str) -> list[dict[str, Any]]:
    found = read_batch(path=str(path), subscribe=",".join(topics), **options)
    return sorted(found, key=lambda row: (row["topic"], row["partition"], row["offset"]))


def settings(path: Path, topic: str) -> dict[str, str]:
    state = load_state(path)
    assert state is not None
    (known,) = [each for each in state.topics.values() if each.name == topic]
    return dict(known.settings)


def check(source: str | Path, target: Path, *topics: str) -> None:
    assert contents(target, *topics) == contents(source, *topics, **COMMITTED)
    check_bounds(source, target, *topics)


def check_bounds(source: str | Path, target: Path, *topics: str) -> None:
    assert bounds(target, *topics) == bounds(source, *topics)
    assert recover([str(target)]).problems == []


WRITTEN = ["p02-nulls-headers", "p04-timestamps", "p06-transactions", "p07-compacted", "p13-v0v1"]


@pytest.mark.parametrize("name", WRITTEN)
def test_what_a_broker_wrote_is_mirrored_with_starts_and_ends(
    copy: Callable[..., Mirror], name: str, tmp_path: Path
) -> None:
    case = UnpackedCase(name, tmp_path / "case")
    topics = [topic for topic in case.topics.split(",") if topic not in INTERNAL_TOPICS]
    copy(case.path, *topics)
    target = tmp_path / "copy"
    expected = contents(case.path, *topics, **COMMITTED)
    for row in expected:  # a batch of v2, as the copy has, says of each record which time it has
        row["timestampType"] = max(row["timestampType"], 0)
    assert contents(target, *topics) == expected
    check_bounds(case.path, target, *topics)


def test_odd_logs_of_magic_0_and_1_are_read_by_spark_and_mirrored_as_they_are(
    spark: SparkSession, copy: Callable[..., Mirror], tmp_path: Path
) -> None:
    """In one batch and one stream; the copy keeps all 64 bits of a time."""
    source = tmp_path / "source"
    odd = {topic_of(name): each for name, each in ODD_LOGS.items() if name.startswith("magic")}
    for topic, each in odd.items():
        each.write(source, topic)
    wanted = {topic: each.rows for topic, each in odd.items()}
    schema = StructType([*SCHEMA.fields]).add("topic", "string")
    frame = spark.read.format("kafkalog").schema(schema).option("subscribePattern", ".*")
    found: dict[str, list[dict[str, Any]]] = {topic: [] for topic in odd}
    for row in sorted(frame.load(str(source)).collect(), key=lambda row: row["offset"]):
        found[row["topic"]].append(
            {name: row.asDict(recursive=True)[name] for name in SCHEMA.names}
        )
    assert found == wanted
    copy(source, *odd)
    assert {topic: rows_in_ms(tmp_path / "copy", topic) for topic in odd} == wanted
    assert recover([str(tmp_path / "copy")]).problems == []


def test_runs_continue_and_starts_ends_and_settings_follow(
    copy: Callable[..., Mirror], tmp_path: Path
) -> None:
    source, target = tmp_path / "source", tmp_path / "copy"
    given = {"compression.type": "zstd", "segment.bytes": "1000"}
    create([str(source)], "t", partitions=3, config=given, starts={1: 500})
    create([str(source)], "u")
    writer = Writer(source, topic="t")
    writer.write(0, rows(["a", "b"], partitions=[0, 1], timestamps=[1000, 2000]))
    set_bounds([str(source)], {T0: Bounds(0, 10), T2: Bounds(0, 7)})
    copy(source, "t", "u")
    check(source, target, "t", "u")
    assert bounds(target, "t") == {"t-0": (0, 10), "t-1": (500, 501), "t-2": (0, 7)}
    assert settings(target, "t") == given

    copy(source, "t", "u")
    writer.write(1, rows(["c", "d", "e"], partitions=[2, 0, 2]))
    set_bounds([str(source)], {T2: Bounds(0, 12)})
    delete_records([str(source)], {T0: 10})
    alter([str(source)], "u", partitions=2)
    Writer(source, topic="u", name="u").write(0, rows(["f"], partitions=[1]))
    copy(source, "t", "u")
    check(source, target, "t", "u")
    assert bounds(target, "t")["t-2"] == (0, 12)


def test_topics_that_match_a_pattern_are_mirrored_from_a_store(
    copy: Callable[..., Mirror], tmp_path: Path
) -> None:
    source = tmp_path / "source"
    for topic in ("a-1", "a-2", "b"):
        Writer(source, topic=topic, name=topic).write(0, rows([topic, topic]))
    with object_store() as store:
        store.upload(source, "source")
        copy(store.uri("source"), pattern="^a-", options={**COMMITTED, **store.options})
    check(source, tmp_path / "copy", "a-1", "a-2")
    assert not (tmp_path / "copy" / "b-0").exists()


def wait_for(target: Path, *ends: int, topic: str = "t") -> None:
    """Wait until the copy of a topic ends at these offsets, one for each partition."""
    expected = {f"{topic}-{number}": end for number, end in enumerate(ends)}
    found: dict[str, int] = {}
    while found != expected:
        time.sleep(0.1)
        if target.is_dir():
            found = {name: end for name, (_, end) in bounds(target, topic).items()}


def test_a_mirror_that_follows_takes_what_is_appended_and_ends_when_it_is_asked_to(
    copy: Callable[..., Mirror], tmp_path: Path
) -> None:
    source, target = tmp_path / "source", tmp_path / "copy"
    create([str(source)], "t", partitions=2, starts={1: 500})
    writer = Writer(source, topic="t")
    writer.write(0, rows(["a", "b"], partitions=[0, 1]))
    command = [sys.executable, str(ROOT / "jobs" / "mirror.py"), str(source), str(target)]
    words = ["--pattern=^t", f"--checkpoint={tmp_path / 'c'}", "--follow"]
    with subprocess.Popen([*command, *words], stderr=subprocess.PIPE, text=True) as follower:
        wait_for(target, 1, 501)
        writer.write(1, rows(["c", "d", "e"], partitions=[1, 1, 0]))
        wait_for(target, 2, 503)
        set_bounds([str(source)], {T0: Bounds(0, 9)})
        wait_for(target, 9, 503)
        alter([str(source)], "t", partitions=3)
        writer.write(2, rows(["f", "g"], partitions=[2, 0]))
        wait_for(target, 10, 503, 1)
        Writer(source, topic="t-new", name="n").write(0, rows(["h"]))
        wait_for(target, 1, topic="t-new")
        follower.send_signal(signal.SIGTERM)
        _, err = follower.communicate()
    assert follower.returncode == 128 + signal.SIGTERM, err
    assert err.splitlines()[-1].startswith("mirror ^t: "), err
    assert err.count("mirror ^t: FROM has more partitions now; continues with them") == 2
    check(source, target, "t", "t-new")

    writer.write(3, rows(["i"], partitions=[0]))
    copy(source, pattern="^t")
    check(source, target, "t", "t-new")


def refused(copy: Callable[..., Mirror], *arguments: Any, **more: Any) -> str:
    """Give the sentence that a mirror ends with."""
    with pytest.raises(Exception) as raised:  # noqa: PT011 - Spark wraps it
        copy(*arguments, **more)
    sentence = sentence_in(raised.value)
    assert sentence is not None, raised.value
    return sentence


def test_what_somebody_else_wrote_to_the_copy_is_refused(
    copy: Callable[..., Mirror], tmp_path: Path
) -> None:
    source, target = tmp_path / "source", tmp_path / "copy"
    writer = Writer(source, topic="t")
    writer.write(0, rows(["a", "b"]))
    copy(source, "t")
    copy(source, "t", checkpoint="another")
    Writer(target, topic="t", name="else").write(0, rows(["x"]))
    set_bounds([str(source)], {T0: Bounds(0, 3)})
    writer.write(1, rows(["c"]))
    said = refused(copy, source, "t")
    assert said.startswith("t-0 ends at offset 3 in the copy ")
    assert "and was copied up to 2: somebody else has written to it. Nothing was written" in said
    assert [row["value"] for row in contents(target, "t")] == [b"a", b"b", b"x"]
    alter([str(target)], "t", partitions=2)
    with pytest.raises(OptionError, match="'t' has 2 partitions in TO and 1 in FROM"):
        copy(source, "t")


def test_a_recreated_topic_that_is_longer_is_refused_and_rebuilt(
    copy: Callable[..., Mirror], tmp_path: Path
) -> None:
    source, target = tmp_path / "source", tmp_path / "copy"
    Writer(source, topic="t").write(0, rows(["a", "b"]))
    copy(source, "t")
    delete([str(source)], "t")
    Writer(source, topic="t", name="new").write(0, rows(["x", "y", "z"]))
    assert "the copy" in refused(copy, source, "t")
    assert [row["value"] for row in contents(target, "t")] == [b"a", b"b"]
    copy(source, "t", rebuild=True)
    check(source, target, "t")


def test_rows_that_the_copy_holds_are_left_out_when_a_checkpoint_is_older(
    copy: Callable[..., Mirror], tmp_path: Path
) -> None:
    source, target = tmp_path / "source", tmp_path / "copy"
    writer = Writer(source, topic="t", numPartitions="2")
    writer.write(0, rows(["a", "b"], partitions=[0, 1]))
    copy(source, "t")
    shutil.copytree(tmp_path / "c", tmp_path / "older")
    writer.write(1, rows(["c", "d"], partitions=[0, 0]))
    copy(source, "t")
    writer.write(2, rows(["e", "f"], partitions=[1, 0]))
    copy(source, "t", checkpoint="older")
    check(source, target, "t")


def test_what_was_deleted_before_it_was_read_is_a_loss_that_is_told(
    copy: Callable[..., Mirror], tmp_path: Path
) -> None:
    source, target = tmp_path / "source", tmp_path / "copy"
    writer = Writer(source, topic="t")
    writer.write(0, rows(["a", "b"]))
    copy(source, "t")
    writer.write(1, rows(["c", "d", "e"]))
    delete_records([str(source)], {T0: 4})
    assert "t-0" in refused(copy, source, "t")
    copy(source, "t", options={**COMMITTED, "failOnDataLoss": "false"})
    check(source, target, "t")
    assert bounds(target, "t") == {"t-0": (4, 5)}
