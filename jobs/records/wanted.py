"""Which records a person asks for, and what of it decides already what is read.

Partitions, offsets and times reach the plan: whole partitions, segments and batches are not read.
The batches of other producers are not decoded. Keys, headers, expressions and exact times are
looked at record by record, in Arrow.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafkalog.errors import OptionError
from kafkalog.streaming.log.intervals import EVERYTHING, Intervals
from kafkalog.streaming.log.read.slice_reader import NarrowedDecoder
from kafkalog.streaming.source.plan.selection import Selection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafkalog.streaming.log.read.slice_reader import Decoder

__all__ = ["HeaderWanted", "RecordsWanted", "Search", "of_producers"]


@dataclass(frozen=True, slots=True)
class HeaderWanted:
    """A header that a record must have; with any value if ``value`` is None."""

    key: str
    value: bytes | None = None

    @classmethod
    def of(cls, word: str) -> HeaderWanted:
        """Read ``NAME`` or ``NAME=VALUE``."""
        key, separator, value = word.partition("=")
        if not key:
            raise OptionError(f"--header is {word!r}, expected NAME or NAME=VALUE")
        return cls(key, value.encode("utf-8", "surrogateescape") if separator else None)


@dataclass(frozen=True, slots=True)
class Search:
    """A regular expression (RE2's) or a text to look for in some of ``key`` and ``value``."""

    text: str
    columns: tuple[str, ...]
    is_fixed: bool = False
    ignore_case: bool = False

    def check(self) -> None:
        """Try the expression.

        Raises:
            OptionError: it is none.
        """
        try:
            self._matches(pa.array([b""], pa.binary()))
        except pa.ArrowInvalid as error:
            reason = str(error).partition(":")[2].strip() or str(error)
            raise OptionError(f"--regex {self.text!r} is no regular expression: {reason}") from None

    def found(self, batch: pa.RecordBatch) -> pa.Array:
        """Return bool[n]: which records have it. It runs beside other threads."""
        found = [pc.fill_null(self._matches(batch.column(name)), False) for name in self.columns]
        return found[0] if len(found) == 1 else pc.or_(*found)

    def _matches(self, column: pa.Array) -> pa.Array:
        matches = pc.match_substring if self.is_fixed else pc.match_substring_regex
        return matches(column, pattern=self.text, ignore_case=self.ignore_case)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsWanted:
    """Records that have all that is given; times are ms, ends exclusive."""

    partition: int | None = None
    start: int = 0
    end: int | None = None
    since: int | None = None
    until: int | None = None
    key: bytes | None = None
    headers: tuple[HeaderWanted, ...] = ()
    producers: frozenset[int] | None = None
    search: Search | None = None

    @property
    def selection(self) -> Selection:
        """What of it a plan can use."""
        partitions = EVERYTHING if self.partition is None else Intervals.of([self.partition])
        return Selection(
            partitions=partitions,
            offsets=Intervals.between(self.start, self.end),
            timestamps=Intervals.between(self.since, self.until),
        )

    def bounds(self, topics: Sequence[str]) -> dict[str, str]:
        """Return the options of the source that say which partitions are read."""
        if self.partition is None:
            return {"subscribe": ",".join(topics)}
        return {"assign": json.dumps({topic: [self.partition] for topic in topics})}

    def starting(self, group: str | None, *, follow: bool) -> dict[str, str]:
        """Return the options of the source that say where reading starts.

        Raises:
            OptionError: more than one start is given.
        """
        if group is not None:
            if self.start:
                raise OptionError("give --group or --start, not both")
            return {"startingOffsets": f"group:{group}"}
        if follow and self.since is not None:
            return {
                "startingTimestamp": str(self.since),
                "startingOffsetsByTimestampStrategy": "latest",
            }
        return {"startingOffsets": "earliest"}

    def of_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the records of a batch with all columns that are wanted."""
        if self.start and batch.num_rows:
            batch = batch.filter(pc.greater_equal(batch.column("offset"), self.start))
        batch = self._in_time(batch)
        if self.key is not None and batch.num_rows:
            batch = batch.filter(pc.equal(batch.column("key"), pa.scalar(self.key, pa.binary())))
        if self.search is not None and batch.num_rows:
            batch = batch.filter(self.search.found(batch))
        if self.headers and batch.num_rows:
            rows = batch.column("headers").to_pylist()
            batch = batch.filter(pa.array([self._has_headers(row) for row in rows]))
        return batch

    def _in_time(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if (self.since is None and self.until is None) or not batch.num_rows:
            return batch
        micros = batch.column("timestamp").cast(pa.int64())
        inside = pc.is_valid(micros)
        if self.since is not None:
            inside = pc.and_(inside, pc.greater_equal(micros, self.since * 1000))
        if self.until is not None:
            inside = pc.and_(inside, pc.less(micros, self.until * 1000))
        return batch.filter(inside)

    def _has_headers(self, headers: list[dict[str, Any]] | None) -> bool:
        return all(
            any(
                each["key"] == wanted.key and wanted.value in {None, each["value"]}
                for each in headers or ()
            )
            for wanted in self.headers
        )


def of_producers(decoder: Decoder, producers: frozenset[int]) -> Decoder:
    """Return a decoder that passes over the batches of other producers."""
    ids = np.array(sorted(producers), np.int64)
    return NarrowedDecoder(decoder, lambda table: table[np.isin(table.producer_id, ids)])
