"""The layouts of remote tiers: how the plugins of brokers name what they upload.

===========  ======================================================================================
layout       objects of a segment
===========  ======================================================================================
kafka        ``{topic}-{partition}-{topic id}/{start offset}-{segment id}{suffix}``, plain copies,
             by ``LocalTieredStorage`` of Kafka's tests, in a folder ``kafka-tiered-storage``
aiven        ``{topic}-{topic id}/{partition}/{start offset}-{segment id}.log``, ``.indexes`` and
             ``.rsm-manifest``, which comes last: without it the upload is unfinished
pinterest    ``[entropy bits/]{cluster}/{topic}-{partition}/{offset}.log``, ``.index`` and
             ``.timeindex``: a segment counts when all three are there
===========  ======================================================================================

A layout tells what a listing shows and where an object of a segment is; it reads no log.

Source: Kafka ``LocalTieredStorage``, ``RemoteLogSegmentFileset``; Aiven
``tiered-storage-for-apache-kafka``; Pinterest ``tiered-storage``.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from kafkalog.errors import CorruptRecordError, LogDirectoryError, OptionError
from kafkalog.model import TopicPartition, listed
from kafkalog.streaming.log.files import (
    LOG,
    OFFSET_INDEX,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    parse_partition_directory,
)
from kafkalog.streaming.tiers.aiven import (
    MANIFEST_LIMIT,
    ChunkedObject,
    KeyRing,
    decrypt,
    parse_custom_metadata,
    parse_manifest,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kafkalog.files.remote_path import OpenObject, RemoteEntry
    from kafkalog.files.remote_store import RemoteStore
    from kafkalog.files.storage import Tier
    from kafkalog.streaming.tiers.aiven import Manifest

__all__ = [
    "EPOCHS",
    "INDEXES",
    "LAYOUTS",
    "MANIFEST",
    "AivenLayout",
    "KafkaLayout",
    "Layout",
    "PinterestLayout",
    "TierPartition",
    "TierSegment",
    "find_layout",
]

EPOCHS: Final = ".leader_epoch_checkpoint"
MANIFEST: Final = ".rsm-manifest"
INDEXES: Final = ".indexes"

LAYOUTS: Final = ("kafka", "aiven", "pinterest")

_FOLDER_OF_KAFKA: Final = "kafka-tiered-storage"
_ID: Final = r"[A-Za-z0-9_-]{22}"
_WITH_ID: Final = re.compile(rf"(.+)-({_ID})", re.DOTALL)
_SEGMENT: Final = re.compile(rf"([0-9]{{20}})-({_ID})(\.[a-z_-]+)", re.ASCII)
_NUMBERED: Final = re.compile(r"([0-9]{20})(\.[a-z]+)", re.ASCII)
_PARTITION: Final = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)
_ENTROPY: Final = re.compile(r"[01]{1,32}", re.ASCII)
_MAX_OFFSET: Final = 2**63 - 2
_KEPT_MANIFESTS: Final = 256


class TierPartition(NamedTuple):
    """A partition in a tier, and the folder of its objects; one topic name may have two ids."""

    topic_partition: TopicPartition
    topic_id: str | None
    folder: str


class TierSegment(NamedTuple):
    """A segment in a tier; what only its broker's records tell is None without them."""

    folder: str
    segment_id: str
    start_offset: int
    end_offset: int | None
    size: int | None
    """Bytes of the segment, as it was before it was uploaded."""
    suffixes: frozenset[str]
    """Of the files that it has."""
    max_timestamp: int | None = None
    leader_epochs: tuple[tuple[int, int], ...] = ()
    custom_metadata: bytes | None = None

    @property
    def stem(self) -> str:
        """The key of its objects, without a suffix."""
        name = f"{self.start_offset:020}"
        return (
            f"{self.folder}/{name}-{self.segment_id}"
            if self.segment_id
            else (f"{self.folder}/{name}")
        )


class Layout:
    """What one plugin has uploaded below a root of a store."""

    name: str
    suffixes: frozenset[str]
    """Of the files that each whole segment has."""
    names_ids = True
    """Whether the names of folders have topic ids."""

    def __init__(self, store: RemoteStore, root: str) -> None:
        self.store = store
        self.root = root

    def partitions(self) -> list[TierPartition]:
        """List the partitions that have a folder."""
        raise NotImplementedError

    def partition(self, key: TopicPartition, topic_id: str) -> TierPartition:
        """Return where a partition's objects are, without a look."""
        raise NotImplementedError

    def segments(
        self, partition: TierPartition, local_start: int | None = None
    ) -> list[TierSegment]:
        """List the segments of a partition, by start offset: one listing.

        One that lacks a file is being uploaded, or was given up: another upload has its start. If
        none has, and later records are in the tier or from ``local_start`` on, it was lost: it is
        listed, and cannot be opened.
        """
        found: dict[tuple[int, str], dict[str, int]] = {}
        for entry in self.store.list_folder(partition.folder):
            named = None if entry.folder else self._parsed(entry.name)
            if named is not None:
                start, segment_id, suffix = named
                found.setdefault((start, segment_id), {})[suffix] = entry.size
        whole = {start for (start, _), files in found.items() if self._is_whole(files)}
        last = max(whole | {local_start or 0})
        return [
            self._segment(partition.folder, start, segment_id, files)
            for (start, segment_id), files in sorted(found.items())
            if self._is_whole(files) or (start not in whole and start < last)
        ]

    def orphans(self, partition: TierPartition, known: Iterable[TierSegment]) -> list[RemoteEntry]:
        """List the objects of a partition that belong to none of the segments."""
        stems = {segment.stem for segment in known}
        found = []
        for entry in self.store.list_folder(partition.folder):
            named = None if entry.folder else self._parsed(entry.name)
            stem = entry.name.removesuffix(named[2]) if named else entry.name
            if f"{partition.folder}/{stem}" not in stems and entry.name != "offset.wm":
                found.append(entry)
        return found

    def key(self, segment: TierSegment, suffix: str) -> str:
        """Return the key of the object that has a file of a segment."""
        return segment.stem + suffix

    def open(self, segment: TierSegment, suffix: str) -> tuple[Callable[[], OpenObject], int]:
        """Return what opens a file of a segment, and how many bytes it has.

        Where that is known, nothing is asked of the store.

        Raises:
            FileNotFoundError: there is no such object, or it is a log without bytes.
            LogDirectoryError: the store fails.
        """
        key = self.key(segment, suffix)
        if suffix == LOG and segment.size is not None:
            return lambda: self.store.open(key)[0], segment.size
        opened, status = self.store.open(key)
        if suffix == LOG and not status.st_size:
            raise FileNotFoundError(f"{self.store.uri_of(key)} has no bytes")
        return lambda: opened, status.st_size

    def _parsed(self, name: str) -> tuple[int, str, str] | None:
        found = _SEGMENT.fullmatch(name)
        if found is None or int(found[1]) > _MAX_OFFSET:
            return None
        return int(found[1]), found[2], found[3]

    def _is_whole(self, files: dict[str, int]) -> bool:
        return self.suffixes <= files.keys() and files[LOG] > 0

    def _segment(
        self, folder: str, start: int, segment_id: str, files: dict[str, int]
    ) -> TierSegment:
        names = {LOG} | files.keys() & {OFFSET_INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT, EPOCHS}
        return TierSegment(
            folder, segment_id, start, None, files.get(LOG) or None, frozenset(names)
        )


class KafkaLayout(Layout):
    """``LocalTieredStorage`` of Kafka's tests: plain copies of a segment's files."""

    name = "kafka"
    suffixes = frozenset({LOG, OFFSET_INDEX, TIME_INDEX})

    def partitions(self) -> list[TierPartition]:
        """List the folders of the root."""
        found = (
            _of_kafka(self.root, entry.name)
            for entry in self.store.list_folder(self.root)
            if entry.folder
        )
        return [each for each in found if each is not None]

    def partition(self, key: TopicPartition, topic_id: str) -> TierPartition:
        """Name the folder of a partition."""
        name = f"{key.topic}-{key.partition}-{topic_id}"
        return TierPartition(key, topic_id, f"{self.root}/{name}")


def _of_kafka(root: str, name: str) -> TierPartition | None:
    found = _WITH_ID.fullmatch(name)
    key = None if found is None else parse_partition_directory(found[1])
    if found is None or key is None:
        return None
    return TierPartition(key, found[2], f"{root}/{name}")


class AivenLayout(Layout):
    """Aiven's plugin: a log in chunks, its indexes in one object, and a manifest."""

    name = "aiven"
    suffixes = frozenset({LOG, INDEXES, MANIFEST})

    def __init__(
        self, store: RemoteStore, root: str, prefix: str = "", keys: KeyRing | None = None
    ) -> None:
        super().__init__(store, root)
        self.prefix = prefix
        """What stands before the topic in the names below the root."""
        self._keys = keys or KeyRing({})
        self.manifest = functools.lru_cache(_KEPT_MANIFESTS)(self._manifest)

    def partitions(self) -> list[TierPartition]:
        """List the folders of the root, and those in each of them."""
        found = []
        for entry in self.store.list_folder(self.root):
            named = _WITH_ID.fullmatch(entry.name.removeprefix(self.prefix))
            if not entry.folder or not entry.name.startswith(self.prefix) or named is None:
                continue
            topic, topic_id = named[1], named[2]
            for inner in self.store.list_folder(f"{self.root}/{entry.name}"):
                if inner.folder and _PARTITION.fullmatch(inner.name):
                    key = parse_partition_directory(f"{topic}-{inner.name}")
                    folder = f"{self.root}/{entry.name}/{inner.name}"
                    if key is not None:
                        found.append(TierPartition(key, topic_id, folder))
        return found

    def partition(self, key: TopicPartition, topic_id: str) -> TierPartition:
        """Name the folder of a partition."""
        folder = f"{self.root}/{self.prefix}{key.topic}-{topic_id}/{key.partition}"
        return TierPartition(key, topic_id, folder)

    def _segment(
        self,
        folder: str,
        start: int,
        segment_id: str,
        files: dict[str, int],  # noqa: ARG002 - the manifest has the sizes
    ) -> TierSegment:
        names = frozenset({LOG, OFFSET_INDEX, TIME_INDEX, SNAPSHOT, EPOCHS, TXN_INDEX})
        return TierSegment(folder, segment_id, start, None, None, names)

    def key(self, segment: TierSegment, suffix: str) -> str:
        """Return the key of the object that has a file of a segment.

        Raises:
            LogDirectoryError: what the plugin keeps of it names an object of another topic.
        """
        name = {LOG: LOG, MANIFEST: MANIFEST}.get(suffix, INDEXES)
        if name == MANIFEST or not segment.custom_metadata:
            return segment.stem + name
        return self._named(segment) + name

    def _named(self, segment: TierSegment) -> str:
        """Return the key without a suffix, as custom metadata gives it."""
        try:
            custom = parse_custom_metadata(segment.custom_metadata)
        except CorruptRecordError as error:
            raise LogDirectoryError(f"{self.store.uri_of(segment.stem)}: {error}") from error
        own = "/".join(segment.folder.split("/")[-2:]).removeprefix(self.prefix)
        plain = segment.stem.rpartition("/")[2]
        main = f"{own}/{plain}" if custom.object_key is None else custom.object_key
        folder = segment.folder.removesuffix(own)
        if custom.object_prefix is not None and not folder.endswith(f"/{custom.object_prefix}"):
            bucket = self.root.partition("/")[0]
            if not bucket:  # a local folder, whose beginning no plugin knows
                raise self._outside(segment, custom.object_prefix)
            folder = f"{bucket}/{custom.object_prefix}"
        name = main.removeprefix(f"{own}/")
        if name == main or "/" in name or ".." in f"{folder}{main}".split("/"):
            raise self._outside(segment, main)
        return folder + main

    def _outside(self, segment: TierSegment, name: str) -> LogDirectoryError:
        return LogDirectoryError(
            f"{self.store.uri_of(segment.stem)}: the metadata of this segment names the object "
            f"{name!r}, which is not in its topic's folder: nothing is read from there"
        )

    def _manifest(self, segment: TierSegment) -> Manifest:
        """Read the manifest of a segment; only one of that very segment counts.

        Raises:
            FileNotFoundError: there is none.
            LogDirectoryError: it is damaged, or another segment's.
        """
        key = segment.stem + MANIFEST
        opened, status = self.store.open(key)
        try:
            size = min(status.st_size, MANIFEST_LIMIT + 1)
            found = parse_manifest(self.store.fetch(opened, key, 0, size))
            self._check(found, segment)
        except CorruptRecordError as error:
            raise LogDirectoryError(f"{self.store.uri_of(key)}: {error}") from error
        finally:
            opened.close()
        return found

    def _check(self, found: Manifest, segment: TierSegment) -> None:
        """Refuse the manifest of another segment.

        Raises:
            CorruptRecordError: it is one.
        """
        folder = f"{self.prefix}{found.topic}-{found.topic_id}/{found.partition}"
        known = (segment.segment_id, segment.start_offset)
        if not segment.folder.endswith(f"/{folder}") or (
            (found.segment_id, found.start_offset) != known
        ):
            raise CorruptRecordError(
                f"is that of segment {found.segment_id} of {found.topic}-{found.partition}"
            )
        if segment.size is not None and found.chunks.file_size != segment.size:
            raise CorruptRecordError(
                f"is of a log of {found.chunks.file_size} bytes, and the broker's record of one of "
                f"{segment.size}"
            )

    def open(self, segment: TierSegment, suffix: str) -> tuple[Callable[[], OpenObject], int]:
        """Return what opens a file of a segment; see :meth:`Layout.open`."""
        if suffix != LOG:
            data = self._index(segment, suffix)
            return lambda: _Bytes(data), len(data)
        if segment.size is not None:
            return lambda: self._log(segment), segment.size
        opened = self._log(segment)
        return lambda: opened, opened.size

    def _log(self, segment: TierSegment) -> ChunkedObject:
        key = self.key(segment, LOG)
        opener = functools.lru_cache(1)(lambda: self.store.open(key)[0])

        def fetch(position: int, length: int) -> bytes:
            return bytes(opener().read_at(length, position))

        return ChunkedObject(self.manifest(segment), self._keys, fetch, self.store.uri_of(key))

    def _index(self, segment: TierSegment, suffix: str) -> bytes:
        manifest = self.manifest(segment)
        key = self.key(segment, INDEXES)
        if suffix not in manifest.indexes:
            raise FileNotFoundError(f"{self.store.uri_of(key)}: has no {suffix}")
        position, size = manifest.indexes[suffix]
        if not size:  # nothing is encrypted of an empty one
            return b""
        opened, _ = self.store.open(key)
        try:
            data = self.store.fetch(opened, key, position, size)
            if manifest.key_id is None:
                return data
            return decrypt(data, self._keys.data_key(manifest), manifest.aad)
        except (CorruptRecordError, OptionError) as error:
            kind = OptionError if isinstance(error, OptionError) else LogDirectoryError
            raise kind(
                f"{self.store.uri_of(key)}: {suffix} at the bytes {position} to {position + size}: "
                f"{error}"
            ) from error
        finally:
            opened.close()


class _Bytes:
    """An open file that is in memory."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read_at(self, nbytes: int, offset: int) -> bytes:
        return self._data[offset : offset + nbytes]

    def close(self) -> None:
        """Nothing is held."""


class PinterestLayout(Layout):
    """Pinterest's uploader, which runs beside a broker: a log and its two indexes."""

    name = "pinterest"
    suffixes = frozenset({LOG, OFFSET_INDEX, TIME_INDEX})
    names_ids = False

    def partitions(self) -> list[TierPartition]:
        """List the folders of a cluster, which may lie below bits of entropy.

        Raises:
            LogDirectoryError: there are several clusters.
        """
        found: list[TierPartition] = []
        clusters: set[str] = set()
        for folder in self._clusters(self.root, 2):
            here = [
                TierPartition(key, None, f"{folder}/{entry.name}")
                for entry in self.store.list_folder(folder)
                if entry.folder and (key := parse_partition_directory(entry.name)) is not None
            ]
            found += here
            clusters |= {folder.rpartition("/")[2]} if here else set()
        if len(clusters) > 1:
            raise LogDirectoryError(
                f"{self.store.uri_of(self.root)} has the segments of several clusters, "
                f"{listed(sorted(clusters))}: give the folder of one as remote.path"
            )
        return found

    def _clusters(self, folder: str, depth: int) -> list[str]:
        inside = [entry.name for entry in self.store.list_folder(folder) if entry.folder]
        if any(parse_partition_directory(name) is not None for name in inside) or not depth:
            return [folder]
        return [each for name in inside for each in self._clusters(f"{folder}/{name}", depth - 1)]

    def _parsed(self, name: str) -> tuple[int, str, str] | None:
        found = _NUMBERED.fullmatch(name)
        if found is None or int(found[1]) > _MAX_OFFSET:
            return None
        return int(found[1]), "", found[2]


def find_layout(store: RemoteStore, tier: Tier) -> Layout:
    """Find out how the objects of a store are named, where a user has not said it.

    Raises:
        LogDirectoryError: nothing there tells, and none is given.
    """
    name = tier.layout
    root = store.root.key
    entries = store.list_folder(root)
    if any(entry.folder and entry.name == _FOLDER_OF_KAFKA for entry in entries):
        root = f"{root}/{_FOLDER_OF_KAFKA}"
        entries = store.list_folder(root)
        name = name or "kafka"
    prefix = ""
    given = root
    if not entries and name in {None, "aiven"}:
        root, _, prefix = root.rpartition("/")
        entries = [e for e in store.list_folder(root) if e.name.startswith(prefix)] if root else []
        if not entries:
            root, prefix = store.root.key, ""
    name = name or _layout_of(store, root, entries)
    if name is None:
        raise LogDirectoryError(
            f"{store.uri_of(given)} holds nothing that looks like the segments of a tiered topic: "
            "check remote.path, and give remote.layout (kafka, aiven or pinterest) if it is right"
        )
    if name == "aiven":
        return AivenLayout(store, root, prefix, KeyRing(dict(tier.key_files)))
    return {"kafka": KafkaLayout, "pinterest": PinterestLayout}[name](store, root)


def _layout_of(store: RemoteStore, root: str, entries: list[RemoteEntry]) -> str | None:
    """Tell by the first folder that looks like one of a layout; its content decides."""
    folders = [entry.name for entry in entries if entry.folder]
    for name in folders:
        if _WITH_ID.fullmatch(name) is not None:
            inside = store.list_folder(f"{root}/{name}")
            if any(entry.folder and _PARTITION.fullmatch(entry.name) for entry in inside):
                return "aiven"
            if any(_SEGMENT.fullmatch(entry.name) for entry in inside):
                return "kafka"
    for name in folders:
        if parse_partition_directory(name) is not None:
            return "pinterest"
        below = [e.name for e in store.list_folder(f"{root}/{name}") if e.folder]
        if any(parse_partition_directory(each) is not None for each in below):
            return "pinterest"
        if _ENTROPY.fullmatch(name) and below:
            return "pinterest"
    return None
