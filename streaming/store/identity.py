"""Idempotent writes: `judge` decides if a batch is new, was committed already, or is refused.

It knows a writer by its last batch in the commit state. Batch writes are new to it:
``commit/versions`` decides about those with ``txnAppId``. Mirrors, replays and counted ingests ask
where their target ends (``jobs/pipelines/continuation``). Two questions are answered elsewhere: an
abort compares batch numbers itself, and a commit whose answer got lost reads back whether it is
there (``commit/committer``, ``objects/bucket_log``).

A writer is known to the commit state by a key:

===============  ==================================================================================
``query:<id>``   a streaming query; batches are numbered one by one, the last one may come again
``app:<id>``     batch writes with ``txnAppId``; versions grow, with gaps, in each topic by
                 themselves: see :mod:`~kafkalog.streaming.commit.versions`
``job:<uuid>``   any other batch write: no two are the same, and the state keeps nothing of it
===============  ==================================================================================
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from kafkalog.checkpoints.commit_state import DEFAULT_EXPIRATION_MS, STAGED_PREFIX, WriterState
from kafkalog.errors import BatchIdentityError, FencedWriterError

__all__ = [
    "APP_PREFIX",
    "DIGEST_OF_ROWS",
    "BatchIdentity",
    "Verdict",
    "judge",
    "remember",
    "staging_hash",
]

APP_PREFIX: Final = "app:"
"""What the keys of writers begin with that write with ``txnAppId``."""

DIGEST_OF_ROWS: Final = "rows "
"""What the digest of a batch begins with that is told by its rows."""

_FENCED_RUNS_KEPT: Final = 32

_LOGGER: Final = logging.getLogger("kafkalog.sink")


def staging_hash(writer: str) -> str:
    """Return a hash of a writer's key for file names: an id from outside never becomes a path."""
    return hashlib.sha256(writer.encode("utf-8", "surrogatepass")).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class BatchIdentity:
    """One batch of one writer.

    ``run_id`` changes each time a query is started. ``digest`` says what the batch was planned to
    hold, or which rows it has; None where nothing is known about that.

    A write with ``txnAppId`` has ``topic``, if all of its rows go to that one, and ``digests``: for
    each topic what tells the rows that go there.
    """

    writer: str
    batch_id: int
    run_id: str = ""
    digest: str | None = None
    topic: str | None = None
    digests: tuple[tuple[str, str], ...] = ()

    @property
    def is_remembered(self) -> bool:
        """Whether the commit state keeps the last batch of this writer."""
        return not self.writer.startswith("job:")

    @property
    def is_query(self) -> bool:
        """Whether it is a micro-batch of a streaming query."""
        return self.writer.startswith("query:")

    @property
    def is_versioned(self) -> bool:
        """Whether it is a batch write with an id, which counts in each topic by itself."""
        return self.writer.startswith(APP_PREFIX)

    @property
    def turn(self) -> int:
        """A number that differs from batch to batch and stays when a batch is run again."""
        return self.batch_id if self.is_remembered else int(staging_hash(self.writer)[:8], 16)

    @property
    def staged_prefix(self) -> str:
        """What the names of this batch's staged files start with."""
        return f"{STAGED_PREFIX}{staging_hash(self.staged_by)}.{self.batch_id}."

    @property
    def staged_by(self) -> str:
        """Whose staged files these are: several topics may be written under one version at once."""
        return f"{self.writer}\0{self.topic or ''}" if self.is_versioned else self.writer

    def __str__(self) -> str:
        if self.is_versioned:
            return f"version {self.batch_id} of txnAppId {self.writer.removeprefix(APP_PREFIX)!r}"
        return f"batch {self.batch_id} of {self.writer}"


class Verdict(Enum):
    """What is to be done with a batch."""

    APPEND = auto()
    SKIP = auto()
    """It is committed already."""


def judge(
    identity: BatchIdentity, last: WriterState | None, *, allows_unknown: bool = False
) -> Verdict:
    """Decide whether a batch is new or committed already; ``last`` is its writer's last one.

    ``allows_unknown`` is the option ``allowUnknownCheckpoint``.
    A batch that cannot be proved to be either is refused, never dropped. Here all batch writes are
    new.

    Raises:
        FencedWriterError: a newer run of the same query has committed since.
        BatchIdentityError: neither the next batch nor the last one again.
    """
    if not identity.is_remembered or identity.is_versioned:
        return Verdict.APPEND
    if last is None:
        return _judge_first(identity, allows_unknown=allows_unknown)
    if identity.run_id in last.fenced:
        raise FencedWriterError(
            f"{identity}: its run {identity.run_id} was replaced by run {last.run_id}, which has "
            f"committed batch {last.batch_id}. This run must end; nothing was written"
        )
    if identity.batch_id == last.batch_id + 1:
        return Verdict.APPEND
    if identity.batch_id == last.batch_id:
        return _judge_last_again(identity, last)
    lost = (
        "the log directories were restored from an older copy than the query's checkpoint"
        if identity.batch_id > last.batch_id
        else "the query's checkpoint was lost or restored from an older copy"
    )
    raise BatchIdentityError(
        f"{identity} does not follow batch {last.batch_id}, the last one that is committed. Either "
        f"{lost}, or two queries write under one transactional id. Nothing was written. {_WAY_OUT}"
    )


_WAY_OUT: Final = (
    "To continue, restore the checkpoint that belongs to these log directories; or decide which "
    "rows are there already, and start the query with an option transactional.id that is new to "
    "them, and with allowUnknownCheckpoint=true unless its next batch is batch 0"
)


def _judge_first(identity: BatchIdentity, *, allows_unknown: bool) -> Verdict:
    if identity.batch_id == 0:
        return Verdict.APPEND
    if allows_unknown:
        _LOGGER.warning(
            "%s is the first that these log directories know of: allowUnknownCheckpoint=true lets "
            "the query begin with it. Take the option away again, or a missing mount goes unseen",
            identity,
        )
        return Verdict.APPEND
    raise BatchIdentityError(
        f"{identity} is not its first, yet the log directories know nothing of the batches before "
        "it. Are they the ones that the query wrote to (a missing mount, an empty folder in its "
        "place, a restored copy)? If they are, and the query has a new transactional.id, comes "
        "from another sink, or stood still for longer than transactional.id.expiration.ms, start "
        "it with allowUnknownCheckpoint=true: it begins with this batch. Nothing was written"
    )


def _judge_last_again(identity: BatchIdentity, last: WriterState) -> Verdict:
    if last.digest is None or identity.digest == last.digest:
        return Verdict.SKIP
    raise BatchIdentityError(
        f"{identity} is committed already, with other content as far as is known: this one has "
        f"{_shown(identity.digest)}, and that one had {_shown(last.digest)}. "
        f"{_why_other(identity.digest, last.digest)}. Nothing was written. {_WAY_OUT}"
    )


def _shown(digest: str | None) -> str:
    if digest is None:
        return "nothing that tells"
    if digest.startswith(DIGEST_OF_ROWS):
        return f"the digest {digest!r} of its rows"
    return f"the digest {digest!r} of its offsets in the checkpoint"


def _why_other(digest: str | None, last: str) -> str:
    is_of_rows = digest is not None and digest.startswith(DIGEST_OF_ROWS)
    if is_of_rows != last.startswith(DIGEST_OF_ROWS):
        return (
            "A batch is told by the offsets in its query's checkpoint where they can be read, and "
            "by its rows elsewhere: start the query with its option checkpointLocation as it was "
            "when that batch was committed, until it has gone beyond it"
        )
    if is_of_rows:
        return (
            "The checkpoint, which cannot be read from here, was restored from an older copy or "
            "has lost what it had planned; two queries write under one transactional id; what the "
            "batch reads was compacted or deleted since; or the query gives other rows each time "
            "it runs. The last two need a checkpointLocation that can be read to be told by"
        )
    return (
        "The checkpoint was restored from an older copy or moved, or two queries write under one "
        "transactional id"
    )


def remember(
    identity: BatchIdentity,
    last: WriterState | None,
    now_ms: int,
    expiration_ms: int = DEFAULT_EXPIRATION_MS,
) -> WriterState:
    """Return what the state keeps of a writer, and for how long, once the batch is committed."""
    fenced = () if last is None else last.fenced
    if last is not None and last.run_id != identity.run_id:
        fenced = (*fenced, last.run_id)[-_FENCED_RUNS_KEPT:]
    return WriterState(
        identity.run_id, identity.batch_id, identity.digest, now_ms, fenced, expiration_ms
    )
