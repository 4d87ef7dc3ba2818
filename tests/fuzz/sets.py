"""Small sets of log directories, each with what it was after each of its steps.

They are made by the library itself, or byte by byte as a broker does, in a process whose clock and
chance are always the same: so is each byte.
"""

from __future__ import annotations

import functools
import json
import shutil
import uuid
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from tests.support.killing import count_calls, run_and_kill
from tests.support.logs import write_checkpoint
from tests.support.sinking import Writer, rows
from tests.support.transactions import BrokerLog

import kafkalog
from kafkalog.checkpoints.broker import LeaderEpoch, write_leader_epochs, write_topic_id
from kafkalog.checkpoints.query_checkpoint import QueryCheckpoint
from kafkalog.files.system import System, system
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.broker.handover import hand_over, take_over
from kafkalog.streaming.admin.retention import delete_records
from kafkalog.streaming.admin.topics import create, delete
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.sink.task_writer import TaskWriter
from kafkalog.streaming.source.offsets import from_json, to_json
from kafkalog.streaming.source.stream_control import StreamControl
from kafkalog.streaming.spark.writers import LogStreamWriter, StagedMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

__all__ = [
    "GROUNDS",
    "Ground",
    "Place",
    "Rows",
    "Version",
    "alone",
    "append",
    "query_rows",
    "read_rows",
    "write_batch",
    "writer_of",
]

Place = tuple[str, int]
"""Topic and partition."""
Rows = dict[Place, dict[int, str]]
"""Values by offset."""

_BEGAN_NS: Final = 1_700_000_000_000_000_000
_STEP_NS: Final = 1_000_000
_SMALL: Final = {
    "segment.bytes": "300",
    "index.interval.bytes": "0",
    "max.block.ms": "1000",
    "numPartitions": "2",
}


@dataclass(frozen=True)
class Version:
    """Files and folders at one moment, by their paths, and the rows that were committed by then.

    ``ends`` are the offsets that a query had come to.
    """

    files: Mapping[str, bytes]
    folders: frozenset[str]
    rows: Rows
    ends: str


@dataclass
class Ground:
    """A set, oldest version first. ``logs`` are its log directories, by their names."""

    name: str
    logs: tuple[str, ...]
    topics: tuple[str, ...]
    options: Mapping[str, str] = field(default_factory=dict)
    reading: Mapping[str, str] = field(default_factory=dict)
    versions: list[Version] = field(default_factory=list)
    pending: set[str] = field(default_factory=set)
    """Values that are in the logs, and not committed: of a broker, or of aborted transactions."""
    unfinished: set[str] = field(default_factory=set)
    """Values of a commit that was killed: they show where neither state nor intent is left."""
    first_seen: int = 0
    """From which version on a query reads on without a loss."""
    has_checkpoint: bool = False
    """Whether the query that writes has a checkpoint, and that which reads a ``stateLocation``."""
    last_batch: int = -1
    last_version: int = -1
    are_nodes: bool = False
    """Whether each log directory is of a node of its own."""
    stands: list[Mapping[TopicPartition, int]] = field(default_factory=list)
    """Where the group ``g`` stood at each version; empty if there is no group."""

    def paths(self, root: Path) -> list[str]:
        """Give the log directories in a folder."""
        paths = [str(root / name) for name in self.logs]
        return [";".join(paths)] if self.are_nodes else paths

    def followed(self, root: Path) -> ReadOptions:
        """Give the options of a query that follows all topics."""
        state = {"stateLocation": str(root / "state")} if self.has_checkpoint else {}
        topics = {"path": ",".join(self.paths(root)), "subscribePattern": "[a-z]"}
        return ReadOptions.parse({**topics, **state, **self.reading})

    @property
    def last(self) -> Version:
        """What is there when all is well."""
        return self.versions[-1]

    def keep(self, root: Path) -> None:
        """Keep what is there now as a version, once a query has come to its end."""
        begun = self.versions[-1].ends if self.versions and self.has_checkpoint else "{}"
        control = StreamControl(self.followed(root))
        ends = json.dumps(to_json(control.next_end(from_json(json.loads(begun)), take_all=True)))
        found = sorted(root.rglob("*"))
        files = {str(p.relative_to(root)): p.read_bytes() for p in found if p.is_file()}
        folders = frozenset(str(p.relative_to(root)) for p in found if p.is_dir())
        there = [topic for topic in self.topics if any(f"/{topic}-" in each for each in folders)]
        committed = read_rows(self.paths(root), there, self.reading) if there else {}
        self.versions.append(Version(files, folders, committed, ends))

    def restore(self, root: Path, version: Version) -> None:
        """Let a folder be what it was."""
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir()
        for name in sorted(version.folders):
            (root / name).mkdir()
        for name, data in version.files.items():
            (root / name).write_bytes(data)


def read_rows(paths: list[str], topics: list[str], options: Mapping[str, str]) -> Rows:
    """Read all rows, and see that none comes twice or out of turn."""
    columns = ("topic", "partition", "offset", "value")
    found: Rows = {}
    last: dict[Place, int] = {}
    table = kafkalog.read([*paths], topics, columns=columns, options=options).read_all()
    for row in table.to_pylist():
        place = row["topic"], row["partition"]
        offset = row["offset"]
        assert offset > last.get(place, -1), f"{place}: {offset} after {last[place]}"
        last[place] = offset
        found.setdefault(place, {})[offset] = row["value"].decode()
    return found


# A process of its own


class _Inline(Executor):
    """Runs each task at once: what comes of several at a time is not always the same."""

    def submit(self, task: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(task(*arguments, **named))
        except BaseException as error:  # noqa: BLE001 - as a pool does
            future.set_exception(error)
        return future


@contextmanager
def alone(seed: int) -> Iterator[None]:
    """Be a new process, whose clock and chance follow from a number."""
    names = System.__slots__
    before = {name: getattr(system, name) for name in names}
    ticks, ids = count(), count(seed << 64)
    rested = 0.0

    def sleep(seconds: float) -> None:
        nonlocal rested
        rested += seconds

    def now_ns() -> int:
        return _BEGAN_NS + seed * 10**12 + next(ticks) * _STEP_NS + int(rested * 1e9)

    def random_id() -> uuid.UUID:
        return uuid.uuid5(uuid.NAMESPACE_OID, str(next(ids)))

    system.time_ns = now_ns
    system.monotonic = lambda: now_ns() / 1e9
    system.sleep = sleep
    system.random_id = random_id
    system.pool = lambda _threads, _name: _Inline()
    system.host_name = lambda: "host"
    system.process_id = lambda: 4711
    system.boot_id = lambda: "boot"
    system.memory = {}
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(system, name, value)


# Sets


def append(ground: Ground, root: Path, values: list[str], **options: str) -> None:
    """Append to a topic of two partitions, under the next version."""
    ground.last_version += 1
    kafkalog.append(
        [*ground.paths(root)],
        "t",
        rows(values, partitions=[n % 2 for n in range(len(values))]),
        transactional_id="app",
        version=ground.last_version,
        options={**_SMALL, **ground.options, **options},
    )


def writer_of(ground: Ground, root: Path, **options: str) -> Writer:
    """Give the query that writes to a set."""
    given = {**_SMALL, **ground.options, **options}
    named = {name.replace(".", "__"): value for name, value in given.items()}
    return Writer(*(root / name for name in ground.logs), **named)


def _batch(ground: Ground, root: Path, name: str, size: int = 6, **options: str) -> None:
    ground.last_batch += 1
    write_batch(ground, root, ground.last_batch, query_rows(name, size), **options)


def write_batch(ground: Ground, root: Path, number: int, batch: Any, **options: str) -> None:
    """Write a batch of the query, as Spark does where there is a checkpoint."""
    if not ground.has_checkpoint:
        writer_of(ground, root, **options).write(number, batch, digest=f"digest {number}")
        return
    folder = root / "checkpoint"
    planned = folder / "offsets" / str(number)
    if not planned.exists():
        planned.parent.mkdir(parents=True, exist_ok=True)
        if not (folder / "metadata").exists():
            (folder / "metadata").write_text('{"id":"4711"}')
        planned.write_text(f'v1\n{{"batchWatermarkMs":0}}\n{{"rows":{number}}}')
    writer = writer_of(ground, root, checkpointLocation=str(folder), **options)
    is_planned = QueryCheckpoint.at(str(folder)) is not None
    plan = replace(writer.plan(), digests_rows=not is_planned)
    task = TaskWriter(plan, writer.identity(number), query_id="4711")
    LogStreamWriter(plan).commit([StagedMessage(task.write([batch]))], number)


def query_rows(name: str, size: int = 6) -> Any:
    """Make rows of a query's batch, for two topics."""
    values = [f"{name}.{n}" for n in range(size)]
    topics = ["t" if n % 3 else "u" for n in range(size)]
    return rows(values, topics=topics, partitions=[n % 2 for n in range(size)])


def _own(root: Path) -> Ground:
    """One directory: two writers, both kinds of ``flush``, records and topics that are deleted."""
    ground = Ground("own", ("log",), ("t", "u", "w"))
    (root / "log").mkdir()
    ground.keep(root)
    _batch(ground, root, "q0")
    ground.keep(root)
    append(ground, root, ["a0", "a1", "a2", "a3", "a4"])
    ground.keep(root)
    _batch(ground, root, "q1", flush="os")
    ground.keep(root)
    delete_records(ground.paths(root), {TopicPartition("t", 0): 2})
    create(ground.paths(root), "w", config={"retention.ms": "-1"})
    kafkalog.append([*ground.paths(root)], "w", rows(["w0", "w1"]), options=_SMALL)
    ground.keep(root)
    delete(ground.paths(root), "w")
    kafkalog.append([*ground.paths(root)], "w", rows(["w2"]), options=_SMALL)
    ground.first_seen = len(ground.versions)
    ground.keep(root)
    _batch(ground, root, "q2")
    append(ground, root, ["b0", "b1"])
    ground.keep(root)
    return ground


def _two(root: Path) -> Ground:
    """Two directories, and a commit that was killed on its way."""
    ground = Ground("two", ("one", "other"), ("t", "u"))
    for name in ground.logs:
        (root / name).mkdir()
    ground.keep(root)
    for number in range(3):
        _batch(ground, root, f"q{number}")
        ground.keep(root)
    writer = writer_of(ground, root)
    runs = writer.stage(3, query_rows("q3"))
    assert run_and_kill(lambda: writer.commit(3, runs, digest="digest 3"), 40)
    ground.keep(root)
    assert (root / "one" / "kafkalog.intent").exists()
    ground.unfinished = set(query_rows("q3").column("value").to_pylist())
    return ground


_STEPS: Final = (
    ("send", 1), ("plain", 2), ("abort", 1), ("send", 3), ("roll", 0), ("send", 1), ("abort", 3),
    ("plain", 2), ("roll", 0), ("commit", 1), ("send", 3), ("send", 4), ("abort", 4), ("roll", 0),
)  # fmt: skip
_MORE_STEPS: Final = (("commit", 3), ("plain", 2), ("send", 5), ("abort", 5), ("plain", 2))


def _foreign(root: Path) -> Ground:
    """A broker's directory that we never wrote to, with records that not all replicas have."""
    ground, logs = _of_broker("foreign", root)
    logs[1].play((("plain", 7), ("plain", 7)))
    ground.keep(root)
    ground.pending = _all_values(ground, root)
    return ground


def _broker(root: Path) -> Ground:
    """A broker's directory, with transactions, and our own records after that."""
    ground, _ = _of_broker("broker", root)
    take_over(ground.paths(root))
    append(ground, root, ["a0", "a1", "a2"])
    ground.keep(root)
    append(ground, root, ["b0", "b1", "b2"])
    ground.keep(root)
    ground.pending = _all_values(ground, root)
    return ground


def _all_values(ground: Ground, root: Path) -> set[str]:
    everything = {"readUpTo": "logEnd", "kafka.isolation.level": "read_uncommitted"}
    found = read_rows(ground.paths(root), [*ground.topics], everything)
    return {value for each in found.values() for value in each.values()}


def _of_broker(name: str, root: Path) -> tuple[Ground, list[BrokerLog]]:
    ground = Ground(
        name,
        ("log",),
        ("t",),
        {"allowBrokerDirectory": "true"},
        {"kafka.isolation.level": "read_committed"},
    )
    log = root / "log"
    log.mkdir()
    (log / "meta.properties").write_text(
        "#\n#Sat Nov 21 01:38:00 UTC 2026\ncluster.id=5L6g3nShT-eMCtK--X86sw\n"
        "directory.id=0PEb4RNlSyCPsTnNlOFKSg\nnode.id=1\nversion=1\n"
    )
    logs = []
    for partition in range(2):
        folder = log / f"t-{partition}"
        folder.mkdir()
        write_topic_id(folder, "2nKGh3uGQ0a2qXfWc1kKTA")
        write_leader_epochs(folder, [LeaderEpoch(0, 0)])
        logs.append(BrokerLog(folder))
    logs[0].play(_STEPS)
    logs[1].play((("plain", 7), ("roll", 0), ("plain", 7)))
    _stopped(log, logs)
    ground.keep(root)
    logs[0].play(_MORE_STEPS)
    logs[1].play((("plain", 7),))
    _stopped(log, logs)
    ground.keep(root)
    seen = {("t", n): sorted(each.visible) for n, each in enumerate(logs)}
    assert {place: [*found] for place, found in ground.last.rows.items()} == seen
    return ground, logs


def _stopped(log: Path, logs: list[BrokerLog]) -> None:
    """Write what a broker that stops leaves."""
    ends = {f"t-{n}": each.next_offset for n, each in enumerate(logs)}
    write_checkpoint(log, "recovery-point-offset-checkpoint", ends)
    write_checkpoint(log, "replication-offset-checkpoint", ends)
    write_checkpoint(log, "log-start-offset-checkpoint", {})
    write_checkpoint(log, "cleaner-offset-checkpoint", {"t-0": 3})
    (log / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":-1}')


def _handed(root: Path) -> Ground:
    """A set that a broker was given, under another topic id, and that came back."""
    ground = Ground("handed", ("log",), ("t", "u"), {"allowBrokerDirectory": "true"})
    (root / "log").mkdir()
    _batch(ground, root, "q0")
    ground.keep(root)
    hand_over(
        ground.paths(root),
        topic_ids={"t": "hpYgM1pPTfKkq0oFhDYc0w"},
        cluster_id="5L6g3nShT-eMCtK--X86sw",
        node_id=1,
    )
    ground.keep(root)
    take_over(ground.paths(root))
    _batch(ground, root, "q1")
    ground.keep(root)
    return ground


def _killed(root: Path) -> Ground:
    """One directory, as it was amid each of its commits, when that was killed."""
    ground = Ground("killed", ("log",), ("t", "u"))
    (root / "log").mkdir()
    ground.keep(root)
    copy = root.with_name("copy")
    for number, left in enumerate((30, 20, 10, 4, 2)):
        batch = query_rows(f"q{number}")

        def commit(at: Path, number: int = number, batch: Any = batch) -> None:
            write_batch(ground, at, number, batch)

        ground.restore(copy, ground.last)
        calls = count_calls(functools.partial(commit, copy))
        assert run_and_kill(functools.partial(commit, root), calls - left)
        ground.keep(root)
        for _ in range(1000):  # those that the process has had which was killed
            system.random_id()
        commit(root)
        ground.last_batch = number
        ground.keep(root)
    shutil.rmtree(copy)
    return ground


def _query(root: Path) -> Ground:
    """A query that writes with a checkpoint, and one that reads and keeps topic ids."""
    ground = Ground("query", ("log",), ("t", "u"), has_checkpoint=True)
    (root / "log").mkdir()
    for number in range(3):
        _batch(ground, root, f"q{number}")
        ground.keep(root)
    return ground


GROUNDS: Final[Mapping[str, Callable[[Path], Ground]]] = {
    "own": _own,
    "two": _two,
    "broker": _broker,
    "foreign": _foreign,
    "handed": _handed,
    "killed": _killed,
    "query": _query,
}
