"""Comparisons of a commit: which batch it is, whose, and what of it is there."""

from __future__ import annotations

from typing import Final

from tests.simulation.patches import Instead, Mutation

__all__ = ["GUARDS"]

_COMMITTER: Final = "unit/commit/test_committer.py"
_POWER: Final = "unit/store/test_os_loss.py"

GUARDS: Final = {
    "a run that finds its batch committed is not noted": Mutation(
        "a driver that wakes up late writes over the one that has replaced it",
        {
            "commit.committer.Committer._skip": Instead(
                "last.run_id != self._identity.run_id", "False"
            )
        },
        test=f"{_COMMITTER}::test_a_run_that_only_finds_its_batch_committed_is_remembered_as_long",
    ),
    "what was left is durable in the same commit": Mutation(
        "two states have one number, and readers keep the first",
        {
            "commit.committer.Committer._leave": Instead(
                "state.following() if state.stamp == log_set.state.stamp else state", "state"
            )
        },
        test=f"{_POWER}::test_a_batch_that_comes_again_is_durable_by_what_its_last_run_promises",
    ),
    "a copy ends where its last record does": Mutation(
        "what is appended next gets an offset that the original has given to another record",
        {"commit.copied_ends.StagedEnds.add": Instead("if reached < wanted.end:", "if False:")},
        test="unit/operate/test_copied_bounds.py::test_offsets_that_lie_far_apart_are_no_hindrance",
    ),
    "an open transaction is appended to": Mutation(
        "readers of committed records never come to what is appended",
        {"commit.foreign_log._check_no_open_transaction": Instead("if stable < end:", "if False:")},
        test="unit/commit/test_foreign_log.py::test_nothing_is_appended_behind_an_open_transaction",
    ),
    "an empty log is one with records of nobody": Mutation(
        "nobody can write to a partition that others have made",
        {
            "commit.foreign_log.ForeignLog.check_has_no_more": Instead(
                "if end > committed:", "if True:"
            )
        },
        test="unit/store/test_stale_lines.py::test_a_directory_that_joins_a_set_brings_no_lines_of_partitions_that_it_lacks",
    ),
    "offsets grow beyond what a log can hold": Mutation(
        "offsets that are negative",
        {
            "commit.kept_offsets.check_room": Instead(
                "log_end_offset + records > MAX_OFFSET", "False"
            )
        },
        test="unit/commit/test_kept_offsets.py::test_offsets_end_before_they_could_not_be_counted_any_more",
    ),
    "the checkpoint of another query is asked": Mutation(
        "a batch is told by what another query has planned",
        {
            "commit.query_checkpoint.QueryCheckpoint.of_query": Instead(
                " and found.query_id == query_id", ""
            )
        },
        test="unit/commit/test_query_checkpoint.py::test_another_querys_checkpoint_is_not_taken_for_this_ones",
    ),
    "a query has planned something before its first batch": Mutation(
        "a mirror cannot begin",
        {"commit.query_checkpoint.QueryCheckpoint.ends": Instead("if batch_id < 0:", "if False:")},
        test="unit/commit/test_query_checkpoint.py::test_before_the_first_batch_nothing_was_planned",
    ),
    "a version that comes too late counts as the last one": Mutation(
        "rows are dropped, or the wrong error is told",
        {
            "commit.versions.new_topics_of": Instead(
                "elif identity.batch_id < last.batch_id:", "elif False:"
            )
        },
        test="unit/commit/test_versions.py::test_a_write_that_is_new_to_one_topic_and_too_late_for_another_is_refused",
    ),
    "staged messages are not compared": Mutation(
        "half a row is appended",
        {
            "commit.staging.message_source.check_as_staged": Instead(
                "if crc != run.crc32c:", "if False:"
            )
        },
        test="unit/commit/staging/test_formats.py::test_staged_messages_that_have_changed_or_are_gone_are_not_appended",
    ),
    "staged files of batches to come are swept": Mutation(
        "a batch that is being staged loses its rows",
        {"store.clearing.sweep": Instead("batch_id <= finished.get(writer, -1) or", "True or")},
        test="unit/commit/test_versions.py::test_staged_files_go_with_the_next_write_of_their_id_and_topic_and_no_other",
    ),
    "the last batch again is refused": Mutation(
        "a query that was killed after its commit cannot continue",
        {"store.identity.judge": Instead("if identity.batch_id == last.batch_id:", "if False:")},
        test="unit/store/test_identity.py::test_the_last_batch_again_is_skipped",
    ),
    "the id of a topic is not read again": Mutation(
        "rows are appended to a topic that was made again",
        {
            "store.kept_appenders.AppendersOfSet.topic_id": Instead(
                " and _stamp(folder) == kept.folder", ""
            )
        },
        test="unit/store/test_kept_appenders.py::test_an_id_that_others_have_changed_is_read_again",
    ),
    "a failed rename after which nothing has changed is another one's commit": Mutation(
        "a full disk is told as lost locks",
        {
            "store.publishing._check_published": Instead(
                "failed is not None and (found is None or found.sequence < state.sequence)",
                "False",
            )
        },
        test="unit/store/test_publishing.py::test_a_rename_that_failed_says_why_and_can_be_tried_again",
    ),
}
