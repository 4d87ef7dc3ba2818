"""The partitions that a query reads: ``subscribe``, ``subscribePattern`` or ``assign``.

Source: Spark ``ConsumerStrategy``. Unlike there, an internal topic can be read by naming it.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kafkalog.errors import OptionError, UnknownTopicOrPartitionError
from kafkalog.files.paths import as_path
from kafkalog.model import (
    CLUSTER_METADATA_TOPIC,
    INTERNAL_TOPICS,
    OFFSETS_TOPIC,
    TopicPartition,
    listed,
    nearest,
    validate_topic_name,
)
from kafkalog.streaming.log.log_dir import log_dirs_near
from kafkalog.streaming.source.offsets import parse_assignment

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kafkalog.streaming.options.read_options import ReadOptions

__all__ = ["DECODED_TOPICS", "Subscription"]

_LOGGER: Final = logging.getLogger("kafkalog.source")


DECODED_TOPICS: Final = {
    "offsets": OFFSETS_TOPIC,
    "transactions": "__transaction_state",
    "metadata": CLUSTER_METADATA_TOPIC,
    "remote": "__remote_log_metadata",
}
"""The topic that each view of an internal topic reads."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """One of: named topics, a pattern of names, named partitions."""

    topics: frozenset[str] = frozenset()
    pattern: re.Pattern[str] | None = None
    partitions: frozenset[TopicPartition] = frozenset()

    @classmethod
    def of(cls, options: ReadOptions) -> Subscription:
        """Parse the one option that is given.

        Raises:
            OptionError: names no topic, or is no pattern or no JSON of partitions; or names other
                topics than the one that the view of an internal topic reads.
            InvalidTopicError: a name that no topic can have.
        """
        found = cls._parse(options)
        if options.view in DECODED_TOPICS:
            found.require_only(DECODED_TOPICS[options.view], options.view)
        return found

    @classmethod
    def _parse(cls, options: ReadOptions) -> Subscription:
        if options.assign is not None:
            partitions = parse_assignment(options.assign)
            for topic, _ in partitions:
                validate_topic_name(topic)
            return cls(partitions=partitions)
        if options.subscribe_pattern is not None:
            return cls(pattern=_compiled(options.subscribe_pattern))
        names = (name.strip() for name in (options.subscribe or "").split(","))
        topics = frozenset(name for name in names if name)
        if not topics:
            raise OptionError("option 'subscribe' names no topic")
        for topic in topics:
            validate_topic_name(topic)
        return cls(topics=topics)

    def require_only(self, topic: str, view: str) -> None:
        """Refuse another topic than the one that ``view`` decodes.

        Raises:
            OptionError: another topic is named, or none.
        """
        named = self.topics | {key.topic for key in self.partitions}
        if named != {topic}:
            raise OptionError(
                f"view={view} reads {topic} alone: name it, and nothing else, by subscribe or "
                "assign"
            )

    def selects(self, topic_partition: TopicPartition) -> bool:
        """Whether a partition that exists is to be read."""
        if self.pattern is not None:
            topic = topic_partition.topic
            return topic not in INTERNAL_TOPICS and self.pattern.search(topic) is not None
        return topic_partition.topic in self.topics or topic_partition in self.partitions

    def require_topics(
        self, existing: Iterable[TopicPartition], paths: Iterable[str], *, wait: bool = False
    ) -> None:
        """Refuse to start without a topic that ``subscribe`` names, as a broker would.

        What a pattern or ``assign`` names may come later, and what is waited for (``wait``): a
        warning says what is not there yet.

        Raises:
            UnknownTopicOrPartitionError: none of its partitions is among those that exist.
        """
        found = set(existing)
        topics = {topic for topic, _ in found}
        missing = self.topics - topics
        paths = [*paths]
        if missing:
            _tell_missing(missing, topics, paths, wait=wait)
        if self.pattern is not None and not any(map(self.selects, found)):
            _LOGGER.warning(
                "subscribePattern %r matches no topic in %s%s; internal topics are left out",
                self.pattern.pattern,
                ", ".join(paths),
                _holding(topics),
            )
        if self.partitions - found:
            _LOGGER.warning(
                "assign names partitions that are not in %s: %s",
                ", ".join(paths),
                listed(sorted(map(str, self.partitions - found)))
                + _meant({topic for topic, _ in self.partitions} - topics, topics),
            )


def _tell_missing(
    missing: Iterable[str], topics: set[str], paths: Sequence[str], *, wait: bool
) -> None:
    names, where = ", ".join(sorted(missing)), ", ".join(map(str, paths))
    if wait:
        _LOGGER.warning("waiting for topic %s in %s%s", names, where, _holding(topics))
        return
    near = "" if topics else "".join(log_dirs_near(as_path(path)) for path in paths)
    raise UnknownTopicOrPartitionError(
        f"no partition of topic {names} is in {where}{_holding(topics)}{_meant(missing, topics)}; "
        "a topic comes with its first write, and a stream with waitForTopics or subscribePattern "
        f"waits for it{near}"
    )


def _meant(missing: Iterable[str], topics: set[str]) -> str:
    """Return the part of a sentence that asks whether other topics were meant."""
    near = [found for name in sorted(missing) if (found := nearest(name, topics))]
    return f" (did you mean {listed(near)}?)" if near else ""


def _holding(topics: Iterable[str]) -> str:
    """Return the part of a sentence that says which topics there are, ten of them by name."""
    return f", which holds {listed(sorted(set(topics) - INTERNAL_TOPICS)) or 'no topic'}"


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise OptionError(
            f"option 'subscribePattern' is {pattern[:200]!r}, no regular expression: {error}"
        ) from None
