"""What a micro-batch of a query was planned to read, as its checkpoint has it in ``offsets``.

Spark writes the file before the batch runs, in lines:

====  ====================================================
line  meaning
====  ====================================================
1     the version, ``v1`` or ``v2``
2     a JSON object about the batch
3…    the end of each source, ``-`` for none. In ``v2`` after the source's name and a colon, in any
      order
====  ====================================================

``v1`` names no sources: they count from 0. ``v2`` is written with
``spark.sql.streaming.offsetLog.formatVersion=2``, or where the sources have names. Without them the
names are those numbers, too. A name has letters, digits and underscores.

Source: Spark 4.2 ``OffsetSeqLog``, ``OffsetMap``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kafkalog.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["last_batch", "query_offsets"]

_VERSIONS: Final = {"v1", "v2"}
_NOTHING: Final = "-"


def query_offsets(text: str) -> dict[str, str]:
    """Return the end of each source by its name, as JSON text; a source without an end is left out.

    Raises:
        CheckpointError: the text has another form.
    """
    version, *lines = text.splitlines() or [""]
    if version not in _VERSIONS or len(lines) < 2:
        raise CheckpointError(
            f"it begins with {version[:20]!r}, expected v1 or v2, a line about the batch, and the "
            "end of each source: this format is not known"
        )
    if version == "v1":
        found = {str(number): end for number, end in enumerate(lines[1:])}
    else:
        named = (line.partition(":") for line in lines[1:])
        found = {name: end for name, _, end in named}
    return {name: text for name, text in found.items() if text != _NOTHING}


def last_batch(folder: Path) -> int | None:
    """Return the number of the last micro-batch that has a file in a checkpoint's folder.

    Args:
        folder: ``offsets``, which has the batches that were planned, or ``commits``, which has
            those that have ended.

    Returns:
        None if there is none, or no such folder.

    Raises:
        OSError: the folder cannot be listed.
    """
    try:
        names = [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return None
    return max((int(name) for name in names if name.isdecimal()), default=None)
