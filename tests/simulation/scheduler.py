"""Processes of which one runs at a time, a clock that jumps to the next who waits, and chance.

Each thread of a simulated process is a thread here, a *strand*, which waits until it is handed the
turn. It may be taken from it at each call of a seam, its *steps*, and nowhere else. What happens at
a step is *decided*: mostly nothing. Decisions are drawn from a seed and written down by actor and
the number of its step; a run that takes them from such a list goes the same way. An entry left out
of the list changes what comes after it, and leaves the other entries where they are.
"""

from __future__ import annotations

import _thread
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kafkalog.files.system import system

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Decision", "InterruptError", "KilledError", "Process", "Rates", "Scheduler", "Stuck"]

_STEP_NS: Final = 20_000
_FOR_EVER_NS: Final = 1 << 62
_MOST_STEPS: Final = 400_000


class KilledError(BaseException):
    """Unwinds a strand of a process that was killed; none of its calls does anything any more."""


class InterruptError(BaseException):
    """Interrupts a process, as Ctrl-C and an alarm do."""


class Stuck(AssertionError):  # noqa: N818 - it names a state
    """Nobody can go on, or it never ends."""


class Decision(NamedTuple):
    """What happens at a step of an actor; ``value`` is a number that says more."""

    actor: str
    step: int
    what: str
    value: int


@dataclass(frozen=True)
class Rates:
    """After how many steps, on average, something happens; 0 for never."""

    switch: int = 12
    faults: Mapping[str, int] = field(default_factory=dict)


class Process:
    """A process: its memory, its strands, the oldest first, and whether it runs."""

    def __init__(self, actor: str, number: int) -> None:
        self.actor = actor
        self.number = number
        self.memory: dict[object, Any] = {}
        self.strands: list[Strand] = []
        self.main: Strand | None = None
        self.is_dead = False
        self.paused_until = 0


class Strand:
    """A thread of a process."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.gate = _thread.allocate_lock()
        self.gate.acquire()
        self.wakes_at = 0
        self.waits_for: Lock | None = None
        self.pending: BaseException | None = None
        self.has_ended = False
        self.last_ran = 0
        process.strands.append(self)
        process.main = process.main or self

    def ready_at(self, now: int) -> int:
        """Return the time from which it can go on."""
        process = self.process
        if process.is_dead or self.pending is not None:
            return now if process.is_dead else max(now, process.paused_until)
        if self.waits_for is not None and not self.waits_for.is_held:
            return max(now, process.paused_until)
        return max(now, self.wakes_at, process.paused_until)


class Scheduler:
    """Hands the turn around; ``happens`` makes a decision happen in the running process."""

    def __init__(
        self, seed: str, rates: Rates, script: list[Decision] | None = None, *, start_ns: int
    ) -> None:
        self.now = 0
        self.wall_ns = start_ns
        self.running: Strand
        self.taken: list[Decision] = []
        self.steps: dict[str, int] = {}
        self.total_steps = 0
        self.switches = 0
        self.process_switches = 0
        self.happens: Callable[[Decision], None] = lambda _: None
        self.fault: BaseException | None = None
        self._seed = seed
        self._rates = rates
        self._script = script and {}
        if script is not None:
            self._script = {}
            for decision in script:
                self._script.setdefault((decision.actor, decision.step), []).append(decision)
        self._due: dict[str, list[tuple[int, str]]] = {}
        self._chance: dict[str, random.Random] = {}
        self._strands: list[Strand] = []
        self._processes = 0
        self._is_calm = False
        self._threads = {_thread.get_ident()}
        self._main = _thread.allocate_lock()
        self._main.acquire()

    # Processes

    def process(self, actor: str) -> Process:
        """Make a process of an actor."""
        self._processes += 1
        return Process(actor, self._processes)

    def run(self, actors: Mapping[str, Callable[[], None]], *, calm: bool = False) -> None:
        """Run each actor in a process of its own until all have ended; nothing happens if calm."""
        if not actors:  # as when a history is made smaller
            return
        self._is_calm = calm
        for name, action in actors.items():
            self._add(self.process(name), action)
        memory = system.memory
        self._hand_over(self._next())
        self._main.acquire()
        system.memory = memory
        if self.fault is not None:
            raise self.fault

    def is_known(self) -> bool:
        """Return whether the calling thread is a strand, or the one that runs them all."""
        return _thread.get_ident() in self._threads

    def start_thread(self, action: Callable[..., object], arguments: tuple[Any, ...]) -> int:
        """Start a strand of the running process."""
        self.step("thread")
        self._add(self.running.process, lambda: action(*arguments))
        return 0

    def _add(self, process: Process, action: Callable[[], object]) -> None:
        strand = Strand(process)
        self._strands.append(strand)

        def run() -> None:
            self._threads.add(_thread.get_ident())
            strand.gate.acquire()
            try:
                action()
            except KilledError:
                pass
            except BaseException as error:  # noqa: BLE001 - told by the one who runs all
                self.fault = self.fault or error
            strand.has_ended = True
            self._threads.discard(_thread.get_ident())
            self._strands.remove(strand)
            strand.process.strands.remove(strand)
            if self._strands:
                self._hand_over(self._next())
            else:
                self._main.release()

        _thread.start_new_thread(run, ())

    @property
    def processes(self) -> list[Process]:
        """All that run."""
        return list({strand.process.number: strand.process for strand in self._strands}.values())

    def kill(self, process: Process) -> None:
        """Let a process be dead; its strands unwind, the youngest first."""
        process.is_dead = True

    def become(self, process: Process) -> None:
        """Go on as another process, once all others of the strands of the dead one have ended."""
        me = self.running
        old = me.process
        while (youngest := old.strands[-1]) is not me:
            self._turn_to(youngest)
        old.strands.remove(me)
        process.strands.append(me)
        process.main = me
        me.process = process
        system.memory = process.memory

    # Steps

    def step(self, call: str) -> None:
        """Come to a call of a seam: something may happen before it."""
        me = self.running
        process = me.process
        if process.is_dead:
            self._die(me)
        self.now += _STEP_NS
        self.total_steps += 1
        if self.total_steps > _MOST_STEPS:
            self.fault = self.fault or Stuck(f"{process.actor} does not end: {call}")
            self.kill(process)
            self._die(me)
        if self._is_calm:
            return
        actor = process.actor
        number = self.steps[actor] = self.steps.get(actor, 0) + 1
        for decision in self._decided(actor, number):
            self.taken.append(decision)
            if decision.what == "switch":
                self._switch(decision.value)
            else:
                self.happens(decision)
        self._resume(me)

    def _resume(self, me: Strand) -> None:
        if me.process.is_dead:
            self._die(me)
        if me.pending is not None:
            error, me.pending = me.pending, None
            raise error

    def _die(self, me: Strand) -> None:
        strands = me.process.strands
        while strands[-1] is not me and not me.has_ended:
            self._turn_to(strands[-1])
        raise KilledError

    def _decided(self, actor: str, number: int) -> list[Decision]:
        if self._script is not None:
            return self._script.get((actor, number), [])
        due = self._due.get(actor)
        if due is None:
            chance = self._chance[actor] = random.Random(f"{self._seed}/{actor}")
            kinds = {"switch": self._rates.switch, **self._rates.faults}
            due = [(self._gap(chance, mean), what) for what, mean in kinds.items() if mean]
            self._due[actor] = due
        if min(due)[0] > number:
            return []
        chance, found = self._chance[actor], []
        for slot, (at, what) in enumerate(due):
            if at <= number:
                found.append(Decision(actor, number, what, chance.randrange(1 << 16)))
                mean = self._rates.switch if what == "switch" else self._rates.faults[what]
                due[slot] = (number + self._gap(chance, mean), what)
        return found

    @staticmethod
    def _gap(chance: random.Random, mean: int) -> int:
        return 1 + int(chance.expovariate(1 / mean))

    # Turns

    def pause(self, seconds: float) -> None:
        """Let the running process stand still."""
        self.running.process.paused_until = self.now + int(seconds * 1e9)
        self.yield_turn()

    def yield_turn(self) -> None:
        """Let another go on, and come back when it is this one's turn."""
        self._turn_to(self._next())

    def interrupt(self) -> None:
        """Interrupt the main thread of the running process, wherever that is, if it still runs."""
        process = self.running.process
        if process.main is process.strands[0]:
            process.main.pending = InterruptError()

    def sleep(self, seconds: float) -> None:
        """Rest."""
        self.step("sleep")
        me = self.running
        me.wakes_at = self.now + int(max(seconds, 0) * 1e9)
        self.yield_turn()
        me.wakes_at = 0
        self._resume(me)

    def take_time(self, seconds: float) -> None:
        """Let a call of the running process take so long; others go on meanwhile."""
        me = self.running
        me.wakes_at = self.now + int(seconds * 1e9)
        self.yield_turn()
        me.wakes_at = 0
        self._resume(me)

    def wait(self, lock: Lock, until: int) -> None:
        """Wait until a lock is free, or a time has come."""
        me = self.running
        me.waits_for, me.wakes_at = lock, until
        self.yield_turn()
        me.waits_for, me.wakes_at = None, 0
        self._resume(me)

    def _switch(self, value: int) -> None:
        ready = [each for each in self._strands if each.ready_at(self.now) <= self.now]
        self._turn_to(ready[value % len(ready)] if ready else self._next())

    def _next(self) -> Strand:
        """Find who goes on: who has waited longest of those that can; else the clock moves."""
        dying = [each for each in self._strands if each.process.is_dead]
        if dying:
            return dying[-1]
        soonest = min(self._strands, key=lambda each: (each.ready_at(self.now), each.last_ran))
        at = soonest.ready_at(self.now)
        if at >= _FOR_EVER_NS:
            self.fault = self.fault or Stuck("everybody waits for somebody else")
            for each in self._strands:
                self.kill(each.process)
            return self._strands[-1]
        self.now = max(self.now, at)
        return soonest

    def _turn_to(self, other: Strand) -> None:
        me = self.running
        if other is not me:
            self.switches += 1
            self.process_switches += other.process is not me.process
            self._hand_over(other)
            me.gate.acquire()

    def _hand_over(self, other: Strand) -> None:
        other.last_ran = self.total_steps
        self.running = other
        system.memory = other.process.memory
        other.gate.release()


class Lock:
    """A mutex between the strands of a process."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.is_held = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take it; false if that cannot be, in time."""
        scheduler = self._scheduler
        scheduler.step("acquire")
        until = _FOR_EVER_NS if timeout < 0 else scheduler.now + int(timeout * 1e9)
        while self.is_held:
            if not blocking or scheduler.now >= until:
                return False
            scheduler.wait(self, until)
        self.is_held = True
        return True

    def locked(self) -> bool:
        """Whether it is taken."""
        return self.is_held

    def release(self) -> None:
        """Give it back."""
        self.is_held = False

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()
