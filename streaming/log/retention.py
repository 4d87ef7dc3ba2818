"""The retention rule: which segments of a partition have expired.

Nothing is read or changed here. A broker's rule, in its three passes, each of which continues at
the oldest segment that the one before has left, and stops at the first one that it does not take:

===================  ==============================================================================
log start            the next segment begins at or below the log start
``retention.bytes``  without it, the log still has at least so many bytes
``retention.ms``     its largest timestamp lies back by more than that
===================  ==============================================================================

No segment goes that reaches above the high watermark, nor an active one that is empty. Where all
of them go, the log continues in a new one at its end.

A broker has defaults for the two limits. We have none: what was not given to a topic deletes
nothing.

Source: Kafka ``UnifiedLog.deleteOldSegments``, ``deletableSegments``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, Self

from kafkalog.streaming.options.topic_settings import LogConfig, understood

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["Expired", "LogBounds", "Retention", "Segment", "expired"]

_LIMITS: Final = ("retention.ms", "retention.bytes")
_DECIDE: Final = (*_LIMITS, "cleanup.policy")


class Segment(Protocol):
    """What the rule asks of a segment, and only where it counts: the size in bytes, a time in ms.

    ``largest_timestamp`` is that of its records, or the time of its file if they have none.
    """

    @property
    def base_offset(self) -> int: ...  # noqa: D102 - named above

    @property
    def size(self) -> int: ...  # noqa: D102

    @property
    def largest_timestamp(self) -> int: ...  # noqa: D102


class Retention(NamedTuple):
    """What was given to a topic; None where nothing was, and where it is switched off."""

    ms: int | None = None
    bytes: int | None = None
    deletes: bool = True
    """Whether ``cleanup.policy`` has ``delete``."""

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> Self:
        """Take a topic's settings, by Kafka's names. What is not understood deletes nothing."""
        config = LogConfig.of_topic(settings)
        strange = cls.strange(settings)
        ms = config.retention_ms if "retention.ms" in settings else -1
        size = config.retention_bytes if "retention.bytes" in settings else -1
        return cls(
            None if ms < 0 or strange else ms,
            None if size < 0 or strange else size,
            "delete" in config.cleanup_policy and "cleanup.policy" not in strange,
        )

    @staticmethod
    def is_given(settings: Mapping[str, str]) -> bool:
        """Whether a topic was given a limit, be it none (``-1``)."""
        return any(name in settings for name in _LIMITS)

    @staticmethod
    def strange(settings: Mapping[str, str]) -> dict[str, str]:
        """Return the settings that decide here, and have a value that is not understood."""
        given = {name: settings[name] for name in _DECIDE if name in settings}
        return {name: given[name] for name in given.keys() - understood(given).keys()}


class LogBounds(NamedTuple):
    """Where a log starts, how far it is committed, and where it ends: offsets."""

    log_start: int
    high_watermark: int
    log_end: int


class Expired(NamedTuple):
    """What has expired: how many of the oldest ``segments``, and the ``log_start`` after that.

    ``rolls``: all of them, so that the log continues in a new segment at its end.
    """

    segments: int
    log_start: int
    rolls: bool = False


def expired(
    segments: Sequence[Segment], retention: Retention, now_ms: int, bounds: LogBounds
) -> Expired:
    """Return what has expired of a log; ``segments`` ascend, and the last one is active."""
    start = bounds.log_start
    count = _taken(segments, 0, bounds, lambda _, after: after is not None and after <= start)
    if retention.deletes and retention.bytes is not None:
        count = _taken(segments, count, bounds, _too_many(segments[count:], retention.bytes))
    if retention.deletes and retention.ms is not None:
        oldest = now_ms - retention.ms
        count = _taken(segments, count, bounds, lambda each, _: each.largest_timestamp < oldest)
    if not count:
        return Expired(0, bounds.log_start)
    rolls = count == len(segments)
    first = bounds.log_end if rolls else segments[count].base_offset
    return Expired(count, max(bounds.log_start, first), rolls)


def _taken(
    segments: Sequence[Segment],
    first: int,
    bounds: LogBounds,
    condition: Callable[[Segment, int | None], bool],
) -> int:
    """Return how many segments have expired after a pass that begins with the ``first`` one.

    ``condition`` gets a segment, and the base offset of the one after it.
    """
    for slot in range(first, len(segments)):
        each = segments[slot]
        following = segments[slot + 1].base_offset if slot + 1 < len(segments) else None
        end = bounds.log_end if following is None else following
        is_empty_active = following is None and each.size == 0
        if bounds.high_watermark < end or is_empty_active or not condition(each, following):
            return slot
    return len(segments)


def _too_many(left: Sequence[Segment], limit: int) -> Callable[[Segment, int | None], bool]:
    above = sum(each.size for each in left) - limit

    def condition(segment: Segment, _: int | None) -> bool:
        nonlocal above
        if above - segment.size < 0:
            return False
        above -= segment.size
        return True

    return condition
