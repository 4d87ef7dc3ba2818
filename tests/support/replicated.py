"""Replicated sets in tests: append to them, read them, and compare their replicas."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import kafkalog
from kafkalog.checkpoints.commit_state import PREPARED_FILE, UNFINISHED_FOLDER
from kafkalog.checkpoints.intent import INTENT_FILE
from kafkalog.checkpoints.state_file import load_state

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from kafkalog.checkpoints.commit_state import CommitState

__all__ = [
    "append",
    "away",
    "check_clean",
    "check_equal",
    "check_in_sync",
    "newest_state",
    "path_of",
    "values",
    "without_mount",
]

OPTIONS = {"numPartitions": "2", "segment.bytes": "300", "min.insync.replicas": "2"}


def path_of(nodes: Iterable[Path]) -> str:
    """Return the path that names some nodes of one directory each."""
    return ";".join(map(str, nodes))


def append(
    nodes: Sequence[Path], version: int, rows: Sequence[str], topic: str = "t", **options: str
) -> None:
    """Append rows under a version: again is once."""
    kafkalog.append(
        path_of(nodes),
        topic,
        pa.table({"key": list(rows), "value": list(rows)}),
        transactional_id="writer",
        version=version,
        options=OPTIONS | options,
    )


def away(node: Path) -> Path:
    """Take a node away; returns where it is now."""
    return node.rename(node.with_suffix(".away"))


@contextmanager
def without_mount(folder: Path) -> Iterator[None]:
    """Show an empty folder, as where a mount failed; what is written there is gone after it."""
    hidden = folder.with_name(f"{folder.name}.hidden")
    folder.rename(hidden)
    folder.mkdir()
    try:
        yield
    finally:
        shutil.rmtree(folder)
        hidden.rename(folder)


def values(nodes: Sequence[Path], topic: str = "t", **options: Any) -> list[str]:
    """Return all values of a topic, sorted."""
    found = kafkalog.read(
        path_of(nodes), topic, columns=["value"], strings=["value"], **options
    ).read_all()
    return sorted(found.column("value").to_pylist())


def newest_state(nodes: Iterable[Path]) -> CommitState:
    """Return the newest state that any node has."""
    states = [state for node in nodes if (state := load_state(node)) is not None]
    return max(states, key=lambda state: state.rank)


def check_in_sync(nodes: Sequence[Path]) -> None:
    """All replicas are in sync, under a leader."""
    for topic in newest_state(nodes).topics.values():
        for number, each in topic.replicas.items():
            assert sorted(each.isr) == sorted(each.replicas), (topic.name, number, each)
            assert each.leader in each.isr


def check_equal(nodes: Sequence[Path]) -> None:
    """All replicas are equal, byte for byte: logs, sealed indexes, leader epochs."""
    for topic in newest_state(nodes).topics.values():
        for number in topic.partitions:
            folders = [node / f"{topic.name}-{number}" for node in nodes]
            if len(topic.replicas[number].replicas) < len(folders):
                folders = [folder for folder in folders if folder.is_dir()]
            contents = [*map(_contents, folders)]
            for other in contents[1:]:
                assert other == contents[0], (topic.name, number)


def check_clean(nodes: Sequence[Path]) -> None:
    """Nothing is left of a commit."""
    for node in nodes:
        left = {INTENT_FILE, PREPARED_FILE, UNFINISHED_FOLDER}
        assert not left & {path.name for path in node.iterdir()}, node


def _contents(folder: Path) -> dict[str, bytes]:
    logs = sorted(path.stem for path in folder.glob("*.log"))
    found = {path.name: path.read_bytes() for path in sorted(folder.glob("*.log"))}
    for path in folder.iterdir():
        is_sealed = path.suffix in {".index", ".timeindex", ".txnindex"} and path.stem != logs[-1]
        if is_sealed or path.name == "leader-epoch-checkpoint":
            found[path.name] = path.read_bytes()
    return found
