"""Tiers in a bucket, and Pinterest's layout: what is asked of the store, and what comes back."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pytest
from tests.support.logs import write_checkpoint
from tests.support.object_store import ObjectStore, object_store
from tests.support.tiers import (
    AivenTier,
    KafkaTier,
    Keys,
    pinterest_tier,
    write_log,
    write_metadata,
)
from typer.testing import CliRunner

import kafkalog
from kafkalog.checkpoints.broker import LOG_START_OFFSET
from kafkalog.errors import KafkaLogError, LogDirectoryError
from kafkalog.jobs import restoring
from kafkalog.jobs.pipelines.copied_logs import topics_of_target
from kafkalog.jobs.restore import app
from kafkalog.streaming.source import reading

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectStore]:
    with object_store() as store:
        store.make_bucket()
        yield store


@pytest.fixture
def log(tmp_path: Path) -> Path:
    log = tmp_path / "log"
    write_log(log, [0, 10, 20, 30], 40)
    write_checkpoint(log, LOG_START_OFFSET, {"t-0": 0})
    write_checkpoint(log, "replication-offset-checkpoint", {"t-0": 40})
    return log


def offsets(path: object, **options: str) -> list[int]:
    found: list[int] = (
        kafkalog.read(str(path), "t", options=options).read_all()["offset"].to_pylist()
    )
    return found


# ----------------------------------------------------------------------------------------------
# In a bucket.


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
@pytest.mark.parametrize("layout", ["kafka", "aiven"])
def test_a_tier_in_a_bucket_is_read_with_the_log_and_alone(
    server: ObjectStore, log: Path, tmp_path: Path, layout: str, scheme: str
) -> None:
    server.reset()
    tier = (
        KafkaTier(tmp_path / "tier")
        if layout == "kafka"
        else (AivenTier(tmp_path / "tier", compression=True))
    )
    tier.move(log / "t-0", [0, 10, 20])
    prefix = f"{layout}-{scheme}"
    server.upload(tmp_path / "tier", prefix)
    place = server.uri(prefix).replace("s3://", f"{scheme}://")
    given = {**server.options, "remote.path": place}
    assert offsets(log, **given) == list(range(40))
    assert offsets(place, **given) == list(range(20))
    assert offsets(place, **given, startingTimestamp="15000") == list(range(15, 20))


def test_segments_of_all_kinds_and_keys_are_read_from_a_bucket(
    server: ObjectStore, log: Path, tmp_path: Path
) -> None:
    server.reset()
    keys, root, records = Keys(tmp_path), tmp_path / "tier", []
    kinds = [
        {"key": keys.public["one"], "compression": True, "variable": True},
        {"key": keys.public["two"]},
        {"compression": True, "variable": True, "chunk_size": 61},
        {"variable": True},
    ]
    write_log(log, range(0, 40, 8), 40)
    for start, kind in zip(range(0, 32, 8), kinds, strict=True):
        tier = AivenTier(root, **kind)  # type: ignore[arg-type]
        tier.move(log / "t-0", [start, start + 8])
        records += tier.records
    server.upload(root, "kinds")
    place = server.uri("kinds")
    given = {**server.options, "remote.path": place, "remote.encryption.keys": keys.option}
    for said in ([], records):
        write_metadata(log, said)
        assert offsets(log, **given) == list(range(40))
        assert offsets(place, **given) == list(range(32))
        assert offsets(log, **given, startingTimestamp="11000") == list(range(11, 40))


@pytest.mark.parametrize("says", [True, False])
def test_a_read_of_some_offsets_fetches_their_segment_alone(
    server: ObjectStore, log: Path, tmp_path: Path, says: bool
) -> None:
    server.reset()
    tier = KafkaTier(tmp_path / "tier")
    tier.move(log / "t-0", [0, 10, 20, 30])
    write_metadata(log, tier.records if says else [])
    prefix = f"some-{says}"
    server.upload(tmp_path / "tier", prefix)
    given = {
        **server.options,
        "remote.path": server.uri(prefix),
        "storage.listInterval": "1h",  # however slow the machine is, nothing is listed twice
    }
    bounds = {"startingOffsets": '{"t":{"0":13}}', "endingOffsets": '{"t":{"0":17}}'}
    server.requests.clear()
    assert offsets(log, **given, **bounds) == [13, 14, 15, 16]
    asked = [request for request in server.requests if "list-type" not in request.path]
    assert {request.path.rpartition("/")[2][:20] for request in asked} == {f"{10:020d}"}
    assert len(server.requests) - len(asked) <= 4
    assert 0 < server.fetched(".log") < 1000


# ----------------------------------------------------------------------------------------------
# Written by Aiven's plugin itself, on a broker of 4.1; `interop/test_tiered_broker` runs it. The
# prefix of its names is ``of/a-cluster/``, which custom metadata tell, too.


class Written(NamedTuple):
    """Files of a broker with Aiven's plugin, and what a stock consumer has read."""

    folder: Path
    rows: dict[str, list[list[object]]]

    def options(self, place: object) -> dict[str, str]:
        given = {"remote.path": str(place), "storage.listInterval": "0"}
        if (self.folder / "one.pem").exists():
            given["remote.encryption.keys"] = f"one={self.folder}/one.pem"
        return given

    def object(self, suffix: str) -> Path:
        return min(self.folder.glob(f"tier/of/a-cluster/*/0/*{suffix}"))


def written(kind: str, folder: Path) -> Written:
    with tarfile.open(Path(__file__).parents[2] / "data" / "aiven" / f"{kind}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return Written(folder, json.loads((folder / "expected.json").read_text()))


def rows_of(path: object, **options: str) -> list[list[object]]:
    found = kafkalog.read(str(path), "sent", options=options).read_all().to_pylist()
    return [
        [
            row["offset"],
            int(row["timestamp"].timestamp() * 1000 + 0.5),
            row["key"] and row["key"].decode(),
            row["value"].decode(),
        ]
        for row in found
    ]


@pytest.mark.parametrize("bucket", [False, True], ids=["files", "bucket"])
@pytest.mark.parametrize("kind", ["plain", "zstd", "encrypted"])
def test_what_aivens_plugin_itself_has_written_is_what_a_consumer_read(
    server: ObjectStore, tmp_path: Path, kind: str, bucket: bool
) -> None:
    server.reset()
    of = written(kind, tmp_path)
    place, given = f"{tmp_path}/tier/of/a-cluster", {}
    if bucket:
        server.upload(tmp_path / "tier", f"real-{kind}")
        place, given = server.uri(f"real-{kind}/of/a-cluster"), server.options
    given |= of.options(place)
    uploaded = 57
    for isolation, rows in of.rows.items():
        level = {"kafka.isolation.level": isolation}
        assert rows_of(tmp_path / "log", **given, **level) == rows
        here = {"startingOffsets": '{"sent":{"0":14}}', "endingOffsets": '{"sent":{"0":40}}'}
        some = rows_of(tmp_path / "log", **given, **level, **here)
        assert some == [row for row in rows if 14 <= row[0] < 40]
        assert rows_of(place, **given, **level) == [row for row in rows if row[0] < uploaded]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "a chunk that is cut off": (".log", cut, r"from byte \d+ to \d+"),
    "a chunk that is damaged": (".log", flip, r"from byte \d+ to \d+ does not decrypt"),
    "a manifest that is cut off": (".rsm-manifest", cut, "is no JSON"),
    "a log that is gone": (".log", Path.unlink, "is not there, and the records of its broker"),
    "a manifest that is gone": (".rsm-manifest", Path.unlink, r"Path does not exist .*manifest"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_in_a_bucket_names_the_object_and_the_range(
    server: ObjectStore, tmp_path: Path, name: str
) -> None:
    server.reset()
    of = written("encrypted", tmp_path)
    suffix, damage, reason = DAMAGE[name]
    path = of.object(suffix)
    damage(path)
    prefix = f"damaged-{list(DAMAGE).index(name)}"
    server.upload(tmp_path / "tier", prefix)
    given = {**server.options, **of.options(server.uri(f"{prefix}/of/a-cluster"))}
    given |= {"storage.tries": "1", "fetchOffset.numRetries": "1"}
    given["kafka.isolation.level"] = "read_committed"
    with pytest.raises(KafkaLogError, match=reason) as error:
        rows_of(tmp_path / "log", **given)
    assert path.stem in str(error.value)
    assert "PRIVATE" not in str(error.value)


@pytest.mark.parametrize("kind", ["zstd", "encrypted"])
def test_what_is_committed_in_a_tier_comes_back_into_a_bucket_at_its_offsets(
    server: ObjectStore, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.reset()
    of = written(kind, tmp_path)
    target = server.uri(f"restored-{kind}")
    given = {**server.options, **of.options(tmp_path / "tier/of/a-cluster")}
    place = given.pop("remote.path")
    words = ["--from-tiers", place, target, "--config", "retention.ms=5d"]
    for name, value in given.items():
        words += ["--set", f"{name}={value}"]
    appends: list[object] = []

    def killed_at_the_third(*args: object, **named: object) -> object:
        appends.append(args)
        if len(appends) == 3:
            raise KeyboardInterrupt
        return kafkalog.append(*args, **named)

    monkeypatch.setattr(reading, "_SMALL_ROWS", 0)  # else all is read, and appended, at once
    monkeypatch.setattr(restoring, "_CHUNK_BYTES", 1)
    monkeypatch.setattr(restoring, "append", killed_at_the_third)
    assert CliRunner().invoke(app, words).exit_code == 130
    for _ in range(2):  # it goes on; and again changes nothing
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        assert "sent-0: offsets 0 to 57 in 5 segments" in done.stdout
        back = rows_of(target, **server.options)
        assert back == [row for row in of.rows["read_committed"] if row[0] < 57]
    (settings,) = [t.settings for t in topics_of_target(server.place(f"restored-{kind}")).values()]
    assert settings == {"retention.ms": "432000000"}
    kafkalog.append(target, "sent", pa.table({"value": ["new"]}), options=server.options)
    assert rows_of(target, **server.options)[-1][0] == 57
    kafkalog.append(target, "other", pa.table({"value": ["x"]}), options=server.options)
    tier = KafkaTier(tmp_path / "kafka", topic="other")
    write_log(tmp_path / "more", [0, 10], 20, name="other-0")
    tier.move(tmp_path / "more" / "other-0", [0, 10, 20], says=False)
    refused = CliRunner().invoke(app, ["--from-tiers", str(tier.root), *words[2:]])
    assert refused.exit_code != 0
    assert "is in" in str(refused.exception) or "is in" in refused.output


def test_a_damaged_index_is_said_and_the_log_read_in_its_place(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    of = written("encrypted", tmp_path)
    path = of.object(".indexes")
    cut(path)
    given = {**of.options(tmp_path / "tier/of/a-cluster"), "storage.tries": "1"}
    given["kafka.isolation.level"] = "read_committed"
    assert rows_of(tmp_path / "log", **given) == of.rows["read_committed"]
    said = [each.message for each in caplog.records if "not used" in each.message]
    assert any(path.name in text and "bytes 160 to 222" in text for text in said)


# ----------------------------------------------------------------------------------------------
# Pinterest's uploader.


@pytest.mark.parametrize("bits", ["", "01101"])
@pytest.mark.parametrize("layout", [{}, {"remote.layout": "pinterest"}])
def test_what_pinterests_uploader_has_moved_is_read(
    log: Path, tmp_path: Path, bits: str, layout: dict[str, str]
) -> None:
    pinterest_tier(tmp_path / "tier", log / "t-0", [0, 10], bits=bits)
    given = {"remote.path": str(tmp_path / "tier"), **layout}
    assert offsets(log, **given) == list(range(40))
    assert offsets(tmp_path / "tier", **given) == list(range(20))
    cluster = {"remote.path": str(tmp_path / "tier" / bits / "cluster"), **layout}
    assert offsets(log, **cluster) == list(range(40))


def test_a_segment_without_its_indexes_is_not_there_yet(log: Path, tmp_path: Path) -> None:
    folder = pinterest_tier(tmp_path / "tier", log / "t-0", [0, 10])
    (folder / f"{20:020d}.log").write_bytes(b"half")
    given = {"remote.path": str(tmp_path / "tier")}
    assert offsets(log, **given) == list(range(40))
    assert offsets(tmp_path / "tier", **given) == list(range(20))


def test_of_several_clusters_one_is_to_be_named(log: Path, tmp_path: Path) -> None:
    pinterest_tier(tmp_path / "tier", log / "t-0", [0])
    (tmp_path / "tier" / "other" / "t-0").mkdir(parents=True)
    given = {"remote.path": str(tmp_path / "tier")}
    with pytest.raises(LogDirectoryError, match="several clusters, cluster, other"):
        offsets(tmp_path / "tier", **given)
    assert offsets(log, **{"remote.path": str(tmp_path / "tier" / "cluster")}) == list(range(40))
