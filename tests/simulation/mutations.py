"""Guards of the code, taken out one at a time: the auditor has to find what comes of it.

Each is a patch by name. A name that is not there any more is a failure, not a guard that holds.
"""

from __future__ import annotations

import contextlib
import time
from threading import Lock
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

from tests.simulation.simulation import Result, draw, run

from kafkalog.streaming.commit.committer import Committer
from kafkalog.streaming.store.identity import Verdict, judge

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kafkalog.files.shield import Shielded

__all__ = ["MUTATIONS", "find", "mutated"]

_PACKAGE: Final = "kafkalog.streaming"
_Patches = dict[str, Any]


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


def _later(self: Committer, appends: Any) -> None:
    self.__dict__["late"] = appends


def _published_first(self: Committer, *arguments: Any, **named: Any) -> None:
    _publish(self, *arguments, **named)
    appends = self.__dict__.pop("late", None)
    if appends is not None:
        _apply(self, appends)


def _intent_is_lost(_: Committer, log_set: Any) -> None:
    log_set.node.withdraw(durable=False)


MUTATIONS: Final[Mapping[str, _Patches]] = {
    "no locks": {
        "store.locks._try_lock": _always(True),
        "store.locks._Mutexes.of": lambda *_: Lock(),
    },
    "no intent": {"commit.committer.Committer._declare": _nothing},
    "no recovery": {
        "store.session.take_back": _nothing,
        "commit.committer.take_back": _nothing,
    },
    "an interrupted commit forgets its intent": {
        "commit.committer.Committer._try_to_take_back": _intent_is_lost
    },
    "publish before append": {
        "commit.committer.Committer._apply": _later,
        "commit.committer.Committer._publish": _published_first,
    },
    "every batch is the next": {"commit.committer.judge": _always(Verdict.APPEND)},
    "versions are not looked at": {
        "commit.committer.Committer._still_to_write": lambda _self, _set, runs: runs
    },
    "readers see what is not committed": {"store.ends.rule.committed_end": _always(None)},
    "a run that was replaced is not known": {
        "commit.committer.judge": _unchecked_run,
        "commit.committer.sweep": _nothing,
    },
    "batches may be written by a caller who is interrupted": {
        "kafkalog.files.shield.Shielded.result": _unshielded
    },
    "staged files of others are swept": {
        "store.clearing._is_older": _always(True),
    },
}


@contextlib.contextmanager
def mutated(name: str) -> Iterator[None]:
    """Take a guard out.

    Raises:
        AttributeError: there is no such guard any more.
    """
    with contextlib.ExitStack() as stack:
        for place, replacement in MUTATIONS[name].items():
            full = place if place.startswith("kafkalog") else f"{_PACKAGE}.{place}"
            stack.enter_context(patch(full, replacement))
        yield


def find(name: str, seconds: float) -> tuple[Result | None, int, float]:
    """Run histories without a guard until one is at fault: it, their number, seconds of CPU."""
    began = time.process_time()
    number = 0
    with mutated(name):
        while time.process_time() - began < seconds:
            result = run(draw(f"mutation/{number}"))
            number += 1
            if result.found:
                return result, number, time.process_time() - began
    return None, number, time.process_time() - began
