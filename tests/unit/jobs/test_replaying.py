"""Which part of a range is due when it is played again, by a clock that nobody waits for."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.copying import run_replay
from tests.support.logs import Row, append_batch, batch_bytes, write_checkpoint, write_segment
from tests.support.sinking import Writer, rows
from tests.support.sleeping import patch_sleep
from typer.testing import CliRunner

import kafkalog
from kafkalog.checkpoints.broker import HIGH_WATERMARK
from kafkalog.checkpoints.sealed_file import seal
from kafkalog.errors import (
    CheckpointError,
    CommitError,
    DataLossError,
    OptionError,
    TargetMismatchError,
    UnknownTopicOrPartitionError,
)
from kafkalog.files.system import system
from kafkalog.jobs.cli.app import app
from kafkalog.jobs.pipelines.replay_checkpoint import FILE, Piece, ReplayCheckpoint
from kafkalog.jobs.pipelines.replaying import Replay, parse_speed
from kafkalog.jobs.pipelines.restore_plan import Until
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.retention import delete_records
from kafkalog.streaming.admin.topics import alter, create, delete

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
START_MS = 1_700_000_000_000


class Clock:
    """Passes only while somebody sleeps."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        patch.setattr(system, "monotonic", lambda: self.now)
        patch_sleep(patch, self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def log(tmp_path: Path) -> str:
    """Give records of 0, 10 and 60 s in one partition, and of 5, 3 and 7 s in the other."""
    seconds = {0: [0, 10, 60], 1: [5, 3, 7]}
    writer = Writer(tmp_path / "log", topic="t", numPartitions="2")
    for number, each in seconds.items():
        stamps = [START_MS + 1000 * second for second in each]
        writer.write(number, rows(["v"] * 3, partitions=[number] * 3, timestamps=stamps))
    return str(tmp_path / "log")


def played(clock: Clock, log: str, **given: Any) -> list[tuple[float, int, int]]:
    """Give when each piece was due, s, and up to which offsets."""
    replay = Replay(log=log, topics=("t",), **given)
    replay.check()
    return [
        (round(clock.now, 1), piece.end[T0], piece.end[T1])
        for piece in replay.pieces(opened(None))
        if piece is not None
    ]


def opened(folder: Path | None, **what: str) -> ReplayCheckpoint:
    return ReplayCheckpoint.open(None if folder is None else str(folder), what)


def next_piece(pieces: Iterator[Piece | None]) -> Piece:
    return next(piece for piece in pieces if piece is not None)


@pytest.mark.parametrize("speed", [1.0, 2.0])
def test_records_are_due_when_as_much_time_has_passed_as_in_the_log(
    clock: Clock, log: str, speed: float
) -> None:
    due = played(clock, log, speed=speed)
    assert [ends for _, *ends in due] == [[1, 0], [1, 2], [1, 3], [2, 3], [3, 3]]
    for (at, *_), second in zip(due, (0, 5, 7, 10, 60), strict=True):
        assert 0 <= at - second / speed <= 0.5


def test_as_fast_as_it_goes_all_is_due_at_once(clock: Clock, log: str) -> None:
    assert played(clock, log) == [(0.0, 3, 3)]


def test_a_range_begins_and_ends_at_offsets_or_times(clock: Clock, log: str) -> None:
    since = Until.parse('{"t":{"0":1}}', "--from")
    assert played(clock, log, since=since, until=Until({}, START_MS + 7000)) == [(0.0, 1, 2)]
    late = Replay(log=log, topics=("t",), since=Until({}, START_MS + 6000))
    assert next_piece(late.pieces(opened(None))).start == {T0: 1, T1: 2}
    assert played(clock, log, since=Until({}, START_MS + 8000), speed=1.0)[-1][1:] == (3, 3)


def test_a_range_without_records_is_played_at_once(clock: Clock, log: str) -> None:
    since = Until({}, START_MS + 70_000)
    assert played(clock, log, since=since, speed=1.0) == []


def test_a_piece_has_so_many_offsets_at_most(clock: Clock, log: str) -> None:
    assert [ends for _, *ends in played(clock, log, most=2)] == [[1, 1], [2, 2], [3, 3]]


def test_what_comes_later_is_played_when_it_is_followed(clock: Clock, log: str) -> None:
    pieces = Replay(log=log, topics=("t",), speed=1.0, follow=True).pieces(opened(None))
    while next_piece(pieces).end != {T0: 3, T1: 3}:
        pass
    for looks in range(3):
        assert next(pieces) is None, looks
    assert 60 <= clock.now < 62
    late = rows(["w"], partitions=[1], timestamps=[START_MS + 90_000])
    Writer(Path(log), topic="t").write(2, late)
    assert next_piece(pieces).end == {T0: 3, T1: 4}
    assert 90 <= clock.now < 91


def test_a_piece_that_was_begun_comes_again_with_its_number_and_what_has_ended_does_not(
    log: str, tmp_path: Path
) -> None:
    replay, folder = Replay(log=log, topics=("t",), most=2), tmp_path / "c" / "d"
    checkpoint = opened(folder, TARGET="x")
    first = next_piece(replay.pieces(checkpoint))
    again = opened(folder, TARGET="x")
    assert (again.id, again.unfinished) == (checkpoint.id, first)
    pieces = replay.pieces(again)
    assert next_piece(pieces) == first
    again.note_end()
    second = next_piece(pieces)
    assert second == Piece(1, first.end, {T0: 2, T1: 2})
    again.note_end()

    ended = opened(folder, TARGET="x")
    assert (ended.unfinished, ended.reached) == (None, second.end)
    assert next_piece(replay.pieces(ended)) == Piece(2, second.end, {T0: 3, T1: 3})


def test_a_checkpoint_of_something_else_or_a_damaged_one_is_refused(
    log: str, tmp_path: Path
) -> None:
    folder = tmp_path / "c"
    next_piece(Replay(log=log, topics=("t",)).pieces(opened(folder, TARGET="x")))
    with pytest.raises(
        OptionError, match=r"of another replay: its TARGET is '.*/x', and '.*/y' was"
    ):
        opened(folder, TARGET="y")
    with pytest.raises(OptionError, match="has files, and none of them is a replay's"):
        opened(tmp_path)
    (folder / FILE).write_bytes((folder / FILE).read_bytes()[:-9])
    with pytest.raises(CheckpointError, match="Give another folder, and --from"):
        opened(folder, TARGET="x")


@pytest.mark.parametrize("text", ["fast", "0", "-1", "nan", "inf"])
def test_a_speed_is_a_number_above_0_or_max(text: str) -> None:
    with pytest.raises(OptionError, match=r"--speed is .*, expected a number above 0, or max"):
        parse_speed(text)


def test_what_is_not_there_is_refused(log: str) -> None:
    with pytest.raises(UnknownTopicOrPartitionError):
        Replay(log=log, topics=("u",)).check()
    with pytest.raises(OptionError, match="--follow has no end: leave out --until"):
        Replay(log=log, topics=("t",), follow=True, until=Until({}, 1)).check()
    with pytest.raises(OptionError, match=r"--until 1970-.* leaves nothing: --from is 1970-"):
        Replay(log=log, topics=("t",), since=Until({}, 5), until=Until({}, 5)).check()
    with pytest.raises(OptionError, match="--until names t-7, which is not in what is played"):
        Replay(log=log, topics=("t",), until=Until({TopicPartition("t", 7): 3})).check()


@pytest.mark.parametrize(
    ("name", "value", "way"),
    [
        ("startingOffsets", "latest", "--from"),
        ("startingOffsetsByTimestamp", '{"t": {"0": 1}}', "--from"),
        ("startingTimestamp", "1", "--from"),
        ("stopAtOffsets", '{"t": {"0": 1}}', "--until"),
        ("endingTimestamp", "1", "--until"),
    ],
)
def test_options_by_which_pieces_would_be_read_elsewhere_are_refused(
    log: str, name: str, value: str, way: str
) -> None:
    with pytest.raises(OptionError, match=f"'{name}' is not for a replay: {way}"):
        Replay(log=log, topics=("t",), options={name: value}).check()


def test_without_follow_it_ends_where_the_log_ended_when_it_began(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "log", topic="t")
    writer.write(0, rows(["a"] * 3))
    ends = []
    for piece in Replay(log=str(tmp_path / "log"), topics=("t",)).pieces(opened(None)):
        ends.append(piece and piece.end[T0])
        writer.write(len(ends), rows(["b"]))
        assert len(ends) < 5
    assert ends == [3]


@pytest.mark.parametrize("follow", [True, False])
@pytest.mark.parametrize("way", ["recreated", "put back"])
def test_a_log_that_is_another_one_after_a_piece_is_not_played_on(
    tmp_path: Path, clock: Clock, log: str, way: str, *, follow: bool
) -> None:
    """Where nothing keeps how far a replay is, as on the terminal or without a checkpoint."""
    del clock
    shutil.copytree(log, tmp_path / "copy")
    both = rows(["v"] * 18, partitions=[0, 1] * 9)
    kafkalog.append(log, "t", both)
    replay = Replay(log=log, topics=("t",), most=4, follow=follow)
    pieces = replay.pieces(opened(None))
    for _ in range(4):
        assert next(pieces) is not None
    if way == "recreated":
        delete([log], "t")
    else:
        shutil.rmtree(log)
        shutil.copytree(tmp_path / "copy", log)
    kafkalog.append(log, "t", both, options={"numPartitions": 2})
    with pytest.raises(DataLossError, match="recreated" if way == "recreated" else "history"):
        next(pieces)


def test_a_directory_that_was_away_for_a_look_is_not_played_again(
    tmp_path: Path, clock: Clock
) -> None:
    there = [tmp_path / "a", tmp_path / "b"]
    writer = Writer(*there, topic="t", numPartitions="2")
    writer.write(0, rows(["v"] * 4, partitions=[0, 0, 1, 1]))
    for options in ({}, {"failOnDataLoss": "false"}):
        replay = Replay(log=",".join(map(str, there)), topics=("t",), follow=True, options=options)
        pieces = replay.pieces(checkpoint := opened(tmp_path / f"c{len(options)}"))
        assert next(pieces) is not None
        checkpoint.note_end()
        assert next(pieces) is None
        there[1].rename(tmp_path / "away")
        there[1].mkdir()
        if options:
            assert next(pieces) is None
        else:
            with pytest.raises(DataLossError, match="t-1 from 2"):
                next(pieces)
        there[1].rmdir()
        (tmp_path / "away").rename(there[1])
        assert next(pieces, None) is None
        assert checkpoint.reached == {T0: 2, T1: 2}


def test_a_topic_that_was_made_anew_is_not_played_from_the_old_offsets(
    tmp_path: Path, clock: Clock
) -> None:
    log = str(tmp_path / "log")
    Writer(log, topic="t").write(0, rows(["old"] * 3))
    for _ in Replay(log=log, topics=("t",)).pieces(checkpoint := opened(tmp_path / "c")):
        checkpoint.note_end()
    delete([log], "t")
    Writer(log, topic="t", name="else").write(0, rows(["new"] * 4))
    with pytest.raises(DataLossError, match="'t' was deleted and recreated"):
        next(Replay(log=log, topics=("t",)).pieces(opened(tmp_path / "c")))


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_broker_that_has_started_says_less_for_a_while_and_nothing_is_lost(
    tmp_path: Path, clock: Clock, *, is_cut: bool
) -> None:
    log = tmp_path / "log"
    batches = [batch_bytes(first, [Row()] * 3) for first in (0, 3)]
    write_segment(log / "t-0", 0, b"".join(batches))
    write_checkpoint(log, HIGH_WATERMARK, {"t-0": 6})
    pieces = Replay(log=str(log), topics=("t",), follow=True).pieces(checkpoint := opened(None))
    assert next(pieces) == Piece(0, {T0: 0}, {T0: 6}, frozenset({T0}))
    checkpoint.note_end()
    assert next(pieces) is None
    write_checkpoint(log, HIGH_WATERMARK, {"t-0": 3})
    if is_cut:
        (log / "t-0" / f"{0:020d}.log").write_bytes(batches[0])
        with pytest.raises(DataLossError, match="t-0 from 6 to 3"):
            next(pieces)
        return
    assert next(pieces) is None
    append_batch(log / "t-0" / f"{0:020d}.log", batch_bytes(6, [Row()]))
    write_checkpoint(log, HIGH_WATERMARK, {"t-0": 7})
    assert next(pieces) == Piece(1, {T0: 6}, {T0: 7})


def test_an_end_below_what_was_played_leaves_nothing(tmp_path: Path, clock: Clock) -> None:
    log = str(tmp_path / "log")
    Writer(log, topic="t").write(0, rows(["v"] * 3))
    for _ in Replay(log=log, topics=("t",)).pieces(checkpoint := opened(tmp_path / "c")):
        checkpoint.note_end()
    sooner = Replay(log=log, topics=("t",), until=Until({T0: 1}))
    assert next(sooner.pieces(opened(tmp_path / "c")), "end") == "end"


def test_a_checkpoint_is_of_places_whatever_the_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slash more, a link, a way from here: the same replay, and not the same from elsewhere."""
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    folder = str(tmp_path / "c")

    def at(log: str, target: str = "-", topics: str = "t,u") -> ReplayCheckpoint:
        return ReplayCheckpoint.open(folder, {"LOG": log, "TARGET": target, "topics": topics})

    first = at("a,b")
    first.note_begin({T0: 0}, {T0: 3})
    for log in ("a/,b", f"{tmp_path}/a,./b", "link/b,a", f"file://{tmp_path}/a,b/"):
        assert at(log).reached == {T0: 3}
    assert at("a,b", topics="u,t").reached == {T0: 3}
    monkeypatch.chdir(tmp_path / "other")
    for log, target in (("a,b", "-"), ("../a,../b", "kafka:h:9092"), ("../a;../b", "-")):
        with pytest.raises(OptionError, match="is of another replay"):
            at(log, target)
    assert at("../a,../b").reached == {T0: 3}


def test_a_checkpoint_of_an_earlier_release_has_its_paths_as_they_were_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = {"what": {"LOG": "a", "TARGET": "kafka:h:9092"}, "id": "i", "number": 0}
    line |= {"from": {"t": {"0": 0}}, "to": {"t": {"0": 3}}, "ended": True}
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / FILE).write_bytes(seal(FILE, 1, [line]))
    what = {"LOG": f"{tmp_path}/a/", "TARGET": "kafka:h:9092"}
    assert ReplayCheckpoint.open("c", what).reached == {T0: 3}


# Who was set back


class Again:
    """A topic of two partitions that is played into another log, in pieces of two offsets."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.written = 0

    def write(self, count: int = 3) -> None:
        for _ in range(count):
            placed = rows([f"v{self.written}"], partitions=[self.written % 2])
            kafkalog.append(self.folder / "source", "t", placed, options={"numPartitions": 2})
            self.written += 1

    def play(self, step: Callable[[str], None] = lambda _: None, **given: Any) -> None:
        places = {name: str(self.folder / name) for name in ("source", "target", "checkpoint")}
        run_replay(**{**places, "most": 2, "step": step} | given)

    def values(self, name: str, topic: str = "t") -> list[bytes]:
        found = kafkalog.read(self.folder / name, topic, columns=["value"]).read_all()
        return sorted(found["value"].to_pylist())

    def saved(self, name: str) -> Callable[[], None]:
        kept = self.folder / f"{name}.{self.written}"
        shutil.copytree(self.folder / name, kept)

        def put_back() -> None:
            shutil.rmtree(self.folder / name, ignore_errors=True)
            shutil.copytree(kept, self.folder / name)

        return put_back

    def check(self, name: str = "target", topic: str = "t") -> None:
        assert self.values(name, topic) == self.values("source")

    def play_elsewhere(self, way: str) -> None:
        """Follow what leaves the target as it is, and go on there."""
        before = self.values("target")
        elsewhere: dict[str, str] = {"checkpoint": str(self.folder / "c2")}
        if way == "another TARGET":
            elsewhere["target"] = str(self.folder / "other")
        else:
            elsewhere["name"] = "again"
        place = ("other", "t") if way == "another TARGET" else ("target", "again")
        for _ in range(2):
            self.play(**elsewhere)
            self.check(*place)
            self.write()
        assert self.values("target") == before

    def refused(self, says: str, *ways: str, **given: Any) -> None:
        before = self.values("target") if (self.folder / "target" / "t-0").exists() else None
        with pytest.raises(TargetMismatchError) as caught:
            self.play(**given)
        assert says in (text := str(caught.value))
        assert [way for way in ("--from-target", "another TARGET") if way in text] == [*ways]
        assert "; ;" not in text
        if before is not None:
            assert self.values("target") == before


@pytest.fixture
def again(tmp_path: Path) -> Again:
    again = Again(tmp_path)
    again.write()
    again.play()
    again.check()
    return again


def test_an_older_checkpoint_of_a_replay_continues_where_its_target_ends(again: Again) -> None:
    put_back = again.saved("checkpoint")
    again.write()
    again.play()
    again.write(4)
    delete_records([str(again.folder / "source")], {T0: 1})
    put_back()
    again.play()
    again.play()
    assert again.values("target") == sorted(b"v%d" % number for number in range(10))


def test_a_piece_that_comes_again_is_there_once(again: Again) -> None:
    again.write(6)

    def step(name: str) -> None:
        if name == "piece taken":
            raise InterruptedError

    for _ in range(4):
        with pytest.raises(InterruptedError):
            again.play(step)
    again.play()
    again.check()


@pytest.mark.parametrize("way", ["--from-target", "another TARGET"])
@pytest.mark.parametrize("what", ["back", "removed", "deleted"])
def test_a_target_of_a_replay_that_was_set_back_is_refused(
    again: Again, what: str, way: str
) -> None:
    put_back = again.saved("target")
    again.write()
    again.play()
    again.write()
    if what == "back":
        put_back()
    elif what == "removed":
        shutil.rmtree(again.folder / "target")
    else:
        delete([str(again.folder / "target")], "t")
    again.refused("continues above the end of TARGET", "--from-target", "another TARGET")
    if way == "--from-target":
        again.play(from_target=True)
        again.check()
        again.write()
        again.play()
        again.check()
    else:
        folder = again.folder
        again.play(target=str(folder / "other"), checkpoint=str(folder / "c2"))
        again.check("other")


@pytest.mark.parametrize("begun", [False, True])
def test_a_target_of_fewer_partitions_gets_more_by_the_command_that_the_refusal_names(
    again: Again, begun: bool
) -> None:
    source, given = str(again.folder / "source"), {}
    if begun:
        alter([source], "t", partitions=3)
        kafkalog.append(source, "t", rows(["v"], partitions=[2]))
    else:
        create([str(again.folder / "other")], "t")
        given = {"target": str(again.folder / "other"), "checkpoint": str(again.folder / "c2")}
    with pytest.raises(OptionError, match="partitions in TARGET") as caught:
        again.play(**given)
    (command,) = re.findall(r"`kafkalog (topic alter PATH [^`]+)`", str(caught.value))
    target = given.get("target", str(again.folder / "target"))
    done = CliRunner().invoke(app, shlex.split(command.replace("PATH", target)))
    assert done.exit_code == 0, done.output
    for _ in range(2):
        again.play(**given)
        again.check("target" if begun else "other")
        again.write()


ELSEWHERE = ("another TARGET", "another topic by --as")


@pytest.mark.parametrize(("count", "way"), [(2, ELSEWHERE[0]), (9, ELSEWHERE[1])])
def test_a_recreated_topic_is_not_played_after_the_one_before(
    again: Again, count: int, way: str
) -> None:
    delete([str(again.folder / "source")], "t")
    again.write(count)
    again.refused("another topic of the same name", "another TARGET")
    again.refused("another topic of the same name", "another TARGET", from_target=True)
    again.play_elsewhere(way)


def test_a_recreated_topic_of_more_partitions_lets_nobody_alter_what_holds_the_one_before(
    again: Again,
) -> None:
    delete([str(again.folder / "source")], "t")
    create([str(again.folder / "source")], "t", partitions=3)
    again.write(4)
    again.refused("another topic of the same name", "another TARGET")
    again.play_elsewhere("another TARGET")


@pytest.mark.parametrize(("grown", "way"), [(0, ELSEWHERE[0]), (6, ELSEWHERE[1])])
def test_a_topic_that_was_put_back_is_not_played_after_what_it_had(
    again: Again, grown: int, way: str
) -> None:
    put_back = again.saved("source")
    again.write(2)
    again.play()
    put_back()
    again.write(grown)
    again.refused("cut, or restored", "another TARGET")
    again.play_elsewhere(way)


def test_of_two_replays_of_one_checkpoint_at_once_one_plays(again: Again) -> None:
    again.write()
    twin = again.saved("checkpoint")

    def step(name: str) -> None:
        if name == "piece decided":
            again.play()

    with pytest.raises(CommitError, match="another job copies the same"):
        again.play(step)
    again.check()
    twin()
    again.play()
    again.check()


def test_two_that_begin_one_replay_at_once_play_it_once(again: Again) -> None:
    given = {"target": str(again.folder / "other"), "checkpoint": str(again.folder / "c2")}

    def step(name: str) -> None:
        if name == "prepared":
            again.play(**given)

    again.play(step, **given)
    again.check("other")


@pytest.mark.parametrize("what", ["deleted", "removed"])
def test_a_recreated_topic_is_played_with_another_checkpoint_where_its_target_is_gone(
    again: Again, what: str
) -> None:
    delete([str(again.folder / "source")], "t")
    again.write(4)
    if what == "deleted":
        delete([str(again.folder / "target")], "t")
    else:
        shutil.rmtree(again.folder / "target")
    with pytest.raises(DataLossError, match="Give another --checkpoint"):
        again.play()
    for _ in range(2):
        again.play(checkpoint=str(again.folder / "c2"))
        again.check()
        again.write()


def test_only_a_log_keeps_how_far_a_replay_is(again: Again) -> None:
    with pytest.raises(OptionError, match="nothing else keeps how far a replay is"):
        again.play(target="-", from_target=True, checkpoint=str(again.folder / "c2"))
