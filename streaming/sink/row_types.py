"""The types that the columns of the sink's rows may have, by Spark's names for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from kafkalog.errors import RowError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["check_columns"]


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
_KEPT: Final = (_OFFSET, _Column("timestampType", ("int",)))
"""Those that are looked at with ``preserveOffsets``."""


def check_columns(
    columns: Sequence[tuple[str, str]], *, topic_given: bool, keeps_offsets: bool = False
) -> None:
    """Refuse rows that cannot become records; the first problem found is told.

    Args:
        columns: the name of each column, and Spark's name of its type.
        topic_given: the option ``topic`` is set; a column ``topic`` is then not looked at.
        keeps_offsets: the option ``preserveOffsets`` is true; else the columns ``offset`` and
            ``timestampType`` are not looked at.

    Raises:
        RowError: naming a column that is there twice, or the type found and those allowed.
    """
    known = _COLUMNS + _KEPT if keeps_offsets else _COLUMNS
    looked_at = [column for column in known if not (column is _TOPIC and topic_given)]
    names = [name for name, _ in columns]
    for column in looked_at:
        if names.count(column.name) > 1:  # which of them is meant?
            raise RowError(
                f"there is more than one column {column.name!r}: rename or drop all but one"
            )
    types = dict(columns)
    for column in looked_at:
        found = types.get(column.name)
        if found is None:
            _require(column)
        elif found not in column.types:
            raise RowError(
                f"column {column.name!r} has the type {found}, but must be "
                f"{' or '.join(column.types)}"
            )


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
