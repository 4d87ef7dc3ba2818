"""What a query's sink commits beside its rows: how far the query's source has come in its group.

The source has joined the group in another process, and has left its plan in a file
(:mod:`~.plan_files`). The sink publishes the positions at the end of that plan by the rename that
publishes the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafkalog.errors import FencedMemberError, OptionError
from kafkalog.files.system import system
from kafkalog.streaming.groups.group_commits import Fence, GroupCommits
from kafkalog.streaming.groups.plan_files import Plan, load_plan

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from kafkalog.streaming.commit.riders import Rider
    from kafkalog.streaming.store.log_set import LogSet
    from kafkalog.streaming.store.policy import SetPolicy

__all__ = ["PlanStands", "Planned"]


@dataclass(frozen=True)
class PlanStands:
    """A condition of a commit: the member has no newer plan, and may commit this one."""

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
        commits = GroupCommits(directories, self.group, policy)
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
        positions = {key: move.end for key, move in moves.items()}
        riders = [commits.rider(positions, now_ms)] if positions else []
        fence = commits.fence(plan.member, moves)
        return PlanStands(folder, self.instance, plan, fence), riders


def _check_present(folder: Path, group: str, instance: str, nonce: str | None) -> Plan:
    plan = load_plan(folder, group, instance)
    if plan is None or plan.nonce != nonce:
        raise FencedMemberError(
            f"rows of instance {instance!r} of group {group!r} were read by a plan that was "
            "replaced since: nothing was written. The query was started elsewhere, or another one "
            "has the same kafka.group.instance.id"
        )
    return plan
