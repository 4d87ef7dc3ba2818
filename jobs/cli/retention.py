"""The commands that delete the oldest records: ``retain`` and ``delete-records``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kafkalog.jobs.arguments import ALLOW_BROKER, NOT_GIVEN, pairs
from kafkalog.jobs.cli.arguments import (  # noqa: TC001 - typer reads annotations
    DryRun,
    Json,
    Paths,
    TopicName,
)
from kafkalog.jobs.cli.output import end_with, one_line_errors, print_rows, tell_dry_run
from kafkalog.jobs.running import json_line, print_line
from kafkalog.jobs.units import shown_size
from kafkalog.model import many

if TYPE_CHECKING:
    from kafkalog.model import TopicPartition
    from kafkalog.streaming.operate.retain import Deleted

__all__ = ["delete_records", "retain", "shortened_rows"]


def retain(
    paths: Paths,
    topic: TopicName = None,
    config: NOT_GIVEN = None,
    allow_broker: ALLOW_BROKER = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Delete segments that have expired by the topics' retention.ms and retention.bytes."""
    settings = pairs(config)
    with one_line_errors():
        from kafkalog.streaming.operate.retain import retain as act  # noqa: PLC0415

        done = act(paths, topic=topic, config=settings, allows_broker=allow_broker, dry_run=dry_run)
    _report(done, as_json=as_json, dry_run=dry_run)


def delete_records(
    paths: Paths,
    offsets: Annotated[
        str,
        typer.Option(help='The new first offsets: {"t":{"0":5,"1":-1}}; -1 deletes all records.'),
    ],
    allow_broker: ALLOW_BROKER = False,
    as_json: Json = False,
) -> None:
    """Delete the records below given offsets, of all partitions that are named at once."""
    with one_line_errors():
        from kafkalog.streaming.operate.retain import delete_records as act  # noqa: PLC0415

        done = act(paths, _offsets(offsets), allows_broker=allow_broker)
    _report(done, as_json=as_json)


def _offsets(text: str) -> dict[TopicPartition, int]:
    from kafkalog.errors import OptionError  # noqa: PLC0415
    from kafkalog.streaming.operate.retain import HIGH_WATERMARK_OFFSET  # noqa: PLC0415
    from kafkalog.streaming.source.offsets import parse_partition_longs  # noqa: PLC0415

    offsets = dict(parse_partition_longs("offsets", text, HIGH_WATERMARK_OFFSET))
    if not offsets:
        raise OptionError(
            f'--offsets is {text}, which names no partition, expected such as {{"t":{{"0":23}}}}'
        )
    return offsets


def _report(done: Deleted, *, as_json: bool, dry_run: bool = False) -> None:
    """Print what was found and done, and end with 1 if a person has to decide on something."""
    rows = shortened_rows(done)
    if as_json:
        report = {
            "dryRun": dry_run,
            "set": done.set_id,
            "partitions": rows,
            "leftAlone": done.left_alone,
            "removedFiles": done.removed.files,
            "removedBytes": done.removed.bytes,
            "problems": done.problems,
        }
        typer.echo(json_line(report))
    else:
        tell_dry_run(dry_run=dry_run)
        print_rows(rows, as_json=False)
        for topic, reason in sorted(done.left_alone.items()):
            print_line(f"left alone: {topic}: {reason}")
        if done.removed.files:
            print_line(
                f"removed: {many(done.removed.files, 'file')}, {shown_size(done.removed.bytes)}"
            )
    end_with(done.problems, as_json=as_json)


def shortened_rows(done: Deleted) -> list[dict[str, Any]]:
    """Return a row for each partition that was looked at."""
    return [
        {
            "topic": each.topic_partition.topic,
            "partition": each.topic_partition.partition,
            "path": str(each.path),
            "startBefore": each.start_before,
            "start": each.start,
            "end": each.end,
            "segments": len(each.segments),
            "bytes": each.bytes,
        }
        for each in done.partitions
    ]
