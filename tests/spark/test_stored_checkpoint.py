"""A query whose checkpoint lies in an object store: its batches are told by what Spark planned."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from benchmarks.buckets import s3_session
from tests.support.object_store import object_store
from tests.support.spark import end_jvm

import kafkalog
from kafkalog.files.objects import open_objects
from kafkalog.files.storage import RemoteRoot
from kafkalog.streaming.options.store_options import StoreOptions

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.nightly]


@pytest.mark.parametrize("where", ["in the store", "in a directory"])
def test_a_batch_that_comes_again_with_other_rows_is_known(tmp_path: Path, where: str) -> None:
    (tmp_path / "input").mkdir()
    with object_store("versitygw", tmp_path / "server") as store:
        place = store.uri("log") if where == "in the store" else str(tmp_path / "log")
        checkpoint = f"s3a://{store.uri('checkpoint').partition('://')[2]}"
        root = RemoteRoot.parse(checkpoint)
        objects = open_objects(root.with_options(StoreOptions.parse(store.options).storage))
        end_jvm()
        with s3_session(store, tmp_path) as spark:
            for number in range(3):
                (tmp_path / "input" / f"{number}.csv").write_text(f"{number}\n" * 5)
                for _ in range(2):  # the second time as after a crash, before Spark's own note
                    rows = spark.readStream.schema("n INT").csv(str(tmp_path / "input"))
                    writer = rows.selectExpr("concat(n, ' ', rand()) AS value").writeStream
                    writer = writer.format("kafkalog").options(**store.options, topic="t")
                    writer = writer.option("checkpointLocation", checkpoint)
                    query = writer.trigger(availableNow=True).start(place)
                    assert query.awaitTermination(120)
                    objects.delete([f"commits/{number}"])
        end_jvm()
        options = store.options if where == "in the store" else {}
        values = kafkalog.read(place, "t", strings=["value"], options=options).read_all()["value"]
        assert [value[:1] for value in values.to_pylist()] == [*"000001111122222"]
