"""The logs of all partitions that are followed, and which of them to look at now.

A log costs one ``stat``, if its active segment has not changed. Where a commit or a broker tells
the end and the log has it, no look is needed until they tell another one; to find logs that were
cut or swapped all the same, each look takes some of these logs in turn.
"""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING, Final

from kafkalog.files.system import system
from kafkalog.streaming.store.ends.seen_log import SeenLog

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.log_dir import PartitionDirectory

__all__ = ["SeenLogs"]

_TAKEN_IN_TURN: Final = 50
"""Logs looked at each time, of those that nothing is known to have happened to."""

_LISTING_INTERVAL_S: Final = 0.05
"""How often folders of partitions whose end no file confirms are looked at for a new segment."""


class SeenLogs:
    """The logs by partition. Those of partitions that stay where they were are kept."""

    def __init__(self, *, as_recovered: bool) -> None:
        self._as_recovered = as_recovered
        self.by_partition: dict[TopicPartition, SeenLog] = {}
        self._unconfirmed: list[SeenLog] = []
        """Those that have to be looked at each time."""
        self._in_turn: Iterator[SeenLog] = iter(())
        self._next_listing = 0.0

    def take(self, found: Mapping[TopicPartition, PartitionDirectory]) -> None:
        """Follow the partitions that were found, and no others."""
        known = self.by_partition
        self.by_partition = {
            key: known[key]
            if key in known and known[key].where == where
            else SeenLog(where, as_recovered=self._as_recovered)
            for key, where in found.items()
        }
        self._in_turn = iter(())
        self.look_at_all()

    def look_at_all(self) -> None:
        """Have the next look take all logs, until :meth:`confirm` says which need not."""
        self._unconfirmed = list(self.by_partition.values())

    def confirm(self) -> None:
        """From now on take those only in turn whose ends are confirmed."""
        self._unconfirmed = [log for log in self._unconfirmed if log.confirmed is None]

    def have_changed(self) -> bool:
        """Look at the logs that are due; returns whether any of them has changed."""
        now = system.monotonic()
        listing_is_due = now >= self._next_listing
        if listing_is_due:
            self._next_listing = now + _LISTING_INTERVAL_S
        in_turn = list(islice(self._in_turn, _TAKEN_IN_TURN))
        if len(in_turn) < _TAKEN_IN_TURN:
            self._in_turn = iter(self.by_partition.values())
            in_turn += islice(self._in_turn, _TAKEN_IN_TURN - len(in_turn))
        changed = False
        for log in dict.fromkeys(chain(self._unconfirmed, in_turn)):
            changed |= log.has_changed(listing_is_due=listing_is_due)
        return changed
