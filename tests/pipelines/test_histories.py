"""Pipelines whose source, target or checkpoint is set back: nothing is lost, doubled or mixed."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

import pytest
from tests.pipelines.archives import RESTORE, Archived, InFiles, WithNewest
from tests.pipelines.guards import GUARDS
from tests.pipelines.histories import KINDS, History, KilledError
from tests.pipelines.sinks import Streamed
from tests.pipelines.sources import TOPIC, InBucket, Source, bounds, objects_of
from tests.support.bucket_model import without_rests
from tests.support.copying import cut

from kafkalog.errors import DataLossError, TargetMismatchError
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.retention import delete_records
from kafkalog.streaming.objects import bucket_store

if TYPE_CHECKING:
    from pathlib import Path

HISTORIES: Final = 10
"""``make pipelines`` runs more."""


@pytest.mark.parametrize("number", range(HISTORIES))
def test_a_target_has_what_its_source_held_whatever_is_set_back(
    tmp_path: Path, number: int
) -> None:
    kind = [*KINDS][number % len(KINDS)]
    History(tmp_path, f"pipelines/{number}", kind).run()


@pytest.mark.parametrize("number", range(len(KINDS)))
def test_so_it_has_where_the_source_lies_in_a_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    without_rests(monkeypatch)
    monkeypatch.setattr(bucket_store, "open_objects", objects_of)
    History(tmp_path, f"bucket/{number}", [*KINDS][number], source=InBucket).run()


def test_a_replay_mixes_no_rows_of_a_topic_in_a_bucket_that_is_made_again_under_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_rests(monkeypatch)
    monkeypatch.setattr(bucket_store, "open_objects", objects_of)
    History(tmp_path, "amid/2", "replay", source=InBucket).run(amid=("piece decided", "recreate"))


_QUICK_GUARDS: Final = 6
"""Of how many it is seen in each run that their history needs them: some take 10 s."""


@pytest.mark.parametrize(
    "what",
    [
        *list(GUARDS)[-_QUICK_GUARDS:],
        *(pytest.param(each, marks=pytest.mark.nightly) for each in list(GUARDS)[:-_QUICK_GUARDS]),
    ],
)
def test_a_history_finds_that_a_guard_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    guard = GUARDS[what]
    for name in ("with", "without"):
        (tmp_path / name).mkdir()
    guard.let_happen(tmp_path / "with")
    guard.take_out(monkeypatch)
    with pytest.raises(AssertionError):
        guard.let_happen(tmp_path / "without")


_REMOVED: Final = "target remove, source append, run, run"
_SET_BACK: Final = "target keep, source append, run, target put_back, run, run"
_RECREATED: Final = "source recreate, source append, source append, source append, run, run"
_WAYS: Final = {
    **{(kind, way): _REMOVED for kind in KINDS for way in KINDS[kind].ways},
    ("replay", "--from-target"): _SET_BACK,
    ("replay", "kafkalog topic alter"): "source add_partition, run, run",
    **{(kind, RESTORE): "target write, source append, run, run" for kind in KINDS},
    ("batches", "leave this write out"): "source retain, target lose_last_commit, run, run",
    ("sink", Streamed.ways[0]): "target lose_checkpoint, source append, run, run",
    ("ingest", "kafkalog topic delete"): _RECREATED,
    **{("restore", way): _RECREATED for way in KINDS["restore"].ways},
}


@pytest.mark.parametrize(
    ("kind", "way"), [(kind, way) for kind in KINDS for way in KINDS[kind].ways]
)
def test_each_way_on_that_a_refusal_names_is_followed(tmp_path: Path, kind: str, way: str) -> None:
    """Of a few histories that begin alike, one is refused so, and goes on that way."""
    for number in range(8):
        folder = tmp_path / str(number)
        folder.mkdir()
        history = History(folder, f"way/{number}", kind)
        history.target.ways = (way,)
        try:
            history.follow(["run", *_WAYS[kind, way].split(", ")])
        except AssertionError as error:
            if not str(error).startswith("no way on is named"):
                raise
        if any(told.startswith(f"run {way}: ok") for told in history.told):
            return
    raise AssertionError(f"nothing named {way!r}")


@pytest.mark.parametrize("way", ["--from-target continues", "another topic"])
def test_a_topic_that_is_gone_is_not_to_be_deleted_before_it_is_taken_in_again(
    tmp_path: Path, way: str
) -> None:
    history = History(tmp_path, "gone/1", "ingest")
    history.target.ways = (way,)
    history.follow(["run", "target remove", "run"])
    refusal = next(told for told in history.told if "TargetMismatchError" in told)
    assert way in refusal
    assert "kafkalog topic delete" not in refusal


def test_a_replay_of_a_recreated_topic_is_not_advised_to_continue(tmp_path: Path) -> None:
    history = History(tmp_path, "recreated/1", "replay")
    history.follow(["run", "source recreate", "target remove"])
    with pytest.raises(DataLossError, match=r"deleted and recreated: .* Give another --checkpoint"):
        history.target.run(history.source, lambda _: None)


def test_a_log_that_is_cut_between_plan_and_read_mixes_nothing(tmp_path: Path) -> None:
    chance = random.Random(1)
    source, target = Source(tmp_path, chance), InFiles(tmp_path, chance)
    source.write(0, "ab")
    target.run(source, lambda _: None)
    before = target.rows()
    source.write(0, "ab")

    def step(name: str) -> None:
        if name.endswith("split"):
            cut(source.path, max(before[0]))
            source.line.rows[0] = {}
            for _ in range(9):
                source.write(0, "ab")

    with pytest.raises(DataLossError, match="has another history than the one that was read"):
        target.run(source, step)
    assert target.rows() == before


@pytest.mark.parametrize("kind", ["mirror", "replay", "archive", "ingest"])
def test_a_log_that_was_cut_and_compacted_since_has_another_history(
    tmp_path: Path, kind: str
) -> None:
    """A cleaner leaves of the new batch as little as it might have left of the one before."""
    chance = random.Random(1)
    source, target = Source(tmp_path, chance), KINDS[kind](tmp_path, chance)
    source.write(0, "aba")
    target.run(source, lambda _: None)
    base = bounds(source.path)[0][1] - 3
    cut(source.path, base)
    source.line.rows[0] = {at: v for at, v in source.line.rows[0].items() if at < base}
    for keys in ("aba", "ab", "ab", "ab", "ab"):
        source.write(0, keys)
    source.compact()
    with pytest.raises(TargetMismatchError, match="holds other records than its source has"):
        target.run(source, lambda _: None)


@pytest.mark.parametrize("lost", ["checkpoint", "nothing but the table"])
def test_a_table_whose_neighbour_is_made_anew_gets_no_gap(tmp_path: Path, lost: str) -> None:
    """The new one begins where the log does, above what the other one holds."""
    chance = random.Random(1)
    source, tables = Source(tmp_path, chance), WithNewest(tmp_path, chance)
    tables.run(source, lambda _: None)
    held = bounds(source.path)
    source.append(9)
    for number, (_, end) in held.items():
        delete_records([str(source.path)], {TopicPartition(TOPIC, number): end + 1})
    tables.newest.remove()
    if lost == "checkpoint":
        tables.lose_checkpoint()
    way = "" if lost == "checkpoint" else "--from-target"
    with pytest.raises(DataLossError, match="before the table model got them: t-0 from 3 to 3"):
        tables.run(source, lambda _: None, way)
    tables.run(source, lambda _: None, way, options={"failOnDataLoss": "false"})
    tables.check(source)


def test_a_table_that_is_restored_before_the_first_batch_of_a_new_checkpoint_gets_no_gap(
    tmp_path: Path,
) -> None:
    chance = random.Random(1)
    source, table = Source(tmp_path, chance), Archived(tmp_path, chance)
    table.run(source, lambda _: None)
    version = len(table.model.versions) - 1
    source.append(4)
    table.run(source, lambda _: None)
    table.lose_checkpoint()
    source.append(3)
    with pytest.raises(TargetMismatchError, match="continues above the end"):
        table.run(source, lambda name: table.model.restore(version) if name == "prepared" else None)
    table.run(source, lambda _: None, "--from-target")
    table.check(source)


def test_a_table_that_is_restored_amid_a_run_gets_no_gap_though_its_log_was_cleaned_up(
    tmp_path: Path,
) -> None:
    chance = random.Random(1)
    source, table = Source(tmp_path, chance), Archived(tmp_path, chance)
    table.run(source, lambda _: None)
    table.model.commit("OPTIMIZE")
    version = table.model.first = table.version

    def step(name: str) -> None:
        if name == "batch 2 taken":
            table.model.restore(version)

    source.append(20)
    with pytest.raises(TargetMismatchError, match="continues above the end"):
        table.run(source, step, options={"maxOffsetsPerTrigger": "2"})
    table.run(source, lambda _: None, "--from-target")
    table.check(source)


def test_files_without_rows_take_no_checkpoint_of_another_query(tmp_path: Path) -> None:
    """It lacks its last commit, so it looks as if the first batch had been cut off."""

    def step(name: str) -> None:
        if name == "batch 0 read":
            raise KilledError(name)

    chance = random.Random(1)
    source, table = Source(tmp_path, chance), InFiles(tmp_path, chance)
    with pytest.raises(KilledError):
        table.run(source, step)
    table.take_other_checkpoint()
    table.lose_last_commit()
    with pytest.raises(TargetMismatchError, match="was written by the query"):
        table.run(source, lambda _: None, options={"failOnDataLoss": "false"})
