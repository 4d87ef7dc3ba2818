"""Offsets by timestamp: Kafka's answers, ties and disorder and all."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.log_files import FLIGHTS, append, flip, grow_with_zeros, make_batches
from tests.support.logs import Row, batch_bytes
from tests.support.message_sets import message
from tests.support.transactions import emptied

from kafkalog.errors import CorruptRecordError
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.options.topic_settings import LogConfig

if TYPE_CHECKING:
    from collections.abc import Callable


SMALL = LogConfig(segment_bytes=2000, index_interval_bytes=300)


def _find(directory: Path, timestamp: int, log_start: int | None = None) -> tuple[int, int] | None:
    with PartitionLog(directory, FLIGHTS, log_start) as log:
        return log.offset_for_timestamp(timestamp)


def _max(directory: Path) -> tuple[int, int] | None:
    with PartitionLog(directory, FLIGHTS) as log:
        return log.max_timestamp()


def test_the_lowest_offset_at_or_after_a_timestamp_wins_not_the_nearest_time(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "flights-0"
    rows = [Row(timestamp=time) for time in (100, 500, 300, 200, 500)]
    append(directory, batch_bytes(0, rows))
    assert _find(directory, 0) == (100, 0)
    assert _find(directory, 150) == (500, 1)
    assert _find(directory, 500) == (500, 1)
    assert _find(directory, 501) is None
    assert _max(directory) == (500, 1)


def test_records_below_the_log_start_are_not_found(tmp_path: Path) -> None:
    directory = tmp_path / "flights-0"
    append(directory, batch_bytes(0, [Row(timestamp=time) for time in (100, 500, 300, 200)]))
    assert _find(directory, 150, log_start=2) == (300, 2)


@settings(max_examples=40, deadline=None)
@given(
    times=st.lists(st.integers(0, 400), min_size=1, max_size=60),
    asked=st.lists(st.integers(-1, 410), min_size=1, max_size=10),
    harm=st.sampled_from(["", "zeros", "no time index", "no index"]),
)
def test_lookups_answer_as_kafkas_walk_over_segments(
    tmp_path_factory: pytest.TempPathFactory, times: list[int], asked: list[int], harm: str
) -> None:
    directory = tmp_path_factory.mktemp("log") / "flights-0"
    batches = [
        batch_bytes(base, [Row(timestamp=time, value=b"v" * 90) for time in times[base : base + 3]])
        for base in range(0, len(times), 3)
    ]
    append(directory, b"".join(batches), SMALL)
    for path in directory.glob("*index"):
        if harm == "zeros" and path.stem == max(p.stem for p in directory.glob("*.log")):
            grow_with_zeros(path, 12 * 8 * 1000)
        if (harm, path.suffix) in {("no time index", ".timeindex"), ("no index", ".index")}:
            path.unlink()
    bases = sorted(int(path.stem) for path in directory.glob("*.log"))
    segments = [
        list(enumerate(times))[base:end]
        for base, end in zip(bases, [*bases[1:], len(times)], strict=True)
    ]
    for timestamp in asked:
        searched = next((s for s in segments if max(t for _, t in s) >= timestamp), [])
        expected = next(((t, offset) for offset, t in searched if t >= timestamp), None)
        assert _find(directory, timestamp) == expected
    assert _max(directory) == (max(times), times.index(max(times)))


def test_an_active_segment_is_asked_beyond_its_last_index_entry(tmp_path: Path) -> None:
    """A broker writes no final time index entry while a segment is active."""
    directory = tmp_path / "flights-0"
    append(directory, make_batches(0, [1] * 40, timestamps=range(1000, 1040)), SMALL)
    active = max(directory.glob("*.timeindex"))
    active.write_bytes(active.read_bytes()[:-12])
    assert _find(directory, 1039) == (1039, 39)
    assert _max(directory) == (1039, 39)


def test_a_segment_without_timestamps_is_as_old_as_its_file(tmp_path: Path) -> None:
    directory = tmp_path / "flights-0"
    directory.mkdir()
    (directory / f"{0:020d}.log").touch()
    (directory / f"{0:020d}.timeindex").touch()
    (directory / f"{5:020d}.log").write_bytes(make_batches(5, [1], timestamps=[5000]))
    os.utime(directory / f"{0:020d}.log", (6, 6))
    # Kafka searches the first segment that is not older, and no other.
    assert _find(directory, 5000) is None
    os.utime(directory / f"{0:020d}.log", (4, 4))
    assert _find(directory, 5000) == (5000, 5)


@pytest.mark.parametrize("around_damage", [False, True])
def test_emptied_batches_count_only_where_the_time_index_has_them(
    tmp_path: Path, *, around_damage: bool
) -> None:
    """A cleaner of Kafka 1.1 left them out of it, and its broker went on to later records."""
    directory = tmp_path / "flights-0"
    directory.mkdir()
    log, times = (directory / f"{0:020d}{suffix}" for suffix in (".log", ".timeindex"))
    log.write_bytes(emptied(make_batches(0, [1], timestamps=[9000])))
    times.touch()
    os.utime(log, (4, 4))
    later = make_batches(1, [1, 1], timestamps=[5000, 7000])
    (directory / f"{1:020d}.log").write_bytes(later)

    def find(timestamp: int) -> tuple[int, int] | None:
        with PartitionLog(directory, FLIGHTS, around_damage=around_damage) as opened:
            return opened.offset_for_timestamp(timestamp)

    assert find(5000) == (5000, 1)
    assert find(5001) == (7000, 2)
    assert _max(directory) == (7000, 2)
    times.write_bytes(struct.pack(">qi", 9000, 0))
    assert find(5000) is None
    assert _max(directory) is None


def test_a_segment_that_was_emptied_is_as_old_as_its_time_index_says(tmp_path: Path) -> None:
    """A copy that takes a while may have the index from before a cleaning, and the log after it."""
    directory = tmp_path / "flights-0"
    directory.mkdir()
    (directory / f"{0:020d}.log").touch()
    (directory / f"{0:020d}.timeindex").write_bytes(struct.pack(">qi", 4000, 3))
    (directory / f"{5:020d}.log").write_bytes(make_batches(5, [1], timestamps=[5000]))
    assert _find(directory, 4000) is None
    assert _find(directory, 4001) == (5000, 5)
    assert _max(directory) == (5000, 5)


def test_messages_without_timestamps_are_as_old_as_their_time_index_says(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker has indexed when it appended them, where the topic has LogAppendTime."""
    directory = tmp_path / "flights-0"
    directory.mkdir()
    log = directory / f"{0:020d}.log"
    log.write_bytes(b"".join(message(offset, b"k", b"v", magic=0) for offset in range(3)))
    log.with_suffix(".timeindex").write_bytes(struct.pack(">qi", 4000, 1))
    (directory / f"{3:020d}.log").write_bytes(make_batches(3, [1], timestamps=[5000]))
    assert _find(directory, 4000) is None
    assert _find(directory, 4001) == (5000, 3)
    assert f"{0:020d}.timeindex" not in caplog.text


def test_timestamps_beyond_microseconds_are_found(tmp_path: Path) -> None:
    directory = tmp_path / "flights-0"
    append(directory, batch_bytes(0, [Row(timestamp=5), Row(timestamp=2**62)]))
    assert _find(directory, 2**61) == (2**62, 1)
    assert _max(directory) == (2**62, 1)


def test_a_log_without_timestamps_has_no_greatest(tmp_path: Path) -> None:
    directory = tmp_path / "flights-0"
    append(directory, batch_bytes(0, [Row(timestamp=-1)]))
    assert _max(directory) is None
    directory.joinpath(f"{0:020d}.log").write_bytes(b"")
    assert _max(directory) is None


def test_a_time_index_in_disorder_costs_a_scan(tmp_path: Path) -> None:
    directory = tmp_path / "flights-0"
    append(directory, make_batches(0, [1] * 10, timestamps=range(1000, 1010)), SMALL)
    times = directory / f"{0:020d}.timeindex"
    times.write_bytes(struct.pack(">qiqi", 1008, 8, 1005, 5))
    assert _find(directory, 1004) == (1004, 4)


def test_a_sealed_segment_without_its_final_time_entry_is_asked_to_its_end(tmp_path: Path) -> None:
    """A broker that was killed while it rolled, or a copy of files of several moments."""
    directory = tmp_path / "flights-0"
    append(directory, make_batches(0, [1] * 40, timestamps=range(1000, 1040)), SMALL)
    for times in directory.glob("*.timeindex"):
        times.write_bytes(times.read_bytes()[:-12])
    for timestamp in range(1000, 1040):
        assert _find(directory, timestamp) == (timestamp, timestamp - 1000)
    assert _max(directory) == (1039, 39)


@pytest.mark.parametrize(
    "entries",
    [
        pytest.param([(1003, 3), (1044, 44)], id="newer than the log"),
        pytest.param([(1007, 4), (1008, 6)], id="of another log"),
    ],
)
def test_a_time_index_that_the_log_contradicts_costs_a_scan(
    entries: list[tuple[int, int]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "flights-0"
    append(directory, make_batches(0, [1] * 10, timestamps=range(1000, 1010)))
    times = directory / f"{0:020d}.timeindex"
    times.write_bytes(b"".join(struct.pack(">qi", *entry) for entry in entries))
    for timestamp in range(1000, 1010):
        assert _find(directory, timestamp) == (timestamp, timestamp - 1000)
    assert _find(directory, 1010) is None
    assert _max(directory) == (1009, 9)
    assert "where no batch reaches it" in caplog.text


def _segment_of_a_thousand_batches(directory: Path) -> int:
    append(
        directory,
        make_batches(0, [5] * 1000, value_bytes=400, timestamps=range(1000, 2000)),
        LogConfig(index_interval_bytes=10_000),
    )
    return (directory / f"{0:020d}.log").stat().st_size // 1000


def test_a_lookup_reads_headers_of_an_index_interval_and_one_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "flights-0"
    batch = _segment_of_a_thousand_batches(directory)
    read: list[int] = []
    for name in ("pread", "preadv"):
        whole = getattr(os, name)

        def counting(
            fd: int, what: object, at: int, whole: Callable[..., object] = whole
        ) -> object:
            result = whole(fd, what, at)
            path = Path(f"/proc/self/fd/{fd}").resolve()
            if path.suffix == ".log":
                read.append(result if isinstance(result, int) else len(result))  # type: ignore[arg-type]
            return result

        monkeypatch.setattr(os, name, counting)
    for timestamp in (1000, 1001, 1500, 1777, 1999):
        read.clear()
        assert _find(directory, timestamp) == (timestamp, (timestamp - 1000) * 5)
        assert sum(read) <= batch + 10_000


def test_damage_on_the_way_in_a_sealed_segment_is_an_error(tmp_path: Path) -> None:
    directory = tmp_path / "flights-0"
    append(directory, make_batches(0, [1] * 40, timestamps=range(1000, 1040)), SMALL)
    log = directory / f"{0:020d}.log"
    flip(log, log.stat().st_size // 2 // 118 * 118 + 16)
    (directory / f"{0:020d}.index").unlink()
    with pytest.raises(CorruptRecordError):
        _find(directory, 1000 + log.stat().st_size // 118 - 1)


def test_zeros_behind_an_active_segment_are_no_error(tmp_path: Path) -> None:
    directory = tmp_path / "flights-0"
    append(directory, make_batches(0, [5, 5], timestamps=[1000, 900]))
    grow_with_zeros(directory / f"{0:020d}.log", 10_000)
    assert _find(directory, 950, log_start=7) is None
    assert _find(directory, 850, log_start=7) == (900, 7)


def test_what_is_torn_above_the_end_holds_no_timestamp_and_below_it_is_an_error(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "flights-0"
    append(directory, make_batches(0, [5, 5, 5], timestamps=[1000, 2000, 3000]))
    log = directory / f"{0:020d}.log"
    flip(log, log.stat().st_size - 1)
    with PartitionLog(directory, FLIGHTS) as partition:
        assert partition.log_end_offset() == 10
        assert partition.offset_for_timestamp(2500, end_offset=10) is None
        found = partition.offset_for_timestamp(1500, end_offset=10)
        assert found is not None
        assert found.offset == 5
        with pytest.raises(CorruptRecordError):
            partition.offset_for_timestamp(2500, end_offset=15)
