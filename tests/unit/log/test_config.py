"""A topic's settings: Kafka's names, defaults and ranges."""

from __future__ import annotations

import pytest

from kafkalog.errors import OptionError
from kafkalog.model import TimestampType
from kafkalog.streaming.options.topic_settings import LOG_CONFIG_NAMES, LogConfig


def test_settings_come_from_and_go_to_kafkas_names() -> None:
    settings = {
        "segment.bytes": "1048576",
        "cleanup.policy": "compact,delete",
        "message.timestamp.type": "LogAppendTime",
        "compression.type": "zstd",
        "min.cleanable.dirty.ratio": "0.1",
        "preallocate": "true",
        "retention.ms": "-1",
    }
    config = LogConfig.from_mapping(settings)
    assert config.segment_bytes == 1 << 20
    assert config.cleanup_policy == ("compact", "delete")
    assert config.message_timestamp_type is TimestampType.LOG_APPEND_TIME
    assert config.compression_type == "zstd"
    assert config.min_cleanable_dirty_ratio == 0.1
    assert config.preallocate
    assert config.retention_ms == -1


def test_a_default_that_is_written_out_changes_nothing() -> None:
    assert LogConfig.from_mapping({"segment.bytes": "1073741824"}) == LogConfig()


def test_every_setting_is_read_into_a_field_of_its_own() -> None:
    others = {
        "cleanup.policy": "compact",
        "compression.type": "gzip",
        "message.timestamp.type": "LogAppendTime",
        "unclean.leader.election.enable": "true",
        "preallocate": "true",
        "min.cleanable.dirty.ratio": "0.25",
        "min.compaction.lag.ms": "1",
        "compression.lz4.level": "3",
        "compression.gzip.level": "7",
        "compression.zstd.level": "7",
        "message.format": "v1",
    }
    settings = {name: others.get(name, "1234") for name in LOG_CONFIG_NAMES}
    for name, text in settings.items():
        assert LogConfig.from_mapping({name: text}) != LogConfig(), name
    assert len({LogConfig.from_mapping({name: text}) for name, text in settings.items()}) == len(
        settings
    )


@pytest.mark.parametrize(
    ("name", "refused", "accepted"),
    [
        ("segment.bytes", ["13", "2147483648", "1k", ""], ["14", "2147483647"]),
        ("segment.ms", ["0", "-1"], ["1", "9223372036854775807"]),
        ("segment.jitter.ms", ["-1"], ["0"]),
        ("segment.index.bytes", ["3"], ["4"]),
        ("index.interval.bytes", ["-1"], ["0"]),
        ("retention.bytes", ["-9223372036854775809"], ["-1", "-5"]),
        ("retention.ms", ["-2"], ["-1"]),
        ("cleanup.policy", ["", "remove", "delete,", "delete;compact"], ["Delete", "compact"]),
        ("compression.type", ["LZ4", "lz5"], ["none", "uncompressed", "producer", "lz4"]),
        ("compression.gzip.level", ["0", "10", "-2"], ["1", "9", "-1"]),
        ("compression.lz4.level", ["0", "18"], ["1", "17"]),
        ("compression.zstd.level", ["23", "-131073"], ["-131072", "22"]),
        ("max.message.bytes", ["-1"], ["0"]),
        ("message.format", ["V1", "2", "v3", "0.10.2"], ["v0", "v1", "v2"]),
        ("message.timestamp.type", ["createtime"], ["CreateTime", "LogAppendTime"]),
        ("min.cleanable.dirty.ratio", ["-0.1", "1.1", "x", "nan"], ["0", "1", "0.5"]),
        ("unclean.leader.election.enable", ["yes"], ["true", "FALSE"]),
        ("min.insync.replicas", ["0"], ["1"]),
        ("max.compaction.lag.ms", ["0"], ["1"]),
    ],
)
def test_values_are_held_to_kafkas_ranges(
    name: str, refused: list[str], accepted: list[str]
) -> None:
    if name == "cleanup.policy":
        refused = [value for value in refused if value != "delete,"]  # a list with an empty end
    for value in refused:
        with pytest.raises(OptionError, match=name):
            LogConfig.from_mapping({name: value})
    for value in accepted:
        LogConfig.from_mapping({name: value})


def test_an_unknown_setting_is_refused_with_the_nearest_known() -> None:
    with pytest.raises(OptionError, match=r"did you mean 'segment\.bytes'"):
        LogConfig.from_mapping({"segment.byte": "1"})


def test_compaction_lags_must_not_cross() -> None:
    with pytest.raises(OptionError, match=r"min\.compaction\.lag\.ms"):
        LogConfig.from_mapping({"min.compaction.lag.ms": "2", "max.compaction.lag.ms": "1"})


@pytest.mark.parametrize("older", ["v0", "v1"])
def test_zstd_needs_the_newest_format(older: str) -> None:
    with pytest.raises(OptionError, match=f"zstd and message.format is {older}: zstd came with v2"):
        LogConfig.from_mapping({"message.format": older, "compression.type": "zstd"})
    LogConfig.from_mapping({"message.format": older, "compression.type": "lz4"})


def test_a_compacted_segment_rolls_in_time_for_its_compaction() -> None:
    lag = {"max.compaction.lag.ms": "1000"}
    assert LogConfig.from_mapping(lag).max_segment_ms == 604_800_000
    assert LogConfig.from_mapping(lag | {"cleanup.policy": "compact"}).max_segment_ms == 1000
