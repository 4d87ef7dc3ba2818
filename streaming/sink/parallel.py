"""Do something for each of many partitions at once: most of it is waiting for the disk."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["for_each"]

_T = TypeVar("_T")

_THREADS: Final = 8


def for_each(action: Callable[[_T], object], items: Sequence[_T]) -> None:
    """Call ``action`` with each item, in threads where there are several.

    All calls have ended when this returns or raises; it raises what the first one in order raised.
    """
    if len(items) <= 1:
        for item in items:
            action(item)
        return
    with ThreadPoolExecutor(min(_THREADS, len(items)), thread_name_prefix="kafkalog") as pool:
        futures = [pool.submit(action, item) for item in items]
    for future in futures:
        future.result()
