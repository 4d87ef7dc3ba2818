"""The vocabulary that every part shares: Kafka's terms as small values. No I/O, no dependencies."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from kafkalog.errors import InvalidTopicError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "ALL_TOPICS",
    "CLUSTER_METADATA_TOPIC",
    "EVERYTHING",
    "INTERNAL_TOPICS",
    "MAX_OFFSET",
    "MAX_TOPIC_NAME_LENGTH",
    "NOTHING",
    "NO_EPOCH",
    "NO_PRODUCER_ID",
    "NO_SEQUENCE",
    "NO_TIMESTAMP",
    "Intervals",
    "OffsetRange",
    "TimestampType",
    "TopicPartition",
    "TopicSelection",
    "listed",
    "many",
    "nearest",
    "partition_counts",
    "partition_directory_name",
    "said_there",
    "validate_topic_name",
]

NO_TIMESTAMP: Final = -1
"""A record without a timestamp (magic 0, or a producer that sent none), in ms."""

NO_PRODUCER_ID: Final = -1
NO_SEQUENCE: Final = -1
NO_EPOCH: Final = -1
"""No leader epoch or no producer epoch."""

MAX_OFFSET: Final = 2**63 - 1

MAX_TOPIC_NAME_LENGTH: Final = 249
"""So that ``<topic>-<partition>`` fits a file name (Kafka ``Topic.MAX_NAME_LENGTH``)."""

OFFSETS_TOPIC: Final = "__consumer_offsets"
"""Where consumer groups keep their positions and members (Kafka ``Topic``)."""

TRANSACTIONS_TOPIC: Final = "__transaction_state"
"""Where transaction coordinators keep what they decided (Kafka ``Topic``)."""

INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC, "__share_group_state"})
"""Topics that a broker keeps for itself (Kafka ``Topic.INTERNAL_TOPICS``)."""

CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"
"""KRaft's own log: it lies beside the topics and is none (FORMAT: skipped at load)."""

_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)


class TimestampType(IntEnum):
    """What a record's timestamp means; the values are Kafka's ids and Spark's ``timestampType``."""

    NO_TIMESTAMP_TYPE = -1
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class TopicPartition(NamedTuple):
    """One partition of a topic; sorts by topic name, then partition number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        """Return the name of its directory, which is how Kafka prints it too."""
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class TopicSelection:
    """The topics that somebody means: those with some ``names``, or all of them (None)."""

    names: tuple[str, ...] | None = None

    @classmethod
    def of(cls, *names: str) -> Self:
        """Select topics by name."""
        return cls(names)

    def __contains__(self, topic: str | None) -> bool:
        """Tell whether a topic is meant; None, of what is about no topic, is if all are."""
        return self.names is None or topic in self.names

    def __str__(self) -> str:
        """Return the names with commas between them; nothing for all topics."""
        return ", ".join(self.named)

    @property
    def named(self) -> tuple[str, ...]:
        """The topics that have to be there; none if all are meant."""
        return self.names or ()

    @property
    def only(self) -> str | None:
        """The topic, if a single one is named."""
        return self.named[0] if len(self.named) == 1 else None


ALL_TOPICS: Final = TopicSelection()


class OffsetRange(NamedTuple):
    """The offsets ``[start, end)`` of one topic partition."""

    topic_partition: TopicPartition
    start: int
    end: int


def partition_counts(partitions: Iterable[TopicPartition]) -> dict[str, int]:
    """Return how many partitions each topic has, by the highest number there is."""
    counts: dict[str, int] = {}
    for topic, number in partitions:
        counts[topic] = max(counts.get(topic, 0), number + 1)
    return counts


def partition_directory_name(topic: str, partition: int) -> str:
    """Return ``<topic>-<partition>`` after checking both.

    Raises:
        InvalidTopicError: the name breaks Kafka's rules, or the partition is not an int32 >= 0.
    """
    validate_topic_name(topic)
    if not 0 <= partition < 2**31:
        raise InvalidTopicError(
            f"partition {partition} of topic {topic!r} is not a number from 0 to 2147483647"
        )
    return f"{topic}-{partition}"


def validate_topic_name(name: str) -> None:
    """Refuse a topic name that Kafka would refuse (Kafka ``Topic.validate``).

    Raises:
        InvalidTopicError: empty, ``.`` or ``..``, longer than 249, or with a character other than
            ASCII letters, digits, ``.``, ``_`` and ``-``.
    """
    if not name:
        reason = "is empty"
    elif name in {".", ".."}:
        reason = "would be a folder of the file system"
    elif len(name) > MAX_TOPIC_NAME_LENGTH:
        reason = f"has {len(name)} characters, Kafka allows {MAX_TOPIC_NAME_LENGTH}"
    elif not _TOPIC_NAME.fullmatch(name):
        reason = "has characters other than ASCII letters, digits, '.', '_' and '-'"
    else:
        return
    shown = name if len(name) <= 80 else name[:80] + "…"
    raise InvalidTopicError(f"topic name {shown!r} {reason}")


def listed(items: Iterable[str], *, most: int = 10) -> str:
    """Return the first of some items for a message, and how many more there are."""
    found = list(items)
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more


def many(number: int, what: str) -> str:
    """Return a number of things, such as ``1 batch`` or ``3 batches``."""
    ending = "" if number == 1 else "es" if what.endswith("ch") else "s"
    return f"{number:,} {what}{ending}"


def said_there(topic: str, there: Iterable[TopicPartition]) -> str:
    """Return a sentence that names the partitions of a topic that are there, or else the topics."""
    keys = set(there)
    numbers = sorted(key.partition for key in keys if key.topic == topic)
    if numbers:
        return f"Partitions of {topic} there: {listed(map(str, numbers))}"
    topics = sorted({key.topic for key in keys})
    near = nearest(topic, topics)
    meant = f"Did you mean {near}? " if near else ""
    return meant + (f"Topics there: {listed(topics)}" if topics else "There is no topic at all")


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return which of some names another one nearly is, in any case; None if it is like none."""
    by_letters = {each.lower(): each for each in names}
    near = difflib.get_close_matches(name.lower(), by_letters, n=1)
    return by_letters[near[0]] if near else None


# ----------------------------------------------------------------------------------------------
# Sets of integers as ranges: offsets, partitions, timestamps.


_LOWEST: Final = -(2**63)
_END: Final = 2**63


@dataclass(frozen=True, slots=True)
class Intervals:
    """A set of int64 numbers: half-open ranges that ascend and neither touch nor overlap."""

    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def between(cls, start: int | None, end: int | None) -> Self:
        """Return the set ``[start, end)``; each side may be open."""
        low = _LOWEST if start is None else max(start, _LOWEST)
        high = _END if end is None else min(end, _END)
        return cls(((low, high),) if low < high else ())

    @classmethod
    def of(cls, numbers: Iterable[int]) -> Self:
        """Return the set of single numbers."""
        ranges: list[tuple[int, int]] = []
        for number in sorted({number for number in numbers if _LOWEST <= number < _END}):
            if ranges and ranges[-1][1] == number:
                ranges[-1] = (ranges[-1][0], number + 1)
            else:
                ranges.append((number, number + 1))
        return cls(tuple(ranges))

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __contains__(self, number: int) -> bool:
        return any(start <= number < end for start, end in self.ranges)

    def __and__(self, other: Intervals) -> Intervals:
        found = []
        mine, others = list(reversed(self.ranges)), list(reversed(other.ranges))
        while mine and others:
            start = max(mine[-1][0], others[-1][0])
            end = min(mine[-1][1], others[-1][1])
            if start < end:
                found.append((start, end))
            (mine if mine[-1][1] <= others[-1][1] else others).pop()
        return Intervals(tuple(found))

    def __invert__(self) -> Intervals:
        bounds = [_LOWEST, *(bound for entry in self.ranges for bound in entry), _END]
        gaps = zip(bounds[::2], bounds[1::2], strict=True)
        return Intervals(tuple((start, end) for start, end in gaps if start < end))

    @property
    def first(self) -> int:
        """The smallest number; of the empty set, one above all."""
        return self.ranges[0][0] if self.ranges else _END

    @property
    def last(self) -> int:
        """The largest number; of the empty set, one below all."""
        return self.ranges[-1][1] - 1 if self.ranges else _LOWEST - 1

    @property
    def is_open(self) -> bool:
        """Whether the set has no largest number but the type's own."""
        return self.last == _END - 1

    def hull(self) -> Intervals:
        """Return the range from the smallest number to the largest."""
        return Intervals.between(self.first, self.last + 1)

    def multiples(self, unit: int) -> Intervals:
        """Return the n for which ``n * unit`` is in the set; what is open stays open."""
        found: list[tuple[int, int]] = []
        for start, end in self.ranges:
            low = _LOWEST if start == _LOWEST else -(-start // unit)
            high = _END if end == _END else -(-end // unit)
            if found and found[-1][1] == low:
                low = found.pop()[0]
            if low < high:
                found.append((low, high))
        return Intervals(tuple(found))


EVERYTHING: Final = Intervals.between(None, None)
NOTHING: Final = Intervals(())
