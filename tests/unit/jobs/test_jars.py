"""Fetching jars, with a stand-in for Java that does what Ivy would: no network is used."""

from __future__ import annotations

import multiprocessing
import stat
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
import typer

from kafkalog.jobs.cli.app import PIPELINES, app
from kafkalog.jobs.process.jars import (
    OFFLINE,
    Coordinate,
    JarError,
    JarSet,
    cache_directory,
    delta_jars,
    fetch,
    java,
    kafka_jars,
)

if TYPE_CHECKING:
    from pathlib import Path

JARS = JarSet("some", (Coordinate("org.example", "some", "1.0", transitive=False),))

# The argument behind -retrieve is the pattern of the files to make; each run leaves a line.
IVY = """#!/bin/sh
echo run >> {runs}
while [ "$1" != -retrieve ]; do shift; done
sleep 0.3
mkdir -p "$(dirname "$2")"
echo jar > "$(dirname "$2")/some-1.0.jar"
"""

FAILING_IVY = """#!/bin/sh
echo ":: resolving"
echo "  :: org.example#some;1.0: not found"
exit 1
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KAFKALOG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    return tmp_path / "cache"


def install_java(folder: Path, text: str) -> None:
    path = folder / "java" / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(text.format(runs=folder / "runs"), encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_processes_that_ask_at_once_fetch_once(tmp_path: Path, cache: Path) -> None:
    install_java(tmp_path, IVY)

    with multiprocessing.get_context("spawn").Pool(3) as pool:
        found = pool.map(fetch, [JARS] * 3)

    assert found == [[cache / "jars" / JARS.key / "some-1.0.jar"]] * 3
    assert (tmp_path / "runs").read_text(encoding="utf-8").split() == ["run"]
    assert {path.name for path in (cache / "jars").iterdir()} == {".lock", JARS.key}


def test_a_library_that_is_not_to_be_had_is_named(tmp_path: Path, cache: Path) -> None:
    install_java(tmp_path, FAILING_IVY)

    with pytest.raises(JarError, match=r"some;1\.0: not found(.|\n)*org\.example:some:1\.0.*copy "):
        fetch(JARS)

    assert {path.name for path in (cache / "jars").iterdir()} == {".lock"}


def test_what_is_fetched_is_said(
    tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install_java(tmp_path, IVY.format(runs=tmp_path / "runs"))
    for told in ("fetching jars, once: org.example:some:1.0 into ", ""):
        assert len(fetch(JARS)) == 1
        err = capsys.readouterr().err
        assert err.startswith(told)
        assert bool(err) == bool(told)


def test_offline_takes_what_is_there_and_fetches_nothing(tmp_path: Path, cache: Path) -> None:
    install_java(tmp_path, IVY.format(runs=tmp_path / "runs"))
    token = OFFLINE.set(True)
    try:
        with pytest.raises(JarError, match=r"org\.example:some:1\.0\) are not in .*/cache/jars"):
            fetch(JARS)
        assert not (tmp_path / "runs").exists()
        OFFLINE.set(False)
        fetched = fetch(JARS)
        OFFLINE.set(True)
        assert fetch(JARS) == fetched
    finally:
        OFFLINE.reset(token)


def test_pipelines_that_need_jars_have_the_option_and_no_other_command(
    tmp_path: Path, cache: Path
) -> None:
    for name in PIPELINES:
        command: Any = typer.main.get_command(import_module(f"kafkalog.jobs.{name}").app)
        has_option = any("--offline" in each.opts for each in command.params)
        assert has_option == (name in {"archive", "ingest", "replay", "restore"}), name
    commands: Any = typer.main.get_command(app)
    found = [name for name, each in commands.commands.items() if "offline" in str(each.params)]
    assert found == []


def test_a_java_home_without_java_is_named(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(JarError, match=f"JAVA_HOME is {tmp_path / 'java'}, and holds no bin/java"):
        java()
    assert not cache.exists()


def test_another_version_is_another_folder() -> None:
    newer = JarSet("some", (Coordinate("org.example", "some", "1.1", transitive=False),))
    assert newer.key != JARS.key


def test_the_cache_is_where_the_user_wants_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KAFKALOG_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "kafkalog"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory() == tmp_path / ".cache" / "kafkalog"


@pytest.mark.parametrize(
    ("version", "delta", "connector"),
    [
        ("4.0.5", "delta-spark_4.0_2.13", "4.0.4"),
        ("4.1.4", "delta-spark_4.1_2.13", "4.1.3"),
        ("4.2.1.dev3", "delta-spark_4.2_2.13", "4.2.0"),
    ],
)
def test_jars_are_those_of_the_spark_that_runs(
    version: str, delta: str, connector: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark.__version__", version)
    assert delta_jars().coordinates[0].name == delta
    assert kafka_jars().coordinates[0].version == connector


def test_a_spark_without_delta_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.__version__", "4.3.0")
    with pytest.raises(JarError, match=r"no library for Spark 4\.3: run this on Spark 4\.2, or"):
        delta_jars()
    assert kafka_jars().coordinates[0].version == "4.2.0"
