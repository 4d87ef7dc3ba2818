r"""Kafka's checkpoint text format: ``*-offset-checkpoint`` and ``leader-epoch-checkpoint``.

======  =============================================================
line    content (UTF-8, each line ends in ``\n``)
======  =============================================================
1       version: ``0``
2       number of entries that follow
3 ...   one entry a line: its fields, separated by white space
======  =============================================================

An empty file has no entries. The reader is as strict as Kafka's: another version, a line with too
few or too many fields, an empty line or a wrong count make the whole file unreadable. Entries have
no order. No checksum: a rename makes each version appear whole.

Source: Kafka ``CheckpointFile`` (server-common).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from kafkalog.errors import CheckpointError
from kafkalog.files.atomic import write_atomically
from kafkalog.files.regular import read_regular

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

__all__ = ["CHECKPOINT_VERSION", "parse_integer", "read_checkpoint", "write_checkpoint"]

CHECKPOINT_VERSION: Final = 0
"""On disk."""

_MAX_BYTES: Final = 64 << 20
"""Far above any real file: a broker with 100,000 partitions has one of 5 MB."""

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_WHITE_SPACE = re.compile(r"[ \t\v\f]+")

_FEW_DIGITS: Final = 10
"""Numbers with fewer fit 32 bits."""


def read_checkpoint(path: Path, *, fields: int) -> list[tuple[str, ...]]:
    """Read the entries of a checkpoint file, each of exactly ``fields`` words.

    Raises:
        FileNotFoundError: there is no such file.
        CheckpointError: the content breaks the format; says in which line.
        LogDirectoryError: not a regular file, or not readable.
    """
    content = read_regular(path, limit=_MAX_BYTES)
    try:
        lines = content.decode().replace("\r\n", "\n").split("\n")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: not UTF-8 at byte {error.start}") from error
    if lines[-1] == "":
        lines.pop()
    if not lines:
        return []
    version = parse_integer(lines[0], 32, path, 1)
    if version != CHECKPOINT_VERSION:
        raise CheckpointError(
            f"{path}: version {version}, only version {CHECKPOINT_VERSION} is known"
        )
    if len(lines) == 1:
        raise CheckpointError(f"{path}: ends before the number of entries in line 2")
    count = parse_integer(lines[1], 32, path, 2)
    if count != len(lines) - 2:
        raise CheckpointError(f"{path}: announces {count} entries and has {len(lines) - 2}")
    return [_split(line, fields, path, number) for number, line in enumerate(lines[2:], start=3)]


def _split(line: str, fields: int, path: Path, number: int) -> tuple[str, ...]:
    words = tuple(line.split(" "))  # as a broker writes them, and it may be 100,000 lines
    if len(words) != fields or "" in words or not line.isprintable():
        words = tuple(_WHITE_SPACE.split(line.rstrip(" \t\v\f")))
    if len(words) != fields or not words[0]:
        raise CheckpointError(f"{path}: line {number} is {line[:120]!r}, expected {fields} fields")
    return words


def parse_integer(text: str, bits: int, path: Path, line: int) -> int:
    """Parse a decimal integer as Java does: ASCII digits with a sign, of ``bits`` bits."""
    if len(text) < _FEW_DIGITS and text.isascii() and text.isdecimal():
        return int(text)
    if not _INTEGER.fullmatch(text) or not -(1 << (bits - 1)) <= int(text) < 1 << (bits - 1):
        raise CheckpointError(f"{path}: line {line}: {text[:40]!r} is no {bits}-bit integer")
    return int(text)


def write_checkpoint(
    path: Path, entries: Iterable[Sequence[object]], *, fsync: bool = True
) -> None:
    """Replace the file atomically; the fields of an entry must print without white space.

    Raises:
        CheckpointError: it would be larger than what is read again; it is left as it was.
    """
    lines = [" ".join(str(field) for field in entry) for entry in entries]
    data = "\n".join([str(CHECKPOINT_VERSION), str(len(lines)), *lines, ""]).encode()
    if len(data) > _MAX_BYTES:
        raise CheckpointError(
            f"{path} would have {len(data)} bytes, and more than {_MAX_BYTES} are not read again. "
            "It was left as it is: spread the topics over several sets of log directories"
        )
    write_atomically(path, data, fsync=fsync)
