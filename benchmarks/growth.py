"""How costs grow with the size of a log, and with how many things a directory holds.

Counted in CPU time of this process, outside Spark, so that other work on the machine hardly shows.
Writes ``growth.md`` and its plot.

    python -m benchmarks.growth
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
from benchmarks.machine import facts
from benchmarks.segments import PartitionWriter, commit_ends, encoded_rows
from benchmarks.session import scratch
from matplotlib.figure import Figure
from rich.console import Console

import kafkalog
from kafkalog.model import TopicPartition
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.source.reading import read_split
from kafkalog.streaming.source.schema import RowSchema, source_schema
from kafkalog.streaming.source.stream_control import StreamControl

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kafkalog.streaming.source.planner import LogSplit

__all__ = ["main"]

_TOPIC: Final = "growing"
_REPEATS: Final = 5
_SETTLED_SECONDS: Final = 0.3
"""After it a look takes a file that has not changed for unchanged."""

_ROWS: Final = RowSchema.of(source_schema(include_headers=False))


class _Series(NamedTuple):
    """A cost in ms at each of some sizes."""

    title: str
    sizes: Sequence[int]
    cost: Callable[[Path, int], float]
    note: str


class _Grown(NamedTuple):
    series: _Series
    costs: Sequence[float]

    @property
    def exponent(self) -> float:
        """By which power of the size the cost grows, from the smallest to the largest."""
        sizes, costs = self.series.sizes, self.costs
        return math.log(costs[-1] / costs[0]) / math.log(sizes[-1] / sizes[0])


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and write the page."""
    parser = argparse.ArgumentParser(prog="benchmarks.growth", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes: does it work")
    parser.add_argument("--docs", type=Path, help="where growth.md and its plot go")
    asked = parser.parse_args(argv)
    console = Console()
    grown = []
    for series in _series(quick=asked.quick):
        costs = []
        for size in series.sizes:
            with scratch() as folder:
                costs.append(series.cost(folder, size))
            console.print(f"{series.title}: {size:,}: {costs[-1]:.3g} ms")
        grown.append(_Grown(series, costs))
    docs = asked.docs or (None if asked.quick else Path(__file__).parent.parent / "docs")
    if docs:
        docs.mkdir(parents=True, exist_ok=True)
        _plot(docs / "growth.png", grown)
        (docs / "growth.md").write_text(_page(grown), encoding="utf-8")
    return 0


def _series(*, quick: bool) -> list[_Series]:
    def sizes(*whole: int) -> Sequence[int]:
        return whole[:2] if quick else whole

    return [
        _Series(
            "records read",
            sizes(20_000, 80_000, 320_000, 1_280_000),
            _read_records,
            "a task reads one partition to Arrow, 7 columns, lz4",
        ),
        _Series(
            "megabytes of log before a micro-batch",
            sizes(1, 10, 100, 1000),
            _trigger_by_size,
            "one new batch at the tail: finding the new end and planning what is read",
        ),
        _Series(
            "segments of the partition",
            sizes(10, 100, 1000),
            _trigger_by_segments,
            "the same by the number of segments, all listed when the new end is looked for",
        ),
        _Series(
            "partitions, one of them changed",
            sizes(10, 100, 1000, 10_000),
            _trigger_by_partitions,
            "one new batch in one partition, all others unchanged",
        ),
        _Series(
            "topics, one of them changed",
            sizes(10, 100, 1000),
            _trigger_by_topics,
            "the same with topics of one partition",
        ),
        _Series(
            "partitions at the start of a query",
            sizes(10, 100, 1000),
            _first_look,
            "the first look: every partition is opened",
        ),
        _Series(
            "commits before this one",
            sizes(10, 100, 1000),
            _commit,
            "one more append of 5 rows with a version, 4 partitions, flush=os",
        ),
    ]


def _read_records(folder: Path, rows: int) -> float:
    writer = PartitionWriter(folder, TopicPartition(_TOPIC, 0))
    run = encoded_rows(20_000, target_bytes=256 << 10)
    end = max(writer.append(run) for _ in range(rows // 20_000))
    commit_ends(folder, [(TopicPartition(_TOPIC, 0), end)])
    options = _options(folder)
    control = StreamControl(options)
    splits = control.plan(control.initial(), control.next_end(control.initial(), take_all=True))
    return _least(lambda: _read_all(splits, options))


def _read_all(splits: list[LogSplit], options: ReadOptions) -> None:
    for split in splits:
        for _ in read_split(split, options, _ROWS):
            pass


def _trigger_by_size(folder: Path, megabytes: int) -> float:
    run = encoded_rows(20_000)
    writer = PartitionWriter(folder, TopicPartition(_TOPIC, 0))
    for _ in range(-(-(megabytes << 20) // len(run))):
        end = writer.append(run)
    return _trigger(folder, [(TopicPartition(_TOPIC, 0), end)], writer)


def _trigger_by_segments(folder: Path, segments: int) -> float:
    run = encoded_rows(200)
    writer = PartitionWriter(folder, TopicPartition(_TOPIC, 0), segment_bytes=len(run) * 3 // 2)
    end = max(writer.append(run) for _ in range(segments))
    return _trigger(folder, [(TopicPartition(_TOPIC, 0), end)], writer)


def _trigger_by_partitions(folder: Path, partitions: int) -> float:
    return _trigger_of(folder, [TopicPartition(_TOPIC, each) for each in range(partitions)])


def _trigger_by_topics(folder: Path, topics: int) -> float:
    return _trigger_of(folder, [TopicPartition(f"{_TOPIC}-{each}", 0) for each in range(topics)])


def _trigger_of(folder: Path, places: list[TopicPartition]) -> float:
    return _trigger(folder, _fill(folder, places), PartitionWriter(folder, places[0]))


def _fill(folder: Path, places: list[TopicPartition]) -> list[tuple[TopicPartition, int]]:
    run = encoded_rows(10)
    return [(place, PartitionWriter(folder, place).append(run)) for place in places]


def _trigger(
    folder: Path, ends: list[tuple[TopicPartition, int]], writer: PartitionWriter
) -> float:
    """Append a record again and again, and return what finding and planning it costs at least."""
    commit_ends(folder, ends)
    control = StreamControl(_options(folder))
    at = control.next_end(control.initial(), take_all=False)
    record = encoded_rows(1)
    known = dict(ends)
    taken = []
    for _ in range(_REPEATS):
        time.sleep(_SETTLED_SECONDS)
        control.next_end(at, take_all=False)
        known[ends[0][0]] = writer.append(record)
        commit_ends(folder, known.items())
        began = time.process_time()
        end = control.next_end(at, take_all=False)
        (split,) = control.plan(at, end)
        taken.append((time.process_time() - began) * 1e3)
        assert split.slices[-1].end_offset == known[ends[0][0]]
        at = end
    return min(taken)


def _first_look(folder: Path, partitions: int) -> float:
    commit_ends(folder, _fill(folder, [TopicPartition(_TOPIC, n) for n in range(partitions)]))
    return _least(lambda: StreamControl(_options(folder)).initial())


def _commit(folder: Path, before: int) -> float:
    rows = pa.table({"value": ["x" * 90] * 5})
    versions = itertools.count()

    def append() -> None:
        kafkalog.append(
            folder,
            _TOPIC,
            rows,
            transactional_id="growth",
            version=next(versions),
            options={"numPartitions": "4", "flush": "os"},
        )

    for _ in range(before):
        append()
    return _least(append)


def _options(folder: Path) -> ReadOptions:
    given = {"path": str(folder), "subscribePattern": ".*", "startingOffsets": "earliest"}
    return ReadOptions.parse(given)


def _least(work: Callable[[], object]) -> float:
    """Return the CPU milliseconds of the cheapest of some runs, after one that loads kernels."""
    work()
    taken = []
    for _ in range(_REPEATS):
        began = time.process_time()
        work()
        taken.append((time.process_time() - began) * 1e3)
    return min(taken)


def _plot(path: Path, grown: Sequence[_Grown]) -> None:
    """Draw cost over size, both logarithmic; the dashed line is what linear growth would be."""
    figure = Figure(figsize=(10, 2.9 * -(-len(grown) // 2)), layout="constrained")
    panels = figure.subplots(-(-len(grown) // 2), 2, squeeze=False).ravel()
    for panel, one in zip(panels, grown, strict=False):
        sizes, costs = list(one.series.sizes), list(one.costs)
        panel.loglog(sizes, costs, marker="o", color="#2a6f97")
        panel.loglog(sizes, [costs[0] * n / sizes[0] for n in sizes], "--", color="#b8b8b8")
        panel.set_title(one.series.title, loc="left", fontsize=10)
        panel.set_ylabel("CPU ms")
    for panel in panels[len(grown) :]:
        panel.set_visible(False)
    figure.savefig(path, dpi=110)


def _page(grown: Sequence[_Grown]) -> str:
    parts = [
        "# Growth\n",
        (
            f"CPU time in one process without Spark, the least of {_REPEATS} runs. *Power* says how"
            " the cost grows with the size, from the smallest to the largest: 1 is linear, 0 is no"
            " growth.\n"
        ),
        f"{facts()['processor']}; Python {facts()['Python']}\n",
        "| what grows | from smallest to largest | power | what is measured |",
        "| --- | --- | --- | --- |",
    ]
    for one in grown:
        steps = ", ".join(
            f"{size:,}: {cost:.3g} ms"
            for size, cost in zip(one.series.sizes, one.costs, strict=True)
        )
        parts.append(f"| {one.series.title} | {steps} | {one.exponent:.2f} | {one.series.note} |")
    return "\n".join([*parts, "", "![growth](growth.png)", ""])


if __name__ == "__main__":
    raise SystemExit(main())
