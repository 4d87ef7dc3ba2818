"""Writers that have been silent for long are forgotten; one wrong clock makes nobody forgotten.

Example: a commit whose clock is far ahead finds that all other writers have expired. So a commit
only notes such a writer. A later commit forgets it, if it has been silent for as long again as it
asked to be remembered. The note is removed when the writer commits, or when a commit finds that it
has not expired: the clock is right again.

A clock that is put back does no harm either. What was committed by it seems to have expired when
the clock is right again, and is noted first, too.

So a clock may be wrong by any amount, for as long as ``transactional.id.expiration.ms``.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from kafkalog.model import listed
from kafkalog.streaming.store.identity import APP_PREFIX

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping

    from kafkalog.checkpoints.commit_state import CommitState, WriterState

__all__ = ["still_known", "tell_forgotten"]

_LOGGER: Final = logging.getLogger("kafkalog.sink")

_SHOWN: Final = 20
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def still_known(writers: Mapping[str, WriterState], now_ms: int) -> dict[str, WriterState]:
    """Return the writers that are not to be forgotten, with a note on those that have expired."""
    known = {}
    for key, last in writers.items():
        if not last.is_expired(now_ms):
            known[key] = replace(last, expired_ms=None)
        elif last.expired_ms is None or now_ms < last.expired_ms:
            known[key] = replace(last, expired_ms=now_ms)
        elif now_ms - last.expired_ms <= last.expiration_ms:
            known[key] = last
    return known


def tell_forgotten(before: CommitState, after: CommitState) -> None:
    """Warn of writers that a commit has forgotten, and of those that it has found expired."""
    # Versions in a topic that was deleted went with it, and are not forgotten.
    then, now = dict(_named(before, after.topics)), dict(_named(after, before.topics))
    gone = [name for name in then if name not in now]
    expired = {
        name: last.expired_ms
        for name, last in now.items()
        if last.expired_ms is not None and name in then and then[name].expired_ms is None
    }
    if gone:
        _LOGGER.warning(
            "forgotten, since they were silent for twice their transactional.id.expiration.ms: %s. "
            "A query that comes back is refused, a txnAppId begins again",
            listed(gone, most=_SHOWN),
        )
    if expired:
        _LOGGER.warning(
            "silent for longer than their transactional.id.expiration.ms: %s. They will be "
            "forgotten once as much time again has gone by. It is %s by the clock of this machine: "
            "if that is wrong, set it right before",
            listed(expired, most=_SHOWN),
            _shown(max(expired.values())),
        )


def _named(state: CommitState, keys: Container[str]) -> Iterator[tuple[str, WriterState]]:
    """Yield writers by what a person calls them, and versions in the topics of ``keys``."""
    yield from state.writers.items()
    for key, topic in state.topics.items():
        if key in keys:
            for app_id, last in topic.versions.items():
                yield f"{APP_PREFIX}{app_id} in topic {topic.name!r}", last


def _shown(time_ms: int) -> str:
    try:
        return (_EPOCH + timedelta(milliseconds=time_ms)).isoformat(timespec="seconds")
    except OverflowError:
        return f"{time_ms} ms after 1970"
