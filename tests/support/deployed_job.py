"""A program that uses source and sink as any user's would: ``deployed_job.py FOLDER``.

Where Spark runs is for its settings to say: ``SPARK_REMOTE`` or ``--master`` of spark-submit. It
writes a topic, streams it into another one, and prints what a query over a view of that gives.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

ROWS = 300


def main(folder: str) -> None:
    """Run it."""
    log = f"{folder}/log"
    spark = SparkSession.builder.getOrCreate()
    rows = spark.range(0, ROWS, 1, 4).selectExpr(
        "CAST(id AS STRING) AS key", "concat('row ', id) AS value"
    )
    writer = rows.write.format("kafkalog").mode("append")
    writer.option("topic", "first").option("numPartitions", "3").save(log)
    reader = spark.readStream.format("kafkalog").option("subscribe", "first")
    stream = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "200")
    copy = stream.load(log).select("key", "value").writeStream.format("kafkalog")
    copy = copy.option("topic", "second").option("checkpointLocation", f"{folder}/checkpoint")
    for _ in range(2):  # on Spark 4.0 and 4.1 a run with a limit is one micro-batch
        copy.trigger(availableNow=True).start(log).awaitTermination()
        found = spark.read.format("kafkalog").option("subscribe", "second").load(log)
        found.createOrReplaceTempView("copied")
        (row,) = spark.sql(
            "SELECT count(*), count(DISTINCT CAST(value AS STRING)), max(offset) + 1 FROM copied"
        ).collect()
        if row[0] >= ROWS:
            break
    shown = {"kind": type(spark).__module__, "rows": row[0], "distinct": row[1], "offsets": row[2]}
    print(json.dumps(shown))  # noqa: T201
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
