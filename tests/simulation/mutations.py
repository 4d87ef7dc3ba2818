"""Guards of the code, taken out one at a time: the auditor has to find what comes of it."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.simulation.guards import GUARDS
from tests.simulation.patches import Mutation, applied
from tests.simulation.scheduler import Rates
from tests.simulation.simulation import Plan, Result, draw, run

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["MUTATIONS", "Found", "find", "mutated"]

MUTATIONS: Final[Mapping[str, Mutation]] = GUARDS


@contextlib.contextmanager
def mutated(name: str) -> Iterator[None]:
    """Take a guard out.

    Raises:
        AttributeError, LookupError: there is no such guard any more.
    """
    with applied(MUTATIONS[name].patches):
        yield


def _aimed(name: str, number: int) -> Plan:
    """Draw a history of those who may suffer from a guard that is not there."""
    mutation = MUTATIONS[name]
    plan = draw(f"mutation/{number}", mutation.actors)
    flush = "mixed" if "power" not in mutation.faults else "commit"
    options = {**plan.options, "flush": flush, **mutation.options}
    rates = Rates(10, mutation.faults)
    drawn = {"extras": frozenset(), **mutation.drawn}
    return replace(plan, rates=rates, options=options, **drawn)


class Found(NamedTuple):
    """The history that shows that a guard is gone; how many it took, and seconds of CPU."""

    result: Result | None
    histories: int
    operations: int
    seconds: float


def find(name: str, seconds: float) -> Found:
    """Run histories without a guard until one is at fault that is not with it.

    Raises:
        AssertionError: a history is at fault with the guard, too.
    """
    began = time.process_time()
    number = operations = 0
    while time.process_time() - began < seconds:
        plan = _aimed(name, number)
        with mutated(name):
            result = run(plan)
        number += 1
        operations += result.operations
        if result.found:
            spent = time.process_time() - began
            assert not (whole := run(plan)).found, f"{name}, with it: {plan.seed}: {whole.found}"
            return Found(result, number, operations, spent)
    return Found(None, number, operations, time.process_time() - began)
