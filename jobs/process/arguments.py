"""Arguments that the command lines of pipelines and of ``kafkalog`` share; paths of output."""

from __future__ import annotations

import os
import re
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kafkalog.errors import KafkaLogError, OptionError
from kafkalog.files.paths import SCHEME, NodePlace, local_path
from kafkalog.files.regular import open_regular
from kafkalog.model import ALL_TOPICS, MAX_OFFSET, TopicSelection

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = [
    "ALLOW_BROKER",
    "CHECKPOINT",
    "FOLLOW",
    "FROM_TARGET",
    "GRACE",
    "ISOLATION",
    "LOG",
    "NOT_GIVEN",
    "READ_ISOLATION",
    "REBUILD",
    "SETTINGS",
    "SOME_TOPICS",
    "STORES",
    "TABLE",
    "TABLE_FORMAT",
    "TOPIC",
    "TOPICS",
    "Isolation",
    "check_file",
    "check_folders",
    "check_folders_of_spark",
    "check_outside",
    "check_outside_logs",
    "check_replaced",
    "check_text",
    "given_settings",
    "help_text",
    "milliseconds",
    "named_values",
    "pairs",
    "point_in_time",
    "reading_options",
    "refuse_all_but_stores",
    "select_topics",
    "split_names",
    "stores_opened",
]

_STORAGE: Final = "storage."


class Isolation(StrEnum):
    """Which records are read: Kafka's ``isolation.level``."""

    COMMITTED = "read_committed"
    UNCOMMITTED = "read_uncommitted"


LOG = Annotated[
    list[str],
    typer.Argument(
        metavar="LOG",
        help="The log directories that belong together, as words. Default: KAFKALOG_PATH.",
    ),
]
TOPIC = Annotated[str, typer.Option("--topic", "-t", help="The topic.")]
TOPICS = Annotated[
    list[str], typer.Option("--topic", "-t", help="The topic; several with commas, or repeated.")
]
SOME_TOPICS = Annotated[
    list[str] | None,
    typer.Option("--topic", "-t", help="These topics only; with commas, or repeated."),
]
TABLE = Annotated[str, typer.Argument(metavar="TABLE", help="The folder of the table.")]
TABLE_FORMAT = Annotated[
    str,
    typer.Option(
        "--format", help="The table's format: delta, parquet, or another one whose jars Spark has."
    ),
]
CHECKPOINT = Annotated[str, typer.Option(help="The query's checkpoint folder, of its own.")]
FOLLOW = Annotated[bool, typer.Option("--follow", help="Continue with what comes later.")]
SETTINGS = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="Any option of the format kafkalog; may be repeated."
    ),
]
STORES = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="How a store is reached: storage.… as for Spark."
    ),
]
FROM_TARGET = Annotated[
    bool,
    typer.Option(
        "--from-target",
        help="Put the checkpoint aside, and continue where the target ends: after it was rolled "
        "back, or cut.",
    ),
]
REBUILD = Annotated[
    bool,
    typer.Option(
        "--rebuild",
        help="Put the checkpoint aside, empty the target, and take all that the source has.",
    ),
]
ALLOW_BROKER = Annotated[
    bool,
    typer.Option(
        "--allow-broker-directory", help="Work on directories that a broker had last, too."
    ),
]
GRACE = Annotated[
    str,
    typer.Option(
        metavar="TIME",
        help="How long a micro-batch may take to end after Ctrl-C or SIGTERM, such as 30s.",
    ),
]
ISOLATION = Annotated[
    Isolation,
    typer.Option(
        metavar="LEVEL",
        help="read_uncommitted takes records of open and aborted transactions too: the copy has no "
        "transactions, so they count as committed there.",
    ),
]
READ_ISOLATION = Annotated[
    Isolation,
    typer.Option(
        "--isolation",
        metavar="LEVEL",
        help="read_committed leaves out records of open and aborted transactions.",
    ),
]
NOT_GIVEN = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        metavar="NAME=VALUE",
        help="A topic setting, such as retention.ms=7d or cleanup.policy, for topics to which it "
        "was not given.",
    ),
]


def help_text(doc: str | None) -> str:
    """Return a module's text for ``--help``: what is indented, such as an example, stays as it is.

    That goes for apps with ``rich_markup_mode=None``. Rich would break long lines.
    """
    blocks = (doc or "").strip().split("\n\n")
    return "\n\n".join(f"\b\n{each}" if each.startswith("    ") else each for each in blocks)


def pairs(words: Iterable[str] | None) -> dict[str, str]:
    """Read ``NAME=VALUE`` words.

    Raises:
        BadParameter: a word without ``=``, or two values for a name.
    """
    found: dict[str, str] = {}
    for name, value in named_values(words):
        if found.setdefault(name, value) != value:
            raise typer.BadParameter(f"{name} is given twice: {found[name]!r} and {value!r}")
    return found


def refuse_all_but_stores(words: Iterable[str] | None) -> None:
    """Refuse options of a command that has no use for others than those of a store.

    Raises:
        BadParameter: one that is not called ``storage.…``, or a word without ``=``.
    """
    for name, _ in named_values(words):
        if not name.lower().startswith(_STORAGE):
            raise typer.BadParameter(
                f"--set {name}: this command takes storage.… alone, which says how a store is "
                "reached; where it has --remote, also how that tier is read"
            )


@contextmanager
def stores_opened(words: Iterable[str] | None) -> Iterator[None]:
    """Have the stores that a command names by URIs opened as its ``--set storage.…`` words say.

    Raises:
        OptionError: an option that no store has, or a wrong value.
        BadParameter: a word without ``=``.
    """
    given = {k: v for k, v in named_values(words) if k.lower().startswith(_STORAGE)}
    if not given:
        yield
        return
    from kafkalog.files.storage import opening_stores  # noqa: PLC0415
    from kafkalog.streaming.options.store_options import StoreOptions  # noqa: PLC0415

    with opening_stores(StoreOptions.parse(given).storage):
        yield


def given_settings(words: Iterable[str] | None) -> dict[str, str]:
    """Read ``NAME=VALUE`` words as topic settings: times and sizes may have units.

    Raises:
        BadParameter: as in :func:`pairs`.
    """
    from kafkalog.streaming.options.topic_settings import without_units  # noqa: PLC0415

    return without_units(pairs(words))


def named_values(words: Iterable[str] | None) -> list[tuple[str, str]]:
    """Read ``NAME=VALUE`` words whose names may come again, as those of headers.

    Raises:
        BadParameter: a word without ``=``.
    """
    found = []
    for word in words or ():
        name, separator, value = word.partition("=")
        if not separator or not name:
            raise typer.BadParameter(f"{word!r} is not of the form NAME=VALUE")
        found.append((name, value))
    return found


def check_text(option: str, text: str) -> None:
    """Refuse bytes of the command line that are no text, where nothing but text will do.

    Raises:
        OptionError: they are not UTF-8.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        wrong = text[error.start : error.end].encode("utf-8", "surrogateescape")
        raise OptionError(
            f"{option} has bytes that are not UTF-8: {text!r}, from {wrong.hex()} on. Expected text"
        ) from None


def reading_options(isolation: Isolation, settings: Iterable[str] | None) -> dict[str, str]:
    """Return the options of the source: of ``--isolation``, and of ``--set``, which comes last.

    Raises:
        BadParameter: a word without ``=``.
    """
    return {"kafka.isolation.level": isolation.value, **pairs(settings)}


def split_names(words: Iterable[str]) -> tuple[str, ...]:
    """Read names that are repeated, or have commas between them; each counts once.

    Raises:
        BadParameter: a name that is empty.
    """
    names = [name.strip() for word in words for name in word.split(",")]
    if not all(names):
        raise typer.BadParameter(f"{','.join(words)!r} has an empty name", param_hint="--topic")
    return tuple(dict.fromkeys(names))


def select_topics(words: Iterable[str] | None) -> TopicSelection:
    """Return the topics that ``--topic`` names; all where it is not given.

    Raises:
        BadParameter: a name that is empty.
    """
    return TopicSelection(split_names(words)) if words else ALL_TOPICS


_DAY_MS: Final = 86_400_000
_DAYS: Final = {"today": 0, "yesterday": 1}
_ACCEPTS: Final = (
    "a time such as 1h (ago), yesterday, today, now, 2026-11-22T10:15:00Z, or milliseconds since "
    "1970"
)
_AGO: Final = re.compile(r"(\d+(?:ms|s|m|min|h|d))(?: ago)?", re.ASCII)


def point_in_time(option: str, text: str) -> int:
    """Read a time as people say it: ``1h`` ago, ``yesterday``, ISO 8601 or milliseconds.

    Days begin at 00:00 UTC, as those of times without a zone.

    Raises:
        OptionError: it is none.
    """
    from kafkalog.files.system import system  # noqa: PLC0415
    from kafkalog.streaming.options.quantities import (  # noqa: PLC0415
        milliseconds_of,
        short_duration,
    )

    word = text.strip().lower()
    now = system.time_ns() // 1_000_000
    if word == "now":
        return now
    if word in _DAYS:
        return now - now % _DAY_MS - _DAYS[word] * _DAY_MS
    if (ago := _AGO.fullmatch(word)) is not None:
        return max(0, now - milliseconds(option, ago[1]))
    short = short_duration(word.removesuffix("ago"))
    hint = f": write {short} for {text.strip()}" if short else ""
    return milliseconds_of(option, text, accepts=_ACCEPTS + hint)


def milliseconds(option: str, text: str, *, minimum: int = 0, maximum: int = MAX_OFFSET) -> int:
    """Read a time such as ``30s``; a plain number counts ms.

    Raises:
        OptionError: it is none, or outside the bounds (ms).
    """
    from kafkalog.streaming.options.kinds import duration_ms  # noqa: PLC0415
    from kafkalog.streaming.options.quantities import quantity_hint  # noqa: PLC0415

    kind = duration_ms(minimum, maximum)
    try:
        return kind.read(text)
    except ValueError as error:
        hint = quantity_hint("ms", text)
        raise OptionError(f"{option} is {text!r}, expected {kind.accepts}{hint}") from error


# ----------------------------------------------------------------------------------------------
# Output paths of commands: never among the files of a log.


_BETWEEN: Final = re.compile("[,;]")

_MAY_NAME_A_STORE: Final = ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "PYSPARK_GATEWAY_PORT")
"""Hadoop's settings, and those of who has started Spark before: ``spark-submit``."""


def check_file(option: str, path: Path, logs: Sequence[str], *, example: str) -> None:
    """See whether a file may have this name.

    Args:
        option: what named it.
        path: its name.
        logs: log directories, as a command is given them.
        example: how such a file may be called.

    Raises:
        OptionError: it is a folder, or lies in one of the log directories; or there is no folder
            for it.
    """
    if str(path) == "-":
        raise OptionError(
            f"{option} is -, and writes a file, no standard output: name it, as {example}"
        )
    if path.is_dir():
        raise OptionError(
            f"{option} names {path}, which is a folder: name a file, such as {path / example}"
        )
    if not path.parent.is_dir():
        raise OptionError(f"{option} names {path}, but {path.parent} is no folder")
    check_outside(option, path, logs)


def check_folders_of_spark(folders: Mapping[str, str | None]) -> None:
    """Do :func:`check_folders` for folders that Spark writes to.

    One without a scheme lies where Hadoop's ``fs.defaultFS`` says. Where that may not be the local
    file system, nothing is said before Spark has looked.
    """
    is_local = not any(name in os.environ for name in _MAY_NAME_A_STORE)
    check_folders(
        {
            option: named
            for option, named in folders.items()
            if is_local or (named is not None and SCHEME.match(named))
        }
    )


def check_folders(folders: Mapping[str, str | Sequence[str] | None]) -> None:
    """See whether folders can be written to, or be made; what lies in a store is not looked at.

    Nor is a directory of one of several nodes: where one is away, the others are written.

    Args:
        folders: by the argument that names them: a folder, or the parsed log directories.

    Raises:
        OptionError: one is a file, lies below one, or may not be written to.
    """
    for option, named in folders.items():
        for text in (named,) if isinstance(named, str) else named or ():
            if not isinstance(text, NodePlace):
                _check_folder(option, text)


def _check_folder(option: str, named: str) -> None:
    try:
        folder = Path(local_path(named)).resolve()
    except OptionError:
        return
    there = next(each for each in (folder, *folder.parents) if os.path.lexists(each))
    if not there.is_dir():
        raise OptionError(f"{option} names {named}, but {there} is no folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise OptionError(f"{option} names {named}, but {there} cannot be written to")


def check_outside(option: str, path: Path, logs: Sequence[str]) -> None:
    """Refuse a file or folder among the files of a log; arguments as for :func:`check_file`.

    Raises:
        OptionError: it lies in one of the log directories.
    """
    place = path.parent.resolve() / path.name
    for log in _local(logs):
        if log == place or log in place.parents:
            raise OptionError(
                f"{option} names {path}, which lies in the log directory {log}: name a file "
                "elsewhere"
            )


def check_outside_logs(option: str, folder: Path, logs: Sequence[str]) -> None:
    """Refuse a folder in which any file may be written if a log lies in it, or around it.

    Raises:
        OptionError: it is no folder, lies in a log directory, or one lies in it.
    """
    if not folder.is_dir():
        raise OptionError(f"{option} names {folder}, which is no folder")
    check_outside(option, folder.resolve() / "file", logs)
    for log in _local(logs):
        if folder.resolve() in log.parents:
            raise OptionError(
                f"{option} names {folder}, in which the log directory {log} lies: name a folder "
                "of its own"
            )


def check_replaced(path: Path, mark: bytes, what: str) -> None:
    """See that there is no file of this name, or an earlier one of the same kind.

    Args:
        path: its name.
        mark: what such a file begins with.
        what: what it is called.

    Raises:
        OptionError: there is something else.
    """
    if (path.exists() or path.is_symlink()) and not _begins_with(path, mark):
        raise OptionError(
            f"{path} is there already, and is no {what}: name another file, or remove it"
        )


def _begins_with(path: Path, mark: bytes) -> bool:
    try:
        descriptor = open_regular(path)  # which does not wait at a FIFO
    except (KafkaLogError, OSError):
        return False
    try:
        return os.read(descriptor, len(mark)) == mark
    finally:
        os.close(descriptor)


def _local(logs: Sequence[str]) -> list[Path]:
    found = []
    for text in filter(None, map(str.strip, _BETWEEN.split(",".join(logs)))):
        with suppress(KafkaLogError, OSError):  # a store: no local file lies there
            found.append(Path(local_path(text.removeprefix("witness:"))).resolve())
    return found
