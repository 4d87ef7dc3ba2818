"""Guards that keep writers, brokers and persons apart; and who has published meanwhile."""

from __future__ import annotations

from typing import Final

from tests.simulation.patches import Instead, Mutation

__all__ = ["GUARDS"]

_WRITERS: Final = ("appender", "appender", "query", "reader")
_BROKER: Final = ("appender", "query", "broker", "broker", "reader")

GUARDS: Final = {
    "kafkalog.lock is not taken": Mutation(
        "a writer finds Kafka's lock taken by another writer, and fails",
        {
            "store.locks.DirectoryLocks.__enter__": Instead(
                "self._wait_for(folder / LOCK_FILE, deadline, undo)"
            )
        },
        _WRITERS,
    ),
    "Kafka's lock is not taken": Mutation(
        "a broker and a writer append to one segment",
        {
            "store.locks.DirectoryLocks.__enter__": Instead(
                "self._take_from_broker(folder / LOCK, undo)"
            )
        },
        _BROKER,
    ),
}
