"""State files that are damaged, older than the rest, or gone: each was once taken at its word.

``tests/fuzz/odd_files.py`` looks for more of them.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from tests.support.consuming import keep_groups_small
from tests.support.logs import Row, batch_bytes, write_checkpoint, write_segment
from tests.support.replicated import append, values
from tests.support.sinking import Writer, rows
from tests.support.transactions import BrokerLog

import kafkalog
from kafkalog.checkpoints.broker import (
    HIGH_WATERMARK,
    LEADER_EPOCHS,
    LOG_START_OFFSET,
    PARTITION_METADATA,
    write_topic_id,
)
from kafkalog.checkpoints.commit_state import LOCK_FILE, PREPARED_FILE, STATE_FILE
from kafkalog.checkpoints.state_file import load_state
from kafkalog.errors import CheckpointError, FencedMemberError, LogDirectoryError
from kafkalog.files.system import system
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.broker.handover import hand_over, take_over
from kafkalog.streaming.admin.retention import delete_records
from kafkalog.streaming.consumer.query_member import MEMBER_NAME_FILE, kept_name
from kafkalog.streaming.groups.group_commits import GroupCommits, ReadRange
from kafkalog.streaming.groups.member_files import MEMBER_PREFIX
from kafkalog.streaming.groups.membership import GroupMember
from kafkalog.streaming.groups.planned_commit import Plan, load_plan, save_plan
from kafkalog.streaming.groups.rebalance import MemberSettings
from kafkalog.streaming.store.policy import SetPolicy

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def _values(log: Path) -> list[str]:
    found = kafkalog.read(log, "t", columns=("value",), strings=("value",)).read_all()
    return [str(value) for value in found.column("value").to_pylist()]


@pytest.mark.parametrize("becomes", ["lost", "damaged", "renamed"])
def test_deleted_records_stay_deleted_though_the_file_of_log_starts_is_lost(
    tmp_path: Path, becomes: str
) -> None:
    Writer(tmp_path, topic="t").write(0, rows(["a", "b", "c"]))
    delete_records([str(tmp_path)], {TopicPartition("t", 0): 2})
    (tmp_path / LOG_START_OFFSET).unlink()
    if becomes == "damaged":
        (tmp_path / LOG_START_OFFSET).write_text("0\n1\n")
        with pytest.raises(CheckpointError, match=LOG_START_OFFSET):
            take_over([str(tmp_path)])
        (tmp_path / LOG_START_OFFSET).unlink()
    elif becomes == "renamed":
        hand_over([str(tmp_path)], topic_ids={"t": "hpYgM1pPTfKkq0oFhDYc0w"})
    take_over([str(tmp_path)])
    assert _values(tmp_path) == ["c"]


def test_what_a_broker_has_not_committed_stays_hidden_though_its_checkpoint_is_damaged(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "t-0"
    folder.mkdir()
    write_segment(folder, 0, batch_bytes(0, [Row(b"a")]) + batch_bytes(1, [Row(b"b")]))
    write_checkpoint(tmp_path, HIGH_WATERMARK, {"t-0": 1})
    assert _values(tmp_path) == ["a"]
    (tmp_path / HIGH_WATERMARK).write_text("0\n")
    with pytest.raises(CheckpointError, match=f"{HIGH_WATERMARK}.*Restore it; or remove it"):
        _values(tmp_path)


@pytest.mark.parametrize("line", ["t -1 5", "../t 0 5", "t/u 0 5", f"{'t' * 250} 0 5"])
def test_a_name_that_no_partition_can_have_is_told_with_its_file(tmp_path: Path, line: str) -> None:
    Writer(tmp_path, topic="t").write(0, rows(["a"]))
    (tmp_path / HIGH_WATERMARK).write_text(f"0\n1\n{line}\n")
    (problem,) = hand_over([str(tmp_path)]).problems
    assert problem.startswith(f"{tmp_path / HIGH_WATERMARK}: ")
    assert "Restore it; or remove it" in problem


def test_a_partition_whose_file_is_damaged_is_not_said_to_lack_its_folder(tmp_path: Path) -> None:
    Writer(tmp_path, topic="t", numPartitions="2").write(0, rows(["a", "b"], partitions=[0, 1]))
    (tmp_path / "t-0" / LEADER_EPOCHS).write_text("1\n0\n")
    (tmp_path / "t-0" / f"{0:020d}.log").write_bytes(b"")
    (problem,) = hand_over([str(tmp_path)]).problems
    assert problem.startswith(f"{tmp_path / 't-0' / LEADER_EPOCHS}: ")


def test_a_takeover_leaves_a_topic_alone_of_which_a_partition_has_another_id(
    tmp_path: Path,
) -> None:
    writer = Writer(tmp_path, topic="t", numPartitions="2")
    writer.write(0, rows(["a", "b"], partitions=[0, 1]))
    before = load_state(tmp_path)
    write_topic_id(tmp_path / "t-1", "hpYgM1pPTfKkq0oFhDYc0w")
    (problem,) = take_over([str(tmp_path)]).problems
    assert "carry different topic ids" in problem
    assert f"{PARTITION_METADATA} was damaged: restore it" in problem
    assert load_state(tmp_path) == before
    with pytest.raises(LogDirectoryError, match="carry different topic ids"):
        writer.write(1, rows(["c"]))


def test_an_index_of_aborted_transactions_that_is_empty_does_not_say_that_nothing_was(
    tmp_path: Path,
) -> None:
    (tmp_path / "t-0").mkdir()
    log = BrokerLog(tmp_path / "t-0")
    log.play((("send", 1), ("abort", 1), ("roll", 0), ("plain", 2)))
    write_checkpoint(tmp_path, HIGH_WATERMARK, {"t-0": log.next_offset})
    for index in (tmp_path / "t-0").glob("*.txnindex"):
        index.write_bytes(b"")
    options = {"kafka.isolation.level": "read_committed"}
    found = kafkalog.read(tmp_path, "t", columns=("offset",), options=options).read_all()
    assert set(found.column("offset").to_pylist()) == log.visible


def test_errors_about_the_files_of_a_partition_say_what_to_do(tmp_path: Path) -> None:
    Writer(tmp_path, topic="t").write(0, rows(["a"]))
    for name in (PARTITION_METADATA, LEADER_EPOCHS):
        path = tmp_path / "t-0" / name
        before = path.read_bytes()
        path.write_bytes(b"7\n")
        with pytest.raises(CheckpointError, match=rf"{name}: .*\. Restore it"):
            Writer(tmp_path, topic="t").write(1, rows(["b"]))
        path.write_bytes(before)


# Nodes


def _damage(path: Path, how: str) -> None:
    data = path.read_bytes()
    path.unlink()
    if how == "older":
        shutil.copy(path.with_name("older"), path)
    elif how != "gone":
        middle = len(data) // 2
        flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        path.write_bytes({"empty": b"", "cut": data[:middle], "flipped": flipped}[how])


def _values_or_error(nodes: Sequence[Path]) -> str:
    try:
        return " ".join(values(nodes))
    except LogDirectoryError as error:
        return str(error)


@pytest.mark.parametrize("how", ["empty", "cut", "flipped", "gone", "older"])
@pytest.mark.parametrize("name", [STATE_FILE, PREPARED_FILE, LOCK_FILE])
@pytest.mark.parametrize("node", [0, 2])
def test_a_file_of_one_node_of_three_takes_and_doubles_nothing(
    tmp_path: Path, node: int, name: str, how: str
) -> None:
    nodes = [tmp_path / each for each in "abc"]
    append(nodes, 0, ["a"])
    for each in nodes:
        shutil.copy(each / STATE_FILE, each / "older")
    append(nodes, 1, ["b"])
    for each in nodes:  # as a writer leaves it that is killed when all have prepared a state
        (each / STATE_FILE).rename(each / PREPARED_FILE)
        shutil.copy(each / "older", each / STATE_FILE)
    _damage(nodes[node] / name, how)
    told = _values_or_error(nodes)
    is_open = name == STATE_FILE and "was made is not known" in told and "next write tells" in told
    assert is_open or told in {"a", "a b"}
    append(nodes, 2, ["c"])
    assert values(nodes) == ["a", "b", "c"]
    append(nodes, 1, ["b"])
    assert values(nodes) == ["a", "b", "c"]


# Groups


@pytest.mark.parametrize("how", ["empty", "cut", "flipped"])
def test_a_plan_that_is_damaged_is_told_with_what_to_do(tmp_path: Path, how: str) -> None:
    moves = {TopicPartition("t", 0): ReadRange(0, 1, 1)}
    save_plan(tmp_path, "g", "a", Plan.new("m", {"t": {"0": 0}}, {"t": {"0": 1}}, moves))
    (path,) = tmp_path.iterdir()
    _damage(path, how)
    with pytest.raises(CheckpointError, match=f"{path}.*Remove it while the query is stopped"):
        load_plan(tmp_path, "g", "a")


@pytest.mark.parametrize("how", ["empty", "cut", "flipped"])
def test_a_members_name_that_is_damaged_is_told_with_what_to_do(tmp_path: Path, how: str) -> None:
    name = kept_name(tmp_path)
    assert kept_name(tmp_path) == name
    path = tmp_path / MEMBER_NAME_FILE
    _damage(path, how)
    with pytest.raises(CheckpointError, match=f"{path}.*Move it away while the query is stopped"):
        kept_name(tmp_path)


@pytest.mark.parametrize("how", ["empty", "cut", "flipped", "gone"])
def test_a_group_goes_on_without_a_member_whose_file_is_odd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    now = [100.0]
    monkeypatch.setattr(system, "monotonic", lambda: now[0])
    keep_groups_small(monkeypatch)
    Writer(tmp_path, topic="t").write(0, rows(["x"]))

    def joined(name: str) -> GroupMember:
        settings = MemberSettings(frozenset({"t"}), None, name, "h", 10_000, 60_000)
        member = GroupMember(
            GroupCommits([tmp_path], "g", SetPolicy()),
            settings,
            "range",
            beginnings_of=lambda first, late: dict.fromkeys([*first, *late], 0),
            heartbeat_interval_ms=3000,
            max_poll_interval_ms=300_000,
        )
        member.join()
        return member

    first = joined("first")
    for _ in range(3):
        first.round()
    key = TopicPartition("t", 0)
    first.commit({key: ReadRange(0, 1, first.since(key))})
    (path,) = tmp_path.glob(f"{MEMBER_PREFIX}*")
    _damage(path, how)
    second = joined("second")
    for _ in range(20):
        now[0] += 2
        second.round()
    assert second.assigned == {key}
    second.commit({key: ReadRange(1, 2, second.since(key))})
    assert GroupCommits([tmp_path], "g", SetPolicy()).look().positions == {key: 2}
    with pytest.raises(FencedMemberError):
        first.commit({key: ReadRange(1, 2, first.since(key))})
