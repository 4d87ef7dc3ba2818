"""Kernels that are loaded without numba give the same, and nothing is called that is not whole."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kafkalog.streaming.records.jit import object_code
from kafkalog.streaming.records.jit.inline import INTERPRETED
from kafkalog.streaming.records.murmur2_kernels import murmur2_column

if TYPE_CHECKING:
    from pathlib import Path

_RUN = """
import sys
from kafkalog.streaming.records.jit.kernel import load_without_compiler
load_without_compiler()
import numpy as np
from kafkalog.streaming.records.murmur2_kernels import murmur2_column
hashes = np.empty(1, np.int32)
arguments = np.array([0, 3]), np.frombuffer(b"abc", np.uint8), np.empty(0, np.uint8), hashes
assert murmur2_column(*arguments) == -1
assert hashes.tolist() == [479470107]
print("numba" in sys.modules)
"""

pytestmark = pytest.mark.skipif(INTERPRETED, reason="kernels run as Python")


def _needs_numba(folder: Path) -> bool:
    environment = {**os.environ, "KAFKALOG_KERNEL_CACHE": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", _RUN], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout == "True\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a cache in which one kernel's code is kept."""
    path = tmp_path_factory.mktemp("cache")
    assert _needs_numba(path)
    return path


def _load(path: Path) -> Any:
    return object_code._load(path, *murmur2_column._signature)  # type: ignore[attr-defined]


def test_the_second_process_does_without_numba(folder: Path) -> None:
    assert not _needs_numba(folder)
    assert [path.suffix for path in folder.rglob("*.object")] == [".object"]


def test_a_file_that_is_damaged_or_of_another_processor_is_not_used(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = folder.rglob("*.object")
    kept = path.read_bytes()
    copy = tmp_path / "copy"
    assert _load(copy) is None
    for damaged in (b"", kept[:20], kept[:-1], bytes([kept[0] ^ 1]) + kept[1:]):
        copy.write_bytes(damaged)
        assert _load(copy) is None
    copy.write_bytes(kept)
    assert _load(copy) is not None
    monkeypatch.setattr(object_code, "processor", lambda: "another")
    assert _load(copy) is None


def test_code_that_calls_what_is_not_there_is_not_used(folder: Path, tmp_path: Path) -> None:
    (path,) = folder.rglob("*.object")
    code = path.read_bytes()[object_code.DIGEST_SIZE :].replace(b'["', b'["nowhere", "', 1)
    changed = tmp_path / "changed"
    object_code._write(changed, code)
    assert b"nowhere" in changed.read_bytes()
    assert _load(changed) is None


def test_arrays_of_another_type_are_refused(folder: Path) -> None:
    (path,) = folder.rglob("*.object")
    kernel = _load(path)
    ends, data, none = np.array([0, 3]), np.frombuffer(b"abc", np.uint8), np.empty(0, np.uint8)
    hashes = np.empty(2, np.int32)
    assert kernel(ends, data, none, hashes[:1]) == -1
    assert hashes[0] == 479470107
    frozen = hashes.copy()
    frozen.flags.writeable = False
    wrong: list[Any] = [
        np.empty(4, np.int32)[::2],
        frozen,
        hashes.astype(np.int64),
        hashes.reshape(2, 1),
    ]
    for each in wrong:
        with pytest.raises(TypeError, match="No matching definition"):
            kernel(ends, data, none, each)
    with pytest.raises(ValueError, match="shorter"):
        kernel(ends, data, none)
