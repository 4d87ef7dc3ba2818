"""Rows that are staged on several nodes: the same runs on each, whatever lies where."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import kafkalog
from kafkalog.errors import LogDirectoryError

if TYPE_CHECKING:
    from pathlib import Path


def path_of(root: Path) -> str:
    return ";".join(str(root / name) for name in "abc")


@pytest.mark.parametrize("size", [1, 300_000])
def test_all_nodes_stay_in_sync_whoever_leads(size: int, tmp_path: Path) -> None:
    """A partition's first rows may get a file of their own, on its leader's node or on all."""
    path = path_of(tmp_path)
    table = pa.table({"value": ["v" * 50] * size, "partition": pa.array([2] * size, pa.int32())})
    for _ in range(2):
        kafkalog.append(path, "t", table, options={"numPartitions": 3, "flush": "os"})
    logs = {
        name: [log.read_bytes() for log in sorted(tmp_path.glob(f"{name}/t-2/*.log"))]
        for name in "abc"
    }
    assert logs["a"] == logs["b"] == logs["c"]
    assert '"2":[2,[2,0,1],[2,0,1]]' in (tmp_path / "a" / "kafkalog.commit").read_text()


def test_a_node_that_cannot_be_written_to_is_left_out(tmp_path: Path) -> None:
    path = path_of(tmp_path)
    table = pa.table({"value": ["v"]})
    kafkalog.append(path, "t", table)
    (tmp_path / "b").rename(tmp_path / "away")
    assert kafkalog.append(path, "t", table).appended
    assert '"0":[0,[0,1,2],[0,2]]' in (tmp_path / "a" / "kafkalog.commit").read_text()


def test_rows_that_no_node_takes_are_an_error(tmp_path: Path) -> None:
    path = path_of(tmp_path)
    kafkalog.append(path, "t", pa.table({"value": ["v"]}))
    for name in "bc":
        (tmp_path / name).rename(tmp_path / f"{name} is away")
    with pytest.raises(LogDirectoryError, match=r"1 of the 3 nodes .* and 2 are needed"):
        kafkalog.append(path, "t", pa.table({"value": ["v"]}))
