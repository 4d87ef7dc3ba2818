"""A batch continues where its target ends, or it is refused before its first row."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.states import last_batch

from kafkalog.errors import CheckpointError, DataLossError, TargetMismatchError
from kafkalog.jobs.pipelines.continuation import (
    HeldTopic,
    PlannedBatch,
    TargetState,
    WaysOn,
    first_offsets,
)
from kafkalog.model import TopicPartition
from kafkalog.streaming.log.history import Divergence

WAYS = WaysOn("the table /lake/t", "/logs/a", "the checkpoint /c")
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
HELD = TargetState("e", "set", {"t": HeldTopic("A", {0: 100}, {0: last_batch(90, 7)})})


def planned(start: int | None, end: int, **known: object) -> PlannedBatch:
    return PlannedBatch({T0: (start, end)}, {"t": "A"}, "set", **known)  # type: ignore[arg-type]


@pytest.mark.parametrize("start", [None, 0, 40, 100])
def test_a_batch_is_taken_from_where_the_target_ends(start: int | None) -> None:
    assert first_offsets(HELD, planned(start, 120), WAYS) == {T0: 100}


def test_a_target_that_holds_nothing_takes_what_a_reader_begins_with() -> None:
    assert first_offsets(TargetState(), planned(None, 9), WAYS) == {T0: 0}
    assert first_offsets(HELD, PlannedBatch({T1: (None, 5)}, {"t": "A"}), WAYS) == {T1: 0}


def test_what_was_deleted_before_a_target_got_it_is_a_loss_where_a_reader_begins_above() -> None:
    with pytest.raises(DataLossError, match="before the table /lake/t got them: t-0 from 100 to 1"):
        first_offsets(HELD, planned(None, 120, log_starts={T0: 102}), WAYS)
    seen_by_the_reader = planned(90, 120, log_starts={T0: 102})
    for batch in (seen_by_the_reader, planned(None, 120, log_starts={T0: 100})):
        assert first_offsets(HELD, batch, WAYS) == {T0: 100}


@pytest.mark.parametrize(
    ("held", "batch", "says"),
    [
        (HELD, planned(101, 120), "t-0 from 101, and up to 100 is there"),
        (TargetState(), planned(101, 120), "t-0 from 101, and nothing of it is there"),
        (HELD, PlannedBatch({T1: (7, 7)}, {"t": "A"}), "t-1 from 7, and nothing of it is there"),
    ],
)
def test_a_batch_above_the_end_of_its_target_is_refused_with_the_ways_on(
    held: TargetState, batch: PlannedBatch, says: str
) -> None:
    with pytest.raises(TargetMismatchError) as caught:
        first_offsets(held, batch, WAYS)
    text = str(caught.value)
    assert says in text
    assert all(way in text for way in ("--from-target", "--rebuild", "another --checkpoint"))
    assert "the table /lake/t" in text
    assert "the checkpoint /c" in text


def test_another_topic_of_the_same_name_is_refused() -> None:
    other = replace(planned(100, 120), topic_ids={"t": "B"})
    with pytest.raises(TargetMismatchError, match="t with the id A there, and B in /logs/a"):
        first_offsets(HELD, other, WAYS)
    asked = []

    def is_changed(*ids: str) -> bool:
        asked.append(ids)
        return True

    assert first_offsets(HELD, other, WAYS, is_changed_id=is_changed) == {T0: 100}
    assert asked == [("t", "A", "B")]


def test_without_topic_ids_the_set_tells() -> None:
    other = replace(planned(100, 120), topic_ids={}, set_id="another")
    with pytest.raises(TargetMismatchError, match="of the set set there, and another now"):
        first_offsets(HELD, other, WAYS)
    assert first_offsets(HELD, replace(other, set_id=None), WAYS) == {T0: 100}


def test_a_log_that_ends_below_what_is_held_is_refused() -> None:
    with pytest.raises(TargetMismatchError, match="t-0 ends at 99 in /logs/a, and 100 is held"):
        first_offsets(HELD, planned(90, 99, log_ends={T0: 99}), WAYS)
    assert first_offsets(HELD, planned(90, 99, log_ends={T0: 100}), WAYS) == {T0: 100}


def test_a_log_that_was_cut_and_has_grown_is_refused() -> None:
    for found in (last_batch(90, 8), None):
        diverged = {T0: Divergence(100, last_batch(90, 7), found, cut_at=60)}
        with pytest.raises(TargetMismatchError, match=r"other .* at offset 100, below which"):
            first_offsets(HELD, planned(100, 120, diverged=diverged), WAYS)


def test_what_is_held_after_a_batch_never_goes_back() -> None:
    last = last_batch(110, 9)
    after = HELD.after(planned(90, 120, batches_below={T0: last}))
    assert after.topics["t"] == HeldTopic("A", {0: 120}, {0: last})
    assert HELD.after(planned(10, 50)) == HELD
    assert HELD.after(planned(100, 100)) == HELD
    assert HELD.after(PlannedBatch({T1: (None, 4)})).ends == {T0: 100, T1: 4}
    assert HELD.after(planned(100, 130)).topics["t"].batches == {}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version":2}', '{"version":1,"epoch":"e"}'])
def test_a_text_that_does_not_tell_what_is_held_is_refused(text: str) -> None:
    with pytest.raises(CheckpointError, match="does not tell what a target holds"):
        TargetState.from_json(text)


names = st.text(min_size=1, max_size=4)
numbers = st.integers(0, 40)
held_topics = st.builds(
    HeldTopic,
    st.none() | names,
    st.dictionaries(numbers, numbers, max_size=3),
    st.dictionaries(numbers, st.builds(last_batch, numbers, numbers), max_size=3),
)
states = st.builds(TargetState, names, st.none() | names, st.dictionaries(names, held_topics))


@given(states)
def test_a_state_is_read_as_it_was_written(state: TargetState) -> None:
    assert TargetState.from_json(state.to_json()) == state


steps = st.lists(
    st.tuples(st.sampled_from(["append", "batch", "old", "lost", "roll back"]), st.integers(0, 9)),
    max_size=30,
)


@given(steps)
def test_whatever_is_set_back_a_target_holds_a_prefix_of_its_source_each_row_once(
    steps: list[tuple[str, int]],
) -> None:
    """A model: rows are their offsets; a checkpoint is where it will start, or None."""
    log_end, rows, held = 0, list[int](), TargetState()
    checkpoints: list[int | None] = [None]
    targets = [(rows, held)]
    for what, number in steps:
        if what == "append":
            log_end += number
        elif what == "old":
            checkpoints.append(checkpoints[number % len(checkpoints)])
        elif what == "lost":
            checkpoints.append(None)
        elif what == "roll back":
            rows, held = targets[number % len(targets)]
        else:
            end = min(log_end, (checkpoints[-1] or 0) + number)
            batch = PlannedBatch({T0: (checkpoints[-1], end)}, log_ends={T0: log_end})
            try:
                first = first_offsets(held, batch, WAYS)[T0]
            except TargetMismatchError:
                assert (checkpoints[-1] or 0) > len(rows)  # a gap, and nothing else, is refused
                continue
            rows = rows + [at for at in range(checkpoints[-1] or 0, end) if at >= first]
            held = held.after(batch)
            checkpoints.append(end)
            targets.append((rows, held))
        assert rows == list(range(len(rows)))
        assert held.end_of(T0) in {None, len(rows)}
