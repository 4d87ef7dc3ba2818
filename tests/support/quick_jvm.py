"""What JVMs get that live for seconds: a quick start counts for more than a high speed."""

from __future__ import annotations

from typing import Final

__all__ = ["QUICK"]

QUICK: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""What compiles least needs little more than half of the CPU."""
