"""Push filters of a Spark query down: from filters to sets of offsets and timestamps.

Filters on ``topic``, ``partition`` and ``offset`` are taken over from Spark, exactly: the first two
are a folder's, and a log is ordered by the third. Filters on ``timestamp`` say which batches need
not be read. Spark applies them again to the rows of the other batches.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from kafkalog.model import EVERYTHING, NOTHING, Intervals
from kafkalog.streaming.source.planner import Selection

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql.datasource import Filter

    from kafkalog.model import TopicPartition

__all__ = ["FilteredSelection", "wanted_keys"]

_MAX_VALUES: Final = 100
"""Of one filter on offsets: each may become a place to seek."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

_TEXT_TESTS: Final[dict[type[Filter], Callable[[bytes, bytes], bool]]] = {
    EqualTo: bytes.__eq__,
    EqualNullSafe: bytes.__eq__,
    LessThan: bytes.__lt__,
    LessThanOrEqual: bytes.__le__,
    GreaterThan: bytes.__gt__,
    GreaterThanOrEqual: bytes.__ge__,
    StringStartsWith: bytes.startswith,
    StringEndsWith: bytes.endswith,
    StringContains: bytes.__contains__,
}
"""As Spark compares text: by the bytes of its UTF-8."""


@dataclass(slots=True)
class FilteredSelection(Selection):
    """What filters, all of which must hold, leave of the log."""

    topics: list[Filter] = field(default_factory=list)

    def selects(self, topic_partition: TopicPartition) -> bool:
        """Return whether rows of a partition may be left."""
        topic, partition = topic_partition
        return partition in self.partitions and all(
            _topic_passes(entry, topic) for entry in self.topics
        )

    def add(self, given: Filter, columns: Mapping[str, str]) -> bool:
        """Take a filter into account; tells whether Spark need not apply it any more.

        ``columns`` gives the source's column for each name that the rows have.
        """
        inner, negated = (given.child, True) if isinstance(given, Not) else (given, False)
        attribute: tuple[str, ...] = getattr(inner, "attribute", ())
        column = columns.get(attribute[0]) if len(attribute) == 1 else None
        if column == "topic":
            return self._add_topic(given, inner)
        if column == "timestamp":
            self._add_timestamps(inner, negated=negated)
            return False
        numbers = _numbers(inner, _to_int) if column in {"partition", "offset"} else None
        if numbers is None:
            return False
        numbers = _negated(numbers, inner) if negated else numbers
        if column == "offset":
            return self._add_offsets(numbers)
        self.partitions &= numbers
        return True

    def _add_topic(self, given: Filter, inner: Filter) -> bool:
        known = isinstance(inner, (In, IsNull, IsNotNull)) or type(inner) in _TEXT_TESTS
        if known:
            self.topics.append(given)
        return known

    def _add_offsets(self, numbers: Intervals) -> bool:
        exact = len(numbers.ranges) <= _MAX_VALUES
        self.offsets &= numbers if exact else numbers.hull()
        return exact

    def _add_timestamps(self, inner: Filter, *, negated: bool) -> None:
        if isinstance(inner, (IsNull, IsNotNull)):
            return
        if isinstance(inner, EqualNullSafe) and (negated or inner.value is None):
            return  # holds for the timestamps that are shown as null
        micros = _numbers(inner, _to_micros)
        if micros is not None:
            wanted = _negated(micros, inner) if negated else micros
            self.timestamps &= wanted.multiples(1000)


def wanted_keys(given: Filter) -> frozenset[bytes] | None:
    """Return the keys for which alone a filter can hold; None if it does not tell."""
    match given:
        case EqualTo(value=value) | EqualNullSafe(value=value) if value is not None:
            values = [value]
        case In(value=listed):
            values = [value for value in listed if value is not None]
        case _:
            return None
    try:
        return frozenset(
            value.encode() if isinstance(value, str) else bytes(memoryview(value))
            for value in values
        )
    except TypeError:
        return None


def _topic_passes(given: Filter, topic: str) -> bool:
    if isinstance(given, Not):
        return _holds(given.child, topic.encode()) is False
    return _holds(given, topic.encode()) is True


def _holds(given: Filter, topic: bytes) -> bool | None:
    """Return whether a filter holds for a topic; None where SQL knows neither."""
    if isinstance(given, (IsNull, IsNotNull)):
        return isinstance(given, IsNotNull)
    if isinstance(given, In):
        if any(value is not None and value.encode() == topic for value in given.value):
            return True
        return None if None in given.value else False
    value = getattr(given, "value", None)
    if value is None:
        return False if isinstance(given, EqualNullSafe) else None
    return _TEXT_TESTS[type(given)](topic, value.encode())


def _numbers(given: Filter, convert: Callable[[Any], int]) -> Intervals | None:
    """Return the numbers for which a filter holds on a column without nulls; None if unknown."""
    if isinstance(given, (IsNull, IsNotNull)):
        return EVERYTHING if isinstance(given, IsNotNull) else NOTHING
    try:
        if isinstance(given, In):
            return Intervals.of(convert(value) for value in given.value if value is not None)
        value = getattr(given, "value", None)
        return NOTHING if value is None else _compared(given, convert(value))
    except TypeError:
        return None


def _compared(given: Filter, number: int) -> Intervals | None:
    match given:
        case EqualTo() | EqualNullSafe():
            return Intervals.of([number])
        case LessThan():
            return Intervals.between(None, number)
        case LessThanOrEqual():
            return Intervals.between(None, number + 1)
        case GreaterThan():
            return Intervals.between(number + 1, None)
        case GreaterThanOrEqual():
            return Intervals.between(number, None)
    return None


def _negated(numbers: Intervals, inner: Filter) -> Intervals:
    """Return where NOT of a filter holds: nowhere, if it compares with NULL."""
    compares_with = inner.value if isinstance(inner, In) else (getattr(inner, "value", 0),)
    if None in compares_with and not isinstance(inner, EqualNullSafe):
        return NOTHING
    return ~numbers


def _to_int(value: object) -> int:
    if type(value) is not int:
        raise TypeError
    return value


def _to_micros(value: datetime) -> int:
    return (value - _EPOCH) // _MICROSECOND
