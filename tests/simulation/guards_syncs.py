"""Fsyncs of what keeps a set in order: a loss of power must not take back what they cover."""

from __future__ import annotations

from typing import Final

from tests.simulation.patches import Instead, Mutation

__all__ = ["GUARDS"]

_UPKEEP: Final = "unit/operate/test_what_survives_upkeep.py::"
_LEFT: Final = "unit/operate/test_what_survives.py::"
_SWAP: Final = "unit/log/test_swap.py::"

GUARDS: Final = {
    "a rewritten segment counts before its files are there": Mutation(
        "after a loss of power a segment lacks its indexes",
        {"log.rewrite._swap_in": Instead("fsync_directory(log.parent)")},
        test=f"{_UPKEEP}test_a_rewritten_segment_has_its_files_before_it_counts",
    ),
    "segments that are cut off are gone in any order": Mutation(
        "after a loss of power a log has a hole",
        {"log.rewrite.truncate_log": Instead("fsync_directory(folder)")},
        test=f"{_UPKEEP}test_what_is_cut_goes_from_its_end_and_stays_away",
    ),
    "what salvage cuts off is not synced": Mutation(
        "damage that was cut off is there again",
        {"log.rewrite.truncate_log": Instead("sync(descriptor)")},
        test=f"{_UPKEEP}test_what_is_cut_goes_from_its_end_and_stays_away",
    ),
    "a segment that salvage rewrites is not synced": Mutation(
        "a loss of power takes what salvage has kept",
        {"log.rewrite._copy_without": Instead("sync(writer)")},
        test=f"{_UPKEEP}test_what_salvage_has_dropped_and_kept_stays",
    ),
    "the torn tail that salvage cuts off is not synced": Mutation(
        "it is there again, in a sealed segment",
        {"operate.salvage._Salvage._begin_after": Instead("sync(descriptor)")},
        test=f"{_UPKEEP}test_a_torn_tail_is_cut_off_before_the_log_goes_on_in_a_new_segment",
    ),
    "the segment in which a log goes on after a salvage is not synced": Mutation(
        "a loss of power takes it, and the log ends below what is committed",
        {"operate.salvage._Salvage._begin_after": Instead("fsync_directory(self._folder)")},
        test=f"{_UPKEEP}test_the_segment_in_which_a_log_goes_on_after_a_lost_end_is_on_the_disk",
    ),
    "what salvage leaves counts as durable and is not": Mutation(
        "a loss of power takes records, and nobody is told",
        {
            "operate.salvage._Salvage._publish": Instead(
                "fsync_file(self._folder / file_name(base, LOG))"
            )
        },
        test=f"{_UPKEEP}test_what_a_salvage_leaves_is_on_the_disk_before_it_counts_as_durable",
    ),
    "the name of what salvage keeps is not synced": Mutation(
        "a loss of power takes the original of what was dropped",
        {"operate.salvage._Salvage._keep": Instead("fsync_directory(self._where.log_dir)")},
        test=f"{_UPKEEP}test_what_salvage_keeps_is_there_before_the_log_changes",
    ),
    "what salvage keeps is not synced": Mutation(
        "a loss of power takes the original of what was cut off",
        {"operate.salvage._copy": Instead("sync(writer)")},
        test=f"{_UPKEEP}test_what_salvage_keeps_is_there_before_the_log_changes",
    ),
    "brokers are kept out of a salvage until the power goes": Mutation(
        "a broker starts on a log that is half salvaged",
        {"store.guard.note_salvage": Instead("fsync_directory(log_dir)")},
        test=f"{_UPKEEP}test_a_salvage_keeps_brokers_out_though_the_power_goes",
    ),
    "markers of aborts are not synced": Mutation(
        "a loss of power takes them, and the transactions are open again",
        {"operate.open_transactions._sync_and_close": Instead("sync(descriptor)")},
        test=f"{_UPKEEP}test_aborts_are_on_the_disk_also_where_a_problem_is_left",
    ),
    "indexes of aborts are not synced": Mutation(
        "a loss of power takes what readers go by",
        {"operate.open_transactions._write": Instead("fsync_file(path, missing_ok=True)")},
        test=f"{_UPKEEP}test_aborts_are_on_the_disk_also_where_a_problem_is_left",
    ),
    "the folder of a log with aborts is not synced": Mutation(
        "a loss of power takes segments with them",
        {"operate.open_transactions._write": Instead("fsync_directory(found.path)")},
        test=f"{_UPKEEP}test_aborts_are_on_the_disk_also_where_a_problem_is_left",
    ),
    "logs that lie before a durable batch are not synced": Mutation(
        "a loss of power takes what a commit has vouched for",
        {"store.recovery_points._sync": Instead("fsync_file(path, missing_ok=True)")},
        test=f"{_UPKEEP}test_a_takeover_makes_folders_and_segments_of_a_broker_durable",
    ),
    "segments that lie before a durable batch are not synced in their folder": Mutation(
        "a loss of power takes what a commit has vouched for",
        {"store.recovery_points._sync": Instead("fsync_directory(log.folder)")},
        test=f"{_UPKEEP}test_a_takeover_makes_folders_and_segments_of_a_broker_durable",
    ),
    "folders of logs that lie before a durable batch are not synced": Mutation(
        "a loss of power takes what a commit has vouched for",
        {"store.recovery_points._sync": Instead("fsync_directory(log.folder.parent)")},
        test=f"{_UPKEEP}test_a_takeover_makes_folders_and_segments_of_a_broker_durable",
    ),
    "the mark of a clean shutdown is there again after a loss of power": Mutation(
        "a broker trusts ends that were true before",
        {
            "kafkalog.checkpoints.broker.remove_clean_shutdown_marker": Instead(
                "fsync_directory(directory)"
            )
        },
        test=f"{_UPKEEP}test_a_broker_does_not_find_the_mark_of_its_clean_stop_after_a_takeover",
    ),
    "names of files that are handed over are not synced": Mutation(
        "a loss of power takes what was handed over as durable",
        {"operate.handover._make_durable": Instead("fsync_directory(each.where.path)")},
        test=f"{_UPKEEP}test_files_that_came_without_a_sync_are_on_the_disk_when_a_broker_gets_them",
    ),
    "an id that a topic gets is not synced": Mutation(
        "a loss of power takes it, and its records belong to nobody",
        {"operate.handover._renamed": Instead("fsync_directory(each.where.path)")},
        test=f"{_UPKEEP}test_an_id_that_a_topic_gets_is_on_the_disk_before_the_state_knows_no_other",
    ),
    "renamed folders of deleted topics are not synced": Mutation(
        "they have their names again, and are a topic that nobody knows",
        {"store.deletion.retire_deleted": Instead("fsync_directory(folder)")},
        test=f"{_UPKEEP}test_folders_of_deleted_topics_are_renamed_before_the_intent_goes",
    ),
    "topics are forgotten before their folders are gone": Mutation(
        "a loss of power brings back folders that nobody removes",
        {"store.deletion._remove_all": Instead("fsync_directory(log_dir)")},
        test=f"{_UPKEEP}test_folders_of_deleted_topics_are_gone_before_they_are_forgotten",
    ),
    "the segment in which an empty log goes on is not synced": Mutation(
        "a loss of power takes it, and with it where the log ends",
        {"operate.old_segments.KnownLog.roll": Instead("fsync_directory(folder)")},
        test=f"{_UPKEEP}test_a_log_that_was_deleted_whole_goes_on_in_a_segment_that_is_there",
    ),
    "the folder of a copy is not synced": Mutation(
        "a loss of power takes a copy that was made",
        {"operate.backup._targets": Instead("fsync_directory(root.parent)")},
        test=f"{_UPKEEP}test_a_copy_is_on_the_disk",
    ),
    "folders of a copied set are not synced": Mutation(
        "a loss of power takes a part of a copy",
        {"operate.backup._targets": Instead("fsync_directory(root)")},
        test=f"{_UPKEEP}test_a_copy_is_on_the_disk",
    ),
    "a copy may be used only until the power goes": Mutation(
        "a broker does not start on it any more",
        {"operate.backup._open_to_all": Instead("fsync_directory(target)")},
        test=f"{_UPKEEP}test_a_copy_is_on_the_disk",
    ),
    "copied files are not synced": Mutation(
        "a copy says that it has what a loss of power takes",
        {"operate.folder_copy.FolderCopy.sync": Instead("fsync_file(self.target / folder / name)")},
        test=f"{_UPKEEP}test_a_copy_has_its_files_before_it_has_a_state",
    ),
    "names of copied files are not synced": Mutation(
        "a copy says that it has what a loss of power takes",
        {"operate.folder_copy.FolderCopy.sync": Instead("fsync_directory(self.target / folder)")},
        test=f"{_UPKEEP}test_a_copy_has_its_files_before_it_has_a_state",
    ),
    "folders of copied partitions are not synced": Mutation(
        "a copy says that it has what a loss of power takes",
        {"operate.folder_copy.FolderCopy.sync": Instead("fsync_directory(self.target)\n", "\n")},
        test=f"{_UPKEEP}test_a_copy_has_its_files_before_it_has_a_state",
    ),
    "names of log directories that are made are not synced": Mutation(
        "a loss of power takes all that is committed in them",
        {"kafkalog.files.folders.make_with_parents": Instead("fsync_directory(each.parent)")},
        test=f"{_UPKEEP}test_a_log_directory_that_is_made_has_its_name_on_the_disk",
    ),
    "names of folders that others have made are not synced": Mutation(
        "who made a log directory was killed, and a loss of power takes what others committed there",
        {"kafkalog.files.folders._sync_name": Instead("fsync_directory(folder.parent)", "pass")},
        test=f"{_UPKEEP}test_a_log_directory_that_a_killed_process_made_has_its_name_on_the_disk",
    ),
    "a batch is committed before its query knows it": Mutation(
        "Spark plans it again, with other rows",
        {
            "commit.committer.Committer._publish": Instead(
                "self._checkpoint.sync(self._identity.batch_id)"
            )
        },
        test=f"{_UPKEEP}test_a_batch_is_known_to_the_querys_checkpoint_before_it_is_published",
    ),
    "the plan of a batch is not synced": Mutation(
        "Spark plans it again, with other rows",
        {"commit.query_checkpoint._fsync_if_there": Instead("sync(descriptor)")},
        test=f"{_UPKEEP}test_a_batch_is_known_to_the_querys_checkpoint_before_it_is_published",
    ),
    "the name of a batch's plan is not synced": Mutation(
        "Spark plans it again, with other rows",
        {"commit.query_checkpoint.QueryCheckpoint.sync": Instead("fsync_directory(folder)")},
        test=f"{_UPKEEP}test_a_batch_is_known_to_the_querys_checkpoint_before_it_is_published",
    ),
    "staged files are not synced": Mutation(
        "nobody can tell whose the bytes are that a loss of power leaves in a log",
        {"commit.staging.staged_file.StagedFileWriter.end": Instead("os.fsync(self._descriptor)")},
        test=f"{_UPKEEP}test_what_is_staged_is_on_the_disk_before_the_log_gets_it",
    ),
    "folders of staged files are not synced": Mutation(
        "nobody can tell whose the bytes are that a loss of power leaves in a log",
        {
            "commit.staging.staged_files.StagingArea._sync_folders": Instead(
                "fsync_directory(self._folders[directory])"
            )
        },
        test=f"{_UPKEEP}test_what_is_staged_is_on_the_disk_before_the_log_gets_it",
    ),
    "the name of a member is not synced": Mutation(
        "after a loss of power it joins as another one beside its former self",
        {"kafkalog.checkpoints.member_name.kept_name": Instead("fsync_directory(folder)")},
        test=f"{_UPKEEP}test_a_members_name_is_on_the_disk",
    ),
    "a lock is proved to the system alone": Mutation(
        "a writer that has lost its locks writes over what another has committed",
        {"store.locks.DirectoryLocks._prove": Instead("os.fsync(held.descriptor)")},
        test="unit/store/test_file_systems.py::test_a_lock_that_a_server_has_taken_away_is_noticed",
    ),
    "folders in which partitions were made that are taken back are not synced": Mutation(
        "they are there again after a loss of power",
        {"store.take_back._sync_parents": Instead("fsync_directory(log_set.members[member])")},
        test=f"{_LEFT}test_what_was_taken_back_does_not_come_back",
    ),
    "new segments settle before they have their names": Mutation(
        "after a loss of power a log lacks segments",
        {
            "log.swap._put_in_place": Instead(
                "        try_to_link(_with(path, SWAP), path)\n    fsync_directory(folder)",
                "        try_to_link(_with(path, SWAP), path)",
            )
        },
        test=f"{_SWAP}test_each_step_of_a_swap_is_on_the_disk_before_the_next_one",
    ),
    "indexes settle before the log does": Mutation(
        "after a loss of power a log lacks segments",
        {
            "log.swap._put_in_place": Instead(
                "                _settle(path)\n        fsync_directory(folder)",
                "                _settle(path)",
            )
        },
        test=f"{_SWAP}test_each_step_of_a_swap_is_on_the_disk_before_the_next_one",
    ),
    "what a cut-off swap has made void is gone in any order": Mutation(
        "after a loss of power a part of the cleaned segments counts",
        {"log.swap.finish_swap": Instead("fsync_directory(folder)")},
        test=f"{_SWAP}test_what_a_cut_off_swap_made_void_is_gone_before_what_tells_that",
    ),
    "a half copy keeps brokers out until the power goes": Mutation(
        "a broker starts on a part of a set",
        {"operate.backup._targets": Instead("fsync_directory(folder)")},
        test=f"{_UPKEEP}test_a_copy_keeps_brokers_out_before_it_has_anything",
    ),
}
