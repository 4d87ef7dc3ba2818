"""Comparisons of ends, ids and digests with what was seen or said before."""

from __future__ import annotations

from typing import Final

from tests.simulation.patches import Instead, Mutation

__all__ = ["GUARDS"]

GUARDS: Final = {
    "a member that leaves looks once whether that was decided": Mutation(
        "its partitions wait until others notice that it is gone",
        {
            "groups.membership.Membership.leave": Instead(
                "self.member_id not in self._commits.look().record.members", "True"
            )
        },
        test="unit/groups/test_membership.py::test_a_member_that_leaves_looks_again_where_somebody_else_has_the_lock",
    ),
    "what an earlier generation said of a member counts in this one": Mutation(
        "two members read a partition that one of them was given and lost meanwhile",
        {
            "groups.rebalance._is_told": Instead(
                "live[name].generation == record.generation", "True"
            )
        },
        test="unit/groups/test_membership.py::test_what_was_given_to_a_member_and_taken_back_before_it_said_so_has_no_other_owner",
    ),
    "what was read of a group counts though its log is shorter now": Mutation(
        "a group keeps positions that an older copy does not have",
        {
            "groups.group_log.GroupLog.look": Instead(
                "not log.log_start_offset <= self._end <= end", "False"
            )
        },
        test="unit/groups/test_group_commits.py::test_a_group_is_as_its_log_says_after_an_older_copy_was_written_over_it",
    ),
    "a record that is not committed has the timestamp of a bound": Mutation(
        "a batch query ends above what is committed",
        {"source.bounds.start._resolve": Instead(" and found.offset < end", "")},
        test="unit/source/bounds/test_start.py::test_a_record_that_is_not_committed_has_no_timestamp_yet",
    ),
    "an end by timestamp is any end of its log": Mutation(
        "a batch query fails for records that it would not read",
        {"source.bounds.start.Bound.is_open": Instead("offset == end and ", "")},
        test="unit/source/test_seems_lost.py::test_a_batch_that_ends_before_a_loss_by_time_reads_what_is_there",
    ),
    "an end by timestamp stays though its log was cut": Mutation(
        "a stream ends before a record that is older than its end",
        {
            "source.bounds.stream_end.StreamEnd._by_timestamp": Instead(
                "end < max(self._found.get(key, 0), self._searched.get(key, 0))", "False"
            )
        },
        test="unit/source/bounds/test_stream_end.py::test_a_log_that_was_cut_and_has_other_records_is_searched_anew",
    ),
    "a record that is not committed ends a stream": Mutation(
        "a stream ends before a record that is older than its end",
        {"source.bounds.stream_end.StreamEnd._search": Instead(" and record.offset < end", "")},
        test="unit/source/bounds/test_stream_end.py::test_a_record_that_is_not_committed_ends_no_stream",
    ),
    "a log that seems short is not looked at again": Mutation(
        "a query fails while a log is restored or moved",
        {"source.stream_control.StreamControl._ends_after": Instead("ends[key] >= offset", "True")},
        test="unit/source/test_seems_lost.py::test_a_log_that_is_short_at_one_look_has_lost_nothing",
    ),
    "what a commit wrote and seems lost is not looked at again": Mutation(
        "a query fails while a log is restored or moved",
        {
            "source.stream_control.StreamControl._ends_after": Instead(
                "self._logs.ends.lost == self._cut", "True"
            )
        },
        test="unit/source/test_seems_lost.py::test_what_a_commit_wrote_and_is_not_there_at_one_look_is_not_lost",
    ),
    "a commit that begins during a look is not noticed": Mutation(
        "readers of a bare copy see what is taken back later",
        {
            "store.ends.watch.EndsWatch._look_once": Instead(
                "self._marks.sequence != before", "False"
            )
        },
        test="unit/source/test_seems_lost.py::test_what_a_commit_appends_to_a_bare_copy_during_a_look_is_not_committed",
    ),
    "a staged file is any file of its size": Mutation(
        "a commit that is taken back takes batches of another writer with it",
        {"store.proof._is_as_staged": Instead(" and crc == piece.crc32c", "")},
        test="unit/store/test_recovery.py::test_a_batch_of_another_writer_in_a_file_that_was_adopted_is_no_proof_of_itself",
    ),
    "a log start is that of all topics of its name": Mutation(
        "records of a topic that has another id are hidden",
        {
            "store.log_starts._is_of": Instead(
                "state.key_of(found.topic_partition.topic, read_topic_id(found.path)) == key",
                "True",
            )
        },
        test="unit/store/test_stale_lines.py::test_a_log_start_that_was_not_written_yet_is_not_that_of_another_topic_of_its_name",
    ),
    "a topic of format 1 has the log start of any topic of its name": Mutation(
        "records are hidden once its folder is back",
        {
            "store.partition_states._is_of": Instead(
                "state.key_of(found.topic_partition.topic, read_topic_id(found.path)) == key",
                "True",
            )
        },
        test="unit/store/test_earlier_formats.py::test_a_log_start_of_another_topic_of_its_name_is_none_of_a_topic_of_format_1",
    ),
    "log starts that are published are published again where there was no room": Mutation(
        "Kafka's checkpoints stay behind, or a state follows in which nothing is new",
        {"operate.shortening._publish": Instead("log_set.state.stamp != before", "False")},
        test="unit/operate/test_retain_full_disk.py::test_what_is_published_is_ended_once_and_at_once_if_there_is_room",
    ),
    "segments go though their log starts could not be published": Mutation(
        "committed records are gone, and nobody is told",
        {"operate.shortening._publish": Instead("log_set.state.stamp == before", "False")},
        test="unit/operate/test_retain_full_disk.py::test_without_room_or_indexes_nothing_changes",
    ),
    "a topic's folder is given up whatever is deleted": Mutation(
        "what a commit has appended there is visible once the folder is back",
        {"store.take_back._check_partition": Instead("intended.topic != deletes", "False")},
        test="unit/store/test_recovery.py::test_a_topic_deleted_by_hand_amid_a_commit_is_given_up_and_other_topics_get_it_once",
    ),
}
