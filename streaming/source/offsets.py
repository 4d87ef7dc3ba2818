"""Offsets of many partitions, and their JSON: ``{"flights":{"0":23,"1":345}}``.

The JSON is that of Spark's Kafka source: topic, partition, *next* offset to read. So one source can
continue the other's checkpoint. To Spark, two offsets are equal if their texts are. The same
numbers in another order would start empty batches for ever, so the order is always topic, then
partition by number.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Final, TypeAlias

from kafkalog.errors import CheckpointError, OptionError
from kafkalog.model import MAX_OFFSET, TopicPartition
from kafkalog.streaming.options.quantities import (
    RepeatedNameError,
    milliseconds_of,
    parse_iso_time,
    parse_json,
)
from kafkalog.texts import shortened

__all__ = [
    "EARLIEST",
    "LATEST",
    "OffsetJson",
    "PartitionOffsets",
    "TopicOffsets",
    "from_json",
    "from_json_text",
    "meant_by",
    "parse_assignment",
    "parse_offsets",
    "parse_partition_longs",
    "parse_partition_times",
    "to_json",
]

PartitionOffsets: TypeAlias = Mapping[TopicPartition, int]
"""Per partition the next offset to read."""

TopicOffsets: TypeAlias = dict[str, int]
"""``EARLIEST`` or ``LATEST`` for all partitions of a topic."""

OffsetJson: TypeAlias = dict[str, dict[str, int]]

LATEST: Final = -1
EARLIEST: Final = -2
"""Stand for the log end and the log start in ``startingOffsets`` and ``endingOffsets``."""

_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}

_OTHER_WORDS: Final = {
    "earliest": "begin beginning first oldest smallest start",
    "latest": "current end last newest largest",
}

_FIRST_TIME: Final = 10**11
"""A number of this size or above is a time in ms (1973), where it was to be an offset."""


def to_json(offsets: Mapping[TopicPartition, int]) -> OffsetJson:
    """Return the dictionary that Spark writes down, in the one order that is used."""
    found: OffsetJson = {}
    for topic_partition in sorted(offsets):
        of_topic = found.setdefault(topic_partition.topic, {})
        of_topic[str(topic_partition.partition)] = offsets[topic_partition]
    return found


def from_json(found: object) -> PartitionOffsets:
    """Read back what :func:`to_json` or Spark's Kafka source wrote.

    Raises:
        CheckpointError: it is something else, such as what another source wrote.
    """
    if not isinstance(found, dict):
        raise _no_offsets(found)
    offsets: dict[TopicPartition, int] = {}
    for topic, of_topic in found.items():
        if not isinstance(of_topic, dict):
            raise _no_offsets(found)
        for partition, offset in of_topic.items():
            if not partition.isdecimal() or type(offset) is not int:
                raise _no_offsets(found)
            offsets[TopicPartition(topic, int(partition))] = offset
    return offsets


def from_json_text(text: object) -> PartitionOffsets:
    """Read offsets as Spark's progress and checkpoint have them; none from None or ``null``.

    PySpark 4.0 and 4.1 show those of a progress as Python shows a dict, or None.

    Raises:
        CheckpointError: it is something else.
    """
    try:
        found = parse_json(text) if isinstance(text, str) else text
    except RepeatedNameError as error:
        raise CheckpointError(f"offsets name {error.name!r} twice") from None
    except (ValueError, RecursionError):
        found = _as_python_shows(text)
    return {} if found is None else from_json(found)


def _as_python_shows(text: object) -> object:
    try:
        return ast.literal_eval(str(text))
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        raise _no_offsets(text) from None


def parse_partition_longs(option: str, text: str, minimum: int) -> PartitionOffsets:
    """Parse an option such as ``{"flights":{"0":23,"1":-1}}``.

    Raises:
        OptionError: no JSON of this form, or a number below ``minimum`` or beyond an int64.
    """
    example = '{"topicA":{"0":23,"1":45},"topicB":{"0":10}}'
    return _partition_longs(option, text, _object(option, text, example), minimum, example)


def parse_partition_times(option: str, text: str) -> PartitionOffsets:
    """Parse ``{"flights":{"0":1700000000000,"1":"2026-11-22T10:15:00Z"}}`` to milliseconds.

    Raises:
        OptionError: no JSON of this form, no time, or one in seconds by all appearances.
    """
    example = '{"topicA":{"0":"2026-11-22T10:15:00Z","1":1700000000000}}'
    given = _object(option, text, example)
    for topic, of_topic in given.items():
        if isinstance(of_topic, dict):
            named = {
                name: milliseconds_of(f"option {option!r} of {topic}-{name}", str(time))
                if type(time) in {int, str}
                else time
                for name, time in of_topic.items()
            }
            given[topic] = named
    return _partition_longs(option, text, given, 0, example)


def parse_offsets(option: str, text: str) -> tuple[PartitionOffsets, TopicOffsets]:
    """Parse ``{"flights":{"0":23,"1":-1},"delays":"earliest"}``; words are read in any case.

    Source: SPARK-58774, which came after Spark 4.2.

    Raises:
        OptionError: no JSON of this form, or a number that is no offset, ``EARLIEST`` or
            ``LATEST``.
    """
    words_there = "latest" if option == "endingOffsets" else "earliest, latest"
    example = f'{{"topicA":{{"0":23,"1":-1}},"topicB":"{words_there.partition(",")[0]}"}}'
    word = text.strip()
    if not word.startswith("{"):
        raise OptionError(
            f"option {option!r} is {shortened(text)!r}, but accepts {words_there} or JSON such as "
            f"{example}{_offsets_hint(option, word)}"
        )
    found = _object(option, text, example)
    words = {
        topic: _WORDS[word.strip().lower()]
        for topic, word in found.items()
        if isinstance(word, str) and word.strip().lower() in _WORDS
    }
    numbers = {topic: of_topic for topic, of_topic in found.items() if topic not in words}
    return _partition_longs(option, text, numbers, EARLIEST, example), words


def meant_by(word: str) -> str | None:
    """Return ``earliest`` or ``latest`` for what people and other tools call them, else None."""
    for meant, others in _OTHER_WORDS.items():
        if word.strip().lower() in others.split():
            return meant
    return None


def _offsets_hint(option: str, word: str) -> str:
    """Return what was meant by a text that is no JSON; empty where it cannot be guessed."""
    meant = meant_by(word)
    if meant == "latest" or (meant and option != "endingOffsets"):
        return f": did you mean {meant}?"
    if word.isdecimal() and int(word) < _FIRST_TIME:
        return f'. An offset goes with its topic and partition: {{"topicA":{{"0":{word}}}}}'
    if not word.isdecimal():
        try:
            parse_iso_time(word)
        except (ValueError, OverflowError):
            return ""
    return f". {option.removesuffix('Offsets')}Timestamp takes a time"


def _partition_longs(
    option: str, text: str, given: Mapping[str, object], minimum: int, example: str
) -> PartitionOffsets:
    found: dict[TopicPartition, int] = {}
    for topic, of_topic in given.items():
        if not isinstance(of_topic, dict):
            raise _not_of_form(option, text, example)
        for name, number in of_topic.items():
            if name != _plain_number(name) or type(number) is not int:
                raise _not_of_form(option, text, example)
            if not minimum <= number <= MAX_OFFSET:
                raise OptionError(
                    f"option {option!r} gives {number} for partition {name} of topic {topic!r}, "
                    f"but accepts numbers from {minimum} to {MAX_OFFSET}"
                )
            found[TopicPartition(topic, int(name))] = number
    return found


def _plain_number(name: str) -> str | None:
    """Return a partition as Kafka writes it: ``00`` beside ``0`` would be the same one."""
    return str(int(name)) if name.isdecimal() else None


def parse_assignment(text: str) -> frozenset[TopicPartition]:
    """Parse ``assign``: ``{"topicA":[0,1],"topicB":[2]}``.

    Raises:
        OptionError: no JSON of this form, or no partition in it.
    """
    example = '{"topicA":[0,1],"topicB":[2]}'
    found: set[TopicPartition] = set()
    for topic, partitions in _object("assign", text, example).items():
        if not isinstance(partitions, list):
            raise _not_of_form("assign", text, example)
        for partition in partitions:
            if type(partition) is not int or partition < 0:
                raise _not_of_form("assign", text, example)
            found.add(TopicPartition(topic, partition))
    if not found:
        raise _not_of_form("assign", text, example)
    return frozenset(found)


def _object(option: str, text: str, example: str) -> dict[str, object]:
    try:
        found = parse_json(text)
    except RepeatedNameError as error:
        raise OptionError(f"option {option!r} names {error.name!r} twice") from None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise _not_of_form(option, text, example)
    return found


def _no_offsets(found: object) -> CheckpointError:
    return CheckpointError(
        f'offsets are {shortened(str(found))!r}, expected such as {{"flights": {{"0": 23}}}}: '
        "topic, partition, next offset; a checkpoint can be continued by the same source or "
        "Spark's Kafka source only"
    )


def _not_of_form(option: str, text: str, example: str) -> OptionError:
    given = shortened(text)
    return OptionError(f"option {option!r} is {given!r}, but accepts JSON such as {example}")
