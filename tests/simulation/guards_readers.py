"""Guards of readers: where a log ends and starts, whose it is, and what is missing."""

from __future__ import annotations

from typing import Final

from tests.simulation.patches import Instead, Mutation

__all__ = ["GUARDS"]

_KILLS: Final = {"kill": 300, "torn": 400}
_BROKER: Final = ("appender", "query", "broker", "broker", "reader", "follower")

GUARDS: Final = {
    "readers go by the commit state alone": Mutation(
        "readers lack what a broker has appended",
        {
            "store.ends.rule.committed_end": Instead(
                "return ours if brokers is None else max(ours, brokers)", "return ours"
            )
        },
        _BROKER,
        _KILLS,
    ),
}
