"""Copies of short byte strings into what is being decompressed: literals, and what was written.

Compiled into the kernels that call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kafkalog.streaming.records.byte_kernels import copy_bytes
from kafkalog.streaming.records.jit.inline import inlined

if TYPE_CHECKING:
    from kafkalog.streaming.records.arrow_buffers import Bytes

__all__ = ["SLACK", "copy_literals", "copy_match"]

SLACK: Final = 64
"""Bytes of the output that stay free: short copies write more than they need."""

_STEP: Final = 16


@inlined
def copy_literals(out: Bytes, written: int, data: Bytes, at: int, length: int) -> None:
    """Copy bytes for which there is room, and ``SLACK`` after it."""
    if length <= 4 * _STEP and at <= data.shape[0] - 4 * _STEP:
        copy_bytes(out, written, data, at, 2 * _STEP)
        if length > 2 * _STEP:
            copy_bytes(out, written + 2 * _STEP, data, at + 2 * _STEP, 2 * _STEP)
    else:
        copy_bytes(out, written, data, at, length)


@inlined
def copy_match(out: Bytes, written: int, offset: int, length: int) -> None:
    """Copy bytes from ``offset`` before, for which there is room, and ``SLACK`` after it."""
    end = written + length
    distance = offset
    if offset < _STEP:
        # What repeats every few bytes repeats at a multiple of that, too, from there on.
        distance = offset * (_STEP // offset + 1)
        for at in range(written, min(written + distance - offset, end)):
            out[at] = out[at - offset]
        written += distance - offset
    copy_bytes(out, written, out, written - distance, _STEP)
    copy_bytes(out, written + _STEP, out, written + _STEP - distance, _STEP)
    written += 2 * _STEP
    while written < end:
        copy_bytes(out, written, out, written - distance, _STEP)
        written += _STEP
