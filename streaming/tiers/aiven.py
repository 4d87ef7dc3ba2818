"""What Aiven's plugin makes of a segment: a manifest, a log in chunks, and its indexes together.

A log is split into chunks; each is compressed by zstd, then encrypted by AES-256-GCM, as the
manifest says. An encrypted chunk is ``IV (12 bytes) ‖ ciphertext ‖ tag (16 bytes)``. The data key
is in the manifest, wrapped by an RSA key that is named there. Chunks are fetched whole.

``chunkIndex`` tells how long each chunk is in the object. ``fixed``: all are alike but the last.
``variable``: base64 of zstd of these bytes, big-endian::

    count i32; 0: no more; 1: value i32
    else: base i32, bytes per value i8, (count - 1) times (value - base), last value i32

``.indexes`` has offset index, time index, producer snapshot, leader epochs and maybe the index of
transactions; each is encrypted as one chunk, and never compressed.

Nothing is trusted: a size is held against the others before anything is allocated by it. No key is
in a message.

Source: Aiven ``tiered-storage-for-apache-kafka``: ``SegmentManifestV1``, ``ChunkIndex``,
``ChunkSizesBinaryCodec``, ``AesEncryptionProvider``, ``RsaEncryptionProvider``.
"""

from __future__ import annotations

import base64
import binascii
import functools
import json
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import numpy as np
import zstandard

from kafkalog.errors import CorruptRecordError, LogDirectoryError, OptionError
from kafkalog.files.storage import read_key_file
from kafkalog.files.system import remembered, system
from kafkalog.streaming.coordinator.message_schema import Field, MessageReader, string, struct_of
from kafkalog.streaming.log.files import (
    OFFSET_INDEX,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "MANIFEST_LIMIT",
    "ChunkIndex",
    "ChunkedObject",
    "CustomMetadata",
    "KeyRing",
    "Manifest",
    "Ranges",
    "decrypt",
    "parse_custom_metadata",
    "parse_manifest",
]

MANIFEST_LIMIT: Final = 16 << 20
"""Bytes of a manifest: one of 2 GiB in chunks of 1 KiB is a tenth of that."""

_LARGEST_CHUNK: Final = 256 << 20
_LARGEST_INDEX: Final = 256 << 20
_MOST_CHUNKS: Final = 1 << 24
_LARGEST_FILE: Final = 2**31 - 1
_IV_BYTES: Final = 12
_TAG_BYTES: Final = 16
_CACHE_BYTES: Final = 16 << 20
_EPOCHS: Final = ".leader_epoch_checkpoint"

_INDEXES: Final = {
    OFFSET_INDEX: "offset",
    TIME_INDEX: "timestamp",
    SNAPSHOT: "producerSnapshot",
    _EPOCHS: "leaderEpoch",
    TXN_INDEX: "transaction",
}


class Ranges(Protocol):
    """What fetches ranges of an object; fewer bytes come where it ends."""

    def __call__(self, position: int, length: int) -> bytes:
        """Fetch a range."""
        ...


# ----------------------------------------------------------------------------------------------
# Where chunks lie.


@dataclass(frozen=True, slots=True)
class ChunkIndex:
    """Where the chunks of a log lie in its object."""

    chunk_size: int
    """Bytes of the log in each chunk but the last."""
    file_size: int
    """Bytes of the log."""
    ends: np.ndarray[tuple[int], np.dtype[np.int64]] | None
    """Where each chunk ends in the object; None if all are as long but the last."""
    transformed_size: int = 0
    final_size: int = 0

    @property
    def count(self) -> int:
        """How many chunks there are."""
        return -(-self.file_size // self.chunk_size)

    def original(self, number: int) -> tuple[int, int]:
        """Return where a chunk begins and ends in the log."""
        start = number * self.chunk_size
        return start, min(start + self.chunk_size, self.file_size)

    def transformed(self, number: int) -> tuple[int, int]:
        """Return where a chunk begins and ends in the object."""
        if self.ends is not None:
            return (int(self.ends[number - 1]) if number else 0), int(self.ends[number])
        start = number * self.transformed_size
        is_last = number == self.count - 1
        return start, start + (self.final_size if is_last else self.transformed_size)


class Manifest(NamedTuple):
    """What a manifest says of a segment."""

    chunks: ChunkIndex
    indexes: Mapping[str, tuple[int, int]]
    """Position and size of each index in its object, by the suffix of its file."""
    is_compressed: bool
    key_id: str | None
    """Of the key that has wrapped the data key; None if nothing is encrypted."""
    wrapped_key: bytes
    aad: bytes
    topic: str
    topic_id: str
    partition: int
    segment_id: str
    start_offset: int
    end_offset: int
    """Exclusive."""
    max_timestamp: int
    leader_epochs: tuple[tuple[int, int], ...]


class _Fields:
    """The fields of a JSON object, each held against what it may be."""

    def __init__(self, value: object, name: str) -> None:
        if not isinstance(value, dict):
            raise CorruptRecordError(f"{name} is no object")
        self._value: dict[str, Any] = value
        self._name = name

    def has(self, key: str) -> bool:
        return self._value.get(key) is not None

    def inner(self, key: str) -> _Fields:
        return _Fields(self._value.get(key), f"{self._name}.{key}")

    def number(self, key: str, minimum: int = 0, maximum: int = _LARGEST_FILE) -> int:
        value = self._value.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
            raise CorruptRecordError(
                f"{self._name}.{key} is no whole number from {minimum} to {maximum}"
            )
        return value

    def text(self, key: str) -> str:
        value = self._value.get(key)
        if not isinstance(value, str):
            raise CorruptRecordError(f"{self._name}.{key} is no text")
        return value

    def flag(self, key: str) -> bool:
        value = self._value.get(key)
        if not isinstance(value, bool):
            raise CorruptRecordError(f"{self._name}.{key} is neither true nor false")
        return value

    def binary(self, key: str, text: str | None = None) -> bytes:
        try:
            return base64.b64decode(self.text(key) if text is None else text, validate=True)
        except (binascii.Error, ValueError):  # what it is may be a key: it is not shown
            raise CorruptRecordError(f"{self._name}.{key} is no base64") from None

    def epochs(self, key: str) -> tuple[tuple[int, int], ...]:
        value = self._value.get(key)
        if not isinstance(value, dict):
            raise CorruptRecordError(f"{self._name}.{key} is no object")
        fields = _Fields(value, f"{self._name}.{key}")
        found = []
        for epoch in value:
            if not epoch.isascii() or not epoch.isdecimal() or len(epoch) > 10:
                raise CorruptRecordError(f"{self._name}.{key} has no epochs as names")
            found.append((int(epoch), fields.number(epoch, 0, 2**63 - 2)))
        return tuple(sorted(found))


def parse_manifest(data: bytes) -> Manifest:
    """Read a manifest.

    Raises:
        CorruptRecordError: it is none, or its sizes contradict each other; names the field.
    """
    if len(data) > MANIFEST_LIMIT:
        raise CorruptRecordError(f"the manifest has more than {MANIFEST_LIMIT} bytes")
    try:
        whole = _Fields(json.loads(data), "manifest")
    except (ValueError, RecursionError) as error:
        raise CorruptRecordError(f"the manifest is no JSON: {type(error).__name__}") from None
    if whole.text("version") != "1":
        raise CorruptRecordError("the manifest has a version that is not known (1 is)")
    segment = whole.inner("remoteLogSegmentMetadata")
    identity = segment.inner("remoteLogSegmentId")
    where = identity.inner("topicIdPartition")
    start = segment.number("startOffset", 0, 2**63 - 2)
    key_id, wrapped, aad = _encryption(whole)
    return Manifest(
        _chunk_index(whole.inner("chunkIndex")),
        _indexes(whole.inner("segmentIndexes")),
        whole.flag("compression"),
        key_id,
        wrapped,
        aad,
        where.inner("topicPartition").text("topic"),
        where.text("topicId"),
        where.inner("topicPartition").number("partition"),
        identity.text("id"),
        start,
        segment.number("endOffset", start, 2**63 - 2) + 1,
        segment.number("maxTimestampMs", -1, 2**63 - 1),
        segment.epochs("segmentLeaderEpochs"),
    )


def _encryption(whole: _Fields) -> tuple[str | None, bytes, bytes]:
    if not whole.has("encryption"):
        return None, b"", b""
    fields = whole.inner("encryption")
    key_id, colon, wrapped = fields.text("dataKey").rpartition(":")
    if not colon or not key_id:
        raise CorruptRecordError("manifest.encryption.dataKey names no key")
    return key_id, fields.binary("dataKey", wrapped), fields.binary("aad")


def _indexes(fields: _Fields) -> dict[str, tuple[int, int]]:
    found = {}
    for suffix, name in _INDEXES.items():
        if fields.has(name):
            inner = fields.inner(name)
            found[suffix] = inner.number("position"), inner.number("size", 0, _LARGEST_INDEX)
    return found


def _chunk_index(fields: _Fields) -> ChunkIndex:
    kind = fields.text("type")
    chunk_size = fields.number("originalChunkSize", 1)
    file_size = fields.number("originalFileSize")
    largest = _largest_transformed(min(chunk_size, file_size))
    if kind == "fixed":
        return ChunkIndex(
            chunk_size,
            file_size,
            None,
            fields.number("transformedChunkSize", 0, _largest_transformed(chunk_size)),
            fields.number("finalTransformedChunkSize", 0, largest),
        )
    if kind != "variable":
        raise CorruptRecordError("manifest.chunkIndex.type is neither fixed nor variable")
    count = -(-file_size // chunk_size)
    if count > _MOST_CHUNKS:
        raise CorruptRecordError(
            f"manifest.chunkIndex has {count} chunks, expected at most {_MOST_CHUNKS}"
        )
    sizes = _chunk_sizes(fields.binary("transformedChunks"), count, largest)
    return ChunkIndex(chunk_size, file_size, np.cumsum(sizes))


def _largest_transformed(size: int) -> int:
    """Return what a chunk of so many bytes grows to at most (``ZSTD_COMPRESSBOUND``, IV, tag)."""
    return size + (size >> 7) + 1024


def _chunk_sizes(data: bytes, count: int, largest: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Decode the sizes of chunks, of which there must be so many."""
    plain = _decompress(data, 4 * count + 16, exactly=False)
    reader = MessageReader(plain, 0, flexible=False, field="transformedChunks")
    found = reader.integer(4)
    if found != count:
        raise reader.corrupt(f"has {found} sizes, expected {count}")
    if count == 0:
        return np.zeros(0, np.int64)
    sizes = np.zeros(count, np.int64)
    if count > 1:
        base, width = reader.integer(4), reader.integer(1)
        if not 0 <= width <= 4:
            raise reader.corrupt(f"has {width} bytes per value, expected 0 to 4")
        raw = np.frombuffer(reader.take((count - 1) * width), np.uint8).reshape(count - 1, width)
        for column in range(width):
            sizes[:-1] = (sizes[:-1] << 8) | raw[:, column]
        sizes[:-1] += base
    sizes[-1] = reader.integer(4)
    if (sizes < 0).any() or (sizes > largest).any():
        raise reader.corrupt("has a size that no chunk has")
    return sizes


def _decompress(data: bytes, limit: int, *, exactly: bool) -> bytes:
    """Decompress one frame that has at most, or exactly, so many bytes.

    Raises:
        CorruptRecordError: it is none, or has another size.
    """
    try:
        told = zstandard.frame_content_size(data)
        if told > limit or (exactly and told not in {limit, -1}):
            raise CorruptRecordError(f"decompresses to {told} bytes, expected {limit}")
        plain = zstandard.ZstdDecompressor().decompress(data, max_output_size=max(limit, 1))
    except zstandard.ZstdError as error:
        raise CorruptRecordError(f"is no zstd frame: {error}") from None
    if exactly and len(plain) != limit:
        raise CorruptRecordError(f"decompresses to {len(plain)} bytes, expected {limit}")
    return plain


# ----------------------------------------------------------------------------------------------
# What overrides the names of objects.


class CustomMetadata(NamedTuple):
    """What the plugin keeps with a segment in ``__remote_log_metadata``; None: not said."""

    object_prefix: str | None
    object_key: str | None


_CUSTOM: Final = struct_of(Field("prefix", string, tag=1), Field("key", string, tag=2))


def parse_custom_metadata(data: bytes | None) -> CustomMetadata:
    """Read it.

    Raises:
        CorruptRecordError: these are no tagged fields.
    """
    if not data:
        return CustomMetadata(None, None)
    fields = _CUSTOM(MessageReader(data, 0, flexible=True, field="customMetadata"))
    return CustomMetadata(fields["prefix"], fields["key"])


# ----------------------------------------------------------------------------------------------
# Keys.


_INSTALL: Final = "install kafkalog[tiers], which has cryptography and pycryptodome"


class KeyRing:
    """The data keys of manifests, unwrapped by private keys in files. Shows none of them."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = files

    def data_key(self, manifest: Manifest) -> bytes:
        """Return the key of a segment.

        Raises:
            OptionError: its RSA key is not given, or its file is none; or a library is missing.
            CorruptRecordError: the RSA key does not unwrap it.
        """
        key_id = manifest.key_id or ""
        if key_id not in self._files:
            raise OptionError(
                f"the segment is encrypted with the key {key_id!r}: give its file by the option "
                f"remote.encryption.keys, as {key_id}=/folder/private.pem"
            )
        return remembered(_Unwrapped).key(key_id, self._files[key_id], manifest.wrapped_key)


class _Unwrapped:
    """The data keys that this process has unwrapped, and the RSA keys that did it."""

    def __init__(self) -> None:
        self.key = functools.lru_cache(1024)(self._key)
        self._private = functools.lru_cache(16)(_private_key)

    def _key(self, key_id: str, path: str, wrapped: bytes) -> bytes:
        private = self._private(key_id, path)
        from Crypto.Cipher import PKCS1_OAEP  # noqa: PLC0415 - few need it
        from Crypto.Hash import SHA3_512  # noqa: PLC0415

        try:
            found = PKCS1_OAEP.new(private, hashAlgo=SHA3_512).decrypt(wrapped)
        except (ValueError, TypeError):
            found = b""
        if len(found) != 32:
            raise CorruptRecordError(
                f"the data key in the manifest is not wrapped by the key {key_id!r} in {path}: "
                "another key pair has that id, or the manifest is damaged"
            )
        return bytes(found)


def _private_key(key_id: str, path: str) -> Any:  # noqa: ANN401 - of a library without types
    try:
        from Crypto.PublicKey import RSA  # noqa: PLC0415
    except ImportError as error:
        raise OptionError(f"the segment is encrypted: {_INSTALL}") from error
    data = read_key_file(key_id, path)
    try:
        private = RSA.import_key(data)
    except (ValueError, IndexError, TypeError):
        private = None
    if private is None or not private.has_private():
        raise OptionError(
            f"option 'remote.encryption.keys': the file of {key_id!r}, {path}, holds no private "
            "RSA key (PEM, without a password)"
        )
    return private


def decrypt(data: bytes, key: bytes, aad: bytes) -> bytes:
    """Decrypt a chunk.

    Raises:
        CorruptRecordError: it is cut off, or was not made with this key.
        OptionError: the library is missing.
    """
    try:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - few need it
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415
    except ImportError as error:
        raise OptionError(f"the segment is encrypted: {_INSTALL}") from error
    if len(data) < _IV_BYTES + _TAG_BYTES:
        raise CorruptRecordError(f"has {len(data)} bytes, which is no encrypted chunk")
    try:
        return AESGCM(key).decrypt(data[:_IV_BYTES], data[_IV_BYTES:], aad)
    except InvalidTag:
        raise CorruptRecordError(
            "does not decrypt: it is damaged, or another segment's manifest lies beside it"
        ) from None


# ----------------------------------------------------------------------------------------------
# Reading.


class ChunkedObject:
    """The log of a segment, as it was before it was uploaded."""

    def __init__(self, manifest: Manifest, keys: KeyRing, fetch: Ranges, name: str) -> None:
        """Fetch nothing yet; ``name`` is how a person knows the object."""
        self._manifest = manifest
        self._chunks = manifest.chunks
        self._keys = keys
        self._fetch = fetch
        self._name = name
        self._kept: OrderedDict[int, bytes] = OrderedDict()
        self._using = system.lock()

    @property
    def size(self) -> int:
        """Bytes of the log."""
        return self._chunks.file_size

    def read_at(self, nbytes: int, offset: int) -> bytes:
        """Read from a position of the log.

        Raises:
            LogDirectoryError: a chunk is damaged, cut off or made with another key; names the
                object and the range of its bytes.
        """
        end = min(offset + nbytes, self.size)
        if offset >= end:
            return b""
        if not self._manifest.is_compressed and self._manifest.key_id is None:
            return self._fetch(offset, end - offset)
        first, last = offset // self._chunks.chunk_size, (end - 1) // self._chunks.chunk_size
        with self._using:
            chunks = self._read_chunks(first, last)
        start = self._chunks.original(first)[0]
        return b"".join(chunks)[offset - start : end - start]

    def close(self) -> None:
        """Forget what was fetched."""
        with self._using:
            self._kept.clear()

    def _read_chunks(self, first: int, last: int) -> list[bytes]:
        missing = [n for n in range(first, last + 1) if n not in self._kept]
        fresh: dict[int, bytes] = {}
        if missing:
            begin, end = missing[0], missing[-1]
            start, stop = self._chunks.transformed(begin)[0], self._chunks.transformed(end)[1]
            data = self._fetch(start, stop - start)
            if len(data) != stop - start:
                raise self._damaged(start, stop, f"{len(data)} of its bytes are there")
            for number in range(begin, end + 1):
                low, high = self._chunks.transformed(number)
                fresh[number] = self._plain(number, data[low - start : high - start])
        found = [fresh[n] if n in fresh else self._kept[n] for n in range(first, last + 1)]
        self._kept.update(fresh)
        while len(self._kept) > 1 and sum(map(len, self._kept.values())) > _CACHE_BYTES:
            self._kept.popitem(last=False)
        return found

    def _plain(self, number: int, data: bytes) -> bytes:
        """Undo what the plugin has done to a chunk."""
        start, end = self._chunks.original(number)
        try:
            return self._undone(data, end - start)
        except CorruptRecordError as error:
            raise self._damaged(*self._chunks.transformed(number), str(error)) from None
        except OptionError as error:
            raise OptionError(f"{self._name}: {error}") from None

    def _undone(self, data: bytes, size: int) -> bytes:
        if size > _LARGEST_CHUNK:
            raise CorruptRecordError(
                f"is a chunk of {size} bytes, expected at most {_LARGEST_CHUNK}"
            )
        if self._manifest.key_id is not None:
            data = decrypt(data, self._keys.data_key(self._manifest), self._manifest.aad)
        if self._manifest.is_compressed:
            return _decompress(data, size, exactly=True)
        if len(data) != size:
            raise CorruptRecordError(f"has {len(data)} bytes, expected {size}")
        return data

    def _damaged(self, start: int, end: int, reason: str) -> LogDirectoryError:
        return LogDirectoryError(
            f"{self._name}: what lies from byte {start} to {end} {reason}. If the broker's tier "
            "has a copy of the object, put it back"
        )
