"""A compacted topic in a bucket is what the local cleaner makes of the same batches."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support.bucket_model import without_rests
from typer.testing import CliRunner

import kafkalog
from kafkalog.checkpoints.bucket_state import checkpoint_bytes, object_path, parse_checkpoint
from kafkalog.files.objects import FolderObjects
from kafkalog.files.system import system
from kafkalog.jobs import maintain
from kafkalog.jobs.maintain import BucketMaintenance, Scope
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin import compaction, retention, topics
from kafkalog.streaming.admin.compaction import Wanted, compact
from kafkalog.streaming.objects.merging import merge

if TYPE_CHECKING:
    from pathlib import Path

    from kafkalog.streaming.objects.bucket_store import BucketRoot

START_MS = 1_700_000_000_000
FORCED = Wanted(forces=True)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The time in ms, which stands still."""
    now = [START_MS]
    without_rests(monkeypatch)
    monkeypatch.setattr(system, "time_ns", lambda: now[0] * 1_000_000)
    return now


def append(chance: random.Random, places: list[str], config: dict[str, str]) -> None:
    count, keys = chance.randrange(1, 30), chance.choice([3, 10, 100])
    table = pa.table(
        {
            "key": [f"k{chance.randrange(keys)}" for _ in range(count)],
            "value": pa.array(
                [
                    None if chance.random() < 0.2 else chance.randbytes(chance.randrange(80))
                    for _ in range(count)
                ],
                pa.binary(),
            ),
            "timestamp": pa.array(
                [START_MS - 5_000_000 + chance.randrange(1_000_000) for _ in range(count)],
                pa.int64(),
            ),
        }
    )
    for place in places:
        kafkalog.append(place, "t", table, options=config)


def check_same(root: BucketRoot, objects: FolderObjects, local: Path) -> int:
    """See that sealed segments are the files of the local log; return how many there are."""
    with root.writing() as log:
        state = log.follow()
        ((_, extents),) = state.extents.items()
        sealed = [extent for extent in extents if extent.sealed is not None]
        log_id = state.log_id
    folder = local / "t-0"
    names = sorted(path.name[:20] for path in folder.glob("*.log"))
    assert [f"{extent.base_offset:020}" for extent in sealed] == names[:-1]
    for extent in sealed:
        for suffix in (".log", ".index", ".timeindex"):
            expected = (folder / f"{extent.base_offset:020}{suffix}").read_bytes()
            assert objects.get(object_path(log_id, extent.object, suffix)) == expected, suffix
    return len(sealed)


def rows_of(place: object) -> list[dict[str, Any]]:
    options = {"storage.listInterval": "0"}
    found: list[dict[str, Any]] = (
        kafkalog.read(str(place), "t", options=options).read_all().to_pylist()
    )
    return found


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(n, marks=pytest.mark.nightly) for n in range(3, 30))]
)
def test_it_is_what_the_local_cleaner_makes(
    root: BucketRoot, objects: FolderObjects, tmp_path: Path, clock: list[int], seed: int
) -> None:
    chance, local = random.Random(seed), tmp_path / "local"
    config = {
        "cleanup.policy": "compact",
        "segment.bytes": str(chance.choice([1000, 3000])),
        "delete.retention.ms": str(chance.choice([0, 100_000])),
        "compression.type": chance.choice(["none", "lz4"]),
        "index.interval.bytes": str(chance.choice([300, 4096])),
    }
    most = 0
    for _ in range(chance.randrange(2, 4)):
        for _ in range(chance.randrange(3, 10)):
            append(chance, [str(local), str(root)], config)
        merge(root)
        wanted = replace(FORCED, memory=chance.choice([24 * 1000, FORCED.memory]))
        assert not compact([str(local)], wanted).problems
        done = compact([root], wanted)  # type: ignore[list-item]
        assert not done.problems
        most = max(most, check_same(root, objects, local))
        assert rows_of(root) == rows_of(local)
        clock[0] += 150_000
    assert most
    with root.writing() as log:
        assert parse_checkpoint(checkpoint_bytes(log.state), "name") == log.state


def test_of_two_who_compact_a_partition_one_has_done_it(
    root: BucketRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(1)
    for _ in range(12):
        append(chance, [str(root)], {"cleanup.policy": "compact", "segment.bytes": "1000"})
    merge(root)
    put, others = FolderObjects.put_pieces, []

    def slow(self: FolderObjects, name: str, pieces: Any) -> None:
        put(self, name, pieces)
        monkeypatch.setattr(FolderObjects, "put_pieces", put)
        others.append(compact([str(root)], FORCED))

    monkeypatch.setattr(FolderObjects, "put_pieces", slow)
    done = compact([str(root)], FORCED)
    assert others[0].partitions[0].rounds == 1
    assert done.partitions[0].rounds == 0
    assert "changed by others" in done.left_alone["t-0"]
    newest = {row["key"]: row for row in rows_of(root)}
    assert len(newest) == len({row["key"] for row in rows_of(root)})


def test_what_is_trimmed_meanwhile_is_not_brought_back(
    root: BucketRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(1)
    settings = {"cleanup.policy": "compact,delete", "segment.bytes": "1000"}
    for _ in range(12):
        append(chance, [str(root)], settings)
    merge(root)
    put = FolderObjects.put_pieces

    def slow(self: FolderObjects, name: str, pieces: Any) -> None:
        put(self, name, pieces)
        monkeypatch.setattr(FolderObjects, "put_pieces", put)
        retention.delete_records([str(root)], {TopicPartition("t", 0): 60})

    monkeypatch.setattr(FolderObjects, "put_pieces", slow)
    compact([str(root)], FORCED)
    assert min(row["offset"] for row in rows_of(root)) >= 60
    compact([str(root)], FORCED)
    assert min(row["offset"] for row in rows_of(root)) >= 60


def test_a_topic_that_is_deleted_meanwhile_is_no_problem(
    root: BucketRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(12):
        append(random.Random(1), [str(root)], {"cleanup.policy": "compact"})
        merge(root, config={"segment.bytes": "1000"})
    clean = compaction.clean_log

    def slow(*given: Any, **named: Any) -> Any:
        topics.delete([str(root)], "t")
        return clean(*given, **named)

    monkeypatch.setattr(compaction, "clean_log", slow)
    done = compact([str(root)], FORCED)
    assert done.problems == []
    assert "changed by others" in done.left_alone["t-0"]


def test_a_topic_that_is_compacted_and_deleted_loses_what_a_local_one_loses(
    root: BucketRoot, objects: FolderObjects, tmp_path: Path
) -> None:
    chance, local = random.Random(3), tmp_path / "local"
    config = {
        "cleanup.policy": "compact,delete",
        "segment.bytes": "1000",
        "retention.bytes": "4000",
        "compression.type": "none",
    }
    for _ in range(25):
        append(chance, [str(local), str(root)], config)
    merge(root)
    planned = compact([str(root)], FORCED, dry_run=True).retention
    assert planned is not None
    before = rows_of(root)
    found = [compact([place], FORCED).retention for place in (str(local), str(root))]
    starts = [[each.start for each in done.partitions] for done in found if done is not None]
    assert starts[0] == starts[1]
    assert starts[0][0] > 0
    assert rows_of(root) == rows_of(local)
    assert len(rows_of(root)) < len(before)
    check_same(root, objects, local)
    with root.writing() as log:
        assert parse_checkpoint(checkpoint_bytes(log.state), "name") == log.state


def test_a_round_of_maintenance_does_all_of_it(root: BucketRoot, objects: FolderObjects) -> None:
    chance, said = random.Random(1), []
    for _ in range(30):
        append(chance, [str(root)], {"cleanup.policy": "compact", "segment.bytes": "1000"})
    kafkalog.append(str(root), "u", pa.table({"value": ["x"]}), options={"retention.ms": "1000"})
    before = len(rows_of(root))
    rounds = BucketMaintenance(Scope(log=str(root)), say=said.append)
    assert rounds.round() == []
    assert len(rows_of(root)) < before
    text = "\n".join(said)
    assert "segments sealed" in text
    assert "t-0 is clean up to offset" in text
    with root.writing() as log:
        assert objects.list_after(f"{log.folder}/checkpoints")
    said.clear()
    assert rounds.round() == []
    assert "0 segments sealed, 0 shared objects written" in "\n".join(said)


def test_maintenance_of_a_bucket_starts_no_spark(
    root: BucketRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(random.Random(1), [str(root)], {})
    monkeypatch.setattr(maintain.signal, "signal", lambda *_: None)
    monkeypatch.setattr(maintain, "session", None)
    ran = CliRunner().invoke(maintain.app, [str(root)])
    assert (ran.exit_code, "0 segments sealed" in ran.output) == (0, True), ran.output


def test_positions_of_groups_do_not_go_by_what_is_given_to_a_run(root: BucketRoot) -> None:
    kafkalog.append(str(root), "t", pa.table({"key": ["k"], "value": ["x"]}))
    with root.writing() as log:
        (key,) = log.follow().topics
        topic = replace(log.state.topics[key], name="__consumer_offsets")
        log.state.topics[key] = topic
    config = {"retention.ms": "1", "cleanup.policy": "compact"}
    done = retention.retain([root], config=config)  # type: ignore[list-item]
    assert done.partitions == []
    again = compact([root], replace(FORCED, config=config))  # type: ignore[list-item]
    assert again.left_alone["__consumer_offsets"] == "it was not given cleanup.policy=compact"
