"""What stands for a streaming reader that cannot be made, and says why when it is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader

from kafkalog.streaming.spark.versions import SupportsTriggerAvailableNow

if TYPE_CHECKING:
    from pyspark.sql.datasource import InputPartition

    from kafkalog.streaming.source.offsets import OffsetJson

__all__ = ["RefusedStreamReader"]


class RefusedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises the reason at the first call, which comes at once.

    If ``streamReader`` itself raised, Spark's ``python_streaming_source_runner`` would stop a
    reader that it has not got. The last line that the user sees would be an error about a variable.
    """

    def __init__(self, reason: Exception) -> None:
        self._reason = reason

    def prepareForTriggerAvailableNow(self) -> NoReturn:  # noqa: N802
        """Raise the reason."""
        raise self._reason

    def getDefaultReadLimit(self) -> NoReturn:  # noqa: N802
        """Raise the reason."""
        raise self._reason

    def initialOffset(self) -> NoReturn:  # noqa: N802
        """Raise the reason."""
        raise self._reason

    def latestOffset(self, *asked: object) -> NoReturn:  # noqa: ARG002, N802
        """Raise the reason."""
        raise self._reason

    def partitions(self, start: OffsetJson, end: OffsetJson) -> NoReturn:  # noqa: ARG002
        """Raise the reason."""
        raise self._reason

    def read(self, partition: InputPartition) -> NoReturn:  # noqa: ARG002
        """Raise the reason."""
        raise self._reason
