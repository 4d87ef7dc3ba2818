"""The options that Spark's Kafka source and ours are given alike, and their combinations.

A factor is an option, or a group of options that belong together, with the values it takes; a
combination of them (:func:`batch_cases`, :func:`stream_cases`) becomes the options of a query by
:func:`options_of`.
"""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any, Final

from tests.support.pairwise import pairwise
from tests.support.peer_topics import EPOCH_MS

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Case", "batch_cases", "name_of", "options_of", "stream_cases"]

Case = dict[str, Any]
"""The value of every factor."""

_MANY: Final = {"many": [0, 1, 2, 3]}
_SOME: Final = {"many": [0, 1], "appended": [0]}
_MIXED: Final = {"many": [0, 1, 2, 3], "cut": [0, 1], "txn": [0, 1]}
_ALL: Final = {**_MIXED, "compacted": [0], "appended": [0], "empty": [0]}

_TOPICS: Final[dict[str, tuple[dict[str, str], dict[str, list[int]]]]] = {
    "one topic": ({"subscribe": "many"}, _MANY),
    "some topics": ({"subscribe": " txn, many,,cut "}, _MIXED),
    "all topics": ({"subscribe": ",".join(_ALL)}, _ALL),
    "a pattern": (
        {"subscribePattern": "^(txn|app)|^com"},
        {"txn": [0, 1], "compacted": [0], "appended": [0]},
    ),
    "partitions": ({"assign": json.dumps({"many": [0, 1, 77], "appended": [0]})}, _SOME),
}
"""What to read, and the partitions that it means. One that does not exist is no error."""

_STARTS: Final = {
    "many": [10, -2, 1, 0],
    "txn": [3, -2],
    "cut": [9, 20],
    "compacted": [33],
    "appended": [-2],
    "empty": [-2],
}
_LATE_STARTS: Final = {**_STARTS, "many": [-1, -2, 1, 0], "txn": [-1, 9]}
_LOST_STARTS: Final = {**_STARTS, "cut": [2, 5]}
_ENDS: Final = {
    "many": [33, -1, 2, 0],
    "txn": [20, -1],
    "cut": [15, 20],
    "compacted": [70],
    "appended": [4],
    "empty": [-1],
}
_START_TIMES: Final = {
    "many": [EPOCH_MS + 30_000, EPOCH_MS - 3_600_000, EPOCH_MS + 2_000, EPOCH_MS],
    "txn": [EPOCH_MS + 3, EPOCH_MS],
    "cut": [EPOCH_MS + 9_500, EPOCH_MS],
    "compacted": [EPOCH_MS + 5],
    "appended": [EPOCH_MS],
    "empty": [0],
}
_END_TIMES: Final = {
    "many": [EPOCH_MS + 40_500, EPOCH_MS + 5_000, EPOCH_MS + 2_000, EPOCH_MS],
    "txn": [EPOCH_MS + 6, EPOCH_MS + 99],
    "cut": [EPOCH_MS + 12_000, EPOCH_MS + 20_000],
    "compacted": [EPOCH_MS + 9],
    "appended": [EPOCH_MS + 10**12],
    "empty": [EPOCH_MS],
}

_BATCH_STARTS: Final[dict[str, dict[str, Any]]] = {
    "by default": {},
    "earliest": {"startingOffsets": " EARliest "},
    "at offsets": {"startingOffsets": _STARTS},
    "at lost offsets": {"startingOffsets": _LOST_STARTS},
    "at a time": {"startingTimestamp": str(EPOCH_MS + 12_000)},
    "at times": {"startingOffsetsByTimestamp": _START_TIMES},
    "at a time before all": {
        "startingTimestamp": str(EPOCH_MS - 10_000_000),
        "startingOffsetsByTimestamp": "not looked at",
        "startingOffsets": "not looked at",
    },
}
_STREAM_STARTS: Final = {
    **_BATCH_STARTS,
    "latest": {"startingOffsets": "laTest"},
    "at offsets or latest": {"startingOffsets": _LATE_STARTS},
}
_BATCH_ENDS: Final[dict[str, dict[str, Any]]] = {
    "by default": {},
    "latest": {"endingOffsets": "Latest"},
    "at offsets": {"endingOffsets": _ENDS},
    "at a time": {"endingTimestamp": str(EPOCH_MS + 20_000)},
    "at times": {"endingOffsetsByTimestamp": _END_TIMES, "endingOffsets": "not looked at"},
}

_SHARED: Final[dict[str, list[Any]]] = {
    "topics": list(_TOPICS),
    "startingOffsetsByTimestampStrategy": [None, "error", "latest", "LATEST"],
    "kafka.isolation.level": [None, "read_committed", "read_uncommitted"],
    "includeHeaders": [None, "true", "FALSE"],
    "failOnDataLoss": [None, "true", "false"],
    "minPartitions": [None, "1", "14"],
    "maxRecordsPerPartition": [None, "7"],
    "fetchOffset.numRetries": [None, "1", "4"],
    "clients": [
        {},
        {"groupIdPrefix": "prefix"},
        {"kafka.group.id": "group {group}", "kafkaConsumer.pollTimeoutMs": "60000"},
        {"kafka.metadata.max.age.ms": "1000", "kafka.fetch.max.bytes": "100000"},
    ],
    "spelling": ["as in the docs", "lower", "upper"],
}


def batch_cases() -> list[Case]:
    """Return combinations for batch queries that hold every pair of values."""
    return pairwise(
        {
            "start": list(_BATCH_STARTS),
            "end": list(_BATCH_ENDS),
            **_SHARED,
            "maxOffsetsPerTrigger": [None, "10"],  # has no effect
        }
    )


def stream_cases() -> list[Case]:
    """Return combinations for streaming queries that hold every pair of values."""
    return pairwise(
        {
            "start": list(_STREAM_STARTS),
            "maxOffsetsPerTrigger": [None, "30", "77"],
            "trigger": ["availableNow", "availableNow", "once"],
            **_SHARED,
            "minOffsetsPerTrigger": [None, None, "25"],
            "maxTriggerDelay": [None, "0s", "10m"],
        }
    )


def options_of(case: Case) -> dict[str, str]:
    """Turn a combination into the options of a query, without what only one format takes."""
    selection, partitions = _TOPICS[case["topics"]]
    bounds = _STREAM_STARTS[case["start"]] | _BATCH_ENDS[case.get("end", "by default")]
    plain = {
        name: value
        for name, value in case.items()
        if name not in {"topics", "start", "end", "clients", "spelling", "trigger"}
        and value is not None
    }
    shown = {name: _for(partitions, value) for name, value in bounds.items()}
    options = {**selection, **shown, **plain, "fetchOffset.retryIntervalMs": "10"}
    # names of Kafka's own settings count in their own case
    spelled = {_spelled(name, case["spelling"]): value for name, value in options.items()}
    # Spark keeps consumers by group and partition, and wants the same settings of each
    group = uuid.uuid4().hex
    return spelled | {name: value.format(group=group) for name, value in case["clients"].items()}


def name_of(case: Case) -> str:
    """Name a combination by what is given in it."""
    return ", ".join(f"{name} {value}" for name, value in case.items() if value)


def _for(partitions: Mapping[str, list[int]], value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(
        {topic: {str(n): value[topic][n] for n in numbers} for topic, numbers in partitions.items()}
    )


def _spelled(name: str, spelling: str) -> str:
    if name.startswith("kafka."):
        return name
    return {"lower": name.lower(), "upper": name.upper()}.get(spelling, name)
