"""The charts of a report: what they show is in proportion, and their axes can be read."""

from __future__ import annotations

from itertools import pairwise
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalog.jobs.inspection.figures import Measured, Timeline, with_one_width
from kafkalog.jobs.report.charts import (
    MOST_SERIES,
    Growth,
    count_ticks,
    per_span,
    shown,
    shown_span,
    size_ticks,
    tag,
    time_ticks,
)
from kafkalog.model import TopicPartition

STAMP = 1_700_000_000_000
DAY = 86_400_000
TIMES = st.integers(0, 253_402_300_799_999)


def measured(sizes: dict[str, list[int]]) -> dict[TopicPartition, Measured]:
    """Give a topic with bytes on one day after the other, as many records, in two partitions."""
    found = {}
    for topic, days in sizes.items():
        for partition in range(2):
            each = Measured(Timeline(96))
            stamps = np.array([STAMP + day * DAY for day in range(len(days))], np.int64)
            counts = np.array([size // 2 for size in days], np.int64)
            each.timeline.add(stamps, counts // 10, counts)
            each.bytes = int(counts.sum())
            found[TopicPartition(topic, partition)] = each
    with_one_width(found, has_gaps=False)
    for each in found.values():
        each.timeline = each.timeline.widened(DAY)
    return found


def heights(svg: str) -> dict[str, list[float]]:
    """Give the heights of columns by their topics, from left to right."""
    found: dict[str, list[tuple[float, float]]] = {}
    for rect in ET.fromstring(svg).iter("rect"):
        topic = (rect.findtext("title") or "").split(", ")[1].split(":")[0]
        found.setdefault(topic, []).append((float(rect.get("x", 0)), float(rect.get("height", 0))))
    return {topic: [height for _, height in sorted(pairs)] for topic, pairs in found.items()}


def test_columns_are_as_high_as_what_they_stand_for_and_stand_on_each_other() -> None:
    sizes = {"large": [40_000, 80_000], "medium": [30_000, 30_000], "small": [20_000, 20_000]}
    growth = Growth(measured(sizes))
    for svg in (growth.columns_of_bytes(), growth.columns_of_records()):
        found = heights(svg)
        unit = found["large"][0] / 40_000
        for topic, expected in sizes.items():
            assert found[topic] == pytest.approx([size * unit for size in expected], abs=0.1)
        for lower, upper in pairwise(sizes):
            for one, other in zip(columns(svg, lower), columns(svg, upper), strict=True):
                assert one["y"] == pytest.approx(other["y"] + other["height"], abs=0.1)
                assert one["x"] == other["x"]


def columns(svg: str, topic: str) -> list[dict[str, float]]:
    found = [
        {name: float(rect.get(name, 0)) for name in ("x", "y", "width", "height")}
        for rect in ET.fromstring(svg).iter("rect")
        if f", {topic}:" in (rect.findtext("title") or "")
    ]
    return sorted(found, key=lambda each: each["x"])


def test_areas_grow_up_to_all_that_is_there_and_stand_on_each_other() -> None:
    growth = Growth(measured({"large": [40_000, 80_000], "small": [20_000, 20_000]}))
    paths = [*ET.fromstring(growth.cumulative(880)).iter("path")]
    tops, bottoms = [], []
    for path in paths:
        points = path.get("d", "").removeprefix("M").removesuffix(" Z").split(" L")
        line = [tuple(map(float, point.split())) for point in points]
        tops.append(line[: len(line) // 2])
        bottoms.append(line[len(line) // 2 :][::-1])
        ys = [y for _, y in tops[-1]]
        assert all(later <= earlier for earlier, later in pairwise(ys))
        steps = pairwise(tops[-1])
        assert all(left[0] == right[0] or left[1] == right[1] for left, right in steps)
    assert tops[0] == bottoms[1]
    base = bottoms[0][0][1]
    large, both = (base - top[-1][1] for top in tops)
    assert round(both / large * 120) == 160


def test_what_lies_in_the_last_span_is_drawn_over_it() -> None:
    (path,) = ET.fromstring(Growth(measured({"t": [40_000]})).cumulative(880)).iter("path")
    points = path.get("d", "").removeprefix("M").removesuffix(" Z").split(" L")
    xs, ys = zip(*(map(float, point.split()) for point in points), strict=True)
    high = [x for x, y in zip(xs, ys, strict=True) if y == min(ys)]
    assert max(high) - min(high) > 100


def test_many_topics_are_drawn_as_a_few() -> None:
    few = Growth(measured({f"t{n}": [100 * (n + 1)] for n in range(MOST_SERIES + 1)}))
    assert [each.name for each in few.series] == ["t5", "t4", "t3", "t2", "t1", "t0"]
    many = Growth(measured({f"t{n}": [100 * (n + 1)] for n in range(12)}))
    assert [each.name for each in many.series] == [
        *("t11", "t10", "t9", "t8", "t7"),
        "7 other topics",
    ]
    assert len({each.colour for each in many.series}) == MOST_SERIES + 1


def test_what_has_no_time_is_not_drawn() -> None:
    each = Measured(Timeline(96))
    each.timeline.add(*np.array([[-1], [3], [100]], np.int64))
    growth = Growth({TopicPartition("t", 0): each})
    assert (bool(growth), growth.untimed) == (False, 100)
    assert not Growth({})


@given(st.integers(1, 2**62), st.integers(2, 8))
def test_an_axis_from_nothing_reaches_what_is_largest_in_few_steps(most: int, number: int) -> None:
    for ticks in (size_ticks(most, number), count_ticks(most, number)):
        places = [at for at, _ in ticks]
        assert places[0] == 0
        assert places[-2] < most <= places[-1]
        assert len(places) <= number + 1
        assert len({later - earlier for earlier, later in pairwise(places)}) == 1
        assert len({text for _, text in ticks}) == len(ticks)


@given(TIMES, TIMES)
def test_an_axis_of_time_has_few_ticks_that_lie_on_it(one: int, other: int) -> None:
    start, end = sorted((one, other))
    ticks = time_ticks(start, end, 6)
    assert len(ticks) <= 7
    assert all(start <= at <= end for at, _ in ticks)
    assert all(earlier < later for (earlier, _), (later, _) in pairwise(ticks))


def test_ticks_say_as_much_as_tells_them_apart() -> None:
    assert time_ticks(STAMP, STAMP + 50_000) == [
        (STAMP + 10_000 * n, f"22:1{3 + (20 + 10 * n) // 60}:{(20 + 10 * n) % 60:02}")
        for n in range(6)
    ]
    assert [text for _, text in time_ticks(STAMP, STAMP + 6 * 3_600_000)][1:3] == [
        "15 Nov",
        "01:00",
    ]
    assert [text for _, text in time_ticks(STAMP, STAMP + 5 * DAY)][:2] == ["15 Nov", "16 Nov"]
    assert [text for _, text in time_ticks(STAMP, STAMP + 300 * DAY)][:2] == [
        *("Jan 2024", "Mar 2024")
    ]
    assert [text for _, text in time_ticks(STAMP, STAMP + 2000 * DAY)][:2] == ["2024", "2025"]
    assert time_ticks(STAMP, 2**62) == []
    assert [text for _, text in size_ticks(3000)] == ["0", "1 KiB", "2 KiB", "3 KiB"]
    assert [text for _, text in count_ticks(1400)] == ["0", "500", "1 k", "1.5 k"]


@pytest.mark.parametrize(
    ("width", "said"), [(1000, "second"), (10_000, "10 s"), (DAY, "day"), (10 * DAY, "10 d")]
)
def test_a_column_says_what_it_stands_for(width: int, said: str) -> None:
    assert per_span(width) == f"per {said}"


def test_a_span_of_time_leaves_out_what_both_ends_share() -> None:
    assert shown_span(STAMP, STAMP) == "2023-11-14 22:13:20"
    assert shown_span(STAMP, STAMP + 60_000) == "2023-11-14 22:13:20 \u2013 22:14:20"
    assert shown_span(STAMP, STAMP + DAY).endswith(" \u2013 2023-11-15 22:13:20")
    assert shown_span(STAMP, 2**62).endswith(f" \u2013 {2**62}")


@given(st.text())
def test_any_text_is_markup_that_says_it(text: str) -> None:
    made = tag("p", text, title=text)
    parsed = ET.fromstring(made)
    assert parsed.get("title") == (parsed.text or "")
    if text.isprintable():
        assert parsed.text == (text or None)
    assert shown(shown(text)) == shown(text)
