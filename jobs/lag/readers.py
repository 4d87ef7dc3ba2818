"""Who reads topics, and how far each has come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafkalog.errors import CheckpointError, OptionError
from kafkalog.jobs.lag.spark_checkpoint import read_checkpoint
from kafkalog.model import OFFSETS_TOPIC, listed
from kafkalog.streaming.coordinator.group_replay import read_group_positions
from kafkalog.streaming.source.offsets import from_json_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kafkalog.streaming.source.offsets import PartitionOffsets
    from kafkalog.streaming.store.ends.watch import EndsWatch

__all__ = ["Reader", "ReadersNamed", "readers_of_groups"]


@dataclass(frozen=True, slots=True)
class Reader:
    """One that reads: its name, and the next offset that it reads of each partition.

    Of ``topics`` it reads all partitions. One that it has no offset of counts from its log start.
    """

    name: str
    positions: PartitionOffsets
    topics: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ReadersNamed:
    """What a command was asked to look at; all groups if nothing is named."""

    groups: Sequence[str] = ()
    checkpoints: Sequence[str] = ()
    offsets: str | None = None

    def look(self, watch: EndsWatch, ends: PartitionOffsets) -> list[Reader]:
        """Return the readers as they stand now; ``ends`` is what ``watch`` has just found.

        Raises:
            OptionError: words that name no offsets, no checkpoint, or a group that has none.
            CheckpointError: a checkpoint that cannot be read.
            CorruptRecordError: the positions of groups cannot be read.
        """
        found = [Reader(name, *read_checkpoint(name)) for name in self.checkpoints]
        if self.offsets is not None:
            try:
                positions = from_json_text(self.offsets)
            except CheckpointError as error:
                raise OptionError(str(error)) from error
            topics = frozenset(key.topic for key in positions)
            found.append(Reader("offsets", positions, topics))
        if self.groups:
            return self._of_groups(watch, ends) + found
        if found:
            return found
        groups = list(readers_of_groups(watch, ends))
        if not groups:
            raise OptionError(
                "no consumer group has committed a position here. Name what reads: --checkpoint "
                "of a streaming query, or --offsets"
            )
        return groups

    def _of_groups(self, watch: EndsWatch, ends: PartitionOffsets) -> list[Reader]:
        known = {reader.name: reader for reader in readers_of_groups(watch, ends)}
        for name in self.groups:
            if name not in known:
                raise OptionError(
                    f"group {name!r} has committed no position here. Groups that have: "
                    f"{listed(sorted(known)) or 'none'}"
                )
        return [known[name] for name in self.groups]


def readers_of_groups(watch: EndsWatch, ends: PartitionOffsets) -> Iterator[Reader]:
    """Return the consumer groups that have positions.

    Raises:
        CorruptRecordError: the positions cannot be read.
    """
    for key, end in ends.items():
        if key.topic != OFFSETS_TOPIC:
            continue
        with watch.open(key) as log:
            groups = read_group_positions(log, end)
        for name, committed in groups.items():
            yield Reader(name, {each: place.offset for each, place in committed.items()})
