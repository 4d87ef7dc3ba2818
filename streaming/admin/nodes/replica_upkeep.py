"""Bring replicas that lag in sync, while writers continue: what the job ``maintain`` does first.

A commit copies some of what a replica lacks. Where that is much, or nobody writes, this continues:
in sessions of bounded steps, between which writers get the locks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from kafkalog.checkpoints.broker import RECOVERY_POINT, read_offset_checkpoint
from kafkalog.checkpoints.voters import find_voters
from kafkalog.files.deferred_signals import check_interrupt, shielded
from kafkalog.streaming.admin.nodes.replicas import replicas_of
from kafkalog.streaming.admin.old_segments import opened_logs
from kafkalog.streaming.log.files import LOG
from kafkalog.streaming.log.log_dir import partitions_by_node
from kafkalog.streaming.store.policy import WAIT_MS
from kafkalog.streaming.store.replicas.in_sync import lagging_replicas
from kafkalog.streaming.store.session import existing

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kafkalog.checkpoints.commit_state import CommitState
    from kafkalog.model import TopicPartition
    from kafkalog.streaming.store.log_set import LogSet
    from kafkalog.streaming.store.replicas.in_sync import Lagging

__all__ = ["CaughtUp", "catch_up_replicas", "progress_of"]

_Replica: TypeAlias = "tuple[TopicPartition, int]"
"""A partition, and a node that it lies on."""


@dataclass(slots=True)
class CaughtUp:
    """What was done: a line for each replica in ``said``; ``problems`` for those that stay behind.

    ``missing`` says which nodes are not there, a line each.
    """

    said: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def catch_up_replicas(
    paths: Sequence[str], *, allows_broker: bool = False, wait_ms: int = WAIT_MS
) -> CaughtUp:
    """Bring all replicas in sync whose nodes are there; nothing is done with a set of one node.

    Args:
        paths: all log directories of the set.
        allows_broker: whether to do so though a broker had the directories last.
        wait_ms: how long each step waits for a writer of ours.

    Raises:
        KafkaLogError, OSError: the set cannot be opened, or its state not be published.
    """
    done = CaughtUp()
    earlier: object = None
    while True:
        step = _step(paths, allows_broker=allows_broker, wait_ms=wait_ms)
        done.said += [
            f"{key} is in sync on node {node}"
            for key, node in step.lagged
            if (key, node) not in step.lagging
        ]
        done.missing = step.missing
        if not step.lagging:
            return done
        if step.progress == earlier:
            done.problems += [f"{key} stays out of sync on node {n}" for key, n in step.lagging]
            return done
        earlier = step.progress


class _Step(NamedTuple):
    """Which replicas lagged before a step and after it, and how far these have come."""

    lagged: list[_Replica]
    lagging: list[_Replica]
    missing: list[str]
    progress: object = None


@shielded
def _step(paths: Sequence[str], *, allows_broker: bool, wait_ms: int) -> _Step:
    """Open the set once, which copies some, and publish what has come of it."""
    check_interrupt()
    directories = existing(paths)
    voters = find_voters(directories)
    if voters is None:
        return _Step([], [], [])
    newest = voters.newest
    lagged = _named(lagging_replicas(newest, voters.live))
    missing = [f"node {node} is not there: {why}" for node, why in sorted(voters.missing.items())]
    is_old = any(voters.sequence_of(node) < newest.sequence for node in voters.live)
    if not lagged and not is_old and not _differs(newest):
        return _Step([], [], missing)
    with opened_logs(
        paths,
        "kafkalog maintain",
        allows_broker=allows_broker,
        dry_run=False,
        wait_ms=wait_ms,
        knows_nodes=True,
    ) as log_set:
        log_set.publish(log_set.state.following())
        left = list(lagging_replicas(log_set.state, log_set.node.nodes()))
        return _Step(lagged, _named(left), missing, progress_of(log_set, left))


def _named(lagging: Iterable[Lagging]) -> list[_Replica]:
    return [(each.key, each.node) for each in lagging]


def _differs(state: CommitState) -> bool:
    return any(each.rewritten.is_under_way for _, each in replicas_of(state))


def progress_of(log_set: LogSet, lagging: Iterable[Lagging]) -> object:
    """Return how far replicas have come: equal after a step that has brought none any further.

    That is how large their logs are, and up to where they were compared.
    """
    folders = partitions_by_node(log_set.node.nodes())
    found = []
    for key, node in _named(lagging):
        where = folders.get(node, {}).get(key)
        if where is None:
            continue
        sizes = [path.stat().st_size for path in sorted(where.path.glob(f"*{LOG}"))]
        point = read_offset_checkpoint(where.log_dir, RECOVERY_POINT).get(key, 0)
        found.append((key, node, tuple(sizes), point))
    return found
