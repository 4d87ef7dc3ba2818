"""Consumer groups of a replicated set: their positions lie on all nodes, as records do."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.support.consuming import keep_groups_small
from tests.support.replicated import (
    append,
    check_clean,
    check_equal,
    check_in_sync,
    path_of,
    values,
)

import kafkalog
from kafkalog.checkpoints.broker import read_topic_id, write_topic_id
from kafkalog.checkpoints.voters import require_voters
from kafkalog.errors import FencedMemberError, LogDirectoryError
from kafkalog.model import OFFSETS_TOPIC, TopicPartition
from kafkalog.streaming.admin.compaction import Wanted, compact
from kafkalog.streaming.admin.groups import expire_positions
from kafkalog.streaming.groups.administration import GroupWriter, delete_group, reset_group
from kafkalog.streaming.groups.group_commits import OFFSETS_POLICY
from kafkalog.streaming.groups.group_log import GroupLog
from kafkalog.streaming.groups.membership import GroupMember
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.store.policy import SetPolicy
from kafkalog.streaming.store.replicas.open_nodes import committed_nodes
from kafkalog.streaming.store.session import inspect_state

if TYPE_CHECKING:
    from pathlib import Path

    from kafkalog.streaming.log.read.slice_reader import SegmentSlice

ROWS = [f"a{n}" for n in range(6)]
EARLIEST = {"startingOffsets": "earliest"}


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    keep_groups_small(monkeypatch, partitions=2)
    found = [tmp_path / name for name in "abc"]
    append(found, 0, ROWS)
    return found


def consumer(nodes: list[Path]) -> kafkalog.Consumer:
    return kafkalog.Consumer(path_of(nodes), "g", "t", options=EARLIEST)


def polled(member: kafkalog.Consumer, count: int) -> list[str]:
    """Poll until so many rows have come."""
    found: list[str] = []
    while len(found) < count:
        batch = member.poll(1.0)
        if batch is not None:
            found += [value.decode() for value in batch.column("value").to_pylist()]
    return sorted(found)


def positions(nodes: list[Path]) -> int:
    """Return how many rows the group has read, by its positions."""
    done = reset_group([path_of(nodes)], "g", "earliest", dry_run=True)
    return sum(each.before or 0 for each in done)


def check_whole(nodes: list[Path]) -> None:
    check_in_sync(nodes)
    check_equal(nodes)
    check_clean(nodes)


def test_a_member_reads_and_commits_and_the_next_one_goes_on(nodes: list[Path]) -> None:
    with consumer(nodes) as member:
        assert polled(member, 6) == ROWS
        member.commit()
    append(nodes, 1, ["b"])
    with consumer(nodes) as member:
        assert polled(member, 1) == ["b"]
        member.commit()
    assert positions(nodes) == 7
    check_whole(nodes)


def test_rows_and_positions_are_one_commit(nodes: list[Path]) -> None:
    with consumer(nodes) as member:
        done = 0
        while done < 6:
            batch = member.poll(1.0)
            if batch is not None:
                rows = pa.table({"value": batch.column("value")})
                kafkalog.append(path_of(nodes), "u", rows, consumer=member)
                done += batch.num_rows
    assert values(nodes, "u") == ROWS
    assert positions(nodes) == 6
    check_whole(nodes)


@pytest.mark.parametrize("away", range(3))
def test_a_node_goes_away_and_the_group_continues(nodes: list[Path], away: int) -> None:
    with consumer(nodes) as member:
        assert polled(member, 6) == ROWS
        member.commit()
    nodes[away].rename(nodes[away].with_suffix(".away"))
    append(nodes, 1, ["b"])
    with consumer(nodes) as member:
        assert polled(member, 1) == ["b"]
        member.commit()
    assert positions(nodes) == 7
    nodes[away].with_suffix(".away").rename(nodes[away])
    append(nodes, 2, ["c"])
    append(nodes, 3, ["d"])
    with consumer(nodes) as member:
        assert polled(member, 2) == ["c", "d"]
    check_whole(nodes)


def test_a_member_whose_file_went_with_a_node_is_fenced_and_another_one_goes_on(
    nodes: list[Path],
) -> None:
    member = consumer(nodes)
    assert polled(member, 6) == ROWS
    member.commit()
    log_set = inspect_state(nodes, SetPolicy())
    folder = min(log_set.members.items())[1]
    folder.rename(folder.with_suffix(".away"))
    append(nodes, 1, ["b"])
    with pytest.raises(FencedMemberError):
        polled(member, 2)
    with consumer(nodes) as other:
        assert polled(other, 1) == ["b"]
        other.commit()
        folder.with_suffix(".away").rename(folder)
        with pytest.raises(FencedMemberError, match="is back"):
            polled(other, 1)
    assert positions(nodes) == 7


@pytest.mark.parametrize("step", ["_following", "_decide"])
def test_a_member_whose_node_goes_away_amid_a_round_is_told_that_it_is_fenced(
    step: str, nodes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not that some file of the node is not there."""
    folder = min(inspect_state(nodes, SetPolicy()).members.items())[1]
    member, other = consumer(nodes), consumer(nodes)
    polled(member, len(ROWS))
    with monkeypatch.context() as patch:
        patch.setattr(GroupMember, "_decide", lambda _: None)
        other.poll(0)  # there is something to decide from now on
    amid = getattr(GroupMember, step)

    def go_away_first(self: GroupMember, *given: object) -> object:
        if folder.exists():
            folder.rename(folder.with_suffix(".away"))
        return amid(self, *given)

    monkeypatch.setattr(GroupMember, step, go_away_first)
    with pytest.raises(FencedMemberError, match="a node of the set has gone"):
        member.poll(60)
    member.close()
    other.close()


def test_a_group_is_moved_and_forgotten(nodes: list[Path]) -> None:
    with consumer(nodes) as member:
        assert polled(member, 6) == ROWS
        member.commit()
    reset_group([path_of(nodes)], "g", "earliest")
    assert positions(nodes) == 0
    assert kafkalog.read(
        path_of(nodes), "t", options={"startingOffsets": "group:g"}
    ).read_all().num_rows == len(ROWS)
    assert len(delete_group([path_of(nodes)], "g")) == 2
    check_whole(nodes)


def test_positions_expire(nodes: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    with consumer(nodes) as member:
        polled(member, 6)
        member.commit()
    monkeypatch.setattr("kafkalog.streaming.admin.groups._BETWEEN_LOOKS_MS", 0)
    assert expire_positions([path_of(nodes)], 1) == ["group g: 2 positions expired"]
    check_whole(nodes)


def test_a_query_commits_positions(nodes: list[Path]) -> None:
    writer = GroupWriter([path_of(nodes)], "g")
    key = TopicPartition("t", 0)
    assert writer.commit({key: 2})
    assert not writer.commit({key: 2})
    assert positions(nodes) == 2
    check_whole(nodes)


def test_a_group_is_not_read_of_a_replica_that_is_brought_up_to_date(
    nodes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with kafkalog.Consumer(path_of(nodes), "g", "t", options=EARLIEST) as consumer:
        assert consumer.poll(10) is not None
        consumer.commit()
    log_set = committed_nodes(require_voters(nodes))
    slices = PartitionLog.slices

    def sliced(self: PartitionLog, start: int, end: int) -> list[SegmentSlice]:
        found = slices(self, start, end)
        write_topic_id(self.directory, read_topic_id(self.directory) or "")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(PartitionLog, "slices", sliced)
        with pytest.raises(LogDirectoryError, match="was not in sync any more"):
            GroupLog("g").look(log_set)
    assert GroupLog("g").look(log_set).positions


def test_the_topic_of_groups_is_compacted_on_all_nodes(
    nodes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**OFFSETS_POLICY.settings, "segment.bytes": "1000"}
    small = dataclasses.replace(OFFSETS_POLICY, partitions=1, settings=settings)
    monkeypatch.setattr("kafkalog.streaming.groups.group_commits.OFFSETS_POLICY", small)
    with consumer(nodes) as member:
        assert polled(member, 6) == ROWS
        member.commit()
        for batch in range(1, 12):
            append(nodes, batch, [f"b{batch}"])
            assert polled(member, 1) == [f"b{batch}"]
            member.commit()
        before = folder_size(nodes[0])
        assert not compact([path_of(nodes)], Wanted(forces=True)).problems
        assert folder_size(nodes[0]) < before
        append(nodes, 12, ["b12"])
        assert polled(member, 1) == ["b12"]
        member.commit()
    assert positions(nodes) == 18
    check_whole(nodes)


def folder_size(node: Path) -> int:
    return sum(path.stat().st_size for path in node.glob(f"{OFFSETS_TOPIC}-*/*.log"))
