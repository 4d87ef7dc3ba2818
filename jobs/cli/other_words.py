"""What people type for a command that has another name here."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

__all__ = ["meant_by"]

_WORDS: Final = {
    "topics": "list ls list-topics",
    "describe": "config configs info inspect log-dirs show",
    "dump": "dump-log log segments",
    "dump --records": "cat consume console-consumer consumer head messages print read records view",
    "dump --records --follow": "follow listen subscribe tail watch",
    "append": "console-producer insert produce producer pub publish put send write",
    "find": "grep search",
    "get": "key look-up lookup",
    "sql": "query select",
    "stats": "count size",
    "offsets": "end-offsets get-offsets",
    "groups": "consumer-groups consumers",
    "groups reset": "reset reset-group reset-offsets seek",
    "lag": "behind",
    "verify": "check fsck validate",
    "recover": "clean-up cleanup fix repair",
    "salvage": "rescue",
    "create": "add-topic create-topic mkdir new",
    "alter": "alter-topic change edit set update",
    "delete": "delete-topic drop remove rm",
    "delete-records": "purge truncate",
    "retain": "expire retention",
    "compact": "clean cleaner compaction",
    "backup": "copy cp export snapshot",
    "elect": "leader-election",
    "run archive": "archive",
    "run ingest": "import ingest load",
    "run maintain": "maintain",
    "run mirror": "mirror",
    "run replay": "replay",
    "run restore": "restore",
    "--help": "help man usage",
    "--version": "version",
}
"""By command: words of other tools, and names of pipelines."""


def meant_by(words: Sequence[str], commands: Collection[str]) -> str | None:
    """Return the command that is meant by the first words of a line; None if it is not known.

    ``groups rest LOG`` would take ``rest`` for a folder: where there is none, it is meant as a
    command of two words.
    """
    first, *rest = words
    if first not in commands:
        return next((name for name, others in _WORDS.items() if first in others.split()), None)
    if not rest or Path(rest[0]).exists():
        return None
    seconds = [name for name in commands if name.startswith(f"{first} ")]
    near = get_close_matches(f"{first} {rest[0]}", seconds, n=1, cutoff=0.8)
    return near[0] if near else None
