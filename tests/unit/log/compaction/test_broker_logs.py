"""Logs that a real broker wrote, and its cleaner cleaned."""

from __future__ import annotations

import tarfile
from typing import TYPE_CHECKING

import pytest
from tests.support.cleaning import CleanableLog
from tests.support.corpus import CORPUS

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compacted")
    with tarfile.open(CORPUS / "p07-compacted" / "logdir.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return next(folder.rglob("cleaner-offset-checkpoint")).parent


@pytest.mark.parametrize("topic", ["compact-none", "compact-zstd", "compact-gone"])
def test_what_a_broker_has_cleaned_stays_byte_for_byte(root: Path, topic: str) -> None:
    log = CleanableLog(root / f"{topic}-0", now=0)  # before any tombstone's time
    logs = sorted(log.folder.glob("*.log"))
    before = b"".join(path.read_bytes() for path in logs[:-1])
    assert before
    result = log.clean()
    assert result.is_complete
    (group,) = result.groups
    assert len(group.sources) == len(logs) - 1
    assert (log.folder / logs[0].name).read_bytes() == before


def test_after_its_time_a_brokers_tombstones_go(root: Path, tmp_path: Path) -> None:
    log = CleanableLog(tmp_path / "t-0", now=1 << 50)
    log.folder.mkdir()
    for path in (root / "compact-none-0").iterdir():
        (log.folder / path.name).write_bytes(path.read_bytes())
    before, end = log.records(), log.cleanable().end_offset
    tombstones = {offset for offset, (_, value) in before.items() if value is None}
    assert any(offset < end for offset in tombstones)
    log.clean()
    assert list(log.records()) == [
        offset for offset in before if offset >= end or offset not in tombstones
    ]
