"""Replace segments of a partition's leader, and then of all its replicas in sync, by copies.

Each replica in sync has all records before, meanwhile and after. Cut off anywhere, whoever opens
the set next ends it: see :mod:`~kafkalog.streaming.store.replicas.rewriting`.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from kafkalog.errors import LogDirectoryError
from kafkalog.streaming.log.log_dir import partitions_by_node
from kafkalog.streaming.store.replicas.copying import copy_cleaner_offset
from kafkalog.streaming.store.replicas.rewriting import distrust, end_rewriting, marked
from kafkalog.streaming.store.replicas.several_nodes import SeveralNodes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kafkalog.streaming.operate.old_segments import KnownLog
    from kafkalog.streaming.store.log_set import LogSet

__all__ = ["replacing_on_all"]


@contextmanager
def replacing_on_all(
    log_set: LogSet, log: KnownLog, span: tuple[int, int] | None
) -> Iterator[None]:
    """Replace segments of the leader's log inside ``with``; its end does so on all in sync.

    ``span`` are the offsets ``[start, end)`` of these segments, at both of which a segment begins;
    None where none is replaced. How far the leader's log is clean is noted on all, too. Of a set of
    one node there is nothing else to do.

    REQUIRES: the locks are held, nothing is unfinished, and ``log`` is in its leader's folder.

    Raises:
        KafkaLogError, OSError: it is not done on all. The next session does the rest.
    """
    nodes = log_set.node
    if not isinstance(nodes, SeveralNodes):
        yield
        return
    leader = log.topic.replicas[log.number].leader
    if nodes.node_at(log.where.log_dir) != leader:
        raise LogDirectoryError(
            f"{log.where.path} is not the folder of the leader, which is on node {leader}: nothing "
            "was changed there. `kafkalog recover` copies the partition back"
        )
    if span is not None:
        _distrust_lagging(log, nodes)
        log_set.publish(marked(log_set.state, log.key, log.number, *span))
    yield
    log_set.state = end_rewriting(log_set.state, nodes, log_set.verify_locks)
    _note_clean(log_set, log, nodes)
    if span is not None:
        log_set.publish(log_set.state.following())


def _distrust_lagging(log: KnownLog, nodes: SeveralNodes) -> None:
    """Let those replicas be compared anew that are there, and not in sync."""
    each = log.topic.replicas[log.number]
    for node in each.replicas:
        if node in nodes.live and node not in each.isr:
            with nodes.writing(node):
                distrust(nodes.by_node[node].values(), log.where.topic_partition)


def _note_clean(log_set: LogSet, log: KnownLog, nodes: SeveralNodes) -> None:
    key = log.where.topic_partition
    replicas = log_set.state.topics[log.key].replicas[log.number]
    for node, folders in partitions_by_node(nodes.nodes()).items():
        found = folders.get(key)
        if node in replicas.isr and found is not None and found.path != log.where.path:
            with nodes.working_at(found.log_dir):
                copy_cleaner_offset(log.where.path, found.path, key)
