"""Offsets of a streaming query: its start, what is new, what the next batch takes.

One instance lives as long as the query runs, in a process of its own beside the driver. It knows no
Spark: :mod:`~kafkalog.streaming.spark.readers` is the thin layer between.

What the Python API does not offer, and how it is met:

* Spark does not keep the initial offset. If the first batch fails, the query is started again with
  a new one. A start that may mean other offsets by then is ``latest``, a timestamp or a group's
  positions. An empty first batch fixes it: it ends where it starts, and Spark keeps that end.
* Offsets that are logged but not committed are planned again after a restart, before anything else
  is asked. Such a batch is not compared with what the log directories hold today.

In which order Spark asks, and what follows from it: :class:`Phase`.

Source: Spark ``KafkaMicroBatchStream``.
"""

from __future__ import annotations

import json
import logging
import math
from collections import deque
from enum import Enum, auto
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from kafkalog.errors import UnknownTopicOrPartitionError
from kafkalog.files.deferred_signals import shielded_step
from kafkalog.files.storage import RemoteRoot
from kafkalog.files.system import system
from kafkalog.streaming.options.bridge import crosses_border
from kafkalog.streaming.source.admission import BatchLimits, IdlePacer
from kafkalog.streaming.source.arguments import seconds
from kafkalog.streaming.source.end_offsets import CompletenessCheck, EndOffsets, StalledLogEnds
from kafkalog.streaming.source.loss import (
    LossPolicy,
    TopicIds,
    load_last_batches,
    refuse_lost_targets,
    save_last_batches,
    with_remedy,
)
from kafkalog.streaming.source.offsets import LATEST, to_json
from kafkalog.streaming.source.planner import LogSplit, plan_splits, readable_ranges
from kafkalog.streaming.source.start import (
    PositionValidator,
    StreamEnd,
    resolve_start,
    starting_bound,
    starting_positions,
)
from kafkalog.streaming.source.subscription import Subscription
from kafkalog.streaming.store.ends.rule import OffsetGap
from kafkalog.texts import shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.history import Divergence
    from kafkalog.streaming.options.read_options import ReadOptions
    from kafkalog.streaming.source.loss import Recreated
    from kafkalog.streaming.source.offsets import PartitionOffsets
    from kafkalog.streaming.source.schema import ReadRows, RowSchema


__all__ = ["NewRows", "Phase", "StreamControl", "new_splits"]


# ----------------------------------------------------------------------------------------------
# Where a run of a streaming query stands, by what Spark has asked of its source so far.
#
# Spark asks in this order:
#
# ====================================  ============================================================
# ``prepareForTriggerAvailableNow``     with that trigger only: read what is there at the first look
# ``initialOffset``                     without a checkpoint only
# ``partitions(start, end)``            with a checkpoint whose last batch was planned and not
#                                       committed: that batch once more, before anything else
# ``latestOffset(start, limit)``        where the next batch ends
# ``partitions(start, end)``            what its tasks read
# ``commit(end)``                       the batch is written; it comes late, and not after the last
# ====================================  ============================================================
#
# The phases that follow from it, each once and in this order:
#
# =================  ==============================================================================
# ``INITIAL``        nothing was planned or asked for yet. If the first question comes with the
#                    offsets that ``initialOffset`` gave, the query has no checkpoint
# ``REPLAYING``      a batch was planned that an earlier run has decided on. It is read as it was
#                    decided, whatever is there today
# ``RUNNING``        ends are those of the last look
# ``AVAILABLE_NOW``  ends are those of the first look, and have to stay there
# ``ENDED``          all of these are reached. What comes now is for the next run, and nothing is
#                    looked at any more
# =================  ==============================================================================


class Phase(Enum):
    """Where a run stands."""

    INITIAL = auto()
    REPLAYING = auto()
    RUNNING = auto()
    AVAILABLE_NOW = auto()
    ENDED = auto()

    @property
    def has_started(self) -> bool:
        """Whether Spark has asked where a batch of this run ends."""
        return self not in {Phase.INITIAL, Phase.REPLAYING}


# ----------------------------------------------------------------------------------------------

_LOGGER = logging.getLogger("kafkalog.source")


_LONGEST_SHOWN: Final = 2_000
"""Characters of offsets in a line: some hundred partitions. The checkpoint has all."""


def _shown(offsets: PartitionOffsets) -> str:
    """Return offsets as options take them; of very many partitions only how it begins."""
    text = shortened(all_of_them := json.dumps(to_json(offsets)), _LONGEST_SHOWN)
    return text if text == all_of_them else f"{text} ({len(offsets):,} partitions)"


def _poll_interval_s(options: ReadOptions) -> float:
    """Return the seconds between two looks at a log in a bucket; infinite where there is none."""
    buckets = (path for path in options.paths if isinstance(path, RemoteRoot))
    return min((path.options.poll_interval_ms / 1000 for path in buckets), default=math.inf)


class StreamControl:
    """Answers what Spark asks of a streaming source, in the order in which Spark asks it."""

    def __init__(self, options: ReadOptions, *, reads_at_once: bool = False) -> None:
        """Check the options of a streaming query.

        ``reads_at_once``: the first batch may be the only one, and nothing tells. So it reads.

        Raises:
            OptionError: one that cannot be used in a stream, or that names nothing.
        """
        options.refuse_for_streaming()
        self._options = options
        self._reads_at_once = reads_at_once
        self._start = starting_bound(options, default=LATEST)
        self._subscription = Subscription.of(options)
        self._end = StreamEnd.of(options, self._subscription)
        self._logs = EndOffsets.of(options, self._subscription.selects)
        self._ids = TopicIds(options.state_location, self._logs.is_changed_id)
        kept = load_last_batches(options.state_location)
        is_kept = options.state_location is not None
        self._validator = PositionValidator(self._logs, kept, is_kept=is_kept)
        self._diverged: dict[TopicPartition, Divergence] = {}
        """What the last look found of them, where the query continues in spite of a loss."""
        self._policy = LossPolicy.of(options)
        self._whole = CompletenessCheck(self._logs, options, self._policy)
        self._pacer = IdlePacer(longest_rest_s=_poll_interval_s(options))
        self._limits = BatchLimits.of(options)
        self._initial: PartitionOffsets | None = None
        self._initial_ends: PartitionOffsets = {}
        """The ends of the look by which the start was found."""
        self._recreated: dict[TopicPartition, Recreated] = {}
        self._cut: dict[TopicPartition, OffsetGap] = {}
        self._held: PartitionOffsets = {}
        self._noted: tuple[PartitionOffsets, PartitionOffsets] | None = None
        self._stuck = StalledLogEnds()
        self.phase = Phase.INITIAL
        self._phase_of_questions = Phase.RUNNING
        """The phase that begins when Spark asks where a batch ends."""
        self._targets: PartitionOffsets | None = None
        """The ends that are read up to, from the first look of ``AVAILABLE_NOW`` on."""
        self.latest: PartitionOffsets = {}
        """The ends as of the last look."""

    def initial(self) -> PartitionOffsets:
        """Resolve where a query without a checkpoint starts; the same at every call.

        Raises:
            UnknownTopicOrPartitionError: a topic of ``subscribe`` does not exist.
            OptionError: the start names other partitions than are read.
        """
        if self._initial is None:
            self._look_for_initial()
            self._subscription.require_topics(
                self._logs.existing(), self._options.paths, wait=self._options.wait_for_topics
            )
            self._initial = self._whole.retries.plan(
                lambda _: self._resolved(self._initial_ends),
                self._policy,
                again=self._look_for_initial,
                lost=UnknownTopicOrPartitionError,  # perhaps a replica that moves
            )
            _LOGGER.info("%s starts at %s", self._start.option, _shown(self._initial))
        return self._initial

    def _look_for_initial(self) -> None:
        self._initial_ends = self._whole.look(lambda: self._look({}))

    def _resolved(self, ends: PartitionOffsets) -> PartitionOffsets:
        return resolve_start(
            self._start,
            ends,
            self._logs,
            when_none=self._options.starting_timestamp_strategy,
            positions=starting_positions(self._options, self._start.group, ends, self._logs),
        )

    def freeze_targets(self) -> None:
        """Read only what is there at the first look (``Trigger.AvailableNow``)."""
        self._phase_of_questions = Phase.AVAILABLE_NOW
        if self.phase is Phase.RUNNING:
            self.phase = Phase.AVAILABLE_NOW

    def next_end(self, start: PartitionOffsets, *, take_all: bool) -> PartitionOffsets:
        """Return the end of the next batch; ``start`` itself if there is none to be run now.

        ``take_all`` is for ``Trigger.Once``, which reads all there is whatever the limits.

        Raises:
            DataLossError: partitions are gone or end before ``start``, and the query fails then.
            CheckpointError: ``stateLocation`` cannot be written.
        """
        if self.phase is Phase.ENDED:
            return start
        self._pacer.asked()
        end: PartitionOffsets | None = None
        while True:
            self._pacer.before_look()
            if (
                end is None
                or self._limits.may_hold_back
                or self._logs.look().offsets is not self.latest
            ):
                end = self._next_end(start, take_all=take_all)
            self._note(start, end)
            if self.phase is Phase.AVAILABLE_NOW and end == start == self._targets:
                self.phase = Phase.ENDED
                return end
            if not self._pacer.after_look(idle=end == start):
                return end

    def _note(self, start: PartitionOffsets, end: PartitionOffsets) -> None:
        """Know the last batches below what Spark is told, and below what its checkpoint has."""
        if self._noted is not None and (self._noted[0] is start and self._noted[1] is end):
            return
        self._validator.note(end)
        self._validator.keep_only(start, end)
        self._validator.forget(self._validator.known().keys() - end.keys() - start.keys())
        save_last_batches(self._options.state_location, self._validator.known())
        self._noted = start, end

    def batch_ran(self) -> None:
        """Take note that the query has run a batch, with something new from any of its sources."""
        self._pacer.batch_ran()

    def stop(self) -> None:
        """Do nothing: nothing is held open between calls."""

    def _next_end(self, start: PartitionOffsets, *, take_all: bool) -> PartitionOffsets:
        # The phase moves on before the look, which may fail: the next question is not the first.
        # Ids of topics are kept after the look and before Spark is told the end, and new ones only
        # with offsets of the new topic: wherever the process is stopped, what is kept is not ahead
        # of the checkpoint.
        is_fresh = self.phase is Phase.INITIAL and start == self._initial
        if not is_fresh:
            self._say_continues(start)
        if not self.phase.has_started:
            self.phase = self._phase_of_questions
        if is_fresh:
            self._ids.start_again()
            self._validator.start_again()
        ends = self._ends_after(start, is_fresh=is_fresh)
        recreated = {} if is_fresh else self._restarts(start, ends)
        self._ids.adopt(start, self._logs.topic_ids(), but=recreated)
        recreated = {**self._continued(start, ends), **recreated}
        reads_at_once = take_all or self._reads_at_once
        if is_fresh and self._start.moves and not reads_at_once:
            return start  # an empty batch keeps a start that may mean other offsets later
        if is_fresh and self._start.moves:
            ends = self._without_open(start, ends)
        if not ends:
            return start
        ends = {**ends, **recreated}
        known = {**start, **recreated}
        # a new partition that is gone already stays, for planning to say so
        begin = {
            key: known[key] if key in known else self._logs.log_start_if_there(key) or 0
            for key in ends
        }
        if take_all:
            return ends
        may_wait = self.phase is Phase.RUNNING
        cut = self._limits.cut(begin, ends, self._logs, may_hold_back=may_wait)
        return start if cut is None else cut

    def plan(self, start: PartitionOffsets, end: PartitionOffsets) -> list[LogSplit]:
        """Cut a batch into splits. May be called more than once for the same batch.

        What seems lost is looked at again before it counts.

        Raises:
            DataLossError: offsets of the batch are gone, and the query fails then.
        """
        is_replayed = not self.phase.has_started
        if is_replayed and start != self._initial:
            self._say_continues(start)
        if is_replayed:
            self.phase = Phase.REPLAYING
        if is_replayed and start == self._initial:
            # The first batch again, after a failure: the start is resolved again and may lie
            # after the end that was kept, or name partitions that are new since.
            start = {key: min(offset, end[key]) for key, offset in start.items() if key in end}
        # REQUIRES: no targets are set while a batch is replayed, which is of an earlier run.
        is_target = self._targets is not None
        return self._whole.retries.plan(
            lambda policy: self._plan(start, end, policy, is_target=is_target), self._policy
        )

    def _plan(
        self, start: PartitionOffsets, end: PartitionOffsets, policy: LossPolicy, *, is_target: bool
    ) -> list[LogSplit]:
        # Offsets were decided by an earlier look, perhaps of an earlier run. They are held against
        # the logs as they are now; topic ids and log starts are those of this one look.
        available = self._logs.look(end).offsets
        planned = self._waiting(end, available)
        stable = {key: at for key, at in planned.items() if self._logs.is_stable(key, at)}
        available = {**available, **stable}
        gone = self._recreated_since(start, end)
        if is_target:
            absent = self._absent(start, available)
            due = {key: at for key, at in end.items() if absent.get(key) != at}
            refuse_lost_targets(due, available, gone)
        for key, offset in gone.items():
            policy.range_not_readable(key, offset, end[key], "its topic was recreated")
        diverged = self._find_diverged(start, end)
        policy.history_changed({key: each for key, each in diverged.items() if key not in gone})
        self._validator.forget(diverged)
        start = {**start, **{key: end[key] for key in gone}}
        ranges = readable_ranges(start, end, available, self._logs, policy)
        splits = plan_splits(ranges, self._options, self._logs, policy)
        return self._validator.with_history(splits, start)

    def _say_continues(self, start: PartitionOffsets) -> None:
        """Say once where a query with a checkpoint continues, whatever the options say."""
        if self.phase is Phase.INITIAL:
            _LOGGER.info("continues as its checkpoint says at %s", _shown(start))

    def _without_open(self, start: PartitionOffsets, ends: PartitionOffsets) -> PartitionOffsets:
        """Let partitions that start at the end of their logs end there, too: that keeps the start.

        For a first batch that may be the only one, as with ``Trigger.Once``: there is next to
        nothing to read of them. Partitions that have come since are left to the next batch, to
        which they are new.
        """
        found = self._initial_ends
        return {
            key: start[key] if self._start.is_open(key, start[key], found[key]) else end
            for key, end in ends.items()
            if key in start
        }

    def _ends_after(self, start: PartitionOffsets, *, is_fresh: bool) -> PartitionOffsets:
        """Return the ends to read up to; what seems lost is looked at again before it counts."""
        if self._targets is not None:
            return self._targets

        def is_whole(ends: PartitionOffsets) -> bool:
            if any(key not in ends or ends[key] < offset for key, offset in start.items()):
                return False
            lost = self._logs.ends.lost
            return not self._find_diverged(start) and (not lost or lost == self._cut)

        def look() -> PartitionOffsets:
            return self._look(start)

        ends = self._whole.retries.look(lambda: self._whole.look(look), is_whole, again=look)
        absent = self._absent(start, ends)
        ends = {**ends, **absent} if absent else ends
        if self._policy.fails:  # now, before Spark writes down an end that cannot be continued from
            if not is_fresh:
                self._restarts(start, ends)
            self._policy.partitions_deleted({key: start[key] for key in start if key not in ends})
            self._policy.ends_before_start(start, ends)
        self._diverged = self._find_diverged(start)
        self._policy.history_changed(self._diverged)
        self._say_cut_logs()
        if self._end is not None:
            ends = self._end.clip(start, ends, self._logs)
        if self.phase is Phase.AVAILABLE_NOW:
            self._targets = ends
        return ends

    def _find_diverged(self, *positions: PartitionOffsets) -> dict[TopicPartition, Divergence]:
        """Find positions whose logs have another history; one of another topic is no position."""
        found = self._validator.find_diverged(*positions)
        ids = self._logs.topic_ids()
        others = [key for key in found if self._ids.is_other(key, ids.get(key))]
        return {key: each for key, each in found.items() if key not in others}

    def _continued(self, start: PartitionOffsets, ends: PartitionOffsets) -> PartitionOffsets:
        """Return where partitions continue that have another history, if that is not ``start``.

        A micro-batch that ends there reads nothing of them, as of topics that were recreated.
        """
        diverged, self._diverged = self._diverged, {}
        self._validator.forget(diverged)
        found = {key: min(each.cut_at or start[key], ends[key]) for key, each in diverged.items()}
        found = {key: max(at, self._logs.log_start_if_there(key) or 0) for key, at in found.items()}
        return {key: at for key, at in found.items() if at < start[key]}

    def _absent(self, start: PartitionOffsets, ends: PartitionOffsets) -> PartitionOffsets:
        """Return the offsets at which partitions wait that are missing, and were not deleted.

        A query that continues without them reads on from there when they are back. If their offsets
        were not kept, they would count as new then, and be read from their start.
        """
        if start.keys() <= ends.keys():
            return {}
        known = self._logs.missing_parts().partitions
        return {key: start[key] for key in start if key not in ends and key in known}

    def _say_cut_logs(self) -> None:
        """Fail, or say it once, where the log lacks what was committed."""
        if self._policy.fails or self._logs.ends.lost != self._cut:
            self._cut = dict(self._logs.ends.lost)
            self._policy.logs_cut(self._logs.ends.lost)

    def _restarts(self, start: PartitionOffsets, ends: PartitionOffsets) -> PartitionOffsets:
        """Return where partitions start whose topics were recreated, of those not there yet.

        A micro-batch that ends there reads nothing of them. So the checkpoint, the only place there
        is, notes that the offsets are those of the new topic from then on.
        """
        # The ids are of the last look. The ends may be targets, which are of an earlier one.
        lost = self._logs.ends.lost
        cut = [key for key, gap in lost.items() if gap.end >= start.get(key, 0)]
        recreated = self._ids.find_recreated(start, ends, self._logs.topic_ids(), cut=cut)
        found = {key: self._logs.log_start_if_there(key) for key in recreated}
        log_starts = {key: first for key, first in found.items() if first not in {None, start[key]}}
        # One that starts where the earlier one was left is there already: by this run, which has
        # said so, or by chance.
        by_chance = {key for key, first in found.items() if first == start[key] > 0}
        to_say = log_starts.keys() | (by_chance - self._recreated.keys())
        recreated = {key: recreated[key] for key in recreated if key in to_say}
        if recreated != self._recreated:  # said once, not at each look
            self._policy.topics_recreated(recreated, ends, ids_are_kept=self._ids.are_kept)
            self._recreated = recreated
            self._validator.forget(recreated)  # what is known is of the earlier topics
        if self._end is not None:
            self._end.forget(recreated)
        return log_starts

    def _recreated_since(self, start: PartitionOffsets, end: PartitionOffsets) -> PartitionOffsets:
        """Find offsets to read whose topic was recreated after the batch was decided on.

        Those of partitions that the batch adds count from 0.
        """
        ids = self._logs.topic_ids()
        return {
            key: start.get(key, 0)
            for key, offset in end.items()
            if start.get(key, 0) < offset and self._ids.is_other(key, ids.get(key))
        }

    def _look(self, start: PartitionOffsets) -> PartitionOffsets:
        """Return the ends as of now, or ``start`` where the query waits for its end to come up."""
        first = not self.latest
        self.latest = self._logs.look(start).offsets
        if first:
            self._logs.report()
        waiting = self._waiting(start, self.latest)
        if self._logs.lacks_majority():  # others may have committed as much: nothing is lost yet
            waiting |= {key: at for key, at in start.items() if self.latest.get(key, at) < at}
        if waiting.keys() - self._held.keys():
            _LOGGER.info("waits until as much is committed again: %s", _shown(waiting))
        self._held = waiting
        uncommitted = {key: OffsetGap(self.latest[key], offset) for key, offset in waiting.items()}
        self._stuck.look({**uncommitted, **self._logs.ends.unread})
        return {**self.latest, **waiting} if waiting else self.latest

    def _waiting(
        self, reached: PartitionOffsets, ends: PartitionOffsets
    ) -> dict[TopicPartition, int]:
        """Find offsets above what is known to be committed that the log of the same topic has.

        None of these is a loss: a broker writes down seconds late what is committed, and for a
        while after it has started or moved a replica it writes less than before. Spark's Kafka
        source had its offsets from the broker itself. Other options may show less than before
        (``readUpTo``).
        """
        short = [key for key, offset in reached.items() if ends.get(key, offset) < offset]
        ids = self._logs.topic_ids() if short else {}
        return {
            key: reached[key]
            for key in short
            if self._logs.reaches(key, reached[key]) and not self._ids.is_other(key, ids.get(key))
        }


# ----------------------------------------------------------------------------------------------
# What is committed, as it comes: a stream without Spark, in splits or in rows.


class _NewSplits:
    """Plans what is committed, as it comes."""

    def __init__(self, options: ReadOptions, idle_timeout: float | None) -> None:
        _warn_of_limits(options)
        self._options = options
        self._idle_s = None if idle_timeout is None else seconds("idle_timeout", idle_timeout)
        self._control = StreamControl(options)
        self._position: PartitionOffsets | None = None
        self._last_seen = 0.0

    def next(self) -> list[LogSplit] | None:
        """Plan what has come, if anything has; None once nothing came for the idle time."""
        with with_remedy(self._options):
            if self._position is None:
                self._position = self._control.initial()
                self._last_seen = system.monotonic()
            position = self._position
            end = self._control.next_end(position, take_all=True)
            splits = self._control.plan(position, end) if end != position else []
        if end != position:
            self._position, self._last_seen = end, system.monotonic()
            return splits
        if self._idle_s is not None and system.monotonic() - self._last_seen >= self._idle_s:
            return None
        return []

    def was_read(self) -> None:
        """Count the idle time from now on: a split was read."""
        self._last_seen = system.monotonic()


def _warn_of_limits(options: ReadOptions) -> None:
    limits = {
        "minOffsetsPerTrigger": options.min_offsets_per_trigger,
        "maxOffsetsPerTrigger": options.max_offsets_per_trigger,
        "maxBytesPerTrigger": options.max_bytes_per_trigger,
    }
    if given := [name for name, value in limits.items() if value is not None]:
        _LOGGER.warning(
            "%s: no effect here, where there are no micro-batches: rows are given as soon as they "
            "are committed",
            ", ".join(given),
        )


def new_splits(options: ReadOptions, idle_timeout: float | None) -> Iterator[LogSplit]:
    """Plan what is committed, as it comes; each split has been read when the next is asked for."""
    new = _NewSplits(options, idle_timeout)
    while (splits := new.next()) is not None:
        for split in splits:
            yield split
            new.was_read()


class _Ready(NamedTuple):
    """Rows to hand out, and the offset after them; None where a view makes them."""

    batch: pa.RecordBatch
    next_offset: int | None


class NewRows:
    """The rows of what is committed, as it comes: an iterator that no interrupt ends.

    What it does is done in shielded threads. Rows wait until they were handed out. Where an error
    or an interrupt has cut off the reading of a split, it is read on behind the rows that were.
    """

    def __init__(
        self, open_rows: Callable[[], tuple[ReadOptions, ReadRows]], idle_timeout: float | None
    ) -> None:
        """Take what checks the options, when rows are asked for first, and when to end."""
        self._open_rows = open_rows
        self._idle_timeout = idle_timeout
        self._opened: tuple[ReadOptions, ReadRows, RowSchema | None, _NewSplits] | None = None
        self._splits: deque[LogSplit] = deque()
        self._batches: Iterator[pa.RecordBatch] | None = None
        """Of the first split, from where it was handed out up to."""
        self._begin_split()
        self._ready: _Ready | None = None
        """Rows that were not handed out, as far as is known."""
        self._handed: _Ready | None = None
        """The rows that were handed out last."""
        self._is_over = False

    def _begin_split(self) -> None:
        self._next_offset: int | None = None
        self._batches_handed = 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> pa.RecordBatch:
        ready = self._next()
        if ready is None:
            raise StopIteration
        batch = ready.batch
        self._handed = ready  # Python looks for no signal between this and the caller
        return batch

    @crosses_border
    def _next(self) -> _Ready | None:
        while self._ready is None or self._ready is self._handed:
            if self._is_over:
                return None
            self._advance()
        return self._ready

    @shielded_step
    def _advance(self) -> None:
        """Read or plan what comes next, or rest for a moment."""
        if self._handed is not None:
            self._next_offset = self._handed.next_offset
            self._batches_handed += 1
            self._ready = self._handed = None
        if self._opened is None:
            options, rows = self._open_rows()
            new = _NewSplits(options, self._idle_timeout)
            self._opened = options, rows, rows.with_offset(), new
        options, rows, read, new = self._opened
        if self._splits:
            self._ready = self._read(options, rows, read)
            if self._ready is None:
                self._batches = None
                self._begin_split()
                self._splits.popleft()
                new.was_read()
        else:
            splits = new.next()
            self._is_over = splits is None
            self._splits.extend(splits or ())
            for split in splits or ():
                split.announce()

    def _read(self, options: ReadOptions, rows: ReadRows, read: RowSchema | None) -> _Ready | None:
        """Read the next rows of the first split; None if there are no more."""
        # not at import: a process that only plans decodes nothing
        from kafkalog.streaming.source.decoded import read_task  # noqa: PLC0415
        from kafkalog.streaming.source.reading import LARGE_BATCHES  # noqa: PLC0415

        batches, self._batches = self._batches, None  # an error or an interrupt ends it
        if batches is None:
            split = self._splits[0]
            if self._next_offset is not None:
                split = split.from_offset(self._next_offset)
            batches = read_task([split], options, read, LARGE_BATCHES)
            if self._next_offset is None:
                batches = islice(batches, self._batches_handed, None)
        for batch in batches:
            if not batch.num_rows:
                continue
            self._batches = batches
            offset = None if read is None else batch.column("offset")[-1].as_py() + 1
            return _Ready(rows.chosen(batch), offset)
        return None
