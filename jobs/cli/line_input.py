"""Records from standard input: lines, or JSON objects, in batches by number and time."""

from __future__ import annotations

import io
import json
import os
import select
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import pyarrow as pa

from kafkalog.errors import RowError
from kafkalog.files.system import system
from kafkalog.streaming.options.quantities import parse_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


__all__ = ["RecordLines", "from_hex", "line_batches", "pieces_of"]


# ----------------------------------------------------------------------------------------------
# Bytes as people type them with ``--hex``.


def from_hex(text: str) -> bytes:
    """Read pairs of hexadecimal digits.

    Raises:
        ValueError: it is something else; the message says so.
    """
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise ValueError(
            f"with --hex, {text!r} is read as hexadecimal digits, expected pairs such as 6b31 (k1)"
        ) from None


# ----------------------------------------------------------------------------------------------

_PIECE_BYTES: Final = 1 << 16
_MOST_BYTES: Final = 256 << 20
"""Of a line. A device such as ``/dev/zero`` gives one that never ends."""
_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_IGNORED: Final = {"topic", "offset", "timestampType"}
_EXAMPLE: Final = '{"key": "k", "value": "v"}'
_KNOWN: Final = {"key", "value", "headers", "partition", "timestamp"}


def pieces_of(stream: BinaryIO) -> Callable[[float | None], bytes | None]:
    """Return what reads the next bytes within so many seconds; None to wait for ever.

    It gives None if there are none by then, and ``b""`` at the end.
    """
    try:
        descriptor = stream.fileno()
    except io.UnsupportedOperation:  # bytes in memory: all of it is there
        return lambda _timeout: stream.read(_PIECE_BYTES)

    def read(timeout: float | None) -> bytes | None:
        ready, _, _ = select.select([descriptor], [], [], timeout)
        return os.read(descriptor, _PIECE_BYTES) if ready else None

    return read


def line_batches(
    pieces: Callable[[float | None], bytes | None],
    sizes: Iterator[int],
    seconds: float | None,
) -> Iterator[list[bytes]]:
    """Cut bytes into lines, and lines into batches of so many; ``sizes`` does not end.

    A batch ends earlier when its first line has waited for so many seconds. The last line needs no
    end of line.

    Raises:
        RowError: a line of more than 256 MiB.
    """
    waiting: list[bytes] = []
    begun: list[bytes] = []
    first_seen, most = 0.0, next(sizes)
    while True:
        due = None if seconds is None else first_seen + seconds - system.monotonic()
        piece = pieces(None if due is None or not waiting else max(0.0, due))
        if piece == b"":
            break
        if piece is not None:
            *lines, rest = piece.split(b"\n")
            for line in lines:
                if not waiting:
                    first_seen = system.monotonic()
                waiting.append(b"".join([*begun, line]))
                begun.clear()
                if len(waiting) == most:
                    yield waiting
                    waiting, most = [], next(sizes)
            begun.append(rest)
            _check_length(begun)
        if waiting and seconds is not None and system.monotonic() - first_seen >= seconds:
            yield waiting
            waiting, most = [], next(sizes)
    if last := b"".join(begun):
        waiting.append(last)
    if waiting:
        yield waiting


def _check_length(begun: Sequence[bytes]) -> None:
    if sum(map(len, begun)) > _MOST_BYTES:
        raise RowError(
            f"a line has more than {_MOST_BYTES >> 20} MiB, and no end of line: is it text?"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLines:
    """How a line becomes a record."""

    key: bytes | None = None
    """Of lines that have none."""
    delimiter: bytes | None = None
    """What lies between key and value; None for values alone."""
    as_json: bool = False
    is_hex: bool = False
    empty_is_null: bool = False
    headers: Sequence[tuple[str, bytes]] = ()
    """Added to each record."""
    partition: int | None = None

    def table(self, lines: Sequence[bytes], first: int) -> pa.Table:
        """Make rows of lines, of which the first has the number ``first``.

        Raises:
            RowError: a line that is no record; it is named.
        """
        read = self._of_json if self.as_json else self._of_text
        rows = []
        for number, line in enumerate(lines, first):
            try:
                rows.append(read(line))
            except RecursionError:
                raise RowError(f"line {number} is no record: it is nested too deep") from None
            except (ValueError, TypeError, KeyError) as error:
                raise RowError(f"line {number} is no record: {error}") from None
        columns: dict[str, pa.Array] = {
            "key": pa.array([row["key"] for row in rows], pa.binary()),
            "value": pa.array([row["value"] for row in rows], pa.binary()),
            "partition": pa.array(
                [row.get("partition", self.partition) for row in rows], pa.int32()
            ),
            "headers": pa.array([row.get("headers") for row in rows], _HEADERS),
        }
        if any(row.get("timestamp") is not None for row in rows):
            columns["timestamp"] = pa.array([row.get("timestamp") for row in rows], pa.int64())
        return pa.table(columns)

    def _of_text(self, line: bytes) -> dict[str, Any]:
        key: bytes | None = None
        value = line
        if self.delimiter is not None:
            head, separator, tail = line.partition(self.delimiter)
            if separator:
                key, value = head, tail
        data = [None if each is None else self._data(each) for each in (key, value)]
        return {
            "key": self.key if key is None else data[0],
            "value": data[1],
            "headers": self._with_own([]),
        }

    def _data(self, data: bytes) -> bytes | None:
        if self.empty_is_null and not data:
            return None
        return from_hex(data.decode(errors="replace")) if self.is_hex else data

    def _of_json(self, line: bytes) -> dict[str, Any]:
        try:
            row = parse_json(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"it is no JSON, such as {_EXAMPLE}: {error.msg}") from None
        if not isinstance(row, dict):
            raise TypeError("it is no JSON object")
        unknown = row.keys() - _KNOWN - _IGNORED
        if unknown:
            raise ValueError(f"{min(unknown)!r} is none of {', '.join(sorted(_KNOWN))}")
        found = {name: self._of_value(row.get(name)) for name in ("key", "value")}
        if "key" not in row:
            found["key"] = self.key
        for name in ("partition", "timestamp"):
            if row.get(name) is not None:
                if type(row[name]) is not int:
                    raise TypeError(f"{name!r} is {row[name]!r}, expected a whole number")
                found[name] = row[name]
        given = row.get("headers") or []
        if not isinstance(given, (dict, list)):
            raise TypeError(f"'headers' is {given!r}, expected a list of objects")
        entries = given.items() if isinstance(given, dict) else map(_header, given)
        headers = [{"key": key, "value": self._of_value(value)} for key, value in entries]
        return {**found, "headers": self._with_own(headers)}

    def _of_value(self, value: Any) -> bytes | None:  # noqa: ANN401 - what JSON has
        if value is None:
            return None
        if not isinstance(value, str):
            return json.dumps(value, ensure_ascii=False).encode()
        return from_hex(value) if self.is_hex else value.encode()

    def _with_own(self, headers: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
        own = [{"key": key, "value": value} for key, value in self.headers]
        return [*headers, *own] or None


def _header(entry: Any) -> tuple[str, Any]:  # noqa: ANN401 - what JSON has
    if not isinstance(entry, dict) or not isinstance(entry.get("key"), str):
        raise TypeError(f"a header is {entry!r}, expected such as {{'key': 'h', 'value': 'v'}}")
    return entry["key"], entry.get("value")
