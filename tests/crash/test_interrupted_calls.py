"""Alarms at random bytecodes and moments, in all that a program calls: each call can be made again.

No row is lost or doubled, no object stays broken, no descriptor is closed twice, no lock stays
taken, and no member that nobody knows takes part in a group.

``make test`` takes a few hundred alarms, ``make nightly`` 20,000. A seed and the number of a world
make the same alarms again, as far as bytecodes are chosen; moments are the clock's.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pytest
from tests.support.alarms import OUTSIDE, Alarms, closed_once
from tests.support.consuming import keep_groups_small
from tests.support.interrupting import AlarmError

import kafkalog
from kafkalog.errors import CommitError, KafkaLogError
from kafkalog.files.deferred_signals import IS_DONE
from kafkalog.files.objects import FolderObjects
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.topics import create, delete
from kafkalog.streaming.groups.administration import reset_group
from kafkalog.streaming.groups.group_commits import GroupCommits
from kafkalog.streaming.groups.member_files import MEMBER_PREFIX
from kafkalog.streaming.objects import bucket_store
from kafkalog.streaming.objects.bucket_store import bucket_of
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.source.schema import RowSchema
from kafkalog.streaming.spark.readers import LogStreamReader
from kafkalog.streaming.spark.versions import ReadAllAvailable
from kafkalog.streaming.store.policy import SetPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kafkalog.streaming.groups.group_log import GroupState

pytestmark = pytest.mark.crash

ALARMS = int(os.environ.get("KAFKALOG_ALARMS", "300"))
SEED = int(os.environ.get("KAFKALOG_ALARM_SEED", "7"))
ALARMS_OF_WORLD = 150
PARTITIONS = 3
START = {"startingOffsets": "earliest"}
QUICK = {"flush": "os", "max.block.ms": 5000}
MEMBER = {
    **START,
    "splitBytes": "1",
    "kafka.session.timeout.ms": "60s",
    "kafka.heartbeat.interval.ms": "50",
}


class Directories:
    """Where the log of a world lies: in a log directory."""

    options: ClassVar[dict[str, Any]] = QUICK
    reading: ClassVar[dict[str, Any]] = {}

    def __init__(self, folder: Path) -> None:
        self.name = str(folder)
        self._folder = folder

    def members(self) -> list[Path]:
        """Return what members have left there to say that they live."""
        return list(self._folder.glob(f"{MEMBER_PREFIX}*"))

    def group(self, name: str) -> GroupState:
        return GroupCommits([self._folder], name, SetPolicy()).look()

    def has_topic(self, topic: str) -> bool:
        return bool(list(self._folder.glob(f"{topic}-*")))


class Nodes(Directories):
    """Where the log of a world lies: on three nodes."""

    def __init__(self, folder: Path) -> None:
        self._nodes = [folder / name for name in "abc"]
        self.name = ";".join(map(str, self._nodes))

    def members(self) -> list[Path]:
        return [each for node in self._nodes for each in node.glob(f"{MEMBER_PREFIX}*")]

    def group(self, name: str) -> GroupState:
        return GroupCommits(self._nodes, name, SetPolicy()).look()

    def has_topic(self, topic: str) -> bool:
        return any([*node.glob(f"{topic}-*")] for node in self._nodes)


class Bucket:
    """Where the log of a world lies: in a store, which is a folder here."""

    options: ClassVar[dict[str, Any]] = {"storage.pollInterval": "10ms"}
    reading = options

    def __init__(self, folder: Path) -> None:
        self.name = f"s3a://bucket{folder}"
        self._folder = folder

    def members(self) -> list[Path]:
        return list(self._folder.rglob("groups/*/*"))

    def group(self, name: str) -> GroupState:
        return GroupCommits([self._root()], name, SetPolicy()).look()

    def has_topic(self, topic: str) -> bool:
        return any(each.name.startswith(f"{topic}-") for each in self._root().iterdir())

    def _root(self) -> Path:
        root = bucket_of([self.name])
        assert root is not None
        root.open_store().forget_listing()
        return root.open_log()


class World:
    """A topic of numbers, what is known to be in it, and what reads on from call to call."""

    def __init__(self, place: Directories | Bucket, alarms: Alarms, number: int) -> None:
        self.place = place
        self.log = place.name
        self.alarms = alarms
        self.random = alarms.random
        self.known: set[int] = set()
        self.copied: list[int] = []
        self.next = 0
        self.version = 0
        self.group = f"g{number}"
        self.got: list[int] = []
        self.waiting: list[int] = []
        """What the member has read, and not copied or committed."""
        self.tailed: list[int] = []
        self.streamed: list[int] = []
        create([self.log], "in", partitions=PARTITIONS)
        self.append(list(range(30)))
        self.next = 30
        self.tail = self.new_tail()
        self.consumer = self.new_consumer()
        self.stream = self.new_stream()
        self.at = self.stream.initialOffset()

    def new_consumer(self) -> kafkalog.Consumer:
        options = {**MEMBER, **self.place.options}
        return kafkalog.Consumer(self.log, self.group, "in", options=options)

    def new_tail(self) -> Iterator[pa.RecordBatch]:
        """Read on behind what was tailed: offsets count the rows of a partition."""
        read = Counter(number % PARTITIONS for number in self.tailed)
        offsets = {"in": {str(part): read[part] for part in range(PARTITIONS)}}
        options = {"startingOffsets": offsets, **self.place.reading}
        return kafkalog.tail(self.log, "in", columns=["value"], idle_timeout=0, options=options)

    def new_stream(self) -> LogStreamReader:
        given = {"path": self.log, "subscribe": "in", **START, **self.place.reading}
        return LogStreamReader(ReadOptions.parse(given), RowSchema.named())

    def append(self, numbers: list[int], topic: str = "in", **named: Any) -> kafkalog.Outcome:
        options = {**self.place.options, "numPartitions": PARTITIONS}
        return kafkalog.append(self.log, topic, rows_of(numbers), options=options, **named)

    def read(self, topic: str = "in") -> list[int]:
        return numbers_of(kafkalog.read(self.log, topic).read_all())

    # What is called with an alarm

    def some_numbers(self) -> list[int]:
        self.next += 3
        return list(range(self.next - 3, self.next))

    def appends(self) -> None:
        """Rows without an identity: the exception says whether they are there."""
        numbers = self.some_numbers()
        is_there = True
        try:
            self.alarms.call("append", lambda: self.append(numbers))
        except AlarmError as error:
            is_there = IS_DONE in getattr(error, "__notes__", ())
        self.known |= {*numbers} if is_there else set()
        assert sorted(self.read()) == sorted(self.known)

    def appends_once(self) -> None:
        """Rows with a name and a version: the same again makes up for what was cut off."""
        numbers = self.some_numbers()
        self.version += 1
        named = {"transactional_id": "w", "version": self.version}
        with suppress(AlarmError):
            self.alarms.call("append once", lambda: self.append(numbers, **named))
        self.append(numbers, **named)
        self.known |= {*numbers}
        assert sorted(self.read()) == sorted(self.known)

    def appends_from_generator(self) -> None:
        numbers = self.some_numbers()

        def batches() -> Iterator[pa.RecordBatch]:
            for number in numbers:
                yield from rows_of([number]).to_batches()

        self.version += 1
        named = {"transactional_id": "w", "version": self.version}
        with suppress(AlarmError):
            self.alarms.call(
                "append generator",
                lambda: kafkalog.append(
                    self.log, "in", batches(), options=self.place.options, **named
                ),
            )
        self.append(numbers, **named)
        self.known |= {*numbers}

    def reads(self) -> None:
        reader = None
        try:
            reader = self.alarms.call("read", lambda: kafkalog.read(self.log, "in"))
            found = self.alarms.call("read_all", lambda: numbers_of(reader.read_all()))
        except AlarmError as error:
            if reader is not None and str(error) != OUTSIDE:
                with pytest.raises(KafkaLogError, match="was cut off"):
                    reader.read_all()
            found = self.read()
        assert sorted(found) == sorted(self.known)

    def tails(self) -> None:
        try:
            with suppress(AlarmError):
                self.tailed += numbers_of(self.alarms.call("tail", self.tail.__next__))
        except StopIteration:  # nothing was new
            self.tail = self.new_tail()

    def gets(self) -> None:
        chosen = self.random.choice(sorted(self.known))
        options = {"cache.memory": self.random.choice(["0", "8m"])}

        def get() -> Any:
            key, partition = str(chosen), chosen % PARTITIONS
            return kafkalog.get(self.log, "in", key, partition=partition, options=options)

        with suppress(AlarmError):
            self.alarms.call("get", get)
        assert get()["value"] == str(chosen).encode()

    def scans(self) -> None:
        found: list[int] = []
        scan = kafkalog.scan(self.log, "in")
        try:
            self.alarms.call("scan", lambda: found.extend(n for b in scan for n in numbers_of(b)))
        except AlarmError as error:
            if str(error) != OUTSIDE:
                with pytest.raises(KafkaLogError, match="was cut off"):
                    next(scan)
            found = [n for b in kafkalog.scan(self.log, "in") for n in numbers_of(b)]
        assert sorted(found) == sorted(self.known)

    def polls(self) -> None:
        with suppress(AlarmError):
            rows = self.alarms.call("poll", lambda: self.consumer.poll(0.0))
            if rows is not None:
                self.waiting += numbers_of(rows)

    def commits(self) -> None:
        if self.consumer._has_failed:
            with pytest.raises(CommitError, match="an append with this Consumer failed"):
                self.consumer.commit()
            return
        with suppress(AlarmError):
            self.alarms.call("commit", self.consumer.commit)
        self.consumer.commit()
        self.got += self.waiting
        self.waiting.clear()

    def copies(self) -> None:
        """Append what was read with the group's positions: it is there once, or comes again."""
        if not self.waiting:
            return
        numbers = list(self.waiting)
        try:
            self.alarms.call(
                "append with consumer",
                lambda: self.append(numbers, "out", consumer=self.consumer),
            )
        except AlarmError:
            copied = self.read("out") if self.place.has_topic("out") else []
            if not {*numbers} <= {*copied}:
                if self.consumer._has_failed:  # else the alarm came before the first step of it
                    self.waiting.clear()  # they come again
                return
        self.copied += numbers
        self.got += numbers
        self.waiting.clear()

    def seeks(self) -> None:
        """Go back, and on: a position is where it was, or where it was to be."""
        owned = self.consumer.assignment
        if not owned:
            return
        key = self.random.choice(owned)
        before = self.consumer.position(key)
        with suppress(AlarmError):
            self.alarms.call("seek", lambda: self.consumer.seek(key, 0))
        assert self.consumer.position(key) in {0, before}
        with suppress(AlarmError):
            self.alarms.call("pause", lambda: self.consumer.pause(owned))
        self.consumer.resume(owned)
        self.consumer.seek(key, before)
        with suppress(AlarmError):
            assert self.alarms.call("position", lambda: self.consumer.position(key)) == before

    def closes(self) -> None:
        """Leave and join again: what was not committed comes again, to the next member."""
        with suppress(AlarmError):
            self.alarms.call("close", self.consumer.close)
        self.consumer.close()
        assert not self.place.members()
        assert not self.place.group(self.group).record.members
        self.waiting.clear()
        if self.random.random() < 0.2:
            with suppress(AlarmError):
                self.alarms.call(
                    "reset",
                    lambda: reset_group([self.log], self.group, self.stands(), topics=[]),
                )
        self.consumer = self.new_consumer()

    def stands(self) -> dict[TopicPartition, int]:
        found = self.place.group(self.group).positions
        return dict(found) or {TopicPartition("in", 0): 0}

    def streams(self) -> None:
        """Ask as Spark does; what an answer did not arrive for is asked again."""
        with suppress(AlarmError):
            end = self.alarms.call(
                "latestOffset", lambda: self.stream.latestOffset(self.at, ReadAllAvailable())
            )
            if end != self.at:
                tasks = self.alarms.call("partitions", lambda: self.stream.partitions(self.at, end))
                found = [self.stream.read(each) for each in tasks]
                self.streamed += [n for rows in found for b in rows for n in numbers_of(b)]
                self.at = end
                self.alarms.call("commit of stream", lambda: self.stream.commit(end))

    def manages(self) -> None:
        with suppress(AlarmError):
            self.alarms.call("create", lambda: create([self.log], "other", partitions=2))
        with suppress(KafkaLogError):
            create([self.log], "other", partitions=2)
        with suppress(AlarmError):
            self.alarms.call("delete", lambda: delete([self.log], "other"))
        with suppress(KafkaLogError):
            delete([self.log], "other")
        assert not self.place.has_topic("other")

    # What must hold in the end

    def finish(self) -> None:
        assert sorted(self.read()) == sorted(self.known)
        self.tailed += [n for batch in self.tail for n in numbers_of(batch)]
        self.tailed += [n for batch in self.new_tail() for n in numbers_of(batch)]
        assert sorted(self.tailed) == sorted(self.known)
        while (end := self.stream.latestOffset(self.at, ReadAllAvailable())) != self.at:
            for task in self.stream.partitions(self.at, end):
                self.streamed += [n for b in self.stream.read(task) for n in numbers_of(b)]
            self.at = end
        assert sorted(self.streamed) == sorted(self.known)
        with closing(self.consumer) as reader:
            while (rows := reader.poll(0.3)) is not None:
                self.waiting += numbers_of(rows)
            reader.commit()
        self.got += self.waiting
        assert sorted(self.got) == sorted(self.known)
        assert sorted(self.copied) == (sorted(self.read("out")) if self.copied else [])
        assert not self.place.members()
        assert not self.place.group(self.group).record.members


def rows_of(numbers: list[int]) -> pa.Table:
    texts = [str(each).encode() for each in numbers]
    partitions = pa.array([each % PARTITIONS for each in numbers], pa.int32())
    return pa.table({"key": texts, "value": texts, "partition": partitions})


def numbers_of(rows: pa.RecordBatch | pa.Table) -> list[int]:
    return [int(each) for each in rows.column("value").to_pylist()]


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


OPERATIONS: list[tuple[int, Callable[[World], None]]] = [
    (3, World.appends),
    (3, World.appends_once),
    (1, World.appends_from_generator),
    (4, World.reads),
    (6, World.tails),
    (2, World.gets),
    (2, World.scans),
    (14, World.polls),
    (3, World.commits),
    (4, World.copies),
    (2, World.seeks),
    (2, World.closes),
    (6, World.streams),
    (1, World.manages),
]


@pytest.mark.parametrize("kind", [Directories, Nodes, Bucket])
def test_whatever_an_alarm_cuts_off_can_be_called_again(
    monkeypatch: pytest.MonkeyPatch, kind: type[Directories | Bucket]
) -> None:
    keep_groups_small(monkeypatch)
    monkeypatch.setattr(
        bucket_store,
        "open_objects",
        lambda place: FolderObjects(Path(place.partition("bucket")[2])),
    )
    memory = Path("/dev/shm")
    place = memory if memory.is_dir() else None
    number, hits, alarms_due = 0, 0, ALARMS // 3
    while hits < alarms_due:
        alarms = Alarms(SEED * 1_000_003 + number)
        with TemporaryDirectory(dir=place, prefix="alarms-") as name, closed_once() as twice:
            world = World(kind(Path(name)), alarms, number)
            world.known |= set(range(30))
            threads, files = threading.active_count(), open_files()
            weights = [weight for weight, _ in OPERATIONS]
            asked = []
            try:
                while sum(alarms.hits.values()) < min(ALARMS_OF_WORLD, alarms_due - hits):
                    (_, operation) = alarms.random.choices(OPERATIONS, weights)[0]
                    asked.append(operation.__name__)
                    operation(world)
                    assert not twice
                world.finish()
            except BaseException as error:
                error.add_note(f"seed {SEED}, world {number}, after {asked[-12:]}")
                raise
            assert open_files() <= files + 8
            assert threading.active_count() <= threads
        hits += sum(alarms.hits.values())
        number += 1
