"""``kafkalog run``: a pipeline in a local Spark session, with the jars that it needs."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Final

import typer

__all__ = ["PIPELINES", "run_pipeline"]

PIPELINES: Final = {
    "archive": "topics into a Delta table",
    "ingest": "files, a Kafka topic or a table into a topic",
    "maintain": "delete what has expired, and compact",
    "mirror": "topics into another log, at the same offsets",
    "replay": "a range of topics again, into a log, Kafka, or the terminal",
    "restore": "a table into topics, as they were",
}
"""The modules of :mod:`kafkalog.jobs` that are pipelines, and what each one does."""

_NAMES: Final = "; ".join(f"{name}: {what}" for name, what in PIPELINES.items())


def _names_beginning(incomplete: str) -> list[str]:
    """Return what a shell completes."""
    return [name for name in PIPELINES if name.startswith(incomplete)]


def run_pipeline(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help=_NAMES, autocompletion=_names_beginning)
    ],
) -> None:
    """Run a pipeline. `kafkalog run NAME --help` says what it takes."""
    if name not in PIPELINES:
        raise typer.BadParameter(f"{name!r} is no pipeline; there are {', '.join(PIPELINES)}")
    job = import_module(f"kafkalog.jobs.{name}")
    # Errors pass: they are told where all of this command's are.
    code = job.app(args=context.args, prog_name=f"kafkalog run {name}", standalone_mode=False)
    raise typer.Exit(code if isinstance(code, int) else 0)
