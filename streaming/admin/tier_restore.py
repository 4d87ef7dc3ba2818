"""Make log directories of a remote tier whose brokers are gone: a cluster back from its bucket.

What is uploaded is copied byte for byte: the offsets, leader epochs and topic ids stay. Indexes
come with it; those of a segment that is cut, or that lacks some, are made again. The log directory
is a set of ours at the end, which a new broker gets by ``broker handover``.

It is written beside its place and renamed when it is whole: whoever is killed begins again.
"""

from __future__ import annotations

import logging
import shutil
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.broker import (
    HIGH_WATERMARK,
    LEADER_EPOCHS,
    read_offset_checkpoint,
    write_topic_id,
)
from kafkalog.errors import (
    KafkaLogError,
    LogDirectoryError,
    OptionError,
    UnknownTopicOrPartitionError,
)
from kafkalog.files.open_file import open_file
from kafkalog.files.paths import as_path
from kafkalog.files.regular import fsync_directory, fsync_file
from kafkalog.model import OFFSETS_TOPIC, TopicPartition, partition_directory_name
from kafkalog.streaming.admin.broker.handover import take_over
from kafkalog.streaming.admin.topics import alter
from kafkalog.streaming.coordinator.cluster_metadata import read_cluster_topics
from kafkalog.streaming.coordinator.group_replay import read_group_positions
from kafkalog.streaming.log.files import LOG, file_name
from kafkalog.streaming.log.segment import LogSegment
from kafkalog.streaming.options.topic_settings import LogConfig
from kafkalog.streaming.store.ends.tracker import LogEndTracker
from kafkalog.streaming.store.log_dirs import LogDirs
from kafkalog.streaming.tiers.layouts import EPOCHS
from kafkalog.streaming.tiers.tiered_store import TieredPath

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from kafkalog.streaming.tiers.remote_segments import Piece
    from kafkalog.streaming.tiers.tiered_store import TierView

__all__ = [
    "RestoredPartition",
    "RestoredTier",
    "partitions_of_tier",
    "restore_from_tier",
    "settings_of_cluster",
]

_LOGGER = logging.getLogger("kafkalog.jobs")

_PIECE: Final = 4 << 20
_KEPT_BY_TIERS: Final = ("remote.", "local.retention.")
"""Settings that a topic without a tier does not have."""


@dataclass(frozen=True, slots=True)
class RestoredPartition:
    """What was restored of a partition; ``gaps`` are offsets that the tier lacks."""

    key: TopicPartition
    topic_id: str | None
    start: int
    end: int
    segments: int
    size: int
    gaps: tuple[tuple[int, int], ...]


@dataclass(slots=True)
class RestoredTier:
    """What was restored: partitions, the settings that were found, and topics without any."""

    partitions: list[RestoredPartition] = field(default_factory=list)
    settings: dict[str, dict[str, str]] = field(default_factory=dict)
    unknown_settings: list[str] = field(default_factory=list)
    high_watermarks: dict[TopicPartition, int] = field(default_factory=dict)
    """Up to where the cluster had committed, of partitions of which what is left of it tells."""
    positions: dict[str, int] = field(default_factory=dict)
    """How many positions of each group in what was restored lie in what is left of the cluster."""

    def not_uploaded(self, partition: RestoredPartition) -> int:
        """Return how many offsets above its end are known to be lost."""
        return max(0, self.high_watermarks.get(partition.key, 0) - partition.end)


def restore_from_tier(
    places: Sequence[str],
    target: str,
    topics: Collection[str] = (),
    *,
    cluster_metadata: Sequence[str] = (),
    config: Mapping[str, str] | None = None,
) -> RestoredTier:
    """Write what a tier has of topics, all without names, into a new log directory.

    Args:
        places: the tier, as the source names it (``TieredRoot``).
        target: the log directory; a folder that is not there yet, or empty.
        topics: their names.
        cluster_metadata: log directories with ``__cluster_metadata``, which tells settings.
        config: settings for each topic, in place of those.

    Raises:
        OptionError: something is in the target already.
        UnknownTopicOrPartitionError: the tier has nothing of a topic.
        LogDirectoryError: the store fails, or what it has cannot be read.
    """
    LogConfig.from_mapping(config or {})
    folder = Path(target).absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OptionError(f"{folder} is not empty: a tier is restored into a folder of its own")
    done = _write(partitions_of_tier(places, topics), folder)
    take_over([str(folder)])
    known = settings_of_cluster(done, cluster_metadata)
    for topic in {each.key.topic for each in done.partitions}:
        done.settings[topic] = known.get(topic, {}) | dict(config or {})
        if done.settings[topic]:
            alter([str(folder)], topic, config=done.settings[topic])
    return done


def _write(found: Mapping[TopicPartition, TieredPath], folder: Path) -> RestoredTier:
    """Write the folders of partitions, and let them have their place at once."""
    begun = folder.with_name(f"{folder.name}.restoring")
    shutil.rmtree(begun, ignore_errors=True)
    begun.mkdir(parents=True)
    done = RestoredTier([_restore(key, path, begun) for key, path in found.items()])
    fsync_directory(begun)
    if folder.exists():
        folder.rmdir()
    begun.rename(folder)
    fsync_directory(folder.parent)
    return done


def partitions_of_tier(
    places: Sequence[str], topics: Collection[str] = ()
) -> dict[TopicPartition, TieredPath]:
    """Find the partitions of topics in a tier, all without names.

    Raises:
        UnknownTopicOrPartitionError: the tier has nothing of a topic.
        LogDirectoryError: the store fails.
    """
    found = {
        key: where.path
        for key, where in LogDirs(places).partitions().items()
        if isinstance(where.path, TieredPath) and (not topics or key.topic in topics)
    }
    missing = set(topics) - {key.topic for key in found}
    if missing or not found:
        what = ", ".join(sorted(missing)) or "any topic"
        raise UnknownTopicOrPartitionError(f"the tier at {places[-1]} has nothing of {what}")
    return found


def _restore(key: TopicPartition, source: TieredPath, target: Path) -> RestoredPartition:
    view = source.view()
    folder = target / partition_directory_name(*key)
    folder.mkdir()
    end, size = 0, 0
    for slot, piece in enumerate(view.pieces):
        following = view.pieces[slot + 1].base_offset if slot + 1 < len(view.pieces) else None
        end, written = _copy_segment(source, folder, piece, following)
        size += written
    if view.topic_id is not None:
        write_topic_id(folder, view.topic_id)
    _copy_epochs(source, view, folder)
    fsync_directory(folder)
    start = view.pieces[0].start if view.pieces else 0
    gaps = tuple(source.gaps())
    return RestoredPartition(key, view.topic_id, start, end, len(view.pieces), size, gaps)


def _copy_segment(
    source: TieredPath, folder: Path, piece: Piece, following: int | None
) -> tuple[int, int]:
    """Copy a segment's files, up to where the next one begins; return its end, and its size."""
    base = piece.base_offset
    names = source.view().names
    size = _copy(source / file_name(base, LOG), folder / file_name(base, LOG))
    with LogSegment(folder, base) as segment:
        last = None
        for header in segment.headers(0):
            if following is not None and header.last_offset >= following:
                break
            last = header
    end = base if last is None else last.last_offset + 1
    kept = 0 if last is None else last.position + last.size
    if kept < size and following is not None:
        with (folder / file_name(base, LOG)).open("r+b") as file:
            file.truncate(kept)
        fsync_file(folder / file_name(base, LOG))
        return end, kept
    for name, (segment_of, suffix) in names.items():
        if segment_of is piece.segment and suffix != LOG:
            try:
                _copy(source / name, folder / name)
            except FileNotFoundError:  # one that a listing cannot tell: of transactions
                (folder / name).unlink(missing_ok=True)
    return end, size


def _copy(source: Path, target: Path) -> int:
    """Copy a file of the tier; return its size."""
    with closing(open_file(source)) as opened:
        size = opened.size
        opened.will_read(0, size)
        with target.open("wb") as file:
            position = 0
            while position < size:
                data = opened.read(position, min(_PIECE, size - position))
                if not len(data):
                    raise LogDirectoryError(f"{source} ends at byte {position} of {size}")
                file.write(data.tobytes())
                position += len(data)
    fsync_file(target)
    return size


def _copy_epochs(source: TieredPath, view: TierView, folder: Path) -> None:
    """Write the leader epochs that the last segment tells: those of the log up to it."""
    if not view.pieces or EPOCHS not in view.pieces[-1].segment.suffixes:
        return
    last = view.pieces[-1].segment
    layout = source.store.tier.layout
    try:
        opened, size = layout.open(last, EPOCHS)
        data = opened().read_at(size, 0)
    except FileNotFoundError:
        return
    if data:
        (folder / LEADER_EPOCHS).write_bytes(data)
        fsync_file(folder / LEADER_EPOCHS)


def settings_of_cluster(
    done: RestoredTier, cluster_metadata: Sequence[str]
) -> dict[str, dict[str, str]]:
    """Return the settings that the cluster had for topics, but for those of tiers, by their names.

    What else is known of the cluster, and topics of which nobody tells, are noted in ``done``.
    """
    by_id: dict[str, Mapping[str, str]] = {}
    for place in cluster_metadata:
        for key, end in read_offset_checkpoint(as_path(place), HIGH_WATERMARK).items():
            done.high_watermarks[key] = max(end, done.high_watermarks.get(key, 0))
        cluster = read_cluster_topics(as_path(place))
        by_id.update({} if cluster is None else cluster.settings)
    done.positions = _positions(cluster_metadata, {each.key for each in done.partitions})
    found = {}
    for topic, topic_id in {(each.key.topic, each.topic_id) for each in done.partitions}:
        known = by_id.get(topic_id or "")
        if known is None:
            done.unknown_settings.append(topic)
        found[topic] = dict(_kept(topic, known or {}))
    done.unknown_settings.sort()
    return found


def _positions(places: Sequence[str], restored: Collection[TopicPartition]) -> dict[str, int]:
    """Count the positions of groups in some partitions, by groups."""
    found: dict[str, set[TopicPartition]] = {}
    for place in places:
        watch = LogEndTracker([place], lambda key: key.topic == OFFSETS_TOPIC)
        try:
            for key, end in watch.look().offsets.items():
                with watch.open(key) as log:
                    for group, positions in read_group_positions(log, end).items():
                        found.setdefault(group, set()).update(positions.keys() & restored)
        except KafkaLogError as error:
            _LOGGER.warning("%s: positions of groups are not counted: %s", place, error)
    return {group: len(some) for group, some in sorted(found.items()) if some}


def _kept(topic: str, known: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Leave out settings of tiers, and say which others are not known here."""
    for name, value in known.items():
        if name.startswith(_KEPT_BY_TIERS):
            continue
        try:
            LogConfig.from_mapping({name: value})
        except OptionError as error:
            _LOGGER.warning("%s: a setting is not taken over: %s", topic, error)
            continue
        yield name, value
