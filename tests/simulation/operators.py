"""Who looks after a set while others work on it: persons, and what they let run by the hour."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.auditor import Cut
from tests.simulation.scene import TOPIC, Scene

from kafkalog.errors import OffsetOutOfRangeError
from kafkalog.model import TopicPartition, TopicSelection
from kafkalog.streaming.admin.broker.handover import hand_over, take_over
from kafkalog.streaming.admin.compaction import Wanted, compact
from kafkalog.streaming.admin.recovery import recover
from kafkalog.streaming.admin.retention import HIGH_WATERMARK_OFFSET, delete_records, retain

if TYPE_CHECKING:
    import random

__all__ = ["cleaner", "deleter", "giver", "janitor", "operator"]


def operator(scene: Scene, name: str, operations: int, chance: random.Random) -> None:
    """A person who lets a set be recovered while others work on it."""
    for _ in range(max(operations // 3, 1)):
        with scene.at_work(name):
            scene.rest(chance)
            accepts = scene.may_need_acceptance and chance.random() < 0.5
            done = scene.accept_lost_tail() if accepts else recover(scene.paths)
            if (done.problems or done.lost) and not (scene.may_fail or scene.may_find):
                scene.history.errors.append(f"{name} finds {done.problems} {done.lost}")


def giver(scene: Scene, name: str, operations: int, chance: random.Random) -> None:
    """A person who hands a set over to a broker, and takes it over again before one was started."""
    for _ in range(max(operations // 2, 1)):
        with scene.at_work(name):
            scene.rest(chance)
            done = (hand_over if chance.random() < 0.5 else take_over)(scene.paths)
            if done.problems and not scene.may_fail:
                scene.history.errors.append(f"{name} finds {done.problems}")


def deleter(scene: Scene, name: str, operations: int, chance: random.Random) -> None:
    """A person who deletes the oldest records, whatever retention says."""
    highest = dict.fromkeys(range(scene.partitions), 0)
    for _ in range(max(operations // 2, 1)):
        offsets: dict[TopicPartition, int] = {}
        cut = Cut(name, scene.history.now())
        for number in chance.sample(range(scene.partitions), chance.randint(1, scene.partitions)):
            key = TopicPartition(TOPIC, number)
            if chance.random() < 0.2:
                offsets[key] = HIGH_WATERMARK_OFFSET
                cut.starts[number] = None
            else:
                highest[number] += chance.randrange(4)
                offsets[key] = cut.starts[number] = highest[number]
        scene.history.cuts.append(cut)
        try:
            with scene.at_work(name, cut):
                scene.rest(chance)
                try:
                    done = delete_records(scene.paths, offsets, allows_broker=True)
                except OffsetOutOfRangeError:
                    cut.starts.clear()  # it says that nothing was changed
                    highest = dict.fromkeys(highest, 0)
                    continue
                if done.problems:  # what they are about is as it was
                    cut.starts.clear()
                for each in done.partitions:
                    cut.starts[each.topic_partition.partition] = each.start
        finally:
            for number, start in cut.starts.items():
                highest[number] = max(highest[number], start or 0)


def janitor(scene: Scene, name: str, operations: int, chance: random.Random) -> None:
    """What deletes by ``retention.bytes`` now and then."""
    for _ in range(max(operations // 2, 1)):
        size = chance.choice((300, 600, 1500))
        scene.history.cuts.append(Cut(name, scene.history.now(), keeps_bytes=size))
        with scene.at_work(name):
            scene.rest(chance)
            config = {"retention.bytes": str(size)}
            done = retain(
                scene.paths, topics=TopicSelection.of(TOPIC), config=config, allows_broker=True
            )
            if done.problems and not (scene.may_fail or scene.may_find or scene.has_broker):
                scene.history.errors.append(f"{name} finds {done.problems}")


def cleaner(scene: Scene, name: str, operations: int, chance: random.Random) -> None:
    """What compacts now and then: of each key the last record stays, where it is."""
    for _ in range(max(operations // 2, 1)):
        with scene.at_work(name):
            scene.rest(chance)
            done = compact(scene.paths, Wanted(forces=True, allows_broker=True))
            if done.problems and not (scene.may_fail or scene.may_find or scene.has_broker):
                scene.history.errors.append(f"{name} finds {done.problems}")
