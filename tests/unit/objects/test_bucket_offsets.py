"""Rows that keep their offsets lie in a bucket as in a local log, with their holes and ends."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.support.bucket_model import without_rests

import kafkalog
from kafkalog.checkpoints import bucket_state
from kafkalog.checkpoints.bucket_state import (
    BucketCommit,
    BucketState,
    Extent,
    checkpoint_bytes,
    commit_bytes,
    data_name,
    parse_checkpoint,
    parse_commit,
)
from kafkalog.checkpoints.commit_state import PartitionState, SourcePosition, TopicState
from kafkalog.errors import (
    CheckpointError,
    CommitError,
    CorruptRecordError,
    RowError,
    UnknownTopicOrPartitionError,
)
from kafkalog.files.system import system
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin import topics
from kafkalog.streaming.admin.backup import back_up
from kafkalog.streaming.admin.topics import Bounds, set_bounds
from kafkalog.streaming.commit.preserved_offsets import CopiedBatch, CopiedPartition, CopiedTopic
from kafkalog.streaming.objects.merging import merge
from kafkalog.streaming.objects.numbered_extents import number_batches
from kafkalog.streaming.store.ends.tracker import LogEndTracker

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from kafkalog.files.objects import FolderObjects
    from kafkalog.streaming.objects.bucket_store import BucketRoot

FIRST_MS = 1_700_000_000_000
KEEPS = {"preserveOffsets": "true", "numPartitions": "2"}
HUGE = 3 << 31
"""A hole that no segment can span."""


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    without_rests(monkeypatch)
    monkeypatch.setattr(system, "time_ns", lambda: FIRST_MS * 1_000_000)


def rows(offsets: Iterable[tuple[int, int]]) -> pa.Table:
    """Make rows of partitions and the offsets that they keep."""
    pairs = list(offsets)
    return pa.table(
        {
            "key": [f"k{offset % 7}" for _, offset in pairs],
            "value": [f"{partition} {offset} {'x' * (offset % 50)}" for partition, offset in pairs],
            "partition": pa.array([partition for partition, _ in pairs], pa.int32()),
            "offset": pa.array([offset for _, offset in pairs], pa.int64()),
            "timestamp": pa.array([FIRST_MS + offset % 1000 for _, offset in pairs], pa.int64()),
        }
    )


def drawn(seed: int, appends: int) -> list[list[tuple[int, int]]]:
    """Draw what some appends bring of two partitions: holes within, before and between them."""
    chance = random.Random(seed)
    ends, found = [chance.choice([0, 5, 40]) for _ in range(2)], []
    for _ in range(appends):
        batch = []
        for _ in range(chance.randrange(1, 60)):
            number = chance.randrange(2)
            ends[number] += chance.choice([0] * 30 + [1, 3, 70] + [HUGE] * (chance.random() < 0.1))
            batch.append((number, ends[number]))
            ends[number] += 1
        found.append(batch)
    return found


def all_rows(place: object, **options: str) -> list[dict[str, object]]:
    table = kafkalog.read(str(place), "t", options=options).read_all()
    return table.sort_by([("partition", "ascending"), ("offset", "ascending")]).to_pylist()


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.parent != folder and path.name != "partition.metadata"
    }


@pytest.mark.parametrize("config", [{}, {"segment.bytes": "3000", "index.interval.bytes": "300"}])
@pytest.mark.parametrize(("is_there", "seed"), [(True, 1), (False, 3)])
def test_they_are_as_in_a_local_log_before_and_after_a_merge(
    root: BucketRoot, tmp_path: Path, config: dict[str, str], is_there: bool, seed: int
) -> None:
    local, place = tmp_path / "local", str(root)
    for target in (str(local), place) if is_there else ():
        topics.create([target], "t", partitions=2, config=config, starts={0: 0, 1: 3})
    batches = [[*filter(lambda each: each[1] > 2, some)] for some in drawn(seed, 10)]
    for batch in batches:
        for target in (str(local), place):
            kafkalog.append(target, "t", rows(batch), options={**KEEPS, **config})
    expected = all_rows(local)
    wanted = sorted(pair for batch in batches for pair in batch)
    assert [(row["partition"], row["offset"]) for row in expected] == wanted
    for _ in range(2):
        assert all_rows(place) == expected
        for number, offset in random.Random(seed).sample(wanted, 5):
            starts = json.dumps({"t": {number: offset - 1, 1 - number: -2}})
            asked = {"startingOffsets": starts, "failOnDataLoss": "false"}
            assert all_rows(place, **asked) == all_rows(local, **asked)
        assert not merge(root).problems
    back_up([place], str(tmp_path / "copy"))
    assert files_of(tmp_path / "copy") == files_of(local)
    theirs, mine = (LogEndTracker([str(tmp_path / name)]) for name in ("local", "copy"))
    assert mine.look().offsets == theirs.look().offsets


def test_offsets_below_the_end_and_rows_that_overlap_are_refused(root: BucketRoot) -> None:
    place = str(root)
    kafkalog.append(place, "t", rows([(0, 5), (0, 9)]), options=KEEPS)
    with pytest.raises(RowError, match="offsets from 9 on, but the log ends at offset 10"):
        kafkalog.append(place, "t", rows([(0, 9)]), options=KEEPS)
    with pytest.raises(RowError, match="offset 11 and comes after one with offset 12"):
        kafkalog.append(place, "t", rows([(0, 12), (0, 11)]), options=KEEPS)
    assert [row["offset"] for row in all_rows(place)] == [5, 9]
    kafkalog.append(place, "t", pa.table({"value": ["x"], "partition": pa.array([0], pa.int32())}))
    assert [row["offset"] for row in all_rows(place)] == [5, 9, 10]


def copied(begin: int | None, end: int, before: int | None = None) -> str:
    part = CopiedPartition(SourcePosition(end), before, begin)
    return CopiedBatch("mirror", (CopiedTopic("s", "t", "set", "id", {0: part}),)).to_json()


def copy(place: str, text: str, offsets: Iterable[int] = ()) -> None:
    options = {"preserveOffsets": "true", "preserveEnds": "true", "copiedFrom": text}
    kafkalog.append(place, "t", rows((0, offset) for offset in offsets), options=options)


def ends_of(root: BucketRoot) -> list[int]:
    root.open_store().forget_listing()
    (topic,) = root.open_store().committed().topics.values()
    return [each.log_end for each in topic.partitions.values()]


def test_a_copy_ends_where_its_original_does_and_continues_only_there(root: BucketRoot) -> None:
    place = str(root)
    with pytest.raises(UnknownTopicOrPartitionError, match="there is no such topic"):
        copy(place, copied(None, 5), [1])
    topics.create([place], "t", starts={0: 3})
    copy(place, copied(3, 20), [4, 8])
    assert ends_of(root) == [20]
    copy(place, copied(20, 30, before=20))  # offsets without records
    assert ends_of(root) == [30]
    for text, match in (
        (copied(20, 40, before=20), "and the copy is at offset 30 now"),
        (copied(20, 40, before=30), "ends at offset 30, and what is to be appended begins at 20"),
    ):
        with pytest.raises(CommitError, match=match):
            copy(place, text, [35])
    with pytest.raises(CommitError, match="reaches up to offset 36, beyond its original"):
        copy(place, copied(30, 33, before=30), [35])
    assert [row["offset"] for row in all_rows(place)] == [4, 8]
    kafkalog.append(place, "t", pa.table({"value": ["x"]}))
    assert [row["offset"] for row in all_rows(place)] == [4, 8, 30]


def test_bounds_of_a_copy_are_set_once(root: BucketRoot) -> None:
    place = str(root)
    kafkalog.append(place, "t", rows([(0, 5), (0, 9), (1, 2)]), options=KEEPS)
    bounds = {TopicPartition("t", 0): Bounds(6, 40), TopicPartition("t", 1): Bounds(0, 3)}
    for _ in range(2):
        set_bounds([place], bounds)
        assert ends_of(root) == [40, 3]
        assert [(row["partition"], row["offset"]) for row in all_rows(place)] == [(0, 9), (1, 2)]
    with pytest.raises(CommitError, match="reaches up to offset 40, beyond its original"):
        set_bounds([place], {TopicPartition("t", 0): Bounds(6, 39)})


def test_who_was_overtaken_by_another_append_keeps_its_offsets_or_writes_nothing(
    root: BucketRoot, objects: FolderObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, create, others = str(root), objects.create, [rows([(0, 5)]), rows([(0, 30)])]
    kafkalog.append(place, "t", rows([(0, 1)]), options=KEEPS)

    def create_second(name: str, data: bytes) -> object:
        if "/commits/" in name and others:
            monkeypatch.setattr(objects, "create", create)
            kafkalog.append(second, "t", others.pop(0), options=KEEPS)
        return create(name, data)

    second = place.replace("s3a://", "s3://")  # another process would have a log of its own
    monkeypatch.setattr(objects, "create", create_second)
    kafkalog.append(place, "t", rows([(0, 10), (0, 12)]), options=KEEPS)
    assert [row["offset"] for row in all_rows(place)] == [1, 5, 10, 12]
    monkeypatch.setattr(objects, "create", create_second)
    with pytest.raises(RowError, match="offsets from 20 on, but the log ends at offset 31"):
        kafkalog.append(place, "t", rows([(0, 20)]), options=KEEPS)
    assert [row["offset"] for row in all_rows(place)] == [1, 5, 10, 12, 30]


def test_extents_that_keep_offsets_are_written_and_read_again(root: BucketRoot) -> None:
    extents = [
        Extent(data_name(0, f"{number:032x}"), 0, 100, base, 10, 7, 0, alone, None, has_offsets)
        for number, (base, alone, has_offsets) in enumerate(
            [(0, False, False), (10, True, False), (25, False, True), (HUGE, True, True)]
        )
    ]
    end = HUGE + 10
    topic = TopicState("t", partitions={0: PartitionState(0, end, end, 0)})
    change = BucketCommit(
        number=1, log_id="a" * 32, topics={"id": topic}, extents={("id", 0): extents}
    )
    state = BucketState("a" * 32)
    state.apply(change)
    data = commit_bytes(change)
    assert parse_commit(data, "c").extents == change.extents
    assert parse_checkpoint(checkpoint_bytes(state), "c").extents == state.extents
    gap = extents[1]._replace(base_offset=11)
    for some in ([extents[0], gap], [extents[0], extents[2]._replace(base_offset=9)]):
        odd = replace(change, extents={("id", 0): some})
        with pytest.raises(ValueError, match="an extent begins at"):
            BucketState("a" * 32).apply(odd)
    strange = [[*extents[0][:7], flag] for flag in (0, 4, -1, True, "2", 2.0)]
    for row in strange:
        with pytest.raises(CheckpointError, match="no release of kafkalog has written"):
            parse_commit(with_row(change, row), "c")


def with_row(change: BucketCommit, row: list[object]) -> bytes:
    """Return the object of a commit whose first extent is another row."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bucket_state, "_row", lambda _: row)
        return commit_bytes(change)


def test_batches_whose_offsets_are_not_those_of_their_extent_are_corrupt(
    root: BucketRoot, tmp_path: Path
) -> None:
    del root
    kafkalog.append(tmp_path / "local", "t", rows([(0, 5), (0, 9)]), options=KEEPS)
    data = (tmp_path / "local" / "t-0" / f"{5:020}.log").read_bytes()
    extent = Extent("data", 0, len(data), 3, 7, 7, 4, has_offsets=True)
    numbered = number_batches(data, extent, "data")
    assert (numbered[:8], numbered[12:16]) == (data[:8], (4).to_bytes(4, "big"))
    for wrong in (extent._replace(base_offset=6, records=4), extent._replace(records=9)):
        with pytest.raises(CorruptRecordError):
            number_batches(data, wrong, "data")
