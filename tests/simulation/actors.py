"""All who act, by the name of their kind: each is a function that runs in its own process.

An actor calls kafkalog as a program would, tells the history what it was told, and begins again as
a new process when it was killed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.simulation import (
    archivists,
    brokers,
    joined_queries,
    members,
    node_actors,
    operators,
    readers,
    topic_owners,
    writers,
)

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping

    from tests.simulation.scene import Scene

__all__ = ["ACTORS", "DELETING"]

ACTORS: Final[Mapping[str, Callable[[Scene, str, int, random.Random], None]]] = {
    "appender": writers.appender,
    "versioned": writers.versioned,
    "query": writers.query,
    "batch": writers.batch,
    "pair": writers.pair,
    "reader": readers.reader,
    "follower": readers.follower,
    "operator": operators.operator,
    "deleter": operators.deleter,
    "janitor": operators.janitor,
    "cleaner": operators.cleaner,
    "giver": operators.giver,
    "archivist": archivists.archivist,
    "broker": brokers.broker,
    "mover": brokers.mover,
    "owner": topic_owners.owner,
    "member": members.member,
    "joined": joined_queries.joined,
    "copier": members.copier,
    "watcher": members.watcher,
    "setter": members.setter,
    "inspector": node_actors.inspector,
    "elector": node_actors.elector,
}

DELETING: Final = frozenset({"deleter", "janitor"})
"""Those who delete records on purpose."""
