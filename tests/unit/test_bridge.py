from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
import traceback
from typing import TYPE_CHECKING

import pytest
from tests.support.logs import Row, batch_bytes, write_segment

import kafkalog
from kafkalog.errors import CorruptRecordError, KafkaLogError, LogDirectoryError, OptionError
from kafkalog.streaming.options.bridge import crosses_border

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def _deep() -> None:
    try:
        raise ValueError("the cause")  # noqa: TRY301
    except ValueError as error:
        raise OptionError("the sentence") from error


@crosses_border
def called() -> None:
    _deep()


@crosses_border
def generated() -> Iterator[int]:
    yield 1
    _deep()


@pytest.mark.parametrize("call", [called, lambda: list(generated())])
def test_the_sentence_comes_alone_and_the_cause_is_logged(
    call: object, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.DEBUG, "kafkalog.border"),
        pytest.raises(OptionError, match="the sentence") as raised,
    ):
        call()  # type: ignore[operator]
    shown = "".join(traceback.format_exception(raised.value))
    assert shown.splitlines()[-1] == "kafkalog.errors.OptionError: the sentence"
    assert "the cause" not in shown
    assert "_deep" not in shown
    assert "the cause" in caplog.text


def test_what_nobody_expected_keeps_its_traceback() -> None:
    @crosses_border
    def fails() -> None:
        raise AssertionError("a fault of ours") from ValueError("the cause")

    with pytest.raises(AssertionError) as raised:
        fails()
    assert "the cause" in "".join(traceback.format_exception(raised.value))


def test_a_full_file_system_is_a_sentence_that_names_the_file_and_a_way_out() -> None:
    @crosses_border
    def fails() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/logs/t-0/0.log")

    with pytest.raises(LogDirectoryError, match=r"^/logs/t-0/0.log: No space left.*make room"):
        fails()


def test_an_error_of_a_socket_stays_what_it_is() -> None:
    @crosses_border
    def fails() -> None:
        raise ConnectionResetError(errno.ECONNRESET, "reset by peer")

    with pytest.raises(ConnectionResetError):
        fails()


def _damaged(folder: Path) -> str:
    data = bytearray(batch_bytes(0, [Row()] * 5) + batch_bytes(5, [Row()] * 5))
    data[70] ^= 1
    write_segment(folder / "t-0", 0, bytes(data))
    return str(folder)


def test_damage_names_the_option_that_reads_on(tmp_path: Path) -> None:
    with pytest.raises(CorruptRecordError, match=r"; onCorruptRecord=skip reads on") as raised:
        kafkalog.read(_damaged(tmp_path), "t").read_all()
    assert raised.value.__suppress_context__
    for name in ("slice_reader.py", "segment.py"):
        assert name not in "".join(traceback.format_exception(raised.value))


def test_an_error_about_a_missing_topic_names_those_that_are_there(tmp_path: Path) -> None:
    log = _damaged(tmp_path)
    with pytest.raises(KafkaLogError, match=r"topic u is in .*, which holds t; .*subscribePattern"):
        kafkalog.read(log, "u")
    with pytest.raises(KafkaLogError, match=r"none does not exist; check its .*a first write"):
        kafkalog.read(str(tmp_path / "none"), "u")
    (tmp_path / "empty").mkdir()
    with pytest.raises(KafkaLogError, match="which holds no topic"):
        kafkalog.read(str(tmp_path / "empty"), "u")


_STOPPED = """
import io, sys
from pyspark.serializers import read_int
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.spark.readers import LogStreamReader

reader = LogStreamReader(ReadOptions.parse({"path": "/logs", "subscribe": "t"}), None)
try:  # as pyspark's python_streaming_source_runner does
    try:
        %s
    finally:
        reader.stop()
except BaseException:
    print("to be reported", file=sys.stderr)
    sys.exit(1)
"""


@pytest.mark.parametrize(
    ("fails", "reported"),
    [
        ("read_int(io.BytesIO())", (0, "")),
        ("raise EOFError('of ours')", (1, "to be reported\n")),
        ("raise ValueError", (1, "to be reported\n")),
    ],
)
def test_a_reader_that_spark_has_left_ends_without_a_word(
    fails: str, reported: tuple[int, str]
) -> None:
    """Spark closes the pipe to end a query; a report into it would show as broken pipes."""
    words = [sys.executable, "-c", _STOPPED % fails]
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == reported
