"""Paths from texts: local ones, ``file:`` URIs, and what lies in a store."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import unquote, urlsplit

from kafkalog.errors import OptionError
from kafkalog.files.storage import RemoteRoot, TieredRoot, is_object_uri

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


__all__ = [
    "SCHEME",
    "NodePlace",
    "as_path",
    "folder_in_both",
    "local_path",
    "node_of",
    "refuse_among_logs",
    "split_paths",
]


# ----------------------------------------------------------------------------------------------
# From the name of a place to its path: local, or in a store.


def as_path(place: str | Path) -> Path:
    """Return the path of a log directory, or of what a slice names."""
    if isinstance(place, RemoteRoot):
        if (shown := place.open_log()) is not None:
            return shown
        from kafkalog.files.remote_store import open_store  # noqa: PLC0415 - loads pyarrow.fs

        return open_store(place).root
    return Path(place) if isinstance(place, str) else place


# ----------------------------------------------------------------------------------------------
# The local paths that texts name: plain ones, and ``file:`` URIs.
#
# Commas stand between the log directories of one node, semicolons between nodes::
#
#     /mnt/a/log1,/mnt/a/log2;/mnt/b/log;witness:/mnt/c/log


SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")

_WITNESS: Final = "witness:"

_ELSEWHERE: Final = (
    "Name a folder elsewhere; a query that has run continues if what it keeps here is moved there"
)


class NodePlace(str):  # noqa: SLOT000 - a text has no room for slots
    """A log directory of one of several nodes: its path, and which of them it belongs to.

    ``node`` counts from 0 in the order in which the nodes were named. A witness votes, and holds
    no partitions.
    """

    node: int
    is_witness: bool

    def __new__(cls, path: str, node: int, is_witness: bool = False) -> Self:
        """Name a directory of a node."""
        place = super().__new__(cls, path)
        place.node, place.is_witness = node, is_witness
        return place

    def __getnewargs__(self) -> tuple[str, int, bool]:  # type: ignore[override]
        """Return what a copy in another process is made of."""
        return str(self), self.node, self.is_witness


def node_of(place: object) -> int | None:
    """Return which of several nodes a log directory belongs to; None of one node's."""
    return place.node if isinstance(place, NodePlace | TieredRoot) else None


def local_path(text: str) -> str:
    """Return the absolute local path of a path or a ``file:`` URI.

    Raises:
        OptionError: it is not local, or no path can be so.
    """
    path = _without_scheme(text)
    if "\0" in path:
        raise OptionError(f"{text!r} has a NUL character, which no path can have")
    if path == "~" or path.startswith("~/"):  # a folder of that name would be made here
        raise OptionError(f"{text!r} begins with ~, which a shell replaces: give the whole path")
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise OptionError(f"{text!r} has half of a letter, which no path can have") from None
    return os.path.abspath(path)  # noqa: PTH100 - Path.absolute() keeps '..'


def _without_scheme(text: str) -> str:
    if SCHEME.match(text) is None:
        return text
    uri = urlsplit(text)
    if uri.scheme.lower() != "file":
        shown = text.partition("?")[0].rpartition("@")[2]  # the rest may hold secrets
        why = "logs are written with locks, renames and fsync, which stores have not; write to a "
        why += "local path (or a file: URI) and copy it"
        if is_object_uri(text):
            why = "this does not know a log in a bucket yet; docs/buckets.md says what does"
        raise OptionError(f"{shown!r} is not on a local file system: {why}")
    if uri.netloc not in {"", "localhost"} or not uri.path.startswith("/"):
        raise OptionError(f"{text!r} is no local file: URI; write file:///folder")
    return unquote(uri.path)


def split_paths(text: str, read: Callable[[str], str] = local_path) -> tuple[str, ...]:
    """Return the log directories of a text; each is ``read`` by itself.

    Those of several nodes are :class:`NodePlace`.

    Raises:
        OptionError: one is not local, or there twice; or the text is a folder's very name.
    """
    _refuse_literal(text)
    nodes = [node for part in text.split(";") if (node := _listed(part))]
    paths: tuple[str, ...]
    if len(nodes) > 1 or (nodes and nodes[0][0].startswith(_WITNESS)):
        paths = tuple(place for number, items in enumerate(nodes) for place in _node(items, number))
    else:
        paths = tuple(read(item) for node in nodes for item in node)
    repeated = sorted({path for path in paths if paths.count(path) > 1})
    if repeated:
        raise OptionError(f"log directory {repeated[0]} is listed twice")
    return paths


def _refuse_literal(text: str) -> None:
    """Refuse a text that names several folders, and is the name of one that is there.

    Not where it names nodes: a call on one whose disk does not answer would not return.
    """
    name = text.strip()
    if "," not in name or ";" in name or SCHEME.match(name) is not None:
        return
    if os.path.isdir(name):  # noqa: PTH112
        raise OptionError(
            f"{name!r} names {len(_listed(name))} log directories, and there is one "
            "folder of that very name. Rename it; or, if the others are meant, write a blank "
            "between them"
        )


def _listed(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _node(items: list[str], number: int) -> list[NodePlace]:
    """Read the directories of one node, which are local ones."""
    is_witness = items[0].startswith(_WITNESS)
    items[0] = items[0].removeprefix(_WITNESS).strip()
    if not items[0]:
        raise OptionError(f"{_WITNESS!r} names no directory, expected witness:DIRECTORY")
    return [NodePlace(local_path(item), number, is_witness) for item in items]


def folder_in_both(some: Iterable[str], others: Iterable[str]) -> str | None:
    """Return a folder that is among both, whatever links lead to it; None if there is none."""
    known = set(map(_real_path, some))
    return min(known & set(map(_real_path, others)), default=None)


def _real_path(path: str) -> str:
    return str(path) if isinstance(path, RemoteRoot) else os.path.realpath(path)


def refuse_among_logs(option: str, location: str | None, paths: Iterable[str]) -> None:
    """Refuse a folder of a query that lies in a log directory, is one, or lies around one.

    Args:
        option: what names the folder, for the message.
        location: the folder; None, or a place that is not local, is never refused.
        paths: the log directories; in a store none lies among local ones.

    Raises:
        OptionError: the folder and a log directory lie in each other.
    """
    if location is None:
        return
    try:
        folder = os.path.realpath(local_path(location))
    except OptionError:
        return
    for path in paths:
        if isinstance(path, RemoteRoot):
            continue
        log = os.path.realpath(path)
        common = os.path.commonpath([folder, log])
        if common == log:
            raise OptionError(
                f"{option} names {location}, which lies in the log directory {path}: no broker "
                f"starts with such a folder there. {_ELSEWHERE}"
            )
        if common == folder:
            raise OptionError(
                f"{option} names {location}, and the log directory {path} lies in it: whoever "
                f"clears the folder removes the log too. {_ELSEWHERE}"
            )
