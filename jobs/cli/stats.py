"""The command that counts what is in topics: ``stats``."""

from __future__ import annotations

from typing import Any

from kafkalog.jobs.arguments import SETTINGS, pairs
from kafkalog.jobs.cli.arguments import Json, Paths, TopicName  # noqa: TC001 - typer reads them
from kafkalog.jobs.cli.output import one_line_errors, print_rows, progress_bar

__all__ = ["stats"]


def stats(
    paths: Paths, topic: TopicName = None, settings: SETTINGS = None, as_json: Json = False
) -> None:
    """Count records, batches and bytes of each partition; when, by whom, how compressed."""
    with one_line_errors(), progress_bar() as told:
        from kafkalog.jobs.records.counting import count_partitions  # noqa: PLC0415

        rows = count_partitions(paths, topic, pairs(settings), told)
    print_rows(rows if as_json else [_for_people(row) for row in rows], as_json=as_json)


def _for_people(row: dict[str, Any]) -> dict[str, Any]:
    from kafkalog.jobs.times import shown_time  # noqa: PLC0415
    from kafkalog.jobs.units import shown_size  # noqa: PLC0415

    sizes = {name: shown_size(row[name]) for name in ("bytes", "bytesPerBatch")}
    times = {
        name: None if row[name] is None else shown_time(row[name])
        for name in ("firstTimestamp", "lastTimestamp")
    }
    return {**row, **sizes, **times}
