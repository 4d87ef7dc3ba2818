"""Guards against a loss of power, and against processes that end amid what they do."""

from __future__ import annotations

from typing import Final

from tests.simulation.patches import Instead, Mutation

__all__ = ["GUARDS"]

_WHO: Final = ("query", "appender", "reader")
_POWER: Final = {"power": 400}
_KILLS: Final = {"kill": 300, "torn": 400}
_OS: Final = {"flush": "os"}
_SMALL: Final = {"segment.bytes": "200"}

GUARDS: Final = {
    "the folder of a state that was replaced is not synced": Mutation(
        "a loss of power takes a commit back that was acknowledged",
        {"store.publishing._sync": Instead("fsync_directory(folder)")},
        _WHO,
        _POWER,
        _OS,
    ),
    "folders of files that are replaced are not synced": Mutation(
        "after a loss of power files are older than what they vouch for",
        {"kafkalog.files.atomic.publish": Instead("fsync_directory(path.parent)")},
        _WHO,
        _POWER,
    ),
    "intents are not made durable": Mutation(
        "a loss of power tears them, or leaves bytes that nobody can tell",
        {
            "store.nodes.Node.declare": Instead(
                "write_atomically(folder / INTENT_FILE, content)",
                "write_atomically(folder / INTENT_FILE, content, fsync=False)",
            )
        },
        _WHO,
        _POWER,
    ),
    "the mark of a clean shutdown stays": Mutation(
        "a broker trusts ends that were true before",
        {"store.nodes.Node.declare": Instead("remove_clean_shutdown_marker(folder, fsync=False)")},
        test="unit/commit/test_committer.py::test_kafkas_clean_shutdown_marker_goes_before_the_first_byte",
    ),
    "folders of new segments are not synced": Mutation(
        "a loss of power takes segments with acknowledged records",
        {"commit.append.PartitionAppend.sync": Instead("fsync_directory(self.plan.directory)")},
        _WHO,
        _POWER,
        _SMALL,
    ),
    "a batch that comes again is not made durable": Mutation(
        "a loss of power takes what was acknowledged with flush=commit",
        {
            "commit.committer.Committer._leave": Instead(
                "if self._durable and (ends := make_left_durable(log_set)):", "if False:"
            )
        },
        test="unit/store/test_os_loss.py::test_a_batch_that_comes_again_is_durable_by_what_its_last_run_promises",
    ),
    "topics that have a version already are not made durable": Mutation(
        "a loss of power takes what was acknowledged with flush=commit",
        {
            "commit.committer.Committer._still_to_write": Instead(
                "if self._durable and len(left) < len(given.digests):", "if False:"
            )
        },
        test="unit/store/test_os_loss.py::test_a_version_that_some_topics_have_is_durable_in_them_too",
    ),
    "checkpoints of a commit that was cut off are not written": Mutation(
        "a broker cuts off what is committed",
        {
            "store.take_back._end_finished": Instead(
                "_write_ends(log_set, intent, durable=durable)"
            ),
        },
        test="unit/store/test_recovery.py::test_an_intent_that_a_state_has_published_is_only_cleared_away",
    ),
    "log starts of a round that was cut off are not repeated": Mutation(
        "a broker serves what is deleted",
        {"store.take_back._end_finished": Instead("repeat_log_starts(log_set)")},
        test="unit/operate/test_retain.py::test_whichever_call_it_is_killed_at_the_next_round_ends_it",
    ),
    "a log start may pass what flush=os left": Mutation(
        "after a loss of power a log ends below its start",
        {"operate.shortening._publish": Instead("make_shortened_durable(log_set, starts)")},
        test="unit/operate/test_retain.py::test_what_was_left_to_the_system_is_not_looked_for_once_it_has_expired",
    ),
    "what takes the place of deleted records is durable": Mutation(
        "after a loss of power less is left than retention keeps",
        {
            "commit.left_to_system.make_shortened_durable": Instead(
                "number in starts.get(key, {})",
                "starts.get(key, {}).get(number, 0) > log_set.state.topics[key].durable_ends[number]",
            )
        },
        test="unit/operate/test_retain.py::test_what_takes_the_place_of_deleted_records_is_durable",
    ),
    "a gap in a cleaned log is a cleaner's only where all was durable": Mutation(
        "whole segments that power took are not told",
        {"store.unsynced._walk": Instead(" and bases[number] <= start")},
        test="unit/store/test_os_loss.py::test_a_segment_that_lost_whole_batches_before_the_next_one_is_noticed",
    ),
    "nobody asks whether the power has taken something": Mutation(
        "a batch is appended after a hole, or committed records are gone, and nobody is told",
        {"store.os_loss.refuse_os_loss": Instead("if lost:", "if False:")},
        test="unit/store/test_os_loss.py::test_until_the_loss_is_accepted_everybody_names_the_command",
    ),
    "readers do not ask whether the power has taken something": Mutation(
        "readers lack what is committed, and are not told",
        {"store.unsynced.UnsyncedCheck.check": Instead("if lost := list(found):", "if False:")},
        test="unit/store/test_os_loss.py::test_until_the_loss_is_accepted_everybody_names_the_command",
    ),
    "a durable end moves with what is left to the system": Mutation(
        "a loss of power takes records, and nobody is told",
        {
            "commit.states._topics": Instead(
                "durable[topic.key].setdefault(partition, each.plan.start_offset)",
                "durable[topic.key][partition] = each.plan.start_offset",
            )
        },
        test="unit/store/test_os_loss.py::test_the_state_keeps_how_far_logs_are_durable",
    ),
    "a loss that is accepted is not cut": Mutation(
        "the log is refused, for ever",
        {"store.os_loss.accept_os_loss": Instead("_cut(log_set, each)")},
        test="unit/store/test_os_loss.py::test_accepting_the_loss_says_what_is_gone_and_lets_everybody_continue",
    ),
    "high watermarks stay above an accepted loss": Mutation(
        "the log is refused, for ever",
        {"store.os_loss.accept_os_loss": Instead("write_ends(ends, durable=True)")},
        test="unit/store/test_os_loss.py::test_accepting_the_loss_says_what_is_gone_and_lets_everybody_continue",
    ),
    "staged files are not waited for": Mutation(
        "staged files stay for ever",
        {
            "store.take_back._drop_staged": Instead(
                "(log_set.members[member] / name).unlink(missing_ok=True)"
            )
        },
        test="unit/store/test_recovery.py::test_what_a_job_without_an_id_had_staged_goes_though_it_was_cut_off_behind_its_commit",
    ),
    "a swap is not made durable before the old segments go": Mutation(
        "a loss of power takes both the old segments and the new ones",
        {"log.swap._to_swap": Instead("fsync_directory(folder)")},
        test="unit/log/test_swap.py::test_whatever_a_loss_of_power_leaves_of_a_swap_no_record_is_lost",
    ),
    "a swap that was cut off is not ended": Mutation(
        "a log lacks segments, or has them twice",
        {"log.swap.finish_swap": Instead("if not cleaned and not swaps:", "if True:")},
        test="unit/log/test_swap.py::test_a_swap_that_is_killed_anywhere_is_ended_by_the_next_one",
    ),
    "a temporary file is written on": Mutation(
        "after a kill nobody can replace the file",
        {"kafkalog.files.atomic.prepare": Instead("temporary.unlink(missing_ok=True)")},
        _WHO,
        _KILLS,
    ),
    "an intent that is taken back may come back with the power": Mutation(
        "it names bytes that are a broker's by then, and everybody is refused",
        {
            "store.nodes.Node.withdraw": Instead("fsync_directory(folder)"),
        },
        test="unit/operate/test_what_survives.py::test_what_was_taken_back_does_not_come_back",
    ),
    "what was made beside a log is not synced": Mutation(
        "after a loss of power a log lacks files",
        {
            "commit.append.PartitionAppend.sync": Instead("fsync_file(path)"),
        },
        test="unit/operate/test_what_survives.py::test_all_that_a_commit_has_made_is_on_the_disk_before_it_is_published",
    ),
    "indexes that are sealed are not compared with their batches": Mutation(
        "torn indexes lead readers past records",
        {
            "commit.append.PartitionAppend.sync": Instead("self._correct_sealed_indexes()"),
        },
        test="unit/operate/test_what_survives.py::test_indexes_that_are_sealed_say_what_their_batches_do",
    ),
    "the folders of new partitions are not synced": Mutation(
        "a loss of power takes partitions with acknowledged records",
        {
            "commit.applying._apply": Instead("fsync_directory(folder)"),
        },
        test="unit/operate/test_what_survives.py::test_all_that_a_commit_has_made_is_on_the_disk_before_it_is_published",
    ),
    "what lies before a durable batch is not made durable": Mutation(
        "after a loss of power a durable batch lies after a hole",
        {
            "commit.applying._apply": Instead(
                "each.held_before for each in appends", "each.held_before for each in ()"
            ),
        },
        test="unit/operate/test_what_survives.py::test_what_lies_before_a_durable_batch_is_on_the_disk_too",
    ),
    "a finished commit that was cut off is not made durable": Mutation(
        "a loss of power takes what was acknowledged",
        {
            "store.take_back._sync": Instead("sync_up_to(reaches, whole=True)"),
        },
        test="unit/operate/test_what_survives.py::test_a_commit_that_was_cut_off_after_it_was_published_is_durable_once_it_is_ended",
    ),
    "the state of a commit that was cut off is not made durable": Mutation(
        "a loss of power takes the state, and the log goes on after its end",
        {
            "store.take_back._end_finished": Instead("log_set.make_durable()"),
        },
        test="unit/operate/test_what_survives.py::test_where_logs_end_is_not_written_before_the_state_that_says_so_is_durable",
    ),
    "a folder from which something was taken back is not synced": Mutation(
        "what was taken back is there again after a loss of power",
        {
            "store.take_back._take_back_partition": Instead("fsync_directory(folder)"),
        },
        test="unit/operate/test_what_survives.py::test_what_was_taken_back_does_not_come_back",
    ),
    "a log directory from which a partition was taken back is not synced": Mutation(
        "folders are there again after a loss of power",
        {
            "store.take_back._undo": Instead("_sync_parents(log_set, intent)"),
        },
        test="unit/operate/test_what_survives.py::test_what_was_taken_back_does_not_come_back",
    ),
    "what is cut is not made durable": Mutation(
        "what was cut off is there again after a loss of power",
        {
            "log.append.recovery._replace_end": Instead(
                """        if fsync:
            sync(descriptor)""",
                "        pass",
            ),
        },
        test="unit/operate/test_what_survives.py::test_what_was_taken_back_does_not_come_back",
    ),
    "a durable batch forgets what lies before it in other partitions": Mutation(
        "a loss of power takes records, and nobody is told",
        {
            "commit.states._topics": Instead(
                "durable[topic.key].pop(partition, None)", "durable[topic.key].clear()"
            ),
        },
        test="unit/operate/test_what_survives.py::test_a_durable_batch_leaves_it_known_what_other_partitions_have_left_to_the_system",
    ),
    "what is left after an accepted loss is not made durable": Mutation(
        "the next loss of power takes what was promised to be there",
        {
            "store.os_loss._cut": Instead("fsync_file(folder / file_name(base, LOG))"),
        },
        test="unit/operate/test_what_survives.py::test_what_is_left_after_an_accepted_loss_is_durable_before_that_is_published",
    ),
    "the folder after an accepted loss is not synced": Mutation(
        "the next loss of power brings back what was cut",
        {
            "store.os_loss._cut": Instead("fsync_directory(folder)"),
        },
        test="unit/operate/test_what_survives.py::test_what_is_left_after_an_accepted_loss_is_durable_before_that_is_published",
    ),
    "indexes are not mended after a loss of power": Mutation(
        "torn indexes lead readers past records",
        {
            "store.os_loss.refuse_os_loss": Instead("_mend_indexes(log_set)"),
            "store.os_loss.accept_os_loss": Instead("_mend_indexes(log_set)"),
        },
        test="unit/operate/test_what_survives.py::test_indexes_that_were_left_to_the_system_are_mended_once",
    ),
    "handover leaves logs to the system": Mutation(
        "a loss of power takes what was handed over as durable",
        {
            "operate.handover._make_durable": Instead("fsync_file(path)"),
        },
        test="unit/operate/test_handover.py::test_all_files_of_a_partition_are_on_the_disk_when_a_broker_gets_it",
    ),
    "takeover leaves what a broker wrote to the system": Mutation(
        "a loss of power takes what was taken over as durable",
        {
            "operate.handover._take": Instead(
                "sync_up_to(_reach(log_set, each) for each in (*done.partitions, *done.positions))"
            ),
        },
        test="unit/operate/test_what_survives.py::test_what_a_broker_left_to_the_system_is_durable_once_it_was_taken_over",
    ),
    "cleaned segments are not synced": Mutation(
        "a loss of power takes what compaction had kept",
        {
            "clean.writing.SegmentWriter._complete": Instead("sync(self._descriptor)"),
        },
        test="unit/operate/test_what_survives.py::test_cleaned_segments_are_on_the_disk",
    ),
    "cleaned files are brought in and not synced": Mutation(
        "after a loss of power a part of the cleaned segments takes the place of all old ones",
        {
            "log.swap.bring_in": Instead("fsync_directory(folder)"),
        },
        test="unit/operate/test_what_survives.py::test_all_cleaned_segments_are_there_before_one_of_them_counts",
    ),
    "old segments are renamed in any order": Mutation(
        "a log has a hole after a kill",
        {
            "log.retired_files.retire_below": Instead(
                "sorted(_numbered_below(folder, base_offset))",
                "sorted(_numbered_below(folder, base_offset), reverse=True)",
            ),
        },
        test="unit/operate/test_what_survives.py::test_whenever_the_deletion_of_old_segments_is_cut_off_the_rest_is_a_whole_log",
    ),
    "what a failed fsync leaves counts as written": Mutation(
        "a loss of power takes what flush=os had left and a later commit made durable",
        {"kafkalog.files.regular._write_again": Instead("write_all(descriptor, data, position)")},
        test="unit/files/test_regular_file.py::test_after_an_fsync_that_failed_the_next_one_has_all_to_write",
    ),
    "a read that stops short is the end of the file": Mutation(
        "committed records beside a recovery count as lost",
        {"kafkalog.files.local_file.peek_at": Instead("while part and", "while False and")},
        test="unit/files/test_regular_file.py::test_a_look_that_stops_short_is_continued",
    ),
}
