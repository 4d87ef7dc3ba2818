"""``make simulate``: run histories for some seconds; tell those that are at fault.

``python -m tests.simulation --seconds 60 --seed 2026-11-22`` runs the histories ``2026-11-22/0``,
``2026-11-22/1`` and so on; ``--history 2026-11-22/17`` runs that one again, makes it smaller and
tells what happens in it. Each fiftieth one is over a set of several nodes: ``2026-11-22/nodes/0``
and so on; with ``--nodes`` all of them are. The hash of texts has to be the same: set
``PYTHONHASHSEED=0``.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from datetime import UTC, datetime

from tests.simulation.node_plans import NODES
from tests.simulation.simulation import Result, draw, run, shrink

_EACH_WITH_NODES = 50
"""One of so many histories is over several nodes."""


def main() -> int:
    """Run histories; returns 1 if one is at fault."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", default=f"{datetime.now(UTC):%Y-%m-%d}")
    parser.add_argument("--history", help="run this one only, and make it smaller")
    parser.add_argument("--nodes", action="store_true", help="only sets of several nodes")
    given = parser.parse_args()
    if given.history:
        return _explain(run(draw(given.history)))
    _say(f"seed {given.seed}")
    return _search(given.seed, given.seconds, only_nodes=given.nodes)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _name(seed: str, number: int, *, only_nodes: bool) -> str:
    """Name a history by its number among all of this seed."""
    if only_nodes:
        return f"{seed}{NODES}{number}"
    before, is_other = divmod(number + 1, _EACH_WITH_NODES)
    return f"{seed}/{number - before}" if is_other else f"{seed}{NODES}{before - 1}"


def _search(seed: str, seconds: float, *, only_nodes: bool) -> int:
    began, cpu = time.monotonic(), time.process_time()
    operations = amid = steps = switches = histories = 0
    faults: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    failed: list[Result] = []
    while time.monotonic() - began < seconds and len(failed) < 3:
        result = run(draw(_name(seed, histories, only_nodes=only_nodes)))
        histories += 1
        operations += result.operations
        amid += result.amid
        steps += result.steps
        switches += result.switches
        faults += result.faults
        outcomes += result.outcomes
        if result.found:
            failed.append(result)
            _say(f"history {result.plan.seed}: {result.found[0]}")
    used = time.process_time() - cpu
    rate, share = operations / used * 60, amid / max(operations, 1)
    _say(
        f"{histories} histories, {operations} operations ({rate:.0f} a minute of CPU), {share:.0%} "
        f"of them amid another's, {steps} steps, {switches} switches, faults {dict(faults)}, "
        f"writes {dict(outcomes)}"
    )
    for result in failed[:1]:
        _explain(result)
    return 1 if failed else 0


def _explain(result: Result) -> int:
    if not result.found:
        _say(f"history {result.plan.seed}: nothing is wrong with it")
        return 0
    small = shrink(result)
    plan = small.plan
    _say(f"history {plan.seed}, made smaller: {dict(plan.actors)}")
    nodes = "" if plan.nodes is None else f"{plan.nodes}, "
    _say(f"  {nodes}{plan.directories} directories, {plan.partitions} partitions")
    _say(f"  {dict(plan.options)}, {', '.join(sorted(plan.extras))}")
    for decision in small.decisions:
        _say(f"  {decision.actor} at step {decision.step}: {decision.what} {decision.value}")
    for what in small.found:
        _say(f"  FOUND {what}")
    _say(f"  run it again: make simulate HISTORY={plan.seed}")
    return 1


sys.exit(main())
