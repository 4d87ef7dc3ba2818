"""Locks that are lost while a commit or a recovery holds them, and another commit in between.

The server of a network file system gives away the locks of a host that it has not heard of for a
while. Here that happens before each change of a commit: another query, or a new run of the same
one, takes the locks, recovers, and commits whole; then the first goes on.
What it writes to its lock files is refused from then on; all else that it writes still arrives.

That goes up to the rename of the state. Then each query writes what it has still to write. On the
way and in the end:

- a commit that returned is visible, and stays in its place;
- each batch is there once, and whole;
- a commit whose locks were lost to another one fails;
- both queries can go on.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Final

from tests.support.commit_model import Broken
from tests.support.disk import Renamed, Synced, Written
from tests.support.disk_calls import MOUNT, Machine, simulated
from tests.support.sinking import Writer, rows, values_of

from kafkalog.checkpoints.commit_state import LOCK_FILE, STATE_FILE
from kafkalog.checkpoints.intent import INTENT_FILE
from kafkalog.errors import KafkaLogError
from kafkalog.streaming.log.files import parse_partition_directory
from kafkalog.streaming.store import file_systems
from kafkalog.streaming.store.file_systems import Mount

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest
    from tests.support.disk import Change, Disk

__all__ = ["Scene", "lose_locks_anywhere", "on_a_network"]

_PARTITIONS: Final = 2
_TOPIC: Final = "t"


@dataclass(frozen=True)
class Scene:
    """What happened before, and what happens in between.

    Attributes:
        directories: of the set.
        known: whether another query has committed before, so that the partitions are there.
        cut_off: whether a commit was killed before, so that there is something to recover: at its
            last change before the rename of the state.
        other: ``b``, another query; or ``a``, a new run of the same one, with the same batch.
    """

    directories: int = 1
    known: bool = True
    cut_off: bool = False
    other: str = "b"


def on_a_network(patch: pytest.MonkeyPatch) -> None:
    """Let the simulated disk count as one that other hosts write to."""
    mount = Mount(str(MOUNT), "nfs4", frozenset({"local_lock=none"}))
    patch.setattr(file_systems, "mount_of", lambda _: mount)
    patch.setattr(file_systems, "check_file_system", lambda _: None)
    patch.setattr("kafkalog.streaming.store.session.check_file_system", lambda _: None)


def lose_locks_anywhere(scene: Scene) -> int:
    """Play a scene with the locks lost before each change; give how many ways there were.

    Raises:
        Broken: something does not hold in one of them.
    """
    return sum(1 for _ in _ways(scene))


def _ways(scene: Scene) -> Iterator[None]:
    for before, told in _befores(scene):
        for number in _losses(scene, before):
            _Way(scene, before.copy(), f"{told}the locks are lost before change {number}").run(
                number
            )
            yield


def _befores(scene: Scene) -> Iterator[tuple[Disk, str]]:
    machine = Machine()
    with simulated(machine):
        for folder in _folders(scene):
            folder.mkdir()
        _writer(scene, "b", 0).plan()
        if scene.known:
            _write(scene, "b", 0, 0)
    if not scene.cut_off:
        yield machine.disk, ""
        return
    state = (_folders(scene)[0].name, STATE_FILE)
    found = []
    for number in count():
        killed = Machine(machine.disk.copy())
        if _until_killed(killed, number, scene):
            break
        # Without an intent there is nothing to recover, nor if the state was renamed.
        is_declared = any(path.endswith(INTENT_FILE) for path in killed.disk.tree())
        is_published = killed.disk.find(state) != machine.disk.find(state)
        if is_declared and not is_published:
            found.append((killed.disk, f"c was killed before change {number}; "))
    yield from found[-1:]


class _KilledError(BaseException):
    """Ends a process."""


def _until_killed(machine: Machine, number: int, scene: Scene) -> bool:
    """Let ``c`` write its first batch until it is killed; give whether it came to its end."""
    left = number

    def before(_: Change) -> None:
        nonlocal left
        left -= 1
        if left == -1:
            raise _KilledError

    machine.process, machine.before = 3, before
    try:
        with simulated(machine):
            _write(scene, "c", 0, 0)
    except _KilledError:
        return False
    else:
        return True
    finally:
        machine.end_process(3)


def _losses(scene: Scene, before: Disk) -> Iterator[int]:
    """Return the numbers of the changes before which the locks may be lost, and it can be told.

    Those are all up to the first rename of a state, but in a recovery only those with a proof
    before the next change of a name in a partition's folder. Counted are changes while all locks
    are held.
    """
    machine = Machine(before.copy())
    machine.process = 1
    kinds: list[str] = []

    def note(change: Change) -> None:
        if _holds_all(machine, scene):
            kinds.append(_kind(machine, scene, change))

    machine.before = note
    with simulated(machine):
        _write(scene, "a", 0, 0)
    begun = kinds.index("intent")
    end = kinds.index("state")
    for number in range(end + 1):
        proof = kinds.index("proof", number) if "proof" in kinds[number:end] else end
        if number > begun or "name" not in kinds[number:proof]:
            yield number


def _kind(machine: Machine, scene: Scene, change: Change) -> str:
    """Say what a change is: of a lock file, the intent, the state, a name of a partition's."""
    roots = [machine.disk.find((folder.name,)) for folder in _folders(scene)]
    locks = {machine.disk.folders[root].get(LOCK_FILE) for root in roots}
    match change:
        case Written(inode) | Synced(inode) if inode in locks:
            return "proof"
        case Renamed(name=name, inode=int()) if name == INTENT_FILE:
            return "intent"
        case Renamed(name=name, inode=int()) if name == STATE_FILE:
            return "state"
        case Renamed(folder, name) if folder not in roots or parse_partition_directory(name):
            return "name"
    return "other"


@dataclass
class _Way:
    scene: Scene
    disk: Disk
    told: str
    done: list[str] = field(default_factory=list)
    seen: dict[int, list[str]] = field(default_factory=dict)

    def run(self, number: int) -> None:
        """Go it: the locks are lost before the change ``number``."""
        machine = Machine(self.disk)
        machine.process = 1
        self._left, self._reached = number, False

        def before(_: Change) -> None:
            self._left -= _holds_all(machine, self.scene) and not self._reached
            if self._left == -1 and not self._reached:
                machine.lose_locks()
                self._reached = True
                self._come_between(machine)

        machine.before = before
        with simulated(machine):
            try:
                _write(self.scene, "a", 0, 0)
                succeeded = True
            except KafkaLogError as error:
                self.told += f"; a fails: {str(error)[:300]}"
                succeeded = False
        self._hold(self._reached, "the scene is another one now")
        self._hold(not succeeded, "a is told that it committed")
        machine.end_process(1)
        self._look(machine)
        self._go_on(machine)

    def _come_between(self, machine: Machine) -> None:
        name = self.scene.other
        batch = 1 if name == "b" and self.scene.known else 0
        machine.process = 2
        around, machine.before = machine.before, lambda _: None
        try:
            _write(self.scene, name, batch, 1)
        except KafkaLogError as error:
            self._hold(False, f"{name} fails in between: {error}")
        machine.end_process(2)
        machine.process, machine.before = 1, around
        self.told += f"; {name}/{batch} is committed"
        self.done.append(f"{name}/{batch}")
        self._look(machine)

    def _go_on(self, machine: Machine) -> None:
        """Let each query write what is missing, and look after each of them."""
        for process, (name, batch) in enumerate((("a", 0), ("b", 0), ("b", 1), ("a", 1)), start=4):
            if name == "b" and batch == 0 and self.scene.known:
                continue
            machine.process = process
            try:
                with simulated(machine):
                    _write(self.scene, name, batch, process)
            except KafkaLogError as error:
                self._hold(False, f"{name}/{batch} cannot go on: {error}")
            machine.end_process(process)
            self.told += f"; {name}/{batch} is written"
            self.done.append(f"{name}/{batch}")
            self._look(machine)

    def _look(self, machine: Machine) -> None:
        try:
            with simulated(machine):
                seen = values_of(_folders(self.scene), _TOPIC)
        except (KafkaLogError, AssertionError) as error:
            self._hold(False, f"a reader fails: {error}")
        values = [value for each in seen.values() for value in each]
        counts = Counter(value.rpartition("/")[0] for value in values)
        once = len(values) == len(set(values))
        self._hold(once and set(counts.values()) <= {_PARTITIONS}, f"a reader sees {seen}")
        for batch in self.done:
            self._hold(batch in counts, f"{batch} is lost: {seen}")
        for key, before in self.seen.items():
            self._hold(seen.get(key, [])[: len(before)] == before, f"{before} was seen: {seen}")
        self.seen = seen

    def _hold(self, holds: bool, what: str) -> None:
        if not holds:
            raise Broken(f"{what}\n{self.scene}\n{self.told}")


def _holds_all(machine: Machine, scene: Scene) -> bool:
    return list(machine.locks.values()).count(machine.process) == 2 * scene.directories


def _folders(scene: Scene) -> list[Path]:
    return [MOUNT / f"log{number}" for number in range(scene.directories)]


def _writer(scene: Scene, name: str, run: int) -> Writer:
    return Writer(
        *_folders(scene),
        name=name,
        run=f"run-{run}",
        topic=_TOPIC,
        numPartitions=str(_PARTITIONS),
    )


def _write(scene: Scene, name: str, batch: int, run: int) -> None:
    """Stage and commit a batch: a row for each partition."""
    values = [f"{name}/{batch}/{number}" for number in range(_PARTITIONS)]
    batches = rows(values, partitions=list(range(_PARTITIONS)))
    _writer(scene, name, run).write(batch, batches, digest=f"{batch}")
