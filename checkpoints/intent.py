"""What a commit is about to do, written to every log directory before the first byte is changed.

The file ``kafkalog.intent`` names by position, size and checksum all that a commit will write, so
that a later run can take back an unfinished one and nothing else. An intent whose sequence number
is not above the state's is left over from a finished commit and never acted on.

::

    line 1        header, see :mod:`~kafkalog.checkpoints.sealed_file`; version 1
    line 2        {"sequence":8,"commit":"…","set":"…","writer":"query:…","batch":13,
                   "files":[["<member id>",".kafkalog.staged.…"],…]}
    a partition   {"topic":"flights","key":"<topic id>","partition":0,"member":"…","created":false,
                   "epoch":0,"startsEpoch":false,"start":120,"end":160,"snapshots":[150],
                   "pieces":[[file,position,size,crc32c,records,keeps offsets],…],
                   "segments":[[base offset,size before,size after,created],…]}

``created``, ``startsEpoch``: the folder, and its ``leader-epoch-checkpoint``, are made by this
commit. ``start``, ``end``: the log end offset before and after. ``snapshots``: the producer
snapshots that are made. ``pieces``: the staged runs in the order in which they are appended;
``file`` counts in ``files``. ``segments``: first the one that is appended to, then those that are
made; any other segment is not touched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from kafkalog.checkpoints.sealed_file import JsonObject, read_sealed, seal
from kafkalog.errors import CheckpointError, InvalidTopicError
from kafkalog.model import TopicPartition, partition_directory_name

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = [
    "INTENT_FILE",
    "IntendedPartition",
    "IntendedPiece",
    "IntendedSegment",
    "Intent",
    "StagedFile",
    "load_intent",
]

INTENT_FILE: Final = "kafkalog.intent"

_VERSION: Final = 1


class StagedFile(NamedTuple):
    """A staged file by the directory (member id) whose root it is in, and its name."""

    member_id: str
    name: str


class IntendedPiece(NamedTuple):
    """``size`` bytes at ``position`` of a staged file: whole batches of one partition.

    With ``keeps_offsets`` they have their final offsets there already.
    """

    file: StagedFile
    position: int
    size: int
    crc32c: int
    records: int
    keeps_offsets: bool = False


class IntendedSegment(NamedTuple):
    """A segment that the commit appends to or makes; sizes are those of its log, in bytes."""

    base_offset: int
    size_before: int
    size_after: int
    created: bool = False


@dataclass(frozen=True, slots=True)
class IntendedPartition:
    """What the commit does to one partition."""

    topic: str
    key: str
    partition: int
    member_id: str
    created: bool
    leader_epoch: int
    starts_epoch: bool
    start_offset: int
    end_offset: int
    snapshots: tuple[int, ...]
    pieces: tuple[IntendedPiece, ...]
    segments: tuple[IntendedSegment, ...]

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition's name."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class Intent:
    """One commit in progress."""

    sequence: int
    set_id: str
    writer: str
    batch_id: int
    partitions: tuple[IntendedPartition, ...]
    commit_id: str = ""
    """That of the state which publishes it."""

    @property
    def files(self) -> tuple[StagedFile, ...]:
        """The staged files it reads, each once, in order of first use."""
        pieces = (piece for partition in self.partitions for piece in partition.pieces)
        return tuple(dict.fromkeys(piece.file for piece in pieces))

    def to_bytes(self) -> bytes:
        """Give the content of the file."""
        return seal(INTENT_FILE, _VERSION, self._lines())

    def _lines(self) -> Iterable[JsonObject]:
        files = self.files
        numbers = {file: number for number, file in enumerate(files)}
        yield {
            "sequence": self.sequence,
            "commit": self.commit_id,
            "set": self.set_id,
            "writer": self.writer,
            "batch": self.batch_id,
            "files": [list(file) for file in files],
        }
        for intended in self.partitions:
            yield {
                "topic": intended.topic,
                "key": intended.key,
                "partition": intended.partition,
                "member": intended.member_id,
                "created": intended.created,
                "epoch": intended.leader_epoch,
                "startsEpoch": intended.starts_epoch,
                "start": intended.start_offset,
                "end": intended.end_offset,
                "snapshots": list(intended.snapshots),
                "pieces": [[numbers[piece.file], *piece[1:]] for piece in intended.pieces],
                "segments": [list(segment) for segment in intended.segments],
            }


def load_intent(directory: Path) -> Intent | None:
    """Read the intent that one log directory holds; None if it holds none.

    Raises:
        CheckpointError: it is damaged, from a newer release, or no regular file.
    """
    path = directory / INTENT_FILE
    lines = read_sealed(path, INTENT_FILE, _VERSION)
    if lines is None:
        return None
    try:
        return _parse(lines)
    except (AttributeError, LookupError, TypeError, ValueError, InvalidTopicError) as error:
        raise CheckpointError(
            f"{path} holds what no release of kafkalog has written: {error!r}"
        ) from error


def _parse(lines: list[JsonObject]) -> Intent:
    head = lines[0]
    files = [_staged_file(entry) for entry in head["files"]]
    return Intent(
        sequence=int(head["sequence"]),
        set_id=str(head["set"]),
        writer=str(head["writer"]),
        batch_id=int(head["batch"]),
        partitions=tuple(_parse_partition(line, files) for line in lines[1:]),
        commit_id=str(head.get("commit", "")),
    )


def _staged_file(entry: list[str]) -> StagedFile:
    member_id, name = entry
    if "/" in name or not name.startswith("."):
        raise ValueError(f"{name!r} is no name of a staged file")
    return StagedFile(member_id, name)


def _parse_partition(line: JsonObject, files: list[StagedFile]) -> IntendedPartition:
    partition_directory_name(line["topic"], line["partition"])
    return IntendedPartition(
        topic=line["topic"],
        key=line["key"],
        partition=line["partition"],
        member_id=line["member"],
        created=line["created"],
        leader_epoch=line["epoch"],
        starts_epoch=line["startsEpoch"],
        start_offset=line["start"],
        end_offset=line["end"],
        snapshots=tuple(map(int, line["snapshots"])),
        pieces=tuple(
            IntendedPiece(files[file], position, size, crc, records, bool(keeps_offsets))
            for file, position, size, crc, records, keeps_offsets in line["pieces"]
        ),
        segments=tuple(
            IntendedSegment(int(base), int(before), int(after), bool(created))
            for base, before, after, created in line["segments"]
        ),
    )
