"""Histories over a set of several nodes, drawn from a seed that has ``/nodes/`` in its name."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from tests.simulation.layouts import Layout
from tests.simulation.plans import Plan
from tests.simulation.scheduler import Rates

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ALL_REPLICAS_FAULTS", "NODES", "NODE_FAULTS", "draw_nodes"]

NODES: Final = "/nodes/"
"""In the name of a history over several nodes."""

_LAYOUTS: Final = (
    Layout((1, 1, 1)),
    Layout((1, 1, 1)),
    Layout((2, 1, 2)),
    Layout((1, 1, 1), has_witness=True),
    Layout((2, 2, 1), has_witness=True),
    Layout((1, 1)),
    Layout((1, 1, 1, 1, 1)),
)
_WRITERS: Final = ("appender", "versioned", "query", "batch", "pair")
_OTHERS: Final = {
    "reader": 6,
    "follower": 6,
    "inspector": 6,
    "operator": 3,
    "elector": 3,
    "deleter": 1,
    "janitor": 1,
    "cleaner": 3,
}
_OF_PROCESSES: Final = ("kill", "torn", "interrupt", "pause", "jump", "short")
_OF_ONE: Final = ("error", "vanish", "empty", "old", "slow")
_OF_TWO: Final = ("error two", "vanish two", "empty two")
ALL_REPLICAS_FAULTS: Final = frozenset(_OF_TWO)
"""What may happen to all replicas of a partition at once."""
NODE_FAULTS: Final = frozenset({*_OF_ONE, *_OF_TWO, "lost", "node power"})
"""What happens to nodes."""


def draw_nodes(seed: str) -> Plan:
    """Draw a plan."""
    chance = random.Random(seed)
    layout = chance.choice(_LAYOUTS)
    names = chance.choices(_WRITERS, k=chance.choice((1, 2, 2)))
    names += chance.choices([*_OTHERS], [*_OTHERS.values()], k=chance.choice((2, 2, 3)))
    actors = {f"{name}{n}": (name, chance.randrange(4, 10)) for n, name in enumerate(names)}
    faults, is_one = _faults(chance, layout)
    partitions = chance.choice((1, 2, 3))
    options = _options(chance, layout, faults)
    if "cleaner" in names:
        options |= {"cleanup.policy": "compact,delete", "segment.bytes": "200"}
    if is_one and min(layout.with_data, int(options.get("replication.factor", "3"))) < 3:
        options.pop("min.insync.replicas", None)  # the others have to be enough
    return Plan(
        seed,
        actors,
        directories=sum(layout.directories),
        partitions=partitions,
        options=options,
        rates=Rates(chance.choice((5, 20, 60)), faults),
        extras=_extras(chance, names, faults, is_one=is_one),
        nodes=layout,
    )


def _faults(chance: random.Random, layout: Layout) -> tuple[dict[str, int], bool]:
    """Draw what goes wrong, after how many steps; and whether all of it is one node's."""
    every = chance.choice((600, 2500, 8000))
    faults = {
        what: every * chance.choice((1, 1, 4)) for what in _OF_PROCESSES if chance.random() < 0.3
    }
    is_one = chance.random() < 0.4 and len(layout.directories) > 2
    for what in (*_OF_ONE, *(() if is_one else _OF_TWO)):
        if chance.random() < 0.35:
            faults[what] = every * chance.choice((2, 4))
    drawn = chance.random()
    if drawn < 0.15:
        faults["power"] = every * 10
    elif drawn < 0.3:
        faults["node power"] = every * 3
    elif drawn < 0.45:
        faults["lost"] = every * 4
    if len(layout.directories) == 2:  # replicas.md: what is older than a majority had is refused
        faults.pop("old", None)
    return faults, is_one


def _options(chance: random.Random, layout: Layout, faults: Mapping[str, int]) -> dict[str, str]:
    # replicas.md, Limits: with flush=os not all folders are looked at after a loss of power
    may_leave = not faults.keys() & {"power", "node power"}
    flush = chance.choice(("commit", "os", "mixed")) if may_leave else "commit"
    options = {"flush": flush, "max.block.ms": "60000"}
    if chance.random() < 0.5:
        options["segment.bytes"] = str(chance.choice((200, 600, 2000)))
    if chance.random() < 0.3:
        options["index.interval.bytes"] = "0"
    if layout.with_data > 1 and chance.random() < 0.5:
        options["min.insync.replicas"] = "2"
    if layout.with_data > 3 and chance.random() < 0.5:
        options["replication.factor"] = "2"
    if chance.random() < 0.2:
        options["kafka.acks"] = "1"
    return options


def _extras(
    chance: random.Random, names: list[str], faults: Mapping[str, int], *, is_one: bool
) -> frozenset[str]:
    may_be = {
        "empty batches": "query" in names,
        "few keys": "cleaner" in names,
        "posix locks": "lost" not in faults,
        "slow listings": True,
    }
    found = {name for name, may in may_be.items() if may and chance.random() < 0.25}
    return frozenset(found | ({"one bad node"} if is_one else set()))
