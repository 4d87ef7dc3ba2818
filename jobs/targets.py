"""Files that commands write for people: never among the files of a log."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kafkalog.errors import KafkaLogError, OptionError
from kafkalog.files.local_paths import local_path

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["check_file"]

_BETWEEN: Final = re.compile("[,;]")


def check_file(option: str, path: Path, logs: Sequence[str], *, example: str) -> None:
    """See whether a file may have this name.

    Args:
        option: what named it.
        path: its name.
        logs: log directories, as a command is given them.
        example: how such a file may be called.

    Raises:
        OptionError: it is a folder, or lies in one of the log directories; or there is no folder
            for it.
    """
    if path.is_dir():
        raise OptionError(
            f"{option} names {path}, which is a folder: name a file, such as {path / example}"
        )
    if not path.parent.is_dir():
        raise OptionError(f"{option} names {path}, but {path.parent} is no folder")
    folder = path.parent.resolve()
    for log in _local(logs):
        if log == folder or log in folder.parents:
            raise OptionError(
                f"{option} names {path}, which lies in the log directory {log}: name a file "
                "elsewhere"
            )


def _local(logs: Sequence[str]) -> list[Path]:
    found = []
    for text in filter(None, map(str.strip, _BETWEEN.split(",".join(logs)))):
        with suppress(KafkaLogError, OSError):  # a store: no local file lies there
            found.append(Path(local_path(text.removeprefix("witness:"))).resolve())
    return found
