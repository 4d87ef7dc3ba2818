"""A topic that is deleted, by hand or by command, and recreated: its group begins at its start."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import fsspec
import pytest
from tests.support.consuming import consumer, numbers, output, positions, recreate_topic, table
from tests.support.replicated import append as append_on_nodes

from kafkalog.checkpoints.broker import new_topic_id, read_topic_id, write_topic_id
from kafkalog.checkpoints.topic_ids import CHANGED_IDS_FILE, note_changed_ids
from kafkalog.errors import CheckpointError, CommitError, FencedMemberError
from kafkalog.jobs.inspection.groups import list_groups
from kafkalog.jobs.inspection.lag import LagMeter, LagTargets
from kafkalog.jobs.inspection.log_dirs import ends_of
from kafkalog.model import TopicPartition, TopicSelection
from kafkalog.streaming.admin.topics import delete
from kafkalog.streaming.api import append, read
from kafkalog.streaming.consumer import consumer as consumer_module
from kafkalog.streaming.groups.administration import GroupWriter
from kafkalog.streaming.groups.group_commits import GroupCommits
from kafkalog.streaming.source.end_offsets import LookRetries
from kafkalog.streaming.store.ends.tracker import LogEndTracker
from kafkalog.streaming.store.policy import SetPolicy

if TYPE_CHECKING:
    from pathlib import Path

    import kafkalog

IN = [TopicPartition("in", number) for number in range(4)]


def rest(reader: kafkalog.Consumer) -> list[int]:
    """Poll until nothing comes."""
    found = []
    while (rows := reader.poll(0.3 if found else 1.0)) is not None:
        found += numbers(rows)
    return found


@pytest.mark.parametrize("count", [4, 40, 80])
def test_a_topic_recreated_under_a_member_is_read_from_its_start(folder: Path, count: int) -> None:
    with consumer(folder, on_revoke=lambda _: reader.commit()) as reader:
        assert len(rest(reader)) == 40
        reader.commit()
        append(folder, "in", table([40]))
        assert rest(reader) == [40]
        recreate_topic(folder, count)
        assert sorted(rest(reader)) == [*range(200, 200 + count)]
        reader.commit()
        assert positions(folder) == dict.fromkeys(IN, count // 4)


def test_rows_of_a_topic_that_was_recreated_meanwhile_move_no_position(folder: Path) -> None:
    with consumer(folder) as reader:
        rows = reader.poll(5)
        assert rows is not None
        recreate_topic(folder, 40)
        with pytest.raises(FencedMemberError, match="stands at no offset of in-0"):
            reader.commit()
        # What was read as of the topic before may be of this one already, and comes again.
        assert {*rest(reader)} == {*range(200, 240)}
        with pytest.raises(CommitError, match="nothing was written"):
            append(folder, "out", output(rows), consumer=reader)


@pytest.mark.parametrize("count", [4, 40, 80])
def test_a_group_that_comes_back_reads_a_recreated_topic_from_its_start(
    folder: Path, count: int
) -> None:
    with consumer(folder) as reader:
        assert len(rest(reader)) == 40
        reader.commit()
    recreate_topic(folder, count)
    with consumer(folder, options={"startingOffsets": "latest"}) as reader:
        assert sorted(rest(reader)) == [*range(200, 200 + count)]


def test_positions_in_partitions_that_a_recreated_topic_does_not_have_are_taken_away(
    folder: Path,
) -> None:
    with consumer(folder) as reader:
        assert len(rest(reader)) == 40
        reader.commit()
        recreate_topic(folder, 4)
        for key in IN[2:]:
            shutil.rmtree(folder / str(key))
        assert sorted(rest(reader)) == [200, 201]
        found = GroupCommits([folder], "g", SetPolicy()).look()
        assert (set(found.positions), found.outdated) == (set(IN[:2]), set())


def test_positions_of_others_clients_count_whatever_topic_has_the_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GroupWriter, "_known_of", lambda *_: ({}, {}))  # as who knows no ids
    GroupWriter([str(folder)], "g").commit(dict.fromkeys(IN, 9))
    recreate_topic(folder, 40)
    with consumer(folder) as reader:
        assert sorted(rest(reader)) == [236, 237, 238, 239]
        reader.commit()
    recreate_topic(folder, 40)
    with consumer(folder) as reader:
        assert len(rest(reader)) == 40, "who has committed them has said of which topic"


def test_a_topic_that_only_gets_another_id_keeps_its_positions(folder: Path) -> None:
    with consumer(folder) as reader:
        assert len(rest(reader)) == 40
        reader.commit()
    new_id = new_topic_id()
    old_id = read_topic_id(folder / "in-0")
    assert old_id is not None
    note_changed_ids(folder, [("in", old_id, new_id)])
    for key in IN:
        write_topic_id(folder / str(key), new_id)
    with consumer(folder) as reader:
        assert rest(reader) == []


def test_a_topic_that_got_another_id_is_the_same_in_a_copy_in_a_store(folder: Path) -> None:
    known, now = read_topic_id(folder / "in-0"), new_topic_id()
    assert known is not None
    note_changed_ids(folder, [("in", known, now)])
    store = fsspec.filesystem("memory")
    store.put(str(folder), "/changed", recursive=True)
    try:
        ends = ends_of(["memory://changed"], TopicSelection.of("in"))
        ends.look()
        assert ends.is_changed_id("in", known, now)
        assert not ends.is_changed_id("in", now, known)
    finally:
        store.rm("/changed", recursive=True)


def test_that_a_topic_got_another_id_is_known_if_one_node_has_noted_it(tmp_path: Path) -> None:
    nodes = [tmp_path / name for name in "abc"]
    append_on_nodes(nodes, 0, ["first"])
    ends = LogEndTracker(nodes)
    ends.look()
    note_changed_ids(nodes[2], [("t", "a", "b")])
    (nodes[0] / CHANGED_IDS_FILE).write_text("nonsense")
    assert ends.is_changed_id("t", "a", "b")
    with pytest.raises(CheckpointError, match=CHANGED_IDS_FILE):
        ends.is_changed_id("t", "b", "a")


def test_who_starts_where_a_group_stands_reads_a_recreated_topic_from_its_start(
    folder: Path,
) -> None:
    with consumer(folder) as reader:
        assert len(rest(reader)) == 40
        reader.commit()
    recreate_topic(folder, 80)
    rows = read(folder, "in", options={"startingOffsets": "group:g"}).read_all()
    assert len(rows) == 80
    shown = [(row["offset"], row["end"], row["lag"]) for row in list_groups([str(folder)], ["g"])]
    assert shown == [(None, 20, 20)] * 4
    meter = LagMeter([str(folder)], LagTargets(groups=["g"]))
    assert [row["lag"] for row in meter.look()] == [20] * 4


def test_a_topic_that_got_another_id_is_read_from_where_the_group_stands(folder: Path) -> None:
    with consumer(folder) as reader:
        assert len(rest(reader)) == 40
        reader.commit()
    append(folder, "in", table([40]))
    known, now = read_topic_id(folder / "in-0"), new_topic_id()
    assert known is not None
    note_changed_ids(folder, [("in", known, now)])
    for each in IN:
        write_topic_id(folder / str(each), now)
    rows = read(folder, "in", options={"startingOffsets": "group:g", "readUpTo": "logEnd"})
    assert numbers(rows.read_all()) == [40]


def test_a_position_that_a_query_has_written_is_of_its_topic_too(folder: Path) -> None:
    GroupWriter([str(folder)], "g").commit(dict.fromkeys(IN, 4))
    assert positions(folder) == dict.fromkeys(IN, 4)
    recreate_topic(folder, 40)
    assert positions(folder) == {}
    with consumer(folder) as reader:
        assert sorted(rest(reader)) == [*range(200, 240)]


@pytest.mark.parametrize("count", [4, 40, 80])
@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_topic_deleted_by_command_and_recreated_between_two_polls_is_read_from_its_start(
    folder: Path, count: int, start: str
) -> None:
    """The command takes the group's positions away, and nobody has looked meanwhile."""
    with consumer(folder, options={"startingOffsets": start}) as reader:
        assert len(rest(reader)) == (40 if start == "earliest" else 0)
        reader.commit()
        delete([str(folder)], "in")
        append(folder, "in", table(range(200, 200 + count)), options={"numPartitions": 4})
        assert sorted(rest(reader)) == [*range(200, 200 + count)]
        reader.commit()
        assert positions(folder) == dict.fromkeys(IN, count // 4)


def test_a_topic_is_known_by_its_id_though_nothing_of_it_was_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fetcher meets the new logs before the member has heard of the new topic."""
    with consumer(folder, options={"startingOffsets": "latest"}) as reader:
        assert not rest(reader)
        reader.commit()
        monkeypatch.setattr(consumer_module, "LOOK_S", 3600)
        delete([str(folder)], "in")
        append(folder, "in", table(range(200, 280)), options={"numPartitions": 4})
        assert sorted(rest(reader)) == [*range(200, 280)]


def test_a_recreated_topic_that_ends_where_the_other_did_is_not_looked_at_again_as_a_loss(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fetcher meets the new logs before the member does: nothing is lost, so none waits."""
    with consumer(folder, options={"startingOffsets": "latest"}) as reader:
        assert not rest(reader)
        reader.commit()
        delete([str(folder)], "in")
        append(folder, "in", table(range(200, 240)), options={"numPartitions": 4})
        rests: list[object] = []
        monkeypatch.setattr(LookRetries, "_rest", rests.append)
        with monkeypatch.context() as patch:
            patch.setattr(consumer_module, "LOOK_S", 3600)
            assert reader.poll(0) is None
        assert rests == []
        assert sorted(rest(reader)) == [*range(200, 240)]


def test_a_recreated_topic_with_more_partitions_is_read_whole(folder: Path) -> None:
    with consumer(folder, options={"startingOffsets": "latest"}) as reader:
        assert rest(reader) == []
        delete([str(folder)], "in")
        append(folder, "in", table(range(200, 280)), options={"numPartitions": 8})
        assert sorted(rest(reader)) == [*range(200, 280)]
        reader.commit()


def test_rows_of_a_topic_that_was_deleted_are_refused_and_those_that_follow_are_not(
    folder: Path,
) -> None:
    with consumer(folder) as reader:
        rows = reader.poll(5)
        assert rows is not None
        delete([str(folder)], "in")
        append(folder, "in", table(range(200, 240)), options={"numPartitions": 4})
        with pytest.raises(FencedMemberError, match="stands at no offset of in-0"):
            append(folder, "out", output(rows), consumer=reader)
        found = []
        while (rows := reader.poll(1.0)) is not None:
            append(folder, "out", output(rows), consumer=reader)
            found += numbers(rows)
        assert sorted(found) == [*range(200, 240)]


def test_a_position_without_an_id_counts_in_the_topic_that_replaces_one_under_a_member(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GroupWriter, "_known_of", lambda *_: ({}, {}))  # as who knows no ids
    GroupWriter([str(folder)], "g").commit(dict.fromkeys(IN, 9))
    with consumer(folder) as reader:
        assert sorted(rest(reader)) == [36, 37, 38, 39]
        recreate_topic(folder, 80)
        assert sorted(rest(reader)) == [*range(236, 280)], "as another member would begin there"
        reader.commit()
    assert positions(folder) == dict.fromkeys(IN, 20)
