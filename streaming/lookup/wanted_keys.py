"""The keys of a look-up: some of them, or those between two."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from kafkalog.errors import OptionError
from kafkalog.streaming.lookup import key_kernels as kernels

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kafkalog.streaming.records.arrow_buffers import Integers
    from kafkalog.streaming.records.row_buffers import FoundRecords

__all__ = ["KeySpan", "Keys", "WantedKeys", "wanted_keys"]


class KeySpan(NamedTuple):
    """The keys from ``low`` on and below ``high``, by their bytes; None for no bound."""

    low: bytes = b""
    high: bytes | None = None

    @classmethod
    def with_prefix(cls, prefix: bytes) -> KeySpan:
        """Return the keys that begin with some bytes."""
        stem = prefix.rstrip(b"\xff")
        return cls(prefix, stem[:-1] + bytes([stem[-1] + 1]) if stem else None)

    @classmethod
    def named(cls, prefix: bytes | None, low: bytes | None, high: bytes | None) -> KeySpan:
        """Return the keys with a prefix, or else those between two; without any of them all keys.

        Raises:
            OptionError: a prefix is given with one of the others.
        """
        if prefix is None:
            return cls(low or b"", high)
        if low is not None or high is not None:
            raise OptionError("give prefix, or low and high, and not both")
        return cls.with_prefix(prefix)


Keys = frozenset[bytes] | KeySpan


class WantedKeys(Protocol):
    """Tells the records whose keys are looked for."""

    @property
    def all_found(self) -> bool:
        """Whether the newest record of each key was seen, so that nothing more has to be read."""
        ...

    def mask(self, found: FoundRecords, hashes: Integers) -> NDArray[np.bool_]:
        """Return which records may have one of the keys, bool[n]."""
        ...

    def pick(self, newest: FoundRecords) -> FoundRecords:
        """Leave of the newest records of their keys those that are looked for."""
        ...


def wanted_keys(keys: Keys, seed: int) -> WantedKeys:
    """Make what tells ``keys``; ``seed`` is that of the hashes."""
    return _Between(keys) if isinstance(keys, KeySpan) else _Named(keys, seed)


class _Named:
    def __init__(self, keys: frozenset[bytes], seed: int) -> None:
        self._keys = keys
        self._missing = set(keys)
        lengths = np.array([len(key) for key in keys], np.int64)
        source = np.frombuffer(b"".join(keys) + b"\0", np.uint8)
        self._hashes = np.empty(len(keys), np.int64)
        kernels.hash_keys(source, np.cumsum(lengths) - lengths, lengths, seed, self._hashes)

    @property
    def all_found(self) -> bool:
        return not self._missing

    def mask(self, found: FoundRecords, hashes: Integers) -> NDArray[np.bool_]:
        del found
        if len(self._hashes) == 1:
            same: NDArray[np.bool_] = hashes == self._hashes[0]
            return same
        return np.isin(hashes, self._hashes)

    def pick(self, newest: FoundRecords) -> FoundRecords:
        """Compare bytes: other keys may have the same hash."""
        view = newest.source.data
        spans = zip(newest.key_starts.tolist(), newest.key_lengths.tolist(), strict=True)
        keys = [bytes(view[start : start + length]) for start, length in spans]
        self._missing.difference_update(keys)
        rows = np.array([row for row, key in enumerate(keys) if key in self._keys], np.int64)
        return newest.take(rows)


class _Between:
    all_found = False

    def __init__(self, span: KeySpan) -> None:
        self._bounds = (
            np.frombuffer(span.low + b"\0", np.uint8),
            len(span.low),
            np.frombuffer((span.high or b"") + b"\0", np.uint8),
            -1 if span.high is None else len(span.high),
        )

    def mask(self, found: FoundRecords, hashes: Integers) -> NDArray[np.bool_]:
        del hashes
        inside = np.empty(len(found.offsets), np.uint8)
        arguments = (found.source, found.key_starts, found.key_lengths, *self._bounds, inside)
        if kernels.keys_between(*arguments) == kernels.BROKEN:
            raise AssertionError("a key was found outside of its bytes")
        return inside.view(np.bool_)

    def pick(self, newest: FoundRecords) -> FoundRecords:
        return newest
