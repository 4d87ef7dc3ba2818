"""Java libraries that Spark loads beside kafkalog, fetched once per machine.

A `JarSet` pins what to fetch; `fetch` gives the jars' paths. Ivy does the fetching: its jar comes
with pyspark, so nothing but a Java is needed, and the settings are our own, because Ivy's way of
looking into a local Maven repository fails on a library of which only the pom lies there. The jars
are kept in a cache of the user, outside any source tree:
``$KAFKALOG_CACHE``, else ``$XDG_CACHE_HOME/kafkalog``, else ``~/.cache/kafkalog``.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from xml.sax.saxutils import quoteattr

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "OFFLINE",
    "Coordinate",
    "JarError",
    "JarSet",
    "cache_directory",
    "cached_folder",
    "delta_jars",
    "fetch",
    "java",
    "kafka_jars",
]


class JarError(RuntimeError):
    """No Java, no Ivy, or a library that could not be fetched; the message says which and why."""


class Coordinate(NamedTuple):
    """One library as Maven names it; ``transitive`` brings what it depends on at run time."""

    organisation: str
    name: str
    version: str
    transitive: bool = True


class JarSet(NamedTuple):
    """Libraries that are used together; ``name`` is the name of their folder in the cache.

    ``classifier`` is Maven's, where not the library itself is wanted but a jar beside it.
    """

    name: str
    coordinates: tuple[Coordinate, ...]
    classifier: str = ""

    @property
    def shown(self) -> str:
        """The libraries as Maven names them."""
        return ", ".join(":".join(coordinate[:3]) for coordinate in self.coordinates)

    @property
    def key(self) -> str:
        """The folder's name: another version of any library is another folder."""
        digest = hashlib.sha256(f"{self.coordinates!r}{self.classifier}".encode()).hexdigest()
        return f"{self.name}-{digest[:12]}"


_DELTA_VERSION: Final = "4.4.0"
_WITH_DELTA: Final = ("4.0", "4.1", "4.2")
"""The lines of Spark that this version of Delta Lake has a library for."""

_CONNECTORS: Final = {"4.0": "4.0.4", "4.1": "4.1.3", "4.2": "4.2.0"}
"""The newest connector that there is for each line of Spark."""


def delta_jars() -> JarSet:
    """Return Delta Lake for the Spark that runs.

    What else its pom asks for is in Spark, or serves catalogs alone.

    Raises:
        JarError: there is none for this Spark.
    """
    from kafkalog.streaming.spark.versions import spark_line  # noqa: PLC0415 - needs Spark

    line = spark_line()
    if line not in _WITH_DELTA:
        raise JarError(
            f"Delta Lake {_DELTA_VERSION} has no library for Spark {line}: run this on Spark "
            f"{_WITH_DELTA[-1]}, or choose a format other than delta"
        )
    return JarSet(
        f"delta-{_DELTA_VERSION}",
        (
            Coordinate("io.delta", f"delta-spark_{line}_2.13", _DELTA_VERSION, transitive=False),
            Coordinate("io.delta", "delta-storage", _DELTA_VERSION, transitive=False),
        ),
    )


def kafka_jars() -> JarSet:
    """Return Spark's own Kafka source and sink for the Spark that runs.

    A line of Spark that has none yet gets that of the line before.
    """
    from kafkalog.streaming.spark.versions import spark_line  # noqa: PLC0415 - needs Spark

    version = _CONNECTORS.get(spark_line(), [*_CONNECTORS.values()][-1])
    return JarSet(
        f"spark-kafka-{version}",
        (
            Coordinate("org.apache.spark", "spark-sql-kafka-0-10_2.13", version, transitive=False),
            # Connector 4.2.0 asks for a token provider 4.2.0, which is not to be had; 4.0.0 works.
            Coordinate(
                "org.apache.spark",
                "spark-token-provider-kafka-0-10_2.13",
                "4.0.0",
                transitive=False,
            ),
            Coordinate("org.apache.kafka", "kafka-clients", "3.9.1", transitive=False),
            Coordinate("org.apache.commons", "commons-pool2", "2.12.0", transitive=False),
        ),
    )


_SETTINGS: Final = """\
<ivysettings>
  <settings defaultResolver="central"/>
  <caches defaultCacheDir={cache}/>
  <resolvers><ibiblio name="central" m2compatible="true"/></resolvers>
</ivysettings>
"""

_MODULE: Final = """\
<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="kafkalog" module={name}/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
{dependencies}
  </dependencies>
</ivy-module>
"""

_DEPENDENCY: Final = (
    "    <dependency org={0} name={1} rev={2} transitive={3} conf={4} force={5}>{6}</dependency>"
).format
_ARTIFACT: Final = '<artifact name={0} type="jar" ext="jar" m:classifier={1}/>'.format


OFFLINE: Final = ContextVar("offline", default=False)
"""Whether jars that are not there yet are an error, and not fetched."""


def fetch(jar_set: JarSet) -> list[Path]:
    """Return the paths of the set's jars, fetching them first where this user has not yet.

    What is fetched is said on standard error.

    Several processes may ask at once: one fetches, the others wait. A set appears in the cache
    whole or not at all.

    Raises:
        JarError: no Java or no Ivy to fetch with, or a library could not be fetched, or is not
            there and may not be fetched.
    """
    if OFFLINE.get() and not (cache_directory() / "jars" / jar_set.key).is_dir():
        raise JarError(
            f"--offline fetches nothing, and the jars {jar_set.name!r} ({jar_set.shown}) are not "
            f"in {cache_directory() / 'jars'}: run this once without it, or copy that folder from "
            "a machine where it was"
        )
    home = cached_folder(f"jars/{jar_set.key}", lambda home: _fetch_into(home, jar_set))
    return sorted(home.glob("*.jar"))


def cached_folder(name: str, make: Callable[[Path], None]) -> Path:
    """Return a folder of the cache; ``make`` it first where this user has not yet.

    ``make`` renames it into place when it is complete. Others that ask meanwhile wait.
    """
    home = cache_directory() / name
    if not home.is_dir():
        home.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _locked(home.parent / ".lock"):
            if not home.is_dir():
                make(home)
    return home


def cache_directory() -> Path:
    """Return the folder of this user in which fetched things are kept."""
    own = os.environ.get("KAFKALOG_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kafkalog"


def java() -> str:
    """Return the path of ``java``: that of ``JAVA_HOME``, else the one on the ``PATH``.

    Raises:
        JarError: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    if found is None:
        where = f"JAVA_HOME is {home}, and holds no bin/java" if home else "none is on the PATH"
        raise JarError(
            f"Java 17 is needed, and {where}: install one, or let JAVA_HOME lead to it (in a "
            "checkout, `make env` does so)"
        )
    return found


def _fetch_into(home: Path, jar_set: JarSet) -> None:
    """Let Ivy collect the set in a folder beside ``home`` and rename that when it is complete."""
    sys.stderr.write(f"fetching jars, once: {jar_set.shown} into {home}\n")
    with tempfile.TemporaryDirectory(dir=home.parent, prefix=f".{jar_set.name}-") as scratch:
        work = Path(scratch)
        settings, module, jars = work / "settings.xml", work / "ivy.xml", work / "jars"
        ivy_cache = quoteattr(str(home.parent / "ivy"))
        settings.write_text(_SETTINGS.format(cache=ivy_cache), encoding="utf-8")
        module.write_text(_module(jar_set), encoding="utf-8")
        run = subprocess.run(
            [
                *(java(), "-Xmx512m", "-jar", str(_ivy())),
                *("-settings", str(settings), "-ivy", str(module), "-confs", "default"),
                *("-types", "jar", "bundle", "maven-plugin"),
                *("-retrieve", f"{jars}/[artifact]-[revision](-[classifier]).[ext]"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if run.returncode != 0 or not jars.is_dir():
            raise JarError(_failure(jar_set, run.stdout))
        jars.rename(home)


def _module(jar_set: JarSet) -> str:
    """Write the set as an Ivy module; what it names itself wins over what others ask for."""
    dependencies = [
        _DEPENDENCY(
            *map(quoteattr, coordinate[:3]),
            quoteattr(str(coordinate.transitive).lower()),
            quoteattr("default->default" if coordinate.transitive else "default->master"),
            quoteattr("true"),
            _ARTIFACT(quoteattr(coordinate.name), quoteattr(jar_set.classifier))
            if jar_set.classifier
            else "",
        )
        for coordinate in jar_set.coordinates
    ]
    return _MODULE.format(name=quoteattr(jar_set.name), dependencies="\n".join(dependencies))


def _ivy() -> Path:
    """Find the Ivy jar that pyspark ships."""
    spec = importlib.util.find_spec("pyspark")
    locations = list(spec.submodule_search_locations or ()) if spec else []
    homes = [Path(place) for place in (*locations, os.environ.get("SPARK_HOME", "")) if place]
    found = [jar for home in homes for jar in sorted((home / "jars").glob("ivy-*.jar"))]
    if not found:
        raise JarError(f"no jars/ivy-*.jar in {homes}: a pyspark with its jars is needed")
    return found[0]


def _failure(jar_set: JarSet, output: str) -> str:
    """Return which libraries failed, from Ivy's report."""
    marks = ("UNRESOLVED", "FAILED", "ERRORS", "not found", "Exception", "SERVER ERROR")
    lines = [line.strip() for line in output.splitlines() if any(m in line for m in marks)]
    told = lines[:20] or output.splitlines()[-20:]
    return "\n  ".join(["Ivy says:", *told]) + (
        f"\nthe jars {jar_set.name!r} ({jar_set.shown}) could not be fetched from Maven Central: "
        f"let this machine reach it, or copy {cache_directory() / 'jars'} from one that does"
    )


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on ``path`` (released by the system when the process dies)."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
