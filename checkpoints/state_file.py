"""The format of ``kafkalog.commit``: encode and parse a commit state.

::

    line 1       header, see :mod:`~kafkalog.checkpoints.sealed_file`; version 2
    line 2       {"sequence":7,"commit":"…","set":"…","member":"…","members":["…","…"],
                  "controllerEpoch":0,"boot":"…","metadataEnd":57}
    a topic      {"topic":"flights","id":"<topic id>","settings":{"compression.type":"lz4"},
                  "partitions":{"0":[0,120,120,3],"1":[40,98,98,0]},"durableEnds":{"1":60},
                  "clusterEpochs":{"0":2},
                  "versions":{"<txnAppId>":{"batch":3,"digest":"rows …","time":…,"expiration":…}},
                  "query":"query:<transactional id>",
                  "origins":{"mirror flights":{"set":"…","id":"<topic id>",
                  "positions":{"0":[120,"<last batch>",0],"1":[98,null,0]}}}}
    a writer     {"writer":"query:<transactional id>","run":"…","batch":12,"digest":"…",
                  "time":1700000000000,"expiration":604800000,"fenced":["…"]}

    a deletion   {"deleted":"flights","id":"<topic id>","retired":true}

``commit`` is drawn at random, see :mod:`~kafkalog.checkpoints.commit_state`.
``partitions`` have log start, high watermark, log end and leader epoch, in this order. The leader
epoch is -1 where it could not be told.
``durableEnds`` are those of the partitions that ``flush=os`` wrote last: what lies below is on the
disk. A partition that is not named there is durable up to its log end.
``clusterEpochs`` are those of the partitions whose epoch a cut has raised: what it was before.
``boot`` is the run of the machine that the rest was left to, where there is any.
``metadataEnd`` is up to where a cluster's metadata was read for the settings of topics, if it was.
``versions`` are the last ones of batch writes, which count for each topic by itself. ``query`` is
the streaming query that wrote to the topic last. ``origins`` are the topics that its records were
copied from, by the job that copies: the next offset of each partition, base offset and CRC of the
last batch below it.
``time`` is when that was noted last, of what is forgotten as a writer is.
``expired`` is when a commit has first found that a writer has expired.

A ``deleted`` topic is one whose folders are being removed. It is in no topic line any more. Those
that are left have no partition's name any more where it is ``retired``; the field is there then.

Topics are kept by their topic id, so that a topic that was deleted and recreated does not inherit
offsets; one that never had a ``partition.metadata`` has the id null. The file holds topics,
partitions and offsets, never paths.

**Format 3** is format 2 of a replicated set, see :mod:`~kafkalog.checkpoints.commit_state`.

**Format 4** is format 2 of a large set. A commit writes what has changed since a snapshot, which
lies beside the state: ``kafkalog.snapshot.<snapshot id>``. Whoever reads puts the two together.

::

    line 2       also has "snapshot":"<snapshot id>","crc":"1f2e3d4c","gone":["<topic id>","…"]
    a topic      also has "changed":[0,7],"without":["<txnAppId>"]

``crc`` is the checksum in line 1 of the snapshot. ``gone`` are the keys of topics and writers that
the snapshot has and the state has not. Topics and writers without a line are as in the snapshot. A
topic with ``changed`` names partitions, durable ends and epochs of these partitions alone, and
versions that are new or other; the rest are as in the snapshot, ``without`` those versions. The
snapshot has the same lines as a state of format 2, below
``{"snapshot":"<snapshot id>","set":"…"}``. It is on the disk before the state that names it is
renamed, so one rename still decides. It is never changed. Once the changes are large, the next
commit writes another one; the last one but one is removed then.

**Versions.** What a state holds decides in which version it is written. A field or a line that is
not known is refused: to pass over it would mean to lose it with the next commit. So a release that
adds one raises the version, for the sets that have need of it, and is given to readers first.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from errno import ENOENT
from functools import lru_cache
from itertools import chain, compress, filterfalse, starmap
from operator import is_not
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar

from kafkalog.checkpoints.commit_state import (
    CHANGES_VERSION,
    FORMAT_VERSION,
    REPLICATED_VERSION,
    SNAPSHOT,
    STATE_FILE,
    UNKNOWN_EPOCH,
    CommitState,
    DeletedTopic,
    PartitionState,
    SourcePosition,
    StateSnapshot,
    TopicOrigin,
    TopicState,
    WriterState,
    node_line,
    parse_nodes,
    parse_replicas,
    replica_fields,
    topic_key,
)
from kafkalog.checkpoints.sealed_file import (
    RESTORE,
    JsonObject,
    check_fields,
    natural,
    numbered,
    read_head,
    read_sealed,
    seal,
    text,
    texts,
    unknown_content,
)
from kafkalog.errors import CheckpointError, InvalidTopicError, KafkaLogError
from kafkalog.files.system import remembered, system
from kafkalog.files.timeouts import at, stalled
from kafkalog.files.watch import Stamp, stamp_of
from kafkalog.model import validate_topic_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    from kafkalog.checkpoints.sealed_file import Sealed

__all__ = [
    "STATE_FILE",
    "WRITER_FIELDS",
    "StateContent",
    "add_line",
    "changed_entries",
    "check_topic_line",
    "find_published",
    "find_state",
    "load_state",
    "names_nodes",
    "note_published",
    "parse_topic",
    "parse_writer",
    "state_bytes",
    "topic_line",
    "writer_line",
]

_HEAD: Final = frozenset(
    {"sequence", "commit", "set", "member", "members", "controllerEpoch", "boot", "metadataEnd"}
)
_TOPIC: Final = frozenset(
    {"topic", "id", "settings", "partitions", "durableEnds", "clusterEpochs", "versions", "query"}
    | {"partitionCount"}
    | {"origins"}
)
_REPLICATED_HEAD: Final = _HEAD | {"nodes", "former", "controller", "previous", "lentTo"}
_REPLICATED_TOPIC: Final = _TOPIC | {"replicas"}
_CHANGES_HEAD: Final = _HEAD | {"snapshot", "crc", "gone"}
_CHANGED_TOPIC: Final = _TOPIC | {"changed", "without"}
_DELETED: Final = frozenset({"deleted", "id", "retired"})
_ORIGIN: Final = frozenset({"set", "id", "positions", "time"})
_BATCH: Final = frozenset({"batch", "digest", "time", "expiration", "expired"})
WRITER_FIELDS: Final = _BATCH | {"writer", "run", "fenced"}

_OF_NO_VERSION: Final[JsonObject] = {"run": "", "fenced": []}
"""What a writer has and the version of a batch write has not."""


FEW_ENTRIES: Final = 500
"""A state of no more partitions, some 8 KiB, is written whole with each commit."""
_OF_A_WRITER: Final = 8
"""A writer takes the room of so many partitions."""
SMALL_CHANGES: Final = 8 << 10
_SHARE_OF_SNAPSHOT: Final = 16
"""Changes of a larger share of the snapshot, in bytes, are the beginning of another one."""
_SNAPSHOT_ID: Final = re.compile(r"[0-9a-f]{32}")

_K = TypeVar("_K")
_T = TypeVar("_T")

# Writing


def state_bytes(state: CommitState, snapshot: StateSnapshot | None = None) -> bytes:
    """Return the content of the file: all of a state, or what has changed since a snapshot.

    Raises:
        CheckpointError: it would be too large to be read, or says what no topic can be.
    """
    return StateContent.since(state, snapshot).of_member(state.member_id)


class StateContent(NamedTuple):
    """What the files of a state hold, which are one in each directory of a set.

    ``snapshot`` is the one that they name, None where a state is small, and is written whole.
    ``new_snapshot`` are its bytes, none where the snapshot that the state was read with still does.
    """

    state: CommitState
    lines: Sequence[JsonObject]
    snapshot: StateSnapshot | None = None
    new_snapshot: bytes = b""

    @classmethod
    def of(cls, state: CommitState) -> Self:
        """Return what a state is to be written as.

        Raises:
            CheckpointError: it would be too large to be read, or says what no topic can be.
        """
        if state.is_replicated or _entries(state) <= FEW_ENTRIES:
            return cls.since(state, None)
        if state.snapshot is not None:
            found = cls.since(state, state.snapshot)
            changes = len(found.of_member(state.member_id))
            if changes <= max(SMALL_CHANGES, state.snapshot.size // _SHARE_OF_SNAPSHOT):
                return found
        snapshot_id = system.random_id().hex
        lines = chain([{"snapshot": snapshot_id, "set": state.set_id}], _lines(state))
        data = seal(SNAPSHOT, 1, lines)
        crc: str = json.loads(data.partition(b"\n")[0])["crc32c"]
        made = StateSnapshot(snapshot_id, crc, len(data), state.topics, state.writers)
        return cls.since(state, made)._replace(new_snapshot=data)

    @classmethod
    def since(cls, state: CommitState, snapshot: StateSnapshot | None) -> Self:
        """Return what has changed since a snapshot; all of a state without one."""
        lines = _lines(state) if snapshot is None else _changed_lines(state, snapshot)
        return cls(state, [*lines, *_deleted_lines(state)], snapshot)

    def of_member(self, member_id: str) -> bytes:
        """Return the content of the file in the directory of a member.

        Raises:
            CheckpointError: it would be too large to be read.
        """
        head = _head(self.state.of_member(member_id))
        version = REPLICATED_VERSION if self.state.is_replicated else FORMAT_VERSION
        if self.snapshot is not None:
            head |= _since(self.state, self.snapshot)
            version = CHANGES_VERSION
        return seal(STATE_FILE, version, chain([head], self.lines))


def _entries(state: CommitState) -> int:
    """Return roughly how many partitions would take as much room as a state."""
    of_topics = sum(
        len(topic.partitions) + len(topic.durable_ends) + _OF_A_WRITER * len(topic.versions)
        for topic in state.topics.values()
    )
    return of_topics + _OF_A_WRITER * len(state.writers)


def _since(state: CommitState, snapshot: StateSnapshot) -> JsonObject:
    gone = chain(
        filterfalse(state.topics.__contains__, snapshot.topics),
        filterfalse(state.writers.__contains__, snapshot.writers),
    )
    return {"snapshot": snapshot.snapshot_id, "crc": snapshot.crc, "gone": sorted(gone)}


def _changed_lines(state: CommitState, snapshot: StateSnapshot) -> Iterable[JsonObject]:
    for key, topic in sorted(changed_entries(state.topics, snapshot.topics)):
        before = snapshot.topics.get(key)
        yield topic_line(key, topic) if before is None else _changed_topic(key, topic, before)
    for key, writer in sorted(changed_entries(state.writers, snapshot.writers)):
        yield writer_line(key, writer)


def changed_entries(now: Mapping[_K, _T], before: Mapping[_K, _T]) -> list[tuple[_K, _T]]:
    """Return what is new or other; most is the very same object, and there may be 20,000."""
    others = compress(now.items(), map(is_not, now.values(), map(before.get, now)))
    return [entry for entry in others if entry[1] != before.get(entry[0])]


def _changed_keys(now: Mapping[_K, _T], before: Mapping[_K, _T]) -> Iterable[_K]:
    """Return the keys of what is new or other, and of what is gone."""
    changed = [key for key, _ in changed_entries(now, before)]
    kept = len(now) - sum(key not in before for key in changed)
    gone = filterfalse(now.__contains__, before) if kept < len(before) else ()
    return chain(changed, gone)


def _changed_topic(key: str, topic: TopicState, before: TopicState) -> JsonObject:
    pairs: list[tuple[Mapping[int, Any], Mapping[int, Any]]] = [
        (topic.partitions, before.partitions),
        (topic.durable_ends, before.durable_ends),
        (topic.cluster_epochs, before.cluster_epochs),
    ]
    changed = {number for now, old in pairs if now is not old for number in _changed_keys(now, old)}
    partitions, durable_ends, cluster_epochs = (
        {number: now[number] for number in changed if number in now} for now, _ in pairs
    )
    kept = replace(
        topic,
        partitions=partitions,
        durable_ends=durable_ends,
        cluster_epochs=cluster_epochs,
        versions=dict(changed_entries(topic.versions, before.versions)),
    )
    without = sorted(filterfalse(topic.versions.__contains__, before.versions))
    return topic_line(key, kept) | {"changed": sorted(changed), "without": without}


def _head(state: CommitState) -> JsonObject:
    return {
        "sequence": state.sequence,
        "commit": state.commit_id,
        "set": state.set_id,
        "member": state.member_id,
        "members": list(state.member_ids),
        "controllerEpoch": state.controller_epoch,
        **({"boot": state.boot} if state.boot is not None else {}),
        **({"metadataEnd": state.metadata_end} if state.metadata_end is not None else {}),
        **({"nodes": [*map(node_line, state.nodes)]} if state.nodes else {}),
        **({"former": [*map(node_line, state.former)]} if state.former else {}),
        **({"controller": state.controller} if state.controller else {}),
        **({"previous": state.previous} if state.previous else {}),
        **({"lentTo": state.handed_to} if state.handed_to else {}),
    }


def _lines(state: CommitState) -> Iterable[JsonObject]:
    for key, topic in sorted(state.topics.items()):
        yield topic_line(key, topic)
    for key, writer in sorted(state.writers.items()):
        yield writer_line(key, writer)


def _deleted_lines(state: CommitState) -> Iterable[JsonObject]:
    for key, (name, is_retired) in sorted(state.deleted.items()):
        retired = {"retired": True} if is_retired else {}
        yield {"deleted": name, "id": _id_of(key, name), **retired}


def writer_line(key: str, writer: WriterState) -> JsonObject:
    """Return the line of a writer."""
    return {
        "writer": key,
        "run": writer.run_id,
        **_batch_fields(writer),
        "fenced": list(writer.fenced),
    }


def topic_line(key: str, topic: TopicState) -> JsonObject:
    """Return the line of a topic.

    Raises:
        CheckpointError: it says what no topic can be.
    """
    try:
        _check_topic(topic)
    except ValueError as error:
        raise CheckpointError(
            f"topic {topic.name!r} cannot be committed, nothing was changed: {error}"
        ) from error
    line: JsonObject = {
        "topic": topic.name,
        "id": _id_of(key, topic.name),
        "settings": dict(sorted(topic.settings.items())),
        "partitions": {str(number): each for number, each in sorted(topic.partitions.items())},
    }
    if topic.durable_ends:
        ends = sorted(topic.durable_ends.items())
        line["durableEnds"] = {str(number): end for number, end in ends}
    if topic.cluster_epochs:
        epochs = sorted(topic.cluster_epochs.items())
        line["clusterEpochs"] = {str(number): epoch for number, epoch in epochs}
    if topic.partition_count:
        line["partitionCount"] = topic.partition_count
    if topic.versions:
        versions = sorted(topic.versions.items())
        line["versions"] = {app_id: _batch_fields(last) for app_id, last in versions}
    if topic.last_query is not None:
        line["query"] = topic.last_query
    if topic.origins:
        origins = sorted(topic.origins.items())
        line["origins"] = {key: _origin_fields(origin) for key, origin in origins}
    if topic.replicas:
        line["replicas"] = replica_fields(topic.replicas)
    return line


def _id_of(key: str, name: str) -> str | None:
    return None if key == topic_key(name, None) else key


def _batch_fields(writer: WriterState) -> JsonObject:
    fields: JsonObject = {
        "batch": writer.batch_id,
        "digest": writer.digest,
        "time": writer.time_ms,
        "expiration": writer.expiration_ms,
    }
    return fields if writer.expired_ms is None else fields | {"expired": writer.expired_ms}


def _origin_fields(origin: TopicOrigin) -> JsonObject:
    positions = {str(number): each for number, each in sorted(origin.positions.items())}
    fields: JsonObject = {"set": origin.set_id, "id": origin.topic_id, "positions": positions}
    return fields if origin.time_ms is None else fields | {"time": origin.time_ms}


def _check_topic(topic: TopicState) -> None:
    """Refuse what no partition can be; whoever reads relies on it."""
    if max(topic.partitions, default=0) >= 2**31:
        raise ValueError(f"there is no partition {max(topic.partitions)}")
    for number, (log_start, high_watermark, log_end, epoch) in topic.partitions.items():
        if not 0 <= log_start <= high_watermark <= log_end < 2**63:
            raise ValueError(
                f"partition {number} from {log_start}, committed up to {high_watermark}, ends at "
                f"{log_end}"
            )
        if not UNKNOWN_EPOCH <= epoch < 2**31:
            raise ValueError(f"partition {number} has the leader epoch {epoch}")
    named = topic.durable_ends.keys() | topic.replicas.keys() | topic.cluster_epochs.keys()
    if named - topic.partitions.keys():
        raise ValueError("a durable end, replicas, or an epoch of a partition that is not there")


# Reading


def load_state(directory: Path, name: str = STATE_FILE) -> CommitState | None:
    """Read the state that one log directory holds; None if it holds none.

    ``name`` is that of the file: a state that is only prepared lies beside the present one.

    Raises:
        CheckpointError: it is damaged, from a newer release, or no regular file. Nobody may then
            take the directory for an empty one.
    """
    path = directory / name
    missing = ""
    while (sealed := read_sealed(path, STATE_FILE, CHANGES_VERSION)) is not None:
        try:
            return _parse(path, sealed)
        except FileNotFoundError as error:
            if missing == str(error.filename):
                raise _without_snapshot(path, missing) from error
            missing = str(error.filename)  # a commit since that was read has written another one
        except (AttributeError, LookupError, TypeError, ValueError, InvalidTopicError) as error:
            fault = f"{path} holds what no release of kafkalog has written: {error!r}"
            raise CheckpointError(fault, fault=fault) from error
    return None


def _without_snapshot(path: Path, missing: str) -> CheckpointError:
    fault = f"{path} names the snapshot {missing}, which is not there"
    return CheckpointError(f"{fault}. Nothing was changed. {RESTORE}", fault=fault)


def _load_snapshot(directory: Path, snapshot_id: str, crc: str, set_id: str) -> StateSnapshot:
    """Read a snapshot, or return it as it was read before.

    Raises:
        FileNotFoundError: there is none of that id.
        CheckpointError: it is damaged, or another one than the state was written with.
    """
    if not _SNAPSHOT_ID.fullmatch(snapshot_id):
        raise ValueError(f"{snapshot_id!r:.100} is no id of a snapshot")
    path = directory / f"{SNAPSHOT}.{snapshot_id}"
    is_now = path.stat()
    which = (is_now.st_ino, is_now.st_size, is_now.st_mtime_ns)
    return remembered(_Snapshots).read(path, snapshot_id, crc, set_id, which)


class _Snapshots:
    """The snapshots that this process has read last: they never change."""

    def __init__(self) -> None:
        self.read = lru_cache(maxsize=16)(_read_snapshot)


def _read_snapshot(
    path: Path, snapshot_id: str, crc: str, set_id: str, which: tuple[int, int, int]
) -> StateSnapshot:
    sealed = read_sealed(path, SNAPSHOT, 1)
    if sealed is None:
        raise FileNotFoundError(ENOENT, "there is no such snapshot", str(path))
    head = sealed.lines[0]
    if (head.get("snapshot"), head.get("set"), sealed.crc) != (snapshot_id, set_id, crc):
        raise ValueError(f"{path} is another snapshot than the one of this commit")
    topics: dict[str, TopicState] = {}
    writers: dict[str, WriterState] = {}
    for number, line in numbered(sealed.lines):
        if "topic" in line:
            check_topic_line(path, number, line)
            add_line(topics, *parse_topic(line))
        elif number > 2:
            check_fields(path, number, line, WRITER_FIELDS)
            add_line(writers, text(line["writer"]), parse_writer(line))
    return StateSnapshot(snapshot_id, crc, which[1], topics, writers)


class _Published(dict["Path", tuple[Stamp, CommitState]]):
    """The states that this process has published last, by directory, and their files."""


_MOST_PUBLISHED: Final = 8


def note_published(directory: Path, state: CommitState, file: Stamp) -> None:
    """Note which file holds the state that was just published in a log directory.

    REQUIRES: no other host writes to the file system: this one sees each change at once.
    """
    known = remembered(_Published)
    known.pop(directory, None)
    known[directory] = file, state
    while len(known) > _MOST_PUBLISHED:
        known.pop(next(iter(known)), None)


def find_published(directory: Path) -> CommitState | None:
    """Return the state that this process published last, if it is still the one in its file."""
    return _published(directory, stamp_of(str(directory / STATE_FILE)))


def find_state(directory: Path) -> CommitState | None:
    """Return what :func:`load_state` does; what this process has published need not be read again.

    For who plans a change. Who makes it reads under the locks.

    Raises:
        CheckpointError, OSError: as there.
    """
    return find_published(directory) or load_state(directory)


def _published(directory: Path, file: Stamp | None) -> CommitState | None:
    """Return the state that this process has published in a file; None where it may be another."""
    known = remembered(_Published).get(directory)
    return known[1] if known is not None and known[0] == file else None


def names_nodes(directory: Path) -> bool:
    """Whether a log directory is of a replicated set, as far as the head of its state tells."""
    if stalled(directory) is not None:
        return False
    path, known = directory / STATE_FILE, remembered(_NamesNodes)
    try:
        with at(directory):
            stamp = stamp_of(str(path))
            if stamp is None:
                return False
            published = _published(directory, stamp)
            if published is not None:
                return published.is_replicated
            found = known.get(path)
            if found is None or found[0] != stamp:
                head = read_head(path)
                found = known[path] = stamp, head is not None and "nodes" in head
    except (OSError, KafkaLogError):
        return False
    return found[1]


class _NamesNodes(dict["Path", tuple[Stamp, bool]]):
    """What :func:`names_nodes` found last, which counts until the state is replaced.

    A state that names nodes is longer than one that names none, so its stamp is another one.
    """


def _parse(path: Path, sealed: Sealed) -> CommitState:
    _check_known(path, sealed.lines, sealed.version)
    head, *others = sealed.lines
    topics: dict[str, TopicState] = {}
    writers: dict[str, WriterState] = {}
    deleted: dict[str, DeletedTopic] = {}
    for line in others:
        if "topic" in line:
            add_line(topics, *parse_topic(line))
        elif "deleted" in line:
            name = text(line["deleted"])
            validate_topic_name(name)
            gone = DeletedTopic(name, is_retired="retired" in line)
            add_line(deleted, _parse_key(name, line["id"]), gone)
        else:
            add_line(writers, text(line["writer"]), parse_writer(line))
    state = CommitState(
        sequence=natural(head["sequence"]),
        set_id=text(head["set"]),
        member_id=text(head["member"]),
        member_ids=texts(head["members"]),
        topics=topics,
        writers=writers,
        commit_id=text(head["commit"]),
        boot=text(head["boot"]) if "boot" in head else None,
        controller_epoch=natural(head["controllerEpoch"]),
        metadata_end=natural(head["metadataEnd"]) if "metadataEnd" in head else None,
        deleted=deleted,
        nodes=parse_nodes(head.get("nodes", [])),
        former=parse_nodes(head.get("former", [])),
        controller=text(head.get("controller", "")),
        previous=text(head.get("previous", "")),
        handed_to=text(head.get("lentTo", "")),
    )
    return _on_snapshot(path, sealed, state) if sealed.version == CHANGES_VERSION else state


def _on_snapshot(path: Path, sealed: Sealed, changes: CommitState) -> CommitState:
    """Return the state that a snapshot and what has changed since are together."""
    head, *lines = sealed.lines
    given = (text(head[name]) for name in ("snapshot", "crc", "set"))
    before = _load_snapshot(path.parent, *given)
    gone = frozenset(texts(head["gone"]))
    kept = {key: topic for key, topic in before.topics.items() if key not in gone}
    topics = kept | dict(changes.topics)
    for line in lines:
        if "changed" in line:
            key = _parse_key(text(line["topic"]), line["id"])
            topics[key] = _merged(topics[key], before.topics[key], line)
    writers = {key: it for key, it in before.writers.items() if key not in gone}
    return replace(changes, topics=topics, writers=writers | dict(changes.writers), snapshot=before)


def _merged(topic: TopicState, before: TopicState, line: JsonObject) -> TopicState:
    """Return a topic of which a line has what has changed since a snapshot."""
    changed, without = frozenset(map(natural, line["changed"])), frozenset(texts(line["without"]))
    kept = {**before.versions}
    for app_id in without:
        kept.pop(app_id, None)

    def merge(now: Mapping[int, _T], old: Mapping[int, _T]) -> Mapping[int, _T]:
        if not now.keys() <= changed:
            raise ValueError(f"partitions {sorted(now.keys() - changed)[:9]} have not changed")
        if now.keys() <= old.keys() and not (changed - now.keys()) & old.keys():
            return {**old, **now}
        kept = {number: each for number, each in old.items() if number not in changed}
        return dict(sorted((kept | dict(now)).items()))

    return replace(
        topic,
        partitions=merge(topic.partitions, before.partitions),
        durable_ends=merge(topic.durable_ends, before.durable_ends),
        cluster_epochs=merge(topic.cluster_epochs, before.cluster_epochs),
        versions=kept | dict(topic.versions),
    )


def add_line(known: dict[Any, Any], key: object, value: object) -> None:
    """Take what a line says; a ValueError says that another one has said it."""
    if key in known:
        raise ValueError(f"there are two lines about {key!r:.100}")
    known[key] = value


_FIELDS: Final = {
    FORMAT_VERSION: (_HEAD, _TOPIC),
    REPLICATED_VERSION: (_REPLICATED_HEAD, _REPLICATED_TOPIC),
    CHANGES_VERSION: (_CHANGES_HEAD, _CHANGED_TOPIC),
}
"""Of line 2 and of a topic's line, by the version."""


def _check_known(path: Path, lines: Iterable[JsonObject], version: int) -> None:
    """Refuse fields and lines that this release does not know.

    Raises:
        CheckpointError: there is one.
    """
    of_head, of_topic = _FIELDS[version]
    for number, line in numbered(lines):
        if number == 2:
            check_fields(path, number, line, of_head)
            if version == REPLICATED_VERSION and not line.get("nodes"):
                raise ValueError("a replicated set without nodes")
        elif "topic" in line:
            check_topic_line(path, number, line, of_topic)
        elif "writer" in line:
            check_fields(path, number, line, WRITER_FIELDS)
        elif "deleted" in line:
            check_fields(path, number, line, _DELETED)
        else:
            raise unknown_content(path, number, f"neither a topic nor a writer, but {line!r}")


def check_topic_line(
    path: Path | str, number: int, line: JsonObject, known: AbstractSet[str] = _TOPIC
) -> None:
    """Refuse what is not known in the line of a topic.

    Raises:
        CheckpointError: there is such a field.
    """
    check_fields(path, number, line, known)
    for version in line.get("versions", {}).values():
        check_fields(path, number, version, _BATCH)
    for origin in line.get("origins", {}).values():
        check_fields(path, number, origin, _ORIGIN)


def parse_topic(line: JsonObject) -> tuple[str, TopicState]:
    """Return a topic and its key from its line; a ValueError, or its like, says that it is none."""
    name = text(line["topic"])
    validate_topic_name(name)
    topic = TopicState(
        name=name,
        partitions=_parse_partitions(line["partitions"]),
        settings={text(setting): text(value) for setting, value in line["settings"].items()},
        versions={
            text(app_id): parse_writer(_OF_NO_VERSION | fields)
            for app_id, fields in line.get("versions", {}).items()
        },
        last_query=text(line["query"]) if "query" in line else None,
        durable_ends=_parse_ends(line.get("durableEnds", {})),
        replicas=parse_replicas(line.get("replicas", {})),
        origins={
            text(key): _parse_origin(fields) for key, fields in line.get("origins", {}).items()
        },
        cluster_epochs=_parse_ends(line.get("clusterEpochs", {})),
        partition_count=_parse_count(line.get("partitionCount", 0)),
    )
    _check_topic(topic)
    return _parse_key(name, line["id"]), topic


def _parse_count(count: object) -> int:
    if not isinstance(count, int) or not 0 <= count < 2**31:
        raise ValueError(f"{count!r} is no number of partitions")
    return count


def _parse_key(name: str, topic_id: object) -> str:
    if topic_id == "":
        raise ValueError(f"topic {name!r} has an empty id")
    return topic_key(name, None if topic_id is None else text(topic_id))


def _parse_partitions(given: JsonObject) -> dict[int, PartitionState]:
    """Parse all partitions of a topic at once: there may be thousands, in each commit."""
    fields = list(given.values())
    is_list = set(map(type, fields)) <= {list} and set(map(len, fields)) <= {4}
    if not is_list or not set(map(type, chain.from_iterable(fields))) <= {int}:
        raise TypeError(f"{fields!r:.100} where log starts, ends and leader epochs belong")
    return dict(zip(_partition_numbers(given), starmap(PartitionState, fields), strict=True))


def _parse_ends(given: JsonObject) -> dict[int, int]:
    return dict(zip(_partition_numbers(given), map(natural, given.values()), strict=True))


def _parse_origin(fields: JsonObject) -> TopicOrigin:
    given: JsonObject = fields["positions"]
    positions = [_parse_position(*each) for each in given.values()]
    return TopicOrigin(
        set_id=None if fields["set"] is None else text(fields["set"]),
        topic_id=None if fields["id"] is None else text(fields["id"]),
        positions=dict(zip(_partition_numbers(given), positions, strict=True)),
        time_ms=natural(fields["time"]) if "time" in fields else None,
    )


def _parse_position(offset: object, last_batch: object, copy_epoch: object) -> SourcePosition:
    known = None if last_batch is None else text(last_batch)
    return SourcePosition(natural(offset), known, natural(copy_epoch))


def _partition_numbers(given: JsonObject) -> list[int]:
    numbers = list(map(int, given))
    if list(map(str, numbers)) != list(given) or min(numbers, default=0) < 0:
        raise ValueError(f"{list(given)!r:.100} where the numbers of partitions belong")
    return numbers


def parse_writer(line: Mapping[str, object]) -> WriterState:
    """Return a writer from its line; a ValueError, or its like, says that it is none."""
    return WriterState(
        run_id=text(line["run"]),
        batch_id=natural(line["batch"]),
        digest=None if line["digest"] is None else text(line["digest"]),
        time_ms=natural(line["time"]),
        fenced=texts(line["fenced"]),
        expiration_ms=natural(line["expiration"]),
        expired_ms=natural(line["expired"]) if "expired" in line else None,
    )
