"""Folders that lie in each other, and texts that could mean two things, are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType
from tests.support.sinking import Writer, rows
from typer.testing import CliRunner

import kafkalog
from kafkalog.errors import LogDirectoryError, OptionError
from kafkalog.files.paths import refuse_among_logs, split_paths
from kafkalog.jobs.archive import app as archive
from kafkalog.jobs.ingest import app as ingest
from kafkalog.jobs.mirroring import Mirror
from kafkalog.jobs.replay import app as replay
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.source.stream_control import StreamControl
from kafkalog.streaming.spark.writers import make_stream_writer

if TYPE_CHECKING:
    from pathlib import Path

VALUE = StructType().add("value", "string")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    Writer(tmp_path / "log", topic="t").write(0, rows(["x"]))
    (tmp_path / "link").symlink_to(tmp_path / "log")
    return tmp_path / "log"


@pytest.mark.parametrize("place", ["log/c", "log", "link/c", "log/t-0/c", "."])
@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_a_checkpoint_in_a_log_directory_or_around_it_is_refused(
    log: Path, place: str, scheme: str
) -> None:
    location = f"{scheme}{log.parent / place}"
    options = {"path": str(log), "topic": "t", "checkpointlocation": location}
    with pytest.raises(OptionError, match=r"'checkpointLocation' names .* lies in"):
        make_stream_writer(options, VALUE, overwrite=False)
    with pytest.raises(OptionError, match=r"--checkpoint names .* continues if what it keeps here"):
        refuse_among_logs("--checkpoint", location, [str(log)])


@pytest.mark.parametrize("place", ["logs", "c", "log-c"])
def test_a_checkpoint_beside_it_is_taken(log: Path, place: str) -> None:
    refuse_among_logs("x", str(log.parent / place), [str(log)])
    refuse_among_logs("x", f"s3://{log}/c", [str(log)])
    refuse_among_logs("x", None, [str(log)])


def test_the_place_of_topic_ids_likewise(log: Path) -> None:
    given = {"path": str(log), "subscribe": "t", "stateLocation": str(log / "s")}
    with pytest.raises(OptionError, match=r"'stateLocation' names .* lies in the log directory"):
        StreamControl(ReadOptions.parse(given))


def test_a_log_is_not_made_in_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "c" / "offsets").mkdir(parents=True)
    (tmp_path / "c" / "metadata").write_text("{}")
    with pytest.raises(LogDirectoryError, match=r"would lie in .*/c, which is the checkpoint"):
        kafkalog.append(tmp_path / "c" / "log" / "a", "t", pa.table({"value": ["x"]}))
    assert not (tmp_path / "c" / "log").exists()


@pytest.mark.parametrize("name", ["archive", "ingest", "mirror", "replay"])
def test_pipelines_refuse_it_before_spark_starts(log: Path, name: str) -> None:
    inside = str(log / "c")
    other = log.parent / "other"
    if name == "mirror":
        with pytest.raises(OptionError, match="--checkpoint names"):
            Mirror(source=str(log), target=str(other), topics=("t",), checkpoint=inside).check()
        return
    app = {"archive": archive, "ingest": ingest, "replay": replay}[name]
    places = [str(other), str(log)] if name == "ingest" else [str(log), str(other)]
    done = CliRunner().invoke(app, [*places, "--topic", "t", "--checkpoint", inside])
    assert "--checkpoint names" in str(done.exception)
    assert not (log / "c").exists()


def test_a_text_that_is_the_name_of_a_folder_is_not_taken_for_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x,y").mkdir()
    with pytest.raises(OptionError, match="'x,y' names 2 log directories, and there is one folder"):
        kafkalog.append("x,y", "t", pa.table({"value": ["x"]}))
    with pytest.raises(OptionError, match="one folder of that very name"):
        ReadOptions.parse({"path": f"{tmp_path}/x,y", "subscribe": "t"})
    assert [path.name for path in tmp_path.iterdir()] == ["x,y"]
    assert split_paths("x, y") == (f"{tmp_path}/x", f"{tmp_path}/y")
    assert split_paths("y,x") == (f"{tmp_path}/y", f"{tmp_path}/x")
