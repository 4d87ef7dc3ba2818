"""A broker's log is damaged, and salvaged: the broker starts on it, and its clients continue."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from tests.support.dump_log import dump_log_segments, partition_files
from tests.support.kafka import Broker, Topic
from tests.support.log_files import flip
from tests.support.sinking import Writer, rows

from kafkalog.checkpoints.broker import META_PROPERTIES, read_leader_epochs
from kafkalog.streaming.admin.broker.handover import hand_over, take_over
from kafkalog.streaming.admin.salvage import KEPT_PREFIX, salvage
from kafkalog.streaming.log.segment import LogSegment

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.interop

TOPIC = Topic("t", 1)


def damage(data: Path, number: int) -> None:
    """Flip a bit in a batch of the first segment."""
    with LogSegment(data / "t-0", 0) as segment:
        position = [header.position for header in segment.headers(0)][number]
        path = segment.path
    flip(path, position + 65)


def served(broker: Broker) -> list[tuple[int, str]]:
    return [(record.offset, (record.value or b"").decode()) for record in broker.consume_all("t")]


def test_a_broker_serves_what_is_left(tmp_path: Path) -> None:
    data = tmp_path / "data"
    broker = Broker(tmp_path / "broker", log_dirs=[data])
    with contextlib.closing(broker):
        try:
            go(broker, data)
        finally:
            broker.kill()


@pytest.mark.nightly
def test_a_broker_leads_a_log_whose_leader_epoch_a_cut_had_raised(tmp_path: Path) -> None:
    """The set is one of ours: nothing there tells of a broker until it is handed over."""
    data = tmp_path / "data"
    with Broker(tmp_path / "broker", log_dirs=[data]) as broker:
        broker.create_topics(TOPIC)
        broker.produce("t", [(b"k", b"0")])
        broker.stop()
        identity = (data / META_PROPERTIES).rename(tmp_path / META_PROPERTIES)
        assert take_over([str(data)]).problems == []
        writer = Writer(data, topic="t")
        for number in range(1, 5):
            writer.write(number - 1, rows([str(number)], keys=["k"]))
        before = read_leader_epochs(data / "t-0")
        damage(data, 3)
        salvage([str(data)], cut=["t-0@3"])
        writer.write(4, rows(["new"], keys=["k"]))
        assert read_leader_epochs(data / "t-0") == [*before, (before[-1].epoch + 1, 3)]
        assert hand_over([str(data)]).problems == []
        assert read_leader_epochs(data / "t-0") == before
        identity.rename(data / META_PROPERTIES)
        broker.start()
        broker.wait_for_leaders(TOPIC)
        left = [(0, "0"), (1, "1"), (2, "2"), (3, "new")]
        assert served(broker) == left
        broker.produce("t", [(b"k", b"theirs")])
        assert served(broker) == [*left, (4, "theirs")]
        assert broker.complaints() == []


def go(broker: Broker, data: Path) -> None:
    broker.start()
    broker.create_topics(TOPIC)
    for number in range(6):
        broker.produce("t", [(b"k", str(number).encode())])
    broker.stop()

    # Dropped in a broker's own directory: a gap, and offsets continue.
    damage(data, 2)
    (place,) = salvage([str(data)], drop=["t-0@2"]).places
    assert place.done == "dropped"
    broker.start()
    broker.wait_for_leaders(TOPIC)
    left = [(0, "0"), (1, "1"), (3, "3"), (4, "4"), (5, "5")]
    assert served(broker) == left
    broker.produce("t", [(b"k", b"6")])
    assert served(broker) == [*left, (6, "6")]
    broker.stop()

    # The last batch of a set of ours: its offset is given to nobody else.
    assert take_over([str(data)]).problems == []
    Writer(data, topic="t", allowBrokerDirectory="true").write(0, rows(["7"], keys=["k"]))
    last = max((data / "t-0").glob("*.log"))
    flip(last, last.stat().st_size - 1)
    (place,) = salvage([str(data)], drop=["t-0@7"]).places
    assert place.done == "dropped"
    Writer(data, topic="t", allowBrokerDirectory="true").write(1, rows(["8"], keys=["k"]))
    assert hand_over([str(data)]).problems == []
    broker.start()
    broker.wait_for_leaders(TOPIC)
    left = [*left, (6, "6"), (8, "8")]
    assert served(broker) == left
    broker.produce("t", [(b"k", b"9")])
    assert served(broker) == [*left, (9, "9")]
    broker.stop()

    # Cut: what follows is gone, and its offsets are given again.
    damage(data, 3)
    (place,) = salvage([str(data)], cut=["t-0@4"]).places
    assert place.done == "cut"
    broker.start()
    broker.wait_for_leaders(TOPIC)
    assert served(broker) == left[:3]
    broker.produce("t", [(b"k", b"new")])
    assert served(broker) == [*left[:3], (4, "new")]
    broker.stop()
    assert take_over([str(data)]).problems == []
    files = [path for path in partition_files(data) if path.parent.name.startswith("t-")]
    found = dump_log_segments([path for path in files if path.stat().st_size]).findings
    assert [text for text in found if "consecutive" not in text and "followed by" not in text] == []
    assert len(list(data.glob(KEPT_PREFIX + "*"))) == 5
