"""Guards of places: where links lead, whose a directory is, and what should lie in it."""

from __future__ import annotations

from typing import Final

from tests.simulation.patches import Instead, Mutation

__all__ = ["GUARDS"]

GUARDS: Final = {
    "links lead elsewhere than where the locks are": Mutation(
        "a commit publishes in directories that others have locked",
        {
            "store.locks.DirectoryLocks._check_links": Instead(
                "if Path(os.path.realpath(given)) != folder:", "if False:"
            )
        },
        test="unit/store/test_locks.py::test_a_link_that_is_moved_while_a_commit_waits_for_its_lock_is_noticed",
    ),
    "a partition's folder that is a link is written": Mutation(
        "another set's log has records that its state does not know",
        {"store.ownership.check_no_link": Instead("if where.is_link:", "if False:")},
        test="unit/store/test_ownership.py::test_a_partition_folder_that_is_a_link_is_read_and_not_written",
    ),
    "a lock file is left in a broker's directory": Mutation(
        "a directory that was never ours looks like one",
        {
            "store.locks._leave_to_broker": Instead(
                "if not ours.exists() and broker_holds(folder) and not ours.exists():", "if False:"
            )
        },
        test="unit/store/test_locks.py::test_nothing_is_left_in_a_directory_that_a_broker_holds",
    ),
    "partitions that a broker's checkpoint lacks are read to their ends": Mutation(
        "readers see what is not committed",
        {"log.log_dir.LogDirs.checkpoint": Instead("if unnamed is not None:", "if False:")},
        test="unit/source/test_while_a_broker_runs.py::test_of_a_partition_that_its_directorys_checkpoint_does_not_name_nothing_is_committed",
    ),
    "two folders of a partition are an error at once": Mutation(
        "a query fails while a broker moves replicas",
        {
            "log.log_dir.LogDirs.partitions": Instead(
                "if rest is not None and (twice or not agrees):", "if False:"
            )
        },
        test="unit/source/test_while_a_broker_runs.py::test_a_partition_that_has_two_folders_while_it_moves_is_looked_at_again",
    ),
    "readers do not miss what the state names": Mutation(
        "readers lack what is committed, and are not told",
        {
            "store.ends.missing_parts.find_missing_parts": Instead(
                "if state is None or not any(folder in committed.members for folder in directories):",
                "if True:",
            )
        },
        test="unit/source/test_missing_parts.py::test_a_partition_without_its_folder_is_a_loss",
    ),
    "log directories are as open as what is around them": Mutation(
        "everybody may write to a log below /tmp",
        {
            "kafkalog.files.folders.make_with_parents": Instead(
                "each.mkdir(exist_ok=True)",
                "each.mkdir(exist_ok=True), each.chmod(each.parent.stat().st_mode)",
            )
        },
        test="unit/store/test_log_set.py::test_a_log_directory_has_the_mode_of_the_umask_though_all_may_write_around_it",
    ),
    "a state may be larger than what is read again": Mutation(
        "a commit makes its set unreadable",
        {
            "kafkalog.checkpoints.sealed_file.seal": Instead(
                "if len(data) > MAX_BYTES:", "if False:"
            )
        },
        test="unit/store/test_log_set.py::test_a_state_that_would_be_too_large_to_read_is_not_published",
    ),
    "a checkpoint may be larger than what is read again": Mutation(
        "a commit makes its set unreadable",
        {
            "kafkalog.checkpoints.checkpoint_file.write_checkpoint": Instead(
                "if len(data) > _MAX_BYTES:", "if False:"
            )
        },
        test="unit/checkpoints/test_checkpoint_file.py::test_what_would_be_too_large_to_read_is_not_written",
    ),
    "a partition that is away for a moment is a new one": Mutation(
        "a commit drops what Kafka's checkpoints say of it, fails, and cannot be taken back",
        {"commit.foreign_log.ForeignLog._check_is_new": Instead("if self.is_there:", "if False:")},
        test="unit/commit/test_away_for_a_moment.py::test_a_folder_that_is_gone_while_its_log_is_opened_is_not_made_again",
    ),
    "a partition that is away for a moment is not taken back": Mutation(
        "its log has records that no commit names, and is not written any more",
        {
            "store.take_back._is_there": Instead(
                "log_set.check_current()\n    return folder.is_dir()", "return False"
            )
        },
        test="unit/commit/test_away_for_a_moment.py::test_an_unfinished_commit_is_taken_back_whichever_question_is_answered_wrongly",
    ),
    "a log that was cut counts as a recreated topic": Mutation(
        "a query reads all of it again",
        {
            "source.recreated.TopicIds.find_recreated": Instead(
                "(recreated.known is None and key not in cut)", "recreated.known is None"
            )
        },
        test="unit/source/test_recreated.py::test_a_log_that_was_cut_below_what_is_committed_is_not_taken_for_a_recreated_topic",
    ),
    "partitions that a batch adds may be of a recreated topic": Mutation(
        "a query reads them twice",
        {
            "source.stream_control.StreamControl._recreated_since": Instead(
                "if start.get(key, 0) < offset", "if key in start and start.get(key, 0) < offset"
            )
        },
        test="unit/source/test_recreated.py::test_a_partition_that_a_batch_adds_is_not_read_from_a_topic_recreated_meanwhile",
    ),
    "a topic's folders may have lost their ids": Mutation(
        "what is committed of it counts for another topic, and goes with the next recovery",
        {
            "store.topics.TopicCatalog._check_never_had_id": Instead(
                "if known.name == name and key != topic_key(name, None):", "if False:"
            )
        },
        test="unit/store/test_log_set.py::test_a_folder_that_took_the_place_of_a_partition_is_not_gone_on_with",
    ),
    "a folder without its topic id is no problem": Mutation(
        "a loss is not told, though an operator looks for it",
        {
            "operate.recover.report_lost": Instead(
                "if each.key == topic_key(name, None) != known:", "if False:"
            )
        },
        test="unit/store/test_lost_partitions.py::test_a_folder_without_its_topic_id_is_reported_and_cut_nowhere",
    ),
    "a version counts for all topics": Mutation(
        "a write to a second topic under its version is left out",
        {
            "commit.versions.new_topics_of": Instead(
                "topics[name].versions.get(app_id) if name in topics else None",
                "max((t.versions[app_id] for t in log_set.state.topics.values() "
                "if app_id in t.versions), key=lambda t: t.batch_id, default=None)",
            )
        },
        test="unit/commit/test_versions.py::test_versions_grow_with_gaps_in_each_topic_by_itself",
    ),
    "file systems whose locks are a machine's are written to": Mutation(
        "two machines write at once",
        {"store.file_systems.refusal": Instead("if kind in _REFUSED:", "if False:")},
        test="unit/store/test_file_systems.py::test_other_mounts_are_refused_with_type_and_reason",
    ),
    "other machines are thought of on no file system": Mutation(
        "what a dead host writes late lands among committed records",
        {
            "store.file_systems.is_shared": Instead(
                "mount is not None and mount.kind not in _LOCAL | _LOCAL_FUSE", "False"
            )
        },
        test="unit/store/test_file_systems.py::test_what_other_machines_may_write_to_is_known_by_its_type",
    ),
    "a state whose folder cannot be synced is durable": Mutation(
        "a loss of power takes what was said to be durable",
        {
            "store.publishing._sync": Instead(
                "failures[0] if len(failures) == len(folders) else None", "None"
            )
        },
        test="unit/store/test_publishing.py::test_a_state_whose_folder_cannot_be_synced_is_published_and_not_said_to_be_durable",
    ),
    "a segment that comes after its checkpoint is not looked for": Mutation(
        "a query on a mirror stays where it is for good",
        {
            "store.ends.seen_log.SeenLog.has_changed": Instead(
                "listing_is_due and may_grow and self._directory.changed()", "False"
            )
        },
        test="unit/source/test_tail.py::test_a_segment_that_a_mirror_copies_after_the_checkpoint_is_found",
    ),
    "a loss that cannot be described fails the query": Mutation(
        "a query beside retention fails though it wants to continue",
        {
            "source.plan.planner._first_time": Instead(
                "except (KafkaLogError, OSError):", "except ZeroDivisionError:"
            )
        },
        test="unit/source/plan/test_planner.py::test_retention_while_a_loss_is_described_is_no_failure_of_its_own",
    ),
    "the zeros of a preallocated segment are damage": Mutation(
        "a copy of a live log counts as damaged",
        {
            "log.read.verification.check_segment": Instead(
                " and not (is_whole and ends_in_zeros(segment, size))", ""
            )
        },
        test="unit/log/read/test_verification.py::test_zeros_at_the_end_of_a_copy_of_a_live_log_are_no_damage",
    ),
    "open transactions are aborted unasked": Mutation(
        "a takeover ends what a broker's producer still writes",
        {"operate.handover._ends_of": Instead("if aborts_open:", "if True:")},
        test="unit/operate/test_open_transactions.py::test_without_being_asked_nothing_is_aborted",
    ),
    "what was prepared to commit counts as undecided": Mutation(
        "half of a committed transaction is aborted",
        {
            "coordinator.transaction_states.TransactionStates._as_prepared": Instead(
                "_PREPARED[state.status]", "MarkerType.ABORT"
            )
        },
        test="unit/operate/test_open_transactions.py::test_what_was_prepared_to_commit_is_committed_and_what_is_undecided_aborted",
    ),
    "a producer that no coordinator here knows is aborted": Mutation(
        "half of a transaction is aborted whose coordinator was another broker",
        {
            "coordinator.transaction_states.TransactionStates.decide": Instead(
                "if lacking is not None:", "if False:"
            )
        },
        test="unit/operate/test_open_transactions.py::test_where_the_coordinators_records_are_not_here_nothing_is_guessed",
    ),
    "any marker counts as that of a producer": Mutation(
        "a transaction that was committed is aborted, as its marker was lost with the log's end",
        {
            "operate.open_transactions._newest_marker_ms": Instead(
                " & (table.producer_id == producer_id)", ""
            )
        },
        test="unit/operate/test_open_transactions.py::test_a_marker_of_another_producer_is_not_that_which_the_end_of_a_log_has_lost",
    ),
    "high watermarks of a broker's positions stay behind": Mutation(
        "groups stand where they stood before their transaction was committed",
        {"operate.handover._take": Instead("_write_high_watermarks(folder, done.positions)")},
        test="unit/operate/test_open_transactions.py::test_positions_of_a_group_end_as_decided_also_where_only_a_broker_knows_them",
    ),
    "a dry run takes over": Mutation(
        "what was to be looked at is changed, without locks",
        {"operate.handover._take_over_one": Instead("if dry_run:", "if False:")},
        test="unit/operate/test_dry_run.py::test_what_a_broker_that_was_killed_has_left",
    ),
    "a new query in another one's topic is not told": Mutation(
        "a query whose checkpoint was deleted writes all rows twice, without a warning",
        {"commit.newcomers.tell_newcomer": Instead("if others:", "if False:")},
        test="unit/commit/test_newcomers.py::test_a_new_query_in_a_topic_that_another_wrote_last_is_told_once",
    ),
    "a host that wakes up late opens what has the name now": Mutation(
        "an empty segment that another host has made has records that no commit names",
        {
            "log.append.appender._check_end": Instead(
                "if looked_at is not None and not os.path.samestat(looked_at, found):", "if False:"
            )
        },
        test="unit/store/test_file_systems.py::test_where_hosts_share_files_a_host_that_wakes_up_late_does_not_open_the_file_of_others",
    ),
    "a recovery that wakes up late cuts what has the name now": Mutation(
        "what others have committed meanwhile is gone",
        {
            "log.append.recovery._replace_end": Instead(
                "if looked_at is not None:", "if looked_at is None and not path:"
            )
        },
        test="unit/store/test_file_systems.py::test_where_hosts_share_files_a_recovery_that_wakes_up_late_cuts_no_file_of_others",
    ),
    "what is away after its rename is not there": Mutation(
        "a batch that is published is said to have failed",
        {
            "store.publishing._check_published": Instead(
                "(found is None or found.sequence > state.sequence)",
                "found is not None and found.sequence > state.sequence",
            )
        },
        test="unit/store/test_publishing.py::test_of_a_commit_whose_directory_is_away_after_the_rename_nobody_says_that_it_is_not_there",
    ),
}
