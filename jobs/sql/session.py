"""A DuckDB connection with the topics of log directories as tables."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from kafkalog.errors import KafkaLogError, LogDirectoryError, OptionError
from kafkalog.files.closing import Closing
from kafkalog.jobs.cli.log_dirs import partitions_of
from kafkalog.jobs.sql.tables import LogTable, Scans
from kafkalog.jobs.targets import check_outside
from kafkalog.model import listed
from kafkalog.streaming.options import warn_ignored
from kafkalog.streaming.source.read_options import ReadOptions
from kafkalog.streaming.source.subscription import DECODED_TOPICS

try:
    import duckdb
except ImportError as error:  # pragma: no cover - the test environment has it
    raise OptionError("SQL needs DuckDB: pip install 'kafkalog[sql]'") from error

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["SqlError", "SqlSession"]

_VIEWS: Final = {topic: view for view, topic in DECODED_TOPICS.items()}
_ROWS: Final = 10_000
_BATCHES: Final = "batches"
_NO_TABLE: Final = "Catalog Error: Table with name"
_WRITES_TO: Final = re.compile(
    r".*\b(?:to|database)\s+(?:e?'(?P<text>(?:[^']|'')+)'|\$(\w*)\$(?P<dollars>.+?)\$\2\$)",
    re.IGNORECASE | re.DOTALL,
)
"""The place that COPY or EXPORT writes to, the last such words of a statement."""
_OFFSET: Final = re.compile(r"\boffset\b", re.IGNORECASE)


class SqlError(KafkaLogError):
    """What DuckDB says of a statement, in one line."""


class SqlSession(Closing):
    """Runs statements; not for several threads."""

    def __init__(self, paths: Sequence[str], options: Mapping[str, str]) -> None:
        """Find the topics, and make a table of each.

        Raises:
            OptionError: options that cannot be used.
            LogDirectoryError: no log directory is there, or no topic in it.
        """
        self.scans = Scans()
        numbers: dict[str, set[int]] = defaultdict(set)
        for key in partitions_of(paths, None):
            numbers[key.topic].add(key.partition)
        if not numbers:
            raise LogDirectoryError(f"{', '.join(paths)}: no topic is there yet to ask about")
        self._given = {"path": ",".join(paths), "onTimestampOverflow": "null", **options}
        self._connection = duckdb.connect()
        self._connection.execute(
            "set timezone='UTC'; set autoinstall_known_extensions=false; "
            "set enable_progress_bar=false; set python_enable_replacements=false"
        )
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
        """Close the connection."""
        self._connection.close()

    def statements(self, text: str) -> list[str]:
        """Return the statements of a text.

        Raises:
            SqlError: what is wrong with it.
            OptionError: one writes a file into a log directory.
        """
        try:
            found = self._connection.extract_statements(text)
        except duckdb.Error as error:
            raise self._reason(error, text) from None
        for each in found:
            self._check_target(each)
        return [each.query for each in found]

    def _check_target(self, statement: duckdb.Statement) -> None:
        kinds = {duckdb.StatementType.COPY, duckdb.StatementType.EXPORT}
        target = _WRITES_TO.match(statement.query) if statement.type in kinds else None
        if target is not None:
            place = target["dollars"] or target["text"].replace("''", "'")
            check_outside(statement.type.name, Path(place), [self._given["path"]])

    def run(self, statement: str) -> Iterator[pa.RecordBatch]:
        """Run a statement, and return its rows as they come.

        Raises:
            SqlError: what is wrong with it.
            KafkaLogError: a log that cannot be read.
            KeyboardInterrupt: it was broken off.
        """
        self.scans.error = None
        try:
            relation = self._connection.sql(statement)
            if relation is not None:  # as of a statement without rows
                yield from relation.to_arrow_reader(_ROWS)
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            raise self._reason(error, statement) from None
        except RuntimeError as error:  # which is what DuckDB makes of Ctrl-C
            if "interrupted" in str(error):
                raise KeyboardInterrupt from None
            raise

    def _reason(self, error: Exception, statement: str) -> KafkaLogError:
        """Return what is behind an error of DuckDB, or Arrow's of it."""
        if self.scans.error is not None:
            return self.scans.error
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
        if isinstance(error, duckdb.ParserException) and _OFFSET.search(statement):
            text += ' (offset is a word of SQL: write "offset" in double quotes, or record_offset)'
        return SqlError(" ".join(text.split()))
