"""Staged run: what a task reports to the commit about the batches of a partition."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from kafkalog.model import NO_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, TopicPartition
from kafkalog.streaming.records import batch_kernels as fields
from kafkalog.streaming.records.batch import BatchTable
from kafkalog.streaming.records.batch_layout import CODEC_MASK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafkalog.streaming.commit.row_digest import RowDigest
    from kafkalog.streaming.records.builder import EncodedBatch
    from kafkalog.streaming.store.identity import BatchIdentity

__all__ = ["StagedRun", "TaskOutput"]

_BATCH: Final = np.dtype(
    [
        ("size", "<i4"),
        ("count", "<i4"),
        ("base_offset", "<i8"),  # -1: the commit gives it
        ("last_offset_delta", "<i4"),
        ("max_timestamp", "<i8"),
        ("magic", "u1"),
        ("attributes", "u1"),  # of magic 2: 0, nobody asks
    ]
)
"""One batch, wrapper, or set of plain messages of a run: 30 bytes."""

_MAGIC: Final = 16
_LEGACY_ATTRIBUTES: Final = 17


@dataclass(frozen=True, slots=True)
class StagedRun:
    """Whole batches of one partition, back to back in a staged file.

    ``directory`` counts in the list of log directories; ``position`` and ``size`` are bytes of the
    ``file`` in its root, ``crc32c`` is over them. ``batches`` packs a row of numbers for each.
    ``whole_file`` says that nothing else is in the file, which may then become a segment itself.
    ``partitions`` is how many the topic had, or was to get, when rows were placed among them; 0 in
    runs whose rows others have placed. ``topic_key`` is the key of that topic in the commit state;
    None if it was yet to be made. ``data`` are the bytes themselves where they lie in no file.
    """

    topic_partition: TopicPartition
    directory: int
    file: str
    position: int
    size: int
    crc32c: int
    batches: bytes
    whole_file: bool = False
    partitions: int = 0
    topic_key: str | None = None
    data: bytes = field(default=b"", repr=False)

    @classmethod
    def pack(cls, batches: Sequence[EncodedBatch]) -> bytes:
        """Pack what the commit needs to know of each batch."""
        rows = [
            (
                len(batch.data),
                batch.count,
                batch.first_offset,
                batch.last_offset_delta,
                batch.max_timestamp,
                batch.data[_MAGIC],
                batch.data[_LEGACY_ATTRIBUTES] if batch.data[_MAGIC] < 2 else 0,
            )
            for batch in batches
        ]
        return np.array(rows, _BATCH).tobytes()

    @property
    def magic(self) -> int:
        """The magic of all its batches."""
        return int(self._rows()["magic"][0])

    @property
    def is_plain(self) -> bool:
        """Whether it has sets of plain messages, each of which a log treats as a batch."""
        rows = self._rows()
        return bool(((rows["magic"] < 2) & (rows["attributes"] & CODEC_MASK == 0)).any())

    @property
    def first_offset(self) -> int:
        """The offset of its first record where offsets are final, else -1."""
        return int(self._rows()["base_offset"][0])

    @property
    def records(self) -> int:
        """How many records the run holds."""
        return int(self._rows()["count"].sum())

    @property
    def span(self) -> int:
        """How many offsets the run takes."""
        return int(self._rows()["last_offset_delta"].astype(np.int64).sum()) + len(self._rows())

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp of its batches."""
        return int(self._rows()["max_timestamp"].max())

    @property
    def last_offset(self) -> int:
        """The offset of its last record where offsets are final."""
        last = self._rows()[-1]
        return int(last["base_offset"]) + int(last["last_offset_delta"])

    def table(self, first_offset: int, leader_epoch: int) -> BatchTable:
        """Return the headers that the batches have once they start at ``first_offset``.

        Final offsets stay. Positions count in the staged file. What planning an append does not
        look at is 0. A set of plain messages has one row, see ``staged_source`` for its messages.
        """
        rows = self._rows()
        facts = np.zeros((len(rows), fields.FIELDS), np.int64)
        ends = np.cumsum(rows["size"], dtype=np.int64)
        spans = rows["last_offset_delta"].astype(np.int64) + 1
        base_offsets = rows["base_offset"].astype(np.int64)
        if len(rows) and base_offsets[0] < 0:
            base_offsets = first_offset + np.cumsum(spans) - spans
        facts[:, fields.POSITION] = self.position + ends - rows["size"]
        facts[:, fields.SIZE] = rows["size"]
        facts[:, fields.MAGIC] = rows["magic"]
        facts[:, fields.BASE_OFFSET] = base_offsets
        facts[:, fields.LAST_OFFSET] = base_offsets + spans - 1
        facts[:, fields.LEADER_EPOCH] = leader_epoch
        facts[:, fields.ATTRIBUTES] = rows["attributes"]
        facts[:, fields.MAX_TIMESTAMP] = rows["max_timestamp"]
        facts[:, fields.PRODUCER_ID] = NO_PRODUCER_ID
        facts[:, fields.PRODUCER_EPOCH] = NO_EPOCH
        facts[:, fields.BASE_SEQUENCE] = NO_SEQUENCE
        facts[:, fields.COUNT] = rows["count"]
        return BatchTable(facts)

    def _rows(self) -> np.ndarray[tuple[int], np.dtype[np.void]]:
        return np.frombuffer(self.batches, _BATCH)


@dataclass(frozen=True, slots=True)
class TaskOutput:
    """All that one attempt of a task has staged, runs of one partition in their order.

    ``digest`` is that of the rows, if the plan asks for it. ``digests`` are those of each topic's
    rows, for a write with ``txnAppId``. ``nonce`` is that of the plan by which a member of a group
    has read the rows.
    """

    identity: BatchIdentity
    query_id: str
    runs: tuple[StagedRun, ...]
    digest: RowDigest | None = None
    digests: tuple[tuple[str, RowDigest], ...] = ()
    nonce: str | None = None
