"""Comparisons of ends and ids in what a reader plans and reads."""

from __future__ import annotations

from typing import Final

from tests.simulation.patches import Instead, Mutation

__all__ = ["GUARDS"]

_CONTROL: Final = "source.stream_control.StreamControl"

GUARDS: Final = {
    "a compaction within the range of a view counts as one beyond it": Mutation(
        "a view over a log that is being compacted fails",
        {
            "source.latest.refuse_if_compacted": Instead(
                "if segments[-1].base_offset <= end:", "if False:"
            )
        },
        test="unit/source/test_latest.py::test_a_compaction_below_the_views_end_takes_no_row_from_it",
    ),
    "no log ends before a query's next offset": Mutation(
        "a query goes on in a log that was cut, and nobody is told",
        {"source.loss.LossPolicy.ends_before_start": Instead("end[key] < start[key]", "False")},
        test="unit/source/plan/test_planner.py::test_an_end_that_went_back_is_a_loss",
    ),
    "offsets are read in whatever topic has the name now": Mutation(
        "a batch has records of a topic that was made again",
        {
            "source.reading.SplitReader._check_topic": Instead(
                "and found != self.topic_id", "and False"
            )
        },
        test="unit/source/test_recreated.py::test_a_task_does_not_take_another_topics_records_for_those_that_were_planned",
    ),
    "a log that ends before its offset is the same one": Mutation(
        "a topic without an id that was made again is read from the middle",
        {
            "source.recreated.TopicIds.find_recreated": Instead(
                "ends.get(key, offset) < offset", "False"
            )
        },
        test="unit/source/bounds/test_stream_end.py::test_a_topic_that_was_recreated_is_searched_anew",
    ),
    "a query ends while there is something to read": Mutation(
        "Trigger.AvailableNow leaves rows out",
        {f"{_CONTROL}.next_end": Instead("end == start == self._targets", "True")},
        test="unit/source/test_stream_control.py::test_available_now_reads_up_to_what_the_first_look_found",
    ),
    "a query that reads nothing does not wait": Mutation(
        "an idle query takes a core",
        {f"{_CONTROL}.next_end": Instead("idle=end == start", "idle=False")},
        test="unit/source/test_stream_control.py::test_a_query_that_may_not_read_what_is_there_waits_between_its_looks",
    ),
    "a log that lacks what was committed is said at each look": Mutation(
        "the output of a query is full of one warning",
        {f"{_CONTROL}._say_cut_logs": Instead("self._logs.ends.lost != self._cut", "True")},
        test="unit/source/test_while_a_broker_runs.py::test_what_seems_lost_to_a_stream_is_looked_at_as_often_as_is_asked_for",
    ),
    "partitions of several brokers count as all": Mutation(
        "positions of a group are looked for in the wrong partition",
        {
            "source.bounds.group_start._count": Instead(
                "highest if highest == len(ends) and ends else", "highest if ends else"
            )
        },
        test="unit/source/bounds/test_group_start.py::test_of_several_brokers_each_has_only_some_partitions",
    ),
    "times are compared with offsets": Mutation(
        "a batch is refused that could be read",
        {
            "source.bounds.start.batch_bounds": Instead(
                " and start.timestamps == end.timestamps", ""
            )
        },
        test="unit/source/bounds/test_start.py::test_times_are_not_compared_with_offsets",
    ),
    "a start may be given after its end": Mutation(
        "a batch reads nothing, and nobody is told",
        {"source.bounds.start._check_order": Instead("start.of(key) > end.of(key) >= 0", "False")},
        test="unit/source/bounds/test_start.py::test_bounds_of_a_batch_that_contradict_are_refused",
    ),
    "a time for all partitions is not compared with those of each": Mutation(
        "a batch reads nothing, and nobody is told",
        {
            "source.bounds.start.batch_bounds": Instead(
                "(start.each is None) != (end.each is None)", "False"
            )
        },
        test="unit/source/bounds/test_start.py::test_bounds_of_a_batch_that_contradict_are_refused",
    ),
    "a time to start at may be given after the one to end at": Mutation(
        "a query reads nothing, and nobody is told",
        {"source.range_options.RangeOptions.require_order": Instead("start > end", "False")},
        test="unit/source/bounds/test_start.py::test_a_time_to_start_at_is_not_after_the_time_to_end_at",
    ),
    "the end of a stream is looked for once": Mutation(
        "a stream goes on beyond its endingTimestamp",
        {
            "source.bounds.stream_end.StreamEnd._by_timestamp": Instead(
                "end != self._searched.get(key)", "key not in self._searched"
            )
        },
        test="unit/source/bounds/test_stream_end.py::test_a_stream_reads_up_to_its_ending_timestamp_and_then_rests",
    ),
    "a log whose records were all deleted starts after its end": Mutation(
        "a batch is refused though nothing is lost",
        {"source.plan.batch_plan._resolved": Instead("if offset > end[key]", "if False")},
        test="unit/source/plan/test_batch_plan.py::test_a_log_that_retention_empties_while_it_is_planned_is_looked_at_again",
    ),
    "a batch may start after its end": Mutation(
        "a batch reads nothing, and nobody is told",
        {"source.plan.batch_plan._check_order": Instead("if offset > end[key]:", "if False:")},
        test="unit/source/plan/test_batch_plan.py::test_a_start_behind_the_end_is_refused",
    ),
    "ranges that are empty are read": Mutation(
        "a batch has splits without rows, or a loss is told that is none",
        {
            "source.plan.planner.readable_ranges": Instead(
                "[entry for entry in clipped if entry.start < entry.end]", "list(clipped)"
            )
        },
        test="unit/source/plan/test_planner.py::test_offsets_below_the_log_start_are_a_loss",
    ),
    "what is above the committed end is planned": Mutation(
        "a batch has records that are not committed",
        {"source.plan.planner._clip": Instead("if end > available[key]:", "if False:")},
        test="unit/source/plan/test_planner.py::test_offsets_beyond_what_is_committed_are_a_loss",
    ),
    "no log that lacks something was cut": Mutation(
        "a log that was cut counts as a recreated topic",
        {f"{_CONTROL}._restarts": Instead("if gap.end >= start.get(key, 0)", "if False")},
        test="unit/source/test_recreated.py::test_a_log_that_was_cut_below_what_is_committed_is_not_taken_for_a_recreated_topic",
    ),
}
