"""No bytes whatever crash, hang or exhaust the reader: it gives rows, or one of our errors."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.record_fuzz import damaged, digest, outcome, seeds

from kafkalog.streaming.records.jit.inline import INTERPRETED

_ROOT = Path(__file__).parents[3]
_COUNT = 1_000 if INTERPRETED else 3_000
_FEW = 500


def test_sound_bytes_are_read() -> None:
    for data in seeds():
        assert "Error" not in outcome(data)


@pytest.mark.long
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2))]
)
def test_damaged_bytes_give_rows_or_one_of_our_errors(seed: int) -> None:
    for data in damaged(seed, _COUNT):
        outcome(data)


@pytest.mark.long
def test_every_cut_and_every_flipped_byte_give_rows_or_one_of_our_errors() -> None:
    for data in seeds()[:-1]:
        for position in range(0, len(data), 7 if INTERPRETED else 1):
            outcome(data[:position])
            for mask in (0x01, 0x80, 0xFF):
                flipped = data[:position] + bytes([data[position] ^ mask]) + data[position + 1 :]
                outcome(flipped)


@settings(max_examples=20 if INTERPRETED else 200, deadline=None)
@given(data=st.binary(max_size=300))
def test_random_bytes_give_rows_or_one_of_our_errors(data: bytes) -> None:
    outcome(data)
    outcome(bytes(8) + len(data).to_bytes(4, "big") + bytes(4) + data)


def test_damage_costs_no_memory_to_speak_of() -> None:
    outcome(seeds()[-1])  # what is loaded and compiled once does not count
    tracemalloc.start()
    try:
        for data in damaged(77, 20 if INTERPRETED else 400):
            outcome(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 32 << 20


@pytest.mark.long
@pytest.mark.skipif(INTERPRETED, reason="compares with compiled kernels")
def test_kernels_run_as_python_refuse_no_index_and_come_to_the_same() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"from tests.support.record_fuzz import *; print(digest(9, {_FEW}))",
        ],
        env={**os.environ, "KAFKALOG_JIT": "0", "PYTHONPATH": str(_ROOT)},
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == digest(9, _FEW)
