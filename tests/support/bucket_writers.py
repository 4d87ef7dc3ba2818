"""Processes that append to a log in an object store at once, each batch until it is known to stand.

They are forked from one that has imported all: ``python -m tests.support.bucket_writers`` with
arguments in JSON. What it prints: the most requests that one batch took to create a commit.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

import kafkalog
from kafkalog.errors import LogDirectoryError, UnknownOutcomeError
from kafkalog.files.objects import Creation, StoreObjects, open_objects
from kafkalog.streaming.objects.bucket_log import BucketLog

if TYPE_CHECKING:
    from tests.support.object_store import ObjectStore

__all__ = ["PARTITIONS", "append_at_once", "check_written"]

PARTITIONS: Final = 4
_TOPIC: Final = "t"
_MOST_REPEATED: Final = 200


def append_at_once(store: ObjectStore, prefix: str, writers: int, batches: int) -> int:
    """Let processes append, and return the most creations of commits that a batch took."""
    options = {**store.options, "storage.tries": "20"}
    given = json.dumps([store.uri(prefix), options, writers, batches])
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.bucket_writers", given],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=3000,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return max(int(line) for line in done.stdout.split())


def check_written(
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


def _main(given: str) -> None:
    uri, options, writers, batches = json.loads(given)
    with tempfile.TemporaryDirectory() as folder:  # kernels are loaded once
        kafkalog.append(folder, _TOPIC, pa.table({"partition": [0], "value": [""]}, _SCHEMA))
    children = []
    for writer in range(writers):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                print(_append_all(uri, options, writer, batches), flush=True)  # noqa: T201
                code = 0
            except BaseException as error:  # noqa: BLE001 - told by the parent
                print(f"{writer}: {error!r}", file=sys.stderr, flush=True)  # noqa: T201
            finally:
                os._exit(code)
        children.append(pid)
    failed = [pid for pid in children if os.waitpid(pid, 0)[1]]
    sys.exit(f"{len(failed)} writers failed" if failed else 0)


if __name__ == "__main__":
    _main(sys.argv[1])
