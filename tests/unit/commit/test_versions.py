"""Batch writes with an id: what counts is the version in each topic."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.support.sinking import values_of

import kafkalog
from kafkalog.checkpoints.broker import HIGH_WATERMARK, new_topic_id, write_topic_id
from kafkalog.checkpoints.commit_state import STAGED_PREFIX
from kafkalog.errors import BatchIdentityError
from kafkalog.streaming.admin.broker.handover import hand_over, take_over

if TYPE_CHECKING:
    from pathlib import Path

    from kafkalog.streaming.api import Outcome


def write(
    folder: Path, version: int, values: str, *, topic: str = "a", name: str = "me"
) -> Outcome:
    """Append one row for each letter to one topic."""
    table = pa.table({"value": list(values)})
    return kafkalog.append(folder, topic, table, transactional_id=name, version=version)


def write_both(folder: Path, version: int, **topics: str) -> Outcome:
    """Append one row for each letter, to the topics that a column names."""
    rows = [(topic, value) for topic, values in topics.items() for value in values]
    names, values = [list(column) for column in zip(*rows, strict=True)] if rows else ([], [])
    table = pa.table(
        {"topic": pa.array(names, pa.string()), "value": pa.array(values, pa.string())}
    )
    return kafkalog.append(folder, None, table, transactional_id="me", version=version)


def values(folder: Path, topic: str = "a") -> str:
    return "".join(values_of([folder], topic).get(0, []))


def test_one_version_is_written_to_each_topic_once(tmp_path: Path) -> None:
    for appended in (True, False):
        assert write(tmp_path, 5, "x", topic="a").appended is appended
        assert write(tmp_path, 5, "y", topic="b").appended is appended
    assert (values(tmp_path, "a"), values(tmp_path, "b")) == ("x", "y")


def test_versions_grow_with_gaps_in_each_topic_by_itself(tmp_path: Path) -> None:
    versions = [("a", 3), ("b", 1), ("a", 9), ("b", 2), ("a", 4), ("b", 2), ("b", 10)]
    appended = [write(tmp_path, version, "x", topic=topic).appended for topic, version in versions]
    assert appended == [True, True, True, True, False, False, True]


def test_a_version_that_comes_again_with_other_rows_is_refused_and_says_what_to_do(
    tmp_path: Path,
) -> None:
    write(tmp_path, 5, "xy")
    told = r"version 5 of txnAppId 'me' is in topic 'a' already, with other rows.*another txnAppId"
    for other in ("x", "xz", "xyz", ""):
        with pytest.raises(BatchIdentityError, match=told):
            write(tmp_path, 5, other)
    assert not write(tmp_path, 5, "yx").appended
    assert values(tmp_path) == "xy"


def test_a_write_without_rows_counts_where_its_topic_is_there(tmp_path: Path) -> None:
    write(tmp_path, 5, "x")
    write(tmp_path, 6, "")
    with pytest.raises(BatchIdentityError, match="with other rows"):
        write(tmp_path, 6, "y")
    assert not write(tmp_path, 5, "x").appended
    assert write_both(tmp_path, 7).end_offsets == {}
    assert values(tmp_path) == "x"


def test_a_write_to_several_topics_is_there_once(tmp_path: Path) -> None:
    assert write_both(tmp_path, 5, a="x", b="yz").appended
    assert not write_both(tmp_path, 5, b="zy", a="x").appended
    assert not write(tmp_path, 5, "x", topic="a").appended
    assert (values(tmp_path, "a"), values(tmp_path, "b")) == ("x", "yz")


def test_topics_that_have_a_version_with_the_same_rows_do_not_get_them_again(
    tmp_path: Path,
) -> None:
    write(tmp_path, 5, "x", topic="a")
    outcome = write_both(tmp_path, 5, a="x", b="y")
    assert outcome.appended
    assert [key.topic for key in outcome.end_offsets] == ["b"]
    assert (values(tmp_path, "a"), values(tmp_path, "b")) == ("x", "y")


def test_other_rows_for_one_topic_refuse_the_whole_write(tmp_path: Path) -> None:
    write_both(tmp_path, 5, a="x", b="y")
    with pytest.raises(BatchIdentityError, match="in topic 'b' already, with other rows"):
        write_both(tmp_path, 5, b="z", c="w")
    assert not (tmp_path / "c-0").exists()
    assert [path.name for path in tmp_path.glob(f"{STAGED_PREFIX}*")] == []


def test_a_write_that_is_new_to_one_topic_and_too_late_for_another_is_refused(
    tmp_path: Path,
) -> None:
    write_both(tmp_path, 4, a="x", b="y")
    write(tmp_path, 6, "z", topic="a")
    with pytest.raises(BatchIdentityError, match="new to topic 'b', yet topic 'a' has version 6"):
        write_both(tmp_path, 5, a="w", b="w")
    assert (values(tmp_path, "a"), values(tmp_path, "b")) == ("xz", "y")


def test_a_topic_that_was_deleted_begins_anew_and_nobody_is_said_to_be_forgotten(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, 5, "x", topic="a")
    write(tmp_path, 5, "y", topic="b")
    shutil.rmtree(tmp_path / "a-0")
    assert write(tmp_path, 5, "z", topic="a").appended
    assert not write(tmp_path, 5, "z", topic="a").appended
    assert not write(tmp_path, 5, "y", topic="b").appended
    assert values(tmp_path) == "z"
    shutil.rmtree(tmp_path / "a-0")
    write(tmp_path, 1, "w", topic="a", name="other")
    assert caplog.messages == []


def test_a_topic_that_others_have_made_again_begins_anew(tmp_path: Path) -> None:
    write(tmp_path, 5, "x", topic="a")
    shutil.rmtree(tmp_path / "a-0")
    (tmp_path / HIGH_WATERMARK).unlink()
    (tmp_path / "a-0").mkdir()
    write_topic_id(tmp_path / "a-0", new_topic_id())
    assert write(tmp_path, 5, "z", topic="a").appended


def test_a_topic_keeps_its_versions_under_another_id(tmp_path: Path) -> None:
    write(tmp_path, 5, "x")
    hand_over([str(tmp_path)], topic_ids={"a": new_topic_id()})
    take_over([str(tmp_path)])
    assert not write(tmp_path, 5, "x").appended


def test_staged_files_go_with_the_next_write_of_their_id_and_topic_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, 1, "x", topic="a")

    class KilledError(BaseException):
        pass

    def kill(*_: object, **__: object) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr("kafkalog.streaming.api.Committer", kill)
        with pytest.raises(KilledError):
            write(tmp_path, 2, "y", topic="a")
    (staged,) = tmp_path.glob(f"{STAGED_PREFIX}*")
    write(tmp_path, 2, "z", topic="b")
    assert staged.exists()
    write(tmp_path, 2, "y", topic="a")
    assert not staged.exists()
