"""Guards of a set of several nodes."""

from __future__ import annotations

from typing import Final

from tests.simulation.patches import Instead, Mutation

__all__ = ["GUARDS"]

_STALLING: Final = "unit/files/test_stalling.py::"
_DAMAGED: Final = "unit/store/replicas/test_damaged_replicas.py::"
_SURVIVES: Final = "unit/store/replicas/test_what_survives.py::"
_COMPACT: Final = "unit/operate/test_compact_replicas.py::"
_MOVES: Final = "unit/operate/test_reassign.py::"
_BACK: Final = "unit/store/replicas/test_nodes_that_come_back.py::"
_SHORTENED: Final = "unit/operate/test_retain_replicas.py::"
_CATCHING_UP: Final = "unit/store/replicas/test_catching_up.py::"
_CUT_OFF: Final = "unit/store/replicas/test_cut_off_commits.py::"
_FOLDERS: Final = "unit/operate/test_move_folders.py::"
_VOTERS: Final = "unit/operate/test_voters.py::"
_READ: Final = "unit/source/test_replicas_brought_up_to_date.py::"
_HIDES: Final = (
    f"{_READ}test_a_replica_that_is_brought_up_to_date_hides_nothing_from_who_was_sent_there"
)

GUARDS: Final = {
    "a replica that has caught up is not synced": Mutation(
        "after a loss of power a replica in sync lacks records",
        {"store.replicas.copying.Copying.copy_log": Instead("sync(writing)")},
        test=f"{_SURVIVES}test_a_replica_that_has_caught_up_is_on_the_disk_before_it_counts",
    ),
    "names of a replica that has caught up are not synced": Mutation(
        "after a loss of power a replica in sync lacks segments",
        {"store.replicas.copying.Copying.copy_rest": Instead("fsync_directory(self.target)")},
        test=f"{_SURVIVES}test_a_replica_that_has_caught_up_is_on_the_disk_before_it_counts",
    ),
    "what a replica gets may lie in two places": Mutation(
        "a replica in sync has a hole, after its directory was away for milliseconds",
        {"store.replicas.copying.Copying.check_place": Instead("self.seen.check()")},
        test=f"{_CATCHING_UP}test_a_directory_that_was_away_amid_it_is_noticed",
    ),
    "what was to go from a replica may still be there": Mutation(
        "a replica in sync has another topic's id, or segments of no commit",
        {
            "store.replicas.copying.Copying.check_place": Instead(
                "list_base_offsets(self.target) != bases or own_topic_id(self.target) != topic_id",
                "False",
            )
        },
        test=f"{_CATCHING_UP}test_what_was_to_go_from_a_directory_that_was_away_then_is_noticed",
    ),
    "what a replica has got so far may lie in two places": Mutation(
        "a hole below its recovery point is never compared again",
        {"store.replicas.catching_up._note_progress": Instead("copying.seen.check()")},
        test=f"{_CATCHING_UP}test_no_progress_is_noted_of_what_lies_elsewhere",
    ),
    "readers do not see that a replica is brought up to date": Mutation(
        "offsets are passed over between segments of two moments, and nobody is told",
        {"log.replica_folders.check_stamp": Instead("replica_stamp(folder) != stamp", "False")},
        test=_HIDES,
    ),
    "a replica is brought up to date, and nothing shows it to readers": Mutation(
        "offsets are passed over between segments of two moments, and nobody is told",
        {
            "store.replicas.catching_up._make": Instead(
                "        write_topic_id(target, topic_id)\n    return",
                "        is_other and write_topic_id(target, topic_id)\n    return",
            )
        },
        test=_HIDES,
    ),
    "a reader looks at a replica only once it knows that it is in sync": Mutation(
        "it may be out, and half brought up to date by then: offsets are passed over",
        {
            "log.log_dir.LogDirs._find_of_nodes": Instead(
                "if not new:", "stamps |= stamps_of(new)\n            if True:"
            )
        },
        test=f"{_READ}test_nobody_is_sent_to_a_replica_that_has_left_since_the_states_were_read",
    ),
    "a replica that lags is changed before that is published": Mutation(
        "readers are sent there, and pass over offsets",
        {
            "store.replicas.in_sync._seen_to_lag": Instead(
                "log_set.publish(state.following())", "pass"
            )
        },
        test=(
            f"{_COMPACT}"
            "test_a_replica_that_cannot_get_other_files_is_not_read_before_it_is_brought_up_to_date"
        ),
    ),
    "a query goes back to what too few nodes know": Mutation(
        "with failOnDataLoss=false rows come twice when the other nodes are back",
        {
            "kafkalog.streaming.source.stream_control.StreamControl._look": Instead(
                "self._logs.lacks_majority()", "False"
            )
        },
        test=(
            "unit/source/test_replicas.py::"
            "test_a_query_waits_where_it_was_while_too_few_nodes_know_what_is_committed"
        ),
    ),
    "a time is looked for in whatever replica there is": Mutation(
        "a query begins after records that it should have read, and nobody is told",
        {
            "log.partition_log.PartitionLog._confirmed": Instead(
                "check_stamp(self.directory, self._replica)"
            )
        },
        test=f"{_READ}test_nothing_is_found_in_a_log_that_is_brought_up_to_date",
    ),
    "a group is read of whatever replica there is": Mutation(
        "positions are those of an earlier commit, and rows come twice",
        {"store.log_set.LogSet.partitions": Instead("self.verify_locks is not _of_a_look", "True")},
        test=(
            "unit/consumer/test_consumer_replicas.py::"
            "test_a_group_is_not_read_of_a_replica_that_is_brought_up_to_date"
        ),
    ),
    "of too few nodes one that is out already says nothing": Mutation(
        "one node of three decides by itself",
        {
            "store.replicas.several_nodes.SeveralNodes.fail": Instead(
                "self.check_majority()", "node in self.failed or self.check_majority()"
            ),
            "store.replicas.open_nodes.NodesSession.verify": Instead("nodes.check_majority()"),
        },
        test=f"{_CUT_OFF}test_nothing_is_published_once_a_majority_is_away_whichever_error_comes_first",
    ),
    "a state that is made durable keeps its epoch": Mutation(
        "an older copy of a node counts as in sync, and lacks records",
        {
            "store.replicas.several_nodes.SeveralNodes.repeated": Instead(
                "state.controller_epoch + 1", "state.controller_epoch"
            )
        },
        test=f"{_CUT_OFF}test_a_state_that_is_made_durable_without_a_node_counts_more_than_before",
    ),
    "a folder that is gone ends a batch of several nodes": Mutation(
        "nothing is written while a node goes away, though a majority is there",
        {
            "store.replicas.several_nodes._OutIfItFails.__init__": Instead(
                "(OSError, UnknownTopicOrPartitionError)", "(OSError,)"
            ),
            "commit.outcome.Begun.until_done": Instead(
                "LogDirectoryError, UnknownTopicOrPartitionError", "LogDirectoryError"
            ),
        },
        test="unit/store/replicas/test_nodes_that_go.py::"
        "test_a_batch_goes_on_where_a_folder_is_gone_when_it_is",
    ),
    "locks hold though too few nodes are left": Mutation(
        "one node of three decides by itself, where an error was passed over",
        {"store.replicas.open_nodes.NodesSession.verify": Instead("nodes.check_majority()")},
        test=f"{_CUT_OFF}test_who_asks_for_the_locks_learns_that_too_few_nodes_are_left",
    ),
    "too few nodes publish": Mutation(
        "one node of three decides by itself, where an error was passed over",
        {"store.replicas.several_nodes.SeveralNodes.publish": Instead("self.check_majority()")},
        test=f"{_CUT_OFF}test_too_few_nodes_publish_nothing",
    ),
    "a commit that was published before a node stalled is made again": Mutation(
        "rows of a write without an id are there twice",
        {
            "commit.outcome.Begun.published": Instead(
                "stamp is not None and stamp == log_set.state.stamp", "False"
            )
        },
        test="unit/store/replicas/test_nodes_that_stall.py::test_a_write_that_nobody_remembers_is_there_once",
    ),
    "a thread that was left behind continues after its call": Mutation(
        "two threads write the same logs",
        {"kafkalog.files.stalling._Going.go": Instead("self._check_awaited()")},
        test=f"{_STALLING}test_what_was_left_behind_ends_with_the_call_that_stalled",
    ),
    "a thread that was left behind begins something else": Mutation(
        "two threads write the same logs",
        {"kafkalog.files.stalling._Going.come": Instead("self._check_awaited()")},
        test=f"{_STALLING}test_what_was_left_behind_comes_to_no_other_folder",
    ),
    "locks pass on from the folder that stalls, too": Mutation(
        "a late call changes what another controller has cut",
        {"kafkalog.files.stalling._Going._leave": Instead(" if folder not in folders", "")},
        test=f"{_STALLING}test_what_is_held_elsewhere_passes_on_and_in_the_folder_is_kept",
    ),
    "a leader that ends too early is taken for whole": Mutation(
        "what it has lost is copied from nobody",
        {"operate.node_order._wrong": Instead("(log_end_of(leader) or 0) >= end", "True")},
        test=f"{_DAMAGED}test_a_leader_that_ends_too_early_is_not_what_others_are_cut_to",
    ),
    "a replica that has lost its topic id is as good as others": Mutation(
        "nobody is told, and readers have one replica less",
        {
            "operate.replica_check.wrong_id": Instead(
                "topic_key(key.topic, topic_id) == expected", "True"
            )
        },
        test=f"{_DAMAGED}test_a_replica_whose_topic_id_is_lost_does_not_count_and_is_copied",
    ),
    "a replica that ends too early is as good as others": Mutation(
        "replicas that have all records are cut to it",
        {
            "operate.node_order._reaches": Instead(
                "find_valid_end(segment, 0).next_offset >= end", "True"
            )
        },
        test=f"{_DAMAGED}test_a_leader_that_ends_too_early_is_not_what_others_are_cut_to",
    ),
    "what is damaged is copied": Mutation(
        "records are damaged on all nodes that were right on one",
        {
            "store.replicas.copying._check_sound": Instead(
                "end.problem is not None and end.next_offset < log_end", "False"
            )
        },
        test=f"{_DAMAGED}test_a_commit_copies_no_damage_to_a_node_that_is_back",
    ),
    "a decided state is not synced": Mutation(
        "a loss of power takes an acknowledged batch on all nodes",
        {"store.replicas.several_nodes.SeveralNodes._decide": Instead("fsync_directory(folder)")},
        test=f"{_SURVIVES}test_a_commit_is_in_place_before_a_broker_is_told",
    ),
    "new voters are enough to change them": Mutation(
        "two halves of a set continue without each other",
        {
            "kafkalog.checkpoints.commit_state.CommitState.voters": Instead(
                "(self.nodes, self.former) if self.former", "(self.nodes,) if self.former"
            )
        },
        test=f"{_VOTERS}test_without_a_majority_of_the_old_voters_nothing_changes",
    ),
    "a change of voters counts before a majority of the old ones has it": Mutation(
        "the old voters continue without the new ones",
        {
            "store.replicas.deciding.decide": Instead(
                "if newest.former and newest.voters != nodes.voters:", "if False:"
            )
        },
        test=f"{_VOTERS}test_what_a_change_is_decided_by_is_a_majority_of_old_and_new_ones",
    ),
    "a new voter has no state before it is named": Mutation(
        "a set whose new voter was cut off from the change lacks it for ever",
        {"store.replicas.voter_changes.change_voters": Instead("_invite(_in_place(log_set), new)")},
        test=f"{_VOTERS}test_a_new_voter_that_missed_the_change_is_one_all_the_same",
    ),
    "what an older node has counts as equal though segments were replaced": Mutation(
        "replicas in sync differ below the high watermark",
        {
            "store.replicas.rewriting._knows": Instead(
                "own.sequence >= each.rewritten.sequence", "True"
            )
        },
        test=f"{_COMPACT}test_sizes_tell_nothing_of_a_node_that_was_away_while_files_were_replaced",
    ),
    "what a node has that was lost amid a replacement counts as equal": Mutation(
        "replicas in sync differ below the high watermark",
        {"store.replicas.rewriting._knows": Instead(" or known.rewritten.is_under_way", "")},
        test=f"{_COMPACT}test_sizes_tell_nothing_of_a_leader_that_was_lost_while_it_replaced_files",
    ),
    "a replacement that was cut off is not ended": Mutation(
        "replicas in sync differ below the high watermark",
        {
            "store.replicas.in_sync.bring_in_sync": Instead(
                "end_rewriting(state, nodes, log_set.verify_locks)",
                "shrunk(log_set.state, nodes.live)",
            )
        },
        test=f"{_COMPACT}test_what_was_cut_off_is_ended_before_retention_looks",
    ),
    "replicas are to blame for what lies in their leader's place": Mutation(
        "all are cut to an older copy of one, and acknowledged records are gone",
        {"store.replicas.rewriting._Work._is_not_to_blame": Instead("self.verify_locks()")},
        test=f"{_COMPACT}test_an_older_copy_in_the_place_of_a_leader_takes_nothing_from_the_others",
    ),
    "replicas get what lies in their leader's place": Mutation(
        "all have segments of an older copy of one, and acknowledged records are gone",
        {"store.replicas.rewriting._Work._check_leader": Instead("self.verify_locks()")},
        test=f"{_COMPACT}test_an_older_copy_in_the_place_of_a_leader_takes_nothing_from_the_others",
    ),
    "who replaces segments does not look at its locks": Mutation(
        "all have segments of an older copy of one, and acknowledged records are gone",
        {
            "operate.replaced_segments.replacing_on_all": Instead(
                "nodes, log_set.verify_locks)", "nodes, lambda: None)"
            )
        },
        test=f"{_COMPACT}test_an_older_copy_in_the_place_of_a_leader_takes_nothing_from_the_others",
    ),
    "who ends a replacement does not look at its locks": Mutation(
        "all have segments of an older copy of one, and acknowledged records are gone",
        {
            "store.replicas.rewriting.end_rewriting": Instead(
                "nodes, folders, verify_locks)", "nodes, folders, lambda: None)"
            )
        },
        test=f"{_COMPACT}test_an_older_copy_in_the_place_of_a_leader_takes_nothing_from_the_others",
    ),
    "a replica is in sync once it has what lies in its leader's place": Mutation(
        "a replica in sync lacks acknowledged records, and leads next",
        {"store.replicas.in_sync.bring_in_sync": Instead("log_set.verify_locks()", "pass")},
        test=f"{_COMPACT}test_what_was_copied_of_an_older_copy_in_a_leaders_place_is_not_in_sync",
    ),
    "what is about to happen may be said below a mount": Mutation(
        "a log has records that no intent names, and is not written any more",
        {"commit.committer.Committer._write": Instead("log_set.node.check_declared(state.stamp)")},
        test=(
            "unit/commit/test_declared_elsewhere.py::"
            "test_nothing_is_appended_that_nobody_would_take_back"
        ),
    ),
    "a node below whose mount it was said is appended to": Mutation(
        "a log has records that no intent names, and is not written any more",
        {
            "store.replicas.several_nodes.SeveralNodes.check_declared": Instead(
                "Node(self.by_node[node]).check_declared(stamp)", "pass"
            )
        },
        test="unit/commit/test_declared_elsewhere.py::test_a_node_that_was_away_then_is_out",
    ),
    "copies of replaced segments are not synced": Mutation(
        "after a loss of power a replica in sync lacks records",
        {"store.replicas.equal_segments._copy_as_cleaned": Instead("sync(writing)")},
        test=f"{_SURVIVES}test_all_files_of_a_replaced_segment_are_there_before_one_of_them_counts",
    ),
    "names of copies of replaced segments are not synced": Mutation(
        "after a loss of power a part of the cleaned segments counts",
        {"store.replicas.equal_segments.make_equal": Instead("fsync_directory(target)")},
        test=f"{_SURVIVES}test_all_files_of_a_replaced_segment_are_there_before_one_of_them_counts",
    ),
    "a part of a replica that is equal is not synced": Mutation(
        "after a loss of power what a replica lacks counts as equal",
        {"store.replicas.copying.Copying.copy_small": Instead("fsync=durable", "fsync=False")},
        test=f"{_SURVIVES}test_what_a_replica_was_compared_up_to_is_on_its_disk",
    ),
    "a copy of several nodes is not synced": Mutation(
        "a loss of power takes records of a copy whose state is there",
        {"operate.backup._back_up_nodes": Instead("each.sync()", "pass")},
        test=f"{_SURVIVES}test_a_copy_of_several_nodes_has_its_files_before_it_has_a_state",
    ),
    "a copy of several nodes does not prove its locks": Mutation(
        "a copy has half of a commit",
        {"operate.replica_backup.NodesCopy.end": Instead("log_set.check_current()")},
        test="unit/operate/test_backup_replicas.py::"
        "test_a_copy_whose_last_pass_was_without_the_locks_is_none",
    ),
    "replicas go before those that are to come are in sync": Mutation(
        "a partition has fewer replicas in sync while it moves",
        {
            "store.replicas.election.moved": Instead(
                "or not {*each.target} <= {*each.isr}", "or False"
            )
        },
        test=f"{_MOVES}test_before_all_are_in_sync_nobody_goes",
    ),
    "commits copy what is to be copied slowly": Mutation(
        "a throttle does not hold",
        {
            "store.replicas.in_sync.lagging_replicas": Instead(
                "each.adding if each.rate and not moves_slowly else ()", "()"
            )
        },
        test=f"{_MOVES}test_with_a_rate_only_the_command_copies",
    ),
    "the folder that is left of a partition stays": Mutation(
        "a node keeps records of a partition that has moved away",
        {
            "store.replicas.open_nodes.NodesSession._bring_in_sync": Instead(
                "remove_moved(log_set, nodes)"
            )
        },
        test=f"{_MOVES}test_a_partition_moves_with_all_of_its_rows",
    ),
    "what is left on a node that is away is forgotten": Mutation(
        "a node that was away keeps records of a partition that has moved away",
        {"store.replicas.moved_away._without": Instead("(node, name) not in gone", "False")},
        test=f"{_MOVES}test_a_node_that_was_away_removes_what_it_has_left_when_it_is_back",
    ),
    "an intent to finish a state outdates it": Mutation(
        "a batch that was seen is taken back when whoever finishes it is killed",
        {
            "kafkalog.checkpoints.intent.counts_no_more": Instead(
                " if (each.sequence, each.commit_id) != prepared.stamp", ""
            )
        },
        test=f"{_BACK}test_what_was_seen_stays_though_whoever_finishes_it_is_killed",
    ),
    "a folder that has moved is not synced": Mutation(
        "a loss of power takes both folders of a partition",
        {"store.directory_moves.put_in_place": Instead("fsync_directory(each.copy.parent)")},
        test=f"{_FOLDERS}test_the_new_folder_is_on_the_disk_before_the_old_one_goes",
    ),
    "the name of a folder that goes is not synced": Mutation(
        "after a loss of power a partition has two folders, and one lacks files",
        {"store.directory_moves._retire_or_keep": Instead("fsync_directory(folder.parent)")},
        test=f"{_FOLDERS}test_the_new_folder_is_on_the_disk_before_the_old_one_goes",
    ),
    "an older copy is shortened as its leader": Mutation(
        "a replica that lacks records is in sync, and starts after its end",
        {"operate.shortening._ready_replicas": Instead("log.check_end()")},
        test=f"{_SHORTENED}test_an_older_copy_leaves_the_in_sync_set_and_is_not_shortened",
    ),
    "a replica loses segments that its leader keeps": Mutation(
        "replicas in sync differ, and a node that leads next lacks what was acknowledged",
        {"operate.old_segments.KnownLog.shared": Instead("end <= first", "True")},
        test=f"{_SHORTENED}test_all_replicas_keep_the_same_segments",
    ),
    "whatever is about to be deleted goes with a folder that has moved": Mutation(
        "folders of others are removed",
        {
            "store.directory_moves._is_known": Instead(
                "any(state.key_of(name, topic_id) in state.topics for name in named)", "True"
            )
        },
        test=f"{_FOLDERS}test_what_others_are_about_to_delete_is_left_to_them",
    ),
    "a move of folders that was cut off is not finished": Mutation(
        "a partition has two folders, and nobody can read or write it",
        {"store.take_back.take_back": Instead("finish_moves(log_set)")},
        test=f"{_FOLDERS}test_a_move_that_was_cut_off_between_two_names_is_finished",
    ),
}
