"""Guards without which a commit is no commit: locks, intents, order, durability, visibility."""

from __future__ import annotations

import inspect
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.patches import Mutation

from kafkalog.files.shield import shielded
from kafkalog.streaming.commit.committer import Committer
from kafkalog.streaming.operate.periodic_retention import _round
from kafkalog.streaming.store.identity import Verdict, judge

if TYPE_CHECKING:
    from kafkalog.files.shield import Shielded

__all__ = ["GUARDS"]


def _nothing(*_: object, **__: object) -> None:
    """Forget a step."""


def _always(value: object) -> Any:
    return lambda *_, **__: value


def _unchecked_run(identity: Any, last: Any, **options: bool) -> Verdict:
    if last is not None and identity.run_id in last.fenced:
        return Verdict.APPEND
    return judge(identity, last, **options)


def _unshielded(self: Shielded[Any]) -> Any:
    return self._action()


_apply = Committer._apply
_publish = Committer._publish


def _later(self: Committer, *given: Any) -> None:
    self.__dict__["late"] = given


def _published_first(self: Committer, *arguments: Any, **named: Any) -> None:
    _publish(self, *arguments, **named)
    given = self.__dict__.pop("late", None)
    if given is not None:
        _apply(self, *given)


def _intent_is_lost(_: Committer, log_set: Any) -> None:
    log_set.node.withdraw(durable=False)


_KILLS: Final = {"kill": 300, "torn": 400}

GUARDS: Final = {
    "no locks": Mutation(
        "two commits give the same offsets",
        {
            "store.locks._try_lock": _always(True),
            "store.locks._Mutexes.of": lambda *_: Lock(),
        },
        ("appender", "appender", "query", "reader"),
    ),
    "no intent": Mutation(
        "what a killed commit left becomes visible, or stops the next one",
        {"commit.committer.Committer._declare": _nothing},
        ("query", "appender", "reader"),
        _KILLS,
    ),
    "no recovery": Mutation(
        "what a killed commit left becomes visible, or stops the next one",
        {
            "store.session.take_back": _nothing,
            "commit.committer.take_back": _nothing,
        },
        ("query", "appender", "reader"),
        _KILLS,
    ),
    "an interrupted commit forgets its intent": Mutation(
        "what an interrupted commit left becomes visible, or stops the next one",
        {"commit.committer.Committer._try_to_take_back": _intent_is_lost},
        ("query", "appender", "reader"),
        {"interrupt": 150},
    ),
    "publish before append": Mutation(
        "readers see ends without records",
        {
            "commit.committer.Committer._apply": _later,
            "commit.committer.Committer._publish": _published_first,
        },
        ("query", "appender", "reader", "reader"),
        _KILLS,
    ),
    "every batch is the next": Mutation(
        "a batch that comes again is there twice",
        {"commit.committer.judge": _always(Verdict.APPEND)},
        ("query", "query", "reader"),
        _KILLS,
    ),
    "versions are not looked at": Mutation(
        "a version that comes again is there twice",
        {
            "commit.committer.Committer._still_to_write": lambda _self, _set, runs: runs,
        },
        ("versioned", "versioned", "reader"),
        _KILLS,
    ),
    "readers see what is not committed": Mutation(
        "readers see parts of batches, and what is taken back",
        {"store.ends.rule.committed_end": _always(None)},
        ("query", "appender", "reader", "reader"),
        _KILLS,
    ),
    "a run that was replaced is not known": Mutation(
        "a driver that wakes up late pushes out the one that has replaced it",
        {
            "commit.committer.judge": _unchecked_run,
            "commit.committer.sweep": _nothing,
        },
        ("query", "query", "reader"),
        _KILLS,
    ),
    "batches may be written by a caller who is interrupted": Mutation(
        "an interrupt leaves locks held, or half a commit",
        {"kafkalog.files.shield.Shielded.result": _unshielded},
        ("query", "appender", "reader"),
        {"interrupt": 150},
    ),
    "staged files of others are swept": Mutation(
        "a batch fails, though nothing was in its way",
        {"store.clearing._is_older": _always(True)},
        ("query", "query", "appender"),
    ),
    "records are not made durable": Mutation(
        "a loss of power takes what was acknowledged",
        {"kafkalog.files.parallel.sync": _nothing},
        ("query", "appender", "reader"),
        {"power": 400},
    ),
    "states are renamed before they are durable": Mutation(
        "a loss of power tears them, and nothing that was committed can be read",
        {"kafkalog.files.atomic.sync": _nothing},
        ("query", "appender", "reader"),
        {"power": 400},
    ),
    "what was left to the system may be deleted": Mutation(
        "after a loss of power a log ends below its start, for ever",
        {"operate.shortening.make_shortened_durable": _nothing},
        ("appender", "deleter", "deleter"),
        {"power": 400},
        {"flush": "os"},
    ),
    "log starts are not published": Mutation(
        "deleted records are read, or the log begins where nobody expects it",
        {"operate.shortening.move_log_starts": _nothing},
        ("appender", "deleter", "reader"),
    ),
    "retention counts as the append": Mutation(
        "an interrupt says that an append was stopped, which is committed",
        {"operate.periodic_retention._round": shielded(inspect.unwrap(_round))},
        ("appender", "appender", "reader"),
        {"interrupt": 100},
        {"retention.bytes": "400", "retention.check.interval.ms": "1"},
    ),
    "missing directories are not noticed": Mutation(
        "readers are given a part of what is committed, and not told",
        {"source.whole_look.WholeLook._say": _nothing},
        ("appender", "query", "reader", "reader"),
        {"vanish": 150, "empty": 150},
    ),
    "brokers may start on half a commit": Mutation(
        "a broker appends after what is taken back, or serves it",
        {"store.nodes.keep_brokers_out": _nothing},
        ("query", "appender", "broker", "broker", "reader"),
        _KILLS,
    ),
}
