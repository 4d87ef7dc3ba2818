"""Whether a position belongs to the history of its log, by the last batch below it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.compacting import compacted, updates, writer
from tests.support.logs import Row, batch_bytes, write_segment
from tests.support.message_sets import message
from tests.support.record_batches import patched
from tests.support.sinking import Writer, rows

from kafkalog.checkpoints.broker import LEADER_EPOCHS, LeaderEpoch, write_leader_epochs
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.retention import retain
from kafkalog.streaming.log.history import LastBatch, find_divergence, find_last_batch
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.records.batch_layout import DELETE_HORIZON_MASK

if TYPE_CHECKING:
    from pathlib import Path

    from kafkalog.streaming.log.history import Divergence

T0 = TopicPartition("t", 0)


def batch(offset: int, count: int, word: str, **named: Any) -> bytes:
    return batch_bytes(offset, [Row(word.encode())] * count, **named)


OLD = [batch(0, 5, "a"), batch(5, 5, "b"), batch(10, 5, "c")]


def noted(folder: Path, position: int) -> LastBatch | None:
    with PartitionLog(folder, T0) as log:
        return find_last_batch(log, position)


def divergence(folder: Path, position: int, known: LastBatch | None) -> Divergence | None:
    assert known is not None
    with PartitionLog(folder, T0) as log:
        return find_divergence(log, position, known)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_segment(tmp_path / "t-0", 0, b"".join(OLD))
    return tmp_path / "t-0"


def wrote(folder: Path, *batches: bytes, base: int = 0) -> None:
    for path in folder.glob("*.log"):
        path.unlink()
    write_segment(folder, base, b"".join(batches))


def test_the_last_batch_lies_below_the_position_or_holds_it(folder: Path) -> None:
    found = {position: noted(folder, position) for position in range(16)}
    assert found.pop(0) is None
    assert {at: each and each.offset for at, each in found.items()} == {
        **dict.fromkeys(range(1, 6), 0),
        **dict.fromkeys(range(6, 11), 5),
        **dict.fromkeys(range(11, 16), 10),
    }
    assert all(divergence(folder, at, each) is None for at, each in found.items())


def test_a_position_above_the_end_of_a_log_has_no_last_batch_yet(folder: Path) -> None:
    assert noted(folder, 15) is not None
    assert noted(folder, 16) is None
    write_segment(folder, 20, b"")
    assert noted(folder, 16) is not None  # a cleaner removed what was there


def test_a_last_batch_is_the_same_after_it_was_kept_as_text(folder: Path) -> None:
    known = noted(folder, 12)
    assert known is not None
    assert LastBatch.from_text(known.to_text()) == known
    assert LastBatch.from_text("a client's own words") is None


@pytest.mark.parametrize(
    ("now", "is_other"),
    [
        pytest.param([*OLD, batch(15, 5, "d")], False, id="it has grown"),
        pytest.param([*OLD[:2], batch(10, 5, "x")], True, id="another batch at its offset"),
        pytest.param([*OLD[:2], batch(10, 3, "c"), batch(13, 9, "d")], True, id="a shorter one"),
        pytest.param([OLD[0], batch(5, 10, "x")], True, id="a longer one that overlaps it"),
        pytest.param([OLD[0], batch(5, 3, "x"), batch(8, 9, "x")], True, id="one across it"),
        pytest.param([*OLD[:2], batch(15, 5, "d")], False, id="a cleaner removed it"),
        pytest.param(OLD[:2], True, id="it was cut off"),
        pytest.param([batch(15, 5, "d")], False, id="retention removed all"),
        pytest.param(
            [*OLD[:2], batch(10, 2, "c", deltas=(1, 4))], False, id="a cleaner removed records"
        ),
        pytest.param(
            [*OLD[:2], batch(10, 5, "c", attributes=DELETE_HORIZON_MASK)],
            False,
            id="a cleaner noted when to delete markers",
        ),
        pytest.param(
            [
                *OLD[:2],
                batch_bytes(10, [Row(b"x", timestamp=1_800_000_000_000)] * 2, deltas=(1, 4)),
            ],
            True,
            id="fewer records of a later time",
        ),
    ],
)
def test_a_history_is_told_by_the_last_batch(
    folder: Path, now: list[bytes], *, is_other: bool
) -> None:
    known = noted(folder, 15)
    wrote(folder, *now)
    assert (divergence(folder, 15, known) is not None) is is_other


def test_a_replica_at_which_no_cleaner_has_been_has_the_same_history(folder: Path) -> None:
    """Brokers compact their replicas each by itself, and a reader may be sent to another one."""
    cleaned = [OLD[0], batch(10, 2, "c", deltas=(1, 4))], [OLD[0]]
    for batches in cleaned:
        wrote(folder, *batches)
        write_segment(folder, 15, b"")
        known = noted(folder, 15)
        (folder / f"{15:020d}.log").unlink()
        wrote(folder, *OLD)
        assert divergence(folder, 15, known) is None


def test_a_batch_above_the_known_one_is_of_its_history_only_if_what_is_at_its_place_is(
    folder: Path,
) -> None:
    """Else a log that was cut, and got smaller batches, would be taken for one not cleaned."""
    wrote(folder, *OLD[:2], batch(10, 2, "c", deltas=(1, 2)), batch(15, 1, "d"))
    known = noted(folder, 15)
    wrote(folder, *OLD[:2], batch(10, 2, "x"), batch(12, 1, "x"), batch(13, 2, "y"))
    assert divergence(folder, 15, known) is not None
    wrote(folder, *OLD[:2], batch(10, 2, "c", deltas=(1, 2)), batch(13, 2, "d"))
    assert divergence(folder, 15, known) is None


def test_a_position_in_the_middle_of_a_batch_belongs_to_that_batch(folder: Path) -> None:
    known = noted(folder, 12)
    wrote(folder, *OLD[:2], batch(10, 5, "x"))
    found = divergence(folder, 12, known)
    assert str(found).startswith("12, below which the batch at offset 10 (CRC ")


def test_damage_below_a_position_is_no_change_of_history(folder: Path) -> None:
    known = noted(folder, 15)
    (log,) = folder.glob("*.log")
    position = len(OLD[0])
    log.write_bytes(patched(log.read_bytes(), position + 8, b"\xff\xff\xff\xff"))
    assert divergence(folder, 15, known) is None


def test_a_log_that_was_cut_to_a_new_segment_is_told_by_the_batch_before(folder: Path) -> None:
    """Retention rolls: the active segment is empty, and the last batch lies in the one before."""
    known = noted(folder, 15)
    write_segment(folder, 15, b"")
    assert noted(folder, 15) == known
    assert divergence(folder, 15, known) is None
    wrote(folder, *OLD[:2])
    write_segment(folder, 15, b"")
    assert divergence(folder, 15, known) is None  # a cleaner removed it: no offset was given again


@pytest.mark.parametrize(
    ("epochs", "cut_at"),
    [
        ([LeaderEpoch(0, 0)], None),
        ([LeaderEpoch(0, 0), LeaderEpoch(1, 15)], None),
        ([LeaderEpoch(0, 0), LeaderEpoch(3, 10)], 10),
        ([LeaderEpoch(0, 0), LeaderEpoch(1, 7), LeaderEpoch(2, 12)], 7),
        ([], None),
    ],
)
def test_a_later_leader_epoch_at_or_below_the_batch_tells_a_cut_though_it_was_compacted(
    folder: Path, epochs: list[LeaderEpoch], cut_at: int | None
) -> None:
    known = noted(folder, 15)
    wrote(folder, *OLD[:2], batch(15, 5, "d"))
    write_leader_epochs(folder, epochs)
    found = divergence(folder, 15, known)
    assert (found and found.cut_at) == cut_at


def test_the_epoch_that_a_client_has_committed_tells_what_was_cut(folder: Path) -> None:
    known = LastBatch.from_epoch(15, 4)
    for start, is_other in ((15, False), (14, True)):
        write_leader_epochs(folder, [LeaderEpoch(4, 0), LeaderEpoch(6, start)])
        assert (divergence(folder, 15, known) is not None) is is_other
    write_leader_epochs(folder, [LeaderEpoch(2, 0)])  # it was set down, as at a handover
    assert divergence(folder, 15, known) is None


def test_damaged_leader_epochs_leave_it_to_the_batches(folder: Path) -> None:
    known = noted(folder, 15)
    (folder / LEADER_EPOCHS).write_text("garbage")
    assert divergence(folder, 15, known) is None
    wrote(folder, *OLD[:2], batch(10, 5, "x"))
    assert divergence(folder, 15, known) is not None


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_of_old_magics_tell_it_too(tmp_path: Path, magic: int) -> None:
    folder = tmp_path / "t-0"

    def wrote_messages(words: str) -> None:
        messages = [message(at, None, word.encode(), magic=magic) for at, word in enumerate(words)]
        wrote(folder, *messages)

    folder.mkdir()
    wrote_messages("abcdef")
    known = noted(folder, 4)
    wrote_messages("abcdxyz")
    assert divergence(folder, 4, known) is None
    wrote_messages("abcxyz")
    assert divergence(folder, 4, known) is not None


# What happens to logs in normal life


def all_noted(folder: Path, end: int) -> dict[int, LastBatch]:
    found = {position: noted(folder, position) for position in range(1, end + 1)}
    return {position: each for position, each in found.items() if each is not None}


def test_compaction_changes_no_history(tmp_path: Path) -> None:
    into = writer(tmp_path)
    words = itertools.cycle("abcde")
    updates(into, [{next(words): str(n), f"only{n}": "x", "k": str(n)} for n in range(12)])
    folder = tmp_path / "t-0"
    known = all_noted(folder, 36)
    for turn in range(3):
        compacted(tmp_path)
        updates(into, [{"a": None, "b": "again", "k": "more"}] * 2, first=12 + 2 * turn)
        assert all(divergence(folder, at, each) is None for at, each in known.items())


def test_retention_and_rolls_and_other_formats_change_no_history(tmp_path: Path) -> None:
    settings = {"segment__bytes": "200", "retention__bytes": "600", "topic": "t"}
    into = Writer(tmp_path, **settings)
    for number in range(9):
        into.write(number, rows([f"{number}{letter}" for letter in "abc"]))
    folder = tmp_path / "t-0"
    known = all_noted(folder, 27)
    old = Writer(tmp_path, name="old", message__format="v1", **settings)
    old.write(0, rows(["d", "e"]))
    retain([str(tmp_path)])
    assert len(all_noted(folder, 27)) < len(known)
    assert all(divergence(folder, at, each) is None for at, each in known.items())
