"""Fuzzing, the short form; ``make fuzz`` is the long one."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
from tests.fuzz.run import KEPT, fuzz, replay
from tests.fuzz.seeds import seeds_of
from tests.fuzz.targets import TARGETS, result

from kafkalog.streaming.records.jit.inline import INTERPRETED

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(INTERPRETED, reason="compares with compiled kernels")

SECONDS = 3


@pytest.fixture(autouse=True)
def what_is_logged_afterwards() -> Iterator[None]:
    """Let other tests of this process see warnings, which a search keeps silent."""
    logger = logging.getLogger("kafkalog")
    level = logger.level
    yield
    logger.setLevel(level)


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(TARGETS))
def test_every_target_reads_its_seeds(name: str) -> None:
    told = [result(name, seed) for seed in seeds_of(name)]
    assert len(set(told)) > 1 or len(told) == 1


@pytest.mark.long
@pytest.mark.nightly
def test_a_short_search_finds_nothing_and_both_kinds_of_kernels_agree(tmp_path: Path) -> None:
    name = "any_of_them"
    assert fuzz(name, tmp_path / name, [f"-max_total_time={SECONDS}"]) == 0
    interpreted = replay([name], tmp_path, jit=False)
    assert len(interpreted) > 100
    assert interpreted == replay([name], tmp_path, jit=True)


@pytest.mark.long
def test_what_failed_once_is_read_by_both_kinds_of_kernels_to_the_same_end() -> None:
    interpreted = replay([], KEPT, jit=False)
    assert interpreted
    assert interpreted == replay([], KEPT, jit=True)


@pytest.mark.nightly
def test_an_error_that_is_not_ours_is_found(tmp_path: Path) -> None:
    (tmp_path / "no_such_target").mkdir()
    assert fuzz("no_such_target", tmp_path / "no_such_target", ["-runs=10"]) != 0
