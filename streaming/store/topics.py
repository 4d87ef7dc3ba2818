"""The topics of a set: their partitions and settings."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations
from typing import TYPE_CHECKING, Final, Self

from kafkalog.checkpoints.broker import PARTITION_METADATA, read_topic_id
from kafkalog.checkpoints.commit_state import topic_key
from kafkalog.checkpoints.committed import load_committed
from kafkalog.checkpoints.state_file import find_state
from kafkalog.checkpoints.topic_ids import CHANGED_IDS_FILE, is_changed_id
from kafkalog.errors import (
    InvalidTopicError,
    LogDirectoryError,
    OptionError,
    RowError,
    UnknownTopicOrPartitionError,
)
from kafkalog.files.system import once_per_process, remembered
from kafkalog.files.watch import stamp_of
from kafkalog.model import (
    CLUSTER_METADATA_TOPIC,
    INTERNAL_TOPICS,
    TopicPartition,
    TopicSelection,
    listed,
    nearest,
    partition_counts,
    validate_topic_name,
)
from kafkalog.streaming.coordinator.cluster_metadata import read_partition_counts
from kafkalog.streaming.options.topic_settings import LogConfig, understood
from kafkalog.streaming.store.file_systems import is_shared
from kafkalog.streaming.store.log_dirs import (
    TopicOwners,
    check_no_link,
    log_dirs_of_set,
    without_deleted,
)
from kafkalog.streaming.store.recovery.lost_partitions import lost_id_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from kafkalog.checkpoints.bucket_state import BucketState
    from kafkalog.checkpoints.commit_state import CommitState, TopicState
    from kafkalog.checkpoints.committed import Committed
    from kafkalog.files.watch import Stamp
    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.store.policy import TopicPolicy

__all__ = [
    "Topic",
    "TopicCatalog",
    "check_known",
    "check_no_collision",
    "check_writable",
    "differing_ids",
    "unknown_topic",
    "warn_of_partitions",
]

_LOGGER: Final = logging.getLogger("kafkalog.sink")

_RESERVED_PREFIX: Final = "__"
_TOPICS_KEPT: Final = 1000
"""Of so many topics with several partitions a process knows the ids."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as a writer sees it.

    ``partitions`` is their number, ``settings`` what was ever given to the topic, by Kafka's names;
    ``topic_id`` is None where the topic has none or is yet to be made.
    """

    name: str
    partitions: int
    settings: Mapping[str, str]
    exists: bool
    topic_id: str | None = None

    @property
    def config(self) -> LogConfig:
        """All settings that are known, with Kafka's defaults.

        Raises:
            OptionError: settings given now that do not go with those given before.
        """
        try:
            return _config_of(tuple(sorted(self.settings.items())))
        except OptionError as error:
            raise OptionError(f"topic {self.name!r}: {error}") from None

    @property
    def key(self) -> str:
        """Under which the commit state keeps it."""
        return topic_key(self.name, self.topic_id)

    @property
    def known_key(self) -> str | None:
        """The same; None of a topic that is yet to be made."""
        return self.key if self.exists else None


@lru_cache(maxsize=64)
def _config_of(settings: tuple[tuple[str, str], ...]) -> LogConfig:
    return LogConfig.from_mapping(understood(dict(settings)))


def unknown_topic(
    state: CommitState | BucketState, places: Iterable[object], name: str
) -> UnknownTopicOrPartitionError:
    """Return the error for a topic that the state of log directories, or of a bucket, lacks."""
    known = sorted({topic.name for topic in state.topics.values()})
    near = nearest(name, known)
    return UnknownTopicOrPartitionError(
        f"no topic {name!r} in {', '.join(map(str, places))}. Topics: "
        f"{listed(known) or 'none at all'}" + (f" (did you mean {near}?)" if near else "")
    )


def check_known(
    state: CommitState | BucketState, places: Iterable[object], topics: TopicSelection
) -> None:
    """Refuse a topic that the state of log directories, or of a bucket, does not know.

    Raises:
        UnknownTopicOrPartitionError: it does not know it.
    """
    known = {topic.name for topic in state.topics.values()}
    for name in topics.named:
        if name not in known:
            raise unknown_topic(state, places, name)


def check_writable(name: str, *, allow_internal: bool | None) -> None:
    """Refuse a name that Kafka forbids, and one that belongs to Kafka itself unless asked for.

    ``allow_internal`` is None for what nobody may do to such a topic.

    Raises:
        InvalidTopicError: it breaks Kafka's rules.
        RowError: it starts with two underscores; or it is KRaft's own log, which is no topic.
    """
    validate_topic_name(name)
    if name == CLUSTER_METADATA_TOPIC:
        raise RowError(f"{name!r} is the log in which a cluster keeps its metadata, and no topic")
    if (name.startswith(_RESERVED_PREFIX) or name in INTERNAL_TOPICS) and not allow_internal:
        way = (
            ""
            if allow_internal is None
            else ". The option allowInternalTopics=true permits it; at the command line --set "
            "allowInternalTopics=true"
        )
        raise RowError(
            f"topic {name!r} is not written to: names with two leading underscores belong to "
            f"Kafka{way}"
        )


@once_per_process
def warn_of_partitions(name: str, wanted: int, partitions: int) -> None:
    """Say once per process that a topic exists with another number of partitions than is wanted."""
    _LOGGER.warning(
        "option numPartitions is %d, and topic %r has %d: a topic that exists keeps its partitions",
        wanted,
        name,
        partitions,
    )


class _Index:
    """What a listing of partitions holds, by topic."""

    def __init__(self, partitions: Mapping[TopicPartition, PartitionDirectory]) -> None:
        self.partitions = partitions
        self.counts = partition_counts(partitions)
        self.log_dirs = sorted({each.log_dir for each in partitions.values()})
        self.folders: dict[str, list[PartitionDirectory]] = {}
        for key, folder in partitions.items():
            self.folders.setdefault(key.topic, []).append(folder)
        self.whole = {  # those of which no folder is missing below the last one
            topic for topic, folders in self.folders.items() if len(folders) == self.counts[topic]
        }
        links = (each for each in partitions.values() if each.is_link)
        self.links = {each.topic_partition.topic: each for each in links}


class _Indexes:
    """The indexes of the listings seen last, which are the very same while nothing changes."""

    def __init__(self) -> None:
        self._found: list[_Index] = []

    def of(self, partitions: Mapping[TopicPartition, PartitionDirectory]) -> _Index:
        """Return the index of a listing, which nobody changes any more."""
        for index in self._found:
            if index.partitions is partitions:
                return index
        index = _Index(partitions)
        self._found = [index, *self._found[:7]]
        return index


class _KnownIds:
    """The topic ids that folders were found to carry, which are not read again for each append.

    They count while nothing has changed that could give folders another id: a listing shows the
    very same folders, no ``kafkalog.changed-ids`` was written, and the commit state has the topic
    under this id. The folder of a partition that is written to is looked at nevertheless. On file
    systems that hosts share nothing is kept, since they may show an older listing.
    """

    def __init__(self) -> None:
        self._found: dict[Path, tuple[Sequence[PartitionDirectory], _Changes, str]] = {}

    def find(self, folders: Sequence[PartitionDirectory], state: CommitState | None) -> str | None:
        """Return the id that all folders of a topic carry, None where that is not known."""
        found = self._found.get(folders[0].path)
        if found is None or state is None:
            return None
        before, changed_ids, topic_id = found
        is_same = before is folders and _changed_ids(changed_ids) == changed_ids
        if not is_same or topic_id not in state.topics:
            del self._found[folders[0].path]
            return None
        return topic_id

    def note(
        self, folders: Sequence[PartitionDirectory], read: Callable[[], set[str | None]]
    ) -> set[str | None]:
        """Note and return what ``read`` finds: ids of folders that have just been listed."""
        changed_ids = _changed_ids({each.log_dir for each in folders})
        ids = read()
        topic_id = next(iter(ids)) if len(ids) == 1 else None
        if len(folders) > 1 and topic_id is not None and not is_shared(folders[0].log_dir):
            self._found[folders[0].path] = folders, changed_ids, topic_id
            while len(self._found) > _TOPICS_KEPT:
                del self._found[next(iter(self._found))]
        return ids


_Changes = dict["Path", "Stamp | None"]


def _changed_ids(log_dirs: Iterable[Path]) -> _Changes:
    """Return what tells whether ids were changed in some log directories."""
    return {each: stamp_of(f"{each}/{CHANGED_IDS_FILE}") for each in log_dirs}


class TopicCatalog:
    """What the log directories hold at one moment, and what new topics would look like.

    Partitions whose folders an unfinished commit is about to make do not count: it may be undone.
    """

    def __init__(
        self,
        partitions: Mapping[TopicPartition, PartitionDirectory],
        committed: Committed,
        policy: TopicPolicy,
        read_id: Callable[[Path], str | None] = read_topic_id,
    ) -> None:
        self._partitions = partitions
        self._read_id = read_id
        self._committed = committed
        self._policy = policy
        self._new: set[str] = set()
        self._owners = TopicOwners(committed.state)
        self._index = remembered(_Indexes).of(partitions)
        new = committed.being_made
        counts = partition_counts(partitions.keys() - new) if new else self._index.counts
        self._counts = self._replicated() | counts

    @classmethod
    def load(cls, directories: Iterable[Path], policy: TopicPolicy) -> Self:
        """Look into the log directories.

        Raises:
            LogDirectoryError: one is not there or cannot be read.
            CheckpointError: a commit state that cannot be trusted.
        """
        folders = list(directories)
        try:
            partitions = log_dirs_of_set(*folders).partitions()
            committed = load_committed(folders, read=find_state)
            return cls(without_deleted(partitions, committed.state), committed, policy)
        except OSError as error:
            raise LogDirectoryError(f"log directories cannot be read: {error}") from error

    def _replicated(self) -> dict[str, int]:
        """Count the partitions of replicated topics: their nodes may be away, and they are there.

        Nobody deletes such a topic by removing its folders.
        """
        state = self._committed.state
        if state is None or not state.is_replicated:
            return {}
        return {each.name: max(each.partitions, default=0) + 1 for each in state.topics.values()}

    @property
    def set_id(self) -> str | None:
        """The set that the directories belong to; None if they have no commit state."""
        return self._committed.state.set_id if self._committed.state else None

    @property
    def names(self) -> Iterable[str]:
        """The topics that exist."""
        return self._counts.keys()

    def log_dir_of(self, key: TopicPartition) -> Path | None:
        """Return the log directory in which a partition lives; None for a new one."""
        found = self._partitions.get(key)
        return None if found is None else found.log_dir

    def has_all(self, topic: TopicState) -> bool:
        """Whether all partitions of a topic that are committed surely have their folders here."""
        is_whole = topic.name in self._index.whole
        return is_whole and max(topic.partitions, default=-1) < self._index.counts[topic.name]

    def topic(
        self, name: str, policy: TopicPolicy | None = None, *, written: Collection[int] = ()
    ) -> Topic:
        """Describe a topic, or the one that would be made, by its own ``policy`` if it has one.

        Partitions that have lost their folders count, and those that a cluster has elsewhere: keys
        are to go where they always went. ``written`` are partitions whose topic id is looked at,
        also where that of the topic is known.

        Raises:
            InvalidTopicError, RowError: it may not be written to, see :func:`check_writable`.
        """
        policy = policy or self._policy
        check_writable(name, allow_internal=policy.allows_internal)
        count = self._counts.get(name)
        if count is None:
            check_no_collision(name, (*self._counts, *self._new))
            self._new.add(name)
            return Topic(name, policy.partitions or 1, policy.settings, exists=False)
        topic_id = self._topic_id(name, written)
        state = self._committed.state
        known = state.topic(name, topic_id) if state else None
        count = max(count, known.known_count if known else 0)
        if topic_id is not None and not (state and state.is_replicated):
            count = max(count, read_partition_counts(self._index.log_dirs).get(topic_id, 0))
        settings = {**(known.settings if known else {}), **policy.settings}
        return Topic(name, count, settings, exists=True, topic_id=topic_id)

    def _topic_id(self, name: str, written: Collection[int]) -> str | None:
        """Return the id that all partitions of a topic carry."""
        folders = self._index.folders.get(name)
        if not folders:
            return self._id_of_missing(name)
        if name in self._index.links:
            check_no_link(self._index.links[name])
        try:
            ids = self._ids(folders, written)
        except OSError as error:
            raise LogDirectoryError(f"topic {name!r}: its id cannot be read: {error}") from error
        if len(ids) > 1:
            raise differing_ids(name, folders)
        topic_id = ids.pop()
        self._owners.check(name, topic_id)
        if topic_id is None:
            self._check_never_had_id(name, folders)
        return topic_id

    def _ids(
        self, folders: Sequence[PartitionDirectory], written: Collection[int]
    ) -> set[str | None]:
        """Read the ids in folders; of a replicated topic those of nodes that are there and work."""
        state = self._committed.state
        if state is None or not state.is_replicated:
            known = remembered(_KnownIds)
            if (topic_id := known.find(folders, state)) is not None:
                name = folders[0].topic_partition.topic
                named = (self._partitions.get(TopicPartition(name, each)) for each in written)
                if {self._read_id(each.path) for each in named if each} <= {topic_id}:
                    return {topic_id}
            return known.note(folders, lambda: {self._read_id(each.path) for each in folders})
        ids: set[str | None] = set()
        for entry in folders:
            with suppress(OSError):  # whoever writes there will be told
                own = self._read_id(entry.path)
                if own is not None or entry.path.is_dir():
                    ids.add(own)
        return ids or {self._id_of_missing(folders[0].topic_partition.topic)}

    def _id_of_missing(self, name: str) -> str | None:
        """Return the id of a replicated topic whose folders are all away."""
        topics = self._committed.state.topics if self._committed.state else {}
        keys = (key for key, each in topics.items() if each.name == name)
        key = next(keys, topic_key(name, None))
        return None if key == topic_key(name, None) else key

    def _check_never_had_id(self, name: str, folders: Sequence[PartitionDirectory]) -> None:
        """Refuse folders without an id where what is committed lay under one: it is not in them."""
        topics = self._committed.state.topics if self._committed.state else {}
        for key, known in topics.items():
            if known.name == name and key != topic_key(name, None):
                raise LogDirectoryError(lost_id_text(folders[0].path, name, key))


def check_no_collision(name: str, others: Iterable[str]) -> None:
    """Refuse a new name that differs from another only in ``.`` and ``_``, as Kafka does.

    Raises:
        InvalidTopicError: it does.
    """
    plain = name.replace(".", "_")
    for other in others:
        if other != name and other.replace(".", "_") == plain:
            raise InvalidTopicError(
                f"topic {name!r} cannot be made beside {other!r}: their names are the same "
                "but for '.' and '_', which Kafka's metrics cannot tell apart"
            )


def differing_ids(name: str, folders: Sequence[PartitionDirectory]) -> LogDirectoryError:
    """Say that partitions of one topic have different topic ids, and what to do."""
    ids = {entry.path: read_topic_id(entry.path) for entry in folders}
    changes = permutations({topic_id for topic_id in ids.values() if topic_id is not None}, 2)
    log_dir = folders[0].log_dir
    if any(is_changed_id(log_dir, name, before, after) for before, after in changes):
        way_out = (
            "A `kafkalog broker handover` that was to give it another one was cut off: run it "
            "again, with the same ids"
        )
    else:
        way_out = (
            "Some are left over from an older topic of that name: move them away; or their "
            f"{PARTITION_METADATA} was damaged: restore it"
        )
    shown = ", ".join(f"{path} {topic_id}" for path, topic_id in ids.items())
    return LogDirectoryError(
        f"the partitions of topic {name!r} carry different topic ids: {shown}. {way_out}"
    )
