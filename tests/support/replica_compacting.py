"""Compacted topics on several nodes: write updates of keys to them, compact, and read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
from tests.support.log_files import swap_is_unfinished
from tests.support.replicated import newest_state, path_of

import kafkalog
from kafkalog.checkpoints.broker import CLEANER_OFFSET, read_offset_checkpoint
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.compaction import Wanted, compact

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from kafkalog.streaming.admin.compaction import Compacted

__all__ = [
    "BATCHES",
    "LATEST",
    "T0",
    "check_no_swap",
    "clean_to",
    "compacted",
    "newest",
    "update",
    "updates",
]

T0: Final = TopicPartition("t", 0)
_OPTIONS: Final = {
    "numPartitions": "1",
    "cleanup.policy": "compact",
    "segment.bytes": "100",
    "min.insync.replicas": "1",
}

BATCHES: Final = (
    {"a": "1", "b": "1"},
    {"a": "2"},
    {"b": None, "c": "1"},
    {"a": "3"},
    {"e": "1"},
)
LATEST: Final = {"a": "3", "b": None, "c": "1", "e": "1"}


def update(
    nodes: Sequence[Path], version: int, values: Mapping[str, str | None], **options: str
) -> None:
    """Append values of keys under a version: again is once. Each batch is a segment."""
    keys = [*values]
    kafkalog.append(
        path_of(nodes),
        "t",
        pa.table({"key": keys, "value": [values[key] for key in keys]}),
        transactional_id="writer",
        version=version,
        options=_OPTIONS | options,
    )


def updates(nodes: Sequence[Path], batches: Sequence[Mapping[str, str | None]] = BATCHES) -> None:
    """Append batches as versions from 0 on."""
    for version, values in enumerate(batches):
        update(nodes, version, values)


def compacted(nodes: Sequence[Path]) -> Compacted:
    """Compact all that can be, and see that nothing went wrong."""
    done = compact([path_of(nodes)], Wanted(forces=True))
    assert done.problems == []
    return done


def newest(nodes: Sequence[Path], **options: str) -> dict[str, str | None]:
    """Return the last value of each key, as records tell."""
    found = kafkalog.read(
        path_of(nodes), "t", columns=["key", "value"], strings=["key", "value"], options=options
    ).read_all()
    return dict(
        zip(found.column("key").to_pylist(), found.column("value").to_pylist(), strict=True)
    )


def clean_to(node: Path) -> int | None:
    """Return up to where a node's log is clean, as its checkpoint says."""
    return read_offset_checkpoint(node, CLEANER_OFFSET).get(T0)


def check_no_swap(nodes: Sequence[Path]) -> None:
    """No segment waits for its place, and no state says that replicas may differ."""
    for node in nodes:
        assert not swap_is_unfinished(node / "t-0"), node
        assert not [path.name for path in node.glob(".kafkalog.clean*")], node
    (topic,) = newest_state(nodes).topics.values()
    assert not topic.replicas[0].rewritten.is_under_way
