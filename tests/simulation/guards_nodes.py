"""Guards of several nodes: how a commit is decided, who is fenced, and what is cut."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tests.simulation.layouts import Layout
from tests.simulation.patches import Instead, Mutation

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["GUARDS"]

_BACK: Final = "unit/store/replicas/test_nodes_that_come_back.py::"
_GO: Final = "unit/store/replicas/test_nodes_that_go.py::"
_VOTERS: Final = "unit/checkpoints/test_voters.py::"
_ELECTION: Final = "unit/store/replicas/test_election.py::"
_ACTORS: Final = ("versioned", "query", "appender", "reader", "inspector")
_CUT: Final = "unit/store/replicas/test_cut_off_commits.py::"
_THREE: Final[Mapping[str, Any]] = {"nodes": Layout((1, 1, 1)), "directories": 3}
_KILLS: Final = {"kill": 600}


def _found(
    breaks: str, place: str, code: str, other: str, faults: Mapping[str, int] = _KILLS
) -> Mutation:
    """Return a mutation that histories over three nodes find."""
    return Mutation(breaks, {place: Instead(code, other)}, _ACTORS, faults, drawn=_THREE)


def _tested(breaks: str, place: str, code: str, other: str, test: str) -> Mutation:
    return Mutation(breaks, {place: Instead(code, other)}, test=test)


_DECIDING: Final = "store.replicas.deciding."
_SEVERAL: Final = "store.replicas.several_nodes.SeveralNodes."
_REPLICATION: Final = "commit.replication.Replication."

GUARDS: Final = {
    "followers do not get a batch": _found(
        "replicas in sync differ, and a node that leads next lacks what was acknowledged",
        f"{_REPLICATION}_followers",
        "return [node for node in in_sync if node != planned and node in self._nodes.live]",
        "return []",
    ),
    "a node that is out is appended to": _tested(
        "a leader has records that no intent names, and is not written any more",
        f"{_REPLICATION}by_node",
        "if not self.is_out(each[0])",
        "",
        f"{_GO}test_nothing_is_appended_where_nothing_says_what_is_about_to_happen",
    ),
    "what was staged goes on a node that nobody has asked": _tested(
        "a node that is back has a commit that was cut off, and nothing proves what is its own",
        "commit.committer.Committer._drop",
        "and log_set.node.has(folder)",
        "",
        f"{_CUT}test_what_a_node_needs_is_not_dropped_though_it_comes_back_meanwhile",
    ),
    "a state that is published again keeps its epoch": _tested(
        "two states of one rank name other leaders, and a reader sees a leader epoch fall",
        f"{_DECIDING}_repeat",
        "replace(log_set.state, controller_epoch=epoch)",
        "log_set.state",
        f"{_CUT}test_a_state_that_is_repeated_with_other_leaders_counts_more_than_before",
    ),
    "a replica that lags is noted as durable": _tested(
        "what a loss of power has left on a node is never compared, and differs from its leader's",
        "store.take_back._still_there",
        "and not _lags(log_set, each)",
        "",
        f"{_CUT}test_what_a_node_was_left_with_is_compared_though_the_commit_is_published",
    ),
    "a replica that lags has to prove what is to go": _tested(
        "a node stays out though the others have all",
        "store.take_back._lags",
        "topic is not None and not topic.is_in_sync(intended.partition, node)",
        "False",
        f"{_CUT}test_a_replica_that_lags_is_compared_though_nothing_proves_what_is_to_go",
    ),
    "a state is prepared on one node only": _found(
        "an acknowledged batch is known to one node, and gone with it",
        f"{_SEVERAL}publish",
        "for node in self.live if self._prepare",
        "for node in self.live[:1] if self._prepare",
    ),
    "a take-back leaves the leader epoch": _found(
        "two records have one offset under one leader epoch, and no follower can tell them apart",
        f"{_DECIDING}decide",
        "_claim(log_set, with_raised_epochs(log_set.state, _written_epochs(unfinished)))",
        "_claim(log_set, log_set.state)",
        {"kill": 300},
    ),
    "a minority may go on": Mutation(
        "two halves of a set continue without each other",
        {
            "store.replicas.open_nodes.NodesSession._present": Instead(
                "voters.check_majority()", "pass"
            ),
            f"{_SEVERAL}check_majority": Instead(
                "if is_majority(self.live, self.voters):", "if self.live:"
            ),
        },
        _ACTORS,
        {"vanish": 100, "vanish two": 100},
        drawn=_THREE,
    ),
    "what takes a node out is finished, and who is back stays out": _tested(
        "a recovery says that a node is in sync again, and no state does",
        "operate.node_order.bring_nodes_in_order",
        "    log_set.publish(log_set.state.following())\n",
        "    if log_set.state.topics != before.newest.topics:\n"
        "        log_set.publish(log_set.state.following())\n",
        f"{_CUT}test_who_is_back_is_in_sync_though_it_was_taken_out_by_what_is_finished_first",
    ),
    "the highest epoch is not chosen of what lies prepared": _tested(
        "what no majority held is finished in place of what one may have",
        f"{_DECIDING}prepared_state",
        "return max(found,",
        "return min(found,",
        f"{_BACK}test_what_the_newest_controller_has_prepared_is_finished",
    ),
    "what an older controller has prepared is finished": _tested(
        "what was taken back is seen, in place of what came after it",
        f"{_DECIDING}prepared_state",
        "and not counts_no_more(each, state, unfinished)",
        "and True",
        f"{_BACK}test_what_an_older_controller_has_prepared_is_not_finished",
    ),
    "a commit that changes no log is not declared": _tested(
        "two controllers prepare different states under one epoch",
        f"{_SEVERAL}_declare_alone",
        "self.declare(Intent.of_state(state, _NO_WRITER))",
        "pass",
        f"{_BACK}test_a_commit_that_changes_no_log_is_declared_too",
    ),
    "older copies of most nodes are a set": _tested(
        "acknowledged batches are gone, and nobody says so",
        "kafkalog.checkpoints.voters.Voters.check_one_history",
        "if len(old) > count - self.majority:",
        "if False:",
        f"{_VOTERS}test_one_node_may_be_two_commits_behind_and_two_may_not",
    ),
    "a reader passes over what lies prepared": _tested(
        "a reader sees less than it has seen",
        "kafkalog.checkpoints.voters.Voters.check_known",
        "and state.sequence > newest.sequence",
        "and False",
        f"{_VOTERS}test_what_is_prepared_may_be_in_place_on_a_node_that_is_missing",
    ),
    "a reader waits for what an older controller has prepared": _tested(
        "readers fail until the next write, and need not",
        "kafkalog.checkpoints.voters.Voters.check_known",
        "and not counts_no_more(state, newest, intents)",
        "and True",
        f"{_VOTERS}test_what_an_older_controller_has_prepared_is_passed_over",
    ),
    "an older copy is in sync": _tested(
        "a replica that lacks records leads",
        f"{_DECIDING}_behind",
        "if not all(state.stamp in _stamps(each) for each in nodes.by_node[node].values())",
        "if False",
        f"{_BACK}test_an_older_copy_is_not_in_sync_though_the_state_says_so",
    ),
    "a node that is out gets the state": _tested(
        "a node whose locks are lost is in sync, in an empty folder or with another's logs",
        f"{_SEVERAL}publish",
        "[node for node in prepared if node in self.live]",
        "prepared",
        f"{_GO}test_a_node_that_lost_its_locks_after_it_was_prepared_gets_no_state",
    ),
    "what lies prepared in an empty folder is a set's first state": _tested(
        "a node without logs is in sync",
        "store.replicas.starting._finish_start",
        "if voters is None or voters.newest.controller:",
        "if voters is None:",
        f"{_GO}test_what_lies_prepared_in_an_empty_folder_is_no_first_state",
    ),
    "who lags is elected where the others are lost": _tested(
        "a replica without the batch leads, and acknowledged records are gone",
        "store.replicas.election.shrunk",
        "kept = each.without(behind[topic, number])",
        "kept = each",
        f"{_ELECTION}test_who_lags_is_not_elected_where_the_others_in_sync_are_away",
    ),
    "a leader epoch is raised above the state's only": _tested(
        "two records have one offset under the epoch of an election that was not published",
        "store.replicas.election.with_raised_epochs",
        "max(where.leader_epoch, before) + 1",
        "where.leader_epoch + 1",
        f"{_ELECTION}test_a_take_back_raises_the_epoch_of_the_partitions_that_it_cuts",
    ),
    "what an earlier commit lacks is told of this one": _tested(
        "a writer is told that its rows are there, and they are not",
        "store.replicas.open_nodes._of_earlier_commits",
        "except DurabilityError as error:",
        "except ZeroDivisionError as error:",
        f"{_GO}test_who_cannot_finish_an_earlier_commit_is_not_told_that_its_rows_are_there",
    ),
    "a topic whose nodes are away is made again": _tested(
        "acknowledged batches are put aside when their nodes come back",
        "store.topics.TopicCatalog._replicated",
        "if state is None or not state.is_replicated:",
        "if True:",
        f"{_GO}test_a_topic_whose_nodes_are_away_is_not_made_again",
    ),
}
