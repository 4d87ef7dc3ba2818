"""What tests do in place of sleeping: in their own thread alone.

A member of a group that an earlier test has left open beats on in a thread of its own, up to
``max.poll.interval.ms``. It sleeps as ever, or the clock of a test would run by its rests.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from kafkalog.files.system import system

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

__all__ = ["patch_sleep"]


def patch_sleep(patch: pytest.MonkeyPatch, rest: Callable[[float], Any]) -> None:
    """Call ``rest`` with the seconds where this thread would sleep."""
    here, original = threading.get_ident(), system.sleep

    def sleep(seconds: float) -> None:
        (rest if threading.get_ident() == here else original)(seconds)

    patch.setattr(system, "sleep", sleep)
