"""A broker is killed at each step of a transaction: what was decided is what is taken over."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Final

import confluent_kafka
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient
from tests.support.kafka import Broker, Topic
from tests.support.killed_transactions import (
    INTERNAL_PARTITIONS,
    Step,
    leave_only,
    produce_with_java,
    produce_with_librdkafka,
    steps,
    wait_until_complete,
    wait_until_ended,
)

from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.broker.handover import hand_over, take_over
from kafkalog.streaming.api import read
from kafkalog.streaming.groups.group_commits import GroupCommits
from kafkalog.streaming.store.policy import SetPolicy

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = pytest.mark.interop

SECONDS: Final = 60
SETTINGS: Final = {
    "offsets.topic.num.partitions": str(INTERNAL_PARTITIONS),
    "transaction.state.log.num.partitions": str(INTERNAL_PARTITIONS),
}
ALL: Final = bool(os.environ.get("KAFKALOG_TRANSACTION_STEPS"))
"""Whether all steps are tried, with clients of both transaction versions (``make nightly``)."""

Outcome = tuple[list[tuple[int, bytes]], int | None]
"""What readers of committed records see of a topic, and where its group stands."""


def test_each_partition_ends_as_the_coordinator_had_decided_when_the_broker_was_killed(
    tmp_path: Path,
) -> None:
    chosen = steps("v1", few=not ALL)
    java = steps("v2", chosen) if ALL else []
    image = tmp_path / "image"
    with Broker(tmp_path / "broker", log_dirs=[image], settings=SETTINGS) as broker:
        names = [step.transactional_id for step in (*chosen, *java)]
        broker.create_topics(*(Topic(name, 2) for name in names), Topic("in"))
        broker.produce("in", [(None, b"%d" % n) for n in range(9)])
        produce_with_librdkafka(broker.bootstrap, chosen)
        if java:
            produce_with_java(broker.bootstrap, java, tmp_path)
        wait_until_complete(image, [*chosen, *java])
        broker.kill()
    for step in (*chosen, *java):
        leave_only(image, step)
    shutil.copytree(image, tmp_path / "judged")
    expected = {step.transactional_id: decided(step) for step in (*chosen, *java)}

    assert len(take_over([str(image)]).problems) > len(chosen)
    forecast = take_over([str(image)], aborts_open=True, dry_run=True)
    done = take_over([str(image)], aborts_open=True)
    assert (forecast.problems, done.problems) == ([], [])
    assert (forecast.aborted, forecast.committed) == (done.aborted, done.committed)
    found = {step.transactional_id: taken_over(image, step) for step in (*chosen, *java)}
    assert found == expected
    again = take_over([str(image)], aborts_open=True)
    assert (again.problems, again.aborted, again.committed) == ([], [], [])

    assert judged(tmp_path, tmp_path / "judged", [*chosen, *java]) == expected
    if ALL:  # and a broker that gets what was taken over writes its markers once more
        assert hand_over([str(image)]).problems == []
        assert judged(tmp_path, image, [*chosen, *java]) == expected


def decided(step: Step) -> Outcome:
    rows = [(0, b"before"), (1, b"before")]
    if step.end != "commit":
        return rows, 3
    return sorted([*rows, (0, b"in it"), (1, b"in it")]), 6


def taken_over(log_dir: Path, step: Step) -> Outcome:
    options = {"kafka.isolation.level": "read_committed"}
    rows = read(str(log_dir), step.transactional_id, options=options).read_all().to_pydict()
    policy = SetPolicy(allows_broker=True)
    at = GroupCommits([log_dir], step.group, policy).look().positions
    return sorted(zip(rows["partition"], rows["value"], strict=True)), at.get(IN)


IN: Final = TopicPartition("in", 0)


def judged(tmp_path: Path, log_dir: Path, chosen: Sequence[Step]) -> dict[str, Outcome]:
    """Return what a broker makes of a copy, whose producers come back where nothing was decided."""
    home = tmp_path / f"judge of {log_dir.name}"
    with Broker(home, log_dirs=[log_dir], settings=SETTINGS) as broker:
        broker.wait_for_leaders(*(Topic(step.transactional_id, 2) for step in chosen))
        for step in chosen:
            if step.end == "open":  # its coordinator aborts what it fences
                settings = {
                    "bootstrap.servers": broker.bootstrap,
                    "transactional.id": step.transactional_id,
                    "log_level": 0,
                }
                confluent_kafka.Producer(settings).init_transactions(SECONDS)
        keys = [TopicPartition(step.transactional_id, n) for step in chosen for n in (0, 1)]
        wait_until_ended(broker.bootstrap, keys)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        return {step.transactional_id: served(broker, admin, step) for step in chosen}


def served(broker: Broker, admin: AdminClient, step: Step) -> Outcome:
    rows = broker.consume_all(step.transactional_id, isolation="read_committed")
    asked = [ConsumerGroupTopicPartitions(step.group)]
    (future,) = admin.list_consumer_group_offsets(asked, require_stable=True).values()
    at = {each.topic: each.offset for each in future.result(SECONDS).topic_partitions}
    return [(each.partition, each.value or b"") for each in rows], at.get("in")
