"""The command ``replicas``: who leads, who is in sync, and which nodes are there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafkalog.jobs.cli.arguments import Json, Paths, TopicName  # noqa: TC001 - typer reads them
from kafkalog.jobs.cli.output import exit_if, one_line_errors, print_rows
from kafkalog.jobs.running import print_line

if TYPE_CHECKING:
    from kafkalog.streaming.operate.replicas import NodeView, ReplicasView

__all__ = ["replica_row", "replicas"]


def replicas(paths: Paths, topic: TopicName = None, as_json: Json = False) -> None:
    """Show the replicas of each partition of a set of several nodes; 1 if any is not in sync."""
    with one_line_errors():
        from kafkalog.streaming.operate.replicas import look_at_replicas  # noqa: PLC0415

        found = look_at_replicas(paths, topic)
    rows = [replica_row(each) for each in found.partitions]
    if not as_json:  # what is rare is a column where it is so
        rare = [n for n in ("adding", "removing", "missing") if not any(row[n] for row in rows)]
        rows = [{name: row[name] for name in row if name not in rare} for row in rows]
    print_rows(rows, as_json=as_json, has_units=False)
    if not as_json:
        for node in found.nodes:
            print_line(_node_line(node))
    for problem in found.problems:
        print_line(f"problem: {problem}", err=True)
    bad = [each for each in found.partitions if each.is_under_replicated or each.is_offline]
    exit_if([*bad, *found.problems, *(node.missing for node in found.nodes)])


def replica_row(each: ReplicasView) -> dict[str, Any]:
    """Return what is shown of a partition; ``missing`` says why nodes of it are not there."""
    return {
        "topic": each.key.topic,
        "partition": each.key.partition,
        "leader": each.leader,
        "replicas": list(each.replicas),
        "isr": list(each.isr),
        "leaderEpoch": each.leader_epoch,
        "highWatermark": each.high_watermark,
        "logEndOffsets": {str(node): end for node, end in each.log_ends.items()},
        "adding": list(each.adding),
        "removing": list(each.removing),
        "missing": {str(node): why for node, why in each.missing.items()},
    }


def _node_line(node: NodeView) -> str:
    kind = "witness" if node.is_witness else "node"
    if node.missing:
        return f"{kind} {node.node} is not there: {node.missing}"
    return f"{kind} {node.node}: {', '.join(map(str, node.directories))}"
