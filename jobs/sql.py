"""SQL over log directories by DuckDB, without a JVM: topics are tables.

A connection can open nothing but what was asked for. Filters decide what is read of a topic.
"""

from __future__ import annotations

import cmd
import contextlib
import importlib
import os
import re
from collections import Counter, defaultdict
from concurrent.futures import wait
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

from kafkalog.errors import KafkaLogError, LogDirectoryError, OptionError
from kafkalog.files.closing import Closing
from kafkalog.files.deferred_signals import shielded_step
from kafkalog.files.system import system
from kafkalog.jobs.inspection.log_dirs import partitions_of, source_options
from kafkalog.jobs.inspection.records import read_in_threads
from kafkalog.jobs.process.arguments import check_outside_logs
from kafkalog.jobs.process.running import print_line
from kafkalog.model import EVERYTHING, NOTHING, Intervals, listed
from kafkalog.streaming.options.declaring import warn_ignored
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.source.batch_plan import plan_batch
from kafkalog.streaming.source.loss import with_remedy
from kafkalog.streaming.source.planner import Selection, thin_split
from kafkalog.streaming.source.reading import join_batches, read_split
from kafkalog.streaming.source.schema import RowSchema, view_arrow_schema
from kafkalog.streaming.source.subscription import DECODED_TOPICS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from kafkalog.streaming.source.planner import LogSplit

__all__ = [
    "LogTable",
    "Scans",
    "SqlError",
    "SqlPrompt",
    "SqlSession",
    "asks_for_help",
    "can_pass",
    "help_on",
    "history_file",
    "hull_of",
    "is_named",
    "offset_value",
    "timestamp_value",
]


@shielded_step
def _import_duckdb() -> None:
    """Import it where no signal raises an exception: amid that, one would abort the process."""
    importlib.import_module("duckdb")


try:
    _import_duckdb()
    import duckdb
except ImportError as error:  # pragma: no cover - the test environment has it
    raise OptionError("SQL needs DuckDB: pip install 'kafkalog[sql]'") from error

_VIEWS: Final = {topic: view for view, topic in DECODED_TOPICS.items()}
_ROWS: Final = 10_000
_BATCHES: Final = "batches"
_NO_TABLE: Final = "Catalog Error: Table with name"
_LOCKED: Final = "the configuration has been locked"
_OFFSET: Final = re.compile(r"\boffset\b", re.IGNORECASE)
_ASK_AGAIN_SECONDS: Final = 0.1
_T = TypeVar("_T")


class SqlError(KafkaLogError):
    """What DuckDB says of a statement, in one line."""


class SqlSession(Closing):
    """Runs statements; not for several threads."""

    def __init__(
        self, paths: Sequence[str], options: Mapping[str, str], *, files: Path | None = None
    ) -> None:
        """Find the topics, and make a table of each.

        Statements reach no file: a log's could be overwritten, in more ways than a statement's text
        shows. ``files`` is a folder of which they may read and write all.

        Raises:
            OptionError: options that cannot be used, or a log lies in ``files``, or around it.
            LogDirectoryError: no log directory is there, or no topic in it.
        """
        self.scans = Scans()
        numbers: dict[str, set[int]] = defaultdict(set)
        for key in partitions_of(paths):
            numbers[key.topic].add(key.partition)
        if not numbers:
            raise LogDirectoryError(f"{', '.join(paths)}: no topic is there yet to ask about")
        self._given = {**source_options(paths), "onTimestampOverflow": "null", **options}
        if files is not None:
            check_outside_logs("--files", files, paths)
        self._spilled = TemporaryDirectory(prefix="kafkalog-sql-")
        self._worker = system.pool(1, "kafkalog-sql")
        self._connection = duckdb.connect()
        self._connection.execute(_settings(self._spilled.name, files))
        self.tables: list[str] = []
        named = Counter(name.lower() for name in (*numbers, _BATCHES))
        self._alike: dict[str, list[str]] = {name: [] for name, n in named.items() if n > 1}
        for topic in sorted(numbers):
            view = _VIEWS.get(topic, "records")
            self._register(topic, {"subscribe": topic, "view": view}, numbers[topic])
        every = {"subscribe": ",".join(numbers), "view": _BATCHES}
        self._register(_BATCHES, every, set().union(*numbers.values()))

    def _register(self, name: str, given: Mapping[str, str], partitions: set[int]) -> None:
        """Make a table. Of names that SQL takes for one, each gets a number: none answers alone."""
        options = ReadOptions.parse({**self._given, **given})
        warn_ignored(options.ignored)
        alike = self._alike.get(name.lower())
        if alike is not None:
            name += f"#{len(alike) + 1}"  # no topic has such a name
            alike.append(name)
        self._connection.register(name, LogTable(options, partitions, self.scans))
        self.tables.append(name)

    def close(self) -> None:
        """Close the connection, and remove what it has spilled."""
        self._worker.shutdown()
        self._connection.close()
        self._spilled.cleanup()

    def statements(self, text: str) -> list[str]:
        """Return the statements of a text.

        Raises:
            SqlError: what is wrong with it.
        """
        try:
            return [each.query for each in self._connection.extract_statements(text)]
        except duckdb.Error as error:
            raise self._reason(error, text) from None

    def run(self, statement: str) -> Iterator[pa.RecordBatch]:
        """Run a statement, and return its rows as they come.

        Raises:
            SqlError: what is wrong with it.
            KafkaLogError: a log that cannot be read.
            KeyboardInterrupt: it was broken off.
        """
        self.scans.error = None
        try:
            relation = self._call(lambda: self._connection.sql(statement))
            if relation is not None:  # as of a statement without rows
                reader = self._call(lambda: relation.to_arrow_reader(_ROWS))
                while (batch := self._call(lambda: next(reader, None))) is not None:
                    yield batch
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            raise self._reason(error, statement) from None

    def _call(self, function: Callable[[], _T]) -> _T:
        """Call DuckDB in the worker's thread, and end the statement if the caller is interrupted.

        In the main thread, a Ctrl-C would wait until DuckDB looks for signals: where its own
        threads do the work, that is at the end of the statement.
        """
        future = self._worker.submit(function)
        try:
            return future.result()
        finally:
            while not future.done():  # before a statement begins, it hears of no interrupt
                self._connection.interrupt()
                wait([future], _ASK_AGAIN_SECONDS)

    def _reason(self, error: Exception, statement: str) -> KafkaLogError:
        """Return what is behind an error of DuckDB, or Arrow's of it."""
        if self.scans.error is not None:
            return self.scans.error
        bare = _bare_name(statement, self.tables)
        if bare is not None and isinstance(error, duckdb.ParserException | duckdb.CatalogException):
            return SqlError(
                f"the name {bare} has characters that are signs of SQL: write it in double quotes, "
                f'"{bare}", and the statement in single ones'
            )
        text, _, rest = str(error).partition("\n")
        candidates = re.search(r"^(Candidate bindings: .+|Did you mean .+)$", rest, re.MULTILINE)
        if isinstance(error, duckdb.CatalogException) and text.startswith(_NO_TABLE):
            name = text.removeprefix(_NO_TABLE).split()[0]
            alike = self._alike.get(name.lower())
            if alike is not None:
                return SqlError(
                    f"{name} is no table: SQL takes the case of names for nothing. Tables of that "
                    "name are " + " and ".join(f'"{each}"' for each in alike)
                )
            text += f" Tables: {listed(self.tables)}"
        elif candidates is not None:
            text += " " + candidates[0]
        if isinstance(error, duckdb.PermissionException):
            text += (
                ". Statements read and write files in the folder that --files names, and no others"
            )
        elif _LOCKED in text:
            text += (
                ": a setting could name files to write. Times are UTC: at time zone 'Asia/Tokyo'"
            )
        if isinstance(error, duckdb.ParserException) and _OFFSET.search(statement):
            text += ' (offset is a word of SQL: write "offset" in double quotes, or record_offset)'
        return SqlError(" ".join(text.split()))


def _bare_name(statement: str, tables: Iterable[str]) -> str | None:
    """Return a table that a statement names without the quotes that its name needs."""
    for name in tables:
        needs_quotes = re.fullmatch(r"\w+", name) is None
        if needs_quotes and re.search(rf"(?<![\w\"'.-]){re.escape(name)}(?![\w\"'.-])", statement):
            return name
    return None


def _settings(spilled: str, files: Path | None) -> str:
    """Return the statements that set a connection up; the last ones can never be undone."""
    folders = [] if files is None else [str(files.absolute()), str(files.resolve())]
    allowed = ", ".join(map(_quoted, dict.fromkeys(folders)))
    return (
        "set timezone='UTC'; set autoinstall_known_extensions=false; "
        "set enable_progress_bar=false; set python_enable_replacements=false; "
        f"set temp_directory={_quoted(spilled)}; set allowed_directories=[{allowed}]; "
        "set enable_external_access=false; set lock_configuration=true"
    )


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


# ----------------------------------------------------------------------------------------------
# A prompt for SQL, with a history that outlives it.


_KEPT: Final = 1000
_ENDS: Final = {"exit", "quit", r"\q", ".exit", ".quit"}
_TABLES: Final = {r"\d", r"\dt", ".tables"}
_HELP: Final = {"help", "?", r"\?", r"\h", ".help"}
"""What psql, sqlite3 and duckdb know, with or without a semicolon."""


def history_file() -> Path:
    """Return where statements are kept: in the user's folder for such things."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "kafkalog" / "sql_history"


def asks_for_help(line: str) -> bool:
    """Whether a line is `help`, or another word that asks for the tables."""
    return line.strip().rstrip(";").rstrip().lower() in _TABLES | _HELP


def help_on(tables: Sequence[str]) -> str:
    """Return what `help` answers."""
    return (
        f"Tables: {', '.join(tables)}. A statement ends with ';', Ctrl-D ends. 'describe t;' lists "
        "the columns of t."
    )


class SqlPrompt(cmd.Cmd):
    """Reads statements, each up to its semicolon; an error ends none but its own."""

    prompt = "kafkalog> "

    def __init__(self, run: Callable[[str], None], tables: Sequence[str]) -> None:
        super().__init__()
        self.intro = f"Tables: {', '.join(tables)}. A statement ends with ';', Ctrl-D ends."
        self._help = help_on(tables)
        self._run = run
        self._begun: list[str] = []

    def onecmd(self, line: str) -> bool:
        """Take a line."""
        word = line.strip().rstrip(";").rstrip().lower()
        # amid a statement too: few have such a line, and who writes one wants out
        if line == "EOF" or word in _ENDS:
            return True
        if not self._begun:
            if asks_for_help(line):
                print_line(self._help)
                return False
            if not line.strip():
                return False
        self._begun.append(line)
        if line.rstrip().endswith(";"):
            statement = "\n".join(self._begun)
            self._begun.clear()
            try:
                self._run(statement)
            except KafkaLogError as error:
                print_line(str(error), err=True)
        self.prompt = "      ...> " if self._begun else SqlPrompt.prompt
        return False

    def give_up(self) -> None:
        """Forget what was begun, and begin again."""
        self._begun.clear()
        self.intro, self.prompt = None, SqlPrompt.prompt

    def emptyline(self) -> bool:
        """Do nothing: repeating the last statement is not what anybody expects."""
        return False

    def preloop(self) -> None:
        """Load the history."""
        with contextlib.suppress(ImportError, OSError):
            import readline  # noqa: PLC0415 - not everywhere

            readline.read_history_file(history_file())

    def postloop(self) -> None:
        """Keep the history."""
        with contextlib.suppress(ImportError, OSError):
            import readline  # noqa: PLC0415

            readline.set_history_length(_KEPT)
            history_file().parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            readline.write_history_file(history_file())


# ----------------------------------------------------------------------------------------------
# Topics and views as datasets of Arrow, which read what a query asks for and no more.
#
# A record batch reader can be read once only. A dataset is asked anew for each scan, with the
# columns and the filter of the query.


_FORMAT: Final = ds.ParquetFileFormat()
_AT_ONCE: Final = 32
_END: Final = 2**63 - 1
_LAST_MS: Final = _END // 1000


def is_named(name: str, expression: pc.Expression) -> bool:
    """Return whether an expression may be about a column."""
    return name in str(expression)


def can_pass(
    expression: pc.Expression, guarantees: Sequence[pc.Expression], schema: pa.Schema
) -> list[bool]:
    """Return for each guarantee whether rows of which it holds can pass the filter."""
    system = LocalFileSystem()
    fragments = [
        _FORMAT.make_fragment(str(number), filesystem=system, partition_expression=each)
        for number, each in enumerate(guarantees)
    ]
    dataset = ds.FileSystemDataset(fragments, schema, _FORMAT, system)
    left = {fragment.path for fragment in dataset.get_fragments(filter=expression)}
    return [str(number) in left for number in range(len(guarantees))]


def offset_value(number: int) -> Any:  # noqa: ANN401 - a scalar of Arrow
    """Return an offset for an expression."""
    return pa.scalar(number, pa.int64())


def timestamp_value(milliseconds: int) -> Any:  # noqa: ANN401 - a scalar of Arrow
    """Return a timestamp for an expression."""
    return pa.scalar(max(-_LAST_MS, min(milliseconds, _LAST_MS)) * 1000, pa.timestamp("us", "UTC"))


def hull_of(
    expression: pc.Expression,
    name: str,
    value: Callable[[int], Any],
    end: int,
    schema: pa.Schema,
) -> Intervals:
    """Return a range of numbers from 0 to ``end`` outside of which no row passes.

    ``value`` makes a scalar of the column's type of a number. Below 0 and from ``end`` on, rows
    pass if they do at the ends of the range.
    """
    if not is_named(name, expression):
        return EVERYTHING
    field = pc.field(name)
    beyond, null = can_pass(expression, [field > value(end), field.is_null()], schema)
    if null:
        return EVERYTHING
    # the first number for which something below it, or itself, passes; and the same from above
    low = _first(expression, lambda number: field <= value(number), end, schema)
    if low is None:
        return EVERYTHING if beyond else NOTHING
    high = _first(expression, lambda number: field >= value(end - number), end, schema)
    last = end if high is None else end - high
    return Intervals.between(low or None, None if last >= end else last + 1)


def _first(
    expression: pc.Expression,
    guarantee: Callable[[int], pc.Expression],
    end: int,
    schema: pa.Schema,
) -> int | None:
    """Find the smallest number up to ``end`` whose guarantee lets rows pass, as all after it do."""
    low, high = 0, end + 1
    while low < high:
        step = max(1, (high - low) // _AT_ONCE)
        numbers = [*range(low, high, step)][: _AT_ONCE + 1]
        passes = can_pass(expression, [guarantee(number) for number in numbers], schema)
        if True in passes:
            place = passes.index(True)
            high = numbers[place]
            low = numbers[place - 1] + 1 if place else low
        else:
            low = numbers[-1] + 1
    return low if low <= end else None


# ----------------------------------------------------------------------------------------------

_LAST_RECORD_MS: Final = 2**53
"""Some 285,000 years: later timestamps are read whatever a query says of times."""
_LAST_OFFSET: Final = 2**62

_SOURCES: Final = {"record_offset": "offset", "key_text": "key", "value_text": "value"}
"""Columns that are made of others."""


@dataclass(slots=True)
class Scans:
    """What the scans of a session have done."""

    rows: int = 0
    """That were read, before the filters of queries."""
    error: KafkaLogError | None = None
    """That ended the last one: an engine shows it as one of its own, in many lines."""


class LogTable(ds.Dataset):  # type: ignore[misc]  # pyarrow has no types
    """The records of a topic, or the rows of a view of one or several topics."""

    def __init__(self, options: ReadOptions, partitions: Collection[int], scans: Scans) -> None:
        """Take the options of a batch read, and the numbers of the partitions that there are."""
        self._options = options
        self._partitions = sorted(set(partitions))
        self._scans = scans
        self._schema = view_arrow_schema(options) if options.has_view else _record_schema()

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return self._schema

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,  # noqa: A002 - Arrow's word
        **_: object,
    ) -> ds.Scanner:
        """Return what reads these columns, and of the rows those that pass the filter."""
        names = self._schema.names
        wanted = [
            name
            for name in names
            if columns is None or name in columns or (filter is not None and is_named(name, filter))
        ]
        wanted = wanted or ["partition"]
        schema = pa.schema([self._schema.field(name) for name in wanted])
        reader = pa.RecordBatchReader.from_batches(schema, self._read(schema, filter))
        chosen = names if columns is None else [*columns]
        return ds.Scanner.from_batches(reader, columns=chosen, filter=filter)

    def _read(self, schema: pa.Schema, filter_: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        selection = self._selection(filter_)
        rows, made = None, _chosen(schema)
        if not self._options.has_view:
            sources = dict.fromkeys(_SOURCES.get(name, name) for name in schema.names)
            rows, made = RowSchema.named([*sources], include_headers=True), _completed(schema)

        def read(split: LogSplit) -> Iterator[pa.RecordBatch]:
            thinned = thin_split(split, selection.timestamps)
            return join_batches(read_split(thinned, self._options, rows))

        try:
            with with_remedy(self._options):
                splits = plan_batch(self._options, selection)
            for batch in read_in_threads(splits, read):
                self._scans.rows += batch.num_rows
                yield made(batch)
        except KafkaLogError as error:
            self._scans.error = error
            raise

    def _selection(self, filter_: pc.Expression | None) -> Selection:
        """Return what a filter leaves; of a view, partitions alone: rows speak of other things."""
        if filter_ is None:
            return Selection()
        selection, schema = Selection(), self._schema
        if self._options.view in {"records", "batches"}:
            numbers = [pa.scalar(each, pa.int32()) for each in self._partitions]
            passing = can_pass(filter_, [pc.field("partition") == each for each in numbers], schema)
            kept = zip(self._partitions, passing, strict=True)
            selection.partitions = Intervals.of(each for each, passes in kept if passes)
        if self._options.view == "records":
            for name in ("offset", "record_offset"):
                selection.offsets &= hull_of(filter_, name, offset_value, _LAST_OFFSET, schema)
            selection.timestamps = hull_of(
                filter_, "timestamp", timestamp_value, _LAST_RECORD_MS, schema
            )
        return selection


def _record_schema() -> pa.Schema:
    source = RowSchema.named(include_headers=True).to_arrow()
    fields = []
    for field in source:
        fields.append(field)
        for name, origin in _SOURCES.items():
            if origin == field.name:
                kind = field.type if origin == "offset" else pa.string()
                fields.append(pa.field(name, kind))
    return pa.schema(fields)


def _chosen(schema: pa.Schema) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    return lambda batch: batch.select(schema.names)


def _completed(schema: pa.Schema) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    def complete(batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [_column(name, batch) for name in schema.names]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    return complete


def _column(name: str, batch: pa.RecordBatch) -> pa.Array:
    column = batch.column(_SOURCES.get(name, name))
    return _text_of(column) if name in {"key_text", "value_text"} else column


def _text_of(data: pa.Array) -> pa.Array:
    """Return text where bytes are UTF-8, and null elsewhere."""
    try:
        return data.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([_utf8(value) for value in data.to_pylist()], pa.string())


def _utf8(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None
