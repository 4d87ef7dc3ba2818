"""Open files for positioned reads, wherever they lie: what a reader needs of one."""

from __future__ import annotations

import errno
import os
from collections import OrderedDict, deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np

from kafkalog.files.regular import close_quietly, name_file, open_known
from kafkalog.files.remote_path import RemotePath
from kafkalog.files.system import forgotten_when_forked, remembered, system

if TYPE_CHECKING:
    from concurrent.futures import Future
    from pathlib import Path

    import numpy.typing as npt

    from kafkalog.files.remote_path import RemoteEntry, Store

    Bytes = npt.NDArray[np.uint8]

__all__ = [
    "FileIdentity",
    "LocalFile",
    "OpenFile",
    "RemoteFile",
    "fill_from",
    "forget_remote",
    "next_data_at",
    "open_file",
    "open_remote",
    "peek_at",
    "read_at",
]


# ----------------------------------------------------------------------------------------------
# A file that is open for positioned reads: what a reader needs of a place where logs lie.


class FileIdentity(NamedTuple):
    """Which file a path led to; another file put in its place has another inode."""

    device: int
    inode: int


class OpenFile(Protocol):
    """An open file. Not thread safe, not picklable."""

    @property
    def size(self) -> int:
        """Bytes that it has now."""
        ...

    @property
    def opened_size(self) -> int:
        """Bytes that it had when it was opened."""
        ...

    @property
    def identity(self) -> FileIdentity:
        """Which file it is."""
        ...

    def read(self, position: int, length: int) -> Bytes:
        """Read up to ``length`` bytes into a new array; fewer only where the file ends."""
        ...

    def peek(self, position: int, length: int) -> bytes:
        """Read a few bytes."""
        ...

    def next_data(self, position: int) -> int | None:
        """Return where the next bytes lie that may not be zeros; None if none follow.

        What a file system has never stored, a hole, reads as zeros and takes no room.
        """
        ...

    def will_read(self, position: int, end: int) -> None:
        """Say that the bytes ``[position, end)`` are about to be read in order."""
        ...

    def close(self) -> None:
        """Close it; closing twice does no harm."""
        ...


# ----------------------------------------------------------------------------------------------
# A local file, open for positioned reads: a descriptor that belongs to it.


def read_at(descriptor: int, position: int, length: int) -> npt.NDArray[np.uint8]:
    """Read up to ``length`` bytes into a new array; fewer only where the file ends."""
    data = np.empty(length, np.uint8)
    return data[: fill_from(descriptor, position, data)]


def peek_at(descriptor: int, position: int, length: int) -> bytes:
    """Read a few bytes, without an array; fewer only where the file ends."""
    data = part = os.pread(descriptor, length, position)
    while part and len(data) < length:
        part = os.pread(descriptor, length - len(data), position + len(data))
        data += part
    return data


def next_data_at(descriptor: int, position: int) -> int | None:
    """Return where the next bytes lie that may not be zeros (``SEEK_DATA``); None if none follow.

    A file system that does not know its holes stores all.
    """
    try:
        return os.lseek(descriptor, position, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return None
        return position


def fill_from(descriptor: int, position: int, data: npt.NDArray[np.uint8]) -> int:
    """Fill an array with the bytes at ``position``; return how many there were before the end."""
    filled, length, view = 0, len(data), data.data
    try:
        while filled < length:
            count = os.preadv(descriptor, [view[filled:]], position + filled)
            if count == 0:
                break
            filled += count
    except OSError as error:  # not by `with naming`: small reads are many
        name_file(error, descriptor)
        raise
    return filled


class LocalFile:
    """A descriptor, which belongs to it: one that is not closed goes with the object."""

    __slots__ = ("_descriptor", "_found")

    def __init__(self, descriptor: int, found: os.stat_result | None = None) -> None:
        self._descriptor = descriptor
        self._found = found
        """How it was found when it was opened, if that was looked at."""

    @property
    def size(self) -> int:
        """Bytes that the file has now; a preallocated tail counts."""
        return os.fstat(self._descriptor).st_size

    @property
    def opened_size(self) -> int:
        """Bytes that the file had when it was opened."""
        return self.size if self._found is None else self._found.st_size

    @property
    def identity(self) -> FileIdentity:
        """Device and inode."""
        status = self._found or os.fstat(self._descriptor)
        return FileIdentity(status.st_dev, status.st_ino)

    def read(self, position: int, length: int) -> Bytes:
        """Read up to ``length`` bytes into a new array; fewer only where the file ends."""
        return read_at(self._descriptor, position, length)

    def peek(self, position: int, length: int) -> bytes:
        """Read a few bytes; fewer only where the file ends."""
        return peek_at(self._descriptor, position, length)

    def next_data(self, position: int) -> int | None:
        """Return where the next bytes lie that may not be zeros; None if none follow."""
        return next_data_at(self._descriptor, position)

    def will_read(self, position: int, end: int) -> None:
        """Leave reading ahead to the kernel."""

    def close(self) -> None:
        """Close the descriptor; closing twice does no harm."""
        # Forgotten first: what interrupts this must not let a number be closed twice that is
        # somebody else's by then.
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            close_quietly(descriptor)

    __del__ = close


# ----------------------------------------------------------------------------------------------
# Positioned reads of a file in a store: few requests, ahead of the reader, in bounded memory.
#
# A request takes longer than a megabyte takes to arrive. So:
#
# - A small file, such as most indexes, comes whole at the first read.
# - Elsewhere a read takes a *piece*: 16 KiB at a new place, twice as much each time that reading
#   goes on after the last piece, up to 4 MiB. A search stays cheap, and a scan makes few requests.
# - If a reader says what it will read, the next piece is fetched while it decodes the present one,
#   and nothing after the end that it named.
#
# Pieces of up to 12 MiB together are kept, and one more is being fetched.
#
# Planning opens the same files again and again. So which file it is, and its small pieces, are
# kept for a moment after it was closed, as long as listings say the same of it.


_WHOLE_BYTES: Final = 256 << 10
_FIRST_BYTES: Final = 16 << 10
_LARGEST_BYTES: Final = 4 << 20
_KEPT_BYTES: Final = 12 << 20
_AHEAD_PIECES: Final = 2
"""So one is on its way while the other waits for who reads."""
_SMALL_BYTES: Final = 32 << 10
_KEPT_SMALL: Final = 16
_KEPT_FILES: Final = 64


class _Piece(NamedTuple):
    position: int
    data: Bytes

    @property
    def end(self) -> int:
        return self.position + len(self.data)


class _Ahead(NamedTuple):
    position: int
    end: int
    coming: Future[Bytes]


@forgotten_when_forked
class _Threads:
    """What reads ahead, for all files that this process has open."""

    def __init__(self) -> None:
        self.pool = system.pool(2, "kafkalog-ahead")


class _Known(NamedTuple):
    file: RemoteFile
    opened_at: float
    listed: RemoteEntry | None


class _KnownFiles(OrderedDict["tuple[Store, str]", _Known]):
    """What was opened last."""


def open_remote(path: RemotePath) -> RemoteFile:
    """Open a file of a store, or one again that was opened a moment ago.

    Raises:
        FileNotFoundError: there is none.
        LogDirectoryError: the store fails.
    """
    files = remembered(_KnownFiles)
    place, listed = (path.store, path.key), path.store.listed(path.key)
    known = files.pop(place, None)
    if (
        known is None
        or known.listed != listed
        or system.monotonic() - known.opened_at > path.store.list_interval_s
    ):
        known = _Known(RemoteFile(path.store, path.key), system.monotonic(), listed)
    files[place] = known
    if len(files) > _KEPT_FILES:
        files.popitem(last=False)
    return known.file


def forget_remote(store: Store, key: str) -> None:
    """Let a file of a store be opened anew by who opens it next."""
    remembered(_KnownFiles).pop((store, key), None)


class RemoteFile:
    """An open file of a store; its size is taken to stay as it was when it was opened."""

    def __init__(self, store: Store, key: str) -> None:
        self._store = store
        self._key = key
        self._handle, status = store.open(key)
        self.size = self.opened_size = status.st_size
        """Bytes that it had when it was opened."""
        self.identity = FileIdentity(status.st_dev, status.st_ino)
        """Made of its size and the store's tag for its content."""
        self._is_one_object = getattr(self._handle, "is_one_object", True)
        """Else what lies beside something comes from elsewhere: what is wanted is asked for."""
        self._pieces: list[_Piece] = []
        self._ahead: deque[_Ahead] = deque()
        self._process_id = system.process_id()
        """Whose threads read ahead; in a forked child they are not there."""
        self._next_bytes = _FIRST_BYTES
        self._last_end = 0
        self._planned = range(0)
        """What a reader has said that it will read."""

    def read(self, position: int, length: int) -> Bytes:
        """Read up to ``length`` bytes into a new array; fewer only where the file ends."""
        data = np.empty(max(0, min(length, self.size - position)), np.uint8)
        filled = 0
        while filled < len(data):
            start = position + filled
            piece = self._piece_at(start, len(data) - filled)
            part = piece.data[start - piece.position :][: len(data) - filled]
            data[filled : filled + len(part)] = part
            filled += len(part)
        return data

    def next_data(self, position: int) -> int | None:
        """Return the position itself, if it lies in the file: stores know no holes."""
        return position if position < self.size else None

    def peek(self, position: int, length: int) -> bytes:
        """Read a few bytes."""
        return self.read(position, length).tobytes()

    def will_read(self, position: int, end: int) -> None:
        """Fetch ahead of the reader from now on, up to ``end``."""
        self._last_end = position
        self._planned = range(position, min(end, self.size))

    def close(self) -> None:
        """Forget most of what was fetched; closing twice does no harm."""
        self._drop_ahead()
        self._planned = range(0)
        small = [p for p in self._pieces if len(p.data) <= _SMALL_BYTES or len(p.data) == self.size]
        self._pieces = small[-_KEPT_SMALL:]

    def _piece_at(self, position: int, wanted: int) -> _Piece:
        for piece in self._pieces:
            if piece.position <= position < piece.end:
                return piece
        if self._ahead and self._process_id != system.process_id():
            self._drop_ahead()
        while self._ahead and not self._ahead[0].position <= position < self._ahead[0].end:
            self._ahead.popleft().coming.cancel()
        if self._ahead:
            ahead = self._ahead.popleft()
            piece = _Piece(ahead.position, ahead.coming.result())
        else:
            start, end = self._range(position, wanted)
            piece = _Piece(start, self._fetch(start, end))
        self._keep(piece)
        self._last_end = piece.end
        self._fetch_ahead()
        return piece

    def _keep(self, piece: _Piece) -> None:
        self._pieces.append(piece)
        while sum(len(kept.data) for kept in self._pieces) > _KEPT_BYTES:
            del self._pieces[0]

    def _range(self, position: int, wanted: int) -> tuple[int, int]:
        if not self._is_one_object and position not in self._planned:
            return position, min(position + wanted, self.size)
        if self.size <= _WHOLE_BYTES and self._is_one_object:
            return 0, self.size
        if not 0 <= position - self._last_end < self._next_bytes:
            self._next_bytes = _FIRST_BYTES
        length = min(max(wanted, self._take_length()), _LARGEST_BYTES)
        end = position + length
        if position in self._planned:
            end = min(end, max(self._planned.stop, position + min(wanted, length)))
        return position, min(end, self.size)

    def _drop_ahead(self) -> None:
        if self._process_id == system.process_id():
            for ahead in self._ahead:
                ahead.coming.cancel()
        self._ahead.clear()

    def _take_length(self) -> int:
        length = self._next_bytes
        self._next_bytes = min(2 * length, _LARGEST_BYTES)
        return length

    def _fetch_ahead(self) -> None:
        position = self._ahead[-1].end if self._ahead else self._last_end
        while len(self._ahead) < _AHEAD_PIECES and position in self._planned:
            # and not before it, where somebody searches
            end = min(position + max(self._take_length(), 1 << 20), self._planned.stop)
            coming = remembered(_Threads).pool.submit(self._fetch, position, end)
            self._process_id = system.process_id()
            self._ahead.append(_Ahead(position, end, coming))
            position = end

    def _fetch(self, position: int, end: int) -> Bytes:
        data = self._store.fetch(self._handle, self._key, position, end - position)
        return np.frombuffer(data, np.uint8)


# ----------------------------------------------------------------------------------------------
# Open a file of a log wherever it lies.


def open_file(path: Path | str) -> OpenFile:
    """Open a regular file.

    Raises:
        FileNotFoundError: nothing has that name.
        LogDirectoryError: a link, FIFO, device, socket or folder has it, it may not be opened, or
            the store that it lies in fails.
    """
    if isinstance(path, RemotePath):
        local = path.local()
        if local is None:
            return open_remote(path)
        with suppress(FileNotFoundError):  # deleted here since, and maybe kept in a remote tier
            return LocalFile(*open_known(local))
        return open_remote(path)
    return LocalFile(*open_known(path))
