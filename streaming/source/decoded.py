"""Read splits in a task, and decode keys and values by the schemas of a registry's topic.

:func:`read_task` is where every task begins, also without anything to decode.

``decode.value`` adds three columns: ``valueDecoded``, of the type that a schema gives;
``valueSchemaId``, by which the value was written; and ``valueError``, which says why a value has no
``valueDecoded``. ``value`` stays as it is. The same for ``decode.key``.

The columns are chosen where a query is planned. Tasks look schemas up by the ids that values name:
they read the topic themselves, and again when an id is not known yet.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from kafkalog.errors import KafkaLogError, OptionError, SchemaError, UnknownTopicOrPartitionError
from kafkalog.files.system import remembered
from kafkalog.streaming.decoding.avro_columns import NotPlainError
from kafkalog.streaming.decoding.registry import (
    FORMATS,
    HEAD_BYTES,
    DecodeError,
    Registry,
    SchemaText,
    context_of,
    split_framed,
)
from kafkalog.streaming.records.arrow_buffers import binary_column
from kafkalog.streaming.source.reading import BatchSize, join_batches, read_split
from kafkalog.streaming.source.schema import DecodedSide, RowSchema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from kafkalog.streaming.decoding.avro_columns import BulkReader
    from kafkalog.streaming.options.read_options import ReadOptions
    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers
    from kafkalog.streaming.source.planner import LogSplit

__all__ = [
    "BULK_FROM",
    "choose_sides",
    "decode_batches",
    "read_registry",
    "read_task",
]

_LOGGER: Final = logging.getLogger("kafkalog.source")
_Decode: TypeAlias = Callable[[bytes], Any]
_CELLS: Final = 2_000_000
"""About how many fields of decoded values a batch has at most."""
_MOST_VERSIONS: Final = 20
"""How many versions are tried for the columns that a query was planned with."""
_MOST_REGISTRIES: Final = 8
BULK_FROM: Final = 256
"""Of fewer values of a schema in a batch each is decoded by itself: a kernel takes time to load."""


# ----------------------------------------------------------------------------------------------
# Which columns there are.


def choose_sides(
    options: ReadOptions, wanted: Mapping[str, pa.DataType] | None = None
) -> tuple[DecodedSide, ...]:
    """Choose the schemas whose columns a query has.

    ``wanted`` are the types of columns that are planned already. A schema that was registered since
    does not change them: the newest that gives them is taken.

    Raises:
        OptionError: no schema can be told, or a library is not installed.
        SchemaError: the schema cannot be used.
    """
    return tuple(
        _choose(options, side, chosen, (wanted or {}).get(f"{side}Decoded"))
        for side, chosen in (("key", options.decode_key), ("value", options.decode_value))
        if chosen is not None
    )


def _choose(options: ReadOptions, side: str, name: str, wanted: pa.DataType | None) -> DecodedSide:
    given = _given(options, side, "")
    if given is not None and not given.startswith(("newest", "version:", "id:")):
        return _side(options, side, name, SchemaText(given), ".")
    registry = read_registry(options)
    subjects = _subjects(options, side)
    found = [_of_subject(options, registry, (side, name), each, wanted) for each in subjects]
    if any(each.kind != found[0].kind for each in found):
        raise OptionError(
            f"the newest schemas of {', '.join(subjects)} give different columns: read the topics "
            f"one by one, or let schema.{side}.subject name the one to read all by"
        )
    return found[0]


def _of_subject(
    options: ReadOptions,
    registry: Registry,
    chosen: tuple[str, str],
    subject: str,
    wanted: pa.DataType | None,
) -> DecodedSide:
    """Return the column by a subject's newest schema, or by the one that is named."""
    side, name = chosen
    context, texts = context_of(subject), _texts(options, registry, side, name, subject)
    first = None
    for text in islice(texts, _MOST_VERSIONS if wanted is not None else 1):
        try:
            found = _side(options, side, name, text, context)
        except SchemaError:
            if first is None:
                raise
            continue
        if wanted is None or found.kind == wanted:
            return found
        first = first or found
    if first is None:
        raise OptionError(f"schema.{side} names no schema of {subject}")  # pragma: no cover
    return first


def _texts(
    options: ReadOptions, registry: Registry, side: str, name: str, subject: str
) -> Iterator[SchemaText]:
    word, _, number = (_given(options, side, "") or "newest").partition(":")
    versions = registry.versions(subject)
    if word == "id":
        one = registry.by_id(context_of(subject), int(number))
        versions = [] if one is None else [one]
    elif word == "version":
        versions = [each for each in versions if each.version == int(number)]
    if not versions:
        raise OptionError(_no_schema(options, registry, side, subject))
    for each in versions:
        if FORMATS.get(each.format) != name:
            raise OptionError(
                f"decode.{side} is {name}, but {each} is of {FORMATS.get(each.format, each.format)}"
            )
        yield registry.text_of(each)


def _no_schema(options: ReadOptions, registry: Registry, side: str, subject: str) -> str:
    known = registry.subjects()
    there = (
        f"it has {', '.join(known[:10])}{', …' if known[10:] else ''}"
        if known
        else ("it has no schema at all")
    )
    named = _given(options, side, "") or "newest"
    return (
        f"topic {options.schema_topic} has no schema {named} of subject {subject}: {there}. "
        f"schema.{side}.subject names another one"
    )


def _given(options: ReadOptions, side: str, which: str) -> str | None:
    name = {"": "schema", "subject": "subject", "message": "message"}[which]
    found: str | None = getattr(options, f"{side}_{name}")
    return found


def _subjects(options: ReadOptions, side: str) -> list[str]:
    named = _given(options, side, "subject")
    if named is not None:
        return [named]
    from kafkalog.streaming.source.subscription import Subscription  # noqa: PLC0415

    read = Subscription.of(options)
    topics = read.topics | {key.topic for key in read.partitions}
    if not topics:
        raise OptionError(
            f"decode.{side} with subscribePattern needs schema.{side}.subject, the subject whose "
            "schema gives the columns"
        )
    return [f"{topic}-{side}" for topic in sorted(topics)]


def _side(
    options: ReadOptions, side: str, name: str, text: SchemaText, context: str
) -> DecodedSide:
    made = DecodedSide(side, name, text, _given(options, side, "message"), context, pa.null())
    return replace(made, kind=_column_of(made).type)


def _column_of(side: DecodedSide) -> Any:  # noqa: ANN401 - one class a format
    """Make what decodes one side; its library is imported here."""
    if side.format == "avro":
        from kafkalog.streaming.decoding.avro import AvroColumn  # noqa: PLC0415

        return AvroColumn(side.schema)
    if side.format == "json":
        from kafkalog.streaming.decoding.json_schema import JsonColumn  # noqa: PLC0415

        return JsonColumn(side.schema)
    from kafkalog.streaming.decoding.protobuf import ProtobufColumn  # noqa: PLC0415

    return ProtobufColumn(side.schema, side.message)


# ----------------------------------------------------------------------------------------------
# The registry's topic.


class _ReadRegistry(NamedTuple):
    """The schemas, and what was read for them."""

    splits: tuple[LogSplit, ...]
    registry: Registry


class _Registries(dict[tuple[tuple[str, ...], str], _ReadRegistry]):
    """What this process has read."""


def read_registry(options: ReadOptions) -> Registry:
    """Read the schemas of the topic that a query names; again only if it has changed.

    What was written last counts, whether a broker had said that it is committed or not: a value
    names an id only after a registry has given it.

    Raises:
        OptionError: the topic is not there.
        KafkaLogError: it cannot be read.
    """
    from kafkalog.streaming.source.batch_plan import plan_batch  # noqa: PLC0415 - few queries do

    parsed = _options_of_registry(options)
    try:
        splits = tuple(plan_batch(parsed))
    except UnknownTopicOrPartitionError as error:
        raise OptionError(
            f"decode.value and decode.key read schemas from topic {options.schema_topic}, but "
            f"{error}. schema.topic names another topic; the text of a schema of JSON, as "
            "schema.value, needs none"
        ) from None
    kept, key = remembered(_Registries), (options.paths, options.schema_topic)
    known = kept.get(key)
    if known is not None and known.splits == splits:
        return known.registry
    registry = _read(splits, parsed)
    if len(kept) >= _MOST_REGISTRIES:
        kept.clear()
    kept[key] = _ReadRegistry(splits, registry)
    return registry


def _read(splits: Iterable[LogSplit], options: ReadOptions) -> Registry:
    registry, rows = Registry(), RowSchema.named(("key", "value"))
    for split in splits:
        for batch in read_split(split, options, rows):
            keys, values = (column.to_pylist() for column in batch.columns)
            for pair in zip(keys, values, strict=True):
                registry.feed(*pair)
    if registry.skipped:
        _LOGGER.warning(
            "%d records of %s are none of a schema registry, and are left out, such as: %s",
            registry.skipped,
            options.subscribe,
            "; ".join(registry.problems),
        )
    return registry


def _options_of_registry(options: ReadOptions) -> ReadOptions:
    unset: dict[str, Any] = dict.fromkeys(
        (
            *("subscribe_pattern", "assign", "starting_offsets", "ending_offsets"),
            *("starting_timestamp", "ending_timestamp", "starting_offsets_by_timestamp"),
            *("ending_offsets_by_timestamp", "stop_at_offsets", "decode_key", "decode_value"),
            *("key_schema", "value_schema", "key_subject", "value_subject", "key_message"),
            *("value_message", "max_offsets_per_trigger", "min_offsets_per_trigger"),
            *("min_partitions", "max_records_per_partition", "split_bytes", "group_id"),
        )
    )
    return replace(
        options,
        **unset,
        subscribe=options.schema_topic,
        view="records",
        read_up_to="logEnd",
        wait_for_topics=False,
        isolation_level="read_uncommitted",
        join_group=False,
        commit_group_offsets=False,
        include_headers=False,
        filter_pushdown=False,
        tombstones=False,
        on_timestamp_overflow="null",
    )


# ----------------------------------------------------------------------------------------------
# Rows.


def read_task(
    splits: Iterable[LogSplit],
    options: ReadOptions,
    rows: RowSchema | None,
    size: BatchSize | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read splits as :func:`~.reading.read_split` does, one after the other; decode what is asked.

    What decodes is made once for all of them: it looks for schemas at the first id, and that look
    takes the longer, the more partitions there are. So does one for an id without a schema, which
    comes once a batch: small batches are joined.
    """
    size = size or BatchSize()
    stored_rows = None if rows is None else rows.stored
    stored = (
        batch for split in splits for batch in read_split(split, options, stored_rows, size=size)
    )
    if rows is None or not rows.decoded:
        yield from stored
    else:
        yield from decode_batches(join_batches(stored), rows, options)


def decode_batches(
    batches: Iterable[pa.RecordBatch], rows: RowSchema, options: ReadOptions
) -> Iterator[pa.RecordBatch]:
    """Add decoded columns to batches of ``rows.stored``; a batch of large values becomes several.

    Args:
        batches: records with the columns that are stored.
        rows: the columns to give, in their order.
        options: those of the query: where the schemas are.
    """
    decoders = [_SideDecoder(each, options) for each in rows.decoded]
    for batch in batches:
        filled = np.zeros(batch.num_rows, np.int64)
        for each in decoders:
            filled += each.begin_batch(batch.column(each.place_in(rows)))
        start = 0
        for end in _cuts(filled, decoders):
            made = {name: array for each in decoders for name, array in each.finish(end).items()}
            yield _assembled(batch.slice(start, end - start), made, rows)
            start = end


def _cuts(filled: NDArray[np.int64], decoders: Sequence[_SideDecoder]) -> Iterator[int]:
    """Tell where to cut a batch, and decode on the way the rows that are decoded one by one.

    Args:
        filled: about how many fields each row fills that is decoded in bulk.
        decoders: what decodes the others.
    """
    one_by_one = np.flatnonzero(np.any([each.is_single for each in decoders], axis=0)).tolist()
    total = np.concatenate([np.zeros(1, np.int64), np.cumsum(filled)])
    row, rows, cells = 0, len(filled), 0
    for single in [*one_by_one, rows]:
        while row < single:  # all up to there in bulk
            room = total[row] + _CELLS - cells
            end = min(int(np.searchsorted(total, room, side="left")), single)
            cells, row = cells + int(total[end] - total[row]), end
            if cells >= _CELLS:
                yield row
                cells = 0
        if single < rows:
            cells += int(filled[single]) + sum(each.add(single) for each in decoders)
            row = single + 1
            if cells >= _CELLS:
                yield row
                cells = 0
    if cells:
        yield rows


def _assembled(
    batch: pa.RecordBatch, made: Mapping[str, pa.Array], rows: RowSchema
) -> pa.RecordBatch:
    stored = dict(zip(rows.stored.columns, batch.columns, strict=True))
    columns = [made[name] if name in made else stored[name] for name in rows.columns]
    return pa.RecordBatch.from_arrays(columns, schema=rows.to_arrow())


class _SideDecoder:
    """Decodes keys or values, some rows at a time: in bulk where it can, others one by one."""

    def __init__(self, side: DecodedSide, options: ReadOptions) -> None:
        self._side = side
        self._options = options
        self._column = _column_of(side)
        self._readers: dict[int, _Decode | str] = {}
        self._bulk_readers: dict[int, BulkReader | None] = {}
        self._registry: Registry | None = None
        self._may_look = True
        self._rows = _Rows(pa.array([], pa.binary()))
        self._done = 0
        self._places: list[int] = []
        self._values: list[Any] = []
        self._errors: dict[int, str] = {}
        self.is_single: NDArray[np.bool_] = np.zeros(0, np.bool_)
        """Which rows of the batch are decoded one by one."""

    def place_in(self, rows: RowSchema) -> int:
        """Return the place of the column that is decoded."""
        return rows.stored.columns.index(self._side.side)

    def begin_batch(self, column: pa.Array) -> NDArray[np.int64]:
        """Begin with a batch; return about how many fields each row fills, 0 if that is not known.

        Schemas that were not there are looked for again, once a batch at most.
        """
        self._may_look = True
        self._readers = {
            number: known for number, known in self._readers.items() if not isinstance(known, str)
        }
        self._rows, self._done = _Rows(column), 0
        in_bulk = np.zeros(len(column), np.bool_)
        if self._side.format == "avro":
            for number, among in self._rows.by_number():
                if len(among) >= BULK_FROM and self._bulk_reader(number) is not None:
                    in_bulk[among] = True
        self.is_single = ~in_bulk
        sizes = self._rows.sizes()
        fixed = self._column.filled(0) if in_bulk.any() else 0
        found: NDArray[np.int64] = np.where(in_bulk, sizes + fixed, 0)
        return found

    def _bulk_reader(self, number: int) -> BulkReader | None:
        if isinstance(self._reader(number), str):
            return None
        if number not in self._bulk_readers:
            schema = self._known(number)
            found = None if schema is None else self._column.bulk_reader(schema)
            self._bulk_readers[number] = found
        return self._bulk_readers[number]

    def add(self, row: int) -> int:
        """Decode a row that is not decoded in bulk; return about how many fields it fills."""
        return self._decode(row) if self.is_single[row] else 0

    def _decode(self, row: int) -> int:
        data, value = self._rows.value(row), None
        if data is not None:
            try:
                _, decode, payload = self._reader_of(data)
                value = decode(payload)
            except DecodeError as reason:
                self._errors[row] = f"the {self._side.side} {reason}"
        self._places.append(row)
        self._values.append(value)
        return 1 if value is None else 1 + int(self._column.cells.used)

    def finish(self, end: int) -> dict[str, pa.Array]:
        """Return the columns of the rows since the last call, up to one of the batch."""
        start, self._done = self._done, end
        parts = [] if self.is_single[start:end].all() else self._read_in_bulk(start, end)
        places, values = np.array(self._places, np.int64), self._array()
        column = _put_together([*parts, (places, values)], start, end - start)
        errors: list[str | None] = [None] * (end - start)
        for row, reason in self._errors.items():
            errors[row - start] = reason
        self._places, self._values, self._errors = [], [], {}
        numbers = self._rows.numbers(start, end)
        arrays = (column, numbers, pa.array(errors, pa.string()))
        return dict(zip(self._side.fields, arrays, strict=True))

    def _read_in_bulk(self, start: int, end: int) -> list[tuple[NDArray[np.int64], pa.Array]]:
        """Decode rows by schemas that permit it; those that it leaves are decoded one by one."""
        parts = []
        for number, rows in self._rows.by_number(start, end):
            reader = self._bulk_readers.get(number)
            if reader is None or self.is_single[rows[0]]:
                continue
            try:
                column, bad = reader.read(*self._rows.payloads(rows))
            except NotPlainError:  # too large for one column
                column, bad = pa.nulls(len(rows), self._side.kind), np.ones(len(rows), np.bool_)
            for row in rows[bad].tolist():
                self._decode(row)
            if bad.any():
                rows, column = rows[~bad], column.filter(pa.array(~bad))  # noqa: PLW2901
            parts.append((rows, column))
        return parts

    def _array(self) -> pa.Array:
        kind = self._side.kind
        try:
            return pa.array(self._values, kind)
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            pass
        for place, value in enumerate(self._values):
            try:
                pa.array([value], kind)
            except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
                self._values[place] = None
                reason = f"the {self._side.side} does not fit the column: {error}"
                self._errors[self._places[place]] = reason.encode(errors="replace").decode()[:500]
        return pa.array(self._values, kind)

    def _reader_of(self, data: bytes) -> tuple[int | None, _Decode, bytes]:
        if self._side.format == "json":
            # text of JSON never begins with a byte 0: producers without a registry write it
            number, payload = split_framed(data) if data[:1] == b"\0" else (None, data)
            return number, self._column.decode, payload
        number, payload = split_framed(data)
        reader = self._reader(number)
        if isinstance(reader, str):
            raise DecodeError(reader)
        return number, reader, payload

    def _reader(self, number: int) -> _Decode | str:
        reader = self._readers.get(number)
        if reader is None:
            reader = self._readers[number] = self._find(number)
        return reader

    def _find(self, number: int) -> _Decode | str:
        """Return what decodes by the schema of an id, or why there is none."""
        try:
            schema = None if self._registry is None else self._known(number)
            if schema is None and self._may_look:
                self._may_look = False
                self._registry = read_registry(self._options)
                schema = self._known(number)
            if schema is None:
                topic = self._options.schema_topic
                return f"names schema {number}, which is not in {topic}"
            found: _Decode = self._column.reader(schema)
        except KafkaLogError as error:
            return f"names schema {number}: {error}"
        return found

    def _known(self, number: int) -> SchemaText | None:
        registry = self._registry
        found = None if registry is None else registry.by_id(self._side.context, number)
        if registry is None or found is None:
            return None
        if FORMATS.get(found.format) != self._side.format:
            raise SchemaError(f"{found} is of {FORMATS.get(found.format, found.format)}")
        return registry.text_of(found)


class _Rows:
    """The rows of one column of a batch, with what stands at their heads."""

    def __init__(self, column: pa.Array) -> None:
        self._column = column.view(pa.binary())
        self._values: list[bytes | None] | None = None
        found = binary_column(self._column)
        self._source = found.data
        self._starts, self._ends = found.offsets[:-1], found.offsets[1:]
        framed = self._ends - self._starts >= HEAD_BYTES
        if len(found.valid):
            framed &= found.valid != 0
        heads = np.zeros((len(column), HEAD_BYTES), np.uint8)
        if framed.any():
            at = self._starts[framed]
            heads[framed] = self._source[at[:, None] + np.arange(HEAD_BYTES)]
        self._is_framed = framed & (heads[:, 0] == 0)
        ids = np.ascontiguousarray(heads[:, 1:]).view(">i4").ravel()
        self._ids: NDArray[np.int32] = ids.astype(np.int32)

    def value(self, row: int) -> bytes | None:
        """Return a row's bytes."""
        if self._values is None:
            self._values = self._column.to_pylist()
        return self._values[row]

    def sizes(self) -> NDArray[np.int64]:
        """Return how many bytes follow the head of each row."""
        found: NDArray[np.int64] = self._ends - self._starts - HEAD_BYTES
        return found

    def by_number(
        self, start: int = 0, end: int | None = None
    ) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Give the ids of schemas in some rows, each with the rows that name it."""
        rows = start + np.flatnonzero(self._is_framed[start:end])
        ids = self._ids[rows]
        for number in np.unique(ids).tolist():
            yield number, rows[ids == number]

    def payloads(self, rows: NDArray[np.int64]) -> tuple[Bytes, Integers, Integers]:
        """Return the bytes of all rows, and where the payloads of some of them start and end."""
        return self._source, self._starts[rows] + HEAD_BYTES, self._ends[rows]

    def numbers(self, start: int, end: int) -> pa.Array:
        """Return the ids of schemas of some rows; null where there is none."""
        return pa.array(self._ids[start:end], mask=~self._is_framed[start:end])


def _put_together(
    parts: Sequence[tuple[NDArray[np.int64], pa.Array]], first: int, count: int
) -> pa.Array:
    """Return columns of some rows each as one of all rows, in their order."""
    parts = [each for each in parts if len(each[0])]
    if len(parts) == 1:
        return parts[0][1]  # the rows of one part are in their order
    order = np.empty(count, np.int64)
    order[np.concatenate([rows for rows, _ in parts]) - first] = np.arange(count)
    return pa.concat_arrays([column for _, column in parts]).take(pa.array(order))
