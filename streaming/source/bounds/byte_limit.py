"""How much one micro-batch takes, in bytes: ``maxBytesPerTrigger``.

As in a broker's answer to a fetch: no more than the limit, but at least one batch. So a batch that
is larger than the limit does not stop the query for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkalog.errors import UnknownTopicOrPartitionError
from kafkalog.streaming.log.read.backlog import find_backlog

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.read.backlog import Backlog, Cut
    from kafkalog.streaming.source.followed_logs import FollowedLogs
    from kafkalog.streaming.source.offsets import PartitionOffsets

__all__ = ["ByteLimit"]


class ByteLimit:
    """Splits ``limit`` bytes over the partitions in proportion to what each has waiting.

    Shares are rounded down to whole batches. The partition that has got nothing for the longest
    time comes first, with one batch even if its share is smaller: none starves beside busier ones.
    The order is kept in memory only.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._turn = 0
        self._served: dict[TopicPartition, int] = {}

    def cut(
        self,
        start: Mapping[TopicPartition, int],
        end: Mapping[TopicPartition, int],
        logs: FollowedLogs,
    ) -> PartitionOffsets:
        """Return the ends of a batch from ``start``, which has every partition, up to ``end``."""
        backlogs = {
            key: backlog
            for key, offset in end.items()
            if offset > start[key] and (backlog := _backlog(logs, key, start[key], offset))
        }
        if sum(backlog.size for backlog in backlogs.values()) <= self._limit:
            return dict(end)
        cuts = self._take(backlogs)
        self._turn += 1
        self._served |= dict.fromkeys(cuts, self._turn)
        waiting = {key: start[key] for key in backlogs}
        return {**end, **waiting, **{key: cut.offset for key, cut in cuts.items()}}

    def _take(self, backlogs: Mapping[TopicPartition, Backlog]) -> dict[TopicPartition, Cut]:
        total = sum(backlog.size for backlog in backlogs.values())
        by_turn = sorted(backlogs, key=lambda key: self._served.get(key, 0))
        cuts: dict[TopicPartition, Cut] = {}
        left = self._limit
        for key in by_turn:
            share = self._limit * backlogs[key].size // total
            cut = backlogs[key].within(min(share, left))
            if cut is None and not cuts:
                cut = backlogs[key].first_batch()
            if cut is not None:
                cuts[key] = cut
                left = max(0, left - cut.size)
        for key in by_turn:
            if left and key not in cuts:
                cut = backlogs[key].first_batch()
                if cut.size <= left:
                    cuts[key] = cut
                    left -= cut.size
        return cuts


def _backlog(logs: FollowedLogs, key: TopicPartition, start: int, end: int) -> Backlog | None:
    try:
        with logs.open(key) as log:
            return find_backlog(log, start, end)
    except UnknownTopicOrPartitionError:  # deleted since: planning says what is lost
        return None
