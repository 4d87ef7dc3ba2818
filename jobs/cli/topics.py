"""The commands that show topics and partitions: ``topics``, ``describe``, ``offsets``."""

from __future__ import annotations

from kafkalog.jobs.cli.arguments import Json, Paths, TopicName  # noqa: TC001 - typer reads them
from kafkalog.jobs.cli.output import exit_if, one_line_errors, print_rows

__all__ = ["describe", "offsets", "topics"]


def topics(paths: Paths, as_json: Json = False) -> None:
    """List topics with their ids, partitions and sizes."""
    with one_line_errors():
        from kafkalog.jobs.cli.topic_rows import list_topics  # noqa: PLC0415

        rows = list_topics(paths)
    print_rows(rows, as_json=as_json)


def describe(paths: Paths, topic: TopicName = None, as_json: Json = False) -> None:
    """Show partitions: where they lie, their offsets, segments, sizes and settings."""
    with one_line_errors():
        from kafkalog.jobs.cli.topic_rows import describe_partitions  # noqa: PLC0415

        rows = describe_partitions(paths, topic)
    print_rows(rows, as_json=as_json, spare=("topicId", "retention", "unfinished", "segments"))


def offsets(paths: Paths, topic: TopicName = None, as_json: Json = False) -> None:
    """Show the first and the committed end offset of each partition."""
    with one_line_errors():
        from kafkalog.jobs.cli.topic_rows import list_offsets  # noqa: PLC0415

        rows = list_offsets(paths, topic)
    print_rows(rows, as_json=as_json)
    exit_if(row["missing"] for row in rows)
