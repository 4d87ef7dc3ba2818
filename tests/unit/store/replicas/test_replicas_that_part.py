"""Replicas that have the same records as their leader, in other files or under other indexes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.replicated import append, check_equal, check_in_sync, newest_state, values

from kafkalog.errors import NotEnoughReplicasError
from kafkalog.streaming.log.append.recovery import start_segment

if TYPE_CHECKING:
    from pathlib import Path

ALL = {
    "numPartitions": "1",
    "min.insync.replicas": "3",
    "segment.bytes": "100000",
    "index.interval.bytes": "0",
}


@pytest.fixture
def nodes(tmp_path: Path) -> list[Path]:
    found = [tmp_path / name for name in "abc"]
    for version in range(3):
        append(found, version, [f"{version}"], **ALL)
    return found


def followers(nodes: list[Path]) -> list[Path]:
    (topic,) = newest_state(nodes).topics.values()
    return [node for number, node in enumerate(nodes) if number != topic.replicas[0].leader]


def test_a_replica_that_ends_in_another_segment_fails_one_batch_and_no_more(
    nodes: list[Path],
) -> None:
    start_segment(followers(nodes)[0] / "t-0", 3)
    with pytest.raises(NotEnoughReplicasError, match="2 of its 3 replicas are in sync"):
        append(nodes, 3, ["3"], **ALL)
    append(nodes, 3, ["3"], **ALL)
    check_in_sync(nodes)
    check_equal(nodes)
    assert values(nodes) == ["0", "1", "2", "3"]


def test_an_index_that_lost_entries_gets_them_again(nodes: list[Path]) -> None:
    for number, node in enumerate(followers(nodes)):
        index = node / "t-0" / f"{0:020}.index"
        index.write_bytes(index.read_bytes()[: 8 * number])
    append(nodes, 3, ["3"], **ALL)
    check_in_sync(nodes)
    found = {(node / "t-0" / f"{0:020}.index").read_bytes() for node in nodes}
    assert len(found) == 1
    assert values(nodes) == ["0", "1", "2", "3"]
