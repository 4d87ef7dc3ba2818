"""The options of the source: Spark's Kafka source's, with the same meaning, and a few more."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Self, cast
from urllib.parse import quote

from kafkalog.errors import OptionError
from kafkalog.files.paths import SCHEME, NodePlace, local_path, refuse_among_logs
from kafkalog.files.storage import RemoteRoot, StorageOptions, TieredRoot, TierOptions
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
        doc="for s3:// paths: where the store answers, such as http://localhost:9000. Default: AWS",
    )
    storage_region: str | None = option(
        "storage.region", TEXT, default=None, doc="for s3:// paths: the bucket's region"
    )
    storage_access_key: str | None = option(
        "storage.accessKey",
        TEXT,
        default=None,
        secret=True,
        doc="for s3:// paths: the key's id. Default: credentials are looked for as AWS' own tools "
        "do",
    )
    storage_secret_key: str | None = option(
        "storage.secretKey", TEXT, default=None, secret=True, doc="for s3:// paths: the key"
    )
    storage_session_token: str | None = option(
        "storage.sessionToken",
        TEXT,
        default=None,
        secret=True,
        doc="for s3:// paths: the token that belongs to a temporary key",
    )
    storage_anonymous: bool | None = option(
        "storage.anonymous", BOOLEAN, default=None, doc="for s3:// paths: ask without credentials"
    )
    storage_tries: int | None = option(
        "storage.tries",
        integer(minimum=1, maximum=1000),
        default=None,
        doc="for URIs: how often a request is made before it counts as failed. The rests between "
        "tries double from 0.1 s up to 5 s. Default: 5",
    )
    storage_timeout_ms: int | None = option(
        "storage.timeout",
        duration_ms(minimum=1),
        default=None,
        unit="ms",
        doc="for s3:// paths: how long a try may wait for the store. Default: 30s",
    )
    storage_list_interval_ms: int | None = option(
        "storage.listInterval",
        duration_ms(),
        default=None,
        unit="ms",
        doc="for URIs: how old a listing of the store may be. New records are seen that late, and "
        "the store is not listed more often. Default: 5s",
    )
    storage_poll_interval_ms: int | None = option(
        "storage.pollInterval",
        duration_ms(minimum=1),
        default=None,
        unit="ms",
        doc="for a log in a bucket: how often the next commit is asked for, at most; a request "
        "each. Default: 1s",
    )
    storage_delete_delay_ms: int | None = option(
        "storage.deleteDelay",
        duration_ms(minimum=3_600_000),
        default=None,
        unit="ms",
        doc="for a log in a bucket: how old a data object must be before it is deleted where no "
        "commit names it. A batch that runs longer cannot commit. The log keeps it, and takes a "
        "longer one with the next commit. Default: what the log has, 1d in a new one",
    )
    storage_account_name: str | None = option(
        "storage.accountName",
        TEXT,
        default=None,
        doc="for az:// paths: the storage account. Default: AZURE_STORAGE_ACCOUNT_NAME",
    )
    storage_account_key: str | None = option(
        "storage.accountKey",
        TEXT,
        default=None,
        secret=True,
        doc="for az:// and abfss:// paths: the account's key. Default: credentials are looked for "
        "as Azure's own tools do",
    )
    storage_server_side_encryption: str | None = option(
        "storage.serverSideEncryption",
        choice("AES256", "aws:kms", "aws:kms:dsse"),
        default=None,
        doc="for s3:// logs: how the store encrypts what is written. Default: as the bucket says",
    )
    storage_kms_key_id: str | None = option(
        "storage.kmsKeyId",
        TEXT,
        default=None,
        doc="for s3:// logs: the key by which the store encrypts; storage.serverSideEncryption is "
        "aws:kms then, if it is not given",
    )
    storage_requester_pays: bool | None = option(
        "storage.requesterPays",
        BOOLEAN,
        default=None,
        doc="for s3:// logs: whoever asks pays for the requests",
    )
    storage_path_style: bool | None = option(
        "storage.pathStyle",
        BOOLEAN,
        default=None,
        doc="for s3:// paths: whether the bucket stands in the path of a request, or in the name "
        "of the host. Default: in the path",
    )
    storage_role_arn: str | None = option(
        "storage.roleArn",
        TEXT,
        default=None,
        doc="for s3:// paths: the role to assume; needs boto3 (the extra `aws`)",
    )
    storage_ca_file: str | None = option(
        "storage.caFile",
        TEXT,
        default=None,
        doc="a file with certificates (PEM) that are trusted beside the machine's; it must be "
        "there on each machine",
    )
    storage_proxy: str | None = option(
        "storage.proxy",
        TEXT,
        default=None,
        secret=True,
        doc="the URL of the proxy through which the store is asked",
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
        doc="the log directories to read, or the folder of one partition. URIs that pyarrow or "
        "fsspec opens, such as s3://bucket/folder, work too",
    )
    remote_path: str | None = option(
        "remote.path",
        Kind("a path or a URI such as s3://bucket/folder", _tier_root),
        default=None,
        doc="the remote tier to which brokers have moved segments of tiered topics (KIP-405): what "
        "lies there and in the log directories is read as one log. Without path, the tier alone",
    )
    remote_layout: str | None = option(
        "remote.layout",
        choice("kafka", "aiven", "pinterest"),
        default=None,
        doc="which plugin has written the tier. kafka: LocalTieredStorage of Kafka's tests. aiven: "
        "Aiven's plugin. pinterest: Pinterest's uploader. Default: what lies there tells",
    )
    remote_encryption_keys: tuple[tuple[str, str], ...] | None = option(
        "remote.encryption.keys",
        Kind(
            "key ids with files of private keys (PEM), such as key1=/keys/1.pem,key2=…", _key_files
        ),
        default=None,
        doc="with remote.layout=aiven: the files with the private RSA keys of encrypted segments, "
        "by the ids that their manifests name. They must be there on each machine; needs the extra "
        "`tiers`",
    )
    subscribe: str | None = option(
        "subscribe", NAMES, default=None, doc="topics to read, separated by commas"
    )
    subscribe_pattern: str | None = option(
        "subscribePattern",
        PATTERN,
        default=None,
        doc="a regular expression (Python's). It is searched anywhere in a topic's name. Internal "
        "topics are left out",
    )
    wait_for_topics: bool = option(
        "waitForTopics",
        BOOLEAN,
        default=False,
        doc="true: a stream waits for topics of subscribe that are not there yet, and reads each "
        "from its first record on. false: it fails. The log directory itself must be there",
    )
    assign: str | None = option(
        "assign", PARTITIONS, default=None, doc='partitions to read, as JSON: {"topicA":[0,1]}'
    )
    starting_offsets: str | None = option(
        "startingOffsets",
        text("earliest, latest, group:<id>, or JSON"),
        default=None,
        doc="where a query without a checkpoint starts: earliest, latest, JSON, or group:<id> for "
        "the committed positions of a consumer group. In the JSON, -2 is earliest, -1 is "
        "latest, and one word may stand for all partitions of a topic: "
        '{"topicA":{"0":23},"topicB":"earliest"}. Default: latest for streams, earliest for '
        "batches",
    )
    ending_offsets: str | None = option(
        "endingOffsets",
        text("latest, or JSON"),
        default=None,
        doc="where a batch read ends (exclusive): latest, or JSON as for startingOffsets. "
        "Default: latest",
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
        doc="end each partition before its first record with this timestamp or a later one. A "
        "stream ends there too",
    )
    starting_offsets_by_timestamp: str | None = option(
        "startingOffsetsByTimestamp",
        text('JSON such as {"t":{"0":1700000000000}}'),
        default=None,
        doc='startingTimestamp per partition, as JSON: {"topicA":{"0":1700000000000}}, or '
        '{"topicA":{"0":"2026-11-22T10:15:00Z"}}',
    )
    ending_offsets_by_timestamp: str | None = option(
        "endingOffsetsByTimestamp",
        text('JSON such as {"t":{"0":1700000000000}}'),
        default=None,
        doc="endingTimestamp per partition, as JSON",
    )
    starting_timestamp_strategy: str = option(
        "startingOffsetsByTimestampStrategy",
        choice("error", "latest"),
        default="error",
        doc="what to do if no record has the starting timestamp or a later one: fail, or start at "
        "the end",
    )
    stop_at_offsets: str | None = option(
        "stopAtOffsets",
        OFFSETS,
        default=None,
        doc="where a stream ends (exclusive), as JSON per partition. Partitions that are not "
        "named have no end",
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
            if isinstance(place, RemoteRoot | NodePlace):
                raise OptionError(
                    f"option 'remote.path' goes with the log directories of one broker on this "
                    f"machine, or alone, and path names {place}"
                )
        tier = TierOptions(
            root=cast("RemoteRoot", root),
            layout=self.remote_layout,
            key_files=self.remote_encryption_keys or (),
        )
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
        doc="a folder of this streaming query alone, beside its checkpoint. There it keeps the "
        "ids of the topics that it reads and the last batches below its offsets, so that it "
        "notices a topic that was recreated, and a log that was cut and written again, while "
        "the query was stopped; and the instance id of a query with joinGroup that is given none",
    )
    group_id: str | None = option(
        "kafka.group.id",
        TEXT,
        default=None,
        doc="the consumer group that joinGroup joins, or whose positions commitGroupOffsets "
        "writes. No effect without one of these options",
    )
    group_instance_id: str | None = option(
        "kafka.group.instance.id",
        TEXT,
        default=None,
        doc="with joinGroup: the query's name in its group, which no other member has. Started "
        "again within its session time-out, it has its partitions at once",
    )
    join_group: bool = option(
        "joinGroup",
        BOOLEAN,
        default=False,
        doc="let a streaming query be a member of kafka.group.id: the members share the topics. "
        "It needs kafka.group.instance.id or stateLocation. Then it also takes a Consumer's "
        "options of the group, see [below](#a-consumer); kafka.max.poll.interval.ms is without "
        "limit, and kafka.rebalance.timeout.ms 5 minutes, unless given",
    )
    commit_group_offsets: bool = option(
        "commitGroupOffsets",
        BOOLEAN,
        default=False,
        doc="write the stream's positions into __consumer_offsets, as those of kafka.group.id, "
        "each time that Spark confirms a micro-batch. Only in log directories of the sink",
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
        doc="true: fail if offsets that were to be read are gone. false: continue with a warning",
    )
    preferred_read_replica: str = option(
        "preferred.read.replica",
        choice("leader", "local"),
        default="leader",
        doc="which replica of a partition is read on a set of several nodes. local: one in "
        "directories that are not on a network file system, if any is in sync. Another one in sync "
        "is read where that is away",
    )
    read_up_to: str = option(
        "readUpTo",
        choice("highWatermark", "logEnd"),
        default="highWatermark",
        doc="highWatermark: read what is committed. logEnd: read all that lies in the log, for "
        "copies whose broker is gone",
    )
    isolation_level: str = option(
        "kafka.isolation.level",
        choice("read_uncommitted", "read_committed"),
        default="read_uncommitted",
        doc="read_committed leaves out records of open and aborted transactions. latest is then "
        "where the oldest open transaction begins",
    )
    on_timestamp_overflow: str = option(
        "onTimestampOverflow",
        choice("fail", "null"),
        default="fail",
        doc="what to do with a timestamp that no Spark timestamp can hold (one sent in ns): fail, "
        "or show null",
    )
    on_corrupt_record: str = option(
        "onCorruptRecord",
        choice("fail", "skip"),
        default="fail",
        doc="what to do with bytes that are no valid record batch: fail, or skip them with a "
        "warning that says what was left out",
    )
    view: str = option(
        "view",
        choice("records", "batches", "offsets", "transactions", "latest", "metadata", "remote"),
        default="records",
        doc="what a row is. records: a record. batches: a record batch, or a wrapper message of "
        "the older formats, with what its header says and what is wrong with it. offsets: a "
        "decoded record of __consumer_offsets. transactions: one of __transaction_state. "
        "metadata: one of __cluster_metadata. remote: one of __remote_log_metadata. latest: the "
        "newest record of each key and partition, in batch queries",
    )
    decode_value: str | None = option(
        "decode.value",
        choice("avro", "json", "protobuf"),
        default=None,
        doc="decode values that were written by a schema registry into the column valueDecoded; "
        "valueSchemaId and valueError are added too, and value stays as it is. The schemas are "
        "read from schema.topic. Needs the extra `schemas`; see [schemas.md](schemas.md)",
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
        doc="with decode.value or decode.key: the topic of the same directories in which a "
        "registry kept the schemas",
    )
    value_schema: str | None = option(
        "schema.value",
        _SCHEMA,
        default=None,
        doc="with decode.value: the schema whose columns valueDecoded has. newest, version:N of "
        "the subject, id:N, or the text of a schema. Default: newest",
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
        doc="with decode.value=protobuf: the full name of the message that valueDecoded is of. "
        "Default: the first one of the schema",
    )
    key_message: str | None = option(
        "schema.key.message", TEXT, default=None, doc="the same for keyDecoded"
    )
    tombstones: bool = option(
        "tombstones",
        BOOLEAN,
        default=False,
        doc="with view=latest: true gives a row for keys whose newest value is null, too",
    )
    table_memory: int = option(
        "table.memory",
        size(minimum=1 << 16),
        default=128 << 20,
        unit="bytes",
        doc="with view=latest: the memory for keys that one task may take. The keys of a partition "
        "with more are written to Spark's local directory. Scans of key ranges: for keys and rows",
    )
    cache_memory: int = option(
        "cache.memory",
        size(minimum=0),
        default=64 << 20,
        unit="bytes",
        doc="with view=latest and a single key: what the process keeps of hashed keys, so that it "
        "finds a key again without decompressing the log. 0: nothing",
    )
    filter_pushdown: bool = option(
        "filterPushdown",
        BOOLEAN,
        default=False,
        doc="let a batch query's filters on topic, partition, offset and timestamp decide what is "
        "read. Spark's setting spark.sql.python.filterPushdown.enabled must be true as well. "
        "Use a DataFrame only once then: load again for each query",
    )
    max_timestamp_disorder_ms: int | None = option(
        "maxTimestampDisorder",
        duration_ms(),
        default=None,
        unit="ms",
        doc="how much earlier a record's timestamp may be than that of a record before it in its "
        "partition. You must know this. With filterPushdown, reading ends where no record can "
        "be early enough any more",
    )
    max_offsets_per_trigger: int | None = option(
        "maxOffsetsPerTrigger",
        integer(minimum=1),
        default=None,
        unit="offsets",
        doc="the most offsets that one micro-batch reads, split over partitions by what waits in "
        "each",
    )
    max_bytes_per_trigger: int | None = option(
        "maxBytesPerTrigger",
        size(minimum=1),
        default=None,
        unit="bytes",
        doc="the most bytes of segment files that one micro-batch reads, but at least one record "
        "batch. Split over partitions by what waits in each",
    )
    min_offsets_per_trigger: int | None = option(
        "minOffsetsPerTrigger",
        integer(minimum=1),
        default=None,
        unit="offsets",
        doc="wait until so many offsets are there, but not longer than maxTriggerDelay",
    )
    max_trigger_delay_ms: int = option(
        "maxTriggerDelay",
        duration_ms(),
        default=15 * 60_000,
        unit="ms",
        doc="the longest that minOffsetsPerTrigger holds a micro-batch back",
    )
    min_partitions: int | None = option(
        "minPartitions",
        integer(minimum=1, maximum=2**31 - 1),
        default=None,
        unit="tasks",
        doc="cut the offsets of a batch into about so many tasks at least",
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
        doc="about how much of a segment file one task reads, if neither minPartitions nor "
        "maxRecordsPerPartition is given. Default: a share for each core of the driver's "
        "machine, from 8m to 64m",
    )
    max_decompressed_bytes: int = option(
        "maxDecompressedBytes",
        size(minimum=1),
        default=256 << 20,
        unit="bytes",
        doc="the most that one record batch may grow to when it is decompressed",
    )
    fetch_retries: int = option(
        "fetchOffset.numRetries",
        integer(minimum=1),
        default=3,
        doc="how often the log directories are looked at before offsets count as lost",
    )
    fetch_retry_interval_ms: int = option(
        "fetchOffset.retryIntervalMs",
        integer(minimum=0),
        default=1000,
        unit="ms",
        doc="the time between these looks",
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
