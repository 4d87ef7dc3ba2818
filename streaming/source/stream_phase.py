"""Where a run of a streaming query stands, by what Spark has asked of its source so far.

Spark asks in this order:

====================================  ============================================================
``prepareForTriggerAvailableNow``     with that trigger only: read what is there at the first look
``initialOffset``                     without a checkpoint only
``partitions(start, end)``            with a checkpoint whose last batch was planned and not
                                      committed: that batch once more, before anything else
``latestOffset(start, limit)``        where the next batch ends
``partitions(start, end)``            what its tasks read
``commit(end)``                       the batch is written; it comes late, and not after the last
====================================  ============================================================

The phases that follow from it, each once and in this order:

=================  ================================================================================
``INITIAL``        nothing was planned or asked for yet. If the first question comes with the
                   offsets that ``initialOffset`` gave, the query has no checkpoint
``REPLAYING``      a batch was planned that an earlier run has decided on. It is read as it was
                   decided, whatever is there today
``RUNNING``        ends are those of the last look
``AVAILABLE_NOW``  ends are those of the first look, and have to stay there
``ENDED``          all of these are reached. What comes now is for the next run, and nothing is
                   looked at any more
=================  ================================================================================
"""

from __future__ import annotations

from enum import Enum, auto

__all__ = ["Phase"]


class Phase(Enum):
    """Where a run stands."""

    INITIAL = auto()
    REPLAYING = auto()
    RUNNING = auto()
    AVAILABLE_NOW = auto()
    ENDED = auto()

    @property
    def has_begun(self) -> bool:
        """Whether Spark has asked where a batch of this run ends."""
        return self not in {Phase.INITIAL, Phase.REPLAYING}
