"""Replicate a commit: each replica in sync gets the same bytes.

The commit is planned for the leader of each partition. Every other replica in sync is then planned
from its own log and its own staged copies, and has to come to the very same segments, positions and
rolls. One that does not is not in sync, and leaves the in-sync set with the batch.

A node on which a call fails is out, and the batch goes on without it, as long as each partition
keeps as many replicas in sync as its topic asks for (``min.insync.replicas``, with ``kafka.acks``
``all``).
"""

from __future__ import annotations

import logging
from collections import defaultdict
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.commit_state import NO_LEADER
from kafkalog.errors import (
    CommitError,
    CorruptRecordError,
    LogDirectoryError,
    NotEnoughReplicasError,
    UnknownTopicOrPartitionError,
)
from kafkalog.model import TopicPartition, partition_directory_name
from kafkalog.streaming.commit.append import PartitionAppend
from kafkalog.streaming.commit.staging.staged_files import (
    StagedTogether,
    StagingArea,
    StagingOnNodes,
)
from kafkalog.streaming.commit.tail_recovery import TailRecovery
from kafkalog.streaming.options.topic_settings import LogConfig
from kafkalog.streaming.store.ends.recorded import BrokerMarks
from kafkalog.streaming.store.log_dirs import LogDirs, choose_directory, partitions_by_node
from kafkalog.streaming.store.recovery.lost_partitions import OFFLINE_REMEDY
from kafkalog.streaming.store.replicas.election import data_nodes, place_new, shrunk
from kafkalog.streaming.store.replicas.quorum import Quorum

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from kafkalog.checkpoints.commit_state import CommitState, ReplicaState, TopicState
    from kafkalog.streaming.commit.append import AppendersOfSet, CommitSettings
    from kafkalog.streaming.commit.staging.staged_files import Staging
    from kafkalog.streaming.commit.staging.staged_run import StagedRun
    from kafkalog.streaming.commit.staging.staged_source import StagedFiles
    from kafkalog.streaming.log.appender import AppendPlan, PartitionAppender
    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.store.log_set import LogSet
    from kafkalog.streaming.store.topics import Topic


__all__ = ["Replication", "agree"]


# ----------------------------------------------------------------------------------------------
# Whether replicas come to the same bytes by an append, as far as its plans tell.


def agree(one: AppendPlan, other: AppendPlan) -> bool:
    """Whether two replicas come to the same segments, positions, rolls and index entries.

    An index that has lost entries with the power gets them again: so one may get more of them.
    """
    return _shape(one) == _shape(other) and all(
        a.index_entries.endswith(b.index_entries) or b.index_entries.endswith(a.index_entries)
        for a, b in zip(one.segments, other.segments, strict=True)
    )


def _shape(plan: AppendPlan) -> list[tuple[object, ...]]:
    return [
        (
            *(s.base_offset, s.creates, s.seals, s.position, s.size, s.adopts),
            s.index_position + len(s.index_entries),
        )
        for s in plan.segments
    ]


# ----------------------------------------------------------------------------------------------

_LOGGER: Final = logging.getLogger("kafkalog.sink")

_Facts = tuple[TopicPartition, int, int, bytes]

_Place = tuple[int, str, int]


class Replication:
    """The replicas of one batch; of a set of one node there is nothing to do.

    ``plan`` is that of the batch, in whose directories ``runs`` count.
    """

    def __init__(self, log_set: LogSet, plan: CommitSettings) -> None:
        self._log_set = log_set
        self._plan = plan
        self._nodes = log_set.node if isinstance(log_set.node, Quorum) else None
        self._staged: dict[int, list[StagedRun]] = defaultdict(list)
        self._slots: dict[_Place, int] = {}
        self._lagging: set[tuple[int, TopicPartition]] = set()
        self._made: dict[str, dict[int, ReplicaState]] = {}

    # Before the plan

    def leading(self, runs: Sequence[StagedRun]) -> Sequence[StagedRun]:
        """Return one copy of each staged run; :meth:`own` gives those of other nodes.

        Nodes on which a task could not stage its rows are out.

        Raises:
            CommitError: no node has all that was staged.
            NotEnoughReplicasError: fewer than a majority of the nodes are left.
        """
        nodes = self._nodes
        if nodes is None:
            return runs
        staged: dict[int, list[StagedRun]] = defaultdict(list)
        for run in runs:
            node = nodes.node_at(self._plan.directories[run.directory])
            if node is not None:
                staged[node].append(run)
        if not runs:
            return runs
        whole = _facts(max(staged.values(), key=len, default=[]))
        if not whole:
            raise CommitError("the nodes that the rows were staged on are away: try again")
        for node in nodes.live:
            if node in data_nodes(self._log_set.state) and _facts(staged[node]) != whole:
                error = CommitError("a task could not stage its rows there")
                nodes.fail(node, error)
        if not any(node in nodes.live for node in staged):
            raise CommitError(
                "no node has the rows of all tasks: each has failed in one of them. Nothing was "
                "written; try again"
            )
        self._log_set.state = shrunk(self._log_set.state, nodes.live)
        self._remember(staged)
        return next(staged[node] for node in staged if node in nodes.live)

    def _remember(self, staged: Mapping[int, Sequence[StagedRun]]) -> None:
        """Note which runs are copies of each other: those in the same place of each node's list."""
        base = max(map(len, self._staged.values()), default=0)
        for node, runs in staged.items():
            self._staged[node] += runs
            self._slots |= {_place_of(run): base + slot for slot, run in enumerate(runs)}

    def own(self, runs: Sequence[StagedRun], member: str) -> Sequence[StagedRun]:
        """Return the copies of staged runs that the node of a log directory has.

        No file of one node becomes another's by link: what is cut off on one stays whole on others.
        """
        node = None if self._nodes is None else self._nodes.node_of(member)
        return runs if node is None else [self._own(run, node) for run in runs]

    def _own(self, run: StagedRun, node: int) -> StagedRun:
        slot, staged = self._slots.get(_place_of(run)), self._staged[node]
        if slot is None or slot >= len(staged):
            raise CommitError(f"node {node} has no copy of what was staged in {run.file}")
        copy = staged[slot]
        return replace(run, directory=copy.directory, file=copy.file, position=copy.position)

    def staging(self, prefix: str, *, durable: bool) -> Staging:
        """Return where the commit stages what it encodes itself: on each node, as tasks do."""
        folders, nodes = self._plan.directories, self._nodes
        if nodes is None:
            return StagingArea(folders, 0, prefix, durable=durable)
        limit_ms = self._plan.policy.lag_ms
        numbers: dict[int, list[int]] = defaultdict(list)
        for number, folder in enumerate(folders):
            node = nodes.node_at(folder)
            if node in nodes.live and node in data_nodes(self._log_set.state):
                numbers[node].append(number)
        staging = StagingOnNodes(
            folders, list(numbers.values()), 0, prefix, durable=durable, limit_ms=limit_ms
        )
        return StagedTogether(staging, self.leading)

    def leaderless(self, topic: TopicState) -> Collection[int]:
        """Return the partitions of which no replica that is in sync is there."""
        return {number for number, each in topic.replicas.items() if each.leader == NO_LEADER}

    def check_led(self, topic: Topic, key: TopicPartition) -> None:
        """Refuse to write to a partition that has no leader.

        Raises:
            NotEnoughReplicasError: it has none, until a node is back.
        """
        known = self._log_set.state.topics.get(topic.key)
        if known is not None and key.partition in self.leaderless(known):
            nodes = known.replicas[key.partition].isr
            raise NotEnoughReplicasError(
                f"{key} has no leader: nodes {list(nodes)} have all of its records, and are away. "
                f"{OFFLINE_REMEDY}"
            )

    def homes(self, topic: Topic, partition: int) -> Sequence[Path]:
        """Return the log directories that a new partition may lie in: those of its leader."""
        nodes = self._nodes
        if nodes is None:
            return self._log_set.directories
        made = self._made.get(topic.name)
        if made is None:
            known = self._log_set.state.topics.get(topic.key)
            there = len(known.partitions) if known else 0
            numbers = range(there, max(topic.partitions, partition + 1))
            live = [node for node in nodes.live if node in data_nodes(self._log_set.state)]
            factor = self._plan.topics.replication_factor
            made = place_new(self._log_set.state, numbers, factor, live)
            self._made[topic.name] = made
        return list(nodes.by_node[made[partition].leader].values())

    # The plan

    def copies(
        self, appends: Sequence[PartitionAppend], files: StagedFiles, appenders: AppendersOfSet
    ) -> list[PartitionAppend]:
        """Plan the replicas of what was planned for the leaders.

        Raises:
            NotEnoughReplicasError: too few are in sync.
        """
        if self._nodes is None:
            return []
        folders = partitions_by_node(self._nodes.nodes())
        counts: dict[int, dict[Path, int]] = {}
        planned = []
        for append in appends:
            for node in self._followers(append):
                copy = self._copy(append, node, folders, counts, files, appenders)
                if copy is not None:
                    planned.append(copy)
        return planned

    def _followers(self, append: PartitionAppend) -> list[int]:
        assert self._nodes is not None  # noqa: S101 - for the type
        planned = self._nodes.node_of(append.member_id)
        in_sync = self._replicas_of(append).isr
        return [node for node in in_sync if node != planned and node in self._nodes.live]

    def _replicas_of(self, append: PartitionAppend) -> ReplicaState:
        number = append.plan.topic_partition.partition
        known = self._log_set.state.topics.get(append.topic.key)
        if known is not None and number in known.replicas:
            return known.replicas[number]
        return self._made[append.topic.name][number]

    def _copy(
        self,
        append: PartitionAppend,
        node: int,
        folders: Mapping[int, Mapping[TopicPartition, PartitionDirectory]],
        counts: dict[int, dict[Path, int]],
        files: StagedFiles,
        appenders: AppendersOfSet,
    ) -> PartitionAppend | None:
        """Plan one replica; None if it turns out not to be in sync, or its node fails."""
        assert self._nodes is not None  # noqa: S101 - for the type
        key = append.plan.topic_partition
        try:
            copy = self._planned(append, node, folders, counts, files, appenders)
            if agree(copy.plan, append.plan):
                return copy
            why = f"{copy.plan.directory} ends in another segment than the leader's log"
        except (OSError, UnknownTopicOrPartitionError) as error:
            self._nodes.fail(node, error)
            return None
        except NotEnoughReplicasError:
            raise
        except (CommitError, LogDirectoryError, CorruptRecordError) as error:
            why = str(error)
        _LOGGER.warning("the replica of %s on node %d is not in sync any more: %s", key, node, why)
        self._lagging.add((node, key))
        return None

    def _planned(
        self,
        append: PartitionAppend,
        node: int,
        folders: Mapping[int, Mapping[TopicPartition, PartitionDirectory]],
        counts: dict[int, dict[Path, int]],
        files: StagedFiles,
        appenders: AppendersOfSet,
    ) -> PartitionAppend:
        assert self._nodes is not None  # noqa: S101 - for the type
        key = append.plan.topic_partition
        found = folders.get(node, {}).get(key)
        log_dir = self._new_home(node, counts) if found is None else found.log_dir
        folder = log_dir / partition_directory_name(*key) if found is None else found.path
        appender = appenders.take(folder)
        if appender is None or appender.log_end_offset != append.plan.start_offset:
            appender = self._open(append, folder, is_there=found is not None)
        else:
            appender.resume(append.topic.config, now_ms=append.appender.now_ms)
        appender.lead(append.appender.leader_epoch)
        member = self._nodes.member_of(log_dir)
        return PartitionAppend.of(
            append.topic,
            appender,
            self.own(append.runs, member),
            member,
            files,
            durable=append.is_durable,
            log_start=append.log_start,
        )

    def _new_home(self, node: int, counts: dict[int, dict[Path, int]]) -> Path:
        """Choose the log directory of a node in which a new replica lies, and count it there."""
        assert self._nodes is not None  # noqa: S101 - for the type
        if node not in counts:
            counts[node] = LogDirs(self._nodes.by_node[node].values()).partition_counts()
        log_dir = choose_directory(counts[node])
        counts[node][log_dir] += 1
        return log_dir

    def _open(self, append: PartitionAppend, folder: Path, *, is_there: bool) -> PartitionAppender:
        state = self._log_set.state
        log = TailRecovery(
            folder=folder,
            key=append.plan.topic_partition,
            config=append.topic.config,
            state=state,
            topic_id=append.topic.topic_id,
            marks=BrokerMarks(state),
            is_there=is_there,
            check_locks=self._log_set.check_current,
        )
        return log.open(now_ms=append.appender.now_ms, first_offset=append.plan.start_offset)

    # After it

    def placed(self, state: CommitState) -> CommitState:
        """Return a state in which the partitions that the batch makes have their replicas."""
        if not self._made:
            return state
        topics = dict(state.topics)
        for key, topic in state.topics.items():
            made = self._made.get(topic.name, {})
            new = {n: each for n, each in made.items() if n in topic.partitions}
            if new:
                topics[key] = replace(topic, replicas={**topic.replicas, **new})
        return replace(state, topics=topics)

    def settled(self, state: CommitState, appends: Iterable[PartitionAppend]) -> CommitState:
        """Return the state without the replicas that did not get the batch.

        Raises:
            NotEnoughReplicasError: too few have it.
        """
        if self._nodes is None:
            return state
        settled = shrunk(state, self._nodes.live, self._lagging)
        for append in appends:
            number = append.plan.topic_partition.partition
            replicas = settled.topics[append.topic.key].replicas[number]
            able = [n for n in replicas.isr if n in self._nodes.live]
            least = self._least(append.topic)
            if len(able) < least:
                raise NotEnoughReplicasError(
                    f"{append.plan.topic_partition}: {len(able)} of its {len(replicas.replicas)} "
                    f"replicas are in sync, and {least} are asked for (min.insync.replicas)"
                    + "".join(f"; node {n}: {why}" for n, why in self._nodes.failed.items())
                )
        return settled

    def check_in_sync(self, state: CommitState, appends: Iterable[PartitionAppend]) -> None:
        """Check, before a batch begins, that enough replicas are in sync.

        If too few are, those that lag leave the ISR all the same: the next session copies them.

        Raises:
            NotEnoughReplicasError: too few are.
        """
        try:
            self.settled(state, appends)
        except NotEnoughReplicasError:
            if self._lagging and self._nodes is not None:
                left = shrunk(self._log_set.state, self._nodes.live, self._lagging)
                self._log_set.publish(left.following())
            raise

    def _least(self, topic: Topic) -> int:
        asked = LogConfig.of_topic(topic.settings).min_insync_replicas
        return asked if self._plan.acks_all else 1

    def by_node(self, appends: Sequence[PartitionAppend]) -> Iterator[Sequence[PartitionAppend]]:
        """Return the appends of each node; all of them where there is only one.

        Not those of a node that is out by then: nothing there says what is about to happen.
        """
        if self._nodes is None:
            yield appends
            return
        of: dict[int | None, list[PartitionAppend]] = defaultdict(list)
        for append in appends:
            of[self._nodes.node_of(append.member_id)].append(append)
        yield from (each for each in of.values() if not self.is_out(each[0]))

    def isolated_per_node(self, of_node: Sequence[PartitionAppend]) -> AbstractContextManager[None]:
        """Return what the appends of a node are done in: with others left, it may fail alone."""
        node = None if self._nodes is None else self._nodes.node_of(of_node[0].member_id)
        return nullcontext() if self._nodes is None or node is None else self._nodes.writing(node)

    def is_out(self, append: PartitionAppend) -> bool:
        """Whether the node of an append is out."""
        return self._nodes is not None and self._nodes.node_of(append.member_id) not in (
            self._nodes.live
        )


def _place_of(run: StagedRun) -> _Place:
    return run.directory, run.file, run.position


def _facts(runs: Sequence[StagedRun]) -> list[_Facts]:
    """Return what is the same of all copies of staged runs."""
    return [(run.topic_partition, run.size, run.crc32c, run.batches) for run in runs]
