"""Compaction beside a broker's cleaner: the same log, one core, one cleaner thread.

Ours cleans a copy in a process of its own, bound to one core, twice; the second time counts. The
broker is given one copy more than there are rounds, as partitions of one topic, and cleans them one
after the other; the first does not count: its code is compiled meanwhile. What counts is the CPU
time: of our whole process, and of the broker's cleaner thread alone, as the system counts it.
Java's compiler and garbage collector run in other threads, which is to the broker's favour. The
seconds by the clock are those that the broker logs itself.

Peak memory is all that is resident in our process: interpreter, Arrow and compiled kernels too.
``start`` is what it was before cleaning began.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from benchmarks.machine import facts
from benchmarks.report import COMPACTION, write_section
from benchmarks.session import scratch
from rich.console import Console
from rich.table import Table

from kafkalog.model import many

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.support.kafka import Broker

__all__ = ["main"]

_TOPIC: Final = "rows"
_FACTOR: Final = 2.0
_SEGMENT_BYTES: Final = 64 << 20
_WRITTEN_AT_ONCE: Final = 100_000
_MAP_BYTES: Final = 128 << 20
_SMALL_MAP_BYTES: Final = 16 << 20
_SECONDS: Final = 600
_MIB: Final = 1 << 20

_BROKER: Final = {
    "log.cleaner.backoff.ms": "100",
    "log.cleaner.dedupe.buffer.size": str(_MAP_BYTES),
    "log.cleaner.threads": "1",
}
_THREAD: Final = "kafka-log-clean"
"""The name of the cleaner's thread, as much of it as the system keeps."""

_LOGGED: Final = re.compile(r"MB of log processed in ([\d.,]+) seconds")


class _Run(NamedTuple):
    """What one cleaning took; seconds and MiB, -1 for what nobody measured."""

    seconds: float
    cpu: float
    start: float = -1
    peak: float = -1
    passes: int = 1
    bytes_after: int = -1


def main(argv: Sequence[str] | None = None) -> int:
    """Measure both and print a table; with ``--docs`` put it on the page."""
    asked = _arguments().parse_args(argv)
    if asked.write:
        _write(asked.write, asked.records, asked.keys)
    elif asked.clean:
        print(json.dumps(_clean(asked.clean, asked.map_bytes)))
    else:
        return _compare(asked)
    return 0


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks.compaction", description=__doc__)
    parser.add_argument("--records", type=int, default=4_000_000)
    parser.add_argument("--keys", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--docs", type=Path, help="a folder whose benchmarks.md gets the figures")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--clean", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--map-bytes", type=int, default=_MAP_BYTES, help=argparse.SUPPRESS)
    return parser


def _compare(asked: argparse.Namespace) -> int:
    with scratch() as directory:
        source = directory / "source"
        source.mkdir()
        sizes = ("--records", str(asked.records), "--keys", str(asked.keys))
        _child("--write", str(source), *sizes)
        ours = [_Run(**json.loads(_child("--clean", str(source)))) for _ in range(asked.rounds)]
        small = ("--map-bytes", str(_SMALL_MAP_BYTES))
        low = _Run(**json.loads(_child("--clean", str(source), *small)))
        theirs = list(_by_a_broker(directory, source, asked.rounds + 1))[1:]
    ratio = _median(theirs, "cpu") / _median(ours, "cpu")
    shown = Table(
        *("who", "seconds", "CPU", "passes", "start, MiB", "peak, MiB"),
        title=f"{asked.records:,} records, {asked.keys:,} keys, lz4",
    )
    for column in shown.columns[1:]:
        column.justify = "right"
    for row in _rows(ours, low, theirs):
        shown.add_row(*row)
    console = Console()
    console.print(shown)
    console.print(f"ours is {ratio:.2f} times as fast, by CPU time; wanted: {_FACTOR:g}")
    if asked.docs:
        write_section(asked.docs, COMPACTION, _section(asked, ratio, _rows(ours, low, theirs)))
    return 0


def _rows(ours: list[_Run], low: _Run, theirs: list[_Run]) -> Iterator[tuple[str, ...]]:
    named = (
        ("the broker's cleaner, one thread", theirs),
        (f"kafkalog, map of {_MAP_BYTES // _MIB} MiB", ours),
        (f"kafkalog, map of {_SMALL_MAP_BYTES // _MIB} MiB", [low]),
    )
    for name, runs in named:
        numbers = [_median(runs, one) for one in ("passes", "start", "peak")]
        yield (
            name,
            f"{_median(runs, 'seconds'):.1f} s",
            f"{_median(runs, 'cpu'):.1f} s",
            *("" if number < 0 else f"{number:.0f}" for number in numbers),
        )


def _median(runs: Sequence[_Run], what: str) -> float:
    return statistics.median(getattr(run, what) for run in runs)


def _section(asked: argparse.Namespace, ratio: float, rows: Iterator[tuple[str, ...]]) -> str:
    processor, java = facts()["processor"], facts()["Java"]
    head = ("who", "by the clock", "CPU", "passes", "memory before, MiB", "peak, MiB")
    lines = [head, ("---",) * len(head), *rows]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    verdict = "reached" if ratio >= _FACTOR else "missed"
    return (
        f"{asked.records:,} records of {asked.keys:,} keys, key 10 bytes, value 100 bytes, lz4, "
        f"batches of 16 KiB, segments of {_SEGMENT_BYTES // _MIB} MiB; medians of "
        f"{many(asked.rounds, 'run')}, all code compiled before. CPU is that of our whole process, "
        "bound to one core, and of the broker's cleaner thread alone, as the system counts it for "
        "each; Java's compiler and garbage collector run in other threads and are left out. "
        f"The machine: {processor}, Java {java}.\n\n{table}\n\n"
        f"kafkalog is {ratio:.2f} times as fast as the broker's cleaner by CPU time. The goal is "
        f"{_FACTOR:g} times: {verdict}.\n"
    )


def _child(*arguments: str) -> str:
    """Run this module anew: on Linux a child's peak starts at its parent's, so that stays small."""
    words = [sys.executable, "-m", "benchmarks.compaction", *arguments]
    return subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout


def _write(directory: Path, records: int, keys: int) -> None:
    """Write the log, with a small active segment after all that is to be cleaned."""
    import numpy as np  # noqa: PLC0415
    import pyarrow as pa  # noqa: PLC0415
    from benchmarks.segments import PRODUCER_BATCH_BYTES, PartitionWriter  # noqa: PLC0415

    from kafkalog.checkpoints.broker import (  # noqa: PLC0415
        HIGH_WATERMARK,
        RECOVERY_POINT,
        write_offset_checkpoint,
    )
    from kafkalog.model import TopicPartition  # noqa: PLC0415
    from kafkalog.streaming.records.builder import BatchBuilder, RecordColumns  # noqa: PLC0415
    from kafkalog.streaming.records.compression import Codec  # noqa: PLC0415

    random = np.random.default_rng(7)
    texts = [random.bytes(25).hex().encode() + b" kafkalog " * 5 for _ in range(50_000)]
    values = pa.array(texts)

    def encoded(count: int, later_ms: int) -> bytes:
        chosen = pa.array([b"%010d" % key for key in random.integers(0, keys, count).tolist()])
        columns = RecordColumns.from_arrow(
            timestamps=np.full(count, 1_700_000_000_000 + later_ms, np.int64),
            key=chosen,
            value=values.take(pa.array(random.integers(0, len(texts), count))),
        )
        builder = BatchBuilder(Codec.LZ4, target_bytes=PRODUCER_BATCH_BYTES)
        batches = [*builder.append(columns, np.arange(count, dtype=np.int64)), builder.finish()]
        return b"".join(batch.data for batch in batches if batch)

    place = TopicPartition(_TOPIC, 0)
    writer = PartitionWriter(directory, place, segment_bytes=_SEGMENT_BYTES)
    for first in range(0, records, _WRITTEN_AT_ONCE):
        count = min(_WRITTEN_AT_ONCE, records - first)
        writer.append(np.frombuffer(bytearray(encoded(count, first)), np.uint8))
    rolls = PartitionWriter(directory, place, segment_bytes=PRODUCER_BATCH_BYTES)
    end = rolls.append(np.frombuffer(bytearray(encoded(10, records)), np.uint8))
    for name in (HIGH_WATERMARK, RECOVERY_POINT):
        write_offset_checkpoint(directory, name, {place: end})


def _clean(directory: Path, map_bytes: int) -> dict[str, float]:
    """Clean the log on one core and leave the result aside."""
    from kafkalog.checkpoints.broker import HIGH_WATERMARK, read_offset_checkpoint  # noqa: PLC0415
    from kafkalog.streaming.log.compaction.cleanable import find_cleanable  # noqa: PLC0415
    from kafkalog.streaming.log.compaction.cleaner import clean_log  # noqa: PLC0415
    from kafkalog.streaming.log.compaction.offset_map import OffsetMap  # noqa: PLC0415
    from kafkalog.streaming.log.compaction.transactions import LastRecords  # noqa: PLC0415
    from kafkalog.streaming.options.topic_settings import LogConfig  # noqa: PLC0415

    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    (end,) = read_offset_checkpoint(directory, HIGH_WATERMARK).values()
    folder, output = directory / f"{_TOPIC}-0", directory / "output"
    config = LogConfig.from_mapping({"segment.bytes": str(_SEGMENT_BYTES)})
    start = _peak()

    def clean() -> tuple[int, int]:
        now_ms = int(time.time() * 1000)
        arguments = {"log_start": 0, "log_end": end, "high_watermark": end, "now_ms": now_ms}
        offsets = OffsetMap(map_bytes)
        last_records = LastRecords.read(folder, end_offset=end, now_ms=now_ms)
        clean_to, passes = 0, 0
        while True:  # the swap between passes is left out: they read the same log again
            output.mkdir()
            found = find_cleanable(folder, config, clean_to=clean_to, **arguments)
            assert found is not None
            result = clean_log(
                *(folder, output, found, config),
                offsets=offsets,
                last_records=last_records,
                now_ms=now_ms,
            )
            shutil.rmtree(output)
            clean_to, passes = result.clean_to, passes + 1
            if result.is_complete:
                return passes, result.bytes_after

    clean()  # loads compiled code
    cpu, began = time.process_time(), time.perf_counter()
    passes, bytes_after = clean()
    return _Run(
        *(time.perf_counter() - began, time.process_time() - cpu),
        *(start, _peak(), passes, bytes_after),
    )._asdict()


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _by_a_broker(directory: Path, source: Path, rounds: int) -> Iterator[_Run]:
    """Let a broker clean copies, one after the other."""
    from tests.support.compaction_load import alter_settings  # noqa: PLC0415
    from tests.support.kafka import Topic, serve  # noqa: PLC0415

    from kafkalog.checkpoints.broker import (  # noqa: PLC0415
        HIGH_WATERMARK,
        RECOVERY_POINT,
        read_offset_checkpoint,
        write_offset_checkpoint,
    )
    from kafkalog.model import TopicPartition  # noqa: PLC0415

    for number in range(1, rounds):
        shutil.copytree(source / f"{_TOPIC}-0", source / f"{_TOPIC}-{number}")
    (end,) = read_offset_checkpoint(source, HIGH_WATERMARK).values()
    ends = {TopicPartition(_TOPIC, number): end for number in range(rounds)}
    for name in (HIGH_WATERMARK, RECOVERY_POINT):
        write_offset_checkpoint(source, name, ends)
    topic = Topic(_TOPIC, rounds, {"segment.bytes": str(_SEGMENT_BYTES)})
    options = {"recovers": False, "settings": _BROKER, "quick_start": False}
    with serve(directory / "broker", [source], [topic], **options) as broker:
        begin, cpu = len(broker.log_text), _thread_seconds(broker)
        changes = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
        alter_settings(broker, {_TOPIC: changes})
        for number in range(rounds):
            seconds = _wait_for_line(broker, begin, number)
            now = _thread_seconds(broker)
            yield _Run(seconds, now - cpu)
            cpu = now


def _wait_for_line(broker: Broker, begin: int, number: int) -> float:
    """Wait until the broker has said for the nth time what a cleaning took."""
    deadline = time.monotonic() + _SECONDS
    while len(found := _LOGGED.findall(broker.log_text[begin:])) <= number:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the broker has cleaned {len(found)} partitions")
        time.sleep(0.02)
    return float(found[number].replace(",", ""))


def _thread_seconds(broker: Broker) -> float:
    """Return the CPU time of the broker's cleaner thread."""
    ticks = 0
    for task in Path(f"/proc/{broker.pid}/task").iterdir():
        name, rest = (task / "stat").read_text(encoding="utf-8").split("(", 1)[1].rsplit(")", 1)
        if name.startswith(_THREAD):
            user, system = rest.split()[11:13]
            ticks += int(user) + int(system)
    return ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    raise SystemExit(main())
