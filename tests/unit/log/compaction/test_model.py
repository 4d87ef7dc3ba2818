"""Any log, cleaned any number of times with any memory, is what the model makes of it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.cleaning import NOW, CleanableLog, batch, marker
from tests.support.cleaning_model import ModelBatch, ModelLog, Transaction
from tests.support.transactions import index_bytes

from kafkalog.streaming.log.read.transactions import AbortedTransactions
from kafkalog.streaming.log.segments import LogSegments
from kafkalog.streaming.records.compression import Codec

if TYPE_CHECKING:
    from collections.abc import Sequence

RETENTION = 10_000
FOREVER = 1 << 60
NO_PRODUCER = 9
"""Appends without a producer id; those below are ids, the first three with transactions."""

rows = st.lists(
    st.tuples(
        st.one_of(st.none(), st.sampled_from([b"", b"a", b"b", b"c", b"d", b"e"])),
        st.sampled_from([b"1", b"", None]),
        st.integers(0, 5),
    ),
    min_size=1,
    max_size=4,
)
appends = st.tuples(
    st.just("append"), st.sampled_from([0, 1, 2, 3, NO_PRODUCER]), rows, st.sampled_from(Codec)
)
ends = st.tuples(st.sampled_from(["commit", "abort"]), st.integers(0, 2), st.booleans(), st.none())
others = st.tuples(st.sampled_from(["roll", "gap"]), st.none(), st.none(), st.none())
steps = st.lists(st.one_of(appends, appends, appends, ends, others), max_size=25)
rounds = st.tuples(steps, st.sampled_from([0, 1, RETENTION]), st.integers(1, 8), st.booleans())


@dataclass
class Pair:
    """The same log on the disk and in the model."""

    disk: CleanableLog
    model: ModelLog = field(default_factory=ModelLog)
    next_offset: int = 0
    active: list[bytes] = field(default_factory=list)
    opened: dict[int, Transaction] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    sequences: dict[int, int] = field(default_factory=dict)
    indexed: bool = True
    """Whether the segments have indexes of aborted transactions, as a broker writes them."""
    aborted: list[tuple[int, int, int, int]] = field(default_factory=list)

    def do(self, action: str, producer: Any, given: Any, codec: Any) -> None:
        if action == "append":
            self.append(producer, given, codec)
        elif action in {"commit", "abort"}:
            self.end(producer, action == "abort", bumps=given)
        elif action == "gap":
            self.next_offset += 3
        elif self.active:
            self.roll()

    def append(self, producer: int, given: Sequence[Any], codec: Codec) -> None:
        base, named = self.next_offset, producer != NO_PRODUCER
        times = [NOW + time for *_, time in given]
        fields: dict[str, int] = {}
        transaction = None
        if named:
            sequence = self.sequences.get(producer, 0)
            self.sequences[producer] = sequence + len(given)
            epoch = self.epochs.setdefault(producer, 0)
            fields = {"producer_id": producer, "producer_epoch": epoch, "base_sequence": sequence}
        if named and producer < 3:
            transaction = self.opened.setdefault(producer, Transaction(producer, base))
        attributes = 0x10 if transaction else 0
        self.active.append(
            batch(
                base,
                [(key, value) for key, value, _ in given],
                times=times,
                codec=codec,
                attributes=attributes,
                **fields,
            )
        )
        records = tuple(
            (base + n, key, value, NOW + time) for n, (key, value, time) in enumerate(given)
        )
        self._add(
            ModelBatch(
                base,
                base + len(given) - 1,
                records,
                max(times),
                attributes | codec,
                times[0],
                fields.get("producer_id", -1),
                fields.get("producer_epoch", -1),
                fields.get("base_sequence", -1),
                transaction,
            )
        )

    def end(self, producer: int, aborted: bool, *, bumps: bool) -> None:
        at = self.next_offset
        epoch = self.epochs.get(producer, 0) + bumps
        self.epochs[producer] = epoch
        transaction = self.opened.pop(producer, None)
        if transaction is not None:
            transaction.aborted = aborted
            if aborted:
                stable = min((one.first_offset for one in self.opened.values()), default=at + 1)
                self.aborted.append((producer, transaction.first_offset, at, stable))
        data = marker(at, producer, 0 if aborted else 1, epoch=epoch)
        self.active.append(data)
        record = (at, b"\0\0\0" + bytes([not aborted]), b"\0\0\0\0\0\5", NOW)
        ended = Transaction(producer, at, aborted) if transaction is None else transaction
        self._add(ModelBatch(at, at, (record,), NOW, 0x30, NOW, producer, epoch, -1, ended))

    def roll(self) -> None:
        self.write()
        self.active, self.aborted = [], []
        self.model.segments.append([])
        self.model.bases.append(self.next_offset)

    def write(self) -> None:
        self.disk.folder.mkdir(exist_ok=True)
        path = self.disk.folder / f"{self.model.bases[-1]:020d}.log"
        path.write_bytes(b"".join(self.active))
        if self.indexed and self.aborted:
            path.with_suffix(".txnindex").write_bytes(index_bytes(*self.aborted))

    def clean(self, capacity: int, *, active: bool) -> None:
        self.write()
        self.disk.memory = 24 * (capacity + 1)
        found = self.disk.cleanable(log_end=self.next_offset, high_watermark=self.next_offset)
        assert max(found.end_offset, found.first_dirty_offset) == max(
            self.model.end_of_cleanable(), self.model.clean_to
        )
        self.disk.clean(expiration_ms=FOREVER if active else -FOREVER)
        self.model.clean(self.disk.now, RETENTION, capacity, producers_are_active=active)
        assert self.disk.clean_to == self.model.clean_to

    def compare(self) -> None:
        assert self.disk.bases() == self.model.bases
        fields = [one for one in ModelBatch.__dataclass_fields__ if one != "transaction"]
        found = [{name: getattr(one, name) for name in fields} for one in self.disk.batches()]
        wanted = [{name: getattr(one, name) for name in fields} for one in self.model.batches()]
        assert found == wanted

    def committed(self) -> set[int]:
        """Give the offsets that a reader of committed records gets, below what is open."""
        opened = [one.first_offset for one in self.opened.values()]
        end = min([*opened, self.next_offset])
        reader, offsets = AbortedTransactions(self.disk.folder), set()
        for segment in LogSegments.of(self.disk.folder):
            with segment:
                for chunk in segment.chunks(0):
                    table = chunk.table[chunk.table.last_offset < end]
                    stays = table[~reader.mask(segment, table) & ~table.is_control]
                    offsets |= set(stays.base_offset[stays.count > 0].tolist())
        return offsets

    def expected(self) -> set[int]:
        opened = [one.first_offset for one in self.opened.values()]
        end = min([*opened, self.next_offset])
        return {
            one.base_offset
            for one in self.model.batches()
            if one.records
            and not one.is_control
            and one.last_offset < end
            and not (one.transaction and one.transaction.aborted)
        }

    def _add(self, added: ModelBatch) -> None:
        self.model.segments[-1].append(added)
        self.next_offset = added.last_offset + 1


@pytest.mark.long
@given(st.lists(rounds, min_size=1, max_size=4), st.booleans())
@settings(max_examples=80, deadline=None)
def test_a_log_becomes_what_the_model_makes_of_it(story: list[Any], indexed: bool) -> None:
    folder = Path(mkdtemp(prefix="clean-"))
    try:
        pair = Pair(
            CleanableLog(folder / "t-0", {"delete.retention.ms": str(RETENTION)}, clean_to=0),
            indexed=indexed,
        )
        for acts, passes, capacity, active in story:
            for act in acts:
                pair.do(*act)
            pair.disk.now += passes
            pair.clean(capacity, active=active)
            pair.compare()
            assert pair.committed() == pair.expected()
    finally:
        shutil.rmtree(folder)
