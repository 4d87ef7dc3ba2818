"""Every error that kafkalog raises on purpose.

::

    KafkaLogError
    ├── OptionError (ValueError)         an option or setting that cannot be used as given
    ├── InvalidTopicError (ValueError)   a topic name or partition that Kafka's rules forbid
    ├── UnknownTopicOrPartitionError     asked for what the log directories do not hold
    ├── LogDirectoryError                a log directory missing, strange, or held by another
    ├── OffsetOutOfRangeError            below the log start offset or beyond the log end offset
    ├── DataLossError                    offsets that were promised are gone: see failOnDataLoss
    │   └── LostSegmentError             a segment that a remote tier names has no log
    ├── CorruptRecordError               bytes that are no valid batch, message set or record
    │   ├── ChecksumMismatchError        the bytes do not match the checksum they carry
    │   ├── DecompressedTooLargeError    a batch whose decompressed size exceeds the bound given
    │   ├── UnsupportedFormatError       a magic or version from the future
    │   └── UnsupportedCodecError        compression bits that name no codec of that magic
    ├── CorruptIndexError                an index that contradicts itself; readers scan instead
    ├── RecordTooLargeError              a record that does not fit max.message.bytes
    ├── TimestampOutOfRangeError         a timestamp that no Spark timestamp can hold
    ├── RowError (ValueError)            a row that cannot become a record
    ├── SchemaError (ValueError)         a schema that cannot be read, or gives no column
    ├── SpillError                       what does not fit in memory cannot be written to disk
    ├── MissingPackageError              a package that kafkalog needs is not installed here
    ├── CheckpointError                  a state or checkpoint file that cannot be read or trusted
    ├── TargetMismatchError              a batch that does not continue what its target holds
    ├── DurabilityError                  committed, visible, and may not survive a loss of power
    ├── UnknownOutcomeError              an object store did not tell whether a batch is committed
    └── CommitError                      a micro-batch was not committed; nothing of it is visible
        ├── LockTimeoutError             another writer holds the directory
        ├── FencedWriterError            a newer run of the same query has taken over
        ├── FencedMemberError            a member of a group no longer has what it commits
        ├── NotEnoughReplicasError       fewer nodes, or replicas in sync, than are asked for
        └── BatchIdentityError           cannot be proved to be the same, or the next, batch

Spark hands the driver nothing but the text of an exception, so the message alone locates the fault:
which path, topic partition, offset and byte position; what was found and expected; what to do. The
same facts are kept as attributes for callers in Python.

All of them can be pickled: attributes are set through keyword arguments that have defaults.
"""

from __future__ import annotations

from typing import ClassVar

from kafkalog.texts import printable

__all__ = [
    "BatchIdentityError",
    "CheckpointError",
    "ChecksumMismatchError",
    "CommitError",
    "CorruptIndexError",
    "CorruptRecordError",
    "DataLossError",
    "DecompressedTooLargeError",
    "DurabilityError",
    "FencedMemberError",
    "FencedWriterError",
    "InvalidTopicError",
    "KafkaLogError",
    "LockTimeoutError",
    "LogDirectoryError",
    "LostSegmentError",
    "MissingPackageError",
    "NotEnoughReplicasError",
    "OffsetOutOfRangeError",
    "OptionError",
    "RecordTooLargeError",
    "RowError",
    "SchemaError",
    "SpillError",
    "TargetMismatchError",
    "TimestampOutOfRangeError",
    "UnknownOutcomeError",
    "UnknownTopicOrPartitionError",
    "UnsupportedCodecError",
    "UnsupportedFormatError",
]


class KafkaLogError(Exception):
    """Base of all errors here.

    ``retriable`` says whether the same call may succeed later, ``remedy`` what to do. Both belong
    to the class; the message of an error says more.
    """

    retriable: ClassVar[bool] = False
    remedy: ClassVar[str] = ""

    def __str__(self) -> str:
        """Return the message; see :func:`kafkalog.texts.printable`."""
        return printable(super().__str__())


class OptionError(KafkaLogError, ValueError):
    """An option or topic setting that cannot be used as given; names it and what it accepts."""

    remedy: ClassVar[str] = (
        "Correct the option that is named. docs/options.md lists all of them; the sentence "
        "names the nearest known one."
    )


class InvalidTopicError(KafkaLogError, ValueError):
    """A topic name or partition number that Kafka's rules forbid (Kafka ``Topic.validate``)."""

    remedy: ClassVar[str] = (
        "Use ASCII letters, digits, `.`, `_` and `-`, at most 249 of them, and a partition "
        "that the topic has."
    )


class UnknownTopicOrPartitionError(KafkaLogError):
    """A topic or partition that none of the log directories holds.

    ``offset`` is the next one that was to be read when its folder was found gone; -1 elsewhere.
    """

    remedy: ClassVar[str] = (
        "Run `kafkalog topic list PATH` to see what is there. If it was there, look whether a "
        "directory is not mounted, or the topic was deleted."
    )

    def __init__(self, message: str, *, offset: int = -1) -> None:
        super().__init__(message)
        self.offset = offset


class LogDirectoryError(KafkaLogError):
    """A log directory that is missing, not readable, strange, or held by a broker."""

    remedy: ClassVar[str] = (
        "Look whether the folder is the log directory itself, is mounted on each machine and "
        "may be read. A directory in which a broker lived is written with the option "
        "`allowBrokerDirectory=true`, by each query. Run `kafkalog broker takeover` before: it "
        "settles what the broker left open, and without it a write that could lose records is "
        "refused. After a loss of "
        "power run `kafkalog recover --accept-os-loss`, if the sentence says so."
    )


class MissingPackageError(KafkaLogError):
    """A Python package that kafkalog needs is not installed where this ran."""

    remedy: ClassVar[str] = (
        "Install kafkalog with pip in the Python that the sentence names: that brings its "
        "packages. On a cluster this is the Python of each worker (`spark.pyspark.python`); or "
        "send the archive that `make bundle` builds by `--archives`. A zip alone has none of them."
    )


class OffsetOutOfRangeError(KafkaLogError):
    """An offset below the log start offset or beyond the log end offset."""

    remedy: ClassVar[str] = (
        "Run `kafkalog topic offsets PATH` to see where the log starts and ends, and ask for an "
        "offset between them."
    )

    def __init__(
        self,
        message: str,
        *,
        offset: int = -1,
        log_start_offset: int = -1,
        log_end_offset: int = -1,
    ) -> None:
        super().__init__(message)
        self.offset = offset
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset


class DataLossError(KafkaLogError):
    """Offsets that a query was promised are gone (Spark's ``KAFKA_DATA_LOSS`` conditions)."""

    remedy: ClassVar[str] = (
        "Find out why the offsets are gone: retention, a deleted topic, a directory that is "
        "not mounted. To go on without them, set `failOnDataLoss=false`."
    )


class LostSegmentError(DataLossError):
    """A segment of a remote tier is named there, and its log is gone.

    From now on it is left out: who looks again finds the gap that it leaves.
    """

    remedy: ClassVar[str] = (
        "See what deletes objects there. `failOnDataLoss=false` reads on without them."
    )


class CorruptRecordError(KafkaLogError):
    """Bytes that are no valid batch, message set or record.

    ``path`` is the file ("" for bytes in memory), ``position`` the byte position of the batch in
    it, ``offset`` the batch's base offset as far as it could be read (-1 if not).
    """

    remedy: ClassVar[str] = (
        "Run `kafkalog verify PATH`. On several nodes `kafkalog recover PATH` copies the file from "
        "another replica. Else restore it from a copy; if there is none, `kafkalog salvage PATH` "
        "shows what would be lost, and drops it."
    )

    def __init__(
        self, message: str, *, path: str = "", position: int = -1, offset: int = -1
    ) -> None:
        super().__init__(message)
        self.path = path
        self.position = position
        self.offset = offset


class ChecksumMismatchError(CorruptRecordError):
    """A batch whose bytes do not match the checksum it carries."""

    remedy: ClassVar[str] = (
        "As for `CorruptRecordError`. Look at the disk, too: bytes have changed after they "
        "were written."
    )


class CorruptIndexError(KafkaLogError):
    """An index file that contradicts itself; readers log it and scan the segment instead."""

    remedy: ClassVar[str] = (
        "Nothing for reading: the segment is scanned instead. `kafkalog recover PATH` "
        "corrects indexes of active segments, `python -m kafkalog.jobs.rebuild PATH` all."
    )


class DecompressedTooLargeError(CorruptRecordError):
    """A batch that grows beyond the bound on decompressed bytes; the message names both sizes."""

    remedy: ClassVar[str] = (
        "If the batch is sound, raise `maxDecompressedBytes`. If not, as for `CorruptRecordError`."
    )


class UnsupportedFormatError(CorruptRecordError):
    """A magic byte, or a version of a file of ours, that this release does not know."""

    remedy: ClassVar[str] = (
        "Install the release that wrote the file, or a later one. If there is none, the "
        "file is damaged: as for `CorruptRecordError`."
    )


class UnsupportedCodecError(CorruptRecordError):
    """Compression bits that name no codec, or none that the batch's magic may use."""

    remedy: ClassVar[str] = "As for `CorruptRecordError`: no release of Kafka writes such batches."


class RecordTooLargeError(KafkaLogError):
    """A record that does not fit ``max.message.bytes`` even alone in its batch."""

    remedy: ClassVar[str] = (
        "Give the topic a larger `max.message.bytes` or `segment.bytes`, as the sentence says, or "
        "write a smaller record."
    )


class TimestampOutOfRangeError(KafkaLogError):
    """A timestamp whose µs overflow an int64 (Spark's ``KAFKA_MALFORMED_RECORD_TIMESTAMP``)."""

    remedy: ClassVar[str] = (
        "Set `onTimestampOverflow`, which says what becomes of such a timestamp."
    )


class RowError(KafkaLogError, ValueError):
    """A row that cannot become a record: its topic, partition, headers or timestamp."""

    remedy: ClassVar[str] = (
        "Correct the row before it comes to the sink; docs/sink.md says which columns and "
        "values there are."
    )


class SchemaError(KafkaLogError, ValueError):
    """A schema of a registry, or one that was given, that cannot be read or gives no column."""

    remedy: ClassVar[str] = (
        "Let `schema.value` or `schema.key` name another one, such as `version:3`, or give its "
        "text. Without `decode.value` and `decode.key`, keys and values are bytes."
    )


class SpillError(KafkaLogError):
    """What a task cannot keep in memory cannot be written to a local directory, or read again."""

    remedy: ClassVar[str] = (
        "Make room in the folder that is named, let `SPARK_LOCAL_DIRS` name another one, or raise "
        "`table.memory`."
    )


class CheckpointError(KafkaLogError):
    """A checkpoint or state file that cannot be read or must not be trusted.

    ``fault`` says what is wrong with a file that is damaged, and not what to do about it: "" where
    it may be sound, as one of a later release.
    """

    remedy: ClassVar[str] = (
        "Do what the sentence says. On several nodes `kafkalog recover PATH` rebuilds the file "
        "from the others. Else restore it from a backup of the whole set, after `kafkalog verify "
        "PATH`. Do not delete a `kafkalog.commit` alone: it says what is committed."
    )

    def __init__(self, message: str, *, fault: str = "") -> None:
        super().__init__(message)
        self.fault = fault


class TargetMismatchError(KafkaLogError):
    """A pipeline's batch that does not continue what its target holds; nothing of it was written.

    The target, its checkpoint or the log is of another time than the others, or another one.
    """

    remedy: ClassVar[str] = (
        "Do what the sentence says. `--from-target` continues where the target ends, "
        "`--rebuild` empties it and takes all that the source has, and another target with another "
        "`--checkpoint` leaves it as it is."
    )


class DurabilityError(KafkaLogError):
    """Rows are committed and visible, and a loss of power may take them away.

    To write them again as new rows would double them. The same batch of a query, or the same
    version under the same id, is skipped when it comes again, and made durable.
    """

    remedy: ClassVar[str] = (
        "Do not write the rows as new ones. Repeat the same batch or version, once the disk "
        "is well: it is skipped, and made durable."
    )


class UnknownOutcomeError(KafkaLogError):
    """An object store did not tell whether a batch is committed; it may still appear.

    The same batch of a query, or the same version under the same id, is skipped if it is there.
    """

    remedy: ClassVar[str] = (
        "Repeat the same batch or version once the store answers again: it is skipped if it is "
        "there. Do not write the rows as new ones before you have looked for them."
    )


class CommitError(KafkaLogError):
    """A micro-batch could not be committed; nothing of it is visible and it may be tried again."""

    remedy: ClassVar[str] = (
        "Try again: a query that is started again writes the batch anew. If it comes back, "
        "the sentence names what stands in the way."
    )

    retriable: ClassVar[bool] = True


class LockTimeoutError(CommitError):
    """Another writer held the log directories for longer than the time allowed."""

    remedy: ClassVar[str] = (
        "Wait for the writer that is named, or end it. `max.block.ms` is how long a writer waits."
    )


class FencedWriterError(CommitError):
    """A newer run of the same query has taken over; this one must stop."""

    remedy: ClassVar[str] = (
        "Stop this run: another one of the same query writes. Let only one of them run."
    )

    retriable: ClassVar[bool] = False


class NotEnoughReplicasError(CommitError):
    """Fewer nodes live, or fewer replicas are in sync, than the set or the topic asks for.

    As Kafka's ``NotEnoughReplicasException``: nothing of the batch is visible.
    """

    retriable = True
    remedy: ClassVar[str] = (
        "Bring the nodes back that the sentence names (`kafkalog node list PATH` lists them), and "
        "try again. `kafka.acks=1` does not ask for `min.insync.replicas`, and a majority of the "
        "nodes is needed in any case."
    )


class FencedMemberError(CommitError):
    """A member of a consumer group does not have, or did not keep, the partitions it commits.

    The group went on without it, or the group stands elsewhere than what it read begins. Nothing of
    what it commits is written; it has to join again.
    """

    remedy: ClassVar[str] = (
        "Close the consumer and make another one. Its rows come again, to whoever has the "
        "partitions now."
    )

    retriable: ClassVar[bool] = False


class BatchIdentityError(CommitError):
    """A batch that is neither the next one nor the last one again; says how to continue."""

    remedy: ClassVar[str] = (
        "Do what the sentence says. Most often the checkpoint and the log are of different "
        "times: restore both from the same one. Set `allowUnknownCheckpoint=true` only for a query "
        "that these directories never knew: it looks the same when a mount is missing."
    )

    retriable: ClassVar[bool] = False
