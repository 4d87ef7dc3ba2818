"""Leader epochs go down in batches and in the checkpoint, and nothing else changes."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
from tests.support.logs import Row, batch_bytes, write_segment
from tests.support.message_sets import message

from kafkalog.checkpoints.broker import LeaderEpoch, read_leader_epochs, write_leader_epochs
from kafkalog.errors import CorruptRecordError
from kafkalog.streaming.admin.broker import node_handover as epochs_down
from kafkalog.streaming.admin.broker.node_handover import set_epochs_down

if TYPE_CHECKING:
    from pathlib import Path


def batch(base: int, epoch: int, value: bytes = b"v") -> bytes:
    data = bytearray(batch_bytes(base, [Row(value)]))
    data[12:16] = struct.pack(">i", epoch)
    return bytes(data)


def test_epochs_above_go_down_and_others_stay(tmp_path: Path) -> None:
    first, second = batch(0, 0) + batch(1, 2) + batch(2, 5), batch(3, 7)
    paths = [write_segment(tmp_path, 0, first), write_segment(tmp_path, 3, second)]
    lines = [LeaderEpoch(0, 0), LeaderEpoch(2, 1), LeaderEpoch(5, 2), LeaderEpoch(7, 3)]
    write_leader_epochs(tmp_path, lines)
    assert set_epochs_down(tmp_path, 3) == 2
    assert paths[0].read_bytes() == batch(0, 0) + batch(1, 2) + batch(2, 3)
    assert paths[1].read_bytes() == batch(3, 3)
    assert read_leader_epochs(tmp_path) == [*lines[:2], LeaderEpoch(3, 2)]
    assert set_epochs_down(tmp_path, 3) == 0


@pytest.mark.parametrize(
    ("most", "expected"),
    [(0, [(0, 0)]), (2, [(0, 0), (2, 1)]), (1, [(0, 0), (1, 1)]), (9, [(0, 0), (2, 1), (4, 6)])],
)
def test_lines_above_become_one_that_begins_with_the_first(
    most: int, expected: list[tuple[int, int]], tmp_path: Path
) -> None:
    write_segment(tmp_path, 0, batch(0, 0))
    write_leader_epochs(tmp_path, [LeaderEpoch(0, 0), LeaderEpoch(2, 1), LeaderEpoch(4, 6)])
    set_epochs_down(tmp_path, most)
    assert read_leader_epochs(tmp_path) == expected


def test_message_sets_of_older_magics_have_a_checksum_there_and_stay(tmp_path: Path) -> None:
    data = message(0, None, b"old", magic=1) + batch(1, 4)
    path = write_segment(tmp_path, 0, data)
    assert set_epochs_down(tmp_path, 0) == 1
    assert path.read_bytes() == message(0, None, b"old", magic=1) + batch(1, 0)


def test_batches_that_span_pieces_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epochs_down, "_PIECE_BYTES", 100)
    sizes = [1, 300, 7, 90, 101, 2, 2, 2]
    data = b"".join(batch(base, 4, b"x" * size) for base, size in enumerate(sizes))
    path = write_segment(tmp_path, 0, data)
    assert set_epochs_down(tmp_path, 1) == len(sizes)
    expected = b"".join(batch(base, 1, b"x" * size) for base, size in enumerate(sizes))
    assert path.read_bytes() == expected


def test_a_batch_without_a_size_is_damage_and_no_end(tmp_path: Path) -> None:
    write_segment(tmp_path, 0, batch(0, 4) + bytes(100))
    with pytest.raises(CorruptRecordError, match="has no size"):
        set_epochs_down(tmp_path, 1)
