"""Which keys ``kafkalog run restore --suppress FILE`` names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kafkalog.errors import OptionError
from kafkalog.jobs.restore import _lines

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_keys_are_lines_whatever_editor_wrote_them(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "keys").write_bytes("ann\r\n\r\nbob\r\n".encode(encoding))
    assert _lines(str(tmp_path / "keys")) == {b"ann", b"bob"}


def test_another_encoding_would_match_no_key(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("ann\n", encoding="utf-16")
    with pytest.raises(OptionError, match="is UTF-16"):
        _lines(str(tmp_path / "keys"))
