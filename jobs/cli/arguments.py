"""Arguments that the commands share, and options that say which records a command takes."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kafkalog.errors import OptionError
from kafkalog.jobs.process.arguments import (
    STORES,
    pairs,
    point_in_time,
    refuse_all_but_stores,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kafkalog.jobs.inspection.records import RecordFilter, Search


__all__ = [
    "NO_TIER",
    "DryRun",
    "End",
    "Format",
    "Group",
    "Header",
    "Hex",
    "Json",
    "Key",
    "Partition",
    "Paths",
    "Producer",
    "Since",
    "Start",
    "Template",
    "Tier",
    "Topic",
    "TopicName",
    "TopicNames",
    "Topics",
    "Transaction",
    "Until",
    "Words",
    "data_of",
    "topics_there",
    "with_tier",
]


# ----------------------------------------------------------------------------------------------
# What a shell completes beyond commands, options and files: the topics of log directories.


def topics_there(context: typer.Context, incomplete: str) -> list[str]:
    """Return the topics whose names begin so, of the log directories typed before; sorted.

    Whatever is wrong with these is said when the command runs: here it means no names.
    """
    from kafkalog.errors import KafkaLogError  # noqa: PLC0415
    from kafkalog.jobs.inspection.log_dirs import log_dirs_of  # noqa: PLC0415

    given: Mapping[str, Any] = context.params
    # Words after which an option has no value yet are left as they came.
    paths = given.get("paths") or [word for word in context.args if not word.startswith("-")]
    if not paths:
        return []
    try:
        names = {key.topic for key in log_dirs_of(paths).partitions()}
    except (KafkaLogError, OSError):
        return []
    return sorted(name for name in names if name.startswith(incomplete))


# ----------------------------------------------------------------------------------------------

Paths = Annotated[
    list[str],
    typer.Argument(
        metavar="PATH…",
        help="The log directories that belong together. Default: KAFKALOG_PATH.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")
]
Topic = Annotated[
    str, typer.Option("--topic", "-t", help="The topic.", autocompletion=topics_there)
]
TopicName = Annotated[
    str | None, typer.Option("--topic", "-t", help="This topic only.", autocompletion=topics_there)
]
TopicNames = Annotated[
    list[str] | None,
    typer.Option(
        "--topic", "-t", help="The topic; with commas, or repeated.", autocompletion=topics_there
    ),
]
Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        "-t",
        help="These topics only; with commas, or repeated. Default: all.",
        autocompletion=topics_there,
    ),
]


# ----------------------------------------------------------------------------------------------
# The remote tier below log directories, for every command that reads logs.

_TIER_OPTIONS: Final = {
    "remote": Annotated[
        str | None,
        typer.Option(
            "--remote", metavar="TIER", help="Read the remote tier, too; without PATH, it alone."
        ),
    ],
    "remote_layout": Annotated[
        str | None,
        typer.Option(
            "--remote-layout", metavar="LAYOUT", help="Of the tier: kafka, aiven or pinterest."
        ),
    ],
    "remote_keys": Annotated[
        str | None,
        typer.Option(
            "--remote-keys", metavar="ID=FILE", help="Private keys of the tier, with commas."
        ),
    ],
}


@dataclass(frozen=True, slots=True)
class Tier:
    """The remote tier that a command was given, or none."""

    settings: Mapping[str, str] = field(default_factory=dict)
    """Options of the source."""
    is_given: bool = False

    @classmethod
    def of(
        cls, remote: str | None, layout: str | None, keys: str | None, words: list[str] | None
    ) -> Tier:
        """Take the options of a command; ``words`` are those of ``--set``.

        Raises:
            BadParameter: of ``--set``, a word without ``=``; or an option that needs ``--remote``.
        """
        settings = pairs(words)
        told = {"path": remote, "layout": layout, "encryption.keys": keys}
        settings |= {f"remote.{name}": value for name, value in told.items() if value is not None}
        if "remote.path" not in settings and (layout or keys):
            raise typer.BadParameter("--remote-layout and --remote-keys go with --remote")
        return cls(settings, "remote.path" in settings)

    @property
    def alone(self) -> list[str]:
        """What is read where no log directory is named."""
        return [self.settings["remote.path"]] if self.is_given else []

    def source_options(self, paths: list[str]) -> dict[str, str]:
        """Return the options of the source that name log directories and what lies below them."""
        from kafkalog.jobs.inspection.log_dirs import source_options  # noqa: PLC0415

        return source_options(self.below(paths))

    def below(self, paths: list[str]) -> list[str]:
        """Return log directories with the tier below them.

        Raises:
            OptionError: it cannot lie below these.
        """
        if not self.is_given:
            return paths
        from kafkalog.jobs.inspection.tiers import tiered_paths  # noqa: PLC0415 - few need it

        return tiered_paths(paths, self.settings["remote.path"], self.settings)


NO_TIER: Final = Tier()


def with_tier(act: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of a remote tier; it takes them as ``tier``."""
    signature = inspect.signature(act, eval_str=True)
    own = {name: each for name, each in signature.parameters.items() if name != "tier"}
    added = _TIER_OPTIONS if "settings" in own else {**_TIER_OPTIONS, "settings": STORES}

    @wraps(act)
    def command(**words: Any) -> None:  # noqa: ANN401 - whatever the command takes
        settings = words["settings"]
        told = {name: words.pop(name) for name in added}
        tier = Tier.of(told["remote"], told["remote_layout"], told["remote_keys"], settings)
        if "settings" in added and not tier.is_given:
            refuse_all_but_stores(settings)
        act(**words, tier=tier)

    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in added.items()
    ]
    setattr(command, "__signature__", inspect.Signature([*own.values(), *parameters]))  # noqa: B010
    command.__annotations__ = {name: each.annotation for name, each in own.items()} | added
    return command


# ----------------------------------------------------------------------------------------------
# Options that say which records a command takes; ``dump`` and ``find`` share them.


Partition = Annotated[
    int | None, typer.Option("--partition", "-p", min=0, help="This partition only.")
]
Start = Annotated[int, typer.Option("--start", "--offset", "-o", min=0, help="The first offset.")]
End = Annotated[int | None, typer.Option(min=0, help="The offset before which to end.")]
Since = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Records of this time or later: 1h (ago), yesterday, 2026-11-22T10:15:00Z or ms.",
    ),
]
Until = Annotated[str | None, typer.Option(metavar="TIME", help="Records before this time.")]
Key = Annotated[str | None, typer.Option(help="Records with this key.")]
Header = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME[=VALUE]", help="Records with this header; may be repeated."),
]
Producer = Annotated[
    list[int] | None, typer.Option(help="Records of the producer with this id; may be repeated.")
]
Transaction = Annotated[
    str | None,
    typer.Option("--transactional-id", help="Records of the producers that had this id."),
]
Group = Annotated[str | None, typer.Option(help="Records that this consumer group has not read.")]
Format = Annotated[
    str | None,
    typer.Option("--format", help="Print each record so, as kcat: '%t %p %o %T %k %s\\n'."),
]
Template = Annotated[
    str | None,
    typer.Option("--format", "-f", help="Print each record so, as kcat: '%t %p %o %T %k %s\\n'."),
]
Hex = Annotated[bool, typer.Option("--hex", help="Keys and values are hexadecimal digits.")]


@dataclass(frozen=True, slots=True)
class Words:
    """The options as they were given."""

    partition: int | None = None
    start: int = 0
    end: int | None = None
    since: str | None = None
    until: str | None = None
    key: str | None = None
    header: list[str] | None = None
    producer: list[int] | None = None
    transactional_id: str | None = None
    is_hex: bool = False

    @property
    def are_for_records(self) -> bool:
        """Whether there is an option that has no meaning for batches."""
        words = (self.end, self.since, self.until, self.key, self.transactional_id)
        return any(word is not None for word in words) or bool(self.header or self.producer)

    def wanted(self, path: str, search: Search | None = None) -> RecordFilter:
        """Return what the options ask for; ``path`` is where transactional ids are looked up.

        Raises:
            OptionError: words that mean nothing.
            UnknownTopicOrPartitionError: nothing is known of the transactional id.
        """
        from kafkalog.jobs.inspection.records import HeaderFilter, RecordFilter  # noqa: PLC0415

        since = None if self.since is None else point_in_time("--since", self.since)
        until = None if self.until is None else point_in_time("--until", self.until)
        if self.end is not None and self.end <= self.start:
            raise OptionError(f"--end {self.end} leaves nothing: --start is {self.start}")
        if since is not None and until is not None and until <= since:
            raise OptionError(f"--until {self.until} leaves nothing: --since is {self.since}")
        return RecordFilter(
            partition=self.partition,
            start=self.start,
            end=self.end,
            since=since,
            until=until,
            key=None if self.key is None else data_of(self.key, is_hex=self.is_hex),
            headers=tuple(HeaderFilter.of(word) for word in self.header or ()),
            producers=self._producers(path),
            search=search,
        )

    def _producers(self, path: str) -> frozenset[int] | None:
        named = frozenset(self.producer) if self.producer else None
        if self.transactional_id is None:
            return named
        from kafkalog.jobs.inspection.records import producers_of_transaction  # noqa: PLC0415

        known = producers_of_transaction(path, self.transactional_id)
        return known if named is None else known & named


def data_of(text: str, *, is_hex: bool) -> bytes:
    """Read a key or value: its UTF-8, or hexadecimal digits.

    Raises:
        OptionError: digits that are not hexadecimal.
    """
    if not is_hex:
        return text.encode("utf-8", "surrogateescape")
    from kafkalog.jobs.cli.line_input import from_hex  # noqa: PLC0415 - needs Arrow

    try:
        return from_hex(text)
    except ValueError as error:
        raise OptionError(str(error)) from None
