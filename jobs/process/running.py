"""Run a command line so that whatever the user did wrong is one line on stderr.

Exit codes: 2 for wrong arguments, 1 for what failed with right ones.
"""

from __future__ import annotations

import errno
import json
import logging
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TextIO, cast

import typer
import typer.core

from kafkalog.errors import InvalidTopicError, KafkaLogError, OptionError
from kafkalog.files.paths import refuse_among_logs
from kafkalog.files.system import said_of_file
from kafkalog.jobs.process.jars import JarError
from kafkalog.texts import printable

if TYPE_CHECKING:
    from collections.abc import Mapping


__all__ = [
    "Command",
    "check_input",
    "check_reading",
    "json_line",
    "print_line",
    "run",
    "said_by_system",
    "sentence_in",
]


# ----------------------------------------------------------------------------------------------
# What every command of ``kafkalog`` and every pipeline does with its words.


class Command(typer.core.TyperCommand):
    """A command that refuses a second value for an option that takes one: the first would be lost.

    Example: ``kafkalog get LOG --topic t --key a --key b``.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - a class of typer
        """Read the words of the command."""
        if not ctx.resilient_parsing:  # which is how a shell completes words
            _, _, given = self.make_parser(ctx).parse_args(args=list(args))
            for option in given:
                if not isinstance(option, typer.core.TyperOption) or option.multiple:
                    continue
                if not option.is_flag and given.count(option) > 1:
                    raise typer.BadParameter("given twice; it takes one value", ctx, option)
        return super().parse_args(ctx, args)


# ----------------------------------------------------------------------------------------------

_WRONG_USE: Final = cast("type[Exception]", typer.BadParameter.__mro__[2])
"""What typer raises for words that it cannot use; it names only this one of the classes."""

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


def run(app: typer.Typer) -> NoReturn:
    """Run a command line and end the process. Warnings begin with their level."""
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
    except _WRONG_USE as error:
        code = _say_wrong_use(error)
    except (OptionError, InvalidTopicError) as error:
        code = _say(str(error), 2)
    except Exception as error:
        sentence = sentence_in(error)
        if sentence is None:
            raise
        code = _say(sentence, 1)
    sys.exit(code if isinstance(code, int) else 0)


def _end_output() -> None:
    """Write what is left in memory: here an error can be said, and not when Python ends."""
    output = cast("TextIO | None", sys.stdout)
    if output is not None and not output.closed:
        output.flush()


def _say_wrong_use(error: Any) -> int:  # noqa: ANN401 - typer shows its base class to nobody
    message = error.format_message()
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
    from kafkalog.streaming.store.log_dirs import LogDirs  # noqa: PLC0415
    from kafkalog.streaming.store.partition_folders import live_partitions  # noqa: PLC0415

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
