"""What runs in the processes of a churn: programs and a query that copy ``in`` to ``out``.

Each row goes to the partition that it comes from, with the name of who copied it as its key.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.errors import StreamingQueryException
from pyspark.sql.functions import lit
from tests.support.spark import small_session

from kafkalog import Consumer
from kafkalog.errors import FencedMemberError, RowError
from kafkalog.files.system import system
from kafkalog.streaming.api import append

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = [
    "GROUP",
    "KILLS_ITSELF_BY",
    "PROGRAM_SESSION_S",
    "QUERY_NAME",
    "QUERY_SESSION_S",
    "START",
]

GROUP: Final = "g"
QUERY_NAME: Final = "query"
PROGRAM_SESSION_S: Final = 2.0
QUERY_SESSION_S: Final = 6.0
KILLS_ITSELF_BY: Final = signal.SIGALRM
"""A program sets a timer before it publishes, which ends it in the middle more often."""
START: Final = "KAFKALOG_CHURN_START"
"""The variable that says how often a program was started before: chance differs from then."""

_MAX_POLL_S: Final = 4.0

_SPARK: Final = {
    "spark.driver.memory": "512m",
}


class Copier:
    """A member that does what a careful program may do, as chance has it."""

    def __init__(self, folder: str, name: str, instance: str, strategy: str, seed: str) -> None:
        """Take the folder, its own name, its name in the group or none, and where chance begins."""
        self._folder = folder
        self._name = name
        self._chance = random.Random(seed)
        self._options = {
            "startingOffsets": "earliest",
            "splitBytes": "2000",
            "kafka.partition.assignment.strategy": strategy,
            "kafka.session.timeout.ms": str(int(PROGRAM_SESSION_S * 1000)),
            "kafka.heartbeat.interval.ms": "200",
            "kafka.max.poll.interval.ms": str(int(_MAX_POLL_S * 1000)),
            **({"kafka.group.instance.id": instance} if instance else {}),
        }
        self._pending: list[pa.RecordBatch] = []
        self._is_asked_to_end = False

    def run(self) -> None:
        """Be a member again and again, until asked to end."""
        signal.signal(signal.SIGTERM, self._end)
        while not self._is_asked_to_end:
            self._pending = []
            with suppress(FencedMemberError):
                self._live()

    def _end(self, *_: object) -> None:
        self._is_asked_to_end = True

    def _live(self) -> None:
        """Join, copy for a while, and leave, with rows at hand or without."""
        with Consumer(
            self._folder,
            GROUP,
            "in",
            options=self._options,
            on_revoke=lambda _: self._before_it_is_taken(reader),
        ) as reader:
            for _ in range(self._chance.randrange(10, 400)):
                if self._is_asked_to_end:
                    break
                self._step(reader)

    def _step(self, reader: Consumer) -> None:
        rows = reader.poll(self._chance.choice((0.0, 0.05, 0.3)))
        if rows is not None:
            self._pending.append(rows)
            system.sleep(self._chance.choice((0.0, 0.0, self._chance.uniform(0, 0.8))))
        if self._chance.random() < 0.1 and reader.assignment:
            some = self._chance.sample(reader.assignment, 1)
            self._chance.choice((reader.pause, reader.resume))(some)
        if self._chance.random() < 0.01:
            system.sleep(self._chance.uniform(0, 1.5 * _MAX_POLL_S))
        if self._pending and self._chance.random() < 0.6:
            self._publish_and_go_on(reader)

    def _publish_and_go_on(self, reader: Consumer) -> None:
        try:
            self._publish(reader)
        except FencedMemberError:
            if self._chance.random() < 0.5:
                raise  # it makes another Consumer; or it polls, which goes back or says the same

    def _before_it_is_taken(self, reader: Consumer) -> None:
        if self._chance.random() < 0.5:
            self._publish(reader)

    def _publish(self, reader: Consumer) -> None:
        rows, self._pending = self._pending, []
        if not rows:
            return
        read = pa.Table.from_batches(rows).select(["value", "partition"])
        if self._chance.random() < 0.08:
            os.kill(os.getpid(), signal.SIGSTOP)  # whoever tends it wakes it
        if self._chance.random() < 0.02:
            signal.setitimer(signal.ITIMER_REAL, self._chance.uniform(0.0001, 0.03))
        key = pa.array([self._name.encode()] * read.num_rows, pa.binary())
        copied = read.append_column("key", key)
        try:
            append(self._folder, "out", copied, consumer=reader)
        except RowError:  # it has got more partitions meanwhile, which it does once
            append(self._folder, "out", copied, consumer=reader)


def run_program(folder: str, name: str, instance: str, strategy: str, seed: str) -> None:
    """Copy until a signal ends it."""
    Copier(folder, name, instance, strategy, f"{seed} {os.environ[START]}").run()


def run_query(folder: str, checkpoint: str, strategy: str) -> None:
    """Copy as a streaming query; if a batch is refused, start it again.

    A batch is refused, too, if its topic gets more partitions while it is written.
    """
    with small_session(**_SPARK) as spark:
        while True:
            try:
                _start(spark, folder, checkpoint, strategy).awaitTermination()
            except StreamingQueryException as error:
                if not any(each.__name__ in str(error) for each in (FencedMemberError, RowError)):
                    raise


def _start(spark: SparkSession, folder: str, checkpoint: str, strategy: str) -> StreamingQuery:
    group = {"kafka.group.id": GROUP, "kafka.group.instance.id": QUERY_NAME}
    source = {
        "subscribe": "in",
        "startingOffsets": "earliest",
        "joinGroup": "true",
        "kafka.partition.assignment.strategy": strategy,
        "kafka.session.timeout.ms": str(int(QUERY_SESSION_S * 1000)),
        "kafka.heartbeat.interval.ms": "500",
        "kafka.rebalance.timeout.ms": "15000",
    }
    rows = spark.readStream.format("kafkalog").options(**source, **group).load(folder)
    copied = rows.select("value", "partition", lit(QUERY_NAME).cast("binary").alias("key"))
    writer = copied.writeStream.format("kafkalog").options(topic="out", **group)
    return writer.option("checkpointLocation", checkpoint).start(folder)


if __name__ == "__main__":
    {"program": run_program, "query": run_query}[sys.argv[1]](*sys.argv[2:])
