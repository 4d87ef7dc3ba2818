"""Let logs start later: roll those of which all has expired, publish, then rename segments.

Where a disk is full, what has expired makes room for that: its indexes go first. Readers do without
them, and a broker, or `kafkalog recover`, builds them again. A log that cannot roll even so keeps
its active segment until the next time.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from kafkalog.errors import KafkaLogError
from kafkalog.files.failures import FULL, said_of_file
from kafkalog.streaming.commit.left_to_system import make_shortened_durable
from kafkalog.streaming.log.log_dir import partitions_by_node
from kafkalog.streaming.operate.old_segments import KnownLog
from kafkalog.streaming.store.ends.broker_marks import BrokerMarks
from kafkalog.streaming.store.log_starts import LogStarts, end_move, move_log_starts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.store.log_set import LogSet
    from kafkalog.streaming.store.retention import Expired

__all__ = ["Gone", "Shortened", "shorten", "shortened"]


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
    gone = [*gone, *_ready_replicas(log_set, gone)]
    starts: LogStarts = {}
    for log, what in gone:
        if what.log_start > log.bounds.log_start:
            starts.setdefault(log.key, {})[log.number] = what.log_start
    if starts:
        _publish(log_set, starts, gone, problems)
    for log, what in gone:
        log_set.verify_locks()
        with log_set.node.working_at(log.where.log_dir):
            log.retire(what)
    return done


def _ready_replicas(log_set: LogSet, gone: Sequence[Gone]) -> list[Gone]:
    """Let the other replicas in sync continue as their leaders do; a node that fails is out."""
    ready: list[Gone] = []
    for each in gone:
        for where in _replicas_of(log_set, each.log):
            with log_set.node.working_at(where.log_dir):
                log = KnownLog.of(log_set.state, where, BrokerMarks())
                if log is None or not log.segments:
                    continue
                log.check_end()  # it may be an older copy
                follower = Gone(log, each.what._replace(segments=each.log.shared(log, each.what)))
                if each.what.rolls:
                    _with_room(log.roll, [*gone, *ready])
                log.keep_producers(follower.what)
                ready.append(follower)
    return ready


def _replicas_of(log_set: LogSet, log: KnownLog) -> Iterator[PartitionDirectory]:
    """Find the folders of the other replicas in sync of a partition."""
    if not log_set.state.is_replicated:
        return
    isr = log.topic.replicas[log.number].isr
    for node, folders in partitions_by_node(log_set.node.nodes()).items():
        where = folders.get(log.where.topic_partition)
        if node in isr and where is not None and where != log.where:
            yield where


def _ready(gone: Sequence[Gone], problems: list[str]) -> list[Gone]:
    """Roll logs of which all has expired, and keep their producers; leave those that fail alone."""
    left = []
    for each in gone:
        try:
            rolled = _rolled(each, gone)
            _with_room(partial(rolled.log.keep_producers, rolled.what), gone)
            left.append(rolled)
        except (KafkaLogError, OSError) as error:
            problems.append(said_of_file(error))
    return left


def _rolled(each: Gone, gone: Sequence[Gone]) -> Gone:
    if each.what.rolls:
        try:
            _with_room(each.log.roll, gone)
        except OSError as error:
            if error.errno not in FULL or each.what.segments == 1:
                raise
            return Gone(each.log, each.log.without_active(each.what))
    return each


def _publish(log_set: LogSet, starts: LogStarts, gone: Sequence[Gone], problems: list[str]) -> None:
    before = log_set.state.stamp

    def move() -> None:
        if log_set.state.stamp != before:  # published, and there was no room for the checkpoints
            end_move(log_set, starts)
            return
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
        if error.errno not in FULL:
            raise
    else:
        return
    for each in gone:
        each.log.drop_indexes(each.what)
    act()
