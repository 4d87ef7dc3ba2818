from __future__ import annotations

import pytest

from kafkalog.errors import InvalidTopicError, OptionError, UnknownTopicOrPartitionError
from kafkalog.model import TopicPartition
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.source.subscription import Subscription

EXISTING = [
    TopicPartition(topic, partition)
    for topic in ("flights", "flights-late", "Weather", "__consumer_offsets")
    for partition in (0, 1)
]


def chosen(**given: str) -> list[str]:
    subscription = Subscription.of(ReadOptions.parse({"path": "/logs"} | given))
    return [str(partition) for partition in EXISTING if subscription.selects(partition)]


def test_subscribe_names_topics() -> None:
    assert chosen(subscribe=" flights ,,Weather") == [
        "flights-0",
        "flights-1",
        "Weather-0",
        "Weather-1",
    ]


def test_a_pattern_is_searched_anywhere_in_the_name() -> None:
    assert chosen(subscribePattern="late") == ["flights-late-0", "flights-late-1"]
    assert chosen(subscribePattern="^flights$") == ["flights-0", "flights-1"]


def test_a_pattern_leaves_internal_topics_out_but_their_names_read_them() -> None:
    assert "__consumer_offsets-0" not in chosen(subscribePattern=".*")
    assert chosen(subscribe="__consumer_offsets") == [
        "__consumer_offsets-0",
        "__consumer_offsets-1",
    ]


def test_assign_names_partitions_and_drops_those_that_do_not_exist() -> None:
    assert chosen(assign='{"flights":[1,7],"gone":[0]}') == ["flights-1"]


def test_topics_that_are_missing_are_named() -> None:
    options = ReadOptions.parse({"path": "/logs", "subscribe": "b,flights,a"})
    subscription = Subscription.of(options)
    with pytest.raises(
        UnknownTopicOrPartitionError, match="no partition of topic a, b is in /logs"
    ):
        subscription.require_topics(EXISTING, options.paths)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"subscribePattern": "flight$"},
            "matches no topic in /logs, which holds Weather, flights, flights-late; internal",
        ),
        (
            {"assign": '{"flights":[1,7],"gone":[0]}'},
            "assign names partitions that are not in /logs: flights-7, gone-0",
        ),
        ({"subscribePattern": "late"}, None),
        ({"assign": '{"flights":[1]}'}, None),
    ],
)
def test_what_is_not_there_yet_is_said_with_what_is(
    given: dict[str, str], said: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    options = ReadOptions.parse({"path": "/logs"} | given)
    Subscription.of(options).require_topics(EXISTING, options.paths)
    assert len(caplog.messages) == (said is not None)
    assert (said or "") in caplog.text


@pytest.mark.parametrize(
    "given", [{"subscribe": " , "}, {"subscribePattern": "*"}, {"assign": "flights"}]
)
def test_what_names_nothing_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(OptionError, match=next(iter(given))):
        chosen(**given)


def test_a_name_that_no_topic_can_have_is_refused() -> None:
    with pytest.raises(InvalidTopicError):
        chosen(subscribe="../etc")
