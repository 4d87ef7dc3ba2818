"""Aiven's plugin, compiled from a clone of its source: no registry has its jars.

What writes Iceberg tables is left out: it needs libraries of another registry, and no reader of
ours meets it.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.support.jars import KAFKA

from kafkalog.jobs.process.jars import Coordinate, JarSet, cached_folder, fetch, java

__all__ = ["class_path"]

_LIBRARIES: Final = JarSet(
    "aiven-plugin",
    (
        Coordinate("org.bouncycastle", "bcprov-jdk18on", "1.83"),
        Coordinate("com.fasterxml.jackson.core", "jackson-databind", "2.21.3"),
        Coordinate("com.fasterxml.jackson.datatype", "jackson-datatype-jdk8", "2.21.3"),
        Coordinate("com.github.luben", "zstd-jni", "1.5.7-4"),
        Coordinate("com.github.ben-manes.caffeine", "caffeine", "3.2.3"),
        Coordinate("commons-io", "commons-io", "2.21.0"),
        Coordinate("com.bucket4j", "bucket4j_jdk11-core", "8.15.0"),
    ),
)
_MODULES: Final = ("core", "commons", "storage/core", "storage/filesystem")
_MAIN: Final = "core/src/main/java/io/aiven/kafka/tieredstorage"


def class_path(source: Path) -> str:
    """Return the plugin's class path, compiled once for a state of its source."""
    files = sorted(
        path.relative_to(source)
        for module in _MODULES
        for path in (source / module / "src/main").rglob("*.java")
    )
    digest = hashlib.blake2b(b"".join((source / each).read_bytes() for each in files))
    name = f"aiven-{digest.hexdigest()[:12]}"
    jars = fetch(_LIBRARIES)
    all_jars = [*jars, *fetch(KAFKA)]  # before the lock of the cache is held
    home = cached_folder(f"jars/{name}", lambda home: _compile(source, files, all_jars, home))
    return ":".join([f"{home}/", *map(str, jars)])


def _compile(source: Path, files: list[Path], jars: list[Path], home: Path) -> None:
    with TemporaryDirectory(dir=home.parent) as begun:
        for each in files:
            if "iceberg" not in each.parts and each.name != "IcebergRemoteStorageManager.java":
                copy = Path(begun, "source", each)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_text(_without_iceberg((source / each).read_text(), each))
        classes = Path(begun, "classes")
        command = [str(Path(java()).with_name("javac")), "-nowarn", "-d", str(classes)]
        command += ["-cp", ":".join(map(str, jars))]
        command += map(str, Path(begun, "source").rglob("*.java"))
        subprocess.run(command, check=True, capture_output=True)
        shutil.move(classes, home)


def _without_iceberg(text: str, file: Path) -> str:
    if file == Path(_MAIN, "RemoteStorageManager.java"):
        text = text.replace("private IcebergRemote", "private InternalRemote")
        return re.sub(r"segmentFormat == SegmentFormat.ICEBERG\s*\?[^:]*:\s*null", "null", text)
    if file == Path(_MAIN, "config/RemoteStorageManagerConfig.java"):
        text = text.partition("    public StructureProvider structureProvider()")[0] + "}\n"
        return re.sub(r"import [\w.]*\.iceberg\.[\w.]*;", "", text)
    return text
