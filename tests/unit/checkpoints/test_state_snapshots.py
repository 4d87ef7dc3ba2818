"""Large commit states: a snapshot, and what has changed since it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.sinking import Writer, rows, values_of
from tests.support.states import lines_of
from tests.unit.checkpoints.test_commit_state import STATE
from tests.unit.checkpoints.test_state_formats import (
    IN_ONE_FOLDER,
    broken,
    numbers,
    states,
    topics,
)

from kafkalog.checkpoints import state_file
from kafkalog.checkpoints.commit_state import (
    CHANGES_VERSION,
    FORMAT_VERSION,
    SNAPSHOT,
    STATE_FILE,
    CommitState,
    StateSnapshot,
)
from kafkalog.checkpoints.state_file import StateContent, load_state, state_bytes
from kafkalog.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write each state with a snapshot, however small it is."""
    monkeypatch.setattr(state_file, "FEW_ENTRIES", -1)


def write_snapshot(folder: Path, state: CommitState) -> StateSnapshot:
    content = StateContent.of(replace(state, snapshot=None))
    assert content.snapshot is not None
    (folder / content.snapshot.file).write_bytes(content.new_snapshot)
    return content.snapshot


def write(folder: Path, state: CommitState, snapshot: StateSnapshot) -> None:
    (folder / STATE_FILE).write_bytes(state_bytes(state, snapshot))


@st.composite
def later(draw: st.DrawFn, before: CommitState) -> CommitState:
    """Draw a state that may follow: things stay, change, come and go."""
    now = draw(states)
    kept = {key: it for key, it in before.topics.items() if draw(st.booleans())}
    for key, topic in kept.items():
        _, other = draw(topics())
        gone = {n for n in topic.partitions if draw(st.booleans())}
        partitions = {n: p for n, p in topic.partitions.items() if n not in gone}
        ends = {n: e for n, e in topic.durable_ends.items() if n not in gone}
        moved = {n: p for n, p in other.partitions.items() if draw(st.booleans())}
        epochs = {n: draw(numbers) for n in moved if draw(st.booleans())}
        kept[key] = replace(
            topic,
            partitions=partitions | moved,
            durable_ends=ends | {n: e for n, e in other.durable_ends.items() if n in moved},
            cluster_epochs=epochs,
            settings=draw(st.sampled_from([topic.settings, other.settings])),
            versions={a: v for a, v in topic.versions.items() if draw(st.booleans())}
            | dict(other.versions),
        )
    writers = {key: it for key, it in before.writers.items() if draw(st.booleans())}
    return replace(
        now, set_id=before.set_id, topics=now.topics | kept, writers=now.writers | writers
    )


@given(data=st.data(), before=states)
@IN_ONE_FOLDER
@pytest.mark.usefixtures("always")
def test_a_state_and_its_snapshot_are_read_back_as_the_state_that_was_written(
    data: st.DataObject, before: CommitState, tmp_path: Path
) -> None:
    snapshot = write_snapshot(tmp_path, before)
    now = data.draw(later(before))
    write(tmp_path, now, snapshot)
    found = load_state(tmp_path)
    assert found == now
    assert found is not None
    assert found.snapshot is not None
    once_more = data.draw(later(now))
    write(tmp_path, once_more, found.snapshot)
    assert load_state(tmp_path) == once_more


@given(data=st.data())
@IN_ONE_FOLDER
@pytest.mark.usefixtures("always")
def test_with_anything_in_a_place_a_state_or_its_snapshot_is_refused_or_can_be_written_again(
    data: st.DataObject, tmp_path: Path
) -> None:
    snapshot = write_snapshot(tmp_path, STATE)
    now = data.draw(later(STATE))
    write(tmp_path, now, snapshot)
    path = tmp_path / data.draw(st.sampled_from([STATE_FILE, snapshot.file]))
    version = CHANGES_VERSION if path.name == STATE_FILE else 1
    path.write_bytes(data.draw(broken(path.read_bytes(), version)))
    try:
        found = load_state(tmp_path)
    except CheckpointError as error:
        told = str(error)
    else:
        told = "kafkalog."
        assert found is not None
        (tmp_path / STATE_FILE).write_bytes(state_bytes(found))
        assert load_state(tmp_path) == found
    assert "kafkalog." in told


@pytest.mark.usefixtures("always")
def test_a_snapshot_that_is_gone_torn_or_of_another_commit_is_told_with_the_way_out(
    tmp_path: Path,
) -> None:
    snapshot = write_snapshot(tmp_path, STATE)
    write(tmp_path, STATE, snapshot)
    path = tmp_path / snapshot.file
    data = path.read_bytes()
    for size in range(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(CheckpointError, match=SNAPSHOT):
            load_state(tmp_path)
    other = write_snapshot(tmp_path, replace(STATE, set_id="another"))
    path.write_bytes((tmp_path / other.file).read_bytes())
    with pytest.raises(CheckpointError, match="another snapshot than the one of this commit"):
        load_state(tmp_path)
    path.unlink()
    with pytest.raises(CheckpointError, match="which is not there") as raised:
        load_state(tmp_path)
    assert "Restore all log directories of the set from one backup" in str(raised.value)
    path.write_bytes(data)
    assert load_state(tmp_path) == STATE


@pytest.mark.usefixtures("always")
def test_an_id_of_a_snapshot_leads_nowhere_else(tmp_path: Path) -> None:
    snapshot = write_snapshot(tmp_path, STATE)
    outside = tmp_path / "outside"
    outside.write_bytes((tmp_path / snapshot.file).read_bytes())
    write(tmp_path, STATE, replace(snapshot, snapshot_id="x/../../outside"))
    with pytest.raises(CheckpointError, match="is no id of a snapshot"):
        load_state(tmp_path)


@pytest.mark.usefixtures("always")
def test_a_reader_whose_snapshot_is_removed_under_it_reads_the_next_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = write_snapshot(tmp_path, STATE)
    write(tmp_path, STATE, older)
    newer = replace(STATE, sequence=STATE.sequence + 1)
    read = state_file.read_sealed

    def read_slowly(path: Path, *given: object, **named: object) -> object:
        found = read(path, *given, **named)  # type: ignore[arg-type]
        monkeypatch.setattr(state_file, "read_sealed", read)
        write(tmp_path, newer, write_snapshot(tmp_path, newer))
        (tmp_path / older.file).unlink()
        return found

    monkeypatch.setattr(state_file, "read_sealed", read_slowly)
    assert load_state(tmp_path) == newer


def all_values(*folders: Path) -> list[str]:
    return sorted(value for each in values_of(folders, "t").values() for value in each)


def version(folder: Path) -> int:
    header: dict[str, int] = json.loads((folder / STATE_FILE).read_bytes().partition(b"\n")[0])
    return header["version"]


def snapshots(folder: Path) -> set[str]:
    return {path.name for path in folder.glob(f"{SNAPSHOT}.*")}


def test_a_commit_to_a_large_set_writes_what_it_changes(tmp_path: Path) -> None:
    few, many = tmp_path / "few", tmp_path / "many"
    Writer(few, topic="t", numPartitions="400").write(0, rows(["a"] * 800))
    assert version(few) == FORMAT_VERSION
    assert not snapshots(few)

    writer = Writer(many, topic="t", numPartitions="2000")
    writer.write(0, rows(["a"] * 4000))
    whole = sum((many / name).stat().st_size for name in snapshots(many))
    assert version(many) == CHANGES_VERSION
    assert whole > 30_000
    for number in range(1, 4):
        writer.write(number, rows(["b"]))
        assert len(snapshots(many)) == 1
        assert (many / STATE_FILE).stat().st_size < 1_000
    assert all_values(many) == [*["a"] * 4000, *["b"] * 3]


def test_once_changes_are_many_there_is_another_snapshot_and_the_last_but_one_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_file, "FEW_ENTRIES", 10)
    monkeypatch.setattr(state_file, "SMALL_CHANGES", 600)
    writer = Writer(tmp_path, topic="t", numPartitions="40")
    seen: list[set[str]] = []
    for number in range(40):
        writer.write(number, rows([str(number)]))
        seen.append(snapshots(tmp_path))
    assert len(set.union(*seen)) > 4
    assert max(map(len, seen)) == 2
    assert all_values(tmp_path) == sorted(map(str, range(40)))


def test_a_directory_that_has_lost_its_snapshot_is_refused_until_it_has_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_file, "FEW_ENTRIES", -1)
    one, other = tmp_path / "one", tmp_path / "other"
    writer = Writer(one, other, topic="t", numPartitions="4")
    writer.write(0, rows(["a"]))
    for path in other.glob(f"{SNAPSHOT}.*"):
        path.unlink()
    with pytest.raises(CheckpointError, match="which is not there"):
        writer.write(1, rows(["b"]))
    for path in one.glob(f"{SNAPSHOT}.*"):
        (other / path.name).write_bytes(path.read_bytes())
    writer.write(1, rows(["b"]))
    assert all_values(one, other) == ["a", "b"]


def test_the_lines_of_a_state_say_only_what_has_changed(tmp_path: Path) -> None:
    writer = Writer(tmp_path, topic="t", numPartitions="600")
    writer.write(0, rows(["a"] * 600))
    writer.write(1, rows(["b"]))
    head, *others = lines_of((tmp_path / STATE_FILE).read_bytes())
    assert head["gone"] == []
    (topic,) = (line for line in others if "topic" in line)
    assert len(topic["partitions"]) == len(topic["changed"]) == 1
