"""What a compaction that was killed leaves in a folder is ended by whoever works there next."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.log_files import swap_is_unfinished
from tests.support.sinking import Writer, rows, values_of

from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.recovery import recover
from kafkalog.streaming.admin.retention import delete_records, retain
from kafkalog.streaming.log.segments import list_base_offsets

if TYPE_CHECKING:
    from pathlib import Path

T0 = TopicPartition("t", 0)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Give a log of three segments, of which the first was about to be replaced by its like."""
    writer = Writer(tmp_path, topic="t", segment__bytes="80", retention__bytes="100")
    for number, text in enumerate("abc"):
        writer.write(number, rows([text], timestamps=[number]))
    folder = tmp_path / "t-0"
    for path in folder.glob(f"{0:020d}.*"):
        (folder / (path.name + ".swap")).write_bytes(path.read_bytes())
        path.rename(folder / (path.name + ".deleted"))
    assert list_base_offsets(folder) == [1, 2]
    return tmp_path


def is_unfinished(log: Path) -> bool:
    return swap_is_unfinished(log / "t-0")


def test_recovery_ends_it(log: Path) -> None:
    recover([str(log)], dry_run=True)
    assert is_unfinished(log)
    assert recover([str(log)]).problems == []
    assert not is_unfinished(log)
    assert values_of([log], "t") == {0: ["a", "b", "c"]}


def test_retention_ends_it_and_deletes_what_came_into_its_place(log: Path) -> None:
    planned = retain([str(log)], dry_run=True)
    assert is_unfinished(log)
    done = retain([str(log)])
    assert done.problems == planned.problems == []
    assert done.partitions == planned.partitions
    assert done.partitions[0].segments == (0,)
    assert list_base_offsets(log / "t-0") == [1, 2]
    assert not is_unfinished(log)


def test_delete_records_ends_it(log: Path) -> None:
    assert delete_records([str(log)], {T0: 2}).problems == []
    assert list_base_offsets(log / "t-0") == [2]
    assert not is_unfinished(log)


def test_a_writer_need_not_wait_for_its_end(log: Path) -> None:
    Writer(log, topic="t", segment__bytes="80").write(3, rows(["d"]))
    assert is_unfinished(log)
    assert values_of([log], "t") == {0: [*"abcd"]}
