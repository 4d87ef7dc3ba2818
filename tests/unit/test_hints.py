"""What is said about names and values that Kafka's clients, or people, have for something else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import kafkalog
from kafkalog.errors import OptionError
from kafkalog.jobs.process.arguments import milliseconds, point_in_time
from kafkalog.streaming.options.declaring import KAFKA_CLIENT_OPTIONS, options_of
from kafkalog.streaming.options.quantities import quantity_hint
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.options.topic_settings import LogConfig
from kafkalog.streaming.sink.write_options import WriteOptions

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def log(tmp_path: Path) -> Path:
    kafkalog.append(tmp_path / "log", "t", pa.table({"value": ["a"]}))
    return tmp_path / "log"


@pytest.mark.parametrize(
    ("option", "given", "hint"),
    [
        ("startingOffsets", "beginning", "earliest, latest or JSON .*: did you mean earliest?"),
        ("startingOffsets", "Oldest", "did you mean earliest?"),
        ("startingOffsets", "end", "did you mean latest?"),
        ("endingOffsets", "end", "accepts latest or JSON .*: did you mean latest?"),
        ("endingOffsets", "beginning", "}$"),
        ("startingOffsets", "7", r'\{"topicA":\{"0":7\}\}'),
        ("startingOffsets", "2023-11-14", "startingTimestamp takes a time"),
        ("endingOffsets", "1700000000000", "endingTimestamp takes a time"),
        ("startingOffsets", "somewhere", "}$"),
        ("startingTimestamp", "20231114", "looks like a date: write 2023-11-14"),
    ],
)
def test_a_word_for_a_place_is_answered_by_the_one_that_there_is(
    log: Path, option: str, given: str, hint: str
) -> None:
    with pytest.raises(OptionError, match=hint):
        kafkalog.read(log, "t", options={option: given})


@pytest.mark.parametrize("given", ["somewhere", "{", '{"t":7}'])
def test_the_example_of_ends_is_one_that_they_accept(log: Path, given: str) -> None:
    kafkalog.append(log, "u", pa.table({"value": ["a"]}))
    with pytest.raises(OptionError, match="JSON such as") as refused:
        kafkalog.read(log, "t", options={"endingOffsets": given})
    example = str(refused.value).rpartition("such as ")[2]
    ends = example.replace("topicA", "t").replace("topicB", "u").replace('23,"1":-1', "-1")
    assert kafkalog.read(log, ["t", "u"], options={"endingOffsets": ends}).read_all().num_rows == 2


def test_a_number_that_is_no_date_is_a_time_in_ms(log: Path) -> None:
    assert kafkalog.read(log, "t", options={"startingTimestamp": 20231399}).read_all().num_rows


@pytest.mark.parametrize(
    ("name", "given", "hint"),
    [
        ("retention.ms", "1w", ": 1w is 604800000, or 7d"),
        ("retention.ms", "1.5 hours", ": 1.5 hours is 5400000, or 90m"),
        (
            "retention.ms",
            "2023-11-14",
            ". A date is no length of time; 7 days are 604800000, or 7d",
        ),
        ("retention.ms", "long", ""),
        ("retention.ms", "9" * 400 + "d", ""),
        ("retention.bytes", "1gib", ": 1gib is 1073741824, or 1g"),
        ("retention.bytes", "64 KiB", ": 64 KiB is 65536, or 64k"),
        ("retention.bytes", "2023-11-14", ""),
        ("min.cleanable.dirty.ratio", "7d", ""),
    ],
)
def test_a_number_of_ms_or_bytes_is_worked_out(name: str, given: str, hint: str) -> None:
    assert quantity_hint(name, given) == hint
    with pytest.raises(OptionError) as of_topic:
        LogConfig.from_mapping({name: given})
    with pytest.raises(OptionError) as of_option:
        WriteOptions.parse({"path": "/log", "topic": "t", name: given})
    if hint:
        assert str(of_topic.value).endswith(hint)
        assert str(of_option.value).endswith(hint)


@pytest.mark.parametrize("unit", ["week", "MiB"])
def test_a_unit_that_an_option_does_not_accept_is_worked_out(unit: str) -> None:
    name = "segment.ms" if unit == "week" else "segment.bytes"
    with pytest.raises(OptionError, match=f": 2{unit} is (1209600000, or 14d|2097152, or 2m)$"):
        WriteOptions.parse({"path": "/log", "topic": "t", name: f"2{unit}"})


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("auto.offset.reset", "'auto.offset.reset' cannot be used: use startingOffsets"),
        ("enable.auto.commit", "use commitGroupOffsets"),
        ("bootstrap.servers", "path names the log directories"),
        ("bootstrap_servers", "path names the log directories"),
        ("max.poll.records", "maxOffsetsPerTrigger"),
        ("max.partition.fetch.bytes", "maxBytesPerTrigger"),
        ("isolation.level", "did you mean 'kafka.isolation.level'"),
        ("group.id", "did you mean 'kafka.group.id'"),
        ("group_id", "did you mean 'kafka.group.id'"),
        ("session.timeout.ms", "kafka.session.timeout.ms .* with joinGroup"),
        ("check.crcs", "leave it out"),
        ("topic", "subscribe says which topics are read"),
    ],
)
def test_a_setting_of_kafkas_clients_is_told_what_does_the_same_in_a_query(
    name: str, hint: str
) -> None:
    with pytest.raises(OptionError, match=hint):
        ReadOptions.parse({"path": "/log", "subscribe": "t", name: "5"})


@pytest.mark.parametrize("name", ["linger.ms", "bootstrap.servers", "batch.size"])
def test_the_sink_says_it_of_producers_settings(name: str) -> None:
    with pytest.raises(OptionError, match=r"path names the log directories|leave it out"):
        WriteOptions.parse({"path": "/log", "topic": "t", name: "5"})


@pytest.mark.parametrize(
    "name",
    ["max.poll.records", "auto.offset.reset", "client.id", "isolation.level", "fetch.max.bytes"],
)
def test_no_option_is_advised_to_the_sink_that_it_has_not(log: Path, name: str) -> None:
    with pytest.raises(OptionError, match="leave it out"):
        WriteOptions.parse({"path": "/log", "topic": "t", name: "5"})
    given: dict[str, Any] = {name.replace(".", "_"): "5"}
    with pytest.raises(OptionError, match="leave it out"):
        kafkalog.append(log, "t", pa.table({"value": ["b"]}), **given)


def of_sink() -> list[str]:
    names = [entry.name for entry in options_of(WriteOptions)]
    return [name for name in names if f"kafka.{name}" in KAFKA_CLIENT_OPTIONS]


@pytest.mark.parametrize("name", of_sink())
def test_a_setting_of_producers_that_the_sink_has_is_not_said_to_mean_nothing(
    log: Path, name: str
) -> None:
    in_python = name.replace(".", "_")
    if in_python not in {"acks", "transactional_id"}:  # an option, and an argument, themselves
        given: dict[str, Any] = {in_python: "5"}
        with pytest.raises(OptionError, match=f": the option {name} does it$"):
            kafkalog.append(log, "t", pa.table({"value": ["b"]}), **given)
    if in_python != name:
        with pytest.raises(OptionError, match=f": the option {name} does it$"):
            WriteOptions.parse({"path": "/log", "topic": "t", in_python: "5"})


OF_CONSUMER = {
    "auto.offset.reset": "startingOffsets",
    "group.id": "arguments?( group_id|$)",
    "bootstrap.servers": "path names the log directories",
    "enable.auto.commit": "call commit",
    "max.poll.records": "poll returns",
    "isolation.level": "kafka.isolation.level does the same",
    "session.timeout.ms": "kafka.session.timeout.ms does the same",
    "value.deserializer": "leave it out",
}


@pytest.mark.parametrize("name", OF_CONSUMER)
def test_a_consumer_says_it_of_arguments_and_options(log: Path, name: str) -> None:
    given: dict[str, Any] = {name: "x"}
    with pytest.raises(OptionError, match=OF_CONSUMER[name]):
        kafkalog.Consumer(log, "t", options=given, topics="t")
    with pytest.raises(OptionError, match=f"Consumer has no argument.*{OF_CONSUMER[name]}"):
        kafkalog.Consumer(log, "t", **given)
    if name not in {"group.id", "isolation.level"}:
        in_python = {name.replace(".", "_"): "x"}
        with pytest.raises(OptionError, match=OF_CONSUMER[name]):
            kafkalog.Consumer(log, "g", "t", **in_python)  # type: ignore[arg-type]


def test_what_a_consumer_took_before_it_takes_still(log: Path) -> None:
    options = {"kafka.session.timeout.ms": "60s", "fetchOffset.numRetries": 2}
    kafkalog.Consumer(log, "g", "t", options={**options, "startingOffsets": "earliest"}).close()
    with pytest.raises(OptionError, match=r"none of a Consumer's: .*call commit"):
        kafkalog.Consumer(log, "g", "t", options={"kafka.enable.auto.commit": False})


@pytest.mark.parametrize("name", ["t ", " t", "\tt", "t\n"])
def test_a_topic_with_a_blank_is_refused_and_not_taken_for_another(log: Path, name: str) -> None:
    rows = pa.table({"value": ["b"]})
    with pytest.raises(OptionError, match="characters other than"):
        kafkalog.append(log, name, rows)
    with pytest.raises(OptionError, match="leave the blank out"):
        kafkalog.read(log, name)
    with pytest.raises(OptionError, match="leave the blank out"):
        kafkalog.Consumer(log, "g", [name])
    assert kafkalog.read(log, "t").read_all().num_rows == 1


@pytest.mark.parametrize(
    ("given", "short"),
    [("7 days", "7d"), ("7 days ago", "7d"), ("1 hour", "1h"), ("90 sec", "90s"), ("1.5 h", "90m")],
)
def test_a_length_of_time_is_answered_by_the_form_that_works(given: str, short: str) -> None:
    with pytest.raises(OptionError, match=f": write {short} for {given}$"):
        point_in_time("--since", given)
    assert point_in_time("--since", short)
    if "ago" not in given:
        with pytest.raises(OptionError, match=f", or {short}$"):
            milliseconds("--every", given)
        assert milliseconds("--every", short)
