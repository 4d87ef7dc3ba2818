"""Clean up old commits of a log in an object store: raise the floor, then delete what is below it.

A floor F says that all commit numbers below F are void, whatever is created under them later. It is
an object of its own, never overwritten. It is created before the first commit is deleted, and:

- only once a checkpoint of commit F-1 or later was read, and could be decoded: whoever is overtaken
  opens the log there;
- not above a commit whose inline batches are still part of a partition;
- only for commits that are older than ``keep_ms`` by the store's clock, and never for the newest
  ones: whoever has credit has seen the end of the log less than ten minutes ago.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.bucket_state import (
    floor_name,
    number_of_checkpoint,
    number_of_commit,
)
from kafkalog.errors import LogDirectoryError
from kafkalog.files.objects import Creation, rest_after
from kafkalog.files.system import system
from kafkalog.streaming.objects.bucket_log import readable_checkpoints

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kafkalog.checkpoints.bucket_state import BucketState
    from kafkalog.files.objects import ObjectEntry, Objects
    from kafkalog.streaming.objects.bucket_log import BucketLog

__all__ = ["clean_commits"]

_KEEP_MS: Final = 7 * 86_400_000
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
        _first_young(objects, folder, state.number, keep_ms),
        state.number - keep_commits + 1,
        _first_inline(state),
    )
    newest = islice(readable_checkpoints(objects, folder, []), _CHECKPOINTS_KEPT)
    kept = [each.number for each, _ in newest]
    target = min(target, kept[0] + 1 if kept else 0)
    if target > highest:
        _create_floor(objects, folder, target)
        highest = target
    below = objects.list_after(f"{folder}/commits")
    names = [f"{folder}/commits/{entry.name}" for entry in _below(below, highest)]
    if len(kept) == _CHECKPOINTS_KEPT:
        for entry in objects.list_after(f"{folder}/checkpoints"):
            number = number_of_checkpoint(entry.name)
            if number is not None and number < kept[-1]:
                names.append(f"{folder}/checkpoints/{entry.name}")
    for first in range(0, len(names), _AT_A_TIME):
        objects.delete(names[first : first + _AT_A_TIME])
    return highest


def _below(entries: Iterable[ObjectEntry], floor: int) -> list[ObjectEntry]:
    return [e for e in entries if (number := number_of_commit(e.name)) and number < floor]


def _highest_floor(objects: Objects, folder: str) -> int:
    listed = objects.list_after(f"{folder}/floors")
    return max((number_of_commit(entry.name) or 0 for entry in listed), default=0)


def _first_young(objects: Objects, folder: str, newest: int, keep_ms: int) -> int:
    """Return the first commit that is younger than ``keep_ms``, by the store's clock."""
    clock = f"{system.random_id().hex}"
    objects.put(f"{folder}/clock/{clock}", b"")
    listed = objects.list_after(f"{folder}/clock")
    objects.delete([f"{folder}/clock/{clock}"])
    now_ns = next((entry.modified_ns for entry in listed if entry.name == clock), 0)
    for entry in objects.list_after(f"{folder}/commits"):
        number = number_of_commit(entry.name)
        if number is not None and entry.modified_ns > now_ns - keep_ms * 1_000_000:
            return number
    return newest + 1


def _first_inline(state: BucketState) -> int:
    """Return the first commit whose inline batches are part of a partition."""
    names = (extent.object for extents in state.extents.values() for extent in extents)
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
        system.sleep(rest_after(tries))
    raise LogDirectoryError(
        f"{objects.root}/{name} could not be created in {objects.tries} tries, so no commit was "
        "deleted: try again later"
    )
