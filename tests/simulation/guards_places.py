"""Guards of places: where links lead, whose a directory is, and what should lie in it."""

from __future__ import annotations

from typing import Final

from tests.simulation.patches import Instead, Mutation

__all__ = ["GUARDS"]

GUARDS: Final = {
    "links lead elsewhere than where the locks are": Mutation(
        "a commit publishes in directories that others have locked",
        {
            "store.locks.DirectoryLocks._check_links": Instead(
                "if Path(os.path.realpath(given)) != folder:", "if False:"
            )
        },
        test="unit/store/test_locks.py::test_a_link_that_is_moved_while_a_commit_waits_for_its_lock_is_noticed",
    ),
    "a partition's folder that is a link is written": Mutation(
        "another set's log has records that its state does not know",
        {"store.ownership.check_no_link": Instead("if where.is_link:", "if False:")},
        test="unit/store/test_ownership.py::test_a_partition_folder_that_is_a_link_is_read_and_not_written",
    ),
    "a lock file is left in a broker's directory": Mutation(
        "a directory that was never ours looks like one",
        {
            "store.locks._leave_to_broker": Instead(
                "if not ours.exists() and broker_holds(folder) and not ours.exists():", "if False:"
            )
        },
        test="unit/store/test_locks.py::test_nothing_is_left_in_a_directory_that_a_broker_holds",
    ),
    "partitions that a broker's checkpoint lacks are read to their ends": Mutation(
        "readers see what is not committed",
        {"log.log_dir.LogDirs.checkpoint": Instead("if unnamed is not None:", "if False:")},
        test="unit/source/test_while_a_broker_runs.py::test_of_a_partition_that_its_directorys_checkpoint_does_not_name_nothing_is_committed",
    ),
    "two folders of a partition are an error at once": Mutation(
        "a query fails while a broker moves replicas",
        {
            "log.log_dir.LogDirs.partitions": Instead(
                "if rest is not None and (twice or not agrees):", "if False:"
            )
        },
        test="unit/source/test_while_a_broker_runs.py::test_a_partition_that_has_two_folders_while_it_moves_is_looked_at_again",
    ),
    "readers do not miss what the state names": Mutation(
        "readers lack what is committed, and are not told",
        {
            "store.ends.missing_parts.find_missing_parts": Instead(
                "if state is None or not any(folder in committed.members for folder in directories):",
                "if True:",
            )
        },
        test="unit/source/test_missing_parts.py::test_a_partition_without_its_folder_is_a_loss",
    ),
    "log directories are as open as what is around them": Mutation(
        "everybody may write to a log below /tmp",
        {
            "store.open_set.make_with_parents": Instead(
                "each.mkdir(exist_ok=True)",
                "each.mkdir(exist_ok=True), each.chmod(each.parent.stat().st_mode)",
            )
        },
        test="unit/store/test_log_set.py::test_a_log_directory_has_the_mode_of_the_umask_though_all_may_write_around_it",
    ),
    "a state may be larger than what is read again": Mutation(
        "a commit makes its set unreadable",
        {
            "kafkalog.checkpoints.sealed_file.seal": Instead(
                "if len(data) > MAX_BYTES:", "if False:"
            )
        },
        test="unit/store/test_log_set.py::test_a_state_that_would_be_too_large_to_read_is_not_published",
    ),
    "a checkpoint may be larger than what is read again": Mutation(
        "a commit makes its set unreadable",
        {
            "kafkalog.checkpoints.checkpoint_file.write_checkpoint": Instead(
                "if len(data) > _MAX_BYTES:", "if False:"
            )
        },
        test="unit/checkpoints/test_checkpoint_file.py::test_what_would_be_too_large_to_read_is_not_written",
    ),
}
