"""What a handover of several nodes and the takeover after it have in common."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kafkalog.checkpoints.broker import (
    HIGH_WATERMARK,
    LOG_START_OFFSET,
    META_PROPERTIES,
    RECOVERY_POINT,
    write_offset_checkpoint,
)
from kafkalog.checkpoints.voters import find_voters
from kafkalog.errors import LogDirectoryError, OptionError
from kafkalog.files.regular import fsync_directory, fsync_file
from kafkalog.model import CLUSTER_METADATA_TOPIC
from kafkalog.streaming.log.segments import list_base_offsets
from kafkalog.streaming.store.policy import SetPolicy
from kafkalog.streaming.store.replicas.quorum import Quorum
from kafkalog.streaming.store.session import opened_set
from kafkalog.streaming.store.stale_entries import drop_entries_of_missing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.store.log_set import LogSet
    from kafkalog.streaming.store.session import Condition

__all__ = [
    "check_all_there",
    "is_replicated",
    "named_metadata",
    "opened_nodes",
    "sync_folder",
    "tell_broker",
]


def is_replicated(
    directories: Sequence[Path], given: Mapping[str, object], metadata: Sequence[str]
) -> bool:
    """Whether directories are those of a replicated set.

    ``given`` are options that such a set has no use for, ``metadata`` is one that others have none
    for.

    Raises:
        OptionError: such an option is given.
        LogDirectoryError: they are of different sets.
    """
    if find_voters(directories) is None:
        if metadata:
            raise OptionError("the cluster's metadata is for a set of several nodes only")
        return False
    if wrong := [name.replace("_", "-") for name, value in given.items() if value is not None]:
        raise OptionError(
            f"{', '.join(wrong)}: not for several nodes. Their brokers are known by the "
            f"{META_PROPERTIES} in each directory, topics by the cluster's metadata"
        )
    return True


def named_metadata(paths: Sequence[str]) -> list[Path]:
    """Return the directories that hold copies of a cluster's metadata log.

    Raises:
        OptionError: one does not hold any.
    """
    found = [Path(path) for path in paths]
    for folder in found:
        if not (folder / f"{CLUSTER_METADATA_TOPIC}-0").is_dir():
            raise OptionError(f"{folder} has no folder {CLUSTER_METADATA_TOPIC}-0")
    return found


@contextmanager
def opened_nodes(
    directories: Sequence[Path], look: Condition, *, holder: str, wait_ms: int, dry_run: bool
) -> Iterator[LogSet]:
    """Open a replicated set of which every node is there, in whosever hands it is.

    Raises:
        LogDirectoryError: a node is not there, or cannot be used; or as
            :func:`~kafkalog.streaming.store.session.opened_set`.
    """
    voters = find_voters(directories)
    if voters is not None and voters.missing:
        raise LogDirectoryError(f"{holder} needs all nodes, and {voters.missing_text}")
    policy = replace(SetPolicy.of_upkeep(wait_ms), takes_lent=True)
    opened = partial(opened_set, directories, policy, look, holder=holder)
    with opened(dry_run=dry_run, knows_nodes=True, copies_all=True) as log_set:
        check_all_there(log_set, holder)
        yield log_set


def check_all_there(log_set: LogSet, holder: str) -> None:
    """See that no node has failed since the set was opened.

    Raises:
        LogDirectoryError: one has.
    """
    nodes = log_set.node
    if isinstance(nodes, Quorum) and not nodes.is_whole(log_set.state):
        missing = sorted({each.node_id for each in log_set.state.nodes} - {*nodes.live})
        why = "; ".join(f"node {n}: {nodes.failed.get(n, 'it is not there')}" for n in missing)
        raise LogDirectoryError(f"{holder} needs all nodes, and {why}. Run it again")


def sync_folder(folder: Path) -> None:
    """Make all files of a partition's folder durable, and their names.

    Raises:
        OSError: one cannot be.
    """
    for path in sorted(folder.iterdir()):
        if path.is_file() and not path.is_symlink():
            fsync_file(path)
    fsync_directory(folder)


def tell_broker(
    log_dir: Path,
    found: Mapping[TopicPartition, PartitionDirectory],
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> None:
    """Let the checkpoint files of a log directory say where its partitions begin and end.

    ``found`` are those that lie in it. Lines of partitions that are gone are dropped.

    Raises:
        CheckpointError, OSError: a checkpoint cannot be read or written.
    """
    drop_entries_of_missing(log_dir)
    there = {key: ends[key] for key in found if key in ends}
    for name in (RECOVERY_POINT, HIGH_WATERMARK):
        write_offset_checkpoint(log_dir, name, there)
    moved = {
        key: starts[key] for key in there if starts[key] > min(list_base_offsets(found[key].path))
    }
    gone = there.keys() - moved.keys()
    write_offset_checkpoint(log_dir, LOG_START_OFFSET, moved, remove=gone)
