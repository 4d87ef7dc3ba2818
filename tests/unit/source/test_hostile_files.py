"""Whatever lies in a log directory: a query gives rows, or an error that names file and place."""

from __future__ import annotations

import multiprocessing
import os
import socket
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.logs import Row, batch_bytes, write_checkpoint, write_segment
from tests.support.message_sets import GZIP, LZ4, SNAPPY, gzip_stream, lz4_stream, message
from tests.support.message_sets import xerial_stream as snappy_stream
from tests.support.record_batches import batch_of, record_of, varint

from kafkalog.checkpoints.broker import HIGH_WATERMARK, LOG_START_OFFSET
from kafkalog.errors import (
    CorruptRecordError,
    DecompressedTooLargeError,
    KafkaLogError,
    LogDirectoryError,
)
from kafkalog.files.open_file import open_file
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.records.compression import Codec, compress
from kafkalog.streaming.source.batch_plan import plan_batch
from kafkalog.streaming.source.reading import read_split
from kafkalog.streaming.source.schema import RowSchema, source_schema

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS = RowSchema.of(source_schema(include_headers=True))
LOG = f"{0:020d}.log"
BATCHES = batch_bytes(0, [Row()] * 5) + batch_bytes(5, [Row()] * 5)


def read(directory: Path, **given: str) -> list[dict[str, Any]]:
    """Plan and read as a batch query does."""
    options = ReadOptions.parse({"path": str(directory), "subscribe": "t"} | given)
    return [
        row
        for split in plan_batch(options)
        for batch in read_split(split, options, ROWS)
        for row in batch.to_pylist()
    ]


def offsets(directory: Path, **given: str) -> list[int]:
    return [row["offset"] for row in read(directory, **given)]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Give a log directory with ``t-0``, offsets 0 to 9 in two batches, and 10 to 14 in a third."""
    write_segment(tmp_path / "t-0", 0, BATCHES, index=True)
    write_segment(tmp_path / "t-0", 10, batch_bytes(10, [Row()] * 5), index=True)
    return tmp_path


def fifo(path: Path) -> None:
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.mkdir()


def link_out_of_the_directory(path: Path) -> None:
    elsewhere = path.parents[1] / "elsewhere"
    elsewhere.write_bytes(BATCHES)
    path.symlink_to(elsewhere)


def link_to_a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def listening_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the address of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(here)


HOSTILE = [fifo, folder, link_out_of_the_directory, link_to_a_device, listening_socket]


@pytest.mark.parametrize("plant", HOSTILE, ids=lambda plant: plant.__name__)
@pytest.mark.parametrize("name", [LOG, f"{10:020d}.log", f"{10:020d}.index"])
def test_what_is_no_file_is_refused_by_its_name(
    name: str, plant: Callable[[Path], None], log: Path
) -> None:
    path = log / "t-0" / name
    path.unlink()
    plant(path)
    with pytest.raises(LogDirectoryError, match=f"{path}: (is a|may not)"):
        read(log)


@pytest.mark.parametrize("name", ["null", "zero", "tty"])
def test_a_device_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(LogDirectoryError, match=f"/dev/{name}: is a"):
        open_file(Path("/dev") / name)


@pytest.mark.parametrize(
    "plant", [fifo, folder, link_to_a_device], ids=lambda plant: plant.__name__
)
@pytest.mark.parametrize("name", [HIGH_WATERMARK, LOG_START_OFFSET])
def test_a_checkpoint_that_is_no_file_is_refused_by_its_name(
    name: str, plant: Callable[[Path], None], log: Path
) -> None:
    plant(log / name)
    with pytest.raises(LogDirectoryError, match=f"{log / name}: is a"):
        read(log)


def _read_as_a_user(log: Path, told: multiprocessing.connection.Connection) -> None:
    """Read without the rights of root, whom no mode of a file keeps out."""
    if os.geteuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    try:
        told.send(str(offsets(log)))
    except KafkaLogError as error:
        told.send(f"{type(error).__name__} {error}")


@pytest.mark.parametrize("name", [".", "t-0", f"t-0/{LOG}", HIGH_WATERMARK])
def test_what_may_not_be_read_is_named(name: str, log: Path) -> None:
    write_checkpoint(log, HIGH_WATERMARK, {"t-0": 15})
    assert offsets(log) == list(range(15))  # what is loaded once is loaded
    own = (parent for parent in log.parents if parent.stat().st_uid == os.geteuid())
    parents = [parent for parent in own if parent.stat().st_mode & 0o5 != 0o5]
    modes = {parent: parent.stat().st_mode for parent in parents}
    for parent in parents:
        parent.chmod(0o755)
    log.chmod(0o755)
    (log / name).chmod(0)
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    reader = context.Process(target=_read_as_a_user, args=(log, there))
    reader.start()
    try:
        assert here.poll(120)
        told = here.recv()
    finally:
        reader.join(60)
        (log / name).chmod(0o755)
        for parent, mode in modes.items():
            parent.chmod(mode)
    assert told.startswith("LogDirectoryError"), told
    assert str((log / name).resolve()) in told


@pytest.mark.parametrize("size", [2**31 - 1, 2**31 - 13, 2**30, -1, -(2**31), 0, 13])
def test_a_length_that_cannot_be_costs_no_memory(size: int, log: Path) -> None:
    path = log / "t-0" / LOG
    second = len(BATCHES) // 2
    harmed = BATCHES[: second + 8] + size.to_bytes(4, "big", signed=True) + BATCHES[second + 12 :]
    path.write_bytes(harmed)
    path.with_suffix(".index").unlink()
    offsets(log, endingOffsets='{"t":{"0":5}}')
    tracemalloc.start()
    try:
        with pytest.raises(CorruptRecordError, match=f"{path}") as caught:
            read(log)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.position == second
    assert peak < 16 << 20


def bomb(codec: Codec) -> bytes:
    """Make a batch whose one record holds 64 MiB of zeros, in next to nothing."""
    value = bytes(64 << 20)
    body = record_of(varint(-1) + varint(len(value)) + value + varint(0))
    return batch_of(compress(codec, body), 1, attributes=int(codec))


def old_bomb(codec: int, magic: int) -> bytes:
    inner = message(0, None, bytes(64 << 20), magic=magic)
    stream = {GZIP: gzip_stream, SNAPPY: snappy_stream, LZ4: lz4_stream}[codec](inner)
    return message(0, None, stream, magic=magic, attributes=codec)


@pytest.mark.long
@pytest.mark.parametrize(
    "make",
    [
        *(
            pytest.param(lambda c=codec: bomb(c), id=codec.name.lower())
            for codec in list(Codec)[1:]
        ),
        pytest.param(lambda: old_bomb(GZIP, 0), id="magic 0 gzip"),
        pytest.param(lambda: old_bomb(SNAPPY, 1), id="magic 1 snappy"),
        pytest.param(lambda: old_bomb(LZ4, 1), id="magic 1 lz4"),
    ],
)
def test_a_bomb_is_refused_with_both_sizes(make: Callable[[], bytes], tmp_path: Path) -> None:
    data = make()
    path = write_segment(tmp_path / "t-0", 0, data)
    tracemalloc.start()
    try:
        with pytest.raises(DecompressedTooLargeError) as caught:
            read(tmp_path, maxDecompressedBytes="4m")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    told = str(caught.value)
    assert f"{path}: the " in told
    assert "at byte 0" in told
    assert f"beyond the limit of {4 << 20} for a batch (option maxDecompressedBytes)" in told
    assert int(told.split(" hold ")[1].split(" bytes", maxsplit=1)[0]) > 4 << 20
    assert peak < 32 << 20
    assert len(read(tmp_path)) == 1  # by default it may grow so large


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex", ".snapshot"])
def test_an_empty_file_beside_a_segment_is_no_obstacle(suffix: str, log: Path) -> None:
    (log / "t-0" / f"{10:020d}{suffix}").write_bytes(b"")
    for level in ("read_uncommitted", "read_committed"):
        assert offsets(log, **{"kafka.isolation.level": level}) == list(range(15))


def test_empty_segments_and_checkpoints_are_no_obstacle(log: Path) -> None:
    for name in (f"t-0/{15:020d}.log", LOG_START_OFFSET):
        (log / name).write_bytes(b"")
    assert offsets(log) == list(range(15))
    (log / "t-0" / LOG).write_bytes(b"")
    assert offsets(log) == list(range(10, 15))


def test_a_checkpoint_of_high_watermarks_without_a_line_says_that_nothing_is_committed(
    log: Path,
) -> None:
    (log / HIGH_WATERMARK).write_bytes(b"")  # as a broker makes it when it first starts
    assert offsets(log) == []
    assert offsets(log, readUpTo="logEnd") == list(range(15))


@pytest.mark.parametrize(
    "name", ["0.log", f"{0:020d}.log.bak", f"{0:021d}.log", f"{2**63:020d}.log", "\udcff.log", "x"]
)
def test_names_that_no_broker_gives_are_passed_over(name: str, log: Path) -> None:
    (log / "t-0" / name).write_bytes(b"\xff" * 100)
    assert offsets(log) == list(range(15))


@pytest.mark.parametrize(
    "name", ["t", "t-", "-0", "t-00", "t--1", "t-2147483648", "..-0", "\udcff-0"]
)
def test_folders_that_are_no_partitions_are_passed_over(name: str, log: Path) -> None:
    (log / name).mkdir()
    assert offsets(log) == list(range(15))
