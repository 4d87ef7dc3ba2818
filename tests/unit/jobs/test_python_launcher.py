from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pyspark
from tests.support.distributions import ROOT

from kafkalog.jobs.python_launcher import launcher, without_copies

LIB = Path(pyspark.__file__).parent / "python" / "lib"
WHERE = "import pyspark, sys; print(pyspark.__file__, *sys.argv[1:])"


def started(path: str, *words: str) -> str:
    """Give what Python says that the launcher has started with a path."""
    start = [sys.executable, "-c", "from kafkalog.jobs.python_launcher import main; main()"]
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        [*start, *words], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_the_zip_of_an_installed_pyspark_is_left_out_and_the_rest_stays(tmp_path: Path) -> None:
    zips = sorted(map(str, LIB.glob("*.zip")))
    assert any(path.endswith("pyspark.zip") for path in zips)
    mine = str(tmp_path / "mine.zip")
    assert without_copies([*zips, mine, ""], sys.path) == [mine, ""]
    assert without_copies([*zips, mine], [str(tmp_path)]) == [*zips, mine]


def test_python_imports_what_is_installed(tmp_path: Path) -> None:
    zips = os.pathsep.join(map(str, LIB.glob("*.zip")))
    said = started(zips, "-c", WHERE, "a word", "-m")
    assert said == f"{pyspark.__file__} a word -m"


def test_a_pyspark_of_another_place_is_imported_from_there(tmp_path: Path) -> None:
    other = tmp_path / "spark" / "python" / "lib" / "pyspark.zip"
    other.parent.mkdir(parents=True)
    with ZipFile(other, "w") as zipped:
        zipped.writestr("pyspark/__init__.py", "")
    assert started(str(other), "-c", WHERE) == str(other / "pyspark" / "__init__.py")


def test_a_path_behind_a_link_is_the_same_path(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(LIB.parents[2])
    assert without_copies([str(LIB / "pyspark.zip")], [str(tmp_path / "link")]) == []


def test_python_leaves_the_zip_out_when_it_starts(tmp_path: Path) -> None:
    line = (ROOT / "src" / "kafkalog.pth").read_text()
    program = f"import sys; sys.path[:0] = sys.argv[1:]\n{line}\nimport pyspark, py4j\n"
    program += "print(pyspark.__file__, sys.path[0])"
    words = [*sorted(map(str, LIB.glob("*.zip"))), str(tmp_path)]
    said = subprocess.check_output([sys.executable, "-c", program, *words], text=True)
    assert said.split() == [pyspark.__file__, str(tmp_path)]


def test_the_jar_of_sparks_core_is_left_out_and_forgotten() -> None:
    (jar,) = LIB.parents[1].glob("jars/spark-core_*.jar")
    with ZipFile(jar) as zipped:
        assert not any(name.endswith((".py", ".pyc", ".so")) for name in zipped.namelist())
    program = "import sys; print([e for e in (*sys.path, *sys.path_importer_cache) if '.jar' in e])"
    path = os.pathsep.join([*map(str, LIB.glob("*.zip")), str(jar)])
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-c", program]
    assert subprocess.check_output(command, env=environment, text=True) == "[]\n"
    assert started(path, "-c", program) == "[]"


def test_there_is_always_a_python_to_start() -> None:
    done = subprocess.run(
        [launcher(), "-c", "print(1)"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "1\n"
