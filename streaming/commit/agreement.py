"""Whether replicas come to the same bytes by an append, as far as its plans tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkalog.streaming.log.append.appender import AppendPlan

__all__ = ["agree"]


def agree(one: AppendPlan, other: AppendPlan) -> bool:
    """Whether two replicas come to the same segments, positions, rolls and index entries.

    An index that has lost entries with the power gets them again: so one may get more of them.
    """
    return _shape(one) == _shape(other) and all(
        a.index_entries.endswith(b.index_entries) or b.index_entries.endswith(a.index_entries)
        for a, b in zip(one.segments, other.segments, strict=True)
    )


def _shape(plan: AppendPlan) -> list[tuple[object, ...]]:
    return [
        (
            *(s.base_offset, s.creates, s.seals, s.position, s.size, s.adopts),
            s.index_position + len(s.index_entries),
        )
        for s in plan.segments
    ]
