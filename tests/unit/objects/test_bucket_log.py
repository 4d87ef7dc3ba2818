"""A log in an object store: what is committed is there once, whatever becomes of the requests."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.bucket_model import (
    MONTH_S,
    TOPIC,
    FaultError,
    LentLog,
    MemoryObjects,
    Scene,
    batch,
    change_rule,
    search,
    walk,
    without_rests,
)

from kafkalog.checkpoints import bucket_state
from kafkalog.checkpoints.bucket_state import BucketCommit, Extent, data_name
from kafkalog.checkpoints.commit_state import PartitionState, TopicState
from kafkalog.errors import (
    BatchIdentityError,
    CheckpointError,
    CommitError,
    LogDirectoryError,
    UnknownOutcomeError,
)
from kafkalog.files.objects import Creation, ObjectEntry
from kafkalog.files.system import system
from kafkalog.streaming.commit import bucket_commit
from kafkalog.streaming.commit.bucket_commit import forget_silent_writers
from kafkalog.streaming.objects import bucket_log, merging, sweeping
from kafkalog.streaming.objects.bucket_log import BucketLog, Proposal
from kafkalog.streaming.objects.sweeping import clean_commits, sweep_data

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kafkalog.checkpoints.bucket_state import BucketState


class Clocks:
    """Both clocks of this process, and the store's."""

    def __init__(self) -> None:
        self.boot_s = self.wall_s = 1e9

    def pass_time(self, seconds: float) -> None:
        self.boot_s += seconds
        self.wall_s += seconds


@pytest.fixture(autouse=True)
def clocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clocks]:
    without_rests(monkeypatch)
    clocks = Clocks()
    monkeypatch.setattr(system, "time_ns", lambda: int(clocks.wall_s * 1e9))
    monkeypatch.setattr(system, "boottime", lambda: clocks.boot_s)
    return clocks


@pytest.fixture
def objects() -> MemoryObjects:
    return MemoryObjects()


def end_of(state: BucketState) -> int:
    return state.topics[TOPIC].partitions[0].log_end


# Opening, following, committing


def test_there_is_no_log_until_somebody_makes_one(objects: MemoryObjects) -> None:
    assert BucketLog.open(objects) is None
    made = BucketLog.create(objects)
    found = BucketLog.create(objects)
    assert found.state.log_id == made.state.log_id


def test_a_log_is_made_though_the_first_requests_are_lost(objects: MemoryObjects) -> None:
    answers = [Creation.UNKNOWN, Creation.UNKNOWN]
    create = objects.create
    objects.create = lambda *given: answers.pop() if answers else create(*given)  # type: ignore[method-assign]
    assert BucketLog.create(objects).state.log_id
    objects.kept.clear()
    objects.create = lambda *_: Creation.UNKNOWN  # type: ignore[method-assign]
    with pytest.raises(LogDirectoryError, match="There is no log yet"):
        BucketLog.create(objects)


def test_a_batch_is_committed_once_however_often_it_comes(objects: MemoryObjects) -> None:
    log = BucketLog.create(objects)
    assert log.commit(batch("w", 0)) is not None
    assert log.commit(batch("w", 0)) is None
    again = BucketLog.create(objects)
    again.follow()
    assert again.commit(batch("w", 0)) is None
    assert again.commit(batch("w", 1)) is not None
    assert (end_of(log.follow()), log.state.number) == (2, 2)


def test_whoever_loses_a_race_commits_at_the_next_number(objects: MemoryObjects) -> None:
    first, second = BucketLog.create(objects), BucketLog.create(objects)
    first.commit(batch("w"))
    committed = second.commit(batch("x"))
    assert committed is not None
    assert committed.number == 2
    assert [extent.base_offset for extent in second.state.extents[TOPIC, 0]] == [0, 1]


def test_a_batch_is_refused_only_by_the_newest_state(objects: MemoryObjects) -> None:
    first, second = BucketLog.create(objects), BucketLog.create(objects)
    first.commit(batch("w", 0))

    def propose(state: BucketState) -> Proposal | None:
        if "w" not in state.writers:
            raise BatchIdentityError("batch 0 is missing")
        return batch("w", 1)(state)

    committed = second.commit(propose)
    assert committed is not None
    assert committed.number == 2


def test_inline_batches_lie_in_the_commit_where_its_extents_say(objects: MemoryObjects) -> None:
    log = BucketLog.create(objects)
    log.commit(batch("w", inline=b"b" * 61))
    (extent,) = log.state.extents[TOPIC, 0]
    name = f"{log.folder}/{extent.object}"
    assert objects.get_range(name, extent.position, extent.size) == b"b" * 61
    assert len(objects.kept[name][0]) == extent.position + extent.size


def test_requests_are_few(objects: MemoryObjects, clocks: Clocks) -> None:
    log = BucketLog.create(objects)
    log.follow()
    objects.requests.clear()
    for number in range(10):
        log.commit(batch("w", number, inline=b"b" * 61))
        clocks.pass_time(6)
    assert objects.requests == {"create": 10}
    for _ in range(5):
        objects.requests.clear()
        for _ in range(60):
            log.follow()
            clocks.pass_time(1)
        assert set(objects.requests) == {"get"}
        assert objects.requests["get"] <= 61


def test_whoever_slept_looks_at_floors_before_it_trusts(
    objects: MemoryObjects, clocks: Clocks
) -> None:
    log = BucketLog.create(objects)
    log.follow()
    for clock in ("boot_s", "wall_s"):  # a guest's clock may stand still
        setattr(clocks, clock, getattr(clocks, clock) + 601)
        objects.requests.clear()
        log.commit(batch("w", int(clocks.boot_s + clocks.wall_s)))
        assert objects.requests == {"create": 1, "list": 1, "get": 1}


def test_a_log_that_was_emptied_and_begun_again_is_refused(
    objects: MemoryObjects, clocks: Clocks
) -> None:
    log = BucketLog.create(objects)
    log.commit(batch("w"))
    clocks.pass_time(MONTH_S)
    objects.kept.clear()
    with pytest.raises(LogDirectoryError, match="holds no log now"):
        log.follow()
    BucketLog.create(objects)
    with pytest.raises(UnknownOutcomeError, match="somebody has emptied it"):
        log.commit(batch("w", 1))


def test_a_commit_of_another_history_stops_whoever_follows(objects: MemoryObjects) -> None:
    log, other = BucketLog.create(objects), BucketLog.create(objects)
    log.commit(batch("w"))
    name = f"{log.folder}/commits/{1:020}"
    first = objects.kept.pop(name)
    other.commit(batch("x"))
    other.commit(batch("x", 1))
    with pytest.raises(CheckpointError, match="does not follow commit 1"):
        log.follow()
    assert log.state.number == 1
    objects.kept[name] = first
    with pytest.raises(CheckpointError, match="does not follow commit 1"):
        BucketLog.create(objects).follow()


def test_the_outcome_is_unknown_when_no_request_is_answered(objects: MemoryObjects) -> None:
    log = BucketLog.create(objects)
    objects.create = lambda name, data: Creation.UNKNOWN  # type: ignore[method-assign]
    with pytest.raises(UnknownOutcomeError, match="commit 1 with the id"):
        log.commit(batch("w"))


# Checkpoints, floors, clean-up


def test_a_log_opens_at_its_newest_checkpoint(objects: MemoryObjects) -> None:
    log = BucketLog.create(objects)
    for number in range(250):
        log.commit(batch("w", number))
    checkpoints = [name for name in objects.kept if "/checkpoints/" in name]
    assert 1 <= len(checkpoints) <= 2
    objects.requests.clear()
    again = BucketLog.open(objects)
    assert again is not None
    again.follow()
    assert (again.state.number, again.state.topics) == (250, log.state.topics)
    assert again.state.extents == log.state.extents
    assert sum(objects.requests.values()) < 250 - 100 + 10


def test_opening_a_log_of_ten_thousand_commits_takes_few_requests(objects: MemoryObjects) -> None:
    log = BucketLog.create(objects)
    for number in range(10_000):
        log.commit(batch("w", number))
    del objects.kept[min(name for name in objects.kept if "/checkpoints/" in name)]
    objects.requests.clear()
    again = BucketLog.open(objects)
    assert again is not None
    assert again.state.number == 9_900
    assert again.follow().number == 10_000
    assert sum(objects.requests.values()) <= 110


def test_a_listing_is_not_followed_across_a_gap(objects: MemoryObjects) -> None:
    log = BucketLog.create(objects)
    for number in range(30):
        log.commit(batch("w", number))
    (late,) = [name for name in objects.kept if name.endswith(f"/commits/{20:020}")]
    again = BucketLog.open(objects)
    assert again is not None
    kept = objects.kept.pop(late)
    with pytest.raises(CheckpointError, match=f"{20:020} is gone, and later commits.* {21:020}"):
        again.follow()
    assert again.state.number == 0
    objects.kept[late] = kept
    assert again.follow().number == 30


def test_an_old_log_without_its_end_is_told_from_one_that_ends_there(
    objects: MemoryObjects, clocks: Clocks
) -> None:
    log = BucketLog.create(objects)
    for number in range(6):
        log.commit(batch("w", number))
    newest = BucketLog.open(objects)
    assert newest is not None
    for gone in (3, 4, 5):  # of a bucket that was set back in part
        del objects.kept[f"{log.folder}/commits/{gone:020}"]
        with pytest.raises(CheckpointError, match=f"{3:020} is gone, and later commits are there"):
            newest.follow()
    del objects.kept[f"{log.folder}/commits/{6:020}"]
    assert newest.follow().number == 2


def test_whoever_is_ahead_of_a_bucket_that_was_set_back_says_so(
    objects: MemoryObjects, clocks: Clocks
) -> None:
    log, other = BucketLog.create(objects), BucketLog.create(objects)
    log.commit(batch("w"))
    before = dict(objects.kept)
    log.commit(batch("w", 1))
    other.follow()
    objects.kept = before
    for one, act in ((other, other.follow), (log, lambda: log.commit(batch("w", 1)))):
        clocks.pass_time(62)
        act()  # the log is still the same one
        clocks.pass_time(62)
        for _ in range(3):
            with pytest.raises(CheckpointError, match=r"is gone, and was read.* was set back"):
                act()
        assert one.state.number == 2


def test_another_log_in_the_same_place_is_noticed_by_whoever_follows_and_commits(
    objects: MemoryObjects, clocks: Clocks
) -> None:
    tail, idle, repeats = (BucketLog.create(objects) for _ in range(3))
    repeats.commit(batch("w"))
    tail.follow()
    objects.kept.clear()
    other = BucketLog.create(objects)
    for log in (tail, idle):
        clocks.pass_time(62)
        for _ in range(3):  # again and again, until it is opened anew
            with pytest.raises(LogDirectoryError, match=f"holds the log {other.state.log_id} now"):
                log.follow()
    with pytest.raises(LogDirectoryError, match="somebody has emptied it"):
        repeats.commit(batch("w"))
    with pytest.raises(LogDirectoryError, match="somebody has emptied it"):
        tail.commit(batch("w", 1))
    assert other.follow().number == 0


def test_a_checkpoint_that_is_damaged_is_passed_over(objects: MemoryObjects) -> None:
    log = BucketLog.create(objects)
    log.commit(batch("w"))
    log.checkpoint()
    log.commit(batch("w", 1))
    log.checkpoint()
    newest = min(name for name in objects.kept if "/checkpoints/" in name)
    objects.kept[newest] = (objects.kept[newest][0][:-5], 0)
    again = BucketLog.open(objects)
    assert again is not None
    assert again.state.number == 1
    assert again.follow().number == 2


def aged(objects: MemoryObjects, clocks: Clocks, commits: int) -> BucketLog:
    """Return a log with commits that are a month old, and a checkpoint of the last one."""
    log = BucketLog.create(objects)
    for number in range(commits):
        log.commit(batch("w", number))
    log.checkpoint()
    clocks.pass_time(MONTH_S)
    return log


def commits_kept(objects: MemoryObjects) -> list[int]:
    return sorted(int(name[-20:]) for name in objects.kept if "/commits/" in name)


def test_old_commits_are_cleaned_up_below_a_floor(objects: MemoryObjects, clocks: Clocks) -> None:
    log = aged(objects, clocks, 5)
    assert clean_commits(log, keep_commits=2) == 4
    assert commits_kept(objects) == [4, 5]
    again = BucketLog.open(objects)
    assert again is not None
    assert end_of(again.follow()) == 5
    assert again.commit(batch("w", 5)) is not None
    assert clean_commits(log, keep_commits=2) == 5


def test_young_and_new_commits_stay(objects: MemoryObjects, clocks: Clocks) -> None:
    log = aged(objects, clocks, 3)
    assert clean_commits(log) == 0
    log.commit(batch("w", 3))
    log.checkpoint()
    assert clean_commits(log, keep_commits=0) == 4
    assert commits_kept(objects) == [4]


def test_no_floor_rises_above_what_a_checkpoint_tells(
    objects: MemoryObjects, clocks: Clocks
) -> None:
    log = aged(objects, clocks, 3)
    log.commit(batch("w", 3))
    log.commit(batch("w", 4))
    clocks.pass_time(MONTH_S)
    assert clean_commits(log, keep_commits=0) == 4
    for name in [name for name in objects.kept if "/checkpoints/" in name]:
        objects.kept[name] = (b"damaged", 0)
    assert clean_commits(log, keep_commits=0) == 4
    with pytest.raises(CheckpointError, match="cannot be opened"):
        BucketLog.open(objects)


def test_no_floor_rises_above_inline_batches(objects: MemoryObjects, clocks: Clocks) -> None:
    log = aged(objects, clocks, 2)
    log.commit(batch("w", 2, inline=b"b" * 61))
    log.commit(batch("w", 3))
    log.checkpoint()
    clocks.pass_time(MONTH_S)
    assert clean_commits(log, keep_commits=0) == 3
    assert commits_kept(objects) == [3, 4]


def odd_floor(chance: Random, number: int) -> str:
    """Return a name that may lie among floors, by a slip or by malice."""
    kinds = [
        f"{chance.randrange(number + 2):020}",
        f"{number + chance.randrange(1, 9):020}",
        f"{10**20 - 1 - chance.randrange(9)}",
        f"{chance.randrange(number + 2)}",
        f"{number:020}.tmp",
        f"{number:020}/{number:020}",
        "".join(chance.choices("0129 -+_az\u0661\u00e9", k=chance.randrange(1, 22))),
    ]
    return chance.choice(kinds)


@pytest.mark.parametrize("seed", range(60))
def test_whatever_lies_among_floors_no_batch_is_lost_or_doubled(
    objects: MemoryObjects, clocks: Clocks, seed: int
) -> None:
    chance, count = Random(seed), 6
    log = aged(objects, clocks, count)
    if chance.random() < 0.5:
        clean_commits(log, keep_commits=2)
    for _ in range(chance.randrange(1, 4)):
        name = odd_floor(chance, count)
        objects.kept[f"{log.folder}/floors/{name}"] = (chance.randbytes(3), clocks.wall_s * 1e9)
    kept = {name for name in objects.kept if "/commits/" in name}
    for known in (None, log):  # who opens it, and who knows it for a month
        with suppress(CheckpointError):  # it cannot be opened any more, and says so
            one = known or BucketLog.open(objects)
            assert one is not None
            one.follow()
            assert end_of(one.state) >= count
            assert one.commit(batch("w", count - 1)) is None
            one.commit(batch("w", count))
            assert end_of(one.state) == count + 1
    assert kept <= {name for name in objects.kept if "/commits/" in name}


def test_no_commit_is_deleted_before_the_floor_is_there(
    objects: MemoryObjects, clocks: Clocks
) -> None:
    log = aged(objects, clocks, 3)
    objects.create = lambda name, data: Creation.UNKNOWN  # type: ignore[method-assign]
    with pytest.raises(LogDirectoryError, match="no commit was deleted"):
        clean_commits(log, keep_commits=1)
    assert commits_kept(objects) == [1, 2, 3]


def put_data(log: BucketLog, digits: int, unique: int) -> str:
    name = data_name(digits, f"{unique:032x}")
    log.objects.put(f"{log.folder}/{name}", b"b" * 61)
    return name


def data_kept(objects: MemoryObjects) -> list[str]:
    return sorted(name[name.index("data/") :] for name in objects.kept if "/data/" in name)


def test_data_that_no_commit_names_is_swept_once_it_is_old(
    objects: MemoryObjects, clocks: Clocks
) -> None:
    log = aged(objects, clocks, 5)
    named = [each.object for each in log.state.extents[TOPIC, 0]]
    for name in named:
        objects.put(f"{log.folder}/{name}", b"b" * 61)
    orphan, young = put_data(log, 3, 1), put_data(log, 5, 2)
    assert sweep_data(log) == (1, 61)
    assert data_kept(objects) == sorted([*named, young])
    assert orphan not in data_kept(objects)
    assert (log.state.number, log.state.swept) == (6, 5)
    log.commit(batch("w", 5))
    assert sweep_data(log) == (0, 0)
    assert (log.state.number, log.state.swept) == (7, 5)  # nothing has grown older
    clocks.pass_time(86_401)
    assert sweep_data(log) == (1, 61)


def test_what_was_dropped_lately_is_not_swept(objects: MemoryObjects, clocks: Clocks) -> None:
    log = aged(objects, clocks, 3)
    for each in log.state.extents[TOPIC, 0]:
        objects.put(f"{log.folder}/{each.object}", b"b" * 61)
    dropped = BucketCommit(number=0, commit_id="", previous="", log_id="", deleted=(TOPIC,))
    log.commit(lambda _: Proposal(dropped, is_known_again=False))
    assert sweep_data(log) == (0, 0)
    assert len(data_kept(objects)) == 3
    clocks.pass_time(86_401)
    assert clean_commits(log, keep_commits=0, keep_ms=86_400_000) == 4
    assert sweep_data(log) == (3, 183)
    assert log.state.dropped == {}


def test_what_a_killed_sweeper_has_left_to_know_the_time_goes(
    objects: MemoryObjects, clocks: Clocks
) -> None:
    log = aged(objects, clocks, 2)
    objects.put(f"{log.folder}/clock/killed", b"")
    sweep_data(log)
    assert any("/clock/" in name for name in objects.kept)  # or it is asleep
    clocks.pass_time(86_401)
    sweep_data(log)
    assert not any("/clock/" in name for name in objects.kept)


def test_who_cleans_up_lists_no_more_than_what_is_old(
    objects: MemoryObjects, clocks: Clocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "_AT_A_TIME", 10)
    log = BucketLog.create(objects)
    list_after, listed = objects.list_after, list[ObjectEntry]()

    def counted(folder: str, after: str = "", limit: int = 1 << 62) -> list[ObjectEntry]:
        found = list_after(folder, after, limit)
        listed.extend(found)
        return found

    for hour in range(24 * 12):
        log.commit(batch("w", hour))
        clocks.pass_time(3600)
        log.checkpoint()
        del listed[:]
        objects.list_after = counted  # type: ignore[method-assign]
        sweep_data(log)
        clean_commits(log, keep_commits=1)
        objects.list_after = list_after  # type: ignore[method-assign]
    assert log.state.number > 500  # a sweep commits, too
    assert sum("/floors/" in name for name in objects.kept) > 100
    assert len(commits_kept(objects)) > 300
    assert len(listed) < 60


def test_nothing_is_swept_by_whoever_was_overtaken(objects: MemoryObjects, clocks: Clocks) -> None:
    log = aged(objects, clocks, 3)
    put_data(log, 1, 1)
    create = objects.create

    def create_and_raise_a_floor(name: str, data: bytes) -> Creation:
        objects.put(f"{log.folder}/floors/{9:020}", b"")
        return create(name, data)

    log.follow()
    objects.create = create_and_raise_a_floor  # type: ignore[method-assign]
    with pytest.raises(CommitError, match="Nothing was deleted"):
        sweep_data(log)
    assert len(data_kept(objects)) == 1


def test_whoever_slept_across_a_clean_up_opens_anew(objects: MemoryObjects, clocks: Clocks) -> None:
    asleep, unnamed = BucketLog.create(objects), BucketLog.create(objects)
    log = aged(objects, clocks, 5)
    clean_commits(log, keep_commits=1)
    assert asleep.follow().number == 5
    assert end_of(asleep.state) == 5
    with pytest.raises(UnknownOutcomeError):
        unnamed.commit(batch("A", named=False))  # commit 1 was free again
    assert end_of(log.follow()) == 5


def test_a_cleaner_that_was_stopped_lowers_no_floor(objects: MemoryObjects, clocks: Clocks) -> None:
    asleep = BucketLog.create(objects)
    log = aged(objects, clocks, 2)
    create = objects.create

    def stopped(name: str, data: bytes) -> Creation:
        """Before the floor 2 is raised, somebody else raises it to 4."""
        objects.create = create  # type: ignore[method-assign]
        for number in (2, 3):
            log.commit(batch("w", number))
        log.checkpoint()
        clocks.pass_time(MONTH_S)
        assert clean_commits(BucketLog.create(objects), keep_commits=1) == 4
        return create(name, data)

    cleaner, between = BucketLog.create(objects), BucketLog.create(objects)
    cleaner.follow()
    between.follow()
    objects.create = stopped  # type: ignore[method-assign]
    assert clean_commits(cleaner, keep_commits=1) == 2
    assert commits_kept(objects) == [4]
    with pytest.raises(UnknownOutcomeError):
        asleep.commit(batch("A", named=False))  # commit 1 was free again
    with pytest.raises(UnknownOutcomeError):
        between.commit(batch("A", named=False))  # and so was commit 3
    again = BucketLog.open(objects)
    assert again is not None
    assert again.follow().number == 4


def test_a_writer_is_remembered_for_thirty_days(objects: MemoryObjects, clocks: Clocks) -> None:
    log = BucketLog.create(objects)
    log.commit(batch("w"))
    for _ in range(4):  # by noon and by midnight of the last day, too
        clocks.pass_time(7.4 * 86_400)
        forget_silent_writers(LentLog(log))  # type: ignore[arg-type]
        assert log.commit(batch("w")) is None
    clocks.pass_time(MONTH_S)
    assert forget_silent_writers(LentLog(log)) == ["w"]  # type: ignore[arg-type]


# The sweep


def staged(log: BucketLog, letter: str) -> str:
    """Put a data object as a task does, and return its name."""
    name = f"data/{log.follow().number:020}-{ord(letter):032x}"
    log.objects.put(f"{log.folder}/{name}", b"b" * 61)
    return name


def test_what_was_swept_is_so_for_good(objects: MemoryObjects, clocks: Clocks) -> None:
    log, slow = aged(objects, clocks, 5), BucketLog.create(objects)
    old = staged(log, "x")
    log.commit(batch("w", 5))
    for one, swept in ((log, 6), (slow, 2)):  # whoever began first commits last
        change = BucketCommit(swept=swept)
        one.commit(lambda _, change=change: Proposal(change, is_known_again=True))
    with pytest.raises(CommitError, match="no commit names"):
        log.commit(batch("x", staged=old))
    assert log.state.swept == 6


def test_who_was_stopped_between_staging_and_commit_stages_anew(
    objects: MemoryObjects, clocks: Clocks
) -> None:
    asleep, log = BucketLog.create(objects), BucketLog.create(objects)
    old = staged(asleep, "w")
    log.commit(batch("x"))
    clocks.pass_time(MONTH_S)
    assert sweep_data(log) == (1, 61)
    for _ in range(2):
        with pytest.raises(CommitError, match=r"no commit names: 24 hours.*Run the batch"):
            asleep.commit(batch("w", staged=old))
    assert log.follow().number == 2
    assert asleep.commit(batch("w", staged=staged(asleep, "w"))) is not None
    assert end_of(asleep.state) == 2


# All that may happen


SCENES = {
    "two writers": Scene("wx", lost=1, late=1, switches=2),
    "killed": Scene("wx", lost=1, kills=1, switches=1),
    "without a name": Scene("Ax", lost=1, late=1, switches=1),
    "cleaned up": Scene("wxy", lost=1, months=2, switches=2, cleaner=True),
    "cleaned up, late": Scene("wx", late=1, months=1, switches=2, cleaner=True, commits_before=1),
    "behind old commits": Scene("A", months=1, switches=2, cleaner=True, commits_since=3),
    "cleaned up without a name": Scene("Axy", lost=1, months=2, switches=2, cleaner=True),
    "swept": Scene("wx", months=1, switches=1, sweepers=1, staged=True),
    "swept late": Scene(
        "Ax", late=1, months=1, switches=2, sweepers=1, staged=True, commits_before=2
    ),
    "swept twice": Scene("w", months=2, switches=3, sweepers=2, staged=True, commits_before=2),
    "inline": Scene(
        "wx", lost=1, months=2, switches=2, cleaner=True, inline=True, commits_before=1
    ),
    "one writer of several": Scene("AB", lost=1, late=2, one_process=True),
    "followed": Scene("xy", months=2, switches=2, cleaner=True, follower=True),
    "merged": Scene(
        "wx", lost=1, late=1, kills=1, switches=2, mergers=2, staged=True, commits_before=2
    ),
    "merged and trimmed": Scene(
        "w", lost=1, switches=3, mergers=1, trims=True, staged=True, commits_before=3
    ),
    "merged and swept": Scene(
        "w", months=2, switches=3, mergers=1, sweepers=1, staged=True, commits_before=2
    ),
    "merged while it is read": Scene(
        "", months=1, switches=4, mergers=1, sweepers=1, reader=True, staged=True, commits_before=2
    ),
    "silent for long": Scene("w", lost=1, kills=1, months=2, days=14, switches=2, expirers=1),
    "sealed and swept": Scene(
        "w",
        months=2,
        switches=3,
        mergers=1,
        segment_bytes=130,
        sweepers=1,
        staged=True,
        commits_before=4,
    ),
    "sealed": Scene(
        "w",
        months=1,
        kills=1,
        switches=3,
        mergers=2,
        segment_bytes=130,
        sweepers=1,
        trims=True,
        staged=True,
        commits_before=4,
    ),
}


LARGE = "KAFKALOG_MODEL_LARGE" in os.environ
ALL = 99
THINGS = {
    "two writers": ALL,
    "killed": ALL,
    "without a name": ALL,
    "one writer of several": ALL,
    "sealed": 0,  # in any order of the six that act
}
"""How many things happen in a run of a scene, where that is not one, or two within large bounds."""
MOST_RUNS = 40_000
"""Within large bounds, of one scene; what happens last is varied first."""


AT_NIGHT = {"cleaned up without a name"}
"""By day its parts, each alone: "cleaned up" and "without a name"."""


@pytest.mark.parametrize(
    "name", [pytest.param(s, marks=[pytest.mark.nightly] * (s in AT_NIGHT)) for s in SCENES]
)
def test_whatever_happens_each_batch_is_there_once(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    things = max(THINGS.get(name, 1), 2 * LARGE)
    runs = search(replace(SCENES[name], things=things), monkeypatch, MOST_RUNS)
    assert LARGE or runs < MOST_RUNS
    print(f"{name}: {runs} runs")  # noqa: T201
    walk(SCENES[name], monkeypatch, 5_000 if LARGE else 120)


# Rule: module, text, changed text, scene; and the seed with which it is found soonest.
RULES: dict[str, tuple[Any, ...]] = {
    "an answer that is lost is read back": (
        bucket_log,
        "own if answer is Creation.CREATED else",
        "own if answer is not Creation.TAKEN else",
        "two writers",
    ),
    "absent is not failed": (
        bucket_log,
        "                rest_after(tries)\n            except (LogDirectoryError, Interrupted)",
        "                raise CommitError('absent')\n            except LogDirectoryError",
        "without a name",
    ),
    "absent is no lost race": (
        bucket_log,
        "                rest_after(tries)\n            except (LogDirectoryError, Interrupted)",
        "                return None\n            except LogDirectoryError",
        "without a name",
    ),
    "a floor voids a commit of one's own": (
        bucket_log,
        "        if not self.has_credit():\n            self._check_floors(commit.number)\n",
        "",
        "cleaned up without a name",
    ),
    "a floor voids what is followed": (
        bucket_log,
        "            self._check_floors(first)\n            self._check_end(first + len(read))\n",
        "            pass\n",
        "followed",
    ),
    "overtaken is not failed": (
        bucket_log,
        'raise self._unknown(body, "it was cleaned up, or never counted") from None',
        'raise CommitError("overtaken") from None',
        "cleaned up without a name",
        2,
    ),
    "what is overtaken is judged anew": (
        bucket_log,
        "            self._catch_up(body)\n            return None\n",
        "            return body\n",
        "cleaned up",
        5,
    ),
    "no floor without a checkpoint": (
        sweeping,
        "    target = min(target, kept[0] + 1 if kept else 0)\n",
        "",
        "cleaned up, late",
        9,
    ),
    "a commit that was there gives no credit": (
        bucket_log,
        "        if tail_seen is not None:\n            self._tail_seen = tail_seen\n",
        "        self._tail_seen = _Moment.now()\n",
        "behind old commits",
        3,
    ),
    "an id belongs to one body": (
        bucket_log,
        "commit_id=system.random_id().hex,",
        "commit_id=self.__dict__.setdefault('one_id', system.random_id().hex),",
        "one writer of several",
        8,
    ),
    "no floor above inline batches": (
        sweeping,
        "        first_inline(state),\n",
        "",
        "inline",
    ),
    "what may be swept is not committed": (
        bucket_log,
        "        swept = proposal and self.state.find_swept(proposal.commit)\n",
        "        swept, self.state.swept = None, 0\n",
        "swept",
        14,
    ),
    "what was merged is as it was": (
        merging,
        "                if replacement(state, key, old):\n",
        "                if key[0] in state.topics:\n",
        "merged and trimmed",
    ),
    "a merge that took too long is refused": (
        bucket_state,
        "            named |= {extent.object for extent in some} - known\n",
        "",
        "merged and swept",
        14,
    ),
    "what a merge drops is kept for a while": (
        bucket_state,
        "        self.dropped.update(dict.fromkeys(gone, self.number))\n",
        "",
        "merged while it is read",
        10,
    ),
    "what was dropped lately is not swept": (
        sweeping,
        "    kept |= state.dropped.keys()\n    kept |= state.listed",
        "    kept |= state.listed",
        "merged while it is read",
        10,
    ),
    "names of segments tell when they were begun": (
        sweeping,
        "number < state.swept and name",
        "(place == 'logs' or number < state.swept) and name",
        "sealed and swept",
    ),
    "no clean-up without a floor": (
        sweeping,
        "        _create_floor(objects, folder, target)\n",
        "",
        "cleaned up",
    ),
}


if LARGE:
    RULES["floors are looked at after the answer"] = (
        bucket_log,
        "                answer = self.objects.create(name, data)\n",
        """
                if not self.has_credit():
                    self._check_floors(body.number)
                    self._tail_seen = _Moment.now()
                answer = self.objects.create(name, data)
""",
        "cleaned up without a name",
    )


@pytest.mark.parametrize("rule", RULES)
def test_no_rule_can_be_left_out(monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    module, old, new, scene, *seed = RULES[rule]
    change_rule(monkeypatch, module, old, new)
    if LARGE:
        with pytest.raises(FaultError):
            search(replace(SCENES[scene], things=2), monkeypatch, MOST_RUNS)
    with pytest.raises(FaultError):
        walk(SCENES[scene], monkeypatch, 3000, *seed)


# Rules that are found by what one test has happen: module, text, changed text.
RULES_BY_TEST: dict[str, tuple[Any, ...]] = {
    "the sweeper looks at floors": (
        sweeping,
        "    if log.is_overtaken():\n",
        "    if False:\n",
        test_nothing_is_swept_by_whoever_was_overtaken,
    ),
    "a floor is never overwritten": (
        sweeping,
        '            return\n        if objects.list_after(f"{folder}/floors", before',
        """
            floors = objects.list_after(f"{folder}/floors")
            objects.delete([n for e in floors if (n := f"{folder}/floors/{e.name}") != name])
            return
        if objects.list_after(f"{folder}/floors", before""",
        test_a_cleaner_that_was_stopped_lowers_no_floor,
    ),
    "no writer is forgotten for thirty days": (
        bucket_commit,
        "if writers[name].time_ms < young_ms]\n",
        "]\n",
        test_a_writer_is_remembered_for_thirty_days,
    ),
    "what was swept never falls": (
        bucket_state,
        "        self.swept = max(self.swept, commit.swept)\n",
        "        self.swept = commit.swept or self.swept\n",
        test_what_was_swept_is_so_for_good,
    ),
}


@pytest.mark.parametrize("rule", RULES_BY_TEST)
def test_no_rule_can_be_left_out_of_a_clean_up(
    objects: MemoryObjects, clocks: Clocks, monkeypatch: pytest.MonkeyPatch, rule: str
) -> None:
    module, old, new, test = RULES_BY_TEST[rule]
    change_rule(monkeypatch, module, old, new)
    changed = sys.modules[module.__name__]
    for name in ("clean_commits", "sweep_data", "forget_silent_writers"):
        if hasattr(changed, name):
            monkeypatch.setitem(test.__globals__, name, getattr(changed, name))
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        test(objects, clocks)


def test_a_batch_whose_outcome_is_unknown_keeps_its_objects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene("A", late=2, staged=True)
    walk(scene, monkeypatch, 60)
    with pytest.raises(FaultError, match="is gone"):
        walk(replace(scene, abort_deletes=True), monkeypatch, 3000)


def large(state: BucketState) -> Proposal:
    """Propose so many extents that a commit does not say them itself."""
    known = state.topics.get("large")
    start = 0 if known is None else known.partitions[0].log_end
    count, name = 60_000, data_name(state.number, "f" * 32)
    some = [Extent(name, 61 * n, 61, start + n, 1, n, 0) for n in range(count)]
    ends = PartitionState(0, start + count, start + count, 0)
    change = BucketCommit(
        topics={"large": TopicState("large", partitions={0: ends})}, extents={("large", 0): some}
    )
    return Proposal(change, is_known_again=False)


def test_extents_of_a_large_commit_stand_in_an_object_of_their_own(
    objects: MemoryObjects, clocks: Clocks
) -> None:
    log, other = BucketLog.create(objects), BucketLog.create(objects)
    committed = log.commit(large)
    assert committed is not None
    assert len(objects.get(f"{log.folder}/commits/{1:020}") or b"") < 1000
    assert log.state.listed == {committed.listed: 1}
    assert other.follow() == log.state
    log.checkpoint()
    log.commit(batch("w"))
    clocks.pass_time(MONTH_S)
    sweep_data(log)
    assert committed.listed in data_kept(objects)  # whoever opens the log may need it
    again = BucketLog.open(objects)
    assert again is not None
    assert again.follow() == log.state
    log.checkpoint()
    assert clean_commits(log, keep_commits=1) == 3
    log.commit(batch("w", 1))
    clocks.pass_time(MONTH_S)
    assert sweep_data(log)[0] == 1
    assert committed.listed not in data_kept(objects)
    assert log.state.listed == {}


def test_a_large_commit_without_its_extents_is_a_fault(objects: MemoryObjects) -> None:
    log, other = BucketLog.create(objects), BucketLog.create(objects)
    committed = log.commit(large)
    assert committed is not None
    objects.delete([f"{log.folder}/{committed.listed}"])
    with pytest.raises(CheckpointError, match="which has the extents of a commit, is gone"):
        other.follow()
