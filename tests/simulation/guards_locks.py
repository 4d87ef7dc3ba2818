"""Guards that keep writers, brokers and persons apart; and who has published meanwhile."""

from __future__ import annotations

from typing import Final

from tests.simulation.patches import Instead, Mutation

__all__ = ["GUARDS"]

_WRITERS: Final = ("appender", "appender", "query", "reader")
_LOST: Final = ("query", "appender", "operator", "operator", "operator", "reader")
_BROKER: Final = ("appender", "query", "broker", "broker", "reader")
_OVERWRITES: Final = "a writer that has lost its locks writes over what another has committed"

GUARDS: Final = {
    "kafkalog.lock is not taken": Mutation(
        "a writer finds Kafka's lock taken by another writer, and fails",
        {
            "store.locks.DirectoryLocks.__enter__": Instead(
                "self._wait_for(folder / LOCK_FILE, deadline, undo)"
            )
        },
        _WRITERS,
    ),
    "Kafka's lock is not taken": Mutation(
        "a broker and a writer append to one segment",
        {
            "store.locks.DirectoryLocks.__enter__": Instead(
                "self._take_from_broker(folder / LOCK, undo)"
            )
        },
        _BROKER,
    ),
    "nobody looks whether lock files were replaced": Mutation(
        "a broker that stops removes a file that a commit has locked, and the next one starts beside it",
        {"store.locks.DirectoryLocks.verify": Instead("if not _is_on_disk(held):", "if False:")},
        test="unit/store/test_locks.py::test_a_lock_file_that_was_deleted_is_noticed",
    ),
    "locks are not tried again": Mutation(
        "a thread that copies the directory drops the locks, and two commits run at once",
        {"store.locks.DirectoryLocks.verify": Instead("if not _try_lock(held):", "if False:")},
        test="unit/store/test_locks.py::test_where_only_posix_locks_are_a_dropped_one_is_taken_again",
    ),
    "locks are not proved to the server": Mutation(
        _OVERWRITES,
        {"store.locks.DirectoryLocks.verify": Instead("self._prove(held)")},
        test="unit/store/test_file_systems.py::test_a_recovery_that_loses_its_locks_replaces_no_segment",
    ),
    "locks are not proved before the intent": Mutation(
        _OVERWRITES,
        {"commit.committer.Committer._write": Instead("log_set.verify_locks()")},
        test="unit/operate/test_locks_lost_midway.py::test_no_intent_is_written_once_the_locks_are_lost",
    ),
    "nobody looks for another commit after the intent": Mutation(
        _OVERWRITES,
        {"commit.committer.Committer._write": Instead("log_set.check_current()")},
        test="unit/store/test_publishing.py::test_a_commit_whose_sequence_another_writer_published_has_failed",
    ),
    "nobody looks for another commit before the rename": Mutation(
        _OVERWRITES,
        {"store.log_set.LogSet.publish": Instead("self.check_current()")},
        test="unit/commit/test_committer.py::test_locks_are_looked_at_before_every_state_is_published",
    ),
    "a look for another commit does not prove the locks": Mutation(
        _OVERWRITES,
        {"store.log_set.LogSet.check_current": Instead("self.verify_locks()")},
        test="unit/commit/test_committer.py::test_locks_are_looked_at_before_every_state_is_published",
    ),
    "a look for another commit compares no states": Mutation(
        _OVERWRITES,
        {"store.log_set.LogSet.check_current": Instead("if self.is_outdated():", "if False:")},
        test="unit/store/test_publishing.py::test_a_commit_whose_sequence_another_writer_published_has_failed",
    ),
    "what was renamed is not compared": Mutation(
        "a commit takes the state of another one for its own",
        {
            "store.publishing.write_state": Instead(
                "_check_published(first, state, failed)", "if failed is not None: raise failed"
            )
        },
        test="unit/store/test_publishing.py::test_a_commit_whose_sequence_another_writer_published_has_failed",
    ),
    "what was renamed is told by its sequence alone": Mutation(
        "a commit takes the state of another one for its own",
        {
            "store.publishing._check_published": Instead(
                "if found == state.stamp:",
                "if found is not None and found.sequence == state.sequence:",
            )
        },
        test="unit/store/test_publishing.py::test_a_commit_whose_sequence_another_writer_published_has_failed",
    ),
    "a failed commit takes back without its locks": Mutation(
        "what another writer has under way is taken back",
        {"commit.committer.Committer._try_to_take_back": Instead("log_set.verify_locks()")},
        test="unit/operate/test_locks_lost_midway.py::test_a_failed_commit_that_has_lost_its_locks_takes_nothing_back",
    ),
    "what is taken back is proved no more": Mutation(
        _OVERWRITES,
        {"store.take_back.take_back": Instead("log_set.check_current()")},
        test="unit/operate/test_locks_lost_midway.py::test_the_intent_stays_if_the_locks_are_lost_while_it_is_taken_back",
    ),
    "a partition is taken back without its locks": Mutation(
        _OVERWRITES,
        {
            "store.take_back._take_back_partition": Instead(
                "for each in segments}\n    log_set.check_current()\n", "for each in segments}\n"
            )
        },
        test="unit/operate/test_locks_lost_midway.py::test_nothing_is_taken_back_once_the_locks_are_lost",
    ),
    "a new segment is begun without the locks": Mutation(
        _OVERWRITES,
        {
            "store.take_back._take_back_partition": Instead(
                "        log_set.check_current()\n        start_segment", "        start_segment"
            )
        },
        test="unit/store/test_file_systems.py::test_a_recovery_that_loses_its_locks_replaces_no_segment",
    ),
    "the log continues in the same segment on a server": Mutation(
        "late writes of a host that lost its locks replace what is committed",
        {
            "store.take_back._take_back_partition": Instead(
                "if is_shared(folder) and not is_cut:", "if False:"
            )
        },
        _LOST,
        {"lost": 250, "kill": 200},
    ),
    "a torn tail is cut without the locks": Mutation(
        "what another writer has committed since is cut off",
        {"commit.foreign_log.ForeignLog.cut_torn_tail": Instead("self.check_locks()")},
        test="unit/operate/test_locks_lost_to_others.py::test_a_tail_that_another_writer_may_be_writing_is_not_cut_off",
    ),
    "recover mends logs without the locks": Mutation(
        "what another writer has committed since is cut off",
        {
            "operate.recover._Order.put": Instead("self._log_set.verify_locks()"),
            "operate.recover._Order._mended": Instead("self._log_set.verify_locks()"),
        },
        test="unit/operate/test_locks_lost_midway.py::test_no_index_is_mended_by_a_recovery_once_the_locks_are_lost",
    ),
    "segments are retired without the locks": Mutation(
        "segments go that another one still needs",
        {"operate.shortening.shorten": Instead("log_set.verify_locks()")},
        test="unit/operate/test_locks_lost_midway.py::test_no_segment_is_retired_once_the_locks_are_lost",
    ),
    "a log start is published without a look at the locks": Mutation(
        "a log starts where another writer does not expect it",
        {"store.guarded.publish_guarded": Instead("log_set.check_current()")},
        test="unit/operate/test_locks_lost_midway.py::test_no_intent_of_a_log_start_is_written_once_the_locks_are_lost",
    ),
    "the intent of a log start is taken away without the locks": Mutation(
        "the intent of another commit goes, and nobody takes it back",
        {"store.guarded._withdraw": Instead("log_set.verify_locks()")},
        test="unit/operate/test_locks_lost_midway.py::test_an_intent_that_may_be_anothers_stays",
    ),
    "the intent of a log start is taken away whoever has published": Mutation(
        "what a round had still to do is forgotten",
        {
            "store.guarded._withdraw": Instead(
                "is_open = log_set.state.stamp != state.stamp and log_set.node.decides_alone\n"
                "        if is_open and not log_set.is_outdated():",
                "if True:",
            )
        },
        test="unit/operate/test_locks_lost_midway.py::test_the_intent_stays_if_its_state_is_published_after_all",
    ),
    "handover makes durable without the locks": Mutation(
        "a broker is told ends that are not there any more",
        {"operate.handover._ready": Instead("log_set.check_current()")},
        test="unit/operate/test_locks_lost_to_others.py::test_nothing_is_handed_over_or_taken_over_once_the_locks_are_lost",
    ),
    "takeover publishes without the locks": Mutation(
        "the ends of another commit are replaced",
        {"operate.handover._take": Instead("log_set.check_current()")},
        test="unit/operate/test_locks_lost_to_others.py::test_nothing_is_handed_over_or_taken_over_once_the_locks_are_lost",
    ),
    "a takeover aborts without the locks": Mutation(
        "markers of aborts are written over what another writer has appended",
        {"operate.open_transactions.end_transactions": Instead("log_set.check_current()")},
        test="unit/operate/test_locks_lost_to_others.py::test_no_transaction_is_aborted_once_the_locks_are_lost",
    ),
    "a salvage acts without the locks": Mutation(
        "a segment that another writer appends to is rewritten",
        {
            "operate.salvage._without": Instead(
                "in plans:\n        session.verify()\n", "in plans:\n"
            )
        },
        test="unit/operate/test_locks_lost_to_others.py::test_nothing_is_salvaged_once_the_locks_are_lost",
    ),
    "a set begins without the locks": Mutation(
        "the state of a set that another has begun meanwhile is replaced",
        {"store.open_set._start": Instead("members, verify_locks)\n", "members, lambda: None)\n")},
        test="unit/store/test_session.py::test_no_set_begins_nor_grows_once_the_locks_are_lost",
    ),
    "compaction swaps without the locks": Mutation(
        "records of another writer are replaced by older ones",
        {"operate.cleaning._Cleaning._swap_some": Instead("log_set.check_current()")},
        test="unit/operate/test_locks_lost_midway.py::test_nothing_is_swapped_in_once_the_locks_are_lost",
    ),
    "two cleaners work on one partition": Mutation(
        "each removes what the other has written",
        {
            "store.cleaner_lock.CleanerLock.__enter__": Instead(
                """holder = self._take(self._file, undo)
            if holder is not None:
                raise CleanerBusyError(f"it is cleaned at this moment by {holder}")
            self._sign(self._held[-1])"""
            )
        },
        ("appender", "cleaner", "cleaner", "reader"),
    ),
    "a cleaner's own lock is not proved": Mutation(
        "two cleaners replace one another's segments",
        {"operate.cleaning._Cleaning._swap_some": Instead("self._lock.verify()")},
        test="unit/operate/test_locks_lost_midway.py::test_nor_once_the_cleaner_has_lost_its_own",
    ),
    "a start of a set is not checked": Mutation(
        "locks and states are made in an empty mount point",
        {"store.session.Session.__enter__": Instead("refuse_mount_points(self.directories)")},
        test="unit/operate/test_unmounted_directory.py::test_an_empty_mount_point_is_named_and_stays_empty",
    ),
    "a lock file that was replaced counts as locked": Mutation(
        "a broker that stops unlinks its lock file, and two hold its locks",
        {
            "store.locks.DirectoryLocks._take": Instead("if _is_on_disk(held):", "if True:"),
        },
        test="unit/store/test_locks.py::test_a_lock_file_that_is_replaced_before_it_is_locked_is_not_the_lock",
    ),
    "another commit is told by its sequence alone": Mutation(
        "a writer that has lost its locks writes over what another has committed",
        {
            "store.log_set.LogSet.is_outdated": Instead(
                "s != known and s.sequence >= known.sequence", "s.sequence > known.sequence"
            ),
        },
        test="unit/store/test_publishing.py::test_a_directory_that_is_replaced_by_one_of_another_history_is_noticed",
    ),
    "a failed commit takes back what others have published": Mutation(
        "a commit that is published is said to be taken back later",
        {
            "commit.committer.Committer._try_to_take_back": Instead(
                "if log_set.is_outdated() or not log_set.node.decides_alone:", "if False:"
            ),
        },
        test="unit/commit/test_committer.py::test_what_was_published_is_kept_though_publishing_failed_and_could_not_be_looked_at",
    ),
    "a finished commit is ended without the locks": Mutation(
        "lines of another writer's topic are taken out of Kafka's checkpoints",
        {
            "store.take_back._end_finished": Instead("log_set.check_current()"),
        },
        test="unit/operate/test_locks_lost_midway.py::test_no_line_of_a_topic_that_was_made_goes_once_the_locks_are_lost",
    ),
    "what was cleaned is not compared with what is there": Mutation(
        "segments that have changed are replaced by older ones",
        {
            "operate.cleaning._is_there": Instead(
                "if found is None or known != _stamp(found):", "if False:"
            ),
        },
        test="unit/operate/test_compact.py::test_a_segment_that_was_replaced_meanwhile_is_left_alone",
    ),
    "a commit that others followed at once has failed": Mutation(
        "its batch is there, the writer is told that it is not, and writes it again",
        {
            "store.publishing._check_published": Instead(
                "failed is None and (found is None or found.sequence > state.sequence)", "False"
            ),
        },
        test="unit/store/test_publishing.py::test_of_a_commit_that_others_followed_at_once_nobody_says_that_it_is_not_there",
    ),
}
