"""Group positions: the coordinator's replay rules one by one, then whole logs of real brokers."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.coordinator_corpus import (
    OFFSETS_TOPIC,
    dumped_records,
    group_offsets,
    internal_records,
)
from tests.support.messages import i16, offset_commit_key, offset_commit_value, string

from kafkalog.errors import CorruptRecordError
from kafkalog.model import TopicPartition
from kafkalog.streaming.coordinator.group_replay import (
    UNDECODABLE_MARKER,
    CommittedOffset,
    PositionsReplay,
    ReplayRecord,
    group_positions,
    partition_for_group,
)
from kafkalog.streaming.records.control import MarkerType

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kafkalog.streaming.coordinator.group_replay import GroupPositions

G, T0, T1 = "g", TopicPartition("t", 0), TopicPartition("t", 1)


def commit(
    offset: int, committed: int, place: TopicPartition = T0, *, group: str = G, producer: int = -1
) -> ReplayRecord:
    """A commit at a log offset."""
    key = offset_commit_key(group, *place)
    return ReplayRecord(offset, key, offset_commit_value(committed), producer)


def tombstone(offset: int, place: TopicPartition = T0) -> ReplayRecord:
    """A position taken away."""
    return ReplayRecord(offset, offset_commit_key(G, *place), None)


def marker(offset: int, kind: int, *, producer: int = 7) -> ReplayRecord:
    """The end of a producer's transaction."""
    return ReplayRecord(offset, None, None, producer, kind)


def offsets(records: Iterable[ReplayRecord]) -> dict[TopicPartition, int]:
    """Give the committed offsets of the one group."""
    positions = group_positions(records).get(G, {})
    return {place: position.offset for place, position in positions.items()}


def test_a_position_carries_what_was_committed_with_it() -> None:
    value = offset_commit_value(42, leader_epoch=3, metadata="é", timestamp=1700000000000)
    record = ReplayRecord(9, offset_commit_key("grüße", "t", 5), value)
    expected = CommittedOffset(
        offset=42,
        leader_epoch=3,
        metadata="é",
        commit_timestamp_ms=1700000000000,
        expire_timestamp_ms=-1,
        record_offset=9,
    )
    assert group_positions([record]) == {"grüße": {TopicPartition("t", 5): expected}}


def test_the_later_commit_wins_for_each_group_and_partition_alone() -> None:
    records = [
        commit(0, 10),
        commit(1, 20, T1),
        commit(2, 30, group="other"),
        commit(3, 5),
    ]
    assert offsets(records) == {T0: 5, T1: 20}


def test_key_versions_0_and_1_are_the_same_key() -> None:
    old = ReplayRecord(0, offset_commit_key(G, *T0, version=0), offset_commit_value(1))
    assert offsets([old, commit(1, 2)]) == {T0: 2}
    assert offsets([commit(0, 2), old._replace(offset=1)]) == {T0: 1}


def test_a_tombstone_takes_the_position_away_until_the_next_commit() -> None:
    assert group_positions([commit(0, 10), tombstone(1)]) == {}
    assert offsets([commit(0, 10), tombstone(1), commit(2, 11)]) == {T0: 11}


def test_records_of_other_types_are_passed_over() -> None:
    group_metadata = ReplayRecord(1, i16(2) + string(G), None)
    unknown = ReplayRecord(2, i16(999) + b"?", b"?")
    assert offsets([commit(0, 10), group_metadata, unknown]) == {T0: 10}


def test_a_transactional_commit_counts_once_its_transaction_is_committed() -> None:
    open_transaction = [commit(0, 10), commit(1, 20, producer=7)]
    assert offsets(open_transaction) == {T0: 10}
    assert offsets([*open_transaction, marker(2, MarkerType.COMMIT)]) == {T0: 20}


def test_a_transactional_commit_is_dropped_with_its_transaction() -> None:
    records = [commit(0, 10), commit(1, 20, producer=7), marker(2, MarkerType.ABORT)]
    assert offsets(records) == {T0: 10}
    assert offsets([*records, marker(3, MarkerType.COMMIT)]) == {T0: 10}


def test_a_marker_ends_only_its_own_producers_transaction() -> None:
    records = [
        commit(0, 10, producer=7),
        commit(1, 20, T1, producer=8),
        marker(2, MarkerType.COMMIT, producer=7),
    ]
    assert offsets(records) == {T0: 10}


def test_a_commit_further_on_in_the_log_outlives_a_transaction_that_commits_later() -> None:
    records = [commit(0, 20, producer=7), commit(1, 10), marker(2, MarkerType.COMMIT)]
    assert offsets(records) == {T0: 10}


def test_of_two_transactions_the_commit_further_on_in_the_log_wins_whichever_ends_last() -> None:
    first, second = commit(0, 10, producer=7), commit(1, 20, producer=8)
    ends = [marker(2, MarkerType.COMMIT, producer=8), marker(3, MarkerType.COMMIT, producer=7)]
    assert offsets([first, second, *ends]) == {T0: 20}


def test_a_tombstone_clears_what_is_pending_in_every_transaction() -> None:
    records = [
        commit(0, 10, producer=7),
        commit(1, 11, T1, producer=7),
        commit(2, 20, producer=8),
        tombstone(3),
        marker(4, MarkerType.COMMIT, producer=7),
        marker(5, MarkerType.COMMIT, producer=8),
    ]
    assert offsets(records) == {T1: 11}


def test_control_records_of_other_types_end_no_transaction() -> None:
    records = [commit(0, 10, producer=7), marker(1, 2), marker(2, MarkerType.COMMIT)]
    assert offsets(records) == {T0: 10}


def test_the_last_commit_of_a_key_in_one_transaction_wins() -> None:
    records = [
        commit(0, 10, producer=7),
        commit(1, 20, producer=7),
        marker(2, MarkerType.COMMIT),
    ]
    assert offsets(records) == {T0: 20}


def test_a_group_asked_for_is_the_only_one_found_and_damage_in_others_is_not_seen() -> None:
    records = [
        ReplayRecord(0, offset_commit_key("other", *T0), b"\x00\x03damaged"),
        ReplayRecord(1, offset_commit_key("gg", *T0), b""),
        commit(2, 10),
        ReplayRecord(3, i16(1) + i16(30000) + b"cut", offset_commit_value(1)),
        ReplayRecord(4, None, b"value"),
    ]
    positions = group_positions(records, group=G)
    assert {group: set(found) for group, found in positions.items()} == {G: {T0}}
    assert group_positions(records, group="nobody") == {}
    assert group_positions(records, group="x" * 2**15) == {}


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (ReplayRecord(5, offset_commit_key(G, *T0), b"\x00"), "value: 1 bytes, too few"),
        (ReplayRecord(5, offset_commit_key(G, *T0), i16(5)), "version 5 is not known"),
        (ReplayRecord(5, i16(1) + string(G), offset_commit_value(1)), "key: field 'topic'"),
    ],
)
def test_a_damaged_commit_of_the_group_asked_for_is_an_error_with_its_place(
    record: ReplayRecord, reason: str
) -> None:
    with pytest.raises(CorruptRecordError, match=f"^somewhere offset 5: .*{reason}") as caught:
        group_positions([record], group=G, log_name="somewhere")
    assert caught.value.offset == 5


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (ReplayRecord(5, offset_commit_key("bad", *T0), b"\x00"), "value: 1 bytes, too few"),
        (ReplayRecord(5, offset_commit_key("bad", *T0), i16(9)), "version 9 is not known"),
        (ReplayRecord(5, i16(1) + string("bad"), offset_commit_value(1)), "key: field 'topic'"),
        (ReplayRecord(5, None, b"value"), "no key that says what it is"),
        (ReplayRecord(5, b"", b""), "no key that says what it is"),
        (ReplayRecord(5, b"\x00", b"value"), "no key that says what it is"),
        (ReplayRecord(5, None, None, 7, UNDECODABLE_MARKER), "the control record has no key"),
    ],
)
def test_a_record_that_cannot_be_decoded_hides_no_other_group(
    record: ReplayRecord, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    replay = PositionsReplay(log_name="somewhere")
    for each in (commit(4, 10), record, commit(6, 20, T1), ReplayRecord(7, i16(99), b"new")):
        replay.feed(each)
    for _ in range(2):
        assert {k: at.offset for k, at in replay.positions()[G].items()} == {T0: 10, T1: 20}
    (told,) = caplog.messages
    assert told.startswith("somewhere: 1 record cannot be decoded")
    assert reason in told
    assert "offset 5" in told


def test_a_marker_that_cannot_be_decoded_is_an_error_where_the_group_waits_for_it() -> None:
    odd = ReplayRecord(5, None, None, 7, UNDECODABLE_MARKER)
    assert group_positions([commit(0, 10), odd], group=G)[G][T0].offset == 10
    with pytest.raises(CorruptRecordError, match="offset 5: the control record"):
        group_positions([commit(0, 10, producer=7), odd], group=G)


def test_damage_that_a_later_commit_covers_does_not_matter() -> None:
    damaged = ReplayRecord(0, offset_commit_key(G, *T0), b"")
    assert offsets([damaged, commit(1, 10)]) == {T0: 10}


# --- compaction -----------------------------------------------------------------------------------


class Step(NamedTuple):
    """Something that happens to the log: a commit, a tombstone (no producer), or a marker."""

    place: int
    producer: int
    is_tombstone: bool
    marker: MarkerType | None


STEPS = st.lists(
    st.builds(
        Step,
        place=st.integers(0, 2),
        producer=st.sampled_from([-1, 7, 8]),
        is_tombstone=st.booleans(),
        marker=st.sampled_from([None, None, MarkerType.COMMIT, MarkerType.ABORT]),
    ),
    max_size=30,
)


def log_of(steps: list[Step], ends: list[MarkerType]) -> tuple[list[ReplayRecord], set[int]]:
    """Lay out a log in which every transaction ends; also the offsets of aborted commits."""
    records: list[ReplayRecord] = []
    aborted: set[int] = set()
    open_offsets: dict[int, list[int]] = defaultdict(list)
    all_steps = [*steps, Step(0, 7, False, ends[0]), Step(0, 8, False, ends[1])]
    for offset, step in enumerate(all_steps):
        place = TopicPartition("t", step.place)
        if step.producer == -1:
            plain = tombstone if step.is_tombstone else lambda o, p: commit(o, o, p)
            records.append(plain(offset, place))
        elif step.marker is None:
            records.append(commit(offset, offset, place, producer=step.producer))
            open_offsets[step.producer].append(offset)
        else:
            records.append(marker(offset, step.marker, producer=step.producer))
            ended = open_offsets.pop(step.producer, [])
            aborted.update(ended if step.marker == MarkerType.ABORT else [])
    return records, aborted


@given(STEPS, st.tuples(*[st.sampled_from(MarkerType)] * 2).map(list))
@settings(max_examples=200)
def test_positions_are_the_same_after_compaction(steps: list[Step], ends: list[MarkerType]) -> None:
    records, aborted = log_of(steps, ends)
    cleanable = [record for record in records if record.offset not in aborted]
    last = {record.key: record.offset for record in cleanable if record.key is not None}
    compacted = [
        record for record in cleanable if record.key is None or last[record.key] == record.offset
    ]
    assert group_positions(compacted) == group_positions(records)


# --- real brokers ---------------------------------------------------------------------------------


def as_the_broker_tells(
    positions: GroupPositions,
) -> dict[str, dict[TopicPartition, tuple[int, int, str]]]:
    """Give what offsets.json holds."""
    return {
        group: {
            place: (position.offset, position.leader_epoch, position.metadata)
            for place, position in found.items()
        }
        for group, found in positions.items()
    }


def test_positions_replayed_with_markers_are_those_that_the_broker_answered() -> None:
    """The dump tool's listing supplies what clients never get: producer ids and markers."""
    rows = {
        (row["partition"], row["offset"]): row
        for row in internal_records("p09-groups", OFFSETS_TOPIC).to_pylist()
    }
    replay: dict[int, list[ReplayRecord]] = defaultdict(list)
    for dumped in dumped_records("p09-groups"):
        topic, partition = dumped.topic_partition
        if topic != OFFSETS_TOPIC:
            continue
        if dumped.marker is not None:
            record = marker(dumped.offset, MarkerType[dumped.marker], producer=dumped.producer_id)
        else:
            row = rows[partition, dumped.offset]
            record = ReplayRecord(dumped.offset, row["key"], row["value"], dumped.producer_id)
        replay[partition].append(record)
    markers = [record.marker_type for records in replay.values() for record in records]
    assert {MarkerType.COMMIT, MarkerType.ABORT} <= set(markers)

    positions: GroupPositions = {}
    for records in replay.values():
        positions |= group_positions(records)
    assert as_the_broker_tells(positions) == group_offsets("p09-groups")


def test_positions_of_committed_records_alone_are_those_that_the_broker_answered() -> None:
    """Without markers, what ``read_committed`` lets through is what counts, in log order."""
    replay: dict[int, list[ReplayRecord]] = defaultdict(list)
    batch = internal_records("p09-groups", OFFSETS_TOPIC)
    for row in batch.to_pylist():
        if row["committed"]:
            replay[row["partition"]].append(ReplayRecord(row["offset"], row["key"], row["value"]))
    assert sum(map(len, replay.values())) < batch.num_rows

    positions: GroupPositions = {}
    for records in replay.values():
        positions |= group_positions(records)
    assert as_the_broker_tells(positions) == group_offsets("p09-groups")


def test_groups_lie_in_the_partitions_that_their_broker_chose() -> None:
    for row in internal_records("p09-groups", OFFSETS_TOPIC).to_pylist():
        size = int.from_bytes(row["key"][2:4], "big")
        group = row["key"][4 : 4 + size].decode()
        assert partition_for_group(group, 4) == row["partition"]


@pytest.mark.parametrize(
    ("group", "partition"),
    [
        ("my-group", 12),
        ("test", 48),
        ("", 0),
        ("polygenelubricants", 0),  # its hash is -2**31, which has no absolute value in 32 bits
        ("grüße", 23),
        ("グループ", 20),
        ("😀", 49),  # two UTF-16 units: 31 * 0xD83D + 0xDE00 = 1772899
        ("\ud83d", 7),
    ],
)
def test_a_groups_partition_is_that_of_javas_string_hash(group: str, partition: int) -> None:
    assert partition_for_group(group) == partition
