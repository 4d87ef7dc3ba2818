"""The ``kafkalog`` command."""

from __future__ import annotations

import typer

app = typer.Typer(no_args_is_help=True)


def main() -> None:
    """Run the command line."""
    app()
