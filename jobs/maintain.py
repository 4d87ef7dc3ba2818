"""Delete what has expired from log directories and compact them, once or every so often.

    kafkalog run maintain LOG [--every 10m] [OPTIONS]
    spark-submit --py-files kafkalog.zip maintain.py LOG [--every 10m] [OPTIONS]

A task compacts one partition that is due, the dirtiest first. Sinks may write to the directories
meanwhile, and queries read them. Replicas that lag get what they lack before that. A round that is
killed is ended by the next one.

LOG may be a log in a bucket, as s3://bucket/logs. There a round also merges what commits have left
in pieces. Spark is not started, and any number of places may do it at once.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer

from kafkalog.errors import KafkaLogError
from kafkalog.files.storage import is_object_uri
from kafkalog.files.system import system
from kafkalog.jobs.pipelines.spark_cleaning import clean_on_spark
from kafkalog.jobs.process.arguments import (
    ALLOW_BROKER,
    LOG,
    NOT_GIVEN,
    SOME_TOPICS,
    given_settings,
    help_text,
    milliseconds,
    select_topics,
)
from kafkalog.jobs.process.running import Command, print_line, run
from kafkalog.jobs.session import session
from kafkalog.model import ALL_TOPICS, TopicSelection, many

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kafkalog.jobs.pipelines.spark_cleaning import Cleaned
    from kafkalog.streaming.admin.cleaning import CleanedPartition, CleaningTask
    from kafkalog.streaming.admin.compaction import Wanted


__all__ = ["BucketMaintenance", "Maintenance", "Scope"]


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


_OFFSETS_RETENTION = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="How long a consumer group without members keeps its positions, such as 7d: Kafka's "
        "offsets.retention.minutes. Default: for ever.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class Scope:
    """What is looked after: log directories with commas between them, or some ``topics`` of them.

    ``config``: settings for topics to which they were not given. ``allows_broker``: a broker may
    have had the directories last. ``offsets_retention_ms``: how long groups without members keep
    their positions, None for ever.
    """

    log: str
    topics: TopicSelection = ALL_TOPICS
    config: Mapping[str, str] = field(default_factory=dict)
    allows_broker: bool = False
    offsets_retention_ms: int | None = None

    def check(self) -> None:
        """Look whether that can be done at all; takes no lock, and needs no Spark.

        Raises:
            OptionError: a setting that Kafka would refuse.
            UnknownTopicOrPartitionError: the commit state does not know the topic.
            KafkaLogError: they are no log directories that our sink wrote, or a broker's.
        """
        from kafkalog.checkpoints.committed import load_committed  # noqa: PLC0415
        from kafkalog.streaming.admin.old_segments import refuse_broker_directory  # noqa: PLC0415
        from kafkalog.streaming.options.topic_settings import LogConfig  # noqa: PLC0415
        from kafkalog.streaming.store.session import existing_log_dirs, require_commit_state  # noqa: PLC0415
        from kafkalog.streaming.store.topics import check_known  # noqa: PLC0415

        LogConfig.from_mapping(self.config)
        directories = existing_log_dirs([self.log])
        require_commit_state(directories)
        for folder in () if self.allows_broker else directories:
            refuse_broker_directory(folder)
        state = load_committed(directories).state
        if state is not None:
            check_known(state, directories, self.topics)


class Maintenance:
    """The rounds; ``clean`` cleans partitions, the first one first. ``say`` gets lines to print."""

    def __init__(
        self,
        scope: Scope,
        clean: Callable[[Sequence[CleaningTask]], Sequence[Cleaned]],
        *,
        say: Callable[[str], object] = print_line,
    ) -> None:
        self._scope = scope
        self._clean = clean
        self._say = say
        self._said: set[str] = set()

    def round(self) -> list[str]:
        """Do one round; return the problems on which a person has to decide.

        Raises:
            KafkaLogError, OSError: nothing could be done, or not all of it.
        """
        return [*self._catch_up(), *self._forget(), *self._delete(), *self._compact()]

    def _catch_up(self) -> list[str]:
        from kafkalog.streaming.admin.nodes.replicas import catch_up_replicas  # noqa: PLC0415

        scope = self._scope
        try:
            done = catch_up_replicas([scope.log], allows_broker=scope.allows_broker)
        except (KafkaLogError, OSError) as error:  # all else is done even so
            return [f"no replica was brought in sync: {error}"]
        for line in done.said:
            self._say(line)
        self._say_once(done.missing)
        return done.problems

    def _forget(self) -> list[str]:
        from kafkalog.streaming.admin.groups import expire_positions  # noqa: PLC0415

        scope = self._scope
        if scope.offsets_retention_ms is None:
            return []
        try:
            said = expire_positions(
                [scope.log], scope.offsets_retention_ms, allows_broker=scope.allows_broker
            )
        except (KafkaLogError, OSError) as error:  # all else is done even so
            return [f"no positions have expired: {error}"]
        for line in said:
            self._say(line)
        return []

    def _delete(self) -> list[str]:
        from kafkalog.streaming.admin.retention import retain  # noqa: PLC0415

        scope = self._scope
        done = retain(
            [scope.log], topics=scope.topics, config=scope.config, allows_broker=scope.allows_broker
        )
        self._say_once(f"no retention: {topic}: {why}" for topic, why in done.left_alone.items())
        gone = [each for each in done.partitions if each.segments]
        for each in gone:
            self._say(
                f"{each.topic_partition} starts at offset {each.start}: "
                f"{many(len(each.segments), 'segment')} with {each.bytes} bytes expired"
            )
        self._say(
            f"{many(len(done.partitions), 'partition')} looked at, {len(gone)} shortened, "
            f"{many(done.removed.files, 'file')} with {done.removed.bytes} bytes removed"
        )
        return done.problems

    def _compact(self) -> list[str]:
        from kafkalog.streaming.admin.compaction import plan_compaction  # noqa: PLC0415

        plan = plan_compaction([self._scope.log], self._wanted())
        self._say_once(f"no compaction: {topic}: {why}" for topic, why in plan.left_alone.items())
        results = self._clean([due.task for due in plan.due])
        self._say_compacted([each.done for each in results if each.done is not None], len(plan.due))
        for each in results:
            if each.busy:
                self._say(each.busy)
        return [*plan.problems, *(each.problem for each in results if each.problem)]

    def _wanted(self) -> Wanted:
        from kafkalog.streaming.admin.compaction import Wanted  # noqa: PLC0415

        scope = self._scope
        return Wanted(topics=scope.topics, config=scope.config, allows_broker=scope.allows_broker)

    def _say_compacted(self, cleaned: Sequence[CleanedPartition], due: int) -> None:
        from kafkalog.streaming.admin.cleaning import keyless_text  # noqa: PLC0415

        done = [each for each in cleaned if each.rounds]
        for one in done:
            self._say(
                f"{one.topic_partition} is clean up to offset {one.clean_to}: {one.bytes_before} "
                f"bytes became {one.bytes}"
            )
            if one.keyless:
                self._say(keyless_text(one))
        self._say(f"{many(due, 'partition')} to compact, {len(done)} compacted")

    def _say_once(self, lines: Iterable[str]) -> None:
        for line in sorted(lines):
            if line not in self._said:
                self._said.add(line)
                self._say(line)


class BucketMaintenance(Maintenance):
    """The rounds of a log in an object store, from any number of places at once; without Spark."""

    def __init__(self, scope: Scope, *, say: Callable[[str], object] = print_line) -> None:
        super().__init__(scope, lambda _: (), say=say)

    def round(self) -> list[str]:
        """Do one round: see :meth:`Maintenance.round`."""
        return [*self._merge(), *self._forget(), *self._compact(), *self._delete()]

    def _merge(self) -> list[str]:
        from kafkalog.streaming.objects.bucket_store import bucket_of  # noqa: PLC0415
        from kafkalog.streaming.objects.merging import merge  # noqa: PLC0415

        root = bucket_of([self._scope.log])
        assert root is not None  # noqa: S101 - whoever makes this has looked
        done = merge(root, topics=self._scope.topics, config=self._scope.config)
        self._say(
            f"{many(done.segments, 'segment')} sealed, {many(done.objects, 'shared object')} "
            f"written, {many(done.extents, 'extent')} fewer"
        )
        with root.writing() as log:
            log.checkpoint_if_old()
        return done.problems

    def _compact(self) -> list[str]:
        from kafkalog.streaming.admin.compaction import compact  # noqa: PLC0415

        done = compact([self._scope.log], self._wanted())
        self._say_once(f"no compaction: {topic}: {why}" for topic, why in done.left_alone.items())
        self._say_compacted(done.partitions, sum(each.rounds > 0 for each in done.partitions))
        return done.problems


_YEAR_MS: Final = 366 * 86_400_000


@app.command(cls=Command, help=help_text(__doc__))
def main(
    log: LOG,
    *,
    topic: SOME_TOPICS = None,
    config: NOT_GIVEN = None,
    every: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Begin a round so often, such as 10m. Default: one."),
    ] = None,
    offsets_retention: _OFFSETS_RETENTION = None,
    allow_broker: ALLOW_BROKER = False,
) -> None:
    """Run the rounds; the exit code is 1 if the only one finds a problem."""
    path = ",".join(log)
    interval_ms = None
    if every is not None:
        interval_ms = milliseconds("--every", every, minimum=1000, maximum=_YEAR_MS)
    scope = Scope(
        log=path,
        topics=select_topics(topic),
        config=given_settings(config),
        allows_broker=allow_broker,
        offsets_retention_ms=_retention_ms(offsets_retention),
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)
    if is_object_uri(path):
        problems = _rounds(BucketMaintenance(scope), interval_ms)
    else:
        scope.check()
        with session(f"kafkalog maintain {path}") as spark:
            problems = _rounds(Maintenance(scope, partial(clean_on_spark, spark)), interval_ms)
    _tell_problems(problems)
    raise typer.Exit(1 if problems else 0)


def _rounds(maintenance: Maintenance, interval_ms: int | None) -> list[str]:
    if interval_ms is not None:
        _again_and_again(maintenance, interval_ms)
    return maintenance.round()


def _retention_ms(text: str | None) -> int | None:
    return None if text is None else milliseconds("--offsets-retention", text, minimum=60_000)


def _again_and_again(maintenance: Maintenance, interval_ms: int) -> NoReturn:
    """Begin rounds at a steady pace until the process is ended; what fails is tried again."""
    due = system.monotonic()
    while True:
        try:
            _tell_problems(maintenance.round())
        except (KafkaLogError, OSError) as error:
            _tell_problems([str(error)])
        due = max(due + interval_ms / 1000, system.monotonic())
        system.sleep(due - system.monotonic())


def _tell_problems(problems: list[str]) -> None:
    for problem in problems:
        print_line(f"problem: {problem}", err=True)


def _end(number: int, _: object) -> NoReturn:
    """End with the session stopped."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    run(app)
