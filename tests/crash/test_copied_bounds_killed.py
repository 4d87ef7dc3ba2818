"""Kill whoever sets where the logs of a copy start and end, and whoever copies from log to log.

At each call that changes a file: CI takes every few of them, ``make kills`` all.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pytest
from tests.support.killing import count_calls, run_and_kill
from tests.support.scenes import check_indexes
from tests.support.sinking import Writer, rows

import kafkalog
from kafkalog.checkpoints.commit_state import STAGED_PREFIX, UNFINISHED_FOLDER
from kafkalog.checkpoints.intent import INTENT_FILE
from kafkalog.checkpoints.state_file import load_state
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.recovery import recover
from kafkalog.streaming.admin.topics import Bounds, create, set_bounds
from kafkalog.streaming.sink.task_writer import TaskWriter
from kafkalog.streaming.spark.writers import LogStreamWriter, StagedMessage
from kafkalog.streaming.store.ends.tracker import LogEndTracker
from kafkalog.streaming.store.identity import BatchIdentity

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = pytest.mark.crash

STRIDE: Final = int(os.environ.get("KAFKALOG_KILL_STRIDE", "5"))

WANTED: Final = {TopicPartition("t", 0): Bounds(1, 10), TopicPartition("t", 1): Bounds(7, 7)}


def act(logs: Sequence[Path]) -> None:
    set_bounds(list(map(str, logs)), WANTED)


def bounds(logs: Sequence[Path]) -> dict[str, tuple[int, int]]:
    """Give where readers see the partitions of t start and end."""
    states = [state for log in logs if (state := load_state(log)) is not None]
    topics = max(states, key=lambda state: state.rank).topics.values()
    (topic,) = [each for each in topics if each.name == "t"]
    ends = LogEndTracker(map(str, logs)).look().offsets
    return {
        f"t-{number}": (known.log_start, ends[TopicPartition("t", number)])
        for number, known in topic.partitions.items()
    }


def test_killed_at_any_call_the_ends_are_there_or_not_and_the_same_call_ends_it(
    folder: Path,
) -> None:
    before = [folder / "before" / "one", folder / "before" / "two"]
    writer = Writer(*before, topic="t", numPartitions="2", segment__bytes="1000")
    writer.write(0, rows(["a", "b", "c"], partitions=[0, 0, 0]))

    def copied(name: str) -> list[Path]:
        return [shutil.copytree(log, folder / name / log.name) for log in before]

    whole = copied("whole")
    calls = count_calls(lambda: act(whole))
    after = {"t-0": (1, 10), "t-1": (7, 7)}
    assert bounds(whole) == after
    seen = set()
    for number, call in enumerate(range(0, calls, STRIDE)):
        there = copied(f"killed-{number}")
        half = bool(number % 2)
        assert run_and_kill(lambda there=there: act(there), call, half=half)
        found = bounds(there)
        assert found in ({"t-0": (0, 3), "t-1": (0, 0)}, {"t-0": (0, 10), "t-1": (0, 7)}, after)
        seen.add(tuple(found.values()))
        act(there)
        assert bounds(there) == after
        Writer(*there, name="next", topic="t").write(0, rows(["d", "e"], partitions=[0, 1]))
        assert bounds(there) == {"t-0": (1, 11), "t-1": (7, 8)}
        assert recover(list(map(str, there))).problems == []
        check_indexes(there)
        names = [path.name for log in there for path in log.iterdir()]
        assert not {INTENT_FILE, UNFINISHED_FOLDER} & set(names)
        assert not [name for name in names if name.startswith(STAGED_PREFIX)]
        shutil.rmtree(folder / f"killed-{number}")
    assert len(seen) == 3


class Copy:
    """A query that copies two micro-batches, which end above their last records."""

    PLANNED: Final = (({0: "a", 2: "b"}, 5), ({5: "c", 9: "d"}, 12))

    def __init__(self, folder: Path) -> None:
        self.log, self.checkpoint = folder / "log", folder / "checkpoint"

    def begin(self) -> None:
        create([str(self.log)], "t", config={"segment.bytes": "150"})
        (self.checkpoint / "offsets").mkdir(parents=True)
        (self.checkpoint / "metadata").write_text('{"id": "4711"}')
        for batch, (_, end) in enumerate(self.PLANNED):
            text = f'v1\n{{}}\n{{"t": {{"0": {end}}}}}\n'
            (self.checkpoint / "offsets" / str(batch)).write_text(text)
        self.write(0, "run-1")

    def write(self, batch_id: int, run: str) -> None:
        kept = {"preserveOffsets": "true", "preserveEnds": "true"}
        plan = Writer(self.log, checkpointLocation=str(self.checkpoint), **kept).plan()
        records, _ = self.PLANNED[batch_id]
        batch = rows([*records.values()], topics=["t"] * len(records))
        batch = batch.append_column("offset", pa.array([*records], pa.int64()))
        identity = BatchIdentity("query:4711", batch_id, run)
        output = TaskWriter(plan, identity, query_id="4711").write([batch])
        LogStreamWriter(plan).commit([StagedMessage(output)], batch_id)

    def seen(self) -> tuple[dict[int, str], int]:
        ends = LogEndTracker([str(self.log)]).look().offsets
        found = kafkalog.read(str(self.log), "t", columns=["offset", "value"]).read_all()
        records = {row["offset"]: row["value"].decode() for row in found.to_pylist()}
        return records, ends[TopicPartition("t", 0)]


def test_a_copy_that_is_killed_at_any_call_continues_with_each_record_and_end_once(
    folder: Path,
) -> None:
    before = Copy(folder / "before")
    before.begin()
    first, both = ({0: "a", 2: "b"}, 5), ({0: "a", 2: "b", 5: "c", 9: "d"}, 12)

    def copied(name: str) -> Copy:
        shutil.copytree(folder / "before", folder / name)
        return Copy(folder / name)

    whole = copied("whole")
    calls = count_calls(lambda: whole.write(1, "run-1"))
    seen = []
    for number, call in enumerate(range(0, calls, STRIDE)):
        there = copied(f"killed-{number}")
        assert run_and_kill(
            lambda there=there: there.write(1, "run-1"), call, half=bool(number % 2)
        )
        seen.append(there.seen())
        there.write(1, "run-2")
        assert there.seen() == both
        assert recover([str(there.log)]).problems == []
        check_indexes([there.log])
        shutil.rmtree(folder / f"killed-{number}")
    assert first in seen
    assert both in seen
    assert all(each in (first, both) for each in seen)
