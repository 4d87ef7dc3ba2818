"""Compute the folders and files that readers of a bucket see, from the state of its log.

Each partition is a folder. Its extents, one after the other, are segments with their indexes;
beside them lies ``partition.metadata``, and in the root ``kafkalog.commit``. None of it is stored.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kafkalog.checkpoints.bucket_state import object_path
from kafkalog.checkpoints.commit_state import STATE_FILE, CommitState
from kafkalog.checkpoints.state_file import state_bytes
from kafkalog.files.remote_path import RemoteEntry, hash_number
from kafkalog.model import partition_directory_name
from kafkalog.streaming.log.files import LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX, file_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kafkalog.checkpoints.bucket_state import BucketState, Extent, ExtentKey
    from kafkalog.checkpoints.commit_state import PartitionState

__all__ = [
    "METADATA",
    "ROOT",
    "BucketFiles",
    "PartitionFiles",
    "SealedIndex",
    "Segment",
    "files_of_state",
    "segment_number",
]

ROOT: Final = "log"
"""The key of the root of the log."""
METADATA: Final = "partition.metadata"
_STATE_KEY: Final = f"{ROOT}/{STATE_FILE}"
_SEGMENT_BYTES: Final = 1 << 30
_SEGMENT_OFFSETS: Final = 1 << 31
_MEMBER: Final = "bucket"


class Segment(NamedTuple):
    """Some extents of a partition, one after the other."""

    extents: list[Extent]
    ends: list[int]
    """Where each ends, in bytes of the segment."""
    number: int
    """What tells it from every other segment, of a topic of the same name too."""
    log_id: str

    @property
    def size(self) -> int:
        """Bytes of all extents."""
        return self.ends[-1] if self.ends else 0


class SealedIndex(NamedTuple):
    """An index of a sealed segment."""

    path: str
    """Where it lies below the root."""
    size: int
    number: int
    entries: bytes
    """Those of every so many slots."""


class BucketFiles(NamedTuple):
    """The files that follow from the state of a log as of one commit."""

    number: int
    folders: dict[str, list[RemoteEntry]]
    entries: dict[str, RemoteEntry]
    """Of files, by their keys."""
    files: dict[str, bytes | Segment | SealedIndex]
    ends: dict[str, int]
    """Where logs end, by their folders."""
    committed: CommitState | None = None


class PartitionFiles(NamedTuple):
    """What is shown of one partition, as of the commit that has changed it last."""

    follows_from: tuple[str, str, PartitionState, list[Extent]]
    folder: RemoteEntry
    files: dict[str, bytes | Segment | SealedIndex]
    entries: dict[str, RemoteEntry]


def files_of_state(state: BucketState, parts: dict[ExtentKey, PartitionFiles]) -> BucketFiles:
    """Show a state; ``parts`` has what was shown before, and is brought up to date."""
    committed = _commit_state(state)
    content = state_bytes(committed)
    files: dict[str, bytes | Segment | SealedIndex] = {_STATE_KEY: content}
    entries = {_STATE_KEY: RemoteEntry(STATE_FILE, False, len(content), state.number)}
    folders: dict[str, list[RemoteEntry]] = {ROOT: []}
    ends: dict[str, int] = {}
    for topic_id, topic in state.topics.items():
        for number, partition in topic.partitions.items():
            key = topic_id, number
            extents = state.extents.get(key, [])
            part = parts.get(key)
            if part is None or part.follows_from != (
                state.log_id,
                topic.name,
                partition,
                extents,
            ):
                part = parts[key] = _partition_files(state, topic.name, key, partition)
            folder = f"{ROOT}/{part.folder.name}"
            folders[ROOT].append(part.folder)
            folders[folder] = list(part.entries.values())
            ends[folder] = partition.log_end
            files.update(part.files)
            entries.update(part.entries)
    if len(parts) > len(ends):
        for key in [(i, n) for i, n in parts if i not in state.topics]:
            del parts[key]
    folders[ROOT].append(entries[_STATE_KEY])
    return BucketFiles(state.number, folders, entries, files, ends, committed)


def _partition_files(
    state: BucketState, topic: str, key: ExtentKey, partition: PartitionState
) -> PartitionFiles:
    topic_id, number = key
    name = partition_directory_name(topic, number)
    folder = f"{ROOT}/{name}"
    files: dict[str, bytes | Segment | SealedIndex] = {}
    files[f"{folder}/{METADATA}"] = f"version: 0\ntopic_id: {topic_id}".encode()
    extents = list(state.extents.get(key, []))
    if not extents:  # a log is never without a segment: it tells where it ends
        for suffix in (LOG, ".index", ".timeindex"):
            files[f"{folder}/{file_name(partition.log_end, suffix)}"] = b""
    for segment in _segments(extents, f"{topic_id} {number}", state.log_id):
        base = segment.extents[0].base_offset
        files[f"{folder}/{file_name(base, LOG)}"] = segment
        for suffix, content in _indexes(segment, state.log_id):
            files[f"{folder}/{file_name(base, suffix)}"] = content
    entries = {}
    for path, shown in files.items():
        size = len(shown) if isinstance(shown, bytes) else shown.size
        file = path.rpartition("/")[2]
        entries[path] = RemoteEntry(file, False, size, _version(shown, state))
    follows_from = state.log_id, topic, partition, extents
    return PartitionFiles(follows_from, RemoteEntry(name, True, 0, -1), files, entries)


def _version(shown: bytes | Segment | SealedIndex, state: BucketState) -> int:
    """Return what changes when a file does: with a commit to its partition, if it is not sealed."""
    if isinstance(shown, SealedIndex):
        return shown.number
    if isinstance(shown, Segment) and shown.extents[0].sealed is not None:
        return shown.number
    return hash_number(state.log_id, str(state.number))


def _commit_state(state: BucketState) -> CommitState:
    return CommitState(
        sequence=state.number,
        set_id=state.log_id,
        member_id=_MEMBER,
        member_ids=(_MEMBER,),
        topics=dict(state.topics),
        writers=dict(state.writers),
        commit_id=state.commit_id,
    )


def _segments(extents: list[Extent], partition: str, log_id: str) -> Iterator[Segment]:
    first = 0
    size = 0
    for slot, extent in enumerate([*extents, None]):
        is_sealed = extent is not None and extent.sealed is not None
        ends = extent is None or (
            slot > first
            and (
                is_sealed
                or extents[first].sealed is not None
                or size + extent.size > _SEGMENT_BYTES
                or extent.end_offset - extents[first].base_offset > _SEGMENT_OFFSETS
            )
        )
        if ends and slot > first:
            some = extents[first:slot]
            number = segment_number(some[0], partition)
            yield Segment(some, list(accumulate(each.size for each in some)), number, log_id)
            first, size = slot, 0
        if extent is not None:
            size += extent.size


def segment_number(first: Extent, partition: str = "") -> int:
    """Return what tells a segment from every other one; ``partition``: its topic id and number.

    A segment that is sealed is not the one whose extents it has taken the place of.
    """
    if first.sealed is not None:
        return hash_number(first.object)
    return hash_number(partition, str(first.base_offset))


def _sealed_indexes(extent: Extent, log_id: str) -> Iterator[tuple[str, bytes | SealedIndex]]:
    sealed = extent.sealed
    assert sealed is not None  # noqa: S101 - who calls it has looked
    for suffix, size, entries in (
        (OFFSET_INDEX, sealed.offset_bytes, sealed.offset_entries),
        (TIME_INDEX, sealed.time_bytes, sealed.time_entries),
        (TXN_INDEX, sealed.txn_bytes, b""),
    ):
        path = object_path(log_id, extent.object, suffix)
        if size:
            yield suffix, SealedIndex(path, size, hash_number(path), entries)
        elif suffix != TXN_INDEX:
            yield suffix, b""


def _indexes(segment: Segment, log_id: str) -> Iterator[tuple[str, bytes | SealedIndex]]:
    """Yield the sparse indexes of a segment: an entry for each extent but the first."""
    if segment.extents[0].sealed is not None:
        yield from _sealed_indexes(segment.extents[0], log_id)
        return
    base = segment.extents[0].base_offset
    offsets = [
        (each.base_offset - base, end - each.size)
        for each, end in zip(segment.extents, segment.ends, strict=True)
    ]
    yield ".index", np.array(offsets[1:], ">i4").tobytes()
    times: list[tuple[int, int]] = []
    for extent in segment.extents:
        if extent.max_timestamp > (times[-1][0] if times else -1):
            times.append((extent.max_timestamp, extent.end_offset - 1 - base))
    yield ".timeindex", np.array(times, [("time", ">i8"), ("offset", ">i4")]).tobytes()
