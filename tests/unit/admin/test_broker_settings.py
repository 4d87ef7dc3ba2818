"""What takeover makes of the settings that a cluster gave to its topics."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support import cluster_records
from tests.support.corpus import UnpackedCase
from tests.support.logs import Row, batch_bytes, write_segment
from tests.support.sinking import Writer, rows

from kafkalog.checkpoints.broker import write_topic_id
from kafkalog.checkpoints.state_file import load_state
from kafkalog.jobs.inspection.topics import describe_partitions, list_topics
from kafkalog.model import TopicSelection
from kafkalog.streaming.admin.broker.handover import hand_over, take_over
from kafkalog.streaming.admin.recovery import recover
from kafkalog.streaming.admin.retention import retain
from kafkalog.streaming.store.policy import SetPolicy
from kafkalog.streaming.store.session import opened_set

if TYPE_CHECKING:
    from collections.abc import Mapping

UNKNOWN = {"remote.storage.enable": "false", "later.setting": "x", "segment.ms": "one week"}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Give a real broker's directory with limits of some topics."""
    return Path(UnpackedCase("p08-retention-deleterecords", tmp_path).path)


def settings_of(log: Path) -> dict[str, Mapping[str, str]]:
    state = load_state(log)
    assert state is not None
    return {topic.name: topic.settings for topic in state.topics.values()}


def give(log: Path, name: str, settings: Mapping[str, str]) -> None:
    """Give settings to a topic, as one who alters it does."""
    with opened_set([log], SetPolicy(allows_broker=True), holder="a test") as log_set:
        topics = {
            key: replace(topic, settings={**topic.settings, **settings})
            if topic.name == name
            else topic
            for key, topic in log_set.state.topics.items()
        }
        log_set.publish(log_set.state.following(topics=topics))


def with_limit(log: Path) -> str:
    return next(name for name, given in settings_of(log).items() if "retention.ms" in given)


def test_a_takeover_takes_the_settings_of_topics_and_says_so(log: Path) -> None:
    said = take_over([str(log)], dry_run=True).written
    assert load_state(log) is None
    assert take_over([str(log)]).written == said
    found = settings_of(log)
    assert any("has the settings file.delete.delay.ms=500" in line for line in said)
    assert found[with_limit(log)]["retention.ms"] == "3600000"


def test_what_was_given_here_since_is_not_undone_by_another_takeover(log: Path) -> None:
    take_over([str(log)])
    name = with_limit(log)
    give(log, name, {"retention.ms": "-1"})
    assert take_over([str(log)]).written == []
    assert settings_of(log)[name]["retention.ms"] == "-1"


def test_the_format_that_messages_have_here_stays(log: Path) -> None:
    take_over([str(log)])
    name = with_limit(log)
    give(log, name, {"message.format": "v1"})
    with opened_set([log], SetPolicy(allows_broker=True), holder="a test") as log_set:
        log_set.publish(replace(log_set.state.following(), metadata_end=1))
    take_over([str(log)])
    found = settings_of(log)[name]
    assert (found["message.format"], found["retention.ms"]) == ("v1", "3600000")


def test_without_metadata_settings_stay_and_one_warning_says_so(
    log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.rmtree(log / "__cluster_metadata-0")
    take_over([str(log)])
    assert set(map(len, settings_of(log).values())) == {0}
    assert "tells the settings of its topics" in caplog.text
    caplog.clear()
    take_over([str(log)])
    done = retain([str(log)])
    assert done.partitions == [] or all(not each.segments for each in done.partitions)
    assert all("--config" in done.left_alone[name] for name in done.left_alone if name[0] != "_")


def test_metadata_that_cannot_be_read_changes_nothing_and_is_named(
    log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    take_over([str(log)])
    before = settings_of(log)
    segment = log / "__cluster_metadata-0" / f"{0:020d}.log"
    (log / "__cluster_metadata-0" / f"{7:020d}.log").write_bytes(segment.read_bytes())
    segment.unlink()
    take_over([str(log)])
    assert settings_of(log) == before
    assert "no snapshot reaches so far" in caplog.text


def test_a_broker_without_kraft_and_our_own_directories_are_taken_as_they_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Writer(tmp_path, topic="t", segment__bytes="500").write(0, rows(["a"]))
    take_over([str(tmp_path)])
    assert settings_of(tmp_path) == {"t": {"segment.bytes": "500"}}
    assert "settings of" not in caplog.text


def test_settings_that_are_not_known_stop_no_command_and_stay(log: Path) -> None:
    take_over([str(log)])
    name = with_limit(log)
    give(log, name, {**UNKNOWN, "retention.bytes": "many"})
    before = settings_of(log)[name]
    described = describe_partitions([str(log)], TopicSelection.of(name))
    assert all(row["settings"] == before for row in described)
    assert {row["retention"] for row in described} == {"keeps everything"}
    done = retain([str(log)])
    assert "retention.bytes is 'many'" in done.left_alone[name]
    assert recover([str(log)]).problems == []
    writer = Writer(log, topic=name, allowBrokerDirectory="true")
    writer.write(0, rows(["more"]))
    assert hand_over([str(log)]).problems == []
    assert take_over([str(log)]).problems == []
    assert settings_of(log)[name] == before


def test_topics_of_a_broker_are_listed_with_the_settings_of_its_cluster(tmp_path: Path) -> None:
    ids = ("AAECAwQFBgcICQoLDA0ODw", "AAECAwQFBgcICQoLDA0OEA")
    made = [cluster_records.topic(name, key) for name, key in zip("tu", ids, strict=True)]
    given = b"\x01\x04\x00\x02\x02t\x0dretention.ms\x025\x00"
    led = cluster_records.partition(ids[0], 0, [2, 1])
    brokers = [cluster_records.registered(number, 9) for number in (1, 2)]
    log = cluster_records.write_metadata(tmp_path, *made, given, led, *brokers)
    for name, key in zip("tu", ids, strict=True):
        write_segment(log / f"{name}-0", 0, batch_bytes(0, [Row()]))
        if name == "u":
            write_topic_id(log / "u-0", key)
    settings = {"t": {"retention.ms": "5"}, "u": {}}
    listed = list_topics([str(log)])
    assert {row["topic"]: row["settings"] for row in listed} == settings
    assert tuple(row["topicId"] for row in listed) == ids
    first, second = describe_partitions([str(log)])
    assert (first["settings"], second["settings"]) == (settings["t"], {})
    assert [first[name] for name in ("topicId", "leader", "isr")] == [ids[0], 2, [2, 1]]
    assert second["topicId"] == ids[1]
