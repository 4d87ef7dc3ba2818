from __future__ import annotations

import logging
import os
import re
import shutil
import struct
from typing import TYPE_CHECKING

import pytest
from crc32c import crc32c
from tests.support.logs import Row, batch_bytes
from tests.support.message_sets import message
from tests.support.read_bytes import ReadBytes
from tests.support.sinking import Writer, rows, values_of
from tests.support.states import ends_of

from kafkalog.checkpoints.broker import (
    HIGH_WATERMARK,
    META_PROPERTIES,
    RECOVERY_POINT,
    write_offset_checkpoint,
)
from kafkalog.checkpoints.commit_state import STATE_FILE
from kafkalog.checkpoints.state_file import load_state
from kafkalog.errors import CommitError, CorruptRecordError, LogDirectoryError
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.broker.handover import hand_over, take_over
from kafkalog.streaming.admin.recovery import recover

if TYPE_CHECKING:
    from pathlib import Path

TRANSACTIONAL = 0x10


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Give the one segment of a partition with two committed records."""
    Writer(tmp_path, topic="t").write(0, rows(["a", "b"]))
    return tmp_path / "t-0" / f"{0:020d}.log"


def append(log: Path, data: bytes) -> None:
    with log.open("ab") as file:
        file.write(data)


def go_on(log: Path) -> dict[int, list[str]]:
    directory = log.parent.parent
    Writer(directory, topic="t", allowBrokerDirectory="true").write(1, rows(["c"]))
    return values_of([directory], "t")


def broker_lived(log: Path, **offsets: int) -> None:
    """Leave what a broker does: ``high_watermark``, ``recovery_point``."""
    directory = log.parent.parent
    (directory / META_PROPERTIES).write_text("version=1\nnode.id=1\ncluster.id=x\n")
    files = {"high_watermark": HIGH_WATERMARK, "recovery_point": RECOVERY_POINT}
    for name, offset in offsets.items():
        write_offset_checkpoint(directory, files[name], {TopicPartition("t", 0): offset})


def batch_of(base_offset: int, count: int, *, damaged: bool = False) -> bytes:
    data = bytearray(batch_bytes(base_offset, [Row(b"foreign")] * count))
    data[-1] ^= damaged
    return bytes(data)


def check_all_refuse(log: Path, message: str) -> None:
    """Neither a writer nor an operator's command may change the log."""
    before = log.read_bytes()
    with pytest.raises(CommitError, match=message):
        go_on(log)
    for act in (recover, hand_over, take_over):
        done = act([str(log.parent.parent)])
        assert len(done.problems) == 1
        assert re.search(message, done.problems[0])
    assert log.read_bytes() == before
    state = load_state(log.parent.parent)
    assert state is not None
    assert [ends_of(topic) for topic in state.topics.values()] == [{0: 2}]


def of_producer(batch: bytes, producer_id: int) -> bytes:
    changed = bytearray(batch)
    struct.pack_into(">qhi", changed, 43, producer_id, 0, 0)
    struct.pack_into(">I", changed, 17, crc32c(bytes(changed[21:])))
    return bytes(changed)


@pytest.mark.parametrize("cut", [1, 17, 60, 65])
def test_a_torn_batch_above_the_committed_end_is_cut_off(
    log: Path, cut: int, caplog: pytest.LogCaptureFixture
) -> None:
    append(log, batch_bytes(2, [Row(b"torn")])[:cut])
    with caplog.at_level(logging.WARNING, "kafkalog.sink"):
        assert go_on(log) == {0: ["a", "b", "c"]}
    assert f"{cut} bytes of a torn batch go" in caplog.text


def test_the_zeros_of_a_preallocated_segment_are_cut_off(
    log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    append(log, bytes(3_000_000))
    assert go_on(log) == {0: ["a", "b", "c"]}
    assert "3000000 zero bytes go that a broker has set aside (preallocate=true)" in caplog.text
    assert "torn" not in caplog.text


def with_hole(log: Path, tail: bytes) -> None:
    """Let a file have a GiB behind its batches that was never stored, and bytes behind that."""
    os.truncate(log, log.stat().st_size + (1 << 30))
    append(log, tail)


def test_a_hole_behind_the_log_is_not_read(log: Path) -> None:
    with_hole(log, b"")
    with ReadBytes() as read:
        assert values_of([log.parent.parent], "t") == {0: ["a", "b"]}
        assert go_on(log) == {0: ["a", "b", "c"]}
    assert read.count < 1 << 27


def test_a_hole_and_bytes_behind_it_that_are_no_batch_are_cut_off_unread(log: Path) -> None:
    with_hole(log, b"\1")
    with ReadBytes() as read:
        assert go_on(log) == {0: ["a", "b", "c"]}
    assert read.count < 1 << 27


def test_a_batch_behind_a_hole_is_found_though_its_offset_begins_in_it(log: Path) -> None:
    with_hole(log, batch_bytes(2, [Row(b"valid")])[7:])
    with pytest.raises(LogDirectoryError, match="damaged in its middle"):
        go_on(log)


def test_what_a_broker_appended_whole_is_kept_and_appended_after(log: Path) -> None:
    broker_lived(log)
    append(log, batch_bytes(2, [Row(b"foreign")]) + batch_bytes(3, [Row(b"torn")])[:-1])
    assert go_on(log) == {0: ["a", "b", "foreign", "c"]}


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_damage_with_a_valid_batch_behind_it_is_no_torn_tail(log: Path, magic: int) -> None:
    damaged = bytearray(batch_bytes(2, [Row(b"damaged")]))
    damaged[-1] ^= 1
    valid = batch_bytes(3, [Row(b"valid")]) if magic == 2 else message(3, None, b"v", magic=magic)
    append(log, bytes(damaged) + valid)
    before = log.read_bytes()
    with pytest.raises(LogDirectoryError, match="damaged in its middle"):
        go_on(log)
    assert log.read_bytes() == before


def test_damage_below_the_committed_end_is_never_cut_off(log: Path) -> None:
    damaged = bytearray(log.read_bytes())
    damaged[-1] ^= 1
    log.write_bytes(damaged)
    with pytest.raises((CommitError, CorruptRecordError), match="committed records are damaged"):
        go_on(log)
    assert log.read_bytes() == bytes(damaged)


@pytest.mark.parametrize("mark", ["high_watermark", "recovery_point"])
def test_what_was_acknowledged_or_flushed_is_never_cut_off(log: Path, mark: str) -> None:
    broker_lived(log, **{mark: 12})
    append(log, batch_of(2, 10, damaged=True))
    name = mark.replace("_", " ")
    check_all_refuse(log, f"whole up to offset 2 only, and the {name} .* is 12.*kafkalog salvage")


@pytest.mark.parametrize(
    "rest",
    [
        batch_of(12, 10, damaged=True),
        batch_of(12, 10)[:-5],
        b"\xff" * 100,
        batch_of(12, 10, damaged=True) + b"\xff" * 100,
    ],
    ids=["another damaged batch", "a torn one", "bytes that say nothing", "both"],
)
def test_bytes_that_may_reach_to_the_recovery_point_are_not_cut_off(log: Path, rest: bytes) -> None:
    broker_lived(log, recovery_point=20)
    append(log, batch_of(2, 10, damaged=True) + rest)
    check_all_refuse(log, "the recovery point .* is 20")


@pytest.mark.parametrize("point", [1, 2])
def test_a_torn_tail_above_all_marks_is_cut_off_where_a_broker_lived(log: Path, point: int) -> None:
    broker_lived(log, high_watermark=2, recovery_point=point)
    append(log, batch_of(2, 10)[:-5])
    assert go_on(log) == {0: ["a", "b", "c"]}


@pytest.mark.parametrize(
    "tail", [b"", batch_of(2, 10)[:-5], batch_of(2, 10)[:20], bytes(1000)], ids=len
)
def test_a_recovery_point_above_the_end_of_the_log_counts_as_none(log: Path, tail: bytes) -> None:
    broker_lived(log, recovery_point=500)
    append(log, tail)
    assert go_on(log) == {0: ["a", "b", "c"]}


def test_a_log_that_ends_below_the_high_watermark_is_not_appended_to(
    log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broker_lived(log, high_watermark=5)
    directory = log.parent.parent
    with pytest.raises(CommitError, match=r"older than what was .*offsets 2 to 4 are lost"):
        go_on(log)
    (problem,) = recover([str(directory)]).problems
    assert "kafkalog broker takeover" in problem
    with caplog.at_level(logging.WARNING, "kafkalog.sink"):
        assert take_over([str(directory)]).problems == []
    assert "offsets 2 to 4 were acknowledged and are lost" in caplog.text
    assert go_on(log) == {0: ["a", "b", "c"]}


@pytest.mark.parametrize("torn", [0, 5])
def test_batches_that_nobody_can_have_appended_are_not_appended_after(log: Path, torn: int) -> None:
    append(log, batch_of(2, 3) + batch_of(5, 1)[:torn])
    before = log.read_bytes()
    with pytest.raises(CommitError, match=r"offsets 2 to 4, which are not committed.*takeover"):
        go_on(log)
    for act in (recover, hand_over):
        (problem,) = act([str(log.parent.parent)]).problems
        assert "no broker lived here" in problem
    assert log.read_bytes() == before
    assert take_over([str(log.parent.parent)]).problems == []
    assert go_on(log) == {0: ["a", "b", *["foreign"] * 3, "c"]}


def test_a_copy_that_was_made_while_a_query_wrote_does_not_double_its_batch(
    tmp_path: Path,
) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    writer = Writer(source, topic="t")
    writer.write(0, rows(["a"]))
    copy.mkdir()
    shutil.copy(source / STATE_FILE, copy)
    writer.write(1, rows(["b"]))
    Writer(source, name="other", topic="u").write(0, rows(["x"]))
    for topic in "tu":
        shutil.copytree(source / f"{topic}-0", copy / f"{topic}-0")
    with pytest.raises(CommitError, match="offsets 1 to 1, which are not committed"):
        Writer(copy, topic="t").write(1, rows(["b"]))
    with pytest.raises(CommitError, match="offsets 0 to 0, which are not committed"):
        Writer(copy, name="other", topic="u").write(0, rows(["x"]))
    assert values_of([copy], "t") == {0: ["a"]}


def test_nothing_is_appended_behind_an_open_transaction(log: Path) -> None:
    broker_lived(log)
    append(log, of_producer(batch_bytes(2, [Row(b"x")], attributes=TRANSACTIONAL), 7))
    with pytest.raises(CommitError, match="began at offset 2 of t-0 is still open"):
        go_on(log)
