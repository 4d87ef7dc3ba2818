"""The rule of ends: how far a partition is committed, and where its readers stop.

Nothing is read here. What files say of a partition comes in as :class:`RecordedOffsets`, what its
log holds as
:class:`SeenEnd`; where it ends goes out as :class:`End`. Readers, writers and the command line all
go by this, so that none of them sees rows that another does not count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kafkalog.checkpoints.broker import HIGH_WATERMARK, RECOVERY_POINT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "End",
    "Mark",
    "OffsetGap",
    "RecordedOffsets",
    "SeenEnd",
    "committed_end",
    "end_of",
    "marks_above",
    "recorded_log_start",
    "unverified_from",
]


class OffsetGap(NamedTuple):
    """The offsets ``[start, end)`` between the end of a log and what is committed to it."""

    start: int
    end: int


class RecordedOffsets(NamedTuple):
    """What files say of one partition; None where they say nothing."""

    committed: int | None = None
    """The commit state: everything below is committed. It knows partitions by their topic's id."""
    has_state: bool = False
    """Whether there is a commit state beside the partition, though it may not name it."""
    begun: int | None = None
    """The intent of an unfinished commit that names the partition: where the log ended before.

    0 of a partition that it makes.
    """
    high_watermark: int | None = None
    """``replication-offset-checkpoint``; 0 where the file is there and does not name it."""
    recovery_point: int | None = None
    """``recovery-point-offset-checkpoint``: everything below it was on the disk."""
    log_start: int = 0
    """``log-start-offset-checkpoint``: records below it count as deleted."""
    kept_start: int = 0
    """The commit state: likewise. It knows partitions by their topic's id."""


class SeenEnd(NamedTuple):
    """What a log holds: offsets ``[start, end)`` in whole batches.

    ``is_damaged``: valid batches follow after bytes that are none. ``is_torn``: nothing but bytes
    that are no valid batch follows.
    """

    start: int
    end: int
    is_damaged: bool = False
    is_torn: bool = False


class End(NamedTuple):
    """Where a partition ends."""

    committed: int | None
    """How far it is committed; None where no file says, and the log alone tells."""
    start: int
    """The first offset that readers see: of the first segment, or the log start that files say."""
    offset: int
    """Where readers stop."""
    reach: int
    """How far the log goes, committed or not, without what an unfinished commit has appended."""
    unread: OffsetGap | None = None
    """What the log holds above the end."""
    missing: OffsetGap | None = None
    """What is said to be committed, and is not in the log."""
    lost: OffsetGap | None = None
    """What of that our own commits had put into the log."""
    is_damaged: bool = False
    """Whether the log ends here because damage follows, and nothing says that it is committed."""
    is_confirmed: bool = False
    """Whether the end holds until files say another: the log was seen to have it."""
    is_short: bool = False
    """Whether more is said to be committed than the log has."""
    is_hidden: bool = False
    """Whether the log ends below its start, so that its records would be hidden."""


def committed_end(said: RecordedOffsets) -> int | None:
    """Return how far a partition is committed; None where no file says.

    ``-`` stands for a file that is not there, or says nothing:

    ============  ======  ==============  =============  ==========================================
    commit state  intent  high watermark  committed end  because
    ============  ======  ==============  =============  ==========================================
    5             -       -               5              our commits put them there
    5             -       3               5              Kafka's files are written after the state
    5             -       7               7              a broker has appended since
    -             -       7               7              a broker's log
    -             -       0               0              a new partition of a broker, not named yet
    unnamed       -       -               0              the commit state names all that it commits
    -             -       -               -              a bare copy: the log alone tells
    5             7       9               7              what is above 7 is not committed yet
    5             7       6               6              a broker's batches stay seen meanwhile
    5             7       -               5              nobody says that 5 and 6 are committed
    -             7       9               7              the first commit to a broker's log
    -             7       -               7              the first commit to a bare copy
    -             0       9               0              the unfinished commit makes the partition
    ============  ======  ==============  =============  ==========================================
    """
    ours, brokers, begun = said.committed, said.high_watermark, said.begun
    if begun is not None:
        if brokers is not None:
            # What a broker has appended since our last commit stays seen while the next one runs.
            brokers = min(brokers, begun)
        elif ours is None:
            return begun
    if ours is None:
        return 0 if brokers is None and said.has_state else brokers
    return ours if brokers is None else max(ours, brokers)


def end_of(said: RecordedOffsets, log: SeenEnd, *, to_log_end: bool = False) -> End:
    """Return where a partition ends, of what files say and its log holds.

    With a log of the offsets 0 to 9, committed to where :func:`committed_end` says:

    =============  ==========  ===  ========  ========  ========  =================================
    committed end  log         end  unread    missing   lost      because
    =============  ==========  ===  ========  ========  ========  =================================
    5              whole       5    [5, 10)   -         -         the rest is not committed
    10             whole       10   -         -         -
    12             whole       10   -         [10, 12)  -         a broker continues at 10 as well
    12             torn        10   -         [10, 12)  -         likewise
    12             damaged     12   -         -         -         whoever reads there has to be told
    12 ours        whole       10   -         [10, 12)  [10, 12)  they were in the log
    12 ours        torn        12   -         -         -         whoever reads there has to be told
    12, 11 ours    whole       10   -         [10, 12)  [10, 11)  the last one is a broker's claim
    -              whole       10   -         -         -
    =============  ==========  ===  ========  ========  ========  =================================

    No end lies below the start (:func:`recorded_log_start`). With ``to_log_end`` readers stop at
    the log end wherever the log has what is committed.
    """
    committed = committed_end(said)
    start = max(log.start, recorded_log_start(said, log.end))
    is_told = committed is not None and not to_log_end
    is_short = committed is not None and committed > log.end
    missing, lost = _lacking(said, log, committed) if is_short else (None, None)
    ends_there = missing is not None or (to_log_end and not is_short)
    offset = log.end if committed is None or ends_there else committed
    stop = max(offset, start)
    is_hidden = max(offset, log.end) < start
    reach = log.end if said.begun is None else min(log.end, said.begun)
    unread = OffsetGap(stop, log.end) if is_told and stop < log.end else None
    return End(
        *(committed, start, stop, reach, unread, missing, lost),
        is_damaged=log.is_damaged and not is_told and stop <= log.end,
        is_confirmed=is_told and not is_short and not is_hidden,
        is_short=is_short,
        is_hidden=is_hidden,
    )


def _lacking(
    said: RecordedOffsets, log: SeenEnd, committed: int | None
) -> tuple[OffsetGap | None, OffsetGap | None]:
    """Return what is missing, and what of it is lost, of a log that ends below ``committed``.

    Nothing where bytes follow that are damaged: the end stays, and whoever reads there is told.
    """
    ours = said.committed
    is_ours = ours is not None and ours > log.end
    if committed is None or log.is_damaged or (is_ours and log.is_torn):
        return None, None
    lost = OffsetGap(log.end, ours) if ours is not None and is_ours else None
    return OffsetGap(log.end, committed), lost


def recorded_log_start(said: RecordedOffsets, log_end: int) -> int:
    """Return the offset below which records count as deleted.

    It is the larger of what Kafka's checkpoint and the commit state say: a broker may have deleted
    records since our last commit, and its file may be lost. The commit state hides no loss at the
    end of a log: it moves no start above that.
    """
    return max(said.log_start, min(said.kept_start, log_end))


def unverified_from(said: RecordedOffsets) -> int | None:
    """Return the offset from which on nothing says that batches are whole; None without any.

    As a broker that recovers a log does not trust what was not flushed.
    """
    committed, flushed = committed_end(said), said.recovery_point
    if committed is None or flushed is None:
        return flushed if committed is None else committed
    return min(committed, flushed)


class Mark(NamedTuple):
    """An offset below which nothing may be cut off a log, and who says so, for a message."""

    offset: int
    text: str


def marks_above(said: RecordedOffsets, end: int, reach: Callable[[], int]) -> Iterator[Mark]:
    """List what forbids to cut a log off at ``end``: what says that records above it are to stay.

    Below the high watermark records were acknowledged, and readers may have seen them. Below the
    recovery point they were on the disk. A broker that recovers cuts a damaged batch all the same,
    and fetches it again from another replica. Here there is none.

    ``reach`` tells how far the log went before it was damaged. A recovery point above that tells
    nothing: it may be of an earlier topic with the same name.
    """
    if said.committed is not None and end < said.committed:
        yield Mark(said.committed, "committed up to")
    if said.high_watermark is not None and end < said.high_watermark:
        yield Mark(said.high_watermark, f"the high watermark in {HIGH_WATERMARK} is")
    flushed = said.recovery_point
    if flushed is not None and end < flushed <= reach():
        yield Mark(flushed, f"the recovery point in {RECOVERY_POINT} is")
