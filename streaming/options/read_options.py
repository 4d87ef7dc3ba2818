"""The options of the source: Spark's Kafka source's, with the same meaning, and a few more."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Final

from kafkalog.errors import OptionError
from kafkalog.files.paths import refuse_among_logs
from kafkalog.streaming.options.declaring import (
    KAFKA_CLIENT_OPTIONS,
    KAFKA_SECURITY_PREFIXES,
    Rules,
    option,
)
from kafkalog.streaming.options.kinds import (
    BOOLEAN,
    NAMES,
    OFFSETS,
    PARTITIONS,
    PATHS,
    PATTERN,
    READABLE_PATHS,
    TEXT,
    Kind,
    choice,
    duration_ms,
    integer,
    size,
    text,
)
from kafkalog.streaming.options.quantities import TIME_ACCEPTS, read_moment, shown_time
from kafkalog.streaming.options.store_options import TierOptions

__all__ = ["GroupOptions", "RangeOptions", "ReadOptions"]


# ----------------------------------------------------------------------------------------------
# The options that say which partitions and offsets a query reads, as Spark's Kafka source does.


_MOMENT: Final = Kind(TIME_ACCEPTS, read_moment)


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeOptions(TierOptions):
    """What a query over the source is to read."""

    paths: tuple[str, ...] = option(
        "path",
        READABLE_PATHS,
        doc="log directories, or the folder of one partition; URIs that pyarrow or fsspec "
        "opens, such as s3://bucket/folder, too. With remote.path it may be left out",
    )
    subscribe: str | None = option(
        "subscribe", NAMES, default=None, doc="topics, with commas between them"
    )
    subscribe_pattern: str | None = option(
        "subscribePattern",
        PATTERN,
        default=None,
        doc="is searched anywhere in a topic's name. Leaves internal topics out",
    )
    wait_for_topics: bool = option(
        "waitForTopics",
        BOOLEAN,
        default=False,
        doc="a stream waits for topics of subscribe that are not there yet, and reads each "
        "from its first record on. The log directory must be there",
    )
    assign: str | None = option("assign", PARTITIONS, default=None, doc="the partitions to read")
    starting_offsets: str | None = option(
        "startingOffsets",
        text("earliest, latest, group:<id>, or JSON"),
        default=None,
        doc="where a query without a checkpoint starts, see [the "
        "source](source.md#where-a-query-starts). Default: latest for streams, earliest"
        " for batches",
    )
    ending_offsets: str | None = option(
        "endingOffsets",
        text("latest, or JSON"),
        default=None,
        doc="where a batch read ends (exclusive). Default: latest",
    )
    starting_timestamp: int | None = option(
        "startingTimestamp",
        _MOMENT,
        default=None,
        doc="start at the first record of each partition with this timestamp or a later one;"
        " without one a read fails, see startingOffsetsByTimestampStrategy",
    )
    ending_timestamp: int | None = option(
        "endingTimestamp",
        _MOMENT,
        default=None,
        doc="end each partition before its first record with this timestamp or a later one;"
        " streams too. Late rows behind that one are left out: [a day's "
        "rows](source.md#a-days-rows)",
    )
    starting_offsets_by_timestamp: str | None = option(
        "startingOffsetsByTimestamp",
        text('JSON such as {"t":{"0":1700000000000}}'),
        default=None,
        doc="startingTimestamp of each partition",
    )
    ending_offsets_by_timestamp: str | None = option(
        "endingOffsetsByTimestamp",
        text('JSON such as {"t":{"0":1700000000000}}'),
        default=None,
        doc="endingTimestamp of each partition",
    )
    starting_timestamp_strategy: str = option(
        "startingOffsetsByTimestampStrategy",
        choice("error", "latest"),
        default="error",
        doc="if a partition has no record that late, as a quiet one: fail, or start at its end",
    )
    stop_at_offsets: str | None = option(
        "stopAtOffsets",
        OFFSETS,
        default=None,
        doc="where a stream ends (exclusive). Partitions that are not named have no end",
    )

    def require_one_choice(self) -> None:
        """Refuse a query that does not say what to read, or says so twice."""
        named = {
            "assign": self.assign,
            "subscribe": self.subscribe,
            "subscribePattern": self.subscribe_pattern,
        }
        given = [name for name, value in named.items() if value is not None]
        if len(given) != 1:
            raise OptionError(
                "exactly one of the options assign, subscribe and subscribePattern says what to "
                f"read, but {'none is' if not given else ' and '.join(given) + ' are'} given"
            )

    def require_order(self) -> None:
        """Refuse a time to start at that lies after the time to end at."""
        start, end = self.starting_timestamp, self.ending_timestamp
        if start is not None and end is not None and start > end:
            raise OptionError(
                f"option 'startingTimestamp' ({shown_time(start)}) lies after option "
                f"'endingTimestamp' ({shown_time(end)}), and no record can be between them: "
                "exchange the two, or leave one out"
            )


# ----------------------------------------------------------------------------------------------
# The options that say what a query has to do with a consumer group.


def _one_folder(text: str) -> str:
    (folder,) = PATHS.read(text)
    return folder


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions(RangeOptions):
    """How a query takes part in a group, and what it keeps of itself."""

    state_location: str | None = option(
        "stateLocation",
        Kind("a local folder (a path or file: URI)", _one_folder),
        default=None,
        doc="a folder of this query alone on the driver's machine, outside of any store. It "
        "keeps ids of topics and the last batches below the query's offsets, and so notices topics "
        "recreated, and logs cut, while the query was stopped; and the instance id of a"
        " query with joinGroup that is given none",
    )
    group_id: str | None = option(
        "kafka.group.id",
        TEXT,
        default=None,
        doc="the consumer group that joinGroup joins, or whose positions commitGroupOffsets writes",
    )
    group_instance_id: str | None = option(
        "kafka.group.instance.id",
        TEXT,
        default=None,
        doc="with joinGroup: the query's name in its group, unique there. Restarted within "
        "its session time-out, it has its partitions at once",
    )
    join_group: bool = option(
        "joinGroup",
        BOOLEAN,
        default=False,
        doc="join kafka.group.id: its members share the topics. Needs "
        "kafka.group.instance.id or stateLocation. Takes a Consumer's options of the "
        "group too, see [below](#a-consumer); kafka.max.poll.interval.ms has no limit "
        "then, and kafka.rebalance.timeout.ms is 5 minutes, unless given",
    )
    commit_group_offsets: bool = option(
        "commitGroupOffsets",
        BOOLEAN,
        default=False,
        doc="write the stream's positions into __consumer_offsets, as those of "
        "kafka.group.id, when Spark confirms a micro-batch. Only in directories of the "
        "sink",
    )

    def check_group(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            OptionError: such as ``joinGroup`` without a group.
        """
        if self.commit_group_offsets and self.group_id is None:
            raise OptionError("option 'commitGroupOffsets' needs kafka.group.id, the group's name")
        if self.remote_path is not None and (self.join_group or self.commit_group_offsets):
            raise OptionError(
                "option 'remote.path' cannot be used with joinGroup or commitGroupOffsets: a log "
                "that goes on in a tier is a broker's, and no group of ours writes there"
            )
        if not self.join_group:
            return
        if self.group_id is None:
            raise OptionError("option 'joinGroup' needs kafka.group.id, the group's name")
        if self.group_instance_id is None and self.state_location is None:
            raise OptionError(
                "option 'joinGroup' needs kafka.group.instance.id, a name that no other member of "
                "the group has; or stateLocation, where the query keeps one. A source knows "
                "neither its query nor its checkpoint"
            )
        self._refuse_with_group()

    def refuse_outside_streams(self) -> None:
        """Refuse what only a streaming query of Spark can do.

        Raises:
            OptionError: ``joinGroup`` or ``commitGroupOffsets`` is given.
        """
        if self.join_group:
            raise OptionError(
                "option 'joinGroup' is for streaming queries of Spark; a program joins by "
                "kafkalog.Consumer"
            )
        if self.commit_group_offsets:
            raise OptionError("option 'commitGroupOffsets' is for streaming queries of Spark")

    def _refuse_with_group(self) -> None:
        given = {
            "assign": (self.assign, "the group decides who reads which partition; use subscribe"),
            "commitGroupOffsets": (self.commit_group_offsets, "a member commits its positions"),
            "stopAtOffsets": (self.stop_at_offsets, "a group has no end"),
            "endingTimestamp": (self.ending_timestamp, "a group has no end"),
        }
        for name, (value, reason) in given.items():
            if value not in {None, False}:
                raise OptionError(f"option {name!r} cannot be used with joinGroup: {reason}")
        start = (self.starting_offsets or "latest").strip().lower()
        if start not in {"earliest", "latest"}:
            raise OptionError(
                f"option 'startingOffsets' is {self.starting_offsets!r}, but a group begins at "
                "earliest or latest"
            )


# ----------------------------------------------------------------------------------------------

_ALWAYS_BYTES: Final = "keys and values are always read as bytes; cast the columns instead"

_REFUSED: Final = {
    "kafka.auto.offset.reset": "use startingOffsets; Spark keeps where a query continues",
    "kafka.key.deserializer": _ALWAYS_BYTES,
    "kafka.value.deserializer": _ALWAYS_BYTES,
    "kafka.enable.auto.commit": "use commitGroupOffsets to have a group's positions written",
    "kafka.interceptor.classes": "rows are read from files, no consumer's interceptor runs",
    "topic": "subscribe says which topics are read; topic is for writing",
    "topics": "subscribe says which topics are read",
    "shallow": "view=batches gives a row per record batch",
    "decode": "view=offsets, transactions, metadata or remote gives the records of an internal "
    "topic decoded; decode.value and decode.key decode values of a schema registry",
    # Spark's own names: of load() with a list, and of what CREATE TABLE makes
    "paths": "load() takes one text here, which may list log directories separated by commas",
    "provider": "Spark gives the options of a table to no Python source that is read; make a "
    "temporary view (CREATE TEMPORARY VIEW … USING kafkalog OPTIONS …)",
}

_CHOICE_OF_SCHEMA: Final = re.compile(r"newest|(version|id):\d{1,10}")


def _read_schema(text: str) -> str:
    """Read which schema is meant: by a word, or by its text, which is longer than any word."""
    found = TEXT.read(text)
    word = found.lower()
    if _CHOICE_OF_SCHEMA.fullmatch(word):
        return word
    if not any(mark in found for mark in '{["'):
        raise ValueError
    return found


_SCHEMA: Final = Kind("newest, version:N, id:N, or the text of a schema", _read_schema)

_IGNORED: Final = KAFKA_CLIENT_OPTIONS | {
    *("groupIdPrefix", "kafkaConsumer.pollTimeoutMs"),
    "kafka.rebalance.timeout.ms",  # read with joinGroup, as those of KAFKA_CLIENT_OPTIONS
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions(GroupOptions):
    """What a query over the source was given; parse with ``ReadOptions.parse``."""

    RULES: ClassVar[Rules] = Rules(
        ignored=_IGNORED, ignored_prefixes=KAFKA_SECURITY_PREFIXES, refused=_REFUSED
    )

    include_headers: bool = option(
        "includeHeaders", BOOLEAN, default=False, doc="add the column headers"
    )
    fail_on_data_loss: bool = option(
        "failOnDataLoss",
        BOOLEAN,
        default=True,
        doc="fail if offsets that were to be read are gone. false: continue with a warning",
    )
    preferred_read_replica: str = option(
        "preferred.read.replica",
        choice("leader", "local"),
        default="leader",
        doc="on several nodes: which replica is read. local: one in directories that are "
        "not on a network file system, if any is in sync. Where that is away, another "
        "one in sync",
    )
    read_up_to: str = option(
        "readUpTo",
        choice("highWatermark", "logEnd"),
        default="highWatermark",
        doc="highWatermark: what is committed. logEnd: all that lies in the log, for copies"
        " whose broker is gone",
    )
    isolation_level: str = option(
        "kafka.isolation.level",
        choice("read_uncommitted", "read_committed"),
        default="read_uncommitted",
        doc="read_committed leaves out records of open and aborted transactions; latest is "
        "then where the oldest open one begins",
    )
    on_timestamp_overflow: str = option(
        "onTimestampOverflow",
        choice("fail", "null"),
        default="fail",
        doc="a timestamp that no Spark timestamp can hold (one sent in ns): fail, or show null",
    )
    on_corrupt_record: str = option(
        "onCorruptRecord",
        choice("fail", "skip"),
        default="fail",
        doc="bytes that are no valid record batch: fail, or skip them with a warning that "
        "says what was left out",
    )
    view: str = option(
        "view",
        choice("records", "batches", "offsets", "transactions", "latest", "metadata", "remote"),
        default="records",
        doc="what a row is: see [the source](source.md#batches-instead-of-records), and "
        "[latest](latest.md)",
    )
    decode_value: str | None = option(
        "decode.value",
        choice("avro", "json", "protobuf"),
        default=None,
        doc="decode values of a schema registry's clients into valueDecoded; adds "
        "valueSchemaId and valueError. Needs the extra `schemas`; see "
        "[schemas.md](schemas.md)",
    )
    decode_key: str | None = option(
        "decode.key",
        choice("avro", "json", "protobuf"),
        default=None,
        doc="the same for keys: keyDecoded, keySchemaId, keyError",
    )
    schema_topic: str = option(
        "schema.topic",
        TEXT,
        default="_schemas",
        doc="the topic, in the same directories, in which the registry kept the schemas",
    )
    value_schema: str | None = option(
        "schema.value",
        _SCHEMA,
        default=None,
        doc="the schema whose columns valueDecoded has: version:N of the subject, or one by"
        " id. Default: newest",
    )
    key_schema: str | None = option(
        "schema.key",
        _SCHEMA,
        default=None,
        doc="the same for keyDecoded",
    )
    value_subject: str | None = option(
        "schema.value.subject",
        TEXT,
        default=None,
        doc="the subject whose newest schema that is. Default: the topic's name and -value",
    )
    key_subject: str | None = option(
        "schema.key.subject",
        TEXT,
        default=None,
        doc="the same for keys. Default: the topic's name and -key",
    )
    value_message: str | None = option(
        "schema.value.message",
        TEXT,
        default=None,
        doc="with protobuf: the full name of the message. Default: the first one of the schema",
    )
    key_message: str | None = option(
        "schema.key.message", TEXT, default=None, doc="the same for keyDecoded"
    )
    tombstones: bool = option(
        "tombstones",
        BOOLEAN,
        default=False,
        doc="with view=latest: a row also for keys whose newest value is null",
    )
    table_memory: int = option(
        "table.memory",
        size(minimum=1 << 16),
        default=128 << 20,
        unit="bytes",
        doc="with view=latest: memory for keys of one task. Partitions with more keys use "
        "Spark's local directory",
    )
    cache_memory: int = option(
        "cache.memory",
        size(minimum=0),
        default=64 << 20,
        unit="bytes",
        doc="with view=latest and a single key: what the process keeps of hashed keys, to "
        "find a key again without decompressing the log. 0: nothing",
    )
    filter_pushdown: bool = option(
        "filterPushdown",
        BOOLEAN,
        default=False,
        doc="let a batch query's filters on topic, partition, offset and timestamp decide "
        "what is read. Needs Spark's spark.sql.python.filterPushdown.enabled. [Load "
        "anew](source.md#filters) for each query",
    )
    max_timestamp_disorder_ms: int | None = option(
        "maxTimestampDisorder",
        duration_ms(),
        default=None,
        unit="ms",
        doc="how much earlier a timestamp may be than one before it in its partition, which"
        " you must know. With filterPushdown, reading ends where no record can be early"
        " enough any more",
    )
    max_offsets_per_trigger: int | None = option(
        "maxOffsetsPerTrigger",
        integer(minimum=1),
        default=None,
        unit="offsets",
        doc="the most offsets of a micro-batch, split over partitions by what waits in each",
    )
    max_bytes_per_trigger: int | None = option(
        "maxBytesPerTrigger",
        size(minimum=1),
        default=None,
        unit="bytes",
        doc="the most bytes of segment files of a micro-batch, split the same way; at least"
        " one record batch",
    )
    min_offsets_per_trigger: int | None = option(
        "minOffsetsPerTrigger",
        integer(minimum=1),
        default=None,
        unit="offsets",
        doc="wait for so many offsets, but not longer than maxTriggerDelay",
    )
    max_trigger_delay_ms: int = option(
        "maxTriggerDelay",
        duration_ms(),
        default=15 * 60_000,
        unit="ms",
        doc="the longest that minOffsetsPerTrigger delays a micro-batch",
    )
    min_partitions: int | None = option(
        "minPartitions",
        integer(minimum=1, maximum=2**31 - 1),
        default=None,
        unit="tasks",
        doc="cut a batch into at least about so many tasks",
    )
    max_records_per_partition: int | None = option(
        "maxRecordsPerPartition",
        integer(minimum=1),
        default=None,
        unit="offsets",
        doc="the most offsets that one task reads",
    )
    split_bytes: int | None = option(
        "splitBytes",
        size(minimum=1),
        default=None,
        unit="bytes",
        doc="about how much of a segment file one task reads, without the two options "
        "above. Default: a core's share, from 8m to 64m",
    )
    max_decompressed_bytes: int = option(
        "maxDecompressedBytes",
        size(minimum=1),
        default=256 << 20,
        unit="bytes",
        doc="the most that one record batch may grow to when decompressed",
    )
    fetch_retries: int = option(
        "fetchOffset.numRetries",
        integer(minimum=1),
        default=3,
        doc="how often a loss is checked before it counts",
    )
    fetch_retry_interval_ms: int = option(
        "fetchOffset.retryIntervalMs",
        integer(minimum=0),
        default=1000,
        unit="ms",
        doc="the time between these checks",
    )

    def __post_init__(self) -> None:
        """Refuse what contradicts itself whatever the kind of query."""
        self.require_one_choice()
        self.require_order()
        minimum, maximum = self.min_offsets_per_trigger, self.max_offsets_per_trigger
        if minimum is not None and maximum is not None and minimum > maximum:
            raise OptionError(
                f"minOffsetsPerTrigger ({minimum}) is more than maxOffsetsPerTrigger ({maximum})"
            )
        self.check_group()
        if self.join_group and self.view != "records":
            raise OptionError(f"option 'joinGroup' is for view=records, and not view={self.view}")
        if self.include_headers and self.has_view:
            raise OptionError(
                f"option 'includeHeaders' is for view=records: view={self.view} has columns of its "
                "own"
            )
        if self.tombstones and not self.shows_latest:
            raise OptionError("option 'tombstones' is for view=latest")
        object.__setattr__(self, "paths", self.over_tier(self.in_store(self.paths)))
        self._check_decoding()
        if self.filter_pushdown and self.has_view:
            raise OptionError(
                f"option 'filterPushdown' is for view=records: leave it out with view={self.view}"
            )

    def _check_decoding(self) -> None:
        given = {
            "value": (self.decode_value, self.value_schema, self.value_subject, self.value_message),
            "key": (self.decode_key, self.key_schema, self.key_subject, self.key_message),
        }
        for side, (decode, *chosen) in given.items():
            if decode is not None and self.has_view:
                raise OptionError(
                    f"option 'decode.{side}' is for view=records and view=latest: leave it out "
                    f"with view={self.view}"
                )
            if decode is None and any(each is not None for each in chosen):
                raise OptionError(
                    f"an option that begins with 'schema.{side}' is given, which needs "
                    f"decode.{side}: avro, json or protobuf"
                )
            if chosen[-1] is not None and decode != "protobuf":
                raise OptionError(
                    f"option 'schema.{side}.message' is for decode.{side}=protobuf: leave it out"
                )

    @property
    def decodes(self) -> bool:
        """Whether rows have decoded columns, see :mod:`kafkalog.streaming.source.decoded`."""
        return self.decode_key is not None or self.decode_value is not None

    def refuse_decoding(self) -> None:
        """Refuse decoded columns, for who shows records as they are.

        Raises:
            OptionError: they are asked for.
        """
        if self.decodes:
            raise OptionError(
                "options 'decode.key' and 'decode.value' are for queries of Spark, kafkalog.read "
                "and kafkalog.tail"
            )

    def names_held_back(self) -> tuple[str, ...]:
        """Return the options given by which a micro-batch may leave out what is there to read."""
        given = {
            "joinGroup": self.join_group or None,
            "maxOffsetsPerTrigger": self.max_offsets_per_trigger,
            "maxBytesPerTrigger": self.max_bytes_per_trigger,
            "minOffsetsPerTrigger": self.min_offsets_per_trigger,
        }
        return tuple(name for name, value in given.items() if value is not None)

    @property
    def cuts_by_offsets(self) -> bool:
        """Whether tasks are cut by Spark's rules for offsets, not by bytes."""
        return self.min_partitions is not None or self.max_records_per_partition is not None

    @property
    def has_view(self) -> bool:
        """Whether rows are other than records: see :mod:`kafkalog.streaming.source.schema`."""
        return self.view not in {"records", "latest"}

    @property
    def shows_latest(self) -> bool:
        """Whether only the newest record of a key is a row."""
        return self.view == "latest"

    @property
    def shows_batches(self) -> bool:
        """Whether a row is a record batch, damaged ones included."""
        return self.view == "batches"

    @property
    def committed_only(self) -> bool:
        """Whether records of aborted transactions are hidden, and those of open ones waited for."""
        return self.isolation_level == "read_committed"

    def refuse_for_streaming(self) -> None:
        """Refuse options that only make sense where a query ends, as Spark's Kafka source does."""
        given = {
            "endingOffsets": self.ending_offsets,
            "endingOffsetsByTimestamp": self.ending_offsets_by_timestamp,
        }
        for name, value in given.items():
            if value is not None:
                raise OptionError(
                    f"option {name!r} cannot be used in a streaming query; stopAtOffsets and "
                    "endingTimestamp say up to where one reads"
                )
        local = [path for path in self.paths if isinstance(path, str)]
        refuse_among_logs("option 'stateLocation'", self.state_location, local)
        if self.shows_latest:
            raise OptionError(
                "view=latest cannot be used in a streaming query: a newer row of a key would have "
                "to retract the one before. Read view=records and MERGE each micro-batch into a "
                "table by foreachBatch (docs/latest.md shows it), or read view=latest in a batch"
            )

    def refuse_for_latest(self) -> None:
        """Refuse options that cut a partition: the newest row of a key needs all of it."""
        given = {
            "maxRecordsPerPartition": self.max_records_per_partition,
            "splitBytes": self.split_bytes,
        }
        for name, value in given.items():
            if value is not None:
                raise OptionError(
                    f"option {name!r} cuts partitions, and view=latest reads each one whole; leave "
                    "it out, or set minPartitions to let several tasks share a partition's keys"
                )

    def refuse_for_batch(self) -> None:
        """Refuse options that only make sense in a stream, and would be missed in a batch."""
        self.refuse_outside_streams()
        if self.wait_for_topics:
            raise OptionError("option 'waitForTopics' is for streaming queries and kafkalog.tail")
        if self.stop_at_offsets is not None:
            raise OptionError(
                "option 'stopAtOffsets' is for streaming queries; use endingOffsets in a batch"
            )
