"""A view is refused where a broker's cleaner may be ahead of what is known to be committed."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
from tests.support.logs import Row, batch_bytes, write_checkpoint, write_segment
from tests.support.newest import latest_of

import kafkalog
from kafkalog.checkpoints.broker import CLEANER_OFFSET, HIGH_WATERMARK
from kafkalog.errors import DataLossError
from kafkalog.streaming.source import batch_plan as compacted_beyond

if TYPE_CHECKING:
    from pathlib import Path

CLEANED_TOO_FAR = r"a cleaner has compacted up to 10, .*read again"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Give a broker's t-0 of segments at 0, 5 and 10, with five rows each; 7 are committed."""
    for base in (0, 5, 10):
        rows = [Row(b"v", b"k%d" % (base + number)) for number in range(5)]
        write_segment(tmp_path / "t-0", base, batch_bytes(base, rows))
    committed(tmp_path, 7)
    return tmp_path


def committed(log: Path, offset: int) -> None:
    write_checkpoint(log, HIGH_WATERMARK, {"t-0": offset})


def keys(log: Path, **options: str) -> int:
    return len(latest_of(path=str(log), subscribe="t", **options))


def test_a_cleaner_that_is_ahead_of_what_is_known_to_be_committed(log: Path) -> None:
    write_checkpoint(log, CLEANER_OFFSET, {"t-0": 10})
    with pytest.raises(DataLossError, match=CLEANED_TOO_FAR):
        keys(log)
    with pytest.raises(DataLossError, match=CLEANED_TOO_FAR):
        kafkalog.get(log, "t", b"k2")
    committed(log, 10)
    assert keys(log) == 10


def test_a_view_as_of_an_offset_is_what_compaction_has_left(log: Path) -> None:
    write_checkpoint(log, CLEANER_OFFSET, {"t-0": 10})
    assert keys(log, endingOffsets='{"t": {"0": 6}}') == 6
    assert len(kafkalog.read(log, "t").read_all()) == 7


def test_a_cleaner_that_looked_no_further_is_nothing(log: Path) -> None:
    write_checkpoint(log, CLEANER_OFFSET, {"t-0": 7})
    assert keys(log) == 7


@pytest.mark.parametrize("suffix", [".deleted", ".swap", ".cleaned"])
def test_a_cleaner_amid_its_work_has_not_said_yet_how_far_it_looks(log: Path, suffix: str) -> None:
    folder = log / "t-0"
    replaced = (folder / f"{0:020d}.log").read_bytes()
    (folder / f"{0:020d}.log{suffix}").write_bytes(replaced)
    with pytest.raises(DataLossError, match=f"a cleaner replaced .*{suffix} since.*read again"):
        keys(log)


def test_what_was_replaced_before_the_end_was_known_is_nothing(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compacted_beyond, "_DECIDED_NS", -60_000_000_000)
    (log / "t-0" / f"{0:020d}.log.deleted").touch()
    assert keys(log) == 7


def test_what_retention_or_a_later_roll_renamed_is_nothing(log: Path) -> None:
    for base in (10, 15):
        (log / "t-0" / f"{base:020d}.log.deleted").touch()
    (log / "t-0" / f"{0:020d}.index.deleted").touch()
    assert keys(log) == 7


def test_without_fail_on_data_loss_it_is_a_warning(
    log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_checkpoint(log, CLEANER_OFFSET, {"t-0": 10})
    with caplog.at_level(logging.WARNING):
        assert keys(log, failOnDataLoss="false") == 7
    assert "a cleaner has compacted up to 10" in caplog.text
