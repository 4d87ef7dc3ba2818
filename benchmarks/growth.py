"""How costs grow with the size of a log, and with how many things a directory holds.

Counted in CPU time of this process, outside Spark, so that other work on the machine hardly shows.
Writes ``growth.md`` and its plot.

    python -m benchmarks.growth
    python -m benchmarks.growth --questions --most 30000   # these alone, up to such a size
    python -m benchmarks.growth --only lag --only verify   # those whose title has such a word
    python -m benchmarks.growth --bucket                   # requests to a log in a bucket alone

The questions are also counted in files opened and folders listed, and in bytes written, which no
other work on the machine changes. The largest size is asked once more in a process of its own, for
the memory that it takes. ``--keep FILE`` keeps what a run has measured of them, and ``--before
FILE`` shows it beside what a later run has.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import struct
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
from benchmarks.machine import facts
from benchmarks.segments import (
    FIRST_TIMESTAMP,
    RUN_INTERVAL_MS,
    PartitionWriter,
    commit_ends,
    encoded_rows,
    postponed,
)
from benchmarks.session import scratch
from matplotlib.figure import Figure
from rich.console import Console
from tests.support.bucket_model import MemoryObjects

import kafkalog
from kafkalog.checkpoints.broker import new_topic_id
from kafkalog.checkpoints.bucket_state import BucketCommit, Extent
from kafkalog.checkpoints.commit_state import PartitionState, TopicState, WriterState
from kafkalog.checkpoints.state_file import load_state
from kafkalog.files.storage import RemoteRoot
from kafkalog.files.system import remembered, system
from kafkalog.jobs.inspection.batches import dump_batches, verify_logs
from kafkalog.jobs.inspection.figures import count_partitions
from kafkalog.jobs.inspection.groups import list_groups
from kafkalog.jobs.inspection.lag import LagMeter, LagTargets
from kafkalog.jobs.inspection.topics import describe_partitions, list_offsets, list_topics
from kafkalog.jobs.maintain import BucketMaintenance, Scope
from kafkalog.jobs.process.running import collect_seldom
from kafkalog.jobs.report.facts import gather
from kafkalog.jobs.sql import SqlSession
from kafkalog.model import ALL_TOPICS, Intervals, TopicPartition, TopicSelection, many
from kafkalog.streaming.groups.administration import GroupWriter
from kafkalog.streaming.log.read.salvage import walk_batches
from kafkalog.streaming.objects import bucket_store
from kafkalog.streaming.objects.bucket_log import Proposal
from kafkalog.streaming.objects.bucket_store import BucketRoot
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.records.builder import assign_offsets
from kafkalog.streaming.source.batch_plan import plan_batch
from kafkalog.streaming.source.planner import Selection
from kafkalog.streaming.source.reading import read_split
from kafkalog.streaming.source.schema import RowSchema, source_schema
from kafkalog.streaming.source.stream_control import StreamControl
from kafkalog.streaming.store.nodes import Node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import TypeAlias

    from kafkalog.checkpoints.bucket_state import BucketState
    from kafkalog.streaming.source.planner import LogSplit

    _Answer: TypeAlias = tuple[float, int, int, int]

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
    parser.add_argument("--questions", action="store_true", help="measure the questions alone")
    parser.add_argument(
        "--only", action="append", default=[], help="a word of the questions to measure, alone"
    )
    parser.add_argument("--bucket", action="store_true", help="measure a log in a bucket alone")
    parser.add_argument("--most", type=int, default=10_000, help="the largest size of a question")
    parser.add_argument("--keep", type=Path, help="where to keep what the questions came to")
    parser.add_argument("--before", type=Path, help="what an earlier run kept, to be shown too")
    parser.add_argument(
        "--ask", nargs=2, metavar=("TITLE", "LOG"), help="ask once, in this process"
    )
    asked = parser.parse_args(argv)
    collect_seldom()  # as a command does
    if asked.ask:
        title, log = asked.ask
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins anew
        before = _status_kib("VmRSS")
        next(each for each in _questions() if each.title == title).ask(log)
        Console().print((_status_kib("VmHWM") - before) >> 10)
        return 0
    docs = asked.docs or (None if asked.quick else Path(__file__).parent.parent / "docs")
    if asked.bucket:
        most = 1000 if asked.quick else 10 * asked.most
        section = _bucket_section([size for size in _COMMITS if size <= most])
        if docs:
            page = docs / "growth.md"
            page.write_text(with_section(page.read_text(encoding="utf-8"), section))
        return 0
    alone = asked.questions or asked.only
    grown = [] if alone else [_measured(each) for each in _series(quick=asked.quick)]
    answers = _answers(20 if asked.quick else asked.most, quick=asked.quick, only=asked.only)
    if asked.keep:
        asked.keep.write_text(json.dumps(answers), encoding="utf-8")
    before = json.loads(asked.before.read_text(encoding="utf-8")) if asked.before else {}
    if docs:
        docs.mkdir(parents=True, exist_ok=True)
        page = docs / "growth.md"
        known = page.read_text(encoding="utf-8") if page.exists() else ""
        if alone:
            first = known.partition(_QUESTIONS)[0]
        else:
            _plot(docs / "growth.png", grown)
            first = _page(grown)
        kept = "".join(known.partition(_FIRST_BATCH if _FIRST_BATCH in known else _BUCKET)[1:])
        page.write_text(first + _answers_page(answers, before) + kept, encoding="utf-8")
    return 0


def _measured(series: _Series) -> _Grown:
    costs = []
    for size in series.sizes:
        with scratch() as folder:
            costs.append(series.cost(folder, size))
        Console().print(f"{series.title}: {size:,}: {costs[-1]:.3g} ms")
    return _Grown(series, costs)


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
            sizes(10, 100, 1000, 10_000),
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


# ----------------------------------------------------------------------------------------------
# Small questions about a large set: what they cost is to follow what is asked.

_QUESTIONS: Final = "\n## Small questions about a large set\n"
_SIZES: Final = (10, 100, 1000, 10_000)
_REPEATS_OF_QUESTIONS: Final = 2
_A_ROW: Final = pa.table({"value": ["x" * 90]})
_VERSIONS: Final = itertools.count()
_OPENED: Counter[str] = Counter()
_IS_COUNTING: list[bool] = []


def _audit(event: str, _: tuple[object, ...]) -> None:
    if _IS_COUNTING and event in {"open", "os.listdir", "os.scandir"}:
        _OPENED[event] += 1


sys.addaudithook(_audit)


@contextmanager
def _counting() -> Iterator[Counter[str]]:
    _OPENED.clear()
    _IS_COUNTING.append(True)
    try:
        yield _OPENED
    finally:
        _IS_COUNTING.clear()


class _Question(NamedTuple):
    """What is asked of a set that ``build`` writes: of so many partitions, segments or groups."""

    title: str
    build: Callable[[Path, int], None]
    ask: Callable[[str], object]
    largest: int = 30_000


def _questions() -> list[_Question]:
    return [
        _Question("partitions: a row is appended", _build_partitions, _append_a_row),
        _Question("ids: a row is appended under one", _build_ids, _append_under_an_id, 20_000),
        _Question("partitions: topics", _build_partitions, lambda log: list_topics([log])),
        _Question("partitions: offsets", _build_partitions, lambda log: list_offsets([log])),
        _Question(
            "partitions: describe", _build_partitions, lambda log: describe_partitions([log])
        ),
        _Question(
            "partitions: dump of one (-p)",
            _build_partitions,
            lambda log: list(dump_batches([log], TopicSelection.of(_TOPIC), 7, 0, None)),
        ),
        _Question(
            "partitions: lag",
            _build_partitions,
            lambda log: _lag(log, LagTargets(offsets=f'{{"{_TOPIC}":{{"7":0}}}}')),
        ),
        _Question("partitions: stats", _build_partitions, _stats, 10_000),
        _Question("partitions: report without --verify", _build_partitions, _report, 10_000),
        _Question("partitions: sql count", _build_partitions, _sql_count),
        _Question("partitions: a stream's first batch is planned", _build_partitions, _first_batch),
        _Question(
            "partitions: two rows of each are read",
            _build_partitions,
            lambda log: kafkalog.read(log, _TOPIC).read_all(),
        ),
        _Question("topics: topics", _build_topics, lambda log: list_topics([log]), 2000),
        _Question("segments: sql count", _build_segments, _sql_count, 50_000),
        _Question(
            "segments: a walk, as of a takeover",
            _build_segments,
            lambda log: sum(1 for _ in walk_batches(Path(log) / f"{_TOPIC}-0", 0)),
            50_000,
        ),
        _Question("segments: verify", _build_segments, lambda log: verify_logs([log]), 50_000),
        _Question("segments: dump --since, a range each", _build_segments, _plan_since, 50_000),
        _Question(
            "groups: groups --group of one",
            _build_groups,
            lambda log: list_groups([log], ["g-7"]),
            2000,
        ),
        _Question(
            "groups: lag of one",
            _build_groups,
            lambda log: _lag(log, LagTargets(groups=["g-7"])),
            2000,
        ),
    ]


def _answers(most: int, *, quick: bool, only: Sequence[str]) -> dict[str, dict[str, _Answer]]:
    """Ask each question of sets of each size; those that ask of the same set share it."""
    questions = [q for q in _questions() if not only or any(word in q.title for word in only)]
    found: dict[str, dict[str, _Answer]] = {each.title: {} for each in questions}
    for build in dict.fromkeys(each.build for each in questions):
        asked = [each for each in questions if each.build == build]
        largest = min(most, max(each.largest for each in asked))
        usual = {n for n in _SIZES if (10 if quick else 100) <= n <= largest}
        sizes = sorted(usual if quick else usual | {largest})
        for size in sizes:
            with scratch() as folder:
                build(folder / "log", size)
                for each in (each for each in asked if size <= each.largest):
                    is_last = not quick and size == max(n for n in sizes if n <= each.largest)
                    answer = _answered(each, str(folder / "log"), measures_memory=is_last)
                    found[each.title][str(size)] = answer
                    Console().print(f"{each.title}: {size:,}: {answer}")
    return found


def _answered(question: _Question, log: str, *, measures_memory: bool) -> _Answer:
    """Return CPU ms, files opened and folders listed, bytes written and MiB taken."""
    question.ask(log)
    taken = []
    for _ in range(_REPEATS_OF_QUESTIONS):
        began = time.process_time()
        question.ask(log)
        taken.append((time.process_time() - began) * 1e3)
    with _counting() as opened:
        before = _bytes_written()
        question.ask(log)
        written = _bytes_written() - before
    peak = _peak_mib(question, log) if measures_memory else 0
    return min(taken), opened.total(), written, peak


def _status_kib(name: str) -> int:
    """Return what the system says of this process's memory (man 5 proc)."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def _bytes_written() -> int:
    """Return how many bytes this process has handed to the system to write (man 5 proc)."""
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar:"))


def _peak_mib(question: _Question, log: str) -> int:
    command = [sys.executable, "-m", "benchmarks.growth", "--ask", question.title, log]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(done.stdout.split()[-1])


def _build_partitions(folder: Path, partitions: int) -> None:
    numbers = pa.array([*range(partitions)] * 2, pa.int32())
    rows = pa.table({"value": ["x" * 90] * len(numbers), "partition": numbers})
    options = {"numPartitions": str(max(partitions, 8)), "flush": "os"}
    kafkalog.append(folder, _TOPIC, rows, options=options)


def _build_ids(folder: Path, ids: int) -> None:
    """Let a state remember so many writers of a topic, as if each had appended once."""
    kafkalog.append(folder, _TOPIC, _A_ROW, options={"flush": "os"})
    state = load_state(folder)
    assert state is not None
    now_ms = time.time_ns() // 1_000_000
    versions = {f"id-{number}": WriterState("", 0, None, now_ms) for number in range(ids)}
    topics = {key: replace(topic, versions=versions) for key, topic in state.topics.items()}
    node = Node({state.member_id: folder})
    assert node.publish(state.following(topics=topics), lambda: None) is None


def _build_topics(folder: Path, topics: int) -> None:
    names = pa.array([f"{_TOPIC}-{number}" for number in range(topics)])
    rows = pa.table({"value": ["x" * 90] * topics, "topic": names})
    kafkalog.append(folder, None, rows, options={"flush": "os", "maxNewTopics": str(topics)})


def _build_segments(folder: Path, segments: int) -> None:
    """Write segments of an older batch and a newer one each, with entries for both."""
    place = TopicPartition(_TOPIC, 0)
    older = encoded_rows(10)
    log = folder / f"{_TOPIC}-0"
    log.mkdir(parents=True)
    (log / "partition.metadata").write_text(f"version: 0\ntopic_id: {new_topic_id()}")
    newer = postponed(older, RUN_INTERVAL_MS)
    for number in range(segments):
        stem, base = f"{number * 20:020d}", number * 20
        for at, batch in ((base, older), (base + 10, newer)):
            assign_offsets(batch, at, 0)
        (log / f"{stem}.log").write_bytes(older.tobytes() + newer.tobytes())
        (log / f"{stem}.index").write_bytes(struct.pack(">ii", 19, len(older)))
        times = FIRST_TIMESTAMP, 9, FIRST_TIMESTAMP + RUN_INTERVAL_MS, 19
        (log / f"{stem}.timeindex").write_bytes(struct.pack(">qiqi", *times))
    commit_ends(folder, [(place, segments * 20)])


def _build_groups(folder: Path, groups: int) -> None:
    _build_partitions(folder, 50)
    ends = {TopicPartition(_TOPIC, number): 1 for number in range(50)}
    for number in range(groups):
        GroupWriter([str(folder)], f"g-{number}").commit(ends)


def _append_a_row(log: str) -> None:
    kafkalog.append(log, _TOPIC, _A_ROW, options={"flush": "os"})


def _append_under_an_id(log: str) -> None:
    version = next(_VERSIONS)
    options = {"flush": "os"}
    kafkalog.append(log, _TOPIC, _A_ROW, transactional_id="x", version=version, options=options)


def _lag(log: str, readers: LagTargets) -> object:
    return LagMeter([log], readers).look()


def _stats(log: str) -> object:
    return count_partitions([log], ALL_TOPICS, {}, lambda *_: None)


def _report(log: str) -> object:
    return gather([log], (), lambda *_: None, checks=False)


def _sql_count(log: str) -> object:
    with SqlSession([log], {}) as session:
        return list(session.run(f"select count(*) from {_TOPIC}"))


def _first_batch(log: str) -> object:
    control = StreamControl(_options(Path(log)))
    start = control.initial()
    return control.plan(start, control.next_end(start, take_all=False))


def _plan_since(log: str) -> object:
    since = Intervals.between(FIRST_TIMESTAMP + RUN_INTERVAL_MS, None)
    return plan_batch(_options(Path(log)), Selection(timestamps=since))


def _answers_page(
    answers: Mapping[str, Mapping[str, _Answer]], before: Mapping[str, Mapping[str, _Answer]]
) -> str:
    lines = [
        _QUESTIONS,
        (
            f"CPU time, the least of {_REPEATS_OF_QUESTIONS} runs after a first one. In brackets:"
            " how often a file was opened or a folder listed, the bytes written where there are"
            " any, and, at the largest size, how much memory a process took more for it. Before a"
            " colon: how many partitions, ids, topics, segments or groups the set has.\n"
        ),
    ]
    if before:
        lines += ["*Before* is what an earlier state of the code took on the same machine.\n"]
        lines += ["| what is asked | before | now |", "| --- | --- | --- |"]
    else:
        lines += ["| what is asked | now |", "| --- | --- |"]
    for title, now in answers.items():
        cells = [_steps(before.get(title, {}))] if before else []
        lines.append(f"| {' | '.join([title, *cells, _steps(now)])} |")
    return "\n".join([*lines, ""])


def _steps(found: Mapping[str, _Answer]) -> str:
    return ", ".join(f"{int(size):,}: {_cell(*answer)}" for size, answer in found.items())


def _cell(cost: float, opened: int, written: int, peak_mib: int) -> str:
    parts = [f"{opened:,}"]
    parts += [f"{written / 1024:,.1f} KiB"] if written else []
    parts += [f"+{peak_mib} MiB"] if peak_mib else []
    return f"{f'{cost:,.0f}' if cost >= 100 else f'{cost:.3g}'} ms ({'; '.join(parts)})"


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


# ----------------------------------------------------------------------------------------------
# A log in a bucket: what is asked of the store, by how many commits there were.


_BUCKET: Final = "\n## A log in a bucket\n"
_FIRST_BATCH: Final = "\n## The first batch of many partitions\n"
"""Comes before it, by hand: ``benchmarks.first_batch`` prints it."""
_COMMITS: Final = (1000, 10_000, 100_000)
_COMMITS_A_ROUND: Final = 600
"""After so many a round of maintenance follows: ten minutes, at a commit a second."""
_PLACE: Final = "s3a://bucket/growing"


class _CountedObjects(MemoryObjects):
    """A store in memory that also counts the bytes that it gives."""

    fetched = 0

    def get(self, name: str) -> bytes | None:
        data = super().get(name)
        self.fetched += len(data or b"")
        return data

    def get_range(self, name: str, position: int, size: int) -> bytes | None:
        data = super().get_range(name, position, size)
        self.fetched += len(data or b"")
        return data


def _bucket_section(sizes: Sequence[int]) -> str:
    """Return what is asked after so many commits, of 20 rows each."""
    now_ms, store, rows = [FIRST_TIMESTAMP], _CountedObjects(), encoded_rows(20).tobytes()
    system.time_ns = lambda: now_ms[0] * 1_000_000  # type: ignore[method-assign]
    system.boottime = lambda: now_ms[0] / 1000  # type: ignore[method-assign]
    bucket_store.open_objects = lambda _: store  # type: ignore[assignment,return-value]
    kafkalog.append(_PLACE, _TOPIC, pa.table({"value": ["x"]}), options=_OF_BUCKET)
    place = RemoteRoot.parse(_PLACE).with_options({"poll_interval_ms": 0})
    found: dict[str, list[str]] = {}
    for size in sizes:
        _grow_bucket(BucketRoot.of(place), rows, now_ms, size)
        for title, cell in _asked_of_bucket(store, size).items():
            found.setdefault(title, []).append(cell)
        Console().print(size, {title: cells[-1] for title, cells in found.items()})
    lines = [
        _BUCKET,
        (
            "What is asked of the store after so many commits of 20 rows to one partition, one a"
            " second, with a round of `run maintain` every ten minutes: requests, and bytes that"
            " come back.\n"
        ),
        f"| what is asked | {' | '.join(f'{size:,} commits' for size in sizes)} |",
        f"| --- |{' --- |' * len(sizes)}",
        *(f"| {title} | {' | '.join(cells)} |" for title, cells in found.items()),
    ]
    return "\n".join([*lines, ""])


def with_section(page: str, section: str) -> str:
    """Return the page with another table about a bucket; what was written behind that stays."""
    first, _, before = page.partition(_BUCKET)
    return first + section + before.rpartition("|\n")[2]


_OF_BUCKET: Final = {"segment.bytes": str(1 << 20), "storage.deleteDelay": "1h"}


def _grow_bucket(root: BucketRoot, rows: bytes, now_ms: list[int], size: int) -> None:
    def propose(state: BucketState) -> Proposal:
        ((key, topic),) = state.topics.items()
        start, _, end, epoch = topic.partitions[0]
        changed = PartitionState(start, end + 20, end + 20, epoch)
        extent = Extent("", 0, len(rows), end, 20, FIRST_TIMESTAMP, 0)
        topics = {key: TopicState(_TOPIC, partitions={0: changed}, settings=topic.settings)}
        commit = BucketCommit(topics=topics, extents={(key, 0): [extent]}, inline=rows)
        return Proposal(commit, is_known_again=False)

    done = 0
    while done < size:
        with root.writing() as log:
            log.follow()
            for _ in range(min(_COMMITS_A_ROUND, size - log.state.number)):
                now_ms[0] += 1000
                log.commit(propose)
            done = log.state.number
        BucketMaintenance(Scope(log=_PLACE), say=lambda _: None).round()


def _asked_of_bucket(store: _CountedObjects, size: int) -> dict[str, str]:
    opened = remembered(bucket_store._OpenStores).by_root  # noqa: SLF001
    place = RemoteRoot.parse(_PLACE)

    def counted(action: Callable[[], object]) -> str:
        store.requests.clear()
        store.fetched = 0
        action()
        kinds = {"create": "write", "put": "write", "get": "read", "list": "listing"}
        asked: Counter[str] = Counter()
        for kind, count in store.requests.items():
            asked[kinds.get(kind, kind)] += count
        said = ", ".join(many(count, kind) for kind, count in sorted(asked.items()))
        return f"{said}, {store.fetched / 1024:.1f} KiB" if store.fetched else said

    def append() -> None:
        kafkalog.append(_PLACE, _TOPIC, pa.table({"value": ["x"]}), options=_OF_BUCKET)

    def look() -> None:
        shown = BucketRoot.of(place).open_store()
        shown.forget_listing()
        shown.committed()

    def seek() -> None:
        rows = {"startingOffsets": f'{{"{_TOPIC}":{{"0":{size * 10}}}}}'}
        rows["endingOffsets"] = f'{{"{_TOPIC}":{{"0":{size * 10 + 1}}}}}'
        kafkalog.read(_PLACE, _TOPIC, columns=["offset"], options=rows).read_all()

    append()
    look()
    found = {"a poll that finds nothing": counted(look), "a commit": counted(append)}
    opened.clear()
    found["an opening"] = counted(look)
    found["a read of one row in the middle"] = counted(seek)
    return found


if __name__ == "__main__":
    raise SystemExit(main())
