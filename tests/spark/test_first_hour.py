"""What docs/first-hour.md says, done in an empty folder, as it stands on the page; and how-tos."""

from __future__ import annotations

import grp
import logging
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest
from tests.support.recipes import FIRST_HOUR, HOW_TOS, blocks_on, follow
from tests.support.spark import end_jvm, small_session

import kafkalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BLOCKS: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
pytestmark = pytest.mark.spark


@pytest.mark.nightly
def test_each_block_does_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (language, install), *blocks = blocks_on(FIRST_HOUR)
    assert (language, "pip install" in install) == ("sh", True)  # make release installs
    assert len(blocks) >= 20
    assert not [text for name, text in blocks if name not in {"", "python"}]
    end_jvm()  # a new one starts in this folder, so the page's relative paths are its own
    try:
        with small_session():  # which the page's own builder finds
            follow(blocks, tmp_path, {}, in_one_python=True)
    finally:
        end_jvm()


@pytest.mark.nightly
def test_each_block_of_a_how_to_does_what_its_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    end_jvm()
    try:
        with small_session() as spark:
            for page in HOW_TOS:
                names = follow(blocks_on(page), tmp_path, {}, in_one_python=True)
                tests = [name for name in names if name.startswith("test_")]
                assert bool(tests) == (page.stem == "testing")
                for name in tests:
                    names[name](spark, tmp_path / "of a test")
    finally:
        end_jvm()


@pytest.mark.nightly
def test_a_query_moves_over_and_is_watched_as_the_pages_say(tmp_path: Path) -> None:
    end_jvm()
    try:
        with small_session() as spark:
            migrate(spark, tmp_path)
            monitor(spark, tmp_path)
    finally:
        end_jvm()


@pytest.mark.nightly
def test_who_installs_as_the_page_says_has_the_command(tmp_path: Path) -> None:
    shell = next(text for _, text in BLOCKS.findall(page("install")) if "venv" in text)
    root = FIRST_HOUR.parents[1]
    lines = f"set -e\n{shell.replace('/path/to/clone', str(root))}\nkafkalog --version\n"
    subprocess.run(["bash", "-c", lines], cwd=tmp_path, check=True)


@pytest.mark.nightly
def test_a_group_writes_a_log_whose_rights_are_those_of_the_page(tmp_path: Path) -> None:
    shell = next(text for _, text in BLOCKS.findall(page("security")) if "chgrp" in text)
    group = grp.getgrgid(os.getgid()).gr_name
    log = tmp_path / "log"
    kafkalog.append(log, "t", pa.table({"value": ["v"]}))
    change = shell.partition("groupadd kafkalog-writers\n")[2]
    change = change.replace("kafkalog-writers", group).replace("/logs/a", str(log))
    subprocess.run(["bash", "-ec", change], check=True)
    kafkalog.append(log, "u", pa.table({"value": ["v"]}))
    for path in log.rglob("*.log"):
        assert path.group() == group
        assert path.stat().st_mode & 0o007 == 0


def migrate(spark: SparkSession, folder: Path) -> None:
    """Run the query of migrate.md after its move; it is that before it but for format and path."""
    before, after = (text for name, text in BLOCKS.findall(page("migrate")) if name == "py")
    moved = before.replace('"kafka"', '"kafkalog"')
    moved = re.sub(r"\n    \.option\(\"kafka\.bootstrap\.servers.*\)", "", moved)
    assert (
        moved.replace("load()", 'load("/logs/a")').replace("start()", 'start("/logs/a")') == after
    )
    log = str(folder / "migrated")
    kafkalog.append(log, "flights", pa.table({"key": ["UA"], "value": ["EWR-IAH"]}))
    names: dict[str, Any] = {"spark": spark}
    exec(after.replace("/logs/a", log).replace('"checkpoint"', f'"{folder}/migrating"'), names)
    names["query"].processAllAvailable()
    names["query"].stop()
    assert kafkalog.read(log, "copy").read_all()["value"].to_pylist() == [b"EWR-IAH"]


def monitor(spark: SparkSession, folder: Path) -> None:
    """Let the listener of monitoring.md write its file, and the line for cron another one."""
    listener, logs = (text for name, text in BLOCKS.findall(page("monitoring")) if name == "python")
    cron = next(text for _, text in BLOCKS.findall(page("monitoring")) if text.startswith("* "))
    places = {"/logs/a": str(folder / "migrated"), "/var/lib/node_exporter": str(folder)}
    places["--checkpoint C"] = f"--checkpoint {folder}/watched"
    for shown, real in places.items():
        listener, cron = listener.replace(shown, real), cron.replace(shown, real)
    exec(listener, {"spark": spark})
    level = logging.getLogger("kafkalog").level
    exec(logs, {})
    logging.getLogger("kafkalog").setLevel(level)
    source = spark.readStream.format("kafkalog").option("subscribe", "flights")
    rows = source.option("startingOffsets", "earliest").load(places["/logs/a"])
    query = rows.writeStream.format("noop").option("checkpointLocation", f"{folder}/watched")
    query.trigger(availableNow=True).start().awaitTermination()
    written = folder / "query.prom"
    while not written.exists():  # listeners are told later
        time.sleep(0.2)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with kafkalog.Consumer(places["/logs/a"], "g", "flights") as consumer:
        consumer.poll(timeout=1)
        consumer.commit()
    line = cron.removeprefix("* * * * * ")
    subprocess.run(["bash", "-c", line], check=True, env={**os.environ, "PATH": path})
    written = folder / "a.prom"
    readers = set(re.findall(r'kafkalog_lag_records{reader="(.+?)"', written.read_text()))
    assert readers, written.read_text()
    assert any("watched" in each for each in readers), readers


def page(name: str) -> str:
    return FIRST_HOUR.with_name(f"{name}.md").read_text(encoding="utf-8")
