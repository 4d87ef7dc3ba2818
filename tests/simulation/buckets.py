"""Histories over a log in a bucket: a store in memory, what becomes of requests, and who acts.

The same writers and readers act, and the same auditor judges, as over log directories. Each request
is a step before it arrives and one after that: a process may be killed or stopped there, others
may go on, and requests that are late arrive.
"""

from __future__ import annotations

import contextlib
import gc
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.auditor import Audit, History
from tests.simulation.machine import Machine, installed
from tests.simulation.operators import deleter
from tests.simulation.readers import follower, look, reader
from tests.simulation.scene import Scene
from tests.simulation.scheduler import Rates, Scheduler
from tests.simulation.writers import appender, versioned, write_first
from tests.support.bucket_model import MemoryObjects

from kafkalog.errors import LogDirectoryError
from kafkalog.files.objects import Creation
from kafkalog.jobs.maintain import BucketMaintenance, Scope
from kafkalog.streaming.commit import bucket_commit
from kafkalog.streaming.commit.staging import in_objects
from kafkalog.streaming.objects import bucket_log, bucket_store, sweeping

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["BucketResult", "run_bucket"]

_PLACE: Final = "s3a://bucket/log"
_START_NS: Final = 1_700_000_000_000_000_000
_REQUESTS: Final = ("late", "unanswered", "unsent")
_AGES_S: Final = (660.0, 90_000.0, 8 * 86_400.0, 31 * 86_400.0)
_FAULTS: Final = {
    "kill": 250,
    "interrupt": 250,
    "pause": 150,
    "jump": 300,
    "age": 200,
    "asleep": 200,
    "late": 60,
    "unanswered": 60,
    "unsent": 60,
}


@dataclass
class BucketResult:
    """What a history came to."""

    found: list[str]
    faults: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    requests: Counter[str] = field(default_factory=Counter)
    rows: int = 0
    """How many the last look gave."""


class _Bucket:
    """The objects of all, and what becomes of the next request of a process."""

    root = _PLACE
    tries = 3

    def __init__(self, machine: Machine) -> None:
        self.kept = MemoryObjects(_PLACE)
        self._scheduler = machine.scheduler
        self._due: dict[int, list[str]] = {}
        """Of the next requests of processes, by their numbers."""
        self._late: list[tuple[int, str, tuple[Any, ...]]] = []
        """What is still to arrive, and after how many steps of all."""
        kinds = {what: self._fault(what) for what in _REQUESTS}
        machine.instead = {**kinds, "age": self._age, "asleep": self._sleep}

    def _fault(self, what: str) -> Callable[[int], None]:
        def happens(value: int) -> None:
            self._due[self._scheduler.running.process.number] = [what] * (1 + value % 7)
            self._delay = 1 + value % 600

        return happens

    def _age(self, value: int) -> None:
        """Let nobody do anything for a while."""
        self._scheduler.now += int(_AGES_S[value % len(_AGES_S)] * 1e9)

    def _sleep(self, value: int) -> None:
        """Let a process stand still for days, while others go on."""
        self._scheduler.pause(_AGES_S[value % len(_AGES_S)])

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *given: self._ask(name, given)

    def list_after(self, folder: str, after: str = "", limit: int = 1 << 62) -> Any:
        return self._ask("list_after", (folder, after, limit))

    def put_pieces(self, name: str, pieces: Callable[[], Iterator[bytes]]) -> None:
        self._ask("put", (name, b"".join(pieces())))

    def _ask(self, name: str, given: tuple[Any, ...]) -> Any:
        for _ in range(1 if name == "create" else self.tries):
            self._scheduler.step(name)
            self.arrive()
            due = self._due.get(self._scheduler.running.process.number)
            fault = due.pop() if due else ""
            if fault == "late":
                self._late.append((self._scheduler.total_steps + self._delay, name, given))
            answer = self._do(name, given) if fault in {"", "unanswered"} else None
            self._scheduler.step(name)
            if not fault:
                return answer
            self._scheduler.sleep(0.5)
        if name == "create":
            return Creation.UNKNOWN
        raise LogDirectoryError(f"{given[0]}: the store did not answer to {name}")

    def _do(self, name: str, given: tuple[Any, ...]) -> Any:
        answer = getattr(self.kept, name)(*given)
        if name in {"create", "put"} and answer is not Creation.TAKEN:
            # the store's clock is nobody else's
            self.kept.kept[given[0]] = given[1], _START_NS + self._scheduler.now
        return answer

    def arrive(self, *, all_of_it: bool = False) -> None:
        """Let requests arrive that are late enough; nobody hears of their answers."""
        steps = self._scheduler.total_steps
        due = [each for each in self._late if all_of_it or each[0] <= steps]
        self._late = [each for each in self._late if each not in due]
        for _, name, given in due:
            self._do(name, given)


def _maintainer(scene: Scene, name: str, operations: int, chance: random.Random) -> None:
    """What merges, deletes, sweeps and cleans up, from one of several places."""
    for _ in range(max(operations // 2, 1)):
        with scene.at_work(name):
            scene.rest(chance)
            BucketMaintenance(Scope(log=scene.path), say=lambda _: None).round()


_ACTORS: Final[dict[str, Callable[[Scene, str, int, random.Random], None]]] = {
    "appender": appender,
    "versioned": versioned,
    "reader": reader,
    "follower": follower,
    "maintainer": _maintainer,
    "deleter": deleter,
}


def run_bucket(seed: str, *, calm: bool = False) -> BucketResult:
    """Draw a history, run it, and audit what happened; with ``calm`` nothing goes wrong."""
    chance = random.Random(seed)
    kinds = [*chance.choices(("appender", "versioned"), k=chance.choice((2, 3)))]
    kinds += chance.choices(("reader", "follower"), k=2)
    kinds += chance.choices(("maintainer", "maintainer", "deleter"), k=chance.choice((1, 2, 2)))
    every = chance.choice((1, 2, 5))
    faults = {what: n * every for what, n in _FAULTS.items() if chance.random() < 0.6}
    rates = Rates(chance.choice((3, 10)), {} if calm else faults)
    scheduler = Scheduler(seed, rates, start_ns=_START_NS)
    machine, history = Machine(scheduler), History()
    bucket = _Bucket(machine)
    given = {"flush": "commit", "storage.deleteDelay": "1h", "segment.bytes": "600"}
    scene = Scene(machine, history, _plan(given, chance, loses="deleter" in kinds))
    scene.paths, scene.path = [_PLACE], _PLACE
    gc.collect()
    gc.disable()
    try:
        with installed(machine), scene.listening(), _in_store(bucket, small=chance.random() < 0.5):
            scheduler.run({"begin": lambda: write_first(scene)}, calm=True)
            scene.may_fail = not calm
            scheduler.run(
                {
                    f"{kind}{number}": _actor(scene, seed, f"{kind}{number}", kind)
                    for number, kind in enumerate(kinds)
                }
            )
            bucket.arrive(all_of_it=True)
            scene.may_fail = False
            scheduler.run({"end": lambda: _end(scene)}, calm=True)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
        history.errors.append(f"{type(error).__name__}: {error}")
    finally:
        gc.enable()
    return BucketResult(
        Audit(history).found,
        Counter(machine.faults),
        Counter(write.outcome for write in history.writes),
        bucket.kept.requests,
        len(history.reads[-1].rows) if history.reads else 0,
    )


def _plan(options: dict[str, str], chance: random.Random, *, loses: bool) -> dict[str, Any]:
    return {
        "partitions": chance.choice((1, 2, 3)),
        "directories": 1,
        "options": options,
        "has_other": False,
        "repeats_keys": False,
        "has_empty_batches": False,
        "has_broker": False,
        "may_lose": loses,
    }


def _actor(scene: Scene, seed: str, name: str, kind: str) -> Callable[[], None]:
    chance = random.Random(f"{seed}/{name}/plan")
    return lambda: _ACTORS[kind](scene, name, chance.randrange(5, 12), chance)


def _end(scene: Scene) -> None:
    appender(scene, "end", 1, random.Random(0))
    look(scene, "end")


@contextlib.contextmanager
def _in_store(bucket: _Bucket, *, small: bool) -> Iterator[None]:
    """Let logs in object stores lie in the bucket; few commits are kept, and some little inline."""
    with contextlib.ExitStack() as undo:

        def patch(module: Any, name: str, value: object) -> None:
            undo.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, value)

        patch(bucket_store, "open_objects", lambda _: bucket)
        patch(bucket_log, "check_create_is_exclusive", lambda *_: None)
        patch(sweeping, "_KEEP_COMMITS", 3)
        patch(bucket_log, "_COMMITS_BETWEEN", 4)
        if small:
            patch(in_objects, "MAX_INLINE_BYTES", 10)
            patch(bucket_commit, "MAX_INLINE_BYTES", 10)
        yield
