"""The local paths that texts name: plain ones, and ``file:`` URIs."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from kafkalog.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["SCHEME", "folder_in_both", "local_path", "split_paths"]

SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


def local_path(text: str) -> str:
    """Return the absolute local path of a path or a ``file:`` URI.

    Raises:
        OptionError: it is not local, or no path can be so.
    """
    path = _without_scheme(text)
    if "\0" in path:
        raise OptionError(f"{text!r} has a NUL character, which no path can have")
    return os.path.abspath(path)  # noqa: PTH100 - Path.absolute() keeps '..'


def _without_scheme(text: str) -> str:
    if SCHEME.match(text) is None:
        return text
    uri = urlsplit(text)
    if uri.scheme.lower() != "file":
        shown = text.partition("?")[0].rpartition("@")[2]  # the rest may hold secrets
        raise OptionError(
            f"{shown!r} is not on a local file system: logs are written with locks, renames and "
            "fsync, which stores have not; write to a local path (or a file: URI) and copy it"
        )
    if uri.netloc not in {"", "localhost"} or not uri.path.startswith("/"):
        raise OptionError(f"{text!r} is no local file: URI; write file:///folder")
    return unquote(uri.path)


def split_paths(text: str, read: Callable[[str], str] = local_path) -> tuple[str, ...]:
    """Return the log directories of a text, with commas between them; each is ``read`` by itself.

    Raises:
        OptionError: one is not local, or there twice.
    """
    paths = tuple(read(item.strip()) for item in text.split(",") if item.strip())
    repeated = sorted({path for path in paths if paths.count(path) > 1})
    if repeated:
        raise OptionError(f"log directory {repeated[0]} is listed twice")
    return paths


def folder_in_both(some: Iterable[str], others: Iterable[str]) -> str | None:
    """Return a folder that is among both, whatever links lead to it; None if there is none."""
    known = {os.path.realpath(path) for path in some}
    return min(known & {os.path.realpath(path) for path in others}, default=None)
