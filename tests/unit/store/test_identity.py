from __future__ import annotations

import pytest

from kafkalog.checkpoints.commit_state import WriterState
from kafkalog.errors import BatchIdentityError, FencedWriterError
from kafkalog.streaming.store.identity import BatchIdentity, Verdict, judge, remember

LAST = WriterState("run-2", 7, "digest", 0, fenced=("run-1",))


def of_query(
    batch_id: int, *, run_id: str = "run-2", digest: str | None = "digest"
) -> BatchIdentity:
    return BatchIdentity("query:4711", batch_id, run_id, digest)


def test_the_next_batch_is_appended() -> None:
    assert judge(of_query(8, digest="other"), LAST) is Verdict.APPEND
    assert judge(of_query(8, run_id="run-3"), LAST) is Verdict.APPEND


def test_the_last_batch_again_is_skipped() -> None:
    assert judge(of_query(7), LAST) is Verdict.SKIP
    assert judge(of_query(7, run_id="run-3"), LAST) is Verdict.SKIP


def test_without_a_readable_checkpoint_query_and_number_decide() -> None:
    unknown = WriterState("run-2", 7, None, 0)
    assert judge(of_query(7, digest=None), unknown) is Verdict.SKIP


@pytest.mark.parametrize("digest", ["other", None])
def test_the_last_number_with_other_content_is_refused(digest: str | None) -> None:
    with pytest.raises(BatchIdentityError, match="with other content"):
        judge(of_query(7, digest=digest), LAST)


@pytest.mark.parametrize(
    ("now", "then", "told"),
    [
        ("0af1", "1bf2", "of its offsets in the checkpoint, and that one had .* restored"),
        ("rows 3 0a", "rows 2 0a", "of its rows, and that one had .* gives other rows each time"),
        ("0af1", "rows 3 0a", "start the query with its option checkpointLocation as it was"),
        ("rows 3 0a", "0af1", "start the query with its option checkpointLocation as it was"),
        (None, "0af1", "nothing that tells"),
    ],
)
def test_a_refusal_says_what_the_batches_were_told_by(
    now: str | None, then: str, told: str
) -> None:
    with pytest.raises(BatchIdentityError, match=told):
        judge(of_query(7, digest=now), WriterState("run-2", 7, then, 0))


def test_a_batch_that_is_told_by_its_rows_is_skipped_too() -> None:
    last = WriterState("run-2", 7, "rows 3 0a", 0)
    assert judge(of_query(7, digest="rows 3 0a"), last) is Verdict.SKIP


@pytest.mark.parametrize("batch_id", [0, 6, 9, 100])
def test_any_other_number_is_refused_with_the_way_out(batch_id: int) -> None:
    with pytest.raises(
        BatchIdentityError, match=r"does not follow batch 7.*transactional\.id.*allowUnk"
    ):
        judge(of_query(batch_id), LAST)


def test_a_run_that_was_replaced_is_told_so() -> None:
    with pytest.raises(FencedWriterError, match="replaced by run run-2"):
        judge(of_query(8, run_id="run-1"), LAST)


def test_a_query_starts_with_batch_0() -> None:
    assert judge(of_query(0), None) is Verdict.APPEND
    with pytest.raises(BatchIdentityError, match=r"a missing mount.*allowUnknownCheckpoint=true"):
        judge(of_query(1), None)


def test_a_query_may_start_anywhere_where_its_user_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert judge(of_query(57), None, allows_unknown=True) is Verdict.APPEND
    assert "allowUnknownCheckpoint=true lets the query begin with it. Take" in caplog.text


def test_what_its_user_allows_lets_no_other_batch_of_a_known_query_pass() -> None:
    with pytest.raises(BatchIdentityError, match="does not follow batch 7"):
        judge(of_query(57), LAST, allows_unknown=True)


def test_two_jobs_are_never_the_same() -> None:
    assert judge(BatchIdentity("job:x", 0), None) is Verdict.APPEND
    assert not BatchIdentity("job:x", 0).is_remembered


def test_a_new_run_fences_the_one_before() -> None:
    assert remember(of_query(8), LAST, 5) == WriterState("run-2", 8, "digest", 5, ("run-1",))
    assert remember(of_query(8, run_id="run-3"), LAST, 5).fenced == ("run-1", "run-2")


def test_few_fenced_runs_are_kept() -> None:
    last = WriterState("run-0", 0, None, 0)
    for number in range(1, 100):
        last = remember(of_query(number, run_id=f"run-{number}"), last, 0)
    assert len(last.fenced) == 32
    assert last.fenced[-1] == "run-98"


@pytest.mark.parametrize("name", ["../../x", "a/b", "x" * 300, "\udcff", "雲"])
def test_an_id_enters_a_file_name_as_a_hash(name: str) -> None:
    prefix = BatchIdentity(f"query:{name}", 3).staged_prefix
    assert len(prefix) == len(".kafkalog.staged.0123456789abcdef.3.")
    assert "/" not in prefix
