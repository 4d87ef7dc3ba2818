"""Guards of nodes that brokers of one cluster get, and give back."""

from __future__ import annotations

from typing import Final

from tests.simulation.patches import Instead, Mutation

__all__ = ["GUARDS"]

_LENT: Final = "unit/operate/test_lent_nodes.py::"
_WALK: Final = "crash/test_replicas_handover_walk.py::"

GUARDS: Final = {
    "leader epochs stay above those of the cluster": Mutation(
        "a broker that leads fails to append, and its followers leave the in-sync set",
        {
            "operate.node_handover._make_ready": Instead(
                "set_epochs_down(found.path, cluster.epochs[key])"
            )
        },
        test=f"{_LENT}test_brokers_find_their_ids_no_higher_epochs_and_whole_logs",
    ),
    "replicas that lag go to a cluster": Mutation(
        "a broker that is behind is elected, and the others lose what it lacks",
        {"operate.node_handover._not_in_sync": Instead("{*each.isr} != {*each.replicas}", "False")},
        test=f"{_LENT}test_a_replica_that_cannot_be_brought_in_sync_keeps_the_set_ours",
    ),
    "nodes of two clusters are given": Mutation(
        "brokers do not start, and nobody writes",
        {
            "operate.cluster_check._identify": Instead(
                'or found["cluster.id"] != cluster.cluster_id', "or False"
            )
        },
        test=f"{_LENT}test_nodes_of_two_clusters_are_refused",
    ),
    "a cluster gets directories that it does not know": Mutation(
        "no partition has a leader",
        {
            "operate.cluster_check._other_directories": Instead(
                "if directory not in _RESERVED | cluster.directory_ids[node_of[broker]]",
                "if directory is None",
            )
        },
        test=f"{_LENT}test_directories_that_the_cluster_does_not_know_are_refused",
    ),
    "writers continue while a cluster has the set": Mutation(
        "records that brokers have acknowledged are cut off as those of a replica that lags",
        {
            "store.replicas.open_nodes._refuse_lent": Instead(
                "if state.lent_to and not policy.takes_lent:", "if False:"
            )
        },
        test=f"{_LENT}test_while_a_cluster_has_the_set_nobody_else_changes_it",
    ),
    "a cluster may start before all nodes are ready": Mutation(
        "a broker leads with other topic ids or epochs than the next one has",
        {"operate.node_handover._give": Instead("note_handover(folder)", "pass")},
        test=f"{_WALK}test_a_handover_that_was_killed_is_ours_or_done_again",
    ),
    "what a cluster has written is handed over again": Mutation(
        "a broker that is behind is elected, and the others lose what it lacks",
        {"operate.node_handover._written_by_brokers": Instead("held != end", "False")},
        test=f"{_LENT}test_after_brokers_have_written_a_takeover_comes_before_a_handover",
    ),
    "a cluster gets files that are not synced": Mutation(
        "after a loss of power a broker lacks what the mark of a clean shutdown promises",
        {"operate.lent_nodes.sync_folder": Instead("fsync_file(path)", "pass")},
        test=f"{_LENT}test_all_that_is_given_is_on_the_disk",
    ),
    "a cluster gets names that are not synced": Mutation(
        "after a loss of power a broker lacks segments, and knows a topic by its former id",
        {"operate.lent_nodes.sync_folder": Instead("fsync_directory(folder)", "pass")},
        test=f"{_LENT}test_all_that_is_given_is_on_the_disk",
    ),
    "the longest log of a cluster counts, whatever its epoch": Mutation(
        "records that were never acknowledged take the place of those that were",
        {
            "operate.node_takeover._truth": Instead(
                "return _epoch_of(each), each.end, leads", "return each.end, _epoch_of(each), leads"
            )
        },
        test=f"{_LENT}test_the_highest_epoch_counts_before_the_longest_log",
    ),
    "an epoch of a cluster counts though its records are gone": Mutation(
        "a leader that lost its power takes what its followers have with it",
        {"operate.node_takeover._epoch_of": Instead(" if e.start_offset <= each.end", "")},
        test=f"{_LENT}test_an_epoch_above_the_end_of_a_torn_log_counts_for_nothing",
    ),
    "epochs of a cluster above the end stay": Mutation(
        "a broker finds no end for an epoch, and cuts its replica wrongly",
        {"operate.node_takeover._settle": Instead(" if epoch.start_offset <= each.end", "")},
        test=f"{_LENT}test_epochs_above_the_end_of_all_logs_are_forgotten",
    ),
    "a cluster may lose what was committed": Mutation(
        "offsets that readers have seen are given again",
        {"operate.node_takeover._fallen_back": Instead("each.end < known.log_end", "False")},
        test=f"{_LENT}test_a_log_that_lost_what_was_committed_everywhere_is_a_problem",
    ),
    "what a cluster wrote below a recovery point is not compared": Mutation(
        "replicas in sync have different records",
        {"operate.node_takeover._take": Instead("trusts=False", "trusts=True")},
        test=f"{_LENT}test_sealed_segments_that_differ_below_the_recovery_point_are_compared",
    ),
}
