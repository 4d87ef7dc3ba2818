"""Where groups stand once topics are restored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.support.consuming import make_shared_topic, positions, recreate_topic

from kafkalog.jobs import restoring as restore_groups
from kafkalog.jobs.pipelines.restore_plan import Bounds
from kafkalog.model import TopicPartition
from kafkalog.streaming.groups.administration import GroupWriter

if TYPE_CHECKING:
    from pathlib import Path

IN = TopicPartition("in", 0)


class Plan:
    """What is read of a plan."""

    topic = "in"
    bounds = (Bounds(0, 10),) * 4


@pytest.mark.parametrize(("is_recreated", "offset"), [(False, 4), (True, 7)])
def test_a_position_stays_unless_it_is_of_an_earlier_topic_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_recreated: bool, offset: int
) -> None:
    folder = tmp_path / "log"
    make_shared_topic(folder)
    GroupWriter([str(folder)], "g").commit({IN: 4})
    if is_recreated:
        recreate_topic(folder, 40)
    monkeypatch.setattr(restore_groups, "_archived", lambda _: {"g": {IN: 7}})
    rows: Any = object()
    plan: Any = Plan()
    said = restore_groups.restore_groups(rows, [str(folder)], [plan])
    assert said == [f"{int(is_recreated)} positions of groups are restored"]
    assert positions(folder) == {IN: offset}
