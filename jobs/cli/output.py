"""What the commands print, and how they end: 0 fine, 1 a problem was found, 2 bad use."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import typer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kafkalog.streaming.operate.recover import Upkeep
    from kafkalog.streaming.store.unsynced import LostOffsets

__all__ = ["PROBLEM", "exit_if", "one_line_errors", "print_rows", "report_upkeep"]

PROBLEM: Final = 1
_BAD_USE: Final = 2
_WIDEST: Final = 10_000


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Say what is wrong in one line instead of a traceback."""
    from kafkalog.errors import (  # noqa: PLC0415
        CheckpointError,
        CommitError,
        CorruptRecordError,
        DataLossError,
        KafkaLogError,
    )

    try:
        yield
    except (CheckpointError, CommitError, CorruptRecordError, DataLossError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(PROBLEM) from error
    except (KafkaLogError, OSError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(_BAD_USE) from error


def exit_if(problems: Iterable[object]) -> None:
    """End with 1 if there is any problem."""
    if any(problems):
        raise typer.Exit(PROBLEM)


def report_upkeep(done: Upkeep, *, as_json: bool, dry_run: bool = False) -> None:
    """Print what was found and done, and end with 1 if a person has to decide on something."""
    rows = _partition_rows(done)
    if as_json:
        report = {
            "dryRun": dry_run,
            "set": done.set_id,
            "takenBack": done.taken_back,
            "reset": done.reset,
            "aborted": done.aborted,
            "lost": [_offsets(each) for each in done.lost],
            "writers": done.writers if done.lost else [],
            "written": done.written,
            "partitions": rows,
            "problems": done.problems,
        }
        typer.echo(json.dumps(report, ensure_ascii=False))
    else:
        if dry_run:
            typer.echo("dry run: nothing was changed; what would be done:")
        for batch in done.taken_back:
            typer.echo(f"taken back: {batch}")
        for line in done.reset:
            typer.echo(f"reset: {line}")
        for line in done.aborted:
            typer.echo(f"aborted: {line}")
        _print_lost(done)
        print_rows(rows, as_json=False)
        for line in done.written:
            typer.echo(f"written: {line}")
        for problem in done.problems:
            typer.echo(f"problem: {problem}", err=True)
    raise typer.Exit(PROBLEM if done.problems else 0)


def _partition_rows(done: Upkeep) -> list[dict[str, Any]]:
    return [
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


def _offsets(lost: LostOffsets) -> dict[str, object]:
    topic, partition = lost.where.topic_partition
    return {"topic": topic, "partition": partition, "start": lost.start, "end": lost.end}


def _print_lost(done: Upkeep) -> None:
    """Say which offsets are gone, and what that means for who wrote and who reads them."""
    for each in done.lost:
        typer.echo(f"gone: {each.where.topic_partition} [{each.start}, {each.end})")
    if done.lost:
        typer.echo(
            "The next records get these offsets again: set readers back that had come further.\n"
            "Batches stay committed, though rows of them are gone, and are not written again. Last "
            f"ones: {'; '.join(done.writers) or 'none has a name'}"
        )


def print_rows(rows: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    """Print a table, or one object a line; nothing where there are no rows."""
    if as_json:
        for row in rows:
            typer.echo(json.dumps(row, ensure_ascii=False))
        return
    if not rows:
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=None, pad_edge=False)
    names = list(dict.fromkeys(name for row in rows for name in row))
    for name in names:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*_cells(row.get(name) for name in names))
    console = Console(soft_wrap=True)
    if not console.is_terminal:
        console.width = _WIDEST  # for who reads on: no cell is folded
    console.print(table)


def _cells(values: Iterable[object]) -> list[str]:
    return [_cell(value) for value in values]


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return " ".join(map(str, value))
    if isinstance(value, dict):
        return " ".join(f"{name}={each}" for name, each in value.items())
    return str(value)
