"""The loops over messages of magic 0 and 1; the format stands in ``message_set``."""

from __future__ import annotations
