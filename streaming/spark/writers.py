"""The sink as Spark sees it: thin classes that hand over to tasks and to the commit.

Spark makes a writer for each micro-batch in one process. It runs ``write`` on copies in tasks, and
``commit`` or ``abort`` on another copy in a third process. Tasks know what the driver does not: the
query's id, the run, the batch. That travels in the commit messages.

A batch write gets its identity from ``txnAppId`` and ``txnVersion``. It takes none from a query
that it runs inside of (``foreachBatch``): two writes of one batch would be taken for one.
"""

from __future__ import annotations

import kafkalog.streaming.records  # noqa: F401 - first: it says which package is missing

# isort: split
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from kafkalog.checkpoints.query_checkpoint import QueryCheckpoint
from kafkalog.errors import CommitError, OptionError
from kafkalog.files.paths import refuse_among_logs
from kafkalog.files.system import once_per_process, remembered, system
from kafkalog.streaming.commit.staging.staged_run import RowDigest
from kafkalog.streaming.options.bridge import crosses_border
from kafkalog.streaming.options.declaring import warn_ignored
from kafkalog.streaming.sink.row_columns import check_columns
from kafkalog.streaming.sink.write_options import WriteOptions, WritePlan
from kafkalog.streaming.spark.versions import StreamArrowWriter
from kafkalog.streaming.spark.worker import freeze_planner, show_warnings, task_of_spark
from kafkalog.streaming.store.identity import APP_PREFIX, BatchIdentity
from kafkalog.streaming.store.session import existing_log_dirs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.commit.preserved_offsets import CopiedBatch, CopiedEnd
    from kafkalog.streaming.commit.staging.staged_files import AttachedRecords
    from kafkalog.streaming.commit.staging.staged_run import StagedRun, TaskOutput
    from kafkalog.streaming.groups.planned_commit import Planned
    from kafkalog.streaming.store.session import Condition

__all__ = [
    "LogBatchWriter",
    "LogStreamWriter",
    "StagedMessage",
    "make_batch_writer",
    "make_stream_writer",
]

_LOGGER: Final = logging.getLogger("kafkalog.sink")

_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
_RUN_ID: Final = "spark.jobGroup.id"
"""What Spark sets for the tasks of a streaming query; its job group is named by the run."""


@dataclass(frozen=True)
class StagedMessage(WriterCommitMessage):
    """What one task has staged."""

    output: TaskOutput


def make_stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> StreamArrowWriter:
    """Make the writer of one micro-batch.

    In complete mode (``overwrite``) rows are appended all the same, as Spark's Kafka sink does: a
    log has nothing that could be replaced.

    Raises:
        OptionError, RowError: options or columns that cannot be used.
        LogDirectoryError, CheckpointError: directories that may not be written.
    """
    del overwrite
    plan = _plan(options, schema)
    location = plan.options.checkpoint_location
    if plan.bucket is None:
        refuse_among_logs("option 'checkpointLocation'", location, plan.options.paths)
    checkpoint = QueryCheckpoint.at(location, plan.options.storage)
    planned = _planned_by_source(plan.options, checkpoint)
    is_told = checkpoint is not None or planned is not None
    return LogStreamWriter(replace(plan, digests_rows=not is_told, planned=planned))


def make_batch_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceArrowWriter:
    """Make the writer of one batch write, which can only append.

    Raises:
        OptionError, RowError: options or columns that cannot be used; ``mode("overwrite")``.
        LogDirectoryError, CheckpointError: directories that may not be written.
    """
    if overwrite:
        raise OptionError(
            'a log is only appended to: write with mode("append"); a stream in update mode does so '
            "in foreachBatch"
        )
    if "path" not in options:
        raise OptionError(
            "option 'path' is missing: save(path) names the log directories. Spark hands no "
            "options of a table to a Python data source: INSERT INTO a temporary view (CREATE "
            "TEMPORARY VIEW … USING kafkalog OPTIONS (path …, subscribe …)), or save a DataFrame"
        )
    plan = _plan(options, schema)
    given = plan.options
    if given.group is not None:
        warn_ignored(("kafka.group.id", "kafka.group.instance.id"))
    if given.txn_app_id is None or given.txn_version is None:
        identity = BatchIdentity(f"job:{system.random_id()}", 0)
    else:
        writer = f"{APP_PREFIX}{given.txn_app_id}"
        identity = BatchIdentity(writer, given.txn_version, topic=given.topic)
    return LogBatchWriter(plan, identity)


def _plan(options: Mapping[str, str], schema: StructType) -> WritePlan:
    parsed = WriteOptions.parse(options)
    warn_ignored(parsed.ignored)
    columns = [(field.name, field.dataType.simpleString()) for field in schema.fields]
    check_columns(
        columns, topic_given=parsed.topic is not None, keeps_offsets=parsed.preserve_offsets
    )
    planned = WritePlan.of(parsed, at_once=True)
    freeze_planner()
    return planned


def _planned_by_source(options: WriteOptions, checkpoint: QueryCheckpoint | None) -> Planned | None:
    """Find what the query's source has planned, where the sink joins in its group."""
    if options.group is None:
        return None
    from kafkalog.streaming.groups.planned_commit import Planned  # noqa: PLC0415

    _refuse_state(options, checkpoint)
    directories = existing_log_dirs(options.paths)
    return Planned.find(directories, *options.group, options.policy)


def _refuse_state(options: WriteOptions, checkpoint: QueryCheckpoint | None) -> None:
    if checkpoint is not None and checkpoint.has_state:
        raise OptionError(
            f"the query with the checkpoint at {options.checkpoint_location} keeps state, and "
            "cannot publish positions of a group (kafka.group.id, kafka.group.instance.id): when a "
            "partition moves, rows of a key change queries, and its state stays. Nothing was "
            "written"
        )


class LogStreamWriter(StreamArrowWriter):
    """Writes one micro-batch of a streaming query."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan

    @crosses_border
    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        """Stage the rows of one task."""
        context = _task_context()
        query_id = context.getLocalProperty(_QUERY_ID)
        batch_id = context.getLocalProperty(_BATCH_ID)
        if query_id is None or batch_id is None:
            raise CommitError("this task belongs to no streaming query, by what Spark says of it")
        named = self._plan.options.transactional_id
        identity = BatchIdentity(
            writer=f"query:{named or query_id}",
            batch_id=int(batch_id),
            run_id=context.getLocalProperty(_RUN_ID) or "",
        )
        return _stage(self._plan, identity, iterator, query_id)

    @crosses_border
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Publish the micro-batch, unless it is published already."""
        from kafkalog.streaming.commit.append import AppenderCache  # noqa: PLC0415
        from kafkalog.streaming.commit.committer import Committer  # noqa: PLC0415

        outputs = _outputs(messages)
        if not outputs:
            raise CommitError(f"batch {batchId} comes without a message from any task")
        identities = {output.identity for output in outputs}
        first = outputs[0]
        if len(identities) > 1 or first.identity.batch_id != batchId:
            raise CommitError(f"tasks of different batches are to be committed as {batchId}")
        given = self._plan.options
        checkpoint = QueryCheckpoint.of_query(
            given.checkpoint_location, first.query_id, given.storage
        )
        digest = (checkpoint and checkpoint.digest(batchId)) or self._digest_of(outputs)
        identity = replace(first.identity, digest=digest)
        ends = _ends(checkpoint, batchId) if self._plan.options.preserve_ends else None
        if self._plan.bucket is not None:
            _commit_in_bucket(self._plan, identity, outputs, checkpoint, ends)
            return
        conditions, attached_records = self._attach(outputs, checkpoint, batchId)
        committer = Committer(
            self._plan.commit_plan,
            identity,
            checkpoint=checkpoint,
            appenders=remembered(AppenderCache),
            conditions=conditions,
            attached_records=attached_records,
            ends=ends,
        )
        outcome = committer.commit(_runs(outputs))
        if self._plan.planned is not None and not outcome.appended:
            self._plan.planned.skipped(self._plan.directories, self._plan.options.policy)
        if not self._plan.options.preserve_ends:  # else it is a copy: who makes it moves its starts
            _retain(self._plan)
        freeze_planner()

    def _attach(
        self, outputs: Sequence[TaskOutput], checkpoint: QueryCheckpoint | None, batch_id: int
    ) -> tuple[Sequence[Condition], Sequence[AttachedRecords]]:
        """Return what a query of a group commits with its rows, and under which condition."""
        planned = self._plan.planned
        if planned is None:
            return (), ()
        _refuse_state(self._plan.options, checkpoint)
        ends = None if checkpoint is None else checkpoint.sources(batch_id)
        nonces = {output.nonce for output in outputs}
        policy = self._plan.options.policy
        condition, attached_records = planned.attach(self._plan.directories, policy, nonces, ends)
        return (condition,), attached_records

    def _digest_of(self, outputs: Sequence[TaskOutput]) -> str:
        """Tell the batch by its plan or by its rows, where its checkpoint cannot be read."""
        location, query_id = self._plan.options.checkpoint_location, outputs[0].query_id
        if self._plan.planned is not None:
            return f"plan {self._plan.planned.digest} of query {query_id}"
        digests = [output.digest for output in outputs if output.digest is not None]
        if len(digests) < len(outputs):
            raise CommitError(
                f"the checkpoint at {location} was there when the batch began, and does not tell "
                f"now what query {query_id} has planned: it was removed, or is another query's "
                "and this one's lies on another file system (write its scheme, as in hdfs:///…). "
                "Nothing was written"
            )
        _warn_of_unread_checkpoint(query_id, location)
        return f"{RowDigest.sum(digests)} of query {query_id}"

    @crosses_border
    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002
        """Drop what was staged; the rest, of tasks that sent no message, is swept later."""
        _abort(self._plan, _outputs(messages))


class LogBatchWriter(DataSourceArrowWriter):
    """Writes one batch query; the driver has given it its identity."""

    def __init__(self, plan: WritePlan, identity: BatchIdentity) -> None:
        self._plan = plan
        self._identity = identity

    @crosses_border
    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        """Stage the rows of one task."""
        return _stage(self._plan, self._identity, iterator, "")

    @crosses_border
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publish the rows."""
        from kafkalog.streaming.commit.committer import Committer  # noqa: PLC0415
        from kafkalog.streaming.commit.versions import with_digests  # noqa: PLC0415

        show_warnings()
        outputs, given = _outputs(messages), self._plan.options
        identity = with_digests(self._identity, outputs, given.topic)
        copied = given.copied
        ends = copied.ends if copied is not None and given.preserve_ends else None
        if self._plan.bucket is not None:
            _commit_in_bucket(self._plan, identity, outputs, ends=ends, copied=copied)
            return
        committer = Committer(self._plan.commit_plan, identity, ends=ends, copied=copied)
        committer.commit(_runs(outputs))
        if ends is None:  # else it is a copy: who makes it moves its starts
            _retain(self._plan)
        freeze_planner()

    @crosses_border
    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Drop what was staged."""
        _abort(self._plan, _outputs(messages))


def _ends(checkpoint: QueryCheckpoint | None, batch_id: int) -> dict[TopicPartition, CopiedEnd]:
    """Tell from a query's checkpoint where logs end after a batch, and where they did before it."""
    from kafkalog.streaming.commit.preserved_offsets import CopiedEnd  # noqa: PLC0415

    if checkpoint is None:
        raise OptionError(
            "option 'preserveEnds' needs a checkpointLocation that can be read from here, a local "
            "folder or one in an object store: what it planned to read tells where logs end. "
            "Nothing was written"
        )
    before = checkpoint.ends(batch_id - 1)
    return {key: CopiedEnd(end, before.get(key)) for key, end in checkpoint.ends(batch_id).items()}


@once_per_process
def _warn_of_unread_checkpoint(query_id: str, location: str | None) -> None:
    """Say it once for each query that a process commits for."""
    where = f"at {location}" if location else "whose option checkpointLocation is not set"
    _LOGGER.warning(
        "query %s: its checkpoint (%s) cannot be read from here. Should its last batch come again, "
        "it is told by its rows: if they differ from run to run, it will be refused",
        query_id,
        where,
    )


def _task_context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise CommitError("rows are staged in tasks of Spark only")
    return context


def _stage(
    plan: WritePlan, identity: BatchIdentity, batches: Iterator[pa.RecordBatch], query_id: str
) -> StagedMessage:
    from kafkalog.streaming.sink.task_writer import TaskWriter  # noqa: PLC0415

    number = _task_context().partitionId()
    writer = TaskWriter(plan, identity, number=number, query_id=query_id)
    with task_of_spark():
        return StagedMessage(writer.write(batches))


def _commit_in_bucket(
    plan: WritePlan,
    identity: BatchIdentity,
    outputs: Sequence[TaskOutput],
    checkpoint: QueryCheckpoint | None = None,
    ends: Mapping[TopicPartition, CopiedEnd] | None = None,
    copied: CopiedBatch | None = None,
) -> None:
    from kafkalog.streaming.commit.bucket_commit import commit_batch  # noqa: PLC0415

    assert plan.bucket is not None  # noqa: S101 - who calls it has looked
    if checkpoint is not None:
        checkpoint.sync(identity.batch_id)
    runs = _runs(outputs)
    commit_batch(plan.bucket, plan.commit_plan, identity, runs, ends=ends, copied=copied)
    freeze_planner()


def _abort(plan: WritePlan, outputs: Sequence[TaskOutput]) -> None:
    from kafkalog.streaming.commit.committer import Committer  # noqa: PLC0415

    if outputs and plan.bucket is None:  # in a bucket, what was staged may be in a commit yet
        Committer(plan.commit_plan, outputs[0].identity).abort(_runs(outputs))


def _retain(plan: WritePlan) -> None:
    """Delete what has expired, now and then: the batch is committed, whatever comes of it."""
    from kafkalog.streaming.admin.retention import retain_if_due  # noqa: PLC0415

    given = plan.options
    retain_if_due(plan.directories, given.policy, given.retention_check_interval_ms)


def _outputs(messages: Sequence[WriterCommitMessage | None]) -> list[TaskOutput]:
    """Take the messages of the tasks that succeeded, in the order of the tasks."""
    return [message.output for message in messages if isinstance(message, StagedMessage)]


def _runs(outputs: Sequence[TaskOutput]) -> list[StagedRun]:
    return [run for output in outputs for run in output.runs]
