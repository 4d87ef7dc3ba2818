"""A store that holds log directories: listing, asking, fetching, each tried a few times.

What pyarrow opens serves ``s3``, ``gs``, ``abfs``, ``hdfs`` and what else it knows; every other
scheme is asked of fsspec, if it is installed. One listing of everything below a root, kept for
``storage.listInterval``, answers for the names, sizes and times of all folders: an idle query costs
a request in that time, however many partitions it watches.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import re
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa
import pyarrow.fs as pafs

from kafkalog.errors import LogDirectoryError, OptionError
from kafkalog.files.deferred_signals import check_interrupt
from kafkalog.files.remote_path import RemoteEntry, RemotePath, RemoteStatus
from kafkalog.files.storage import CA_FILE_ADVICE, STORE, UNTRUSTED
from kafkalog.files.system import remembered, system

if TYPE_CHECKING:
    from collections.abc import Callable

    from kafkalog.files.remote_path import OpenObject, Store
    from kafkalog.files.storage import RemoteRoot

__all__ = ["RemoteStore", "open_store", "read_opened"]

_T = TypeVar("_T")

_FIRST_REST_S: Final = 0.1
_LONGEST_REST_S: Final = 5.0

_REFUSALS: Final = re.compile(
    r"ACCESS_DENIED|NO_SUCH_BUCKET|INVALID_ACCESS_KEY_ID|SIGNATURE"
    r"|(?<![\w/.-])403(?![\w/.-])(?! bytes)"
)
"""In the messages of stores: answers that stay the same however often one asks.

403 is the status, not a part of a path or of a number of bytes.
"""


_STAYS_WRONG: Final = frozenset(
    {errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EACCES, errno.EPERM}
)
"""What a folder of this machine answers, and always will."""


class _Stores:
    """The stores that this process has opened."""

    def __init__(self) -> None:
        self.open = functools.lru_cache(maxsize=64)(_open)


def _open(root: RemoteRoot, options: object, full_uri: str) -> RemoteStore:  # noqa: ARG001 - keys
    return RemoteStore(root)


def open_store(root: RemoteRoot) -> RemoteStore:
    """Return the store of a root; a process has one for the same options."""
    return remembered(_Stores).open(root, root.options, root.full_uri)


class RemoteStore:
    """The files below a root. Opened when it is first asked; picklable, by its root alone."""

    def __init__(self, given: RemoteRoot) -> None:
        self._given = given
        self.options = given.options
        self._opened: tuple[pafs.FileSystem, str] | None = None
        self._folders: dict[str, list[RemoteEntry]] = {}
        self._entries: dict[str, RemoteEntry] = {}
        self._listed_at = -float("inf")

    def __reduce__(self) -> tuple[Callable[[RemoteRoot], RemoteStore], tuple[RemoteRoot]]:
        return open_store, (self._given,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemoteStore) and (
            (self._given, self.options) == (other._given, other.options)
        )

    def __hash__(self) -> int:
        return hash(self._given)

    @property
    def root(self) -> RemotePath:
        """The path of the log directory."""
        return RemotePath(self, str(self._given), self._connected[1])

    @property
    def _connected(self) -> tuple[pafs.FileSystem, str]:
        if self._opened is None:
            self._opened = _connect(self._given)
        return self._opened

    # Folders

    def entries(self, key: str) -> list[RemoteEntry] | None:
        """List a folder as of the last listing, or a new one if that is too old."""
        if system.monotonic() - self._listed_at > self.list_interval_s:
            self._list()
        return self._folders.get(key)

    @property
    def list_interval_s(self) -> float:
        """How old what is known of the store may be."""
        return self.options.list_interval_ms / 1000

    def listed(self, key: str) -> RemoteEntry | None:
        """Return what the last listing says of a file, however old it is."""
        return self._entries.get(key)

    def forget_listing(self) -> None:
        """Have the next look list again: something was not where the listing says."""
        self._listed_at = -float("inf")

    def _list(self) -> None:
        files, root = self._connected
        selector = pafs.FileSelector(root, recursive=True, allow_not_found=True)
        found = self.trying(
            f"{self._given} cannot be listed", lambda: files.get_file_info(selector)
        )
        folders: dict[str, list[RemoteEntry]] = {}
        entries: dict[str, RemoteEntry] = {}
        for info in found:
            path = info.path.rstrip("/")
            if not root.strip("/"):  # all of an archive: some stores' names begin with a slash then
                path = "/" + path.lstrip("/")
            parent, _, name = path.rpartition("/")
            is_folder = info.type == pafs.FileType.Directory
            entry = RemoteEntry(name, is_folder, info.size or 0, info.mtime_ns or -1)
            if not is_folder or path not in entries:
                entries[path] = entry
            folders.setdefault(parent, []).append(entry)
            if is_folder:
                folders.setdefault(path, [])
        if f"{root}/{STORE}" in entries:
            raise LogDirectoryError(
                f"{self._given} holds a log that is kept as objects, which this process has not "
                f"found: {STORE} there cannot be read, or was made after it began to read. Check "
                "the keys, and that they may get objects; then start again"
            )
        self._folders, self._entries = folders, entries
        self._listed_at = system.monotonic()

    def list_folder(self, key: str) -> list[RemoteEntry]:
        """List one folder now, without what lies deeper; nothing where there is none.

        Raises:
            LogDirectoryError: the store fails.
        """
        files = self._connected[0]
        selector = pafs.FileSelector(key, recursive=False, allow_not_found=True)
        found = self.trying(
            f"{self.uri_of(key)} cannot be listed", lambda: files.get_file_info(selector)
        )
        return [
            RemoteEntry(
                info.path.rstrip("/").rpartition("/")[2],
                info.type == pafs.FileType.Directory,
                info.size or 0,
                info.mtime_ns or -1,
            )
            for info in found
        ]

    # Files

    def open(self, key: str) -> tuple[OpenObject, RemoteStatus]:
        """Open a file, and tell which one it is by the store's tag for its content, or its time.

        Raises:
            FileNotFoundError: there is none.
            LogDirectoryError: the store fails, or it is no file.
        """
        files = self._connected[0]
        if isinstance(files, pafs.LocalFileSystem):
            self._check_is_file(key)

        def ask() -> tuple[OpenObject, int, str]:
            handle = files.open_input_file(key)
            tag = (handle.metadata() or {}).get("ETag")
            return handle, handle.size(), str(tag or files.get_file_info(key).mtime_ns)

        try:
            handle, size, tag = self.trying(f"{self.uri_of(key)} cannot be opened", ask)
        except FileNotFoundError:
            self.forget_listing()
            raise
        digest = hashlib.blake2b(f"{size} {tag}".encode(), digest_size=7).digest()
        return handle, RemoteStatus(-1, int.from_bytes(digest, "big"), size, -1)

    def _check_is_file(self, key: str) -> None:
        """Refuse what is no plain file in a folder that stands for a store: a FIFO would block."""
        with suppress(OSError):  # what is not there is said by who opens it
            mode = Path(key).stat().st_mode
            if not stat.S_ISREG(mode):
                what = "a folder" if stat.S_ISDIR(mode) else "a FIFO, a socket or a device"
                raise LogDirectoryError(
                    f"{self.uri_of(key)} is {what}, expected an object of the store, a plain file: "
                    "find out who put it there, and move it away"
                )

    def status(self, key: str) -> RemoteStatus:
        """Ask for one file now."""
        handle, status = self.open(key)
        handle.close()
        self.entries(key)  # which lists if that is due
        listed = self.listed(key)
        return status._replace(st_mtime_ns=-1 if listed is None else listed.modified_ns)

    def read_small(self, key: str, uri: str, limit: int) -> bytes:
        """Read a small file whole."""
        if self._is_below_root(key.rpartition("/")[0]):
            self.entries(key)  # which lists if that is due
            if self.listed(key) is None:
                raise FileNotFoundError(f"{uri}: there is no such file")
        return read_opened(self, key, uri, limit)

    def fetch(self, handle: OpenObject, key: str, position: int, length: int) -> bytes:
        """Fetch a range of an open file, all of it.

        Raises:
            LogDirectoryError: the store has failed at every try.
        """
        return self.read_range(handle, self.uri_of(key), position, length)

    def read_range(self, handle: OpenObject, uri: str, position: int, length: int) -> bytes:
        """Read a range of an open object, all of it; ``uri`` is for messages.

        Raises:
            LogDirectoryError: the store has failed at every try.
        """

        def get() -> bytes:
            data = handle.read_at(length, position)
            if len(data) != length:
                raise OSError(f"{len(data)} bytes came")
            return bytes(data)

        what = f"{uri}: bytes {position} to {position + length} cannot be read"
        return self.trying(what, get)

    def index_entries(self, key: str) -> bytes:  # noqa: ARG002 - it knows of no entries
        """See :class:`~Store`."""
        return b""

    def log_end(self, key: str) -> None:
        """Tell nothing of a log: whoever reads it reads its segments."""

    def offset_at(self, key: str, position: int) -> int | None:  # noqa: ARG002
        """Files tell that themselves."""
        return None

    def will_read(self, key: str, start: int, end: int) -> None:
        """Take note of nothing: each file is an object."""

    def carried(self, key: str, start: int, end: int) -> None:
        """Tell nothing of a range: whoever reads it asks the store."""

    def carry(self, key: str, carried: object) -> None:
        """Take nothing."""

    def uri_of(self, key: str) -> str:
        """Return the URI of a name in the store."""
        root = self._connected[1]
        return str(self._given) + key.removeprefix(root) if self._is_below_root(key) else key

    def _is_below_root(self, key: str) -> bool:
        root = self._connected[1]
        return key == root or key.startswith(f"{root}/")

    # Trying

    def trying(self, what: str, action: Callable[[], _T]) -> _T:
        """Ask a store, and again after a rest that grows, for as many tries as the options say.

        Raises:
            FileNotFoundError: as it is.
            LogDirectoryError: the store refuses, or failed at every try.
        """
        rest, tries = _FIRST_REST_S, 0
        while True:
            tries += 1
            try:
                return action()
            except FileNotFoundError:
                raise
            except OSError as error:
                if error.errno in _STAYS_WRONG:
                    raise LogDirectoryError(
                        f"{what}: {error.strerror or error}; each part of the path before the last "
                        "must be a folder that this user may look into"
                    ) from error
                refused = _REFUSALS.search(str(error)) is not None
                if refused or tries >= self.options.tries:
                    raise self._failed(what, tries, refused=refused, error=error) from error
            check_interrupt()
            system.sleep(rest)
            rest = min(2 * rest, _LONGEST_REST_S)

    def _failed(self, what: str, tries: int, *, refused: bool, error: OSError) -> LogDirectoryError:
        advice = (
            "check the credentials, the region and the endpoint (options storage.*), and whether "
            "they may list and read there"
            if refused
            else CA_FILE_ADVICE
            if UNTRUSTED.search(str(error))
            else "the store may be down or slow: run the query again later, or raise storage.tries "
            "or storage.timeout"
        )
        said = self._without_secrets(str(error))
        advice += self.options.advice_elsewhere
        return LogDirectoryError(f"{what} (tries: {tries}): {said}; {advice}")

    def _without_secrets(self, text: str) -> str:
        if self._given.full_uri:
            text = text.replace(self._given.full_uri, "…")
        return self.options.without_secrets(text)


def _connect(root: RemoteRoot) -> tuple[pafs.FileSystem, str]:
    """Make the file system of a URI, and the key of the root in it; nothing is asked yet."""
    scheme, _, rest = root.partition("://")
    if scheme == "s3":
        return _s3(root), rest
    try:
        return pafs.FileSystem.from_uri(root.uri_here())  # type: ignore[no-any-return]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return _by_fsspec(root, scheme)
    except OSError as error:
        raise LogDirectoryError(f"{root} cannot be opened: {error}") from error


def _s3(root: RemoteRoot) -> pafs.FileSystem:
    options = root.options.found_here().with_endpoint_of_environment()
    protocol, _, endpoint = (options.endpoint or "").rpartition("://")
    seconds = options.timeout_ms / 1000
    if options.role_arn and options.access_key:
        raise OptionError(
            "options 'storage.roleArn' and 'storage.accessKey': a copy of log directories is read "
            "with one of them; give the key by AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    trusted = {"tls_ca_file_path": options.ca_file} if options.ca_file else {}
    return pafs.S3FileSystem(
        access_key=options.access_key,
        secret_key=options.secret_key,
        session_token=options.session_token,
        anonymous=options.anonymous,
        region=options.region,
        endpoint_override=endpoint or None,
        scheme=protocol or options.protocol or "https",
        request_timeout=seconds,
        connect_timeout=seconds,
        role_arn=options.role_arn,
        proxy_options=options.proxy,
        force_virtual_addressing=options.path_style is False,
        **trusted,
        # tries are counted, and rests taken, in one place for all stores
        retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=1),
    )


def _by_fsspec(root: RemoteRoot, scheme: str) -> tuple[pafs.FileSystem, str]:
    try:
        from fsspec.core import url_to_fs  # noqa: PLC0415 - nobody needs it who names no such URI
    except ImportError as error:
        raise LogDirectoryError(
            f"{root}: pyarrow opens no {scheme} URIs; install fsspec and what it needs for them"
        ) from error
    try:
        files, key = url_to_fs(root.uri_here())
    except (ValueError, ImportError, OSError, TypeError) as error:
        raise LogDirectoryError(f"{root} cannot be opened by fsspec: {error}") from error
    return pafs.PyFileSystem(pafs.FSSpecHandler(files)), key


def read_opened(store: Store, key: str, uri: str, limit: int) -> bytes:
    """Open a small file of a store, and read it whole; ``uri`` is for messages.

    Raises:
        FileNotFoundError: it is not there.
        LogDirectoryError: it is longer than ``limit`` bytes, or the store fails.
    """
    handle, status = store.open(key)
    try:
        if status.st_size > limit:
            raise LogDirectoryError(f"{uri}: has {status.st_size} bytes, expected at most {limit}")
        return bytes(store.fetch(handle, key, 0, status.st_size))
    finally:
        handle.close()
