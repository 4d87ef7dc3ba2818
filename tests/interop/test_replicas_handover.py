"""Three nodes of ours become those of three brokers of one cluster, and ours again."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Final

import pytest
from tests.support.dump_log import dump_log_segments, partition_files
from tests.support.kafka_cluster import Cluster
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
from kafkalog.streaming.admin.broker.handover import hand_over, take_over
from kafkalog.streaming.admin.nodes.replicas import compare_replicas

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.kafka_cluster import NodeBroker

    from kafkalog.streaming.admin.recovery import RecoveryReport

pytestmark = pytest.mark.interop

PARTITIONS: Final = 6
ROWS: Final = 20
ALLOWED: Final = {"allowBrokerDirectory": "true"}
QUICK: Final = {"replica.lag.time.max.ms": "3000"}


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


def take(nodes: list[Path], cluster: Cluster) -> RecoveryReport:
    metadata = [str(broker.metadata) for broker in cluster.brokers]
    return take_over([path_of(nodes)], cluster_metadata=metadata)


def served(broker: NodeBroker) -> list[str]:
    found = broker.consume_all("t")
    return sorted((record.value or b"").decode() for record in found)


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
        for node, broker in zip(nodes, cluster.brokers, strict=True):
            shutil.copy(broker.log_dirs[0] / META_PROPERTIES, node)
            broker.use([node])

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

        # One dies, the others continue, then these die as well: one node is behind.
        cluster.brokers[2].kill()
        cluster.wait_until_in_sync("t", without=[3])
        cluster.brokers[1].produce("t", records[30:], over=PARTITIONS, acks="all")
        cluster.kill()
        sink.values += theirs

        # Ours again, with all that was acknowledged; and theirs once more.
        assert take(nodes, cluster).problems == []
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
        cluster.stop()
    for node in nodes:
        files = [path for path in partition_files(node) if path.parent.name.startswith("t-")]
        assert dump_log_segments([path for path in files if path.stat().st_size]).findings == []
    assert take(nodes, cluster).problems == []
    sink.commit()
    assert values(nodes) == sorted(sink.values)
    check_equal(nodes)
