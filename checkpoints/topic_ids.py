"""Topic ids that a streaming query keeps in ``stateLocation``, and ids that were changed.

A query's checkpoint holds offsets only. A topic that is deleted and recreated under its old name
has another id, and the offsets of the old one mean nothing in it. The file, in a folder that
belongs to one query, is sealed (:mod:`kafkalog.checkpoints.sealed_file`); its one line is

    {"topics":{"flights":{"0":"2nKGh3uGQ0a2qXfWc1kKTA","1":"2nKGh3uGQ0a2qXfWc1kKTA"}}}

Nor do offsets say whether a log was cut and written again below them. A second sealed file has of
each partition the positions that the query's checkpoint may continue at, with the last batch below
each (:mod:`kafkalog.streaming.log.history`), in one line:

    {"positions":{"flights":{"0":{"100":"95:99:3735928559:0:2:0:612:5:1764290000000"}}}}

A topic that keeps its records and gets another id, as for a broker that is to own it, is no topic
recreated. Whoever changes ids notes it before, in a sealed file in each log directory, one line for
each change:

    {"topic":"flights","from":"2nKGh3uGQ0a2qXfWc1kKTA","to":"hpYgM1pPTfKkq0oFhDYc0w"}
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.sealed_file import JsonObject, read_sealed, seal
from kafkalog.errors import CheckpointError
from kafkalog.files.atomic import make_with_parents, write_atomically
from kafkalog.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

__all__ = [
    "CHANGED_IDS_FILE",
    "POSITIONS_FILE",
    "TOPIC_IDS_FILE",
    "is_changed_id",
    "load_positions",
    "load_topic_ids",
    "merged_changed_ids",
    "note_changed_ids",
    "save_positions",
    "save_topic_ids",
]

TOPIC_IDS_FILE: Final = "kafkalog.topics"
POSITIONS_FILE: Final = "kafkalog.positions"
CHANGED_IDS_FILE: Final = "kafkalog.changed-ids"
_FORMAT: Final = "kafkalog.topics"
_POSITIONS_FORMAT: Final = "kafkalog.positions"
_CHANGED_FORMAT: Final = "kafkalog.changed-ids"
_VERSION: Final = 1

_GO_WITHOUT: Final = (
    "Restore it from the backup that the query's checkpoint is of; or move it away, to continue by "
    "what the offsets show, as without stateLocation"
)


def load_topic_ids(folder: Path) -> dict[TopicPartition, str]:
    """Read the ids; none if there is no such file yet.

    Raises:
        CheckpointError: the file is damaged or from a newer release.
    """
    path = folder / TOPIC_IDS_FILE
    try:
        sealed = read_sealed(path, _FORMAT, _VERSION, remedy=_GO_WITHOUT)
        return {} if sealed is None else _parsed(sealed.lines[0])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} does not hold topic ids: {error!r}") from error


def save_topic_ids(folder: Path, ids: Mapping[TopicPartition, str]) -> None:
    """Replace what is kept, durably; the folder is made if need be.

    Raises:
        CheckpointError: it cannot be written.
    """
    topics: dict[str, dict[str, str]] = {}
    for key in sorted(ids):
        topics.setdefault(key.topic, {})[str(key.partition)] = ids[key]
    try:
        if not (folder / TOPIC_IDS_FILE).exists():
            make_with_parents(folder)
        write_atomically(folder / TOPIC_IDS_FILE, seal(_FORMAT, _VERSION, [{"topics": topics}]))
    except OSError as error:
        raise CheckpointError(f"{folder / TOPIC_IDS_FILE} cannot be written: {error}") from error


def load_positions(folder: Path) -> dict[TopicPartition, dict[int, str]]:
    """Read the positions, and the last batch below each; none if there is no such file yet.

    Raises:
        CheckpointError: the file is damaged or from a newer release.
    """
    path = folder / POSITIONS_FILE
    try:
        sealed = read_sealed(path, _POSITIONS_FORMAT, _VERSION, remedy=_GO_WITHOUT)
        found = {} if sealed is None else sealed.lines[0]["positions"]
        return {
            TopicPartition(topic, int(partition)): {int(at): str(each[at]) for at in each}
            for topic, partitions in found.items()
            for partition, each in partitions.items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} does not hold positions: {error!r}") from error


def save_positions(folder: Path, positions: Mapping[TopicPartition, Mapping[int, str]]) -> None:
    """Replace the positions that are kept, durably; the folder is made if need be.

    Raises:
        CheckpointError: they cannot be written.
    """
    topics: dict[str, dict[str, dict[str, str]]] = {}
    for key in sorted(positions):
        of_partition = {str(at): text for at, text in positions[key].items()}
        topics.setdefault(key.topic, {})[str(key.partition)] = of_partition
    path = folder / POSITIONS_FILE
    try:
        if not path.exists():
            make_with_parents(folder)
        write_atomically(path, seal(_POSITIONS_FORMAT, _VERSION, [{"positions": topics}]))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error}") from error


def note_changed_ids(folder: Path, changes: Iterable[tuple[str, str, str]]) -> None:
    """Note changes (topic, id before, id after) in a log directory, beside those noted earlier.

    Raises:
        CheckpointError: the file is damaged.
        OSError: it cannot be written.
    """
    path = folder / CHANGED_IDS_FILE
    lines = _changes_in(path)
    lines += [{"topic": topic, "from": old, "to": new} for topic, old, new in changes]
    if lines:
        write_atomically(path, seal(_CHANGED_FORMAT, _VERSION, lines))


def merged_changed_ids(folders: Iterable[Path]) -> bytes | None:
    """Return the file of the changes that are noted in any log directory, in their order.

    A directory that was away when ids were changed has not noted it. None without any change.

    Raises:
        CheckpointError: one of the files is damaged.
    """
    merged: list[JsonObject] = []
    for folder in folders:
        place = len(merged)
        for line in reversed(_changes_in(folder / CHANGED_IDS_FILE)):
            if line in merged:
                place = merged.index(line)
            else:
                merged.insert(place, line)
    return seal(_CHANGED_FORMAT, _VERSION, merged) if merged else None


def is_changed_id(folder: Path, topic: str, before: str, now: str) -> bool:
    """Whether a topic that had the id ``before`` was given the id ``now``, by way of others too.

    Raises:
        CheckpointError: the file is damaged.
    """
    ids = {before}
    for line in _changes_in(folder / CHANGED_IDS_FILE):  # in the order of the changes
        if line.get("topic") == topic and line.get("from") in ids:
            ids.add(str(line.get("to")))
    return now in ids


def _changes_in(path: Path) -> list[JsonObject]:
    sealed = read_sealed(path, _CHANGED_FORMAT, _VERSION)
    return [] if sealed is None else sealed.lines


def _parsed(line: Mapping[str, Mapping[str, Mapping[str, str]]]) -> dict[TopicPartition, str]:
    return {
        TopicPartition(topic, int(partition)): str(topic_id)
        for topic, partitions in line["topics"].items()
        for partition, topic_id in partitions.items()
    }
