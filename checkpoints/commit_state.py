"""What the sink has committed: the state that every log directory keeps in ``kafkalog.commit``.

One set of log directories has one state. Each directory holds a copy that differs only in the name
of the member it is; the copy with the highest sequence number is the truth, and the rename that
puts the first such copy in place is the commit. :mod:`~kafkalog.checkpoints.intent` is the other
half: what a commit in progress is about to do.

::

    line 1       header, see :mod:`~kafkalog.checkpoints.sealed_file`; version 1
    line 2       {"sequence":7,"commit":"…","set":"…","member":"…","members":["…","…"],"boot":"…"}
    a topic      {"topic":"flights","key":"<topic id>","settings":{"compression.type":"lz4"},
                  "highWatermarks":{"0":120,"1":98},"durableEnds":{"1":60},
                  "versions":{"<txnAppId>":{"batch":3,"digest":"rows …","time":…,"expiration":…}},
                  "query":"query:<transactional id>"}
    a writer     {"writer":"query:<transactional id>","run":"…","batch":12,"digest":"…",
                  "time":1700000000000,"expiration":7776000000,"fenced":["…"]}

A release that does not know a field passes over it, and leaves it out of what it writes: a new
version is for what may not be passed over. A writer without ``expiration`` has Kafka's default.
``expired`` is when a commit has first found that it has expired. ``versions`` are the last ones of
batch writes, which count for each topic by itself; a writer ``app:<txnAppId>``, of an earlier
release, counts for all topics. ``query`` is the streaming query that wrote to the topic last.

``commit`` is drawn at random, see :mod:`~kafkalog.checkpoints.commit_stamp`.
``durableEnds`` are those of the partitions that ``flush=os`` wrote last: what lies below is on the
disk. A partition that is not named there is durable up to its high watermark, and so are all of a
state that was written before there were durable ends: nothing of it is ever given up as lost.
``boot`` is the run of the machine that the rest was left to, where there is any.

Topics are kept by their topic id, so that a topic that was deleted and made anew does not inherit
offsets; one that never had a ``partition.metadata`` is kept as ``:<name>``. The file holds topics,
partitions and offsets, never paths.

How a reader finds the end of what is committed, see :class:`Committed`.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Self

from kafkalog.checkpoints.commit_stamp import STATE_FILE, CommitStamp
from kafkalog.checkpoints.intent import INTENT_FILE, Intent, load_intent
from kafkalog.checkpoints.one_history import check_one_history
from kafkalog.checkpoints.sealed_file import JsonObject, read_sealed, seal
from kafkalog.errors import CheckpointError, InvalidTopicError, LogDirectoryError
from kafkalog.files.system import system
from kafkalog.model import validate_topic_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

__all__ = [
    "DEFAULT_EXPIRATION_MS",
    "INTENT_FILE",
    "LOCK_FILE",
    "STAGED_PREFIX",
    "STATE_FILE",
    "UNFINISHED_FOLDER",
    "CommitState",
    "Committed",
    "Intent",
    "TopicState",
    "WriterState",
    "load_committed",
    "load_intent",
    "load_state",
    "topic_key",
]

LOCK_FILE: Final = "kafkalog.lock"
UNFINISHED_FOLDER: Final = "kafkalog.unfinished"
"""A folder without a partition's name: a broker refuses to start on a directory that has it."""
STAGED_PREFIX: Final = ".kafkalog.staged."

DEFAULT_EXPIRATION_MS: Final = 90 * 86_400_000
"""How long a writer is remembered that says nothing about it; on disk, by being left out."""

_VERSION: Final = 1
_EMPTY: Final[Mapping[Any, Any]] = MappingProxyType({})


def topic_key(topic: str, topic_id: str | None) -> str:
    """Give the key under which the state keeps a topic; ``topic_id`` is None where unknown."""
    return topic_id or f":{topic}"


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic: its name, the settings given to it, and per partition the next offset to commit.

    ``versions`` has the last version that each ``txnAppId`` has written of it, ``last_query`` the
    writer key of the streaming query that has written to it last.
    ``durable_ends`` names the partitions of which something was left to the system to write.
    """

    name: str
    high_watermarks: Mapping[int, int]
    settings: Mapping[str, str] = field(default_factory=lambda: _EMPTY)
    versions: Mapping[str, WriterState] = field(default_factory=lambda: _EMPTY)
    last_query: str | None = None
    durable_ends: Mapping[int, int] = field(default_factory=lambda: _EMPTY)


@dataclass(frozen=True, slots=True)
class WriterState:
    """The last batch of one writer.

    ``digest`` identifies the batch's content beyond its number (what the query's checkpoint has
    planned, or its rows), None where nothing told. ``fenced`` are runs that a newer one has
    replaced. It has expired once it is ``expiration_ms`` older than ``time_ms``, by whatever clock;
    ``expired_ms`` is when a commit has found that first.
    """

    run_id: str
    batch_id: int
    digest: str | None
    time_ms: int
    fenced: tuple[str, ...] = ()
    expiration_ms: int = DEFAULT_EXPIRATION_MS
    expired_ms: int | None = None

    def is_expired(self, now_ms: int) -> bool:
        """Whether it has been silent for longer than it asked to be remembered."""
        return now_ms - self.time_ms > self.expiration_ms


@dataclass(frozen=True)
class CommitState:
    """One published state; ``topics`` by topic key, ``writers`` by writer key.

    ``commit_id`` is that of the commit that published it, "" where none was noted.
    ``boot`` is the run of the machine to which records were left that are not durable, None where
    all are or it is not known.
    """

    sequence: int
    set_id: str
    member_id: str
    member_ids: tuple[str, ...]
    topics: Mapping[str, TopicState] = field(default_factory=lambda: _EMPTY)
    writers: Mapping[str, WriterState] = field(default_factory=lambda: _EMPTY)
    commit_id: str = ""
    boot: str | None = None

    @property
    def stamp(self) -> CommitStamp:
        """What tells it from every other state of its set."""
        return CommitStamp(self.sequence, self.commit_id)

    def following(
        self,
        *,
        topics: Mapping[str, TopicState] | None = None,
        writers: Mapping[str, WriterState] | None = None,
    ) -> Self:
        """Give the state that a commit publishes after this one; what is not given stays."""
        return replace(
            self,
            sequence=self.sequence + 1,
            commit_id=system.random_id().hex,
            topics=self.topics if topics is None else topics,
            writers=self.writers if writers is None else writers,
        )

    def key_of(self, topic: str, topic_id: str | None) -> str:
        """Give the key under which a topic is kept here, or would be.

        A folder that has lost its id is of the topic that has its name: what is committed to that
        one does not become unknown with a small file.
        """
        key = topic_key(topic, topic_id)
        if topic_id is not None or key in self.topics:
            return key
        return self._keys_by_name.get(topic, key)

    @cached_property
    def _keys_by_name(self) -> dict[str, str]:
        return {topic.name: key for key, topic in self.topics.items()}

    def topic(self, topic: str, topic_id: str | None) -> TopicState | None:
        """Give what is known of a topic; see :meth:`key_of`."""
        known = self.topics.get(self.key_of(topic, topic_id))
        # A folder that was copied under another name carries an id that is not its topic's.
        return known if known is not None and known.name == topic else None

    def high_watermark(self, topic: str, topic_id: str | None, partition: int) -> int | None:
        """Give the committed end of a partition, None if the state does not know it."""
        known = self.topic(topic, topic_id)
        return None if known is None else known.high_watermarks.get(partition)

    def of_member(self, member_id: str) -> Self:
        """Give the copy of this state for another directory of the set."""
        return replace(self, member_id=member_id)

    def to_bytes(self) -> bytes:
        """Give the content of the file."""
        return seal(STATE_FILE, _VERSION, self._lines())

    def _lines(self) -> Iterable[JsonObject]:
        yield {
            "sequence": self.sequence,
            "commit": self.commit_id,
            "set": self.set_id,
            "member": self.member_id,
            "members": list(self.member_ids),
            **({"boot": self.boot} if self.boot is not None else {}),
        }
        for key, topic in sorted(self.topics.items()):
            line: JsonObject = {
                "topic": topic.name,
                "key": key,
                "settings": dict(sorted(topic.settings.items())),
                "highWatermarks": _by_number(topic.high_watermarks),
                **({"durableEnds": _by_number(topic.durable_ends)} if topic.durable_ends else {}),
            }
            if topic.versions:
                versions = sorted(topic.versions.items())
                line["versions"] = {app_id: _batch_fields(last) for app_id, last in versions}
            if topic.last_query is not None:
                line["query"] = topic.last_query
            yield line
        for key, writer in sorted(self.writers.items()):
            yield {
                "writer": key,
                "run": writer.run_id,
                **_batch_fields(writer),
                "fenced": list(writer.fenced),
            }


def _batch_fields(writer: WriterState) -> JsonObject:
    fields: JsonObject = {
        "batch": writer.batch_id,
        "digest": writer.digest,
        "time": writer.time_ms,
        "expiration": writer.expiration_ms,
    }
    return fields if writer.expired_ms is None else fields | {"expired": writer.expired_ms}


def _by_number(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): offset for partition, offset in sorted(offsets.items())}


def load_state(directory: Path) -> CommitState | None:
    """Read the state that one log directory holds; None if it holds none.

    Raises:
        CheckpointError: it is damaged, from a newer release, or no regular file. Nobody may then
            take the directory for an empty one.
    """
    path = directory / STATE_FILE
    lines = read_sealed(path, STATE_FILE, _VERSION)
    if lines is None:
        return None
    try:
        return _parse(lines)
    except (AttributeError, LookupError, TypeError, ValueError, InvalidTopicError) as error:
        raise CheckpointError(
            f"{path} holds what no release of kafkalog has written: {error!r}"
        ) from error


def _parse(lines: list[JsonObject]) -> CommitState:
    head = lines[0]
    topics: dict[str, TopicState] = {}
    writers: dict[str, WriterState] = {}
    for line in lines[1:]:
        if "topic" in line:
            topics[_text(line["key"])] = _parse_topic(line)
        else:
            writers[_text(line["writer"])] = _parse_writer(line)
    return CommitState(
        sequence=_natural(head["sequence"]),
        set_id=_text(head["set"]),
        member_id=_text(head["member"]),
        member_ids=tuple(_text(member) for member in head["members"]),
        topics=topics,
        writers=writers,
        commit_id=_text(head.get("commit", "")),
        boot=_text(head["boot"]) if "boot" in head else None,
    )


def _parse_topic(line: JsonObject) -> TopicState:
    validate_topic_name(_text(line["topic"]))
    return TopicState(
        name=line["topic"],
        high_watermarks=_parse_offsets(line["highWatermarks"]),
        settings={_text(name): _text(value) for name, value in line["settings"].items()},
        versions={
            _text(app_id): _parse_writer({"run": "", "fenced": [], **fields})
            for app_id, fields in line.get("versions", {}).items()
        },
        last_query=_text(line["query"]) if "query" in line else None,
        durable_ends=_parse_offsets(line.get("durableEnds", {})),
    )


def _parse_offsets(offsets: JsonObject) -> dict[int, int]:
    return {_natural(int(partition)): _natural(offset) for partition, offset in offsets.items()}


def _parse_writer(line: JsonObject) -> WriterState:
    return WriterState(
        run_id=_text(line["run"]),
        batch_id=_natural(line["batch"]),
        digest=None if line["digest"] is None else _text(line["digest"]),
        time_ms=_natural(line["time"]),
        fenced=tuple(_text(run) for run in line["fenced"]),
        expiration_ms=_natural(line.get("expiration", DEFAULT_EXPIRATION_MS)),
        expired_ms=_natural(line["expired"]) if "expired" in line else None,
    )


def _natural(value: object) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{value!r} where a number from 0 to 2^63-1 belongs")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} where text belongs")
    return value


@dataclass(frozen=True)
class Committed:
    """What the log directories of one set have committed, and what is in progress there.

    A reader takes these steps in this order, so that a commit that runs meanwhile is seen whole or
    not at all:

    1. list the partition folders;
    2. read Kafka's ``replication-offset-checkpoint`` files;
    3. :func:`load_committed`, which reads the intents first and the states after them; if it gives
       another sequence number than before the listing, once more from step 1: what was committed
       since may lie in folders that were not there yet;
    4. per partition the committed end is :meth:`high_watermark`, or the checkpoint's where that is
       larger; of a partition that is :meth:`in_progress` the checkpoint counts up to where that
       commit begins. The checkpoint of a directory says of a partition there that it does not
       name that nothing is committed. Where neither knows it (there is no such file) and it is not
       in progress, it is the log end by walking the log; after the walk, :func:`load_committed`
       again, and if the sequence numbers differ from before, once more from step 1.

    A partition in progress that the state does not know has no committed records: its end is its
    log start. No end lies beyond the log end.

    Why this order: checkpoint files are written after the state, so what stands in one is in every
    state that is read later; an intent is removed after its state is published, so an intent that
    was gone before the states were read is in them; a folder is made after its intent.
    """

    state: CommitState | None
    unfinished: Intent | None
    members: Mapping[Path, str] = field(default_factory=lambda: _EMPTY)
    """The member ids of the directories that have a state."""

    def high_watermark(self, topic: str, topic_id: str | None, partition: int) -> int | None:
        """Give the committed end of a partition, None if the state does not know it."""
        if self.state is None:
            return None
        if topic_id is None and (topic, partition) in self._being_made:
            return None  # it has no id yet; an earlier topic of its name was another one
        return self.state.high_watermark(topic, topic_id, partition)

    @cached_property
    def _being_made(self) -> frozenset[tuple[str, int]]:
        intended = self.unfinished.partitions if self.unfinished else ()
        return frozenset(each.topic_partition for each in intended if each.created)

    def in_progress(self, topic: str, partition: int) -> bool:
        """Whether an unfinished commit may be writing this partition."""
        return (topic, partition) in self._partitions_in_progress

    @cached_property
    def _partitions_in_progress(self) -> frozenset[tuple[str, int]]:
        intended = self.unfinished.partitions if self.unfinished else ()
        return frozenset(partition.topic_partition for partition in intended)


def load_committed(directories: Iterable[Path]) -> Committed:
    """Read what is committed in log directories that belong together.

    Directories without a state (a broker's, a bare copy) do not matter here.

    Raises:
        CheckpointError: a state or intent is damaged or from a newer release.
        LogDirectoryError: the directories belong to different sets, or one was away while the
            others committed.
    """
    folders = list(directories)
    with suppress(LogDirectoryError):
        return _load_committed(folders)
    return _load_committed(folders)  # a commit came between the files that were read


def _load_committed(folders: Sequence[Path]) -> Committed:
    intents = {folder: intent for folder in folders if (intent := load_intent(folder)) is not None}
    states: dict[Path, CommitState] = {
        folder: state for folder in folders if (state := load_state(folder)) is not None
    }
    if len({state.set_id for state in states.values()}) > 1:
        raise LogDirectoryError(
            "these log directories belong to different sets, read them one set at a time: "
            + ", ".join(f"{folder} to set {state.set_id}" for folder, state in states.items())
        )
    check_one_history({folder: state.stamp for folder, state in states.items()}, intents)
    # Of equal ones, one with more members is a copy that invites a directory into the set.
    state = max(
        states.values(), key=lambda state: (state.sequence, -len(state.member_ids)), default=None
    )
    intent = max(intents.values(), key=lambda intent: intent.sequence, default=None)
    published = -1 if state is None else state.sequence
    unfinished = intent if intent is not None and intent.sequence > published else None
    return Committed(state, unfinished, {folder: s.member_id for folder, s in states.items()})
