"""Where rows go: on which nodes they lie, and what is done about a node that fails."""

from __future__ import annotations

from dataclasses import dataclass

from kafkalog.files.local_paths import NodePlace
from kafkalog.streaming.option_kinds import BOOLEAN, PATHS, choice, duration_ms, integer
from kafkalog.streaming.options import Options, option
from kafkalog.streaming.store.policy import LAG_MS

__all__ = ["ReplicaOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaOptions(Options):
    """A path, and what counts where it names several nodes."""

    paths: tuple[str, ...] = option("path", PATHS, doc="the log directories to write to")
    replication_factor: int | None = option(
        *("replication.factor", integer(1, 1000)),
        default=None,
        doc="how many nodes get a partition of a new topic. Default: all, at most 3",
    )
    acks: str | None = option(
        *("acks", choice("all", "-1", "1", "0")),
        default=None,
        kafka=True,
        doc="with several nodes. all (default) and -1: a batch fails unless min.insync.replicas "
        "replicas have it. 1 and 0 do not ask for that",
    )
    replica_lag_time_max_ms: int = option(
        *("replica.lag.time.max.ms", duration_ms(minimum=1)),
        default=LAG_MS,
        unit="ms",
        doc="with several nodes: a node on which a call takes longer leaves the in-sync sets, and "
        "is left alone until the call returns",
    )
    auto_leader_rebalance_enable: bool = option(
        *("auto.leader.rebalance.enable", BOOLEAN),
        default=False,
        doc="with several nodes: let the first of a partition's replicas lead again, in the commit "
        "in which it is in sync again",
    )

    @property
    def has_nodes(self) -> bool:
        """Whether the path names several nodes."""
        return isinstance(self.paths[0], NodePlace)
