"""Python programs without Spark: ``kafkalog.read``, ``tail`` and ``append`` beside Kafka's clients.

Each run is a process of its own, which takes a few records first and then all of them. What counts
is its CPU time a row, its threads included and the broker left out: the broker is the peers' help.
All read the same topic of the same running broker, kafkalog from its log directory. Records are
taken as each library gives them: as Python objects one by one, or as Arrow columns.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from benchmarks.environment import QUEUED, send, wait_for_high_watermarks
from benchmarks.report import CLIENTS, write_section
from benchmarks.session import scratch
from benchmarks.words import compared
from rich.console import Console
from rich.table import Table
from tests.support.kafka import Broker, Topic

import kafkalog
from kafkalog.model import many

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = ["main"]

_PARTITIONS: Final = 4
_KEY_BYTES: Final = 10
_VALUE_BYTES: Final = 100
_AT_ONCE: Final = 10_000
"""Records that a client is asked for at once; so many are taken before a run is measured."""
_BATCH_BYTES: Final = {"16 KiB": 16 << 10, "256 KiB": 256 << 10}
_ROUNDS: Final = 5
_COLUMNS: Final = ("key", "value", "offset")
_LIBRDKAFKA: Final = "confluent-kafka (librdkafka)"
_WAIT_S: Final = 60


class _Work(NamedTuple):
    """One run: where records are, or go; how many."""

    bootstrap: str
    log: str
    topic: str
    rows: int


class _Taken(NamedTuple):
    """What a run took, in seconds."""

    wall: float
    cpu: float


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print a table; with ``--docs`` put it on the page."""
    parser = argparse.ArgumentParser(prog="benchmarks.clients", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=_ROUNDS)
    parser.add_argument("--docs", type=Path, help="a folder whose benchmarks.md gets the figures")
    parser.add_argument("--quick", action="store_true", help="whether it works, not how fast")
    asked = parser.parse_args(argv)
    rows, rounds = (2_000, 1) if asked.quick else (asked.rows, asked.rounds)
    settings = {"replica.high.watermark.checkpoint.interval.ms": "1000"}
    with (
        scratch() as directory,
        Broker(directory / "broker", settings=settings, quick_start=asked.quick) as broker,
    ):
        lines = list(_measured(broker, directory, rows, rounds))
    table = Table(*_HEADINGS, title=f"{rows:,} records")
    for line in lines:
        table.add_row(*line)
    Console().print(table)
    if asked.docs:
        write_section(asked.docs, CLIENTS, _section(rows, rounds, lines))
    return 0


# What is done


def _values(rows: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys and values, half of each value random digits."""
    digits = np.random.default_rng(5).bytes(rows * _VALUE_BYTES // 4).hex().encode()
    half = _VALUE_BYTES // 2
    for row in range(rows):
        value = digits[row * half : (row + 1) * half].ljust(_VALUE_BYTES, b"k")
        yield f"{row:0{_KEY_BYTES}d}".encode(), value


def _consume_librdkafka(work: _Work) -> None:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition  # noqa: PLC0415

    settings: dict[str, Any] = {"bootstrap.servers": work.bootstrap, "group.id": "bench"}
    consumer = Consumer(settings | {"enable.auto.commit": False})
    consumer.assign(
        [TopicPartition(work.topic, number, OFFSET_BEGINNING) for number in range(_PARTITIONS)]
    )
    left = work.rows
    while left > 0:
        messages = consumer.consume(min(left, _AT_ONCE), _WAIT_S)
        assert messages
        for each in messages:
            assert each.error() is None
            each.key(), each.value(), each.offset()
        left -= len(messages)
    consumer.close()


def _consume_kafka_python(work: _Work) -> None:
    from kafka import KafkaConsumer, TopicPartition  # noqa: PLC0415

    consumer = KafkaConsumer(
        bootstrap_servers=work.bootstrap, auto_offset_reset="earliest", enable_auto_commit=False
    )
    consumer.assign([TopicPartition(work.topic, number) for number in range(_PARTITIONS)])
    left = work.rows
    while left > 0:
        found = consumer.poll(timeout_ms=1000 * _WAIT_S, max_records=_AT_ONCE)
        assert found
        for records in found.values():
            for each in records:
                each.key, each.value, each.offset  # noqa: B018
            left -= len(records)
    consumer.close()


def _consume_aiokafka(work: _Work) -> None:
    from aiokafka import AIOKafkaConsumer, TopicPartition  # noqa: PLC0415

    async def consume() -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=work.bootstrap, auto_offset_reset="earliest", enable_auto_commit=False
        )
        await consumer.start()
        consumer.assign([TopicPartition(work.topic, number) for number in range(_PARTITIONS)])
        left = work.rows
        while left > 0:
            found = await consumer.getmany(timeout_ms=1000 * _WAIT_S, max_records=_AT_ONCE)
            assert found
            for records in found.values():
                for each in records:
                    each.key, each.value, each.offset  # noqa: B018
                left -= len(records)
        await consumer.stop()

    asyncio.run(consume())


def _read(work: _Work) -> None:
    _touch(kafkalog.read(work.log, work.topic, columns=_COLUMNS), work.rows)


def _tail(work: _Work) -> None:
    options = {"startingOffsets": "earliest"}
    _touch(kafkalog.tail(work.log, work.topic, columns=_COLUMNS, options=options), work.rows)


def _touch(batches: Iterator[pa.RecordBatch] | pa.RecordBatchReader, rows: int) -> None:
    """Take something of each key, value and offset."""
    left = rows
    for batch in batches:
        for name in ("key", "value"):
            pc.sum(pc.binary_length(batch.column(name)))
        pc.sum(batch.column("offset"))
        left -= batch.num_rows
        if left <= 0:
            break
    assert left <= 0


def _produce_librdkafka(work: _Work) -> Callable[[], None]:
    from confluent_kafka import Producer  # noqa: PLC0415

    rows = list(_values(work.rows))

    def produce() -> None:
        settings = {"compression.type": "lz4", "queue.buffering.max.messages": QUEUED}
        producer = Producer({"bootstrap.servers": work.bootstrap, **settings})
        for number, (key, value) in enumerate(rows):  # as ``send``, without its dicts
            producer.produce(work.topic, value, key)
            if number % 1000 == 0:
                producer.poll(0 if len(producer) < QUEUED // 2 else 0.1)
        assert producer.flush(_WAIT_S) == 0

    return produce


def _produce_kafka_python(work: _Work) -> Callable[[], None]:
    from kafka import KafkaProducer  # noqa: PLC0415

    rows = list(_values(work.rows))

    def produce() -> None:
        producer = KafkaProducer(bootstrap_servers=work.bootstrap, compression_type="lz4")
        for key, value in rows:
            producer.send(work.topic, value, key)
        producer.flush()
        producer.close()

    return produce


def _produce_aiokafka(work: _Work) -> Callable[[], None]:
    from aiokafka import AIOKafkaProducer  # noqa: PLC0415

    rows = list(_values(work.rows))

    async def produce() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=work.bootstrap, compression_type="lz4")
        await producer.start()
        for key, value in rows:
            await producer.send(work.topic, value, key)
        await producer.stop()

    return lambda: asyncio.run(produce())


def _append(work: _Work, flush: str) -> Callable[[], None]:
    keys, values = zip(*_values(work.rows), strict=True)
    table = pa.table({"key": pa.array(keys), "value": pa.array(values)})
    options = {"numPartitions": _PARTITIONS, "compression.type": "lz4", "flush": flush}
    return lambda: kafkalog.append(f"{work.log}-own", work.topic, table, options=options) and None


# Who does it


# Nothing is made ready for a reader: ``partial(partial, read)(work)`` is ``partial(read, work)``.
_READERS: Final[Mapping[str, Callable[[_Work], Callable[[], None]]]] = {
    _LIBRDKAFKA: partial(partial, _consume_librdkafka),
    "kafka-python": partial(partial, _consume_kafka_python),
    "aiokafka": partial(partial, _consume_aiokafka),
    "kafkalog.read": partial(partial, _read),
    "kafkalog.tail": partial(partial, _tail),
}
_WRITERS: Final[Mapping[str, Callable[[_Work], Callable[[], None]]]] = {
    _LIBRDKAFKA: _produce_librdkafka,
    "kafka-python": _produce_kafka_python,
    "aiokafka": _produce_aiokafka,
    "kafkalog.append, flush=os": partial(_append, flush="os"),
    "kafkalog.append, flush=commit": partial(_append, flush="commit"),
}
_GOALS: Final = {"kafkalog.read": 12, "kafkalog.tail": 12, "kafkalog.append, flush=os": 8}
"""How many times less CPU time a row than librdkafka takes."""


def _measured(broker: Broker, directory: Path, rows: int, rounds: int) -> Iterator[tuple[str, ...]]:
    context = multiprocessing.get_context("spawn")
    work = _Work(broker.bootstrap, str(broker.log_dirs[0]), "", rows)
    for said, size in _BATCH_BYTES.items():
        topic = f"read-{size}"
        _fill(broker, topic, rows, size)
        given = work._replace(topic=topic)
        runs = _in_turns(context, _READERS, rounds, lambda _, given=given: given)
        yield from _lines(f"read, batches of {said}", runs, rows)
    own = work._replace(log=str(directory / "log"))

    def new_topic(number: int) -> _Work:
        name = f"written-{number}"
        broker.create_topics(Topic(name, _PARTITIONS))
        return own._replace(topic=name)

    yield from _lines("write", _in_turns(context, _WRITERS, rounds, new_topic), rows)


def _in_turns(
    context: Any,  # noqa: ANN401
    contenders: Mapping[str, Callable[[_Work], Callable[[], None]]],
    rounds: int,
    work: Callable[[int], _Work],
) -> dict[str, list[_Taken]]:
    """Let each run in a process of its own, once a round; another one begins each round."""
    names = list(contenders)
    found: dict[str, list[_Taken]] = {name: [] for name in names}
    number = 0
    for round_ in range(rounds):
        turn = round_ % len(names)
        for name in (*names[turn:], *names[:turn]):
            queue = context.Queue()
            process = context.Process(target=_run, args=(contenders[name], work(number), queue))
            process.start()
            found[name].append(_Taken(*queue.get(timeout=10 * _WAIT_S)))
            process.join()
            number += 1
    return found


def _run(make: Callable[[_Work], Callable[[], None]], work: _Work, said: Any) -> None:  # noqa: ANN401
    """Take a few records first: modules are loaded then, and kernels."""
    few = work._replace(rows=min(work.rows, _AT_ONCE))
    make(few)()
    act = make(work)
    wall, cpu = time.perf_counter(), time.process_time()
    act()
    said.put((time.perf_counter() - wall, time.process_time() - cpu))


def _fill(broker: Broker, topic: str, rows: int, size: int) -> None:
    from confluent_kafka import Producer  # noqa: PLC0415

    broker.create_topics(Topic(topic, _PARTITIONS))
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "batch.size": size,
            "linger.ms": 500,
            "compression.type": "lz4",
            "queue.buffering.max.messages": QUEUED,
        }
    )
    send(
        producer,
        (
            {"topic": topic, "value": value, "key": key, "partition": number % _PARTITIONS}
            for number, (key, value) in enumerate(_values(rows))
        ),
    )
    wait_for_high_watermarks(broker, topic, rows)


# What is shown


_HEADINGS: Final = ("work", "who", "rows/s", "CPU a row", "min to max", "CPU, ratio", "goal", "")


def _lines(title: str, runs: Mapping[str, list[_Taken]], rows: int) -> Iterator[tuple[str, ...]]:
    peer = statistics.median(each.cpu for each in runs[_LIBRDKAFKA])
    for number, (name, taken) in enumerate(runs.items()):
        cpu = statistics.median(each.cpu for each in taken)
        low, high = (pick(each.cpu for each in taken) / rows * 1e9 for pick in (min, max))
        ratio, goal = peer / cpu, _GOALS.get(name)
        yield (
            title if not number else "",
            name,
            f"{rows / statistics.median(each.wall for each in taken) / 1e6:.2f} M",
            f"{cpu / rows * 1e9:,.0f} ns",
            f"{low:,.0f} to {high:,.0f} ns",
            "" if name == _LIBRDKAFKA else compared(cpu, peer),
            f"{goal} times less" if goal else "",
            "" if not goal else "reached" if ratio >= goal else "missed",
        )


def _section(rows: int, rounds: int, lines: Sequence[tuple[str, ...]]) -> str:
    shown = "\n".join(f"| {' | '.join(line)} |" for line in (_HEADINGS, ["---"] * 8, *lines))
    return (
        f"Programs in Python without Spark, {rows:,} records of a key of {_KEY_BYTES} and a value "
        f"of {_VALUE_BYTES} bytes, lz4, {_PARTITIONS} partitions, {many(rounds, 'round')} in turns "
        "(`python -m benchmarks.clients`). CPU is that of the program alone, the broker's left "
        "out. Clients touch key, value and offset of each record, kafkalog sums up the lengths "
        "and the offsets of Arrow columns.\n\n"
        f"{shown}\n"
    )


if __name__ == "__main__":
    raise SystemExit(main())
