"""Compaction in plain Python over records: what a cleaner must make of a log, batch by batch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

__all__ = ["ModelBatch", "ModelLog", "Transaction"]

_BIT_HORIZON = 0x40


@dataclass(eq=False)
class Transaction:
    """One transaction of a producer; ``aborted`` is None while it is open."""

    producer: int
    first_offset: int
    aborted: bool | None = None


@dataclass(frozen=True)
class ModelBatch:
    """A batch; records are (offset, key, value, time)."""

    base_offset: int
    last_offset: int
    records: tuple[tuple[int, bytes | None, bytes | None, int], ...]
    max_timestamp: int
    attributes: int = 0
    base_timestamp: int = -1
    producer: int = -1
    epoch: int = -1
    sequence: int = -1
    transaction: Transaction | None = None

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & 0x20)

    @property
    def horizon(self) -> int | None:
        return self.base_timestamp if self.attributes & _BIT_HORIZON else None

    def emptied(self) -> ModelBatch:
        attributes = self.attributes & 0x38
        return replace(self, records=(), attributes=attributes, base_timestamp=-1)


@dataclass
class ModelLog:
    """Segments of batches; the last one is active."""

    segments: list[list[ModelBatch]] = field(default_factory=lambda: [[]])
    bases: list[int] = field(default_factory=lambda: [0])
    clean_to: int = 0

    def batches(self) -> list[ModelBatch]:
        return [batch for segment in self.segments for batch in segment]

    def end_of_cleanable(self) -> int:
        """Return the base of the first segment that must not be cleaned."""
        opened = [
            batch.base_offset
            for batch in self.batches()
            if batch.transaction and batch.transaction.aborted is None
        ]
        end = max(self.clean_to, min([*opened, self.bases[-1]]))
        return max(base for base in self.bases if base <= end)

    def clean(self, now: int, retention: int, capacity: int, *, producers_are_active: bool) -> None:
        """Clean one round, and join all that was cleaned."""
        end = self.end_of_cleanable()
        if end <= self.clean_to:
            return
        offsets, latest = self._offsets(end, capacity)
        count = sum(base < latest + 1 for base in self.bases)
        last = self._last_offsets() if producers_are_active else {}
        met: set[Transaction] = set()
        cleaned = []
        for batch in [one for segment in self.segments[:count] for one in segment]:
            result = self._cleaned(batch, offsets, latest, met, now, retention)
            must_stay = batch.last_offset + 1 == end or (
                batch.producer >= 0 and last.get(batch.producer) in _claims(batch)
            )
            if result is not None:
                cleaned.append(result)
            elif must_stay:
                cleaned.append(batch.emptied())
        self.segments[:count] = [cleaned]
        self.bases[:count] = self.bases[:1]
        self.clean_to = latest + 1

    def _offsets(self, end: int, capacity: int) -> tuple[dict[bytes, int], int]:
        offsets: dict[bytes, int] = {}
        latest = -1
        dirty = [one for one in self.batches() if self.clean_to <= one.last_offset < end]
        for batch in dirty:
            if not batch.is_control and not (batch.transaction and batch.transaction.aborted):
                for offset, key, _, _ in batch.records:
                    if key is None or offset < self.clean_to:
                        continue
                    if len(offsets) >= capacity:
                        return offsets, latest
                    offsets[key] = latest = offset
            latest = batch.last_offset
            following = [base for base in self.bases if base > latest]
            if not any(latest < one.last_offset < min(following) for one in dirty):
                latest = min(following) - 1
        return offsets, end - 1

    def _last_offsets(self) -> dict[int, tuple[str, int]]:
        found: dict[int, tuple[int, int]] = {}
        for batch in self.batches():
            if batch.producer < 0 or (batch.is_control and not batch.records):
                continue
            epoch, offset = found.get(batch.producer, (batch.epoch, -1))
            if epoch != batch.epoch:
                offset = -1
            found[batch.producer] = (batch.epoch, offset if batch.is_control else batch.last_offset)
        return {
            producer: ("data", offset) if offset >= 0 else ("epoch", epoch)
            for producer, (epoch, offset) in found.items()
        }

    @staticmethod
    def _cleaned(
        batch: ModelBatch,
        offsets: dict[bytes, int],
        latest: int,
        met: set[Transaction],
        now: int,
        retention: int,
    ) -> ModelBatch | None:
        """Return what stays of a batch that has records left."""
        done = False
        if batch.is_control:
            done = not batch.records or batch.transaction not in met
            kept = batch.records
            if done and batch.horizon is not None and batch.horizon <= now:
                kept = ()
        else:
            if batch.transaction is not None:
                met.add(batch.transaction)
            due = batch.horizon is None or now < batch.horizon
            kept = tuple(
                (offset, key, value, time)
                for offset, key, value, time in batch.records
                if not (batch.transaction and batch.transaction.aborted)
                and (
                    offset > latest
                    or (
                        key is not None
                        and offset >= offsets.get(key, -1)
                        and (value is not None or due)
                    )
                )
            )
        if not kept:
            return None
        gets_horizon = batch.horizon is None and (
            done or any(value is None for _, _, value, _ in kept)
        )
        if kept == batch.records and not gets_horizon:
            return batch
        base = kept[0][3] if batch.horizon is None else batch.horizon
        attributes = batch.attributes
        if gets_horizon:
            base, attributes = now + retention, attributes | _BIT_HORIZON
        return replace(
            batch,
            records=kept,
            attributes=attributes,
            base_timestamp=base,
            max_timestamp=max(time for *_, time in kept),
        )


def _claims(batch: ModelBatch) -> list[tuple[str, int]]:
    claims = [("data", batch.last_offset)]
    return [*claims, ("epoch", batch.epoch)] if batch.is_control else claims
