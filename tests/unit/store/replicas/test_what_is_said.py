"""Who reads or writes with a node missing says so once."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.support.replicated import append, path_of, values

import kafkalog
from kafkalog.errors import LogDirectoryError
from kafkalog.files.system import system

if TYPE_CHECKING:
    from pathlib import Path

TEXT = "read without some of its nodes"


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Give a set whose second node is away, to a process that has said nothing yet."""
    found = [tmp_path / name for name in "abc"]
    append(found, 0, ["first"])
    found[1].rename(found[1].with_suffix(".away"))
    monkeypatch.setattr(system, "memory", {})
    return found


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if TEXT in message]


def test_a_writer_says_once_that_a_node_is_missing(
    nodes: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    for version in range(1, 4):
        append(nodes, version, [f"{version}"])
    (message,) = said(caplog)
    assert "node 1:" in message


def test_a_reader_says_once_that_a_node_is_missing(
    nodes: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    reading = kafkalog.tail(
        path_of(nodes), "t", idle_timeout=2, options={"startingOffsets": "earliest"}
    )
    assert next(reading).num_rows == 1
    with caplog.at_level(logging.CRITICAL):
        append(nodes, 1, ["second"])
    assert next(reading).num_rows == 1
    assert not [*reading]
    (message,) = said(caplog)
    assert "node 1:" in message


def test_it_is_not_said_again_when_the_reason_is_another(
    nodes: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    assert values(nodes) == ["first"]
    nodes[1].mkdir()
    assert values(nodes) == ["first"]
    assert len(said(caplog)) == 1


def test_nothing_is_said_where_all_are_there(
    nodes: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    nodes[1].with_suffix(".away").rename(nodes[1])
    assert values(nodes) == ["first"]
    assert not said(caplog)


@pytest.mark.parametrize("named", ["abc", "ac", "a"])
def test_nodes_that_a_writer_names_with_commas_are_refused_whichever_are_there(
    named: str, nodes: list[Path]
) -> None:
    path = ",".join(str(node) for node in nodes if node.name in named)
    with pytest.raises(LogDirectoryError, match=r"with semicolons between them|needed to know"):
        kafkalog.append(path, "t", pa.table({"value": ["by commas"]}))
    assert values(nodes) == ["first"]


def test_too_few_nodes_are_told_with_what_to_do(nodes: list[Path]) -> None:
    with pytest.raises(LogDirectoryError, match="node 1: its log directory not found") as raised:
        values([nodes[0]])
    assert str(raised.value).endswith("Mount them, and name all nodes, with ';' between them")
