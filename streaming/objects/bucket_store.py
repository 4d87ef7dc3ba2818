"""Show the log in an object store as a log directory, to readers that know folders and files.

What is committed is shown as ``kafkalog.commit``, and each partition as a folder with segments.
None of it is stored: it follows from the state. A segment is the batches of some extents, one after
the other; they get their offsets and leader epochs when they are fetched.
"""

from __future__ import annotations

import functools
import os
import threading
from bisect import bisect_left, bisect_right
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import WeakValueDictionary

from kafkalog.checkpoints.bucket_state import object_path
from kafkalog.errors import CorruptRecordError, DataLossError, LogDirectoryError, OptionError
from kafkalog.files.objects import open_objects
from kafkalog.files.open_file import forget_remote
from kafkalog.files.remote_path import RemoteEntry, RemotePath, RemoteStatus, hash_number
from kafkalog.files.storage import STORE, RemoteRoot, is_object_uri
from kafkalog.files.system import remembered, system
from kafkalog.streaming.objects.bucket_files import (
    METADATA,
    ROOT,
    BucketFiles,
    SealedIndex,
    Segment,
    files_of_state,
)
from kafkalog.streaming.objects.bucket_log import BucketLog
from kafkalog.streaming.objects.numbered_extents import NumberedExtents, gone_error, joined

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from kafkalog.checkpoints.bucket_state import BucketState, Extent, ExtentKey
    from kafkalog.checkpoints.commit_state import CommitState
    from kafkalog.files.objects import Objects
    from kafkalog.files.remote_path import OpenObject
    from kafkalog.files.storage import StorageOptions
    from kafkalog.streaming.objects.bucket_files import PartitionFiles

__all__ = [
    "BucketRoot",
    "BucketStore",
    "ObjectReplacedError",
    "bucket_of",
    "bucket_of_path",
    "find_log",
]

_CARRIED_EXTENTS: Final = 1 << 16
"""How many extents of a segment a task keeps; then it keeps those of the newest split alone."""
_MOST_CARRIED: Final = 1 << 17
"""How many in all: a worker of Spark's gets splits of any partition, for as long as it lives."""
_OURS_ALONE: Final = frozenset({"s3a", "az"})
"""Schemes by which no copy of log directories can be read."""


class BucketRoot(RemoteRoot):
    """The URI of a log in an object store; as :class:`RemoteRoot`, and read by its commits."""

    __slots__ = ()

    @classmethod
    def of(cls, place: RemoteRoot) -> BucketRoot:
        """Return the place of a log that lies, or is to lie, at a URI."""
        return cls(str(place), place.options, place.full_uri)

    def __reduce__(self) -> tuple[type[BucketRoot], tuple[str, StorageOptions, str]]:
        return BucketRoot, (str(self), self.options, self.full_uri)

    def open_log(self) -> Path:
        """Return the root of the log, as readers know it."""
        return self.open_store().root

    def open_store(self) -> BucketStore:
        """Return what shows the log to readers; a process opens it once."""
        opened = remembered(_OpenStores).by_root
        key = (str(self), self.options)
        found = opened.get(key)
        if found is None:
            found = opened.setdefault(key, BucketStore(self, open_objects(self)))
        return found

    @contextmanager
    def writing(self, *, creates: bool = False) -> Iterator[BucketLog]:
        """Lend the log to one writer of this process at a time.

        Args:
            creates: make it if there is none.

        Raises:
            LogDirectoryError: there is none, or the store fails, or is none that can hold a log.
            CheckpointError: what lies there cannot be read.
        """
        with self.open_store().writing(creates=creates) as log:
            yield log


def bucket_of(paths: Sequence[str]) -> BucketRoot | None:
    """Return the log in an object store that the words of a command name; None for directories.

    Raises:
        OptionError: they name more than it.
    """
    if not any(map(is_object_uri, paths)):
        return None
    if len(paths) > 1:
        raise OptionError(
            f"{', '.join(paths)}: a log in an object store lies in one place: give its URI alone"
        )
    (given,) = paths
    return BucketRoot.of(given if isinstance(given, RemoteRoot) else RemoteRoot.parse(given))


def bucket_of_path(path: Path) -> BucketRoot | None:
    """Return the log in an object store whose root a path is; None of a directory."""
    store = path.store if isinstance(path, RemotePath) else None
    return store.place if isinstance(store, BucketStore) else None


def find_log(place: RemoteRoot) -> Path | None:
    """Return the root of the log in an object store that lies at a URI, as of now; None without.

    A place that may be a copy of log directories is asked as those are read: with credentials that
    only that client finds.
    """
    opened, key = remembered(_OpenStores), (str(place), place.options)
    known = opened.by_root.get(key)
    if known is None or known.is_replaced():
        if system.monotonic() < opened.others.get(key, 0.0):
            return None
        if not _holds_log(place):
            opened.others[key] = system.monotonic() + place.options.list_interval_ms / 1000
            return None
    store = BucketRoot.of(place).open_store()
    store.forget_listing()
    return store.root


def _holds_log(place: RemoteRoot) -> bool:
    if place.partition("://")[0] in _OURS_ALONE:
        return open_objects(place).get(STORE) is not None
    from kafkalog.files.remote_store import open_store  # noqa: PLC0415 - loads pyarrow.fs

    path = open_store(place).root / STORE
    try:
        path.store.open(path.key)[0].close()
    except (FileNotFoundError, LogDirectoryError):
        return False  # what fails here fails again, and is said, when the place is read
    return True


class _OpenStores:
    """The logs that this process reads and writes."""

    def __init__(self) -> None:
        self.by_root: dict[object, BucketStore] = {}
        self.others: dict[object, float] = {}
        """Places that hold no such log, and until when that is believed."""


class ObjectReplacedError(DataLossError):
    """What was planned to be read lies elsewhere by now: it was merged, and its object is gone."""


class _Carried(NamedTuple):
    """What a task gets of a segment: the extents that it reads, and where each begins there."""

    number: int
    size: int
    starts: list[int]
    extents: list[Extent]
    log_id: str
    metadata: bytes
    """What tells the topic's id, beside the segment."""
    seen_s: float
    """When the log was seen to have them, by the wall clock."""

    def with_extents(self, other: _Carried) -> _Carried:
        """Return the same with the extents of another split, too, which displace others there.

        Those of a log that was set back may begin elsewhere.
        """
        mine = zip(self.starts, self.extents, strict=True)
        both = {start: each for start, each in mine if other._has_room(start, each.size)}
        both.update(zip(other.starts, other.extents, strict=True))
        starts = sorted(both)
        return other._replace(
            size=max(self.size, other.size),
            starts=starts,
            extents=[both[each] for each in starts],
            seen_s=min(self.seen_s, other.seen_s),
        )

    def _has_room(self, start: int, size: int) -> bool:
        """Whether none of its extents overlaps a range."""
        slot = bisect_right(self.starts, start)
        is_begun = slot > 0 and self.starts[slot - 1] + self.extents[slot - 1].size > start
        return not is_begun and all(start + size <= each for each in self.starts[slot : slot + 1])


class _Part(NamedTuple):
    """Some bytes of an extent: those at the positions ``start`` to ``end``, a half-open range."""

    extent: Extent
    start: int
    end: int


class _Handle:
    """An open segment, or a small file."""

    def __init__(
        self, read: Callable[[int, int], bytes | memoryview], *, is_one_object: bool = True
    ) -> None:
        self._read = read
        self.is_one_object = is_one_object

    def read_at(self, nbytes: int, offset: int) -> bytes | memoryview:
        return self._read(offset, nbytes)

    def close(self) -> None:
        """Nothing is held."""


class BucketStore:
    """A store whose files follow from the state of a log; see :class:`~RemotePath`.

    What a process reads and writes of a log is one :class:`BucketLog`: it sees its own commits
    without a request.
    """

    def __init__(self, place: BucketRoot | RemoteRoot, objects: Objects) -> None:
        self._place = place
        self.objects = objects
        self._log: BucketLog | None = None
        self._is_left = False
        self._using = system.lock()
        """Held by whoever asks the log, or adds to it."""
        self._lent_to = 0
        """The thread to which the log is lent: what it reads meanwhile is what it knows."""
        self._looked_at = -float("inf")
        self._shown = BucketFiles(-1, {}, {}, {}, {})
        self._parts: dict[ExtentKey, PartitionFiles] = {}
        self._carried: dict[str, _Carried] = {}
        self._carried_metadata: dict[str, bytes] = {}
        self._extents = NumberedExtents(objects, str(place))
        _OPEN[id(self)] = self

    def begin_in_child(self) -> None:
        """Begin anew after a fork: who held a lock is not there, nor is what it was about to do."""
        if self._using.locked():
            self._log = None
        self._using, self._lent_to = system.lock(), 0
        self._extents = NumberedExtents(self.objects, str(self._place))

    def __reduce__(self) -> tuple[Callable[[RemoteRoot], BucketStore], tuple[RemoteRoot]]:
        return _store_of, (self._place,)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BucketStore) or self._is_left or other._is_left:
            return self is other
        return (self._place, self._place.options) == (other._place, other._place.options)

    def __hash__(self) -> int:
        return hash(self._place)

    @property
    def root(self) -> RemotePath:
        """The path of the log directory."""
        return RemotePath(self, str(self._place), ROOT)

    @property
    def place(self) -> BucketRoot:
        """Where the log lies."""
        return BucketRoot.of(self._place)

    # Folders

    def entries(self, key: str) -> list[RemoteEntry] | None:
        """List a folder, as of a moment ago; None if there is nothing under that name."""
        self._look_if_due()
        return self._shown.folders.get(key)

    @property
    def list_interval_s(self) -> float:
        """How old what is known of the log may be."""
        return self._place.options.poll_interval_ms / 1000

    def listed(self, key: str) -> RemoteEntry | None:
        """Return what is known of a file here: by the last look, or by what a task was told."""
        found = self._known(key)
        if isinstance(found, _Carried):
            return RemoteEntry(key.rpartition("/")[2], False, found.size, found.number)
        return self._shown.entries.get(key)

    def forget_listing(self) -> None:
        """Have the next look follow the log again."""
        self._looked_at = -float("inf")

    def show(self, number: int, log_id: str) -> None:
        """Have the next look follow the log again, unless it has seen a commit already.

        If this is not the log with the id, the place is opened anew where another one lies there.
        """
        if self._shown.number < number:
            self.forget_listing()
        if self._log is not None and self._log.state.log_id != log_id:
            self.is_replaced()

    def is_replaced(self) -> bool:
        """Ask whether another log, or none, lies there by now: then it is opened anew.

        Whoever reads this one is told so by its next look.
        """
        if self._log is None or self._lent_to == threading.get_ident():
            return False
        with self._using:
            found = self._log.is_replaced()
            self._leave_if_lost()
        return found

    def is_empty(self) -> bool:
        """Whether no log lies there."""
        return self._log is None and self.objects.get(STORE) is None

    def _leave_if_lost(self) -> None:
        """Let the place be opened anew, if its log was replaced or set back."""
        stores = remembered(_OpenStores).by_root
        key = (str(self._place), self._place.options)
        if self._log is not None and self._log.is_known_lost():
            self._is_left = True  # what is kept by paths in it is not found by those of the next
            if stores.get(key) is self:
                del stores[key]

    @contextmanager
    def writing(self, *, creates: bool = False) -> Iterator[BucketLog]:
        """Lend the log; see :meth:`BucketRoot.writing`."""
        with self._using:
            log = self._log or self._open(BucketLog.create if creates else BucketLog.open)
            self._lent_to = threading.get_ident()
            try:
                yield log
            finally:
                self._lent_to = 0
                self._leave_if_lost()
                if log.has_credit() and log.state.number > self._shown.number:
                    self._show(log.state)

    def _open(self, opens: Callable[[Objects], BucketLog | None]) -> BucketLog:
        """Open the log; whoever knows another one by this place, with other options, is to look."""
        log = opens(self.objects)
        if log is None:
            raise self._without_log()
        for other in list(remembered(_OpenStores).by_root.values()):
            other.expire_identity(self._place, log.state.log_id)
        self._log = log
        return log

    def expire_identity(self, place: str, log_id: str) -> None:
        """Look at once whether the log is still there, as another one lies at a place by now."""
        if self._place == place and self._log is not None and self._log.state.log_id != log_id:
            self._log.expire_identity()

    def _without_log(self) -> LogDirectoryError:
        return LogDirectoryError(
            f"{self._place} holds no log of kafkalog. Nothing was made there: correct the URI, or "
            "append something first"
        )

    def committed(self) -> CommitState:
        """Return what is committed, as of a moment ago; the very same value until that changes."""
        self._look_if_due()
        if self._shown.committed is None:
            raise self._without_log()
        return self._shown.committed

    def show_state(self, state: BucketState) -> CommitState:
        """Show the state that the log has, to whom it is lent."""
        self._show(state)
        return self.committed()

    def _look_if_due(self) -> None:
        """Follow the log if that is due; what others are about to show is left to them."""
        if self._lent_to == threading.get_ident():
            return
        if system.monotonic() - self._looked_at <= self.list_interval_s:
            return
        is_needed = self._looked_at == -float("inf")
        if self._using.locked() and not is_needed:
            return
        with self._using:  # acquire() would keep it for good where an alarm follows
            if system.monotonic() - self._looked_at > self.list_interval_s:
                self._look()

    def _look_again(self) -> None:
        """Follow the log, and see whether it was set back."""
        self.forget_listing()
        if self._lent_to == threading.get_ident():
            return
        with self._using:
            if self._log is not None:
                self._log.expire_identity()
            self._look()

    def _look(self) -> None:
        """Follow the log, and show what is new."""
        log = self._log or self._open(BucketLog.open)
        try:
            self._show(log.follow())
        finally:
            self._leave_if_lost()

    def _show(self, state: BucketState) -> None:
        if state.number != self._shown.number:
            self._shown = files_of_state(state, self._parts)
        self._looked_at = system.monotonic()

    # Files

    def open(self, key: str) -> tuple[_Handle, RemoteStatus]:
        """Open a file, and tell which one it is.

        Raises:
            FileNotFoundError: there is none.
        """
        found = self._find(key)
        if found is None:
            raise FileNotFoundError(f"{self.uri_of(key)}: there is no such file")
        if isinstance(found, bytes):
            content = found
            status = RemoteStatus(-1, hash_number(key, content.hex()), len(content), -1)
            return _Handle(lambda position, size: content[position : position + size]), status
        status = RemoteStatus(-1, found.number, found.size, -1)
        if isinstance(found, Segment):
            read = functools.partial(self._read, key, found, self._seen_s())
            return _Handle(read, is_one_object=len(found.extents) < 2), status
        if isinstance(found, SealedIndex):
            return _Handle(functools.partial(self._read_index, found)), status
        is_whole = sum(extent.size for extent in found.extents) == found.size
        read = functools.partial(self._fill, key, found)
        return _Handle(read, is_one_object=is_whole and len(found.extents) < 2), status

    def status(self, key: str) -> RemoteStatus:
        """Tell about one file."""
        return self.open(key)[1]

    def read_small(self, key: str, uri: str, limit: int) -> bytes:
        """Read a small file whole."""
        handle, status = self.open(key)
        if status.st_size > limit:
            raise LogDirectoryError(f"{uri}: has {status.st_size} bytes, expected at most {limit}")
        return bytes(handle.read_at(status.st_size, 0))

    def fetch(self, handle: OpenObject, key: str, position: int, length: int) -> bytes | memoryview:
        """Fetch a range of an open file, all of it."""
        data = handle.read_at(length, position)
        if len(data) != length:
            raise LogDirectoryError(
                f"{self.uri_of(key)}: {len(data)} of the bytes {position} to {position + length} "
                "are there"
            )
        return data

    def index_entries(self, key: str) -> bytes:
        """Return some entries of an index; see :class:`~Store`."""
        found = self._shown.files.get(key)
        return found.entries if isinstance(found, SealedIndex) else b""

    def uri_of(self, key: str) -> str:
        """Return how a person knows a file."""
        return str(self._place) + key.removeprefix(ROOT)

    def log_end(self, key: str) -> int | None:
        """Return where the log in a folder ends, by the state."""
        return self._shown.ends.get(key)

    # What a split carries to a task, which asks for nothing but data

    def carried(self, key: str, start: int, end: int) -> _Carried | None:
        """Return the extents that a range of a segment is read from."""
        found = self._shown.files.get(key)
        if not isinstance(found, Segment):
            return self._carried.get(key)
        first = bisect_right(found.ends, start)
        last = bisect_left(found.ends, end) + 1
        starts = [found.ends[n] - found.extents[n].size for n in range(first, len(found.ends))]
        return _Carried(
            found.number,
            found.size,
            starts[: last - first],
            [_without_entries(each) for each in found.extents[first:last]],
            found.log_id,
            self._file_beside(key),
            self._seen_s(),
        )

    def _seen_s(self) -> float:
        return 0.0 if self._log is None else self._log.seen_s

    def _file_beside(self, key: str) -> bytes:
        found = self._shown.files[f"{key.rpartition('/')[0]}/{METADATA}"]
        assert isinstance(found, bytes)  # noqa: S101 - no segment has that name
        return found

    def offset_at(self, key: str, position: int) -> int | None:
        """Return the offset of the extent that begins at a position of a segment."""
        found = self._shown.files.get(key)
        if not isinstance(found, Segment):
            return None
        slot = bisect_right(found.ends, position)
        if slot == len(found.ends) or found.ends[slot] - found.extents[slot].size != position:
            return None
        return found.extents[slot].base_offset

    def will_read(self, key: str, start: int, end: int) -> None:
        """Take note of the extents of a range of a segment."""
        self._want(self.carried(key, start, end))

    def _want(self, carried: _Carried | None) -> None:
        if carried is None:
            return
        unnumbered = (extent for extent in carried.extents if extent.sealed is None)
        self._extents.want(carried.log_id, unnumbered)

    def carry(self, key: str, carried: _Carried | None) -> None:
        """Take the extents of a range of a segment."""
        if carried is None:
            return
        self._want(carried)
        known = self._carried.get(key)
        is_same = known is not None and known.number == carried.number
        if known is not None and is_same and len(known.starts) < _CARRIED_EXTENTS:
            carried = known.with_extents(carried)
        if sum(len(each.starts) for each in self._carried.values()) > _MOST_CARRIED:
            self._carried, self._carried_metadata = {}, {}  # the log finds what is read once more
        self._carried[key] = carried
        self._carried_metadata[f"{key.rpartition('/')[0]}/{METADATA}"] = carried.metadata

    def _find(self, key: str) -> bytes | _Carried | Segment | SealedIndex | None:
        """Return a file as it was carried here; as it is known by now, if nothing was.

        Who has planned a read knows what there is to read: the store is not asked for more.
        """
        if (metadata := self._carried_metadata.get(key)) is not None:
            return metadata
        if key not in self._carried:
            self._look_if_due()
        return self._known(key)

    def _known(self, key: str) -> bytes | _Carried | Segment | SealedIndex | None:
        """Return a file as it was carried here, or shown by the last look, if that has more."""
        carried, found = self._carried.get(key), self._shown.files.get(key)
        if carried is None:
            return found
        if not isinstance(found, Segment) or found.number != carried.number:
            return carried
        return found if found.size >= carried.size else carried

    def _fill(self, key: str, carried: _Carried, position: int, size: int) -> bytes | memoryview:
        """Return bytes of a segment by its carried extents; by the log where these do not do."""
        carried = self._carried.get(key, carried)
        wanted, end = [], min(position + size, carried.size)
        slot = bisect_right(carried.starts, position) - 1
        while position < end and 0 <= slot < len(carried.starts):
            start, extent = carried.starts[slot], carried.extents[slot]
            until = min(start + extent.size, end)
            if not start <= position < until:
                break
            wanted.append(_Part(extent, position - start, until - start))
            position, slot = until, slot + 1
        parts = self._parts_of(key, carried.log_id, wanted, carried.seen_s)
        if position < end:
            self._look_if_due()
            found = self._shown.files.get(key)
            if not isinstance(found, Segment) or found.number != carried.number:
                self._let_go(key)
                raise ObjectReplacedError(f"{self.uri_of(key)} was replaced while it was read")
            parts.append(self._read(key, found, self._seen_s(), position, end - position))
        return joined(parts)

    def _read(
        self, key: str, segment: Segment, seen_s: float, position: int, size: int
    ) -> bytes | memoryview:
        """Return bytes of a segment; fewer at its end."""
        end = min(position + size, segment.size)
        wanted = []
        slot = bisect_right(segment.ends, position)
        while position < end:
            extent = segment.extents[slot]
            start = segment.ends[slot] - extent.size
            until = min(segment.ends[slot], end)
            wanted.append(_Part(extent, position - start, until - start))
            position, slot = until, slot + 1
        return joined(self._parts_of(key, segment.log_id, wanted, seen_s))

    def _parts_of(
        self, key: str, log_id: str, wanted: Sequence[_Part], seen_s: float
    ) -> list[bytes | memoryview]:
        """Return parts of extents; what another thread fetches already is waited for last."""
        found: dict[int, bytes | memoryview] = {}
        for slot in sorted(
            range(len(wanted)), key=lambda n: self._extents.is_coming(log_id, wanted[n].extent)
        ):
            found[slot] = self._batches_of(key, log_id, wanted[slot], seen_s)
        return [found[slot] for slot in range(len(wanted))]

    def _read_index(self, index: SealedIndex, position: int, size: int) -> bytes | memoryview:
        data = self.objects.get_range(index.path, position, min(size, index.size - position))
        if data is None:
            raise FileNotFoundError(f"{self._place}/{index.path}: there is no such object")
        return data

    def _batches_of(self, key: str, log_id: str, part: _Part, seen_s: float) -> bytes | memoryview:
        """Return bytes of an extent; a sealed segment has its offsets already.

        Raises:
            ObjectReplacedError: the object is gone, and the log does not name it any more.
            DataLossError: it is gone, and the log names it.
            CheckpointError: it is gone, or another one, because the log was set back.
        """
        extent, start, end = part
        try:
            if extent.sealed is None:
                return self._extents.read(log_id, extent, start, end, seen_s=seen_s)
            return self._range_of(extent, log_id, start, end)
        except CorruptRecordError:
            self._look_again()
            raise
        except DataLossError as error:
            self._let_go(key)
            self._look_again()
            if self._names(log_id, extent):
                raise
            raise ObjectReplacedError(f"{error}; the log names another one") from error

    def _let_go(self, key: str) -> None:
        """Forget what a task was told of a partition, its topic's id too: it is older than the log.

        What was opened by it would be opened again by who looks for the rows elsewhere.
        """
        folder = key.rpartition("/")[0]
        self._carried_metadata.pop(f"{folder}/{METADATA}", None)
        for each in [each for each in self._carried if each.rpartition("/")[0] == folder]:
            self._carried.pop(each, None)
            forget_remote(self, each)

    def _range_of(self, extent: Extent, log_id: str, start: int, end: int) -> bytes | memoryview:
        path = object_path(log_id, extent.object)
        found = self.objects.get_range(path, start, end - start)
        if found is None:
            raise gone_error(extent, f"{self._place}/{path}")
        return found

    def _names(self, log_id: str, extent: Extent) -> bool:
        """Whether the log names the object of an extent, as of the last look."""
        state = None if self._log is None else self._log.state
        if state is None or state.log_id != log_id:
            return True
        return any(each.object == extent.object for some in state.extents.values() for each in some)


_OPEN: Final[WeakValueDictionary[int, BucketStore]] = WeakValueDictionary()
"""The stores of this process, for its forked children."""


def _begin_in_child() -> None:
    for each in list(_OPEN.values()):
        each.begin_in_child()


os.register_at_fork(after_in_child=_begin_in_child)


def _without_entries(extent: Extent) -> Extent:
    if extent.sealed is None:
        return extent
    return extent._replace(sealed=extent.sealed._replace(offset_entries=b"", time_entries=b""))


def _store_of(place: RemoteRoot) -> BucketStore:
    return BucketRoot.of(place).open_store()
