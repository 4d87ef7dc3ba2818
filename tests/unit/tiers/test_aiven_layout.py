"""Segments by Aiven's plugin: chunks of both kinds, compressed, encrypted, damaged, hostile."""

from __future__ import annotations

import base64
import json
import pickle
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.logs import write_checkpoint
from tests.support.tiers import AivenTier, Keys, chunk_sizes, id_of, write_log, write_metadata
from tests.support.transactions import ABORT, COMMIT, BrokerLog

import kafkalog
from kafkalog.checkpoints.broker import LOG_START_OFFSET
from kafkalog.errors import CorruptRecordError, KafkaLogError, LogDirectoryError, OptionError
from kafkalog.files.remote_store import open_store
from kafkalog.files.storage import RemoteRoot, StorageOptions
from kafkalog.streaming.log.files import LOG
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.source.batch_plan import plan_batch
from kafkalog.streaming.tiers.aiven import parse_custom_metadata, parse_manifest
from kafkalog.streaming.tiers.layouts import AivenLayout, TierSegment

if TYPE_CHECKING:
    from pathlib import Path

    Json = dict[str, Any]

AT_ONCE = {"fetchOffset.retryIntervalMs": "0", "fetchOffset.numRetries": "1", "storage.tries": "1"}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    log = tmp_path / "log"
    write_log(log, [0, 10, 20, 30], 40)
    write_checkpoint(log, LOG_START_OFFSET, {"t-0": 0})
    write_checkpoint(log, "replication-offset-checkpoint", {"t-0": 40})
    return log


def values(path: Path, tier: AivenTier, **options: str) -> list[int]:
    given = {**AT_ONCE, "remote.path": str(tier.root), **options}
    rows = kafkalog.read(path, "t", options=given).read_all()
    assert rows["offset"].to_pylist() == [int(value) for value in rows["value"].to_pylist()]
    found: list[int] = rows["offset"].to_pylist()
    return found


@pytest.mark.parametrize("says", [True, False])
@pytest.mark.parametrize("variable", [True, False])
@pytest.mark.parametrize("encrypted", [True, False])
@pytest.mark.parametrize("compression", [True, False])
def test_what_the_plugin_has_written_is_read(
    log: Path,
    tmp_path: Path,
    keys: Keys,
    compression: bool,
    encrypted: bool,
    variable: bool,
    says: bool,
) -> None:
    tier = AivenTier(
        tmp_path / "tier",
        compression=compression,
        variable=variable,
        key=keys.public["one"] if encrypted else None,
    )
    tier.move(log / "t-0", [0, 10, 20])
    write_metadata(log, tier.records if says else [])
    options = {"remote.encryption.keys": keys.option} if encrypted else {}
    assert values(log, tier, **options) == list(range(40))
    assert values(tier.root, tier, **options) == list(range(20))
    assert values(log, tier, startingOffsets='{"t":{"0":13}}', **options) == list(range(13, 40))
    assert values(log, tier, startingTimestamp="7000", **options) == list(range(7, 40))


@pytest.mark.parametrize("chunk_size", [1, 7, 61, 1 << 20])
def test_chunks_of_any_size_are_read(
    log: Path, tmp_path: Path, keys: Keys, chunk_size: int
) -> None:
    tier = AivenTier(tmp_path / "tier", compression=True, key=keys.public["one"])
    tier.chunk_size = chunk_size
    tier.move(log / "t-0", [0, 10, 20])
    options = {"remote.encryption.keys": keys.option}
    assert values(log, tier, **options) == list(range(40))


def test_segments_of_one_partition_may_be_of_several_kinds(
    log: Path, tmp_path: Path, keys: Keys
) -> None:
    plain = AivenTier(tmp_path / "tier")
    AivenTier(tmp_path / "tier", key=keys.public["one"]).move(log / "t-0", [0, 10])
    AivenTier(tmp_path / "tier", key=keys.public["two"], variable=True).move(log / "t-0", [10, 20])
    plain.move(log / "t-0", [20, 30])
    assert values(log, plain, **{"remote.encryption.keys": keys.option}) == list(range(40))


@pytest.mark.parametrize("prefix", ["", "tier-"])
def test_a_prefix_that_ends_in_no_slash_is_found(log: Path, tmp_path: Path, prefix: str) -> None:
    tier = AivenTier(tmp_path / "bucket", prefix=prefix)
    tier.move(log / "t-0", [0, 10])
    named = AivenTier(tmp_path / "bucket" / prefix) if prefix else tier
    assert values(log, named) == list(range(40))


def test_without_its_manifest_a_segment_is_not_there(log: Path, tmp_path: Path) -> None:
    tier = AivenTier(tmp_path / "tier")
    tier.move(log / "t-0", [0, 10])
    stem = tier.upload(log / "t-0", 10, 20, manifest=False)
    stem.with_suffix(".log").write_bytes(b"half")
    assert values(log, tier) == list(range(40))
    assert values(tier.root, tier) == list(range(10))


@pytest.mark.parametrize("seed", range(4))
def test_the_index_of_transactions_comes_out_of_the_indexes(
    tmp_path: Path, keys: Keys, seed: int
) -> None:
    folder = tmp_path / "log" / "t-0"
    written, bounds = BrokerLog(folder), [0]
    for number in range(12):
        written.append(1 + number % 2, 2)
        written.end(1 + number % 2, ABORT if (number + seed) % 3 else COMMIT)
        if number % 3 == 2:
            written.roll()
            bounds.append(written.next_offset)
    tier = AivenTier(tmp_path / "tier", key=keys.public["one"], chunk_size=50)
    tier.move(folder, bounds)
    given = {
        "remote.path": str(tier.root),
        "remote.encryption.keys": keys.option,
        "kafka.isolation.level": "read_committed",
    }
    rows = kafkalog.read(tier.root, "t", options=given).read_all()
    assert rows["offset"].to_pylist() == sorted(written.visible)


# ----------------------------------------------------------------------------------------------
# Damage, and keys.


def test_a_chunk_that_was_cut_off_is_named_with_its_range(log: Path, tmp_path: Path) -> None:
    tier = AivenTier(tmp_path / "tier", compression=True, variable=True)
    (stem,) = tier.move(log / "t-0", [0, 10])
    path = stem.with_suffix(".log")
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(LogDirectoryError, match=rf"{path.name}.*byte \d+ to \d+"):
        values(log, tier)


def test_a_damaged_chunk_is_named_with_its_range(log: Path, tmp_path: Path, keys: Keys) -> None:
    tier = AivenTier(tmp_path / "tier", key=keys.public["one"])
    (stem,) = tier.move(log / "t-0", [0, 10])
    path = stem.with_suffix(".log")
    data = bytearray(path.read_bytes())
    data[140] ^= 1
    path.write_bytes(data)
    with pytest.raises(LogDirectoryError, match=rf"{path.name}.*byte 128 to 256 does not decrypt"):
        values(log, tier, **{"remote.encryption.keys": keys.option})


def test_a_key_that_is_not_given_or_is_another_one_is_named(
    log: Path, tmp_path: Path, keys: Keys
) -> None:
    tier = AivenTier(tmp_path / "tier", key=keys.public["one"])
    tier.move(log / "t-0", [0, 10])
    with pytest.raises(OptionError, match=r"the key 'one': give its file by .*one=/folder"):
        values(log, tier)
    other = keys.option.replace("one=", "three=").replace("two=", "one=")
    with pytest.raises(LogDirectoryError, match=r"not wrapped by the key 'one' in .*two\.pem"):
        values(log, tier, **{"remote.encryption.keys": other})
    gone = {"remote.encryption.keys": "one=/nowhere/one.pem"}
    with pytest.raises(OptionError, match=r"/nowhere/one\.pem, cannot be read"):
        values(log, tier, **gone)
    (tmp_path / "no.pem").write_text("-----BEGIN no key-----")
    with pytest.raises(OptionError, match="holds no private RSA key"):
        values(log, tier, **{"remote.encryption.keys": f"one={tmp_path}/no.pem"})


def test_no_key_is_in_what_a_task_gets(log: Path, tmp_path: Path, keys: Keys) -> None:
    tier = AivenTier(tmp_path / "tier", key=keys.public["one"])
    tier.move(log / "t-0", [0, 10])
    options = ReadOptions.parse(
        {
            "path": str(log),
            "subscribe": "t",
            "remote.path": str(tier.root),
            "remote.encryption.keys": keys.option,
        }
    )
    data = pickle.dumps((options, plan_batch(options)))
    assert b"PRIVATE" not in data
    assert b"one.pem" in data


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"remoteLogSegmentMetadata": None}, "remoteLogSegmentMetadata is no object"),
        ({"version": "2"}, "a version that is not known"),
        ({"startOffset": 5}, "is that of segment"),
        ({"partition": 3}, "is that of segment"),
        ({"topic": "../../u"}, "is that of segment"),
        ({"originalFileSize": -1}, "originalFileSize is no whole number"),
        ({"originalChunkSize": 0}, "originalChunkSize is no whole number"),
        ({"originalChunkSize": True}, "originalChunkSize is no whole number"),
        ({"transformedChunkSize": 2**31 - 1}, "transformedChunkSize is no whole number"),
        ({"type": "other"}, "neither fixed nor variable"),
        ({"compression": 1}, "compression is neither"),
    ],
)
def test_a_damaged_manifest_is_named(log: Path, tmp_path: Path, change: Json, reason: str) -> None:
    tier = AivenTier(tmp_path / "tier")
    (stem,) = tier.move(log / "t-0", [0, 10])
    path = stem.with_suffix(".rsm-manifest")
    path.write_text(json.dumps(changed(json.loads(path.read_text()), change)))
    with pytest.raises(LogDirectoryError, match=rf"{path.name}.*{reason}"):
        values(log, tier)


def changed(value: Any, change: Json) -> Any:
    """Return a JSON value in which fields of these names, however deep, have other values."""
    if not isinstance(value, dict):
        return value
    return {key: change.get(key, changed(inner, change)) for key, inner in value.items()}


def test_the_manifest_of_another_log_of_the_size_that_the_broker_knows_is_refused(
    log: Path, tmp_path: Path
) -> None:
    tier = AivenTier(tmp_path / "tier")
    (stem,) = tier.move(log / "t-0", [0, 10])
    write_metadata(log, tier.records)
    path = stem.with_suffix(".rsm-manifest")
    said = json.loads(path.read_text())
    path.write_text(json.dumps(changed(said, {"originalFileSize": 10})))
    with pytest.raises(LogDirectoryError, match=r"of a log of 10 bytes, and the broker's record"):
        values(log, tier)


# ----------------------------------------------------------------------------------------------
# The names that custom metadata gives.


def custom(prefix: str | None = None, key: str | None = None) -> bytes:
    fields = [(tag, text.encode()) for tag, text in ((1, prefix), (2, key)) if text is not None]
    return bytes([len(fields)]) + b"".join(
        bytes([tag, len(data) + 1, len(data) + 1]) + data for tag, data in fields
    )


def key_of(root: str, custom_metadata: bytes) -> str:
    store = open_store(RemoteRoot(root, StorageOptions(), f"file://{root}"))
    folder = f"{root}/t-{AivenTier.topic_id}/0"
    segment = TierSegment(
        folder, id_of(1), 0, 10, 5, frozenset({LOG}), custom_metadata=custom_metadata
    )
    return AivenLayout(store, root).key(segment, LOG)


def test_custom_metadata_names_other_objects_of_the_topics_folder_alone() -> None:
    own = f"t-{AivenTier.topic_id}/0"
    assert key_of("/b/p", custom(key=f"{own}/other")) == f"/b/p/{own}/other.log"
    assert key_of("b/p", custom(prefix="old/", key=f"{own}/other")) == f"b/old/{own}/other.log"
    assert key_of("b/p", custom(prefix="p/")).startswith(f"b/p/{own}/")
    for key in (f"{own}/../u", "u-0/x", f"{own}/a/b", "", f"x{own}/y"):
        with pytest.raises(LogDirectoryError, match="not in its topic's folder"):
            key_of("b/p", custom(key=key))
    for prefix in ("../", "a/../../"):
        with pytest.raises(LogDirectoryError, match="not in its topic's folder"):
            key_of("b/p", custom(prefix=prefix))
    with pytest.raises(LogDirectoryError, match="needs 5 bytes"):
        key_of("b/p", b"\1\1\5")


# ----------------------------------------------------------------------------------------------
# Anything at all.


def manifest(index: Json) -> bytes:
    said = AivenTier(None)._manifest(id_of(1), 0, 10, 1000, [110] * 9 + [50], {})  # type: ignore[arg-type]
    return json.dumps({**said, "chunkIndex": {**said["chunkIndex"], **index}}).encode()


@given(st.lists(st.integers(0, 1124), min_size=10, max_size=10))
def test_sizes_of_chunks_are_those_that_were_encoded(sizes: list[int]) -> None:
    packed = base64.b64encode(zstandard.compress(chunk_sizes(sizes))).decode()
    index = parse_manifest(manifest({"type": "variable", "transformedChunks": packed})).chunks
    ends = [index.transformed(number) for number in range(index.count)]
    assert [end - start for start, end in ends] == sizes
    assert index.transformed(index.count - 1)[1] == sum(sizes)


@given(st.binary(max_size=60), st.booleans())
def test_any_sizes_of_chunks_are_read_or_refused(data: bytes, framed: bool) -> None:
    packed = base64.b64encode(zstandard.compress(data) if framed else data).decode()
    with suppress(CorruptRecordError):
        parse_manifest(manifest({"type": "variable", "transformedChunks": packed}))


def test_a_frame_that_tells_a_huge_size_allocates_nothing() -> None:
    bomb = zstandard.compress(bytes(1 << 22))
    told = {"type": "variable", "transformedChunks": base64.b64encode(bomb).decode()}
    with pytest.raises(CorruptRecordError, match="decompresses to 4194304 bytes, expected 56"):
        parse_manifest(manifest(told))
    many = {**told, "originalChunkSize": 1, "originalFileSize": 2**31 - 1}
    with pytest.raises(CorruptRecordError, match="2147483647 chunks, expected at most"):
        parse_manifest(manifest(many))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
NAMES = [
    *("version", "chunkIndex", "type", "originalChunkSize", "originalFileSize"),
    *("transformedChunkSize", "finalTransformedChunkSize", "segmentIndexes", "offset", "position"),
    *("compression", "encryption", "remoteLogSegmentMetadata", "remoteLogSegmentId", "topic"),
    *("topicIdPartition", "partition", "startOffset", "endOffset", "segmentLeaderEpochs"),
]


@settings(suppress_health_check=[HealthCheck.too_slow])  # on a busy machine
@given(st.dictionaries(st.sampled_from(NAMES), JSON, max_size=3))
def test_any_manifest_is_read_or_refused(change: Json) -> None:
    said = json.loads(manifest({}))
    said["encryption"] = {"dataKey": "one:AAAA", "aad": "AAAA"}
    with suppress(CorruptRecordError):
        parse_manifest(json.dumps(changed(said, change)).encode())


@given(st.binary(max_size=40), st.integers(0, 60))
def test_any_bytes_are_a_manifest_or_custom_metadata_or_refused(data: bytes, cut: int) -> None:
    whole = manifest({})
    for each in (data, whole[:cut] + data, whole[: len(whole) - cut] + data):
        with suppress(CorruptRecordError):
            parse_manifest(each)
    named = custom("prefix", "key")
    for each in (data, named[:cut] + data):
        with suppress(CorruptRecordError):
            parse_custom_metadata(each)


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_tier_with_a_damaged_object_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    root = tmp_path_factory.mktemp("damaged")
    folder = write_log(root / "log", [0], 10)
    tier = AivenTier(root / "tier", compression=True, variable=True)
    stem = tier.upload(folder, 0, 10)
    suffix = data.draw(st.sampled_from([".log", ".indexes", ".rsm-manifest"]))
    content = bytearray(stem.with_suffix(suffix).read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    stem.with_suffix(suffix).write_bytes(content)
    with suppress(KafkaLogError):
        assert set(values(tier.root, tier)) <= set(range(10))
