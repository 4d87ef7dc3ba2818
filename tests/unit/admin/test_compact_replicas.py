"""``compact`` on three nodes: the leader's log is cleaned, and all replicas get its files."""

from __future__ import annotations

import itertools
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.replica_compacting import (
    LATEST,
    T0,
    check_no_swap,
    clean_to,
    compacted,
    newest,
    update,
    updates,
)
from tests.support.replicated import check_clean, check_equal, check_in_sync, newest_state, path_of
from tests.support.stalling import stalling

import kafkalog
from kafkalog.checkpoints.broker import RECOVERY_POINT, read_offset_checkpoint
from kafkalog.errors import KafkaLogError
from kafkalog.streaming.admin.compaction import Wanted, compact
from kafkalog.streaming.admin.nodes.replicas import compare_replicas
from kafkalog.streaming.admin.recovery import recover
from kafkalog.streaming.log.files import CLEANED
from kafkalog.streaming.log.segments import list_base_offsets
from kafkalog.streaming.store.log_set import LogSet
from kafkalog.streaming.store.replicas import controller as deciding
from kafkalog.streaming.store.replicas import copying as equal_segments
from kafkalog.streaming.store.replicas import in_sync, open_nodes

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def nodes(tmp_path: Path) -> list[Path]:
    found = [tmp_path / name for name in "abc"]
    updates(found)
    return found


def log_bytes(node: Path) -> int:
    return sum(path.stat().st_size for path in (node / "t-0").glob("*.log"))


def check_whole(nodes: list[Path]) -> None:
    check_in_sync(nodes)
    check_equal(nodes)
    check_clean(nodes)
    check_no_swap(nodes)
    assert [*compare_replicas([path_of(nodes)])] == []


def leader_of(nodes: list[Path]) -> int:
    (topic,) = newest_state(nodes).topics.values()
    return topic.replicas[0].leader


def cut_off(nodes: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Compact, and stop once the leader's segments are replaced, and no others."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(equal_segments, "replace_segments", stop)
        with pytest.raises(KeyboardInterrupt):
            compact([path_of(nodes)], Wanted(forces=True))


def test_all_replicas_get_the_files_of_the_leader(nodes: list[Path]) -> None:
    before = log_bytes(nodes[0])
    (one,) = compacted(nodes).partitions
    assert (one.topic_partition, one.rounds, one.clean_to) == (T0, 1, 6)
    assert log_bytes(nodes[0]) < before
    check_whole(nodes)
    assert [clean_to(node) for node in nodes] == [6, 6, 6]
    assert newest(nodes) == LATEST


def test_a_dry_run_changes_nothing(nodes: list[Path]) -> None:
    before = {path: path.stat().st_mtime_ns for node in nodes for path in node.rglob("*")}
    done = compact([path_of(nodes)], Wanted(forces=True), dry_run=True)
    assert [each.rounds for each in done.partitions] == [1]
    assert before == {path: path.stat().st_mtime_ns for node in nodes for path in node.rglob("*")}


def test_writers_continue_and_the_next_round_begins_where_the_last_one_ended(
    nodes: list[Path],
) -> None:
    compacted(nodes)
    update(nodes, 5, {"c": "2"})
    update(nodes, 6, {"f": "1"})
    assert compacted(nodes).partitions[0].clean_to == 8
    check_whole(nodes)
    assert newest(nodes) == {"a": "3", "b": None, "c": "2", "e": "1", "f": "1"}


@pytest.mark.parametrize("away", range(3))
def test_a_node_that_was_away_gets_other_files_from_early_offsets_on(
    nodes: list[Path], away: int
) -> None:
    nodes[away].rename(nodes[away].with_suffix(".away"))
    compacted(nodes)
    assert newest(nodes) == LATEST
    nodes[away].with_suffix(".away").rename(nodes[away])
    update(nodes, 5, {"f": "1"})
    update(nodes, 6, {"g": "1"})
    check_whole(nodes)
    assert {clean_to(node) for node in nodes} == {6}
    assert newest(nodes) == LATEST | {"f": "1", "g": "1"}


def same_size(node: Path, base: int) -> None:
    """Let a sealed segment hold other bytes in a file of the same size."""
    path = node / "t-0" / f"{base:020d}.log"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_sizes_tell_nothing_of_a_node_that_was_away_while_files_were_replaced(
    nodes: list[Path],
) -> None:
    nodes[2].rename(nodes[2].with_suffix(".away"))
    compacted(nodes)
    away = nodes[2].with_suffix(".away")
    shutil.rmtree(away / "t-0")
    shutil.copytree(nodes[0] / "t-0", away / "t-0")
    same_size(away, 5)
    away.rename(nodes[2])
    update(nodes, 5, {"f": "1"})
    update(nodes, 6, {"g": "1"})
    check_whole(nodes)


def test_sizes_tell_nothing_of_a_replica_that_is_away_when_its_node_comes_back(
    nodes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes[2].rename(nodes[2].with_suffix(".away"))
    compacted(nodes)
    nodes[2].with_suffix(".away").rename(nodes[2])
    shutil.rmtree(nodes[2] / "t-0")
    put_aside = deciding.distrust_old

    def without_folder(*arguments: Any) -> None:
        put_aside(*arguments)
        if not (nodes[2] / "t-0").exists():
            shutil.copytree(nodes[0] / "t-0", nodes[2] / "t-0")
            same_size(nodes[2], 5)

    monkeypatch.setattr(deciding, "distrust_old", without_folder)
    update(nodes, 5, {"f": "1"})
    update(nodes, 6, {"g": "1"})
    check_whole(nodes)


def test_sizes_tell_nothing_of_a_replica_that_lagged_while_files_were_replaced(
    nodes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes[2].rename(nodes[2].with_suffix(".away"))
    update(nodes, 5, {"f": "1" * 20})
    nodes[2].with_suffix(".away").rename(nodes[2])
    with monkeypatch.context() as patched:
        patched.setattr(open_nodes, "COPIED_BYTES", 1)
        compacted(nodes)
    assert read_offset_checkpoint(nodes[2], RECOVERY_POINT).get(T0, 0) < 5
    shutil.rmtree(nodes[2] / "t-0")
    shutil.copytree(nodes[0] / "t-0", nodes[2] / "t-0")
    same_size(nodes[2], 5)
    update(nodes, 6, {"g": "1"})
    check_whole(nodes)


def test_sizes_tell_nothing_of_a_leader_that_was_lost_while_it_replaced_files(
    nodes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = leader_of(nodes)
    cut_off(nodes, monkeypatch)
    away = nodes[first].rename(nodes[first].with_suffix(".away"))
    update(nodes, 5, {"f": "1"})
    shutil.rmtree(away / "t-0")
    shutil.copytree(nodes[leader_of(nodes)] / "t-0", away / "t-0")
    same_size(away, 2)
    away.rename(nodes[first])
    update(nodes, 6, {"g": "1"})
    update(nodes, 7, {"h": "1"})
    check_whole(nodes)


def test_an_older_copy_of_a_node_is_known_by_its_state(nodes: list[Path], tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(nodes[1], copy)
    compacted(nodes)
    shutil.rmtree(nodes[1])
    copy.rename(nodes[1])
    update(nodes, 5, {"f": "1"})
    update(nodes, 6, {"g": "1"})
    check_whole(nodes)


def test_a_node_is_compared_in_bounded_steps(
    nodes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes[2].rename(nodes[2].with_suffix(".away"))
    compacted(nodes)
    nodes[2].with_suffix(".away").rename(nodes[2])
    monkeypatch.setattr(open_nodes, "COPIED_BYTES", 40)
    points = []
    for version in range(5, 15):
        update(nodes, version, {"f": str(version)})
        points.append(read_offset_checkpoint(nodes[2], RECOVERY_POINT)[T0])
    assert points == sorted(points)
    assert len({*points}) > 3
    monkeypatch.undo()
    update(nodes, 15, {"g": "1"})
    check_whole(nodes)


def test_a_node_that_fails_amid_it_is_out_and_comes_back(
    nodes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = nodes[(leader_of(nodes) + 1) % 3]
    real = equal_segments.replace_segments

    def fail(folder: Path, *given: object) -> None:
        if folder.parent == follower:
            raise OSError(5, "no such luck")
        real(folder, *given)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(equal_segments, "replace_segments", fail)
        compacted(nodes)
    assert len(newest_state(nodes).topics.popitem()[1].replicas[0].isr) == 2
    assert newest(nodes) == LATEST
    update(nodes, 5, {"f": "1"})
    update(nodes, 6, {"g": "1"})
    check_whole(nodes)


def test_what_was_cut_off_is_ended_before_retention_looks(
    nodes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_off(nodes, monkeypatch)
    (topic,) = newest_state(nodes).topics.values()
    assert topic.replicas[0].rewritten.is_under_way
    assert [*compare_replicas([path_of(nodes)])] != []
    assert newest(nodes) == LATEST
    update(nodes, 5, {"f": "1"})
    check_whole(nodes)
    assert compacted(nodes).partitions[0].clean_to == 7


def test_writers_continue_without_a_replica_that_stalls_amid_it(
    nodes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_off(nodes, monkeypatch)
    follower = (leader_of(nodes) + 1) % 3
    with stalling(nodes[follower], 0, CLEANED) as stall:
        update(nodes, 5, {"f": "1"}, **{"replica.lag.time.max.ms": "1000"})
        assert stall.where is not None
        (topic,) = newest_state(nodes).topics.values()
        assert follower not in topic.replicas[0].isr
    update(nodes, 6, {"g": "1"})
    update(nodes, 7, {"h": "1"})
    check_whole(nodes)
    assert newest(nodes) == LATEST | {"f": "1", "g": "1", "h": "1"}


def test_a_leader_that_is_lost_amid_it_gets_the_files_of_the_next_one(
    nodes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = leader_of(nodes)
    cut_off(nodes, monkeypatch)
    nodes[first].rename(nodes[first].with_suffix(".away"))
    update(nodes, 5, {"f": "1"})
    assert leader_of(nodes) != first
    nodes[first].with_suffix(".away").rename(nodes[first])
    update(nodes, 6, {"g": "1"})
    update(nodes, 7, {"h": "1"})
    check_whole(nodes)
    assert list_base_offsets(nodes[first] / "t-0")[:4] == [0, 2, 3, 5]
    assert newest(nodes) == LATEST | {"f": "1", "g": "1", "h": "1"}


def test_a_replica_that_cannot_get_other_files_is_not_read_before_it_is_brought_up_to_date(
    nodes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    behind = (leader_of(nodes) + 1) % 3
    cut_off(nodes, monkeypatch)
    min((nodes[behind] / "t-0").glob("*.log")).unlink()
    isr: list[tuple[int, ...]] = []
    original = in_sync.catch_up

    def catch_up(*given: Any, **named: Any) -> Any:
        (topic,) = newest_state(nodes).topics.values()
        isr.append(topic.replicas[0].isr)
        return original(*given, **named)

    monkeypatch.setattr(in_sync, "catch_up", catch_up)
    update(nodes, 5, {"f": "1"})
    assert len(isr) == 1
    assert behind not in isr[0]
    update(nodes, 6, {"g": "1"})
    check_whole(nodes)
    assert newest(nodes) == LATEST | {"f": "1", "g": "1"}


@pytest.mark.parametrize(
    ("name", "call"), [("finish_swap", 1), *[("open_regular", n) for n in range(1, 9)]]
)
def test_an_older_copy_in_the_place_of_a_leader_takes_nothing_from_the_others(
    name: str, call: int, nodes: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, calls = leader_of(nodes), itertools.count(1)
    shutil.copytree(nodes[first], tmp_path / "older")
    for path in (tmp_path / "older" / "t-0").glob("*.log"):
        path.write_bytes(b"")
    update(nodes, 5, {"f": "1"})
    update(nodes, 6, {"g": "1"})
    original = getattr(equal_segments, name)

    def put_in_place(*given: Any) -> Any:
        if next(calls) == call:
            nodes[first].rename(tmp_path / "newer")
            (tmp_path / "older").rename(nodes[first])
        return original(*given)

    with monkeypatch.context() as patched, suppress(KafkaLogError):
        patched.setattr(equal_segments, name, put_in_place)
        compact([path_of(nodes)], Wanted(forces=True))
    assert next(calls) > call
    update(nodes, 7, {"h": "1"})
    update(nodes, 8, {"i": "1"})
    assert newest(nodes) == LATEST | {"f": "1", "g": "1", "h": "1", "i": "1"}
    update(nodes, 9, {"i": "2"})
    check_whole(nodes)


def test_what_was_copied_of_an_older_copy_in_a_leaders_place_is_not_in_sync(
    nodes: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = leader_of(nodes)
    shutil.copytree(nodes[first], tmp_path / "older")
    lagging = nodes[(first + 1) % 3]
    gone = lagging.rename(lagging.with_suffix(".away"))
    update(nodes, 5, {"f": "1"})
    update(nodes, 6, {"g": "1"})
    gone.rename(lagging)
    original = in_sync.catch_up

    def catch_up(*given: Any, **named: Any) -> Any:
        if (tmp_path / "older").exists():
            nodes[first].rename(tmp_path / "newer")
            (tmp_path / "older").rename(nodes[first])
        return original(*given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(in_sync, "catch_up", catch_up)
        update(nodes, 7, {"h": "1"})
    assert newest(nodes) == LATEST | {"f": "1", "g": "1", "h": "1"}
    update(nodes, 8, {"i": "1"})
    update(nodes, 9, {"i": "2"})
    assert newest(nodes) == LATEST | {"f": "1", "g": "1", "h": "1", "i": "2"}
    check_whole(nodes)


def test_recovery_copies_a_sealed_segment_that_differs_in_bytes_alone(nodes: list[Path]) -> None:
    same_size(nodes[(leader_of(nodes) + 1) % 3], 2)
    assert recover([path_of(nodes)]).problems == []
    check_whole(nodes)


def test_what_a_recovery_was_killed_in_is_compared_by_the_next_writer(
    nodes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    same_size(nodes[(leader_of(nodes) + 1) % 3], 2)
    real = LogSet.publish

    def publish(self: LogSet, *given: Any) -> None:
        real(self, *given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(LogSet, "publish", publish)
        with pytest.raises(KeyboardInterrupt):
            recover([path_of(nodes)])
    update(nodes, 5, {"f": "1"})
    update(nodes, 6, {"g": "1"})
    check_whole(nodes)


def test_the_folder_of_a_leader_that_somebody_took_away_is_copied_back_first(
    nodes: list[Path],
) -> None:
    shutil.rmtree(nodes[leader_of(nodes)] / "t-0")
    done = compact([path_of(nodes)], Wanted(forces=True))
    assert "recover" in str(done.problems)
    assert newest(nodes) == LATEST


def test_a_reader_in_a_follower_continues_while_its_files_are_replaced(nodes: list[Path]) -> None:
    first = leader_of(nodes)
    away = nodes[first].rename(nodes[first].with_suffix(".away"))
    reading = kafkalog.read(path_of(nodes), "t", strings=["key", "value"])
    away.rename(nodes[first])
    compacted(nodes)
    rows = reading.read_all().to_pylist()
    assert {row["key"]: row["value"] for row in rows} == LATEST


@pytest.mark.parametrize("away", [None, 0, 1, 2])
def test_the_newest_row_of_each_key_is_found_with_any_node_away(
    nodes: list[Path], away: int | None
) -> None:
    compacted(nodes)
    update(nodes, 5, {"c": "2"})
    if away is not None:
        nodes[away].rename(nodes[away].with_suffix(".away"))
    path = path_of(nodes)
    expected = {"a": "3", "c": "2", "e": "1"}
    latest = kafkalog.read(path, "t", strings=["key", "value"], options={"view": "latest"})
    assert {row["key"]: row["value"] for row in latest.read_all().to_pylist()} == expected
    for key, value in expected.items():
        found = kafkalog.get(path, "t", key)
        assert found is not None
        assert found["value"] == value.encode()
    assert kafkalog.get(path, "t", "b") is None
    scanned = [row for batch in kafkalog.scan(path, "t", low="a") for row in batch.to_pylist()]
    assert [row["key"].decode() for row in scanned] == sorted(expected)
