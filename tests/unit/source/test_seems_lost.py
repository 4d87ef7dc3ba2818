"""What is not there at one look, and is at the next: no loss, and nothing that is committed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.logs import Row, append_batch, batch_bytes, write_segment
from tests.support.sinking import Writer, rows

import kafkalog
from kafkalog.checkpoints.intent import INTENT_FILE, IntendedPartition, Intent
from kafkalog.errors import DataLossError
from kafkalog.model import TopicPartition
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.source.end_offsets import EndOffsets
from kafkalog.streaming.source.stream_control import StreamControl
from kafkalog.streaming.store.ends.tracker import Ends, LogEndTracker

if TYPE_CHECKING:
    from pathlib import Path

T0 = TopicPartition("t", 0)


def query(log: Path) -> StreamControl:
    given = {"startingOffsets": "earliest", "fetchOffset.retryIntervalMs": "0"}
    return StreamControl(ReadOptions.parse({"path": str(log), "subscribe": "t", **given}))


def restore_at_next_look(path: Path, patch: pytest.MonkeyPatch) -> None:
    """Cut a segment's last batch off, until a query looks again because something seems lost."""
    whole = path.read_bytes()
    length = 12 + int.from_bytes(whole[8:12], "big")
    path.write_bytes(whole[:length])
    ask = EndOffsets.ask_stores_again

    def restored(self: EndOffsets) -> None:
        path.write_bytes(whole)
        ask(self)

    patch.setattr(EndOffsets, "ask_stores_again", restored)


def test_a_log_that_is_short_at_one_look_has_lost_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [batch_bytes(start, [Row()] * 5) for start in (0, 5)]
    write_segment(tmp_path / "t-0", 0, b"".join(batches))
    control = query(tmp_path)
    end = control.next_end(control.initial(), take_all=False)
    assert end == {T0: 10}
    restore_at_next_look(tmp_path / "t-0" / f"{0:020d}.log", monkeypatch)
    assert control.next_end(end, take_all=False) == end


def test_what_a_commit_wrote_and_is_not_there_at_one_look_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(tmp_path, topic="t")
    for number in range(2):
        writer.write(number, rows([str(number)]))
    control = query(tmp_path)
    start = control.initial()
    restore_at_next_look(tmp_path / "t-0" / f"{0:020d}.log", monkeypatch)
    assert control.next_end(start, take_all=False) == {T0: 2}


def begin_commit(log: Path) -> None:
    """Begin a commit as a process does that is killed before it publishes."""
    intended = IntendedPartition(
        topic="t",
        key="t",
        partition=0,
        member_id="member",
        created=False,
        leader_epoch=0,
        starts_epoch=False,
        start_offset=5,
        end_offset=10,
        snapshots=(),
        pieces=(),
        segments=(),
    )
    intent = Intent(1, "set", "query:q", 0, (intended,))
    (log / INTENT_FILE).write_bytes(intent.to_bytes())
    append_batch(log / "t-0" / f"{0:020d}.log", batch_bytes(5, [Row()] * 5))


def test_what_a_commit_appends_to_a_bare_copy_during_a_look_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_segment(tmp_path / "t-0", 0, batch_bytes(0, [Row()] * 5))
    find = LogEndTracker._find_ends

    def begun(self: LogEndTracker) -> tuple[Ends, bool]:
        monkeypatch.undo()
        begin_commit(tmp_path)
        return find(self)

    monkeypatch.setattr(LogEndTracker, "_find_ends", begun)
    assert EndOffsets([str(tmp_path)], lambda _: True).look().offsets == {T0: 5}


def test_a_batch_that_ends_before_a_loss_by_time_reads_what_is_there(tmp_path: Path) -> None:
    writer = Writer(tmp_path, topic="t")
    for number in range(3):
        writer.write(number, rows([str(number)], timestamps=[1000 + number]))
    path = tmp_path / "t-0" / f"{0:020d}.log"
    whole = path.read_bytes()
    length = 12 + int.from_bytes(whole[8:12], "big")
    path.write_bytes(whole[: 2 * length])
    options = {"fetchOffset.retryIntervalMs": "0", "endingTimestamp": "1001"}
    assert kafkalog.read(tmp_path, "t", options=options).read_all().num_rows == 1
    with pytest.raises(DataLossError, match=r"no longer in the log: t-0 \[2, 3\)"):
        kafkalog.read(tmp_path, "t", options={**options, "endingTimestamp": "1002"})
