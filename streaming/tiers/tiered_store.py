"""Show a log directory and what its broker has moved to a remote tier as one log directory.

Readers know folders and files. A partition's folder shows the local files, and below them the
segments of the tier: those that begin below the first local one. Of both, the local file is read;
one that is deleted locally while a query runs is read from the store.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kafkalog.checkpoints.broker import PARTITION_METADATA, read_leader_epochs, read_topic_id
from kafkalog.errors import (
    DataLossError,
    KafkaLogError,
    LostSegmentError,
    OffsetOutOfRangeError,
    OptionError,
)
from kafkalog.files.regular import read_regular
from kafkalog.files.remote_path import RemoteEntry, RemotePath, RemoteStatus, hash_number
from kafkalog.files.remote_store import open_store, read_opened
from kafkalog.files.system import forgotten_when_forked, remembered, system
from kafkalog.files.watch import is_settled, stamp_of
from kafkalog.model import partition_directory_name
from kafkalog.streaming.log.files import (
    LOG,
    OFFSET_INDEX,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    file_name,
    parse_partition_directory,
)
from kafkalog.streaming.log.log_dir import entries_of
from kafkalog.streaming.log.segments import base_offsets_of, has_segments, segment_names
from kafkalog.streaming.tiers.layouts import find_layout
from kafkalog.streaming.tiers.remote_segments import (
    Piece,
    RemoteLogMetadata,
    choose_segments,
    gaps_between,
    segment_from_record,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kafkalog.files.remote_path import OpenObject
    from kafkalog.files.storage import TieredRoot
    from kafkalog.files.watch import Stamp
    from kafkalog.model import TopicPartition
    from kafkalog.streaming.tiers.layouts import Layout, TierPartition, TierSegment
    from kafkalog.streaming.tiers.remote_segments import Lineage

__all__ = ["Tier", "TierView", "TieredPath", "TieredStore", "open_tiers", "tier_of"]

_ROOT: Final = "log"
_MOST_CARRIED: Final = 4096
"""How many remote segments a task's process keeps of the splits that it was given."""
_SHOWN: Final = (LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX)


class TieredPath(RemotePath):
    """A path in a log directory that goes on in a tier; shown as the file that is really read."""

    __slots__ = ()

    store: TieredStore

    def __str__(self) -> str:
        return self.store.uri_of(self.key)

    def local(self) -> Path | None:
        """Return the name of the local file, be it there or not; None without a directory."""
        return self.store.local(self.key)

    def view(self) -> TierView:
        """Return what the tier has of the log in this folder."""
        return self.store.view(self.key)

    def stable_end(self) -> int:
        """Return up to where the tier has the log: nothing is uploaded before it is stable."""
        return self.store.tier_end(self.key)

    def gaps(self) -> list[tuple[int, int]]:
        """Return the offsets that neither the tier nor the log directory has, in this folder."""
        return self.store.gaps(self.key)

    def max_timestamp(self) -> int | None:
        """Return the largest timestamp of a segment that the tier has, as its broker has told."""
        return self.store.max_timestamp(self.key)

    def may_overlap(self) -> bool:
        """Whether a listing alone tells what is in the tier: not where its segments end."""
        return self.store.may_overlap(self.key)

    def is_in_tier(self) -> bool | None:
        """Whether the tier has anything of the log in this folder."""
        return self.store.is_in_tier(self.key)

    def stat(self, *, follow_symlinks: bool = True) -> Any:  # noqa: ANN401
        """Ask for what is known of a file now; see :meth:`RemotePath.stat`."""
        local = self.local()
        if local is not None:
            with suppress(FileNotFoundError, NotADirectoryError):
                return local.stat(follow_symlinks=follow_symlinks)
        return self.store.status(self.key)

    def read_small(self, limit: int) -> bytes:
        """Read a small file; see :meth:`RemotePath.read_small`."""
        local = self.local()
        if local is not None:
            with suppress(FileNotFoundError, NotADirectoryError):
                return read_regular(local, limit=limit)
        return self.store.read_small(self.key, str(self), limit)

    def stamp(self) -> Stamp | None:
        """Return what changes when a file or folder does, or what the tier has of it."""
        return self.store.stamp(self.key)


# ----------------------------------------------------------------------------------------------
# What a tier has, as this process last saw it.


class TierView(NamedTuple):
    """What a tier has of a partition, as of one look."""

    topic_id: str | None
    pieces: tuple[Piece, ...]
    names: Mapping[str, tuple[TierSegment, str]]
    """The files that the segments have, by their names in the log's folder."""
    end: int | None
    """Where the last segment ends, if that is known."""
    number: int
    """Another one each time that something else is there."""


_NOTHING: Final = TierView(None, (), {}, 0, 0)


class _Seen(NamedTuple):
    view: TierView
    at: float
    local_start: int | None
    lost: frozenset[str]
    """The stems of the segments that were left out."""
    basis: object
    """The records and leader epochs that told it; None if a listing did."""


class Tier:
    """A remote tier beside the log directories of its broker, or alone."""

    def __init__(self, place: TieredRoot) -> None:
        self._place = place
        self.store = open_store(place.tier.root)
        self.log_dirs = [Path(each) for each in place.log_dirs]
        self._metadata = RemoteLogMetadata(self.log_dirs)
        self._metadata_at = -float("inf")
        self._layout: Layout | None = None
        self._partitions: dict[TopicPartition, TierPartition] = {}
        self._partitions_at = -float("inf")
        self._seen: dict[tuple[TopicPartition, str | None], _Seen] = {}
        self._lost: frozenset[str] = frozenset()
        """The stems of the segments whose logs are gone, though the tier names them."""
        self._using = system.lock()

    @property
    def layout(self) -> Layout:
        """How what lies there is named.

        Raises:
            LogDirectoryError: nothing tells.
        """
        if self._layout is None:
            self._layout = find_layout(self.store, self._place.tier)
        return self._layout

    def forget(self) -> None:
        """Have the next look ask the store again, also for what was lost."""
        self._lost = frozenset()
        self.expire()

    def expire(self) -> None:
        """Have the next look ask the store again for what there is."""
        self._metadata_at = self._partitions_at = -float("inf")
        self._seen = {key: seen._replace(at=-float("inf")) for key, seen in self._seen.items()}

    def leave_out(self, segment: TierSegment, others: Iterable[Piece]) -> None:
        """Treat a segment whose object is missing as lost, until the store is listed again.

        The listing of its folder also tells which ``others`` of its partition are lost.
        """
        folder = f"{segment.folder}/"
        there = {folder + each.name for each in self.store.list_folder(segment.folder) if each.size}
        keys = {each.segment.stem: self.layout.key(each.segment, LOG) for each in others}
        gone = {stem for stem, key in keys.items() if key.startswith(folder) and key not in there}
        self._lost |= {segment.stem} | gone
        self.expire()

    def _is_due(self, at: float) -> bool:
        return system.monotonic() - at > self._place.options.list_interval_ms / 1000

    def partitions(self) -> dict[TopicPartition, TierPartition]:
        """List what the tier has, as of a moment ago.

        Of topics that had one name after another, the one with the newest objects counts.
        """
        if self._is_due(self._partitions_at):
            found: dict[TopicPartition, list[TierPartition]] = {}
            for each in self.layout.partitions():
                found.setdefault(each.topic_partition, []).append(each)
            self._partitions = {key: self._newest(some) for key, some in found.items()}
            self._partitions_at = system.monotonic()
        return self._partitions

    def _newest(self, some: list[TierPartition]) -> TierPartition:
        if len(some) == 1:
            return some[0]
        return max(some, key=self._modified)

    def _modified(self, partition: TierPartition) -> tuple[int, str]:
        times = [entry.modified_ns for entry in self.store.list_folder(partition.folder)]
        return max(times, default=-1), partition.folder

    def view(
        self,
        key: TopicPartition,
        topic_id: str | None,
        local_start: int | None,
        lineage: Callable[[], Lineage],
    ) -> TierView:
        """Return what the tier has of a partition, as of a moment ago.

        ``local_start`` is where its local log starts now: what was deleted there was uploaded
        before, so that a look from before it moved is outdated.
        """
        with self._using:
            seen = self._seen.get((key, topic_id))
            if seen is None or seen.local_start != local_start or self._is_due(seen.at):
                self._refresh_records(at_once=seen is not None and seen.local_start != local_start)
                view, basis = self._look(key, topic_id, lineage(), seen, local_start)
                seen = _Seen(view, system.monotonic(), local_start, self._lost, basis)
                self._seen[key, topic_id] = seen
            return seen.view

    def _look(
        self,
        key: TopicPartition,
        topic_id: str | None,
        lineage: Lineage,
        seen: _Seen | None,
        local_start: int | None,
    ) -> tuple[TierView, object]:
        """Return what the tier has; the very same value as before where nothing has changed."""
        basis = self._metadata.replay, self._metadata.replay.count, lineage, self._lost
        if seen is not None and seen.basis == basis:
            return seen.view, basis
        topic_id, segments = self.segments(key, topic_id, local_start)
        by_records = bool(segments) and segments[0].end_offset is not None
        told = basis if by_records and segments[0].folder else None
        pieces = choose_segments(segments, lineage)
        if seen is not None and (tuple(pieces), self._lost) == (seen.view.pieces, seen.lost):
            return seen.view, told
        return _view(topic_id, pieces, self._lost), told

    def _refresh_records(self, *, at_once: bool = False) -> None:
        if self.log_dirs and (at_once or self._is_due(self._metadata_at)):
            self._metadata.look()
            self._metadata_at = system.monotonic()

    def segments(
        self, key: TopicPartition, topic_id: str | None, local_start: int | None = None
    ) -> tuple[str | None, list[TierSegment]]:
        """Return all finished segments of a partition, and the id of its topic.

        Raises:
            LogDirectoryError: the store fails.
            CorruptRecordError: ``__remote_log_metadata`` cannot be read.
        """
        records = None
        self._refresh_records()
        if self.log_dirs:
            found = topic_id or self._metadata.replay.id_of(key.topic)
            if found is not None:
                records = self._metadata.replay.of(found, key.partition)
                topic_id = found if records is not None else topic_id
        if records is not None and topic_id is not None:
            partition = self._partition(key, topic_id)
            folder = "" if partition is None else partition.folder
            return topic_id, [segment_from_record(each, folder) for each in records]
        partition = self._partition(key, topic_id)
        if partition is None:
            return topic_id, []
        return topic_id or partition.topic_id, self.layout.segments(partition, local_start)

    def orphans(self, key: TopicPartition, topic_id: str | None) -> list[str]:
        """Return the objects in a partition's folder that are of none of its finished segments.

        What a broker uploads at this moment is among them, and what it is about to delete.
        """
        topic_id, segments = self.segments(key, topic_id)
        partition = self._partition(key, topic_id)
        if partition is None:
            return []
        found = self.layout.orphans(partition, segments)
        return sorted(f"{partition.folder}/{entry.name}" for entry in found)

    def _partition(self, key: TopicPartition, topic_id: str | None) -> TierPartition | None:
        if topic_id is None or not self.layout.names_ids:
            return self.partitions().get(key)
        return self.layout.partition(key, topic_id)


def _view(topic_id: str | None, pieces: list[Piece], lost: frozenset[str]) -> TierView:
    names: dict[str, tuple[TierSegment, str]] = {}
    for segment, _, end in pieces:
        if segment.stem in lost:
            continue
        for suffix in _SHOWN:
            if suffix in segment.suffixes:
                names[file_name(segment.start_offset, suffix)] = segment, suffix
        if end is not None and end == segment.end_offset and SNAPSHOT in segment.suffixes:
            names[file_name(end, SNAPSHOT)] = segment, SNAPSHOT
    end = pieces[-1].end if pieces else 0
    number = hash_number(repr((pieces, sorted(lost))))
    return TierView(topic_id, tuple(pieces), names, end, number)


@forgotten_when_forked
class _Tiers:
    """The tiers, and the log directories above them, that this process has opened."""

    def __init__(self) -> None:
        self.tiers: dict[object, Tier] = {}
        self.stores: dict[object, TieredStore] = {}


def tier_of(place: TieredRoot) -> Tier:
    """Return the tier of a place; a process has one for the same log directories."""
    key = (place.log_dirs, place.tier, place.options, place.full_uri)
    tiers = remembered(_Tiers).tiers
    found = tiers.get(key)
    return tiers.setdefault(key, Tier(place)) if found is None else found


def open_tiers(place: TieredRoot) -> TieredPath:
    """Return the root of a log directory with what its tier has.

    Raises:
        OptionError: it is the folder of a partition.
    """
    folder = Path(place.log_dir or "/")
    if parse_partition_directory(folder.name) is not None and has_segments(folder):
        raise OptionError(
            f"{folder} is the folder of one partition: with remote.path, name the log directory "
            f"around it, {folder.parent}, and the topic"
        )
    return _open(place).root


def _open(place: TieredRoot) -> TieredStore:
    stores = remembered(_Tiers).stores
    found = stores.get(place.identity)
    return stores.setdefault(place.identity, TieredStore(place)) if found is None else found


# ----------------------------------------------------------------------------------------------
# Folders and files.


class _Carried(NamedTuple):
    """What a task gets of a remote segment that it reads."""

    topic_id: str | None
    segment: TierSegment


class _Object:
    """An object of a tier, opened when it is first read."""

    def __init__(self, open_it: Callable[[], OpenObject]) -> None:
        self._open_it = open_it
        self._opened: OpenObject | None = None

    def read_at(self, nbytes: int, offset: int) -> bytes:
        if self._opened is None:
            self._opened = self._open_it()
        return bytes(self._opened.read_at(nbytes, offset))

    def close(self) -> None:
        """Close it, if it is open."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()


class TieredStore:
    """A store whose files are those of a log directory and of a tier; see :class:`~RemotePath`."""

    def __init__(self, place: TieredRoot) -> None:
        self._place = place
        self._log_dir = None if place.log_dir is None else Path(place.log_dir)
        self._carried: OrderedDict[str, _Carried] = OrderedDict()
        self._carried_ids: dict[str, str | None] = {}
        """The ids of the topics of what is carried, by their folders."""
        self._listed: dict[str, tuple[Stamp | None, TierView, list[RemoteEntry]]] = {}
        self._views: dict[str, TierView] = {}
        """What the last look at each folder has found."""
        self._starts: dict[Path, tuple[Stamp, int | None]] = {}

    def __reduce__(self) -> tuple[Callable[[TieredRoot], TieredStore], tuple[TieredRoot]]:
        return _open, (self._place,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TieredStore) and self._place.identity == other._place.identity

    def __hash__(self) -> int:
        return hash(self._place)

    @property
    def root(self) -> TieredPath:
        """The path of the log directory."""
        return TieredPath(self, str(self._place), _ROOT)

    @property
    def tier(self) -> Tier:
        """What lies below the log directory."""
        return tier_of(self._place)

    def local(self, key: str) -> Path | None:
        """Return the name of a local file, be it there or not."""
        if self._log_dir is None:
            return None
        return self._log_dir / key.removeprefix(_ROOT).lstrip("/")

    def uri_of(self, key: str) -> str:
        """Return how a person knows the file that is read under a name."""
        local = self.local(key)
        if local is not None and (key.count("/") < 2 or local.exists()):
            return str(local)
        with suppress(KafkaLogError, OSError):
            found = self._find(key)
            if found is not None:
                layout = self.tier.layout
                return layout.store.uri_of(layout.key(*found))
        return str(self._place) + key.removeprefix(_ROOT)

    # What the tier has of a folder

    def _look(self, folder: str, start: int | None = -1) -> TierView:
        """Return what the tier has of the partition in a folder, whose local log starts there."""
        key = parse_partition_directory(folder.rpartition("/")[2])
        if key is None or folder.count("/") != 1:
            return _NOTHING
        local = self.local(folder)
        if local is None:
            partition = self.tier.partitions().get(key)
            topic_id = None if partition is None else partition.topic_id
            view = self.tier.view(key, topic_id, None, lambda: ())
        elif not local.is_dir():
            view = _NOTHING
        else:
            view = self.tier.view(key, read_topic_id(local), start, lambda: _lineage(local))
        self._views[folder] = view
        return view

    def _below(self, folder: str) -> tuple[TierView, int | None]:
        """Return what the tier has, and where the local log starts, which is looked at first."""
        local = self.local(folder)
        start = None if local is None else self._local_start(local)
        return self._look(folder, start), start

    def _local_start(self, folder: Path) -> int | None:
        """Return where the segments in a folder start; None without any."""
        stamp = stamp_of(str(folder))
        if stamp is None:
            return None
        known = self._starts.pop(folder, None)
        if known is None or known[0] != stamp:
            settled = is_settled(stamp)  # before the listing: no change can be hidden
            bases = base_offsets_of(segment_names(folder), "")
            known = stamp, bases[0] if bases else None
            if not settled:
                return known[1]
        self._starts[folder] = known
        return known[1]

    def view(self, folder: str) -> TierView:
        """Return what the tier has of the log in a folder."""
        return self._below(folder)[0]

    def tier_end(self, folder: str) -> int:
        """Return up to which offset the tier has the log of a folder, as far as that is known."""
        view, start = self._below(folder)
        if view.end is not None:
            return view.end
        last = view.pieces[-1].start if view.pieces else 0
        return last if start is None else max(last, start)

    def gaps(self, folder: str) -> list[tuple[int, int]]:
        """Return the offsets that neither the tier nor the log directory has."""
        view, start = self._below(folder)
        pieces = [p for p in view.pieces if start is None or p.start < start]
        lost = (
            (piece.start, end)
            for piece in pieces
            if file_name(piece.base_offset, LOG) not in view.names
            and (end := start if piece.end is None else piece.end) is not None
        )
        return sorted([*gaps_between(pieces, start), *lost])

    def max_timestamp(self, key: str) -> int | None:
        """Return the largest timestamp of a segment of the tier; None of a local one."""
        found = self._find(key)
        if found is None or found[0].max_timestamp is None:
            return None
        local = self.local(key)
        return None if local is not None and local.exists() else found[0].max_timestamp

    def may_overlap(self, folder: str) -> bool:
        """Whether it is not known where each segment of the tier ends."""
        return any(piece.segment.end_offset is None for piece in self.view(folder).pieces)

    def is_in_tier(self, folder: str) -> bool:
        """Whether the tier has anything of the log in a folder."""
        return bool(self._below(folder)[0].pieces)

    # Folders

    def entries(self, key: str) -> list[RemoteEntry] | None:
        """List a folder; None if there is nothing under that name."""
        if key == _ROOT:
            return self._root_entries()
        local = self.local(key)
        stamp = None if local is None else stamp_of(str(local))
        known = self._listed.get(key)
        if known is not None and known[0] == stamp and self._below(key)[0] is known[1]:
            return known[2]
        here = [] if local is None else _entries_here(local)
        # of one listing with what is shown: what is deleted here after it is read from the tier
        start = min(base_offsets_of([entry.name for entry in here], ""), default=None)
        view = self._look(key, start)
        if not here and not view.pieces and not (local is not None and local.is_dir()):
            return None
        named = {entry.name for entry in here}
        remote = [
            RemoteEntry(name, False, segment.size or 0, -1)
            for name, (segment, suffix) in view.names.items()
            if name not in named and _is_shown(segment, suffix, start)
        ]
        if local is None and view.topic_id is not None:
            remote.append(
                RemoteEntry(PARTITION_METADATA, False, len(_metadata_text(view.topic_id or "")), -1)
            )
        self._listed.pop(key, None)
        if stamp is None or is_settled(stamp):  # before the listing: no change can be hidden
            self._listed[key] = stamp, view, here + remote
        return here + remote

    def _root_entries(self) -> list[RemoteEntry]:
        if self._log_dir is not None:
            return _entries_here(self._log_dir, must_be_there=True)
        here = {entry.name for each in self.tier.log_dirs for entry in _entries_here(each)}
        names = (partition_directory_name(*key) for key in sorted(self.tier.partitions()))
        return [RemoteEntry(name, True, 0, -1) for name in names if name not in here]

    @property
    def list_interval_s(self) -> float:
        """How old what is known of the tier may be."""
        return self._place.options.list_interval_ms / 1000

    def listed(self, key: str) -> RemoteEntry | None:
        """Return what is known of a file of the tier."""
        found = self._find(key)
        if found is None:
            return None
        return RemoteEntry(key.rpartition("/")[2], False, found[0].size or 0, -1)

    def forget_listing(self) -> None:
        """Have the next look ask the store again."""
        self.tier.forget()

    def stamp(self, key: str) -> Stamp | None:
        """Return what changes when a file or folder does."""
        local = self.local(key)
        stamp = None if local is None else stamp_of(str(local))
        depth = key.count("/")
        if depth == 1 and parse_partition_directory(key.rpartition("/")[2]) is not None:
            view = self._below(key)[0]
            if stamp is None:
                return (0, view.number, 0, 0, 0) if view.pieces else None
            return (stamp[0], stamp[1] ^ view.number, *stamp[2:])
        if stamp is not None:
            return stamp
        if key == _ROOT and self._log_dir is None:
            return (0, hash(tuple(self._root_entries())), 0, 0, 0)
        found = self._find(key) if depth > 1 else None
        return None if found is None else (0, hash_number(found[0].stem, key), 0, 0, 0)

    # Files

    def _find(self, key: str) -> tuple[TierSegment, str] | None:
        """Return the segment of the tier that has a file, and which of its files it is."""
        folder, _, name = key.rpartition("/")
        carried = self._carried.get(f"{folder}/{name.partition('.')[0]}")
        suffix = name[name.find(".") :]
        if carried is not None and suffix in carried.segment.suffixes and suffix != SNAPSHOT:
            return carried.segment, suffix
        known = self._views.get(folder)
        found = None if known is None else known.names.get(name)
        return self._below(folder)[0].names.get(name) if found is None else found

    def _topic_id(self, folder: str) -> str | None:
        if folder in self._carried_ids:
            return self._carried_ids[folder]
        return self._below(folder)[0].topic_id

    def open(self, key: str) -> tuple[OpenObject, RemoteStatus]:
        """Open a file of the tier, and tell which one it is.

        Raises:
            FileNotFoundError: there is none.
            LogDirectoryError: the store fails.
            LostSegmentError: the log is gone, and the broker's records, or its indexes, name it.
        """
        found = self._find(key)
        if found is None:
            raise FileNotFoundError(f"{self.uri_of(key)}: there is no such file")
        segment, suffix = found
        try:
            opened, size = self.tier.layout.open(segment, suffix)
        except FileNotFoundError as error:
            if suffix != LOG:
                raise
            raise self._gone(key, error) from error
        number = hash_number(segment.stem + suffix, str(size))
        return _Object(opened), RemoteStatus(-1, number, size, -1)

    def status(self, key: str) -> RemoteStatus:
        """Tell about one file of the tier."""
        if key.rpartition("/")[2] == PARTITION_METADATA:
            content = self._metadata_file(key)
            return RemoteStatus(-1, hash_number(key, content.decode()), len(content), -1)
        return self.open(key)[1]

    def read_small(self, key: str, uri: str, limit: int) -> bytes:
        """Read a small file of the tier whole."""
        if key.rpartition("/")[2] == PARTITION_METADATA:
            return self._metadata_file(key)
        return read_opened(self, key, uri, limit)

    def _metadata_file(self, key: str) -> bytes:
        topic_id = self._topic_id(key.rpartition("/")[0])
        if self._log_dir is not None or topic_id is None:
            raise FileNotFoundError(f"{self.uri_of(key)}: there is no such file")
        return _metadata_text(topic_id)

    def fetch(self, handle: OpenObject, key: str, position: int, length: int) -> bytes:
        """Fetch a range of an open file, all of it.

        Raises:
            OffsetOutOfRangeError: the segment was deleted from the tier since it was opened.
            LostSegmentError: the object is gone, and the broker's records still name it.
            LogDirectoryError: the store fails.
        """
        try:
            return self.tier.store.read_range(handle, self.uri_of(key), position, length)
        except FileNotFoundError as error:
            raise self._gone(key, error) from error

    def _gone(self, key: str, error: FileNotFoundError) -> KafkaLogError:
        """Say what it means that an object is not there: deleted by its broker, or lost."""
        name = self.uri_of(key)
        folder = key.rpartition("/")[0]
        self._carried.pop(key.rpartition(".")[0], None)
        self.tier.expire()
        self._views.pop(folder, None)
        found = self._find(key)
        if found is not None:
            self.tier.leave_out(found[0], self._below(folder)[0].pieces)
            self._views.pop(folder, None)
            return LostSegmentError(
                f"{name} is not there, and the records of its broker, or other files of the "
                f"segment, say that it is: {error}; "
                "check remote.path and remote.layout, and whether the store deletes by itself"
            )
        view, local_start = self._below(folder)
        start = view.pieces[0].start if view.pieces else local_start
        offset = int(key.rpartition("/")[2].partition(".")[0])
        deleted = f"{name} was deleted from the tier while it was read"
        if start is not None and start <= offset:  # no expiration: those go in order
            return DataLossError(
                f"{deleted}, and the log starts at offset {start}, before it: run the query again, "
                "if another copy of these offsets is there it is read"
            )
        return OffsetOutOfRangeError(
            deleted + ("" if start is None else f": the log starts at offset {start} now"),
            offset=offset,
            log_start_offset=-1 if start is None else start,
        )

    def index_entries(self, key: str) -> bytes:  # noqa: ARG002 - it knows of no entries
        """See :class:`~Store`."""
        return b""

    def log_end(self, key: str) -> int | None:
        """Return where the log in a folder ends, if the tier alone has it and that is known."""
        view, start = self._below(key)
        return view.end if start is None and view.pieces else None

    # What a split carries to a task

    def offset_at(self, key: str, position: int) -> int | None:  # noqa: ARG002
        """Files tell that themselves."""
        return None

    def will_read(self, key: str, start: int, end: int) -> None:
        """Take note of nothing: each segment is an object."""

    def carried(self, key: str, start: int, end: int) -> _Carried | None:  # noqa: ARG002
        """Return the remote segment that a range is read from; None of a local one."""
        folder, _, name = key.rpartition("/")
        known = self._carried.get(f"{folder}/{name.partition('.')[0]}")
        if known is not None:
            return known
        local = self.local(key)
        if local is not None and local.exists():
            return None
        found = self._find(key)
        return None if found is None else _Carried(self._topic_id(folder), found[0])

    def carry(self, key: str, carried: _Carried | None) -> None:
        """Take what another process has told of a segment."""
        if carried is not None:
            self._carried[key.rpartition(".")[0]] = carried
            self._carried_ids[key.rpartition("/")[0]] = carried.topic_id
            if len(self._carried) > _MOST_CARRIED:
                self._carried.popitem(last=False)


def _lineage(folder: Path) -> Lineage:
    """Return the leader epochs of the log in a folder; empty where they cannot be known."""
    with suppress(KafkaLogError, OSError):
        return tuple((each.epoch, each.start_offset) for each in read_leader_epochs(folder))
    return ()


def _entries_here(folder: Path, *, must_be_there: bool = False) -> list[RemoteEntry]:
    """List a local folder; segments as of one moment, though they are renamed meanwhile."""
    if not must_be_there and not folder.is_dir():
        return []
    entries = {
        entry.name: RemoteEntry(entry.name, entry.is_dir(), 0, -1) for entry in entries_of(folder)
    }
    if parse_partition_directory(folder.name) is not None:
        names = set(segment_names(folder))
        entries = {n: e for n, e in entries.items() if not n.endswith(_SHOWN[:1]) or n in names}
        entries |= {name: RemoteEntry(name, False, 0, -1) for name in names}
    return list(entries.values())


def _is_shown(segment: TierSegment, suffix: str, local_start: int | None) -> bool:
    if local_start is None:
        return True
    if suffix == SNAPSHOT:
        return segment.end_offset is not None and segment.end_offset <= local_start
    return segment.start_offset < local_start


def _metadata_text(topic_id: str) -> bytes:
    return f"version: 0\ntopic_id: {topic_id}".encode()
