"""Text files with a version and a checksum of their content.

::

    line 1   {"format":"kafkalog.commit","version":1,"crc32c":"1f2e3d4c"}
    line 2…  one JSON object a line: what it means is the business of the format

The checksum is the CRC-32C of all bytes after line 1, as eight hex digits. A file that is damaged
or comes from a newer release is never guessed at: reading it fails, and the error says what to do.
A format may also refuse fields that it does not know (:func:`check_fields`): a release that passes
over one leaves it out of what it writes next.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from crc32c import crc32c

from kafkalog.errors import CheckpointError, LogDirectoryError
from kafkalog.files.regular import read_regular

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from collections.abc import Set as AbstractSet
    from pathlib import Path

__all__ = [
    "RESTORE",
    "JsonObject",
    "Sealed",
    "check_fields",
    "natural",
    "numbered",
    "read_head",
    "read_sealed",
    "seal",
    "text",
    "texts",
    "unknown_content",
    "unseal",
]

JsonObject = dict[str, Any]

MAX_BYTES: Final = 256 << 20
"""A state of a million partitions takes a tenth of it; what is larger is no file of ours."""

RESTORE: Final = (
    "Restore all log directories of the set from one backup. Or, to continue from what the logs "
    "hold, move the kafkalog.* files of all of them away, and run `kafkalog broker takeover`: it "
    "forgets who has written what"
)


class Sealed(NamedTuple):
    """What a sealed file holds: its version, its lines below the header, and their checksum."""

    version: int
    lines: list[JsonObject]
    crc: str


def seal(format_name: str, version: int, lines: Iterable[Mapping[str, object]]) -> bytes:
    """Return the bytes of a file of ``format_name`` that holds ``lines``.

    Raises:
        CheckpointError: they are more than anybody would read again.
    """
    content = "".join(f"{_compact(line)}\n" for line in lines).encode()
    header = {"format": format_name, "version": version, "crc32c": f"{crc32c(content):08x}"}
    data = f"{_compact(header)}\n".encode() + content
    if len(data) > MAX_BYTES:
        raise CheckpointError(
            f"{format_name} would have {len(data)} bytes, and more than {MAX_BYTES} are not read "
            "again. The file was left as it is. Write fewer topics and partitions at a time, or "
            "spread the topics over several sets of log directories"
        )
    return data


def read_sealed(
    path: Path, format_name: str, version: int, *, remedy: str = RESTORE
) -> Sealed | None:
    """Read a sealed file; None if there is none.

    ``remedy`` says what to do about a damaged one; default for those of a log directory.

    Raises:
        CheckpointError: it is a link or no regular file, damaged, or newer than ``version``.
    """
    data = _read(path)
    return None if data is None else unseal(data, path, format_name, version, remedy=remedy)


def unseal(
    data: bytes, path: Path | str, format_name: str, version: int, *, remedy: str = RESTORE
) -> Sealed:
    """Return what the bytes of a sealed file hold; ``path`` names it in messages.

    Raises:
        CheckpointError: they are damaged, or newer than ``version``.
    """
    header_line, newline, content = data.partition(b"\n")
    header = _json_object(header_line) if newline else None
    if header is None or header.get("format") != format_name:
        raise _damaged(path, f"it does not start with the header of a {format_name} file", remedy)
    found = header.get("version")
    if not isinstance(found, int) or found < 1:
        raise _damaged(path, f"its version is {found!r}", remedy)
    if found > version:
        raise CheckpointError(
            f"{path} has version {found}, this release of kafkalog knows versions up to {version}: "
            "use the release that wrote it, or a newer one"
        )
    stored, computed = header.get("crc32c"), f"{crc32c(content):08x}"
    if stored != computed:
        reason = f"its content has the checksum {computed}, the header says {stored!r}"
        raise _damaged(path, reason, remedy)
    lines = [_json_object(line) for line in content.splitlines()]
    if not lines or None in lines:
        raise _damaged(path, "a line of it is no JSON object", remedy)
    return Sealed(found, [line for line in lines if line is not None], computed)


def read_head(path: Path, *, remedy: str = RESTORE) -> JsonObject | None:
    """Read the first object of a sealed file, and do not look at what comes after it.

    Raises:
        CheckpointError: it is no sealed file.
    """
    data = _read(path)
    if data is None:
        return None
    _, _, content = data.partition(b"\n")
    found = _json_object(content.partition(b"\n")[0])
    if found is None:
        raise _damaged(path, "its second line is no JSON object", remedy)
    return found


def numbered(lines: Iterable[JsonObject]) -> Iterable[tuple[int, JsonObject]]:
    """Return the lines below the header with their numbers in the file, as an editor counts."""
    return enumerate(lines, start=2)


def check_fields(path: Path | str, number: int, line: JsonObject, known: AbstractSet[str]) -> None:
    """Refuse a line that has other fields than those that are known.

    Raises:
        CheckpointError: it has.
    """
    if unknown := sorted(line.keys() - known):
        raise unknown_content(path, number, f"the field {unknown[0]!r}")


def unknown_content(path: Path | str, number: int, what: str) -> CheckpointError:
    """Say that a line holds what this release does not know."""
    return CheckpointError(
        f"{path}: line {number} has {what:.200}, which this release of kafkalog does not know and "
        "would lose. Nothing was changed. Use the release that wrote the file, or a newer one"
    )


# What a field holds


def natural(value: object) -> int:
    """Return an int64 from 0 on; a ValueError says that it is none."""
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{value!r:.100} where a number from 0 to 2^63-1 belongs")
    return value


def text(value: object) -> str:
    """Return a text; a TypeError says that it is none."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.100} where text belongs")
    return value


def texts(value: object) -> tuple[str, ...]:
    """Return a list of texts; a TypeError or ValueError says that it is none."""
    if not isinstance(value, list):
        raise TypeError(f"{value!r:.100} where a list belongs")
    return tuple(map(text, value))


def _compact(line: Mapping[str, object]) -> str:
    return json.dumps(line, separators=(",", ":"), ensure_ascii=True)


def _json_object(line: bytes) -> JsonObject | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _damaged(path: Path | str, reason: str, remedy: str) -> CheckpointError:
    fault = f"{path} is damaged: {reason}"
    return CheckpointError(f"{fault}. Nothing was changed. {remedy}", fault=fault)


def _read(path: Path) -> bytes | None:
    try:
        return read_regular(path, limit=MAX_BYTES)
    except FileNotFoundError:
        return None
    except LogDirectoryError as error:
        is_damage = not isinstance(error.__cause__, PermissionError)
        raise CheckpointError(str(error), fault=str(error) if is_damage else "") from error
