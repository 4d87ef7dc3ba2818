"""The commands about record batches and records: ``verify``, ``dump``, ``consume``."""

from __future__ import annotations

import shlex
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kafkalog.errors import OptionError
from kafkalog.jobs.cli import arguments as given
from kafkalog.jobs.cli.arguments import Json, Paths  # noqa: TC001 - typer reads them
from kafkalog.jobs.cli.output import exit_if, one_line_errors, print_rows
from kafkalog.jobs.inspection.units import shown_size
from kafkalog.jobs.process.arguments import (
    READ_ISOLATION,
    SETTINGS,
    Isolation,
    reading_options,
    select_topics,
    split_names,
)
from kafkalog.jobs.process.running import Form, print_line, printing
from kafkalog.model import INTERNAL_TOPICS, TopicSelection, listed, many

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    import pyarrow as pa

    from kafkalog.jobs.cli.record_printing import Printer
    from kafkalog.jobs.inspection.records import RecordFilter, RecordReader


__all__ = ["consume", "dump", "verify"]


# ----------------------------------------------------------------------------------------------
# The command that checks batches: ``verify``.


_ONE: Final = {
    "partitions": "partition",
    "segments": "segment",
    "batches": "batch",
    "problems": "problem",
}


@given.with_tier
def verify(
    paths: Paths,
    topic: given.Topics = None,
    show_all: Annotated[
        bool, typer.Option("--all", "-v", help="Print sound segments too.")
    ] = False,
    as_json: Json = False,
    tier: given.Tier = given.NO_TIER,
) -> None:
    """Check every batch of every segment, and the indexes; changes nothing."""
    with one_line_errors():
        from kafkalog.jobs.inspection.batches import summary_of, verify_logs  # noqa: PLC0415

        there = tier.below(paths)
        rows = verify_logs(there, select_topics(topic))
    summary = summary_of(rows)
    shown = [row for row in rows if show_all or as_json or row["problem"]]
    if as_json:
        is_csv = printing().form is Form.CSV
        print_rows(shown if is_csv else [*shown, summary], as_json=True)
    else:
        print_rows(shown, as_json=False)
    if not as_json or is_csv:  # which has one table
        totals = (
            shown_size(count) if name == "bytes" else many(count, _ONE[name])
            for name, count in summary.items()
        )
        print_line(", ".join(totals), err=as_json)
    exit_if([summary["problems"]])


# ----------------------------------------------------------------------------------------------
# The command that shows record batches and records: ``dump``.


Records = Annotated[
    bool, typer.Option("--records", help="Show records. Any option for records implies it.")
]
Count = Annotated[
    int | None,
    typer.Option(
        "--limit",
        "-n",
        "--count",
        min=1,
        help="How many batches or records at most. Default: 100 in a table.",
    ),
]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Continue with what comes later.")]
Parquet = Annotated[
    str | None, typer.Option(metavar="FILE", help="Write the records to a new Parquet file.")
]

_TABLE_ROWS: Final = 100
_SPARE: Final = (
    "timestampType",
    "magic",
    "crc",
    "baseTimestamp",
    "lastSequence",
    "leaderEpoch",
    "deleteHorizonMs",
    "file",
    "baseSequence",
    "producerEpoch",
    "transactional",
)
_LINE: Final = r"%t-%p@%o %T %k: %s\n"


@dataclass(frozen=True, slots=True)
class _Output:
    """How records are shown."""

    template: str | None
    parquet: str | None
    follow: bool
    is_hex: bool
    as_json: bool
    is_asked: bool = False
    """Whether somebody has said how many records to show."""
    grows: bool = False
    """Whether what follows is a table that goes on, and not lines of their own form."""

    def check(self, words: given.Words) -> None:
        chosen = {"--format": self.template, "--parquet": self.parquet, "--json": self.as_json}
        named = [name for name, value in chosen.items() if value not in {None, False}]
        if len(named) > 1:
            raise OptionError(f"give one of {' and '.join(named)}, not both")
        if self.follow and self.parquet is not None:
            raise OptionError("--parquet writes a file that ends: leave --follow out")
        if self.follow and (words.end is not None or words.until is not None):
            ends = "--until" if self.grows else "--end and --until"
            raise OptionError(f"--follow has no end: leave {ends} out, or use --limit")

    @property
    def is_for_records(self) -> bool:
        return self.template is not None or self.parquet is not None or self.follow

    @property
    def is_table(self) -> bool:
        return not (self.is_for_records or self.as_json)

    def open(self, reader: RecordReader, logs: Sequence[str]) -> AbstractContextManager[Printer]:
        from kafkalog.jobs.cli import record_printing as printing  # noqa: PLC0415

        if self.parquet is not None:
            return printing.parquet_file(self.parquet, reader.rows.to_arrow(), logs)
        if self.follow and self.grows and self.template is None and not self.as_json:
            return nullcontext(printing.LinesPrinter(is_hex=self.is_hex))
        template = _LINE if self.follow and self.template is None else self.template
        form = {"is_hex": self.is_hex, "as_json": self.as_json, "is_copy": True}
        form["is_asked"] = self.is_asked
        return nullcontext(printing.printer_of(template, **form))


@given.with_tier
def dump(  # noqa: PLR0917 - what the command line offers
    paths: Paths,
    topic: given.TopicNames = None,
    partition: given.Partition = None,
    start: given.Start = 0,
    count: Count = None,
    records: Records = False,
    end: given.End = None,
    since: given.Since = None,
    until: given.Until = None,
    key: given.Key = None,
    header: given.Header = None,
    producer: given.Producer = None,
    transactional_id: given.Transaction = None,
    group: given.Group = None,
    follow: Follow = False,
    template: given.Format = None,
    parquet: Parquet = None,
    is_hex: given.Hex = False,
    isolation: READ_ISOLATION = Isolation.UNCOMMITTED,
    settings: SETTINGS = None,
    as_json: Json = False,
    tier: given.Tier = given.NO_TIER,
) -> None:
    """Show headers of record batches, records with --records, or what is in a single file."""
    words = given.Words(
        *(partition, start, end, since, until, key, header, producer, transactional_id, is_hex)
    )
    output = _Output(template, parquet, follow, is_hex, as_json, count is not None)
    with one_line_errors():
        options = reading_options(isolation, settings)
        is_for_records = any((records, is_hex, group, output.is_for_records, words.are_for_records))
        if not (topics := _topics_of(paths, topic)):
            file = _only_file(paths, is_for_records=is_for_records)
            _dump_file(file, words, count, as_json=as_json)
        elif is_for_records:
            begin = _Start(group, words.start)
            _show_records(tier.below(paths), topics, words, output, count, options, begin)
        else:
            _dump_batches(tier.below(paths), topics, words, count, as_json=as_json)


def _topics_of(paths: list[str], given: list[str] | None) -> tuple[str, ...]:
    """Return the topics that are named; else the one whose folder is; else none."""
    if given:
        return split_names(given)
    of_folder = _topic_of_folder(paths)
    return () if of_folder is None else (of_folder,)


def _topic_of_folder(paths: list[str]) -> str | None:
    """Return whose log is in the one folder that is named, also in one that was set aside."""
    from kafkalog.streaming.log.files import (  # noqa: PLC0415
        parse_partition_directory,
        parse_retired_directory,
    )

    path = Path(paths[0]).absolute()
    if len(paths) > 1 or not path.is_dir():
        return None
    key = parse_partition_directory(path.name) or parse_retired_directory(path.name)
    return None if key is None else key.topic


def _only_file(paths: list[str], *, is_for_records: bool) -> Path:
    path = Path(paths[0])
    if len(paths) == 1 and path.suffix and not path.exists() and "://" not in paths[0]:
        raise OptionError(f"there is no file {path}, and no folder of that name")
    if len(paths) > 1 or not path.is_file():
        from kafkalog.jobs.inspection.log_dirs import log_dirs_of  # noqa: PLC0415

        log_dirs_of(paths).partitions()  # says of a folder that it is not there, or no log
        raise OptionError("say which topic: --topic; `kafkalog topic list` lists them")
    if is_for_records:
        folder = shlex.quote(str(path.parent))
        way = f": kafkalog dump {folder} --records" if _topic_of_folder([str(path.parent)]) else ""
        raise OptionError(
            f"{path} is a file: records are shown of a partition's folder, or of a log directory "
            f"and --topic{way}"
        )
    return path


def _dump_file(path: Path, words: given.Words, count: int | None, *, as_json: bool) -> None:
    from kafkalog.jobs.inspection.batches import dump_file  # noqa: PLC0415

    found = dump_file(path, words.start, _most(count, as_json=as_json))
    if not _dump_rows(found, count, as_json=as_json):
        print_line(f"{path}: nothing is in it from offset {words.start} on", err=True)


def _dump_batches(
    paths: list[str],
    topics: tuple[str, ...],
    words: given.Words,
    count: int | None,
    *,
    as_json: bool,
) -> None:
    from kafkalog.jobs.inspection.batches import dump_batches  # noqa: PLC0415

    most = _most(count, as_json=as_json)
    wanted = TopicSelection(topics)
    found = dump_batches(paths, wanted, words.partition, words.start, most)
    _dump_rows(found, count, as_json=as_json)


def _most(count: int | None, *, as_json: bool) -> int | None:
    """Return how many rows are shown: a table ends by itself, and shows one more to know that."""
    return count if as_json or count is not None else _TABLE_ROWS + 1


def _dump_rows(found: Iterator[Mapping[str, Any]], count: int | None, *, as_json: bool) -> int:
    """Print rows; return how many. Objects come at once, a table when all of it is there."""
    from kafkalog.errors import KafkaLogError  # noqa: PLC0415

    rows: list[Mapping[str, Any]] = []
    is_wrong, shown = False, 0
    try:
        for shown, row in enumerate(found, 1):  # noqa: B007 - the last number is the count
            is_wrong |= bool(row.get("error"))
            if as_json:
                print_rows([row], as_json=True)
            else:
                rows.append(row)
    except KafkaLogError:
        print_rows(rows, as_json=False, spare=_SPARE)
        raise
    is_cut = not as_json and count is None and shown > _TABLE_ROWS
    shown_rows = rows[:_TABLE_ROWS] if is_cut else rows
    print_rows(shown_rows, as_json=False, spare=_SPARE, is_asked=count is not None)
    if is_cut:
        print_line(f"the first {_TABLE_ROWS} rows; --limit shows more", err=True)
    exit_if([is_wrong])
    return shown


# ----------------------------------------------------------------------------------------------
# The command that shows records, as kcat does: ``consume``.


Offset = Annotated[
    str | None,
    typer.Option(
        "--offset",
        "-o",
        metavar="OFFSET",
        help="Where to begin: an offset, earliest, latest, or -N for the last N of each partition.",
    ),
]
Limit = Annotated[
    int | None,
    typer.Option("--limit", "-n", min=1, help="End after so many records."),
]
FollowLater = Annotated[bool, typer.Option("--follow", help="Continue with what comes later.")]


@given.with_tier
def consume(  # noqa: PLR0917 - what the command line offers
    paths: Paths,
    topic: given.TopicNames = None,
    partition: given.Partition = None,
    offset: Offset = None,
    limit: Limit = None,
    template: given.Template = None,
    follow: FollowLater = False,
    since: given.Since = None,
    until: given.Until = None,
    key: given.Key = None,
    header: given.Header = None,
    producer: given.Producer = None,
    transactional_id: given.Transaction = None,
    group: given.Group = None,
    parquet: Parquet = None,
    is_hex: given.Hex = False,
    isolation: READ_ISOLATION = Isolation.UNCOMMITTED,
    settings: SETTINGS = None,
    as_json: Json = False,
    tier: given.Tier = given.NO_TIER,
) -> None:
    """Show records of topics: those that are there, or with --follow those that come too."""
    with one_line_errors():
        from kafkalog.jobs.inspection.log_dirs import partitions_of  # noqa: PLC0415

        start = _Start.parse(offset, group)
        words = given.Words(
            *(partition, start.offset, None, since, until, key, header, producer),
            *(transactional_id, is_hex),
        )
        options = reading_options(isolation, settings)
        there = tier.below(paths)
        topics = _topics_of(paths, topic) or (_only_topic(there),)
        asked = limit is not None
        output = _Output(template, parquet, follow, is_hex, as_json, asked, grows=True)
        if not follow:
            partitions_of(there, TopicSelection(topics))
        _show_records(there, topics, words, output, limit, options, start)


def _only_topic(paths: Sequence[str]) -> str:
    """Return the one topic that is there, but for Kafka's own."""
    from kafkalog.jobs.inspection.log_dirs import partitions_of  # noqa: PLC0415

    topics = {key.topic for key in partitions_of(paths)} - INTERNAL_TOPICS
    if len(topics) != 1:
        raise OptionError(f"say which topic: -t. Topics there: {listed(sorted(topics)) or 'none'}")
    return topics.pop()


@dataclass(frozen=True, slots=True)
class _Start:
    """Where reading begins: after what a group has read, at an offset, or so many before ends."""

    group: str | None = None
    offset: int = 0
    last: int | None = None
    """Offsets before the end of each partition."""

    @classmethod
    def parse(cls, text: str | None, group: str | None) -> _Start:
        """Read ``--offset``.

        Raises:
            OptionError: it is none; or both are given.
        """
        if text is None:
            return cls(group)
        if group is not None:
            raise OptionError("give --group or --offset, not both")
        word = text.strip().lower()
        if word in {"latest", "end"}:
            return cls(last=0)
        if word in {"earliest", "beginning", "start"}:
            return cls()
        word = word.replace(",", "")  # as tables show numbers
        if not word.removeprefix("-").isdecimal() or not word.isascii():
            raise OptionError(
                f"--offset is {text!r}, expected an offset, earliest, latest, or such as -10 for "
                "the last ten of each partition"
            )
        return cls(last=int(word[1:])) if word.startswith("-") else cls(offset=int(word))

    def options(
        self, paths: list[str], topics: Sequence[str], wanted: RecordFilter, *, follow: bool
    ) -> dict[str, str]:
        """Return the options of the source that say so.

        Raises:
            OptionError: nothing that is there would be read.
        """
        if self.last is None:
            return wanted.starting(self.group, follow=follow)
        if not self.last and not follow:
            raise OptionError("--offset latest goes with --follow: nothing is there yet")
        from kafkalog.jobs.inspection.records import offsets_before_end  # noqa: PLC0415

        return offsets_before_end(paths, topics, wanted.partition, self.last)


def _show_records(
    paths: list[str],
    topics: Sequence[str],
    words: given.Words,
    output: _Output,
    count: int | None,
    options: dict[str, str],
    start: _Start,
) -> None:
    from kafkalog.jobs.cli.record_printing import limited  # noqa: PLC0415
    from kafkalog.jobs.inspection.log_dirs import source_options  # noqa: PLC0415
    from kafkalog.jobs.inspection.records import RecordReader  # noqa: PLC0415

    output.check(words)
    named = source_options(paths)
    wanted = words.wanted(named["path"])
    begin = start.options(paths, topics, wanted, follow=output.follow)
    reader = RecordReader.of({**named, **begin, **options}, topics, wanted)
    most = _TABLE_ROWS if count is None and output.is_table else count
    shown = 0
    with output.open(reader, paths) as printer:
        try:
            for batch in limited(_batches(reader, follow=output.follow), most):
                printer.add(batch)
                shown += batch.num_rows
        finally:
            printer.end()
    if output.parquet is not None:
        print_line(f"{many(shown, 'record')} in {output.parquet}", err=True)
    if count is None and shown == most:
        print_line(f"the first {shown} records; --limit shows more", err=True)
    if not shown and not output.follow:
        _tell_none(paths, topics, words.partition)


def _tell_none(paths: list[str], topics: Sequence[str], partition: int | None) -> None:
    from kafkalog.jobs.inspection.batches import offsets_there  # noqa: PLC0415

    there = offsets_there(paths, TopicSelection(tuple(topics)), partition)
    print_line(f"no such record is in {listed(topics)}: {there}", err=True)


def _batches(reader: RecordReader, *, follow: bool) -> Iterator[pa.RecordBatch]:
    for split in reader.new_splits() if follow else reader.splits():
        yield from reader.read(split)
