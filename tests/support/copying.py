"""Run mirrors and replays in this process: their decisions, source and sink, without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import pyarrow.compute as pc
from tests.support.micro_batches import CheckpointedQuery

import kafkalog
from kafkalog.jobs.mirroring import KEEPS, Mirror
from kafkalog.jobs.pipelines.replay_checkpoint import ReplayCheckpoint
from kafkalog.jobs.pipelines.replaying import Replay, target_of
from kafkalog.jobs.replay import PieceLeft, begin, piece_left
from kafkalog.model import partition_directory_name
from kafkalog.streaming.admin.salvage import salvage
from kafkalog.streaming.log.files import LOG, file_name
from kafkalog.streaming.log.segment import LogSegment
from kafkalog.streaming.log.segments import list_base_offsets
from kafkalog.streaming.source.offsets import to_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa

    from kafkalog.model import TopicPartition

__all__ = ["cut", "run_mirror", "run_replay", "without_rows_below"]


def run_mirror(mirror: Mirror, step: Callable[[str], None] = lambda _: None) -> None:
    """Copy what there is now; ``step`` may raise between any two things that are done."""
    mirror.check()
    mirror.begin_again()
    step("begun")
    mirror.prepare()
    step("prepared")

    def take(read: Callable[[], pa.Table], number: int) -> None:
        planned = mirror.plan(number)
        step(f"batch {number} decided")
        if planned is None:
            return
        left = without_rows_below(read(), planned.first)
        options = {**KEEPS, "copiedFrom": planned.copied.to_json()}
        kafkalog.append(mirror.target, None, left, options=options)

    CheckpointedQuery(Path(mirror.checkpoint), mirror.source_options(), take, step).run()
    mirror.finish()
    step("finished")


def run_replay(
    source: str,
    target: str,
    checkpoint: str,
    *,
    name: str | None = None,
    from_target: bool = False,
    most: int = 2_000_000,
    options: Mapping[str, str] = MappingProxyType({}),
    step: Callable[[str], None] = lambda _: None,
) -> None:
    """Play topic ``t`` up to its end as of now; ``step`` as of :func:`run_mirror`."""
    replay = Replay(log=source, topics=("t",), most=most, options=options)
    into = target_of(target, replay, name)
    replay.check()
    what = {"LOG": source, "TARGET": target, "topics": "t", "--as": name or ""}
    reached = ReplayCheckpoint.open(checkpoint, what)
    held = begin(replay, reached, into, from_target=from_target)
    step("prepared")
    for piece in replay.pieces(reached, held):
        assert piece is not None
        step("piece begun")
        left = piece_left(replay, piece, reached, into)
        step("piece decided")
        if left is not None:
            _play(source, target, left, name, options)
        step("piece taken")
        reached.note_end()
        step("piece ended")


def _play(
    source: str, target: str, left: PieceLeft, name: str | None, given: Mapping[str, str]
) -> None:
    start = {key: at for key, at in left.piece.start.items() if at < left.piece.end[key]}
    end = {key: left.piece.end[key] for key in start}
    options = {
        **given,
        "assign": json.dumps({"t": sorted(key.partition for key in start)}),
        "startingOffsets": json.dumps(to_json(start)),
        "endingOffsets": json.dumps(to_json(end)),
        "includeHeaders": "true",
    }
    rows = kafkalog.read(source, options=options).read_all().drop_columns(["topic", "offset"])
    kept = {} if left.copied is None else {"copiedFrom": left.copied.to_json()}
    kafkalog.append(target, name or "t", rows, options=kept)


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
