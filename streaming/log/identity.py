"""What tells a log from one that was compacted since: it may lack what took keys away."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkalog.files.remote_path import RemotePath
from kafkalog.streaming.log.segments import retrying

if TYPE_CHECKING:
    from kafkalog.streaming.log.partition_log import PartitionLog

__all__ = ["identity_of"]


def identity_of(log: PartitionLog) -> tuple[object, ...]:
    """Return another value once the log was compacted. Of a log in a store it is always the same.

    A cleaner replaces the segments from the first one on, but for the active one. So who goes on
    with what was read before begins anew where the value is another one.
    """
    if isinstance(log.directory, RemotePath):
        return ()
    return retrying(lambda: _stamp(log), log.refresh)


def _stamp(log: PartitionLog) -> tuple[object, ...]:
    found = [log.directory.stat(), *(each.path.stat() for each in log.segments[:1])]
    changed_ns = found[-1].st_ctime_ns if len(log.segments) > 1 else 0
    return *((each.st_dev, each.st_ino) for each in found), changed_ns
