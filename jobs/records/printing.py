"""Print records: as a table, one object a line, by a format, or into a Parquet file."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow.parquet as pq
import typer

from kafkalog.errors import OptionError
from kafkalog.jobs.cli.lookup_rows import shown_data, shown_record
from kafkalog.jobs.cli.output import print_rows
from kafkalog.jobs.records.format import RecordFormat
from kafkalog.jobs.running import json_line
from kafkalog.jobs.targets import check_file
from kafkalog.model import many
from kafkalog.streaming.source.lookup import with_ms

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

__all__ = [
    "FormatPrinter",
    "JsonPrinter",
    "Printer",
    "TablePrinter",
    "limited",
    "parquet_file",
    "printer_of",
]


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
                r"\xff: `append --input json` takes that for text. --hex keeps all of it",
                err=True,
            )
            self._escaped = 0


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

    def __init__(self, *, is_hex: bool) -> None:
        self._show = shown_data(is_hex=is_hex)
        self._rows: list[dict[str, Any]] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Keep them."""
        self._rows += [shown_record(row, self._show) for row in with_ms(batch).to_pylist()]

    def end(self) -> None:
        """Print the table."""
        print_rows(self._rows, as_json=False)


def printer_of(
    template: str | None, *, is_hex: bool, as_json: bool, is_copy: bool = False
) -> Printer:
    """Choose how records are printed: as objects, by a format as kcat's, or as a table."""
    if as_json:
        return JsonPrinter(is_hex=is_hex, is_copy=is_copy)
    if template is not None:
        return FormatPrinter(RecordFormat(template))
    return TablePrinter(is_hex=is_hex)


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
