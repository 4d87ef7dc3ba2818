"""What a report is made of: the rows of the commands that look, from one round over the logs."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kafkalog.checkpoints.committed import load_committed
from kafkalog.errors import KafkaLogError
from kafkalog.files.system import system
from kafkalog.jobs.inspection.batches import Verified, verified
from kafkalog.jobs.inspection.figures import (
    Measured,
    PartitionCount,
    Timeline,
    read_batches,
    with_one_width,
)
from kafkalog.jobs.inspection.groups import list_groups
from kafkalog.jobs.inspection.lag import LagMeter, LagTargets
from kafkalog.jobs.inspection.log_dirs import (
    check_some_partition,
    ends_of,
    log_dirs_of,
    partitions_of,
)
from kafkalog.jobs.inspection.metrics import describe_disks, describe_writers
from kafkalog.jobs.inspection.topics import describe_partitions, list_offsets, list_topics
from kafkalog.model import ALL_TOPICS, INTERNAL_TOPICS, TopicPartition, TopicSelection
from kafkalog.streaming.log.read.salvage import SUMMARY
from kafkalog.streaming.log.read.transactions import open_at

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from kafkalog.streaming.records.batch_rows import DescribedBatches
    from kafkalog.streaming.store.ends.tracker import LogEndTracker


__all__ = ["Facts", "gather", "heard_warnings"]


# ----------------------------------------------------------------------------------------------
# Hear what is logged while a report is made: it belongs on the page, once.


@contextmanager
def heard_warnings(found: list[str]) -> Iterator[None]:
    """Keep the texts of warnings of this package, each once, instead of printing them."""
    logger = logging.getLogger("kafkalog")
    handler = _Hearing(found)
    propagated, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagated


class _Hearing(logging.Handler):
    def __init__(self, found: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._found = found

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text not in self._found:
            self._found.append(text)


# ----------------------------------------------------------------------------------------------

Row = dict[str, Any]

_MOST_SPANS: Final = 96
_READING: Final = {"onCorruptRecord": "skip", "failOnDataLoss": "false"}
"""What lies around damage is counted."""


@dataclass(slots=True)
class Facts:
    """What was found. Rows are those of the commands with the same names; sizes bytes, times ms.

    ``paths`` are the log directories as they may be shown: without the keys that a URI may hold.
    ``unknown`` has what could not be found out: a part of the report, and why. ``warnings`` are
    those that were logged meanwhile. ``wanted`` are the topics that were asked for.
    """

    paths: Sequence[str]
    made_at: int
    wanted: TopicSelection = ALL_TOPICS
    checks: bool = True
    is_ours: bool = False
    """Whether the sink has the directories; else they are a broker's, or a copy of a broker's."""
    topics: list[Row] = field(default_factory=list)
    partitions: list[Row] = field(default_factory=list)
    disks: list[Row] = field(default_factory=list)
    """The file systems on which partitions lie: their room, and for how long it lasts."""
    writers: list[Row] = field(default_factory=list)
    """Queries and ids of batch writes: what each has committed last."""
    offsets: list[Row] = field(default_factory=list)
    counts: list[Row] = field(default_factory=list)
    measured: dict[TopicPartition, Measured] = field(default_factory=dict)
    groups: list[Row] = field(default_factory=list)
    readers: list[Row] = field(default_factory=list)
    open_transactions: list[Row] = field(default_factory=list)
    """Of topics that are not internal: by producer, where each begins."""
    verified: list[Verified] = field(default_factory=list)
    damage: dict[TopicPartition, list[str]] = field(default_factory=dict)
    """What was met while records were counted, where nothing is verified afterwards."""
    unknown: dict[str, KafkaLogError] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def gather(
    paths: Sequence[str],
    checkpoints: Sequence[str],
    told: Callable[[int, int], object],
    *,
    checks: bool,
    topics: TopicSelection = ALL_TOPICS,
) -> Facts:
    """Look at log directories; a part that cannot be found out leaves the others as they are.

    Args:
        paths: the log directories that belong together.
        checkpoints: folders of queries whose lag is wanted.
        told: called with the bytes that are read, and those to read.
        checks: whether each batch and each index is verified, which reads the logs again.
        topics: those that are looked at.

    Raises:
        OptionError: a checkpoint that is none, or paths that name no log directory.
        LogDirectoryError: there is no partition, and nothing shows that there ever was one.
        UnknownTopicOrPartitionError: there is no such topic.
        CheckpointError: a checkpoint that cannot be read.
    """
    log_dirs = log_dirs_of(paths)
    log_dirs.partitions()  # held, so that what is listed again need not be parsed again
    shown = tuple(map(str, log_dirs.paths))
    facts = Facts(shown, system.time_ns() // 1_000_000, topics, checks)
    watch = ends_of(paths, topics)  # one look at the logs serves all
    with heard_warnings(facts.warnings):
        check_some_partition(paths, topics)
        if checkpoints:
            named = LagTargets(checkpoints=checkpoints)
            facts.readers = LagMeter(paths, named, topics).look()
        _describe(facts, paths, watch)
        there = sorted(partitions_of(paths, topics, watch=watch))
        facts.measured = {key: Measured(Timeline(_MOST_SPANS)) for key in there}
        _read(facts, paths, watch, told)
    _note_what_was_skipped(facts)
    return facts


def _describe(facts: Facts, paths: Sequence[str], watch: LogEndTracker) -> None:
    """Find out what costs little: topics, partitions, groups."""
    try:
        facts.is_ours = load_committed(log_dirs_of(paths).paths).state is not None
    except KafkaLogError:
        facts.is_ours = True  # what cannot be read was written by the sink
    finders: dict[str, Callable[[], list[Row]]] = {
        "partitions": lambda: describe_partitions(paths, facts.wanted, watch),
        "offsets": lambda: list_offsets(paths, facts.wanted, watch),
        "topics": lambda: _of_topics(facts, list_topics(paths, watch, facts.partitions)),
        "groups": lambda: _of_topics(facts, list_groups(paths, watch=watch)),
        "writers": lambda: _writers(facts, paths),
    }
    for name, find in finders.items():
        try:
            setattr(facts, name, find())
        except KafkaLogError as error:
            facts.unknown[name] = error
    facts.disks = describe_disks(facts.partitions)


def _writers(facts: Facts, paths: Sequence[str]) -> list[Row]:
    """Describe the writers that may write to the topics that are wanted: a query names none."""
    rows = describe_writers(paths)
    return [row for row in rows if not row["topic"] or row["topic"] in facts.wanted]


def _of_topics(facts: Facts, rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["topic"] in facts.wanted]


def _read(
    facts: Facts,
    paths: Sequence[str],
    watch: LogEndTracker,
    told: Callable[[int, int], object],
) -> None:
    """Read the logs: what their batches say, then whether all is sound."""
    size = sum(row["bytes"] for row in facts.topics) * (2 if facts.checks else 1)
    done = 0
    counts = {key: PartitionCount() for key in facts.measured}
    transactional: set[TopicPartition] = set()
    try:
        for key, batches in read_batches(
            paths, counts, _READING, lambda read, _: told(read, max(size, read)), watch
        ):
            counts[key].add(batches)
            facts.measured[key].add(batches)
            _note_damage(facts, key, batches)
            if batches.table.is_transactional.any():
                transactional.add(key)
    except KafkaLogError as error:
        facts.unknown["records"] = error
        facts.measured = {key: Measured(Timeline(_MOST_SPANS)) for key in counts}
    else:
        facts.counts = [count.row(key) for key, count in counts.items()]
        _look_for_open(facts, paths, transactional)
    with_one_width(facts.measured, has_gaps=False)
    done = sum(row["bytes"] for row in facts.counts)
    for each in verified(paths, facts.wanted, watch) if facts.checks else ():
        facts.verified.append(each)
        done += each.row.get("bytes", 0)
        told(done, max(size, done))


def _note_damage(facts: Facts, key: TopicPartition, batches: DescribedBatches) -> None:
    if facts.checks or not any(batches.errors):
        return
    for position, error in zip(batches.table.position.tolist(), batches.errors, strict=True):
        if error is not None:
            text = f"{batches.path}: the batch at position {position}: {error}"
            facts.damage.setdefault(key, []).append(text)


def _note_what_was_skipped(facts: Facts) -> None:
    """Take what no batch can be made of from the warnings about it."""
    for key in () if facts.checks else facts.measured:
        said = [text for text in facts.warnings if text.startswith(f"{key}: skipped ")]
        places = [
            text.removeprefix(f"{key}: ")
            for text in said
            if not text.startswith(f"{key}: {SUMMARY}")
        ]
        if places:
            facts.damage[key] = [*places, *facts.damage.get(key, [])]


def _look_for_open(
    facts: Facts, paths: Sequence[str], transactional: Collection[TopicPartition]
) -> None:
    """Find the transactions that are open at the committed ends of partitions that have any."""
    ends = {TopicPartition(row["topic"], row["partition"]): row["end"] for row in facts.offsets}
    there = partitions_of(paths, facts.wanted) if transactional else {}
    for key in sorted(transactional):
        if key.topic in INTERNAL_TOPICS or ends.get(key) is None or key not in there:
            continue
        try:
            first_offsets = open_at(there[key].path, ends[key])
        except KafkaLogError as error:
            facts.unknown["transactions"] = error
            continue
        facts.open_transactions += [
            {**key._asdict(), "producerId": producer, "firstOffset": first}
            for producer, first in sorted(first_offsets.items())
        ]
