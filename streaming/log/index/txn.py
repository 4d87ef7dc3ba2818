"""The index of aborted transactions of a segment: ``%020d.txnindex``.

Entries of 34 bytes, big-endian, one for each ABORT marker in the segment that ended a transaction
with records in this partition, in the order of the markers:

====  ====  ================  ==============================================================
byte  size  field             meaning
====  ====  ================  ==============================================================
0     2     version           0
2     8     producerId        whose transaction it was
10    8     firstOffset       base offset of its first batch; may lie in an earlier segment
18    8     lastOffset        of the marker
26    8     lastStableOffset  when it was written: the first offset of the oldest other
                              transaction that was open then, else lastOffset + 1
====  ====  ================  ==============================================================

Every transaction that started below an entry's last stable offset had ended when the entry was
written. So no later entry is about an abort below it.

The file exists only where something was aborted. A file that was lost looks like one that was never
needed: whoever must be sure reads the log.

Source: Kafka ``TransactionIndex``, ``AbortedTxn``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kafkalog.errors import CorruptIndexError
from kafkalog.files.closing import Closing
from kafkalog.files.opening import open_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy.typing as npt

    Entries = npt.NDArray[np.int64]

__all__ = ["TXN_ENTRY", "AbortedTransaction", "TxnIndex"]

TXN_ENTRY: Final[np.dtype[np.void]] = np.dtype(
    [
        ("version", ">i2"),
        ("producer_id", ">i8"),
        ("first_offset", ">i8"),
        ("last_offset", ">i8"),
        ("last_stable_offset", ">i8"),
    ]
)

_BLOCK_ENTRIES: Final = 2048
"""Entries read at once: a segment may have hundreds of thousands."""

_FIELDS: Final = TXN_ENTRY.names[1:] if TXN_ENTRY.names else ()


class AbortedTransaction(NamedTuple):
    """One entry; the order of the fields is that of the columns of :meth:`TxnIndex.blocks`."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TxnIndex(Closing):
    """One open index of aborted transactions; ``len()`` is the number of its entries.

    Entries that a broker adds later are not seen. Not thread safe, not picklable. Use it as a
    context manager, or :meth:`close` it. It does not check that the entries agree with the log.
    """

    def __init__(self, path: Path, base_offset: int) -> None:
        """Open ``path``, the index of the segment with ``base_offset``.

        Raises:
            FileNotFoundError: there is no such file.
            CorruptIndexError: it ends inside an entry.
            LogDirectoryError: a link, FIFO or device.
        """
        self.path = path
        self.base_offset = base_offset
        self._file = open_file(path)
        size = self._file.size
        self._entries, torn = divmod(size, TXN_ENTRY.itemsize)
        if torn:
            self.close()
            raise CorruptIndexError(
                f"{path}: {size} bytes are {self._entries} entries of {TXN_ENTRY.itemsize} bytes "
                f"and {torn} bytes of another: a broker or a copy stopped while writing it"
            )

    def __len__(self) -> int:
        return self._entries

    def close(self) -> None:
        """Close the file; closing twice does no harm."""
        self._file.close()

    def check(self) -> None:
        """Read all entries, to be sure of them before the first one is relied upon.

        Raises:
            CorruptIndexError: see :meth:`blocks`.
        """
        for _ in self.blocks():
            pass

    def blocks(self) -> Iterator[Entries]:
        """Read the entries, some at a time.

        Yields:
            int64[n, 4], the fields of :class:`AbortedTransaction` as columns.

        Raises:
            CorruptIndexError: entries that no broker writes, or the file has become shorter.
        """
        last_offset = self.base_offset - 1
        for slot in range(0, self._entries, _BLOCK_ENTRIES):
            entries = self._read(slot, min(_BLOCK_ENTRIES, self._entries - slot))
            self._check(entries, slot, last_offset)
            block = np.stack([entries[name] for name in _FIELDS], axis=1).astype(np.int64)
            last_offset = int(block[-1, 2])
            yield block

    def __iter__(self) -> Iterator[AbortedTransaction]:
        """Walk over the entries; raises what :meth:`blocks` raises."""
        for block in self.blocks():
            yield from (AbortedTransaction(*row) for row in block.tolist())

    def _read(self, slot: int, count: int) -> npt.NDArray[np.void]:
        size = TXN_ENTRY.itemsize
        data = self._file.read(slot * size, count * size)
        if len(data) < count * size:
            raise CorruptIndexError(
                f"{self.path}: ends inside entry {slot + len(data) // size}, it had "
                f"{self._entries} when it was opened: a broker has truncated it meanwhile"
            )
        return data.view(TXN_ENTRY)

    def _check(self, entries: npt.NDArray[np.void], slot: int, last_offset: int) -> None:
        first, last = entries["first_offset"], entries["last_offset"]
        stable = entries["last_stable_offset"]
        # Comparisons only: adding one to a damaged offset may overflow.
        wrong = (entries["version"] != 0) | (entries["producer_id"] < 0)
        wrong |= (first < 0) | (first >= last) | (stable < 0) | (stable - 1 > last)
        wrong |= last <= np.concatenate(([last_offset], last[:-1]))
        if wrong.any():
            number = int(wrong.argmax())
            shown = ", ".join(f"{name} {entries[number][name]}" for name in TXN_ENTRY.names or ())
            raise CorruptIndexError(
                f"{self.path}: entry {slot + number} is none that a broker writes there: {shown}; "
                f"the segment's base offset is {self.base_offset}, the marker before is at "
                f"{last_offset if number == 0 else last[number - 1]}"
            )
