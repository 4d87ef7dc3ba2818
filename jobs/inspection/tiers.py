"""What ``tiers`` shows: where segments of tiered topics lie, orphans, and what is missing."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from kafkalog.errors import KafkaLogError, OptionError
from kafkalog.files.storage import TieredRoot
from kafkalog.jobs.inspection.log_dirs import TieredPaths, log_dirs_of
from kafkalog.jobs.inspection.topics import ends_of
from kafkalog.model import ALL_TOPICS, NOTHING, Intervals, TopicSelection
from kafkalog.streaming.log.segments import base_offsets_of, segment_names
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.tiers.tiered_store import TieredPath, tier_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.tiers.remote_segments import Piece
    from kafkalog.streaming.tiers.tiered_store import Tier

__all__ = ["list_tiers", "tiered_paths"]

Row = dict[str, Any]


def tiered_paths(
    paths: Sequence[str], remote: str | None, settings: Mapping[str, str]
) -> TieredPaths:
    """Return log directories with the tier below them; without ``remote``, the path is the tier.

    ``settings`` are options of the source.

    Raises:
        OptionError: a setting that the source does not have, or several paths that are no tier.
    """
    given = dict(settings)
    if remote is None and len(paths) > 1:
        raise OptionError(
            f"{', '.join(paths)}: give the tier by --remote; without it, the one path is the tier"
        )
    given["path"], given["remote.path"] = ",".join(paths), remote or paths[0]
    return TieredPaths(ReadOptions.parse({**given, "subscribePattern": ".*"}).paths, given)


def list_tiers(places: Sequence[str], topics: TopicSelection = ALL_TOPICS) -> list[Row]:
    """Return a row for each partition that has something in a tier, in order of their names.

    ``onlyRemote``, ``both`` and ``onlyLocal`` are the ranges of offsets that the tier has, the log
    directory, or both of them; None where the end of a segment or of the log is not known.
    ``orphans`` are objects in its folder that are of no finished segment; ``gaps`` are offsets that
    neither the tier nor the log directory has, so far as that is known.

    Raises:
        LogDirectoryError: the store fails, or nothing tells how what lies there is named.
    """
    (last,) = (each for each in places if isinstance(each, TieredRoot) and each.log_dir is None)
    assert isinstance(last, TieredRoot)  # noqa: S101 - it was chosen so
    tier = tier_of(last)
    found = log_dirs_of(places).partitions()
    rows, ends = [], _Ends(places, topics)
    for key, where in found.items():
        if key.topic in topics and isinstance(where.path, TieredPath):
            row = _row(key, where.path, tier, partial(ends.get, key))
            if row["remoteSegments"] or row["orphans"]:
                rows.append(row)
    return rows + _rows_of_former_topics(tier, found, topics)


class _Ends:
    """Where logs end, found out with the first that is asked for."""

    def __init__(self, places: Sequence[str], topics: TopicSelection) -> None:
        self._given = places, topics
        self._found: Mapping[TopicPartition, int] | None = None

    def get(self, key: TopicPartition) -> int | None:
        """Return the committed end of a log; None where it cannot be told."""
        if self._found is None:
            try:
                self._found = ends_of(*self._given).look().offsets
            except KafkaLogError:  # what is wrong there is shown by `verify`
                self._found = {}
        return self._found.get(key)


def _row(key: TopicPartition, folder: TieredPath, tier: Tier, end: Callable[[], int | None]) -> Row:
    view = folder.view()
    local = folder.local()
    bases = [] if local is None else base_offsets_of(segment_names(local), "")
    return {
        **key._asdict(),
        "topicId": view.topic_id,
        "remoteStart": view.pieces[0].start if view.pieces else None,
        "remoteEnd": view.end if view.pieces else None,
        "remoteSegments": len(view.pieces),
        "remoteBytes": sum(piece.segment.size or 0 for piece in view.pieces),
        "localStart": bases[0] if bases else None,
        "localSegments": len(bases),
        **_shares(view.pieces, bases[0] if bases else None, end),
        "path": None if local is None else str(local),
        "orphans": tier.orphans(key, view.topic_id),
        "gaps": [list(gap) for gap in folder.gaps()],
    }


def _shares(
    pieces: Sequence[Piece], local_start: int | None, end: Callable[[], int | None]
) -> dict[str, list[list[int]] | None]:
    """Return which offsets lie in the tier alone, in both places, and here alone."""
    unknown: dict[str, list[list[int]] | None]
    unknown = dict.fromkeys(("onlyRemote", "both", "onlyLocal"))
    following = [*(each.start for each in pieces[1:]), local_start]
    ends = [each.end if each.end is not None else following[n] for n, each in enumerate(pieces)]
    log_end = end() if local_start is not None else None
    if None in ends or (local_start is not None and log_end is None):
        return unknown
    remote = _joined(zip([each.start for each in pieces], ends, strict=True))
    local = Intervals.between(local_start, log_end) if local_start is not None else NOTHING
    shares = {"onlyRemote": remote & ~local, "both": remote & local, "onlyLocal": local & ~remote}
    return {name: [list(each) for each in share.ranges] for name, share in shares.items()}


def _joined(ranges: Iterable[tuple[int, int | None]]) -> Intervals:
    """Return ranges that ascend as a set; those that touch are one."""
    found: list[tuple[int, int]] = []
    for start, end in ranges:
        if found and end is not None and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        elif end is not None and start < end:
            found.append((start, end))
    return Intervals(tuple(found))


def _rows_of_former_topics(
    tier: Tier, found: Mapping[TopicPartition, PartitionDirectory], topics: TopicSelection
) -> list[Row]:
    """Return a row for what lies in the tier of topics whose name has another one now."""
    rows = []
    for each in tier.layout.partitions():
        key = each.topic_partition
        where = found.get(key)
        folder = None if where is None else where.path
        if key.topic not in topics or not isinstance(folder, TieredPath):
            continue
        now = folder.view().topic_id
        if now is None or each.topic_id in {None, now}:
            continue
        objects = [entry.name for entry in tier.store.list_folder(each.folder)]
        rows.append(
            {
                **key._asdict(),
                "topicId": each.topic_id,
                "remoteSegments": 0,
                "orphans": [f"{each.folder}/{name}" for name in sorted(objects)],
                "gaps": [],
            }
        )
    return rows
