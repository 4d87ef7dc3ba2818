"""The log directories that a command is given, and what is in them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kafkalog.errors import OptionError, UnknownTopicOrPartitionError
from kafkalog.jobs.cli.emptiness import explain_nothing
from kafkalog.model import listed
from kafkalog.streaming.log.files import parse_partition_directory
from kafkalog.streaming.log.log_dir import LogDirs, entries_of
from kafkalog.streaming.log.segments import LogSegments
from kafkalog.streaming.options import READABLE_PATHS
from kafkalog.streaming.store.deleted import live_partitions
from kafkalog.streaming.store.ends.watch import EndsWatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.log_dir import PartitionDirectory

__all__ = ["ends_of", "log_dirs_of", "partitions_of"]

_LOGGER: Final = logging.getLogger("kafkalog.jobs")


def log_dirs_of(paths: Sequence[str]) -> LogDirs:
    """Take the words of a command as log directories."""
    return LogDirs(_places(paths))


def _places(paths: Sequence[str]) -> tuple[str, ...]:
    """Take log directories as the option ``path`` does, URIs too.

    Raises:
        OptionError: they name none.
        LogDirectoryError: one of them is a file.
    """
    try:
        places = READABLE_PATHS.read(",".join(paths))
    except ValueError:
        raise OptionError(
            f"{','.join(paths)!r} names no log directory, expected {READABLE_PATHS.accepts}"
        ) from None
    for path in map(Path, places):
        if path.is_file():
            entries_of(path)  # says so, and which log directory was meant
    return places


def partitions_of(
    paths: Sequence[str], topic: str | None
) -> dict[TopicPartition, PartitionDirectory]:
    """Find the partitions, of one topic if it is named.

    A folder that has a partition's name and no segment is no partition; a warning says so.

    Raises:
        UnknownTopicOrPartitionError: there is no such topic.
        LogDirectoryError: there is no partition, and nothing shows that there ever was one.
    """
    log_dirs, found = log_dirs_of(paths), {}
    for key, where in live_partitions(log_dirs).items():
        if LogSegments.of(where.path):
            found[key] = where
        else:
            _LOGGER.warning("%s has no .log file: it is not taken for a partition", where.path)
    if not found:
        explain_nothing(log_dirs.paths)
    if topic is None:
        return found
    chosen = {key: where for key, where in found.items() if key.topic == topic}
    if not chosen:
        names = sorted({key.topic for key in found})
        raise UnknownTopicOrPartitionError(
            f"no partition of topic {topic} is in {', '.join(map(str, log_dirs.paths))}. "
            + (f"Topics there: {listed(names)}" if names else "There is no topic at all")
            + _partition_meant(topic, names)
        )
    return chosen


def _partition_meant(topic: str, names: Sequence[str]) -> str:
    """Return the end of a sentence that says which partition was named in place of a topic."""
    key = parse_partition_directory(topic)
    if key is None or key.topic not in names:
        return ""
    return f". {topic} is a partition: --topic {key.topic} --partition {key.partition}"


def ends_of(paths: Sequence[str], topic: str | None, partition: int | None = None) -> EndsWatch:
    """Make ready to look at the ends of all partitions, of one topic's, or of one partition."""
    return EndsWatch(
        _places(paths),
        lambda key: topic in {None, key.topic} and partition in {None, key.partition},
    )
