"""Where a checkpoint says that its query has come: Spark's, or that of ``kafkalog run replay``.

A checkpoint of Spark has a file for each micro-batch in ``offsets`` (written when it is planned)
and one in ``commits`` (written when it has ended). So what is read for good ends where the last
batch in ``commits`` does. The file in ``offsets``:
:mod:`kafkalog.checkpoints.query_offsets`.

The ends of kafkalog's source and of Spark's Kafka source have the same form,
``{"flights":{"0":23}}``. Those of other sources count no offsets of Kafka, and are passed over.

Source: Spark 4.2 ``CommitLog``.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.query_offsets import last_batch, query_offsets
from kafkalog.errors import CheckpointError, KafkaLogError, OptionError
from kafkalog.files.local_paths import split_paths
from kafkalog.files.regular import read_regular
from kafkalog.jobs.replay_checkpoint import FILE, ReplayCheckpoint
from kafkalog.streaming.source.offsets import from_json_text

if TYPE_CHECKING:
    from kafkalog.model import TopicPartition
    from kafkalog.streaming.source.offsets import PartitionOffsets

__all__ = ["read_checkpoint"]

_LOGGER: Final = logging.getLogger("kafkalog.jobs")

_LIMIT: Final = 64 << 20


def read_checkpoint(location: str) -> tuple[PartitionOffsets, frozenset[str]]:
    """Return the next offset of each partition that a query has read, and the topics it reads.

    A query that has planned its first batch and not ended it has topics and no offsets.

    Raises:
        OptionError: there is no such folder here, or it is no checkpoint.
        CheckpointError: it cannot be read, or no source in it counts offsets of Kafka.
    """
    folder = _folder(location)
    if (folder / FILE).exists():
        replay = ReplayCheckpoint.open(str(folder), {})
        # What was begun may not be played, as a batch that has not ended.
        reached = replay.reached if replay.begun is None else replay.begun.start
        return reached, frozenset(key.topic for key in reached)
    planned, ended = (last_batch(folder / name) for name in ("offsets", "commits"))
    if planned is None:
        raise OptionError(
            f"--checkpoint {location} is no checkpoint of a streaming query: there is no batch in "
            f"{folder / 'offsets'}. Name the folder that the query has as checkpointLocation"
        )
    if ended is None:
        return {}, frozenset(key.topic for key in _read_ends(folder, planned))
    reached = _read_ends(folder, ended)
    return reached, frozenset(key.topic for key in reached)


def _folder(location: str) -> Path:
    try:
        (path,) = split_paths(location)
    except (KafkaLogError, ValueError):
        raise OptionError(
            f"--checkpoint {location} is not one folder of this machine. Copy its offsets and "
            "commits to one, or give --offsets"
        ) from None
    folder = Path(path)
    if not folder.is_dir():
        raise OptionError(f"--checkpoint {location}: there is no such folder")
    return folder


def _read_ends(folder: Path, batch: int) -> dict[TopicPartition, int]:
    path = folder / "offsets" / str(batch)
    try:
        sources = query_offsets(read_regular(path, limit=_LIMIT).decode())
    except (KafkaLogError, OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    found: dict[TopicPartition, int] = {}
    others, is_known = [], False
    for name, text in sources.items():
        try:
            ends = from_json_text(text)
        except CheckpointError:
            others.append(name)
            continue
        is_known = True
        # of two sources over the same topic, the one that is behind counts
        found |= {key: min(end, found.get(key, end)) for key, end in ends.items()}
    if not is_known:
        raise CheckpointError(
            f"{path} has no source that counts Kafka's offsets, such as "
            f'{{"flights":{{"0":23}}}}: nothing tells how far this query is behind'
        )
    for name in others:
        _LOGGER.warning("%s: source %s counts no offsets of Kafka and is left out", path, name)
    return found
