"""Give a set of log directories to a broker, and take it over again.

A broker that starts on directories of ours must find whole logs, checkpoint files that say the same
as these, and the ids under which its cluster knows the topics. After it, our commit state must say
what the logs hold by then. Between the two the broker alone is the truth.

What a cluster (KRaft) knows about topics is in its metadata log, not in log directories: create the
topics there first, and give their ids to :func:`hand_over`, or a broker takes the folders for those
of topics that were deleted, and renames them to ``-stray``.

A takeover cuts torn tails as the broker would, but nothing that was acknowledged or flushed. The
commit state moves to the log ends, and high watermarks of a broker's ``__consumer_offsets`` do. A
directory that only brokers have written to becomes a set of ours. Topics get the settings that the
broker's cluster has given to them. A high watermark above the end of a whole log is lowered, with a
warning. Where a problem was found, such as a transaction that is still open, the state of that
partition is left as it was. Partitions that are gone are forgotten, with a warning. Consumer groups
have no members after that.

Source: Kafka ``LogManager``, ``LogLoader``, ``MetaPropertiesEnsemble``, ``PartitionMetadataFile``.
"""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.broker import (
    HIGH_WATERMARK,
    META_PROPERTIES,
    RECOVERY_POINT,
    is_topic_id,
    new_topic_id,
    read_meta_properties,
    read_offset_checkpoint,
    read_topic_id,
    remove_clean_shutdown_marker,
    write_clean_shutdown_marker,
    write_offset_checkpoint,
    write_topic_id,
)
from kafkalog.checkpoints.topic_ids import note_changed_ids
from kafkalog.checkpoints.voters import FROM_ONE_NODE
from kafkalog.errors import (
    KafkaLogError,
    LogDirectoryError,
    OptionError,
    UnknownTopicOrPartitionError,
)
from kafkalog.files.atomic import write_atomically
from kafkalog.files.deferred_signals import shielded
from kafkalog.files.regular import fsync_directory, fsync_file
from kafkalog.model import INTERNAL_TOPICS, listed, partition_counts
from kafkalog.streaming.admin.broker.handover_state import (
    advanced,
    changed_counts,
    changed_settings,
    find_nodes,
    moved_ends,
    named_metadata,
    warn_of_broker_retention,
    with_broker_settings,
    with_partition_counts,
    without_lost,
)
from kafkalog.streaming.admin.broker.node_handover import hand_over_nodes, set_epochs_down
from kafkalog.streaming.admin.broker.node_takeover import take_over_nodes
from kafkalog.streaming.admin.broker.open_transactions import TransactionEnds, end_transactions
from kafkalog.streaming.admin.groups import empty_groups
from kafkalog.streaming.admin.recovery import (
    Preview,
    RecoveryReport,
    look_again,
    put_in_order,
    report_lost,
)
from kafkalog.streaming.commit.states import all_durable
from kafkalog.streaming.coordinator.cluster_metadata import read_cluster_topics
from kafkalog.streaming.options.topic_settings import LogConfig
from kafkalog.streaming.store.broker_files import drop_entries_of_missing, repeat_log_starts
from kafkalog.streaming.store.log_dirs import LogDirs
from kafkalog.streaming.store.open_set import has_nodes
from kafkalog.streaming.store.policy import WAIT_MS, SetPolicy
from kafkalog.streaming.store.recovery.partition_states import LogReach, sync_up_to
from kafkalog.streaming.store.session import (
    existing_log_dirs,
    opened_set,
    parse_paths,
    require_commit_state,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from kafkalog.checkpoints.commit_state import CommitState
    from kafkalog.streaming.store.log_set import LogSet
    from kafkalog.streaming.store.recovery.partition_states import PartitionEnd


__all__ = [
    "check_identity",
    "hand_over",
    "refuse_another_identity",
    "take_over",
    "warn_of_broker",
    "write_meta_properties",
]


# ----------------------------------------------------------------------------------------------
# Which broker of which cluster a log directory belongs to: its ``meta.properties``.


_CLUSTER_ID: Final = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)


def check_identity(cluster_id: str | None, node_id: int | None) -> None:
    """Refuse what would make another ``meta.properties`` of it than was meant.

    Raises:
        OptionError: no id of a cluster, or a negative one of a node.
    """
    if cluster_id is not None and _CLUSTER_ID.fullmatch(cluster_id) is None:
        raise OptionError(
            f"{cluster_id[:40]!r} is no id of a cluster: it is a word of letters, digits, '.', '-' "
            "and '_', which kafka-cluster.sh cluster-id prints"
        )
    if node_id is not None and node_id < 0:
        raise OptionError(f"node id {node_id} is negative")


def refuse_another_identity(
    directories: Sequence[Path], cluster_id: str | None, node_id: int | None
) -> None:
    """Refuse directories that are another broker's: the one that was named would not start on them.

    Raises:
        OptionError: a directory has a ``meta.properties`` of another cluster or node.
        CheckpointError: one that cannot be read.
    """
    if cluster_id is None or node_id is None:
        return
    for folder in directories:
        found = read_meta_properties(folder)
        if found is None:
            continue
        cluster = found.get("cluster.id", cluster_id)
        node = found.get("node.id", found.get("broker.id", str(node_id)))
        if (cluster, node) != (cluster_id, str(node_id)):
            raise OptionError(
                f"{folder / META_PROPERTIES} is of cluster {cluster}, node {node}: node {node_id} "
                f"of cluster {cluster_id} would not start on it. Nothing was changed. Name the "
                "former, or move the file away"
            )


def write_meta_properties(folder: Path, cluster_id: str, node_id: int) -> None:
    """Write the file of a directory that has none, as a broker formats its own."""
    lines = {
        "cluster.id": cluster_id,
        "directory.id": new_topic_id(),
        "node.id": str(node_id),
        "version": "1",
    }
    content = "".join(f"{name}={value}\n" for name, value in lines.items())
    write_atomically(folder / META_PROPERTIES, content.encode())


# ----------------------------------------------------------------------------------------------
# What a broker does to topics when it gets directories of ours, said before that.


_LOGGER: Final = logging.getLogger("kafkalog.sink")

_SHOWN: Final = 20


def warn_of_broker(log_set: LogSet, named: Collection[str]) -> None:
    """Say which topics may lose records or folders; ``named`` are those with ids that were given.

    A cluster whose metadata lies here knows its topics by their ids already.
    """
    warn_of_broker_retention(log_set.state)
    clusters: set[str] = set()
    for folder in log_set.directories:
        with suppress(KafkaLogError, OSError):
            found = read_cluster_topics(folder)
            clusters.update(() if found is None else found.settings)
    kept = sorted(
        topic.name
        for key, topic in log_set.state.topics.items()
        if key not in clusters and topic.name not in {*named, *INTERNAL_TOPICS}
    )
    if kept:
        _LOGGER.warning(
            "these topics keep the ids that they have here: %s. A broker renames the folders of "
            "topics whose ids its cluster does not know: the names end in -stray then. If this "
            "cluster has not made them, create them there first, and give their ids here: "
            "--topic-id NAME=ID",
            listed(kept, most=_SHOWN),
        )


# ----------------------------------------------------------------------------------------------


@shielded
def hand_over(
    paths: Sequence[str],
    *,
    topic_ids: Mapping[str, str] | None = None,
    cluster_id: str | None = None,
    node_id: int | None = None,
    cluster_metadata: Sequence[str] = (),
    dry_run: bool = False,
    wait_ms: int = WAIT_MS,
) -> RecoveryReport:
    """Make a set that our sink wrote one that a broker can start on.

    Unfinished commits are rolled back, groups written as empty, logs made durable, and checkpoint
    files written. So is the mark of a clean shutdown, unless logs of a broker's own topics lie
    there, whose ends it has to look at itself. Nothing is written where a problem was found.

    Args:
        paths: all log directories of the set.
        topic_ids: the ids that the cluster gave to topics, by name; others keep theirs.
        cluster_id: with ``node_id``: write a ``meta.properties`` where there is none.
        node_id: the broker's.
        cluster_metadata: of a replicated set: directories with copies of the cluster's metadata
            log, which tells ids there; see :mod:`~kafkalog.streaming.admin.broker.node_handover`.
        dry_run: whether to say only what would be done, and change nothing.
        wait_ms: how long to wait for a writer of ours.

    Raises:
        UnknownTopicOrPartitionError: ``topic_ids`` names a topic that is not there.
        OptionError: an id that is none, or is given twice; or directories of another broker.
        KafkaLogError: see :func:`~kafkalog.streaming.admin.recovery.recover`.
    """
    check_identity(cluster_id, node_id)
    given = {"topic_id": topic_ids or None, "cluster_id": cluster_id, "node_id": node_id}
    nodes = find_nodes(directories := existing_log_dirs(paths), given, cluster_metadata)
    if nodes is not None:
        metadata = named_metadata(cluster_metadata)
        return hand_over_nodes(directories, nodes, metadata, dry_run=dry_run, wait_ms=wait_ms)
    return _hand_over_one(
        directories, topic_ids or {}, cluster_id, node_id, dry_run=dry_run, wait_ms=wait_ms
    )


def _hand_over_one(
    directories: Sequence[Path],
    topic_ids: Mapping[str, str],
    cluster_id: str | None,
    node_id: int | None,
    *,
    dry_run: bool,
    wait_ms: int,
) -> RecoveryReport:
    """Do so with a set that is not replicated."""
    begun = RecoveryReport()

    def look(log_set: LogSet) -> None:
        refuse_another_identity(log_set.directories, cluster_id, node_id)
        begun.look(mends=not dry_run)(log_set)

    require_commit_state(directories)
    policy, holder = SetPolicy.of_upkeep(wait_ms), "kafkalog broker handover"
    with opened_set(directories, policy, look, holder=holder, dry_run=dry_run) as log_set:
        done = _ready(log_set, begun, topic_ids, dry_run=dry_run)
        for folder in () if done.problems else log_set.directories:
            _give(folder, done, cluster_id, node_id, dry_run=dry_run)
        return done


def _ready(
    log_set: LogSet, begun: RecoveryReport, topic_ids: Mapping[str, str], *, dry_run: bool
) -> RecoveryReport:
    """Put logs in order, make them durable, and give topics their ids. REQUIRES: the locks."""
    warn_of_broker(log_set, topic_ids)
    done = put_in_order(log_set, begun, preview=Preview(log_set) if dry_run else None)
    report_lost(log_set, done)
    if not done.problems:  # logs with a problem are not among those that are in order
        _check_numbers(done)
    if done.problems:
        return done
    emptied = empty_groups(log_set, dry_run=dry_run)
    emptied += _set_epochs_down(log_set, done.partitions, dry_run=dry_run)
    if not dry_run:
        repeat_log_starts(log_set)  # or the broker serves deleted records, if the file was lost
        done = look_again(log_set, done)
        log_set.check_current()
        _make_durable(log_set, done.partitions)
    done.written += emptied
    done.partitions = _renamed(log_set, done, topic_ids, dry_run=dry_run)
    return done


def _set_epochs_down(
    log_set: LogSet, partitions: Sequence[PartitionEnd], *, dry_run: bool
) -> list[str]:
    """Lower what cuts of ours have raised: a broker must know no epoch above its cluster's."""
    topics = dict(log_set.state.topics)
    written = []
    for each in partitions:
        key, number = each.key, each.topic_partition.partition
        topic = topics.get(key)
        most = None if topic is None else topic.cluster_epochs.get(number)
        if topic is None or most is None:
            continue
        written.append(f"{each.topic_partition}: leader epochs above {most} are set down to {most}")
        if not dry_run:
            set_epochs_down(each.where.path, most)
        where = topic.partitions[number]._replace(leader_epoch=most)
        left = {p: epoch for p, epoch in topic.cluster_epochs.items() if p != number}
        partitions_now = {**topic.partitions, number: where}
        topics[key] = replace(topic, partitions=partitions_now, cluster_epochs=left)
    if written and not dry_run:
        log_set.publish(log_set.state.following(topics=topics))
    return written


def _give(
    folder: Path,
    done: RecoveryReport,
    cluster_id: str | None,
    node_id: int | None,
    *,
    dry_run: bool,
) -> None:
    """Write what a broker looks for in a log directory."""
    if cluster_id is not None and node_id is not None and not (folder / META_PROPERTIES).exists():
        done.written.append(f"{folder / META_PROPERTIES}: cluster {cluster_id}, node {node_id}")
        if not dry_run:
            write_meta_properties(folder, cluster_id, node_id)
    here = [each for each in done.partitions if each.where.log_dir == folder]
    done.written.append(f"{folder}: recovery points and high watermarks, partitions: {len(here)}")
    if not dry_run:
        _write_checkpoints(folder, here)
    if all(found.log_dir != folder for found in done.skipped):
        done.written.append(f"{folder}: the mark of a clean shutdown")
        if not dry_run:
            write_clean_shutdown_marker(folder)


_ABORTS_ASKED: Final = (
    "--transaction-state and --abort-producer say how --abort-open-transactions ends transactions: "
    "give that as well"
)


def _ends_of(
    aborts_open: bool,
    copies: Sequence[Path],
    abort_producers: Collection[int],
    metadata: Sequence[Path],
    log_set: LogSet,
) -> TransactionEnds | None:
    if not aborts_open:
        return None
    return TransactionEnds(log_set, copies, abort_producers, metadata)


@shielded
def take_over(
    paths: Sequence[str],
    *,
    aborts_open: bool = False,
    transaction_state: Sequence[str] = (),
    abort_producers: Collection[int] = (),
    partitions: Mapping[str, int] | None = None,
    cluster_metadata: Sequence[str] = (),
    dry_run: bool = False,
    wait_ms: int = WAIT_MS,
) -> RecoveryReport:
    """Let our sink continue after a broker that has stopped, or was killed.

    The head of this module says what is cut, moved and forgotten. With ``aborts_open`` open
    transactions are ended, for a broker that will not start again: as their coordinators decided,
    or aborted where they had not decided. ``transaction_state`` are directories with more of
    ``__transaction_state`` than lies in the set. A transaction of which that does not tell is a
    problem, unless its producer id is among ``abort_producers``. ``partitions`` are how many topics
    have, where nothing here tells. With ``dry_run`` nothing is changed, nor locked.
    ``cluster_metadata`` is of a replicated set: see :func:`hand_over`.

    Raises:
        LogDirectoryError: the broker is still running; or ``transaction_state`` is no directory.
        OptionError: ``transaction_state`` or ``abort_producers`` without ``aborts_open``.
        KafkaLogError: the directories are no whole set, or their state cannot be trusted.
    """
    given = {"partitions": partitions or None}
    nodes = find_nodes(directories := existing_log_dirs(paths), given, cluster_metadata)
    if (transaction_state or abort_producers) and not aborts_open:
        raise OptionError(_ABORTS_ASKED)
    copies = existing_log_dirs(transaction_state) if transaction_state else ()
    metadata = named_metadata(cluster_metadata)
    ends = partial(_ends_of, aborts_open, copies, abort_producers, metadata)
    if nodes is not None:
        return take_over_nodes(directories, nodes, metadata, ends, dry_run=dry_run, wait_ms=wait_ms)
    _refuse_lone_nodes(paths, directories)
    _check_counts(directories, counts := partitions or {})
    return _take_over_one(directories, ends, counts, dry_run=dry_run, wait_ms=wait_ms)


def _refuse_lone_nodes(paths: Sequence[str], directories: Sequence[Path]) -> None:
    if has_nodes(parse_paths(paths)):
        raise LogDirectoryError(
            f"none of the nodes {', '.join(map(str, directories))} has a commit state, and their "
            f"replicas are not taken over together. Nothing was changed. {FROM_ONE_NODE}"
        )


def _check_counts(directories: Sequence[Path], counts: Mapping[str, int]) -> None:
    """Refuse numbers of partitions of topics that are not there, or have more of them."""
    found = partition_counts(LogDirs(directories).partitions()) if counts else {}
    for topic, count in counts.items():
        if topic not in found:
            raise OptionError(f"there is no topic {topic!r} to have {count} partitions")
        if count < found[topic]:
            raise OptionError(
                f"topic {topic!r} has at least {found[topic]} partitions, and cannot have {count}"
            )


def _take_over_one(
    directories: Sequence[Path],
    ends: Callable[[LogSet], TransactionEnds | None],
    counts: Mapping[str, int],
    *,
    dry_run: bool,
    wait_ms: int,
) -> RecoveryReport:
    """Take a set over that is not replicated, or that is none yet."""
    policy = SetPolicy(allows_broker=True, wait_ms=wait_ms)
    begun = RecoveryReport()
    look = begun.look(mends=not dry_run)
    with opened_set(
        directories, policy, look, holder="kafkalog broker takeover", dry_run=dry_run
    ) as log_set:
        if dry_run:
            return _previewed(log_set, begun, ends(log_set), counts)
        order = partial(put_in_order, log_set, begun, takes_over=True, takes_positions=True)
        done = order()
        if (known := ends(log_set)) is not None:
            ended = end_transactions(log_set, known)
            done = order(open_advice=ended.undecided)
            done.aborted, done.committed = ended.aborted, ended.committed
        _take(log_set, done, counts)
    done.set_id = log_set.state.set_id
    return done


def _take(log_set: LogSet, done: RecoveryReport, counts: Mapping[str, int]) -> None:
    """Make durable what the logs hold, and publish the state that says so."""
    log_set.check_current()
    sync_up_to(_reach(log_set, each) for each in (*done.partitions, *done.positions))
    whole = all_durable(advanced(log_set.state, done.partitions), done.partitions)
    state = with_broker_settings(without_lost(whole, log_set), log_set.directories)
    state = with_partition_counts(state, log_set.directories, counts)
    done.written = _changes(log_set.state, state)
    if state != log_set.state:
        log_set.publish(state.following())
    for folder in log_set.directories:
        remove_clean_shutdown_marker(folder)  # what it marks is not what is there from now on
        _lower_high_watermarks(folder, done.partitions)
        _write_high_watermarks(folder, done.positions)
        drop_entries_of_missing(folder)
    if not done.problems:
        done.written += empty_groups(log_set)


def _previewed(
    log_set: LogSet, begun: RecoveryReport, ends: TransactionEnds | None, counts: Mapping[str, int]
) -> RecoveryReport:
    """Say what a takeover would do."""
    preview = Preview(log_set, takes_over=True, ends=ends)
    done = put_in_order(log_set, begun, takes_over=True, takes_positions=True, preview=preview)
    done.aborted, done.committed = preview.ended.aborted, preview.ended.committed
    state = without_lost(advanced(log_set.state, done.partitions), log_set)
    state = with_broker_settings(state, log_set.directories)
    state = with_partition_counts(state, log_set.directories, counts)
    done.written = _changes(log_set.state, state)
    if not done.problems:
        done.written += empty_groups(replace(log_set, state=state), dry_run=True)
    return done


def _changes(before: CommitState, state: CommitState) -> list[str]:
    changes = moved_ends(before, state) + changed_settings(before, state)
    return changes + changed_counts(before, state)


def _check_numbers(done: RecoveryReport) -> None:
    """A broker serves topics whose partitions all exist; one that is missing begins empty there."""
    numbers: dict[str, set[int]] = {}
    for each in done.partitions:
        numbers.setdefault(each.topic_partition.topic, set()).add(each.topic_partition.partition)
    for topic, found in numbers.items():
        if missing := sorted(set(range(max(found) + 1)) - found):
            done.problems.append(
                f"topic {topic!r} has partition {max(found)} and lacks {missing}: a broker would "
                "begin them empty"
            )


def _renamed(
    log_set: LogSet, done: RecoveryReport, topic_ids: Mapping[str, str], *, dry_run: bool
) -> list[PartitionEnd]:
    """Give topics the ids that the cluster knows them by, first in our state, then in the folders.

    In between the state knows them by both, so that a crash leaves no folder that nothing is
    committed for. The next attempt continues, and so does the sink while all folders have one id.
    """
    partitions = done.partitions
    _check_ids(log_set, partitions, topic_ids)
    changed = {
        name: topic_id
        for name, topic_id in topic_ids.items()
        if any(
            each.topic_partition.topic == name and read_topic_id(each.where.path) != topic_id
            for each in partitions
        )
    }
    if not changed:
        return list(partitions)
    renamed = [
        replace(each, key=changed.get(each.topic_partition.topic, each.key)) for each in partitions
    ]
    done.written += [f"topic {name} gets the id {changed[name]}" for name in changed]
    if dry_run:
        return renamed
    _note(log_set, partitions, changed)
    state = advanced(log_set.state, renamed, is_renaming=True)
    both = state.following(topics={**log_set.state.topics, **state.topics})
    log_set.publish(both)
    for each in renamed:
        if each.topic_partition.topic in changed:
            write_topic_id(each.where.path, changed[each.topic_partition.topic])
            fsync_directory(each.where.path)
    log_set.publish(both.following(topics=state.topics))
    return renamed


def _check_ids(
    log_set: LogSet, partitions: Sequence[PartitionEnd], topic_ids: Mapping[str, str]
) -> None:
    """Refuse ids that are none, or that would let two topics have one."""
    known = {each.topic_partition.topic for each in partitions}
    owners = {each.key: each.topic_partition.topic for each in partitions}
    owners |= {key: topic.name for key, topic in log_set.state.topics.items()}
    for name, topic_id in topic_ids.items():
        if not is_topic_id(topic_id):
            raise OptionError(
                f"{topic_id[:40]!r} is no id of topic {name!r}: Kafka's have 22 characters, of "
                "letters, digits, '-' and '_'"
            )
        if list(topic_ids.values()).count(topic_id) > 1:
            raise OptionError(f"{topic_id} is given to two topics, one of them {name!r}")
        if name not in known:
            raise UnknownTopicOrPartitionError(
                f"topic {name!r} is not in these log directories, which hold {', '.join(known)}"
            )
        if (owner := owners.get(topic_id, name)) != name:
            raise OptionError(f"{topic_id} is the id of topic {owner!r}, and no id of {name!r}")


def _note(log_set: LogSet, partitions: Sequence[PartitionEnd], changed: Mapping[str, str]) -> None:
    """Note for streaming queries that topics get other ids and keep their records."""
    changes = {
        (topic, before, changed[topic])
        for topic, before in (
            (each.topic_partition.topic, read_topic_id(each.where.path)) for each in partitions
        )
        if topic in changed and before is not None and before != changed[topic]
    }
    for folder in log_set.directories:
        note_changed_ids(folder, sorted(changes))


def _lower_high_watermarks(folder: Path, partitions: Sequence[PartitionEnd]) -> None:
    """Let high watermarks say no more than the logs that were taken over hold."""
    known = read_offset_checkpoint(folder, HIGH_WATERMARK)
    lowered = {
        each.topic_partition: each.end
        for each in partitions
        if each.where.log_dir == folder and known.get(each.topic_partition, 0) > each.end
    }
    if lowered:
        write_offset_checkpoint(folder, HIGH_WATERMARK, lowered)


def _write_high_watermarks(folder: Path, logs: Sequence[PartitionEnd]) -> None:
    """Let all be committed that logs hold of which our state says nothing."""
    ends = {each.topic_partition: each.end for each in logs if each.where.log_dir == folder}
    if ends and not ends.items() <= read_offset_checkpoint(folder, HIGH_WATERMARK).items():
        write_offset_checkpoint(folder, HIGH_WATERMARK, ends)


def _make_durable(log_set: LogSet, partitions: Sequence[PartitionEnd]) -> None:
    """Make logs durable as a whole, also where ``flush=os`` wrote them, and say so in our state."""
    for each in partitions:
        # All of them: with flush=os a sealed segment, a producer snapshot or the leader epochs may
        # not be on the disk either.
        for path in sorted(each.where.path.iterdir()):
            if path.is_file() and not path.is_symlink():
                fsync_file(path)
        fsync_directory(each.where.path)
    state = all_durable(log_set.state, partitions)
    if state != log_set.state:
        log_set.publish(state.following())


def _reach(log_set: LogSet, each: PartitionEnd) -> LogReach:
    known = log_set.state.topics.get(each.key)
    config = LogConfig.of_topic(known.settings if known else {})
    return LogReach(each.where.path, each.topic_partition, each.end, config.index_interval_bytes)


def _write_checkpoints(folder: Path, partitions: Sequence[PartitionEnd]) -> None:
    """Say how far logs are durable; lines about partitions that are gone are dropped."""
    drop_entries_of_missing(folder)
    ends = {each.topic_partition: each.end for each in partitions}
    for name in (RECOVERY_POINT, HIGH_WATERMARK):
        write_offset_checkpoint(folder, name, ends)
