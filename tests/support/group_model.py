"""All that may happen to a group of two or three members, within bounds, at each of their steps.

The members are programs that run the real code, on the simulation's disk, clock and scheduler.
First they run with nothing in their way. Then once more for each of their steps, with one thing at
it: the process is killed there, or sleeps beyond its session, or another one goes on until it ends
or rests; in wider bounds also for each pair of such things. The simulation's auditor judges each
world.

A step is a call of a seam. To be killed, or to sleep, at a call that changes nothing is the same as
at the next one that changes something. So only those are tried.
"""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.simulation.scheduler import Decision, Rates, Scheduler
from tests.simulation.simulation import Plan, run

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Bounds", "Broken", "search"]

_CHANGES: Final = frozenset(
    {"create", "fsync", "ftruncate", "link", "mkdir", "pwrite", "rename", "rmdir", "unlink"}
)
_KILL: Final = ("kill", 0)
_SLEEP: Final = ("pause", 2)
"""For 90 s: sessions last 3 s here."""


class Broken(AssertionError):  # noqa: N818 - it names a state
    """What the auditor found in one of the worlds."""


@dataclass(frozen=True)
class Bounds:
    """What is tried.

    Attributes:
        members: how many; each joins, copies what it gets, and leaves.
        partitions: of the topic; one record is in each.
        kinds: of ``kill``, ``sleep`` and ``switch``.
        pairs: whether two things happen in a world, at steps of different members.
        every: only each so many-th step, from the first; 1 for all of them.
    """

    members: int = 2
    partitions: int = 1
    kinds: tuple[str, ...] = ("kill",)
    pairs: bool = False
    every: int = 1


class _Step(NamedTuple):
    actor: str
    number: int
    call: str


def search(bounds: Bounds) -> int:
    """Run all worlds; return how many there were.

    Raises:
        Broken: something is wrong with one; its decisions are named, so that it can be run again.
    """
    count = 0
    for script in _scripts(bounds):
        found = run(_plan(bounds, script)).found
        count += 1
        if found:
            raise Broken(f"{bounds}, {script}: {found}")
    return count


def _plan(bounds: Bounds, script: Sequence[Decision]) -> Plan:
    return Plan(
        "model",
        {f"copier{number}": ("copier", 1) for number in range(bounds.members)},
        directories=1,
        partitions=bounds.partitions,
        options={"flush": "commit", "max.block.ms": "60000"},
        rates=Rates(0),
        script=tuple(script),
    )


def _scripts(bounds: Bounds) -> Iterator[tuple[Decision, ...]]:
    yield ()
    with _steps() as steps:
        run(_plan(bounds, ()))
    single = [each for step in steps for each in _decisions(bounds, step)][:: bounds.every]
    if not bounds.pairs:
        yield from ((each,) for each in single)
        return
    for first, second in itertools.combinations(single, 2):
        if first.actor != second.actor:
            yield first, second


def _decisions(bounds: Bounds, step: _Step) -> Iterator[Decision]:
    if step.call in _CHANGES:
        for kind, (what, value) in (("kill", _KILL), ("sleep", _SLEEP)):
            if kind in bounds.kinds:
                yield Decision(step.actor, step.number, what, value)
    if "switch" in bounds.kinds:
        # The one that goes on is counted among all threads that could: a heartbeat's, too.
        for value in range(2 * bounds.members):
            yield Decision(step.actor, step.number, "switch", value)


@contextmanager
def _steps() -> Iterator[list[_Step]]:
    """Collect the steps that members take while nothing happens to them."""
    found: list[_Step] = []
    original = Scheduler.step

    def step(scheduler: Scheduler, call: str) -> None:
        process = scheduler.running.process
        if process.actor.startswith("copier") and not process.is_dead:
            number = scheduler.steps.get(process.actor, 0) + 1
            found.append(_Step(process.actor, number, call))
        original(scheduler, call)

    Scheduler.step = step  # type: ignore[method-assign]
    try:
        yield found
    finally:
        Scheduler.step = original  # type: ignore[method-assign]
