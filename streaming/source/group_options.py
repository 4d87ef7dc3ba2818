"""The options that say what a query has to do with a consumer group."""

from __future__ import annotations

from dataclasses import dataclass

from kafkalog.errors import OptionError
from kafkalog.streaming.option_kinds import BOOLEAN, PATHS, TEXT, Kind
from kafkalog.streaming.options import option
from kafkalog.streaming.source.range_options import RangeOptions

__all__ = ["GroupOptions"]


def _one_folder(text: str) -> str:
    (folder,) = PATHS.read(text)
    return folder


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions(RangeOptions):
    """How a query takes part in a group, and what it keeps of itself."""

    state_location: str | None = option(
        "stateLocation",
        Kind("a local folder (a path or file: URI)", _one_folder),
        default=None,
        doc="a folder of this streaming query alone, beside its checkpoint. There it keeps the "
        "ids of the topics that it reads and the last batches below its offsets, so that it "
        "notices a topic that was recreated, and a log that was cut and written again, while "
        "the query was stopped; and the instance id of a query with joinGroup that is given none",
    )
    group_id: str | None = option(
        "kafka.group.id",
        TEXT,
        default=None,
        doc="the consumer group that joinGroup joins, or whose positions commitGroupOffsets "
        "writes. No effect without one of these options",
    )
    group_instance_id: str | None = option(
        "kafka.group.instance.id",
        TEXT,
        default=None,
        doc="with joinGroup: the query's name in its group, which no other member has. Started "
        "again within its session time-out, it has its partitions at once",
    )
    join_group: bool = option(
        "joinGroup",
        BOOLEAN,
        default=False,
        doc="let a streaming query be a member of kafka.group.id: the members share the topics. "
        "It needs kafka.group.instance.id or stateLocation. Then it also takes a Consumer's "
        "options of the group, see [below](#a-consumer); kafka.max.poll.interval.ms is without "
        "limit, and kafka.rebalance.timeout.ms 5 minutes, unless given",
    )
    commit_group_offsets: bool = option(
        "commitGroupOffsets",
        BOOLEAN,
        default=False,
        doc="write the stream's positions into __consumer_offsets, as those of kafka.group.id, "
        "each time that Spark confirms a micro-batch. Only in log directories of the sink",
    )

    def check_group(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            OptionError: such as ``joinGroup`` without a group.
        """
        if self.commit_group_offsets and self.group_id is None:
            raise OptionError("option 'commitGroupOffsets' needs kafka.group.id, the group's name")
        if not self.join_group:
            return
        if self.group_id is None:
            raise OptionError("option 'joinGroup' needs kafka.group.id, the group's name")
        if self.group_instance_id is None and self.state_location is None:
            raise OptionError(
                "option 'joinGroup' needs kafka.group.instance.id, a name that no other member of "
                "the group has; or stateLocation, where the query keeps one. A source knows "
                "neither its query nor its checkpoint"
            )
        self._refuse_with_group()

    def refuse_outside_streams(self) -> None:
        """Refuse what only a streaming query of Spark can do.

        Raises:
            OptionError: ``joinGroup`` or ``commitGroupOffsets`` is given.
        """
        if self.join_group:
            raise OptionError(
                "option 'joinGroup' is for streaming queries of Spark; a program joins by "
                "kafkalog.Consumer"
            )
        if self.commit_group_offsets:
            raise OptionError("option 'commitGroupOffsets' is for streaming queries of Spark")

    def _refuse_with_group(self) -> None:
        given = {
            "assign": (self.assign, "the group decides who reads which partition; use subscribe"),
            "commitGroupOffsets": (self.commit_group_offsets, "a member commits its positions"),
            "stopAtOffsets": (self.stop_at_offsets, "a group has no end"),
            "endingTimestamp": (self.ending_timestamp, "a group has no end"),
        }
        for name, (value, reason) in given.items():
            if value not in {None, False}:
                raise OptionError(f"option {name!r} cannot be used with joinGroup: {reason}")
        start = (self.starting_offsets or "latest").strip().lower()
        if start not in {"earliest", "latest"}:
            raise OptionError(
                f"option 'startingOffsets' is {self.starting_offsets!r}, but a group begins at "
                "earliest or latest"
            )
