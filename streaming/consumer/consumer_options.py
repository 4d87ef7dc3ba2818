"""The options of a member: of its group by Kafka's names, and the source's that fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from kafkalog.errors import OptionError
from kafkalog.files.system import system
from kafkalog.streaming.groups.membership import GroupMember
from kafkalog.streaming.groups.rebalance import MemberSettings
from kafkalog.streaming.options.declaring import (
    Options,
    Rules,
    instead_of,
    option,
    options_of,
    warn_ignored,
)
from kafkalog.streaming.options.kinds import (
    BOOLEAN,
    DURATION_MS,
    TEXT,
    WRITABLE_PATHS,
    Kind,
    choice,
    duration_ms,
)
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.options.store_options import StoreOptions
from kafkalog.streaming.source.arguments import joined, texts, topic_names
from kafkalog.streaming.store.policy import SetPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeAlias

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.groups.group_commits import GroupCommits
    from kafkalog.streaming.options.declaring import Option
    from kafkalog.streaming.source.arguments import OptionValues, Paths

    Beginnings: TypeAlias = Callable[
        [Sequence[TopicPartition], Sequence[TopicPartition]], Mapping[TopicPartition, int]
    ]

__all__ = ["ConsumerOptions", "check_callbacks", "options_of_source", "parse_options"]

_ARGUMENTS: Final = frozenset({"path", "subscribe", "group.id"})

_OF_SOURCE: Final = frozenset(
    {
        *("includeheaders", "failondataloss", "kafka.isolation.level", "ontimestampoverflow"),
        *("oncorruptrecord", "startingoffsets", "startingtimestamp"),
        *("startingoffsetsbytimestampstrategy", "splitbytes", "maxdecompressedbytes"),
        *("fetchoffset.numretries", "fetchoffset.retryintervalms"),
    }
) | {each.name.lower() for each in options_of(StoreOptions)}
"""What of the source's options a Consumer takes, those of a store too."""


_LONGEST_NAME: Final = 249
"""In bytes. As Kafka's for ``group.instance.id``: a name that fits nowhere stops a whole group."""


def _read_name(text: str) -> str:
    name = TEXT.read(text)
    if len(name.encode()) > _LONGEST_NAME:
        raise ValueError
    return name


_NAME: Final = Kind(f"a text of 1 to {_LONGEST_NAME} bytes in UTF-8", _read_name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions(Options):
    """How a member takes part in its group."""

    RULES: ClassVar[Rules] = Rules()

    paths: tuple[str, ...] = option(
        "path",
        WRITABLE_PATHS,
        doc="log directories, or the URI of a log in a bucket",
    )
    session_timeout_ms: int = option(
        "kafka.session.timeout.ms",
        duration_ms(minimum=1, maximum=2**31 - 1),
        default=45_000,
        unit="ms",
        doc="a member that is silent for so long is removed",
    )
    heartbeat_interval_ms: int = option(
        "kafka.heartbeat.interval.ms",
        duration_ms(minimum=1, maximum=2**31 - 1),
        default=3_000,
        unit="ms",
        doc="how often a member says that it lives; less than the session time-out",
    )
    max_poll_interval_ms: int = option(
        "kafka.max.poll.interval.ms",
        duration_ms(minimum=1, maximum=2**31 - 1),
        default=300_000,
        unit="ms",
        doc="a member that takes longer between two polls leaves",
    )
    rebalance_timeout_ms: int | None = option(
        "kafka.rebalance.timeout.ms",
        duration_ms(minimum=1, maximum=2**31 - 1),
        default=None,
        unit="ms",
        doc="how long a member may take to give partitions up. Default: max.poll.interval.ms",
    )
    strategy: str = option(
        "kafka.partition.assignment.strategy",
        choice("range", "roundrobin", "sticky", "cooperative-sticky"),
        default="range",
        doc="the same for all members of a group",
    )
    instance: str | None = option(
        "kafka.group.instance.id",
        _NAME,
        default=None,
        doc="a static member: restarted within its session time-out, it has its partitions at once",
    )
    client_id: str = option(
        "kafka.client.id", _NAME, default="consumer", doc="what a member's id begins with"
    )
    max_block_ms: int = option(
        "max.block.ms",
        DURATION_MS,
        default=60_000,
        unit="ms",
        kafka=True,
        doc="how long a commit waits for another writer of the same directories",
    )
    flush: str = option(
        "flush",
        choice("commit", "os"),
        default="commit",
        doc="commit: positions are on the disk before they count. os: without fsync",
    )
    allow_broker_directory: bool = option(
        "allowBrokerDirectory",
        BOOLEAN,
        default=False,
        doc="join also where a broker lived",
    )

    def __post_init__(self) -> None:
        """Refuse a heartbeat that comes too late."""
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise OptionError(
                f"kafka.heartbeat.interval.ms ({self.heartbeat_interval_ms}) must be less than "
                f"kafka.session.timeout.ms ({self.session_timeout_ms}): a third of it is usual"
            )

    @property
    def policy(self) -> SetPolicy:
        """How the log directories may be changed."""
        return SetPolicy(
            allows_broker=self.allow_broker_directory,
            broker_advice="Once it has stopped, run `kafkalog broker takeover`. Then the option "
            "allowBrokerDirectory=true permits it",
            wait_ms=self.max_block_ms,
            is_durable=self.flush == "commit",
            may_grow=False,
        )

    def new_member(
        self,
        commits: GroupCommits,
        topics: frozenset[str],
        *,
        instance: str | None,
        beginnings_of: Beginnings,
    ) -> GroupMember:
        """Make a member of a group, which has not joined yet; see :class:`.GroupMember`."""
        settings = MemberSettings(
            topics,
            instance,
            self.client_id,
            system.host_name(),
            self.session_timeout_ms,
            self.longest_rebalance_ms,
        )
        return GroupMember(
            commits,
            settings,
            self.strategy,
            beginnings_of=beginnings_of,
            heartbeat_interval_ms=self.heartbeat_interval_ms,
            max_poll_interval_ms=self.max_poll_interval_ms,
        )

    @property
    def longest_rebalance_ms(self) -> int:
        """How long a member may take to give partitions up."""
        return self.rebalance_timeout_ms or self.max_poll_interval_ms


def options_of_source() -> list[Option]:
    """List the source's options that a Consumer takes, in the order of declaration."""
    return [each for each in options_of(ReadOptions) if each.name.lower() in _OF_SOURCE]


def parse_options(
    path: Paths, topics: str | Sequence[str], options: OptionValues
) -> tuple[ConsumerOptions, ReadOptions]:
    """Check what a Consumer is given.

    Raises:
        OptionError: options that cannot be used.
    """
    known = {name for each in options_of(ConsumerOptions) for name in each.spellings()}
    of_source = {name for each in options_of(ReadOptions) for name in each.spellings()}
    where = joined(path)
    group, reading = {"path": where}, {"path": where}
    for name, text in texts(options, _ARGUMENTS).items():
        lowered = name.lower()
        if lowered in known:
            group[name] = text
        elif lowered in of_source and lowered not in _OF_SOURCE:
            raise OptionError(f"option {name!r} is for queries of Spark, and not for a Consumer")
        elif lowered not in of_source and (instead := _instead(lowered)):
            raise OptionError(f"option {name!r} is none of a Consumer's: {instead}")
        else:
            reading[name] = text
    read = ReadOptions.parse({**reading, "subscribe": ",".join(topic_names(topics))})
    if (read.starting_offsets or "latest").lower() not in {"earliest", "latest"}:
        raise OptionError(
            f"option 'startingOffsets' is {read.starting_offsets!r}, but a group begins at earliest"
            " or latest; Consumer.seek goes to an offset"
        )
    warn_ignored(read.ignored)
    return ConsumerOptions.parse(group), read


def _instead(name: str) -> str | None:
    """Say what to use for a setting of Kafka's clients, unless it is accepted without effect."""
    rules = ReadOptions.RULES
    if rules.ignores(name) and name not in {each.lower() for each in rules.refused}:
        return None
    return instead_of(name, asked="consumer")


def check_callbacks(**callbacks: object) -> None:
    """Refuse what cannot be called when partitions come and go; None stands for no call.

    Raises:
        OptionError: naming the argument.
    """
    for name, given in callbacks.items():
        if given is not None and not callable(given):
            raise OptionError(f"{name} is {given!r}, expected a function that takes partitions")
