"""Logs with transactions, written byte by byte: batches of producers, markers, what brokers add.

:class:`BrokerLog` appends as a broker does, and knows what a client then reads: by looking at the
whole log, with no regard to indexes.
"""

from __future__ import annotations

import gzip
import re
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from crc32c import crc32c
from tests.support.corpus import CORPUS
from tests.support.logs import Row, batch_bytes, write_segment

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

__all__ = [
    "ABORT",
    "COMMIT",
    "BrokerLog",
    "dumped_fields",
    "emptied",
    "index_bytes",
    "marker",
    "producer_batch",
    "snapshot_bytes",
    "state_record",
]

ABORT: Final = 0
COMMIT: Final = 1

_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20
_NO_OFFSET: Final = -1


def producer_batch(
    offset: int,
    count: int,
    producer: int,
    *,
    transactional: bool = True,
    attributes: int = 0,
    key: bytes | None = None,
    row: Row | None = None,
) -> bytes:
    """Encode a batch of a producer whose values are its offsets, or whose rows are one row."""
    rows = [row or Row(str(offset + n).encode(), key) for n in range(count)]
    attributes |= _TRANSACTIONAL if transactional else 0
    return _of_producer(batch_bytes(offset, rows, attributes=attributes), producer)


def marker(offset: int, producer: int, kind: int, *, key: bytes | None = None) -> bytes:
    """Encode a control batch as a transaction coordinator has it written."""
    row = Row(struct.pack(">hi", 0, 5), struct.pack(">hh", 0, kind) if key is None else key)
    attributes = _TRANSACTIONAL | _CONTROL
    return _of_producer(batch_bytes(offset, [row], attributes=attributes), producer)


def state_record(
    transactional_id: str,
    status: int,
    producer: int,
    epoch: int,
    partitions: Mapping[str, Sequence[int]],
    *,
    updated_ms: int = 1_700_000_000_000,
    version: int = 1,
) -> tuple[bytes, bytes]:
    """Encode key and value of a record in ``__transaction_state``.

    ``status`` is Kafka's code: 1 Ongoing, 2 and 3 prepared to commit and to abort, 4 and 5 done.
    ``version`` 2 is that of a client whose epoch is raised with each transaction.
    """
    name = transactional_id.encode()
    key = struct.pack(">hh", 0, len(name)) + name
    if version < 2:
        topics = b"".join(
            struct.pack(">h", len(topic)) + topic.encode() + struct.pack(f">i{len(n)}i", len(n), *n)
            for topic, n in partitions.items()
        )
        head = struct.pack(">hqhib", 0, producer, epoch, 60_000, status)
        return key, head + struct.pack(">i", len(partitions)) + topics + _times(updated_ms)
    topics = b"".join(
        bytes([len(topic) + 1]) + topic.encode() + struct.pack(f">b{len(n)}ib", len(n) + 1, *n, 0)
        for topic, n in partitions.items()
    )
    head = struct.pack(">hqhib", 1, producer, epoch, 60_000, status)
    tags = bytes([1, 2, 2]) + struct.pack(">h", version)
    return key, head + bytes([len(partitions) + 1]) + topics + _times(updated_ms) + tags


def _times(updated_ms: int) -> bytes:
    return struct.pack(">qq", updated_ms, updated_ms)


def emptied(batch: bytes) -> bytes:
    """Leave of a batch what the cleaner leaves when all its records go: the header."""
    head = bytearray(batch[:61])
    struct.pack_into(">i", head, 8, 61 - 12)
    struct.pack_into(">q", head, 27, -1)
    struct.pack_into(">i", head, 57, 0)
    return _sealed(head)


def _of_producer(batch: bytes, producer: int) -> bytes:
    owned = bytearray(batch)
    struct.pack_into(">qh", owned, 43, producer, 0)
    return _sealed(owned)


def _sealed(batch: bytearray) -> bytes:
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return bytes(batch)


def index_bytes(*entries: tuple[int, int, int, int]) -> bytes:
    """Encode a ``.txnindex``: producer id, first offset, marker's offset, last stable offset."""
    return b"".join(struct.pack(">hqqqq", 0, *entry) for entry in entries)


def snapshot_bytes(opened: dict[int, int], others: Iterable[int] = ()) -> bytes:
    """Encode a producer snapshot: open transactions, and producers without one."""
    entries = [*opened.items(), *((producer, _NO_OFFSET) for producer in others)]
    body = struct.pack(">i", len(entries)) + b"".join(
        struct.pack(">qhiqiqiq", producer, 0, -1, -1, 0, 1_700_000_000_000, 5, first)
        for producer, first in entries
    )
    return struct.pack(">hI", 1, crc32c(body)) + body


def dumped_fields(case: str, suffix: str) -> dict[str, list[dict[str, int]]]:
    """Return what Kafka's dump tool printed of files: for each its lines, as names and numbers.

    Paths begin with ``logdir/``.
    """
    lines = gzip.decompress((CORPUS / case / "dumplog.txt.gz").read_bytes()).decode().split("\n")
    files: dict[str, list[dict[str, int]]] = {}
    entries: list[dict[str, int]] = []
    for line in lines:
        if line.startswith("Dumping "):
            path = line.removeprefix("Dumping ")
            entries = files.setdefault(path, []) if path.endswith(suffix) else []
        elif ": " in line and not line.startswith("SLF4J"):
            numbers = line.replace("OptionalLong.empty", "-1")
            found = re.findall(r"(\w+): (?:OptionalLong\[)?(-?\d+)", numbers)
            entries.append({name: int(number) for name, number in found})
    return files


@dataclass
class BrokerLog:
    """A partition's folder that grows as a broker lets it grow.

    ``visible`` are the offsets of the records that count, in a transaction or not, and ``opened``
    the open transactions.
    """

    folder: Path
    next_offset: int = 0
    opened: dict[int, int] = field(default_factory=dict)
    visible: set[int] = field(default_factory=set)
    ends: list[int] = field(default_factory=lambda: [0])
    """Offsets at which batches end: where a high watermark can be."""
    _pending: dict[int, list[int]] = field(default_factory=dict)
    _producers: set[int] = field(default_factory=set)
    _base: int = 0
    _batches: list[bytes] = field(default_factory=list)
    _index: list[tuple[int, int, int, int]] = field(default_factory=list)

    def append(self, producer: int, count: int = 1, *, transactional: bool = True) -> None:
        """Append a batch of records."""
        first = self.next_offset
        self._batches.append(producer_batch(first, count, producer, transactional=transactional))
        self._advance(count)
        self._producers.add(producer)
        if transactional:
            self.opened.setdefault(producer, first)
            self._pending.setdefault(producer, []).extend(range(first, first + count))
        else:
            self.visible.update(range(first, first + count))

    def end(self, producer: int, kind: int) -> None:
        """Append a marker; it may end nothing."""
        at = self.next_offset
        self._batches.append(marker(at, producer, kind))
        self._advance(1)
        self._producers.add(producer)
        first = self.opened.pop(producer, None)
        ended = self._pending.pop(producer, [])
        if kind == COMMIT:
            self.visible.update(ended)
        elif first is not None:
            stable = min(self.opened.values(), default=at + 1)
            self._index.append((producer, first, at, stable))

    def roll(self) -> None:
        """Begin a new segment, with a snapshot; not behind an empty one."""
        if self._batches:
            self.write()
            self._base, self._batches, self._index = self.next_offset, [], []
            name = f"{self._base:020d}.snapshot"
            others = self._producers - self.opened.keys()
            (self.folder / name).write_bytes(snapshot_bytes(self.opened, others))

    def write(self) -> None:
        """Put the active segment onto the disk; only what it holds by now is there before."""
        path = write_segment(self.folder, self._base, b"".join(self._batches), index=True)
        if self._index:
            path.with_suffix(".txnindex").write_bytes(index_bytes(*self._index))

    def play(self, steps: Sequence[tuple[str, int]]) -> None:
        """Do the steps: an action's name and the producer."""
        for action, producer in steps:
            if action == "roll":
                self.roll()
            elif action in {"abort", "commit"}:
                self.end(producer, ABORT if action == "abort" else COMMIT)
            else:
                self.append(producer, 2, transactional=action == "send")
        self.write()

    def _advance(self, count: int) -> None:
        self.next_offset += count
        self.ends.append(self.next_offset)
