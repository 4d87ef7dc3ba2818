"""Measure contenders against each other: alternating runs, medians, and how noisy they were."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
from benchmarks.cpu import tree_cpu_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "WARM_UPS",
    "Contender",
    "Goal",
    "Measured",
    "Samples",
    "Unit",
    "Workload",
    "measure",
    "noise_probe",
    "timed",
]

Unit = Literal["s", "ms", "pages", "bytes"]

WARM_UPS: Final = 3
"""For works of many rows or triggers: before that, Java's compiler takes a tenth of it."""

_PROBE_BYTES: Final = 64 << 20


@dataclass(frozen=True)
class Contender:
    """One way to do the work. ``run`` does it once and returns what it took in the unit of work."""

    name: str
    run: Callable[[], float]


@dataclass(frozen=True)
class Goal:
    """What is to be reached: ``who`` at ``factor`` times the speed of ``against``, or ``limit``.

    With a ``limit`` the median of ``who`` has to be at most that, in the workload's unit.
    """

    who: str
    against: str | None = None
    factor: float = 1.0
    limit: float | None = None


@dataclass(frozen=True)
class Workload:
    """Contenders that do the same work; lower is better in every unit.

    ``rows`` is how many rows one run moves: with it a rate is shown beside the duration. A work of
    which a run takes minutes has ``most_rounds``.
    """

    title: str
    contenders: tuple[Contender, ...]
    goals: tuple[Goal, ...] = ()
    unit: Unit = "s"
    rows: int | None = None
    warm_ups: int = 1
    notes: str = ""
    most_rounds: int | None = None


@dataclass(frozen=True)
class Samples:
    """Every run of one contender, in the order in which they ran."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle value: one disturbed run does not move it."""
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        """The quickest run."""
        return min(self.values)

    @property
    def high(self) -> float:
        """The slowest run."""
        return max(self.values)


@dataclass
class Measured:
    """A workload, and by contender the samples and the CPU seconds of all processes."""

    workload: Workload
    samples: dict[str, Samples] = field(default_factory=dict)
    cpu: dict[str, Samples] = field(default_factory=dict)

    def speed(self, who: str, against: str) -> float:
        """How many times faster the median run of ``who`` was than that of ``against``."""
        return self.samples[against].median / max(self.samples[who].median, 1e-12)

    def reached(self, goal: Goal) -> bool:
        """Whether the medians reach the goal."""
        if goal.limit is not None:
            return self.samples[goal.who].median <= goal.limit
        if goal.against is None:
            return True
        return self.speed(goal.who, goal.against) >= goal.factor


def measure(workload: Workload, rounds: int, told: Callable[[str, float], None]) -> Measured:
    """Run every contender once per round, so that a slow minute of the machine hits all of them.

    The order turns by one each round: nobody always runs after the same neighbour. ``told`` gets
    the name of each contender and its value after each run, a warm-up's too.
    """
    taken: dict[str, list[float]] = {contender.name: [] for contender in workload.contenders}
    cpu: dict[str, list[float]] = {contender.name: [] for contender in workload.contenders}
    rounds = min(rounds, workload.most_rounds or rounds)
    for round_, contender in _schedule(workload, rounds):
        before = tree_cpu_seconds()
        value = contender.run()
        used = tree_cpu_seconds() - before
        told(contender.name, value)
        if round_ >= 0:
            taken[contender.name].append(value)
            cpu[contender.name].append(used)
    return Measured(workload, _samples(taken), _samples(cpu))


def _samples(taken: dict[str, list[float]]) -> dict[str, Samples]:
    return {name: Samples(tuple(values)) for name, values in taken.items()}


def _schedule(workload: Workload, rounds: int) -> Iterator[tuple[int, Contender]]:
    """Yield (round, contender) in running order; warm-ups have negative rounds."""
    for round_ in range(-workload.warm_ups, rounds):
        turn = round_ % len(workload.contenders)
        for contender in (*workload.contenders[turn:], *workload.contenders[:turn]):
            yield round_, contender


def timed(work: Callable[[], object]) -> float:
    """Return the seconds that ``work`` took."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def noise_probe(rounds: int = 15) -> Samples:
    """Time a fixed amount of memory traffic: the spread is the machine's, not a contender's."""
    data = np.arange(_PROBE_BYTES // 8, dtype=np.int64)
    return Samples(
        tuple(timed(lambda: int(data.sum()) + int(data[::3].max())) for _ in range(rounds))
    )
