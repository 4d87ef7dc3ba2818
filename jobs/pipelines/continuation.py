"""Continuation: whether a batch continues where its target ends, or why it is refused.

A target (a table, a log) keeps what it holds of its source beside the rows, in the same
transaction: :class:`TargetState`. A batch that is planned, by whatever checkpoint, is held against
that by :func:`first_offsets`, before its first row is written:

======================================  ==========================================================
the batch starts                        what follows
======================================  ==========================================================
where the target ends                   it is written
below                                   rows below the target's end are there already: left out
above                                   refused: rows between the two would be missing for good
in another topic of the same name       refused: the offsets are of other records
in a log that ends below the target     refused: new records would get offsets that are held
where a log begins, above the target    refused, unless ``failOnDataLoss=false``: a loss that the
                                        reader, which begins there, does not see
======================================  ==========================================================

A refusal says what is where, and the ways that go on. Nothing here reads or writes.

Source: Kafka ``OffsetsForLeaderEpoch`` (KIP-320) and Delta's ``txnAppId`` decide less: a position
alone, or a number alone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Self

from kafkalog.errors import CheckpointError, DataLossError, TargetMismatchError
from kafkalog.model import TopicPartition, listed
from kafkalog.streaming.log.history import LastBatch
from kafkalog.streaming.source.offsets import EARLIEST, to_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kafkalog.streaming.log.history import Divergence
    from kafkalog.streaming.source.offsets import PartitionOffsets

__all__ = [
    "HeldTopic",
    "PlannedBatch",
    "TargetState",
    "WaysOn",
    "continuing_options",
    "first_offsets",
]

_VERSION: Final = 1
_STARTS: Final = frozenset({"startingoffsets", "startingoffsetsbytimestamp", "startingtimestamp"})
"""The options of a source that say where it starts; another one wins over ``startingOffsets``."""

_NOTHING: Final[Mapping[Any, Any]] = MappingProxyType({})


@dataclass(frozen=True)
class HeldTopic:
    """What a target holds of one topic.

    Args:
        topic_id: the topic's id in ``partition.metadata``; None where its folders have none.
        ends: the offset after the last one that was taken, by partition, markers included.
        batches: the last batch below each of these ends, of the partitions where it is known.
    """

    topic_id: str | None
    ends: Mapping[int, int]
    batches: Mapping[int, LastBatch] = field(default_factory=lambda: _NOTHING)


@dataclass(frozen=True)
class TargetState:
    """What a target holds of a source.

    Args:
        epoch: the target itself, such as a table's id: one that replaces it has another.
        set_id: the id of the set of log directories; None where they are none of ours.
        topics: by name.
    """

    epoch: str = ""
    set_id: str | None = None
    topics: Mapping[str, HeldTopic] = field(default_factory=lambda: _NOTHING)

    def to_json(self) -> str:
        """Return the text that a target keeps."""
        topics = {
            name: {
                "id": held.topic_id,
                "ends": {str(number): held.ends[number] for number in sorted(held.ends)},
                "batches": {str(n): held.batches[n].to_text() for n in sorted(held.batches)},
            }
            for name, held in sorted(self.topics.items())
        }
        whole = {"version": _VERSION, "epoch": self.epoch, "set": self.set_id, "topics": topics}
        return json.dumps(whole, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read the text that a target keeps.

        Raises:
            CheckpointError: it has another form, or is of a later release.
        """
        try:
            found = json.loads(text)
            known = {_VERSION: found["topics"]}[found["version"]]
            topics = {str(name): _held(each) for name, each in known.items()}
            return cls(str(found["epoch"]), found["set"], topics)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{text[:80]!r} does not tell what a target holds of its source, in version "
                f"{_VERSION}: {error!r}"
            ) from error

    def end_of(self, key: TopicPartition) -> int | None:
        """Return up to which offset a partition is held; None if it is not."""
        held = self.topics.get(key.topic)
        return None if held is None else held.ends.get(key.partition)

    @property
    def ends(self) -> dict[TopicPartition, int]:
        """Up to which offsets partitions are held."""
        return {
            TopicPartition(topic, number): end
            for topic, held in self.topics.items()
            for number, end in held.ends.items()
        }

    def after(self, batch: PlannedBatch) -> Self:
        """Return what is held once a batch that :func:`first_offsets` lets through is written.

        No end goes back. A partition that the batch does not name stays as it is.
        """
        topics = dict(self.topics)
        for key, (_, end) in batch.ranges.items():
            held = topics.get(key.topic, HeldTopic(None, {}))
            before = held.ends.get(key.partition, 0)
            ends = {**held.ends, key.partition: max(end, before)}
            batches = dict(held.batches)
            if end >= before and end != held.ends.get(key.partition):
                batches.pop(key.partition, None)
                if (last := batch.batches_below.get(key)) is not None:
                    batches[key.partition] = last
            topic_id = batch.topic_ids.get(key.topic) or held.topic_id
            topics[key.topic] = HeldTopic(topic_id, ends, batches)
        return type(self)(self.epoch, batch.set_id or self.set_id, topics)


def _held(found: Mapping[str, Any]) -> HeldTopic:
    ends = {int(number): int(end) for number, end in found["ends"].items()}
    batches = {int(number): _last_batch(text) for number, text in found["batches"].items()}
    return HeldTopic(found["id"], ends, batches)


def _last_batch(text: str) -> LastBatch:
    found = LastBatch.from_text(text)
    if found is None:
        raise ValueError(f"{text!r} is no batch")
    return found


@dataclass(frozen=True)
class PlannedBatch:
    """What is to be taken next, and what the source says of it now.

    Args:
        ranges: the start and the end of each partition. The start is None where the reader begins
            with this batch: what lies below was never to be read.
        topic_ids: by topic; None, or no entry, where its folders have none.
        set_id: as in :class:`TargetState`.
        log_ends: up to which offset each log has records now, committed or not; may be left out.
        log_starts: where each log that the target holds starts now; left out where a loss is no
            reason to stop (``failOnDataLoss=false``).
        diverged: the partitions whose log has another history below the end that the *target* has
            (:mod:`kafkalog.streaming.log.history`); may be left out.
        batches_below: the last batch below the end of each range, to be kept; may be left out.
    """

    ranges: Mapping[TopicPartition, tuple[int | None, int]]
    topic_ids: Mapping[str, str | None] = field(default_factory=lambda: _NOTHING)
    set_id: str | None = None
    log_ends: Mapping[TopicPartition, int] = field(default_factory=lambda: _NOTHING)
    log_starts: Mapping[TopicPartition, int] = field(default_factory=lambda: _NOTHING)
    diverged: Mapping[TopicPartition, Divergence] = field(default_factory=lambda: _NOTHING)
    batches_below: Mapping[TopicPartition, LastBatch] = field(default_factory=lambda: _NOTHING)


@dataclass(frozen=True)
class WaysOn:
    """Words of a pipeline for a refusal.

    Args:
        target: the target, as in ``the table /lake/t``.
        source: the log directories, as they were given.
        reader: what planned the batch, as in ``the checkpoint /checkpoints/t``.
        from_target: what continues where the target ends, as in ``--from-target``.
        rebuild: what empties the target and takes the source from its start, ``--rebuild``; empty
            where there is no such way.
        other_target: what leaves this target as it is, as in ``another table and --checkpoint``.
        without_lost: what goes on without records that the source has deleted.
    """

    target: str
    source: str
    reader: str
    from_target: str = "--from-target continues where the target ends"
    rebuild: str = "--rebuild empties the target and takes all that the source has"
    other_target: str = "another target and another --checkpoint leave this one as it is"
    without_lost: str = "--set failOnDataLoss=false leaves them out"


def first_offsets(
    held: TargetState,
    batch: PlannedBatch,
    ways: WaysOn,
    *,
    is_changed_id: Callable[[str, str, str], bool] = lambda *_: False,
) -> dict[TopicPartition, int]:
    """Decide from which offset on a target takes each partition of a batch; rows below are held.

    A partition that the target does not hold, and where the reader begins, is taken as it comes: at
    offset 0 of the answer.

    Args:
        held: what the target holds now.
        batch: what is planned.
        ways: words for a refusal.
        is_changed_id: whether a topic had the first id, was given the second, and kept its records
            (a handover to a broker), of a name and two ids.

    Raises:
        TargetMismatchError: the batch does not continue the target. Nothing may be written.
        DataLossError: the source has deleted records before the target took them.
    """
    _refuse_another_topic(held, batch, ways, is_changed_id)
    _refuse_shorter_logs(held, batch, ways)
    _refuse_changed_history(batch, ways)
    _refuse_starts_above(held, batch, ways)
    _refuse_lost(held, batch, ways)
    return {key: held.end_of(key) or 0 for key in batch.ranges}


def continuing_options(
    options: Mapping[str, str], keys: Iterable[TopicPartition], starts: PartitionOffsets
) -> dict[str, str]:
    """Return the options of a source that starts where its target ends, whatever start was given.

    Args:
        options: of the source.
        keys: its partitions. Those without a start begin at their log starts.
        starts: where the target ends.
    """
    offsets = to_json({key: starts.get(key, EARLIEST) for key in keys})
    kept = {name: text for name, text in options.items() if name.lower() not in _STARTS}
    return {**kept, "startingOffsets": json.dumps(offsets)}


def _refuse_starts_above(held: TargetState, batch: PlannedBatch, ways: WaysOn) -> None:
    above = {
        key: (start, held.end_of(key))
        for key, (start, _) in batch.ranges.items()
        if start is not None and start > (held.end_of(key) or 0)
    }
    if above:
        shown = listed(
            f"{key} from {start}, and {'nothing of it' if end is None else f'up to {end}'} is there"
            for key, (start, end) in sorted(above.items())
        )
        raise TargetMismatchError(
            f"{ways.reader} continues above the end of {ways.target}: {shown}. The rows between "
            f"would be missing for good: {ways.target} was rolled back, replaced, emptied or "
            f"removed, or the reader belongs to another one. Nothing was written. "
            f"{_ways(ways.from_target, ways.rebuild, ways.other_target)}"
        )


def _refuse_another_topic(
    held: TargetState,
    batch: PlannedBatch,
    ways: WaysOn,
    is_changed_id: Callable[[str, str, str], bool],
) -> None:
    """Refuse topics whose offsets are of other records than the target holds."""
    others = {}
    for topic in sorted({key.topic for key in batch.ranges} & held.topics.keys()):
        before, now = held.topics[topic].topic_id, batch.topic_ids.get(topic)
        if before is not None and now is not None:
            if before != now and not is_changed_id(topic, before, now):
                others[topic] = f"{topic} with the id {before} there, and {now} in {ways.source}"
        elif held.set_id is not None and batch.set_id not in {None, held.set_id}:
            others[topic] = f"{topic} of the set {held.set_id} there, and {batch.set_id} now"
    if others:
        raise TargetMismatchError(
            f"{ways.target} holds another topic of the same name: {listed(others.values())}. It "
            f"was deleted and recreated, or these are other log directories. Nothing was written. "
            f"{_ways(ways.rebuild, ways.other_target)}"
        )


def _refuse_shorter_logs(held: TargetState, batch: PlannedBatch, ways: WaysOn) -> None:
    """Refuse logs that end below what is held: they give the same offsets to other records."""
    shorter = {
        key: f"{key} ends at {end} in {ways.source}, and {held.end_of(key)} is held"
        for key, end in sorted(batch.log_ends.items())
        if end < (held.end_of(key) or 0)
    }
    if shorter:
        raise TargetMismatchError(
            f"{ways.target} holds more than its source has: {listed(shorter.values())}. The log "
            "was cut, or restored from an older copy: its next records get offsets that are held "
            "already. Nothing was written. Restore the log, if a newer copy is there. If not: "
            f"{_ways(ways.rebuild, ways.other_target)}"
        )


def _refuse_changed_history(batch: PlannedBatch, ways: WaysOn) -> None:
    """Refuse logs that have another history than the target took, below its end."""
    if batch.diverged:
        others = listed(f"{key} at offset {found}" for key, found in sorted(batch.diverged.items()))
        raise TargetMismatchError(
            f"{ways.target} holds other records than its source has at the same offsets: {others}."
            " The log was cut, or restored from an older copy, and has grown since. Nothing was "
            "written. "
            f"{_ways(ways.rebuild, ways.other_target)}"
        )


def _refuse_lost(held: TargetState, batch: PlannedBatch, ways: WaysOn) -> None:
    """Refuse a loss that the reader does not see: of partitions that it begins with anew."""
    lost = {
        key: (end, start)
        for key, start in sorted(batch.log_starts.items())
        if batch.ranges[key][0] is None and (end := held.end_of(key)) is not None and start > end
    }
    if lost:
        shown = listed(f"{key} from {end} to {start - 1}" for key, (end, start) in lost.items())
        raise DataLossError(
            f"offsets were deleted in {ways.source} before {ways.target} got them: {shown}. "
            f"Nothing was written. {ways.without_lost}"
        )


def _ways(*ways: str) -> str:
    return f"Ways on: {'; '.join(filter(None, ways))}"
