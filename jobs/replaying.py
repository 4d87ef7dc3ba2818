"""Play a range of topics again, at the pace of its timestamps or another one.

**Pieces.** The range is cut by time. What lies before a time, in each partition's order, is due
then. What is due is one batch job of Spark, from offsets to offsets. So nothing is held back in
memory, and partitions keep their order: a record with a later time than those after it holds them
up.

**Exactly once into a log.** With a checkpoint a piece is written down before it is played. The
commit state of the target keeps, by the rename that makes rows visible, how far this replay is
(:class:`~kafkalog.checkpoints.commit_state.TopicOrigin`). A piece continues there, whatever the
checkpoint knows (:mod:`~kafkalog.jobs.continuation`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import kafkalog
from kafkalog.errors import DataLossError, OptionError
from kafkalog.files.system import system
from kafkalog.jobs.continuation import first_offsets
from kafkalog.jobs.copied_logs import SourceLogs
from kafkalog.jobs.restore_plan import NO_END, Until
from kafkalog.model import partition_counts
from kafkalog.streaming.options.quantities import shown_time
from kafkalog.streaming.source.end_offsets import EndOffsets
from kafkalog.streaming.source.loss import LossPolicy
from kafkalog.streaming.source.offsets import to_json
from kafkalog.streaming.source.read_options import ReadOptions
from kafkalog.streaming.source.subscription import Subscription

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from kafkalog.jobs.continuation import PlannedBatch, TargetState, WaysOn
    from kafkalog.jobs.replay_checkpoint import Piece, ReplayCheckpoint
    from kafkalog.model import TopicPartition
    from kafkalog.streaming.source.offsets import PartitionOffsets

__all__ = ["NO_OFFSETS", "Replay", "parse_speed"]

NO_OFFSETS: Final[Mapping[TopicPartition, int]] = MappingProxyType({})

_COLUMNS: Final = (
    "topic STRING, partition INT, offset BIGINT, timestamp BIGINT, key BINARY, value BINARY, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
_LOOK_SECONDS: Final = 0.2
_OFFSETS_PER_PIECE: Final = 2_000_000
"""What is played again at most after a kill, and waited for when the job is asked to end."""


def parse_speed(text: str) -> float | None:
    """Read how fast time passes in a range: 2 is twice as fast as it did; None is ``max``.

    Raises:
        OptionError: neither a number above 0 nor ``max``.
    """
    if text == "max":
        return None
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0 < speed < float("inf"):
        raise OptionError(f"--speed is {text!r}, expected a number above 0, or max")
    return speed


@dataclass(frozen=True, kw_only=True)
class Replay:
    """What is played.

    Args:
        log: the log directory, or several with commas between them; also remote ones.
        topics: which topics.
        since: where to begin; each partition at its log start, unless it is given.
        until: where to end; each partition where its log ends now, unless it is given.
        follow: play what comes later, too.
        speed: how fast time passes, see :func:`parse_speed`.
        options: of the source.
        most: how many offsets a piece has at most.
    """

    log: str
    topics: tuple[str, ...]
    since: Until = NO_END
    until: Until = NO_END
    follow: bool = False
    speed: float | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    most: int = _OFFSETS_PER_PIECE

    @property
    def name(self) -> str:
        """What this is called."""
        return f"replay {','.join(self.topics)}"

    @property
    def paths(self) -> tuple[str, ...]:
        """The log directories that are on this machine."""
        return tuple(path for path in self._parsed().paths if isinstance(path, str))

    def check(self) -> None:
        """Check what was given, before Spark starts.

        Raises:
            OptionError, InvalidTopicError, UnknownTopicOrPartitionError: it cannot be used.
        """
        if self.follow and self.until != NO_END:
            raise OptionError("--follow has no end: leave out --until")
        begin, end = self.since.time_ms, self.until.time_ms
        if begin is not None and end is not None and end <= begin:
            raise OptionError(
                f"--until {shown_time(end)} leaves nothing: --from is {shown_time(begin)}"
            )
        parsed = self._parsed()
        parsed.refuse_for_streaming()
        _refuse_other_range(parsed)
        logs = self._logs
        ends = logs.look()
        Subscription.of(parsed).require_topics(logs.existing(), parsed.paths)
        for option, place in (("--from", self.since), ("--until", self.until)):
            if unknown := place.offsets.keys() - ends.keys():
                raise OptionError(f"{option} names {min(unknown)}, which is not in what is played")

    def partition_counts(self) -> dict[str, int]:
        """Return how many partitions each topic has."""
        return partition_counts(self._logs.look())

    def plan(self, piece: Piece, held: TargetState, ways: WaysOn) -> tuple[Piece, PlannedBatch]:
        """Decide what of a piece a target is to get, of which it holds so much.

        Raises:
            TargetMismatchError: the piece does not continue the target.
            KafkaLogError: a log is not as it should be.
        """
        ranges = {
            key: (None if key in piece.begins else piece.start[key], end)
            for key, end in piece.end.items()
        }
        source = self._source
        planned = source.planned(ranges, held)
        first = first_offsets(held, planned, ways, is_changed_id=source.is_changed_id)
        end = {key: planned.ranges[key][1] for key in piece.end}
        start = {key: min(max(at, first[key]), end[key]) for key, at in piece.start.items()}
        return piece._replace(start=start, end=end), planned

    def pieces(
        self, checkpoint: ReplayCheckpoint, held: PartitionOffsets = NO_OFFSETS
    ) -> Iterator[Piece | None]:
        """Yield each piece when it is due; None after a look, a moment later, at which none was.

        What a checkpoint has begun comes first. A piece is noted as begun before it is yielded. Who
        plays it notes that it has ended. What the target ``held`` at the beginning is not due.
        """
        logs = self._logs
        end = self._ends(logs, checkpoint.reached)
        self._check_ids(logs, checkpoint)
        if checkpoint.begun is not None:
            yield checkpoint.begun
        pace, policy = _Pace(self), LossPolicy(fail=self._parsed().fail_on_data_loss)
        reached, said = dict(checkpoint.reached), None
        for key, offset in held.items():
            reached[key] = max(offset, reached.get(key, 0))
        while True:
            if (losses := _losses(reached, logs)) != said:
                policy.partitions_deleted(losses[0])
                policy.ends_before_start(losses[1], logs.ends.offsets)
                said = losses
            end = {key: max(end[key], reached.get(key, 0)) for key in end}
            at = {
                key: reached[key] if key in reached else self._start(logs, key, end[key])
                for key in end
            }
            due = self._cut(at, pace.due(logs, at, end))
            if due != at:
                begins = frozenset(at.keys() - reached.keys())
                yield checkpoint.note_begin({**reached, **at}, {**reached, **due}, begins)
                reached = {**reached, **due}
            elif not self.follow and at == end:
                return
            else:
                yield None
                system.sleep(_LOOK_SECONDS)
            if self.follow:
                end = self._ends(logs, reached)
                self._check_ids(logs, checkpoint)

    @staticmethod
    def _check_ids(logs: EndOffsets, checkpoint: ReplayCheckpoint) -> None:
        """Refuse topics that were deleted and recreated: the offsets are of other records."""
        now = {key.topic: known for key, known in logs.topic_ids().items() if known is not None}
        for topic, topic_id in now.items():
            before = checkpoint.ids.get(topic, topic_id)
            if before != topic_id and not logs.is_changed_id(topic, before, topic_id):
                raise DataLossError(
                    f"topic {topic!r} was deleted and recreated: what was played is of the topic "
                    f"with id {before}, and {topic_id} is there. Give another --checkpoint"
                )
        checkpoint.ids = {**checkpoint.ids, **now}

    def rows(self, spark: SparkSession, piece: Piece) -> DataFrame:
        """Read the records of a piece."""
        reader = spark.read.format("kafkalog").schema(_COLUMNS)
        start = {key: at for key, at in piece.start.items() if at < piece.end[key]}
        between = _between(start, {key: piece.end[key] for key in start})
        numbers = {
            topic: [int(number) for number in offsets] for topic, offsets in to_json(start).items()
        }
        between = {**between, "assign": json.dumps(numbers)}
        del between["subscribe"]
        return reader.options(**self.options, **between).load(self.log)

    def first_time(self, at: PartitionOffsets, end: PartitionOffsets) -> int | None:
        """Return the earliest of the times (ms) of the partitions' next records; None: no records.

        What comes first in a partition counts, not what is the earliest in it.
        """
        found = []
        for key in at:
            alone = {**end, key: at[key]}
            options = {**self.options, **_between(alone, end)}
            options.pop("subscribe")
            options["onTimestampOverflow"] = "null"
            rows = kafkalog.read(self.log, self.topics, columns=["timestamp"], options=options)
            for batch in rows:
                if batch.num_rows:
                    micros = batch.column(0)[0].value  # None for what a pace knows no wait to
                    found += [] if micros is None else [micros // 1000]
                    break
        return min(found, default=None)

    @cached_property
    def _source(self) -> SourceLogs:
        return SourceLogs(self._parsed())

    @cached_property
    def _logs(self) -> EndOffsets:
        parsed = self._parsed()
        return EndOffsets.of(parsed, Subscription.of(parsed).selects)

    def _start(self, logs: EndOffsets, key: TopicPartition, end: int) -> int:
        if self.since.time_ms is not None:
            found = logs.offset_of_time(key, self.since.time_ms, end)
            return end if found is None else found
        return min(self.since.offsets.get(key, logs.log_start(key)), end)

    def _ends(self, logs: EndOffsets, reached: PartitionOffsets) -> dict[TopicPartition, int]:
        """Look where the range ends now, of which so much was played."""
        ends = {}
        for key, end in logs.look(reached).items():
            ends[key] = min(self.until.offsets.get(key, end), end)
            if self.until.time_ms is not None:
                ends[key] = _offset_at(logs, key, self.until.time_ms, end)
        return ends

    def _cut(self, at: PartitionOffsets, due: PartitionOffsets) -> dict[TopicPartition, int]:
        """Bound what is due to a piece."""
        share = max(1, self.most // max(1, sum(due[key] > at[key] for key in due)))
        return {key: max(at[key], min(end, at[key] + share)) for key, end in due.items()}

    def _parsed(self) -> ReadOptions:
        chosen = {"path": self.log, "subscribe": ",".join(self.topics)}
        return ReadOptions.parse({**self.options, **chosen})


class _Pace:
    """Tells what is due: time passes from the first record on, when it is first looked at."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._first_ms: int | None = None
        self._began = 0.0

    def due(
        self, logs: EndOffsets, at: PartitionOffsets, end: PartitionOffsets
    ) -> PartitionOffsets:
        """Return up to where records are due now; up to ``end`` at most."""
        speed = self._replay.speed
        if speed is None or not any(end[key] > at[key] for key in end):
            return end
        if self._first_ms is None:
            self._first_ms = self._replay.first_time(at, end)
            self._began = system.monotonic()
        if self._first_ms is None:  # nothing but gaps
            return end
        passed_ms = int((system.monotonic() - self._began) * 1000 * speed)
        now = self._first_ms + passed_ms + 1
        return {key: max(at[key], _offset_at(logs, key, now, end[key])) for key in end}


def _refuse_other_range(options: ReadOptions) -> None:
    """Refuse options by which each piece would be read from, or up to, elsewhere."""
    given = {
        "startingOffsets": options.starting_offsets,
        "startingOffsetsByTimestamp": options.starting_offsets_by_timestamp,
        "startingTimestamp": options.starting_timestamp,
        "stopAtOffsets": options.stop_at_offsets,
        "endingTimestamp": options.ending_timestamp,
    }
    for name, value in given.items():
        if value is not None:
            way = "--from says where to begin" if "start" in name else "--until says where to end"
            raise OptionError(f"option {name!r} is not for a replay: {way}")


def _losses(
    reached: PartitionOffsets, logs: EndOffsets
) -> tuple[PartitionOffsets, PartitionOffsets]:
    """Return up to where partitions were played that are gone, and those that end below that.

    A log that goes so far has lost nothing: for a while after it has started, a broker writes down
    less than before of what is committed.
    """
    end = logs.ends.offsets
    gone = {key: at for key, at in reached.items() if key not in end}
    short = {key: at for key, at in reached.items() if key in end and end[key] < at}
    if logs.lacks_majority():  # others may have committed as much
        return gone, {}
    return gone, {key: at for key, at in short.items() if not logs.reaches(key, at)}


def _offset_at(logs: EndOffsets, key: TopicPartition, time_ms: int, end: int) -> int:
    """Return the offset of a partition's first record of a time or a later one; else ``end``."""
    with logs.open(key) as log:
        found = log.offset_for_timestamp(time_ms, end_offset=end)
    return end if found is None else min(found.offset, end)


def _between(start: PartitionOffsets, end: PartitionOffsets) -> dict[str, str]:
    """Return the options of the source that read from offsets to offsets (exclusive)."""
    return {
        "subscribe": ",".join(sorted({key.topic for key in start})),
        "startingOffsets": json.dumps(to_json(start)),
        "endingOffsets": json.dumps(to_json(end)),
    }
