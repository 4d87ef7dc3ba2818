"""Compact the topics that were given ``cleanup.policy=compact``, as a broker's cleaner does.

Which partitions are due is looked up first; then several are cleaned side by side, the dirtiest
first (:mod:`~kafkalog.streaming.admin.cleaning`). Retention of topics with ``compact,delete``
follows, as in a broker. ``__consumer_offsets`` is such a topic, too: each commit of a group adds to
it, and whoever joins reads it from its start.

Source: Kafka ``LogCleaner``, ``LogCleanerManager.grabFilthiestCompactedLog``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from kafkalog.errors import KafkaLogError, UnknownTopicOrPartitionError
from kafkalog.files.deferred_signals import Interrupted, shielded
from kafkalog.files.parallel import available_cores
from kafkalog.files.system import said_of_file, system
from kafkalog.model import OFFSETS_TOPIC, listed
from kafkalog.streaming.admin.cleaning import (
    CleanedPartition,
    CleaningTask,
    clean_partition,
    inspect_state,
    is_due,
)
from kafkalog.streaming.admin.old_segments import logs_of_ours, opened_logs
from kafkalog.streaming.admin.retention import Deleted, retain_set
from kafkalog.streaming.log.compaction.offset_map import DEFAULT_MEMORY
from kafkalog.streaming.log.swap import Removed
from kafkalog.streaming.options.topic_settings import LogConfig, understood
from kafkalog.streaming.store.locks import CleanerBusyError, remove_orphans
from kafkalog.streaming.store.policy import WAIT_MS
from kafkalog.streaming.store.session import places
from kafkalog.streaming.store.topics import check_known

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future
    from contextlib import AbstractContextManager

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.admin.old_segments import ManagedLog
    from kafkalog.streaming.store.log_set import LogSet

__all__ = ["Compacted", "Due", "Plan", "Wanted", "compact", "plan_compaction"]

_NOTHING_DUE: Final = (
    "there is nothing to compact: what was appended since the last time lies in the active "
    "segment, which is left alone. It is closed once it has segment.bytes, or by an append after "
    "segment.ms"
)
_DECIDE: Final = (
    "cleanup.policy",
    "delete.retention.ms",
    "max.compaction.lag.ms",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be compacted, and how.

    ``topic``: this one only; ``partition``: this number of it only. ``config``: settings by Kafka's
    names, for what was not given to the topics themselves. ``forces``: whatever the dirty ratio,
    and until all is clean that can be. ``allows_broker``: though a broker had the directories last.
    ``memory``: bytes for the maps of offsets, of all partitions that are cleaned at once.
    ``wait_ms``: how long to wait for a writer of ours.
    """

    topic: str | None = None
    partition: int | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    forces: bool = False
    allows_broker: bool = False
    memory: int = DEFAULT_MEMORY
    wait_ms: int = WAIT_MS

    def concerns(self, key: TopicPartition) -> bool:
        """Tell whether it is about a partition."""
        return self.topic in {None, key.topic} and self.partition in {None, key.partition}


@dataclass(frozen=True, slots=True)
class Due:
    """A partition that is to be cleaned, what was found there, and the bytes that it reads."""

    task: CleaningTask
    found: CleanedPartition
    bytes: int


@dataclass(slots=True)
class Plan:
    """What is to be cleaned, the dirtiest first, and what is not.

    ``clean`` are those that are not due. ``left_alone`` says why for each topic that was, or for
    each partition. ``problems`` are what a person has to decide on. ``shortens`` are the partitions
    of topics with ``compact,delete``. ``removed`` are files of earlier rounds that were unlinked.
    """

    set_id: str = ""
    due: list[Due] = field(default_factory=list)
    clean: list[CleanedPartition] = field(default_factory=list)
    left_alone: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    shortens: set[TopicPartition] = field(default_factory=set)
    removed: Removed = field(default_factory=Removed)


@dataclass(slots=True)
class Compacted:
    """What was done; after a dry run what would be: see :class:`Plan`.

    ``retention`` is what was done about topics with ``compact,delete``; None without any.
    """

    set_id: str
    partitions: list[CleanedPartition]
    left_alone: dict[str, str]
    problems: list[str]
    removed: Removed
    retention: Deleted | None = None


def compact(
    paths: Sequence[str],
    wanted: Wanted | None = None,
    *,
    dry_run: bool = False,
    progress: Callable[[Due, int], object] = lambda *_: None,
) -> Compacted:
    """Compact what a broker's cleaner would, in all log directories of a set.

    Args:
        paths: the log directories.
        wanted: which topics, and how.
        dry_run: whether to say only what would be done, and change nothing.
        progress: is told of a partition that is cleaned, and of the bytes read since it was last
            told; from several threads.

    Raises:
        OptionError: a setting that Kafka would refuse.
        UnknownTopicOrPartitionError: the commit state does not know the topic or partition.
        KafkaLogError: the directories are no whole set, or somebody else holds them.
    """
    wanted = wanted or Wanted()
    plan = plan_compaction(paths, wanted, dry_run=dry_run)
    done = Compacted(plan.set_id, [*plan.clean], plan.left_alone, plan.problems, plan.removed)
    if dry_run:
        done.partitions += [replace(each.found, rounds=1) for each in plan.due]
    else:
        _clean_all(plan.due, wanted, done, progress)
    done.partitions.sort(key=lambda each: each.topic_partition)
    if plan.shortens:
        done.retention = _shorten(paths, wanted, plan.shortens, dry_run=dry_run)
    return done


def plan_compaction(
    paths: Sequence[str], wanted: Wanted | None = None, *, dry_run: bool = False
) -> Plan:
    """Look what is due, after a short session that ends what killed cleaners have left.

    Raises:
        OptionError, UnknownTopicOrPartitionError, KafkaLogError: as :func:`compact`.
    """
    wanted = wanted or Wanted()
    LogConfig.from_mapping(wanted.config)
    plan = Plan()
    logs = _logs(paths, wanted, plan, dry_run=dry_run)
    now_ms = system.time_ns() // 1_000_000
    for log, settings in logs:
        try:
            cleanable = inspect_state(log, settings, now_ms)
        except (KafkaLogError, OSError) as error:
            plan.problems.append(said_of_file(error))
            continue
        found = CleanedPartition.of(log, cleanable)
        config = LogConfig.of_topic(settings)
        if not is_due(cleanable, config, forces=wanted.forces):
            plan.clean.append(found)
            if wanted.forces:
                plan.left_alone[str(log.where.topic_partition)] = _NOTHING_DUE
            continue
        task = CleaningTask(
            places(paths),
            log.where.topic_partition,
            log.key,
            settings,
            wanted.forces,
            wanted.allows_broker,
            wanted.memory,
            wanted.wait_ms,
        )
        plan.due.append(Due(task, found, cleanable.clean_bytes + 2 * cleanable.dirty_bytes))
    plan.due.sort(key=lambda due: -due.found.ratio)
    return plan


@shielded
def _logs(
    paths: Sequence[str], wanted: Wanted, plan: Plan, *, dry_run: bool
) -> list[tuple[ManagedLog, dict[str, str]]]:
    """Return the logs of topics that are compacted, with their settings; end what was cut off."""
    logs = []
    with _opened(paths, wanted, dry_run=dry_run) as log_set:
        plan.set_id, plan.removed = log_set.state.set_id, log_set.removed
        _check_known(log_set, wanted)
        for folder in () if dry_run else log_set.directories:
            with log_set.node.isolated_at(folder):
                remove_orphans(folder)
        for log in logs_of_ours(
            *(log_set, wanted.concerns, plan.left_alone, plan.problems),
            ends_swaps=not dry_run,
            internal={OFFSETS_TOPIC},
        ):
            key, settings = log.where.topic_partition, _settings(wanted, log)
            reason = _reason_against(key.topic, settings)
            if reason is not None:
                plan.left_alone[key.topic] = reason
                continue
            try:
                log.check_end()
            except (KafkaLogError, OSError) as error:
                plan.problems.append(said_of_file(error))
                continue
            if "delete" in LogConfig.of_topic(settings).cleanup_policy:
                plan.shortens.add(key)
            logs.append((log, settings))
    return logs


def _settings(wanted: Wanted, log: ManagedLog) -> dict[str, str]:
    """Return the settings that count; the topic of groups has its own, whatever else is given."""
    given = {} if log.topic.name == OFFSETS_TOPIC else wanted.config
    return {**given, **log.topic.settings}


def _opened(
    paths: Sequence[str], wanted: Wanted, *, dry_run: bool
) -> AbstractContextManager[LogSet]:
    return opened_logs(
        paths,
        "kafkalog compact",
        allows_broker=wanted.allows_broker,
        dry_run=dry_run,
        wait_ms=wanted.wait_ms,
        knows_nodes=True,
    )


def _check_known(log_set: LogSet, wanted: Wanted) -> None:
    check_known(log_set.state, log_set.directories, wanted.topic)
    known = [topic for topic in log_set.state.topics.values() if topic.name == wanted.topic]
    if wanted.partition is not None and not any(wanted.partition in t.partitions for t in known):
        numbers = listed(str(number) for topic in known for number in sorted(topic.partitions))
        raise UnknownTopicOrPartitionError(
            f"the commit state knows no partition {wanted.partition} of topic {wanted.topic!r}, "
            f"but {numbers}"
        )


def _reason_against(topic: str, settings: Mapping[str, str]) -> str | None:
    """Say why a topic is not compacted; None if it is."""
    if "cleanup.policy" not in settings and topic == OFFSETS_TOPIC:
        return "it was not given cleanup.policy=compact"
    if "cleanup.policy" not in settings:
        return "cleanup.policy was not given. --config cleanup.policy=compact gives it to this run"
    known = understood(settings)
    for name in _DECIDE:
        if name in settings and name not in known:
            return f"{name} is {settings[name]!r}, which is not understood"
    if "compact" not in LogConfig.of_topic(settings).cleanup_policy:
        return f"cleanup.policy is {settings['cleanup.policy']}"
    return None


def _clean_all(
    due: Sequence[Due],
    wanted: Wanted,
    done: Compacted,
    progress: Callable[[Due, int], object],
) -> None:
    """Clean partitions side by side; whoever interrupts this waits until all have stopped."""
    if not due:
        return
    workers = min(len(due), available_cores())
    is_over = False

    def tell(each: Due, count: int) -> None:
        if is_over:
            raise Interrupted
        progress(each, count)

    def clean(each: Due) -> CleanedPartition:
        tell(each, 0)
        task = each.task._replace(memory=wanted.memory // workers)
        return clean_partition(task, partial(tell, each))

    with system.pool(workers, "kafkalog-compact") as pool:
        try:
            futures = [(each, pool.submit(clean, each)) for each in due]
            for each, future in futures:
                _note(each, future, done)
        finally:
            is_over = True


def _note(each: Due, future: Future[CleanedPartition], done: Compacted) -> None:
    try:
        done.partitions.append(future.result())
    except CleanerBusyError as error:
        done.left_alone[str(each.task.topic_partition)] = str(error)
    except (KafkaLogError, OSError) as error:
        done.problems.append(said_of_file(error))


@shielded
def _shorten(
    paths: Sequence[str], wanted: Wanted, keys: set[TopicPartition], *, dry_run: bool
) -> Deleted:
    with _opened(paths, wanted, dry_run=dry_run) as log_set:
        concerns = keys.__contains__
        return retain_set(log_set, config=wanted.config, concerns=concerns, dry_run=dry_run)
