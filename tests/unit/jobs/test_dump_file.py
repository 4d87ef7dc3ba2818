"""``kafkalog dump FILE``: what is in one file, whatever lies around it."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.corpus import UnpackedCase
from tests.support.logs import Row, batch_bytes, write_segment
from typer.testing import CliRunner

from kafkalog.jobs.cli.app import app

if TYPE_CHECKING:
    from typer.testing import Result


def dump(*words: object) -> Result:
    return CliRunner().invoke(app, ["dump", *map(str, words)])


def rows(*words: object) -> list[dict[str, Any]]:
    done = dump(*words, "--json", "--count", 1_000_000)
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a broker's directory with transactions."""
    return Path(UnpackedCase("p06-transactions", tmp_path_factory.mktemp("case")).path)


def largest(folder: Path, suffix: str) -> Path:
    found = [path for path in folder.rglob(f"*{suffix}") if path.parent.name.startswith("txn-")]
    return max(found, key=lambda path: path.stat().st_size)


def test_a_segment_that_lies_alone_shows_the_batches_of_the_log(
    broker: Path, tmp_path: Path
) -> None:
    segment = largest(broker, ".log")
    alone = tmp_path / segment.name
    shutil.copy(segment, alone)
    partition = segment.parent.name.removeprefix("txn-")
    base = int(segment.stem)
    in_log = rows(broker, "--topic", "txn", "--partition", partition, "--start", base)
    expected = [row | {"file": str(alone)} for row in in_log if row["file"] == str(segment)]
    assert rows(alone) == expected
    last = expected[-1]["lastOffset"]
    assert rows(alone, "--start", last) == expected[-1:]


def test_entries_of_an_index_lead_to_batches_of_its_segment(broker: Path) -> None:
    index = largest(broker, ".index")
    ends = {row["position"]: row["lastOffset"] for row in rows(index.with_suffix(".log"))}
    found = rows(index)
    assert found
    assert all(ends[row["position"]] == row["offset"] for row in found)
    stamps = rows(index.with_suffix(".timeindex"))
    assert min(row["offset"] for row in stamps) >= int(index.stem)
    assert [row["timestamp"] for row in stamps] == sorted(row["timestamp"] for row in stamps)


def test_aborted_transactions_and_producers_are_shown(broker: Path) -> None:
    (first, *_) = rows(largest(broker, ".txnindex"))
    assert set(first) == {"producerId", "firstOffset", "lastOffset", "lastStableOffset"}
    assert first["firstOffset"] <= first["lastOffset"]
    snapshot = largest(broker, ".snapshot")
    found = rows(snapshot)
    assert found
    assert all(row["lastOffset"] < int(snapshot.stem) for row in found)


def test_damage_is_said_after_what_lies_before_it(broker: Path, tmp_path: Path) -> None:
    segment = tmp_path / largest(broker, ".log").name
    data = bytearray(largest(broker, ".log").read_bytes())
    second = rows(largest(broker, ".log"))[1]["position"]
    data[second + 16] = 9  # a magic that there is not
    segment.write_bytes(data)
    done = dump(segment, "--json")
    assert done.exit_code == 1
    assert len(done.stdout.splitlines()) == 1
    assert f"byte {second}: magic 9" in done.stderr


def test_a_torn_end_is_said(broker: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    segment = tmp_path / largest(broker, ".log").name
    segment.write_bytes(largest(broker, ".log").read_bytes()[:-7])
    assert len(rows(segment)) == len(rows(largest(broker, ".log"))) - 1
    assert "the beginning of a batch" in caplog.text
    shutil.copy(largest(broker, ".log"), segment)
    with segment.open("ab") as log:
        log.write(bytes(4096))
    caplog.clear()
    assert rows(segment)
    assert "4096 bytes: zeros" in caplog.text


@pytest.mark.parametrize(
    "words", [["topics"], ["verify"], ["describe"], ["dump", "--topic", "txn"]]
)
def test_a_file_where_a_folder_was_expected_is_named(broker: Path, words: list[str]) -> None:
    segment = largest(broker, ".log")
    done = CliRunner().invoke(app, [*words, str(segment)])
    assert done.exit_code == 2
    assert f"{segment} is a file" in done.stderr
    assert f"log directory: {broker}" in done.stderr


def test_records_are_not_shown_of_a_file_alone(broker: Path) -> None:
    done = dump(largest(broker, ".log"), "--records")
    assert done.exit_code == 2
    assert "records are shown of a partition's folder" in done.stderr


def test_a_file_without_entries_is_told(tmp_path: Path) -> None:
    index = tmp_path / "00000000000000000007.index"
    index.touch()
    done = dump(index)
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == f"{index}: nothing is in it from offset 0 on\n"
    assert dump(index, "--json").stdout == ""


@pytest.mark.parametrize(
    "name",
    [
        "t-0",
        "__cluster_metadata-0",
        f"t-0.{'0123456789abcdef' * 2}-delete",
        f"t-0.{'0123456789abcdef' * 2}-future",
        f"t-0.{'0123456789abcdef' * 2}-stray",
    ],
)
def test_a_partitions_folder_says_itself_which_topic_is_in_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = batch_bytes(0, [Row(b"\0\0\0\0\0\1", b"\0\0\0\2")], attributes=0x20)
    write_segment(tmp_path / name, 0, marker + batch_bytes(1, [Row(b"v", b"k")] * 3))
    monkeypatch.chdir(tmp_path / name)
    for folder in (tmp_path / name, "."):
        assert [row["lastOffset"] for row in rows(folder)] == [0, 3]
        assert [row["offset"] for row in rows(folder, "--records")] == [1, 2, 3]
    assert dump(tmp_path / name, "--topic", "u").exit_code == 2


def test_the_way_to_the_records_of_a_file_is_named_and_shows_them(tmp_path: Path) -> None:
    segment = write_segment(tmp_path / "my log" / "t-0", 0, batch_bytes(0, [Row(b"v")]))
    done = dump(segment, "--records")
    assert done.exit_code == 2
    words = shlex.split(done.stderr.partition("kafkalog dump ")[2])
    assert [row["offset"] for row in rows(*words)] == [0]
