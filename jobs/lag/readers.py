"""Who reads topics, and how far each has come."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kafkalog.errors import CheckpointError, OptionError
from kafkalog.jobs.lag.group_readers import GroupReaders
from kafkalog.jobs.lag.reader import Reader
from kafkalog.jobs.lag.spark_checkpoint import read_checkpoint
from kafkalog.model import listed
from kafkalog.streaming.source.offsets import from_json_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafkalog.streaming.source.offsets import PartitionOffsets
    from kafkalog.streaming.store.ends.watch import EndsWatch

__all__ = ["Reader", "ReadersNamed"]


@dataclass(frozen=True, slots=True)
class ReadersNamed:
    """What a command was asked to look at, again and again; all groups if nothing is named."""

    groups: Sequence[str] = ()
    checkpoints: Sequence[str] = ()
    offsets: str | None = None
    _group_readers: GroupReaders = field(default_factory=GroupReaders, init=False, repr=False)

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
            if not positions or min(positions.values()) < 0:
                raise OptionError(
                    f"--offsets is {self.offsets}, expected offsets of 0 or more, such as "
                    '{"flights":{"0":23}}'
                )
            topics = frozenset(key.topic for key in positions)
            found.append(Reader("offsets", positions, topics))
        if self.groups:
            return self._of_groups(watch, ends) + found
        if found:
            return found
        groups = self._group_readers.look(watch, ends)
        if not groups:
            raise OptionError(
                "no consumer group has committed a position here. Name what reads: --checkpoint "
                "of a streaming query, or --offsets"
            )
        return groups

    def _of_groups(self, watch: EndsWatch, ends: PartitionOffsets) -> list[Reader]:
        known = {reader.name: reader for reader in self._group_readers.look(watch, ends)}
        for name in self.groups:
            if name not in known:
                raise OptionError(
                    f"group {name!r} has committed no position here. Groups that have: "
                    f"{listed(sorted(known)) or 'none'}"
                )
        return [known[name] for name in self.groups]
