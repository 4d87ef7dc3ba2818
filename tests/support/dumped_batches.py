"""What Kafka's dump tool printed of each batch in the corpus, in the words of view=batches."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

import pyarrow.parquet as pq
from tests.support.corpus import CORPUS

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["comparable", "dumped_batches", "file_of"]

_NAMES: Final = {
    "position": "position",
    "size": "size",
    "magic": "magic",
    "codec": "codec",
    "crc": "crc",
    "crcValid": "valid",
    "baseOffset": "base_offset",
    "lastOffset": "last_offset",
    "count": "count",
    "maxTimestamp": "max_timestamp",
    "timestampType": "ts_type",
    "producerId": "producer_id",
    "producerEpoch": "producer_epoch",
    "baseSequence": "base_sequence",
    "lastSequence": "last_sequence",
    "transactional": "transactional",
    "control": "control",
    "deleteHorizonMs": "delete_horizon_ms",
    "leaderEpoch": "partition_leader_epoch",
}
_TIMESTAMP_TYPES: Final = {"NoTimestampType": -1, "CreateTime": 0, "LogAppendTime": 1}
_SINCE_MAGIC_2: Final = {
    "producerId": -1,
    "producerEpoch": -1,
    "baseSequence": -1,
    "lastSequence": -1,
    "transactional": False,
    "control": False,
    "leaderEpoch": -1,
}
_NOT_PRINTED_BEFORE_MAGIC_2: Final = frozenset({"baseOffset", "count"})


def dumped_batches(case: str) -> dict[str, list[dict[str, Any]]]:
    """Return the batches of each file (``topic-0/00000000000000000000.log``) in their order."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in pq.read_table(CORPUS / case / "batches.parquet").to_pylist():
        batch = {name: row[theirs] for name, theirs in _NAMES.items()}
        batch["codec"] = batch["codec"].lower()
        batch["timestampType"] = _TIMESTAMP_TYPES[batch["timestampType"]]
        if batch["magic"] < 2:
            batch |= _SINCE_MAGIC_2
        found.setdefault(file_of(row["file"]), []).append(comparable(batch))
    return {
        file: sorted(batches, key=lambda each: each["position"]) for file, batches in found.items()
    }


def comparable(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what the tool does not print."""
    left_out = _NOT_PRINTED_BEFORE_MAGIC_2 if batch["magic"] < 2 else frozenset()
    return {name: batch[name] for name in _NAMES if name not in left_out}


def file_of(path: str) -> str:
    """Return a segment's file with its partition's folder alone before it."""
    return str(PurePath(*PurePath(path).parts[-2:]))
