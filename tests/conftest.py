"""What holds for all tests."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("kafkalog", deadline=None)  # no test asserts a time
settings.load_profile("kafkalog")
