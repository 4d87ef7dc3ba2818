"""The options of the source: Spark's Kafka source's, with the same meaning, and a few more."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, Self, cast
from urllib.parse import quote

from kafkalog.errors import OptionError
from kafkalog.files.paths import SCHEME, local_path, refuse_among_logs
from kafkalog.files.storage import (
    RemoteRoot,
    StorageOptions,
    TieredRoot,
    TierOptions,
    read_key_file,
)
from kafkalog.streaming.options.declaring import (
    KAFKA_CLIENT_OPTIONS,
    KAFKA_SECURITY_PREFIXES,
    Options,
    Rules,
    option,
    options_of,
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

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["GroupOptions", "RangeOptions", "ReadOptions", "StoreOptions"]


# ----------------------------------------------------------------------------------------------
# How the store of a URI is opened and asked.


def _tier_root(text: str) -> RemoteRoot:
    """Read the place of a remote tier, which may be a local folder."""
    scheme = SCHEME.match(text.strip())
    if scheme is None or scheme[1].lower() == "file":
        folder = local_path(text.strip())
        return RemoteRoot(folder, StorageOptions(), f"file://{quote(folder)}")
    if not text.strip()[scheme.end() :].startswith("//"):
        raise ValueError
    return RemoteRoot.parse(_tier_scheme(text.strip()))


def _tier_scheme(place: str) -> str:
    """Return a URI with the scheme by which its store is read."""
    return f"s3://{place[6:]}" if place.lower().startswith("s3a://") else place


def _key_files(text: str) -> tuple[tuple[str, str], ...]:
    found = dict(_key_file(item) for item in text.split(",") if item.strip())
    if not found or len(found) < text.count("="):
        raise ValueError
    return tuple(sorted(found.items()))


def _key_file(item: str) -> tuple[str, str]:
    key_id, equals, path = item.strip().partition("=")
    if not equals or not key_id.strip() or not path.strip():
        raise ValueError
    return key_id.strip(), local_path(path.strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions(Options):
    """What reaches the store of a place that is a URI."""

    storage_endpoint: str | None = option(
        "storage.endpoint",
        text("a URL such as https://host:9000"),
        default=None,
        doc="the URL of the store (s3). Default: AWS",
    )
    storage_region: str | None = option(
        "storage.region", TEXT, default=None, doc="the bucket's region (s3)"
    )
    storage_access_key: str | None = option(
        "storage.accessKey",
        TEXT,
        default=None,
        secret=True,
        doc="the key's id (s3). Default: as AWS' own tools find it",
    )
    storage_secret_key: str | None = option(
        "storage.secretKey", TEXT, default=None, secret=True, doc="the key (s3)"
    )
    storage_session_token: str | None = option(
        "storage.sessionToken",
        TEXT,
        default=None,
        secret=True,
        doc="the token of a temporary key (s3)",
    )
    storage_anonymous: bool | None = option(
        "storage.anonymous", BOOLEAN, default=None, doc="ask without credentials (s3)"
    )
    storage_tries: int | None = option(
        "storage.tries",
        integer(minimum=1, maximum=1000),
        default=None,
        doc="tries of a request; rests between them double from 0.1 s to 5 s. Default: 5",
    )
    storage_timeout_ms: int | None = option(
        "storage.timeout",
        duration_ms(minimum=1),
        default=None,
        unit="ms",
        doc="how long a try may wait (s3). Default: 30s",
    )
    storage_list_interval_ms: int | None = option(
        "storage.listInterval",
        duration_ms(),
        default=None,
        unit="ms",
        doc="how old a listing may be: new records are seen that late. Default: 5s",
    )
    storage_poll_interval_ms: int | None = option(
        "storage.pollInterval",
        duration_ms(minimum=1),
        default=None,
        unit="ms",
        doc="how often a log in a bucket is asked for its next commit, at most. Default: 1s",
    )
    storage_delete_delay_ms: int | None = option(
        "storage.deleteDelay",
        duration_ms(minimum=3_600_000),
        default=None,
        unit="ms",
        doc="how old an object that no commit names must be to be deleted. A batch that "
        "runs longer cannot commit. The log keeps it; a longer one is taken with the "
        "next commit. At least 1h. Default: what the log has, 1d in a new one",
    )
    storage_account_name: str | None = option(
        "storage.accountName",
        TEXT,
        default=None,
        doc="the storage account (az). Default: AZURE_STORAGE_ACCOUNT_NAME",
    )
    storage_account_key: str | None = option(
        "storage.accountKey",
        TEXT,
        default=None,
        secret=True,
        doc="the account's key (az, abfss). Default: as Azure's own tools find it",
    )
    storage_server_side_encryption: str | None = option(
        "storage.serverSideEncryption",
        choice("AES256", "aws:kms", "aws:kms:dsse"),
        default=None,
        doc="how the store encrypts what is written (s3). Default: as the bucket says",
    )
    storage_kms_key_id: str | None = option(
        "storage.kmsKeyId",
        TEXT,
        default=None,
        doc="the key by which it encrypts (s3); storage.serverSideEncryption is aws:kms "
        "then by default",
    )
    storage_requester_pays: bool | None = option(
        "storage.requesterPays",
        BOOLEAN,
        default=None,
        doc="who asks pays (s3)",
    )
    storage_path_style: bool | None = option(
        "storage.pathStyle",
        BOOLEAN,
        default=None,
        doc="whether the bucket stands in the path of a request (default), or in the host's"
        " name (s3)",
    )
    storage_role_arn: str | None = option(
        "storage.roleArn",
        TEXT,
        default=None,
        doc="the role to assume (s3); needs the extra `aws`",
    )
    storage_ca_file: str | None = option(
        "storage.caFile",
        TEXT,
        default=None,
        doc="certificates (PEM) to trust beside the machine's, on each machine",
    )
    storage_proxy: str | None = option(
        "storage.proxy",
        TEXT,
        default=None,
        secret=True,
        doc="the proxy's URL",
    )

    def in_store(self, paths: tuple[str, ...]) -> tuple[str, ...]:
        """Return places, those that are URIs with how their store is opened.

        Tiered ones have that already: these options are a copy of others.
        """
        given = {
            declared.field.removeprefix("storage_"): getattr(self, declared.field)
            for declared in options_of(StoreOptions)
        }
        return tuple(
            p.with_options(given)
            if isinstance(p, RemoteRoot) and not isinstance(p, TieredRoot)
            else p
            for p in paths
        )


# ----------------------------------------------------------------------------------------------
# The options that say which partitions and offsets a query reads, as Spark's Kafka source does.


_MOMENT: Final = Kind(TIME_ACCEPTS, read_moment)


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeOptions(StoreOptions):
    """What a query over the source is to read."""

    paths: tuple[str, ...] = option(
        "path",
        READABLE_PATHS,
        doc="log directories, or the folder of one partition; URIs that pyarrow or fsspec "
        "opens, such as s3://bucket/folder, too",
    )
    remote_path: str | None = option(
        "remote.path",
        Kind("a path or a URI such as s3://bucket/folder", _tier_root),
        default=None,
        doc="the remote tier of tiered topics (KIP-405): read with the log directories as "
        "one log. Without path, the tier alone. See [tiers.md](tiers.md)",
    )
    remote_layout: str | None = option(
        "remote.layout",
        choice("kafka", "aiven", "pinterest"),
        default=None,
        doc="the plugin that wrote the tier: kafka is LocalTieredStorage of Kafka's tests. "
        "Default: what lies there tells",
    )
    remote_encryption_keys: tuple[tuple[str, str], ...] | None = option(
        "remote.encryption.keys",
        Kind(
            "key ids with files of private keys (PEM), such as key1=/keys/1.pem,key2=…", _key_files
        ),
        default=None,
        doc="with aiven: files of the private RSA keys (PEM) by the ids in the manifests, "
        "such as key1=/keys/1.pem, on each machine; needs the extra `tiers`",
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
        doc="start at the first record of each partition with this timestamp or a later one",
    )
    ending_timestamp: int | None = option(
        "endingTimestamp",
        _MOMENT,
        default=None,
        doc="end each partition before its first record with this timestamp or a later one;"
        " streams too",
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
        doc="if no record is that late: fail, or start at the end",
    )
    stop_at_offsets: str | None = option(
        "stopAtOffsets",
        OFFSETS,
        default=None,
        doc="where a stream ends (exclusive). Partitions that are not named have no end",
    )

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """Check and convert what the user wrote; a tier may stand alone for log directories.

        Raises:
            OptionError: as :meth:`Options.parse`.
        """
        names = {name.lower(): name for name in given}
        if "path" not in names and "remote.path" in names:
            given = {**given, "path": given[names["remote.path"]]}
        return super(RangeOptions, cls).parse(given)

    def over_tier(self, paths: tuple[str, ...]) -> tuple[str, ...]:
        """Return places with the tier below them, if one is given.

        Raises:
            OptionError: how a tier is read is given without it, or it cannot lie below a place.
        """
        if self.remote_path is None:
            given = {
                "remote.layout": self.remote_layout,
                "remote.encryption.keys": self.remote_encryption_keys,
            }
            for name, value in given.items():
                if value:
                    raise OptionError(f"option {name!r} needs remote.path, where the tier lies")
            return paths
        if all(isinstance(each, TieredRoot) for each in paths):
            return paths
        (root,) = self.in_store((self.remote_path,))
        is_alone = len(paths) == 1 and _tier_scheme(paths[0]) == self.remote_path
        log_dirs = () if is_alone else paths
        for place in log_dirs:
            if isinstance(place, RemoteRoot) or getattr(place, "is_witness", False):
                raise OptionError(
                    "option 'remote.path' goes with the log directories of brokers on this "
                    f"machine, or alone, and path names {place}"
                )
        return self._over(cast("RemoteRoot", root), log_dirs)

    def _over(self, root: RemoteRoot, log_dirs: tuple[str, ...]) -> tuple[str, ...]:
        """Put the tier below log directories, after what can be told before its store is asked.

        Raises:
            OptionError: it is a file; or its keys cannot be read, or belong to no such layout.
        """
        folder = Path(root) if root.full_uri.startswith("file:") else None
        if folder is not None and folder.exists() and not folder.is_dir():
            raise OptionError(
                f"option 'remote.path' is {folder}, which is a file: name the folder that has the "
                "objects of the tier"
            )
        keys = self.remote_encryption_keys or ()
        if keys and self.remote_layout not in {None, "aiven"}:
            raise OptionError(
                f"option 'remote.encryption.keys' is for remote.layout=aiven: what "
                f"{self.remote_layout} has written is not encrypted"
            )
        for key in keys:
            read_key_file(*key)
        tier = TierOptions(root=root, layout=self.remote_layout, key_files=keys)
        return tuple(TieredRoot.of(log_dir, log_dirs, tier) for log_dir in (*log_dirs, None))

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
        doc="a folder of this query alone, beside its checkpoint. It keeps ids of topics "
        "and the last batches below the query's offsets, and so notices topics "
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
