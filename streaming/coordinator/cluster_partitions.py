"""What a cluster knows of partitions: who holds them, who led them last, and which brokers it has.

A KRaft cluster knows this from its metadata log alone, not from log directories. Every broker keeps
a copy of that log, which may lack the last records: leader epochs only rise, so what a copy says of
them is never too high, but for records at its end that the quorum has not agreed on.

A partition is a record of its own, and what changes is a record with the fields that change. The
leader epoch is none of these: it rises by one with each record that names a leader.

Source: Kafka ``PartitionRecord.json``, ``PartitionChangeRecord.json``,
``RegisterBrokerRecord.json``, ``PartitionRegistration.merge``.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from kafkalog.errors import KafkaLogError
from kafkalog.files.remote_path import RemotePath
from kafkalog.files.system import remembered
from kafkalog.model import CLUSTER_METADATA_TOPIC
from kafkalog.streaming.coordinator.cluster_metadata import (
    PARTITION,
    PARTITION_CHANGE,
    REGISTER_BROKER,
    REMOVE_TOPIC,
    TOPIC,
    MetadataReplay,
    Replay,
    find_metadata,
    replay_metadata,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from kafkalog.streaming.coordinator.message_schema import Fields

__all__ = [
    "NO_BROKER",
    "ClusterPartition",
    "ClusterView",
    "TopicNames",
    "ViewReplay",
    "find_cluster_view",
    "read_cluster_view",
    "read_partition_counts",
]

NO_BROKER: Final = -1
_LOG: Final = logging.getLogger("kafkalog.sink")


class ClusterPartition(NamedTuple):
    """A partition: the ids of the brokers that hold it, and its leader epoch.

    ``directories`` are the ids of the log directories that it is said to lie in, a broker after the
    other; none where the cluster does not know. ``leader`` is the broker that led it last,
    ``NO_BROKER`` where there was none, and ``isr`` are those in sync.
    """

    replicas: tuple[int, ...]
    leader_epoch: int
    directories: tuple[str, ...] = ()
    leader: int = NO_BROKER
    isr: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterView:
    """What a copy of the metadata log says, up to the offset ``end``.

    ``partitions`` are by topic id and number, ``names`` and ``settings`` by topic id: settings
    that were given to it. ``broker_epochs`` are those under which brokers were registered last.
    """

    names: Mapping[str, str]
    partitions: Mapping[str, Mapping[int, ClusterPartition]]
    broker_epochs: Mapping[int, int]
    end: int
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(slots=True)
class ViewReplay(MetadataReplay):
    """Topics with their settings, partitions and brokers."""

    kinds = MetadataReplay.kinds | {PARTITION, PARTITION_CHANGE, REGISTER_BROKER}
    partitions: dict[str, dict[int, ClusterPartition]] = field(default_factory=dict)
    broker_epochs: dict[int, int] = field(default_factory=dict)

    def _apply(self, kind: int, fields: Fields) -> None:
        if kind in MetadataReplay.kinds:
            super(ViewReplay, self)._apply(kind, fields)
            if kind == REMOVE_TOPIC:
                self.partitions.pop(fields["topicId"], None)
        elif kind == REGISTER_BROKER:
            self.broker_epochs[fields["brokerId"]] = fields["brokerEpoch"]
        else:
            known = self.partitions.setdefault(fields["topicId"], {})
            number = fields["partitionId"]
            if kind == PARTITION:
                known[number] = _made(fields)
            elif number in known:
                known[number] = _changed(known[number], fields)


def _made(fields: Fields) -> ClusterPartition:
    directories = fields["directories"] or ()
    return ClusterPartition(
        *(tuple(fields["replicas"]), fields["leaderEpoch"], tuple(directories)),
        leader=fields["leader"],
        isr=tuple(fields["isr"]),
    )


def _changed(before: ClusterPartition, fields: Fields) -> ClusterPartition:
    replicas, directories = fields["replicas"], fields["directories"]
    leader, isr = fields["leader"], fields["isr"]
    return ClusterPartition(
        before.replicas if replicas is None else tuple(replicas),
        before.leader_epoch + (leader is not None),
        before.directories if directories is None else tuple(directories),
        before.leader if leader is None else leader,
        before.isr if isr is None else tuple(isr),
    )


def read_cluster_view(log_dir: Path) -> ClusterView | None:
    """Read what the metadata in a log directory says of partitions; None if there is none.

    Raises:
        CorruptRecordError, UnsupportedFormatError, LogDirectoryError: see
            :func:`~kafkalog.streaming.coordinator.cluster_metadata.read_cluster_topics`.
    """
    replay = ViewReplay()
    end = replay_metadata(log_dir, replay)
    if end is None:
        return None
    return ClusterView(replay.names, replay.partitions, replay.broker_epochs, end, replay.settings)


class _ReadView(NamedTuple):
    """What a metadata log says, and the files that told it."""

    files: tuple[tuple[str, int, int], ...]
    view: ClusterView | None


class _ReadViews(dict[str, _ReadView]):
    """What was read last of each metadata log."""


def find_cluster_view(log_dirs: Iterable[Path]) -> ClusterView | None:
    """Return what the metadata in log directories says, by the copy that reaches furthest.

    None where there is none, and with a warning where it cannot be read. It is read again once its
    files change.
    """
    try:
        folder = find_metadata(log_dirs)
        if folder is None or isinstance(folder, RemotePath):
            return None if folder is None else read_cluster_view(folder.parent)
        files, known = _files_of(folder), remembered(_ReadViews).get(str(folder))
        if known is None or known.files != files:
            known = _ReadView(files, read_cluster_view(folder.parent))
            remembered(_ReadViews)[str(folder)] = known
    except (KafkaLogError, OSError) as error:
        _LOG.warning("what the cluster says of its topics is not known: %s", error)
        return None
    return known.view


def _files_of(folder: Path) -> tuple[tuple[str, int, int], ...]:
    return tuple(
        (each.name, each.stat().st_size, each.stat().st_mtime_ns)
        for each in sorted(folder.iterdir())
    )


@dataclass(slots=True)
class TopicNames(Replay):
    """The names that topics have had, by their ids; those of removed ones too."""

    kinds = frozenset({TOPIC})
    names: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, log_dir: Path) -> dict[str, str]:
        """Read the names in a log directory, as far as its metadata can be read."""
        replay = cls()
        with suppress(KafkaLogError, OSError):
            replay_metadata(log_dir, replay)
        return replay.names

    def _apply(self, kind: int, fields: Fields) -> None:
        del kind
        self.names[fields["topicId"]] = fields["name"]


class _Counts(NamedTuple):
    """The numbers of partitions by topic id, and the files that told them."""

    files: tuple[tuple[str, int, int], ...]
    counts: Mapping[str, int]


class _ReadCounts(dict[str, _Counts]):
    """What was read last in each log directory."""


def read_partition_counts(log_dirs: Iterable[Path]) -> dict[str, int]:
    """Return how many partitions topics have by the metadata in log directories, by topic id.

    A broker of several holds some of them only. Metadata is read again once its files change;
    where it cannot be read, with a warning, it tells nothing.
    """
    found: dict[str, int] = {}
    for log_dir in log_dirs:
        folder = log_dir / f"{CLUSTER_METADATA_TOPIC}-0"
        if isinstance(folder, RemotePath) or not folder.is_dir():
            continue
        files = _files_of(folder)
        known = remembered(_ReadCounts).get(str(folder))
        if known is None or known.files != files:
            known = _Counts(files, _read_counts(log_dir))
            remembered(_ReadCounts)[str(folder)] = known
        for key, count in known.counts.items():
            found[key] = max(count, found.get(key, 0))
    return found


def _read_counts(log_dir: Path) -> dict[str, int]:
    try:
        view = read_cluster_view(log_dir)
    except (KafkaLogError, OSError) as error:
        _LOG.warning("the numbers of partitions are not known from the cluster: %s", error)
        return {}
    if view is None:
        return {}
    return {key: max(each, default=-1) + 1 for key, each in view.partitions.items()}
