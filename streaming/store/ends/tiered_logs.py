"""Which logs have records in a remote tier alone, and a warning of them (:mod:`.tiered`)."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from kafkalog.errors import UnknownTopicOrPartitionError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.store.ends.tiered import LogStart
    from kafkalog.streaming.store.ends.watch import EndsWatch

__all__ = ["say_tiered", "tiered_logs"]

_LOGGER = logging.getLogger("kafkalog.source")


def tiered_logs(watch: EndsWatch) -> Iterator[tuple[TopicPartition, LogStart]]:
    """Return the partitions of a look of which a remote tier alone has records, and their starts.

    Raises:
        LogDirectoryError, CheckpointError: as ``EndsWatch.look``.
    """
    for key in watch.look().offsets:
        with suppress(UnknownTopicOrPartitionError):  # deleted since
            if (start := watch.start_of(key)).is_tiered:
                yield key, start


def say_tiered(watch: EndsWatch) -> None:
    """Warn of the partitions of which a remote tier alone has records.

    Raises:
        LogDirectoryError, CheckpointError: as ``EndsWatch.look``.
    """
    for key, start in tiered_logs(watch):
        _LOGGER.warning("%s: %s", key, start)
