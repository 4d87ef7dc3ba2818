"""Logs with the indexes that a broker would write, for tests of what indexes spare a reader."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from tests.support.logs import Row, batch_bytes, write_segment

from kafkalog.streaming.log.growth import index_segment
from kafkalog.streaming.records.batch import scan_batches

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["LOG_APPEND_TIME", "write_indexed_segment"]

LOG_APPEND_TIME = 8
"""The attribute bit."""


def write_indexed_segment(
    folder: Path,
    base_offset: int,
    batches: Sequence[tuple[Sequence[Row], int]],
    *,
    interval: int = 4096,
) -> int:
    """Write a segment of batches, each of rows and attributes, with both of its indexes.

    Gives the next offset.
    """
    offset, pieces = base_offset, []
    for rows, attributes in batches:
        pieces.append(batch_bytes(offset, rows, attributes=attributes))
        offset += len(rows)
    data = b"".join(pieces)
    path = write_segment(folder, base_offset, data)
    table = scan_batches(np.frombuffer(data, np.uint8)).table
    built = index_segment(base_offset, [table], interval)
    path.with_suffix(".index").write_bytes(built.index_entries)
    path.with_suffix(".timeindex").write_bytes(built.time_index_entries)
    return offset
