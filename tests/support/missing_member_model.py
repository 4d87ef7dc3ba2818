"""A set of two log directories, of which one or both are away at times: not mounted, or old.

A search over all that a query and an operator may do. In a *world* each directory is one of its
images: the live one; an empty folder, such as the mount point of a disk that is not mounted; a
copy of it after an earlier batch. Its steps:

- the query stages its next batch, of rows for both partitions or for one of them, or commits what
  it has staged; it may be killed at each change of a file on the way, and starts as a new run;
- another image takes a directory's place, also between staging and committing, or after a kill.
  What somebody has written to an image is there when that image comes again.

A directory's image *knows* of the batches that its commit state names. In each world these hold:

1. While a directory is empty that had something in it, nothing is committed and readers say so.
2. Nothing is committed if no image knows of the batch before. So what returned is of one history.
3. Readers fail, or tell of a loss, or see what the images know of: each batch whole and once.
4. Where all images are those of the last commit, readers see all of it, and the query goes on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from tests.support.commit_model import UNTOLD, Broken
from tests.support.disk import ROOT_INODE, Disk
from tests.support.disk_calls import MOUNT, Machine, simulated
from tests.support.sinking import Writer, rows

from kafkalog.checkpoints.state_file import load_state
from kafkalog.errors import KafkaLogError
from kafkalog.streaming.records.columns import Columns, RecordDecoder
from kafkalog.streaming.source.end_offsets import EndOffsets

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kafkalog.streaming.commit.staging.staged_run import StagedRun
    from kafkalog.streaming.log.partition_log import PartitionLog

__all__ = ["Bounds", "return_after_a_repeated_commit", "search_missing_members"]

_NAMES: Final = ("log0", "log1")
_FOLDERS: Final = [MOUNT / name for name in _NAMES]
_LIVE: Final = "live"
_EMPTY: Final = "empty"
_BOTH: Final = (0, 1)
_DECODER: Final = RecordDecoder(Columns.VALUE | Columns.OFFSET)

_Seen = dict[int, tuple[str, ...]]


@dataclass(frozen=True)
class Bounds:
    """How much may happen: batches, swaps of an image, kills; ``single``: batches of one row."""

    batches: int
    moves: int
    kills: int = 0
    single: bool = False


@dataclass(frozen=True)
class _Staged:
    runs: tuple[StagedRun, ...]
    placed: tuple[str, ...]


@dataclass(frozen=True)
class _World:
    """A disk and the query; ``left`` is what may still happen, ``steps`` how it came about.

    ``planned`` has the partitions of each batch that was ever staged: a run that comes after
    another one plans the same. Images that are not in place lie beside those that are.
    """

    disk: Disk
    left: Bounds
    returned: int = 0
    """Batches whose commit returned; the next one has this number."""
    planned: tuple[tuple[int, ...], ...] = ()
    run: int = 0
    staged: _Staged | None = None
    placed: tuple[str, ...] = (_LIVE, _LIVE)
    current: tuple[str, ...] = (_LIVE, _LIVE)
    """The images that hold all that was committed."""
    known: int = 0
    """Batches that an image in place knows of."""
    stamp: object = None
    """What tells the newest commit that an image in place knows of from all others."""
    is_moved: bool = False
    """Whether the last step has put another image in a place."""
    is_refused: bool = False
    """Whether the query waits for another image, since it was refused with these."""
    steps: tuple[str, ...] = ()

    @property
    def key(self) -> object:
        query = (self.returned, self.planned, self.run, self.staged, self.is_refused)
        images = (self.placed, self.current, self.stamp, self.is_moved)
        return (self.disk.digest(UNTOLD), self.left, *query, *images)

    @property
    def is_current(self) -> bool:
        """Whether nothing is missing."""
        return self.placed == self.current


def search_missing_members(bounds: Bounds) -> int:
    """Visit every world that can come about; give how many there are.

    Raises:
        Broken: something does not hold in one of them.
    """
    first = _first(bounds)
    visited, waiting = {first.key}, [first]
    while waiting:
        for world in _steps(waiting.pop()):
            if world.key not in visited:
                visited.add(world.key)
                waiting.append(_checked(world))
    return len(visited)


def _first(bounds: Bounds) -> _World:
    disk = Disk()
    for name in _NAMES:
        for image in (name, f"{name}.{_EMPTY}"):
            disk.folders[ROOT_INODE][image] = disk.new_folder()
    return _World(disk, bounds)


def return_after_a_repeated_commit() -> int:
    """Kill a commit at each change, repeat it with an older copy, and bring the first image back.

    Returns how many ways there were in which the copy was committed to.

    Raises:
        Broken: something does not hold in one of them.
    """
    found = 0
    world = _next_batch(_next_batch(_first(Bounds(batches=2, moves=2, kills=1))), commits=False)
    assert world.staged is not None
    for killed in [*_commit(world, world.staged)][:-1]:
        for slot in range(len(_NAMES)):
            for old in _moved(_checked(killed), slot):
                if old.placed[slot] == "1":
                    repeated = _next_batch(_checked(old))
                    back = (w for w in _moved(repeated, slot) if w.placed[slot] == _LIVE)
                    found += sum(_checked(w).returned == 2 for w in back)
    return found


def _next_batch(world: _World, *, commits: bool = True) -> _World:
    """Let the query do its next batch, or stage it, as far as it is let."""
    if world.returned == len(world.planned):
        world = replace(world, planned=(*world.planned, _BOTH))
    *_, world = _stage(world)
    world = _checked(world)
    if world.staged is None or not commits:
        return world
    *_, world = _commit(world, world.staged)
    return _checked(world)


# Steps


def _steps(world: _World) -> Iterator[_World]:
    if world.staged is not None:
        yield from _commit(world, world.staged)
    elif world.returned < world.left.batches and not world.is_refused:
        if world.returned < len(world.planned):
            yield from _stage(world)
        else:
            kinds = (_BOTH, (0,), (1,)) if world.left.single else (_BOTH,)
            for kind in kinds:
                yield from _stage(replace(world, planned=(*world.planned, kind)))
    if world.left.moves:
        for slot in range(len(_NAMES)):
            yield from _moved(world, slot)


def _moved(world: _World, slot: int) -> Iterator[_World]:
    """Return the worlds in which another image has taken a directory's place."""
    names = world.disk.folders[ROOT_INODE]
    here = _digest(world.disk, _NAMES[slot])
    left = replace(world.left, moves=world.left.moves - 1)
    for name in sorted(names):
        directory, _, image = name.partition(".")
        if directory == _NAMES[slot] and image and _digest(world.disk, name) != here:
            disk = world.disk.copy()
            root = disk.folders[ROOT_INODE]
            root[f"{directory}.{world.placed[slot]}"] = root[directory]
            root[directory] = root.pop(name)
            placed = (*world.placed[:slot], image, *world.placed[slot + 1 :])
            step = f"{directory} is {image}"
            steps = (*world.steps, step)
            after = replace(world, disk=disk, placed=placed, left=left, steps=steps)
            yield replace(after, is_moved=True, is_refused=False)


def _stage(world: _World) -> Iterator[_World]:
    machine = _machine(world, "stage")
    batch, kind = world.returned, world.planned[world.returned]
    values = [f"{batch}/{number}/{world.run}" for number in kind]
    told = f"batch {batch} (run {world.run}, partitions {kind})"
    try:
        with simulated(machine):
            runs = _writer(world).stage(batch, rows(values, partitions=list(kind)))
    except KafkaLogError as error:
        if world.is_current:
            raise Broken(f"{told} cannot be staged: {error}\n{_told(world)}") from error
        refused = replace(world, is_refused=True)
        yield _after(refused, machine, f"{told} is not staged: {error}")
        return
    yield from _killed(world, machine, f"{told} is staged")
    staged = _Staged(tuple(runs), world.placed)
    yield replace(_after(world, machine, f"{told} is staged"), staged=staged)


def _commit(world: _World, staged: _Staged) -> Iterator[_World]:
    machine = _machine(world, "commit")
    told = f"batch {world.returned} (run {world.run})"
    ended = replace(world, staged=None)
    try:
        with simulated(machine):
            _writer(world).commit(world.returned, staged.runs, digest=str(world.returned))
    except KafkaLogError as error:
        if world.is_current and staged.placed == world.placed:
            raise Broken(f"{told} cannot be committed: {error}\n{_told(world)}") from error
        refused = replace(ended, run=world.run + 1, is_refused=not world.is_current)
        yield _after(refused, machine, f"{told} is refused: {error}")
        return
    if world.known < world.returned:
        raise Broken(f"{told} is committed where the last one is not known\n{_told(world)}")
    yield from _killed(ended, machine, f"{told} is committed")
    after = _after(world, machine, f"{told} is committed")
    if world.left.moves:
        for name in _NAMES:
            _copy(after.disk, name, f"{name}.{world.returned + 1}")
    yield replace(after, staged=None, returned=world.returned + 1)


def _killed(world: _World, machine: Machine, doing: str) -> Iterator[_World]:
    """Return the worlds in which the query was killed before each change but the first."""
    if not world.left.kills:
        return
    left = replace(world.left, kills=world.left.kills - 1)
    after = replace(world, left=left, staged=None, run=world.run + 1)
    disk = world.disk.copy()
    for inode in machine.disk.folders:
        disk.folders.setdefault(inode, {})
    for inode in machine.disk.files:
        disk.files.setdefault(inode, b"")
    for number, change in enumerate(machine.disk.changes, start=1):
        disk.apply(change)
        told = f"{doing} and killed after {number} changes"
        yield replace(after, disk=disk.copy(), steps=(*world.steps, told))


def _after(world: _World, machine: Machine, step: str) -> _World:
    return replace(world, disk=machine.disk.copy(), steps=(*world.steps, step))


def _copy(disk: Disk, name: str, copy: str) -> None:
    """Keep a copy of a directory."""

    def copied(inode: int) -> int:
        if inode in disk.files:
            made = disk.new_file()
            disk.files[made] = disk.files[inode]
            return made
        made = disk.new_folder()
        for each, child in disk.folders[inode].items():
            disk.folders[made][each] = copied(child)
        return made

    root = disk.folders[ROOT_INODE]
    root[copy] = copied(root[name])


def _digest(disk: Disk, name: str) -> bytes:
    """Hash what lies in a folder of the root."""
    return Disk(disk.files, {**disk.folders, ROOT_INODE: {"": disk.find((name,))}}).digest(UNTOLD)


def _machine(world: _World, doing: str) -> Machine:
    machine = Machine(world.disk.copy())
    who = repr((world.run, world.returned, doing)).encode()
    machine.process = int.from_bytes(blake2b(who, digest_size=4).digest(), "big")
    return machine


def _writer(world: _World) -> Writer:
    return Writer(*_FOLDERS, name="a", run=f"run-{world.run}", topic="t", numPartitions="2")


# What must hold


def _checked(world: _World) -> _World:
    machine = Machine(world.disk.copy())
    machine.process = 1
    with simulated(machine):
        states = [load_state(folder) for folder in _FOLDERS]
        try:
            seen = _seen()
        except KafkaLogError:
            seen = None
    newest = max(filter(None, states), key=lambda state: state.sequence, default=None)
    last = newest.writers.get("query:a") if newest else None
    known = last.batch_id + 1 if last else 0
    stamp = newest.stamp if newest else None
    _hold(world, seen is None or _right(world, seen, known), f"a reader sees {seen}")
    if known and None in states:
        _hold(world, seen is None, f"a reader misses nothing, and sees {seen}")
    current = world.current
    if stamp != world.stamp and not world.is_moved:
        current = _current(world, known, sees_all=seen is not None)
    elif world.is_current and known:
        _hold(world, seen is not None, "a reader misses what is there")
        _hold(world, known >= world.returned, f"{known} batches are known")
    return replace(world, known=known, stamp=stamp, current=current, is_moved=False)


def _current(world: _World, known: int, *, sees_all: bool) -> tuple[str, ...]:
    """Return the images that hold all, after a commit that may not have written to each of them."""
    if known < world.returned:
        return world.current  # another set has begun
    if sees_all or not known:
        return world.placed
    written = world.planned[known - 1]
    slots = enumerate(zip(world.placed, world.current, strict=True))
    return tuple(placed if slot in written else before for slot, (placed, before) in slots)


def _seen() -> _Seen | None:
    """Read as a query does; None if it is told of a loss."""
    logs = EndOffsets([str(folder) for folder in _FOLDERS], lambda _: True)
    ends = logs.look().offsets
    if logs.missing_parts().is_loss or logs.ends.lost:
        return None
    found = {}
    for key, end in ends.items():
        with logs.open(key) as log:
            found[key.partition] = _values(log, end)
    return found


def _values(log: PartitionLog, end: int) -> tuple[str, ...]:
    return tuple(
        value.decode()
        for part in log.slices(0, end)
        for batch in log.read_slice(part, _DECODER, committed_end=end)
        for value in batch.column("value").to_pylist()
    )


def _right(world: _World, seen: _Seen, known: int) -> bool:
    """Return whether these are the batches that are known, each by one run, once and in order."""
    runs: dict[str, set[str]] = {}
    for values in seen.values():
        for value in values:
            batch, _, run = value.split("/")
            runs.setdefault(batch, set()).add(run)
    bare = {n: [v.rpartition("/")[0] for v in values] for n, values in seen.items() if values}
    right = {n: [f"{b}/{n}" for b in range(known) if n in world.planned[b]] for n in _BOTH}
    whole = all(len(found) == 1 for found in runs.values())
    return whole and bare == {n: values for n, values in right.items() if values}


def _hold(world: _World, holds: bool, what: str) -> None:
    if not holds:
        raise Broken(f"{what}\n{_told(world)}")


def _told(world: _World) -> str:
    return "\n".join(world.steps)
