"""Guards that tell which batch is written, and where: ids, sequences, ends, digests."""

from __future__ import annotations

from typing import Final

from tests.simulation.patches import Instead, Mutation

__all__ = ["GUARDS"]

_KILLS: Final = {"kill": 300, "torn": 400}
_QUERIES: Final = ("query", "query", "reader")
_ONE: Final = ("query", "appender", "reader")
_TWICE: Final = "a batch that comes again is there twice"

GUARDS: Final = {
    "a batch that comes again is not known": Mutation(
        _TWICE,
        {
            "store.identity.judge": Instead(
                "return _judge_last_again(identity, last)", "return Verdict.APPEND"
            )
        },
        _QUERIES,
        _KILLS,
    ),
    "a run that is fenced may write": Mutation(
        "a driver that wakes up late writes over the one that has replaced it",
        {"store.identity.judge": Instead("if identity.run_id in last.fenced:", "if False:")},
        test="unit/store/test_identity.py::test_a_run_that_was_replaced_is_told_so",
    ),
    "a run that was replaced is not fenced": Mutation(
        "a driver that wakes up late writes over the one that has replaced it",
        {
            "store.identity.remember": Instead(
                "if last is not None and last.run_id != identity.run_id:", "if False:"
            )
        },
        test="unit/store/test_identity.py::test_a_new_run_fences_the_one_before",
    ),
    "a run that wakes up late replaces the present one": Mutation(
        "a driver that wakes up late pushes out the one that has replaced it",
        {"commit.committer.Committer._skip": Instead(" and not is_late", "")},
        _QUERIES,
        _KILLS,
    ),
    "any batch may follow": Mutation(
        "a batch of an old checkpoint is there twice",
        {
            "store.identity.judge": Instead(
                "if identity.batch_id == last.batch_id + 1:",
                "if identity.batch_id != last.batch_id:",
            )
        },
        test="unit/store/test_identity.py::test_any_other_number_is_refused_with_the_way_out",
    ),
    "the last batch again may have other content": Mutation(
        "rows of another run are dropped as committed",
        {
            "store.identity._judge_last_again": Instead(
                "if last.digest is None or identity.digest == last.digest:", "if True:"
            )
        },
        test="unit/store/test_identity.py::test_the_last_number_with_other_content_is_refused",
    ),
    "a query may begin anywhere": Mutation(
        "a query begins in the empty mount point of a missing disk",
        {"store.identity._judge_first": Instead("if identity.batch_id == 0:", "if True:")},
        test="unit/store/test_identity.py::test_a_query_starts_with_batch_0",
    ),
    "a version that comes again is new": Mutation(
        _TWICE,
        {
            "commit.versions.new_topics_of": Instead(
                "if last is None or identity.batch_id > last.batch_id:",
                "if last is None or identity.batch_id >= last.batch_id:",
            )
        },
        ("versioned", "batch", "reader"),
        _KILLS,
    ),
    "a version below the last one is new": Mutation(
        _TWICE,
        {
            "commit.versions.new_topics_of": Instead(
                "if last is None or identity.batch_id > last.batch_id:",
                "if last is None or identity.batch_id != last.batch_id:",
            )
        },
        test="unit/commit/test_versions.py::test_versions_grow_with_gaps_in_each_topic_by_itself",
    ),
    "other rows under a version are skipped": Mutation(
        "rows are dropped as committed",
        {
            "commit.versions.new_topics_of": Instead(
                "elif last.digest not in (None, digest):", "elif False:"
            )
        },
        test="unit/commit/test_versions.py::test_a_version_that_comes_again_with_other_rows_is_refused_and_says_what_to_do",
    ),
    "intents that are published count as unfinished": Mutation(
        "what is committed is cut off",
        {
            "store.log_set.LogSet._still_to_take_back": Instead(
                "if intent.sequence > state.sequence:", "if True:"
            )
        },
        _ONE,
        _KILLS,
    ),
    "what is taken back is not proved": Mutation(
        "records of a broker, or of another writer, are cut off",
        {
            "store.take_back._check_partition": Instead(
                "check_ours(log_set, intended, folder, staged_may_be_lost=staged_may_be_lost)"
            )
        },
        test="unit/store/test_recovery.py::test_a_batch_that_another_writer_appended_behind_is_never_taken_away",
    ),
    "what a broker has acknowledged may be taken back": Mutation(
        "records that consumers have seen are cut off",
        {
            "store.take_back._check_partition": Instead(
                "_check_not_acknowledged(folder, intended, marks)"
            )
        },
        test="unit/store/test_recovery.py::test_what_was_acknowledged_is_not_taken_back_with_an_older_state",
    ),
    "a segment of others is taken back too": Mutation(
        "records of a broker, or of another writer, are cut off",
        {"store.proof.check_ours": Instead("_check_no_other_segments(intended, folder)")},
        test="unit/store/test_recovery.py::test_a_segment_that_another_writer_made_is_kept_too",
    ),
    "a log that is shorter than before is taken back": Mutation(
        "zeros are put in place of lost records",
        {"store.proof._check_segments": Instead("if size < segment.size_before:", "if False:")},
        test="unit/store/test_recovery.py::test_a_log_that_lost_committed_bytes_is_told",
    ),
    "an intent of another set is taken back": Mutation(
        "records of another set are cut off",
        {
            "store.take_back._check_belongs": Instead(
                "if intent.set_id != log_set.state.set_id "
                "or not members <= {*log_set.state.member_ids}:",
                "if False:",
            )
        },
        test="unit/store/test_recovery.py::test_an_intent_of_another_set_is_not_acted_on",
    ),
    "a log that ends too early is appended to": Mutation(
        "offsets that readers have seen get other records",
        {"commit.foreign_log.ForeignLog._check_end": Instead("self.check_has_all(end)")},
        _ONE,
        {"old": 60},
        drawn={"directories": 2},
    ),
    "a log that is older than its high watermark is appended to": Mutation(
        "offsets that consumers have seen get other records",
        {
            "commit.foreign_log.ForeignLog.check_has_all": Instead(
                "if found.missing is None:", "if True:"
            )
        },
        test="unit/commit/test_foreign_log.py::test_a_log_that_ends_below_the_high_watermark_is_not_appended_to",
    ),
    "a log that goes on after its end is appended to": Mutation(
        "a batch is there twice",
        {"commit.foreign_log.ForeignLog._check_end": Instead("self.check_has_no_more(end)")},
        test="unit/commit/test_foreign_log.py::test_batches_that_nobody_can_have_appended_are_not_appended_after",
    ),
    "what was acknowledged is cut off with a torn tail": Mutation(
        "records that consumers have seen are gone",
        {
            "commit.foreign_log.ForeignLog._check_may_go": Instead(
                "if mark is not None:", "if False:"
            )
        },
        test="unit/commit/test_foreign_log.py::test_damage_below_the_committed_end_is_never_cut_off",
    ),
    "damage in the middle is cut off": Mutation(
        "whole batches after it are gone",
        {
            "commit.foreign_log.ForeignLog._check_may_go": Instead(
                "if later is not None:", "if False:"
            )
        },
        test="unit/commit/test_foreign_log.py::test_damage_with_a_valid_batch_behind_it_is_no_torn_tail",
    ),
    "a torn tail stays": Mutation(
        "after a broker was killed nobody can write",
        {"commit.foreign_log.ForeignLog.open": Instead("self.cut_torn_tail()")},
        test="unit/commit/test_foreign_log.py::test_a_torn_batch_above_the_committed_end_is_cut_off",
    ),
    "remembered ends are believed whatever has changed": Mutation(
        "a commit writes over what others have appended",
        {
            "store.kept_appenders.AppendersOfSet.take": Instead(
                "if kept is None or _stamp(folder) != kept.folder:", "if kept is None:"
            ),
            "store.kept_appenders._stamps": Instead(
                'return tuple(_stamp(f"{folder}/{name}") for name in names)', "return ()"
            ),
        },
        test="unit/store/test_kept_appenders.py::test_what_a_broker_appended_is_gone_on_behind",
    ),
    "rows of partitions that are lost are written": Mutation(
        "offsets that readers have seen get other records",
        {"commit.planning._Planner.open": Instead("self._check_none_lost(topic)")},
        test="unit/store/test_lost_partitions.py::test_nothing_is_written_to_a_topic_that_lacks_a_partition",
    ),
    "a log start above the end is appended to": Mutation(
        "what is appended is hidden",
        {
            "commit.planning._Planner._open_partition": Instead(
                "check_log_start(found, log_start, appender.log_end_offset)"
            )
        },
        test="unit/store/test_stale_lines.py::test_a_log_whose_start_lies_above_its_end_is_neither_read_nor_appended_to",
    ),
    "a member that is missing is passed over": Mutation(
        "partitions of a disk that is not mounted begin again at offset 0",
        {
            "store.open_set._members": Instead(
                "if len(found) < len(newest.member_ids):", "if False:"
            )
        },
        test="unit/store/test_log_set.py::test_a_missing_member_is_refused",
    ),
    "a directory that is not empty may join": Mutation(
        "partitions whose state was lost begin again",
        {"store.open_set._look": Instead("_check_may_join(folder, policy, joins=not starts)")},
        test="unit/store/test_log_set.py::test_a_lost_state_is_refused_and_says_what_to_do",
    ),
    "staged files are not compared": Mutation(
        "half a row is appended",
        {
            "commit.staging.staged_source.StagedSource._check": Instead(
                "if crc != self._run.crc32c:", "if False:"
            )
        },
        test="unit/commit/test_committer.py::test_a_staged_file_that_changed_is_not_appended",
    ),
    "staged files of a commit that has begun are dropped": Mutation(
        "nobody can tell what a killed commit has written",
        {
            "commit.committer.Committer._drop": Instead("run.file not in named and", ""),
        },
        test="unit/commit/test_committer.py::test_aborting_with_what_an_unfinished_commit_names_takes_nothing_away",
    ),
    "staged files of a committed batch are dropped": Mutation(
        "after a loss of power nobody can tell whose the bytes of a log are",
        {
            "commit.committer.Committer._drop": Instead(
                "if last is not None and last.batch_id >= self._identity.batch_id:", "if False:"
            ),
        },
        test="unit/store/test_publishing.py::test_what_was_staged_stays_until_the_state_that_names_it_is_durable",
    ),
    "an intent is ended whoever has published": Mutation(
        "checkpoints get the ends of a commit that was taken back",
        {
            "store.take_back._end_finished": Instead(
                "if (intent.sequence, intent.commit_id) == log_set.state.stamp", ""
            ),
        },
        test="unit/store/test_publishing.py::test_what_an_intent_of_another_commit_says_is_not_done_after_a_commit",
    ),
    "remembered ends are believed whoever has published": Mutation(
        "a commit writes over what others have appended",
        {
            "store.kept_appenders.KeptAppenders.begin": Instead(
                "if known is None or known.stamp != state.stamp:", "if known is None:"
            ),
            "commit.planning._Planner._open_partition": Instead(
                "if appender is not None and appender.log_end_offset == committed_end:",
                "if appender is not None:",
            ),
        },
        test="unit/store/test_kept_appenders.py::test_a_segment_that_another_writer_began_within_a_tick_of_the_clock_is_noticed",
    ),
    "an older copy that has begun another commit is a member": Mutation(
        "half of one attempt of a batch and half of another are visible",
        {
            "store.open_set.open_set": Instead(
                "check_one_history({folder: state.stamp for folder, state in known.items()}, intents)"
            ),
        },
        test="unit/store/test_log_set.py::test_a_directory_that_began_a_commit_which_was_made_without_it_is_not_written_to",
    ),
    "writers are forgotten by one look at the clock": Mutation(
        "a clock that jumps lets batches in twice",
        {
            "commit.states.next_state": Instead(
                "writers = still_known(state.writers, now_ms)",
                "writers = {k: w for k, w in state.writers.items() if w.time_ms + w.expiration_ms > now_ms}",
            ),
        },
        test="crash/test_fault_walk.py::test_commits_while_the_clock_is_far_ahead_forget_nobody_and_say_who_seems_silent",
    ),
}
