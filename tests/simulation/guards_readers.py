"""Guards of readers: where a log ends and starts, whose it is, and what is missing."""

from __future__ import annotations

from typing import Final

from tests.simulation.patches import Instead, Mutation

__all__ = ["GUARDS"]

_KILLS: Final = {"kill": 300, "torn": 400}
_BROKER: Final = ("appender", "query", "broker", "broker", "reader", "follower")

GUARDS: Final = {
    "a broker's batches are hidden while a commit runs": Mutation(
        "readers see ends that go back",
        {"store.ends.rule.committed_end": Instead("brokers = min(brokers, begun)", "brokers = 0")},
        test="unit/store/test_ends.py::test_how_far_a_partition_is_committed",
    ),
    "a broker's high watermark counts amid a commit": Mutation(
        "readers see half of a batch",
        {"store.ends.rule.committed_end": Instead("brokers = min(brokers, begun)", "pass")},
        test="unit/store/test_ends.py::test_whatever_files_say_ends_are_in_order",
    ),
    "readers go by the commit state alone": Mutation(
        "readers lack what a broker has appended",
        {
            "store.ends.rule.committed_end": Instead(
                "return ours if brokers is None else max(ours, brokers)", "return ours"
            )
        },
        _BROKER,
        _KILLS,
    ),
    "readers go by a broker's high watermark alone": Mutation(
        "readers lack what is committed",
        {
            "store.ends.rule.committed_end": Instead(
                "return ours if brokers is None else max(ours, brokers)",
                "return ours if brokers is None else brokers",
            )
        },
        test="unit/store/test_earlier_formats.py::test_a_set_of_format_1_is_read",
    ),
    "what the state does not name is read": Mutation(
        "readers see partitions of a commit that is taken back",
        {
            "store.ends.rule.committed_end": Instead(
                "return 0 if brokers is None and said.has_state else brokers", "return brokers"
            )
        },
        test="unit/store/test_ends.py::test_how_far_a_partition_is_committed",
    ),
    "log starts in Kafka's checkpoint alone count": Mutation(
        "readers see what is deleted",
        {
            "store.ends.rule.said_start": Instead(
                "return max(said.log_start, min(said.kept_start, log_end))", "return said.log_start"
            )
        },
        test="unit/store/test_earlier_formats.py::test_a_log_start_that_the_state_has_taken_over_outlasts_kafkas_checkpoint",
    ),
    "log starts in the commit state alone count": Mutation(
        "readers see what a broker has deleted",
        {
            "store.ends.rule.said_start": Instead(
                "return max(said.log_start, min(said.kept_start, log_end))",
                "return min(said.kept_start, log_end)",
            )
        },
        test="unit/store/test_ends.py::test_no_end_lies_below_the_log_start",
    ),
    "a look takes files in any order": Mutation(
        "readers lack partitions of a commit that is over",
        {
            "store.ends.watch.EndsWatch._read_files": Instead(
                "while self._listed_for != self._marks.sequence:", "while False:"
            )
        },
        test="unit/source/test_half_listed.py::test_a_batch_that_is_committed_during_the_listing_is_seen_in_all_partitions",
    ),
    "a query reads on in a topic that was recreated": Mutation(
        "a query leaves out the first records of a new topic",
        {
            "source.stream_control.StreamControl._recreated_since": Instead(
                "if start.get(key, 0) < offset and self._ids.is_other(key, ids.get(key))",
                "if False",
            )
        },
        test="unit/source/test_recreated.py::test_a_batch_that_was_logged_of_the_old_topic_is_not_read_from_the_new_one",
    ),
    "a query does not notice that its topic was recreated": Mutation(
        "a query leaves out the first records of a new topic",
        {
            "source.recreated.TopicIds.is_other": Instead(
                "if known is None or now is None or known == now:", "if True:"
            )
        },
        test="unit/source/test_recreated.py::test_a_topic_recreated_while_the_query_runs_is_read_from_its_start",
    ),
    "a task reads another topic of the same name": Mutation(
        "a query is given records of two topics as one",
        {
            "source.reading.SplitReader._check_topic": Instead(
                "if self.topic_id is None:", "if True:"
            )
        },
        test="unit/source/test_recreated.py::test_a_task_does_not_take_another_topics_records_for_those_that_were_planned",
    ),
    "a query continues where offsets were deleted": Mutation(
        "a query leaves records out, and is not told",
        {"source.loss.LossPolicy._lost": Instead("if self.fails:", "if False:")},
        ("appender", "deleter", "follower", "follower"),
    ),
    "a loss counts at the first look": Mutation(
        "a query fails though nothing is lost",
        {
            "source.stream_control.StreamControl.plan": Instead(
                "except DataLossError:\n                self._rest()",
                "except DataLossError:\n                break",
            )
        },
        test="unit/source/test_while_a_broker_runs.py::test_what_seems_lost_to_a_batch_is_looked_at_as_often_as_is_asked_for",
    ),
    "a query does not wait at an end that went back": Mutation(
        "a query fails though nothing is lost",
        {
            "source.stream_control.StreamControl._look": Instead(
                "waiting = self._waiting(start, self.latest)", "waiting = {}"
            )
        },
        test="unit/source/test_while_a_broker_runs.py::test_what_was_read_above_what_a_broker_tells_on_disk_is_waited_at_and_no_loss",
    ),
    "partitions that are away count as deleted": Mutation(
        "a query begins them again when they are back",
        {
            "source.stream_control.StreamControl._absent": Instead(
                "if start.keys() <= ends.keys():", "if True:"
            )
        },
        test="unit/source/test_missing_parts.py::test_a_query_that_goes_on_without_a_directory_reads_on_where_it_was_when_that_is_back",
    ),
    "a cut log is not told": Mutation(
        "readers lack what is committed, and are not told",
        {"source.loss.LossPolicy.logs_cut": Instead("if lost:", "if False:")},
        test="unit/source/test_tail.py::test_a_folder_that_has_lost_its_id_is_of_the_topic_of_its_name",
    ),
    "the newest state does not count": Mutation(
        "readers lack what is committed",
        {
            "kafkalog.checkpoints.committed._load_committed": Instead(
                "state = max(states.values(), key=lambda state: state.rank, default=None)",
                "state = min(states.values(), key=lambda state: state.rank, default=None)",
            )
        },
        test="unit/store/test_earlier_formats.py::test_a_set_of_format_1_is_read",
    ),
    "the oldest state counts for writers": Mutation(
        "a batch is there twice",
        {"store.open_set._newest": Instead("return max(", "return min(")},
        test="unit/store/test_earlier_formats.py::test_a_set_of_format_1_is_written_on",
    ),
    "batches of records are not compared with their checksums": Mutation(
        "a torn batch stays in the log",
        {
            "log.append.recovery.recover_segment": Instead(
                "if batches.end.problem is not None:", "if False:"
            )
        },
        test="unit/commit/test_foreign_log.py::test_a_torn_batch_above_the_committed_end_is_cut_off",
    ),
    "readers take directories of two histories for one": Mutation(
        "readers see half of one attempt of a batch and half of another",
        {
            "kafkalog.checkpoints.committed._load_committed": Instead(
                "check_one_history({folder: state.stamp for folder, state in states.items()}, intents)"
            ),
        },
        test="crash/test_missing_members.py::test_a_directory_that_began_a_commit_which_was_made_without_it_is_refused",
    ),
    "a topic id is read once": Mutation(
        "a query leaves out the first records of a new topic",
        {
            "store.ends.seen_log.SeenLog._read": Instead(
                "if read_topic_id(folder) != self.topic_id:", "if False:"
            )
        },
        test="unit/source/test_while_a_broker_runs.py::test_a_log_that_is_recreated_while_it_is_read_is_not_taken_for_the_one_before",
    ),
    "a log that has changed is not read again": Mutation(
        "a query fails though nothing is lost",
        {"store.ends.watch.EndsWatch._read_again": Instead("log.read_again_if_changed()", "False")},
        test="unit/source/test_while_a_broker_runs.py::test_a_log_that_was_read_before_it_came_to_an_offset_is_read_again",
    ),
}
