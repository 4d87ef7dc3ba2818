"""Texts that came from outside (ids, keys, names of files) as errors, logs and tables show them."""

from __future__ import annotations

import json
import logging
import pickle
import re
import time
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.distributions import ROOT

import kafkalog
from kafkalog import errors
from kafkalog.jobs.cli.output import Lines, lines_of
from kafkalog.jobs.process.running import json_line
from kafkalog.texts import printable

if TYPE_CHECKING:
    from pathlib import Path

HOSTILE = "w\x1b[31m\nERROR disk sda fails, run mkfs\u202e\x9b\udcff"
INERT = r"w\x1b[31m\nERROR disk sda fails, run mkfs\u202e\x9b\udcff"


@given(st.text(st.characters()))
def test_a_text_is_shown_on_one_line_and_cannot_be_read_as_a_command(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert printable(shown) == shown
    assert not text.isprintable() or shown == text


@pytest.mark.parametrize("name", [name for name in errors.__all__ if name.endswith("Error")])
def test_the_message_of_every_error_is_inert(name: str) -> None:
    kind = getattr(errors, name)
    error = pickle.loads(pickle.dumps(kind(f"group {HOSTILE}")))
    assert str(error) == f"group {INERT}"
    assert str(kind(f"in t-0: {error}")) == f"in t-0: group {INERT}"


def test_every_logger_shows_names_on_one_line(caplog: pytest.LogCaptureFixture) -> None:
    sources = [*(ROOT / "src").rglob("*.py")]
    for folder in ("streaming", "checkpoints", "jobs"):
        sources += (ROOT / folder).rglob("*.py")
    names = {
        name
        for path in sources
        for name in re.findall(r"logging\.getLogger\(([^)]+)\)", path.read_text())
    }
    names -= {'"kafkalog"', "name", 'f"kafkalog.{_name}"'}
    assert len(names) >= 8
    for name in names:
        caplog.clear()
        logging.getLogger(json.loads(name)).warning("silent: %s", HOSTILE)
        assert caplog.messages == [f"silent: {INERT}"], name


def test_tables_are_inert_in_cells_and_names() -> None:
    rows = [{HOSTILE: HOSTILE, "list": [HOSTILE], "headers": [{"key": HOSTILE, "value": HOSTILE}]}]
    for width in (None, 40, 200):
        assert all(line.isprintable() for line in lines_of(rows, width=width))
    assert all(line.isprintable() for line in Lines().of(rows))


@given(st.dictionaries(st.text(), st.text()))
def test_lines_of_json_are_inert_and_read_as_what_they_were(row: dict[str, str]) -> None:
    line = json_line(row)
    assert line.isprintable()
    assert json.loads(line) == row


def test_bytes_that_are_not_utf8_can_be_printed_as_json() -> None:
    assert json.loads(json_line({"group": "caf\udce9"}).encode()) == {"group": "caf\udce9"}


def test_a_writers_name_begins_no_line_in_the_logs_of_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name, shown = HOSTILE.removesuffix("\udcff"), INERT.removesuffix(r"\udcff")
    rows = pa.table({"value": ["1"]})
    options = {"transactional.id.expiration.ms": "1"}
    kafkalog.append(tmp_path, "t", rows, transactional_id=name, version=1, options=options)
    for word in ("silent for longer", "forgotten, since"):
        time.sleep(0.01)
        caplog.clear()
        kafkalog.append(tmp_path, "t", rows)
        (said,) = caplog.messages
        assert said.startswith(word)
        assert shown in said
