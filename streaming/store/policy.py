"""What a writer may do to a set, as plain values decided above the store.

The options of the sink and of the command line become these values. Nothing below parses options.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["BY_FLAG", "BY_OPTION", "LAG_MS", "WAIT_MS", "SetPolicy", "TopicPolicy"]

BY_FLAG: Final = "--allow-broker-directory permits it, allows_broker=True from Python"
"""How a person permits a command to write where a broker lived."""

BY_OPTION: Final = (
    "Once it has stopped, run `kafkalog broker takeover`. Then the option "
    "allowBrokerDirectory=true permits it (at the command line --set allowBrokerDirectory=true)"
)
"""How a writer with options permits it."""

WAIT_MS: Final = 60_000
"""How long a writer waits for another one, unless it is told."""

LAG_MS: Final = 30_000
"""How long a node may stall; Kafka's default of ``replica.lag.time.max.ms``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetPolicy:
    """How a set may be changed.

    ``allows_broker``: a broker may have lived in the directories. ``wait_ms``: how long to wait for
    another writer. ``is_durable``: what is committed is on the disk by then; if not, the system
    writes records when it likes. ``may_grow``: a directory that is no member yet is taken into the
    set, as writers do; who only looks after a set refuses it, since a typing error is likelier.
    ``accepts_handed_over``: a replicated set may be in the hands of a cluster, which has stopped.
    ``lag_ms``: how long one of several nodes may stall before the others continue without it; None
    for ever. ``rebalances``: preferred leaders are elected once they are in sync again.
    ``broker_advice``: what lets ``allows_broker`` be true, in the words of whoever writes.
    """

    allows_broker: bool = False
    wait_ms: int = WAIT_MS
    is_durable: bool = True
    may_grow: bool = True
    accepts_handed_over: bool = False
    lag_ms: int | None = None
    rebalances: bool = False
    broker_advice: str = "Name a directory that no broker had"

    @classmethod
    def of_upkeep(cls, wait_ms: int) -> Self:
        """Return the policy of who looks after a set that is there, whoever had it last."""
        return cls(allows_broker=True, wait_ms=wait_ms, may_grow=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPolicy:
    """Which topics may be written to, and what new ones look like.

    ``allows_internal``: also those of Kafka's own. ``partitions``: how many a new topic gets, None
    for one; ``settings``: by Kafka's names, for topics that exist too. ``most_new``: how many
    topics a batch may make, None for any number. ``replication_factor``: how many replicas a new
    topic has on a set of several nodes, None for up to three.
    """

    allows_internal: bool = False
    partitions: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    most_new: int | None = None
    replication_factor: int | None = None
