"""Create, alter and delete topics; let the logs of a copy start and end as the original's do."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from kafkalog.checkpoints.broker import new_topic_id, read_topic_id
from kafkalog.checkpoints.commit_state import PartitionState, TopicState, topic_key
from kafkalog.checkpoints.committed import Committed
from kafkalog.checkpoints.state_file import load_state
from kafkalog.errors import (
    LogDirectoryError,
    OffsetOutOfRangeError,
    OptionError,
    UnknownTopicOrPartitionError,
)
from kafkalog.files.deferred_signals import shielded
from kafkalog.files.system import system
from kafkalog.model import MAX_OFFSET, listed, partition_directory_name
from kafkalog.streaming.admin.groups import forget_positions
from kafkalog.streaming.admin.old_segments import opened_after_broker
from kafkalog.streaming.admin.retention import delete_records
from kafkalog.streaming.commit.append import CommitSettings
from kafkalog.streaming.commit.bucket_commit import TopicChange, change_topics, commit_batch
from kafkalog.streaming.commit.committer import Committer
from kafkalog.streaming.commit.preserved_offsets import CopiedEnd
from kafkalog.streaming.log.segments import LogSegments
from kafkalog.streaming.objects.bucket_store import bucket_of
from kafkalog.streaming.options.topic_settings import (
    LOG_CONFIG_NAMES,
    REMOTE_STORAGE,
    LogConfig,
    is_remote,
    understood,
)
from kafkalog.streaming.store.folder_changes import delete_topics
from kafkalog.streaming.store.identity import BatchIdentity
from kafkalog.streaming.store.log_dirs import check_no_link
from kafkalog.streaming.store.open_set import check_given, has_nodes
from kafkalog.streaming.store.policy import BY_FLAG, WAIT_MS, SetPolicy, TopicPolicy
from kafkalog.streaming.store.replicas.election import check_one_node
from kafkalog.streaming.store.session import (
    ensure_set,
    existing_log_dirs,
    parse_paths,
    refuse_nodes,
    require_commit_state,
)
from kafkalog.streaming.store.topics import (
    Topic,
    TopicCatalog,
    check_no_collision,
    check_writable,
    unknown_topic,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from contextlib import AbstractContextManager

    from kafkalog.checkpoints.bucket_state import BucketState
    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.objects.bucket_store import BucketRoot
    from kafkalog.streaming.store.log_set import LogSet


__all__ = ["Altered", "Bounds", "Deleted", "alter", "create", "delete", "set_bounds"]


# ----------------------------------------------------------------------------------------------
# Create, alter and delete topics.
#
# A topic is created, and gets more partitions, as a commit makes those of new topics: visible all
# at once, and rolled back if it is cut off. Settings change by one rename of the commit state. How
# a topic is deleted: :mod:`~kafkalog.streaming.store.folder_changes`.


class Altered(NamedTuple):
    """A topic before and after: how many partitions, and which settings by Kafka's names.

    ``set_id`` is empty in a dry run of what makes the directories first.
    """

    set_id: str
    topic: str
    partitions_before: int
    partitions: int
    settings_before: Mapping[str, str]
    settings: Mapping[str, str]


class Deleted(NamedTuple):
    """What was deleted: a topic, its folders, and the bytes of its segments, as lists have them."""

    set_id: str
    topic: str
    folders: tuple[Path, ...]
    bytes: int


@shielded
def create(
    paths: Sequence[str],
    topic: str,
    *,
    partitions: int = 1,
    config: Mapping[str, str] | None = None,
    starts: Mapping[int, int] | None = None,
    replication_factor: int | None = None,
    allows_broker: bool = False,
    dry_run: bool = False,
) -> Altered:
    """Create a topic with empty partitions.

    Args:
        paths: all log directories of the set; the first topic makes those that are not there.
        topic: its name.
        partitions: how many it gets.
        config: its settings, by Kafka's names.
        replication_factor: how many replicas each has on a set of several nodes.
        starts: the first offsets of partitions that do not begin at 0, as those of a copy.
        allows_broker: whether to do so though a broker had the directories last.
        dry_run: whether to say only what would be done, and change nothing.

    Raises:
        OptionError: the topic exists; or a setting or number that Kafka would refuse.
        KafkaLogError: no topic may have the name; no whole set, or somebody else holds it.
    """
    given, first = dict(config or {}), _starts(partitions, starts or {})
    _check_asked(topic, partitions, given)
    done = Altered("", topic, 0, partitions, {}, given)
    if root := bucket_of(paths):
        return _create_in_bucket(root, done, first, replication_factor, dry_run=dry_run)
    if not _are_there(paths, replication_factor, allows_broker=allows_broker, dry_run=dry_run):
        return done
    opened = partial(_opened, paths, "kafkalog topic create", starts=True, dry_run=dry_run)
    with opened(allows_broker=allows_broker) as log_set:
        wanted = _wanted(log_set, done, replication_factor)
        if not dry_run:
            _make(log_set, wanted, first, replication_factor)
        return done._replace(set_id=log_set.state.set_id)


def _wanted(log_set: LogSet, asked: Altered, replication_factor: int | None) -> Topic:
    policy = TopicPolicy(partitions=asked.partitions, settings=asked.settings)
    wanted = _catalog(log_set, policy).topic(asked.topic)
    if wanted.exists:
        raise _there_already(log_set, asked.topic)
    if not log_set.state.is_replicated:
        check_one_node(replication_factor)
    return wanted


def _there_already(log_set: LogSet, topic: str) -> OptionError:
    """Return why a topic cannot be made: it is there, or folders of its partitions are."""
    found = [each for key, each in sorted(log_set.partitions().items()) if key.topic == topic]
    if not found or any(LogSegments.of(each.path) for each in found):
        return OptionError(f"topic {topic!r} exists. `kafkalog topic alter` changes it")
    folders = listed([str(each.path) for each in found])
    return OptionError(
        f"topic {topic!r} is not created: {folders} is there already, without a .log file in it. "
        "Remove it if it is nobody's, or append to the topic, which begins there"
    )


def _check_asked(topic: str, partitions: int | None, given: Mapping[str, str]) -> None:
    check_writable(topic, allow_internal=None)
    LogConfig.from_mapping(given)
    if partitions is not None and not 1 <= partitions < 2**31:
        raise OptionError(f"a topic cannot have {partitions} partitions, expected 1 or more")


def _are_there(
    paths: Sequence[str], replication_factor: int | None, *, allows_broker: bool, dry_run: bool
) -> bool:
    """Make log directories that are not there; in a dry run tell whether any is, and make none."""
    folders = parse_paths(paths)
    found = [Path(folder) for folder in folders]
    if not dry_run:
        allows = allows_broker or _are_ours(found)
        ensure_set(folders, SetPolicy(allows_broker=allows, broker_advice=BY_FLAG))
    elif not any(folder.exists() for folder in found):
        check_given(found)
        if not has_nodes(folders):
            check_one_node(replication_factor)
        return False
    return True


def _starts(partitions: int, given: Mapping[int, int]) -> dict[int, int]:
    """Return the first offset of each partition, by its number."""
    starts = dict.fromkeys(range(partitions), 0) | dict(given)
    if len(starts) > partitions or not all(0 <= each < MAX_OFFSET for each in starts.values()):
        raise OptionError(f"a topic of {partitions} partitions cannot start at {dict(given)}")
    return starts


@shielded
def alter(
    paths: Sequence[str],
    topic: str,
    *,
    partitions: int | None = None,
    config: Mapping[str, str] | None = None,
    unset: Collection[str] = (),
    allows_broker: bool = False,
    dry_run: bool = False,
) -> Altered:
    """Give a topic more partitions, or other settings: all of it at once.

    Args:
        paths: all log directories of the set.
        topic: its name.
        partitions: how many it has after that; None for as many as now.
        config: settings by Kafka's names, in place of those given before or beside them.
        unset: names of settings to take away; whether one was given does not matter.
        allows_broker: whether to do so though a broker had the directories last.
        dry_run: whether to say only what would be done, and change nothing.

    Raises:
        UnknownTopicOrPartitionError: the commit state does not know the topic.
        OptionError: fewer partitions, a setting that Kafka would refuse, or does not have, or that
            does not go with the others.
        KafkaLogError: the directories are no whole set, or somebody else holds them.
    """
    _check_asked(topic, partitions, given := dict(config or {}))
    if (root := bucket_of(paths)) is not None:
        alters = partial(_altered, partitions=partitions, given=given, unset=unset)
        return _alter_in_bucket(root, topic, alters, dry_run=dry_run)
    with _opened(
        paths, "kafkalog topic alter", allows_broker=allows_broker, dry_run=dry_run
    ) as log_set:
        before = _known(log_set, topic)
        after = _altered(before, partitions, given, unset)
        if not dry_run:
            _alter(log_set, before, after)
        counts = before.partitions, after.partitions
        return Altered(log_set.state.set_id, topic, *counts, before.settings, after.settings)


def _altered(
    before: Topic, partitions: int | None, given: Mapping[str, str], unset: Collection[str]
) -> Topic:
    if both := sorted(given.keys() & set(unset)):
        raise OptionError(f"setting {both[0]!r} is both given and taken away")
    unknown = sorted(set(unset) - before.settings.keys() - LOG_CONFIG_NAMES)
    LogConfig.from_mapping(dict.fromkeys(unknown, ""))
    kept = {name: text for name, text in before.settings.items() if name not in unset}
    settings = {**kept, **given}
    LogConfig.from_mapping(understood(settings))
    count = before.partitions if partitions is None else partitions
    if count < before.partitions:
        raise OptionError(
            f"topic {before.name!r} has {before.partitions} partitions and cannot have {count}: "
            "there is no other place for the records of the last ones"
        )
    return replace(before, partitions=count, settings=settings)


def _alter(log_set: LogSet, before: Topic, after: Topic) -> None:
    if after.partitions > before.partitions:
        _make(log_set, after, dict.fromkeys(range(before.partitions, after.partitions), 0))
    elif after.settings != before.settings:
        state = log_set.state
        known = replace(state.topics[before.key], settings=after.settings)
        log_set.publish(state.following(topics={**state.topics, before.key: known}))


@shielded
def delete(
    paths: Sequence[str],
    topic: str,
    *,
    allows_broker: bool = False,
    dry_run: bool = False,
) -> Deleted:
    """Delete a topic with all of its records, and the positions of groups in it, at once.

    If this is cut off, whoever opens the directories next removes the rest. Its folders may be
    gone: a commit to it that was cut off is given up.

    Args:
        paths: all log directories of the set.
        topic: its name.
        allows_broker: whether to do so though a broker had the directories last.
        dry_run: whether to say only what would be done, and change nothing.

    Raises:
        UnknownTopicOrPartitionError: the commit state does not know the topic.
        OptionError: a topic with records in another storage.
        InvalidTopicError, RowError: no topic's name, or a topic of Kafka's own.
        KafkaLogError: folders that are not the topic's own; or the directories are no whole set, or
            somebody else holds them.
    """
    check_writable(topic, allow_internal=None)
    if (root := bucket_of(paths)) is not None:
        return _delete_in_bucket(root, topic, dry_run=dry_run)
    opened = partial(_opened, paths, "kafkalog topic delete", deletes=topic)
    with opened(allows_broker=allows_broker, dry_run=dry_run) as log_set:
        keys = [key for key, known in log_set.state.topics.items() if known.name == topic]
        if not keys:
            raise unknown_topic(log_set.state, log_set.directories, topic)
        found = [each for key, each in log_set.partitions().items() if key.topic == topic]
        _check_deletable(log_set, topic, keys, found)
        size = sum(path.lstat().st_size for each in found for path in each.path.glob("*.log"))
        if not dry_run:
            delete_topics(log_set, keys)
            forget_positions(log_set, topic)
        return Deleted(log_set.state.set_id, topic, tuple(each.path for each in found), size)


# The same in an object store, where a change of topics is a commit


def _create_in_bucket(
    root: BucketRoot,
    asked: Altered,
    starts: Mapping[int, int],
    replication_factor: int | None,
    *,
    dry_run: bool,
) -> Altered:
    check_one_node(replication_factor)
    key = new_topic_id()
    partitions = {n: PartitionState(start, start, start, 0) for n, start in starts.items()}
    made = TopicState(asked.topic, partitions=partitions, settings=asked.settings)

    def change(state: BucketState) -> TopicChange | None:
        if key in state.topics:
            return None
        names = {topic.name for topic in state.topics.values()}
        if asked.topic in names:
            raise OptionError(f"topic {asked.topic!r} exists. `kafkalog topic alter` changes it")
        check_no_collision(asked.topic, names)
        return TopicChange({key: made})

    state = change_topics(root, change, creates=True, dry_run=dry_run)
    return asked._replace(set_id=state.log_id)


def _alter_in_bucket(
    root: BucketRoot, topic: str, alters: Callable[[Topic], Topic], *, dry_run: bool
) -> Altered:
    seen: list[tuple[Topic, Topic]] = []

    def change(state: BucketState) -> TopicChange | None:
        key, known = _in_bucket(root, state, topic)
        before = Topic(topic, len(known.partitions), known.settings, exists=True, topic_id=key)
        after = alters(before)
        seen.append((before, after))
        if (before.partitions, before.settings) == (after.partitions, after.settings):
            return None
        new = range(before.partitions, after.partitions)
        partitions = dict.fromkeys(new, PartitionState(0, 0, 0, 0))
        return TopicChange({key: TopicState(topic, partitions=partitions, settings=after.settings)})

    state = change_topics(root, change, dry_run=dry_run)
    (before, _), (_, after) = seen[0], seen[-1]
    counts = before.partitions, after.partitions
    return Altered(state.log_id, topic, *counts, before.settings, after.settings)


def _delete_in_bucket(root: BucketRoot, topic: str, *, dry_run: bool) -> Deleted:
    found: dict[str, tuple[int, int]] = {}

    def change(state: BucketState) -> TopicChange | None:
        if found and not found.keys() & state.topics.keys():
            return None
        key, known = _in_bucket(root, state, topic)
        places = ((key, number) for number in known.partitions)
        size = sum(each.size for place in places for each in state.extents.get(place, ()))
        found[key] = len(known.partitions), size
        return TopicChange(deleted=(key,))

    state = change_topics(root, change, dry_run=dry_run)
    count, size = list(found.values())[-1]
    log = root.open_store().root
    folders = tuple(log / partition_directory_name(topic, number) for number in range(count))
    return Deleted(state.log_id, topic, folders, size)


def _in_bucket(root: BucketRoot, state: BucketState, topic: str) -> tuple[str, TopicState]:
    """Return a topic and its id by the state of a log in an object store."""
    for key, known in state.topics.items():
        if known.name == topic:
            return key, known
    names = sorted(known.name for known in state.topics.values())
    raise UnknownTopicOrPartitionError(
        f"no topic {topic!r} in {root}. Topics: {listed(names) or 'none at all'}"
    )


def _check_deletable(
    log_set: LogSet, topic: str, keys: Collection[str], found: Sequence[PartitionDirectory]
) -> None:
    for key in keys:
        if is_remote(log_set.state.topics[key].settings):
            raise OptionError(
                f"topic {topic!r} is not deleted: {REMOTE_STORAGE} is true, and its records in the "
                "remote storage would stay there. Let a broker delete it"
            )
    ids = {each.path: read_topic_id(each.path) for each in found}
    for each in found:
        check_no_link(each)
        topic_id = ids[each.path]
        if topic_id is not None and topic_key(topic, topic_id) not in keys:
            is_whole = {*ids.values()} == {topic_id} and not log_set.state.is_replicated
            keep = ", or run `kafkalog broker takeover` to keep it" if is_whole else ""
            raise LogDirectoryError(
                f"{each.path} has the topic id {topic_id}, and the commit state knows topic "
                f"{topic!r} by {', '.join(keys)}: it may be another topic of that name. Move it "
                f"away{keep}. Nothing was deleted"
            )


def _opened(
    paths: Sequence[str],
    holder: str,
    *,
    allows_broker: bool,
    dry_run: bool,
    starts: bool = False,
    deletes: str | None = None,
) -> AbstractContextManager[LogSet]:
    """Open a set; one in which there is nothing yet only if it ``starts`` so.

    ``deletes`` is a topic that goes next.
    """
    directories = existing_log_dirs(paths)
    if not starts:
        require_commit_state(directories)
    policy = SetPolicy(
        allows_broker=allows_broker or _are_ours(directories),
        may_grow=starts,
        broker_advice=BY_FLAG,
    )
    return opened_after_broker(
        directories,
        policy,
        holder,
        allows_broker=allows_broker,
        dry_run=dry_run,
        deletes=deletes,
    )


def _are_ours(folders: Sequence[Path]) -> bool:
    """Whether somebody of ours has written there, after any broker that has lived there."""
    return all(folder.is_dir() and load_state(folder) is not None for folder in folders)


def _catalog(log_set: LogSet, policy: TopicPolicy) -> TopicCatalog:
    unfinished = next(iter(log_set.unfinished()), None)
    return TopicCatalog(log_set.partitions(), Committed(log_set.state, unfinished), policy)


def _known(log_set: LogSet, name: str) -> Topic:
    topic = _catalog(log_set, TopicPolicy()).topic(name)
    if not topic.exists or topic.key not in log_set.state.topics:
        raise unknown_topic(log_set.state, log_set.directories, name)
    return topic


def _make(
    log_set: LogSet, topic: Topic, starts: Mapping[int, int], factor: int | None = None
) -> None:
    now_ms = system.time_ns() // 1_000_000
    plan = CommitSettings(
        directories=tuple(log_set.directories),
        planned_ms=now_ms,
        topics=TopicPolicy(replication_factor=factor),
    )
    identity = BatchIdentity(f"job:{system.random_id()}", 0)
    Committer(plan, identity).make_partitions(log_set, topic, starts)


# ----------------------------------------------------------------------------------------------
# Let the logs of a copy start and end where those of its original do, whatever records it holds.
#
# The ends are published first, all by one rename, and then the starts. Cut off between the two,
# the copy begins earlier than its original, and the same call ends it.


_WRITER: Final = "job:copied-bounds"
"""One name for all: what a killed call has staged, the next one sweeps away."""


class Bounds(NamedTuple):
    """Where a log starts and ends: its offsets are ``[start, end)``."""

    start: int
    end: int


def _let_end(
    root: BucketRoot | None, plan: CommitSettings, ends: Mapping[TopicPartition, CopiedEnd]
) -> None:
    identity = BatchIdentity(_WRITER, 0)
    if root is None:
        Committer(plan, identity, ends=ends).commit_or_abort([])
        return
    with root.writing(creates=True):  # that of an empty copy may not be there yet
        pass
    commit_batch(root, plan, identity, [], ends=ends)


@shielded
def set_bounds(
    paths: Sequence[str],
    bounds: Mapping[TopicPartition, Bounds],
    *,
    allows_broker: bool = False,
    wait_ms: int = WAIT_MS,
) -> None:
    """Let the logs of partitions end and start at these offsets.

    A log that is there already so is left as it is, and one that starts later too. Where the end
    lies above the last record, a batch without records is appended. What lies below the start is
    deleted, of compacted topics too.

    Args:
        paths: all log directories of the set; or the URI of a log in an object store.
        bounds: where each log is to start and to end.
        allows_broker: whether to do so though a broker had the directories last.
        wait_ms: how long to wait for a writer of ours.

    Raises:
        OffsetOutOfRangeError: a start above its end, or offsets that no log can have.
        UnknownTopicOrPartitionError: a partition that is not there.
        CommitError: a log reaches beyond its end already. Nothing was changed.
        KafkaLogError: a log, or the set, is not as it should be.
    """
    _check(bounds)
    root = bucket_of(paths)
    directories = existing_log_dirs(paths) if root is None else []
    if root is None:
        require_commit_state(directories)
        refuse_nodes(directories, "a copy with the bounds of its original")
    plan = CommitSettings(
        directories=tuple(directories),
        planned_ms=system.time_ns() // 1_000_000,
        policy=SetPolicy(allows_broker=allows_broker, wait_ms=wait_ms, may_grow=False),
        topics=TopicPolicy(allows_internal=True),
    )
    _let_end(root, plan, {key: CopiedEnd(each.end) for key, each in bounds.items()})
    starts = {key: each.start for key, each in bounds.items()}
    delete_records(paths, starts, heeds_policy=False, allows_broker=allows_broker, wait_ms=wait_ms)


def _check(bounds: Mapping[TopicPartition, Bounds]) -> None:
    for key, (start, end) in bounds.items():
        if not 0 <= start <= end < MAX_OFFSET:
            raise OffsetOutOfRangeError(
                f"{key}: no log starts at offset {start} and ends at {end}", offset=start
            )
