"""Commit a query's group positions together with its rows."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from kafkalog.checkpoints.sealed_file import read_sealed, seal
from kafkalog.errors import CheckpointError, FencedMemberError, OptionError
from kafkalog.files.atomic import write_atomically
from kafkalog.files.system import remembered, system
from kafkalog.model import TopicPartition
from kafkalog.streaming.groups.group_commits import Fence, GroupCommits, ReadRange
from kafkalog.streaming.groups.group_log import GroupLog
from kafkalog.streaming.groups.member_files import PLAN_PREFIX
from kafkalog.streaming.log.history import LastBatch
from kafkalog.streaming.store.identity import staging_hash

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from kafkalog.streaming.commit.staging.staged_files import AttachedRecords
    from kafkalog.streaming.store.log_set import LogSet
    from kafkalog.streaming.store.policy import SetPolicy


__all__ = ["Plan", "PlanStands", "Planned", "load_plan", "remove_plans", "save_plan"]


# ----------------------------------------------------------------------------------------------
# What a query of a group reads in its present micro-batch: written by its source, for its sink.
#
# Spark lets a source and a sink know nothing of each other. So they meet here: by a file beside
# those of the group's members, one for each ``kafka.group.instance.id``. The source replaces it
# in each micro-batch, with a nonce. The sink's writer, which Spark makes after that, gives the
# nonce to its tasks; it comes back with their messages. Rows whose nonce is not that of the file
# are of a batch that was replaced, and are not committed.
#
# The file is sealed (:mod:`kafkalog.checkpoints.sealed_file`). Its one line is
#
#     {"nonce":"0f…","member":"q-3c…","start":{"in":{"0":5}},"end":{"in":{"0":9}},
#      "moves":[["in",0,5,9,7]]}
#
# where a move has a topic, a partition, the offsets ``[begin, end)`` that the batch reads, and
# the generation since which the member has the partition. It need not survive a loss of power: no
# member does, and a batch that comes again is planned again. But one that reads nothing of the
# group is not, so the plan of it is made durable.


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
    moves: Mapping[TopicPartition, ReadRange]
    nonce: str

    @classmethod
    def new(
        cls,
        member: str,
        start: Mapping[str, Mapping[str, int]],
        end: Mapping[str, Mapping[str, int]],
        moves: Mapping[TopicPartition, ReadRange],
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
        TopicPartition(topic, partition): ReadRange(
            begin, end, since, batch and LastBatch.from_text(batch)
        )
        for topic, partition, begin, end, since, batch in line["moves"]
    }
    return Plan(line["member"], line["start"], line["end"], moves, line["nonce"])


# ----------------------------------------------------------------------------------------------
# What a query's sink commits beside its rows: how far the query's source has come in its group.
#
# The source has joined the group in another process, and has left its plan in a file, as above. The
# sink publishes the positions at the end of that plan by the rename that publishes the rows.


_GROUPS_KEPT: Final = 8


class _ReadGroups:
    """What this process has read of groups: it commits one micro-batch after the other."""

    def __init__(self) -> None:
        self._logs: dict[tuple[tuple[Path, ...], str], GroupLog] = {}

    def log(self, directories: Sequence[Path], group: str) -> GroupLog:
        """Return what was read of a group; nothing of one that is new here."""
        key = tuple(directories), group
        self._logs[key] = found = self._logs.pop(key, None) or GroupLog(group)
        while len(self._logs) > _GROUPS_KEPT:
            self._logs.pop(next(iter(self._logs)))
        return found


@dataclass(frozen=True)
class PlanStands:
    """A condition of a commit: the member has no newer plan, and may commit this one.

    A batch that reads nothing of the group commits nothing of it, and needs no member.
    """

    folder: Path
    instance: str
    plan: Plan
    fence: Fence

    def __call__(self, log_set: LogSet) -> None:
        """Look.

        Raises:
            FencedMemberError: the plan was replaced, or as :class:`Fence`.
        """
        _check_present(self.folder, self.fence.group, self.instance, self.plan.nonce)
        if self.plan.moves:
            self.fence(log_set)


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan of a micro-batch as the sink's writer found it: plain values, for tasks too."""

    group: str
    instance: str
    nonce: str
    digest: str
    """Tells the batch by its offsets."""

    @classmethod
    def find(
        cls, directories: Sequence[Path], group: str, instance: str, policy: SetPolicy
    ) -> Planned:
        """Find the plan of the query's source.

        Raises:
            OptionError: there is none.
            KafkaLogError, OSError: it cannot be read.
        """
        folder = GroupCommits(directories, group, policy).folder()
        plan = load_plan(folder, group, instance)
        if plan is None:
            raise OptionError(
                f"options 'kafka.group.id' ({group}) and 'kafka.group.instance.id' ({instance}) "
                f"let the sink publish the group's positions in {folder}, but no query has joined "
                "the group there under this instance id: give its source the same two options, "
                "joinGroup=true and the same log directories; or leave them out here (at least "
                "once)"
            )
        return cls(group, instance, plan.nonce, plan.digest)

    def attach(
        self,
        directories: Sequence[Path],
        policy: SetPolicy,
        nonces: Collection[str | None],
        ends: Sequence[object] | None,
    ) -> tuple[PlanStands, Sequence[AttachedRecords]]:
        """Return the condition and the attached records of the commit of the batch's rows.

        Args:
            directories: of the set.
            policy: how they may be changed.
            nonces: what came back with the messages of the tasks.
            ends: where the query's checkpoint says that its sources end in this batch; None if it
                cannot be read.

        Raises:
            FencedMemberError: the rows are those of another plan.
            KafkaLogError, OSError: the plan cannot be read.
        """
        log = remembered(_ReadGroups).log(directories, self.group)
        commits = GroupCommits(directories, self.group, policy, log)
        folder = commits.folder()
        for nonce in {self.nonce, *nonces}:
            plan = _check_present(folder, self.group, self.instance, nonce)
        if ends is not None and plan.end not in ends:
            raise FencedMemberError(
                f"instance {self.instance!r} of group {self.group!r} has planned up to {plan.end}, "
                f"and the query's checkpoint has {list(ends)} for this batch: nothing was written. "
                "Another query has this kafka.group.instance.id, or its checkpoint is an older copy"
            )
        moves = plan.moves
        now_ms = system.time_ns() // 1_000_000
        attached_records = [commits.attach(moves, now_ms)] if moves else []
        fence = commits.fence(plan.member, moves)
        return PlanStands(folder, self.instance, plan, fence), attached_records

    def skipped(self, directories: Sequence[Path], policy: SetPolicy) -> None:
        """Write down that the batch was published before: its plan moves the group nowhere.

        What it read then is what the group was set back to meanwhile. That is read again, in
        batches that follow.

        Raises:
            KafkaLogError, OSError: the plan cannot be read or written.
        """
        folder = GroupCommits(directories, self.group, policy).folder()
        plan = load_plan(folder, self.group, self.instance)
        if plan is not None and plan.nonce == self.nonce and plan.moves:
            save_plan(folder, self.group, self.instance, replace(plan, moves={}))


def _check_present(folder: Path, group: str, instance: str, nonce: str | None) -> Plan:
    plan = load_plan(folder, group, instance)
    if plan is None or plan.nonce != nonce:
        raise FencedMemberError(
            f"rows of instance {instance!r} of group {group!r} were read by a plan that was "
            "replaced since: nothing was written. The query was started elsewhere, or another one "
            "has the same kafka.group.instance.id"
        )
    return plan
