"""What a query's sink commits beside its rows: how far the query's source has come in its group.

The source has joined the group in another process, and has left its plan in a file
(:mod:`~.plan_files`). The sink publishes the positions at the end of that plan by the rename that
publishes the rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from kafkalog.errors import FencedMemberError, OptionError
from kafkalog.files.system import remembered, system
from kafkalog.streaming.groups.group_commits import Fence, GroupCommits
from kafkalog.streaming.groups.group_log import GroupLog
from kafkalog.streaming.groups.plan_files import Plan, load_plan, save_plan

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from kafkalog.streaming.commit.riders import Rider
    from kafkalog.streaming.store.log_set import LogSet
    from kafkalog.streaming.store.policy import SetPolicy

__all__ = ["PlanStands", "Planned"]


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

    def ride(
        self,
        directories: Sequence[Path],
        policy: SetPolicy,
        nonces: Collection[str | None],
        ends: Sequence[object] | None,
    ) -> tuple[PlanStands, Sequence[Rider]]:
        """Return the condition and the riders of the commit of the batch's rows.

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
        riders = [commits.rider(moves, now_ms)] if moves else []
        fence = commits.fence(plan.member, moves)
        return PlanStands(folder, self.instance, plan, fence), riders

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
