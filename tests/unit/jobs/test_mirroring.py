"""What a mirror refuses, and how it prepares the topics of a copy, without a query."""

from __future__ import annotations

import shutil
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.copying import cut, run_mirror
from tests.support.sinking import Writer, rows

import kafkalog
from kafkalog.errors import (
    CommitError,
    DataLossError,
    KafkaLogError,
    OptionError,
    TargetMismatchError,
    UnknownTopicOrPartitionError,
)
from kafkalog.jobs.mirroring import Mirror
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.retention import delete_records
from kafkalog.streaming.admin.topics import alter, create, delete
from kafkalog.streaming.store.ends.tracker import LogEndTracker

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

T0 = TopicPartition("t", 0)


@pytest.fixture
def mirror(tmp_path: Path) -> Mirror:
    """Give a mirror of a topic with three records."""
    Writer(tmp_path / "source", topic="t").write(0, rows(["a", "b", "c"]))
    return mirror_of(tmp_path)


def mirror_of(folder: Path, **given: Any) -> Mirror:
    places = {"source": str(folder / "source"), "target": str(folder / "copy")}
    options = {"fetchOffset.retryIntervalMs": "10"}
    known = {**places, "topics": ("t",), "checkpoint": str(folder / "c"), "options": options}
    return Mirror(**(known | given))


def starts(folder: Path) -> dict[str, int]:
    watch = LogEndTracker([str(folder)], lambda _: True)
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


def test_records_of_which_nothing_tells_that_they_are_a_copy_are_refused(
    mirror: Mirror, tmp_path: Path
) -> None:
    Writer(tmp_path / "copy", topic="t").write(0, rows(["x"]))
    with pytest.raises(TargetMismatchError, match="t-0 holds offsets 0 to 0 in the copy"):
        mirror.prepare()


def test_a_copy_starts_no_later_than_it_ends(mirror: Mirror, tmp_path: Path) -> None:
    """Its query has still to read what lies below the start of the original, and tells the loss."""
    run_mirror(mirror)
    kafkalog.append(tmp_path / "source", "t", rows(["d", "e"]))
    delete_records([str(tmp_path / "source")], {T0: 5})
    mirror.finish()
    assert starts(tmp_path / "copy") == {"t-0": 3}


# Who was set back


class Pair:
    """A source and its copy, of one topic; ``c`` is the checkpoint unless another one is named."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source, self.copy, self.checkpoint = (folder / n for n in ("source", "copy", "c"))
        self.written = 0

    def write(self, count: int = 3, *, to: str = "source") -> None:
        """Append records, each in a batch of its own."""
        for _ in range(count):
            kafkalog.append(self.folder / to, "t", rows([f"v{self.written}"]))
            self.written += 1

    def recreate(self, count: int) -> None:
        delete([str(self.source)], "t")
        self.write(count)

    def mirror(self, **given: Any) -> None:
        run_mirror(mirror_of(self.folder, **given))

    def refused(self, *ways: str, says: str = "", **given: Any) -> None:
        """See that nothing is copied, and that the sentence has these ways on."""
        before = self.rows("copy")
        with pytest.raises(KafkaLogError) as caught:
            self.mirror(**given)
        text = str(caught.value)
        assert says in text
        assert [way for way in ("--from-target", "--rebuild", "another TO") if way in text] == [
            *ways
        ], text
        assert self.rows("copy") == before

    def rows(self, name: str) -> list[tuple[int, bytes]]:
        if not (self.folder / name).is_dir():
            return []
        with suppress(UnknownTopicOrPartitionError):
            found = kafkalog.read(self.folder / name, "t", columns=["offset", "value"]).read_all()
            return [(row["offset"], row["value"]) for row in found.to_pylist()]
        return []

    def saved(self, name: str) -> Callable[[], None]:
        """Keep a folder as it is, and give what puts it back."""
        kept = self.folder / f"{name}.{self.written}.kept"
        shutil.copytree(self.folder / name, kept)

        def put_back() -> None:
            shutil.rmtree(self.folder / name, ignore_errors=True)
            shutil.copytree(kept, self.folder / name)

        return put_back

    def check(self, copy: str = "copy") -> None:
        assert self.rows(copy) == self.rows("source")


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    """Give three records that are copied."""
    pair = Pair(tmp_path)
    pair.write()
    pair.mirror()
    pair.check()
    return pair


def ways_of(folder: Path) -> Callable[[Pair, str], str]:
    """Follow a way on literally; give where the copy is then."""

    def follow(pair: Pair, way: str) -> str:
        if way == "another TO":
            pair.mirror(target=str(folder / "another"), checkpoint=str(folder / "c2"))
            return "another"
        pair.mirror(**{"--from-target": {"from_target": True}, "--rebuild": {"rebuild": True}}[way])
        return "copy"

    return follow


REBUILD_OR_OTHER = ("--rebuild", "another TO")
ALL_WAYS = ("--from-target", *REBUILD_OR_OTHER)


@pytest.mark.parametrize(
    ("count", "checkpoint", "way"),
    [
        (2, "c", "--rebuild"),
        (7, "c", "another TO"),
        (7, "new", "--rebuild"),
        (3, "new", "--rebuild"),
    ],
)
def test_a_recreated_topic_is_not_mixed_with_the_one_before(
    pair: Pair, count: int, checkpoint: str, way: str
) -> None:
    pair.recreate(count)
    given = {"checkpoint": str(pair.folder / checkpoint)}
    pair.refused(*REBUILD_OR_OTHER, says="another topic of the same name", **given)
    pair.check(ways_of(pair.folder)(pair, way))
    pair.write()
    if way == "--rebuild":
        pair.mirror()
        pair.check()


@pytest.mark.parametrize("lost", ["all", "commits"])
def test_an_older_or_a_lost_checkpoint_continues_where_the_copy_ends(pair: Pair, lost: str) -> None:
    put_back = pair.saved("c")
    pair.write()
    pair.mirror()
    pair.write()
    put_back()
    pair.mirror()
    pair.check()
    pair.write()
    if lost == "all":
        shutil.rmtree(pair.checkpoint)
    else:
        max((pair.checkpoint / "commits").iterdir()).unlink()
    pair.mirror()
    pair.check()
    pair.mirror()
    pair.check()


def test_a_refused_mirror_deletes_nothing_though_its_first_batch_has_not_ended(pair: Pair) -> None:
    """No checkpoint says where that starts; and the topic that was recreated starts further up."""
    (pair.checkpoint / "commits" / "0").unlink()
    pair.recreate(6)
    delete_records([str(pair.source)], {T0: 5})
    pair.refused(*REBUILD_OR_OTHER, says="another topic of the same name")


@pytest.mark.parametrize("way", REBUILD_OR_OTHER)
def test_a_copy_that_was_created_to_begin_above_its_original_is_refused(
    pair: Pair, way: str
) -> None:
    put_back = pair.saved("source")
    delete_records([str(pair.source)], {T0: 3})
    target = {"target": str(pair.folder / "empty"), "checkpoint": str(pair.folder / "c3")}
    mirror_of(pair.folder, **target).prepare()
    put_back()
    with pytest.raises(TargetMismatchError, match="t-0 begins at offset 3 in the copy") as caught:
        pair.mirror(**target)
    assert way in str(caught.value)
    if way == "--rebuild":
        pair.mirror(**target, rebuild=True)
        pair.check("empty")
    else:
        pair.check(ways_of(pair.folder)(pair, way))


@pytest.mark.parametrize("option", ["startingTimestamp", "startingOffsetsByTimestamp"])
def test_a_lost_checkpoint_continues_where_the_copy_ends_whatever_start_is_given(
    pair: Pair, option: str
) -> None:
    pair.write()
    at = 2**42  # ms, in 2109
    later = {"startingTimestamp": f"{at}", "startingOffsetsByTimestamp": f'{{"t": {{"0": {at}}}}}'}
    shutil.rmtree(pair.checkpoint)
    pair.mirror(options={option: later[option], "startingOffsetsByTimestampStrategy": "latest"})
    pair.check()


def test_an_older_checkpoint_leaves_out_what_the_original_has_deleted_since(pair: Pair) -> None:
    """The copy holds it. What it does not hold, and the original has deleted, is a loss."""
    put_back = pair.saved("c")
    pair.write()
    pair.mirror()
    pair.write()
    delete_records([str(pair.source)], {T0: 5})
    put_back()
    with pytest.raises(DataLossError):
        pair.mirror()
    pair.mirror(from_target=True)
    pair.check()
    delete_records([str(pair.source)], {T0: 9})
    pair.write()
    delete_records([str(pair.source)], {T0: 10})
    with pytest.raises(DataLossError):
        pair.mirror(from_target=True)


@pytest.mark.parametrize(
    ("what", "way"),
    [
        ("back", "--from-target"),
        ("back", "another TO"),
        ("removed", "--from-target"),
        ("deleted", "--rebuild"),
        ("recreated", "--from-target"),
    ],
)
def test_a_copy_that_was_set_back_is_refused(pair: Pair, what: str, way: str) -> None:
    put_back = pair.saved("copy")
    pair.write()
    pair.mirror()
    pair.write()
    if what == "back":
        put_back()
    elif what == "removed":
        shutil.rmtree(pair.copy)
    else:
        delete([str(pair.copy)], "t")
    if what == "recreated":
        create([str(pair.copy)], "t")
    pair.refused(*ALL_WAYS, says="continues above the end of the copy")
    pair.check(ways_of(pair.folder)(pair, way))


def test_a_new_checkpoint_continues_a_copy_that_was_set_back(pair: Pair) -> None:
    put_back = pair.saved("copy")
    pair.write()
    pair.mirror()
    put_back()
    pair.mirror(checkpoint=str(pair.folder / "new"))
    pair.check()


@pytest.mark.parametrize("way", ALL_WAYS)
def test_a_copy_that_was_cut_is_refused(pair: Pair, way: str) -> None:
    pair.write()
    pair.mirror()
    cut(pair.copy, 3)
    pair.write()
    pair.refused(*ALL_WAYS, says="t-0 ends at offset 3 in the copy")
    pair.check(ways_of(pair.folder)(pair, way))


@pytest.mark.parametrize(("grown", "way"), [(1, "--rebuild"), (6, "another TO")])
def test_a_copy_that_was_cut_is_not_to_be_continued_where_its_original_is_another_one(
    pair: Pair, grown: int, way: str
) -> None:
    pair.write()
    pair.mirror()
    cut(pair.copy, 3)
    pair.recreate(grown)
    pair.refused(*REBUILD_OR_OTHER, says="another topic of the same name")
    pair.check(ways_of(pair.folder)(pair, way))


@pytest.mark.parametrize("way", REBUILD_OR_OTHER)
@pytest.mark.parametrize("which", ["copy", "source"])
def test_a_copy_of_more_partitions_than_its_original_is_refused(
    pair: Pair, which: str, way: str
) -> None:
    alter([str(pair.copy)], "t", partitions=2)
    if which == "source":  # has had as many
        alter([str(pair.source)], "t", partitions=2)
        pair.mirror()
        pair.recreate(4)
    for checkpoint in ("c", "new"):
        given = {"checkpoint": str(pair.folder / checkpoint)}
        pair.refused(*REBUILD_OR_OTHER, says="'t' has 2 partitions in TO and 1 in FROM", **given)
    copy = ways_of(pair.folder)(pair, way)
    pair.check(copy)
    pair.write()
    if way == "--rebuild":
        pair.mirror()
    else:
        pair.mirror(target=str(pair.folder / copy), checkpoint=str(pair.folder / "c2"))
    pair.check(copy)


@pytest.mark.parametrize("way", ["restore the folder", *REBUILD_OR_OTHER])
def test_a_copy_of_which_a_folder_is_missing_was_not_cut(pair: Pair, way: str) -> None:
    """To continue at offset 0 there is no way on: the sink makes no such partition again."""
    pair.write()
    pair.mirror()
    pair.write()
    away = (pair.copy / "t-0").rename(pair.folder / "away")
    with pytest.raises(TargetMismatchError, match="t-0 has no folder in the copy") as caught:
        pair.mirror()
    assert way in str(caught.value)
    assert "--from-target" not in str(caught.value)
    if way == "restore the folder":
        away.rename(pair.copy / "t-0")
        pair.mirror()
        pair.check()
    else:
        pair.check(ways_of(pair.folder)(pair, way))


@pytest.mark.parametrize("way", REBUILD_OR_OTHER)
def test_a_copy_that_somebody_else_has_written_to_is_refused(pair: Pair, way: str) -> None:
    pair.write(2, to="copy")
    pair.write(2)
    for checkpoint in ("c", "new"):
        given = {"checkpoint": str(pair.folder / checkpoint)}
        pair.refused(*REBUILD_OR_OTHER, says="t-0 ends at offset 5 in the copy", **given)
    pair.check(ways_of(pair.folder)(pair, way))


@pytest.mark.parametrize(
    ("grown", "way", "what"),
    [
        (0, "--rebuild", "cut"),
        (1, "--rebuild", "cut"),
        (4, "another TO", "cut"),
        (0, "another TO", "back"),
        (1, "--rebuild", "back"),
        (4, "--rebuild", "back"),
    ],
)
def test_an_original_that_was_cut_or_put_back_is_not_mixed(
    pair: Pair, grown: int, way: str, what: str
) -> None:
    put_back = pair.saved("source")
    pair.write(1)
    pair.mirror()
    if what == "back":
        put_back()
    else:
        cut(pair.source, 3)
    pair.write(grown)
    for checkpoint in ("c", "new"):
        pair.refused(
            *REBUILD_OR_OTHER, says="cut, or restored", checkpoint=str(pair.folder / checkpoint)
        )
    pair.check(ways_of(pair.folder)(pair, way))


def test_of_two_mirrors_at_once_one_copies(pair: Pair) -> None:
    """The other one finds the copy further than it was when its micro-batch was decided."""
    pair.write()

    def step(name: str) -> None:
        if name == "batch 0 decided":
            pair.mirror()

    with pytest.raises(CommitError, match="another job copies the same"):
        run_mirror(mirror_of(pair.folder, checkpoint=str(pair.folder / "c2")), step)
    pair.check()
    pair.write()
    pair.mirror(checkpoint=str(pair.folder / "c2"))
    pair.check()


@pytest.mark.parametrize("what", ["recreated", "cut", "back"])
def test_an_original_that_changes_while_it_is_read_is_not_copied(pair: Pair, what: str) -> None:
    put_back = pair.saved("source")
    pair.write()

    def step(name: str) -> None:
        if name != "batch 1 read":
            return
        if what == "recreated":
            pair.recreate(7)
        elif what == "back":
            put_back()
            pair.write(4)
        else:
            cut(pair.source, 4)
            pair.write(4)

    before = pair.rows("copy")
    with pytest.raises(CommitError, match="in the source while this batch was read"):
        run_mirror(mirror_of(pair.folder), step)
    assert pair.rows("copy") == before
    pair.refused(*REBUILD_OR_OTHER) if what == "recreated" else None
    pair.mirror(rebuild=True)
    pair.check()


def test_from_target_and_rebuild_are_not_given_together(mirror: Mirror, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="one of them"):
        mirror_of(tmp_path, from_target=True, rebuild=True).check()
