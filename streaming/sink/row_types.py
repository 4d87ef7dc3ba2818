"""The types that the columns of the sink's rows may have, by Spark's names for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from kafkalog.errors import RowError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["check_columns", "check_distinct"]


class _Column(NamedTuple):
    name: str
    types: tuple[str, ...]


_BYTES: Final = ("string", "binary")

_TOPIC: Final = _Column("topic", ("string",))
_COLUMNS: Final = (
    _TOPIC,
    _Column("key", _BYTES),
    _Column("value", _BYTES),
    _Column("headers", ("array<struct<key:string,value:binary>>",)),
    _Column("partition", ("int",)),
    _Column("timestamp", ("timestamp", "bigint")),
)
"""In the order in which Spark's Kafka sink checks them."""

_OFFSET: Final = _Column("offset", ("bigint",))


def check_distinct(names: Sequence[str], *, topic_given: bool, keeps_offsets: bool = False) -> None:
    """Refuse rows that have a column twice, of those that are looked at: which of them is meant?

    Raises:
        RowError: naming the column.
    """
    for column in _looked_at(topic_given=topic_given, keeps_offsets=keeps_offsets):
        if names.count(column.name) > 1:
            raise RowError(
                f"there is more than one column {column.name!r}: rename or drop all but one"
            )


def check_columns(
    types: Mapping[str, str], *, topic_given: bool, keeps_offsets: bool = False
) -> None:
    """Refuse rows that cannot become records; the first problem found is told.

    Args:
        types: Spark's name of each column's type.
        topic_given: the option ``topic`` is set; a column ``topic`` is then not looked at.
        keeps_offsets: the option ``preserveOffsets`` is true; else a column ``offset`` is not
            looked at.

    Raises:
        RowError: naming the column, the type found and those allowed.
    """
    for column in _looked_at(topic_given=topic_given, keeps_offsets=keeps_offsets):
        found = types.get(column.name)
        if found is None:
            _require(column)
        elif found not in column.types:
            raise RowError(
                f"column {column.name!r} has the type {found}, but must be "
                f"{' or '.join(column.types)}"
            )


def _looked_at(*, topic_given: bool, keeps_offsets: bool) -> list[_Column]:
    columns = (*_COLUMNS, _OFFSET) if keeps_offsets else _COLUMNS
    return [column for column in columns if not (column is _TOPIC and topic_given)]


def _require(column: _Column) -> None:
    if column is _TOPIC:
        raise RowError(
            "no topic to write to: set the option 'topic', or add a column 'topic' of type string"
        )
    if column is _OFFSET:
        raise RowError(
            "there is no column 'offset' of type bigint, whose offsets preserveOffsets=true is to "
            "keep"
        )
    if column.name == "value":
        raise RowError(
            "there is no column 'value', which must be string or binary (column names are "
            "case-sensitive)"
        )
