"""Block cache: what a process keeps of files between reads, LevelDB's sharded LRU cache.

A key must say which file it is about, and in which state: name, device and inode alone do not tell
a truncated file from what it was. What a key cannot say, its value has to.

16 shards, each with a lock of its own, chosen by the top bits of a key's hash. A shard has a table
with chains, which doubles, and two lists: entries in use, which stay, and the others, the one used
last at the end. While a shard holds more than its share, the first of these goes. So entries in use
can push it over its share.

Source: LevelDB ``util/cache.cc``.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kafkalog.files.system import forgotten_when_forked, remembered, system

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

__all__ = ["BlockCache", "CacheStats", "Handle", "block_cache"]

_SHARDS: Final = 16
_SHARD_SHIFT: Final = 60
_HASH_MASK: Final = (1 << 64) - 1
_FIRST_BUCKETS: Final = 4


@dataclass(frozen=True, slots=True)
class CacheStats:
    """What a cache has done since its process began, and what it holds now."""

    hits: int
    misses: int
    evictions: int
    """Entries that had to go for others."""
    entries: int
    charge: int
    """Bytes of these."""
    capacity: int
    """Bytes that entries may have; entries in use may go over it."""

    def __str__(self) -> str:
        return (
            f"{self.hits} hits, {self.misses} misses, {self.evictions} evictions, "
            f"{self.entries} entries of {self.charge} bytes (at most {self.capacity})"
        )


class Handle:
    """An entry: it stays in the cache at least until it is released."""

    __slots__ = (
        "charge",
        "hashed",
        "in_cache",
        "key",
        "next",
        "next_hash",
        "prev",
        "refs",
        "value",
    )

    def __init__(self, key: Hashable, hashed: int, value: Any, charge: int) -> None:  # noqa: ANN401
        self.key = key
        self.hashed = hashed
        self.value = value
        self.charge = charge
        self.refs = 0
        self.in_cache = False
        self.next = self.prev = self
        self.next_hash: Handle | None = None


class _Table:
    """Entries by their keys: chains, no longer than one on average."""

    def __init__(self) -> None:
        self._buckets: list[Handle | None] = [None] * _FIRST_BUCKETS
        self.length = 0

    def find(self, key: Hashable, hashed: int) -> Handle | None:
        entry = self._buckets[hashed & len(self._buckets) - 1]
        while entry is not None and (entry.hashed != hashed or entry.key != key):
            entry = entry.next_hash
        return entry

    def add(self, entry: Handle) -> None:
        """Add an entry whose key is not there."""
        self.length += 1
        if self.length > len(self._buckets):
            old = self._buckets
            self._buckets = [None] * (2 * len(old))
            for first in old:
                each = first
                while each is not None:
                    following = each.next_hash
                    self._chain(each)
                    each = following
        self._chain(entry)

    def remove(self, entry: Handle) -> None:
        """Remove an entry that is there."""
        self.length -= 1
        slot = entry.hashed & len(self._buckets) - 1
        before, each = None, self._buckets[slot]
        while each is not entry:
            assert each is not None  # noqa: S101 - a mistake of ours, not of a user's
            before, each = each, each.next_hash
        if before is None:
            self._buckets[slot] = entry.next_hash
        else:
            before.next_hash = entry.next_hash

    def _chain(self, entry: Handle) -> None:
        slot = entry.hashed & len(self._buckets) - 1
        entry.next_hash = self._buckets[slot]
        self._buckets[slot] = entry


class _Shard:
    def __init__(self, capacity: int) -> None:
        self.lock = system.lock()
        self.capacity = capacity
        self.charge = self.hits = self.misses = self.evictions = 0
        self.table = _Table()
        self.unused = Handle(None, 0, None, 0)
        """Head of the list of entries that nobody uses; the one used last comes last."""
        self.in_use = Handle(None, 0, None, 0)

    def lookup(self, key: Hashable, hashed: int) -> Handle | None:
        found = self.table.find(key, hashed)
        if found is None:
            self.misses += 1
            return None
        self.hits += 1
        found.refs += 1
        _move(found, self.in_use)
        return found

    def insert(self, entry: Handle) -> None:
        entry.refs = 1
        if not self.capacity:  # the caller's alone
            return
        old = self.table.find(entry.key, entry.hashed)
        if old is not None:
            self._drop(old)
        entry.in_cache = True
        self.table.add(entry)
        self.charge += entry.charge
        _move(entry, self.in_use)
        self.shrink()

    def release(self, entry: Handle) -> None:
        entry.refs -= 1
        if entry.in_cache and not entry.refs:
            _move(entry, self.unused)
            self.shrink()

    def shrink(self) -> None:
        """Let entries go that nobody uses, the one used longest ago first, as long as need be."""
        while self.charge > self.capacity and self.unused.next is not self.unused:
            self._drop(self.unused.next)
            self.evictions += 1

    def _drop(self, entry: Handle) -> None:
        self.table.remove(entry)
        _unlink(entry)
        entry.in_cache = False
        self.charge -= entry.charge


def _unlink(entry: Handle) -> None:
    entry.prev.next, entry.next.prev = entry.next, entry.prev
    entry.next = entry.prev = entry


def _move(entry: Handle, head: Handle) -> None:
    """Put an entry at the end of a list."""
    _unlink(entry)
    entry.prev, entry.next = head.prev, head
    head.prev.next = head.prev = entry


@forgotten_when_forked
class BlockCache:
    """Values by keys, each with a charge in bytes. Threads may share it."""

    def __init__(self, capacity: int = 0) -> None:
        """Start empty; a capacity of 0 keeps nothing."""
        self._capacity = capacity
        self._shards = [_Shard(-(-capacity // _SHARDS)) for _ in range(_SHARDS)]

    @contextmanager
    def found(self, key: Hashable) -> Iterator[Any]:
        """Give the value of a key, None without one; it stays in the cache meanwhile."""
        handle = self.lookup(key)
        try:
            yield None if handle is None else handle.value
        finally:
            if handle is not None:
                self.release(handle)

    def lookup(self, key: Hashable) -> Handle | None:
        """Return the entry of a key, which has to be released; None without one."""
        hashed = hash(key) & _HASH_MASK
        shard = self._shards[hashed >> _SHARD_SHIFT]
        with shard.lock:
            return shard.lookup(key, hashed)

    def insert(self, key: Hashable, value: Any, charge: int) -> Handle:  # noqa: ANN401
        """Keep a value under a key, instead of what is there, and return its entry.

        The entry has to be released. One that it replaces stays with those who use it.
        """
        hashed = hash(key) & _HASH_MASK
        entry = Handle(key, hashed, value, charge)
        shard = self._shards[hashed >> _SHARD_SHIFT]
        with shard.lock:
            shard.insert(entry)
        return entry

    def release(self, handle: Handle) -> None:
        """Give back what :meth:`lookup` or :meth:`insert` returned, once."""
        shard = self._shards[handle.hashed >> _SHARD_SHIFT]
        with shard.lock:
            shard.release(handle)

    def resize(self, capacity: int) -> None:
        """Change the capacity; what is too much goes."""
        if capacity == self._capacity:
            return
        self._capacity = capacity
        for shard in self._shards:
            with shard.lock:
                shard.capacity = -(-capacity // _SHARDS)
                shard.shrink()

    def stats(self) -> CacheStats:
        """Return what happened so far."""
        shards = self._shards
        return CacheStats(
            hits=sum(shard.hits for shard in shards),
            misses=sum(shard.misses for shard in shards),
            evictions=sum(shard.evictions for shard in shards),
            entries=sum(shard.table.length for shard in shards),
            charge=sum(shard.charge for shard in shards),
            capacity=self._capacity,
        )


def block_cache() -> BlockCache:
    """Return the cache of this process, which keeps nothing until it is given a capacity."""
    return remembered(BlockCache)
