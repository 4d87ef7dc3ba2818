"""As much of a broker as log directories can tell: it recovers, appends a record, and ends.

The real one is asked in ``tests/interop``; this one works on a simulated disk too.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
from tests.support.logs import Row, batch_bytes

from kafkalog.checkpoints.broker import (
    CLEAN_SHUTDOWN,
    HIGH_WATERMARK,
    META_PROPERTIES,
    RECOVERY_POINT,
    remove_clean_shutdown_marker,
    write_clean_shutdown_marker,
    write_offset_checkpoint,
)
from kafkalog.files.atomic import write_atomically
from kafkalog.files.regular import open_regular, write_all
from kafkalog.streaming.log.appender import BufferSource, PartitionAppender
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.log.recovery import recover_segment
from kafkalog.streaming.options.topic_settings import LogConfig
from kafkalog.streaming.records.batch import scan_batches
from kafkalog.streaming.store.log_dirs import LogDirs

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["run_broker"]

_INTERVAL = 4096


def run_broker(log_dir: Path, value: str, *, clean: bool) -> None:
    """Start, recover unless the last shutdown was clean, append ``value`` to the first partition.

    Then stop (``clean``), or be killed in the middle of another append.
    """
    write_atomically(log_dir / META_PROPERTIES, b"version=1\nnode.id=1\ncluster.id=x\n")
    partitions = LogDirs([log_dir]).partitions()
    if not (log_dir / CLEAN_SHUTDOWN).exists():
        for key, found in partitions.items():
            with PartitionLog(found.path, key) as log:
                bases = [segment.base_offset for segment in log.segments]
            for base in bases:
                recover_segment(found.path, base, index_interval_bytes=_INTERVAL)
    remove_clean_shutdown_marker(log_dir)
    key, first = next(iter(partitions.items()))
    appender = PartitionAppender(first.path, key, LogConfig(), now_ms=0)
    data = np.frombuffer(
        batch_bytes(appender.log_end_offset, [Row(value.encode())]), np.uint8
    ).copy()
    plan = appender.plan([scan_batches(data).table])
    # The default is bound before a disk is simulated.
    appender.apply(plan, [BufferSource(data)], os.close)
    if clean:
        ends = {}
        for each, found in partitions.items():
            with PartitionLog(found.path, each) as log:
                ends[each] = log.log_end_offset(verify_from=0)
        write_offset_checkpoint(log_dir, RECOVERY_POINT, ends)
        write_offset_checkpoint(log_dir, HIGH_WATERMARK, ends)
        write_clean_shutdown_marker(log_dir)
        return
    _tear(first.path, batch_bytes(appender.log_end_offset, [Row(b"torn")]))


def _tear(folder: Path, batch: bytes) -> None:
    """Append a part of a batch, as a kill leaves it."""
    path = max(path for path in folder.iterdir() if path.suffix == ".log")
    descriptor = open_regular(path, os.O_RDWR)
    write_all(descriptor, batch[: len(batch) // 2], os.fstat(descriptor).st_size)
    os.close(descriptor)
