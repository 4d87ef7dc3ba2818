"""Readers beside a cleaner that swaps and merges segments all the time, by Kafka's renames."""

from __future__ import annotations

import itertools
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.log_files import FLIGHTS, append, make_batches, read_offsets, scan

from kafkalog.streaming.log.growth import index_segment
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.options.topic_settings import LogConfig

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_KINDS = (".log", ".index", ".timeindex")
_ROUNDS = 25
_REST_SECONDS = 0.02


class Cleaner:
    """Replaces the sealed segments of a partition, over and over, by ones that hold the same."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        bases = sorted(int(path.stem) for path in directory.glob("*.log"))
        self._sealed = bases[:-1]
        self._contents = {base: self._file(base, ".log").read_bytes() for base in self._sealed}

    def run(self, stop: threading.Event) -> None:
        for merge in itertools.cycle((2, 1)):
            if stop.wait(_REST_SECONDS):
                return
            present = [base for base in self._sealed if self._file(base, ".log").exists()]
            if merge == 1:
                self._replace(present, [[base] for base in self._sealed])
            else:
                groups = [self._sealed[slot : slot + 2] for slot in range(0, len(self._sealed), 2)]
                self._replace(present, groups)

    def _replace(self, old: Sequence[int], groups: Sequence[Sequence[int]]) -> None:
        for group in groups:
            content = b"".join(self._contents[base] for base in group)
            built = index_segment(group[0], [scan(content)[1]], 500)
            for kind, data in zip(
                _KINDS, (content, built.index_entries, built.time_index_entries), strict=True
            ):
                self._file(group[0], kind + ".cleaned").write_bytes(data)
        for group in reversed(groups):
            self._rename(group[0], ".cleaned", ".swap")
        for base in old:
            self._rename(base, "", ".deleted")
        for group in groups:
            self._rename(group[0], ".swap", "")
        for path in self._directory.glob("*.deleted"):
            path.unlink()

    def _rename(self, base: int, before: str, after: str) -> None:
        for kind in _KINDS:
            self._file(base, kind + before).rename(self._file(base, kind + after))

    def _file(self, base: int, kind: str) -> Path:
        return self._directory / f"{base:020d}{kind}"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    directory = tmp_path / "flights-0"
    config = LogConfig(segment_bytes=3700, index_interval_bytes=500)
    append(directory, make_batches(0, [5] * 100), config)
    assert len(list(directory.glob("*.log"))) == 10
    return directory


def test_every_record_is_read_once_while_segments_are_swapped_and_merged(directory: Path) -> None:
    stop = threading.Event()
    cleaning = threading.Thread(target=Cleaner(directory).run, args=(stop,))
    cleaning.start()
    try:
        for turn in range(_ROUNDS):
            with PartitionLog(directory, FLIGHTS) as log:
                assert read_offsets(log, 0, 500, pieces=turn % 3 + 1) == [*range(500)]
                found = log.offset_for_timestamp(0)
                assert found is not None
                assert found.offset == 0
                assert log.log_end_offset(verify_from=0) == 500
    finally:
        stop.set()
        cleaning.join()


def test_segments_are_listed_again_where_a_swap_ends_before_it_is_opened(directory: Path) -> None:
    segment = directory / f"{0:020d}.log"
    swap = segment.rename(segment.with_suffix(".log.swap"))

    def end_swap(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and str(arguments[0]) == str(swap) and swap.exists():
            swap.rename(segment)

    sys.addaudithook(end_swap)  # the moment before a file is opened
    with PartitionLog(directory, FLIGHTS) as log:
        assert [each.path for each in log.segments[:1]] == [segment]
        assert log.log_start_offset == 0
    assert not swap.exists()
