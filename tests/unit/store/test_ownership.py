"""Folders that lie in a log directory and are not its own: links, and copies of another topic."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from tests.support.sinking import Writer, rows, values_of
from tests.support.states import ends_of

import kafkalog
from kafkalog.checkpoints.broker import PARTITION_METADATA, read_topic_id
from kafkalog.checkpoints.commit_state import LOCK_FILE
from kafkalog.checkpoints.state_file import load_state
from kafkalog.errors import LogDirectoryError, OptionError
from kafkalog.streaming.admin.broker.handover import hand_over, take_over
from kafkalog.streaming.admin.recovery import recover

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

UPKEEP = pytest.mark.parametrize("work", [recover, hand_over, take_over])


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != LOCK_FILE  # which names its last holder
    }


def topics(folder: Path) -> dict[str, dict[int, int]]:
    state = load_state(folder)
    assert state is not None
    return {topic.name: ends_of(topic) for topic in state.topics.values()}


def whole_log(folder: Path, topic: str) -> list[str]:
    options = {"readUpTo": "logEnd"}
    rows = kafkalog.read(folder, topic, columns=["value"], strings=["value"], options=options)
    values: list[str] = rows.read_all()["value"].to_pylist()
    return values


@pytest.fixture
def linked(tmp_path: Path) -> tuple[Path, Path]:
    """Give two sets; the first one's ``t-0`` is a link into the second one."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    Writer(ours, topic="own").write(0, rows(["a"]))
    Writer(theirs, topic="t").write(0, rows(["b"]))
    (ours / "t-0").symlink_to(theirs / "t-0")
    return ours, theirs


def test_a_partition_folder_that_is_a_link_is_read_and_not_written(
    linked: tuple[Path, Path],
) -> None:
    ours, theirs = linked
    before = content(theirs)
    for option in ({}, {"allowBrokerDirectory": "true"}):
        with pytest.raises(LogDirectoryError, match=r"ours/t-0 is a link to .*theirs/t-0"):
            Writer(ours, name="new", topic="t", **option).write(0, rows(["c"]))
    assert content(theirs) == before
    assert whole_log(ours, "t") == ["b"]
    Writer(ours, topic="own").write(1, rows(["c"]))


@UPKEEP
def test_upkeep_reports_a_link_and_leaves_it_alone(
    linked: tuple[Path, Path], work: Callable[..., kafkalog.streaming.admin.recovery.RecoveryReport]
) -> None:
    ours, theirs = linked
    with (theirs / "t-0" / f"{0:020d}.log").open("ab") as log:
        log.write(b"torn")
    before = content(theirs)
    assert any("is a link" in problem for problem in work([str(ours)]).problems)
    assert content(theirs) == before
    assert topics(ours) == {"own": {0: 1}}


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """Give a set in which ``b-0`` is a copy of ``a-0``, and with it the topic id."""
    writer = Writer(tmp_path, topic="a")
    writer.write(0, rows(["x"]))
    shutil.copytree(tmp_path / "a-0", tmp_path / "b-0")
    writer.write(1, rows(["y"]))
    return tmp_path


def test_a_copy_of_a_folder_under_another_name_drops_no_topic(copied: Path) -> None:
    with pytest.raises(LogDirectoryError, match=r"'b' carries the topic id of topic 'a'"):
        Writer(copied, name="new", topic="b").write(0, rows(["z"]))
    Writer(copied, topic="a").write(2, rows(["z"]))
    assert values_of([copied], "a") == {0: ["x", "y", "z"]}
    assert whole_log(copied, "b") == ["x"]


@UPKEEP
def test_upkeep_reports_a_copy_and_leaves_it_alone(
    copied: Path, work: Callable[..., kafkalog.streaming.admin.recovery.RecoveryReport]
) -> None:
    before = content(copied / "b-0")
    problems = work([str(copied)]).problems
    assert any("'b' carries the topic id of topic 'a'" in problem for problem in problems)
    assert content(copied / "b-0") == before
    assert topics(copied) == {"a": {0: 2}}


def test_a_copy_becomes_a_topic_of_its_own_as_the_message_says(copied: Path) -> None:
    (copied / "b-0" / PARTITION_METADATA).unlink()
    assert take_over([str(copied)]).problems == []
    Writer(copied, name="new", topic="b").write(0, rows(["z"]))
    assert values_of([copied], "b") == {0: ["x", "z"]}
    assert values_of([copied], "a") == {0: ["x", "y"]}


def test_a_handover_gives_no_topic_the_id_of_another(tmp_path: Path) -> None:
    for name in "ab":
        Writer(tmp_path, name=name, topic=name).write(0, rows([name]))
    before = content(tmp_path)
    other = str(read_topic_id(tmp_path / "b-0"))
    own = str(read_topic_id(tmp_path / "a-0"))
    for ids in ({"a": other}, {"a": other, "b": own}):
        with pytest.raises(OptionError, match=f"{other} is the id of topic 'b'"):
            hand_over([str(tmp_path)], topic_ids=ids)
    assert content(tmp_path) == before
    assert hand_over([str(tmp_path)], topic_ids={"a": own}).problems == []
