"""The pipeline `ingest`: each row is in the topic once, whatever its checkpoint knows."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from tests.support.spark import small_session
from typer.testing import CliRunner

import kafkalog
from kafkalog.errors import OptionError, TargetMismatchError
from kafkalog.jobs.cli.app import app
from kafkalog.jobs.pipelines.ingesting import Ingest
from kafkalog.jobs.pipelines.inputs import Input
from kafkalog.streaming.admin.topics import delete

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with small_session() as session:
        yield session


def run(spark: SparkSession, one: Ingest) -> None:
    one.check()
    one.start(spark).awaitTermination()


def values(log: Path, topic: str = "t") -> list[str]:
    found = kafkalog.read(str(log), topic, columns=["value"]).read_all()
    return sorted(value.decode() for value in found["value"].to_pylist())


def test_a_topic_continues_where_it_ends_whatever_the_checkpoint_knows(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, log, checkpoint, older = (tmp_path / n for n in ("source", "log", "c", "older"))
    options = {"subscribe": "s", "startingOffsets": "earliest"}
    one = Ingest(
        source=Input(str(source), "kafkalog", options=options),
        log=str(log),
        topic="t",
        checkpoint=str(checkpoint),
        columns={"value": "value"},
    )
    one = replace(
        one,
        source=replace(one.source, options={**one.source.options, "startingOffsets": "earliest"}),
    )

    def grow(*texts: str) -> None:
        kafkalog.append(str(source), "s", pa.table({"value": [*texts]}))

    grow("a", "b")
    run(spark, one)
    shutil.copytree(checkpoint, older)
    grow("c")
    run(spark, one)
    shutil.rmtree(checkpoint)
    shutil.copytree(older, checkpoint)
    grow("d")
    run(spark, one)
    assert values(log) == ["a", "b", "c", "d"]
    shutil.rmtree(checkpoint)
    grow("e")
    run(spark, one)
    assert values(log) == ["a", "b", "c", "d", "e"]
    delete([str(log)], "t")
    with pytest.raises(TargetMismatchError, match="s-0 from 5, and nothing of it is there"):
        run(spark, one)
    run(spark, replace(one, from_target=True))
    assert values(log) == ["a", "b", "c", "d", "e"]
    delete([str(source)], "s")
    grow(*"fghijkl")
    with pytest.raises(TargetMismatchError, match="another topic of the same name: s with") as no:
        run(spark, replace(one, checkpoint=str(tmp_path / "new")))
    assert "`kafkalog topic delete PATH --topic t` deletes the topic there, and --from-tar" in str(
        no.value
    )
    assert "another topic and another --checkpoint leave this one as it is" in str(no.value)
    run(spark, replace(one, topic="other", checkpoint=str(tmp_path / "other")))
    assert values(log, "other") == [*"fghijkl"]
    assert CliRunner().invoke(app, ["delete", str(log), "--topic", "t"]).exit_code == 0
    for checkpoint_now in (checkpoint, tmp_path / "new"):
        run(spark, replace(one, checkpoint=str(checkpoint_now), from_target=True))
        assert values(log) == [*"fghijkl"]


def test_files_are_not_taken_in_again_by_another_checkpoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    log, files, checkpoint = tmp_path / "log", tmp_path / "files", tmp_path / "c"
    files.mkdir()
    (files / "1.txt").write_text("a\n")
    one = Ingest(
        source=Input(str(files), "text"),
        log=str(log),
        topic="t",
        checkpoint=str(checkpoint),
        columns={"value": "value"},
    )
    run(spark, one)
    shutil.move(checkpoint, tmp_path / "away")
    (files / "2.txt").write_text("b\n")
    with pytest.raises(StreamingQueryException, match="checkpoint was restored from an older copy"):
        run(spark, one)
    assert values(log) == ["a"]
    with pytest.raises(OptionError, match="--from-target is for topics with Kafka's offsets"):
        run(spark, replace(one, from_target=True))
    shutil.rmtree(checkpoint)
    shutil.move(tmp_path / "away", checkpoint)
    run(spark, one)
    assert values(log) == ["a", "b"]
