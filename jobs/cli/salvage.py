"""The command ``kafkalog salvage``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kafkalog.jobs.cli.arguments import Json  # noqa: TC001 - typer reads annotations
from kafkalog.jobs.cli.output import exit_if, one_line_errors, print_rows
from kafkalog.jobs.running import print_line

if TYPE_CHECKING:
    from kafkalog.model import TopicPartition
    from kafkalog.streaming.operate.salvage import DamagedPlace

__all__ = ["salvage"]

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
        from kafkalog.streaming.operate.salvage import salvage as act  # noqa: PLC0415

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
    from kafkalog.streaming.operate.places import place_name  # noqa: PLC0415

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
