"""What tests that kill processes share."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def folder() -> Iterator[Path]:
    """Give a folder in memory where there is one: a killed process loses nothing there either."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None, prefix="kills-") as name:
        yield Path(name)
