"""Run a command line so that whatever the user did wrong is one line on stderr.

Exit codes: 2 for wrong arguments, which a log or a topic that is not there is too; 1 for what
failed with right ones.
"""

from __future__ import annotations

import errno
import gc
import json
import logging
import os
import re
import shutil
import sys
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, NoReturn, TextIO, cast

import typer
import typer.core

from kafkalog.errors import (
    InvalidTopicError,
    KafkaLogError,
    LogDirectoryError,
    OptionError,
    UnknownTopicOrPartitionError,
)
from kafkalog.files.paths import refuse_among_logs
from kafkalog.files.system import said_of_file
from kafkalog.jobs.process.arguments import STORES, refuse_all_but_stores, stores_opened
from kafkalog.jobs.process.jars import OFFLINE, JarError
from kafkalog.texts import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


__all__ = [
    "Command",
    "Form",
    "Printing",
    "check_input",
    "check_reading",
    "collect_seldom",
    "default_path",
    "drop_output",
    "json_line",
    "leave_out_pandas",
    "print_line",
    "printing",
    "run",
    "said_by_system",
    "sentence_in",
    "without_value",
]


# ----------------------------------------------------------------------------------------------
# What every command of ``kafkalog`` and every pipeline does with its words.


def default_path() -> list[str]:
    """Return the log directories of commands that are given none; nothing if there are none."""
    path = os.environ.get("KAFKALOG_PATH")
    return [path] if path else []


class Form(StrEnum):
    """How rows are printed."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    PROMETHEUS = "prometheus"


@dataclass(frozen=True, slots=True)
class Printing:
    """How the command that runs prints, as it was told."""

    form: Form = Form.TABLE
    is_verbose: bool = False
    """All rows and lines, however many, and what the log says of how it goes."""
    is_quiet: bool = False
    """No warnings, notes and bars."""
    csv_names: list[str] = field(default_factory=list)
    """The names of the columns, once they are printed."""


_AS_TABLE: Final = Printing()
_PRINTING: Final = ContextVar("printing", default=_AS_TABLE)


def printing() -> Printing:
    """Return how the command that runs prints."""
    return _PRINTING.get()


_Output = Annotated[
    Form | None, typer.Option("--output", metavar="FORM", help="table, json or csv.")
]
_Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No warnings, and no notes.")]
_Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="All rows and lines, and what goes on.")
]


_Offline = Annotated[
    bool,
    typer.Option("--offline", help="Fetch no jars: take those that an earlier run has fetched."),
]


def _common(
    output: _Output = None,
    settings: STORES = None,
    offline: _Offline = False,
    quiet: _Quiet = False,
    verbose: _Verbose = False,
) -> None:
    """Take the options that all commands have, where they mean anything."""


@cache
def _common_options() -> dict[str, typer.core.TyperOption]:
    app = typer.Typer(add_completion=False)
    app.command()(_common)
    return {each.name: each for each in typer.main.get_command(app).params}  # type: ignore[misc]


_WITH_JARS: Final = {"table_format", "input_format", "speed"}
"""Parameters of pipelines that may need jars: Delta's, or of Spark's Kafka connector."""


class Command(typer.core.TyperCommand):
    """A command as all of ours are.

    ``-h`` shows its help, whose stand-ins are plain words; ``-q`` and ``-v`` say how much is
    printed, and where it prints rows ``--output`` says how. Log directories that are not given are
    those of the environment. A second value for an option that takes one is refused: the first
    would be lost. Example: ``kafkalog get LOG --topic t --key a --key b``. Where log directories
    may be a log in a store, ``--set`` says how that is reached.
    """

    reaches_stores: ClassVar = True

    def __init__(self, *args: Any, **given: Any) -> None:  # noqa: ANN401 - what typer gives
        super().__init__(*args, **given)
        self.context_settings = {**_HELP, **self.context_settings}
        self._added: set[str] = set()
        if not self.context_settings.get("allow_extra_args"):
            added = list(self._more_options())
            self._added = {each.name for each in added}
            self.params = [*self.params, *added]
        for param in self.params:
            if isinstance(param, typer.core.TyperOption):
                param.metavar = _stand_in(param) if param.metavar is None else param.metavar
                param.min = param.max = None  # help alone reads them: they squeeze its texts
            else:
                setattr(param, "display_type_rich", lambda ctx: "")  # noqa: ARG005, B010

    def _more_options(self) -> Iterator[typer.core.TyperOption]:
        taken = {opt for each in self.params for opt in each.opts}
        names = {each.name for each in self.params}
        for name, option in _common_options().items():
            opts = [opt for opt in option.opts if opt not in taken]
            has_meaning = {
                "output": "as_json" in names,
                "offline": _WITH_JARS & names,
                "settings": self.reaches_stores and any(each.nargs == -1 for each in self.params),
            }
            if opts and has_meaning.get(name, True):
                option = copy(option)  # noqa: PLW2901 - it is this command's
                option.opts = opts
                if name == "output" and "metrics_format" in names:
                    option.help = "table, json, csv or prometheus."
                yield option

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - a class of typer
        """Read the words of the command."""
        tier = None
        if not ctx.resilient_parsing:  # which is how a shell completes words
            named, _, given = self.make_parser(ctx).parse_args(args=list(args))
            tier = named.get("remote")
            for option in given:
                if not isinstance(option, typer.core.TyperOption) or option.multiple:
                    continue
                if not option.is_flag and given.count(option) > 1:
                    raise typer.BadParameter("given twice; it takes one value", ctx, option)
            self._check_topic(ctx, named)
        if path := default_path() or ([tier] if isinstance(tier, str) else []):
            ctx.default_map = {
                each.name: path
                for each in self.params
                if each.nargs == -1 and not str(each.metavar).endswith("TARGET")
            }
        return super().parse_args(ctx, args)

    def _check_topic(self, ctx: Any, named: Mapping[str, Any]) -> None:  # noqa: ANN401
        """Refuse a topic that is given as the last of log directories, with the word it lacks.

        Example: ``kafkalog consume LOG flights``.
        """
        several = (param for param in self.params if param.nargs == -1)
        paths = [word for param in several for word in _words_of(named.get(param.name))]
        takes_topic = any(param.name == "topic" for param in self.params)
        if not takes_topic or named.get("topic") or not paths:
            return
        *others, last = paths
        is_known = all(map(_is_place, others)) if others else bool(default_path())
        if is_known and _TOPIC.fullmatch(last) and not _is_place(last):
            ctx.fail(f"There is no folder {last!r}. Did you mean '--topic {last}'?")

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - classes of typer
        """Run the command; what it prints is as it was told."""
        stores = ctx.params.get("settings")
        given = dict.fromkeys(_common_options())
        given |= {name: ctx.params.pop(name, None) for name in self._added}
        if "settings" in self._added:
            refuse_all_but_stores(stores)
        form = Form(given["output"] or ctx.params.get("metrics_format") or Form.TABLE)
        if form is Form.PROMETHEUS and "metrics_format" not in ctx.params:
            raise typer.BadParameter("prometheus is a form of 'kafkalog lag' alone")
        if ctx.params.get("as_json"):
            if form in {Form.CSV, Form.PROMETHEUS}:
                raise typer.BadParameter("give one of --json and --output, not both")
            form = Form.JSON
        elif form in {Form.JSON, Form.CSV}:
            ctx.params["as_json"] = True
        verbose = bool(given["verbose"] or ctx.params.get("show_all"))
        token = _PRINTING.set(Printing(form, verbose, bool(given["quiet"])))
        offline = OFFLINE.set(bool(given["offline"]))
        logger = logging.getLogger("kafkalog")
        level = logger.level
        if given["quiet"] or given["verbose"]:
            logger.setLevel(logging.ERROR if given["quiet"] else logging.INFO)
        try:
            with stores_opened(stores):
                return super().invoke(ctx)
        finally:
            logger.setLevel(level)
            OFFLINE.reset(offline)
            _PRINTING.reset(token)

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - classes of typer
        """Write the help; boxes of a narrow terminal would cut the names of options."""
        if shutil.get_terminal_size().columns < _NARROW:
            self.rich_markup_mode = None
        super().format_help(ctx, formatter)

    def get_help_option(self, ctx: Any) -> Any:  # noqa: ANN401 - classes of typer
        """Return ``--help``, without a stand-in for a value."""
        return without_value(super().get_help_option(ctx))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ANN401 - a class of typer
        """Return the words of the usage line: ``[OPTIONS] PATH…``."""
        names = [
            f"{each.metavar or each.name.upper()}"
            for each in self.get_params(ctx)
            if not isinstance(each, typer.core.TyperOption)
        ]
        return [*filter(None, [self.options_metavar]), *names]


_TOPIC: Final = re.compile(r"[\w.-]+", re.ASCII)


def _words_of(given: object) -> list[str]:
    return list(given) if isinstance(given, (list, tuple)) else []


def _is_place(word: str) -> bool:
    return "://" in word or any(os.path.lexists(each) for each in re.split("[,;]", word))


def without_value(option: Any) -> Any:  # noqa: ANN401 - classes of typer
    """Let the help of a flag name no value."""
    if option is not None:
        option.metavar = ""
    return option


_NARROW: Final = 60
_HELP: Final = {"help_option_names": ["-h", "--help"]}


def _stand_in(option: typer.core.TyperOption) -> str:
    """Return what stands for an option's value in its help: nothing of a flag, ``N``, ``KEY``."""
    kind = option.type_descriptor
    if option.is_flag:
        return ""
    if kind.is_choice:
        return "|".join(str(getattr(each, "value", each)) for each in kind.choices or ())
    if kind.annotation in {int, float, list[int]}:
        return "N"
    return option.opts[0].lstrip("-").rpartition("-")[2].upper()


# ----------------------------------------------------------------------------------------------

_WRONG_USE: Final = cast("type[Exception]", typer.BadParameter.__mro__[2])
"""What typer raises for words that it cannot use; it names only this one of the classes."""

_WRONG_ARGUMENTS: Final = (
    OptionError,
    InvalidTopicError,
    LogDirectoryError,
    UnknownTopicOrPartitionError,
)

_OURS: Final = re.compile(r"^kafkalog\.errors\.\w+: (.+?)(?: SQLSTATE: \w+)*$", re.MULTILINE)


_SPARKS: Final = re.compile(
    r"^: (?:org\.apache\.spark\.Spark"
    r"(?:ClassNotFound|IllegalArgument|UnsupportedOperation)Exception"
    r"|org\.apache\.spark\.sql\.delta\.DeltaIOException|org\.apache\.hadoop\.(?:fs|security)\.\w+"
    r"|java\.n?io\.(?:file\.)?\w+): (.+?)(?: SQLSTATE: \w+)*$",
    re.MULTILINE,
)
"""What is said of a format that Spark does not know or that cannot do what was asked for, and of a
folder that cannot be made or written.
"""

_ENDED: Final = re.compile(
    r"terminated with exception: (?!.*Traceback)(.+?)(?: SQLSTATE: \w+)*$", re.MULTILINE
)
_QUERY: Final = re.compile(r"^Identifier: (.+) \[id = ", re.MULTILINE)
"""What ended a query within Spark, as a checkpoint that is gone does; and which query that was."""

_SPARKS_TYPES: Final = frozenset(
    {
        "AnalysisException",
        "IllegalArgumentException",
        "ParseException",
        "UnsupportedOperationException",
    }
)


_FULL_COLLECTION: Final = 30
"""After so many collections of younger objects; Python's own number is 10."""


def collect_seldom() -> None:
    """Let the garbage collector look at all objects of this process three times less often.

    What a command has gathered of 10,000 partitions is no garbage, and to look through it again
    and again took an eighth of its time. Young objects are looked at as often as ever. Were it ten
    times less often, what SQL has read would take 70 MiB more. It is for the process, and so for
    who starts it: of a library's caller it is none of our business, and to put it back after a
    call would need to know who else has begun one meanwhile.
    """
    gc.set_threshold(*gc.get_threshold()[:2], _FULL_COLLECTION)


def run(app: typer.Typer) -> NoReturn:
    """Run a command line and end the process. Warnings begin with their level."""
    collect_seldom()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    try:
        code = app(standalone_mode=False)
        _end_output()
    except typer.Exit as done:
        code = done.exit_code
    except SystemExit as ended:
        # typer takes it for a failure that whoever reads has had enough, as ``head`` has
        code = 0 if isinstance(ended.__context__, BrokenPipeError) else ended.code
    except typer.Abort:
        code = 130
    except BrokenPipeError:  # the same, where all that was printed had waited in memory
        code = 0
    except _WRONG_USE as error:
        code = _say_wrong_use(error)
    except _WRONG_ARGUMENTS as error:
        code = _say(str(error), 2)
    except Exception as error:
        sentence = sentence_in(error)
        if sentence is None:
            raise
        code = _say(sentence, 1)
    try:
        _end_output()
    except OSError:  # said above
        drop_output()
    sys.exit(code if isinstance(code, int) else 0)


class _NoPandas(MetaPathFinder):
    """Finds no pandas, as where it is not installed."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name, name=name)


def leave_out_pandas() -> None:
    """Let Arrow do without pandas in this process, which has no use for it.

    Where it is installed, Arrow imports it at the first value that it is given, to see whether
    that is one of pandas': 55 MiB, and half a second. Arrow asks once. Who asks for pandas by its
    name, now or later, gets it.
    """
    import pyarrow as pa  # noqa: PLC0415 - most commands need neither

    finder = _NoPandas()
    if "pandas" not in sys.modules:
        sys.meta_path.insert(0, finder)
        try:
            pa.scalar(True)
        finally:
            sys.meta_path.remove(finder)


def _end_output() -> None:
    """Write what is left in memory: here an error can be said, and not when Python ends."""
    output = cast("TextIO | None", sys.stdout)
    if output is not None and not output.closed:
        output.flush()


def drop_output() -> None:
    """Discard output that waits in memory: Python would try again at its end, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


_OF_PYDANTIC: Final = (
    ("Input should be a valid integer", "expected an integer"),
    ("Input should be a valid ", "expected a "),
    ("Input should be ", "expected a number "),
    (", unable to parse string as an integer", ""),
    (", unable to parse string as a number", ""),
    ("Value error, ", ""),
)
"""How typer's messages begin since it checks values by pydantic, and how a person says it."""


def _say_wrong_use(error: Any) -> int:  # noqa: ANN401 - typer shows its base class to nobody
    message = error.format_message()
    for found, plain in _OF_PYDANTIC if message else ():
        message = message.replace(found, plain)
    if not message or "\n" in message:  # a command without arguments that answers with its help
        error.show()
    else:
        _say(f"{message.rstrip('.')} (--help says more)", error.exit_code)
    return int(error.exit_code)


def sentence_in(error: Exception) -> str | None:
    """Return the one sentence that an error is about; None for what has to be looked into.

    Spark's error wraps ours, and repeats it up to three times.
    """
    if isinstance(error, OSError):
        return said_by_system(error)
    if isinstance(error, KafkaLogError):
        return str(error)
    text = str(error)
    missing = _missing(error, text)
    if missing is not None:
        return missing
    ours = _OURS.findall(text)
    if ours:
        return str(ours[-1])
    if type(error).__name__ in _SPARKS_TYPES:
        return text.strip().partition("\n")[0]
    told = _SPARKS.search(text)
    return told[1] if told else _why_ended(text)


def _why_ended(text: str) -> str | None:
    """Return what Spark says of a query that failed; None if Python code has raised that."""
    why, query = _ENDED.search(text), _QUERY.search(text)
    return f"{query[1]} has failed: {why[1]}" if why and query else None


def _missing(error: Exception, text: str) -> str | None:
    """Return what a pipeline needs and has not: Spark, Java, or jars."""
    if isinstance(error, JarError):
        return text.rpartition("\n")[2]
    if isinstance(error, ModuleNotFoundError) and error.name == "pyspark":
        return 'this needs Spark: pip install "pyspark>=4.0,<5"'
    if "[JAVA_GATEWAY_EXITED]" in text:
        return "Spark needs Java 17 or 21: install it, and let JAVA_HOME or PATH lead to it"
    return None


def said_by_system(error: OSError) -> str:
    """Return what the system says of a file; without one, of what is printed on a full disk."""
    if error.strerror is None:
        return str(error)
    if error.filename is not None:
        return said_of_file(error)
    if error.errno == errno.ENOSPC:
        return f"what this prints cannot be written: {error.strerror}"
    return error.strerror


def check_reading(log: str, topic: str, checkpoint: str, options: Mapping[str, str]) -> None:
    """Check what a query over a topic is given, before Spark starts.

    Raises:
        OptionError, InvalidTopicError: options or a topic that no such query can have.
        KafkaLogError: a query without a checkpoint, and the log or the topic is not there.
    """
    from kafkalog.streaming.options.read_options import ReadOptions  # noqa: PLC0415
    from kafkalog.streaming.source.subscription import Subscription  # noqa: PLC0415
    from kafkalog.streaming.store.log_dirs import LogDirs, live_partitions  # noqa: PLC0415

    if not checkpoint:
        raise OptionError(
            "--checkpoint is empty: name the folder in which the query notes its place"
        )
    parsed = ReadOptions.parse({**options, "path": log, "subscribe": topic})
    parsed.refuse_for_streaming()
    local = [path for path in parsed.paths if isinstance(path, str)]
    refuse_among_logs("--checkpoint", checkpoint, local)
    subscription = Subscription.of(parsed)
    if "://" not in checkpoint and not Path(checkpoint).exists():
        subscription.require_topics(live_partitions(LogDirs(parsed.paths)), parsed.paths)


def check_input(path: str) -> None:
    """Refuse an input folder that is not there, unless it is a pattern or somewhere else.

    Raises:
        BadParameter: there is no such file or folder.
    """
    if "://" not in path and not re.search(r"[*?\[{]", path) and not Path(path).exists():
        raise typer.BadParameter(f"{path} does not exist", param_hint="INPUT")


def _say(sentence: str, code: int) -> int:
    print_line(" ".join(sentence.split()), err=True)
    return code


def print_line(text: str, *, err: bool = False) -> None:
    """Print a line, on standard error if ``err``; see :func:`kafkalog.texts.printable`."""
    typer.echo(printable(text), err=err)


def json_line(row: object) -> str:
    """Return a value as one line of JSON, in which letters that are not printable are escaped."""
    text = json.dumps(row, ensure_ascii=False)
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)
