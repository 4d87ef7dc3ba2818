"""Members come, go, are killed and stopped, a query of Spark among them: each row is there once.

``make nightly`` does so for half a minute; ``make groups`` for ten.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import pytest
from tests.support.group_churn import Churn
from tests.support.scenes import check_indexes

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.nightly]

SECONDS: Final = float(os.environ.get("KAFKALOG_GROUPS_SECONDS", "30"))
SEED: Final = os.environ.get("KAFKALOG_GROUPS_SEED", "groups")


def test_each_row_is_copied_once_and_in_order_whatever_happens_to_members(folder: Path) -> None:
    with Churn(folder, SEED) as churn:
        churn.run(SECONDS)
        churn.drain()
    # Nobody lives any more. What was killed last has published nothing that does not count.
    assert churn.positions == {number: len(rows) for number, rows in churn.given.items()}
    rows = churn.copied()
    copied: dict[int, list[str]] = {number: [] for number in churn.given}
    for each in rows.to_pylist():
        copied[each["partition"]].append(each["value"].decode())
    assert copied == churn.given
    check_indexes([churn.logs])
    print(f"{rows.num_rows} rows; {dict(churn.done)}")  # noqa: T201
