"""The command line; what its commands do is in the library, imported when one of them is called.

Every command but ``run`` takes log directories, those that belong together as separate words, and
``--json``, which prints one object a line. It ends with 0 if all is fine, 1 if a problem was found,
2 if it was called wrongly or cannot work on these directories at all.
"""

from __future__ import annotations

import io
import sys
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
import typer.core

from kafkalog import __version__
from kafkalog.jobs.cli.append import append
from kafkalog.jobs.cli.batches import dump, verify
from kafkalog.jobs.cli.brokers import handover, recover, takeover
from kafkalog.jobs.cli.care import backup, compact, delete_records, retain, salvage
from kafkalog.jobs.cli.find import find
from kafkalog.jobs.cli.groups import delete_group, groups, lag, reset_group
from kafkalog.jobs.cli.lookup import get
from kafkalog.jobs.cli.nodes import elect, reassign, replicas
from kafkalog.jobs.cli.report import plot, report
from kafkalog.jobs.cli.sql import sql
from kafkalog.jobs.cli.topics import alter, create, delete, describe, offsets, stats, topics
from kafkalog.jobs.process.running import Command, run

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


__all__ = ["FIRST_PAGE", "PIPELINES", "app", "first_page", "main", "meant_by", "run_pipeline"]


# ----------------------------------------------------------------------------------------------
# What people type for a command that has another name here.


_WORDS: Final = {
    "topics": "list ls list-topics",
    "describe": "config configs info inspect log-dirs show",
    "dump": "dump-log log segments",
    "dump --records": "cat consume console-consumer consumer head messages print read records view",
    "dump --records --follow": "follow listen subscribe tail watch",
    "append": "console-producer insert produce producer pub publish put send write",
    "find": "grep search",
    "get": "key look-up lookup",
    "sql": "query select",
    "stats": "count size",
    "offsets": "end-offsets get-offsets",
    "groups": "consumer-groups consumers",
    "groups reset": "reset reset-group reset-offsets seek",
    "lag": "behind",
    "verify": "check fsck validate",
    "recover": "clean-up cleanup fix repair",
    "salvage": "rescue",
    "create": "add-topic create-topic mkdir new",
    "alter": "alter-topic change edit set update",
    "delete": "delete-topic drop remove rm",
    "delete-records": "purge truncate",
    "retain": "expire retention",
    "compact": "clean cleaner compaction",
    "backup": "copy cp export snapshot",
    "elect": "leader-election",
    "run archive": "archive",
    "run ingest": "import ingest load",
    "run maintain": "maintain",
    "run mirror": "mirror",
    "run replay": "replay",
    "run restore": "restore",
    "--help": "help man usage",
    "--version": "version",
}
"""By command: words of other tools, and names of pipelines."""


def meant_by(words: Sequence[str], commands: Collection[str]) -> str | None:
    """Return the command that is meant by the first words of a line; None if it is not known.

    ``groups rest LOG`` would take ``rest`` for a folder: where there is none, it is meant as a
    command of two words.
    """
    first, *rest = words
    if first not in commands:
        return next((name for name, others in _WORDS.items() if first in others.split()), None)
    if not rest or Path(rest[0]).exists():
        return None
    seconds = [name for name in commands if name.startswith(f"{first} ")]
    near = get_close_matches(f"{first} {rest[0]}", seconds, n=1, cutoff=0.8)
    return near[0] if near else None


# ----------------------------------------------------------------------------------------------
# ``kafkalog run``: a pipeline in a local Spark session, with the jars that it needs.


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


# ----------------------------------------------------------------------------------------------

FIRST_PAGE: Final = """\
kafkalog reads and writes Kafka's log directories, with no broker.

Try it, in a folder of your own:
  echo hello | kafkalog append first-log --topic greetings
  kafkalog topics first-log
  kafkalog dump first-log --topic greetings --records

On the directories of a broker, running or not (none of these changes anything):
  kafkalog topics LOG                                  what is in here
  kafkalog dump LOG --topic T --records --count 10     records
  kafkalog find LOG --text 4711                        records with a text, in all topics
  kafkalog sql LOG "select count(*) from T"            SQL
  kafkalog groups LOG                                  consumer groups, and how far they are
  kafkalog verify LOG                                  is anything damaged?

LOG is what log.dirs names in a broker's settings: a folder with folders such as T-0.
All commands: kafkalog --help. One of them: kafkalog dump --help.
Let the shell complete words: kafkalog --install-completion."""


class _Commands(typer.core.TyperGroup):
    """Commands of one word or two: `groups` looks at folders, `groups reset` does something else.

    A folder that is called like that is `./reset`.
    """

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, ...]:  # noqa: ANN401
        """Take two words for a command where there is such a one."""
        name = " ".join(args[:2])
        if name in self.commands:
            return name, self.commands[name], args[2:]
        meant = meant_by(args, self.commands)
        if meant is not None and not ctx.resilient_parsing:  # a shell completes words by it
            typed = args[0] if args[0] not in self.commands else name
            ctx.fail(f"No such command {typed!r}. Did you mean {meant!r}?")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_Commands,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Kafka's log directories without a broker.",
)
_command = partial(app.command, cls=Command)


@app.callback(invoke_without_command=True)
def first_page(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Kafka's log directories without a broker."""
    if version:
        typer.echo(__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(FIRST_PAGE)


_command(epilog="Example: kafkalog recover /logs --dry-run")(recover)
_command(epilog="Example: kafkalog handover /logs --cluster-id ID --node-id 1")(handover)
_command(epilog="Example: kafkalog takeover /logs --dry-run")(takeover)
_command(epilog="Example: kafkalog verify /logs")(verify)
_command(epilog="Example: kafkalog topics /logs")(topics)
_command(epilog="Example: kafkalog describe /logs --topic t")(describe)
_command(epilog="Example: kafkalog replicas '/a/log;/b/log;/c/log'")(replicas)
_command(epilog="Example: kafkalog offsets /logs --json")(offsets)
_command(epilog=r"Example: kafkalog dump /logs --topic t --format '%p %o %k %s\n'")(dump)
_command(epilog="Example: kafkalog find /logs --regex 'a|b' --since 2023-11-01")(find)
_command(epilog="Example: kafkalog get /logs --topic t --key k")(get)
_command(epilog='Example: kafkalog sql /logs "select count(*) from t"')(sql)
_command(epilog="Example: kafkalog stats /logs --topic t")(stats)
_command(epilog="Example: kafkalog plot /logs --topic t")(plot)
_command(epilog="Example: kafkalog report /logs --html /backup/report.html")(report)
_command(epilog="Example: kafkalog groups /logs")(groups)
_command(
    "groups reset", epilog="Example: kafkalog groups reset /logs --group g --topic t --to earliest"
)(reset_group)
_command("groups delete", epilog="Example: kafkalog groups delete /logs --group g")(delete_group)
_command(epilog="Example: kafkalog elect '/a/log;/b/log;/c/log' --preferred")(elect)
_command(epilog="Example: kafkalog reassign '/a/log;/b/log;/c/log' --replace 1=/d/log")(reassign)
_command(epilog='Example: kafkalog lag /logs --offsets \'{"t":{"0":1}}\'')(lag)
_command(epilog="Example: kafkalog append /logs --topic t -K :")(append)
_command(epilog="Example: kafkalog backup /logs /backup/monday")(backup)
_command(epilog="Example: kafkalog salvage /logs t-0")(salvage)
_command(epilog="Example: kafkalog create /logs --topic new --partitions 3")(create)
_command(epilog="Example: kafkalog alter /logs --topic t --config retention.ms=86400000")(alter)
_command(epilog="Example: kafkalog delete /logs --topic t --dry-run")(delete)
_command(epilog="Example: kafkalog retain /logs --dry-run")(retain)
_command(
    "delete-records", epilog='Example: kafkalog delete-records /logs --offsets \'{"t":{"0":1}}\''
)(delete_records)
_command(epilog="Example: kafkalog compact /logs --dry-run")(compact)
app.command(
    "run",
    epilog="Example: kafkalog run archive --help",
    context_settings={"allow_extra_args": True, "allow_interspersed_args": False},
)(run_pipeline)


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # one that is closed is None
            # Where the system's letters are ASCII, others are shown as escapes.
            stream.reconfigure(errors="backslashreplace")
    if sys.argv[1:2] == ["get"]:  # a compiler would take most of its time
        from kafkalog.streaming.records.jit.kernel import load_without_compiler  # noqa: PLC0415

        load_without_compiler()
    run(app)
