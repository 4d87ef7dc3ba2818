"""What functions for Python are given, as the texts that options are parsed from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kafkalog.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

__all__ = ["OptionValues", "Paths", "joined", "key_bytes", "texts", "topic_names"]

Paths = str | os.PathLike[str] | list[str] | list[os.PathLike[str]]
"""One log directory, or those that belong together (Kafka's ``log.dirs``)."""

OptionValues = Mapping[str, str | int | float | bool]
"""Options by their names, in any case; values as Spark's readers and writers take them."""


def joined(path: Paths) -> str:
    """Write paths as Spark does."""
    paths = path if isinstance(path, list) else [path]
    return ",".join(os.fspath(each) for each in paths)


def topic_names(topics: str | Sequence[str]) -> list[str]:
    """Return the names of one topic, or of several.

    Raises:
        OptionError: there is none.
    """
    names = [topics] if isinstance(topics, str) else list(topics)
    if not names:
        raise OptionError("an empty list of topics was given: name one, or several")
    return names


def texts(options: OptionValues, arguments: Collection[str]) -> dict[str, str]:
    """Write values as Spark does; refuse options that are ``arguments`` of the function."""
    for name in options:
        if name.lower().removeprefix("kafka.") in arguments:
            raise OptionError(f"option {name!r} is none of this function's: use its arguments")
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
    }


def key_bytes(key: bytes | str) -> bytes:
    """Return a key; text stands for its UTF-8."""
    return key.encode() if isinstance(key, str) else bytes(key)
