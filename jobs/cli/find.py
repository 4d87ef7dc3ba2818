"""The command that looks for records in all partitions: ``find``."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kafkalog.errors import OptionError
from kafkalog.jobs.cli import arguments as given
from kafkalog.jobs.cli.arguments import Json, Paths, Topics  # noqa: TC001 - typer reads them
from kafkalog.jobs.cli.output import end_if_nothing, one_line_errors, progress_bar
from kafkalog.jobs.process.arguments import (
    READ_ISOLATION,
    SETTINGS,
    Isolation,
    check_text,
    reading_options,
    split_names,
)
from kafkalog.model import INTERNAL_TOPICS, listed

if TYPE_CHECKING:
    from kafkalog.jobs.inspection.records import RecordReader

__all__ = ["find"]


class _Where(StrEnum):
    """What an expression is looked for in."""

    KEY = "key"
    VALUE = "value"
    BOTH = "both"


Regex = Annotated[
    str | None,
    typer.Option("--regex", "-e", help="A regular expression (RE2) that is in key or value."),
]
Text = Annotated[str | None, typer.Option("--text", "-F", help="A text that is in key or value.")]
In = Annotated[_Where, typer.Option("--in", help="Where to look for --regex and --text.")]
IgnoreCase = Annotated[bool, typer.Option("--ignore-case", "-i", help="Ignore case.")]
Count = Annotated[
    int | None, typer.Option("--limit", "-n", "--count", min=1, help="End after so many records.")
]


@given.with_tier
def find(  # noqa: PLR0917 - what the command line offers
    paths: Paths,
    topic: Topics = None,
    regex: Regex = None,
    text: Text = None,
    where: In = _Where.BOTH,
    ignore_case: IgnoreCase = False,
    key: given.Key = None,
    partition: given.Partition = None,
    since: given.Since = None,
    until: given.Until = None,
    header: given.Header = None,
    producer: given.Producer = None,
    transactional_id: given.Transaction = None,
    count: Count = None,
    template: given.Template = None,
    is_hex: given.Hex = False,
    isolation: READ_ISOLATION = Isolation.UNCOMMITTED,
    settings: SETTINGS = None,
    as_json: Json = False,
    tier: given.Tier = given.NO_TIER,
) -> None:
    """Look for records by key or text in all partitions; ends with 1 if there is none."""
    words = given.Words(
        *(partition, 0, None, since, until, key, header, producer, transactional_id, is_hex)
    )
    with one_line_errors():
        columns = ("key", "value") if where is _Where.BOTH else (where.value,)
        search = _search(regex, text, columns, ignore_case=ignore_case)
        if search is None and not words.are_for_records:
            raise OptionError("say what to look for: --key, --regex, --text or --header")
        if template is not None and as_json:
            raise OptionError("give one of --format and --json, not both")
        from kafkalog.jobs.inspection.records import RecordReader  # noqa: PLC0415

        options = {**tier.source_options(paths), **reading_options(isolation, settings)}
        topics = split_names(topic) if topic else _all_topics(tier.below(paths))
        reader = RecordReader.of(options, topics, words.wanted(options["path"], search))
        found = _show(reader, count, template, is_hex=is_hex, as_json=as_json)
    end_if_nothing(found, f"no such record is in {listed(topics)}")


def _search(
    regex: str | None, text: str | None, columns: tuple[str, ...], *, ignore_case: bool
) -> Any:  # noqa: ANN401 - a Search, whose module is only loaded when it is needed
    from kafkalog.jobs.inspection.records import Search  # noqa: PLC0415

    if regex is not None and text is not None:
        raise OptionError("give --regex or --text, not both")
    wanted = text if regex is None else regex
    if wanted is None:
        if ignore_case or len(columns) == 1:
            raise OptionError("--ignore-case and --in go with --regex or --text")
        return None
    check_text("--text" if regex is None else "--regex", wanted)
    search = Search(wanted, columns, is_fixed=regex is None, ignore_case=ignore_case)
    search.check()
    return search


def _all_topics(paths: list[str]) -> list[str]:
    """Name all topics but Kafka's own."""
    from kafkalog.jobs.inspection.log_dirs import partitions_of  # noqa: PLC0415

    topics = {key.topic for key in partitions_of(paths)}
    return sorted(topic for topic in topics if topic not in INTERNAL_TOPICS)


def _show(
    reader: RecordReader, count: int | None, template: str | None, *, is_hex: bool, as_json: bool
) -> int:
    from kafkalog.jobs.cli.record_printing import limited, printer_of  # noqa: PLC0415

    form = {"is_hex": is_hex, "as_json": as_json, "is_asked": count is not None}
    printer = printer_of(template, **form)
    found = 0
    try:
        with progress_bar() as told:
            for batch in limited(reader.read_all(told), count):
                printer.add(batch)
                found += batch.num_rows
    finally:
        printer.end()
    return found
