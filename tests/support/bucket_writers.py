"""Processes that append to a log in an object store: many at once, or killed at each request.

They are forked from one that has imported all: ``python -m tests.support.bucket_writers`` with
arguments in JSON.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

import kafkalog
from kafkalog.errors import LogDirectoryError, UnknownOutcomeError
from kafkalog.files.objects import Creation, StoreObjects, open_objects
from kafkalog.streaming.objects import bucket_log
from kafkalog.streaming.objects.bucket_log import BucketLog

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.object_store import ObjectStore

__all__ = ["PARTITIONS", "append_at_once", "kill_at_each_request", "require_commit_state"]

PARTITIONS: Final = 4
_TOPIC: Final = "t"
_MOST_REPEATED: Final = 200


def append_at_once(store: ObjectStore, prefix: str, writers: int, batches: int) -> int:
    """Let processes append, and return the most creations of commits that a batch took."""
    options = {**store.options, "storage.tries": "20"}
    return max(_run("_race", store.uri(prefix), options, writers, batches))


def kill_at_each_request(store: ObjectStore, prefix: str, rows: int) -> int:
    """Append a batch for each request that an append makes, killed before it, and then again.

    Each commit writes a checkpoint, too. ``rows`` of 100,000 bytes are in a batch. Returns how many
    batches there are: the last one is not killed.
    """
    return _run("_kill_at_each", store.uri(prefix), store.options, rows)[-1]


def _run(what: str, *given: Any) -> list[int]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.bucket_writers", json.dumps([what, *given])],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=3000,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [int(line) for line in done.stdout.split()]


def require_commit_state(
    store: ObjectStore, prefix: str, writers: int, batches: int, *, commits_before: int = 0
) -> None:
    """See that each batch is there once, in its writer's order, and numbers have no gap."""
    table = kafkalog.read(store.uri(prefix), _TOPIC, options=store.options).read_all()
    rows = table.select(["partition", "offset", "value"]).to_pylist()
    seen: dict[int, list[tuple[int, int, int]]] = {n: [] for n in range(PARTITIONS)}
    for row in rows:
        writer, batch = row["value"].decode().split()
        seen[row["partition"]].append((row["offset"], int(writer), int(batch)))
    for some in seen.values():
        assert [offset for offset, _, _ in some] == list(range(writers * batches))
        for writer in range(writers):
            assert [batch for _, w, batch in some if w == writer] == list(range(batches))
    last = commits_before + writers * batches
    assert _commits(store, prefix) == [f"{number:020}" for number in range(1, last + 1)]


def _commits(store: ObjectStore, prefix: str) -> list[str]:
    objects = open_objects(store.place(prefix))
    log = BucketLog.open(objects)
    assert log is not None
    return [entry.name for entry in objects.list_after(f"{log.folder}/commits")]


# ----------------------------------------------------------------------------------------------
# In the processes.


def _append_all(uri: str, options: dict[str, str], writer: int, batches: int) -> int:
    creations: Counter[int] = Counter()
    batch = 0
    create = StoreObjects.create

    def counted(self: StoreObjects, name: str, data: bytes) -> Creation:
        creations[batch] += "/commits/" in name
        return create(self, name, data)

    StoreObjects.create = counted  # type: ignore[method-assign]
    for number in range(batches):
        batch = number
        rows = {"partition": list(range(PARTITIONS)), "value": [f"{writer} {number}"] * PARTITIONS}
        _append(uri, pa.table(rows, _SCHEMA), f"w{writer}", number, options)
    return max(creations.values())


_SCHEMA: Final = pa.schema({"partition": pa.int32(), "value": pa.string()})


def _append(uri: str, rows: pa.Table, name: str, version: int, options: dict[str, str]) -> None:
    given: dict[str, Any] = {**options, "numPartitions": str(PARTITIONS)}
    for _ in range(_MOST_REPEATED):
        try:
            kafkalog.append(
                uri, _TOPIC, rows, transactional_id=name, version=version, options=given
            )
        except (UnknownOutcomeError, LogDirectoryError):
            continue
        return
    raise AssertionError(f"batch {version} of {name} was tried {_MOST_REPEATED} times")


def _race(uri: str, options: dict[str, str], writers: int, batches: int) -> None:
    def append_all(writer: int) -> None:
        print(_append_all(uri, options, writer, batches), flush=True)  # noqa: T201

    children = [fork(partial(append_all, writer)) for writer in range(writers)]
    failed = [pid for pid in children if os.waitpid(pid, 0)[1]]
    sys.exit(f"{len(failed)} writers failed" if failed else 0)


def _kill_at_each(uri: str, options: dict[str, str], rows: int) -> None:
    bucket_log._COMMITS_BETWEEN = 0  # a checkpoint with each commit
    ends = 0
    while True:
        noise = Random(ends).randbytes(rows * 100_000 // 2).hex()
        value = [f"0 {ends} {noise[n * 100_000 :][:100_000]}" for n in range(rows)]
        table = pa.table({"partition": [0] * rows, "value": value}, _SCHEMA)
        append = partial(_append, uri, table, "w", ends, options)
        ends += 1
        if os.waitpid(fork(append, killed_at=ends), 0)[1] == 0:
            break
        if os.waitpid(fork(append), 0)[1]:
            sys.exit("what was killed fails when it comes again")
    print(ends)  # noqa: T201


def fork(action: Callable[[], object], killed_at: int = 0, *, after: bool = False) -> int:
    """Do something in a process of its own, which is killed at one of its requests.

    Returns its id; it is killed before the request of the number ``killed_at``. With ``after`` each
    request counts twice, before it and after it.
    """
    pid = os.fork()
    if pid:
        return pid
    if killed_at:
        _count_requests(killed_at, after=after)
    try:
        action()
    except BaseException as error:  # noqa: BLE001 - told by the parent
        print(repr(error), file=sys.stderr, flush=True)  # noqa: T201
        os._exit(1)
    os._exit(0)


def _count_requests(killed_at: int, *, after: bool) -> None:
    moments = count(1)

    def pass_moment() -> None:
        if next(moments) == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def killing(call: Callable[..., Any]) -> Callable[..., Any]:
        def ask(*given: Any, **named: Any) -> Any:
            pass_moment()
            answer = call(*given, **named)
            if after:
                pass_moment()
            return answer

        return ask

    for name in ("create", "put", "get", "get_range", "list_after", "delete"):
        setattr(StoreObjects, name, killing(getattr(StoreObjects, name)))


if __name__ == "__main__":
    _what, *_given = json.loads(sys.argv[1])
    with tempfile.TemporaryDirectory() as _folder:  # kernels are loaded once
        kafkalog.append(_folder, _TOPIC, pa.table({"partition": [0], "value": [""]}, _SCHEMA))
    {"_race": _race, "_kill_at_each": _kill_at_each}[_what](*_given)
