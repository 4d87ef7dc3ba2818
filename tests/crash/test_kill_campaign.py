"""Kill queries at random moments, again and again, while readers follow what they write.

CI kills 15 times; ``make kills`` a thousand times.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

import pytest
from tests.support.campaign import Follower, Query, start, wait_for
from tests.support.dump_log import dump_log_segments, partition_files
from tests.support.scenes import check_indexes
from tests.support.sinking import adopt_small_files

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.crash, pytest.mark.interop]

KILLS: Final = int(os.environ.get("KAFKALOG_KILLS", "15"))
"""How often queries are killed, over all shapes together."""

LONGEST_S: Final = 0.12

SHAPES: Final = {
    "append": {"numPartitions": "3"},
    "roll": {"numPartitions": "2", "segment__bytes": "900", "index__interval__bytes": "0"},
    "adopt": {"numPartitions": "2", "segment__bytes": "900", "index__interval__bytes": "0"},
    "two directories": {"numPartitions": "3", "compression__type": "zstd"},
}


def make_query(shape: str, folder: Path, *, name: str = "q", batches: int) -> Query:
    count = 2 if shape == "two directories" else 1
    directories = tuple(folder / f"log{number}" for number in range(count))
    options, noted = SHAPES[shape], folder / f"{name}.noted"
    return Query(name, directories, options, ("flights", "weather"), batches, 12, noted)


def follow(query: Query, until: Path) -> None:
    """Read until told that nothing more will come, and all has been seen."""
    follower = Follower(query.directories, query.topics, query.rows)
    while True:
        ended = until.exists()
        if query.directories[-1].is_dir():
            follower.look()
        if ended:
            break
        time.sleep(0.001)


def end_of(reader: int, until: Path) -> None:
    until.touch()
    _, status = os.waitpid(reader, 0)
    assert status == 0, "the reader failed, see its traceback above"


@pytest.mark.parametrize("shape", SHAPES)
def test_a_query_that_is_killed_at_random_writes_each_row_once(
    shape: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shape == "adopt":
        adopt_small_files(monkeypatch)
    chance = random.Random(f"{shape} {KILLS}")
    query = make_query(shape, folder, batches=10_000)
    until = folder / "until"
    reader = start(lambda: follow(query, until))
    kills = 0
    while kills < KILLS // len(SHAPES) or not query.noted.exists():  # on a slow machine none ends
        run = f"run-{kills}"
        assert not wait_for(start(lambda run=run: query.run(run)), chance, LONGEST_S)
        kills += 1
    noted = int(query.noted.read_text())
    last = Query(**{**vars(query), "batches": noted + 2})
    last.run("the last one")
    end_of(reader, until)
    check(last)


def test_three_queries_that_are_killed_at_random_share_a_topic(folder: Path) -> None:
    chance = random.Random(KILLS)
    batches = max(4, KILLS // 4)
    queries = [make_query("roll", folder, name=name, batches=batches) for name in "abc"]
    until = folder / "until"
    reader = start(lambda: follow(queries[0], until))
    running = {query.name: start(lambda query=query: query.run("0")) for query in queries}
    starts = Counter(running.keys())
    try:
        kill_now_and_then(queries, running, starts, chance)
    finally:
        for process in running.values():
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
        end_of(reader, until)
    assert sum(starts.values()) > len(queries)
    check(*queries)


def kill_now_and_then(
    queries: list[Query], running: dict[str, int], starts: Counter[str], chance: random.Random
) -> None:
    """Kill one of the queries after another, and start it again, until all come to their end."""
    kills = 0
    while running:
        time.sleep(chance.uniform(0, LONGEST_S))
        victim = chance.choice(sorted(running))
        query = next(query for query in queries if query.name == victim)
        if kills < KILLS // 2:
            os.kill(running[victim], signal.SIGKILL)
            kills += 1
        _, status = os.waitpid(running.pop(victim), 0)
        if os.WIFSIGNALED(status):
            run = str(starts[victim])
            starts[victim] += 1
            running[victim] = start(lambda query=query, run=run: query.run(run))
        else:
            assert os.WEXITSTATUS(status) == 0, "a query failed, see its traceback above"


def check(*queries: Query) -> None:
    """Each row is there once, in its query's order; indexes are right, and Kafka's tool agrees."""
    first = queries[0]
    follower = Follower(first.directories, first.topics, first.rows)
    follower.look()
    assert follower.seen == sum((query.expected() for query in queries), Counter())
    check_indexes(first.directories)
    for directory in first.directories:
        files = [path for path in partition_files(directory) if path.stat().st_size]
        assert dump_log_segments(files).findings == []
        assert not (directory / "kafkalog.intent").exists()
        assert not list(directory.glob(".kafkalog.staged.*"))
