"""Guards of the code that only histories find: what is taken out, and what comes of it.

Checks and fsyncs for which a unit test is named have that test alone.
"""

from __future__ import annotations

import inspect
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.layouts import Layout
from tests.simulation.patches import Instead, Mutation

from kafkalog.files.deferred_signals import shielded
from kafkalog.streaming.admin.retention import _round
from kafkalog.streaming.commit.committer import Committer
from kafkalog.streaming.store.identity import Verdict, judge

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kafkalog.files.deferred_signals import Shielded

__all__ = ["GUARDS"]


def _nothing(*_: object, **__: object) -> None:
    """Forget a step."""


def _always(value: object) -> Any:
    return lambda *_, **__: value


def _unchecked_run(identity: Any, last: Any, **options: bool) -> Verdict:
    if last is not None and identity.run_id in last.fenced:
        return Verdict.APPEND
    return judge(identity, last, **options)


def _unshielded(self: Shielded[Any]) -> Any:
    return self._action()


_apply = Committer._apply
_publish = Committer._publish


def _later(self: Committer, *given: Any) -> None:
    self.__dict__["late"] = given


def _published_first(self: Committer, *arguments: Any, **named: Any) -> None:
    _publish(self, *arguments, **named)
    given = self.__dict__.pop("late", None)
    if given is not None:
        _apply(self, *given)


def _intent_is_lost(_: Committer, log_set: Any) -> None:
    log_set.node.withdraw(durable=False)


_KILLS: Final = {"kill": 600}
_ACTORS: Final = ("versioned", "query", "appender", "reader", "inspector")
_THREE: Final[Mapping[str, Any]] = {"nodes": Layout((1, 1, 1)), "directories": 3}


def _found(
    breaks: str, place: str, code: str, other: str, faults: Mapping[str, int] = _KILLS
) -> Mutation:
    """Return a mutation that histories over three nodes find."""
    return Mutation(breaks, {place: Instead(code, other)}, _ACTORS, faults, drawn=_THREE)


GUARDS: Final = {
    "no locks": Mutation(
        "two commits give the same offsets",
        {"store.locks._try_lock": _always(True), "store.locks._Mutexes.of": lambda *_: Lock()},
        ("appender", "appender", "query", "reader"),
    ),
    "no intent": Mutation(
        "what a killed commit left becomes visible, or stops the next one",
        {"commit.committer.Committer._declare": _nothing},
        ("query", "appender", "reader"),
        {"kill": 300, "torn": 400},
    ),
    "no recovery": Mutation(
        "what a killed commit left becomes visible, or stops the next one",
        {"store.session.roll_back": _nothing, "commit.committer.roll_back": _nothing},
        ("query", "appender", "reader"),
        {"kill": 300, "torn": 400},
    ),
    "an interrupted commit forgets its intent": Mutation(
        "what an interrupted commit left becomes visible, or stops the next one",
        {"commit.committer.Committer._try_to_roll_back": _intent_is_lost},
        ("query", "appender", "reader"),
        {"interrupt": 150},
    ),
    "publish before append": Mutation(
        "readers see ends without records",
        {
            "commit.committer.Committer._apply": _later,
            "commit.committer.Committer._publish": _published_first,
        },
        ("query", "appender", "reader", "reader"),
        {"kill": 300, "torn": 400},
    ),
    "every batch is the next": Mutation(
        "a batch that comes again is there twice",
        {"commit.committer.judge": _always(Verdict.APPEND)},
        ("query", "query", "reader"),
        {"kill": 300, "torn": 400},
    ),
    "versions are not looked at": Mutation(
        "a version that comes again is there twice",
        {"commit.committer.Committer._still_to_write": lambda _self, _set, runs: runs},
        ("versioned", "versioned", "reader"),
        {"kill": 300, "torn": 400},
    ),
    "readers see what is not committed": Mutation(
        "readers see parts of batches, and what is rolled back",
        {"store.ends.rule.committed_end": _always(None)},
        ("query", "appender", "reader", "reader"),
        {"kill": 300, "torn": 400},
    ),
    "a run that was replaced is not known": Mutation(
        "a driver that wakes up late pushes out the one that has replaced it",
        {"commit.committer.judge": _unchecked_run, "commit.committer.sweep": _nothing},
        ("query", "query", "reader"),
        {"kill": 300, "torn": 400},
    ),
    "batches may be written by a caller who is interrupted": Mutation(
        "an interrupt leaves locks held, or half a commit",
        {"kafkalog.files.deferred_signals.Shielded.result": _unshielded},
        ("query", "appender", "reader"),
        {"interrupt": 150},
    ),
    "staged files of others are swept": Mutation(
        "a batch fails, though nothing was in its way",
        {"store.broker_files._is_older": _always(True)},
        ("query", "query", "appender"),
    ),
    "records are not made durable": Mutation(
        "a loss of power takes what was acknowledged",
        {"kafkalog.files.parallel.sync": _nothing},
        ("query", "appender", "reader"),
        {"power": 400},
    ),
    "states are renamed before they are durable": Mutation(
        "a loss of power tears them, and nothing that was committed can be read",
        {"kafkalog.files.atomic.sync": _nothing},
        ("query", "appender", "reader"),
        {"power": 400},
    ),
    "what was left unsynced may be deleted": Mutation(
        "after a loss of power a log ends below its start, for ever",
        {"admin.retention.make_shortened_durable": _nothing},
        ("appender", "deleter", "deleter"),
        {"power": 400},
        {"flush": "os"},
    ),
    "log starts are not published": Mutation(
        "deleted records are read, or the log begins where nobody expects it",
        {"admin.retention.move_log_starts": _nothing},
        ("appender", "deleter", "reader"),
    ),
    "retention counts as the append": Mutation(
        "an interrupt says that an append was stopped, which is committed",
        {"admin.retention._round": shielded(inspect.unwrap(_round))},
        ("appender", "appender", "reader"),
        {"interrupt": 100},
        {"retention.bytes": "400", "retention.check.interval.ms": "1"},
    ),
    "missing directories are not noticed": Mutation(
        "readers are given a part of what is committed, and not told",
        {"source.end_offsets.CompletenessCheck._say": _nothing},
        ("appender", "query", "reader", "reader"),
        {"vanish": 150, "empty": 150},
    ),
    "brokers may start on half a commit": Mutation(
        "a broker appends after what is rolled back, or serves it",
        {"store.nodes.keep_brokers_out": _nothing},
        ("query", "appender", "broker", "broker", "reader"),
        {"kill": 300, "torn": 400},
    ),
    "kafkalog.lock is not taken": Mutation(
        "a writer finds Kafka's lock taken by another writer, and fails",
        {
            "store.locks.DirectoryLocks.__enter__": Instead(
                "self._wait_for(folder / LOCK_FILE, deadline, undo)"
            )
        },
        ("appender", "appender", "query", "reader"),
    ),
    "Kafka's lock is not taken": Mutation(
        "a broker and a writer append to one segment",
        {
            "store.locks.DirectoryLocks.__enter__": Instead(
                "self._take_from_broker(folder / LOCK, undo)"
            )
        },
        ("appender", "query", "broker", "broker", "reader"),
    ),
    "the log continues in the same segment on a server": Mutation(
        "late writes of a host that lost its locks replace what is committed",
        {
            "store.recovery.rollback._roll_back_partition": Instead(
                "if is_shared(folder) and not is_cut:", "if False:"
            )
        },
        ("query", "appender", "operator", "operator", "operator", "reader"),
        {"lost": 250, "kill": 200},
    ),
    "two cleaners work on one partition": Mutation(
        "each removes what the other has written",
        {
            "store.locks.CleanerLock.__enter__": Instead(
                "holder = self._take(self._file, undo)\n"
                "            if holder is not None:\n"
                "                raise CleanerBusyError("
                'f"it is cleaned at this moment by {holder}")\n'
                "            self._sign(self._held[-1])"
            )
        },
        ("appender", "cleaner", "cleaner", "reader"),
    ),
    "the folder of a state that was replaced is not synced": Mutation(
        "a loss of power rolls a commit back that was acknowledged",
        {"store.nodes._sync": Instead("fsync_directory(folder)")},
        ("query", "appender", "reader"),
        {"power": 400},
        {"flush": "os"},
    ),
    "folders of files that are replaced are not synced": Mutation(
        "after a loss of power files are older than what they vouch for",
        {"kafkalog.files.atomic.publish": Instead("fsync_directory(path.parent)")},
        ("query", "appender", "reader"),
        {"power": 400},
    ),
    "intents are not made durable": Mutation(
        "a loss of power tears them, or leaves bytes that nobody can tell",
        {
            "store.nodes.Node.declare": Instead(
                "write_atomically(folder / INTENT_FILE, content, finish=note)",
                "write_atomically(folder / INTENT_FILE, content, finish=note, fsync=False)",
            )
        },
        ("query", "appender", "reader"),
        {"power": 400},
    ),
    "folders of new segments are not synced": Mutation(
        "a loss of power takes segments with acknowledged records",
        {"commit.append.PartitionAppend.sync": Instead("fsync_directory(self.plan.directory)")},
        ("query", "appender", "reader"),
        {"power": 400},
        {"segment.bytes": "200"},
    ),
    "a temporary file is written on": Mutation(
        "after a kill nobody can replace the file",
        {"kafkalog.files.atomic.prepare": Instead("temporary.unlink(missing_ok=True)")},
        ("query", "appender", "reader"),
        {"kill": 300, "torn": 400},
    ),
    "a batch that comes again is not known": Mutation(
        "a batch that comes again is there twice",
        {
            "store.identity.judge": Instead(
                "return _judge_last_again(identity, last)", "return Verdict.APPEND"
            )
        },
        ("query", "query", "reader"),
        {"kill": 300, "torn": 400},
    ),
    "a run that wakes up late replaces the present one": Mutation(
        "a driver that wakes up late pushes out the one that has replaced it",
        {"commit.committer.Committer._skip": Instead(" and not is_late", "")},
        ("query", "query", "reader"),
        {"kill": 300, "torn": 400},
    ),
    "a version that comes again is new": Mutation(
        "a batch that comes again is there twice",
        {
            "commit.versions.with_new_topics": Instead(
                "if last is None or identity.batch_id > last.batch_id:",
                "if last is None or identity.batch_id >= last.batch_id:",
            )
        },
        ("versioned", "batch", "reader"),
        {"kill": 300, "torn": 400},
    ),
    "intents that are published count as unfinished": Mutation(
        "what is committed is cut off",
        {
            "store.log_set.LogSet._still_to_roll_back": Instead(
                "if intent.sequence > state.sequence:", "if True:"
            )
        },
        ("query", "appender", "reader"),
        {"kill": 300, "torn": 400},
    ),
    "a log that ends too early is appended to": Mutation(
        "offsets that readers have seen get other records",
        {"commit.tail_recovery.TailRecovery._check_end": Instead("self.check_has_all(end)")},
        ("query", "appender", "reader"),
        {"old": 60},
        drawn={"directories": 2},
    ),
    "readers go by the commit state alone": Mutation(
        "readers lack what a broker has appended",
        {
            "store.ends.rule.committed_end": Instead(
                "return ours if brokers is None else max(ours, brokers)", "return ours"
            )
        },
        ("appender", "query", "broker", "broker", "reader", "follower"),
        {"kill": 300, "torn": 400},
    ),
    "a query continues where offsets were deleted": Mutation(
        "a query leaves records out, and is not told",
        {"source.loss.LossPolicy._lost": Instead("if self.fails:", "if False:")},
        ("appender", "deleter", "follower", "follower"),
    ),
    "rows of a topic that was deleted are written": Mutation(
        "rows that were staged for a deleted topic make it again",
        {
            "commit.planning._Planner.open": Instead(
                "self._check_not_deleted(run, topics[run.topic_partition.topic])"
            )
        },
        ("owner", "reader"),
    ),
    "a copy is not brought up to date under the locks": Mutation(
        "a backup has a state whose records it lacks",
        {"admin.backup._copy_set": Instead("copy.bring_up_to_date()")},
        ("query", "appender", "archivist", "archivist"),
    ),
    "a write counts as whole": Mutation(
        "what the system wrote in part is committed",
        {"kafkalog.files.regular.write_all": Instead("while view:", "if view:")},
        ("query", "appender", "reader"),
        {"short": 40},
    ),
    "a read counts as whole": Mutation(
        "a batch that was read in part is taken for damage",
        {
            "kafkalog.files.open_file.fill_from": Instead(
                "while filled < length:", "for _ in range(1):"
            )
        },
        ("query", "appender", "reader"),
        {"short": 40},
    ),
    "checkpoints are written before the rename": Mutation(
        "a broker is told ends of a commit that is rolled back",
        {
            "commit.committer.Committer._write": Instead(
                "self._apply(appends, replication)",
                "self._apply(appends, replication)\n"
                "            write_end_checkpoints(appends, replication, durable=self._durable)",
            )
        },
        ("query", "appender", "broker", "reader"),
        {"kill": 300, "torn": 400},
    ),
    "positions apart from rows": Mutation(
        "rows are copied again by whoever comes next",
        {
            "consumer.consumer.Consumer._attach": Instead(
                "return fence, [self._commits.attach(moves, now_ms)] if moves else ()",
                "return fence, ()",
            )
        },
        ("appender", "member", "member", "member", "watcher"),
        {"kill": 400},
    ),
    "who decides does not look at what was decided": Mutation(
        "a generation is decided twice",
        {
            "groups.group_commits.GroupPrecondition.__call__": Instead(
                "if state.record != self.record:", "if False:"
            )
        },
        ("appender", "member", "member", "setter", "setter"),
        {"kill": 400},
    ),
    "a static member stays beside the one that replaces it": Mutation(
        "two have one partition",
        {
            "groups.rebalance.next_record": Instead(
                "members = _without_instance(members, live[name].settings.instance)"
            )
        },
        ("appender", "member", "member", "member", "watcher"),
        {"kill": 400},
    ),
    "nobody is ever lost": Mutation(
        "partitions of who was killed are read by nobody",
        {
            "groups.member_files._is_lost": Instead(
                "seen.still_s * 1000 >= settings.session_timeout_ms", "False"
            )
        },
        ("appender", "member", "member", "member", "watcher"),
        {"kill": 400},
    ),
    "followers do not get a batch": _found(
        "replicas in sync differ, and a node that leads next lacks what was acknowledged",
        "commit.replication.Replication._followers",
        "return [node for node in in_sync if node != planned and node in self._nodes.live]",
        "return []",
    ),
    "a state is prepared on one node only": _found(
        "an acknowledged batch is known to one node, and gone with it",
        "store.replicas.quorum.Quorum.publish",
        "for node in self.live if self._prepare",
        "for node in self.live[:1] if self._prepare",
    ),
    "a take-back leaves the leader epoch": _found(
        "two records have one offset under one leader epoch, and no follower can tell them apart",
        "store.replicas.controller.decide",
        "_claim(log_set, with_raised_epochs(log_set.state, _written_epochs(unfinished)))",
        "_claim(log_set, log_set.state)",
        {"kill": 300},
    ),
    "a minority may go on": Mutation(
        "two halves of a set continue without each other",
        {
            "store.replicas.open_nodes.QuorumSession._present": Instead(
                "voters.check_majority()", "pass"
            ),
            "store.replicas.quorum.Quorum.check_majority": Instead(
                "if is_majority(self.live, self.voters):", "if self.live:"
            ),
        },
        ("versioned", "query", "appender", "reader", "inspector"),
        {"vanish": 100, "vanish two": 100},
        drawn={"nodes": Layout((1, 1, 1)), "directories": 3},
    ),
}
