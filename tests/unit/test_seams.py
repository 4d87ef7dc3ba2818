"""That a simulation can stand in for the machine: nothing asks it but through ``files/system``."""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.disk_calls import MOUNT, Machine, simulated

from kafkalog.files.open_file import LocalFile
from kafkalog.files.system import once_per_process, remembered, system

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("src/kafkalog", "checkpoints", "streaming")
SEAM = ROOT / "src/kafkalog/files/system.py"
ARCHITECTURE = ROOT / "docs/architecture.md"

ASKS = {
    "time": {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "sleep"},
    "datetime": {"now", "utcnow", "today"},
    "os": {"getpid", "uname", "urandom", "fork", "kill"},
    "socket": {"gethostname", "getfqdn"},
    "uuid": {"uuid1", "uuid4"},
    "threading": {"Thread", "Timer", "Lock", "RLock", "Event", "Condition", "Semaphore"},
    "_thread": {"start_new_thread", "allocate_lock"},
    "concurrent.futures": {"ThreadPoolExecutor", "ProcessPoolExecutor"},
    "random": {"random", "Random", "randrange", "choice", "shuffle", "uniform"},
    "secrets": {"token_bytes", "token_hex", "token_urlsafe", "choice"},
}
"""By module: what tells what no two processes, moments or machines agree on, or makes threads."""
NAMES = set().union(*ASKS.values())

KEPT = {
    "streaming/records/crc_kernels.py": "whether crc32c has its own loop to call",
    "streaming/records/compression/codec.py": "which modules of codecs are installed",
    "streaming/records/compression/lz4_kernels.py": "whether lz4 exports its functions",
    "streaming/records/compression/gzip_kernels.py": "whether zlib exports its functions",
    "streaming/records/compression/zstd_kernels.py": "whether zstandard exports its functions",
    "streaming/records/jit/folder.py": "the folder of compiled kernels, the same for all",
    "streaming/log/files.py": "names of partitions' folders, parsed",
    "src/kafkalog/files/storage.py": "who finds a log in a store, filled when modules are loaded",
    "streaming/options/declaring.py": "the names of options",
    "streaming/store/topics.py": "settings, parsed",
    "streaming/spark/worker.py": "what belongs to a Python worker of Spark's",
}
"""Modules that may cache something for ever, which is the same for every process."""


def modules() -> Iterator[tuple[str, ast.Module]]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path != SEAM:
                yield str(path.relative_to(ROOT)), ast.parse(path.read_text())


def executed(tree: ast.AST) -> Iterator[ast.AST]:
    """Give all nodes but those that only a type checker sees."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            yield node
            yield from executed(node)


def asks(tree: ast.Module) -> Iterator[str]:
    for node in executed(tree):
        if isinstance(node, ast.ImportFrom):
            names = ASKS.get(node.module or "", set())
            yield from (f"{node.module}.{each.name}" for each in node.names if each.name in names)
        if isinstance(node, ast.Attribute) and node.attr in NAMES:
            module = ast.unparse(node.value)
            if node.attr in ASKS.get(module, set()):
                yield f"{module}.{node.attr}"


def test_time_threads_chance_and_names_are_asked_for_in_one_place() -> None:
    assert {name: found for name, tree in modules() if (found := list(asks(tree)))} == {}


def test_what_asks_otherwise_is_found() -> None:
    code = "import time\nfrom threading import Lock\ntime.sleep(1)\n"
    assert list(asks(ast.parse(code))) == ["threading.Lock", "time.sleep"]


def test_every_thread_that_may_be_is_in_the_table_of_the_docs() -> None:
    """Who starts a thread says there who ends it, and what an interrupt and a fork do to it."""
    paths = [
        SEAM.parents[1] / "files",
        *(ROOT / each for each in ("checkpoints", "streaming", "jobs")),
    ]
    starting = {
        str(path.relative_to(ROOT))
        for folder in paths
        for path in sorted(folder.rglob("*.py"))
        if path != SEAM and any(map(starts_threads, ast.walk(ast.parse(path.read_text()))))
    }
    _, _, section = ARCHITECTURE.read_text().partition("### Threads\n")
    rows = [line for line in section.partition("\n#")[0].splitlines() if line.startswith("| `")]
    assert {row.split("`")[1].partition("::")[0] for row in rows} == starting


def starts_threads(node: ast.AST) -> bool:
    """Tell whether code starts a thread or a pool: by the seam, or past it."""
    if not isinstance(node, ast.Call):
        return False
    called = ast.unparse(node.func)
    starters = ("start_thread_if_possible", "start_new_thread", "Thread", "Timer", "Process")
    return called.endswith((*starters, "PoolExecutor", "ThreadPool")) or called == "system.pool"


def test_what_a_process_remembers_lies_in_its_memory() -> None:
    """Caches of functions and collections of modules would be shared by simulated processes."""
    found = {name for name, tree in modules() if any(keeps(node) for node in tree.body)}
    assert found == set(KEPT)


def keeps(node: ast.AST) -> bool:
    """Tell whether a module keeps something that changes while it runs."""
    if isinstance(node, ast.FunctionDef):
        return any("cache" in ast.unparse(each) for each in node.decorator_list)
    value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
    if isinstance(value, ast.Dict | ast.List | ast.Set):
        return not (value.keys if isinstance(value, ast.Dict) else value.elts)
    made = ast.unparse(value.func) if isinstance(value, ast.Call) and not value.args else ""
    return made in {"dict", "list", "set", "deque", "OrderedDict"}


def test_each_process_has_a_memory_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "memory", {})
    first = remembered(list)
    assert remembered(list) is first
    monkeypatch.setattr(system, "memory", {})
    assert remembered(list) is not first


def test_what_is_said_once_is_said_once_in_each_process(monkeypatch: pytest.MonkeyPatch) -> None:
    said = []
    warn = once_per_process(said.append)
    for _ in range(2):
        monkeypatch.setattr(system, "memory", {})
        for text in ("a", "b", "a"):
            warn(text)
    assert said == ["a", "b", "a", "b"]


def test_what_a_simulation_has_left_open_goes_when_the_collector_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Be that after the simulation, or when the number could be somebody else's."""
    said: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    with simulated(Machine()) as machine:
        left = [
            LocalFile(os.open(MOUNT / name, os.O_CREAT | os.O_EXCL | os.O_RDWR)) for name in "ab"
        ]
        machine.end_process(machine.process)
        other = os.open(MOUNT / "a", os.O_RDONLY)
        left.pop(0)
        assert os.fstat(other).st_size == 0
    left.clear()
    assert not said
