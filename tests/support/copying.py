"""Run mirrors and replays in this process: their decisions, source and sink, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.compute as pc
from tests.support.micro_batches import CheckpointedQuery

import kafkalog
from kafkalog.jobs.mirroring import KEEPS, Mirror
from kafkalog.model import partition_directory_name
from kafkalog.streaming.log.files import LOG, file_name
from kafkalog.streaming.log.segment import LogSegment
from kafkalog.streaming.log.segment_files import list_base_offsets
from kafkalog.streaming.operate.salvage import salvage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa

    from kafkalog.model import TopicPartition

__all__ = ["cut", "run_mirror", "without_rows_below"]


def run_mirror(mirror: Mirror, step: Callable[[str], None] = lambda _: None) -> None:
    """Copy what there is now; ``step`` may raise between any two things that are done."""
    mirror.check()
    mirror.begin_again()
    step("begun")
    mirror.prepare()
    step("prepared")

    def take(rows: pa.Table, number: int) -> None:
        planned = mirror.plan(number)
        step(f"batch {number} decided")
        if planned is None:
            return
        left = without_rows_below(rows, planned.first)
        options = {**KEEPS, "copiedFrom": planned.copied.to_json()}
        kafkalog.append(mirror.target, None, left, options=options)

    CheckpointedQuery(Path(mirror.checkpoint), mirror.source_options(), take, step).run()
    mirror.finish()
    step("finished")


def without_rows_below(rows: pa.Table, first: Mapping[TopicPartition, int]) -> pa.Table:
    """Leave out the rows below the first offsets of their partitions."""
    for key, offset in first.items():
        is_its = pc.and_(
            pc.equal(rows["topic"], key.topic), pc.equal(rows["partition"], key.partition)
        )
        rows = rows.filter(pc.invert(pc.and_(is_its, pc.less(rows["offset"], offset))))
    return rows


def cut(folder: Path, end: int, partition: int = 0) -> None:
    """Let a log of ``t`` end at the batch with an offset, which is damaged, by a salvage."""
    name = partition_directory_name("t", partition)
    base = max(each for each in list_base_offsets(folder / name) if each <= end)
    with LogSegment(folder / name, base) as segment:
        (batch,) = (each for each in segment.headers(0) if each.offset <= end <= each.last_offset)
    with (folder / name / file_name(base, LOG)).open("r+b") as file:
        file.seek(batch.position + batch.size - 1)
        (byte,) = file.read(1)
        file.seek(batch.position + batch.size - 1)
        file.write(bytes([byte ^ 1]))
    salvage([str(folder)], cut=[f"{name}@{batch.offset}"])
