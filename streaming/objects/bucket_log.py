"""Follow the commits of a log in an object store, and add to them.

A commit is the object whose number is free: whoever creates number N+1 has decided what comes after
N. There are no locks. Any number of processes do this at once, and each may be stopped for any time
between any two steps; a request may be lost, or arrive long after its time-out.

=========================  =========================================================================
rule                       without it
=========================  =========================================================================
read back, never guess     a batch whose answer was lost is written twice
absent is not failed       a batch that was reported as failed appears later
credit, floors             whoever slept while numbers were cleaned up takes a free old number, and
                           believes that it has committed
the id before              a commit is added to a history that is not its own
=========================  =========================================================================

**Credit.** Old commits are cleaned up (a *floor* voids their numbers first), so a free name is not
always the next one. A process may trust an answer about N+1 while it has credit: for ten minutes
from when it sent a request that showed it the end of the log. Without it, it lists the floors above
N+1 after the answer came, and looks whether the log is still the same one.

**The same log.** A bucket may be emptied, and another log be begun there; or it may be set back to
what it was. Then N+1 may be absent for ever, and a new one of ours is seen by nobody. So once a
minute a process that has credit asks for one object more: what names the log and its own newest
commit, in turn.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from kafkalog.checkpoints.bucket_state import (
    MAX_EXTENTS_BYTES,
    BucketCommit,
    BucketState,
    checkpoint_bytes,
    checkpoint_name,
    commit_bytes,
    commit_name,
    data_name,
    extents_bytes,
    floor_name,
    number_of_checkpoint,
    number_of_commit,
    parse_checkpoint,
    parse_commit,
)
from kafkalog.checkpoints.sealed_file import check_fields, seal, unseal
from kafkalog.errors import (
    CheckpointError,
    CommitError,
    KafkaLogError,
    LogDirectoryError,
    UnknownOutcomeError,
)
from kafkalog.files.deferred_signals import Interrupted
from kafkalog.files.objects import Creation, check_create_is_exclusive, rest_after
from kafkalog.files.storage import STORE
from kafkalog.files.system import system

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kafkalog.files.objects import Objects

__all__ = ["BucketLog", "Proposal", "is_void", "readable_checkpoints", "replaced_log_error"]

CREDIT_S: Final = 600.0
_LOOK_S: Final = 61.0
"""How long it is believed that the log is still there: one request more a minute at most."""

_STORE_FORMAT: Final = "kafkalog.bucket.store"
_STORE_FIELDS: Final = frozenset({"log", "race"})
_MOST_RACES: Final = 1000
"""Lost races after which a commit gives up; each is a commit of somebody else."""
_COMMITS_BETWEEN: Final = 100
"""Commits after the newest checkpoint, before another is made if they weigh enough."""
_CHECKPOINT_WEIGHT: Final = 32
"""How many times its weight in commits a checkpoint may have: what a commit costs in the end."""
_MOST_COMMITS_BETWEEN: Final = 10_000
"""Commits after which one is made whatever they weigh."""
_BEFORE_LISTING: Final = 8
"""Commits that are read one by one; whoever is further behind lists the rest, and reads many."""
_AT_A_TIME: Final = 16
_MANY_EXTENTS: Final = 10_000
"""Fewer are less than would need an object of their own."""
_LOG_ID: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)
_REMEDY: Final = "Bring the object back as it was, from a copy or an older version of it"
_MOST_REOPENED: Final = 8

_LOGGER: Final = logging.getLogger("kafkalog.sink")


@dataclass(frozen=True, slots=True)
class Proposal:
    """What is to be committed: what it changes, and whether it can be told when it comes again.

    ``commit`` has no number, ids or predecessor yet. ``is_known_again``: the state tells whether
    the batch is committed, as it remembers the writer and its batch.
    """

    commit: BucketCommit
    is_known_again: bool


class _Moment(NamedTuple):
    """A moment by both clocks: one may stand still or be set while the other goes on."""

    boot_s: float
    wall_s: float

    @classmethod
    def now(cls) -> _Moment:
        return cls(system.boottime(), system.time_ns() / 1e9)

    def is_within(self, seconds: float) -> bool:
        now = _Moment.now()
        return max(now.boot_s - self.boot_s, now.wall_s - self.wall_s) < seconds


class _OvertakenError(Exception):
    """A floor lies above the number that an answer was about: nothing known of it holds."""


class BucketLog:
    """A log in an object store, as one process knows it. Not for several threads at once.

    ``state`` is what the process has followed; it is moved on in place.
    """

    def __init__(self, objects: Objects, log_id: str) -> None:
        """Take the log's id; see :meth:`open`."""
        self.state = BucketState(log_id)
        self.objects = objects
        self.folder = f"_kafkalog/{log_id}"
        self._tail_seen: _Moment | None = None
        self._log_seen: _Moment | None = None
        self._looks = 0
        self._checkpoint_bytes = 0
        self._bytes_since = 0
        self._commits_since = 0

    @classmethod
    def open(cls, objects: Objects) -> BucketLog | None:
        """Open the log below a root at its newest checkpoint; None if there is none.

        Raises:
            LogDirectoryError: the store fails.
            CheckpointError: what lies there cannot be read.
        """
        seen = _Moment.now()
        log_id = _read_log_id(objects)
        if log_id is None:
            return None
        log = cls(objects, log_id)
        log._reopen()
        log._log_seen = seen
        return log

    @classmethod
    def create(cls, objects: Objects) -> BucketLog:
        """Open the log below a root; make it if there is none, and the store can hold one.

        Raises:
            LogDirectoryError: the store lets two create one object, or fails.
            CheckpointError: what lies there cannot be read.
        """
        found = cls.open(objects)
        if found is not None:
            return found
        check_create_is_exclusive(objects, "_kafkalog/race")
        line = {"log": system.random_id().hex, "race": "won by one"}
        data = seal(_STORE_FORMAT, 1, [line])
        for tries in range(1, objects.tries + 1):
            objects.create(STORE, data)  # whoever was first, and if at all, is read back
            found = cls.open(objects)
            if found is not None:
                return found
            rest_after(tries)
        raise LogDirectoryError(
            f"{objects.root}/{STORE} could not be created in {objects.tries} tries: the store did "
            "not answer, or not for sure. There is no log yet; try again"
        )

    @property
    def seen_s(self) -> float:
        """When the end of the log was seen, by the wall clock; 0: it was not, or does not hold."""
        return 0.0 if self._tail_seen is None else self._tail_seen.wall_s

    # Following

    def follow(self, *, trusting: bool = True) -> BucketState:
        """Go on to the newest commit, and return the state.

        ``trusting=False`` lists floors in any case: for whoever is about to delete.

        Raises:
            LogDirectoryError: the store fails, or holds another log by now.
            CheckpointError: a commit cannot be read, or is of another history.
        """
        for _ in range(_MOST_REOPENED):
            try:
                self._follow(trusting=trusting)
            except _OvertakenError:
                self._reopen()
            else:
                return self.state
        raise self._unopened("floors rise faster than it can be opened")

    def _follow(self, *, trusting: bool) -> None:
        """Read up to the first absent commit; use what was read only where it may be trusted."""
        first = self.state.number + 1
        read: list[BucketCommit] = []
        while True:
            if len(read) == _BEFORE_LISTING:
                read += self._read_listed(first + len(read))
            sent = _Moment.now()
            commit = self._read(first + len(read))
            if commit is None:
                break
            read.append(commit)
        is_doubted = self._log_seen is None
        if trusting and self.has_credit():
            self._look_after_log()
        else:
            self._check_floors(first)
            self._check_end(first + len(read))
            if is_doubted:
                self._check_newest()
        for commit in read:
            self._apply(commit)
        self._tail_seen = sent

    def _read_listed(self, first: int) -> list[BucketCommit]:
        """Read the commits from a number on that a listing shows, up to the first absent one."""
        listed = self.objects.list_after(f"{self.folder}/commits", f"{first - 1:020}")
        numbers = [number_of_commit(entry.name) or 0 for entry in listed]
        pool = system.pool(_AT_A_TIME, "kafkalog-commits")
        try:
            found = list(pool.map(self._read, range(first, max(numbers, default=0) + 1)))
        finally:
            pool.shutdown()
        absent = found.index(None) if None in found else len(found)
        if absent < len(found):
            self._tail_seen = None  # no end of the log: see what is the matter
        return [commit for commit in found[:absent] if commit is not None]

    def _read(self, number: int) -> BucketCommit | None:
        name = f"{self.folder}/{commit_name(number)}"
        data = self.objects.get(name)
        if data is None:
            return None
        commit = parse_commit(data, f"{self.objects.root}/{name}", self._load)
        if commit.number != number or commit.log_id != self.state.log_id:
            raise CheckpointError(
                f"{self.objects.root}/{name} holds commit {commit.number} of log {commit.log_id}: "
                "somebody has copied or renamed objects. Nothing was changed"
            )
        return replace(commit, inline=b"")  # thousands may be read before any is used

    def _load(self, name: str) -> bytes:
        """Read the object that the extents of a commit stand in."""
        data = self.objects.get(f"{self.folder}/{name}")
        if data is None:
            raise CheckpointError(
                f"{self.objects.root}/{self.folder}/{name}, which has the extents of a commit, is "
                f"gone. {_REMEDY}"
            )
        return data

    def _apply(self, commit: BucketCommit) -> None:
        try:
            self.state.apply(commit)
        except ValueError as error:
            name = f"{self.objects.root}/{self.folder}/{commit_name(commit.number)}"
            raise CheckpointError(
                f"{name} does not follow commit {self.state.number} as it is known here: {error}. "
                "Nothing was changed. Open the log anew; if that fails too, two histories were "
                "mixed, as by a copy from another region"
            ) from error
        self._commits_since += 1
        self._bytes_since += commit.size

    # Credit and floors

    def has_credit(self) -> bool:
        """Whether the end of the log was seen a short while ago: what is known holds."""
        return self._tail_seen is not None and self._tail_seen.is_within(CREDIT_S)

    def is_known_lost(self) -> bool:
        """Whether it was found that the log is not there any more, or was set back."""
        return self._log_seen is None

    def expire_identity(self) -> None:
        """Look at once whether the log is still there, before anything else."""
        self._log_seen = None

    def is_replaced(self) -> bool:
        """Ask whether another log, or none, lies there by now."""
        seen = _Moment.now()
        is_same = _read_log_id(self.objects) == self.state.log_id
        self._log_seen = seen if is_same else None
        return not is_same

    def is_overtaken(self) -> bool:
        """Whether a floor or another log is there by now: for whoever is about to delete."""
        if self._is_overtaken(self.state.number):
            return True
        return _read_log_id(self.objects) != self.state.log_id

    def _is_overtaken(self, number: int) -> bool:
        return _has_floor_above(self.objects, self.folder, number)

    def _check_floors(self, number: int) -> None:
        """See that no floor lies above a number, and that the log is still the same one."""
        if self._is_overtaken(number):
            raise _OvertakenError
        self._check_same_log()

    def _check_same_log(self) -> None:
        seen = _Moment.now()
        log_id = _read_log_id(self.objects)
        if log_id != self.state.log_id:
            self._log_seen = None
            raise replaced_log_error(self.objects.root, self.state.log_id, log_id)
        self._log_seen = seen

    def _look_after_log(self) -> None:
        """Look now and then whether the log, and what is known of it, is still there.

        Raises:
            LogDirectoryError, CheckpointError: it is not.
            _OvertakenError: a floor lies above all that is known.
        """
        is_lost = self._log_seen is None
        if self._log_seen is not None and self._log_seen.is_within(_LOOK_S):
            return
        self._looks += 1
        is_first = self._looks % 2 == 1 or not self.state.number
        if is_first or is_lost:
            self._check_same_log()
        if is_lost or not is_first:
            self._check_newest()

    def _check_newest(self) -> None:
        """See that the newest commit that is known here is still the one of its number."""
        seen, number = _Moment.now(), self.state.number
        name = f"{self.folder}/{commit_name(number)}"
        data = self.objects.get(name) if number else b""
        if data is None and self._is_overtaken(number):
            raise _OvertakenError
        known = f'"id":"{self.state.commit_id}"'.encode()
        if data is None or (number and known not in data):
            self._log_seen = None
            raise CheckpointError(
                f"{self.objects.root}/{name} is {'gone' if data is None else 'another one'}, and "
                f"was read, or written, with the id {self.state.commit_id}: the bucket was set "
                "back, and what was committed since may be lost. Start again; a query that is "
                "ahead of the log says so"
            )
        self._log_seen = seen

    def _check_end(self, number: int) -> None:
        """See that a number that was absent is the end of the log, and no gap in it.

        Raises:
            CheckpointError: later commits are there.
            _OvertakenError: a floor has passed it meanwhile.
        """
        after = commit_name(number).rpartition("/")[2]
        for tries in range(1, self.objects.tries + 1):
            later = self.objects.list_after(f"{self.folder}/commits", after, limit=1)
            if not later or self._read(number) is not None:
                return
            rest_after(tries)
        if self._is_overtaken(number):
            raise _OvertakenError
        raise CheckpointError(
            f"{self.objects.root}/{self.folder}/{commit_name(number)} is gone, and later commits "
            f"are there, such as {later[0].name}. Nothing was changed. {_REMEDY}"
        )

    def _reopen(self) -> None:
        """Begin again at the newest checkpoint that can be read."""
        self._tail_seen = None
        last = -1
        while True:
            fault = self._load_checkpoint()
            if not self._is_overtaken(self.state.number + 1):
                return
            if self.state.number <= last:
                reason = "no checkpoint beside its newest floor can be read"
                raise self._unopened(reason) from fault
            last = self.state.number  # a floor that has risen since has a newer checkpoint

    def _load_checkpoint(self) -> CheckpointError | None:
        """Take the state of the newest checkpoint; return why a newer one could not be read."""
        log_id = self.state.log_id
        self.state = BucketState(log_id)
        self._bytes_since = self._commits_since = self._checkpoint_bytes = 0
        faults: list[CheckpointError] = []
        for state, size in readable_checkpoints(self.objects, self.folder, faults):
            if state.log_id == log_id:
                self.state, self._checkpoint_bytes = state, size
                break
        return faults[-1] if faults else None

    def _unopened(self, reason: str) -> CheckpointError:
        return CheckpointError(
            f"{self.objects.root}/{self.folder} cannot be opened: {reason}. Nothing was changed. "
            "Try again; if the store keeps versions of objects, bring back the newest checkpoint"
        )

    # Committing

    def commit(self, propose: Callable[[BucketState], Proposal | None]) -> BucketCommit | None:
        """Commit what is proposed after the newest state; None if the batch is known to it.

        Args:
            propose: makes the proposal from a state, which it leaves as it is; None: the batch is
                committed already. Called again for each state that others have moved on to.

        Returns:
            the commit, once nothing can undo it.

        Raises:
            UnknownOutcomeError: the store did not tell whether the batch is committed.
            CommitError: nothing of it is committed: others were always first.
            LogDirectoryError: likewise: the store fails or refuses.
            KafkaLogError: what ``propose`` raises about the newest state.
        """
        for races in range(_MOST_RACES):
            if races:
                rest_after(min(races, 4))
                self.follow()
            is_there = self.has_credit() and self._is_confirmed()
            proposal = self._propose(propose)
            if proposal is None:
                if is_there or self._is_confirmed():
                    return None
                continue
            committed = self._attempt(proposal)
            if committed is not None:
                self._checkpoint_if_due()
                return committed
        raise CommitError(
            f"{self.objects.root}: other writers were first {_MOST_RACES} times. Nothing was "
            "written; let fewer of them write at once, or commit larger batches"
        )

    def _is_confirmed(self) -> bool:
        """See, if that is due, that the log is still there; False if it was opened anew."""
        try:
            self._look_after_log()
        except _OvertakenError:
            self._reopen()
            return False
        return True

    def _attempt(self, proposal: Proposal) -> BucketCommit | None:
        """Commit a proposal at the next number; None if it is to be judged again."""
        body = replace(
            proposal.commit,
            number=self.state.number + 1,
            commit_id=system.random_id().hex,  # whoever changes a byte draws another one
            previous=self.state.commit_id,
            log_id=self.state.log_id,
        )
        try:
            return self._send(self._with_listing(body))
        except _OvertakenError:
            if not proposal.is_known_again:
                raise self._unknown(body, "it was cleaned up, or never counted") from None
            self._catch_up(body)
            return None

    def _with_listing(self, body: BucketCommit) -> BucketCommit:
        """Put the extents of a commit into an object of their own, where they are too many."""
        if sum(map(len, body.extents.values())) < _MANY_EXTENTS:
            return body
        content = extents_bytes(body)
        if len(content) <= MAX_EXTENTS_BYTES:
            return body
        name = data_name(self.state.number, system.random_id().hex)
        self.objects.put(f"{self.folder}/{name}", content)
        return replace(body, listed=name)

    def _catch_up(self, body: BucketCommit) -> None:
        """Open anew, to judge by the newest state whether an overtaken batch is committed."""
        try:
            self._reopen()
            self.follow()
        except (KafkaLogError, Interrupted) as error:
            raise self._unknown(body, str(error) or "it was interrupted") from error

    def _propose(self, propose: Callable[[BucketState], Proposal | None]) -> Proposal | None:
        """Judge by the state that is remembered; refuse only by the newest one."""
        number = self.state.number
        try:
            return self._unswept(propose(self.state))
        except KafkaLogError:
            self.follow()
            if self.state.number == number:
                raise
        return self._unswept(propose(self.state))

    def _unswept(self, proposal: Proposal | None) -> Proposal | None:
        """Refuse objects that may have been deleted: they are older than the delete delay."""
        swept = proposal and self.state.find_swept(proposal.commit)
        if swept:
            raise CommitError(
                f"{swept} was staged longer ago than data is kept that no commit names: "
                f"{self.state.delay_ms / 3_600_000:g} hours (storage.deleteDelay). Nothing was "
                "written. Run the batch again; if it takes as long each time, raise "
                "storage.deleteDelay"
            )
        return proposal

    def _send(self, body: BucketCommit) -> BucketCommit | None:
        """Create the object of a commit, until it is known whose the number is.

        Returns:
            the commit as it stands; None if the number is another's, who has been followed.

        Raises:
            _OvertakenError: a floor has passed the number.
            UnknownOutcomeError: all tries are spent.
        """
        name = f"{self.folder}/{commit_name(body.number)}"
        data = commit_bytes(body)
        # with its inline extents as others see them
        own = parse_commit(data, name, lambda _: extents_bytes(body))
        for tries in range(1, self.objects.tries + 1):
            sent = _Moment.now()
            try:
                answer = self.objects.create(name, data)
            except LogDirectoryError as error:  # this request has written nothing
                if tries == 1:
                    raise
                raise self._unknown(body, str(error)) from error
            try:
                found = own if answer is Creation.CREATED else self._read(body.number)
                if found is not None:
                    self._settle(found, sent if answer is Creation.CREATED else None)
                    return own if found.commit_id == own.commit_id else None
                rest_after(tries)
            except (LogDirectoryError, Interrupted) as error:
                raise self._unknown(body, str(error) or "it was interrupted") from error
        raise self._unknown(body, f"{self.objects.tries} requests to create it were not answered")

    def _settle(self, commit: BucketCommit, tail_seen: _Moment | None) -> None:
        """Go on to a commit that an answer has shown, once the answer may be trusted."""
        if not self.has_credit():
            self._check_floors(commit.number)
        self._apply(commit)
        if tail_seen is not None:
            self._tail_seen = tail_seen

    def _unknown(self, body: BucketCommit, reason: str) -> UnknownOutcomeError:
        return UnknownOutcomeError(
            f"{self.objects.root}: it is not known whether commit {body.number} with the id "
            f"{body.commit_id} stands: {reason:.1000}. Repeat the same batch under the same name "
            "and version: it is skipped if it is there. Rows without a name may come twice so: "
            "look for them first"
        )

    # Checkpoints

    def _checkpoint_if_due(self) -> None:
        """Write a checkpoint where opening the log costs more than that; no outcome matters."""
        since, size = self._commits_since, self._bytes_since
        weighs_enough = size * _CHECKPOINT_WEIGHT >= self._checkpoint_bytes
        is_due = since >= _COMMITS_BETWEEN and weighs_enough
        if not is_due and since < _MOST_COMMITS_BETWEEN:
            return
        self._commits_since = self._bytes_since = 0
        self.checkpoint_if_old()

    def checkpoint_if_old(self) -> None:
        """Write a checkpoint, if nobody has for the last hundred commits; no outcome matters."""
        try:
            newest = self.objects.list_after(f"{self.folder}/checkpoints", limit=1)
            number = number_of_checkpoint(newest[0].name) if newest else None
            if number is not None and self.state.number - number < _COMMITS_BETWEEN:
                self._checkpoint_bytes = newest[0].size  # somebody else was faster
            else:
                self.checkpoint()
        except (LogDirectoryError, CheckpointError, Interrupted) as error:
            _LOGGER.warning("no checkpoint of commit %d: %s", self.state.number, error)

    def checkpoint(self) -> None:
        """Write a checkpoint of the state; whether it was written is not told.

        Raises:
            LogDirectoryError: the store refuses.
            CheckpointError: the state is larger than anybody would read.
        """
        data = checkpoint_bytes(self.state)
        self._checkpoint_bytes = len(data)
        self.objects.create(f"{self.folder}/{checkpoint_name(self.state.number)}", data)


def _has_floor_above(objects: Objects, folder: str, number: int) -> bool:
    after = floor_name(number).rpartition("/")[2]
    return bool(objects.list_after(f"{folder}/floors", after, limit=1))


def is_void(objects: Objects, log_id: str, name: str, seen_s: float) -> bool:
    """Whether an object that was read is a commit whose number is void: it may be another's.

    Args:
        objects: the store.
        log_id: the log.
        name: the object, as an extent has it.
        seen_s: when the log was seen to name it, by the wall clock; only what is long ago counts.
    """
    number = number_of_commit(name.removeprefix("commits/"))
    if number is None or abs(system.time_ns() / 1e9 - seen_s) < CREDIT_S:
        return False
    return _has_floor_above(objects, f"_kafkalog/{log_id}", number)


def replaced_log_error(root: str, held: str, now: str | None) -> LogDirectoryError:
    """Return the error that says that another log, or none, lies where one was."""
    return LogDirectoryError(
        f"{root} holds {f'the log {now}' if now else 'no log'} now, and held {held}: somebody has "
        "emptied it. Start again, with another checkpoint"
    )


def readable_checkpoints(
    objects: Objects, folder: str, faults: list[CheckpointError]
) -> Iterator[tuple[BucketState, int]]:
    """Yield what checkpoints hold, newest first, and their sizes in bytes; pass over bad ones.

    Args:
        objects: the store.
        folder: that of the log.
        faults: gets why those that cannot be read are passed over.
    """
    after = ""
    while listed := objects.list_after(f"{folder}/checkpoints", after, limit=1):
        after = listed[0].name
        name = f"{folder}/checkpoints/{after}"
        data = objects.get(name)
        if data is None:
            continue
        try:
            state = parse_checkpoint(data, f"{objects.root}/{name}")
        except CheckpointError as error:
            faults.append(error)
            continue
        if state.number == number_of_checkpoint(after):
            yield state, len(data)


def _read_log_id(objects: Objects) -> str | None:
    """Return the id of the log below a root; None if there is none."""
    data = objects.get(STORE)
    if data is None:
        return None
    name = f"{objects.root}/{STORE}"
    line = unseal(data, name, _STORE_FORMAT, 1, remedy=_REMEDY).lines[0]
    check_fields(name, 2, line, _STORE_FIELDS)
    log_id = line.get("log")
    if not isinstance(log_id, str) or _LOG_ID.fullmatch(log_id) is None:
        raise CheckpointError(
            f"{name} has the log id {log_id!r:.100}. Nothing was changed. {_REMEDY}"
        )
    return log_id
