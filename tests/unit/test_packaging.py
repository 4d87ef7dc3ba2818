"""What is released, and what its modules promise by their form."""

from __future__ import annotations

import ast
import importlib
import inspect
import pickle
import pkgutil
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from contextlib import suppress
from graphlib import TopologicalSorter
from importlib.metadata import PackageNotFoundError, distribution, distributions
from pathlib import Path
from typing import TYPE_CHECKING, Final

import grimp
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.support.distributions import (
    PACKAGES,
    ROOT,
    build,
    environment_of_dependencies,
    environment_without_kafkalog,
    project_files,
)

import kafkalog
from kafkalog import errors
from kafkalog.streaming.spark.versions import HAS_FILTER_PUSHDOWN

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from tests.support.distributions import Distributions

# Spark imports pyspark_kafkalog in six kinds of process; most have nothing to do with a log.
HEAVY: Final = (
    *("numpy", "numba", "llvmlite", "pandas", "pyarrow"),
    *("crc32c", "lz4", "snappy", "cramjam", "zstandard"),
    *("rich", "typer"),
)

# Kernels, which are one loop, may be longer.
MOST_LINES_OF_A_FUNCTION: Final = 40


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    return build(tmp_path_factory.mktemp("dist"))


def test_the_wheel_holds_exactly_the_files_of_the_packages(built: Distributions) -> None:
    expected = set()
    for path in project_files():
        if path.parts[0] == "src":
            expected.add(str(path.relative_to("src")))
        elif path.parts[0] in PACKAGES:
            expected.add(f"kafkalog/{path}")

    names = zipfile.ZipFile(built.wheel).namelist()

    assert expected == {name for name in names if ".dist-info/" not in name}
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_the_sdist_holds_what_is_needed_to_build_test_and_read_it(built: Distributions) -> None:
    outside = {".ci", ".gitignore", ".pre-commit-config.yaml"}
    expected = {
        str(Path("src/kafkalog") / path if path.parts[0] in PACKAGES else path)
        for path in project_files()
        if path.parts[0] not in outside
    }

    with tarfile.open(built.sdist) as archive:
        members = [member.name.split("/", 1)[1] for member in archive if not member.isdir()]

    assert expected - set(members) == set()


def test_the_command_that_is_installed_can_be_called(built: Distributions) -> None:
    archive = zipfile.ZipFile(built.wheel)
    scripts = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
    for script in scripts:
        for line in archive.read(script).decode().splitlines():
            if "=" in line:
                module, function = line.split("=")[1].strip().split(":")
                assert callable(getattr(importlib.import_module(module), function))


def test_the_zip_serves_in_an_environment_without_the_package(
    built: Distributions, tmp_path: Path
) -> None:
    variables = environment_without_kafkalog(tmp_path / "packages")
    path = f"{built.py_files}:{variables['PYTHONPATH']}"
    program = "import pyspark_kafkalog, kafkalog.streaming.records.columns as c; print(c.__file__)"

    ran = subprocess.run(
        [variables["PYSPARK_PYTHON"], "-c", program],
        env={**variables, "PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith(str(built.py_files))


_WITHOUT_SPARK = """
import importlib.util, kafkalog, pyarrow, sys
rows = pyarrow.table({"key": ["UA", "AA"] * 5, "value": [f"flight {n}" for n in range(10)]})
done = kafkalog.append("logs", "flights", rows, options={"numPartitions": 2})
assert done.appended
wanted = kafkalog.read("logs", "flights", strings=["key", "value"]).read_all()
assert sorted(wanted["value"].to_pylist()) == [f"flight {n}" for n in range(10)]
tailed = kafkalog.tail("logs", "flights", idle_timeout=0, options={"startingOffsets": "earliest"})
assert sum(map(len, tailed)) == 10
assert kafkalog.get("logs", "flights", "UA")["value"] == b"flight 8"
begin = {"startingOffsets": "earliest"}
with kafkalog.Consumer("logs", "group", ["flights"], options=begin) as consumer:
    assert any(consumer.poll(1) is not None for _ in range(10))
    consumer.commit()
assert importlib.util.find_spec("pyspark") is None
from kafkalog.jobs.cli import app
for words in sys.argv[1:]:
    sys.argv = ["kafkalog", *words.split()]
    try:
        app.main()
    except SystemExit as ended:
        assert not ended.code, words
"""


def test_without_spark_all_works_that_needs_none(tmp_path: Path) -> None:
    variables = environment_of_dependencies(tmp_path / "packages")
    commands = ["topics logs", "describe logs --topic flights", "lag logs --group group"]
    commands += ["dump logs --topic flights --records --partition 1 --count 2", "verify logs"]
    ran = subprocess.run(
        [sys.executable, "-S", "-c", _WITHOUT_SPARK, *commands],
        env=variables,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "flights" in ran.stdout


def test_a_package_that_is_missing_is_named_in_one_sentence(tmp_path: Path) -> None:
    """In a worker too, which imports the reader when it unpickles it."""
    variables = environment_without_kafkalog(tmp_path / "packages")
    (tmp_path / "packages" / "numba").unlink()
    (tmp_path / "packages" / "lz4").unlink()
    variables["PYTHONPATH"] += f":{ROOT / 'src'}"
    for program in (
        "import kafkalog; kafkalog.read('log', 't')",
        "import kafkalog.streaming.spark.readers",
        "import kafkalog.streaming.spark.writers",
    ):
        ran = subprocess.run(
            [sys.executable, "-S", "-c", program],
            env=variables,
            capture_output=True,
            text=True,
            check=False,
        )
        said = ran.stderr.strip().splitlines()[-1]
        assert said.startswith("kafkalog.errors.MissingPackageError: kafkalog needs lz4, numba, ")
        assert sys.executable in said


def names_brought_by(requirements: list[str]) -> set[str]:
    """Return the names of these packages and of all that they need, as far as they are here."""
    wanted = [Requirement(each) for each in requirements]
    seen: set[tuple[str, frozenset[str]]] = set()
    while wanted:
        each = wanted.pop()
        key = (canonicalize_name(each.name), frozenset(each.extras))
        if key in seen:
            continue
        seen.add(key)
        with suppress(PackageNotFoundError):
            needed = [Requirement(line) for line in distribution(each.name).requires or ()]
            extras = [{"extra": extra} for extra in ("", *each.extras)]
            wanted += [
                one for one in needed if not one.marker or any(map(one.marker.evaluate, extras))
            ]
    return {name for name, _ in seen}


def test_the_lock_has_nothing_that_pyproject_does_not_bring() -> None:
    """An environment of `make matrix` is made of the latter alone."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"].values()
    asked = [*project["project"]["dependencies"], *project["dependency-groups"]["dev"]]
    asked += [*project["build-system"]["requires"], *(line for each in extras for line in each)]
    lines = (ROOT / "requirements" / "lock.txt").read_text().splitlines()
    locked = {canonicalize_name(line.partition("==")[0]) for line in lines if "==" in line}
    here = {canonicalize_name(each.name) for each in distributions()}
    assert locked & here - names_brought_by(asked) == set()


def test_the_environment_builds_packages_that_have_no_wheel(tmp_path: Path) -> None:
    # pyspark comes as source, and `make env` builds it without isolation. A cache of pip's that
    # holds its wheel hides what is missing.
    (tmp_path / "setup.py").write_text("import setuptools; setuptools.setup(name='bare')")
    words = ("wheel", "--no-build-isolation", "--no-deps", "--no-index", "--no-cache-dir")
    command = [sys.executable, "-m", "pip", *words, "--wheel-dir", "wheels", "."]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    assert [built.suffix for built in (tmp_path / "wheels").iterdir()] == [".whl"]


def test_python_m_kafkalog_is_the_command(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "kafkalog", "--version"]
    shown = subprocess.check_output(words, cwd=tmp_path, text=True)
    assert shown == f"{kafkalog.__version__}\n"


def test_what_spark_imports_everywhere_is_light() -> None:
    # pyspark 4.0 itself imports numpy there
    program = (
        "import sys, pyspark.sql.datasource; before = set(sys.modules)\n"
        "import pyspark_kafkalog; print(*set(sys.modules) - before)"
    )
    loaded = subprocess.check_output([sys.executable, "-c", program], text=True).split()

    assert set(HEAVY) & set(loaded) == set()
    assert not [name for name in loaded if name.startswith("kafkalog.streaming.records")]


def modules() -> list[str]:
    found = pkgutil.walk_packages(kafkalog.__path__, "kafkalog.")
    return ["kafkalog", "pyspark_kafkalog", *sorted(module.name for module in found)]


def defined_in(module: ModuleType) -> set[str]:
    """List the public classes and functions that a module defines itself."""
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module.__name__
    }


@pytest.mark.parametrize("name", modules())
def test_all_lists_what_a_module_offers(name: str) -> None:
    if name == "kafkalog.streaming.source.filters" and not HAS_FILTER_PUSHDOWN:
        return  # only Sparks that have filters import it
    module = importlib.import_module(name)
    listed = getattr(module, "__all__", [])

    assert len(listed) == len(set(listed))
    assert [word for word in listed if not hasattr(module, word)] == []
    if "__all__" in vars(module):
        missing = defined_in(module) - set(listed)
        assert missing - {"main"} == set(), "a leading underscore, or a line in __all__"


@pytest.mark.parametrize("name", errors.__all__)
def test_errors_survive_the_way_from_a_task_to_the_driver(name: str) -> None:
    kind = getattr(errors, name)
    attributes = {
        parameter.name: "text" if isinstance(parameter.default, str) else 7
        for parameter in inspect.signature(kind.__init__).parameters.values()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }

    error = pickle.loads(pickle.dumps(kind("what happened", **attributes)))

    assert type(error) is kind
    assert str(error) == "what happened"
    assert {key: getattr(error, key) for key in attributes} == attributes


def test_the_tree_of_errors_is_drawn_as_the_classes_are() -> None:
    drawn: dict[str, tuple[str, ...]] = {}
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        if found := re.fullmatch(r"    ([│├└─ ]*)(\w+Error)(?: \((\w+)\))?(?:  .*)?", line):
            branch, name, other = found.groups()
            above = [*above[: len(branch) // 4], name]
            drawn[name] = (*above[-2:-1], *([other] if other else [])) or ("Exception",)

    kinds = {name: getattr(errors, name).__bases__ for name in errors.__all__}
    assert drawn == {name: tuple(base.__name__ for base in bases) for name, bases in kinds.items()}


def lines_over(limit: int, node: ast.AST) -> Iterator[str]:
    """Name the functions below a node with more lines, docstrings included."""
    for each in ast.walk(node):
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            assert each.end_lineno is not None
            if each.end_lineno - each.lineno >= limit:
                yield each.name


def test_a_function_is_short_enough_to_be_read_at_once() -> None:
    too_long = {
        f"{path}: {name}"
        for path in project_files()
        if path.suffix == ".py" and path.parts[0] in {"src", *PACKAGES}
        if not path.stem.endswith("kernels")
        for name in lines_over(
            MOST_LINES_OF_A_FUNCTION, ast.parse((ROOT / path).read_text(encoding="utf-8"))
        )
    }
    assert too_long == set()


def test_the_import_layers_hold() -> None:
    command = str(Path(sys.executable).with_name("lint-imports"))
    ran = subprocess.run(
        [command, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_nothing_in_jobs_has_the_name_of_a_module_of_the_standard_library() -> None:
    """A script of jobs/ that is run by its path has jobs/ first on Python's path."""
    names = {Path(path.parts[1]).stem for path in project_files() if path.parts[0] == "jobs"}
    assert "ingest" in names
    assert names & sys.stdlib_module_names == set()


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = grimp.build_graph("kafkalog", include_external_packages=False)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(imports) > 200
    TopologicalSorter(imports).prepare()  # or CycleError, which names the modules


@pytest.mark.parametrize(
    ("name", "places"),
    [
        # The module of the locks takes them too, for a moment, to see whether a broker is there. A
        # cleaner's lock, and a group's, is one of their kind, on a file of its own: it changes
        # nothing of the set.
        (
            "DirectoryLocks",
            {
                "streaming/groups/membership.py",
                "streaming/store/locks.py",
                "streaming/store/replicas/open_nodes.py",
                "streaming/store/open_set.py",
                "streaming/store/session.py",
            },
        ),
        ("write_state", {"streaming/store/nodes.py"}),
    ],
    ids=["locks are taken by a session", "a state is published on a node"],
)
def test_a_set_is_changed_in_one_way(name: str, places: set[str]) -> None:
    """Whoever changes a set goes through ``store/session.py``, and what belongs to it is done."""
    package = Path(kafkalog.__path__[0])
    naming = {
        path.relative_to(package).as_posix()
        for folder in ("streaming", "jobs", "checkpoints", "files")
        for path in (package / folder).rglob("*.py")
        if name in path.read_text()
    }
    assert naming == places
