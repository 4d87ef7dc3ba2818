from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Final

import pytest
from tests.support.logs import Row, batch_bytes, write_segment

from kafkalog.streaming.records.jit.inline import INTERPRETED

if TYPE_CHECKING:
    from pathlib import Path

_PLANNING: Final = """
import sys
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.source.stream_control import StreamControl

given = {"path": sys.argv[1], "subscribe": "t", "startingOffsets": "earliest"}
control = StreamControl(ReadOptions.parse(given))
start = control.initial()
end = control.next_end(start, take_all=False)
(split,) = control.plan(start, end)
print(split.slices[-1].end_offset, "numba" in sys.modules, "pandas" in sys.modules)
unneeded = ["pyarrow", "lz4", "zstandard", "kafkalog.streaming.coordinator.group_replay"]
print(*(each in sys.modules for each in unneeded))
"""


@pytest.mark.skipif(INTERPRETED, reason="kernels run as Python")
@pytest.mark.parametrize("length", [10, 2000])
def test_planning_in_a_fresh_process_loads_nothing_that_compiles_or_decodes(
    tmp_path: Path, length: int
) -> None:
    batches = [batch_bytes(5 * n, [Row(b"x" * length)] * 5) for n in range(20)]
    write_segment(tmp_path / "t-0", 0, b"".join(batches), index=True)
    done = subprocess.run(
        [sys.executable, "-c", _PLANNING, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "100 False False\nFalse False False False\n", done.stderr


_WRITING: Final = """
import sys
import kafkalog.streaming.sink.task_writer
import kafkalog.streaming.commit.committer

unneeded = ["lz4", "zstandard", "kafkalog.streaming.records.columns"]
print([each for each in unneeded if each in sys.modules])
"""


def test_a_process_that_only_writes_loads_nothing_that_decodes() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _WRITING], capture_output=True, text=True, check=False
    )
    assert done.stdout == "[]\n", done.stderr


_ASKING: Final = """
import sys
from kafkalog.jobs.cli.app import main

sys.argv = ["kafkalog", "sql", sys.argv[1], "select count(*) as n from t", "--json"]
try:
    main()
finally:
    import pyarrow as pa

    print("numba" in sys.modules, "pandas" in sys.modules)
    print(pa.array([1]).to_pandas().sum())  # by its name it is found
"""


@pytest.mark.skipif(INTERPRETED, reason="kernels run as Python")
def test_a_process_of_sql_loads_neither_a_compiler_nor_pandas(tmp_path: Path) -> None:
    write_segment(tmp_path / "t-0", 0, batch_bytes(0, [Row(b"x")] * 5), index=True)
    done = subprocess.run(
        [sys.executable, "-c", _ASKING, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.stdout == '{"n": 5}\nFalse False\n1\n', done.stderr
