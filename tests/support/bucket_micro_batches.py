"""Micro-batches into a log in an object store, of which one process is killed at a request.

The processes are those in which Spark calls a writer: the driver's, which makes it, one for each
task, and the one that commits. They are forked from one that has imported all and asked nothing:
``python -m tests.support.bucket_micro_batches`` with arguments in JSON.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType
from tests.support.bucket_writers import fork

import kafkalog
from kafkalog.streaming.commit import bucket_commit  # noqa: F401 - imported once
from kafkalog.streaming.objects import bucket_log
from kafkalog.streaming.spark.writers import make_stream_writer

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.object_store import ObjectStore

__all__ = ["PARTS", "kill_each_part_at_each_request", "values_of"]

TOPIC: Final = "t"
PARTS: Final = ("driver", "task 0", "task 1", "committer")
_ROW_BYTES: Final = 400_000
"""Of which two tasks have three each: too much for the commit, so that tasks write objects."""
_SCHEMA: Final = StructType(
    [StructField("value", BinaryType()), StructField("partition", IntegerType())]
)


def values_of(batch: int, task: int) -> list[bytes]:
    """Return the rows of a task of a micro-batch."""
    chance = Random(f"{batch} {task}")
    return [b"%d %d %d " % (batch, task, n) + chance.randbytes(_ROW_BYTES) for n in range(3)]


def kill_each_part_at_each_request(store: ObjectStore, prefix: str, stride: int) -> dict[str, int]:
    """Write micro-batches, in each of which a part is killed, and which then come again.

    A part is killed before and after each of its requests, at every so many of these moments.
    Returns how often each was, in the order of the micro-batches; each part has one more, in which
    no process is killed.
    """
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.support.bucket_micro_batches",
            json.dumps([store.uri(prefix), store.options, stride]),
        ],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=3000,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    kills: dict[str, int] = json.loads(done.stdout)
    return kills


# ----------------------------------------------------------------------------------------------
# In the processes.


def _kill_each(uri: str, options: dict[str, str], stride: int, folder: Path) -> dict[str, int]:
    given = {"path": uri, "topic": TOPIC, "numPartitions": "2", **options}
    folder.mkdir()
    bucket_log._COMMITS_BETWEEN = 0  # a checkpoint with each commit: opening is always as quick
    kills, batch = dict.fromkeys(PARTS, 0), 0
    for part in PARTS:
        for moment in count(1, stride):
            ended = _write(given, folder, batch, {part: moment})
            if not ended and not _write(given, folder, batch, {}):
                sys.exit(
                    f"batch {batch}, of which the {part} was killed, fails when it comes again"
                )
            batch += 1
            if ended:
                break
            kills[part] += 1
    return kills


def _write(given: dict[str, str], folder: Path, batch: int, killed_at: dict[str, int]) -> bool:
    """Write a micro-batch as Spark does; whether no part of it was killed."""
    run = f"run {batch} {bool(killed_at)}"
    tasks = range(len(PARTS) - 2)
    actions: list[Callable[[Path], Any]] = [lambda _: make_stream_writer(given, _SCHEMA, False)]
    actions += [partial(_stage, batch, task, run) for task in tasks]
    actions += [partial(_commit, batch)]
    for path in folder.iterdir():
        path.unlink()
    for part, action in zip(PARTS, actions, strict=True):
        if not _fork(part, action, folder, killed_at.get(part, 0)):
            if part != "driver":  # Spark has what other tasks have staged deleted, if it may be
                _fork("abort", partial(_abort, batch), folder, 0)
            return False
    return True


def _stage(batch: int, task: int, run: str, folder: Path) -> object:
    context = TaskContext._getOrCreate()
    context._partitionId = task
    context._localProperties = {
        "sql.streaming.queryId": "q",
        "streaming.sql.batchId": str(batch),
        "spark.jobGroup.id": run,
    }
    values = values_of(batch, task)
    columns = {"value": values, "partition": pa.array([task] * len(values), pa.int32())}
    return _had(folder, PARTS[0]).write(iter(pa.table(columns).to_batches()))


def _commit(batch: int, folder: Path) -> None:
    _had(folder, PARTS[0]).commit([_had(folder, part) for part in PARTS[1:-1]], batch)


def _abort(batch: int, folder: Path) -> None:
    staged = [_had(folder, part) for part in PARTS[1:-1] if (folder / part).exists()]
    _had(folder, PARTS[0]).abort(staged, batch)


def _had(folder: Path, part: str) -> Any:
    return pickle.loads((folder / part).read_bytes())


def _fork(part: str, action: Callable[[Path], Any], folder: Path, killed_at: int) -> bool:
    """Let a part act in a process of its own, and keep what it returns; whether it was not killed.

    Args:
        part: its name.
        action: what it does.
        folder: where what parts return is kept.
        killed_at: the moment at which it is killed: each request has one before and one after it.
    """
    pid = fork(
        lambda: (folder / part).write_bytes(pickle.dumps(action(folder))), killed_at, after=True
    )
    status = os.waitpid(pid, 0)[1]
    if status not in {0, signal.SIGKILL}:
        sys.exit(f"the {part} fails")
    return status == 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as _folder:  # kernels are loaded once
        kafkalog.append(f"{_folder}/local", TOPIC, pa.table({"value": values_of(0, 0)}))
        print(json.dumps(_kill_each(*json.loads(sys.argv[1]), Path(_folder, "parts"))))  # noqa: T201
