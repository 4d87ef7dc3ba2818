"""The history of a stress run: what may not be in it is found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.simulation.auditor import Write
from tests.support.stress import Life
from tests.support.stress_history import MicroBatch, Row, problems

if TYPE_CHECKING:
    from collections.abc import Callable

Batches = list[MicroBatch]
_SAID = "[KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] Partition s0-0: the 2 offsets [2, 4) cannot"


class _Ground:
    def __init__(self, life: Life) -> None:
        self.lives = [life]


def _life(kind: str) -> Life:
    life = Life("s0", 0, kind)
    for offset, value in enumerate(life.next_values(6)):
        life.sent[value] = (0, offset)
        life.writes.append(Write({value: 0}, offset, "ok", offset + 1, is_durable=True))
    return life


def _batches() -> Batches:
    rows = [Row("s0", 0, offset, f"s0#0:{offset}", "file") for offset in range(6)]
    bounds = [(0, 2), (2, 4), (4, 6)]
    return [
        MicroBatch(number, 10 + number, 11 + number, {"s0": {0: each}}, rows[each[0] : each[1]])
        for number, each in enumerate(bounds)
    ]


def _problems(batches: Batches, kind: str = "plain", said: str = "") -> list[str]:
    return problems(_Ground(_life(kind)), batches, said, looks=False)  # type: ignore[arg-type]


def _twice(batches: Batches) -> None:
    batches[1].rows.append(batches[0].rows[1])


def _lost(batches: Batches) -> None:
    batches[1].rows.pop()


def _skipped(batches: Batches) -> None:
    batches[1].rows.clear()


def _elsewhere(batches: Batches) -> None:
    batches[1].rows[1] = batches[1].rows[1]._replace(value="s0#0:4")


def _never_put(batches: Batches) -> None:
    batches[1].rows[1] = batches[1].rows[1]._replace(value="s0#0:99")


def _in_turn(batches: Batches) -> None:
    batches[0].rows[:], batches[1].rows[:] = batches[1].rows[:], batches[0].rows[:]


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    assert not _problems(_batches())


@pytest.mark.parametrize("harm", [_twice, _lost, _skipped, _elsewhere, _never_put, _in_turn])
@pytest.mark.parametrize("kind", ["plain", "retained"])
def test_what_may_not_be_is_found(harm: Callable[[Batches], None], kind: str) -> None:
    batches = _batches()
    harm(batches)
    assert _problems(batches, kind)


def test_what_retention_took_is_no_problem_if_the_source_said_so() -> None:
    batches = _batches()
    _skipped(batches)
    assert not _problems(batches, "retained", _SAID)
    assert _problems(batches, "plain", _SAID)
