"""What a loss of power leaves of several nodes, where no more is left than fsync has covered."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from tests.support.disk_calls import MOUNT
from tests.support.least_left import KilledError, acted, least, made

import kafkalog
from kafkalog.checkpoints.broker import HIGH_WATERMARK, RECOVERY_POINT
from kafkalog.checkpoints.commit_state import STATE_FILE, UNFINISHED_FOLDER
from kafkalog.checkpoints.state_file import load_state, state_bytes
from kafkalog.files.atomic import write_atomically
from kafkalog.streaming.admin.backup import back_up
from kafkalog.streaming.admin.cleaning import clean_partition
from kafkalog.streaming.admin.compaction import Wanted, plan_compaction
from kafkalog.streaming.store.replicas import copying as equal_segments
from kafkalog.streaming.store.replicas import in_sync as catching_up
from kafkalog.streaming.store.replicas import open_nodes

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

NODES: Final = ";".join(str(MOUNT / name) for name in "abc")


def write(path: str, version: int, *values: str, topic: str = "t", **options: str) -> None:
    named = {name.replace("__", "."): value for name, value in options.items()}
    table = pa.table({"value": list(values)})
    kafkalog.append(path, topic, table, transactional_id="w", version=version, options=named)


def forget_topic() -> None:
    """Delete a topic on two nodes, as one that has come to its end, while the third was away."""
    for name in "ab":
        state = load_state(MOUNT / name)
        assert state is not None
        left = replace(state.following(topics={}), commit_id="deleted")
        (MOUNT / name / STATE_FILE).unlink()
        write_atomically(MOUNT / name / STATE_FILE, state_bytes(left))
        remove(MOUNT / name / "t-0")
    for name in (RECOVERY_POINT, HIGH_WATERMARK):
        (MOUNT / "c" / name).unlink()


def remove(folder: Path) -> None:
    for name in os.listdir(folder):  # noqa: PTH208 - the simulated call
        (folder / name).unlink()
    folder.rmdir()


def lose_replica() -> None:
    """Delete a partition's folder on the second node by hand."""
    remove(MOUNT / "b" / "t-0")


def test_a_replica_that_has_caught_up_is_on_the_disk_before_it_counts() -> None:
    small = {"segment__bytes": "230", "index__interval__bytes": "0"}
    before = made(
        partial(write, NODES, 0, "a" * 30, **small),
        partial(write, NODES, 1, "b" * 30),
        lose_replica,
        partial(write, NODES, 2, "c" * 30),
    )
    assert "b/t-0/00000000000000000000.log" not in before.tree()
    machine = acted(before, partial(write, NODES, 3, "d" * 30))
    there = machine.disk.tree()
    left = least(before, machine, STATE_FILE)
    copied = {path for path in there if path.startswith("b/t-0/")}
    assert len(copied) > 7
    for path in copied:
        assert path in left, path
        if path.endswith((".log", "checkpoint", "metadata")):
            assert left[path] == there[path], path


def test_a_commit_is_in_place_before_a_broker_is_told() -> None:
    before = made(partial(write, NODES, 0, "a"))
    machine = acted(before, partial(write, NODES, 1, "b"))
    there, left = machine.disk.tree(), least(before, machine, RECOVERY_POINT)
    for node in "abc":
        assert left[f"{node}/{STATE_FILE}"] == there[f"{node}/{STATE_FILE}"]


def test_a_topic_that_is_gone_is_put_aside_before_anything_is_published() -> None:
    before = made(partial(write, NODES, 0, "a"), forget_topic)
    assert "c/t-0/00000000000000000000.log" in before.tree()
    machine = acted(before, partial(write, NODES, 1, "b", topic="u"))
    left = least(before, machine, STATE_FILE)
    assert not [path for path in left if path.startswith("c/t-0/") and path.endswith("metadata")]
    assert [path for path in left if "-stray/" in path]


def compacted(version: int, keys: str) -> None:
    """Append a value for each key; each batch is a segment."""
    options = {"cleanup.policy": "compact", "segment.bytes": "100"}
    rows = pa.table({"key": list(keys), "value": [str(version)] * len(keys)})
    kafkalog.append(NODES, "t", rows, transactional_id="w", version=version, options=options)


def clean_all() -> None:
    for due in plan_compaction([NODES], Wanted(forces=True)).due:
        assert clean_partition(due.task).rounds


def test_replaced_segments_are_on_the_disk_of_each_replica_before_they_count_as_equal() -> None:
    before = made(*(partial(compacted, n, keys) for n, keys in enumerate(["ab", "a", "ac", "b"])))
    machine = acted(before, clean_all)
    there, left = machine.disk.tree(), least(before, machine, STATE_FILE, last=True)
    sealed = {path for path in there if "/t-0/" in path and path.endswith(".log")}
    changed = {path for path in sealed if there[path] != before.tree()[path]}
    assert {path[0] for path in changed} == {*"abc"}
    for path in changed:
        assert left[path] == there[path], path
        assert left[path.replace(".log", ".index")] == there[path.replace(".log", ".index")]


def killed(*_: object) -> None:
    raise KilledError


def test_all_files_of_a_replaced_segment_are_there_before_one_of_them_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = made(*(partial(compacted, n, keys) for n, keys in enumerate(["ab", "a", "ac", "b"])))
    monkeypatch.setattr(equal_segments, "replace_segments", killed)
    machine = acted(before, clean_all)
    there, left = machine.disk.tree(), least(before, machine)
    copied = {path for path in there if path.endswith(".cleaned")}
    assert len(copied) == 3
    for path in copied:
        assert left[path] == there[path], path


def test_what_a_replica_was_compared_up_to_is_on_its_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    before = made(
        *(partial(compacted, n, "ab") for n in range(4)),
        lose_replica,
        partial(compacted, 4, "ab"),
    )
    assert "b/t-0/00000000000000000000.log" not in before.tree()
    monkeypatch.setattr(open_nodes, "COPIED_BYTES", 100)
    monkeypatch.setattr(catching_up, "write_offset_checkpoint", killed)
    machine = acted(before, partial(compacted, 5, "ab"))
    there, left = machine.disk.tree(), least(before, machine)
    first = "b/t-0/00000000000000000000"
    for path in (f"{first}.log", f"{first}.index", f"{first}.timeindex"):
        assert left[path] == there[path] == before.tree()[path.replace("b/", "a/")], path


def test_a_copy_of_several_nodes_has_its_files_before_it_has_a_state() -> None:
    before = made(partial(write, NODES, 0, "a"))
    machine = acted(before, lambda: back_up([NODES], str(MOUNT / "copy")))
    left = least(before, machine, STATE_FILE, last=True)
    first = "t-0/00000000000000000000.log"
    assert left[f"copy/{first}"] == before.tree()[f"a/{first}"]
    assert f"copy/{UNFINISHED_FOLDER}" in left
