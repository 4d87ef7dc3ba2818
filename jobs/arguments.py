"""Arguments that the pipelines' command lines share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["CHECKPOINT", "FOLLOW", "LOG", "SETTINGS", "TOPIC", "pairs"]

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
