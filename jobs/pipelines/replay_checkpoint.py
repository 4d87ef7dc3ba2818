"""How far a replay has come: a file that is replaced before and after each piece."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from kafkalog.checkpoints.sealed_file import JsonObject, natural, read_sealed, seal, text
from kafkalog.errors import CheckpointError, OptionError
from kafkalog.files.atomic import create_atomically, make_with_parents, write_atomically
from kafkalog.files.paths import NodePlace, local_path, split_paths
from kafkalog.files.system import system
from kafkalog.streaming.source.offsets import from_json, to_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.source.offsets import PartitionOffsets

__all__ = ["FILE", "Piece", "ReplayCheckpoint"]

FILE: Final = "kafkalog.replay"
_VERSION: Final = 1
_PLACES: Final = {"LOG", "TARGET"}
_TERMINAL: Final = "-"
_KAFKA: Final = "kafka:"
_REMEDY: Final = "Give another folder, and --from the offsets to continue from"


class Piece(NamedTuple):
    """A part of a range: its number, and from which to which offsets (exclusive) it goes.

    ``begins`` are the partitions of which nothing was played before.
    """

    number: int
    start: PartitionOffsets
    end: PartitionOffsets
    begins: frozenset[TopicPartition] = frozenset()


@dataclass
class ReplayCheckpoint:
    """What one replay has begun and ended. Without a folder it is forgotten with the process."""

    folder: Path | None
    what: Mapping[str, str]
    """What is played where: a checkpoint is of that replay and no other."""
    id: str
    """The name under which its pieces are written."""
    piece: Piece | None = None
    """The last one."""
    ended: bool = True
    ids: Mapping[str, str] = field(default_factory=dict)
    """Of the topics that were played, as far as they have one."""

    @classmethod
    def open(cls, folder: str | None, what: Mapping[str, str]) -> Self:
        """Read what is in a folder; a new one has nothing.

        LOG and TARGET in ``what`` are noted, and compared, as whole paths.

        Raises:
            OptionError: the folder is not local, or is the checkpoint of something else.
            CheckpointError: its file is damaged.
        """
        what = {name: _whole(name, value) for name, value in what.items()}
        if folder is None:
            return cls(None, what, str(system.random_id()))
        (found,) = split_paths(folder)
        path = Path(found)
        sealed = read_sealed(path / FILE, FILE, _VERSION, remedy=_REMEDY)
        if sealed is None:
            if path.is_dir() and any(path.iterdir()):
                raise OptionError(
                    f"--checkpoint {folder} has files, and none of them is a replay's"
                )
            new = cls(path, what, str(system.random_id()))
            return new if new._create(path) else cls.open(folder, what)
        try:
            (line,) = sealed.lines
            piece = _piece_of(line)
            ids = {name: text(each) for name, each in line.get("ids", {}).items()}
            read = cls(path, line["what"], text(line["id"]), piece, bool(line["ended"]), ids)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{path / FILE} is no checkpoint of a replay: {error!r}"
            ) from None
        for name, value in what.items():
            noted = read.what.get(name)
            if noted is None or _whole(name, noted) != value:
                raise OptionError(
                    f"--checkpoint {folder} is of another replay: its {name} is {noted!r}, and "
                    f"{value!r} was given"
                )
        read.what = {**read.what, **what}
        return read

    @property
    def unfinished(self) -> Piece | None:
        """The piece that was begun and may not have ended."""
        return None if self.ended else self.piece

    @property
    def reached(self) -> PartitionOffsets:
        """Up to where all was played; empty at the beginning."""
        return {} if self.piece is None else self.piece.end

    def continue_at(self, reached: PartitionOffsets) -> None:
        """Note that all was played up to these offsets, and nothing beyond; none: nothing was."""
        number = 0 if self.piece is None else self.piece.number + 1
        self.piece = Piece(number, reached, reached)
        self.note_end()

    def note_begin(
        self,
        start: PartitionOffsets,
        end: PartitionOffsets,
        begins: frozenset[TopicPartition] = frozenset(),
    ) -> Piece:
        """Note, before it is played, what the next piece is."""
        number = 0 if self.piece is None else self.piece.number + 1
        self.piece = Piece(number, start, end, begins)
        self.ended = False
        self._write(self.piece)
        return self.piece

    def note_end(self) -> None:
        """Note that the piece was played."""
        self.ended = True
        if self.piece is not None:
            self._write(self.piece)

    def _create(self, folder: Path) -> bool:
        """Note the id before anything is played; returns whether nobody else has meanwhile.

        Two that begin at once are one replay then, and the target keeps them apart.
        """
        try:
            make_with_parents(folder)
            create_atomically(folder / FILE, self._sealed(Piece(0, {}, {})))
        except FileExistsError:
            return False
        except OSError as error:
            raise CheckpointError(f"{self.folder} cannot be written: {error}") from error
        return True

    def _write(self, piece: Piece) -> None:
        if self.folder is None:
            return
        path = self.folder / FILE
        try:
            if not path.exists():
                make_with_parents(self.folder)
            write_atomically(path, self._sealed(piece))
        except OSError as error:
            raise CheckpointError(f"{path} cannot be written: {error}") from error

    def _sealed(self, piece: Piece) -> bytes:
        line = {
            "what": dict(self.what),
            "id": self.id,
            "number": piece.number,
            "from": to_json(piece.start),
            "to": to_json(piece.end),
            "begins": to_json({key: piece.start[key] for key in piece.begins}),
            "ended": self.ended,
            "ids": dict(self.ids),
        }
        return seal(FILE, _VERSION, [line])


def _piece_of(line: JsonObject) -> Piece:
    start, end, begins = (from_json(line.get(name, {})) for name in ("from", "to", "begins"))
    return Piece(natural(line["number"]), start, end, frozenset(begins))


def _whole(name: str, value: str) -> str:
    """Return what tells LOG, TARGET or topics from others, in whatever words they are given.

    An earlier release noted paths as they were given: such a one counts from this folder.
    """
    if name == "topics":
        return ",".join(sorted(value.split(",")))
    if name not in _PLACES or value == _TERMINAL or value.startswith(_KAFKA):
        return value
    nodes: dict[int, list[str]] = {}
    for path in split_paths(value, _whole_path):
        if not isinstance(path, NodePlace):
            nodes.setdefault(0, []).append(path)
            continue
        prefix = "witness:" if path.is_witness else ""
        nodes.setdefault(path.node, []).append(prefix + os.path.realpath(path))
    return ";".join(",".join(sorted(paths)) for paths in nodes.values())


def _whole_path(text: str) -> str:
    try:
        return os.path.realpath(local_path(text))
    except OptionError:  # in a store
        return text.rstrip("/")
