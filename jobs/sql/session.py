"""A DuckDB connection with topics as tables, and its prompt."""

from __future__ import annotations

import cmd
import contextlib
import importlib
import os
import re
from collections import Counter, defaultdict
from concurrent.futures import wait
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa

from kafkalog.errors import KafkaLogError, LogDirectoryError, OptionError
from kafkalog.files.closing import Closing
from kafkalog.files.deferred_signals import shielded_step
from kafkalog.files.system import system
from kafkalog.jobs.inspection.log_dirs import partitions_of, source_options
from kafkalog.jobs.process.output_paths import check_outside_logs
from kafkalog.jobs.process.running import print_line
from kafkalog.jobs.sql.tables import LogTable, Scans
from kafkalog.model import listed
from kafkalog.streaming.options.declaring import warn_ignored
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.source.subscription import DECODED_TOPICS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence


__all__ = ["SqlError", "SqlPrompt", "SqlSession", "asks_for_help", "help_on", "history_file"]


# ----------------------------------------------------------------------------------------------
# A DuckDB connection with the topics of log directories as tables.


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
        for key in partitions_of(paths, None):
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
