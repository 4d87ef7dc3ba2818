"""The command line; what its commands do is in the library, imported when one of them is called.

Every command but ``run`` takes log directories, those that belong together as separate words, and
``--json``, which prints one object a line. It ends with 0 if all is fine, 1 if a problem was found,
2 if it was called wrongly or cannot work on these directories at all.
"""

from __future__ import annotations

import io
import sys
from copy import copy
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
import typer.core

from kafkalog import __version__
from kafkalog.jobs.cli.append import produce
from kafkalog.jobs.cli.batches import consume, dump, verify
from kafkalog.jobs.cli.brokers import handover, recover, takeover
from kafkalog.jobs.cli.care import backup, compact, delete_records, retain, salvage
from kafkalog.jobs.cli.find import find
from kafkalog.jobs.cli.groups import (
    delete_group,
    groups,
    lag,
    list_all_groups,
    reset_group,
    serve_metrics,
)
from kafkalog.jobs.cli.lookup import get
from kafkalog.jobs.cli.nodes import elect, reassign, replicas, vote
from kafkalog.jobs.cli.report import plot, report
from kafkalog.jobs.cli.sql import sql
from kafkalog.jobs.cli.topics import alter, create, delete, describe, offsets, stats, tiers, topics
from kafkalog.jobs.process.running import Command, run, without_value

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence


__all__ = ["FIRST_PAGE", "PIPELINES", "app", "first_page", "main", "meant_by", "run_pipeline"]


# ----------------------------------------------------------------------------------------------
# What people type for a command that has another name here.


_WORDS: Final = {
    "topic list": "list ls list-topics",
    "topic describe": "config configs info inspect log-dirs show",
    "dump": "dump-log log segments",
    "consume": "cat console-consumer consumer head messages print read records view",
    "consume --follow": "follow listen subscribe tail watch",
    "produce": "console-producer insert producer pub publish put send write",
    "find": "grep search",
    "get": "key look-up lookup",
    "sql": "query select",
    "topic stats": "count size",
    "topic offsets": "end-offsets get-offsets",
    "group list": "consumer-groups consumers",
    "group reset": "reset reset-group reset-offsets seek",
    "lag": "behind",
    "serve-metrics": "exporter metrics prometheus",
    "verify": "check fsck validate",
    "recover": "clean-up cleanup fix repair",
    "salvage": "rescue",
    "topic create": "add-topic create-topic mkdir new",
    "topic alter": "alter-topic change edit set update",
    "topic delete": "delete-topic drop remove rm",
    "topic trim": "purge trim truncate",
    "retain": "expire retention",
    "compact": "clean cleaner compaction",
    "backup": "copy cp export snapshot",
    "node list": "nodes",
    "node elect": "leader-election",
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
  echo hello | kafkalog produce first-log -t greetings
  kafkalog topic list first-log
  kafkalog consume first-log -t greetings

On the directories of a broker, running or not (none of these changes anything):
  kafkalog topic list LOG                              what is in here
  kafkalog consume LOG -t T -n 10                      records
  kafkalog find LOG --text 4711                        records with a text, in all topics
  kafkalog sql LOG "select count(*) from T"            SQL
  kafkalog group list LOG                              consumer groups, and how far they are
  kafkalog verify LOG                                  is anything damaged?

LOG is what log.dirs names in a broker's settings: a folder with folders such as T-0.
KAFKALOG_PATH=LOG in the environment: commands that name no LOG take that one.
All commands: kafkalog --help. One of them: kafkalog consume --help.
Let the shell complete words: kafkalog --install-completion."""


class _Verbs(typer.core.TyperGroup):
    """Commands, of which the help names no values of flags."""

    def get_help_option(self, ctx: Any) -> Any:  # noqa: ANN401 - classes of typer
        """Return ``--help``."""
        return without_value(super().get_help_option(ctx))


class _Commands(_Verbs):
    """Commands of one word or two: a noun and a verb, as in `topic list`.

    A noun alone shows its verbs. `groups`, as it was called, looks at folders, and `groups reset`
    does something else: a folder that is called like that is `./reset`.
    """

    def __init__(self, **attrs: Any) -> None:  # noqa: ANN401 - what typer gives
        super().__init__(**attrs)
        for param in self.params:
            without_value(param)
        for noun, what in _NOUNS.items():
            verbs = {}
            for name, command in self.commands.items():
                if name.startswith(f"{noun} "):
                    verb = verbs[name.partition(" ")[2]] = copy(command)
                    verb.name = name.partition(" ")[2]
            self.add_command(
                _Verbs(name=noun, commands=verbs, help=what, no_args_is_help=True, hidden=True)
            )

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, ...]:  # noqa: ANN401
        """Take two words for a command where there is such a one."""
        name = " ".join(args[:2])
        if name in self.commands:
            return name, self.commands[name], args[2:]
        meant = None if args[0] in _NOUNS else meant_by(args, self.commands)
        if meant is not None and not ctx.resilient_parsing:  # a shell completes words by it
            typed = args[0] if args[0] not in self.commands else name
            ctx.fail(f"No such command {typed!r}. Did you mean {meant!r}?")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:  # noqa: ANN401
        """Complete the first word of a command."""
        found: dict[str, Any] = {}
        for each in super().shell_complete(ctx, incomplete):
            each.value = each.value.partition(" ")[0]
            if each.value in _NOUNS:
                each.help = _NOUNS[each.value]
            found.setdefault(each.value, each)
        return [*found.values()]


app = typer.Typer(
    cls=_Commands,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Kafka's log directories without a broker.",
)


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


_NOUNS: Final = {
    "topic": "Topics: look at them, make, change and delete them.",
    "group": "Consumer groups: how far they are; set one elsewhere, or forget it.",
    "broker": "Give log directories to a broker, and take them back.",
    "node": "The nodes of a replicated log: who leads, what lies where.",
}

_LOOK, _WRITE, _GROUPS = "Look", "Write", "Groups"
_CARE, _NODES, _PIPELINES = "Care", "Brokers and nodes", "Pipelines"

_COMMANDS: Final[tuple[tuple[str, str, Callable[..., None], str, str], ...]] = (
    (_LOOK, "topic list", topics, "/logs", "topics"),
    (_LOOK, "topic describe", describe, "/logs -t t", "describe"),
    (_LOOK, "topic offsets", offsets, "/logs --json", "offsets"),
    (_LOOK, "topic stats", stats, "/logs -t t", "stats"),
    (_LOOK, "consume", consume, "/logs -t t -n 10", ""),
    (_LOOK, "dump", dump, "/logs --topic t", ""),
    (_LOOK, "find", find, "/logs --regex 'a|b' --since 1h", ""),
    (_LOOK, "get", get, "/logs -t t --key k", ""),
    (_LOOK, "sql", sql, '/logs "select count(*) from t"', ""),
    (_LOOK, "verify", verify, "/logs", ""),
    (_LOOK, "tiers", tiers, "/logs --remote /tier", ""),
    (_LOOK, "report", report, "/logs --html /backup/report.html", ""),
    (_LOOK, "plot", plot, "/logs -t t", ""),
    (_WRITE, "produce", produce, "/logs -t t -K :", "append"),
    (_WRITE, "topic create", create, "/logs -t new --partitions 3", "create"),
    (_WRITE, "topic alter", alter, "/logs -t t --config retention.ms=7d", "alter"),
    (_WRITE, "topic delete", delete, "/logs -t t --dry-run", "delete"),
    (_WRITE, "topic trim", delete_records, "/logs -t t -p 0 -o 1 --dry-run", "delete-records"),
    (_GROUPS, "group list", list_all_groups, "/logs", ""),
    (_GROUPS, "group describe", groups, "/logs", "groups"),
    (_GROUPS, "lag", lag, '/logs --offsets \'{"t":{"0":1}}\'', ""),
    (_GROUPS, "serve-metrics", serve_metrics, "/logs", ""),
    (_GROUPS, "group reset", reset_group, "/logs -g g -t t --to earliest", "groups reset"),
    (_GROUPS, "group delete", delete_group, "/logs -g g", "groups delete"),
    (_CARE, "backup", backup, "/logs /backup/monday", ""),
    (_CARE, "retain", retain, "/logs --dry-run", ""),
    (_CARE, "compact", compact, "/logs --dry-run", ""),
    (_CARE, "recover", recover, "/logs --dry-run", ""),
    (_CARE, "salvage", salvage, "/logs t-0", ""),
    (_NODES, "broker handover", handover, "/logs --cluster-id ID --node-id 1", "handover"),
    (_NODES, "broker takeover", takeover, "/logs --dry-run", "takeover"),
    (_NODES, "node list", replicas, "'/a/log;/b/log;/c/log'", "replicas"),
    (_NODES, "node elect", elect, "'/a/log;/b/log;/c/log' --preferred", "elect"),
    (_NODES, "node reassign", reassign, "'/a/log;/b/log;/c/log' -t t --to 1,2", "reassign"),
    (_NODES, "node vote", vote, "'/a/log;/b/log;/c/log' --replace 1=/d/log", ""),
)
"""Panel, name, function, the words of an example, and what it was called before."""


class _OfDirectories(Command):
    """A command about log directories alone, which no log in an object store has."""

    reaches_stores = False


def _register() -> None:
    """Take all commands in; one that was called otherwise answers to that too, and shows it not."""
    for panel, name, act, example, before in _COMMANDS:
        epilog = f"Example: kafkalog {name} {example}"
        kind = _OfDirectories if panel == _NODES else Command
        app.command(name, cls=kind, epilog=epilog, rich_help_panel=panel)(act)
        if before:
            app.command(before, cls=kind, epilog=epilog, hidden=True)(act)
    app.command(
        "run",
        cls=Command,
        epilog="Example: kafkalog run archive --help",
        context_settings={"allow_extra_args": True, "allow_interspersed_args": False},
        rich_help_panel=_PIPELINES,
    )(run_pipeline)


_register()


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # one that is closed is None
            # Where the system's letters are ASCII, others are shown as escapes.
            stream.reconfigure(errors="backslashreplace")
    # A compiler would take most of the time of a look-up, and a third of the memory of SQL.
    if sys.argv[1:2] in (["get"], ["sql"]):
        from kafkalog.streaming.records.jit.kernel import load_without_compiler  # noqa: PLC0415

        load_without_compiler()
    run(app)
