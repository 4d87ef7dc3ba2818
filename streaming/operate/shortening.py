"""Let logs start later: roll those of which all has expired, publish, then rename segments.

Where a disk is full, what has expired makes room for that: its indexes go first. Readers do without
them, and a broker, or `kafkalog recover`, builds them again. A log that cannot roll even so keeps
its active segment until the next time.
"""

from __future__ import annotations

import errno
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from kafkalog.errors import KafkaLogError
from kafkalog.streaming.commit.left_to_system import make_shortened_durable
from kafkalog.streaming.store.log_starts import LogStarts, move_log_starts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.operate.old_segments import KnownLog
    from kafkalog.streaming.store.log_set import LogSet
    from kafkalog.streaming.store.retention import Expired

__all__ = ["Gone", "Shortened", "shorten", "shortened"]

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class Gone(NamedTuple):
    """What has expired of a log."""

    log: KnownLog
    what: Expired


class Shortened(NamedTuple):
    """A partition that was looked at: its log start before and after, and what has gone.

    ``segments`` are the base offsets of those that were renamed to ``.deleted``.
    """

    topic_partition: TopicPartition
    path: Path
    start_before: int
    start: int
    end: int
    segments: tuple[int, ...]
    bytes: int


def shortened(each: Gone) -> Shortened:
    """Say what goes of a log."""
    log, what = each
    segments = log.segments[: what.segments]
    return Shortened(
        log.where.topic_partition,
        log.where.path,
        log.bounds.log_start,
        what.log_start,
        log.bounds.log_end,
        tuple(each.base_offset for each in segments),
        sum(each.size for each in segments),
    )


def shorten(log_set: LogSet, gone: Sequence[Gone], problems: list[str]) -> list[Shortened]:
    """Let logs start after what has expired of them; return what was done.

    REQUIRES: the locks are held, and nothing is unfinished. ``problems`` gets why logs were left as
    they are.

    Raises:
        OSError, KafkaLogError: nothing has changed for a reader; or all of it, and the next round
            renames what is left.
    """
    gone = _ready(gone, problems)
    done = [shortened(each) for each in gone]
    starts: LogStarts = {}
    for log, what in gone:
        if what.log_start > log.bounds.log_start:
            starts.setdefault(log.key, {})[log.number] = what.log_start
    if starts:
        _publish(log_set, starts, gone, problems)
    for log, what in gone:
        log_set.verify_locks()
        log.retire(what)
    return done


def _ready(gone: Sequence[Gone], problems: list[str]) -> list[Gone]:
    """Roll logs of which all has expired, and keep their producers; leave those that fail alone."""
    left = []
    for each in gone:
        try:
            rolled = _rolled(each, gone)
            _with_room(partial(rolled.log.keep_producers, rolled.what), gone)
            left.append(rolled)
        except (KafkaLogError, OSError) as error:
            problems.append(str(error))
    return left


def _rolled(each: Gone, gone: Sequence[Gone]) -> Gone:
    if each.what.rolls:
        try:
            _with_room(each.log.roll, gone)
        except OSError as error:
            if error.errno not in _FULL or each.what.segments == 1:
                raise
            return Gone(each.log, each.log.without_active(each.what))
    return each


def _publish(log_set: LogSet, starts: LogStarts, gone: Sequence[Gone], problems: list[str]) -> None:
    before = log_set.state.stamp

    def move() -> None:
        if log_set.state.stamp == before:
            make_shortened_durable(log_set, starts)
            move_log_starts(log_set, starts)

    try:
        _with_room(move, gone)
    except OSError as error:
        if log_set.state.stamp == before:
            raise
        # It is published. The segments may go, and the next session ends the rest.
        problems.append(f"Kafka's checkpoints do not say yet where logs start: {error}")


def _with_room(act: Callable[[], None], gone: Sequence[Gone]) -> None:
    """Act; where the disk is full, make room and try again.

    Raises:
        OSError: there is not enough room, or it failed for another reason.
        KafkaLogError: it failed.
    """
    try:
        act()
    except OSError as error:
        if error.errno not in _FULL:
            raise
    else:
        return
    for each in gone:
        each.log.drop_indexes(each.what)
    act()
