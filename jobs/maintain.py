"""Delete what has expired from log directories, once or every so often.

    spark-submit --py-files kafkalog.zip maintain.py LOG [--every 10m] [OPTIONS]

Runs beside a sink that writes to the directories, and queries that read them. A round that is
killed is ended by the next one.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer

from kafkalog.errors import KafkaLogError, UnknownTopicOrPartitionError
from kafkalog.files.system import system
from kafkalog.jobs.arguments import LOG, pairs
from kafkalog.jobs.running import run
from kafkalog.jobs.session import build_session

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kafkalog.streaming.operate.retain import Deleted

__all__ = ["Maintenance"]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

_TERMINATED: Final = 128 + signal.SIGTERM


class Maintenance:
    """The rounds over one set of log directories; ``say`` gets lines for a person.

    Args:
        log: the log directories, with commas between them.
        topic: the only one to look at.
        config: settings for topics to which they were not given.
        allows_broker: whether a broker may have had the directories last.
    """

    def __init__(
        self,
        log: str,
        *,
        topic: str | None = None,
        config: Mapping[str, str] | None = None,
        allows_broker: bool = False,
        say: Callable[[str], object] = typer.echo,
    ) -> None:
        self._log = log
        self._topic = topic
        self._config = dict(config or {})
        self._allows_broker = allows_broker
        self._say = say
        self._said: set[str] = set()

    def check(self) -> None:
        """Look whether rounds can be done at all; takes no lock, and needs no Spark.

        Raises:
            OptionError: a setting that Kafka would refuse.
            UnknownTopicOrPartitionError: the commit state does not know the topic.
            KafkaLogError: they are no log directories that our sink wrote, or a broker's.
        """
        from kafkalog.checkpoints.committed import load_committed  # noqa: PLC0415
        from kafkalog.streaming.log.config import LogConfig  # noqa: PLC0415
        from kafkalog.streaming.operate.old_segments import refuse_broker_directory  # noqa: PLC0415
        from kafkalog.streaming.store.session import check_written, existing  # noqa: PLC0415

        LogConfig.from_mapping(self._config)
        directories = existing([self._log])
        check_written(directories)
        for folder in () if self._allows_broker else directories:
            refuse_broker_directory(folder)
        state = load_committed(directories).state
        known = {topic.name for topic in state.topics.values()} if state is not None else set()
        if self._topic is not None and self._topic not in known:
            raise UnknownTopicOrPartitionError(
                f"the commit state of {self._log} knows no topic {self._topic!r}"
            )

    def round(self) -> list[str]:
        """Do one round; return the problems on which a person has to decide.

        Raises:
            KafkaLogError, OSError: nothing could be done.
        """
        from kafkalog.streaming.operate.retain import retain  # noqa: PLC0415

        done = retain(
            [self._log], topic=self._topic, config=self._config, allows_broker=self._allows_broker
        )
        self._tell(done)
        return done.problems

    def _tell(self, done: Deleted) -> None:
        for topic, reason in sorted(done.left_alone.items()):
            self._say_once(f"left alone: {topic}: {reason}")
        gone = [each for each in done.partitions if each.segments]
        for each in gone:
            self._say(
                f"{each.topic_partition} starts at offset {each.start}: {len(each.segments)} "
                f"segments with {each.bytes} bytes have expired"
            )
        self._say(
            f"{len(done.partitions)} partitions looked at, {len(gone)} shortened, "
            f"{done.removed.files} files with {done.removed.bytes} bytes removed"
        )

    def _say_once(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            self._say(line)


@app.command(help=__doc__)
def main(
    log: LOG,
    *,
    topic: Annotated[str | None, typer.Option(help="This topic only.")] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="A topic setting, such as retention.ms, for topics to which it was not given.",
        ),
    ] = None,
    every: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Begin a round so often, such as 10m. Default: one."),
    ] = None,
    allow_broker: Annotated[
        bool,
        typer.Option(
            "--allow-broker-directory", help="Work on directories that a broker had last, too."
        ),
    ] = False,
) -> None:
    """Run the rounds; the exit code is 1 if the only one finds a problem."""
    interval_ms = _milliseconds(every)
    maintenance = Maintenance(log, topic=topic, config=pairs(config), allows_broker=allow_broker)
    maintenance.check()
    signal.signal(signal.SIGTERM, _end)
    spark = build_session(f"kafkalog maintain {log}")
    try:
        if interval_ms is not None:
            _again_and_again(maintenance, interval_ms)
        problems = maintenance.round()
    finally:
        spark.stop()
    _tell_problems(problems)
    raise typer.Exit(1 if problems else 0)


def _milliseconds(every: str | None) -> int | None:
    if every is None:
        return None
    from kafkalog.errors import OptionError  # noqa: PLC0415
    from kafkalog.streaming.options import duration_ms  # noqa: PLC0415

    kind = duration_ms(minimum=1000)
    try:
        return kind.read(every)
    except ValueError as error:
        raise OptionError(f"--every is {every!r}, expected {kind.accepts}") from error


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
        typer.echo(f"problem: {problem}", err=True)


def _end(*_: object) -> NoReturn:
    """End as by Ctrl-C: what runs comes to its end, and the session is stopped."""
    raise SystemExit(_TERMINATED)


if __name__ == "__main__":
    run(app)
