"""``kafkalog tiers`` shows what lies where, and ``verify`` checks remote segments."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.logs import Row, batch_bytes, write_checkpoint, write_segment
from tests.support.tiers import AivenTier, KafkaTier, Keys, id_of, write_log, write_metadata
from typer.testing import CliRunner

from kafkalog.checkpoints.broker import LOG_START_OFFSET
from kafkalog.jobs.cli.app import app

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result


AT_ONCE = ("--set", "storage.listInterval=0", "--set", "storage.tries=1")
"""What was read a moment ago is read again."""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    log = tmp_path / "log"
    write_log(log, [0, 10, 20, 30], 40)
    write_log(log, [0], 5, name="local-0", topic_id=id_of("local"))
    write_checkpoint(log, LOG_START_OFFSET, {"t-0": 0, "local-0": 0})
    write_checkpoint(log, "replication-offset-checkpoint", {"t-0": 40, "local-0": 5})
    return log


@pytest.fixture
def tier(tmp_path: Path) -> KafkaTier:
    return KafkaTier(tmp_path / "tier")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys"))


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def rows(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_row_says_what_lies_where(log: Path, tier: KafkaTier) -> None:
    tier.move(log / "t-0", [0, 10, 20])
    write_metadata(log, tier.records)
    result = run("tiers", log, "--remote", tier.root, "--json")
    assert result.exit_code == 0
    (row,) = rows(result)
    size = sum(path.stat().st_size for path in tier.folder.glob("*.log"))
    assert row == {
        "topic": "t",
        "partition": 0,
        "topicId": tier.topic_id,
        "remoteStart": 0,
        "remoteEnd": 20,
        "remoteSegments": 2,
        "remoteBytes": size,
        "localStart": 20,
        "localSegments": 2,
        "onlyRemote": [[0, 20]],
        "both": [],
        "onlyLocal": [[20, 40]],
        "path": str(log / "t-0"),
        "orphans": [],
        "gaps": [],
    }
    table = run("tiers", log, "--remote", tier.root).stdout
    assert "remoteSegments" in table
    assert "[20, 40)" in table


def test_offsets_that_lie_in_both_places_and_only_here_are_told(log: Path, tier: KafkaTier) -> None:
    tier.move(log / "t-0", [0, 10])
    tier.upload(log / "t-0", 10, 20)
    tier.upload(log / "t-0", 20, 30)
    write_metadata(log, tier.records)
    (row,) = rows(run("tiers", log, "--remote", tier.root, "--json"))
    assert (row["onlyRemote"], row["both"], row["onlyLocal"]) == (
        [[0, 10]],
        [[10, 30]],
        [[30, 40]],
    )
    (row,) = rows(run("tiers", tier.root, "--json"))  # names alone do not tell where the last ends
    assert (row["onlyRemote"], row["both"], row["onlyLocal"]) == (None, None, None)


def test_orphans_and_gaps_are_shown(log: Path, tier: KafkaTier) -> None:
    tier.move(log / "t-0", [0, 10])
    tier.upload(log / "t-0", 20, 30, finished=False)
    former = KafkaTier(tier.root, topic_id="ZZZZZwQFBgcICQoLDA0ODw")
    former.upload(log / "t-0", 20, 30)
    for path in (log / "t-0").glob(f"{10:020d}.*"):
        path.unlink()
    write_metadata(log, tier.records)
    result = run("tiers", log, "--remote", tier.root, "--json")
    assert result.exit_code == 1
    here, gone = rows(result)
    assert here["gaps"] == [[10, 20]]
    assert (here["onlyRemote"], here["onlyLocal"]) == ([[0, 10]], [[20, 40]])
    assert len(here["orphans"]) == 3
    assert all(f"{20:020d}-" in name for name in here["orphans"])
    assert (gone["topicId"], len(gone["orphans"])) == (former.topic_id, 3)


def test_a_tier_alone_is_shown(log: Path, tmp_path: Path) -> None:
    tier = AivenTier(tmp_path / "aiven")
    tier.move(log / "t-0", [0, 10])
    tier.upload(log / "t-0", 10, 20, manifest=False)
    result = run("tiers", tier.root, "--json")
    (row,) = rows(result)
    assert (row["remoteSegments"], len(row["orphans"]), row["localStart"]) == (1, 2, None)
    assert run("tiers", tier.root, "-t", "t").exit_code == 0
    nothing = run("tiers", tier.root, "-t", "other")
    assert "nothing of these topics" in nothing.stderr
    assert run("tiers", tier.root, log).exit_code == 2


def test_verify_checks_remote_segments(log: Path, tier: KafkaTier) -> None:
    tier.move(log / "t-0", [0, 10, 20])
    write_metadata(log, tier.records)
    assert run("verify", log, "-t", "t").exit_code == 1
    sound = run("verify", log, "-t", "t", "--remote", tier.root, "--json")
    assert sound.exit_code == 0, sound.stdout
    assert [row["segment"] for row in rows(sound)[:-1]] == [
        f"{start:020d}.log" for start in (0, 10, 20, 30)
    ]
    (damaged,) = tier.folder.glob(f"{10:020d}-*.log")
    data = bytearray(damaged.read_bytes())
    data[80] ^= 1
    damaged.write_bytes(data)
    found = run("verify", log, "--remote", tier.root, *AT_ONCE, "--json")
    assert found.exit_code == 1
    (problem,) = [row["problem"] for row in rows(found) if row.get("segment") and row["problem"]]
    assert damaged.name in problem


def test_verify_of_a_tier_alone_checks_chunks(log: Path, tmp_path: Path) -> None:
    tier = AivenTier(tmp_path / "aiven", compression=True)
    stem, _ = tier.move(log / "t-0", [0, 10, 20])
    assert run("verify", tier.root, "--remote", tier.root).exit_code == 0
    path = stem.with_suffix(".log")
    path.write_bytes(path.read_bytes()[:-3])
    damaged = run("verify", tier.root, "--remote", tier.root, *AT_ONCE)
    assert damaged.exit_code == 1
    assert path.name in damaged.stdout


def test_records_of_a_tier_are_shown_with_the_log_and_alone(log: Path, tier: KafkaTier) -> None:
    tier.move(log / "t-0", [0, 10, 20])
    for named in (("--set", f"remote.path={tier.root}"), ("--remote", tier.root)):
        whole = run("consume", log, "-t", "t", "--format", "%o ", *named)
        assert whole.stdout.split() == [str(offset) for offset in range(40)], whole.stderr
        alone = run("consume", "--format", "%o ", *named, tier.root)
        assert alone.stdout.split() == [str(offset) for offset in range(20)], alone.stderr
    alone = run("consume", "--format", "%o ", "--remote", tier.root, "--remote-layout", "kafka")
    assert alone.stdout.split() == [str(offset) for offset in range(20)], alone.stderr


@pytest.mark.parametrize(
    ("words", "column", "whole", "alone"),
    [
        ("topic list", "partitions", [1, 1], [1]),
        ("topic describe -t t", "start", [0], [0]),
        ("topic offsets -t t", "end", [40], [20]),
        ("topic stats -t t", "records", [40], [20]),
        ("dump -t t", "baseOffset", [*range(0, 40, 2)], [*range(0, 20, 2)]),
        ("dump -t t --records", "offset", [*range(40)], [*range(20)]),
        ("find --text 7", "offset", [7, 17, 27, 37], [7, 17]),
        ("get -t t --key k --as-of-offset 12", "offset", [11], [11]),
    ],
)
def test_every_command_that_reads_takes_a_tier(
    log: Path,
    tmp_path: Path,
    keys: Keys,
    words: str,
    column: str,
    whole: list[int],
    alone: list[int],
) -> None:
    for offset in range(0, 40, 10):
        write_segment(
            log / "t-0",
            offset,
            b"".join(
                batch_bytes(n, [Row(str(m).encode(), key=b"k") for m in (n, n + 1)])
                for n in range(offset, offset + 10, 2)
            ),
            index=True,
        )
    tier = AivenTier(tmp_path / "aiven", key=keys.public["one"], compression=True)
    tier.move(log / "t-0", [0, 10, 20])
    named = ("--remote", tier.root, "--remote-layout", "aiven", "--remote-keys", keys.option)
    for places, expected in (([log], whole), ([], alone)):
        result = run(*words.split(), *places, *named, "--json")
        assert [row[column] for row in rows(result)] == expected, result.stderr


def test_sql_asks_a_tier_too(log: Path, tier: KafkaTier) -> None:
    tier.move(log / "t-0", [0, 10, 20])
    for places, count in (([log], 40), ([], 20)):
        result = run("sql", *places, "select count(*) n from t", "--remote", tier.root, "--json")
        assert rows(result) == [{"n": count}], result.stderr


def test_how_a_tier_is_read_is_refused_without_it(log: Path) -> None:
    for words in (("--remote-layout", "kafka"), ("--remote-keys", "a=/k"), ("--set", "a=b")):
        result = run("topic", "offsets", log, *words)
        assert result.exit_code == 2
        said = " ".join(result.output.replace("│", " ").split())
        assert "go with --remote" in said or "where it has --remote, also" in said
