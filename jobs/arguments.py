"""Arguments that the command lines of pipelines and of ``kafkalog`` share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "ALLOW_BROKER",
    "CHECKPOINT",
    "FOLLOW",
    "LOG",
    "NOT_GIVEN",
    "SETTINGS",
    "TOPIC",
    "pairs",
]

LOG = Annotated[
    str, typer.Argument(metavar="LOG", help="The log directory; several with commas between.")
]
TOPIC = Annotated[str, typer.Option(help="The topic.")]
CHECKPOINT = Annotated[str, typer.Option(help="The query's checkpoint folder, of its own.")]
FOLLOW = Annotated[bool, typer.Option("--follow", help="Continue with what comes later.")]
SETTINGS = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="Any option of the format kafkalog; may be repeated."
    ),
]
ALLOW_BROKER = Annotated[
    bool,
    typer.Option(
        "--allow-broker-directory", help="Work on directories that a broker had last, too."
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


def pairs(words: Iterable[str] | None) -> dict[str, str]:
    """Read ``NAME=VALUE`` words.

    Raises:
        BadParameter: a word without ``=``.
    """
    found = {}
    for word in words or ():
        name, separator, value = word.partition("=")
        if not separator or not name:
            raise typer.BadParameter(f"{word!r} is not of the form NAME=VALUE")
        found[name] = value
    return found
