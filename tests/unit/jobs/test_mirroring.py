"""What a mirror refuses, and how it prepares the topics of a copy, without a query."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.support.sinking import Writer, rows

from kafkalog.errors import LogDirectoryError, OptionError, UnknownTopicOrPartitionError
from kafkalog.jobs.mirroring import Mirror
from kafkalog.model import TopicPartition
from kafkalog.streaming.operate.retain import delete_records
from kafkalog.streaming.operate.topics import create
from kafkalog.streaming.store.ends.watch import EndsWatch

if TYPE_CHECKING:
    from pathlib import Path

T0 = TopicPartition("t", 0)


@pytest.fixture
def mirror(tmp_path: Path) -> Mirror:
    """Give a mirror of a topic with three records."""
    Writer(tmp_path / "source", topic="t").write(0, rows(["a", "b", "c"]))
    return mirror_of(tmp_path)


def mirror_of(folder: Path, **given: Any) -> Mirror:
    places = {"source": str(folder / "source"), "target": str(folder / "copy")}
    return Mirror(**({**places, "topics": ("t",), "checkpoint": str(folder / "c")} | given))


def starts(folder: Path) -> dict[str, int]:
    watch = EndsWatch([str(folder)], lambda _: True)
    return {str(key): watch.log_start(key) for key in watch.look().offsets}


def test_topics_are_named_or_matched_not_both(mirror: Mirror, tmp_path: Path) -> None:
    mirror.check()
    for given in ({"pattern": "t"}, {"topics": ()}):
        with pytest.raises(OptionError, match="--pattern: one of them"):
            mirror_of(tmp_path, **given).check()


def test_a_log_is_no_copy_of_itself(mirror: Mirror, tmp_path: Path) -> None:
    (tmp_path / "copy").symlink_to(tmp_path / "source")
    with pytest.raises(OptionError, match="is in FROM and in TO"):
        mirror.check()


def test_a_new_mirror_wants_topics_that_are_there(mirror: Mirror, tmp_path: Path) -> None:
    mirror.check()
    with pytest.raises(UnknownTopicOrPartitionError, match="u"):
        mirror_of(tmp_path, topics=("u",)).check()


def test_a_topic_of_more_partitions_is_no_copy(mirror: Mirror, tmp_path: Path) -> None:
    create([str(tmp_path / "copy")], "t", partitions=2)
    with pytest.raises(OptionError, match="'t' has 2 partitions in TO and 1 in FROM"):
        mirror.prepare()


def test_records_that_no_checkpoint_tells_of_are_no_copy(mirror: Mirror, tmp_path: Path) -> None:
    Writer(tmp_path / "copy", topic="t").write(0, rows(["x"]))
    with pytest.raises(LogDirectoryError, match="t-0 holds offsets 0 to 0 in TO"):
        mirror.prepare()
    plan(tmp_path, '{"t":{"0":1}}')
    assert mirror.prepare() == []


def plan(folder: Path, ends: str) -> None:
    (folder / "c" / "offsets").mkdir(parents=True, exist_ok=True)
    (folder / "c" / "offsets" / "0").write_text(f"v1\n{{}}\n{ends}\n")


@pytest.mark.parametrize("ends", ['{"u":{"0":1}}', '{"t":{"0":1}}'])
def test_what_somebody_else_wrote_to_the_copy_is_not_deleted(
    ends: str, mirror: Mirror, tmp_path: Path
) -> None:
    """Be it to a topic that came to the original later, or after what was copied."""
    Writer(tmp_path / "copy", topic="t").write(0, rows(["x", "y"]))
    plan(tmp_path, ends)
    delete_records([str(tmp_path / "source")], {T0: 2})
    with pytest.raises(LogDirectoryError, match="t-0 holds offsets 0 to 1 in TO"):
        mirror.prepare()
    mirror.finish()
    assert starts(tmp_path / "copy") == {"t-0": 0}


def test_a_copy_starts_no_later_than_it_ends(mirror: Mirror, tmp_path: Path) -> None:
    """Its query has still to read what lies below the start of the original, and tells the loss."""
    mirror.prepare()
    plan(tmp_path, '{"t":{"0":0}}')
    delete_records([str(tmp_path / "source")], {T0: 2})
    mirror.finish()
    assert starts(tmp_path / "copy") == {"t-0": 0}
