"""Guards of who looks after logs: cleaners, retention, handovers, topics, copies, restores."""

from __future__ import annotations

from typing import Final

from tests.simulation.patches import Instead, Mutation

__all__ = ["GUARDS"]

GUARDS: Final = {
    "a backup takes nothing back": Mutation(
        "a backup has bytes that are not committed, and nobody can tell whose",
        {
            "operate.backup._copy_set": Instead(
                "problems += _missing(session.open())",
                "pass",
            ),
        },
        test="unit/operate/test_backup.py::test_nor_is_one_that_is_cut_off_while_the_copy_is_made",
    ),
    "compaction goes past open transactions": Mutation(
        "records that an abort takes back later count for their keys",
        {
            "clean.cleanable.find_cleanable": Instead(
                "stable = StableOffset(directory).find(high_watermark)", "stable = high_watermark"
            ),
        },
        test="unit/clean/test_cleanable.py::test_an_open_transaction_ends_what_can_be_cleaned",
    ),
    "records that are too young are compacted": Mutation(
        "consumers lack values that min.compaction.lag.ms promises them",
        {
            "clean.cleanable._measured": Instead("if young is not None:", "if False:"),
        },
        test="unit/clean/test_cleanable.py::test_young_records_hold_their_segment_back",
    ),
    "a round begins where the checkpoint says, wherever that is": Mutation(
        "after a log was cut nothing of it is compacted, or the wrong part",
        {
            "clean.cleanable.find_cleanable": Instead("if is_void:", "if False:"),
        },
        test="unit/clean/test_cleanable.py::test_a_checkpoint_outside_of_the_log_is_void",
    ),
    "what is compacted was left to the system": Mutation(
        "gaps look like records that a loss of power took, and the log is refused",
        {
            "operate.cleaning._Cleaning._clean": Instead(
                "if log.number in log.topic.durable_ends:", "if False:"
            ),
        },
        test="unit/operate/test_compact.py::test_what_was_left_to_the_system_is_made_durable_before_it_is_compacted",
    ),
    "a recreated topic gets the cleaned segments of the deleted one": Mutation(
        "records of a deleted topic come back",
        {
            "operate.cleaning._Cleaning._known": Instead(
                "if log is None or log.key != self._task.key:", "if log is None:"
            ),
        },
        test="unit/operate/test_compact.py::test_a_topic_that_was_recreated_meanwhile_is_not_touched",
    ),
    "tombstones go at once": Mutation(
        "consumers keep keys that were deleted",
        {
            "clean.batch_filter.BatchFilter._keep": Instead(
                "due = (horizon == _NO_HORIZON) | (self._rules.now_ms < horizon)",
                "due = np.zeros(len(table), np.bool_)",
            ),
        },
        test="unit/clean/test_cleaner.py::test_tombstones_stay_until_their_horizon",
    ),
    "the batch before the end of a round goes whole": Mutation(
        "the next segment no longer begins where this one ends",
        {
            "clean.batch_filter.BatchFilter._stays_empty": Instead(
                "stays: Mask = table.last_offset + 1 == self._rules.end_offset",
                "stays: Mask = np.zeros(len(table), np.bool_)",
            ),
        },
        test="unit/clean/test_cleaner.py::test_the_last_batch_of_the_round_stays_as_a_header",
    ),
    "last batches of producers go": Mutation(
        "a broker takes a batch that comes again for a new one",
        {
            "clean.batch_filter.BatchFilter._stays_empty": Instead(
                "stays |= self._rules.last_records.stay(table)"
            ),
        },
        test="unit/clean/test_cleaner.py::test_the_last_batch_of_a_producer_stays_as_a_header",
    ),
    "records above the high watermark can be deleted": Mutation(
        "a log starts above its end",
        {
            "operate.retain._start": Instead("if not 0 <= offset <= committed:", "if False:"),
        },
        test="unit/operate/test_retain.py::test_one_wrong_offset_and_nothing_is_deleted",
    ),
    "records of Kafka's own topics can be deleted": Mutation(
        "positions of groups are lost",
        {
            "operate.retain._refuse_policy": Instead("if name in INTERNAL_TOPICS:", "if False:"),
        },
        test="unit/operate/test_retain.py::test_one_wrong_offset_and_nothing_is_deleted",
    ),
    "records of compacted topics can be deleted": Mutation(
        "keys lose their only value",
        {
            "operate.retain._refuse_policy": Instead(
                "if not Retention.of(log.topic.settings).deletes:", "if False:"
            ),
        },
        test="unit/operate/test_retain.py::test_one_wrong_offset_and_nothing_is_deleted",
    ),
    "segments go before the log start is published": Mutation(
        "a round that is killed leaves a log without its first records, and nothing tells why",
        {
            "operate.shortening.shorten": Instead(
                """    if starts:
        _publish(log_set, starts, gone, problems)
    for log, what in gone:
        log_set.verify_locks()
        with log_set.node.working_at(log.where.log_dir):
            log.retire(what)
""",
                """    for log, what in gone:
        log.retire(what)
    if starts:
        _publish(log_set, starts, gone, problems)
""",
            ),
        },
        test="unit/operate/test_locks_lost_midway.py::test_no_segment_goes_before_the_log_start_is_published",
    ),
    "what retention deletes takes producers with it": Mutation(
        "a broker refuses the next batch of a producer",
        {
            "operate.shortening._ready": Instead(
                "_with_room(partial(rolled.log.keep_producers, rolled.what), gone)"
            ),
        },
        test="unit/operate/test_retain.py::test_what_is_known_of_producers_stays_though_its_snapshots_go",
    ),
    "a set that lacks partitions is handed over": Mutation(
        "a broker begins them empty",
        {
            "operate.handover._ready": Instead("_check_numbers(done)"),
        },
        test="unit/operate/test_handover.py::test_a_topic_that_lacks_a_partition_is_not_handed_over",
    ),
    "a set with problems is handed over": Mutation(
        "a broker trusts checkpoints that are damaged",
        {
            "operate.handover._hand_over_one": Instead(
                "for folder in () if done.problems else log_set.directories:",
                "for folder in log_set.directories:",
            ),
        },
        test="unit/test_odd_state_files.py::test_a_name_that_no_partition_can_have_is_told_with_its_file",
    ),
    "a topic gets the id of another one": Mutation(
        "two topics have one id",
        {
            "operate.handover._check_ids": Instead(
                "if (owner := owners.get(topic_id, name)) != name:",
                """owner = name
        if False:""",
            ),
        },
        test="unit/store/test_ownership.py::test_a_handover_gives_no_topic_the_id_of_another",
    ),
    "a topic that is there is created": Mutation(
        "partitions that hold records are made again",
        {
            "operate.topics._wanted": Instead("if wanted.exists:", "if False:"),
        },
        test="unit/operate/test_topics.py::test_what_kafka_refuses_of_a_new_topic_is_refused_and_nothing_changes",
    ),
    "a topic can have fewer partitions": Mutation(
        "records of the last partitions are hidden",
        {
            "operate.topics._altered": Instead("if count < before.partitions:", "if False:"),
        },
        test="unit/operate/test_topics.py::test_what_kafka_refuses_of_a_change_is_refused_and_nothing_changes",
    ),
    "folders of another topic of the name are deleted": Mutation(
        "a broker's topic is deleted in place of ours",
        {
            "operate.topics._check_deletable": Instead(
                "if topic_id is not None and topic_key(topic, topic_id) not in keys:", "if False:"
            ),
        },
        test="unit/operate/test_topics.py::test_folders_that_are_not_the_topics_own_are_refused",
    ),
    "a folder that a link leads to is deleted": Mutation(
        "files outside of the log directories are deleted",
        {
            "operate.topics._check_deletable": Instead("check_no_link(each)"),
        },
        test="unit/operate/test_topics.py::test_folders_that_are_not_the_topics_own_are_refused",
    ),
    "folders of a broker's topic of the name are removed": Mutation(
        "what a broker has deleted itself goes before its time",
        {
            "store.deletion._is_left": Instead("return topic_id in state.deleted", "return True"),
        },
        test="unit/operate/test_topics.py::test_what_a_broker_has_deleted_itself_is_left_to_it",
    ),
    "a half copy can be used": Mutation(
        "a broker starts on a copy that was cut off, and serves a part",
        {
            "operate.backup._targets": Instead("make_directory(folder / UNFINISHED_FOLDER)"),
        },
        test="unit/operate/test_backup.py::test_a_copy_that_was_cut_off_is_not_taken_for_one",
    ),
    "a copy is made in its original": Mutation(
        "a copy copies itself",
        {
            "operate.backup._targets": Instead(
                "if root.is_relative_to(source) or source.is_relative_to(root):", "if False:"
            ),
        },
        test="unit/operate/test_backup.py::test_a_copy_lies_neither_in_its_original_nor_around_it",
    ),
    "a copy is made where something lies": Mutation(
        "two sets are mixed in one directory",
        {
            "operate.backup._targets": Instead(
                "if root.exists() and (not root.is_dir() or any(root.iterdir())):", "if False:"
            ),
        },
        test="unit/operate/test_backup.py::test_nothing_is_copied_over_something_nor_of_a_part_of_a_set",
    ),
    "a copy of a broker's directory has the checkpoints of its end": Mutation(
        "logs of a copy end below their high watermarks",
        {
            "operate.backup._copy_as_it_runs": Instead(
                "return files", "return [_root_files(copy.source, *_ROOT_FILES) for copy in copies]"
            ),
        },
        test="unit/operate/test_backup.py::test_a_brokers_logs_reach_to_their_high_watermarks_in_the_copy",
    ),
    "a log that was cut is copied on": Mutation(
        "a copy has records that were taken back",
        {
            "operate.folder_copy.FolderCopy._copy": Instead(
                "if known is not None and grows and _ends_alike(path, descriptor, known.size):",
                "if known is not None and grows:",
            ),
        },
        test="unit/operate/test_backup.py::test_a_log_that_was_cut_and_grew_again_is_copied_anew",
    ),
    "view=latest does not notice a compaction": Mutation(
        "keys have no row, and nobody is told",
        {
            "source.latest.read_latest": Instead("refuse_if_compacted(split, options)"),
        },
        test="unit/source/test_latest.py::test_a_compaction_by_newer_records_than_the_views_is_an_error",
    ),
    "a key is looked for where a missing partition would put it": Mutation(
        "a key that is there is said not to be",
        {
            "source.lookup.partition_to_search": Instead("if len(there) < count:", "if False:"),
        },
        test="unit/source/test_lookup.py::test_without_all_partitions_the_one_of_a_key_is_not_known",
    ),
    "a copy reaches beyond its original": Mutation(
        "offsets of a copy name other records than those of its original",
        {
            "commit.copied_ends.StagedEnds.add": Instead("if reached > wanted.end:", "if False:"),
        },
        test="unit/operate/test_copied_bounds.py::test_what_cannot_be_is_refused_and_nothing_is_changed",
    ),
    "an end makes a partition that is not there": Mutation(
        "a topic gets partitions that nobody asked for",
        {
            "commit.copied_ends.check_there": Instead(
                "if topic.exists and has_folder:", "if True:"
            ),
        },
        test="unit/operate/test_copied_bounds.py::test_what_cannot_be_is_refused_and_nothing_is_changed",
    ),
    "rows keep offsets that the log has given": Mutation(
        "two records have one offset",
        {
            "commit.kept_offsets.in_offset_order": Instead(
                "if first < end and slot == 0:", "if False:"
            ),
        },
        test="unit/commit/test_kept_offsets.py::test_offsets_below_the_end_of_the_log_are_refused",
    ),
    "rows of two tasks keep the same offsets": Mutation(
        "two records have one offset",
        {
            "commit.kept_offsets.in_offset_order": Instead(
                """        if first < end:
            before""",
                """        if False:
            before""",
            ),
        },
        test="unit/commit/test_kept_offsets.py::test_runs_that_overlap_are_refused_with_the_way_out",
    ),
    "a log starts above its end": Mutation(
        "nobody can read or write it",
        {
            "operate.copied_bounds._check": Instead(
                "if not 0 <= start <= end < MAX_OFFSET:", "if False:"
            ),
        },
        test="unit/operate/test_copied_bounds.py::test_what_cannot_be_is_refused_and_nothing_is_changed",
    ),
    "records of others are restored over": Mutation(
        "records of two topics are mixed",
        {
            "kafkalog.jobs.restore_plan._refuse_records": Instead(
                "if any(each.log_end > each.log_start for each in known.partitions.values()):",
                "if False:",
            ),
        },
        test="unit/jobs/test_restore_plan.py::test_a_topic_with_records_of_others_is_refused_and_an_empty_one_is_not",
    ),
    "a restore continues what another one began": Mutation(
        "rows that were asked for are taken for restored",
        {
            "kafkalog.jobs.restore_plan.TopicPlan.version": Instead(
                "told = json.dumps([self.topic, self.bounds, choice])",
                "told = json.dumps([self.topic])",
            ),
        },
        test="unit/jobs/test_restore_plan.py::test_other_rows_are_another_restore",
    ),
    "what a cut-off swap has made void stays": Mutation(
        "half of the cleaned segments take the place of all old ones",
        {
            "log.swap.finish_swap": Instead(
                "void = [name for name, base in swaps.items() if base >= first]", "void = []"
            ),
        },
        test="unit/log/test_swap.py::test_a_swap_that_is_killed_anywhere_is_ended_by_the_next_one",
    ),
    "queries are not told that a topic has another id": Mutation(
        "a query reads all of it again",
        {
            "operate.handover._renamed": Instead("_note(log_set, partitions, changed)"),
        },
        test="unit/source/test_recreated.py::test_a_topic_that_gets_another_id_and_keeps_its_records_is_the_same",
    ),
}
