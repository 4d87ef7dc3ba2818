from __future__ import annotations

import pickle

import pytest

from kafkalog.errors import OptionError
from kafkalog.streaming.options.topic_settings import LogConfig
from kafkalog.streaming.records.compression import Codec
from kafkalog.streaming.sink.write_options import WriteOptions


def parsed(**given: str) -> WriteOptions:
    return WriteOptions.parse(
        {"path": "/logs", **{name.replace("__", "."): value for name, value in given.items()}}
    )


def test_only_the_path_is_needed() -> None:
    options = parsed()
    assert options.settings == {}
    assert (options.num_partitions, options.partitioner, options.flush) == (
        None,
        "murmur2",
        "commit",
    )


@pytest.mark.parametrize("codec", Codec)
def test_each_codec_is_a_compression_type_of_query_and_topic(codec: Codec) -> None:
    name = codec.name.lower()
    kept = parsed(compression__type=name).settings["compression.type"]
    for each in (kept, name):
        given = LogConfig.from_mapping({"compression.type": each}).compression_type
        assert Codec.from_name(given) is codec


def test_topic_settings_are_collected_by_kafkas_names_in_their_canonical_form() -> None:
    options = parsed(
        segment__bytes="64m", kafka__compression__type="LZ4", segment__ms="7d", retention__ms="-1"
    )
    assert options.settings == {
        "segment.bytes": "67108864",
        "compression.type": "lz4",
        "segment.ms": "604800000",
        "retention.ms": "-1",
    }
    assert LogConfig.from_mapping(options.settings).segment_bytes == 67108864


def test_every_option_may_have_kafkas_prefix_but_sparks_own() -> None:
    given = {"topic": "t", "numPartitions": "3", "flush": "os", "partitioner": "round_robin"}
    given |= {"txnAppId": "a", "txnVersion": "7", "retention.check.interval.ms": "5s"}
    given |= {"allowBrokerDirectory": "true", "segment.bytes": "1m", "preserveOffsets": "true"}
    prefixed = {f"Kafka.{name}": value for name, value in given.items()}
    assert WriteOptions.parse({"path": "/logs"} | prefixed) == WriteOptions.parse(
        {"path": "/logs"} | given
    )
    for name in ("path", "checkpointLocation"):
        with pytest.raises(OptionError, match=f"'kafka.{name}' is not known"):
            parsed(**{f"kafka.{name}": "/logs"})
    with pytest.raises(OptionError, match="'numPartitions' is given twice with two values"):
        parsed(numPartitions="3", kafka__numPartitions="4")


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("segment.bytes", "13", "from 14"),
        ("segment.ms", "0", "from 1"),
        ("compression.gzip.level", "10", "from -1 to 9"),
        ("compression.type", "brotli", "one of none, gzip, snappy, lz4, zstd"),
        ("retention.ms", "-2", "of at least -1"),
        ("cleanup.policy", "forget", "delete, compact or both"),
        ("numPartitions", "0", "from 1"),
        ("partitioner", "random", "one of murmur2, round_robin"),
        ("flush", "never", "one of commit, os"),
        ("kafka.key.serializer", "x", "bytes of their columns"),
        ("kafka.partitioner.class", "x", "use partitioner"),
        ("message.format", "v3", "one of v2, v1, v0"),
        ("preserveOffsets", "yes", "true or false"),
        ("topic", "../../etc", "characters other than"),
        ("segment.byte", "1m", "did you mean 'segment.bytes'"),
        ("txnAppId", "x", "both of"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_reason(name: str, value: str, reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        WriteOptions.parse({"path": "/logs", name: value})


def test_a_producers_settings_are_known_and_ignored() -> None:
    options = parsed(kafka__acks="all", kafka__linger__ms="5", kafka__sasl__mechanism="PLAIN")
    assert options.ignored == ("kafka.acks", "kafka.linger.ms", "kafka.sasl.mechanism")


def test_settings_of_a_consumer_are_ignored_as_a_producers_are() -> None:
    names = ("kafka.auto.offset.reset", "kafka.isolation.level", "kafka.value.deserializer")
    assert WriteOptions.parse({"path": "/logs", **dict.fromkeys(names, "x")}).ignored == names


def test_a_setting_that_a_producer_has_too_is_used_and_not_ignored() -> None:
    options = parsed(kafka__max__block__ms="5s")
    assert options.max_block_ms == 5000
    assert options.ignored == ()


def test_what_spark_adds_is_no_unknown_option() -> None:
    options = WriteOptions.parse(
        {"path": "/logs", "queryname": "q", "checkpointlocation": "/checkpoint"}
    )
    assert options.checkpoint_location == "/checkpoint"


def test_options_can_be_sent_to_tasks() -> None:
    options = parsed(topic="flights", segment__bytes="1m")
    assert pickle.loads(pickle.dumps(options)) == options
