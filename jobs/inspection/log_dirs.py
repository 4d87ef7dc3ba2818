"""The log directories that a command is given, and what is missing in them."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kafkalog.checkpoints.broker import META_PROPERTIES
from kafkalog.checkpoints.commit_state import STATE_FILE
from kafkalog.checkpoints.committed import load_committed
from kafkalog.errors import (
    KafkaLogError,
    LogDirectoryError,
    OptionError,
    UnknownTopicOrPartitionError,
)
from kafkalog.files.paths import NodePlace
from kafkalog.files.storage import RemoteRoot
from kafkalog.model import ALL_TOPICS, TopicPartition, TopicSelection, listed, said_there
from kafkalog.streaming.log.files import parse_partition_directory
from kafkalog.streaming.log.log_dir import entries_of, is_log_directory, log_dirs_near, refuse_file
from kafkalog.streaming.log.segments import has_segments
from kafkalog.streaming.options.kinds import READABLE_PATHS
from kafkalog.streaming.store.ends.tracker import LogEndTracker
from kafkalog.streaming.store.log_dirs import LogDirs, live_partitions
from kafkalog.streaming.store.recovery.lost_partitions import (
    NOTHING,
    find_missing_parts,
    lost_of_living,
    missing_members,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from kafkalog.streaming.log.log_dir import PartitionDirectory


__all__ = [
    "TieredPaths",
    "check_no_new_beside_old",
    "check_some_log",
    "check_some_partition",
    "ends_of",
    "ends_of_chosen",
    "explain_nothing",
    "log_dirs_of",
    "new_folders",
    "partitions_of",
    "say_missing",
    "source_options",
    "tiered_rows",
    "unknown_partition",
    "unverified_rows",
]


# ----------------------------------------------------------------------------------------------
# What the commands find missing in log directories: members of the set, and partitions.


_LOGGER: Final = logging.getLogger("kafkalog.jobs")

Row = dict[str, Any]


def say_missing(
    log_dirs: LogDirs, topics: TopicSelection = ALL_TOPICS
) -> Mapping[TopicPartition, int]:
    """Warn of what is missing of topics.

    Returns:
        the partitions that are lost, with the ends that are committed.
    """
    there = live_partitions(log_dirs)
    try:
        parts = find_missing_parts(
            load_committed(log_dirs.paths),
            log_dirs.paths,
            there,
            lambda key: key.topic in topics,
        )
    except KafkaLogError as error:
        _LOGGER.warning("whether something is missing cannot be told: %s", error)
        return {}
    if parts != NOTHING:
        _LOGGER.warning("%s", parts)
    return parts.partitions if parts.is_loss else {}


def tiered_rows(watch: LogEndTracker) -> Iterator[Row]:
    """Return a row for each partition of the last look of which a remote tier alone has offsets."""
    for key, start in watch.tiered_starts().items():
        yield {**key._asdict(), "segment": None, "problem": str(start)}


def unverified_rows(log_dirs: LogDirs, topics: TopicSelection) -> Iterator[Row]:
    """Return a row for the members of the set that are missing, and for each partition gone.

    Whoever verifies wants to know that all is there: members that were left out on purpose count.
    """
    there = live_partitions(log_dirs)
    try:
        committed = load_committed(log_dirs.paths)
        members = missing_members(committed, log_dirs.paths)
        lost = list(lost_of_living(committed.state, there)) if committed.state else []
    except KafkaLogError:
        return  # said already
    if members is not None:
        yield {"topic": None, "partition": None, "segment": None, "problem": str(members)}
        return
    for known, numbers in lost:
        for number in numbers if known.name in topics else ():
            yield {
                "topic": known.name,
                "partition": number,
                "segment": None,
                "problem": f"offsets up to {known.partitions[number].high_watermark} were "
                "committed, and the partition has no folder",
            }


# ----------------------------------------------------------------------------------------------
# The log directories that a command is given, and what to say where nothing is.


def explain_nothing(paths: Sequence[Path]) -> None:
    """Say why there is no partition in these log directories.

    Raises:
        LogDirectoryError: neither a sink nor a broker has ever written to one of them.
    """
    for path in paths:
        names = sorted(entry.name for entry in entries_of(path))
        if STATE_FILE in names or META_PROPERTIES in names:
            owner = "the sink" if STATE_FILE in names else "a broker"
            _LOGGER.warning("%s holds no partition yet; %s has written there", path, owner)
        elif not names:
            raise LogDirectoryError(f"{path} is empty: no sink and no broker has written there")
        else:
            raise LogDirectoryError(
                f"{path} is no log directory: it holds no folder such as topic-0 with a .log file "
                f"in it, but {listed(names)}{log_dirs_near(path)}"
            )


def unknown_partition(
    wanted: TopicPartition, paths: Sequence[str], there: Iterable[TopicPartition]
) -> UnknownTopicOrPartitionError:
    """Return the error that names the partitions of the topic that are there."""
    return UnknownTopicOrPartitionError(
        f"{wanted} is not in {', '.join(paths)}. {said_there(wanted.topic, there)}"
    )


# ----------------------------------------------------------------------------------------------
# The log directories that a command is given, and what is in them.


class TieredPaths(list[str]):
    """Log directories with the remote tier below them, and the options of the source that say so.

    Whoever takes the words of a command takes these.
    """

    def __init__(self, places: Sequence[str], options: Mapping[str, str]) -> None:
        super().__init__(places)
        self.options = dict(options)


def source_options(paths: Sequence[str]) -> dict[str, str]:
    """Return the options of the source that name the log directories of a command."""
    return dict(paths.options) if isinstance(paths, TieredPaths) else {"path": ",".join(paths)}


def log_dirs_of(paths: Sequence[str]) -> LogDirs:
    """Take the words of a command as log directories."""
    return LogDirs(_places(paths))


def check_no_new_beside_old(paths: Sequence[str], hint: str = "") -> None:
    """Refuse to add a folder that is not there to a log that is: a set keeps all its members.

    Example: in ``kafkalog produce LOG --topic t lines.txt`` the last word was meant as a file.

    Raises:
        OptionError: such a folder is named.
    """
    places = _places(paths)
    if any(isinstance(place, NodePlace) for place in places):
        return  # a node may be away
    old = [Path(each) for each in places if (Path(each) / STATE_FILE).exists()]
    new = new_folders(paths)
    if old and new:
        raise OptionError(
            f"{new[0]} is not there, and would become one more directory of the log in {old[0]}. "
            f"If that is meant, make the folder first: mkdir {new[0]}{hint}"
        )


def new_folders(paths: Sequence[str]) -> list[Path]:
    """Return the folders that are not there, and that a first write makes."""
    places = [each for each in _places(paths) if not isinstance(each, RemoteRoot)]
    new = [Path(each) for each in places if not os.path.lexists(each)]
    nodes_are_away = len(new) < len(places) and any(isinstance(each, NodePlace) for each in places)
    return [] if nodes_are_away else new


def check_some_log(paths: Sequence[str]) -> None:
    """Refuse folders in which neither a broker nor a sink has ever written.

    Raises:
        LogDirectoryError: they are such, or one is not there.
    """
    folders = [Path(place) for place in _places(paths) if Path(place).is_dir()]
    are_partitions = any(parse_partition_directory(each.name) is not None for each in folders)
    if folders and not are_partitions and not any(map(is_log_directory, folders)):
        explain_nothing(folders)


def _places(paths: Sequence[str]) -> tuple[str, ...]:
    """Take log directories as the option ``path`` does, URIs too."""
    if isinstance(paths, TieredPaths):
        return tuple(paths)
    try:
        places = READABLE_PATHS.read(",".join(paths))
    except OptionError:
        raise
    except ValueError:
        raise OptionError(
            f"{','.join(paths)!r} names no log directory, expected {READABLE_PATHS.accepts}"
        ) from None
    for place in places:
        refuse_file(Path(place))
    return places


def check_some_partition(
    paths: Sequence[str], topics: TopicSelection, lost: Collection[TopicPartition] = ()
) -> None:
    """Refuse paths, or a topic, without a partition; a look into a folder or two is enough.

    Topics of which partitions are ``lost`` are known, whatever is left of them.

    Raises:
        UnknownTopicOrPartitionError, LogDirectoryError: as :func:`partitions_of`.
    """
    known = {key.topic for key in lost}
    there = (
        key.topic
        for key, where in live_partitions(log_dirs_of(paths)).items()
        if key.topic in topics and key.topic not in known and has_segments(where.path)
    )
    while not known or not known.issuperset(topics.named):
        found = next(there, None)
        if found is None:
            partitions_of(paths, topics)  # says why
            return
        known.add(found)


def partitions_of(
    paths: Sequence[str],
    topics: TopicSelection = ALL_TOPICS,
    partition: int | None = None,
    watch: LogEndTracker | None = None,
) -> dict[TopicPartition, PartitionDirectory]:
    """Find the partitions of topics, or one of each; no other is looked into.

    A folder that has a partition's name and no segment is no partition; a warning says so. With
    ``watch``, which has looked, none is listed again that it has listed.

    Raises:
        UnknownTopicOrPartitionError: there is no such topic, or no such partition of it.
        LogDirectoryError: there is no partition, and nothing shows that there ever was one.
    """
    log_dirs = log_dirs_of(paths)
    there = live_partitions(log_dirs)
    wanted = {
        key: where
        for key, where in there.items()
        if key.topic in topics and partition in {None, key.partition}
    }
    found = _with_segments(wanted, watch)
    absent = set(topics.named).difference(key.topic for key in found)
    if found and not absent:
        return found
    others = {
        **found,
        **_with_segments({key: where for key, where in there.items() if key not in wanted}),
    }
    if not others:
        explain_nothing(log_dirs.paths)
    if not absent:
        return found
    topic = next(name for name in topics.named if name in absent)
    if partition is not None and any(key.topic == topic for key in others):
        raise unknown_partition(TopicPartition(topic, partition), paths, others)
    raise _unknown_topic(topic, log_dirs.paths, others)


def _unknown_topic(
    topic: str, paths: Iterable[Path], there: Mapping[TopicPartition, PartitionDirectory]
) -> UnknownTopicOrPartitionError:
    names = sorted({key.topic for key in there})
    return UnknownTopicOrPartitionError(
        f"no partition of topic {topic} is in {', '.join(map(str, paths))}. "
        + said_there(topic, there)
        + _partition_meant(topic, names)
    )


def _with_segments(
    folders: Mapping[TopicPartition, PartitionDirectory], watch: LogEndTracker | None = None
) -> dict[TopicPartition, PartitionDirectory]:
    """Leave out folders without a segment, with a warning."""
    found = {}
    for key, where in folders.items():
        if (watch is not None and watch.has_segments(where)) or has_segments(where.path):
            found[key] = where
        else:
            _LOGGER.warning("%s has no .log file: it is not taken for a partition", where.path)
    return found


def _partition_meant(topic: str, names: Sequence[str]) -> str:
    """Return the end of a sentence that says which partition was named in place of a topic."""
    key = parse_partition_directory(topic)
    if key is None or key.topic not in names:
        return ""
    return f". {topic} is a partition: --topic {key.topic} --partition {key.partition}"


def ends_of(
    paths: Sequence[str], topics: TopicSelection = ALL_TOPICS, partition: int | None = None
) -> LogEndTracker:
    """Make ready to look at the ends of the partitions of topics, or of one of each."""
    return ends_of_chosen(
        paths, lambda key: key.topic in topics and partition in {None, key.partition}
    )


def ends_of_chosen(
    paths: Sequence[str], selects: Callable[[TopicPartition], bool]
) -> LogEndTracker:
    """Make ready to look at the ends of the partitions that are selected, and at no other log."""
    return LogEndTracker(_places(paths), selects)
