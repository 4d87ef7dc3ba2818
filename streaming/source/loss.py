"""Offsets that are gone, and topics that were recreated: by ``failOnDataLoss``, fail or warn."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from kafkalog.checkpoints.topic_ids import (
    load_positions,
    load_topic_ids,
    save_positions,
    save_topic_ids,
)
from kafkalog.errors import CorruptRecordError, DataLossError
from kafkalog.model import listed
from kafkalog.streaming.log.history import LastBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.history import Divergence
    from kafkalog.streaming.options.read_options import ReadOptions
    from kafkalog.streaming.store.ends.rule import OffsetGap


__all__ = [
    "LossPolicy",
    "Recreated",
    "TopicIds",
    "load_last_batches",
    "refuse_lost_targets",
    "save_last_batches",
    "with_remedy",
]


# ----------------------------------------------------------------------------------------------
# Topics that were deleted and recreated under their old names: told by their ids.
#
# Each partition's folder carries the id of its topic (``partition.metadata``). Where it is
# another than the one that a query's offsets were counted in, these offsets mean nothing any
# more. Ids are known as long as the query runs, and beyond that from ``stateLocation``. For
# folders without an id, and runs that know no ids, only the offsets tell: an end below what was
# read already.


class Recreated(NamedTuple):
    """A partition whose topic was recreated: the next offset that was to be read, and the ids.

    ``known`` is None where only the offsets show it.
    """

    offset: int
    known: str | None
    now: str | None

    @property
    def ids(self) -> str:
        """The ids for a message, if they are what shows it."""
        return "" if self.known is None else f" (topic id {self.known}, now {self.now})"


class TopicIds:
    """The ids that a query's offsets belong to; kept in the folder ``location``, if one is given.

    An id is kept before an offset of its topic is used. A new topic's id is kept only when the
    query's offsets are those of the new topic. So what is kept is never ahead of the checkpoint,
    wherever the process stops.
    """

    def __init__(
        self,
        location: str | None,
        is_changed: Callable[[str, str, str], bool],
    ) -> None:
        """Read what is kept.

        ``is_changed`` tells of a topic, an id before and an id now whether the topic is the same.

        Raises:
            CheckpointError: it is damaged.
        """
        self._is_changed = is_changed
        self._folder = None if location is None else Path(location)
        self._known = {} if self._folder is None else load_topic_ids(self._folder)
        self._adopted: Mapping[TopicPartition, str | None] | None = None
        self._adopted_at: Mapping[TopicPartition, int] | None = None

    @property
    def are_kept(self) -> bool:
        """Whether they outlast the run."""
        return self._folder is not None

    def start_again(self) -> None:
        """Forget all: the query starts without a checkpoint, in topics as they are now."""
        self._known = {}
        self._adopted = None

    def is_other(self, key: TopicPartition, now: str | None) -> bool:
        """Whether a partition's id is known, and that of another topic now."""
        known = self._known.get(key)
        if known is None or now is None or known == now:
            return False
        return not self._is_changed(key.topic, known, now)

    def find_recreated(
        self,
        start: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        now: Mapping[TopicPartition, str | None],
        *,
        cut: Collection[TopicPartition] = (),
    ) -> dict[TopicPartition, Recreated]:
        """Find the partitions of ``start`` and ``ends`` whose offsets are those of another topic.

        A log that ends below its offset and has the id that is known was cut, not recreated. So was
        one of ``cut``, where no id is known: as much is committed to it as was read.
        """
        shorter = {key for key, offset in start.items() if ends.get(key, offset) < offset}
        if now is self._adopted:  # thousands of partitions, and nothing new
            suspects = shorter
        else:
            others = {key for key in start if key in ends and self.is_other(key, now.get(key))}
            suspects = shorter | others
        found = {key: Recreated(start[key], self._known.get(key), now.get(key)) for key in suspects}
        return {
            key: recreated
            for key, recreated in sorted(found.items())
            if (recreated.known is None and key not in cut) or self.is_other(key, recreated.now)
        }

    def adopt(
        self,
        start: Mapping[TopicPartition, int],
        now: Mapping[TopicPartition, str | None],
        *,
        but: Collection[TopicPartition] = (),
    ) -> None:
        """Take over the ids that offsets are counted in from now on, and keep them.

        ``start`` are the offsets that the checkpoint has: a partition that has left them is
        forgotten, and one that comes again is a new one. ``but`` are partitions whose offsets are
        still those of another topic.

        Raises:
            CheckpointError: they cannot be kept.
        """
        if now is self._adopted and start is self._adopted_at:
            return
        known = {key: found for key, found in self._known.items() if key in start}
        known |= {key: found for key, found in now.items() if found is not None and key not in but}
        if known != self._known:
            self._known = known
            if self._folder is not None:
                save_topic_ids(self._folder, known)
        self._adopted, self._adopted_at = None if but else now, start


def load_last_batches(location: str | None) -> dict[TopicPartition, dict[int, LastBatch]]:
    """Read the last batches below the positions of an earlier run; none without a folder.

    Raises:
        CheckpointError: the file is damaged.
    """
    kept = {} if location is None else load_positions(Path(location))
    found = {
        key: {at: batch for at, text in each.items() if (batch := LastBatch.from_text(text))}
        for key, each in kept.items()
    }
    return {key: each for key, each in found.items() if each}


def save_last_batches(
    location: str | None, known: Mapping[TopicPartition, Mapping[int, LastBatch]]
) -> None:
    """Keep the last batches below positions, if there is a folder for it.

    Raises:
        CheckpointError: they cannot be written.
    """
    if location is not None:
        texts = {key: {at: b.to_text() for at, b in each.items()} for key, each in known.items()}
        save_positions(Path(location), texts)


# ----------------------------------------------------------------------------------------------
# Offsets that are gone: by ``failOnDataLoss``, the query fails or a warning is given.
#
# The codes are those of Spark's ``KAFKA_DATA_LOSS`` conditions. A gap between offsets is no loss
# (compaction, transactions). A loss is told from where a log starts and ends.


# ----------------------------------------------------------------------------------------------
# What an error about damage says beside its place: how to read what lies after it.


_WAY_OUT = "onCorruptRecord=skip"


@contextmanager
def with_remedy(options: ReadOptions) -> Iterator[None]:
    """Add to an error about a damaged batch that ``onCorruptRecord=skip`` reads on after it."""
    try:
        yield
    except CorruptRecordError as error:
        text = str(error)
        if options.on_corrupt_record == "fail" and _WAY_OUT not in text:
            error.args = (f"{text}; {_WAY_OUT} reads on after it, and says what it leaves out",)
        raise


# ----------------------------------------------------------------------------------------------

_LOGGER = logging.getLogger("kafkalog.source")


class LossPolicy:
    """Raises or warns, as the query wants it, with one text for each kind of loss."""

    def __init__(self, *, fail: bool, names_group: bool = False) -> None:
        """With ``names_group``, ``kafka.group.id`` is set: Spark has a condition of its own."""
        self.fails = fail
        self._deleted = "PARTITIONS_DELETED" + "_AND_GROUP_ID_CONFIG_PRESENT" * names_group

    @classmethod
    def of(cls, options: ReadOptions) -> Self:
        """Do as a query's options say."""
        return cls(fail=options.fail_on_data_loss, names_group=options.group_id is not None)

    def _lost(self, condition: str, message: str) -> None:
        text = f"[KAFKA_DATA_LOSS.{condition}] {message}"
        if self.fails:
            raise DataLossError(
                f"{text} To continue without these offsets, set failOnDataLoss to false."
            )
        _LOGGER.warning("%s The query continues, as failOnDataLoss is false.", text)

    def partitions_deleted(self, start: Mapping[TopicPartition, int]) -> None:
        """Partitions that a query has read are no longer there."""
        if start:
            self._lost(
                self._deleted,
                f"These partitions are gone, from the next offset on that was to be read: "
                f"{listed(f'{key} from {offset}' for key, offset in sorted(start.items()))}. "
                "Their folders were deleted, a log directory is not mounted, or the query's "
                "options no longer name them.",
            )

    def parts_missing(self, what: str) -> None:
        """Log directories or partitions are missing that the commit state knows."""
        self._lost(self._deleted, what)

    def ends_before_start(
        self, start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]
    ) -> None:
        """Logs end below the next offset to read."""
        shorter = [key for key in sorted(start) if key in end and end[key] < start[key]]
        if shorter:
            self._lost(
                "PARTITION_OFFSET_CHANGED",
                "The end of these partitions went back: "
                f"{listed(f'{key} from {start[key]} to {end[key]}' for key in shorter)}. "
                "The topic was recreated, its log was truncated, or the start lies beyond its end.",
            )

    def history_changed(self, diverged: Mapping[TopicPartition, Divergence]) -> None:
        """Logs reach the next offset to read, and have other records below it than were read."""
        if diverged:
            shown = "; ".join(f"{key} at {each}" for key, each in sorted(diverged.items())[:10])
            more = "" if len(diverged) <= 10 else f"; and {len(diverged) - 10} more"
            self._lost(
                "PARTITION_OFFSET_CHANGED",
                "The logs of these partitions have another history than the one that was read: "
                f"{shown}{more}. They were cut and written again, or an older copy was put back. "
                "What was read and is no longer there is lost; of what came in its place below "
                "these offsets, nothing was read. A reader that continues goes back to the offset "
                "of the cut where that is said, else it stays where it is.",
            )

    def topics_recreated(
        self,
        recreated: Mapping[TopicPartition, Recreated],
        ends: Mapping[TopicPartition, int],
        *,
        ids_are_kept: bool,
    ) -> None:
        """Topics were deleted and recreated under their names: their offsets mean nothing now."""
        if recreated:
            shown = listed(
                f"{key} from {found.offset} to {ends[key]}{found.ids}"
                for key, found in sorted(recreated.items())
            )
            by_ids = any(found.known is not None for found in recreated.values())
            advice = (
                " The query's next run cannot tell the topics apart without stateLocation: start "
                "it with a new checkpoint to read all of the new topic."
                if self.fails and by_ids and not ids_are_kept
                else ""
            )
            self._lost(
                "PARTITION_OFFSET_CHANGED",
                f"The topics of these partitions were deleted and recreated: {shown}. What the old "
                f"topic held from there on is gone; the new one has to be read from its start."
                f"{advice}",
            )

    def logs_cut(self, lost: Mapping[TopicPartition, OffsetGap]) -> None:
        """Logs end below what was committed to them."""
        if lost:
            shown = listed(f"{key} [{gap.start}, {gap.end})" for key, gap in sorted(lost.items()))
            self._lost(
                "COULD_NOT_READ_OFFSET_RANGE",
                f"These offsets were committed and are no longer in the log: {shown}. It was cut, "
                "a segment was deleted or not copied, or the machine lost what it had not written "
                "to disk yet.",
            )

    def initial_offsets_not_found(self, missing: Iterable[TopicPartition]) -> None:
        """Partitions appeared in a batch and are gone before they were read."""
        names = sorted(missing)
        if names:
            self._lost(
                "INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS",
                f"These new partitions vanished before they were read: {listed(map(str, names))}.",
            )

    def added_partitions_start_late(self, starts: Mapping[TopicPartition, int]) -> None:
        """Partitions appeared whose first offsets are already gone."""
        late = {key: offset for key, offset in sorted(starts.items()) if offset > 0}
        if late:
            self._lost(
                "ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO",
                "These new partitions do not start at offset 0: "
                f"{listed(f'{key} at {offset}' for key, offset in late.items())}. "
                "What lay before was removed before it could be read.",
            )

    def range_not_readable(
        self, topic_partition: TopicPartition, start: int, end: int, reason: str
    ) -> None:
        """Offsets ``[start, end)`` were to be read and are gone; ``reason`` says why."""
        self._lost(
            "COULD_NOT_READ_OFFSET_RANGE",
            f"Partition {topic_partition}: the {end - start} offsets [{start}, {end}) cannot be "
            f"read: {reason}.",
        )


def refuse_lost_targets(
    end: Mapping[TopicPartition, int],
    available: Mapping[TopicPartition, int],
    recreated: Collection[TopicPartition],
) -> None:
    """Fail if the targets of ``Trigger.AvailableNow`` are not there, whatever ``failOnDataLoss``.

    Raises:
        DataLossError: partitions of ``end`` are gone or recreated, or end before.
    """
    lost = [str(key) for key in end if key not in available or key in recreated]
    if lost:
        raise DataLossError(
            "[LOST_TOPIC_PARTITIONS_IN_END_OFFSET_WITH_TRIGGER_AVAILABLENOW] these partitions "
            f"were deleted while the query read up to their ends: {', '.join(lost)}"
        )
    shorter = [
        f"{key} from {offset} to {available[key]}"
        for key, offset in end.items()
        if offset > available[key]
    ]
    if shorter:
        raise DataLossError(
            "[END_OFFSET_HAS_GREATER_OFFSET_FOR_TOPIC_PARTITION_THAN_LATEST_WITH_TRIGGER_"
            "AVAILABLENOW] the end of these partitions went back while the query read up to "
            f"it: {', '.join(shorter)}"
        )
