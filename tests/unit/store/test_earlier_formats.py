"""Sets of log directories that were written before the present format of the commit state."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.support.earlier_formats import SETS, EarlierSet, values_of
from tests.support.sinking import rows
from tests.support.states import version_of

import kafkalog
from kafkalog.checkpoints.broker import (
    LOG_START_OFFSET,
    LeaderEpoch,
    new_topic_id,
    read_leader_epochs,
    write_offset_checkpoint,
    write_topic_id,
)
from kafkalog.checkpoints.commit_state import (
    STATE_FILE,
    UNFINISHED_FOLDER,
    UNKNOWN_EPOCH,
    PartitionState,
)
from kafkalog.checkpoints.committed import load_committed
from kafkalog.checkpoints.intent import INTENT_FILE
from kafkalog.errors import BatchIdentityError
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.broker.handover import hand_over, take_over
from kafkalog.streaming.admin.recovery import recover
from kafkalog.streaming.source.end_offsets import EndOffsets
from kafkalog.streaming.store.recovery import partition_states

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kafkalog.checkpoints.commit_state import CommitState


def state_of(found: EarlierSet) -> CommitState:
    state = load_committed(found.directories).state
    assert state is not None
    return state


def partitions_of(found: EarlierSet) -> dict[tuple[str, int], PartitionState]:
    """Give what the state says of each partition."""
    topics = state_of(found).topics.values()
    return {
        (topic.name, number): each for topic in topics for number, each in topic.partitions.items()
    }


@pytest.mark.parametrize("name", SETS)
def test_a_set_of_format_1_is_read(name: str, tmp_path: Path) -> None:
    found = EarlierSet.unpacked(name, tmp_path)
    assert found.read() == found.rows


@pytest.mark.parametrize("name", SETS)
def test_a_set_of_format_1_is_written_on(name: str, tmp_path: Path) -> None:
    found = EarlierSet.unpacked(name, tmp_path)
    new: list[str] = []
    for batch_id in (found.next_batch, found.next_batch + 1):
        new += found.write(batch_id)
        now = found.read()
        for topic, partitions in found.rows.items():
            for number, before in partitions.items():
                assert now[topic][number][: len(before)] == before
        assert values_of(now) == sorted([*values_of(found.rows), *new])
    for folder in found.directories:
        assert not (folder / INTENT_FILE).exists()
        assert not (folder / UNFINISHED_FOLDER).exists()
        assert version_of((folder / STATE_FILE).read_bytes()) == 2
    for partition, stands in partitions_of(found).items():
        assert stands.high_watermark == stands.log_end, partition
        assert stands.leader_epoch >= 0, partition


@pytest.mark.parametrize("name", SETS)
def test_the_last_batch_of_a_set_of_format_1_is_known_again(name: str, tmp_path: Path) -> None:
    found = EarlierSet.unpacked(name, tmp_path)
    found.write(found.next_batch - 1)
    assert found.read() == found.rows


def test_who_wrote_to_a_set_of_format_1_is_remembered(tmp_path: Path) -> None:
    found = EarlierSet.unpacked("plain", tmp_path)
    (folder,) = map(str, found.directories)
    again = pa.table({"value": [f"12/0/{number}" for number in range(3)]})
    outcome = kafkalog.append(folder, "weather", again, transactional_id="nightly", version=2)
    assert not outcome.appended
    other = pa.table({"value": ["other"]})
    with pytest.raises(BatchIdentityError, match="other rows"):
        kafkalog.append(folder, "weather", other, transactional_id="nightly", version=2)
    hourly = found.writer(topic="flights")
    hourly.name = "hourly"
    assert not hourly.write(0, rows(["20/0/0", "20/0/1"])).appended
    assert found.read() == found.rows


def test_reading_leaves_a_set_in_format_1(tmp_path: Path) -> None:
    found = EarlierSet.unpacked("unfinished", tmp_path)
    found.read()
    recover([*map(str, found.directories)], dry_run=True)
    assert found.versions(STATE_FILE) == found.versions(INTENT_FILE) == {1}


def test_log_starts_and_leader_epochs_come_from_kafkas_checkpoints_when_first_written(
    tmp_path: Path,
) -> None:
    found = EarlierSet.unpacked("after-a-broker", tmp_path)
    ends = {key: stands.log_end for key, stands in partitions_of(found).items()}
    found.writer(topic="other", numPartitions="1").write(found.next_batch, rows(["x"]))
    assert partitions_of(found) == {
        ("flights", 0): PartitionState(2, ends["flights", 0], ends["flights", 0], 5),
        ("flights", 1): PartitionState(0, ends["flights", 1], ends["flights", 1], 0),
        ("weather", 0): PartitionState(0, ends["weather", 0], ends["weather", 0], 0),
        # What the checkpoint says of it is about an earlier topic.
        ("weather", 1): PartitionState(0, ends["weather", 1], ends["weather", 1], 0),
        ("other", 0): PartitionState(0, 1, 1, 0),
    }


def test_kafkas_checkpoints_are_read_for_that_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []

    def noting(folder: Path) -> list[LeaderEpoch]:
        read.append(folder)
        return read_leader_epochs(folder)

    monkeypatch.setattr(partition_states, "read_leader_epochs", noting)
    found = EarlierSet.unpacked("plain", tmp_path)
    for batch_id in range(found.next_batch, found.next_batch + 3):
        found.writer(topic="flights").write(batch_id, rows(["x"], partitions=[0]))
    # All but the one that the commit has written, whose epoch it knows.
    assert len(read) == len(set(read)) == 5


def test_a_log_start_that_the_state_has_taken_over_outlasts_kafkas_checkpoint(
    tmp_path: Path,
) -> None:
    found = EarlierSet.unpacked("after-a-broker", tmp_path)
    found.write(found.next_batch)
    before = found.read()
    (found.directories[0] / LOG_START_OFFSET).unlink()
    assert found.read() == before
    assert before["flights"][0][0][0] == 2
    found.write(found.next_batch + 1)
    assert partitions_of(found)["flights", 0].log_start == 2


@pytest.mark.parametrize("name", ["flights-0/leader-epoch-checkpoint", "flights-0"])
def test_what_cannot_be_told_of_a_partition_is_unknown_and_nothing_fails(
    name: str, tmp_path: Path
) -> None:
    found = EarlierSet.unpacked("after-a-broker", tmp_path)
    gone = found.directories[0] / name
    if gone.is_dir():
        gone.rename(tmp_path / "elsewhere")
    else:
        gone.write_text("damaged")
    end = partitions_of(found)["flights", 0].log_end
    found = replace(found, directories=found.directories[:1])
    found.writer(topic="other").write(found.next_batch, rows(["x"]))
    told = partitions_of(found)["flights", 0]
    assert told._replace(log_start=0) == PartitionState(0, end, end, UNKNOWN_EPOCH)


def takes_over(found: EarlierSet) -> None:
    take_over([*map(str, found.directories)])


def hands_over(found: EarlierSet) -> None:
    done = hand_over([*map(str, found.directories)], topic_ids={"flights": "A" * 21 + "Q"})
    assert not done.problems


def joins(found: EarlierSet) -> None:
    (found.directories[0].parent / "9").mkdir()
    more = (*found.directories, found.directories[0].parent / "9")
    replace(found, directories=more).writer().plan()


@pytest.mark.parametrize("act", [takes_over, hands_over, joins])
@pytest.mark.parametrize("name", ["plain", "unfinished", "left-to-the-system"])
def test_whoever_writes_a_set_of_format_1_first_writes_all_of_format_2(
    name: str, act: Callable[[EarlierSet], None], tmp_path: Path
) -> None:
    found = EarlierSet.unpacked(name, tmp_path)
    ends = {key: stands.log_end for key, stands in partitions_of(found).items()}
    act(found)
    found = EarlierSet.at(name, tmp_path)
    assert found.versions(STATE_FILE) == {2}
    assert found.versions(INTENT_FILE) == set()
    assert partitions_of(found) == {
        key: PartitionState(0, end, end, 0) for key, end in ends.items()
    }
    assert found.read() == found.rows


def test_a_reader_that_has_begun_before_a_set_is_upgraded_sees_what_is_written_after(
    tmp_path: Path,
) -> None:
    found = EarlierSet.unpacked("two-directories", tmp_path)
    followed = EndOffsets(found.directories, lambda _: True)
    before = followed.look().offsets
    found.write(found.next_batch)
    after = followed.look().offsets
    assert after.keys() == before.keys()
    ends = {key: stands.high_watermark for key, stands in partitions_of(found).items()}
    assert {(*key,): end for key, end in after.items()} == ends
    assert sum(after.values()) > sum(before.values())


def test_a_log_start_of_another_topic_of_its_name_is_none_of_a_topic_of_format_1(
    tmp_path: Path,
) -> None:
    found = EarlierSet.unpacked("plain", tmp_path / "set")
    (folder,) = found.directories
    away, name = tmp_path / "away", "flights-0"
    (folder / name).rename(away)
    (folder / name).mkdir()
    write_topic_id(folder / name, new_topic_id())
    starts = {TopicPartition("flights", 0): 1}
    write_offset_checkpoint(folder, LOG_START_OFFSET, starts)
    found.writer(topic="other", numPartitions="1").write(found.next_batch, rows(["x"]))
    shutil.rmtree(folder / name)
    away.rename(folder / name)
    (folder / LOG_START_OFFSET).unlink()
    assert found.read() == found.rows
