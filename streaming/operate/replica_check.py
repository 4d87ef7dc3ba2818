"""Whether the replicas in sync of a partition hold the same bytes below the high watermark."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.broker import PARTITION_METADATA, read_leader_epochs, read_topic_id
from kafkalog.checkpoints.commit_state import topic_key
from kafkalog.checkpoints.voters import find_voters
from kafkalog.errors import CorruptRecordError, KafkaLogError, OptionError
from kafkalog.files.local_file import read_at
from kafkalog.files.regular import open_regular, read_regular
from kafkalog.files.shield import check_interrupt
from kafkalog.streaming.log.files import (
    LOG,
    OFFSET_INDEX,
    TIME_INDEX,
    TXN_INDEX,
    file_name,
    parse_base_offset,
)
from kafkalog.streaming.log.log_dir import partitions_by_node
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.log.segment import LogSegment
from kafkalog.streaming.log.segment_files import list_base_offsets
from kafkalog.streaming.operate.replicas import known_topic, replicas_of
from kafkalog.streaming.store.session import named

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.read.slices import SegmentSlice

__all__ = ["compare_replicas", "differences", "wrong_id"]

_PIECE_BYTES: Final = 1 << 20
_LARGEST_INDEX: Final = 1 << 30


def compare_replicas(
    paths: Sequence[str], topic: str | None = None
) -> Iterator[tuple[TopicPartition, str]]:
    """Compare each replica in sync with its leader; yield what differs, for a person.

    Nothing is yielded for a set that is not replicated, nor for nodes that are away.

    Raises:
        LogDirectoryError: the directories are of different sets.
    """
    try:
        voters = find_voters(named(paths))
    except OptionError:
        return  # in a store, where nothing is written, and so nothing replicated
    if voters is None:
        return
    folders = partitions_by_node(voters.live)
    for key, each in replicas_of(voters.newest):
        there = [node for node in each.isr if node in voters.live]
        if topic not in {None, key.topic} or not there:
            continue
        leader = each.leader if each.leader in there else there[0]
        id_key, known = known_topic(voters.newest, key)
        where = known.partitions[key.partition]
        source = folders.get(leader, {}).get(key)
        for node in there:
            found = folders.get(node, {}).get(key)
            if found is None:
                yield key, f"node {node} is in sync, and has no folder of it"
                continue
            if wrong := wrong_id(id_key, key, found.path):
                yield key, f"node {node} is in sync, and {wrong}"
            if source is not None and node != leader:
                span = where.log_start, where.high_watermark
                for text in differences(key, source.path, found.path, *span):
                    yield key, f"node {node} differs from node {leader}: {text}"


def wrong_id(expected: str, key: TopicPartition, folder: Path) -> str | None:
    """Say what is wrong with the topic id in a replica's folder; None if nothing is.

    ``expected`` is the key under which the state has the topic.
    """
    try:
        topic_id = read_topic_id(folder)
    except (KafkaLogError, OSError) as error:
        return f"its topic id cannot be read: {error}"
    if topic_key(key.topic, topic_id) == expected:
        return None
    path = folder / PARTITION_METADATA
    return f"{path} is missing" if topic_id is None else f"{path} has topic id {topic_id}"


def differences(
    key: TopicPartition, source: Path, target: Path, start: int, end: int
) -> Iterator[str]:
    """Yield what differs between the logs in two folders, from offset ``start`` to ``end``.

    Compared are the bytes of the segments, the indexes of those that are sealed, and the leader
    epochs that begin below ``end``.
    """
    try:
        with PartitionLog(source, key) as log:
            pieces = log.slices(max(start, log.log_start_offset), end) if end > start else []
    except (KafkaLogError, OSError) as error:
        yield f"it cannot be read there: {error}"
        return
    active = max(list_base_offsets(source), default=-1)
    for piece in pieces:
        check_interrupt()
        base = parse_base_offset(Path(piece.path).name, LOG)
        try:
            if base is not None:
                yield from _different_segment(source, target, base, piece, base < active)
        except (KafkaLogError, OSError) as error:
            yield f"{error}"
    try:
        one, other = (_epochs_below(end, folder) for folder in (source, target))
        if one != other:
            yield f"leader epochs {_shown(one)} and {_shown(other)}"
    except (KafkaLogError, OSError) as error:
        yield f"{error}"


def _epochs_below(end: int, folder: Path) -> list[object]:
    return [each for each in read_leader_epochs(folder) if each.start_offset < end]


def _shown(epochs: Sequence[object]) -> str:
    return ", ".join(map(str, epochs)) or "none"


def _different_segment(
    source: Path, target: Path, base: int, piece: SegmentSlice, is_sealed: bool
) -> Iterator[str]:
    name = file_name(base, LOG)
    size = piece.end_position if is_sealed else _size_below(source, base, piece.end_offset)
    at = _first_difference(source / name, target / name, size)
    if at is not None:
        yield f"{name} from byte {at} on"
    for suffix in (OFFSET_INDEX, TIME_INDEX, TXN_INDEX) if is_sealed else ():
        index = file_name(base, suffix)
        if _content(source / index) != _content(target / index):
            yield index


def _size_below(folder: Path, base: int, end: int) -> int:
    """Return up to which position an active segment has offsets below ``end``."""
    with LogSegment(folder, base) as segment:
        try:
            position = segment.translate_offset(end)
        except CorruptRecordError as error:  # a torn tail, above what is committed
            position = error.position
        return segment.size if position is None else position


def _content(path: Path) -> bytes | None:
    try:
        return read_regular(path, limit=_LARGEST_INDEX)
    except FileNotFoundError:
        return None


def _first_difference(one: Path, other: Path, size: int) -> int | None:
    """Return the first position at which two files differ, of the first ``size`` bytes."""
    files: list[int] = []
    try:
        files.extend(open_regular(path) for path in (one, other))
        found = min(os.fstat(file).st_size for file in files)
        for position in range(0, min(size, found), _PIECE_BYTES):
            length = min(_PIECE_BYTES, size - position, found - position)
            first, second = (bytes(read_at(file, position, length)) for file in files)
            if first != second:
                return position + next(n for n in range(length) if first[n] != second[n])
        return found if found < size else None
    finally:
        for file in files:
            os.close(file)
