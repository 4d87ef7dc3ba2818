"""Guards around topics that are deleted, and around copies; and against calls that do half."""

from __future__ import annotations

from typing import Final

from tests.simulation.patches import Instead, Mutation

__all__ = ["GUARDS"]


GUARDS: Final = {
    "rows of a topic that was deleted are written": Mutation(
        "rows that were staged for a deleted topic make it again",
        {
            "commit.planning._Planner.open": Instead(
                "self._check_not_deleted(run, topics[run.topic_partition.topic])"
            )
        },
        ("owner", "reader"),
    ),
    "a write counts as whole": Mutation(
        "what the system wrote in part is committed",
        {"kafkalog.files.regular.write_all": Instead("while view:", "if view:")},
        ("query", "appender", "reader"),
        {"short": 40},
    ),
    "a read counts as whole": Mutation(
        "a batch that was read in part is taken for damage",
        {
            "kafkalog.files.local_file.fill_from": Instead(
                "while filled < len(data):", "for _ in range(1):"
            )
        },
        ("query", "appender", "reader"),
        {"short": 40},
    ),
}
