r"""Play a range of topics again: into a log, into Kafka, or onto the terminal.

    kafkalog run replay LOG TARGET --topic T [OPTIONS]
    spark-submit --py-files kafkalog.zip replay.py LOG TARGET --topic T [OPTIONS]

TARGET is a log directory, kafka:HOST:PORT, or - for the terminal. For example, an hour twice as
fast as it was, into another topic of the same log:

    kafkalog run replay /var/log /var/log --as again --topic flights --speed 2 \
        --from 2026-03-01T10:00:00Z --until 2026-03-01T11:00:00Z

Keys, values, headers, partitions and, in a log, timestamps stay; offsets are new. A topic that a
log does not have is created with as many partitions. The job ends where LOG ends now; with --follow
it tails. With --checkpoint a job that was killed continues, and each record is in a log once, in
Kafka and on the terminal at least once. After Ctrl-C or SIGTERM the job ends with the piece that
runs.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from kafkalog.errors import OptionError
from kafkalog.files.paths import refuse_among_logs
from kafkalog.jobs.pipelines.copied_logs import copied_batch, path_for_sink
from kafkalog.jobs.pipelines.replay_checkpoint import Piece, ReplayCheckpoint
from kafkalog.jobs.pipelines.replaying import (
    NO_OFFSETS,
    WAYS,
    Replay,
    parse_speed,
    reader_of,
    target_of,
)
from kafkalog.jobs.pipelines.restore_plan import Until
from kafkalog.jobs.pipelines.supervised import attend_pieces
from kafkalog.jobs.process.arguments import (
    FROM_TARGET,
    GRACE,
    ISOLATION,
    LOG,
    SETTINGS,
    TOPICS,
    Isolation,
    check_folders,
    help_text,
    milliseconds,
    pairs,
    reading_options,
    split_names,
)
from kafkalog.jobs.process.running import Command, run
from kafkalog.jobs.session import session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from kafkalog.jobs.pipelines.replaying import Target
    from kafkalog.streaming.commit.preserved_offsets import CopiedBatch
    from kafkalog.streaming.source.offsets import PartitionOffsets

__all__ = ["PieceLeft", "begin", "piece_left", "work_of"]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

_PLACE = 'a time such as 1h (ago) or 2026-03-01T10:00:00Z, ms, or offsets as {"T":{"0":23}}'
TARGET = Annotated[str, typer.Argument(metavar="TARGET", help="Where the records go.")]
FROM = Annotated[
    str | None,
    typer.Option("--from", "--since", help=f"Where to begin: {_PLACE}. Default: log starts."),
]
UNTIL = Annotated[
    str | None, typer.Option(help=f"Where to end: {_PLACE}. Default: where logs end now.")
]
SPEED = Annotated[
    str, typer.Option(help="How fast time passes: 1 as it did, 2 twice as fast, or max.")
]
AS = Annotated[str | None, typer.Option("--as", help="The topic that gets all records.")]
FOLLOW = Annotated[bool, typer.Option("--follow", help="Play what comes later, too.")]
CHECKPOINT = Annotated[
    str | None,
    typer.Option(help="A folder of its own, local or mounted: another run continues from there."),
]
TARGET_SETTINGS = Annotated[
    list[str] | None,
    typer.Option(
        "--target-set",
        metavar="NAME=VALUE",
        help="Any option of what writes: kafka.security.protocol, or compression.type for a log.",
    ),
]


@app.command(cls=Command, help=help_text(__doc__))
def main(
    log: LOG,
    target: TARGET,
    *,
    topic: TOPICS,
    since: FROM = None,
    until: UNTIL = None,
    speed: SPEED = "max",
    name: AS = None,
    checkpoint: CHECKPOINT = None,
    isolation: ISOLATION = Isolation.COMMITTED,
    setting: SETTINGS = None,
    target_setting: TARGET_SETTINGS = None,
    from_target: FROM_TARGET = False,
    follow: FOLLOW = False,
    grace: GRACE = "60s",
) -> None:
    """Run the pipeline."""
    path = ",".join(log)
    grace_ms = milliseconds("--grace", grace)
    replay = Replay(
        log=path,
        topics=split_names(topic),
        since=Until.parse(since, "--from", from_now=True),
        until=Until.parse(until, from_now=True),
        follow=follow,
        speed=parse_speed(speed),
        options=reading_options(isolation, setting),
    )
    into = target_of(target, replay, name, pairs(target_setting))
    replay.check()
    check_folders({"TARGET": into.paths, "--checkpoint": checkpoint})
    what = {"LOG": path, "TARGET": target, "topics": ",".join(replay.topics), "--as": name or ""}
    refuse_among_logs("--checkpoint", checkpoint, [*replay.paths, *into.paths])
    reached = ReplayCheckpoint.open(checkpoint, what)
    held = begin(replay, reached, into, from_target=from_target)
    with session(f"kafkalog {replay.name}", kafka=into.needs_kafka) as spark:
        work = work_of(spark, replay, reached, into, held)
        ended = attend_pieces(spark, replay.name, work, grace_ms=grace_ms)
    ended.tell()


def work_of(
    spark: SparkSession,
    replay: Replay,
    reached: ReplayCheckpoint,
    into: Target,
    held: PartitionOffsets = NO_OFFSETS,
) -> Iterator[Callable[[], int] | None]:
    """Yield what plays each piece that is due; None while none is.

    ``held`` is what :func:`begin` returns.

    Raises:
        TargetMismatchError: the checkpoint does not go with what the target holds.
    """

    def play(piece: Piece) -> int:
        left = piece_left(replay, piece, reached, into)
        taken = 0 if left is None else into.take(replay.rows(spark, left.piece), left.copied)
        reached.note_end()
        return taken

    for piece in replay.pieces(reached, held):
        yield None if piece is None else partial(play, piece)


def begin(
    replay: Replay, reached: ReplayCheckpoint, into: Target, *, from_target: bool = False
) -> PartitionOffsets:
    """Prepare a target, and return how far it is, by what it keeps; nothing where it keeps none.

    Raises:
        TargetMismatchError: the checkpoint does not go with that. The target is as it was.
        DataLossError: a topic was recreated since, and the target holds nothing that tells.
        OptionError: a topic has fewer partitions there, or ``from_target`` does not go with it.
    """
    held = into.held(reached.id) if reached.folder is not None else None
    if held is None:
        if from_target:
            raise OptionError(
                "--from-target goes with --checkpoint and a log as TARGET: nothing else keeps how "
                "far a replay is"
            )
        into.prepare()
        return NO_OFFSETS
    if not held.ends:
        replay.check_topics(reached)
    if from_target:
        reached.continue_at(held.ends)
    done = (
        Piece(-1, reached.reached, reached.reached)
        if reached.unfinished is None
        else reached.unfinished
    )
    replay.plan(done, held, WAYS)
    into.prepare()
    return held.ends


class PieceLeft(NamedTuple):
    """What a target is to get of a piece, and what it is to keep of that, if it can."""

    piece: Piece
    copied: CopiedBatch | None


def piece_left(
    replay: Replay, piece: Piece, reached: ReplayCheckpoint, into: Target
) -> PieceLeft | None:
    """Decide what of a piece a target is to get; None where it has all of it.

    Raises:
        TargetMismatchError: the piece does not continue the target.
    """
    held = into.held(reached.id) if reached.folder is not None else None
    if held is None:
        return PieceLeft(piece, None)
    left, planned = replay.plan(piece, held, WAYS)
    if left.start == left.end:
        return None
    reader, names = reader_of(reached.id), into.names
    path = path_for_sink(replay.log, replay.options, in_stores=True)
    copied = copied_batch(reader, path, names, planned, held, expires=True)
    return PieceLeft(left, copied)


if __name__ == "__main__":
    run(app)
