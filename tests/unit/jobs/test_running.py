from __future__ import annotations

import importlib
import os
import re
import runpy
import subprocess
import sys
import tempfile
import traceback
from typing import TYPE_CHECKING, Any, Final, NoReturn

import pytest
from pyspark import SparkContext

from kafkalog.errors import LogDirectoryError, OptionError
from kafkalog.files.paths import split_paths
from kafkalog.jobs.process.arguments import check_folders, check_folders_of_spark
from kafkalog.jobs.process.jars import JarError
from kafkalog.jobs.process.running import sentence_in

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def run(*words: str) -> tuple[int, list[str]]:
    """Run a job where no Java is to be had: what is checked before Spark starts needs none.

    In a child that is forked: a new Python would take seconds to import what this one has.
    """
    importlib.import_module(words[0])
    with tempfile.TemporaryFile() as told:
        child = os.fork()
        if child == 0:
            os.dup2(told.fileno(), 2)
            _run_module(words)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        told.seek(0)
        return code, told.read().decode().splitlines()


def _run_module(words: Sequence[str]) -> NoReturn:
    code: Any = _FAILED
    try:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115 - of the process, not pytest's
        os.environ |= {"JAVA_HOME": "/nowhere", "PATH": "/nowhere"}
        SparkContext._gateway = SparkContext._jvm = None  # as a new process has none
        sys.argv = [*words]
        del sys.modules[words[0]]  # it runs as the main module
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as exited:
        code = exited.code
    except BaseException:  # noqa: BLE001 - the child must not go on as the parent
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


_FAILED: Final = 99


INGEST = ("kafkalog.jobs.ingest", "/", "/nowhere/log", "--topic=t", "--checkpoint=/nowhere/c")
ARCHIVE = ("kafkalog.jobs.archive", "/nowhere/log", "/nowhere/t", "--checkpoint=/nowhere/c")
RESTORE = ("kafkalog.jobs.restore", "/", "/nowhere/log", "--topic=t")
MAINTAIN = ("kafkalog.jobs.maintain", "/nowhere/log")
REPLAY = ("kafkalog.jobs.replay", "/nowhere/log", "-", "--topic=t")
MIRROR = ("kafkalog.jobs.mirror", "/nowhere/log", "/nowhere/copy", "--checkpoint=/nowhere/c")


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("kafkalog.jobs.ingest", "/"), "Missing argument 'LOG'"),
        ((INGEST[0], "/nowhere/in", *INGEST[2:]), "/nowhere/in does not exist"),
        ((*INGEST, "--format=kafka"), "'/' is not of the form HOST:PORT"),
        ((*INGEST, "--set=flush"), "'flush' is not of the form NAME=VALUE"),
        ((*INGEST, "--set=flush=os", "--set=flush=commit"), "flush is given twice"),
        ((*INGEST, "--key=a", "--key=b"), "'--key': given twice; it takes one value"),
        ((*INGEST, "--set=flsh=os"), "option 'flsh' is not known: did you mean 'flush'?"),
        ((*INGEST[:3], "--topic=a/b", INGEST[4]), "a/b"),
        ((*ARCHIVE, "--topic=t", "--set=endingOffsets=latest"), "'endingOffsets' cannot be used"),
        ((*ARCHIVE, "--topic=t", "--wrong"), "No such option: --wrong"),
        ((*ARCHIVE, "--topic=t", "--topic=,"), "'t,,' has an empty name"),
        (
            (*ARCHIVE, "--topic=t", "--latest=/x", "--format=parquet"),
            "--latest needs a Delta table",
        ),
        ((RESTORE[0], "/nowhere/t", *RESTORE[2:]), "/nowhere/t does not exist"),
        ((*RESTORE, "--until=soon"), "--until is 'soon', expected offsets as"),
        ((*RESTORE, "--config=retention=1"), "'retention' is no topic setting"),
        ((*RESTORE, "--suppress=/nowhere/keys"), "--suppress cannot be read"),
        ((*RESTORE[:3], "--topic=__consumer_offsets"), "is Kafka's own"),
        (MIRROR, "--topic names what is copied, or --pattern: one of them"),
        ((*MIRROR, "--topic=t", "--pattern=t"), "--topic names what is copied, or --pattern"),
        ((*MIRROR, "--pattern=("), "no regular expression"),
        ((*MIRROR[:3], "--topic=t", "--checkpoint=s3://b/c"), "is not on a local file system"),
        ((*MIRROR, "--topic=t", "--set=endingOffsets=latest"), "'endingOffsets' cannot be used"),
        ((MIRROR[0], "/x", "/y/../x", MIRROR[3], "--topic=t"), "a log is no copy of itself"),
        ((*REPLAY, "--speed=0"), "--speed is '0', expected a number above 0, or max"),
        ((*REPLAY, "--from=soon"), "--from is 'soon', expected offsets as"),
        ((*REPLAY, "--follow", "--until=5"), "--follow has no end: leave out --until"),
        ((*REPLAY, "--as=u"), "--as and --target-set are not for the terminal"),
        ((REPLAY[0], "/", "kafka:host", REPLAY[3]), "'host' is not of the form HOST:PORT"),
        ((REPLAY[0], "/x", "/y/../x", REPLAY[3]), "a topic is not played into itself"),
        ((REPLAY[0], "/x", "/y", REPLAY[3], "--as=a/b"), "a/b"),
        (("kafkalog.jobs.demo", "--flights=x"), "for '--flights'"),
        (("kafkalog.jobs.rebuild",), "Missing argument 'LOG'"),
        (("kafkalog.jobs.maintain",), "Missing argument 'LOG'"),
        ((*MAINTAIN, "--every=often"), "--every is 'often', expected a time such as 1500, 5s"),
        ((*MAINTAIN, "--every=3000000h"), "--every is '3000000h', expected a time such as"),
        ((*MAINTAIN, "--config=retention.ms=soon"), "retention.ms is 'soon'"),
        # where nothing can be written: /dev/null is a file for everybody
        ((*INGEST[:3], INGEST[3], "--checkpoint=/dev/null/c"), "/dev/null is no folder"),
        ((INGEST[0], "/", "/dev/null", *INGEST[3:]), "LOG names /dev/null, but /dev/null is no"),
        ((RESTORE[0], "/", "/dev/null/log", "--topic=t"), "LOG names /dev/null/log"),
        ((MIRROR[0], "/x", "/dev/null/x", MIRROR[3], "--topic=t"), "TO names /dev/null/x"),
    ],
)
def test_wrong_arguments_are_one_line_and_exit_2_before_spark_starts(
    words: tuple[str, ...], said: str
) -> None:
    code, lines = run(*words)
    assert (code, len(lines)) == (2, 1), lines
    assert said in lines[0]


@pytest.mark.parametrize("words", [(*ARCHIVE, "--topic=t"), MAINTAIN, REPLAY])
def test_a_log_that_is_not_there_is_one_line_and_exit_2_before_spark_starts(
    words: tuple[str, ...],
) -> None:
    code, lines = run(*words)
    assert (code, len(lines)) == (2, 1), lines
    assert re.search("/nowhere/log (does not exist|is no log directory)", lines[0])


def test_what_spark_throws_is_reduced_to_our_sentence() -> None:
    text = (
        "[STREAM_FAILED] Query [id = 1] terminated with exception: Traceback:\n"
        '  File "border.py", line 46, in crossing\n'
        "kafkalog.errors.CommitError: the staged file /x cannot be written\n"
        " SQLSTATE: 38000\n=== Streaming Query ===\n"
    )
    assert sentence_in(RuntimeError(text)) == "the staged file /x cannot be written"
    one_line = "x\nkafkalog.errors.OptionError: wrong SQLSTATE: 38000 SQLSTATE: XXKST\n"
    assert sentence_in(RuntimeError(one_line)) == "wrong"
    assert sentence_in(LogDirectoryError("there is none")) == "there is none"
    assert sentence_in(RuntimeError("a fault of ours")) is None


def test_why_a_query_ended_within_spark_is_one_sentence() -> None:
    text = (
        "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: File file:/c/offsets "
        "does not exist SQLSTATE: XXKST\n=== Streaming Query ===\n"
        "Identifier: archive t [id = 1, runId = 2]\n"
    )
    assert sentence_in(RuntimeError(text)) == (
        "archive t has failed: File file:/c/offsets does not exist"
    )
    ours = text.replace("File file:/c", 'Traceback (most recent call last):\n  File "x.py"')
    assert sentence_in(RuntimeError(ours)) is None


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (ModuleNotFoundError("no pyspark", name="pyspark"), 'pip install "pyspark'),
        (ModuleNotFoundError("no other", name="other"), None),
        (RuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited"), "Spark needs Java"),
        (JarError("Ivy says:\n  no\nthey could not be fetched"), "they could not be fetched"),
    ],
)
def test_what_spark_needs_and_has_not_is_one_sentence(
    error: Exception, sentence: str | None
) -> None:
    found = sentence_in(error)
    assert found is None if sentence is None else found is not None and sentence in found
    assert "\n" not in (found or "")


@pytest.mark.parametrize(
    ("said_by_java", "sentence"),
    [
        (": java.io.IOException: mkdir of file:/x/c failed", "mkdir of file:/x/c failed"),
        (
            ": org.apache.hadoop.fs.FileAlreadyExistsException: Destination exists: /x",
            "Destination exists: /x",
        ),
        (
            ": org.apache.spark.sql.delta.DeltaIOException: [DELTA_X] Cannot create /x SQLSTATE: A",
            "[DELTA_X] Cannot create /x",
        ),
        (": java.nio.file.AccessDeniedException: /x", "/x"),
        (": java.lang.NullPointerException: x", None),
    ],
)
def test_what_java_says_of_a_folder_is_one_sentence(
    said_by_java: str, sentence: str | None
) -> None:
    text = f"An error occurred while calling o97.save.\n{said_by_java}\n\tat java.base/x.y(Z.java)"
    assert sentence_in(RuntimeError(text)) == sentence


def test_a_folder_that_cannot_be_written_is_told_by_the_argument_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = tmp_path / "a" / "b"
    check_folders({"TABLE": str(new), "LOG": [str(new), str(tmp_path)], "--latest": None})
    check_folders({"TABLE": "s3://bucket/x"})
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(OptionError, match=f"TABLE names {new}, but {tmp_path} cannot be written"):
        check_folders({"TABLE": str(new)})


def test_a_node_that_is_away_and_a_comma_in_a_name_are_no_hindrance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a node's disk is not mounted, its mount point belongs to root."""
    (tmp_path / "mounts").touch()
    there, lost = tmp_path / "there", tmp_path / "mounts" / "lost"
    check_folders({"TO": split_paths(f"{there};{lost};witness:{tmp_path}/w")})
    with pytest.raises(OptionError, match=f"TO names {lost}, but {tmp_path}/mounts is no folder"):
        check_folders({"TO": split_paths(f"{there},{lost}")})
    monkeypatch.chdir(tmp_path)
    check_folders({"TABLE": f"{tmp_path}/table/x,mounts/y"})


def test_a_warning_of_a_script_begins_with_its_level() -> None:
    script = (
        "import logging, typer; from kafkalog.jobs.process.running import run\n"
        "app = typer.Typer()\n"
        "@app.command()\n"
        "def main(): logging.getLogger('kafkalog.sink').warning('look')\n"
        "run(app)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "WARNING look\n")


@pytest.mark.parametrize("name", ["HADOOP_CONF_DIR", "YARN_CONF_DIR", "PYSPARK_GATEWAY_PORT"])
def test_a_folder_of_spark_without_a_scheme_may_lie_in_a_store(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.delenv(each, raising=False)
    with pytest.raises(OptionError, match="TABLE names /dev/null/x, but /dev/null is no folder"):
        check_folders_of_spark({"TABLE": "/dev/null/x", "--latest": None})
    monkeypatch.setenv(name, "1")
    check_folders_of_spark({"TABLE": "/dev/null/x", "--latest": None})
    with pytest.raises(OptionError, match="TABLE names file:///dev/null/x, but /dev/null is no"):
        check_folders_of_spark({"TABLE": "file:///dev/null/x"})
