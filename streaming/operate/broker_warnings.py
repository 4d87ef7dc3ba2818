"""What a broker does to topics when it gets directories of ours, said before that."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from kafkalog.errors import KafkaLogError
from kafkalog.model import INTERNAL_TOPICS, listed
from kafkalog.streaming.coordinator.cluster_metadata import read_cluster_topics
from kafkalog.streaming.operate.state_of_logs import warn_of_broker_retention

if TYPE_CHECKING:
    from collections.abc import Collection

    from kafkalog.streaming.store.log_set import LogSet

__all__ = ["warn_of_broker"]

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
