"""Count what positioned reads fetch from files, by the files' suffixes."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["counted_reads"]


@contextmanager
def counted_reads() -> Iterator[Counter[str]]:
    """Return the bytes that ``os.pread`` and ``os.preadv`` fetch meanwhile, such as of ``.log``."""
    fetched: Counter[str] = Counter()

    def counting(read: Callable[..., Any]) -> Callable[..., Any]:
        def counted(descriptor: int, what: Any, position: int) -> Any:
            result = read(descriptor, what, position)
            suffix = Path(f"/proc/self/fd/{descriptor}").resolve().suffix
            fetched[suffix] += result if isinstance(result, int) else len(result)
            return result

        return counted

    with pytest.MonkeyPatch.context() as patch:
        for name in ("pread", "preadv"):
            patch.setattr(os, name, counting(getattr(os, name)))
        yield fetched
