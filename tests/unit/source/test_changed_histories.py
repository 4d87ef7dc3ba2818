"""Readers that continue above a change of history have a loss, each time, and none otherwise.

The tables here are those of docs/log.md: every reader, every way in which a log comes to end
lower, and how far it has grown since.
"""

from __future__ import annotations

import json
import shutil
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest
from tests.support.bucket_model import without_rests
from tests.support.consuming import keep_groups_small
from tests.support.copying import run_mirror
from tests.support.joining import Query
from tests.support.log_files import flip
from tests.support.logs import Row, batch_bytes, write_segment
from tests.support.replicated import away, path_of
from tests.support.tiers import TOPIC_ID, KafkaTier, write_metadata
from typer.testing import CliRunner

from kafkalog import Consumer
from kafkalog.checkpoints.broker import (
    HIGH_WATERMARK,
    LOG_START_OFFSET,
    PARTITION_METADATA,
    LeaderEpoch,
    write_leader_epochs,
    write_offset_checkpoint,
)
from kafkalog.checkpoints.commit_state import STATE_FILE
from kafkalog.errors import (
    CheckpointError,
    DataLossError,
    FencedMemberError,
    TargetMismatchError,
)
from kafkalog.files.objects import FolderObjects
from kafkalog.files.system import system
from kafkalog.jobs.cli.app import app
from kafkalog.jobs.inspection.lag import LagMeter, LagTargets
from kafkalog.jobs.inspection.records import RecordFilter, RecordReader
from kafkalog.jobs.mirroring import Mirror
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.broker.handover import take_over
from kafkalog.streaming.admin.nodes.elect import elect_unclean
from kafkalog.streaming.admin.recovery import recover
from kafkalog.streaming.admin.salvage import salvage
from kafkalog.streaming.api import append, read, tail
from kafkalog.streaming.log.history import Divergence, LastBatch
from kafkalog.streaming.log.segment import LogSegment
from kafkalog.streaming.objects import bucket_store
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.records.batch_layout import LEADER_EPOCH_POSITION, MAGIC_POSITION
from kafkalog.streaming.source.end_offsets import EndOffsets
from kafkalog.streaming.source.start import PositionValidator
from kafkalog.streaming.source.stream_control import StreamControl

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kafkalog.streaming.source.offsets import OffsetJson, PartitionOffsets

T0: Final = TopicPartition("t", 0)
EARLIEST: Final = {"startingOffsets": "earliest", "fetchOffset.retryIntervalMs": 1}
GROUP: Final = {**EARLIEST, "kafka.session.timeout.ms": 60_000, "kafka.heartbeat.interval.ms": 50}

CUT_AT: Final = 4
READ_TO: Final = 10
GROWN: Final = {"below": 6, "to": 10, "past": 14}


def write(path: str, values: list[str], **options: Any) -> None:
    """Append two rows at a time: a batch each."""
    for start in range(0, len(values), 2):
        rows = pa.table({"key": values[start : start + 2], "value": values[start : start + 2]})
        append(path, "t", rows, options={"numPartitions": 1, **options})


def values(prefix: str, start: int, end: int) -> list[str]:
    return [f"{prefix}{number}" for number in range(start, end)]


class Scene:
    """A log of 10 rows in 5 batches, which comes to end at 4, and grows again."""

    reading: Mapping[str, str] = MappingProxyType({})
    """What readers are told of where it lies."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch = folder, patch
        self.path = str(folder / "log")
        write(self.path, values("old", 0, CUT_AT))

    @property
    def log(self) -> Path:
        """The folder of the partition."""
        return Path(self.path, "t-0")

    def go_on(self) -> None:
        """Write the rest of what is read."""
        write(self.path, values("old", CUT_AT, READ_TO))

    def shorten(self) -> None:
        """Let the log end at 4."""
        raise NotImplementedError

    def grow(self, end: int) -> None:
        """Write other rows in the place of those that are gone, and further ones."""
        write(self.path, values("new", CUT_AT, end))

    def position(self) -> int:
        """Return where in the file the batch with offset 4 begins."""
        with LogSegment(self.log, 0) as segment:
            return [header.position for header in segment.headers(0)][CUT_AT // 2]


class Salvaged(Scene):
    """``kafkalog salvage --cut``."""

    def shorten(self) -> None:
        flip(self.log / f"{0:020d}.log", self.position() + 65)
        salvage([self.path], cut=[f"t-0@{CUT_AT}"])


class PowerLost(Scene):
    """``kafkalog recover --accept-os-loss``."""

    def go_on(self) -> None:
        write(self.path, values("old", CUT_AT, READ_TO), flush="os")

    def shorten(self) -> None:
        position = self.position()
        with (self.log / f"{0:020d}.log").open("r+b") as file:
            file.truncate(position)
        self.patch.setattr(system, "boot_id", lambda: "another run of the machine")
        recover([self.path], accept_lost_tail=True)


class PutBack(Scene):
    """An older copy of all log directories is put in their place."""

    def go_on(self) -> None:
        shutil.copytree(self.path, self.folder / "copy")
        super().go_on()

    def shorten(self) -> None:
        Path(self.path).rename(self.folder / "replaced")  # a member writes into it meanwhile
        shutil.copytree(self.folder / "copy", self.path)


class TakenOver(Scene):
    """A broker's log ends below its high watermark, ``kafkalog broker takeover`` lowers that."""

    def go_on(self) -> None:
        state = Path(self.path, STATE_FILE)
        before = state.read_bytes()
        super().go_on()
        state.write_bytes(before)  # a broker writes none of ours
        write_offset_checkpoint(Path(self.path), HIGH_WATERMARK, {T0: READ_TO})

    def shorten(self) -> None:
        position = self.position()
        with (self.log / f"{0:020d}.log").open("r+b") as file:
            file.truncate(position)
        take_over([self.path])


class Elected(Scene):
    """``kafkalog node elect --unclean``: the replica that has the rest is away."""

    options: Final = {"replication.factor": 2, "min.insync.replicas": 1}

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch = folder, patch
        self.path = path_of([folder / name for name in "abc"])
        write(self.path, values("old", 0, CUT_AT), **self.options)
        self.replicas = sorted(each.parent for each in folder.glob("*/t-0"))

    def go_on(self) -> None:
        self.behind = away(self.replicas[1])
        write(self.path, values("old", CUT_AT, READ_TO))

    def shorten(self) -> None:
        self.behind.rename(self.replicas[1])
        away(self.replicas[0])
        elect_unclean([self.path], "t")


class NodesSetBack(Scene):
    """Two nodes of three get their older copies, and the third one is away."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch = folder, patch
        self.nodes = [folder / name for name in "abc"]
        self.path = path_of(self.nodes)
        write(self.path, values("old", 0, CUT_AT))

    def go_on(self) -> None:
        for node in self.nodes[:2]:
            shutil.copytree(node, self.folder / "copies" / node.name)
        super().go_on()

    def shorten(self) -> None:
        for node in self.nodes[:2]:
            node.rename(self.folder / f"replaced {node.name}")
            shutil.copytree(self.folder / "copies" / node.name, node)
        away(self.nodes[2])


class BucketSetBack(Scene):
    """A log in a bucket, of which an older copy is put back; others append there meanwhile."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        without_rests(patch)
        self.bucket = folder / "bucket"
        patch.setattr(bucket_store, "open_objects", lambda _: FolderObjects(self.bucket))
        self.folder, self.patch, self.path = folder, patch, f"s3a://bucket{folder}"
        write(self.path, values("old", 0, CUT_AT))

    def go_on(self) -> None:
        shutil.copytree(self.bucket, self.folder / "copy")
        super().go_on()

    def shorten(self) -> None:
        # Whole: a member's thread looks at the bucket meanwhile.
        self.bucket.rename(self.folder / "replaced")
        (self.folder / "copy").rename(self.bucket)

    def grow(self, end: int) -> None:
        write(f"s3a://by/another/process{self.folder}", values("new", CUT_AT, end))

    def pass_minutes(self) -> None:
        """Let each look be one that looks whether the log was set back."""
        minutes = count(1)
        for name in ("boottime", "monotonic"):
            clock = getattr(system, name)
            self.patch.setattr(system, name, lambda clock=clock: clock() + 62 * next(minutes))


class TierScene(Scene):
    """A broker's log with a remote tier: a batch a segment, and all but the last have moved."""

    says = True
    """Whether ``__remote_log_metadata`` is there; else a listing tells what the tier has."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch = folder, patch
        self.path = str(folder / "log")
        self.tier = KafkaTier(folder / "tier")
        self.reading = {"remote.path": str(self.tier.root), "storage.listInterval": "0"}
        self.epochs, self.end = [LeaderEpoch(0, 0)], 0
        self.log.mkdir(parents=True)
        (self.log / PARTITION_METADATA).write_text(f"version: 0\ntopic_id: {TOPIC_ID}")
        self.write("old", CUT_AT)

    def go_on(self) -> None:
        self.write("old", READ_TO)

    def grow(self, end: int) -> None:
        self.write("new", end)

    def write(self, prefix: str, end: int, *, moves: bool = True) -> None:
        """Write in the epoch that is the latest."""
        for start in range(self.end, end, 2):
            rows = [Row(each.encode()) for each in values(prefix, start, start + 2)]
            data = bytearray(batch_bytes(start, rows))
            data[LEADER_EPOCH_POSITION:MAGIC_POSITION] = self.epochs[-1].epoch.to_bytes(4, "big")
            write_segment(self.log, start, bytes(data))
        self.end = end
        for start in range(0, end - 2 if moves else 0, 2):
            if (self.log / f"{start:020d}.log").exists():
                epoch = max(each.epoch for each in self.epochs if each.start_offset <= start)
                self.tier.move(self.log, [start, start + 2], epochs=[(epoch, start)])
        self.tell()

    def tell(self) -> None:
        """Write the files in which the broker says how it stands."""
        write_leader_epochs(self.log, self.epochs)
        write_offset_checkpoint(Path(self.path), LOG_START_OFFSET, {T0: 0})
        write_offset_checkpoint(Path(self.path), HIGH_WATERMARK, {T0: self.end})
        if self.says:
            write_metadata(Path(self.path), self.tier.records)


class TierElected(TierScene):
    """An unclean election: what the new leader has ends at 4, and its epoch begins there."""

    def shorten(self) -> None:
        for path in self.log.glob("*.log"):
            path.unlink()
        self.end = 0
        self.write("old", CUT_AT, moves=False)
        self.epochs.append(LeaderEpoch(1, CUT_AT))
        self.tell()


class TierPutBack(TierScene):
    """An older copy of the log directory and of its tier is put in their place."""

    places: Final = ("log", "tier")

    def go_on(self) -> None:
        for name in self.places:
            shutil.copytree(self.folder / name, self.folder / "copy" / name)
        self.records = [*self.tier.records]
        super().go_on()

    def shorten(self) -> None:
        for name in self.places:
            (self.folder / name).rename(self.folder / f"replaced {name}")
            shutil.copytree(self.folder / "copy" / name, self.folder / name)
        self.tier.records[:] = self.records
        self.end = CUT_AT


class LogPutBackOverTier(TierPutBack):
    """An older copy of the log directory is put back above a tier that has more."""

    places: Final = ("log",)


WAYS: Final = {each.__name__: each for each in (Salvaged, PowerLost, PutBack, TakenOver)}
OF_TIERS: Final = {each.__name__: each for each in (TierElected, TierPutBack, LogPutBackOverTier)}
OF_NODES: Final = {each.__name__: each for each in (Elected, NodesSetBack)}
SET_BACK: Final = {"PutBack", "NodesSetBack"}
"""Where the groups of a set go back with its logs."""


class Reader:
    """Reads up to 10; whoever commits does so at 4, too."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.begin()
        assert self.rows() == values("old", 0, CUT_AT)
        self.pause()
        scene.go_on()
        assert self.rows() == values("old", CUT_AT, READ_TO)
        self.pause()

    def begin(self) -> None:
        """Make what reads."""
        raise NotImplementedError

    def rows(self) -> list[str]:
        """Return the rows that come."""
        raise NotImplementedError

    def pause(self) -> None:
        """Do what is done between two reads."""

    def end(self) -> None:
        """Stop."""


class Tail(Reader):
    """``kafkalog.tail``."""

    def begin(self) -> None:
        options = {**self.options, **self.scene.reading}
        self.found = tail(self.scene.path, "t", idle_timeout=60, options=options)

    options: Mapping[str, Any] = EARLIEST

    def rows(self) -> list[str]:
        rows: list[str] = []
        while (len(rows) + self.came) % READ_TO not in {0, CUT_AT} or not rows:
            rows += texts(next(self.found).column("value"))
        self.came += len(rows)
        return rows

    came = 0


class Consumed(Tail):
    """``kafkalog consume --follow``."""

    def begin(self) -> None:
        given = {"path": self.scene.path, **self.options, **self.scene.reading}
        given = {name: str(given[name]) for name in given}
        reader = RecordReader.of(given, ["t"], RecordFilter())
        self.found = (each for split in reader.new_splits() for each in reader.read(split))


class Stream(Reader):
    """A streaming query, driven as Spark drives it."""

    options: Mapping[str, Any] = EARLIEST

    def begin(self) -> None:
        given = {"path": self.scene.path, "subscribe": "t", **self.options, **self.scene.reading}
        self.control = StreamControl(ReadOptions.parse({name: str(given[name]) for name in given}))
        if not self.offsets:
            self.offsets = self.control.initial()

    offsets: PartitionOffsets = MappingProxyType({})

    def rows(self) -> list[str]:
        found: list[str] = []
        for _ in range(3):
            end = self.control.next_end(self.offsets, take_all=False)
            if end != self.offsets and self.control.plan(self.offsets, end):
                found += read_values(
                    self.scene.path, self.offsets[T0], end[T0], **self.scene.reading
                )
            self.offsets = end
        return found


class StreamStartedAgain(Stream):
    """The same with ``stateLocation``, stopped and started again between reads."""

    def begin(self) -> None:
        self.options = {**type(self).options, "stateLocation": str(self.scene.folder / "state")}
        super().begin()

    pause = begin


class StreamOfNumbers(Stream):
    """The same without it: Spark's checkpoint has numbers only."""

    pause = Stream.begin


class Mirrored(Reader):
    """``kafkalog.jobs.mirror``, whose copy keeps what it holds."""

    def begin(self) -> None:
        self.copied = 0

    def rows(self) -> list[str]:
        folder = self.scene.folder
        copy, place = str(folder / "mirrored"), str(folder / "checkpoint")
        options = {"fetchOffset.retryIntervalMs": "10", **self.scene.reading}
        given = {"source": self.scene.path, "target": copy, "checkpoint": place}
        run_mirror(Mirror(**given, topics=("t",), options=options))
        found = read_values(copy, self.copied, -1)
        self.copied += len(found)
        return found


class Member(Reader):
    """``kafkalog.Consumer``."""

    options: Mapping[str, Any] = {**GROUP, "kafka.max.poll.interval.ms": 2**31 - 1}

    def begin(self) -> None:
        self.consumer = Consumer(self.scene.path, "g", "t", options=self.options)

    def rows(self) -> list[str]:
        found: list[str] = []
        # Each call ends by rows, or by what is raised: beside other tests some rounds later.
        while (rows := self.consumer.poll(0.0 if found else 600.0)) is not None:
            found += texts(rows.column("value"))
        return found

    def pause(self) -> None:
        self.consumer.commit()

    def end(self) -> None:
        self.consumer.close()


class MemberStartedAgain(Member):
    """The same; it leaves the group and joins it again between reads."""

    def pause(self) -> None:
        super().pause()
        self.consumer.close()
        self.begin()


class Left(MemberStartedAgain):
    """A member that has committed 10 and left; :meth:`rows` is what others see of its group."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self.consumer.close()
        self.has_left = True

    has_left = False

    def rows(self) -> list[str]:
        return self.seen() if self.has_left else super().rows()

    def seen(self) -> list[str]:
        """Look at where the group stands."""
        raise NotImplementedError


class GroupStart(Left):
    """``startingOffsets=group:g``."""

    def seen(self) -> list[str]:
        options = {**EARLIEST, "startingOffsets": "group:g"}
        found = tail(self.scene.path, "t", idle_timeout=0, options=options)
        return [each for rows in found for each in texts(rows.column("value"))]


class GroupConsumed(Left):
    """``kafkalog consume --group``."""

    def seen(self) -> list[str]:
        words = ["consume", self.scene.path, "-t", "t", "--group", "g", "--json"]
        done = CliRunner().invoke(app, [*words, "--set", "fetchOffset.retryIntervalMs=1"])
        if done.exit_code:
            raise DataLossError(done.stderr)
        return [json.loads(line)["value"] for line in done.stdout.splitlines()]


class Joined(Reader):
    """A streaming query with ``joinGroup``, driven as Spark drives it."""

    options: Mapping[str, Any] = MappingProxyType({})

    def begin(self) -> None:
        query = Query(Path(self.scene.path), "q", self.scene.folder / "checkpoint")
        query.source = {"subscribe": "t", **self.options}
        self.reader = query.start()
        self.start: OffsetJson = getattr(self, "start", {})

    def rows(self) -> list[str]:
        found: list[str] = []
        for _ in range(4):
            end = self.reader.latestOffset(self.start, self.reader.getDefaultReadLimit())
            if end != self.start:
                for task in self.reader.partitions(self.start, end):
                    found += [v for each in self.reader.read(task) for v in texts(each.column(0))]
                self.reader.commit(end)
            self.start = end
        return found

    def end(self) -> None:
        self.reader.control.stop()


class JoinedStartedAgain(Joined):
    """The same, stopped and started again between reads."""

    def pause(self) -> None:
        self.end()
        self.begin()


class GroupLag(Left):
    """``kafkalog lag --group``."""

    def seen(self) -> list[str]:
        (row,) = LagMeter([self.scene.path], LagTargets(groups=["g"])).look()
        if row["lag"] is None:
            raise DataLossError("the position is of another log")
        return values("new", row["offset"], row["end"])


ALONE: Final = (Tail, Consumed, Stream, StreamStartedAgain, Mirrored)
WHILE_RUNNING: Final = (Member, Joined)
OF_LEFT: Final = (GroupStart, GroupConsumed, GroupLag)
OF_GROUP: Final = (*WHILE_RUNNING, MemberStartedAgain, JoinedStartedAgain, *OF_LEFT)


def texts(column: pa.Array) -> list[str]:
    return [each.decode() if isinstance(each, bytes) else each for each in column.to_pylist()]


def read_values(path: str, start: int, end: int, **given: str) -> list[str]:
    options = {"startingOffsets": {"t": {"0": start}}, "endingOffsets": {"t": {"0": end}}, **given}
    return texts(read(path, "t", options=options).read_all().combine_chunks().column("value"))


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_groups_small(monkeypatch)


def grown_in_turn(kinds: Sequence[type[Reader]], ways: Iterable[str]) -> list[Any]:
    """Give each reader in each way with one growth, in turn; `make nightly` runs the other two."""
    return [
        pytest.param(kind, way, grown, marks=() if (k + w) % 3 == g else pytest.mark.nightly)
        for k, kind in enumerate(kinds)
        for w, way in enumerate(ways)
        for g, grown in enumerate(GROWN)
    ]


CASES: Final = grown_in_turn(ALONE + OF_GROUP, WAYS)
CASES_OF_NODES: Final = [
    pytest.param(k, way, grown, marks=() if grown == "past" else pytest.mark.nightly)
    for k in ALONE + OF_GROUP
    if k not in WHILE_RUNNING  # whose files lie on a node that goes away, has to join again
    for way in OF_NODES
    for grown in GROWN
]
LOSSES: Final = (DataLossError, TargetMismatchError)


@pytest.mark.parametrize(("kind", "way", "grown"), [*CASES, *CASES_OF_NODES])
def test_a_reader_that_continues_above_a_change_of_history_has_a_loss(
    kind: type[Reader], way: str, grown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = (WAYS | OF_NODES)[way](tmp_path, monkeypatch)
    reader = kind(scene)
    scene.shorten()
    scene.grow(GROWN[grown])
    try:
        if way in SET_BACK and kind in {*OF_GROUP} - {Member}:  # the group stands at 4 again
            assert reader.rows() == values("new", CUT_AT, GROWN[grown])
        elif way in {*SET_BACK, "TakenOver"} and kind in WHILE_RUNNING:
            with pytest.raises((DataLossError, FencedMemberError)):
                reader.rows()
        else:
            with pytest.raises(LOSSES):
                reader.rows()
    finally:
        reader.end()


@pytest.mark.parametrize("says", [True, False], ids=["by records", "by listing"])
@pytest.mark.parametrize(("kind", "way", "grown"), grown_in_turn(ALONE, OF_TIERS))
def test_a_reader_that_continues_in_a_tiered_log_of_another_history_has_a_loss(
    kind: type[Reader],
    way: str,
    grown: str,
    says: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(TierScene, "says", says)
    scene = OF_TIERS[way](tmp_path, monkeypatch)
    reader = kind(scene)
    scene.shorten()
    scene.grow(GROWN[grown])
    with pytest.raises(LOSSES):
        reader.rows()


def test_of_a_client_s_position_in_a_tiered_log_the_leader_epoch_tells_what_was_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = TierElected(tmp_path, monkeypatch)
    scene.go_on()
    options = ReadOptions.parse({"path": scene.path, "subscribe": "t", **scene.reading})

    def find_diverged() -> dict[TopicPartition, Divergence]:
        logs = EndOffsets.of(options, lambda _: True)
        validator = PositionValidator(logs)
        validator.add(T0, READ_TO, LastBatch.from_epoch(READ_TO, 0))
        logs.look()
        return validator.find_diverged({T0: READ_TO})

    assert find_diverged() == {}
    scene.shorten()
    scene.grow(GROWN["past"])
    assert find_diverged()[T0].cut_at == CUT_AT


@pytest.mark.parametrize("grown", GROWN)
@pytest.mark.parametrize("kind", [Tail, Consumed, Stream, Member])
def test_a_reader_that_runs_is_told_that_its_bucket_was_set_back(
    kind: type[Reader], grown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = BucketSetBack(tmp_path, monkeypatch)
    reader = kind(scene)
    scene.shorten()
    scene.grow(GROWN[grown])
    scene.pass_minutes()
    with pytest.raises(CheckpointError, match=r"the bucket was set back|does not follow commit"):
        [reader.rows() for _ in range(9)]


@pytest.mark.parametrize("grown", GROWN)
@pytest.mark.parametrize(
    "kind",
    [StreamStartedAgain, StreamOfNumbers, Mirrored, MemberStartedAgain, *OF_LEFT],
)
def test_a_reader_that_begins_again_in_a_bucket_that_was_set_back_has_a_loss(
    kind: type[Reader], grown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = BucketSetBack(tmp_path, monkeypatch)
    reader = kind(scene)
    reader.end()
    scene.shorten()
    scene.grow(GROWN[grown])
    monkeypatch.setattr(system, "memory", {})
    if kind not in OF_LEFT:
        reader.begin()
    if kind in {MemberStartedAgain, *OF_LEFT}:  # the group stands at 4 again
        assert reader.rows() == values("new", CUT_AT, GROWN[grown])
    elif kind is StreamOfNumbers and grown != "below":
        assert reader.rows() == values("new", READ_TO, GROWN[grown])
    else:
        with pytest.raises(LOSSES):
            reader.rows()


@pytest.mark.parametrize("grown", GROWN)
@pytest.mark.parametrize("way", ["Salvaged", "PutBack"])
def test_a_stream_that_keeps_numbers_only_notices_a_cut_below_its_position_and_no_other(
    way: str, grown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the table of the docs calls "not seen": Spark's checkpoint is all that it has."""
    scene = WAYS[way](tmp_path, monkeypatch)
    reader = StreamOfNumbers(scene)
    scene.shorten()
    scene.grow(GROWN[grown])
    if grown == "below":
        with pytest.raises(DataLossError):
            reader.rows()
    else:
        assert reader.rows() == values("new", READ_TO, GROWN[grown])


@pytest.mark.parametrize("way", ["Salvaged", "PowerLost", "PutBack"])
@pytest.mark.parametrize("kind", [Stream, StreamStartedAgain, Member, MemberStartedAgain, Joined])
def test_a_reader_that_may_lose_data_is_told_once_and_goes_on(
    kind: type[Reader],
    way: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Where the leader epochs tell the cut, it reads all that came after it."""
    monkeypatch.setattr(kind, "options", {**kind.options, "failOnDataLoss": "false"})
    scene = WAYS[way](tmp_path, monkeypatch)
    reader = kind(scene)
    scene.shorten()
    scene.grow(GROWN["past"])
    is_set_back = way == "PutBack" and kind in {MemberStartedAgain, Joined}  # its group is at 4
    first = CUT_AT if way != "PutBack" or is_set_back else READ_TO
    try:
        assert reader.rows() == values("new", first, GROWN["past"])
        if way == "PutBack" and kind is Member:  # the group stands elsewhere than it began
            with pytest.raises(FencedMemberError, match="stands at 4"):
                reader.pause()
        else:
            reader.pause()
            write(scene.path, ["further", "on"])
            assert reader.rows() == ["further", "on"]
    finally:
        reader.end()
    told = [each for each in caplog.messages if "another history" in each]
    assert len(told) == (not is_set_back)
