"""The checkpoint folder of a streaming query, as far as we read it."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from kafkalog.errors import CheckpointError, KafkaLogError
from kafkalog.files.objects import open_objects
from kafkalog.files.paths import split_paths
from kafkalog.files.regular import close_quietly, fsync_directory, open_regular, read_regular, sync
from kafkalog.files.storage import RemoteRoot, is_object_uri
from kafkalog.files.system import remembered, system
from kafkalog.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kafkalog.files.objects import Objects

__all__ = ["QueryCheckpoint", "StoredQueryCheckpoint", "last_batch", "query_offsets"]


# ----------------------------------------------------------------------------------------------
# What a micro-batch of a query was planned to read, as its checkpoint has it in ``offsets``.
#
# Spark writes the file before the batch runs, in lines:
#
# ====  ====================================================
# line  meaning
# ====  ====================================================
# 1     the version, ``v1`` or ``v2``
# 2     a JSON object about the batch
# 3…    the end of each source, ``-`` for none. In ``v2`` after the source's name and a colon, in
#       any order
# ====  ====================================================
#
# ``v1`` names no sources: they count from 0. ``v2`` is written with
# ``spark.sql.streaming.offsetLog.formatVersion=2``, or where the sources have names. Without them
# the names are those numbers, too. A name has letters, digits and underscores.
#
# Source: Spark 4.2 ``OffsetSeqLog``, ``OffsetMap``.


_VERSIONS: Final = {"v1", "v2"}
_NOTHING: Final = "-"


def query_offsets(text: str) -> dict[str, str]:
    """Return the end of each source by its name, as JSON text; a source without an end is left out.

    Raises:
        CheckpointError: the text has another form.
    """
    version, *lines = text.splitlines() or [""]
    if version not in _VERSIONS or len(lines) < 2:
        raise CheckpointError(
            f"it begins with {version[:20]!r}, expected v1 or v2, a line about the batch, and the "
            "end of each source: this format is not known"
        )
    if version == "v1":
        found = {str(number): end for number, end in enumerate(lines[1:])}
    else:
        named = (line.partition(":") for line in lines[1:])
        found = {name: end for name, _, end in named}
    return {name: text for name, text in found.items() if text != _NOTHING}


def last_batch(folder: Path) -> int | None:
    """Return the number of the last micro-batch that has a file in a checkpoint's folder.

    Args:
        folder: ``offsets``, which has the batches that were planned, or ``commits``, which has
            those that have ended.

    Returns:
        None if there is none, or no such folder.

    Raises:
        OSError: the folder cannot be listed.
    """
    try:
        names = [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return None
    return max((int(name) for name in names if name.isdecimal()), default=None)


# ----------------------------------------------------------------------------------------------
# The checkpoint folder of a streaming query, as far as the sink looks into it.
#
# Spark numbers a query's batches, but a number proves little: a checkpoint that was restored from
# an older copy plans other rows under the same number. ``offsets/<batch>`` holds what the batch
# was planned to read and is written before the batch runs; a batch that is run again finds it
# again.
#
# A checkpoint is read only if the query was given its place as an option, and if that is on a local
# file system or in an object store that this process may read. Otherwise a batch is recognised by
# its rows: see :mod:`~kafkalog.streaming.commit.staging.staged_run`.
#
# Source: Spark ``StreamMetadata``, ``OffsetSeqLog``, ``HDFSMetadataLog``.


_METADATA: Final = "metadata"
_OFFSETS: Final = "offsets"
_STATE: Final = "state"
_LIMIT: Final = 64 << 20
_NOT_GIVEN: Final = MappingProxyType[str, object]({})


class QueryCheckpoint:
    """The checkpoint of one query, ``query_id``, in a local folder."""

    def __init__(self, folder: Path, query_id: str = "") -> None:
        self._folder = folder
        self.query_id = query_id

    @staticmethod
    def at(
        location: str | None, storage: Mapping[str, object] = _NOT_GIVEN
    ) -> QueryCheckpoint | None:
        """Find the checkpoint that ``location`` names, if it can be read from here.

        Args:
            location: a folder, or the URI of one in an object store.
            storage: how that is reached: fields of :class:`~kafkalog.files.storage.StorageOptions`.
        """
        if location is None:
            return None
        try:
            if is_object_uri(location):
                place = RemoteRoot.parse(location).with_options(storage)
                found: QueryCheckpoint = StoredQueryCheckpoint(place)
            else:
                (folder,) = split_paths(location)
                found = QueryCheckpoint(Path(folder))
            return found if found.finds_query() else None
        except (KafkaLogError, OSError, TypeError, ValueError):
            return None

    @staticmethod
    def of_query(
        location: str | None, query_id: str, storage: Mapping[str, object] = _NOT_GIVEN
    ) -> QueryCheckpoint | None:
        """Find the checkpoint that ``location`` names, if it can be read and is this query's."""
        found = QueryCheckpoint.at(location, storage)
        if found is not None and found.query_id != query_id:
            found.forget_query()
            found = QueryCheckpoint.at(location, storage)
        return found if found is not None and found.query_id == query_id else None

    def finds_query(self) -> bool:
        """Look which query has the checkpoint; return whether one has.

        Raises:
            KafkaLogError, OSError, ValueError: that cannot be read.
        """
        metadata = json.loads(self._read(_METADATA))
        query_id = metadata.get("id") if isinstance(metadata, dict) else None
        if isinstance(query_id, str):
            self.query_id = query_id
        return bool(self.query_id)

    def forget_query(self) -> None:
        """Have it read again which query has the checkpoint: another may have it by now."""

    def _read(self, name: str) -> bytes:
        return read_regular(self._folder / name, limit=_LIMIT)

    def digest(self, batch_id: int) -> str | None:
        """Return the SHA-256 of what a batch was planned to read; None if that is not there."""
        try:
            planned = self._read(f"{_OFFSETS}/{batch_id}")
        except (KafkaLogError, OSError):
            return None
        return hashlib.sha256(planned).hexdigest()

    def ends(self, batch_id: int) -> dict[TopicPartition, int]:
        """Return up to which offsets a batch was planned to read; none of a batch below 0.

        Raises:
            CheckpointError: the query does not read one source that counts offsets as Kafka does;
                or what it has planned cannot be read.
        """
        path = self._offsets(batch_id)
        if batch_id < 0:
            return {}
        try:
            (planned,) = self._planned(batch_id)
            return {
                TopicPartition(topic, int(partition)): int(offset)
                for topic, offsets in planned.items()
                for partition, offset in offsets.items()
            }
        except (AttributeError, KafkaLogError, OSError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{path} does not tell the end offsets of one source whose offsets are such as "
                f'{{"flights": {{"0": 23}}}}, which preserveEnds needs: {error}'
            ) from error

    def sources(self, batch_id: int) -> list[object] | None:
        """Return the offsets at which sources end in a batch, of those that have any.

        None if they cannot be read.
        """
        try:
            return self._planned(batch_id)
        except (KafkaLogError, OSError, ValueError):
            return None

    def _planned(self, batch_id: int) -> list[Any]:
        text = self._read(f"{_OFFSETS}/{batch_id}").decode()
        return [json.loads(each) for each in query_offsets(text).values()]

    @property
    def has_state(self) -> bool:
        """Whether the query keeps state from batch to batch."""
        return (self._folder / _STATE).is_dir()

    def sync(self, batch_id: int) -> None:
        """Make durable what Spark has written of a batch, which it does not do itself.

        Otherwise a loss of power could leave a batch committed whose number and offsets Spark has
        lost. Spark would plan it again, with other rows.
        """
        for file in (self._folder / _METADATA, self._offsets(batch_id)):
            _fsync_if_there(file)
        for folder in self._folders():
            fsync_directory(folder)

    def _offsets(self, batch_id: int) -> Path:
        return self._folder / _OFFSETS / str(batch_id)

    def _folders(self) -> Iterable[Path]:
        return (self._folder / _OFFSETS, self._folder, self._folder.parent)


class _QueriesInStores(dict["Objects", tuple[str, float]]):
    """The ids of queries by the stores of their checkpoints, and until when that is believed.

    The empty id is that of a place that could not be read: it is not asked by each batch.
    """


_ASK_AGAIN_S: Final = 300.0
"""How long it is believed that a place cannot be read: its store may have been away."""


class StoredQueryCheckpoint(QueryCheckpoint):
    """The checkpoint of one query in an object store, where what is written is durable."""

    def __init__(self, place: RemoteRoot) -> None:
        super().__init__(Path(str(place)))
        self._place = place
        self._objects = open_objects(place)

    def finds_query(self) -> bool:
        """See :meth:`QueryCheckpoint.finds_query`; where one was found, it is asked no more."""
        known = remembered(_QueriesInStores)
        self.query_id, until = known.get(self._objects, ("", -math.inf))
        if system.monotonic() >= until:
            try:
                super().finds_query()
            except (KafkaLogError, OSError, ValueError):  # and not where it is interrupted
                known[self._objects] = "", system.monotonic() + _ASK_AGAIN_S
                raise
            known[self._objects] = self.query_id, math.inf
        return bool(self.query_id)

    def forget_query(self) -> None:
        """See :meth:`QueryCheckpoint.forget_query`."""
        remembered(_QueriesInStores).pop(self._objects, None)

    @property
    def has_state(self) -> bool:
        """Whether the query keeps state from batch to batch."""
        return bool(self._objects.list_after(_STATE, limit=1))

    def sync(self, batch_id: int) -> None:
        """Do nothing: what Spark has written there is durable."""

    def _read(self, name: str) -> bytes:
        found = self._objects.get(name)
        if found is None:
            raise FileNotFoundError(f"{self._place}/{name}: there is no such object")
        return found


def _fsync_if_there(path: Path) -> None:
    try:
        descriptor = open_regular(path)
    except FileNotFoundError:
        return
    try:
        sync(descriptor)
    finally:
        close_quietly(descriptor)
