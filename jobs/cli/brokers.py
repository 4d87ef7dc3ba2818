"""The commands that bring log directories into order: ``recover`` and those about brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from kafkalog.jobs.cli.arguments import DryRun, Json, Paths  # noqa: TC001 - typer reads annotations
from kafkalog.jobs.cli.output import (
    end_with,
    one_line_errors,
    print_list,
    print_report,
    print_rows,
    tell_dry_run,
)
from kafkalog.jobs.process.arguments import pairs
from kafkalog.jobs.process.running import print_line

if TYPE_CHECKING:
    from kafkalog.streaming.admin.recovery import RecoveryReport
    from kafkalog.streaming.store.recovery.unsynced import LostOffsets

__all__ = ["handover", "recover", "takeover"]

ClusterMetadata: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="DIR",
        help="Of several nodes: a broker's metadata.log.dir, if it is none of its log directories.",
    ),
]


def recover(
    paths: Paths,
    reset_log_start: Annotated[
        bool,
        typer.Option(
            "--reset-log-start",
            help="Forget log starts above the ends of their logs, those of earlier topics.",
        ),
    ] = False,
    accept_lost_tail: Annotated[
        bool,
        typer.Option(
            "--accept-os-loss",
            help="Continue without records of flush=os that a loss of power took.",
        ),
    ] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Roll back what an unfinished commit left, and bring the ends of all logs into order."""
    with one_line_errors():
        from kafkalog.streaming.admin.recovery import recover as act  # noqa: PLC0415

        done = act(
            paths,
            reset_log_start=reset_log_start,
            accept_lost_tail=accept_lost_tail,
            dry_run=dry_run,
        )
    _report(done, as_json=as_json, dry_run=dry_run)


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
    cluster_metadata: ClusterMetadata = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Make directories that the sink wrote ones that a broker can start on."""
    if (cluster_id is None) != (node_id is None):
        raise typer.BadParameter("--cluster-id and --node-id go together")
    ids = pairs(topic_id)
    with one_line_errors():
        from kafkalog.streaming.admin.broker.handover import hand_over  # noqa: PLC0415

        done = hand_over(
            paths,
            topic_ids=ids or None,
            cluster_id=cluster_id,
            node_id=node_id,
            cluster_metadata=cluster_metadata or (),
            dry_run=dry_run,
        )
    _report(done, as_json=as_json, dry_run=dry_run)


_AbortOpenTransactions = Annotated[
    bool,
    typer.Option(
        "--abort-open-transactions",
        help="End them: as their coordinator decided, and what it had not decided as aborted.",
    ),
]
_TransactionState = Annotated[
    list[str] | None,
    typer.Option(metavar="DIR", help="Where more of __transaction_state lies, as a copy."),
]
_AbortProducer = Annotated[
    list[int] | None,
    typer.Option(
        metavar="ID", help="Abort what is open of a producer id that no coordinator tells of."
    ),
]
_PartitionCounts = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TOPIC=N",
        help="How many partitions a topic has of which a broker of several held some.",
    ),
]


def takeover(
    paths: Paths,
    abort_open_transactions: _AbortOpenTransactions = False,
    transaction_state: _TransactionState = None,
    abort_producer: _AbortProducer = None,
    partitions: _PartitionCounts = None,
    cluster_metadata: ClusterMetadata = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Let the sink continue after a broker that has stopped or was killed."""
    given = pairs(partitions)
    if wrong := [each for each in given.values() if not each.isascii() or not each.isdigit()]:
        raise typer.BadParameter(f"--partitions takes TOPIC=N, and {wrong[0]!r} is no number")
    counts = {topic: int(each) for topic, each in given.items()}
    with one_line_errors():
        from kafkalog.jobs.inspection.log_dirs import check_some_log  # noqa: PLC0415
        from kafkalog.streaming.admin.broker.handover import take_over  # noqa: PLC0415

        check_some_log(paths)
        done = take_over(
            paths,
            aborts_open=abort_open_transactions,
            transaction_state=transaction_state or (),
            abort_producers=abort_producer or (),
            partitions=counts,
            cluster_metadata=cluster_metadata or (),
            dry_run=dry_run,
        )
    _report(done, as_json=as_json, dry_run=dry_run)


def _report(done: RecoveryReport, *, as_json: bool, dry_run: bool = False) -> None:
    """Print what was found and done, and end with 1 if a person has to decide on something."""
    rows = _partition_rows(done)
    if as_json:
        report = {
            "dryRun": dry_run,
            "set": done.set_id,
            "takenBack": done.rolled_back,
            "reset": done.reset,
            "aborted": done.aborted,
            "committed": done.committed,
            "lost": [_offsets(each) for each in done.lost],
            "writers": done.writers if done.lost else [],
            "written": done.written,
            "partitions": rows,
            "problems": done.problems,
        }
        print_report(report)
    else:
        tell_dry_run(dry_run=dry_run)
        would = "would be " if dry_run else ""
        for batch in done.rolled_back:
            print_line(f"{would}rolled back: {batch}")
        print_list((f"{would}reset: {line}" for line in done.reset), "that are reset")
        print_list((f"{would}aborted: {line}" for line in done.aborted), "that are aborted")
        print_list((f"{would}committed: {line}" for line in done.committed), "that are committed")
        _print_lost(done)
        print_rows(rows, as_json=False, spare=("topicId", "corrected"), share=2)
        print_list((f"{would}written: {line}" for line in done.written), "that are written")
    end_with(done.problems, as_json=as_json)


def _partition_rows(done: RecoveryReport) -> list[dict[str, Any]]:
    return [
        {
            **each.topic_partition._asdict(),
            "topicId": None if each.key.startswith(":") else each.key,
            "path": str(each.where.path),
            "start": each.committed.log_start,
            "end": each.end,
            "corrected": list(each.corrected),
        }
        for each in done.partitions
    ]


def _offsets(lost: LostOffsets) -> dict[str, object]:
    topic, partition = lost.where.topic_partition
    return {"topic": topic, "partition": partition, "start": lost.start, "end": lost.end}


def _print_lost(done: RecoveryReport) -> None:
    """Say which offsets are gone, and what that means for writers and readers."""
    lost = (f"gone: {each.where.topic_partition} [{each.start}, {each.end})" for each in done.lost)
    print_list(lost, "that are gone")
    if done.lost:
        print_line(
            "The next records get these offsets again: set readers back that had come further.\n"
            "Batches stay committed, though rows of them are gone, and are not written again. Last "
            f"ones: {'; '.join(done.writers) or 'none has a name'}"
        )
