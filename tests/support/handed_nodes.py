"""Nodes of a replicated set that brokers of one cluster are about to get, without any broker.

Node ``n`` is of broker ``n + 1``, which has formatted it, and the cluster has the topics of the set
with their replicas.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from tests.support.cluster_records import partition, registered, topic, write_metadata
from tests.support.logs import Row, append_batch, batch_bytes
from tests.support.replicated import append, newest_state, path_of

from kafkalog.checkpoints.broker import (
    META_PROPERTIES,
    LeaderEpoch,
    read_leader_epochs,
    write_leader_epochs,
)
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.broker.handover import hand_over, take_over
from kafkalog.streaming.admin.recovery import recover
from kafkalog.streaming.log.partition_log import PartitionLog

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kafkalog.streaming.admin.recovery import RecoveryReport

__all__ = [
    "BROKER_EPOCHS",
    "DIRECTORIES",
    "IDS",
    "append_as_broker",
    "commit_without",
    "epochs_in",
    "format_nodes",
    "give",
    "know",
    "take",
]

DIRECTORIES: Final = [f"{letter}QIDBAUGBwgJCgsMDQ4PEA" for letter in "BCDE"]
IDS: Final = {"t": "hpYgM1pPTfKkq0oFhDYc0w", "u": "rpYgM1pPTfKkq0oFhDYc0w"}
BROKER_EPOCHS: Final = {1: 11, 2: 12, 3: 13}


def format_nodes(nodes: Sequence[Path], *, cluster_id: str = "c") -> None:
    """Write what each broker has written into its log directory."""
    for number, node in enumerate(nodes):
        lines = {
            "version": 1,
            "cluster.id": cluster_id,
            "node.id": number + 1,
            "directory.id": DIRECTORIES[number],
        }
        text = "".join(f"{name}={value}\n" for name, value in lines.items())
        (node / META_PROPERTIES).write_text(text)


def know(
    folder: Path,
    nodes: Sequence[Path],
    *,
    epoch: int = 0,
    broker_of: Sequence[int] = (1, 2, 3),
    without: Sequence[str] = (),
) -> Path:
    """Write a copy of the cluster's metadata into a new folder, and return that."""
    records = [registered(broker, each) for broker, each in BROKER_EPOCHS.items()]
    for each in newest_state(nodes).topics.values():
        if each.name in without:
            continue
        topic_id = IDS[each.name]
        records.append(topic(each.name, topic_id))
        for number, replicas in each.replicas.items():
            brokers = [broker_of[node] for node in replicas.replicas]
            places = [DIRECTORIES[broker - 1] for broker in brokers]
            records.append(partition(topic_id, number, brokers, places, epoch=epoch))
    return write_metadata(folder, *records)


def give(nodes: Sequence[Path], *metadata: Path, dry_run: bool = False) -> RecoveryReport:
    """Hand the nodes over."""
    copies = [*map(str, metadata)]
    return hand_over([*_paths(nodes)], cluster_metadata=copies, dry_run=dry_run)


def take(nodes: Sequence[Path], *metadata: Path, dry_run: bool = False) -> RecoveryReport:
    """Take the nodes over again."""
    copies = [*map(str, metadata)]
    return take_over([*_paths(nodes)], cluster_metadata=copies, dry_run=dry_run)


def commit_without(nodes: Sequence[Path], node: Path, version: int, rows: Sequence[str]) -> None:
    """Commit while a node is away, so that others are elected, and bring it in sync again."""
    away = node.rename(node.with_suffix(".away"))
    append(nodes, version, rows)
    away.rename(node)
    recover([path_of(nodes)])


def append_as_broker(folder: Path, epoch: int, values: Sequence[str]) -> None:
    """Append a batch under a leader epoch to the log in a partition's folder, as a broker would."""
    with PartitionLog(folder, TopicPartition("t", 0)) as log:
        end = log.log_end_offset()
    batch = bytearray(batch_bytes(end, [Row(each.encode(), key=each.encode()) for each in values]))
    batch[12:16] = epoch.to_bytes(4, "big")
    append_batch(max(folder.glob("*.log")), bytes(batch))
    epochs = read_leader_epochs(folder)
    if not epochs or epochs[-1].epoch < epoch:
        write_leader_epochs(folder, [*epochs, LeaderEpoch(epoch, end)])


def epochs_in(folder: Path) -> set[int]:
    """Return the leader epochs of all batches in a partition's folder, and of its checkpoint."""
    found = {each.epoch for each in read_leader_epochs(folder)}
    for path in folder.glob("*.log"):
        data, position = path.read_bytes(), 0
        while position < len(data):
            size, epoch = struct.unpack_from(">ii", data, position + 8)
            found.add(epoch)
            position += 12 + size
    return found


def _paths(nodes: Sequence[Path]) -> list[str]:
    return [path_of(nodes)]
