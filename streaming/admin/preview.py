"""What bringing a log into order would come to, without doing it: for dry runs."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from kafkalog.checkpoints.broker import read_topic_id
from kafkalog.streaming.admin.broker.open_transactions import EndedTransactions
from kafkalog.streaming.commit.tail_recovery import TailRecovery, telling_a_way_out
from kafkalog.streaming.log.append.recovery import cut_segment, wrong_indexes
from kafkalog.streaming.log.files import LOG, OFFSET_INDEX, TIME_INDEX, file_name
from kafkalog.streaming.log.segments import list_base_offsets
from kafkalog.streaming.store.file_systems import is_shared
from kafkalog.streaming.store.recovery.rollback import verify_unfinished

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kafkalog.checkpoints.intent import IntendedPartition
    from kafkalog.model import TopicPartition
    from kafkalog.streaming.admin.broker.open_transactions import TransactionEnds
    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.options.topic_settings import LogConfig
    from kafkalog.streaming.store.ends.broker_marks import BrokerMarks
    from kafkalog.streaming.store.log_set import LogSet

__all__ = ["Expected", "Preview"]

_LOGGER: Final = logging.getLogger("kafkalog.sink")

_COPIED_BYTES: Final = 1 << 20


class Expected(NamedTuple):
    """Where a log would end, and which of its indexes would be replaced."""

    end: int
    corrected: tuple[str, ...]


class Preview:
    """Looks at the logs of a set; what would be said while acting is said as well.

    ``ended`` says which open transactions would be ended.
    """

    def __init__(
        self,
        log_set: LogSet,
        *,
        takes_over: bool = False,
        ends: TransactionEnds | None = None,
        ends_open: bool = False,
    ) -> None:
        """Prove that unfinished commits can be taken back; with ``ends``, end open transactions.

        With ``ends_open`` somebody else ends them.

        Raises:
            LogDirectoryError, CheckpointError: they cannot.
        """
        self._log_set = log_set
        self._takes_over = takes_over
        self._ends = ends
        self._ends_open = ends_open or ends is not None
        self.ended = EndedTransactions()
        touched = verify_unfinished(log_set)
        self._touched: Mapping[TopicPartition, IntendedPartition] = {
            each.topic_partition: each for each in touched
        }

    def goes_away(self, key: TopicPartition) -> bool:
        """Return whether an unfinished commit has made the partition."""
        return key in self._touched and self._touched[key].created

    def expect(
        self, key: TopicPartition, found: PartitionDirectory, config: LogConfig, marks: BrokerMarks
    ) -> Expected:
        """Return what would become of a log.

        Raises:
            KafkaLogError: it would be left alone, for this reason.
        """
        touched = self._touched.get(key)
        if touched is not None:
            return Expected(touched.start_offset, _corrected_after(touched, found.path, config))
        topic_id = read_topic_id(found.path)
        log = TailRecovery(
            folder=found.path,
            key=key,
            config=config,
            committed_end=self._log_set.state.log_end(key.topic, topic_id, key.partition),
            marks=marks,
            takes_over=self._takes_over,
            is_replicated=self._log_set.state.is_replicated,
            ends_open=self._ends_open,
        )
        end, cut = log.look()
        if cut is not None:
            _LOGGER.warning("%s", cut)
        if self._ends is not None:
            end = self._ends.preview(key, found.path, end, self.ended)
        bases = list_base_offsets(found.path)
        if not bases or cut is not None:
            return Expected(end, ())
        interval = config.index_interval_bytes
        with telling_a_way_out(is_replicated=self._log_set.state.is_replicated):
            wrong = wrong_indexes(found.path, bases[-1], index_interval_bytes=interval)
        return Expected(end, tuple(path.name for path in wrong))


def _corrected_after(
    touched: IntendedPartition, folder: Path, config: LogConfig
) -> tuple[str, ...]:
    """Return the indexes that are replaced once a commit is taken back: tried out on a copy.

    The copy is of the active segment as it was before that commit, and lies with temporary files.
    """
    active, interval = touched.segments[0], config.index_interval_bytes
    if active.created or is_shared(folder):
        return ()
    with tempfile.TemporaryDirectory(prefix="kafkalog-") as scratch:
        copy = Path(scratch)
        for suffix, size in ((LOG, active.size_before), (OFFSET_INDEX, None), (TIME_INDEX, None)):
            name = file_name(active.base_offset, suffix)
            if (folder / name).exists():
                _copy(folder / name, copy / name, size)
        cut_segment(
            copy,
            active.base_offset,
            active.size_before,
            index_interval_bytes=interval,
            fsync=False,
        )
        wrong = wrong_indexes(copy, active.base_offset, index_interval_bytes=interval)
        return tuple(path.name for path in wrong)


def _copy(source: Path, target: Path, size: int | None) -> None:
    with source.open("rb") as reader, target.open("wb") as writer:
        left = source.stat().st_size if size is None else size
        while left and (data := reader.read(min(left, _COPIED_BYTES))):
            writer.write(data)
            left -= len(data)
