"""Guards that tell which batch is written, and where: ids, sequences, ends, digests."""

from __future__ import annotations

from typing import Final

from tests.simulation.patches import Instead, Mutation

__all__ = ["GUARDS"]

_KILLS: Final = {"kill": 300, "torn": 400}
_QUERIES: Final = ("query", "query", "reader")
_ONE: Final = ("query", "appender", "reader")
_TWICE: Final = "a batch that comes again is there twice"

GUARDS: Final = {
    "a batch that comes again is not known": Mutation(
        _TWICE,
        {
            "store.identity.judge": Instead(
                "return _judge_last_again(identity, last)", "return Verdict.APPEND"
            )
        },
        _QUERIES,
        _KILLS,
    ),
    "a run that wakes up late replaces the present one": Mutation(
        "a driver that wakes up late pushes out the one that has replaced it",
        {"commit.committer.Committer._skip": Instead(" and not is_late", "")},
        _QUERIES,
        _KILLS,
    ),
    "a version that comes again is new": Mutation(
        _TWICE,
        {
            "commit.versions.new_topics_of": Instead(
                "if last is None or identity.batch_id > last.batch_id:",
                "if last is None or identity.batch_id >= last.batch_id:",
            )
        },
        ("versioned", "batch", "reader"),
        _KILLS,
    ),
    "intents that are published count as unfinished": Mutation(
        "what is committed is cut off",
        {"store.log_set.LogSet.unfinished": Instead("if each.sequence > self.state.sequence", "")},
        _ONE,
        _KILLS,
    ),
    "a log that ends too early is appended to": Mutation(
        "offsets that readers have seen get other records",
        {"commit.foreign_log.ForeignLog._check_end": Instead("self.check_has_all(end)")},
        _ONE,
        {"old": 60},
        drawn={"directories": 2},
    ),
}
