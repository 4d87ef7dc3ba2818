"""Options that Spark's Kafka source and ours both refuse, over the topics of ``peer_topics``."""

from __future__ import annotations

import json
from typing import Final

from tests.support.peer_topics import EPOCH_MS

__all__ = ["BATCH_REFUSALS", "STREAM_REFUSALS"]

_MANY: Final = {"subscribe": "many"}
_TWO: Final = {"assign": json.dumps({"many": [0, 1]})}


def _of_many(*numbers: int) -> str:
    return json.dumps({"many": {str(n): number for n, number in enumerate(numbers)}})


_BOTH_KINDS: Final[dict[str, dict[str, str]]] = {
    "a topic that is not there": {"subscribe": "many,nothing"},
    "a start with a partition too few": _MANY | {"startingOffsets": _of_many(0, 0, 0)},
    "a start with a partition too many": _MANY | {"startingOffsets": _of_many(0, 0, 0, 0, 0)},
    "a start with a timestamp too few": _MANY | {"startingOffsetsByTimestamp": _of_many(0, 0, 0)},
    "a start with a timestamp too many": _TWO | {"startingOffsetsByTimestamp": _of_many(0, 0, 0)},
    "no record at the time": _MANY | {"startingTimestamp": str(EPOCH_MS)},
    "no record at one of the times": _MANY
    | {
        "startingOffsetsByTimestamp": _of_many(EPOCH_MS, EPOCH_MS, EPOCH_MS, EPOCH_MS),
        "startingOffsetsByTimestampStrategy": "error",
    },
    "a start at a strange number": _TWO | {"startingOffsets": _of_many(0, -3)},
}

BATCH_REFUSALS: Final[dict[str, dict[str, str]]] = _BOTH_KINDS | {
    "nothing to read": {},
    "two ways of saying what to read": _MANY | {"subscribePattern": "many"},
    "all ways of saying what to read": _MANY | _TWO | {"subscribePattern": "many"},
    "an empty list of topics": {"subscribe": " , "},
    "an empty pattern": {"subscribePattern": " "},
    "a pattern that is none": {"subscribePattern": "many("},
    "an assignment that is no JSON": {"assign": "many-0"},
    "an assignment of another form": {"assign": '{"many": "0"}'},
    "an empty assignment": {"assign": ""},
    "a start that is no JSON": _MANY | {"startingOffsets": "first"},
    "a start at latest": _MANY | {"startingOffsets": "latest"},
    "a start that is latest somewhere": _TWO | {"startingOffsets": _of_many(0, -1)},
    "an end at earliest": _MANY | {"endingOffsets": "earliest"},
    "an end that is earliest somewhere": _TWO | {"endingOffsets": _of_many(3, -2)},
    "an end with a partition too few": _MANY | {"endingOffsets": _of_many(9, 9)},
    "an end with a timestamp too few": _MANY | {"endingOffsetsByTimestamp": _of_many(9, 9)},
    "a start and an end of other partitions": _TWO
    | {"startingOffsets": _of_many(0, 0), "endingOffsets": _of_many(9)},
    "times of other partitions": _TWO
    | {"startingOffsetsByTimestamp": _of_many(0), "endingOffsetsByTimestamp": _of_many(9, 9)},
    "a start behind the end": _TWO
    | {"startingOffsets": _of_many(0, 9), "endingOffsets": _of_many(5, 5)},
    "a time behind the ending time": _TWO
    | {"startingOffsetsByTimestamp": _of_many(5, 9), "endingOffsetsByTimestamp": _of_many(5, 5)},
    "a start behind the offset of the ending time": _TWO
    | {"startingOffsets": _of_many(50, 0), "endingTimestamp": str(EPOCH_MS + 1000)},
    "a time behind the ending offset": _TWO
    | {"startingTimestamp": str(EPOCH_MS + 5000), "endingOffsets": _of_many(1, 1)},
    "a start behind the last offset": _TWO | {"startingOffsets": _of_many(0, 1000)},
    "a timestamp that is no number": _MANY | {"startingTimestamp": "yesterday"},
    "an ending timestamp that is no number": _MANY | {"endingTimestamp": "2023-11-31"},
    "timestamps that are no JSON": _MANY | {"startingOffsetsByTimestamp": "1700000000000"},
    "an unknown strategy": _MANY | {"startingOffsetsByTimestampStrategy": "earliest"},
    "no tasks": _MANY | {"minPartitions": "0"},
    "tasks that are no number": _MANY | {"minPartitions": "some"},
    "no records in a task": _MANY | {"maxRecordsPerPartition": "0"},
    "a loss that may fail perhaps": _MANY | {"failOnDataLoss": "perhaps"},
    "headers that are no boolean": _MANY | {"includeHeaders": "1"},
    "an unknown isolation level": _MANY | {"kafka.isolation.level": "serializable"},
    "no attempts": _MANY | {"fetchOffset.numRetries": "0"},
    "auto.offset.reset": _MANY | {"kafka.auto.offset.reset": "earliest"},
    "a deserializer of keys": _MANY | {"kafka.key.deserializer": "X"},
    "a deserializer of values": _MANY | {"kafka.value.deserializer": "X"},
    "enable.auto.commit": _MANY | {"kafka.enable.auto.commit": "false"},
    "an interceptor": _MANY | {"kafka.interceptor.classes": "X"},
}
"""By what is wrong; the options of a batch query."""


STREAM_REFUSALS: Final[dict[str, dict[str, str]]] = _BOTH_KINDS | {
    "an end": _MANY | {"endingOffsets": "latest"},
    "ending times": _MANY | {"endingOffsetsByTimestamp": _of_many(9, 9, 9, 9)},
    "a minimum above the maximum": _MANY
    | {"minOffsetsPerTrigger": "20", "maxOffsetsPerTrigger": "15"},
    "a limit that is no number": _MANY | {"maxOffsetsPerTrigger": "many"},
    "a delay that is no time": _MANY | {"minOffsetsPerTrigger": "5", "maxTriggerDelay": "soon"},
    "a start behind the last offset": _TWO | {"startingOffsets": _of_many(0, 1000)},
    "a start below the log start": {"subscribe": "cut"}
    | {"startingOffsets": json.dumps({"cut": {"0": 0, "1": 20}})},
}
"""By what is wrong; the options of a streaming query."""
