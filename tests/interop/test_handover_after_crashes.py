"""Log directories that were left by crashes of every kind are recovered and given to one broker.

Each kind is a commit of another sort, killed at another call; ``make kills`` takes many calls.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pytest
from tests.support.consumer_group import read_as_group
from tests.support.dump_log import dump_log_segments, partition_files
from tests.support.kafka import Broker, Topic
from tests.support.killing import count_calls, run_and_kill
from tests.support.scenes import CASES, TOPICS, Case, Scene, in_order

from kafkalog.checkpoints.broker import read_topic_id
from kafkalog.checkpoints.commit_state import UNFINISHED_FOLDER
from kafkalog.streaming.admin.broker.handover import hand_over, take_over
from kafkalog.streaming.admin.recovery import recover

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

pytestmark = [pytest.mark.interop, pytest.mark.crash]

CRASHES: Final = int(os.environ.get("KAFKALOG_HANDOVER_CRASHES", "3"))
"""How many calls of each sort of commit are killed."""

SORTS: Final = [case for case in CASES if "message__format" not in case.options]
"""Brokers of today write no older formats."""


@dataclass
class Crashed:
    """Log directories of one sort in which a commit dies; ``batches`` of them are committed."""

    scene: Scene
    batches: int

    @property
    def is_new(self) -> bool:
        """Whether the commit that dies is the first one, which makes the topics."""
        return not self.scene.case.before

    @property
    def topics(self) -> list[Topic]:
        """The topics that the sink has made."""
        count = int(self.scene.case.options["numPartitions"])
        return [Topic(name, count) for name in self.scene.topics if self.batches]

    def hand_over(self, ids: dict[str, str]) -> None:
        mine = {topic.name: ids[topic.name] for topic in self.topics}
        assert hand_over(self._paths, topic_ids=mine).problems == []

    def crash(self, number: int) -> None:
        """Die at some call of the next batch, or (0) of a recovery from one that has died."""
        with pytest.MonkeyPatch.context() as patch:
            self.scene.case.apply(patch)
            calls = count_calls_of(self.scene)
            part = number / (CRASHES + 1) or 0.6
            assert run_and_kill(lambda: self.scene.write(self.batches, "run-1"), int(calls * part))
        if not number:
            assert run_and_kill(lambda: recover(self._paths), 8)
        self.scene.check_guarded()
        seen = self.scene.values()
        self.batches += seen != self.scene.expected(self.batches)
        assert seen == self.scene.expected(self.batches)

    def recover(self) -> None:
        done = recover(self._paths)
        assert done.problems == []
        assert not is_unfinished(self)
        assert self.scene.values() == self.scene.expected(self.batches)

    def go_on(self) -> None:
        """Take the directories over, and commit the next batch."""
        assert take_over(self._paths).problems == []
        self.scene.write(self.batches, "run-9")
        self.batches += 1

    def check(self, values: dict[str, list[str]], first: int) -> None:
        """What was read is exactly the committed batches from the first one."""
        found = in_order([value for name in self.scene.topics for value in values.get(name, [])])
        expected = self.scene.expected(self.batches)
        assert found == expected[len(self.scene.expected(first)) :], self.scene.folder.name

    @property
    def _paths(self) -> list[str]:
        return [str(folder) for folder in self.scene.directories]


def is_unfinished(crashed: Crashed) -> bool:
    return any((folder / UNFINISHED_FOLDER).is_dir() for folder in crashed.scene.directories)


def count_calls_of(scene: Scene) -> int:
    """Count the calls of a scene's next batch, in directories of their own."""
    folder = scene.folder.with_name(f"{scene.folder.name}-counted")
    counted = Scene(scene.case, folder, scene.topics)
    counted.prepare()
    return count_calls(lambda: counted.write(scene.case.before, "run-1"))


def prepared(case: Case, folder: Path, number: int) -> Crashed:
    case = replace(case, options={**case.options, "allowBrokerDirectory": "true"})
    name = f"{case.name} {number}".replace(" ", "-")
    scene = Scene(case, folder / name, tuple(f"{topic}-{name}" for topic in TOPICS))
    scene.prepare()
    return Crashed(scene, case.before)


def create_topics(broker: Broker, topics: Sequence[Topic]) -> dict[str, str]:
    """Create topics in the cluster, give their ids, and take the broker's folders away."""
    (data,) = broker.log_dirs
    broker.start()
    broker.create_topics(*topics)
    broker.stop()
    ids = {}
    for topic in topics:
        for number in range(topic.partitions):
            folder = data / f"{topic.name}-{number}"
            ids[topic.name] = read_topic_id(folder) or ""
            shutil.rmtree(folder)
    return ids


def topics_of(crashes: Iterable[Crashed]) -> list[Topic]:
    return [topic for each in crashes for topic in each.topics]


def directories_of(crashes: Iterable[Crashed]) -> list[Path]:
    return [folder for each in crashes for folder in each.scene.directories]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path / "broker")
    with contextlib.closing(broker):
        try:
            yield broker
        finally:
            broker.kill()


def test_a_broker_serves_what_was_committed_after_every_kind_of_crash(
    broker: Broker, tmp_path: Path
) -> None:
    (own,) = broker.log_dirs
    numbered = [
        (prepared(case, tmp_path / "logs", number), number)
        for case in SORTS
        for number in range(CRASHES + 1)
    ]
    crashes = [each for each, _ in numbered]
    ids = crash_all(broker, numbered)
    assert {is_unfinished(each) for each in crashes} == {True, False}

    # A broker would rename folders of topics that its cluster does not know, and then refuse.
    broker.use([own, *directories_of(each for each in crashes if not each.is_new)])
    with pytest.raises(RuntimeError, match=UNFINISHED_FOLDER):
        broker.start()
    for each in crashes:
        each.recover()
        each.hand_over(ids)

    broker.use([own, *directories_of(crashes)])
    take_turns(broker, [each for each in crashes if each.topics], ids)
    files = [file for folder in directories_of(crashes) for file in partition_files(folder)]
    assert dump_log_segments([file for file in files if file.stat().st_size]).findings == []


def crash_all(broker: Broker, numbered: Sequence[tuple[Crashed, int]]) -> dict[str, str]:
    """Crash each, in a directory whose topics the cluster knows; give their ids."""
    for each, number in numbered:
        if each.is_new:
            each.crash(number)
    ids = create_topics(broker, topics_of(each for each, _ in numbered))
    for each, number in numbered:
        if not each.is_new:
            each.hand_over(ids)
            each.crash(number)
    return ids


def take_turns(broker: Broker, crashes: Sequence[Crashed], ids: dict[str, str]) -> None:
    """First the broker, then the sink behind it, then the broker: its clients go on."""
    topics = topics_of(crashes)
    broker.start()
    broker.wait_for_leaders(*topics)
    values = read_as_group(broker, *topics)
    for each in crashes:
        each.check(values, 0)
    for topic in topics:
        broker.produce(topic.name, [(b"k", b"from a client")])
    broker.kill()
    served = [each.batches for each in crashes]
    for each in crashes:
        each.go_on()
        each.hand_over(ids)
    broker.start()
    broker.wait_for_leaders(*topics)
    values = read_as_group(broker, *topics)
    for topic in topics:
        values[topic.name].remove("from a client")
    for each, first in zip(crashes, served, strict=True):
        each.check(values, first)
    broker.stop()
