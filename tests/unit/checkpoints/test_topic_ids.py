from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kafkalog.checkpoints.topic_ids import (
    TOPIC_IDS_FILE,
    is_changed_id,
    load_topic_ids,
    merged_changed_ids,
    note_changed_ids,
    save_topic_ids,
)
from kafkalog.errors import CheckpointError
from kafkalog.model import TopicPartition

if TYPE_CHECKING:
    from pathlib import Path

IDS = {TopicPartition("t", 10): "b" * 22, TopicPartition("t", 2): "a" * 22}


def test_ids_are_kept_in_a_folder_that_is_made(tmp_path: Path) -> None:
    folder = tmp_path / "states" / "query"
    assert load_topic_ids(folder) == {}
    save_topic_ids(folder, IDS)
    save_topic_ids(folder, IDS | {TopicPartition("u", 0): "c" * 22})
    assert load_topic_ids(folder) == IDS | {TopicPartition("u", 0): "c" * 22}
    assert [path.name for path in folder.iterdir()] == [TOPIC_IDS_FILE]


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    save_topic_ids(tmp_path, IDS)
    path = tmp_path / TOPIC_IDS_FILE
    path.write_bytes(path.read_bytes().replace(b"aaaa", b"aaab"))
    with pytest.raises(CheckpointError, match=r"is damaged.*as without stateLocation") as caught:
        load_topic_ids(tmp_path)
    assert "log directories" not in str(caught.value)  # whose files are all right


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CheckpointError, match="cannot be written"):
        save_topic_ids(tmp_path / "file" / "state", IDS)


def test_changed_ids_are_followed_from_one_to_the_next(tmp_path: Path) -> None:
    note_changed_ids(tmp_path, [])
    assert not is_changed_id(tmp_path, "t", "a", "b")
    note_changed_ids(tmp_path, [("t", "a", "b"), ("u", "a", "x")])
    note_changed_ids(tmp_path, [("t", "b", "c")])
    assert is_changed_id(tmp_path, "t", "a", "b")
    assert is_changed_id(tmp_path, "t", "a", "c")
    assert is_changed_id(tmp_path, "t", "b", "c")
    assert not is_changed_id(tmp_path, "t", "c", "a")
    assert not is_changed_id(tmp_path, "t", "a", "x")


def test_changes_that_directories_have_noted_are_merged_in_their_order(tmp_path: Path) -> None:
    """Each may lack some of them: it was away."""
    noted = (["b"], ["a", "b", "d"], [], ["a", "c", "d"])
    for number, changes in enumerate(noted):
        folder = tmp_path / str(number)
        folder.mkdir()
        note_changed_ids(folder, [("t", one, chr(ord(one) + 1)) for one in changes])
    merged = merged_changed_ids(sorted(tmp_path.iterdir()))
    assert merged is not None
    lines = [json.loads(line) for line in merged.splitlines()[1:]]
    assert [line["from"] for line in lines] == ["a", "b", "c", "d"]
    assert merged_changed_ids([tmp_path / "2"]) is None
