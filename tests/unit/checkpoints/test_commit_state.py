from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.support.states import up_to

from kafkalog.checkpoints.commit_state import (
    STATE_FILE,
    CommitState,
    PartitionState,
    SourcePosition,
    TopicOrigin,
    TopicState,
    WriterState,
    topic_key,
)
from kafkalog.checkpoints.committed import load_committed
from kafkalog.checkpoints.intent import (
    INTENT_FILE,
    IntendedPartition,
    IntendedPiece,
    IntendedSegment,
    Intent,
    StagedFile,
    load_intent,
)
from kafkalog.checkpoints.sealed_file import seal
from kafkalog.checkpoints.state_file import load_state, state_bytes
from kafkalog.errors import CheckpointError, LogDirectoryError

if TYPE_CHECKING:
    from pathlib import Path

STATE = CommitState(
    sequence=7,
    set_id="set",
    member_id="a",
    member_ids=("a", "b"),
    topics={
        "tFGqkIFMSr2WgOzrHH8Hrg": TopicState(
            "flights",
            {0: PartitionState(0, 120, 120, 3), 1: PartitionState(40, 98, 99, 0)},
            {"segment.bytes": "1024"},
            durable_ends={1: 60},
            origins={
                "mirror flights": TopicOrigin(
                    "set-0", "A", {0: SourcePosition(120, "100:119:7", 3), 1: SourcePosition(98)}
                ),
                "replay 1 old": TopicOrigin(None, None, time_ms=1),
            },
        ),
        ":old": TopicState(
            "old",
            up_to({0: 3}),
            versions={"nightly": WriterState("", 3, "rows 1 0a", 1, expired_ms=9)},
            last_query="query:4711",
        ),
    },
    writers={
        "query:4711": WriterState("run-2", 12, "abc", 1_700_000_000_000, ("run-1",)),
        "app:nightly": WriterState("", 3, None, 1, expiration_ms=86_400_000),
    },
)

INTENT = Intent(
    sequence=8,
    set_id="set",
    writer="query:4711",
    batch_id=13,
    partitions=(
        IntendedPartition(
            topic="flights",
            key="tFGqkIFMSr2WgOzrHH8Hrg",
            partition=0,
            member_id="a",
            created=False,
            leader_epoch=0,
            starts_epoch=False,
            start_offset=120,
            end_offset=160,
            snapshots=(150,),
            pieces=(
                IntendedPiece(StagedFile("a", ".kafkalog.staged.00.13.u"), 0, 500, 0xDEADBEEF, 30),
                IntendedPiece(StagedFile("b", ".kafkalog.staged.00.13.v"), 10, 100, 1, 10),
            ),
            segments=(
                IntendedSegment(100, 4000, 4500),
                IntendedSegment(150, 0, 100, created=True),
            ),
        ),
    ),
)


def put(directory: Path, *, state: CommitState | None = None, intent: Intent | None = None) -> None:
    directory.mkdir(exist_ok=True)
    if state is not None:
        (directory / STATE_FILE).write_bytes(state_bytes(state))
    if intent is not None:
        (directory / INTENT_FILE).write_bytes(intent.to_bytes())


def test_a_state_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    put(tmp_path, state=STATE)
    assert load_state(tmp_path) == STATE


def test_an_intent_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    put(tmp_path, intent=INTENT)
    assert load_intent(tmp_path) == INTENT


def test_a_directory_without_files_of_ours_has_neither(tmp_path: Path) -> None:
    assert load_state(tmp_path) is None
    assert load_intent(tmp_path) is None


@pytest.mark.long
def test_every_flipped_byte_of_a_state_is_noticed(tmp_path: Path) -> None:
    content = state_bytes(STATE)
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 0x01
        (tmp_path / STATE_FILE).write_bytes(damaged)
        with pytest.raises(CheckpointError, match=STATE_FILE):
            load_state(tmp_path)


@pytest.mark.long
def test_every_torn_state_is_noticed(tmp_path: Path) -> None:
    content = state_bytes(STATE)
    for size in range(len(content)):
        (tmp_path / STATE_FILE).write_bytes(content[:size])
        with pytest.raises(CheckpointError, match="damaged"):
            load_state(tmp_path)


def test_a_state_from_a_newer_release_is_refused_by_name(tmp_path: Path) -> None:
    newer = state_bytes(STATE).replace(b'"version":2', b'"version":5', 1)
    (tmp_path / STATE_FILE).write_bytes(newer)
    with pytest.raises(CheckpointError, match=r"version 5.*versions up to 4"):
        load_state(tmp_path)


def test_a_link_in_place_of_a_state_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(state_bytes(STATE))
    (tmp_path / STATE_FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="is a link"):
        load_state(tmp_path)


def test_a_pipe_in_place_of_a_state_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / STATE_FILE)
    with pytest.raises(CheckpointError, match="is a FIFO"):
        load_state(tmp_path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"topic":"flights"', '"topic":"../../etc"'),
        ('"0":[0,120,120,3]', '"0":[-1,120,120,3]'),
        ('"0":[0,120,120,3]', '"0":[121,120,120,3]'),
        ('"0":[0,120,120,3]', '"0":[0,121,120,3]'),
        ('"0":[0,120,120,3]', '"0":[0,120,120,-2]'),
        ('"0":[0,120,120,3]', '"0":[0,120,120,2147483648]'),
        ('"0":[0,120,120,3]', '"0":[0,120,120]'),
        ('"0":[0,120,120,3]', '"0":[0,true,120,3]'),
        ('"0":[0,120,120,3]', '"00":[0,120,120,3]'),
        ('"0":[0,120,120,3]', '"2147483648":[0,120,120,3]'),
        ('"durableEnds":{"1":60}', '"durableEnds":{"2":60}'),
        ('"id":null', '"id":""'),
        ('"commit":"",', ""),
        (',"controllerEpoch":0', ""),
        (',"expiration":86400000', ""),
        ('"fenced":["run-1"]', '"fenced":"run-1"'),
        ('"app:nightly"', '"query:4711"'),
        ('"sequence":7', '"sequence":"7"'),
        ('"members":["a","b"]', '"members":7'),
        ('"batch":12', '"batch":12.5'),
        ('"expiration":86400000', '"expiration":"1d"'),
    ],
)
def test_content_that_we_never_write_is_refused(tmp_path: Path, old: str, new: str) -> None:
    _, *lines = state_bytes(STATE).decode().splitlines()
    changed = [json.loads(line.replace(old, new)) for line in lines]
    assert changed != [json.loads(line) for line in lines]
    (tmp_path / STATE_FILE).write_bytes(seal(STATE_FILE, 2, changed))
    with pytest.raises(CheckpointError, match="no release of kafkalog has written"):
        load_state(tmp_path)


def test_an_intent_that_names_a_staged_file_by_a_path_is_refused(tmp_path: Path) -> None:
    _, *lines = INTENT.to_bytes().decode().splitlines()
    changed = [json.loads(line.replace(".kafkalog.staged.00.13.u", "./../x")) for line in lines]
    (tmp_path / INTENT_FILE).write_bytes(seal(INTENT_FILE, 2, changed))
    with pytest.raises(CheckpointError, match="staged file"):
        load_intent(tmp_path)


def test_the_copy_with_the_highest_sequence_number_is_the_truth(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    put(first, state=STATE)
    put(
        second,
        state=CommitState(8, "set", "b", ("a", "b"), {":old": TopicState("old", up_to({0: 9}))}),
    )
    committed = load_committed([first, second])
    assert committed.high_watermark("old", None, 0) == 9
    assert committed.high_watermark("flights", "tFGqkIFMSr2WgOzrHH8Hrg", 0) is None


def test_an_intent_above_the_state_is_unfinished(tmp_path: Path) -> None:
    put(tmp_path, state=STATE, intent=INTENT)
    committed = load_committed([tmp_path])
    assert committed.unfinished == INTENT
    assert committed.in_progress("flights", 0)
    assert not committed.in_progress("flights", 1)
    assert committed.high_watermark("flights", "tFGqkIFMSr2WgOzrHH8Hrg", 0) == 120


def test_an_intent_at_the_state_is_left_over(tmp_path: Path) -> None:
    published = CommitState(8, "set", "a", ("a",))
    put(tmp_path, state=published, intent=INTENT)
    assert load_committed([tmp_path]).unfinished is None


def test_an_intent_without_any_state_is_unfinished(tmp_path: Path) -> None:
    put(tmp_path, intent=INTENT)
    committed = load_committed([tmp_path])
    assert committed.state is None
    assert committed.in_progress("flights", 0)


def test_directories_of_different_sets_are_refused(tmp_path: Path) -> None:
    put(tmp_path / "1", state=STATE)
    put(tmp_path / "2", state=CommitState(1, "other", "x", ("x",)))
    with pytest.raises(LogDirectoryError, match="different sets"):
        load_committed([tmp_path / "1", tmp_path / "2"])


def test_a_topic_that_was_recreated_does_not_inherit_offsets() -> None:
    assert STATE.partition("flights", "tFGqkIFMSr2WgOzrHH8Hrg", 1) == PartitionState(40, 98, 99, 0)
    assert STATE.partition("flights", "another-id", 1) is None
    assert STATE.log_end("old", None, 0) == 3
    assert topic_key("old", None) == ":old"


def test_readers_stop_where_committed_and_writers_continue_at_the_log_end(tmp_path: Path) -> None:
    put(tmp_path, state=STATE)
    committed = load_committed([tmp_path])
    assert committed.high_watermark("flights", "tFGqkIFMSr2WgOzrHH8Hrg", 1) == 98
    assert committed.log_start("flights", "tFGqkIFMSr2WgOzrHH8Hrg", 1) == 40
    assert committed.log_start("flights", "another-id", 1) == 0
    assert STATE.log_end("flights", "tFGqkIFMSr2WgOzrHH8Hrg", 1) == 99


@pytest.mark.parametrize(
    ("checkpointed", "log_start"),
    [(0, 40), (39, 40), (40, 40), (41, 41), (98, 98), (99, 40), (4000, 40)],
)
def test_a_log_starts_where_the_larger_of_state_and_checkpoint_says_unless_that_is_above_its_end(
    checkpointed: int, log_start: int
) -> None:
    known = PartitionState(40, 98, 98, 2)
    assert known.starting_at(checkpointed) == PartitionState(log_start, 98, 98, 2)


def test_a_log_that_is_cut_below_its_start_starts_at_its_end() -> None:
    assert PartitionState(40, 98, 99, 2).ended_at(50, 1) == PartitionState(40, 50, 50, 1)
    assert PartitionState(40, 98, 99, 2).ended_at(30, 1) == PartitionState(30, 30, 30, 1)


@pytest.mark.parametrize(
    "wrong",
    [
        PartitionState(5, 4, 4, 0),
        PartitionState(0, 5, 4, 0),
        PartitionState(-1, 4, 4, 0),
        PartitionState(0, 4, 4, -2),
    ],
)
def test_what_nobody_could_read_again_is_not_written(wrong: PartitionState) -> None:
    state = replace(STATE, topics={":t": TopicState("t", {0: wrong})})
    with pytest.raises(CheckpointError, match=r"topic 't' cannot be committed.*partition 0"):
        state_bytes(state)
