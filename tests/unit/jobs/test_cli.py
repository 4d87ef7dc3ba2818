"""The command ``kafkalog``: what it does to log directories, what it prints, how it ends."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import fsspec
import pyarrow as pa
import pytest
from tests.support.killing import count_calls, run_and_kill
from tests.support.log_files import flip
from tests.support.logs import Row, append_batch, batch_bytes
from tests.support.replicated import append, path_of
from tests.support.sinking import Writer, rows, values_of
from tests.support.tiers import KafkaTier, write_log, write_metadata
from typer.testing import CliRunner

import kafkalog
from kafkalog.checkpoints.broker import (
    CLEAN_SHUTDOWN,
    HIGH_WATERMARK,
    LOCK,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINT,
    read_meta_properties,
    read_offset_checkpoint,
    read_topic_id,
)
from kafkalog.checkpoints.commit_state import STATE_FILE, UNFINISHED_FOLDER
from kafkalog.checkpoints.state_file import load_state
from kafkalog.errors import CommitError
from kafkalog.jobs.cli.app import app
from kafkalog.jobs.cli.groups import delete_group
from kafkalog.jobs.cli.lookup import get
from kafkalog.jobs.inspection import metrics
from kafkalog.model import TopicPartition
from kafkalog.streaming.groups.administration import GroupWriter

if TYPE_CHECKING:
    from pathlib import Path

T0 = TopicPartition("t", 0)
TOPIC_ID = "kafkalogTopicIdNumberA"


def call(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.exit_code, done.output


def objects(text: str) -> list[Any]:
    """Read what ``--json`` prints: one object a line."""
    return [json.loads(line) for line in text.splitlines()]


def call_json(*words: object) -> list[Any]:
    code, text = call(*words, "--json")
    assert code == 0, text
    return objects(text)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Give a log directory with three values in ``t-0``."""
    folder = tmp_path / "log"
    Writer(folder, topic="t", compression__type="lz4").write(0, rows(["a", "b", "c"]))
    return folder


def cut_off(log: Path) -> None:
    """Kill the next commit deep in its middle."""
    writer = Writer(log, topic="t")
    copy = log.with_name("copy")
    Writer(copy, topic="t").write(0, rows(["a"]))
    calls = count_calls(lambda: Writer(copy, topic="t").write(1, rows(["d"])))
    assert run_and_kill(lambda: writer.write(1, rows(["d"])), calls // 2)
    assert (log / UNFINISHED_FOLDER).is_dir()


def test_recover_takes_an_unfinished_commit_back(log: Path) -> None:
    cut_off(log)
    (done,) = call_json("recover", log)
    assert done["takenBack"] == ["batch 1 of query:4711"]
    assert [(each["start"], each["end"]) for each in done["partitions"]] == [(0, 3)]
    assert not (log / UNFINISHED_FOLDER).exists()
    assert values_of([log], "t") == {0: ["a", "b", "c"]}
    (again,) = call_json("recover", log)
    assert (again["takenBack"], again["problems"]) == ([], [])


def test_recover_makes_torn_indexes_right(log: Path) -> None:
    index = log / "t-0" / f"{0:020d}.timeindex"
    whole = index.read_bytes()
    index.write_bytes(b"\1" * 12)
    (partition,) = call_json("recover", log)[0]["partitions"]
    assert partition["corrected"] == [index.name]
    assert index.read_bytes() == whole


def test_recover_says_where_logs_start_that_were_trimmed(log: Path) -> None:
    assert call("delete-records", log, "-t", "t", "--offset", "2", "--yes")[0] == 0
    (partition,) = call_json("recover", log)[0]["partitions"]
    assert (partition["start"], partition["end"]) == (2, 3)


def test_recover_reports_what_it_may_not_touch(log: Path) -> None:
    segment = log / "t-0" / f"{0:020d}.log"
    segment.write_bytes(segment.read_bytes()[:-5])
    code, text = call("recover", log)
    assert code == 1
    assert "committed" in text


def test_recover_reports_damage_that_it_comes_across_and_leaves_the_indexes_alone(
    log: Path,
) -> None:
    for number in (1, 2, 3):
        Writer(log, topic="t", index__interval__bytes="0").write(number, rows([f"{number}" * 99]))
    segment = log / "t-0" / f"{0:020d}.log"
    flip(segment, 65)
    files = {path: path.read_bytes() for path in segment.parent.iterdir()}
    for words in (("--dry-run",), (), ()):
        code, text = call("recover", log, *words)
        assert code == 1
        assert "position 0 has a wrong checksum" in text
        assert "kafkalog salvage" in text
        assert {path: path.read_bytes() for path in segment.parent.iterdir()} == files


def test_directories_that_the_sink_never_wrote_are_refused(tmp_path: Path) -> None:
    assert call("recover", tmp_path)[0] == 2
    assert call("recover", tmp_path / "nothing")[0] == 2
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_set_of_log_directories_is_refused_at_once(log: Path) -> None:
    (log.parent / "link").symlink_to(log)
    for command in ("recover", "handover", "takeover"):
        for given in ([log, log.parent / "link"], [log / "t-0"]):
            code, text = call(command, *given)
            assert code == 2
            assert "given twice" in text or "folder of a partition" in text
    assert not (log / "t-0" / STATE_FILE).exists()
    code, text = call("offsets", "")
    assert code == 2
    assert "names no log directory" in text


@pytest.mark.parametrize(("cluster", "node"), [("", 1), ("c\nx=y", 1), ("a b", 1), ("c", -4)])
def test_a_handover_to_no_cluster_is_refused(log: Path, cluster: str, node: int) -> None:
    code, text = call("handover", log, "--cluster-id", cluster, "--node-id", node)
    assert code == 2
    assert "id of a cluster" in text or "negative" in text
    assert not (log / META_PROPERTIES).exists()


def test_a_directory_in_use_is_refused(log: Path) -> None:
    holder = """
import fcntl, os, sys
fcntl.lockf(os.open(sys.argv[1], os.O_RDWR), fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(log / LOCK)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        code, text = call("takeover", log)
        assert process.stdin is not None
        process.stdin.close()
    assert code == 2
    assert "broker" in text


def test_handover_leaves_what_a_broker_starts_on(log: Path) -> None:
    (done,) = call_json(
        "handover", log, "--topic-id", f"t={TOPIC_ID}", "--cluster-id", "c", "--node-id", 4
    )
    assert [each["topicId"] for each in done["partitions"]] == [TOPIC_ID]
    assert read_topic_id(log / "t-0") == TOPIC_ID
    assert (log / CLEAN_SHUTDOWN).exists()
    for name in (HIGH_WATERMARK, RECOVERY_POINT):
        assert read_offset_checkpoint(log, name) == {T0: 3}
    properties = read_meta_properties(log)
    assert properties is not None
    assert (properties["cluster.id"], properties["node.id"], properties["version"]) == (
        *("c", "4"),
        "1",
    )


@pytest.mark.parametrize(("cluster", "node"), [("d", 4), ("c", 5)])
def test_a_handover_to_another_broker_is_refused(log: Path, cluster: str, node: int) -> None:
    call_json("handover", log, "--cluster-id", "c", "--node-id", 4)
    (log / CLEAN_SHUTDOWN).unlink()
    for words in ((), ("--dry-run",)):
        code, text = call("handover", log, "--cluster-id", cluster, "--node-id", node, *words)
        assert (code, f"{log / META_PROPERTIES} is of cluster c, node 4" in text) == (2, True)
        assert not (log / CLEAN_SHUTDOWN).exists()
    call_json("handover", log, "--cluster-id", "c", "--node-id", 4)


def test_the_sink_goes_on_after_a_handover_with_another_topic_id(log: Path) -> None:
    call_json("handover", log, "--topic-id", f"t={TOPIC_ID}")
    Writer(log, topic="t").write(1, rows(["d"]))
    assert values_of([log], "t") == {0: ["a", "b", "c", "d"]}
    state = load_state(log)
    assert state is not None
    assert state.topics[TOPIC_ID].settings["compression.type"] == "lz4"


def test_handover_without_an_order_writes_no_meta_properties(log: Path) -> None:
    call_json("handover", log)
    assert not (log / META_PROPERTIES).exists()
    assert call("handover", log, "--node-id", 4)[0] == 2
    assert call("handover", log, "--topic-id", "t")[0] == 2
    assert call("handover", log, "--topic-id", f"other={TOPIC_ID}")[0] == 2


def test_handover_refuses_a_topic_that_lacks_a_partition(log: Path) -> None:
    (log / META_PROPERTIES).write_text("version=1\n")  # so that a broker may have made it
    (log / "t-0").rename(log / "t-1")
    code, text = call("handover", log)
    assert code == 1
    assert "t-0 up to offset 3" in text
    assert not (log / CLEAN_SHUTDOWN).exists()


def test_takeover_moves_the_state_to_where_a_broker_came(log: Path) -> None:
    segment = log / "t-0" / f"{0:020d}.log"
    append_batch(segment, batch_bytes(3, [Row(b"broker")]))
    append_batch(segment, batch_bytes(4, [Row(b"torn")])[:40])
    (partition,) = call_json("takeover", log)[0]["partitions"]
    assert partition["end"] == 4
    assert values_of([log], "t") == {0: ["a", "b", "c", "broker"]}


def test_takeover_makes_a_brokers_directory_a_set(tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / f"{0:020d}.log").write_bytes(batch_bytes(0, [Row(b"broker")]))
    call_json("takeover", tmp_path)
    assert (tmp_path / STATE_FILE).exists()
    assert values_of([tmp_path], "t") == {0: ["broker"]}


def test_views_show_topics_partitions_offsets_and_batches(log: Path) -> None:
    (topic,) = call_json("topics", log)
    assert (topic["topic"], topic["partitions"]) == ("t", 1)
    (partition,) = call_json("describe", log)
    assert (partition["end"], partition["segments"]) == (3, 1)
    assert partition["settings"] == {"compression.type": "lz4"}
    assert call_json("offsets", log, "--topic", "t") == [
        {"topic": "t", "partition": 0, "start": 0, "end": 3, "unread": 0, "missing": 0}
    ]
    (behind,) = call_json("lag", log, "--offsets", '{"t":{"0":1}}')
    assert behind["lag"] == 2
    batches = call_json("dump", log, "--topic", "t")
    assert [batch["baseOffset"] for batch in batches] == [0]
    assert call("dump", log, "--topic", "other")[0] == 2
    code, text = call("offsets", log)
    assert code == 0
    assert "partition" in text


def test_verify_finds_a_flipped_bit(log: Path) -> None:
    assert call("verify", log)[0] == 0
    segment = log / "t-0" / f"{0:020d}.log"
    data = bytearray(segment.read_bytes())
    data[-1] ^= 1
    segment.write_bytes(data)
    code, text = call("verify", log, "--json")
    assert code == 1
    assert "checksum" in objects(text)[0]["problem"]


def test_verify_finds_what_was_committed_and_is_not_there(log: Path) -> None:
    os.truncate(log / "t-0" / f"{0:020d}.log", 0)
    code, text = call("verify", log, "--json")
    assert code == 1
    assert objects(text)[-2] == {
        "topic": "t",
        "partition": 0,
        "segment": None,
        "problem": "offsets [0, 3) were committed and are not in the log",
    }


def test_verify_finds_what_is_not_there_though_another_log_cannot_be_looked_at(log: Path) -> None:
    Writer(log, name="other", topic="s").write(0, rows(["a"]))
    (log / "s-0" / PARTITION_METADATA).write_text("nonsense")
    os.truncate(log / "t-0" / f"{0:020d}.log", 0)
    problems = [row.get("problem") for row in objects(call("verify", log, "--json")[1])]
    assert "offsets [0, 3) were committed and are not in the log" in problems
    assert any(PARTITION_METADATA in problem for problem in problems if isinstance(problem, str))


def test_verify_prints_problems_and_a_summary(log: Path) -> None:
    size = (log / "t-0" / f"{0:020d}.log").stat().st_size
    summary = {"partitions": 1, "segments": 1, "batches": 1, "bytes": size, "problems": 0}
    text = f"1 partition, 1 segment, 1 batch, {size} B, 0 problems\n"
    assert call("verify", log) == (0, text)
    for option in ("--all", "-v"):
        assert f"{0:020d}.log" in call("verify", log, option)[1]
    segment, last = call_json("verify", log)
    assert (segment["segment"], segment["problem"]) == (f"{0:020d}.log", None)
    assert last == summary
    done = CliRunner().invoke(app, ["verify", str(log), "--output", "csv"])
    assert done.stdout == (
        f"topic,partition,segment,batches,bytes,problem\nt,0,{0:020d}.log,1,{size},\n"
    )
    assert done.stderr == text
    os.truncate(log / "t-0" / f"{0:020d}.log", 0)
    code, text = call("verify", log)
    assert code == 1
    assert "were committed" in text
    assert text.endswith("1 segment, 0 batches, 0 B, 2 problems\n")


def test_a_copy_of_a_live_log_that_ends_in_zeros_is_not_damaged(log: Path) -> None:
    with (log / "t-0" / f"{0:020d}.log").open("ab") as file:
        file.write(bytes(1_000_000))
    assert call("verify", log)[0] == 0


VIEWS = ("topics", "describe", "offsets", "verify", "groups")


@pytest.mark.parametrize("command", VIEWS)
def test_what_is_not_there_is_said(
    command: str, log: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    code, text = call(command, tmp_path / "typo")
    assert (code, "typo does not exist" in text) == (2, True)
    (tmp_path / "empty").mkdir()
    code, text = call(command, tmp_path / "empty")
    assert (code, "empty is empty" in text) == (2, True)
    code, text = call(command, tmp_path)
    assert (code, "is no log directory" in text, "empty, log" in text) == (2, True, True)
    shutil.rmtree(log / "t-0")
    assert call(command, log)[0] == 0
    assert "holds no partition yet; the sink has written there" in caplog.text


SEVERAL = {
    "describe": (),
    "offsets": (),
    "stats": (),
    "verify": (),
    "dump": (),
    "plot": (),
    "lag": ("--offsets", '{"t":{"0":0},"u":{"0":0},"u-0":{"0":0},"v":{"0":0}}'),
    "retain": ("--config", "retention.bytes=0", "--yes"),
    "delete-records": ("--offset", "latest", "--yes"),
    "compact": ("--force", "--yes"),
}
"""Commands that take several topics, with what else they need."""


@pytest.mark.parametrize("command", SEVERAL)
def test_several_topics_are_named_with_commas_or_repeated(log: Path, command: str) -> None:
    """Nothing is said of others, nor done to them."""
    for name in ("u", "u-0", "v"):
        kafkalog.append(log, name, pa.table({"key": ["k"] * 2, "value": ["a"] * 2}))
        if command == "compact":
            assert call("alter", log, "-t", name, "--config", "cleanup.policy=compact")[0] == 0
    before = (log / "t-0").stat().st_mtime_ns
    found = call_json(command, log, "-t", "v,u", "-t", "u-0", "-t", "u", *SEVERAL[command])
    rows = found[0]["partitions"] if "dryRun" in found[0] else found
    named = {row["topic"] for row in rows if "topic" in row}
    named |= {row["file"].split("/")[-2].rpartition("-")[0] for row in rows if "file" in row}
    assert named == {"u", "u-0", "v"}
    assert (log / "t-0").stat().st_mtime_ns == before
    code, text = call(command, log, "-t", "u,typo", *SEVERAL[command])
    assert (code, "typo" in text) == (2, True)


def test_a_disk_that_is_not_mounted_is_not_called_sound(tmp_path: Path) -> None:
    code, text = call("salvage", tmp_path)
    assert (code, f"{tmp_path.name} is empty" in text) == (2, True)


def test_a_topic_that_is_not_there_is_told_from_those_that_are(log: Path) -> None:
    assert "Topics there: t" in call("offsets", log, "--topic", "typo")[1]


def test_a_partition_in_place_of_a_topic_and_a_file_that_is_not_there_are_said(log: Path) -> None:
    text = call("dump", log, "--topic", "t-0")[1]
    assert "t-0 is a partition: --topic t --partition 0" in text
    assert "is a partition" not in call("dump", log, "--topic", "u-0")[1]
    assert f"there is no file {log / 'nothing.log'}" in call("dump", log / "nothing.log")[1]


def test_no_groups_and_no_batches_are_said(log: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert call_json("groups", log) == []
    assert "__consumer_offsets" not in caplog.text
    (log / "kafkalog.commit").unlink()  # a broker's positions may be in another directory
    assert call_json("groups", log) == []
    assert "no topic __consumer_offsets" in caplog.text
    assert call_json("dump", log, "--topic", "t", "--start", 3) == []
    assert "t-0 has no batch from offset 3 on: its log is [0, 3)" in caplog.text


@pytest.mark.parametrize("command", VIEWS[:4])
def test_a_folder_without_a_log_is_no_partition(
    command: str, log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = call_json(command, log)
    (log / "backup-2024").mkdir()
    assert call_json(command, log) == before
    assert "backup-2024 has no .log file" in caplog.text


def test_what_has_no_log_is_not_recovered_or_taken_over(log: Path) -> None:
    (log / "backup-2024").mkdir()
    for command in ("recover", "takeover", "handover"):
        (done,) = call_json(command, log)
        assert [each["topic"] for each in done["partitions"]] == ["t"]
    state = load_state(log)
    assert state is not None
    assert [topic.name for topic in state.topics.values()] == ["t"]


def test_a_damaged_commit_state_is_a_problem_and_no_bad_use(log: Path) -> None:
    (log / STATE_FILE).write_text("nonsense")
    for command in ("describe", "offsets", "recover", "handover", "takeover"):
        assert call(command, log)[0] == 1


def test_offsets_that_are_committed_and_not_there_are_counted_as_a_problem(log: Path) -> None:
    os.truncate(log / "t-0" / f"{0:020d}.log", 0)
    code, text = call("offsets", log, "--json")
    assert code == 1
    assert [(row["end"], row["missing"]) for row in objects(text)] == [(0, 3)]


@pytest.mark.parametrize("command", ["verify", "describe", "offsets"])
def test_a_topic_that_is_not_there_is_bad_use(log: Path, command: str) -> None:
    code, text = call(command, log, "--topic", "typo")
    assert (code, "no partition of topic typo" in text) == (2, True)


@pytest.mark.parametrize("offsets", ["nonsense", '{"t":5}', '{"t":{"x":5}}'])
def test_what_is_no_json_of_offsets_has_no_lag(log: Path, offsets: str) -> None:
    code, text = call("lag", log, "--offsets", offsets)
    assert (code, 'expected such as {"flights": {"0": 23}}' in text) == (2, True)


def test_the_lag_in_a_partition_that_is_gone_is_a_problem(log: Path) -> None:
    code, text = call("lag", log, "--offsets", '{"t":{"0":1,"5":1}}', "--json")
    assert code == 1
    assert [(row["partition"], row["lag"]) for row in objects(text)] == [(0, 2), (5, None)]


@pytest.fixture
def pair(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> tuple[Path, Path]:
    """Give the directories of a set, each with one of the partitions of a topic."""
    folders = tmp_path / "a", tmp_path / "b"
    writer = Writer(*folders, topic="t", numPartitions="2")
    writer.write(0, rows(["x", "y"], partitions=[0, 1]))
    assert [[path.name for path in each.glob("t-?")] for each in folders] == [["t-0"], ["t-1"]]
    caplog.clear()
    return folders


LOOKING = [
    ["topics"],
    ["describe"],
    ["offsets"],
    ["lag", "--offsets", '{"t":{"0":0}}'],
    ["dump", "--topic", "t"],
]


@pytest.mark.parametrize("command", LOOKING, ids=lambda command: command[0])
def test_every_command_says_what_lies_in_a_directory_that_is_not_mounted(
    pair: tuple[Path, Path], command: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    shutil.rmtree(pair[1])
    pair[1].mkdir()
    name, *options = command
    code, _ = call(name, *pair, *options)
    assert "1 of the 2 log directories" in caplog.text
    assert "t-1 up to offset 1" in caplog.text
    assert code == (name in {"offsets", "lag"})


@pytest.mark.parametrize("command", LOOKING, ids=lambda command: command[0])
def test_every_command_says_which_partition_has_no_folder(
    pair: tuple[Path, Path], command: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    Writer(*pair, name="more", topic="t").write(0, rows(["z"], partitions=[0]))
    caplog.clear()
    (pair[1] / "t-1").rename(pair[1] / "elsewhere")
    name, *options = command
    code, _ = call(name, *pair, *options)
    assert "have no folder: t-1 up to offset 1" in caplog.text
    assert code == (name in {"offsets", "lag"})


def test_a_part_of_a_set_is_looked_at_with_a_warning(
    pair: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    assert [row["partition"] for row in call_json("offsets", pair[0])] == [0]
    assert "were not given" in caplog.text


def test_verify_does_not_call_a_part_of_a_set_whole(pair: tuple[Path, Path]) -> None:
    assert call("verify", *pair)[0] == 0
    code, text = call("verify", pair[0])
    assert code == 1
    assert "1 of the 2 log directories" in text
    shutil.rmtree(pair[1])
    pair[1].mkdir()
    code, text = call("verify", *pair)
    assert code == 1
    assert "a disk may not be mounted there" in text


def test_offsets_of_a_partition_without_a_folder_are_all_missing(pair: tuple[Path, Path]) -> None:
    shutil.rmtree(pair[1] / "t-1")
    code, text = call("offsets", *pair, "--json")
    assert code == 1
    assert [(row["partition"], row["end"], row["missing"]) for row in objects(text)] == [
        (0, 1, 0),
        (1, None, 1),
    ]


def test_damage_is_shown_behind_the_batches_before_it(log: Path) -> None:
    segment = log / "t-0" / f"{0:020d}.log"
    Writer(log, topic="t").write(1, rows(["d"]))
    segment.write_bytes(segment.read_bytes()[:-5])
    done = CliRunner().invoke(app, ["dump", str(log), "--topic", "t", "--json"])
    assert done.exit_code == 1
    assert [batch["baseOffset"] for batch in objects(done.stdout)] == [0]
    assert "offsets [3, 4)" in done.stderr


def test_a_wrong_checksum_shows_in_a_dump(log: Path) -> None:
    segment = log / "t-0" / f"{0:020d}.log"
    data = bytearray(segment.read_bytes())
    data[-1] ^= 1
    segment.write_bytes(data)
    code, text = call("dump", log, "--topic", "t", "--json")
    assert code == 1
    assert "checksum" in objects(text)[0]["error"]


def test_directories_are_named_as_in_queries(log: Path) -> None:
    for command in ("topics", "describe", "offsets", "groups", "verify"):
        assert call(command, log.as_uri()) == call(command, log)
        assert call(command, log, log)[0] == 2


def test_what_lies_in_a_store_is_looked_at_too(log: Path) -> None:
    store = fsspec.filesystem("memory")
    store.put(str(log), "/kept", recursive=True)
    try:
        uri = "memory://kept"
        for command in ("topics", "offsets", "groups"):
            assert call_json(command, uri) == call_json(command, log)
        assert call_json("lag", uri, "--offsets", '{"t":{"0":1}}')[0]["lag"] == 2
        assert call_json("describe", uri)[0]["end"] == 3
        assert call_json("verify", uri) == call_json("verify", log)
        assert [row["lastOffset"] for row in call_json("dump", uri, "--topic", "t")] == [2]
    finally:
        store.rm("/kept", recursive=True)


def test_no_cell_is_folded_where_the_output_is_read_on(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    code, text = call("describe", log)
    assert code == 0
    assert f" {os.path.relpath(log)} " in text


def test_verify_finds_a_damaged_commit_state(log: Path) -> None:
    (log / "kafkalog.commit").write_text("nonsense")
    code, text = call("verify", log, "--json")
    assert code == 1
    assert "kafkalog.commit" in objects(text)[-2]["problem"]


def test_verify_finds_records_that_an_older_commit_state_does_not_know(log: Path) -> None:
    older = (log / STATE_FILE).read_bytes()
    Writer(log, topic="t").write(1, rows(["d"]))
    Writer(log, name="other", topic="u").write(0, rows(["x"]))
    assert call("verify", log)[0] == 0
    (log / STATE_FILE).write_bytes(older)
    code, text = call("verify", log, "--json")
    assert code == 1
    problems = {row["topic"]: row["problem"] for row in objects(text)[:-1] if row["problem"]}
    assert "offsets 3 to 3, which are not committed" in problems["t"]
    assert "offsets 0 to 0, which are not committed" in problems["u"]
    assert all(f"an older {STATE_FILE} was put back" in each for each in problems.values())
    with pytest.raises(CommitError, match="which are not committed"):
        Writer(log, topic="t").write(1, rows(["d"]))
    assert call("takeover", log)[0] == 0
    assert call("verify", log)[0] == 0


def test_verify_finds_records_that_an_older_commit_state_in_a_store_does_not_know(
    log: Path,
) -> None:
    older = (log / STATE_FILE).read_bytes()
    Writer(log, topic="t").write(1, rows(["d"]))
    (log / STATE_FILE).write_bytes(older)
    store = fsspec.filesystem("memory")
    store.put(str(log), "/set-back", recursive=True)
    try:
        code, text = call("verify", "memory://set-back", "--json")
    finally:
        store.rm("/set-back", recursive=True)
    assert code == 1
    assert "offsets 3 to 3, which are not committed" in objects(text)[-2]["problem"]


def test_verify_does_not_count_records_of_a_commit_that_is_not_finished(log: Path) -> None:
    cut_off(log)
    assert call("verify", log, "--json")[0] == 0


def test_verify_finds_an_older_commit_state_on_all_nodes(tmp_path: Path) -> None:
    nodes = [tmp_path / name for name in "abc"]
    append(nodes, 0, ["a"])
    older = [(node / STATE_FILE).read_bytes() for node in nodes]
    append(nodes, 1, ["b", "c"])
    (nodes[0] / STATE_FILE).write_bytes(older[0])  # one node alone is overruled
    assert call("verify", path_of(nodes))[0] == 0
    for node, state in zip(nodes, older, strict=True):
        (node / STATE_FILE).write_bytes(state)
    code, text = call("verify", path_of(nodes))
    assert code == 1
    assert "which are not committed" in text


def test_a_dry_run_is_said_to_be_one(log: Path) -> None:
    cut_off(log)
    for command in ("recover", "handover", "takeover"):
        (done,) = call_json(command, log, "--dry-run")
        assert (done["dryRun"], done["takenBack"]) == (True, ["batch 1 of query:4711"])
        said = call(command, log, "--dry-run")[1]
        assert "nothing was changed" in said
        assert "would be rolled back: batch 1 of query:4711" in said
        assert not any(line.startswith(("taken", "written")) for line in said.splitlines())
    assert (log / UNFINISHED_FOLDER).is_dir()
    (done,) = call_json("recover", log)
    assert (done["dryRun"], done["takenBack"]) == (False, ["batch 1 of query:4711"])


def test_salvage_shows_damage_and_drops_what_is_named(log: Path) -> None:
    Writer(log, topic="t").write(1, rows(["d"]))
    segment = log / "t-0" / f"{0:020d}.log"
    assert call("salvage", log) == (0, "nothing is damaged\n")
    data = bytearray(segment.read_bytes())
    data[65] ^= 1
    segment.write_bytes(data)
    name = f"t-0/{segment.name}:0"
    for words in ((log,), (log, "t-0")):
        code, text = call("salvage", *words, "--json")
        (place,) = objects(text)
        assert (code, place["place"], place["start"], place["end"]) == (1, name, 0, 3)
        assert (place["records"], place["done"]) == (3, None)
    header = call("salvage", log)[1].splitlines()[0].split()
    assert header == ["place", "bytes", "start", "end", "records", "done", "kept", "reason"]
    assert call("salvage", log, "u-0")[0] == 2
    assert call("salvage", log, "--drop", "t-0@3")[0] == 2
    (place,) = call_json("salvage", log, "--drop", name)
    assert (place["done"], place["kept"]) == (
        "dropped",
        [str(log / f".kafkalog.salvaged.t-0.{segment.name}.0")],
    )
    assert call_json("salvage", log) == []
    assert call("verify", log)[0] == 0


@pytest.mark.parametrize("command", app.registered_commands, ids=lambda each: str(each.epilog))
def test_the_example_in_each_help_works(
    log: Path, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command.epilog.startswith("Example: kafkalog ")
    nothing = SimpleNamespace(server_port=1, shutdown=list, server_close=list, join=list)
    # else it would serve until Ctrl-C
    monkeypatch.setattr(metrics, "serve", lambda *_: (nothing, nothing))
    if command.callback is get:
        Writer(log, topic="t").write(1, rows(["v"], keys=["k"]))
    if command.callback is delete_group:
        GroupWriter([str(log)], "g").commit({T0: 1})
    nodes = "/a/log;/b/log;/c/log"
    if nodes in command.epilog:
        append([log.parent / name for name in "abc"], 1, ["v"])
    example = command.epilog.replace("/logs", str(log)).replace("/backup", str(log.parent))
    example = example.replace(nodes, path_of(log.parent / name for name in "abc"))
    example = example.replace("/d/log", f"{log}.d")
    if "--remote /tier" in example:
        write_log(log.parent / "moved", [0, 10], 20)
        tier = KafkaTier(log.parent / "tier")
        tier.move(log.parent / "moved" / "t-0", [0, 10])
        write_metadata(log.parent / "moved", tier.records)
        example = example.replace("/tier", str(tier.root))
        example = example.replace(str(log), str(log.parent / "moved"))
    code, text = call(*shlex.split(example)[2:])
    assert code == 0, text


def test_settings_and_lists_are_words_in_a_table(log: Path) -> None:
    assert "compression.type=lz4" in call("describe", log)[1]
    (log / "t-0" / f"{0:020d}.index").write_bytes(b"1" * 8)
    (log / "t-0" / f"{0:020d}.timeindex").write_bytes(b"1" * 12)
    assert f"{0:020d}.index {0:020d}.timeindex" in call("recover", log)[1]


def test_the_command_starts_without_spark_numba_or_arrow() -> None:
    script = """
import sys
from kafkalog.jobs.cli import app
print([name for name in ("pyspark", "numba", "pyarrow", "rich.table") if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
