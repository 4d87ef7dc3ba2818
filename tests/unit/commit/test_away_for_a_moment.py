"""A log directory that is away while one question is asked, as a mount on a network may be.

Each question in turn whether a folder is there gets the wrong answer.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.support.sinking import Writer, rows, values_of

import kafkalog
from kafkalog.checkpoints.intent import INTENT_FILE
from kafkalog.errors import KafkaLogError, LogDirectoryError
from kafkalog.files.system import system
from kafkalog.streaming.admin.recovery import recover
from kafkalog.streaming.commit.tail_recovery import PartitionAppender
from kafkalog.streaming.store.log_set import LogSet

if TYPE_CHECKING:
    from collections.abc import Callable

_MOST_QUESTIONS = 40


class PowerCutError(BaseException):
    """Ends a commit without letting it clear up, as a kill would."""


def ask_with_one_wrong_answer(action: Callable[[], object], wrong: int) -> bool:
    """Run an action; the question number ``wrong`` about ``t-0`` is denied. Was it asked?"""
    asked, is_dir = 0, Path.is_dir
    system.memory.clear()  # as a process that has just started

    def answer(path: Path) -> bool:
        nonlocal asked
        if path.name == "t-0":
            asked += 1
            if asked == wrong:
                return False
        return is_dir(path)

    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(KafkaLogError):
        patch.setattr(Path, "is_dir", answer)
        action()
    return asked >= wrong


def append(log: Path, version: int, value: str) -> None:
    table = pa.table({"value": [value]})
    kafkalog.append(log, "t", table, transactional_id="me", version=version)


def test_an_append_is_there_once_whichever_question_is_answered_wrongly(tmp_path: Path) -> None:
    questions = 0
    while questions < _MOST_QUESTIONS:
        log = tmp_path / str(questions)
        append(log, 1, "a")
        for version, value in ((1, "a"), (2, "b")):
            is_asked = ask_with_one_wrong_answer(
                lambda log=log, version=version, value=value: append(log, version, value),  # type: ignore[misc]
                questions + 1,
            )
            append(log, version, value)
        assert values_of([log], "t") == {0: ["a", "b"]}
        if not is_asked:
            break
        questions += 1
    assert 0 < questions < _MOST_QUESTIONS


def test_an_unfinished_commit_is_rolled_back_whichever_question_is_answered_wrongly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise PowerCutError

    questions = 0
    while questions < _MOST_QUESTIONS:
        log = tmp_path / str(questions)
        writer = Writer(log, topic="t")
        writer.write(0, rows(["a"]))
        with monkeypatch.context() as patch, contextlib.suppress(PowerCutError):
            patch.setattr(LogSet, "publish", fail)
            writer.commit(1, writer.stage(1, rows(["b"])))
        is_asked = ask_with_one_wrong_answer(lambda log=log: recover([str(log)]), questions + 1)  # type: ignore[misc]
        recover([str(log)])
        writer.write(1, rows(["c"]))
        assert values_of([log], "t") == {0: ["a", "c"]}
        if not is_asked:
            break
        questions += 1
    assert 0 < questions < _MOST_QUESTIONS


def test_a_folder_that_is_gone_while_its_log_is_opened_is_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(tmp_path, 1, "a")
    folder, away = tmp_path / "t-0", tmp_path / "away"
    opened = PartitionAppender.__init__

    def open_without_folder(*given: object, **named: object) -> None:
        folder.rename(away)
        opened(*given, **named)  # type: ignore[arg-type]
        away.rename(folder)

    system.memory.clear()
    with monkeypatch.context() as patch:
        patch.setattr(PartitionAppender, "__init__", open_without_folder)
        with pytest.raises(LogDirectoryError, match=r"t-0 was there a moment ago, and is gone"):
            append(tmp_path, 2, "b")
    assert not (tmp_path / INTENT_FILE).exists()
    append(tmp_path, 2, "b")
    assert values_of([tmp_path], "t") == {0: ["a", "b"]}
