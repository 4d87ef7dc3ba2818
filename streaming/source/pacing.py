"""Keep an idle query from using up a core by asking.

Spark asks for the latest offset again 10 ms after each answer that there is nothing new. Each round
costs it some 2 ms of a core, and more with thousands of partitions, whose offsets travel as text. A
look of ours costs less. So the longer a query is idle, the more looks are taken before Spark gets
its answer. If something new is found, the answer comes at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kafkalog.files.deferred_signals import pause
from kafkalog.files.system import system

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["IdlePacer"]

_SHARE: Final = 0.01
_LONGEST_REST_S: Final = 0.25

# The longer nothing came, the less it matters to see the next row a little later.
_IDLE_SHARE: Final = 0.05
_LONGEST_REST_WHEN_IDLE_S: Final = 1.0
_REST_S: Final = 0.1
_LONGEST_ROUND_S: Final = 0.5


class IdlePacer:
    """Paces the looks of a query, and says when Spark is to be told that they found nothing.

    Looks begin 100 times as far apart as one takes, so that they cost 1 % of the time. They are no
    further apart than a quarter of a second, or than a twentieth of the time that the query has
    been idle, up to a second; and no closer than that twentieth, up to a tenth of a second. So a
    look that costs next to nothing is taken 10 times a second once the query was idle for 2 s.
    Spark is answered after a twentieth of the idle time, half a second at the latest.

    Every answer is the result of a look, and true when it is given.
    """

    def __init__(
        self,
        clock: Callable[[], float] | None = None,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        self._clock = clock or system.monotonic
        self._sleep = sleep or pause
        self._asked = 0.0
        self._began = 0.0
        self._not_before = 0.0
        self._idle_since: float | None = None

    def batch_ran(self) -> None:
        """Start again: the query is not idle, since one of its sources had rows."""
        self._idle_since = None

    def asked(self) -> None:
        """Begin a round: Spark asks."""
        self._asked = self._clock()

    def before_look(self) -> None:
        """Rest until the next look is due."""
        delay = self._not_before - self._clock()
        if delay > 0:
            self._sleep(delay)
        self._began = self._clock()

    def after_look(self, *, idle: bool) -> bool:
        """Take the time that the look took; ``idle`` if there is nothing to tell.

        Returns:
            whether to look again before Spark is answered.
        """
        now = self._clock()
        if not idle:
            self._idle_since = None
            self._not_before = now
            return False
        if self._idle_since is None:
            self._idle_since = now
        of_idle = (now - self._idle_since) * _IDLE_SHARE
        longest = max(_LONGEST_REST_S, min(of_idle, _LONGEST_REST_WHEN_IDLE_S))
        rest = max(min((now - self._began) / _SHARE, longest), min(of_idle, _REST_S))
        self._not_before = self._began + rest
        return self._not_before < self._asked + min(of_idle, _LONGEST_ROUND_S)
