"""Clean up a log in an object store: old commits, and data objects that no commit names.

Old commits: raise the floor, then delete what is below it.

A floor F says that all commit numbers below F are void, whatever is created under them later. It is
an object of its own, never overwritten. It is created before the first commit is deleted, and:

- only once a checkpoint of commit F-1 or later was read, and could be decoded: whoever is overtaken
  opens the log there;
- not above a commit whose inline batches are still part of a partition;
- only for commits that are older than ``keep_ms`` by the store's clock, and never for the newest
  ones: whoever has credit has seen the end of the log less than ten minutes ago.

Data objects: commit that the log is *swept* below N, the newest commit that is older than the
delete delay. Names of data objects have the newest commit that their job knew: from then on nobody
may commit one whose number is below N. Then those are deleted that no partition has, by the state
as of that very commit. What was dropped later than commit N stays: somebody may still read it.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.bucket_state import (
    BucketCommit,
    floor_name,
    number_of_checkpoint,
    number_of_commit,
    number_of_data,
)
from kafkalog.errors import CommitError, LogDirectoryError
from kafkalog.files.objects import Creation, rest_after
from kafkalog.files.system import system
from kafkalog.streaming.objects.bucket_log import Proposal, readable_checkpoints

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kafkalog.checkpoints.bucket_state import BucketState
    from kafkalog.files.objects import ObjectEntry, Objects
    from kafkalog.streaming.objects.bucket_log import BucketLog

__all__ = ["clean_commits", "first_inline", "first_young", "sweep_data"]

_KEEP_MS: Final = 7 * 86_400_000
_DAY_NS: Final = 86_400 * 10**9
_KEEP_COMMITS: Final = 1000
_CHECKPOINTS_KEPT: Final = 2
_AT_A_TIME: Final = 1000


def clean_commits(
    log: BucketLog, *, keep_ms: int = _KEEP_MS, keep_commits: int = _KEEP_COMMITS
) -> int:
    """Delete old commits and checkpoints that nothing needs, and return the floor.

    Args:
        log: the log; it is followed to its end first.
        keep_ms: how old a commit must be, by the store's clock.
        keep_commits: how many of the newest commits stay whatever their age.

    Raises:
        LogDirectoryError: the store fails; what is done is sound, and is done again.
        CheckpointError: the log cannot be read.
    """
    objects, folder = log.objects, log.folder
    state = log.follow(trusting=False)
    highest = _highest_floor(objects, folder)
    target = min(
        first_young(log, keep_ms),
        state.number - keep_commits + 1,
        first_inline(state),
    )
    newest = islice(readable_checkpoints(objects, folder, []), _CHECKPOINTS_KEPT)
    kept = [each.number for each, _ in newest]
    target = min(target, kept[0] + 1 if kept else 0)
    if target > highest:
        _create_floor(objects, folder, target)
        highest = target
    names = [f"{folder}/commits/{entry.name}" for entry in _commits_below(log, highest)]
    if len(kept) == _CHECKPOINTS_KEPT:
        for entry in objects.list_after(f"{folder}/checkpoints"):
            number = number_of_checkpoint(entry.name)
            if number is not None and number < kept[-1]:
                names.append(f"{folder}/checkpoints/{entry.name}")
    for first in range(0, len(names), _AT_A_TIME):
        objects.delete(names[first : first + _AT_A_TIME])
    return highest


def sweep_data(log: BucketLog) -> tuple[int, int]:
    """Delete the data objects that no commit names, or that were dropped from all partitions.

    Args:
        log: the log; it is followed to its end first.

    Returns:
        how many were deleted, and their bytes.

    Raises:
        LogDirectoryError: the store fails; what is done is sound, and is done again.
        CommitError, UnknownOutcomeError: that the log is swept could not be committed, or is not
            known to be. Nothing was deleted.
        CheckpointError: the log cannot be read.
    """
    objects = log.objects
    log.follow(trusting=False)
    swept = first_young(log, log.state.delay_ms, log.state.swept) - 1
    floor = _highest_floor(objects, log.folder)

    def propose(state: BucketState) -> Proposal | None:
        if swept <= state.swept:
            return None
        change = BucketCommit(swept=swept, floor=floor)
        return Proposal(change, is_known_again=True)

    log.commit(propose)
    if log.is_overtaken():
        raise CommitError(
            f"{objects.root}: a floor has overtaken whoever sweeps. Nothing was deleted; try again"
        )
    gone = list(_unnamed(log))
    names = [entry.name for entry in gone]
    for first in range(0, len(names), _AT_A_TIME):
        objects.delete(names[first : first + _AT_A_TIME])
    return len(gone), sum(entry.size for entry in gone)


def _unnamed(log: BucketLog) -> Iterator[ObjectEntry]:
    """Yield what nobody may commit any more, and no partition has; names count from the root.

    That is data objects, and the files of segments.
    """
    state = log.state
    kept = {extent.object for extents in state.extents.values() for extent in extents}
    kept |= state.dropped.keys()
    kept |= state.listed.keys()
    for folder, place in ((f"{log.folder}/data", "data"), (f"logs/{state.log_id}", "logs")):
        for entry in log.objects.list_after(folder):
            name = f"{place}/{entry.name}"
            if place == "logs":  # without what tells the log from its indexes
                name = name.rpartition(".")[0]
            number = number_of_data(name)
            if number is not None and number < state.swept and name not in kept:
                yield entry._replace(name=f"{folder}/{entry.name}")


def _commits_below(log: BucketLog, floor: int) -> Iterator[ObjectEntry]:
    for entry in _commits_after(log, 0):
        number = number_of_commit(entry.name) or 0
        if number >= floor:
            break
        if number:
            yield entry


def _commits_after(log: BucketLog, number: int) -> Iterator[ObjectEntry]:
    """Yield what lies among commits, by pages: those of a week are many."""
    last = f"{number:020}"
    while listed := log.objects.list_after(f"{log.folder}/commits", last, limit=_AT_A_TIME):
        yield from listed
        if len(listed) < _AT_A_TIME:
            break
        last = listed[-1].name


def _highest_floor(objects: Objects, folder: str) -> int:
    """Return the highest floor; the commits that are there tell below which to look for none."""
    first = objects.list_after(f"{folder}/commits", limit=1)
    number = number_of_commit(first[0].name) if first else None
    listed = objects.list_after(f"{folder}/floors", f"{max(number or 0, 1) - 1:020}")
    return max((number_of_commit(entry.name) or 0 for entry in listed), default=0)


def first_young(log: BucketLog, keep_ms: int, after: int = 0) -> int:
    """Return the first commit above a number that is younger than ``keep_ms``, by the store."""
    objects, folder = log.objects, log.folder
    clock = f"{system.random_id().hex}"
    objects.put(f"{folder}/clock/{clock}", b"")
    listed = objects.list_after(f"{folder}/clock")
    now_ns = next((entry.modified_ns for entry in listed if entry.name == clock), 0)
    left = {entry.name for entry in listed if entry.modified_ns < now_ns - _DAY_NS}  # of the killed
    objects.delete([f"{folder}/clock/{name}" for name in {clock, *left}])
    for entry in _commits_after(log, after):
        number = number_of_commit(entry.name)
        if number is not None and entry.modified_ns > now_ns - keep_ms * 1_000_000:
            return number
    return log.state.number + 1


def first_inline(state: BucketState) -> int:
    """Return the first commit whose inline batches are part of a partition, or were lately."""
    names = {extent.object for extents in state.extents.values() for extent in extents}
    names |= state.dropped.keys()
    prefix = "commits/"
    inline = [number_of_commit(n.removeprefix(prefix)) for n in names if n.startswith(prefix)]
    return min((number for number in inline if number), default=state.number + 1)


def _create_floor(objects: Objects, folder: str, floor: int) -> None:
    """Create a floor, and return once it was answered as created, or seen in a listing."""
    name = f"{folder}/{floor_name(floor)}"
    before = floor_name(floor - 1).rpartition("/")[2]
    for tries in range(1, objects.tries + 1):
        if objects.create(name, b"") is Creation.CREATED:
            return
        if objects.list_after(f"{folder}/floors", before, limit=1):
            return  # this one, or a higher one
        rest_after(tries)
    raise LogDirectoryError(
        f"{objects.root}/{name} could not be created in {objects.tries} tries, so no commit was "
        "deleted: try again later"
    )
