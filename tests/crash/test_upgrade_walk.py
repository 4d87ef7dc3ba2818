"""SIGKILL at calls of the commit that first writes a set of an earlier format; then go on."""

from __future__ import annotations

import os
import shutil
from functools import partial
from typing import TYPE_CHECKING, Final

import pytest
from tests.support.earlier_formats import EarlierSet, values_of
from tests.support.killing import run_and_kill

from kafkalog.checkpoints.commit_state import STATE_FILE
from kafkalog.checkpoints.intent import INTENT_FILE

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.crash

STRIDE: Final = int(os.environ.get("KAFKALOG_KILL_STRIDE", "11"))


@pytest.mark.parametrize("name", ["unfinished", "unfinished-new-topic", "published-once"])
def test_an_intent_of_format_1_is_rolled_back_before_anything_is_written_in_format_2(
    name: str, tmp_path: Path
) -> None:
    batch_id = EarlierSet.unpacked(name, tmp_path / "0").next_batch
    call, died = 0, True
    while died:
        shutil.copytree(tmp_path / "0", tmp_path / f"at {call}")
        found = EarlierSet.at(name, tmp_path / f"at {call}")
        died = run_and_kill(partial(found.write, batch_id), call, half=True)
        intents, left = found.versions(INTENT_FILE), values_of(found.read())
        if name != "published-once" and 1 in intents:
            assert found.versions(STATE_FILE) == intents == {1}
        if found.versions(STATE_FILE) == {1}:
            assert left == values_of(found.rows)
        new = found.write(batch_id, run="run-3")
        assert values_of(found.read()) == sorted([*values_of(found.rows), *new])
        assert left in (values_of(found.rows), values_of(found.read()))
        assert found.versions(STATE_FILE) == {2}
        shutil.rmtree(tmp_path / f"at {call}")
        call += STRIDE
    assert call > 50
