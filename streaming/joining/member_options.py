"""How a query takes part in its group: a Consumer's options, with a query's defaults."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.sealed_file import read_sealed, seal
from kafkalog.errors import CheckpointError
from kafkalog.files.atomic import create_atomically, make_with_parents
from kafkalog.files.regular import fsync_directory
from kafkalog.files.system import system
from kafkalog.streaming.consumer.consumer_options import ConsumerOptions
from kafkalog.streaming.options.declaring import options_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kafkalog.streaming.source.read_options import ReadOptions


__all__ = [
    "MEMBER_NAME_FILE",
    "instance_of",
    "kept_name",
    "member_options",
    "without_member_options",
]


# ----------------------------------------------------------------------------------------------
# The name of a query in its consumer group, where it was given none.
#
# A sealed file (:mod:`kafkalog.checkpoints.sealed_file`) in a folder that belongs to one query.
# Its one line is JSON with one name, ``instance``: ``query-`` and a random UUID.


MEMBER_NAME_FILE: Final = "kafkalog.member"
_FORMAT: Final = "kafkalog.member"
_VERSION: Final = 1
_GO_WITHOUT: Final = "Move it away while the query is stopped: it joins under a new name then"


def kept_name(folder: Path) -> str:
    """Return the name that is kept in a folder; a new one is kept there first.

    Raises:
        CheckpointError: the file is damaged, from a newer release, or cannot be written.
    """
    found = _read(folder)
    if found is not None:
        return found
    path = folder / MEMBER_NAME_FILE
    line = {"instance": f"query-{system.random_id()}"}
    try:
        make_with_parents(folder)
        create_atomically(path, seal(_FORMAT, _VERSION, [line]))
        fsync_directory(folder)
    except FileExistsError:
        return _read(folder) or line["instance"]
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error}") from error
    return line["instance"]


def _read(folder: Path) -> str | None:
    path = folder / MEMBER_NAME_FILE
    try:
        sealed = read_sealed(path, _FORMAT, _VERSION, remedy=_GO_WITHOUT)
        return None if sealed is None else str(sealed.lines[0]["instance"])
    except (KeyError, IndexError, TypeError) as error:
        raise CheckpointError(f"{path} holds no name: {error!r}. {_GO_WITHOUT}") from error


# ----------------------------------------------------------------------------------------------

_UNLIMITED_MS: Final = "2147483647"
_REBALANCE_MS: Final = "300000"

_TAKEN: Final = frozenset(
    {
        *("kafka.session.timeout.ms", "kafka.heartbeat.interval.ms", "kafka.max.poll.interval.ms"),
        *("kafka.rebalance.timeout.ms", "kafka.partition.assignment.strategy"),
        *("kafka.group.instance.id", "kafka.client.id", "kafka.max.block.ms"),
    }
)


def member_options(given: Mapping[str, str]) -> ConsumerOptions:
    """Parse what a query was given; ``given`` are all of its options.

    Raises:
        OptionError: options that cannot be used.
    """
    known = {name for each in options_of(ConsumerOptions) for name in each.spellings()}
    taken = {n.lower(): t for n, t in given.items() if n.lower() in known & {*_TAKEN, "path"}}
    taken.setdefault("kafka.client.id", "query")
    if "kafka.max.poll.interval.ms" not in taken:
        taken["kafka.max.poll.interval.ms"] = _UNLIMITED_MS
        taken.setdefault("kafka.rebalance.timeout.ms", _REBALANCE_MS)
    return ConsumerOptions.parse(taken)


def without_member_options(options: ReadOptions) -> ReadOptions:
    """Return a query's options, of which those that a member takes are not ignored."""
    left = tuple(name for name in options.ignored if name.lower() not in _TAKEN)
    return replace(options, ignored=left)


def instance_of(options: ReadOptions) -> str:
    """Return the query's name in its group; one without is given one, which is kept.

    Raises:
        CheckpointError: it cannot be kept or read.
    """
    if options.group_instance_id is not None:
        return options.group_instance_id
    return kept_name(Path(options.state_location or ""))
