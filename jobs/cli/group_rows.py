"""What ``groups`` shows, as rows of plain values."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from kafkalog.jobs.cli.log_dirs import ends_of, log_dirs_of, partitions_of
from kafkalog.jobs.cli.missing import say_missing
from kafkalog.jobs.lag.readers import readers_of_groups
from kafkalog.model import OFFSETS_TOPIC

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["list_groups"]

Row = dict[str, Any]

_LOGGER: Final = logging.getLogger("kafkalog.jobs")


def list_groups(paths: Sequence[str]) -> list[Row]:
    """Return the position of each consumer group in each partition."""
    say_missing(log_dirs_of(paths), None)
    watch = ends_of(paths, None)
    ends = watch.look().offsets
    there = partitions_of(paths, None)
    known = {key: end for key, end in ends.items() if key in there and key.topic == OFFSETS_TOPIC}
    if there and not known:
        _LOGGER.warning("there is no topic %s here, which has the positions", OFFSETS_TOPIC)
    rows = []
    for reader in readers_of_groups(watch, known):
        for key, offset in reader.positions.items():
            end = ends.get(key)
            rows.append(
                {
                    "group": reader.name,
                    "topic": key.topic,
                    "partition": key.partition,
                    "offset": offset,
                    "end": end,
                    "lag": None if end is None else max(0, end - offset),
                }
            )
    return rows
