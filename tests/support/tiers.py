"""Remote tiers made of local logs, by the layouts of Kafka's, Aiven's and Pinterest's plugins."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import os
import shutil
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import zstandard
from Crypto.Cipher import PKCS1_OAEP
from Crypto.Hash import SHA3_512
from Crypto.PublicKey import RSA
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from tests.support.logs import Row, batch_bytes, write_segment
from tests.support.remote_records import segment_added, segment_updated

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = [
    "TOPIC_ID",
    "AivenTier",
    "KafkaTier",
    "Keys",
    "chunk_sizes",
    "id_of",
    "pinterest_tier",
    "write_log",
    "write_metadata",
]

TOPIC_ID = "AAECAwQFBgcICQoLDA0ODw"
SUFFIXES = (
    *(".log", ".index", ".timeindex", ".txnindex", ".snapshot"),
    ".leader_epoch_checkpoint",
)


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


@dataclass
class AivenTier:
    """What Aiven's plugin writes: manifests, logs in chunks, indexes in one object."""

    root: Path
    topic: str = "t"
    partition: int = 0
    topic_id: str = TOPIC_ID
    prefix: str = ""
    compression: bool = False
    key: tuple[str, bytes] | None = None
    """The id and the public part of an RSA key, in PEM."""
    variable: bool = False
    chunk_size: int = 100
    records: list[bytes] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        """The folder of the partition."""
        return self.root / f"{self.prefix}{self.topic}-{self.topic_id}" / str(self.partition)

    def upload(self, folder: Path, start: int, end: int, *, manifest: bool = True) -> Path:
        """Upload a segment of a partition's folder; return its objects' path without a suffix."""
        self.folder.mkdir(parents=True, exist_ok=True)
        segment_id = id_of(start, end, folder)
        stem = self.folder / f"{start:020d}-{segment_id}"
        cipher = None if self.key is None else _Cipher(*self.key)
        log = (folder / f"{start:020d}.log").read_bytes()
        chunks = [log[n : n + self.chunk_size] for n in range(0, len(log), self.chunk_size)]
        packed = [self._transformed(chunk, cipher) for chunk in chunks]
        stem.with_suffix(".log").write_bytes(b"".join(packed))
        indexes, places = b"", {}
        for name, suffix in AIVEN_INDEXES.items():
            base = end if suffix == ".snapshot" else start
            path = folder / f"{base:020d}{suffix}"
            data = path.read_bytes() if path.exists() else b""
            if name != "transaction" or data:
                data = cipher.encrypted(data) if cipher is not None and data else data
                places[name] = {"position": len(indexes), "size": len(data)}
                indexes += data
            else:
                places[name] = None
        stem.with_suffix(".indexes").write_bytes(indexes)
        said = self._manifest(segment_id, start, end, len(log), list(map(len, packed)), places)
        if cipher is not None:
            said["encryption"] = cipher.said()
        if manifest:
            stem.with_suffix(".rsm-manifest").write_text(json.dumps(said))
        where = (self.topic, self.topic_id, self.partition, segment_id)
        has_txn = places["transaction"] is not None
        self.records += [
            segment_added(*where, (start, end - 1), size=len(log), txn_index_empty=not has_txn),
            segment_updated(*where),
        ]
        return stem

    def move(self, folder: Path, bounds: Sequence[int]) -> list[Path]:
        """Upload the segments between bounds, and delete them in the folder."""
        found = []
        for start, end in itertools.pairwise(bounds):
            found.append(self.upload(folder, start, end))
            for path in folder.glob(f"{start:020d}.*"):
                if path.suffix != ".snapshot":
                    path.unlink()
        return found

    def _transformed(self, chunk: bytes, cipher: _Cipher | None) -> bytes:
        data = zstandard.compress(chunk) if self.compression else chunk
        return data if cipher is None else cipher.encrypted(data)

    def _manifest(
        self, segment_id: str, start: int, end: int, size: int, sizes: list[int], places: dict
    ) -> dict:
        index = {"originalChunkSize": self.chunk_size, "originalFileSize": size}
        if self.variable or len(set(sizes[:-1])) > 1:
            packed = base64.b64encode(zstandard.compress(chunk_sizes(sizes))).decode()
            index |= {"type": "variable", "transformedChunks": packed}
        else:
            index |= {"type": "fixed", "transformedChunkSize": sizes[0]}
            index |= {"finalTransformedChunkSize": sizes[-1]}
        topic = {"topic": self.topic, "partition": self.partition}
        where = {"topicId": self.topic_id, "topicPartition": topic}
        return {
            "version": "1",
            "chunkIndex": index,
            "segmentIndexes": places,
            "compression": self.compression,
            "remoteLogSegmentMetadata": {
                "remoteLogSegmentId": {"topicIdPartition": where, "id": segment_id},
                "startOffset": start,
                "endOffset": end - 1,
                "maxTimestampMs": 1000 * (end - 1),
                "brokerId": 1,
                "eventTimestampMs": 1,
                "segmentLeaderEpochs": {"0": 0},
            },
        }


class Keys:
    """Two RSA keys, and files of them."""

    def __init__(self, folder: Path) -> None:
        self.public = {}
        files = []
        for name in ("one", "two"):
            made = rsa.generate_private_key(public_exponent=65537, key_size=2048)
            private = made.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
            (folder / f"{name}.pem").write_bytes(private)
            self.public[name] = (name, RSA.import_key(private).public_key().export_key())
            files.append(f"{name}={folder}/{name}.pem")
        self.option = ",".join(files)


AIVEN_INDEXES = {
    "offset": ".index",
    "timestamp": ".timeindex",
    "producerSnapshot": ".snapshot",
    "leaderEpoch": ".leader_epoch_checkpoint",
    "transaction": ".txnindex",
}


def chunk_sizes(sizes: Sequence[int]) -> bytes:
    """Encode the sizes of chunks as the plugin does."""
    count = struct.pack(">i", len(sizes))
    if len(sizes) < 2:
        return count + b"".join(struct.pack(">i", size) for size in sizes)
    base, most = min(sizes[:-1]), max(sizes[:-1])
    width = max(1, -(-(most - base).bit_length() // 8))
    values = b"".join((size - base).to_bytes(width, "big") for size in sizes[:-1])
    return count + struct.pack(">ib", base, width) + values + struct.pack(">i", sizes[-1])


class _Cipher:
    """A data key, wrapped by an RSA key."""

    def __init__(self, key_id: str, public: bytes) -> None:
        self._key, self._aad = os.urandom(32), os.urandom(32)
        wrapped = PKCS1_OAEP.new(RSA.import_key(public), hashAlgo=SHA3_512).encrypt(self._key)
        self._wrapped = f"{key_id}:{base64.b64encode(wrapped).decode()}"

    def encrypted(self, data: bytes) -> bytes:
        iv = os.urandom(12)
        return iv + AESGCM(self._key).encrypt(iv, data, self._aad)

    def said(self) -> dict[str, str]:
        return {"dataKey": self._wrapped, "aad": base64.b64encode(self._aad).decode()}


def pinterest_tier(root: Path, folder: Path, starts: Sequence[int], *, bits: str = "") -> Path:
    """Move segments of a partition's folder to where Pinterest's uploader puts them."""
    target = root / bits / "cluster" / folder.name
    target.mkdir(parents=True, exist_ok=True)
    for start in starts:
        for suffix in (".log", ".index", ".timeindex"):
            shutil.move(folder / f"{start:020d}{suffix}", target / f"{start:020d}{suffix}")
    (target / "offset.wm").write_text(str(starts[-1]))
    return target
