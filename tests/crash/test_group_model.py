"""Kill a member, let it sleep, or let others pass it, at each of its steps: ``docs/groups.md``.

CI searches within small bounds, ``make model`` within larger ones.
"""

from __future__ import annotations

import os
from typing import Final

import pytest
from tests.simulation.mutations import MUTATIONS
from tests.simulation.patches import Instead, applied
from tests.support.group_model import Bounds, Broken, search

pytestmark = pytest.mark.crash

_LARGE: Final = "KAFKALOG_MODEL_LARGE" in os.environ

_SMALL_SEARCHES: Final = (
    Bounds(kinds=("kill",), every=31),
    Bounds(partitions=2, kinds=("sleep",), every=37),
    Bounds(partitions=2, kinds=("switch",), every=1800),
)
_NIGHTLY_SEARCHES: Final = (
    Bounds(kinds=("kill",), every=9),
    Bounds(partitions=2, kinds=("sleep",), every=12),
    Bounds(partitions=2, kinds=("switch",), every=600),
)
_LARGE_SEARCHES: Final = (
    Bounds(kinds=("kill", "sleep")),
    Bounds(kinds=("switch",), every=4),
    Bounds(members=3, partitions=2, kinds=("kill", "sleep")),
    Bounds(partitions=2, kinds=("kill", "sleep"), pairs=True, every=8),
)


@pytest.mark.parametrize("bounds", _LARGE_SEARCHES if _LARGE else _SMALL_SEARCHES, ids=str)
def test_whatever_happens_to_a_member_each_row_is_copied_once(bounds: Bounds) -> None:
    assert search(bounds) > 6


@pytest.mark.nightly
@pytest.mark.parametrize("bounds", _NIGHTLY_SEARCHES, ids=str)
def test_so_it_is_in_more_of_its_steps(bounds: Bounds) -> None:
    assert search(bounds) > 20


_GUARDS: Final = {
    name: (MUTATIONS[name].patches, Bounds())
    for name in ("positions apart from rows", "nobody is ever lost")
}
_LARGE_GUARDS: Final = {
    "a member that was lost may commit": (
        {
            "groups.group_commits.Fence.__call__": Instead(
                "raise FencedMemberError(", "return FencedMemberError("
            )
        },
        Bounds(partitions=2, kinds=("sleep",)),
    )
}


@pytest.mark.parametrize("guard", _GUARDS | (_LARGE_GUARDS if _LARGE else {}))
def test_a_protocol_without_a_guard_is_found_out(guard: str) -> None:
    patches, bounds = (_GUARDS | _LARGE_GUARDS)[guard]
    with applied(patches), pytest.raises(Broken):
        search(bounds)
