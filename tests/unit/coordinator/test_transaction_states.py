"""How an open transaction ends is what its coordinator noted, and nothing is guessed."""

from __future__ import annotations

import pytest
from tests.support.transactions import state_record

from kafkalog.model import TopicPartition
from kafkalog.streaming.coordinator.transaction_states import (
    Decision,
    TransactionStates,
    Undecided,
)
from kafkalog.streaming.records.control import MarkerType

KEY = TopicPartition("t", 1)
NAMED = {"other": [7], "t": [0, 1]}
ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMMITTED, ABORTED = 1, 2, 3, 4, 5
BEFORE, AT, AFTER = 10, 20, 30
"""In ms."""


def states(*records: tuple[bytes, bytes | None], count: int | None = None) -> TransactionStates:
    found = TransactionStates(count)
    for offset, (key, value) in enumerate(records):
        found.feed(0, offset, key, value)
    return found


def record(
    status: int,
    epoch: int = 5,
    *,
    named: dict[str, list[int]] = NAMED,
    version: int = 1,
    name: str = "x",
    producer: int = 9,
) -> tuple[bytes, bytes]:
    return state_record(name, status, producer, epoch, named, updated_ms=AT, version=version)


def decide(
    found: TransactionStates, epoch: int = 5, *, marker_ms: int = BEFORE
) -> tuple[str, int | None]:
    decision = found.decide(KEY, 9, epoch, lambda: marker_ms)
    if isinstance(decision, Undecided):
        return "undecided", None
    return MarkerType(decision.marker).name, decision.producer_epoch


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("status", "expected"), [(PREPARE_COMMIT, "COMMIT"), (PREPARE_ABORT, "ABORT")]
)
def test_what_was_prepared_is_done_with_the_epoch_of_the_record(
    status: int, expected: str, version: int
) -> None:
    found = states(record(ONGOING, version=version), record(status, 6, version=version))
    assert decide(found, 5) == (expected, 6)
    assert decide(found, 6) == (expected, 6)


def test_what_was_not_decided_is_aborted_with_the_producers_own_epoch() -> None:
    assert decide(states(record(PREPARE_COMMIT, 4), record(ONGOING))) == ("ABORT", None)


def test_what_was_prepared_for_other_partitions_does_not_commit_this_one() -> None:
    found = states(record(PREPARE_COMMIT, named={"t": [0], "u": [1]}))
    assert decide(found) == ("ABORT", None)


@pytest.mark.parametrize("newest", [COMMITTED, ONGOING])
def test_a_marker_that_the_log_has_lost_is_known_by_its_epoch(newest: int) -> None:
    """Each transaction has an epoch of its own, and the producer has gone on to the next one."""
    done = [record(PREPARE_COMMIT, 6, version=2), record(COMMITTED, 6, named={}, version=2)]
    found = states(*done, *([record(ONGOING, 6, version=2)] if newest == ONGOING else []))
    assert decide(found, 5) == ("COMMIT", 6)


@pytest.mark.parametrize(("marker_ms", "expected"), [(BEFORE, "COMMIT"), (AFTER, "ABORT")])
def test_a_marker_that_the_log_has_lost_is_known_by_its_time_where_epochs_stay(
    marker_ms: int, expected: str
) -> None:
    """With the marker in the log, what is open came later, and hangs."""
    found = states(record(PREPARE_COMMIT), record(COMMITTED, named={}))
    assert decide(found, marker_ms=marker_ms)[0] == expected


def test_what_a_fenced_producer_left_is_not_committed_by_the_next_ones_transaction() -> None:
    found = states(record(PREPARE_COMMIT, 6), record(COMMITTED, 6, named={}))
    assert decide(found, 5) == ("ABORT", None)


def test_records_that_are_older_than_the_data_decide_nothing() -> None:
    assert decide(states(record(PREPARE_ABORT, 4)), 5) == ("undecided", None)
    assert decide(states(record(COMMITTED, 4)), 5) == ("undecided", None)


def test_a_producer_that_no_record_names_is_aborted_only_where_all_records_are_there() -> None:
    other = record(ONGOING, name="y", producer=10)
    assert decide(states(other, count=1)) == ("ABORT", None)
    assert decide(states(other, count=2)) == ("undecided", None)
    assert decide(states(other)) == ("undecided", None)
    assert decide(states(count=1)) == ("undecided", None)


def test_a_transactional_id_that_has_expired_tells_nothing_more() -> None:
    key, value = record(ONGOING)
    assert decide(states((key, value), (key, None), count=2)) == ("undecided", None)


def test_one_record_that_cannot_be_decoded_hides_no_other() -> None:
    broken = (b"\x00\x00\x00\x09", b"")
    found = states(record(PREPARE_COMMIT), broken, count=1)
    assert decide(found) == ("COMMIT", 5)
    unknown = found.decide(KEY, 11, 0, lambda: BEFORE)
    assert isinstance(unknown, Undecided)
    assert "__transaction_state-0 offset 1" in unknown.reason


def test_a_newer_record_of_the_id_that_cannot_be_decoded_leaves_nothing_decided() -> None:
    key, value = record(ONGOING)
    found = states((key, value), (key, value[:9]), count=1)
    assert decide(found) == ("undecided", None)


def test_a_producer_id_that_was_used_up_is_known_by_the_one_before() -> None:
    found = states(record(PREPARE_COMMIT, 32767, version=2))
    key, value = state_record("x", COMMITTED, 10, 0, {}, version=2)
    previous = value[:-5] + bytes([2, 0, 8]) + (9).to_bytes(8, "big") + value[-4:]
    found.feed(0, 1, key, previous)
    decision = found.decide(KEY, 9, 32766, lambda: BEFORE)
    assert isinstance(decision, Decision)
    assert decision.marker == MarkerType.COMMIT
