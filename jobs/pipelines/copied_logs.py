"""State of a copy between logs: what the source has, and what the copy holds.

A copy keeps how far it is in its commit state, with the topics that get the rows
(:class:`~kafkalog.checkpoints.commit_state.TopicOrigin`), under the name of the job. The sink
writes it with the rows, in one commit, and only where the copy is as far as the batch was planned
for (:class:`~kafkalog.streaming.commit.preserved_offsets.CopiedBatch`). What may follow is
decided in
:mod:`~kafkalog.jobs.pipelines.continuation`.
"""

from __future__ import annotations

from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from kafkalog.checkpoints.broker import read_leader_epochs
from kafkalog.checkpoints.commit_state import SourcePosition
from kafkalog.checkpoints.committed import load_committed
from kafkalog.files.objects import open_objects
from kafkalog.files.paths import split_paths
from kafkalog.files.storage import STORE, RemoteRoot
from kafkalog.files.system import system
from kafkalog.jobs.pipelines.continuation import HeldTopic, PlannedBatch, TargetState
from kafkalog.streaming.commit.preserved_offsets import (
    CopiedBatch,
    CopiedPartition,
    CopiedTopic,
    divergence_at,
    origin_key,
    position_at,
)
from kafkalog.streaming.log.history import LastBatch
from kafkalog.streaming.objects.bucket_store import bucket_of
from kafkalog.streaming.source.subscription import Subscription
from kafkalog.streaming.store.ends.tracker import LogEndTracker
from kafkalog.streaming.store.log_dirs import LogDirs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame

    from kafkalog.checkpoints.commit_state import PartitionState, TopicState
    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.objects.bucket_store import BucketRoot
    from kafkalog.streaming.options.read_options import ReadOptions

__all__ = [
    "SourceLogs",
    "copied_batch",
    "first_cut",
    "path_for_sink",
    "paths_of_target",
    "put_checkpoint_aside",
    "state_of_target",
    "storage_options",
    "topics_of_target",
    "without_held_rows",
]


class SourceLogs:
    """Looks at the logs that a job copies, again for each batch. Not thread safe."""

    def __init__(self, options: ReadOptions) -> None:
        """Look at nothing yet."""
        self._watch = LogEndTracker(options.paths, Subscription.of(options).selects)
        self._log_dirs = LogDirs(options.paths)
        self._stops_at_loss = options.fail_on_data_loss
        self.is_changed_id = self._watch.is_changed_id

    def ends(self) -> Mapping[TopicPartition, int]:
        """Return where the logs end now."""
        return self._watch.look().offsets

    def topic_ids(self) -> dict[str, str]:
        """Return the ids of the topics that have one, as of the last look."""
        ids = self._watch.topic_ids().items()
        return {key.topic: topic_id for key, topic_id in ids if topic_id is not None}

    def planned(
        self, ranges: Mapping[TopicPartition, tuple[int | None, int]], held: TargetState
    ) -> PlannedBatch:
        """Look at what the source says of a batch, and of where the target ends.

        A batch whose end a log does not reach any more, since it was cut, ends where that ends:
        what the log gets there next is not there yet.
        """
        planned_ends = {key: end for key, (_, end) in ranges.items()}
        ends = self._watch.look({**planned_ends, **held.ends}).offsets
        ranges = {key: self._within(key, *of, ends) for key, of in ranges.items()}
        log_ends, diverged, below = {}, {}, {}
        for key in ranges.keys() & ends.keys():
            end = held.end_of(key)
            if end is not None:
                reaches = self._watch.reaches(key, end)
                log_ends[key] = max(end, ends[key]) if reaches else ends[key]
                position = _position(held.topics[key.topic], key.partition)
                found = divergence_at(self._watch, key, position) if reaches else None
                if found is not None:
                    diverged[key] = found
            last = _last_batch(position_at(self._watch, key, ranges[key][1]))
            if last is not None:
                below[key] = last
        state = load_committed(self._log_dirs.paths).state
        return PlannedBatch(
            ranges,
            topic_ids=self.topic_ids(),
            set_id=None if state is None else state.set_id,
            log_ends=log_ends,
            log_starts={key: self._watch.log_start(key) for key in log_ends if self._stops_at_loss},
            diverged=diverged,
            batches_below=below,
        )

    def _within(
        self, key: TopicPartition, start: int | None, end: int, ends: Mapping[TopicPartition, int]
    ) -> tuple[int | None, int]:
        if key not in ends or self._watch.reaches(key, end):
            return start, end
        return start, max(min(end, ends[key]), start or 0)


def storage_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return those of some options that say how a store is reached."""
    return {name: text for name, text in options.items() if name.lower().startswith("storage.")}


def paths_of_target(target: str, *, existing: bool = False) -> list[str]:
    """Return the log directories that a text names, or the log in an object store that it is.

    ``existing``: only what is there. A log in a store is a RemoteRoot, with how it is reached.
    """
    if (root := bucket_of([target])) is not None:
        is_there = not existing or open_objects(root).get(STORE) is not None
        return [RemoteRoot.parse(target) if type(target) is str else target] if is_there else []
    return [path for path in split_paths(target) if not existing or Path(path).is_dir()]


def topics_of_target(path: str | Sequence[str]) -> dict[str, TopicState]:
    """Return what the commit state of a target says of its topics, by their names.

    Nothing of log directories, or of a log in an object store, that are yet to be made. ``path`` is
    the text that names them, or what was read from it.
    """
    paths = [path] if isinstance(path, str) else list(path)
    if (root := bucket_of(paths)) is not None:
        return _topics_in_bucket(root)
    folders = [Path(each) for each in split_paths(",".join(paths)) if Path(each).is_dir()]
    state = load_committed(folders).state if folders else None
    return {} if state is None else {topic.name: topic for topic in state.topics.values()}


def _topics_in_bucket(root: BucketRoot) -> dict[str, TopicState]:
    """Return the topics of a log in an object store as of now; none where no log is."""
    if open_objects(root).get(STORE) is None:
        return {}
    store = root.open_store()
    store.forget_listing()
    return {topic.name: topic for topic in store.committed().topics.values()}


def state_of_target(
    known: Mapping[str, TopicState], reader: str, topics: Mapping[str, str]
) -> TargetState:
    """Return what the topics of a target hold of a source.

    Args:
        known: the topics of the target by their names.
        reader: the name of the job that copies.
        topics: by the names of topics in the source, those of the topics they go to.
    """
    held: dict[str, HeldTopic] = {}
    set_id = None
    for topic, into in topics.items():
        state = known.get(into)
        origin = None if state is None else state.origins.get(origin_key(reader, topic))
        if origin is None:
            continue
        set_id = origin.set_id or set_id
        ends = {number: position.offset for number, position in origin.positions.items()}
        known_of = {number: _last_batch(each) for number, each in origin.positions.items()}
        batches = {number: batch for number, batch in known_of.items() if batch is not None}
        held[topic] = HeldTopic(origin.topic_id, ends, batches)
    return TargetState(set_id=set_id, topics=held)


def first_cut(where: PartitionDirectory, now: PartitionState, epoch: int) -> int | None:
    """Return the lowest offset at which a log may have been cut since it had a leader epoch.

    Who cuts a log raises its leader epoch, and so does an election, at the log's end. None: nobody
    has.

    Raises:
        CheckpointError: the log's leader epochs cannot be read.
    """
    if now.leader_epoch <= epoch:
        return None
    epochs = read_leader_epochs(where.path)
    starts = [each.start_offset for each in epochs if each.epoch > epoch]
    if now.leader_epoch > max((each.epoch for each in epochs), default=0):
        starts.append(now.log_end)
    return min(starts, default=None)


def copied_batch(
    reader: str,
    path: str,
    into: Mapping[str, str],
    batch: PlannedBatch,
    held: TargetState,
    *,
    noted: TargetState | None = None,
    begins: Mapping[TopicPartition, int] | None = None,
    expires: bool = False,
) -> CopiedBatch:
    """Return what a batch copies, for the sink.

    Args:
        reader: the name of the job.
        path: what is read, if the sink is to look at it before it commits.
        into: by the names of topics in the source, those of the topics they go to.
        batch: what is copied.
        held: what the target holds, as far as the batch continues it.
        noted: what its commit state says of that, if it is not the same.
        begins: where the logs of a copy that keeps offsets end now.
        expires: whether the job is forgotten when it is silent for long.
    """
    after = held.after(batch)
    topics: dict[str, dict[int, CopiedPartition]] = {}
    for key in batch.ranges:
        position = _position(after.topics[key.topic], key.partition)
        copied, begin = (noted or held).end_of(key), (begins or {}).get(key)
        parts = topics.setdefault(key.topic, {})
        parts[key.partition] = CopiedPartition(position, copied, begin)
    every = tuple(
        CopiedTopic(topic, into[topic], after.set_id, after.topics[topic].topic_id, parts)
        for topic, parts in topics.items()
    )
    return CopiedBatch(reader, every, path, expires)


def path_for_sink(path: str, options: Mapping[str, str], *, in_stores: bool) -> str:
    """Return what the sink is to look at before it commits; nothing where a tier is read too.

    Args:
        path: the log directories that are read.
        options: of the source.
        in_stores: whether it is to look at logs in object stores.
    """
    has_tier = any(name.lower() == "remote.path" for name in options)
    return "" if has_tier or ("://" in path and not in_stores) else path


def _position(topic: HeldTopic, partition: int) -> SourcePosition:
    last = topic.batches.get(partition)
    return SourcePosition(topic.ends[partition], None if last is None else last.to_text())


def _last_batch(position: SourcePosition) -> LastBatch | None:
    return None if position.last_batch is None else LastBatch.from_text(position.last_batch)


def without_held_rows(
    rows: DataFrame,
    ranges: Mapping[TopicPartition, tuple[int | None, int]],
    first: Mapping[TopicPartition, int],
) -> DataFrame:
    """Leave out the rows of a batch that its target holds: those below the first offsets."""
    held = [
        (sf.col("topic") == key.topic)
        & (sf.col("partition") == key.partition)
        & (sf.col("offset") < first[key])
        for key, (start, _) in ranges.items()
        if (start or 0) < first[key]
    ]
    return rows.where(~reduce(lambda one, other: one | other, held)) if held else rows


def put_checkpoint_aside(folder: Path) -> Path | None:
    """Rename a query's checkpoint, so that the query begins anew; None where there is none."""
    if not folder.is_dir() or not any(folder.iterdir()):
        return None
    aside = folder.with_name(f"{folder.name}.before-{system.time_ns() // 1_000_000}")
    folder.rename(aside)
    return aside
