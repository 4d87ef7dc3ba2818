"""Guards that see that locks are still held, where they are looked at or handed on."""

from __future__ import annotations

from typing import Final

from tests.simulation.patches import Instead, Mutation

__all__ = ["GUARDS"]

_TO_OTHERS: Final = "unit/operate/test_locks_lost_to_others.py"
_MIDWAY: Final = "unit/operate/test_locks_lost_midway.py"

GUARDS: Final = {
    "a commit cuts a torn tail without the locks": Mutation(
        "a batch that another writer is writing is cut off",
        {
            "commit.planning._Planner._foreign_log": Instead(
                "check_locks=self._log_set.check_current", "check_locks=lambda: None"
            )
        },
        test=f"{_TO_OTHERS}::test_a_tail_that_another_writer_may_be_writing_is_not_cut_off",
    ),
    "a recovery cuts a torn tail without the locks": Mutation(
        "a batch that another writer is writing is cut off",
        {
            "operate.recover._Order._mended": Instead(
                "check_locks=self._log_set.check_current", "check_locks=lambda: None"
            )
        },
        test=f"{_TO_OTHERS}::test_a_tail_that_another_writer_may_be_writing_is_not_cut_off",
    ),
    "a salvage is noted without the locks": Mutation(
        "another writer is kept out by a salvage that changes nothing",
        {
            "operate.salvage._without": Instead(
                "session.verify()\n    for folder in {log", "for folder in {log"
            )
        },
        test=f"{_TO_OTHERS}::test_nothing_is_salvaged_once_the_locks_are_lost",
    ),
    "indexes are rebuilt without the locks": Mutation(
        "indexes of another writer are replaced by older ones",
        {"kafkalog.jobs.rebuild.rebuild": Instead("session.verify()")},
        test=f"{_TO_OTHERS}::test_no_index_is_rebuilt_once_the_locks_are_lost",
    ),
    "links are not followed again once the locks are taken": Mutation(
        "a commit waits for directories that it will not write to",
        {"store.locks.DirectoryLocks.__enter__": Instead("self._check_links()")},
        test="unit/store/test_locks.py::test_a_link_that_is_moved_while_a_commit_waits_for_its_lock_is_noticed",
    ),
    "links are not followed again while the locks are held": Mutation(
        "a commit publishes in directories that others have locked",
        {"store.locks.DirectoryLocks.verify": Instead("self._check_links()")},
        test="unit/store/test_locks.py::test_a_link_that_is_moved_while_a_commit_waits_for_its_lock_is_noticed",
    ),
    "a state is made durable without a look at the locks": Mutation(
        "the commit of another writer is replaced by an older one",
        {
            "store.log_set.LogSet.make_durable": Instead(
                "self.node.publish(self.state, self.check_current)",
                "self.node.publish(self.state, lambda: None)",
            )
        },
        test=f"{_MIDWAY}::test_no_state_is_made_durable_once_the_locks_are_lost",
    ),
    "a directory is invited into a set without the locks": Mutation(
        "a directory that another writer has taken meanwhile gets a second state",
        {
            "store.open_set._join": Instead(
                "_write(invitation, {member: folder}, log_set.verify_locks)",
                "_write(invitation, {member: folder}, lambda: None)",
            )
        },
        test="unit/store/test_session.py::test_no_set_begins_nor_grows_once_the_locks_are_lost",
    ),
    "a set grows without a look at the locks": Mutation(
        "the commit of another writer is replaced by an older one",
        {
            "store.open_set._join": Instead(
                "_write(state, joined, log_set.check_current)",
                "_write(state, joined, lambda: None)",
            )
        },
        test="unit/store/test_session.py::test_no_set_grows_by_a_directory_that_was_invited_once_the_locks_are_lost",
    ),
    "a session opens a set without its locks": Mutation(
        "whoever lost its locks writes on",
        {"store.session.Session.open": Instead("self.verify)", "lambda: None)")},
        test=f"{_MIDWAY}::test_no_intent_is_written_once_the_locks_are_lost",
    ),
    "a set that is to begin is not told of the locks": Mutation(
        "the state of a set that another has begun meanwhile is replaced",
        {
            "store.open_set.open_set": Instead(
                "_start(folders, verify_locks)", "_start(folders, lambda: None)"
            )
        },
        test="unit/store/test_session.py::test_no_set_begins_nor_grows_once_the_locks_are_lost",
    ),
    "an opened set does not know its locks": Mutation(
        "whoever lost its locks writes on",
        {
            "store.open_set.open_set": Instead(
                "strangers)), verify_locks)", "strangers)), lambda: None)"
            )
        },
        test=f"{_MIDWAY}::test_no_intent_is_written_once_the_locks_are_lost",
    ),
    "a set that has just begun does not know its locks": Mutation(
        "whoever lost its locks writes on",
        {
            "store.open_set._start": Instead(
                "Node(members), verify_locks)", "Node(members), lambda: None)"
            )
        },
        test="unit/store/test_session.py::test_a_set_that_has_just_begun_or_grown_knows_its_locks",
    ),
    "a set that has just grown does not know its locks": Mutation(
        "whoever lost its locks writes on",
        {
            "store.open_set._join": Instead(
                "Node(joined), log_set.verify_locks)", "Node(joined), lambda: None)"
            )
        },
        test="unit/store/test_session.py::test_a_set_that_has_just_begun_or_grown_knows_its_locks",
    ),
}
