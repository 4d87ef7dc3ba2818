"""Commits and checkpoints of a log in an object store: what they hold comes back, or is refused."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalog.checkpoints.bucket_state import (
    MAX_INLINE_BYTES,
    BucketCommit,
    BucketState,
    Extent,
    SealedIndexes,
    checkpoint_bytes,
    checkpoint_name,
    commit_bytes,
    number_of_checkpoint,
    parse_checkpoint,
    parse_commit,
    segment_name,
)
from kafkalog.checkpoints.commit_state import PartitionState, TopicState, WriterState
from kafkalog.checkpoints.sealed_file import seal
from kafkalog.errors import CheckpointError

DATA = f"data/{5:020}-{'a' * 32}"
PLAIN = Extent(DATA, 100, 200, 0, 3, 1_700_000_000_000, 0)
INLINE = Extent("", 0, 61, 3, 1, -1, 0)
COMMIT = BucketCommit(
    number=1,
    commit_id="c1",
    previous="",
    log_id="l",
    topics={
        "t": TopicState(
            "topic",
            partitions={7: PartitionState(0, 4, 4, 0)},
            settings={"compression.type": "zstd"},
            versions={"app": WriterState("", 3, "rows 1", 5)},
            last_query="query:q",
        )
    },
    writers={"query:q": WriterState("run", 12, "digest", 99, ("old",))},
    extents={("t", 7): [PLAIN, INLINE]},
    inline=b"i" * 61,
)


def test_a_commit_comes_back_with_its_inline_batches_at_their_places() -> None:
    data = commit_bytes(COMMIT)
    parsed = parse_commit(data, "name")
    plain, inline = parsed.extents["t", 7]
    assert plain == PLAIN
    assert inline == INLINE._replace(object=f"commits/{1:020}", position=len(data) - 61)
    assert replace(parsed, size=0, extents=COMMIT.extents) == COMMIT
    assert parsed.size == len(data) - len(parsed.inline)


def state_after_commit() -> BucketState:
    state = BucketState("l")
    state.apply(parse_commit(commit_bytes(COMMIT), "name"))
    return state


def test_a_checkpoint_comes_back() -> None:
    state = state_after_commit()
    assert parse_checkpoint(checkpoint_bytes(state), "name") == state


SEGMENT = segment_name("topic-id/topic-7", 0, 5, "b" * 32)
INDEXES = SealedIndexes(16, 24, 0, b"\0" * 8, b"\1" * 12)
SEALED = Extent(SEGMENT, 0, 150, 0, 2, 1_700_000_000_000, 0, sealed=INDEXES)
REST = PLAIN._replace(position=250, size=61, base_offset=2, records=1)
MERGE = BucketCommit(
    number=2,
    commit_id="c2",
    previous="c1",
    log_id="l",
    replaced={("t", 7): [SEALED, REST]},
    clean={("t", 7): 2},
)


def test_what_takes_the_place_of_others_comes_back() -> None:
    parsed = parse_commit(commit_bytes(MERGE), "name")
    assert replace(parsed, size=0) == MERGE
    state = state_after_commit()
    state.apply(parsed)
    assert [each.base_offset for each in state.extents["t", 7]] == [0, 2, 3]
    assert state.extents["t", 7][:2] == [SEALED, REST]
    assert state.clean == {("t", 7): 2}
    assert state.dropped == {}  # the rest of it is still there
    assert parse_checkpoint(checkpoint_bytes(state), "name") == state
    again = replace(MERGE, number=3, commit_id="c3", previous="c2")
    state.apply(
        replace(again, replaced={("t", 7): [SEALED, REST._replace(object=DATA[:-1] + "c")]})
    )
    assert state.dropped == {DATA: 3}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"replaced": {("t", 7): [SEALED]}}, "it replaces the offsets 0 to 2"),
        ({"replaced": {("t", 7): [REST]}}, "it replaces the offsets 2 to 3"),
        ({"replaced": {("t", 8): [SEALED, REST]}}, "it replaces the offsets 0 to 3"),
        ({"replaced": {("u", 7): [SEALED, REST]}}, "it replaces extents of u-7"),
        ({"replaced": {("t", 7): []}}, "it replaces extents of t-7"),
        ({"replaced": {("t", 7): [SEALED, PLAIN]}}, "an extent begins at 0"),
        ({"deleted": ("t",)}, "it replaces extents of t-7"),
        ({"replaced": {}, "clean": {("u", 7): 2}}, "it has compacted u-7"),
    ],
)
def test_what_takes_no_place_changes_nothing(change: dict[str, Any], fault: str) -> None:
    state = state_after_commit()
    with pytest.raises(ValueError, match=fault):
        state.apply(replace(MERGE, **change))
    assert state == state_after_commit()


def test_who_merges_for_too_long_is_refused() -> None:
    state = state_after_commit()
    state.swept = 6
    assert state.find_swept(MERGE) == SEGMENT  # what is left of an object was there before
    with pytest.raises(ValueError, match="all below 6 is swept"):
        state.apply(MERGE)


def test_what_a_commit_does_not_name_stays() -> None:
    state = state_after_commit()
    changed = TopicState("topic", partitions={8: PartitionState(0, 0, 0, 0)})
    commit = BucketCommit(
        number=2, commit_id="c2", previous="c1", log_id="l", topics={"t": changed}
    )
    state.apply(commit)
    topic = state.topics["t"]
    assert sorted(topic.partitions) == [7, 8]
    assert (topic.settings, topic.last_query) == ({}, "query:q")
    assert "app" in topic.versions
    assert state.writers == COMMIT.writers


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"number": 3}, "it is commit 3"),
        ({"log_id": "other"}, "of log other"),
        ({"previous": "another"}, "it follows another"),
        ({"topics": {"t": TopicState("renamed")}}, "it calls topic"),
        (
            {"topics": {"t": TopicState("topic", partitions={7: PartitionState(0, 9, 9, 0)})}},
            "the extents end at 4",
        ),
        (
            {"topics": {"t": TopicState("topic", partitions={7: PartitionState(0, 4, 4, -1)})}},
            "it rolls back",
        ),
        ({"extents": {("t", 7): [PLAIN]}}, "and not its end"),
    ],
)
def test_what_does_not_follow_changes_nothing(change: dict[str, Any], fault: str) -> None:
    state = state_after_commit()
    commit = BucketCommit(number=2, commit_id="c2", previous="c1", log_id="l")
    with pytest.raises(ValueError, match=fault):
        state.apply(replace(commit, **change))
    assert state == state_after_commit()


def sealed(*lines: dict[str, Any], inline: bytes = b"") -> bytes:
    head = {"commit": 1, "id": "c", "previous": "", "log": "l", "inline": len(inline)}
    return seal("kafkalog.bucket.commit", 1, [head, *lines]) + inline


def extents(*extent: object) -> dict[str, Any]:
    return {"extents": "t", "partition": 0, "of": [list(extent)]}


@pytest.mark.parametrize(
    "line",
    [
        extents("../secrets", 0, 100, 0, 1, 0, 0),
        extents(f"{DATA}/../../x", 0, 100, 0, 1, 0, 0),
        extents("/etc/passwd", 0, 100, 0, 1, 0, 0),
        extents(DATA, -1, 100, 0, 1, 0, 0),
        extents(DATA, 0, 60, 0, 1, 0, 0),
        extents(DATA, 1, (1 << 63) - 1, 0, 1, 0, 0),
        extents(DATA, 0, 100, 0, 0, 0, 0),
        extents(DATA, 0, 100, (1 << 63) - 1, 1, 0, 0),
        extents(DATA, 0, 100, 0, 1, 1 << 63, 0),
        extents(DATA, 0, 100, 0, 1, 0, 1 << 31),
        extents(DATA, 0, 100, 0, True, 0, 0),
        extents("", 0, 62, 0, 1, 0, 0),
        extents(DATA, 0, 100),
        extents(DATA, 0, 100, 0, 1, 0, 0, 4),
        extents(DATA, 0, 100, 0, 1, 0, 0, [1, 1, 1, "", ""]),
        extents(SEGMENT, 0, 100, 0, 1, 0, 0),
        extents(SEGMENT, 0, 100, 0, 1, 0, 0, 1),
        extents(SEGMENT, 0, 100, 0, 1, 0, 0, [1, 1, 1, "", "?"]),
        extents(SEGMENT, 0, 100, 0, 1, 0, 0, [1, 1, 1 << 31, "", ""]),
        extents(SEGMENT, 0, 100, 0, 1, 0, 0, [1, 1, "", ""]),
        extents(SEGMENT.replace("topic-7", "../x-7"), 0, 100, 0, 1, 0, 0, [1, 1, 1, "", ""]),
        {"replaced": "t", "partition": 0, "of": [["", 0, 61, 0, 1, 0, 0]]},
        {"clean": [["t", 0]]},
        {"clean": [["t", 0, -1]]},
        {"extents": "t", "partition": 0, "of": [7]},
        {"extents": "t", "partition": 0, "of": 7},
        {"extents": "t", "partition": -1, "of": []},
        {"extents": "t", "partition": 0, "of": [], "later": 1},
        {"writer": "w"},
        {"of a later release": 1},
        {"topic": "..", "id": "t", "settings": {}, "partitions": {}},
    ],
)
def test_what_no_commit_can_say_is_refused(line: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=r"the\.name"):
        parse_commit(sealed(line, inline=b"i" * 61), "the.name")


def test_a_later_version_is_refused_with_the_name_of_what_to_use() -> None:
    data = seal("kafkalog.bucket.commit", 2, [{"commit": 1}])
    with pytest.raises(CheckpointError, match="use the release that wrote it"):
        parse_commit(data, "name")


def test_a_commit_carries_no_more_than_a_mebibyte() -> None:
    with pytest.raises(ValueError, match="bytes inline"):
        commit_bytes(replace(COMMIT, inline=b"i" * (MAX_INLINE_BYTES + 1)))


def test_the_newest_checkpoint_is_listed_first() -> None:
    names = [checkpoint_name(number) for number in (0, 9, 10, 10**12)]
    assert sorted(names, reverse=True) == names
    assert number_of_checkpoint(names[1].rpartition("/")[2]) == 9
    assert number_of_checkpoint("9") is None


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_bytes_that_were_changed_are_refused_or_mean_the_same(data: st.DataObject) -> None:
    original = data.draw(st.sampled_from([COMMIT, MERGE]))
    content = bytearray(commit_bytes(original))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    del content[len(content) - data.draw(st.sampled_from([0, 0, 1, 61, 62, 200])) :]
    try:
        parsed = parse_commit(bytes(content), "name")
    except CheckpointError:
        return
    assert parsed.commit_id == original.commit_id
    assert (parsed.topics, parsed.replaced) == (original.topics, original.replaced)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.text(max_size=8)
    | st.floats(),
    lambda inner: st.lists(inner, max_size=7) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)
FIELDS = ["topic", "id", "settings", "partitions", "versions", "extents", "partition", "of"]
FIELDS += ["writer", "run", "deleted", "dropped", "swept", "delay", "forgotten"]
FIELDS += ["replaced", "clean", "listed", "floor"]
LINES = st.lists(st.dictionaries(st.sampled_from(FIELDS), JSON), max_size=3)
NAMES = st.sampled_from(["", "data/" + "1" * 20 + "-" + "a" * 32, "../x", "data/../../x", "/etc"])
NUMBERS = st.integers(-3, 300) | st.integers(-(1 << 70), 1 << 70)
EXTENTS = st.lists(st.tuples(NAMES, *[NUMBERS] * 6).map(list), max_size=4)


@settings(max_examples=200, deadline=None)
@given(extents=EXTENTS, start=NUMBERS, end=NUMBERS, inline=st.integers(0, 300))
def test_extents_lie_in_the_log_or_are_refused(
    extents: list[list[object]], start: int, end: int, inline: int
) -> None:
    head = {"commit": 1, "id": "c", "log": "l", "previous": "", "inline": inline}
    topic = json.loads(commit_bytes(COMMIT).splitlines()[2])
    topic |= {"partitions": {"0": [start, end, end, 0]}}
    lines = [head, topic, {"extents": topic["id"], "partition": 0, "of": extents}]
    data = seal("kafkalog.bucket.commit", 1, lines) + bytes(inline)
    state = BucketState("l")
    with suppress(CheckpointError, ValueError):
        commit = parse_commit(data, "name")
        for each in (extent for some in commit.extents.values() for extent in some):
            assert re.fullmatch(r"(data/\d{20}-[0-9a-f]{32}|commits/0{19}1)", each.object)
            assert 61 <= each.size < 1 << 63
            assert each.object.startswith("data/") or each.position + each.size <= len(data)
        state.apply(commit)
        assert parse_checkpoint(checkpoint_bytes(state), "name") == state


@settings(max_examples=100, deadline=None)
@given(lines=LINES, head=st.dictionaries(st.sampled_from(["commit", "id", "log"]), JSON))
def test_whatever_lines_say_they_are_read_or_refused(
    lines: list[dict[str, Any]], head: dict[str, Any]
) -> None:
    known = {"commit": 1, "id": "c", "log": "l"} | head
    for kind, more, parse in (
        ("commit", {"previous": "", "inline": 0}, parse_commit),
        ("checkpoint", {}, parse_checkpoint),
    ):
        data = seal(f"kafkalog.bucket.{kind}", 1, [known | more, *lines])
        with suppress(CheckpointError):
            parse(data, "name")  # type: ignore[operator]


def test_a_commit_weighs_what_it_changes() -> None:
    partitions = {number: PartitionState(0, 9, 9, 0) for number in range(10_000)}
    state = BucketState("l", 1, "c1", {"t": TopicState("topic", partitions=partitions)})
    change = TopicState("topic", partitions={7: PartitionState(0, 12, 12, 0)})
    commit = replace(
        COMMIT,
        number=2,
        previous="c1",
        topics={"t": change},
        extents={("t", 7): [PLAIN._replace(base_offset=9)]},
        inline=b"",
    )
    state.apply(commit)
    assert len(commit_bytes(commit)) < 4096
    assert json.loads(commit_bytes(commit).splitlines()[2])["partitions"] == {"7": [0, 12, 12, 0]}
