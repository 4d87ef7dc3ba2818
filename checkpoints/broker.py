r"""The small files that a broker keeps beside its segments, both ways.

In the root of a log directory:

=====================================  ==========================================================
``recovery-point-offset-checkpoint``   per partition: every offset below it is on the disk
``log-start-offset-checkpoint``        partitions whose log starts above their first segment's base
``replication-offset-checkpoint``      per partition: the high watermark
``cleaner-offset-checkpoint``          per partition: where compaction continues
``meta.properties``                    cluster, node and directory id: a broker lives here
``.kafka_cleanshutdown``               the last shutdown was clean, nothing needs a scan
``.lock``                              held by whoever has the directory open
=====================================  ==========================================================

In a partition's folder:

============================  ===================================================================
``leader-epoch-checkpoint``   ascending leader epochs with their first offsets
``partition.metadata``        ``version: 0\ntopic_id: <22 characters>``, without a final new line
============================  ===================================================================

All of them may lag behind the log, or run ahead of a damaged one: what they say is never taken
without the log's own ends.

Source: Kafka ``OffsetCheckpointFile``, ``LeaderEpochCheckpointFile``, ``PartitionMetadataFile``,
``MetaProperties``, ``CleanShutdownFileHandler``, ``LogManager``.
"""

from __future__ import annotations

import base64
import fcntl
import itertools
import json
import os
import re
import struct
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final, NamedTuple

from kafkalog.errors import CheckpointError, InvalidTopicError, LogDirectoryError
from kafkalog.files.atomic import create_atomically, write_atomically
from kafkalog.files.regular import close_quietly, fsync_directory, open_regular, read_regular
from kafkalog.files.remote_path import RemotePath, place_in
from kafkalog.files.system import remembered, system
from kafkalog.model import TopicPartition, validate_topic_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from pathlib import Path


__all__ = [
    "CHECKPOINT_VERSION",
    "CLEANER_OFFSET",
    "CLEAN_SHUTDOWN",
    "HIGH_WATERMARK",
    "LEADER_EPOCHS",
    "LOCK",
    "LOG_START_OFFSET",
    "META_PROPERTIES",
    "OFFSET_CHECKPOINTS",
    "PARTITION_METADATA",
    "RECOVERY_POINT",
    "LeaderEpoch",
    "broker_holds",
    "find_offset_checkpoint",
    "is_locked",
    "is_topic_id",
    "new_topic_id",
    "parse_integer",
    "read_checkpoint",
    "read_leader_epochs",
    "read_meta_properties",
    "read_offset_checkpoint",
    "read_topic_id",
    "remove_clean_shutdown_marker",
    "write_checkpoint",
    "write_clean_shutdown_marker",
    "write_leader_epochs",
    "write_offset_checkpoint",
    "write_topic_id",
]


# ----------------------------------------------------------------------------------------------
# Kafka's checkpoint text format: ``*-offset-checkpoint`` and ``leader-epoch-checkpoint``.
#
# ======  =============================================================
# line    content (UTF-8, each line ends in ``\n``)
# ======  =============================================================
# 1       version: ``0``
# 2       number of entries that follow
# 3 ...   one entry a line: its fields, separated by white space
# ======  =============================================================
#
# An empty file has no entries. The reader is as strict as Kafka's: another version, a line with
# too few or too many fields, an empty line or a wrong count make the whole file unreadable.
# Entries have no order. No checksum: a rename makes each version appear whole.
#
# Source: Kafka ``CheckpointFile`` (server-common).


CHECKPOINT_VERSION: Final = 0
"""On disk."""

_MAX_BYTES: Final = 64 << 20
"""Far above any real file: a broker with 100,000 partitions has one of 5 MB."""

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_WHITE_SPACE = re.compile(r"[ \t\v\f]+")

_FEW_DIGITS: Final = 10
"""Numbers with fewer fit 32 bits."""


def read_checkpoint(path: Path, *, fields: int) -> list[tuple[str, ...]]:
    """Read the entries of a checkpoint file, each of exactly ``fields`` words.

    Raises:
        FileNotFoundError: there is no such file.
        CheckpointError: the content breaks the format; says in which line.
        LogDirectoryError: not a regular file, or not readable.
    """
    return _parse_checkpoint(read_regular(path, limit=_MAX_BYTES), path, fields=fields)


def _parse_checkpoint(content: bytes, path: Path, *, fields: int) -> list[tuple[str, ...]]:
    """Return the entries that the content of ``path`` has, each of exactly ``fields`` words.

    Raises:
        CheckpointError: the content breaks the format; says in which line.
    """
    try:
        lines = content.decode().replace("\r\n", "\n").split("\n")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: not UTF-8 at byte {error.start}") from error
    if lines[-1] == "":
        lines.pop()
    if not lines:
        return []
    version = parse_integer(lines[0], 32, path, 1)
    if version != CHECKPOINT_VERSION:
        raise CheckpointError(
            f"{path}: version {version}, only version {CHECKPOINT_VERSION} is known"
        )
    if len(lines) == 1:
        raise CheckpointError(f"{path}: ends before the number of entries in line 2")
    count = parse_integer(lines[1], 32, path, 2)
    if count != len(lines) - 2:
        raise CheckpointError(f"{path}: announces {count} entries and has {len(lines) - 2}")
    return [_split(line, fields, path, number) for number, line in enumerate(lines[2:], start=3)]


def _split(line: str, fields: int, path: Path, number: int) -> tuple[str, ...]:
    words = tuple(line.split(" "))  # as a broker writes them, and it may be 100,000 lines
    if len(words) != fields or "" in words or not line.isprintable():
        words = tuple(_WHITE_SPACE.split(line.rstrip(" \t\v\f")))
    if len(words) != fields or not words[0]:
        raise CheckpointError(f"{path}: line {number} is {line[:120]!r}, expected {fields} fields")
    return words


def parse_integer(text: str, bits: int, path: Path | str, line: int) -> int:
    """Parse a decimal integer as Java does: ASCII digits with a sign, of ``bits`` bits."""
    if len(text) < _FEW_DIGITS and text.isascii() and text.isdecimal():
        return int(text)
    if not _INTEGER.fullmatch(text) or not -(1 << (bits - 1)) <= int(text) < 1 << (bits - 1):
        raise CheckpointError(f"{path}: line {line}: {text[:40]!r} is no {bits}-bit integer")
    return int(text)


def write_checkpoint(
    path: Path, entries: Iterable[Sequence[object]], *, fsync: bool = True
) -> None:
    """Replace the file atomically; the fields of an entry must print without white space.

    Raises:
        CheckpointError: it would be larger than what is read again; it is left as it was.
    """
    lines = [" ".join(map(str, entry)) for entry in entries]
    data = "\n".join([str(CHECKPOINT_VERSION), str(len(lines)), *lines, ""]).encode()
    if len(data) > _MAX_BYTES:
        raise CheckpointError(
            f"{path} would have {len(data)} bytes, and more than {_MAX_BYTES} are not read again. "
            "It was left as it is: spread the topics over several sets of log directories"
        )
    write_atomically(path, data, fsync=fsync)


# ----------------------------------------------------------------------------------------------

RECOVERY_POINT: Final = "recovery-point-offset-checkpoint"
LOG_START_OFFSET: Final = "log-start-offset-checkpoint"
HIGH_WATERMARK: Final = "replication-offset-checkpoint"
CLEANER_OFFSET: Final = "cleaner-offset-checkpoint"
OFFSET_CHECKPOINTS: Final = (RECOVERY_POINT, LOG_START_OFFSET, HIGH_WATERMARK, CLEANER_OFFSET)
META_PROPERTIES: Final = "meta.properties"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
LOCK: Final = ".lock"
LEADER_EPOCHS: Final = "leader-epoch-checkpoint"
PARTITION_METADATA: Final = "partition.metadata"

_SMALL: Final = 1 << 20
_LARGE: Final = 16 << 10
_WITHOUT: Final = {
    RECOVERY_POINT: "nothing counts as flushed then, and logs are looked at as a whole",
    LOG_START_OFFSET: "logs start where the commit state says then, or with their first segments",
    HIGH_WATERMARK: "what the commit state says is committed then, or, without one, whole logs",
    CLEANER_OFFSET: "compaction begins again with the first segments then",
}
"""What it means to remove an offset checkpoint."""
_USUAL_ENTRIES = re.compile(
    rb"0\n([0-9]{1,9})\n((?:[A-Za-z0-9._-]{1,249} [0-9]{1,9} [0-9]{1,18}\n)*)"
)
_TOPIC_ID = re.compile(r"[A-Za-z0-9_-]{22}", re.ASCII)
_ZERO_TOPIC_ID: Final = "A" * 22
_AS_WRITTEN: Final = re.compile(rb"version: 0\ntopic_id: ([A-Za-z0-9_-]{22})\n?")
"""``partition.metadata`` as brokers and we write it."""


# Offset checkpoints


def read_offset_checkpoint(directory: Path, name: str) -> dict[TopicPartition, int]:
    """Read one of the offset checkpoints of a log directory; a missing file has no entries.

    Raises:
        CheckpointError: the file breaks the format.
    """
    return find_offset_checkpoint(directory, name) or {}


def find_offset_checkpoint(directory: Path, name: str) -> dict[TopicPartition, int] | None:
    """Read one of the offset checkpoints of a log directory; None if there is no such file.

    Raises:
        CheckpointError: the file breaks the format, or names what can be no partition.
    """
    path = directory / name
    try:
        content = read_regular(path, limit=_MAX_BYTES)
        found = remembered(_ParsedEntries).of(content)
        if found is None:
            entries = _parse_checkpoint(content, path, fields=3)
            found = {
                TopicPartition(topic, parse_integer(partition, 32, path, line)): parse_integer(
                    offset, 64, path, line
                )
                for line, (topic, partition, offset) in enumerate(entries, start=3)
            }
            _check_partitions(path, found)
    except FileNotFoundError:
        return None
    except CheckpointError as error:
        raise CheckpointError(
            f"{error}. Restore it; or remove it: {_WITHOUT[name]}", fault=str(error)
        ) from error
    return found


class _ParsedEntries:
    """The entries of the large files that were read last: a commit may read 10,000 again."""

    def __init__(self) -> None:
        self._parse = lru_cache(maxsize=4)(_parse_usual_entries)

    def of(self, content: bytes) -> dict[TopicPartition, int] | None:
        """Return the entries of a file with this content, for the caller to change."""
        if len(content) < _LARGE:
            return _parse_usual_entries(content)
        found = self._parse(content)
        return None if found is None else dict(found)


def _parse_usual_entries(content: bytes) -> dict[TopicPartition, int] | None:
    """Return the entries as a broker writes them, all at once: there may be 100,000 of them.

    None where a line has any other form, or names no topic: to be read line by line, or refused.
    """
    usual = _USUAL_ENTRIES.fullmatch(content)
    if usual is None:
        return None
    words = usual[2].decode().split()
    if int(usual[1]) * 3 != len(words) or not {".", ".."}.isdisjoint(words[::3]):
        return None
    new = partial(tuple.__new__, TopicPartition)
    keys = map(new, zip(words[::3], map(int, words[1::3]), strict=True))
    return dict(zip(keys, map(int, words[2::3]), strict=True))


def _check_partitions(path: Path, found: Collection[TopicPartition]) -> None:
    """Refuse names that no folder of a partition can have: they would become paths."""
    try:
        for topic in {key.topic for key in found}:
            validate_topic_name(topic)
    except InvalidTopicError as error:
        raise CheckpointError(f"{path}: {error}") from error
    wrong = next((key for key in found if key.partition < 0), None)
    if wrong is not None:
        raise CheckpointError(f"{path}: names partition {wrong.partition} of {wrong.topic}")


def write_offset_checkpoint(
    directory: Path,
    name: str,
    offsets: Mapping[TopicPartition, int],
    *,
    remove: Collection[TopicPartition] = (),
    fsync: bool = True,
) -> None:
    """Put ``offsets`` into a checkpoint, keeping the lines of every other partition.

    The caller holds the directory's lock. ``remove`` names partitions whose lines go.

    Raises:
        CheckpointError: the present file breaks the format, so that its lines cannot be kept.
    """
    known = read_offset_checkpoint(directory, name)
    merged = known | dict(offsets)
    for key in remove:
        merged.pop(key, None)
    entries = merged.items() if len(merged) == len(known) else sorted(merged.items())
    write_checkpoint(directory / name, [(*key, offset) for key, offset in entries], fsync=fsync)


# Leader epochs


class LeaderEpoch(NamedTuple):
    """``epoch`` began at ``start_offset``: a line of ``leader-epoch-checkpoint``."""

    epoch: int
    start_offset: int


def read_leader_epochs(directory: Path) -> list[LeaderEpoch]:
    """Read a partition's leader epochs, ascending; a missing file has none.

    Raises:
        CheckpointError: the file breaks the format, or epochs or offsets do not ascend.
    """
    try:
        return _leader_epochs(directory / LEADER_EPOCHS)
    except FileNotFoundError:
        return []
    except CheckpointError as error:
        raise CheckpointError(
            f"{error}. Restore it; or let `kafkalog recover` write it by the batches, or "
            "`kafkalog broker takeover` after a broker"
        ) from error


def _leader_epochs(path: Path) -> list[LeaderEpoch]:
    entries = read_checkpoint(path, fields=2)
    epochs = [
        LeaderEpoch(parse_integer(epoch, 32, path, line), parse_integer(offset, 64, path, line))
        for line, (epoch, offset) in enumerate(entries, start=3)
    ]
    for line, (before, after) in enumerate(itertools.pairwise(epochs), start=4):
        if after.epoch <= before.epoch or after.start_offset < before.start_offset:
            raise CheckpointError(f"{path}: line {line}: {after} does not follow {before}")
    return epochs


def write_leader_epochs(
    directory: Path, epochs: Sequence[LeaderEpoch], *, fsync: bool = True
) -> None:
    """Replace a partition's leader epochs."""
    write_checkpoint(directory / LEADER_EPOCHS, epochs, fsync=fsync)


# The topic's id


def new_topic_id() -> str:
    """Make a random topic id: 22 characters that never start with ``-`` (Kafka ``Uuid``)."""
    while True:
        text = base64.urlsafe_b64encode(system.random_id().bytes).rstrip(b"=").decode()
        if not text.startswith("-"):
            return text


def is_topic_id(text: str) -> bool:
    """Return whether a text is an id that a topic may have."""
    return _TOPIC_ID.fullmatch(text) is not None and text != _ZERO_TOPIC_ID


def read_topic_id(directory: Path) -> str | None:
    """Read the topic id in a partition's folder; None without ``partition.metadata``.

    Raises:
        CheckpointError: it is there and holds no valid id, or is a FIFO, a folder or the like.
        LogDirectoryError: it may not be opened.
    """
    try:
        return _topic_id(place_in(directory, PARTITION_METADATA))
    except FileNotFoundError:
        return None
    except (CheckpointError, LogDirectoryError) as error:
        in_store = isinstance(error, LogDirectoryError) and isinstance(directory, RemotePath)
        if in_store or isinstance(error.__cause__, PermissionError):
            raise  # it is not the file that is wrong
        raise CheckpointError(
            f"{error}. Restore it: that of any other partition of the topic says the same. "
            "`kafkalog recover` does that where the commit state knows the topic"
        ) from error


def _topic_id(path: Path | str) -> str:
    content = read_regular(path, limit=_SMALL)
    plain = _AS_WRITTEN.fullmatch(content)
    if plain is not None and is_topic_id(plain[1].decode()):
        return plain[1].decode()
    lines = content.decode("utf-8", "replace").splitlines()
    if len(lines) != 2:
        raise CheckpointError(f"{path}: has {len(lines)} lines, expected 2")
    version = parse_integer(_labelled("version", lines[0], path), 32, path, 1)
    if version < 0:
        raise CheckpointError(f"{path}: version {version} is negative")
    topic_id = _labelled("topic_id", lines[1], path)
    if not is_topic_id(topic_id):
        raise CheckpointError(f"{path}: {topic_id[:40]!r} is no topic id of 22 characters")
    return topic_id


def _labelled(label: str, line: str, path: Path | str) -> str:
    found = re.fullmatch(rf"{label}:\s+(\S+)", line)
    if not found:
        raise CheckpointError(f"{path}: found {line[:80]!r}, expected '{label}: ...'")
    return found[1]


def write_topic_id(directory: Path, topic_id: str, *, replaces: bool = True) -> None:
    """Write ``partition.metadata``, whole or not at all whatever happens.

    Its name is durable once the caller has fsynced the folder.

    Raises:
        CheckpointError: ``topic_id`` is none.
        FileExistsError: there is one, and it is not to be replaced.
    """
    path = directory / PARTITION_METADATA
    if not is_topic_id(topic_id):
        raise CheckpointError(f"{path}: {topic_id[:40]!r} is no topic id of 22 characters")
    content = f"version: 0\ntopic_id: {topic_id}".encode()
    if replaces:
        write_atomically(path, content, fsync=False)
    else:
        create_atomically(path, content)


# The directory as a whole


def read_meta_properties(directory: Path) -> dict[str, str] | None:
    """Read ``meta.properties`` (Java properties); None where no broker has lived.

    Raises:
        CheckpointError: not text.
    """
    path = directory / META_PROPERTIES
    try:
        content = read_regular(path, limit=_SMALL)
    except FileNotFoundError:
        return None
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise CheckpointError(
            f"{path}: not UTF-8 at byte {error.start}. Restore it: a broker does not start without"
        ) from error
    pairs = (_property(line) for line in text.splitlines())
    return {pair[0]: pair[1] for pair in pairs if pair is not None}


def _property(line: str) -> tuple[str, str] | None:
    """Split ``key=value``, ``key:value`` or ``key value``; a backslash escapes what follows it."""
    line = line.lstrip()
    if not line or line[0] in "#!":
        return None
    key, value = re.fullmatch(r"((?:\\.|[^\\=:\s])*)\s*[=:]?\s*(.*)", line, re.DOTALL).groups()  # type: ignore[union-attr]
    return re.sub(r"\\(.)", r"\1", key), re.sub(r"\\(.)", r"\1", value)


def remove_clean_shutdown_marker(directory: Path, *, fsync: bool = True) -> bool:
    """Remove the marker, as a broker does before it touches a log; tells whether it was there."""
    try:
        (directory / CLEAN_SHUTDOWN).unlink()
    except FileNotFoundError:
        return False
    if fsync:
        fsync_directory(directory)
    return True


def write_clean_shutdown_marker(
    directory: Path, *, broker_epoch: int = -1, fsync: bool = True
) -> None:
    """Mark the directory as cleanly shut down: every partition in it must be in order.

    A cluster takes the replicas of a broker out of those that may lead, if the mark does not bear
    the epoch of the broker's last registration (KIP-966).
    """
    content = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
    write_atomically(directory / CLEAN_SHUTDOWN, content.encode(), fsync=fsync)


def broker_holds(directory: Path) -> bool:
    """Return whether another process holds Kafka's ``.lock``: a broker, or a writer of ours.

    A running broker does, with Java's ``FileChannel.lock``, which is a POSIX record lock. See
    :func:`is_locked` for when not to ask.
    """
    return is_locked(directory / LOCK)


def is_locked(path: Path) -> bool:
    """Return whether another process holds a POSIX lock on a file, without taking it.

    Never call this in a process that holds that lock itself: POSIX locks fall when their process
    closes *any* descriptor of the file, and this closes one.
    """
    try:
        descriptor = open_regular(path)
    except FileNotFoundError:
        return False
    try:
        asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, asked)
        (kind,) = struct.unpack_from("h", answer)
        return bool(kind != fcntl.F_UNLCK)
    finally:
        close_quietly(descriptor)
