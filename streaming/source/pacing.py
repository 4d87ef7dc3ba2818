"""Keep an idle query from using up a core by asking.

Spark asks for the latest offset again 10 ms after it was told that there is none, for ever; each
round costs it and us half a millisecond at least, and a look at thousands of partitions more.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["IdlePacer"]

_SHARE: Final = 0.02
_LONGEST_S: Final = 0.25
_LONGEST_WHEN_IDLE_S: Final = 1.0

# The longer nothing came, the less it matters to see the next row a little later.
_IDLE_SHARE: Final = 0.05
_LONGEST_FOR_SPARK_S: Final = 0.2


class IdlePacer:
    """Waits before a look, if the looks before found nothing.

    Our looks are to take at most 2 % of the time, and no wait for that is longer than a quarter of
    a second, or than a twentieth of the time since something was found, up to a second. A wait for
    Spark's sake grows likewise, up to 200 ms: a round of Spark's costs it a millisecond.

    It waits, rather than answering from memory, so that every answer is true when it is given.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._began = 0.0
        self._not_before = 0.0
        self._last_found = clock()

    def before_look(self) -> None:
        """Wait until the next look is due."""
        delay = self._not_before - self._clock()
        if delay > 0:
            self._sleep(delay)
        self._began = self._clock()

    def after_look(self, *, idle: bool) -> None:
        """Take the time that the look took; ``idle`` if there is nothing to read after it."""
        now = self._clock()
        if not idle:
            self._last_found = now
            self._not_before = now
            return
        of_idle = (now - self._last_found) * _IDLE_SHARE
        longest = max(_LONGEST_S, min(of_idle, _LONGEST_WHEN_IDLE_S))
        for_us = min((now - self._began) / _SHARE, longest)
        for_spark = min(of_idle, _LONGEST_FOR_SPARK_S)
        self._not_before = self._began + max(for_us, for_spark)
