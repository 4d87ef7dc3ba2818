"""``kafkalog lag``: how far groups and queries are behind, in offsets, bytes and time."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support.coordinator_corpus import group_offsets, offsets_logs
from tests.support.corpus import UnpackedCase
from tests.support.counted_work import calls_of, io_of
from tests.support.sleeping import patch_sleep
from typer.testing import CliRunner

import kafkalog
from kafkalog.files.system import system
from kafkalog.jobs.cli.app import app
from kafkalog.jobs.inspection import lag as group_readers
from kafkalog.jobs.inspection.lag import LagMeter, LagTargets
from kafkalog.jobs.inspection.units import shown_duration
from kafkalog.jobs.pipelines.replay_checkpoint import ReplayCheckpoint
from kafkalog.model import OFFSETS_TOPIC, TopicPartition
from kafkalog.streaming.coordinator.group_replay import partition_for_group, read_group_positions
from kafkalog.streaming.groups.administration import GroupWriter
from kafkalog.streaming.log import segment
from kafkalog.streaming.records import columns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kafkalog.files.open_file import OpenFile
    from kafkalog.streaming.coordinator.group_replay import ReplayRecord
    from kafkalog.streaming.log.partition_log import PartitionLog

STAMP = 1_700_000_000_000
NOW = STAMP + 3_700_000


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a topic of two partitions, each with 10 batches of 3 records, a second apart."""
    folder = tmp_path / "log"
    for number in range(10):
        table = pa.table(
            {
                "value": ["x" * 1000] * 6,
                "partition": pa.array([0, 1] * 3, pa.int32()),
                "timestamp": pa.array([STAMP + number * 1000] * 6, pa.timestamp("ms")),
            }
        )
        options = {"numPartitions": "2", "index.interval.bytes": "1"}
        kafkalog.append(folder, "t", table, options=options)
    monkeypatch.setattr(system, "time_ns", lambda: NOW * 1_000_000)
    return folder


def checkpoint_at(folder: Path, *batches: str, ended: int, version: str = "v1") -> Path:
    """Write what Spark writes of batches whose sources ended as it is said, a line for each."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    (folder / "metadata").write_text('{"id":"5c2f"}')
    for number, sources in enumerate(batches):
        (folder / "offsets" / str(number)).write_text(
            f'{version}\n{{"batchWatermarkMs":0}}\n{sources}'
        )
        (folder / "offsets" / f".{number}.crc").write_bytes(b"crc")
        if number < ended:
            (folder / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    return folder


def call(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["lag", *map(str, words)])
    return done.exit_code, done.output


def measured(*words: object, code: int = 0) -> list[dict[str, Any]]:
    found, text = call(*words, "--json")
    assert found == code, text
    return json_lines(text)


def json_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def test_what_waits_is_measured_in_offsets_bytes_and_time(log: Path) -> None:
    size = (log / "t-0" / f"{0:020d}.log").stat().st_size
    unread, read = measured(log, "--offsets", '{"t":{"0":18,"1":30}}')
    assert unread == {
        "reader": "offsets",
        "topic": "t",
        "partition": 0,
        "offset": 18,
        "end": 30,
        "lag": 12,
        "bytes": size * 4 // 10,
        "nextTimestamp": STAMP + 6000,
        "behindMs": NOW - STAMP - 6000,
    }
    assert (read["lag"], read["bytes"], read["nextTimestamp"], read["behindMs"]) == (0, 0, None, 0)
    (inside,) = measured(log, "--offsets", '{"t":{"0":19,"1":30}}')[:1]
    assert (inside["lag"], inside["nextTimestamp"]) == (11, STAMP + 6000)


def test_headers_tell_the_time_of_the_next_record_and_nothing_is_decoded(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meter = LagMeter([str(log)], LagTargets(offsets='{"t":{"0":18,"1":27}}'))
    monkeypatch.delattr(columns, "RecordDecoder")
    first, second = meter.look()
    assert (first["nextTimestamp"], second["nextTimestamp"]) == (STAMP + 6000, STAMP + 9000)


def test_people_read_units(log: Path) -> None:
    code, text = call(log, "--offsets", '{"t":{"0":18}}')
    assert code == 0
    header, first, second = (line.split() for line in text.splitlines())
    assert header == ["reader", "topic", "partition", "offset", "end", "lag", "bytes", "behind"]
    assert first[:6] == ["offsets", "t", "0", "18", "30", "12"]
    assert first[7:] == ["KiB", "1", "h", "1", "min"]
    assert second[3:5] == ["30", "30"]  # no offset yet: from the log start on


@pytest.mark.parametrize(
    ("version", "sources"),
    [
        ("v1", ['{"t":{"0":6}}', '{"t":{"0":18,"1":9}}', '{"t":{"0":30,"1":30}}']),
        ("v1", ['-\n{"t":{"0":6}}', '{"t":{"0":21}}\n{"t":{"0":18,"1":9}}', "-\n-"]),
        ("v2", ['0:{"t":{"0":6}}', 'a:{"t":{"0":18,"1":9}}\nb:-', '0:{"t":{"0":30,"1":30}}']),
    ],
)
def test_a_checkpoint_counts_up_to_the_last_batch_that_ended(
    log: Path, tmp_path: Path, version: str, sources: list[str]
) -> None:
    folder = checkpoint_at(tmp_path / "c", *sources, ended=2, version=version)
    rows = measured(log, "--checkpoint", folder)
    assert [(row["reader"], row["offset"], row["lag"]) for row in rows] == [
        (str(folder), 18, 12),
        (str(folder), 9, 21),
    ]


def test_a_query_that_has_ended_no_batch_has_all_before_it(log: Path, tmp_path: Path) -> None:
    folder = checkpoint_at(tmp_path / "c", '{"t":{"0":6,"1":6}}', ended=0)
    rows = measured(log, "--checkpoint", folder)
    assert [(row["offset"], row["lag"]) for row in rows] == [(None, 30), (None, 30)]


def test_a_source_of_another_kind_is_left_out_with_a_word(
    log: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    delta = '{"sourceVersion":1,"reservoirId":"5c2f","reservoirVersion":3,"index":-1}'
    mixed = checkpoint_at(tmp_path / "mixed", f'{delta}\n{{"t":{{"0":18}}}}', ended=1)
    assert [row["lag"] for row in measured(log, "--checkpoint", mixed)] == [12, 30]
    assert "source 0 counts no offsets of Kafka" in caplog.text
    other = checkpoint_at(tmp_path / "other", delta, ended=1)
    code, text = call(log, "--checkpoint", other)
    assert (code, len(text.splitlines())) == (1, 1)
    assert "has no source that counts Kafka's offsets" in text
    unknown = checkpoint_at(tmp_path / "unknown", '{"t":{"0":18}}', ended=1, version="v9")
    assert "begins with 'v9'" in call(log, "--checkpoint", unknown)[1]


def test_the_checkpoint_of_a_replay_is_known(log: Path, tmp_path: Path) -> None:
    checkpoint = ReplayCheckpoint.open(str(tmp_path / "replay"), {"log": "a", "target": "b"})
    checkpoint.note_begin({TopicPartition("t", 0): 0}, {TopicPartition("t", 0): 24})
    checkpoint.note_end()
    rows = measured(log, "--checkpoint", tmp_path / "replay")
    assert [(row["offset"], row["lag"]) for row in rows] == [(24, 6), (None, 30)]
    checkpoint.note_begin({TopicPartition("t", 0): 24}, {TopicPartition("t", 0): 30})
    rows = measured(log, "--checkpoint", tmp_path / "replay")
    assert rows[0]["lag"] == 6  # it may have been killed since


def test_groups_stand_where_a_broker_says(tmp_path: Path) -> None:
    path = UnpackedCase("p09-groups", tmp_path).path
    ends = json_lines(CliRunner().invoke(app, ["offsets", str(path), "--json"]).output)
    known = {TopicPartition(row["topic"], row["partition"]): row["end"] for row in ends}
    code, text = call(path, "--json")
    rows = json_lines(text)
    lags = {(row["reader"], row["topic"], row["partition"]): row["lag"] for row in rows}
    assert lags == {
        (group, *key): known[key] - offset if offset <= known[key] else None
        for group, places in group_offsets("p09-groups").items()
        for key, (offset, _, _) in places.items()
    }
    assert (code, None in lags.values()) == (1, True), "a group stands above the ends of logs"
    assert all((row["bytes"] or 0) > 0 or not row["lag"] for row in rows)
    name = rows[0]["reader"]
    assert {row["reader"] for row in measured(path, "--group", name)} == {name}
    code, text = call(path, "--group", "nobody")
    assert (code, len(text.splitlines()), name in text) == (2, 1, True)


def test_one_topic_can_be_asked_for_and_must_be_there(log: Path) -> None:
    kafkalog.append(log, "u", pa.table({"value": ["x"]}))
    words = ("--offsets", '{"t":{"0":18},"u":{"0":0}}')
    assert {row["topic"] for row in measured(log, *words, "--topic", "u")} == {"u"}
    assert call(log, *words, "--topic", "v")[0] == 2


def test_watch_looks_again_and_tells_when(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []

    def rest(seconds: float) -> None:
        if seconds != 7:
            return  # an append that waits for its turn
        rests.append(seconds)
        if len(rests) == 3:
            raise KeyboardInterrupt
        kafkalog.append(
            log, "t", pa.table({"value": ["x"], "partition": pa.array([0], pa.int32())})
        )

    with monkeypatch.context() as patch:
        patch_sleep(patch, rest)
        _, text = call(
            log, "--offsets", '{"t":{"0":30,"1":30}}', "--watch", "--every", "7s", "--json"
        )
    rows = json_lines(text)
    assert rests == [7, 7, 7]
    assert [(row["time"], row["lag"]) for row in rows if row["partition"] == 0] == [
        (NOW, 0),
        (NOW, 1),
        (NOW, 2),
    ]


def test_watch_shows_the_names_once_where_it_is_read_on(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    delta = '{"sourceVersion":1,"reservoirId":"5c2f","reservoirVersion":3,"index":-1}'
    folder = checkpoint_at(tmp_path / "c", f'{delta}\n{{"t":{{"0":18,"1":30}}}}', ended=1)
    rests: list[float] = []

    def rest(seconds: float) -> None:
        rests.append(seconds)
        if rests.count(7) == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch_sleep(patch, rest)
        code, text = call(log, "--checkpoint", folder, "--watch", "--every", "7s")
    header, *rows = text.strip().splitlines()
    assert (code, header.split()[:3]) == (130, ["time", "reader", "topic"])
    assert len(rows) == 6
    assert {row.split()[0] for row in rows} == {"2023-11-14T23:15:00.000Z"}
    assert len({row.index("KiB") for row in rows[::2]}) == 1
    assert caplog.text.count("counts no offsets of Kafka") == 1, "once, not at each look"


def test_the_log_of_a_partition_is_opened_for_its_end_and_for_its_lag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pa.table({"value": ["x"] * 6, "partition": pa.array([0, 1, 2] * 2, pa.int32())})
    kafkalog.append(tmp_path, "t", table, options={"numPartitions": "3"})
    opened: Counter[str] = Counter()
    open_file = segment.open_file

    def counted(path: Path | str) -> OpenFile:
        opened[str(path).removeprefix(f"{tmp_path}/")] += 1
        return open_file(path)

    monkeypatch.setattr(segment, "open_file", counted)
    rows = LagMeter([str(tmp_path)], LagTargets(offsets='{"t":{"0":0}}')).look()
    assert [(row["lag"], row["bytes"] > 0, row["nextTimestamp"] > 0) for row in rows] == [
        (2, True, True)
    ] * 3
    assert opened == {f"t-{partition}/{0:020d}.log": 2 for partition in range(3)}


def test_the_log_of_a_partition_that_holds_nothing_is_opened_for_its_end_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafkalog.append(tmp_path, "t", pa.table({"value": ["x"]}), options={"numPartitions": "5"})
    opened: Counter[str] = Counter()
    open_file = segment.open_file

    def counted(path: Path | str) -> OpenFile:
        opened[Path(path).name] += 1
        return open_file(path)

    monkeypatch.setattr(segment, "open_file", counted)
    calls = calls_of(LagMeter([str(tmp_path)], LagTargets(offsets='{"t":{"0":0}}')).look)
    assert opened == {f"{0:020d}.log": 6}
    assert calls["module.open"] <= 3 * 5 + 3, "log and topic id, and the index of one that has rows"


def test_a_look_at_what_is_as_before_opens_and_reads_nothing(tmp_path: Path) -> None:
    path = UnpackedCase("p09-groups", tmp_path).path
    meter = LagMeter([path], LagTargets())
    first = meter.look()
    for _ in range(100):  # what was made just now is looked at again until it would show a change
        calls = calls_of(meter.look)
        if not calls["module.open"]:
            break
        time.sleep(0.1)
    folders = sum(1 for each in Path(path).iterdir() if each.is_dir())
    assert (calls["module.open"], calls["module.scandir"], calls["module.preadv"]) == (0, 0, 0)
    assert calls["module.stat"] <= len(first) + folders + 20
    assert io_of(meter.look)["syscr"] <= 3  # of the measurement itself
    names = ("reader", "topic", "partition", "offset", "end", "lag", "bytes")
    assert [[row[each] for each in names] for row in meter.look()] == [
        [row[each] for each in names] for row in first
    ]


def test_a_look_sees_what_becomes_of_a_log_that_does_not_grow(log: Path) -> None:
    meter = LagMeter([str(log)], LagTargets(offsets='{"t":{"0":18}}'))
    assert [row["lag"] for row in meter.look()] == [12, 30]
    done = CliRunner().invoke(app, ["delete-records", str(log), "--offsets", '{"t":{"1":21}}'])
    assert done.exit_code == 0, done.output
    assert [row["lag"] for row in meter.look()] == [12, 9]
    # another topic of that name, which ends where the earlier one did
    assert CliRunner().invoke(app, ["delete", str(log), "--topic", "t"]).exit_code == 0
    table = pa.table({"value": ["y"] * 60, "partition": pa.array([0, 1] * 30, pa.int32())})
    kafkalog.append(log, "t", table, options={"numPartitions": "2"})
    fresh = LagMeter([str(log)], LagTargets(offsets='{"t":{"0":18}}')).look()
    assert meter.look() == fresh
    assert [row["lag"] for row in fresh] == [12, 30]


def test_positions_are_replayed_from_where_the_last_look_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = offsets_logs("p09-groups", tmp_path)
    starts: list[int] = []
    replay = group_readers.replay_records

    def noting(log: PartitionLog, start: int, end: int) -> Iterator[ReplayRecord]:
        starts.append(start)
        return replay(log, start, end)

    monkeypatch.setattr(group_readers, "replay_records", noting)
    for number, log in enumerate(logs):
        key = TopicPartition(OFFSETS_TOPIC, number)
        watch: Any = OneLog(log)
        followed = group_readers.GroupReaders()
        starts.clear()
        ends = range(log.log_end_offset() + 1)
        for end in ends:  # transactions are open at some of them
            found = {reader.name: reader.positions for reader in followed.look(watch, {key: end})}
            assert found == {
                group: {place: at.offset for place, at in positions.items()}
                for group, positions in read_group_positions(log, end).items()
            }
        assert starts == [0, *ends[:-1]]
        followed.look(watch, {key: ends[-1]})
        assert len(starts) == len(ends), "nothing new: nothing read"


def test_of_a_named_group_nothing_of_the_others_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafkalog.append(tmp_path, "t", pa.table({"value": ["x"] * 6}))
    for number in range(8):
        GroupWriter([str(tmp_path)], f"g-{number}").commit({TopicPartition("t", 0): number})
    read: list[str] = []
    replay = group_readers.replay_records

    def noting(log: PartitionLog, start: int, end: int) -> Iterator[ReplayRecord]:
        read.append(log.directory.name)
        return replay(log, start, end)

    monkeypatch.setattr(group_readers, "replay_records", noting)
    (row,) = LagMeter([str(tmp_path)], LagTargets(groups=["g-3"])).look()
    assert (row["reader"], row["lag"]) == ("g-3", 3)
    assert read == [f"{OFFSETS_TOPIC}-{partition_for_group('g-3')}"]


@pytest.mark.parametrize("is_elsewhere", [False, True], ids=["as a broker", "elsewhere"])
def test_named_groups_stand_where_all_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_elsewhere: bool
) -> None:
    """A group may lie in another partition: of a copy, some partitions may be missing."""
    path = UnpackedCase("p09-groups", tmp_path).path
    monkeypatch.setattr(system, "time_ns", lambda: NOW * 1_000_000)
    rows = LagMeter([path], LagTargets()).look()
    if is_elsewhere:
        monkeypatch.setattr(group_readers, "partition_for_group", lambda *_: 10_000)
    for name in {row["reader"] for row in rows}:
        found = LagMeter([path], LagTargets(groups=[name])).look()
        assert found == [row for row in rows if row["reader"] == name]


class OneLog:
    """Stands for a watch that has one log."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self._ids: dict[TopicPartition, str | None] = {}

    def topic_ids(self) -> dict[TopicPartition, str | None]:
        return self._ids

    @staticmethod
    def is_changed_id(*_: str) -> bool:
        return False

    def standing(self, _: TopicPartition) -> tuple[None, int, None]:
        return None, 0, None

    @contextmanager
    def open(self, _: TopicPartition) -> Iterator[PartitionLog]:
        yield self._log


@pytest.mark.long
@pytest.mark.parametrize("on_terminal", [True, False])
@pytest.mark.parametrize("words", [["lag", "--watch"], ["dump", "--topic", "t", "--follow"]])
def test_an_interrupt_ends_what_follows_without_a_trace(
    log: Path, words: list[str], *, on_terminal: bool
) -> None:
    command, *options = words
    if command == "lag":
        options += ["--offsets", '{"t":{"0":18}}']
    main = "from kafkalog.jobs.cli.app import main; main()"
    line = [sys.executable, "-c", main, command, str(log), *options]
    ours, theirs = pty.openpty() if on_terminal else os.pipe()
    with subprocess.Popen(
        line, stdin=subprocess.DEVNULL, stdout=theirs, stderr=subprocess.PIPE, text=True
    ) as process:
        os.close(theirs)
        shown = b""
        while (b"18 " if command == "lag" else b"xxx") not in shown:
            shown += os.read(ours, 65536)
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # how a terminal ends
            while os.read(ours, 65536):
                pass
        assert process.stderr is not None
        assert (process.wait(60), process.stderr.read().strip()) == (130, "")
    os.close(ours)


def test_a_next_record_that_is_damaged_hides_no_lag(
    log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    segment = log / "t-0" / f"{0:020d}.log"
    data = bytearray(segment.read_bytes())
    data[len(data) * 6 // 10 + 100] ^= 1
    segment.write_bytes(data)
    damaged, _ = measured(log, "--offsets", '{"t":{"0":18,"1":30}}')
    assert (damaged["lag"], damaged["nextTimestamp"], damaged["behindMs"]) == (12, None, None)
    assert "t-0: the next record cannot be read" in caplog.text


@pytest.mark.parametrize(
    ("milliseconds", "expected"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1999, "1 s"),
        (61_000, "1 min 1 s"),
        (3_600_000, "1 h"),
        (11_100_000, "3 h 5 min"),
        (90_000_000, "1 d 1 h"),
    ],
)
def test_durations_are_shown_in_two_units(milliseconds: int, expected: str) -> None:
    assert shown_duration(milliseconds) == expected
