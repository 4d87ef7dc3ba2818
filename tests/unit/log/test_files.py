"""Names of files and folders parse strictly."""

from __future__ import annotations

import pytest

from kafkalog.model import TopicPartition
from kafkalog.streaming.log.files import (
    LOG,
    OFFSET_INDEX,
    file_name,
    parse_base_offset,
    parse_partition_directory,
)


def test_a_base_offset_has_20_digits() -> None:
    assert file_name(42, LOG) == "00000000000000000042.log"
    assert parse_base_offset("00000000000000000042.log", LOG) == 42
    assert parse_base_offset(file_name(2**63 - 1, OFFSET_INDEX), OFFSET_INDEX) == 2**63 - 1


@pytest.mark.parametrize(
    "name",
    [
        "42.log",
        "0000000000000000042.log",
        "000000000000000000042.log",
        "00000000000000000042.index",
        "00000000000000000042.log.deleted",
        "00000000000000000042.log.swap",
        "00000000000000000042.log\n",
        "-0000000000000000042.log",
        "+0000000000000000042.log",
        "٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٤٢.log",
        "09223372036854775808.log",
        "99999999999999999999.log",
        "",
        ".log",
    ],
)
def test_what_is_no_log_file_has_no_base_offset(name: str) -> None:
    assert parse_base_offset(name, LOG) is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("flights-0", TopicPartition("flights", 0)),
        ("a-b-12", TopicPartition("a-b", 12)),
        ("a--1", TopicPartition("a-", 1)),
        ("a.b_c-2147483647", TopicPartition("a.b_c", 2147483647)),
        ("__consumer_offsets-49", TopicPartition("__consumer_offsets", 49)),
        ("-0", None),
        ("flights", None),
        ("flights-", None),
        ("flights-00", None),
        ("flights-2147483648", None),
        ("flights-x", None),
        ("flights-0.8f5c9b0de0f94a2e9d6a4f8a3c1e7b21-delete", None),
        ("flights-0.8f5c9b0de0f94a2e9d6a4f8a3c1e7b21-future", None),
        ("flights-0.8f5c9b0de0f94a2e9d6a4f8a3c1e7b21-stray", None),
        ("fl ights-0", None),
        ("..-0", None),
        ("é-0", None),
        ("x" * 249 + "-0", TopicPartition("x" * 249, 0)),
        ("x" * 250 + "-0", None),
    ],
)
def test_a_partition_follows_the_last_dash(name: str, expected: TopicPartition | None) -> None:
    assert parse_partition_directory(name) == expected
