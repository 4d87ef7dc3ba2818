"""What is said of a log that a broker writes at this moment."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.logs import Row, batch_bytes, write_checkpoint, write_segment
from typer.testing import CliRunner

from kafkalog.checkpoints.broker import HIGH_WATERMARK
from kafkalog.jobs.cli.app import app
from kafkalog.jobs.inspection import batches as batch_rows

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Give t-0 of a broker that has noted nothing as committed yet, and half a batch at its end."""
    (tmp_path / "t-0").mkdir()
    torn = batch_bytes(0, [Row(b"a")]) + batch_bytes(1, [Row(b"b")])[:-3]
    write_segment(tmp_path / "t-0", 0, torn)
    write_checkpoint(tmp_path, HIGH_WATERMARK, {"t-0": 0})
    return tmp_path


def test_records_that_no_file_calls_committed_yet_come_in_seconds(
    log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    CliRunner().invoke(app, ["dump", str(log), "--topic", "t", "--records"])
    assert "A broker that runs notes every 5 s what is committed: look again then" in caplog.text


def test_a_batch_that_is_being_written_is_told_from_damage(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def verified() -> str:
        result = CliRunner().invoke(app, ["verify", str(log)])
        assert result.exit_code == 1
        return result.stdout

    assert "if a broker writes it" not in verified()
    original = batch_rows.check_segment

    def check(segment: Any, follower: int | None, **options: Any) -> Any:
        found = original(segment, follower, **options)
        with segment.path.open("ab") as file:
            file.write(b"x")
        return found

    monkeypatch.setattr(batch_rows, "check_segment", check)
    assert "if a broker writes it at this moment, look again" in verified()
