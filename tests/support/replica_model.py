"""A set of three nodes on a simulated disk: two writers, a reader, and one fault a world.

A *world* begins with two commits on three nodes. Writer ``a`` commits a third batch, and at one of
its changes of a file one thing happens:

- it is killed; or
- a node goes away under it, or two of them; or
- it loses its locks, and writer ``b`` commits meanwhile (once all records are in the logs: what
  writes into logs without locks is kept out by new segments, where hosts share file systems).

Then ``b`` commits, or somebody recovers only, with a node away, or none. Then ``a`` repeats its
batch with none away, or another one. Then all are there, and ``b`` commits twice. A reader looks
after each step, and with each single node away. In each world these hold:

1. What a reader has seen stays, in order, and each row is there once.
2. What was acknowledged is seen.
3. No two records have one offset under one leader epoch, on any node at any time (KIP-101).
4. After a recovery what any node holds prepared is decided, or older than what is in place.
5. In the end all replicas are in sync and equal, and nothing of a commit is left.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pytest
from tests.support.commit_model import Broken
from tests.support.disk import ROOT_INODE, Disk
from tests.support.disk_calls import MOUNT, Machine, simulated
from tests.support.sinking import Writer, rows

from kafkalog.checkpoints.commit_state import PREPARED_FILE
from kafkalog.checkpoints.committed import load_committed
from kafkalog.checkpoints.intent import INTENT_FILE
from kafkalog.checkpoints.state_file import load_state
from kafkalog.errors import KafkaLogError
from kafkalog.files.deferred_signals import current, run_as
from kafkalog.files.system import remembered, system
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.records.batch import scan_batches
from kafkalog.streaming.records.columns import Columns, RecordDecoder
from kafkalog.streaming.store.log_dirs import LogDirs
from kafkalog.streaming.store.policy import SetPolicy
from kafkalog.streaming.store.replicas.open_nodes import QuorumSession
from kafkalog.streaming.store.replicas.quorum import Controller

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.disk import Change

__all__ = ["FAULTS", "Fault", "begun", "changes_of_a_commit", "search_replicas", "visit"]

NAMES: Final = ("a", "b", "c")
FOLDERS: Final = [MOUNT / name for name in NAMES]
FAULTS: Final = ("kill", "loss of a", "loss of b", "loss of c", "loss of two", "locks lost")
_AWAYS: Final = [
    (first, then, recovers)
    for recovers in (False, True)
    for first in (None, 0, 1, 2)
    for then in (None, 0, 1, 2)
    if first is None or then != first
]
"""Who is away first and then, and whether somebody recovers first."""
_DECODER: Final = RecordDecoder(Columns.VALUE | Columns.OFFSET)
_SETTINGS: Final = {"segment__bytes": "400", "min__insync__replicas": "2", "max__block__ms": "0"}


class _KilledError(BaseException):
    """Ends a process."""


@dataclass(frozen=True)
class Fault:
    """What happens at which change, and who is away after it: a node's number, or none."""

    kind: str
    call: int
    first_away: int | None
    then_away: int | None
    recovers: bool = False


@dataclass
class _World:
    machine: Machine
    steps: list[str] = field(default_factory=list)
    away: set[int] = field(default_factory=set)
    seen: list[str] = field(default_factory=list)
    acknowledged: list[str] = field(default_factory=list)
    records: dict[tuple[int, int], bytes] = field(default_factory=dict)
    runs: int = 0
    is_offline: bool = False

    def hold(self, holds: bool, what: object) -> None:
        if not holds:
            raise Broken(f"{what}\n" + "\n".join(self.steps))

    @property
    def is_cut_off(self) -> bool:
        """Whether a state lies prepared."""
        return any(path.endswith(PREPARED_FILE) for path in self.machine.disk.tree())

    # Nodes

    def move_away(self, node: int) -> None:
        root = self.machine.disk.folders[ROOT_INODE]
        root[f"{NAMES[node]}.away"] = root.pop(NAMES[node])
        self.away.add(node)

    def bring_back(self) -> None:
        root = self.machine.disk.folders[ROOT_INODE]
        for node in self.away:
            root[NAMES[node]] = root.pop(f"{NAMES[node]}.away")
        self.away.clear()

    @contextmanager
    def without(self, nodes: set[int]) -> Iterator[None]:
        before = set(self.away)
        for node in nodes - before:
            self.move_away(node)
        yield
        self.bring_back()
        for node in before:
            self.move_away(node)

    # Who acts

    @contextmanager
    def process(self, name: str) -> Iterator[None]:
        """Act as a new process."""
        self.runs += 1
        who = f"{name} {self.runs}".encode()
        before, controller = self.machine.process, remembered(Controller).name
        self.machine.process = int.from_bytes(blake2b(who, digest_size=4).digest(), "big")
        remembered(Controller).begin()
        try:
            yield
        finally:
            self.machine.end_process(self.machine.process)
            self.machine.process = before
            remembered(Controller).name = controller

    def write(self, name: str, batch: int, before: Callable[[Change], None] | None = None) -> bool:
        """Let a writer stage and commit a batch; returns whether that was acknowledged."""
        values = [f"{name}{batch}.{n}" for n in range(2)]
        with self.process(name):
            writer = Writer(
                *FOLDERS,
                name=name,
                run=f"run-{self.runs}",
                topic="t",
                numPartitions="1",
                path=";".join(map(str, FOLDERS)),
                **_SETTINGS,
            )
            try:
                runs = writer.stage(batch, rows(values))
                if before is not None:
                    self.machine.before = before
                writer.commit(batch, runs, digest=name)
            except KafkaLogError as error:
                self.steps.append(f"{name} does not commit batch {batch}: {error}")
                return False
            finally:
                self.machine.before = lambda _: None
        self.steps.append(f"{name} commits batch {batch}")
        self.acknowledged += values if values[0] not in self.acknowledged else []
        return True

    def recover(self) -> None:
        """Let somebody roll back what is unfinished, and write nothing."""
        with self.process("recovery"), QuorumSession(FOLDERS, SetPolicy(), holder="x") as session:
            session.open()
        self.steps.append("what is unfinished is finished, or rolled back")
        newest = max(filter(None, map(load_state, FOLDERS)), key=lambda state: state.rank)
        for node in set(self.away):
            self.bring_back()
            late = load_state(FOLDERS[node], PREPARED_FILE)
            self.move_away(node)
            is_over = late is None or late.sequence <= newest.sequence
            self.hold(
                is_over or (late is not None and late.controller_epoch < newest.controller_epoch),
                f"what {NAMES[node]} holds prepared may still be decided, and was rolled back",
            )

    # What must hold

    def look(self) -> None:
        """Let a reader look, with all nodes that are there, and without each single one of them."""
        self.check_epochs()
        self.is_offline = False
        found = [self._read(set())]
        if not self.away:
            found += [self._read({node}) for node in range(len(NAMES))]
            self.hold(found[0] is not None, "all are there, and a reader fails")
        for values in found:
            if values is None:
                is_told = self.is_cut_off or self.is_offline
                self.hold(is_told, "nothing is prepared, and a reader fails")
                continue
            self.hold(len(values) == len({*values}), f"rows are there twice: {values}")
            self.hold(values[: len(self.seen)] == self.seen, f"{self.seen} was seen, now {values}")
            self.hold({*self.acknowledged} <= {*values}, f"{self.acknowledged} lacks: {values}")
            self.seen = values

    def _read(self, without: set[int]) -> list[str] | None:
        with self.without(without), self.process("reader"):
            try:
                committed = load_committed(FOLDERS, for_reader=True)
                where = next(iter(LogDirs(FOLDERS).partitions().values()), None)
                if where is None:
                    self.steps.append(f"a reader finds no replica in sync without {without}")
                    # docs/replicas.md: "the last replica in sync is away | the partition has no
                    # leader until it is back", which nobody may know but who has it.
                    self.hold(bool(without or self.away), "all are there, and none is in sync")
                    self.is_offline = True
                    return None
                state = committed.state
                assert state is not None
                (topic,) = state.topics.values()
                end = topic.partitions[0].high_watermark
                with PartitionLog(where.path, where.topic_partition) as log:
                    return [
                        value.decode()
                        for part in log.slices(0, end)
                        for batch in log.read_slice(part, _DECODER, committed_end=end)
                        for value in batch.column("value").to_pylist()
                    ]
            except KafkaLogError as error:
                self.steps.append(f"a reader fails without {without}: {error}")
                return None

    def check_epochs(self) -> None:
        """Compare all batches that lie anywhere, committed or not."""
        for path, data in self.machine.disk.tree().items():
            if data is None or not path.endswith(".log") or "/t-0/" not in f"/{path}":
                continue
            table = scan_batches(np.frombuffer(data, np.uint8)).table
            for offset, epoch, start, size in zip(
                table.base_offset.tolist(),
                table.leader_epoch.tolist(),
                table.position.tolist(),
                table.size.tolist(),
                strict=True,
            ):
                batch = data[start : start + size]
                known = self.records.setdefault((offset, epoch), batch)
                what = f"two batches have offset {offset} under leader epoch {epoch}"
                self.hold(known[61:] == batch[61:], what)

    def check_end(self) -> None:
        """All replicas are in sync and equal."""
        states = [load_state(folder) for folder in FOLDERS]
        (topic,) = next(state for state in states if state).topics.values()
        replicas = topic.replicas[0]
        self.hold({*replicas.isr} == {*replicas.replicas} == {0, 1, 2}, f"in sync: {replicas}")
        self.hold(len({state and state.stamp for state in states}) == 1, "states differ")
        tree = self.machine.disk.tree()
        contents = []
        for name in NAMES:
            of_node = {p.removeprefix(name): d for p, d in tree.items() if p.startswith(f"{name}/")}
            left = {INTENT_FILE, PREPARED_FILE} & {p.rpartition("/")[2] for p in of_node}
            self.hold(not left, f"{left} is left on {name}")
            last = max(p for p in of_node if p.endswith(".log")).removesuffix(".log")
            contents.append(
                {
                    p: d
                    for p, d in of_node.items()
                    if p.endswith((".log", "leader-epoch-checkpoint"))
                    or (p.endswith(("index",)) and not p.startswith(last))
                }
            )
        for other in contents[1:]:
            differ = [p for p in contents[0] if contents[0][p] != other.get(p)]
            self.hold(contents[0] == other, f"replicas differ: {differ}")


def search_replicas(fault: str, *, stride: int = 1, first: int = 0) -> int:
    """Visit the worlds of one kind of fault; returns how many there are.

    It happens at every change, or at each one of ``stride`` from ``first`` on.

    Raises:
        Broken: something does not hold in one of them.
    """
    start = begun()
    visited, call = 0, first
    while True:
        for away in _AWAYS:
            if not visit(start, Fault(fault, call, *away)):
                return visited
            visited += 1
        call += stride


def begun() -> Disk:
    """Return the disk after the first two commits."""
    world = _World(Machine())
    with simulated(world.machine):
        assert world.write("a", 0)
        assert world.write("b", 0)
    return world.machine.disk


def changes_of_a_commit(start: Disk) -> list[Change]:
    """Return all changes of the third commit, in order."""
    world = _World(Machine(start.copy()))
    changes: list[Change] = []
    with simulated(world.machine):
        world.write("a", 1, changes.append)
    return changes


def visit(start: Disk, fault: Fault) -> bool:
    """Go through one world; returns whether its fault happened.

    Raises:
        Broken: something does not hold.
    """
    world = _World(Machine(start.copy()))
    world.acknowledged += ["a0.0", "a0.1", "b0.0", "b0.1"]
    batches = iter(range(2 if fault.kind == "locks lost" else 1, 9))
    with simulated(world.machine):
        world.look()
        if not _happens(world, fault):
            return False
        for away, is_first in ((fault.first_away, True), (fault.then_away, False)):
            world.bring_back()
            if away is not None:
                world.move_away(away)
            world.steps.append(f"{'nobody' if away is None else NAMES[away]} is away")
            world.look()
            if fault.recovers and is_first:
                world.recover()
            else:
                name, batch = ("b", next(batches)) if is_first else ("a", 1)
                world.hold(world.write(name, batch), f"{name} cannot commit")
            world.look()
        world.bring_back()
        for _ in range(2):
            world.hold(world.write("b", next(batches)), "b cannot commit in the end")
            world.look()
        world.check_end()
    return True


@contextmanager
def _in_threads_of_its_own() -> Iterator[None]:
    """Act as one who is not in the thread that this happens in.

    That thread is in a call of the simulated disk, which lets no other thread in: what would run in
    another one runs here.
    """
    here = current()

    def start(target: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        starter = current()
        target(*arguments)
        run_as(starter)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(system, "start_thread", start)
        run_as(None)
        yield
        run_as(here)


def _happens(world: _World, fault: Fault) -> bool:
    """Let the third batch be committed, and the fault happen in it."""
    calls = 0
    happened = False

    def before(change: Change) -> None:
        nonlocal calls, happened
        calls += 1
        if calls != fault.call + 1:
            return
        happened = True
        world.steps.append(f"{fault.kind} before change {fault.call}: {change!r:.120}")
        if fault.kind == "kill":
            raise _KilledError
        if fault.kind.startswith("loss of "):
            lost = fault.kind.removeprefix("loss of ")
            for name in NAMES[:2] if lost == "two" else lost:
                world.move_away(NAMES.index(name))
            return
        world.machine.before = lambda _: None
        world.machine.lose_locks()
        with _in_threads_of_its_own():
            world.write("b", 1)

    try:
        world.write("a", 1, before)
    except _KilledError:
        world.steps.append("a is killed")
    return happened
