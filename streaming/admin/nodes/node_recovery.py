"""Recover the nodes of a replicated set: who was away, and what its replicas lack.

The session that opens the set has finished or rolled back what was cut off, and has copied to
replicas that were not in sync what they lacked. Here the replicas that are said to be in sync are
held against their leaders once more, and leaders against their checksums where the two differ. The
state that says who is in sync now is published.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from kafkalog.checkpoints.voters import FROM_ONE_NODE
from kafkalog.errors import KafkaLogError
from kafkalog.files.deferred_signals import check_interrupt
from kafkalog.streaming.admin.nodes.replicas import (
    differences,
    known_topic,
    log_end_of,
    replicas_of,
    wrong_id,
)
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.log.read.verification import check_segment
from kafkalog.streaming.log.valid_batches import find_valid_end
from kafkalog.streaming.store.log_dirs import partitions_by_node
from kafkalog.streaming.store.replicas.controller import prepared_state
from kafkalog.streaming.store.replicas.copying import CopyBudget, drop_recovery_points
from kafkalog.streaming.store.replicas.election import shrunk
from kafkalog.streaming.store.replicas.in_sync import ALL_BYTES, bring_in_sync, lagging_replicas
from kafkalog.streaming.store.replicas.quorum import Quorum

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kafkalog.checkpoints.commit_state import ReplicaState
    from kafkalog.checkpoints.voters import Voters
    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.log.segment import LogSegment
    from kafkalog.streaming.store.log_set import LogSet

__all__ = ["bring_nodes_in_order"]


class _Report(Protocol):
    """What was done, and what a person has to decide on, a line each."""

    written: list[str]
    problems: list[str]


def bring_nodes_in_order(log_set: LogSet, before: Voters, done: _Report, *, dry_run: bool) -> None:
    """Let all replicas in sync be equal, publish who is in sync, and note both in ``done``.

    ``before`` is what was found before the set was opened. REQUIRES: the locks are held, and
    nothing is unfinished; or ``dry_run``, with which nothing is changed.

    Raises:
        OSError, KafkaLogError: the state was not published.
    """
    nodes = log_set.node
    if not isinstance(nodes, Quorum):
        return
    done.problems += [
        f"node {node} is not there: {why}"
        for node, why in sorted({**before.missing, **nodes.failed}.items())
        if node not in nodes.live
    ]
    done.written += [
        f"node {node} is rebuilt from the others: {why}"
        for node, why in before.missing.items()
        if node in nodes.live
    ]
    if dry_run:
        _preview(log_set, nodes, done)
        return
    copied = _equalize(log_set, nodes, done)
    log_set.publish(log_set.state.following())
    behind = {(each.node, each.key) for each in lagging_replicas(log_set.state, nodes.live)}
    done.written += [line for replica, line in copied.items() if replica not in behind]
    done.problems += [
        f"{key} stays out of sync on node {node}: {nodes.behind.get((node, key), 'try again')}"
        for node, key in sorted(behind)
    ]
    known = dict(replicas_of(before.newest))
    for key, each in replicas_of(log_set.state):
        earlier = known.get(key, each)
        done.written += [f"{key} is in sync on node {n}" for n in each.isr if n not in earlier.isr]
        if each.leader != earlier.leader:
            done.written.append(f"{key} is led by node {each.leader}")


def _equalize(
    log_set: LogSet, nodes: Quorum, done: _Report
) -> Mapping[tuple[int, TopicPartition], str]:
    """Find replicas in sync that are not as they should be, and copy what others have to them.

    Return a line for each.

    They leave the in-sync sets before they are touched. Where a leader is damaged, the first
    replica in sync that is not leads from then on: it has all that was acknowledged.
    """
    replicas = _wrong_replicas(log_set, nodes, done)
    if not replicas:
        return replicas
    for node, key in replicas:
        with nodes.writing(node):  # all of it is compared, whoever does so
            drop_recovery_points(nodes.by_node[node].values(), key)
    log_set.publish(shrunk(log_set.state, nodes.live, replicas).following())
    bring_in_sync(log_set, nodes, CopyBudget(ALL_BYTES))
    return replicas


def _wrong_replicas(
    log_set: LogSet, nodes: Quorum, done: _Report
) -> Mapping[tuple[int, TopicPartition], str]:
    """Return the replicas in sync that are to be copied again, with a line that says why."""
    folders = partitions_by_node(nodes.nodes())
    wrong: dict[tuple[int, TopicPartition], str] = {}
    for key, each in replicas_of(log_set.state):
        check_interrupt()
        found = {n: folders.get(n, {}).get(key) for n in each.isr if n in nodes.live}
        id_key, topic = known_topic(log_set.state, key)
        partition = _Partition(key, id_key, each, topic.partitions[key.partition].log_end)
        try:
            wrong |= {(n, key): line for n, line in _wrong(partition, found, done).items()}
        except (OSError, KafkaLogError) as error:
            done.problems.append(f"{key}: {error}")
    return wrong


class _Partition(NamedTuple):
    """A partition, the key under which the state has its topic, and where each log should end."""

    key: TopicPartition
    id_key: str
    replicas: ReplicaState
    end: int


_Found: TypeAlias = Mapping[int, "PartitionDirectory | None"]


def _wrong(partition: _Partition, found: _Found, done: _Report) -> dict[int, str]:
    """Return the nodes in sync whose replicas, of those ``found``, are to be copied, and why."""
    key, replicas, end = partition.key, partition.replicas, partition.end
    order = [n for n in (replicas.leader, *replicas.replicas) if n in found]
    leader = found.get(replicas.leader)
    has_all = (log_end_of(leader) or 0) >= end and _id_fault(partition, leader) is None
    if leader is not None and has_all and not any(_differing(partition, leader, found)):
        return {}
    damaged: dict[int, str] = {}
    for good in dict.fromkeys(order):
        damage = _damage_in(partition, found[good])
        if not damage:
            break
        damaged[good] = damage
    else:
        texts = "; ".join(f"node {node}: {damage}" for node, damage in damaged.items())
        done.problems.append(
            f"{key} is damaged on all nodes that are there, and was left as it is: {texts}. "
            f"Bring back a node that is away. {FROM_ONE_NODE}"
        )
        return {}
    source = found[good]
    assert source is not None  # noqa: S101 - that would be damage
    differing = {n: why for n, why in _differing(partition, source, found) if n not in damaged}
    why = {n: f"it was damaged: {text}" for n, text in damaged.items()}
    why |= {n: f"it differed: {text}" for n, text in differing.items()}
    return {n: f"{key} on node {n}, as a copy of node {good}'s: {w}" for n, w in why.items()}


def _differing(
    partition: _Partition, source: PartitionDirectory, found: _Found
) -> Iterator[tuple[int, str]]:
    """Yield the nodes whose replica is missing, or not as ``source`` below the log's end, and why.

    Of each replica, the first difference is said.
    """
    key, end = partition.key, partition.end
    for node, where in found.items():
        if where is None:
            yield node, "its folder is not there"
        elif where.path != source.path:
            why = _id_fault(partition, where)
            why = why or next(differences(key, source.path, where.path, 0, end), None)
            if why is not None:
                yield node, why


def _id_fault(partition: _Partition, where: PartitionDirectory | None) -> str | None:
    return where and wrong_id(partition.id_key, partition.key, where.path)


def _damage_in(partition: _Partition, where: PartitionDirectory | None) -> str:
    """Return what is wrong with a replica in sync; nothing if nothing is."""
    if where is None:
        return "its folder is not there"
    if fault := _id_fault(partition, where):
        return fault
    end = partition.end
    with PartitionLog(where.path, where.topic_partition) as log:
        bases = [segment.base_offset for segment in log.segments]
        for segment, following in zip(log.segments, [*bases[1:], None], strict=True):
            checked = check_segment(segment, following)
            if checked.is_broken and not (following is None and _reaches(segment, end)):
                return "; ".join(checked.problems)
        if not bases or not _reaches(log.segments[-1], end):
            return f"it ends before offset {end}"
    return ""


def _reaches(segment: LogSegment, end: int) -> bool:
    with segment:
        return find_valid_end(segment, 0).next_offset >= end


def _preview(log_set: LogSet, nodes: Quorum, done: _Report) -> None:
    """Say what would be done about the nodes."""
    prepared = prepared_state(nodes, log_set.state, log_set.unfinished())
    if prepared is not None:
        done.written.append(f"commit {prepared.sequence} is prepared, and would be finished")
    else:
        done.written += _wrong_replicas(log_set, nodes, done).values()
    folders = partitions_by_node(nodes.nodes())
    for key, each in replicas_of(log_set.state):
        for node in each.replicas:
            if node in each.isr and node not in nodes.live:
                done.written.append(f"{key} would not be in sync on node {node}")
            elif node not in each.isr and node in nodes.live:
                end = log_end_of(folders.get(node, {}).get(key))
                done.written.append(
                    f"{key} would be brought in sync on node {node}, where it ends at "
                    f"{'nothing' if end is None else f'offset {end}'} now"
                )
