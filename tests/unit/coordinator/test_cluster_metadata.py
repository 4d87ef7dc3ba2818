"""The settings of topics in a cluster's metadata: what real brokers wrote, and records of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.corpus import UnpackedCase
from tests.support.logs import Row, batch_bytes, write_segment

from kafkalog.errors import CorruptRecordError, UnsupportedFormatError
from kafkalog.streaming.coordinator.cluster_metadata import MetadataReplay, read_cluster_topics

if TYPE_CHECKING:
    from pathlib import Path

ID = bytes(range(16))
KEY = "AAECAwQFBgcICQoLDA0ODw"
OTHER = bytes(range(1, 17))
OTHER_KEY = "AQIDBAUGBwgJCgsMDQ4PEA"
BEGIN, END, ABORT = b"\x01\x17\x00\x00", b"\x01\x18\x00\x00", b"\x01\x19\x00\x00"


def sized(text: str) -> bytes:
    return bytes([len(text) + 1]) + text.encode()


def topic(name: str = "t", topic_id: bytes = ID) -> bytes:
    return b"\x01\x02\x00" + sized(name) + topic_id + b"\0"


def removed(topic_id: bytes = ID) -> bytes:
    return b"\x01\x09\x00" + topic_id + b"\0"


def config(name: str, value: str | None, *, of: str = "t", kind: int = 2) -> bytes:
    text = b"\0" if value is None else sized(value)
    return b"\x01\x04\x00" + bytes([kind]) + sized(of) + sized(name) + text + b"\0"


def settings_after(*values: bytes) -> dict[str, dict[str, str]]:
    replay = MetadataReplay()
    for value in values:
        replay.feed(value)
    return replay.settings


def folder_of(log_dir: Path) -> Path:
    return log_dir / "__cluster_metadata-0"


def test_settings_are_given_altered_and_deleted() -> None:
    given = [topic(), config("retention.ms", "5"), config("segment.ms", "9")]
    assert settings_after(*given) == {KEY: {"retention.ms": "5", "segment.ms": "9"}}
    changed = [*given, config("retention.ms", "7"), config("segment.ms", None)]
    assert settings_after(*changed) == {KEY: {"retention.ms": "7"}}


def test_a_recreated_topic_has_none_of_the_former_ones_settings() -> None:
    records = [topic(), config("retention.ms", "5"), removed(), topic(topic_id=OTHER)]
    assert settings_after(*records) == {OTHER_KEY: {}}


def test_settings_of_brokers_and_unknown_records_are_passed_over() -> None:
    broker = config("log.retention.ms", "5", of="t", kind=4)
    assert settings_after(topic(), broker, b"\x01\x14\x00\x00", b"\x01\x99\x01\x07") == {KEY: {}}


def test_a_metadata_transaction_counts_from_its_end_on_or_never() -> None:
    change = config("retention.ms", "5")
    assert settings_after(topic(), BEGIN, change) == {KEY: {}}
    assert settings_after(topic(), BEGIN, change, ABORT) == {KEY: {}}
    assert settings_after(topic(), BEGIN, change, END) == {KEY: {"retention.ms": "5"}}


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (None, CorruptRecordError),
        (b"", CorruptRecordError),
        (b"\x02\x02\x00", UnsupportedFormatError),
        (b"\x01\x04\x01", UnsupportedFormatError),
        (topic()[:-2], CorruptRecordError),
    ],
)
def test_what_is_no_record_is_refused(value: bytes | None, told: type[Exception]) -> None:
    with pytest.raises(told):
        MetadataReplay().feed(value)


def test_the_newest_snapshot_and_the_log_after_it_count(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    first = [Row(topic()), Row(config("retention.ms", "1"))]
    write_segment(folder, 4, batch_bytes(4, first) + batch_bytes(6, [Row(config("flush.ms", "3"))]))
    early = batch_bytes(0, [Row(topic()), Row(config("retention.ms", "0"))])
    (folder / "00000000000000000004-0000000001.checkpoint").write_bytes(early)
    newer = batch_bytes(0, [Row(topic())]) + batch_bytes(1, [Row(config("retention.ms", "2"))])
    (folder / "00000000000000000006-0000000001.checkpoint").write_bytes(newer)
    (folder / "00000000000000000009-0000000001.checkpoint.part").write_bytes(b"half")
    found = read_cluster_topics(tmp_path)
    assert found == ({KEY: {"retention.ms": "2", "flush.ms": "3"}}, 7)


def test_a_log_without_its_beginning_tells_nothing(tmp_path: Path) -> None:
    write_segment(folder_of(tmp_path), 4, batch_bytes(4, [Row(topic())]))
    with pytest.raises(CorruptRecordError, match="no snapshot reaches so far"):
        read_cluster_topics(tmp_path)


def test_a_torn_snapshot_is_refused_by_its_name(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    write_segment(folder, 0, batch_bytes(0, [Row(topic())]))
    name = "00000000000000000001-0000000001.checkpoint"
    (folder / name).write_bytes(batch_bytes(0, [Row(topic())])[:-3])
    with pytest.raises(CorruptRecordError, match=name):
        read_cluster_topics(tmp_path)


def test_a_directory_without_metadata_has_none(tmp_path: Path) -> None:
    assert read_cluster_topics(tmp_path) is None


@pytest.mark.parametrize(
    "case", ["p05-segments", "p06-transactions", "p10-many-partitions-deleted", "p11-live-copy"]
)
def test_the_topics_of_real_brokers_are_known_by_their_ids(case: str, tmp_path: Path) -> None:
    """What the case's own description of its partitions has, and no deleted topic."""
    unpacked = UnpackedCase(case, tmp_path)
    found = [read_cluster_topics(type(tmp_path)(root)) for root in unpacked.path.split(",")]
    (told,) = (each for each in found if each is not None)
    ids = {}
    for key in unpacked.live_folders:
        lines = (type(tmp_path)(unpacked.folder(key)) / "partition.metadata").read_text().split()
        ids[lines[-1]] = key.rpartition("-")[0]
    assert told.settings.keys() == ids.keys()
    by_name = {ids[key]: settings for key, settings in told.settings.items()}
    if case == "p05-segments":
        assert by_name["seg-1m"] == {"segment.bytes": "1048576", "index.interval.bytes": "4096"}
    if "__consumer_offsets" in by_name:
        assert by_name["__consumer_offsets"]["cleanup.policy"] == "compact"
