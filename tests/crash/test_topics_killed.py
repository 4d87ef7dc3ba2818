"""Kill whoever creates, alters and deletes a topic at each call that changes a file.

CI takes every few calls, and ten kills at random; ``make kills`` each call, and a thousand.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
import shutil
from typing import TYPE_CHECKING, Any, Final

import pytest
from tests.support.campaign import start, wait_for
from tests.support.killing import count_calls, run_and_kill
from tests.support.scenes import check_indexes
from tests.support.sinking import Writer, rows, values_of

from kafkalog.checkpoints.broker import (
    HIGH_WATERMARK,
    LOG_START_OFFSET,
    RECOVERY_POINT,
    read_offset_checkpoint,
)
from kafkalog.checkpoints.commit_state import UNFINISHED_FOLDER
from kafkalog.checkpoints.intent import INTENT_FILE
from kafkalog.checkpoints.state_file import load_state
from kafkalog.errors import (
    CommitError,
    KafkaLogError,
    OptionError,
    RowError,
    UnknownTopicOrPartitionError,
)
from kafkalog.streaming.admin.recovery import recover
from kafkalog.streaming.admin.topics import alter, create, delete
from kafkalog.streaming.store.ends.tracker import LogEndTracker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

pytestmark = pytest.mark.crash

KILLS: Final = int(os.environ.get("KAFKALOG_KILLS", "10"))
STRIDE: Final = int(os.environ.get("KAFKALOG_KILL_STRIDE", "19"))
LONGEST_S: Final = 0.15


def create_new(logs: Sequence[Path]) -> None:
    create(list(map(str, logs)), "new", partitions=2, config={"segment.bytes": "1000"})


def alter_t(logs: Sequence[Path]) -> None:
    alter(list(map(str, logs)), "t", partitions=3, config={"segment.bytes": "1000"})


def set_t(logs: Sequence[Path]) -> None:
    alter(list(map(str, logs)), "t", config={"segment.bytes": "1000"})


def delete_t(logs: Sequence[Path]) -> None:
    delete(list(map(str, logs)), "t")


ACTIONS: Final = [create_new, alter_t, set_t, delete_t]


def prepared(folder: Path) -> list[Path]:
    """Give two directories with the topics t and other, of two partitions each."""
    logs = [folder / "one", folder / "two"]
    for topic in ("t", "other"):
        writer = Writer(*logs, topic=topic, name=topic, numPartitions="2")
        writer.write(0, rows(["a", "b"], partitions=[0, 1]))
    return logs


def copied(logs: Sequence[Path], folder: Path) -> list[Path]:
    for log in logs:
        shutil.copytree(log, folder / log.name)
    return [folder / log.name for log in logs]


def seen(logs: Sequence[Path]) -> dict[str, Any]:
    """Give what readers see: where all partitions end that are committed, settings of topics.

    Of partitions that are being made, nothing is there to be read.
    """
    states = [state for log in logs if (state := load_state(log)) is not None]
    topics = max(states, key=lambda state: state.rank).topics.values()
    known = {(topic.name, number) for topic in topics for number in topic.partitions}
    ends = LogEndTracker(map(str, logs)).look().offsets
    assert not any(end for key, end in ends.items() if key not in known)
    assert known <= ends.keys()
    found: dict[str, Any] = {str(key): end for key, end in ends.items() if key in known}
    return found | {topic.name: dict(topic.settings) for topic in topics}


def check_guarded(logs: Sequence[Path]) -> None:
    """A broker is kept out as long as a folder has a partition's name and is not committed."""
    live = seen(logs).keys()
    for log in logs:
        folders = {path.name for path in log.glob("*-[0-9]") if any(path.glob("*.log"))}
        assert folders <= live or (log / UNFINISHED_FOLDER).is_dir()


def check_clean(logs: Sequence[Path]) -> None:
    """Nothing of a deletion or of an unfinished change is left, in checkpoints neither."""
    there = {path.name for log in logs for path in log.glob("*-[0-9]*")}
    for log in logs:
        names = {path.name for path in log.iterdir()}
        assert not names & {INTENT_FILE, UNFINISHED_FOLDER}
        assert not [name for name in names if name.endswith("-delete")]
        for checkpoint in (HIGH_WATERMARK, RECOVERY_POINT, LOG_START_OFFSET):
            assert {str(key) for key in read_offset_checkpoint(log, checkpoint)} <= there
        state = load_state(log)
        assert state is not None
        assert state.deleted == {}


def kills(calls: int) -> list[tuple[int, bool]]:
    """Give the calls to die at, and whether half of a write is done by then: both of all calls."""
    if STRIDE == 1:
        return [(call, half) for call in range(calls) for half in (False, True)]
    chosen = sorted({*range(0, calls, STRIDE), calls - 1})  # the last one is after the rename
    return [(call, bool(number % 2)) for number, call in enumerate(chosen)]


@pytest.mark.parametrize("act", ACTIONS, ids=lambda act: act.__name__)
def test_killed_at_any_call_a_change_is_seen_whole_or_not_at_all_and_can_be_ended(
    act: Callable[[Sequence[Path]], object], folder: Path
) -> None:
    logs = prepared(folder / "before")
    before = seen(logs)
    whole = copied(logs, folder / "whole")
    calls = count_calls(lambda: act(whole))
    act(copied(logs, folder / "after"))
    after = seen([folder / "after" / log.name for log in logs])
    assert before != after
    outcomes = set()
    for number, (call, half) in enumerate(kills(calls)):
        there = copied(logs, folder / f"killed-{number}")
        assert run_and_kill(lambda there=there: act(there), call, half=half)
        found = seen(there)
        assert found in (before, after)
        outcomes.add(found == after)
        check_guarded(there)
        another = Writer(*there, topic="other", name="other")
        another.write(1, rows(["c"], partitions=[0]))
        assert seen(there) == found | {"other-0": 2}
        check_clean(there)
        if found == before:
            act(there)
            assert seen(there) == after | {"other-0": 2}
            check_clean(there)
        assert recover(list(map(str, there))).problems == []
        assert values_of(there, "other") == {0: ["a", "c"], 1: ["b"]}
        if act is not delete_t:
            assert values_of(there, "t").items() >= {0: ["a"], 1: ["b"]}.items()
        check_indexes(there)
        shutil.rmtree(folder / f"killed-{number}")
    assert outcomes == {True, False}


class Full:
    """A disk that takes nothing more from the ``call``-th call on that would need room."""

    NAMES: Final = ("pwrite", "mkdir", "fsync", "replace", "rename")

    def __init__(self, call: int, patch: pytest.MonkeyPatch) -> None:
        self.has_failed = False
        self._left = call
        for name in self.NAMES:
            patch.setattr(os, name, self._failing(getattr(os, name)))

    def _failing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self._left -= 1
            if self._left < 0:
                self.has_failed = True
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(arguments[0]))
            return original(*arguments, **named)

        return call


@pytest.mark.parametrize("act", ACTIONS, ids=lambda act: act.__name__)
def test_on_a_disk_that_gets_full_at_any_call_a_change_is_whole_or_not_there(
    act: Callable[[Sequence[Path]], object], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = prepared(folder / "before")
    before = seen(logs)
    act(copied(logs, folder / "after"))
    after = seen([folder / "after" / log.name for log in logs])
    for number in itertools.count():
        there = copied(logs, folder / f"full-{number}")
        raised = False
        with monkeypatch.context() as patch:
            disk = Full(number * STRIDE, patch)
            try:
                act(there)
            except (OSError, KafkaLogError):
                raised = True
        found = seen(there)
        assert found in ([before, after] if raised else [after])
        Writer(*there, topic="other", name="other").write(1, rows(["c"], partitions=[0]))
        assert seen(there) == found | {"other-0": 2}
        check_clean(there)
        shutil.rmtree(folder / f"full-{number}")
        if not disk.has_failed:
            return


def expect(error: Exception, *texts: str) -> None:
    assert any(text in str(error) for text in texts), error


def append_again(log: Path, run: str) -> None:
    """Write to the topic that somebody else deletes, and to another one, until killed."""
    kept = Writer(log, topic="kept", name="kept", run=run)
    state = load_state(log)
    last = state.writers.get("query:kept") if state else None
    for batch in itertools.count(0 if last is None else last.batch_id + 1):
        kept.write(batch, rows([str(batch)]))
        with_deletions = Writer(log, topic="t", name=f"{run}-{batch}", numPartitions="2")
        try:
            with_deletions.write(0, rows(["x", "y"], partitions=[0, 1]))
        except (CommitError, RowError) as error:
            expect(error, "deleted", "placed among")


def change_again(log: Path) -> None:
    paths = [str(log)]
    for act in itertools.cycle(
        [
            lambda: create(paths, "t", partitions=2),
            lambda: alter(paths, "t", partitions=3),
            lambda: delete(paths, "t"),
        ]
    ):
        try:
            act()
        except OptionError as error:
            expect(error, "exists", "cannot have")
        except UnknownTopicOrPartitionError as error:
            expect(error, "no topic 't'")


def look_again(log: Path, until: Path) -> None:
    """Read what is there: whole batches of the topic, and all of the other one from its start."""
    watch = LogEndTracker([str(log)])
    kept = 0
    while not until.exists():
        ends = {str(key): end for key, end in watch.look().offsets.items()}
        assert kept <= ends["kept-0"]
        kept = ends["kept-0"]
        if "t-0" in ends and "t-1" in ends:
            assert ends["t-0"] == ends["t-1"]


def test_who_writes_reads_and_changes_topics_and_is_killed_at_random_stays_apart(
    folder: Path,
) -> None:
    chance = random.Random(KILLS)
    log, until = folder / "log", folder / "until"
    Writer(log, topic="kept", name="kept").write(0, rows(["0"]))
    reader = start(lambda: look_again(log, until))
    for kill in range(KILLS // 2):
        writing = start(lambda kill=kill: append_again(log, f"restart-{kill}"))
        changing = start(lambda: change_again(log))
        assert not wait_for(writing, chance, LONGEST_S)
        assert not wait_for(changing, chance, LONGEST_S)
    until.touch()
    _, status = os.waitpid(reader, 0)
    assert status == 0, "the reader failed, see its traceback above"
    assert recover([str(log)]).problems == []
    Writer(log, topic="other", name="other").write(0, rows(["x"]))
    check_clean([log])
    state = load_state(log)
    assert state is not None
    last = state.writers["query:kept"].batch_id
    assert values_of([log], "kept") == {0: [str(batch) for batch in range(last + 1)]}
    check_indexes([log])
