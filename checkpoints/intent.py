"""The intent of a commit: what it is about to append, written before the first byte changes.

The file ``kafkalog.intent`` names by position, size and checksum all that a commit will write, so
that a later run can roll back an unfinished one and nothing else. An intent whose sequence number
is not above the state's is left over from a finished commit and never acted on.

It has the versions of the commit state (:mod:`~kafkalog.checkpoints.state_file`), and refuses what
it does not know from version 2 on. Version 1 says the same in the same words. Version 3 is of a
replicated set: it has ``"controllerEpoch":5`` in line 2, and a line for each replica.

::

    line 1        header, see :mod:`~kafkalog.checkpoints.sealed_file`; version 2
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
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from kafkalog.checkpoints.commit_state import FORMAT_VERSION, REPLICATED_VERSION, CommitStamp
from kafkalog.checkpoints.sealed_file import (
    JsonObject,
    check_fields,
    natural,
    numbered,
    read_sealed,
    seal,
    text,
)
from kafkalog.errors import CheckpointError, InvalidTopicError
from kafkalog.model import TopicPartition, partition_directory_name

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from kafkalog.checkpoints.commit_state import CommitState
    from kafkalog.checkpoints.sealed_file import Sealed

__all__ = [
    "INTENT_FILE",
    "IntendedPartition",
    "IntendedPiece",
    "IntendedSegment",
    "Intent",
    "StagedFile",
    "counts_no_more",
    "load_intent",
]

INTENT_FILE: Final = "kafkalog.intent"

_HEAD: Final = frozenset({"sequence", "commit", "set", "writer", "batch", "files"})
_REPLICATED_HEAD: Final = _HEAD | {"controllerEpoch"}
_PARTITION: Final = frozenset(
    {
        "topic",
        "key",
        "partition",
        "member",
        "created",
        "epoch",
        "startsEpoch",
        "start",
        "end",
        "snapshots",
        "pieces",
        "segments",
    }
)


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
    controller_epoch: int = 0
    """That of the controller whose commit it is; 0 with one node."""

    @classmethod
    def of_state(cls, state: CommitState, writer: str) -> Self:
        """Return the intent to publish a state, and to change no partition before that."""
        return cls(
            state.sequence,
            state.set_id,
            writer,
            0,
            (),
            state.commit_id,
            controller_epoch=state.controller_epoch,
        )

    @property
    def stamp(self) -> CommitStamp:
        """Which commit it is of."""
        return CommitStamp(self.sequence, self.commit_id)

    @property
    def files(self) -> tuple[StagedFile, ...]:
        """The staged files it reads, each once, in order of first use."""
        pieces = (piece for partition in self.partitions for piece in partition.pieces)
        return tuple(dict.fromkeys(piece.file for piece in pieces))

    def to_bytes(self) -> bytes:
        """Return the content of the file."""
        version = REPLICATED_VERSION if self.controller_epoch else FORMAT_VERSION
        return seal(INTENT_FILE, version, self._lines())

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
            **({"controllerEpoch": self.controller_epoch} if self.controller_epoch else {}),
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


def counts_no_more(prepared: CommitState, newest: CommitState, intents: Iterable[Intent]) -> bool:
    """Whether what lies prepared counts no more: a newer controller has looked and not found it.

    ``newest`` is the state in place, ``intents`` are those that lie there. One of the same commit
    is of whoever has prepared it, or was about to finish it.
    """
    others = (each for each in intents if each.stamp != prepared.stamp)
    epochs = [newest.controller_epoch, *(each.controller_epoch for each in others)]
    return prepared.controller_epoch < max(epochs)


def load_intent(directory: Path) -> Intent | None:
    """Read the intent that one log directory holds; None if it holds none.

    Raises:
        CheckpointError: it is damaged, from a newer release, or no regular file.
    """
    path = directory / INTENT_FILE
    sealed = read_sealed(path, INTENT_FILE, REPLICATED_VERSION)
    if sealed is None:
        return None
    try:
        head = {FORMAT_VERSION: _HEAD, REPLICATED_VERSION: _REPLICATED_HEAD}[sealed.version]
        _check_epoch(sealed)
        for number, line in numbered(sealed.lines):
            check_fields(path, number, line, head if number == 2 else _PARTITION)
        return _parse(sealed.lines)
    except (AttributeError, LookupError, TypeError, ValueError, InvalidTopicError) as error:
        fault = f"{path} holds what no release of kafkalog has written: {error!r}"
        raise CheckpointError(fault, fault=fault) from error


def _check_epoch(sealed: Sealed) -> None:
    """Refuse a version that is not the one which was written: it lies outside the checksum."""
    if sealed.version >= REPLICATED_VERSION and "controllerEpoch" not in sealed.lines[0]:
        raise ValueError("a replicated set without a controller epoch")


def _parse(lines: list[JsonObject]) -> Intent:
    head = lines[0]
    files = [_staged_file(entry) for entry in head["files"]]
    return Intent(
        sequence=natural(head["sequence"]),
        set_id=text(head["set"]),
        writer=text(head["writer"]),
        batch_id=natural(head["batch"]),
        partitions=tuple(_parse_partition(line, files) for line in lines[1:]),
        commit_id=text(head.get("commit", "")),
        controller_epoch=natural(head.get("controllerEpoch", 0)),
    )


def _staged_file(entry: list[str]) -> StagedFile:
    member_id, name = entry
    if "/" in text(name) or not name.startswith("."):
        raise ValueError(f"{name!r} is no name of a staged file")
    return StagedFile(text(member_id), name)


def _parse_partition(line: JsonObject, files: list[StagedFile]) -> IntendedPartition:
    partition_directory_name(text(line["topic"]), natural(line["partition"]))
    return IntendedPartition(
        topic=line["topic"],
        key=text(line["key"]),
        partition=line["partition"],
        member_id=text(line["member"]),
        created=_flag(line["created"]),
        leader_epoch=_integer(line["epoch"]),
        starts_epoch=_flag(line["startsEpoch"]),
        start_offset=natural(line["start"]),
        end_offset=natural(line["end"]),
        snapshots=tuple(map(natural, line["snapshots"])),
        pieces=tuple(
            IntendedPiece(
                files[natural(file)],
                natural(position),
                natural(size),
                natural(crc),
                natural(records),
                _flag(keeps_offsets),
            )
            for file, position, size, crc, records, keeps_offsets in line["pieces"]
        ),
        segments=tuple(
            IntendedSegment(natural(base), natural(before), natural(after), _flag(created))
            for base, before, after, created in line["segments"]
        ),
    )


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r:.100} where true or false belongs")
    return value


def _integer(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r:.100} where a number belongs")
    return value
