"""The first of a partition's replicas leads again, if that is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.replicated import (
    append,
    check_equal,
    check_in_sync,
    newest_state,
    values,
)

from kafkalog.checkpoints.broker import read_leader_epochs

if TYPE_CHECKING:
    from pathlib import Path

ASKED = {"auto.leader.rebalance.enable": "true"}


@pytest.fixture
def nodes(tmp_path: Path) -> list[Path]:
    """Give a set whose first node was away for a commit, and is back."""
    found = [tmp_path / name for name in "abc"]
    append(found, 0, ["first"], numPartitions="1")
    found[0].rename(found[0].with_suffix(".away"))
    append(found, 1, ["without it"])
    found[0].with_suffix(".away").rename(found[0])
    return found


def led_by(nodes: list[Path]) -> tuple[int, int]:
    """Return the leader of the only partition, and its epoch."""
    (topic,) = newest_state(nodes).topics.values()
    assert topic.replicas[0].replicas[0] == 0
    return topic.replicas[0].leader, topic.partitions[0].leader_epoch


def test_who_leads_stays_unless_another_is_asked_for(nodes: list[Path]) -> None:
    before = led_by(nodes)
    append(nodes, 2, ["it is back"])
    check_in_sync(nodes)
    assert led_by(nodes) == before


def test_the_commit_in_which_it_is_in_sync_again_elects_the_preferred_leader(
    nodes: list[Path],
) -> None:
    leader, epoch = led_by(nodes)
    assert leader != 0
    append(nodes, 2, ["it is back"], **ASKED)
    assert led_by(nodes) == (0, epoch + 1)
    check_in_sync(nodes)
    assert read_leader_epochs(nodes[1] / "t-0")[-1] == (epoch + 1, 2)
    append(nodes, 3, ["last"], **ASKED)
    assert led_by(nodes) == (0, epoch + 1)
    assert values(nodes) == sorted(["first", "without it", "it is back", "last"])
    check_equal(nodes)


def test_one_that_is_not_in_sync_yet_is_not_elected(
    nodes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafkalog.streaming.store.replicas.open_nodes.COPIED_BYTES", 1)
    before = led_by(nodes)
    append(nodes, 2, ["it is back"], **ASKED)
    assert led_by(nodes) == before
