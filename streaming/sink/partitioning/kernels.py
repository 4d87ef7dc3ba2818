"""The loop that spreads records without a key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kafkalog.streaming.records.jit.kernel import kernel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kafkalog.streaming.records.arrow_buffers import Integers

# What is carried from batch to batch, int64[2].
PARTITION: Final = 0  # where the next record goes
APPENDED: Final = 1  # bytes that went there since it was chosen


@kernel("void", "const int64[]", "const int64[]", "int64", "int64", "int64[]", "int32[]")
def stay_and_move(
    rows: Integers,
    sizes: Integers,
    partitions: int,
    stretch_bytes: int,
    carried: Integers,
    placed: NDArray[np.int32],
) -> None:
    """Place ``rows``: stay on a partition for ``stretch_bytes``, then take the next one.

    ``placed[row]`` is set for each of ``rows``, whose ``sizes`` are bytes; rows that lie outside of
    ``placed`` are passed over.
    """
    count = min(rows.shape[0], sizes.shape[0])
    if carried.shape[0] < 2 or partitions < 1:
        return
    for i in range(count):
        if carried[APPENDED] >= stretch_bytes:
            carried[PARTITION] = (carried[PARTITION] + 1) % partitions
            carried[APPENDED] = 0
        carried[APPENDED] += sizes[i]
        row = rows[i]
        if 0 <= row < placed.shape[0]:
            placed[row] = carried[PARTITION]
