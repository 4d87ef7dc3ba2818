"""SIGKILL at each call of a handover of three nodes, or of a takeover: it is done again, or undone.

A broker must not get a node that is ready while another node is not: it would lead with it.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import pytest
from tests.support.handed_nodes import (
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
from tests.support.logs import Row, append_batch, batch_bytes, write_segment
from tests.support.replicated import (
    append,
    check_clean,
    check_equal,
    check_in_sync,
    newest_state,
    path_of,
    values,
)
from tests.support.transactions import producer_batch, state_record

from kafkalog.checkpoints.broker import read_topic_id
from kafkalog.checkpoints.commit_state import UNFINISHED_FOLDER
from kafkalog.errors import LogDirectoryError
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.broker.handover import take_over
from kafkalog.streaming.log.partition_log import PartitionLog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kafkalog.streaming.admin.recovery import RecoveryReport

pytestmark = pytest.mark.crash

STRIDE: Final = int(os.environ.get("KAFKALOG_KILL_STRIDE", "47"))
ALLOWED: Final = {"allowBrokerDirectory": "true"}
BEFORE: Final = [f"a{n}" for n in range(12)] + ["b0", "b1", "b2"]
LATER: Final = ["c0", "c1", "c2"]
COMMITTED: Final = {"kafka.isolation.level": "read_committed"}
FROM_BROKERS: Final = ["from brokers", "acknowledged", "committed"]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Give a folder in memory where there is one: a killed process loses nothing there either."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None, prefix="nodes-") as name:
        yield Path(name)


def nodes_in(folder: Path) -> list[Path]:
    return [folder / name for name in "abc"]


@pytest.fixture
def template(folder: Path) -> Path:
    """Give three nodes that have elected leaders once, with their metadata beside them."""
    nodes = nodes_in(folder / "template")
    append(nodes, 0, BEFORE[:12])
    commit_without(nodes, nodes[0], 1, BEFORE[12:])
    format_nodes(nodes)
    know(folder / "template" / "metadata", nodes)
    return folder / "template"


def is_ready(node: Path) -> bool:
    folders = [node / "t-0", node / "t-1"]
    return {*map(read_topic_id, folders)} == {IDS["t"]} and epochs_in(folders[0]) == {0}


def check_given(nodes: list[Path]) -> None:
    assert all(map(is_ready, nodes))
    check_clean(nodes)
    check_equal(nodes)
    assert newest_state(nodes).handed_to == "c"
    assert values(nodes) == sorted(BEFORE)


def continues(nodes: list[Path]) -> bool:
    """Whether the sink does: not while a cluster has the set."""
    try:
        append(nodes, 2, LATER, **ALLOWED)
    except LogDirectoryError as error:
        if "was handed over" in str(error) or "was cut off: run it again" in str(error):
            return False
        raise
    return True


def test_a_handover_that_was_killed_is_ours_or_done_again(template: Path, folder: Path) -> None:
    call, died, seen = 0, True, set()
    while died:
        copy = folder / str(call)
        shutil.copytree(template, copy)
        nodes, metadata = nodes_in(copy), copy / "metadata"
        died = run_and_kill(lambda n=nodes, m=metadata: give(n, m), call, half=True)  # type: ignore[misc]
        is_handed_over = newest_state(nodes).handed_to != ""
        is_open = [not (node / UNFINISHED_FOLDER).exists() for node in nodes]
        assert not (is_handed_over and any(is_open)) or all(map(is_ready, nodes)), call
        seen.add((is_handed_over, any(is_open)))
        assert values(nodes) == sorted(BEFORE)
        # What lies prepared may be decided by whoever comes next: then it is lent from now on.
        is_ours = not is_handed_over and call % 2 == 1 and continues(nodes)
        if not is_ours:
            if call % 3:
                assert give(nodes, metadata).problems == []
                check_given(nodes)
            elif not is_handed_over:
                assert give(nodes, metadata).problems == []
            assert not continues(nodes)
            assert take(nodes, metadata).problems == []
            assert continues(nodes)
            check_clean(nodes)
        assert values(nodes) == sorted(BEFORE + LATER)
        check_in_sync(nodes)
        check_equal(nodes)
        shutil.rmtree(copy)
        call += STRIDE
    assert call > 60
    assert seen == {(False, True), (False, False), (True, False), (True, True)}


def leave_prepared(nodes: list[Path], values: list[str]) -> None:
    """Append records of producer 1, whose coordinator, on one node, has prepared to commit them."""
    for node in nodes:
        with PartitionLog(node / "t-1", TopicPartition("t", 1)) as log:
            at = log.log_end_offset()
        batches = [
            producer_batch(at + number, 1, 1, row=Row(each.encode()))
            for number, each in enumerate(values)
        ]
        append_batch(max((node / "t-1").glob("*.log")), b"".join(batches))
    key, value = state_record("a", 2, 1, 0, {"t": [1]})
    write_segment(nodes[1] / "__transaction_state-0", 0, batch_bytes(0, [Row(value, key)]))


def end(nodes: list[Path], metadata: Path) -> RecoveryReport:
    return take_over([path_of(nodes)], aborts_open=True, cluster_metadata=[str(metadata)])


def test_a_takeover_that_was_killed_is_done_again(template: Path, folder: Path) -> None:
    """The node that has most was led by the broker that died last, another one is behind.

    A transaction is prepared to commit, and has no marker yet.
    """
    nodes, metadata = nodes_in(template), template / "metadata"
    assert give(nodes, metadata).problems == []
    for node in nodes[1:]:
        append_as_broker(node / "t-0", 3, FROM_BROKERS[:1])
    append_as_broker(nodes[2] / "t-0", 3, FROM_BROKERS[1:2])
    append_as_broker(nodes[0] / "t-0", 2, ["never acknowledged"] * 7)
    leave_prepared(nodes, FROM_BROKERS[2:])
    call, died = 0, True
    while died:
        copy = folder / str(call)
        shutil.copytree(template, copy)
        nodes, metadata = nodes_in(copy), copy / "metadata"
        died = run_and_kill(lambda n=nodes, m=metadata: end(n, m), call, half=True)  # type: ignore[misc]
        if not continues(nodes):
            assert end(nodes, metadata).problems == []
            assert continues(nodes)
        assert values(nodes, options=COMMITTED) == sorted(BEFORE + FROM_BROKERS + LATER)
        check_in_sync(nodes)
        check_equal(nodes)
        shutil.rmtree(copy)
        call += STRIDE
    assert call > 60
