"""Set the leader epochs of a log down: a cluster that gets it must know none above its own.

A broker takes the epochs of its cluster for the highest there are. A leader whose log has a higher
one throws away what its checkpoint says of it, and cannot append; its followers leave the in-sync
set (tried with Kafka 4.1, see docs/replicas.md).

The epoch of a batch lies outside its checksum: 4 bytes at byte 12 of the header, from magic 2 on.
Message sets of older magics have none. An epoch may not change which batches there are, nor their
positions: so replicas that were equal are equal again once all of them are set down alike.

Source: Kafka ``DefaultRecordBatch``, ``LeaderEpochFileCache``.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.broker import LeaderEpoch, read_leader_epochs, write_leader_epochs
from kafkalog.errors import CorruptRecordError
from kafkalog.files.local_file import read_at
from kafkalog.files.regular import open_regular, write_all
from kafkalog.files.shield import check_interrupt
from kafkalog.streaming.log.files import LOG, file_name
from kafkalog.streaming.log.segment_files import list_base_offsets
from kafkalog.streaming.records.batch_layout import (
    LEADER_EPOCH_POSITION,
    OVERHEAD,
    PREFIX,
    PREFIX_SIZE,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["set_epochs_down"]

_EPOCH: Final = struct.Struct(">i")
_PIECE_BYTES: Final = 1 << 20


def set_epochs_down(folder: Path, most: int) -> int:
    """Let no batch and no line of the checkpoint in a partition's folder have an epoch above this.

    Return how many batches had one. What is cut off can be done again.

    REQUIRES: the locks are held, and the log ends in a whole batch. The caller makes it durable.

    Raises:
        CorruptRecordError: a batch is damaged.
        CheckpointError: the checkpoint is.
        OSError: a file cannot be read or written.
    """
    changed = 0
    for base in list_base_offsets(folder):
        check_interrupt()
        changed += _set_down(folder / file_name(base, LOG), most)
    epochs = read_leader_epochs(folder)
    if epochs and epochs[-1].epoch > most:
        write_leader_epochs(folder, _lowered(epochs, most))
    return changed


def _lowered(epochs: Sequence[LeaderEpoch], most: int) -> list[LeaderEpoch]:
    """Return the epochs with those above ``most`` as one, which begins with the first of them."""
    kept = [each for each in epochs if each.epoch < most]
    above = [each.start_offset for each in epochs if each.epoch >= most]
    return [*kept, *(LeaderEpoch(most, start) for start in above[:1])]


def _set_down(path: Path, most: int) -> int:
    changed = 0
    file = open_regular(path, os.O_RDWR)
    try:
        size, position, piece, begin = os.fstat(file).st_size, 0, b"", 0
        while position + PREFIX_SIZE <= size:
            if position + PREFIX_SIZE > begin + len(piece):
                begin, length = position, min(_PIECE_BYTES, size - position)
                piece = bytes(read_at(file, begin, length).data)
            _, left, magic = PREFIX.unpack_from(piece, position - begin)
            (epoch,) = _EPOCH.unpack_from(piece, position - begin + LEADER_EPOCH_POSITION)
            if left < PREFIX_SIZE - OVERHEAD:
                raise CorruptRecordError(f"{path}: the batch at position {position} has no size")
            if magic >= 2 and epoch > most:
                write_all(file, _EPOCH.pack(most), position + LEADER_EPOCH_POSITION)
                changed += 1
            position += OVERHEAD + left
    finally:
        os.close(file)
    return changed
