"""Look-ups of keys find what the newest of all records is, and read little."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.counted_reads import counted_reads
from tests.support.indexed_logs import write_indexed_segment
from tests.support.killing import count_calls, run_and_kill
from tests.support.logs import Row, batch_bytes, write_segment
from tests.support.newest import newest_of
from tests.support.reading import read_batch
from typer.testing import CliRunner

import kafkalog
from kafkalog.checkpoints.state_file import load_state
from kafkalog.errors import OptionError, UnknownTopicOrPartitionError
from kafkalog.jobs.cli.app import app
from kafkalog.streaming.admin.topics import alter
from kafkalog.streaming.lookup.lookup import partition_to_search

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

STRIDE = int(os.environ.get("KAFKALOG_KILL_STRIDE", "5"))
START = 1_700_000_000_000
KEYS = [f"key {n}" for n in range(20)]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give three partitions in which every key was written ten times; key 7 is deleted."""
    path = tmp_path_factory.mktemp("log")
    for number in range(10):
        rows = pa.table(
            {
                "key": KEYS,
                "value": [None if k == "key 7" else f"{k} {number}" for k in KEYS],
                "timestamp": pa.array([START + number] * 20, pa.timestamp("ms")),
                "headers": pa.array(
                    [[{"key": "n", "value": b"%d" % number}]] * 20,
                    pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
                ),
            }
        )
        options = {"numPartitions": "3", "segment.bytes": "2000"}
        kafkalog.append(path, "t", rows, options=options)
    return path


def test_a_key_is_found_in_the_partition_that_its_hash_chooses(log: Path) -> None:
    expected = newest_of(read_batch(path=str(log), subscribe="t"))
    found = [kafkalog.get(log, "t", key) for key in KEYS]
    rows = [row for row in found if row is not None]
    assert {(row["topic"], row["partition"], row["key"]): row for row in rows} == expected
    assert found.index(None) == 7
    deleted = kafkalog.get(log, "t", b"key 7", options={"tombstones": True})
    assert deleted is not None
    assert deleted["value"] is None
    assert kafkalog.get(log, "t", "no such key") is None


@settings(deadline=None, max_examples=25)
@given(st.sampled_from(KEYS), st.integers(0, 70), st.integers(START, START + 11))
def test_a_key_is_found_as_of_an_offset_or_a_time(
    log: Path, key: str, offset: int, timestamp: int
) -> None:
    newest = kafkalog.get(log, "t", key, options={"tombstones": True})
    assert newest is not None
    records = [
        row
        for row in read_batch(path=str(log), subscribe="t")
        if (row["partition"], row["key"]) == (newest["partition"], key.encode())
    ]
    options = {"tombstones": True}
    offset = min(offset, newest["offset"])
    found = kafkalog.get(log, "t", key, as_of_offset=offset, options=options)
    assert found == max(
        (row for row in records if row["offset"] < offset),
        key=lambda row: row["offset"],
        default=None,
    )
    found = kafkalog.get(log, "t", key, as_of_timestamp=timestamp, options=options)
    assert found == max(
        (row for row in records if row["timestamp"] < timestamp),
        key=lambda row: row["offset"],
        default=None,
    )


def test_little_is_read_if_the_key_lies_near_the_end(tmp_path: Path) -> None:
    rows = [([Row(b"x" * 1000, b"k%d" % n)] * 10, 0) for n in range(2000)]
    write_indexed_segment(tmp_path / "t-0", 0, rows)
    for number, most in ((1998, 150_000), (1960, 900_000)):
        with counted_reads() as fetched:
            assert kafkalog.get(tmp_path, "t", f"k{number}") is not None
        assert fetched[".log"] < most


def test_a_timestamp_that_python_has_no_time_for_is_a_number(tmp_path: Path) -> None:
    write_segment(tmp_path / "t-0", 0, batch_bytes(0, [Row(b"v", b"k", 10**15)]))
    found = kafkalog.get(tmp_path, "t", "k")
    assert found is not None
    assert found["timestamp"] == 10**15


def test_without_all_partitions_the_one_of_a_key_is_not_known(tmp_path: Path) -> None:
    for number in (0, 2):
        write_segment(tmp_path / f"t-{number}", 0, batch_bytes(0, [Row(b"v", b"k")]))
    with pytest.raises(UnknownTopicOrPartitionError, match="name the partition"):
        kafkalog.get(tmp_path, "t", "k")
    assert kafkalog.get(tmp_path, "t", "k", partition=2) is not None
    with pytest.raises(UnknownTopicOrPartitionError, match="t-1 is not in"):
        kafkalog.get(tmp_path, "t", "k", partition=1)
    with pytest.raises(UnknownTopicOrPartitionError, match="no partition of topic u"):
        kafkalog.get(tmp_path, "u", "k")


def test_options_that_contradict_the_arguments_are_refused(log: Path) -> None:
    with pytest.raises(OptionError, match="not both"):
        kafkalog.get(log, "t", "k", as_of_offset=1, as_of_timestamp=1)
    for name in ("view", "endingOffsets", "assign", "minPartitions"):
        with pytest.raises(OptionError, match="none of this function's"):
            kafkalog.get(log, "t", "k", options={name: "1"})


# The command


def call(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["get", *map(str, words)])
    return done.exit_code, done.output


def shown(*words: object) -> list[Any]:
    code, text = call(*words, "--topic", "t", "--json")
    assert code == 0, text
    return [json.loads(line) for line in text.splitlines()]


def test_the_command_shows_the_newest_record_of_a_key(log: Path) -> None:
    (row,) = shown(log, "--key", "key 3")
    assert (row["key"], row["value"], row["timestamp"]) == ("key 3", "key 3 9", START + 9)
    assert row["headers"] == [{"key": "n", "value": "9"}]
    (row,) = shown(log, "--key", b"key 3".hex(), "--hex", "--as-of-timestamp", START + 5)
    assert (row["key"], row["value"]) == (b"key 3".hex(), b"key 3 4".hex())
    code, text = call(log, "--topic", "t", "--key", "key 3")
    assert code == 0
    assert "key 3 9" in text


def test_the_command_says_what_the_cache_did(log: Path) -> None:
    code, text = call(log, "--topic", "t", "--key", "no such key", "--stats")
    assert code == 1
    assert re.search(r"cache: \d+ hits, \d+ misses, 0 evictions, \d+ entries of \d+ bytes", text)


def test_a_look_up_imports_neither_pyspark_nor_pandas(log: Path) -> None:
    """They would take longer than the rest of the command."""
    code = (
        "import sys, kafkalog\n"
        f"assert kafkalog.get({str(log)!r}, 't', 'key 3')['value'] == b'key 3 9'\n"
        "from kafkalog.jobs.cli.app import app\n"
        f"app(['get', {str(log)!r}, '--topic', 't', '--key', 'key 3'], standalone_mode=False)\n"
        "print(sorted({'pyspark', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "key 3 9" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_command_imports_no_compiler_once_its_kernels_are_kept(log: Path) -> None:
    code = (
        "import sys\n"
        "from kafkalog.jobs.cli.app import main\n"
        f"sys.argv = ['kafkalog', 'get', {str(log)!r}, '--topic', 't', '--key', 'key 3']\n"
        "try:\n    main()\nfinally:\n    print('numba' in sys.modules)"
    )
    for _ in range(2):
        words = [sys.executable, "-c", code]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        assert "key 3 9" in done.stdout
    assert done.stdout.splitlines()[-1] == "False"


def test_the_command_shows_many_keys_in_their_order(log: Path) -> None:
    keys = [row["key"] for row in shown(log, "--prefix", "key 1")]
    assert keys == ["key 1", *(f"key 1{n}" for n in range(10))]
    keys = [row["key"] for row in shown(log, "--from", "key 3", "--to", "key 6")]
    assert keys == ["key 3", "key 4", "key 5"]
    assert len(shown(log, "--from", "")) == 19


def test_a_key_in_a_partition_that_its_hash_does_not_choose_is_found_if_asked_for(
    tmp_path: Path,
) -> None:
    for number in (0, 1):
        write_segment(tmp_path / f"t-{number}", 0, batch_bytes(0, [Row(b"v", b"k%d" % number)]))
    rows = [shown(tmp_path, "--key", f"k{n}", "--all-partitions") for n in (0, 1)]
    assert [row["partition"] for (row,) in rows] == [0, 1]
    given = {"path": str(tmp_path)}
    chosen = [partition_to_search(given, "t", key) for key in (b"k0", b"k1")]
    alone = [call(tmp_path, "--topic", "t", "--key", f"k{n}")[0] for n in (0, 1)]
    assert alone == [int(chosen[n] != n) for n in (0, 1)]
    assert 1 in alone


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--key", "no such key"], 1),
        (["--key", "key 7"], 1),
        (["--prefix", "x"], 1),
        ([], 2),
        (["--key", "k", "--prefix", "k"], 2),
        (["--key", "xyz", "--hex"], 2),
        (["--key", "k", "--partition", "9"], 2),
        (["--key", "k", "--partition", "0", "--all-partitions"], 2),
        (["--prefix", "k", "--as-of-offset", "5"], 2),
    ],
)
def test_it_ends_with_1_if_there_is_no_such_key_and_with_2_if_it_was_called_wrongly(
    log: Path, words: list[str], code: int
) -> None:
    assert call(log, "--topic", "t", *words)[0] == code


def test_partitions_that_are_not_committed_yet_do_not_say_where_a_key_lies(
    tmp_path: Path,
) -> None:
    keys = [f"k{number}".encode() for number in range(20)]
    kafkalog.append(tmp_path / "log", "t", pa.table({"key": keys, "value": keys}))
    copy = tmp_path / "copy"

    def alter_copy() -> None:
        alter([str(copy)], "t", partitions=3)

    calls = count_calls_on(tmp_path / "log", copy, alter_copy)
    for call in range(0, calls, STRIDE):
        shutil.rmtree(copy)
        shutil.copytree(tmp_path / "log", copy, copy_function=shutil.copy2)
        run_and_kill(alter_copy, call)
        if not is_altered(copy):
            found = [kafkalog.get(copy, "t", key) for key in keys[:6]]
            assert [row and row["value"] for row in found] == keys[:6], f"killed at call {call}"
            with pytest.raises(UnknownTopicOrPartitionError, match="t-1 is not in"):
                kafkalog.get(copy, "t", keys[0], partition=1)
    assert calls > 10


def count_calls_on(original: Path, copy: Path, action: Callable[[], object]) -> int:
    shutil.copytree(original, copy, copy_function=shutil.copy2)
    return count_calls(action)


def is_altered(log: Path) -> bool:
    state = load_state(log)
    assert state is not None
    return any(len(topic.partitions) > 1 for topic in state.topics.values())
