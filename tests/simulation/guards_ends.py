"""Comparisons that tell where a log ends, and what of it is committed, lost or left."""

from __future__ import annotations

from typing import Final

from tests.simulation.patches import Instead, Mutation

__all__ = ["GUARDS"]

_ENDS: Final = "unit/store/test_ends.py"
_POWER: Final = "unit/store/test_os_loss.py"
_NEVER_CUT: Final = f"{_ENDS}::test_what_was_committed_acknowledged_or_flushed_is_never_cut"
_STATE: Final = "unit/checkpoints/test_commit_state.py::test_content_that_we_never_write_is_refused"

GUARDS: Final = {
    "no log ends below what is committed": Mutation(
        "readers wait for records that are lost, and are not told",
        {"store.ends.rule.end_of": Instead("committed > log.end", "False")},
        test=f"{_ENDS}::test_where_readers_stop",
    ),
    "no log starts above its end": Mutation(
        "records are hidden, and nobody is told",
        {"store.ends.rule.end_of": Instead("max(offset, log.end) < start", "False")},
        test=f"{_ENDS}::test_no_end_lies_below_the_log_start",
    ),
    "what is not committed is not seen": Mutation(
        "nobody is told of records that no reader gets",
        {"store.ends.rule.end_of": Instead("stop < log.end", "False")},
        test=f"{_ENDS}::test_where_readers_stop",
    ),
    "damage above a log's end is told to all": Mutation(
        "a query fails over damage that it does not read",
        {"store.ends.rule.end_of": Instead(" and stop <= log.end", "")},
        test="unit/store/test_ends.py::test_up_to_the_log_end_readers_stop_there_where_it_has_what_is_committed",
    ),
    "what a broker claims counts as ours": Mutation(
        "what was never written is a loss",
        {"store.ends.rule._lacking": Instead("ours > log.end", "True")},
        test="unit/store/test_ends.py::test_whatever_files_say_ends_are_in_order",
    ),
    "what is committed may be cut off": Mutation(
        "offsets that readers have seen get other records",
        {"store.ends.rule.marks_above": Instead("end < said.committed", "False")},
        test=_NEVER_CUT,
    ),
    "what is below the high watermark may be cut off": Mutation(
        "offsets that consumers have seen get other records",
        {"store.ends.rule.marks_above": Instead("end < said.high_watermark", "False")},
        test=_NEVER_CUT,
    ),
    "what is below the recovery point may be cut off": Mutation(
        "records that were on the disk are gone",
        {"store.ends.rule.marks_above": Instead("end < flushed <= reach()", "False")},
        test=_NEVER_CUT,
    ),
    "a recovery point of an earlier topic counts": Mutation(
        "a torn tail is never cut, and nobody can write",
        {"store.ends.rule.marks_above": Instead("end < flushed <= reach()", "end < flushed")},
        test=_NEVER_CUT,
    ),
    "a recovery point above the end is believed": Mutation(
        "a loss of power takes records that were acknowledged as durable",
        {"store.recovery_points.sync_up_to": Instead("point > log.end_offset", "False")},
        test="unit/store/test_stale_lines.py::test_a_recovery_point_above_the_end_of_a_log_counts_as_none",
    ),
    "what is on the disk already is synced again": Mutation(
        "each commit syncs all of a log",
        {"store.recovery_points.sync_up_to": Instead("if point < log.end_offset:", "if True:")},
        test="unit/commit/test_committer.py::test_an_fsync_that_failed_is_not_tried_again_until_it_succeeds",
    ),
    "a state from before the machine started is believed": Mutation(
        "a batch is appended after a hole",
        {"store.os_loss.refuse_os_loss": Instead("state.boot == current", "True")},
        test=f"{_POWER}::test_until_the_loss_is_accepted_everybody_names_the_command",
    ),
    "records that were durable are given up as a loss of power": Mutation(
        "what can be restored is cut off for good",
        {"store.os_loss.accept_os_loss": Instead("each.start < each.durable_end", "False")},
        test=f"{_POWER}::test_what_was_durable_is_never_given_up",
    ),
    "readers look once for what the power took, whatever comes": Mutation(
        "readers lack what is committed, and are not told",
        {"store.unsynced.UnsyncedCheck.check": Instead("state.sequence == self._sequence", "True")},
        test=f"{_POWER}::test_until_the_loss_is_accepted_everybody_names_the_command",
    ),
    "a log that is shorter than its end is whole": Mutation(
        "a batch is appended after a hole",
        {"store.unsynced.find_lost": Instead("whole < end", "False")},
        test=f"{_POWER}::test_until_the_loss_is_accepted_everybody_names_the_command",
    ),
    "a partition may start above its end": Mutation(
        "a state is believed that nobody has written",
        {
            "kafkalog.checkpoints.state_file._check_topic": Instead(
                "0 <= log_start <= high_watermark <= log_end < 2**63", "True"
            )
        },
        test=_STATE,
    ),
    "a partition may have any epoch": Mutation(
        "batches get an epoch that no broker reads",
        {
            "kafkalog.checkpoints.state_file._check_topic": Instead(
                "UNKNOWN_EPOCH <= epoch < 2**31", "True"
            )
        },
        test=_STATE,
    ),
    "leader epochs may fall": Mutation(
        "a broker finds no end for an epoch, and cuts its replica wrongly",
        {
            "kafkalog.checkpoints.broker._leader_epochs": Instead(
                "after.epoch <= before.epoch or ", ""
            )
        },
        test="unit/checkpoints/test_broker.py::test_leader_epochs_that_do_not_ascend_are_refused",
    ),
    "an epoch that is known is read again": Mutation(
        "a commit fails over a file of a broker that it does not need",
        {"store.partition_states._told": Instead("known.leader_epoch != UNKNOWN_EPOCH", "False")},
        test="unit/store/test_earlier_formats.py::test_kafkas_checkpoints_are_read_for_that_once",
    ),
    "what is not yet below the high watermark expires": Mutation(
        "records go that consumers have not seen",
        {"store.retention._taken": Instead("bounds.high_watermark < end or ", "")},
        test="unit/store/test_retention.py::test_what_has_expired",
    ),
    "a view looks at segments outside of its range, too": Mutation(
        "a view fails over segments that retention took below it",
        {"store.ends.cleaned_beyond._is_replaced": Instead("start <= base_offset < end", "True")},
        test="unit/source/test_cleaned_beyond.py::test_what_retention_or_a_later_roll_renamed_is_nothing",
    ),
    "a view does not see that a cleaner has gone beyond its end": Mutation(
        "keys have no row, and nobody is told",
        {"store.ends.cleaned_beyond.cleaned_beyond": Instead("cleaned > end", "False")},
        test="unit/source/test_cleaned_beyond.py::test_a_cleaner_that_is_ahead_of_what_is_known_to_be_committed",
    ),
    "a view looks for cleaners where no segment lies beyond it": Mutation(
        "a view over a log that is being compacted below it fails",
        {
            "store.ends.cleaned_beyond.cleaned_beyond": Instead(
                "log.segments[-1].base_offset <= end", "False"
            )
        },
        test="unit/source/test_latest.py::test_a_compacted_log_gives_what_it_gave_before",
    ),
    "readers believe a log that has changed": Mutation(
        "records are never given that came after the first look",
        {"store.ends.seen_log.SeenLog.has_changed": Instead("stamp != self._stamp", "False")},
        test="unit/source/test_recreated.py::test_a_topic_recreated_while_the_query_runs_is_read_from_its_start",
    ),
    "the last stable offset of an earlier look is believed": Mutation(
        "records of a transaction that is open are given as committed",
        {
            "store.ends.seen_log.SeenLog.last_stable": Instead(
                "known[:2] == (end, self._stamp)", "True"
            )
        },
        test="unit/source/test_isolation.py::test_micro_batches_count_offsets_and_hide_what_is_not_committed",
    ),
    "what lies in an open transaction is stable": Mutation(
        "a batch is planned whose records may be aborted",
        {
            "store.ends.seen_log.SeenLog.is_stable": Instead(
                "StableOffset(self.where.path, around_damage=around_damage).find(end) >= offset",
                "True",
            )
        },
        test="unit/source/test_isolation.py::test_a_query_that_has_read_into_an_open_transaction_waits_there_for_its_end",
    ),
    "what was verified of an earlier topic counts": Mutation(
        "a topic with an id cannot be read",
        {"store.ends.seen_log.SeenLog._take_id": Instead("topic_id != self.topic_id", "False")},
        test="unit/commit/test_kept_offsets.py::test_records_keep_their_timestamp_types_whatever_the_setting_of_the_topic_is",
    ),
    "a log that was seen to end too early is not read again": Mutation(
        "a batch that was planned before a restart cannot be given",
        {
            "store.ends.watch.EndsWatch._read_again": Instead(
                "ends.offsets.get(key, offset) < offset", "False"
            )
        },
        test="unit/source/test_while_a_broker_runs.py::test_a_log_that_was_read_before_it_came_to_an_offset_is_read_again",
    ),
    "every log reaches every offset": Mutation(
        "a query waits for records that are lost",
        {
            "store.ends.watch.EndsWatch.reaches": Instead(
                "offset <= end_of(self._said(log), log.seen).reach", "True"
            )
        },
        test="unit/source/test_while_a_broker_runs.py::test_an_offset_beyond_the_log_is_a_loss_wherever_what_is_committed_ends",
    ),
    "ids of topics are those of the first look": Mutation(
        "a topic that was made again is taken for the earlier one",
        {
            "store.ends.watch.EndsWatch.topic_ids": Instead(
                "if ids != self._topic_ids:", "if not self._topic_ids:"
            )
        },
        test="unit/source/test_recreated.py::test_a_topic_recreated_while_the_query_runs_is_read_from_its_start",
    ),
}
