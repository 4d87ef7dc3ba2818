"""Salvage a damaged log of which no copy is left: cut it, or take the damage out.

What is damaged is shown first. An operator then names each place, and what is to become of it:

``drop``
    The damaged bytes go. Sound batches keep their offsets, so a gap is left, as compaction leaves
    one. Where the end of a log is damaged or missing, the log continues in a new segment after it:
    no offset is given twice.
``cut``
    The log ends there. All that follows goes too, and its offsets are given again to what is
    appended next. The commit state and a broker's checkpoint files go back with it.

The former segments are kept in the root of the log directory, as ``.kafkalog.salvaged.*``: readers
and brokers pass over files there. Every step can be cut off; then the same command is run again.
Until it has come to its end, the folder ``kafkalog.unfinished`` keeps brokers from starting,
whoever writes or recovers meanwhile: one would cut off all that follows damage.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Self, TypeAlias

import numpy as np

from kafkalog.checkpoints.broker import (
    CLEANER_OFFSET,
    HIGH_WATERMARK,
    LOG_START_OFFSET,
    RECOVERY_POINT,
    read_offset_checkpoint,
    read_topic_id,
    remove_clean_shutdown_marker,
    write_offset_checkpoint,
)
from kafkalog.checkpoints.committed import load_committed
from kafkalog.checkpoints.state_file import load_state
from kafkalog.errors import CorruptRecordError, OptionError, UnknownTopicOrPartitionError
from kafkalog.files.deferred_signals import shielded
from kafkalog.files.regular import (
    copy_range,
    create_exclusive,
    fsync_directory,
    fsync_file,
    open_regular,
    sync,
    try_to_link,
)
from kafkalog.model import MAX_OFFSET, TopicPartition, said_there
from kafkalog.streaming.log.files import LOG, file_name, parse_partition_directory
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.log.recovery import start_segment
from kafkalog.streaming.log.segments import LogSegments, list_base_offsets
from kafkalog.streaming.log.swap import finish_swap, rewrite_segment, truncate_log
from kafkalog.streaming.log.valid_batches import ValidEnd, ends_in_zeros, valid_chunks
from kafkalog.streaming.options.topic_settings import LogConfig
from kafkalog.streaming.records.columns import Columns, RecordDecoder
from kafkalog.streaming.store.ends.recorded import BrokerMarks
from kafkalog.streaming.store.ends.rule import committed_end
from kafkalog.streaming.store.log_dirs import LogDirs, without_deleted
from kafkalog.streaming.store.nodes import note_salvage, salvage_is_over, unfinished_salvage
from kafkalog.streaming.store.policy import WAIT_MS, SetPolicy
from kafkalog.streaming.store.recovery.intent_verification import find_valid_batch, reach_of
from kafkalog.streaming.store.recovery.partition_states import ended_at
from kafkalog.streaming.store.session import Session, existing_log_dirs, refuse_nodes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kafkalog.checkpoints.commit_state import CommitState
    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.log.segment import Chunk, LogSegment
    from kafkalog.streaming.records.batch import BatchTable
    from kafkalog.streaming.store.log_set import LogSet

__all__ = [
    "KEPT_PREFIX",
    "Choice",
    "Damage",
    "DamagedPlace",
    "LogDamage",
    "PlaceName",
    "Salvaged",
    "chosen_places",
    "look_for_damage",
    "place_name",
    "salvage",
]

KEPT_PREFIX: Final = ".kafkalog.salvaged."

_DONE: Final[dict[Choice, str]] = {"drop": "dropped", "cut": "cut"}
_LONGEST_NAME: Final = 180
"""Of a partition in the name of a file that is kept, whose length is limited."""


@dataclass(frozen=True, slots=True)
class DamagedPlace:
    """A damaged place, and what was done about it: ``dropped``, ``cut``, or nothing.

    ``kept`` are the files in which what was there is kept.
    """

    topic_partition: TopicPartition
    folder: Path
    damage: Damage
    done: str | None = None
    kept: tuple[Path, ...] = ()


@dataclass(slots=True)
class Salvaged:
    """What was found and done; ``notes`` say what else a person should know."""

    places: list[DamagedPlace] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class _Log(NamedTuple):
    key: TopicPartition
    where: PartitionDirectory
    found: LogDamage
    index_interval_bytes: int


@shielded
def salvage(
    paths: Sequence[str],
    partitions: Sequence[TopicPartition] = (),
    *,
    drop: Sequence[str] = (),
    cut: Sequence[str] = (),
    dry_run: bool = False,
    wait_ms: int = WAIT_MS,
) -> Salvaged:
    """Show what is damaged, and do away with the places that are named.

    Args:
        paths: all log directories of the set.
        partitions: those to look at; none for all of them, or for those that places name.
        drop: places, as ``topic-0@offset`` or ``topic-0/00000000000000000000.log:position``.
        cut: places likewise.
        dry_run: whether to say only what would be done, and change nothing.
        wait_ms: how long to wait for a writer of ours.

    Raises:
        OptionError: a name that is none, or of nothing that is damaged; nothing was changed.
        UnknownTopicOrPartitionError: a partition that is not there, or was deleted.
        LogDirectoryError: a broker holds one of the directories.
        KafkaLogError: the directories are no whole set, or their state cannot be trusted.
    """
    names = _place_names(drop, cut)
    directories = [Path(os.path.realpath(path)) for path in existing_log_dirs(paths)]
    wanted = [*partitions, *(name.topic_partition for name in names)]
    if names:
        refuse_nodes(directories, "kafkalog salvage")
    if not names or dry_run:
        logs = _looked_at(directories, wanted, load_committed(directories).state)
        return _planned(names, logs, directories) if names else _shown(logs)
    with Session(directories, SetPolicy.of_upkeep(wait_ms), holder="kafkalog salvage") as session:
        is_ours = any(load_state(folder) is not None for folder in directories)
        log_set = session.open() if is_ours else None
        state = None if log_set is None else log_set.state
        for where in _chosen(directories, wanted, state).values():
            finish_swap(where.path)
        return _without(names, _looked_at(directories, wanted, state), session, log_set)


def _place_names(drop: Sequence[str], cut: Sequence[str]) -> list[PlaceName]:
    names = [PlaceName.parse(text, "drop") for text in drop]
    return names + [PlaceName.parse(text, "cut") for text in cut]


def _planned(
    names: Sequence[PlaceName], logs: Sequence[_Log], directories: Sequence[Path]
) -> Salvaged:
    """Return what would be done with the places that are named."""
    again = any(map(unfinished_salvage, directories))
    done = Salvaged()
    for log in logs:
        choices, notes = chosen_places(log.key, log.found, names, again=again)
        done.notes += notes
        done.places += [
            DamagedPlace(log.key, log.where.path, damage, done=_DONE[choice])
            for damage, choice in choices.items()
            if choice is not None
        ]
    return done


def _without(
    names: Sequence[PlaceName],
    logs: Sequence[_Log],
    session: Session,
    log_set: LogSet | None,
) -> Salvaged:
    """Do away with the places that are named; a salvage that is cut off is noted meanwhile.

    REQUIRES: the locks are held, and nothing is unfinished.
    """
    again = any(map(unfinished_salvage, session.directories))
    plans = [(log, *chosen_places(log.key, log.found, names, again=again)) for log in logs]
    done = Salvaged()
    session.verify()
    for folder in {log.where.log_dir for log, choices, _ in plans if any(choices.values())}:
        note_salvage(folder, _arguments(names))
    for log, choices, notes in plans:
        session.verify()
        done.notes += notes
        done.places += _Salvage(log, log_set).act(choices)
        done.notes += _open_transactions(log)
    for folder in session.directories:
        salvage_is_over(folder)
    return done


def _arguments(names: Sequence[PlaceName]) -> str:
    return " ".join(f"--{name.choice} {name.text}" for name in names)


def _chosen(
    directories: Sequence[Path], wanted: Sequence[TopicPartition], state: CommitState | None
) -> Mapping[TopicPartition, PartitionDirectory]:
    """Return what is wanted, or all; a topic that is being deleted is gone."""
    listed = LogDirs(directories).partitions()
    there = without_deleted(listed, state)
    for key in wanted:
        if key not in there:
            why = "was deleted" if key in listed else "has no folder"
            raise UnknownTopicOrPartitionError(
                f"partition {key} {why} in {', '.join(map(str, directories))}. "
                + said_there(key.topic, there)
            )
    return {key: there[key] for key in sorted(set(wanted) or there)}


def _looked_at(
    directories: Sequence[Path], wanted: Sequence[TopicPartition], state: CommitState | None
) -> list[_Log]:
    logs, marks = [], BrokerMarks(state)
    for key, where in _chosen(directories, wanted, state).items():
        if not wanted and not list_base_offsets(where.path):
            continue  # a folder that only has the name of a partition's
        topic_id = read_topic_id(where.path)
        known = state.topic(key.topic, topic_id) if state else None
        stands = known.partitions.get(key.partition) if known else None
        committed = stands.log_end if stands else None
        said = marks.said(where.path, key, committed)
        found = look_for_damage(where.path, committed_end(said) or 0, said.recovery_point or 0)
        config = LogConfig.of_topic(known.settings if known else {})
        logs.append(_Log(key, where, found, config.index_interval_bytes))
    return logs


def _shown(logs: Sequence[_Log]) -> Salvaged:
    places = [
        DamagedPlace(log.key, log.where.path, damage) for log in logs for damage in log.found.places
    ]
    return Salvaged(places)


def _open_transactions(log: _Log) -> list[str]:
    with PartitionLog(log.where.path, log.key) as now, suppress(CorruptRecordError):
        end = now.log_end_offset()
        stable = now.last_stable_offset(end)
        if stable < end:
            text = (
                f"{log.key}: a transaction that began at offset {stable} is open now; what ended "
                "it may be lost. `kafkalog broker takeover --abort-open-transactions` aborts it"
            )
            return [text]
    return []  # where damage is left, nobody can tell


class _Salvage:
    """Acts on one partition."""

    def __init__(self, log: _Log, log_set: LogSet | None) -> None:
        self._key, self._where, self._found, self._interval = log
        self._folder = log.where.path
        self._log_set = log_set

    def act(self, choices: Mapping[Damage, Choice | None]) -> list[DamagedPlace]:
        """Do as was chosen, and give all damaged places, in order."""
        if not any(choices.values()):
            return self._places(choices, {})
        remove_clean_shutdown_marker(self._where.log_dir)
        kept: dict[Damage, tuple[Path, ...]] = {}
        for damage in (each for each, choice in choices.items() if choice == "cut"):
            kept[damage] = self._cut(damage)
        dropped = [each for each, choice in choices.items() if choice == "drop"]
        if dropped:
            kept |= self._drop(dropped, is_cut=bool(kept))
        self._publish()
        return self._places(choices, kept)

    def _places(
        self, choices: Mapping[Damage, Choice | None], kept: Mapping[Damage, tuple[Path, ...]]
    ) -> list[DamagedPlace]:
        past = {"drop": "dropped", "cut": "cut"}
        return [
            DamagedPlace(
                self._key,
                self._folder,
                damage,
                None if choice is None else past[choice],
                kept.get(damage, ()),
            )
            for damage, choice in choices.items()
        ]

    # Drop

    def _drop(self, dropped: Sequence[Damage], *, is_cut: bool) -> dict[Damage, tuple[Path, ...]]:
        bases = list_base_offsets(self._folder)
        last = bases[-1] if bases else -1
        if not is_cut and dropped[-1].base_offset >= last:
            self._begin_after(last, max(self._found.end, dropped[-1].end))
        kept: dict[Damage, tuple[Path, ...]] = {}
        for base in sorted({damage.base_offset for damage in dropped if damage.size}):
            here = [each for each in dropped if each.base_offset == base and each.size]
            copies = (self._keep(base, link=True),)
            rewrite_segment(
                self._folder,
                base,
                [(each.position, each.position + each.size) for each in here],
                [(each.start, each.end) for each in here],
                index_interval_bytes=self._interval,
            )
            kept |= dict.fromkeys(here, copies)
        return kept

    def _begin_after(self, last: int, end: int) -> None:
        """Let the log continue in a new segment, so that the last one can be rewritten."""
        if last >= 0 and self._found.torn is not None:
            descriptor = open_regular(self._folder / file_name(last, LOG), os.O_RDWR)
            try:
                os.ftruncate(descriptor, self._found.torn)
                sync(descriptor)
            finally:
                os.close(descriptor)
        if end > last:
            start_segment(self._folder, end)
            fsync_directory(self._folder)

    # Cut

    def _cut(self, damage: Damage) -> tuple[Path, ...]:
        if not list_base_offsets(self._folder):
            start_segment(self._folder, damage.start)
        later = [b for b in list_base_offsets(self._folder) if b > damage.base_offset]
        kept = [self._keep(base, link=True) for base in later]
        if damage.size:
            kept.insert(0, self._keep(damage.base_offset, link=False))
        truncate_log(
            self._folder,
            damage.base_offset,
            damage.position,
            damage.start,
            index_interval_bytes=self._interval,
        )
        for name in (CLEANER_OFFSET, RECOVERY_POINT, LOG_START_OFFSET, HIGH_WATERMARK):
            if read_offset_checkpoint(self._where.log_dir, name).get(self._key, 0) > damage.start:
                write_offset_checkpoint(self._where.log_dir, name, {self._key: damage.start})
        self._publish(damage.start)
        return tuple(kept)

    def _publish(self, end: int | None = None) -> None:
        """Publish a state in which the partition ends there; what others remember is outdated."""
        if self._log_set is None:
            return
        state = self._log_set.state
        topics = dict(state.topics)
        key = state.key_of(self._key.topic, read_topic_id(self._folder))
        known = topics.get(key)
        if end is not None and known is not None and self._key.partition in known.partitions:
            known = topics[key] = ended_at(
                known, self._key.partition, end, self._folder, self._log_set.directories
            )
        if known is not None and self._key.partition in known.durable_ends:
            # What is left counts: a gap is no sign of records that a loss of power took.
            for base in list_base_offsets(self._folder):
                fsync_file(self._folder / file_name(base, LOG))
            ends = {p: at for p, at in known.durable_ends.items() if p != self._key.partition}
            topics[key] = replace(known, durable_ends=ends)
        self._log_set.publish(state.following(topics=topics))

    # The original

    def _keep(self, base_offset: int, *, link: bool) -> Path:
        """Keep a segment's log in the root, under a second name or as a copy; durably."""
        source = self._folder / file_name(base_offset, LOG)
        stem = f"{KEPT_PREFIX}{str(self._key)[:_LONGEST_NAME]}.{source.name}"
        number = 0
        while (target := self._where.log_dir / f"{stem}.{number}").exists():
            if target.samefile(source):
                return target
            number += 1
        if not (link and try_to_link(source, target)):
            _copy(source, target)
        fsync_directory(self._where.log_dir)
        return target


def _copy(source: Path, target: Path) -> None:
    temporary = target.with_name(target.name + ".tmp")
    temporary.unlink(missing_ok=True)
    reader = open_regular(source)
    try:
        writer = create_exclusive(temporary)
        try:
            copy_range(reader, 0, os.fstat(reader).st_size, writer, 0)
            sync(writer)
        finally:
            os.close(writer)
    finally:
        os.close(reader)
    temporary.rename(target)


# ----------------------------------------------------------------------------------------------
# Damaged ranges of a log: find them, name them, and say what to do with each.


class Damage(NamedTuple):
    """Bytes of a segment that are no sound batch; none of them where the end of a log is missing.

    ``[start, end)`` are the offsets between the sound batches around it: those that are lost, or
    never were. ``records`` is what the damaged batches' headers say, None if that is not known.
    """

    base_offset: int
    position: int
    size: int
    start: int
    end: int
    records: int | None
    reason: str


@dataclass(slots=True)
class LogDamage:
    """What is wrong with a log: ``places`` in order.

    The log ends at offset ``end`` by its last sound batch. ``torn`` is the position in the last
    segment from which on bytes may be cut off, None if there are no such bytes.
    """

    places: list[Damage] = field(default_factory=list)
    end: int = 0
    torn: int | None = None


def look_for_damage(folder: Path, kept_end: int, flushed_end: int = 0) -> LogDamage:
    """Look at every byte of a partition's log.

    Args:
        folder: of the partition.
        kept_end: everything below it was committed, or acknowledged by a broker.
        flushed_end: everything below it was on the disk, if damaged batches can have reached it.

    Raises:
        UnknownTopicOrPartitionError: the folder is gone.
    """
    found = LogDamage()
    segments = LogSegments.of(folder)
    for segment, follower in zip_longest(segments, segments[1:]):
        with segment:
            walk = _Walk(segment, max(found.end, segment.base_offset))
            walk.go()
            found.end = walk.next_offset
            if follower is not None:
                found.places += walk.gaps_below(follower.base_offset)
                continue
            tail = walk.tail()
            flushed = tail is not None and flushed_end <= reach_of(segment, walk.valid_end)
            end = max(kept_end, flushed_end if flushed else 0)
            if tail and found.end >= end:
                found.torn = tail.position
            found.places += walk.gaps
            if found.end < end:
                found.places.append(tail._replace(end=end) if tail else walk.missing(end))
    if not segments and kept_end:
        found.places.append(Damage(0, 0, 0, 0, kept_end, None, "there is no segment"))
    return found


class _Walk:
    """Goes over one segment; ``gaps`` are those that a sound batch follows."""

    def __init__(self, segment: LogSegment, next_offset: int) -> None:
        self.gaps: list[Damage] = []
        self.next_offset = next_offset
        self._segment = segment
        self._position = 0
        self._reasons: dict[int, str] = {}
        self._decoder = RecordDecoder(Columns.OFFSET, check_crcs=False)

    def go(self) -> None:
        """Find the gaps, and where the last sound batch ends."""
        start: int | None = 0
        while start is not None:
            chunks = valid_chunks(self._segment, start)
            while True:
                try:
                    chunk = next(chunks)
                except StopIteration as stop:
                    broken = stop.value
                    break
                self._add(self._decodable(chunk))
                start = chunk.file_position + len(chunk.data)
            if broken is None:
                return
            self._reasons.setdefault(start, str(broken))
            start = self._next_valid(start)

    def gaps_below(self, next_base_offset: int) -> list[Damage]:
        """Return all gaps of a segment that another one follows."""
        tail = self.tail()
        if tail is None:
            return self.gaps
        is_whole = tail.start == next_base_offset
        if is_whole and ends_in_zeros(self._segment, tail.position):
            return self.gaps
        return [*self.gaps, tail._replace(end=max(tail.start, next_base_offset))]

    @property
    def valid_end(self) -> ValidEnd:
        """Where the last sound batch ends."""
        return ValidEnd(self.next_offset, self._position, None)

    def tail(self) -> Damage | None:
        """Return the bytes after the last sound batch; None if there are none."""
        if self._position == self._segment.size:
            return None
        return self._gap(self._segment.size, self.next_offset)

    def missing(self, end: int) -> Damage:
        """Return what is missing of a log that ends here."""
        reason = f"{self._segment.path}: the log ends at offset {self.next_offset}"
        return self._gap(self._position, end)._replace(records=None, reason=reason)

    def _gap(self, end_position: int, end: int) -> Damage:
        start, size = self._position, end_position - self._position
        reasons = (self._reasons[at] for at in sorted(self._reasons) if start <= at < end_position)
        records = sum(counts) if (counts := self._counts(start, end_position)) else None
        base = self._segment.base_offset
        return Damage(base, start, size, self.next_offset, end, records, "; ".join(reasons))

    def _counts(self, position: int, end: int) -> list[int]:
        """Return what headers say of the batches there; nothing unless they fill the place."""
        counts = []
        while position < end:
            header = self._segment.header_at(position)
            if (
                header is None
                or not 0 <= header.record_count <= header.last_offset - header.offset + 1
            ):
                return []
            counts.append(header.record_count)
            position += header.size
        return counts if position == end else []

    def _next_valid(self, position: int) -> int | None:
        """Find where valid batches begin again: after the damaged one, or at any byte."""
        header = self._segment.header_at(position)
        if header is not None and header.size:
            follower = self._segment.header_at(position + header.size)
            fits = follower is not None and follower.offset >= self.next_offset
            if fits and next(valid_chunks(self._segment, position + header.size), None) is not None:
                return position + header.size
        return find_valid_batch(self._segment.path, position + 1, self.next_offset)

    def _add(self, table: BatchTable) -> None:
        """Take sound batches, and note the gaps before them."""
        if not len(table):
            return
        ends = np.concatenate(([self._position], table.end_position[:-1]))
        offsets = np.concatenate(([self.next_offset], table.last_offset[:-1] + 1))
        for row in np.flatnonzero(table.position > ends).tolist():
            self._position, self.next_offset = int(ends[row]), int(offsets[row])
            first = int(table.base_offset[row])
            end = first if first >= 0 else int(table.last_offset[row])  # a wrapper does not say
            self.gaps.append(self._gap(int(table.position[row]), max(end, self.next_offset)))
        self._position = int(table.end_position[-1])
        self.next_offset = int(table.last_offset[-1]) + 1

    def _decodable(self, chunk: Chunk) -> BatchTable:
        """Leave out batches whose records cannot be decoded."""
        table = chunk.table
        bad = np.zeros(len(table), np.bool_)
        first = 0
        while first < len(table):
            try:
                for _ in self._decode(chunk, table[first:]):
                    pass
                break
            except CorruptRecordError as error:
                row = int(np.searchsorted(table.position, error.position))
                bad[row] = True
                self._reasons[int(table.position[row])] = str(error)
                first = row + 1
        return table[~bad]

    def _decode(self, chunk: Chunk, table: BatchTable) -> Iterator[object]:
        return self._decoder.decode(
            chunk.data, table, file_position=chunk.file_position, path=str(self._segment.path)
        )


# ----------------------------------------------------------------------------------------------

Choice: TypeAlias = Literal["drop", "cut"]

_BY_OFFSET: Final = re.compile(r"(?P<partition>[^/@]+)@(?P<offset>[0-9]{1,19})", re.ASCII)
_BY_POSITION: Final = re.compile(
    r"(?:.*/)?(?P<partition>[^/]+)/(?P<base>[0-9]{20})\.log:(?P<position>[0-9]{1,19})", re.ASCII
)


class PlaceName(NamedTuple):
    """A place by an offset that is lost there, or by segment and position; and what to do."""

    text: str
    topic_partition: TopicPartition
    offset: int | None
    base_offset: int
    position: int
    choice: Choice

    @classmethod
    def parse(cls, text: str, choice: Choice) -> Self:
        """Read ``topic-0@12`` or ``topic-0/00000000000000000000.log:345``.

        Raises:
            OptionError: it is neither.
        """
        found = _BY_OFFSET.fullmatch(text) or _BY_POSITION.fullmatch(text)
        key = None if found is None else parse_partition_directory(found["partition"])
        if found is None or key is None:
            raise OptionError(
                f"{text!r} names no place in a log, expected such as topic-0@12 (an offset) or "
                "topic-0/00000000000000000000.log:345 (a position in a segment)"
            )
        if found.re is _BY_OFFSET:
            return cls(text, key, min(int(found["offset"]), MAX_OFFSET), -1, -1, choice)
        return cls(text, key, None, int(found["base"]), int(found["position"]), choice)

    def is_of(self, damage: Damage) -> bool:
        """Return whether it names this place."""
        if self.offset is None:
            return (damage.base_offset, damage.position) == (self.base_offset, self.position)
        return damage.start <= self.offset < max(damage.end, damage.start + 1)


def place_name(key: TopicPartition, damage: Damage) -> str:
    """Return a name that no other place has."""
    return f"{key}/{file_name(damage.base_offset, LOG)}:{damage.position}"


def chosen_places(
    key: TopicPartition, found: LogDamage, names: Sequence[PlaceName], *, again: bool = False
) -> tuple[dict[Damage, Choice | None], list[str]]:
    """Find out what to do with each damaged place of a partition.

    ``again``: a salvage was cut off, which may have done some of what is named.

    Returns:
        for each place what was chosen, None for nothing; and notes.

    Raises:
        OptionError: a name of none of them, or choices that do not go together.
    """
    choices: dict[Damage, Choice | None] = dict.fromkeys(found.places)
    notes = []
    for name in names:
        if name.topic_partition != key:
            continue
        named = [damage for damage in found.places if name.is_of(damage)]
        if not found.places:
            notes.append(f"{name.text}: nothing is damaged in {key}, so nothing was done")
        elif again and not named:
            notes.append(f"{name.text}: nothing is damaged there any more")
        elif len(named) != 1:
            there = ", ".join(place_name(key, damage) for damage in named or found.places)
            many = "several damaged places" if named else "no damaged place"
            raise OptionError(f"{name.text} names {many} of {key}; there are {there}")
        for damage in named:
            if choices[damage] not in {None, name.choice}:
                raise OptionError(f"{name.text} is to be dropped and to be cut at: choose one")
            choices[damage] = name.choice
    _check_together(key, choices)
    return choices, notes


def _check_together(key: TopicPartition, choices: dict[Damage, Choice | None]) -> None:
    places = list(choices)
    for slot, (damage, choice) in enumerate(choices.items()):
        name = place_name(key, damage)
        beside = [each for each in places if each.base_offset == damage.base_offset]
        if choice == "drop" and any(choices[each] is None and each.size for each in beside):
            raise OptionError(
                f"{name} cannot be dropped alone: other places of that segment are damaged too. "
                f"Name all of them: {', '.join(place_name(key, each) for each in beside)}"
            )
        if choice == "cut":
            if any(choices[each] for each in places[slot + 1 :]):
                raise OptionError(f"{name}: what lies after a cut goes with it; name the cut alone")
            before = [each for each in places[:slot] if each.base_offset == damage.base_offset]
            if before:
                raise OptionError(
                    f"{name} cannot be cut at: {place_name(key, before[0])} in the same segment is "
                    "damaged too. Cut there, or drop both"
                )
