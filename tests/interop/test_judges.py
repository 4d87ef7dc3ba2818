"""The judges are judged: silent on what a real broker wrote, and never silent on planted faults."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from tests.support.archives import unpack
from tests.support.dump_log import dump_log_segments, partition_files
from tests.support.kafka import Broker, Topic, ZooKeeperBroker, serve
from tests.support.odd_logs import ODD_LOGS, topic_of

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.interop

CASE: Final = Path(__file__).parents[1] / "data" / "corpus" / "p05-segments"
PARTITION: Final = "seg-bytes64k-0"
SEGMENT: Final = f"{PARTITION}/00000000000000000070"


@pytest.fixture
def logdir(tmp_path: Path) -> Path:
    """Unpack what a broker 4.1 wrote: 41 segments, sparse and dense indexes."""
    unpack(CASE / "logdir.tar.gz", tmp_path)
    return tmp_path / "logdir"


def test_the_dump_tool_finds_nothing_in_what_a_broker_wrote(logdir: Path) -> None:
    report = dump_log_segments(partition_files(logdir))

    assert report.findings == []
    assert len(report.batches[logdir / f"{SEGMENT}.log"]) == 10
    first = report.batches[logdir / f"{SEGMENT}.log"][0]
    assert (first["baseOffset"], first["position"], first["magic"]) == ("70", "0", "2")


def test_the_sanity_check_finds_nothing_in_what_a_broker_wrote(logdir: Path) -> None:
    indexes = [path for path in partition_files(logdir) if path.suffix != ".log"]
    assert dump_log_segments(indexes, index_sanity=True).findings == []


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def flip_a_record(logdir: Path) -> Path:
    flip(path := logdir / f"{SEGMENT}.log", 200)
    return path


def cut_the_last_batch(logdir: Path) -> Path:
    path = logdir / f"{SEGMENT}.log"
    path.write_bytes(path.read_bytes()[:-7])
    return path


def drop_a_batch(logdir: Path) -> Path:
    path = logdir / f"{SEGMENT}.log"
    data = path.read_bytes()
    (length,) = struct.unpack_from(">i", data, 8)
    path.write_bytes(data[: 12 + length] + data[2 * (12 + length) :])
    return path


def shift_an_index_entry(logdir: Path) -> Path:
    flip(path := logdir / f"{SEGMENT}.index", 3)
    return path


def move_a_time(logdir: Path) -> Path:
    flip(path := logdir / f"{SEGMENT}.timeindex", 7)
    return path


def move_the_offset_of_a_time(logdir: Path) -> Path:
    flip(path := logdir / f"{SEGMENT}.timeindex", 11)
    return path


@pytest.mark.parametrize(
    "plant",
    [
        flip_a_record,
        cut_the_last_batch,
        drop_a_batch,
        shift_an_index_entry,
        move_a_time,
        move_the_offset_of_a_time,
    ],
)
def test_the_dump_tool_finds_a_planted_fault_and_goes_on(
    logdir: Path, plant: Callable[[Path], Path]
) -> None:
    spoilt = plant(logdir)
    # An exception at the first of three files must not hide what comes behind it.
    files = [spoilt, logdir / "seg-ms-0/00000000000000000000.log", spoilt.with_suffix(".index")]

    report = dump_log_segments(files)

    assert report.findings
    assert report.batches[files[1]]


def test_the_sanity_check_finds_a_torn_index(logdir: Path) -> None:
    index = logdir / f"{SEGMENT}.index"
    index.write_bytes(index.read_bytes() + b"\0\0\0")

    assert dump_log_segments([index], index_sanity=True).findings


def test_a_broker_serves_the_directory_of_another(logdir: Path, tmp_path: Path) -> None:
    topics = [Topic("seg-bytes64k"), Topic("seg-ms")]
    with serve(tmp_path / "broker", [logdir], topics) as broker:
        records = broker.consume_all("seg-bytes64k")

        assert [record.offset for record in records] == list(range(600))
        assert broker.offsets("seg-ms") == {0: (0, 600)}
        assert broker.complaints() == []


@pytest.mark.nightly
def test_a_broker_and_its_tool_take_odd_logs_for_what_we_do(tmp_path: Path) -> None:
    """The tool sees counts that are wrong; what we read a broker serves as it is."""
    for name, odd in ODD_LOGS.items():
        segment = odd.write(
            tmp_path / "logs" / ("refused" if odd.is_refused else "served"), topic_of(name)
        )
        findings = dump_log_segments([segment]).findings
        assert bool(findings) == name.startswith("count"), (name, findings)
    served = {name: odd for name, odd in ODD_LOGS.items() if not odd.is_refused}
    topics = [Topic(topic_of(name)) for name in served]
    with serve(tmp_path / "broker", [tmp_path / "logs" / "served"], topics) as broker:
        for name, odd in served.items():
            if name == "headers":  # confluent-kafka decodes names as UTF-8 only
                continue
            found = [(record.offset, record.value) for record in broker.consume_all(topic_of(name))]
            values = [record.value for record in odd.all_records]
            assert found == list(zip(odd.offsets, values, strict=True)), name


def test_a_broker_complains_of_a_bad_batch(logdir: Path, tmp_path: Path) -> None:
    flip_a_record(logdir)
    with serve(tmp_path / "broker", [logdir], [Topic("seg-bytes64k")]) as broker:
        assert any(PARTITION in line for line in broker.complaints()), broker.complaints()


@pytest.mark.parametrize("kind", [Broker, pytest.param(ZooKeeperBroker, marks=pytest.mark.nightly)])
def test_a_broker_comes_back_after_a_kill(kind: type[Broker], tmp_path: Path) -> None:
    records = [(b"%d" % number, b"v%d" % number) for number in range(100)]
    with kind(tmp_path / "broker") as broker:
        broker.create_topics(Topic("events", 2))
        broker.produce("events", records)
        broker.kill()
        broker.start()

        broker.wait_for_records("events", len(records))
        served = broker.consume_all("events")
        assert sorted((record.key, record.value) for record in served) == sorted(records)
