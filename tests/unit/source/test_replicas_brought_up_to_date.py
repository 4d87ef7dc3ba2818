"""Readers that were sent to a replica that was in sync, and lags and is brought up to date now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support.replicated import away, check_equal, check_in_sync, path_of

import kafkalog
from kafkalog.checkpoints.broker import read_topic_id, write_topic_id
from kafkalog.errors import LogDirectoryError
from kafkalog.streaming.admin.compaction import Wanted, compact
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.store import log_dirs
from kafkalog.streaming.store.log_dirs import LogDirs
from kafkalog.streaming.store.replicas import copying
from kafkalog.streaming.store.replicas import in_sync as catching_up
from kafkalog.streaming.store.replicas.copying import Copying

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

OPTIONS = {"numPartitions": "1", "segment.bytes": "1000", "cleanup.policy": "compact"}
VERSIONS = 24


def update(nodes: list[Path], version: int) -> None:
    """Write a key that stays and one that is written again and again, which compaction takes."""
    table = pa.table({"key": [f"k{version}", "again"], "value": [f"v{version}", "~" * 200]})
    identity: dict[str, Any] = {"transactional_id": "writer", "version": version}
    kafkalog.append(path_of(nodes), "t", table, options=OPTIONS, **identity)


@pytest.fixture
def nodes(tmp_path: Path) -> list[Path]:
    found = [tmp_path / name for name in "abc"]
    for version in range(VERSIONS):
        update(found, version)
    return found


def planned(nodes: list[Path]) -> pa.RecordBatchReader:
    return kafkalog.read(path_of(nodes), "t", columns=["key"], strings=["key"])


def kept(reading: pa.RecordBatchReader) -> list[int]:
    """Return which keys of those that stay are read."""
    found = reading.read_all().column("key").to_pylist()
    return sorted(int(key[1:]) for key in found if key != "again")


def each_step(patch: pytest.MonkeyPatch, look: Callable[[], None]) -> None:
    """Look after each step by which a replica is brought up to date."""

    def looking(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            found = original(*given, **named)
            look()
            return found

        return call

    for owner, name in (
        (catching_up, "remove_segment"),
        (copying, "remove_segment"),
        (copying, "copy_bytes"),
        (Copying, "copy_log"),
    ):
        patch.setattr(owner, name, looking(getattr(owner, name)))


def test_a_replica_that_is_brought_up_to_date_hides_nothing_from_who_was_sent_there(
    nodes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = [planned(nodes) for _ in range(60)]
    gone = away(nodes[0])
    update(nodes, VERSIONS)
    compact([path_of(nodes)], Wanted(forces=True))
    gone.rename(nodes[0])
    found: list[list[int]] = []
    with monkeypatch.context() as patch:
        each_step(patch, lambda: found.append(kept(readings.pop())))
        update(nodes, VERSIONS + 1)
    assert len(found) > 5
    assert [each for each in found if each != [*range(VERSIONS)]] == []
    check_in_sync(nodes)
    check_equal(nodes)


def test_nobody_is_sent_to_a_replica_that_has_left_since_the_states_were_read(
    nodes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = log_dirs.find_voters
    left: list[Path] = []

    def find_voters(paths: Any) -> Any:
        found = original(paths)
        if not left:
            left.append(away(nodes[0]))
            update(nodes, VERSIONS)
            left[0].rename(nodes[0])
        return found

    monkeypatch.setattr(log_dirs, "find_voters", find_voters)
    (found,) = LogDirs(path_of(nodes).split(";")).partitions().values()
    assert found.log_dir != nodes[0]


@pytest.mark.parametrize(
    "question",
    [
        lambda log: log.log_start_offset,
        lambda log: log.read(0, 9, 99),
        lambda log: log.offset_for_timestamp(0),
        lambda log: log.max_timestamp(),
    ],
)
def test_nothing_is_found_in_a_log_that_is_brought_up_to_date(
    question: Callable[[PartitionLog], Any], nodes: list[Path]
) -> None:
    ((key, found),) = LogDirs(path_of(nodes).split(";")).partitions().items()
    with PartitionLog(found.path, key, replica=found.stamp) as log:
        assert question(log) is not None
        write_topic_id(found.path, read_topic_id(found.path) or "")
        with pytest.raises(LogDirectoryError, match="not in sync any more"):
            question(log)
