"""What the driver decides for all tasks of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kafkalog.files.paths import NodePlace
from kafkalog.files.system import system
from kafkalog.streaming.commit.commit_plan import CommitPlan

if TYPE_CHECKING:
    from kafkalog.streaming.groups.planned_commit import Planned
    from kafkalog.streaming.sink.write_options import WriteOptions

__all__ = ["WritePlan"]


@dataclass(frozen=True, slots=True)
class WritePlan:
    """What the driver has decided for all tasks of one batch; picklable.

    ``set_id`` names the set of log directories that the driver sees. ``append_time_ms`` is the one
    stamp of all records in topics with ``message.timestamp.type=LogAppendTime``. With
    ``digests_rows`` tasks hash their rows, since nothing else tells what the batch holds.
    ``planned`` is what the query's source has planned, if the sink publishes a group's positions.
    """

    options: WriteOptions
    set_id: str
    append_time_ms: int
    digests_rows: bool = False
    planned: Planned | None = None

    @classmethod
    def of(cls, options: WriteOptions) -> WritePlan:
        """Plan a batch of the present time; directories that do not exist are made.

        Raises:
            LogDirectoryError, CheckpointError: they are no set that may be written.
        """
        # not at import: a task gets a plan, and needs neither locks nor sets
        from kafkalog.streaming.store.session import ensure_set  # noqa: PLC0415

        set_id = ensure_set(options.paths, options.policy, knows_nodes=options.has_nodes)
        return cls(options, set_id, system.time_ns() // 1_000_000)

    @property
    def directories(self) -> list[Path]:
        """The log directories."""
        return [Path(path) for path in self.options.paths]

    @property
    def data_nodes(self) -> list[list[int]]:
        """Of each node that holds partitions, which of the directories are its own."""
        nodes: dict[int, list[int]] = {}
        for number, path in enumerate(self.options.paths):
            if not isinstance(path, NodePlace):
                nodes.setdefault(0, []).append(number)
            elif not path.is_witness:
                nodes.setdefault(path.node, []).append(number)
        return list(nodes.values())

    @property
    def commit_plan(self) -> CommitPlan:
        """What the commit goes by, which knows no options."""
        return CommitPlan(
            directories=tuple(self.directories),
            planned_ms=self.append_time_ms,
            policy=self.options.policy,
            topics=self.options.topic_policy,
            expiration_ms=self.options.transactional_id_expiration_ms,
            allows_unknown=self.options.allow_unknown_checkpoint,
            has_nodes=self.options.has_nodes,
            acks_all=self.options.acks in {None, "all", "-1"},
        )
