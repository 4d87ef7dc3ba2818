"""Guards of directories that change hands, and of copies: backups, mirrors, restores."""

from __future__ import annotations

from typing import Final

from tests.simulation.patches import Instead, Mutation

__all__ = ["GUARDS"]

GUARDS: Final = {
    "directories of another broker are handed over": Mutation(
        "the broker does not start on them",
        {
            "store.broker_identity.refuse_another_identity": Instead(
                "if (cluster, node) != (cluster_id, str(node_id)):", "if False:"
            )
        },
        test="unit/operate/test_handover.py::test_directories_of_another_broker_are_not_handed_over",
    ),
    "a broker's cluster may be called anything": Mutation(
        "meta.properties says other things than were meant",
        {
            "store.broker_identity.check_identity": Instead(
                "if cluster_id is not None and _CLUSTER_ID.fullmatch(cluster_id) is None:",
                "if False:",
            )
        },
        test="unit/operate/test_handover.py::test_what_is_no_id_of_a_cluster_is_not_written",
    ),
    "a broker's node may have any number": Mutation(
        "no broker can start on the directories",
        {
            "store.broker_identity.check_identity": Instead(
                "if node_id is not None and node_id < 0:", "if False:"
            )
        },
        test="unit/operate/test_handover.py::test_what_is_no_id_of_a_node_is_not_written",
    ),
    "an identity that is there is written anew": Mutation(
        "the cluster no longer knows its directory",
        {"operate.handover._give": Instead(" and not (folder / META_PROPERTIES).exists():", ":")},
        test="unit/operate/test_handover.py::test_a_directory_keeps_the_identity_that_it_has",
    ),
    "a clean shutdown is marked whatever lies there": Mutation(
        "a broker trusts ends of its own logs that nobody has looked at",
        {
            "operate.handover._give": Instead(
                "if all(found.log_dir != folder for found in done.skipped):", "if True:"
            )
        },
        test="unit/operate/test_handover.py::test_where_a_broker_has_logs_of_its_own_no_clean_shutdown_is_marked",
    ),
    "the mark of a clean shutdown outlasts a takeover": Mutation(
        "a broker trusts logs that were written since",
        {"operate.handover._take": Instead("remove_clean_shutdown_marker(folder)")},
        test="unit/operate/test_handover.py::test_after_a_takeover_no_mark_of_a_clean_shutdown_is_left",
    ),
    "high watermarks stay above logs that were taken over": Mutation(
        "what is appended next is committed before it is there",
        {"operate.handover._take": Instead("_lower_high_watermarks(folder, done.partitions)")},
        test="unit/operate/test_handover.py::test_after_a_takeover_high_watermarks_say_no_more_than_there_is",
    ),
    "lines of partitions that a broker removed stay": Mutation(
        "a new topic of the name begins with the ends of an old one",
        {"operate.handover._take": Instead("drop_lines_of_gone(folder)")},
        test="unit/operate/test_handover.py::test_after_a_takeover_high_watermarks_say_no_more_than_there_is",
    ),
    "copies are left to the system": Mutation(
        "a loss of power takes records of a copy whose state is there",
        {"operate.backup._finish": Instead("copy.sync()")},
        test="unit/operate/test_backup.py::test_a_copy_is_durable_before_its_state_says_so",
    ),
    "a copy does not prove its locks": Mutation(
        "a copy has half of a commit",
        {"operate.backup._copy_set": Instead("session.verify()")},
        test="unit/operate/test_backup.py::test_a_copy_whose_last_pass_was_without_the_locks_is_none",
    ),
    "a part of a set and others are copied as a set": Mutation(
        "a copy that nobody can write",
        {"operate.backup._is_ours": Instead("if without:", "if False:")},
        test="unit/operate/test_backup.py::test_nothing_is_copied_over_something_nor_of_a_part_of_a_set",
    ),
    "a mirror appends wherever its copy ends": Mutation(
        "offsets of a copy name other records than those of its original",
        {
            "commit.copied_ends.StagedEnds.add": Instead(
                "if wanted.begin is not None and log_end != wanted.begin:", "if False:"
            )
        },
        test="unit/operate/test_copied_bounds.py::test_what_is_appended_to_a_copy_begins_where_that_ended",
    ),
    "a copy is continued wherever another job has brought it": Mutation(
        "an end of a copy goes back",
        {
            "commit.copied_ends.CopiedBatch.check_target": Instead(
                "if copied != part.copied:", "if False:"
            )
        },
        test="unit/jobs/test_mirroring.py::test_of_two_mirrors_at_once_one_copies",
    ),
    "what is read of a log that was cut meanwhile is copied": Mutation(
        "a copy mixes two histories of its original",
        {
            "commit.copied_ends.CopiedBatch.check_source": Instead(
                "if not _has_passed(watch, key, part.position):", "if False:"
            )
        },
        test="unit/jobs/test_mirroring.py::test_an_original_that_changes_while_it_is_read_is_not_copied",
    ),
    "a mirror is given topics and a pattern": Mutation(
        "one of the two is passed over",
        {
            "kafkalog.jobs.mirroring.Mirror.check": Instead(
                "if bool(self.topics) == (self.pattern is not None):", "if False:"
            )
        },
        test="unit/jobs/test_mirroring.py::test_topics_are_named_or_matched_not_both",
    ),
    "a log is mirrored into itself": Mutation(
        "a query reads what it writes",
        {
            "kafkalog.jobs.mirroring.Mirror.check": Instead(
                "if (both := folder_in_both(into.paths, local)) is not None:", "if both := None:"
            )
        },
        test="unit/jobs/test_mirroring.py::test_a_log_is_no_copy_of_itself",
    ),
    "a mirror waits for topics that nobody has": Mutation(
        "a wrong name copies nothing, and nobody is told",
        {
            "kafkalog.jobs.mirroring.Mirror.check": Instead(
                "if self._is_new or self.rebuild:", "if False:"
            )
        },
        test="unit/jobs/test_mirroring.py::test_a_new_mirror_wants_topics_that_are_there",
    ),
    "a copy may have more partitions than its original": Mutation(
        "keys lie in other partitions than in the original",
        {
            "kafkalog.jobs.mirroring.Mirror._check_planned": Instead(
                "if counts.get(topic, 0) > facts.partition_count:", "if False:"
            )
        },
        test="unit/jobs/test_mirroring.py::test_a_topic_of_more_partitions_is_no_copy",
    ),
    "a new mirror goes on in records of others": Mutation(
        "a copy has records that its original lacks",
        {
            "kafkalog.jobs.mirroring.Mirror._refuse_records": Instead(
                "if end > start and held.end_of(key) is None:", "if False:"
            )
        },
        test="unit/jobs/test_mirroring.py::test_records_of_which_nothing_tells_that_they_are_a_copy_are_refused",
    ),
    "a copy starts where its original does, wherever it ends": Mutation(
        "a mirror that lags behind fails, and not for the loss",
        {
            "kafkalog.jobs.mirroring.Mirror._move_starts": Instead(
                "min(bounds.start, ends[key])", "bounds.start"
            )
        },
        test="unit/jobs/test_mirroring.py::test_a_copy_starts_no_later_than_it_ends",
    ),
    "a topic of other partitions is restored over": Mutation(
        "keys lie in other partitions than they were in",
        {
            "kafkalog.jobs.restore_plan.TopicPlan.progress": Instead(
                "if len(known.partitions) != len(self.bounds):", "if False:"
            )
        },
        test="unit/jobs/test_restore_plan.py::test_a_topic_with_records_of_others_is_refused_and_an_empty_one_is_not",
    ),
    "a restore has other partitions than the table says": Mutation(
        "records are left out, or keys lie elsewhere",
        {
            "kafkalog.jobs.restore_plan._count": Instead(
                "if given not in {None, least}:", "if False:"
            )
        },
        test="unit/jobs/test_restore_plan.py::test_a_number_of_partitions_that_cannot_be_is_refused",
    ),
    "a restore has fewer partitions than have records": Mutation(
        "records are left out",
        {
            "kafkalog.jobs.restore_plan._count": Instead(
                "elif given is not None and given < least:", "elif False:"
            )
        },
        test="unit/jobs/test_restore_plan.py::test_a_number_of_partitions_that_cannot_be_is_refused",
    ),
    "ends of topics that are not restored are passed over": Mutation(
        "a wrong name restores what was to be left out",
        {
            "kafkalog.jobs.restore_plan.check_target": Instead(
                "if key.topic not in topics:", "if False:"
            )
        },
        test="unit/jobs/test_restore_plan.py::test_what_no_topic_can_have_is_refused_before_the_table_is_read",
    ),
}
