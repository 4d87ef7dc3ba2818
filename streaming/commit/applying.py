"""The bytes of a commit: appended, and made durable where that is asked for."""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING

from kafkalog.files.parallel import FileSyncer, for_each, sync_and_close
from kafkalog.files.regular import fsync_directory
from kafkalog.files.shield import check_interrupt
from kafkalog.streaming.commit.append import PartitionAppend
from kafkalog.streaming.commit.staging.staged_source import StagedFiles
from kafkalog.streaming.store.clearing import WrittenEnd, write_ends
from kafkalog.streaming.store.recovery_points import sync_up_to

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.commit.replication import Replication
    from kafkalog.streaming.log.append.appender import AppendPlan

__all__ = ["apply", "made_partitions", "tell_ends", "written_end"]


def apply(
    directories: Sequence[Path], appends: Sequence[PartitionAppend], replication: Replication
) -> None:
    """Do what is planned; staged runs count in ``directories``.

    Of several nodes one after the other is written to. One on which a call fails is out.

    Raises:
        OSError: a call failed on the only node.
        NotEnoughReplicasError: too few nodes are left.
        CommitError: a staged file of the only node is gone, or its bytes are not what the task
            wrote.
    """
    with closing(StagedFiles(directories)) as files:
        for of_node in replication.by_node(appends):
            with replication.apart(of_node):
                _apply(files, of_node)


def _apply(files: StagedFiles, appends: Sequence[PartitionAppend]) -> None:
    _append_all(files, appends)
    for_each(PartitionAppend.sync, [each for each in appends if each.makes_or_seals])
    for folder in _parents_of_new(appends):
        fsync_directory(folder)
    sync_up_to(
        each.held_before for each in appends if each.is_durable and not each.plan.creates_directory
    )


def _append_all(files: StagedFiles, appends: Sequence[PartitionAppend]) -> None:
    long = [each for each in appends if each.is_long]
    for_each(lambda each: each.apply(files, sync_and_close if each.is_durable else os.close), long)
    with FileSyncer() as syncer:
        for each in appends:
            if not each.is_long:
                check_interrupt()
                each.apply(files, syncer.add if each.is_durable else os.close)


def _parents_of_new(appends: Iterable[PartitionAppend]) -> list[Path]:
    return sorted({each.plan.directory.parent for each in appends if each.plan.creates_directory})


def tell_ends(
    appends: Sequence[PartitionAppend], replication: Replication, *, durable: bool
) -> None:
    """Write the new ends of partitions into Kafka's checkpoint files, once they are published."""
    for of_node in replication.by_node(appends):
        with replication.apart(of_node):
            write_ends([written_end(each.plan) for each in of_node], durable=durable)


def written_end(plan: AppendPlan) -> WrittenEnd:
    """Return the end of a partition after its append."""
    log_dir = plan.directory.parent
    return WrittenEnd(log_dir, plan.topic_partition, plan.end_offset)


def made_partitions(appends: Sequence[PartitionAppend]) -> set[TopicPartition]:
    """Return the partitions whose folders are made."""
    return {each.plan.topic_partition for each in appends if each.plan.creates_directory}
