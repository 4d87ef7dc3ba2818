"""Brokers serve what the sink wrote in their formats, and go on: 2.8 v0 and v1, 4.1 v2."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE
from tests.support.dump_log import dump_log_segments, partition_files
from tests.support.kafka import Broker, Topic, ZooKeeperBroker, serve
from tests.support.sinking import STAMP_MS, Writer, rows

from kafkalog.model import TopicPartition
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.records.columns import Columns, RecordDecoder

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

pytestmark = pytest.mark.interop

CODECS: Final = ("none", "gzip", "snappy", "lz4")
RELEASES: Final = {"v0": "0.9.0", "v1": "0.10.0"}
"""What a 2.8 broker calls the formats: ``message.format.version``."""

START_MS: Final = 1_600_000_000_000
BATCHES: Final = 3
COUNT: Final = 200
ADDED: Final = [(b"behind", b"%d" % number) for number in range(20)]

_TROUBLE: Final = re.compile(
    r"corrupt|invalid|truncated|truncating|recovering|rebuilding index|sanity|unclean|exception",
    re.IGNORECASE,
)


class Content(NamedTuple):
    """A record; its timestamp in ms, -1 for none."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


class Made(NamedTuple):
    """A topic that the sink wrote, and what a broker is to know of it."""

    name: str
    message_format: str
    codec: str
    stamped: bool = False

    @property
    def topic(self) -> Topic:
        release = RELEASES.get(self.message_format)
        return Topic(self.name, config={"message.format.version": release} if release else {})


OLD: Final = (
    *(Made(f"{f}-{codec}", f, codec) for f, codec in itertools.product(RELEASES, CODECS)),
    Made("v1-stamped", "v1", "lz4", stamped=True),
)
NEW: Final = (
    *(Made(f"v2-{codec}", "v2", codec) for codec in (*CODECS, "zstd")),
    Made("v2-stamped", "v2", "lz4", stamped=True),
)


@pytest.mark.parametrize(
    ("kind", "topics_made"),
    [
        pytest.param(ZooKeeperBroker, OLD, id="2.8", marks=pytest.mark.nightly),
        pytest.param(Broker, NEW, id="4.1"),
    ],
)
def test_a_broker_serves_what_the_sink_wrote_in_its_formats_and_goes_on_behind_it(
    kind: type[Broker], topics_made: tuple[Made, ...], tmp_path: Path
) -> None:
    written = tmp_path / "written"
    for made in topics_made:
        _write(made, written)
    findings = dump_log_segments(f for f in partition_files(written) if f.stat().st_size).findings
    assert findings == []

    topics = [made.topic for made in topics_made]
    with serve(tmp_path / "broker", [written], topics, kind, recovers=False) as broker:
        # It trusts the indexes, and has nothing to mend.
        for made in topics_made:
            assert _served(broker, made.name) == _expected(made), made.name
        lines = broker.log_text.splitlines()
        assert [line for line in lines if _is_trouble(line, topics_made)] == []
        for made in topics_made:
            broker.produce(made.name, ADDED, **{"compression.type": made.codec})
        broker.stop()

        (data,) = broker.log_dirs
        for made in topics_made:
            ours = _read(data / f"{made.name}-0", made.name)
            assert ours[: BATCHES * COUNT] == _expected(made), made.name
            assert [(record.key, record.value) for record in ours[BATCHES * COUNT :]] == ADDED

        # It finds nothing wrong in any batch, either.
        broker.forget_shutdown()
        broker.start()
        broker.wait_for_leaders(*topics)
        for made in topics_made:
            served = _served(broker, made.name)
            assert served[: BATCHES * COUNT] == _expected(made), made.name
            assert [(record.key, record.value) for record in served[BATCHES * COUNT :]] == ADDED
        complaints = [line for line in broker.complaints() if "No meta.properties" not in line]
        assert complaints == []


def _is_trouble(line: str, topics_made: tuple[Made, ...]) -> bool:
    return bool(_TROUBLE.search(line)) and any(made.name in line for made in topics_made)


def _batch(batch_id: int) -> pa.RecordBatch:
    numbers = range(batch_id * COUNT, (batch_id + 1) * COUNT)
    return rows(
        [None if n % 11 == 0 else f"value {n} " * (n % 40) for n in numbers],
        keys=[None if n % 7 == 0 else "" if n % 5 == 0 else f"key {n}" for n in numbers],
        timestamps=[START_MS + 1000 * (n ^ 21) for n in numbers],
    )


def _write(made: Made, folder: Path) -> None:
    writer = Writer(
        folder,
        name=made.name,
        topic=made.name,
        message__format=made.message_format,
        compression__type=made.codec,
        segment__bytes="20000",
        index__interval__bytes="1000",
        message__timestamp__type="LogAppendTime" if made.stamped else "CreateTime",
    )
    for batch_id in range(BATCHES):
        writer.write(batch_id, _batch(batch_id))


def _expected(made: Made) -> list[Content]:
    found: list[Content] = []
    for batch_id in range(BATCHES):
        columns = [_batch(batch_id)[name].to_pylist() for name in ("timestamp", "key", "value")]
        for time, key, value in zip(*columns, strict=True):
            shown = STAMP_MS if made.stamped else time
            timestamp = -1 if made.message_format == "v0" else shown
            found.append(Content(len(found), timestamp, _encoded(key), _encoded(value)))
    return found


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _served(broker: Broker, topic: str) -> list[Content]:
    return [
        Content(
            record.offset,
            -1 if record.timestamp_type == TIMESTAMP_NOT_AVAILABLE else record.timestamp,
            record.key,
            record.value,
        )
        for record in broker.consume_all(topic)
    ]


def _read(folder: Path, topic: str) -> list[Content]:
    columns = Columns.OFFSET | Columns.TIMESTAMP | Columns.KEY | Columns.VALUE
    names = ("offset", "timestamp", "key", "value")
    found: list[dict[str, Any]] = []
    with PartitionLog(folder, TopicPartition(topic, 0)) as log:
        end = log.log_end_offset(verify_from=0)
        for part in log.slices(log.log_start_offset, end):
            for batch in log.read_slice(part, RecordDecoder(columns), committed_end=end):
                found += batch.to_pylist()
    return [
        Content(row[names[0]], round(row[names[1]].timestamp() * 1000), row["key"], row["value"])
        for row in found
    ]
