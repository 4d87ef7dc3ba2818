"""Whether the positions of a reader still belong to the histories of their logs.

What is compared, and what decides: :mod:`kafkalog.streaming.log.history`. When it is compared: each
time that a log was read again because its files had changed, before a reader continues there. A
position is noted before the rows below it are handed out, so that a log that is replaced while
they are read shows at the next comparison.

Source: Kafka ``SubscriptionState.maybeValidatePositionForCurrentLeader``; KIP-320.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, TypeVar

from kafkalog.errors import KafkaLogError
from kafkalog.streaming.log.history import find_divergence, find_last_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.history import Divergence, LastBatch
    from kafkalog.streaming.log.partition_log import PartitionLog
    from kafkalog.streaming.source.end_offsets import EndOffsets
    from kafkalog.streaming.source.offsets import PartitionOffsets

__all__ = ["PositionValidator"]

_T = TypeVar("_T")


class PositionValidator:
    """Knows the last batches below positions of a reader, and compares them. Not thread safe."""

    def __init__(
        self,
        logs: EndOffsets,
        kept: Mapping[TopicPartition, Mapping[int, LastBatch]] | None = None,
    ) -> None:
        """Take the logs of the reader, and what an earlier run of it has kept."""
        self._logs = logs
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

    def find_diverged(self, positions: PartitionOffsets) -> dict[TopicPartition, Divergence]:
        """Return the positions whose logs have another history, as of the last look.

        Where a log ends below a position, that alone tells, and it is left out. So it is where too
        few nodes are there to say what is committed.
        """
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
