"""A backup of a log in a bucket is the local log of the same batches, file by file."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.support.bucket_model import without_rests
from typer.testing import CliRunner

import kafkalog
from kafkalog.checkpoints.state_file import load_state
from kafkalog.errors import DataLossError, LogDirectoryError
from kafkalog.files.objects import FolderObjects
from kafkalog.files.system import system
from kafkalog.jobs.cli.app import app
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin import retention, topics
from kafkalog.streaming.admin.backup import back_up
from kafkalog.streaming.admin.compaction import Wanted, compact
from kafkalog.streaming.objects import bucket_store
from kafkalog.streaming.objects.bucket_store import bucket_of
from kafkalog.streaming.objects.merging import merge

if TYPE_CHECKING:
    from pathlib import Path

FIRST_MS = 1_700_000_000_000


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    without_rests(monkeypatch)
    monkeypatch.setattr(system, "time_ns", lambda: FIRST_MS * 1_000_000)


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    objects = FolderObjects(tmp_path / "objects")
    monkeypatch.setattr(bucket_store, "open_objects", lambda _: objects)
    return f"s3a://bucket{tmp_path}"


def fill(places: list[str], appends: int, config: dict[str, str]) -> None:
    chance = random.Random(appends)
    for number in range(appends):
        count = chance.randrange(1, 40)
        rows = pa.table(
            {
                "key": [f"k{chance.randrange(9)}" for _ in range(count)],
                "value": [chance.randbytes(chance.randrange(90)) for _ in range(count)],
                "partition": pa.array([chance.randrange(3) for _ in range(count)], pa.int32()),
                "timestamp": pa.array([FIRST_MS + number * 9000] * count, pa.int64()),
            }
        )
        for place in places:
            kafkalog.append(place, "t", rows, options={"numPartitions": "4", **config})


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the files of partitions, and Kafka's checkpoints, but for what names a topic's id."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and (path.parent != folder or "checkpoint" in path.name)
        and path.name != "partition.metadata"
    }


@pytest.mark.parametrize(
    ("config", "merges"),
    [
        ({}, False),
        ({"segment.bytes": "3000", "compression.type": "zstd"}, True),
        (
            {"segment.ms": "50000", "segment.jitter.ms": "20000", "index.interval.bytes": "200"},
            True,
        ),
    ],
)
def test_it_is_the_local_log_of_the_same_batches(
    bucket: str, tmp_path: Path, config: dict[str, str], merges: bool
) -> None:
    local, copy = tmp_path / "local", tmp_path / "copy"
    fill([str(local), bucket], 15, config)
    if merges:
        root = bucket_of([bucket])
        assert root is not None
        merge(root)
        fill([str(local), bucket], 3, config)
    done = back_up([bucket], str(copy))
    assert (done.at_one_moment, done.problems, done.directories[0].partitions) == (True, (), 4)
    assert files_of(copy) == files_of(local)
    state, original = load_state(copy), load_state(local)
    assert state is not None
    assert original is not None
    mine, theirs = ([*each.topics.values()] for each in (state, original))
    assert [t.partitions for t in mine] == [t.partitions for t in theirs]
    read = kafkalog.read(copy, "t").read_all()
    assert read == kafkalog.read(local, "t").read_all()
    ran = CliRunner().invoke(app, ["verify", str(copy)])
    assert (ran.exit_code, "0 problems" in ran.output) == (0, True), ran.output
    fill([str(local), str(copy)], 2, config)
    assert files_of(copy) == files_of(local)


def test_what_was_trimmed_compacted_and_deleted_is_not_in_it(bucket: str, tmp_path: Path) -> None:
    fill([bucket], 30, {"segment.bytes": "2000", "cleanup.policy": "compact,delete"})
    topics.create([bucket], "empty", partitions=2)
    kafkalog.append(bucket, "gone", pa.table({"value": ["x"]}))
    topics.delete([bucket], "gone")
    root = bucket_of([bucket])
    assert root is not None
    merge(root)
    compact([bucket], Wanted(forces=True))
    retention.delete_records([bucket], {TopicPartition("t", 0): 20})
    copy = tmp_path / "copy"
    ran = CliRunner().invoke(app, ["backup", bucket, str(copy), "--json"])
    assert ran.exit_code == 0, ran.output
    assert kafkalog.read(copy, "t").read_all() == kafkalog.read(bucket, "t").read_all()
    assert {path.name for path in copy.iterdir() if path.is_dir()} == {
        *("t-0", "t-1", "t-2", "t-3", "empty-0", "empty-1")
    }
    assert CliRunner().invoke(app, ["verify", str(copy)]).exit_code == 0
    kafkalog.append(copy, "t", pa.table({"key": ["k"], "value": ["x"]}))
    kafkalog.append(copy, "empty", pa.table({"value": ["x"]}))
    assert not compact([str(copy)], Wanted(forces=True)).problems


def test_a_copy_that_took_longer_than_objects_are_kept_says_so(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill([bucket], 5, {})
    get = FolderObjects.get_range

    def swept(self: FolderObjects, name: str, position: int, size: int) -> bytes | None:
        self.delete([name])
        return get(self, name, position, size)

    monkeypatch.setattr(FolderObjects, "get_range", swept)
    copy = str(tmp_path / "copy")
    with pytest.raises(DataLossError, match=r"is gone\. .*if the copy took longer, remove .*/copy"):
        back_up([bucket], copy)
    monkeypatch.undo()


def test_where_no_log_is_nothing_is_made(bucket: str, tmp_path: Path) -> None:
    with pytest.raises(LogDirectoryError, match="holds no log"):
        back_up([bucket], str(tmp_path / "copy"))
    assert not (tmp_path / "copy").exists()
    assert not (tmp_path / "objects").exists()
