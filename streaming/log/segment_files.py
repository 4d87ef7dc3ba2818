"""Which segments a partition's folder holds."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kafkalog.errors import UnknownTopicOrPartitionError
from kafkalog.streaming.log.files import LOG, parse_base_offset

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["list_base_offsets"]


def list_base_offsets(directory: Path) -> list[int]:
    """List the base offsets of a partition's segments, ascending.

    Dead files (``.deleted``) and those that compaction is writing (``.cleaned``, ``.swap``) are
    none.

    Raises:
        UnknownTopicOrPartitionError: the folder is gone.
    """
    try:
        names = [entry.name for entry in os.scandir(directory)]
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UnknownTopicOrPartitionError(f"{directory}: there is no such folder") from error
    return sorted(base for name in names if (base := parse_base_offset(name, LOG)) is not None)
