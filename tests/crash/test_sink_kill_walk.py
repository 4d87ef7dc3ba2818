"""SIGKILL at each call of a commit that changes a file, one after the other; then go on."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from tests.support.killing import count_calls, run_and_kill
from tests.support.sinking import Writer, rows, values_of

from kafkalog.checkpoints.broker import HIGH_WATERMARK, read_offset_checkpoint
from kafkalog.checkpoints.commit_state import INTENT_FILE, STAGED_PREFIX, UNFINISHED_FOLDER
from kafkalog.streaming.log.log_dir import LogDirs
from kafkalog.streaming.log.partition_log import PartitionLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

pytestmark = pytest.mark.crash

TOPICS = ("flights", "weather")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Give a folder in memory where there is one: a killed process loses nothing there either."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None, prefix="sink-") as name:
        yield Path(name)


@dataclass(frozen=True)
class Case:
    """What was there before, and the batch that is cut off."""

    name: str
    before: int
    options: dict[str, str]
    directories: int = 1


CASES = (
    Case("append", 1, {"numPartitions": "2"}),
    Case("roll", 1, {"numPartitions": "2", "segment__bytes": "700", "index__interval__bytes": "0"}),
    Case("new topics", 0, {"numPartitions": "2"}),
    Case("two directories", 1, {"numPartitions": "3", "compression__type": "lz4"}, directories=2),
    Case("left to the system", 1, {"numPartitions": "1", "flush": "os"}),
)


class Scene:
    """Log directories of one attempt, made by copying those of a case as they were before."""

    def __init__(self, case: Case, template: Path, folder: Path) -> None:
        self.case = case
        shutil.copytree(template, folder)
        self.directories = [folder / str(number) for number in range(case.directories)]

    def writer(self, run: str) -> Writer:
        return Writer(*self.directories, run=run, **self.case.options)

    def write(self, batch_id: int, run: str) -> None:
        self.writer(run).write(batch_id, *_tasks(batch_id), digest=f"digest of {batch_id}")

    def values(self) -> list[str]:
        """Give all committed values; within a partition they must come in the order written."""
        found = []
        for topic in TOPICS:
            for values in values_of(self.directories, topic).values():
                assert values == sorted(values, key=_order)
                found += values
        return sorted(found, key=_order)

    def check_clean(self) -> None:
        for folder in self.directories:
            left = {path.name for path in folder.iterdir()}
            assert not left & {INTENT_FILE, UNFINISHED_FOLDER}
            assert not [name for name in left if name.startswith(STAGED_PREFIX)]
        for key, found in LogDirs(self.directories).partitions().items():
            with PartitionLog(found.path, key) as log:
                end = log.log_end_offset(verify_from=0)
            assert read_offset_checkpoint(found.log_dir, HIGH_WATERMARK)[key] == end


def _tasks(batch_id: int) -> list[pa.RecordBatch]:
    """Two tasks whose rows go to both topics."""
    tasks = []
    for task in range(2):
        values = [f"{batch_id}/{task}/{number}" for number in range(40)]
        topics = [TOPICS[number % 2] for number in range(40)]
        tasks.append(rows(values, keys=[f"k{n % 5}" for n in range(40)], topics=topics))
    return tasks


def _order(value: str) -> tuple[int, ...]:
    return tuple(map(int, value.split("/")))


def _expected(batches: int) -> list[str]:
    return [f"{b}/{t}/{n}" for b in range(batches) for t in range(2) for n in range(40)]


def _template(case: Case, folder: Path) -> Path:
    for number in range(case.directories):
        (folder / str(number)).mkdir(parents=True)
    writer = Writer(*(folder / str(n) for n in range(case.directories)), **case.options)
    writer.plan()
    for batch_id in range(case.before):
        writer.write(batch_id, *_tasks(batch_id), digest=f"digest of {batch_id}")
    return folder


def _walk(attempt: Callable[[int], bool]) -> int:
    """Call ``attempt`` with 0, 1, … until it says that nothing was cut off any more."""
    call = 0
    while attempt(call):
        call += 1
    return call


@pytest.mark.parametrize("half", [False, True], ids=["before", "within a write"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_whichever_call_a_commit_is_killed_at_each_row_is_there_once(
    case: Case, half: bool, folder: Path
) -> None:
    template = _template(case, folder / "template")

    def attempt(call: int) -> bool:
        scene = Scene(case, template, folder / str(call))
        died = run_and_kill(lambda: scene.write(case.before, "run-1"), call, half=half)
        assert scene.values() in (_expected(case.before), _expected(case.before + 1))
        scene.write(case.before, "run-2")
        assert scene.values() == _expected(case.before + 1)
        scene.check_clean()
        scene.write(case.before + 1, "run-2")
        assert scene.values() == _expected(case.before + 2)
        scene.check_clean()
        shutil.rmtree(folder / str(call))
        return died

    assert _walk(attempt) > 20


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_whichever_call_a_recovery_is_killed_at_each_row_is_there_once(
    case: Case, folder: Path
) -> None:
    template = _template(case, folder / "template")
    counting = Scene(case, template, folder / "counting")
    calls = count_calls(lambda: counting.write(case.before, "run-1"))
    # Deep in the commit, where most is there to be taken back.
    first = calls * 3 // 5
    unfinished = Scene(case, template, folder / "unfinished")
    assert run_and_kill(lambda: unfinished.write(case.before, "run-1"), first)

    def attempt(call: int) -> bool:
        scene = Scene(case, folder / "unfinished", folder / f"r{call}")
        died = run_and_kill(lambda: scene.write(case.before, "run-2"), call)
        assert scene.values() in (_expected(case.before), _expected(case.before + 1))
        scene.write(case.before, "run-3")
        assert scene.values() == _expected(case.before + 1)
        scene.check_clean()
        shutil.rmtree(folder / f"r{call}")
        return died

    assert _walk(attempt) > 20
