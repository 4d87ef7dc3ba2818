"""How the files of consumer groups are called that lie in log directories, beside partitions."""

from __future__ import annotations

from typing import Final

__all__ = ["GROUP_LOCK_PREFIX", "MEMBER_PREFIX"]

MEMBER_PREFIX: Final = ".kafkalog.group."
"""Of a member's file."""

GROUP_LOCK_PREFIX: Final = ".kafkalog.grouplock."
"""Of a group's lock. No member's file begins like that: they are opened without a mutex."""
