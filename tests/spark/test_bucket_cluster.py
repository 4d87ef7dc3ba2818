"""A log in a bucket on a cluster whose machines share no path, with kafkalog as a zip."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Final

import pytest
from tests.support.distributions import build, environment_without_kafkalog
from tests.support.object_servers import S3_KEY
from tests.support.object_store import Request, object_store
from tests.support.quick_jvm import QUICK
from tests.support.spark_cluster import Cluster, Submitted

pytestmark = [pytest.mark.spark, pytest.mark.nightly]

SETTINGS: Final = {
    "spark.driver.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": " ".join(QUICK),
    "spark.ui.enabled": "false",
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1",
    "spark.log.level": "WARN",
}
JOB: Final = """
import json, sys
from pathlib import Path
import pyarrow as pa
from pyspark.sql import SparkSession
import kafkalog
from kafkalog.jobs.session import register

place, folder, options = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
rows = pa.table({"value": [f"{n}" * 90_000 for n in range(40)],
                 "partition": pa.array([n % 4 for n in range(40)], pa.int32())})
given = {"numPartitions": "4", "max.message.bytes": "8m", "compression.type": "none"}
kafkalog.append(place, "a", rows, options={**options, **given})  # the driver uses it first

spark = SparkSession.builder.getOrCreate()
register(spark)
there = spark.sparkContext.parallelize(range(8), 8).map(lambda _: (folder / "driver").exists())
seen = set(there.collect())
reader = spark.readStream.format("kafkalog").options(**options, subscribe="a")
frame = reader.option("startingOffsets", "earliest").load(place)
for name in ("b", "c"):
    writer = frame.writeStream.format("kafkalog").options(**options, **given, topic=name)
    writer = writer.option("checkpointLocation", str(folder / name)).option("path", place)
    writer.trigger(availableNow=True).start().awaitTermination(300)
    kafkalog.append(place, "a", pa.table({"value": ["last"]}), options=options)
read = spark.read.format("kafkalog").options(**options, subscribe="b,c").load(place)
counts = {row["topic"]: row["count"] for row in read.groupBy("topic").count().collect()}
(folder / "found").write_text(json.dumps([sorted(seen), counts]))
spark.stop()
"""


class HeldBack:
    """Hold the first rows of a task of a query back until its batch is committed without them."""

    def __init__(self) -> None:
        self.committed = threading.Event()
        self._tasks = itertools.count()
        self._is_held = False

    def __call__(self, request: Request) -> None:
        if request.method == "PUT" and "/commits/" in request.path and self._is_held:
            self.committed.set()
        if request.method == "PUT" and "/data/" in request.path and next(self._tasks) == 1:
            self._is_held = True  # the very first ones are those of the driver's own append
            self.committed.wait(240)


@pytest.mark.timeout(1800)
def test_executors_need_nothing_but_the_bucket_and_a_late_attempt_adds_no_row(
    tmp_path: Path,
) -> None:
    may = os.geteuid() == 0 and shutil.which("unshare")
    assert may, "only root on Linux may give processes file systems of their own"
    hidden = tmp_path / "of the driver"
    hidden.mkdir()
    (hidden / "driver").touch()
    (tmp_path / "job.py").write_text(JOB)
    variables = environment_without_kafkalog(tmp_path / "packages")
    variables |= {"AWS_ACCESS_KEY_ID": S3_KEY[0], "AWS_SECRET_ACCESS_KEY": S3_KEY[1]}
    (tmp_path / "cluster").mkdir()
    zipped = build(tmp_path / "dist").py_files
    apart = [hidden, Path("/dev/shm")]
    with (
        object_store("versitygw", tmp_path / "server") as store,
        Cluster(tmp_path / "cluster", variables, hosts=True, hidden=apart) as cluster,
    ):
        held = store.fault = HeldBack()
        options = {n: store.options[n] for n in ("storage.endpoint", "storage.region")}
        options |= {"storage.timeout": "300s", "storage.pollInterval": "100ms"}
        words = [f"--conf={name}={value}" for name, value in SETTINGS.items()]
        words += [f"--py-files={zipped}", str(tmp_path / "job.py")]
        words += [store.uri("log"), str(hidden), json.dumps(options)]
        with Submitted(cluster, words, tmp_path / "output", variables) as job:
            while job.code is None:
                time.sleep(0.2)
            assert job.code == 0, job.told() + cluster.told()
        assert held.committed.is_set()
    seen, counts = json.loads((hidden / "found").read_text())
    assert seen == [False]
    assert counts == {"b": 40, "c": 41}
