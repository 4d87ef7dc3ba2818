"""Every advice that a message prints is followed, word by word, and ends well.

A case breaks something, gets the message, and takes the command out of it: with its flags, and with
the path where the person stands. In the end all rows are there that the advice promises, a write
goes on, and ``kafkalog verify`` finds nothing. The tree of the sources is walked: a message that
names a command in backquotes has to be in some case.
"""

from __future__ import annotations

import ast
import functools
import json
import logging
import re
import shlex
import shutil
import subprocess
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest
import typer
from tests.support.handed_nodes import format_nodes, know
from tests.support.log_files import flip
from tests.support.logs import Row, append_batch, batch_bytes, write_checkpoint
from tests.support.transactions import COMMIT, marker, producer_batch
from typer.testing import CliRunner

import kafkalog
from kafkalog.checkpoints.broker import (
    CLEAN_SHUTDOWN,
    HIGH_WATERMARK,
    LOG_START_OFFSET,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINT,
    write_topic_id,
)
from kafkalog.checkpoints.commit_state import STATE_FILE, UNFINISHED_FOLDER
from kafkalog.checkpoints.intent import INTENT_FILE
from kafkalog.errors import KafkaLogError
from kafkalog.files.paths import split_paths
from kafkalog.files.system import system
from kafkalog.jobs.cli.app import app
from kafkalog.jobs.rebuild import app as rebuild_app
from kafkalog.streaming.admin import salvage
from kafkalog.streaming.admin.broker import handover, node_handover
from kafkalog.streaming.store.log_set import LogSet
from kafkalog.streaming.store.open_set import open_set
from kafkalog.streaming.store.policy import SetPolicy
from kafkalog.streaming.store.replicas import open_nodes
from kafkalog.streaming.store.replicas.quorum import Quorum

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOME: Final = Path(kafkalog.__file__).parents[2]
COMMAND: Final = re.compile(r"`(kafkalog [^`]+)`")
FIRST: Final = [f"row {n}" for n in range(8)]

PLACES: Final = {
    "one": "{0}/log",
    "two directories": "{0}/log1,{0}/log2",
    "three": "{0}/a;{0}/b;{0}/c",
    "three of two": "{0}/a1,{0}/a2;{0}/b;{0}/c",
    "witness": "{0}/a;{0}/b;witness:{0}/w",
}


class Place:
    """Log directories with eight rows of ``t`` in two partitions; what a person does with them."""

    def __init__(self, root: Path, kind: str) -> None:
        self.root = root
        self.path = PLACES[kind].format(root)
        self.rows = list(FIRST)
        self.flush = "commit"
        self.version = 2

    @property
    def folders(self) -> list[Path]:
        """The log directories, those of a witness too."""
        return [Path(each) for each in split_paths(self.path)]

    @property
    def logs(self) -> list[Path]:
        """The files of segments of ``t-0``, one for each replica."""
        found = [sorted((folder / "t-0").glob("*.log")) for folder in self.folders]
        return [each[-1] for each in found if each]

    def write(self, version: int, values: list[str], path: str | None = None) -> None:
        table = pa.table(
            {
                "value": values,
                "partition": pa.array([n % 2 for n in range(len(values))], pa.int32()),
            }
        )
        options = {"numPartitions": "2", "flush": self.flush}
        kafkalog.append(
            path or self.path, "t", table, transactional_id="w", version=version, options=options
        )

    def values(self) -> list[str]:
        found = kafkalog.read(self.path, "t", columns=["value"], strings=["value"])
        return sorted(found.read_all()["value"].to_pylist())

    def refused(self, act: Callable[[], object] | None = None) -> str:
        """Return what a write, or ``act``, in a new process is refused with."""
        system.memory.clear()
        with pytest.raises(KafkaLogError) as caught:
            (act or (lambda: self.write(self.version, ["never"])))()
        return str(caught.value)

    def told(self, act: Callable[[], object]) -> str:
        """Return what ``act`` logs."""
        said: list[str] = []
        heard = logging.Handler()
        heard.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("kafkalog").addHandler(heard)
        act()
        logging.getLogger("kafkalog").removeHandler(heard)
        return "\n".join(said)

    def allowed(self) -> None:
        """Write where a broker lived."""
        table = pa.table({"value": ["never"], "partition": pa.array([0], pa.int32())})
        options = {"allowBrokerDirectory": "true"}
        kafkalog.append(self.path, "t", table, options=options)

    def run(self, *words: str, code: int = 0) -> str:
        """Run a command; returns what it prints."""
        system.memory.clear()
        done = CliRunner().invoke(app, list(words))
        assert done.exit_code == code, (words, done.exit_code, done.output, done.exception)
        return done.output

    def follow(
        self, message: str, name: str, *more: str, path: str | None = None, code: int = 0
    ) -> str:
        """Run the command that a message names, here, with what a person has to add."""
        found = [each for each in COMMAND.findall(message) if each.startswith(f"kafkalog {name}")]
        assert found, (name, message)
        words = shlex.split(found[0])[1:]
        at = path or self.path
        if "PATH" in words:
            words[words.index("PATH")] = at
        else:
            words.insert(len(name.split(" ")) if " ".join(words).startswith(name) else 1, at)
        return self.run(*words, *more, code=code)

    def check(self, values: list[str] | None = None, *, verifies: bool = True) -> None:
        """See that all rows are there, that writes go on, and that nothing is wrong."""
        expected = self.rows if values is None else values
        for folder in self.folders:
            folder.mkdir(exist_ok=True)
        assert self.values() == sorted(expected)
        for _ in range(2):
            self.write(self.version + 7, [f"new {self.version}"])
            expected = [*expected, f"new {self.version}"]
            self.version += 1
        assert self.values() == sorted(expected)
        if verifies:
            self.run("verify", self.path)


def messages() -> dict[str, str]:
    """Return the texts in the sources that name a command in backquotes, by where they are."""
    found: dict[str, str] = {}
    for path in _sources():
        tree = ast.parse(path.read_text())
        skipped = {id(part) for node in ast.walk(tree) for part in _not_said(node)}
        for node in ast.walk(tree):
            text = None if id(node) in skipped else _text(node)
            if text and COMMAND.search(text):
                found[f"{path.relative_to(HOME)}:{node.lineno}"] = text  # type: ignore[attr-defined]
    return found


def _sources() -> Iterator[Path]:
    for room in ("streaming", "checkpoints", "jobs", "src/kafkalog/files"):
        yield from sorted((HOME / room).rglob("*.py"))
    yield HOME / "src" / "kafkalog" / "errors.py"


def _not_said(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what is no text of its own: docstrings, and the parts of others."""
    if isinstance(node, ast.Expr):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield from (part for value in node.values for part in ast.walk(value))


def _text(node: ast.AST) -> str | None:
    if isinstance(node, ast.JoinedStr):
        parts = (_text(value) or f"{{{ast.unparse(value)}}}" for value in node.values)
        return "".join(part.replace("{{", "{").replace("}}", "}") for part in parts)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


MESSAGES: Final = messages()

Case = Any
CASES: Final[list[tuple[str, str, Case]]] = []
SAID: Final[list[str]] = []
"""A part of each message, as the source has it, whose advice some case follows."""


def case(*said: str, on: str = "one") -> Callable[[Case], Case]:
    """Note a case of messages by parts that their sources have, in places of some kinds."""

    def noted(function: Case) -> Case:
        CASES.extend((function.__name__, kind, function) for kind in on.split(", "))
        SAID.extend(said)
        return function

    return noted


# What lies in the roots


RESTORE = "move the kafkalog.* files of all of them away"


def move_ours(*folders: Path) -> None:
    for folder in folders:
        for path in folder.glob("kafkalog.*"):
            path.rename(folder.parent / f"{folder.name}-{path.name}.away")


@case(RESTORE, on="one, two directories")
def damaged_state_continues_from_the_logs(place: Place) -> None:
    for folder in place.folders:
        flip(folder / STATE_FILE, 300)
    message = place.refused()
    assert RESTORE in message
    move_ours(*place.folders)
    place.follow(message, "broker takeover")
    place.check()


@case("restore a backup in an empty place", on="three, witness")
def no_majority_is_left_and_a_backup_is_restored(place: Place) -> None:
    place.run("backup", place.path, f"{place.root}/backup")
    for folder in place.folders[1:]:
        (folder / STATE_FILE).unlink()
    assert "restore a backup in an empty place" in place.refused()
    place.path = f"{place.root}/backup;{place.root}/new1;{place.root}/new2"
    place.check()


@case("takes it in", on="three, witness")
def an_empty_disk_takes_the_place_of_a_lost_node(place: Place) -> None:
    lost = place.folders[-1]
    shutil.rmtree(lost)
    lost.mkdir()
    message = place.run("recover", place.path, code=1)
    place.follow(message, "node vote")
    place.run("recover", place.path)
    place.run("replicas", place.path)
    place.check()


def restore(place: Place) -> None:
    """Put the backup of a set of one node in its place."""
    backup = place.root / "backup"
    copies = [backup, *sorted(path for path in backup.iterdir() if path.name.isdecimal())]
    for folder, copy in zip(place.folders, copies[-len(place.folders) :], strict=True):
        shutil.rmtree(folder)
        copy.rename(folder)


@case("Restore all log directories of the set from one backup", on="one, two directories")
def damaged_state_is_restored_from_a_backup(place: Place) -> None:
    place.run("backup", place.path, f"{place.root}/backup")
    for folder in place.folders:
        flip(folder / STATE_FILE, 300)
    assert "from one backup" in place.refused()
    restore(place)
    place.check()


def continue_from_one_node(place: Place, message: str, *, drops: bool = False) -> None:
    """Make a set of what the logs of the first node hold, and the first node of another set."""
    first = place.folders[0]
    move_ours(first)
    place.follow(message, "broker takeover", path=str(first), code=int(drops))
    if drops:
        salvaged(place, message, "drop", str(first))
        place.follow(message, "broker takeover", path=str(first))
    place.path = f"{first};{place.root}/new1;{place.root}/new2"


@case("move its kafkalog.* files away", on="three, witness")
def no_majority_is_left_and_one_nodes_logs_are_continued(place: Place) -> None:
    for folder in place.folders[1:]:
        flip(folder / STATE_FILE, 300)
    continue_from_one_node(place, place.refused())
    place.check()


# What a log has lost, or has too much


def salvaged(place: Place, message: str, how: str, path: str | None = None) -> None:
    """Look what is damaged, as the message says, and then say what is to be done about it."""
    shown = place.follow(message, "salvage", path=path, code=1)
    for line in shown.splitlines():
        if line.startswith("t-"):
            place.run("salvage", path or place.path, f"--{how}", line.split(" ")[0])


def rebuild_indexes(place: Place) -> None:
    """Let indexes be rebuilt as ``verify`` says."""
    message = place.run("verify", place.path, code=1)
    (words,) = {*re.findall(r"`python -m kafkalog.jobs.rebuild ([^`]*)`", message)}
    assert words == "PATH"
    done = CliRunner().invoke(rebuild_app, [place.path])
    assert done.exit_code == 0, done.output


@case("python -m kafkalog.jobs.rebuild PATH", on="one, three")
def a_damaged_index_is_rebuilt(place: Place) -> None:
    for path in place.logs:
        path.with_suffix(".index").write_bytes(b"\1" * 7)
        path.with_suffix(".timeindex").unlink()
    rebuild_indexes(place)
    place.check()


@case("Bring back a node that has it whole, and run", on="three, witness")
def all_replicas_lost_their_ends_and_one_is_continued(place: Place) -> None:
    lose_the_last_batch(place)
    message = place.refused()
    assert "files of all log" not in message
    continue_from_one_node(place, message)
    place.check([row for row in FIRST if row not in {"row 4", "row 6"}])


@case("Bring back a node that has it whole, and run", on="three")
def all_replicas_lost_their_ends_but_one_that_comes_back(place: Place) -> None:
    away = place.folders[2].rename(place.root / "away")
    lose_the_last_batch(place)
    message = place.refused()
    away.rename(place.folders[2])
    place.follow(message, "recover")
    place.check()


@case("was left as it is: {texts}", "What is damaged there", on="three, witness")
def all_replicas_are_damaged(place: Place) -> None:
    for path in place.logs:
        flip(path, path.stat().st_size - 3)
    message = place.refused()
    assert "Bring back a node that is away" in place.run("recover", place.path, code=1)
    continue_from_one_node(place, message, drops=True)
    place.check([row for row in FIRST if row not in {"row 4", "row 6"}])


def lose_the_last_batch(place: Place) -> None:
    for path in place.logs:
        data = path.read_bytes()
        path.write_bytes(data[: int.from_bytes(data[8:12], "big") + 12])


AT_THEM: Final = "continue after the missing offsets, or at them"


@case(AT_THEM)
def a_log_that_lost_its_end_continues_after_the_missing_offsets(place: Place) -> None:
    lose_the_last_batch(place)
    salvaged(place, place.refused(), "drop")
    rebuild_indexes(place)
    place.check([row for row in FIRST if row not in {"row 4", "row 6"}])


@case(AT_THEM)
def a_log_that_lost_its_end_continues_at_the_missing_offsets(place: Place) -> None:
    lose_the_last_batch(place)
    salvaged(place, place.refused(), "cut")
    place.check([row for row in FIRST if row not in {"row 4", "row 6"}])


@case("files of all log directories away, and run")
def a_log_that_lost_its_end_is_taken_over(place: Place) -> None:
    lose_the_last_batch(place)
    message = place.refused()
    move_ours(*place.folders)
    place.follow(message, "broker takeover")
    place.check([row for row in FIRST if row not in {"row 4", "row 6"}])


@case("which accepts that")
def a_log_ends_below_its_high_watermark_and_is_taken_over(place: Place) -> None:
    write_checkpoint(place.folders[0], HIGH_WATERMARK, {"t-0": 9, "t-1": 4})
    place.follow(place.refused(), "broker takeover")
    place.check()


@case("drop what is damaged: it keeps the original")
def a_damaged_log_is_salvaged(place: Place) -> None:
    for path in place.logs:
        flip(path, path.stat().st_size - 3)
    salvaged(place, place.refused(), "drop")
    place.check([row for row in FIRST if row not in {"row 4", "row 6"}])


@case("takes these records over as they are")
def records_that_nobody_wrote_are_taken_over(place: Place) -> None:
    append_batch(place.logs[0], batch_bytes(4, [Row(b"strange")]))
    place.follow(place.refused(), "broker takeover")
    place.check([*FIRST, "strange"])


@case("which copies it from there. To keep", on="three")
def records_that_nobody_wrote_to_one_replica_are_done_without(place: Place) -> None:
    leader = place.logs[replicas_of(place, "t")[0]]
    append_batch(leader, batch_bytes(4, [Row(b"strange")]))
    message = place.refused()
    (folder,) = re.findall(r"move (\S+) away, and run", message)
    Path(folder).rename(place.root / "elsewhere")
    place.follow(message, "recover")
    place.check()


@case("which copies it from there. To keep", on="three")
def records_that_nobody_wrote_to_all_replicas_are_kept(place: Place) -> None:
    for path in place.logs:
        append_batch(path, batch_bytes(4, [Row(b"strange")]))
    continue_from_one_node(place, place.refused())
    place.check([*FIRST, "strange"])


@case("takes them over as they are; ", on="one, three")
def what_a_reader_says_of_records_that_nobody_wrote_is_done(place: Place) -> None:
    for path in place.logs:
        append_batch(path, batch_bytes(4, [Row(b"strange")]))
    message = place.told(place.values)
    if ";" in place.path:
        continue_from_one_node(place, place.follow(message, "recover", code=1))
    else:
        place.follow(message, "broker takeover")
    place.check([*FIRST, "strange"])


@case("It is under way, or was", "have not become committed for")
def what_a_reader_says_of_a_commit_that_was_cut_off_is_done(place: Place) -> None:
    cut_off(place)
    message = place.told(place.values)
    (other,) = (text for text in MESSAGES.values() if "have not become committed for" in text)
    assert COMMAND.findall(message) == COMMAND.findall(other)
    place.follow(message, "recover")
    place.check()


@case("kafkalog backup` makes one while queries")
def records_that_nobody_wrote_are_replaced_by_a_backup(place: Place) -> None:
    place.run("backup", place.path, f"{place.root}/backup")
    append_batch(place.logs[0], batch_bytes(4, [Row(b"strange")]))
    assert "Restore a whole copy" in place.refused()
    restore(place)
    place.check()


@case("aborts it when")
def an_open_transaction_is_aborted(place: Place) -> None:
    append_batch(place.logs[0], producer_batch(4, 1, 1))
    (place.folders[0] / META_PROPERTIES).write_text("version=1\n")
    message = place.refused(place.allowed)
    abort_open(place, place.follow(message, "broker takeover", code=1))
    (place.folders[0] / META_PROPERTIES).unlink()
    place.check([*FIRST, "4"])


@case("earlier topic of that name, run")
def a_log_start_above_the_end_is_forgotten(place: Place) -> None:
    for folder in place.folders:
        write_checkpoint(folder, LOG_START_OFFSET, {"t-0": 99})
    message = place.refused()
    place.follow(message, "recover")
    place.check()


@case("corrects indexes of active segments")
def a_damaged_index_is_corrected(place: Place) -> None:
    place.logs[0].with_suffix(".index").write_bytes(b"\1" * 7)
    place.follow(kafkalog.errors.CorruptIndexError.remedy, "recover")
    place.check()


# Folders that are lost, or one too many


@case("a partition has one folder", on="two directories")
def a_partition_with_two_folders_keeps_one(place: Place) -> None:
    here, there = (folder / "t-0" for folder in place.folders)
    first, second = (here, there) if here.is_dir() else (there, here)
    shutil.copytree(first, second)
    message = place.refused()
    assert "move one of them away" in message
    second.rename(place.root / "elsewhere")
    place.check()


@case("lacks folders of partitions that were committed", "were committed and have no folder")
def a_lost_folder_is_done_without(place: Place) -> None:
    shutil.rmtree(place.folders[0] / "t-1")
    message = place.refused()
    with pytest.raises(KafkaLogError, match="have no folder") as caught:
        place.values()
    place.follow(message, "broker takeover")
    assert COMMAND.findall(message) == COMMAND.findall(str(caught.value).replace("\n", " "))
    place.check([row for n, row in enumerate(FIRST) if n % 2 == 0])


@case("write the file again: ")
def a_folder_that_lost_its_id_gets_it_again(place: Place) -> None:
    for number in (0, 1):
        (place.folders[0] / f"t-{number}" / PARTITION_METADATA).unlink()
    (command,) = re.findall(r"(printf '[^']*' > \S+)", place.refused())
    subprocess.run(["/bin/sh", "-c", command], check=True)
    place.run("recover", place.path)  # and the other one
    place.check()


@case("replicas are not taken over together", on="three, witness")
def nodes_that_have_all_lost_their_states_are_taken_over_alone(place: Place) -> None:
    for folder in place.folders:
        (folder / STATE_FILE).unlink()
    continue_from_one_node(place, place.run("takeover", place.path, code=2))
    place.check()


@case("and no {STATE_FILE}: its commit state was lost, or others made them")
def directories_without_a_state_are_taken_over(place: Place) -> None:
    (place.folders[0] / STATE_FILE).unlink()
    message = place.refused()
    place.follow(message, "broker takeover")
    place.check()


@case("so the sink never")
def directories_in_which_nobody_wrote_are_taken_over(place: Place) -> None:
    (place.folders[0] / STATE_FILE).unlink()
    message = place.run("recover", place.path, code=2)
    place.follow(message, "broker takeover")
    place.check()


@case("To make it a topic", on="one")
def a_copied_topic_becomes_one_of_its_own(place: Place) -> None:
    for partition in (0, 1):
        shutil.copytree(place.folders[0] / f"t-{partition}", place.folders[0] / f"u-{partition}")
    message = place.refused(lambda: kafkalog.append(place.path, "u", pa.table({"value": ["x"]})))
    for partition in (0, 1):
        (place.folders[0] / f"u-{partition}" / PARTITION_METADATA).unlink()
    place.follow(message, "broker takeover")
    kafkalog.append(place.path, "u", pa.table({"value": ["x"]}))
    assert kafkalog.read(place.path, "u").read_all().num_rows == 9
    place.check()


def put_id(place: Place, *partitions: int) -> None:
    for folder in (f / f"t-{number}" for f in place.folders for number in partitions):
        if folder.is_dir():
            text = "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ"
            (folder / PARTITION_METADATA).write_text(text)


@case("it may be another topic of that name")
def a_folder_of_another_topic_is_moved_away_before_its_topic_is_deleted(place: Place) -> None:
    put_id(place, 1)
    message = place.run("delete", place.path, "--topic", "t", code=2)
    assert "takeover" not in message
    (place.folders[0] / "t-1").rename(place.root / "elsewhere")
    place.run("delete", place.path, "--topic", "t")
    place.write(place.version, FIRST)
    place.check()


@case(", or run `kafkalog broker takeover` to keep it")
def another_topic_of_that_name_is_kept(place: Place) -> None:
    put_id(place, 0, 1)
    message = place.run("delete", place.path, "--topic", "t", code=2)
    place.follow(message, "broker takeover")
    place.check()


# Nodes and replicas


def append_to(place: Place, topic: str, value: str, **options: str) -> None:
    system.memory.clear()
    table = pa.table({"value": [value]})
    given = {"replication.factor": "2", "min.insync.replicas": "1", **options}
    kafkalog.append(place.path, topic, table, options=given)


def values_of(place: Place, topic: str) -> list[str]:
    found = kafkalog.read(place.path, topic, columns=["value"], strings=["value"])
    return sorted(found.read_all()["value"].to_pylist())


def replicas_of(place: Place, topic: str) -> list[int]:
    """Return the nodes that hold the first partition of a topic, its leader first."""
    shown = place.run("replicas", place.path, "--topic", topic, "--json")
    row = json.loads(shown.splitlines()[0])
    return [row["leader"], *(node for node in row["replicas"] if node != row["leader"])]


def lose_the_only_replica_in_sync(place: Place) -> tuple[int, Path]:
    """Let the last record of topic ``s`` be on one node, which goes away; returns that."""
    append_to(place, "s", "on both")
    leader, follower = replicas_of(place, "s")
    away = place.folders[follower].rename(place.root / "follower")
    append_to(place, "s", "on one")
    away.rename(place.folders[follower])
    return leader, place.folders[leader].rename(place.root / "leader")


@case("continues with another replica", on="three")
def a_partition_without_a_replica_in_sync_waits_for_its_node(place: Place) -> None:
    leader, away = lose_the_only_replica_in_sync(place)
    message = place.refused(lambda: append_to(place, "s", "never"))
    place.follow(message, "node list", code=1)
    away.rename(place.folders[leader])
    append_to(place, "s", "new")
    assert values_of(place, "s") == ["new", "on both", "on one"]
    place.check()


@case("continues with another replica", on="three")
def a_partition_without_a_replica_in_sync_is_led_by_another(place: Place) -> None:
    lose_the_only_replica_in_sync(place)
    message = place.refused(lambda: append_to(place, "s", "never"))
    place.follow(message.replace("TOPIC", "s"), "node elect", "--yes")
    append_to(place, "s", "new")
    assert values_of(place, "s") == ["new", "on both"]


@case("is in sync on node {instead_of} only", on="three")
def a_node_that_alone_is_in_sync_is_replaced(place: Place) -> None:
    leader, _ = lose_the_only_replica_in_sync(place)
    words = ("reassign", place.path, "--replace", f"{leader}={place.root}/new")
    message = place.run(*words, code=2)
    place.follow(message, "node elect", "--yes")
    place.run(*words)
    folders = [place.root / "new" if n == leader else f for n, f in enumerate(place.folders)]
    place.path = ";".join(map(str, folders))
    place.run("recover", place.path)
    place.run("replicas", place.path)
    assert values_of(place, "s") == ["on both"]
    place.check()


@case("is in sync on node {instead_of} only", on="three")
def a_node_that_alone_is_in_sync_comes_back_before_it_is_replaced(place: Place) -> None:
    leader, away = lose_the_only_replica_in_sync(place)
    words = ("reassign", place.path, "--replace", f"{leader}={place.root}/new")
    message = place.run(*words, code=2)
    away.rename(place.folders[leader])
    place.follow(message, "recover")
    place.run(*words)
    assert values_of(place, "s") == ["on both", "on one"]


@case("continues it, and `kafkalog node reassign PATH", on="three")
def a_move_that_has_not_ended_is_continued_or_given_up(place: Place) -> None:
    append_to(place, "s", "first")
    first, second = replicas_of(place, "s")
    third = 3 - first - second
    away = place.folders[third].rename(place.root / "away")
    words = ("reassign", place.path, "--topic", "s", "--to")
    place.run(*words, f"{first},{third}", code=1)
    message = place.run(*words, f"{second},{third}", code=2)
    place.follow(message, "node reassign PATH --cancel")
    place.run(*words, f"{first},{third}", code=1)
    message = place.run(*words, f"{second},{third}", code=2)
    away.rename(place.folders[third])
    place.follow(message, "node reassign PATH")
    place.run(*words, f"{second},{third}")
    assert values_of(place, "s") == ["first"]
    place.check()


@case("has no replica in sync that is there, or the node", on="three")
def a_backup_waits_for_a_node(place: Place) -> None:
    leader, away = lose_the_only_replica_in_sync(place)
    message = place.run("backup", place.path, f"{place.root}/backup", code=2)
    place.follow(message, "node list", code=1)
    away.rename(place.folders[leader])
    shutil.rmtree(place.root / "backup")
    place.run("backup", place.path, f"{place.root}/backup")
    place.check()


@case("is not in sync on node {node}: run", on="three of two")
def a_folder_that_is_not_in_sync_is_copied_before_it_moves(place: Place) -> None:
    for folder in place.folders[:2]:
        folder.rename(f"{folder}.away")
    place.write(place.version, ["late 0", "late 1"])
    place.version += 1
    for folder in place.folders[:2]:
        Path(f"{folder}.away").rename(folder)
    here = next(folder for folder in place.folders[:2] if (folder / "t-0").is_dir())
    (there,) = {*place.folders[:2]} - {here}
    words = ("reassign", place.path, "--topic", "t", "--partition", "0", "--to-dir", str(there))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(open_nodes, "COPIED_BYTES", 0)  # else it is copied before it moves
        message = place.run(*words, code=2)
    place.follow(message, "recover")
    place.run(*words)
    place.check([*FIRST, "late 0", "late 1"])


@case("its leader is damaged, and is not copied", on="three")
def a_replica_lags_whose_leader_is_damaged(place: Place) -> None:
    leader, follower, _ = replicas_of(place, "t")
    away = place.folders[follower].rename(place.root / "away")
    place.write(place.version, ["late 0", "late 1"])
    place.version += 1
    away.rename(place.folders[follower])
    for path in place.logs[leader : leader + 1]:
        flip(path, path.stat().st_size - 3)
    message = place.told(lambda: append_to(place, "s", "another topic"))
    place.follow(message, "recover")
    place.check([*FIRST, "late 0", "late 1"])


@case("was handed over to the brokers of cluster", on="three")
def a_set_that_brokers_have_is_taken_over(place: Place) -> None:
    format_nodes(place.folders)
    place.run("handover", place.path, "--cluster-metadata", str(lent_metadata(place)))
    message = place.refused(place.allowed)
    place.follow(message, "broker takeover")
    for folder in place.folders:
        (folder / META_PROPERTIES).unlink()
    place.check()


def lent_metadata(place: Place) -> Path:
    return know(place.root / "metadata", place.folders)


@case("If the handover was cut off, `kafkalog broker handover` ends it", on="three")
def a_handover_that_was_cut_off_is_ended(place: Place) -> None:
    format_nodes(place.folders)
    metadata = str(lent_metadata(place))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_handover, "_make_ready", _power_cut)
        with pytest.raises(PowerCutError):
            handover.hand_over([place.path], cluster_metadata=[metadata])
    message = place.refused(place.allowed)
    place.follow(message, "broker handover", "--cluster-metadata", metadata)
    place.follow(message, "broker takeover")
    for folder in place.folders:
        (folder / META_PROPERTIES).unlink()
    place.check()


@case("run it again, with")
def a_handover_that_was_cut_off_between_two_folders_is_run_again(place: Place) -> None:
    def write_one(folder: Path, topic_id: str) -> None:
        if folder.name == "t-1":
            raise PowerCutError
        write_topic_id(folder, topic_id)

    words = ("handover", place.path, "--topic-id", "t=hpYgM1pPTfKkq0oFhDYc0w")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(handover, "write_topic_id", write_one)
        with pytest.raises(PowerCutError):
            handover.hand_over([place.path], topic_ids={"t": "hpYgM1pPTfKkq0oFhDYc0w"})
    message = place.refused()
    place.follow(message, "broker handover", *words[2:])
    place.run("takeover", place.path)
    place.check()


@case("nodes, which this does not change. Writers and", on="three")
def one_node_of_a_set_is_opened_alone(place: Place) -> None:
    alone = partial(open_set, place.folders[:1], SetPolicy(), lambda: None)
    place.follow(place.refused(alone), "recover")
    place.check()


@case("say which topic: --topic; `kafkalog topic list` lists them", on="one, three")
def a_dump_needs_a_topic(place: Place) -> None:
    message = place.run("dump", place.path, "--records", code=2)
    assert "t " in place.follow(message, "topic list")
    place.run("dump", place.path, "--records", "--topic", "t")


@case("it may be lost. `kafkalog broker takeover --abort-open-transactions`")
def a_transaction_that_a_salvage_left_open_is_aborted(place: Place) -> None:
    append_batch(place.logs[0], producer_batch(4, 1, 1) + marker(5, 1, COMMIT))
    place.run("takeover", place.path)
    flip(place.logs[0], place.logs[0].stat().st_size - 3)
    message = place.run("salvage", place.path, "--drop", "t-0@5")
    place.follow(message, "broker takeover")
    place.check([*FIRST, "4"])


def abort_open(place: Place, message: str) -> None:
    """Abort what nobody knows the coordinator's decision of, as a person who is told so may do."""
    *_, flags = re.findall(r"(--abort-open-transactions --abort-producer \d+)", message)
    place.run("takeover", place.path, *flags.split())


@case("deletes it there", "deletes the topic there", on="one, three")
def a_topic_is_deleted_before_it_is_restored(place: Place) -> None:
    for text in (
        text for text in MESSAGES.values() if "`kafkalog topic delete PATH --topic {" in text
    ):
        place.follow(re.sub(r"--topic \{[^}]*\}", "--topic t", text), "topic delete")
        place.write(place.version, FIRST)
        place.version += 1
    place.check()


@case("adds some", on="one, three")
def a_topic_gets_partitions_before_it_is_played_into(place: Place) -> None:
    (text,) = (text for text in MESSAGES.values() if "`kafkalog topic alter PATH --topic {" in text)
    place.follow(text.replace("{name}", "t").replace("{count}", "3"), "topic alter")
    place.check()


def damage(place: Place) -> None:
    for path in place.logs:
        flip(path, path.stat().st_size - 3)


@case("copies it from another replica", on="three of two")
def a_damaged_folder_is_copied_by_recover_before_it_moves(place: Place) -> None:
    path = next(each for each in place.logs if each.parts[-3] in {"a1", "a2"})
    flip(path, path.stat().st_size - 3)
    (there,) = {*place.folders[:2]} - {path.parents[1]}
    words = ("reassign", place.path, "--topic", "t", "--partition", "0", "--to-dir", str(there))
    message = place.run(*words, code=1)
    place.follow(message, "recover")
    place.run(*words)
    place.check()


@case("Restore that file from a copy; `kafkalog salvage` shows", on="two directories")
def a_folder_that_is_damaged_is_salvaged_before_it_moves(place: Place) -> None:
    damage(place)
    here = next(folder for folder in place.folders if (folder / "t-0").is_dir())
    (there,) = {*place.folders} - {here}
    words = ("reassign", place.path, "--topic", "t", "--partition", "0", "--to-dir", str(there))
    message = place.run(*words, code=1)
    salvaged(place, message, "drop")
    place.run(*words)
    place.check([row for row in FIRST if row not in {"row 4", "row 6"}])


# What retention and deletion refuse


@case("by its own settings. Run `kafkalog broker takeover` first")
def what_a_broker_had_is_taken_over_before_something_is_deleted(place: Place) -> None:
    (place.folders[0] / META_PROPERTIES).write_text("version=1\n")
    (place.folders[0] / CLEAN_SHUTDOWN).write_text('{"version":0,"brokerEpoch":1}')
    message = place.run("retain", place.path, code=2)
    place.follow(message, "broker takeover")
    place.run("retain", place.path)


@case("If a broker has appended since, run")
def what_a_broker_appended_is_taken_over_before_something_is_deleted(place: Place) -> None:
    (place.folders[0] / META_PROPERTIES).write_text("version=1\n")
    append_batch(place.logs[0], batch_bytes(4, [Row(b"strange")]))
    message = place.run("delete-records", place.path, "--offsets", '{"t":{"0":1}}', code=2)
    place.follow(message, "broker takeover")
    place.run("delete-records", place.path, "--offsets", '{"t":{"0":1}}')
    (place.folders[0] / META_PROPERTIES).unlink()
    place.check([*FIRST[1:], "strange"])


@case("copies it from another replica", on="three")
def a_damaged_replica_is_copied_before_something_is_deleted(place: Place) -> None:
    words = ("delete-records", place.path, "--offsets", '{"t":{"0":1}}')
    leader = place.logs[replicas_of(place, "t")[0]]
    flip(leader, leader.stat().st_size - 3)
    message = place.run(*words, code=2)
    place.follow(message, "recover")
    place.run(*words)
    place.check(FIRST[1:])


@case("shows what is lost, and does without it")
def a_damaged_log_is_salvaged_before_something_is_deleted(place: Place) -> None:
    damage(place)
    message = place.run("delete-records", place.path, "--offsets", '{"t":{"0":1}}', code=2)
    salvaged(place, message, "drop")
    place.run("delete-records", place.path, "--offsets", '{"t":{"0":1}}')
    place.check([row for row in FIRST[1:] if row not in {"row 4", "row 6"}])


@case("forgets a group", on="one, three")
def a_group_of_a_deleted_topic_is_forgotten(place: Place) -> None:
    with kafkalog.Consumer(place.path, "g", ["t"]) as consumer:
        consumer.poll(1)
        consumer.commit()
    text = next(t for t in MESSAGES.values() if "`kafkalog group delete` forgets a group" in t)
    place.follow(text, "group describe")
    place.follow(text, "group delete", "--group", "g")
    assert place.run("groups", place.path).startswith("no consumer group")
    place.check()


# What was cut off


@case("Run `kafkalog salvage` with these options again")
def a_salvage_that_was_cut_off_is_ended_by_the_same_options(place: Place) -> None:
    for path in place.logs:
        flip(path, path.stat().st_size - 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(salvage, "salvage_is_over", _power_cut)
        with pytest.raises(PowerCutError):
            salvage.salvage([place.path], drop=["t-0@2"])
    message = place.run("recover", place.path, code=1)
    (options,) = re.findall(r"a salvage was cut off \(([^)]*)\)", message)
    place.follow(message, "salvage", *shlex.split(options))
    place.check([row for row in FIRST if row not in {"row 4", "row 6"}])


def cut_off(place: Place) -> None:
    """Let a commit append, and end before it is published."""
    kind, name = (Quorum, "_decide") if ";" in place.path else (LogSet, "publish")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, name, _power_cut)
        with pytest.raises(PowerCutError):
            place.write(place.version, ["cut 0", "cut 1"])


class PowerCutError(BaseException):
    """Ends a commit without letting it clear up, as a kill would."""


def _power_cut(*_: object, **__: object) -> None:
    raise PowerCutError


@case("to keep the records that are")
def records_of_a_state_that_is_older_are_kept(place: Place) -> None:
    cut_off(place)
    write_checkpoint(place.folders[0], HIGH_WATERMARK, {"t-0": 5, "t-1": 5})
    message = place.refused()
    (place.folders[0] / INTENT_FILE).unlink()
    shutil.rmtree(place.folders[0] / UNFINISHED_FOLDER)
    place.follow(message, "broker takeover")
    place.check([*FIRST, "cut 0", "cut 1"])


@case("which gives that commit up")
def a_commit_to_a_folder_that_is_gone_is_given_up(place: Place) -> None:
    cut_off(place)
    shutil.rmtree(place.folders[0] / "t-0")
    message = place.refused()
    place.follow(message, "topic delete")
    place.write(place.version, FIRST)
    place.check()


@case("did not write, or whose staged file is gone", "kafkalog recover --accept-os-loss")
def records_behind_a_commit_that_was_cut_off_are_cut_by_hand(place: Place) -> None:
    cut_off(place)
    for path in place.folders[0].glob(".kafkalog.staged.*"):
        path.unlink()
    append_batch(place.logs[0], batch_bytes(5, [Row(b"strange")]))
    for _ in range(2):
        message = place.refused()
        byte = int(*re.findall(r"cut the file at byte (\d+) by hand", message))
        with Path(message.split(": at byte")[0]).open("r+b") as file:
            file.truncate(byte)
    place.check()


@case("did not write, or whose staged file is gone")
def records_that_a_loss_of_power_left_behind_are_done_without(place: Place) -> None:
    place.flush = "os"
    cut_off(place)
    for path in place.folders[0].glob(".kafkalog.staged.*"):
        path.unlink()
    message = place.refused()
    place.follow(message, "recover")
    place.check()


@case("has a commit that was cut off: run", on="one")
def a_set_with_a_cut_off_commit_becomes_the_first_node(place: Place) -> None:
    cut_off(place)
    several = f"{place.path};{place.root}/b;{place.root}/c"
    message = place.refused(lambda: place.write(9, ["x"], several))
    place.follow(message, "recover")
    place.path = several
    place.check()


@case("holds partitions and no commit state: run", on="one")
def directories_without_a_state_become_the_first_node(place: Place) -> None:
    move_ours(*place.folders)
    several = f"{place.path};{place.root}/b;{place.root}/c"
    message = place.refused(lambda: place.write(9, ["x"], several))
    place.follow(message, "broker takeover")
    place.path = several
    place.check()


# What a command cannot do there


@case("exists. `kafkalog topic alter` changes it", on="one, three")
def a_topic_that_exists_is_altered(place: Place) -> None:
    message = place.run("create", place.path, "--topic", "t", "--partitions", "3", code=2)
    place.follow(message, "topic alter", "--topic", "t", "--partitions", "3")
    place.check()


# What names an option, a file or a folder


@case("continue without them", "lets the log continue without those", on="one, three")
def what_a_loss_of_power_took_is_done_without(place: Place) -> None:
    place.flush = "os"
    place.write(place.version, ["late 0", "late 1"])
    place.version += 1
    for path in place.logs:
        path.write_bytes(path.read_bytes()[:170])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(system, "boot_id", lambda: "another run of the machine")
        message = place.refused()
        place.follow(message, "recover")
        place.check([*FIRST, "late 1"])


@case("That was no loss of", on="one")
def what_was_durable_and_is_lost_is_restored(place: Place) -> None:
    place.flush = "os"
    place.write(place.version, ["late 0", "late 1"])
    place.version += 1
    place.rows += ["late 0", "late 1"]
    place.run("backup", place.path, f"{place.root}/backup")
    for path in place.logs:
        path.write_bytes(path.read_bytes()[:85])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(system, "boot_id", lambda: "another run of the machine")
        message = place.run("recover", place.path, "--accept-os-loss", code=1)
        assert "Restore the log directories" in message
        restore(place)
        place.check()


@case("write with another txnAppId", on="one, three")
def a_version_that_is_there_is_written_with_another_id(place: Place) -> None:
    assert "write with another txnAppId" in place.refused(lambda: place.write(1, ["other"]))
    table = pa.table({"value": ["other"]})
    kafkalog.append(place.path, "t", table, transactional_id="another", version=1)
    place.check([*FIRST, "other"])


@case("Restore it; or remove it: ", on="one")
def a_broken_checkpoint_is_removed(place: Place) -> None:
    for name in (RECOVERY_POINT, HIGH_WATERMARK):
        (place.folders[0] / name).write_bytes(b"?\n")
        assert "or remove it" in place.run("recover", place.path, code=1)
        (place.folders[0] / name).unlink()
    place.check()


@case("kafkalog broker takeover`: it", on="one, two directories")
def a_damaged_intent_is_moved_away(place: Place) -> None:
    cut_off(place)
    for folder in place.folders:
        flip(folder / INTENT_FILE, 300)
    message = place.refused()
    move_ours(*place.folders)
    place.follow(message, "broker takeover")
    place.check([*FIRST, "cut 0", "cut 1"])


@case("Once it has stopped, run `kafkalog broker takeover`. Then", on="one")
def writing_where_a_broker_lived_is_allowed(place: Place) -> None:
    (place.folders[0] / META_PROPERTIES).write_text("version=1\n")
    message = place.refused()
    place.follow(message, "broker takeover")
    (words,) = re.findall(r"at the command line (--set \S+)\)", message)
    done = CliRunner().invoke(
        app, ["append", place.path, "--topic", "t", *words.split()], input="line\n"
    )
    assert done.exit_code == 0, done.output
    (place.folders[0] / META_PROPERTIES).unlink()
    place.check([*FIRST, "line"])


@case("The option allowInternalTopics=true permits it", on="one, three")
def writing_to_an_internal_topic_is_allowed(place: Place) -> None:
    words = ["append", place.path, "--topic", "__consumer_offsets", "--partitions", "1"]
    message = CliRunner().invoke(app, words[:4], input="line\n").output
    (given,) = {*re.findall(r"at the command line (--set \w+=\w+)", " ".join(message.split()))}
    done = CliRunner().invoke(app, [*words[:4], *given.split()], input="line\n")
    assert done.exit_code == 0, done.output
    place.check()


@case("--allow-broker-directory permits it", on="one")
def retention_where_a_broker_lived_is_allowed(place: Place) -> None:
    (place.folders[0] / META_PROPERTIES).write_text("version=1\n")
    (place.folders[0] / CLEAN_SHUTDOWN).write_text('{"version":0,"brokerEpoch":1}')
    message = place.run("retain", place.path, code=2)
    (flag,) = re.findall(r"(--allow-broker-directory) permits it", message)
    place.run("retain", place.path, flag)


@case("gives it to this run", "(set one with ", on="one, three")
def a_policy_is_given_to_one_run(place: Place) -> None:
    said = place.run("compact", place.path, "--topic", "t", code=0)
    config = re.findall(r"--config (cleanup.policy=compact)", said)
    place.run(
        "compact", place.path, "--topic", "t", "--config", *(config or ["cleanup.policy=compact"])
    )
    place.run("retain", place.path, "--topic", "t", "--config", "retention.ms=9999999999")
    place.check()


@case("a node that joins a set holds nothing yet: move them", on="three")
def a_new_node_that_holds_something_is_emptied(place: Place) -> None:
    shutil.copytree(place.folders[0] / "t-0", place.root / "d" / "t-0")
    words = ("reassign", place.path, "--replace", f"1={place.root}/d")
    assert "move them away" in place.run(*words, code=2)
    (place.root / "d" / "t-0").rename(place.root / "elsewhere")
    place.run(*words)
    place.path = f"{place.root}/a;{place.root}/d;{place.root}/c"
    place.run("recover", place.path)
    place.check()


@case("only one node may hold anything", on="one")
def two_sets_do_not_become_nodes_of_one(place: Place) -> None:
    table = pa.table({"value": ["x"]})
    kafkalog.append(f"{place.root}/other", "t", table)
    wrong = f"{place.path};{place.root}/other"
    message = place.refused(lambda: kafkalog.append(wrong, "t", table))
    assert "Name an empty directory" in message
    place.path = f"{place.path};{place.root}/new"
    place.check()


@case("and holds what that did not put there", on="one")
def what_others_put_into_a_folder_of_a_cut_off_commit_is_moved_away(place: Place) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LogSet, "publish", _power_cut)
        with pytest.raises(PowerCutError):
            kafkalog.append(place.path, "new", pa.table({"value": ["x"]}))
    (place.folders[0] / "new-0" / "mine.txt").write_text("mine")
    message = place.refused()
    assert "Move it away" in message
    (place.folders[0] / "new-0" / "mine.txt").rename(place.root / "mine.txt")
    place.check()


@case("a disk may not be mounted there", on="two directories")
def a_directory_that_is_not_mounted_is_mounted(place: Place) -> None:
    away = place.folders[1].rename(place.root / "away")
    place.folders[1].mkdir()
    assert "may not be mounted" in place.refused()
    shutil.rmtree(place.folders[1])
    away.rename(place.folders[1])
    place.check()


# What the errors say in general


@case(
    "Run `kafkalog topic list PATH` to see",
    "Run `kafkalog topic offsets PATH` to see",
    "Run `kafkalog verify PATH`. On several",
    "Else restore it from a backup of the whole set, after",
    "(`kafkalog node list PATH` lists them)",
    "corrects indexes of active segments",
    on="one, three",
)
def remedies_name_commands_that_there_are(place: Place) -> None:
    for name in kafkalog.errors.__all__:
        remedy = getattr(kafkalog.errors, name).remedy
        for command in COMMAND.findall(remedy):
            of_nodes, of_one = "node list" in command, re.search("salvage|takeover", command)
            if not (of_one if ";" in place.path else of_nodes):
                words = re.sub(r" (PATH|-).*", "", command.removeprefix("kafkalog "))
                place.follow(f"`{command}`", words)
    place.check()


@case("What makes room on a full disk", on="one, three")
def what_makes_room_on_a_full_disk_can_be_run(place: Place) -> None:
    (text,) = (text for text in MESSAGES.values() if "What makes room on a full disk" in text)
    place.write(place.version, ["late 0", "late 1"])
    place.version += 1
    names = {"…": "1", "TOPIC": "t"}
    for old, new in names.items():
        text = text.replace(old, new)
    place.follow(text, "retain", "--topic", "t")
    place.follow(text, "topic trim", "--offsets", '{"t":{"0":1}}')
    place.follow(text, "topic delete", *(() if "--topic" in text else ("--topic", "t")))
    place.write(place.version, FIRST)
    place.check()


@case("write it by the batches")
def leader_epochs_that_are_damaged_are_written_again(place: Place) -> None:
    (place.folders[0] / "t-0" / "leader-epoch-checkpoint").write_bytes(bytes(40))
    message = place.run("verify", place.path, code=1)
    place.follow(message, "recover")
    place.check()


@case("that of any other partition of the topic says the same", "writes it again")
def a_topic_id_that_is_damaged_is_written_again(place: Place) -> None:
    (place.folders[0] / "t-0" / "partition.metadata").write_bytes(bytes(40))
    place.follow(place.refused(), "recover")
    (place.folders[0] / "t-1" / "partition.metadata").unlink()
    place.follow(place.run("verify", place.path, code=1), "recover")
    place.check()


OF_OPTIONS: Final = (
    "for `kafkalog retain`",
    "what is copied from where",
    "write also where a broker lived",
)
"""What options are for: no advice."""

ELSEWHERE: Final[dict[str, str]] = {
    "a broker has written since. Run": "unit/admin/test_handed_nodes.py::"
    "test_after_brokers_have_written_a_takeover_comes_before_a_handover",
    "serving metrics needs prometheus-client": "unit/jobs/test_metrics.py::"
    "test_without_the_library_the_command_that_is_named_prints_the_same",
    "a broker of another one would lose": "unit/admin/test_handed_nodes.py::"
    "test_a_replica_that_lags_is_brought_in_sync_first",
    "nothing says which is the cluster's": "unit/admin/test_handed_nodes.py::"
    "test_a_topic_that_the_cluster_made_is_taken_over",
    "know what it said: the next commit": "unit/store/replicas/test_lost_states.py::"
    "test_verify_names_the_checkpoint_that_one_node_has_lost",
    "Then put an": "unit/store/replicas/test_replicas_that_part.py::"
    "test_nodes_that_were_put_back_and_written_to_are_refused_with_a_way_on_that_works",
    "is not the folder of the leader": "unit/admin/test_compact_replicas.py::"
    "test_a_replica_that_cannot_get_other_files_is_not_read_before_it_is_brought_up_to_date",
}
"""Tests that follow an advice where files of a cluster are needed, by parts of messages."""


def test_each_message_that_names_a_command_is_in_a_case() -> None:
    said = [*SAID, *ELSEWHERE, *OF_OPTIONS]
    forgotten = {
        where: text for where, text in MESSAGES.items() if not any(part in text for part in said)
    }
    assert not forgotten
    over = [part for part in said if not any(part in text for text in _texts())]
    assert not over
    for text in ELSEWHERE.values():
        file, _, test = text.partition("::")
        assert f"def {test}(" in (HOME / "tests" / file).read_text()


@functools.cache
def _texts() -> list[str]:
    """Return all texts of the sources."""
    trees = (ast.parse(path.read_text()) for path in _sources())
    return [text for tree in trees for node in ast.walk(tree) if (text := _text(node))]


def _documented() -> list[tuple[str, str]]:
    """List the commands in the pages of the documentation, in lines and in backquotes."""
    found = []
    for page in (HOME / "docs").glob("*.md"):
        text = page.read_text().replace("\\\n", " ")
        lines = re.findall(r"^(?:    |\$ )(kafkalog [^\n]+)$", text, re.MULTILINE)
        found += [(page.name, line) for line in [*lines, *COMMAND.findall(text)]]
    return sorted({*found})


def test_each_command_and_option_that_a_text_names_exists() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    named = [*_documented(), *(("a message", each) for each in _commands_in_messages())]
    wrong = []
    for where, line in named:
        words = re.split(r"\s+", re.split(r" [|>#]|[;&]$|\s\s+", line)[0])[1:]
        name = next((each for each in (" ".join(words[:2]), words[0]) if each in commands), None)
        if name is None:
            is_command = re.fullmatch("[a-z][a-z-]+", words[0]) and re.search("LOG|PATH|/", line)
            wrong += [(where, line)] if is_command else []
            continue
        options = {o for each in commands[name].params for o in each.opts} | {"--help", "-h"}
        given = {word.split("=")[0] for word in words if re.match("--[a-z]", word)}
        if name != "run" and given - options:
            wrong.append((where, line))
    assert not wrong


def test_no_text_and_no_line_of_the_report_names_a_command_by_an_earlier_name() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    earlier = {name for name, each in commands.items() if each.hidden and each.params}
    earlier -= {name for name, each in commands.items() if hasattr(each, "commands")}
    assert {"groups", "takeover"} <= earlier
    names = sorted(earlier, key=len, reverse=True)
    named = re.compile(rf"kafkalog ({'|'.join(map(re.escape, names))})(?![\w-])")
    pages = [
        HOME / "README.md",
        *(HOME / "docs").rglob("*.md"),
        *(HOME / "docs" / "deploy").iterdir(),
    ]
    texts = [page.read_text() for page in pages if page.is_file()]
    lines = [f"kafkalog {each}" for each in _lines_of_the_report()]
    assert len(lines) > 10
    assert [
        found[0] for each in [*texts, *_texts(), *lines] for found in named.finditer(each)
    ] == []
    assert {each for each in lines if each.removeprefix("kafkalog ") not in commands} == set()


def _lines_of_the_report() -> list[str]:
    """Return the commands that the report puts lines together of."""
    trees = [ast.parse(path.read_text()) for path in (HOME / "jobs" / "report").glob("*.py")]
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    first = [
        each.args[0]
        for each in calls
        if isinstance(each.func, ast.Name) and each.func.id == "_line"
    ]
    branches = [
        b
        for each in first
        for b in ([each.body, each.orelse] if isinstance(each, ast.IfExp) else [each])
    ]
    return [str(each.value) for each in branches if isinstance(each, ast.Constant)]


def _commands_in_messages() -> list[str]:
    return [each for text in MESSAGES.values() for each in COMMAND.findall(text)]


@pytest.mark.parametrize(
    ("name", "kind", "function"), CASES, ids=[f"{name}-{kind}" for name, kind, _ in CASES]
)
def test_advice(
    name: str, kind: str, function: Case, tmp_path: Path, places: dict[str, Path]
) -> None:
    del name
    shutil.copytree(places[kind], tmp_path, dirs_exist_ok=True)
    function(Place(tmp_path, kind))


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Give a place of each kind, to be copied."""
    found = {}
    for kind in PLACES:
        found[kind] = tmp_path_factory.mktemp(kind.replace(" ", "-"))
        place = Place(found[kind], kind)
        for version in range(2):
            place.write(version, FIRST[4 * version : 4 * version + 4])
    return found
