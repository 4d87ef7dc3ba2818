"""The commands; what they do is in the library, and is imported when one of them is called.

Every command takes log directories, those that belong together as separate words, and ``--json``,
which prints one object a line. It ends with 0 if all is fine, 1 if a problem was found, 2 if it was
called wrongly or cannot work on these directories at all.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kafkalog.jobs.cli.backup import backup
from kafkalog.jobs.cli.output import exit_if, one_line_errors, print_rows, report_upkeep
from kafkalog.jobs.cli.salvage import salvage
from kafkalog.jobs.running import run

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "app",
    "backup",
    "describe",
    "dump",
    "groups",
    "handover",
    "lag",
    "main",
    "offsets",
    "recover",
    "salvage",
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

Paths = Annotated[
    list[str], typer.Argument(metavar="PATH…", help="The log directories that belong together.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")
]
TopicName = Annotated[str | None, typer.Option("--topic", help="This topic only.")]


@app.command(epilog="Example: kafkalog recover /logs --dry-run")
def recover(
    paths: Paths,
    reset_log_start: Annotated[
        bool,
        typer.Option(
            "--reset-log-start",
            help="Forget log starts above the ends of their logs, those of earlier topics.",
        ),
    ] = False,
    accept_os_loss: Annotated[
        bool,
        typer.Option(
            "--accept-os-loss",
            help="Go on without records of flush=os that a loss of power took.",
        ),
    ] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Take back what an unfinished commit left, and bring the ends of all logs into order."""
    with one_line_errors():
        from kafkalog.streaming.operate.recover import recover as act  # noqa: PLC0415

        done = act(
            paths,
            reset_log_start=reset_log_start,
            accept_os_loss=accept_os_loss,
            dry_run=dry_run,
        )
    report_upkeep(done, as_json=as_json, dry_run=dry_run)


@app.command(epilog="Example: kafkalog handover /logs --cluster-id ID --node-id 1")
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
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Make directories that the sink wrote ones that a broker can start on."""
    if (cluster_id is None) != (node_id is None):
        raise typer.BadParameter("--cluster-id and --node-id go together")
    from kafkalog.jobs.arguments import pairs  # noqa: PLC0415

    ids = pairs(topic_id)
    with one_line_errors():
        from kafkalog.streaming.operate.handover import hand_over  # noqa: PLC0415

        done = hand_over(
            paths, topic_ids=ids, cluster_id=cluster_id, node_id=node_id, dry_run=dry_run
        )
    report_upkeep(done, as_json=as_json, dry_run=dry_run)


@app.command(epilog="Example: kafkalog takeover /logs --dry-run")
def takeover(
    paths: Paths,
    abort_open_transactions: Annotated[
        bool, typer.Option("--abort-open-transactions", help="End them as aborted.")
    ] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Let the sink go on behind a broker that has stopped or was killed."""
    with one_line_errors():
        from kafkalog.streaming.operate.handover import take_over  # noqa: PLC0415

        done = take_over(paths, aborts_open=abort_open_transactions, dry_run=dry_run)
    report_upkeep(done, as_json=as_json, dry_run=dry_run)


@app.command(epilog="Example: kafkalog verify /logs")
def verify(
    paths: Paths,
    topic: TopicName = None,
    show_all: Annotated[
        bool, typer.Option("--all", "-v", help="Print sound segments too.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check every batch of every segment, and the indexes; changes nothing."""
    with one_line_errors():
        from kafkalog.jobs.cli.views import summary_of, verify_logs  # noqa: PLC0415

        rows = verify_logs(paths, topic)
    summary = summary_of(rows)
    shown = [row for row in rows if show_all or as_json or row["problem"]]
    if as_json:
        print_rows([*shown, summary], as_json=True)
    else:
        print_rows(shown, as_json=False)
        typer.echo(", ".join(f"{count} {name}" for name, count in summary.items()))
    exit_if([summary["problems"]])


@app.command(epilog="Example: kafkalog topics /logs")
def topics(paths: Paths, as_json: Json = False) -> None:
    """List topics with their ids, partitions and sizes."""
    with one_line_errors():
        from kafkalog.jobs.cli.views import list_topics  # noqa: PLC0415

        rows = list_topics(paths)
    print_rows(rows, as_json=as_json)


@app.command(epilog="Example: kafkalog describe /logs --topic t")
def describe(paths: Paths, topic: TopicName = None, as_json: Json = False) -> None:
    """Show partitions: where they lie, their offsets, segments, sizes and settings."""
    with one_line_errors():
        from kafkalog.jobs.cli.views import describe_partitions  # noqa: PLC0415

        rows = describe_partitions(paths, topic)
    print_rows(rows, as_json=as_json)


@app.command(epilog="Example: kafkalog offsets /logs --json")
def offsets(paths: Paths, topic: TopicName = None, as_json: Json = False) -> None:
    """Show the first and the committed end offset of each partition."""
    with one_line_errors():
        from kafkalog.jobs.cli.views import list_offsets  # noqa: PLC0415

        rows = list_offsets(paths, topic)
    print_rows(rows, as_json=as_json)
    exit_if(row["missing"] for row in rows)


@app.command(epilog="Example: kafkalog dump /logs --topic t --partition 0 --count 3")
def dump(
    paths: Paths,
    topic: Annotated[str, typer.Option(help="The topic.")],
    partition: Annotated[int, typer.Option(min=0, help="The partition.")] = 0,
    start: Annotated[int, typer.Option(min=0, help="The first offset.")] = 0,
    count: Annotated[int, typer.Option(min=1, help="How many batches.")] = 100,
    as_json: Json = False,
) -> None:
    """Show the headers of record batches, from an offset on."""
    with one_line_errors():
        from kafkalog.errors import KafkaLogError  # noqa: PLC0415
        from kafkalog.jobs.cli.views import dump_batches  # noqa: PLC0415

        rows: list[Mapping[str, Any]] = []
        try:
            for row in dump_batches(paths, topic, partition, start, count):
                rows.append(row)  # noqa: PERF402 - an error comes after what lies before it
        except KafkaLogError:
            if rows:
                print_rows(rows, as_json=as_json)
            raise
    print_rows(rows, as_json=as_json)
    exit_if(row["error"] for row in rows)


@app.command(epilog="Example: kafkalog groups /logs")
def groups(paths: Paths, as_json: Json = False) -> None:
    """Show the positions that consumer groups have committed, and how far they are behind."""
    with one_line_errors():
        from kafkalog.jobs.cli.views import list_groups  # noqa: PLC0415

        rows = list_groups(paths)
    print_rows(rows, as_json=as_json)


@app.command(epilog='Example: kafkalog lag /logs --offsets \'{"t":{"0":1}}\'')
def lag(
    paths: Paths,
    offsets: Annotated[str, typer.Option(help='Offsets as a query prints them: {"t":{"0":5}}.')],
    as_json: Json = False,
) -> None:
    """Show how many offsets lie between given ones and the committed ends."""
    with one_line_errors():
        from kafkalog.jobs.cli.views import list_lag  # noqa: PLC0415

        rows = list_lag(paths, offsets)
    print_rows(rows, as_json=as_json)
    exit_if(row["lag"] is None for row in rows)


app.command(epilog="Example: kafkalog backup /logs /backup/monday")(backup)
app.command(epilog="Example: kafkalog salvage /logs t-0")(salvage)


def main() -> None:
    """Run the command line."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    run(app)
