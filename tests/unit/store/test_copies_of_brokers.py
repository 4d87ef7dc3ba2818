"""Of copies of several brokers' directories, each partition is read from the right replica."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support.cluster_records import (
    change,
    ids,
    partition,
    registered,
    topic,
    write_metadata,
)
from tests.support.logs import Row, batch_bytes, write_checkpoint, write_segment
from tests.support.tiers import KafkaTier, write_log
from tests.support.tiers import write_metadata as write_remote_metadata

import kafkalog
from kafkalog.checkpoints.broker import write_topic_id
from kafkalog.errors import LogDirectoryError
from kafkalog.model import TopicPartition
from kafkalog.streaming.options.kinds import READABLE_PATHS
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.store.log_dirs import LogDirs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

ID, OTHER = "AAECAwQFBgcICQoLDA0ODw", "AAECAwQFBgcICQoLDA0OEA"
NO_LEADER = b"\xff\xff\xff\xff"
LEADER_2 = [partition(ID, 0, [1, 2, 3]), change(ID, 0, leader=b"\0\0\0\2", isr=ids(1, 2))]
NONE_LEADS = [partition(ID, 0, [1, 2, 3]), change(ID, 0, leader=NO_LEADER, isr=ids(1))]


def brokers(
    root: Path,
    records: Sequence[bytes],
    *,
    counts: Sequence[int] = (4, 3, 5),
    topic_ids: Sequence[str] = (ID, ID, ID),
) -> str:
    """Write the directories of brokers with a replica each, and return them as nodes."""
    places = []
    for number, (count, topic_id) in enumerate(zip(counts, topic_ids, strict=True), 1):
        log = root / f"b{number}"
        log.mkdir()
        if records:
            write_metadata(log, topic("t", ID), *records, registered(number, 9))
        (log / "meta.properties").write_text(f"version=1\nnode.id={number}\n")
        rows = [Row(f"{number}-{offset}".encode()) for offset in range(count)]
        write_segment(log / "t-0", 0, batch_bytes(0, rows))
        write_topic_id(log / "t-0", topic_id)
        write_checkpoint(log, "replication-offset-checkpoint", {"t-0": count})
        places.append(str(log))
    return ";".join(places)


def values(path: str, **options: str) -> list[Any]:
    found = kafkalog.read(path, "t", options=options).read_all()
    return found.column("value").to_pylist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("records", "expected", "reason"),
    [
        (LEADER_2, [b"2-0", b"2-1", b"2-2"], "1 from the replica that led"),
        (NONE_LEADS, [b"1-0", b"1-1", b"1-2", b"1-3"], "1 from one that was in sync"),
        ([], [f"3-{n}".encode() for n in range(5)], "1 from the one whose log reaches furthest"),
    ],
)
def test_the_leader_counts_then_who_was_in_sync_then_the_longest_log(
    tmp_path: Path,
    records: list[bytes],
    expected: list[bytes],
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = brokers(tmp_path, records)
    assert values(path) == expected
    assert values(path) == expected
    assert [reason in each.message for each in caplog.records].count(True) == 1


def test_a_tail_reads_the_same_replica(tmp_path: Path) -> None:
    path = brokers(tmp_path, LEADER_2)
    batch = next(kafkalog.tail(path, "t", options={"startingOffsets": "earliest"}))
    assert batch.column("value").to_pylist() == [b"2-0", b"2-1", b"2-2"]


def test_the_replica_of_an_older_topic_of_the_name_is_not_taken(tmp_path: Path) -> None:
    path = brokers(tmp_path, NONE_LEADS, topic_ids=(OTHER, ID, OTHER), counts=(9, 2, 9))
    records = [partition(ID, 0, [2]), change(ID, 0, leader=b"\0\0\0\2")]
    for number in (1, 2, 3):
        write_metadata(tmp_path / f"b{number}", topic("t", ID), *records)
    assert values(path) == [b"2-0", b"2-1"]


def test_a_replica_that_cannot_be_read_is_replaced_by_the_next_one(tmp_path: Path) -> None:
    path = brokers(tmp_path, LEADER_2, counts=(4, 3, 3))
    log_dirs = LogDirs(READABLE_PATHS.read(path))
    (found,) = log_dirs.partitions().values()
    assert found.log_dir == tmp_path / "b2"
    assert log_dirs.avoid(found.log_dir)
    (found,) = log_dirs.partitions().values()
    assert found.log_dir == tmp_path / "b1"


def test_two_folders_of_one_broker_or_of_nobody_are_an_error(tmp_path: Path) -> None:
    path = brokers(tmp_path, LEADER_2)
    with pytest.raises(LogDirectoryError, match="named with semicolons between them"):
        values(path.replace(";", ","))
    (tmp_path / "b3" / "meta.properties").write_text("version=1\nnode.id=2\n")
    with pytest.raises(LogDirectoryError, match="lives in"):
        values(path)
    (tmp_path / "b3" / "meta.properties").unlink()
    with pytest.raises(LogDirectoryError, match="lives in"):
        values(path)


def test_nobody_writes_to_copies_of_several_brokers(tmp_path: Path) -> None:
    path = brokers(tmp_path, LEADER_2)
    rows = pa.table({"value": ["x"]})
    with pytest.raises(LogDirectoryError, match="no commit state"):
        kafkalog.append(path, "t", rows, options={"allowBrokerDirectory": "true"})
    assert values(path) == [b"2-0", b"2-1", b"2-2"]


@pytest.mark.parametrize("says", [True, False])
def test_copies_of_brokers_go_on_in_the_tier_that_they_share(tmp_path: Path, says: bool) -> None:
    path = brokers(tmp_path, LEADER_2)
    tier = KafkaTier(tmp_path / "tier", topic_id=ID)
    for number, starts in ((1, (0, 10, 20)), (2, (0, 10, 20, 30)), (3, (20,))):
        log = tmp_path / f"b{number}"
        shutil.rmtree(log / "t-0")
        write_log(log, starts, 40, topic_id=ID)
        write_checkpoint(log, "replication-offset-checkpoint", {"t-0": 40})
        write_checkpoint(log, "log-start-offset-checkpoint", {"t-0": 0})
    tier.move(tmp_path / "b2" / "t-0", [0, 10, 20, 30], says=says)
    gone = KafkaTier(tier.root, topic="gone", topic_id=OTHER)
    write_log(tmp_path / "elsewhere", [0, 10], 20, name="gone-0", topic_id=OTHER)
    gone.move(tmp_path / "elsewhere" / "gone-0", [0, 10, 20])
    for number in (1, 3):  # a copy that lags behind tells less
        write_remote_metadata(tmp_path / f"b{number}", tier.records[:2])
    write_remote_metadata(tmp_path / "b2", tier.records)
    given = {"remote.path": str(tier.root), "fetchOffset.numRetries": "1"}
    expected = [str(offset).encode() for offset in range(40)]
    assert values(path, **given) == expected
    for log_dir in ("b2", "b1"):  # the leader's replica has what is above; then who was in sync
        places = ReadOptions.parse({"path": path, "subscribe": "t", **given}).paths
        log_dirs = LogDirs(places)
        found = log_dirs.partitions()
        assert str(found[TopicPartition("t", 0)].log_dir) == str(tmp_path / log_dir)
        shutil.move(tmp_path / log_dir / "t-0", tmp_path / f"away-{log_dir}")
    shutil.move(tmp_path / "away-b2", tmp_path / "b2" / "t-0")
    batch = next(kafkalog.tail(path, "t", options={"startingOffsets": "earliest", **given}))
    assert batch.column("offset").to_pylist()[0] == 0
    rows = kafkalog.read(path, "gone", options=given).read_all()
    assert rows.column("offset").to_pylist() == list(range(20))
