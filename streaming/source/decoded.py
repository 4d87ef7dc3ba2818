"""Keys and values decoded into columns by the schemas of a registry's topic.

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

import pyarrow as pa

from kafkalog.errors import KafkaLogError, OptionError, SchemaError, UnknownTopicOrPartitionError
from kafkalog.files.system import remembered
from kafkalog.streaming.decoding.limits import DecodeError
from kafkalog.streaming.decoding.registry import (
    FORMATS,
    Registry,
    SchemaText,
    context_of,
    split_framed,
)
from kafkalog.streaming.source.reading import BatchSize, read_split
from kafkalog.streaming.source.schema import DecodedSide, RowSchema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from kafkalog.streaming.options.read_options import ReadOptions
    from kafkalog.streaming.source.planner import LogSplit

__all__ = ["choose_sides", "decode_batches", "read_registry", "read_rows"]

_LOGGER: Final = logging.getLogger("kafkalog.source")
_Decode: TypeAlias = Callable[[bytes], Any]
_CELLS: Final = 2_000_000
"""About how many fields of decoded values a batch has at most."""
_MOST_VERSIONS: Final = 20
"""How many versions are tried for the columns that a query was planned with."""
_MOST_REGISTRIES: Final = 8


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


def read_rows(
    split: LogSplit,
    options: ReadOptions,
    rows: RowSchema | None,
    size: BatchSize | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read a split as :func:`~.reading.read_split` does, decoded columns included."""
    size = size or BatchSize()
    if rows is None or not rows.decoded:
        yield from read_split(split, options, rows, size=size)
    else:
        stored = read_split(split, options, rows.stored, size=size)
        yield from decode_batches(stored, rows, options)


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
        columns = [_bytes_of(batch.column(each.place_in(rows))) for each in decoders]
        start = 0
        for each in decoders:
            each.begin_batch()
        while start < batch.num_rows:
            end, cells = start, 0
            while end < batch.num_rows and cells < _CELLS:
                for decoder, values in zip(decoders, columns, strict=True):
                    cells += decoder.add(values[end])
                end += 1
            made = {name: array for each in decoders for name, array in each.finish().items()}
            yield _assembled(batch.slice(start, end - start), made, rows)
            start = end


def _bytes_of(column: pa.Array) -> list[bytes | None]:
    found: list[bytes | None] = column.view(pa.binary()).to_pylist()
    return found


def _assembled(
    batch: pa.RecordBatch, made: Mapping[str, pa.Array], rows: RowSchema
) -> pa.RecordBatch:
    stored = dict(zip(rows.stored.columns, batch.columns, strict=True))
    columns = [made[name] if name in made else stored[name] for name in rows.columns]
    return pa.RecordBatch.from_arrays(columns, schema=rows.to_arrow())


class _SideDecoder:
    """Decodes keys or values, some rows at a time."""

    def __init__(self, side: DecodedSide, options: ReadOptions) -> None:
        self._side = side
        self._options = options
        self._column = _column_of(side)
        self._readers: dict[int, _Decode | str] = {}
        self._registry: Registry | None = None
        self._may_look = True
        self._values: list[Any] = []
        self._ids: list[int | None] = []
        self._errors: list[str | None] = []

    def place_in(self, rows: RowSchema) -> int:
        """Return the place of the column that is decoded."""
        return rows.stored.columns.index(self._side.side)

    def begin_batch(self) -> None:
        """Look again for schemas that were not there, once a batch at most."""
        self._may_look = True
        self._readers = {
            number: known for number, known in self._readers.items() if not isinstance(known, str)
        }

    def add(self, data: bytes | None) -> int:
        """Decode a value, and return about how many fields it fills."""
        value, number, error = None, None, None
        if data is not None:
            try:
                number, decode, payload = self._reader_of(data)
                value = decode(payload)
            except DecodeError as reason:
                error = f"the {self._side.side} {reason}"
                number = self._number_of(data)
        self._values.append(value)
        self._ids.append(number)
        self._errors.append(error)
        return 1 if value is None else 1 + int(self._column.cells.used)

    def finish(self) -> dict[str, pa.Array]:
        """Return the columns of the rows since the last call."""
        arrays = (
            self._array(),
            pa.array(self._ids, pa.int32()),
            pa.array(self._errors, pa.string()),
        )
        self._values, self._ids, self._errors = [], [], []
        return dict(zip(self._side.fields, arrays, strict=True))

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
                self._errors[place] = reason.encode(errors="replace").decode()[:500]
        return pa.array(self._values, kind)

    def _number_of(self, data: bytes) -> int | None:
        try:
            return split_framed(data)[0]
        except DecodeError:
            return None

    def _reader_of(self, data: bytes) -> tuple[int | None, _Decode, bytes]:
        if self._side.format == "json":
            # text of JSON never begins with a byte 0: producers without a registry write it
            number, payload = split_framed(data) if data[:1] == b"\0" else (None, data)
            return number, self._column.decode, payload
        number, payload = split_framed(data)
        reader = self._readers.get(number)
        if reader is None:
            reader = self._readers[number] = self._find(number)
        if isinstance(reader, str):
            raise DecodeError(reader)
        return number, reader, payload

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
