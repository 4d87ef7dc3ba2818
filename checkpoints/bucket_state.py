"""The state of a log in an object store, and the objects that it is kept in: commits, checkpoints.

Nothing in a store can be changed in place. So the state is what the commits add up to, in the order
of their numbers; a checkpoint is the state as of one of them.

A commit object is sealed text (:mod:`~kafkalog.checkpoints.sealed_file`), followed by the batches
that it carries inline::

    line 1      header
    line 2      {"commit":7,"id":"…","previous":"<id of commit 6>","log":"<log id>","inline":8192}
    a topic     as in kafkalog.commit, with those of its partitions and versions that have changed
    extents     {"extents":"<topic id>","partition":0,"of":[["data/…",0,8192,120,50,1700000000,0]]}
    a writer    as in kafkalog.commit

An extent is a range of complete record batches in an object: its name, position and size in bytes,
base offset, number of records, largest timestamp, and leader epoch. Offset and epoch in the batches
themselves are void: they lie outside the checksum, and readers put them in. ``""`` names the commit
object itself, and positions count from the first inline byte.

A run that a task has put alone into its object has a 1 behind that: it may become a segment. A run
whose rows keep their offsets has a 2, both have a 3: offsets count there, and there may be holes
between batches, and before the extent. A sealed segment is an extent of its own object, with the
sizes of its indexes behind that, and every so many of their entries (base64), so that a search asks
for few bytes of them::

    {"extents":"<topic id>","partition":0,"of":[["logs/<topic id>/t-0/<base>-<number>-<id>",0,
        1073741824,0,65536,1700000000,0,[524280,786420,0,"AAAA…","AAAA…"]]]}

    replaced    {"replaced":"<topic id>","partition":0,"of":[…]}: extents of the same offsets as
                those whose place they take
    clean       {"clean":[["<topic id>",0,4711]]}: the log is compacted below this offset
    deleted     {"deleted":["<topic id>"]}
    forgotten   {"forgotten":[["","<writer>"],["<topic id>","<writer whose version counts there>"]]}
    swept       {"swept":6,"delay":86400000,"floor":3}
    listed      {"listed":"data/…"}: the extents stand in this object instead, as they are too many

A checkpoint has the same lines, of all topics, extents and writers; its line 2 has no ``previous``
and no ``inline``. Instead of ``deleted`` it has the objects that lie in no partition any more, and
the commits by which they were dropped; and the objects that list the extents of commits which are
not below the highest floor::

    dropped     {"dropped":{"data/…":7}}
    listed      {"listed":{"data/…":7}}

``swept`` is the commit below whose number data objects that no commit names are deleted; who has
staged one with such a name may not commit it. ``delay`` is how old they are then at least, in ms.
"""

from __future__ import annotations

import base64
import json
import re
from bisect import bisect_left
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from kafkalog.checkpoints.commit_state import PartitionState, TopicState, WriterState
from kafkalog.checkpoints.sealed_file import (
    JsonObject,
    check_fields,
    natural,
    numbered,
    seal,
    text,
    unknown_content,
    unseal,
)
from kafkalog.checkpoints.state_file import (
    WRITER_FIELDS,
    add_line,
    check_topic_line,
    parse_topic,
    parse_writer,
    topic_line,
    writer_line,
)
from kafkalog.errors import CheckpointError, InvalidTopicError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from kafkalog.checkpoints.sealed_file import Sealed

__all__ = [
    "DELETE_DELAY_MS",
    "MAX_EXTENTS_BYTES",
    "MAX_INLINE_BYTES",
    "BucketCommit",
    "BucketState",
    "Extent",
    "SealedIndexes",
    "checkpoint_bytes",
    "checkpoint_name",
    "commit_bytes",
    "commit_name",
    "data_name",
    "extents_bytes",
    "find_range",
    "floor_name",
    "number_of_checkpoint",
    "number_of_commit",
    "number_of_data",
    "object_path",
    "parse_checkpoint",
    "parse_commit",
    "segment_name",
]

MAX_INLINE_BYTES: Final = 1 << 20
"""How many bytes of batches a commit object carries at most."""

MAX_EXTENTS_BYTES: Final = 4 << 20
"""How many bytes of extents it says; more stand in an object of their own."""

_COMMIT: Final = "kafkalog.bucket.commit"
_LISTING: Final = "kafkalog.bucket.extents"
_CHECKPOINT: Final = "kafkalog.bucket.checkpoint"
_VERSION: Final = 1

_HEAD: Final = frozenset({"commit", "id", "previous", "log", "inline"})
_CHECKPOINT_HEAD: Final = _HEAD - {"previous", "inline"}
_EXTENTS: Final = frozenset({"extents", "partition", "of"})
_REPLACED: Final = frozenset({"replaced", "partition", "of"})
_SWEPT: Final = frozenset({"swept", "delay", "floor"})
_OF_COMMIT: Final = {each: frozenset({each}) for each in ("deleted", "forgotten", "listed")}
_OF_CHECKPOINT: Final = {each: frozenset({each}) for each in ("dropped", "listed")}
_CLEAN: Final = frozenset({"clean"})

DELETE_DELAY_MS: Final = 86_400_000
"""How old a data object must be in a new log before it is swept."""

_DATA: Final = re.compile(r"data/([0-9]{20})-[0-9a-f]{32}", re.ASCII)
_SEGMENT: Final = re.compile(
    r"logs/[0-9A-Za-z_-]{1,64}/[0-9A-Za-z._-]{1,249}-[0-9]{1,10}/[0-9]{20}-([0-9]{20})-[0-9a-f]{32}",
    re.ASCII,
)
_MOST_INDEX_BYTES: Final = 1 << 31
_INLINE_OF: Final = re.compile(r"commits/([0-9]{20})", re.ASCII)
_LARGEST_NAME: Final = 10**20 - 1
_SMALLEST_BATCH: Final = 61

_REMEDY: Final = (
    "If the store keeps versions of objects, bring back the one that was written first. Nobody "
    "may write to the log until then"
)


# ----------------------------------------------------------------------------------------------
# Names, relative to _kafkalog/<log id>/.


def commit_name(number: int) -> str:
    """Return the name of the object of a commit."""
    return f"commits/{number:020}"


def number_of_commit(name: str) -> int | None:
    """Return the number in the last part of the name of a commit or floor; None in another one."""
    return int(name) if re.fullmatch(r"[0-9]{20}", name, re.ASCII) else None


def floor_name(number: int) -> str:
    """Return the name of the floor that makes all commit numbers below it void."""
    return f"floors/{number:020}"


def checkpoint_name(number: int) -> str:
    """Return the name of the checkpoint of a commit; the newest is listed first."""
    return f"checkpoints/{_LARGEST_NAME - number:020}"


def number_of_checkpoint(name: str) -> int | None:
    """Return the commit of a checkpoint from the last part of its name; None for another name."""
    if re.fullmatch(r"[0-9]{20}", name, re.ASCII) is None:
        return None
    return _LARGEST_NAME - int(name)


def number_of_data(name: str) -> int | None:
    """Return the commit in the name of a data object or segment; None for another name."""
    found = _DATA.fullmatch(name) or _SEGMENT.fullmatch(name)
    return None if found is None else int(found[1])


def data_name(newest: int, unique: str) -> str:
    """Return the name of a data object; ``newest`` commit was known when its job began."""
    return f"data/{newest:020}-{unique}"


def segment_name(folder: str, base_offset: int, newest: int, unique: str) -> str:
    """Return the name of a sealed segment, without what tells its log from its indexes.

    ``folder`` is ``<topic id>/<topic>-<partition>``; ``newest`` commit was known at the beginning.
    """
    return f"logs/{folder}/{base_offset:020}-{newest:020}-{unique}"


def object_path(log_id: str, name: str, suffix: str = ".log") -> str:
    """Return where an object lies below the root; ``suffix`` tells which file of a segment."""
    if name.startswith("logs/"):
        return f"logs/{log_id}/{name.removeprefix('logs/')}{suffix}"
    return f"_kafkalog/{log_id}/{name}"


# ----------------------------------------------------------------------------------------------
# Values.


class SealedIndexes(NamedTuple):
    """The indexes of a sealed segment: their bytes, and some entries of the first two.

    ``offset_entries`` and ``time_entries`` are those of every so many slots and the last one, as
    the files have them.
    """

    offset_bytes: int
    time_bytes: int
    txn_bytes: int = 0
    offset_entries: bytes = b""
    time_entries: bytes = b""


class Extent(NamedTuple):
    """A range of complete record batches of one partition in an object.

    ``alone``: a task has put this run alone into the object. ``sealed``: it is a segment, in which
    offsets and epochs count; compaction may have taken records out. ``has_offsets``: its batches
    keep their offsets, and ``records`` counts the holes between them, too.
    """

    object: str
    position: int
    size: int
    base_offset: int
    records: int
    max_timestamp: int
    leader_epoch: int
    alone: bool = False
    sealed: SealedIndexes | None = None
    has_offsets: bool = False

    @property
    def end_offset(self) -> int:
        """The offset after its last record."""
        return self.base_offset + self.records

    @property
    def largest_timestamp(self) -> int:
        """What a segment calls its largest timestamp."""
        return self.max_timestamp


ExtentKey = tuple[str, int]
"""Topic id and partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketCommit:
    """What one commit changes. Its number and ids are given once it is about to be written.

    ``topics`` by topic id, with those of their partitions and versions that change; settings are
    given whole. ``extents`` continue their partitions; those below a log start are dropped.
    ``replaced`` take the place of those that have the same offsets; ``clean`` are the offsets below
    which partitions are compacted.
    ``deleted`` are topics, ``forgotten`` writers, and versions of writers in a topic by its id.
    ``swept`` and ``delay_ms`` are 0 where they do not change. ``size`` is
    that of the object in bytes, without what is inline; 0 of one that was not written yet.
    """

    number: int = 0
    commit_id: str = ""
    previous: str = ""
    log_id: str = ""
    topics: Mapping[str, TopicState] = field(default_factory=dict)
    writers: Mapping[str, WriterState] = field(default_factory=dict)
    extents: Mapping[ExtentKey, Sequence[Extent]] = field(default_factory=dict)
    replaced: Mapping[ExtentKey, Sequence[Extent]] = field(default_factory=dict)
    clean: Mapping[ExtentKey, int] = field(default_factory=dict)
    inline: bytes = b""
    size: int = 0
    deleted: Sequence[str] = ()
    forgotten: Sequence[tuple[str, str]] = ()
    swept: int = 0
    delay_ms: int = 0
    floor: int = 0
    listed: str = ""
    """The object that its extents stand in, where they are too many."""


@dataclass(slots=True)
class BucketState:
    """What the commits up to ``number`` add up to, moved on by :meth:`apply`; 0: before them."""

    log_id: str
    number: int = 0
    commit_id: str = ""
    topics: dict[str, TopicState] = field(default_factory=dict)
    writers: dict[str, WriterState] = field(default_factory=dict)
    extents: dict[ExtentKey, list[Extent]] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    """Objects of which extents were dropped, and the last commit that did so, until it is swept."""
    clean: dict[ExtentKey, int] = field(default_factory=dict)
    """The offsets below which partitions are compacted."""
    listed: dict[str, int] = field(default_factory=dict)
    """Objects that list the extents of a commit, by its number; whoever opens the log reads them
    until the commit is below the highest floor."""
    swept: int = 0
    delay_ms: int = DELETE_DELAY_MS

    def apply(self, commit: BucketCommit) -> None:
        """Go on to the next commit.

        Raises:
            ValueError: it does not follow this state, and nothing was changed.
        """
        self._check(commit)
        for key, changed in commit.topics.items():
            self.topics[key] = self._topic(key, changed)
        self.writers.update(commit.writers)
        for place, extents in commit.extents.items():
            self.extents.setdefault(place, []).extend(extents)
        self.number, self.commit_id = commit.number, commit.commit_id
        for place, extents in commit.replaced.items():
            self._replace(place, extents)
        self.clean.update(commit.clean)
        self._drop(commit)
        self._forget(commit)
        self.swept = max(self.swept, commit.swept)
        self.delay_ms = commit.delay_ms or self.delay_ms
        if commit.listed:
            self.listed[commit.listed] = commit.number
        if commit.floor:
            self.listed = {n: of for n, of in self.listed.items() if of >= commit.floor}
        if commit.swept:
            self.dropped = {n: by for n, by in self.dropped.items() if by > self.swept}

    def _drop(self, commit: BucketCommit) -> None:
        """Drop the extents below log starts, and topics with all of theirs."""
        for key, changed in commit.topics.items():
            for number, partition in changed.partitions.items():
                self._drop_below((key, number), partition.log_start)
        for key in commit.deleted:
            for number in self.topics.pop(key).partitions:
                self._drop_below((key, number), _LARGEST_NAME)
                self.clean.pop((key, number), None)

    def _forget(self, commit: BucketCommit) -> None:
        for key, writer in commit.forgotten:
            topic = self.topics.get(key)
            if topic is not None:
                versions = {each: last for each, last in topic.versions.items() if each != writer}
                self.topics[key] = replace(topic, versions=versions)
            elif not key:
                self.writers.pop(writer, None)

    def _drop_below(self, place: ExtentKey, start: int) -> None:
        extents = self.extents.get(place, [])
        gone = [extent for extent in extents if extent.end_offset <= start]
        self.dropped.update((extent.object, self.number) for extent in gone)
        if len(gone) < len(extents):
            del extents[: len(gone)]
        else:
            self.extents.pop(place, None)

    def _replace(self, place: ExtentKey, extents: Sequence[Extent]) -> None:
        known = self.extents[place]
        found = find_range(known, extents[0].base_offset, extents[-1].end_offset)
        assert found is not None  # noqa: S101 - it was looked at before anything was changed
        first, end = found
        gone = {extent.object for extent in known[first:end]}
        known[first:end] = extents
        gone -= {extent.object for extent in extents}
        self.dropped.update(dict.fromkeys(gone, self.number))

    def find_swept(self, commit: BucketCommit) -> str | None:
        """Return an object that a commit names, and that may have been swept; None if none is.

        What is left of an object that others are taken out of is there as long as it was before.
        """
        named = {extent.object for some in commit.extents.values() for extent in some}
        named |= {commit.listed} - {""}
        for place, some in commit.replaced.items():
            known = {extent.object for extent in self.extents.get(place, ())}
            named |= {extent.object for extent in some} - known
        digits = ((number_of_data(name), name) for name in sorted(named))
        return next((name for n, name in digits if n is not None and n < self.swept), None)

    def _topic(self, key: str, changed: TopicState) -> TopicState:
        known = self.topics.get(key)
        if known is None:
            return changed
        return replace(
            known,
            settings=changed.settings,
            partitions={**known.partitions, **changed.partitions},
            versions={**known.versions, **changed.versions},
            origins=changed.origins or known.origins,
            last_query=changed.last_query or known.last_query,
        )

    def _check(self, commit: BucketCommit) -> None:
        if (commit.log_id, commit.number) != (self.log_id, self.number + 1):
            raise ValueError(f"it is commit {commit.number} of log {commit.log_id}")
        if commit.previous != self.commit_id:
            raise ValueError(f"it follows {commit.previous}, and not {self.commit_id}")
        swept = self.find_swept(commit)
        if swept is not None:
            raise ValueError(f"it names {swept}, and all below {self.swept} is swept")
        for key, changed in commit.topics.items():
            self._check_topic(key, changed, commit)
        for key in commit.deleted:
            if key not in self.topics or key in commit.topics:
                raise ValueError(f"it deletes the topic {key}")
        for key, number in commit.extents:
            if key not in commit.topics or number not in commit.topics[key].partitions:
                raise ValueError(f"it has extents of {key}-{number}, and not its end")
        self._check_replaced(commit)

    def _check_replaced(self, commit: BucketCommit) -> None:
        for (key, number), extents in commit.replaced.items():
            if key not in self.topics or key in commit.deleted or not extents:
                raise ValueError(f"it replaces extents of {key}-{number}")
            known = self.extents.get((key, number), [])
            start, end = extents[0].base_offset, extents[-1].end_offset
            if find_range(known, start, end) is None:
                raise ValueError(f"it replaces the offsets {start} to {end} of {key}-{number}")
            _check_adjacent(extents, start, end)
        for key, number in commit.clean:
            if key not in self.topics or key in commit.deleted:
                raise ValueError(f"it has compacted {key}-{number}")

    def _check_topic(self, key: str, changed: TopicState, commit: BucketCommit) -> None:
        known = self.topics.get(key)
        if known is not None and known.name != changed.name:
            raise ValueError(f"it calls topic {known.name!r} {changed.name!r}")
        for number, (start, _, end, epoch) in changed.partitions.items():
            before = PartitionState(start, start, start, -1)
            if known is not None:
                before = known.partitions.get(number, before)
            if start < before.log_start or epoch < before.leader_epoch:
                raise ValueError(f"it rolls back partition {changed.name}-{number}")
            _check_adjacent(commit.extents.get((key, number), ()), before.log_end, end)


def find_range(extents: Sequence[Extent], start: int, end: int) -> tuple[int, int] | None:
    """Return which extents have exactly the offsets from ``start`` to ``end``: first and end."""
    first = bisect_left(extents, start, key=lambda each: each.base_offset)
    last = bisect_left(extents, end, key=lambda each: each.end_offset)
    if first > last or last >= len(extents):
        return None
    if (extents[first].base_offset, extents[last].end_offset) != (start, end):
        return None
    return first, last + 1


def _check_adjacent(extents: Sequence[Extent], start: int, end: int) -> None:
    for extent in extents:
        may_leave_hole = extent.has_offsets or extent.sealed is not None
        if extent.base_offset != start and not (may_leave_hole and extent.base_offset > start):
            raise ValueError(f"an extent begins at {extent.base_offset}, expected {start}")
        start = extent.end_offset
    if start != end:
        raise ValueError(f"the extents end at {start}, the partition at {end}")


# ----------------------------------------------------------------------------------------------
# Bytes.


def commit_bytes(commit: BucketCommit) -> bytes:
    """Return the object of a commit.

    Raises:
        CheckpointError: nobody could read it again.
    """
    if len(commit.inline) > MAX_INLINE_BYTES:
        raise ValueError(f"{len(commit.inline)} bytes inline")
    head = {
        "commit": commit.number,
        "id": commit.commit_id,
        "previous": commit.previous,
        "log": commit.log_id,
        "inline": len(commit.inline),
    }
    extents = {} if commit.listed else commit.extents
    lines = [*_lines(commit.topics, extents, commit.writers)]
    if commit.listed:
        lines.append({"listed": commit.listed})
    for (key, number), some in sorted(commit.replaced.items()):
        lines.append({"replaced": key, "partition": number, "of": [*map(_row, some)]})
    lines += _clean_lines(commit.clean)
    if commit.deleted:
        lines.append({"deleted": list(commit.deleted)})
    if commit.forgotten:
        lines.append({"forgotten": list(commit.forgotten)})
    if commit.swept or commit.delay_ms:
        lines.append({"swept": commit.swept, "delay": commit.delay_ms, "floor": commit.floor})
    return seal(_COMMIT, _VERSION, chain([head], lines)) + commit.inline


def checkpoint_bytes(state: BucketState) -> bytes:
    """Return the object of a checkpoint.

    Raises:
        CheckpointError: nobody could read it again.
    """
    head = {"commit": state.number, "id": state.commit_id, "log": state.log_id}
    lines = [*_lines(state.topics, state.extents, state.writers)]
    lines.append({"swept": state.swept, "delay": state.delay_ms, "floor": 0})
    lines += _clean_lines(state.clean)
    if state.dropped:
        lines.append({"dropped": state.dropped})
    if state.listed:
        lines.append({"listed": state.listed})
    return seal(_CHECKPOINT, _VERSION, chain([head], lines))


def _lines(
    topics: Mapping[str, TopicState],
    extents: Mapping[ExtentKey, Sequence[Extent]],
    writers: Mapping[str, WriterState],
) -> Iterator[JsonObject]:
    for key, topic in sorted(topics.items()):
        yield topic_line(key, topic)
    for (key, number), some in sorted(extents.items()):
        yield {"extents": key, "partition": number, "of": [*map(_row, some)]}
    for key, writer in sorted(writers.items()):
        yield writer_line(key, writer)


def _row(extent: Extent) -> list[object]:
    if extent.sealed is not None:
        *sizes, offsets, times = extent.sealed
        entries = [base64.b64encode(each).decode() for each in (offsets, times)]
        return [*extent[:7], [*sizes, *entries]]
    flags = extent.alone * _ALONE + extent.has_offsets * _HAS_OFFSETS
    return [*extent[:7], flags] if flags else [*extent[:7]]


def _clean_lines(clean: Mapping[ExtentKey, int]) -> list[JsonObject]:
    rows = [[key, number, offset] for (key, number), offset in sorted(clean.items())]
    return [{"clean": rows}] if rows else []


def extents_bytes(commit: BucketCommit) -> bytes:
    """Return the object that the extents of a commit stand in, where they are too many.

    Raises:
        CheckpointError: nobody could read it again.
    """
    head = {"log": commit.log_id}
    return seal(_LISTING, _VERSION, chain([head], _lines({}, commit.extents, {})))


def _listed_extents(
    listed: str, log_id: str, load: Callable[[str], bytes]
) -> dict[ExtentKey, list[Extent]]:
    """Return the extents of a commit that stand in an object of their own."""
    if not _DATA.fullmatch(listed):
        raise ValueError(f"extents in {listed!r:.100}")
    sealed = unseal(load(listed), listed, _LISTING, _VERSION, remedy=_REMEDY)
    if sealed.lines[0] != {"log": log_id}:
        raise ValueError(f"{listed} is of another log")
    return _parse(sealed, listed, {}).extents


def parse_commit(
    data: bytes, name: str, load: Callable[[str], bytes] | None = None
) -> BucketCommit:
    """Return the commit that an object holds; ``name`` is how a person knows the object.

    ``load`` gets another object of the log, by its name, where extents stand in one.

    Raises:
        CheckpointError: it is damaged, or holds what this release does not know.
    """
    first_inline = len(data) - _inline_size(data)
    sealed = unseal(data[:first_inline], name, _COMMIT, _VERSION, remedy=_REMEDY)
    try:
        return _commit_of(sealed, name, data, first_inline, load)
    except _STRANGE as error:
        raise _strange(name, error) from error


def _commit_of(
    sealed: Sealed,
    name: str,
    data: bytes,
    first_inline: int,
    load: Callable[[str], bytes] | None,
) -> BucketCommit:
    head = sealed.lines[0]
    check_fields(name, 2, head, _HEAD)
    number = natural(head["commit"])
    parsed = _parse(sealed, name, _OF_COMMIT)
    _check_named(parsed.replaced)
    own = _Inline(commit_name(number), first_inline, len(data))
    listed = text(parsed.lines.get("listed", {}).get("listed", ""))
    if listed and load is not None:
        parsed.extents.update(_listed_extents(listed, text(head["log"]), load))
    swept = parsed.lines.get("swept", {})
    return BucketCommit(
        number=number,
        commit_id=text(head["id"]),
        previous=text(head["previous"]),
        log_id=text(head["log"]),
        topics=parsed.topics,
        writers=parsed.writers,
        extents={k: [own.placed(e) for e in some] for k, some in parsed.extents.items()},
        replaced=parsed.replaced,
        clean=dict(_clean(parsed.lines)),
        inline=data[first_inline:],
        size=first_inline,
        deleted=tuple(map(text, parsed.lines.get("deleted", {}).get("deleted", ()))),
        forgotten=tuple(
            (text(key), text(writer))
            for key, writer in parsed.lines.get("forgotten", {}).get("forgotten", ())
        ),
        swept=natural(swept.get("swept", 0)),
        delay_ms=natural(swept.get("delay", 0)),
        floor=natural(swept.get("floor", 0)),
        listed=listed,
    )


def parse_checkpoint(data: bytes, name: str) -> BucketState:
    """Return the state that a checkpoint holds.

    Raises:
        CheckpointError: it is damaged, or holds what this release does not know.
    """
    sealed = unseal(data, name, _CHECKPOINT, _VERSION, remedy=_REMEDY)
    try:
        head = sealed.lines[0]
        check_fields(name, 2, head, _CHECKPOINT_HEAD)
        parsed = _parse(sealed, name, _OF_CHECKPOINT)
        _check_named(parsed.extents)
        if parsed.replaced:
            raise ValueError("a checkpoint that replaces extents")
        state = BucketState(
            log_id=text(head["log"]),
            number=natural(head["commit"]),
            commit_id=text(head["id"]),
            topics=parsed.topics,
            writers=parsed.writers,
            extents=parsed.extents,
            dropped=dict(_dropped(parsed.lines.get("dropped", {}).get("dropped", {}))),
            listed=dict(_dropped(parsed.lines.get("listed", {}).get("listed", {}))),
            clean=dict(_clean(parsed.lines)),
            swept=natural(parsed.lines["swept"]["swept"]),
            delay_ms=natural(parsed.lines["swept"]["delay"]),
        )
    except _STRANGE as error:
        raise _strange(name, error) from error
    return state


def _check_named(extents: Mapping[ExtentKey, Sequence[Extent]]) -> None:
    if any(not each.object for some in extents.values() for each in some):
        raise ValueError("an extent in no object")


def _clean(lines: Mapping[str, JsonObject]) -> Iterator[tuple[ExtentKey, int]]:
    for key, number, offset in lines.get("clean", {}).get("clean", ()):
        yield (text(key), natural(number)), natural(offset)


def _dropped(given: Mapping[object, object]) -> Iterator[tuple[str, int]]:
    for name, number in given.items():
        yield _object_name(text(name)), natural(number)


_STRANGE: Final = (
    AttributeError,
    LookupError,
    TypeError,
    ValueError,  # binascii.Error is one
    InvalidTopicError,
)


def _strange(name: str, error: Exception) -> CheckpointError:
    fault = f"{name} holds what no release of kafkalog has written: {error!r:.300}"
    return CheckpointError(f"{fault}. {_REMEDY}", fault=fault)


class _Inline(NamedTuple):
    """Where the inline batches of a commit object lie."""

    name: str
    start: int
    end: int

    def placed(self, extent: Extent) -> Extent:
        """Return an extent with the name of the object, and its position there."""
        if extent.object:
            return extent
        position = self.start + extent.position
        if position + extent.size > self.end:
            raise ValueError(f"an extent ends at byte {position + extent.size} of {self.end}")
        return extent._replace(object=self.name, position=position)


class _Parsed(NamedTuple):
    topics: dict[str, TopicState]
    extents: dict[ExtentKey, list[Extent]]
    writers: dict[str, WriterState]
    lines: dict[str, JsonObject]
    """The others, by their first field."""
    replaced: dict[ExtentKey, list[Extent]]

    @classmethod
    def empty(cls) -> Self:
        return cls({}, {}, {}, {}, {})


def _parse(sealed: Sealed, name: str, others: Mapping[str, frozenset[str]]) -> _Parsed:
    """Parse the lines below line 2; ``others`` are those of this kind of object, by a field."""
    others = {**others, "swept": _SWEPT, "clean": _CLEAN}
    parsed = _Parsed.empty()
    for number, line in numbered(sealed.lines):
        if number == 2:
            continue
        if "topic" in line:
            check_topic_line(name, number, line)
            key, topic = parse_topic(line)
            add_line(parsed.topics, key, topic)
        elif "extents" in line:
            check_fields(name, number, line, _EXTENTS)
            place = (text(line["extents"]), natural(line["partition"]))
            add_line(parsed.extents, place, list(_extents(line["of"])))
        elif "replaced" in line:
            check_fields(name, number, line, _REPLACED)
            place = (text(line["replaced"]), natural(line["partition"]))
            add_line(parsed.replaced, place, list(_extents(line["of"])))
        elif "writer" in line:
            check_fields(name, number, line, WRITER_FIELDS)
            add_line(parsed.writers, text(line["writer"]), parse_writer(line))
        elif (kind := next((each for each in others if each in line), None)) is not None:
            check_fields(name, number, line, others[kind])
            add_line(parsed.lines, kind, line)
        else:
            raise unknown_content(name, number, f"none of topic, extents, writer, but {line!r}")
    return parsed


def _object_name(name: str) -> str:
    if not any(each.fullmatch(name) for each in (_DATA, _INLINE_OF, _SEGMENT)):
        raise ValueError(f"{name!r:.100} names no object of the log")
    return name


def _extents(given: Iterable[object]) -> Iterator[Extent]:
    for each in given:
        if not isinstance(each, list) or len(each) not in (_PLAIN, _PLAIN + 1):
            raise TypeError(f"{each!r:.100} where an extent belongs")
        name, position, size, base, records, timestamp, epoch, *rest = each
        if name:
            _object_name(text(name))
        sealed = _indexes(rest[0]) if rest and isinstance(rest[0], list) else None
        flags = rest[0] if rest and sealed is None else 0
        is_odd = type(flags) is not int or not bool(rest and sealed is None) <= flags < _NO_FLAG
        if is_odd or (sealed is not None) != name.startswith("logs/"):
            raise ValueError(f"{rest!r:.100} of an extent in {name!r:.100}")
        least = 0 if sealed else _SMALLEST_BATCH
        if natural(size) < least or natural(position) + size >= 1 << 63:
            raise ValueError(f"an extent of {size} bytes at {position}")
        if natural(records) < 1 or natural(base) + records >= 1 << 63:
            raise ValueError(f"an extent of {records} records from {base}")
        if type(timestamp) is not int or not -(1 << 63) <= timestamp < 1 << 63:
            raise ValueError(f"the timestamp {timestamp!r:.100}")
        if natural(epoch) >= 1 << 31:
            raise ValueError(f"the leader epoch {epoch}")
        kinds = bool(flags & _ALONE), sealed, bool(flags & _HAS_OFFSETS)
        yield Extent(name, position, size, base, records, timestamp, epoch, *kinds)


_PLAIN: Final = 7
_ALONE: Final = 1
_HAS_OFFSETS: Final = 2
_NO_FLAG: Final = 4


def _indexes(given: list[object]) -> SealedIndexes:
    *sizes, offsets, times = given
    numbers = [natural(size) for size in sizes]
    if len(numbers) != 3 or max(numbers) >= _MOST_INDEX_BYTES:
        raise ValueError(f"indexes of {numbers!r:.100} bytes")
    entries = [base64.b64decode(text(each), validate=True) for each in (offsets, times)]
    return SealedIndexes(numbers[0], numbers[1], numbers[2], *entries)


def _inline_size(data: bytes) -> int:
    """Return how many bytes a commit object has after its text; the checksum tells if it lies."""
    try:
        size = json.loads(data.split(b"\n", 2)[1])["inline"]
    except (IndexError, KeyError, TypeError, ValueError, RecursionError):
        return 0
    return size if type(size) is int and 0 <= size <= min(len(data), MAX_INLINE_BYTES) else 0
