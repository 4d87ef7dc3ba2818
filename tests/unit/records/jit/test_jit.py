"""Kernels take read-only and writable arrays; run as Python, they refuse indexes outside."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from kafkalog.streaming.records.jit.inline import INTERPRETED
from kafkalog.streaming.records.murmur2_kernels import murmur2_column

_CHECKED = """
import numpy as np
from kafkalog.streaming.records.jit.inline import INTERPRETED
from kafkalog.streaming.records.jit.kernel import kernel

@kernel("uint8", "const uint8[]", "int64")
def at(data, index):
    return data[index]

@kernel("int64", "const uint8[]", "int64", "int64")
def length(data, start, stop):
    return len(data[start:stop])

@kernel("void", "uint8[]", "int64")
def put(data, index):
    data[index] = 1

@kernel("int64", "int64[,]", "int64", "int64")
def cell(data, row, column):
    return data[row, column]

@kernel("int64", "int64")
def wrapping(value):
    return np.int64(value) + np.int64(1)

def refused(function, *arguments):
    try:
        function(*arguments)
    except IndexError:
        return True
    return False

data = np.arange(4, dtype=np.uint8)
assert INTERPRETED
assert at(data, 3) == 3 and refused(at, data, 4) and refused(at, data, -1)
assert length(data, 1, 4) == 3 and refused(length, data, 0, 5) and refused(length, data, -1, 2)
assert refused(length, data, 3, 2)
put(data, 0)
assert data[0] == 1 and refused(put, data, -1) and refused(put, data, 4)
cells = np.zeros((2, 3), np.int64)
assert cell(cells, 1, 2) == 0 and refused(cell, cells, 2, 0) and refused(cell, cells, 0, -1)
assert wrapping(2**63 - 1) == -(2**63)
"""


@pytest.mark.parametrize("switch", [{"KAFKALOG_JIT": "0"}, {"NUMBA_DISABLE_JIT": "1"}])
def test_run_as_python_kernels_refuse_what_lies_outside(switch: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _CHECKED],
        env={**os.environ, **switch},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(INTERPRETED, reason="kernels run as Python")
def test_one_compilation_takes_read_only_and_writable_arrays() -> None:
    hashes = np.empty(1, np.int32)
    offsets, data = np.array([0, 3]), np.frombuffer(b"abc", np.uint8)
    none = np.empty(0, np.uint8)
    for change in (data, data.copy()):
        murmur2_column(offsets, change, none, hashes)
        assert hashes.tolist() == [479470107]


@pytest.mark.skipif(INTERPRETED, reason="kernels run as Python")
def test_arrays_of_another_type_are_refused_instead_of_compiled_for() -> None:
    wrong: Any = np.zeros(2, np.int32)
    none = np.empty(0, np.uint8)
    with pytest.raises(TypeError, match="No matching definition"):
        murmur2_column(wrong, none, none, np.empty(1, np.int32))
