"""The command that answers questions in SQL: ``sql``."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from itertools import count
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kafkalog.jobs.cli.arguments import NO_TIER, Json, Tier, with_tier
from kafkalog.jobs.cli.output import one_line_errors, print_rows, standard_input
from kafkalog.jobs.inspection.units import for_people
from kafkalog.jobs.process.arguments import (
    READ_ISOLATION,
    SETTINGS,
    Isolation,
    check_text,
    reading_options,
)
from kafkalog.jobs.process.running import default_path, leave_out_pandas, print_line
from kafkalog.model import many

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from kafkalog.jobs.sql import SqlSession

__all__ = ["sql"]

Words = Annotated[
    list[str],
    typer.Argument(
        metavar="PATH… [QUERY]", help="The log directories that belong together; a statement."
    ),
]

Files = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER", help="Where statements may read and write files: COPY, EXPORT, FROM 'f'."
    ),
]

_TABLE_ROWS: Final = 1000
_OF_BATCHES: Final = ("file", "baseTimestamp", "maxTimestamp")


@with_tier
def sql(
    words: Words,
    isolation: READ_ISOLATION = Isolation.UNCOMMITTED,
    settings: SETTINGS = None,
    files: Files = None,
    as_json: Json = False,
    tier: Tier = NO_TIER,
) -> None:
    """Ask in SQL (DuckDB's): topics are tables. Without a query, a prompt."""
    with one_line_errors():
        paths, last = _paths_and_statement(words, tier)
        leave_out_pandas()
        from kafkalog.jobs.sql import SqlSession  # noqa: PLC0415

        options = reading_options(isolation, settings)
        with SqlSession(tier.below(paths), options, files=files) as session:
            if last:
                _answer(session, last, as_json=as_json)
            elif standard_input().isatty():
                _prompt(session, as_json=as_json)
            else:
                _answer_piped(session, standard_input().read(), as_json=as_json)


def _paths_and_statement(words: list[str], tier: Tier) -> tuple[list[str], str]:
    """Tell log directories from a statement, which is the last word if it has a blank in it."""
    *paths, last = words
    paths = paths or default_path() or tier.alone
    if not paths or _is_there(last) or words == paths:
        return words, ""
    if any(map(str.isspace, last)):
        return paths, last
    if not set(last.rstrip(";")) & set("/:,;"):
        from kafkalog.errors import OptionError  # noqa: PLC0415

        example = '"select * from t"'
        raise OptionError(
            f"{last!r} is no folder, and no statement of SQL. Expected a log directory, or a "
            f"statement in quotes, such as {example}"
        )
    return words, ""


def _is_there(text: str) -> bool:
    with suppress(OSError, ValueError):  # of a statement that is too long for a name
        return Path(text).exists()
    return False


def _prompt(session: SqlSession, *, as_json: bool) -> None:
    from kafkalog.jobs.sql import SqlPrompt  # noqa: PLC0415

    prompt = SqlPrompt(lambda text: _answer(session, text, as_json=as_json), session.tables)
    while True:
        try:
            prompt.cmdloop()
        except KeyboardInterrupt:  # gives up what is typed, or the answer
            typer.echo()
            prompt.give_up()
            continue
        return


def _answer_piped(session: SqlSession, text: str, *, as_json: bool) -> None:
    """Answer a text that was piped: statements, and `help` between them, as at the prompt."""
    from kafkalog.jobs.sql import asks_for_help, help_on  # noqa: PLC0415

    begun: list[str] = []
    for line in text.splitlines():
        is_between = not begun or begun[-1].rstrip().endswith(";")
        if not (is_between and asks_for_help(line)):
            begun += [line] if line.strip() or begun else []
            continue
        _answer(session, "\n".join(begun), as_json=as_json)
        begun.clear()
        print_line(help_on(session.tables), err=as_json)
    _answer(session, "\n".join(begun), as_json=as_json)


def _answer(session: SqlSession, text: str, *, as_json: bool) -> None:
    """Print the rows of one statement after the other."""
    check_text("the statement", text)
    has_shown = False
    for statement in session.statements(text):
        if has_shown and not as_json:
            typer.echo()
        has_shown = _show(session, statement, as_json=as_json)


def _show(session: SqlSession, statement: str, *, as_json: bool) -> bool:
    """Print a statement's rows: all as JSON, the first ones as a table; tell if there are any."""
    shown: list[dict[str, Any]] = []
    more = False
    for batch in session.run(statement):
        rows = _rows(batch)
        if as_json:
            print_rows(rows, as_json=True)
            continue
        shown += rows
        more = len(shown) > _TABLE_ROWS
        if more:
            break
    first = [{**row, **_for_people(row)} for row in shown[:_TABLE_ROWS]]
    print_rows(first, as_json=False, has_units=False)
    if more:
        print_line(f"the first {_TABLE_ROWS} rows; --json shows all", err=True)
    return bool(shown)


def _for_people(row: dict[str, Any]) -> dict[str, Any]:
    """Return what a table shows of columns of ``batches`` that are hard to read."""
    known: dict[str, Any] = {name: row[name] for name in _OF_BATCHES if name in row}
    if not _is_segment(known.get("file")):  # somebody's own column: it is shown whole
        known.pop("file", None)
    return for_people(known)


def _is_segment(file: object) -> bool:
    from kafkalog.streaming.log.files import LOG, parse_partition_directory  # noqa: PLC0415

    path = Path(file) if isinstance(file, str) else Path()
    return path.suffix == LOG and parse_partition_directory(path.parent.name) is not None


def _rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return rows as JSON has them; times beyond Python's years are numbers of ms."""
    columns = [[_plain(each) for each in _values(column)] for column in batch.columns]
    names = _distinct(batch.schema.names)
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _distinct(names: Sequence[str]) -> list[str]:
    """Return names of columns, each once: as in DuckDB, the second ``a`` is ``a_1``.

    A join of two topics has all of their columns twice.
    """
    found: dict[str, None] = {}
    for name in names:
        numbered = (f"{name}_{number}" for number in count(1))
        found[name if name not in found else next(n for n in numbered if n not in found)] = None
    return [*found]


def _values(column: pa.Array) -> list[Any]:
    import pyarrow as pa  # noqa: PLC0415 - not before a statement is run

    from kafkalog.errors import OptionError  # noqa: PLC0415
    from kafkalog.streaming.options.quantities import shown_time  # noqa: PLC0415

    try:
        return column.to_pylist()  # type: ignore[no-any-return]
    except (OverflowError, ValueError) as error:
        if not pa.types.is_timestamp(column.type):
            raise OptionError(
                f"a value of type {column.type} cannot be shown: {error}. epoch_ms() makes a "
                "number of a time"
            ) from None
    numbers = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).to_pylist()
    return [None if each is None else shown_time(each // 1000) for each in numbers]


def _plain(value: Any) -> Any:  # noqa: ANN401 - what SQL has
    """Return a value as JSON has it."""
    match value:
        case dict():
            return {str(name): _plain(each) for name, each in value.items()}
        case list() | tuple():
            is_interval = type(value).__name__ == "MonthDayNano"  # Arrow's
            return _interval(*value) if is_interval else [_plain(each) for each in value]
        case bytes():
            return value.decode("utf-8", "backslashreplace")
        case None | bool() | int() | str():
            return value
        case float() if isfinite(value):  # JSON has no word for others
            return value
    return _moment(value) if isinstance(value, datetime) else str(value)


def _interval(months: int, days: int, nanoseconds: int) -> str:
    """Write an interval as DuckDB does: ``1 year 2 days 03:04:05.678``."""
    years = int(months / 12)  # towards zero
    named = ((years, "year"), (months - 12 * years, "month"), (days, "day"))
    parts = [many(each, of) for each, of in named if each]
    if nanoseconds or not parts:
        seconds, rest = divmod(abs(nanoseconds) // 1000, 1_000_000)
        minutes, seconds = divmod(seconds, 60)
        hours, minutes = divmod(minutes, 60)
        below = f".{rest:06d}".rstrip("0") if rest else ""
        sign = "-" if nanoseconds < 0 else ""
        parts.append(f"{sign}{hours:02d}:{minutes:02d}:{seconds:02d}{below}")
    return " ".join(parts)


def _moment(value: datetime) -> str:
    """Write a time as the other commands do, in ms where it has no more; times are UTC."""
    exact = "auto" if value.microsecond % 1000 else "milliseconds"
    return value.isoformat(timespec=exact).replace("+00:00", "Z")
