"""One history: a plan drawn from a seed, run, audited; and made smaller if it is at fault."""

from __future__ import annotations

import gc
import random
import zlib
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.simulation.actors import ACTORS, DELETING
from tests.simulation.auditor import Audit, Cut, History
from tests.simulation.group_audit import audit_group
from tests.simulation.machine import BROKERS, Machine, installed
from tests.simulation.members import copy_all
from tests.simulation.moves import finish_moves
from tests.simulation.node_actors import settle
from tests.simulation.node_audit import audit_nodes
from tests.simulation.node_facts import Disks
from tests.simulation.node_faults import NodeFaults
from tests.simulation.node_plans import ALL_REPLICAS_FAULTS, NODE_FAULTS, NODES, draw_nodes
from tests.simulation.plans import Plan
from tests.simulation.readers import look
from tests.simulation.scene import Scene
from tests.simulation.scheduler import Rates, Scheduler
from tests.simulation.writers import write_first

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tests.simulation.scheduler import Decision

__all__ = ["Plan", "Result", "draw", "run", "shrink"]

_START_NS = 1_700_000_000_000_000_000
_WRITERS = ("appender", "versioned", "query", "batch", "pair")
_OTHERS = {
    "reader": 6,
    "follower": 6,
    "operator": 4,
    "deleter": 2,
    "janitor": 2,
    "broker": 3,
    "cleaner": 2,
    "giver": 2,
    "archivist": 2,
    "mover": 2,
}
_LEAST = 24
"""How many operations are meant at least: who is refused again and again ends sooner."""
_OWNED = 0.15
"""How many histories have a topic that is deleted and created again."""
_GROUPS = 0.15
"""In which part of all histories members of a group copy the topic."""
_COPYING = frozenset({"copier", "joined", "member"})
_SHARING = ("member", "joined")
_AROUND_GROUPS = ("watcher", "watcher", "setter", "giver", "reader", "operator")
EXTRAS = {
    "empty batches": "queries have micro-batches without rows",
    "few keys": "keys come again, for a cleaner",
    "late hosts": "who has lost his locks to a server changes names all the same",
    "one bad node": "what happens to nodes happens to one, so that all others are as they should",
    "named losses": "what flush=os left is lost only if a person is told which offsets are",
    "posix locks": "locks are a process's, and fall when any of its threads closes the file",
    "slow listings": "others act while a folder is listed: what they rename is seen or not",
}
_HARMLESS = frozenset({"kill", "torn", "interrupt", "power"})
"""Faults that are in nobody's way but of who is struck."""


@dataclass
class Result:
    """What a history came to."""

    plan: Plan
    found: list[str]
    decisions: tuple[Decision, ...]
    operations: int = 0
    steps: int = 0
    switches: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    amid: int = 0
    """How many operations came amid another's."""
    outcomes: Counter[str] = field(default_factory=Counter)
    digest: int = 0
    """Of all that was told: the same plan gives the same."""


def draw(seed: str, kinds: tuple[str, ...] = ()) -> Plan:
    """Draw a plan."""
    return draw_nodes(seed) if NODES in seed else _draw_one(seed, kinds or _group(seed))


def _draw_one(seed: str, kinds: tuple[str, ...]) -> Plan:
    chance = random.Random(seed)
    names, least = (list(kinds), 3) if kinds else (_kinds(chance), 5)
    numbers = [chance.randrange(least, least + 7) for _ in names]
    numbers[0] += 0 if kinds else max(_LEAST - _expected(names, numbers), 0)
    actors = {f"{k}{n}": (k, numbers[n]) for n, k in enumerate(names)}
    options = {"flush": chance.choice(("commit", "commit", "os", "mixed")), "max.block.ms": "60000"}
    if chance.random() < 0.5:
        options["segment.bytes"] = str(chance.choice((200, 600, 2000)))
    if chance.random() < 0.3:
        options["index.interval.bytes"] = "0"
    if chance.random() < 0.15:
        options["retention.bytes"] = str(chance.choice((400, 1500)))
        options["retention.check.interval.ms"] = str(chance.choice((1, 1000)))
    every = chance.choice((60, 250, 1000))
    faults = {
        what: every * chance.choice((1, 1, 4))
        for what in ("kill", "torn", "interrupt", "pause", "jump", "error", "short")
        if chance.random() < 0.45
    }
    for what in ("vanish", "empty", "old"):
        if chance.random() < 0.25:
            faults[what] = every * 3
    if chance.random() < 0.25 and not BROKERS.intersection(names):
        faults["power"] = every * 10
    elif chance.random() < 0.2 and not BROKERS.intersection(names):  # which does not know of it
        faults["lost"] = every * 4
    if "cleaner" in names:
        options |= {"cleanup.policy": "compact,delete", "segment.bytes": "200"}
    if BROKERS.intersection(names):
        options["allowBrokerDirectory"] = "true"
    options, faults = _of_group(names, options, faults)
    return Plan(
        seed,
        actors,
        directories=chance.choice((1, 1, 2, 3)),
        partitions=chance.choice((1, 2, 3)),
        options=options,
        rates=Rates(chance.choice((3, 10, 40)), faults),
        extras=_extras(chance, names, faults),
    )


def _expected(names: Sequence[str], numbers: Sequence[int]) -> int:
    """Return how many operations there will be at least: some actors do a third of theirs."""
    whole = {*_WRITERS, "reader", "follower"}
    return sum(n if name in whole else n // 3 for name, n in zip(names, numbers, strict=True))


def _kinds(chance: random.Random) -> list[str]:
    """Draw who acts: at least three, and one owner of the other topic at most."""
    names = chance.choices(_WRITERS, k=chance.choice((1, 2, 2, 3)))
    others = chance.choice((2, 2, 2, 3) if len(names) == 1 else (1, 2, 2, 3))
    names += chance.choices([*_OTHERS], [*_OTHERS.values()], k=others)
    return [*names, "owner"] if chance.random() < _OWNED else names


def _group(seed: str) -> tuple[str, ...]:
    """Draw who acts where a group copies the topic; of most histories, nobody of such."""
    chance = random.Random(f"{seed}/group")
    if chance.random() >= _GROUPS:
        return ()
    writers = chance.choices(_WRITERS, k=chance.choice((1, 1, 2)))
    others = chance.choices(_AROUND_GROUPS, k=chance.choice((1, 2)))
    sharing = chance.choices(_SHARING, k=chance.choice((1, 2, 2, 3)))
    return (*writers, *sharing, *others)


def _of_group(
    names: list[str], options: dict[str, str], faults: dict[str, int]
) -> tuple[dict[str, str], dict[str, int]]:
    """Leave out what takes rows of a topic away that is copied: nobody could judge the copy."""
    if "mover" in names:  # a replica that moves to or from what is not mounted is another matter
        faults = {what: n for what, n in faults.items() if what not in {"vanish", "empty", "old"}}
    if not _COPYING.intersection(names):
        return options, faults
    kept = {name: text for name, text in options.items() if not name.startswith("retention.")}
    left_to_system = options["flush"] != "commit"
    gone = {"empty", "old", *(("power",) if left_to_system else ())}
    rarer = 5 if "joined" in names else 1  # a query that joins needs more calls than others
    return kept, {what: every * rarer for what, every in faults.items() if what not in gone}


def _extras(chance: random.Random, names: list[str], faults: Mapping[str, int]) -> frozenset[str]:
    may_be = {
        "empty batches": "query" in names,
        "few keys": "cleaner" in names,
        "late hosts": "lost" in faults,
        "named losses": "power" in faults,
        "posix locks": "lost" not in faults,
        "slow listings": True,
    }
    return frozenset(name for name, may in may_be.items() if may and chance.random() < 0.4)


def run(plan: Plan, guard: Callable[[], Any] | None = None) -> Result:
    """Run a plan, and audit what happened."""
    happening = set(plan.rates.faults)
    if plan.script is not None:
        happening = {decision.what for decision in plan.script} - {"switch"}
    script = None if plan.script is None else list(plan.script)
    scheduler = Scheduler(plan.seed, plan.rates, script, start_ns=_START_NS)
    machine, history = _machine(plan, scheduler, happening), History()
    history.losses_are_named = "named losses" in plan.extras
    if plan.nodes is None:  # else others have what is there
        history.parts_may_be_away = bool(happening & {"vanish", "empty", "old"})
        history.parts_may_be_older = "old" in happening
    else:
        history.parts_may_be_away = bool(happening & ALL_REPLICAS_FAULTS)
    if "retention.bytes" in plan.options:
        history.cuts.append(Cut("retention", 0, keeps_bytes=int(plan.options["retention.bytes"])))
    scene = Scene(
        machine,
        history,
        {
            "partitions": plan.partitions,
            "directories": plan.directories,
            "options": plan.options,
            "has_other": any(kind == "owner" for kind, _ in plan.actors.values()),
            "repeats_keys": "few keys" in plan.extras,
            "has_empty_batches": "empty batches" in plan.extras,
            "has_broker": any(kind in BROKERS for kind, _ in plan.actors.values()),
            "may_lose": any(kind in DELETING for kind, _ in plan.actors.values())
            or "retention.bytes" in plan.options
            or "power" in happening,
        },
    )
    if plan.nodes is not None:
        _set_up_nodes(scene, plan, happening)
    gc.collect()
    gc.disable()
    try:
        with installed(machine), scene.listening():
            _begin(scene)
            scene.may_fail = _may_fail(plan, happening)
            actors = {
                name: _actor(scene, plan, name, kind, operations)
                for name, (kind, operations) in plan.actors.items()
            }
            scheduler.run(actors)
            machine.calm()
            if history.moves:
                folders = [Path(path) for path in scene.paths]
                scheduler.run({"person": lambda: finish_moves(folders)}, calm=True)
            # Whoever was told of records that an older copy has taken is left with them.
            scene.may_fail = machine.images.have_parted or machine.wrote_late
            if plan.nodes is not None:
                scheduler.run({"settle": lambda: settle(scene)}, calm=True)
                scheduler.run({"after": lambda: _append_after(scene)}, calm=True)
            scheduler.run({"end": lambda: _end(scene)}, calm=True)
            scene.show_replicas()
            if any(kind in _COPYING for kind, _ in plan.actors.values()):
                scheduler.run({"group": lambda: copy_all(scene)}, calm=True)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
        history.errors.append(f"{type(error).__name__}: {error}")
    finally:
        gc.enable()
    both = (history, scene.other)
    told = repr([(each.writes, each.reads, each.errors) for each in both]).encode()
    told += repr(scene.group.looks).encode()
    return Result(
        plan,
        [found for each in both for found in Audit(each).found]
        + audit_group(scene.group)
        + audit_nodes(scene.nodes, history),
        tuple(scheduler.taken),
        operations=history.operations,
        amid=history.amid,
        steps=scheduler.total_steps,
        switches=scheduler.switches,
        faults=Counter(machine.faults),
        outcomes=Counter(write.outcome for each in both for write in each.writes),
        digest=zlib.crc32(told),
    )


def _may_fail(plan: Plan, happening: set[str]) -> bool:
    """Whether something that is to happen may be in the way of those whom it does not strike.

    replicas.md: a node on which a call fails leaves the in-sync sets, and the batch continues.
    """
    harmless = _HARMLESS if plan.options["flush"] == "commit" else _HARMLESS - {"power"}
    if "one bad node" in plan.extras:
        harmless |= NODE_FAULTS - {"lost", "old"}  # what is swapped amid a commit fails that one
    return bool(happening - harmless) or "posix locks" in plan.extras


def _set_up_nodes(scene: Scene, plan: Plan, happening: set[str]) -> None:
    assert plan.nodes is not None
    machine, history = scene.machine, scene.history
    is_compacted = "compact" in plan.options.get("cleanup.policy", "")
    disks = Disks(machine, plan.nodes, history.now, is_compacted=is_compacted)
    scene.has_nodes(plan.nodes, disks)
    scene.may_find = bool(happening & NODE_FAULTS)
    only = len(plan.seed) % len(plan.nodes.directories) if "one bad node" in plan.extras else None

    def older(node: int) -> None:
        scene.nodes.older.setdefault(node, []).append(history.now())

    NodeFaults(machine, plan.nodes, disks, older, only)


def _machine(plan: Plan, scheduler: Scheduler, happening: set[str]) -> Machine:
    return Machine(
        scheduler,
        knows_power=bool(happening & {"power", "node power"}),
        is_shared="lost" in happening,
        has_posix_locks="posix locks" in plan.extras,
        lets_late_hosts_act="late hosts" in plan.extras,
        listings_take_time="slow listings" in plan.extras,
    )


def _begin(scene: Scene) -> None:
    scene.machine.scheduler.run({"begin": lambda: _make(scene)}, calm=True)


def _make(scene: Scene) -> None:
    for path in scene.paths:
        scene.machine.mkdir(path)
    if scene.machine.unsynced is not None:
        scene.machine.unsynced.settle()
    write_first(scene)


def _actor(scene: Scene, plan: Plan, name: str, kind: str, operations: int) -> Callable[[], None]:
    chance = random.Random(f"{plan.seed}/{name}/plan")
    return lambda: ACTORS[kind](scene, name, operations, chance)


def _append_after(scene: Scene) -> None:
    """Append what may fail (replicas.md, "Limits"): a first batch may leave replicas out."""
    before, scene.may_fail = scene.may_fail, True
    ACTORS["appender"](scene, "after", 4 * scene.partitions, random.Random(1))
    scene.may_fail = before


def _end(scene: Scene) -> None:
    """When all is quiet again, who writes can write, and who reads can read."""
    if scene.may_need_acceptance:
        with scene.at_work("end"):
            scene.accept_lost_tail()
    ACTORS["appender"](scene, "end", 1, random.Random(0))
    look(scene, "end")


def shrink(result: Result, tries: int = 300) -> Result:
    """Make a plan smaller, as long as something is wrong with what comes of it."""
    best = run(replace(result.plan, script=result.decisions))
    if not best.found:
        return result
    for name in list(best.plan.actors):
        fewer = {k: v for k, v in best.plan.actors.items() if k != name}
        tried = run(replace(best.plan, actors=fewer))
        tries -= 1
        best = tried if tried.found else best
    for name, (kind, operations) in list(best.plan.actors.items()):
        for less in range(1, operations):
            tried = run(replace(best.plan, actors={**best.plan.actors, name: (kind, less)}))
            tries -= 1
            if tried.found:
                best = tried
                break
    size = max(len(best.decisions) // 2, 1)
    while tries > 0:
        at = 0
        while at < len(best.decisions) and tries > 0:
            script = (*best.decisions[:at], *best.decisions[at + size :])
            tried = run(replace(best.plan, script=script))
            tries -= 1
            if tried.found:
                best = tried
            else:
                at += size
        if size == 1:
            break
        size //= 2
    return best
