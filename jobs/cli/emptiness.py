"""Say what there is where no partition is: nothing at all, other files, or a log that is empty."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.broker import META_PROPERTIES
from kafkalog.checkpoints.commit_stamp import STATE_FILE
from kafkalog.errors import LogDirectoryError, UnknownTopicOrPartitionError
from kafkalog.model import listed, said_there
from kafkalog.streaming.log.log_dir import entries_of
from kafkalog.streaming.log.nearby import log_dirs_near

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from kafkalog.model import TopicPartition

__all__ = ["explain_nothing", "unknown_partition"]

_LOGGER: Final = logging.getLogger("kafkalog.jobs")


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
