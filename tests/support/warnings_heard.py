"""What kafkalog warns of, given to a handler in place of being written down."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["warnings_to"]


@contextmanager
def warnings_to(handler: logging.Handler) -> Iterator[None]:
    """Let a handler alone hear the warnings, whatever level the loggers had."""
    logger = logging.getLogger("kafkalog")
    level, propagates = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagates
