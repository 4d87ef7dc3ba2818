"""Print records: as a table, one object a line, by a format, or into a Parquet file."""

from __future__ import annotations

import os
import re
import struct
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow.parquet as pq
import typer

from kafkalog.errors import OptionError
from kafkalog.jobs.cli.lookup import shown_data, shown_record
from kafkalog.jobs.cli.output import Lines, print_data, print_rows
from kafkalog.jobs.process.arguments import check_file
from kafkalog.jobs.process.running import Form, json_line, printing
from kafkalog.model import many
from kafkalog.streaming.lookup.lookup import with_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa


__all__ = [
    "CsvPrinter",
    "FormatPrinter",
    "JsonPrinter",
    "LinesPrinter",
    "Printer",
    "RecordFormat",
    "TablePrinter",
    "delimiter_of",
    "limited",
    "parquet_file",
    "printer_of",
]


# ----------------------------------------------------------------------------------------------
# Records as text, by the tokens of kcat: ``%t %p %o %k %s\n``.
#
# =====  ==================================================================
# ``%s``  value, ``%S`` its length (-1 for null), ``%R`` that as four bytes
# ``%k``  key, ``%K`` its length
# ``%t``  topic, ``%p`` partition, ``%o`` offset, ``%T`` timestamp in ms
# ``%h``  headers as ``name=value,name=value``
# ``%%``  a per cent sign
# =====  ==================================================================
#
# ``\n \r \t \0`` and ``\xNN`` stand for a byte. A null is printed as nothing, as in kcat.
#
# Source: kcat 1.7 ``format.c``.


_LENGTH: Final = struct.Struct(">i")
_BYTES: Final = {"0": b"\0", "n": b"\n", "r": b"\r", "t": b"\t"}
_PARTS: Final = re.compile(
    r"%(?P<letter>.?)|\\(?P<escape>x[0-9A-Fa-f]{1,2}|.)|[^%\\]+|\\", re.DOTALL
)


def _number(name: str) -> Callable[[Mapping[str, Any]], bytes]:
    return lambda row: str(-1 if row[name] is None else row[name]).encode()


def _data(name: str) -> Callable[[Mapping[str, Any]], bytes]:
    return lambda row: row[name] or b""


def _length(name: str) -> Callable[[Mapping[str, Any]], int]:
    return lambda row: -1 if row[name] is None else len(row[name])


def _headers(row: Mapping[str, Any]) -> bytes:
    return b",".join(map(_header, row["headers"] or ()))


def _header(header: Mapping[str, Any]) -> bytes:
    value = b"NULL" if header["value"] is None else header["value"]
    return header["key"].encode("utf-8", "surrogateescape") + b"=" + value  # type: ignore[no-any-return]


_TOKENS: Final[dict[str, Callable[[Mapping[str, Any]], bytes]]] = {
    "s": _data("value"),
    "S": lambda row: str(_length("value")(row)).encode(),
    "R": lambda row: _LENGTH.pack(_length("value")(row)),
    "k": _data("key"),
    "K": lambda row: str(_length("key")(row)).encode(),
    "t": lambda row: row["topic"].encode(),
    "p": _number("partition"),
    "o": _number("offset"),
    "T": _number("timestamp"),
    "h": _headers,
}

_ESCAPED: Final = re.compile(r"\\(?P<escape>x[0-9A-Fa-f]{1,2}|.)", re.DOTALL)


def delimiter_of(option: str, text: str) -> bytes:
    r"""Return the bytes of a delimiter, which may be written ``\t`` or ``\x1f``, as for kcat.

    Raises:
        OptionError: it is empty.
    """
    if not text:
        raise OptionError(f"{option} is empty")
    data = bytearray()
    end = 0
    for found in _ESCAPED.finditer(text):
        data += text[end : found.start()].encode("utf-8", "surrogateescape")
        data += _escaped(found["escape"])
        end = found.end()
    return bytes(data + text[end:].encode("utf-8", "surrogateescape"))


class RecordFormat:
    """A format, parsed once."""

    def __init__(self, text: str) -> None:
        """Parse.

        Raises:
            OptionError: a token that there is not.
        """
        self._parts: list[bytes | Callable[[Mapping[str, Any]], bytes]] = []
        for found in _PARTS.finditer(text):
            self._parts.append(_part(found))

    def line(self, row: Mapping[str, Any]) -> bytes:
        """Return the bytes of a record with ``key``, ``value`` and header values as bytes."""
        return b"".join(part if isinstance(part, bytes) else part(row) for part in self._parts)


def _part(found: re.Match[str]) -> bytes | Callable[[Mapping[str, Any]], bytes]:
    letter, escape = found["letter"], found["escape"]
    if letter == "%":
        return b"%"
    if letter is not None:
        if letter not in _TOKENS:
            raise OptionError(
                f"--format has %{letter}, expected one of %{' %'.join(_TOKENS)} and %%"
            )
        return _TOKENS[letter]
    if escape is None:
        return found[0].encode("utf-8", "surrogateescape")
    return _escaped(escape)


def _escaped(escape: str) -> bytes:
    """Return the byte that stands behind a backslash."""
    if len(escape) > 1:
        return bytes([int(escape[1:], 16)])
    return _BYTES.get(escape, escape.encode("utf-8", "surrogateescape"))


# ----------------------------------------------------------------------------------------------


_ESCAPE: Final = r"\\x"
"""How what stands for a byte that is no text begins in JSON: most lines have none."""


class Printer(Protocol):
    """What takes records, batch by batch."""

    def add(self, batch: pa.RecordBatch) -> None:
        """Take records with all columns of the source."""
        ...

    def end(self) -> None:
        """Print what was kept: there are no more records, or the next ones cannot be read."""
        ...


class JsonPrinter:
    """Prints one object a line, at once; of a copy says at the end if some bytes are not in it."""

    def __init__(self, *, is_hex: bool, is_copy: bool) -> None:
        self._show = shown_data(is_hex=is_hex)
        self._is_lossy = is_copy and not is_hex
        self._escaped = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Print them."""
        for row in with_ms(batch).to_pylist():
            line = json_line(shown_record(row, self._show))
            typer.echo(line)
            if self._is_lossy and _ESCAPE in line and not _is_utf8(row):
                self._escaped += 1

    def end(self) -> None:
        """Name the records with other bytes than text: nobody sees which backslashes are theirs."""
        if self._escaped:
            typer.echo(
                f"{many(self._escaped, 'record')} with bytes that are not UTF-8, written as "
                r"\xff: `produce --input json` takes that for text. --hex keeps all of it",
                err=True,
            )
            self._escaped = 0


class CsvPrinter:
    """Prints records as CSV, at once."""

    def __init__(self, *, is_hex: bool) -> None:
        self._show = shown_data(is_hex=is_hex)

    def add(self, batch: pa.RecordBatch) -> None:
        """Print them."""
        print_data(shown_record(row, self._show) for row in with_ms(batch).to_pylist())

    def end(self) -> None:
        """Do nothing."""


def _is_utf8(row: dict[str, Any]) -> bool:
    data = [row["key"], row["value"], *(each["value"] for each in row["headers"] or ())]
    try:
        for each in data:
            if each is not None:
                each.decode()
    except UnicodeDecodeError:
        return False
    return True


class FormatPrinter:
    """Prints the bytes of a format, at once."""

    def __init__(self, record_format: RecordFormat) -> None:
        self._format = record_format

    def add(self, batch: pa.RecordBatch) -> None:
        """Print them."""
        rows = with_ms(batch).to_pylist()
        typer.echo(b"".join(map(self._format.line, rows)), nl=False)

    def end(self) -> None:
        """Do nothing."""


class TablePrinter:
    """Prints a table when all records are there."""

    def __init__(self, *, is_hex: bool, is_asked: bool = False) -> None:
        self._show = shown_data(is_hex=is_hex)
        self._is_asked = is_asked
        self._rows: list[dict[str, Any]] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Keep them."""
        self._rows += [shown_record(row, self._show) for row in with_ms(batch).to_pylist()]

    def end(self) -> None:
        """Print the table."""
        print_rows(
            self._rows,
            as_json=False,
            spare=("headers", "timestamp"),
            cut=("key", "value", "headers"),
            is_asked=self._is_asked,
        )


class LinesPrinter:
    """Prints a table that goes on: its names once, and records as they come."""

    def __init__(self, *, is_hex: bool) -> None:
        self._show = shown_data(is_hex=is_hex)
        self._lines = Lines()

    def add(self, batch: pa.RecordBatch) -> None:
        """Print them."""
        rows = [shown_record(row, self._show) for row in with_ms(batch).to_pylist()]
        for line in self._lines.of(rows):
            typer.echo(line)

    def end(self) -> None:
        """Do nothing."""


def printer_of(
    template: str | None,
    *,
    is_hex: bool,
    as_json: bool,
    is_copy: bool = False,
    is_asked: bool = False,
) -> Printer:
    """Choose how records are printed: as objects, by a format as kcat's, or as a table.

    ``is_asked``: whether somebody has said how many.
    """
    if as_json and printing().form is Form.CSV:
        return CsvPrinter(is_hex=is_hex)
    if as_json:
        return JsonPrinter(is_hex=is_hex, is_copy=is_copy)
    if template is not None:
        return FormatPrinter(RecordFormat(template))
    return TablePrinter(is_hex=is_hex, is_asked=is_asked)


class _ParquetPrinter:
    def __init__(self, writer: pq.ParquetWriter) -> None:
        self._writer = writer

    def add(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def end(self) -> None:
        pass


@contextmanager
def parquet_file(target: str, schema: pa.Schema, logs: Sequence[str]) -> Iterator[Printer]:
    """Write records to a file that has its name only when all of them are in it.

    Raises:
        OptionError: there is such a file already, it lies in one of the log directories, or there
            is no folder for it.
    """
    path = Path(target)
    check_file("--parquet", path, logs, example="records.parquet")
    if path.exists():
        raise OptionError(f"{path} is there already: name another file, or remove it")
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with pq.ParquetWriter(partial, schema, compression="zstd") as writer:
            yield _ParquetPrinter(writer)
        partial.rename(path)
    finally:
        partial.unlink(missing_ok=True)


def limited(batches: Iterable[pa.RecordBatch], most: int | None) -> Iterator[pa.RecordBatch]:
    """Return the first records, if there are more than ``most``."""
    left = most
    for batch in batches:
        if left is None:
            yield batch
            continue
        yield batch.slice(0, min(left, batch.num_rows))
        left -= min(left, batch.num_rows)
        if not left:
            return
