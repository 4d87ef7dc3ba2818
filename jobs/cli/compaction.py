"""The command ``kafkalog compact``."""

from __future__ import annotations

from contextlib import contextmanager
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
from kafkalog.jobs.cli.retention import shortened_rows
from kafkalog.jobs.running import json_line, print_line
from kafkalog.jobs.units import shown_size
from kafkalog.model import many

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kafkalog.streaming.operate.compact import Compacted, Due

__all__ = ["compact"]


def compact(
    paths: Paths,
    topic: TopicName = None,
    partition: Annotated[
        int | None, typer.Option("--partition", min=0, help="This partition of --topic only.")
    ] = None,
    config: NOT_GIVEN = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Whatever the dirty ratio, and until all is clean that can be."
        ),
    ] = False,
    allow_broker: ALLOW_BROKER = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Keep the last record of each key, in topics with cleanup.policy=compact."""
    if partition is not None and topic is None:
        raise typer.BadParameter("--partition goes with --topic")
    settings = pairs(config)
    with one_line_errors(), _progress_bar(shown=not as_json and not dry_run) as progress:
        from kafkalog.streaming.operate.compact import Wanted  # noqa: PLC0415
        from kafkalog.streaming.operate.compact import compact as act  # noqa: PLC0415

        wanted = Wanted(
            topic=topic,
            partition=partition,
            config=settings,
            forces=force,
            allows_broker=allow_broker,
        )
        done = act(paths, wanted, dry_run=dry_run, progress=progress)
    _report(done, as_json=as_json, dry_run=dry_run)


@contextmanager
def _progress_bar(*, shown: bool) -> Iterator[Callable[[Due, int], object]]:
    """Show a bar for each partition that is cleaned, where a person looks."""
    from rich.console import Console  # noqa: PLC0415

    console = Console(stderr=True)
    if not shown or not console.is_terminal:
        yield lambda *_: None
        return
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    tasks: dict[object, Any] = {}
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bars:

        def tell(due: Due, count: int) -> None:
            key = due.task.topic_partition
            if key not in tasks:
                tasks[key] = bars.add_task(str(key), total=due.bytes)
            bars.advance(tasks[key], count)

        yield tell


def _report(done: Compacted, *, as_json: bool, dry_run: bool) -> None:
    """Print what was found and done, and end with 1 if a person has to decide on something."""
    from kafkalog.streaming.operate.cleaning import keyless_text  # noqa: PLC0415

    rows = _rows(done)
    deleted = [] if done.retention is None else shortened_rows(done.retention)
    problems = [*done.problems, *(done.retention.problems if done.retention else ())]
    if as_json:
        report = {
            "dryRun": dry_run,
            "set": done.set_id,
            "partitions": rows,
            "leftAlone": done.left_alone,
            "removedFiles": done.removed.files,
            "removedBytes": done.removed.bytes,
            "deleted": deleted,
            "problems": problems,
        }
        typer.echo(json_line(report))
    else:
        tell_dry_run(dry_run=dry_run)
        print_rows([{k: row[k] for k in row if k != "keyless"} for row in rows], as_json=False)
        for name, reason in sorted(done.left_alone.items()):
            print_line(f"left alone: {name}: {reason}")
        for each in done.partitions:
            if each.keyless:
                print_line(f"deleted: {keyless_text(each)}")
        for row in (each for each in deleted if each["segments"]):
            print_line(
                f"deleted: {row['topic']}-{row['partition']} starts at offset {row['start']}: "
                f"{many(row['segments'], 'segment')}, {shown_size(row['bytes'])}"
            )
        if done.removed.files:
            print_line(
                f"removed: {many(done.removed.files, 'file')}, {shown_size(done.removed.bytes)}"
            )
    end_with(problems, as_json=as_json)


def _rows(done: Compacted) -> list[dict[str, Any]]:
    return [
        {
            "topic": each.topic_partition.topic,
            "partition": each.topic_partition.partition,
            "path": str(each.path),
            "dirtyRatio": round(each.ratio, 3),
            "rounds": each.rounds,
            "cleanTo": each.clean_to,
            "segmentsBefore": each.segments_before,
            "segments": each.segments,
            "bytesBefore": each.bytes_before,
            "bytes": each.bytes,
            **({"keyless": each.keyless} if each.keyless else {}),
        }
        for each in done.partitions
    ]
