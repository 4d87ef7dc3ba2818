"""A cluster back from its bucket: a log directory made of what a tier has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support import cluster_records
from tests.support.logs import write_checkpoint
from tests.support.streams import Log
from tests.support.tiers import AivenTier, KafkaTier, write_log
from tests.support.transactions import COMMIT, BrokerLog
from typer.testing import CliRunner

import kafkalog
from kafkalog.checkpoints.broker import LOG_START_OFFSET, read_leader_epochs, read_topic_id
from kafkalog.checkpoints.state_file import load_state
from kafkalog.errors import KafkaLogError
from kafkalog.jobs.inspection.tiers import tiered_paths
from kafkalog.jobs.restore import app
from kafkalog.streaming.admin.tier_restore import RestoredTier, restore_from_tier

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def log(tmp_path: Path) -> Path:
    log = tmp_path / "log"
    write_log(log, [0, 10, 20, 30], 40)
    write_checkpoint(log, LOG_START_OFFSET, {"t-0": 0})
    return log


def restored(tier: Path, target: Path, *topics: str, **how: object) -> RestoredTier:
    return restore_from_tier(tiered_paths([str(tier)], None, {}), str(target), topics, **how)


def offsets(log: Path, **options: str) -> list[int]:
    found: list[int] = kafkalog.read(log, "t", options=options).read_all()["offset"].to_pylist()
    return found


@pytest.mark.parametrize("layout", [KafkaTier, AivenTier])
def test_offsets_ids_and_epochs_come_back(log: Path, tmp_path: Path, layout: type) -> None:
    (log / "t-0" / f"{10:020d}.leader_epoch_checkpoint").write_text("0\n2\n0 0\n3 12\n")
    tier = layout(tmp_path / "tier")
    tier.move(log / "t-0", [0, 10, 20])
    target = tmp_path / "back"
    (partition,) = restored(tier.root, target).partitions
    assert (partition.start, partition.end, partition.segments) == (0, 20, 2)
    assert offsets(target) == list(range(20))
    assert read_topic_id(target / "t-0") == tier.topic_id
    state = load_state(target)
    assert state is not None
    assert list(state.topics) == [tier.topic_id]
    epochs = [tuple(each) for each in read_leader_epochs(target / "t-0")]
    assert epochs == [(0, 0), (3, 12)]


def test_of_copies_that_overlap_each_offset_comes_back_once(log: Path, tmp_path: Path) -> None:
    tier = KafkaTier(tmp_path / "tier")
    other = write_log(tmp_path / "other", [16], 30)
    tier.upload(log / "t-0", 0, 10)
    tier.upload(log / "t-0", 10, 20)
    tier.upload(other, 16, 30)
    restored(tier.root, tmp_path / "back")
    assert offsets(tmp_path / "back") == list(range(30))


def test_settings_come_from_what_is_left_of_a_broker(log: Path, tmp_path: Path) -> None:
    tier = KafkaTier(tmp_path / "tier")
    tier.move(log / "t-0", [0, 10])
    left = tmp_path / "left"
    records = [
        cluster_records.topic("t", tier.topic_id),
        cluster_records.setting("t", "retention.ms", "604800000"),
        cluster_records.setting("t", "remote.storage.enable", "true"),
    ]
    cluster_records.write_metadata(left, *records)
    done = restored(tier.root, tmp_path / "back", cluster_metadata=[str(left)])
    assert done.settings == {"t": {"retention.ms": "604800000"}}
    assert done.unknown_settings == []
    again = restored(tier.root, tmp_path / "again", config={"segment.ms": "3600000"})
    assert (again.unknown_settings, list(again.settings["t"])) == (["t"], ["segment.ms"])


def test_transactions_come_back_with_their_index(tmp_path: Path) -> None:
    folder = tmp_path / "log" / "t-0"
    written = BrokerLog(folder)
    for number in range(6):
        written.append(1, 2)
        written.end(1, number % 2)
        written.roll()
    written.append(2, 1)
    written.end(2, COMMIT)
    written.write()
    tier = KafkaTier(tmp_path / "tier")
    tier.move(folder, [0, 3, 6, 9, 12, 15, 18, 20])
    restored(tier.root, tmp_path / "back")
    given = {"kafka.isolation.level": "read_committed"}
    assert offsets(tmp_path / "back", **given) == sorted(written.visible)


def test_what_is_there_already_is_not_written_over(log: Path, tmp_path: Path) -> None:
    tier = KafkaTier(tmp_path / "tier")
    tier.move(log / "t-0", [0, 10])
    (tmp_path / "back.restoring" / "half").mkdir(parents=True)  # of a run that was killed
    restored(tier.root, tmp_path / "back", "t")
    assert not (tmp_path / "back.restoring").exists()
    with pytest.raises(KafkaLogError, match="is not empty"):
        restored(tier.root, tmp_path / "back")
    with pytest.raises(KafkaLogError, match=r"segment\.ms is 'soon'"):
        restored(tier.root, tmp_path / "elsewhere", config={"segment.ms": "soon"})
    assert not (tmp_path / "elsewhere").exists()
    with pytest.raises(KafkaLogError, match="has nothing of other"):
        restored(tier.root, tmp_path / "elsewhere", "other")


def test_the_command_says_in_numbers_what_is_missing(log: Path, tmp_path: Path) -> None:
    tier = KafkaTier(tmp_path / "tier")
    tier.move(log / "t-0", [0, 10, 20])
    words = ["--from-tiers", str(tier.root), str(tmp_path / "back")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "t-0: offsets 0 to 20 in 2 segments" in done.stdout
    assert "nobody tells the settings of t" in done.stderr
    assert "not in a tier" in done.stderr
    left = tmp_path / "left"
    cluster_records.write_metadata(left, cluster_records.topic("t", tier.topic_id))
    write_checkpoint(left, "replication-offset-checkpoint", {"t-0": 37})
    words = [*words[:2], str(tmp_path / "again"), "--cluster-metadata", str(left)]
    done = CliRunner().invoke(app, words)
    assert "bytes, without the last 17, which were not uploaded" in done.stdout
    assert "nobody tells" not in done.stderr


def test_positions_that_were_not_tiered_are_counted(log: Path, tmp_path: Path) -> None:
    tier = KafkaTier(tmp_path / "tier")
    tier.move(log / "t-0", [0, 10, 20])
    left = Log(tmp_path / "left")
    for group, partition in (("a", "t-0"), ("b", "t-0"), ("b", "other-0")):
        left.commit_position(group, partition, 5)
    words = ["--from-tiers", str(tier.root), str(tmp_path / "back")]
    done = CliRunner().invoke(app, [*words, "--cluster-metadata", str(left.path)])
    assert done.exit_code == 0, done.output
    said = "2 positions of 2 consumer groups were not tiered, and are not restored"
    assert said in done.stderr.replace("\n", " ")
