"""Logs that a broker accepts and that few have seen: odd records, and headers that tell otherwise.

Each is written byte by byte, without the library's own encoder. ``ODD_LOGS`` names them.
"""

from __future__ import annotations

import gzip
import re
import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from crc32c import crc32c
from pyspark.sql.types import ArrayType, StructType
from tests.support.message_sets import GZIP, LOG_APPEND_TIME, gzip_stream, message

from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.source.batch_plan import plan_batch
from kafkalog.streaming.source.reading import read_split
from kafkalog.streaming.source.schema import RowSchema
from kafkalog.texts import decode_as_java

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["ODD_LOGS", "SCHEMA", "OddLog", "OddRecord", "batch", "rows_in_ms", "topic_of"]

SCHEMA: Final = (
    StructType()
    .add("offset", "long")
    .add("timestamp", "long")
    .add("key", "binary")
    .add("value", "binary")
    .add("headers", ArrayType(StructType().add("key", "string").add("value", "binary")))
)
"""Times in ms, all 64 bits."""

NOW: Final = 1_700_000_000_000
_HEAD: Final = struct.Struct(">qiibI")
_REST: Final = struct.Struct(">hiqqqhii")
_LONG: Final = 2**64 - 1
_NAME: Final = b"caf\xe9"
"""Not UTF-8."""


@dataclass(frozen=True)
class OddRecord:
    """A record; ``headers`` are names and values as bytes, ``time`` is in ms."""

    value: bytes | None = b"v"
    key: bytes | None = None
    time: int = NOW
    headers: tuple[tuple[bytes, bytes | None], ...] = ()

    def encode(self, delta: int, base_time: int) -> bytes:
        headers = b"".join(_sized(key) + _sized(value) for key, value in self.headers)
        body = b"\0" + _varint(self.time - base_time) + _varint(delta)
        body += _sized(self.key) + _sized(self.value) + _varint(len(self.headers)) + headers
        return _varint(len(body)) + body


def batch(
    records: Sequence[OddRecord],
    base_offset: int = 0,
    *,
    attributes: int = 0,
    last_delta: int | None = None,
    base_time: int | None = None,
    max_time: int | None = None,
    count: int | None = None,
    producer: tuple[int, int, int] = (-1, -1, -1),
    codec: int = 0,
) -> bytes:
    """Encode a batch of magic 2; its header has what is given, whatever the records say.

    ``codec`` 1 is gzip, 0 none.
    """
    base = (records[0].time if records else -1) if base_time is None else base_time
    encoded = b"".join(record.encode(delta, base) for delta, record in enumerate(records))
    latest = max((record.time for record in records), default=-1)
    body = _REST.pack(
        attributes | codec,
        len(records) - 1 if last_delta is None else last_delta,
        base,
        latest if max_time is None else max_time,
        *producer,
        len(records) if count is None else count,
    )
    body += gzip.compress(encoded) if codec else encoded
    return _HEAD.pack(base_offset, 9 + len(body), 0, 2, crc32c(body)) + body


def _sized(data: bytes | None) -> bytes:
    return _varint(-1) if data is None else _varint(len(data)) + data


def _varint(number: int) -> bytes:
    """Encode a zigzag varint of 64 bits; what is beyond them wraps, as in Java."""
    number = (number + 2**63 & _LONG) - 2**63
    rest = (number << 1) ^ (number >> 63)
    encoded = bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*encoded, rest])


@dataclass(frozen=True)
class OddLog:
    """A partition's bytes, and its records in between, which come after one plain record."""

    records: tuple[OddRecord, ...]
    data: bytes
    is_refused: bool = False
    """Whether the odd batch cannot be read, and the records around it can."""
    finding: str | None = None
    """What ``verify`` says of the odd batch; None where there is nothing to say."""
    batches: int = 3

    @property
    def all_records(self) -> list[OddRecord]:
        odd = () if self.is_refused else self.records
        return [OddRecord(b"first", b"k"), *odd, OddRecord(b"last", b"k")]

    @property
    def offsets(self) -> list[int]:
        odd = range(1, 1 + len(self.records))
        return [0, *(() if self.is_refused else odd), 1 + len(self.records)]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """What :data:`SCHEMA` shows of it."""
        return [
            {
                "offset": offset,
                "timestamp": record.time,
                "key": record.key,
                "value": record.value,
                "headers": [
                    {"key": decode_as_java(key), "value": value} for key, value in record.headers
                ]
                or None,
            }
            for offset, record in zip(self.offsets, self.all_records, strict=True)
        ]

    def write(self, log_dir: Path, topic: str = "t") -> Path:
        """Write it as partition 0 of a topic, as a copy of a broker's folder."""
        folder = log_dir / f"{topic}-0"
        folder.mkdir(parents=True)
        segment = folder / f"{0:020d}.log"
        first, last = (batch([OddRecord(text, b"k")], at) for text, at in self._around())
        segment.write_bytes(first + self.data + last)
        for kind in (".index", ".timeindex"):
            segment.with_suffix(kind).touch()
        return segment

    def _around(self) -> tuple[tuple[bytes, int], tuple[bytes, int]]:
        return (b"first", 0), (b"last", 1 + len(self.records))


def rows_in_ms(log: Path, topic: str = "t") -> list[dict[str, Any]]:
    """Read a topic as a query with :data:`SCHEMA` does."""
    options = ReadOptions.parse({"path": str(log), "subscribe": topic})
    rows = RowSchema.of(SCHEMA)
    return [
        row
        for split in plan_batch(options)
        for batch in read_split(split, options, rows)
        for row in batch.to_pylist()
    ]


def topic_of(name: str) -> str:
    """Return the name of a topic that has the odd log of that name."""
    return re.sub("[^a-z0-9]", "-", name)


def _odd(
    *records: OddRecord,
    is_refused: bool = False,
    finding: str | None = None,
    codec: int = 0,
    **header: Any,
) -> OddLog:
    return OddLog(records, batch(records, 1, codec=codec, **header), is_refused, finding)


def _messages(
    *records: OddRecord,
    magic: int,
    finding: str | None = None,
    attributes: int = 0,
    wrapper: Mapping[str, Any] | None = None,
) -> OddLog:
    """Encode messages of magic 0 or 1, with ``wrapper`` inside one that is compressed with gzip.

    Those of magic 0 know no time. Of magic 1 offsets inside a wrapper are relative to its first.
    """
    first = 0 if wrapper is not None and magic else 1
    data = b"".join(
        message(
            *(first + at, record.key, record.value),
            magic=magic,
            timestamp=record.time,
            attributes=attributes,
        )
        for at, record in enumerate(records)
    )
    if wrapper is not None:
        latest = max(record.time for record in records)
        given: dict[str, Any] = {"timestamp": latest, "attributes": 0, **wrapper}
        given["attributes"] |= GZIP
        data = message(len(records), None, gzip_stream(data), magic=magic, **given)
    if not magic:
        records = tuple(replace(record, time=-1) for record in records)
    if wrapper is not None and wrapper.get("attributes", 0) & LOG_APPEND_TIME:
        records = tuple(replace(record, time=wrapper["timestamp"]) for record in records)
    count = 2 + (1 if wrapper is not None else len(records))
    return OddLog(records, data, finding=finding, batches=count)


_EMPTY: Final = (
    *(OddRecord(b"", b""), OddRecord(None, b"")),
    *(OddRecord(None, None), OddRecord(b"", None)),
)
_THREE: Final = tuple(OddRecord(text, b"k", NOW + at) for at, text in enumerate((b"a", b"b", b"c")))

_HEADERS: Final[dict[str, dict[str, Any]]] = {
    "base time": {"base_time": -(2**63), "finding": "base timestamp -9223372036854775808"},
    "maximum time below": {"max_time": NOW - 1, "finding": "largest timestamp"},
    "maximum time above": {"max_time": NOW + 10**9, "finding": "largest timestamp"},
    "maximum time none": {"max_time": -1, "finding": "maximum timestamp -1"},
    "last delta below": {"last_delta": 0, "finding": "last offset 1, and its records end at 3"},
    "last delta negative": {"last_delta": -1, "finding": "last offset", "is_refused": True},
    "last delta minimal": {"last_delta": -(2**31), "finding": "last offset", "is_refused": True},
    "count above": {"count": 4, "finding": "4 records, and it holds 3", "is_refused": True},
    "count below": {"count": 2, "finding": "2 records, and it holds 3", "is_refused": True},
    "count zero": {"count": 0, "finding": "0 records, and it holds 3", "is_refused": True},
    "count negative": {"count": -1, "finding": "-1 records", "is_refused": True},
}
"""Headers that disagree with three records."""

ODD_LOGS: Final[dict[str, OddLog]] = {
    "empty and null": _odd(*_EMPTY),
    "headers": _odd(
        OddRecord(headers=((b"h", b"1"), (b"h", b"2"), (b"h", None), (b"", b""), (_NAME, b"\xff")))
    ),
    "bytes": _odd(OddRecord(b"\xff\x1b[31m\n", b"\xff\x00"), OddRecord(b"x" * 2_000_000, b"large")),
    "times before 1970": _odd(*(OddRecord(time=time) for time in (0, -1, -2, -86_400_001))),
    "times without end": _odd(
        *(OddRecord(time=time) for time in (2**63 - 1, -(2**63), 2**53, NOW * 1_000_000))
    ),
    "log append time before 1970": _odd(OddRecord(time=-5), attributes=8, max_time=-5),
    "magic 1, times before 1970": _messages(
        *(OddRecord(time=time) for time in (0, -1, -2, -86_400_001)), magic=1
    ),
    "magic 1, times without end": _messages(
        *(OddRecord(time=time) for time in (2**63 - 1, -(2**63), 2**53, NOW * 1_000_000)), magic=1
    ),
    "magic 1, gzip, log append time before 1970": _messages(
        *_THREE, magic=1, wrapper={"attributes": LOG_APPEND_TIME, "timestamp": -5}
    ),
    "magic 1, gzip, maximum time below": _messages(
        *_THREE, magic=1, wrapper={"timestamp": NOW - 1}, finding="largest timestamp"
    ),
    "magic 1, gzip, maximum time none": _messages(
        *_THREE, magic=1, wrapper={"timestamp": -1}, finding="maximum timestamp -1"
    ),
    "magic 1, attributes": _messages(*_THREE, magic=1, attributes=0x40),
    **{
        f"magic {magic}, {name}{of}": _messages(*records, magic=magic, wrapper=wrapper)
        for magic in (0, 1)
        for of, wrapper in (("", None), (", gzip", {}))
        for name, records in {
            "empty and null": _EMPTY,
            "bytes": (OddRecord(b"\xff\x1b[31m\n", b"\xff\x00"), OddRecord(b"x" * 300_000)),
        }.items()
    },
    "producer": _odd(*_THREE, producer=(2**62, 2**15 - 1, 2**31 - 2)),
    "attributes": _odd(*_THREE, attributes=0x4000),
    **{
        f"{name}{of}": _odd(*_THREE, codec=codec, **header)
        for of, codec in (("", 0), (", gzip", 1))
        for name, header in _HEADERS.items()
    },
}
