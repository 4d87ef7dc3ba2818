"""Hear what is logged while a report is made: it belongs on the page, once."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["heard_warnings"]


@contextmanager
def heard_warnings(found: list[str]) -> Iterator[None]:
    """Keep the texts of warnings of this package, each once, instead of printing them."""
    logger = logging.getLogger("kafkalog")
    handler = _Hearing(found)
    propagated, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagated


class _Hearing(logging.Handler):
    def __init__(self, found: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._found = found

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text not in self._found:
            self._found.append(text)
