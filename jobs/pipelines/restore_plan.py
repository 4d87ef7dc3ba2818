"""Plan a restore: what a topic is to be, and whether it may be restored there."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from kafkalog.checkpoints.broker import read_leader_epochs
from kafkalog.errors import LogDirectoryError, OptionError, RowError
from kafkalog.files.storage import RemoteRoot
from kafkalog.jobs.pipelines.copied_logs import first_cut, paths_of_target, topics_of_target
from kafkalog.jobs.process.arguments import check_folders, point_in_time
from kafkalog.model import MAX_OFFSET, TopicPartition
from kafkalog.streaming.admin.topics import Bounds
from kafkalog.streaming.commit.staging.staged_run import rows_of
from kafkalog.streaming.options.quantities import read_moment
from kafkalog.streaming.options.topic_settings import LogConfig, understood
from kafkalog.streaming.sink.write_options import WriteOptions
from kafkalog.streaming.source.offsets import parse_partition_longs
from kafkalog.streaming.store.log_dirs import LogDirs
from kafkalog.streaming.store.open_set import check_no_broker_lived
from kafkalog.streaming.store.policy import SetPolicy
from kafkalog.streaming.store.topics import check_writable

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from kafkalog.checkpoints.commit_state import TopicState
    from kafkalog.jobs.pipelines.topic_facts import TopicFacts
    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.source.offsets import PartitionOffsets

__all__ = ["NO_END", "Progress", "Seen", "TopicPlan", "Until", "check_target"]

_RETENTION: Final = frozenset({"retention.ms", "retention.bytes"})


class Until(NamedTuple):
    """Where to end: before offsets (exclusive), or before a time in ms."""

    offsets: PartitionOffsets
    time_ms: int | None = None

    @classmethod
    def parse(cls, text: str | None, option: str = "--until", *, from_now: bool = False) -> Until:
        """Read what ``--until``, or another option, was given.

        ``from_now``: whether ``1h`` and ``yesterday`` are times, too. They are not where a job that
        is started again has to mean the same.

        Raises:
            OptionError: neither offsets nor a time.
        """
        if text is None:
            return NO_END
        if text.lstrip().startswith("{"):
            return cls(parse_partition_longs(option, text, 0))
        try:
            return cls({}, read_moment(_counted_from_now(option, text) if from_now else text))
        except OptionError as error:  # seconds, by all appearances
            raise OptionError(f"{option} is {error}") from None
        except ValueError:
            raise OptionError(
                f'{option} is {text!r}, expected offsets as {{"T":{{"0":23}}}}, or a time such as '
                "2026-03-01T00:00:00Z or 1772323200000 (ms)"
            ) from None


def _counted_from_now(option: str, text: str) -> str:
    """Return the time that is meant by ``1h`` or ``yesterday``; another text as it is."""
    with suppress(OptionError):
        return str(point_in_time(option, text))
    return text


NO_END: Final = Until({})


class Seen(NamedTuple):
    """What a table holds of one partition."""

    rows: int
    first: int
    last: int
    at_time: int | None
    """The first offset whose record has the time to end before, or a later one."""


class Progress(Enum):
    """How far a restored topic has come."""

    EMPTY = "it has no records"
    WRITTEN = "this restore has written its records"


@dataclass(frozen=True)
class TopicPlan:
    """A topic with its settings, and where each of its partitions is to start and to end."""

    topic: str
    bounds: tuple[Bounds, ...]
    settings: Mapping[str, str]
    rows: Mapping[int, int]
    """How many records the table has of each partition."""
    lasts: Mapping[int, int]
    """The last offset that the table has of each partition."""
    unknown: tuple[str, ...]
    """What the table does not tell, in words."""
    history: tuple[str, ...] = ()
    """What tells the topic from another one of that name, and from its logs before a cut."""

    @classmethod
    def of(
        cls,
        topic: str,
        facts: TopicFacts | None,
        seen: Mapping[int, Seen],
        until: Until,
        *,
        partitions: int | None,
        config: Mapping[str, str],
        with_deleted: bool,
    ) -> Self:
        """Plan a topic by what a table keeps of it, what it holds of it, and what was given."""
        count = _count(topic, facts, seen, partitions)
        known = {**config, **((facts and facts.settings) or {})}
        bounds = []
        for number in range(count):
            found = seen.get(number)
            start, end = _whole(facts, number, found, with_deleted=with_deleted)
            end = min(end, until.offsets.get(TopicPartition(topic, number), MAX_OFFSET))
            if found is not None and found.at_time is not None:
                end = min(end, found.at_time)
            bounds.append(Bounds(min(start, end), end))
        rows = {number: each.rows for number, each in seen.items()}
        unknown = [] if facts else _unknown(None if partitions else count)
        if facts is None or facts.settings is None:
            unknown.append("its settings (--config)")
        unknown += [
            f"what its setting {name}={known[name]} means: give it to the topic in the cluster"
            for name in sorted(known.keys() - understood(known).keys())
        ]
        lasts = {number: each.last for number, each in seen.items()}
        history = () if facts is None else _history(facts, bounds)
        return cls(topic, tuple(bounds), understood(known), rows, lasts, tuple(unknown), history)

    def version(self, choice: str) -> str:
        """Return the id under which the topic's records are written; ``choice`` tells which."""
        told = json.dumps([self.topic, self.bounds, choice, self.history])
        return f"restore {hashlib.sha256(told.encode()).hexdigest()[:32]}"

    def written(self, log: str, version: str) -> int:
        """Return how many records were written under an id, as the commit has noted."""
        known = _known(log, self.topic)
        digest = known.versions[version].digest if known is not None else None
        return 0 if digest is None else rows_of(digest)

    @property
    def first_settings(self) -> dict[str, str]:
        """The settings without those by which the sink would delete old records at once."""
        return {name: text for name, text in self.settings.items() if name not in _RETENTION}

    @property
    def last_settings(self) -> dict[str, str]:
        """The settings by which old records are deleted."""
        return {name: text for name, text in self.settings.items() if name in _RETENTION}

    def bounds_now(self, log: str) -> dict[int, Bounds]:
        """Return where the logs of a topic whose records are written are to start and to end.

        One to which somebody else has appended since it was restored ends where it does now.

        Raises:
            LogDirectoryError: somebody has appended before the ends were set, at offsets that the
                original gave to others; or a log was cut since.
        """
        known = _known(log, self.topic)
        folders = LogDirs(paths_of_target(log)).partitions() if known is not None else {}
        found = {}
        for number, (start, end) in enumerate(self.bounds):
            now = known.partitions[number].log_end if known is not None else end
            written = max(start, min(self.lasts.get(number, -1) + 1, end))
            where = folders.get(TopicPartition(self.topic, number))
            if known is not None and where is not None:
                _refuse_cut(log, where, known, written)
            if written < now < end:
                raise LogDirectoryError(
                    f"{self.topic}-{number} ends at offset {now} in {log}. A restore that was cut "
                    f"off has written it up to {written}, and it is to end at {end}: somebody else "
                    "has appended since, at offsets that the original gave to other records. "
                    f"`kafkalog topic delete PATH --topic {self.topic}` deletes the topic there: "
                    "restore again then"
                )
            found[number] = Bounds(start, max(end, now))
        return found

    def unset(self, log: str) -> dict[str, str]:
        """Return the settings by which old records are deleted, as far as the topic has none."""
        known = _known(log, self.topic)
        there = {} if known is None else known.settings
        return {name: text for name, text in self.last_settings.items() if name not in there}

    def progress(self, log: str, version: str) -> Progress | None:
        """Return how far the topic has come in the log directories; None if it is not there.

        Raises:
            LogDirectoryError: it is there with other records, or another number of partitions.
        """
        known = _known(log, self.topic)
        if known is None:
            return None
        if version in known.versions:
            return Progress.WRITTEN
        _refuse_records(log, known, self.bounds)
        if len(known.partitions) != len(self.bounds):
            raise LogDirectoryError(
                f"topic {self.topic!r} is in {log} with {len(known.partitions)} partitions, and is "
                f"to have {len(self.bounds)}: `kafkalog topic delete PATH --topic {self.topic}` "
                "deletes it there"
            )
        return Progress.EMPTY


def _whole(
    facts: TopicFacts | None, number: int, seen: Seen | None, *, with_deleted: bool
) -> Bounds:
    """Return where a partition started and ended, as far as the table tells."""
    held = Bounds(0, 0) if seen is None else Bounds(seen.first, seen.last + 1)
    if facts is None:
        return held
    start, end = facts.partitions.get(number, held)
    # Who was killed has added records to the table, and not told of them.
    end = max(end, held.end)
    return Bounds(min(start, held.start) if with_deleted and seen else start, end)


def _history(facts: TopicFacts, bounds: Sequence[Bounds]) -> tuple[str, ...]:
    """Tell a topic by its id, and each log that is restored up to its end by its last batch."""
    batches = (
        f"{number}: {batch.offset} {batch.crc}"
        for number, batch in sorted(facts.batches.items())
        if number < len(bounds) and bounds[number].end == facts.partitions[number].end
    )
    return facts.topic_id or "", *batches


def _unknown(count: int | None) -> list[str]:
    """Say what a table without properties does not tell; ``count`` is a guess at its partitions."""
    guess = f"how many partitions it has: {count} have records (--partitions)"
    ends = "where its logs start and end: they do where their records do"
    return [ends] if count is None else [guess, ends]


def _count(
    topic: str, facts: TopicFacts | None, seen: Mapping[int, Seen], given: int | None
) -> int:
    """Return how many partitions a topic has."""
    least = max(seen, default=-1) + 1
    if facts is not None:
        least = max(least, facts.partition_count)
        if given not in {None, least}:
            raise OptionError(
                f"topic {topic!r} has {least} partitions, says the table, not {given}"
            )
    elif given is not None and given < least:
        raise OptionError(f"--partitions is {given}, and partition {least - 1} has records")
    elif not seen:
        raise OptionError(f"the table holds nothing of topic {topic!r}")
    return least if given is None else given


def check_target(
    log: str,
    topics: Collection[str],
    config: Mapping[str, str],
    until: Until = NO_END,
    options: Mapping[str, str] | None = None,
) -> None:
    """Refuse what can be refused before the table is read.

    Raises:
        OptionError: a name or a setting that no topic may have; an end of a topic that is not
            restored.
        LogDirectoryError: a topic that has records, which no restore has written.
    """
    LogConfig.from_mapping(config)
    for key in until.offsets:
        if key.topic not in topics:
            raise OptionError(f"--until names {key}, and topic {key.topic!r} is not restored")
    for topic in topics:
        paths = WriteOptions.parse({"path": log, "topic": topic, **(options or {})}).paths
        for path in paths:
            if not isinstance(path, RemoteRoot):
                check_no_broker_lived(Path(path), SetPolicy())
        try:
            check_writable(topic, allow_internal=None)
        except RowError:
            raise OptionError(
                f"topic {topic!r} is Kafka's own. Positions of groups are restored with the topics "
                "that they are in"
            ) from None
        check_folders({"LOG": paths})
        known = _known(paths[0] if isinstance(paths[0], RemoteRoot) else log, topic)
        if known is not None and not any(name.startswith("restore ") for name in known.versions):
            _refuse_records(log, known)


def _refuse_cut(log: str, where: PartitionDirectory, known: TopicState, written: int) -> None:
    """Refuse a log that was cut after a restore has written it up to an offset.

    Who cuts a log raises its leader epoch. The first epoch is that of the restore, unless the log
    was cut where it starts: then the state tells which epoch it had before.
    """
    key, number = where.topic_partition, where.topic_partition.partition
    epochs = read_leader_epochs(where.path)
    restored = known.cluster_epochs.get(number, epochs[0].epoch if epochs else 0)
    at = first_cut(where, known.partitions[number], restored)
    if at is not None and at < written:
        raise LogDirectoryError(
            f"{key} was cut at offset {at} in {log}, after it was restored up to {written}: "
            f"records are missing. `kafkalog topic delete PATH --topic {key.topic}` deletes the "
            "topic there: restore again then"
        )


def _known(log: str, topic: str) -> TopicState | None:
    return topics_of_target(log).get(topic)


def _refuse_records(log: str, known: TopicState, bounds: Sequence[Bounds] = ()) -> None:
    """Refuse a topic that has records, or had some at offsets that are to be restored."""
    starts = dict(enumerate(each.start for each in bounds))
    if any(
        each.log_end > min(each.log_start, starts.get(number, each.log_start))
        for number, each in known.partitions.items()
    ):
        by_other = any(name.startswith("restore ") for name in known.versions)
        whose = (
            "that another restore has written: of other offsets or keys, or before the table got "
            "the records that it has now"
            if by_other
            else "that this restore has not written"
        )
        raise LogDirectoryError(
            f"topic {known.name!r} has records in {log}, or had some, {whose}. Nothing was "
            "written. Restore into other log directories, or `kafkalog topic delete PATH --topic "
            f"{known.name}` deletes the topic there"
        )
