"""What a benchmark ran on: cores, memory, versions; nothing that names a machine or a place."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Final

from kafkalog.jobs.process.jars import java
from kafkalog.model import many

__all__ = ["facts"]

_PACKAGES: Final = ("pyspark", "pyarrow", "numpy", "numba", "lz4", "crc32c")


def facts() -> dict[str, str]:
    """Return label -> value, in the order in which they are to be shown."""
    versions = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    return {
        "processor": f"{_processor()}, {many(len(os.sched_getaffinity(0)), 'core')}",
        "memory": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "Java": _java_version(),
        "Python": f"{platform.python_version()}; {versions}",
        "Kafka": "broker 4.1.0 (KRaft, one node, loopback), Spark's connector 4.2.0",
    }


def _processor() -> str:
    """Return the processor's model as Linux knows it, else its architecture."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8") if cpuinfo.exists() else ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found.group(1) if found else platform.machine()


def _java_version() -> str:
    told = subprocess.run([java(), "-version"], capture_output=True, text=True, check=True).stderr
    found = re.search(r'version "([^"]+)"', told)
    return found.group(1) if found else told.splitlines()[0]
