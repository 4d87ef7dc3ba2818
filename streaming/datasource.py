"""The data source that Spark finds as ``kafkalog``."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource


class KafkaLogDataSource(DataSource):
    """Reads and writes Kafka log directories."""

    @classmethod
    def name(cls) -> str:
        """Give the short name of the format."""
        return "kafkalog"
