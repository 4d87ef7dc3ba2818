"""The options that say which partitions and offsets a query reads, as Spark's Kafka source does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kafkalog.errors import OptionError
from kafkalog.streaming.option_kinds import BOOLEAN, READABLE_PATHS, TEXT, Kind, choice
from kafkalog.streaming.options import Options, option
from kafkalog.streaming.times import TIME_ACCEPTS, read_moment, shown_time

__all__ = ["RangeOptions"]

_MOMENT: Final = Kind(TIME_ACCEPTS, read_moment)


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeOptions(Options):
    """What a query over the source is to read."""

    paths: tuple[str, ...] = option(
        "path",
        READABLE_PATHS,
        doc="the log directories to read, or the folder of one partition. URIs that pyarrow or "
        "fsspec opens, such as s3://bucket/folder, work too",
    )
    subscribe: str | None = option(
        "subscribe", TEXT, default=None, doc="topics to read, separated by commas"
    )
    subscribe_pattern: str | None = option(
        "subscribePattern",
        TEXT,
        default=None,
        doc="a regular expression (Python's). It is searched anywhere in a topic's name. Internal "
        "topics are left out",
    )
    wait_for_topics: bool = option(
        "waitForTopics",
        BOOLEAN,
        default=False,
        doc="true: a stream waits for topics of subscribe that are not there yet, and reads each "
        "from its first record on. false: it fails. The log directory itself must be there",
    )
    assign: str | None = option(
        "assign", TEXT, default=None, doc='partitions to read, as JSON: {"topicA":[0,1]}'
    )
    starting_offsets: str | None = option(
        "startingOffsets",
        TEXT,
        default=None,
        doc="where a query without a checkpoint starts: earliest, latest, JSON, or group:<id> for "
        "the committed positions of a consumer group. In the JSON, -2 is earliest, -1 is "
        "latest, and one word may stand for all partitions of a topic: "
        '{"topicA":{"0":23},"topicB":"earliest"}. Default: latest for streams, earliest for '
        "batches",
    )
    ending_offsets: str | None = option(
        "endingOffsets",
        TEXT,
        default=None,
        doc="where a batch read ends (exclusive): latest, or JSON as for startingOffsets. "
        "Default: latest",
    )
    starting_timestamp: int | None = option(
        "startingTimestamp",
        _MOMENT,
        default=None,
        doc="start at the first record of each partition with this timestamp or a later one",
    )
    ending_timestamp: int | None = option(
        "endingTimestamp",
        _MOMENT,
        default=None,
        doc="end each partition before its first record with this timestamp or a later one. A "
        "stream ends there too",
    )
    starting_offsets_by_timestamp: str | None = option(
        "startingOffsetsByTimestamp",
        TEXT,
        default=None,
        doc='startingTimestamp per partition, as JSON: {"topicA":{"0":1700000000000}}, or '
        '{"topicA":{"0":"2026-11-22T10:15:00Z"}}',
    )
    ending_offsets_by_timestamp: str | None = option(
        "endingOffsetsByTimestamp",
        TEXT,
        default=None,
        doc="endingTimestamp per partition, as JSON",
    )
    starting_timestamp_strategy: str = option(
        "startingOffsetsByTimestampStrategy",
        choice("error", "latest"),
        default="error",
        doc="what to do if no record has the starting timestamp or a later one: fail, or start at "
        "the end",
    )
    stop_at_offsets: str | None = option(
        "stopAtOffsets",
        TEXT,
        default=None,
        doc="where a stream ends (exclusive), as JSON per partition. Partitions that are not "
        "named have no end",
    )

    def require_one_choice(self) -> None:
        """Refuse a query that does not say what to read, or says so twice."""
        named = {
            "assign": self.assign,
            "subscribe": self.subscribe,
            "subscribePattern": self.subscribe_pattern,
        }
        given = [name for name, value in named.items() if value is not None]
        if len(given) != 1:
            raise OptionError(
                "exactly one of the options assign, subscribe and subscribePattern says what to "
                f"read, but {'none is' if not given else ' and '.join(given) + ' are'} given"
            )

    def require_order(self) -> None:
        """Refuse a time to start at that lies after the time to end at."""
        start, end = self.starting_timestamp, self.ending_timestamp
        if start is not None and end is not None and start > end:
            raise OptionError(
                f"option 'startingTimestamp' ({shown_time(start)}) lies after option "
                f"'endingTimestamp' ({shown_time(end)}), and no record can be between them: "
                "exchange the two, or leave one out"
            )
