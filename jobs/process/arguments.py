"""Arguments that the command lines of pipelines and of ``kafkalog`` share."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from kafkalog.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable

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
    "TABLE",
    "TABLE_FORMAT",
    "TOPIC",
    "TOPICS",
    "Isolation",
    "check_text",
    "help_text",
    "milliseconds",
    "named_values",
    "pairs",
    "reading_options",
    "split_names",
]


class Isolation(StrEnum):
    """Which records are read: Kafka's ``isolation.level``."""

    COMMITTED = "read_committed"
    UNCOMMITTED = "read_uncommitted"


LOG = Annotated[
    str, typer.Argument(metavar="LOG", help="The log directory; several with commas between.")
]
TOPIC = Annotated[str, typer.Option(help="The topic.")]
TOPICS = Annotated[
    list[str], typer.Option("--topic", help="The topic; several with commas, or repeated.")
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
        help="read_uncommitted takes records of open and aborted transactions too: the copy has no "
        "transactions, so they count as committed there."
    ),
]
READ_ISOLATION = Annotated[
    Isolation,
    typer.Option(
        "--isolation",
        help="read_committed leaves out records of open and aborted transactions.",
    ),
]
NOT_GIVEN = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        metavar="NAME=VALUE",
        help="A topic setting, such as retention.ms or cleanup.policy, for topics to which it was "
        "not given.",
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


def milliseconds(option: str, text: str, *, minimum: int = 0) -> int:
    """Read a time such as ``30s``; a plain number counts ms.

    Raises:
        OptionError: it is none, or below the minimum (ms).
    """
    from kafkalog.streaming.options.kinds import duration_ms  # noqa: PLC0415

    kind = duration_ms(minimum=minimum)
    try:
        return kind.read(text)
    except ValueError as error:
        raise OptionError(f"{option} is {text!r}, expected {kind.accepts}") from error
