"""What the commands about groups show, as rows of plain values."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kafkalog.checkpoints.committed import load_committed
from kafkalog.errors import UnknownTopicOrPartitionError
from kafkalog.jobs.inspection.lag import lag_of
from kafkalog.jobs.inspection.log_dirs import (
    ends_of,
    ends_of_chosen,
    log_dirs_of,
    partitions_of,
    say_missing,
)
from kafkalog.model import OFFSETS_TOPIC, TopicPartition, TopicSelection, listed
from kafkalog.streaming.coordinator.group_replay import partition_for_group, read_groups
from kafkalog.streaming.groups.member_files import MemberFolder
from kafkalog.streaming.groups.position_topics import is_of_earlier_topic, last_batch_of
from kafkalog.streaming.groups.rebalance import GroupRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from kafkalog.streaming.coordinator.group_replay import CommittedOffset, KnownGroup
    from kafkalog.streaming.groups.rebalance import Member
    from kafkalog.streaming.source.offsets import PartitionOffsets
    from kafkalog.streaming.store.ends.tracker import LogEndTracker
    from kafkalog.streaming.store.log_dirs import LogDirs

__all__ = ["list_groups", "summarize_groups"]

Row = dict[str, Any]

_LOGGER: Final = logging.getLogger("kafkalog.jobs")

_NO_LAG: Final[Row] = dict.fromkeys(("lag", "bytes", "nextTimestamp", "behindMs"))
_NOTHING: Final[Row] = {**dict.fromkeys(("topic", "partition", "offset", "end")), **_NO_LAG}
_NOBODY: Final[Row] = dict.fromkeys(("member", "client", "instance", "host", "process"))


def list_groups(
    paths: Sequence[str], names: Sequence[str] = (), watch: LogEndTracker | None = None
) -> list[Row]:
    """Return a row for each partition that a group reads or has a position in.

    So has a member without partitions, and a group that has neither. ``problem`` says why there is
    no lag.

    Args:
        paths: the log directories.
        names: these groups; all if none is named.
        watch: what it has listed is not listed again.

    Raises:
        UnknownTopicOrPartitionError: there is no such group.
        KafkaLogError: directories or logs that cannot be read.
    """
    log_dirs = log_dirs_of(paths)
    lost = say_missing(log_dirs)
    groups = _groups(paths, log_dirs, names, watch)
    for name in names:
        if name not in groups:
            raise UnknownTopicOrPartitionError(
                f"there is no group {name!r} here. Groups there: {listed(sorted(groups)) or 'none'}"
            )
    chosen = {name: groups[name] for name in (dict.fromkeys(names) or sorted(groups))}
    read = {key for group in chosen.values() for key in _partitions(group)}
    watch = ends_of_chosen(paths, read.__contains__)
    ends = {key: end for key, end in watch.look().offsets.items() if key not in lost}
    folders = [path for path in log_dirs.paths if isinstance(path, Path)]
    return [
        row
        for name, group in chosen.items()
        for row in _rows(watch, ends, name, group, _processes(folders, name))
    ]


def summarize_groups(paths: Sequence[str]) -> list[Row]:
    """Return a row for each group: members, partitions, its lag in all, and the longest of them.

    ``problems`` counts partitions of which no lag is known; ``lag`` is that of the others.

    Raises:
        KafkaLogError: directories or logs that cannot be read.
    """
    found: dict[str, list[Row]] = {}
    for row in list_groups(paths):
        found.setdefault(row["group"], []).append(row)
    return [
        {
            "group": group,
            "state": rows[0]["state"],
            "members": len({row["member"] for row in rows} - {None}),
            "partitions": sum(row["topic"] is not None for row in rows),
            "lag": _in_all(sum, rows, "lag"),
            "bytes": _in_all(sum, rows, "bytes"),
            "behindMs": _in_all(max, rows, "behindMs"),
            "problems": sum(row["problem"] is not None for row in rows),
        }
        for group, rows in found.items()
    ]


def _in_all(of: Callable[[list[int]], int], rows: Sequence[Row], name: str) -> int | None:
    known = [row[name] for row in rows if row[name] is not None]
    return of(known) if known else None


def _partitions(group: KnownGroup) -> set[TopicPartition]:
    """Return the partitions that a group has positions in, and those that its members hold."""
    record = GroupRecord() if group.metadata is None else GroupRecord.of(group.metadata)
    return group.positions.keys() | {key for each in record.members.values() for key in each.held}


def _groups(
    paths: Sequence[str], log_dirs: LogDirs, names: Sequence[str], seen: LogEndTracker | None
) -> dict[str, KnownGroup]:
    """Return the groups that are named, and maybe others; all where one of them is not there."""
    watch = ends_of(paths, TopicSelection.of(OFFSETS_TOPIC))
    known = watch.look().offsets
    if not known:
        there = partitions_of(paths, watch=seen)
        # A broker's groups may be in a directory that was not named; the sink knows all of its own.
        if there and load_committed(log_dirs.paths).state is None:
            _LOGGER.warning("there is no topic %s here, which has the positions", OFFSETS_TOPIC)
        return {}
    count = max(key.partition for key in known) + 1
    own = {TopicPartition(OFFSETS_TOPIC, partition_for_group(name, count)) for name in names}
    groups = _replayed(watch, {key: end for key, end in known.items() if key in own})
    if not names or not groups.keys() >= set(names):
        groups |= _replayed(watch, {key: end for key, end in known.items() if key not in own})
    return groups


def _replayed(watch: LogEndTracker, ends: PartitionOffsets) -> dict[str, KnownGroup]:
    groups: dict[str, KnownGroup] = {}
    for key, end in ends.items():
        with watch.open(key) as log:
            groups |= read_groups(log, end)
    return groups


def _processes(folders: Sequence[Path], group: str) -> dict[str, int | None]:
    """Return the processes of the members of ours that live or lived, by member id."""
    return {
        sign.member: sign.process
        for folder in folders
        for sign in MemberFolder(folder, group).read().values()
        if sign.member is not None
    }


def _rows(
    watch: LogEndTracker,
    ends: PartitionOffsets,
    name: str,
    group: KnownGroup,
    processes: Mapping[str, int | None],
) -> Iterator[Row]:
    record = GroupRecord() if group.metadata is None else GroupRecord.of(group.metadata)
    state, generation = _state(group, record), None
    if group.metadata is not None:
        generation = record.generation
    first: Row = {"group": name, "state": state, "generation": generation}
    members = {id_: _member(id_, each, processes) for id_, each in record.members.items()}
    readers = {key: id_ for id_, each in record.members.items() for key in each.held}
    keys = sorted(group.positions.keys() | readers.keys())
    for key in keys:
        position = group.positions.get(key)
        offset, end = _offset(watch, key, position), ends.get(key)
        found, problem = _NO_LAG, None
        if position is not None:
            batch = None if offset is None else last_batch_of(position)
            found, problem = lag_of(watch, key, offset, end, batch)
        place = {**key._asdict(), "offset": offset, "end": end, **found}
        reader = members[readers[key]] if key in readers else _NOBODY
        yield {**first, **place, **reader, "problem": problem}
    for id_ in record.members.keys() - readers.values():
        yield {**first, **_NOTHING, **members[id_], "problem": None}
    if not keys and not members:
        yield {**first, **_NOTHING, **_NOBODY, "problem": None}


def _offset(
    watch: LogEndTracker, key: TopicPartition, position: CommittedOffset | None
) -> int | None:
    """Return where a group stands; None where it begins at the log start of a recreated topic."""
    if position is None:
        return None
    ids, is_changed = watch.topic_ids(), watch.is_changed_id
    is_earlier = is_of_earlier_topic(key, position.metadata, ids, is_changed)
    return None if is_earlier else position.offset


def _state(group: KnownGroup, record: GroupRecord) -> str | None:
    """Return the state by Kafka's names; None of a group that only a broker knows."""
    if group.is_newer:
        return None
    if group.metadata is None or not group.metadata.members:
        return "Empty"
    is_moving = any(each.revoked for each in record.members.values())
    return "PreparingRebalance" if is_moving else "Stable"


def _member(id_: str, member: Member, processes: Mapping[str, int | None]) -> Row:
    settings = member.settings
    return {
        "member": id_,
        "client": settings.client_id,
        "instance": settings.instance,
        "host": settings.host,
        "process": processes.get(id_),
    }
