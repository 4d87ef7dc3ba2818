"""The command line; what its commands do is in the library, imported when one of them is called.

Every command but ``run`` takes log directories, those that belong together as separate words, and
``--json``, which prints one object a line. It ends with 0 if all is fine, 1 if a problem was found,
2 if it was called wrongly or cannot work on these directories at all.
"""

from __future__ import annotations

import io
import sys
from functools import partial
from typing import Annotated, Any, Final

import typer
import typer.core

from kafkalog import __version__
from kafkalog.jobs.cli.append import append
from kafkalog.jobs.cli.backup import backup
from kafkalog.jobs.cli.batches import verify
from kafkalog.jobs.cli.compaction import compact
from kafkalog.jobs.cli.dump import dump
from kafkalog.jobs.cli.elect import elect
from kafkalog.jobs.cli.find import find
from kafkalog.jobs.cli.groups import delete_group, groups, reset_group
from kafkalog.jobs.cli.lag import lag
from kafkalog.jobs.cli.lookup import get
from kafkalog.jobs.cli.manage_topics import alter, create, delete
from kafkalog.jobs.cli.other_words import meant_by
from kafkalog.jobs.cli.pipelines import run_pipeline
from kafkalog.jobs.cli.plot import plot
from kafkalog.jobs.cli.reassign import reassign
from kafkalog.jobs.cli.replicas import replicas
from kafkalog.jobs.cli.report import report
from kafkalog.jobs.cli.retention import delete_records, retain
from kafkalog.jobs.cli.salvage import salvage
from kafkalog.jobs.cli.sql import sql
from kafkalog.jobs.cli.stats import stats
from kafkalog.jobs.cli.topics import describe, offsets, topics
from kafkalog.jobs.cli.upkeep import handover, recover, takeover
from kafkalog.jobs.commands import Command
from kafkalog.jobs.running import run

__all__ = ["FIRST_PAGE", "app", "first_page", "main"]

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
