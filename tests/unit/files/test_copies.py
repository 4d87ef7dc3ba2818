"""Bytes are copied between open files, by the kernel where it can."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from kafkalog.files.regular import copy_range

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("has_call", [True, False], ids=["with the call", "without"])
def test_a_range_is_copied_whether_or_not_the_system_has_a_call_for_it(
    has_call: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_call:
        monkeypatch.delattr(os, "copy_file_range")  # macOS has none
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"0123456789")
    target.write_bytes(b"ab")
    with source.open("rb") as reader, target.open("r+b") as writer:
        assert copy_range(reader.fileno(), 3, 100, writer.fileno(), 2) == 7
    assert target.read_bytes() == b"ab3456789"
