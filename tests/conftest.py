"""What holds for all tests."""

from __future__ import annotations

import os

from hypothesis import settings
from tests.support.quick_jvm import QUICK, SPARK_CLASSES, SPARK_SETTINGS, loaded_classes

os.environ.setdefault("SPARK_LAUNCHER_OPTS", " ".join(QUICK))
os.environ.setdefault(
    "SPARK_SUBMIT_OPTS", " ".join((*QUICK, *SPARK_SETTINGS, *loaded_classes(SPARK_CLASSES)))
)

settings.register_profile("kafkalog", deadline=None)  # no test asserts a time
settings.load_profile("kafkalog")
