"""What a query of a group reads in its present micro-batch: written by its source, for its sink.

Spark lets a source and a sink know nothing of each other. So they meet here: by a file beside those
of the group's members, one for each ``kafka.group.instance.id``. The source replaces it in each
micro-batch, with a nonce. The sink's writer, which Spark makes after that, gives the nonce to its
tasks; it comes back with their messages. Rows whose nonce is not that of the file are of a batch
that was replaced, and are not committed.

The file is sealed (:mod:`kafkalog.checkpoints.sealed_file`). Its one line is

    {"nonce":"0f…","member":"q-3c…","start":{"in":{"0":5}},"end":{"in":{"0":9}},
     "moves":[["in",0,5,9,7]]}

where a move has a topic, a partition, the offsets ``[begin, end)`` that the batch reads, and the
generation since which the member has the partition. It need not survive a loss of power: no member
does, and a batch that comes again is planned again. But one that reads nothing of the group is not,
so the plan of it is made durable.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kafkalog.checkpoints.sealed_file import read_sealed, seal
from kafkalog.errors import CheckpointError
from kafkalog.files.atomic import write_atomically
from kafkalog.files.system import system
from kafkalog.model import TopicPartition
from kafkalog.streaming.groups.group_commits import Move
from kafkalog.streaming.log.history import LastBatch
from kafkalog.streaming.store.group_files import PLAN_PREFIX
from kafkalog.streaming.store.identity import staging_hash

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["Plan", "load_plan", "remove_plans", "save_plan"]

_FORMAT: Final = "kafkalog.groupplan"
_VERSION: Final = 1
_REMEDY: Final = "Remove it while the query is stopped: it is written again for each micro-batch"


@dataclass(frozen=True, slots=True)
class Plan:
    """One micro-batch of a member.

    Attributes:
        member: the member's id.
        start: the batch's offsets as Spark has them, by topic and partition.
        end: likewise.
        moves: what is read of each partition; those of which nothing is read are not there.
        nonce: tells it from every other plan.
    """

    member: str
    start: Mapping[str, Mapping[str, int]]
    end: Mapping[str, Mapping[str, int]]
    moves: Mapping[TopicPartition, Move]
    nonce: str

    @classmethod
    def new(
        cls,
        member: str,
        start: Mapping[str, Mapping[str, int]],
        end: Mapping[str, Mapping[str, int]],
        moves: Mapping[TopicPartition, Move],
    ) -> Plan:
        """Make a plan with a nonce that no other has."""
        return cls(member, start, end, moves, system.random_id().hex)

    @property
    def digest(self) -> str:
        """Tells the batch by its offsets; the same when it is planned again."""
        text = json.dumps([self.start, self.end], separators=(",", ":"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def unfinished(self, stands: Mapping[TopicPartition, int]) -> frozenset[TopicPartition]:
        """Return the partitions whose end a group that ``stands`` there has not reached."""
        return frozenset(
            key for key, move in self.moves.items() if stands.get(key, move.begin) < move.end
        )


def save_plan(folder: Path, group: str, instance: str, plan: Plan) -> None:
    """Put a plan in the place of the one before.

    Raises:
        OSError: it cannot be written.
    """
    line = {
        "nonce": plan.nonce,
        "member": plan.member,
        "start": plan.start,
        "end": plan.end,
        "moves": [
            [*key, *move[:3], move.batch and move.batch.to_text()]
            for key, move in sorted(plan.moves.items())
        ],
    }
    sealed = seal(_FORMAT, _VERSION, [line])
    write_atomically(_path(folder, group, instance), sealed, fsync=not plan.moves)


def load_plan(folder: Path, group: str, instance: str) -> Plan | None:
    """Read the present plan; None if there is none.

    Raises:
        CheckpointError: the file is damaged or from a newer release.
        OSError: it cannot be read.
    """
    path = _path(folder, group, instance)
    sealed = read_sealed(path, _FORMAT, _VERSION, remedy=_REMEDY)
    if sealed is None:
        return None
    try:
        return _parsed(sealed.lines[0])
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} does not hold a plan: {error!r}. {_REMEDY}") from error


def remove_plans(folder: Path, group: str) -> None:
    """Take away the plans of a group that is forgotten.

    Raises:
        OSError: one cannot be removed.
    """
    for path in folder.glob(f"{PLAN_PREFIX}{staging_hash(group)}.*"):
        path.unlink(missing_ok=True)


def _path(folder: Path, group: str, instance: str) -> Path:
    return folder / f"{PLAN_PREFIX}{staging_hash(group)}.{staging_hash(instance)}"


def _parsed(line: Mapping[str, Any]) -> Plan:
    moves = {
        TopicPartition(topic, partition): Move(
            begin, end, since, batch and LastBatch.from_text(batch)
        )
        for topic, partition, begin, end, since, batch in line["moves"]
    }
    return Plan(line["member"], line["start"], line["end"], moves, line["nonce"])
