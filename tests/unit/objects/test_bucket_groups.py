"""Groups whose positions, and members, are kept in a log in an object store."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.support.bucket_model import without_rests
from typer.testing import CliRunner

import kafkalog
from kafkalog.errors import LogDirectoryError, OffsetOutOfRangeError, OptionError
from kafkalog.files.objects import FolderObjects
from kafkalog.jobs.cli.app import app
from kafkalog.model import TopicPartition
from kafkalog.streaming.groups.administration import delete_group, reset_group
from kafkalog.streaming.groups.group_commits import GroupCommits
from kafkalog.streaming.objects import bucket_store
from kafkalog.streaming.objects.bucket_store import bucket_of
from kafkalog.streaming.sink.group_writer import GroupWriter
from kafkalog.streaming.store.policy import SetPolicy

if TYPE_CHECKING:
    from pathlib import Path

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
NOW = {"storage.pollInterval": "0"}


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A log in a bucket with ten rows in each of two partitions."""
    without_rests(monkeypatch)
    objects = FolderObjects(tmp_path / "bucket")
    monkeypatch.setattr(bucket_store, "open_objects", lambda _: objects)
    place = f"s3a://bucket{tmp_path}"
    append(place, 20)
    return place


def append(place: str, count: int) -> None:
    rows = pa.table(
        {
            "value": [f"{number}" for number in range(count)],
            "partition": pa.array([number % 2 for number in range(count)], pa.int32()),
        }
    )
    kafkalog.append(place, "t", rows, options={"numPartitions": 2})


def positions(place: str, group: str = "g") -> dict[TopicPartition, int]:
    root = bucket_of([place])
    assert root is not None
    root.open_store().forget_listing()
    return dict(GroupCommits([root.open_log()], group, SetPolicy()).look().positions)


def call(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(words))
    return done.exit_code, done.output


def test_a_group_is_set_to_where_it_is_to_go_on(place: str) -> None:
    reset_group([place], "g", {T0: 4, T1: 7})
    assert positions(place) == {T0: 4, T1: 7}
    table = kafkalog.read(place, "t", options={"startingOffsets": "group:g"}).read_all()
    assert table.num_rows == 6 + 3
    changed = reset_group([place], "g", "latest")
    assert [(each.before, each.after) for each in changed] == [(4, 10), (7, 10)]
    reset_group([place], "g", "earliest", dry_run=True)
    assert positions(place) == {T0: 10, T1: 10}
    with pytest.raises(OffsetOutOfRangeError, match="expected one from 0"):
        reset_group([place], "g", {T0: 11})


def test_a_change_of_positions_is_one_commit_and_one_request(place: str, tmp_path: Path) -> None:
    def commits() -> int:
        return len(list((tmp_path / "bucket").rglob("commits/*")))

    before = commits()
    reset_group([place], "g", {T0: 1})
    reset_group([place], "g", {T0: 2})
    assert commits() == before + 2
    assert not list((tmp_path / "bucket").rglob("data/*"))


def test_a_group_is_forgotten(place: str) -> None:
    reset_group([place], "g", {T0: 4})
    reset_group([place], "other", {T0: 5})
    delete_group([place], "g")
    assert positions(place) == {}
    assert positions(place, "other") == {T0: 5}
    with pytest.raises(OptionError, match="there is no group 'g'"):
        delete_group([place], "g")


def test_commands_know_groups_in_a_bucket(place: str) -> None:
    code, output = call("group", "reset", place, "-g", "g", "--offsets", '{"t":{"0":4}}', "--yes")
    assert (code, "10" in output or "4" in output) == (0, True), output
    code, output = call("group", "list", place, "--json")
    assert (code, json.loads(output)["lag"]) == (0, 6), output
    code, output = call("group", "describe", place, "-g", "g", "--json")
    assert (code, json.loads(output)["offset"]) == (0, 4), output
    code, output = call("lag", place, "--group", "g")
    assert code == 0, output
    assert "6" in output
    code, output = call("group", "delete", place, "-g", "g", "--yes")
    assert code == 0, output
    assert positions(place) == {}


def test_positions_of_a_topic_that_was_made_again_count_no_more(place: str) -> None:
    reset_group([place], "g", {T0: 4})
    assert call("topic", "delete", place, "-t", "t", "--yes")[0] == 0
    append(place, 4)
    assert positions(place) == {}


def test_a_stream_writes_its_positions(place: str) -> None:
    writer = GroupWriter([place], "g")
    assert writer.commit({T0: 3, T1: 5})
    assert not writer.commit({T0: 3})
    assert positions(place) == {T0: 3, T1: 5}
    large = {TopicPartition("t" * 200, number): number for number in range(4000)}
    writer.commit(large)  # more than a commit has room for
    assert len(positions(place)) == 4002


def test_positions_are_written_to_no_log_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    objects = FolderObjects(tmp_path / "empty")
    monkeypatch.setattr(bucket_store, "open_objects", lambda _: objects)
    with pytest.raises(LogDirectoryError, match="holds no log"):
        GroupWriter(["s3a://bucket/empty"], "g")
    with pytest.raises(LogDirectoryError, match="holds no log"):
        reset_group(["s3a://bucket/empty"], "g", {T0: 1})
    assert not (tmp_path / "empty").exists()
