"""Guards around topics that are deleted, and around copies; and against calls that do half."""

from __future__ import annotations

from typing import Final

from tests.simulation.patches import Instead, Mutation

__all__ = ["GUARDS"]

_KILLS: Final = {"kill": 300, "torn": 400}
_COPIED: Final = ("query", "appender", "archivist", "archivist")

GUARDS: Final = {
    "rows of a topic that was deleted are written": Mutation(
        "rows that were staged for a deleted topic make it again",
        {
            "commit.planning._Planner.open": Instead(
                "self._check_not_deleted(run, topics[run.topic_partition.topic])"
            )
        },
        ("owner", "reader"),
    ),
    "lines of an earlier topic stay in Kafka's checkpoints": Mutation(
        "marks of a deleted topic hide the records of the one that is made again",
        {
            "commit.committer.Committer._declare": Instead(
                "drop_lines_on_nodes(log_set.node, made_partitions(appends))"
            ),
            "store.deletion.retire_deleted": Instead("drop_lines_of_gone(folder)"),
        },
        test="unit/commit/test_committer.py::test_a_topic_recreated_does_not_inherit_a_recovery_point",
    ),
    "a deletion that was cut off is not ended": Mutation(
        "a topic that is made again has the records of the deleted one",
        {
            "store.take_back._end_finished": Instead("retire_deleted(log_set)"),
            "store.take_back.take_back": Instead("remove_deleted(log_set)"),
        },
        test="unit/operate/test_topics.py::test_whoever_opens_the_directories_next_ends_a_deletion",
    ),
    "deleted topics are seen until their folders are gone": Mutation(
        "a deleted topic is read in part",
        {
            "store.deleted.is_deleted": Instead(
                "return state.is_deleted(topic, read_topic_id(where.path))", "return False"
            )
        },
        test="unit/operate/test_topics.py::test_from_the_mark_on_a_topic_is_gone_for_everybody",
    ),
    "folders of deleted topics are renamed without the locks": Mutation(
        "the folders of a topic that was made again are renamed",
        {"store.deletion.retire_deleted": Instead("log_set.check_current()")},
        test="unit/operate/test_locks_lost_midway.py::test_no_folder_of_a_deleted_topic_is_renamed_once_the_locks_are_lost",
    ),
    "what a host wrote that lost its locks may be renamed": Mutation(
        "a host that wakes up right before its rename publishes what was taken back",
        {"store.take_back.take_back": Instead("_forget_prepared(log_set)")},
        test="unit/store/test_publishing.py::test_on_a_shared_file_system_what_was_taken_back_is_not_published_late",
    ),
    "a copy is not brought up to date under the locks": Mutation(
        "a backup has a state whose records it lacks",
        {"operate.backup._copy_set": Instead("copy.bring_up_to_date()")},
        _COPIED,
    ),
    "a write counts as whole": Mutation(
        "what the system wrote in part is committed",
        {"kafkalog.files.regular.write_all": Instead("while view:", "if view:")},
        ("query", "appender", "reader"),
        {"short": 40},
    ),
    "a read counts as whole": Mutation(
        "a batch that was read in part is taken for damage",
        {
            "kafkalog.files.local_file.fill_from": Instead(
                "while filled < len(data):", "for _ in range(1):"
            )
        },
        ("query", "appender", "reader"),
        {"short": 40},
    ),
    "checkpoints are written before the rename": Mutation(
        "a broker is told ends of a commit that is taken back",
        {
            "commit.committer.Committer._write": Instead(
                "self._apply(appends, replication)",
                "self._apply(appends, replication)\n            "
                "tell_ends(appends, replication, durable=self._durable)",
            )
        },
        ("query", "appender", "broker", "reader"),
        _KILLS,
    ),
    "rows may lie among other partitions than there are": Mutation(
        "records of one key lie in two partitions",
        {
            "commit.planning._Planner.open": Instead(
                "if not placed[name] <= {topic.partitions} or not", "if not"
            )
        },
        test="unit/commit/test_committer.py::test_rows_that_were_placed_among_other_partitions_than_there_are_now_are_refused",
    ),
    "a position counts for a topic that was recreated": Mutation(
        "a group leaves out the first records of a new topic",
        {
            "groups.group_log.GroupLog._of_present_topics": Instead(
                "outdated_positions(self._state.topic_ids, found, log_set.directories)",
                "frozenset()",
            )
        },
        test="unit/consumer/test_recreated_topics.py::test_a_group_that_comes_back_reads_a_recreated_topic_from_its_start",
    ),
    "a query starts in a recreated topic where its group stood": Mutation(
        "a query that starts where a group stands leaves out the first records of a new topic",
        {"groups.position_topics.is_of_earlier_topic": Instead("was != now", "False")},
        test="unit/consumer/test_recreated_topics.py::test_who_starts_where_a_group_stands_reads_a_recreated_topic_from_its_start",
    ),
    "a member keeps a partition of a topic that was recreated": Mutation(
        "rows of two topics are published as those of one",
        {"groups.rebalance._lasting": Instead("0) and each not in recreated", "0)")},
        test="unit/joining/test_joined_queries.py::test_a_topic_recreated_under_a_query_is_read_from_its_start",
    ),
    "a commit that was killed after its rename needs all folders": Mutation(
        "once a topic was deleted by hand, nothing can be written or taken over",
        {
            "store.take_back._still_there": Instead(
                "if _is_there(log_set, _folder(log_set, each))", "if True"
            )
        },
        test="unit/store/test_lost_partitions.py::"
        "test_a_topic_that_is_gone_as_a_whole_ends_a_commit_that_was_killed_after_its_rename",
    ),
}
