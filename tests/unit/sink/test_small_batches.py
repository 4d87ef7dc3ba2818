"""Many small batches: none of them costs more, or leaves more behind, than the ones before."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import kafkalog
from kafkalog.checkpoints.commit_state import STATE_FILE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CALLS = [
    *("open", "close", "stat", "lstat", "fstat", "scandir", "listdir"),
    *("read", "pread", "preadv", "write", "pwrite", "fsync", "ftruncate", "copy_file_range"),
    *("rename", "replace", "link", "unlink", "mkdir", "rmdir"),
]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Counter[str]:
    """Count the calls of the system that go through ``os``, on the test's folder and above it.

    Threads that other tests have left may make calls elsewhere.
    """
    counted: Counter[str] = Counter()
    name_of = os.readlink

    def concerns(what: Any) -> bool:
        try:
            text = name_of(f"/proc/self/fd/{what}") if isinstance(what, int) else os.fspath(what)
        except (OSError, TypeError):
            return False
        return str(text).startswith(str(tmp_path)) or str(tmp_path).startswith(str(text))

    def counting(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            counted[name] += concerns(arguments[0]) if arguments else 0
            return original(*arguments, **named)

        return call

    for name in CALLS:
        monkeypatch.setattr(os, name, counting(name, getattr(os, name)))
    return counted


def append(folder: Path, version: int) -> None:
    # Numbers of one width: batches, and lines of the state, of one size.
    kafkalog.append(
        folder,
        "t",
        pa.table({"value": [f"{version:06} {row}" + "x" * 80 for row in range(3)]}),
        transactional_id="small",
        version=100_000 + version,
    )


@pytest.mark.long
def test_no_commit_makes_more_calls_than_the_ones_before(
    tmp_path: Path, calls: Counter[str]
) -> None:
    made = []
    for version in range(120):
        calls.clear()
        append(tmp_path, version)
        made.append(sum(calls.values()))
    usual = sorted(made[5:])[len(made) // 2]
    # An index entry, every dozen commits, takes a few calls; no walk or listing grows.
    assert max(made[5:]) <= usual + 5
    assert made[-1] <= made[5] + 5
    # Links of the log directory's ancestors are resolved once in each commit, and the state is read
    # once: what follows looks whether it is that file still.
    assert usual < 146 + 2 * len(tmp_path.parts)


@pytest.mark.long
def test_a_commit_makes_as_many_calls_beside_many_partitions_and_ids_as_beside_few(
    tmp_path: Path, calls: Counter[str]
) -> None:
    made: dict[int, int] = {}
    for partitions in (600, 1200):
        folder = tmp_path / f"log{partitions:04}"
        topics = pa.array(range(partitions), pa.int32())
        table = pa.table({"value": ["a"] * partitions, "partition": topics})
        options = {"numPartitions": str(partitions), "flush": "os"}
        kafkalog.append(folder, "many", table, options=options)
        for version in range(3):
            calls.clear()
            append(folder, version)
        made[partitions] = sum(calls.values())
        assert (folder / STATE_FILE).stat().st_size < 2000
    # Large checkpoint files are written now and then: a dozen calls.
    assert abs(made[1200] - made[600]) <= 25


@pytest.mark.long
def test_files_and_state_do_not_grow_and_the_index_has_its_entries(tmp_path: Path) -> None:
    seen = []
    for version in range(150):
        append(tmp_path, version)
        if version in {10, 149}:
            files = sorted(path.name for path in tmp_path.rglob("*") if path.is_file())
            seen.append((files, (tmp_path / STATE_FILE).stat().st_size))
    (few, small), (many, large) = seen
    assert many == few
    assert large <= small + 10
    log = (tmp_path / "t-0" / f"{0:020d}.log").stat().st_size
    index = (tmp_path / "t-0" / f"{0:020d}.index").stat().st_size
    times = (tmp_path / "t-0" / f"{0:020d}.timeindex").stat().st_size
    batch = log // 150
    # One for each index.interval.bytes, at the next batch; one more in the time index, the last.
    assert log // (4096 + 2 * batch) <= index // 8 <= log // 4096
    assert times // 12 <= index // 8 + 1


def test_writers_of_one_append_each_leave_nothing_in_the_state(tmp_path: Path) -> None:
    table = pa.table({"value": ["a"]})
    sizes = []
    for _ in range(20):
        kafkalog.append(tmp_path, "t", table)
        sizes.append((tmp_path / STATE_FILE).stat().st_size)
    assert max(sizes) <= sizes[0] + 5
