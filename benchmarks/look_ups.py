"""Look-ups of keys in a long log, and what the cache spares them and a tailing query.

Everything runs in this process, which has imported all that it needs, but for the command. CPU and
bytes are counted by the kernel.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from benchmarks.machine import facts
from benchmarks.measure import timed
from benchmarks.report import LOOK_UPS, write_section
from benchmarks.session import scratch
from tests.support.read_bytes import ReadBytes

import kafkalog
from kafkalog.files.open_file import LocalFile
from kafkalog.files.regular import open_regular
from kafkalog.model import TopicPartition
from kafkalog.streaming.log import indexes as sparse
from kafkalog.streaming.log import segment
from kafkalog.streaming.lookup.block_cache import block_cache
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.source.reading import read_split
from kafkalog.streaming.source.schema import RowSchema
from kafkalog.streaming.source.stream_control import StreamControl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["main"]

_TOPIC: Final = "rows"
_PARTITIONS: Final = 4
_AT_ONCE: Final = 100_000
_VALUE: Final = 1000
_TAIL: Final = 8 << 20
_OFF: Final = {"cache.memory": 0}


class _Cost(NamedTuple):
    cpu: float
    bytes: int

    def __str__(self) -> str:
        return f"{self.cpu:.2f} s | {self.bytes / 1e6:,.1f} MB"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; with ``--docs`` put it on the page."""
    parser = argparse.ArgumentParser(prog="benchmarks.look_ups", description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=10, help="of the log, at most 12")
    parser.add_argument("--look-ups", type=int, default=1000)
    parser.add_argument("--partitions", type=int, default=1000, help="of the tailing query")
    parser.add_argument("--docs", type=Path, help="a folder whose benchmarks.md gets the figures")
    parser.add_argument("--quick", action="store_true", help="whether it works, not how fast")
    asked = parser.parse_args(argv)
    if asked.quick:
        asked.gigabytes, asked.look_ups, asked.partitions = 0.02, 20, 10
    if asked.gigabytes > 12:
        parser.error("at most 12 GB are written")
    with scratch() as directory:
        lines = _look_ups(directory / "log", asked)
        lines += _tailing(directory / "many", asked.partitions)
    text = "\n".join(lines) + "\n"
    print(text)
    if asked.docs:
        write_section(asked.docs, LOOK_UPS, text)
    return 0


def _write(log: Path, size: int) -> int:
    """Write the log; gives the end of its first partition."""
    draw = np.random.default_rng(7)
    half = draw.integers(0, 256, (_AT_ONCE, _VALUE // 2), np.uint8)
    values = np.concatenate([half, np.full_like(half, 107)], axis=1)
    column = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(_VALUE), _AT_ONCE, [None, pa.py_buffer(values)]
    ).cast(pa.binary())
    options = {"numPartitions": _PARTITIONS, "compression.type": "lz4", "flush": "os"}
    end = 0
    while sum(path.stat().st_size for path in log.glob("*/*.log")) < size:
        names = pa.array([b"%010d" % n for n in draw.integers(0, 10**9, _AT_ONCE)])
        rows = pa.table({"key": names, "value": column})
        end = kafkalog.append(log, _TOPIC, rows, options=options).end_offsets[
            TopicPartition(_TOPIC, 0)
        ]
    return end


def _look_ups(log: Path, asked: argparse.Namespace) -> list[str]:
    end = _write(log, int(asked.gigabytes * 1e9))
    keys = _keys(log, end - _TAIL * 2 // _VALUE, end)
    old = _keys(log, end // 2, end // 2 + 100)
    get = partial(kafkalog.get, log, _TOPIC)
    get(keys[0])
    near = keys[:: max(1, len(keys) // 50)]
    times = {
        who: sorted(timed(partial(get, key, options=options)) * 1e3 for key in near)
        for who, options in (("without", _OFF), ("with", {}))
    }
    command = [
        sys.executable,
        "-c",
        "from kafkalog.jobs.cli.app import main; main()",
        "get",
        str(log),
        "--topic",
        _TOPIC,
    ]
    command += ["--key", near[0].decode(), "--json"]
    commands = sorted(timed(lambda: subprocess.run(command, check=True, stdout=-3)) for _ in "123")
    many = [keys[n % len(keys)] for n in range(0, 7 * asked.look_ups, 7)]
    each: dict[str, Callable[..., Any]] = {
        f"{asked.look_ups:,} keys near the end": lambda **given: [
            get(key, **given) for key in many
        ],
        "a key amid the log": lambda **given: get(old[0], **given),
        "a key that is not there": lambda **given: get("none", partition=0, **given),
    }
    head = (
        f"{asked.gigabytes:g} GB, {_PARTITIONS} partitions, values of {_VALUE} bytes, lz4 "
        f"({facts()['processor']}). Of keys in the last 8 MiB of a partition, one by one: median "
        f"{_middle(times['without']):.0f} ms, slowest {times['without'][-1]:.0f} ms without the "
        f"cache; median {_middle(times['with']):.0f} ms with it. The command: "
        f"{_middle(commands):.2f} s (`python -m benchmarks.look_ups`)."
    )
    names = (
        "| look-ups | CPU without the cache | read | CPU with it, at first | read | again | read |"
    )
    lines = [head, "", names, "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for name, work in each.items():
        block_cache().resize(0)
        costs = [_cost(partial(work, options=_OFF)), _cost(work), _cost(work)]
        lines.append(f"| {name} | " + " | ".join(map(str, costs)) + " |")
    return [*lines, "", f"The cache then: {kafkalog.cache_stats()}."]


def _keys(log: Path, start: int, end: int) -> list[bytes]:
    others = {str(number): 0 for number in range(1, _PARTITIONS)}
    bounds = {"startingOffsets": max(0, start), "endingOffsets": end}
    options = {name: json.dumps({_TOPIC: {"0": at} | others}) for name, at in bounds.items()}
    rows = kafkalog.read(log, _TOPIC, columns=["key"], options=options).read_all()
    return rows.column("key").to_pylist()


def _tailing(log: Path, partitions: int) -> list[str]:
    """Follow many partitions, of which a tenth gets a record before each look."""
    rows = {"key": ["k"] * partitions, "value": ["v" * 200] * partitions}
    rows["partition"] = pa.array(range(partitions), pa.int32())
    whole = pa.table(rows)
    options = {"numPartitions": partitions, "flush": "os"}
    kafkalog.append(log, _TOPIC, whole, options=options)
    control = StreamControl(ReadOptions.parse({"path": str(log), "subscribe": _TOPIC}))
    parsed = ReadOptions.parse({"path": str(log), "subscribe": _TOPIC})
    at = control.initial()
    costs: dict[str, list[_Cost]] = {"without": [], "with": []}

    def look() -> None:
        nonlocal at
        end = control.next_end(at, take_all=True)
        for split in control.plan(at, end):
            for _ in read_split(split, parsed, RowSchema.named()):
                pass
        at = end

    for turn in range(20):
        part = whole.take(list(range(turn % 10, partitions, 10)))
        kafkalog.append(log, _TOPIC, part, options=options)
        kept = turn % 4 >= 2
        with _kept_files() if kept else _nothing():
            if kept and turn % 4 == 2:
                look()  # opens
            else:
                costs["with" if kept else "without"].append(_cost(look))
    best = {who: min(found) for who, found in costs.items()}
    without, kept = best["without"], best["with"]
    text = (
        f"A tailing query over {partitions:,} partitions, a tenth of which got a record: "
        f"{without.cpu * 1e3:.0f} ms of CPU and {without.bytes / 1e3:,.0f} KB read for a "
        f"micro-batch; {kept.cpu * 1e3:.0f} ms and {kept.bytes / 1e3:,.0f} KB if all segments and "
        "indexes stay open."
    )
    return ["", text]


class _Kept(LocalFile):
    """A file that is not closed."""

    def close(self) -> None:
        """Leave it open."""


_FILES: Final[dict[tuple[str, int, int], _Kept]] = {}


def _open_kept(path: Path | str) -> _Kept:
    status = Path(path).stat()
    key = (str(path), status.st_dev, status.st_ino)
    if key not in _FILES:
        _FILES[key] = _Kept(open_regular(path))
    return _FILES[key]


@contextmanager
def _kept_files() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in (segment, sparse):
            patch.setattr(module, "open_file", _open_kept)
        yield


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def _cost(work: Callable[[], object]) -> _Cost:
    before = time.process_time()
    with ReadBytes() as read:
        work()
    return _Cost(time.process_time() - before, read.count)


def _middle(values: Sequence[float]) -> float:
    return values[len(values) // 2]


if __name__ == "__main__":
    raise SystemExit(main())
