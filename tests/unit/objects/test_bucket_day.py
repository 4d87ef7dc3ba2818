"""A log in a bucket stays small for as long as it is written and maintained, whoever is killed."""

from __future__ import annotations

import json
import os
import pickle
import random
import uuid
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pytest
from tests.support.bucket_model import MemoryObjects, NoThreads, without_rests

import kafkalog
from kafkalog.checkpoints.bucket_state import checkpoint_bytes
from kafkalog.files import open_file
from kafkalog.files.storage import RemoteRoot
from kafkalog.files.system import remembered, system
from kafkalog.jobs.maintain import BucketMaintenance, Scope
from kafkalog.streaming.objects import bucket_store
from kafkalog.streaming.objects.bucket_store import BucketRoot
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.source.reading import SplitReader, read_split
from kafkalog.streaming.source.schema import ReadRows
from kafkalog.streaming.source.stream_control import StreamControl

if TYPE_CHECKING:
    from collections.abc import Callable

    from kafkalog.streaming.source.planner import LogSplit

HOUR_MS: Final = 3_600_000
MINUTE_MS: Final = 60_000
START_MS: Final = 1_700_000_000_000
KEPT: Final = "k"
"""A topic that is kept for six hours: what a slow reader has planned is swept before it expires."""
FIGURE: Final = os.environ.get("KAFKALOG_DAY_FIGURE")
"""A file for the sizes over time, as docs/bucket-day.png."""


class _Killed(BaseException):
    """The process was killed here."""


@dataclass
class _Killing:
    """The store as a maintainer asks it that is killed at one of its requests."""

    objects: MemoryObjects
    at: int
    """Two for each request: before and after it."""
    tries: int = 3
    root: str = "memory://bucket/logs"

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def ask(*given: Any, **named: Any) -> Any:
            self._kill()
            answer = getattr(self.objects, name)(*given, **named)
            self._kill()
            return answer

        return ask

    def _kill(self) -> None:
        self.at -= 1
        if self.at == 0:
            raise _Killed


class _Sizes(NamedTuple):
    objects: int
    extents: int
    data_bytes: int
    state_bytes: int


@dataclass(frozen=True)
class _Scale:
    hours: int
    appends_an_hour: int
    partitions: int
    hot: int
    writers: int
    readers: int


def _forget(place: str) -> None:
    """Let a process end: another one takes its place."""
    known = remembered(bucket_store._OpenStores).by_root
    for key in [key for key in known if key[0] == place]:  # type: ignore[index]
        del known[key]
    remembered(open_file._KnownFiles).clear()


class _Reader:
    """A query that reads on, each row once and in its order; or what was planned, much later."""

    def __init__(self, number: object, topic: str, start: str = "earliest") -> None:
        place = f"s3a://bucket/reader {number}"
        given = {"path": place, "subscribe": topic, "startingOffsets": start}
        self.options = ReadOptions.parse({**given, "storage.pollInterval": "1h"})
        self._query = StreamControl(self.options)
        self._store = BucketRoot.of(self.options.paths[0]).open_store()  # type: ignore[arg-type]
        known = remembered(bucket_store._OpenStores).by_root
        self._known = {key: each for key, each in known.items() if each is self._store}
        self._rows = ReadRows.of(self.options, (), ()).of_records
        self._at = self._query.initial()

    def plan(self) -> list[LogSplit]:
        self._store.forget_listing()
        start = self._at
        self._at = self._query.next_end(start, take_all=True)
        return list(self._query.plan(start, self._at))  # type: ignore[arg-type]

    def read(self, splits: list[LogSplit]) -> list[dict[str, Any]]:
        """Read what was planned, in a task: a process that knows what it was given, no more."""
        _forget(str(self.options.paths[0]))
        splits, options = pickle.loads(pickle.dumps((splits, self.options)))
        batches = [b for split in splits for b in read_split(split, options, self._rows)]
        _forget(str(self.options.paths[0]))
        remembered(bucket_store._OpenStores).by_root.update(self._known)
        return [row for batch in batches for row in batch.to_pylist()]


@dataclass
class _Day:
    """Writers, readers and two maintainers of one log, by a clock of their own."""

    patch: pytest.MonkeyPatch
    scale: _Scale
    objects: MemoryObjects = field(default_factory=MemoryObjects)
    chance: random.Random = field(default_factory=lambda: random.Random(7))
    now_ms: int = START_MS
    written: dict[tuple[str, int], int] = field(default_factory=dict)
    killed: Counter[int] = field(default_factory=Counter)
    """By the request at which a maintainer was killed."""
    kill_at: int = 0
    served_elsewhere: int = 0

    def __post_init__(self) -> None:
        self.patch.setattr(remembered(bucket_store._OpenStores), "by_root", {})
        self.patch.setattr(system, "time_ns", lambda: self.now_ms * 1_000_000)
        self.patch.setattr(system, "boottime", lambda: self.now_ms / 1000)
        self.patch.setattr(bucket_store, "open_objects", self._store_of)
        self.patch.setattr(system, "pool", NoThreads)
        ids = random.Random(8)
        self.patch.setattr(system, "random_id", lambda: uuid.UUID(int=ids.getrandbits(128)))
        elsewhere = SplitReader._of_another_replica

        def counted(*given: Any) -> Any:
            self.served_elsewhere += isinstance(given[-1], bucket_store.ObjectReplacedError)
            return elsewhere(*given)

        self.patch.setattr(SplitReader, "_of_another_replica", counted)

    def _store_of(self, place: RemoteRoot) -> object:
        return _Killing(self.objects, self.kill_at) if "killed" in str(place) else self.objects

    def append(self, topic: str, partitions: int, retention_ms: int) -> None:
        """One writer of many appends a few rows, most of them to hot partitions."""
        rows, scale = self.chance.randrange(5, 40), self.scale
        hot = min(scale.hot, partitions)
        numbers = [
            self.chance.randrange(hot if self.chance.random() < 0.9 else partitions)
            for _ in range(rows)
        ]
        values = []
        for number in numbers:
            count = self.written.get((topic, number), 0)
            values.append(f"{number} {count}")
            self.written[topic, number] = count + 1
        table = pa.table(
            {
                "value": values,
                "partition": pa.array(numbers, pa.int32()),
                "timestamp": pa.array([self.now_ms] * rows, pa.int64()),
            }
        )
        options = {
            "numPartitions": str(partitions),
            "retention.ms": str(retention_ms),
            "segment.bytes": "20000",
            "storage.deleteDelay": "1h",
        }
        who = self.chance.randrange(scale.writers)
        kafkalog.append(f"s3a://bucket/writer {who}", topic, table, options=options)

    def check_rows(self, rows: list[dict[str, Any]], seen: dict[int, int], topic: str) -> None:
        """See that rows continue what was seen of a topic, up to what is written."""
        for row in rows:
            number, count = map(int, row["value"].split())
            assert (row["partition"], row["offset"]) == (number, count)
            assert count == seen.get(number, 0)
            seen[number] = count + 1
        assert seen == self.ends(topic)

    def ends(self, topic: str) -> dict[int, int]:
        return {number: end for (name, number), end in self.written.items() if name == topic}

    def maintain(self, *, is_killed: bool) -> None:
        """Do a round, which may be killed; whoever comes after it is another process."""
        place = f"s3a://bucket/{'killed' if is_killed else 'maintainer'}"
        self.kill_at += is_killed
        try:
            problems = BucketMaintenance(Scope(log=place), say=lambda _: None).round()
        except _Killed:
            self.killed[self.kill_at] += 1
        else:
            assert problems == []
            self.kill_at = 0 if is_killed else self.kill_at  # it has fewer requests: from the first
        _forget(place)

    def sizes(self) -> _Sizes:
        with BucketRoot.of(RemoteRoot.parse("s3a://bucket/judge")).writing() as log:
            state = log.follow()
        kept = {
            n: d for n, (d, _) in self.objects.kept.items() if "/data/" in n or "logs/" in n[:5]
        }
        return _Sizes(
            len(kept),
            sum(map(len, state.extents.values())),
            sum(map(len, kept.values())),
            len(checkpoint_bytes(state)),
        )


@dataclass
class _SlowReads:
    """What was planned of the topic that is kept, and is read two hours later."""

    day: _Day
    planned: list[tuple[int, _Reader, list[LogSplit], int]] = field(default_factory=list)
    ends: list[dict[int, int]] = field(default_factory=lambda: [{}, {}])
    """Of that topic, at each plan."""

    def plan(self) -> None:
        """Plan the rows of the last two hours."""
        start = {KEPT: {str(n): self.ends[-2].get(n, 0) for n in range(4)}}
        slow = _Reader(f"slow {self.day.now_ms}", KEPT, json.dumps(start))
        self.ends.append(self.day.ends(KEPT))
        due_ms = self.day.now_ms + 2 * HOUR_MS
        self.planned.append((due_ms, slow, slow.plan(), len(self.ends) - 1))

    def read_due(self) -> None:
        """Read what is due: each row that was planned, wherever it lies by now."""
        while self.planned and self.planned[0][0] <= self.day.now_ms:
            _, slow, splits, slot = self.planned.pop(0)
            rows = [(row["partition"], row["offset"]) for row in slow.read(splits)]
            assert sorted(rows) == sorted(
                (number, offset)
                for number, end in self.ends[slot].items()
                for offset in range(self.ends[slot - 2].get(number, 0), end)
            )
            _forget(str(slow.options.paths[0]))


def _run(day: _Day) -> list[_Sizes]:
    """Let the day pass; return the sizes after each hour."""
    scale, most, slow = day.scale, [], _SlowReads(day)
    readers: list[tuple[_Reader, dict[int, int]]] = []
    for minute in range(scale.hours * 60):
        day.now_ms += MINUTE_MS
        if minute % (60 // scale.appends_an_hour) == 0:
            day.append("t", scale.partitions, HOUR_MS)
        if minute % 5 == 0:
            day.append(KEPT, 4, 6 * HOUR_MS)
        if minute % 10 == 0:
            day.maintain(is_killed=minute % 20 == 0)
            day.maintain(is_killed=minute % 20 == 10)
        if len(readers) < scale.readers:
            readers.append((_Reader(len(readers), "t"), {}))
        for slot, (reader, seen) in enumerate(readers):
            if minute % 30 == slot * 30 // scale.readers:
                day.check_rows(reader.read(reader.plan()), seen, "t")
        if minute % 60 == 55:
            slow.plan()
            most.append(day.sizes())
            print(minute // 60, most[-1], day.kill_at, day.served_elsewhere)  # noqa: T201
        slow.read_due()
    for reader, seen in readers:
        day.check_rows(reader.read(reader.plan()), seen, "t")
    return most


@pytest.mark.parametrize(
    "scale",
    [
        pytest.param(_Scale(5, 20, 12, 3, 4, 2), id="5-hours"),
        pytest.param(
            _Scale(24, 30, 2000, 10, 50, 20),
            id="24-hours",
            marks=[pytest.mark.nightly, pytest.mark.timeout(7200)],
        ),
    ],
)
def test_a_day_of_writers_readers_and_maintainers(
    monkeypatch: pytest.MonkeyPatch, scale: _Scale
) -> None:
    without_rests(monkeypatch)
    day = _Day(monkeypatch, scale)
    most = _run(day)
    if FIGURE:
        _draw(most, FIGURE)
    assert day.killed
    assert day.served_elsewhere
    third = scale.hours // 3
    settled = [max(each) for each in zip(*most[third : 2 * third + 1], strict=True)]
    last = [max(each) for each in zip(*most[2 * third :], strict=True)]
    assert all(now <= 2 * then for now, then in zip(last, settled, strict=True)), most


def _draw(most: list[_Sizes], path: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    for axes, name, unit in zip(
        figure.subplots(2, 2).flat,
        _Sizes._fields,
        ("objects", "extents", "bytes of data", "bytes of state"),
        strict=True,
    ):
        axes.plot(range(1, len(most) + 1), [getattr(each, name) for each in most])
        axes.set(ylim=(0, None), title=unit, xlabel="hour")
    figure.savefig(path, dpi=110)
