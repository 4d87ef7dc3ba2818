"""Queries that begin in a topic which others have written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.support.sinking import Writer, rows, values_of

import kafkalog
from kafkalog.errors import BatchIdentityError
from kafkalog.streaming.commit import committer

if TYPE_CHECKING:
    from pathlib import Path


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for text in caplog.messages if "another query wrote last" in text]


def test_a_new_query_in_a_topic_that_another_wrote_last_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = Writer(tmp_path, name="before", topic="t")
    before.write(0, rows(["a"]))
    before.write(1, rows(["b"]))
    assert told(caplog) == []
    after = Writer(tmp_path, name="after", topic="t")
    after.write(0, rows(["a"]))
    (text,) = told(caplog)
    assert "batch 0 of query:after is the first" in text
    assert "t (query:before). If it is the same query after its checkpoint was deleted" in text
    after.write(1, rows(["b"]))
    before.write(2, rows(["c"]))
    assert len(told(caplog)) == 1


def test_a_new_query_in_a_new_topic_or_one_that_only_jobs_have_written_is_no_news(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kafkalog.append(tmp_path, "t", pa.table({"value": ["a"]}))
    Writer(tmp_path, name="one", topic="t").write(0, rows(["b"]))
    Writer(tmp_path, name="two", topic="u").write(0, rows(["c"]))
    assert told(caplog) == []
    kafkalog.append(tmp_path, "t", pa.table({"value": ["d"]}))
    Writer(tmp_path, name="three", topic="t").write(0, rows(["e"]))
    assert len(told(caplog)) == 1


def test_an_empty_mount_point_takes_no_batch_of_a_query_that_wrote_elsewhere(
    tmp_path: Path,
) -> None:
    mounted, empty = tmp_path / "mounted", tmp_path / "empty"
    for batch_id in range(3):
        Writer(mounted, topic="t").write(batch_id, rows([str(batch_id)]))
    with pytest.raises(BatchIdentityError, match="a missing mount"):
        Writer(empty, topic="t").write(3, rows(["3"]))
    assert [path.name for path in empty.glob("t-*")] == []
    Writer(mounted, topic="t").write(3, rows(["3"]))
    Writer(empty, topic="t", allowUnknownCheckpoint="true").write(3, rows(["3"]))
    assert values_of([empty], "t") == {0: ["3"]}


def test_one_more_writer_beside_very_many_is_told_with_the_usual_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(committer, "_MANY_WRITERS", 3)
    table = pa.table({"value": ["1"]})
    for number in (*range(4), 3, 0):
        kafkalog.append(tmp_path, "t", table, transactional_id=f"run {number}", version=number)
    kafkalog.append(tmp_path, "t", table)
    (text,) = [text for text in caplog.messages if "one more writer" in text]
    assert text.startswith("version 3 of txnAppId 'run 3' is by one more writer beside 3 that are")
    assert "a new txnAppId or transactional.id for each run" in text
