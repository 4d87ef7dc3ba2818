"""Damage is shown, dropped or cut at by name; the original is kept, and nothing else is lost."""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from crc32c import crc32c
from tests.support.log_files import flip
from tests.support.logs import Row, batch_bytes, write_checkpoint, write_segment
from tests.support.sinking import Writer, rows
from tests.support.states import ends_of
from tests.support.transactions import ABORT, COMMIT, BrokerLog

from kafkalog.checkpoints.broker import (
    CLEAN_SHUTDOWN,
    HIGH_WATERMARK,
    LOG_START_OFFSET,
    RECOVERY_POINT,
    LeaderEpoch,
    read_leader_epochs,
    read_offset_checkpoint,
    write_clean_shutdown_marker,
    write_leader_epochs,
)
from kafkalog.checkpoints.commit_state import UNFINISHED_FOLDER
from kafkalog.checkpoints.state_file import load_state
from kafkalog.errors import OptionError, UnknownTopicOrPartitionError
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.backup import back_up
from kafkalog.streaming.admin.broker.handover import hand_over, take_over, write_meta_properties
from kafkalog.streaming.admin.recovery import recover
from kafkalog.streaming.admin.salvage import KEPT_PREFIX, salvage
from kafkalog.streaming.api import append, read
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.log.read.verification import check_segment
from kafkalog.streaming.log.segment import LogSegment
from kafkalog.streaming.log.segments import list_base_offsets
from kafkalog.streaming.log.swap import rewrite_segment

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

T0 = TopicPartition("t", 0)
BATCHES = 5


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Give a log directory with five batches of two records in one segment of ``t-0``."""
    writer = Writer(tmp_path / "log", topic="t")
    for number in range(BATCHES):
        writer.write(number, rows([f"{number}a", f"{number}b"]))
    return tmp_path / "log"


def segment_of(log: Path, base: int = 0) -> Path:
    return log / "t-0" / f"{base:020d}.log"


def position_of(log: Path, number: int) -> int:
    with LogSegment(log / "t-0", 0) as segment:
        return [header.position for header in segment.headers(0)][number]


def damage(log: Path, number: int) -> int:
    """Flip a bit in the records of a batch; give its position."""
    position = position_of(log, number)
    flip(segment_of(log), position + 65)
    return position


def values(log: Path) -> list[str]:
    return [value.decode() for value in read(str(log), "t").read_all()["value"].to_pylist()]


def offsets(log: Path) -> list[int]:
    return list(read(str(log), "t").read_all()["offset"].to_pylist())


def of(*numbers: int) -> list[str]:
    return [f"{number}{letter}" for number in numbers for letter in "ab"]


def is_sound(log: Path) -> bool:
    with PartitionLog(log / "t-0", T0) as found:
        bases = [segment.base_offset for segment in found.segments]
        return all(
            check_segment(segment, follower).problems == []
            for segment, follower in zip(found.segments, [*bases[1:], None], strict=True)
        )


def write(log: Path, number: int) -> None:
    Writer(log, topic="t").write(number, rows([f"{number}a", f"{number}b"]))


def test_without_a_name_damage_is_shown_and_nothing_changed(log: Path) -> None:
    position = damage(log, 2)
    before = {path: path.read_bytes() for path in log.rglob("*") if path.is_file()}
    (place,) = salvage([str(log)]).places
    assert place.topic_partition == T0
    assert (place.damage.base_offset, place.damage.position) == (0, position)
    assert (place.damage.start, place.damage.end, place.damage.records) == (4, 6, 2)
    assert (place.done, place.kept) == (None, ())
    assert {path: path.read_bytes() for path in log.rglob("*") if path.is_file()} == before
    assert salvage([str(log)], [T0]).places == [place]


@pytest.mark.parametrize("number", range(BATCHES))
@pytest.mark.parametrize("by_position", [False, True])
def test_a_dropped_batch_leaves_a_gap_and_all_others_their_offsets(
    log: Path, number: int, *, by_position: bool
) -> None:
    whole = segment_of(log)
    position = damage(log, number)
    content = whole.read_bytes()
    name = f"t-0/{whole.name}:{position}" if by_position else f"t-0@{2 * number + 1}"
    write_clean_shutdown_marker(log)
    (place,) = salvage([str(log)], drop=[name]).places
    assert (place.done, [path.read_bytes() for path in place.kept]) == ("dropped", [content])
    assert place.kept[0].parent == log
    assert place.kept[0].name.startswith(KEPT_PREFIX)
    left = [each for each in range(BATCHES) if each != number]
    assert values(log) == of(*left)
    assert offsets(log) == [2 * each + half for each in left for half in (0, 1)]
    assert is_sound(log)
    assert not (log / CLEAN_SHUTDOWN).exists()
    assert salvage([str(log)]).places == []
    write(log, BATCHES)
    assert values(log) == of(*left, BATCHES)
    assert offsets(log)[-1] == 2 * BATCHES + 1


@pytest.mark.parametrize("number", range(BATCHES))
def test_a_cut_ends_the_log_there_and_all_that_is_known_of_it(log: Path, number: int) -> None:
    content = segment_of(log).read_bytes()
    damage(log, number)
    (place,) = salvage([str(log)], cut=[f"t-0@{2 * number}"]).places
    assert place.done == "cut"
    assert [len(path.read_bytes()) for path in place.kept] == [len(content)]
    assert values(log) == of(*range(number))
    for name in (HIGH_WATERMARK, RECOVERY_POINT):
        assert read_offset_checkpoint(log, name)[T0] == 2 * number
    state = load_state(log)
    assert state is not None
    assert [ends_of(topic) for topic in state.topics.values()] == [{0: 2 * number}]
    assert is_sound(log)
    write(log, BATCHES)
    assert values(log) == of(*range(number), BATCHES)
    assert offsets(log) == list(range(2 * number + 2))


def test_several_segments(tmp_path: Path) -> None:
    log = tmp_path / "log"
    writer = Writer(log, topic="t", segment__bytes="200")
    for number in range(BATCHES):
        writer.write(number, rows([f"{number}a", f"{number}b"]))
    bases = list_base_offsets(log / "t-0")
    assert len(bases) > 2
    for base in bases[:2]:
        flip(segment_of(log, base), 65)
    write_leader_epochs(log / "t-0", [LeaderEpoch(0, 0), LeaderEpoch(3, 8)])
    places = salvage([str(log)]).places
    assert [place.damage.base_offset for place in places] == bases[:2]
    done = salvage([str(log)], drop=["t-0@0"], cut=[f"t-0@{bases[1]}"])
    assert [place.done for place in done.places] == ["dropped", "cut"]
    assert len(done.places[1].kept) == len(bases) - 1
    assert values(log) == of(*range(1, bases[1] // 2))
    assert read_leader_epochs(log / "t-0") == [LeaderEpoch(0, 0)]
    assert is_sound(log)


def test_valid_batches_are_found_after_bytes_that_tell_no_size(log: Path) -> None:
    position = position_of(log, 1)
    with segment_of(log).open("r+b") as file:
        file.seek(position + 8)
        file.write(b"\xff" * 9)
    (place,) = salvage([str(log)]).places
    assert (place.damage.start, place.damage.end, place.damage.records) == (2, 4, None)
    salvage([str(log)], drop=["t-0@2"])
    assert values(log) == of(0, 2, 3, 4)


def test_a_batch_whose_records_cannot_be_decoded_is_damaged(log: Path) -> None:
    torn = bytearray(batch_bytes(10, [Row(b"x")]))
    torn[61] = 0x7F
    struct.pack_into(">I", torn, 17, crc32c(bytes(torn[21:])))
    with segment_of(log).open("ab") as file:
        file.write(bytes(torn) + batch_bytes(11, [Row(b"y")]))
    (place,) = salvage([str(log)]).places
    assert (place.damage.start, place.damage.end) == (10, 11)


@pytest.mark.parametrize("tail", [b"torn", bytes(100_000), batch_bytes(10, [Row(b"x")])[:-3]])
def test_a_torn_tail_is_no_damage_and_goes_with_what_is_dropped(log: Path, tail: bytes) -> None:
    with segment_of(log).open("ab") as file:
        file.write(tail)
    assert salvage([str(log)]).places == []
    damage(log, 1)
    salvage([str(log)], drop=["t-0@2"])
    assert values(log) == of(0, 2, 3, 4)
    assert is_sound(log)


@pytest.mark.parametrize("choice", ["drop", "cut"])
def test_a_log_that_lacks_its_committed_end(log: Path, choice: str) -> None:
    os.truncate(segment_of(log), position_of(log, 3))
    (place,) = salvage([str(log)]).places
    assert (place.damage.start, place.damage.end, place.damage.size) == (6, 10, 0)
    (place,) = salvage([str(log)], **{choice: ["t-0@6"]}).places
    assert salvage([str(log)]).places == []
    write(log, 5)
    assert values(log) == of(0, 1, 2, 5)
    assert offsets(log)[-2:] == ([10, 11] if choice == "drop" else [6, 7])


def broker_log(folder: Path) -> None:
    batches = b"".join(batch_bytes(n, [Row(str(n).encode())]) for n in range(3))
    write_segment(folder / "t-0", 0, batches)
    write_checkpoint(folder, RECOVERY_POINT, {"t-0": 9, "other-0": 9})


@pytest.mark.parametrize("choice", ["drop", "cut"])
def test_an_old_copy_that_ends_below_a_brokers_high_watermark(tmp_path: Path, choice: str) -> None:
    broker_log(tmp_path)
    assert salvage([str(tmp_path)]).places == []  # a recovery point alone says nothing
    write_checkpoint(tmp_path, HIGH_WATERMARK, {"t-0": 5})
    write_checkpoint(tmp_path, LOG_START_OFFSET, {"t-0": 4})
    (place,) = salvage([str(tmp_path)], **{choice: ["t-0@3"]}).places
    assert (place.damage.start, place.damage.end) == (3, 5)
    with PartitionLog(tmp_path / "t-0", T0) as log:
        assert log.log_end_offset() == (5 if choice == "drop" else 3)
    marks = {name: read_offset_checkpoint(tmp_path, name) for name in (HIGH_WATERMARK,)}
    assert marks[HIGH_WATERMARK] == {T0: 5 if choice == "drop" else 3}
    expected = 4 if choice == "drop" else 3
    assert read_offset_checkpoint(tmp_path, LOG_START_OFFSET) == {T0: expected}
    assert read_offset_checkpoint(tmp_path, RECOVERY_POINT)[TopicPartition("other", 0)] == 9
    assert not list(tmp_path.glob("kafkalog.commit"))


def test_damage_at_the_end_below_the_recovery_point_is_no_torn_tail(tmp_path: Path) -> None:
    broker_log(tmp_path)
    flip(segment_of(tmp_path), segment_of(tmp_path).stat().st_size - 1)
    for point, places in ((3, [(2, 3)]), (2, []), (9, [])):  # no batch reached offset 9
        write_checkpoint(tmp_path, RECOVERY_POINT, {"t-0": point})
        found = salvage([str(tmp_path)]).places
        assert [(place.damage.start, place.damage.end) for place in found] == places


def test_what_was_aborted_stays_so_and_lost_markers_are_said(tmp_path: Path) -> None:
    log = BrokerLog(tmp_path / "t-0")
    for producer, kind in ((1, ABORT), (2, COMMIT), (3, ABORT)):
        log.append(producer)
        log.end(producer, kind)
    log.append(4, transactional=False)
    log.write()
    # The marker of producer 2 is lost, so its transaction is open.
    with LogSegment(tmp_path / "t-0", 0) as segment:
        position = [header.position for header in segment.headers(0)][3]
    flip(segment_of(tmp_path), position + 61)
    done = salvage([str(tmp_path)], drop=["t-0@3"])
    assert "a transaction that began at offset 2 is open now" in done.notes[0]
    index = (tmp_path / "t-0" / f"{0:020d}.txnindex").read_bytes()
    assert len(index) == 2 * 34
    flip(segment_of(tmp_path), 61 + 4)  # records of producer 1
    with LogSegment(tmp_path / "t-0", 0) as segment:
        at = [header.position for header in segment.headers(0)][1]
    flip(segment_of(tmp_path), at + 61)  # and its marker
    salvage([str(tmp_path)], drop=["t-0@0"])
    assert len((tmp_path / "t-0" / f"{0:020d}.txnindex").read_bytes()) == 34


@pytest.mark.parametrize(
    ("drop", "cut", "message"),
    [
        (["t-0@0"], [], "names no damaged place"),
        (["t-0"], [], "names no place in a log"),
        (["t-0@2"], ["t-0@2"], "choose one"),
        (["t-0@2"], [], "cannot be dropped alone"),
        ([], ["t-0@6"], "cannot be cut at"),
        (["t-0@6"], ["t-0@2"], "goes with it"),
    ],
)
def test_what_is_named_wrongly_changes_nothing(
    log: Path, drop: list[str], cut: list[str], message: str
) -> None:
    damage(log, 1)
    damage(log, 3)
    before = {path: path.read_bytes() for path in (log / "t-0").iterdir()}
    with pytest.raises(OptionError, match=message):
        salvage([str(log)], drop=drop, cut=cut)
    assert {path: path.read_bytes() for path in (log / "t-0").iterdir()} == before
    with pytest.raises(UnknownTopicOrPartitionError):
        salvage([str(log)], [TopicPartition("t", 7)])


def test_two_places_of_a_segment_are_dropped_together(log: Path) -> None:
    damage(log, 1)
    damage(log, 3)
    done = salvage([str(log)], drop=["t-0@2", "t-0@7"]).places
    assert [place.done for place in done] == ["dropped", "dropped"]
    assert values(log) == of(0, 2, 4)


def test_until_a_salvage_that_was_cut_off_is_run_again_nobody_lets_a_broker_in(
    log: Path, tmp_path: Path
) -> None:
    position = damage(log, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kafkalog.streaming.admin.salvage.rewrite_segment", _fail)
        with pytest.raises(OSError, match="full"):
            salvage([str(log)], drop=[f"t-0/{0:020d}.log:{position}"])
    write(log, BATCHES)
    back_up([str(log)], str(tmp_path / "copy"))
    for folder in (log, tmp_path / "copy"):
        for act in (recover, hand_over, take_over):
            (problem,) = (each for each in act([str(folder)]).problems if "salvage" in each)
            assert f"{folder}: a salvage was cut off (--drop t-0/" in problem
            assert (folder / UNFINISHED_FOLDER).is_dir()
        assert not (folder / CLEAN_SHUTDOWN).exists()
        salvage([str(folder)], drop=["t-0@2"])
        assert not (folder / UNFINISHED_FOLDER).exists()
        assert recover([str(folder)]).problems == []
        assert values(folder) == of(0, 2, 3, 4, 5)


def test_a_salvage_of_several_places_that_did_some_of_them_is_run_again_as_it_was(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    writer = Writer(log, topic="t", segment__bytes="200")
    for number in range(BATCHES):
        writer.write(number, rows([f"{number}a", f"{number}b"]))
    bases = list_base_offsets(log / "t-0")[:2]
    for base in bases:
        flip(segment_of(log, base), 65)
    named = [f"t-0@{base}" for base in bases]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kafkalog.streaming.admin.salvage.rewrite_segment", _fail_from(bases[1]))
        with pytest.raises(OSError, match="full"):
            salvage([str(log)], drop=named)
    with pytest.raises(OptionError, match="names no place"):
        salvage([str(log)], drop=["nonsense"])
    done = salvage([str(log)], drop=named)
    assert [place.done for place in done.places] == ["dropped"]
    assert done.notes == [f"{named[0]}: nothing is damaged there any more"]
    assert values(log) == of(*(n for n in range(BATCHES) if 2 * n not in bases))
    assert not (log / UNFINISHED_FOLDER).exists()


def _fail_from(base_offset: int) -> Callable[..., None]:
    def rewrite(folder: Path, base: int, *arguments: Any, **named: Any) -> None:
        if base >= base_offset:
            _fail()
        rewrite_segment(folder, base, *arguments, **named)

    return rewrite


def _fail(*_: object, **__: object) -> None:
    raise OSError(28, "the disk is full")


def epochs_in(log: Path) -> list[int]:
    """Return the leader epochs in the batches, each once."""
    with LogSegment(log / "t-0", 0) as segment:
        tables = [chunk.table for chunk in segment.chunks(0)]
    return sorted({int(each) for table in tables for each in table.leader_epoch})


def test_a_cut_raises_the_leader_epoch_and_a_handover_sets_it_down(log: Path) -> None:
    damage(log, 3)
    salvage([str(log)], cut=["t-0@6"])
    writer = Writer(log, topic="t", name="after")
    writer.write(0, rows(["new"]))
    writer.write(1, rows(["newer"]))
    assert read_leader_epochs(log / "t-0") == [LeaderEpoch(0, 0), LeaderEpoch(1, 6)]
    assert epochs_in(log) == [0, 1]
    said = "t-0: leader epochs above 0 are set down to 0"
    assert said in hand_over([str(log)], dry_run=True).written
    assert epochs_in(log) == [0, 1]
    assert said in hand_over([str(log)]).written
    assert read_leader_epochs(log / "t-0") == [LeaderEpoch(0, 0)]
    assert epochs_in(log) == [0]
    assert said not in hand_over([str(log)]).written
    assert values(log) == [*of(0, 1, 2), "new", "newer"]
    writer.write(2, rows(["newest"]))
    assert epochs_in(log) == [0]


def test_each_cut_raises_the_leader_epoch_though_nothing_was_written_in_between(log: Path) -> None:
    for number, epoch in ((3, 1), (2, 2)):
        damage(log, number)
        salvage([str(log)], cut=[f"t-0@{2 * number}"])
        state = load_state(log)
        assert state is not None
        (topic,) = state.topics.values()
        assert topic.partitions[0].leader_epoch == epoch
        assert topic.cluster_epochs == {0: 0}


def test_where_a_broker_lived_a_cut_leaves_the_leader_epoch_as_its_cluster_knows_it(
    log: Path,
) -> None:
    write_meta_properties(log, "cluster", 1)
    damage(log, 3)
    salvage([str(log)], cut=["t-0@6"])
    Writer(log, topic="t", name="after", allowBrokerDirectory="true").write(0, rows(["new"]))
    assert read_leader_epochs(log / "t-0") == [LeaderEpoch(0, 0)]
    assert epochs_in(log) == [0]


def test_a_search_by_time_passes_over_a_segment_of_which_nothing_is_left(tmp_path: Path) -> None:
    begin = 1_700_000_000_000
    for number in range(4):
        rows = pa.table({"value": [f"{number}"], "timestamp": [begin + 1000 * number]})
        options = {"segment.bytes": "80", "segment.ms": str(10**15), "retention.ms": "-1"}
        append(tmp_path, "t", rows, options=options)
    path = segment_of(tmp_path, 1)
    path.write_bytes(b"\xff" * path.stat().st_size)
    salvage([str(tmp_path)], drop=["t-0@1"])
    assert path.stat().st_size == 0
    for strategy in ("latest", "error"):
        found = read(
            tmp_path,
            "t",
            options={
                "startingTimestamp": str(begin + 2000),
                "startingOffsetsByTimestampStrategy": strategy,
            },
        ).read_all()
        assert found.column("offset").to_pylist() == [2, 3]
    before = read(tmp_path, "t", options={"endingTimestamp": str(begin + 2000)}).read_all()
    assert before.column("offset").to_pylist() == [0]
