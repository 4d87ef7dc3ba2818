"""A log on an S3 server: processes that write at once, answers that are lost, the library."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.support.bucket_model import TOPIC
from tests.support.object_store import ObjectStore, Request, object_store

import kafkalog
from kafkalog.errors import LogDirectoryError, OptionError
from kafkalog.files.objects import open_objects
from kafkalog.files.storage import RemoteRoot
from kafkalog.files.system import system
from kafkalog.streaming.objects.bucket_log import BucketLog

if TYPE_CHECKING:
    from collections.abc import Iterator

WRITER = """
import sys
from kafkalog.files.objects import open_objects
from kafkalog.files.storage import RemoteRoot
from kafkalog.errors import UnknownOutcomeError
from kafkalog.streaming.objects.bucket_log import BucketLog
from tests.support.bucket_model import batch

uri, endpoint, name, batches = sys.argv[1:]
place = RemoteRoot.parse(uri).with_options(
    {
        "endpoint": endpoint,
        "region": "us-east-1",
        "tries": 20,
        "access_key": "id",
        "secret_key": "key",
    }
)
log = BucketLog.create(open_objects(place))
for number in range(int(batches)):
    while True:
        try:
            log.commit(batch(name, number))
        except UnknownOutcomeError:
            continue
        break
"""


LARGE = {"max.message.bytes": str(4 << 20)}


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectStore]:
    with object_store() as store:
        store.make_bucket()
        yield store


class Faults:
    """Four of ten requests go wrong, before or after the store has done what they ask."""

    def __init__(self) -> None:
        self._chance = Random(7)
        self._lock = threading.Lock()
        self.count: Counter[str] = Counter()

    def __call__(self, request: Request) -> str | None:
        with self._lock:
            if self._chance.random() >= 0.4:
                return None
            kinds = ["500", "reset", "lost"] + ["409"] * (request.method == "PUT")
            kind = self._chance.choice(kinds)
            self.count[f"{request.method} {kind}"] += 1
            return kind


def test_processes_that_write_at_once_commit_each_batch_once(server: ObjectStore) -> None:
    server.reset()
    faults = server.fault = Faults()
    names, batches = "xyz", 8
    command = [sys.executable, "-c", WRITER, server.uri("race"), server.endpoint]
    root = Path(__file__).parents[3]
    writers = [
        subprocess.Popen([*command, name, str(batches)], cwd=root, stderr=subprocess.PIPE)
        for name in names
    ]
    failed = [writer.communicate()[1] for writer in writers if writer.wait(600)]
    assert not failed, failed[0].decode()
    assert min(faults.count[f"PUT {kind}"] for kind in ("500", "reset", "lost", "409")) > 0
    server.reset()
    place = RemoteRoot.parse(server.uri("race")).with_options(
        {
            "endpoint": server.endpoint,
            "region": "us-east-1",
            "access_key": "id",
            "secret_key": "key",
        }
    )
    log = BucketLog.open(open_objects(place))
    assert log is not None
    extents = log.follow().extents[TOPIC, 0]
    assert log.state.number == len(names) * batches
    assert [extent.base_offset for extent in extents] == list(range(len(names) * batches))
    for name in names:
        own = [e.max_timestamp for e in extents if e.object.endswith(f"{ord(name):016x}")]
        assert own == list(range(batches))


def test_the_library_appends_reads_and_tails(server: ObjectStore) -> None:
    server.reset()
    place, options = server.uri("library"), server.options
    first = pa.table({"key": ["a"], "value": ["1"]})
    outcome = kafkalog.append(place, "t", first, options=options)
    assert outcome.appended
    tail = kafkalog.tail(place, "t", options={**options, "startingOffsets": "earliest"})
    assert next(tail)["value"].to_pylist() == [b"1"]
    kafkalog.append(place, "t", pa.table({"key": ["a"], "value": ["2"]}), options=options)
    assert next(tail)["value"].to_pylist() == [b"2"]
    table = kafkalog.read(place, "t", options=options).read_all()
    assert table["value"].to_pylist() == [b"1", b"2"]
    assert table["offset"].to_pylist() == [0, 1]


def test_a_read_sees_what_was_appended_before_it(
    server: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.reset()
    place, options = server.uri("fresh"), server.options
    monkeypatch.setattr(system, "monotonic", lambda: 1.0)
    for count in (1, 2):
        kafkalog.append(place, "t", pa.table({"value": ["1"]}), options=options)
        assert kafkalog.read(place, "t", options=options).read_all().num_rows == count


def methods(server: ObjectStore) -> Counter[str]:
    """Count the requests since the last reset, listings apart."""
    return Counter("LIST" if "list-type" in r.path else r.method for r in server.requests)


def test_a_small_append_is_one_put(server: ObjectStore) -> None:
    server.reset()
    place, options = server.uri("counted"), server.options
    rows = pa.table({"value": ["1"]})
    kafkalog.append(place, "t", rows, options=options)
    for _ in range(2):
        server.requests.clear()
        kafkalog.append(place, "t", rows, options=options)
        assert methods(server) == {"PUT": 1}
    server.requests.clear()
    kafkalog.append(place, "t", pa.table({"value": [os.urandom(1 << 21)]}), options=LARGE | options)
    assert methods(server) == {"PUT": 2}


def test_an_idle_tail_asks_for_the_next_commit_alone(
    server: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.reset()
    place, options = server.uri("idle"), server.options
    kafkalog.append(place, "t", pa.table({"value": ["1"]}), options=options)
    now = 1.0

    def clock(seconds: float = 1 / 64) -> float:
        """Whoever asks for the time has taken some."""
        nonlocal now
        now += seconds
        return now

    monkeypatch.setattr(system, "monotonic", clock)
    monkeypatch.setattr(system, "sleep", clock)
    given = {**options, "startingOffsets": "earliest"}
    tail = kafkalog.tail(place, "t", idle_timeout=60, options=given)
    assert next(tail).num_rows == 1
    server.requests.clear()
    assert list(tail) == []
    assert methods(server).keys() == {"GET"}
    assert 55 <= len(server.requests) <= 61
    assert len({request.name for request in server.requests}) == 1


@pytest.mark.parametrize(
    "option", [{"message.format": "v1"}, {"flush": "os"}, {"preserveOffsets": "true"}]
)
def test_what_a_log_in_a_store_has_not_is_refused(
    server: ObjectStore, option: dict[str, str]
) -> None:
    rows = pa.table({"value": ["1"]})
    with pytest.raises(OptionError, match="a log in an object store takes"):
        kafkalog.append(server.uri("refused"), "t", rows, options={**server.options, **option})


def test_a_log_lies_in_one_place(server: ObjectStore) -> None:
    both = f"{server.uri('one')},{server.uri('two')}"
    with pytest.raises(OptionError, match="lies in one: give its URI alone"):
        kafkalog.append(both, "t", pa.table({"value": ["1"]}), options=server.options)


def test_who_does_not_know_such_a_log_yet_says_so(server: ObjectStore) -> None:
    server.reset()
    place = server.uri("unknown")
    kafkalog.append(place, "t", pa.table({"value": ["1"]}), options=server.options)
    with pytest.raises(LogDirectoryError, match="kept as objects"):
        kafkalog.get(place, "t", "a", options=server.options)
