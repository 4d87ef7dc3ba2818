"""The command that looks for the newest records of keys: ``get``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kafkalog.errors import OptionError
from kafkalog.jobs.cli.arguments import (
    NO_TIER,
    Hex,
    Json,
    Paths,
    Tier,
    Topic,
    data_of,
    with_tier,
)
from kafkalog.jobs.cli.output import end_if_nothing, one_line_errors, print_found
from kafkalog.jobs.process.arguments import (
    READ_ISOLATION,
    SETTINGS,
    Isolation,
    point_in_time,
    reading_options,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from kafkalog.streaming.lookup.lookup import AsOf
    from kafkalog.streaming.lookup.seen_keys import Keys


__all__ = ["Sought", "find_rows", "get", "shown_data", "shown_record"]


# ----------------------------------------------------------------------------------------------
# What ``get`` shows, as rows of plain values.


Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Sought:
    """The words of a command that say which keys to look for."""

    key: str | None
    prefix: str | None
    low: str | None
    high: str | None
    is_hex: bool

    def keys(self) -> Keys:
        """Return the keys.

        Raises:
            OptionError: none of the ways to name keys is used, or more than one; keys that end
                before they begin; or digits that are not hexadecimal.
        """
        from kafkalog.streaming.lookup.seen_keys import KeySpan  # noqa: PLC0415

        spans = self.low is not None or self.high is not None
        if (self.key is not None) + (self.prefix is not None) + spans != 1:
            raise OptionError("say which keys: --key, or --prefix, or --from and --to")
        if self.key is not None:
            return frozenset({data_of(self.key, is_hex=self.is_hex)})
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise OptionError(f"--to {self.high} leaves nothing: --from is {self.low}")
        if self.prefix is not None:
            return KeySpan.with_prefix(data_of(self.prefix, is_hex=self.is_hex))
        high = None if self.high is None else data_of(self.high, is_hex=self.is_hex)
        return KeySpan(data_of(self.low or "", is_hex=self.is_hex), high)


def find_rows(
    given: Mapping[str, str],
    topic: str,
    sought: Sought,
    *,
    partition: int | None,
    all_partitions: bool,
    as_of: AsOf,
) -> Iterator[Row]:
    """Yield the newest record of each key, in the order of keys and partitions.

    ``given`` are options of the source.

    Raises:
        OptionError, UnknownTopicOrPartitionError, KafkaLogError: as ``look_up`` and
            ``look_up_span``.
    """
    from kafkalog.streaming.lookup.lookup import (  # noqa: PLC0415 - needs Arrow
        look_up,
        look_up_span,
        partition_to_search,
    )

    if all_partitions and partition is not None:
        raise OptionError("give --partition or --all-partitions, not both")
    keys = sought.keys()
    if partition is not None or (isinstance(keys, frozenset) and not all_partitions):
        key = next(iter(keys)) if isinstance(keys, frozenset) else b""
        partition = partition_to_search(given, topic, key, partition)
    show = shown_data(is_hex=sought.is_hex)
    if isinstance(keys, frozenset):
        found = look_up(given, topic, keys, partition=partition, as_of=as_of)
    else:
        found = look_up_span(given, topic, keys, partition=partition, as_of=as_of)
    for batch in found:
        for row in batch.to_pylist():
            yield shown_record(row, show)


def shown_data(*, is_hex: bool) -> Callable[[bytes], str]:
    """Return what makes text of keys and values; bytes that are no UTF-8 become escapes."""
    return bytes.hex if is_hex else lambda data: data.decode("utf-8", "backslashreplace")


def shown_record(row: Mapping[str, Any], show: Callable[[bytes], str]) -> Row:
    """Return a record as commands show it; ``timestamp`` in ms."""
    headers = [
        {"key": each["key"], "value": None if each["value"] is None else show(each["value"])}
        for each in row["headers"] or ()
    ]
    names = ("topic", "partition", "offset", "timestamp")
    shown = {name: None if row[name] is None else show(row[name]) for name in ("key", "value")}
    return {**{name: row[name] for name in names}, **shown, "headers": headers}


# ----------------------------------------------------------------------------------------------

Key = Annotated[str | None, typer.Option("--key", "-k", help="The key.")]
Prefix = Annotated[str | None, typer.Option(help="All keys that begin with it.")]
Low = Annotated[str | None, typer.Option("--from", help="All keys from this one on, by bytes.")]
High = Annotated[str | None, typer.Option("--to", help="All keys below this one.")]
Partition = Annotated[
    int | None,
    typer.Option(
        "--partition",
        "-p",
        min=0,
        help="The partition. Default: for --key, the one that its hash chooses.",
    ),
]
AllPartitions = Annotated[
    bool, typer.Option("--all-partitions", help="Look for --key in all partitions.")
]
Offset = Annotated[
    int | None,
    typer.Option("--as-of-offset", min=0, help="The newest below this offset of the partition."),
]
Time = Annotated[
    str | None,
    typer.Option(
        "--as-of-timestamp",
        metavar="TIME",
        help="The newest before the first record of this time (1h ago, ISO 8601, ms) or later.",
    ),
]
Stats = Annotated[
    bool, typer.Option("--stats", help="Say on stderr what the cache of the process did.")
]


@with_tier
def get(  # noqa: PLR0917 - what the command line offers
    paths: Paths,
    topic: Topic,
    key: Key = None,
    prefix: Prefix = None,
    low: Low = None,
    high: High = None,
    is_hex: Hex = False,
    partition: Partition = None,
    all_partitions: AllPartitions = False,
    as_of_offset: Offset = None,
    as_of_timestamp: Time = None,
    isolation: READ_ISOLATION = Isolation.UNCOMMITTED,
    settings: SETTINGS = None,
    as_json: Json = False,
    stats: Stats = False,
    tier: Tier = NO_TIER,
) -> None:
    """Show the newest record of a key, or of several; ends with 1 if there is none."""
    with one_line_errors():
        from kafkalog.streaming.lookup.lookup import AsOf  # noqa: PLC0415

        time = None
        if as_of_timestamp is not None:
            time = point_in_time("--as-of-timestamp", as_of_timestamp)
        rows = find_rows(
            {**tier.source_options(paths), **reading_options(isolation, settings)},
            topic,
            Sought(key, prefix, low, high, is_hex=is_hex),
            partition=partition,
            all_partitions=all_partitions,
            as_of=AsOf(as_of_offset, time),
        )
        found = print_found(rows, as_json=as_json)
    if stats:
        from kafkalog.streaming.lookup.block_cache import block_cache  # noqa: PLC0415

        typer.echo(f"cache: {block_cache().stats()}", err=True)
    end_if_nothing(found, f"no record of such a key is in {topic}")
