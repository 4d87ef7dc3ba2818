from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalog.errors import CheckpointError, OptionError
from kafkalog.model import TopicPartition
from kafkalog.streaming.source.offsets import (
    from_json,
    from_json_text,
    parse_assignment,
    parse_partition_longs,
    to_json,
)

if TYPE_CHECKING:
    import random

OFFSETS = st.dictionaries(
    st.builds(TopicPartition, st.text("ab-._", min_size=1, max_size=3), st.integers(0, 200)),
    st.integers(0, 2**63 - 1),
)


@given(OFFSETS, st.randoms(use_true_random=False))
def test_the_text_does_not_depend_on_the_order_of_insertion(
    offsets: dict[TopicPartition, int], shuffler: random.Random
) -> None:
    items = list(offsets.items())
    shuffler.shuffle(items)
    assert json.dumps(to_json(dict(items))) == json.dumps(to_json(offsets))


@given(OFFSETS)
def test_offsets_survive_the_way_through_json(offsets: dict[TopicPartition, int]) -> None:
    assert from_json(json.loads(json.dumps(to_json(offsets)))) == offsets


def test_partitions_are_ordered_by_number_not_by_text() -> None:
    offsets = {TopicPartition("t", p): p for p in (10, 2, 1)} | {TopicPartition("a", 0): 5}
    assert json.dumps(to_json(offsets)) == '{"a": {"0": 5}, "t": {"1": 1, "2": 2, "10": 10}}'


def test_the_checkpoint_of_sparks_kafka_source_is_read() -> None:
    text = '{"topicB":{"0":10},"topicA":{"1":345,"0":23}}'
    assert from_json(json.loads(text)) == {
        TopicPartition("topicA", 0): 23,
        TopicPartition("topicA", 1): 345,
        TopicPartition("topicB", 0): 10,
    }


@pytest.mark.parametrize(
    "text", ["5", "[1]", '{"logOffset":3}', '{"t":{"0":"5"}}', '{"t":{"x":5}}', '"x"', "no JSON"]
)
def test_what_another_source_wrote_into_a_checkpoint_is_refused(text: str) -> None:
    with pytest.raises(CheckpointError, match="expected such as"):
        from_json_text(text)


def test_a_progress_of_earlier_sparks_shows_offsets_as_python_shows_a_dict() -> None:
    assert from_json_text("{'t': {'0': 5}}") == from_json_text('{"t": {"0": 5}}')
    assert from_json_text("None") == from_json_text("null") == {}


def test_symbolic_offsets_are_numbers_in_options() -> None:
    parsed = parse_partition_longs("startingOffsets", '{"t":{"0":-2,"1":-1,"2":7}}', -2)
    assert parsed == {TopicPartition("t", p): o for p, o in ((0, -2), (1, -1), (2, 7))}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "[1]",
        '{"t":5}',
        '{"t":[0]}',
        '{"t":{"x":1}}',
        '{"t":{"-1":1}}',
        '{"t":{"0":"1"}}',
        '{"t":{"0":1.5}}',
        '{"t":{"0":true}}',
        '{"t":{"0":-3}}',
        '{"t":{"0":9223372036854775808}}',
        "[" * 100_000,
    ],
)
def test_what_is_no_json_of_offsets_is_refused_by_name(text: str) -> None:
    with pytest.raises(OptionError, match="'startingOffsets'"):
        parse_partition_longs("startingOffsets", text, -2)


def test_an_assignment_lists_partitions() -> None:
    expected = {TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 2)}
    assert parse_assignment(' {"a":[0,1],"b":[2]}') == expected


@pytest.mark.parametrize("text", ["", "a,b", "{}", '{"a":[]}', '{"a":{"0":1}}', '{"a":[-1]}'])
def test_what_is_no_assignment_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(OptionError, match=r"'assign'.*topicA"):
        parse_assignment(text)
