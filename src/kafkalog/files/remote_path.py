"""Paths to what lies in an object store or another remote file system, for readers.

Readers know folders and files by ``pathlib.Path``. A :class:`RemotePath` has the part of that
interface that readers use, so that they need not care where a log lies. To a type checker it is a
``Path``. It names no local file: ``os`` functions raise a TypeError for it. What only writers ask
for (``unlink``, ``mkdir``, ``open``) it does not have.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    _ReadAsPath = Path
else:
    _ReadAsPath = object

__all__ = [
    "OpenObject",
    "RemoteEntry",
    "RemotePath",
    "RemoteStatus",
    "Store",
    "hash_number",
    "place_in",
]


class RemoteEntry(NamedTuple):
    """What a folder holds, as ``os.DirEntry`` shows it."""

    name: str
    folder: bool
    size: int
    modified_ns: int
    """-1 where the store does not tell."""

    def is_dir(self) -> bool:
        """Whether it is a folder."""
        return self.folder


class RemoteStatus(NamedTuple):
    """What ``os.stat_result`` tells of a file, as far as a store knows it."""

    st_dev: int
    st_ino: int
    st_size: int
    st_mtime_ns: int


def hash_number(*parts: str) -> int:
    """Return 56 bits that tell the file with these names from every other one: its inode."""
    digest = hashlib.blake2b(" ".join(parts).encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big")


class OpenObject(Protocol):
    """An open file of a store, such as pyarrow's ``NativeFile``."""

    def read_at(self, nbytes: int, offset: int) -> bytes | memoryview:
        """Read from a position; OSError if that fails."""
        ...

    def close(self) -> None:
        """Close it."""
        ...


class Store(Protocol):
    """Where remote paths lead; ``key`` is a name in it. Equal to another one with its options."""

    def entries(self, key: str) -> list[RemoteEntry] | None:
        """List a folder, as of a moment ago; None if there is nothing under that name."""
        ...

    @property
    def list_interval_s(self) -> float:
        """How old what is known of it may be."""
        ...

    def listed(self, key: str) -> RemoteEntry | None:
        """Return what the last listing says of a file, however old it is."""
        ...

    def forget_listing(self) -> None:
        """Have the next look list again."""
        ...

    def status(self, key: str) -> RemoteStatus:
        """Ask for one file now; raises FileNotFoundError."""
        ...

    def open(self, key: str) -> tuple[OpenObject, RemoteStatus]:
        """Open a file, and tell which one it is; raises FileNotFoundError, LogDirectoryError."""
        ...

    def fetch(self, handle: OpenObject, key: str, position: int, length: int) -> bytes | memoryview:
        """Fetch a range of an open file, all of it; raises LogDirectoryError."""
        ...

    def read_small(self, key: str, uri: str, limit: int) -> bytes:
        """Read a small file whole; raises FileNotFoundError, LogDirectoryError."""
        ...

    def log_end(self, key: str) -> int | None:
        """Return where the log in a folder ends, if that is known without reading it."""
        ...

    def index_entries(self, key: str) -> bytes:
        """Return some entries of an index, if they are known without reading it.

        They are those at every :data:`~kafkalog.streaming.log.indexes.KNOWN_BYTES` of it, and the
        last one.
        """
        ...

    def offset_at(self, key: str, position: int) -> int | None:
        """Return the offset that begins at a position of a file, if the store knows it unread."""
        ...

    def will_read(self, key: str, start: int, end: int) -> None:
        """Take note that a range of a file is read soon: what lies beside it may come with it."""
        ...

    def carried(self, key: str, start: int, end: int) -> object:
        """Return what another process needs to know of a range of a file, for :meth:`carry`."""
        ...

    def carry(self, key: str, carried: Any) -> None:  # noqa: ANN401 - the store's own
        """Take what :meth:`carried` has told where the range was planned."""
        ...


class RemotePath(_ReadAsPath):
    """A path in a store; ``uri`` is how a person knows it, and holds no secret. Picklable.

    The store is pickled as its options, and opened again where the path arrives.
    """

    __slots__ = ("key", "store", "uri")

    store: Store
    uri: str
    key: str

    def __init__(self, store: Store, uri: str, key: str) -> None:
        self.store = store
        self.uri = uri.rstrip("/")
        self.key = key.rstrip("/")

    def __reduce__(self) -> tuple[type[RemotePath], tuple[Store, str, str]]:
        return type(self), (self.store, self.uri, self.key)

    def __str__(self) -> str:
        return self.uri

    def __repr__(self) -> str:
        return f"RemotePath({self.uri!r})"

    def __hash__(self) -> int:
        return hash(self.uri)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and (self.uri, self.store) == (other.uri, other.store)

    def __lt__(self, other: object) -> bool:
        return self.uri < str(other)

    def __gt__(self, other: object) -> bool:
        return self.uri > str(other)

    def __truediv__(self, name: object) -> Self:
        return type(self)(self.store, f"{self.uri}/{name}", f"{self.key}/{name}")

    @property
    def name(self) -> str:
        """The last part."""
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> Self:
        """The folder around it."""
        return type(self)(self.store, self.uri.rpartition("/")[0], self.key.rpartition("/")[0])

    def log_end(self) -> int | None:
        """Return where the log in this folder ends; None if its segments tell."""
        return self.store.log_end(self.key)

    def local(self) -> Path | None:
        """Return the local file that it is; None where a store has it."""
        return None

    def stable_end(self) -> int:
        """Return an offset of the log in this folder below which no transaction is open."""
        return 0

    def gaps(self) -> list[tuple[int, int]]:
        """Return the offsets of the log in this folder that are known to be nowhere."""
        return []

    def max_timestamp(self) -> int | None:
        """Return the largest timestamp in this segment, if that is known without reading it."""
        return None

    def may_overlap(self) -> bool:
        """Whether a segment in this folder may go on behind the beginning of the next one."""
        return False

    def is_in_tier(self) -> bool | None:
        """Whether a remote tier has a part of the log in this folder; None without a tier."""
        return None

    def offset_at(self, position: int) -> int | None:
        """Return the offset that begins at a position of this file; None if that is to be read."""
        return self.store.offset_at(self.key, position)

    def samefile(self, other: object) -> bool:
        """Whether another path is the same one: a store knows no links."""
        return self == other

    def stat(self, *, follow_symlinks: bool = True) -> Any:  # noqa: ANN401, ARG002
        """Ask the store for what it knows of a file now: a :class:`RemoteStatus`.

        Raises:
            FileNotFoundError: there is none.
        """
        return self.store.status(self.key)

    def exists(self) -> bool:
        """Ask the store whether there is a file of that name now."""
        try:
            self.stat()
        except FileNotFoundError:
            return False
        return True

    def entries(self) -> list[RemoteEntry]:
        """List the folder, as of a moment ago.

        Raises:
            FileNotFoundError: nothing lies under that name.
        """
        found = self.store.entries(self.key)
        if found is None:
            raise FileNotFoundError(f"{self.uri}: there is no such folder")
        return found

    def is_dir(self) -> bool:
        """Whether something lies under that name, as of a moment ago."""
        return self.store.entries(self.key) is not None

    def iterdir(self) -> Generator[RemotePath, None, None]:
        """Walk over the paths of what the folder holds."""
        return (self / entry.name for entry in self.entries())

    def stamp(self) -> tuple[int, int, int, int, int] | None:
        """Return what changes when a file or folder does, as of a moment ago; None without one."""
        inside = self.store.entries(self.key)
        entry = self.store.listed(self.key)
        if entry is not None and not entry.folder:
            return (0, 0, entry.size, entry.modified_ns, 0)
        return None if inside is None else (0, hash(tuple(inside)), len(inside), 0, 0)

    def read_small(self, limit: int) -> bytes:
        """Read a file of at most ``limit`` bytes.

        Raises:
            FileNotFoundError: there is none.
            LogDirectoryError: it is longer, or the store fails.
        """
        return self.store.read_small(self.key, self.uri, limit)


def place_in(folder: Path, name: str) -> str | RemotePath:
    """Return the path of a file in a folder as it is opened and looked at soonest.

    To make a local ``Path`` takes longer than to open what it leads to.
    """
    return folder / name if isinstance(folder, RemotePath) else f"{folder}/{name}"
