"""What Spark looks for: a module ``pyspark_*`` whose ``DefaultSource`` it registers by itself.

Spark imports this module at the first look-up of *any* Python data source, and an error here would
hide every other one, so all it imports stays light.
"""

from kafkalog.streaming.spark.datasource import KafkaLogDataSource as DefaultSource

__all__ = ["DefaultSource"]
