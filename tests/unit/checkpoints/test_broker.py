"""The small files of a broker, both ways."""

from __future__ import annotations

import fcntl
import os
import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalog.checkpoints.broker import (
    CLEAN_SHUTDOWN,
    HIGH_WATERMARK,
    LEADER_EPOCHS,
    LOCK,
    META_PROPERTIES,
    PARTITION_METADATA,
    LeaderEpoch,
    broker_holds,
    new_topic_id,
    read_leader_epochs,
    read_meta_properties,
    read_offset_checkpoint,
    read_topic_id,
    remove_clean_shutdown_marker,
    write_clean_shutdown_marker,
    write_leader_epochs,
    write_offset_checkpoint,
    write_topic_id,
)
from kafkalog.errors import CheckpointError
from kafkalog.model import TopicPartition

if TYPE_CHECKING:
    from pathlib import Path

A, B, C = TopicPartition("a", 0), TopicPartition("b-c", 7), TopicPartition("c", 1)


def test_a_missing_checkpoint_has_no_entries(tmp_path: Path) -> None:
    assert read_offset_checkpoint(tmp_path, HIGH_WATERMARK) == {}


def test_writing_offsets_keeps_the_lines_of_others(tmp_path: Path) -> None:
    write_offset_checkpoint(tmp_path, HIGH_WATERMARK, {A: 1, B: 2})
    write_offset_checkpoint(tmp_path, HIGH_WATERMARK, {B: 3, C: 4}, remove=[A])
    assert read_offset_checkpoint(tmp_path, HIGH_WATERMARK) == {B: 3, C: 4}


def test_writing_offsets_beside_lines_that_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    (tmp_path / HIGH_WATERMARK).write_bytes(b"0\n5\n")
    with pytest.raises(CheckpointError):
        write_offset_checkpoint(tmp_path, HIGH_WATERMARK, {A: 1})
    assert (tmp_path / HIGH_WATERMARK).read_bytes() == b"0\n5\n"


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b-c", "x.y_Z", "..", ""]),
            st.sampled_from(["0", "7", "007", "+1", "-1", "4294967296"]),
            st.sampled_from(["0", "12", "999999999999999999", "9223372036854775807", "-1", "x"]),
        ),
        max_size=4,
    ),
    st.integers(0, 4),
)
def test_many_lines_at_once_mean_what_each_means_by_itself(
    tmp_path_factory: pytest.TempPathFactory, lines: list[tuple[str, str, str]], count: int
) -> None:
    """Other white space than a broker's makes each line be read by itself."""
    seen = []
    for separator in (" ", "  "):
        folder = tmp_path_factory.getbasetemp()
        text = "".join(f"{separator.join(line)}\n" for line in lines)
        (folder / HIGH_WATERMARK).write_text(f"0\n{count}\n{text}")
        try:
            seen.append(read_offset_checkpoint(folder, HIGH_WATERMARK))
        except CheckpointError as error:
            seen.append(re.sub(r" +", " ", str(error)))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("line", ["a x 1", "a 1 x", "a 4294967296 1", "a 1 9223372036854775808"])
def test_offsets_that_are_no_numbers_are_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / HIGH_WATERMARK).write_text(f"0\n1\n{line}\n")
    with pytest.raises(CheckpointError, match="line 3"):
        read_offset_checkpoint(tmp_path, HIGH_WATERMARK)


def test_leader_epochs_are_written_as_kafka_writes_them(tmp_path: Path) -> None:
    assert read_leader_epochs(tmp_path) == []
    epochs = [LeaderEpoch(0, 0), LeaderEpoch(4, 100)]
    write_leader_epochs(tmp_path, epochs)
    assert (tmp_path / LEADER_EPOCHS).read_bytes() == b"0\n2\n0 0\n4 100\n"
    assert read_leader_epochs(tmp_path) == epochs


@pytest.mark.parametrize("lines", ["1 0\n1 5", "1 5\n0 6", "0 5\n1 4"])
def test_leader_epochs_that_do_not_ascend_are_refused(tmp_path: Path, lines: str) -> None:
    (tmp_path / LEADER_EPOCHS).write_text(f"0\n2\n{lines}\n")
    with pytest.raises(CheckpointError, match="does not follow"):
        read_leader_epochs(tmp_path)


def test_a_topic_id_is_43_bytes_without_a_final_line_end(tmp_path: Path) -> None:
    assert read_topic_id(tmp_path) is None
    topic_id = new_topic_id()
    write_topic_id(tmp_path, topic_id)
    content = (tmp_path / PARTITION_METADATA).read_bytes()
    assert content == f"version: 0\ntopic_id: {topic_id}".encode()
    assert len(content) == 43
    assert read_topic_id(tmp_path) == topic_id


def test_topic_ids_never_start_like_an_option() -> None:
    assert not any(new_topic_id().startswith("-") for _ in range(500))


@pytest.mark.parametrize(
    "content",
    [
        "",
        "version: 0",
        "version: x\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ",
        "version: -1\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ",
        "topic_id: AAAAAAAAAAAAAAAAAAAAAQ\nversion: 0",
        "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA",
        "version: 0\ntopic_id: short",
        "version: 0\ntopic_id: ../../../../etc/passwd",
    ],
)
def test_a_topic_id_that_is_none_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / PARTITION_METADATA).write_text(content)
    with pytest.raises(CheckpointError, match=PARTITION_METADATA):
        read_topic_id(tmp_path)


def test_an_invalid_topic_id_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        write_topic_id(tmp_path, "A" * 22)
    assert read_topic_id(tmp_path) is None


def test_meta_properties_are_java_properties(tmp_path: Path) -> None:
    assert read_meta_properties(tmp_path) is None
    (tmp_path / META_PROPERTIES).write_text(
        "#\n#Sat Nov 21 01:36:04 UTC 2026\nnode.id=1\n  version = 1\n"
        "cluster.id\\:x=a\\=b\ndirectory.id:x y\n\n!no\nflag\n"
    )
    assert read_meta_properties(tmp_path) == {
        "node.id": "1",
        "version": "1",
        "cluster.id:x": "a=b",
        "directory.id": "x y",
        "flag": "",
    }


def test_meta_properties_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / META_PROPERTIES).write_bytes(b"\xff")
    with pytest.raises(CheckpointError):
        read_meta_properties(tmp_path)


def test_the_clean_shutdown_marker_comes_and_goes(tmp_path: Path) -> None:
    assert not remove_clean_shutdown_marker(tmp_path)
    write_clean_shutdown_marker(tmp_path)
    assert (tmp_path / CLEAN_SHUTDOWN).read_bytes() == b'{"version":0,"brokerEpoch":-1}'
    assert remove_clean_shutdown_marker(tmp_path)
    assert not (tmp_path / CLEAN_SHUTDOWN).exists()


def test_a_lock_that_another_process_holds_is_seen_and_not_taken(tmp_path: Path) -> None:
    assert not broker_holds(tmp_path)
    (tmp_path / LOCK).touch()
    assert not broker_holds(tmp_path)
    locked, done = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        with (tmp_path / LOCK).open("r+") as file:
            fcntl.lockf(file, fcntl.LOCK_EX)
            os.write(locked[1], b"x")
            os.read(done[0], 1)
        os._exit(0)
    os.read(locked[0], 1)
    held = broker_holds(tmp_path)
    os.write(done[1], b"x")
    os.waitpid(child, 0)
    for descriptor in (*locked, *done):
        os.close(descriptor)
    assert held
    assert not broker_holds(tmp_path)
