"""Three nodes of ours become those of three brokers of one cluster, and ours again."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING, Final

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient
from tests.support.dump_log import dump_log_segments, partition_files
from tests.support.kafka_cluster import Cluster
from tests.support.killed_transactions import (
    INTERNAL_PARTITIONS,
    leave_only,
    produce_with_librdkafka,
    steps,
    wait_until_complete,
)
from tests.support.replicated import (
    append,
    check_equal,
    check_in_sync,
    newest_state,
    path_of,
    values,
)

from kafkalog.checkpoints.broker import META_PROPERTIES, read_leader_epochs
from kafkalog.errors import LogDirectoryError
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.broker.handover import hand_over, take_over
from kafkalog.streaming.admin.nodes.replicas import compare_replicas
from kafkalog.streaming.groups.group_commits import GroupCommits
from kafkalog.streaming.store.policy import SetPolicy

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.kafka_cluster import NodeBroker
    from tests.support.killed_transactions import Step

    from kafkalog.streaming.admin.recovery import RecoveryReport

pytestmark = pytest.mark.interop

PARTITIONS: Final = 6
ROWS: Final = 20
ALLOWED: Final = {"allowBrokerDirectory": "true"}
QUICK: Final = {
    "replica.lag.time.max.ms": "3000",
    "offsets.topic.num.partitions": str(INTERNAL_PARTITIONS),
    "transaction.state.log.num.partitions": str(INTERNAL_PARTITIONS),
}
STEPS: Final = [
    step
    for step in steps("v1", few=True)
    if step.name in {"sent-offsets", "commit-marked-1-and-offsets", "commit-prepared"}
]
"""Transactions amid which the cluster is killed."""


class Sink:
    """Our writer, which writes its next batch each time, and all values that are to be there."""

    def __init__(self, nodes: list[Path]) -> None:
        self.nodes = nodes
        self.batches = 0
        self.values: list[str] = []

    def commit(self) -> None:
        rows = [f"{self.batches}/{number}" for number in range(ROWS)]
        options = {"numPartitions": str(PARTITIONS)} | ALLOWED
        append(self.nodes, self.batches, rows, **options)
        self.batches += 1
        self.values += rows

    def commit_without(self, node: Path) -> None:
        """Commit while a node is away, whose leaders change, and once more when it is back."""
        away = node.rename(node.with_suffix(".away"))
        self.commit()
        away.rename(node)
        self.commit()


def assigned(nodes: list[Path]) -> list[list[int]]:
    """Return the brokers of each partition: that of node 0 is 1."""
    (topic,) = newest_state(nodes).topics.values()
    return [[node + 1 for node in topic.replicas[n].replicas] for n in sorted(topic.replicas)]


def epochs(nodes: list[Path]) -> list[int]:
    (topic,) = newest_state(nodes).topics.values()
    return [topic.partitions[n].leader_epoch for n in sorted(topic.partitions)]


def give(nodes: list[Path], cluster: Cluster) -> RecoveryReport:
    metadata = [str(broker.metadata) for broker in cluster.brokers]
    return hand_over([path_of(nodes)], cluster_metadata=metadata)


def take(nodes: list[Path], cluster: Cluster, *, aborts_open: bool = False) -> RecoveryReport:
    metadata = [str(broker.metadata) for broker in cluster.brokers]
    return take_over([path_of(nodes)], cluster_metadata=metadata, aborts_open=aborts_open)


def use(nodes: list[Path], cluster: Cluster) -> None:
    for node, broker in zip(nodes, cluster.brokers, strict=True):
        shutil.copy(broker.log_dirs[0] / META_PROPERTIES, node)
        broker.use([node])


def served(broker: NodeBroker) -> list[str]:
    found = broker.consume_all("t")
    return sorted((record.value or b"").decode() for record in found)


def run_transactions(nodes: list[Path], cluster: Cluster, tmp_path: Path) -> None:
    """Let clients end transactions, and begin one; each partition has a replica on all nodes."""
    for name in ("in", *(step.transactional_id for step in STEPS)):
        cluster.create(name, [[1, 2, 3], [2, 3, 1]])
    bootstrap = cluster.brokers[1].bootstrap
    cluster.brokers[1].produce("in", [(None, b"%d" % n) for n in range(9)], acks="all")
    produce_with_librdkafka(bootstrap, STEPS)
    for step in STEPS:
        name = str(step.state_partition)
        (where,) = (node / name for node in nodes if (node / name).is_dir())
        (tmp_path / "states").mkdir(exist_ok=True)
        (tmp_path / "states" / name).symlink_to(where)
    wait_until_complete(tmp_path / "states", STEPS)
    deadline = time.monotonic() + 60
    while any(len({log_bytes(node, step) for node in nodes}) > 1 for step in STEPS):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def log_bytes(node: Path, step: Step) -> int:
    """Return how much of a step's topic a node has: a marker comes to followers a moment later."""
    return sum(each.stat().st_size for each in node.glob(f"{step.transactional_id}-*/*.log"))


def take_amid_transactions(nodes: list[Path], cluster: Cluster) -> None:
    for node in nodes:
        for step in STEPS:
            leave_only(node, step)
    assert any("is still open" in problem for problem in take(nodes, cluster).problems)
    assert take(nodes, cluster, aborts_open=True).problems == []
    check_transactions(nodes)


def committed(step: Step) -> list[str]:
    return ["before"] * 2 + ["in it"] * 2 * (step.end == "commit")


def check_transactions(nodes: list[Path]) -> None:
    """Readers of committed records see of each topic, and of its group, what was decided."""
    options = {"kafka.isolation.level": "read_committed"}
    for step in STEPS:
        assert values(nodes, step.transactional_id, options=options) == committed(step), step
        found = GroupCommits(nodes, step.group, SetPolicy(allows_broker=True)).look().positions
        assert found == {TopicPartition("in", 0): 6 if step.end == "commit" else 3}, step


def check_broker_agrees(broker: NodeBroker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for step in STEPS:
        found = broker.consume_all(step.transactional_id, isolation="read_committed")
        assert sorted((each.value or b"").decode() for each in found) == committed(step), step
        asked = [ConsumerGroupTopicPartitions(step.group)]
        (future,) = admin.list_consumer_group_offsets(asked, require_stable=True).values()
        (at,) = future.result(60).topic_partitions
        assert (at.topic, at.offset) == ("in", 6 if step.end == "commit" else 3), step


LATE_NEWS: Final = ("marked as failed", "has an older epoch", "doesn't exist in the leader node")
"""Complaints of a broker that hears of an election before, or after, another one does."""

ABOUT_LOGS: Final = ("ERROR", "FATAL", "WARN kafka.log.", "WARN org.apache.kafka.storage.")
"""How a complaint begins that may be of a log. Others are of connections, which a busy machine is
slow to make."""


def is_about_logs(line: str) -> bool:
    """Whether a complaint is more than that brokers hear of each other at different times."""
    return line.startswith(ABOUT_LOGS) and not any(text in line for text in LATE_NEWS)


def check_epochs(nodes: list[Path]) -> None:
    """The brokers have noted the same leader epochs, as far as there are records of them."""
    for number in range(PARTITIONS):
        found = [read_leader_epochs(node / f"t-{number}") for node in nodes]
        common = min(map(len, found))
        assert common > 0
        assert all(each[:common] == found[0][:common] for each in found), (number, found)


def test_three_brokers_get_three_nodes_and_give_them_back(tmp_path: Path) -> None:
    nodes = [tmp_path / name for name in "abc"]
    sink = Sink(nodes)
    sink.commit()
    for node in [*nodes, *nodes]:
        sink.commit_without(node)
    with Cluster(tmp_path / "brokers", settings=QUICK) as cluster:
        cluster.start()
        cluster.create("t", assigned(nodes), min__insync__replicas="2", segment__bytes="1048576")
        cluster.stop()
        use(nodes, cluster)

        # the cluster has elected each leader about once, we have more often
        before = epochs(nodes)
        done = give(nodes, cluster)
        assert done.problems == []
        assert any("are set down" in line for line in done.written)
        assert sum(epochs(nodes)) < sum(before)
        check_equal(nodes)
        with pytest.raises(LogDirectoryError, match="was handed over to the brokers"):
            sink.commit()

        # They agree, serve everything, and replicate on.
        cluster.start()
        cluster.wait_until_in_sync("t")
        for broker in cluster.brokers:
            assert served(broker) == sorted(sink.values)
            assert [line for line in broker.complaints() if is_about_logs(line)] == []
        theirs = [f"theirs {number}" for number in range(60)]
        records = [(None, value.encode()) for value in theirs]
        cluster.brokers[1].produce("t", records[:30], over=PARTITIONS, acks="all")
        cluster.wait_until_in_sync("t")
        check_epochs(nodes)
        run_transactions(nodes, cluster, tmp_path)

        # One dies, the others continue, then these die as well: one node is behind.
        cluster.brokers[2].kill()
        cluster.wait_until_in_sync("t", without=[3])
        cluster.brokers[1].produce("t", records[30:], over=PARTITIONS, acks="all")
        cluster.kill()
        sink.values += theirs

        # Ours again, with all that was acknowledged or decided; and theirs once more.
        take_amid_transactions(nodes, cluster)
        check_equal(nodes)
        check_in_sync(nodes)
        assert values(nodes) == sorted(sink.values)
        for node in nodes:
            sink.commit_without(node)
        assert [*compare_replicas([path_of(nodes)])] == []
        assert give(nodes, cluster).problems == []
        cluster.start()
        cluster.wait_until_in_sync("t")
        assert [served(broker) for broker in cluster.brokers] == [sorted(sink.values)] * 3
        check_broker_agrees(cluster.brokers[0])
        cluster.stop()
    for node in nodes:
        files = [path for path in partition_files(node) if path.parent.name.startswith("t-")]
        assert dump_log_segments([path for path in files if path.stat().st_size]).findings == []
    assert take(nodes, cluster).problems == []
    sink.commit()
    assert values(nodes) == sorted(sink.values)
    check_equal(nodes)
