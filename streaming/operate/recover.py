"""Bring a set of log directories into order: what a writer does before it appends, for all logs.

Recovery takes an unfinished commit back, cuts torn tails off, and makes the indexes of active
segments hold what their batches call for. Handing a set over to a broker begins with that, and so
does taking it back: see :mod:`~kafkalog.streaming.operate.handover`.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.broker import read_topic_id
from kafkalog.checkpoints.commit_state import STATE_FILE, load_state, topic_key
from kafkalog.errors import KafkaLogError, LogDirectoryError
from kafkalog.files.local_paths import split_paths
from kafkalog.files.shield import check_interrupt, shielded
from kafkalog.files.system import system
from kafkalog.model import INTERNAL_TOPICS
from kafkalog.streaming.commit.foreign_tail import open_appender, telling_a_way_out
from kafkalog.streaming.log.append.recovery import correct_indexes
from kafkalog.streaming.log.config import LogConfig
from kafkalog.streaming.log.log_dir import LogDirs
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.log.segment_files import list_base_offsets
from kafkalog.streaming.operate.preview import Preview
from kafkalog.streaming.store.ends.broker_marks import BrokerMarks
from kafkalog.streaming.store.guard import unfinished_salvage
from kafkalog.streaming.store.locks import DirectoryLocks, check_unused
from kafkalog.streaming.store.lost_partitions import lost_id_text, lost_of_living, lost_text
from kafkalog.streaming.store.open_set import check_given, look_at_set, open_set
from kafkalog.streaming.store.os_loss import accept_os_loss as go_on_without
from kafkalog.streaming.store.os_loss import find_os_loss, refuse_os_loss
from kafkalog.streaming.store.ownership import TopicOwners
from kafkalog.streaming.store.partition_end import PartitionEnd
from kafkalog.streaming.store.policy import WAIT_MS, SetPolicy
from kafkalog.streaming.store.stale_lines import check_log_start, forget_log_start
from kafkalog.streaming.store.take_back import take_back
from kafkalog.streaming.store.unsynced import advice

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.store.log_set import LogSet
    from kafkalog.streaming.store.unsynced import LostOffsets

__all__ = ["Upkeep", "opened_set", "put_in_order", "recover", "report_lost"]

_LOG: Final = logging.getLogger("kafkalog.sink")


@dataclass(slots=True)
class Upkeep:
    """What was found and done.

    ``taken_back`` names the unfinished commits that were undone; ``problems`` are what a person has
    to decide on: the logs they name were left alone. ``skipped`` are a broker's own topics, which
    it recovers itself. ``reset`` says which log starts were taken out of their checkpoint,
    ``aborted`` which open transactions were ended, ``written`` what was noted beside the logs;
    ``lost`` which committed offsets a loss of power took, and ``writers`` whose batches count all
    the same. After a dry run it is what would be found and done.
    """

    set_id: str = ""
    taken_back: list[str] = field(default_factory=list)
    partitions: list[PartitionEnd] = field(default_factory=list)
    skipped: list[PartitionDirectory] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    reset: list[str] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    written: list[str] = field(default_factory=list)
    lost: list[LostOffsets] = field(default_factory=list)
    writers: list[str] = field(default_factory=list)


@shielded
def recover(
    paths: Sequence[str],
    *,
    reset_log_start: bool = False,
    accept_os_loss: bool = False,
    dry_run: bool = False,
    wait_ms: int = WAIT_MS,
) -> Upkeep:
    """Do what the next writer would do first, so that a broker may start or a copy be made.

    With ``reset_log_start`` log starts that lie above the ends of their logs are forgotten: they
    are those of earlier topics of the same names. Otherwise they are problems. With
    ``accept_os_loss`` logs end where a loss of power has left the records of ``flush=os``. With
    ``dry_run`` nothing is changed, nor locked.

    Raises:
        LogDirectoryError: a path is no log directory that the sink wrote, or a broker holds it.
        KafkaLogError: the directories are no whole set, or their state cannot be trusted.
    """
    with opened_set(paths, wait_ms=wait_ms, dry_run=dry_run) as log_set:
        preview = Preview(log_set) if dry_run else None
        done = put_in_order(
            log_set,
            resets_log_start=reset_log_start,
            accepts_os_loss=accept_os_loss,
            preview=preview,
        )
        report_lost(log_set, done)
        return done


@contextmanager
def opened_set(
    paths: Sequence[str],
    *,
    wait_ms: int = WAIT_MS,
    holder: str = "kafkalog recover",
    dry_run: bool = False,
) -> Iterator[LogSet]:
    """Lock and open directories that the sink has written to, in a shielded thread.

    Nothing is made.

    With ``dry_run`` they are not locked, but refused if somebody else has done so.

    Raises:
        LogDirectoryError: none of them has a commit state, or a broker holds one.
    """
    policy = SetPolicy(allows_broker=True, wait_ms=wait_ms)
    directories = LogDirs(split_paths(",".join(paths))).paths
    for folder in directories:
        if not folder.is_dir():
            raise LogDirectoryError(f"{folder} is no log directory: there is no such folder")
    check_given(directories)
    if all(load_state(folder) is None for folder in directories):
        raise LogDirectoryError(
            f"{', '.join(map(str, directories))}: there is no {STATE_FILE}, so the sink never "
            "wrote here; a broker recovers its own directories when it starts"
        )
    if dry_run:
        for folder in directories:
            check_unused(folder)
        yield look_at_set(directories, policy)
        return
    with DirectoryLocks(directories, holder=holder, timeout_ms=policy.wait_ms) as locks:
        log_set = open_set(directories, policy)
        log_set.verify_locks = locks.verify
        yield log_set


def put_in_order(
    log_set: LogSet,
    *,
    takes_over: bool = False,
    resets_log_start: bool = False,
    accepts_os_loss: bool = False,
    preview: Preview | None = None,
) -> Upkeep:
    """Take unfinished commits back, then look at the end of each log; the caller holds the locks.

    ``takes_over``: the logs are the truth as they are, see
    :func:`~kafkalog.streaming.commit.foreign_tail.open_appender`. With a ``preview`` nothing is
    changed.

    Raises:
        KafkaLogError: an unfinished commit cannot be taken back; nothing else was done then.
    """
    unfinished = [f"batch {each.batch_id} of {each.writer}" for each in log_set.unfinished()]
    done = Upkeep(log_set.state.set_id, unfinished)
    _look_for_os_loss(log_set, done, accepts=accepts_os_loss, dry_run=preview is not None)
    if preview is None:
        take_back(log_set, durable=True)
    done.problems += filter(None, map(unfinished_salvage, log_set.directories))
    log_dirs = LogDirs(log_set.directories)
    partitions = log_dirs.partitions()
    marks = BrokerMarks()
    owners = TopicOwners(log_set.state)
    for key, found in partitions.items():
        check_interrupt()
        known = log_set.state.topic(key.topic, read_topic_id(found.path))
        if key.topic in INTERNAL_TOPICS and known is None:
            done.skipped.append(found)
            continue
        if preview is not None and preview.goes_away(key):
            continue
        if not _is_partition(log_set, found):
            _LOG.warning("%s has no .log file: it is not taken for a partition", found.path)
            continue
        try:
            owners.check_folder(found)
            if preview is None:
                end = _put_partition_in_order(log_set, key, found, marks, takes_over=takes_over)
            else:
                end = _previewed(log_set, key, found, marks, preview, done)
            start = marks.log_start(found)
            if resets_log_start and start > end.end:
                done.reset.append(f"log start {start} of {key}, whose log ends at {end.end}")
                if preview is None:
                    forget_log_start(found)
            else:
                check_log_start(found, start, end.end)
            done.partitions.append(end)
        except KafkaLogError as error:
            done.problems.append(str(error))
    return done


def _is_partition(log_set: LogSet, found: PartitionDirectory) -> bool:
    """Tell whether a folder with a partition's name is one: it holds a segment, or is known."""
    name, number = found.topic_partition
    known = log_set.state.high_watermark(name, read_topic_id(found.path), number)
    return known is not None or bool(list_base_offsets(found.path))


def _look_for_os_loss(log_set: LogSet, done: Upkeep, *, accepts: bool, dry_run: bool) -> None:
    """Refuse to go on after records that flush=os left to the system are lost, or do without."""
    if not accepts:
        refuse_os_loss(log_set, mends=not dry_run)
        return
    done.lost = find_os_loss(log_set) if dry_run else go_on_without(log_set)
    writers = log_set.state.writers.items()
    done.writers = sorted(f"{name}, batch {last.batch_id}" for name, last in writers)


def report_lost(log_set: LogSet, done: Upkeep) -> None:
    """Add to the problems which partitions are committed and not there, or have lost their id."""
    state = log_set.state
    for each in done.partitions:
        name = each.topic_partition.topic
        known = state.key_of(name, None)
        if each.key == topic_key(name, None) != known:
            done.problems.append(lost_id_text(each.where.path, name, known))
    lost = lost_of_living(state, LogDirs(log_set.directories).partitions())
    done.problems += [lost_text(topic, numbers) for topic, numbers in lost]


def _previewed(
    log_set: LogSet,
    key: TopicPartition,
    found: PartitionDirectory,
    marks: BrokerMarks,
    preview: Preview,
    done: Upkeep,
) -> PartitionEnd:
    topic_id = read_topic_id(found.path)
    known = log_set.state.topic(key.topic, topic_id)
    config = LogConfig.from_mapping(known.settings if known else {})
    expected = preview.expect(key, found, config, marks)
    done.aborted += expected.aborted
    with PartitionLog(found.path, key) as log:
        start = log.log_start_offset
    name = topic_key(key.topic, topic_id)
    return PartitionEnd(key, found, name, start, expected.end, expected.corrected)


def _put_partition_in_order(
    log_set: LogSet,
    key: TopicPartition,
    found: PartitionDirectory,
    marks: BrokerMarks,
    *,
    takes_over: bool,
) -> PartitionEnd:
    topic_id = read_topic_id(found.path)
    known = log_set.state.topic(key.topic, topic_id)
    config = LogConfig.from_mapping(known.settings if known else {})
    appender = open_appender(
        found.path,
        key,
        config,
        now_ms=system.time_ns() // 1_000_000,
        topic_id=topic_id,
        committed_end=log_set.state.high_watermark(key.topic, topic_id, key.partition),
        marks=marks,
        takes_over=takes_over,
        advice=advice(known, key.partition),
    )
    corrected: list[Path] = []
    with PartitionLog(found.path, key) as log:
        start = log.log_start_offset
        if log.segments:
            with telling_a_way_out():
                corrected = correct_indexes(
                    found.path,
                    log.segments[-1].base_offset,
                    index_interval_bytes=config.index_interval_bytes,
                )
    return PartitionEnd(
        key,
        found,
        topic_key(key.topic, topic_id),
        start,
        appender.log_end_offset,
        tuple(path.name for path in corrected),
    )
