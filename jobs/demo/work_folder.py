"""Where the demo works: a folder that no other demo uses, and a file for what Spark says."""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["stderr_of_children_in", "work_folder"]

DEFAULT: Final = Path("build/demo")


@contextmanager
def work_folder(chosen: Path | None) -> Iterator[Path]:
    """Return the folder to work in: the chosen one, or `DEFAULT`, emptied of an earlier run.

    Raises:
        BadParameter: another demo works there.
    """
    if chosen is not None:
        chosen.mkdir(parents=True, exist_ok=True)
        yield chosen.resolve()
        return
    DEFAULT.parent.mkdir(parents=True, exist_ok=True)
    with DEFAULT.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise typer.BadParameter(
                f"another demo works in {DEFAULT}: wait for it, or give a --work-dir"
            ) from None
        shutil.rmtree(DEFAULT, ignore_errors=True)
        DEFAULT.mkdir()
        yield DEFAULT.resolve()


@contextmanager
def stderr_of_children_in(path: Path) -> Iterator[None]:
    """Let processes that are started within (Spark's) write their stderr to a file."""
    kept = os.dup(2)
    with path.open("ab") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
