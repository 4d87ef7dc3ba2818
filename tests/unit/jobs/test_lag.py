"""``kafkalog lag``: how far groups and queries are behind, in offsets, bytes and time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support.coordinator_corpus import group_offsets
from tests.support.corpus import UnpackedCase
from typer.testing import CliRunner

import kafkalog
from kafkalog.files.system import system
from kafkalog.jobs.cli.app import app
from kafkalog.jobs.replay_checkpoint import ReplayCheckpoint
from kafkalog.jobs.units import shown_duration
from kafkalog.model import TopicPartition

if TYPE_CHECKING:
    from pathlib import Path

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
        patch.setattr(system, "sleep", rest)
        _, text = call(log, "--offsets", '{"t":{"0":30,"1":30}}', "--watch", "--every", 7, "--json")
    rows = json_lines(text)
    assert rests == [7, 7, 7]
    assert [(row["time"], row["lag"]) for row in rows if row["partition"] == 0] == [
        (NOW, 0),
        (NOW, 1),
        (NOW, 2),
    ]


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
