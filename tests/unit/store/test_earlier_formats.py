"""Sets of log directories that were written before the present format of the commit state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.support.earlier_formats import SETS, EarlierSet, values_of
from tests.support.sinking import rows

import kafkalog
from kafkalog.checkpoints.commit_state import INTENT_FILE, UNFINISHED_FOLDER
from kafkalog.errors import BatchIdentityError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", SETS)
def test_a_set_of_format_1_is_read(name: str, tmp_path: Path) -> None:
    found = EarlierSet.unpacked(name, tmp_path)
    assert found.read() == found.rows


@pytest.mark.parametrize("name", SETS)
def test_a_set_of_format_1_is_written_on(name: str, tmp_path: Path) -> None:
    found = EarlierSet.unpacked(name, tmp_path)
    new: list[str] = []
    for batch_id in (found.next_batch, found.next_batch + 1):
        new += found.write(batch_id)
        now = found.read()
        for topic, partitions in found.rows.items():
            for number, before in partitions.items():
                assert now[topic][number][: len(before)] == before
        assert values_of(now) == sorted([*values_of(found.rows), *new])
    for folder in found.directories:
        assert not (folder / INTENT_FILE).exists()
        assert not (folder / UNFINISHED_FOLDER).exists()


@pytest.mark.parametrize("name", SETS)
def test_the_last_batch_of_a_set_of_format_1_is_known_again(name: str, tmp_path: Path) -> None:
    found = EarlierSet.unpacked(name, tmp_path)
    found.write(found.next_batch - 1)
    assert found.read() == found.rows


def test_who_wrote_to_a_set_of_format_1_is_remembered(tmp_path: Path) -> None:
    found = EarlierSet.unpacked("plain", tmp_path)
    (folder,) = map(str, found.directories)
    again = pa.table({"value": [f"12/0/{number}" for number in range(3)]})
    outcome = kafkalog.append(folder, "weather", again, transactional_id="nightly", version=2)
    assert not outcome.appended
    other = pa.table({"value": ["other"]})
    with pytest.raises(BatchIdentityError, match="other rows"):
        kafkalog.append(folder, "weather", other, transactional_id="nightly", version=2)
    hourly = found.writer(topic="flights")
    hourly.name = "hourly"
    assert not hourly.write(0, rows(["20/0/0", "20/0/1"])).appended
    assert found.read() == found.rows
