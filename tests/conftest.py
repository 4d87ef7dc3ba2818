"""What holds for all tests."""

from __future__ import annotations

import os
from typing import Final

from hypothesis import settings

_QUICK_JVM: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Most of Spark's JVMs live for seconds here: what compiles least needs little more than half."""

for _name in ("SPARK_LAUNCHER_OPTS", "SPARK_SUBMIT_OPTS"):
    os.environ.setdefault(_name, _QUICK_JVM)

settings.register_profile("kafkalog", deadline=None)  # no test asserts a time
settings.load_profile("kafkalog")
