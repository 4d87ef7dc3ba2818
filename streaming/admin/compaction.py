"""Compact the topics that were given ``cleanup.policy=compact``, as a broker's cleaner does.

Which partitions are due is looked up first; then several are cleaned side by side, the dirtiest
first (:mod:`~kafkalog.streaming.admin.cleaning`). Retention of topics with ``compact,delete``
follows, as in a broker. ``__consumer_offsets`` is such a topic, too: each commit of a group adds to
it, and whoever joins reads it from its start.

Source: Kafka ``LogCleaner``, ``LogCleanerManager.grabFilthiestCompactedLog``.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import numpy as np

from kafkalog.checkpoints.bucket_state import BucketCommit, Extent, segment_name
from kafkalog.errors import KafkaLogError, UnknownTopicOrPartitionError
from kafkalog.files.deferred_signals import Interrupted, shielded
from kafkalog.files.parallel import available_cores
from kafkalog.files.system import said_of_file, system
from kafkalog.model import (
    ALL_TOPICS,
    INTERNAL_TOPICS,
    NO_TIMESTAMP,
    OFFSETS_TOPIC,
    TopicPartition,
    TopicSelection,
    listed,
    partition_directory_name,
)
from kafkalog.streaming.admin.cleaning import (
    CleanedPartition,
    CleaningTask,
    clean_partition,
    inspect_state,
    is_due,
)
from kafkalog.streaming.admin.old_segments import logs_of_ours, opened_logs
from kafkalog.streaming.admin.retention import Deleted, expire_in_bucket, retain_set
from kafkalog.streaming.log.compaction.cleanable import find_cleanable
from kafkalog.streaming.log.compaction.cleaner import clean_log
from kafkalog.streaming.log.compaction.offset_map import DEFAULT_MEMORY, OffsetMap
from kafkalog.streaming.log.compaction.transactions import LastRecords
from kafkalog.streaming.log.files import OFFSET_INDEX, TIME_INDEX, TXN_INDEX
from kafkalog.streaming.log.indexes import TIME_ENTRY
from kafkalog.streaming.log.swap import Removed
from kafkalog.streaming.objects.bucket_files import segment_number
from kafkalog.streaming.objects.bucket_log import Proposal
from kafkalog.streaming.objects.bucket_store import bucket_of
from kafkalog.streaming.objects.merging import put_segment, replacement, sealed_indexes
from kafkalog.streaming.options.topic_settings import LogConfig, understood
from kafkalog.streaming.store.locks import CleanerBusyError, remove_orphans
from kafkalog.streaming.store.policy import WAIT_MS
from kafkalog.streaming.store.session import parse_paths
from kafkalog.streaming.store.topics import check_known

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future
    from contextlib import AbstractContextManager

    from kafkalog.checkpoints.bucket_state import BucketState
    from kafkalog.checkpoints.commit_state import PartitionState, TopicState
    from kafkalog.streaming.admin.old_segments import ManagedLog
    from kafkalog.streaming.log.compaction.cleanable import Cleanable
    from kafkalog.streaming.log.compaction.cleaner import CleanedGroup, CleanedLog
    from kafkalog.streaming.objects.bucket_store import BucketRoot
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

    ``topics``: these only; ``partition``: this number of each only. ``config``: settings by Kafka's
    names, for what was not given to the topics themselves. ``forces``: whatever the dirty ratio,
    and until all is clean that can be. ``allows_broker``: though a broker had the directories last.
    ``memory``: bytes for the maps of offsets, of all partitions that are cleaned at once.
    ``wait_ms``: how long to wait for a writer of ours.
    """

    topics: TopicSelection = ALL_TOPICS
    partition: int | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    forces: bool = False
    allows_broker: bool = False
    memory: int = DEFAULT_MEMORY
    wait_ms: int = WAIT_MS

    def concerns(self, key: TopicPartition) -> bool:
        """Tell whether it is about a partition."""
        return key.topic in self.topics and self.partition in {None, key.partition}


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
    if (root := bucket_of(paths)) is not None:
        LogConfig.from_mapping(wanted.config)
        return _compact_bucket(root, wanted, dry_run=dry_run)
    plan = plan_compaction(paths, wanted, dry_run=dry_run)
    done = Compacted(plan.set_id, [*plan.clean], plan.left_alone, plan.problems, plan.removed)
    if dry_run:
        done.partitions += [each.found for each in plan.due]
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
        if not is_due(cleanable, LogConfig.of_topic(settings), forces=wanted.forces):
            plan.clean.append(found)
            if wanted.forces:
                plan.left_alone[str(log.where.topic_partition)] = _NOTHING_DUE
            continue
        if dry_run:
            found = found.planned(cleanable, log.segments)
        task = CleaningTask(
            parse_paths(paths),
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
            key, settings = log.where.topic_partition, _settings_of(wanted, log.topic)
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


def _settings_of(wanted: Wanted, topic: TopicState) -> dict[str, str]:
    """Return the settings that count; the topic of groups has its own, whatever else is given."""
    given = {} if topic.name == OFFSETS_TOPIC else wanted.config
    return {**given, **topic.settings}


def _opened(
    paths: Sequence[str], wanted: Wanted, *, dry_run: bool
) -> AbstractContextManager[LogSet]:
    return opened_logs(
        paths,
        "kafkalog compact",
        allows_broker=wanted.allows_broker,
        dry_run=dry_run,
        wait_ms=wanted.wait_ms,
    )


def _check_known(log_set: LogSet, wanted: Wanted) -> None:
    check_known(log_set.state, log_set.directories, wanted.topics)
    for name in wanted.topics.named if wanted.partition is not None else ():
        known = [topic for topic in log_set.state.topics.values() if topic.name == name]
        numbers = sorted({number for topic in known for number in topic.partitions})
        if wanted.partition not in numbers:
            raise UnknownTopicOrPartitionError(
                f"the commit state knows no partition {wanted.partition} of topic {name!r}, "
                f"but {listed(map(str, numbers))}"
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


# ----------------------------------------------------------------------------------------------
# The same in an object store: sealed segments are read through the store, cleaned into a local
# folder, and put under names of their own. One commit lets them take the place of the others, if
# by then those are still there. Nobody is locked out: of two who clean a partition one has done it.


_CHANGED: Final = "it was changed by others while it was cleaned"


class _BucketPartition(NamedTuple):
    """A partition of a log in an object store as it was found, at the commit ``newest``."""

    root: BucketRoot
    topic_id: str
    where: TopicPartition
    folder: Path
    state: PartitionState
    segments: list[Extent]
    clean_to: int | None
    newest: int

    @classmethod
    def find(cls, root: BucketRoot, topic_id: str, where: TopicPartition) -> Self | None:
        """Look what is sealed of a partition; None if it is gone."""
        with root.writing() as log:
            state = log.follow()
            topic = state.topics.get(topic_id)
            if topic is None:
                return None
            key = (topic_id, where.partition)
            sealed = [each for each in state.extents.get(key, ()) if each.sealed is not None]
            folder = root.open_store().root / partition_directory_name(*where)
            found = (topic.partitions[where.partition], sealed, state.clean.get(key), state.number)
        return cls(root, topic_id, where, folder, *found)

    def cleanable(self, config: LogConfig, now_ms: int) -> Cleanable | None:
        """Look how far it is clean, and how far it can be; what is not sealed is active."""
        log_start, _, log_end, _ = self.state
        return find_cleanable(
            self.folder,
            config,
            clean_to=self.clean_to,
            log_start=log_start,
            log_end=log_end,
            high_watermark=self.segments[-1].end_offset if self.segments else log_start,
            now_ms=now_ms,
            has_transactions=False,  # no writer of such a log has any, nor producers with sequences
        )

    def replaced(self, group: CleanedGroup) -> list[Extent] | None:
        """Return the segments that a group was made of; None if it has read others."""
        known = {each.base_offset: each for each in self.segments}
        found = [known.get(source.base_offset) for source in group.sources]
        pairs = zip(found, group.sources, strict=True)
        if any(e is None or segment_number(e) != source.identity.inode for e, source in pairs):
            return None
        return [each for each in found if each is not None]


def _compact_bucket(root: BucketRoot, wanted: Wanted, *, dry_run: bool) -> Compacted:
    root.open_store().committed()  # else a log would be made where there is none
    with root.writing() as log:
        state = log.follow()
        done = Compacted(state.log_id, [], {}, [], Removed())
        topics = {key: topic for key, topic in state.topics.items() if topic.name in wanted.topics}
    check_known(state, [root], wanted.topics)
    shortens: set[TopicPartition] = set()
    for key, topic in topics.items():
        if topic.name in INTERNAL_TOPICS and topic.name != OFFSETS_TOPIC:
            continue
        settings = _settings_of(wanted, topic)
        reason = _reason_against(topic.name, settings)
        if reason is not None:
            done.left_alone[topic.name] = reason
            continue
        for number in topic.partitions:
            where = TopicPartition(topic.name, number)
            if wanted.concerns(where):
                _compact_in_bucket(root, key, where, settings, wanted, done, dry_run=dry_run)
                if "delete" in LogConfig.of_topic(settings).cleanup_policy:
                    shortens.add(where)
    if shortens:
        done.retention = expire_in_bucket(root, wanted.config, chosen=shortens, dry_run=dry_run)
    return done


def _compact_in_bucket(
    root: BucketRoot,
    topic_id: str,
    where: TopicPartition,
    settings: Mapping[str, str],
    wanted: Wanted,
    done: Compacted,
    *,
    dry_run: bool,
) -> None:
    """Clean a partition if it is due; forced, until all is clean that can be."""
    config, total = LogConfig.of_topic(settings), None
    try:
        while (partition := _BucketPartition.find(root, topic_id, where)) is not None:
            now_ms = system.time_ns() // 1_000_000
            cleanable = partition.cleanable(config, now_ms)
            start, ratio = partition.state.log_start, 0.0
            if cleanable is not None:
                start, ratio = cleanable.first_dirty_offset, cleanable.dirty_ratio
            total = total or CleanedPartition(where, partition.folder, ratio, start)
            if not is_due(cleanable, config, forces=wanted.forces):
                break
            if dry_run:
                total = total.planned(cleanable, partition.segments)
                break
            cleaned, counts = _clean_in_bucket(partition, cleanable, config, wanted, now_ms)
            if cleaned is None:
                done.left_alone[str(where)] = _CHANGED
                break
            total = total.after(cleaned, counts)
            if cleaned.is_complete or not wanted.forces:
                break
    except (KafkaLogError, OSError) as error:
        if _is_deleted(root, topic_id):
            done.left_alone[str(where)] = _CHANGED
        else:
            done.problems.append(f"{where}: {said_of_file(error)}")
    if total is not None:
        done.partitions.append(total)


def _is_deleted(root: BucketRoot, topic_id: str) -> bool:
    with suppress(KafkaLogError), root.writing() as log:
        return topic_id not in log.follow().topics
    return False


def _clean_in_bucket(
    partition: _BucketPartition,
    cleanable: Cleanable,
    config: LogConfig,
    wanted: Wanted,
    now_ms: int,
) -> tuple[CleanedLog | None, tuple[int, int]]:
    """Clean a partition once; None where others have replaced or dropped what was read."""
    with TemporaryDirectory(prefix="kafkalog-compact-") as output:
        cleaned = clean_log(
            partition.folder,
            Path(output),
            cleanable,
            config,
            offsets=OffsetMap(wanted.memory),
            last_records=LastRecords(),
            now_ms=now_ms,
        )
        changes = []
        for group in cleaned.groups:
            old = partition.replaced(group)
            if old is None:
                return None, (0, 0)
            changes.append((old, _put_group(partition, group, old)))
    if not _commit_cleaned(partition, changes, cleaned.clean_to):
        return None, (0, 0)
    return cleaned, (sum(len(old) for old, _ in changes), sum(len(new) for _, new in changes))


def _put_group(
    partition: _BucketPartition, group: CleanedGroup, old: Sequence[Extent]
) -> list[Extent]:
    """Put the segments that a group became; return them, with the offsets of those before."""
    ends = [*(each.base_offset for each in group.segments[1:]), old[-1].end_offset]
    folder = f"{partition.topic_id}/{partition.where}"
    found = []
    for segment, end in zip(group.segments, ends, strict=True):
        name = segment_name(folder, segment.base_offset, partition.newest, system.random_id().hex)
        put_segment(partition.root, name, segment.files)
        content = {file.suffix: file for file in segment.files}
        times = content[TIME_INDEX].read_bytes()
        txn = content.get(TXN_INDEX)
        last = np.frombuffer(times, TIME_ENTRY)[-1:]["timestamp"].tolist()
        found.append(
            Extent(
                name,
                0,
                segment.size,
                segment.base_offset,
                end - segment.base_offset,
                last[0] if last else NO_TIMESTAMP,
                old[0].leader_epoch,
                sealed=sealed_indexes(
                    content[OFFSET_INDEX].read_bytes(), times, txn.stat().st_size if txn else 0
                ),
            )
        )
    return found


def _commit_cleaned(
    partition: _BucketPartition,
    changes: Sequence[tuple[Sequence[Extent], Sequence[Extent]]],
    clean_to: int,
) -> bool:
    key = (partition.topic_id, partition.where.partition)

    def propose(state: BucketState) -> Proposal | None:
        first = next((each.base_offset for each in state.extents.get(key, ())), clean_to)
        left = [change for change in changes if change[0][-1].end_offset > first]
        if key[0] not in state.topics or not all(replacement(state, key, old) for old, _ in left):
            return None
        new = [extent for _, some in left for extent in some]
        change = BucketCommit(replaced={key: new} if new else {}, clean={key: clean_to})
        return Proposal(change, is_known_again=True)

    with partition.root.writing() as log:
        return log.commit(propose) is not None
