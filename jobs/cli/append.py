"""The command that appends records from standard input: ``produce``."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain, repeat
from typing import TYPE_CHECKING, Annotated

import typer

from kafkalog.errors import BatchIdentityError, OptionError
from kafkalog.jobs.cli.arguments import Hex, Json, Paths, Topic, data_of
from kafkalog.jobs.cli.output import (
    PROBLEM,
    one_line_errors,
    print_rows,
    standard_input,
    tell_if_nothing,
)
from kafkalog.jobs.process.arguments import SETTINGS, check_text, named_values, pairs
from kafkalog.jobs.process.running import drop_output, print_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from kafkalog.checkpoints.commit_state import TopicState
    from kafkalog.jobs.cli.line_input import RecordLines

__all__ = ["produce"]


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
    int | None,
    typer.Option("--partition", "-p", min=0, help="The partition of lines that name none."),
]
Key = Annotated[
    str | None, typer.Option("--key", "-k", help="The key of lines that have none, as for kcat.")
]
Lines = Annotated[int, typer.Option("--commit-lines", min=1, help="Commit after so many lines.")]
Seconds = Annotated[
    float,
    typer.Option("--commit-seconds", min=0.01, help="Commit when a line has waited for so long."),
]
Name = Annotated[
    str | None,
    typer.Option(
        "--transactional-id", help="Append once under this id: what is there already is skipped."
    ),
]


def produce(  # noqa: PLR0917 - what the command line offers
    paths: Paths,
    topic: Topic,
    form: Form = _Input.LINES,
    key: Key = None,
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
        from kafkalog.jobs.cli.line_input import RecordLines  # noqa: PLC0415
        from kafkalog.jobs.cli.record_printing import delimiter_of  # noqa: PLC0415

        lines = RecordLines(
            key=None if key is None else data_of(key, is_hex=is_hex),
            delimiter=None if delimiter is None else delimiter_of("--key-delimiter", delimiter),
            as_json=form is _Input.JSON,
            is_hex=is_hex,
            empty_is_null=empty_is_null,
            headers=[_header(name, value) for name, value in named_values(header)],
            partition=partition,
        )
        done = _Done(",".join(paths), topic, transactional_id, pairs(settings))
        done.check()
        try:
            # two runs at once under one name have to cut the same commits
            done.append_all(lines, commit_lines, None if transactional_id else commit_seconds)
        except BaseException as error:
            done.tell_after(error, as_json=as_json)
            raise
        done.tell(as_json=as_json)
        tell_if_nothing(done.lines, "nothing is appended: standard input had no line")


def _cut(lines: int, most: int) -> Iterator[int]:
    """Cut a number of lines into pieces of ``most``."""
    while lines > 0:
        yield min(lines, most)
        lines -= most


def _header(name: str, value: str) -> tuple[str, bytes]:
    """Return a header; a value that is no text comes by ``--input json --hex``."""
    check_text("--header", f"{name}={value}")
    return name, value.encode()


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
        from kafkalog.jobs.inspection.log_dirs import check_no_new_beside_old  # noqa: PLC0415
        from kafkalog.streaming.sink.write_options import WriteOptions  # noqa: PLC0415

        hint = ". Records come from standard input: < FILE"
        check_no_new_beside_old([self.path], hint)
        WriteOptions.parse({**self.options, "path": self.path, "topic": self.topic})

    def append_all(self, lines: RecordLines, most: int, seconds: float | None) -> None:
        """Append standard input to its end; a commit's version is the number of its last line.

        Raises:
            BatchIdentityError: what is there under this name are not the first lines of this input.
        """
        from kafkalog.jobs.cli.line_input import line_batches, pieces_of  # noqa: PLC0415

        known, first = self._known_lines()
        sizes = chain(_cut(first, most), _cut(known - first, known), repeat(most))
        for batch in line_batches(pieces_of(standard_input().buffer), sizes, seconds):
            if first < self.lines + len(batch) < known:
                break
            if self.lines >= first:
                self._append(lines.table(batch, self.lines + 1), self.lines + len(batch))
            self.lines += len(batch)
        if self.lines < known:
            raise BatchIdentityError(
                f"{known} lines are in topic {self.topic} under the name "
                f"{self.transactional_id!r}, and the input has fewer: it is not the one that was "
                "appended. Nothing was written. Give another --transactional-id to append this one"
            )

    def _append(self, table: pa.Table, last: int) -> None:
        from kafkalog.streaming.api import append as append_rows  # noqa: PLC0415

        self.committing = len(table)
        outcome = append_rows(
            self.path,
            self.topic,
            table,
            transactional_id=self.transactional_id,
            version=None if self.transactional_id is None else last,
            options=self.options,
        )
        self.committing = 0
        self.records += len(table) if outcome.appended else 0
        self.commits += outcome.appended
        self.ends |= {str(key): end for key, end in outcome.end_offsets.items()}

    def _known_lines(self) -> tuple[int, int]:
        """Return how many lines are there under this name, and how many before the last commit.

        The last commit is cut again as it was, whatever ``--commit-lines`` is now: its rows are
        compared. Those of the commits before it are not kept.
        """
        from kafkalog.streaming.commit.versions import last_version  # noqa: PLC0415

        if self.transactional_id is None:
            return 0, 0
        known, rows = last_version(self._known_topic(), self.transactional_id) or (0, 0)
        if rows is None or rows > known:
            raise BatchIdentityError(
                f"the name {self.transactional_id!r} was given to other appends to topic "
                f"{self.topic}, whose versions are no numbers of lines. Nothing was written. Give "
                "another --transactional-id"
            )
        return known, known - rows

    def _known_topic(self) -> TopicState | None:
        """Return what the log's state knows of the topic; None where there is no such topic."""
        from kafkalog.checkpoints.committed import load_committed  # noqa: PLC0415
        from kafkalog.streaming.commit.versions import known_topics  # noqa: PLC0415
        from kafkalog.streaming.objects.bucket_store import bucket_of  # noqa: PLC0415
        from kafkalog.streaming.sink.write_options import WriteOptions  # noqa: PLC0415
        from kafkalog.streaming.store.session import inspect_state, parse_log_dirs  # noqa: PLC0415

        if (root := bucket_of([self.path])) is not None:
            store = root.open_store()
            store.forget_listing()
            topics = () if store.is_empty() else store.committed().topics.values()
            return next((topic for topic in topics if topic.name == self.topic), None)
        folders = parse_log_dirs([self.path])
        if load_committed(folders).state is None:
            return None
        options = WriteOptions.parse({**self.options, "path": self.path, "topic": self.topic})
        return known_topics(inspect_state(folders, options.policy), {self.topic}).get(self.topic)

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
            if isinstance(error, OSError):
                drop_output()
            why = getattr(error, "strerror", None) or error
            ends = ", ".join(f"{key}={end}" for key, end in self.ends.items())
            said = f"appended up to {ends}; only this cannot be printed: {why}"
            print_line(said, err=True)
            raise typer.Exit(PROBLEM) from None
