"""A prompt for SQL, with a history that outlives it."""

from __future__ import annotations

import cmd
import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kafkalog.errors import KafkaLogError
from kafkalog.jobs.running import print_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["SqlPrompt", "history_file"]

_KEPT: Final = 1000
_ENDS: Final = {"exit", "quit", r"\q", ".exit", ".quit"}
_TABLES: Final = {r"\d", r"\dt", ".tables"}
_HELP: Final = {"help", "?", r"\?", r"\h", ".help"}
"""What psql, sqlite3 and duckdb know, with or without a semicolon."""


def history_file() -> Path:
    """Return where statements are kept: in the user's folder for such things."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "kafkalog" / "sql_history"


class SqlPrompt(cmd.Cmd):
    """Reads statements, each up to its semicolon; an error ends none but its own."""

    prompt = "kafkalog> "

    def __init__(self, run: Callable[[str], None], tables: Sequence[str]) -> None:
        super().__init__()
        self.intro = f"Tables: {', '.join(tables)}. A statement ends with ';', Ctrl-D ends."
        self._help = f"{self.intro} 'describe t;' lists the columns of t."
        self._run = run
        self._begun: list[str] = []

    def onecmd(self, line: str) -> bool:
        """Take a line."""
        word = line.strip().rstrip(";").rstrip().lower()
        # amid a statement too: few have such a line, and who writes one wants out
        if line == "EOF" or word in _ENDS:
            return True
        if not self._begun:
            if word in _TABLES | _HELP:
                print_line(self._help)
                return False
            if not line.strip():
                return False
        self._begun.append(line)
        if line.rstrip().endswith(";"):
            statement = "\n".join(self._begun)
            self._begun.clear()
            try:
                self._run(statement)
            except KafkaLogError as error:
                print_line(str(error), err=True)
        self.prompt = "      ...> " if self._begun else SqlPrompt.prompt
        return False

    def give_up(self) -> None:
        """Forget what was begun, and begin again."""
        self._begun.clear()
        self.intro, self.prompt = None, SqlPrompt.prompt

    def emptyline(self) -> bool:
        """Do nothing: repeating the last statement is not what anybody expects."""
        return False

    def preloop(self) -> None:
        """Load the history."""
        with contextlib.suppress(ImportError, OSError):
            import readline  # noqa: PLC0415 - not everywhere

            readline.read_history_file(history_file())

    def postloop(self) -> None:
        """Keep the history."""
        with contextlib.suppress(ImportError, OSError):
            import readline  # noqa: PLC0415

            readline.set_history_length(_KEPT)
            history_file().parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            readline.write_history_file(history_file())
