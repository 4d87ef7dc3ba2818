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

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from kafkalog.errors import LogDirectoryError
from kafkalog.model import TopicPartition, listed
from kafkalog.streaming.log.files import (
    LOG,
    OFFSET_INDEX,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    parse_partition_directory,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kafkalog.files.remote_path import OpenObject, RemoteEntry
    from kafkalog.files.remote_store import RemoteStore

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

    def __init__(self, store: RemoteStore, root: str) -> None:
        self.store = store
        self.root = root

    def partitions(self) -> list[TierPartition]:
        """List the partitions that have a folder."""
        raise NotImplementedError

    def partition(self, key: TopicPartition, topic_id: str) -> TierPartition:
        """Return where a partition's objects are, without a look."""
        raise NotImplementedError

    def segments(self, partition: TierPartition) -> list[TierSegment]:
        """List the whole segments of a partition, by start offset: one listing."""
        found: dict[tuple[int, str], dict[str, int]] = {}
        for entry in self.store.list_folder(partition.folder):
            named = None if entry.folder else self._parsed(entry.name)
            if named is not None:
                start, segment_id, suffix = named
                found.setdefault((start, segment_id), {})[suffix] = entry.size
        return [
            self._segment(partition.folder, start, segment_id, files)
            for (start, segment_id), files in sorted(found.items())
            if self._is_whole(files)
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
            FileNotFoundError: there is no such object.
            LogDirectoryError: the store fails.
        """
        key = self.key(segment, suffix)
        if suffix == LOG and segment.size is not None:
            return lambda: self.store.open(key)[0], segment.size
        opened, status = self.store.open(key)
        return lambda: opened, status.st_size

    def _parsed(self, name: str) -> tuple[int, str, str] | None:
        found = _SEGMENT.fullmatch(name)
        if found is None or int(found[1]) > _MAX_OFFSET:
            return None
        return int(found[1]), found[2], found[3]

    def _is_whole(self, files: dict[str, int]) -> bool:
        return self.suffixes <= files.keys()

    def _segment(
        self, folder: str, start: int, segment_id: str, files: dict[str, int]
    ) -> TierSegment:
        names = frozenset(files) & {LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT, EPOCHS}
        return TierSegment(folder, segment_id, start, None, files[LOG], names)


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

    def __init__(self, store: RemoteStore, root: str, prefix: str = "") -> None:
        super().__init__(store, root)
        self.prefix = prefix
        """What stands before the topic in the names below the root."""

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


class PinterestLayout(Layout):
    """Pinterest's uploader, which runs beside a broker: a log and its two indexes."""

    name = "pinterest"
    suffixes = frozenset({LOG, OFFSET_INDEX, TIME_INDEX})

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

    def partition(self, key: TopicPartition, topic_id: str) -> TierPartition:
        """Find the folder of a partition: its name has no id, and bits before it that vary."""
        for each in self.partitions():
            if each.topic_partition == key:
                return each
        return TierPartition(key, topic_id, f"{self.root}/{key.topic}-{key.partition}")

    def _parsed(self, name: str) -> tuple[int, str, str] | None:
        found = _NUMBERED.fullmatch(name)
        if found is None or int(found[1]) > _MAX_OFFSET:
            return None
        return int(found[1]), "", found[2]


def find_layout(store: RemoteStore, name: str | None) -> Layout:
    """Find out how the objects of a store are named; ``name`` is the layout that a user gives.

    Raises:
        LogDirectoryError: nothing there tells, and none is given.
    """
    root = store.root.key
    entries = store.list_folder(root)
    if any(entry.folder and entry.name == _FOLDER_OF_KAFKA for entry in entries):
        root = f"{root}/{_FOLDER_OF_KAFKA}"
        entries = store.list_folder(root)
        name = name or "kafka"
    prefix = ""
    if not entries and name in {None, "aiven"}:
        root, _, prefix = root.rpartition("/")
        entries = [e for e in store.list_folder(root) if e.name.startswith(prefix)] if root else []
        if not entries:
            root, prefix = store.root.key, ""
    name = name or _layout_of(store, root, entries)
    if name is None:
        raise LogDirectoryError(
            f"{store.uri_of(root)} holds nothing that looks like the segments of a tiered topic: "
            "check remote.path, and give remote.layout (kafka, aiven or pinterest) if it is right"
        )
    if name == "aiven":
        return AivenLayout(store, root, prefix)
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
