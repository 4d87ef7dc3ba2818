"""Publish a state that is followed by changes which a broker must not start amid.

The intent names no partition: there is nothing to take back. It keeps brokers out, and tells the
next session that something may be left to do if this one is cut off.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from kafkalog.checkpoints.intent import Intent
from kafkalog.errors import KafkaLogError
from kafkalog.files.shield import Interrupted

if TYPE_CHECKING:
    from kafkalog.checkpoints.commit_state import CommitState
    from kafkalog.streaming.store.log_set import LogSet

__all__ = ["publish_guarded"]


def publish_guarded(log_set: LogSet, state: CommitState, writer: str) -> None:
    """Declare and publish a state; the intent, with ``writer`` in it, stays.

    REQUIRES: the locks are held, and nothing is unfinished.

    Raises:
        OSError, KafkaLogError: nothing is published; or it is, and the intent is there.
    """
    log_set.check_current()
    try:
        log_set.node.declare(Intent.of_state(state, writer))
        log_set.publish(state)
    except (Exception, Interrupted):
        _withdraw(log_set, state)
        raise


def _withdraw(log_set: LogSet, state: CommitState) -> None:
    """Take the intent away, unless the state is published after all."""
    with suppress(OSError, KafkaLogError):
        log_set.verify_locks()
        is_open = log_set.state.stamp != state.stamp and log_set.node.decides_alone
        if is_open and not log_set.is_outdated():
            log_set.node.withdraw(durable=True)
