"""A broker starts on directories in which `kafkalog` has changed topics, and serves the rest."""

from __future__ import annotations

import errno
import os
import time
from typing import TYPE_CHECKING, Final

import pytest
from tests.support.kafka import Broker, Topic
from tests.support.sinking import Writer, rows, values_of

from kafkalog.streaming.admin.broker.handover import hand_over, take_over
from kafkalog.streaming.admin.topics import alter, delete

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.interop

SECONDS: Final = 60


def test_a_broker_serves_what_is_left_and_removes_what_could_not_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    broker = Broker(
        tmp_path / "broker", log_dirs=[data], settings={"log.initial.task.delay.ms": "500"}
    )
    with broker:
        broker.create_topics(Topic("kept", 2), Topic("gone", 2, {"file.delete.delay.ms": "100"}))
        broker.produce("gone", [(b"k", b"v")] * 3)
    assert take_over([str(data)]).problems == []
    for topic in ("kept", "gone"):
        writer = Writer(data, topic=topic, name=topic, allowBrokerDirectory="true")
        writer.write(0, rows(["a", "b"], partitions=[0, 1]))
    alter([str(data)], "kept", config={"segment.ms": "100000"})

    def refuse(folder: Path) -> None:
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(folder))

    with monkeypatch.context() as patch:
        patch.setattr("kafkalog.streaming.store.folder_changes.remove_folder", refuse)
        delete([str(data)], "gone")
        assert hand_over([str(data)]).problems == []
    left = list(data.glob("gone-*-delete"))
    assert len(left) == 2
    with broker:
        assert [record.value for record in broker.consume_all("kept")] == [b"a", b"b"]
        deadline = time.monotonic() + SECONDS
        while any(path.exists() for path in left):
            assert time.monotonic() < deadline, left
            time.sleep(0.5)
        broker.produce("gone", [(b"k", b"since")])
        assert not [line for line in broker.complaints() if "kept" in line]
    assert take_over([str(data)]).problems == []
    found = values_of([data], "gone")
    assert sorted(value for values in found.values() for value in values) == ["since"]
