"""Arguments of the Python functions, as the texts that options are parsed from."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from math import isnan
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, TypeGuard

from kafkalog.errors import OptionError
from kafkalog.streaming.coordinator.group_metadata import encode_group_id

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = [
    "OptionValue",
    "OptionValues",
    "Paths",
    "check_member",
    "group_name",
    "joined",
    "key_bytes",
    "names",
    "partition_pair",
    "seconds",
    "several",
    "texts",
    "topic_name",
    "topic_names",
]

Paths = str | os.PathLike[str] | list[str] | list[os.PathLike[str]]
"""One log directory, or those that belong together (Kafka's ``log.dirs``)."""

OptionValue = str | int | float | bool | datetime | Mapping[Any, Any] | Sequence[Any]
"""A value as Spark's readers and writers take it, a time, or what would be written as JSON.

Offsets are a dict by topic and partition, or by pairs of them: ``{"flights": {0: 23}}`` and
``{("flights", 0): 23}`` say the same.
"""

OptionValues = Mapping[str, OptionValue]
"""Options by their names, in any case."""


def joined(path: Paths) -> str:
    """Write paths as Spark does.

    Raises:
        OptionError: one is none.
    """
    paths = path if isinstance(path, list) else [path]
    for each in paths:
        if not isinstance(each, str | os.PathLike):
            raise OptionError(f"a path is {each!r}, expected text, or a Path")
    return ",".join(os.fspath(each) for each in paths)


def topic_names(topics: str | Sequence[str]) -> list[str]:
    """Return the names of one topic, or of several.

    Raises:
        OptionError: there is none, or something else.
    """
    found = [topic_name(each) for each in (topics if _is_list(topics) else [topics])]
    if not found:
        raise OptionError("an empty list of topics was given: name one, or several")
    if "" in found:
        raise OptionError("the name of a topic is empty: name one, or several")
    for each in found:
        if each != each.strip():
            raise OptionError(f"the name of a topic is {each!r}: leave the blank out")
    return found


def topic_name(topic: object) -> str:
    """Return the name of one topic.

    Raises:
        OptionError: it is something else.
    """
    return _named("a topic", topic, "its name")


def texts(options: OptionValues, arguments: Collection[str]) -> dict[str, str]:
    """Write values as Spark does; refuse options that are ``arguments`` of the function."""
    if not isinstance(options, Mapping):
        raise OptionError(f"options are {options!r}, expected a dict: {{name: value}}")
    for name in options:
        if not isinstance(name, str):
            raise OptionError(f"an option is called {name!r}, expected a text")
        if name.lower().removeprefix("kafka.") in arguments:
            raise OptionError(f"option {name!r} is none of this function's: use its arguments")
    return {name: _text(name, value) for name, value in options.items()}


def _text(name: str, value: OptionValue) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return json.dumps(_plain(_nested(name, value)), default=str)
    if isinstance(value, Sequence) and not isinstance(value, str):
        raise OptionError(f"option {name!r} is {value!r}, expected a text, a number or a dict")
    return str(value)


def _nested(name: str, value: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Bring ``{(topic, partition): number}`` into the form of ``{topic: {partition: number}}``."""
    if not all(isinstance(key, tuple) for key in value):
        if any(isinstance(key, tuple) for key in value):
            raise OptionError(f"option {name!r} has topics and partitions side by side: {value!r}")
        return value
    found: dict[Any, dict[Any, Any]] = {}
    for key, each in value.items():
        if len(key) != 2:
            raise OptionError(f"option {name!r} has {key!r}, expected a topic and a partition")
        found.setdefault(key[0], {})[key[1]] = each
    return found


def _plain(value: object) -> object:
    """Return what JSON can hold, of what Python, numpy and pandas have for numbers and times."""
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, set | frozenset):
        value = sorted(value, key=str)
    if isinstance(value, list | tuple | range):
        return [_plain(each) for each in value]
    if isinstance(value, datetime):
        return value.isoformat()
    is_bool = type(value) is bool  # which is a number, too
    return int(value) if isinstance(value, Integral) and not is_bool else value


def key_bytes(key: bytes | str) -> bytes:
    """Return a key; text stands for its UTF-8.

    Raises:
        OptionError: it is neither text nor bytes (an int would be as many bytes of zero), or text
            that UTF-8 cannot hold.
    """
    if not isinstance(key, str | bytes | bytearray | memoryview):
        raise OptionError(f"a key is {key!r}, expected text or bytes")
    try:
        return key.encode() if isinstance(key, str) else bytes(key)
    except UnicodeEncodeError:
        raise OptionError(
            f"a key is {key!r}, which is no text that UTF-8 can hold: give its bytes"
        ) from None


def several(argument: str, given: object) -> list[Any]:
    """Return the items of a list, a tuple or another collection that is no text.

    Raises:
        OptionError: it is something else.
    """
    if not _is_list(given):
        raise OptionError(f"{argument} is {given!r}, expected a list")
    return [*given]


def _is_list(given: object) -> TypeGuard[Iterable[Any]]:
    return isinstance(given, Iterable) and not isinstance(given, str | bytes)


def _named(what: str, given: object, expected: str) -> str:
    if not isinstance(given, str):
        raise OptionError(f"{what} is {given!r}, expected {expected}, a text")
    return given


def names(argument: str, given: object) -> tuple[str, ...]:
    """Return a list of names.

    Raises:
        OptionError: it is something else.
    """
    found = several(argument, given)
    for each in found:
        if not isinstance(each, str):
            raise OptionError(f"{argument} has {each!r}, expected a name, a text")
    return tuple(found)


def seconds(argument: str, given: object) -> float:
    """Return a number of seconds.

    Raises:
        OptionError: it is no number.
    """
    if isinstance(given, bool) or not isinstance(given, Real) or isnan(given):
        raise OptionError(f"{argument} is {given!r}, expected a number of seconds")
    return float(given)


def group_name(group: object) -> str:
    """Return the id of a group.

    Raises:
        OptionError: it is no text, or none that UTF-8 can hold, as records have it.
    """
    name = _named("a group", group, "its id")
    encode_group_id(name)
    return name


def partition_pair(given: object) -> tuple[str, int]:
    """Return a topic and a partition of it.

    Raises:
        OptionError: it is something else.
    """
    pair = given if isinstance(given, tuple | list) and len(given) == 2 else (None, None)
    topic, number = pair
    if not isinstance(topic, str) or isinstance(number, bool) or not isinstance(number, Integral):
        raise OptionError(
            f'a partition is {given!r}, expected a pair of topic and number, such as ("t", 0)'
        )
    return topic, int(number)


def check_member(consumer: object) -> None:
    """Refuse what is no ``Consumer``, such as the name of a group.

    Raises:
        OptionError: it is none.
    """
    if consumer is not None and not hasattr(consumer, "note_failure"):
        raise OptionError(f"consumer is {consumer!r}, expected a kafkalog.Consumer")
