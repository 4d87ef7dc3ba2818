"""The names of the segments in a partition's folder, at one moment, though others rename them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from kafkalog.errors import LogDirectoryError, UnknownTopicOrPartitionError
from kafkalog.files.remote_path import RemotePath
from kafkalog.files.system import system
from kafkalog.streaming.log.files import (
    CLEANED,
    LOG,
    OFFSET_INDEX,
    SWAP,
    TIME_INDEX,
    TXN_INDEX,
    parse_base_offset,
)

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["CLEANED_KINDS", "base_offsets_of", "list_base_offsets", "segment_names"]

CLEANED_KINDS: Final = (LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX)
"""The files that a cleaner writes of a segment, in the order in which a swap renames them."""

_KINDS: Final = (LOG, LOG + SWAP, *(kind + CLEANED for kind in CLEANED_KINDS))

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
    return base_offsets_of(segment_names(directory), "")


def base_offsets_of(names: list[str], suffix: str, kind: str = LOG) -> list[int]:
    """Collect the base offsets of the files of a kind with a suffix, ascending."""
    stems = (name.removesuffix(suffix) for name in names if name.endswith(suffix))
    return sorted(base for stem in stems if (base := parse_base_offset(stem, kind)) is not None)


def segment_names(directory: Path) -> list[str]:
    """List the ``.log`` files of a folder at one moment, and the files of an unfinished swap.

    A file that is renamed meanwhile may be in no listing at all: list until two agree.

    Raises:
        UnknownTopicOrPartitionError: the folder is gone.
        LogDirectoryError: no two listings agree.
    """
    try:
        if isinstance(directory, RemotePath):  # a listing of a store is of one moment
            return [entry.name for entry in directory.entries() if entry.name.endswith(_KINDS)]
        before = directory.stat().st_mtime_ns
        names = _list(directory)
        if directory.stat().st_mtime_ns == before < system.time_ns() - _SETTLED_NS:
            return names
        for rest in _RESTS_SECONDS:
            system.sleep(rest)
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
