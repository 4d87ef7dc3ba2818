"""Histories of many actors, of this day's seed; and that the auditor finds what is wrong."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from tests.simulation import archivists, brokers, topic_owners
from tests.simulation.actors import ACTORS
from tests.simulation.auditor import Acceptance, Audit, History, Moved, Read, Write
from tests.simulation.images import Images
from tests.simulation.machine import Machine, installed
from tests.simulation.moves import Move
from tests.simulation.mutations import MUTATIONS, find, mutated
from tests.simulation.patches import Instead, applied
from tests.simulation.power import Node
from tests.simulation.scene import OTHER, TOPIC, Scene
from tests.simulation.scheduler import Rates, Scheduler
from tests.simulation.simulation import _COPYING, Plan, _expected, draw, run, shrink

from kafkalog.files.system import system
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.broker.handover import hand_over
from kafkalog.streaming.admin.topics import delete
from kafkalog.streaming.store.nodes import _suffix

SECONDS = os.environ.get("KAFKALOG_SIMULATION_SECONDS", "20")
ROOT = Path(__file__).parents[2]


@pytest.mark.crash
def test_no_history_of_today_loses_doubles_or_changes_a_record() -> None:
    given = [sys.executable, "-m", "tests.simulation", "--seconds", SECONDS]
    path = os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(ROOT)])
    done = subprocess.run(
        given,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    sys.stdout.write(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " histories, " in done.stdout


def test_the_same_seed_and_the_same_decisions_give_the_same_history() -> None:
    first = run(draw("again/1"))
    assert run(draw("again/1")).digest == first.digest
    again = run(replace(first.plan, script=first.decisions))
    assert (again.digest, again.decisions) == (first.digest, first.decisions)


def test_a_thread_that_an_earlier_test_left_waits_until_the_simulation_has_ended() -> None:
    begun, given = threading.Event(), []

    def left() -> None:
        begun.set()
        given.append(system.monotonic())

    scheduler = Scheduler("left", Rates(0), [], start_ns=0)
    with installed(Machine(scheduler)):
        thread = threading.Thread(target=left)
        thread.start()
        begun.wait()
        scheduler.run({"actor": lambda: scheduler.sleep(1)})
        thread.join(0.05)
        assert not given
    thread.join()
    assert given[0] != scheduler.now / 1e9


def test_a_history_has_at_least_twenty_operations() -> None:
    drawn = [replace(draw(f"long/{number}"), script=()) for number in range(300)]
    drawn = [each for each in drawn if _COPYING.isdisjoint(k for k, _ in each.actors.values())]
    drawn.sort(key=lambda plan: _expected(*zip(*plan.actors.values(), strict=True)))
    assert all(run(plan).operations >= 20 for plan in drawn[:3])


def test_at_least_three_act_and_all_kinds_do_in_some_history() -> None:
    seeds = [f"all/{n}" for n in range(500)] + [f"all/nodes/{n}" for n in range(100)]
    drawn = [[kind for kind, _ in draw(seed).actors.values()] for seed in seeds]
    of_a_model = {"copier"}  # of groups: it draws nothing
    assert {kind for kinds in drawn for kind in kinds} == ACTORS.keys() - of_a_model
    assert all(len(kinds) >= 3 and kinds.count("owner") <= 1 for kinds in drawn)


# Those that are found within a second or two; the others are for `make mutations`.
QUICK = ("no intent", "no locks", "no recovery", "publish before append")


@pytest.mark.crash
@pytest.mark.parametrize("name", QUICK)
def test_a_guard_that_is_taken_out_is_missed(name: str) -> None:
    result = find(name, 60).result
    assert result is not None


@pytest.mark.parametrize("name", MUTATIONS)
def test_every_guard_that_is_to_be_taken_out_is_there(name: str) -> None:
    with mutated(name):
        pass


def test_a_history_at_fault_is_made_smaller() -> None:
    result = find("publish before append", 60).result
    assert result is not None
    with mutated("publish before append"):
        small = shrink(result, tries=20)
    assert small.found
    assert len(small.plan.actors) <= len(result.plan.actors)


def test_a_patch_that_does_not_apply_is_a_failure() -> None:
    for place, code, error in (
        ("store.log_set.LogSet.check_current", "self.no_such_call()", LookupError),
        ("store.log_set.LogSet.no_such_name", "pass", AttributeError),
        ("store.log_set.no_such_name", "pass", AttributeError),
    ):
        with pytest.raises(error), applied({place: Instead(code)}):
            pass


def test_a_patch_lasts_as_long_as_it_is_applied() -> None:
    with applied({"store.nodes._suffix": Instead("return ", "return 'patched' and ")}):
        changed = _suffix.__code__
    assert _suffix.__code__ is not changed


def node(*, is_folder: bool) -> Node:
    return Node(1, 0, is_folder=is_folder)


def test_the_only_directory_of_a_set_stays_mounted_whatever_lies_beside_it() -> None:
    root = node(is_folder=True)
    root.names = {name: node(is_folder=True) for name in ("d0", "archivist3.0", "state")}
    images = Images(root, node)
    assert not images.take_away("d0", "empty", 1)
    root.names["d1"] = node(is_folder=True)
    assert images.take_away("d0", "empty", 1)


def _hasty(scene: Scene, name: str, _operations: int, _chance: random.Random) -> None:
    """A broker that ends before it writes down what is committed, and who copies the set then."""
    with scene.at_work(name):
        hand_over(scene.paths)
    scene.begin({"broker.0": 0}, random.Random(0)).outcome = "unknown"
    with brokers.locked(scene):
        brokers._Broker(scene).append(TopicPartition(TOPIC, 0), "broker.0")
    copy = archivists._Copy(scene, name, 0)
    copy.make()
    copy.write()
    assert copy.paths


def test_a_copy_that_is_written_commits_what_a_broker_had_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(cast("dict[str, object]", ACTORS), "broker", _hasty)
    options = {"flush": "commit", "max.block.ms": "60000", "allowBrokerDirectory": "true"}
    actors = {"hasty": ("broker", 1)}
    plan = Plan("hasty", actors, 1, 1, options, Rates(10, {}), script=())
    assert run(plan).found == []


def _founder(scene: Scene, _name: str, _operations: int, chance: random.Random) -> None:
    """A broker that makes a topic, which a takeover has to find."""
    life = topic_owners._Life(scene, "founder", 0, chance)
    life._create_by_broker()
    delete(scene.paths, OTHER)


def test_a_topic_that_a_broker_makes_is_known_after_the_takeover(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(cast("dict[str, object]", ACTORS), "owner", _founder)
    options = {"flush": "commit", "max.block.ms": "60000"}
    plan = Plan("founder", {"founder": ("owner", 1)}, 2, 1, options, Rates(10, {}), script=())
    assert run(plan).found == []


def test_a_broker_moves_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    swaps = []
    swap = Move.swap
    monkeypatch.setattr(Move, "swap", lambda move: swaps.append(swap(move)))
    options = {"flush": "commit", "max.block.ms": "60000", "allowBrokerDirectory": "true"}
    actors = {"mover": ("mover", 20), "appender": ("appender", 3), "reader": ("reader", 5)}
    assert run(Plan("moves", actors, 2, 2, options, Rates(10, {}), script=())).found == []
    assert swaps
    monkeypatch.setattr(Move, "catch_up", lambda _: None)
    assert run(Plan("moves", actors, 2, 2, options, Rates(10, {}), script=())).found


# What the auditor knows

A = {"a0": 0, "a1": 1}
SEEN = [(0, 0, "a0"), (1, 0, "a1")]
NAMED = {"a0": 1, "b0": 3}


@pytest.mark.parametrize(
    ("moves", "is_brokers", "is_sound"),
    [
        ([Moved(0, 5)], True, True),
        ([Moved(0, 5)], False, False),
        ([Moved(1, 5)], True, False),
        ([Moved(0, 5, 6)], True, False),
        ([Moved(0, 9)], True, False),
        ([], True, False),
    ],
)
def test_only_a_brokers_record_may_wait_and_until_its_replica_has_moved(
    moves: list[Moved], is_brokers: bool, is_sound: bool
) -> None:
    write = Write({"b0": 0}, 1, "ok", 2, is_durable=True, is_brokers=is_brokers)
    looks = [Read("reader", 3, 4, [(0, 0, "b0")]), Read("reader", 7, 8, [])]
    assert (not Audit(History([write], looks, moves=moves)).found) == is_sound


def audit(outcome: str, *rows: list[tuple[int, int, str]], life: str | None = None) -> str:
    history = History([Write(A, 1, outcome, 2)])
    for number, seen in enumerate(rows):
        history.reads.append(Read("reader", 3 + 2 * number, 4 + 2 * number, seen, life))
    return "\n".join(Audit(history).found)


@pytest.mark.parametrize("outcome", ["ok", "unknown"])
def test_what_was_written_may_be_seen(outcome: str) -> None:
    assert audit(outcome, SEEN, SEEN) == ""


def test_what_came_to_nothing_may_be_absent() -> None:
    assert audit("unknown", []) == audit("fail", []) == ""


@pytest.mark.parametrize(
    ("found", "outcome", "reads"),
    [
        ("lacks what was acknowledged", "ok", [[]]),
        ("is seen, and failed", "fail", [SEEN]),
        ("sees a part of a batch", "unknown", [SEEN[:1]]),
        ("was not written", "ok", [[*SEEN, (1, 1, "b")]]),
        ("a0 at (0, 1), and at (0, 0)", "ok", [[SEEN[0], (0, 1, "a0"), SEEN[1]]]),
        ("(0, 0) is a1, was a0", "ok", [SEEN, [(0, 0, "a1"), (1, 0, "a0")]]),
        ("offset 2 after 0 in 0", "ok", [[SEEN[0], (0, 2, "b"), SEEN[1]]]),
        ("begins at", "ok", [[(0, 1, "a0"), SEEN[1]]]),
        ("the end of 0 fell below 1", "unknown", [SEEN, []]),
    ],
)
def test_what_may_never_be_is_found(
    found: str, outcome: str, reads: list[list[tuple[int, int, str]]]
) -> None:
    assert found in audit(outcome, *reads)


def test_a_query_is_given_each_offset_once_and_none_is_left_out() -> None:
    assert audit("ok", SEEN, life="query") == ""
    assert "gives offset 0 of 0 where 1 is due" in audit("ok", SEEN, SEEN, life="query")


def test_a_query_that_was_told_of_an_older_copy_continues_where_that_ended() -> None:
    history = History([Write({"a0": 0, "a1": 0}, 1, "ok", 2)])
    history.parts_may_be_away = True
    whole = [(0, 0, "a0"), (0, 1, "a1")]
    history.reads = [
        Read("reader", 3, 4, whole, "query"),
        Read("reader", 5, 6, [], "query", skips=True, told_of_loss=True),
        Read("reader", 7, 8, whole[1:], "query", skips=True),
    ]
    again = "gives offset 1 of 0 where 2 is due"
    assert again in "".join(Audit(history).found)
    history.parts_may_be_older = True
    assert Audit(history).found == []
    history.reads[1].told_of_loss = False
    assert again in "".join(Audit(history).found)


def test_a_reader_leaves_out_only_offsets_that_it_is_told_by_name() -> None:
    history = History([Write({f"a{number}": 0}, 1, "ok", 2) for number in range(4)])
    rows = [(0, 0, "a0"), (0, 3, "a3")]
    for named, is_right in [({1, 2}, True), ({1}, False), ({0, 1, 2, 3}, True), (set(), False)]:
        passed_over = frozenset((0, offset) for offset in named)
        read = Read("reader", 3, 4, rows, told_of_loss=True, passed_over=passed_over)
        history.reads = [read]
        assert Audit(history).found == ([] if is_right else ["reader: offset 3 after 0 in 0"])


def test_a_log_begins_late_for_who_is_told_by_name_what_is_gone() -> None:
    history = History([Write({"a0": 0, "a1": 0}, 1, "ok", 2)])
    gone = frozenset({(0, 0)})
    history.reads = [
        Read("reader", 3, 4, [(0, 1, "a1")], None, told_of_loss=True, passed_over=gone)
    ]
    assert Audit(history).found == []
    history.reads[0].passed_over = frozenset()
    assert "0 begins at 1" in "".join(Audit(history).found)


def test_records_of_a_broker_on_an_older_copy_are_gone_when_the_directory_is_back() -> None:
    history = History([Write({"a0": 0}, 1, "ok", 2), Write({"b0": 0}, 3, "ok", 4)])
    history.reads = [
        Read("reader", 5, 6, [(0, 0, "b0")], told_of_loss=True),
        Read("reader", 7, 8, [(0, 0, "a0")], told_of_loss=True),
    ]
    history.parts_may_be_older = True
    assert Audit(history).found == ["reader: (0, 0) is a0, was b0"]
    history.writes[1].is_brokers = True
    assert Audit(history).found == []


def test_what_flush_os_left_is_gone_only_if_a_person_is_told_so() -> None:
    history = History([Write({"a0": 0}, 1, "ok", 2, "os", is_left_to_system=True)])
    seen = [(0, 0, "a0")]
    history.reads = [Read("reader", 3, 4, seen), Read("reader", 8, 9, [])]
    history.losses_of_power.append(5)
    history.accepted.append(Acceptance(6, {0: (0, 1)}))
    assert Audit(history).found == []
    history.accepted = [Acceptance(6, {0: (1, 2)})]
    assert "lacks what was acknowledged" in "".join(Audit(history).found)


@pytest.mark.parametrize("life", ["query", None])
def test_what_a_loss_of_power_took_may_be_seen_in_a_copy_that_was_made_before(
    life: str | None,
) -> None:
    history = History([Write({name: 0}, at, "ok", at + 1, "os") for name, at in NAMED.items()])
    history.writes += [Write({"c0": 0}, 12, "ok", 13)]
    for each in history.writes[:2]:
        each.is_left_to_system = True
    seen = [(0, 0, "a0"), (0, 1, "b0")]
    history.losses_of_power.append(5)
    history.accepted.append(Acceptance(9, {0: (0, 2)}))
    history.reads = [Read("reader", 7, 8, seen, life), Read("end", 15, 16, [(0, 0, "c0")])]
    found = "".join(Audit(history).found)
    assert "(0, 0) is c0, was a0" in found
    assert ("the end of 0 fell below 2" in found) == (life is None)
    history.reads[0].copied = 4
    assert Audit(history).found == []
    history.reads[0].copied = 6
    assert "(0, 0) is c0, was a0" in "".join(Audit(history).found)


def test_a_query_may_be_past_a_record_that_is_on_a_copy_where_a_brokers_was() -> None:
    history = History(
        [
            Write({"b0": 0}, 3, "ok", 4, is_brokers=True),
            Write({"a0": 0, "a1": 0, "a2": 1}, 6, "ok", 7),
        ]
    )
    history.reads = [
        Read("reader", 4, 5, [(0, 0, "b0")], "query"),
        Read("reader", 8, 9, [(0, 1, "a1"), (1, 0, "a2")], "query", copied=2),
    ]
    assert Audit(history).found == []
    history.reads[1].copied = 5
    assert "sees a part of a batch: without ['a0']" in "".join(Audit(history).found)


def test_a_copy_is_in_view_until_the_directory_is_back() -> None:
    root = node(is_folder=True)
    root.names = {name: node(is_folder=True) for name in ("d0", "d1")}
    images = Images(root, node)
    assert not images.take_away("d0", "old", 10)
    assert images.copied(0) is None
    assert images.take_away("d0", "old", 10)
    assert images.copied(0) == 1
    images.bring_back(10)
    assert (images.copied(1), images.copied(2)) == (1, None)


def test_of_a_key_the_last_record_stays_if_others_are_compacted() -> None:
    history = History([Write({"a0": 0, "a1": 0, "a2": 0}, 1, "ok", 2)])
    history.keys = {"a0": "k", "a1": "l", "a2": "k"}
    whole = [(0, 0, "a0"), (0, 1, "a1"), (0, 2, "a2")]
    history.reads = [Read("reader", 3, 4, whole), Read("reader", 5, 6, whole[1:])]
    assert Audit(history).found == []
    history.reads.append(Read("reader", 7, 8, whole[2:]))
    assert "lacks what was acknowledged: ['a1']" in "".join(Audit(history).found)


def test_the_page_names_every_guard_that_was_taken_out() -> None:
    page = (ROOT / "docs" / "evidence.md").read_text()
    assert [name for name in MUTATIONS if f"| {name} |" not in page] == []
