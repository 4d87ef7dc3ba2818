"""A log directory and a tier of Kafka's own layout are one log; a tier alone is one, too."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest
from tests.support.logs import write_checkpoint
from tests.support.tiers import TOPIC_ID, KafkaTier, write_log, write_metadata

import kafkalog
from kafkalog.checkpoints.broker import LOG_START_OFFSET
from kafkalog.errors import DataLossError, KafkaLogError, LogDirectoryError, OptionError
from kafkalog.files.system import system

if TYPE_CHECKING:
    from pathlib import Path

AT_ONCE = {"fetchOffset.retryIntervalMs": "0", "fetchOffset.numRetries": "1"}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Give t-0 with the offsets 0 to 40 in segments of ten."""
    log = tmp_path / "log"
    write_log(log, [0, 10, 20, 30], 40)
    write_checkpoint(log, LOG_START_OFFSET, {"t-0": 0})
    write_checkpoint(log, "replication-offset-checkpoint", {"t-0": 40})
    return log


@pytest.fixture
def tier(tmp_path: Path) -> KafkaTier:
    return KafkaTier(tmp_path / "tier")


def values(path: Path | None, tier: KafkaTier, topic: str = "t", **options: str) -> list[int]:
    given = {**AT_ONCE, "remote.path": str(tier.root), **options}
    rows = kafkalog.read(path or tier.root, topic, options=given).read_all()
    assert rows["offset"].to_pylist() == [int(value) for value in rows["value"].to_pylist()]
    return rows["offset"].to_pylist()


@pytest.mark.parametrize("says", [True, False])
def test_what_a_broker_has_moved_is_read_before_what_it_has(
    log: Path, tier: KafkaTier, says: bool
) -> None:
    tier.move(log / "t-0", [0, 10, 20], says=says)
    write_metadata(log, tier.records)
    assert values(log, tier) == list(range(40))
    assert values(log, tier, startingOffsets='{"t":{"0":7}}', endingOffsets='{"t":{"0":23}}') == (
        list(range(7, 23))
    )
    assert values(log, tier, startingTimestamp="13000", endingTimestamp="33000") == (
        list(range(13, 33))
    )


@pytest.mark.parametrize("says", [True, False])
def test_a_log_without_a_local_segment_is_read_from_its_tier(
    log: Path, tier: KafkaTier, says: bool
) -> None:
    tier.move(log / "t-0", [0, 10, 20, 30, 40], says=says)
    write_metadata(log, tier.records)
    assert values(log, tier) == list(range(40))


def test_a_tier_alone_is_a_log_directory(log: Path, tier: KafkaTier) -> None:
    tier.move(log / "t-0", [0, 10, 20])
    assert values(None, tier) == list(range(20))
    rows = kafkalog.read(tier.root, "t", options={"remote.path": f"file://{tier.root}"})
    assert len(rows.read_all()) == 20


def test_a_local_segment_comes_before_a_copy_of_it(log: Path, tier: KafkaTier) -> None:
    for start in (0, 10, 20):
        tier.upload(log / "t-0", start, start + 10)
    for copy in tier.folder.glob("*10-*.log"):
        copy.write_bytes(b"no batch")
    write_metadata(log, tier.records)
    assert values(log, tier) == list(range(40))


def test_an_unfinished_copy_is_no_segment(log: Path, tier: KafkaTier) -> None:
    tier.move(log / "t-0", [0, 10])
    tier.upload(log / "t-0", 10, 20, finished=False)
    for copy in tier.folder.glob("*10-*"):
        copy.write_bytes(b"half")
    write_metadata(log, tier.records)
    assert values(log, tier) == list(range(40))


def test_what_neither_has_is_a_loss_that_is_named(log: Path, tier: KafkaTier) -> None:
    tier.move(log / "t-0", [0, 10])
    for path in (log / "t-0").glob(f"{10:020d}.*"):
        path.unlink()
    write_metadata(log, tier.records)
    with pytest.raises(DataLossError, match=r"t-0.*\[10, 20\)"):
        values(log, tier)
    kept = values(log, tier, failOnDataLoss="false")
    assert kept == [*range(10), *range(20, 40)]


def test_an_object_that_is_gone_is_named(log: Path, tier: KafkaTier) -> None:
    tier.move(log / "t-0", [0, 10, 20])
    write_metadata(log, tier.records)
    (gone,) = tier.folder.glob(f"{10:020d}-*.log")
    gone.unlink()
    with pytest.raises(DataLossError, match=gone.name):
        values(log, tier)


@pytest.mark.parametrize("says", [True, False])
@pytest.mark.parametrize("lost", [(10,), (0,), (0, 20), (0, 10, 20)])
def test_what_a_tier_has_lost_is_left_out_where_a_loss_does_not_fail(
    log: Path, tier: KafkaTier, says: bool, lost: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    tier.move(log / "t-0", [0, 10, 20, 30], says=says)
    write_metadata(log, tier.records)
    for start in lost:
        (gone,) = tier.folder.glob(f"{start:020d}-*.log")
        gone.unlink()
    left = [offset for offset in range(40) if offset // 10 * 10 not in lost]
    bounds = {"startingOffsets": '{"t":{"0":5}}', "endingOffsets": '{"t":{"0":25}}'}
    for options in ({}, bounds, {"startingTimestamp": "13000"}):
        first, last = {0: (0, 40), 1: (13, 40), 2: (5, 25)}[len(options)]
        wanted = [offset for offset in left if first <= offset < last]
        assert values(log, tier, failOnDataLoss="false", **options) == wanted
        is_loss = any(first < start + 10 and start < last for start in lost)
        with pytest.raises(DataLossError) if is_loss else nullcontext():
            values(log, tier, **options)
    assert f"[{lost[0]}, " in caplog.text


@pytest.mark.parametrize("says", [True, False])
def test_a_tier_that_begins_above_the_log_start_is_said_once(
    log: Path, tier: KafkaTier, says: bool, caplog: pytest.LogCaptureFixture
) -> None:
    tier.move(log / "t-0", [0, 10, 20], says=says)
    tier.records[:2] = []
    write_metadata(log, tier.records)
    for path in tier.folder.glob(f"{0:020d}-*"):
        path.unlink()
    for _ in range(2):
        assert values(log, tier) == list(range(10, 40))
    (said,) = [each.message for each in caplog.records if "its broker says" in each.message]
    assert "starts at offset 0" in said
    assert "is at 10" in said


def test_the_folder_of_a_partition_does_not_go_on_in_a_tier(log: Path, tier: KafkaTier) -> None:
    tier.move(log / "t-0", [0, 10, 20])
    with pytest.raises(OptionError, match="name the log directory around it"):
        values(log / "t-0", tier)


def test_a_wrong_tier_is_no_empty_one(log: Path, tier: KafkaTier, tmp_path: Path) -> None:
    tier.move(log / "t-0", [0, 10, 20], says=False)
    other = KafkaTier(tmp_path / "other", topic="u")
    other.upload(write_log(tmp_path / "elsewhere", [0], 5, name="u-0"), 0, 5)
    with pytest.raises(DataLossError, match=r"t-0.*\[0, 20\).*neither"):
        values(log, other)
    (tmp_path / "empty").mkdir()
    with pytest.raises(LogDirectoryError, match=r"remote\.layout"):
        values(log, KafkaTier(tmp_path / "empty"))


@pytest.mark.parametrize("split", ["1g", "1"])
def test_where_a_listing_tells_a_copy_that_ends_early_hides_nothing(
    tier: KafkaTier, tmp_path: Path, split: str
) -> None:
    one = write_log(tmp_path / "one", [0, 30], 40)
    other = write_log(tmp_path / "other", [10, 16, 20], 24)
    tier.upload(one, 0, 30)
    tier.upload(one, 30, 40)
    for start, end in ((10, 16), (16, 20), (20, 24)):
        tier.upload(other, start, end)
    assert values(None, tier, splitBytes=split) == list(range(40))
    assert values(None, tier, startingOffsets='{"t":{"0":27}}') == list(range(27, 40))


def test_another_topic_of_the_name_is_not_read(log: Path, tier: KafkaTier) -> None:
    old = KafkaTier(tier.root, topic_id="ZZZZZwQFBgcICQoLDA0ODw")
    old.upload(log / "t-0", 0, 10)
    tier.move(log / "t-0", [0, 10, 20], says=False)
    assert values(log, tier) == list(range(40))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"remote.layout": "kafka"}, "needs remote.path"),
        ({"remote.encryption.keys": "a=/k"}, "needs remote.path"),
        ({"remote.path": "/tier", "remote.layout": "other"}, "accepts one of kafka, aiven"),
        ({"remote.path": "/tier", "remote.encryption.keys": "/k"}, "accepts key ids with files"),
        ({"remote.path": "ftp:tier"}, "remote.path"),
        ({"remote.path": __file__}, "which is a file: name the folder"),
        ({"remote.path": "/tier", "remote.encryption.keys": "a=/no/k"}, "the file of 'a', /no/k"),
        (
            {
                "remote.path": "/tier",
                "remote.layout": "kafka",
                "remote.encryption.keys": f"a={__file__}",
            },
            "is for remote.layout=aiven",
        ),
        ({"remote.path": "/tier", "path": "s3://bucket/log"}, "the log directories of brokers"),
        ({"remote.path": "/tier", "path": "/a;/b;witness:/c"}, "the log directories of brokers"),
        (
            {"remote.path": "/tier", "joinGroup": "true", "kafka.group.id": "g"},
            "cannot be used with joinGroup",
        ),
    ],
)
def test_options_that_contradict_themselves_are_refused_at_once(
    options: dict[str, str], reason: str
) -> None:
    from kafkalog.streaming.options.read_options import ReadOptions

    with pytest.raises(KafkaLogError, match=reason):
        ReadOptions.parse({"path": "/log", "subscribe": "t", **options})


def count_rests(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Give the rests that are taken between tries, but by threads that other tests have left."""
    rests: list[float] = []
    others, original = sys._current_frames().keys() - {threading.get_ident()}, system.sleep

    def sleep(seconds: float) -> None:
        (original if threading.get_ident() in others else rests.append)(seconds)

    monkeypatch.setattr(system, "sleep", sleep)
    return rests


@pytest.mark.parametrize("what", ["FIFO", "folder"])
def test_what_is_no_file_in_an_object_s_place_is_refused_at_once(
    log: Path, tier: KafkaTier, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    tier.move(log / "t-0", [0, 10])
    write_metadata(log, tier.records)
    (path,) = tier.folder.glob(f"{0:020d}-*.log")
    path.unlink()
    os.mkfifo(path) if what == "FIFO" else path.mkdir()
    rests = count_rests(monkeypatch)
    with pytest.raises(KafkaLogError, match=rf"{path.name} is a {what}.* move it away"):
        values(log, tier)
    assert not any(rests)


@pytest.mark.parametrize("what", ["a FIFO", "a folder", "no bytes", "nothing"])
def test_a_segment_without_its_log_is_told(log: Path, tier: KafkaTier, what: str) -> None:
    tier.move(log / "t-0", [0, 10, 20])
    (path,) = tier.folder.glob(f"{10:020d}-*.log")
    path.unlink()
    if what != "nothing":
        {"a FIFO": os.mkfifo, "a folder": os.mkdir, "no bytes": os.mknod}[what](path)
    is_other = what in {"a FIFO", "a folder"}
    error = LogDirectoryError if is_other else DataLossError
    with pytest.raises(error, match=what if is_other else f"{path.name} is not there"):
        values(log, tier)


def test_a_tier_below_a_file_is_refused_at_once(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    rests = count_rests(monkeypatch)
    options = {"remote.path": str(tmp_path / "file" / "below")}
    with pytest.raises(KafkaLogError, match=r"Not a directory.* must be a folder"):
        kafkalog.read(log, "t", options=options)
    assert not any(rests)


def test_the_topic_id_is_that_of_the_tier(log: Path, tier: KafkaTier) -> None:
    from kafkalog.checkpoints.broker import read_topic_id
    from kafkalog.files.paths import as_path
    from kafkalog.streaming.options.read_options import ReadOptions

    tier.move(log / "t-0", [0, 10])
    options = ReadOptions.parse({"remote.path": str(tier.root), "subscribe": "t"})
    (alone,) = options.paths
    assert read_topic_id(as_path(alone) / "t-0") == TOPIC_ID


def test_partitions_lie_in_several_directories_and_in_the_tier_alone(
    log: Path, tier: KafkaTier, tmp_path: Path
) -> None:
    other = tmp_path / "second"
    one = write_log(other, [0, 4], 8, name="t-1")
    write_checkpoint(other, "replication-offset-checkpoint", {"t-1": 8})
    gone = write_log(tmp_path / "gone", [0], 6, name="t-2")
    tier.move(log / "t-0", [0, 10, 20])
    for number, folder, bounds in ((1, one, [0, 4]), (2, gone, [0, 6])):
        partition = KafkaTier(tier.root, partition=number, records=tier.records)
        partition.move(folder, bounds)
    write_metadata(other, tier.records)
    given = {**AT_ONCE, "remote.path": str(tier.root)}
    rows = kafkalog.read([log, other], "t", options=given).read_all()
    found = sorted(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))
    ends = {0: 40, 1: 8, 2: 6}
    assert found == [(number, n) for number, end in ends.items() for n in range(end)]


def test_a_tier_that_is_named_by_its_inner_folder_is_found(log: Path, tier: KafkaTier) -> None:
    tier.move(log / "t-0", [0, 10, 20])
    inner = KafkaTier(tier.root / "kafka-tiered-storage")
    assert values(log, inner) == list(range(40))
    assert values(None, inner) == list(range(20))


def test_an_empty_tier_is_named_as_it_was_given(log: Path, tier: KafkaTier) -> None:
    tier.root.mkdir(exist_ok=True)
    with pytest.raises(LogDirectoryError, match=rf"{tier.root} holds nothing that looks like"):
        values(log, tier)
