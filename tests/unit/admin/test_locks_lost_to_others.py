"""Whoever loses the locks while it works on logs leaves them to who has them now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.support.log_files import flip
from tests.support.sinking import Writer, rows
from tests.support.transactions import BrokerLog

from kafkalog.checkpoints.broker import CLEAN_SHUTDOWN, META_PROPERTIES
from kafkalog.checkpoints.commit_state import STATE_FILE, UNFINISHED_FOLDER
from kafkalog.errors import KafkaLogError, LogDirectoryError
from kafkalog.jobs import rebuild as rebuild_module
from kafkalog.jobs.rebuild import rebuild
from kafkalog.streaming.admin import salvage as salvage_module
from kafkalog.streaming.admin.broker import handover as handover_module
from kafkalog.streaming.admin.broker import open_transactions
from kafkalog.streaming.admin.broker.handover import hand_over, take_over
from kafkalog.streaming.admin.recovery import recover
from kafkalog.streaming.admin.salvage import salvage
from kafkalog.streaming.commit import tail_recovery as foreign_log

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kafkalog.streaming.admin.recovery import RecoveryReport

LOG = f"{0:020d}.log"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Give a log directory with three batches in each of two partitions."""
    writer = Writer(tmp_path, topic="t", numPartitions="2")
    for number in range(3):
        writer.write(number, rows(["a", "b"], partitions=[0, 1]))
    return tmp_path


def losing_locks(patch: pytest.MonkeyPatch, where: Any, name: str, log: Path) -> None:
    """Let somebody replace Kafka's lock file just before a function is called."""
    original = getattr(where, name)

    def act(*arguments: Any, **named: Any) -> Any:
        (log / ".lock").unlink()
        (log / ".lock").touch()
        return original(*arguments, **named)

    patch.setattr(where, name, act)


@pytest.mark.parametrize("act", ["recover", "write"])
def test_a_tail_that_another_writer_may_be_writing_is_not_cut_off(
    log: Path, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    segment = log / "t-0" / LOG
    with segment.open("ab") as file:
        file.write(b"the beginning of a batch")
    before = segment.read_bytes()
    losing_locks(monkeypatch, foreign_log, "find_valid_end", log)
    if act == "recover":
        assert "deleted or replaced" in recover([str(log)]).problems[0]
    else:
        with pytest.raises(KafkaLogError, match="deleted or replaced"):
            Writer(log, topic="t").write(3, rows(["c"], partitions=[0]))
    assert segment.read_bytes() == before


@pytest.mark.parametrize(("act", "step"), [(hand_over, "_check_numbers"), (take_over, "_take")])
def test_nothing_is_handed_over_or_taken_over_once_the_locks_are_lost(
    log: Path,
    monkeypatch: pytest.MonkeyPatch,
    act: Callable[[list[str]], RecoveryReport],
    step: str,
) -> None:
    before = {path: path.read_bytes() for path in log.glob("*-checkpoint")}
    losing_locks(monkeypatch, handover_module, step, log)
    with pytest.raises(LogDirectoryError, match="deleted or replaced"):
        act([str(log)])
    assert before == {path: path.read_bytes() for path in log.glob("*-checkpoint")}
    assert not (log / CLEAN_SHUTDOWN).exists()


def test_no_index_is_rebuilt_once_the_locks_are_lost(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    indexes = [log / f"t-{number}" / f"{0:020d}.index" for number in (0, 1)]
    for index in indexes:
        index.unlink()
    losing_locks(monkeypatch, rebuild_module, "rebuild_partition", log)
    with pytest.raises(LogDirectoryError, match="deleted or replaced"):
        rebuild(str(log))
    assert [index.exists() for index in indexes] == [True, False]


@pytest.mark.parametrize(
    ("is_ours", "step"),
    [
        (True, "look_for_damage"),
        (False, "note_salvage"),  # of a broker's, no publishing asks for the locks again
    ],
)
def test_nothing_is_salvaged_once_the_locks_are_lost(
    log: Path, monkeypatch: pytest.MonkeyPatch, step: str, *, is_ours: bool
) -> None:
    if not is_ours:
        (log / STATE_FILE).unlink()
    segment = log / "t-0" / LOG
    flip(segment, 65)
    before = segment.read_bytes()
    losing_locks(monkeypatch, salvage_module, step, log)
    with pytest.raises(LogDirectoryError, match="deleted or replaced"):
        salvage([str(log)], drop=["t-0@0"])
    assert segment.read_bytes() == before
    assert (log / UNFINISHED_FOLDER).exists() is not is_ours  # it was noted, to be run again


def test_no_transaction_is_aborted_once_the_locks_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "broker"
    opened = BrokerLog(log / "t-0")
    opened.append(1)
    opened.write()
    (log / META_PROPERTIES).write_text("version=1\n")
    before = {path: path.read_bytes() for path in (log / "t-0").iterdir()}
    losing_locks(monkeypatch, open_transactions, "_opened", log)
    with pytest.raises(LogDirectoryError, match="deleted or replaced"):
        take_over([str(log)], aborts_open=True, abort_producers=[1])
    assert {path: path.read_bytes() for path in (log / "t-0").iterdir()} == before
