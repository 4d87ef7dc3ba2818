"""Spark's Kafka source over a broker, and ours over its directory: the same options, the same rows.

The combinations of options hold every pair of values. The default takes some of them, and fewer
over a bucket; ``make nightly`` takes more, ``make differential`` all.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pytest
from tests.support.kafka import Broker, Topic
from tests.support.object_store import object_store
from tests.support.peer_cases import Case, batch_cases, name_of, options_of, stream_cases
from tests.support.peer_refusals import BATCH_REFUSALS, STREAM_REFUSALS
from tests.support.peer_topics import (
    BROKER_SETTINGS,
    COMPACTED,
    EPOCH_MS,
    TOPICS,
    delete_records,
    fill_compacted,
    filled_topics,
    wait_until_on_disk,
)
from tests.support.spark_peers import (
    FORMATS,
    OURS,
    BatchResult,
    Peers,
    Refusal,
    StreamResult,
    session_with_both,
)

from kafkalog.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

pytestmark = [pytest.mark.interop, pytest.mark.spark]

TAKEN: Final = os.environ.get("KAFKALOG_DIFFERENTIAL", "")
"""``all`` cases, ``most`` (several times as many), or some."""
IN_BUCKET: Final = 1 if TAKEN else 4
"""Each so many-th case is run over a bucket, too."""

T = TypeVar("T")

EMPTY_FIRST: Final = ("at a time", "at times", "at a time before all", "at offsets or latest")
"""Starts that a first batch without rows pins, where the checkpoint has no place for them."""


def some(cases: Sequence[T], count: int) -> Sequence[T]:
    """Give all cases, or so many of them (three times as many) from all over the list."""
    count *= 3 if TAKEN else 1
    return cases if TAKEN == "all" else cases[:: -(-len(cases) // count)]


def by_place(cases: Sequence[Case] | Sequence[str]) -> list[Any]:
    """Give each case with where our source reads it."""
    return [
        pytest.param(
            case,
            OURS if number % IN_BUCKET == 0 else OURS[:1],
            id=case if isinstance(case, str) else name_of(case),
        )
        for number, case in enumerate(cases)
    ]


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peers]:
    home = tmp_path_factory.mktemp("differential")
    with (
        Broker(home / "broker", settings=BROKER_SETTINGS) as broker,
        filled_topics(broker),
        session_with_both() as spark,
        object_store() as store,
    ):
        store.make_bucket()
        peers = Peers(spark, broker, home, store)
        peers.copy(*(topic.name for topic in TOPICS))
        yield peers


@pytest.mark.parametrize(("case", "places"), by_place(some(batch_cases(), 6)))
def test_a_batch_gives_the_same_rows_in_the_same_tasks(
    peers: Peers, case: Case, places: Sequence[str]
) -> None:
    options = options_of(case)
    theirs = peers.batch("kafka", options)
    for place in places:
        ours = peers.batch(place, options)
        if isinstance(theirs, Refusal) or isinstance(ours, Refusal):
            check_refusals(theirs, ours)
            continue
        assert ours.columns == theirs.columns
        assert ours.rows == theirs.rows, place
        if case["start"] != "at lost offsets" and case["maxRecordsPerPartition"] is None:
            # else we cut what is there, and they what was asked for, or not at all
            assert ours.tasks == theirs.tasks, place


@pytest.mark.parametrize(("case", "places"), by_place(some(stream_cases(), 4)))
def test_a_stream_gives_the_same_rows_in_the_same_micro_batches(
    peers: Peers, case: Case, places: Sequence[str]
) -> None:
    options = options_of(case)
    theirs = peers.stream("kafka", options, case["trigger"])
    for place in places:
        ours = peers.stream(place, options, case["trigger"])
        if isinstance(theirs, Refusal) or isinstance(ours, Refusal):
            check_refusals(theirs, ours)
            continue
        batches = ours.batches
        if case["start"] in EMPTY_FIRST and len(batches) > len(theirs.batches):
            assert batches[0].rows == 0
            batches = batches[1:]
        assert ours.columns == theirs.columns
        assert batches == theirs.batches, place
        assert ours.rows == theirs.rows, place


@pytest.mark.parametrize(("what", "places"), by_place(some(list(BATCH_REFUSALS), 12)))
def test_both_refuse_a_batch_with(peers: Peers, what: str, places: Sequence[str]) -> None:
    options = BATCH_REFUSALS[what] | {"fetchOffset.retryIntervalMs": "10"}
    check_refusals(*(peers.batch(format_, options) for format_ in ("kafka", *places)))


@pytest.mark.parametrize(("what", "places"), by_place(some(list(STREAM_REFUSALS), 3)))
def test_both_refuse_a_stream_with(peers: Peers, what: str, places: Sequence[str]) -> None:
    options = {"startingOffsets": "earliest", "fetchOffset.retryIntervalMs": "10"}
    options |= STREAM_REFUSALS[what]
    check_refusals(*(peers.stream(format_, options) for format_ in ("kafka", *places)))


def test_a_query_that_stood_below_a_new_log_start_reports_the_same_loss(peers: Peers) -> None:
    options = {"subscribe": "shortened", "startingOffsets": "earliest"}
    peers.broker.create_topics(Topic("shortened", 1))
    peers.broker.produce("shortened", [(None, b"%d" % n) for n in range(5)])
    wait_until_on_disk(peers.broker, "shortened")
    peers.copy("shortened")
    for format_ in FORMATS:
        assert peers.resume(format_, options) == [*range(5)]
    peers.broker.produce("shortened", [(None, b"%d" % n) for n in range(5, 20)])
    delete_records(peers.broker, {TopicPartition("shortened", 0): 12})
    wait_until_on_disk(peers.broker, "shortened")
    peers.copy("shortened")
    check_refusals(*(peers.resume(format_, options) for format_ in FORMATS))
    skipping = options | {"failOnDataLoss": "false"}
    for format_ in FORMATS:
        assert peers.resume(format_, skipping) == [*range(5), *range(12, 20)]


def test_a_segment_without_records_ends_a_search_by_time_and_a_bucket_has_none(
    peers: Peers,
) -> None:
    """A segment that the cleaner has emptied is as young as its file, for a broker."""
    peers.broker.create_topics(Topic("emptied", 1, COMPACTED))
    fill_compacted(peers.broker, "emptied")
    wait_until_on_disk(peers.broker, "emptied")
    peers.copy("emptied")
    options = {"subscribe": "emptied", "startingTimestamp": str(EPOCH_MS + 9)}
    theirs, ours, in_bucket = (peers.batch(format_, options) for format_ in FORMATS)
    check_refusals(theirs, ours)
    assert isinstance(in_bucket, BatchResult)
    assert in_bucket.rows.total() == 10 + 1


# What is meant to differ: docs/source.md lists it


def test_a_limit_of_zero_is_refused_and_would_hang_or_fail_in_sparks(peers: Peers) -> None:
    for limit in ("0", "-1"):
        ours = peers.stream("kafkalog", {"subscribe": "many", "maxOffsetsPerTrigger": limit})
        assert isinstance(ours, Refusal)
        assert f"'maxOffsetsPerTrigger' is '{limit}', but accepts" in ours.text


def test_an_ending_timestamp_ends_a_stream_and_is_ignored_by_sparks(peers: Peers) -> None:
    options = {"subscribe": "many", "startingOffsets": "earliest"}
    options |= {"endingTimestamp": str(EPOCH_MS + 20_000)}
    theirs, ours = (peers.stream(format_, options) for format_ in FORMATS[:2])
    their_batch = peers.batch("kafka", options)
    assert isinstance(theirs, StreamResult)
    assert isinstance(ours, StreamResult)
    assert isinstance(their_batch, BatchResult)
    assert ours.rows == their_batch.rows
    assert ours.rows.total() < theirs.rows.total() == 81


def test_available_now_with_a_minimum_reads_the_tail_that_sparks_leaves(peers: Peers) -> None:
    options = {"subscribe": "many", "startingOffsets": "earliest"}
    options |= {"maxOffsetsPerTrigger": "30", "minOffsetsPerTrigger": "25"}
    theirs, ours = (peers.stream(format_, options) for format_ in FORMATS[:2])
    assert isinstance(theirs, StreamResult)
    assert isinstance(ours, StreamResult)
    assert ours.batches[: len(theirs.batches)] == theirs.batches
    assert theirs.rows.total() < ours.rows.total() == 81


def test_an_internal_topic_is_read_by_its_name_and_left_out_by_sparks(peers: Peers) -> None:
    options = {"assign": '{"__transaction_state": [0]}'}
    theirs, ours = (peers.batch(format_, options) for format_ in FORMATS[:2])
    assert isinstance(theirs, Refusal) or not theirs.rows
    assert isinstance(ours, BatchResult)
    assert ours.rows


def test_a_pattern_is_one_of_pythons_and_not_of_javas(peers: Peers) -> None:
    options = {"subscribePattern": r"^\p{Lower}any$"}
    theirs, ours = (peers.batch(format_, options) for format_ in FORMATS[:2])
    assert isinstance(theirs, BatchResult)
    assert theirs.rows.total() == 81
    assert isinstance(ours, Refusal)
    assert "no regular expression" in ours.text


def test_an_unknown_option_is_refused_and_ignored_by_sparks(peers: Peers) -> None:
    options = {"subscribe": "many", "maxOffsetPerTrigger": "5"}
    theirs, ours = (peers.batch(format_, options) for format_ in FORMATS[:2])
    assert isinstance(theirs, BatchResult)
    assert isinstance(ours, Refusal)
    assert "did you mean 'maxOffsetsPerTrigger'" in ours.text


def test_most_records_of_a_task_hold_in_a_batch_and_are_ignored_by_sparks(peers: Peers) -> None:
    options = {"assign": '{"many": [0]}', "maxRecordsPerPartition": "20"}
    theirs, ours = (peers.batch(format_, options) for format_ in FORMATS[:2])
    assert isinstance(theirs, BatchResult)
    assert isinstance(ours, BatchResult)
    assert theirs.tasks.total() == 1
    assert sorted(map(len, ours.tasks.elements())) == [15, 15, 15, 16]


def check_refusals(theirs: object, *ours: object) -> None:
    """All must refuse, and for the same reason where Spark has a name for it."""
    assert isinstance(theirs, Refusal), ours
    for each in ours:
        assert isinstance(each, Refusal), theirs
        assert not theirs.conditions or each.conditions == theirs.conditions
