"""The checkpoint folder of a streaming query, as far as the sink looks into it.

Spark numbers a query's batches, but a number proves little: a checkpoint that was restored from an
older copy plans other rows under the same number. ``offsets/<batch>`` holds what the batch was
planned to read and is written before the batch runs; a batch that is run again finds it again.

A checkpoint is read only if it is on a local file system, and if the query was given its folder as
an option. Otherwise a batch is recognised by its rows: see
:mod:`~kafkalog.streaming.commit.row_digest`.

Source: Spark ``StreamMetadata``, ``OffsetSeqLog``, ``HDFSMetadataLog``.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from kafkalog.checkpoints.query_offsets import query_offsets
from kafkalog.errors import CheckpointError, KafkaLogError
from kafkalog.files.paths import split_paths
from kafkalog.files.regular import fsync_directory, open_regular, read_regular, sync
from kafkalog.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["QueryCheckpoint"]

_METADATA: Final = "metadata"
_OFFSETS: Final = "offsets"
_STATE: Final = "state"
_LIMIT: Final = 64 << 20


class QueryCheckpoint:
    """The checkpoint of one query, ``query_id``, in a local folder."""

    def __init__(self, folder: Path, query_id: str = "") -> None:
        self._folder = folder
        self.query_id = query_id

    @classmethod
    def at(cls, location: str | None) -> Self | None:
        """Find the checkpoint that ``location`` names, if it is local."""
        if location is None:
            return None
        try:
            (path,) = split_paths(location)
            metadata = json.loads(read_regular(Path(path) / _METADATA, limit=_LIMIT))
        except (KafkaLogError, OSError, ValueError):
            return None
        query_id = metadata.get("id") if isinstance(metadata, dict) else None
        return cls(Path(path), query_id) if isinstance(query_id, str) else None

    @classmethod
    def of_query(cls, location: str | None, query_id: str) -> Self | None:
        """Find the checkpoint that ``location`` names, if it is local and this query's."""
        found = cls.at(location)
        return found if found is not None and found.query_id == query_id else None

    def digest(self, batch_id: int) -> str | None:
        """Return the SHA-256 of what a batch was planned to read; None if that is not there."""
        try:
            planned = read_regular(self._offsets(batch_id), limit=_LIMIT)
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
        text = read_regular(self._offsets(batch_id), limit=_LIMIT).decode()
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


def _fsync_if_there(path: Path) -> None:
    try:
        descriptor = open_regular(path)
    except FileNotFoundError:
        return
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)
