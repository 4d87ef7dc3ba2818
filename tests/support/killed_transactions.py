"""Transactions of stock clients, and what a broker leaves of them that is killed at each step.

A step that no kill can be made to hit is cut out of what the killed broker has left: a crash leaves
what was appended until then, so a log ends before the batch that was not appended any more.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import confluent_kafka
from tests.support.jars import KAFKA
from tests.support.jvm import command, run

from kafkalog.checkpoints.broker import (
    HIGH_WATERMARK,
    RECOVERY_POINT,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from kafkalog.model import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, TopicPartition
from kafkalog.streaming.api import read
from kafkalog.streaming.coordinator.group_replay import partition_for_group
from kafkalog.streaming.log.read.salvage import walk_batches

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

__all__ = [
    "Step",
    "cut_before",
    "leave_only",
    "produce_with_java",
    "produce_with_librdkafka",
    "steps",
    "wait_until_complete",
    "wait_until_ended",
]

SECONDS: Final = 60
INTERNAL_PARTITIONS: Final = 50

_ENDS: Final = ("commit", "abort")
_MARKED: Final = {
    "prepared": (),
    "marked-0": (0,),
    "marked-1": (1,),
    "marked-offsets": ("offsets",),
    "marked-1-and-offsets": (1, "offsets"),
    "marked-all": (0, 1, "offsets"),
    "complete": (0, 1, "offsets"),
}
"""Which partitions have got their markers when the broker is killed."""


@dataclass(frozen=True)
class Step:
    """Where a transaction is when the broker is killed; its topic and group have its name.

    ``end`` is what the producer had asked for; ``marked`` has the partitions with a marker.
    """

    name: str
    transactional_id: str
    end: Literal["open", "commit", "abort"]
    sends: tuple[int, ...] = (0, 1)
    sends_offsets: bool = True
    marked: tuple[int | str, ...] = ()
    is_complete: bool = False

    @property
    def state_partition(self) -> TopicPartition:
        """Where its coordinator notes it."""
        number = partition_for_group(self.transactional_id, INTERNAL_PARTITIONS)
        return TopicPartition(TRANSACTIONS_TOPIC, number)

    @property
    def positions_partition(self) -> TopicPartition:
        """Where its group's positions are."""
        number = partition_for_group(self.group, INTERNAL_PARTITIONS)
        return TopicPartition(OFFSETS_TOPIC, number)

    @property
    def group(self) -> str:
        """Its group, whose positions are in a partition that no other one has."""
        return self.transactional_id


def steps(prefix: str, beside: Sequence[Step] = (), *, few: bool = False) -> list[Step]:
    """Return all steps, or a few; no ids, also those of steps beside, share a partition."""
    wanted: list[dict[str, object]] = [
        {"name": "begun", "end": "open", "sends": (0,), "sends_offsets": False},
        {"name": "sent", "end": "open", "sends_offsets": False},
        {"name": "sent-offsets", "end": "open"},
    ]
    for end in _ENDS:
        for state, marked in _MARKED.items():
            complete = state == "complete"
            each = {"name": f"{end}-{state}", "end": end, "marked": marked, "is_complete": complete}
            if not few or state in {"prepared", "marked-0", "marked-1-and-offsets"}:
                wanted.append(each)
    taken = {step.state_partition.partition for step in beside}
    return [Step(**each, transactional_id=_free_id(prefix, each, taken)) for each in wanted]  # type: ignore[arg-type]


def _free_id(prefix: str, step: dict[str, object], taken: set[int]) -> str:
    for number in range(10_000):
        found = f"{prefix}-{step['name']}-{number}"
        partition = partition_for_group(found, INTERNAL_PARTITIONS)
        if partition not in taken:
            taken.add(partition)
            return found
    raise AssertionError("no partition is left")


def produce_with_librdkafka(bootstrap: str, chosen: Sequence[Step]) -> None:
    """Do for each step a whole transaction, and then its own one: epochs stay (version 1)."""
    for step in chosen:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": step.transactional_id,
                "transaction.timeout.ms": 600_000,
                "linger.ms": 0,
                "log_level": 0,
            }
        )
        group = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": step.group})
        producer.init_transactions(SECONDS)
        for value, sends, offsets in _transactions(step):
            producer.begin_transaction()
            for number in sends:
                producer.produce(step.transactional_id, value.encode(), partition=number)
            assert producer.flush(SECONDS) == 0
            if offsets is not None:
                at = confluent_kafka.TopicPartition("in", 0, offsets)
                metadata = group.consumer_group_metadata()
                producer.send_offsets_to_transaction([at], metadata, SECONDS)
            if value == "before" or step.end == "commit":
                producer.commit_transaction(SECONDS)
            elif step.end == "abort":
                producer.abort_transaction(SECONDS)
        group.close()
        _KEPT.append(producer)


_KEPT: Final[list[confluent_kafka.Producer]] = []
"""A producer that is forgotten aborts its transaction."""


def _transactions(step: Step) -> Iterator[tuple[str, tuple[int, ...], int | None]]:
    yield "before", (0, 1), 3
    yield "in it", step.sends, 6 if step.sends_offsets else None


_JAVA: Final = """\
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringSerializer;

public class Steps {
    public static void main(String[] words) throws Exception {
        for (int i = 1; i < words.length; i++) {
            String[] step = words[i].split(",");
            Properties settings = new Properties();
            settings.put("bootstrap.servers", words[0]);
            settings.put("transactional.id", step[0]);
            settings.put("transaction.timeout.ms", "600000");
            StringSerializer text = new StringSerializer();
            KafkaProducer<String, String> producer = new KafkaProducer<>(settings, text, text);
            producer.initTransactions();
            go(producer, step, "before", 2, 3, "commit");
            int sends = Integer.parseInt(step[2]), offset = Integer.parseInt(step[3]);
            go(producer, step, "in it", sends, offset, step[1]);
        }
        System.out.println("done");
        System.out.flush();
        Runtime.getRuntime().halt(0);  // nobody closes a producer, which would abort
    }

    static void go(KafkaProducer<String, String> producer, String[] step, String value, int sends,
                   int offset, String end) {
        producer.beginTransaction();
        for (int number = 0; number < sends; number++)
            producer.send(new ProducerRecord<>(step[0], number, null, value));
        producer.flush();
        if (offset >= 0)
            producer.sendOffsetsToTransaction(
                Map.of(new TopicPartition("in", 0), new OffsetAndMetadata(offset)),
                new ConsumerGroupMetadata(step[0]));
        if (end.equals("commit")) producer.commitTransaction();
        if (end.equals("abort")) producer.abortTransaction();
    }
}
"""


def produce_with_java(bootstrap: str, chosen: Sequence[Step], folder: Path) -> None:
    """Do the same with Kafka's own client: each transaction has an epoch of its own (version 2)."""
    source = folder / "Steps.java"
    source.write_text(_JAVA, encoding="utf-8")
    words = [
        f"{step.transactional_id},{step.end},{len(step.sends)},{6 if step.sends_offsets else -1}"
        for step in chosen
    ]
    done = run(command(KAFKA, str(source), bootstrap, *words))
    assert done.stdout.endswith("done\n"), done.stdout + done.stderr


def wait_until_complete(log_dir: Path, chosen: Sequence[Step]) -> None:
    """Wait until the coordinators have noted that all markers are written."""
    waiting = {step.transactional_id for step in chosen if step.end != "open"}
    options = {"view": "transactions", "readUpTo": "logEnd"}
    deadline = time.monotonic() + SECONDS
    while waiting:
        assert time.monotonic() < deadline, waiting
        rows = read(str(log_dir), TRANSACTIONS_TOPIC, options=options).read_all().to_pylist()
        newest = {row["transactionalId"]: row["status"] for row in rows}
        waiting = {each for each in waiting if not newest.get(each, "").startswith("Complete")}
        time.sleep(0.2)


def leave_only(log_dir: Path, step: Step) -> None:
    """Cut off what the broker did after the step; how far logs go, it says of these as well.

    Of a node of several, what it has is cut.
    """
    if step.end == "open":
        return
    data = {number: TopicPartition(step.transactional_id, number) for number in step.sends}
    for name, key in {**data, "offsets": step.positions_partition}.items():
        if name not in step.marked and (log_dir / str(key)).is_dir():
            cut_before(log_dir, key, _last(log_dir, key, markers=True))
    key = step.state_partition
    if not step.is_complete and (log_dir / str(key)).is_dir():
        cut_before(log_dir, key, _last(log_dir, key, markers=False))


def _last(log_dir: Path, key: TopicPartition, *, markers: bool) -> int:
    """Return the offset of the last batch, which has to be a marker, or none."""
    tables = [chunk.table for _, chunk in walk_batches(log_dir / str(key), 0)]
    assert bool(tables[-1].is_control[-1]) == markers, key
    return int(tables[-1].base_offset[-1])


def cut_before(log_dir: Path, key: TopicPartition, offset: int) -> None:
    """Cut a log before the batch at an offset."""
    for segment, chunk in walk_batches(log_dir / str(key), offset):
        assert int(chunk.table.base_offset[0]) == offset
        os.truncate(segment.path, int(chunk.table.position[0]))
        break
    for name in (HIGH_WATERMARK, RECOVERY_POINT):
        if read_offset_checkpoint(log_dir, name).get(key, 0) > offset:
            write_offset_checkpoint(log_dir, name, {key: offset})


def wait_until_ended(bootstrap: str, keys: Sequence[TopicPartition]) -> None:
    """Wait until readers of committed records come to the end of each partition."""
    ends = {}
    deadline = time.monotonic() + SECONDS
    for isolation in ("read_uncommitted", "read_committed"):
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": "kafkalog-tests",
            "isolation.level": isolation,
        }
        reader = confluent_kafka.Consumer(settings)
        for key in keys:
            at = confluent_kafka.TopicPartition(*key)
            while True:
                end = reader.get_watermark_offsets(at, SECONDS)[1]
                if isolation == "read_uncommitted":
                    ends[key] = end
                if end >= ends[key]:
                    break
                assert time.monotonic() < deadline, (key, end, ends[key])
                time.sleep(0.2)
        reader.close()
