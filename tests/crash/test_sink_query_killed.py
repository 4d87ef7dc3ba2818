"""Kill each part of a streaming query at each point of a micro-batch, and parts at random.

CI takes some of the cases; ``make kills`` all parts at all points, and many at random.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import pytest
from tests.support.campaign import Follower
from tests.support.dump_log import dump_log_segments, partition_files
from tests.support.killed_query import VICTIMS, KilledQuery, kill_in_time
from tests.support.scenes import TOPICS, check_indexes
from tests.support.stopping_source import POINTS, stop_at, stopped_in

from kafkalog.checkpoints.commit_state import STAGED_PREFIX, UNFINISHED_FOLDER
from kafkalog.checkpoints.intent import INTENT_FILE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.interop]

ALL: Final = "KAFKALOG_SPARK_KILLS" in os.environ
KILLS: Final = int(os.environ.get("KAFKALOG_SPARK_KILLS", "3"))
"""How often one of three queries is killed at random."""

EVERYWHERE: Final = [(point, victim) for point in POINTS for victim in VICTIMS]
IN_CI: Final = [("staging", "worker"), ("appended", "jvm"), ("committed", "driver")]

ROWS: Final = 100
BATCHES: Final = 3


def make_log(folder: Path) -> Path:
    log = folder / "log"
    log.mkdir()
    return log


@pytest.mark.parametrize(("point", "victim"), EVERYWHERE if ALL else IN_CI)
def test_whichever_part_of_a_query_is_killed_anywhere_each_row_is_there_once(
    point: str, victim: str, tmp_path: Path
) -> None:
    log = make_log(tmp_path)
    # A first micro-batch makes the topics, another one appends to them.
    batch_id = EVERYWHERE.index((point, victim)) % 2
    follower = Follower([log], TOPICS, ROWS)
    with KilledQuery(tmp_path / "q", log, batches=BATCHES, rows=ROWS) as query:
        stop_at(query.folder, point, batch_id)
        query.start()
        query.wait_until(lambda: stopped_in(query.folder) is not None, follower.look)
        check_point(point, batch_id, query, log, follower)
        query.kill(victim)
        query.wait_until(lambda: False, follower.look)
        # A task is tried again; nothing else that is killed lets a query go on.
        assert query.succeeded == ((point, victim) == ("staging", "worker")), query.told
        if not query.succeeded:
            query.start()
            query.wait_until(lambda: False, follower.look)
        assert query.succeeded, query.told
        check_end(log, follower, [query])


def check_point(
    point: str, batch_id: int, query: KilledQuery, log: Path, follower: Follower
) -> None:
    """What stands still is where it should be."""
    assert stopped_in(query.folder) is not None, query.told
    follower.look()
    is_published = point in {"published", "committed"}
    assert follower.seen.total() == 2 * ROWS * (batch_id + is_published)
    assert query.planned() == batch_id + 1
    assert not query.knows_committed(batch_id)
    is_unfinished = point not in {"staging", "committed"}
    assert (log / UNFINISHED_FOLDER).is_dir() == is_unfinished
    assert (log / INTENT_FILE).exists() == is_unfinished


@pytest.mark.nightly
def test_three_queries_of_which_parts_are_killed_at_random_share_a_topic(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    batches = 8 + KILLS
    follower = Follower([log], TOPICS, ROWS)
    with ExitStack() as running:
        queries = [
            running.enter_context(KilledQuery(tmp_path / name, log, batches=batches, rows=ROWS))
            for name in "abc"
        ]
        for query in queries:
            query.start()
        chance = random.Random(KILLS)
        for number in range(KILLS):
            kill_in_time(queries[number % 3], VICTIMS[-1 - number % 4], chance, follower)
        for query in queries:
            query.wait_until(lambda: False, follower.look)
            while not query.succeeded:
                assert query.starts <= KILLS + 1, query.told
                query.start()
                query.wait_until(lambda: False, follower.look)
        assert sum(query.starts for query in queries) > len(queries)
        check_end(log, follower, queries)


def check_end(log: Path, follower: Follower, queries: Sequence[KilledQuery]) -> None:
    """Each row is there once, in order; indexes are right, the dump tool agrees, all is tidy."""
    follower.look()
    assert follower.seen == sum((Counter(query.expected) for query in queries), Counter())
    check_indexes([log])
    files = [path for path in partition_files(log) if path.stat().st_size]
    assert dump_log_segments(files).findings == []
    left = {path.name for path in log.iterdir()}
    assert not left & {INTENT_FILE, UNFINISHED_FOLDER}
    assert not [name for name in left if name.startswith(STAGED_PREFIX)]
