"""What holds for all tests."""

from __future__ import annotations

import os

from hypothesis import settings
from tests.support.quick_jvm import QUICK

for _name in ("SPARK_LAUNCHER_OPTS", "SPARK_SUBMIT_OPTS"):
    os.environ.setdefault(_name, " ".join(QUICK))

settings.register_profile("kafkalog", deadline=None)  # no test asserts a time
settings.load_profile("kafkalog")
