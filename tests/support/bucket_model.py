"""All that may happen to a few small commits in an object store: the code that runs, searched.

Processes are threads that run one at a time. Each request to the store is a point at which another
may go on, the answer may be lost, the request may arrive later or never, the process may be killed,
or a month may pass. A choice is a number; a run is the list of its choices, and all runs are tried
in which at most so many of these things happen. A run ends where it comes to a state that another
was in: what may happen from there was tried, or is being tried. What a process knows follows from
the answers it has had and the times at which it had them, so these stand for it in a state.
"""

from __future__ import annotations

import random
import sys
import threading
import time
import uuid
from collections import Counter
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from kafkalog.checkpoints import bucket_state
from kafkalog.checkpoints.bucket_state import (
    BucketCommit,
    BucketState,
    Extent,
    object_path,
    parse_commit,
)
from kafkalog.checkpoints.commit_state import PartitionState, TopicState, WriterState
from kafkalog.errors import KafkaLogError, UnknownOutcomeError
from kafkalog.files.objects import Creation, ObjectEntry
from kafkalog.files.system import system
from kafkalog.streaming.commit import bucket_commit
from kafkalog.streaming.commit.bucket_commit import forget_silent_writers
from kafkalog.streaming.objects import bucket_log, merging
from kafkalog.streaming.objects.bucket_log import BucketLog, Proposal
from kafkalog.streaming.objects.merging import merge
from kafkalog.streaming.objects.sweeping import clean_commits, sweep_data

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pytest

__all__ = [
    "FaultError",
    "LentLog",
    "MemoryObjects",
    "NoThreads",
    "Scene",
    "batch",
    "change_rule",
    "search",
    "walk",
    "without_rests",
]

MONTH_S: Final = 30 * 86_400.0
TOPIC: Final = "topic-id"
_WAIT_S: Final = 60
_QUIET: Final = 0.6


class FaultError(AssertionError):
    """A rule was broken; has the choices that led there."""


@dataclass
class MemoryObjects:
    """Objects in memory, each with the time at which it was written."""

    root: str = "memory://bucket/logs"
    tries: int = 3
    kept: dict[str, tuple[bytes, float]] = field(default_factory=dict)
    requests: Counter[str] = field(default_factory=Counter)

    def create(self, name: str, data: bytes) -> Creation:
        self.requests["create"] += 1
        if name in self.kept:
            return Creation.TAKEN
        self.kept[name] = (data, system.time_ns())
        return Creation.CREATED

    def put(self, name: str, data: bytes) -> None:
        self.requests["put"] += 1
        self.kept[name] = (data, system.time_ns())

    def put_pieces(self, name: str, pieces: Callable[[], Iterable[bytes]]) -> None:
        self.put(name, b"".join(pieces()))

    def get(self, name: str) -> bytes | None:
        self.requests["get"] += 1
        return self.kept[name][0] if name in self.kept else None

    def get_range(self, name: str, position: int, size: int) -> bytes | None:
        self.requests["get"] += 1
        return self.kept[name][0][position : position + size] if name in self.kept else None

    def list_after(self, folder: str, after: str = "", limit: int = 1 << 62) -> list[ObjectEntry]:
        self.requests["list"] += 1
        names = sorted(
            n.removeprefix(f"{folder}/") for n in self.kept if n.startswith(f"{folder}/")
        )
        found = [name for name in names if name > after][:limit]
        return [
            ObjectEntry(n, len(self.kept[f"{folder}/{n}"][0]), int(self.kept[f"{folder}/{n}"][1]))
            for n in found
        ]

    def delete(self, names: list[str]) -> None:
        self.requests["delete"] += 1
        for name in names:
            self.kept.pop(name, None)


def batch(
    writer: str,
    number: int = 0,
    *,
    named: bool = True,
    inline: bytes = b"",
    staged: str = "",
) -> Callable[[BucketState], Proposal | None]:
    """Return what proposes one record of a writer, at the end of partition 0."""

    def propose(state: BucketState) -> Proposal | None:
        last = state.writers.get(writer)
        if named and last is not None and last.batch_id >= number:
            return None
        known = state.topics.get(TOPIC)
        start, _, end, _ = (0, 0, 0, 0) if known is None else known.partitions[0]
        unique = f"{number:016x}{ord(writer[0]):016x}"
        now_ms = system.time_ns() // 1_000_000
        name = "" if inline else staged or f"data/{state.number:020}-{unique}"
        topic = TopicState("topic", partitions={0: PartitionState(start, end + 1, end + 1, 0)})
        commit = BucketCommit(
            number=0,
            commit_id="",
            previous="",
            log_id="",
            topics={TOPIC: topic},
            writers={writer: WriterState("", number, None, now_ms)} if named else {},
            extents={(TOPIC, 0): [Extent(name, 0, 61, end, 1, ord(writer[0]), 0)]},
            inline=inline,
        )
        return Proposal(commit, is_known_again=named)

    return propose


def batch_of(letter: str) -> bytes:
    """Return a batch of one record without a byte, which says whose it is."""
    data = bytearray(61)
    data[8:12] = (49).to_bytes(4, "big")
    data[16] = 2
    data[17] = ord(letter)  # of the checksum, which nobody compares here
    data[43:57] = b"\xff" * 14
    data[57:61] = (1).to_bytes(4, "big")
    return bytes(data)


class LentLog:
    """A log of a process, as whoever merges gets it."""

    def __init__(self, log: BucketLog) -> None:
        self._log = log

    def open_store(self) -> LentLog:
        return self

    def committed(self) -> None:
        """See :meth:`BucketStore.committed`."""

    @contextmanager
    def writing(self) -> Iterator[BucketLog]:
        yield self._log


class NoThreads:
    """Does at once what a pool of threads would."""

    def __init__(self, *_: object) -> None: ...

    def submit(self, action: Callable[..., Any], *given: object) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(action(*given))
        return done

    def map(self, action: Callable[[Any], Any], given: Iterable[Any]) -> list[Any]:
        return [action(each) for each in given]

    def shutdown(self) -> None: ...


# ----------------------------------------------------------------------------------------------
# One run


class _Killed(BaseException):
    """The process was killed here."""


class _SeenError(Exception):
    """Another run was in this state, and all that may happen from there is tried by it."""


@dataclass(frozen=True)
class Scene:
    """Who acts, and how often which thing may happen."""

    writers: str
    """A letter each: small ones have names and are tried until they know, large ones have none."""
    lost: int = 0
    late: int = 0
    kills: int = 0
    months: int = 0
    days: int = 30
    """How long such a month is."""
    switches: int = 0
    """How often another process goes on though the one that runs could."""
    things: int = 99
    """How many of all these things may happen in one run."""
    cleaner: bool = False
    sweepers: int = 0
    mergers: int = 0
    segment_bytes: int = 0
    """Those that merge seal segments of that size; 0: they write shared objects."""
    trims: bool = False
    expirers: int = 0
    """Each notes and forgets writers that are silent, three times."""
    reader: bool = False
    """One reads what it planned, which may take less than a day."""
    follower: bool = False
    commits_before: int = 0
    commits_since: int = 0
    """After the first checkpoint, and before all else."""
    staged: bool = False
    """Batches lie in objects that are put first."""
    inline: bool = False
    one_process: bool = False
    """One process writes all batches, one after the other."""
    abort_deletes: bool = False
    """A mistake: what was staged is deleted when the outcome is unknown."""


class _Run:
    """One run of a scene; ``pick`` makes the choices, by how many were made and of how many."""

    def __init__(
        self,
        scene: Scene,
        pick: Callable[[int, int], int],
        is_new: Callable[[int, int, tuple[int, ...]], bool] = lambda *_: True,
    ) -> None:
        self.scene = scene
        self.pick = pick
        self.is_new = is_new
        """Told how many choices were made, a hash of the state, and how much may still happen."""
        self.ids: Counter[str] = Counter()
        """How many a thread has drawn: so that runs draw the same ones."""
        self.taken: list[int] = []
        self.widths: list[int] = []
        self.labels: list[str] = []
        self.now_s = 1e9
        self.left = {"lost": scene.lost, "late": scene.late, "kill": scene.kills}
        self.left |= {"month": scene.months, "switch": scene.switches, "thing": scene.things}
        self.store = MemoryObjects(tries=2)
        self.late: list[tuple[str, bytes]] = []
        self.history: dict[int, bytes] = {}
        """What was created first under each number: all else under it is void."""
        self.failed: list[str] = []
        self.done: list[str] = []
        self.fault: BaseException | None = None

    def choose(self, *labels: str) -> str:
        taken = self.pick(len(self.taken), len(labels))
        self.taken.append(taken)
        self.widths.append(len(labels))
        self.labels.append(labels[taken])
        return labels[taken]

    def may(self, thing: str) -> bool:
        """Whether a thing may happen once more."""
        return bool(self.left[thing] and self.left["thing"])

    def happens(self, thing: str) -> None:
        """Note that a thing has happened."""
        self.left[thing] -= 1
        self.left["thing"] -= 1

    def create(self, name: str, data: bytes) -> Creation:
        """Create an object, and keep the history."""
        answer = self.store.create(name, data)
        if answer is Creation.CREATED and "/commits/" in name:
            number = int(name[-20:])
            if number > max(self.history, default=0) + 1:
                raise FaultError(f"commit {number} leaves a gap")
            self.history.setdefault(number, data)
        return answer

    def play(self) -> None:
        """Let all act to their ends, then see what is there."""
        writers = [self.scene.writers] if self.scene.one_process else [*self.scene.writers]
        processes = [_Process(self, w, self._writer(w)) for w in writers]
        if self.scene.cleaner:
            processes.append(_Process(self, "cleaner", self._cleaner))
        sweepers = range(self.scene.sweepers)
        processes += [_Process(self, f"sweeper {n}", self._sweeper) for n in sweepers]
        mergers = range(self.scene.mergers)
        processes += [_Process(self, f"merger {n}", self._merger) for n in mergers]
        expirers = range(self.scene.expirers)
        processes += [_Process(self, f"expirer {n}", self._expirer) for n in expirers]
        if self.scene.trims:
            processes.append(_Process(self, "trimmer", self._trimmer))
        if self.scene.reader:
            processes.append(_Process(self, "reader", self._reader))
        if self.scene.follower:
            processes.append(_Process(self, "follower", self._follower))
        current: _Process | None = None
        try:
            while waiting := [each for each in processes if not each.has_ended]:
                self._end_if_seen(processes, current)
                current = self._next(waiting, current)
                current.step()
                if self.fault is not None:
                    break
        finally:
            for each in processes:
                each.end()
        if self.fault is not None:
            raise self.fault
        for name, data in self.late:
            self.create(name, data)
        self.left = {}
        self._end_if_seen(processes, None)
        self._audit()

    def begin(self) -> _Run:
        """Make the log, with the commits that are there before."""
        log = BucketLog.create(self.store)
        for number in range(self.scene.commits_before):
            staged = self._stage(log, "b", number) if self.scene.mergers else ""
            log.commit(batch("before", number, staged=staged))
        log.checkpoint()
        for number in range(self.scene.commits_since):
            log.commit(batch("before", self.scene.commits_before + number))
        for name, (data, _) in self.store.kept.items():
            if "/commits/" in name:
                self.history[int(name[-20:])] = data
        return self

    def begin_as(self, other: _Run) -> None:
        """Begin with what another run of the scene began with."""
        self.store.kept |= other.store.kept
        self.history |= other.history
        self.ids |= other.ids

    def _end_if_seen(self, processes: list[_Process], current: _Process | None) -> None:
        """Raise if another run was in this state, or any other on which all depends from here."""
        if self.left:
            goes_on = current is not None and not current.has_ended and current.name
            known: object = (goes_on, self.now_s, tuple(each.known for each in processes))
        else:
            known = (frozenset(self.done), frozenset(self.failed))
        store = frozenset(self.store.kept.items()), frozenset(self.history.items())
        state = hash((known, store, tuple(self.late)))
        if not self.is_new(len(self.taken), state, tuple(self.left.values())):
            raise _SeenError

    def random_id(self) -> uuid.UUID:
        """Return an id that no other thread of this run draws, and the same in each run."""
        name = threading.current_thread().name
        self.ids[name] += 1
        return uuid.uuid5(uuid.NAMESPACE_OID, f"{name} {self.ids[name]}")

    def _next(self, waiting: list[_Process], current: _Process | None) -> _Process:
        if (
            self.late
            and self.choose("nothing arrives", "the late request arrives") != "nothing arrives"
        ):
            self.create(*self.late.pop(0))
        if (
            self.may("month")
            and self.choose("no time passes", "a month passes") == "a month passes"
        ):
            self.happens("month")
            self.now_s += self.scene.days * 86_400.0
        may_go = _differing(waiting)
        if current is None or current.has_ended:
            names = [each.name for each in may_go]
        else:
            others = [each.name for each in may_go if each is not current]
            names = [current.name, *(others if self.may("switch") else [])]
        chosen = self.choose(*names)
        if current is not None and not current.has_ended and chosen != current.name:
            self.happens("switch")
        return next(each for each in waiting if each.name == chosen)

    # Who acts

    def _writer(self, letters: str) -> Callable[[Any], None]:
        def write(objects: Any) -> None:
            log: BucketLog | None = None
            for letter in letters:
                log = self._write(objects, letter, log)

        return write

    def _write(self, objects: Any, letter: str, log: BucketLog | None) -> BucketLog | None:
        is_named = letter.islower()
        for tries in range(3):
            staged = ""
            try:
                log = BucketLog.open(objects) if tries or log is None else log
                assert log is not None
                staged = self._stage(log, letter, tries)
                inline = b"b" * 61 if self.scene.inline else b""
                log.commit(batch(letter, named=is_named, staged=staged, inline=inline))
            except UnknownOutcomeError:
                if self.scene.abort_deletes and log is not None:
                    objects.delete([f"{log.folder}/{staged}"])
            except KafkaLogError:
                self.failed.append(letter)
            except _Killed:
                pass
            else:
                self.done.append(letter)
                break
            if not is_named:
                break
        return log

    def _stage(self, log: BucketLog, letter: str, tries: int) -> str:
        """Put a batch into an object, where the scene has such; return its name."""
        if not self.scene.staged:
            return ""
        name = f"data/{log.follow().number:020}-{tries:016x}{ord(letter):016x}"
        log.objects.put(f"{log.folder}/{name}", batch_of(letter))
        return name

    def _sweeper(self, objects: Any) -> None:
        log = BucketLog.open(objects)
        assert log is not None
        with suppress(KafkaLogError):
            sweep_data(log)

    def _merger(self, objects: Any) -> None:
        log = BucketLog.open(objects)
        assert log is not None
        size = self.scene.segment_bytes
        with suppress(KafkaLogError):
            merge(LentLog(log), config={"segment.bytes": str(size)} if size else {})  # type: ignore[arg-type]

    def _trimmer(self, objects: Any) -> None:
        def propose(state: BucketState) -> Proposal | None:
            before = state.topics[TOPIC].partitions[0]
            topic = TopicState("topic", partitions={0: before._replace(log_start=1)})
            is_done = before.log_start == 1
            return None if is_done else Proposal(BucketCommit(topics={TOPIC: topic}), True)

        log = BucketLog.open(objects)
        assert log is not None
        with suppress(KafkaLogError):
            log.commit(propose)

    def _expirer(self, objects: Any) -> None:
        log = BucketLog.open(objects)
        assert log is not None
        for _ in range(3):
            with suppress(KafkaLogError):
                forget_silent_writers(LentLog(log))  # type: ignore[arg-type]

    def _reader(self, objects: Any) -> None:
        log = BucketLog.open(objects)
        assert log is not None
        began_s = self.now_s
        for extent in tuple(log.follow().extents.get((TOPIC, 0), ())):
            found = objects.get(object_path(log.state.log_id, extent.object))
            if found is None and self.now_s - began_s < 86_400:
                raise FaultError(f"{extent.object} was planned to be read, and is gone")

    def _cleaner(self, objects: Any) -> None:
        log = BucketLog.open(objects)
        assert log is not None
        log.follow()
        log.checkpoint()
        clean_commits(log, keep_commits=1)

    def _follower(self, objects: Any) -> None:
        log = BucketLog.open(objects)
        assert log is not None
        for _ in range(3):
            floors = objects.floors()
            state = log.follow()
            if state.number + 1 < max(floors, default=0):
                raise FaultError(f"the follower waits for commit {state.number + 1} for ever")
            if state.number:
                own = parse_commit(self.history[state.number], "history")
                if own.commit_id != state.commit_id:
                    raise FaultError(f"the follower takes a void commit {state.number}")

    # What must hold

    def _audit(self) -> None:
        state = BucketState(self._log_id())
        for number in sorted(self.history):
            state.apply(parse_commit(self.history[number], "history"))
        written = self._written(state)
        for letter in self.scene.writers:
            if written[letter] > 1:
                raise FaultError(f"the batch of {letter} is committed {written[letter]} times")
            if letter in self.done and not written[letter]:
                raise FaultError(f"the batch of {letter} was reported as committed, and is not")
            if letter in self.failed and letter.isupper() and written[letter]:
                raise FaultError(f"the batch of {letter} was reported as failed, and is committed")
        if self.scene.staged or self.scene.inline:
            self._check_objects(state)
        log = BucketLog.open(self.store)
        assert log is not None
        if (log.follow().number, log.state.commit_id) != (state.number, state.commit_id):
            raise FaultError(f"the log opens at {log.state.number}, and has {state.number} commits")

    def _written(self, state: BucketState) -> Counter[str]:
        """Count the batches of each letter; where extents are merged, by what lies in objects."""
        extents = state.extents.get((TOPIC, 0), ())
        if not self.scene.mergers:
            return Counter(chr(extent.max_timestamp) for extent in extents)
        written: Counter[str] = Counter()
        for extent in extents:
            name = object_path(state.log_id, extent.object)
            if name not in self.store.kept:
                raise FaultError(f"{extent.object} of offset {extent.base_offset} is gone")
            data = self.store.kept[name][0][extent.position : extent.position + extent.size]
            if len(data) != 61 * extent.records:
                raise FaultError(f"{extent.object} has not {extent.records} records")
            written += Counter(chr(each) for each in data[17::61])
        return written

    def _check_objects(self, state: BucketState) -> None:
        """See that all is there that the state names."""
        for extents in state.extents.values():
            for extent in extents:
                name = object_path(state.log_id, extent.object)
                is_of_before = extent.max_timestamp == ord("b")
                if name not in self.store.kept and not is_of_before:
                    raise FaultError(f"{extent.object} of offset {extent.base_offset} is gone")

    def _log_id(self) -> str:
        return next(
            n.split("/")[1] for n in self.store.kept if n.count("/") > 1 and "race" not in n
        )


def _differing(waiting: list[_Process]) -> list[_Process]:
    """Leave one of those that have done nothing yet and would do the same."""
    seen: set[str] = set()
    found = []
    for each in waiting:
        if each.known or each.kind not in seen:
            found.append(each)
        if not each.known:
            seen.add(each.kind)
    return found


class _Process:
    """A thread that goes on from one request to the next when it is told to."""

    def __init__(self, run: _Run, name: str, action: Callable[[Any], None]) -> None:
        self.run, self.name, self.has_ended = run, name, False
        self.kind = "writer" if name.islower() and len(name) == 1 else name.partition(" ")[0]
        self.known = 0
        """A hash of all answers that it has had, and of when it had them."""
        self._may_go, self._rests = threading.Lock(), threading.Lock()
        self._may_go.acquire()
        self._rests.acquire()
        self._is_over = False
        self._thread = threading.Thread(target=self._act, name=name, args=(action,), daemon=True)
        self._thread.start()

    def step(self) -> None:
        self.learn(self.run.now_s)
        self._may_go.release()
        assert self._rests.acquire(timeout=_WAIT_S)

    def end(self) -> None:
        self._is_over = True
        while not self.has_ended:
            self.step()
        self._thread.join()

    def learn(self, answer: object) -> None:
        """Note what it was told."""
        self.known = hash((self.known, tuple(answer) if isinstance(answer, list) else answer))

    def _act(self, action: Callable[[Any], None]) -> None:
        self._pause()
        try:
            if not self._is_over:
                action(_Requests(self))
        except _Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - told to whoever runs it
            self.run.fault = self.run.fault or error
        self.has_ended = True
        self._rests.release()

    def _pause(self) -> None:
        assert self._may_go.acquire(timeout=_WAIT_S)

    def request(self) -> None:
        """Let others go on before a request, and perhaps be killed."""
        self._rests.release()
        self._pause()
        if self._is_over:
            raise _Killed
        if self.run.may("kill") and self.run.choose("lives", f"{self.name} is killed") != "lives":
            self.run.happens("kill")
            self.learn("killed")
            raise _Killed


class _Requests:
    """The store as one process asks it."""

    def __init__(self, process: _Process) -> None:
        self._process = process
        self._run = process.run
        self.root, self.tries = self._run.store.root, self._run.store.tries

    def create(self, name: str, data: bytes) -> Creation:
        self._process.request()
        run, kinds = self._run, ["answered"]
        if "/data/" not in name:
            kinds += ["answer lost"] * run.may("lost") + ["late"] * run.may("late")
        kind = run.choose(*kinds)
        if kind == "late":
            run.happens("late")
            run.late.append((name, data))
        answer = run.create(name, data) if kind != "late" else Creation.UNKNOWN
        if kind == "answer lost":
            run.happens("lost")
            answer = Creation.UNKNOWN
        self._process.learn(answer)
        return answer

    def floors(self) -> list[int]:
        """Return the floors that there are, which takes no request."""
        found = [int(name[-20:]) for name in self._run.store.kept if "/floors/" in name]
        self._process.learn(found)
        return found

    def __getattr__(self, name: str) -> Any:
        def ask(*given: Any, **named: Any) -> Any:
            self._process.request()
            answer = getattr(self._run.store, name)(*given, **named)
            self._process.learn(answer)
            return answer

        return ask


# ----------------------------------------------------------------------------------------------


_SHORT_REST_S: Final = 0.001


def without_rests(patch: pytest.MonkeyPatch, module: Any = bucket_log) -> None:
    """Let rests take next to no time, and the store be trusted without a race.

    Some time: a thread that rests again and again, which another test may have left, would hold the
    interpreter.
    """
    patch.setattr(system, "sleep", lambda seconds: time.sleep(min(seconds, _SHORT_REST_S)))
    patch.setattr(module, "check_create_is_exclusive", lambda *_: None)


def change_rule(patch: pytest.MonkeyPatch, module: ModuleType, old: str, new: str) -> None:
    """Let the scenes run with another text in a module, that of the log or of its clean-up."""
    source = Path(str(module.__file__)).read_text()
    assert source.count(old) == 1, old
    changed = ModuleType(module.__name__)
    patch.setitem(sys.modules, module.__name__, changed)  # dataclasses look there for theirs
    exec(compile(source.replace(old, new), "<changed>", "exec"), changed.__dict__)
    if module is bucket_log:
        without_rests(patch, changed)
        patch.setattr(f"{__name__}.BucketLog", changed.BucketLog)
    elif module is merging:
        patch.setattr(f"{__name__}.merge", changed.merge)
        patch.setattr(changed, "_LEAST_EXTENTS", 2)
    elif module is bucket_commit:
        patch.setattr(f"{__name__}.forget_silent_writers", changed.forget_silent_writers)
    elif module is bucket_state:
        for name in ("_replace", "find_swept", "apply"):
            patch.setattr(BucketState, name, getattr(changed.BucketState, name))
    else:
        patch.setattr(f"{__name__}.clean_commits", changed.clean_commits)
        patch.setattr(f"{__name__}.sweep_data", changed.sweep_data)


def search(scene: Scene, patch: pytest.MonkeyPatch, most: int | None = None) -> int:
    """Play all runs of a scene up to states in which another run was; return how many there were.

    Args:
        scene: what may happen.
        patch: where the clocks are replaced.
        most: end after so many runs, though there are more.

    Raises:
        FaultError: a rule was broken; the message has the way there.
    """
    choices: list[int] = []
    first = _patched(_Run(scene, lambda *_: 0), patch).begin()
    seen: dict[int, list[tuple[int, ...]]] = {}

    def pick(made: int, _: int) -> int:
        return choices[made] if made < len(choices) else 0

    def is_new(made: int, state: int, left: tuple[int, ...]) -> bool:
        if made < len(choices):
            return True  # on the way to what is to be tried
        before = seen.setdefault(state, [])
        if any(all(map(int.__ge__, each, left)) for each in before):
            return False
        before.append(left)
        return True

    count = 0
    while most is None or count < most:
        run = _Run(scene, pick, is_new)
        with suppress(_SeenError):
            run.begin_as(first)
            _play(run, patch, count)
        count += 1
        while run.taken and run.taken[-1] + 1 == run.widths[len(run.taken) - 1]:
            run.taken.pop()
        if not run.taken:
            break
        choices = [*run.taken[:-1], run.taken[-1] + 1]
    return count


def walk(scene: Scene, patch: pytest.MonkeyPatch, runs: int, seed: int = 1) -> None:
    """Play runs of a scene at random, in which mostly nothing goes wrong.

    Raises:
        FaultError: a rule was broken; the message has the way there.
    """
    first = _patched(_Run(scene, lambda *_: 0), patch).begin()
    for number in range(runs):
        chance = random.Random(f"{seed} {number}")

        def pick(_: int, width: int, chance: random.Random = chance) -> int:
            return 0 if chance.random() < _QUIET else chance.randrange(width)

        run = _Run(scene, pick)
        run.begin_as(first)
        _play(run, patch, number)


def _patched(run: _Run, patch: pytest.MonkeyPatch) -> _Run:
    """Let the clocks, and what is drawn, be those of a run."""
    patch.setattr(system, "time_ns", lambda: int(run.now_s * 1e9))
    patch.setattr(system, "boottime", lambda: run.now_s)
    patch.setattr(system, "random_id", run.random_id)
    patch.setattr(merging, "_LEAST_EXTENTS", 2)
    patch.setattr(system, "pool", NoThreads)
    return run


def _play(run: _Run, patch: pytest.MonkeyPatch, count: int) -> None:
    try:
        _patched(run, patch).play()
    except (FaultError, KafkaLogError, ValueError) as error:
        way = "\n".join(f"{n}. {label}" for n, label in enumerate(run.labels, 1))
        raise FaultError(f"{error}\nafter {count} runs:\n{way}") from error
