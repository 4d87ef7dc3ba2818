"""The options of the sink, and what the driver decides by them for all tasks of a batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Final, cast

from kafkalog.checkpoints.commit_state import DEFAULT_EXPIRATION_MS
from kafkalog.errors import InvalidTopicError, OptionError
from kafkalog.files.paths import NodePlace, as_path
from kafkalog.files.storage import RemoteRoot
from kafkalog.files.system import system
from kafkalog.model import validate_topic_name
from kafkalog.streaming.commit.append import CommitSettings
from kafkalog.streaming.options.declaring import (
    KAFKA_CLIENT_OPTIONS,
    KAFKA_SECURITY_PREFIXES,
    Rules,
    option,
    options_of,
)
from kafkalog.streaming.options.kinds import (
    BOOLEAN,
    DURATION_MS,
    NAME,
    SIZE,
    TEXT,
    WRITABLE_PATHS,
    Kind,
    choice,
    duration_ms,
    integer,
    size,
    text,
)
from kafkalog.streaming.options.store_options import StoreOptions
from kafkalog.streaming.options.topic_settings import (
    COMPRESSION_TYPES,
    LOG_CONFIG_NAMES,
    LogConfig,
)
from kafkalog.streaming.store.policy import BY_OPTION, LAG_MS, SetPolicy, TopicPolicy
from kafkalog.streaming.store.replicas.election import check_one_node

if TYPE_CHECKING:
    from pathlib import Path

    from kafkalog.checkpoints.bucket_state import BucketState
    from kafkalog.streaming.commit.preserved_offsets import CopiedBatch
    from kafkalog.streaming.groups.planned_commit import Planned
    from kafkalog.streaming.objects.bucket_store import BucketRoot
    from kafkalog.streaming.store.topics import Topic


__all__ = ["ReplicaOptions", "WriteOptions", "WritePlan"]


# ----------------------------------------------------------------------------------------------
# The options of the sink: Spark's Kafka sink's, a topic's settings by Kafka's names, and ours.


# ----------------------------------------------------------------------------------------------
# Where rows go: on which nodes they lie, and what is done about a node that fails.


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaOptions(StoreOptions):
    """A path, and what counts where it names several nodes."""

    paths: tuple[str, ...] = option(
        "path",
        WRITABLE_PATHS,
        doc="the log directories to write to, or the URI of a log in a bucket",
    )
    replication_factor: int | None = option(
        *("replication.factor", integer(1, 1000)),
        default=None,
        doc="how many nodes get a partition of a new topic. Default: all, at most 3",
    )
    acks: str | None = option(
        *("acks", choice("all", "-1", "1", "0")),
        default=None,
        kafka=True,
        doc="on several nodes. all (default), -1: a batch fails unless min.insync.replicas "
        "replicas have it",
    )
    replica_lag_time_max_ms: int = option(
        *("replica.lag.time.max.ms", duration_ms(minimum=1)),
        default=LAG_MS,
        unit="ms",
        doc="on several nodes: a node that takes longer for a call leaves the in-sync sets until "
        "the call returns",
    )
    auto_leader_rebalance_enable: bool = option(
        *("auto.leader.rebalance.enable", BOOLEAN),
        default=False,
        doc="on several nodes: the preferred replica leads again as soon as it is in sync",
    )

    @property
    def has_nodes(self) -> bool:
        """Whether the path names several nodes."""
        return isinstance(self.paths[0], NodePlace)


# ----------------------------------------------------------------------------------------------

_BYTES_ONLY: Final = "keys and values are written as the bytes of their columns"

_REFUSED: Final = {
    "kafka.key.serializer": _BYTES_ONLY,
    "kafka.value.serializer": _BYTES_ONLY,
    "kafka.partitioner.class": "no Java class runs here; use partitioner, or a column partition",
    "kafka.interceptor.classes": "rows go to files, no producer's interceptor runs",
}


def _setting(name: str, kind: Kind[int] | Kind[str], *, doc: str, unit: str = "") -> str | None:
    """Declare a topic setting; its value is text in the form that persists with the topic."""

    def read(text: str) -> str:
        value = str(kind.read(text))
        LogConfig.from_mapping({name: value})
        return value

    return option(name, Kind(kind.accepts, read), default=None, unit=unit, kafka=True, doc=doc)


_COMPRESSION: Final = choice("none", *COMPRESSION_TYPES[2:], *COMPRESSION_TYPES[1::-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions(ReplicaOptions):
    """What a query over the sink was given; parse with ``WriteOptions.parse``."""

    RULES: ClassVar[Rules] = Rules(
        ignored=KAFKA_CLIENT_OPTIONS | {"includeHeaders"},
        ignored_prefixes=KAFKA_SECURITY_PREFIXES,
        refused=_REFUSED,
        prefixed=True,
    )

    # Behaviour
    topic: str | None = option(
        "topic", NAME, default=None, doc="the topic of every row; comes before a column topic"
    )
    subscribe: str | None = option(
        "subscribe",
        text("the name of a topic"),
        default=None,
        doc="the topic that a temporary view of SQL reads. INSERT INTO the view appends to "
        "it, unless topic is given",
    )
    num_partitions: int | None = option(
        "numPartitions",
        integer(1, 100_000),
        default=None,
        doc="partitions of a new topic. Default: 1",
    )
    partitioner: str = option(
        "partitioner",
        choice("murmur2", "round_robin"),
        default="murmur2",
        doc="for rows without a partition. murmur2: by the key's hash, as Kafka's "
        "producers; rows without a key in stretches of 16 KiB, over several appends too. "
        "round_robin: in turn",
    )
    flush: str = option(
        "flush",
        choice("commit", "os"),
        default="commit",
        doc="commit: a batch is on the disk before it counts as committed. os: without "
        "fsync; a power failure may lose records, a killed process does not",
    )
    transactional_id: str | None = option(
        "transactional.id",
        TEXT,
        default=None,
        kafka=True,
        doc="the id under which a stream's batches count. Default: the query's id, from its"
        " checkpoint",
    )
    transactional_id_expiration_ms: int = option(
        "transactional.id.expiration.ms",
        duration_ms(minimum=1),
        default=DEFAULT_EXPIRATION_MS,
        unit="ms",
        kafka=True,
        doc="an inactive writer's id expires between one and two times this long after its "
        "last commit",
    )
    allow_unknown_checkpoint: bool = option(
        "allowUnknownCheckpoint",
        BOOLEAN,
        default=False,
        doc="allow a query whose checkpoint is at batch 1 or later on a log that has no "
        "record of it. Off by default, because an unmounted disk looks the same",
    )
    txn_app_id: str | None = option(
        "txnAppId",
        TEXT,
        default=None,
        doc="for batch writes: the name for which txnVersion counts",
    )
    txn_version: int | None = option(
        "txnVersion",
        integer(minimum=0),
        default=None,
        doc="for batch writes, counted for each topic; gaps are allowed. A version not "
        "above the topic's last one is skipped; the last one again with other rows is "
        "refused",
    )
    group_id: str | None = option(
        "kafka.group.id",
        TEXT,
        default=None,
        doc="with kafka.group.instance.id: the group that the source joined (joinGroup). A "
        "stream publishes its positions with the rows: each input row is there once",
    )
    group_instance_id: str | None = option(
        "kafka.group.instance.id",
        TEXT,
        default=None,
        doc="the source's option of this name. Queries with state are refused then",
    )
    allow_broker_directory: bool = option(
        "allowBrokerDirectory",
        BOOLEAN,
        default=False,
        doc="write also where a broker lived (it left a `meta.properties`). Stop the broker"
        " and run `kafkalog broker takeover` first",
    )
    allow_internal_topics: bool = option(
        "allowInternalTopics",
        BOOLEAN,
        default=False,
        doc="write also to topics with two leading underscores",
    )
    max_new_topics: int = option(
        "maxNewTopics",
        integer(minimum=0),
        default=100,
        doc="the most topics that the column topic may create in a batch",
    )
    preserve_offsets: bool = option(
        "preserveOffsets",
        BOOLEAN,
        default=False,
        doc="keep the offsets of a column offset. They must lie at the log's end or beyond,"
        " and ascend in each partition. Holes are kept",
    )
    preserve_ends: bool = option(
        "preserveEnds",
        BOOLEAN,
        default=False,
        doc="with preserveOffsets, in a stream over one source with Kafka's offsets: pad "
        "each log to the source's end offset, even if the last offsets hold no records."
        " Its topics must be there; a log that ended elsewhere before is refused; "
        "nothing expires by this query. Needs a local checkpointLocation. A batch write"
        " needs copiedFrom instead",
    )
    copied_from: str | None = option(
        "copiedFrom",
        text("JSON"),
        default=None,
        doc="for batch writes of `kafkalog run mirror` or `replay`: what is copied from "
        "where to where, kept with the topics in the same commit. A target that is not "
        "that far is refused, and a source that was recreated, cut or put back",
    )
    checkpoint_location: str | None = option(
        "checkpointLocation",
        text("a folder: a path or a URI"),
        default=None,
        doc="the query's checkpoint, which you set for Spark. One in a store is read by "
        "`storage.*`: [the checkpoint](buckets.md#the-checkpoint)",
    )

    # A topic's settings
    message_format: str | None = _setting(
        "message.format",
        choice("v2", "v1", "v0"),
        doc="v2 (default): record batches. v1, v0: message sets, as before Kafka 0.11 and "
        "0.10: no headers, no zstd; v0 has no timestamps",
    )
    compression_type: str | None = _setting("compression.type", _COMPRESSION, doc="Default: none")
    compression_gzip_level: str | None = _setting(
        "compression.gzip.level",
        integer(-1, 9),
        doc="not 0. Default: -1, zlib's",
    )
    compression_lz4_level: str | None = _setting(
        "compression.lz4.level", integer(1, 17), doc="Default: 9, the fast compressor"
    )
    compression_zstd_level: str | None = _setting(
        "compression.zstd.level", integer(-131072, 22), doc="Default: 3"
    )
    max_message_bytes: str | None = _setting(
        "max.message.bytes", SIZE, unit="bytes", doc="the largest batch. Default: 1048588"
    )
    message_timestamp_type: str | None = _setting(
        "message.timestamp.type",
        choice("CreateTime", "LogAppendTime"),
        doc="the time of the row, or of the append",
    )
    cleanup_policy: str | None = _setting(
        "cleanup.policy",
        text("delete, compact, or both with a comma"),
        doc="for `kafkalog retain`, `compact`, `maintain` and brokers. Default: delete",
    )
    retention_ms: str | None = _setting(
        "retention.ms",
        duration_ms(minimum=-1),
        unit="ms",
        doc="how long records are kept. Without it none is deleted by time (a broker: after"
        " 7 days)",
    )
    retention_bytes: str | None = _setting(
        "retention.bytes",
        size(minimum=-(2**63)),
        unit="bytes",
        doc="the size that a partition keeps. Without it none is deleted by size",
    )
    delete_retention_ms: str | None = _setting(
        "delete.retention.ms",
        DURATION_MS,
        unit="ms",
        doc="how long compaction keeps tombstones. Default: 1 day",
    )
    min_compaction_lag_ms: str | None = _setting(
        "min.compaction.lag.ms",
        DURATION_MS,
        unit="ms",
        doc="records younger than this are not compacted. Default: 0",
    )
    max_compaction_lag_ms: str | None = _setting(
        "max.compaction.lag.ms",
        DURATION_MS,
        unit="ms",
        doc="older ones are compacted whatever the ratio",
    )
    min_cleanable_dirty_ratio: str | None = _setting(
        "min.cleanable.dirty.ratio",
        text("a number from 0 to 1"),
        doc="from which share of new bytes compaction works. Default: 0.5",
    )
    file_delete_delay_ms: str | None = _setting(
        "file.delete.delay.ms",
        DURATION_MS,
        unit="ms",
        doc="how long deleted segments stay for readers. Default: 1 minute",
    )

    min_insync_replicas: str | None = _setting(
        "min.insync.replicas",
        integer(1, 1000),
        doc="on several nodes: replicas that must be in sync to write. Default: 1",
    )

    # Performance
    segment_bytes: str | None = _setting(
        "segment.bytes", SIZE, unit="bytes", doc="a segment's largest size. Default: 1 GiB"
    )
    segment_ms: str | None = _setting(
        "segment.ms",
        DURATION_MS,
        unit="ms",
        doc="the time that a segment may span. Default: 7 days",
    )
    segment_jitter_ms: str | None = _setting(
        "segment.jitter.ms",
        DURATION_MS,
        unit="ms",
        doc="up to this much is taken off segment.ms, so that not all partitions roll at once",
    )
    segment_index_bytes: str | None = _setting(
        "segment.index.bytes", SIZE, unit="bytes", doc="an index's largest size. Default: 10 MiB"
    )
    index_interval_bytes: str | None = _setting(
        "index.interval.bytes",
        SIZE,
        unit="bytes",
        doc="bytes of log between index entries. Default: 4096",
    )
    retention_check_interval_ms: int = option(
        "retention.check.interval.ms",
        duration_ms(minimum=1),
        default=300_000,
        unit="ms",
        doc="how often a writer deletes what has expired, after a commit. In a bucket "
        "run maintain does",
    )
    max_block_ms: int = option(
        "max.block.ms",
        DURATION_MS,
        default=60_000,
        unit="ms",
        kafka=True,
        doc="how long a commit waits for another writer of the same directories",
    )

    def __post_init__(self) -> None:
        if self.topic is None and self.subscribe is not None and "," not in self.subscribe:
            object.__setattr__(self, "topic", self.subscribe)
        self._check_topic()
        self._check_store()
        LogConfig.from_mapping(self.settings)
        if (self.txn_app_id is None) != (self.txn_version is None):
            raise OptionError("give both of the options 'txnAppId' and 'txnVersion', or none")
        if self.preserve_ends and not self.preserve_offsets:
            raise OptionError("option 'preserveEnds' goes with preserveOffsets=true")
        if self.preserve_ends and self.group is not None:
            raise OptionError(
                "option 'preserveEnds' copies logs from end to end: leave out kafka.group.id and "
                "kafka.group.instance.id, since a member of a group reads parts of them"
            )
        self._ignore_half_a_group()
        if self.has_nodes:
            return
        check_one_node(self.replication_factor)
        if self.acks is not None:
            object.__setattr__(self, "ignored", tuple(sorted((*self.ignored, "kafka.acks"))))

    def _check_store(self) -> None:
        """Open a log in a store as the options say, and refuse what such a log has not."""
        object.__setattr__(self, "paths", self.in_store(self.paths))
        if not any(isinstance(path, RemoteRoot) for path in self.paths):
            return
        if len(self.paths) > 1:
            raise OptionError(
                f"option 'path' names {len(self.paths)} places, and a log in an object store lies "
                "in one: give its URI alone"
            )
        for name, value, known in (
            ("message.format", self.message_format or "v2", "v2"),
            ("flush", self.flush, "commit"),
            ("replication.factor", self.replication_factor or 1, 1),
            ("kafka.group.id", self.group and self.group_id, None),
        ):
            if value != known:
                raise OptionError(
                    f"option {name!r} is {value}, and a log in an object store takes "
                    f"{'none' if known is None else known} only{_WHY.get(name, '')}"
                )

    def _ignore_half_a_group(self) -> None:
        """Take one of a consumer's two names for what it is to a producer."""
        given = {
            "kafka.group.id": self.group_id,
            "kafka.group.instance.id": self.group_instance_id,
        }
        names = [name for name, value in given.items() if value is not None]
        if len(names) == 1:
            object.__setattr__(self, "ignored", tuple(sorted((*self.ignored, *names))))

    def _check_topic(self) -> None:
        if self.topic is None:
            return
        try:
            validate_topic_name(self.topic)
        except InvalidTopicError as error:
            raise OptionError(f"option 'topic': {error}") from None

    @property
    def group(self) -> tuple[str, str] | None:
        """The group whose positions are published with rows, and the source's instance id."""
        if self.group_id is None or self.group_instance_id is None:
            return None
        return self.group_id, self.group_instance_id

    @property
    def policy(self) -> SetPolicy:
        """How the log directories may be changed."""
        return SetPolicy(
            allows_broker=self.allow_broker_directory,
            broker_advice=BY_OPTION,
            wait_ms=self.max_block_ms,
            is_durable=self.flush == "commit",
            rebalances=self.auto_leader_rebalance_enable,
            lag_ms=self.replica_lag_time_max_ms if self.has_nodes else None,
        )

    @property
    def topic_policy(self) -> TopicPolicy:
        """Which topics rows may go to, and what new ones look like."""
        return TopicPolicy(
            allows_internal=self.allow_internal_topics,
            partitions=self.num_partitions,
            settings=self.settings,
            most_new=self.max_new_topics if self.topic is None else None,
            replication_factor=self.replication_factor,
        )

    @property
    def settings(self) -> dict[str, str]:
        """The topic settings that were given, by Kafka's names."""
        values = {
            known.name: getattr(self, known.field)
            for known in options_of(type(self))
            if known.name in LOG_CONFIG_NAMES
        }
        return {name: value for name, value in values.items() if value is not None}

    @property
    def copied(self) -> CopiedBatch | None:
        """What a batch copies, and of what it is to be a copy."""
        if self.copied_from is None:
            return None
        # not at import: only a copy has it
        from kafkalog.streaming.commit.preserved_offsets import CopiedBatch  # noqa: PLC0415

        return CopiedBatch.from_json(self.copied_from, self.storage)


_WHY: Final = {
    "kafka.group.id": ": source and sink of a query in a group meet in local files",
}
"""Why a log in an object store does not take an option."""


_MOST_SENT_TOPICS: Final = 500


# ----------------------------------------------------------------------------------------------
# What the driver decides for all tasks of a batch.


@dataclass(frozen=True, slots=True)
class WritePlan:
    """What the driver has decided for all tasks of one batch; picklable.

    ``set_id`` names the set of log directories that the driver sees. ``append_time_ms`` is the one
    stamp of all records in topics with ``message.timestamp.type=LogAppendTime``. With
    ``digests_rows`` tasks hash their rows, since nothing else tells what the batch holds.
    ``planned`` is what the query's source has planned, if the sink publishes a group's positions.
    ``newest`` is the newest commit of a log in an object store, and ``topics`` are those that it
    has: tasks look for no others, unless they meet one that is not among them.
    """

    options: WriteOptions
    set_id: str
    append_time_ms: int
    digests_rows: bool = False
    planned: Planned | None = None
    newest: int = 0
    topics: tuple[Topic, ...] = ()

    @classmethod
    def of(cls, options: WriteOptions, *, at_once: bool = False) -> WritePlan:
        """Plan a batch of the present time; directories that do not exist are made.

        With ``at_once`` a log in an object store is asked for its partitions of now: a process that
        plans, and does not commit, would not learn that rows were placed among too few.

        Raises:
            LogDirectoryError, CheckpointError: they are no set that may be written.
        """
        if isinstance(options.paths[0], RemoteRoot):
            return cls._in_bucket(options, at_once=at_once)
        # not at import: a task gets a plan, and needs neither locks nor sets
        from kafkalog.streaming.store.session import ensure_set  # noqa: PLC0415

        set_id = ensure_set(options.paths, options.policy, knows_nodes=options.has_nodes)
        return cls(options, set_id, system.time_ns() // 1_000_000)

    @classmethod
    def _in_bucket(cls, options: WriteOptions, *, at_once: bool) -> WritePlan:
        # not at import: a log in directories needs no client of a store
        from kafkalog.streaming.objects.bucket_store import BucketRoot  # noqa: PLC0415

        root = BucketRoot.of(cast("RemoteRoot", options.paths[0]))
        options = replace(options, paths=(root,))
        with root.writing(creates=True) as log:
            state = log.state
            names = {topic.name for topic in state.topics.values()}
            if at_once or options.topic not in names or not log.has_credit():
                state = log.follow()
            number, topics = state.number, _known_topics(state, options)
        now_ms = system.time_ns() // 1_000_000
        return cls(options, state.log_id, now_ms, newest=number, topics=topics)

    @property
    def bucket(self) -> BucketRoot | None:
        """The log in an object store that is written, if it is one."""
        root = self.options.paths[0]
        return cast("BucketRoot", root) if isinstance(root, RemoteRoot) else None

    @property
    def directories(self) -> list[Path]:
        """The log directories; of a log in an object store, its root as readers know it."""
        return [as_path(path) for path in self.options.paths]

    @property
    def data_nodes(self) -> list[list[int]]:
        """Of each node that holds partitions, which of the directories are its own."""
        nodes: dict[int, list[int]] = {}
        for number, path in enumerate(self.options.paths):
            if not isinstance(path, NodePlace):
                nodes.setdefault(0, []).append(number)
            elif not path.is_witness:
                nodes.setdefault(path.node, []).append(number)
        return list(nodes.values())

    @property
    def commit_plan(self) -> CommitSettings:
        """What the commit goes by, which knows no options."""
        return CommitSettings(
            directories=tuple(self.directories),
            planned_ms=self.append_time_ms,
            policy=self.options.policy,
            topics=self.options.topic_policy,
            expiration_ms=self.options.transactional_id_expiration_ms,
            allows_unknown=self.options.allow_unknown_checkpoint,
            has_nodes=self.options.has_nodes,
            acks_all=self.options.acks in {None, "all", "-1"},
            log_id=None if self.bucket is None else self.set_id,
        )


def _known_topics(state: BucketState, options: WriteOptions) -> tuple[Topic, ...]:
    """Describe the topics of a log in an object store that a batch may write to.

    None if they are too many to be sent to each task, or if the only one may not be written to.
    """
    from kafkalog.streaming.store.topics import Topic  # noqa: PLC0415

    policy = options.topic_policy
    found = []
    for topic_id, topic in state.topics.items():
        is_kafkas = topic.name.startswith("__") and not policy.allows_internal
        if options.topic in {None, topic.name} and not is_kafkas:
            settings = {**topic.settings, **policy.settings}
            found.append(Topic(topic.name, topic.known_count, settings, True, topic_id))
    return tuple(found) if len(found) <= _MOST_SENT_TOPICS else ()
