"""What ``groups`` and ``lag`` show, as rows of plain values."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from kafkalog.errors import CheckpointError, OptionError
from kafkalog.jobs.cli.log_dirs import ends_of, log_dirs_of, partitions_of
from kafkalog.jobs.cli.missing import say_missing
from kafkalog.streaming.coordinator.group_replay import read_group_positions
from kafkalog.streaming.source.lag import lag
from kafkalog.streaming.source.offsets import from_json_text

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["list_groups", "list_lag"]

Row = dict[str, Any]

_LOGGER: Final = logging.getLogger("kafkalog.jobs")

_GROUPS_TOPIC: Final = "__consumer_offsets"


def list_groups(paths: Sequence[str]) -> list[Row]:
    """Return the position of each consumer group in each partition."""
    say_missing(log_dirs_of(paths), None)
    watch = ends_of(paths, None)
    ends = watch.look().offsets
    rows = []
    there = partitions_of(paths, None)
    groups = [key for key in there if key.topic == _GROUPS_TOPIC and key in ends]
    if there and not groups:
        _LOGGER.warning("there is no topic %s here, which has the positions", _GROUPS_TOPIC)
    for key in groups:
        with watch.open(key) as log:
            positions = read_group_positions(log, ends[key])
        for group, committed in positions.items():
            for partition, position in committed.items():
                end = ends.get(partition)
                rows.append(
                    {
                        "group": group,
                        "topic": partition.topic,
                        "partition": partition.partition,
                        "offset": position.offset,
                        "end": end,
                        "lag": None if end is None else max(0, end - position.offset),
                    }
                )
    return rows


def list_lag(paths: Sequence[str], offsets: str) -> list[Row]:
    """Return the lag of offsets that a query printed: how many records are committed after them.

    ``lag`` is None for a partition that is named, or committed, and not there.

    Raises:
        OptionError: ``offsets`` are none.
    """
    try:
        named = from_json_text(offsets).keys()
    except CheckpointError as error:
        raise OptionError(str(error)) from error
    topics = {key.topic for key in named}
    lost = {key for key in say_missing(log_dirs_of(paths), None) if key.topic in topics}
    behind = lag(",".join(paths), offsets)
    return [
        {"topic": key.topic, "partition": key.partition, "lag": behind.get(key)}
        for key in sorted(behind.keys() | named | lost)
    ]
