"""Members of a group in processes of their own, to which all kinds of things happen at random."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import psutil
import pyarrow as pa
from tests.support.churn_members import (
    GROUP,
    KILLS_ITSELF_BY,
    PROGRAM_SESSION_S,
    QUERY_NAME,
    QUERY_SESSION_S,
    START,
)
from tests.support.killed_query import processes_of

from kafkalog.errors import LockTimeoutError
from kafkalog.streaming.admin.topics import alter, create
from kafkalog.streaming.api import append, read
from kafkalog.streaming.groups.group_commits import GroupCommits
from kafkalog.streaming.store.policy import SetPolicy

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PARTITIONS", "Churn"]

PARTITIONS: Final = 6

_SOURCE: Final = "python_streaming_source_runner"
_LONGEST_WAIT_S: Final = 600
_MOST_BEHIND: Final = 600
_HURT_IN_A_LOOK: Final = 0.1
"""How likely: a program lives for some ten seconds, long enough to have rows at hand."""

KINDS: Final = frozenset({"kill", "end", "stop", "stop amid work", "replace", "query", "grow"})
"""What is to happen at least once."""


class Actor:
    """A member's processes, of which any may be killed or stopped; started again, it goes on."""

    def __init__(self, folder: Path, name: str, session_s: float, begin: list[str]) -> None:
        """Take a folder for what it prints, its session time-out, and what it is started with."""
        self.name = name
        self.session_s = session_s
        self.starts = 0
        self.starts_at_s = 0.0
        """When it is to be started again, by the monotonic clock."""
        self.wakes_at_s: float | None = None
        """When it is to go on; None if it does not stand still."""
        self._told = folder / f"{name}.told"
        self._begin = begin
        self._was_hurt = False
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_up(self) -> bool:
        """Whether its first process is there."""
        return self._process is not None and self._process.poll() is None

    @property
    def acts(self) -> bool:
        """Whether it is there, and does not stand still."""
        return self.is_up and self.wakes_at_s is None

    def tend(self, now_s: float) -> None:
        """Wake it and start it when that is due."""
        if self.wakes_at_s is not None and now_s >= self.wakes_at_s:
            self.wake()
        self.check()
        if not self.is_up and now_s >= self.starts_at_s:
            self.kill()
            self._start()

    @property
    def has_stopped_itself(self) -> bool:
        """Whether it stands still though nobody has told it to."""
        assert self._process is not None
        if not self.acts:
            return False
        return psutil.Process(self._process.pid).status() == psutil.STATUS_STOPPED

    def check(self) -> None:
        """See that it has not failed by itself."""
        if self._process is not None and not self.is_up:
            was_hurt = self._was_hurt or self._process.returncode == -KILLS_ITSELF_BY
            assert was_hurt, f"{self.name} ended with {self._process.returncode}: {self.told}"

    @property
    def told(self) -> str:
        """The last of what its processes have printed."""
        return self._told.read_text(errors="replace")[-6000:]

    def kill(self, wanted: Callable[[psutil.Process], bool] = lambda _: True) -> None:
        """Kill those of its processes that are wanted; stopped ones, too."""
        self._was_hurt = True
        self._each(lambda process: process.kill() if wanted(process) else None)

    def end(self) -> None:
        """Ask it to end, which it does in peace."""
        assert self._process is not None
        self._was_hurt = True
        self._process.terminate()

    def stop_until(self, wakes_at_s: float) -> None:
        """Let all of its processes stand still."""
        self.wakes_at_s = wakes_at_s
        self._each(psutil.Process.suspend)

    def wake(self) -> None:
        """Let all of its processes go on."""
        self.wakes_at_s = None
        self._each(psutil.Process.resume)

    def close(self) -> None:
        """Leave nothing of it running."""
        while self.is_up or self._processes():
            self.kill()
            time.sleep(0.02)

    def _start(self) -> None:
        self.starts += 1
        self._was_hurt = False
        root = str(Path(__file__).parents[2])
        found_in = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        with self._told.open("ab") as told:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.churn_members", *self._begin],
                cwd=root,
                env={**os.environ, "PYTHONPATH": found_in, START: str(self.starts)},
                stdin=subprocess.DEVNULL,
                stdout=told,
                stderr=told,
                start_new_session=True,
            )

    def _each(self, action: Callable[[psutil.Process], object]) -> None:
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                action(process)

    def _processes(self) -> list[psutil.Process]:
        return [] if self._process is None else processes_of(self._process.pid)


class Churn:
    """A group of programs and a query that copies ``in`` to ``out``, and what happens to it.

    On leaving the context nothing of it is left running.
    """

    def __init__(self, folder: Path, seed: str) -> None:
        """Make both topics; ``seed`` settles what is to happen."""
        self.logs = folder / "logs"
        self.checkpoint = folder / "checkpoint"
        self.done: Counter[str] = Counter()
        self.given: dict[int, list[str]] = {number: [] for number in range(PARTITIONS)}
        """The values of the input, by partition, in order."""
        self._chance = random.Random(seed)
        self._group = GroupCommits([self.logs], GROUP, SetPolicy())
        strategy = self._chance.choice(("range", "roundrobin", "sticky", "cooperative-sticky"))
        for topic in ("in", "out"):
            create([str(self.logs)], topic, partitions=PARTITIONS)
        append(self.logs, "in", self._new_rows(40))
        logs = str(self.logs)

        def program(name: str, instance: str = "") -> Actor:
            begin = ["program", logs, name, instance, strategy, f"{seed} {name}"]
            return Actor(folder, name, PROGRAM_SESSION_S, begin)

        self._programs = [program("one"), program("two"), program("static", "static")]
        self._twin = program("twin", "static")
        begin = ["query", logs, str(self.checkpoint), strategy]
        self._query = Actor(folder, QUERY_NAME, QUERY_SESSION_S, begin)
        self._batches = 0
        """How many the query had run when it was started last."""

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End all."""
        for each in [*self._programs, self._twin, self._query]:
            each.close()

    def run(self, seconds: float) -> None:
        """Let things happen for so long, and until each kind of them has happened."""
        ends_at_s = time.monotonic() + seconds
        while time.monotonic() < ends_at_s or not self._has_all_happened():
            self._tend()
            self._write()
            self._hurt_program()
            self._hurt_query()
            self._grow()
            time.sleep(self._chance.uniform(0, 0.5))

    def drain(self) -> None:
        """Let the members come to the end of the input in peace."""
        deadline_s = time.monotonic() + _LONGEST_WAIT_S
        self._twin.close()
        for each in self._actors:
            each.wake()
        while not self._is_at_end():
            assert time.monotonic() < deadline_s, self._group.look()
            self._tend()
            time.sleep(0.1)

    @property
    def positions(self) -> dict[int, int]:
        """Where the group stands in each partition of the input."""
        return {key.partition: at for key, at in self._group.look().positions.items()}

    def copied(self) -> pa.Table:
        """Return what was copied, in order, with who did so as the key."""
        rows = read(self.logs, "out").read_all().select(["partition", "offset", "value", "key"])
        return rows.sort_by([("partition", "ascending"), ("offset", "ascending")])

    def _has_all_happened(self) -> bool:
        if not self.done.keys() >= KINDS:
            return False
        return QUERY_NAME.encode() in self.copied().column("key").to_pylist()

    @property
    def _actors(self) -> list[Actor]:
        return [*self._programs, self._query]

    def _is_at_end(self) -> bool:
        return self.positions == {number: len(rows) for number, rows in self.given.items()}

    def _tend(self) -> None:
        now_s = time.monotonic()
        self._twin.check()
        for each in self._actors:
            starts = each.starts
            each.tend(now_s)
            if each.has_stopped_itself:
                each.wakes_at_s = now_s + self._chance.uniform(0.2, 3) * each.session_s
                self.done["stop amid work"] += 1
            if each is self._query and each.starts > starts:
                self._batches = self._batches_run()

    def _write(self) -> None:
        """Append rows; not if members are far behind, or somebody stands still who has a lock."""
        behind = sum(map(len, self.given.values())) - sum(self.positions.values())
        if behind < _MOST_BEHIND:
            rows = self._new_rows(self._chance.randrange(1, 40))
            try:
                append(self.logs, "in", rows, options={"max.block.ms": "100"})
            except LockTimeoutError:  # nothing was written
                for number in rows.column("partition").to_pylist():
                    self.given[number].pop()

    def _new_rows(self, count: int) -> pa.Table:
        numbers = [self._chance.choice([*self.given]) for _ in range(count)]
        values = []
        for number in numbers:
            values.append(f"{number}/{len(self.given[number])}")
            self.given[number].append(values[-1])
        return pa.table({"value": values, "partition": pa.array(numbers, pa.int32())})

    def _hurt_program(self) -> None:
        actor = self._chance.choice(self._programs)
        what = self._chance.choice(("kill", "end", "stop", "stop"))
        if not actor.acts or self._chance.random() > _HURT_IN_A_LOOK:
            return
        now_s = time.monotonic()
        actor.starts_at_s = now_s + self._chance.uniform(0, 2 * actor.session_s)
        if what == "kill":
            actor.kill()
        elif what == "end":
            actor.end()
        else:
            actor.stop_until(now_s + self._chance.uniform(0.2, 3) * actor.session_s)
        self.done[what] += 1
        if actor is self._programs[-1]:
            self._replace(now_s, is_stopped=what == "stop")

    def _replace(self, now_s: float, *, is_stopped: bool) -> None:
        """Let another program take the name of one that stands still; it ends with the next."""
        self._twin.close()
        if is_stopped and (not self.done["replace"] or self._chance.random() < 0.5):
            self._twin.tend(now_s)
            self.done["replace"] += 1

    def _hurt_query(self) -> None:
        """Hurt the query, which takes long to start, only when it has run something since."""
        if not self._query.acts or self._batches_run() <= self._batches:
            return
        if self._chance.random() < 0.8:
            return
        now_s = time.monotonic()
        what = self._chance.choice(("tree", "jvm", "source", "stop"))
        if what == "stop":
            self._query.stop_until(now_s + self._chance.uniform(0.2, 2.5) * self._query.session_s)
            self._batches = self._batches_run()
        else:
            self._query.kill(_VICTIMS[what])
            self._query.starts_at_s = now_s + self._chance.uniform(0, 1.5 * self._query.session_s)
        self.done[f"query {what}"] += 1
        self.done["query"] += 1

    def _batches_run(self) -> int:
        return len([*(self.checkpoint / "commits").glob("[0-9]*")])

    def _grow(self) -> None:
        """Give both topics more partitions, once, when nobody stands still with a lock."""
        if self.done["grow"] or not self.done["query"] or not all(a.acts for a in self._actors):
            return
        with suppress(LockTimeoutError):
            for topic in ("out", "in"):
                alter([str(self.logs)], topic, partitions=PARTITIONS + 2)
            self.given |= {number: [] for number in (PARTITIONS, PARTITIONS + 1)}
            self.done["grow"] += 1


_VICTIMS: Final[dict[str, Callable[[psutil.Process], bool]]] = {
    "tree": lambda _: True,
    "jvm": lambda process: "java" in process.name(),
    "source": lambda process: any(_SOURCE in word for word in process.cmdline()),
}
