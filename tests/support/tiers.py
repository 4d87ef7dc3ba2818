"""Remote tiers made of local logs, by the layouts of Kafka's, Aiven's and Pinterest's plugins."""

from __future__ import annotations

import base64
import hashlib
import itertools
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.support.logs import Row, batch_bytes, write_segment
from tests.support.remote_records import segment_added, segment_updated

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["TOPIC_ID", "KafkaTier", "id_of", "pinterest_tier", "write_log", "write_metadata"]

TOPIC_ID = "AAECAwQFBgcICQoLDA0ODw"
SUFFIXES = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")


def id_of(*words: object) -> str:
    """Return an id as Kafka prints one, of these words."""
    digest = hashlib.md5(repr(words).encode(), usedforsecurity=False).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def write_log(
    log: Path,
    starts: Sequence[int],
    end: int,
    *,
    name: str = "t-0",
    topic_id: str | None = TOPIC_ID,
) -> Path:
    """Write a partition's folder: segments from these offsets on, two records a batch.

    The value of a record is its offset, its timestamp 1000 times that.
    """
    folder = log / name
    for start, stop in zip(starts, [*starts[1:], end], strict=True):
        batches = b"".join(
            batch_bytes(
                offset,
                [
                    Row(str(n).encode(), timestamp=1000 * n)
                    for n in range(offset, min(offset + 2, stop))
                ],
            )
            for offset in range(start, stop, 2)
        )
        write_segment(folder, start, batches, index=True)
    if topic_id is not None:
        (folder / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}")
    return folder


def write_metadata(log: Path, values: Sequence[bytes | None], *, partition: int = 0) -> None:
    """Write the log of ``__remote_log_metadata``."""
    rows = [Row(value) for value in values]
    folder = log / f"__remote_log_metadata-{partition}"
    if values:
        write_segment(folder, 0, batch_bytes(0, rows))


@dataclass
class KafkaTier:
    """What ``LocalTieredStorage`` writes, and what its broker says of it."""

    root: Path
    topic: str = "t"
    partition: int = 0
    topic_id: str = TOPIC_ID
    records: list[bytes] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        """The folder of the partition."""
        name = f"{self.topic}-{self.partition}-{self.topic_id}"
        return self.root / "kafka-tiered-storage" / name

    def upload(
        self,
        folder: Path,
        start: int,
        end: int,
        *,
        epochs: Sequence[tuple[int, int]] = ((0, 0),),
        finished: bool = True,
        says: bool = True,
    ) -> str:
        """Copy a segment of a partition's folder; return the id that it gets."""
        self.folder.mkdir(parents=True, exist_ok=True)
        segment_id = id_of(start, end, epochs, folder)
        size = 0
        for suffix in SUFFIXES:
            base = end if suffix == ".snapshot" else start
            source = folder / f"{base:020d}{suffix}"
            if source.exists():
                target = self.folder / f"{start:020d}-{segment_id}{suffix}"
                shutil.copy(source, target)
                size = target.stat().st_size if suffix == ".log" else size
        if says:
            where = (self.topic, self.topic_id, self.partition, segment_id)
            has_txn = (folder / f"{start:020d}.txnindex").exists()
            self.records.append(
                segment_added(
                    *where,
                    (start, end - 1),
                    size=size,
                    epochs=epochs,
                    txn_index_empty=not has_txn,
                )
            )
            if finished:
                self.records.append(segment_updated(*where))
        return segment_id

    def move(self, folder: Path, bounds: Sequence[int], **how: bool) -> list[str]:
        """Upload the segments between bounds, and delete them in the folder."""
        found = []
        for start, end in itertools.pairwise(bounds):
            found.append(self.upload(folder, start, end, **how))
            for path in folder.glob(f"{start:020d}.*"):
                if path.suffix != ".snapshot":
                    path.unlink()
        return found


def pinterest_tier(root: Path, folder: Path, starts: Sequence[int], *, bits: str = "") -> Path:
    """Move segments of a partition's folder to where Pinterest's uploader puts them."""
    target = root / bits / "cluster" / folder.name
    target.mkdir(parents=True, exist_ok=True)
    for start in starts:
        for suffix in (".log", ".index", ".timeindex"):
            shutil.move(folder / f"{start:020d}{suffix}", target / f"{start:020d}{suffix}")
    (target / "offset.wm").write_text(str(starts[-1]))
    return target
