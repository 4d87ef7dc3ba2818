"""A topic that the sink makes again, where lines about an earlier one of its name were left."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from tests.support.kafka import Broker, Topic
from tests.support.sinking import Writer, rows

from kafkalog.checkpoints.broker import (
    CLEANER_OFFSET,
    HIGH_WATERMARK,
    LOG_START_OFFSET,
    RECOVERY_POINT,
    read_topic_id,
    write_offset_checkpoint,
)
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.broker.handover import hand_over

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.interop

T0 = TopicPartition("t", 0)
VALUES = [f"value {number}" for number in range(100)]


def test_a_broker_serves_a_topic_that_was_made_again_after_stale_lines(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "broker", log_dirs=[tmp_path / "data"])
    (data,) = broker.log_dirs
    with broker:
        broker.create_topics(Topic("t"))
        broker.stop()
        topic_id = read_topic_id(data / "t-0")
        assert topic_id is not None
        shutil.rmtree(data / "t-0")
        for name in (LOG_START_OFFSET, RECOVERY_POINT, HIGH_WATERMARK, CLEANER_OFFSET):
            write_offset_checkpoint(data, name, {T0: 500})
        Writer(data, topic="t", allowBrokerDirectory="true").write(0, rows(VALUES))
        assert hand_over([str(data)], topic_ids={"t": topic_id}).problems == []
        broker.start()
        broker.wait_for_leaders(Topic("t"))
        assert broker.offsets("t") == {0: (0, len(VALUES))}
        found = [record.value.decode() for record in broker.consume_all("t") if record.value]
        assert found == VALUES
