"""What a broker does to a tiered topic while queries read it, and what its transactions are."""

from __future__ import annotations

import pickle
import random
from typing import TYPE_CHECKING

import pytest
from tests.support.logs import Row, append_batch, batch_bytes, write_checkpoint, write_segment
from tests.support.remote_records import segment_updated
from tests.support.tiers import KafkaTier, id_of, write_log, write_metadata
from tests.support.transactions import ABORT, COMMIT, BrokerLog

import kafkalog
from kafkalog.checkpoints.broker import LOG_START_OFFSET
from kafkalog.errors import DataLossError
from kafkalog.files import open_file, remote_store
from kafkalog.files.remote_store import RemoteStore
from kafkalog.files.system import system
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.source.batch_plan import plan_batch
from kafkalog.streaming.source.reading import read_split
from kafkalog.streaming.source.schema import ReadRows
from kafkalog.streaming.source.stream_control import StreamControl
from kafkalog.streaming.tiers import tiered_store

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from kafkalog.streaming.source.planner import LogSplit

ROWS = ReadRows.of(ReadOptions.parse({"path": "/log", "subscribe": "t"}), (), ()).of_records
HIGH_WATERMARK = "replication-offset-checkpoint"


class Topic:
    """A tiered topic, of which a broker moves and deletes segments of ten offsets."""

    def __init__(self, root: Path, *, says: bool) -> None:
        self.log = root / "log"
        self.tier = KafkaTier(root / "tier")
        self.folder = write_log(self.log, [0, 10, 20, 30], 40)
        self.says = says
        write_checkpoint(self.log, LOG_START_OFFSET, {"t-0": 0})
        write_checkpoint(self.log, HIGH_WATERMARK, {"t-0": 40})
        self.move(0)

    def move(self, *starts: int) -> None:
        """Upload segments, and delete them here."""
        for start in starts:
            self.tier.move(self.folder, [start, start + 10])
        if self.says:
            write_metadata(self.log, self.tier.records)

    def options(self, **given: str) -> ReadOptions:
        return ReadOptions.parse(
            {
                "path": str(self.log),
                "subscribe": "t",
                "startingOffsets": "earliest",
                "remote.path": str(self.tier.root),
                "fetchOffset.retryIntervalMs": "0",
                "storage.listInterval": "0",
                **given,
            }
        )


@pytest.fixture(params=[True, False], ids=["by records", "by listing"])
def topic(tmp_path: Path, request: pytest.FixtureRequest) -> Topic:
    return Topic(tmp_path, says=request.param)


def offsets(splits: Iterable[LogSplit], options: ReadOptions) -> list[int]:
    return [
        offset
        for split in splits
        for batch in read_split(split, options, ROWS)
        for offset in batch["offset"].to_pylist()
    ]


def in_another_process(splits: list[LogSplit]) -> list[LogSplit]:
    """Hand splits over as Spark does, to a process that knows nothing yet."""
    data = pickle.dumps(splits)
    for kind in (tiered_store._Tiers, remote_store._Stores, open_file._KnownFiles):
        system.memory.pop(kind, None)
    found: list[LogSplit] = pickle.loads(data)
    return found


def test_what_is_moved_between_planning_and_reading_is_read_from_the_store(topic: Topic) -> None:
    options = topic.options()
    splits = plan_batch(options)
    topic.move(10, 20)
    assert offsets(in_another_process(splits), options) == list(range(40))


def test_a_segment_that_is_moved_while_a_task_reads_is_there_once(topic: Topic) -> None:
    options = topic.options(minPartitions="8")
    splits = plan_batch(options)
    found: list[int] = []
    for number, split in enumerate(in_another_process(splits)):
        if number == 2:
            topic.move(10, 20)
        found += offsets([split], options)
    assert found == list(range(40))


def test_a_task_asks_for_the_objects_it_reads_and_lists_nothing(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = topic.options(endingOffsets='{"t":{"0":10}}')
    splits = in_another_process(plan_batch(options))
    monkeypatch.setattr(
        "kafkalog.streaming.tiers.tiered_store.Tier.view", lambda *_: pytest.fail("it looks")
    )
    monkeypatch.setattr(RemoteStore, "_list", lambda _: pytest.fail("it lists"))
    assert offsets(splits, options) == list(range(10))


def test_a_stream_begins_in_the_tier_and_goes_on_in_the_log(topic: Topic) -> None:
    options = topic.options(maxOffsetsPerTrigger="7")
    stream = StreamControl(options)
    position, found = stream.initial(), []
    for number in range(10):
        end = stream.next_end(position, take_all=False)
        found += offsets(in_another_process(stream.plan(position, end)), options)
        stream.batch_ran()
        position = end
        if number == 1:
            topic.move(10)
        if number == 3:
            topic.move(20, 30)
        if number == 5:
            append_batch(
                write_log(topic.log, [40], 44) / f"{40:020d}.log", batch_bytes(44, [Row()])
            )
            write_checkpoint(topic.log, HIGH_WATERMARK, {"t-0": 45})
    assert found == list(range(45))


def test_a_tier_alone_that_grows_is_streamed(topic: Topic) -> None:
    options = topic.options(path=str(topic.tier.root))
    stream = StreamControl(options)
    start = stream.initial()
    first = stream.next_end(start, take_all=False)
    assert offsets(stream.plan(start, first), options) == list(range(10))
    topic.move(10, 20)
    second = first
    while second == first:  # folders are listed some times a second
        second = stream.next_end(first, take_all=False)
    assert offsets(stream.plan(first, second), options) == list(range(10, 30))


def test_what_expires_in_the_tier_is_a_loss_for_who_was_to_read_it(tmp_path: Path) -> None:
    from tests.support.remote_records import DELETING, segment_updated

    topic = Topic(tmp_path, says=True)
    topic.move(10, 20)
    options = topic.options()
    splits = plan_batch(options)
    first = topic.tier.folder.glob(f"{0:020d}-*")
    (segment_id,) = {path.name[21:43] for path in first}
    gone = segment_updated("t", topic.tier.topic_id, 0, segment_id, DELETING)
    topic.tier.records.append(gone)
    write_metadata(topic.log, topic.tier.records)
    for path in topic.tier.folder.glob(f"{0:020d}-*"):
        path.unlink()
    assert offsets(plan_batch(options), options) == list(range(10, 40))
    with pytest.raises(DataLossError, match=r"t-0.*\[0, 10\).*the log starts at 10 now"):
        offsets(in_another_process(splits), options)
    kept = topic.options(failOnDataLoss="false")
    assert offsets(splits, kept) == list(range(10, 40))


@pytest.mark.parametrize("fail", ["true", "false"])
def test_what_is_deleted_out_of_the_middle_of_a_tier_is_a_loss_that_ends(
    topic: Topic, fail: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic.move(10, 20)
    options = topic.options(failOnDataLoss=fail, splitBytes="1")
    splits = in_another_process(plan_batch(options))
    for path in topic.tier.folder.glob(f"{10:020d}-*"):
        path.unlink()
    if topic.says:  # a broker has deleted a copy of which there was another one
        gone = id_of(10, 20, ((0, 0),), topic.folder)
        where = ("t", topic.tier.topic_id, 0, gone)
        write_metadata(topic.log, [*topic.tier.records, segment_updated(*where, state=2)])
    if fail == "true":
        with pytest.raises(DataLossError, match=r"before it: run the query again"):
            offsets(splits, options)
    else:
        assert offsets(splits, options) == [*range(10), *range(20, 40)]
        assert "before it" in caplog.text


@pytest.mark.parametrize("alone", [False, True], ids=["with the log", "alone"])
@pytest.mark.parametrize("says", [True, False])
def test_what_was_compacted_before_it_was_moved_is_a_hole_and_no_loss(
    tmp_path: Path, says: bool, alone: bool
) -> None:
    log, tier = tmp_path / "log", KafkaTier(tmp_path / "tier")
    write_log(log, [0, 10, 30, 40], 50)
    kept = {0: (3, 4), 10: (11, 12, 25), 30: (39,), 40: (40, 41)}
    for start, offsets in kept.items():  # 10 to 30 are two segments that a cleaner has joined
        rows = [batch_bytes(n, [Row(str(n).encode(), timestamp=1000 * n)]) for n in offsets]
        write_segment(log / "t-0", start, b"".join(rows), index=True)
    write_checkpoint(log, LOG_START_OFFSET, {"t-0": 0})
    write_checkpoint(log, "replication-offset-checkpoint", {"t-0": 42})
    tier.move(log / "t-0", [0, 10, 30, 40], says=says)
    write_metadata(log, tier.records)
    place = tier.root if alone else log
    given = {"remote.path": str(tier.root), "kafka.isolation.level": "read_committed"}
    there = [n for start, found in kept.items() for n in found if start < 40 or not alone]
    for begin in (0, 5, 13, 26, 31):
        start = {"startingOffsets": f'{{"t":{{"0":{begin}}}}}'}
        for options in (start, {"startingTimestamp": str(1000 * begin)}):
            found = kafkalog.read(place, "t", options=given | options).read_all()
            assert found["offset"].to_pylist() == [n for n in there if n >= begin]
    tail = kafkalog.tail(
        place, "t", idle_timeout=0.1, options={**given, "startingOffsets": "earliest"}
    )
    assert [n for batch in tail for n in batch["offset"].to_pylist()] == there


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("alone", [False, True], ids=["with the log", "alone"])
def test_committed_records_are_those_of_a_client_wherever_segments_lie(
    tmp_path: Path, seed: int, alone: bool
) -> None:
    chance = random.Random(seed)
    folder = tmp_path / "log" / "t-0"
    written = BrokerLog(folder)
    bounds = [0]
    for _ in range(60):
        producer = chance.randrange(4)
        match chance.choice(["append", "append", "append", "end", "roll"]):
            case "append":
                written.append(producer, chance.randrange(1, 4), transactional=producer > 0)
            case "end":
                written.end(producer, chance.choice([ABORT, COMMIT]))
            case "roll" if written.next_offset > bounds[-1]:
                written.roll()
                bounds.append(written.next_offset)
    for producer in list(written.opened):
        written.end(producer, COMMIT)
    written.write()
    bounds.append(written.next_offset)
    (folder / "partition.metadata").write_text(f"version: 0\ntopic_id: {KafkaTier.topic_id}")
    tier = KafkaTier(tmp_path / "tier")
    tier.move(folder, bounds if alone else bounds[: chance.randrange(2, len(bounds) + 1)])
    says = chance.random() < 0.5
    write_metadata(tmp_path / "log", tier.records if says else [])
    rows = kafkalog.read(
        tier.root if alone else tmp_path / "log",
        "t",
        options={"remote.path": str(tier.root), "kafka.isolation.level": "read_committed"},
    ).read_all()
    assert rows["offset"].to_pylist() == sorted(written.visible)
