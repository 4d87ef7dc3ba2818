from __future__ import annotations

import pytest

from kafkalog.errors import OffsetOutOfRangeError
from kafkalog.model import TopicPartition
from kafkalog.streaming.groups import administration
from kafkalog.streaming.groups.group_commits import ReadRange
from kafkalog.streaming.groups.planned_commit import Plan

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)


def test_a_plan_is_finished_once_the_group_stands_at_its_end() -> None:
    plan = Plan.new("m", {}, {}, {T0: ReadRange(1, 3, 7), T1: ReadRange(0, 2, 7)})
    assert plan.unfinished({}) == {T0, T1}
    assert plan.unfinished({T0: 2, T1: 2}) == {T0}
    assert plan.unfinished({T0: 3, T1: 4}) == frozenset()


@pytest.mark.parametrize(("offset", "is_there"), [(4, False), (5, True), (9, True), (10, False)])
def test_a_group_stands_within_its_logs(offset: int, *, is_there: bool) -> None:
    if is_there:
        administration._check_offset(T0, offset, 5, 9)
    else:
        with pytest.raises(OffsetOutOfRangeError, match="cannot stand at offset"):
            administration._check_offset(T0, offset, 5, 9)
