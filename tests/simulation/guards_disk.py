"""Guards against a loss of power, and against processes that end amid what they do."""

from __future__ import annotations

from typing import Final

from tests.simulation.patches import Instead, Mutation

__all__ = ["GUARDS"]

_WHO: Final = ("query", "appender", "reader")
_POWER: Final = {"power": 400}
_KILLS: Final = {"kill": 300, "torn": 400}
_OS: Final = {"flush": "os"}
_SMALL: Final = {"segment.bytes": "200"}

GUARDS: Final = {
    "the folder of a state that was replaced is not synced": Mutation(
        "a loss of power takes a commit back that was acknowledged",
        {"store.publishing._sync": Instead("fsync_directory(folder)")},
        _WHO,
        _POWER,
        _OS,
    ),
    "folders of files that are replaced are not synced": Mutation(
        "after a loss of power files are older than what they vouch for",
        {"kafkalog.files.atomic.publish": Instead("fsync_directory(path.parent)")},
        _WHO,
        _POWER,
    ),
    "intents are not made durable": Mutation(
        "a loss of power tears them, or leaves bytes that nobody can tell",
        {
            "store.nodes.Node.declare": Instead(
                "write_atomically(folder / INTENT_FILE, content)",
                "write_atomically(folder / INTENT_FILE, content, fsync=False)",
            )
        },
        _WHO,
        _POWER,
    ),
    "folders of new segments are not synced": Mutation(
        "a loss of power takes segments with acknowledged records",
        {"commit.append.PartitionAppend.sync": Instead("fsync_directory(self.plan.directory)")},
        _WHO,
        _POWER,
        _SMALL,
    ),
    "a temporary file is written on": Mutation(
        "after a kill nobody can replace the file",
        {"kafkalog.files.atomic.prepare": Instead("temporary.unlink(missing_ok=True)")},
        _WHO,
        _KILLS,
    ),
}
