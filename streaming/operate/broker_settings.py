"""The settings that a cluster gave to topics, for the commit state that takes them over.

While a broker has the directories, its cluster's settings are the true ones: they take the place of
those that were kept here, of each topic that the cluster knows by its id. What nobody told about a
topic stays as it is.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.broker import META_PROPERTIES
from kafkalog.errors import KafkaLogError
from kafkalog.model import CLUSTER_METADATA_TOPIC
from kafkalog.streaming.coordinator.cluster_metadata import read_cluster_topics

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from kafkalog.checkpoints.commit_state import CommitState
    from kafkalog.streaming.coordinator.cluster_metadata import ClusterTopics

__all__ = ["changed_settings", "with_broker_settings"]

_LOG: Final = logging.getLogger("kafkalog.sink")

_OURS: Final = frozenset({"message.format"})
"""Settings that no cluster knows."""


def with_broker_settings(state: CommitState, directories: Sequence[Path]) -> CommitState:
    """Give topics the settings that their cluster has given to them.

    Metadata that was read before changes nothing: a setting that was given here since is newer.
    """
    found = _newest(directories)
    if found is None or found.end == state.metadata_end:
        return state
    topics = dict(state.topics)
    for key, topic in state.topics.items():
        if key in found.settings:
            ours = {name: topic.settings[name] for name in _OURS & topic.settings.keys()}
            topics[key] = replace(topic, settings={**found.settings[key], **ours})
    return replace(state, topics=topics, metadata_end=found.end)


def _newest(directories: Sequence[Path]) -> ClusterTopics | None:
    """Read the metadata in the directories; None, with a warning, where it tells nothing."""
    found = []
    for folder in directories:
        try:
            found.append(read_cluster_topics(folder))
        except (KafkaLogError, OSError) as error:
            _LOG.warning(
                "the settings of topics are not taken over, and stay what they are here: the "
                "cluster's metadata cannot be read: %s",
                error,
            )
            return None
    whole = [each for each in found if each is not None]
    if not whole and any((folder / META_PROPERTIES).exists() for folder in directories):
        _LOG.warning(
            "a broker lived in %s, and there is no %s-0 that tells the settings of its topics: "
            "they stay what they are here, and topics without a limit keep everything",
            ", ".join(map(str, directories)),
            CLUSTER_METADATA_TOPIC,
        )
    return max(whole, key=lambda each: each.end, default=None)


def changed_settings(before: CommitState, state: CommitState) -> list[str]:
    """Say which settings of topics are others in one state than in the one before."""
    lines = []
    for key, topic in state.topics.items():
        known = before.topics.get(key)
        was = known.settings if known is not None else {}
        if topic.settings != was:
            lines.append(
                f"{topic.name} has the settings {_text(topic.settings)}, before {_text(was)}"
            )
    return lines


def _text(settings: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(settings.items())) or "none"
