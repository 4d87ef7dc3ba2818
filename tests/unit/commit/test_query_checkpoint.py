from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kafkalog.checkpoints.query_checkpoint import QueryCheckpoint
from kafkalog.errors import CheckpointError
from kafkalog.jobs.pipelines.checkpoint_folder import reached_of
from kafkalog.model import TopicPartition

if TYPE_CHECKING:
    from pathlib import Path


T0 = TopicPartition("flights", 0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "metadata").write_text(json.dumps({"id": "4711"}))
    (tmp_path / "offsets" / "3").write_text('v1\n{"batchTimestampMs":1}\n{"flights":{"0":7}}')
    return tmp_path


@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_the_digest_is_that_of_the_planned_offsets(folder: Path, scheme: str) -> None:
    checkpoint = QueryCheckpoint.of_query(f"{scheme}{folder}", "4711")
    assert checkpoint is not None
    before = checkpoint.digest(3)
    assert before is not None
    (folder / "offsets" / "3").write_text("v1\n{}\n{}")
    assert checkpoint.digest(3) not in {None, before}
    assert checkpoint.digest(4) is None


@pytest.mark.parametrize("location", [None, "s3://bucket/checkpoint", "hdfs:/c", "/nowhere"])
def test_a_checkpoint_that_is_not_local_is_not_read(location: str | None) -> None:
    assert QueryCheckpoint.of_query(location, "4711") is None


def test_before_the_first_batch_nothing_was_planned(folder: Path) -> None:
    checkpoint = QueryCheckpoint.of_query(str(folder), "4711")
    assert checkpoint is not None
    assert checkpoint.ends(3) == {TopicPartition("flights", 0): 7}
    assert checkpoint.ends(-1) == {}


def test_another_querys_checkpoint_is_not_taken_for_this_ones(folder: Path) -> None:
    assert QueryCheckpoint.of_query(str(folder), "42") is None


@pytest.mark.parametrize("content", ["", "[]", '{"id":7}', "{"])
def test_a_folder_without_a_querys_metadata_is_no_checkpoint(folder: Path, content: str) -> None:
    (folder / "metadata").write_text(content)
    assert QueryCheckpoint.at(str(folder)) is None


def test_a_checkpoint_can_be_made_durable_before_all_of_it_is_there(folder: Path) -> None:
    checkpoint = QueryCheckpoint.of_query(str(folder), "4711")
    assert checkpoint is not None
    checkpoint.sync(3)
    checkpoint.sync(4)


V2 = 'v2\n{"batchTimestampMs":1,"sourceMetadataInfo":{}}\n'


@pytest.mark.parametrize("name", ["0", "my_flights"])
def test_ends_with_names_are_read_likewise(folder: Path, name: str) -> None:
    """Spark writes names with ``spark.sql.streaming.offsetLog.formatVersion=2``."""
    (folder / "offsets" / "3").write_text(f'{V2}{name}:{{"flights": {{"0": 7}}}}')
    checkpoint = QueryCheckpoint(folder)
    assert checkpoint.ends(3) == {TopicPartition("flights", 0): 7}
    assert checkpoint.sources(3) == [{"flights": {"0": 7}}]
    assert reached_of((folder / "offsets" / "3").read_text(), "") == {T0: 7}


@pytest.mark.parametrize(
    "text", ['v1\n{}\n-\n{"flights":{"0":7}}', f'{V2}1:{{"flights":{{"0":7}}}}']
)
def test_a_source_that_has_no_end_yet_hides_no_other(folder: Path, text: str) -> None:
    """What a member of a group has planned is compared with the ends of all sources."""
    (folder / "offsets" / "3").write_text(text)
    assert QueryCheckpoint(folder).sources(3) == [{"flights": {"0": 7}}]


@pytest.mark.parametrize("text", ['v3\n{}\n{"flights":{"0":7}}', "v2\n{}\n0:7\n1:8", "v1\n{}", ""])
def test_what_is_not_known_is_refused(folder: Path, text: str) -> None:
    (folder / "offsets" / "3").write_text(text)
    with pytest.raises(CheckpointError, match="offsets/3 does not tell"):
        QueryCheckpoint(folder).ends(3)
    with pytest.raises(CheckpointError, match="c/offsets/3 does not tell how far the topics are"):
        reached_of(text, "c/offsets/3")
