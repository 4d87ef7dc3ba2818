"""Copy log directories while they are written to, so that the copy can be read and written.

A set that our sink writes
    is copied in passes. Under the locks it is only noted how far each log goes: nothing below that
    changes any more. So much is copied while writers continue. The last pass runs under the locks
    and copies what has come since, then the commit state. The copy is the set at that moment.

A replicated set
    is copied likewise, each partition once, into one folder
    (:mod:`~kafkalog.streaming.operate.replica_backup`). The copy is a set of one node.

A directory that a broker has, or had
    is only read. Its checkpoint files are read first, and written last: every log reaches at least
    as far as its high watermark says. Each partition is of a moment of its own.

The copy has the ids of its original. The two cannot be written as one set, and it can take the
original's place. Until it is whole, the folder ``kafkalog.unfinished`` keeps brokers out, and it
has no commit state.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.broker import (
    CLEAN_SHUTDOWN,
    CLEANER_OFFSET,
    HIGH_WATERMARK,
    LOG_START_OFFSET,
    META_PROPERTIES,
    RECOVERY_POINT,
)
from kafkalog.checkpoints.commit_stamp import STATE_FILE
from kafkalog.checkpoints.commit_state import UNFINISHED_FOLDER
from kafkalog.checkpoints.state_file import load_state
from kafkalog.checkpoints.topic_ids import CHANGED_IDS_FILE
from kafkalog.checkpoints.voters import find_voters
from kafkalog.errors import KafkaLogError, LogDirectoryError
from kafkalog.files.atomic import write_atomically
from kafkalog.files.regular import fsync_directory, make_directory, read_regular
from kafkalog.files.shield import shielded
from kafkalog.streaming.log.files import parse_partition_directory
from kafkalog.streaming.operate.folder_copy import FolderCopy
from kafkalog.streaming.operate.replica_backup import NodesCopy
from kafkalog.streaming.store.ends.tiered_logs import say_tiered
from kafkalog.streaming.store.ends.watch import EndsWatch
from kafkalog.streaming.store.guard import SALVAGE_NOTE, let_brokers_in
from kafkalog.streaming.store.locks import check_no_broker
from kafkalog.streaming.store.lost_partitions import lost_of_living, lost_text, refuse_mount_points
from kafkalog.streaming.store.policy import WAIT_MS, SetPolicy
from kafkalog.streaming.store.session import Session, existing, opened_set

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from kafkalog.streaming.store.log_set import LogSet

__all__ = ["Backup", "DirectoryBackup", "back_up"]

_HOLDER: Final = "kafkalog backup"
_PASSES: Final = 5
_SMALL_BYTES: Final = 64 << 20
"""So much is copied while writers wait."""
_LISTINGS: Final = 20
_SMALL_FILE: Final = 1 << 30

_BOOTSTRAP: Final = "bootstrap.checkpoint"
"""Of a broker that is a controller too."""
_ROOT_FILES: Final = (
    META_PROPERTIES,
    _BOOTSTRAP,
    CHANGED_IDS_FILE,
    CLEANER_OFFSET,
    LOG_START_OFFSET,
    RECOVERY_POINT,
    HIGH_WATERMARK,
    SALVAGE_NOTE,
    STATE_FILE,
)
"""In the order in which they are written."""

_RootFiles = dict[str, bytes]


@dataclass(frozen=True, slots=True)
class DirectoryBackup:
    """A log directory and its copy: how many partitions, and how many bytes of their files."""

    source: Path
    target: Path
    partitions: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Backup:
    """What was copied. ``at_one_moment``: all of it as of one commit, not by a broker's files.

    ``problems`` say what was committed and is not in the copy: it is not in its original, either.
    """

    directories: tuple[DirectoryBackup, ...]
    at_one_moment: bool
    problems: tuple[str, ...] = ()


@shielded
def back_up(paths: Sequence[str], target: str, *, wait_ms: int = WAIT_MS) -> Backup:
    """Copy log directories into ``target``, which is made, or empty.

    The copy of one log directory is ``target`` itself; of several they are its folders ``1``,
    ``2``, …, in the order of ``paths``. Of a replicated set it is ``target`` itself. An unfinished
    commit is taken back first, as the next writer would. Staged files are left out, as is what a
    salvage has kept.

    Args:
        paths: all log directories of the set.
        target: a local folder.
        wait_ms: how long to wait for a writer of ours.

    Raises:
        LogDirectoryError: a path is no log directory, or ``target`` is not empty or lies in one.
        KafkaLogError: the directories are no whole set, or their state cannot be trusted.
        OSError: the copy could not be written.
    """
    policy = SetPolicy.of_upkeep(wait_ms)
    sources = [Path(os.path.realpath(path)) for path in existing(paths)]
    if find_voters(sources) is not None:
        return _back_up_nodes(sources, target, policy)
    is_ours = _is_ours(sources, policy)
    if is_ours:
        with _session(sources, policy) as session:
            session.open(takes_back=False)
    copies = [FolderCopy(*pair) for pair in zip(sources, _targets(sources, target), strict=True)]
    problems: list[str] = []
    files = _copy_set(copies, policy, problems) if is_ours else _copy_as_it_runs(copies, problems)
    for copy, contents in zip(copies, files, strict=True):
        _finish(copy, contents)
    with suppress(KafkaLogError, OSError):  # what cannot be read is copied too
        say_tiered(EndsWatch(sources))
    done = (
        DirectoryBackup(each.source, each.target, each.partitions, each.bytes) for each in copies
    )
    return Backup(tuple(done), is_ours, tuple(problems))


def _back_up_nodes(sources: Sequence[Path], target: str, policy: SetPolicy) -> Backup:
    with opened_set(sources, policy, holder=_HOLDER, knows_nodes=True):
        pass  # else nothing is made
    (root,) = _targets(sources, target, is_one=True)
    copy = NodesCopy(sources, root, policy)
    for _ in range(_PASSES):
        before = copy.copied_bytes
        copy.bring_up_to_date()
        if copy.copied_bytes - before < _SMALL_BYTES:
            break
    files = copy.end()
    for each in copy.copies:
        each.sync()
    copy.write_checkpoints()
    _open_to_all(root, files)
    parts = sorted(copy.copies, key=lambda each: each.source)
    done = (DirectoryBackup(each.source, root, each.partitions, each.bytes) for each in parts)
    return Backup(tuple(done), at_one_moment=True)


def _targets(sources: Sequence[Path], target: str, *, is_one: bool = False) -> list[Path]:
    """Make the folders for the copies: one for each source, or for all of them."""
    root = Path(os.path.realpath(target))
    for source in sources:
        if root.is_relative_to(source) or source.is_relative_to(root):
            raise LogDirectoryError(f"{root}: a copy of {source} cannot lie in it, nor around it")
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise LogDirectoryError(
            f"{root} is not empty: name a new folder for the copy, or remove what is left there of "
            "one that was cut off"
        )
    if not root.exists():
        if not root.parent.is_dir():
            raise LogDirectoryError(f"{root.parent}: there is no such folder")
        make_directory(root)
        fsync_directory(root.parent)
    if is_one or len(sources) == 1:
        targets = [root]
    else:
        targets = [root / str(number) for number in range(1, len(sources) + 1)]
        for folder in targets:
            make_directory(folder)
        fsync_directory(root)
    for folder in targets:
        make_directory(folder / UNFINISHED_FOLDER)
        fsync_directory(folder)  # a loss of power may leave any part of what comes
    return targets


def _is_ours(sources: Sequence[Path], policy: SetPolicy) -> bool:
    """Return whether the directories are a set of ours that no broker has open."""
    without = [folder for folder in sources if load_state(folder) is None]
    if len(without) == len(sources) or any(
        _broker_holds(folder, policy.wait_ms) for folder in sources
    ):
        return False
    if without:
        refuse_mount_points(sources)
        raise LogDirectoryError(
            f"{without[0]} has no {STATE_FILE}, and {len(sources) - len(without)} of the other log "
            "directories have one: they are not one set"
        )
    return True


def _session(sources: Sequence[Path], policy: SetPolicy) -> Session:
    return Session(sources, policy, holder=_HOLDER)


def _broker_holds(folder: Path, wait_ms: int) -> bool:
    try:
        check_no_broker(folder, timeout_ms=wait_ms)
    except LogDirectoryError:
        return True
    return False


def _copy_set(
    copies: Sequence[FolderCopy], policy: SetPolicy, problems: list[str]
) -> list[_RootFiles]:
    """Copy a set of ours; writers wait only for what came during the pass before."""
    sources = [copy.source for copy in copies]
    for _ in range(_PASSES):
        with _session(sources, policy) as session:
            session.open()
            sizes = [copy.log_sizes() for copy in copies]
        before = sum(copy.bytes for copy in copies)
        for copy, noted in zip(copies, sizes, strict=True):
            copy.bring_up_to_date(noted)
        if sum(copy.bytes for copy in copies) - before < _SMALL_BYTES:
            break
    with _session(sources, policy) as session:
        problems += _missing(session.open())
        for copy in copies:
            copy.bring_up_to_date()
        files = [_root_files(folder, CLEAN_SHUTDOWN, *_ROOT_FILES) for folder in sources]
        session.verify()
    return files


def _missing(log_set: LogSet) -> Iterator[str]:
    """Say what the copy lacks: partitions without a folder, and links to what is not mounted."""
    for topic, lost in lost_of_living(log_set.state, log_set.partitions()):
        yield lost_text(topic, lost)
    yield from _dead_links(log_set.directories)


def _dead_links(folders: Iterable[Path]) -> Iterator[str]:
    for folder in folders:
        for path in sorted(folder.iterdir()):
            if parse_partition_directory(path.name) and path.is_symlink() and not path.exists():
                yield f"{path} is a link that leads nowhere: a disk may not be mounted there"


def _copy_as_it_runs(copies: Sequence[FolderCopy], problems: list[str]) -> list[_RootFiles]:
    """Copy what others write, until nothing that was copied has been replaced meanwhile."""
    files = [_root_files(copy.source, *_ROOT_FILES) for copy in copies]
    for copy in copies:
        for _ in range(_LISTINGS):
            before = copy.partitions
            if copy.bring_up_to_date() == 0 and before:
                break
            if not copy.partitions:
                break
        else:
            raise LogDirectoryError(
                f"{copy.source} changes so fast that in {_LISTINGS} passes some of its files were "
                "always replaced while they were copied; try again"
            )
    problems += _dead_links(copy.source for copy in copies)
    return files


def _root_files(folder: Path, *names: str) -> _RootFiles:
    found = {}
    for name in names:
        with suppress(FileNotFoundError):
            found[name] = read_regular(folder / name, limit=_SMALL_FILE)
    return found


def _finish(copy: FolderCopy, files: _RootFiles) -> None:
    """Make the copy durable, then let it be used."""
    copy.sync()
    _open_to_all(copy.target, files)


def _open_to_all(target: Path, files: _RootFiles) -> None:
    for name, content in files.items():
        write_atomically(target / name, content)
    let_brokers_in(target)
    fsync_directory(target)
