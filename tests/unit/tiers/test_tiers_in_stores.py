"""Tiers in a bucket, and Pinterest's layout: what is asked of the store, and what comes back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.logs import write_checkpoint
from tests.support.object_store import ObjectStore, object_store
from tests.support.tiers import AivenTier, KafkaTier, pinterest_tier, write_log, write_metadata

import kafkalog
from kafkalog.checkpoints.broker import LOG_START_OFFSET
from kafkalog.errors import LogDirectoryError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


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
