"""Faults of the machine: whichever call fails, a batch is there whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest
from tests.support.interrupting import AlarmError, interrupted_at
from tests.support.replicated import path_of, values
from tests.support.sinking import Writer, adopt_small_files, rows, values_of

from kafkalog import append
from kafkalog.checkpoints.broker import RECOVERY_POINT, read_offset_checkpoint
from kafkalog.errors import (
    BatchIdentityError,
    CommitError,
    DurabilityError,
    KafkaLogError,
    LogDirectoryError,
)
from kafkalog.files.system import system
from kafkalog.streaming.commit.committer import Committer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

os_close: Final = os.close

pytestmark = pytest.mark.crash

TRIES_ALL: Final = os.environ.get("KAFKALOG_KILL_STRIDE") == "1"
CALLS: Final = (
    ("open", errno.EIO),
    ("open", errno.EMFILE),
    ("open", errno.EACCES),
    ("pwrite", errno.EDQUOT),
    ("fsync", errno.ENOSPC),
    ("ftruncate", errno.EIO),
    ("mkdir", errno.EROFS),
    ("replace", errno.EIO),
    ("link", errno.ENOSPC),
    ("unlink", errno.EIO),
    ("rmdir", errno.EBUSY),
    ("preadv", errno.EIO),
    ("fstat", errno.EIO),
    ("lstat", errno.ESTALE),
    ("stat", errno.EIO),
    ("listdir", errno.EIO),
    ("scandir", errno.ESTALE),
    ("close", errno.EDQUOT),
)
BEFORE = {0: ["a"], 1: ["b"]}
AFTER = {0: ["a", "c"], 1: ["b", "d"]}


class Failing:
    """A function of ``os`` whose ``call``-th call fails, counted from 0.

    A file that cannot be closed is closed all the same: what was not synced is lost (close(2)).
    """

    def __init__(self, name: str, call: int, code: int) -> None:
        self.has_failed = False
        self._original: Callable[..., Any] = getattr(os, name)
        self._code = code
        self._left = call

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self._left -= 1
        if self._left == -1:
            self.has_failed = True
            if self._original is os_close:
                os_close(*arguments)
            named_file = [path] if isinstance(path := arguments[0], str | Path) else []
            raise OSError(self._code, os.strerror(self._code), *named_file)
        return self._original(*arguments, **named)


def _faults() -> Iterator[Any]:
    """Yield ways for a batch to get into its log, and calls that fail on it.

    Those that only ``make kills`` tries are twins of another: the same call with another error, or
    on the other way.
    """
    ways = {"copied": False, "adopted": True}
    for number, (name, code) in enumerate(CALLS):
        for place, (way, adopts) in enumerate(ways.items()):
            if TRIES_ALL or place != number % len(ways):
                yield pytest.param(name, code, adopts, id=f"{name}-{errno.errorcode[code]}-{way}")


@pytest.mark.parametrize(("name", "code", "adopts"), list(_faults()))
def test_whichever_call_fails_a_batch_is_there_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: int, adopts: bool
) -> None:
    if adopts:
        adopt_small_files(monkeypatch)
    options = {"topic": "t", "numPartitions": "2", "segment__bytes": "130"}
    Writer(tmp_path / "before", **options).write(0, rows(["a", "b"], partitions=[0, 1]))
    call, failed = 0, True
    while failed:
        folder = tmp_path / str(call)
        shutil.copytree(tmp_path / "before", folder)
        writer = Writer(folder, **options)
        runs = writer.stage(1, rows(["c", "d"], partitions=[0, 1]))
        failing = Failing(name, call, code)
        with monkeypatch.context() as patch:
            patch.setattr(os, name, failing)
            try:
                committed = writer.commit(1, runs).appended
            except DurabilityError:
                committed = True
            except KafkaLogError:
                committed = False
        failed = failing.has_failed
        assert committed or failed
        assert values_of([folder], "t") == (AFTER if committed else BEFORE)
        writer.write(1, rows(["c", "d"], partitions=[0, 1]))
        assert values_of([folder], "t") == AFTER
        shutil.rmtree(folder)
        call += 1


@pytest.mark.parametrize("has_nodes", [False, True], ids=["directories", "nodes"])
@pytest.mark.parametrize("name", ["open", "replace", "fsync", "fstat", "lstat", "close"])
def test_whichever_call_fails_on_one_of_several_directories_the_error_says_if_rows_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, has_nodes: bool
) -> None:
    """An append without an id is never repeated by itself: its error has to say how it ended."""
    call, failed, said = 3 if has_nodes else 0, True, 0
    while failed:
        folders = [tmp_path / str(call) / each for each in ("abc" if has_nodes else "ab")]
        path = path_of(folders) if has_nodes else ",".join(map(str, folders))
        append(path, "t", pa.table({"value": ["a"]}))
        failing = Failing(name, call, errno.EIO)
        may_be_there, is_there = False, False
        with monkeypatch.context() as patch:
            patch.setattr(os, name, failing)
            try:
                is_there = append(path, "t", pa.table({"value": ["b"]})).appended
            except KafkaLogError as error:
                said += 1
                may_be_there = "is not known" in str(error)
                is_there = isinstance(error, DurabilityError)
        failed = failing.has_failed
        append(path, "t", pa.table({"value": ["c"]}))
        found = sorted(values(folders) if has_nodes else values_of(folders, "t")[0])
        there, gone = ["a", "b", "c"], ["a", "c"]
        assert found in ([there, gone] if may_be_there else [there] if is_there else [gone]), call
        shutil.rmtree(tmp_path / str(call))
        call += 1 if TRIES_ALL else 5 if has_nodes else 2
    assert said or has_nodes


@pytest.mark.parametrize("adopts", [False, True], ids=["copied", "adopted"])
def test_whichever_call_is_interrupted_a_batch_is_there_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, adopts: bool
) -> None:
    if adopts:
        adopt_small_files(monkeypatch)
    options = {"topic": "t", "numPartitions": "2", "segment__bytes": "130"}
    Writer(tmp_path / "before", **options).write(0, rows(["a", "b"], partitions=[0, 1]))
    call, interrupted, stopped = 0, True, 0
    while interrupted:
        folder = tmp_path / str(call)
        shutil.copytree(tmp_path / "before", folder)
        writer = Writer(folder, **options)
        runs = writer.stage(1, rows(["c", "d"], partitions=[0, 1]))
        with interrupted_at(call) as reached:
            try:
                committed = writer.commit(1, runs).appended
            except AlarmError as error:
                committed = "it is done" in "".join(error.__notes__)
        interrupted = reached()
        stopped += not committed
        assert values_of([folder], "t") == (AFTER if committed else BEFORE)
        writer.write(1, rows(["c", "d"], partitions=[0, 1]))
        assert values_of([folder], "t") == AFTER
        shutil.rmtree(folder)
        call += 2
    assert stopped > 5


def test_an_fsync_of_what_was_left_unsynced_that_fails_fails_the_durable_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"topic": "t", "segment__bytes": "130"}
    of_system = Writer(tmp_path / "before", **options, flush="os")
    for batch_id, value in enumerate("abc"):
        of_system.write(batch_id, rows([value]))
    call, failed, refused = 0, True, 0
    while failed:
        folder = tmp_path / str(call)
        shutil.copytree(tmp_path / "before", folder)
        writer = Writer(folder, **options)
        runs = writer.stage(3, rows(["d"]))
        failing = Failing("fsync", call, errno.EIO)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", failing)
            try:
                committed = writer.commit(3, runs).appended
            except DurabilityError:
                committed = True
            except CommitError:
                committed = False
        failed = failing.has_failed
        refused += not committed
        points = read_offset_checkpoint(folder, RECOVERY_POINT)
        assert points == {} or committed
        assert values_of([folder], "t") == {0: [*"abcd"] if committed else [*"abc"]}
        call += 1
    # The logs and indexes of two sealed segments alone are six.
    assert refused > 12


def test_a_log_directory_that_vanishes_is_named(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "log", topic="t")
    writer.write(0, rows(["a"]))
    runs = writer.stage(1, rows(["b"]))
    plan, identity = writer.plan(), writer.identity(1)
    (tmp_path / "log").rename(tmp_path / "gone")
    with pytest.raises((CommitError, LogDirectoryError), match=str(tmp_path / "log")):
        Committer(plan.commit_plan, identity).commit(runs)
    (tmp_path / "gone").rename(tmp_path / "log")
    writer.commit(1, runs)
    assert values_of([tmp_path / "log"], "t") == {0: ["a", "b"]}


def test_a_clock_that_goes_backwards_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(tmp_path, topic="t", segment__ms="1000", segment__jitter__ms="500")
    real = system.time_ns
    for batch_id, years in enumerate([0, -20, 1, -30]):
        shift = years * 365 * 86_400 * 1_000_000_000
        with monkeypatch.context() as patch:
            patch.setattr(system, "time_ns", lambda shift=shift: real() + shift)
            writer.write(batch_id, rows([str(batch_id)]))
    assert values_of([tmp_path], "t") == {0: ["0", "1", "2", "3"]}


def test_a_batch_of_a_time_when_the_clock_was_wrong_is_not_forgotten_when_it_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (Writer(tmp_path, name=name, topic="t") for name in ("first", "second"))
    first.write(0, rows(["a"]))
    with monkeypatch.context() as patch:
        patch.setattr(system, "time_ns", lambda: 86_400_000_000_000)
        second.write(0, rows(["b"]))
    first.write(1, rows(["c"]))
    assert not second.write(0, rows(["b"])).appended
    assert values_of([tmp_path], "t") == {0: ["a", "b", "c"]}


@contextmanager
def clock_ahead(patch: pytest.MonkeyPatch, days: float) -> Iterator[None]:
    """Let the clock be wrong, and right again."""
    ahead_ns = int(days * 86_400_000_000_000)
    real = system.time_ns
    with patch.context() as inner:
        inner.setattr(system, "time_ns", lambda: real() + ahead_ns)
        yield


def test_commits_while_the_clock_is_far_ahead_forget_nobody_and_say_who_seems_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = (Writer(tmp_path, name=name, topic="t") for name in ("first", "second"))
    first.write(0, rows(["a"]))
    version = {"transactional_id": "job", "version": 7}
    append(tmp_path, "t", pa.table({"value": ["b"]}), **version)
    for batch_id, days in enumerate((20_000, 20_000.5, 20_006)):
        with clock_ahead(monkeypatch, days):
            second.write(batch_id, rows([str(batch_id)]))
    told = [text for text in caplog.messages if "silent for longer" in text]
    assert len(told) == 1
    assert "query:first, app:job in topic 't'. They will be forgotten" in told[0]
    assert "by the clock of this machine: if that is wrong, set it right" in told[0]
    assert not first.write(0, rows(["a"])).appended
    assert not append(tmp_path, "t", pa.table({"value": ["b"]}), **version).appended
    first.write(1, rows(["c"]))
    second.write(3, rows(["3"]))
    assert values_of([tmp_path], "t") == {0: ["a", "b", "0", "1", "2", "c", "3"]}


def test_a_clock_that_is_right_again_revokes_what_a_wrong_one_has_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (Writer(tmp_path, name=name, topic="t") for name in ("first", "second"))
    first.write(0, rows(["a"]))
    for batch_id, days in enumerate((20_000, 0, 30_000, 0, 40_000, 0)):
        with clock_ahead(monkeypatch, days):
            second.write(batch_id, rows([str(batch_id)]))
    assert not first.write(0, rows(["a"])).appended


def test_who_is_silent_for_twice_the_time_is_forgotten_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = (Writer(tmp_path, name=name, topic="t") for name in ("first", "second"))
    first.write(0, rows(["a"]))
    append(tmp_path, "t", pa.table({"value": ["b"]}), transactional_id="job", version=7)
    for batch_id, days in enumerate((1, 60, 91, 170, 182)):
        with clock_ahead(monkeypatch, days):
            second.write(batch_id, rows([str(batch_id)]))
    told = [text for text in caplog.messages if text.startswith("forgotten")]
    assert len(told) == 1
    assert "query:first, app:job in topic 't'. A query that comes back is refused" in told[0]
    with pytest.raises(BatchIdentityError, match="allowUnknownCheckpoint=true"):
        first.write(1, rows(["c"]))


@pytest.fixture
def strict_umask() -> Iterator[None]:
    """Let what is made be this user's alone, until it is opened to those who share its folder."""
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("open", errno.EIO),
        ("pwrite", errno.ENOSPC),
        ("fsync", errno.EIO),
        ("copy_file_range", errno.ENOSPC),
        ("read", errno.EIO),
        ("preadv", errno.EIO),
        ("ftruncate", errno.EIO),
        ("fchmod", errno.EIO),
        ("mkdir", errno.EROFS),
        ("replace", errno.EIO),
    ],
)
@pytest.mark.usefixtures("strict_umask")
def test_the_error_of_an_append_says_where_the_fault_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: int
) -> None:
    monkeypatch.setattr("kafkalog.streaming.commit.staging.staged_source._BUFFER_BYTES", 200)
    monkeypatch.setattr("kafkalog.streaming.log.growth.ADOPTED_BYTES", 1 << 30)
    values = pa.table({"value": ["a" * 100] * 8})
    tmp_path.chmod(0o755)
    append(tmp_path, "t", values, options={"max.message.bytes": "200"})
    call, failed = 0, True
    said: list[str] = []
    while failed:
        failing = Failing(name, call, code)
        with monkeypatch.context() as patch:
            patch.setattr(os, name, failing)
            try:
                append(tmp_path, "t", values, options={"segment.bytes": "900"})
            except KafkaLogError as error:
                said.append(str(error))
        failed = failing.has_failed
        call += 1
    assert said or name == "ftruncate"
    for text in said:
        assert str(tmp_path) in text
        assert os.strerror(code) in text
