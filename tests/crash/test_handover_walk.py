"""Cut off a handover or a takeover anywhere: nothing is lost by it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from tests.support.killing import count_calls, run_and_kill
from tests.support.sinking import Writer, rows, values_of

from kafkalog.checkpoints.broker import META_PROPERTIES, read_topic_id
from kafkalog.checkpoints.committed import load_committed
from kafkalog.errors import LogDirectoryError
from kafkalog.streaming.admin.broker.handover import hand_over, take_over
from kafkalog.streaming.store.log_dirs import LogDirs

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.crash

TOPIC_ID = "hpYgM1pPTfKkq0oFhDYc0w"
SETTINGS = {"compression.type": "lz4", "segment.bytes": "200"}
NUMBERS = [0, 1, 2]
STEP = 3
"""Of so many calls of a handover one is killed at; giving the folders their ids takes 14."""


def writer(folder: Path, **options: str) -> Writer:
    return Writer(folder / "a", folder / "b", topic="t", allowBrokerDirectory="true", **options)


def batch(number: int) -> list[str]:
    return [f"{number}/{p}" for p in NUMBERS]


def values(*numbers: int) -> dict[int, list[str]]:
    return {p: [f"{number}/{p}" for number in numbers] for p in NUMBERS}


def give(folder: Path) -> None:
    done = hand_over(paths_of(folder), topic_ids={"t": TOPIC_ID}, cluster_id="c", node_id=1)
    assert done.problems == []


def take(folder: Path) -> None:
    assert take_over(paths_of(folder)).problems == []


def paths_of(folder: Path) -> list[str]:
    return [str(folder / "a"), str(folder / "b")]


def ids_of(folder: Path) -> set[str | None]:
    return {read_topic_id(each.path) for each in LogDirs(paths_of(folder)).partitions().values()}


@pytest.fixture
def before(tmp_path: Path) -> Path:
    """Give two directories with a topic of three partitions, and settings."""
    settings = {name.replace(".", "__"): value for name, value in SETTINGS.items()}
    made = writer(tmp_path / "before", numPartitions="3", **settings)
    made.write(0, rows(batch(0), partitions=NUMBERS))
    return tmp_path / "before"


def test_a_handover_that_is_cut_off_is_run_again_and_the_sink_goes_on(
    before: Path, tmp_path: Path
) -> None:
    shutil.copytree(before, tmp_path / "counted")
    calls = count_calls(lambda: give(tmp_path / "counted"))
    assert calls > 100
    mixed = 0
    for call in range(0, calls, STEP):
        folder = tmp_path / str(call)
        shutil.copytree(before, folder)
        assert run_and_kill(lambda folder=folder: give(folder), call)
        directories = [folder / "a", folder / "b"]
        committed, ids = load_committed(directories), ids_of(folder)
        for key, found in LogDirs(directories).partitions().items():
            assert committed.high_watermark("t", read_topic_id(found.path), key.partition) == 1
        if len(ids) > 1:
            mixed += 1
            with pytest.raises(LogDirectoryError, match=r"handover` .* run it again"):
                writer(folder).write(1, rows(batch(1), partitions=NUMBERS))
        if len(ids) > 1 or call % 2:
            give(folder)
            assert ids_of(folder) == {TOPIC_ID}
        writer(folder).write(1, rows(batch(1), partitions=NUMBERS))
        assert values_of(directories, "t") == values(0, 1)
        state = load_committed(directories).state
        assert state is not None
        assert [topic.settings for topic in state.topics.values()] == [SETTINGS]
        shutil.rmtree(folder)
    assert mixed > 1


def test_a_takeover_of_a_brokers_directories_that_is_cut_off_is_run_again(
    before: Path, tmp_path: Path
) -> None:
    for folder in (before / "a", before / "b"):
        (folder / META_PROPERTIES).write_text("version=1\n")
        for path in folder.glob("kafkalog.*"):
            path.unlink()
    shutil.copytree(before, tmp_path / "counted")
    calls = count_calls(lambda: take(tmp_path / "counted"))
    for call in range(calls):
        folder = tmp_path / str(call)
        shutil.copytree(before, folder)
        assert run_and_kill(lambda folder=folder: take(folder), call)
        if call % 2:
            take(folder)
        writer(folder, name="other").write(0, rows(batch(1), partitions=NUMBERS))
        assert values_of([folder / "a", folder / "b"], "t") == values(0, 1)
        shutil.rmtree(folder)
