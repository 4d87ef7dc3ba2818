from __future__ import annotations

import pytest

from kafkalog.streaming.source.admission import IdlePacer


class Hours:
    """A clock that only sleeping and working move."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class Query:
    """What Spark's rounds come to: it asks again 10 ms after an answer, which takes it 2 ms."""

    def __init__(self, cost: float, **given: float) -> None:
        self.hours = Hours()
        self.pacer = IdlePacer(self.hours, self.hours.sleep, **given)
        self.cost = cost
        self.looks = 0

    def ask(self, *, idle: bool = True) -> float:
        """Ask once; give the seconds until the answer."""
        asked = self.hours.now
        self.pacer.asked()
        again = True
        while again:
            self.pacer.before_look()
            self.hours.now += self.cost
            self.looks += 1
            again = self.pacer.after_look(idle=idle)
        answered = self.hours.now
        self.hours.now += 0.012
        return answered - asked

    def rounds(self, seconds: float) -> int:
        end, count = self.hours.now + seconds, 0
        while self.hours.now < end:
            self.ask()
            count += 1
        return count


@pytest.mark.parametrize(
    ("cost", "most_looks"), [(0.0, 11.1), (0.0005, 11), (0.007, 1.5), (0.07, 1.1)]
)
def test_of_long_idleness_looks_and_rounds_of_spark_are_few(cost: float, most_looks: float) -> None:
    query = Query(cost)
    query.rounds(30)
    query.looks = 0
    assert query.rounds(20) <= 2.2 * 20
    assert query.looks <= most_looks * 20
    assert query.cost * query.looks <= 0.07 * 20


def test_idle_looks_take_a_hundredth_of_the_time() -> None:
    query = Query(0.002)
    for _ in range(3):
        query.ask()
    assert query.hours.slept == [pytest.approx(0.186), pytest.approx(0.186)]


def test_a_bucket_is_asked_as_often_as_it_is_to_be() -> None:
    query = Query(0.003, longest_rest_s=0.05)
    query.rounds(0.5)
    assert query.hours.slept
    assert max(query.hours.slept) < 0.05
    query.rounds(60)
    query.hours.slept.clear()
    query.rounds(1)
    assert max(query.hours.slept) <= 0.1  # as a look that costs next to nothing


def test_a_look_that_found_something_is_not_waited_after() -> None:
    query = Query(0.5)
    query.ask(idle=False)
    assert query.ask() == 0.5
    assert query.hours.slept == []


def test_the_first_look_that_finds_nothing_is_told_at_once_however_long_the_batch_took() -> None:
    query = Query(0.001)
    query.ask(idle=False)
    query.hours.now += 1000
    assert query.ask() == pytest.approx(0.001)


def test_a_query_that_was_idle_for_half_a_second_looks_again_within_30_ms() -> None:
    query = Query(0.0001)
    query.ask(idle=False)
    query.rounds(0.5)
    query.hours.slept.clear()
    query.rounds(0.5)
    assert max(query.hours.slept) < 0.05


def test_batches_of_another_source_are_not_held_up() -> None:
    query = Query(0.0001)
    query.rounds(60)
    assert query.ask() > 0.3
    query.pacer.batch_ran()
    assert query.ask() < 0.15  # the rest that was due, and no more
    query.pacer.batch_ran()
    assert query.ask() < 0.02


def test_no_rest_is_longer_than_a_quarter_of_a_second_or_of_long_idleness_than_a_second() -> None:
    query = Query(0.1)
    query.rounds(2)
    query.hours.slept.clear()
    query.ask()
    assert query.hours.slept == [pytest.approx(0.138)]
    query.rounds(60)
    query.hours.slept.clear()
    query.ask()
    assert query.hours.slept == [pytest.approx(0.888)]
