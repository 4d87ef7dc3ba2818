"""Facts of a topic that an archive keeps beside its records, for a restore.

It is a property of the Delta table, ``kafkalog.topic.<name>``, whose text is JSON::

    {"topicId": "2nKGh3uGQ0a2qXfWc1kKTA", "partitionCount": 2, "timestampType": "CreateTime",
     "settings": {"retention.ms": "1000"}, "partitions": {"0": [500, 731], "1": [0, 0]},
     "lastBatches": {"0": "729:730:3051823371:0:2:0:96:2:1700000000000"}}

``partitions`` has the log start and the log end of each. ``lastBatches`` has the last record batch
below these ends, where it is known: a clone of the table, which has no history, tells by it whether
the log was cut since. ``settings`` and ``timestampType`` are
null where neither the commit state nor a cluster's metadata tells them, ``topicId`` where the
topic's folders have none.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Self

from kafkalog.checkpoints.broker import read_topic_id
from kafkalog.checkpoints.commit_state import topic_key
from kafkalog.checkpoints.committed import load_committed
from kafkalog.errors import KafkaLogError
from kafkalog.streaming.admin.topics import Bounds
from kafkalog.streaming.coordinator.cluster_metadata import read_cluster_topics
from kafkalog.streaming.log.history import LastBatch
from kafkalog.streaming.store.ends.tracker import LogEndTracker
from kafkalog.streaming.store.log_dirs import LogDirs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kafkalog.jobs.pipelines.continuation import HeldTopic
    from kafkalog.model import TopicPartition
    from kafkalog.streaming.coordinator.cluster_metadata import ClusterTopics

__all__ = ["FactsOfLogs", "TopicFacts", "property_of", "read_facts", "to_properties"]

_LOGGER: Final = logging.getLogger("kafkalog.jobs")

_PREFIX: Final = "kafkalog.topic."
_TIMESTAMP_TYPE: Final = "message.timestamp.type"


@dataclass(frozen=True)
class TopicFacts:
    """A topic's partitions by their numbers, its settings and its id; None if not known.

    ``batches``: the last batch below the end of each partition where it is known.
    """

    partitions: Mapping[int, Bounds]
    settings: Mapping[str, str] | None
    topic_id: str | None = None
    batches: Mapping[int, LastBatch] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def partition_count(self) -> int:
        """How many partitions it has."""
        return max(self.partitions, default=-1) + 1

    def of_rows(self, held: HeldTopic) -> Self:
        """Return what is known of the topic that a table holds, which the log may not have now."""
        batches = {
            number: held.batches[number]
            for number, (_, end) in self.partitions.items()
            if number in held.batches and held.ends[number] == end
        }
        return replace(self, topic_id=held.topic_id or self.topic_id, batches=batches)

    def to_json(self) -> str:
        """Return the text of the property."""
        known = self.settings
        facts = {
            "topicId": self.topic_id,
            "partitionCount": self.partition_count,
            "timestampType": None if known is None else known.get(_TIMESTAMP_TYPE, "CreateTime"),
            "settings": None if known is None else dict(sorted(known.items())),
            "partitions": {
                str(number): self.partitions[number] for number in sorted(self.partitions)
            },
            "lastBatches": {str(n): self.batches[n].to_text() for n in sorted(self.batches)},
        }
        return json.dumps(facts)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read the text of the property."""
        facts: dict[str, Any] = json.loads(text)
        partitions = {int(number): Bounds(*pair) for number, pair in facts["partitions"].items()}
        last = facts.get("lastBatches", {})
        known = {int(number): LastBatch.from_text(text) for number, text in last.items()}
        batches = {number: batch for number, batch in known.items() if batch is not None}
        return cls(partitions, facts["settings"], facts["topicId"], batches)


def to_properties(facts: Mapping[str, TopicFacts]) -> dict[str, str]:
    """Return the properties of a table that keep what is known of topics."""
    return {property_of(topic): known.to_json() for topic, known in facts.items()}


def property_of(topic: str) -> str:
    """Return the name of the property that keeps what is known of a topic."""
    return f"{_PREFIX}{topic}"


def read_facts(properties: Mapping[str, str]) -> dict[str, TopicFacts]:
    """Return what a table's properties keep of topics, by their names."""
    return {
        name.removeprefix(_PREFIX): TopicFacts.from_json(text)
        for name, text in properties.items()
        if name.startswith(_PREFIX)
    }


class FactsOfLogs:
    """Looks at the log directories that topics are archived from."""

    def __init__(self, paths: Iterable[str], topics: Iterable[str]) -> None:
        """Look at nothing yet."""
        self._log_dirs = LogDirs(paths)
        chosen = frozenset(topics)
        self._watch = LogEndTracker(self._log_dirs.paths, lambda key: key.topic in chosen)

    def look(
        self, ends: Mapping[TopicPartition, int], known: Mapping[str, TopicFacts] | None = None
    ) -> dict[str, TopicFacts]:
        """Return what is known of each topic now; ``ends`` is how far its partitions were read.

        What is not there keeps what was ``known`` of it: it was deleted, or is not mounted. Of a
        partition that was never looked at nothing is said.
        """
        known = known or {}
        there = self._watch.look().offsets
        bounds = {topic: dict(facts.partitions) for topic, facts in known.items()}
        for key, end in ends.items():
            before = bounds.get(key.topic, {}).get(key.partition)
            if key in there:
                start = self._watch.log_start(key)
            elif before is not None:
                start = before.start
            else:
                continue
            bounds.setdefault(key.topic, {})[key.partition] = Bounds(min(start, end), end)
        settings = {topic: facts.settings for topic, facts in known.items()}
        settings |= self._settings(bounds)
        ids = {topic: facts.topic_id for topic, facts in known.items()} | self._ids()
        return {
            topic: TopicFacts(found, settings.get(topic), ids.get(topic))
            for topic, found in bounds.items()
        }

    def _ids(self) -> dict[str, str]:
        """Return the ids of the topics that have one, as of the last look."""
        ids = self._watch.topic_ids()
        return {key.topic: known for key, known in sorted(ids.items()) if known is not None}

    def _settings(self, topics: Iterable[str]) -> dict[str, Mapping[str, str]]:
        """Return the settings of the topics of which any are known; a broker's are newer."""
        keys = {}
        for key, where in self._log_dirs.partitions().items():
            if key.topic in topics and key.topic not in keys:
                keys[key.topic] = topic_key(key.topic, read_topic_id(where.path))
        state = load_committed(self._log_dirs.paths).state
        known = {} if state is None else {key: each.settings for key, each in state.topics.items()}
        cluster = self._cluster
        newer = (
            {}
            if cluster is None or (state and state.metadata_end == cluster.end)
            else cluster.settings
        )
        return {
            topic: {**known, **newer}[key]
            for topic, key in keys.items()
            if key in known or key in newer
        }

    @cached_property
    def _cluster(self) -> ClusterTopics | None:
        """What a cluster was told of its topics, as of the first look; None if nothing tells."""
        try:
            found = [read_cluster_topics(path) for path in self._log_dirs.paths]
        except (KafkaLogError, OSError) as error:
            _LOGGER.warning("settings that a cluster gave to its topics are not kept: %s", error)
            return None
        return max((each for each in found if each), key=lambda each: each.end, default=None)
