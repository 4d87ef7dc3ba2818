"""Keep an idle query from using up a core by asking.

Spark asks for the latest offset again 10 ms after it was told that there is none. One look at a few
partitions costs microseconds; one at thousands does not.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["IdlePacer"]

_SHARE: Final = 0.02
_LONGEST_S: Final = 0.25


class IdlePacer:
    """Waits before a look so that looks that find nothing take at most 2 % of the time.

    It waits, rather than answering from memory, so that every answer is true when it is given. A
    look that found something is not followed by a wait, and none takes longer than a quarter of a
    second.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._not_before = 0.0
        self._began = 0.0

    def before_look(self) -> None:
        """Wait until the next look is due."""
        delay = self._not_before - self._clock()
        if delay > 0:
            self._sleep(delay)
        self._began = self._clock()

    def after_look(self, *, idle: bool) -> None:
        """Take the time that the look took; ``idle`` if it found nothing new."""
        now = self._clock()
        pause = min((now - self._began) / _SHARE, _LONGEST_S) if idle else 0.0
        self._not_before = self._began + pause
