"""Producer state snapshots: ``%020d.snapshot``, as far as a log without producers needs them.

====  ====  ========  ==================================================================
byte  size  field     meaning
====  ====  ========  ==================================================================
0     2     version   1
2     4     crc       CRC-32C of all that follows
6     4     count     entries of 46 bytes that follow: one for each producer
====  ====  ========  ==================================================================

A broker that starts replays the log from the newest snapshot; with an empty one it has nothing to
replay. One that is empty in spite of earlier producers would let their duplicates in and hide their
open transactions: it is written only where batches prove that there are none, and left out else.

Source: Kafka ``ProducerStateManager``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.regular_file import read_regular
from kafkalog.errors import LogDirectoryError
from kafkalog.model import NO_PRODUCER_ID
from kafkalog.streaming.log.files import SNAPSHOT, file_name, parse_base_offset

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kafkalog.streaming.log.segment import LogSegment

__all__ = ["EMPTY_SNAPSHOT", "list_snapshots", "never_had_producers"]

EMPTY_SNAPSHOT: Final = bytes.fromhex("0001 48674bc7 00000000")


def list_snapshots(directory: Path) -> list[int]:
    """List the offsets of a partition's snapshots, ascending."""
    names = (path.name for path in directory.iterdir())
    return sorted(
        offset for name in names if (offset := parse_base_offset(name, SNAPSHOT)) is not None
    )


def never_had_producers(directory: Path, segments: Sequence[LogSegment]) -> bool:
    """Tell whether no batch carries a producer id, by the newest snapshot and the batches since.

    Costs a walk over the batch headers since that snapshot, which is one segment at most in a log
    that rolled with snapshots.
    """
    snapshots = list_snapshots(directory)
    since = snapshots[-1] if snapshots else segments[0].base_offset
    if snapshots and not _is_empty(directory / file_name(since, SNAPSHOT)):
        return False
    if not snapshots and len(segments) > 1:
        return False
    return not any(
        _has_producers(segment, since)
        for segment, follower in zip(segments, [*segments[1:], None], strict=True)
        if follower is None or follower.base_offset > since
    )


def _is_empty(path: Path) -> bool:
    try:
        return read_regular(path, limit=len(EMPTY_SNAPSHOT)) == EMPTY_SNAPSHOT
    except LogDirectoryError:
        return False


def _has_producers(segment: LogSegment, since: int) -> bool:
    with segment:
        headers = segment.headers(segment.floor_position(since))
        return any(header.producer_id != NO_PRODUCER_ID for header in headers)
