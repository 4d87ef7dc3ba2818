"""A task's peak memory does not depend on how large the segments are that it reads.

Writes one segment of each size, reads it whole in a process of its own by the code that Spark's
tasks run, and prints the peak of that process: all of its resident memory, interpreter, Arrow and
compiled kernels included. ``start`` is what it was before the first byte was read.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.session import scratch
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

_MEBIBYTES: Final = (64, 256, 1024)
_TOPIC: Final = "rows"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure every size and print a table; 0 if the largest needs no more than the smallest."""
    asked = _arguments().parse_args(argv)
    if asked.write:
        _write(asked.write, asked.mebibytes[0] << 20)
    elif asked.read:
        print(json.dumps(_read(asked.read)))
    else:
        return _compare(asked.mebibytes)
    return 0


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks.segment_memory", description=__doc__)
    parser.add_argument("mebibytes", nargs="*", type=int, default=_MEBIBYTES)
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    return parser


def _compare(sizes: Sequence[int]) -> int:
    shown = Table("segment", "rows", "start", "peak", title="a reading task's memory, in MiB")
    for column in shown.columns:
        column.justify = "right"
    peaks = []
    for size in sizes:
        with scratch() as directory:
            _child("--write", directory, size)
            found = json.loads(_child("--read", directory, size))
        peaks.append(found["peak"])
        shown.add_row(
            f"{size:,}", f"{found['rows']:,}", f"{found['start']:.0f}", f"{found['peak']:.0f}"
        )
    Console().print(shown)
    return 0 if max(peaks) <= peaks[0] * _TOLERANCE else 1


_TOLERANCE: Final = 1.1
"""Allocators and the timing of threads move a peak by a few per cent."""


def _child(what: str, directory: Path, size: int) -> str:
    """Run this module anew: on Linux a child's peak starts at its parent's, so that stays small."""
    words = [sys.executable, "-m", "benchmarks.segment_memory", str(size), what, str(directory)]
    run = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    return run.stdout


def _write(directory: Path, size: int) -> None:
    from benchmarks.segments import commit_ends, encoded_rows, write_partition  # noqa: PLC0415

    from kafkalog.model import TopicPartition  # noqa: PLC0415

    place = TopicPartition(_TOPIC, 0)
    commit_ends(directory, [(place, write_partition(directory, place, encoded_rows(20_000), size))])


def _read(directory: Path) -> dict[str, float]:
    """Read the topic as a batch query's task does; give rows, and MiB before and at the peak."""
    from kafkalog.streaming.options.read_options import ReadOptions  # noqa: PLC0415
    from kafkalog.streaming.source.batch_plan import plan_batch  # noqa: PLC0415
    from kafkalog.streaming.source.reading import read_split  # noqa: PLC0415
    from kafkalog.streaming.source.schema import RowSchema, source_schema  # noqa: PLC0415

    given = {"path": str(directory), "subscribe": _TOPIC, "minPartitions": "1"}
    options = ReadOptions.parse(given)
    schema = RowSchema.of(source_schema(include_headers=False))
    (split,) = plan_batch(options)
    start = _peak()
    rows = sum(batch.num_rows for batch in read_split(split, options, schema))
    return {"rows": rows, "start": start, "peak": _peak()}


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    raise SystemExit(main())
