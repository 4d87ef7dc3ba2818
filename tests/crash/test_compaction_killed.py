"""Kill a compaction at each call that changes a file, let calls fail, kill it beside a writer.

CI kills at each seventh call, and some times at random. ``make kills`` does more of both.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
import shutil
import time
from typing import TYPE_CHECKING, Final

import pytest
from tests.crash.test_fault_walk import Failing
from tests.support.campaign import start, wait_for
from tests.support.compacting import FORCED, compacted, latest, read, updates, writer
from tests.support.following import follow
from tests.support.killing import count_calls, run_and_kill
from tests.support.log_files import swap_is_unfinished
from tests.support.scenes import check_indexes
from tests.support.sinking import Writer, rows

from kafkalog.checkpoints.broker import CLEANER_OFFSET, read_offset_checkpoint
from kafkalog.checkpoints.state_file import load_state
from kafkalog.errors import KafkaLogError
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.compaction import compact
from kafkalog.streaming.admin.recovery import recover

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.crash

TRIES_ALL: Final = os.environ.get("KAFKALOG_KILL_STRIDE") == "1"
STRIDE: Final = 1 if TRIES_ALL else 7
KILLS: Final = int(os.environ.get("KAFKALOG_KILLS", "10"))
T0: Final = TopicPartition("t", 0)

BATCHES: Final = [
    *({"a": "1", "b": "1"}, {"a": "2"}, {"b": None, "c": "1"}, {"d": "1"}),
    *({"a": "3"}, {"d": "2", "e": "1"}, {"f": "1"}, {"c": "2"}),
]
LATEST: Final = {key: value for each in BATCHES for key, value in each.items()}
KEYS: Final = 11
"""The record at offset n has key n modulo this."""
ROWS: Final = 3


def prepare(log: Path) -> None:
    """Write a log of a segment for each batch, which become three groups and the active one."""
    updates(writer(log), BATCHES[:-1])
    updates(writer(log, segment__bytes="300"), BATCHES[-1:], first=len(BATCHES) - 1)


def check_seen(log: Path) -> None:
    """See that the last value of each key is there."""
    assert latest(read(log, T0)) == LATEST


def check_cleaned(log: Path) -> None:
    """Compact, and see that nothing is left over."""
    compacted(log)
    found = read(log, T0)
    assert latest(found) == LATEST
    assert len(found) == len(LATEST) + 1  # one of them again in the active segment
    assert [path.name for path in log.iterdir() if path.name.startswith(".kafkalog")] == []
    assert not swap_is_unfinished(log / "t-0")
    assert recover([str(log)]).problems == []
    check_indexes([log])


@pytest.mark.parametrize("beside", ["alone", "after it a writer"])
def test_a_compaction_that_is_killed_anywhere_loses_nothing_and_the_next_one_ends_it(
    folder: Path, beside: str
) -> None:
    prepare(folder / "before")
    shutil.copytree(folder / "before", folder / "counted")
    calls = count_calls(lambda: compacted(folder / "counted"))
    check_cleaned(folder / "counted")
    assert calls > 60
    unfinished = 0
    for call in range(beside == "alone", calls, STRIDE):
        log = folder / "log"
        shutil.copytree(folder / "before", log)
        assert run_and_kill(lambda log=log: compacted(log), call, half=bool(call % 2))
        unfinished += swap_is_unfinished(log / "t-0")
        check_seen(log)
        if beside != "alone":
            into = writer(log, segment__bytes="300")
            into.write(len(BATCHES), rows(["2"], keys=["c"]))
            check_seen(log)
        check_cleaned_after(log, extra=beside != "alone")
        shutil.rmtree(log)
    assert unfinished > 1


def check_cleaned_after(log: Path, *, extra: bool) -> None:
    if extra:
        compacted(log)
        found = read(log, T0)
        assert latest(found) == LATEST
        assert not swap_is_unfinished(log / "t-0")
        check_indexes([log])
    else:
        check_cleaned(log)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("open", errno.ENOSPC),
        ("pwrite", errno.ENOSPC),
        ("pwrite", errno.EIO),
        ("fsync", errno.EIO),
        ("replace", errno.EIO),
        ("link", errno.ENOSPC),
        ("unlink", errno.EIO),
        ("preadv", errno.EIO),
    ],
)
def test_whichever_call_fails_no_record_is_lost(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: int
) -> None:
    prepare(folder / "before")
    failed, call, told = True, 0, 0
    while failed:
        log = folder / "log"
        shutil.copytree(folder / "before", log)
        failing = Failing(name, call, code)
        with monkeypatch.context() as patch:
            patch.setattr(os, name, failing)
            try:
                told += bool(compact([str(log)], FORCED).problems)
            except (KafkaLogError, OSError):
                told += 1
        failed = failing.has_failed
        check_seen(log)
        check_cleaned(log)
        shutil.rmtree(log)
        call += STRIDE
    assert told or name in {"link", "unlink"}


# Beside a writer and a reader


def write(log: Path, run: str, batches: int) -> None:
    """Write rows whose values are their offsets, from the batch on that is not there yet."""
    options = {"segment__bytes": "300", "file__delete__delay__ms": "50"}
    into = Writer(log, topic="t", run=run, cleanup__policy="compact", **options)
    state = load_state(log) if log.is_dir() else None
    last = state.writers.get("query:4711") if state else None
    first = 0 if last is None else last.batch_id + 1
    for batch in range(first, first + batches):
        offsets = range(batch * ROWS, (batch + 1) * ROWS)
        keys = [str(offset % KEYS) for offset in offsets]
        into.write(batch, rows([str(offset) for offset in offsets], keys=keys))


def compact_again(log: Path) -> None:
    while True:
        assert compact([str(log)], FORCED).problems == []


def ended(log: Path) -> int:
    state = load_state(log)
    assert state is not None
    (topic,) = state.topics.values()
    return topic.partitions[0].log_end


def follow_last_values(log: Path, until: Path) -> None:
    """Read as a query does, and see that no last value of a key is missing."""

    def check(missing: set[int]) -> None:
        assert max(missing, default=-KEYS) + KEYS < ended(log), "a last value is missing"

    follow(log, until, check)


def test_writer_and_cleaners_that_are_killed_at_random_lose_nothing_while_a_reader_follows(
    folder: Path,
) -> None:
    chance = random.Random(KILLS)
    log, until = folder / "log", folder / "until"
    write(log, "the first", 4)
    began = time.monotonic()
    compacted(log)
    longest = 4 * (time.monotonic() - began)
    reader = start(lambda: follow_last_values(log, until))
    for kill in itertools.count():
        writing = start(lambda kill=kill: write(log, f"restart-{kill}", 10_000))
        cleaners = [start(lambda: compact_again(log)) for _ in range(2)]
        for child in (writing, *cleaners):
            assert not wait_for(child, chance, longest)
        follow_last_values(log, log)  # a batch query
        if kill >= KILLS // 2 and (read_offset_checkpoint(log, CLEANER_OFFSET)[T0] > 10 * KEYS):
            break
    write(log, "the last", 2)
    until.touch()
    _, status = os.waitpid(reader, 0)
    assert status == 0, "the reader failed, see its traceback above"
    assert recover([str(log)]).problems == []
    compacted(log)
    clean_to = read_offset_checkpoint(log, CLEANER_OFFSET)[T0]
    assert [*read(log, T0)] == list(range(clean_to - KEYS, ended(log)))
    check_indexes([log])
