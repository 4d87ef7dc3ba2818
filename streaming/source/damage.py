"""What an error about damage says beside its place: how to read what lies after it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from kafkalog.errors import CorruptRecordError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kafkalog.streaming.source.read_options import ReadOptions

__all__ = ["naming_way_out"]

_WAY_OUT = "onCorruptRecord=skip"


@contextmanager
def naming_way_out(options: ReadOptions) -> Iterator[None]:
    """Add to an error about a damaged batch that ``onCorruptRecord=skip`` reads on after it."""
    try:
        yield
    except CorruptRecordError as error:
        text = str(error)
        if options.on_corrupt_record == "fail" and _WAY_OUT not in text:
            error.args = (f"{text}; {_WAY_OUT} reads on after it, and says what it leaves out",)
        raise
