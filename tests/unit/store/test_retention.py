"""Which segments have expired: a broker's rule, as a table."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from kafkalog.streaming.log.retention import Expired, LogBounds, Retention, expired

NOW = 1_000_000


class Part(NamedTuple):
    """A segment by plain values."""

    base_offset: int
    size: int
    largest_timestamp: int


THREE = (Part(0, 100, 500), Part(10, 100, 600), Part(20, 100, 700))
EMPTY_LAST = (Part(0, 100, 500), Part(10, 0, 600))
LATE_FIRST = (Part(0, 100, 900), Part(10, 100, 100), Part(20, 100, 100))


@pytest.mark.parametrize(
    ("why", "segments", "retention", "now", "start", "high_watermark", "wanted"),
    [
        ("nothing given", THREE, Retention(), NOW, 0, 30, Expired(0, 0)),
        ("without a segment", (), Retention(ms=0), NOW, 0, 0, Expired(0, 0)),
        # The log start
        ("below the log start", THREE, Retention(), NOW, 10, 30, Expired(1, 10)),
        ("amid a segment", THREE, Retention(), NOW, 19, 30, Expired(1, 19)),
        ("up to the end: the active one stays", THREE, Retention(), NOW, 30, 30, Expired(2, 30)),
        ("compacted only", THREE, Retention(0, 0, deletes=False), NOW, 10, 30, Expired(1, 10)),
        # Time
        ("exactly as old", THREE, Retention(ms=100), 600, 0, 30, Expired(0, 0)),
        ("older by a millisecond", THREE, Retention(ms=100), 601, 0, 30, Expired(1, 10)),
        ("two are older", THREE, Retention(ms=100), 701, 0, 30, Expired(2, 20)),
        ("all are older", THREE, Retention(ms=100), 801, 0, 30, Expired(3, 30, rolls=True)),
        ("an empty active one stays", EMPTY_LAST, Retention(ms=1), NOW, 0, 10, Expired(1, 10)),
        ("only an empty one", EMPTY_LAST[1:], Retention(ms=1), NOW, 10, 10, Expired(0, 10)),
        (
            "a young one holds the old ones",
            LATE_FIRST,
            Retention(ms=500),
            1000,
            0,
            30,
            Expired(0, 0),
        ),
        ("retention.ms is 0", THREE, Retention(ms=0), 600, 0, 30, Expired(1, 10)),
        # Size
        ("as large as it may be", THREE, Retention(bytes=300), NOW, 0, 30, Expired(0, 0)),
        ("larger, but not by a segment", THREE, Retention(bytes=201), NOW, 0, 30, Expired(0, 0)),
        ("larger by a segment", THREE, Retention(bytes=200), NOW, 0, 30, Expired(1, 10)),
        ("larger by two", THREE, Retention(bytes=100), NOW, 0, 30, Expired(2, 20)),
        ("0 bytes", THREE, Retention(bytes=0), NOW, 0, 30, Expired(3, 30, rolls=True)),
        # The high watermark
        ("not acknowledged", THREE, Retention(ms=0, bytes=0), NOW, 0, 15, Expired(1, 10)),
        ("the active one neither", THREE, Retention(ms=0), NOW, 0, 29, Expired(2, 20)),
        # Several passes
        ("size counts what is left", THREE, Retention(bytes=200), NOW, 10, 30, Expired(1, 10)),
        ("time after size", THREE, Retention(ms=100, bytes=200), 701, 0, 30, Expired(2, 20)),
        ("a log start above", THREE, Retention(ms=100), 601, 5, 30, Expired(1, 10)),
        ("it never goes back", THREE, Retention(ms=100), 601, 15, 30, Expired(1, 15)),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_what_has_expired(
    why: str,
    segments: tuple[Part, ...],
    retention: Retention,
    now: int,
    start: int,
    high_watermark: int,
    wanted: Expired,
) -> None:
    end = 0 if not segments else 10 if segments[-1].size == 0 else 30
    bounds = LogBounds(start, high_watermark, end)
    assert expired(segments, retention, now, bounds) == wanted, why


def test_timestamps_are_asked_for_up_to_the_first_segment_that_stays() -> None:
    asked = []

    class Asked(Part):
        @property
        def largest_timestamp(self) -> int:  # type: ignore[override]
            asked.append(self.base_offset)
            return self[2]

    segments = [Asked(*part) for part in THREE]
    assert expired(segments, Retention(ms=100), 601, LogBounds(0, 30, 30)) == Expired(1, 10)
    assert asked == [0, 10]


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({}, Retention()),
        ({"retention.ms": "5"}, Retention(ms=5)),
        ({"retention.bytes": "7"}, Retention(bytes=7)),
        ({"retention.ms": "-1", "retention.bytes": "-1"}, Retention()),
        ({"cleanup.policy": "compact", "retention.ms": "5"}, Retention(ms=5, deletes=False)),
        ({"cleanup.policy": "compact,delete", "retention.ms": "5"}, Retention(ms=5)),
    ],
)
def test_only_what_was_given_counts(settings: dict[str, str], wanted: Retention) -> None:
    assert Retention.of(settings) == wanted
    assert Retention.is_given(settings) == (settings != {})


@pytest.mark.parametrize(
    "strange",
    [{"retention.ms": "soon"}, {"cleanup.policy": ""}, {"cleanup.policy": "archive"}],
)
def test_a_value_that_is_not_understood_deletes_nothing(strange: dict[str, str]) -> None:
    found = Retention.of({"retention.bytes": "7", **strange})
    assert found[:2] == (None, None)
    assert Retention.strange({"retention.bytes": "7", **strange}) == strange
