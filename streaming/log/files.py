"""Names of the files in a partition's folder, and of the folders in a log directory.

=========================  ====================================================================
``%020d.log``              record batches back to back; the number is the segment's base offset
``%020d.index``            sparse offset index
``%020d.timeindex``        sparse time index
``%020d.txnindex``         aborted transactions; only where there are any
``%020d.snapshot``         producer state with all records below the number applied
``....deleted``            dead, about to be unlinked
``....cleaned``, ``.swap`` what compaction is writing, and about to put in place
=========================  ====================================================================

Source: Kafka ``LogFileUtils``, ``LocalLog.parseTopicPartitionName``.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from kafkalog.errors import InvalidTopicError
from kafkalog.model import MAX_OFFSET, TopicPartition, partition_directory_name

__all__ = [
    "CLEANED",
    "DELETED",
    "LOG",
    "OFFSET_INDEX",
    "SNAPSHOT",
    "SWAP",
    "TIME_INDEX",
    "TXN_INDEX",
    "deleted_directory_name",
    "file_name",
    "future_directory_name",
    "parse_base_offset",
    "parse_deleted_directory",
    "parse_future_directory",
    "parse_partition_directory",
    "parse_retired_directory",
    "stray_directory_name",
]

LOG: Final = ".log"
OFFSET_INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
TXN_INDEX: Final = ".txnindex"
SNAPSHOT: Final = ".snapshot"

CLEANED: Final = ".cleaned"
DELETED: Final = ".deleted"
SWAP: Final = ".swap"

_DELETE: Final = "-delete"
_FUTURE: Final = "-future"
_STRAY: Final = "-stray"
_LONGEST_NAME: Final = 255

_NUMBERED = re.compile(r"([0-9]{20})(\.[a-z]+)", re.ASCII)
_PARTITION = re.compile(r"(0|[1-9][0-9]*)", re.ASCII)
_RETIRED = re.compile(r"(.+)\.[0-9a-f]{32}-(?:delete|future|stray)", re.ASCII)


def file_name(base_offset: int, suffix: str) -> str:
    """Return the name of one of a segment's files, such as ``00000000000000000042.log``."""
    return f"{base_offset:020d}{suffix}"


def parse_base_offset(name: str, suffix: str) -> int | None:
    """Return the base offset in a file name; None for a name of any other form."""
    found = _NUMBERED.fullmatch(name)
    if found is None or found[2] != suffix or int(found[1]) > MAX_OFFSET:
        return None
    return int(found[1])


@lru_cache(maxsize=1 << 16)
def parse_partition_directory(name: str) -> TopicPartition | None:
    """Return the topic partition of a live partition's folder, or None for any other name.

    The partition follows the *last* dash, since topic names may hold dashes. Folders awaiting
    deletion (``<topic>-<p>.<uuid>-delete``), and likewise ``-future`` and ``-stray`` ones, end in
    a word and so are none.
    """
    topic, dash, partition = name.rpartition("-")
    if not dash or not _PARTITION.fullmatch(partition):
        return None
    try:
        partition_directory_name(topic, int(partition))
    except InvalidTopicError:
        return None
    return TopicPartition(topic, int(partition))


def deleted_directory_name(topic: str, partition: int, unique: str) -> str:
    """Return the name that the folder of a deleted partition gets; ``unique`` are 32 hex digits.

    A topic's name is cut so that file systems take it (Kafka ``LocalLog.logDeleteDirName``).
    """
    suffix = f"-{partition}.{unique}{_DELETE}"
    return f"{topic[: _LONGEST_NAME - len(suffix)]}{suffix}"


def stray_directory_name(topic: str, partition: int, unique: str) -> str:
    """Return the name that the folder of a partition gets which belongs nowhere."""
    suffix = f"-{partition}.{unique}{_STRAY}"
    return f"{topic[: _LONGEST_NAME - len(suffix)]}{suffix}"


def future_directory_name(topic: str, partition: int, unique: str) -> str:
    """Return the name of the folder to which a partition is copied that moves.

    It is not cut (Kafka ``LocalLog.logFutureDirName``).
    """
    return f"{topic}-{partition}.{unique}{_FUTURE}"


def parse_deleted_directory(name: str) -> TopicPartition | None:
    """Return whose log is in a ``-delete`` folder; None for other names. See below."""
    return parse_retired_directory(name) if name.endswith(_DELETE) else None


def parse_future_directory(name: str) -> TopicPartition | None:
    """Return whose log is copied to a ``-future`` folder; None for other names. See below."""
    return parse_retired_directory(name) if name.endswith(_FUTURE) else None


def parse_retired_directory(name: str) -> TopicPartition | None:
    """Return whose log is in a ``-delete``, ``-future`` or ``-stray`` folder; None for other names.

    Of a topic with a very long name the end may be missing.
    """
    found = _RETIRED.fullmatch(name)
    return None if found is None else parse_partition_directory(found[1])
