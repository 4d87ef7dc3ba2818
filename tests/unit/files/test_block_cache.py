"""The cache gives what a model of it gives, in bounded memory, whoever uses it at the same time."""

from __future__ import annotations

import os
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kafkalog.files.system import system
from kafkalog.streaming.lookup.block_cache import BlockCache, Handle, block_cache

SHARDS = 16


class ModelShard:
    """LRU with pins: what is pinned stays, of the rest the one used longest ago goes first."""

    def __init__(self) -> None:
        self.entries: OrderedDict[Any, tuple[object, int]] = OrderedDict()
        self.pins: dict[object, int] = {}

    def charge(self) -> int:
        return sum(charge for _, charge in self.entries.values())

    def shrink(self, capacity: int) -> int:
        gone = 0
        for key in list(self.entries):
            if self.charge() <= capacity:
                break
            if not self.pins.get(self.entries[key][0]):
                del self.entries[key]
                gone += 1
        return gone


class CacheMachine(RuleBasedStateMachine):
    """The keys are small numbers, whose hash is themselves, in the top bits: the shard is known."""

    keys = st.tuples(st.sampled_from([0, 7]), st.integers(0, 11)).map(
        lambda pair: (pair[0] << 60) + pair[1] if pair[0] < 8 else 0
    )

    def __init__(self) -> None:
        super().__init__()
        self.per_shard = 20
        self.cache = BlockCache(self.per_shard * SHARDS)
        self.model: dict[int, ModelShard] = {}
        self.pinned: list[Handle] = []
        self.hits = self.misses = self.evictions = 0

    def shard(self, key: object) -> ModelShard:
        return self.model.setdefault((hash(key) & (1 << 64) - 1) >> 60, ModelShard())

    @rule(key=keys, charge=st.integers(1, 15))
    def insert(self, key: int, charge: int) -> None:
        value = object()
        self.pinned.append(self.cache.insert(key, value, charge))
        shard = self.shard(key)
        shard.pins[value] = 1
        if self.per_shard:
            shard.entries.pop(key, None)
            shard.entries[key] = (value, charge)
            self.evictions += shard.shrink(self.per_shard)

    @rule(key=keys)
    def lookup(self, key: int) -> None:
        shard = self.shard(key)
        handle = self.cache.lookup(key)
        known = shard.entries.get(key)
        if known is None:
            assert handle is None
            self.misses += 1
            return
        assert handle is not None
        assert handle.value is known[0]
        self.hits += 1
        shard.pins[known[0]] = shard.pins.get(known[0], 0) + 1
        shard.entries.move_to_end(key)
        self.pinned.append(handle)

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if not self.pinned:
            return
        handle = self.pinned.pop(data.draw(st.integers(0, len(self.pinned) - 1)))
        self.cache.release(handle)
        shard = self.shard(handle.key)
        shard.pins[handle.value] -= 1
        if not shard.pins[handle.value]:
            known = shard.entries.get(handle.key)
            if known is not None and known[0] is handle.value:
                shard.entries.move_to_end(handle.key)
                self.evictions += shard.shrink(self.per_shard)

    @rule(per_shard=st.sampled_from([0, 5, 20, 60]))
    def resize(self, per_shard: int) -> None:
        self.per_shard = per_shard
        self.cache.resize(per_shard * SHARDS)
        self.evictions += sum(shard.shrink(per_shard) for shard in self.model.values())

    @invariant()
    def counts_are_right(self) -> None:
        stats = self.cache.stats()
        shards = self.model.values()
        assert stats.charge == sum(shard.charge() for shard in shards)
        assert stats.entries == sum(len(shard.entries) for shard in shards)
        assert (stats.hits, stats.misses) == (self.hits, self.misses)
        assert stats.evictions == self.evictions


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_an_entry_in_use_stays_though_there_is_no_room_for_it() -> None:
    cache = BlockCache(16)
    first = cache.insert(1, "first", 1)
    second = cache.insert(2, "second", 1)
    assert cache.stats().charge == 2
    cache.release(second)
    assert cache.lookup(2) is None
    with cache.found(1) as value:
        assert value == "first"
    cache.release(first)
    assert cache.stats().evictions == 1


def test_who_uses_a_replaced_entry_keeps_it() -> None:
    cache = BlockCache(1600)
    with cache.found("none") as value:
        assert value is None
    cache.release(cache.insert("k", "old", 1))
    with cache.found("k") as old:
        cache.release(cache.insert("k", "new", 2))
        assert old == "old"
    with cache.found("k") as new:
        assert new == "new"
    assert cache.stats().charge == 2


def test_without_a_capacity_nothing_is_kept() -> None:
    cache = BlockCache()
    handle = cache.insert("k", "v", 1)
    assert handle.value == "v"
    assert cache.lookup("k") is None
    cache.release(handle)
    assert (cache.stats().charge, cache.stats().entries) == (0, 0)


def test_threads_may_share_it() -> None:
    cache = BlockCache(400)

    def work(seed: int) -> None:
        for number in range(1500):
            key = (number * seed) % 61
            with cache.found(key) as value:
                assert value in {None, key}
            cache.release(cache.insert(key, key, 1 + key % 7))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, (3, 5, 7, 11)))
    stats = cache.stats()
    assert stats.hits + stats.misses == 4 * 1500
    assert stats.charge <= 400
    cache.resize(0)
    assert (cache.stats().charge, cache.stats().entries) == (0, 0)


def test_a_forked_process_has_a_cache_of_its_own() -> None:
    """Another thread may hold a lock of the cache at the moment of the fork, for ever then."""
    mine = block_cache()
    mine.resize(16)
    locks = [shard.lock for shard in mine._shards]
    for lock in locks:
        lock.acquire()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            cache = block_cache()
            if cache is not mine and cache.lookup("k") is None:
                code = 0
        finally:
            os._exit(code)
    for lock in locks:
        lock.release()
    assert os.waitpid(child, 0)[1] == 0
    assert block_cache() is mine
    system.memory.pop(BlockCache)
