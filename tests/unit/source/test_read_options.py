from __future__ import annotations

import pickle

import pytest

from kafkalog.errors import OptionError
from kafkalog.streaming.options.read_options import ReadOptions


def parsed(given: dict[str, str]) -> ReadOptions:
    return ReadOptions.parse({"path": "/logs", "subscribe": "t"} | given)


def test_defaults_are_those_of_sparks_kafka_source() -> None:
    options = parsed({})
    assert options.paths == ("/logs",)
    assert options.starting_offsets is None
    assert options.fail_on_data_loss
    assert not options.include_headers
    assert options.max_trigger_delay_ms == 900_000
    assert options.isolation_level == "read_uncommitted"
    assert options.starting_timestamp_strategy == "error"
    assert options.max_offsets_per_trigger is None


@pytest.mark.parametrize(
    "given",
    [{}, {"subscribe": "a", "subscribePattern": "b"}, {"assign": '{"t":[0]}', "subscribe": "a"}],
)
def test_exactly_one_option_says_what_to_read(given: dict[str, str]) -> None:
    with pytest.raises(OptionError, match="exactly one of the options assign, subscribe and"):
        ReadOptions.parse({"path": "/logs"} | given)


@pytest.mark.parametrize(
    "name",
    [
        "maxOffsetsPerTrigger",
        "maxBytesPerTrigger",
        "minOffsetsPerTrigger",
        "minPartitions",
        "maxRecordsPerPartition",
        "fetchOffset.numRetries",
    ],
)
@pytest.mark.parametrize("value", ["0", "-1", "x", "1.5", ""])
def test_limits_of_nothing_or_less_are_refused(name: str, value: str) -> None:
    with pytest.raises(OptionError, match=name):
        parsed({name: value})


def test_committing_positions_needs_a_group_and_a_stream() -> None:
    with pytest.raises(OptionError, match=r"'commitGroupOffsets' needs kafka\.group\.id"):
        parsed({"commitGroupOffsets": "true"})
    options = parsed({"commitGroupOffsets": "true", "kafka.group.id": "g"})
    options.refuse_for_streaming()
    with pytest.raises(OptionError, match="'commitGroupOffsets' is for streaming queries"):
        options.refuse_for_batch()


def test_a_minimum_beyond_the_maximum_is_refused() -> None:
    with pytest.raises(OptionError, match=r"\(20\) is more than maxOffsetsPerTrigger \(15\)"):
        parsed({"minOffsetsPerTrigger": "20", "maxOffsetsPerTrigger": "15"})


@pytest.mark.parametrize(
    "name",
    [
        "kafka.auto.offset.reset",
        "kafka.key.deserializer",
        "kafka.value.deserializer",
        "kafka.enable.auto.commit",
        "kafka.interceptor.classes",
        "paths",
        "provider",
    ],
)
def test_options_that_cannot_be_used_are_refused_with_a_reason(name: str) -> None:
    with pytest.raises(OptionError, match=f"'{name}' cannot be used: .{{10}}"):
        parsed({"a name that nobody knows": "x", name.lower(): "x"})


@pytest.mark.parametrize(
    "given",
    [
        {"kafka.isolation.level": "serializable"},
        {"onCorruptRecord": "ignore"},
    ],
)
def test_values_that_are_not_supported_are_refused(given: dict[str, str]) -> None:
    with pytest.raises(OptionError, match=next(iter(given))):
        parsed(given)


def test_options_that_need_a_broker_are_ignored() -> None:
    options = parsed(
        {
            "kafka.bootstrap.servers": "h:1",
            "kafka.ssl.keystore.location": "/k",
            "groupidprefix": "g",
            "kafkaconsumer.polltimeoutms": "1",
        }
    )
    assert len(options.ignored) == 4


@pytest.mark.parametrize(
    "name", ["auto.downgrade.txn.commit", "throw.on.fetch.stable.offset.unsupported"]
)
def test_settings_that_clients_keep_for_themselves_are_ignored(name: str) -> None:
    assert parsed({f"kafka.internal.{name}": "true"}).ignored == (f"kafka.internal.{name}",)


def test_settings_of_a_producer_are_ignored_as_a_consumers_are() -> None:
    names = ("kafka.acks", "kafka.compression.type", "kafka.key.serializer")
    assert parsed(dict.fromkeys(names, "x")).ignored == names


@pytest.mark.parametrize("name", ["endingOffsets", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    options = parsed({name: "5"})
    with pytest.raises(OptionError, match=f"'{name}' cannot be used in a streaming query"):
        options.refuse_for_streaming()
    parsed({}).refuse_for_streaming()


def test_a_typo_is_answered_with_the_option_that_was_meant() -> None:
    with pytest.raises(OptionError, match="did you mean 'startingOffsets'"):
        parsed({"startingOffset": "earliest"})


def test_options_can_be_sent_to_a_task() -> None:
    options = parsed({"minPartitions": "3"})
    assert pickle.loads(pickle.dumps(options)) == options
