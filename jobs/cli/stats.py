"""The command that counts what is in topics: ``stats``."""

from __future__ import annotations

from typing import Final

from kafkalog.jobs.arguments import SETTINGS, pairs
from kafkalog.jobs.cli.arguments import Json, Paths, TopicName  # noqa: TC001 - typer reads them
from kafkalog.jobs.cli.output import one_line_errors, print_rows, progress_bar

__all__ = ["stats"]

_SPARE: Final = (
    "bytesPerBatch",
    "recordsPerBatch",
    "producers",
    "markers",
    "firstTimestamp",
    "codecs",
    "batches",
)


def stats(
    paths: Paths, topic: TopicName = None, settings: SETTINGS = None, as_json: Json = False
) -> None:
    """Count records, batches and bytes of each partition; when, by whom, how compressed."""
    with one_line_errors(), progress_bar() as told:
        from kafkalog.jobs.records.counting import count_partitions  # noqa: PLC0415

        rows = count_partitions(paths, topic, pairs(settings), told)
    print_rows(rows, as_json=as_json, spare=_SPARE)
