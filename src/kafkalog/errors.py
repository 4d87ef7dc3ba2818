"""Every error that kafkalog raises on purpose.

::

    KafkaLogError
    ├── OptionError (ValueError)         an option or setting that cannot be used as given
    ├── InvalidTopicError (ValueError)   a topic name or partition that Kafka's rules forbid
    ├── UnknownTopicOrPartitionError     asked for what the log directories do not hold
    ├── LogDirectoryError                a log directory missing, strange, or held by another
    ├── OffsetOutOfRangeError            below the log start offset or beyond the log end offset
    ├── DataLossError                    offsets that were promised are gone: see failOnDataLoss
    ├── CorruptRecordError               bytes that are no valid batch, message set or record
    │   ├── ChecksumMismatchError        the bytes do not match the checksum they carry
    │   ├── DecompressedTooLargeError    a batch whose decompressed size exceeds the bound given
    │   ├── UnsupportedFormatError       a magic or version from the future
    │   └── UnsupportedCodecError        compression bits that name no codec of that magic
    ├── CorruptIndexError                an index that contradicts itself; readers scan instead
    ├── RecordTooLargeError              a record that does not fit ``max.message.bytes``
    ├── TimestampOutOfRangeError         a timestamp that no Spark timestamp can hold
    ├── RowError (ValueError)            a row that cannot become a record
    ├── SpillError                       what does not fit in memory cannot be written to disk
    ├── CheckpointError                  a state or checkpoint file that cannot be read or trusted
    ├── DurabilityError                  committed, visible, and may not survive a loss of power
    └── CommitError                      a micro-batch was not committed; nothing of it is visible
        ├── LockTimeoutError             another writer holds the directory
        ├── FencedWriterError            a newer run of the same query has taken over
        ├── FencedMemberError            a member of a group no longer has what it commits
        └── BatchIdentityError           cannot be proved to be the same, or the next, batch

Spark hands the driver nothing but the text of an exception, so the message alone locates the fault:
which path, topic partition, offset and byte position; what was found and expected; what to do. The
same facts are kept as attributes for callers in Python.

All of them can be pickled: attributes are set through keyword arguments that have defaults.
"""

from __future__ import annotations

from typing import ClassVar

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
    "OffsetOutOfRangeError",
    "OptionError",
    "RecordTooLargeError",
    "RowError",
    "SpillError",
    "TimestampOutOfRangeError",
    "UnknownTopicOrPartitionError",
    "UnsupportedCodecError",
    "UnsupportedFormatError",
]


class KafkaLogError(Exception):
    """Base of all errors here; ``retriable`` says whether the same call may succeed later."""

    retriable: ClassVar[bool] = False


class OptionError(KafkaLogError, ValueError):
    """An option or topic setting that cannot be used as given; names it and what it accepts."""


class InvalidTopicError(KafkaLogError, ValueError):
    """A topic name or partition number that Kafka's rules forbid (Kafka ``Topic.validate``)."""


class UnknownTopicOrPartitionError(KafkaLogError):
    """A topic or partition that none of the log directories holds.

    ``offset`` is the next one that was to be read when its folder was found gone; -1 elsewhere.
    """

    def __init__(self, message: str, *, offset: int = -1) -> None:
        super().__init__(message)
        self.offset = offset


class LogDirectoryError(KafkaLogError):
    """A log directory that is missing, not readable, strange, or held by a broker."""


class OffsetOutOfRangeError(KafkaLogError):
    """An offset below the log start offset or beyond the log end offset."""

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


class CorruptRecordError(KafkaLogError):
    """Bytes that are no valid batch, message set or record.

    ``path`` is the file ("" for bytes in memory), ``position`` the byte position of the batch in
    it, ``offset`` the batch's base offset as far as it could be read (-1 if not).
    """

    def __init__(
        self, message: str, *, path: str = "", position: int = -1, offset: int = -1
    ) -> None:
        super().__init__(message)
        self.path = path
        self.position = position
        self.offset = offset


class ChecksumMismatchError(CorruptRecordError):
    """A batch whose bytes do not match the checksum it carries."""


class CorruptIndexError(KafkaLogError):
    """An index file that contradicts itself; readers log it and scan the segment instead."""


class DecompressedTooLargeError(CorruptRecordError):
    """A batch that grows beyond the bound on decompressed bytes; the message names both sizes."""


class UnsupportedFormatError(CorruptRecordError):
    """A magic byte, or a version of a file of ours, that this release does not know."""


class UnsupportedCodecError(CorruptRecordError):
    """Compression bits that name no codec, or none that the batch's magic may use."""


class RecordTooLargeError(KafkaLogError):
    """A record that does not fit ``max.message.bytes`` even alone in its batch."""


class TimestampOutOfRangeError(KafkaLogError):
    """A timestamp whose µs overflow an int64 (Spark's ``KAFKA_MALFORMED_RECORD_TIMESTAMP``)."""


class RowError(KafkaLogError, ValueError):
    """A row that cannot become a record: its topic, partition, headers or timestamp."""


class SpillError(KafkaLogError):
    """What a task cannot keep in memory cannot be written to a local directory, or read again."""


class CheckpointError(KafkaLogError):
    """A checkpoint or state file that cannot be read or must not be trusted."""


class DurabilityError(KafkaLogError):
    """Rows are committed and visible, and a loss of power may take them away.

    To write them again as new rows would double them. The same batch of a query, or the same
    version under the same id, is skipped when it comes again, and made durable.
    """


class CommitError(KafkaLogError):
    """A micro-batch could not be committed; nothing of it is visible and it may be tried again."""

    retriable: ClassVar[bool] = True


class LockTimeoutError(CommitError):
    """Another writer held the log directories for longer than the time allowed."""


class FencedWriterError(CommitError):
    """A newer run of the same query has taken over; this one must stop."""

    retriable: ClassVar[bool] = False


class FencedMemberError(CommitError):
    """A member of a consumer group does not have, or did not keep, the partitions it commits.

    The group went on without it, or the group stands elsewhere than what it read begins. Nothing of
    what it commits is written; it has to join again.
    """

    retriable: ClassVar[bool] = False


class BatchIdentityError(CommitError):
    """A batch that is neither the next one nor the last one again; says how to continue."""

    retriable: ClassVar[bool] = False
