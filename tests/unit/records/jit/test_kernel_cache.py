"""The kernels are compiled once, wherever they come from, and kept where only the user can write.

Each test runs a kernel in processes of its own, as what is looked at happens once per process.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import kafkalog

_RUN_A_KERNEL = """
import pyarrow, kafkalog
from kafkalog.streaming.records.murmur2_kernels import murmur2
assert murmur2(pyarrow.array([b"abc", None])).tolist() == [479470107, 0]
print("from", kafkalog.__file__)
"""
_DECOMPRESS = """
import numpy
from kafkalog.streaming.records.columns import BatchGroups
from kafkalog.streaming.records.compression import Codec, compress
from kafkalog.streaming.records.columns import KernelDecompressor
for codec in list(Codec)[1:]:
    assert KernelDecompressor(1, 1).can(codec)
    body = compress(codec, b"x" * 300)
    where = numpy.zeros(1, numpy.int64), numpy.array([len(body)]), numpy.array([codec])
    groups = BatchGroups(1000, are_kept=False).groups(numpy.frombuffer(body, numpy.uint8), *where)
    assert [source.tobytes() for source, _ in groups] == [b"x" * 300]
"""
_FORK_AMID_THAT = """
import os, threading
import pyarrow
from kafkalog.streaming.records.jit import cache
from kafkalog.streaming.records.murmur2_kernels import murmur2
begun, is_amid, compiled = threading.Event(), [False], cache.compiled
def slowly(*given):
    is_amid[0] = True
    begun.set()
    found = compiled(*given)
    is_amid[0] = False
    return found
cache.compiled = slowly
thread = threading.Thread(target=lambda: murmur2(pyarrow.array([b"abc"])))
thread.start()
begun.wait()
if (child := os.fork()) == 0:
    os._exit(is_amid[0] or murmur2(pyarrow.array([b"abc"])).tolist() != [479470107])
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
thread.join()
"""
_SAVED = "[cache] data saved"
_LOADED = "[cache] data loaded"


def _environment(**changes: object) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    kept.pop("KAFKALOG_JIT", None)
    return {**kept, "NUMBA_DEBUG_CACHE": "1"} | {name: str(v) for name, v in changes.items()}


def _start(program: str = _RUN_A_KERNEL, **environment: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env=_environment(**environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _output(process: subprocess.Popen[str]) -> str:
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return out + errors


def _package_files() -> dict[str, Path]:
    root = Path(kafkalog.__file__).parent
    found = {}
    for folder, _, names in os.walk(root, followlinks=True):
        for name in names:
            if name.endswith((".py", ".typed")):
                path = Path(folder, name)
                found[f"kafkalog/{path.relative_to(root)}"] = path
    return found


@pytest.mark.long
def test_a_process_that_forks_while_a_thread_compiles_waits_for_it(tmp_path: Path) -> None:
    """Else the lock of the compiler would be locked in the child for ever."""
    _output(_start(_FORK_AMID_THAT, KAFKALOG_KERNEL_CACHE=tmp_path / "new"))


@pytest.mark.long
def test_processes_that_start_together_compile_once(tmp_path: Path) -> None:
    processes = [_start(KAFKALOG_KERNEL_CACHE=tmp_path / "new") for _ in range(3)]
    output = "".join([_output(process) for process in processes])
    assert output.count(_SAVED) == 1
    assert output.count(_LOADED) == 2


@pytest.mark.long
def test_the_folder_is_private_and_under_the_cache_home_of_the_user(tmp_path: Path) -> None:
    output = _output(_start(XDG_CACHE_HOME=tmp_path, KAFKALOG_KERNEL_CACHE=""))
    (folder,) = (tmp_path / "kafkalog").iterdir()
    assert folder.name.startswith("kernels-")
    assert str(folder) in output
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.long
def test_kernels_that_call_a_library_are_compiled_once(tmp_path: Path) -> None:
    first = _output(_start(_DECOMPRESS, KAFKALOG_KERNEL_CACHE=tmp_path))
    second = _output(_start(_DECOMPRESS, KAFKALOG_KERNEL_CACHE=tmp_path))
    assert (first.count(_SAVED), second.count(_SAVED), second.count(_LOADED)) == (4, 0, 4)


@pytest.mark.long
def test_kernels_in_a_zip_are_compiled_once(tmp_path: Path) -> None:
    archive = tmp_path / "kafkalog.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for name, path in _package_files().items():
            file.write(path, name)
    environment = {"PYTHONPATH": archive, "KAFKALOG_KERNEL_CACHE": tmp_path / "cache"}
    first, second = _output(_start(**environment)), _output(_start(**environment))
    assert f"from {archive}" in first
    assert (first.count(_SAVED), second.count(_SAVED), second.count(_LOADED)) == (1, 0, 1)


@pytest.mark.long
def test_nothing_is_written_beside_the_sources(tmp_path: Path) -> None:
    for name, path in _package_files().items():
        copy = tmp_path / "site-packages" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    before = sorted((tmp_path / "site-packages").rglob("*"))
    output = _output(
        _start(
            PYTHONPATH=tmp_path / "site-packages",
            KAFKALOG_KERNEL_CACHE=tmp_path / "cache",
            PYTHONDONTWRITEBYTECODE=1,
        )
    )
    assert f"from {tmp_path / 'site-packages'}" in output
    assert output.count(_SAVED) == 1
    assert sorted((tmp_path / "site-packages").rglob("*")) == before


@pytest.mark.long
@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_a_folder_that_others_can_write_to_is_not_used(tmp_path: Path, mode: int) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(mode)
    output = _output(_start(KAFKALOG_KERNEL_CACHE=shared, TMPDIR=tmp_path))
    assert output.count(_SAVED) == 1
    assert str(tmp_path / f"kafkalog-{os.getuid()}" / "kernels-") in output
    assert not [path for path in shared.rglob("*") if path.is_file()]


@pytest.mark.long
def test_without_any_folder_a_warning_says_what_to_set(tmp_path: Path) -> None:
    (tmp_path / f"kafkalog-{os.getuid()}").write_text("in the way")
    output = _output(_start(KAFKALOG_KERNEL_CACHE="/dev/null/kernels", TMPDIR=tmp_path))
    assert _SAVED not in output
    assert "Set KAFKALOG_KERNEL_CACHE" in output
    assert output.count("compiles the kernels again") == 1
