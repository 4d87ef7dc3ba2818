"""All that may happen to log directories with a few small batches: a search over the real code.

A *world* is a simulated disk with what queries have in memory and in their checkpoints. Its steps:

- a query stages its next batch, or commits what it has staged; it may be killed at each change of
  a file on the way, and starts again as a new run;
- a commit is interrupted at each change of a file (Ctrl-C, a time-out by a signal): the process
  lives on and cleans up, and the query starts again as a new run;
- a query's driver is replaced while it stands still between staging and committing; the old one
  wakes up at any later time and commits (a zombie);
- a query's checkpoint is lost: it starts again at batch 0, and plans other rows for it;
- a copy takes the place of the directory, made while a query committed: what lies in the root is of
  an earlier moment than the partitions, or no later one. A query may be refused then;
- a broker starts, unless it is kept out; it recovers, appends, and stops or is killed.

Commits hold the locks of all directories, so that nothing but a kill can come between their
changes; readers, who hold none, are searched in ``tests.support.reader_model``. Worlds that hold
the same are visited once. In each one these must hold:

1. what a reader sees are whole batches, each once, those of a query in order from its first;
2. what it saw before is still there, in its place;
3. a commit that returned is seen;
4. a log that holds more than that is guarded against a broker;
5. what a broker appended stays in the log;
6. the mark of a clean shutdown is gone once a log differs from what the broker left;
7. a run that was replaced, and whose successor has committed, appends nothing;
8. a query whose checkpoint was not lost can go on.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import count
from typing import TYPE_CHECKING, Final

from tests.support.disk_calls import MOUNT, Machine, simulated
from tests.support.model_broker import run_broker
from tests.support.sinking import Writer, rows

from kafkalog.checkpoints.broker import CLEAN_SHUTDOWN, LOCK
from kafkalog.checkpoints.commit_state import LOCK_FILE, UNFINISHED_FOLDER
from kafkalog.errors import KafkaLogError
from kafkalog.files.deferred_signals import Interrupted, current
from kafkalog.streaming.log.files import parse_partition_directory
from kafkalog.streaming.records.columns import Columns, RecordDecoder
from kafkalog.streaming.source.end_offsets import EndOffsets
from kafkalog.streaming.store.log_dirs import LogDirs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.disk import Change, Disk

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.commit.staging.staged_run import StagedRun
    from kafkalog.streaming.log.partition_log import PartitionLog

__all__ = [
    "LOG_DIR",
    "UNTOLD",
    "Bounds",
    "Broken",
    "Query",
    "World",
    "commit_next",
    "first_world",
    "search",
    "visible",
]

LOG_DIR: Final = MOUNT / "log"
_PARTITIONS: Final = 2
_DECODER: Final = RecordDecoder(Columns.VALUE | Columns.OFFSET)
UNTOLD: Final = frozenset({LOCK_FILE, LOCK})
"""Files whose bytes mean nothing."""

Contents = dict["TopicPartition", tuple[str, ...]]


class Broken(AssertionError):  # noqa: N818 - what is broken is a promise
    """A promise that does not hold; the message tells the steps that led there."""


@dataclass(frozen=True)
class Bounds:
    """How much may happen on the way to one world."""

    batches: int = 2
    kills: int = 1
    brokers: int = 1
    zombies: int = 1
    losses: int = 1
    interrupts: int = 0
    hot_copies: int = 0


@dataclass(frozen=True)
class Staged:
    """A batch that a run has staged and not committed."""

    run: int
    batch: int
    generation: int
    runs: tuple[StagedRun, ...]


@dataclass(frozen=True)
class Query:
    """A query: its checkpoint (``batch``, ``generation``), its run, and what it has in memory."""

    name: str
    batch: int = 0
    run: int = 0
    generation: int = 0
    staged: Staged | None = None
    zombie: Staged | None = None
    reported: int = 0
    """Batches whose commit returned."""
    latest_run: int = -1
    """The last run that is known to have committed."""
    stuck: bool = False


@dataclass(frozen=True)
class World:
    """A disk and the queries; ``left`` is what may still happen, ``steps`` how it came about."""

    disk: Disk
    queries: tuple[Query, ...]
    left: Bounds
    seen: Contents = field(default_factory=dict)
    by_broker: tuple[str, ...] = ()
    left_clean: bytes = b""
    is_hot_copy: bool = False
    """Whether the files are of several moments: then a query may be refused, but not doubled."""
    steps: tuple[str, ...] = ()

    @property
    def key(self) -> object:
        """What tells worlds apart."""
        disk = self.disk.digest(without=UNTOLD)
        told = (self.by_broker, self.left_clean, self.is_hot_copy)
        return (disk, self.queries, self.left, *told)


def first_world(bounds: Bounds, *names: str) -> World:
    """Return an empty log directory, and queries that have written nothing."""
    machine = Machine()
    with simulated(machine):
        LOG_DIR.mkdir()
        _writer(Query(names[0]), 0).plan()
    return World(machine.disk.copy(), tuple(Query(name) for name in names), bounds)


def search(first: World) -> int:
    """Visit every world that can come about; give how many there are.

    Raises:
        Broken: something does not hold in one of them.
    """
    visited = {first.key}
    waiting = [first]
    while waiting:
        world = waiting.pop()
        for following in _steps(world):
            checked = _checked(world, following)
            if checked.key not in visited:
                visited.add(checked.key)
                waiting.append(checked)
    return len(visited)


# Steps


def _steps(world: World) -> Iterator[World]:
    for slot, query in enumerate(world.queries):
        if query.zombie is not None:
            yield _wake(world, slot)
        if query.stuck:
            continue
        if query.staged is None and query.batch < world.left.batches:
            yield from _stage(world, slot)
        if query.staged is not None:
            yield from _commit(world, slot)
            yield from _mishaps(world, slot)
            if world.left.zombies and query.zombie is None:
                yield _replace_driver(world, slot)
        if world.left.losses and query.reported:
            yield _lose_checkpoint(world, slot)
    if world.left.brokers:
        yield from _broker(world)


def _mishaps(world: World, slot: int) -> Iterator[World]:
    if world.left.interrupts:
        yield from _interrupted(world, slot)
    if world.left.hot_copies:
        yield from _hot_copies(world, slot)


def _stage(world: World, slot: int) -> Iterator[World]:
    query = world.queries[slot]
    machine = _machine(world, query.name, query.run, query.batch, query.generation)
    try:
        with simulated(machine):
            runs = _writer(query, query.run).stage(query.batch, *_tasks(query))
    except KafkaLogError:
        if not world.is_hot_copy:
            raise
        yield _next(world, machine.disk.copy(), slot, _idle(query, stuck=True), "is refused")
        return
    yield from _killed(world, slot, machine, "staging")
    staged = Staged(query.run, query.batch, query.generation, tuple(runs))
    after = replace(query, staged=staged)
    yield _next(world, machine.disk.copy(), slot, after, "stages")


def _commit(world: World, slot: int) -> Iterator[World]:
    query = world.queries[slot]
    assert query.staged is not None
    machine = _machine(world, query.name, query.run, query.batch, query.generation, "commit")
    try:
        with simulated(machine):
            _commit_staged(query, query.staged)
    except KafkaLogError as error:
        if not query.generation and not world.is_hot_copy:
            raise Broken(f"{query.name} cannot go on: {error}\n{_told(world)}") from error
        yield _next(world, machine.disk.copy(), slot, _idle(query, stuck=True), "is refused")
        return
    yield from _killed(world, slot, machine, "committing")
    after = replace(
        _idle(query),
        batch=query.batch + 1,
        reported=max(query.reported, query.batch + 1),
        latest_run=query.run,
    )
    yield _next(world, machine.disk.copy(), slot, after, "commits")


def _interrupted(world: World, slot: int) -> Iterator[World]:
    """Return the worlds in which a commit was interrupted before each change, and cleaned up."""
    query = world.queries[slot]
    assert query.staged is not None
    after = replace(_idle(query), run=query.run + 1)
    left = replace(world.left, interrupts=world.left.interrupts - 1)
    for number in count():
        machine = _machine(world, query.name, query.run, query.batch, query.generation, "commit")
        interrupt = machine.before = _Interrupt(number)
        with simulated(machine):
            try:
                _commit_staged(query, query.staged)
            except Interrupted:
                pass
            except KafkaLogError:
                return  # what is refused without an interrupt, too
            held = len(machine.locks)
        if not interrupt.has_come:
            return
        told = f"is interrupted committing, after {number} changes"
        _hold(world, not held, f"{query.name} {told} and holds {held} locks")
        yield replace(_next(world, machine.disk.copy(), slot, after, told), left=left)


class _Interrupt:
    """Interrupts the caller of a commit once, before a change: the commit is asked to stop."""

    def __init__(self, number: int) -> None:
        self._left = number
        self.has_come = False

    def __call__(self, _: Change) -> None:
        self._left -= 1
        if self._left == -1:
            self.has_come = True
            running = current()
            assert running is not None, "a commit changes files where an interrupt may reach it"
            running.is_asked_to_stop = True


def _wake(world: World, slot: int) -> World:
    """Let the old driver commit what it staged before it was replaced."""
    query = world.queries[slot]
    zombie = query.zombie
    assert zombie is not None
    machine = _machine(world, query.name, zombie.run, zombie.batch, zombie.generation, "late")
    appended = False
    try:
        with simulated(machine):
            appended = _commit_staged(query, zombie)
    except KafkaLogError:
        pass
    if appended and query.latest_run > zombie.run:
        raise Broken(f"{query.name}: a replaced run has appended\n{_told(world)}")
    return _next(world, machine.disk.copy(), slot, replace(query, zombie=None), "wakes up late")


def _replace_driver(world: World, slot: int) -> World:
    query = world.queries[slot]
    after = replace(_idle(query), run=query.run + 1, zombie=query.staged)
    left = replace(world.left, zombies=world.left.zombies - 1)
    return replace(_next(world, world.disk, slot, after, "is replaced"), left=left)


def _lose_checkpoint(world: World, slot: int) -> World:
    query = world.queries[slot]
    after = replace(_idle(query), batch=0, run=query.run + 1, generation=query.generation + 1)
    left = replace(world.left, losses=world.left.losses - 1)
    return replace(_next(world, world.disk, slot, after, "loses its checkpoint"), left=left)


def _broker(world: World) -> Iterator[World]:
    for ending in ("stops", "is killed"):
        machine = _machine(world, "broker", ending)
        with simulated(machine):
            if (LOG_DIR / UNFINISHED_FOLDER).is_dir() or not LogDirs([LOG_DIR]).partitions():
                return
            served = _contents(log_end=True)
            if served != visible() and not world.by_broker:
                raise Broken(f"a broker serves {served}\n{_told(world)}")
            value = f"broker/{len(world.by_broker)}"
            run_broker(LOG_DIR, value, clean=ending == "stops")
            logs = _logs_digest(machine.disk) if ending == "stops" else b""
        yield replace(
            world,
            disk=machine.disk.copy(),
            left=replace(world.left, brokers=world.left.brokers - 1),
            by_broker=(*world.by_broker, value),
            left_clean=logs,
            steps=(*world.steps, f"a broker appends and {ending}"),
        )


def _killed(world: World, slot: int, machine: Machine, doing: str) -> Iterator[World]:
    """Return the worlds in which the query was killed before each change but the first."""
    if not world.left.kills:
        return
    query = world.queries[slot]
    after = replace(_idle(query), run=query.run + 1)
    left = replace(world.left, kills=world.left.kills - 1)
    disk = world.disk.copy()
    for inode in machine.disk.folders:
        disk.folders.setdefault(inode, {})
    for inode in machine.disk.files:
        disk.files.setdefault(inode, b"")
    for number, change in enumerate(machine.disk.changes):
        disk.apply(change)
        told = f"is killed {doing}, after {number + 1} changes"
        yield replace(_next(world, disk.copy(), slot, after, told), left=left)


def _hot_copies(world: World, slot: int) -> Iterator[World]:
    """Return the worlds in which a copy made amid a commit has taken the place of the set.

    What lies in the root of the log directory was copied before the partitions.
    """
    query = world.queries[slot]
    assert query.staged is not None
    machine = _machine(world, query.name, query.run, query.batch, query.generation, "commit")
    try:
        with simulated(machine):
            _commit_staged(query, query.staged)
    except KafkaLogError:
        return
    disk = world.disk.copy()
    for inode in machine.disk.folders:
        disk.folders.setdefault(inode, {})
    for inode in machine.disk.files:
        disk.files.setdefault(inode, b"")
    moments = [disk.copy()]
    for change in machine.disk.changes:
        disk.apply(change)
        moments.append(disk.copy())
    last = len(moments) - 1
    after = replace(_idle(query), run=query.run + 1)
    left = replace(world.left, hot_copies=world.left.hot_copies - 1)
    pairs = [(0, number) for number in range(last)] + [(number, last) for number in range(last)]
    for root, partitions in pairs:
        copy = _copied_at(moments[root], moments[partitions])
        told = f"is killed; a copy of change {root} (root) and {partitions} takes the set's place"
        yield replace(_next(world, copy, slot, after, told), left=left, is_hot_copy=True)


def _copied_at(root: Disk, partitions: Disk) -> Disk:
    """Return a disk with the files in the log directory of one, and the partitions of another."""
    disk = partitions.copy()
    log = disk.find((LOG_DIR.name,))
    names = {
        name: inode
        for name, inode in disk.folders[log].items()
        if parse_partition_directory(name) is not None
    }
    for name, inode in root.folders[log].items():
        if parse_partition_directory(name) is None:
            names[name] = inode
            if inode in root.files:
                disk.files[inode] = root.files[inode]
    disk.folders[log] = names
    return disk


def _idle(query: Query, *, stuck: bool = False) -> Query:
    return replace(query, staged=None, stuck=stuck)


def _next(world: World, disk: Disk, slot: int, query: Query, told: str) -> World:
    queries = (*world.queries[:slot], query, *world.queries[slot + 1 :])
    step = f"{query.name} (run {query.run}, batch {query.batch}) {told}"
    return replace(world, disk=disk, queries=queries, steps=(*world.steps, step))


def _machine(world: World, *who: object) -> Machine:
    machine = Machine(world.disk.copy())
    # What it draws at random depends on who it is, so that like steps lead to like worlds.
    machine.process = int.from_bytes(blake2b(repr(who).encode(), digest_size=4).digest(), "big")
    return machine


def _writer(query: Query, run: int) -> Writer:
    return Writer(
        LOG_DIR,
        name=query.name,
        run=f"run-{run}",
        topic="t",
        numPartitions=str(_PARTITIONS),
        allowBrokerDirectory="true",
    )


def _commit_staged(query: Query, staged: Staged) -> bool:
    digest = f"{staged.batch}, {staged.generation}"
    outcome = _writer(query, staged.run).commit(staged.batch, staged.runs, digest=digest)
    return outcome.appended


def _tasks(query: Query) -> list[object]:
    """Make a batch: a row for each partition."""
    values = [f"{query.name}/{query.batch}/{number}" for number in range(_PARTITIONS)]
    return [rows(values, partitions=list(range(_PARTITIONS)))]


# What must hold


def _checked(before: World, world: World) -> World:
    machine = Machine(world.disk)
    with simulated(machine):
        try:
            seen = visible()
            at_end = _contents(log_end=True)
        except KafkaLogError as error:
            raise Broken(f"a reader fails: {error}\n{_told(world)}") from error
        guarded = (LOG_DIR / UNFINISHED_FOLDER).is_dir()
        marked = (LOG_DIR / CLEAN_SHUTDOWN).exists()
    own = [v for values in seen.values() for v in values if not v.startswith("broker/")]
    _hold(world, _whole_batches(own, world.queries), f"a reader sees {seen}")
    for key, values in before.seen.items():
        _hold(world, seen.get(key, ())[: len(values)] == values, f"{key} had {values}: {seen}")
    for query in world.queries:
        for batch in range(query.reported):
            _hold(world, f"{query.name}/{batch}/0" in own, f"{query.name}/{batch} is lost: {seen}")
    if not world.by_broker and not world.is_hot_copy:
        _hold(world, guarded or at_end == seen, f"unguarded: {at_end}")
    logged = {value for values in at_end.values() for value in values}
    _hold(world, logged >= set(world.by_broker), f"the broker's records are gone: {at_end}")
    if marked:
        _hold(world, _logs_digest(world.disk) == world.left_clean, "marked as clean, and is not")
    return replace(world, seen=seen)


def _hold(world: World, holds: bool, what: str) -> None:
    if not holds:
        raise Broken(f"{what}\n{_told(world)}")


def _told(world: World) -> str:
    return "\n".join(world.steps)


def _whole_batches(values: list[str], queries: tuple[Query, ...]) -> bool:
    counts = Counter(tuple(value.split("/")[:2]) for value in values)
    once = len(values) == len(set(values))
    whole = all(count == _PARTITIONS for count in counts.values())
    from_first = all(
        (query.name, str(batch)) in counts
        for query in queries
        for batch in range(sum(name == query.name for name, _ in counts))
    )
    return once and whole and from_first


def commit_next(query: Query) -> None:
    """Stage and commit a query's next batch."""
    runs = _writer(query, query.run).stage(query.batch, *_tasks(query))
    _commit_staged(query, Staged(query.run, query.batch, query.generation, tuple(runs)))


def visible() -> Contents:
    """Read as a query does: to the committed ends."""
    return _contents(log_end=False)


def _contents(*, log_end: bool) -> Contents:
    tail = EndOffsets([str(LOG_DIR)], lambda _: True, to_log_end=log_end)
    found = {}
    for key, end in tail.look().offsets.items():
        with tail.open(key) as log:
            found[key] = _values(log, end)
    return {key: values for key, values in found.items() if values}


def _values(log: PartitionLog, end: int) -> tuple[str, ...]:
    return tuple(
        value.decode()
        for part in log.slices(0, end)
        for batch in log.read_slice(part, _DECODER, committed_end=end)
        for value in batch.column("value").to_pylist()
    )


def _logs_digest(disk: Disk) -> bytes:
    logs = {path: data for path, data in disk.tree().items() if path.endswith(".log")}
    return repr(sorted(logs.items())).encode()
