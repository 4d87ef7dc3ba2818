"""Which segments a partition's folder holds, at a moment at which others may change them.

A cleaner replaces segments by renames: it writes ``.cleaned`` files, renames them to ``.swap`` once
they are whole, the highest base offset first, renames the old ones to ``.deleted``, and the
``.swap`` files to their final names. A broker that was killed on the way finishes that when it
starts: a ``.swap`` file that no ``.cleaned`` one, of a log or an index, lies at or below is the
truth for its range of offsets. So it is for readers; otherwise what it replaced would be missing,
or there twice. The files of a segment are renamed one by one, its log first.

Source: Kafka ``LocalLog.replaceSegments``, ``LogLoader.removeTempFilesAndCollectSwapFiles``.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.remote_path import RemotePath
from kafkalog.errors import LogDirectoryError, UnknownTopicOrPartitionError
from kafkalog.model import MAX_OFFSET
from kafkalog.streaming.log.files import (
    CLEANED,
    LOG,
    OFFSET_INDEX,
    SWAP,
    TIME_INDEX,
    TXN_INDEX,
    parse_base_offset,
)
from kafkalog.streaming.log.log_end import find_valid_end
from kafkalog.streaming.log.segment import LogSegment

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["list_base_offsets", "list_segments"]

_CLEANED_KINDS: Final = (LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX)
_KINDS: Final = (LOG, LOG + SWAP, *(kind + CLEANED for kind in _CLEANED_KINDS))

_ATTEMPTS: Final = 5

_SETTLED_NS: Final = 100_000_000
"""A folder that has not changed for so long did not change while it was listed: its clock may tick
in steps of 10 ms, and on another machine."""

_RESTS_SECONDS: Final = (0.0, 0.0, 0.001, 0.005, 0.02, *[0.05] * 200)
"""How long to wait before each further listing of a folder that changes while it is listed."""


def list_base_offsets(directory: Path) -> list[int]:
    """List the base offsets of the ``.log`` files of a partition's folder, ascending.

    Raises:
        UnknownTopicOrPartitionError: the folder is gone.
    """
    return _bases(_names(directory), "")


def list_segments(directory: Path) -> list[LogSegment]:
    """List a partition's segments in the order of their base offsets, none of them open.

    They are listed again where a cleaner that was about to swap segments has done so meanwhile.

    Raises:
        UnknownTopicOrPartitionError: the folder is gone.
        FileNotFoundError: cleaners swap so often that each listing was outdated at once.
    """
    for _ in range(_ATTEMPTS - 1):
        with suppress(FileNotFoundError):
            return _listed(directory)
    return _listed(directory)


def _listed(directory: Path) -> list[LogSegment]:
    names = _names(directory)
    cleaned = [base for kind in _CLEANED_KINDS for base in _bases(names, CLEANED, kind)]
    swaps = [base for base in _bases(names, SWAP) if base < min(cleaned, default=MAX_OFFSET)]
    swapped = [LogSegment(directory, base, SWAP) for base in swaps]
    end = max((_next_offset(segment) for segment in swapped), default=0)
    live = [
        LogSegment(directory, base)
        for base in _bases(names, "")
        if not swaps or not (swaps[0] <= base < end or base in swaps)
    ]
    return sorted(live + swapped, key=lambda segment: segment.base_offset)


def _next_offset(segment: LogSegment) -> int:
    with segment:
        return find_valid_end(segment, segment.floor_position(MAX_OFFSET)).next_offset


def _bases(names: list[str], suffix: str, kind: str = LOG) -> list[int]:
    """Collect the base offsets of the files of a kind with a suffix, ascending."""
    stems = (name.removesuffix(suffix) for name in names if name.endswith(suffix))
    return sorted(base for stem in stems if (base := parse_base_offset(stem, kind)) is not None)


def _names(directory: Path) -> list[str]:
    """List the ``.log`` files of a folder at one moment, those of an unfinished swap among them.

    A file that is renamed meanwhile may be in no listing at all: list until two agree.
    """
    try:
        if isinstance(directory, RemotePath):  # a listing of a store is of one moment
            return [entry.name for entry in directory.entries() if entry.name.endswith(_KINDS)]
        before = directory.stat().st_mtime_ns
        names = _list(directory)
        if directory.stat().st_mtime_ns == before < time.time_ns() - _SETTLED_NS:
            return names
        for rest in _RESTS_SECONDS:
            time.sleep(rest)
            again = _list(directory)
            if set(again) == set(names):
                return names
            names = again
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UnknownTopicOrPartitionError(f"{directory}: there is no such folder") from error
    raise LogDirectoryError(
        f"{directory} changes so fast that {len(_RESTS_SECONDS)} listings of it, over "
        f"{sum(_RESTS_SECONDS):.0f} s, all differed; read it when less is renamed in it"
    )


def _list(directory: Path) -> list[str]:
    with os.scandir(directory) as entries:
        return [entry.name for entry in entries if entry.name.endswith(_KINDS)]
