"""Who looks after a set of several nodes: who asks how its replicas stand, and who elects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.node_audit import Stand
from tests.simulation.scene import TOPIC, Scene

from kafkalog.model import TopicSelection
from kafkalog.streaming.admin.nodes.elect import elect_preferred
from kafkalog.streaming.admin.nodes.replicas import inspect_replicas
from kafkalog.streaming.admin.recovery import recover

if TYPE_CHECKING:
    import random

__all__ = ["elector", "inspector", "settle"]


def inspector(scene: Scene, name: str, operations: int, chance: random.Random) -> None:
    """A person who asks how replicas stand: the disks are compared meanwhile."""
    for number in range(2 * operations):
        with scene.at_work(name):
            scene.rest(chance)
            began = scene.history.now()
            found = inspect_replicas(scene.paths, TopicSelection.of(TOPIC))
            if found.problems or not found.partitions:
                continue  # it says so, and that more may have been decided
            stands = {
                each.key.partition: (each.high_watermark, each.leader_epoch)
                for each in found.partitions
            }
            who = f"{name}.{number}"
            scene.nodes.stands.append(Stand(who, began, scene.history.now(), stands))
            scene.show_replicas()


def elector(scene: Scene, name: str, operations: int, chance: random.Random) -> None:
    """A person who lets the preferred leaders lead again."""
    for _ in range(max(operations // 2, 1)):
        with scene.at_work(name):
            scene.rest(chance)
            elect_preferred(scene.paths)


def settle(scene: Scene) -> None:
    """When all nodes are back, recovery lets all replicas be in sync, and equal."""
    with scene.at_work("recover"):
        done = recover(scene.paths)
        if done.problems:
            scene.nodes.not_whole.append(f"recover finds {done.problems}")
    with scene.at_work("look"):
        for each in inspect_replicas(scene.paths, TopicSelection.of(TOPIC)).partitions:
            if each.is_under_replicated or each.is_offline:
                scene.nodes.not_whole.append(f"not in sync in the end: {each}")
    scene.show_replicas()
