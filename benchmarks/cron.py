"""A job from cron: a fresh process streams what is there with ``availableNow``, and ends.

Each run is a process of its own, timed from before its session to the query's end. So what other
benchmarks leave out is most of it: a JVM that has compiled nothing yet, and the Python processes
that Spark starts. CPU is that of the job's own processes, without the broker's.

    python -m benchmarks.cron [--python PYTHON …] [--rows 4000000] [--rounds 5] [--docs docs]

``--python`` runs the jobs in other environments, such as those of ``make matrix``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks import cron_job, report
from benchmarks.environment import environment
from benchmarks.measure import Contender, Goal, Measured, Samples, Workload
from benchmarks.rows import Shape
from benchmarks.session import RECOMMENDED
from rich.console import Console

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

_PEER: Final = "Kafka source"
_NOTHING_SET: Final = "kafkalog, nothing set"
_AS_DOCUMENTED: Final = "kafkalog, as documented"
_SETTINGS: Final = {
    _PEER: {},
    _NOTHING_SET: {},
    _AS_DOCUMENTED: RECOMMENDED,
}
"""What the session of each is given."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(prog="benchmarks.cron", description=__doc__)
    parser.add_argument("--rows", type=int, default=Shape().rows)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--python", type=Path, nargs="+", default=[Path(sys.executable)])
    parser.add_argument("--docs", type=Path, help="where the section of benchmarks.md goes")
    asked = parser.parse_args(argv)
    with environment(Shape(asked.rows), asked.cores, quick=False) as env:
        places = {_PEER: env.broker.bootstrap}
        places |= dict.fromkeys((_NOTHING_SET, _AS_DOCUMENTED), str(env.broker_directory))
        env.spark.stop()
        ran: dict[Path, dict[str, list[dict[str, Any]]]] = {
            python: {who: [] for who in places} for python in asked.python
        }
        for python in asked.python:  # kernels are compiled once for a user
            words = [places[_NOTHING_SET], str(asked.cores), str(env.fresh("checkpoint"))]
            _run(python, _NOTHING_SET, words)
        for number in range(asked.rounds):
            turn = number % len(places)
            for who in [*places][turn:] + [*places][:turn]:
                for python in asked.python:
                    words = [places[who], str(asked.cores), str(env.fresh("checkpoint"))]
                    found = _run(python, who, words)
                    assert found["rows"] == asked.rows
                    ran[python][who].append(found)
                    Console().print(who, found)
    table = report.section_table(*(_measured(asked.rows, runs) for runs in ran.values()))
    Console().print(table)
    if asked.docs:
        text = " ".join(str(__doc__).partition("\n\n")[2].partition("\n\n")[0].split())
        report.write_section(asked.docs, report.CRON, f"{text}\n\n{table}\n")
    return 0


def _run(python: Path, who: str, words: list[str]) -> dict[str, Any]:
    """Run a job; return what it says about itself."""
    source = "kafka" if who == _PEER else "kafkalog"
    settings = json.dumps(_SETTINGS[who])
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYSPARK_")}
    done = subprocess.run(
        [str(python), "-m", cron_job.__name__, source, *words, settings],
        env={**environment, "PATH": f"{python.parent}:{environment['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _measured(rows: int, ran: dict[str, list[dict[str, Any]]]) -> Measured:
    """Bring the runs into the form of the other benchmarks."""
    workload = Workload(
        title=f"Spark {ran[_PEER][0]['spark']}: a fresh process, availableNow, 7 columns",
        contenders=tuple(Contender(who, lambda: 0.0) for who in ran),
        goals=(Goal(_NOTHING_SET, _PEER, 1.1), Goal(_AS_DOCUMENTED, _PEER, 1.4)),
        rows=rows,
    )
    seconds, cpu = (
        {who: Samples(tuple(run[what] for run in runs)) for who, runs in ran.items()}
        for what in ("seconds", "cpu")
    )
    return Measured(workload, seconds, cpu)


if __name__ == "__main__":
    raise SystemExit(main())
