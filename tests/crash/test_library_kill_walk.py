"""SIGKILL, or an interrupt, within ``kafkalog.append``.

The same append again makes up for it, and doubles nothing.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.support.interrupting import AlarmError, interrupted_at
from tests.support.killing import run_and_kill

import kafkalog

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.crash

STRIDE = 5
BEFORE, ADDED, AFTER = (["a", "b"], ["c", "d", "e"], ["f"])


@pytest.fixture
def folder() -> Iterator[Path]:
    """Give a folder in memory where there is one: a killed process loses nothing there either."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None, prefix="append-") as name:
        yield Path(name)


def append(folder: Path, version: int, values: list[str]) -> None:
    kafkalog.append(
        folder,
        "t",
        pa.table({"value": values}),
        transactional_id="killed",
        version=version,
        options={"segment.bytes": "100"},
    )


def values(folder: Path) -> list[str]:
    found = kafkalog.read(folder, "t", columns=["value"], strings=["value"]).read_all()
    return found.column("value").to_pylist()  # type: ignore[no-any-return]


def test_an_append_that_was_killed_anywhere_is_there_once_when_it_was_repeated(
    folder: Path,
) -> None:
    append(folder / "template", 0, BEFORE)
    call, died = 0, True
    while died:
        log = folder / str(call)
        shutil.copytree(folder / "template", log)
        died = run_and_kill(lambda log=log: append(log, 1, ADDED), call, half=True)  # type: ignore[misc]
        assert values(log) in (BEFORE, BEFORE + ADDED)
        append(log, 1, ADDED)
        assert values(log) == BEFORE + ADDED
        append(log, 2, AFTER)
        assert values(log) == BEFORE + ADDED + AFTER
        shutil.rmtree(log)
        call += STRIDE
    assert call > 40


def test_an_append_that_was_interrupted_anywhere_is_there_once_when_it_was_repeated(
    folder: Path,
) -> None:
    append(folder / "template", 0, BEFORE)
    call, interrupted = 0, True
    while interrupted:
        log = folder / str(call)
        shutil.copytree(folder / "template", log)
        with interrupted_at(call) as reached, suppress(AlarmError):
            append(log, 1, ADDED)
        interrupted = reached()
        assert values(log) in (BEFORE, BEFORE + ADDED)
        append(log, 1, ADDED)
        append(log, 2, AFTER)
        assert values(log) == BEFORE + ADDED + AFTER
        shutil.rmtree(log)
        call += STRIDE
    assert call > 40
