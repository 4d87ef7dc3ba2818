"""Guards of consumer groups: of the fence, of decisions, of members, and of queries' plans."""

from __future__ import annotations

from typing import Final

from tests.simulation.patches import Instead, Mutation

__all__ = ["GUARDS"]

_COPYING: Final = ("appender", "member", "member", "member", "watcher")
_RESET: Final = ("appender", "member", "member", "setter", "setter")
_KILLS: Final = {"kill": 400}
_QUERIES: Final = "unit/joining/test_joined_queries.py::"

GUARDS: Final = {
    "positions apart from rows": Mutation(
        "rows are copied again by whoever comes next",
        {
            "consumer.consumer.Consumer._ride": Instead(
                "return fence, [self._commits.rider(ends, now_ms)] if moves else ()",
                "return fence, ()",
            )
        },
        _COPYING,
        _KILLS,
    ),
    "a member that was lost may commit": Mutation(
        "who wakes up late copies what others have",
        {
            "groups.group_commits.Fence.__call__": Instead(
                "raise FencedMemberError(", "return FencedMemberError("
            )
        },
        test="unit/groups/test_group_commits.py::test_a_member_that_was_fenced_commits_nothing",
    ),
    "what another one has may be committed": Mutation(
        "two members commit one partition",
        {
            "groups.group_commits.Fence._check": Instead(
                "if since != move.since:", "if since is None and not self.moves:"
            )
        },
        test="unit/groups/test_group_commits.py::test_a_member_that_was_fenced_commits_nothing",
    ),
    "what was taken away and came back may be committed": Mutation(
        "a plan is committed that others have read in between",
        {"groups.group_commits.Fence._check": Instead("if since != move.since:", "if not since:")},
        test="unit/groups/test_group_commits.py::test_a_member_that_was_fenced_commits_nothing",
    ),
    "the group may stand elsewhere than a commit begins": Mutation(
        "an append that is tried again is there twice",
        {"groups.group_commits.Fence._check": Instead("if stands != move.begin:", "if False:")},
        test="unit/groups/test_group_commits.py::test_a_member_that_was_fenced_commits_nothing",
    ),
    "who decides does not look at what was decided": Mutation(
        "a generation is decided twice",
        {
            "groups.group_commits.Unchanged.__call__": Instead(
                "if state.record != self.record:", "if False:"
            )
        },
        _RESET,
        _KILLS,
    ),
    "a group begins where it was put meanwhile": Mutation(
        "what a person has set is lost",
        {
            "groups.group_commits.Unchanged.__call__": Instead(
                "if not self.begins.isdisjoint(state.positions):", "if False:"
            )
        },
        test="unit/groups/test_group_commits.py::"
        "test_a_group_does_not_begin_where_somebody_has_put_it_meanwhile",
    ),
    "a partition is assigned whose position is gone": Mutation(
        "nobody reads a partition",
        {"groups.group_commits.Unchanged.__call__": Instead("if gone:", "if False:")},
        test="unit/operate/test_group_expiry.py::"
        "test_no_partition_is_assigned_whose_position_was_taken_away_meanwhile",
    ),
    "a partition is given to another one while it is held": Mutation(
        "two have one partition",
        {
            "groups.rebalance._assigned": Instead(
                "if holder.get(each, name) == name", "if name in holder or True"
            )
        },
        test="unit/groups/test_rebalance.py::"
        "test_who_says_that_it_still_works_on_a_partition_keeps_others_from_it",
    ),
    "what is revoked is nobody's at once": Mutation(
        "who is at work on a partition loses what it has done",
        {
            "groups.rebalance._held": Instead(
                "if not is_told or each in owned", "if not is_told and each in owned"
            )
        },
        test="unit/groups/test_rebalance.py::"
        "test_who_says_that_it_still_works_on_a_partition_keeps_others_from_it",
    ),
    "a static member stays beside the one that replaces it": Mutation(
        "two have one partition",
        {
            "groups.rebalance.next_record": Instead(
                "members = _without_instance(members, live[name].settings.instance)"
            )
        },
        _COPYING,
        _KILLS,
    ),
    "who was fenced comes back under its id": Mutation(
        "a member that was lost has partitions again",
        {
            "groups.rebalance._joining": Instead(
                "if name not in record.members and each.generation == NO_GENERATION",
                "if name not in record.members",
            )
        },
        test="unit/groups/test_rebalance.py::"
        "test_a_member_that_was_fenced_does_not_come_back_under_its_id",
    ),
    "nobody is ever lost": Mutation(
        "partitions of who was killed are read by nobody",
        {
            "groups.watch._is_lost": Instead(
                "seen.still_s * 1000 >= settings.session_timeout_ms", "False"
            )
        },
        _COPYING,
        _KILLS,
    ),
    "a watcher that slept takes others for lost": Mutation(
        "a machine that stood still has groups without members",
        {
            "groups.watch.Watch.look": Instead(
                "step = min(max(step, 0.0), self._longest_step_s)", "step = max(step, 0.0)"
            )
        },
        test="unit/groups/test_watch.py::test_a_watcher_that_slept_takes_nobody_for_lost",
    ),
    "a heartbeat makes the file again": Mutation(
        "a member rises from the dead",
        {
            "groups.member_files.MemberFile._open": Instead(
                "open_regular(self._path, os.O_RDWR)",
                "open_regular(self._path, os.O_RDWR | os.O_CREAT)",
            )
        },
        test="unit/groups/test_member_files.py::"
        "test_a_member_whose_file_was_taken_away_does_not_make_it_again",
    ),
    "a program that hangs stays a member": Mutation(
        "partitions of who does not poll are read by nobody",
        {"groups.heartbeat.Heartbeat.look": Instead("self._member.vanish()")},
        test="unit/groups/test_heartbeat.py::test_an_owner_that_does_not_ask_for_more_is_stuck",
    ),
    "rows of what was given up are appended": Mutation(
        "rows are there twice: their new owner has them, too",
        {"consumer.consumer.Consumer._ride": Instead("if self._cursors.taken:", "if False:")},
        test="unit/consumer/test_consumer.py::test_rows_of_a_partition_that_was_given_up_are_refused_and_read_by_its_new_owner",
    ),
    "after an append that failed one goes on": Mutation(
        "rows are passed over",
        {"consumer.consumer.Consumer._round": Instead("self._cursors.go_back(stands)")},
        test="unit/consumer/test_consumer.py::"
        "test_an_append_that_failed_is_tried_again_or_its_rows_come_again",
    ),
    "an append that failed before it began has not failed": Mutation(
        "rows are passed over",
        {"library._telling": Instead("consumer.note_failure()")},
        test="unit/consumer/test_consumer.py::"
        "test_rows_come_again_though_an_append_failed_before_it_began",
    ),
    "a failed append may be committed without its rows": Mutation(
        "rows are passed over",
        {"consumer.consumer.Consumer.commit": Instead("if self._has_failed:", "if False:")},
        test="unit/consumer/test_consumer.py::"
        "test_an_append_that_failed_is_tried_again_or_its_rows_come_again",
    ),
    "a commit whose end is not known is not looked up": Mutation(
        "a member is refused its own commit",
        {
            "consumer.consumer.Consumer.commit": Instead(
                "if self._is_unsure and self._joined is not None:", "if False:"
            )
        },
        test="unit/consumer/test_consumer.py::test_a_commit_whose_end_is_not_known_is_looked_up",
    ),
    "a forked child is the member, too": Mutation(
        "two processes are one member",
        {
            "consumer.consumer.Consumer._check_usable": Instead(
                "if self._process != system.process_id():", "if False:"
            )
        },
        test="unit/consumer/test_consumer.py::test_a_forked_child_is_refused",
    ),
    "a group is moved under its members": Mutation(
        "members that live are fenced by a person",
        {"groups.administration._when_empty": Instead("if living:", "if False:")},
        test="unit/jobs/test_cli_groups.py::test_a_group_with_members_stays_as_it_is",
    ),
    "groups keep their members when a set changes hands": Mutation(
        "members of another owner commit",
        {
            "operate.groups.empty_groups": Instead(
                "commit_of_groups(log_set, riders, now_ms)", "pass"
            )
        },
        test="unit/operate/test_groups.py::test_a_set_that_changes_hands_has_no_members",
    ),
    "rows of a plan that was replaced are published": Mutation(
        "a query that was started elsewhere publishes rows twice",
        {
            "groups.planned_commit._check_present": Instead(
                "if plan is None or plan.nonce != nonce:", "if plan is None:"
            )
        },
        test=_QUERIES + "test_rows_of_a_plan_that_was_replaced_are_refused",
    ),
    "a plan may end elsewhere than the checkpoint says": Mutation(
        "positions pass rows that the batch does not have",
        {
            "groups.planned_commit.Planned.ride": Instead(
                "if ends is not None and plan.end not in ends:", "if False:"
            )
        },
        test=_QUERIES + "test_a_plan_that_ends_elsewhere_than_the_checkpoint_says_is_refused",
    ),
    "a batch of a query is published without the fence": Mutation(
        "a query that was lost publishes rows twice",
        {"groups.planned_commit.PlanStands.__call__": Instead("self.fence(log_set)")},
        test=_QUERIES + "test_a_batch_of_a_member_that_was_lost_publishes_nothing",
    ),
    "what start does not name is read": Mutation(
        "rows are read from where the checkpoint never was",
        {
            "joining.joined_control.JoinedControl._own_ranges": Instead(
                "if key in start and key in end and start[key] <= stands < end[key]",
                "if key in end and start.get(key, 0) <= stands < end[key]",
            )
        },
        test=_QUERIES + "test_what_start_does_not_name_is_not_read",
    ),
    "a batch that comes again is read from where it began": Mutation(
        "rows that were published are read again",
        {
            "joining.joined_control.JoinedControl._own_ranges": Instead(
                "key: (stands, end[key])", "key: (start[key], end[key])"
            )
        },
        test=_QUERIES + "test_a_batch_that_comes_again_begins_where_the_group_was_set_ahead_to",
    ),
    "two queries of one name": Mutation(
        "each takes the other's partitions, and its plan",
        {"joining.query_member.QueryMember._join": Instead("self._take_name()")},
        test=_QUERIES + "test_the_second_of_one_name_is_refused_as_long_as_the_first_lives",
    ),
    "a batch that runs loses its partitions": Mutation(
        "a query is fenced whenever somebody joins",
        {
            "joining.query_member.QueryMember._round": Instead(
                "member.give_up(member.revoked - busy)", "member.give_up(member.revoked)"
            )
        },
        test=_QUERIES + "test_a_running_batch_is_ended_before_its_partitions_are_given_up",
    ),
    "a batch that is skipped moves the group": Mutation(
        "what a group was set back to is passed over",
        {
            "groups.planned_commit.Planned.skipped": Instead(
                "if plan is not None and plan.nonce == self.nonce and plan.moves:", "if False:"
            )
        },
        test=_QUERIES + "test_what_a_published_batch_was_set_back_to_is_read_after_it",
    ),
    "a batch of another source alone has the plan before it": Mutation(
        "a query with two sources stands still for ever",
        {
            "joining.joined_control.JoinedControl.next_end": Instead(
                "self.member.rest(to_json(start))"
            )
        },
        test=_QUERIES + "test_a_batch_of_another_source_alone_is_published_and_moves_nothing",
    ),
    "what could not be said counts as said": Mutation(
        "a member that gave partitions up is waited for, and then lost",
        {
            "groups.membership.Membership._tell": Instead(
                "self._file.say(presence)", "self._presence = presence; self._file.say(presence)"
            )
        },
        test="unit/consumer/test_consumer.py::"
        "test_what_could_not_be_said_for_want_of_space_is_said_later",
    ),
    "a member says what no record can hold": Mutation(
        "nobody can decide anything about the group",
        {"groups.member_files._number": Instead("if not smallest <= number <= _LARGEST:", "if 0:")},
        test="unit/groups/test_member_files.py::test_what_no_record_can_hold_says_nothing",
    ),
    "positions of an earlier topic stay": Mutation(
        "a broker's clients begin there in partitions that come",
        {
            "groups.membership.Membership._decide": Instead(
                "forgotten = state.outdated - beginnings.keys()", "forgotten = ()"
            )
        },
        test="unit/consumer/test_recreated_topics.py::"
        "test_positions_in_partitions_that_a_recreated_topic_does_not_have_are_taken_away",
    ),
    "who stands still with the group's lock is waited for": Mutation(
        "partitions of who was lost are read by nobody",
        {
            "groups.membership.Membership._decide": Instead(
                "if not lock.is_held and not self._has_waited():", "if not lock.is_held:"
            )
        },
        test="unit/groups/test_membership.py::"
        "test_who_stands_still_with_the_groups_lock_is_not_waited_for",
    ),
    "a query with state shares partitions": Mutation(
        "rows of a key change queries, and their state stays",
        {
            "sink.writer._refuse_state": Instead(
                "if checkpoint is not None and checkpoint.has_state:", "if False:"
            )
        },
        test=_QUERIES + "test_a_query_with_state_is_refused",
    ),
}
