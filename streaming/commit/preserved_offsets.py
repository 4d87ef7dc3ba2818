"""Write rows at offsets that come with them, as mirror and restore do."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from kafkalog.checkpoints.commit_state import SourcePosition, TopicOrigin, TopicState
from kafkalog.errors import CommitError, OptionError, RowError, UnknownTopicOrPartitionError
from kafkalog.files.storage import RemoteRoot
from kafkalog.model import (
    MAX_OFFSET,
    NO_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TopicPartition,
    validate_topic_name,
)
from kafkalog.streaming.commit.staging.staged_files import Home
from kafkalog.streaming.log.history import LastBatch, find_divergence, find_last_batch
from kafkalog.streaming.records.batch_layout import seal_batch
from kafkalog.streaming.records.builder import EncodedBatch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kafkalog.streaming.commit.staging.staged_files import Staging
    from kafkalog.streaming.commit.staging.staged_run import StagedRun
    from kafkalog.streaming.log.history import Divergence
    from kafkalog.streaming.options.topic_settings import LogConfig
    from kafkalog.streaming.store.ends.tracker import LogEndTracker
    from kafkalog.streaming.store.log_set import CommittedSet
    from kafkalog.streaming.store.topics import Topic


__all__ = [
    "CopiedBatch",
    "CopiedEnd",
    "CopiedPartition",
    "CopiedTopic",
    "StagedEnds",
    "batch_to_end",
    "check_room",
    "check_there",
    "divergence_at",
    "in_offset_order",
    "origin_key",
    "out_of_order",
    "position_at",
]


# ----------------------------------------------------------------------------------------------
# Offsets that rows bring along (``preserveOffsets``): which fit into a log, and in which order.


_WAY_OUT: Final = (
    "With preserveOffsets each partition's rows must ascend by offset, and come from one task or "
    "from tasks that share no range of offsets: "
    'df.repartition("topic", "partition").sortWithinPartitions("topic", "partition", "offset")'
)


def out_of_order(key: TopicPartition, before: int, offset: int) -> RowError:
    """Return the error for a row whose offset does not lie above the one before it in its task."""
    if offset < 0:
        return RowError(f"{key}: a row is to keep offset {offset}: offsets are not negative")
    return RowError(
        f"{key}: a row is to keep offset {offset} and comes after one with offset {before}. "
        f"{_WAY_OUT}"
    )


def in_offset_order(
    key: TopicPartition, runs: Iterable[StagedRun], log_end_offset: int
) -> list[StagedRun]:
    """Sort runs that keep their offsets by their first ones; holes between them are fine.

    Raises:
        RowError: offsets below the end of the log, or runs that overlap.
    """
    ordered = sorted(runs, key=lambda run: run.first_offset)
    end = log_end_offset
    for slot, run in enumerate(ordered):
        first = run.first_offset
        if first < end and slot == 0:
            raise RowError(
                f"{key}: rows are to keep offsets from {first} on, but the log ends at offset "
                f"{end}: what lies below is written already. Leave out the rows below offset {end}"
            )
        if first < end:
            before = ordered[slot - 1].first_offset
            raise RowError(
                f"{key}: rows of two tasks overlap, one has offsets {before} to {end - 1}, another "
                f"begins at {first}. {_WAY_OUT}"
            )
        end = run.last_offset + 1
    return ordered


def check_room(key: TopicPartition, runs: Sequence[StagedRun], log_end_offset: int) -> None:
    """Refuse records that would get offsets that an int64 cannot hold.

    Raises:
        CommitError: they would.
    """
    records = sum(run.records for run in runs)
    if log_end_offset + records > MAX_OFFSET:
        raise CommitError(
            f"{key}: {records} records do not fit after the end of the log, offset "
            f"{log_end_offset}: the last possible offset is {MAX_OFFSET - 1}"
        )


# ----------------------------------------------------------------------------------------------
# What a copy takes from its original beside the records: where logs end, and how far it is.
#
# **Ends** may lie above a copy's last record.
#
# Markers, aborted records, and what compaction has removed have offsets, and a copy does not hold
# them. At the end of a log nothing would tell that they were given: what is appended next would
# get one of them. So a batch without records stands there. Its offset is the one before the end.
# A cleaner of Kafka's leaves such batches, so brokers and clients know them.
#
# It is staged like a batch of rows. So the intent names it, whoever rolls a commit back knows it,
# and the same rename publishes rows and ends.
#
# **Origins.** A batch that copies (:class:`CopiedBatch`) says of which topics, and from where to
# where. The commit state keeps that with the topics that get the rows, by the same rename. A
# batch is committed only where the copy is as far as the batch was planned for: of two jobs at
# once that copy the same, one is refused, and so is one whose target was set back meanwhile.


_MOVED: Final = "Nothing was written. Run the job again: it continues where the copy ends then"


class CopiedEnd(NamedTuple):
    """Where a log is to end after a commit, and where it must end before it, if that is known."""

    end: int
    begin: int | None = None


def check_there(key: TopicPartition, topic: Topic, *, has_folder: bool) -> None:
    """Refuse a partition that is not there: an end alone makes none.

    Raises:
        UnknownTopicOrPartitionError: it is not.
    """
    if topic.exists and has_folder:
        return
    there = f"the topic has {topic.partitions}" if topic.exists else "there is no such topic"
    raise UnknownTopicOrPartitionError(
        f"{key}: its log is to end where another one ends, and there is no such partition here: "
        f"{there}. Nothing was written"
    )


class StagedEnds:
    """The batches without records of one commit; belongs to one thread.

    :meth:`finish` or :meth:`discard` ends it.
    """

    def __init__(self, ends: Mapping[TopicPartition, CopiedEnd], staging: Staging) -> None:
        """Take the ends, and where new staged files go."""
        self._ends = ends
        self._staging = staging

    def __contains__(self, key: TopicPartition) -> bool:
        """Whether an end was given for a partition."""
        return key in self._ends

    def add(
        self, key: TopicPartition, runs: Sequence[StagedRun], log_end: int, config: LogConfig
    ) -> None:
        """Stage what one partition needs after ``runs``, which keep their offsets.

        ``log_end`` is where the log ends now.

        Raises:
            CommitError: it does not end where it should, or the rows go beyond the end; or nothing
                can be staged.
        """
        wanted = self._ends.get(key)
        batch = None if wanted is None else batch_to_end(key, wanted, runs, log_end)
        if batch is not None:
            self._staging.add(key, [batch], Home(None, config.segment_bytes))

    def finish(self) -> dict[TopicPartition, StagedRun]:
        """Close the new staged files and return the runs in them.

        Raises:
            CommitError: they cannot be made durable.
        """
        return {run.topic_partition: run for run in self._staging.finish()}

    def discard(self) -> None:
        """Remove the new staged files."""
        self._staging.discard()


def batch_to_end(
    key: TopicPartition, wanted: CopiedEnd, runs: Sequence[StagedRun], log_end: int
) -> EncodedBatch | None:
    """Return the batch without records that a log needs after ``runs``, which keep their offsets.

    None: it ends where it should. ``log_end`` is where it ends now.

    Raises:
        CommitError: it does not end where it should, or the rows go beyond the end.
    """
    if wanted.begin is not None and log_end != wanted.begin:
        raise CommitError(
            f"{key}: the copy ends at offset {log_end}, and what is to be appended begins at "
            f"{wanted.begin}: somebody else has written to it, or it was restored. Nothing was "
            "written. Make a new copy, with a new checkpoint, and let nobody else write to it"
        )
    reached = runs[-1].last_offset + 1 if runs else log_end
    if reached > wanted.end:
        raise CommitError(
            f"{key}: the copy reaches up to offset {reached}, beyond its original, which ends "
            f"at {wanted.end}: somebody else has written to it. Nothing was written"
        )
    return _without_records(wanted.end - 1) if reached < wanted.end else None


def _without_records(offset: int) -> EncodedBatch:
    data = seal_batch(
        [],
        base_offset=offset,
        leader_epoch=NO_EPOCH,
        attributes=0,
        last_offset_delta=0,
        base_timestamp=NO_TIMESTAMP,
        max_timestamp=NO_TIMESTAMP,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_EPOCH,
        base_sequence=NO_SEQUENCE,
        count=0,
    )
    return EncodedBatch(data, 0, 0, NO_TIMESTAMP, NO_TIMESTAMP, first_offset=offset)


class CopiedPartition(NamedTuple):
    """What a batch copies of one partition.

    ``copied`` is how far the copy must be before it, None if it must hold nothing of the partition.
    ``begin`` is where the log of the copy must end before it, None if it may end anywhere, or where
    offsets are not kept.
    """

    position: SourcePosition
    """How far the copy is after it."""
    copied: int | None = None
    begin: int | None = None


@dataclass(frozen=True)
class CopiedTopic:
    """What a batch copies of one topic, and into which topic of the target."""

    topic: str
    into: str
    set_id: str | None
    topic_id: str | None
    partitions: Mapping[int, CopiedPartition]


@dataclass(frozen=True)
class CopiedBatch:
    """What a batch copies. ``reader`` names the job: one target may be the copy of several.

    ``path`` names the logs that it reads, if they are to be looked at: before the commit they must
    still hold what was planned. ``storage`` says how a store is reached, as its options do.
    ``expires``: the job is forgotten when it is silent for 90 days.
    """

    reader: str
    topics: tuple[CopiedTopic, ...]
    path: str = ""
    expires: bool = False
    storage: Mapping[str, object] = field(default_factory=dict, repr=False)

    def to_json(self) -> str:
        """Return the text of the sink's option ``copiedFrom``."""
        topics = {
            each.topic: {
                "into": each.into,
                "set": each.set_id,
                "id": each.topic_id,
                "partitions": {
                    str(number): {
                        "position": list(part.position),
                        "copied": part.copied,
                        "begin": part.begin,
                    }
                    for number, part in sorted(each.partitions.items())
                },
            }
            for each in self.topics
        }
        whole = {"reader": self.reader, "path": self.path, "expires": self.expires}
        return json.dumps({**whole, "topics": topics})

    @classmethod
    def from_json(cls, text: str, storage: Mapping[str, object]) -> Self:
        """Read the option.

        Raises:
            OptionError: it is no such text.
            InvalidTopicError: a topic's name that none can have.
        """
        try:
            given: dict[str, Any] = json.loads(text)
            topics = []
            for topic, each in given["topics"].items():
                validate_topic_name(each["into"])
                partitions = {
                    int(number): CopiedPartition(
                        SourcePosition(*part["position"]), part["copied"], part["begin"]
                    )
                    for number, part in each["partitions"].items()
                }
                copied = CopiedTopic(topic, each["into"], each["set"], each["id"], partitions)
                topics.append(copied)
            reader, path = str(given["reader"]), str(given["path"])
            return cls(reader, tuple(topics), path, bool(given["expires"]), storage)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise OptionError(
                f"option 'copiedFrom' does not say what is copied: {error!r}"
            ) from None

    @property
    def ends(self) -> dict[TopicPartition, CopiedEnd]:
        """Where logs end after it, and before it, in a copy that keeps offsets."""
        return {
            TopicPartition(each.into, number): CopiedEnd(part.position.offset, part.begin)
            for each in self.topics
            for number, part in each.partitions.items()
        }

    def check_target(self, log_set: CommittedSet) -> None:
        """Refuse a target that is not as far as the batch was planned for: a commit's condition.

        Raises:
            CommitError: it is not.
        """
        known = {topic.name: topic for topic in log_set.state.topics.values()}
        for each in self.topics:
            origin = _origin_in(known.get(each.into), self.reader, each.topic)
            for number, part in each.partitions.items():
                found = None if origin is None else origin.positions.get(number)
                copied = None if found is None else found.offset
                if copied != part.copied:
                    raise CommitError(
                        f"{each.topic}-{number}: this batch continues at "
                        f"{_shown(part.copied)}, and the copy is at {_shown(copied)} now: another "
                        f"job copies the same, or the copy was put back meanwhile. {_MOVED}"
                    )

    def check_source(self) -> None:
        """Refuse what was read if the source is not what the batch was planned from.

        Raises:
            CommitError: a topic was deleted, recreated, cut or put back while it was read.
            KafkaLogError, OSError: the log directories cannot be read.
        """
        if not self.path:
            return
        # not at import: only a copy looks at other logs than those that it appends to
        from kafkalog.streaming.options.kinds import READABLE_PATHS  # noqa: PLC0415
        from kafkalog.streaming.store.ends.tracker import LogEndTracker  # noqa: PLC0415

        topics = {each.topic for each in self.topics}
        paths = [
            path.with_options(self.storage) if isinstance(path, RemoteRoot) else path
            for path in READABLE_PATHS.read(self.path)
        ]
        watch = LogEndTracker(paths, lambda key: key.topic in topics)
        watch.look()
        ids = watch.topic_ids()
        for each in self.topics:
            for number, part in each.partitions.items():
                key = TopicPartition(each.topic, number)
                if key not in ids:
                    raise _changed(key, "is gone")
                now = ids[key]
                if now != each.topic_id and not _is_changed(watch, each.topic, each.topic_id, now):
                    raise _changed(key, f"had the topic id {each.topic_id}, and has {now} now")
                if divergence_at(watch, key, part.position) is not None:
                    raise _changed(key, "was cut, or put back from a backup,")

    def note(self, topics: Mapping[str, TopicState], now_ms: int) -> dict[str, TopicState]:
        """Return topics of a commit state, by their keys, with how far the copy is after it.

        Jobs that are to be forgotten are.
        """
        noting = dict(topics)
        for key, state in topics.items():
            for each in self.topics:
                if each.into != state.name:
                    continue
                before = _origin_in(noting[key], self.reader, each.topic)
                positions = {} if before is None else dict(before.positions)
                positions |= {
                    number: part.position._replace(copy_epoch=_epoch_of(state, number))
                    for number, part in each.partitions.items()
                }
                time_ms = max(now_ms, 0) if self.expires else None
                origin = TopicOrigin(each.set_id, each.topic_id, positions, time_ms)
                known = noting[key].origins.items()
                origins = {name: other for name, other in known if not other.is_expired(now_ms)}
                origins[origin_key(self.reader, each.topic)] = origin
                noting[key] = replace(noting[key], origins=origins)
        return noting


def origin_key(reader: str, topic: str) -> str:
    """Return the key under which a topic keeps what a job has copied into it from ``topic``."""
    return f"{reader} {topic}"


def _epoch_of(state: TopicState, partition: int) -> int:
    known = state.partitions.get(partition)
    return 0 if known is None else max(known.leader_epoch, 0)


def _origin_in(known: TopicState | None, reader: str, topic: str) -> TopicOrigin | None:
    return None if known is None else known.origins.get(origin_key(reader, topic))


def _shown(copied: int | None) -> str:
    return "its first offset" if copied is None else f"offset {copied}"


def _is_changed(watch: LogEndTracker, topic: str, before: str | None, now: str | None) -> bool:
    """Whether ids do not tell a topic from the one before: it got another one, or has none."""
    return before is None or now is None or watch.is_changed_id(topic, before, now)


def _changed(key: TopicPartition, what: str) -> CommitError:
    return CommitError(
        f"{key} {what} in the source while this batch was read. Nothing was written. Run the job "
        "again: it says what the source holds now"
    )


def position_at(watch: LogEndTracker, key: TopicPartition, offset: int) -> SourcePosition:
    """Return what tells a position in a log of a watch's last look from others at that offset."""
    with watch.open(key) as log:
        found = find_last_batch(log, offset)
    return SourcePosition(offset, None if found is None else found.to_text())


def divergence_at(
    watch: LogEndTracker, key: TopicPartition, position: SourcePosition
) -> Divergence | None:
    """Return where a log, as of a watch's last look, differs from what was read up to a position.

    None if it does not, or if nothing tells.
    """
    known = None if position.last_batch is None else LastBatch.from_text(position.last_batch)
    if known is None:
        return None
    with watch.open(key) as log:
        return find_divergence(log, position.offset, known)
