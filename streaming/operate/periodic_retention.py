"""Retention by whoever writes: a round now and then, after a commit, that fails nobody.

A broker has a thread for it. A writer of ours has a process that lives as long as its query, and
commits in it: there a round follows a commit once ``retention.check.interval.ms`` is over. It does
nothing where no topic has a limit, and waits for no other writer.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.committed import load_committed
from kafkalog.errors import LockTimeoutError
from kafkalog.files.shield import shielded_rest
from kafkalog.files.stalling import outlast
from kafkalog.files.system import remembered
from kafkalog.model import TopicPartition, many
from kafkalog.streaming.operate.old_segments import refuse_broker_directory
from kafkalog.streaming.operate.retain import retain_set
from kafkalog.streaming.store.os_loss import refuse_os_loss
from kafkalog.streaming.store.retention import Retention
from kafkalog.streaming.store.rounds import Rounds
from kafkalog.streaming.store.session import opened_set

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from kafkalog.checkpoints.commit_state import CommitState, TopicState
    from kafkalog.streaming.operate.retain import Deleted
    from kafkalog.streaming.store.policy import SetPolicy

__all__ = ["retain_if_due"]

_LOGGER: Final = logging.getLogger("kafkalog.sink")

_MOST_PARTITIONS: Final = 1000
"""That one round looks at: about a millisecond each. The next round continues after them."""


class _Rounds(Rounds):
    pass


def retain_if_due(directories: Sequence[Path], policy: SetPolicy, interval_ms: int) -> None:
    """Delete what has expired, unless this process did so less than ``interval_ms`` ago.

    REQUIRES: no lock of the directories is held. What goes wrong is a line in the log.
    """
    rounds = remembered(_Rounds)
    if not rounds.begins(directories, interval_ms / 1000):
        return
    try:
        _round(rounds, directories, policy)
    except LockTimeoutError:
        _LOGGER.debug("retention waits for its next round: another writer holds %s", directories)
    except Exception as error:  # noqa: BLE001 - the batch before it is committed, whatever this is
        _LOGGER.warning("retention was not done, the next round tries again: %s", error)


@shielded_rest
def _round(rounds: Rounds, directories: Sequence[Path], policy: SetPolicy) -> None:
    outlast(lambda: _retain(rounds, directories, policy), directories, policy.lag_ms)


@shielded_rest
def _retain(rounds: Rounds, directories: Sequence[Path], policy: SetPolicy) -> None:
    state = load_committed(directories).state
    if state is None or not any(_concerned(topic) for topic in state.topics.values()):
        return
    for folder in directories:
        refuse_broker_directory(folder, permit="")
    at_once = replace(policy, wait_ms=0)
    with opened_set(
        directories, at_once, refuse_os_loss, holder="retention", knows_nodes=True
    ) as log_set:
        chosen = rounds.chosen(directories, _partitions(log_set.state), _MOST_PARTITIONS)
        keys = frozenset(chosen)
        _tell(retain_set(log_set, config={}, concerns=keys.__contains__))


def _concerned(topic: TopicState) -> bool:
    """Whether there may be something to do: by a limit, or by what was deleted before."""
    return Retention.is_given(topic.settings) or any(
        each.log_start for each in topic.partitions.values()
    )


def _partitions(state: CommitState) -> Iterator[TopicPartition]:
    return (
        TopicPartition(topic.name, number)
        for topic in state.topics.values()
        if _concerned(topic)
        for number in topic.partitions
    )


def _tell(done: Deleted) -> None:
    for each in done.partitions:
        if each.segments:
            _LOGGER.info(
                "retention: %s starts at offset %d now: %s with %d bytes expired",
                each.topic_partition,
                each.start,
                many(len(each.segments), "segment"),
                each.bytes,
            )
    for problem in done.problems:
        _LOGGER.warning("retention: %s", problem)
