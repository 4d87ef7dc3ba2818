from __future__ import annotations

import pytest

from kafkalog.streaming.source.pacing import IdlePacer


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


def look(pacer: IdlePacer, hours: Hours, cost: float, *, idle: bool = True) -> None:
    pacer.before_look()
    hours.now += cost
    pacer.after_look(idle=idle)


def test_idle_looks_take_a_fiftieth_of_the_time() -> None:
    hours = Hours()
    pacer = IdlePacer(hours, hours.sleep)
    for _ in range(3):
        look(pacer, hours, 0.002)
    assert hours.slept == [pytest.approx(0.098), pytest.approx(0.098)]


def test_a_look_that_found_something_is_not_waited_after() -> None:
    hours = Hours()
    pacer = IdlePacer(hours, hours.sleep)
    look(pacer, hours, 0.5, idle=False)
    look(pacer, hours, 0.5)
    assert hours.slept == []


def test_waits_grow_with_the_time_since_something_was_found() -> None:
    hours = Hours()
    pacer = IdlePacer(hours, hours.sleep)
    look(pacer, hours, 0, idle=False)
    hours.now += 0.4
    look(pacer, hours, 0)
    look(pacer, hours, 0)
    hours.now += 60
    look(pacer, hours, 0)
    look(pacer, hours, 0)
    assert hours.slept == [pytest.approx(0.02), pytest.approx(0.2)]


def test_no_wait_is_longer_than_a_quarter_of_a_second_or_of_long_idleness_than_a_second() -> None:
    hours = Hours()
    pacer = IdlePacer(hours, hours.sleep)
    look(pacer, hours, 0.1)
    look(pacer, hours, 0.1)
    hours.now += 10
    look(pacer, hours, 0.1)
    look(pacer, hours, 0.1)
    hours.now += 100
    look(pacer, hours, 0.1)
    look(pacer, hours, 0.1)
    assert hours.slept == [
        pytest.approx(0.15),
        pytest.approx(0.4225),
        pytest.approx(0.9),
    ]
