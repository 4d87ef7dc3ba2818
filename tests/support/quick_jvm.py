"""What JVMs get that live for seconds: a quick start counts for more than a high speed."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import Final

__all__ = ["QUICK", "SPARK_CLASSES", "SPARK_SETTINGS", "classes_name", "loaded_classes"]

QUICK: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""What compiles least needs little more than half of the CPU."""

SPARK_SETTINGS: Final = (
    "-Dspark.sql.codegen.wholeStage=false",
    "-Dspark.sql.codegen.factoryMode=NO_CODEGEN",
    "-Dspark.sql.ui.explainMode=simple",
)
"""A query of a test runs once, over a few rows. To compile generated code takes longer than to
interpret the plan, and the long description of a plan is only for Spark's UI, which is off."""


def classes_name() -> str:
    """Return the name of an archive of classes for the Java in use: another one complains of it."""
    found = shutil.which("java")
    home = os.environ.get("JAVA_HOME") or (Path(found).resolve().parents[1] if found else "")
    release = Path(home, "release")
    told = release.read_text(encoding="utf-8") if release.exists() else ""
    version = re.search(r'^JAVA_VERSION="([\w.+-]+)"', told, re.MULTILINE)
    return f"classes-{version[1] if version else 'unknown'}.jsa"


SPARK_CLASSES: Final = Path(sys.prefix, f"spark-{classes_name()}")
"""The archive of Spark's classes in this environment; see :mod:`tests.support.class_archives`."""


def loaded_classes(archive: Path) -> tuple[str, ...]:
    """Return the option of a JVM that takes classes from an archive (class data sharing), if there.

    A JVM with other jars than those the archive was made of takes the classes from its jars, and
    says nothing. The archive saves a third to a half of what a start costs.
    """
    return (f"-XX:SharedArchiveFile={archive}",) if archive.exists() else ()
