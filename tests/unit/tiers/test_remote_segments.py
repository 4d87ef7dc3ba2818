"""Which remote segments make up a log: what several leaders have uploaded, and what it costs."""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.logs import Row, batch_bytes, write_checkpoint, write_segment
from tests.support.remote_records import segment_added, segment_updated
from tests.support.tiers import TOPIC_ID, KafkaTier, id_of, write_log

import kafkalog
from kafkalog.checkpoints.broker import LOG_START_OFFSET
from kafkalog.files.remote_store import RemoteStore
from kafkalog.model import TopicPartition
from kafkalog.streaming.coordinator.remote_log_metadata import RemoteLogReplay
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.source.batch_plan import plan_batch
from kafkalog.streaming.store.log_dirs import LogDirs
from kafkalog.streaming.tiers import tiered_store
from kafkalog.streaming.tiers.layouts import TierSegment
from kafkalog.streaming.tiers.remote_segments import choose_segments, gaps_between
from kafkalog.streaming.tiers.tiered_store import TieredPath

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from kafkalog.streaming.tiers.remote_segments import Lineage


def segment(start: int, last: int, *epochs: tuple[int, int]) -> TierSegment:
    """Make a segment with these leader epochs; of epoch 0 without."""
    known = epochs or ((0, start),)
    name = f"{start}-{last}-{known}"
    return TierSegment("f", name, start, last + 1, 100, frozenset({".log"}), 0, known)


def chosen(segments: Sequence[TierSegment], *lineage: tuple[int, int]) -> list[tuple[int, int]]:
    found = choose_segments(segments, lineage)
    return [(piece.base_offset, piece.end or -1) for piece in found]


def test_one_from_5_to_100_hides_one_from_10_to_90() -> None:
    both = [segment(5, 100), segment(10, 90), segment(101, 120)]
    assert chosen(both) == chosen(both[::-1]) == [(5, 101), (101, 121)]


def test_of_copies_that_overlap_each_offset_is_read_once() -> None:
    assert chosen([segment(0, 50), segment(40, 90), segment(60, 120)]) == [
        (0, 51),
        (40, 91),
        (60, 121),
    ]


def test_a_deposed_leaders_upload_counts_up_to_where_the_next_epoch_begins() -> None:
    old = segment(0, 100, (0, 0))
    new = segment(60, 150, (2, 60))
    never = segment(60, 90, (1, 60))
    assert chosen([old, never, new], (0, 0), (2, 60)) == [(0, 60), (60, 151)]
    follows = segment(50, 150, (0, 50), (2, 60))
    assert chosen([old, never, follows]) == [(0, 60), (50, 151)]


def test_what_nobody_has_uploaded_is_a_gap() -> None:
    pieces = choose_segments([segment(0, 9), segment(20, 29)], ())
    assert gaps_between(pieces, 40) == [(10, 20), (30, 40)]
    assert gaps_between(pieces, 30) == gaps_between(pieces, None) == [(10, 20)]
    assert gaps_between(pieces, 25) == [(10, 20)]
    assert gaps_between([], 25) == []


def test_epochs_that_a_broker_has_forgotten_are_known_from_the_segments() -> None:
    early = segment(0, 49, (3, 0))
    later = segment(50, 99, (3, 50), (5, 70))
    assert chosen([early, later], (5, 70)) == [(0, 50), (50, 100)]
    assert chosen([early, later], (3, 60), (5, 70)) == [(0, 50), (50, 100)]


@st.composite
def histories(draw: st.DrawFn) -> tuple[Lineage, list[TierSegment]]:
    """Draw the epochs of a log, and what leaders have uploaded; some had a tail of their own."""
    starts = sorted(draw(st.sets(st.integers(1, 90), max_size=4)))
    epochs = sorted(
        draw(st.sets(st.integers(0, 9), min_size=len(starts) + 1, max_size=len(starts) + 1))
    )
    lineage = tuple(zip(epochs, [0, *starts], strict=True))
    segments = []
    for slot in range(len(lineage)):
        of_leader = lineage[: slot + 1]
        end = draw(st.integers(of_leader[-1][1] + 1, 120))
        bounds = sorted({0, end, *draw(st.lists(st.integers(0, end), max_size=5))})
        for first, stop in pairwise(bounds):
            if draw(st.integers(0, 3)):
                inside = [(e, max(s, first)) for e, s in of_leader if s < stop]
                ends = [s for _, s in of_leader[1:]] + [200]
                kept = [e for e, n in zip(inside, ends, strict=False) if n > first]
                segments.append(segment(first, stop - 1, *kept))
    return lineage, draw(st.permutations(segments))


def epoch_at(epochs: Sequence[tuple[int, int]], offset: int) -> int:
    return epochs[bisect_right([start for _, start in epochs], offset) - 1][0]


@settings(suppress_health_check=[HealthCheck.too_slow])  # on a busy machine
@given(histories())
def test_each_offset_that_was_uploaded_is_read_from_a_copy_of_its_epoch(
    history: tuple[Lineage, list[TierSegment]],
) -> None:
    lineage, segments = history
    pieces = choose_segments(segments, lineage)
    bases = [piece.base_offset for piece in pieces]
    assert bases == sorted(set(bases))
    gaps = gaps_between(pieces, None)
    for offset in range(130):
        epoch = epoch_at(lineage, offset)
        has = any(
            each.start_offset <= offset < (each.end_offset or 0)
            and epoch_at(each.leader_epochs, offset) == epoch
            for each in segments
        )
        slot = bisect_right(bases, offset) - 1
        in_gap = any(start <= offset < end for start, end in gaps)
        if not has:
            continue
        assert not in_gap
        found = pieces[slot].segment
        assert found.start_offset <= offset < (found.end_offset or 0)
        assert epoch_at(found.leader_epochs, offset) == epoch


# ----------------------------------------------------------------------------------------------
# Requests.


ONCE = {"storage.listInterval": "1h"}
"""However slow the machine is, nothing is listed twice."""


class Requests:
    """Counts what is asked of a store."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.listings: list[str] = []
        self.opened: list[str] = []
        for name, asked in (("list_folder", self.listings), ("open", self.opened)):
            monkeypatch.setattr(RemoteStore, name, self._noting(getattr(RemoteStore, name), asked))

    def _noting(self, call: Callable[..., Any], asked: list[str]) -> Callable[..., Any]:
        def noting(store: RemoteStore, key: str) -> object:
            asked.append(key)
            return call(store, key)

        return noting


def write_many(root: Path, count: int, *, says: bool) -> tuple[Path, KafkaTier]:
    """Write a tier of many small segments, and a log that goes on with the last one."""
    log, tier = root / "log", KafkaTier(root / "tier")
    write_log(log, [2 * count], 2 * count + 2)
    write_checkpoint(log, LOG_START_OFFSET, {"t-0": 0})
    write_checkpoint(log, "replication-offset-checkpoint", {"t-0": 2 * count + 2})
    tier.folder.mkdir(parents=True)
    records = []
    for number in range(count):
        start = 2 * number
        batch = batch_bytes(start, [Row(timestamp=1000 * n) for n in (start, start + 1)])
        segment_id = id_of(number)
        for suffix, data in ((".log", batch), (".index", b""), (".timeindex", b"")):
            (tier.folder / f"{start:020d}-{segment_id}{suffix}").write_bytes(data)
        if says:
            where = ("t", TOPIC_ID, 0, segment_id)
            records += [
                segment_added(
                    *where, (start, start + 1), size=len(batch), max_timestamp=1000 * (start + 1)
                ),
                segment_updated(*where),
            ]
    if says:
        rows = [Row(value) for value in records]
        write_segment(log / "__remote_log_metadata-0", 0, batch_bytes(0, rows))
    return log, tier


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("says", [True, False])
def test_many_segments_are_planned_by_one_listing_or_one_look_at_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: bool, count: int
) -> None:
    log, tier = write_many(tmp_path, count, says=says)
    requests = Requests(monkeypatch)
    options = ReadOptions.parse(
        {
            "path": str(log),
            "subscribe": "t",
            "remote.path": str(tier.root),
            "splitBytes": "1g",
            **ONCE,
        }
    )
    (split,) = plan_batch(options)
    assert sum(piece.end_offset - piece.start_offset for piece in split.slices) == 2 * count + 2
    folders = [key for key in requests.listings if key.endswith(TOPIC_ID)]
    assert len(folders) == (0 if says else 1)
    assert len(requests.listings) - len(folders) == 3  # which layout it is, and other partitions
    assert requests.opened == []


@pytest.mark.parametrize("says", [True, False])
def test_a_read_of_some_offsets_opens_the_segments_that_have_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: bool
) -> None:
    log, tier = write_many(tmp_path, 100, says=says)
    requests = Requests(monkeypatch)
    given = {
        **ONCE,
        "remote.path": str(tier.root),
        "startingOffsets": '{"t":{"0":101}}',
        "endingOffsets": '{"t":{"0":105}}',
    }
    rows = kafkalog.read(log, "t", options=given).read_all()
    assert rows["offset"].to_pylist() == [101, 102, 103, 104]
    opened = {key.rpartition("/")[2][:20] for key in requests.opened}
    assert opened <= {f"{start:020d}" for start in (100, 102, 104)}


def test_each_record_of_the_brokers_is_read_once_and_segments_are_chosen_anew_after_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, tier = write_many(tmp_path, 100, says=True)
    fed: list[object] = []
    taken: list[int] = []
    feed, choose = RemoteLogReplay.feed, choose_segments
    monkeypatch.setattr(RemoteLogReplay, "feed", lambda *a: fed.append(a[1]) or feed(*a))
    monkeypatch.setattr(
        tiered_store, "choose_segments", lambda *a: taken.append(len(a[0])) or choose(*a)
    )
    given = {"path": str(log), "remote.path": str(tier.root), "storage.listInterval": "0"}
    places = ReadOptions.parse({**given, "subscribe": "t"}).paths
    folder = LogDirs(places).partitions()[TopicPartition("t", 0)].path
    assert isinstance(folder, TieredPath)
    for _ in range(5):
        assert folder.view().end == 200
    assert (len(fed), taken) == (200, [100])
    where = ("t", TOPIC_ID, 0, id_of("more"))
    more = [segment_added(*where, (200, 201), size=1), segment_updated(*where)]
    with (log / "__remote_log_metadata-0" / f"{0:020d}.log").open("ab") as file:
        file.write(batch_bytes(200, [Row(value) for value in more]))
    for _ in range(5):
        assert folder.view().end == 202
    assert (len(fed), taken) == (202, [100, 101])


def test_a_read_from_a_time_on_opens_no_segment_that_its_broker_knows_to_be_older(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, tier = write_many(tmp_path, 100, says=True)
    requests = Requests(monkeypatch)
    given = {
        **ONCE,
        "remote.path": str(tier.root),
        "startingTimestamp": "181000",
        "endingTimestamp": "185000",
    }
    rows = kafkalog.read(log, "t", options=given).read_all()
    assert rows["offset"].to_pylist() == [181, 182, 183, 184]
    opened = {key.rpartition("/")[2][:20] for key in requests.opened}
    assert opened <= {f"{start:020d}" for start in (180, 182, 184)}
