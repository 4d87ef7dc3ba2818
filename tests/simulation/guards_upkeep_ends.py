"""Comparisons of ends, ids and generations in what operators call, and in groups."""

from __future__ import annotations

from typing import Final

from tests.simulation.patches import Instead, Mutation

__all__ = ["GUARDS"]

GUARDS: Final = {
    "settings of a broker are taken over again though nothing has changed": Mutation(
        "what was set here since is taken back",
        {
            "operate.broker_settings.with_broker_settings": Instead(
                "found.end == state.metadata_end", "False"
            )
        },
        test="unit/operate/test_broker_settings.py::test_what_was_given_here_since_is_not_taken_back_by_another_takeover",
    ),
    "a log without anything new is due": Mutation(
        "each round of compaction rewrites all logs",
        {
            "operate.cleaning.is_due": Instead(
                "cleanable.end_offset > cleanable.first_dirty_offset", "True"
            )
        },
        test="unit/operate/test_compact.py::test_what_is_too_young_is_not_cleaned",
    ),
    "damage below the recovery point is a torn tail": Mutation(
        "records that were on the disk are dropped without a word",
        {
            "operate.damage.look_for_damage": Instead(
                "flushed_end <= reach_of(segment, walk.valid_end)", "False"
            )
        },
        test="unit/operate/test_salvage.py::test_damage_at_the_end_below_the_recovery_point_is_no_torn_tail",
    ),
    "damage below the committed end is a torn tail": Mutation(
        "committed records are dropped without a word",
        {"operate.damage.look_for_damage": Instead("tail and found.end >= end", "tail")},
        test="unit/operate/test_salvage.py::test_a_dropped_batch_leaves_a_gap_and_all_others_their_offsets",
    ),
    "a log that lacks its committed end is whole": Mutation(
        "a salvage finds nothing, and nobody can write",
        {"operate.damage.look_for_damage": Instead("if found.end < end:", "if False:")},
        test="unit/operate/test_salvage.py::test_a_log_that_lacks_its_committed_end",
    ),
    "a file that has changed is not copied again": Mutation(
        "a backup has files of several commits",
        {"operate.folder_copy.FolderCopy._copy": Instead("known.stamp == stamp", "True")},
        test="unit/operate/test_backup.py::test_a_log_that_was_cut_and_grew_again_is_copied_anew",
    ),
    "two topics are given one id": Mutation(
        "a broker takes them for one topic",
        {
            "operate.handover._check_ids": Instead(
                "list(topic_ids.values()).count(topic_id) > 1", "False"
            )
        },
        test="unit/operate/test_handover_ids.py::test_an_id_that_is_none_is_refused_before_anything_is_changed",
    ),
    "a log that ends elsewhere than the state says is shortened": Mutation(
        "records that a broker appended expire before their time",
        {
            "operate.old_segments.KnownLog._find_end": Instead(
                "if found.offset != end:", "if False:"
            )
        },
        test="unit/operate/test_compact.py::test_records_that_the_commit_state_does_not_know_stop_it",
    ),
    "recovery forgets a log start that is right": Mutation(
        "deleted records are seen again",
        {"operate.recover._Order.put": Instead("self._resets and start > end.end", "self._resets")},
        test="unit/store/test_stale_lines.py::test_recovery_resets_no_start_below_the_end",
    ),
    "recovery leaves a log start above the end": Mutation(
        "nobody can read or write the log",
        {"operate.recover._Order.put": Instead("self._resets and start > end.end", "False")},
        test="unit/store/test_stale_lines.py::test_recovery_resets_a_start_above_the_end_if_it_is_told_to",
    ),
    "a salvage does not say which transactions are open": Mutation(
        "readers of committed records stop, and nobody is told",
        {"operate.salvage._open_transactions": Instead("stable < end", "False")},
        test="unit/operate/test_salvage.py::test_what_was_aborted_stays_so_and_lost_markers_are_said",
    ),
    "a salvage ends a log before its committed end": Mutation(
        "offsets that readers have seen get other records",
        {"operate.salvage._Salvage._begin_after": Instead("end > last", "False")},
        test="unit/operate/test_salvage.py::test_a_log_that_lacks_its_committed_end",
    ),
    "an end that moves is not said": Mutation(
        "a takeover does not say which ends move",
        {
            "operate.state_of_logs.moved_ends": Instead(
                "ends.get((key, number)) != now.log_end", "False"
            )
        },
        test="unit/operate/test_dry_run.py::test_a_brokers_own_directory",
    ),
    "a position may lie outside of a log": Mutation(
        "a group begins at offsets that nobody has written",
        {"groups.administration._check_offset": Instead("start <= offset <= end", "True")},
        test="unit/groups/test_plan_files.py::test_a_group_stands_within_its_logs",
    ),
    "a member that was lost joins as if it were new": Mutation(
        "positions that another one has moved are moved back",
        {
            "groups.membership.Membership._take_note": Instead(
                "self.generation != NO_GENERATION", "False"
            )
        },
        test="unit/groups/test_membership.py::test_a_static_member_that_starts_again_has_its_partitions_at_once",
    ),
    "a member does not take note of a new generation": Mutation(
        "a partition has two owners",
        {
            "groups.membership.Membership._take_note": Instead(
                "record.generation != self.generation", "False"
            )
        },
        test="unit/groups/test_membership.py::test_whoever_is_left_decides_what_a_dead_decider_did_not",
    ),
    "a plan that a group has passed is unfinished": Mutation(
        "rows of a plan are read twice",
        {
            "groups.plan_files.Plan.unfinished": Instead(
                "stands.get(key, move.begin) < move.end", "True"
            )
        },
        test="unit/groups/test_plan_files.py::test_a_plan_is_finished_once_the_group_stands_at_its_end",
    ),
    "a place is any damage of its partition": Mutation(
        "a salvage drops what nobody has named",
        {
            "operate.places.PlaceName.is_of": Instead(
                "damage.start <= self.offset < max(damage.end, damage.start + 1)", "True"
            )
        },
        test="unit/operate/test_salvage.py::test_what_is_named_wrongly_changes_nothing",
    ),
    "aborts that were cut off are written again": Mutation(
        "an index has a transaction twice, and readers lose records of the next one",
        {"operate.open_transactions._index": Instead(" if entry.last_offset < end", "")},
        test="unit/operate/test_open_transactions.py::test_an_abort_that_is_cut_off_anywhere_is_run_again",
    ),
    "a topic that a handover was renaming has two ids for good": Mutation(
        "nobody can recover after a handover that was killed",
        {
            "operate.recover._leave_out_mixed_topics": Instead(
                " and not ids <= log_set.state.topics.keys()", ""
            )
        },
        test="unit/operate/test_handover_ids.py::test_a_handover_that_is_killed_between_two_folders_is_no_problem_of_a_recovery",
    ),
    "bytes between sound batches are no damage": Mutation(
        "a salvage passes over records that are lost",
        {
            "operate.damage._Walk._add": Instead(
                "table.position > ends", "table.position > table.end_position"
            )
        },
        test="unit/operate/test_salvage.py::test_several_segments",
    ),
}
