"""Kill whoever sets where the logs of a copy start and end, at each call that changes a file.

CI takes every few calls; ``make kills`` each call.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Final

import pytest
from tests.support.killing import count_calls, run_and_kill
from tests.support.scenes import check_indexes
from tests.support.sinking import Writer, rows

from kafkalog.checkpoints.commit_state import STAGED_PREFIX, UNFINISHED_FOLDER
from kafkalog.checkpoints.intent import INTENT_FILE
from kafkalog.checkpoints.state_file import load_state
from kafkalog.model import TopicPartition
from kafkalog.streaming.operate.copied_bounds import Bounds, set_bounds
from kafkalog.streaming.operate.recover import recover
from kafkalog.streaming.store.ends.watch import EndsWatch

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
    ends = EndsWatch(map(str, logs)).look().offsets
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
