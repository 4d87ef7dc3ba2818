"""Where a history takes place: directories, options, and what is told to those who act."""

from __future__ import annotations

import contextlib
import logging
import zlib
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from tests.simulation.auditor import Acceptance, Cut, History, Read, Write
from tests.simulation.group_audit import GroupHistory
from tests.simulation.machine import ROOT, Machine
from tests.simulation.node_audit import Acknowledged, NodeHistory
from tests.simulation.scheduler import InterruptError, KilledError
from tests.support.warnings_heard import warnings_to

from kafkalog.errors import DurabilityError, KafkaLogError, UnknownOutcomeError
from kafkalog.streaming.admin.recovery import RecoveryReport, recover

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from tests.simulation.layouts import Layout
    from tests.simulation.node_facts import Disks

__all__ = ["EACH", "OTHER", "TOPIC", "Scene"]

TOPIC: Final = "t"
OTHER: Final = "u"
"""A topic that is deleted and created again. Its records begin with the number of its life."""
_KEYS: Final = 6
EACH: Final = 1000
"""Partitions of a life of that topic, for the auditor, to whom each life is another topic."""
COLUMNS: Final = ("partition", "offset", "value")


class Scene:
    """Directories, options, and the history of what was told.

    ``may_fail``: whether something may be in the way of those who read and write, but for kills.
    ``may_lose``: whether records are deleted on purpose.
    """

    def __init__(self, machine: Machine, history: History, plan: dict[str, Any]) -> None:
        self.machine = machine
        self.history = history
        self.other = History(clock=history.clock, losses_of_power=history.losses_of_power)
        self.other.parts_may_be_away = history.parts_may_be_away
        self.other.parts_may_be_older = history.parts_may_be_older
        self.group = GroupHistory(losses_of_power=history.losses_of_power)
        self.partitions: int = plan["partitions"]
        self.paths = [f"{ROOT}/d{number}" for number in range(plan["directories"])]
        self.path = ",".join(self.paths)
        self.nodes = NodeHistory()
        self.disks: Disks | None = None
        """What several nodes hold; None where there is one."""
        self.least_in_sync = 0
        self.may_find = False
        """Whether who recovers may find something to be told of, such as a node that is away."""
        self.options: dict[str, str] = dict(plan["options"])
        self.may_fail = False
        self.has_broker: bool = plan["has_broker"]
        """Whether a broker may have appended last: until a takeover some commands refuse then."""
        self.may_lose: bool = plan["may_lose"]
        self.has_other: bool = plan["has_other"]
        """Whether somebody looks after the other topic."""
        self.deletes_by_hand = False
        """Whether a person removes that topic's folders, and has not taken the set over yet."""
        self.repeats_keys: bool = plan["repeats_keys"]
        self.has_empty_batches: bool = plan["has_empty_batches"]
        machine.images.now = history.now
        machine.loses_power = lambda: history.losses_of_power.append(history.now())
        self.warned: dict[str, list[str]] = {}
        """What was said to each actor since it was last asked for."""

    # Records

    def rows(self, values: dict[str, int]) -> pa.RecordBatch:
        """Make rows of values, each for its partition; with few keys if somebody compacts."""
        keys = dict.fromkeys(values, "")
        if self.repeats_keys:
            keys = {value: f"key {zlib.crc32(value.encode()) % _KEYS}" for value in values}
            self.history.keys |= keys
        return pa.RecordBatch.from_pydict(
            {
                "key": pa.array([(keys[value] or value).encode() for value in values], pa.binary()),
                "value": pa.array([value.encode() for value in values], pa.binary()),
                "partition": pa.array([each % EACH for each in values.values()], pa.int32()),
            }
        )

    def write(self, name: str, chance: random.Random) -> Write:
        """Begin a batch of a few records, each of its own."""
        count = chance.choice((1, 2, 3, 8))
        values = {f"{name}.{n}": chance.randrange(self.partitions) for n in range(count)}
        return self.begin(values, chance)

    def begin(
        self, values: dict[str, int], chance: random.Random, history: History | None = None
    ) -> Write:
        """Begin a batch of these records."""
        write = Write(values, self.history.now())
        (history or self.history).writes.append(write)
        self.choose_flush(write, chance)
        return write

    def choose_flush(self, write: Write, chance: random.Random) -> None:
        """Let a try be durable, or be left unsynced."""
        flush = self.options["flush"]
        write.flush = chance.choice(("commit", "os")) if flush == "mixed" else flush
        write.is_left_to_system |= write.flush == "os"

    def options_of(self, write: Write) -> dict[str, str]:
        """Give the options of a try."""
        partitions = {"numPartitions": str(self.partitions)}
        return {**self.options, **partitions, "flush": write.flush}

    def read(
        self,
        reader: str,
        began: int,
        tables: Sequence[Any],
        life: str | None = None,
        *,
        topic: str = TOPIC,
    ) -> Read:
        """Note what a reader was given, in columns of :data:`COLUMNS`."""
        rows: list[tuple[int, int, str]] = []
        for table in tables:
            columns = (table.column(name).to_pylist() for name in COLUMNS)
            rows += [(p, offset, value.decode()) for p, offset, value in zip(*columns, strict=True)]
        if topic == OTHER:
            rows = self._by_life(reader, rows)
        copied = self.machine.images.copied(began)
        read = Read(reader, began, self.history.now(), sorted(rows), life, copied=copied)
        (self.history if topic == TOPIC else self.other).reads.append(read)
        return read

    def _by_life(self, reader: str, rows: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
        lives: dict[int, int] = {}
        found = []
        for partition, offset, value in rows:
            life = int(value.partition(".")[0])
            if lives.setdefault(partition, life) != life:
                self.other.errors.append(f"{reader} is given records of two topics of one name")
            found.append((EACH * life + partition, offset, value))
        return found

    def any_topic(self, chance: random.Random) -> str:
        """Choose a topic to read."""
        return OTHER if self.has_other and chance.random() < 0.7 else TOPIC

    def accept_lost_tail(self) -> RecoveryReport:
        """Let a person continue without what a loss of power took, and note what he is told."""
        noted = Acceptance(self.history.now())
        self.history.accepted.append(noted)
        self.other.accepted.append(Acceptance(noted.at))
        done = recover(self.paths, accept_lost_tail=True)
        lost = [each for each in done.lost if each.where.topic_partition.topic == TOPIC]
        noted.named = {e.where.topic_partition.partition: (e.start, e.end) for e in lost}
        return done

    # Nodes

    def has_nodes(self, layout: Layout, disks: Disks) -> None:
        """Let the set be one of several nodes."""
        self.paths = list(layout.paths(ROOT))
        self.path = layout.text(ROOT)
        self.nodes.directories = layout.directories
        self.nodes.placed = disks.placed
        self.disks = disks
        asked = int(self.options.get("min.insync.replicas", "1"))
        self.least_in_sync = 1 if self.options.get("kafka.acks") == "1" else asked

    def show_replicas(self) -> None:
        """Note what the replicas in sync hold at this moment."""
        if self.disks is not None:
            self.nodes.shown += self.disks.shown()
            if not self.history.losses_of_power:  # which may take what nobody has synced
                self.nodes.not_whole += self.disks.doubled

    def _note_acknowledged(self, write: Write) -> None:
        """Note on how many nodes the records of a write lie that was told ok."""
        if self.disks is not None and write.values:
            since = write.began
            older = {n for n, times in self.nodes.older.items() if times[-1] > since}
            by_value = self.disks.holding(write.values)
            holding = min(len(nodes | older) for nodes in by_value.values())
            self.nodes.acknowledged.append(Acknowledged(write, holding, self.least_in_sync))
            self.show_replicas()

    # What comes of it

    @contextlib.contextmanager
    def operation(self) -> Iterator[None]:
        """Count what an actor does as one operation, and see if others act meanwhile."""
        scheduler = self.machine.scheduler
        before = scheduler.process_switches
        try:
            yield
        finally:
            self.history.operations += 1
            self.history.amid += scheduler.process_switches > before

    @contextlib.contextmanager
    def told(self, write: Write, actor: str) -> Iterator[None]:
        """Note what a try to write comes to; nothing of ours is raised, nor a kill."""
        outcome = "unknown"
        try:
            with self.operation():
                yield
            outcome = "ok"
            write.is_durable = write.flush == "commit"
        except KilledError:
            self.reborn(actor)
        except InterruptError as error:
            notes = " ".join(getattr(error, "__notes__", []))
            outcome = "fail" if "stopped before it was done" in notes else outcome
            outcome = "ok" if "it is done" in notes else outcome
            write.is_durable = outcome == "ok" and write.flush == "commit"
            write.tries.append(f"interrupted: {notes}")
        except DurabilityError as error:
            outcome = "ok"
            write.is_doubtful = True
            write.tries.append(str(error))
        except KafkaLogError as error:
            is_open = isinstance(error, UnknownOutcomeError)
            outcome = "unknown" if is_open or "published is not known" in str(error) else "fail"
            self.failed(actor, write, error)
        except OSError as error:
            self.failed(actor, write, error)
        write.tries.append(outcome)
        write.ended = self.history.now()
        if write.outcome != "ok" and outcome == "ok":
            self._note_acknowledged(write)
        if write.outcome != "ok" and (outcome == "ok" or write.outcome == "fail"):
            write.outcome = outcome
            write.acknowledged = self.history.now()

    @contextlib.contextmanager
    def at_work(self, actor: str, cut: Cut | None = None) -> Iterator[None]:
        """Let an actor do what writes no record; nothing of ours is raised, nor a kill."""
        try:
            with self.operation():
                yield
            if cut is not None:
                cut.ended = self.history.now()
        except KilledError:
            self.reborn(actor)
        except InterruptError:
            pass
        except (KafkaLogError, OSError) as error:
            # replicas.md, "What happens to a node": batches continue; a command may be run again.
            if not (self.has_broker or self.may_find):
                self.failed(actor, None, error)

    @contextlib.contextmanager
    def told_late(self, actor: str) -> Iterator[None]:
        """Let a driver that was replaced commit: it may be refused, and changes no outcome."""
        try:
            with self.operation():
                yield
        except KilledError:
            self.reborn(actor)
        except (InterruptError, KafkaLogError, OSError):
            pass

    @property
    def may_need_acceptance(self) -> bool:
        """Whether a person may have to accept what a loss of power took."""
        return bool(self.history.losses_of_power) and self.options["flush"] != "commit"

    def failed(self, actor: str, write: Write | None, error: Exception) -> None:
        """Note a failure, which is a fault if nothing was in the way."""
        text = f"{type(error).__name__}: {error}"
        if write is not None:
            write.tries.append(text[:300])
        # operations.md: a topic that was deleted by hand after a commit to it was cut off.
        is_refused = self.deletes_by_hand and "gives that commit up" in text
        # replicas.md, rule 3: a reader that cannot know fails until the next write.
        is_refused |= self.disks is not None and "holds it prepared" in text
        if not self.may_fail and not is_refused:
            self.history.errors.append(f"{actor} fails, and nothing was in its way: {text[:600]}")

    def reborn(self, actor: str) -> None:
        """Go on as a new process."""
        scheduler = self.machine.scheduler
        scheduler.become(scheduler.process(actor))

    def rest(self, chance: random.Random) -> None:
        """Do nothing for a while."""
        self.machine.scheduler.sleep(chance.random() * 0.05)

    def think(self, chance: random.Random) -> None:
        """Take some time for what was read; some programs stand still meanwhile."""
        drawn = chance.random()
        if drawn < 0.15:
            self.rest(chance)
        elif drawn < 0.25 and self.may_fail:
            self.machine.scheduler.pause(chance.choice((1.0, 4.0, 30.0)))
            self.rest(chance)

    def rest_here(self, actor: str, chance: random.Random) -> None:
        """Do nothing for a while, and go on as a new process if that is not survived."""
        with contextlib.suppress(InterruptError):
            try:
                self.rest(chance)
            except KilledError:
                self.reborn(actor)

    # What was said

    def listening(self) -> AbstractContextManager[None]:
        """Keep warnings of kafkalog, by actor, in place of writing them down."""
        return warnings_to(_Listener(self))

    def said_to(self, actor: str) -> list[str]:
        """Give what was said to an actor, once."""
        return self.warned.pop(actor, [])


class _Listener(logging.Handler):
    def __init__(self, scene: Scene) -> None:
        super().__init__(logging.WARNING)
        self._scene = scene

    def createLock(self) -> None:  # noqa: N802 - the name of the standard library
        """Have none: a strand may lose its turn with it."""
        self.lock = None

    def emit(self, record: logging.LogRecord) -> None:
        actor = self._scene.machine.scheduler.running.process.actor
        self._scene.warned.setdefault(actor, []).append(record.getMessage())
