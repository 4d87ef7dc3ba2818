"""Batches with ``flush=os`` and ``flush=commit`` in every order, kills, and a loss of power.

A *world* is a simulated disk, what of it is durable, and the queries that write to it. Its steps:

- a query writes its next batch, with either ``flush``; it may be killed at each change of the
  commit, and starts again as a new run, with either ``flush``;
- power goes before an fsync of a commit that covers something, or after the commit. Of what no
  fsync covered, either nothing survives, or everything, or all names without the bytes, or one
  segment or file with its name, or of one file the last write alone. The machine starts again: its
  run has another id.

Queries differ in what they write: the first to both partitions, the others to one. So a log may be
left unsynced while the other one is durable. After a loss of power these must hold:

1. A batch whose commit returned is in the commit state, with either ``flush``.
2. Readers see all that the state says is committed. They refuse if any of it is lost. So does the
   next writer; it may refuse, too, to roll back a commit with ``flush=os``, whose staged files may
   be lost. A refusal names ``recover --accept-os-loss``.
3. After that command each log is what was committed, or lacks its end. It ends with a whole batch,
   and not below what was durable: the last batch with ``flush=commit`` to it that returned, or
   that the state knows. The command says exactly which offsets are gone. It finds nothing to do
   if it is run again.
4. Every query can continue, and its rows come after those that are there. Nothing is left over.
"""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from tests.support.commit_model import UNTOLD, Broken
from tests.support.disk import Disk, Resized, Synced, Written
from tests.support.disk_calls import MOUNT, Machine, simulated
from tests.support.power_loss import Unsynced
from tests.support.scenes import Case, Scene, check_indexes
from tests.support.sinking import Writer, rows

from kafkalog.checkpoints.state_file import load_state
from kafkalog.errors import KafkaLogError
from kafkalog.files.system import system
from kafkalog.streaming.admin.recovery import recover
from kafkalog.streaming.records.columns import Columns, RecordDecoder
from kafkalog.streaming.source.end_offsets import EndOffsets

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tests.support.disk import Change

    from kafkalog.streaming.admin.recovery import RecoveryReport
    from kafkalog.streaming.log.partition_log import PartitionLog

__all__ = ["Bounds", "search_mixed_flush"]

_SCENE: Final = Scene(Case("mixed flush", 0), MOUNT, topics=("t",))
_LOG_DIR: Final = _SCENE.directories[0]
_FLUSHES: Final = ("os", "commit")
_ROWS: Final = 2
"""Of a batch, in each partition: it could be torn between them."""
_COMMAND: Final = "recover --accept-os-loss"
_DECODER: Final = RecordDecoder(Columns.VALUE | Columns.OFFSET)

_Rows = dict[int, tuple[str, ...]]
"""By partition; an offset is a place in them."""


@dataclass(frozen=True)
class Bounds:
    """How much may happen: batches of all queries, kills, losses of power.

    With ``is_new`` the first of these batches makes the topic; else a durable one has. With
    ``rolls`` each batch lies in a segment of its own. Power goes ``amid`` commits, or only after
    them. If that is ``thorough``, each file of a segment may survive by itself, and all but one.
    """

    batches: int
    kills: int = 0
    losses: int = 1
    queries: tuple[str, ...] = ("a", "b")
    is_new: bool = False
    rolls: bool = False
    thorough: bool = False
    amid: bool = True


@dataclass(frozen=True)
class _Query:
    """``batch`` is the next one: those before it have returned."""

    name: str
    partitions: tuple[int, ...]
    batch: int = 0
    run: int = 0

    def rows(self) -> _Rows:
        """Return the rows of its next batch."""
        return {
            number: tuple(f"{self.name}/{self.batch}/{number}/{row}" for row in range(_ROWS))
            for number in self.partitions
        }


@dataclass(frozen=True)
class _World:
    """A disk and its writers; ``left`` is what may still happen, ``steps`` how it came about.

    ``rows`` are committed, ``durable`` says how many of them a loss of power must leave.
    """

    disk: Disk
    unsynced: Unsynced
    queries: tuple[_Query, ...]
    left: Bounds
    rows: _Rows = field(default_factory=dict)
    durable: Mapping[int, int] = field(default_factory=dict)
    boot: int = 0
    steps: tuple[str, ...] = ()

    @property
    def batches(self) -> int:
        """How many batches have returned since the search began."""
        return sum(query.batch for query in self.queries) - (not self.left.is_new)

    @property
    def key(self) -> object:
        told = repr((sorted(self.rows.items()), sorted(self.durable.items()), self.boot))
        disk = (self.disk.digest(UNTOLD), _digest(self.unsynced))
        return (*disk, self.queries, self.left, told)


@dataclass(frozen=True)
class _Commit:
    """A commit of ``query`` in ``world``: the machine that it ran on, which was not told to die."""

    world: _World
    slot: int
    flush: str
    machine: Machine
    begins: int
    """The number of changes before it: those of its tasks."""
    is_known: bool
    """Whether an earlier run has published this batch: it counts, though its rows may be lost."""

    @property
    def query(self) -> _Query:
        return self.world.queries[self.slot]

    @property
    def told(self) -> str:
        return f"{self.query.name} (run {self.query.run}, batch {self.query.batch}, {self.flush})"

    def possible_rows(self) -> _Rows:
        """Return what is committed once it is published."""
        known = self.world.rows
        if self.is_known:
            return known
        return known | {p: known.get(p, ()) + added for p, added in self.query.rows().items()}

    def durable(self, of: _Rows) -> dict[int, int]:
        """Return how much of rows must survive once it has returned."""
        ends = {p: len(of.get(p, ())) for p in self.query.partitions if self.flush == "commit"}
        return {**self.world.durable, **ends}

    def moments(self) -> Iterator[tuple[int, Change | None, Unsynced, Disk]]:
        """Return the disk before each change, and after the last one. They change afterwards."""
        disk, unsynced = self.world.disk.copy(), _copy(self.world.unsynced)
        for inode in self.machine.disk.folders:
            disk.folders.setdefault(inode, {})
            unsynced.durable.folders.setdefault(inode, {})
        for inode in self.machine.disk.files:
            disk.files.setdefault(inode, b"")
        changes = self.machine.disk.changes
        for number, change in enumerate([*changes, None]):
            if number >= self.begins:
                yield number, change, unsynced, disk
            if change is not None:
                disk.apply(change)
                unsynced.add(change)


def search_mixed_flush(bounds: Bounds) -> tuple[int, int]:
    """Visit every world that can come about.

    Returns:
        how many disks were looked at that a loss of power has left, and on how many of them
        something was lost.

    Raises:
        Broken: something does not hold in one of them.
    """
    return _Search(bounds).run()


class _Search:
    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._visited: set[object] = set()
        self._waiting: deque[_World] = deque()
        self._left: set[object] = set()
        """The disks after a loss of power, with what must hold there."""
        self._lossy = 0

    def run(self) -> tuple[int, int]:
        self._wait(_first(self._bounds))
        while self._waiting:
            world = self._waiting.popleft()
            if world.batches < self._bounds.batches:
                for slot in range(len(world.queries)):
                    for flush in _FLUSHES:
                        self._write(world, slot, flush)
        return len(self._left), self._lossy

    def _wait(self, world: _World) -> None:
        if world.key not in self._visited:
            self._visited.add(world.key)
            self._waiting.append(world)

    def _write(self, world: _World, slot: int, flush: str) -> None:
        commit = _commit(world, slot, flush)
        for number, change, unsynced, disk in commit.moments():
            if change is None:
                self._wait(_returned(commit, unsynced))
            elif world.left.kills:
                self._wait(_killed(commit, number, unsynced, disk))
            amid = self._bounds.amid and _covers(change, unsynced)
            if world.left.losses and (change is None or amid):
                where = f"power goes after {number} changes of {commit.told}"
                self._lose_power(commit, where, unsynced, returned=change is None)

    def _lose_power(
        self, commit: _Commit, where: str, unsynced: Unsynced, *, returned: bool
    ) -> None:
        for what, disk in _survivors(unsynced, thorough=self._bounds.thorough):
            after = _Aftermath(commit, f"{where}, {what}", disk, returned=returned)
            if after.key not in self._left:
                self._left.add(after.key)
                world, lost = after.accept()
                self._lossy += lost
                if world.left.losses:
                    self._wait(world)


def _first(bounds: Bounds) -> _World:
    machine = Machine()
    queries = tuple(
        _Query(name, (0,) if number else (0, 1)) for number, name in enumerate(bounds.queries)
    )
    with simulated(machine):
        _LOG_DIR.mkdir()
        _writer(bounds, queries[0], "commit").plan()
    world = _all_durable(_World(machine.disk, Unsynced(machine.disk), queries, bounds))
    if bounds.is_new:
        return world
    commit = _commit(world, 0, "commit")
    return _all_durable(_returned(commit, world.unsynced))


def _all_durable(world: _World) -> _World:
    disk = world.disk.copy()
    return replace(world, disk=disk, unsynced=Unsynced.after(disk, disk.folders))


# Writing


def _commit(world: _World, slot: int, flush: str) -> _Commit:
    """Let a query write its next batch.

    Raises:
        Broken: it cannot.
    """
    query = world.queries[slot]
    machine = _machine(world.disk, query, flush, world.boot)
    with simulated(_machine(world.disk, "look")):
        is_known = _known_batches().get(query.name, 0) > query.batch
    commit = _Commit(world, slot, flush, machine, 0, is_known)
    try:
        with _running(machine, world.boot):
            writer = _writer(world.left, query, flush)
            values = [value for part in query.rows().values() for value in part]
            partitions = [number for number, part in query.rows().items() for _ in part]
            runs = writer.stage(query.batch, rows(values, partitions=partitions))
            begins = len(machine.disk.changes)
            writer.commit(query.batch, runs, digest=str(query.batch))
            seen = _visible()
    except KafkaLogError as error:
        raise Broken(f"{commit.told} cannot write: {error}\n{_told(world)}") from error
    _hold(world, seen == commit.possible_rows(), f"after {commit.told} a reader sees {seen}")
    return replace(commit, begins=begins)


def _returned(commit: _Commit, unsynced: Unsynced) -> _World:
    found = commit.possible_rows()
    queries = _replaced(commit, replace(commit.query, batch=commit.query.batch + 1, run=0))
    return replace(
        commit.world,
        disk=commit.machine.disk.copy(),
        unsynced=_copy(unsynced),
        queries=queries,
        rows=found,
        durable=commit.durable(found),
        steps=(*commit.world.steps, f"{commit.told} is committed"),
    )


def _killed(commit: _Commit, number: int, unsynced: Unsynced, disk: Disk) -> _World:
    """Return the world in which a commit was killed before a change."""
    world = commit.world
    left = replace(world.left, kills=world.left.kills - 1)
    steps = (*world.steps, f"{commit.told} is killed after {number} changes")
    after = replace(
        world,
        disk=disk.copy(),
        unsynced=_copy(unsynced),
        queries=_replaced(commit, replace(commit.query, run=commit.query.run + 1)),
        left=left,
        steps=steps,
    )
    with _running(_machine(disk, "reader"), world.boot):
        seen = _visible()
    _hold(after, seen in (world.rows, commit.possible_rows()), f"a reader sees {seen}")
    return replace(after, rows=seen)


def _replaced(commit: _Commit, query: _Query) -> tuple[_Query, ...]:
    queries = commit.world.queries
    return (*queries[: commit.slot], query, *queries[commit.slot + 1 :])


# What a loss of power leaves


def _covers(change: Change | None, unsynced: Unsynced) -> bool:
    """Return whether a change makes anything durable: before it, most may be lost."""
    if not isinstance(change, Synced):
        return False
    return change.inode in unsynced.data or any(at == change.inode for at, _ in unsynced.names)


def _survivors(unsynced: Unsynced, *, thorough: bool) -> Iterator[tuple[str, Disk]]:
    """Return disks that a loss of power may leave, and what survives on them."""
    parts = _parts(unsynced, thorough=thorough)
    every = [change for part in parts.values() for change in part]
    picks = {"and nothing survives": [], "and all survives": every}
    picks["and names survive"] = [each for each in every if isinstance(each, _Named)]
    for what, part in parts.items():
        picks[f"and {what} survives"] = part
        if thorough:
            others = [each for key, other in parts.items() if key != what for each in other]
            picks[f"and all but {what} survives"] = others
    for inode, changes in unsynced.data.items():
        if len(changes) > 1:
            last = [*_names_of(unsynced, inode), changes[-1]]
            picks[f"and the last change of {inode} survives"] = last
    found = set()
    for what, survives in picks.items():
        disk = _left_by(unsynced.durable, survives)
        digest = disk.digest(UNTOLD)
        if digest not in found:
            found.add(digest)
            yield what, disk


@dataclass(frozen=True)
class _Named:
    """What a name in a folder, by inode, came to mean last."""

    folder: int
    name: str
    inode: int | None


_Part = list["_Named | Written | Resized"]


def _parts(unsynced: Unsynced, *, thorough: bool) -> dict[str, _Part]:
    """Return what survives together: a file's bytes, and the names that lead to them.

    Unless that is ``thorough``, the files of a segment survive together.
    """
    parts: dict[str, _Part] = {}
    for (folder, name), versions in unsynced.names.items():
        inode = versions[-1]
        above = _names_of(unsynced, folder)
        data = unsynced.data.get(inode, []) if inode is not None else []
        stem = name.partition(".")[0]
        known = name if thorough or not stem.isdecimal() else stem
        part = parts.setdefault(f"{known} in {folder}", above)
        part += [_Named(folder, name, inode), *data]
    for inode, changes in unsynced.data.items():
        if not _names_of(unsynced, inode):
            parts[f"{inode}"] = list(changes)
    return parts


def _names_of(unsynced: Unsynced, inode: int) -> _Part:
    """Return the names that lead to an inode and are not durable, from above."""
    for (folder, name), versions in unsynced.names.items():
        if versions[-1] == inode:
            return [*_names_of(unsynced, folder), _Named(folder, name, inode)]
    return []


def _left_by(durable: Disk, survives: Sequence[_Named | Written | Resized]) -> Disk:
    disk = durable.copy()
    for each in survives:
        if not isinstance(each, _Named):
            disk.files.setdefault(each.inode, b"")
            disk.apply(each)
        elif each.inode is None:
            disk.folders[each.folder].pop(each.name, None)
        else:
            disk.folders[each.folder][each.name] = each.inode
            if each.inode not in disk.folders:
                disk.files.setdefault(each.inode, b"")
    return disk.copy()


class _Aftermath:
    """A disk that a loss of power has left during a commit, or after it has returned."""

    def __init__(self, commit: _Commit, told: str, disk: Disk, *, returned: bool) -> None:
        self._disk = disk
        self._boot = commit.world.boot + 1
        self._told = told
        self._slot, self._flush = commit.slot, commit.flush
        self._world = commit.world
        self._queries = commit.world.queries
        durable: Mapping[int, int] = commit.world.durable
        with _running(_machine(disk, "look"), self._boot):
            known = _known_batches()
        self._full = {
            number: tuple(value for value in values if _is_known(value, known))
            for number, values in commit.possible_rows().items()
        }
        if returned:
            query = commit.query
            self._queries = _replaced(commit, replace(query, batch=query.batch + 1, run=0))
            durable = commit.durable(self._full)
        elif not commit.is_known and known.get(commit.query.name, 0) > commit.query.batch:
            durable = commit.durable(self._full)
        self._durable = durable
        self._left_unproved = commit.flush == "os" or "os) is killed" in "".join(self._world.steps)
        """Whether staged files of an unfinished commit may be lost, so that nobody proves it."""
        for each in self._queries:
            self._hold(known.get(each.name, 0) >= each.batch, f"{each.name} is forgotten: {known}")

    @property
    def key(self) -> object:
        told = (sorted(self._full.items()), sorted(self._durable.items()), self._boot)
        return (self._disk.digest(UNTOLD), repr(told), self._queries, self._world.left)

    def accept(self) -> tuple[_World, bool]:
        """Look, recover, and go on; give the world after recovery, and whether rows are lost."""
        reads, writes = self._reads(), self._writes()
        machine = _machine(self._disk, "recover", self._boot)
        with _running(machine, self._boot):
            done = self._recover()
            left = self._check_lost(done)
            again = self._recover()
            self._hold(not again.lost, f"more is lost: {again.lost}")
        self._hold(reads != bool(done.lost), f"a reader fails: {not reads}, lost: {done.lost}")
        self._hold(reads or not writes, "a writer goes on where a reader fails")
        self._hold(writes or not reads or self._left_unproved, "a writer fails, nothing is lost")
        world = replace(
            self._world,
            disk=machine.disk,
            queries=tuple(replace(each, run=each.run + 1) for each in self._queries),
            left=replace(self._world.left, losses=self._world.left.losses - 1),
            rows=left,
            durable={number: len(values) for number, values in left.items()},
            boot=self._boot,
            steps=(*self._world.steps, self._told),
        )
        world = _all_durable(world)
        self._go_on(world)
        return world, bool(done.lost)

    def _recover(self) -> RecoveryReport:
        try:
            done = recover([str(_LOG_DIR)], accept_lost_tail=True)
        except KafkaLogError as error:
            raise Broken(f"{error}\n{_told(self._world)}\n{self._told}") from error
        self._hold(not done.problems, f"recover has problems: {done.problems}")
        return done

    def _reads(self) -> bool:
        """Return whether a reader sees what is committed; if not, it must refuse."""
        try:
            with _running(_machine(self._disk, "reader"), self._boot):
                seen = _visible()
        except KafkaLogError as error:
            self._hold(_COMMAND in str(error), f"a reader fails: {error}")
            return False
        self._hold(seen == _whole(self._full), f"a reader sees {seen}, not {self._full}")
        return True

    def _writes(self) -> bool:
        """Return whether another writer goes on, with all that is committed; if not, it refuses."""
        try:
            with _running(_machine(self._disk, "another", self._boot), self._boot):
                _writer(self._world.left, _ANOTHER, "commit").write(0, rows(["x"], partitions=[0]))
                seen = _visible()
        except KafkaLogError as error:
            self._hold(_COMMAND in str(error), f"a writer fails: {error}")
            return False
        due = {**self._full, 0: (*self._full.get(0, ()), "x")}
        self._hold(seen == _whole(due), f"a writer goes on, and {seen} is there")
        return True

    def _check_lost(self, done: RecoveryReport) -> _Rows:
        """Hold what is there against what recovery said; give it."""
        left = _visible()
        said = {e.where.topic_partition.partition: (e.start, e.end) for e in done.lost}
        for number, values in self._full.items():
            start, end = said.get(number, (len(values), len(values)))
            self._hold(end == len(values), f"recover says {said} of {self._full}")
            self._hold(left.get(number, ()) == values[:start], f"{left} is left, and {said} gone")
            self._hold(start % _ROWS == 0, f"half a batch is left: {left}")
            durable = self._durable.get(number, 0)
            self._hold(start >= durable, f"{said} is gone, and durable was up to {durable}")
        self._hold(left.keys() <= self._full.keys(), f"{left} is left")
        return left

    def _go_on(self, world: _World) -> None:
        """Let the query write its next batch: it is there, once, after all others."""
        with _running(_machine(world.disk, "scene", self._boot), self._boot):
            check_indexes([_LOG_DIR])
        commit = _commit(world, self._slot, self._flush)
        with _running(_machine(commit.machine.disk, "scene", self._boot), self._boot):
            # What another query had staged when it was killed goes with its own next commit.
            _SCENE.check_clean(staged=len(world.queries) > 1)
            check_indexes([_LOG_DIR])

    def _hold(self, holds: bool, what: str) -> None:
        _hold(self._world, holds, f"{what}\n{self._told}")


_ANOTHER: Final = _Query("another", (0,))


def _known_batches() -> dict[str, int]:
    """Return how many batches of each query the commit state knows."""
    state = load_state(_LOG_DIR)
    writers = {} if state is None else state.writers
    return {name.partition(":")[2]: last.batch_id + 1 for name, last in writers.items()}


def _is_known(value: str, known: Mapping[str, int]) -> bool:
    name, batch, *_ = value.split("/")
    return int(batch) < known.get(name, 0)


def _whole(found: _Rows) -> _Rows:
    return {number: values for number, values in found.items() if values}


# Running


@contextmanager
def _running(machine: Machine, boot: int) -> Iterator[None]:
    """Simulate a machine whose present run has an id of its own."""
    before = system.boot_id
    system.boot_id = lambda: f"boot-{boot}"
    try:
        with simulated(machine):
            yield
    finally:
        system.boot_id = before


def _machine(disk: Disk, *who: object) -> Machine:
    machine = Machine(disk.copy())
    # What it draws at random depends on who it is, so that like steps lead to like worlds.
    machine.process = int.from_bytes(blake2b(repr(who).encode(), digest_size=4).digest(), "big")
    return machine


def _writer(bounds: Bounds, query: _Query, flush: str) -> Writer:
    options = {"segment__bytes": "100"} if bounds.rolls else {}
    return Writer(
        _LOG_DIR,
        name=query.name,
        run=f"run-{query.batch}-{query.run}",
        topic="t",
        numPartitions="2",
        flush=flush,
        **options,
    )


def _visible() -> _Rows:
    """Read as a query does."""
    tail = EndOffsets([str(_LOG_DIR)], lambda _: True)
    found = {}
    for key, end in tail.look().offsets.items():
        with tail.open(key) as log:
            found[key.partition] = _values(log, end)
    return _whole(found)


def _values(log: PartitionLog, end: int) -> tuple[str, ...]:
    return tuple(
        value.decode()
        for part in log.slices(0, end)
        for batch in log.read_slice(part, _DECODER, committed_end=end)
        for value in batch.column("value").to_pylist()
    )


def _copy(unsynced: Unsynced) -> Unsynced:
    data = {inode: list(changes) for inode, changes in unsynced.data.items()}
    names = {key: list(versions) for key, versions in unsynced.names.items()}
    return Unsynced(unsynced.durable.copy(), data, names)


def _digest(unsynced: Unsynced) -> bytes:
    """Hash what is durable, and what may survive beside it."""
    pending = (sorted(unsynced.data.items()), sorted(unsynced.names.items()))
    told = repr((unsynced.durable.tree(), pending))
    return blake2b(told.encode(), digest_size=16).digest()


def _hold(world: _World, holds: bool, what: str) -> None:
    if not holds:
        raise Broken(f"{what}\n{_told(world)}")


def _told(world: _World) -> str:
    return "\n".join(world.steps)
