"""Comparisons that tell which directories, folders and topics belong together: by their ids."""

from __future__ import annotations

from typing import Final

from tests.simulation.patches import Instead, Mutation

__all__ = ["GUARDS"]

_STATE: Final = "unit/checkpoints/test_commit_state.py"
_SET: Final = "unit/store/test_log_set.py"

GUARDS: Final = {
    "directories of several sets are read as one": Mutation(
        "readers take the ends of one set for those of the other",
        {"kafkalog.checkpoints.voters.check_one_set": Instead("len(ids) > 1", "len(ids) > 2")},
        test=f"{_STATE}::test_directories_of_different_sets_are_refused",
    ),
    "an intent that is published counts as unfinished": Mutation(
        "readers take what is committed for what may be taken back",
        {
            "kafkalog.checkpoints.committed._unfinished": Instead(
                " and newest.sequence > published", ""
            )
        },
        test=f"{_STATE}::test_an_intent_at_the_state_is_left_over",
    ),
    "two commits of one sequence are one": Mutation(
        "rows of two attempts of a batch are visible together",
        {
            "kafkalog.checkpoints.one_history.check_one_history": Instead(
                "stamp.commit_id != newest.commit_id", "False"
            )
        },
        test=f"{_SET}::test_directories_that_made_two_commits_of_one_number_are_not_written_to",
    ),
    "a directory whose commit is older has made another one": Mutation(
        "nobody can write after a kill between two directories",
        {
            "kafkalog.checkpoints.one_history.check_one_history": Instead(
                "stamp.sequence == newest.sequence and ", ""
            )
        },
        test=f"{_SET}::test_the_newest_copy_of_the_state_counts",
    ),
    "an intent that was never published may be of another commit": Mutation(
        "half of one attempt of a batch and half of another are visible",
        {
            "kafkalog.checkpoints.one_history.check_one_history": Instead(
                "stamp.sequence < intent.sequence <= newest.sequence", "False"
            )
        },
        test=f"{_SET}::test_a_directory_that_began_a_commit_which_was_made_without_it_is_not_written_to",
    ),
    "any intent of an older directory is of another commit": Mutation(
        "nobody can write after a kill between two directories",
        {
            "kafkalog.checkpoints.one_history.check_one_history": Instead(
                "(intent.sequence, intent.commit_id) != newest", "True"
            )
        },
        test=f"{_SET}::test_a_commit_that_was_killed_between_two_directories_is_ended",
    ),
    "a directory of another set is a member": Mutation(
        "two sets are mixed",
        {
            "store.open_set._members": Instead(
                "if state.set_id != newest.set_id or state.member_id not in newest.member_ids:",
                "if False:",
            )
        },
        test=f"{_SET}::test_a_member_of_another_set_is_refused",
    ),
    "two directories are the same member": Mutation(
        "a copy of a directory is written in place of another one",
        {
            "kafkalog.checkpoints.voters.members_of": Instead("if other != folder:", "if False:"),
        },
        test=f"{_SET}::test_a_copy_of_a_member_is_refused",
    ),
    "directories of several sets start as one": Mutation(
        "a set is not recognized, and its directories become new ones",
        {
            "store.open_set._starts": Instead(
                "len({state.set_id for state in known.values()}) == 1", "False"
            )
        },
        test="unit/store/test_log_set.py::test_a_set_that_has_begun_stays_the_same",
    ),
    "a set that has committed begins again": Mutation(
        "what was committed in it is forgotten",
        {"store.open_set._starts": Instead("_newest(known).sequence == 0 and ", "")},
        test=f"{_SET}::test_a_member_of_another_set_is_refused",
    ),
    "who was invited into another set belongs to none": Mutation(
        "an empty directory of another set is taken into this one",
        {"store.open_set._is_only_invited": Instead("state.set_id == newest.set_id and ", "")},
        test=f"{_SET}::test_an_empty_member_of_another_set_is_refused",
    ),
    "a member that is empty belongs to none": Mutation(
        "a directory that was emptied joins again as a new one",
        {
            "store.open_set._is_only_invited": Instead(
                " and state.member_id not in newest.member_ids", ""
            )
        },
        test="unit/store/test_log_set.py::test_the_newest_copy_of_the_state_counts",
    ),
    "versions of a namesake count": Mutation(
        "rows for a topic that was made again are dropped as committed",
        {
            "commit.versions._known_topics": Instead(
                "log_set.state.key_of(topic.name, read_topic_id(found)) == key", "True"
            )
        },
        test="unit/commit/test_versions.py::test_a_topic_that_others_have_made_again_begins_anew",
    ),
    "what is left to the system is looked for in a namesake": Mutation(
        "records of another topic are missed",
        {
            "store.unsynced.find_lost": Instead(
                "if where is None or topic_key(topic.name, read_topic_id(where.path)) != key:",
                "if where is None:",
            )
        },
        test="unit/store/test_os_loss.py::test_what_another_topic_of_the_name_lacks_is_no_loss",
    ),
    "what was left to the system is made durable in a namesake": Mutation(
        "a commit ends a topic that is gone where another one ends",
        {
            "commit.left_to_system.make_left_durable": Instead(
                "if where is None or topic_key(topic.name, read_topic_id(where.path)) != key:",
                "if where is None:",
            )
        },
        test="unit/store/test_os_loss.py::test_what_another_topic_of_the_name_lacks_is_no_loss",
    ),
    "folders of a topic may have several ids": Mutation(
        "partitions of two topics are read and written as one",
        {"store.topics.TopicCatalog._topic_id": Instead("if len(ids) > 1:", "if False:")},
        test="unit/operate/test_handover_ids.py::test_folders_of_one_name_that_are_of_two_topics_are_left_alone",
    ),
    "a recovery takes folders of several ids for one topic": Mutation(
        "the state knows one of two topics, and the other one's records are gone",
        {"operate.recover._leave_out_mixed_topics": Instead("len(ids) > 1", "False")},
        test="unit/operate/test_handover_ids.py::test_folders_of_one_name_that_are_of_two_topics_are_left_alone",
    ),
    "changed ids are not followed from one to the next": Mutation(
        "a query reads all of a topic again that got its id twice",
        {
            "kafkalog.checkpoints.topic_ids.is_changed_id": Instead(
                'line.get("from") in ids', 'line.get("from") == before'
            )
        },
        test="unit/checkpoints/test_topic_ids.py::test_changed_ids_are_followed_from_one_to_the_next",
    ),
    "any id counts as a changed one": Mutation(
        "a query continues in the topic that was made in place of its own",
        {
            "kafkalog.checkpoints.topic_ids.is_changed_id": Instead(
                "return now in ids", "return True"
            )
        },
        test="unit/checkpoints/test_topic_ids.py::test_changed_ids_are_followed_from_one_to_the_next",
    ),
    "a topic may have the id of zeros": Mutation(
        "a broker takes it for a topic without an id",
        {"kafkalog.checkpoints.broker.is_topic_id": Instead(" and text != _ZERO_TOPIC_ID", "")},
        test="unit/checkpoints/test_broker.py::test_a_topic_id_that_is_none_is_refused",
    ),
    "a state may have a topic with an empty id": Mutation(
        "it is taken for a topic without an id",
        {"kafkalog.checkpoints.state_file._parse_key": Instead('if topic_id == "":', "if False:")},
        test=f"{_STATE}::test_content_that_we_never_write_is_refused",
    ),
    "a set lacks nobody": Mutation(
        "readers lack what a directory has that is not mounted",
        {
            "store.lost_partitions.missing_members": Instead(
                "set(state.member_ids) <= set(known.values())", "True"
            )
        },
        test="unit/source/test_missing_parts.py::test_a_directory_that_is_not_mounted_is_a_loss",
    ),
    "a set in which nothing was committed may lack members": Mutation(
        "a set that was only begun cannot be read",
        {"store.lost_partitions.missing_members": Instead("state.sequence == 0", "False")},
        test="unit/source/test_missing_parts.py::test_a_set_in_which_nothing_is_committed_has_lost_nothing",
    ),
}
