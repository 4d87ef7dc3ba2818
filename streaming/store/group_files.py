"""How the files of consumer groups are called that lie in log directories, beside partitions."""

from __future__ import annotations

from typing import Final

__all__ = [
    "EXPIRY_NOTE",
    "GROUP_LOCK_PREFIX",
    "INSTANCE_LOCK_PREFIX",
    "MEMBER_PREFIX",
    "PLAN_PREFIX",
]

MEMBER_PREFIX: Final = ".kafkalog.group."
"""Of a member's file."""

GROUP_LOCK_PREFIX: Final = ".kafkalog.grouplock."
"""Of a group's lock. No member's file begins like that: they are opened without a mutex."""

INSTANCE_LOCK_PREFIX: Final = ".kafkalog.groupinstance."
"""Of the lock of a query's name. Likewise."""

EXPIRY_NOTE: Final = ".kafkalog.groupexpiry"
"""Of groups that have expired by one look at the clock."""

PLAN_PREFIX: Final = ".kafkalog.groupplan."
"""Of what a query of a group reads in its present micro-batch."""
