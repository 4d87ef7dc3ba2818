"""The commands that look after a set: backup, salvage, retention, compaction."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kafkalog.jobs.cli.arguments import (  # noqa: TC001 - typer reads annotations
    DryRun,
    Json,
    Partition,
    Paths,
    TopicNames,
    Topics,
)
from kafkalog.jobs.cli.output import (
    Loss,
    Yes,
    act_if_agreed,
    end_with,
    exit_if,
    one_line_errors,
    print_list,
    print_report,
    print_rows,
    tell_dry_run,
)
from kafkalog.jobs.inspection.units import shown_size
from kafkalog.jobs.process.arguments import ALLOW_BROKER, NOT_GIVEN, given_settings, select_topics
from kafkalog.jobs.process.running import default_path, print_line
from kafkalog.model import TopicSelection, many

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.admin.compaction import Compacted, Due
    from kafkalog.streaming.admin.retention import Deleted
    from kafkalog.streaming.admin.salvage import DamagedPlace, Salvaged
    from kafkalog.streaming.log.swap import Removed


__all__ = ["backup", "compact", "delete_records", "retain", "salvage", "shortened_rows"]


# ----------------------------------------------------------------------------------------------
# The command that copies log directories while they are written to.


def backup(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH… TARGET",
            help="The log directories that belong together, or the URI of a log in a bucket, then "
            "a new folder for the copy.",
        ),
    ],
    as_json: Json = False,
) -> None:
    """Copy log directories while they are written to: the copy can be read, and written."""
    words = [*default_path(), *words] if len(words) == 1 else words
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


_PathsAndPartitions = Annotated[
    list[str],
    typer.Argument(
        metavar="PATH… [TOPIC-PARTITION…]",
        help="The log directories that belong together, then partitions, all of them if none.",
    ),
]


def salvage(
    words: _PathsAndPartitions,
    drop: Annotated[
        list[str] | None,
        typer.Option(metavar="PLACE", help=f"Leave out the damage there: {_PLACE}"),
    ] = None,
    cut: Annotated[
        list[str] | None,
        typer.Option(metavar="PLACE", help=f"Let the log end there: {_PLACE}"),
    ] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Show what is damaged and which offsets are lost; drop it, or cut the log there."""
    with one_line_errors():
        from kafkalog.jobs.inspection.log_dirs import check_some_log  # noqa: PLC0415
        from kafkalog.streaming.admin.salvage import salvage as act  # noqa: PLC0415

        paths, partitions = _paths_and_partitions(words)
        check_some_log(paths)
        done = act_if_agreed(
            lambda plans: act(paths, partitions, drop=drop or (), cut=cut or (), dry_run=plans),
            _salvage_loss,
            paths,
            yes=yes,
            dry_run=dry_run,
        )
    rows = [_row(place) for place in done.places]
    if not as_json:  # the place's name says them
        rows = [{name: row[name] for name in row if name not in _NAMED} for row in rows]
        tell_dry_run(dry_run=dry_run)
    print_rows(rows, as_json=as_json)
    for note in done.notes:
        print_line(f"note: {note}", err=True)
    if not done.places and not as_json:
        print_line("nothing is damaged")
    exit_if(place.done is None for place in done.places)


def _salvage_loss(plan: Salvaged) -> Loss | None:
    places = [place for place in plan.places if place.done is not None]
    if not places:
        return None
    details = [f"  {_row(each)['place']}: {each.done}: {each.damage.reason}" for each in places]
    keys = {each.topic_partition for each in places}
    return Loss("give up what is damaged", keys, sum(e.damage.size for e in places), details)


def _paths_and_partitions(words: list[str]) -> tuple[list[str], list[TopicPartition]]:
    """Take the first word as a path, and any later one without a slash as a partition, if it is.

    Where the environment names the path, so may the first one be a partition.
    """
    from kafkalog.streaming.log.files import parse_partition_directory  # noqa: PLC0415

    paths, partitions = words[:1], []
    if default_path() and parse_partition_directory(words[0]) and not Path(words[0]).exists():
        paths = default_path()
        words = [*paths, *words]
    for word in words[1:]:
        key = None if "/" in word else parse_partition_directory(word)
        if key is None:
            paths.append(word)
        else:
            partitions.append(key)
    return paths, partitions


def _row(place: DamagedPlace) -> dict[str, Any]:
    from kafkalog.streaming.admin.salvage import place_name  # noqa: PLC0415

    damage = place.damage
    return {
        "place": place_name(place.topic_partition, damage),
        **place.topic_partition._asdict(),
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
# The commands that delete the oldest records: ``retain`` and ``topic trim``.


def retain(
    paths: Paths,
    topic: Topics = None,
    config: NOT_GIVEN = None,
    allow_broker: ALLOW_BROKER = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Delete segments that have expired by the topics' retention.ms and retention.bytes."""
    settings = given_settings(config)
    with one_line_errors():
        from kafkalog.streaming.admin.retention import retain as act  # noqa: PLC0415

        expire = partial(
            act, topics=select_topics(topic), config=settings, allows_broker=allow_broker
        )
        done = act_if_agreed(
            lambda plans: expire(paths, dry_run=plans), _lost_by, paths, yes=yes, dry_run=dry_run
        )
    _report(done, as_json=as_json, dry_run=dry_run)


def delete_records(  # noqa: PLR0917 - what the command line offers
    paths: Paths,
    topic: TopicNames = None,
    partition: Partition = None,
    offset: Annotated[
        str | None,
        typer.Option(
            "--offset", "-o", help="The new first offset, or latest, which deletes all records."
        ),
    ] = None,
    offsets: Annotated[
        str | None,
        typer.Option(
            help='New first offsets of several: {"t":{"0":5,"1":-1}}; -1 deletes all records.'
        ),
    ] = None,
    allow_broker: ALLOW_BROKER = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Delete the records below given offsets, of all partitions that are named at once."""
    if (topic is None or offset is None) == (offsets is None):
        raise typer.BadParameter("say either --topic and --offset, or --offsets")
    with one_line_errors():
        from kafkalog.streaming.admin.retention import delete_records as act  # noqa: PLC0415

        wanted = (
            _offsets(offsets) if offsets else _below(paths, select_topics(topic), partition, offset)
        )
        done = act_if_agreed(
            lambda plans: act(paths, wanted, allows_broker=allow_broker, dry_run=plans),
            _lost_by,
            paths,
            yes=yes,
            dry_run=dry_run,
        )
    _report(done, as_json=as_json, dry_run=dry_run)


def _lost_by(plan: Deleted) -> Loss | None:
    gone = [each for each in plan.partitions if each.start > each.start_before]
    details = [
        f"  {each.topic_partition} starts at {each.start:,} instead of {each.start_before:,}"
        for each in gone
    ]
    keys = [each.topic_partition for each in gone]
    size = sum(each.bytes for each in gone)
    return Loss("delete records, and whole segments of them", keys, size, details) if gone else None


def _below(
    paths: list[str], topics: TopicSelection, partition: int | None, offset: str | None
) -> dict[TopicPartition, int]:
    """Return one new first offset for a partition, or for each of some topics."""
    from kafkalog.errors import OptionError  # noqa: PLC0415
    from kafkalog.jobs.inspection.log_dirs import partitions_of  # noqa: PLC0415
    from kafkalog.streaming.admin.retention import HIGH_WATERMARK_OFFSET  # noqa: PLC0415

    word = (offset or "").strip().lower().replace(",", "")
    is_latest = word in {"latest", "end", str(HIGH_WATERMARK_OFFSET)}
    if not is_latest and not (word.isdecimal() and word.isascii()):
        raise OptionError(f"--offset is {offset!r}, expected an offset, or latest")
    start = HIGH_WATERMARK_OFFSET if is_latest else int(word)
    return dict.fromkeys(partitions_of(paths, topics, partition), start)


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
        report = _report_of(done, rows, dry_run=dry_run)
        print_report({**report, "problems": done.problems})
    else:
        tell_dry_run(dry_run=dry_run)
        print_rows(rows, as_json=False)
        _print_left_alone(done.left_alone)
        _print_removed(done.removed)
    end_with(done.problems, as_json=as_json)


def _report_of(
    done: Deleted | Compacted, rows: Sequence[Mapping[str, Any]], *, dry_run: bool
) -> dict[str, Any]:
    return {
        "dryRun": dry_run,
        "set": done.set_id,
        "partitions": rows,
        "leftAlone": done.left_alone,
        "removedFiles": done.removed.files,
        "removedBytes": done.removed.bytes,
    }


def _print_removed(removed: Removed) -> None:
    if removed.files:
        print_line(f"removed: {many(removed.files, 'file')}, {shown_size(removed.bytes)}")


def _print_left_alone(left_alone: Mapping[str, str]) -> None:
    """Say which topics and partitions were left as they are, and why: of many the first."""
    lines = (f"skipped {name}: {reason}" for name, reason in sorted(left_alone.items()))
    print_list(lines, "that are skipped")


def shortened_rows(done: Deleted) -> list[dict[str, Any]]:
    """Return a row for each partition that was looked at."""
    return [
        {
            **each.topic_partition._asdict(),
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


def compact(  # noqa: PLR0917 - what the command line offers
    paths: Paths,
    topic: Topics = None,
    partition: Partition = None,
    config: NOT_GIVEN = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Compact regardless of the dirty ratio, until all is clean that can be."
        ),
    ] = False,
    allow_broker: ALLOW_BROKER = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Keep the last record of each key, in topics with cleanup.policy=compact."""
    if partition is not None and topic is None:
        raise typer.BadParameter("--partition goes with --topic")
    settings = given_settings(config)
    with one_line_errors():
        from kafkalog.streaming.admin.compaction import Wanted  # noqa: PLC0415
        from kafkalog.streaming.admin.compaction import compact as act  # noqa: PLC0415

        wanted = Wanted(
            topics=select_topics(topic),
            partition=partition,
            config=settings,
            forces=force,
            allows_broker=allow_broker,
        )

        def run(plans: bool) -> Compacted:
            # not around the question: while bars are shown, they stand in for standard error
            with _progress_bar(shown=not as_json and not plans) as progress:
                return act(paths, wanted, dry_run=plans, progress=progress)

        done = act_if_agreed(run, _older_records, paths, yes=yes, dry_run=dry_run)
    _report_compaction(done, as_json=as_json, dry_run=dry_run)


def _older_records(plan: Compacted) -> Loss | None:
    keys = [each.topic_partition for each in plan.partitions]
    what = "keep only the newest record of each key, and delete the older ones"
    return Loss(what, keys) if keys else None


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

    rows = _rows(done, dry_run=dry_run)
    deleted = [] if done.retention is None else shortened_rows(done.retention)
    problems = [*done.problems, *(done.retention.problems if done.retention else ())]
    if as_json:
        report = _report_of(done, rows, dry_run=dry_run)
        print_report({**report, "deleted": deleted, "problems": problems})
    else:
        tell_dry_run(dry_run=dry_run)
        print_rows([{k: row[k] for k in row if k != "keyless"} for row in rows], as_json=False)
        _print_left_alone(done.left_alone)
        gone = [f"deleted: {keyless_text(each)}" for each in done.partitions if each.keyless]
        gone += [
            f"deleted: {row['topic']}-{row['partition']} starts at offset {row['start']}: "
            f"{many(row['segments'], 'segment')}, {shown_size(row['bytes'])}"
            for row in deleted
            if row["segments"]
        ]
        print_list(gone, "that were deleted")
        _print_removed(done.removed)
    end_with(problems, as_json=as_json)


def _rows(done: Compacted, *, dry_run: bool) -> list[dict[str, Any]]:
    """Return a row for each partition; what is left after a round is not known before it."""
    return [
        {
            **each.topic_partition._asdict(),
            "path": str(each.path),
            "dirtyRatio": round(each.ratio, 3),
            "rounds": each.rounds,
            "cleanTo": each.clean_to,
            "segmentsBefore": each.segments_before,
            "segments": None if dry_run else each.segments,
            "bytesBefore": each.bytes_before,
            "bytes": None if dry_run else each.bytes,
            **({"keyless": each.keyless} if each.keyless else {}),
        }
        for each in done.partitions
    ]
