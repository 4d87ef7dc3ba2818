"""A log in an object store on real servers: many that append at once, whatever becomes of requests.

The commits of a race are dense, the offsets without a gap, and each batch is there once.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.support.bucket_micro_batches import (
    PARTS,
    kill_each_part_at_each_request,
    values_of,
)
from tests.support.bucket_writers import append_at_once, kill_at_each_request, require_commit_state
from tests.support.object_servers import HONEST, LIARS
from tests.support.object_store import Losses, ObjectStore, object_store

import kafkalog
from kafkalog.errors import (
    LogDirectoryError,
    UnknownOutcomeError,
    UnknownTopicOrPartitionError,
)
from kafkalog.files.objects import open_objects

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.crash

STRIDE: Final = int(os.environ.get("KAFKALOG_KILL_STRIDE", "11"))


@pytest.fixture(scope="module", params=HONEST)
def store(request: Any, tmp_path_factory: Any) -> Iterator[ObjectStore]:
    with object_store(request.param, tmp_path_factory.mktemp("server") / "data") as store:
        store.make_bucket()
        yield store


def make_log(store: ObjectStore, prefix: str) -> None:
    """Make the log before the race: each that makes it tries the store first."""
    rows = pa.table({"value": ["1"]})
    kafkalog.append(store.uri(prefix), "before", rows, options=store.options)


def test_writers_that_race_commit_each_batch_once(store: ObjectStore) -> None:
    store.reset()
    direct = store.past_the_proxy()
    make_log(direct, "race")
    assert append_at_once(direct, "race", 16, 2) <= 50
    require_commit_state(direct, "race", 16, 2, commits_before=1)


def test_a_batch_is_there_once_whatever_is_lost(store: ObjectStore) -> None:
    store.reset()
    make_log(store, "lossy")
    losses = store.fault = Losses()
    append_at_once(store, "lossy", 6, 3)
    store.reset()
    require_commit_state(store, "lossy", 6, 3, commits_before=1)
    assert set(losses.count) == {"500", "500 before", "503", "reset", "lost", "409", "late"}


@pytest.mark.nightly
@pytest.mark.parametrize("loses", [False, True])
def test_sixteen_writers_append_fifty_batches_each(store: ObjectStore, *, loses: bool) -> None:
    store.reset()
    prefix = f"whole-{loses}"
    if loses:
        store.fault = Losses()
    most = append_at_once(store, prefix, 16, 50)
    store.reset()
    print(f"{most} tries at most")  # noqa: T201
    assert loses or most <= 50
    require_commit_state(store, prefix, 16, 50)


@pytest.mark.parametrize("store", ["versitygw"], indirect=True)
@pytest.mark.parametrize("rows", [1, pytest.param(20, id="in an object")])
def test_a_writer_that_is_killed_at_any_request_writes_each_row_once(
    store: ObjectStore, rows: int
) -> None:
    direct = store.past_the_proxy()
    make_log(direct, f"killed-{rows}")
    batches = kill_at_each_request(direct, f"killed-{rows}", rows)
    objects = open_objects(direct.place(f"killed-{rows}"))
    names = [entry.name for entry in objects.list_after("_kafkalog")]
    assert sum("/checkpoints/" in name for name in names) > 3
    assert batches > 6  # open, look for the end, stage, commit, write a checkpoint
    tail = kafkalog.tail(
        direct.uri(f"killed-{rows}"),
        "t",
        options={**direct.options, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "10"},
    )
    found: list[int] = []
    while len(found) < batches * rows:
        values = next(tail)["value"].to_pylist()
        found += [int(value.split(b" ", 2)[1]) for value in values]
    assert found == [number for number in range(batches) for _ in range(rows)]


@pytest.mark.parametrize("store", ["versitygw"], indirect=True)
def test_a_micro_batch_of_which_any_process_is_killed_at_any_request_is_written_once(
    store: ObjectStore,
) -> None:
    store.reset()
    make_log(store, "parts")
    kills = kill_each_part_at_each_request(store, "parts", STRIDE)
    batches = sum(kills.values()) + len(PARTS)
    print(kills)  # noqa: T201
    assert min(kills.values()) >= 1  # each of them asks
    table = kafkalog.read(store.uri("parts"), "t", options=store.options).read_all()
    for task in range(2):
        found = table.filter(pc.equal(table["partition"], task))
        assert found["value"].to_pylist() == [
            value for batch in range(batches) for value in values_of(batch, task)
        ]


MEMBER = """
import json, sys, time, kafkalog
from kafkalog.errors import KafkaLogError

place, options = sys.argv[1], json.loads(sys.argv[2])
mine = {"startingOffsets": "earliest", "kafka.session.timeout.ms": "6s"}
mine["kafka.heartbeat.interval.ms"] = "1s"
while True:
    try:
        with kafkalog.Consumer(place, "g", "in", options={**options, **mine}) as member:
            while True:
                rows = member.poll(1)
                if rows is not None:
                    kafkalog.append(place, "out", rows.select(["value"]), consumer=member,
                                    options=options)
    except KafkaLogError:
        time.sleep(0.2)
"""


@pytest.mark.nightly
def test_members_that_are_killed_and_stopped_copy_each_row_once(store: ObjectStore) -> None:
    store.reset()
    direct = store.past_the_proxy()
    make_log(direct, "churn")
    place, options = direct.uri("churn"), direct.options
    command = [sys.executable, "-c", MEMBER, place, json.dumps(options)]
    chance, fed = Random(os.environ.get("KAFKALOG_GROUPS_SEED", "groups")), 0
    done: Counter[str] = Counter()

    def copied() -> list[int]:
        with suppress(UnknownTopicOrPartitionError):
            rows = kafkalog.read(place, "out", options=options).read_all()
            return sorted(map(int, rows["value"].to_pylist()))
        return []

    members = [subprocess.Popen(command) for _ in range(3)]
    ends_s = time.monotonic() + float(os.environ.get("KAFKALOG_GROUPS_SECONDS", "60"))
    try:
        while time.monotonic() < ends_s:
            numbers = range(fed, fed + 30)
            partitions = pa.array([number % 6 for number in numbers], pa.int32())
            rows = pa.table({"value": [*map(str, numbers)], "partition": partitions})
            kafkalog.append(place, "in", rows, options={**options, "numPartitions": "6"})
            fed += 30
            time.sleep(chance.uniform(0.5, 2.5))
            slot, kind = chance.randrange(3), chance.choice(["kill", "stop", "none"])
            done[kind] += 1
            if kind == "kill":
                members[slot].kill()
                members[slot].wait()
                members[slot] = subprocess.Popen(command)
            elif kind == "stop":  # within its session, or beyond it
                members[slot].send_signal(signal.SIGSTOP)
                time.sleep(chance.choice([1, 8]))
                members[slot].send_signal(signal.SIGCONT)
        deadline = time.monotonic() + 300
        while len(copied()) < fed and time.monotonic() < deadline:
            time.sleep(1)
    finally:
        for member in members:
            member.kill()
            member.wait()
    assert copied() == [*range(fed)]
    print(f"{fed} rows; {dict(done)}")  # noqa: T201


def test_a_commit_that_lands_after_abort_finds_its_rows(store: ObjectStore) -> None:
    store.reset()
    make_log(store, "late")
    store.fault = lambda r: "late" if r.method == "PUT" and "/commits/" in r.path else None
    noise = np.random.default_rng(1)
    rows = pa.table({"value": [noise.bytes(700_000) for _ in range(3)]})  # too much for a commit
    options = {**store.options, "storage.tries": "2"}
    named = {"transactional_id": "w", "version": 1}
    with pytest.raises(UnknownOutcomeError):
        kafkalog.append(store.uri("late"), "t", rows, options=options, **named)
    store.reset()  # what is late arrives
    table = kafkalog.read(store.uri("late"), "t", options=options).read_all()
    assert table["value"].to_pylist() == rows["value"].to_pylist()
    again = kafkalog.append(store.uri("late"), "t", rows, options=options, **named)
    assert not again.appended


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[pytest.mark.nightly] * (kind == "s3mock")) for kind in LIARS],
)
def test_a_store_that_lets_two_win_is_refused_before_the_first_row(
    kind: str, tmp_path: Any
) -> None:
    with object_store(kind, tmp_path / "data") as proxied:
        store = proxied.past_the_proxy()
        place = store.place("log")
        with pytest.raises(LogDirectoryError, match=r"must let exactly one.* Use a store") as error:
            kafkalog.append(
                store.uri("log"), "t", pa.table({"value": ["1"]}), options=store.options
            )
        assert store.uri("log") in str(error.value)
        assert open_objects(place).list_after("_kafkalog") == []
