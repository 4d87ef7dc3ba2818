"""Producer state snapshots: ``%020d.snapshot``, the state before the offset that names the file.

====  ====  ========  ==================================================================
byte  size  field     meaning
====  ====  ========  ==================================================================
0     2     version   1
2     4     crc       CRC-32C of all that follows
6     4     count     entries of 46 bytes that follow: one for each producer
====  ====  ========  ==================================================================

====  ====  ================  ==========================================================
byte  size  field of an entry meaning
====  ====  ================  ==========================================================
0     8     producerId
8     2     epoch
10    4     lastSequence      of its last batch of records; -1 none
14    8     lastOffset        the same; -1 none
22    4     offsetDelta       of that batch: last offset less base offset
26    8     timestamp         ms, of the last batch or marker
34    4     coordinatorEpoch  of the last marker; -1 none
38    8     txnFirstOffset    where the transaction that is open begins; -1 none
====  ====  ================  ==========================================================

A broker that starts replays the log from the newest snapshot; with an empty one it has nothing to
replay. An empty snapshot after earlier producers would let their duplicates in and hide their open
transactions. So it is written only where batches prove that there were no producers.

Source: Kafka ``ProducerStateManager``.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import numpy as np
from crc32c import crc32c

from kafkalog.errors import CheckpointError, LogDirectoryError
from kafkalog.files.regular import read_regular
from kafkalog.model import NO_PRODUCER_ID
from kafkalog.streaming.log.files import SNAPSHOT, file_name, parse_base_offset

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy.typing as npt

    from kafkalog.streaming.log.segment import LogSegment

__all__ = [
    "EMPTY_SNAPSHOT",
    "PRODUCER_ENTRY",
    "list_snapshots",
    "never_had_producers",
    "open_transactions",
    "read_snapshot",
    "snapshot_bytes",
]

EMPTY_SNAPSHOT: Final = bytes.fromhex("0001 48674bc7 00000000")

PRODUCER_ENTRY: Final[np.dtype[np.void]] = np.dtype(
    [
        ("producer_id", ">i8"),
        ("epoch", ">i2"),
        ("last_sequence", ">i4"),
        ("last_offset", ">i8"),
        ("offset_delta", ">i4"),
        ("timestamp", ">i8"),
        ("coordinator_epoch", ">i4"),
        ("txn_first_offset", ">i8"),
    ]
)

_HEAD: Final = struct.Struct(">hIi")
_VERSION: Final = 1
_CRC_START: Final = 6
_MAX_BYTES: Final = 256 << 20
"""Of a snapshot that is read: more than five million producers."""


def list_snapshots(directory: Path) -> list[int]:
    """List the offsets of a partition's snapshots, ascending."""
    names = (path.name for path in directory.iterdir())
    return sorted(
        offset for name in names if (offset := parse_base_offset(name, SNAPSHOT)) is not None
    )


def read_snapshot(path: Path) -> npt.NDArray[np.void]:
    """Read a snapshot.

    Returns:
        ``PRODUCER_ENTRY[n]``, big-endian as stored, one for each producer.

    Raises:
        FileNotFoundError: it is gone.
        LogDirectoryError: no regular file, or one that is unreasonably large.
        CheckpointError: another version, a wrong checksum or count, entries that contradict
            themselves.
    """
    data = read_regular(path, limit=_MAX_BYTES)
    if len(data) < _HEAD.size:
        raise CheckpointError(f"{path}: {len(data)} bytes are no producer snapshot: it has no head")
    version, crc, count = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise CheckpointError(f"{path}: version {version}, known is {_VERSION}")
    computed = crc32c(memoryview(data)[_CRC_START:])
    if computed != crc:
        raise CheckpointError(f"{path}: its checksum is {crc:#010x}, its bytes have {computed:#x}")
    if count * PRODUCER_ENTRY.itemsize != len(data) - _HEAD.size:
        raise CheckpointError(f"{path}: {count} entries do not make {len(data)} bytes")
    entries = np.frombuffer(data, PRODUCER_ENTRY, offset=_HEAD.size)
    wrong = (entries["producer_id"] < 0) | (entries["txn_first_offset"] < -1)
    if wrong.any():
        raise CheckpointError(f"{path}: entry {int(wrong.argmax())} has a negative id or offset")
    return entries


def snapshot_bytes(entries: npt.NDArray[np.void]) -> bytes:
    """Encode a snapshot of ``PRODUCER_ENTRY[n]``."""
    body = struct.pack(">i", len(entries)) + entries.tobytes()
    return _HEAD.pack(_VERSION, crc32c(body), len(entries)) + entries.tobytes()


def open_transactions(path: Path) -> dict[int, int]:
    """Return the transactions that are open in a snapshot: producer id to first offset.

    Raises:
        FileNotFoundError: it is gone.
        LogDirectoryError, CheckpointError: it cannot be used; see :func:`read_snapshot`.
    """
    entries = read_snapshot(path)
    entries = entries[entries["txn_first_offset"] >= 0]
    pairs = (entries[name].tolist() for name in ("producer_id", "txn_first_offset"))
    return dict(zip(*pairs, strict=True))


def never_had_producers(directory: Path, segments: Sequence[LogSegment]) -> bool:
    """Return whether no batch carries a producer id, by the newest snapshot and the batches since.

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
