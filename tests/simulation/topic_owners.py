"""Who creates a topic, gives it more partitions, writes to it, deletes it, and creates it again.

One program does so. So it is known to which life of the topic a record belongs.
"""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.simulation.auditor import Cut
from tests.simulation.brokers import RefusedError, locked
from tests.simulation.moves import delete_retired, remove
from tests.simulation.scene import EACH, OTHER, Scene

import kafkalog
from kafkalog.checkpoints.broker import new_topic_id, write_topic_id
from kafkalog.errors import (
    KafkaLogError,
    LogDirectoryError,
    OptionError,
    UnknownTopicOrPartitionError,
)
from kafkalog.files.system import system
from kafkalog.streaming.admin.broker.handover import hand_over, take_over
from kafkalog.streaming.admin.topics import alter, create, delete
from kafkalog.streaming.commit.committer import Committer
from kafkalog.streaming.sink.task_writer import TaskWriter
from kafkalog.streaming.sink.write_options import WriteOptions, WritePlan
from kafkalog.streaming.store.identity import BatchIdentity
from kafkalog.streaming.store.session import ensure_set

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

__all__ = ["owner"]

_TRIES: Final = 6
_ALL: Final = 1 << 60


def owner(scene: Scene, name: str, operations: int, chance: random.Random) -> None:
    """Let a topic live several times."""
    for life in range(max(operations // 2, 1)):
        if not _Life(scene, name, life, chance).live():
            return


class _Life:
    """A topic from its creation to its deletion."""

    def __init__(self, scene: Scene, name: str, life: int, chance: random.Random) -> None:
        self._scene = scene
        self._name = name
        self._life = life
        self._chance = chance
        self._partitions = chance.randrange(1, 4)
        self._written = 0

    def live(self) -> bool:
        """Live; returns whether it is known to be over."""
        scene, chance = self._scene, self._chance
        make = partial(create, scene.paths, OTHER, partitions=self._partitions)
        # protocol.md, "Locks that are lost": a takeover takes rows that two late hosts left behind.
        takes_over = not scene.machine.is_shared
        if takes_over and chance.random() < 0.15:
            make = self._create_by_broker
        if not self._until_done(make, OptionError):
            return False
        for _ in range(chance.randrange(1, 4)):
            if chance.random() < 0.2:
                self._partitions += 1
                grow = partial(alter, scene.paths, OTHER, partitions=self._partitions)
                if not self._until_done(grow, OptionError):
                    return False
            self._append()
        late = self._stage() if chance.random() < 0.4 else None
        lost: dict[int, int | None] = {
            EACH * self._life + number: None for number in range(self._partitions)
        }
        cut = Cut(self._name, scene.history.now(), dict(lost))
        scene.other.cuts.append(cut)
        ours = partial(delete, scene.paths, OTHER)
        others = (self._delete_by_hand, self._delete_by_broker) if takes_over else ()
        gone = chance.choice((ours, ours, *others))
        if not self._until_done(gone, UnknownTopicOrPartitionError):
            return False
        cut.starts = dict.fromkeys(lost, _ALL)
        cut.ended = scene.history.now()
        if late is not None:
            with scene.told_late(self._name):
                late()
                scene.other.errors.append("rows are written whose topic was deleted since")
        return True

    def _until_done(self, act: Callable[[], object], is_done: type[KafkaLogError]) -> bool:
        """Try until it is done; after a try of unknown end, ``is_done`` says that it was.

        Before one it says that only a folder is there, or that nothing is.
        """
        is_unknown = False
        for _ in range(_TRIES):
            with self._scene.at_work(self._name):
                was_unknown, is_unknown = is_unknown, True
                try:
                    act()
                except RefusedError:  # a broker does not start: somebody is at work, or was cut off
                    is_unknown = was_unknown
                    continue
                except is_done:
                    is_unknown = was_unknown
                    if not was_unknown:
                        raise
                return True
        return False

    def _create_by_broker(self) -> None:
        """Let a broker make the topic's folders, spread over the directories, and end.

        One that was killed left some of them: the next one makes the topic again.
        """
        paths = self._scene.paths
        hand_over(paths)
        topic_id = new_topic_id()
        with locked(self._scene):
            for number in range(self._partitions):
                folder = Path(paths[number % len(paths)], f"{OTHER}-{number}")
                folder.mkdir(exist_ok=True)
                write_topic_id(folder, topic_id)
                (folder / f"{0:020}.log").touch()
        self._take_over()

    def _delete_by_broker(self) -> None:
        """Let a broker rename the topic's folders, and delete them, perhaps not all of them."""
        hand_over(self._scene.paths)
        with locked(self._scene):
            for folder in self._folders():
                life = f"{system.random_id()}".replace("-", "")
                folder.replace(folder.with_name(f"{folder.name}.{life}-delete"))
            if self._chance.random() < 0.5:
                delete_retired([Path(path) for path in self._scene.paths])
        self._take_over()

    def _folders(self) -> list[Path]:
        found = (each for path in self._scene.paths for each in sorted(Path(path).iterdir()))
        return [
            each for each in found if each.name.startswith(f"{OTHER}-") and "." not in each.name
        ]

    def _delete_by_hand(self) -> None:
        """Remove the topic's folders, and let the set be taken over without them."""
        self._scene.deletes_by_hand = True
        for folder in self._folders():
            remove(folder)
        self._take_over()
        self._scene.deletes_by_hand = False

    def _take_over(self) -> None:
        try:
            done = take_over(self._scene.paths)
        except LogDirectoryError as error:
            if "gives that commit up" in str(error):  # as it says
                with contextlib.suppress(UnknownTopicOrPartitionError):  # nothing committed
                    delete(self._scene.paths, OTHER, allows_broker=True)
                self._take_over()
                return
            raise
        if done.problems:
            raise KafkaLogError("the takeover found something")

    @property
    def _options(self) -> dict[str, str]:
        """Options of a write: nobody deletes or compacts single records of this topic."""
        given = {"numPartitions": str(self._partitions), **self._scene.options}
        kept = ("retention.", "cleanup.")
        return {name: text for name, text in given.items() if not name.startswith(kept)}

    def _values(self) -> dict[str, int]:
        self._written += 1
        return {
            f"{self._life}.{self._written}.{n}": EACH * self._life
            + self._chance.randrange(self._partitions)
            for n in range(self._chance.choice((1, 2, 5)))
        }

    def _append(self) -> None:
        scene = self._scene
        write = scene.begin(self._values(), self._chance, scene.other)
        with scene.told(write, self._name):
            options = {**self._options, "flush": write.flush}
            kafkalog.append(scene.path, OTHER, scene.rows(write.values), options=options)

    def _stage(self) -> Callable[[], object] | None:
        """Let a task stage rows; returns what commits them."""
        scene = self._scene
        with scene.at_work(self._name):
            given = {"path": scene.path, "topic": OTHER, "flush": "commit"}
            options = WriteOptions.parse({**self._options, **given})
            set_id = ensure_set(options.paths, options.policy)
            plan = WritePlan(options, set_id, system.time_ns() // 1_000_000)
            identity = BatchIdentity(f"job:{system.random_id()}", 0)
            output = TaskWriter(plan, identity, number=0).write([scene.rows(self._values())])
            return partial(Committer(plan.commit_plan, identity).commit, output.runs)
        return None
