"""The commands that look after a set: backup, salvage, retention, compaction."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kafkalog.jobs.cli.arguments import (  # noqa: TC001 - typer reads annotations
    DryRun,
    Json,
    Paths,
    TopicName,
)
from kafkalog.jobs.cli.output import end_with, exit_if, one_line_errors, print_rows, tell_dry_run
from kafkalog.jobs.inspection.units import shown_size
from kafkalog.jobs.process.arguments import ALLOW_BROKER, NOT_GIVEN, pairs
from kafkalog.jobs.process.running import json_line, print_line
from kafkalog.model import many

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.admin.compaction import Compacted, Due
    from kafkalog.streaming.admin.retention import Deleted
    from kafkalog.streaming.admin.salvage import DamagedPlace


__all__ = ["backup", "compact", "delete_records", "retain", "salvage", "shortened_rows"]


# ----------------------------------------------------------------------------------------------
# The command that copies log directories while they are written to.


def backup(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH… TARGET",
            help="The log directories that belong together, then a new folder for the copy.",
        ),
    ],
    as_json: Json = False,
) -> None:
    """Copy log directories while they are written to: the copy can be read, and written."""
    if len(words) < 2:
        raise typer.BadParameter("name the log directories, and then the folder for the copy")
    with one_line_errors():
        from kafkalog.streaming.admin.backup import back_up  # noqa: PLC0415

        done = back_up(words[:-1], words[-1])
    rows = [
        {
            "path": str(each.source),
            "copy": str(each.target),
            "partitions": each.partitions,
            "bytes": each.bytes,
        }
        for each in done.directories
    ]
    print_rows(rows, as_json=as_json)
    if not done.at_one_moment:
        print_line(
            "note: no writer of ours was kept waiting, so each partition is copied as of a moment "
            "of its own; each reaches to its high watermark in the copy, or further",
            err=True,
        )
    missing = [f"the copy is not whole: {problem}" for problem in done.problems]
    end_with(missing, as_json=False)  # rows have no place for that


# ----------------------------------------------------------------------------------------------
# The command ``kafkalog salvage``.


_NAMED: Final = ("topic", "partition", "path")
_PLACE: Final = "t-0@120, or t-0/00000000000000000000.log:4711; may be repeated."


def salvage(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH… [TOPIC-PARTITION…]",
            help="The log directories that belong together, then partitions, all of them if none.",
        ),
    ],
    drop: Annotated[
        list[str] | None,
        typer.Option(metavar="PLACE", help=f"Leave out the damage there: {_PLACE}"),
    ] = None,
    cut: Annotated[
        list[str] | None,
        typer.Option(metavar="PLACE", help=f"Let the log end there: {_PLACE}"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what is damaged and which offsets are lost; drop it, or cut the log there."""
    with one_line_errors():
        from kafkalog.streaming.admin.salvage import salvage as act  # noqa: PLC0415

        paths, partitions = _paths_and_partitions(words)
        done = act(paths, partitions, drop=drop or (), cut=cut or ())
    rows = [_row(place) for place in done.places]
    if not as_json:  # the place's name says them
        rows = [{name: row[name] for name in row if name not in _NAMED} for row in rows]
    print_rows(rows, as_json=as_json)
    for note in done.notes:
        print_line(f"note: {note}", err=True)
    if not done.places and not as_json:
        print_line("nothing is damaged")
    exit_if(place.done is None for place in done.places)


def _paths_and_partitions(words: list[str]) -> tuple[list[str], list[TopicPartition]]:
    """Take the first word as a path, and any later one without a slash as a partition, if it is."""
    from kafkalog.streaming.log.files import parse_partition_directory  # noqa: PLC0415

    paths, partitions = words[:1], []
    for word in words[1:]:
        key = None if "/" in word else parse_partition_directory(word)
        if key is None:
            paths.append(word)
        else:
            partitions.append(key)
    return paths, partitions


def _row(place: DamagedPlace) -> dict[str, Any]:
    from kafkalog.streaming.admin.damage import place_name  # noqa: PLC0415

    damage = place.damage
    return {
        "place": place_name(place.topic_partition, damage),
        "topic": place.topic_partition.topic,
        "partition": place.topic_partition.partition,
        "path": str(place.folder),
        "bytes": damage.size,
        "start": damage.start,
        "end": damage.end,
        "records": damage.records,
        "done": place.done,
        "kept": [str(path) for path in place.kept],
        "reason": damage.reason,
    }


# ----------------------------------------------------------------------------------------------
# The commands that delete the oldest records: ``retain`` and ``delete-records``.


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
        from kafkalog.streaming.admin.retention import retain as act  # noqa: PLC0415

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
        from kafkalog.streaming.admin.retention import delete_records as act  # noqa: PLC0415

        done = act(paths, _offsets(offsets), allows_broker=allow_broker)
    _report(done, as_json=as_json)


def _offsets(text: str) -> dict[TopicPartition, int]:
    from kafkalog.errors import OptionError  # noqa: PLC0415
    from kafkalog.streaming.admin.retention import HIGH_WATERMARK_OFFSET  # noqa: PLC0415
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


# ----------------------------------------------------------------------------------------------
# The command ``kafkalog compact``.


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
        from kafkalog.streaming.admin.compaction import Wanted  # noqa: PLC0415
        from kafkalog.streaming.admin.compaction import compact as act  # noqa: PLC0415

        wanted = Wanted(
            topic=topic,
            partition=partition,
            config=settings,
            forces=force,
            allows_broker=allow_broker,
        )
        done = act(paths, wanted, dry_run=dry_run, progress=progress)
    _report_compaction(done, as_json=as_json, dry_run=dry_run)


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


def _report_compaction(done: Compacted, *, as_json: bool, dry_run: bool) -> None:
    """Print what was found and done, and end with 1 if a person has to decide on something."""
    from kafkalog.streaming.admin.cleaning import keyless_text  # noqa: PLC0415

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
