"""Topics that were deleted and recreated under their old names: told by their ids.

Each partition's folder carries the id of its topic (``partition.metadata``). Where it is another
than the one that a query's offsets were counted in, these offsets mean nothing any more. Ids are
known as long as the query runs, and beyond that from ``stateLocation``. For folders without an id,
and runs that know no ids, only the offsets tell: an end below what was read already.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kafkalog.checkpoints.topic_ids import (
    load_positions,
    load_topic_ids,
    save_positions,
    save_topic_ids,
)
from kafkalog.streaming.log.history import LastBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from kafkalog.model import TopicPartition

__all__ = ["Recreated", "TopicIds", "load_last_batches", "save_last_batches"]


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
