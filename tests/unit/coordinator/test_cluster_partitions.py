"""What a cluster's metadata says of partitions and brokers, from records as a controller writes."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
from tests.support.cluster_records import (
    change,
    ids,
    partition,
    registered,
    removed,
    topic,
    uuid,
    write_metadata,
)

from kafkalog.errors import UnsupportedFormatError
from kafkalog.streaming.coordinator.cluster_metadata import (
    NO_BROKER,
    ClusterPartition,
    ViewReplay,
    read_cluster_view,
)

if TYPE_CHECKING:
    from pathlib import Path

ID = "AAECAwQFBgcICQoLDA0ODw"
ONE, OTHER = "AQIDBAUGBwgJCgsMDQ4PEA", "AgMEBQYHCAkKCwwNDg8QEQ"


def after(*values: bytes) -> ViewReplay:
    replay = ViewReplay()
    for value in values:
        replay.feed(value)
    return replay


def test_a_partition_has_replicas_an_epoch_and_directories() -> None:
    one, other = partition(ID, 0, [1, 2], [ONE, OTHER]), partition(ID, 1, [2], version=0, epoch=7)
    found = after(topic("t", ID), one, other)
    assert found.names == {ID: "t"}
    assert found.partitions[ID] == {
        0: ClusterPartition((1, 2), 0, (ONE, OTHER), 1, (1, 2)),
        1: ClusterPartition((2,), 7, (), 2, (2,)),
    }


def test_the_leader_epoch_rises_with_each_record_that_names_a_leader() -> None:
    """Also where there is none any more, or the same one again."""
    one, none = struct.pack(">i", 1), struct.pack(">i", -1)
    made = [topic("t", ID), partition(ID, 0, [1, 2], epoch=4)]
    records = [*made, change(ID, 0, isr=ids(1), elr=ids(2))]
    assert after(*records).partitions[ID][0].leader_epoch == 4
    changes = [change(ID, 0, leader=one), change(ID, 0, isr=ids(), leader=none)]
    last = after(*records, *changes).partitions[ID][0]
    assert (last.leader_epoch, last.leader, last.isr) == (6, NO_BROKER, ())


def test_replicas_and_directories_move() -> None:
    moved = change(ID, 0, replicas=ids(2, 3), directories=b"\x03" + uuid(OTHER) + uuid(ONE))
    found = after(topic("t", ID), partition(ID, 0, [1, 2], [ONE, ONE]), moved)
    assert found.partitions[ID][0] == ClusterPartition((2, 3), 0, (OTHER, ONE), 1, (1, 2))


def test_a_topic_that_was_removed_has_no_partitions() -> None:
    found = after(topic("t", ID), partition(ID, 0, [1]), removed(ID))
    assert (found.names, found.partitions) == ({}, {})


def test_a_broker_has_the_epoch_of_its_last_registration() -> None:
    found = after(registered(1, 10), registered(2, 11, version=1), registered(1, 12))
    assert found.broker_epochs == {1: 12, 2: 11}


def test_a_broker_whose_record_is_newer_hides_no_topic(caplog: pytest.LogCaptureFixture) -> None:
    found = after(registered(1, 9, version=3), registered(2, 10, version=5), topic("t", ID))
    assert (found.names, found.broker_epochs) == ({ID: "t"}, {1: 9})
    assert "RegisterBrokerRecord version 5 is not known (0 to 4 are)" in caplog.text
    with pytest.raises(UnsupportedFormatError, match="PartitionRecord version 7"):
        after(topic("t", ID), partition(ID, 0, [1], version=7))


def test_a_view_is_read_from_the_log_and_there_is_none_without(tmp_path: Path) -> None:
    assert read_cluster_view(tmp_path) is None
    found = read_cluster_view(write_metadata(tmp_path, topic("t", ID), registered(1, 3)))
    assert found is not None
    assert (found.names, found.broker_epochs, found.end) == ({ID: "t"}, {1: 3}, 2)
