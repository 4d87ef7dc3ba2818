"""What one place alone may do: a list of who else touches the same files, and why."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

from tests.support.distributions import PACKAGES, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OFFSET_CHECKPOINTS: Final = {"HIGH_WATERMARK", "RECOVERY_POINT", "LOG_START_OFFSET"}
READING: Final = {"read_offset_checkpoint", "find_offset_checkpoint", "LogDirs.checkpoint"}

READERS: Final = {
    "checkpoints/broker.py": "has the format",
    "streaming/store/log_dirs.py": "takes out what lives beside a file",
    "streaming/store/ends/recorded.py": "for writers and readers",
    "streaming/source/batch_plan.py": "how far a log is compacted",
    "streaming/store/folder_changes.py": "takes what they say to another directory",
    "streaming/store/broker_files.py": "writes ends, moves log starts up, takes entries away",
    "streaming/store/recovery/partition_states.py": "makes durable what is below a new one",
    "streaming/store/replicas/in_sync.py": "what of a replica was made durable",
    "streaming/store/replicas/copying.py": "how far a log is compacted",
    "streaming/store/replicas/open_nodes.py": "distrusts what a node says that lost its state",
    "streaming/store/recovery/unsynced.py": "asks what was compacted, and for no ends",
    "streaming/admin/cleaning.py": "how far a log is compacted",
    "streaming/admin/broker/handover.py": "writes all of them",
    "streaming/admin/backup.py": "copies what they say of a partition",
    "streaming/admin/nodes/replicas.py": "whether a replica comes any further",
    "streaming/admin/salvage.py": "lowers them to where it cuts",
    "jobs/inspection/batches.py": "names a recovery point that stops the next writer",
    "streaming/admin/tier_restore.py": "says how much of a dead cluster was not uploaded",
}

NAMING: Final = {
    "checkpoints/broker.py": "has the format",
    "streaming/commit/tail_recovery.py": "in messages",
    "streaming/commit/append.py": "looks whether one was written that may hide what it appends",
    "streaming/admin/backup.py": "copies what they say of a partition",
    "streaming/admin/nodes/replicas.py": "whether a replica comes any further",
    "streaming/store/replicas/open_nodes.py": "distrusts what a node says that lost its state",
    "streaming/store/replicas/copying.py": "lowers how far a replica is trusted",
    "streaming/admin/broker/handover.py": "writes all of them",
    "streaming/admin/salvage.py": "lowers them to where it cuts",
    "streaming/store/ends/recorded.py": "for writers and readers",
    "streaming/source/batch_plan.py": "whether a view may lack keys",
    "streaming/store/ends/rule.py": "in messages",
    "streaming/store/ends/tiered.py": "in messages",
    "streaming/store/folder_changes.py": "takes what they say to another directory",
    "streaming/store/broker_files.py": "writes ends, moves log starts up, takes entries away",
    "streaming/store/recovery/partition_states.py": "makes durable what is below a new one",
    "streaming/admin/broker/handover_state.py": "for a broker, of several nodes",
    "streaming/store/replicas/in_sync.py": "what of a replica was made durable",
    "streaming/store/recovery/rollback.py": "in messages",
    "jobs/inspection/batches.py": "names a recovery point that stops the next writer",
    "streaming/admin/tier_restore.py": "says how much of a dead cluster was not uploaded",
}


def modules() -> Iterator[Path]:
    for folder in (*(ROOT / name for name in PACKAGES), ROOT / "src" / "kafkalog" / "files"):
        yield from folder.rglob("*.py")


def names_in(path: Path) -> set[str]:
    """List the names that a module uses: its own, imported ones, and attributes."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
            if isinstance(node.value, ast.Name):
                found.add(f"{node.value.id}.{node.attr}")
        elif isinstance(node, ast.alias):
            found.add(node.name)
    return found


def using(names: set[str]) -> set[str]:
    return {str(path.relative_to(ROOT)) for path in modules() if names & names_in(path)}


def test_only_the_owner_of_ends_reads_kafkas_offset_checkpoints() -> None:
    assert using(READING) == {*READERS}
    assert using(OFFSET_CHECKPOINTS) == {*NAMING}


def test_nobody_spells_the_files_out() -> None:
    spelled = [
        str(path.relative_to(ROOT))
        for path in modules()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value.endswith("-offset-checkpoint")
    ]
    assert {*spelled} == {"checkpoints/broker.py"}
