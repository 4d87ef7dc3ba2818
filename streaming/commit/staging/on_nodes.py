"""Stage the rows of a task on every node that will hold them: each recovers from its own copy.

A node on which that fails is left out by this task. The commit notices that it lacks runs which
others have, and takes it out of the in-sync sets.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from kafkalog.errors import CommitError
from kafkalog.files.system import once_per_process
from kafkalog.files.timeouts import at, run_with_timeout
from kafkalog.streaming.commit.staging.staged_files import StagingArea

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.commit.staging.staged_files import Home
    from kafkalog.streaming.commit.staging.staged_run import StagedRun
    from kafkalog.streaming.records.builder import EncodedBatch

__all__ = ["StagedTogether", "StagingOnNodes"]

_T = TypeVar("_T")

_LOGGER: Final = logging.getLogger("kafkalog.sink")


class StagingOnNodes:
    """A :class:`StagingArea` on each node; it is used as one of them is.

    ``nodes`` has, of each node, the numbers of its directories among ``folders``. ``turn`` chooses
    the directory of shared files. A node that stalls for longer than ``limit_ms`` is left out.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        nodes: Sequence[Sequence[int]],
        turn: int,
        prefix: str,
        *,
        durable: bool,
        limit_ms: int | None,
    ) -> None:
        self._folders = folders
        self._limit_ms = limit_ms
        self._shared = {frozenset(node): node[turn % len(node)] for node in nodes}
        self._areas = {
            node: StagingArea(folders, directory, prefix, durable=durable)
            for node, directory in self._shared.items()
        }

    def add(
        self, topic_partition: TopicPartition, batches: Sequence[EncodedBatch], home: Home
    ) -> None:
        """Write batches of one partition after those added before.

        Raises:
            CommitError: that failed on every node.
        """

        def add(node: frozenset[int]) -> None:
            is_here = home.directory is None or home.directory in node
            # Else as on the node where it lives, or the runs of the two would differ.
            place = home if is_here else replace(home, directory=self._shared[node])
            self._areas[node].add(topic_partition, batches, place)

        self._on_each(add)

    def finish(self) -> tuple[StagedRun, ...]:
        """Close the files and return what is in them, of all nodes.

        Raises:
            CommitError: they cannot be made durable on any node.
        """
        runs = self._on_each(lambda node: self._areas[node].finish())
        return tuple(run for node in self._areas for run in runs[node])

    def discard(self) -> None:
        """Remove the files of an attempt that failed."""
        with suppress(CommitError):
            self._on_each(lambda node: self._areas[node].discard())

    def _on_each(self, act: Callable[[frozenset[int]], _T]) -> dict[frozenset[int], _T]:
        """Do something on each node; those on which it fails, or does not end, are left out."""
        waiting = list(self._areas)
        done: dict[frozenset[int], _T] = {}
        failed: dict[frozenset[int], CommitError] = {}

        def work() -> None:
            while waiting:
                node = waiting.pop()
                try:
                    with at(self._folders[self._shared[node]]):
                        done[node] = act(node)
                except CommitError as error:
                    failed[node] = error
                except OSError as error:
                    failed[node] = CommitError(str(error))

        run_with_timeout(work, self._folders, self._limit_ms)
        for node in [node for node in self._areas if node not in done or node in failed]:
            self._leave_out(node, failed.get(node))
        return done

    def _leave_out(self, node: frozenset[int], error: CommitError | None) -> None:
        """Leave a node out; one that stalls, of which there is no ``error``, is not touched."""
        folders = ", ".join(sorted(str(self._folders[slot]) for slot in node))
        if len(self._areas) == 1:
            raise error or CommitError(f"rows cannot be staged in {folders}, where calls stall")
        _tell_left_out(folders)
        area = self._areas.pop(node)
        if error is not None:
            _LOGGER.info("%s", error)
            area.discard()


@once_per_process
def _tell_left_out(folders: str) -> None:
    _LOGGER.warning("rows are staged on the other nodes alone, not in %s", folders)


class StagedTogether:
    """What the commit stages itself on all nodes; ``chosen`` picks one copy of each run."""

    def __init__(
        self,
        staging: StagingOnNodes,
        chosen: Callable[[Sequence[StagedRun]], Sequence[StagedRun]],
    ) -> None:
        self._staging = staging
        self._chosen = chosen

    def add(
        self, topic_partition: TopicPartition, batches: Sequence[EncodedBatch], home: Home
    ) -> None:
        """Write batches of one partition after those added before.

        Raises:
            CommitError: that failed on every node.
        """
        self._staging.add(topic_partition, batches, home)

    def finish(self) -> Sequence[StagedRun]:
        """Close the files and return what is in them: one copy of each run.

        Raises:
            CommitError: they cannot be made durable on any node.
            NotEnoughReplicasError: fewer than a majority of the nodes have them.
        """
        return self._chosen(self._staging.finish())

    def discard(self) -> None:
        """Remove the files."""
        self._staging.discard()
