"""A log in a bucket stays small for as long as it is written and maintained, whoever is killed."""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support.bucket_model import MemoryObjects, NoThreads, without_rests

import kafkalog
from kafkalog.checkpoints.bucket_state import checkpoint_bytes
from kafkalog.files.storage import RemoteRoot
from kafkalog.files.system import system
from kafkalog.jobs.maintain import BucketMaintenance, Scope
from kafkalog.streaming.objects import bucket_store
from kafkalog.streaming.objects.bucket_store import BucketRoot

if TYPE_CHECKING:
    from collections.abc import Callable

HOUR_MS = 3_600_000
START_MS = 1_700_000_000_000


class _Killed(BaseException):
    """The process was killed here."""


@dataclass
class _Killing:
    """The store as a maintainer asks it that may be killed before or after each request."""

    objects: MemoryObjects
    chance: random.Random
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
        if self.chance.random() < 0.002:
            raise _Killed


@dataclass
class _Day:
    """Writers, a reader and two maintainers of one log, by a clock of their own."""

    patch: pytest.MonkeyPatch
    partitions: int
    hot: int
    objects: MemoryObjects = field(default_factory=MemoryObjects)
    chance: random.Random = field(default_factory=lambda: random.Random(7))
    now_ms: int = START_MS
    written: dict[int, int] = field(default_factory=dict)
    read: dict[int, int] = field(default_factory=dict)
    kills: int = 0

    def __post_init__(self) -> None:
        self.patch.setattr(system, "time_ns", lambda: self.now_ms * 1_000_000)
        self.patch.setattr(system, "boottime", lambda: self.now_ms / 1000)
        self.patch.setattr(bucket_store, "open_objects", self._store_of)
        self.patch.setattr(system, "pool", NoThreads)
        ids = random.Random(8)
        self.patch.setattr(system, "random_id", lambda: uuid.UUID(int=ids.getrandbits(128)))

    def _store_of(self, place: RemoteRoot) -> object:
        is_maintainer = "maintainer" in str(place)
        return _Killing(self.objects, self.chance) if is_maintainer else self.objects

    def root(self, who: str) -> BucketRoot:
        place = RemoteRoot.parse(f"s3a://bucket/{who}")
        return BucketRoot.of(place.with_options({"poll_interval_ms": -1}))

    def append(self) -> None:
        """One writer of some appends a few rows, most of them to hot partitions."""
        rows = self.chance.randrange(5, 40)
        numbers = [
            self.chance.randrange(self.hot if self.chance.random() < 0.9 else self.partitions)
            for _ in range(rows)
        ]
        values = []
        for number in numbers:
            values.append(f"{number} {self.written.get(number, 0)}")
            self.written[number] = self.written.get(number, 0) + 1
        table = pa.table(
            {
                "value": values,
                "partition": pa.array(numbers, pa.int32()),
                "timestamp": pa.array([self.now_ms] * rows, pa.int64()),
            }
        )
        options = {
            "numPartitions": str(self.partitions),
            "retention.ms": str(HOUR_MS),
            "segment.bytes": "20000",
            "storage.deleteDelay": "1h",
        }
        kafkalog.append(f"s3a://bucket/{self.chance.randrange(4)}", "t", table, options=options)

    def follow(self) -> None:
        """Read what has come since, each row once and in its writer's order."""
        options = {"storage.listInterval": "0", "failOnDataLoss": "true"}
        start = {str(n): self.read.get(n, 0) for n in range(self.partitions)}
        offsets = f'{{"t":{start}}}'.replace("'", '"')
        found = kafkalog.read(
            "s3a://bucket/reader", "t", options={**options, "startingOffsets": offsets}
        )
        for row in found.read_all().sort_by("offset").to_pylist():
            number, count = map(int, row["value"].split())
            assert (row["partition"], row["offset"]) == (number, count)
            assert count == self.read.get(number, 0)
            self.read[number] = count + 1
        assert self.read == self.written

    def maintain(self, who: str) -> None:
        """Do a round, which may be killed; whoever comes after it is another process."""
        place = f"s3a://bucket/maintainer {who} {system.random_id().hex}"
        try:
            problems = BucketMaintenance(Scope(log=place), say=lambda _: None).round()
        except _Killed:
            self.kills += 1
        else:
            assert problems == []

    def sizes(self) -> tuple[int, int, int, int]:
        """Return objects of data, extents, bytes of data and of the state."""
        with self.root("judge").writing() as log:
            state = log.follow()
        kept = {
            n: d for n, (d, _) in self.objects.kept.items() if "/data/" in n or "logs/" in n[:5]
        }
        return (
            len(kept),
            sum(map(len, state.extents.values())),
            sum(map(len, kept.values())),
            len(checkpoint_bytes(state)),
        )


@pytest.mark.parametrize(
    ("hours", "an_hour", "partitions"),
    [(5, 18, 12), pytest.param(24, 60, 60, marks=pytest.mark.nightly)],
)
def test_a_day_of_writers_readers_and_maintainers(
    monkeypatch: pytest.MonkeyPatch, hours: int, an_hour: int, partitions: int
) -> None:
    without_rests(monkeypatch)
    day = _Day(monkeypatch, partitions, hot=3)
    most = []
    for _ in range(hours):
        for number in range(an_hour):
            day.append()
            day.now_ms += HOUR_MS // an_hour
            if number % (an_hour // 6) == 0:
                day.follow()
                day.maintain("a")
                day.maintain("b")
        most.append(day.sizes())
    day.follow()
    assert day.kills > hours // 2, day.kills
    settled, last = most[2], most[-1]
    assert all(now <= 3 * before for now, before in zip(last, settled, strict=True)), most
