"""A query whose checkpoint was deleted looks like a new one, and writes its rows once more.

Without a ``transactional.id`` the two cannot be distinguished: the query's id is made with its
checkpoint. So a warning is given when a query begins in a topic that another one wrote last.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kafkalog.checkpoints.commit_state import CommitState
    from kafkalog.streaming.store.identity import BatchIdentity
    from kafkalog.streaming.store.topics import Topic

__all__ = ["tell_newcomer"]

_LOGGER: Final = logging.getLogger("kafkalog.sink")

_SHOWN: Final = 20


def tell_newcomer(identity: BatchIdentity, before: CommitState, topics: Iterable[Topic]) -> None:
    """Say that a query, new by the state ``before``, begins where another one wrote last."""
    if not identity.is_query or identity.writer in before.writers:
        return
    others = {}
    for topic in topics:
        known = before.topics.get(topic.key)
        if known is not None and known.last_query is not None:
            others[topic.name] = known.last_query
    if others:
        shown = [f"{topic} ({query})" for topic, query in sorted(others.items())]
        _LOGGER.warning(
            "%s is the first of its query, and went to topics that another query wrote last: %s. "
            "If it is the same query after its checkpoint was deleted or moved, its rows are there "
            "twice from now on: stop it. A query with an option transactional.id is refused then",
            identity,
            ", ".join(shown[:_SHOWN]) + (", …" if len(shown) > _SHOWN else ""),
        )
