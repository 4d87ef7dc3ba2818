"""Nodes that brokers of one cluster get: what has to be seen to first, and what they find."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support.handed_nodes import (
    BROKER_EPOCHS,
    DIRECTORIES,
    IDS,
    append_as_broker,
    commit_without,
    epochs_in,
    format_nodes,
    give,
    know,
    take,
)
from tests.support.killing import run_and_kill
from tests.support.logs import Row, batch_bytes, write_segment
from tests.support.replicated import (
    append,
    check_clean,
    check_equal,
    check_in_sync,
    newest_state,
    path_of,
    values,
    without_mount,
)

import kafkalog
from kafkalog.checkpoints.broker import (
    CLEAN_SHUTDOWN,
    HIGH_WATERMARK,
    LOG_START_OFFSET,
    META_PROPERTIES,
    RECOVERY_POINT,
    LeaderEpoch,
    read_leader_epochs,
    read_offset_checkpoint,
    read_topic_id,
    write_leader_epochs,
    write_offset_checkpoint,
)
from kafkalog.errors import LogDirectoryError, OptionError
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.broker import node_takeover
from kafkalog.streaming.admin.broker.handover import hand_over, take_over
from kafkalog.streaming.admin.nodes.elect import elect_preferred
from kafkalog.streaming.admin.recovery import recover
from kafkalog.streaming.admin.retention import delete_records

if TYPE_CHECKING:
    from kafkalog.checkpoints.commit_state import TopicState

ALLOWED = {"allowBrokerDirectory": "true"}
BEFORE = [f"a{n}" for n in range(12)] + ["b0", "b1", "b2"]
T0 = TopicPartition("t", 0)


@pytest.fixture
def nodes(tmp_path: Path) -> list[Path]:
    """Give three nodes that brokers have formatted, and whose leaders have changed once."""
    found = [tmp_path / name for name in "abc"]
    append(found, 0, BEFORE[:12])
    commit_without(found, found[0], 1, BEFORE[12:])
    format_nodes(found)
    return found


@pytest.fixture
def metadata(nodes: list[Path], tmp_path: Path) -> Path:
    return know(tmp_path / "metadata", nodes)


def check_ours(nodes: list[Path]) -> None:
    """Nothing was given, and the sink continues."""
    assert newest_state(nodes).handed_to == ""
    check_clean(nodes)
    assert not any((node / CLEAN_SHUTDOWN).exists() for node in nodes)
    append(nodes, 9, ["on"], **ALLOWED)
    assert values(nodes) == sorted([*BEFORE, "on"])


def check_refused(nodes: list[Path], told: str, *metadata: Path) -> None:
    for dry_run in (True, False):
        problems = give(nodes, *metadata, dry_run=dry_run).problems
        assert any(told in problem for problem in problems), problems
    check_ours(nodes)


# Handing over


def test_brokers_find_their_ids_no_higher_epochs_and_whole_logs(
    nodes: list[Path], metadata: Path
) -> None:
    assert max(epochs_in(nodes[0] / "t-0") | epochs_in(nodes[0] / "t-1")) > 0
    assert give(nodes, metadata).problems == []
    check_equal(nodes)
    check_clean(nodes)
    ends = {TopicPartition("t", n): s.log_end for n, s in topic(nodes).partitions.items()}
    for number, node in enumerate(nodes, start=1):
        assert epochs_in(node / "t-0") == epochs_in(node / "t-1") == {0}
        assert read_topic_id(node / "t-0") == read_topic_id(node / "t-1") == IDS["t"]
        assert read_offset_checkpoint(node, RECOVERY_POINT) == ends
        assert read_offset_checkpoint(node, HIGH_WATERMARK) == ends
        mark = f'{{"version":0,"brokerEpoch":{BROKER_EPOCHS[number]}}}'
        assert (node / CLEAN_SHUTDOWN).read_text() == mark
    assert values(nodes) == sorted(BEFORE)


def topic(nodes: list[Path]) -> TopicState:
    (found,) = newest_state(nodes).topics.values()
    return found


def test_all_that_is_given_is_on_the_disk(
    nodes: list[Path], metadata: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = set()
    original = os.fsync

    def fsync(descriptor: int) -> None:
        synced.add(Path(f"/proc/self/fd/{descriptor}").readlink())
        original(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    assert give(nodes, metadata).problems == []
    folders = [node / name for node in nodes for name in ("t-0", "t-1")]
    files = {path for folder in folders for path in folder.iterdir()}
    assert {*files, *folders, *nodes} <= synced


def test_epochs_of_the_cluster_that_are_higher_leave_all_bytes_as_they_are(
    nodes: list[Path], tmp_path: Path
) -> None:
    before = [path.read_bytes() for path in sorted(nodes[1].glob("t-*/*.log"))]
    done = give(nodes, know(tmp_path / "metadata", nodes, epoch=5))
    assert not any("set down" in line for line in done.written)
    assert [path.read_bytes() for path in sorted(nodes[1].glob("t-*/*.log"))] == before


def test_the_lowest_epoch_that_a_copy_of_the_metadata_has_counts(
    nodes: list[Path], tmp_path: Path
) -> None:
    """What the other one says more may be what the quorum has not agreed on."""
    copies = [know(tmp_path / f"copy {n}", nodes, epoch=n) for n in (5, 0)]
    give(nodes, *copies)
    assert epochs_in(nodes[2] / "t-0") == {0}


def test_metadata_in_a_log_directory_needs_not_be_named(nodes: list[Path]) -> None:
    know(nodes[1], nodes)
    assert give(nodes).problems == []
    assert all((node / CLEAN_SHUTDOWN).exists() for node in nodes)


def test_log_starts_are_told_on_every_node(nodes: list[Path], metadata: Path) -> None:
    delete_records([path_of(nodes)], {T0: 1})
    assert give(nodes, metadata).problems == []
    assert [read_offset_checkpoint(node, LOG_START_OFFSET).get(T0) for node in nodes] == [1] * 3


def test_while_a_cluster_has_the_set_nobody_else_changes_it(
    nodes: list[Path], metadata: Path
) -> None:
    give(nodes, metadata)
    for action in (
        lambda: append(nodes, 9, ["on"], **ALLOWED),
        lambda: recover([path_of(nodes)]),
        lambda: recover([path_of(nodes)], dry_run=True),
        lambda: elect_preferred([path_of(nodes)]),
    ):
        with pytest.raises(LogDirectoryError, match="was handed over to the brokers of cluster c"):
            action()
    assert values(nodes) == sorted(BEFORE)


def test_the_option_for_directories_of_brokers_is_asked_for(nodes: list[Path]) -> None:
    with pytest.raises(LogDirectoryError, match="allowBrokerDirectory=true"):
        append(nodes, 9, ["on"])


def test_all_nodes_must_be_there(nodes: list[Path], metadata: Path) -> None:
    away = nodes[1].rename(nodes[1].with_suffix(".away"))
    for dry_run in (True, False):
        with pytest.raises(LogDirectoryError, match="handover needs all nodes, and node 1"):
            give(nodes, metadata, dry_run=dry_run)
    away.rename(nodes[1])
    check_ours(nodes)


def test_a_replica_that_lags_is_brought_in_sync_first(nodes: list[Path], metadata: Path) -> None:
    away = nodes[1].rename(nodes[1].with_suffix(".away"))
    append(nodes, 2, ["while away"], **ALLOWED)
    away.rename(nodes[1])
    assert give(nodes, metadata).problems == []
    check_equal(nodes)
    check_in_sync(nodes)


def test_a_replica_that_cannot_be_brought_in_sync_keeps_the_set_ours(
    nodes: list[Path], metadata: Path, tmp_path: Path
) -> None:
    away = nodes[1].rename(nodes[1].with_suffix(".away"))
    append(nodes, 9, ["on"], **ALLOWED)
    away.rename(nodes[1])
    (nodes[1] / "t-0").rename(tmp_path / "elsewhere")
    (nodes[1] / "t-0").symlink_to(tmp_path / "elsewhere")
    why, problem = give(nodes, metadata).problems
    assert why.startswith("t-0 stays out of sync on node 1: ")
    assert "t-0 is in sync on nodes [0, 2] of [" in problem
    check_ours(nodes)


def test_an_unfinished_commit_is_rolled_back_first(nodes: list[Path], metadata: Path) -> None:
    assert run_and_kill(lambda: append(nodes, 2, ["never"] * 9, **ALLOWED), 40)
    assert any((node / "kafkalog.unfinished").exists() for node in nodes)
    assert give(nodes, metadata).problems == []
    check_clean(nodes)
    check_equal(nodes)
    assert values(nodes) == sorted(BEFORE)


def test_a_node_that_no_broker_has_formatted_is_named(nodes: list[Path], metadata: Path) -> None:
    (nodes[2] / META_PROPERTIES).unlink()
    check_refused(nodes, "of node 2 has no meta.properties", metadata)


def test_properties_that_name_no_broker_are_as_none(nodes: list[Path], metadata: Path) -> None:
    text = (nodes[2] / META_PROPERTIES).read_text().replace("node.id=3", "node.id=three")
    (nodes[2] / META_PROPERTIES).write_text(text)
    check_refused(nodes, "of node 2 has no meta.properties with the ids", metadata)


def test_two_nodes_of_one_broker_are_refused(nodes: list[Path], metadata: Path) -> None:
    shutil.copy(nodes[0] / META_PROPERTIES, nodes[1])
    check_refused(nodes, "is of broker 1 of cluster c: a node is one broker's", metadata)


def test_nodes_of_two_clusters_are_refused(nodes: list[Path], metadata: Path) -> None:
    text = (nodes[1] / META_PROPERTIES).read_text().replace("cluster.id=c", "cluster.id=d")
    (nodes[1] / META_PROPERTIES).write_text(text)
    check_refused(nodes, "of cluster d", metadata)


def test_without_the_clusters_metadata_nothing_is_given(nodes: list[Path]) -> None:
    check_refused(nodes, "name the folder around it")


def test_a_topic_that_the_cluster_lacks_is_named_with_its_assignment(
    nodes: list[Path], tmp_path: Path
) -> None:
    metadata = know(tmp_path / "metadata", nodes, without=["t"])
    check_refused(nodes, "create it with the replica assignment 1:2:3,2:3:1", metadata)


def test_a_topic_on_other_brokers_is_refused(nodes: list[Path], tmp_path: Path) -> None:
    metadata = know(tmp_path / "metadata", nodes, broker_of=(1, 2, 4))
    check_refused(nodes, "has the replicas 1:2:4,2:4:1 in cluster c, and 1:2:3,2:3:1", metadata)


def test_directories_that_the_cluster_does_not_know_are_refused(
    nodes: list[Path], metadata: Path
) -> None:
    text = (nodes[1] / META_PROPERTIES).read_text().replace(DIRECTORIES[1], DIRECTORIES[3])
    (nodes[1] / META_PROPERTIES).write_text(text)
    check_refused(nodes, f"in the directory {DIRECTORIES[1]} of broker 2", metadata)


def test_where_a_broker_has_logs_of_its_own_no_clean_shutdown_is_marked(
    nodes: list[Path], metadata: Path
) -> None:
    write_segment(nodes[0] / "__consumer_offsets-0", 0, batch_bytes(0, [Row(b"a")]))
    assert give(nodes, metadata).problems == []
    assert [(node / CLEAN_SHUTDOWN).exists() for node in nodes] == [False, True, True]


def test_options_of_one_node_are_refused_for_several_and_the_other_way_round(
    nodes: list[Path], metadata: Path, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match="topic-id: not for several nodes"):
        hand_over([path_of(nodes)], topic_ids={"t": IDS["t"]})
    with pytest.raises(OptionError, match="partitions: not for several nodes"):
        take_over([path_of(nodes)], partitions={"t": 2})
    with pytest.raises(OptionError, match="has no folder __cluster_metadata-0"):
        give(nodes, tmp_path)
    kafkalog.append(tmp_path / "one", "t", pa.table({"value": ["a"]}))
    with pytest.raises(OptionError, match="for a set of several nodes only"):
        hand_over([str(tmp_path / "one")], cluster_metadata=[str(metadata)])


def test_a_dry_run_says_the_same_and_changes_nothing(nodes: list[Path], metadata: Path) -> None:
    expected = give(nodes, metadata, dry_run=True).written
    check_clean(nodes)
    assert newest_state(nodes).handed_to == ""
    assert give(nodes, metadata).written == expected


# Taking over


@pytest.fixture
def handed_over(nodes: list[Path], metadata: Path) -> list[Path]:
    assert give(nodes, metadata).problems == []
    return nodes


def check_taken(nodes: list[Path], *theirs: str) -> None:
    check_equal(nodes)
    check_in_sync(nodes)
    append(nodes, 9, ["on"], **ALLOWED)
    assert values(nodes) == sorted([*BEFORE, *theirs, "on"])
    check_equal(nodes)


def test_the_highest_epoch_counts_before_the_longest_log(
    handed_over: list[Path], metadata: Path
) -> None:
    append_as_broker(handed_over[0] / "t-0", 1, ["not acknowledged"] * 9)
    append_as_broker(handed_over[1] / "t-0", 2, ["acknowledged"])
    done = take(handed_over, metadata)
    assert done.problems == []
    assert any("of node 0, which ends at offset" in line for line in done.written)
    assert not any("not acknowledged" in value for value in values(handed_over))
    check_taken(handed_over, "acknowledged")


def test_of_one_epoch_the_longest_log_counts(handed_over: list[Path], metadata: Path) -> None:
    for node in handed_over:
        append_as_broker(node / "t-0", 2, ["one"])
    append_as_broker(handed_over[2] / "t-0", 2, ["two"])
    assert take(handed_over, metadata).problems == []
    check_taken(handed_over, "one", "two")
    assert topic(handed_over).partitions[0].leader_epoch == 2


def test_an_epoch_above_the_end_of_a_torn_log_counts_for_nothing(
    handed_over: list[Path], metadata: Path
) -> None:
    """A leader of epoch 3 has lost what it had, with its power; its followers have it."""
    for node in handed_over:
        append_as_broker(node / "t-0", 2, ["acknowledged"])
    append_as_broker(handed_over[0] / "t-0", 3, ["gone"])
    path = max((handed_over[0] / "t-0").glob("*.log"))
    gone = [batch_bytes(0, [Row(each, key=each)]) for each in (b"gone", b"acknowledged")]
    path.write_bytes(path.read_bytes()[: -sum(map(len, gone))])
    assert take(handed_over, metadata).problems == []
    check_taken(handed_over, "acknowledged")
    assert epochs_in(handed_over[0] / "t-0") == {0, 2}


def test_epochs_above_the_end_of_all_logs_are_forgotten(
    handed_over: list[Path], metadata: Path
) -> None:
    """All brokers lost their power, and what was last written with it."""
    for node in handed_over:
        folder = node / "t-0"
        write_leader_epochs(folder, [*read_leader_epochs(folder), LeaderEpoch(5, 999)])
    assert take(handed_over, metadata).problems == []
    assert [epochs_in(node / "t-0") for node in handed_over] == [{0}] * 3
    check_taken(handed_over)


def test_sealed_segments_that_differ_below_the_recovery_point_are_compared(
    handed_over: list[Path], metadata: Path
) -> None:
    """A follower had others' records there, and was no leader since."""
    append_as_broker(handed_over[0] / "t-0", 2, ["acknowledged"])
    append_as_broker(handed_over[1] / "t-0", 1, ["unacknowledg"])
    for number, node in enumerate(handed_over[:2]):
        folder = node / "t-0"
        end = max(each.start_offset for each in read_leader_epochs(folder)) + 1
        write_segment(folder, end, b"")
        append_as_broker(folder, 2 - number, ["more"])
        write_offset_checkpoint(node, RECOVERY_POINT, {T0: end + 1})
    assert take(handed_over, metadata).problems == []
    check_taken(handed_over, "acknowledged", "more")


def test_a_torn_tail_is_cut_and_a_folder_that_is_gone_is_copied(
    handed_over: list[Path], metadata: Path
) -> None:
    append_as_broker(handed_over[1] / "t-0", 2, ["acknowledged"])
    path = max((handed_over[1] / "t-0").glob("*.log"))
    path.write_bytes(path.read_bytes() + batch_bytes(99, [Row(b"torn")])[:40])
    shutil.rmtree(handed_over[2] / "t-1")
    assert take(handed_over, metadata).problems == []
    check_taken(handed_over, "acknowledged")


def test_nothing_is_taken_over_that_was_copied_below_a_mount_that_failed(
    handed_over: list[Path], metadata: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mount is back when the next replica is looked at, with the log that it had."""
    append_as_broker(handed_over[0] / "t-0", 2, ["acknowledged"])
    node, original = handed_over[2], node_takeover.catch_up

    def copied_below(source: Path, target: Path, *given: Any, **named: Any) -> Any:
        if target != node / "t-0":
            return original(source, target, *given, **named)
        with without_mount(node):
            return original(source, target, *given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(node_takeover, "catch_up", copied_below)
        with pytest.raises(LogDirectoryError, match="or if this is run again"):
            take(handed_over, metadata)
    assert newest_state(handed_over).handed_to
    assert take(handed_over, metadata).problems == []
    check_taken(handed_over, "acknowledged")


def test_a_log_that_lost_what_was_committed_everywhere_is_a_problem(
    handed_over: list[Path], metadata: Path
) -> None:
    for node in handed_over:
        max((node / "t-0").glob("*.log")).write_bytes(b"")
        for name in (HIGH_WATERMARK, RECOVERY_POINT):
            (node / name).unlink()
    (problem,) = take(handed_over, metadata).problems
    assert "t-0 ends at offset" in problem
    assert "was committed when it was handed over" in problem
    assert newest_state(handed_over).handed_to == "c"


def test_a_topic_that_the_cluster_made_is_taken_over(
    handed_over: list[Path], metadata: Path
) -> None:
    for node in handed_over[:2]:
        write_segment(node / "new-0", 0, batch_bytes(0, [Row(b"a", key=b"a")]))
    assert take(handed_over, metadata).problems == []
    assert values(handed_over, "new") == ["a"]
    append(handed_over, 9, ["b"], "new", **ALLOWED)
    assert values(handed_over, "new") == ["a", "b"]


def test_a_topic_that_the_cluster_deleted_is_forgotten(
    handed_over: list[Path], tmp_path: Path
) -> None:
    deleted = know(tmp_path / "later", handed_over, without=["t"])
    for node in handed_over:
        for folder in node.glob("t-*"):
            shutil.rmtree(folder)
    assert take(handed_over).problems == ["no node has a folder of topic 't'"]
    done = take(handed_over, deleted)
    assert done.problems == []
    assert "topic t was deleted in the cluster, and is forgotten" in done.written
    assert newest_state(handed_over).topics == {}


def test_after_brokers_have_written_a_takeover_comes_before_a_handover(
    handed_over: list[Path], metadata: Path
) -> None:
    append_as_broker(handed_over[1] / "t-0", 2, ["acknowledged"])
    (problem,) = give(handed_over, metadata).problems
    assert "a broker has written since" in problem
    assert take(handed_over, metadata).problems == []
    assert give(handed_over, metadata).problems == []
    assert take(handed_over, metadata).problems == []
    check_taken(handed_over, "acknowledged")


def test_all_nodes_must_be_there_to_be_taken(handed_over: list[Path], metadata: Path) -> None:
    handed_over[2].rename(handed_over[2].with_suffix(".away"))
    with pytest.raises(LogDirectoryError, match="takeover needs all nodes, and node 2"):
        take(handed_over, metadata)


def test_a_set_that_is_ours_is_not_taken_over(nodes: list[Path], metadata: Path) -> None:
    for dry_run in (True, False):
        with pytest.raises(LogDirectoryError, match="there is nothing to take over"):
            take(nodes, metadata, dry_run=dry_run)
    check_ours(nodes)


def test_a_dry_run_of_a_takeover_changes_nothing(handed_over: list[Path], metadata: Path) -> None:
    append_as_broker(handed_over[1] / "t-0", 2, ["acknowledged"])
    expected = take(handed_over, metadata, dry_run=True)
    assert newest_state(handed_over).handed_to == "c"
    done = take(handed_over, metadata)
    assert (done.written, done.problems) == (expected.written, expected.problems)
    check_taken(handed_over, "acknowledged")
