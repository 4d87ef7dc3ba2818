"""The command that appends records from standard input: ``append``."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from kafkalog.errors import OptionError
from kafkalog.jobs.arguments import SETTINGS, check_text, named_values, pairs
from kafkalog.jobs.cli.arguments import Json, Paths, Topic  # noqa: TC001 - typer reads annotations
from kafkalog.jobs.cli.output import (
    PROBLEM,
    one_line_errors,
    print_rows,
    standard_input,
    tell_if_nothing,
)
from kafkalog.jobs.running import print_line

if TYPE_CHECKING:
    from kafkalog.jobs.records.line_input import RecordLines

__all__ = ["append"]


class _Input(StrEnum):
    """What a line is."""

    LINES = "lines"
    JSON = "json"


Form = Annotated[
    _Input,
    typer.Option("--input", help="What a line is: a value, or a JSON object as dump prints them."),
]
Delimiter = Annotated[
    str | None,
    typer.Option("--key-delimiter", "-K", help=r"Between key and value, as for kcat: '\t'."),
]
EmptyIsNull = Annotated[
    bool, typer.Option("--empty-is-null", "-Z", help="An empty key or value is null, as for kcat.")
]
Header = Annotated[
    list[str] | None,
    typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header for all; repeatable."),
]
Partition = Annotated[
    int | None, typer.Option("--partition", min=0, help="Where all go that name no partition.")
]
Hex = Annotated[bool, typer.Option("--hex", help="Keys and values are hexadecimal digits.")]
Lines = Annotated[int, typer.Option("--commit-lines", min=1, help="Commit after so many lines.")]
Seconds = Annotated[
    float,
    typer.Option("--commit-seconds", min=0.01, help="Commit when a line has waited for so long."),
]
Name = Annotated[
    str | None,
    typer.Option("--transactional-id", help="Append once: skip what is there by this name."),
]


def append(  # noqa: PLR0917 - what the command line offers
    paths: Paths,
    topic: Topic,
    form: Form = _Input.LINES,
    delimiter: Delimiter = None,
    empty_is_null: EmptyIsNull = False,
    header: Header = None,
    partition: Partition = None,
    is_hex: Hex = False,
    commit_lines: Lines = 10_000,
    commit_seconds: Seconds = 1.0,
    transactional_id: Name = None,
    settings: SETTINGS = None,
    as_json: Json = False,
) -> None:
    """Append records from standard input: a commit for so many lines, or seconds."""
    with one_line_errors():
        from kafkalog.jobs.records.format import delimiter_of  # noqa: PLC0415
        from kafkalog.jobs.records.line_input import RecordLines  # noqa: PLC0415

        lines = RecordLines(
            delimiter=None if delimiter is None else delimiter_of("--key-delimiter", delimiter),
            as_json=form is _Input.JSON,
            is_hex=is_hex,
            empty_is_null=empty_is_null,
            headers=[_header(name, value) for name, value in named_values(header)],
            partition=partition,
        )
        # what is told apart by a number must be cut the same when it comes again
        seconds = commit_seconds if transactional_id is None else None
        done = _Done(",".join(paths), topic, transactional_id, pairs(settings))
        done.check()
        try:
            done.append_all(lines, commit_lines, seconds)
        except BaseException as error:
            done.tell_after(error, as_json=as_json)
            raise
        done.tell(as_json=as_json)
        tell_if_nothing(done.lines, "nothing is appended: standard input had no line")


def _header(name: str, value: str) -> tuple[str, bytes]:
    """Return a header, whose value may be any bytes, and its name is text."""
    check_text("--header", name)
    return name, value.encode("utf-8", "surrogateescape")


@dataclass(slots=True)
class _Done:
    """Appends batches, and knows what is committed."""

    path: str
    topic: str
    transactional_id: str | None
    options: dict[str, str]
    lines: int = 0
    records: int = 0
    commits: int = 0
    committing: int = 0
    """Lines of the commit that runs."""
    ends: dict[str, int] = field(default_factory=dict)

    def check(self) -> None:
        """Refuse what no append can use, before somebody types a line.

        Raises:
            OptionError, InvalidTopicError: options, a topic, or a folder to add to a log.
            LogDirectoryError: a log directory is a file.
        """
        from kafkalog.jobs.cli.log_dirs import check_no_new_beside_old  # noqa: PLC0415
        from kafkalog.streaming.sink.write_options import WriteOptions  # noqa: PLC0415

        hint = ". Records come from standard input: < FILE"
        check_no_new_beside_old([self.path], hint)
        WriteOptions.parse({**self.options, "path": self.path, "topic": self.topic})

    def append_all(self, lines: RecordLines, most: int, seconds: float | None) -> None:
        """Append standard input to its end."""
        from kafkalog.jobs.records.line_input import line_batches, pieces_of  # noqa: PLC0415
        from kafkalog.streaming.library import append as append_rows  # noqa: PLC0415

        given = line_batches(pieces_of(standard_input().buffer), most, seconds)
        for version, batch in enumerate(given):
            table = lines.table(batch, self.lines + 1)
            self.committing = len(batch)
            outcome = append_rows(
                self.path,
                self.topic,
                table,
                transactional_id=self.transactional_id,
                version=None if self.transactional_id is None else version,
                options=self.options,
            )
            self.committing = 0
            self.lines += len(batch)
            self.records += len(batch) if outcome.appended else 0
            self.commits += outcome.appended
            self.ends |= {str(key): end for key, end in outcome.end_offsets.items()}

    def tell_after(self, error: BaseException, *, as_json: bool) -> None:
        """Say what is committed, and after an interrupt which lines may be."""
        if self.commits:
            with suppress(typer.Exit):  # the error that is on its way says more
                self.tell(as_json=as_json)
        if self.committing and isinstance(error, KeyboardInterrupt):
            lines = f"lines {self.lines + 1} to {self.lines + self.committing}"
            said = f"interrupted amid a commit: {lines} are there, or none of them"
            print_line(said, err=True)

    def tell(self, *, as_json: bool) -> None:
        """Say what is committed."""
        row = {"topic": self.topic, "lines": self.lines, "records": self.records}
        try:
            print_rows([{**row, "commits": self.commits, "ends": self.ends}], as_json=as_json)
            sys.stdout.flush()
        except (OSError, OptionError) as error:  # the latter where there is no standard output
            if not self.commits:
                raise
            why = getattr(error, "strerror", None) or error
            ends = ", ".join(f"{key}={end}" for key, end in self.ends.items())
            said = f"appended up to {ends}; only this cannot be printed: {why}"
            print_line(said, err=True)
            raise typer.Exit(PROBLEM) from None
