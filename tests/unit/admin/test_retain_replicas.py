"""Old records go from all replicas, of which one may not be what it was."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from tests.support.replicated import (
    append,
    check_clean,
    check_equal,
    check_in_sync,
    newest_state,
    path_of,
    values,
)

from kafkalog.model import TopicPartition
from kafkalog.streaming.admin import retention as shortening
from kafkalog.streaming.admin.retention import delete_records
from kafkalog.streaming.log.segments import list_base_offsets

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

SMALL = {"numPartitions": "1", "segment.bytes": "150"}
T0 = TopicPartition("t", 0)


def test_an_older_copy_leaves_the_in_sync_set_and_is_not_shortened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [tmp_path / name for name in "abc"]
    for version in range(6):
        append(nodes, version, [f"{version}"], **SMALL)
        if version == 2:
            shutil.copytree(nodes[2] / "t-0", tmp_path / "old")
    find = shortening._replicas_of

    def older_by_then(*given: Any) -> Any:
        shutil.rmtree(nodes[2] / "t-0")
        (tmp_path / "old").rename(nodes[2] / "t-0")
        return find(*given)

    with monkeypatch.context() as patch:
        patch.setattr(shortening, "_replicas_of", older_by_then)
        done = delete_records([path_of(nodes)], {T0: 5})
    assert [each.start for each in done.partitions] == [5]
    (topic,) = newest_state(nodes).topics.values()
    assert 2 not in topic.replicas[0].isr
    assert values(nodes) == ["5"]
    append(nodes, 6, ["6"], **SMALL)
    append(nodes, 7, ["7"], **SMALL)
    assert values(nodes) == ["5", "6", "7"]
    check_in_sync(nodes)
    check_equal(nodes)
    check_clean(nodes)


def test_all_replicas_keep_the_same_segments(tmp_path: Path) -> None:
    nodes = [tmp_path / name for name in "abc"]
    for version in range(8):
        append(nodes, version, [f"{version}"], **SMALL)
    delete_records([path_of(nodes)], {T0: 2})
    assert {tuple(list_base_offsets(node / "t-0")) for node in nodes} == {(2, 4, 6)}
    assert values(nodes) == ["2", "3", "4", "5", "6", "7"]
    check_equal(nodes)
    check_clean(nodes)
