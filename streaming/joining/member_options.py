"""How a query takes part in its group: a Consumer's options, with a query's defaults."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.member_name import kept_name
from kafkalog.streaming.consumer.consumer_options import ConsumerOptions
from kafkalog.streaming.options import options_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kafkalog.streaming.source.read_options import ReadOptions

__all__ = ["instance_of", "member_options", "without_member_options"]

_UNLIMITED_MS: Final = "2147483647"
_REBALANCE_MS: Final = "300000"

_TAKEN: Final = frozenset(
    {
        *("kafka.session.timeout.ms", "kafka.heartbeat.interval.ms", "kafka.max.poll.interval.ms"),
        *("kafka.rebalance.timeout.ms", "kafka.partition.assignment.strategy"),
        *("kafka.group.instance.id", "kafka.client.id", "kafka.max.block.ms"),
    }
)


def member_options(given: Mapping[str, str]) -> ConsumerOptions:
    """Parse what a query was given; ``given`` are all of its options.

    Raises:
        OptionError: options that cannot be used.
    """
    known = {name for each in options_of(ConsumerOptions) for name in each.spellings()}
    taken = {n.lower(): t for n, t in given.items() if n.lower() in known & {*_TAKEN, "path"}}
    taken.setdefault("kafka.client.id", "query")
    if "kafka.max.poll.interval.ms" not in taken:
        taken["kafka.max.poll.interval.ms"] = _UNLIMITED_MS
        taken.setdefault("kafka.rebalance.timeout.ms", _REBALANCE_MS)
    return ConsumerOptions.parse(taken)


def without_member_options(options: ReadOptions) -> ReadOptions:
    """Return a query's options, of which those that a member takes are not ignored."""
    left = tuple(name for name in options.ignored if name.lower() not in _TAKEN)
    return replace(options, ignored=left)


def instance_of(options: ReadOptions) -> str:
    """Return the query's name in its group; one without is given one, which is kept.

    Raises:
        CheckpointError: it cannot be kept or read.
    """
    if options.group_instance_id is not None:
        return options.group_instance_id
    return kept_name(Path(options.state_location or ""))
