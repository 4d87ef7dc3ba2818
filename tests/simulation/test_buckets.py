"""Many act on a log in a bucket while requests are lost or late, and processes die or sleep."""

from __future__ import annotations

import os
from collections import Counter

import pytest
from tests.simulation.buckets import run_bucket

from kafkalog.checkpoints.bucket_state import BucketState
from kafkalog.errors import CommitError
from kafkalog.streaming.objects.bucket_log import BucketLog

HISTORIES = int(os.environ.get("KAFKALOG_BUCKET_HISTORIES", "12"))
SEED = os.environ.get("KAFKALOG_BUCKET_SEED", "bucket")


def test_a_bucket_in_which_nothing_goes_wrong_fails_nobody() -> None:
    result = run_bucket(f"{SEED}/calm", calm=True)
    assert result.found == []
    assert result.outcomes.keys() == {"ok"}
    assert result.rows


def test_whatever_becomes_of_requests_and_processes_no_row_is_lost_or_doubled() -> None:
    faults, outcomes = Counter[str](), Counter[str]()
    for number in range(HISTORIES):
        result = run_bucket(f"{SEED}/{number}")
        assert result.found == [], f"{SEED}/{number}"
        faults += result.faults
        outcomes += result.outcomes
    assert HISTORIES < 12 or faults.keys() >= {"kill", "late", "unanswered", "unsent", "age"}
    assert outcomes["ok"] > HISTORIES


GUARDS = {
    "absent is not failed": (BucketLog, "_unknown", lambda *_: CommitError("not there")),
    "credit": (BucketLog, "has_credit", lambda _: True),
    "what may be swept is not committed": (BucketState, "find_swept", lambda *_: None),
}


@pytest.mark.nightly
@pytest.mark.parametrize("guard", GUARDS)
def test_each_guard_that_is_taken_out_is_missed(
    monkeypatch: pytest.MonkeyPatch, guard: str
) -> None:
    monkeypatch.setattr(*GUARDS[guard])
    assert any(run_bucket(f"{SEED}/{number}").found for number in range(300))
