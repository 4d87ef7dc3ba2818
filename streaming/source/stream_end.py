"""Where a stream is to end: ``endingTimestamp`` and ``stopAtOffsets``.

Spark's Kafka source ignores ``endingTimestamp`` in a stream. Here the stream reads up to there and
no further. With ``Trigger.AvailableNow`` it has ended then. With other triggers it stays idle, as
no source can end a query.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

from kafkalog.errors import OptionError, UnknownTopicOrPartitionError
from kafkalog.streaming.source.offsets import parse_partition_longs, to_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.source.end_offsets import EndOffsets
    from kafkalog.streaming.source.offsets import PartitionOffsets
    from kafkalog.streaming.source.read_options import ReadOptions
    from kafkalog.streaming.source.subscription import Subscription

__all__ = ["StreamEnd"]

_LOGGER = logging.getLogger("kafkalog.source")


class StreamEnd:
    """Cuts ends to where the query is to end.

    By timestamp, a partition ends at its first record, by offset, with this timestamp or a later
    one, as in a batch. While a partition has no such record, all of it is read. Each time that it
    has grown, its time index is asked again.
    """

    def __init__(self, timestamp: int | None, offsets: PartitionOffsets) -> None:
        self._timestamp = timestamp
        self._offsets = offsets
        self._found: dict[TopicPartition, int] = {}
        self._searched: dict[TopicPartition, int] = {}
        self._said = False

    @classmethod
    def of(cls, options: ReadOptions, subscription: Subscription) -> StreamEnd | None:
        """Read the end from the options; None if the query has none.

        A partition may be named that does not exist yet.

        Raises:
            OptionError: ``stopAtOffsets`` is no JSON of offsets, or names what is never read.
        """
        if options.ending_timestamp is None and options.stop_at_offsets is None:
            return None
        text = options.stop_at_offsets
        offsets = {} if text is None else parse_partition_longs("stopAtOffsets", text, 0)
        unread = [str(key) for key in sorted(offsets) if not subscription.selects(key)]
        if unread:
            raise OptionError(
                f"option 'stopAtOffsets' names what the query does not read: {', '.join(unread)}"
            )
        return cls(options.ending_timestamp, offsets)

    def clip(
        self, start: Mapping[TopicPartition, int], ends: PartitionOffsets, logs: EndOffsets
    ) -> PartitionOffsets:
        """Return the ends to read up to, none of them below ``start``."""
        bounds = {key: self._bound(key, end, logs) for key, end in ends.items()}
        clipped = {
            key: max(min(end, bounds[key]), min(end, start.get(key, 0)))
            for key, end in ends.items()
        }
        if not self._said and ends and all(start.get(key, -1) >= bounds[key] for key in ends):
            self._said = True
            _LOGGER.info(
                "all partitions are read up to where the query is to end: %s",
                json.dumps(to_json(bounds)),
            )
        return clipped

    def forget(self, keys: Iterable[TopicPartition]) -> None:
        """Search again in partitions whose topics were recreated."""
        for key in keys:
            self._found.pop(key, None)
            self._searched.pop(key, None)

    def _bound(self, key: TopicPartition, end: int, logs: EndOffsets) -> int:
        by_offset = self._offsets.get(key, end + 1)
        return min(by_offset, self._by_timestamp(key, end, logs))

    def _by_timestamp(self, key: TopicPartition, end: int, logs: EndOffsets) -> int:
        """Return the first offset that is not read any more; one beyond the end if unknown."""
        if self._timestamp is None:
            return end + 1
        if end < max(self._found.get(key, 0), self._searched.get(key, 0)):  # recreated, or cut
            self.forget([key])
        if key not in self._found and end != self._searched.get(key):
            self._search(key, end, self._timestamp, logs)
        return self._found.get(key, end + 1)

    def _search(self, key: TopicPartition, end: int, timestamp: int, logs: EndOffsets) -> None:
        try:
            with logs.open(key) as log:
                record = log.offset_for_timestamp(timestamp, end_offset=end)
        except UnknownTopicOrPartitionError:  # deleted since: planning says what is lost
            return
        if record is not None and record.offset < end:
            self._found[key] = record.offset
        else:
            self._searched[key] = end
