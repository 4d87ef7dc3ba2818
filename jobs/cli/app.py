"""The commands; what they do is in the library, and is imported when one of them is called.

Every command takes log directories, those that belong together as separate words, and ``--json``.
It ends with 0 if all is fine, 1 if a problem was found, 2 if it was called wrongly or cannot work
on these directories at all.
"""

from __future__ import annotations

import json
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kafkalog.streaming.sink.upkeep import Upkeep

__all__ = [
    "app",
    "describe",
    "dump",
    "groups",
    "handover",
    "lag",
    "main",
    "offsets",
    "recover",
    "takeover",
    "topics",
    "verify",
]

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Kafka's log directories without a broker.",
)

_PROBLEM: Final = 1
_BAD_USE: Final = 2
_WIDEST: Final = 10_000

Paths = Annotated[
    list[str], typer.Argument(metavar="PATH…", help="The log directories that belong together.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
TopicName = Annotated[str | None, typer.Option("--topic", help="This topic only.")]


@app.command()
def recover(paths: Paths, as_json: Json = False) -> None:
    """Take back what an unfinished commit left, and bring the ends of all logs into order."""
    with _errors():
        from kafkalog.streaming.sink.upkeep import recover as act  # noqa: PLC0415

        done = act(paths)
    _report_upkeep(done, as_json=as_json)


@app.command()
def handover(
    paths: Paths,
    topic_id: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC=ID", help="The id that the cluster gave to a topic."),
    ] = None,
    cluster_id: Annotated[
        str | None, typer.Option(help="Write meta.properties of this cluster; with --node-id.")
    ] = None,
    node_id: Annotated[int | None, typer.Option(help="The broker's node.id.")] = None,
    as_json: Json = False,
) -> None:
    """Make directories that the sink wrote ones that a broker can start on."""
    if (cluster_id is None) != (node_id is None):
        raise typer.BadParameter("--cluster-id and --node-id go together")
    from kafkalog.jobs.arguments import pairs  # noqa: PLC0415

    ids = pairs(topic_id)
    with _errors():
        from kafkalog.streaming.sink.handover import hand_over  # noqa: PLC0415

        done = hand_over(paths, topic_ids=ids, cluster_id=cluster_id, node_id=node_id)
    _report_upkeep(done, as_json=as_json)


@app.command()
def takeover(paths: Paths, as_json: Json = False) -> None:
    """Let the sink go on behind a broker that has stopped or was killed."""
    with _errors():
        from kafkalog.streaming.sink.handover import take_over  # noqa: PLC0415

        done = take_over(paths)
    _report_upkeep(done, as_json=as_json)


@app.command()
def verify(paths: Paths, topic: TopicName = None, as_json: Json = False) -> None:
    """Check every batch of every segment, and the indexes; changes nothing."""
    with _errors():
        from kafkalog.jobs.cli.views import verify_logs  # noqa: PLC0415

        rows = verify_logs(paths, topic)
    _print(rows, as_json=as_json)
    _exit_if(row["problem"] for row in rows)


@app.command()
def topics(paths: Paths, as_json: Json = False) -> None:
    """List topics with their ids, partitions and sizes."""
    with _errors():
        from kafkalog.jobs.cli.views import list_topics  # noqa: PLC0415

        rows = list_topics(paths)
    _print(rows, as_json=as_json)


@app.command()
def describe(paths: Paths, topic: TopicName = None, as_json: Json = False) -> None:
    """Show partitions: where they lie, their offsets, segments, sizes and settings."""
    with _errors():
        from kafkalog.jobs.cli.views import describe_partitions  # noqa: PLC0415

        rows = describe_partitions(paths, topic)
    _print(rows, as_json=as_json)


@app.command()
def offsets(paths: Paths, topic: TopicName = None, as_json: Json = False) -> None:
    """Show the first and the committed end offset of each partition."""
    with _errors():
        from kafkalog.jobs.cli.views import list_offsets  # noqa: PLC0415

        rows = list_offsets(paths, topic)
    _print(rows, as_json=as_json)
    _exit_if(row["missing"] for row in rows)


@app.command()
def dump(
    paths: Paths,
    topic: Annotated[str, typer.Option(help="The topic.")],
    partition: Annotated[int, typer.Option(min=0, help="The partition.")] = 0,
    start: Annotated[int, typer.Option(min=0, help="The first offset.")] = 0,
    count: Annotated[int, typer.Option(min=1, help="How many batches.")] = 100,
    as_json: Json = False,
) -> None:
    """Show the headers of record batches, from an offset on."""
    with _errors():
        from kafkalog.errors import KafkaLogError  # noqa: PLC0415
        from kafkalog.jobs.cli.views import dump_batches  # noqa: PLC0415

        rows: list[Mapping[str, Any]] = []
        try:
            for row in dump_batches(paths, topic, partition, start, count):
                rows.append(row)  # noqa: PERF402 - an error comes after what lies before it
        except KafkaLogError:
            if rows:
                _print(rows, as_json=as_json)
            raise
    _print(rows, as_json=as_json)
    _exit_if(row["error"] for row in rows)


@app.command()
def groups(paths: Paths, as_json: Json = False) -> None:
    """Show the positions that consumer groups have committed, and how far they are behind."""
    with _errors():
        from kafkalog.jobs.cli.views import list_groups  # noqa: PLC0415

        rows = list_groups(paths)
    _print(rows, as_json=as_json)


@app.command()
def lag(
    paths: Paths,
    offsets: Annotated[str, typer.Option(help='Offsets as a query prints them: {"t":{"0":5}}.')],
    as_json: Json = False,
) -> None:
    """Show how many offsets lie between given ones and the committed ends."""
    with _errors():
        from kafkalog.jobs.cli.views import list_lag  # noqa: PLC0415

        rows = list_lag(paths, offsets)
    _print(rows, as_json=as_json)
    _exit_if(row["lag"] is None for row in rows)


def main() -> None:
    """Run the command line."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    app()


@contextmanager
def _errors() -> Iterator[None]:
    """Say what is wrong in one line instead of a traceback."""
    from kafkalog.errors import (  # noqa: PLC0415
        CommitError,
        CorruptRecordError,
        DataLossError,
        KafkaLogError,
    )

    try:
        yield
    except (CommitError, CorruptRecordError, DataLossError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(_PROBLEM) from error
    except (KafkaLogError, OSError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(_BAD_USE) from error


def _exit_if(problems: Iterable[object]) -> None:
    if any(problems):
        raise typer.Exit(_PROBLEM)


def _report_upkeep(done: Upkeep, *, as_json: bool) -> None:
    rows = [
        {
            "topic": each.topic_partition.topic,
            "partition": each.topic_partition.partition,
            "topicId": None if each.key.startswith(":") else each.key,
            "path": str(each.where.path),
            "start": each.start,
            "end": each.end,
            "corrected": list(each.corrected),
        }
        for each in done.partitions
    ]
    if as_json:
        report = {
            "set": done.set_id,
            "takenBack": done.taken_back,
            "partitions": rows,
            "problems": done.problems,
        }
        typer.echo(json.dumps(report, ensure_ascii=False))
    else:
        for batch in done.taken_back:
            typer.echo(f"taken back: {batch}")
        _print(rows, as_json=False)
        for problem in done.problems:
            typer.echo(f"problem: {problem}", err=True)
    raise typer.Exit(_PROBLEM if done.problems else 0)


def _print(rows: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(list(rows), ensure_ascii=False))
        return
    if not rows:
        typer.echo("nothing found")
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=None, pad_edge=False)
    for name in rows[0]:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*_cells(row.values()))
    console = Console(soft_wrap=True)
    if not console.is_terminal:
        console.width = _WIDEST  # for who reads on: no cell is folded
    console.print(table)


def _cells(values: Iterable[object]) -> list[str]:
    return ["" if value is None or value == [] else str(value) for value in values]
