"""Where a query starts and ends, and whether its positions still belong to their logs."""

from __future__ import annotations

import functools
import json
import logging
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeVar

from kafkalog.errors import KafkaLogError, OptionError, UnknownTopicOrPartitionError
from kafkalog.model import OFFSETS_TOPIC, TopicPartition, many
from kafkalog.streaming.groups.position_topics import is_of_earlier_topic, last_batch_of
from kafkalog.streaming.log.history import find_divergence, find_last_batch
from kafkalog.streaming.source.end_offsets import EndOffsets
from kafkalog.streaming.source.loss import LossPolicy
from kafkalog.streaming.source.offsets import (
    EARLIEST,
    LATEST,
    parse_offsets,
    parse_partition_longs,
    parse_partition_times,
    to_json,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kafkalog.streaming.coordinator.group_replay import CommittedOffset
    from kafkalog.streaming.log.history import Divergence, LastBatch
    from kafkalog.streaming.log.partition_log import PartitionLog
    from kafkalog.streaming.options.read_options import ReadOptions
    from kafkalog.streaming.source.offsets import PartitionOffsets, TopicOffsets
    from kafkalog.streaming.source.planner import LogSplit
    from kafkalog.streaming.source.subscription import Subscription


__all__ = [
    "Bound",
    "PositionValidator",
    "StreamEnd",
    "batch_bounds",
    "read_commits",
    "resolve_end",
    "resolve_start",
    "starting_bound",
    "starting_positions",
]


# ----------------------------------------------------------------------------------------------
# Whether the positions of a reader still belong to the histories of their logs.
#
# What is compared, and what decides: :mod:`kafkalog.streaming.log.history`. When it is compared:
# each time that a log was read again because its files had changed, before a reader continues
# there. A position is noted before the rows below it are handed out, so that a log that is
# replaced while they are read shows at the next comparison.
#
# Source: Kafka ``SubscriptionState.maybeValidatePositionForCurrentLeader``; KIP-320.


_T = TypeVar("_T")


class PositionValidator:
    """Knows the last batches below positions of a reader, and compares them. Not thread safe."""

    def __init__(
        self,
        logs: EndOffsets,
        kept: Mapping[TopicPartition, Mapping[int, LastBatch]] | None = None,
        *,
        is_kept: bool = False,
    ) -> None:
        """Take the logs of the reader, and what an earlier run of it has kept.

        ``is_kept``: what is known goes to a later run. A log in an object store needs it for that
        alone: whoever follows its commits sees that it is the same one, and reads nothing of it.
        """
        self._logs = logs
        self._is_needed = is_kept or not logs.is_in_bucket
        self._known: dict[TopicPartition, dict[int, LastBatch | None]] = {
            key: dict(batches) for key, batches in (kept or {}).items()
        }
        self._valid: dict[TopicPartition, dict[int, object]] = {}
        """Positions that were found valid, and in which version of the log."""
        self._last: tuple[object, PartitionOffsets, dict[TopicPartition, Divergence]] | None = None

    def add(self, key: TopicPartition, position: int, batch: LastBatch | None) -> None:
        """Take a position that was kept elsewhere, if nothing is known of it here."""
        if batch is not None and position not in self._known.get(key, ()):
            self._known.setdefault(key, {})[position] = batch
            self._valid.pop(key, None)
            self._last = None

    def start_again(self) -> None:
        """Forget all: the reader starts without a checkpoint, in logs as they are now."""
        self.forget([*self._known])

    def forget(self, keys: Iterable[TopicPartition]) -> None:
        """Know nothing of partitions any more."""
        for key in keys:
            self._known.pop(key, None)
            self._valid.pop(key, None)
        self._last = None

    def find_diverged(self, *positions: PartitionOffsets) -> dict[TopicPartition, Divergence]:
        """Return the positions whose logs have another history, as of the last look.

        Of several positions in one partition it is the first. Where a log ends below a position,
        that alone tells, and it is left out. So it is where too few nodes are there to say what is
        committed.
        """
        found: dict[TopicPartition, Divergence] = {}
        for each in positions:
            found = {**self._find_diverged(each), **found}
        return found

    def _find_diverged(self, positions: PartitionOffsets) -> dict[TopicPartition, Divergence]:
        ends = self._logs.ends
        if self._last is not None and self._last[0] is ends and self._last[1] is positions:
            return self._last[2]
        found: dict[TopicPartition, Divergence] = {}
        if self._known and not self._logs.lacks_majority():
            for key, position in positions.items():
                divergence = self._validate(key, position)
                if divergence is not None:
                    found[key] = divergence
        self._last = ends, positions, found
        return found

    def _validate(self, key: TopicPartition, position: int) -> Divergence | None:
        batch = self._known.get(key, {}).get(position)
        version = self._logs.version(key)
        valid = self._valid.setdefault(key, {})
        if batch is None or version is None or valid.get(position) is version:
            return None
        if not self._logs.reaches(key, position):
            return None
        known = batch
        found = self._in_log(key, lambda log: (find_divergence(log, position, known),))
        if found == (None,):
            valid[position] = version
        return None if found is None else found[0]

    def note(self, positions: PartitionOffsets) -> None:
        """Look up the last batches below positions where they are not known yet."""
        if not self._is_needed:
            return
        for key, position in positions.items():
            known = self._known.setdefault(key, {})
            version = self._logs.version(key)
            if position in known or version is None:
                continue
            found: tuple[LastBatch | None] | None = (None,)
            if position > 0:
                found = self._in_log(key, functools.partial(_look_up, position, {**known}))
            if found is not None:
                known[position] = found[0]
                self._valid.setdefault(key, {})[position] = version

    def keep_only(self, *positions: PartitionOffsets) -> None:
        """Forget all positions but these of the partitions that they name."""
        for key in {key for each in positions for key in each} & self._known.keys():
            kept = {each[key] for each in positions if key in each}
            if self._known[key].keys() - kept:
                self._known[key] = {at: b for at, b in self._known[key].items() if at in kept}
                valid = self._valid.get(key, {})
                self._valid[key] = {at: seen for at, seen in valid.items() if at in kept}

    def batch(self, key: TopicPartition, position: int) -> LastBatch | None:
        """Return the last batch that was noted of a position; None without one."""
        return self._known.get(key, {}).get(position)

    def with_history(self, splits: Iterable[LogSplit], start: PartitionOffsets) -> list[LogSplit]:
        """Let the tasks look at the history again: a log may be cut before it is read."""
        found = []
        for split in splits:
            position = start.get(split.topic_partition, 0)
            batch = self.batch(split.topic_partition, position)
            found.append(split if batch is None else replace(split, history=(position, batch)))
        return found

    def known(self) -> dict[TopicPartition, dict[int, LastBatch]]:
        """Return all that is known, to be kept."""
        found = {
            key: {at: batch for at, batch in batches.items() if batch is not None}
            for key, batches in self._known.items()
        }
        return {key: batches for key, batches in found.items() if batches}

    def _in_log(self, key: TopicPartition, look: Callable[[PartitionLog], _T]) -> _T | None:
        """Look into a log; None where it cannot be read now: whoever reads it is told."""
        try:
            with self._logs.open(key) as log:
                return look(log)
        except (KafkaLogError, OSError):
            return None


def _look_up(
    position: int, known: Mapping[int, LastBatch | None], log: PartitionLog
) -> tuple[LastBatch | None]:
    """Return the last batch below a position that a reader comes to from one that is known.

    If the log was replaced since the last look, it is that of the known one: the comparison that
    follows finds another at the position.
    """
    found = find_last_batch(log, position)
    for at, batch in known.items():
        if batch is not None and at < position and find_divergence(log, at, batch) is not None:
            return (batch,)
    return (found,)


# ----------------------------------------------------------------------------------------------
# Where a query starts and, in a batch, ends: by options, and by positions of groups.


# ----------------------------------------------------------------------------------------------
# ``startingOffsets=group:<id>``: where a consumer group stands, from ``__consumer_offsets``.
#
# The topic is read from the same log directories, up to where it is committed. A broker that runs
# writes a commit to its log at once, and tells of it (the high watermark on the disk) seconds
# later.


def read_commits(
    paths: Iterable[str], group: str, *, to_log_end: bool
) -> Mapping[TopicPartition, CommittedOffset]:
    """Read all positions of a group, and what came with them.

    Raises:
        OptionError: it has none, or ``__consumer_offsets`` is not there.
        CorruptRecordError: its partition of that topic cannot be read.
    """
    # not at import: a query without a group need not wait for what reads a coordinator's log
    from kafkalog.streaming.coordinator.group_replay import (  # noqa: PLC0415
        partition_for_group,
        read_group_positions,
    )

    directories = list(paths)
    logs = EndOffsets(directories, lambda key: key.topic == OFFSETS_TOPIC, to_log_end=to_log_end)
    ends = logs.look().offsets
    partition = TopicPartition(OFFSETS_TOPIC, partition_for_group(group, _count(ends)))
    if partition not in ends:
        raise OptionError(
            f"positions of group {group!r} are kept in {partition}, which is not in "
            f"{', '.join(directories)}"
        )
    with logs.open(partition) as log:
        positions = read_group_positions(log, ends[partition], group=group)
    if group not in positions:
        raise OptionError(
            f"group {group!r} has committed nothing, by what {partition} in "
            f"{', '.join(directories)} says"
        )
    return positions[group]


def _count(ends: PartitionOffsets) -> int:
    """Return the topic's number of partitions; of several brokers' each has only some."""
    from kafkalog.streaming.coordinator.group_replay import (  # noqa: PLC0415
        DEFAULT_OFFSETS_PARTITIONS,
    )

    highest = max((key.partition for key in ends), default=-1) + 1
    return highest if highest == len(ends) and ends else max(highest, DEFAULT_OFFSETS_PARTITIONS)


# ----------------------------------------------------------------------------------------------
# Where a query starts and, in a batch, ends: options to offsets.
#
# If several options are given, the most precise one counts, as in Spark's Kafka source:
# ``startingTimestamp`` before ``startingOffsetsByTimestamp`` before ``startingOffsets``, and the
# same for the end.
#
# Source: Spark ``KafkaSourceProvider``, ``KafkaOffsetReaderAdmin``.


_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}
_GROUP_PREFIX: Final = "group:"


@dataclass(frozen=True, slots=True)
class Bound:
    """A start or an end: one number for all partitions, or one for each.

    The numbers are offsets (or ``EARLIEST``, ``LATEST``), or timestamps in ms; ``option`` is the
    option that gave them. Beside ``each``, ``topics`` has those that are given for all partitions
    of a topic. The positions of ``group``, where there is one, come before ``everywhere``.
    """

    option: str
    everywhere: int = LATEST
    each: Mapping[TopicPartition, int] | None = None
    topics: TopicOffsets = field(default_factory=dict)
    group: str = ""
    timestamps: bool = False

    def of(self, topic_partition: TopicPartition) -> int:
        """Return the number for a partition, which :func:`_check_named` has found to be named."""
        if self.each is None:
            return self.everywhere
        if topic_partition in self.each:
            return self.each[topic_partition]
        return self.topics[topic_partition.topic]

    def names(self, symbol: int) -> bool:
        """Whether ``EARLIEST`` or ``LATEST`` occurs in it."""
        if self.timestamps or self.group:
            return False
        if self.each is None:
            return self.everywhere == symbol
        return symbol in self.each.values() or symbol in self.topics.values()

    def is_earliest(self, topic_partition: TopicPartition) -> bool:
        """Whether it means the log start of a partition, unless a group has a position in it."""
        return not self.timestamps and self.of(topic_partition) == EARLIEST

    def is_open(self, topic_partition: TopicPartition, offset: int, end: int) -> bool:
        """Whether it became ``offset`` only because the log had its ``end`` there."""
        return offset == end and (self.timestamps or self.of(topic_partition) == LATEST)

    @property
    def moves(self) -> bool:
        """Whether it may mean other offsets when it is resolved again later."""
        return self.timestamps or bool(self.group) or self.names(LATEST)


def starting_bound(options: ReadOptions, *, default: int) -> Bound:
    """Read the start from the options; ``default`` is ``EARLIEST`` or ``LATEST``."""
    if options.starting_timestamp is not None:
        return Bound("startingTimestamp", options.starting_timestamp, timestamps=True)
    if options.starting_offsets_by_timestamp is not None:
        return _timestamps("startingOffsetsByTimestamp", options.starting_offsets_by_timestamp)
    given = options.starting_offsets or ""
    if given.lower().startswith(_GROUP_PREFIX):
        return _of_group("startingOffsets", given, default)
    return _offsets("startingOffsets", options.starting_offsets, default)


def _ending_bound(options: ReadOptions) -> Bound:
    if options.ending_timestamp is not None:
        return Bound("endingTimestamp", options.ending_timestamp, timestamps=True)
    if options.ending_offsets_by_timestamp is not None:
        return _timestamps("endingOffsetsByTimestamp", options.ending_offsets_by_timestamp)
    return _offsets("endingOffsets", options.ending_offsets, LATEST)


def batch_bounds(options: ReadOptions) -> tuple[Bound, Bound]:
    """Read start and end of a batch query.

    Raises:
        OptionError: it starts at latest or ends at earliest, anywhere; start and end name other
            partitions, or a start lies after its end.
    """
    start, end = starting_bound(options, default=EARLIEST), _ending_bound(options)
    if start.names(LATEST):
        raise OptionError(f"option {start.option!r} is latest (-1): a batch cannot start there")
    if end.names(EARLIEST):
        raise OptionError(f"option {end.option!r} is earliest (-2): a batch cannot end there")
    if start.each is not None and end.each is not None and start.timestamps == end.timestamps:
        _check_pair(start.each, end.each, start, end)
    if start.timestamps and end.timestamps and (start.each is None) != (end.each is None):
        for key in sorted(start.each or end.each or ()):
            _check_order(key, start, end)
    return start, end


def _check_pair(
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    start: Bound,
    end: Bound,
) -> None:
    by_topic = start.topics.keys() | end.topics.keys()
    unpaired = {key for key in starts.keys() ^ ends.keys() if key.topic not in by_topic}
    if unpaired:
        only = ", ".join(map(str, sorted(unpaired)))
        raise OptionError(
            "[MISMATCHED_TOPIC_PARTITIONS_BETWEEN_START_OFFSET_AND_END_OFFSET] options "
            f"{start.option!r} and {end.option!r} must name the same partitions; only one of them "
            f"names {only}"
        )
    for key in sorted(starts.keys() & ends.keys()):
        _check_order(key, start, end)


def _check_order(key: TopicPartition, start: Bound, end: Bound) -> None:
    if start.of(key) > end.of(key) >= 0:
        raise OptionError(
            f"[UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET] {key}: option "
            f"{start.option!r} ({start.of(key)}) lies after option {end.option!r} ({end.of(key)})"
        )


def resolve_start(
    bound: Bound,
    ends: PartitionOffsets,
    logs: EndOffsets,
    *,
    when_none: str,
    positions: Mapping[TopicPartition, int] = MappingProxyType({}),
) -> PartitionOffsets:
    """Turn a start into offsets of the partitions in ``ends``.

    ``positions`` are those of the bound's group. A partition without one starts at the default of a
    query without ``startingOffsets``. ``when_none`` is ``error`` or ``latest``: what to do if no
    record has the timestamp or a later one.

    Raises:
        OptionError: the bound names other partitions, or ``when_none`` is ``error`` and applies.
    """
    _check_named(bound, ends, " (use -2 for earliest, -1 for latest)")
    found: dict[TopicPartition, int] = {}
    for key, end in ends.items():
        if key in positions:
            offset: int | None = positions[key]
        elif bound.timestamps:
            offset = logs.offset_of_time(key, bound.of(key), end)
        else:
            offset = _resolve(bound, key, end, logs)
        if offset is None and when_none == "error":
            raise OptionError(
                f"{key} has no record with timestamp {bound.of(key)} ms or a later one (option "
                f"{bound.option!r}); to start at its end, set startingOffsetsByTimestampStrategy "
                "to latest"
            )
        found[key] = end if offset is None else offset
    return found


def resolve_end(bound: Bound, ends: PartitionOffsets, logs: EndOffsets) -> PartitionOffsets:
    """Turn an end into offsets of the partitions in ``ends``; without such a record, their end.

    Raises:
        OptionError: the bound names other partitions.
    """
    _check_named(bound, ends, " (use -1 for latest)")
    found: dict[TopicPartition, int] = {}
    for key, end in ends.items():
        offset = _resolve(bound, key, end, logs)
        found[key] = end if offset is None else offset
    return found


def _resolve(bound: Bound, key: TopicPartition, end: int, logs: EndOffsets) -> int | None:
    number = bound.of(key)
    if bound.timestamps:
        with logs.open(key) as log:
            found = log.offset_for_timestamp(number, end_offset=end)
        return found.offset if found is not None and found.offset < end else None
    if number == LATEST:
        return end
    return logs.log_start(key) if number == EARLIEST else number


def _check_named(bound: Bound, ends: PartitionOffsets, symbols: str) -> None:
    if bound.each is None:
        return
    unnamed = {key for key in ends.keys() - bound.each.keys() if key.topic not in bound.topics}
    unread = bound.each.keys() - ends.keys()
    unread_topics = bound.topics.keys() - {key.topic for key in ends}
    if not unnamed and not unread and not unread_topics:
        return
    # Spark's name for ends, too
    kind, symbols = ("TIMESTAMP", "") if bound.timestamps else ("START", symbols)
    missing = ", ".join(map(str, sorted(unnamed))) or "none"
    extra = ", ".join([*map(str, sorted(unread)), *sorted(unread_topics)]) or "none"
    raise OptionError(
        f"[KAFKA_{kind}_OFFSET_DOES_NOT_MATCH_ASSIGNED] option {bound.option!r} must name exactly "
        f"the partitions that are read{symbols}: missing {missing}; not read {extra}"
    )


def _offsets(option: str, text: str | None, default: int) -> Bound:
    if text is None:
        return Bound(option, default)
    word = _WORDS.get(text.lower())
    if word is not None:
        return Bound(option, word)
    each, topics = parse_offsets(option, text)
    return Bound(option, each=each, topics=topics)


def _of_group(option: str, text: str, default: int) -> Bound:
    group = text[len(_GROUP_PREFIX) :].strip()
    if not group:
        raise OptionError(f"option {option!r} is {text!r}, but accepts group: and a group's id")
    return Bound(option, default, group=group)


def _timestamps(option: str, text: str) -> Bound:
    return Bound(option, each=parse_partition_times(option, text), timestamps=True)


# ----------------------------------------------------------------------------------------------
# Where a query starts in each partition if ``startingOffsets`` names a consumer group.


_LOGGER = logging.getLogger("kafkalog.source")


def starting_positions(
    options: ReadOptions, group: str, partitions: Iterable[TopicPartition], logs: EndOffsets
) -> PartitionOffsets:
    """Return a group's positions in the partitions that a query reads; none without a group.

    In a topic that was recreated since it starts at the log start, as its members do. ``logs`` are
    those of the query, which have looked.

    Raises:
        OptionError: the group has committed nothing, or nothing in these partitions.
        DataLossError: a log has another history than the group has read, and the query fails then.
    """
    if not group:
        return {}
    committed = read_commits(options.paths, group, to_log_end=options.read_up_to == "logEnd")
    read = list(partitions)
    found = {key: _start_of(key, committed[key], logs) for key in read if key in committed}
    found |= _cuts(options, found, committed, logs)
    if read and not found:
        where = ", ".join(map(str, sorted(committed)[:10]))
        raise OptionError(
            f"option 'startingOffsets': group {group!r} has committed nothing in the partitions "
            f"that are read, only in {where}"
        )
    unknown = [str(key) for key in read if key not in found]
    if unknown:
        _LOGGER.warning(
            "group %r has committed nothing in %s, which start where they do without "
            "startingOffsets: %s",
            group,
            many(len(unknown), "partition"),
            ", ".join(unknown[:10]),
        )
    return found


def _cuts(
    options: ReadOptions,
    found: PartitionOffsets,
    committed: Mapping[TopicPartition, CommittedOffset],
    logs: EndOffsets,
) -> PartitionOffsets:
    """Return where logs were cut whose history is another one than the group has read.

    Raises:
        DataLossError: there is one, and the query fails then.
    """
    validator = PositionValidator(logs)
    for key, position in committed.items():
        validator.add(key, position.offset, last_batch_of(position))
    diverged = validator.find_diverged(found)
    LossPolicy.of(options).history_changed(diverged)
    return {key: each.cut_at for key, each in diverged.items() if each.cut_at is not None}


def _start_of(key: TopicPartition, position: CommittedOffset, logs: EndOffsets) -> int:
    ids = logs.topic_ids()
    if is_of_earlier_topic(key, position.metadata, ids, logs.is_changed_id):
        return logs.log_start(key)
    return position.offset


# ----------------------------------------------------------------------------------------------
# Where a stream is to end: ``endingTimestamp`` and ``stopAtOffsets``.
#
# Spark's Kafka source ignores ``endingTimestamp`` in a stream. Here the stream reads up to there
# and no further. With ``Trigger.AvailableNow`` it has ended then. With other triggers it stays
# idle, as no source can end a query.


class StreamEnd:
    """Cuts ends to where the query is to end.

    By timestamp, a partition ends at its first record, by offset, with this timestamp or a later
    one, as in a batch. While a partition has no such record, all of it is read. Each time that it
    has grown, its time index is asked again.
    """

    def __init__(self, timestamp: int | None, offsets: PartitionOffsets) -> None:
        self._timestamp = timestamp
        self._offsets = offsets
        self._found: dict[TopicPartition, int] = {}
        self._searched: dict[TopicPartition, int] = {}
        self._said = False

    @classmethod
    def of(cls, options: ReadOptions, subscription: Subscription) -> StreamEnd | None:
        """Read the end from the options; None if the query has none.

        A partition may be named that does not exist yet.

        Raises:
            OptionError: ``stopAtOffsets`` is no JSON of offsets, or names what is never read.
        """
        if options.ending_timestamp is None and options.stop_at_offsets is None:
            return None
        text = options.stop_at_offsets
        offsets = {} if text is None else parse_partition_longs("stopAtOffsets", text, 0)
        unread = [str(key) for key in sorted(offsets) if not subscription.selects(key)]
        if unread:
            raise OptionError(
                f"option 'stopAtOffsets' names what the query does not read: {', '.join(unread)}"
            )
        return cls(options.ending_timestamp, offsets)

    def clip(
        self, start: Mapping[TopicPartition, int], ends: PartitionOffsets, logs: EndOffsets
    ) -> PartitionOffsets:
        """Return the ends to read up to, none of them below ``start``."""
        bounds = {key: self._bound(key, end, logs) for key, end in ends.items()}
        clipped = {
            key: max(min(end, bounds[key]), min(end, start.get(key, 0)))
            for key, end in ends.items()
        }
        if not self._said and ends and all(start.get(key, -1) >= bounds[key] for key in ends):
            self._said = True
            _LOGGER.info(
                "all partitions are read up to where the query is to end: %s",
                json.dumps(to_json(bounds)),
            )
        return clipped

    def forget(self, keys: Iterable[TopicPartition]) -> None:
        """Search again in partitions whose topics were recreated."""
        for key in keys:
            self._found.pop(key, None)
            self._searched.pop(key, None)

    def _bound(self, key: TopicPartition, end: int, logs: EndOffsets) -> int:
        by_offset = self._offsets.get(key, end + 1)
        return min(by_offset, self._by_timestamp(key, end, logs))

    def _by_timestamp(self, key: TopicPartition, end: int, logs: EndOffsets) -> int:
        """Return the first offset that is not read any more; one beyond the end if unknown."""
        if self._timestamp is None:
            return end + 1
        if end < max(self._found.get(key, 0), self._searched.get(key, 0)):  # recreated, or cut
            self.forget([key])
        if key not in self._found and end != self._searched.get(key):
            self._search(key, end, self._timestamp, logs)
        return self._found.get(key, end + 1)

    def _search(self, key: TopicPartition, end: int, timestamp: int, logs: EndOffsets) -> None:
        try:
            with logs.open(key) as log:
                record = log.offset_for_timestamp(timestamp, end_offset=end)
        except UnknownTopicOrPartitionError:  # deleted since: planning says what is lost
            return
        if record is not None and record.offset < end:
            self._found[key] = record.offset
        else:
            self._searched[key] = end
