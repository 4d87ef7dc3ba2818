"""A broker takes over directories with consumer groups, its clients go on, and ours after them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import confluent_kafka
import pyarrow as pa
import pytest
from tests.support.consuming import OPTIONS, numbers
from tests.support.jars import KAFKA
from tests.support.jvm import command, run
from tests.support.kafka import Broker, Topic

import kafkalog
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.broker.handover import hand_over, take_over
from kafkalog.streaming.groups.group_commits import GroupCommits
from kafkalog.streaming.store.policy import SetPolicy

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.interop

SECONDS: Final = 90
ALLOWED: Final = {"allowBrokerDirectory": "true"}
OFFSETS: Final = Topic("__consumer_offsets", 2, {"cleanup.policy": "compact"})
GROUP_COMMAND: Final = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def test_groups_go_on_exactly_where_they_stand_from_us_to_a_broker_and_back(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    broker = Broker(tmp_path / "broker", log_dirs=[data])
    with broker:
        broker.create_topics(Topic("t", 2), Topic("out"), OFFSETS)
        broker.stop()
        assert take_over([str(data)]).problems == []
        send(data, range(40))
        ours = {group: read_some(data, group, with_rows=group == "rows") for group in GROUPS}
        send(data, range(40, 60))
        assert hand_over([str(data)]).problems == []

        broker.start()
        broker.wait_for_leaders(Topic("t", 2), OFFSETS)
        stood = {group: described(broker, group) for group in GROUPS}
        assert stood == {group: positions(found) for group, found in ours.items()}
        assert broker.complaints() == []
        theirs = read_with_clients(broker)
        # A coordinator answers before it has written the markers of a transaction.
        late = "in a transaction"
        wait_until_it_stands(broker, late, positions(ours[late] + theirs[late]))
        broker.stop()

    assert take_over([str(data)]).problems == []
    for group in GROUPS:
        read = ours[group] + theirs[group]
        state = GroupCommits([data], group, SetPolicy(allows_broker=True)).look()
        assert (state.positions, state.record.members) == (positions(read), {}), group
        read += read_some(data, group, count=60 - len(read))
        assert sorted(read) == list(range(60)), group
        assert [each for each in read if each % 2] == list(range(1, 60, 2)), f"{group}: in order"


GROUPS: Final = ("alone", "rows", "in a transaction", "static")
INSTANCES: Final = {"static": "one"}
"""The ``group.instance.id`` of the member of a group: the same here and in the broker."""


def send(data: Path, chosen: Iterable[int]) -> None:
    """Append numbers, the odd ones to partition 1."""
    chosen = list(chosen)
    parity = pa.array([each % 2 for each in chosen], pa.int32())
    rows = pa.table({"value": [str(each) for each in chosen], "partition": parity})
    kafkalog.append(data, "t", rows, options=ALLOWED)


def positions(read: Iterable[int]) -> dict[TopicPartition, int]:
    """Where a group stands that has read these numbers, which begin the partitions."""
    odd = [each % 2 for each in read]
    return {T0: odd.count(0), T1: odd.count(1)}


def read_some(data: Path, group: str, *, count: int = 40, with_rows: bool = False) -> list[int]:
    """Read with a Consumer of ours at least so many numbers, commit them, and be killed."""
    read: list[int] = []
    options = {**OPTIONS, **ALLOWED}
    if group in INSTANCES:
        options["kafka.group.instance.id"] = INSTANCES[group]
    reader = kafkalog.Consumer(data, group, "t", options=options)
    deadline = time.monotonic() + SECONDS
    while len(read) < count:
        assert time.monotonic() < deadline
        rows = reader.poll(1)
        if rows is not None:
            read += numbers(rows)
    if with_rows:
        out = pa.table({"value": [str(each) for each in read]})
        kafkalog.append(data, "out", out, options=ALLOWED, consumer=reader)
    else:
        reader.commit()
    reader._member.fall_silent()  # it does not leave
    return read


def read_with_clients(broker: Broker) -> dict[str, list[int]]:
    """Read seven more numbers with each group, and commit them; none of the clients leaves."""
    return {group: read_with_client(broker, group) for group in GROUPS}


def read_with_client(broker: Broker, group: str) -> list[int]:
    settings = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": group,
        "auto.offset.reset": "error",
        "enable.auto.commit": "false",
    }
    if group in INSTANCES:
        settings["group.instance.id"] = INSTANCES[group]
    client = confluent_kafka.Consumer(settings)
    client.subscribe(["t"])
    came = client.consume(7, SECONDS)
    assert [each.error() for each in came] == [None] * 7
    if group != "in a transaction":
        client.commit(asynchronous=False)
    else:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": broker.bootstrap, "transactional.id": "clients"}
        )
        producer.init_transactions(SECONDS)
        producer.begin_transaction()
        place = client.position(client.assignment())
        producer.send_offsets_to_transaction(place, client.consumer_group_metadata(), SECONDS)
        producer.commit_transaction(SECONDS)
    _KEPT.append(client)
    return [int(each.value()) for each in came]


_KEPT: Final[list[confluent_kafka.Consumer]] = []


@pytest.fixture(autouse=True)
def clients_that_did_not_leave() -> Iterator[None]:
    """End them when no broker is there to hear of it: their threads would go on in other tests."""
    yield
    for client in _KEPT:
        client.close()
    _KEPT.clear()


def wait_until_it_stands(broker: Broker, group: str, at: dict[TopicPartition, int]) -> None:
    """Wait until the broker shows a group there."""
    deadline = time.monotonic() + SECONDS
    while (found := described(broker, group)) != at:
        assert time.monotonic() < deadline, found
        time.sleep(0.5)


def described(broker: Broker, group: str) -> dict[TopicPartition, int]:
    """Return what ``kafka-consumer-groups --describe`` shows, once the coordinator has loaded."""
    words = ["--bootstrap-server", broker.bootstrap, "--describe", "--group", group]
    deadline = time.monotonic() + SECONDS
    while True:
        done = run(command(KAFKA, GROUP_COMMAND, *words))
        lines = [line.removeprefix(group).split() for line in done.stdout.splitlines()]
        found = {
            TopicPartition(line[0], int(line[1])): int(line[2])
            for line in lines
            if len(line) > 2 and line[0] == "t"
        }
        if found:
            return found
        assert time.monotonic() < deadline, done.stdout + done.stderr
        time.sleep(0.5)
