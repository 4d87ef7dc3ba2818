"""The versions of commit state and intent: what is refused, and that what is written is read."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.states import lines_of
from tests.unit.checkpoints.test_commit_state import INTENT, STATE

from kafkalog.checkpoints.commit_state import (
    FORMAT_VERSION,
    STATE_FILE,
    CommitState,
    DeletedTopic,
    PartitionState,
    TopicState,
    WriterState,
)
from kafkalog.checkpoints.committed import load_committed
from kafkalog.checkpoints.intent import (
    INTENT_FILE,
    IntendedPartition,
    IntendedPiece,
    IntendedSegment,
    Intent,
    StagedFile,
    load_intent,
)
from kafkalog.checkpoints.sealed_file import seal
from kafkalog.checkpoints.state_file import load_state, state_bytes
from kafkalog.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FILES = [
    pytest.param(STATE_FILE, state_bytes(STATE), load_state, id="state"),
    pytest.param(INTENT_FILE, INTENT.to_bytes(), load_intent, id="intent"),
]
IN_ONE_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def unknown_fields() -> list[Any]:
    """Give each place where a field may stand, by the number of its line."""
    places = []
    for name, content, load in ((p.values[0], p.values[1], p.values[2]) for p in FILES):
        for number, line in enumerate(lines_of(content), start=2):
            places.append(pytest.param(name, content, load, number, (), id=f"{name}-{number}"))
            for app_id in line.get("versions", {}):
                place = ("versions", app_id)
                places.append(pytest.param(name, content, load, number, place, id="a version"))
            for key in line.get("origins", {}):
                place = ("origins", key)
                places.append(pytest.param(name, content, load, number, place, id="an origin"))
    return places


@pytest.mark.parametrize(("name", "content", "load", "number", "place"), unknown_fields())
def test_a_field_that_this_release_does_not_know_is_refused_with_file_line_and_way_out(
    name: str,
    content: bytes,
    load: Callable[[Path], object],
    number: int,
    place: tuple[str, ...],
    tmp_path: Path,
) -> None:
    lines = lines_of(content)
    within = lines[number - 2]
    for step in place:
        within = within[step]
    within["unheard of"] = 1
    (tmp_path / name).write_bytes(seal(name, 2, lines))
    told = rf"{name}: line {number} has the field 'unheard of'.*Use the release that wrote the file"
    with pytest.raises(CheckpointError, match=told):
        load(tmp_path)


def test_deletions_and_the_end_of_a_clusters_metadata_are_kept(tmp_path: Path) -> None:
    deleted = {
        "uFGqkIFMSr2WgOzrHH8Hrg": DeletedTopic("gone"),
        ":older": DeletedTopic("older", is_retired=True),
    }
    state = replace(STATE, deleted=deleted, metadata_end=57)
    (tmp_path / STATE_FILE).write_bytes(state_bytes(state))
    assert load_state(tmp_path) == state


def test_a_line_that_is_neither_of_a_topic_nor_of_a_writer_is_refused(tmp_path: Path) -> None:
    lines = [*lines_of(state_bytes(STATE)), {"group": "g", "members": []}]
    (tmp_path / STATE_FILE).write_bytes(seal(STATE_FILE, 2, lines))
    with pytest.raises(CheckpointError, match=rf"line {len(lines) + 1} has neither .*'group'"):
        load_state(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "load", "newest"),
    [pytest.param(*p.values, newest, id=p.id) for p, newest in zip(FILES, (4, 3), strict=True)],
)
def test_the_next_format_is_refused(
    name: str, content: bytes, load: Callable[[Path], object], newest: int, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(seal(name, newest + 1, lines_of(content)))
    told = rf"version {newest + 1}, this release of kafkalog knows versions up to {newest}: use the"
    with pytest.raises(CheckpointError, match=told):
        load(tmp_path)
    with pytest.raises(CheckpointError, match=told):
        load_committed([tmp_path])


@pytest.mark.parametrize(("name", "content", "load"), FILES)
def test_a_version_that_was_never_given_out_is_refused(
    name: str, content: bytes, load: Callable[[Path], object], tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(seal(name, 1, lines_of(content)))
    with pytest.raises(CheckpointError, match="holds what no release of kafkalog has written"):
        load(tmp_path)


# Whatever there is to say, and whatever may stand in its place

offsets = st.integers(0, 2**63 - 1)
words = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
topic_ids = st.text("abcXYZ019_-", min_size=1, max_size=22)
names = st.text("abcXYZ019._-", min_size=1, max_size=20).filter(lambda n: n not in {".", ".."})
numbers = st.integers(0, 2**31 - 1)
partition_states = st.builds(
    lambda ends, epoch: PartitionState(*sorted(ends), epoch),
    st.tuples(offsets, offsets, offsets),
    st.integers(-1, 2**31 - 1),
)
writers = st.builds(
    WriterState,
    words,
    offsets,
    st.none() | words,
    offsets,
    st.lists(words, max_size=3).map(tuple),
    offsets,
    st.none() | offsets,
)
versions = writers.map(lambda w: WriterState("", *(getattr(w, f) for f in _OF_A_VERSION)))
_OF_A_VERSION = ("batch_id", "digest", "time_ms")


@st.composite
def topics(draw: st.DrawFn) -> tuple[str, TopicState]:
    """Draw a topic with its key."""
    name = draw(names)
    partitions = draw(st.dictionaries(numbers, partition_states, max_size=4))
    topic = TopicState(
        name,
        partitions,
        draw(st.dictionaries(words, words, max_size=3)),
        draw(st.dictionaries(words, versions, max_size=2)),
        draw(st.none() | words),
        {number: draw(offsets) for number in partitions if draw(st.booleans())},
    )
    return draw(st.none() | topic_ids) or f":{name}", topic


states = st.builds(
    CommitState,
    offsets,
    words,
    words,
    st.lists(words, max_size=3).map(tuple),
    st.lists(topics(), max_size=3).map(dict),
    st.dictionaries(words, writers, max_size=3),
    words,
    st.none() | words,
    offsets,
)
staged = st.builds(StagedFile, words, words.map(lambda w: "." + w.replace("/", "")))
pieces = st.builds(
    IntendedPiece, staged, offsets, offsets, st.integers(0, 2**32 - 1), offsets, st.booleans()
)
segments = st.builds(IntendedSegment, offsets, offsets, offsets, st.booleans())
intended = st.builds(
    IntendedPartition,
    names,
    topic_ids,
    numbers,
    words,
    st.booleans(),
    st.integers(-1, 2**31 - 1),
    st.booleans(),
    offsets,
    offsets,
    st.lists(offsets, max_size=3).map(tuple),
    st.lists(pieces, max_size=3).map(tuple),
    st.lists(segments, max_size=3).map(tuple),
)
intents = st.builds(
    Intent, offsets, words, words, offsets, st.lists(intended, max_size=3).map(tuple), words
)


@given(state=states)
@IN_ONE_FOLDER
def test_any_state_is_read_back_as_it_was_written(state: CommitState, tmp_path: Path) -> None:
    (tmp_path / STATE_FILE).write_bytes(state_bytes(state))
    assert load_state(tmp_path) == state


@given(intent=intents)
@IN_ONE_FOLDER
def test_any_intent_is_read_back_as_it_was_written(intent: Intent, tmp_path: Path) -> None:
    (tmp_path / INTENT_FILE).write_bytes(intent.to_bytes())
    assert load_intent(tmp_path) == intent


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=5,
)


@st.composite
def broken(draw: st.DrawFn, content: bytes, version: int = FORMAT_VERSION) -> bytes:
    """Draw a file with another value or piece of text in one place; its checksum is right."""
    name = json.loads(content.partition(b"\n")[0])["format"]
    lines = lines_of(content)
    if draw(st.booleans()):
        within: Any = draw(st.sampled_from(lines))
        while True:
            steps = list(within) if isinstance(within, dict) else list(range(len(within)))
            step = draw(st.sampled_from(steps))
            if not isinstance(within[step], dict | list) or not within[step] or draw(st.booleans()):
                break
            within = within[step]
        within[step] = draw(json_values)
    sealed = seal(name, version, lines)
    header, _, text = sealed.partition(b"\n")
    if draw(st.booleans()):
        at, size = draw(st.integers(0, len(text) - 1)), draw(st.integers(0, 8))
        text = text[:at] + draw(st.binary(max_size=8)) + text[at + size :]
    return _with_checksum(header, text)


def _with_checksum(header: bytes, text: bytes) -> bytes:
    head = json.loads(header)
    head["crc32c"] = f"{crc32c(text):08x}"
    return json.dumps(head).encode() + b"\n" + text


@pytest.mark.parametrize(("name", "content", "load"), FILES)
@given(data=st.data())
@IN_ONE_FOLDER
def test_with_anything_in_a_place_a_file_is_refused_or_can_be_written_again(
    name: str,
    content: bytes,
    load: Callable[[Path], Any],
    data: st.DataObject,
    tmp_path: Path,
) -> None:
    (tmp_path / name).write_bytes(data.draw(broken(content)))
    try:
        found = load(tmp_path)
    except CheckpointError as error:
        told = str(error)
    else:
        told = name
        again = state_bytes(found) if name == STATE_FILE else found.to_bytes()
        (tmp_path / name).write_bytes(again)
        assert load(tmp_path) == found
    assert name in told


@pytest.mark.parametrize(("name", "content", "load"), FILES)
@given(position=st.integers(0, 10_000), flip=st.integers(1, 255))
@IN_ONE_FOLDER
def test_a_flipped_bit_is_noticed(
    name: str,
    content: bytes,
    load: Callable[[Path], object],
    position: int,
    flip: int,
    tmp_path: Path,
) -> None:
    damaged = bytearray(content)
    damaged[position % len(damaged)] ^= flip
    (tmp_path / name).write_bytes(damaged)
    with pytest.raises(CheckpointError, match=name):
        load(tmp_path)
