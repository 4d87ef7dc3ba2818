"""Append and read without Spark: thin functions over the sink's commit and the source's reader.

What the sink promises holds here too: rows are visible all at once or not at all, an append with an
identity is there once however often it is tried, and readers see what is committed.
"""

from __future__ import annotations

import kafkalog.streaming.records  # noqa: F401 - first: it says which package is missing

# isort: split
import functools
import inspect
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    ParamSpec,
    Protocol,
    TypeAlias,
)

import pyarrow as pa

from kafkalog.errors import OptionError, RowError
from kafkalog.files.deferred_signals import IS_DONE, in_shielded_steps, shielded, shielded_step
from kafkalog.files.paths import as_path
from kafkalog.files.storage import RemoteRoot
from kafkalog.files.system import remembered, system
from kafkalog.streaming.admin.retention import retain_if_due
from kafkalog.streaming.commit.append import AppenderCache
from kafkalog.streaming.commit.committer import Committer, Outcome
from kafkalog.streaming.commit.versions import with_digests
from kafkalog.streaming.groups.assignors import assign_partitions
from kafkalog.streaming.lookup.block_cache import CacheStats, block_cache
from kafkalog.streaming.options.bridge import crosses_border
from kafkalog.streaming.options.declaring import warn_ignored
from kafkalog.streaming.options.quantities import moment
from kafkalog.streaming.sink.task_writer import TaskWriter
from kafkalog.streaming.sink.write_options import WriteOptions, WritePlan
from kafkalog.streaming.source.arguments import (
    OptionValues,
    Paths,
    check_member,
    joined,
    key_bytes,
    texts,
    topic_name,
    topic_names,
)
from kafkalog.streaming.store.identity import APP_PREFIX, BatchIdentity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import datetime

    from kafkalog.streaming.commit.staging.staged_files import AttachedRecords
    from kafkalog.streaming.consumer.consumer import Consumer
    from kafkalog.streaming.lookup.latest import LatestSplit
    from kafkalog.streaming.lookup.lookup import AsOf
    from kafkalog.streaming.options.read_options import ReadOptions
    from kafkalog.streaming.source.planner import LogSplit
    from kafkalog.streaming.source.schema import DecodedSide, ReadRows
    from kafkalog.streaming.store.log_set import StateCondition


__all__ = [
    "ArrowStream",
    "Outcome",
    "Paths",
    "Rows",
    "append",
    "assign_partitions",
    "batches_of",
    "cache_stats",
    "get",
    "read",
    "scan",
    "tail",
]


# ----------------------------------------------------------------------------------------------
# Rows as a program has them, as record batches of Arrow.


class ArrowStream(Protocol):
    """What hands its rows out as Arrow: frames of pandas and Polars, answers of DuckDB.

    Source: the Arrow PyCapsule interface.
    """

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return a capsule with a stream of record batches."""
        ...


Rows: TypeAlias = pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch] | ArrowStream


def batches_of(data: Rows) -> Iterator[pa.RecordBatch]:
    """Return rows as record batches, which are made one after the other where they can be.

    Raises:
        RowError: these are no rows of Arrow, or hand none out; as they come.
    """
    if isinstance(data, pa.RecordBatch):
        data = [data]
    elif hasattr(data, "__arrow_c_stream__"):
        data = pa.RecordBatchReader.from_stream(data)
    if not isinstance(data, Iterable) or isinstance(data, dict):
        raise _no_rows(data)
    for batch in data:
        if not isinstance(batch, pa.RecordBatch):
            raise _no_rows(batch)
        yield _plain(batch)


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return views of texts (Polars) and dictionaries (categories of pandas) as plain columns."""
    for number, field in enumerate(batch.schema):
        if (kind := _plain_type(field.type)) != field.type:
            column = batch.column(number).cast(kind)
            batch = batch.set_column(number, field.with_type(kind), column)
    return batch


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    return {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}.get(
        kind, kind
    )


def _no_rows(data: object) -> RowError:
    advice = ""
    if isinstance(data, dict):
        advice = ". pyarrow.Table.from_pylist makes a table of dicts that are rows, pyarrow.table "
        advice += "of a dict of columns"
    return RowError(
        "rows come as a table, a record batch, or an iterable of record batches of Arrow, or as "
        f"a frame of pandas or Polars, and not as {type(data).__name__}{advice}"
    )


# ----------------------------------------------------------------------------------------------

_P = ParamSpec("_P")

_OF_APPEND: Final = frozenset(
    {"path", "topic", "subscribe", "transactional.id", "txnappid", "txnversion"}
    | {"checkpointlocation"}
)
_OF_READ: Final = frozenset({"path", "subscribe"})
_OF_GET: Final = _OF_READ | {
    *("subscribepattern", "assign", "view", "includeheaders", "minpartitions"),
    *("endingoffsets", "endingtimestamp", "endingoffsetsbytimestamp"),
}


def _noting_outcome(
    function: Callable[Concatenate[list[Outcome], _P], Outcome],
) -> Callable[_P, Outcome]:
    """Let who interrupts an append know whether it is done, and its consumer if it is not.

    ``function`` gets a list first, for the outcome once nothing can change it any more.
    """
    signature = inspect.signature(function)
    given = [each for name, each in signature.parameters.items() if name != "_done"]
    function.__signature__ = signature.replace(parameters=given)  # type: ignore[attr-defined]
    crossing = crosses_border(function)

    @functools.wraps(function)
    def call(*given: _P.args, **named: _P.kwargs) -> Outcome:
        done: list[Outcome] = []
        try:
            return crossing(done, *given, **named)
        except BaseException as error:
            consumer = named.get("consumer")
            if done:
                if IS_DONE not in getattr(error, "__notes__", ()):
                    error.add_note(IS_DONE)
            elif hasattr(consumer, "note_failure"):
                consumer.note_failure()
            raise

    return call


@_noting_outcome
def append(
    _done: list[Outcome],
    path: Paths,
    topic: str | None,
    data: pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch] | ArrowStream,
    *,
    transactional_id: str | None = None,
    version: int | None = None,
    consumer: Consumer | None = None,
    options: OptionValues | None = None,
) -> Outcome:
    """Append rows to the logs of a topic and return once they are committed.

    Args:
        path: the log directories, made if need be; or a URI of an object store (docs/buckets.md).
        topic: where all rows go; None to take it from a column ``topic``.
        data: Arrow's table, record batch or several, or a frame of pandas or Polars, with ``value``
            (string or binary) and, if wanted, ``key``, ``partition`` (int32), ``timestamp`` (or
            int64 of ms), ``headers`` (list<struct<key: string, value: binary>>); others are left.
        transactional_id: the name under which appends are told apart, like Spark's ``txnAppId``.
        version: number of this append under that name, in each topic by itself. One that is not
            above the topic's last is skipped; the last one again with other rows is refused.
        consumer: publish with the rows how far this member of a group, kept in the same set, has
            come (Kafka's ``sendOffsetsToTransaction``); instead of a name and a version.
        options: the sink's other options and the topic's settings: see ``docs/options.md``.

    Returns:
        whether the rows were appended or there already, and the ends of the partitions written.

    Raises:
        OptionError: options that cannot be used.
        RowError: rows that cannot become records, or no rows of Arrow.
        CommitError: nothing of the rows is visible; trying again with the same ``version`` is safe.
        DurabilityError, UnknownOutcomeError: they are, or may be; try again with the ``version``.
        BatchIdentityError: there are other rows under this ``version``; nothing is written.
        FencedMemberError: the ``consumer`` has lost what it has read; nothing is written.
        KafkaLogError: likewise, for other reasons; see ``kafkalog.errors``.
    """
    parsed = _append_options(path, topic, options or {})
    return _append_noting(_done, data, parsed, (transactional_id, version), consumer)


def _append_noting(
    done: list[Outcome],
    data: Rows,
    parsed: WriteOptions,
    named: tuple[str | None, int | None],
    consumer: Consumer | None,
) -> Outcome:
    done.append(_append_of_member(data, parsed, named, consumer))
    if isinstance(parsed.paths[0], RemoteRoot):
        return done[0]
    if parsed.copied_from is None or not parsed.preserve_ends:
        # else it is a copy: who makes it moves its starts
        folders = [Path(each) for each in parsed.paths]
        retain_if_due(folders, parsed.policy, parsed.retention_check_interval_ms)
    return done[0]


def _append_of_member(
    data: Rows,
    parsed: WriteOptions,
    named: tuple[str | None, int | None],
    consumer: Consumer | None,
) -> Outcome:
    """Append with what a member of a group has come to, if there is one."""
    check_member(consumer)
    identity = _identity(*named, parsed.topic)
    if consumer is None:
        return _append(data, parsed, identity)
    if identity.writer.startswith(APP_PREFIX):
        raise OptionError(
            "give consumer, or transactional_id and version, and not both: what the group has "
            "come to tells whether rows are there already"
        )
    with consumer.publishing([as_path(each) for each in parsed.paths]) as attach:
        return _append(data, parsed, identity, attach)


def _append_options(path: Paths, topic: str | None, options: OptionValues) -> WriteOptions:
    given = texts(options, _OF_APPEND)
    if topic is not None:
        given["topic"] = topic_name(topic)
    parsed = WriteOptions.parse({"path": joined(path), **given})
    warn_ignored(parsed.ignored)
    return parsed


def _identity(
    transactional_id: str | None, version: int | None, topic: str | None
) -> BatchIdentity:
    """Return who writes; a name of its own for each append that is given none."""
    if (transactional_id is None) != (version is None):
        raise OptionError("give both transactional_id and version, or none")
    if transactional_id == "":
        raise OptionError("transactional_id is empty, expected the name of a writer")
    if transactional_id is None or version is None:
        return BatchIdentity(f"job:{system.random_id()}", 0)
    if type(version) is not int or not 0 <= version < 1 << 63:
        raise OptionError(f"version is {version!r}, expected a number from 0 to 2^63-1")
    return BatchIdentity(f"{APP_PREFIX}{transactional_id}", version, topic=topic)


def _append(
    data: Rows,
    parsed: WriteOptions,
    identity: BatchIdentity,
    attach: Callable[[], tuple[StateCondition, Sequence[AttachedRecords]]] | None = None,
) -> Outcome:
    if isinstance(data, pa.Table | pa.RecordBatch):  # no code of the caller's runs: one thread
        return shielded(_append_in_steps)(data, parsed, identity, attach)
    return _append_in_steps(data, parsed, identity, attach)


def _append_in_steps(
    data: Rows,
    parsed: WriteOptions,
    identity: BatchIdentity,
    attach: Callable[[], tuple[StateCondition, Sequence[AttachedRecords]]] | None,
) -> Outcome:
    _refuse_read_iterator(data)
    plan = shielded_step(WritePlan.of)(parsed)
    # As a producer goes on: what is not remembered need not be placed again as it was.
    writer = shielded_step(TaskWriter)(plan, identity, continues=not identity.is_remembered)
    try:
        for batch in batches_of(data):  # which may be the caller's own code
            shielded_step(writer.add)(batch)
        return _commit(writer, plan, identity, attach)
    except BaseException:
        if hasattr(data, "__next__") or isinstance(data, pa.RecordBatchReader):
            remembered(_ReadIterators).append(data)
        shielded_step(writer.discard)()
        raise


class _ReadIterators(deque[object]):
    """The iterators of the last appends that failed: what each has given does not come again."""

    def __init__(self) -> None:
        super().__init__(maxlen=16)


def _refuse_read_iterator(data: Rows) -> None:
    """Refuse to append what is left of an iterator as if it were all of it.

    Raises:
        RowError: an append of the very same iterator has failed.
    """
    if any(each is data for each in remembered(_ReadIterators)):
        raise RowError(
            "an append of this iterator has failed, and the rows that it has returned do not come "
            "again: pass a new iterator over the same rows. Nothing was written"
        )


@shielded
def _commit(
    writer: TaskWriter,
    plan: WritePlan,
    identity: BatchIdentity,
    attach: Callable[[], tuple[StateCondition, Sequence[AttachedRecords]]] | None,
) -> Outcome:
    staged = writer.finish()
    identity = with_digests(identity, [staged], plan.options.topic)
    conditions: list[StateCondition] = []
    attached_records: Sequence[AttachedRecords] = ()
    if attach is not None:
        condition, attached_records = attach()
        conditions.append(condition)
    options = plan.options
    copied = options.copied
    ends = copied.ends if copied is not None and options.preserve_ends else None
    if plan.bucket is not None:
        from kafkalog.streaming.commit.bucket_commit import commit_batch  # noqa: PLC0415

        return commit_batch(
            plan.bucket,
            plan.commit_plan,
            identity,
            staged.runs,
            conditions=conditions,
            attached_records=attached_records,
            ends=ends,
            copied=copied,
        )
    kept = remembered(AppenderCache)
    committer = Committer(
        plan.commit_plan,
        identity,
        appenders=kept,
        conditions=conditions,
        attached_records=attached_records,
        ends=ends,
        copied=copied,
    )
    return committer.commit_or_abort(staged.runs)


@crosses_border
def read(
    path: Paths,
    topic: str | Sequence[str] | None = None,
    *,
    columns: Sequence[str] = (),
    strings: Sequence[str] = (),
    options: OptionValues | None = None,
) -> pa.RecordBatchReader:
    """Read what is committed in the logs of topics, as of now.

    Args:
        path: the log directories, or the folder of one partition.
        topic: one topic, or several; None where ``subscribePattern`` or ``assign`` says which.
        columns: which of ``key``, ``value``, ``topic``, ``partition``, ``offset``, ``timestamp``,
            ``timestampType`` and ``headers`` to read, in this order; default: the first seven. Of
            other views, which of theirs; default: all.
        strings: those of ``key`` and ``value`` to give as string instead of binary. The bytes are
            taken as they are, and not checked.
        options: the source's other options, as for Spark: ``startingOffsets`` (default
            ``earliest``), ``endingOffsets``, ``view``, and so on; see ``docs/options.md``. Offsets
            may be a dict, and times a ``datetime``.

    Returns:
        a reader to iterate over, or to take a table from by ``read_all()``. Rows of a partition
        come in the order of their offsets, one partition after the other. What goes wrong while
        reading is raised from there.

    Raises:
        OptionError: options or columns that cannot be used.
        KafkaLogError: topics that do not exist, directories that cannot be read.
    """
    parsed, rows = _reading(path, topic, columns, strings, options)
    splits = _plan(parsed)
    return pa.RecordBatchReader.from_batches(rows.schema, _read_splits(splits, parsed, rows))


@shielded_step
def _plan(parsed: ReadOptions) -> Sequence[LogSplit | LatestSplit]:
    from kafkalog.streaming.lookup.latest import plan_latest  # noqa: PLC0415
    from kafkalog.streaming.source.batch_plan import plan_batch  # noqa: PLC0415
    from kafkalog.streaming.source.loss import with_remedy  # noqa: PLC0415

    with with_remedy(parsed):
        return plan_latest(parsed) if parsed.shows_latest else plan_batch(parsed)


@crosses_border
def get(
    path: Paths,
    topic: str,
    key: bytes | str,
    *,
    partition: int | None = None,
    as_of_offset: int | None = None,
    as_of_timestamp: int | str | datetime | None = None,
    options: OptionValues | None = None,
) -> dict[str, Any] | None:
    """Look for the newest record of a key, from the end of its partition backwards.

    Args:
        path: the log directories.
        topic: the topic.
        key: the key; text stands for its UTF-8.
        partition: the one to look in; default: the one that producers choose by the key's hash.
        as_of_offset: the newest record below this offset.
        as_of_timestamp: the newest before the first record of this time or a later one; ISO 8601
            text (UTC, unless it says otherwise), milliseconds, or a ``datetime``.
        options: the source's other options; with ``tombstones`` a null value is an answer too.

    Returns:
        the record by the source's columns, ``timestamp`` in ms; None if there is none.

    Raises:
        OptionError: options that cannot be used.
        UnknownTopicOrPartitionError: the topic or partition is not there, or the number of the
            topic's partitions is not known.
        KafkaLogError: directories or logs that cannot be read.
    """
    from kafkalog.streaming.lookup import lookup  # noqa: PLC0415

    given = {"path": joined(path), **texts(options or {}, _OF_GET)}
    topic, sought = topic_name(topic), key_bytes(key)
    partition = lookup.partition_to_search(given, topic, sought, partition)
    as_of = lookup.AsOf(as_of_offset, _moment(as_of_timestamp))
    return _newest(given, topic, sought, partition, as_of)


@shielded_step
def _newest(
    given: Mapping[str, str], topic: str, key: bytes, partition: int | None, as_of: AsOf
) -> dict[str, Any] | None:
    from kafkalog.streaming.lookup.lookup import look_up  # noqa: PLC0415

    found = look_up(given, topic, frozenset({key}), partition=partition, as_of=as_of)
    rows = [row for batch in found for row in batch.to_pylist()]
    return rows[0] if rows else None


@in_shielded_steps("scan")
@crosses_border
def scan(
    path: Paths,
    topic: str,
    *,
    prefix: bytes | str | None = None,
    low: bytes | str | None = None,
    high: bytes | str | None = None,
    partition: int | None = None,
    as_of_offset: int | None = None,
    as_of_timestamp: int | str | datetime | None = None,
    options: OptionValues | None = None,
) -> Iterator[pa.RecordBatch]:
    """Look for the newest records of many keys, in the order of the keys' bytes.

    The keys are those that begin with ``prefix``, or lie from ``low`` on and below ``high``; texts
    stand for their UTF-8. Without ``partition`` all are read, and whole. A key that several have
    comes several times, by their numbers. What does not fit ``table.memory`` is sorted in files
    without a name. The other arguments are those of :func:`get`.

    Yields:
        record batches with the source's columns, ``headers`` too; ``timestamp`` is int64 of ms.

    Raises:
        OptionError, UnknownTopicOrPartitionError, KafkaLogError: as in :func:`get`; raised when the
            first batch is asked for.
        SpillError: rows cannot be written to disk or read from it.
    """
    from kafkalog.streaming.lookup import lookup  # noqa: PLC0415
    from kafkalog.streaming.lookup.seen_keys import KeySpan  # noqa: PLC0415

    given = {"path": joined(path), **texts(options or {}, _OF_GET)}
    bounds = (None if each is None else key_bytes(each) for each in (prefix, low, high))
    topic, span = topic_name(topic), KeySpan.named(*bounds)
    if partition is not None:
        partition = lookup.partition_to_search(given, topic, b"", partition)
    as_of = lookup.AsOf(as_of_offset, _moment(as_of_timestamp))
    yield from lookup.look_up_span(given, topic, span, partition=partition, as_of=as_of)


def _moment(time: int | str | datetime | None) -> int | None:
    return None if time is None else moment("as_of_timestamp", time)


def cache_stats() -> CacheStats:
    """Return what the cache of this process did for look-ups, and what it holds now."""
    return block_cache().stats()


@crosses_border
def tail(
    path: Paths,
    topic: str | Sequence[str] | None = None,
    *,
    columns: Sequence[str] = (),
    strings: Sequence[str] = (),
    idle_timeout: float | None = None,
    options: OptionValues | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read what is committed from a start on, and continue with what is committed later.

    An exception out of a signal handler does not end it: ask for the next batch again.

    Args:
        path: as in :func:`read`.
        topic: as in :func:`read`.
        columns: as in :func:`read`.
        strings: as in :func:`read`.
        idle_timeout: seconds without new rows after which it ends; None to continue for ever.
        options: as in :func:`read`; ``startingOffsets`` is ``latest`` by default.

    Returns:
        an iterator over record batches, each of one partition, in the order of its offsets.

    Raises:
        OptionError, KafkaLogError: as in :func:`read`; raised when the first batch is asked for.
    """
    from kafkalog.streaming.source.stream_control import NewRows  # noqa: PLC0415

    return NewRows(
        functools.partial(_reading, path, topic, columns, strings, options), idle_timeout
    )


@in_shielded_steps("read")
@crosses_border
def _read_splits(
    splits: Iterable[LogSplit | LatestSplit], options: ReadOptions, rows: ReadRows
) -> Iterator[pa.RecordBatch]:
    from kafkalog.streaming.source.reading import join_batches  # noqa: PLC0415

    yield from join_batches(_batches_of_splits(splits, options, rows))


def _batches_of_splits(
    splits: Iterable[LogSplit | LatestSplit], options: ReadOptions, rows: ReadRows
) -> Iterator[pa.RecordBatch]:
    from kafkalog.streaming.lookup.latest import LatestSplit  # noqa: PLC0415
    from kafkalog.streaming.lookup.lookup import read_keys  # noqa: PLC0415
    from kafkalog.streaming.source.decoded import read_task  # noqa: PLC0415
    from kafkalog.streaming.source.reading import LARGE_BATCHES  # noqa: PLC0415

    splits = list(splits)
    for split in splits:
        split.announce()
    planned = [split for split in splits if not isinstance(split, LatestSplit)]
    yield from map(rows.chosen, read_task(planned, options, rows.of_records, LARGE_BATCHES))
    for split in splits:
        if isinstance(split, LatestSplit) and rows.of_records is not None:
            yield from read_keys(split, options, rows.of_records, None)


def _reading(
    path: Paths,
    topic: str | Sequence[str] | None,
    columns: Sequence[str],
    strings: Sequence[str],
    options: OptionValues | None,
) -> tuple[ReadOptions, ReadRows]:
    from kafkalog.streaming.options.read_options import ReadOptions  # noqa: PLC0415
    from kafkalog.streaming.source.schema import ReadRows  # noqa: PLC0415

    given = {"path": joined(path), **texts(options or {}, _OF_READ)}
    if topic is not None:
        given["subscribe"] = ",".join(topic_names(topic))
    parsed = ReadOptions.parse(given)
    warn_ignored(parsed.ignored)
    parsed.refuse_outside_streams()
    decoded: tuple[DecodedSide, ...] = ()
    if parsed.decodes:
        from kafkalog.streaming.source.decoded import choose_sides  # noqa: PLC0415

        decoded = choose_sides(parsed)
    return parsed, ReadRows.of(parsed, columns, strings, decoded)
